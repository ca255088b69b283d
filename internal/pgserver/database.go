package pgserver

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Databases are named jobgen_<label>_<run>_<n>, templates jobgen_template_<label>_<hash>_d<realm>.
// Whether one is still in use is told by an advisory lock that its user holds: the lock goes with
// the session, and so with the process, however that ends.
const (
	lockRun      int32 = 0x6a6f6201 // key: the run; held for as long as the run lasts
	lockTemplate int32 = 0x6a6f6202 // key: hash of the template; shared by all who use it
	lockMigrate  int32 = 0x6a6f6203 // same key; exclusive while one process makes the template
)

// marker is the comment on each database made here. A name alone is too little to drop one by.
const marker = "made by a jobgen test or example, which drops it"

// keepIdle is for sessions that hold a lock for hours and do nothing else.
const keepIdle = `SET idle_session_timeout = 0`

var databaseName = regexp.MustCompile(`^jobgen_[a-z0-9_]*_([0-9a-f]{8})_[0-9]+$`)

// CreateDatabase creates a database, as a copy of the template unless that is empty. The returned
// function drops it, cutting off whoever is still connected; it works with a context that has been
// cancelled, as that of a test has at clean-up.
func (s *Server) CreateDatabase(ctx context.Context, template string) (url string, drop func(context.Context) error, err error) {
	name := fmt.Sprintf("jobgen_%s_%08x_%d", s.label, s.run, s.next.Add(1))
	source := "template0 ENCODING 'UTF8'"
	if template != "" {
		source = pgx.Identifier{template}.Sanitize()
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return "", nil, errors.New("create database: the server is closed")
	}
	conn, err := connect(ctx, s.URL)
	if err != nil {
		return "", nil, fmt.Errorf("create database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := execBusy(ctx, conn, "CREATE DATABASE "+name+" TEMPLATE "+source); err != nil {
		return "", nil, fmt.Errorf("create database: %w", err)
	}
	s.databases.Store(name, nil)
	if s.stop == nil {
		if _, err := conn.Exec(ctx, "COMMENT ON DATABASE "+name+" IS '"+marker+"'"); err != nil {
			return "", nil, fmt.Errorf("create database: %w", err)
		}
	}
	drop = func(ctx context.Context) error {
		s.mu.RLock()
		defer s.mu.RUnlock()
		if _, there := s.databases.Load(name); s.closed || !there {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		return s.dropDatabase(ctx, name)
	}
	return withDatabase(s.URL, name), drop, nil
}

func (s *Server) dropDatabase(ctx context.Context, name string) error {
	conn, err := connect(ctx, s.URL)
	if err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := execBusy(ctx, conn, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	s.databases.Delete(name)
	return nil
}

// Template returns the name of a database that migrate has filled, for CreateDatabase to copy. It
// is made once per server, also when many processes ask at the same time; the others wait. The
// name must change with what migrate does: put a hash of it in.
//
// A template that nobody uses any more is dropped by the next process that makes another one.
func (s *Server) Template(ctx context.Context, name string, migrate func(ctx context.Context, url string) error) (string, error) {
	hash := sha256.Sum256([]byte(name))
	short := label(name)
	template := fmt.Sprintf("jobgen_template_%s_%x_d%s", short[:min(len(short), 16)], hash[:4], s.realm)
	key := templateKey(template)

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return "", fmt.Errorf("template %s: the server is closed", name)
	}
	if s.templates[template] != nil {
		return template, nil
	}
	conn, err := connect(ctx, s.URL)
	if err == nil {
		_, err = conn.Exec(ctx, keepIdle)
	}
	if err == nil {
		err = s.makeTemplate(ctx, conn, template, key, migrate)
	}
	if err != nil {
		if conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
		return "", fmt.Errorf("template %s: %w", name, err)
	}
	s.templates[template] = conn // with its shared lock, until Close
	return template, nil
}

// makeTemplate leaves conn holding the shared lock on a finished template. Order of locks: migrate,
// then template. Whoever drops a template takes only the second, and does not wait for it.
func (s *Server) makeTemplate(ctx context.Context, conn *pgx.Conn, template string, key int32, migrate func(context.Context, string) error) error {
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1, $2)`, lockMigrate, key); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock_shared($1, $2)`, lockTemplate, key); err != nil {
		return err
	}
	// A finished template admits no connections. One that does was left by a process that died
	// while it made it.
	var finished bool
	err := conn.QueryRow(ctx, `SELECT coalesce((SELECT NOT datallowconn FROM pg_database WHERE datname = $1), false)`,
		template).Scan(&finished)
	if err != nil {
		return err
	}
	if !finished {
		for _, statement := range []string{
			"DROP DATABASE IF EXISTS " + template + " WITH (FORCE)",
			"CREATE DATABASE " + template + " TEMPLATE template0 ENCODING 'UTF8'",
			"COMMENT ON DATABASE " + template + " IS '" + marker + "'",
		} {
			if err := execBusy(ctx, conn, statement); err != nil {
				return err
			}
		}
		if err := migrate(ctx, withDatabase(s.URL, template)); err != nil {
			return err
		}
		// Sessions that migrate has closed may still be on their way out, and CREATE DATABASE
		// looks again for them every 100 ms only.
		_, err := conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1`, template)
		if err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, "ALTER DATABASE "+template+" ALLOW_CONNECTIONS false"); err != nil {
			return err
		}
		if s.stop == nil {
			s.sweepTemplates(ctx, conn, template)
		}
	}
	_, err = conn.Exec(ctx, `SELECT pg_advisory_unlock($1, $2)`, lockMigrate, key)
	return err
}

// releaseTemplates drops each template that this process was the last to use.
func (s *Server) releaseTemplates(ctx context.Context) error {
	var errs []error
	for template, conn := range s.templates {
		_, err := conn.Exec(ctx, `SELECT pg_advisory_unlock_shared($1, $2)`, lockTemplate, templateKey(template))
		if err == nil {
			err = dropUnusedTemplate(ctx, conn, template)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func dropUnusedTemplate(ctx context.Context, conn *pgx.Conn, template string) error {
	var unused bool
	err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, $2)`, lockTemplate, templateKey(template)).Scan(&unused)
	if err != nil || !unused {
		return err
	}
	_, err = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{template}.Sanitize())
	_, unlockErr := conn.Exec(ctx, `SELECT pg_advisory_unlock($1, $2)`, lockTemplate, templateKey(template))
	return errors.Join(err, unlockErr)
}

