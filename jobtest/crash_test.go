package jobtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/worker"
)

// What a handler does in its transaction happens once, and what it does elsewhere as often as the table says, whatever the
// point at which its process dies.
func TestAJobOutlivesItsProcessAtEachPoint(t *testing.T) {
	t.Parallel()
	for _, point := range jobtest.Points {
		for _, form := range []string{"plain", "transactional", "owned by lock"} {
			t.Run(point.String()+", "+form, func(t *testing.T) {
				t.Parallel()
				db := jobtest.DB(t)
				clock := jobtest.NewClock(t, db)
				if _, err := db.Exec(t.Context(), "CREATE TABLE effect (n int)"); err != nil {
					t.Fatal(err)
				}
				calls, transactional, add := 0, form != "plain", *add
				add.Lock = form == "owned by lock"
				register := func(r *worker.Registry) {
					if !transactional {
						worker.Handle(r, &add, func(context.Context, *jobs.Job[sum]) (int, error) { calls++; return 6, nil })
						return
					}
					worker.HandleTx(r, &add, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[sum]) (int, error) {
						calls++
						_, err := tx.Exec(ctx, "INSERT INTO effect VALUES (1)")
						return 6, err
					})
				}
				ref, err := jobs.Enqueue(t.Context(), db, &add, sum{[]int{1, 2, 3}}, jobs.In(time.Minute))
				if err != nil {
					t.Fatal(err)
				}
				jobtest.Crash(t, db, ref.ID, point, register)
				called := calls
				if called == 1 == (point == jobtest.AfterClaim) {
					t.Errorf("the handler was called %d times before its process died", called)
				}
				finished, held := point == jobtest.AfterCommit, "running"
				if add.Lock {
					held = "queued"
				}
				if left := jobtest.Enqueued[sum](t, db, add.Kind); len(left) != 0 == finished || !finished && left[0].Status != held {
					t.Errorf("the crash has left %+v", left)
				}
				clock.Advance(10 * time.Second)
				if left := jobtest.Enqueued[sum](t, db, add.Kind); !finished && left[0].Status != held {
					t.Errorf("taken back before its lease has run out: %+v", left)
				}
				clock.Advance(50 * time.Second)
				jobtest.Run(t, db, register)
				if got, err := ref.Await(t.Context(), db); err != nil || got != 6 {
					t.Errorf("result %d, %v", got, err)
				}
				if again := calls - called; again != 1 && !finished || again != 0 && finished {
					t.Errorf("called %d times after the crash", again)
				}
				var effects, crashes int
				if err := db.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM effect),
					(SELECT count(*) FROM jobgen.job_attempt WHERE outcome = 'crashed')`).Scan(&effects, &crashes); err != nil {
					t.Fatal(err)
				}
				if transactional && effects != 1 {
					t.Errorf("%d effects", effects)
				}
				if crashes != 1 && !finished || crashes != 0 && finished {
					t.Errorf("%d crashes on record", crashes)
				}
			})
		}
	}
}

// A failure that is stored before the process dies is a failed attempt, not a crash.
func TestACrashAfterAStoredFailureChangesNothing(t *testing.T) {
	t.Parallel()
	db := jobtest.DB(t)
	ref, err := jobs.Enqueue(t.Context(), db, note, mail{To: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	jobtest.Crash(t, db, ref.ID, jobtest.AfterCommit, func(r *worker.Registry) {
		worker.HandleNone(r, note, func(context.Context, *jobs.Job[mail]) error { return errors.New("mailbox full") })
	})
	got := jobtest.EnqueuedOne[mail](t, db, note.Kind)
	if got.Status != "queued" || got.Attempt != 1 || got.LastError != "mailbox full" || got.Queue != note.Queue {
		t.Errorf("%+v", got)
	}
}

// What has crashed twice is a suspect, and claimed in another way; after five crashes it is dead (G8).
func TestAJobThatCrashesAgainAndAgainIsDead(t *testing.T) {
	t.Parallel()
	for _, lock := range []bool{false, true} {
		t.Run(fmt.Sprintf("lock=%t", lock), func(t *testing.T) {
			t.Parallel()
			db := jobtest.DB(t)
			clock := jobtest.NewClock(t, db)
			spec := &jobs.Spec[mail, jobs.None]{Kind: "test.mortal", Queue: "q", Lock: lock}
			calls := 0
			register := func(r *worker.Registry) {
				worker.HandleTxNone(r, spec, func(context.Context, pgx.Tx, *jobs.Job[mail]) error { calls++; return nil })
			}
			ref, err := jobs.Enqueue(t.Context(), db, spec, mail{To: "ada"})
			if err != nil {
				t.Fatal(err)
			}
			for range 5 {
				jobtest.Crash(t, db, ref.ID, jobtest.BeforeCommit, register)
				clock.Advance(time.Minute)
			}
			jobtest.Run(t, db, register)
			if got := jobtest.EnqueuedOne[mail](t, db, spec.Kind); got.Status != "dead" || calls != 5 {
				t.Errorf("called %d times: %+v", calls, got)
			}
		})
	}
}

func TestCrashSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	db := jobtest.DB(t)
	ref, err := jobs.Enqueue(t.Context(), db, note, mail{})
	if err != nil {
		t.Fatal(err)
	}
	other := func(r *worker.Registry) {
		worker.Handle(r, add, func(context.Context, *jobs.Job[sum]) (int, error) { return 0, nil })
	}
	for _, c := range []struct {
		id   int64
		at   jobtest.Point
		want string
	}{
		{ref.ID, jobtest.AfterClaim, "no handler for the job's kind"},
		{ref.ID + 1, jobtest.AfterClaim, "waits to be run"},
		{ref.ID, jobtest.Point(9), "no such point: 9"},
	} {
		if got := failure(t, func(t testing.TB) { jobtest.Crash(t, db, c.id, c.at, other) }); !strings.Contains(got, c.want) {
			t.Errorf("%q is not in %q", c.want, got)
		}
	}
}
