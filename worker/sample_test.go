package worker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/pgproxy"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/worker"
)

// counted is what the samples say of a kind: succeeded, failed, of these timed out, snoozed, cancelled, died; and attempts.
func counted(t testing.TB, db jobs.DB, kind string) string {
	t.Helper()
	return one[string](t, db, `SELECT concat_ws(' ', sum(succeeded), sum(failed), sum(timed_out), sum(snoozed), sum(cancelled), sum(died), '/',
		(SELECT coalesce(sum(n), 0) FROM jobgen.samples x, unnest(x.run_times) n WHERE x.kind = $1)) FROM jobgen.samples WHERE kind = $1`, kind)
}

// does makes a handler that does what the task says: what fails has failed for good, or the first time only.
func does() func(ctx context.Context, j *jobs.Job[task]) error {
	var seen sync.Map
	return func(ctx context.Context, j *jobs.Job[task]) error {
		_, again := seen.LoadOrStore(j.ID, true)
		return do(ctx, j, again)
	}
}

func do(ctx context.Context, j *jobs.Job[task], again bool) error {
	switch j.Payload.Do {
	case "fail":
		return jobs.Permanent(errors.New("no"))
	case "again":
		if !again {
			return errors.New("not yet")
		}
	case "snooze":
		if !again {
			return jobs.Snooze(time.Millisecond)
		}
	case "late":
		if !again {
			<-ctx.Done()
			return ctx.Err()
		}
	}
	return nil
}

// Each outcome is counted once the database has it, whatever way the kind is held. A worker that stops writes what it has counted.
func TestWhatBecomesOfJobsIsCounted(t *testing.T) {
	t.Parallel()
	pool := database(t)
	lease, tx, lock := answering("t.lease"), answering("t.tx"), answering("t.lock")
	lock.Lock = true
	for _, s := range []*jobs.Spec[task, string]{lease, tx, lock} {
		s.Timeout = 200 * time.Millisecond
	}
	does := does()
	w := start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, lease, func(ctx context.Context, j *jobs.Job[task]) (string, error) { return "", does(ctx, j) })
		for _, s := range []*jobs.Spec[task, string]{tx, lock} {
			worker.HandleTx(r, s, func(ctx context.Context, _ pgx.Tx, j *jobs.Job[task]) (string, error) { return "", does(ctx, j) })
		}
	})
	for _, s := range []*jobs.Spec[task, string]{lease, tx, lock} {
		for _, do := range []string{"", "", "fail", "again", "snooze", "late"} {
			enqueue(t, pool, s, task{Do: do})
		}
		enqueue(t, pool, s, task{}, jobs.Deadline(time.Unix(1, 0)))
	}
	eventually(t, soon, "all have ended", func() bool {
		return one[bool](t, pool, `SELECT count(*) = 3 AND bool_and(status = 'dead') FROM jobgen.jobs`)
	})
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*jobs.Spec[task, string]{lease, tx, lock} {
		if got := counted(t, pool, s.Kind); got != "5 3 1 1 1 1 / 9" {
			t.Errorf("%s: %s", s.Kind, got)
		}
	}
	if us := one[int64](t, pool, `SELECT min(run_us) FROM jobgen.samples WHERE run_us > 0`); us < 200_000 {
		t.Errorf("the attempts of a kind ran for %d µs, and one of them was ended after 200 ms", us)
	}
}

// Outcomes that change nothing are not counted: somebody else will count what becomes of the job.
func TestG4AStaleOutcomeIsNotCounted(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.stale")
	h := newWaits()
	w := start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(ctx context.Context, j *jobs.Job[task]) (string, error) { return "", h.wait(ctx, j.ID) })
	})
	enqueue(t, pool, spec, task{})
	receive(t, "it runs", h.running)
	execute(t, pool, `UPDATE jobgen.jobs SET status = 'queued', worker_id = NULL, fence = 0, attempt = 0, run_at = now() + interval '1 hour'`)
	close(h.release)
	eventually(t, soon, "the outcome came too late", func() bool { return w.log.has("changes nothing") })
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	if got := counted(t, pool, spec.Kind); got != "/ 0" {
		t.Error(got)
	}
}

