package worker_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

func TestMaxAttemptsIsHowOftenAJobRuns(t *testing.T) {
	t.Parallel()
	for _, most := range []int{1, 3} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			spec := answering("t.fails")
			spec.MaxAttempts = most
			var runs atomic.Int64
			start(t, pool, worker.Config{}, func(r *worker.Registry) {
				worker.Handle(r, spec, func(_ context.Context, j *jobs.Job[task]) (string, error) {
					if n := runs.Add(1); int(n) != j.Attempt || j.MaxAttempts != most {
						t.Errorf("run %d is told that it is attempt %d of %d", n, j.Attempt, j.MaxAttempts)
					}
					return "", fmt.Errorf("attempt %d", j.Attempt)
				})
			})
			ref := enqueue(t, pool, spec, task{})
			_, err := await(t, pool, ref)
			var dead *jobs.DeadError
			if !errors.As(err, &dead) || dead.Attempts != most || dead.LastError != fmt.Sprintf("attempt %d", most) {
				t.Errorf("got %v", err)
			}
			if int(runs.Load()) != most {
				t.Errorf("it ran %d times", runs.Load())
			}
			want := []string{"attempt 1", "attempt 2", "attempt 3"}[:most]
			if got := all[string](t, pool, `SELECT error FROM jobgen.job_attempt ORDER BY attempt`); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("on record: %v", got)
			}
			if r := look(t, pool, ref.ID); r.Status != "dead" || r.Fence != 0 {
				t.Errorf("the job is %s", r)
			}
		})
	}
}

func TestBackoffCountsFromTheFailure(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.backoff")
	const delay = time.Hour
	spec.Backoff = jobs.Backoff{Form: jobs.Constant, Base: delay, Max: delay}
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(ctx context.Context, j *jobs.Job[task]) error {
			_, err := pool.Exec(ctx, `SELECT pg_sleep(1.5)`)
			return errors.Join(err, errors.New("no"))
		})
	})
	ref := enqueue(t, pool, spec, task{})
	r := becomes(t, pool, ref.ID, "has failed", func(r row) bool { return r.LastError != "" })
	ended := one[time.Time](t, pool, `SELECT ended_at FROM jobgen.job_attempt`)
	if ended.Sub(r.Created) < 1500*time.Millisecond {
		t.Errorf("the attempt ended %s after the job was created", ended.Sub(r.Created))
	}
	// run_at is written a moment before ended_at, in the same statement.
	if wait := r.RunAt.Sub(ended); wait < delay/2-5*time.Second || wait > delay+5*time.Second {
		t.Errorf("it waits for %s from the failure on, want %s to %s", wait, delay/2, delay)
	}
	if r.Status != "queued" || r.Attempt != 1 || r.Fence != 0 {
		t.Errorf("the job is %s", r)
	}
}