// sweepDatabases drops what runs that ended without Close have left. Errors do not matter: another
// process may sweep at the same time, and the next start tries again.
func (s *Server) sweepDatabases(ctx context.Context) {
	conn, err := connect(ctx, s.URL)
	if err != nil {
		return
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, name := range owned(ctx, conn, `jobgen\_%`) {
		parts := databaseName.FindStringSubmatch(name)
		if parts == nil {
			continue
		}
		run, err := strconv.ParseUint(parts[1], 16, 31)
		if err != nil {
			continue
		}
		var alive bool
		err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks
			WHERE locktype = 'advisory' AND classid = $1::int8::oid AND objid = $2::int8::oid AND objsubid = 2)`,
			int64(lockRun), int64(run)).Scan(&alive)
		if err == nil && !alive {
			// Not WITH (FORCE): somebody looking into a leftover may go on looking.
			_, _ = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize())
		}
	}
}

// sweepTemplates drops the templates that nobody uses, except keep. Those of another maintenance
// database are left alone, since their locks cannot be seen from this one.
func (s *Server) sweepTemplates(ctx context.Context, conn *pgx.Conn, keep string) {
	for _, name := range owned(ctx, conn, `jobgen\_template\_%\_d`+s.realm) {
		if name != keep {
			_ = dropUnusedTemplate(ctx, conn, name)
		}
	}
}

// owned lists the marked databases that this role may drop.
func owned(ctx context.Context, conn *pgx.Conn, like string) []string {
	rows, err := conn.Query(ctx, `SELECT datname FROM pg_database
		WHERE datname LIKE $1 AND pg_has_role(datdba, 'USAGE')
		  AND shobj_description(oid, 'pg_database') = $2`, like, marker)
	if err != nil {
		return nil
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil
	}
	return names
}

// templateKey is the key of a template's advisory locks.
func templateKey(template string) int32 {
	hash := sha256.Sum256([]byte(template))
	return int32(binary.BigEndian.Uint32(hash[:]) >> 1)
}

// execBusy runs a statement about a database until nobody is in its way. Postgres itself waits up
// to five seconds for sessions on their way out; a machine under load needs longer at times.
func execBusy(ctx context.Context, conn *pgx.Conn, statement string) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for tries := 0; ; tries++ {
		_, err := conn.Exec(ctx, statement)
		var refused *pgconn.PgError
		if err == nil || tries == 5 || !errors.As(err, &refused) || refused.Code != "55006" { // object_in_use
			return err
		}
		pause.Reset(50 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return err
		}
	}
}

// connect opens a session. Its errors are one sentence each and never contain the password.
func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		// pgx's own message repeats the string, and what is malformed cannot be redacted reliably.
		return nil, errors.New("this is no connection string; it should look like " +
			"postgres://user:password@host:5432/database or host=… user=… dbname=…")
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 10 * time.Second
	}
	config.RuntimeParams["application_name"] = "jobgen pgserver"
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, &connectError{config: config, err: err}
	}
	return conn, nil
}

// connectError says in one sentence who could not connect to what, and why.
type connectError struct {
	config *pgx.ConnConfig
	err    error
}

func (e *connectError) Unwrap() error { return e.err }

func (e *connectError) Error() string {
	at := net.JoinHostPort(e.config.Host, strconv.Itoa(int(e.config.Port)))
	if strings.HasPrefix(e.config.Host, "/") {
		at = e.config.Host
	}
	return fmt.Sprintf("cannot connect to database %q at %s as user %q: %s", e.config.Database, at, e.config.User, e.reason())
}

func (e *connectError) reason() string {
	var refused *pgconn.PgError
	var network *net.OpError
	var name *net.DNSError
	switch {
	case errors.As(e.err, &refused):
		return refused.Message
	case errors.Is(e.err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.As(e.err, &name):
		return name.Error()
	case errors.As(e.err, &network):
		return network.Err.Error()
	}
	text := strings.Join(strings.Fields(e.err.Error()), " ")
	if e.config.Password != "" {
		text = strings.ReplaceAll(text, e.config.Password, "…")
	}
	return text
}

// withDatabase returns the connection string with another database in it.
func withDatabase(connection, name string) string {
	if !strings.HasPrefix(connection, "postgres://") && !strings.HasPrefix(connection, "postgresql://") {
		return connection + " dbname=" + name // of two, the last one counts
	}
	u, err := url.Parse(connection)
	if err != nil {
		return connection // connect has refused it before
	}
	u.Path, u.RawPath = "/"+name, ""
	query := u.Query()
	for _, parameter := range []string{"dbname", "database"} {
		if query.Has(parameter) {
			query.Del(parameter)
			u.RawQuery = query.Encode()
		}
	}
	return u.String()
}
