// Package pgserver finds or starts the Postgres that tests, examples and benchmarks run on.
//
// Three ways are tried in this order:
//
//  1. DATABASE_URL names a server. Databases called jobgen_… are created beside the one it names,
//     which itself is never touched.
//  2. Installed server binaries: initdb into a temporary folder, a server on a unix socket only.
//  3. A Docker engine: a container whose port is published on the loopback address.
//
// What Start started goes away with the process, however that ends: Close, return from main,
// os.Exit, a panic, Ctrl-C, SIGKILL. No signal handler is installed for it. The process holds one
// end of a pipe, and whoever holds the other end (a shell beside the server, the container's first
// process) stops the server when the pipe breaks.
//
// Three environment variables steer it: JOBGEN_PG=url|binaries|docker allows one way only,
// JOBGEN_PGBIN names the folder of the server binaries, JOBGEN_PG_IMAGE the container image.
package pgserver

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// oldestVersion is the oldest server version that jobgen supports.
const oldestVersion = 14

// Options says what kind of server is wanted. The zero value is right for tests.
type Options struct {
	// Durable makes a started server keep its data on disk and flush them as a production server
	// does. Tests leave it off; measurements and demonstrations set it.
	Durable bool

	// Settings are configuration parameters of a started server ("wal_level": "logical"). A server
	// that DATABASE_URL names keeps its own: with Settings that matter, set IgnoreDatabaseURL.
	Settings map[string]string

	// BinDir is the folder with initdb and postgres. Empty means $JOBGEN_PGBIN, else the newest
	// found in the usual places.
	BinDir string

	// Version is the major version of a started server, 0: any. Of installed binaries those of that version are taken, of
	// Docker images postgres:<version>-alpine.
	Version int

	// Port is where a started server listens on 127.0.0.1, with a password (PGPASSWORD, else a random one), so that programs
	// without unix sockets get there. 0: on a socket alone, or in a container on any port.
	Port int

	// Log gets the log of a started server, and progress of an image download. Nil discards both;
	// when a start fails, the end of the server's log is in the error all the same.
	Log io.Writer

	// Label is put into the names of databases, so that a leftover tells where it came from.
	// Empty means the name of the program: worker for worker.test.
	Label string

	// IgnoreDatabaseURL skips the first way: the caller wants a server to itself, to restart it,
	// to fill it or to configure it.
	IgnoreDatabaseURL bool

	// Instead of the environment variables, for tests of this package that run in parallel.
	only        string // JOBGEN_PG
	databaseURL string // DATABASE_URL
}

// Server is a Postgres on which databases may be created. Its methods may be called concurrently,
// and any number of processes may use the same server.
type Server struct {
	// URL connects to the server's maintenance database: postgres on a started server, the one
	// that DATABASE_URL names otherwise.
	URL string

	// Source tells people where the server came from: "DATABASE_URL",
	// "installed binaries (PostgreSQL 15.18)", "Docker (postgres:17-alpine)".
	Source string

	label string
	realm string       // oid of the maintenance database: advisory locks are local to it
	run   uint32       // this process's use of the server, in the name of each database
	guard *pgx.Conn    // holds the lock that says this run is alive; used for nothing else
	stop  func() error // nil for a server that was there before
	next  atomic.Int64

	databases sync.Map // name → nil: created and not yet dropped

	mu        sync.RWMutex         // read-held while a database is being created or dropped
	templates map[string]*pgx.Conn // each holds the lock that says the template is in use
	closed    bool
}

// open keeps every server that was not closed reachable. Without it the garbage collector would
// close the pipe of a Server that nobody refers to any more while its URL is still in use.
var open sync.Map

// ErrUnavailable is what Start's error wraps when none of the three ways exists on this machine.
// A broken DATABASE_URL is another error: it names a server, and no other may stand in for it.
var ErrUnavailable = errors.New("no PostgreSQL server found")

// Start finds or starts a server. The context bounds the start only.
func Start(ctx context.Context, o Options) (*Server, error) {
	only := cmp.Or(o.only, os.Getenv("JOBGEN_PG"))
	if only != "" && !slices.Contains([]string{"url", "binaries", "docker"}, only) {
		return nil, fmt.Errorf("JOBGEN_PG is %q; it may be url, binaries or docker", only)
	}
	var found unavailable

	if o.IgnoreDatabaseURL {
		// Not a way.
	} else if only != "" && only != "url" {
		found.url = "not considered, because JOBGEN_PG=" + only
	} else if named := cmp.Or(o.databaseURL, os.Getenv("DATABASE_URL")); named != "" {
		return use(ctx, o, named)
	} else {
		found.url = "not set"
	}

	for _, way := range []struct {
		name   string
		start  func(context.Context, Options) (*Server, error)
		reason *string
	}{
		{"binaries", startBinaries, &found.binaries},
		{"docker", startDocker, &found.docker},
	} {
		if only != "" && only != way.name {
			*way.reason = "not considered, because JOBGEN_PG=" + only
			continue
		}
		s, err := way.start(ctx, o)
		if err == nil {
			if err = s.attach(ctx, o); err == nil {
				return s, nil
			}
			err = errors.Join(err, s.Close())
		}
		if ctx.Err() != nil {
			if !errors.Is(err, ctx.Err()) { // but what a program said that was killed for it
				err = fmt.Errorf("%w: %w", ctx.Err(), err)
			}
			return nil, fmt.Errorf("start PostgreSQL: %w", err)
		}
		*way.reason = err.Error()
	}
	return nil, &found
}