func TestJobsThatFailTogetherComeBackSpread(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.together")
	spec.Backoff = jobs.Backoff{Base: time.Hour}
	const total = 1000
	enqueueMany(t, pool, spec, numbered(total))
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(context.Context, *jobs.Job[task]) error { return errors.New("the other side is down") })
	})
	eventually(t, soon, "all have failed", func() bool { return one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`) == total })
	// Between half an hour and an hour: in ten equal parts of it, none is empty and none has more than twice its share.
	parts := all[int](t, pool, `
		SELECT count(*)::int FROM jobgen.jobs j JOIN jobgen.job_attempt a ON a.job_id = j.id
		GROUP BY width_bucket(extract(epoch FROM j.run_at - a.ended_at), 1795, 3605, 10)`)
	if len(parts) != 10 {
		t.Fatalf("by tenths of the interval: %v", parts)
	}
	for _, n := range parts {
		if n > total/5 || n < total/30 {
			t.Errorf("by tenths of the interval: %v", parts)
		}
	}
}

func TestHandlerDecidesOnItsRetry(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.decides")
	spec.Backoff = jobs.Backoff{Base: time.Millisecond}
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(_ context.Context, j *jobs.Job[task]) (string, error) {
			switch j.Payload.Do {
			case "permanent":
				return "", fmt.Errorf("wrapped: %w", jobs.Permanent(errors.New("hopeless")))
			case "in an hour":
				return "", fmt.Errorf("wrapped: %w", jobs.RetryIn(time.Hour, errors.New("busy")))
			case "now":
				if j.Attempt == 1 {
					return "", jobs.RetryIn(-time.Hour, errors.New("again"))
				}
				return "second", nil
			case "for ever":
				return "", jobs.RetryIn(1<<63-1, errors.New("whenever"))
			}
			return "", nil
		})
	})
	ref := enqueue(t, pool, spec, task{Do: "permanent"})
	_, err := await(t, pool, ref)
	var dead *jobs.DeadError
	if !errors.As(err, &dead) || dead.Attempts != 1 || dead.LastError != "wrapped: hopeless" {
		t.Errorf("permanent: %v", err)
	}
	later := enqueue(t, pool, spec, task{Do: "in an hour"})
	r := becomes(t, pool, later.ID, "has failed", func(r row) bool { return r.LastError != "" })
	if wait := r.RunAt.Sub(r.DBNow); r.Status != "queued" || r.Attempt != 1 || wait < 59*time.Minute || wait > time.Hour {
		t.Errorf("RetryIn(1h): %s, again in %s", r, wait)
	}
	if got, err := await(t, pool, enqueue(t, pool, spec, task{Do: "now"})); got != "second" || err != nil {
		t.Errorf("RetryIn(-1h): %q, %v", got, err)
	}
	ever := enqueue(t, pool, spec, task{Do: "for ever"})
	r = becomes(t, pool, ever.ID, "has failed", func(r row) bool { return r.LastError != "" })
	if r.Status != "queued" || r.RunAt.Year() < 2100 {
		t.Errorf("RetryIn(for ever): %s, again at %s", r, r.RunAt)
	}
}

// The worst thing a worker can do with a high attempt is to try again at once, for ever.
func TestBackoffHoldsAtHighAttempts(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.high")
	spec.MaxAttempts = 1000
	spec.Backoff = jobs.Backoff{}
	var runs atomic.Int64
	ref := enqueue(t, pool, spec, task{})
	execute(t, pool, `UPDATE jobgen.jobs SET attempt = 60`)
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(context.Context, *jobs.Job[task]) error { runs.Add(1); return errors.New("no") })
	})
	r := becomes(t, pool, ref.ID, "has failed", func(r row) bool { return r.LastError != "" })
	if wait := r.RunAt.Sub(r.DBNow); r.Attempt != 61 || wait < 29*time.Minute || wait > time.Hour {
		t.Errorf("%s, again in %s", r, wait)
	}
	if runs.Load() != 1 {
		t.Errorf("it ran %d times", runs.Load())
	}
}

func TestTimeoutSaysSoAndFreesTheSlot(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.slow")
	spec.MaxAttempts, spec.Timeout = 1, 250*time.Millisecond
	causes := make(chan error, 1)
	start(t, pool, worker.Config{Concurrency: 1}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
			switch j.Payload.Do {
			case "obeys":
				<-ctx.Done()
				causes <- context.Cause(ctx)
				return "", ctx.Err()
			case "makes it anyway":
				<-ctx.Done()
				return "late but right", nil
			}
			return "quick", nil
		})
	})
	_, err := await(t, pool, enqueue(t, pool, spec, task{Do: "obeys"}))
	var dead *jobs.DeadError
	if !errors.As(err, &dead) || !strings.HasPrefix(dead.LastError, "timeout after 250ms") {
		t.Errorf("got %v", err)
	}
	if cause := receive(t, "the cause", causes); cause.Error() != "timeout after 250ms" || !errors.Is(cause, context.DeadlineExceeded) {
		t.Errorf("the cause is %v", cause)
	}
	if got, err := await(t, pool, enqueue(t, pool, spec, task{})); got != "quick" || err != nil {
		t.Errorf("the next job: %q, %v", got, err)
	}
	if got, err := await(t, pool, enqueue(t, pool, spec, task{Do: "makes it anyway"})); got != "late but right" || err != nil {
		t.Errorf("a success after the timeout: %q, %v", got, err)
	}
}

// The timeout and the handler's own return race: one attempt is used, by whichever wins.
func TestTimeoutRacingAReturnUsesOneAttempt(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.race")
	const total = 500
	spec.MaxAttempts, spec.Timeout, spec.Backoff = 5, 20*time.Millisecond, jobs.Backoff{Base: time.Hour}
	enqueueMany(t, pool, spec, numbered(total))
	start(t, pool, worker.Config{Concurrency: 50}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(ctx context.Context, j *jobs.Job[task]) error {
			timer := time.NewTimer(15*time.Millisecond + time.Duration(j.Payload.N)*20*time.Microsecond)
			defer timer.Stop()
			<-timer.C
			return errors.New("of its own")
		})
	})
	eventually(t, soon, "all have failed", func() bool {
		return one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE status = 'queued' AND attempt > 0`) == total
	})
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE attempt <> 1`); n != 0 {
		t.Errorf("%d jobs have used more than one attempt", n)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`); n != total {
		t.Errorf("%d failures of %d jobs are on record", n, total)
	}
	if both := one[int](t, pool, `SELECT count(DISTINCT error) FROM jobgen.job_attempt`); both > 2 {
		t.Errorf("texts on record: %v", all[string](t, pool, `SELECT DISTINCT error FROM jobgen.job_attempt`))
	}
}

