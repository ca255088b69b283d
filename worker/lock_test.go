package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/pgproxy"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// locking is answering, owned by lock.
func locking(name string) *jobs.Spec[task, string] {
	s := answering(name)
	s.Lock = true
	return s
}

// lockers registers a handler that notes that it ran, for each of specs.
func lockers(specs ...*jobs.Spec[task, string]) func(*worker.Registry) {
	return func(r *worker.Registry) {
		for _, s := range specs {
			worker.HandleTx(r, s, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
				return "ok", leave(ctx, tx, j.Payload.N, "ran")
			})
		}
	}
}

func marks(t testing.TB, db jobs.DB) int {
	t.Helper()
	return one[int](t, db, `SELECT count(*) FROM jobgen.job_start`)
}

func init() {
	// sleeper runs jobs owned by lock that have an effect and then never end.
	roles["lock.sleeper"] = func(ctx context.Context, pool *pgxpool.Pool, args []byte) error {
		var cfg worker.Config
		if err := json.Unmarshal(args, &cfg); err != nil {
			return err
		}
		var r worker.Registry
		worker.HandleTx(&r, locking("t.lock"), func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			if err := leave(ctx, tx, j.Payload.N, "of the dead"); err != nil {
				return "", err
			}
			if err := leave(ctx, pool, -j.Payload.N, "started"); err != nil {
				return "", err
			}
			<-ctx.Done()
			return "", ctx.Err()
		})
		w, err := worker.New(pool, &r, cfg)
		if err != nil {
			return err
		}
		return w.Run(ctx)
	}
	// lock.mortal runs jobs owned by lock of which some kill the process.
	roles["lock.mortal"] = func(ctx context.Context, pool *pgxpool.Pool, args []byte) error {
		var cfg worker.Config
		if err := json.Unmarshal(args, &cfg); err != nil {
			return err
		}
		var r worker.Registry
		worker.HandleTx(&r, locking("t.lock"), func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			if j.Payload.Do == "kill" {
				// Not before it has company, if there is any.
				if _, err := tx.Exec(ctx, `SELECT pg_sleep(0.1)`); err != nil {
					return "", err
				}
				os.Exit(9)
			}
			if _, err := tx.Exec(ctx, `SELECT pg_sleep(0.2)`); err != nil {
				return "", err
			}
			return "ok", leave(ctx, tx, j.Payload.N, "done")
		})
		w, err := worker.New(pool, &r, cfg)
		if err != nil {
			return err
		}
		return w.RunUntilSignal(ctx)
	}
}

func TestLockEffectsResultAndRemovalCommitTogether(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := locking("t.lock")
	effect, commit := make(chan struct{}), make(chan struct{})
	start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		if j.Attempt != 1 {
			t.Errorf("attempt %d", j.Attempt)
		}
		if err := leave(ctx, tx, j.Payload.N, "effect"); err != nil {
			return "", err
		}
		close(effect)
		<-commit
		return "result", nil
	}))
	ref := enqueue(t, pool, spec, task{N: 1})
	receive(t, "the handler has had its effect", effect)
	if ran(t, pool, 1) {
		t.Error("the effect is seen before the commit")
	}
	if r := look(t, pool, ref.ID); r.Status != "queued" || r.Attempt != 0 {
		t.Errorf("the job is %s", r)
	}
	if n := marks(t, pool); n != 1 {
		t.Errorf("%d marks", n)
	}
	close(commit)
	if got, err := await(t, pool, ref); got != "result" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	// One transaction wrote them all, and took the row.
	if !one[bool](t, pool, `SELECT e.xmin = r.xmin FROM effect e, jobgen.job_result r WHERE r.job_id = $1`, ref.ID) {
		t.Error("the effect and the result come from different transactions")
	}
	if r := look(t, pool, ref.ID); r.Status != "" {
		t.Errorf("the job is %s", r)
	}
	if n := marks(t, pool); n != 0 {
		t.Errorf("%d marks are left", n)
	}
}

