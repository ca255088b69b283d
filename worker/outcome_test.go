package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// archived is what is on record of a cancelled job; "" if nothing is.
func archived(t testing.TB, db jobs.DB, id int64) string {
	t.Helper()
	return one[string](t, db, `SELECT coalesce((SELECT concat_ws(' ', status, 'after', attempt, 'attempts:', reason) FROM jobgen.job_archive WHERE job_id = $1), '')`, id)
}

// story is a job's history.
func story(t testing.TB, db jobs.DB, id int64) string {
	t.Helper()
	return one[string](t, db, `SELECT coalesce(string_agg(attempt || ' ' || outcome || ' ' || error, ', ' ORDER BY ended_at), '') FROM jobgen.job_attempt WHERE job_id = $1`, id)
}

// cancelled wants Await to say so.
func cancelled[R any](t testing.TB, db jobs.DB, ref jobs.Ref[R], reason string) {
	t.Helper()
	_, err := await(t, db, ref)
	var c *jobs.CancelledError
	if !errors.As(err, &c) || c.ID != ref.ID || c.Reason != reason {
		t.Errorf("job %d: %v", ref.ID, err)
	}
}

func cancel[R any](t testing.TB, db jobs.DB, ref jobs.Ref[R], reason string) jobs.Cancellation {
	t.Helper()
	got, err := ref.Cancel(context.WithoutCancel(t.Context()), db, reason)
	if err != nil {
		t.Error(err)
	}
	return got
}

func TestSnoozePutsAJobOffAndSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec, tx := answering("t.early"), answering("t.earlytx")
	spec.MaxAttempts, tx.MaxAttempts = 1, 1
	var runs atomic.Int64
	w := start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(_ context.Context, j *jobs.Job[task]) (string, error) {
			if j.Attempt != 1 {
				t.Errorf("attempt %d", j.Attempt)
			}
			switch j.Payload.Do {
			case "an hour":
				return "", fmt.Errorf("too early: %w", jobs.Snooze(time.Hour))
			case "a century":
				return "", jobs.Snooze(math.MaxInt64)
			case "negative":
				if runs.Add(1) < 20 {
					return "", jobs.Snooze(math.MinInt64)
				}
			}
			return "done", nil
		})
		worker.HandleTx(r, tx, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			if runs.Add(1) > 21 { // the second time
				return "done", leave(ctx, tx, 2, "kept")
			}
			return "", errors.Join(leave(ctx, tx, 1, "rolled back"), jobs.Snooze(0))
		})
	})
	hour := enqueue(t, pool, spec, task{Do: "an hour"})
	eventually(t, soon, "it is put off", func() bool { return story(t, pool, hour.ID) == "1 snoozed too early: put off for 1h0m0s" })
	if r := look(t, pool, hour.ID); r.Status != "queued" || r.Attempt != 0 || r.LastError != "" || r.RunAt.Sub(r.DBNow) < 59*time.Minute || r.RunAt.Sub(r.DBNow) > time.Hour {
		t.Errorf("%s, again in %s", r, r.RunAt.Sub(r.DBNow))
	}
	century := enqueue(t, pool, spec, task{Do: "a century"})
	eventually(t, soon, "it is put off", func() bool { return look(t, pool, century.ID).RunAt.Year() > 2100 })

	negative := enqueue(t, pool, spec, task{Do: "negative"})
	if got, err := await(t, pool, negative); got != "done" || err != nil || runs.Load() != 20 {
		t.Errorf("%q, %v after %d runs", got, err, runs.Load())
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt WHERE job_id = $1 AND outcome = 'snoozed' AND attempt = 1`, negative.ID); n != 19 {
		t.Errorf("%d times on record", n)
	}
	if got, err := await(t, pool, enqueue(t, pool, tx, task{})); got != "done" || err != nil {
		t.Errorf("transactional: %q, %v", got, err)
	}
	if got := all[string](t, pool, `SELECT what FROM effect`); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("effects: %v", got)
	}
	if log := w.log.String(); strings.Contains(log, "put off") || strings.Contains(log, "fail") {
		t.Error("a snooze is logged like a failure")
	}
}

func TestAJobThatIsNeverReadyEndsDead(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.never")
	spec.MaxAttempts = 2
	ref := enqueue(t, pool, spec, task{})
	execute(t, pool, `UPDATE jobgen.jobs SET snoozes = $1`, jobs.MaxSnoozes-3)
	var runs atomic.Int64
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(context.Context, *jobs.Job[task]) (string, error) { runs.Add(1); return "", jobs.Snooze(-1) })
	})
	_, err := await(t, pool, ref)
	var dead *jobs.DeadError
	if !errors.As(err, &dead) || dead.Attempts != 2 || dead.LastError != "snoozed more than 1000 times, so this counts as a failed attempt: put off for 0s" {
		t.Errorf("got %v", err)
	}
	if got := all[string](t, pool, `SELECT attempt || ' ' || outcome FROM jobgen.job_attempt ORDER BY ended_at`); fmt.Sprint(got) != "[1 snoozed 1 snoozed 1 snoozed 1 failed 2 failed]" || runs.Load() != 5 {
		t.Errorf("%d runs: %v", runs.Load(), got)
	}
}

// One rule for an error that says several things: Permanent before Snooze before RetryIn before the kind's back-off, wherever
// in the error it stands.
func TestOneRuleForErrorsThatSaySeveralThings(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.says")
	spec.Backoff = jobs.Backoff{Form: jobs.Constant, Base: 10 * time.Hour, Max: 10 * time.Hour}
	no := errors.New("no")
	cases := []struct {
		err  error
		want string
	}{
		{no, "failed queued 5-10h"},
		{fmt.Errorf("a: %w", jobs.RetryIn(time.Hour, no)), "failed queued 1h"},
		{errors.Join(no, jobs.RetryIn(time.Hour, no)), "failed queued 1h"},
		{errors.Join(jobs.RetryIn(time.Hour, no), jobs.RetryIn(2*time.Hour, no)), "failed queued 1h"},
		{jobs.RetryIn(time.Hour, jobs.RetryIn(2*time.Hour, no)), "failed queued 1h"},
		{errors.Join(no, fmt.Errorf("b: %w", jobs.Snooze(2*time.Hour))), "snoozed queued 2h"},
		{jobs.RetryIn(time.Hour, jobs.Snooze(2*time.Hour)), "snoozed queued 2h"},
		{errors.Join(jobs.RetryIn(time.Hour, no), jobs.Snooze(2*time.Hour)), "snoozed queued 2h"},
		{errors.Join(no, jobs.Permanent(no)), "failed dead"},
		{jobs.RetryIn(time.Hour, jobs.Permanent(no)), "failed dead"},
		{errors.Join(jobs.Snooze(time.Hour), jobs.RetryIn(time.Hour, no), fmt.Errorf("c: %w", jobs.Permanent(no))), "failed dead"},
		{jobs.Permanent(jobs.Snooze(time.Hour)), "failed dead"},
		{jobs.Permanent(nil), "succeeded"},
		{jobs.RetryIn(time.Hour, nil), "succeeded"},
		{errors.Join(jobs.Permanent(nil), jobs.RetryIn(time.Hour, nil)), "succeeded"},
		{errors.Join(jobs.Permanent(nil), no), "failed queued 5-10h"},
	}
	refs := enqueueMany(t, pool, spec, numbered(len(cases)))
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(_ context.Context, j *jobs.Job[task]) error { return cases[j.Payload.N].err })
	})
	eventually(t, soon, "all have ended", func() bool {
		return one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE status = 'running' OR status = 'queued' AND run_at <= clock_timestamp()`) == 0
	})
	for i, c := range cases {
		got := one[string](t, pool, `SELECT coalesce((SELECT a.outcome || ' ' || j.status || CASE
				WHEN j.status = 'dead' THEN ''
				WHEN round(extract(epoch FROM j.run_at - a.ended_at) / 3600) > 2 THEN ' 5-10h'
				ELSE ' ' || round(extract(epoch FROM j.run_at - a.ended_at) / 3600) || 'h' END
			FROM jobgen.jobs j JOIN jobgen.job_attempt a ON a.job_id = j.id WHERE j.id = $1), 'succeeded')`, refs[i].ID)
		if got != c.want {
			t.Errorf("%d, %q: %s, want %s", i, c.err, got, c.want)
		}
	}
}

// waits is a handler that tells that it runs and waits until its context ends, or until it is let go.
type waits struct {
	running chan int64
	causes  chan error
	release chan struct{}
}

func newWaits() *waits {
	return &waits{running: make(chan int64, 100), causes: make(chan error, 100), release: make(chan struct{})}
}

