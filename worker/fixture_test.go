package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/worker"
)

// soon is the deadline for what takes milliseconds on an idle machine. It only decides how long a broken promise takes to
// fail the test.
const soon = 30 * time.Second

// task is the payload of all test kinds.
type task struct {
	N  int
	Do string `json:",omitempty"`
}

// kind is a kind without a result, which tries again at once.
func kind(name string) *jobs.Spec[task, jobs.None] {
	return &jobs.Spec[task, jobs.None]{Kind: name, Queue: "q", Backoff: jobs.Backoff{Base: time.Millisecond}}
}

// answering is kind with a result.
func answering(name string) *jobs.Spec[task, string] {
	return &jobs.Spec[task, string]{Kind: name, Queue: "q", Backoff: jobs.Backoff{Base: time.Millisecond}}
}

// keyed is answering with a key, the task's N.
func keyed(name string) *jobs.Spec[task, string] {
	s := answering(name)
	s.Key = func(k *jobs.KeyBuilder, p task) { k.Int(int64(p.N)) }
	return s
}

// numbered is n tasks, numbered from 0.
func numbered(n int) []task {
	ts := make([]task, n)
	for i := range ts {
		ts[i].N = i
	}
	return ts
}

// database is a database with the table effect, in which handlers leave what they did.
func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := jobtest.DB(t)
	execute(t, pool, `CREATE TABLE effect (id bigserial PRIMARY KEY, n bigint, what text, at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	t.Cleanup(func() { // by now all workers have stopped, or are killed
		if !one[bool](t, pool, `SELECT to_regclass('jobgen.claims') IS NOT NULL`) {
			return
		}
		if n := one[int](t, pool, `SELECT count(*) FROM jobgen.jobs j WHERE j.worker_id IS NOT NULL AND NOT EXISTS (
			SELECT FROM jobgen.claims c WHERE c.worker_id = j.worker_id AND c.fence = j.fence AND j.id = ANY(c.ids))`); n > 0 {
			t.Errorf("%d jobs run that no claim names: nobody would take them back", n)
		}
	})
	return pool
}

// leave notes an effect.
func leave(ctx context.Context, db jobs.DB, n int, what string) error {
	_, err := db.Exec(context.WithoutCancel(ctx), `INSERT INTO effect (n, what) VALUES ($1, $2)`, n, what)
	return err
}

// running is a worker that runs in this process.
type running struct {
	t      testing.TB
	w      *worker.Worker
	log    *logbook
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	waited bool
}

// start runs a worker until the test ends, or stop. Run's error fails the test unless it was asked for by stop.
func start(t testing.TB, pool *pgxpool.Pool, cfg worker.Config, register ...func(*worker.Registry)) *running {
	t.Helper()
	return startChanged(t, pool, cfg, func(*worker.Worker) {}, register...)
}

// startChanged is start of a worker that change has changed before.
func startChanged(t testing.TB, pool *pgxpool.Pool, cfg worker.Config, change func(*worker.Worker), register ...func(*worker.Registry)) *running {
	t.Helper()
	r := &running{t: t, log: &logbook{}, done: make(chan struct{})}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	}
	var reg worker.Registry
	for _, f := range register {
		f(&reg)
	}
	w, err := worker.New(pool, &reg, cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.w = w
	change(w)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r.cancel = cancel
	go func() {
		defer close(r.done)
		r.err = w.Run(ctx)
	}()
	t.Cleanup(func() {
		if !r.waited {
			if err := r.stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
		}
		if t.Failed() {
			t.Logf("a worker logged:\n%s", r.log)
		}
	})
	return r
}

// stop shuts the worker down and gives Run's error.
func (r *running) stop() error {
	r.t.Helper()
	r.cancel()
	return r.wait(2 * soon)
}

// wait waits for Run to return.
func (r *running) wait(within time.Duration) error {
	r.t.Helper()
	r.waited = true
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-r.done:
		return r.err
	case <-timer.C:
		r.t.Fatalf("Run has not returned within %s", within)
		return nil
	}
}

// logbook keeps a worker's log.
type logbook struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logbook) has(text string) bool { return strings.Contains(l.String(), text) }

// enqueue enqueues one job.
func enqueue[R any](t testing.TB, db jobs.DB, s *jobs.Spec[task, R], p task, opts ...jobs.Option) jobs.Ref[R] {
	t.Helper()
	ref, err := jobs.Enqueue(context.WithoutCancel(t.Context()), db, s, p, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// enqueueMany enqueues jobs in one statement.
func enqueueMany[R any](t testing.TB, db jobs.DB, s *jobs.Spec[task, R], ps []task, opts ...jobs.Option) []jobs.Ref[R] {
	t.Helper()
	refs, err := jobs.EnqueueMany(context.WithoutCancel(t.Context()), db, s, ps, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return refs
}

// await waits for a job's result.
func await[R any](t testing.TB, db jobs.DB, ref jobs.Ref[R]) (R, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), soon)
	defer cancel()
	r, err := ref.Await(ctx, db)
	if ctx.Err() != nil {
		t.Fatalf("job %d has not ended within %s", ref.ID, soon)
	}
	return r, err
}

// execute runs a statement.
func execute(t testing.TB, db jobs.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(context.WithoutCancel(t.Context()), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// setRunning sets queued jobs running by hand, as a claim by the worker with the fence would.
func setRunning(t testing.TB, db jobs.DB, worker any, fence int64) {
	t.Helper()
	execute(t, db, `UPDATE jobgen.jobs SET status = 'running', attempt = 1, worker_id = $1::text::uuid, fence = $2, claimed_at = now() WHERE status = 'queued'`, fmt.Sprint(worker), fence)
	noteClaims(t, db)
}

// noteClaims notes the claims of jobs that were set running by hand.
func noteClaims(t testing.TB, db jobs.DB) {
	t.Helper()
	if _, err := gen.New(db).NoteUnclaimed(context.WithoutCancel(t.Context()), gen.NoteUnclaimedParams{N: 10_000}); err != nil {
		t.Fatal(err)
	}
}

// one reads one value.
func one[T any](t testing.TB, db jobs.DB, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := db.QueryRow(context.WithoutCancel(t.Context()), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// all reads one column.
func all[T any](t testing.TB, db jobs.DB, sql string, args ...any) []T {
	t.Helper()
	rows, err := db.Query(context.WithoutCancel(t.Context()), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	vs, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return vs
}

// eventually polls until cond holds, and fails the test if it does not in time.
func eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

// always polls for as long as d, and fails the test as soon as cond does not hold.
func always(t testing.TB, d time.Duration, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(d)
	defer end.Stop()
	for {
		if !cond() {
			t.Fatalf("no longer: %s", what)
		}
		select {
		case <-tick.C:
		case <-end.C:
			return
		}
	}
}

// drained waits until no job is queued or running.
func drained(t testing.TB, db jobs.DB, within time.Duration) {
	t.Helper()
	eventually(t, within, "no job is queued or running", func() bool {
		return one[int](t, db, `SELECT count(*) FROM jobgen.jobs WHERE status <> 'dead'`) == 0
	})
}

// receive takes from c, in time.
func receive[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	timer := time.NewTimer(soon)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		t.Fatalf("not within %s: %s", soon, what)
		panic("unreachable")
	}
}

// row is a job's row.
type row struct {
	Status                string
	Attempt, Crashes      int
	Fence                 int64
	LastError             string
	RunAt, Created, DBNow time.Time
}

func (r row) String() string {
	return fmt.Sprintf("%s, attempt %d, crashes %d, fence %d, error %q", r.Status, r.Attempt, r.Crashes, r.Fence, r.LastError)
}

// look reads a job's row; its status is "" when it is gone.
func look(t testing.TB, db jobs.DB, id int64) row {
	t.Helper()
	var r row
	err := db.QueryRow(context.WithoutCancel(t.Context()),
		`SELECT status, attempt, crashes, fence, coalesce(last_error, ''), run_at, created_at, clock_timestamp() FROM jobgen.jobs WHERE id = $1`,
		id).Scan(&r.Status, &r.Attempt, &r.Crashes, &r.Fence, &r.LastError, &r.RunAt, &r.Created, &r.DBNow)
	if err == pgx.ErrNoRows {
		return row{}
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// becomes waits until a job's row satisfies cond.
func becomes(t testing.TB, db jobs.DB, id int64, what string, cond func(row) bool) row {
	t.Helper()
	var r row
	defer func() {
		if t.Failed() {
			t.Logf("job %d: %s", id, r)
		}
	}()
	eventually(t, soon, fmt.Sprintf("job %d %s", id, what), func() bool {
		r = look(t, db, id)
		return cond(r)
	})
	return r
}
