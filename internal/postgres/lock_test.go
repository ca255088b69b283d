package postgres_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// locker registers a worker of queue q that owns kind k by lock.
func (f *fixture) locker() *engine.Worker {
	f.Helper()
	w := &engine.Worker{ID: uuid.New(), Host: "host", PID: 1, Build: "test", Queues: []string{"q"}, Locks: []engine.Kind{{Name: "k", Version: 1}}}
	if err := f.store.Register(f.ctx(), *w, time.Hour); err != nil {
		f.Fatal(err)
	}
	return w
}

// lock takes the next job; nil if there is none.
func (f *fixture) lock(w *engine.Worker, skip ...int64) engine.Locked {
	f.Helper()
	l, err := f.store.Lock(f.ctx(), w, left(w), skip)
	if err != nil {
		f.Fatal(err)
	}
	if l != nil {
		f.Cleanup(func() { l.Rollback(f.ctx()) })
	}
	return l
}

func (f *fixture) begun(w *engine.Worker, id int64) engine.Starts {
	f.Helper()
	before, err := f.store.Start(f.ctx(), w.ID, []int64{id}, []bool{true})
	if err != nil {
		f.Fatal(err)
	}
	return before[id]
}

func TestG3ALockedJobIsNobodyElses(t *testing.T) {
	t.Parallel()
	f := open(t)
	lease, one, two := f.worker(time.Hour), f.locker(), f.locker()
	id := f.enqueue(1)[0]
	l := f.lock(one)
	if c, _ := l.Job(); c.ID != id || c.Attempt != 1 || c.Fence != 0 {
		t.Errorf("locked %+v", c)
	}
	if f.lock(two) != nil || len(f.claim(lease, 10)) != 0 {
		t.Error("somebody else has it as well")
	}
	f.expect("queued", "SELECT status FROM jobgen.jobs") // nothing was written
	l.Rollback(f.ctx())
	if f.lock(two, id) != nil {
		t.Error("it was to be skipped")
	}
	if got := f.claim(lease, 10); len(got) != 1 {
		t.Errorf("it is not free again: %v", got)
	}
	if f.lock(two) != nil {
		t.Error("a running job was locked")
	}
}

// The row is newer than the snapshot of the statement that locks it: what is given is the row as it is.
func TestG3ALockedJobIsGivenAsItIs(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.locker()
	f.enqueue(1)
	c := f.connect()
	tx := f.begin(c)
	must(t, tx, `UPDATE jobgen.jobs SET payload = '{"v": 2}'`)
	// The lock skips the row while it is changed, and has it after.
	if f.lock(w) != nil {
		t.Error("a row that is being changed was locked")
	}
	if err := tx.Commit(f.ctx()); err != nil {
		t.Fatal(err)
	}
	if c, _ := f.lock(w).Job(); string(c.Payload) != `{"v": 2}` {
		t.Errorf("payload %s", c.Payload)
	}
}

func TestG8StartsWithoutAnEndAreCrashes(t *testing.T) {
	t.Parallel()
	f := open(t)
	one, two, three, four := f.locker(), f.locker(), f.locker(), f.locker()
	id := f.enqueue(1)[0]
	if got := f.begun(one, id); got != (engine.Starts{}) {
		t.Errorf("the first start: %+v", got)
	}
	if got := f.begun(two, id); got != (engine.Starts{Crashes: 1, Unsure: true}) {
		t.Errorf("after a start of a worker that lives: %+v", got)
	}
	f.exec("UPDATE jobgen.workers SET lost_at = now() WHERE id = $1", one.ID)
	f.exec("DELETE FROM jobgen.workers WHERE id = $1", two.ID)
	if got := f.begun(three, id); got != (engine.Starts{Crashes: 2}) {
		t.Errorf("after two of lost workers: %+v", got)
	}
	back, err := f.lock(three).Crash(f.ctx(), three.ID, 2, 3, time.Hour)
	if err != nil || back.Crashes != 2 || back.Dead {
		t.Fatalf("%+v, %v", back, err)
	}
	f.expect("queued 2 0 t", "SELECT concat_ws(' ', status, crashes, attempt, run_at > now() + interval '25 minutes') FROM jobgen.jobs")
	f.expect(2, "SELECT count(*) FROM jobgen.job_attempt WHERE outcome = 'crashed' AND job_id = $1 AND worker_id <> $2", id, three.ID)
	f.expect(0, "SELECT count(*) FROM jobgen.job_start")
	f.expect(2, "SELECT sum(reclaimed)::int FROM jobgen.samples")

	f.exec("UPDATE jobgen.jobs SET run_at = now()")
	if f.lock(three) != nil {
		t.Error("a suspect is locked as any other")
	}
	f.begun(three, id)
	l, err := f.store.LockSuspect(f.ctx(), four, nil)
	if err != nil || l == nil {
		t.Fatal("no suspect", err)
	}
	if back, err := l.Crash(f.ctx(), four.ID, f.begun(four, id).Crashes, 3, time.Hour); err != nil || !back.Dead || back.Crashes != 3 {
		t.Errorf("%+v, %v", back, err)
	}
	f.expect("dead 3", "SELECT concat_ws(' ', status, crashes) FROM jobgen.jobs")
}

