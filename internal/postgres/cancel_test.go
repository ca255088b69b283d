package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

func (f *fixture) ask(id int64, reason string) {
	f.Helper()
	answer, err := postgres.Producer{DB: f.pool}.Cancel(f.ctx(), nil, id, reason)
	if err != nil || answer != engine.StatusAsked {
		f.Fatalf("cancel: %q, %v", answer, err)
	}
}

func (f *fixture) fail(w *engine.Worker, failures ...engine.Failure) []engine.Failed {
	f.Helper()
	got, err := f.store.Fail(f.ctx(), w.ID, failures)
	if err != nil {
		f.Fatal(err)
	}
	return got
}

func (f *fixture) end(w *engine.Worker, holds ...engine.Cancelled) []engine.Cancel {
	f.Helper()
	got, err := f.store.Cancel(f.ctx(), w.ID, holds, engine.KeepCancelled)
	if err != nil {
		f.Fatal(err)
	}
	return got
}

// One statement stores failures of all forms, each with what belongs to it.
func TestFailuresOfAllFormsInOneStatement(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.worker(time.Hour)
	f.enqueue(6)
	held := f.claim(w, 6)
	f.exec("UPDATE jobgen.jobs SET snoozes = $2 WHERE id = $1", held[2].ID, engine.MaxSnoozes-1)
	f.exec("UPDATE jobgen.jobs SET snoozes = $2 WHERE id = $1", held[3].ID, engine.MaxSnoozes)
	f.exec("UPDATE jobgen.jobs SET snoozes = $2, max_attempts = 1 WHERE id = $1", held[4].ID, engine.MaxSnoozes)
	f.exec("UPDATE jobgen.jobs SET last_error = 'before', max_attempts = 1 WHERE id = $1", held[1].ID)
	failures := []engine.Failure{
		{Permanent: true, Error: "dead"}, {Snooze: true, Delay: time.Hour, Error: "first"}, {Snooze: true, Error: "last"},
		{Snooze: true, Delay: time.Hour, Error: "too often"}, {Snooze: true, Error: "too often, and no attempt left"}, {Delay: time.Minute, Error: "again"},
	}
	for i := range failures {
		failures[i].Hold = engine.Hold{ID: held[i].ID, Fence: held[i].Fence}
	}
	failures = append(failures, engine.Failure{Hold: engine.Hold{ID: held[0].ID, Fence: held[0].Fence - 1}, Error: "stale"})
	got := map[int64]engine.Failed{}
	for _, a := range f.fail(w, failures...) {
		got[a.ID] = a
	}
	limit := fmt.Sprintf("snoozed more than %d times, so this counts as a failed attempt: ", engine.MaxSnoozes)
	for i, want := range []struct {
		dead, snoozed bool
		row, attempt  string
	}{
		{true, false, "dead 1 - dead 0", "1 failed dead"},
		{false, true, "queued 0 1 before 60", "1 snoozed first"},
		{false, true, fmt.Sprintf("queued 0 %d - 0", engine.MaxSnoozes), "1 snoozed last"},
		{false, false, fmt.Sprintf("queued 1 %d %stoo often 60", engine.MaxSnoozes+1, limit), "1 failed " + limit + "too often"},
		{true, false, fmt.Sprintf("dead 1 %d %stoo often, and no attempt left 0", engine.MaxSnoozes+1, limit), "1 failed " + limit + "too often, and no attempt left"},
		{false, false, "queued 1 - again 1", "1 failed again"},
	} {
		id := held[i].ID
		if a := got[id]; a.ID != id || a.Dead != want.dead || a.Snoozed != want.snoozed {
			t.Errorf("%d: answered %+v", i, a)
		}
		f.expect(want.row, `SELECT concat_ws(' ', status, attempt, coalesce(snoozes::text, '-'), coalesce(last_error, '-'),
			round(extract(epoch FROM run_at - clock_timestamp()) / 60)::int) FROM jobgen.jobs WHERE id = $1 AND fence = 0 AND worker_id IS NULL`, id)
		f.expect(want.attempt, `SELECT concat_ws(' ', attempt, outcome, error) FROM jobgen.job_attempt WHERE job_id = $1 AND fence > 0`, id)
	}
}

