package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/worker"
)

// sessions counts the connections that workers have to the test's database.
func sessions(t testing.TB, db jobs.DB) int {
	t.Helper()
	return one[int](t, db, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'jobgen worker'`)
}

func TestShutdownStoresWhatRunsAndGivesBackWhatDoesNot(t *testing.T) {
	t.Parallel()
	pool := database(t)
	quick, spec := kind("t.quick"), answering("t.running")
	const running, waiting = 50, 200
	release := make(chan struct{})
	var now atomic.Int64
	// Short jobs first, so that the worker claims ahead; then it is full.
	enqueueMany(t, pool, quick, numbered(2000))
	enqueueMany(t, pool, spec, numbered(running+waiting))
	w := start(t, pool, worker.Config{Concurrency: running}, func(r *worker.Registry) {
		worker.HandleNone(r, quick, func(context.Context, *jobs.Job[task]) error { return nil })
		worker.Handle(r, spec, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
			now.Add(1)
			select {
			case <-release:
			case <-ctx.Done():
			}
			return "ok", ctx.Err()
		})
	})
	eventually(t, soon, "fifty handlers run", func() bool { return now.Load() == running })
	w.cancel()
	// A claim may still be on its way, so one look is not enough.
	looks := 0
	eventually(t, soon, "what has not started is given back", func() bool {
		if looks++; one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE status = 'running'`) != running {
			looks = 0
		}
		return looks > 100
	})
	close(release)
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_result WHERE result = '"ok"'`); n != running {
		t.Errorf("%d of %d results are on record", n, running)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE status = 'queued' AND attempt = 0 AND fence = 0`); n != waiting {
		t.Errorf("%d of %d jobs are queued without an attempt", n, waiting)
	}
	if now.Load() != running {
		t.Errorf("%d handlers were started", now.Load())
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`); n != 0 {
		t.Errorf("%d attempts are on record", n)
	}
	if n := one[int](t, pool, `SELECT (SELECT count(*) FROM jobgen.workers) + (SELECT count(*) FROM jobgen.wake)`); n != 0 {
		t.Errorf("%d rows of the worker are left", n)
	}
}

func TestShutdownCancelsAfterTheGraceAndGivesBackWithoutAnAttempt(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec, tx := answering("t.obeys"), answering("t.obeystx")
	spec.MaxAttempts, tx.MaxAttempts = 1, 1
	var now atomic.Int64
	causes := make(chan error, 10)
	obey := func(ctx context.Context) error {
		now.Add(1)
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return ctx.Err()
	}
	w := start(t, pool, worker.Config{Grace: 200 * time.Millisecond}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
			if j.Payload.N == 0 {
				_ = obey(ctx)
				return "finished all the same", nil
			}
			return "", obey(ctx)
		})
		worker.HandleTx(r, tx, func(ctx context.Context, db pgx.Tx, j *jobs.Job[task]) (string, error) {
			return "", errors.Join(leave(ctx, db, j.Payload.N, "effect"), obey(ctx))
		})
	})
	refs := enqueueMany(t, pool, spec, numbered(4))
	enqueueMany(t, pool, tx, numbered(3))
	eventually(t, soon, "all run", func() bool { return now.Load() == 7 })
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	for range 7 {
		if cause := receive(t, "a cause", causes); !strings.Contains(cause.Error(), "shutting down") {
			t.Errorf("a handler's context ended with %v", cause)
		}
	}
	if got, err := await(t, pool, refs[0]); got != "finished all the same" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE status = 'queued' AND attempt = 0`); n != 6 {
		t.Errorf("%d of 6 jobs are queued without an attempt", n)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 0 {
		t.Errorf("%d effects of cancelled transactions stand", n)
	}
}