// use opens the server that DATABASE_URL names.
func use(ctx context.Context, o Options, named string) (*Server, error) {
	s := &Server{URL: named, Source: "DATABASE_URL"}
	if err := s.attach(ctx, o); err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	s.sweepDatabases(ctx)
	return s, nil
}

// attach opens the session that keeps this run's databases from being swept by others.
func (s *Server) attach(ctx context.Context, o Options) error {
	s.label = label(o.Label)
	s.templates = map[string]*pgx.Conn{}
	s.run = randomRun()

	conn, err := connect(ctx, s.URL)
	if err != nil {
		return err
	}
	var version int
	var mayCreate bool
	var role string
	err = conn.QueryRow(ctx, `
		SELECT current_setting('server_version_num')::int / 10000,
		       (SELECT rolsuper OR rolcreatedb FROM pg_roles WHERE rolname = current_user),
		       current_user,
		       (SELECT oid::text FROM pg_database WHERE datname = current_database())`,
	).Scan(&version, &mayCreate, &role, &s.realm)
	if err == nil && version < oldestVersion {
		err = fmt.Errorf("this is PostgreSQL %d, and jobgen needs %d or later", version, oldestVersion)
	}
	if err == nil && !mayCreate {
		err = fmt.Errorf("role %q may not create databases: ALTER ROLE %s CREATEDB",
			role, pgx.Identifier{role}.Sanitize())
	}
	if err == nil {
		_, err = conn.Exec(ctx, keepIdle)
	}
	if err == nil {
		_, err = conn.Exec(ctx, `SELECT pg_advisory_lock($1, $2)`, lockRun, int32(s.run))
	}
	if err != nil {
		_ = conn.Close(context.WithoutCancel(ctx))
		return err
	}
	s.guard = conn
	open.Store(s, nil)
	return nil
}

// portPassword is that of a started server that others on the machine can get at.
func portPassword() string { return cmp.Or(os.Getenv("PGPASSWORD"), rand.Text()) }

// Close stops and removes what Start started. On a server that was there before, it drops the
// databases that were created through s and are still there. The second Close does nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	open.Delete(s)

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var errs []error
	if s.stop == nil {
		for name := range s.databases.Range {
			errs = append(errs, s.dropDatabase(ctx, name.(string)))
		}
		errs = append(errs, s.releaseTemplates(ctx))
	}
	for _, conn := range s.templates {
		_ = conn.Close(ctx)
	}
	if s.guard != nil {
		_ = s.guard.Close(ctx)
	}
	if s.stop != nil {
		errs = append(errs, s.stop())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close PostgreSQL from %s: %w", s.Source, err)
	}
	return nil
}

// settings are the command-line parameters of a server that we start, in an order that lets the
// caller's own win.
func (o Options) settings() []string {
	pairs := []string{
		"max_connections=300",          // many test packages at once, each with pools of its own
		"max_prepared_transactions=20", // they pin the vacuum horizon, which jobctl doctor reports
		"timezone=UTC",
		"log_timezone=UTC",
		"log_checkpoints=off",
	}
	if !o.Durable {
		pairs = append(pairs, "fsync=off", "synchronous_commit=off", "full_page_writes=off",
			"max_wal_size=512MB") // the data may be in memory
	}
	for _, name := range slices.Sorted(maps.Keys(o.Settings)) {
		pairs = append(pairs, name+"="+o.Settings[name])
	}
	var args []string
	for _, pair := range pairs {
		args = append(args, "-c", pair)
	}
	return args
}

// label makes text fit for the middle of a database name.
func label(text string) string {
	if text == "" {
		text = strings.TrimSuffix(filepath.Base(os.Args[0]), ".test")
	}
	text = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '_'
	}, text)
	return text[:min(len(text), 24)]
}

// randomRun draws a number that is unlikely to meet another one in use. It is below 2³¹, because
// it is also the key of an advisory lock.
func randomRun() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint32(b[:]) >> 1
}
