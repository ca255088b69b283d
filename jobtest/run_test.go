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

type sum struct {
	Numbers []int `json:"numbers"`
}

var (
	add  = &jobs.Spec[sum, int]{Kind: "test.add", Queue: "q", Key: func(k *jobs.KeyBuilder, s sum) { k.Int(int64(len(s.Numbers))) }}
	note = &jobs.Spec[mail, jobs.None]{Kind: "test.note", Queue: "q"}
)

func TestRunRunsWhatIsDueAndWhatThatEnqueues(t *testing.T) {
	t.Parallel()
	db := jobtest.DB(t)
	ref, err := jobs.Enqueue(t.Context(), db, add, sum{[]int{1, 2, 3}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jobs.Enqueue(t.Context(), db, note, mail{To: "later"}, jobs.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	ran := 0
	register := func(r *worker.Registry) {
		worker.HandleTx(r, add, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[sum]) (total int, err error) {
			ran++
			for _, n := range j.Payload.Numbers {
				total += n
			}
			_, err = jobs.Enqueue(ctx, tx, note, mail{To: "ada"})
			return total, err
		})
		worker.HandleNone(r, note, func(context.Context, *jobs.Job[mail]) error { return errors.New("mailbox full") })
	}
	jobtest.Run(t, db, register)
	if total, err := ref.Await(t.Context(), db); err != nil || total != 6 {
		t.Errorf("%d, %v", total, err)
	}
	notes := jobtest.Enqueued[mail](t, db, note.Kind)
	if len(notes) != 2 || notes[0].Payload.To != "later" || notes[0].Attempt != 0 ||
		notes[1].Attempt != 1 || notes[1].LastError != "mailbox full" || notes[1].Status != "queued" {
		t.Errorf("%+v", notes)
	}
	// The key is on record: a second worker does not run it again.
	if again, err := jobs.Enqueue(t.Context(), db, add, sum{[]int{7, 7, 7}}); err != nil || !again.Existing {
		t.Errorf("%+v, %v", again, err)
	}
	jobtest.Run(t, db, register)
	if ran != 1 {
		t.Errorf("ran %d times", ran)
	}
}

func TestRunLeavesWhatIsPaused(t *testing.T) {
	t.Parallel()
	db := jobtest.DB(t)
	if err := jobs.PauseQueue(t.Context(), db, note.Queue); err != nil {
		t.Fatal(err)
	}
	if _, err := jobs.Enqueue(t.Context(), db, note, mail{To: "ada"}); err != nil {
		t.Fatal(err)
	}
	ran := 0
	register := func(r *worker.Registry) {
		worker.HandleNone(r, note, func(context.Context, *jobs.Job[mail]) error { ran++; return nil })
	}
	if jobtest.Run(t, db, register); ran != 0 { // it fails the test if it has to give up
		t.Error("a job of a paused queue ran")
	}
	if err := jobs.ResumeQueue(t.Context(), db, note.Queue); err != nil {
		t.Fatal(err)
	}
	if jobtest.Run(t, db, register); ran != 1 {
		t.Errorf("after the pause %d ran", ran)
	}
}

func TestRunSaysWhatIsWrongWithTheRegistry(t *testing.T) {
	t.Parallel()
	db := jobtest.DB(t)
	got := failure(t, func(t testing.TB) { jobtest.Run(t, db, func(*worker.Registry) {}) })
	if !strings.Contains(got, "worker: ") {
		t.Errorf("%s", got)
	}
}

func TestRunJobRunsOneJob(t *testing.T) {
	t.Parallel()
	db := jobtest.DB(t)
	var refs []jobs.Ref[jobs.None]
	for _, to := range []string{"first", "second", "third"} {
		ref, err := jobs.Enqueue(t.Context(), db, note, mail{To: to}, jobs.In(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	var ran []string
	register := func(r *worker.Registry) {
		worker.HandleNone(r, note, func(ctx context.Context, j *jobs.Job[mail]) error {
			ran = append(ran, j.Payload.To+" "+j.Queue)
			if _, err := jobs.Enqueue(ctx, db, note, mail{To: "follow-up"}); err != nil {
				return err
			}
			return errors.New("mailbox full")
		})
	}
	jobtest.RunJob(t, db, refs[1].ID, register)
	if got := strings.Join(ran, ", "); got != "second jobtest.2" {
		t.Errorf("ran: %s", got)
	}
	var left []string
	for _, n := range jobtest.Enqueued[mail](t, db, note.Kind) {
		left = append(left, fmt.Sprint(n.Payload.To, n.Attempt, n.Queue, n.LastError))
	}
	if got := strings.Join(left, ", "); got != "first0q, second1qmailbox full, third0q, follow-up0q" {
		t.Errorf("left: %s", got)
	}
}