// Whatever ends the hold of a job that is asked to end, it ends cancelled, and is not started again.
func TestAWishToCancelOutlivesWhateverEndsTheHold(t *testing.T) {
	t.Parallel()
	const most = 5
	for name, end := range map[string]func(f *fixture, w *engine.Worker, h engine.Hold) bool{
		"a failure": func(f *fixture, w *engine.Worker, h engine.Hold) bool {
			return len(f.fail(w, engine.Failure{Hold: h, Delay: time.Hour, Error: "no"})) == 0
		},
		"a snooze": func(f *fixture, w *engine.Worker, h engine.Hold) bool {
			return len(f.fail(w, engine.Failure{Hold: h, Snooze: true, Error: "later"})) == 0
		},
		"its death": func(f *fixture, w *engine.Worker, h engine.Hold) bool {
			return len(f.fail(w, engine.Failure{Hold: h, Permanent: true, Error: "no"})) == 0
		},
		"a shutdown": func(f *fixture, w *engine.Worker, h engine.Hold) bool {
			back, err := f.store.Release(f.ctx(), w.ID, []engine.Hold{h})
			return err == nil && len(back) == 0
		},
		"a crash": func(f *fixture, w *engine.Worker, h engine.Hold) bool { return f.crash(w, most) },
		"its last crash": func(f *fixture, w *engine.Worker, h engine.Hold) bool {
			f.exec("UPDATE jobgen.jobs SET crashes = $1", most-1)
			return f.crash(w, most)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			w := f.worker(time.Hour)
			id := f.insert(engine.Element{Key: "key", Payload: []byte("{}")})[0]
			h := holds(f.claim(w, 1))[0]
			f.ask(id, "not needed")
			if !end(f, w, h) {
				t.Fatal("the hold did not end as it should")
			}
			if !strings.Contains(name, "crash") {
				if got := f.end(w, engine.Cancelled{Hold: h, Started: true, Error: "so"}); len(got) != 1 || got[0] != (engine.Cancel{ID: id, Reason: "not needed"}) {
					t.Errorf("ended %+v", got)
				}
				f.expect("1 cancelled not needed: so", "SELECT concat_ws(' ', attempt, outcome, error) FROM jobgen.job_attempt")
			} else {
				// It is queued, and whoever claims it is told.
				f.exec("UPDATE jobgen.jobs SET run_at = now()")
				other := f.worker(time.Hour)
				got := f.claim(other, 9)
				if len(got) == 0 {
					var err error
					if got, err = f.store.ClaimSuspect(f.ctx(), other); err != nil {
						t.Fatal(err)
					}
				}
				if len(got) != 1 || got[0].Cancel == nil || *got[0].Cancel != "not needed" {
					t.Fatalf("claimed %+v", got)
				}
				if ended := f.end(other, engine.Cancelled{Hold: holds(got)[0]}); len(ended) != 1 {
					t.Errorf("ended %+v", ended)
				}
				f.expect("crashed 1, cancelled 0", "SELECT string_agg(outcome || ' ' || attempt, ', ' ORDER BY ended_at) FROM jobgen.job_attempt")
			}
			f.expect("cancelled not needed", "SELECT status || ' ' || reason FROM jobgen.job_archive")
			f.expect(0, `SELECT (SELECT count(*) FROM jobgen.jobs) + (SELECT count(*) FROM jobgen.job_result) + (SELECT count(*) FROM jobgen.job_cancel)`)
		})
	}
}

// crash has the jobs of a worker reclaimed and tells whether one was, and lives.
func (f *fixture) crash(w *engine.Worker, most int) bool {
	f.Helper()
	f.exec("UPDATE jobgen.workers SET lost_at = now() WHERE id = $1", w.ID)
	back, err := f.store.Reclaim(f.ctx(), 10, most, time.Second, false)
	return err == nil && len(back) == 1 && !back[0].Dead
}

// The statement that ends the attempt waits for a cancellation that is not committed, and then sees it.
func TestAFailureThatMeetsACancellation(t *testing.T) {
	t.Parallel()
	for _, commit := range []bool{true, false} {
		t.Run(fmt.Sprint("committed ", commit), func(t *testing.T) {
			t.Parallel()
			f := open(t)
			w := f.worker(time.Hour)
			id := f.enqueue(1)[0]
			h := holds(f.claim(w, 1))[0]
			tx := f.begin(f.connect())
			if answer, err := (postgres.Producer{DB: tx}).Cancel(f.ctx(), nil, id, ""); err != nil || answer != engine.StatusAsked {
				t.Fatal(answer, err)
			}
			// The connection that stores outcomes gives up after 100 ms; this one waits.
			q := f.session()
			type answer struct {
				n   int
				err error
			}
			got := make(chan answer, 1)
			go func() {
				rows, err := failOn(f.ctx(), q, w, h)
				got <- answer{rows, err}
			}()
			f.blocked(1)
			want := 0
			if commit {
				must(t, tx, "COMMIT")
			} else {
				want = 1
				must(t, tx, "ROLLBACK")
			}
			if a := <-got; a.err != nil || a.n != want {
				t.Errorf("%d failed, %v; want %d", a.n, a.err, want)
			}
			if ended := f.end(w, engine.Cancelled{Hold: h, Started: true}); len(ended) != 1-want {
				t.Errorf("ended %+v", ended)
			}
			_ = tx.Rollback(context.Background())
		})
	}
}

