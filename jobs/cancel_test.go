package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

// cancelled wants the answer of a cancellation.
func (f *fixture) cancelled(want jobs.Cancellation) func(jobs.Cancellation, error) {
	f.Helper()
	return func(got jobs.Cancellation, err error) {
		f.Helper()
		if got != want || err != nil {
			f.Errorf("cancel: %q, %v; want %q", got, err, want)
		}
	}
}

// awaits wants Await to say that the job was cancelled.
func awaits[R any](f *fixture, ref jobs.Ref[R], reason string) {
	f.Helper()
	_, err := ref.Await(f.ctx(), f.pool)
	var cancelled *jobs.CancelledError
	if !errors.As(err, &cancelled) || cancelled.ID != ref.ID || cancelled.Kind != ref.Kind || cancelled.Reason != reason {
		f.Errorf("await: %v", err)
	}
}

func TestG2ACancelledJobIsOnRecordAndItsKeyIsFree(t *testing.T) {
	t.Parallel()
	f := open(t)
	ref, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a", Note: "first"}, jobs.Headers(map[string]string{"h": "1"}))
	f.no(err)
	f.cancelled(jobs.Cancelled)(ref.Cancel(f.ctx(), f.pool, "customer left"))
	f.expect(0, "SELECT count(*) FROM jobgen.jobs")
	f.expect(0, "SELECT count(*) FROM jobgen.job_result")
	f.expect(0, "SELECT count(*) FROM jobgen.job_cancel")
	f.expect(fmt.Sprintf("%d cancelled q test.keyed 1 customer left first 1 0", ref.ID),
		`SELECT concat_ws(' ', job_id, status, queue, kind, version, reason, payload->>'note', headers->>'h', attempt) FROM jobgen.job_archive WHERE key IS NOT NULL`)
	f.expect(true, "SELECT expires_at - finished_at BETWEEN interval '29 days 23 hours' AND interval '30 days 1 hour' FROM jobgen.job_archive")
	f.expect(fmt.Sprintf("%d cancelled customer left 0 0", ref.ID), `SELECT concat_ws(' ', job_id, outcome, error, attempt, fence) FROM jobgen.job_attempt`)
	awaits(f, ref, "customer left")
	awaits(f, jobs.RefTo(keyed, ref.ID), "customer left")

	// The key is free, and the next job with it is another: awaiting the first still tells what became of the first.
	again, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"})
	f.no(err)
	if again.Existing || again.ID == ref.ID {
		t.Errorf("enqueued again: %+v", again)
	}
	awaits(f, ref, "customer left")
	f.finish(f.one(f.claim(9)), `{"total": 2}`, time.Hour)
	if r, err := again.Await(f.ctx(), f.pool); err != nil || r.Total != 2 {
		t.Errorf("the second: %+v, %v", r, err)
	}
}

