package postgres_test

import (
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// As after a lost answer: the completion had been stored, and is stored again.
func TestG5ARepeatedCompletionEnqueuesItsFollowUpsOnce(t *testing.T) {
	t.Parallel()
	for _, record := range []bool{false, true} {
		f := open(t)
		me := f.worker(time.Hour)
		f.insert(engine.Element{Key: "a", Payload: []byte("{}")}, engine.Element{Key: "b", Payload: []byte("{}")})
		var done []engine.Success
		for _, h := range holds(f.claim(me, 2)) {
			done = append(done, engine.Success{Hold: h, Record: record, Keep: time.Hour, Then: followUps})
		}
		for i, want := range []int{1, 1, 0} {
			batch := [][]engine.Success{done[:1], done, done}[i]
			if got, err := f.store.Complete(f.ctx(), me.ID, batch); err != nil || len(got) != want {
				t.Errorf("completion %d: %v, %v", i, got, err)
			}
		}
		if n := value[int](t, f.pool, `SELECT count(*) FROM jobgen.jobs`); n != 2 {
			t.Errorf("%d jobs, want the two follow-ups", n)
		}
	}
}

func TestG6NothingFollowsAJobWhoseKeysWorkAnotherHasDone(t *testing.T) {
	t.Parallel()
	f := open(t)
	me := f.worker(time.Hour)
	f.insert(engine.Element{Key: "a", Payload: []byte("{}")})
	h := holds(f.claim(me, 1))[0]
	if _, err := f.pool.Exec(f.ctx(), `UPDATE jobgen.job_result SET job_id = 0, finished_at = now(), expires_at = now() + interval '1 hour'`); err != nil {
		t.Fatal(err)
	}
	got, err := f.store.Complete(f.ctx(), me.ID, []engine.Success{{Hold: h, Record: true, Keep: time.Hour, Then: followUps}})
	if err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	if n := value[int](t, f.pool, `SELECT count(*) FROM jobgen.jobs`); n != 0 {
		t.Errorf("%d jobs are left", n)
	}
}
