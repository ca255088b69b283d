package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

func TestG2EveryCommittedJobEndsSucceededOrDead(t *testing.T) {
	t.Parallel()
	pool := database(t)
	const total = 3000
	spec := kind("t.mixed")
	spec.MaxAttempts = 2
	register := func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(ctx context.Context, j *jobs.Job[task]) error {
			n := j.Payload.N
			switch n % 10 {
			case 0:
				return jobs.Permanent(errors.New("hopeless"))
			case 1:
				panic("always")
			case 2:
				if j.Attempt == 1 {
					return errors.New("not yet")
				}
			case 3:
				if j.Attempt == 1 {
					runtime.Goexit()
				}
			case 4:
				return fmt.Errorf("never: %d", n)
			}
			return leave(ctx, pool, n, "done")
		})
	}
	first := start(t, pool, worker.Config{Concurrency: 20}, register)
	start(t, pool, worker.Config{Concurrency: 7}, register)
	start(t, pool, worker.Config{Concurrency: 1}, register)
	for i := 0; i < total; i += 500 {
		enqueueMany(t, pool, spec, numbered(total)[i:i+500])
		if i == total/2 { // a worker comes and goes in the middle of it
			if err := first.stop(); err != nil {
				t.Error(err)
			}
			start(t, pool, worker.Config{Concurrency: 20}, register)
		}
	}
	drained(t, pool, 2*soon)
	// 0: dead at once, 1 and 4: dead after two attempts; all others have left their effect, once.
	if dead := one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE status = 'dead'`); dead != total*3/10 {
		t.Errorf("%d jobs are dead, want %d", dead, total*3/10)
	}
	if bad := all[int](t, pool, `SELECT n::int FROM effect GROUP BY n HAVING count(*) <> 1 OR n % 10 IN (0, 1, 4)`); len(bad) > 0 {
		t.Errorf("jobs with other than one effect: %v", bad)
	}
	if done := one[int](t, pool, `SELECT count(*) FROM effect`); done != total*7/10 {
		t.Errorf("%d jobs have succeeded, want %d", done, total*7/10)
	}
	if attempts := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt WHERE outcome = 'failed'`); attempts != total/10*(1+2+1+1+2) {
		t.Errorf("%d failed attempts are on record, want %d", attempts, total/10*7)
	}
}

func TestG3ThirtyTwoWorkersRunEachJobOnce(t *testing.T) {
	t.Parallel()
	pool := database(t)
	const workers, concurrency, total = 32, 3, 4000
	spec := kind("t.once")
	var runs [total]atomic.Int32
	var left atomic.Int64
	left.Store(total)
	for range workers {
		var now atomic.Int32
		start(t, pool, worker.Config{Concurrency: concurrency}, func(r *worker.Registry) {
			worker.HandleNone(r, spec, func(_ context.Context, j *jobs.Job[task]) error {
				if n := now.Add(1); n > concurrency {
					t.Errorf("%d handlers at once in a worker of %d", n, concurrency)
				}
				runtime.Gosched()
				runs[j.Payload.N].Add(1)
				left.Add(-1)
				now.Add(-1)
				return nil
			})
		})
	}
	for i := 0; i < total; i += 400 {
		enqueueMany(t, pool, spec, numbered(total)[i:i+400])
	}
	eventually(t, 2*soon, "all jobs have run", func() bool { return left.Load() <= 0 })
	drained(t, pool, soon)
	for n := range runs {
		if got := runs[n].Load(); got != 1 {
			t.Errorf("job %d ran %d times", n, got)
		}
	}
}