// minutely starts a worker in a database whose clock stands in a minute's middle, and gives what lets a minute pass: it returns once
// the worker has looked and written its counts.
func minutely(t *testing.T, pool *pgxpool.Pool, through *pgxpool.Pool, register ...func(*worker.Registry)) (w *running, clock *jobtest.Clock, pass func()) {
	t.Helper()
	clock = jobtest.NewClock(t, pool)
	now := clock.Now()
	clock.Advance(now.Truncate(time.Minute).Add(90 * time.Second).Sub(now))
	through.Reset()
	watched, tap := tapped(t, through)
	w = start(t, watched, worker.Config{Lease: 2 * time.Second}, register...)
	eventually(t, soon, "the worker has looked", func() bool { return len(tap.sent("Sample")) > 0 })
	return w, clock, func() {
		t.Helper()
		n := len(tap.sent("Sample"))
		clock.Advance(time.Minute)
		eventually(t, soon, "the worker has written its counts", func() bool { return len(tap.sent("Sample")) > n })
	}
}

// Rates in and out, levels and direction are right: of jobs that are run at once, and of those that wait for minutes.
func TestAMinutesFlowsAreCounted(t *testing.T) {
	t.Parallel()
	pool := database(t)
	quick, slow := kind("t.quick"), kind("t.slow")
	_, _, pass := minutely(t, pool, pool, stampers(pool, quick, slow))
	pass()
	pass()
	for range 4 {
		enqueueMany(t, pool, quick, numbered(20))
		enqueueMany(t, pool, slow, numbered(10), jobs.In(150*time.Second))
		eventually(t, soon, "the quick ones are done", func() bool {
			return one[bool](t, pool, `SELECT count(*) = 0 FROM jobgen.jobs WHERE run_at <= clock_timestamp()`)
		})
		pass()
	}
	for range 4 {
		pass()
	}
	drained(t, pool, soon)
	pass()
	eventually(t, soon, "all are counted", func() bool {
		return one[int](t, pool, `SELECT coalesce(sum(succeeded), 0)::int FROM jobgen.samples`) == 120
	})
	for kind, want := range map[string]string{"t.quick": "80 80", "t.slow": "40 40"} {
		if got := one[string](t, pool, `SELECT sum(arrived) || ' ' || sum(succeeded) FROM jobgen.samples WHERE kind = $1`, kind); got != want {
			t.Errorf("%s: %s arrived and succeeded, want %s", kind, got, want)
		}
	}
	// The levels are there for each minute.
	if got := one[int](t, pool, `SELECT max(scheduled + ready)::int FROM jobgen.samples WHERE kind = 't.slow'`); got < 20 || got > 40 {
		t.Errorf("at most %d were seen to wait", got)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.looks`); n < 10 {
		t.Errorf("%d looks", n)
	}
}

// While the database takes no counts they are kept, and are not counted twice. Those of which the answer is lost are.
func TestCountsThatCouldNotBeWrittenGoWithThoseOfTheNextMinute(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.kept")
	slow, network := proxied(t, pool)
	w, _, pass := minutely(t, pool, slow, stampers(pool, spec))
	work := func(n int) {
		enqueueMany(t, pool, spec, numbered(n))
		drained(t, pool, soon)
	}
	execute(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.succeeded > 0 THEN RAISE 'not now'; END IF; RETURN NEW; END $$`)
	execute(t, pool, `CREATE TRIGGER refuse BEFORE INSERT ON jobgen.samples FOR EACH ROW EXECUTE FUNCTION refuse()`)
	work(3)
	pass()
	eventually(t, soon, "it could not write", func() bool { return w.log.has("not now") })
	execute(t, pool, `DROP TRIGGER refuse ON jobgen.samples`)
	work(2)
	pass()
	eventually(t, soon, "it has written all", func() bool { return counted(t, pool, spec.Kind) == "5 0 0 0 0 0 / 5" })
	lost := network.On(statement("Sample"), 1, pgproxy.CutDuring)
	work(4)
	pass()
	receive(t, "it has written, and the answer is lost", lost.Done())
	work(1)
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	if got := counted(t, pool, spec.Kind); got != "10 0 0 0 0 0 / 10" {
		t.Error(got)
	}
}

// A fleet takes one look a minute, whoever of it is there.
func TestAFleetLooksOnceAMinute(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.fleet")
	first, clock, pass := minutely(t, pool, pool, stampers(pool, spec))
	for range 3 {
		start(t, pool, worker.Config{Lease: 2 * time.Second}, stampers(pool, spec))
	}
	eventually(t, soon, "four workers are there", func() bool { return one[int](t, pool, `SELECT count(*) FROM jobgen.workers`) == 4 })
	pass()
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	looks := func() int { return one[int](t, pool, `SELECT count(*) FROM jobgen.looks`) }
	n := looks()
	clock.Advance(time.Minute)
	eventually(t, soon, "another one looks", func() bool { return looks() == n+1 })
	if got := one[string](t, pool, `SELECT concat(count(*), ' ', count(DISTINCT minute)) FROM jobgen.looks`); got != fmt.Sprint(n+1, n+1) {
		t.Error(got)
	}
}