func TestDeadlinesEndWhatHasNoTimeLeft(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.worker(time.Hour)
	f.enqueue(6)
	deadline := func(id int64, in string) {
		f.exec("UPDATE jobgen.jobs SET deadline = clock_timestamp() + $2::interval WHERE id = $1", id, in)
	}
	held := f.claim(w, 6)
	for i, in := range []string{"1 hour", "1 hour", "-1 second", "-1 second", "1 hour", "1 hour"} {
		deadline(held[i].ID, in)
	}
	f.exec("UPDATE jobgen.jobs SET max_attempts = 1 WHERE id IN ($1, $2)", held[3].ID, held[4].ID)
	h := holds(held)
	answered := f.fail(w,
		engine.Failure{Hold: h[0], Delay: time.Minute, Error: "time for another try"},
		engine.Failure{Hold: h[1], Delay: 2 * time.Hour, Error: "none for another try"},
		engine.Failure{Hold: h[2], Permanent: true, Error: "over, and permanent"},
		engine.Failure{Hold: h[3], Error: "over, and no attempt left"},
		engine.Failure{Hold: h[4], Delay: 2 * time.Hour, Error: "time, but no attempt"},
		engine.Failure{Hold: h[5], Delay: 2 * time.Hour, Snooze: true, Error: "put off too far"},
	)
	if len(answered) != 2 {
		t.Errorf("answered %+v", answered)
	}
	var rest []engine.Cancelled
	for i, text := range map[int]string{1: "b", 2: "c", 3: "d", 5: "f"} {
		rest = append(rest, engine.Cancelled{Hold: h[i], Started: true, Error: text})
	}
	f.end(w, rest...)
	f.expect("queued, dead", "SELECT string_agg(status, ', ' ORDER BY id) FROM jobgen.jobs")
	f.expect("its next attempt would come after its deadline: b, its deadline has passed: c, its deadline has passed: d, its next attempt would come after its deadline: f",
		"SELECT string_agg(error, ', ' ORDER BY job_id) FROM jobgen.job_attempt WHERE outcome = 'cancelled'")

	// A claim tells how much time is left, by two times of the database.
	f.exec("UPDATE jobgen.jobs SET run_at = now() WHERE status = 'queued'")
	again := f.claim(w, 1)
	if len(again) != 1 || again[0].Deadline == nil || again[0].Left < 55*time.Minute || again[0].Left > time.Hour {
		t.Errorf("claimed %+v", again)
	}
	f.enqueue(1)
	if plain := f.claim(w, 1); len(plain) != 1 || plain[0].Deadline != nil || plain[0].Left != 0 || plain[0].Cancel != nil {
		t.Errorf("claimed %+v", plain)
	}
}

func TestPurgeForgetsCancelledJobsAndMessagesThatNobodyReads(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.exec(`INSERT INTO jobgen.job_archive (job_id, status, queue, kind, version, attempt, crashes, payload, created_at, expires_at)
		SELECT -i, 'cancelled', 'q', 'k', 1, 0, 0, '{}', now(), now() + (i - 2500) * interval '1 hour' FROM generate_series(1, 2600) i`)
	w, other := f.worker(time.Hour), f.worker(time.Hour)
	f.enqueue(3)
	held := f.claim(w, 3)
	for _, c := range held {
		f.ask(c.ID, "why")
	}
	// One has succeeded, one was reclaimed and runs under another worker, one runs on.
	if _, err := f.store.Complete(f.ctx(), w.ID, []engine.Success{{Hold: holds(held)[0]}}); err != nil {
		t.Fatal(err)
	}
	f.exec("UPDATE jobgen.jobs SET worker_id = $2 WHERE id = $1", held[1].ID, other.ID)
	f.exec("INSERT INTO jobgen.job_cancel (job_id, worker_id, reason) SELECT -i, gen_random_uuid(), '' FROM generate_series(1, 1500) i")
	if calls := f.purge(); calls != 3 {
		t.Errorf("2,500 jobs and 1,501 messages took %d calls, want 3 of 1,000", calls)
	}
	f.expect(100, "SELECT count(*) FROM jobgen.job_archive")
	f.expect(fmt.Sprintf("%d %s, %d %s", held[1].ID, other.ID, held[2].ID, w.ID), "SELECT string_agg(job_id || ' ' || worker_id, ', ' ORDER BY job_id) FROM jobgen.job_cancel")
}

func failOn(ctx context.Context, c *pgx.Conn, w *engine.Worker, h engine.Hold) (int, error) {
	rows, err := gen.New(c).Fail(ctx, gen.FailParams{
		WorkerID: w.ID, Ids: []int64{h.ID}, Fences: []int64{h.Fence}, DelaysUs: []int64{0}, Permanents: []bool{false}, Snoozes: []bool{false}, Errors: []string{"no"},
	})
	return len(rows), err
}