func TestLockFailureSpendsAttemptsAndBacksOff(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := locking("t.lock")
	spec.MaxAttempts, spec.Backoff = 3, jobs.Backoff{Form: jobs.Constant, Base: time.Hour}
	start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		if err := leave(ctx, tx, j.Attempt, "rolled back"); err != nil {
			return "", err
		}
		return "", errors.New("on purpose")
	}))
	ref := enqueue(t, pool, spec, task{N: 1})
	for n := 1; n < 3; n++ {
		r := becomes(t, pool, ref.ID, "has failed", func(r row) bool { return r.Status == "queued" && r.Attempt == n })
		if r.RunAt.Sub(r.DBNow) < 20*time.Minute || r.LastError != "on purpose" || r.Fence != 0 {
			t.Errorf("after attempt %d the job is %s, due in %s", n, r, r.RunAt.Sub(r.DBNow))
		}
		execute(t, pool, `UPDATE jobgen.jobs SET run_at = now()`)
	}
	if r := becomes(t, pool, ref.ID, "is dead", func(r row) bool { return r.Status == "dead" }); r.Attempt != 3 || r.Crashes != 0 {
		t.Errorf("the job is %s", r)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt WHERE outcome = 'failed' AND error = 'on purpose' AND started_at <= ended_at`); n != 3 {
		t.Errorf("%d attempts are on record", n)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect`) + marks(t, pool); n != 0 {
		t.Errorf("%d effects and marks stand", n)
	}
}

// What a handler says beside success and failure means what it means for other kinds.
// Each failure is a claim of its own; a worker that claims nothing else forgets them, too.
func TestG11ClaimsOfFailedLockJobsAreForgotten(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := locking("t.lock")
	spec.MaxAttempts = 5
	start(t, pool, worker.Config{}, transactional(spec, func(context.Context, pgx.Tx, *jobs.Job[task]) (string, error) {
		return "", errors.New("on purpose")
	}))
	ref := enqueue(t, pool, spec, task{N: 1})
	becomes(t, pool, ref.ID, "is dead", func(r row) bool { return r.Status == "dead" })
	eventually(t, soon, "its claims are forgotten", func() bool { return one[int](t, pool, `SELECT count(*) FROM jobgen.claims`) == 0 })
}

func TestLockOutcomesAreThoseOfAnyOtherJob(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := locking("t.lock")
	var snoozed atomic.Bool
	start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		switch j.Payload.Do {
		case "permanent":
			return "", jobs.Permanent(errors.New("never"))
		case "retry":
			return "", jobs.RetryIn(time.Hour, errors.New("later"))
		case "snooze":
			if !snoozed.Swap(true) {
				return "", jobs.Snooze(time.Millisecond)
			}
		}
		return "ok", leave(ctx, tx, j.Attempt, j.Payload.Do)
	}))
	permanent := enqueue(t, pool, spec, task{Do: "permanent"})
	retry := enqueue(t, pool, spec, task{Do: "retry"})
	snooze := enqueue(t, pool, spec, task{Do: "snooze"})
	garbage := enqueue(t, pool, spec, task{}, jobs.In(time.Hour), jobs.MaxAttempts(1))
	late := enqueue(t, pool, spec, task{Do: "late"}, jobs.In(time.Hour), jobs.Within(2*time.Hour))
	execute(t, pool, `UPDATE jobgen.jobs SET payload = '{"N": "no number"}', run_at = now() WHERE id = $1`, garbage.ID)
	execute(t, pool, `UPDATE jobgen.jobs SET deadline = now(), run_at = now() WHERE id = $1`, late.ID)
	becomes(t, pool, permanent.ID, "is dead", func(r row) bool { return r.Status == "dead" && r.Attempt == 1 })
	becomes(t, pool, retry.ID, "waits", func(r row) bool { return r.Attempt == 1 && r.RunAt.Sub(r.DBNow) > 50*time.Minute })
	becomes(t, pool, garbage.ID, "is dead", func(r row) bool { return r.Status == "dead" && strings.Contains(r.LastError, "does not decode") })
	if got, err := await(t, pool, snooze); got != "ok" || err != nil {
		t.Errorf("the snoozed job: %q, %v", got, err)
	}
	if got := all[int](t, pool, `SELECT n::int FROM effect WHERE what = 'snooze'`); !slices.Equal(got, []int{1}) {
		t.Errorf("the snoozed job had its effects in attempts %v", got)
	}
	var cancelled *jobs.CancelledError
	if _, err := await(t, pool, late); !errors.As(err, &cancelled) {
		t.Errorf("the job whose deadline has passed: %v", err)
	}
	if ran(t, pool, 0) {
		t.Error("it ran")
	}
}

