package jobs_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

// What Await says of a job that stays on record: its result while there is one, else that it succeeded.
func TestAwaitOfAJobInTheArchive(t *testing.T) {
	t.Parallel()
	f := open(t)
	archive := func(result string) int64 {
		t.Helper()
		c := f.one(f.claim(1))
		done := engine.Success{Hold: hold(c), Kind: c.Kind, Key: c.Key, Retain: time.Hour}
		if result != "" {
			done.Record, done.Result, done.Keep = true, []byte(result), time.Hour
		}
		got, err := f.store.Complete(f.ctx(), f.worker.ID, []engine.Success{done})
		f.no(err)
		if len(got) != 1 {
			t.Fatal(got)
		}
		return c.ID
	}

	ref, err := jobs.Enqueue(f.ctx(), f.pool, plain, order{})
	f.no(err)
	archive("")
	_, err = ref.Await(f.ctx(), f.pool)
	f.no(err)
	// Another kind's job of that id is not this one.
	if _, err := jobs.RefTo(keyed, ref.ID).Await(f.ctx(), f.pool); !errors.Is(err, jobs.ErrNoRecord) {
		t.Errorf("another kind's job: %v", err)
	}

	// With both, the result counts; without it, no result is made up.
	for _, spec := range []*jobs.Spec[order, receipt]{returned, keyed} {
		ref, err := jobs.Enqueue(f.ctx(), f.pool, spec, order{ID: "a"})
		f.no(err)
		archive(`{"total": 7}`)
		for _, r := range []jobs.Ref[receipt]{ref, jobs.RefTo(spec, ref.ID)} {
			if got, err := r.Await(f.ctx(), f.pool); got.Total != 7 || err != nil {
				t.Errorf("%s: %+v, %v", spec.Kind, got, err)
			}
		}
		f.exec("DELETE FROM jobgen.job_result WHERE job_id = $1", ref.ID)
		for _, r := range []jobs.Ref[receipt]{ref, jobs.RefTo(spec, ref.ID)} {
			_, err := r.Await(f.ctx(), f.pool)
			if want := "jobs: nothing is on record of this job but that it succeeded: its result has expired"; !errors.Is(err, jobs.ErrNoRecord) || err.Error()[:len(want)] != want {
				t.Errorf("%s, of which the result has expired: %v", spec.Kind, err)
			}
		}
	}

	// The key is a newer job's by now: that is asked for.
	newer, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "b"})
	f.no(err)
	archive(`{"total": 1}`)
	f.exec("DELETE FROM jobgen.job_result WHERE job_id = $1", newer.ID)
	_, err = jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "b"})
	f.no(err)
	archive(`{"total": 2}`)
	if got, err := newer.Await(f.ctx(), f.pool); got.Total != 2 || err != nil {
		t.Errorf("%+v, %v", got, err)
	}

	// A job that was cancelled says so.
	cancelled, err := jobs.Enqueue(f.ctx(), f.pool, plain, order{})
	f.no(err)
	f.cancelled(jobs.Cancelled)(cancelled.Cancel(f.ctx(), f.pool, "why"))
	awaits(f, cancelled, "why")
}
