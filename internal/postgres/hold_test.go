package postgres_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// write is a write about running jobs; it tells how many it changed.
type write struct {
	name string
	do   func(f *fixture, worker uuid.UUID, h engine.Hold) int
}

var writes = []write{
	{"Complete", func(f *fixture, worker uuid.UUID, h engine.Hold) int {
		got, err := f.store.Complete(f.ctx(), worker, []engine.Success{{Hold: h}})
		f.no(err)
		return len(got)
	}},
	{"Complete with a result", func(f *fixture, worker uuid.UUID, h engine.Hold) int {
		got, err := f.store.Complete(f.ctx(), worker, []engine.Success{{Hold: h, Record: true, Result: []byte("1"), Keep: time.Hour}})
		f.no(err)
		return len(got)
	}},
	{"Complete with follow-ups", func(f *fixture, worker uuid.UUID, h engine.Hold) int {
		got, err := f.store.Complete(f.ctx(), worker, []engine.Success{{Hold: h, Record: true, Keep: time.Hour, Then: followUps}})
		f.no(err)
		return len(got)
	}},
	{"Fail", func(f *fixture, worker uuid.UUID, h engine.Hold) int {
		got, err := f.store.Fail(f.ctx(), worker, []engine.Failure{{Hold: h, Error: "no"}})
		f.no(err)
		return len(got)
	}},
	{"Release", func(f *fixture, worker uuid.UUID, h engine.Hold) int {
		got, err := f.store.Release(f.ctx(), worker, []engine.Hold{h})
		f.no(err)
		return len(got)
	}},
	{"Complete with follow-ups in a handler's transaction", func(f *fixture, worker uuid.UUID, h engine.Hold) int {
		err := f.store.InTx(f.ctx(), worker, func(_ any, finish func(engine.Success) error) error {
			return finish(engine.Success{Hold: h, Record: true, Keep: time.Hour, Then: followUps})
		})
		if err == engine.ErrLeaseLost {
			return 0
		}
		f.no(err)
		return 1
	}},
	{"Complete in a handler's transaction", func(f *fixture, worker uuid.UUID, h engine.Hold) int {
		err := f.store.InTx(f.ctx(), worker, func(_ any, finish func(engine.Success) error) error {
			return finish(engine.Success{Hold: h, Record: true, Keep: time.Hour})
		})
		if err == engine.ErrLeaseLost {
			return 0
		}
		f.no(err)
		return 1
	}},
}

var followUps = []engine.FollowUp{{
	Insert:   engine.Insert{Queue: "q", Kind: "follow", Version: 1, MaxAttempts: 1},
	Elements: []engine.Element{{Payload: []byte("{}")}},
}}

func (f *fixture) no(err error) {
	f.Helper()
	if err != nil {
		f.Error(err)
	}
}

func TestG4AWriteWithAStaleHoldChangesNothing(t *testing.T) {
	t.Parallel()
	for _, w := range writes {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			me, other := f.worker(time.Hour), f.worker(time.Hour)
			f.insert(engine.Element{Key: "key", Payload: []byte("{}")})
			first := holds(f.claim(me, 1))[0]
			if _, err := f.store.Release(f.ctx(), me.ID, []engine.Hold{first}); err != nil {
				t.Fatal(err)
			}
			now := holds(f.claim(me, 1))[0]
			state := func() string {
				return value[string](t, f.pool, `SELECT concat((SELECT json_agg(j) FROM jobgen.jobs j), (SELECT json_agg(r) FROM jobgen.job_result r), (SELECT json_agg(a) FROM jobgen.job_attempt a))`)
			}
			before := state()
			for name, try := range map[string]struct {
				worker uuid.UUID
				hold   engine.Hold
			}{
				"a fence of mine that has passed":   {me.ID, first},
				"a fence that has not been given":   {me.ID, engine.Hold{ID: now.ID, Fence: now.Fence + 1}},
				"another worker":                    {other.ID, now},
				"a worker that does not exist":      {uuid.New(), now},
				"another job":                       {me.ID, engine.Hold{ID: now.ID + 1, Fence: now.Fence}},
				"the fence of a job that is queued": {me.ID, engine.Hold{ID: now.ID, Fence: 0}},
			} {
				if n := w.do(f, try.worker, try.hold); n != 0 {
					t.Errorf("%s: %d changed", name, n)
				}
				if after := state(); after != before {
					t.Fatalf("%s:\nbefore %s\nafter  %s", name, before, after)
				}
			}
			if n := w.do(f, me.ID, now); n != 1 {
				t.Errorf("the current hold: %d changed, want 1", n)
			}
			if n := w.do(f, me.ID, now); n != 0 {
				t.Errorf("the same hold a second time: %d changed", n)
			}
		})
	}
}