func TestLockRunningJobCanBeCancelled(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := locking("t.lock")
	running := make(chan struct{})
	start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		if err := leave(ctx, tx, 1, "rolled back"); err != nil {
			return "", err
		}
		close(running)
		<-ctx.Done()
		return "", context.Cause(ctx)
	}))
	ref := enqueue(t, pool, spec, task{})
	receive(t, "the handler runs", running)
	if _, err := jobs.Cancel(t.Context(), pool, ref.ID, "no longer wanted"); err != nil {
		t.Fatal(err)
	}
	var cancelled *jobs.CancelledError
	if _, err := await(t, pool, ref); !errors.As(err, &cancelled) || cancelled.Reason != "no longer wanted" {
		t.Errorf("the cancelled job: %v", err)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect`) + marks(t, pool); n != 0 {
		t.Errorf("%d effects and marks stand", n)
	}
}

// A killed process: its job runs again, elsewhere and once, although its lease is good for another hour.
func TestLockJobOfAKilledProcessRunsAgainAtOnce(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := locking("t.lock")
	c := spawn(t, pool, "lock.sleeper", worker.Config{Lease: time.Hour})
	ref := enqueue(t, pool, spec, task{N: 1}, jobs.In(2*time.Hour))
	execute(t, pool, `UPDATE jobgen.jobs SET run_at = now() - interval '1 hour'`) // to the left of all marks
	eventually(t, soon, "the handler has had its effect", func() bool { return ran(t, pool, -1) })
	start(t, pool, worker.Config{Lease: time.Hour, Heartbeat: 20 * time.Millisecond}, lockers(spec))
	eventually(t, soon, "both workers sleep", func() bool { return one[int](t, pool, `SELECT count(DISTINCT worker_id) FROM jobgen.wake`) == 2 })
	c.kill()
	if got, err := await(t, pool, ref); got != "ok" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if got := all[string](t, pool, `SELECT what FROM effect WHERE n = 1`); !slices.Equal(got, []string{"ran"}) {
		t.Errorf("effects %q stand", got)
	}
	if got := all[string](t, pool, `SELECT outcome FROM jobgen.job_attempt WHERE job_id = $1`, ref.ID); !slices.Equal(got, []string{"crashed"}) {
		t.Errorf("on record are %q", got)
	}
	if n := marks(t, pool); n != 0 {
		t.Errorf("%d marks are left", n)
	}
}

// A wish to cancel that reached a process which died before it could obey: the job does not start again.
func TestLockCancellationOutlivesTheProcessThatWasAsked(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := locking("t.lock")
	c := spawn(t, pool, "lock.sleeper", worker.Config{Lease: time.Hour})
	ref := enqueue(t, pool, spec, task{N: 1})
	eventually(t, soon, "the handler has had its effect", func() bool { return ran(t, pool, -1) })
	c.signal(syscall.SIGSTOP)
	if got, err := jobs.Cancel(t.Context(), pool, ref.ID, "no longer wanted"); err != nil || got != jobs.CancelAsked {
		t.Fatal(got, err)
	}
	c.kill()
	start(t, pool, worker.Config{}, lockers(spec))
	var cancelled *jobs.CancelledError
	if _, err := await(t, pool, ref); !errors.As(err, &cancelled) || cancelled.Reason != "no longer wanted" {
		t.Errorf("the cancelled job: %v", err)
	}
	if ran(t, pool, 1) {
		t.Error("it ran again")
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_cancel`) + marks(t, pool); n != 0 {
		t.Errorf("%d messages and marks are left", n)
	}
}

// In its own transaction the job's lock keeps nobody out: what its handler asks of its own job is answered as elsewhere.
func TestHandlerThatCancelsItsOwnJobAndSucceeds(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]bool{"lease": false, "lock": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			spec := answering("t.self")
			spec.Lock = lock
			start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
				answer, err := jobs.Cancel(ctx, tx, j.ID, "itself")
				return string(answer), errors.Join(err, leave(ctx, tx, 1, "effect"))
			}))
			if got, err := await(t, pool, enqueue(t, pool, spec, task{})); got != string(jobs.CancelAsked) || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
			if n := one[int](t, pool, `SELECT count(*) - (SELECT count(*) FROM jobgen.job_attempt) FROM effect`); n != 1 {
				t.Errorf("%d effects less attempts", n)
			}
		})
	}
}