func TestShutdownLeavesBehindAHandlerThatIgnoresItsContext(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.ignores")
	started, release, returned := make(chan struct{}), make(chan struct{}), make(chan struct{})
	w := start(t, pool, worker.Config{Grace: 100 * time.Millisecond}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(context.Context, *jobs.Job[task]) (string, error) {
			defer close(returned)
			close(started)
			<-release
			return "too late", nil
		})
	})
	ref := enqueue(t, pool, spec, task{})
	receive(t, "it runs", started)
	begin := time.Now()
	err := w.stop()
	if err == nil || !strings.Contains(err.Error(), "1 handlers ignored their cancelled context") {
		t.Errorf("Run: %v", err)
	}
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("with a grace of 100 ms Run took %s to return", took)
	}
	if r := look(t, pool, ref.ID); r.Status != "queued" || r.Attempt != 0 {
		t.Errorf("the job is %s", r)
	}
	// Its late return is harmless: no panic, and nothing changes.
	close(release)
	receive(t, "the handler returns", returned)
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(context.Context, *jobs.Job[task]) (string, error) { return "in time", nil })
	})
	if got, err := await(t, pool, ref); got != "in time" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestRunIsForOnce(t *testing.T) {
	t.Parallel()
	pool := database(t)
	w := start(t, pool, worker.Config{}, stampers(pool, kind("t.k")))
	eventually(t, soon, "it runs", func() bool { return w.log.has("worker started") })
	if err := w.w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "make another Worker") {
		t.Errorf("the second Run, while the first one runs: %v", err)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if err := w.w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "make another Worker") {
		t.Errorf("the second Run, afterwards: %v", err)
	}
}

func TestRunWithAContextThatHasEndedIsACleanEnd(t *testing.T) {
	t.Parallel()
	pool := database(t)
	var reg worker.Registry
	stampers(pool, kind("t.k"))(&reg)
	w, err := worker.New(pool, &reg, worker.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.workers`); n != 0 {
		t.Errorf("%d workers are on record", n)
	}
}

func TestShutdownWithoutADatabaseIsBounded(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.gone")
	started, release := make(chan struct{}), make(chan struct{})
	w := start(t, pool, worker.Config{Lease: 2 * time.Second}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(context.Context, *jobs.Job[task]) error {
			close(started)
			<-release
			return nil
		})
	})
	ref := enqueue(t, pool, spec, task{N: 1})
	receive(t, "it runs", started)
	restore := refuseAll(t, pool)
	close(release)
	begin := time.Now()
	w.cancel()
	err := w.wait(2 * time.Minute)
	if err == nil || !strings.Contains(err.Error(), "1 jobs could not be given back") {
		t.Errorf("Run: %v", err)
	}
	// The last statements get ten seconds, and leaving as many.
	if took := time.Since(begin); took > 45*time.Second {
		t.Errorf("Run took %s to return", took)
	}
	restore()
	start(t, pool, worker.Config{Lease: time.Second, Reclaim: 100 * time.Millisecond}, stampers(pool, spec))
	eventually(t, soon, "another worker runs the job", func() bool { return ran(t, pool, 1) })
	drained(t, pool, soon)
	_ = ref
}

func init() {
	roles["signalled"] = func(ctx context.Context, pool *pgxpool.Pool, args []byte) error {
		var cfg worker.Config
		if err := json.Unmarshal(args, &cfg); err != nil {
			return err
		}
		var r worker.Registry
		worker.HandleNone(&r, kind("t.signalled"), func(ctx context.Context, j *jobs.Job[task]) error {
			if err := leave(ctx, pool, j.Payload.N, "started"); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		})
		w, err := worker.New(pool, &r, cfg)
		if err != nil {
			return err
		}
		return w.RunUntilSignal(ctx)
	}
}

func TestSecondSignalEndsTheGrace(t *testing.T) {
	t.Parallel()
	pool := database(t)
	c := spawn(t, pool, "signalled", map[string]any{"Grace": time.Hour})
	refs := enqueueMany(t, pool, kind("t.signalled"), numbered(3), jobs.MaxAttempts(1))
	eventually(t, soon, "the jobs run", func() bool { return one[int](t, pool, `SELECT count(*) FROM effect`) == 3 })
	late := enqueue(t, pool, kind("t.signalled"), task{N: 3})
	eventually(t, soon, "the next one runs as well", func() bool { return ran(t, pool, 3) })
	c.signal(syscall.SIGTERM)
	// It has understood when it claims no more.
	after := enqueue(t, pool, kind("t.signalled"), task{N: 4}, jobs.In(500*time.Millisecond))
	always(t, 2*time.Second, "it waits for its handlers and claims nothing", func() bool {
		select {
		case <-c.done:
			return false
		default:
			return !ran(t, pool, 4)
		}
	})
	c.signal(syscall.SIGTERM)
	if code := c.ended(soon); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	for _, id := range []int64{refs[0].ID, refs[1].ID, refs[2].ID, late.ID, after.ID} {
		if r := look(t, pool, id); r.Status != "queued" || r.Attempt != 0 || r.Crashes != 0 {
			t.Errorf("job %d is %s", id, r)
		}
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.workers`); n != 0 {
		t.Errorf("%d workers are on record", n)
	}
}