func TestCancelSaysWhatItFound(t *testing.T) {
	t.Parallel()
	f := open(t)
	add := func(s *jobs.Spec[order, receipt], id string, opts ...jobs.Option) jobs.Ref[receipt] {
		t.Helper()
		ref, err := jobs.Enqueue(f.ctx(), f.pool, s, order{ID: id}, opts...)
		f.no(err)
		return ref
	}
	running := add(keyed, "running")
	c := f.one(f.claim(1))
	scheduled := add(returned, "", jobs.In(time.Hour))
	done := add(returned, "")
	f.finish(f.one(f.claim(1)), `{}`, time.Hour)
	expired := add(keyed, "done by key")
	f.finish(f.one(f.claim(1)), `{}`, time.Hour)
	dead := add(keyed, "dead")
	f.die(f.one(f.claim(1)), "no")
	traceless, err := jobs.Enqueue(f.ctx(), f.pool, plain, order{})
	f.no(err)
	c2 := f.one(f.claim(1))
	_, err = f.store.Complete(f.ctx(), f.worker.ID, []engine.Success{{Hold: hold(c2)}})
	f.no(err)

	f.cancelled(jobs.CancelAsked)(running.Cancel(f.ctx(), f.pool, "first"))
	f.cancelled(jobs.CancelAsked)(running.Cancel(f.ctx(), f.pool, "second"))
	f.expect("first", "SELECT cancel_reason FROM jobgen.jobs WHERE id = $1", running.ID)
	f.cancelled(jobs.Cancelled)(jobs.Cancel(f.ctx(), f.pool, scheduled.ID, ""))
	f.cancelled(jobs.CancelledBefore)(scheduled.Cancel(f.ctx(), f.pool, "again"))
	awaits(f, scheduled, "")
	f.cancelled(jobs.CancelTooLate)(done.Cancel(f.ctx(), f.pool, ""))
	f.cancelled(jobs.CancelTooLate)(jobs.Cancel(f.ctx(), f.pool, done.ID, ""))
	f.cancelled(jobs.CancelTooLate)(expired.Cancel(f.ctx(), f.pool, ""))
	f.cancelled(jobs.CancelTooLate)(jobs.Cancel(f.ctx(), f.pool, expired.ID, ""))
	f.cancelled(jobs.Cancelled)(dead.Cancel(f.ctx(), f.pool, "given up"))
	awaits(f, dead, "given up")
	for what, cancel := range map[string]func() (jobs.Cancellation, error){
		"a job that never was":     func() (jobs.Cancellation, error) { return jobs.Cancel(f.ctx(), f.pool, 12345, "") },
		"a success on no record":   func() (jobs.Cancellation, error) { return traceless.Cancel(f.ctx(), f.pool, "") },
		"a job of another kind":    func() (jobs.Cancellation, error) { return jobs.RefTo(returned, running.ID).Cancel(f.ctx(), f.pool, "") },
		"a result of another kind": func() (jobs.Cancellation, error) { return jobs.RefTo(keyed, done.ID).Cancel(f.ctx(), f.pool, "") },
	} {
		if got, err := cancel(); got != "" || !errors.Is(err, jobs.ErrNoRecord) {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
	// Asked, and the handler succeeded all the same: a success.
	f.finish(c, `{"total": 7}`, time.Hour)
	if r, err := running.Await(f.ctx(), f.pool); err != nil || r.Total != 7 {
		t.Errorf("the success of a job that was to be cancelled: %+v, %v", r, err)
	}
	f.cancelled(jobs.CancelTooLate)(running.Cancel(f.ctx(), f.pool, ""))
}

func TestG1CancelTakesEffectWithItsTransaction(t *testing.T) {
	t.Parallel()
	f := open(t)
	waiting, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"})
	f.no(err)
	f.claim(1)
	running := waiting
	waiting, err = jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "b"})
	f.no(err)
	both := func(tx pgx.Tx) {
		f.cancelled(jobs.CancelAsked)(running.Cancel(f.ctx(), tx, ""))
		f.cancelled(jobs.Cancelled)(waiting.Cancel(f.ctx(), tx, ""))
		f.cancelled(jobs.CancelledBefore)(waiting.Cancel(f.ctx(), tx, ""))
	}
	tx := f.begin(pgx.TxOptions{})
	both(tx)
	if got := f.claim(9); len(got) != 0 {
		t.Errorf("claimed while a cancellation is not committed: %+v", got)
	}
	f.no(tx.Rollback(f.ctx()))
	f.expect("running queued", "SELECT string_agg(status, ' ' ORDER BY id) FROM jobgen.jobs WHERE cancel_reason IS NULL")
	f.expect(2, "SELECT count(*) FROM jobgen.job_result")
	f.expect(0, "SELECT (SELECT count(*) FROM jobgen.job_archive) + (SELECT count(*) FROM jobgen.job_cancel) + (SELECT count(*) FROM jobgen.job_attempt)")

	// Another cancellation of the same job waits for this one, and so does an enqueue with its key.
	tx = f.begin(pgx.TxOptions{})
	both(tx)
	second, enqueued := make(chan error, 1), make(chan error, 1)
	go func() {
		got, err := waiting.Cancel(f.ctx(), f.pool, "")
		if err == nil && got != jobs.CancelledBefore {
			err = fmt.Errorf("answered %q", got)
		}
		second <- err
	}()
	go func() {
		ref, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "b"})
		if err == nil && (ref.Existing || ref.ID == waiting.ID) {
			err = fmt.Errorf("got %+v", ref)
		}
		enqueued <- err
	}()
	f.until(`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`)
	f.no(tx.Commit(f.ctx()))
	f.no(<-second)
	f.no(<-enqueued)
	f.expect("running queued", "SELECT string_agg(status, ' ' ORDER BY id) FROM jobgen.jobs")
}