func TestG4AHeartbeatTellsWhichHoldsAreGone(t *testing.T) {
	t.Parallel()
	f := open(t)
	me := f.worker(time.Hour)
	f.enqueue(3)
	held := holds(f.claim(me, 3))
	if _, err := f.store.Release(f.ctx(), me.ID, held[:1]); err != nil {
		t.Fatal(err)
	}
	stale := engine.Hold{ID: held[1].ID, Fence: held[1].Fence - 1}
	beat, err := f.store.Heartbeat(f.ctx(), me.ID, time.Hour, engine.Load{}, []engine.Hold{held[0], stale, held[2]})
	if err != nil || !beat.Renewed {
		t.Fatalf("%+v, %v", beat, err)
	}
	if slices.Sort(beat.Gone); !slices.Equal(beat.Gone, slices.Sorted(slices.Values([]int64{held[0].ID, stale.ID}))) {
		t.Errorf("gone are %v, want jobs %d and %d", beat.Gone, held[0].ID, stale.ID)
	}
}

func TestAFailedJobIsTriedAgainUntilItIsOutOfAttempts(t *testing.T) {
	t.Parallel()
	f := open(t)
	me := f.worker(time.Hour)
	for range 2 {
		f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, max_attempts) VALUES ('q', 'k', '{}', 2)`)
	}
	held := f.claim(me, 2)
	fail := func(h engine.Claimed, permanent bool, text string) engine.Failed {
		t.Helper()
		got, err := f.store.Fail(f.ctx(), me.ID, []engine.Failure{{Hold: engine.Hold{ID: h.ID, Fence: h.Fence}, Permanent: permanent, Error: text, Delay: 0}})
		if err != nil || len(got) != 1 {
			t.Fatal(got, err)
		}
		return got[0]
	}
	if fail(held[0], false, "first").Dead {
		t.Error("dead after the first of two attempts")
	}
	if !fail(held[1], true, "pointless").Dead {
		t.Error("not dead after a permanent failure")
	}
	again := f.claim(me, 2)
	if len(again) != 1 || again[0].ID != held[0].ID || again[0].Attempt != 2 {
		t.Fatalf("claimed %+v, want the second attempt of job %d", again, held[0].ID)
	}
	if !fail(again[0], false, "second").Dead {
		t.Error("not dead after two of two attempts")
	}
	f.expect("1 first,2 second", `SELECT string_agg(attempt || ' ' || error, ',' ORDER BY attempt) FROM jobgen.job_attempt
		WHERE job_id = $1 AND outcome = 'failed' AND worker_id = $2 AND fence > 0 AND started_at <= ended_at`, held[0].ID, me.ID)
	f.expect("dead second 2", "SELECT concat_ws(' ', status, last_error, attempt) FROM jobgen.jobs WHERE id = $1", held[0].ID)
	f.expect("dead pointless 1", "SELECT concat_ws(' ', status, last_error, attempt) FROM jobgen.jobs WHERE id = $1", held[1].ID)
}

func TestManyFailuresInOneFlushEachKeepTheirOwnDelayAndText(t *testing.T) {
	t.Parallel()
	f := open(t)
	me := f.worker(time.Hour)
	f.enqueue(50)
	var failures []engine.Failure
	for i, h := range holds(f.claim(me, 50)) {
		failures = append(failures, engine.Failure{Hold: h, Delay: time.Duration(i) * time.Minute, Error: string(rune('A' + i)), Permanent: i%7 == 0})
	}
	slices.Reverse(failures)
	before := value[time.Time](t, f.pool, "SELECT clock_timestamp()")
	got, err := f.store.Fail(f.ctx(), me.ID, failures)
	if err != nil || len(got) != 50 {
		t.Fatal(len(got), err)
	}
	after := value[time.Time](t, f.pool, "SELECT clock_timestamp()")
	for _, x := range failures {
		if x.Permanent {
			x.Delay = 0 // its run_at is when it died
		}
		at := value[time.Time](t, f.pool, "SELECT run_at FROM jobgen.jobs WHERE id = $1", x.ID)
		text := value[string](t, f.pool, "SELECT last_error FROM jobgen.jobs WHERE id = $1", x.ID)
		dead := value[bool](t, f.pool, "SELECT status = 'dead' FROM jobgen.jobs WHERE id = $1", x.ID)
		if at.Before(before.Add(x.Delay)) || at.After(after.Add(x.Delay)) || text != x.Error || dead != x.Permanent {
			t.Errorf("job %d: runs %s after it failed, error %q, dead %v; want %s, %q, %v", x.ID, at.Sub(before), text, dead, x.Delay, x.Error, x.Permanent)
		}
	}
}

func TestG9AnErrorTextThatCannotBeStoredIsAValueError(t *testing.T) {
	t.Parallel()
	f := open(t)
	me := f.worker(time.Hour)
	f.enqueue(2)
	held := holds(f.claim(me, 2))
	_, err := f.store.Fail(f.ctx(), me.ID, []engine.Failure{{Hold: held[0], Error: "fine"}, {Hold: held[1], Error: "a\x00b"}})
	if _, is := err.(*engine.ValueError); !is {
		t.Errorf("got %T %v, want a ValueError", err, err)
	}
	_, err = f.store.Complete(f.ctx(), me.ID, []engine.Success{{Hold: held[0], Record: true, Result: []byte(`"\u0000"`)}})
	if _, is := err.(*engine.ValueError); !is {
		t.Errorf("got %T %v, want a ValueError", err, err)
	}
	f.expect(2, "SELECT count(*) FROM jobgen.jobs WHERE status = 'running'")
}

func TestGivingBackNeverPutsAJobToTheLeftOfAMark(t *testing.T) {
	t.Parallel()
	f := open(t)
	me := f.worker(time.Hour)
	for name, back := range map[string]func(engine.Hold){
		"Release": func(h engine.Hold) {
			_, err := f.store.Release(f.ctx(), me.ID, []engine.Hold{h})
			f.no(err)
		},
		"Fail": func(h engine.Hold) {
			_, err := f.store.Fail(f.ctx(), me.ID, []engine.Failure{{Hold: h}})
			f.no(err)
		},
		"Reclaim": func(engine.Hold) {
			f.exec("UPDATE jobgen.workers SET lost_at = now()")
			_, err := f.store.Reclaim(f.ctx(), 10, 5, 0, false)
			f.no(err)
		},
	} {
		f.exec("DELETE FROM jobgen.jobs")
		f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, run_at) VALUES ('q', 'k', '{}', now() - interval '1 day')`)
		held := holds(f.claim(me, 1))
		before := value[time.Time](t, f.pool, "SELECT clock_timestamp()")
		back(held[0])
		if at := value[time.Time](t, f.pool, "SELECT run_at FROM jobgen.jobs"); at.Before(before) {
			t.Errorf("%s put the job %s into the past", name, before.Sub(at))
		}
		f.exec("UPDATE jobgen.workers SET lost_at = NULL")
	}
}