func TestG3HoldsAreLimited(t *testing.T) {
	t.Parallel()
	pool := database(t)
	watched, tap := tapped(t, pool)
	spec := kind("t.short")
	const total = 4000
	// Outcomes are not stored while the gate is shut, so holds gather.
	gate := make(chan struct{})
	tap.before("Complete", func(ctx context.Context) context.Context { <-gate; return ctx })
	var ran atomic.Int64
	enqueueMany(t, pool, spec, numbered(total))
	start(t, watched, worker.Config{Concurrency: 10}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(context.Context, *jobs.Job[task]) error { ran.Add(1); return nil })
	})
	held := func() int { return one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE status = 'running'`) }
	eventually(t, soon, "something is held", func() bool { return held() >= 10 })
	always(t, time.Second, "at most 2,000 jobs are held", func() bool { return held() <= 2000 })
	close(gate)
	drained(t, pool, soon)
	if ran.Load() != total {
		t.Errorf("%d of %d ran", ran.Load(), total)
	}
}

func TestG3LongJobsAreNotHoarded(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.long")
	release := make(chan struct{})
	var inFirst, inSecond atomic.Int64
	wait := func(n *atomic.Int64) func(*worker.Registry) {
		return func(r *worker.Registry) {
			worker.HandleNone(r, spec, func(ctx context.Context, j *jobs.Job[task]) error {
				n.Add(1)
				select {
				case <-release:
				case <-ctx.Done():
				}
				return nil
			})
		}
	}
	enqueueMany(t, pool, spec, numbered(9))
	start(t, pool, worker.Config{Concurrency: 10}, wait(&inFirst))
	eventually(t, soon, "nine of ten slots are busy", func() bool { return inFirst.Load() == 9 })
	enqueueMany(t, pool, spec, numbered(6))
	eventually(t, soon, "the tenth slot is busy", func() bool { return inFirst.Load() == 10 })
	start(t, pool, worker.Config{Concurrency: 10}, wait(&inSecond))
	eventually(t, soon, "another worker runs the rest", func() bool { return inSecond.Load() == 5 })
	close(release)
	drained(t, pool, soon)
}

// Short jobs let a worker claim ahead; when long ones come instead, it gives back what it cannot start.
func TestG3LongJobsBehindShortOnesAreNotHoarded(t *testing.T) {
	t.Parallel()
	pool := database(t)
	short, long := kind("t.short"), kind("t.long")
	release := make(chan struct{})
	var running atomic.Int64
	var begun atomic.Bool
	register := func(r *worker.Registry) {
		worker.HandleNone(r, short, func(context.Context, *jobs.Job[task]) error { return nil })
		worker.HandleNone(r, long, func(ctx context.Context, j *jobs.Job[task]) error {
			begun.Store(true)
			running.Add(1)
			select {
			case <-release:
			case <-ctx.Done():
			}
			return nil
		})
	}
	enqueueMany(t, pool, short, numbered(3000))
	enqueueMany(t, pool, long, numbered(20))
	start(t, pool, worker.Config{Concurrency: 10}, register)
	eventually(t, soon, "the first worker has come to the long jobs", begun.Load)
	start(t, pool, worker.Config{Concurrency: 10}, register)
	eventually(t, soon, "two workers of ten slots run all twenty", func() bool { return running.Load() == 20 })
	close(release)
	drained(t, pool, soon)
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`); n != 0 || running.Load() != 20 {
		t.Errorf("%d attempts are on record, and long jobs were started %d times", n, running.Load())
	}
}

// A full batch or a free slot triggers the next claim at once: polling only sets the pace when there is nothing to do.
func TestG3BusyQueueIsNotPacedByPolling(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.busy")
	enqueueMany(t, pool, spec, numbered(1000))
	begin := time.Now()
	start(t, pool, worker.Config{Concurrency: 2, Queues: []string{"idle", "q"}}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(context.Context, *jobs.Job[task]) error { return nil })
	})
	drained(t, pool, soon)
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("1,000 empty jobs on two slots took %s", took)
	}
}