// A job owned by lock is queued, its row locked by the transaction that runs it; job_start tells by which worker.
func TestCancelOfAJobOwnedByLockAsksItsWorkerWithoutWaiting(t *testing.T) {
	t.Parallel()
	f := open(t)
	ref, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"})
	f.no(err)
	crashed, owner := uuid.New(), uuid.New()
	f.exec("INSERT INTO jobgen.job_start VALUES ($1, $2, now() - interval '1 hour'), ($1, $3, now())", ref.ID, crashed, owner)
	listen := f.connect()
	_, err = listen.Exec(f.ctx(), "LISTEN "+pgx.Identifier{"jobgen_" + owner.String()}.Sanitize())
	f.no(err)
	tx := f.begin(pgx.TxOptions{})
	_, err = tx.Exec(f.ctx(), "SELECT FROM jobgen.jobs WHERE id = $1 FOR UPDATE", ref.ID)
	f.no(err)
	for range 2 {
		f.cancelled(jobs.CancelAsked)(ref.Cancel(f.ctx(), f.pool, "why"))
		n, err := listen.WaitForNotification(f.ctx())
		f.no(err)
		if n.Payload != "control" {
			t.Errorf("notified with %q", n.Payload)
		}
	}
	f.expect(fmt.Sprintf("%d %s why", ref.ID, owner), "SELECT concat_ws(' ', job_id, worker_id, reason) FROM jobgen.job_cancel")
	// It rolls back and takes its start away: the next purge finds that nobody has heard, and cancels it.
	_, err = f.store.Purge(f.ctx(), engine.Keep{Attempts: time.Hour, Samples: time.Hour})
	f.no(err)
	f.expect(1, "SELECT count(*) FROM jobgen.job_cancel")
	f.exec("DELETE FROM jobgen.job_start")
	_, err = f.store.Purge(f.ctx(), engine.Keep{Attempts: time.Hour, Samples: time.Hour})
	f.no(err)
	f.expect(1, "SELECT count(*) FROM jobgen.job_cancel") // still locked: for the next purge
	f.no(tx.Rollback(f.ctx()))
	_, err = f.store.Purge(f.ctx(), engine.Keep{Attempts: time.Hour, Samples: time.Hour})
	f.no(err)
	f.expect(0, "SELECT (SELECT count(*) FROM jobgen.jobs) + (SELECT count(*) FROM jobgen.job_cancel)")
	awaits(f, ref, "why")
}

// The worker that was told dies, and another runs the job before it could see that: the next purge tells that one.
func TestCancelReachesWhoeverRunsAJobOwnedByLockNow(t *testing.T) {
	t.Parallel()
	f := open(t)
	ref, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"})
	f.no(err)
	crashed, owner := uuid.New(), uuid.New()
	f.exec("INSERT INTO jobgen.workers (id, lease_until, pid, host, build, queues, kinds) SELECT unnest($1::uuid[]), now() + interval '1 hour', 1, '', '', '{}', '{}'", []uuid.UUID{crashed, owner})
	f.exec("INSERT INTO jobgen.job_start VALUES ($1, $2, now() - interval '1 hour')", ref.ID, crashed)
	tx := f.begin(pgx.TxOptions{})
	_, err = tx.Exec(f.ctx(), "SELECT FROM jobgen.jobs WHERE id = $1 FOR UPDATE", ref.ID)
	f.no(err)
	f.cancelled(jobs.CancelAsked)(ref.Cancel(f.ctx(), f.pool, "why"))
	told := func(want uuid.UUID) {
		t.Helper()
		_, err = f.store.Purge(f.ctx(), engine.Keep{Attempts: time.Hour, Samples: time.Hour})
		f.no(err)
		f.expect(want.String()+" why", "SELECT concat_ws(' ', worker_id, reason) FROM jobgen.job_cancel")
	}
	told(crashed) // which may live
	f.exec("INSERT INTO jobgen.job_start VALUES ($1, $2, now())", ref.ID, owner)
	told(owner)
	// That one dies as well.
	f.exec("UPDATE jobgen.workers SET lost_at = now()")
	f.no(tx.Rollback(f.ctx()))
	_, err = f.store.Purge(f.ctx(), engine.Keep{Attempts: time.Hour, Samples: time.Hour})
	f.no(err)
	awaits(f, ref, "why")
}

func TestCancelOfARowThatSomebodyHasLocked(t *testing.T) {
	t.Parallel()
	f := open(t)
	ref, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"})
	f.no(err)
	tx := f.begin(pgx.TxOptions{})
	_, err = tx.Exec(f.ctx(), "SELECT FROM jobgen.jobs WHERE id = $1 FOR UPDATE", ref.ID)
	f.no(err)
	if _, err := ref.Cancel(f.ctx(), f.pool, ""); !errors.Is(err, engine.ErrLocked) || !strings.Contains(err.Error(), "try again") {
		t.Errorf("locked for long: %v", err)
	}
	ctx, cancel := context.WithCancel(f.ctx())
	cancel()
	if _, err := ref.Cancel(ctx, f.pool, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: %v", err)
	}
	f.no(tx.Rollback(f.ctx()))
	f.cancelled(jobs.Cancelled)(ref.Cancel(f.ctx(), f.pool, ""))
}