func TestAReleasedJobHasItsAttemptBack(t *testing.T) {
	t.Parallel()
	f := open(t)
	me := f.worker(time.Hour)
	f.enqueue(1)
	for range 50 { // more often than it may be tried
		held := f.claim(me, 1)
		if len(held) != 1 || held[0].Attempt != 1 {
			t.Fatalf("claimed %+v", held)
		}
		if _, err := f.store.Release(f.ctx(), me.ID, holds(held)); err != nil {
			t.Fatal(err)
		}
	}
	f.expect(0, "SELECT count(*) FROM jobgen.job_attempt")
}

func TestG4AHeartbeatThatWaitedPastItsLeaseIsRefused(t *testing.T) {
	t.Parallel()
	f := open(t)
	me := f.worker(time.Hour)
	lock := f.begin(f.connect())
	must(t, lock, "SELECT FROM jobgen.workers WHERE id = $1 FOR UPDATE", me.ID)
	type answer struct {
		beat engine.Beat
		err  error
	}
	got := make(chan answer)
	go func() {
		beat, err := f.store.Heartbeat(f.ctx(), me.ID, time.Hour, engine.Load{}, nil)
		got <- answer{beat, err}
	}()
	f.blocked(1)
	// The lease stood when the heartbeat was sent, and runs out while it waits.
	must(t, lock, "UPDATE jobgen.workers SET lease_until = clock_timestamp() + interval '20 ms'")
	until := value[time.Time](t, lock, "SELECT lease_until FROM jobgen.workers")
	f.until("SELECT clock_timestamp() > $1", until)
	if err := lock.Commit(f.ctx()); err != nil {
		t.Fatal(err)
	}
	if a := <-got; a.err != nil || a.beat.Renewed {
		t.Errorf("%+v: the lease ran out while the heartbeat waited", a)
	}
}

