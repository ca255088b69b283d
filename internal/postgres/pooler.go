package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
)

// A route is how a worker's connections lead to the server. On a direct one, and through a pooler that gives each
// connection a session of its own, settings last and notifications arrive. On a shared one, a pooler (PgBouncer and its
// like, in transaction mode) gives each transaction whatever session is free: nothing of ours may be left in it.
type route struct{ kind atomic.Int32 }

const (
	unknown int32 = iota
	direct
	shared
)

// errShared ends a connection by which the route turned out to be shared: it was made for a direct one.
var errShared = errors.New("the database is behind a pooler in transaction mode")

// prepare is part of BeforeConnect. A session that is not ours keeps no prepared statement for us.
func (r *route) prepare(c *pgx.ConnConfig) {
	if r.kind.Load() == shared && prepares(c) {
		c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
}

// prepares tells whether c's statements rely on what an earlier transaction of the session has left there.
func prepares(c *pgx.ConnConfig) bool {
	return c.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement || c.DefaultQueryExecMode == pgx.QueryExecModeDescribeExec
}

// begin is part of AfterConnect: it gives the connection its settings or learns that it can have none. A pooler does not
// know beforehand by which process of the server it will be served, so the process id in its greeting is its own
// invention, while a server's is true. One round trip tells, and changes nothing if it is not.
func (r *route) begin(ctx context.Context, c *pgx.Conn, lockTimeout string) error {
	if r.kind.Load() == shared {
		if prepares(c.Config()) {
			return errShared
		}
		return nil
	}
	q := gen.New(unprepared(c))
	set, err := q.Session(ctx, gen.SessionParams{LockTimeout: lockTimeout, Backend: cmp.Or(int32(c.PgConn().PID()), -1)}) // some greet without one
	if err == nil && set == 0 {
		var own bool
		switch own, err = sticks(ctx, c); {
		case err == nil && own:
			_, err = q.Session(ctx, gen.SessionParams{LockTimeout: lockTimeout})
		case err == nil:
			r.kind.Store(shared)
			return errShared
		}
	}
	if err == nil {
		r.kind.CompareAndSwap(unknown, direct)
	}
	return err
}

// How sure sticks makes itself, and how long it may take.
const (
	sticksRounds = 16
	sticksTime   = 5 * time.Second
)

// sticks tells whether a pooler lets c keep one session of the server. It watches c and a second connection, used in turn:
// each must stay where it was, and not where the other is. A pooler that shares gives the second what the first has just
// left, as a rule; a busy or rotating one would have to hit the same two sessions every time.
func sticks(ctx context.Context, c *pgx.Conn) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, sticksTime)
	defer cancel()
	other, err := pgx.ConnectConfig(ctx, c.Config())
	if err != nil {
		return false, fmt.Errorf("a second connection, to find out how the pooler shares sessions: %w", err)
	}
	defer other.Close(context.WithoutCancel(ctx))
	var was [2]int32
	for round := range sticksRounds {
		for i, conn := range []*pgx.Conn{c, other} {
			pid, err := gen.New(unprepared(conn)).Backend(ctx)
			switch {
			case err != nil:
				return false, err
			case round > 0 && pid != was[i], pid == was[1-i]:
				return false, nil
			}
			was[i] = pid
		}
	}
	return true, nil
}

// unprepared gives c in a form that leaves no prepared statement behind.
func unprepared(c *pgx.Conn) gen.DBTX {
	if c.Config().DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol {
		return c
	}
	return modeDB{c, pgx.QueryExecModeExec}
}

// session is a pool whose statements run under a worker's settings, whatever the route. On a direct one, it is the pool:
// its connections have them. On a shared one each statement gets a transaction that begins with the settings, all in one
// round trip, and is planned anew.
type session struct {
	pool        *pgxpool.Pool
	route       *route
	lockTimeout string
}

// direct tells whether the route is, and takes a first look if nobody has.
func (s *session) direct(ctx context.Context) bool {
	if s.route.kind.Load() == unknown {
		if c, err := s.pool.Acquire(ctx); err == nil {
			c.Release()
		}
	}
	return s.route.kind.Load() != shared
}

func (s *session) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if s.direct(ctx) {
		return s.pool.Exec(ctx, sql, args...)
	}
	r := s.send(ctx, sql, args)
	r.Close()
	return r.CommandTag(), r.Err()
}

func (s *session) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if s.direct(ctx) {
		return s.pool.Query(ctx, sql, args...)
	}
	r := s.send(ctx, sql, args)
	return r, r.err
}

func (s *session) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if s.direct(ctx) {
		return s.pool.QueryRow(ctx, sql, args...)
	}
	return sharedRow{s.send(ctx, sql, args)}
}

// begin is for several statements in one transaction.
func (s *session) begin(ctx context.Context, fn func(pgx.Tx) error) error {
	direct := s.direct(ctx)
	return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if !direct {
			if _, err := gen.New(tx).Session(ctx, gen.SessionParams{IsLocal: true, LockTimeout: s.lockTimeout}); err != nil {
				return err
			}
		}
		return fn(tx)
	})
}

func (s *session) send(ctx context.Context, sql string, args []any) *sharedRows {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return &sharedRows{err: err}
	}
	var b pgx.Batch
	b.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	_, _ = gen.New(queued{&b}).Session(ctx, gen.SessionParams{IsLocal: true, LockTimeout: s.lockTimeout})
	b.Queue(sql, args...)
	b.Queue("commit")
	r := &sharedRows{ctx: ctx, conn: conn, results: conn.SendBatch(ctx, &b)}
	for range 2 { // BEGIN, and the settings
		if _, r.err = r.results.Exec(); r.err != nil {
			r.Close()
			return r
		}
	}
	if r.Rows, r.err = r.results.Query(); r.err != nil {
		r.Close()
	}
	return r
}

// sharedRows are rows of a statement in a transaction of its own. They end without an error only if it has committed.
type sharedRows struct {
	pgx.Rows
	ctx     context.Context
	conn    *pgxpool.Conn
	results pgx.BatchResults
	tag     pgconn.CommandTag
	err     error
}

func (r *sharedRows) Next() bool {
	if r.Rows != nil && r.conn != nil && r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *sharedRows) Close() {
	if r.conn == nil {
		return
	}
	if r.Rows != nil {
		r.Rows.Close()
		r.tag = r.Rows.CommandTag()
		if r.err == nil {
			r.err = r.Rows.Err()
		}
	}
	if r.err == nil {
		_, r.err = r.results.Exec() // COMMIT
	}
	if err := r.results.Close(); r.err == nil {
		r.err = err
	}
	if tx := r.results.Tx(); tx != nil {
		_ = tx.Rollback(context.WithoutCancel(r.ctx)) // after a commit it does nothing
	}
	r.conn.Release()
	r.conn = nil
}

func (r *sharedRows) Err() error                    { return r.err }
func (r *sharedRows) CommandTag() pgconn.CommandTag { return r.tag }

// sharedRow is the one row of a query.
type sharedRow struct{ rows *sharedRows }

func (r sharedRow) Scan(dest ...any) error {
	defer r.rows.Close()
	if !r.rows.Next() {
		if r.rows.err != nil {
			return r.rows.err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.err
}