func TestJobsOfOneTransactionRunInOrderAndBiggerPrioritiesFirst(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.ordered")
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	for i := range 50 {
		enqueue(t, tx, spec, task{N: i})
	}
	enqueue(t, tx, spec, task{N: -1}, jobs.Priority(5))
	enqueue(t, tx, spec, task{N: -2}, jobs.Priority(9))
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var order []int
	start(t, pool, worker.Config{Concurrency: 1}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(_ context.Context, j *jobs.Job[task]) error {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, j.Payload.N)
			return nil
		})
	})
	drained(t, pool, soon)
	mu.Lock()
	defer mu.Unlock()
	for i, n := range order {
		if want := max(i-2, -2+i); i < 2 && n != i-2 || i >= 2 && n != want {
			t.Fatalf("order: %v", order)
		}
	}
}

// Retried work is ordered by its new time, so what fails again and again does not starve what is fresh.
func TestRetriedJobsDoNotStarveNewOnes(t *testing.T) {
	t.Parallel()
	pool := database(t)
	bad, good := kind("t.bad"), kind("t.good")
	bad.MaxAttempts = 32767
	enqueueMany(t, pool, bad, numbered(10), jobs.In(0))
	enqueueMany(t, pool, good, numbered(100))
	start(t, pool, worker.Config{Concurrency: 1}, func(r *worker.Registry) {
		worker.HandleNone(r, bad, func(context.Context, *jobs.Job[task]) error { return jobs.RetryIn(0, errors.New("again")) })
		worker.HandleNone(r, good, func(context.Context, *jobs.Job[task]) error { return nil })
	})
	eventually(t, soon, "the good jobs are done", func() bool {
		return one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE kind = 't.good'`) == 0
	})
}

func TestG13UnknownKindsAndNewerVersionsStayQueuedWithoutAnAttempt(t *testing.T) {
	t.Parallel()
	pool := database(t)
	known, newer, unknown := kind("t.known"), kind("t.known"), kind("t.unknown")
	known.Version, newer.Version = 2, 3
	older := kind("t.known")
	upgrade := func(old json.RawMessage) (p task, err error) { return p, json.Unmarshal(old, &p) }
	known.Upgrade = []func(json.RawMessage) (task, error){upgrade}
	newer.Upgrade = []func(json.RawMessage) (task, error){upgrade, upgrade}
	a := enqueue(t, pool, unknown, task{})
	b := enqueue(t, pool, newer, task{N: 1})
	enqueueMany(t, pool, known, numbered(200))
	enqueueMany(t, pool, older, numbered(200))
	c := enqueue(t, pool, unknown, task{}, jobs.Priority(9))
	w := start(t, pool, worker.Config{Concurrency: 5}, func(r *worker.Registry) {
		worker.HandleNone(r, known, func(context.Context, *jobs.Job[task]) error { return nil })
	})
	eventually(t, soon, "all that is known is done", func() bool { return one[int](t, pool, `SELECT count(*) FROM jobgen.jobs`) == 3 })
	for _, id := range []int64{a.ID, b.ID, c.ID} {
		if r := look(t, pool, id); r.Status != "queued" || r.Attempt != 0 || r.Fence != 0 {
			t.Errorf("job %d is %s", id, r)
		}
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	// A newer worker takes them, and the older form with them.
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		for _, s := range []*jobs.Spec[task, jobs.None]{newer, unknown} {
			worker.HandleNone(r, s, func(context.Context, *jobs.Job[task]) error { return nil })
		}
	})
	drained(t, pool, soon)
}

// stampers registers handlers that note when they started, by the database's clock.
func stampers(pool jobs.DB, specs ...*jobs.Spec[task, jobs.None]) func(*worker.Registry) {
	return func(r *worker.Registry) {
		for _, s := range specs {
			worker.HandleNone(r, s, func(ctx context.Context, j *jobs.Job[task]) error {
				return leave(ctx, pool, j.Payload.N, "ran")
			})
		}
	}
}

func ran(t testing.TB, db jobs.DB, n int) bool {
	return one[bool](t, db, `SELECT EXISTS (SELECT FROM effect WHERE n = $1)`, n)
}

func TestIdleWorkerIsWokenByAnEnqueue(t *testing.T) {
	t.Parallel()
	pool := database(t)
	watched, tap := tapped(t, pool)
	spec := kind("t.wake")
	start(t, watched, worker.Config{}, stampers(pool, spec))
	tap.stretched(t)
	begin := time.Now()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	enqueue(t, tx, spec, task{N: 1})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "the job ran", func() bool { return ran(t, pool, 1) })
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("an idle worker started the job after %s", took)
	}
}

func TestLostWakeUpCostsAtMostThePoll(t *testing.T) {
	t.Parallel()
	pool := database(t)
	watched, tap := tapped(t, pool)
	spec := kind("t.lost")
	start(t, watched, worker.Config{}, stampers(pool, spec))
	tap.stretched(t)
	execute(t, pool, `DELETE FROM jobgen.wake`)
	begin := time.Now()
	enqueue(t, pool, spec, task{N: 1})
	eventually(t, soon, "the job ran", func() bool { return ran(t, pool, 1) })
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("the worker found the job after %s; it polls every 5 s", took)
	}
}

// listeners are the backends on which workers listen.
func listeners(t testing.TB, db jobs.DB) []int32 {
	t.Helper()
	return all[int32](t, db, `SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'`)
}

func TestDeadListenerIsReplacedAndWhatItMissedIsFound(t *testing.T) {
	t.Parallel()
	pool := database(t)
	watched, tap := tapped(t, pool)
	spec := kind("t.deaf")
	start(t, watched, worker.Config{}, stampers(pool, spec))
	tap.stretched(t)
	before := listeners(t, pool)
	if len(before) != 1 {
		t.Fatalf("listening backends: %v", before)
	}
	// A job that no mark leads to and that wakes nobody.
	execute(t, pool, `INSERT INTO jobgen.jobs (queue, kind, payload, run_at) VALUES ('q', 't.deaf', '{"N": 1}', now() - interval '1 hour')`)
	begin := time.Now()
	execute(t, pool, `SELECT pg_terminate_backend($1)`, before[0])
	eventually(t, soon, "the job was found after the worker listened again", func() bool { return ran(t, pool, 1) })
	if took := time.Since(begin); took > 2500*time.Millisecond {
		t.Errorf("it was found after %s", took)
	}
	eventually(t, soon, "another backend listens", func() bool {
		now := listeners(t, pool)
		return len(now) == 1 && now[0] != before[0]
	})
	tap.stretched(t)
	begin = time.Now()
	enqueue(t, pool, spec, task{N: 2})
	eventually(t, soon, "the job ran", func() bool { return ran(t, pool, 2) })
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("after the listener was replaced a wake-up took %s", took)
	}
}

// The listener cannot come back: the worker polls, does not spin, and says so once.
func TestWorkerWithoutAListenerPollsAndDoesNotSpin(t *testing.T) {
	t.Parallel()
	pool := database(t)
	watched, tap := tapped(t, pool)
	refused := make(chan struct{})
	close(refused)
	dead, cancel := context.WithCancel(context.Background())
	cancel()
	spec := kind("t.nolisten")
	var listens atomic.Int64
	tap.before("LISTEN", func(context.Context) context.Context { listens.Add(1); return dead })
	start(t, watched, worker.Config{}, stampers(pool, spec))
	eventually(t, soon, "LISTEN was tried", func() bool { return listens.Load() > 0 })
	for n := range 3 {
		begin := time.Now()
		enqueue(t, pool, spec, task{N: n})
		eventually(t, soon, "the job ran", func() bool { return ran(t, pool, n) })
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("job %d was found after %s", n, took)
		}
	}
	if n := listens.Load(); n > 20 {
		t.Errorf("LISTEN was tried %d times", n)
	}
}

