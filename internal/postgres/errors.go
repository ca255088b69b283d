package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// refusals are the classes of errors that one row causes, or two that cannot stand in one statement: data exception,
// cardinality (jobs of one key, one of which has taken it over from the other, that end together), constraint, limit of a
// value, check of a view, and what triggers raise (RAISE EXCEPTION, and functions in other languages).
var refusals = []string{"22", "21", "23", "54", "44", "P0", "38", "39"}

// sqlError is the server's error, as *pgconn.PgError or as another driver's type (lib/pq's *pq.Error).
type sqlError interface {
	error
	SQLState() string
}

// translate puts the engine's meaning on what the driver reports. The driver's error stays reachable by errors.As.
func translate(err error) error {
	if err == nil || errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	var connect *pgconn.ConnectError
	var pg sqlError
	switch {
	case errors.As(err, &pg) && pg.SQLState() == "53300":
		return fmt.Errorf("jobgen: the server has no connection left; raise max_connections, make pools smaller, or put a pooler between: %w", pg)
	case errors.As(err, &connect):
		return err // nothing was sent
	case errors.As(err, &pg) && fatal(pg):
		return fmt.Errorf("%w: %w", engine.ErrUnknown, err)
	case errors.As(err, &pg):
		switch code := pg.SQLState(); {
		case code == "42P01" || code == "3F000" || code == "42703":
			return fmt.Errorf("%w (%w)", engine.ErrNotMigrated, pg)
		case code == lockNotAvailable:
			return fmt.Errorf("%w: %w", engine.ErrLocked, err)
		case strings.HasPrefix(code, "XX"):
			return fmt.Errorf("%w: %w", engine.ErrDamaged, err)
		case code == "26000" || code == "42P05":
			return fmt.Errorf("jobgen: a prepared statement got lost, or got in the way: a pooler in transaction mode shares connections between its clients; connect with default_query_exec_mode=exec in the connection string (or cache_describe, or simple_protocol; lib/pq: binary_parameters=yes), or directly: %w", err)
		case slices.Contains(refusals, code[:min(2, len(code))]):
			return &engine.ValueError{Err: err}
		}
		return err
	}
	if !pgconn.SafeToRetry(err) && !errors.Is(err, sql.ErrTxDone) && !errors.Is(err, sql.ErrConnDone) {
		return fmt.Errorf("%w: %w", engine.ErrUnknown, err)
	}
	return err
}

// relayed tells whether an error is a pooler's word for the end of its connection to the server: what the server has done of
// the statement it does not know.
func relayed(pg sqlError) bool { return strings.HasPrefix(pg.SQLState(), "08") }

// fatal tells whether pg ended the connection, which can happen after the statement has taken effect and before its answer
// is sent: an operator's pg_terminate_backend, a shutdown. (lib/pq makes driver.ErrBadConn of it.)
func fatal(pg sqlError) bool {
	if pg, is := pg.(*pgconn.PgError); is {
		if severity := cmp.Or(pg.SeverityUnlocalized, pg.Severity); severity == "FATAL" || severity == "PANIC" {
			return true
		}
	}
	return relayed(pg)
}

// explain is translate for the first contact with a database: one sentence that says what to do.
func explain(err error) error {
	var pg *pgconn.PgError
	var conn *pgconn.ConnectError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pg) && (pg.Code == "28P01" || pg.Code == "28000"):
		return fmt.Errorf("jobgen: the database refused the login; check user and password in the connection string: %s", pg.Message)
	case errors.As(err, &pg) && pg.Code == "3D000":
		return fmt.Errorf("jobgen: %s; create it or correct the connection string", pg.Message)
	case errors.As(err, &pg) && pg.Code == "42501":
		return fmt.Errorf("jobgen: %s; grant this role usage of schema jobgen and of its tables and sequences", pg.Message)
	case errors.As(err, &pg) && pg.Code == "25006":
		return errReadOnly
	case errors.As(err, &pg) && pg.Code == "53300":
		return translate(err)
	case errors.As(err, &conn) && errors.As(err, &pg) && relayed(pg):
		return fmt.Errorf("jobgen: the pooler refused the connection (%s); look at its limits (max_client_conn, max_db_connections, pool sizes) and at its log", pg.Message)
	case errors.As(err, &conn):
		return &unreachable{conn}
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("jobgen: the database does not answer in time; check that it runs and is not overloaded: %w", err)
	}
	return translate(err)
}

// unreachable is one line where pgx has one for each address that it tried, mostly the same.
type unreachable struct{ err *pgconn.ConnectError }

func (e *unreachable) Unwrap() error { return e.err }

func (e *unreachable) Error() string {
	at := net.JoinHostPort(e.err.Config.Host, strconv.Itoa(int(e.err.Config.Port)))
	if strings.HasPrefix(e.err.Config.Host, "/") {
		at = e.err.Config.Host
	}
	return fmt.Sprintf("jobgen: no database answers at %s (%s); check that it runs and that the connection string is right", at, e.reason())
}

func (e *unreachable) reason() string {
	var network *net.OpError
	var name *net.DNSError
	switch {
	case errors.Is(e.err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.As(e.err, &name):
		return name.Error()
	case errors.As(e.err, &network):
		return network.Err.Error()
	}
	_, reason, _ := strings.Cut(strings.Join(strings.Fields(e.err.Error()), " "), "`: ")
	return reason
}