// One job kills its process whenever it runs. It ends dead after a bounded number of crashes, and the jobs that ran
// beside it succeed. No lease has run out by then.
func TestG8LockPoisonDiesAndItsNeighboursDoNot(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := locking("t.lock")
	const others = 20
	poison := enqueue(t, pool, spec, task{N: -1, Do: "kill"}, jobs.MaxAttempts(1))
	enqueueMany(t, pool, spec, numbered(others))
	deaths := supervise(t, pool, "lock.mortal", map[string]any{"Lease": time.Hour, "Reclaim": 50 * time.Millisecond}, func() bool {
		return one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE status <> 'dead'`) == 0
	})
	if r := look(t, pool, poison.ID); r.Status != "dead" || r.Crashes != 5 || !strings.Contains(r.LastError, "crashed 5 times") {
		t.Errorf("the poison is %s", r)
	}
	if deaths != 5 {
		t.Errorf("the process died %d times", deaths)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt WHERE outcome = 'crashed' AND job_id = $1`, poison.ID); n != 5 {
		t.Errorf("%d of its crashes are on record", n)
	}
	if n := one[int](t, pool, `SELECT count(DISTINCT n) FROM effect WHERE what = 'done'`); n != others {
		t.Errorf("%d of %d others have succeeded", n, others)
	}
	if n := one[int](t, pool, `SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM jobgen.job_attempt WHERE outcome = 'crashed' AND job_id <> $1 GROUP BY job_id) x`, poison.ID); n > 2 {
		t.Errorf("an innocent job has crashed %d times", n)
	}
	if n := marks(t, pool); n != 0 {
		t.Errorf("%d marks are left", n)
	}
}

// The key's work is done by another job while this one runs it: what this one did is rolled back.
func TestG6LockJobWhoseKeyIsRecordedMeanwhileTakesNoEffect(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := keyed("t.lock")
	spec.Lock = true
	start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		if _, err := pool.Exec(ctx, `UPDATE jobgen.job_result SET job_id = -1, result = '"first"', finished_at = now(), expires_at = now() + interval '1 day'`); err != nil {
			return "", err
		}
		return "second", leave(ctx, tx, j.Payload.N, "effect")
	}))
	ref := enqueue(t, pool, spec, task{N: 1})
	drained(t, pool, soon)
	if got, err := await(t, pool, ref); got != "first" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	again := enqueue(t, pool, spec, task{N: 1})
	if got, err := await(t, pool, again); !again.Existing || got != "first" || err != nil {
		t.Errorf("again: %t, %q, %v", again.Existing, got, err)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect`) + one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`) + marks(t, pool); n != 0 {
		t.Errorf("%d effects, attempts and marks stand", n)
	}
}

func TestG6LockJobWhoseKeyIsRecordedDoesNotRun(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := keyed("t.lock")
	spec.Lock = true
	ref := enqueue(t, pool, spec, task{N: 1})
	execute(t, pool, `UPDATE jobgen.job_result SET job_id = -1, result = '"first"', finished_at = now(), expires_at = now() + interval '1 day'`)
	start(t, pool, worker.Config{}, lockers(spec))
	drained(t, pool, soon)
	if got, err := await(t, pool, ref); got != "first" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if ran(t, pool, 1) {
		t.Error("it ran")
	}
}

// Jobs that wait for each other: as many run at once as there are, each once.
func TestG3LockersAreExclusiveAndParallel(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := locking("t.lock")
	const n = 10
	app := another(t, pool, func(c *pgxpool.Config) { c.MaxConns = n + 1 })
	var together sync.WaitGroup
	together.Add(n)
	start(t, app, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		together.Done()
		together.Wait()
		return "ok", leave(ctx, tx, j.Payload.N, "ran")
	}))
	enqueueMany(t, pool, spec, numbered(n))
	drained(t, pool, soon)
	if got := one[string](t, pool, `SELECT count(*) || ' of ' || count(DISTINCT n) FROM effect`); got != "10 of 10" {
		t.Errorf("effects: %s", got)
	}
}

