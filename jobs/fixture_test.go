package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
)

type order struct {
	ID   string `json:"id"`
	Note string `json:"note,omitempty"`
}

type receipt struct {
	Total int `json:"total"`
}

var (
	plain    = &jobs.Spec[order, jobs.None]{Kind: "test.plain", Queue: "q"}
	keyed    = &jobs.Spec[order, receipt]{Kind: "test.keyed", Queue: "q", Key: byID}
	rekeyed  = &jobs.Spec[order, receipt]{Kind: "test.rekeyed", Queue: "q", Key: byID}
	returned = &jobs.Spec[order, receipt]{Kind: "test.returned", Queue: "q"}
)

func byID(k *jobs.KeyBuilder, o order) { k.String(o.ID) }

// fixture is a database of the test's own with a worker that claims and completes as the test says.
type fixture struct {
	*testing.T
	pool   *pgxpool.Pool
	store  *postgres.Store
	worker engine.Worker
}

func open(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, pool: jobtest.DB(t)}
	var err error
	if f.store, err = postgres.Open(context.Background(), f.pool); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.store.Close)
	f.worker = engine.Worker{ID: uuid.New(), Host: "h", PID: 1, Build: "b", Queues: []string{"q"}}
	for _, k := range []string{plain.Kind, keyed.Kind, rekeyed.Kind, returned.Kind} {
		f.worker.Kinds = append(f.worker.Kinds, engine.Kind{Name: k, Version: 1})
	}
	f.no(f.store.Register(f.ctx(), f.worker, time.Hour))
	return f
}

// ctx bounds each wait of a test, so that a deadlock fails it.
func (f *fixture) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	f.Cleanup(cancel)
	return ctx
}

func (f *fixture) no(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) exec(sql string, args ...any) {
	f.Helper()
	if _, err := f.pool.Exec(f.ctx(), sql, args...); err != nil {
		f.Fatalf("%s: %v", sql, err)
	}
}

func value[T any](t testing.TB, db jobs.DB, sql string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func (f *fixture) expect(want any, sql string, args ...any) {
	f.Helper()
	if got := value[any](f.T, f.pool, sql, args...); fmt.Sprint(got) != fmt.Sprint(want) {
		f.Errorf("%s: got %v, want %v", sql, got, want)
	}
}

// until polls the database until sql is true.
func (f *fixture) until(sql string, args ...any) {
	f.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !value[bool](f.T, f.pool, sql, args...) {
		if time.Now().After(deadline) {
			f.Fatalf("never became true: %s %v", sql, args)
		}
		<-tick.C
	}
}

// blocked tells whether the session with that process id waits for a lock.
func (f *fixture) blocked(pid uint32) bool {
	f.Helper()
	return value[bool](f.T, f.pool, `SELECT coalesce((SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1), false)`, pid)
}

func (f *fixture) connect() *pgx.Conn {
	f.Helper()
	c, err := pgx.ConnectConfig(f.ctx(), f.pool.Config().ConnConfig)
	f.no(err)
	f.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func (f *fixture) begin(options pgx.TxOptions) pgx.Tx {
	f.Helper()
	tx, err := f.connect().BeginTx(f.ctx(), options)
	f.no(err)
	return tx
}

func (f *fixture) claim(n int) []engine.Claimed {
	f.Helper()
	var marks []engine.Mark
	for p := 9; p >= 0; p-- {
		marks = append(marks, engine.Mark{Queue: "q", Priority: p, At: time.Unix(0, 0)})
	}
	got, _, err := f.store.Claim(f.ctx(), &f.worker, marks, nil, false, n)
	f.no(err)
	return got
}

func hold(c engine.Claimed) engine.Hold { return engine.Hold{ID: c.ID, Fence: c.Fence} }

// finish completes a claimed job with a result that is kept as long as said.
func (f *fixture) finish(c engine.Claimed, result string, keep time.Duration) {
	f.Helper()
	got, err := f.store.Complete(f.ctx(), f.worker.ID, []engine.Success{{Hold: hold(c), Record: true, Result: []byte(result), Keep: keep}})
	f.no(err)
	if len(got) != 1 {
		f.Fatalf("completed %v", got)
	}
}

// die ends a claimed job dead.
func (f *fixture) die(c engine.Claimed, text string) {
	f.Helper()
	got, err := f.store.Fail(f.ctx(), f.worker.ID, []engine.Failure{{Hold: hold(c), Permanent: true, Error: text}})
	f.no(err)
	if len(got) != 1 {
		f.Fatalf("failed %v", got)
	}
}

func (f *fixture) one(got []engine.Claimed) engine.Claimed {
	f.Helper()
	if len(got) != 1 {
		f.Fatalf("claimed %+v, want one job", got)
	}
	return got[0]
}

// serialization tells whether the database refused a transaction because of another.
func serialization(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "40001"
}