func TestG5FinishRemovesTheJobWithItsMarks(t *testing.T) {
	t.Parallel()
	f := open(t)
	w, lost := f.locker(), f.locker()
	id := f.enqueue(1)[0]
	f.begun(lost, id)
	l := f.lock(w)
	f.begun(w, id)
	if err := l.Finish(f.ctx(), w.ID, engine.Success{Record: true, Result: []byte("7"), Keep: time.Hour}); err != nil {
		t.Fatal(err)
	}
	f.expect(0, "SELECT count(*) FROM jobgen.jobs")
	f.expect(0, "SELECT count(*) FROM jobgen.job_start")
	f.expect(7, "SELECT result::int FROM jobgen.job_result WHERE job_id = $1", id)
	f.expect(lost.ID.String(), "SELECT worker_id::text FROM jobgen.job_attempt WHERE outcome = 'crashed'")
}

func TestG4AdoptedJobIsAHold(t *testing.T) {
	t.Parallel()
	f := open(t)
	w, lost := f.locker(), f.locker()
	id := f.enqueue(1)[0]
	f.begun(lost, id)
	l := f.lock(w)
	f.begun(w, id)
	must(t, l.Tx().(pgx.Tx), "INSERT INTO jobgen.samples VALUES (now(), 'rolled', 'back', 1)")
	fence, err := l.Adopt(f.ctx(), w.ID, time.Minute)
	if err != nil || fence == 0 {
		t.Fatal(fence, err)
	}
	f.expect("running 1 1 t", "SELECT concat_ws(' ', status, attempt, crashes, claimed_at < now() - interval '50 seconds') FROM jobgen.jobs WHERE worker_id = $1 AND fence = $2", w.ID, fence)
	f.expect(0, "SELECT (SELECT count(*) FROM jobgen.samples) + (SELECT count(*) FROM jobgen.job_start)")
	if held, _, err := f.store.Held(f.ctx(), w.ID); err != nil || len(held) != 1 || held[0] != (engine.Hold{ID: id, Fence: fence}) {
		t.Errorf("holds %v, %v: nobody would find it if the worker were lost", held, err)
	}
	if ids, err := f.store.Release(f.ctx(), w.ID, []engine.Hold{{ID: id, Fence: fence}}); err != nil || len(ids) != 1 {
		t.Errorf("released %v, %v", ids, err)
	}
}

// Without its transaction a job is adopted only as it was, and never while somebody else has it locked.
func TestG4AdoptingLateNeverTakesAJobFromAnother(t *testing.T) {
	t.Parallel()
	f := open(t)
	w, other := f.locker(), f.locker()
	f.enqueue(1)
	l := f.lock(w)
	c, _ := l.Job()
	f.begun(w, c.ID)
	l.Rollback(f.ctx())
	adopt := func(who *engine.Worker) (int64, bool) {
		t.Helper()
		fence, waits, err := f.store.Adopt(f.ctx(), who.ID, c, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return fence, waits
	}
	theirs := f.lock(other)
	if fence, waits := adopt(w); fence != 0 || !waits {
		t.Errorf("while it is locked: %d, %t", fence, waits)
	}
	f.expect(1, "SELECT count(*) FROM jobgen.job_start") // its start is still without an end
	theirs.Rollback(f.ctx())
	f.exec("UPDATE jobgen.jobs SET attempt = 1")
	if fence, waits := adopt(w); fence != 0 || waits {
		t.Errorf("after another attempt: %d, %t", fence, waits)
	}
	f.exec("UPDATE jobgen.jobs SET attempt = 0")
	f.exec("UPDATE jobgen.workers SET lost_at = now() WHERE id = $1", other.ID)
	if fence, waits := adopt(other); fence != 0 || waits {
		t.Errorf("by a lost worker: %d, %t", fence, waits)
	}
	if fence, _ := adopt(w); fence == 0 {
		t.Error("it is not adopted")
	}
	f.exec("DELETE FROM jobgen.jobs")
	if fence, waits := adopt(w); fence != 0 || waits {
		t.Errorf("after it is gone: %d, %t", fence, waits)
	}
}

func TestFinishOfAKeyThatIsDoneChangesNothing(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.locker()
	f.insert(engine.Element{Key: "a", Payload: []byte("{}")})
	l := f.lock(w)
	f.exec("UPDATE jobgen.job_result SET job_id = -1, finished_at = now(), expires_at = now() + interval '1 day'")
	if err := l.Finish(f.ctx(), w.ID, engine.Success{Record: true, Keep: time.Hour}); !errors.Is(err, engine.ErrRecorded) {
		t.Errorf("Finish: %v", err)
	}
	if fence, err := l.Adopt(f.ctx(), w.ID, 0); fence == 0 || err != nil {
		t.Errorf("Adopt after it: %d, %v", fence, err)
	}
	f.expect(-1, "SELECT job_id FROM jobgen.job_result")
}

func TestPurgeForgetsMarksOfJobsThatAreGone(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.locker()
	id := f.enqueue(1)[0]
	f.begun(w, id)
	f.begun(w, -1)
	f.begun(w, -2)
	f.exec("UPDATE jobgen.job_start SET started_at = now() - interval '1 hour' WHERE job_id <> -2")
	if _, err := f.store.Purge(f.ctx(), engine.Keep{Attempts: time.Hour, Samples: time.Hour}); err != nil {
		t.Fatal(err)
	}
	f.expect("{-2,"+strconv.FormatInt(id, 10)+"}", "SELECT array_agg(job_id ORDER BY job_id)::text FROM jobgen.job_start")
}