// Old workers hold the kind by lease, new ones own it by lock: during a deployment both run, and no job runs twice. Both go
// through the row's lock and its status.
func TestG3LeaseAndLockOfOneKindSideBySide(t *testing.T) {
	t.Parallel()
	pool := database(t)
	held, owned := answering("t.both"), locking("t.both")
	const n = 300
	register := func(spec *jobs.Spec[task, string], what string) func(*worker.Registry) {
		return transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			_, err := tx.Exec(ctx, `INSERT INTO effect (n, what) SELECT $1, $2 FROM pg_sleep(0.005)`, j.Payload.N, what)
			return what, err
		})
	}
	old := another(t, pool, func(c *pgxpool.Config) { c.MaxConns = 4 })
	start(t, old, worker.Config{Concurrency: 3}, register(held, "lease"))
	start(t, pool, worker.Config{Concurrency: 3}, register(owned, "lock"))
	enqueueMany(t, pool, held, numbered(n))
	drained(t, pool, soon)
	if got := one[string](t, pool, `SELECT count(*) || ' of ' || count(DISTINCT n) FROM effect`); got != "300 of 300" {
		t.Errorf("effects: %s", got)
	}
	if got := fmt.Sprint(all[string](t, pool, `SELECT DISTINCT what FROM effect ORDER BY 1`)); got != "[lease lock]" {
		t.Errorf("the jobs ran by %s", got)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`); n != 0 {
		t.Errorf("%d attempts are on record", n)
	}
}

// Both sorts wait in one queue, more than there are slots for. Neither starves, also with a single slot.
func TestLockAndLeaseKindsShareAQueue(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 2, 8} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			owned, held := locking("t.lock"), kind("t.lease")
			var left atomic.Int64
			left.Store(2)
			done := make(chan struct{})
			first := func() { // the first of each sort
				if left.Add(-1) == 0 {
					close(done)
				}
			}
			var ownedFirst, heldFirst sync.Once
			// There is always more of both.
			refill := func(ctx context.Context) error {
				select {
				case <-done:
					return nil
				default:
				}
				_, err := pool.Exec(ctx, `INSERT INTO jobgen.jobs (queue, kind, payload) SELECT 'q', k, '{"N": 1}' FROM unnest('{t.lock,t.lease}'::text[]) k`)
				return err
			}
			enqueueMany(t, pool, owned, numbered(20))
			enqueueMany(t, pool, held, numbered(20))
			start(t, pool, worker.Config{Concurrency: slots}, func(r *worker.Registry) {
				worker.HandleTx(r, owned, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
					ownedFirst.Do(first)
					return "", refill(ctx)
				})
				worker.HandleNone(r, held, func(ctx context.Context, j *jobs.Job[task]) error {
					heldFirst.Do(first)
					return refill(ctx)
				})
			})
			receive(t, "both sorts run", done)
			drained(t, pool, soon)
		})
	}
}

// With a single connection in the application's pool jobs run one after the other; nothing waits for itself.
func TestLockWithOneConnection(t *testing.T) {
	t.Parallel()
	pool := database(t)
	small := another(t, pool, func(c *pgxpool.Config) { c.MaxConns = 1 })
	spec, other := locking("t.lock"), answering("t.tx")
	start(t, small, worker.Config{}, lockers(spec, other))
	enqueueMany(t, pool, spec, numbered(30))
	enqueueMany(t, pool, other, numbered(30))
	drained(t, pool, soon)
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 60 {
		t.Errorf("%d of 60 ran", n)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`); n != 0 {
		t.Errorf("%d attempts are on record", n)
	}
}

