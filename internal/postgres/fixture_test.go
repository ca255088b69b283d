package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/jobtest"
)

// fixture is a database of the test's own, with a worker's store on it.
type fixture struct {
	*testing.T
	pool   *pgxpool.Pool
	store  *postgres.Store
	shared bool // statements are prepared as behind a pooler
}

func open(t *testing.T) *fixture {
	t.Helper()
	pool := jobtest.DB(t)
	f := &fixture{T: t, pool: pool}
	f.store = f.openStore()
	return f
}

func (f *fixture) openStore() *postgres.Store {
	f.Helper()
	s, err := postgres.Open(context.Background(), f.pool)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	return s
}

// ctx bounds each wait of a test, so that a deadlock fails it.
func (f *fixture) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	f.Cleanup(cancel)
	return ctx
}

// db is what statements of the test run on.
type db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (f *fixture) exec(sql string, args ...any) {
	f.Helper()
	must(f.T, f.pool, sql, args...)
}

func must(t testing.TB, d db, sql string, args ...any) {
	t.Helper()
	if _, err := d.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value reads one value.
func value[T any](t testing.TB, d db, sql string, args ...any) (v T) {
	t.Helper()
	if err := d.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
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

// blocked waits until n sessions of this database wait for a lock.
func (f *fixture) blocked(n int) {
	f.Helper()
	f.until(`SELECT count(*) >= $1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`, n)
}

// worker registers a worker of queue q for kinds k and l.
func (f *fixture) worker(lease time.Duration) *engine.Worker {
	f.Helper()
	w := &engine.Worker{
		ID: uuid.New(), Host: "host", PID: 1, Build: "test", Queues: []string{"q"}, Kinds: []engine.Kind{{Name: "k", Version: 1}, {Name: "l", Version: 1}},
	}
	if err := f.store.Register(f.ctx(), *w, lease); err != nil {
		f.Fatal(err)
	}
	return w
}

// left are marks at the left end of every priority of a worker's queues.
func left(w *engine.Worker) (marks []engine.Mark) {
	for _, q := range w.Queues {
		for p := 9; p >= 0; p-- {
			marks = append(marks, engine.Mark{Queue: q, Priority: p, At: time.Unix(0, 0)})
		}
	}
	return marks
}

func (f *fixture) claim(w *engine.Worker, n int) []engine.Claimed {
	f.Helper()
	got, _, err := f.store.Claim(f.ctx(), w, left(w), nil, false, n)
	if err != nil {
		f.Fatal(err)
	}
	return got
}

// enqueue inserts n jobs of kind k in queue q, without a key, and gives their ids.
func (f *fixture) enqueue(n int) []int64 {
	f.Helper()
	elements := make([]engine.Element, n)
	for i := range elements {
		elements[i].Payload = []byte("{}")
	}
	return f.insert(elements...)
}

func (f *fixture) insert(elements ...engine.Element) (ids []int64) {
	f.Helper()
	got, err := postgres.Producer{DB: f.pool}.Enqueue(f.ctx(), insertion, elements)
	if err != nil {
		f.Fatal(err)
	}
	for _, g := range got {
		ids = append(ids, g.ID)
	}
	return ids
}

var insertion = engine.Insert{Queue: "q", Kind: "k", Version: 1, MaxAttempts: 20}

func holds(claimed []engine.Claimed) (h []engine.Hold) {
	for _, c := range claimed {
		h = append(h, engine.Hold{ID: c.ID, Fence: c.Fence})
	}
	return h
}

// session opens a connection of its own with a worker's settings.
func (f *fixture) session() *pgx.Conn {
	f.Helper()
	c := f.connect()
	if _, err := gen.New(c).Session(f.ctx(), gen.SessionParams{LockTimeout: "0"}); err != nil {
		f.Fatal(err)
	}
	return c
}

func (f *fixture) connect() *pgx.Conn {
	f.Helper()
	c, err := pgx.ConnectConfig(f.ctx(), f.pool.Config().ConnConfig)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func (f *fixture) begin(c *pgx.Conn) pgx.Tx {
	f.Helper()
	tx, err := c.Begin(f.ctx())
	if err != nil {
		f.Fatal(err)
	}
	return tx
}

// note notes the claims of all running jobs that were set so by hand.
func (f *fixture) note() {
	f.Helper()
	upto, err := f.store.NoteUnclaimed(f.ctx(), 0, 1000)
	f.no(err)
	if upto != 0 {
		f.Errorf("looked up to %d only", upto)
	}
}