func (w *waits) wait(ctx context.Context, id int64) error {
	w.running <- id
	select {
	case <-ctx.Done():
		w.causes <- context.Cause(ctx)
		return ctx.Err()
	case <-w.release:
		return nil
	}
}

func TestG2ARunningJobIsCancelledOnWhicheverMachineItRuns(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec, tx := keyed("t.runs"), answering("t.runstx")
	spec.MaxAttempts, tx.MaxAttempts = 1, 1
	h := newWaits()
	handlers := func(r *worker.Registry) {
		worker.Handle(r, spec, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
			err := h.wait(ctx, j.ID)
			if j.Payload.Do == "succeeds" {
				err = nil
			}
			return "ok", err
		})
		worker.HandleTx(r, tx, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			return "", errors.Join(leave(ctx, tx, 1, "rolled back"), h.wait(ctx, j.ID))
		})
	}
	// Three workers, so that as a rule at least one job runs in another than the one that would be asked by mistake.
	for range 3 {
		start(t, pool, worker.Config{Concurrency: 2}, handlers)
	}
	fails := enqueue(t, pool, spec, task{N: 1})
	succeeds := enqueue(t, pool, spec, task{N: 2, Do: "succeeds"})
	transactional := enqueue(t, pool, tx, task{})
	others := enqueueMany(t, pool, spec, []task{{N: 3}, {N: 4}})
	for range 5 {
		receive(t, "they run", h.running)
	}
	for i, ref := range []jobs.Ref[string]{fails, succeeds, transactional} {
		if got := cancel(t, pool, ref, fmt.Sprint("reason ", i)); got != jobs.CancelAsked {
			t.Errorf("answered %q", got)
		}
		cause := receive(t, "its context ends", h.causes)
		if !errors.Is(cause, jobs.ErrCancelled) || !strings.HasSuffix(cause.Error(), fmt.Sprint(": reason ", i)) {
			t.Errorf("the cause is %v", cause)
		}
	}
	cancelled(t, pool, fails, "reason 0")
	if got := archived(t, pool, fails.ID); got != "cancelled after 1 attempts: reason 0" {
		t.Errorf("on record: %s", got)
	}
	if got := story(t, pool, fails.ID); got != "1 cancelled reason 0: context canceled" {
		t.Errorf("on record: %s", got)
	}
	if got, err := await(t, pool, succeeds); got != "ok" || err != nil || archived(t, pool, succeeds.ID) != "" {
		t.Errorf("a success: %q, %v", got, err)
	}
	cancelled(t, pool, transactional, "reason 2")
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 0 {
		t.Errorf("%d effects", n)
	}
	close(h.release)
	for _, ref := range others {
		if got, err := await(t, pool, ref); got != "ok" || err != nil {
			t.Errorf("another job: %q, %v", got, err)
		}
	}
	if again := enqueue(t, pool, spec, task{N: 1}); again.Existing {
		t.Error("the key of a cancelled job is not free")
	}
}

func TestACancellationWhoseNotificationIsLostIsFoundAllTheSame(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.unheard")
	h := newWaits()
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(ctx context.Context, j *jobs.Job[task]) (string, error) { return "", h.wait(ctx, j.ID) })
	})
	ref := enqueue(t, pool, spec, task{})
	receive(t, "it runs", h.running)
	// What Cancel writes, without its notification.
	execute(t, pool, `WITH asked AS (UPDATE jobgen.jobs SET cancel_reason = 'quietly' RETURNING id, worker_id)
		INSERT INTO jobgen.job_cancel (job_id, worker_id, reason) SELECT id, worker_id, 'quietly' FROM asked`)
	if cause := receive(t, "its context ends", h.causes); !errors.Is(cause, jobs.ErrCancelled) {
		t.Errorf("the cause is %v", cause)
	}
	cancelled(t, pool, ref, "quietly")
}

func TestCancelDuringTheGraceOfAShutdown(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.grace")
	h := newWaits()
	w := start(t, pool, worker.Config{Grace: 2 * soon}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(ctx context.Context, j *jobs.Job[task]) (string, error) { return "", h.wait(ctx, j.ID) })
	})
	ref := enqueue(t, pool, spec, task{})
	receive(t, "it runs", h.running)
	w.cancel()
	if got := cancel(t, pool, ref, "now"); got != jobs.CancelAsked {
		t.Errorf("answered %q", got)
	}
	if cause := receive(t, "its context ends", h.causes); !errors.Is(cause, jobs.ErrCancelled) {
		t.Errorf("the cause is %v", cause)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	cancelled(t, pool, ref, "now")
}