func TestALeaseThatRanOutAndWasNotJudgedIsRenewed(t *testing.T) {
	t.Parallel()
	f := open(t)
	me := f.worker(-time.Minute)
	if beat, err := f.store.Heartbeat(f.ctx(), me.ID, time.Hour, engine.Load{}, nil); err != nil || !beat.Renewed {
		t.Errorf("%+v, %v: after an outage of the database the fleet must come back", beat, err)
	}
	if lost, err := f.store.MarkLost(f.ctx()); err != nil || len(lost) != 0 {
		t.Errorf("marked %v lost, %v", lost, err)
	}
}

func TestG4AWorkerMarkedLostNeverRenews(t *testing.T) {
	t.Parallel()
	f := open(t)
	me := f.worker(-time.Minute)
	lost, err := f.store.MarkLost(f.ctx())
	if err != nil || len(lost) != 1 || lost[0].ID != me.ID || lost[0].Host != "host" || lost[0].PID != 1 {
		t.Fatalf("marked %+v lost, %v", lost, err)
	}
	for range 2 {
		if beat, err := f.store.Heartbeat(f.ctx(), me.ID, time.Hour, engine.Load{}, nil); err != nil || beat.Renewed {
			t.Errorf("%+v, %v", beat, err)
		}
	}
	// A heartbeat that waits for the judgement loses against it.
	you := f.worker(-time.Minute)
	judge := f.begin(f.connect())
	must(t, judge, "UPDATE jobgen.workers SET lost_at = clock_timestamp() WHERE id = $1", you.ID)
	renewed := make(chan bool)
	go func() {
		beat, err := f.store.Heartbeat(f.ctx(), you.ID, time.Hour, engine.Load{}, nil)
		f.no(err)
		renewed <- beat.Renewed
	}()
	f.blocked(1)
	if err := judge.Commit(f.ctx()); err != nil {
		t.Fatal(err)
	}
	if <-renewed {
		t.Error("a heartbeat overtook the judgement it had waited for")
	}
}

func TestAWorkerThatHoldsSomethingCannotLeaveUnnoticed(t *testing.T) {
	t.Parallel()
	f := open(t)
	idle, busy := f.worker(time.Hour), f.worker(time.Hour)
	f.enqueue(1)
	f.claim(busy, 1)
	f.no(f.store.Leave(f.ctx(), idle.ID))
	f.no(f.store.Leave(f.ctx(), busy.ID))
	f.expect(1, "SELECT count(*) FROM jobgen.workers WHERE lost_at IS NOT NULL")
	back, err := f.store.Reclaim(f.ctx(), 10, 5, 0, false)
	if err != nil || len(back) != 1 || back[0].Worker != busy.ID {
		t.Errorf("reclaimed %+v, %v", back, err)
	}
}

func TestG6AResultLeavesAloneWhatAnotherJobHasRecorded(t *testing.T) {
	t.Parallel()
	f := open(t)
	me := f.worker(time.Hour)
	for key, change := range map[string]string{
		"taken over": "UPDATE jobgen.job_result SET job_id = -1 WHERE key = $1",
		"finished":   "UPDATE jobgen.job_result SET finished_at = now(), expires_at = now() + interval '1 h', result = '\"first\"' WHERE key = $1",
	} {
		f.insert(engine.Element{Key: key, Payload: []byte("{}")})
		held := holds(f.claim(me, 1))[0]
		f.exec(change, key)
		before := value[string](t, f.pool, "SELECT to_jsonb(r)::text FROM jobgen.job_result r WHERE key = $1", key)
		success := engine.Success{Hold: held, Record: true, Result: []byte(`"second"`), Keep: time.Hour}
		err := f.store.InTx(f.ctx(), me.ID, func(_ any, finish func(engine.Success) error) error { return finish(success) })
		if !errors.Is(err, engine.ErrRecorded) {
			t.Errorf("%s: a transactional handler's completion gave %v, want ErrRecorded: its effects must not commit", key, err)
		}
		if done, err := f.store.Complete(f.ctx(), me.ID, []engine.Success{success}); err != nil || len(done) != 1 {
			t.Errorf("%s: completed %v, %v: the job itself is done", key, done, err)
		}
		if after := value[string](t, f.pool, "SELECT to_jsonb(r)::text FROM jobgen.job_result r WHERE key = $1", key); after != before {
			t.Errorf("%s: the record was %s and is %s", key, before, after)
		}
	}
}