func TestG13LockersLeaveNewerVersionsAndUnknownKindsAlone(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec, unknown := locking("t.lock"), locking("t.unknown")
	newer := locking("t.lock")
	newer.Version = 2
	alone := []jobs.Ref[string]{enqueue(t, pool, newer, task{N: 1}), enqueue(t, pool, unknown, task{N: 2})}
	ref := enqueue(t, pool, spec, task{N: 3})
	start(t, pool, worker.Config{}, lockers(spec))
	if got, err := await(t, pool, ref); got != "ok" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	for _, ref := range alone {
		if r := look(t, pool, ref.ID); r.Status != "queued" || r.Attempt != 0 {
			t.Errorf("job %d is %s", ref.ID, r)
		}
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 1 {
		t.Errorf("%d jobs ran", n)
	}
}

func TestLockIdleWorkerIsWokenByAnEnqueue(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := locking("t.lock")
	start(t, pool, worker.Config{}, lockers(spec))
	eventually(t, soon, "the worker sleeps", func() bool {
		return one[int](t, pool, `SELECT count(*) FROM jobgen.wake WHERE queue = 'q' AND kinds = '{t.lock}'`) == 1
	})
	if got := fmt.Sprint(all[[]string](t, pool, `SELECT kinds FROM jobgen.workers`)); got != "[[t.lock]]" {
		t.Errorf("the worker is known for %s", got)
	}
	if got, err := await(t, pool, enqueue(t, pool, spec, task{N: 1})); got != "ok" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestLockShutdownGivesBackWithoutAnAttempt(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := locking("t.lock")
	running := make(chan struct{})
	w := start(t, pool, worker.Config{Grace: -1}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		if err := leave(ctx, tx, j.Payload.N, "rolled back"); err != nil {
			return "", err
		}
		close(running)
		<-ctx.Done()
		return "", ctx.Err()
	}))
	ref := enqueue(t, pool, spec, task{N: 1})
	receive(t, "the handler runs", running)
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if r := look(t, pool, ref.ID); r.Status != "queued" || r.Attempt != 0 || r.Crashes != 0 {
		t.Errorf("the job is %s", r)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect`) + one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`) + marks(t, pool); n != 0 {
		t.Errorf("%d effects, attempts and marks stand", n)
	}
	start(t, pool, worker.Config{}, lockers(spec))
	if got, err := await(t, pool, ref); got != "ok" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// A handler that ignores its cancelled context keeps its transaction, and so its job, until the process ends. That is no
// crash of the job.
// A job is locked and its start is about to be marked when the shutdown comes: its handler would not be told.
func TestLockShutdownStartsNothingMore(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec, running := locking("t.lock"), kind("t.running")
	called, runs := make(chan int, 10), make(chan struct{})
	w := start(t, pool, worker.Config{Grace: -1}, func(r *worker.Registry) {
		worker.HandleTx(r, spec, func(ctx context.Context, _ pgx.Tx, j *jobs.Job[task]) (string, error) {
			called <- j.Payload.N
			<-ctx.Done()
			return "", ctx.Err()
		})
		worker.HandleNone(r, running, func(ctx context.Context, _ *jobs.Job[task]) error {
			runs <- struct{}{}
			<-ctx.Done()
			runs <- struct{}{}
			return ctx.Err()
		})
	})
	enqueue(t, pool, running, task{})
	receive(t, "another job runs", runs)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	execute(t, tx, `LOCK TABLE jobgen.job_start IN EXCLUSIVE MODE`)
	ref := enqueue(t, pool, spec, task{N: 1})
	eventually(t, soon, "its start is about to be marked", func() bool {
		return one[int](t, pool, `SELECT count(*) FROM pg_locks WHERE relation = 'jobgen.job_start'::regclass AND NOT granted`) > 0
	})
	w.cancel()
	receive(t, "the handlers that run are cancelled", runs)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if len(called) > 0 {
		t.Error("a handler was called after the shutdown had cancelled what ran")
	}
	if r := look(t, pool, ref.ID); r.Status != "queued" || r.Attempt != 0 {
		t.Errorf("the job: %s", r)
	}
	if n := marks(t, pool); n != 0 {
		t.Errorf("%d marks are left", n)
	}
}

func TestLockShutdownLeavesNoMarkOfAHandlerThatIgnoresItsContext(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := locking("t.lock")
	running, release := make(chan struct{}), make(chan struct{})
	w := start(t, pool, worker.Config{Grace: -1}, transactional(spec, func(context.Context, pgx.Tx, *jobs.Job[task]) (string, error) {
		close(running)
		<-release
		return "", errors.New("at last")
	}))
	ref := enqueue(t, pool, spec, task{N: 1})
	receive(t, "the handler runs", running)
	if err := w.stop(); err == nil || !strings.Contains(err.Error(), "ignored their cancelled context") {
		t.Errorf("Run: %v", err)
	}
	if n := marks(t, pool); n != 0 {
		t.Errorf("%d marks are left", n)
	}
	close(release)
	start(t, pool, worker.Config{}, lockers(spec))
	if got, err := await(t, pool, ref); got != "ok" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// The answer to COMMIT is lost. The job is gone, so it was committed; nothing is repeated, and nothing fails.
func TestG5LockLostAnswerToCommitIsTheDatabasesWord(t *testing.T) {
	t.Parallel()
	pool := database(t)
	slow, network := proxied(t, pool)
	spec := locking("t.lock")
	w := start(t, slow, worker.Config{}, lockers(spec))
	lost := network.On(commits, 1, pgproxy.CutDuring)
	ref := enqueue(t, pool, spec, task{N: 1})
	receive(t, "it has committed, and the answer is lost", lost.Done())
	if got, err := await(t, pool, ref); got != "ok" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	eventually(t, soon, "the worker has looked", func() bool { return w.log.has("the transaction had committed") })
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 1 {
		t.Errorf("%d effects stand", n)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`) + marks(t, pool); n != 0 {
		t.Errorf("%d attempts and marks stand", n)
	}
}

// The connection is cut before COMMIT arrives: nothing was committed, and the job runs again.
func TestG5LockLostCommitIsDoneAgain(t *testing.T) {
	t.Parallel()
	pool := database(t)
	slow, network := proxied(t, pool)
	spec := locking("t.lock")
	var once sync.Once
	start(t, slow, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		err := leave(ctx, tx, j.Payload.N, "ran")
		once.Do(network.Cut)
		return "ok", err
	}))
	ref := enqueue(t, pool, spec, task{N: 1})
	if got, err := await(t, pool, ref); got != "ok" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 1 {
		t.Errorf("%d effects stand", n)
	}
	eventually(t, soon, "no mark is left", func() bool { return marks(t, pool) == 0 })
	// The process lives: whatever its job saw, it was no crash of it that counts.
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.jobs`); n != 0 {
		t.Errorf("%d jobs are left", n)
	}
}

// The handler's statements are planned as on any other connection of the application.
func TestLockHandlerHasTheSettingsOfItsConnection(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := locking("t.lock")
	start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (s string, err error) {
		err = tx.QueryRow(ctx, `SELECT concat_ws(' ', current_setting('enable_seqscan'), current_setting('enable_sort'), current_setting('plan_cache_mode'),
			current_setting('transaction_isolation'))`).Scan(&s)
		return s, err
	}))
	if got, err := await(t, pool, enqueue(t, pool, spec, task{})); got != "on on auto read committed" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestLockNeedsATransactionalHandler(t *testing.T) {
	t.Parallel()
	var r worker.Registry
	worker.Handle(&r, locking("t.lock"), func(context.Context, *jobs.Job[task]) (string, error) { return "", nil })
	if _, err := worker.New(nil, &r, worker.Config{}); err == nil || !strings.Contains(err.Error(), `"t.lock" is owned by lock`) {
		t.Errorf("New: %v", err)
	}
}

// A timeout in a statement ends the connection, and the lock with it, before the worker can say that the attempt has failed.
// Whoever locks the job in between leaves it to that worker: no attempt is lost, and none is taken for a crash.
func TestLockLostConnectionIsNoCrash(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := locking("t.lock")
	spec.Timeout, spec.MaxAttempts = 50*time.Millisecond, 5
	hang := transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		_, err := tx.Exec(ctx, `SELECT pg_sleep(60)`)
		return "", err
	})
	for range 4 {
		startChanged(t, pool, worker.Config{}, func(w *worker.Worker) { worker.SetDoubtTime(w, soon) }, hang) // however busy the machine
	}
	refs := enqueueMany(t, pool, spec, numbered(4))
	for _, ref := range refs {
		if r := becomes(t, pool, ref.ID, "is dead", func(r row) bool { return r.Status == "dead" }); r.Attempt != 5 || r.Crashes != 0 {
			t.Errorf("job %d is %s", ref.ID, r)
		}
	}
	if got := one[string](t, pool, `SELECT count(*) || ' ' || string_agg(DISTINCT outcome, ' ') FROM jobgen.job_attempt`); got != "20 failed" {
		t.Errorf("on record are %s", got)
	}
}