// The grace is over, and the handler is cancelled for the shutdown; what was asked meanwhile holds.
func TestCancelOfAHandlerThatAShutdownCancels(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.both")
	running, stopped, release := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{})
	w := start(t, pool, worker.Config{Grace: -1}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
			running <- struct{}{}
			<-ctx.Done()
			stopped <- struct{}{}
			<-release
			return "", ctx.Err()
		})
	})
	ref := enqueue(t, pool, spec, task{})
	receive(t, "it runs", running)
	w.cancel()
	receive(t, "the shutdown cancels it", stopped)
	cancel(t, pool, ref, "as well")
	close(release)
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	cancelled(t, pool, ref, "as well")
}

// What is claimed ahead waits in the process for a slot. It is cancelled there, without being started.
func TestCancelOfWhatWaitsInAProcess(t *testing.T) {
	t.Parallel()
	pool := database(t)
	quick, spec := kind("t.quick"), answering("t.ahead")
	h := newWaits()
	const slots, total = 5, 300
	enqueueMany(t, pool, quick, numbered(2000))
	refs := enqueueMany(t, pool, spec, numbered(total))
	var ran sync.Map
	start(t, pool, worker.Config{Concurrency: slots}, func(r *worker.Registry) {
		worker.HandleNone(r, quick, func(context.Context, *jobs.Job[task]) error { return nil })
		worker.Handle(r, spec, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
			ran.Store(j.ID, true)
			return "", h.wait(ctx, j.ID)
		})
	})
	started := map[int64]bool{}
	for range slots {
		started[receive(t, "they run", h.running)] = true
	}
	asked := 0
	for _, ref := range refs {
		if !started[ref.ID] && cancel(t, pool, ref, "not now") == jobs.CancelAsked {
			asked++
		}
	}
	for _, ref := range refs {
		if !started[ref.ID] {
			cancelled(t, pool, ref, "not now")
			if got := archived(t, pool, ref.ID); got != "cancelled after 0 attempts: not now" {
				t.Errorf("on record: %s", got)
			}
		}
	}
	ran.Range(func(id, _ any) bool {
		if !started[id.(int64)] {
			t.Errorf("job %d ran after it was cancelled", id)
		}
		return true
	})
	t.Logf("%d were waiting in the process", asked)
	close(h.release)
}

// A worker is killed while it runs a job that is to be cancelled: nobody starts it again.
func TestACrashDoesNotLoseACancellation(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.crash")
	ref := enqueue(t, pool, spec, task{})
	gone := one[string](t, pool, `INSERT INTO jobgen.workers (id, lease_until, pid, host, build, queues, kinds, lost_at)
		VALUES (gen_random_uuid(), now(), 1, '', '', '{q}', '{t.crash}', now()) RETURNING id::text`)
	setRunning(t, pool, gone, 1)
	if got := cancel(t, pool, ref, "why"); got != jobs.CancelAsked {
		t.Errorf("answered %q", got)
	}
	w := start(t, pool, worker.Config{Lease: time.Second, Reclaim: 100 * time.Millisecond}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(context.Context, *jobs.Job[task]) (string, error) {
			t.Error("it was started again")
			return "", nil
		})
	})
	cancelled(t, pool, ref, "why")
	if got := all[string](t, pool, `SELECT outcome FROM jobgen.job_attempt ORDER BY ended_at`); !slices.Equal(got, []string{"crashed", "cancelled"}) {
		t.Errorf("on record: %v", got)
	}
	if !w.log.has("job is cancelled") {
		t.Error("it is not in the log")
	}
}

// Nor if there is nothing to start, because the key is another job's by now: that one answers for the key, the record for the job.
func TestG2ACancellationOfWhatIsSupersededIsOnRecord(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]bool{"lease": false, "lock": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			spec := keyed("t.superseded")
			spec.Lock = lock
			ref := enqueue(t, pool, spec, task{})
			if lock { // as it is found after a crash
				execute(t, pool, `INSERT INTO jobgen.job_cancel (job_id, worker_id, reason) VALUES ($1, gen_random_uuid(), 'why')`, ref.ID)
			} else {
				execute(t, pool, `UPDATE jobgen.jobs SET cancel_reason = 'why'`)
			}
			execute(t, pool, `UPDATE jobgen.job_result SET job_id = $1`, ref.ID+1)
			start(t, pool, worker.Config{}, transactional(spec, func(context.Context, pgx.Tx, *jobs.Job[task]) (string, error) {
				t.Error("it was started")
				return "", nil
			}))
			gone(t, pool, ref.ID)
			if got := archived(t, pool, ref.ID); got != "cancelled after 0 attempts: why" {
				t.Errorf("on record: %q", got)
			}
		})
	}
}