// A worker whose polling is stretched wakes by itself when a job becomes due. Three of them, because one may be lucky.
func TestScheduledJobStartsOnTimeOnAnIdleWorker(t *testing.T) {
	t.Parallel()
	for i := range 3 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			watched, tap := tapped(t, pool)
			spec := kind("t.later")
			start(t, watched, worker.Config{}, stampers(pool, spec))
			tap.stretched(t)
			// Nobody is told. The next poll, some five seconds from now, sees that it becomes due before the one after.
			due := one[time.Time](t, pool, `INSERT INTO jobgen.jobs (queue, kind, payload, run_at)
				VALUES ('q', 't.later', '{"N": 1}', clock_timestamp() + interval '7.2 s') RETURNING run_at`)
			eventually(t, soon, "the job ran", func() bool { return ran(t, pool, 1) })
			late := one[time.Time](t, pool, `SELECT at FROM effect`).Sub(due)
			if late < 0 || late > 1500*time.Millisecond {
				t.Errorf("it ran %s after it was due", late)
			}
		})
	}
}

func TestJobCommittedLongAfterItsTimeIsFoundByASweep(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.late")
	start(t, pool, worker.Config{}, stampers(pool, spec))
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	ref := enqueue(t, tx, spec, task{N: -1})
	// The marks pass it: jobs enqueued well after it are done, and the slack (2 s) is over.
	begin := time.Now()
	for n := 0; time.Since(begin) < 4*time.Second; n++ {
		enqueue(t, pool, spec, task{N: n})
		eventually(t, soon, "the job ran", func() bool { return ran(t, pool, n) })
	}
	execute(t, tx, `DELETE FROM jobgen.wake`) // and nobody is told
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, fmt.Sprintf("job %d ran", ref.ID), func() bool { return ran(t, pool, -1) })
}