func TestAReasonIsMadeStorable(t *testing.T) {
	t.Parallel()
	f := open(t)
	for _, reason := range []string{"nul \x00 byte", "\xff", strings.Repeat("long ", 10_000), "'; DROP TABLE jobgen.jobs"} {
		ref, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"})
		f.no(err)
		f.cancelled(jobs.Cancelled)(ref.Cancel(f.ctx(), (&jobs.Producer{}).On(f.pool), reason))
		if n := len(value[string](t, f.pool, "SELECT reason FROM jobgen.job_archive WHERE job_id = $1", ref.ID)); n == 0 || n > 1100 {
			t.Errorf("%.20q: %d bytes are on record", reason, n)
		}
	}
}

func TestDeadlinesAreCountedByTheDatabase(t *testing.T) {
	t.Parallel()
	f := open(t)
	future := value[time.Time](t, f.pool, "SELECT date_trunc('second', now()) + interval '3 hours'")
	about := func(s *jobs.Spec[order, receipt], want time.Duration, opts ...jobs.Option) {
		t.Helper()
		refs, err := jobs.EnqueueMany(f.ctx(), f.pool, s, []order{{ID: uuid.NewString()}, {ID: uuid.NewString()}}, opts...)
		f.no(err)
		ref, err := jobs.Enqueue(f.ctx(), f.pool, s, order{ID: uuid.NewString()}, opts...)
		f.no(err)
		for _, r := range append(refs, ref) {
			if got := time.Duration(value[float64](t, f.pool, "SELECT extract(epoch FROM deadline - created_at)::float8 FROM jobgen.jobs WHERE id = $1", r.ID) * 1e9); (got - want).Abs() > 5*time.Second {
				t.Errorf("%s: the deadline is %s after the enqueue, want %s", s.Kind, got, want)
			}
		}
	}
	left := time.Duration(value[float64](t, f.pool, "SELECT extract(epoch FROM $1 - clock_timestamp())::float8", future) * 1e9)
	for _, s := range []*jobs.Spec[order, receipt]{keyed, returned} {
		about(s, time.Hour, jobs.Within(time.Hour))
		about(s, left, jobs.Deadline(future))
		about(s, time.Hour, jobs.Within(time.Hour), jobs.Deadline(future))
		about(s, left, jobs.Within(4*time.Hour), jobs.Deadline(future))
		about(s, -time.Hour, jobs.Deadline(future.Add(-left-time.Hour)))
	}
	f.exec("DELETE FROM jobgen.jobs")
	ref, err := jobs.Enqueue(f.ctx(), f.pool, returned, order{}, jobs.Deadline(time.Time{}))
	f.no(err)
	f.expect(true, "SELECT deadline IS NULL FROM jobgen.jobs WHERE id = $1", ref.ID)
}

func TestDeadlinesThatCannotBeMeantAreRefused(t *testing.T) {
	t.Parallel()
	f := open(t)
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for what, opts := range map[string][]jobs.Option{
		"zero":                {jobs.Within(0)},
		"negative":            {jobs.Within(-time.Second)},
		"most negative":       {jobs.Within(math.MinInt64)},
		"over a century":      {jobs.Within(math.MaxInt64)},
		"a far year":          {jobs.Deadline(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC))},
		"before the delay":    {jobs.Within(time.Hour), jobs.In(2 * time.Hour)},
		"with the delay":      {jobs.Within(time.Hour), jobs.In(time.Hour)},
		"before it is due":    {jobs.Deadline(at), jobs.At(at.Add(time.Second))},
		"when it becomes due": {jobs.Deadline(at), jobs.At(at)},
	} {
		_, err := jobs.Enqueue(f.ctx(), f.pool, returned, order{}, opts...)
		var invalid *jobs.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "deadline" {
			t.Errorf("%s: %v", what, err)
		}
	}
	f.expect(0, "SELECT count(*) FROM jobgen.jobs")
}

// The new job of a dead one's key starts afresh: with its own deadline, and nothing of what was asked about the old one.
func TestARevivedJobHasItsOwnDeadline(t *testing.T) {
	t.Parallel()
	f := open(t)
	ref, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"}, jobs.Within(time.Hour))
	f.no(err)
	f.die(f.one(f.claim(1)), "no")
	f.exec("UPDATE jobgen.jobs SET snoozes = 3, cancel_reason = 'by an old worker'")
	again, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"})
	f.no(err)
	if again.ID != ref.ID {
		t.Fatalf("not revived: %+v", again)
	}
	f.expect(true, "SELECT deadline IS NULL AND snoozes IS NULL AND cancel_reason IS NULL FROM jobgen.jobs")
}