// Cancellations race with claims, successes, failures and each other. Whatever wins, each job ends in one way, on record; one
// that Cancel said was cancelled has not run since; and nothing is left behind.
func TestG2CancellationsThatRace(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := keyed("t.races")
	spec.MaxAttempts = 3
	const total = 600
	handler := func(ctx context.Context, j *jobs.Job[task]) (string, error) {
		if err := leave(ctx, pool, j.Payload.N, "ran"); err != nil {
			return "", err
		}
		if j.Payload.N%3 == 0 {
			timer := time.NewTimer(time.Duration(rand.IntN(10)) * time.Millisecond)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		}
		switch {
		case j.Payload.N%5 == 0 && j.Attempt == 1:
			return "", errors.New("no")
		case j.Payload.N%7 == 0 && rand.IntN(2) == 0:
			return "", jobs.Snooze(0)
		}
		return "ok", nil
	}
	refs := make([]jobs.Ref[string], total)
	answers := make([][]jobs.Cancellation, total)
	var all sync.WaitGroup
	for range 2 {
		start(t, pool, worker.Config{Concurrency: 10}, func(r *worker.Registry) { worker.Handle(r, spec, handler) })
	}
	for part := range 6 {
		all.Go(func() {
			for i := part; i < total; i += 6 {
				refs[i] = enqueue(t, pool, spec, task{N: i})
				for range rand.IntN(3) {
					got := cancel(t, pool, refs[i], "raced")
					var ran int
					if got == jobs.Cancelled {
						ran = one[int](t, pool, `SELECT count(*) FROM effect WHERE n = $1`, i)
						execute(t, pool, `INSERT INTO effect (n, what) VALUES ($1, 'ran before: ' || $2::int)`, i, ran)
					}
					answers[i] = append(answers[i], got)
				}
			}
		})
	}
	all.Wait()
	drained(t, pool, soon)
	succeeded, ended := 0, 0
	for i, ref := range refs {
		_, err := await(t, pool, ref)
		var c *jobs.CancelledError
		switch record := archived(t, pool, ref.ID); {
		case err == nil && record == "" && !slices.Contains(answers[i], jobs.Cancelled) && !slices.Contains(answers[i], jobs.CancelledBefore):
			succeeded++
		case errors.As(err, &c) && record != "" && len(answers[i]) > 0 && !slices.Contains(answers[i], jobs.CancelTooLate):
			ended++
		default:
			t.Errorf("job %d: %v, on record %q, answers %v", i, err, record, answers[i])
		}
	}
	if succeeded == 0 || ended == 0 {
		t.Errorf("%d succeeded and %d were cancelled: nothing raced", succeeded, ended)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect e JOIN effect b ON b.n = e.n AND b.what LIKE 'ran before%' AND b.id < e.id AND e.what = 'ran'`); n != 0 {
		t.Errorf("%d jobs ran after Cancel had said that they were cancelled", n)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_result WHERE finished_at IS NULL`); n != 0 {
		t.Errorf("%d keys are held by jobs that were cancelled", n)
	}
	t.Logf("%d succeeded, %d were cancelled", succeeded, ended)
}

func TestADeadlineThatHasPassedEndsAJobThatHasNotStarted(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := keyed("t.late")
	var runs atomic.Int64
	past := one[time.Time](t, pool, `SELECT now() - interval '1 hour'`)
	late := enqueue(t, pool, spec, task{N: 1}, jobs.Deadline(past))
	intime := enqueue(t, pool, spec, task{N: 2}, jobs.Within(time.Hour))
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
			if runs.Add(1); j.Payload.N != 2 {
				t.Errorf("job %d ran", j.Payload.N)
			}
			end, has := ctx.Deadline()
			if left := time.Until(end); !has || left < 59*time.Minute || left > time.Hour {
				t.Errorf("%s are left", left)
			}
			return "", nil
		})
	})
	cancelled(t, pool, late, "its deadline has passed")
	if got := archived(t, pool, late.ID); got != "cancelled after 0 attempts: its deadline has passed" {
		t.Errorf("on record: %s", got)
	}
	if got := story(t, pool, late.ID); got != "0 cancelled its deadline has passed" {
		t.Errorf("on record: %s", got)
	}
	if _, err := await(t, pool, intime); err != nil {
		t.Error(err)
	}
	if again := enqueue(t, pool, spec, task{N: 1}, jobs.In(time.Hour)); again.Existing {
		t.Error("the key is not free")
	}
}