func TestPanicsAreFailuresWithTheirStack(t *testing.T) {
	t.Parallel()
	pool := database(t)
	deaths := map[string]struct {
		do   func()
		want []string
	}{
		"value":  {func() { panic("on purpose") }, []string{"panic: on purpose", "retry_test.go:"}},
		"error":  {func() { panic(errors.New("as error")) }, []string{"panic: as error", "retry_test.go:"}},
		"nil":    {func() { panic(nil) }, []string{"panic: panic called with nil", "retry_test.go:"}},
		"map":    {func() { var m map[int]int; m[1] = 1 }, []string{"panic: assignment to entry in nil map", "retry_test.go:"}}, //nolint:staticcheck // the panic is what is tested
		"index":  {func() { s := []int{}; s[len(s)]++ }, []string{"panic: runtime error: index out of range", "retry_test.go:"}},
		"goexit": {runtime.Goexit, []string{"runtime.Goexit"}},
		"deep": {func() {
			var f func(int)
			f = func(n int) {
				if n == 0 {
					panic(strings.Repeat("deep ", 1000))
				}
				f(n - 1)
			}
			f(5000)
		}, []string{"panic: deep"}},
		"its text": {func() { panic((*nilError)(nil)) }, []string{"panic:"}},
	}
	var register []func(*worker.Registry)
	refs := map[string]jobs.Ref[string]{}
	for name, death := range deaths {
		spec := answering("t.dies." + name)
		spec.MaxAttempts = 1
		register = append(register, func(r *worker.Registry) {
			worker.Handle(r, spec, func(context.Context, *jobs.Job[task]) (string, error) { death.do(); return "", nil })
		})
		refs[name] = enqueue(t, pool, spec, task{})
	}
	fine := answering("t.lives")
	register = append(register, func(r *worker.Registry) {
		worker.Handle(r, fine, func(context.Context, *jobs.Job[task]) (string, error) { return "ok", nil })
	})
	// Two slots: each must outlive the deaths in it.
	start(t, pool, worker.Config{Concurrency: 2}, register...)
	for name, ref := range refs {
		_, err := await(t, pool, ref)
		var dead *jobs.DeadError
		if !errors.As(err, &dead) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range deaths[name].want {
			if !strings.Contains(dead.LastError, want) {
				t.Errorf("%s: %q is not in %q", name, want, dead.LastError)
			}
		}
		if len(dead.LastError) > 9000 {
			t.Errorf("%s: %d bytes are on record", name, len(dead.LastError))
		}
	}
	for _, ref := range enqueueMany(t, pool, fine, numbered(20)) {
		if got, err := await(t, pool, ref); got != "ok" || err != nil {
			t.Errorf("afterwards: %q, %v", got, err)
		}
	}
}

// A handler may return the errors of this library and mean another job. Its own attempt has failed, no more and no less.
func TestG2HandlerThatReturnsOurErrorsHasFailed(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.ours")
	spec.MaxAttempts = 2
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(_ context.Context, j *jobs.Job[task]) (string, error) {
			if j.Attempt == 1 {
				return "", fmt.Errorf("asking about another job: %w", []error{jobs.ErrLeaseLost, jobs.ErrNoRecord, jobs.ErrNotMigrated, context.Canceled, context.DeadlineExceeded}[j.Payload.N])
			}
			return "second", nil
		})
	})
	for _, ref := range enqueueMany(t, pool, spec, numbered(5)) {
		if got, err := await(t, pool, ref); got != "second" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt WHERE outcome = 'failed' AND error LIKE 'asking about another job%'`); n != 5 {
		t.Errorf("%d failures are on record", n)
	}
}

// What the row says can be changed by an operator while the job runs; the attempts left are counted by the row.
func TestOperatorMayChangeMaxAttempts(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.changed")
	running, release := make(chan struct{}, 1), make(chan struct{})
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(context.Context, *jobs.Job[task]) error {
			running <- struct{}{}
			<-release
			return errors.New("no")
		})
	})
	ref := enqueue(t, pool, spec, task{})
	receive(t, "it runs", running)
	execute(t, pool, `UPDATE jobgen.jobs SET max_attempts = 1`)
	close(release)
	becomes(t, pool, ref.ID, "is dead", func(r row) bool { return r.Status == "dead" && r.Attempt == 1 })
}

// An error whose methods change their mind is asked once, where its panic harms nobody.
type moody struct{ asked *atomic.Int32 }

func (m moody) Error() string {
	if m.asked.Add(1) > 1 {
		panic("asked twice")
	}
	return "asked once"
}

func TestG9AnErrorIsAskedForItsTextOnce(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.moody")
	spec.MaxAttempts = 1
	ref := enqueue(t, pool, spec, task{})
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(context.Context, *jobs.Job[task]) error { return moody{new(atomic.Int32)} })
	})
	drained(t, pool, soon)
	if got := one[string](t, pool, `SELECT last_error FROM jobgen.jobs WHERE id = $1`, ref.ID); got != "asked once" {
		t.Errorf("on record: %q", got)
	}
}
