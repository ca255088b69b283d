package jobctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// connectionString is what one begins with. The driver takes anything else for an empty one, and goes to the database
// that it finds by default.
var connectionString = regexp.MustCompile(`^(postgres(ql)?://|\s*[a-z_]+\s*=)`)

// connectTimeout is for a connection string that names none.
const connectTimeout = 10 * time.Second

// database is the way to the database: where the connection string came from, and what it leads to.
type database struct {
	pool   *pgxpool.Pool
	source string
	target string
}

// connect prepares the pool; the first statement opens a connection.
func (c *cli) connect(ctx context.Context) (*database, error) {
	url, source := c.findString()
	config, err := pgxpool.ParseConfig(url)
	if err == nil && url != "" && !connectionString.MatchString(url) {
		err = errors.New("neither a URL nor keywords with values")
	}
	if err != nil {
		return nil, malformed(source, err)
	}
	conn := config.ConnConfig
	conn.ConnectTimeout = cmp.Or(conn.ConnectTimeout, connectTimeout)
	conn.RuntimeParams["application_name"] = cmp.Or(conn.RuntimeParams["application_name"], "jobctl")
	if conn.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		conn.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // works through any pooler
	}
	config.MaxConns, config.MinConns, config.MinIdleConns = 2, 0, 0
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		conn.TypeMap().RegisterType(&pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &clampedTimes{}})
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	at := net.JoinHostPort(conn.Host, strconv.Itoa(int(conn.Port)))
	if strings.HasPrefix(conn.Host, "/") {
		at = conn.Host
	}
	return &database{pool, source, fmt.Sprintf("database %q at %s as user %q", cmp.Or(conn.Database, conn.User), at, conn.User)}, nil
}

// close ends the connections. One whose server has gone silent takes its time over that, which nobody waits for.
func (d *database) close() {
	closed := make(chan struct{})
	go func() {
		d.pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}

func (c *cli) findString() (url, source string) {
	if c.hasURL() && c.databaseURL != "" {
		return c.databaseURL, "--database-url"
	}
	if url := c.Getenv("DATABASE_URL"); url != "" && !c.hasURL() {
		return url, "DATABASE_URL"
	}
	return "", "the PG* variables and defaults"
}

// malformed leaves out the string and what the driver says of it: what is malformed cannot be relied on to be redacted,
// and there is a password in it.
func malformed(source string, err error) error {
	var file *fs.PathError
	switch {
	case errors.As(err, &file):
		return fmt.Errorf("%s: a file that the connection needs cannot be read: %w", source, file)
	case source == "--database-url", source == "DATABASE_URL":
		return fmt.Errorf("%s is no connection string; it should look like postgres://user:password@host:5432/database or host=… user=… dbname=…", source)
	}
	return errors.New("one of the PG* variables has no valid value (PGPORT is a number, PGSSLMODE one of disable, allow, prefer, require, verify-ca, verify-full)")
}

// lacking is for errors of a schema whose version is right: there is nothing to migrate.
func lacking(err error) error {
	var pg *pgconn.PgError
	if errors.Is(err, engine.ErrNotMigrated) && errors.As(err, &pg) {
		return fmt.Errorf("%s, which the schema of this version has: `jobctl doctor` tells what is missing", pg.Message)
	}
	return err
}

// databaseError ends a command because the database cannot be used.
type databaseError struct {
	text string
	err  error
}

func (e *databaseError) Error() string { return e.text }
func (e *databaseError) Unwrap() error { return e.err }

// stopped is how far a command had got when the database failed it.
type stopped struct {
	so  string
	err error
}

func (s *stopped) Error() string { return s.so + ": " + s.err.Error() }
func (s *stopped) Unwrap() error { return s.err }

// explain says in one sentence what to do, and which database it is about.
func (d *database) explain(err error) error {
	var f *finding
	if err == nil || errors.As(err, &f) {
		return err
	}
	so, cause := "", err
	if s, is := err.(*stopped); is {
		so, cause = s.so+": ", s.err
	}
	return &databaseError{fmt.Sprintf("%s%s [%s: %s]", so, strings.TrimPrefix(d.reason(cause), "jobgen: "), d.source, d.target), err}
}

func (d *database) reason(err error) string {
	var pg *pgconn.PgError
	var conn *pgconn.ConnectError
	switch {
	case errors.Is(err, engine.ErrNotMigrated):
		return "the database is not migrated, or not far enough: run `jobctl migrate up`, and see `jobctl migrate status`"
	case errors.As(err, &pg) && pg.Code == "25006": // read_only_sql_transaction
		return "the database is read-only (a standby, or default_transaction_read_only is on): connect to the primary"
	case errors.As(err, &pg) && pg.Code == "42501" && strings.HasSuffix(err.Error(), pg.Error()) && strings.Count(err.Error(), pg.Message) == 1: // nobody has explained it
		return fmt.Sprintf("%s: this role may not change that; connect as one that may, or grant it what workers need (docs/operating/install.md)", pg.Message)
	case errors.As(err, &pg) && !errors.As(err, &conn) && strings.HasPrefix(pg.Code, "57P"): // shutdown, terminated
		return fmt.Sprintf("the server ended the connection (%s): see whether it restarts, or who did that", pg.Message)
	case errors.As(err, &conn) && !errors.As(err, &pg):
		return fmt.Sprintf("no database answers (%s): check that it runs and that the connection settings are right", network(err))
	}
	return err.Error()
}

// network is the cause at the bottom of a connection error. The driver's own text repeats it for each address and for
// each way of encryption that it tried.
func network(err error) string {
	var name *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &name):
		return fmt.Sprintf("there is no host %q", name.Name)
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.As(err, &op):
		return op.Err.Error()
	}
	return err.Error()
}