// An identity lost while idle takes the wake row with it; the new identity wants to be woken as well.
func TestIdleWorkerIsWokenAlsoAfterItsLeaseWasLost(t *testing.T) {
	t.Parallel()
	pool := database(t)
	watched, tap := tapped(t, pool)
	spec := kind("t.phoenix")
	w := start(t, watched, worker.Config{Lease: time.Second}, stampers(pool, spec))
	tap.stretched(t)
	execute(t, pool, `UPDATE jobgen.workers SET lost_at = now(), lease_until = now()`)
	execute(t, pool, `DELETE FROM jobgen.wake`)
	eventually(t, soon, "the worker goes on under a new id", func() bool { return w.log.has("this worker was found dead") })
	tap.stretched(t)
	begin := time.Now()
	enqueue(t, pool, spec, task{N: 1})
	eventually(t, soon, "the job ran", func() bool { return ran(t, pool, 1) })
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("an idle worker with a new id started the job after %s", took)
	}
}

var _ pgx.QueryTracer = (*tap)(nil)

// An enqueue wakes a worker that handles its kind, not one that only polls its queue.
func TestAnEnqueueWakesAWorkerThatHandlesItsKind(t *testing.T) {
	t.Parallel()
	pool := database(t)
	specs := []*jobs.Spec[task, string]{answering("t.one"), answering("t.two"), answering("t.three")}
	for _, spec := range specs {
		start(t, pool, worker.Config{}, func(r *worker.Registry) {
			worker.Handle(r, spec, func(context.Context, *jobs.Job[task]) (string, error) { return spec.Kind, nil })
		})
	}
	eventually(t, soon, "all sleep", func() bool { return one[int](t, pool, `SELECT count(*) FROM jobgen.wake`) == len(specs) })
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for id, kind := range map[string]string{"t.one": "t.one", "t.two": "t.two", "t.three": "t.three"} {
		channel := one[string](t, pool, `SELECT 'jobgen_' || worker_id FROM jobgen.wake WHERE $1 = ANY(kinds)`, id)
		execute(t, conn, `LISTEN "`+channel+`"`)
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range specs {
			if spec.Kind == kind {
				enqueue(t, tx, spec, task{})
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		n, err := conn.Conn().WaitForNotification(ctx)
		cancel()
		if err != nil || n.Channel != channel {
			t.Fatalf("enqueueing %s notified %+v, %v; want %s", kind, n, err, channel)
		}
		execute(t, conn, "UNLISTEN *")
	}
}