// Fifty workers come and go, under load: no goroutine, connection or transaction stays, and nothing is lost. Not
// parallel, because it counts goroutines.
func TestStartAndStopLeaveNothingBehind(t *testing.T) {
	pool := jobtest.DB(t)
	execute(t, pool, `CREATE TABLE effect (id bigserial PRIMARY KEY, n bigint, what text, at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	spec, tx := kind("t.plain"), answering("t.tx")
	const cycles, each = 50, 40
	before := goleak.IgnoreCurrent()
	for range cycles {
		enqueueMany(t, pool, spec, numbered(each))
		enqueueMany(t, pool, tx, numbered(each/4))
		var reg worker.Registry
		first := make(chan struct{})
		var begin sync.Once
		worker.HandleNone(&reg, spec, func(context.Context, *jobs.Job[task]) error { begin.Do(func() { close(first) }); return nil })
		worker.HandleTx(&reg, tx, func(ctx context.Context, db pgx.Tx, j *jobs.Job[task]) (string, error) {
			return "ok", leave(ctx, db, j.Payload.N, "tx")
		})
		book := &logbook{}
		w, err := worker.New(pool, &reg, worker.Config{Concurrency: 8, Logger: slog.New(slog.NewTextHandler(book, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		receive(t, "a job has run", first) // and is stopped in the middle of the others
		cancel()
		if err := receive(t, "Run returns", done); err != nil {
			t.Fatalf("Run: %v\n%s", err, book)
		}
		if strings.Contains(book.String(), "level=ERROR") || strings.Contains(book.String(), "level=WARN") {
			t.Errorf("it logged:\n%s", book)
		}
	}
	eventually(t, soon, "the workers' connections are closed", func() bool { return sessions(t, pool) == 0 })
	if n := one[int](t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`); n != 0 {
		t.Errorf("%d sessions are idle in a transaction", n)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.workers`); n != 0 {
		t.Errorf("%d workers are on record", n)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE status <> 'queued' OR attempt <> 0`); n != 0 {
		t.Errorf("%d jobs were not given back as they were", n)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`); n != 0 {
		t.Errorf("%d attempts are on record", n)
	}
	pool.Reset()
	if err := goleak.Find(before, goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgxpool.(*Pool).backgroundHealthCheck")); err != nil {
		t.Error(err)
	}
}

// The application's pool is never left listening, nor with another state of a worker's own.
func TestApplicationsPoolIsLeftAsItWas(t *testing.T) {
	t.Parallel()
	pool := database(t)
	small := another(t, pool, func(c *pgxpool.Config) { c.MaxConns = 2 })
	for range 3 {
		w := start(t, small, worker.Config{}, stampers(small, kind("t.k")))
		enqueue(t, small, kind("t.k"), task{N: 1})
		eventually(t, soon, "it runs", func() bool { return ran(t, small, 1) })
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		c, err := small.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Release()
		if n := one[int](t, c, `SELECT count(*) FROM pg_listening_channels()`); n != 0 {
			t.Errorf("a pooled connection listens to %d channels", n)
		}
		if s := one[string](t, c, `SELECT current_setting('enable_seqscan')`); s != "on" {
			t.Errorf("a pooled connection has enable_seqscan %s", s)
		}
	}
}