func TestARunningHandlerHasItsJobsDeadline(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec, tx, timed := answering("t.until"), answering("t.untiltx"), answering("t.timed")
	spec.MaxAttempts, spec.Timeout = 1, time.Hour
	tx.MaxAttempts = 1
	timed.MaxAttempts, timed.Timeout = 1, 50*time.Millisecond
	h := newWaits()
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
			err := h.wait(ctx, j.ID)
			if j.Payload.Do == "succeeds" {
				err = nil
			}
			return "late but right", err
		})
		worker.HandleTx(r, tx, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			return "", errors.Join(leave(ctx, tx, 1, "rolled back"), h.wait(ctx, j.ID))
		})
		worker.Handle(r, timed, func(ctx context.Context, j *jobs.Job[task]) (string, error) { return "", h.wait(ctx, j.ID) })
	})
	// runs enqueues until a job has started before its deadline, which a busy machine may not manage at once.
	runs := func(s *jobs.Spec[task, string], do string) (jobs.Ref[string], string, error) {
		for within := 200 * time.Millisecond; ; within *= 2 {
			ref := enqueue(t, pool, s, task{Do: do}, jobs.Within(within))
			got, err := await(t, pool, ref)
			if !strings.HasPrefix(archived(t, pool, ref.ID), "cancelled after 0 attempts") {
				return ref, got, err
			}
		}
	}
	for _, s := range []*jobs.Spec[task, string]{spec, tx} {
		ref, _, _ := runs(s, "")
		cause := receive(t, "its context ends", h.causes)
		if cause != jobs.ErrDeadline || !errors.Is(cause, context.DeadlineExceeded) {
			t.Errorf("the cause is %v", cause)
		}
		cancelled(t, pool, ref, "its deadline has passed")
		if got := story(t, pool, ref.ID); !strings.HasPrefix(got, "1 cancelled its deadline has passed: the job's deadline has passed: ") {
			t.Errorf("on record: %s", got)
		}
	}
	if _, got, err := runs(spec, "succeeds"); got != "late but right" || err != nil {
		t.Errorf("a success after the deadline: %q, %v", got, err)
	}
	if cause := receive(t, "its context ends", h.causes); cause != jobs.ErrDeadline {
		t.Errorf("the cause is %v", cause)
	}
	// The kind's timeout is earlier: it is the cause, and a failure like any other.
	_, err := await(t, pool, enqueue(t, pool, timed, task{}, jobs.Within(time.Hour)))
	var dead *jobs.DeadError
	if cause := receive(t, "its context ends", h.causes); errors.Is(cause, jobs.ErrDeadline) || !errors.As(err, &dead) {
		t.Errorf("the cause is %v; %v", cause, err)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 0 {
		t.Errorf("%d effects", n)
	}
}

func TestARetryThatWouldComeAfterTheDeadlineIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.again")
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(_ context.Context, j *jobs.Job[task]) (string, error) {
			switch {
			case j.Payload.Do == "snooze":
				return "", jobs.Snooze(2 * time.Hour)
			case j.Payload.Do == "in time" && j.Attempt == 2:
				return "second", nil
			case j.Payload.Do == "in time":
				return "", errors.New("no")
			}
			return "", jobs.RetryIn(2*time.Hour, errors.New("no"))
		})
	})
	for what, text := range map[string]string{"retry": "no", "snooze": "put off for 2h0m0s"} {
		ref := enqueue(t, pool, spec, task{Do: what}, jobs.Within(time.Hour))
		const reason = "its next attempt would come after its deadline"
		cancelled(t, pool, ref, reason)
		if got := story(t, pool, ref.ID); got != "1 cancelled "+reason+": "+text {
			t.Errorf("on record: %s", got)
		}
	}
	if got, err := await(t, pool, enqueue(t, pool, spec, task{Do: "in time"}, jobs.Within(time.Hour))); got != "second" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
