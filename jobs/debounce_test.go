package jobs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

// pass lets time pass for the one job that waits: it was enqueued, and is due, that much earlier.
func (f *fixture) pass(d time.Duration) {
	f.Helper()
	f.exec(`UPDATE jobgen.jobs SET created_at = created_at - $1::interval, run_at = run_at - $1::interval`, d)
}

// due is how long until the job is due.
func (f *fixture) due(id int64) time.Duration {
	f.Helper()
	us := value[int64](f.T, f.pool, `SELECT (extract(epoch FROM run_at - clock_timestamp()) * 1000000)::bigint FROM jobgen.jobs WHERE id = $1`, id)
	return time.Duration(us) * time.Microsecond
}

// about asserts that the job is due in d, give or take what a slow machine does.
func (f *fixture) about(id int64, d time.Duration) {
	f.Helper()
	if got := f.due(id); got > d || got < d-30*time.Second {
		f.Errorf("job %d is due in %s, want %s", id, got, d)
	}
}

func TestDebouncePutsAJobOffWithEachFurtherEnqueueButNotForEver(t *testing.T) {
	t.Parallel()
	f := open(t)
	debounce := func(note string) jobs.Ref[receipt] {
		t.Helper()
		return f.enqueue(note, jobs.Debounce(10*time.Minute, 30*time.Minute))
	}
	first := debounce("0")
	if first.Existing || first.Replaced {
		t.Errorf("%+v", first)
	}
	f.about(first.ID, 10*time.Minute)
	for i, want := range []time.Duration{10, 10, 9, 3, 0} {
		f.pass([]time.Duration{9, 9, 3, 6, 4}[i] * time.Minute)
		note := fmt.Sprint(i + 1)
		if ref := debounce(note); ref.ID != first.ID || !ref.Existing || !ref.Replaced || f.note(ref.ID) != note {
			t.Errorf("%+v, %q", ref, f.note(ref.ID))
		}
		if want > 0 {
			f.about(first.ID, want*time.Minute)
		}
	}
	// It is due, a minute ago: a stream that goes on does not move it any more.
	if got := f.due(first.ID); got > -30*time.Second {
		t.Errorf("due in %s", got)
	}
	f.counts(1, 1)
	if c := f.one(f.claim(10)); string(c.Payload) != `{"id": "a", "note": "5"}` {
		t.Errorf("it runs with %s", c.Payload)
	}
}

func TestDebounceWithoutAMostEndsAfterTenDelays(t *testing.T) {
	t.Parallel()
	f := open(t)
	ref := f.enqueue("", jobs.Debounce(10*time.Minute, 0))
	f.pass(95 * time.Minute)
	f.enqueue("", jobs.Debounce(10*time.Minute, 0))
	f.about(ref.ID, 5*time.Minute)
	// The longest there is.
	f.enqueue("", jobs.Debounce(99*365*24*time.Hour, 0))
	f.about(ref.ID, 99*365*24*time.Hour)
}

// A job that has been tried, or is dead, has nothing to do with what is asked for now but its key.
func TestDebounceBeginsAnewWithAJobThatHasBeenTried(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(f *fixture, c engine.Claimed){
		"waits for its next attempt": func(f *fixture, c engine.Claimed) {
			_, err := f.store.Fail(f.ctx(), f.worker.ID, []engine.Failure{{Hold: hold(c), Error: "no", Delay: time.Hour}})
			f.no(err)
		},
		"is dead": func(f *fixture, c engine.Claimed) { f.die(c, "no") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			c := running(f)
			f.exec(`UPDATE jobgen.jobs SET created_at = created_at - interval '1 day'`)
			end(f, c)
			for range 2 {
				if ref := f.enqueue("new", jobs.Debounce(10*time.Minute, time.Hour)); ref.ID != c.ID || f.note(ref.ID) != "new" {
					t.Errorf("%+v", ref)
				}
				f.about(c.ID, 10*time.Minute)
			}
			f.expect(true, `SELECT status = 'queued' AND attempt = 0 FROM jobgen.jobs`)
		})
	}
}

// What comes while the job runs is not lost: it has a job of its own, which takes over the key.
func TestDebounceWhileTheJobRunsMakesANewOne(t *testing.T) {
	t.Parallel()
	finish := map[string]func(f *fixture, s engine.Success) error{
		"a plain handler": func(f *fixture, s engine.Success) error {
			got, err := f.store.Complete(f.ctx(), f.worker.ID, []engine.Success{s})
			if err == nil && len(got) != 1 {
				err = errors.New("it was not completed")
			}
			return err
		},
		"a transactional handler": func(f *fixture, s engine.Success) error {
			return f.store.InTx(f.ctx(), f.worker.ID, func(_ any, finish func(engine.Success) error) error { return finish(s) })
		},
	}
	for name, finish := range finish {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			c := running(f)
			next := f.enqueue("new", jobs.Debounce(10*time.Minute, 0))
			if next.ID == c.ID || next.Existing || next.Replaced {
				t.Errorf("%+v", next)
			}
			f.about(next.ID, 10*time.Minute)
			again := f.enqueue("newer", jobs.Debounce(10*time.Minute, 0))
			if again.ID != next.ID || !again.Replaced || f.note(next.ID) != "newer" {
				t.Errorf("%+v, %q", again, f.note(next.ID))
			}
			if note := f.note(c.ID); note != "" {
				t.Errorf("the running job has %q", note)
			}
			// What the running one did counts, and the key is not its any more.
			f.no(finish(f, engine.Success{Hold: hold(c), Kind: c.Kind, Key: c.Key, Record: true, Result: []byte(`{"total": 1}`), Keep: time.Hour}))
			f.counts(1, 1)
			f.exec(`UPDATE jobgen.jobs SET run_at = clock_timestamp()`)
			n := f.one(f.claim(10))
			if n.ID != next.ID || n.Recorded {
				t.Errorf("%+v", n)
			}
			f.no(finish(f, engine.Success{Hold: hold(n), Record: true, Result: []byte(`{"total": 2}`), Keep: time.Hour}))
			if got, err := next.Await(f.ctx(), f.pool); err != nil || got.Total != 2 {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func TestG6AJobWhoseKeyWasHandedOverLeavesTheRestToTheNewOne(t *testing.T) {
	t.Parallel()
	f := open(t)
	old := running(f)
	next := f.enqueue("new", jobs.Debounce(time.Hour, 0))
	// Its attempt fails: there is no other.
	if _, err := f.store.Fail(f.ctx(), f.worker.ID, []engine.Failure{{Hold: hold(old), Error: "no"}}); err != nil {
		t.Fatal(err)
	}
	if c := f.one(f.claim(10)); c.ID != old.ID || !c.Recorded {
		t.Errorf("claimed %+v", c)
	}
	f.exec(`DELETE FROM jobgen.jobs WHERE id = $1`, old.ID)

	// It is slower than the new one: what it does late does not take effect on top of what that has done.
	f.exec(`UPDATE jobgen.jobs SET run_at = clock_timestamp()`)
	slow := f.one(f.claim(10))
	f.enqueue("newest", jobs.Debounce(0, 0))
	newest := f.one(f.claim(10))
	if slow.ID != next.ID || newest.ID == slow.ID {
		t.Fatalf("claimed %d and %d", slow.ID, newest.ID)
	}
	f.finish(newest, `{"total": 3}`, time.Hour)
	late := engine.Success{Hold: hold(slow), Record: true, Result: []byte(`{"total": 2}`), Keep: time.Hour}
	err := f.store.InTx(f.ctx(), f.worker.ID, func(_ any, finish func(engine.Success) error) error { return finish(late) })
	if !errors.Is(err, engine.ErrRecorded) {
		t.Errorf("a transactional handler's late end gave %v", err)
	}
	if got, err := f.store.Complete(f.ctx(), f.worker.ID, []engine.Success{late}); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	f.expect(`{"total": 3}`, `SELECT result::text FROM jobgen.job_result`)
	f.counts(0, 1)
}

func TestDebounceAfterTheJobHasFinishedMakesANewOne(t *testing.T) {
	t.Parallel()
	f := open(t)
	c := running(f)
	f.finish(c, `{"total": 1}`, time.Hour)
	ref := f.enqueue("new", jobs.Debounce(10*time.Minute, 0))
	if ref.ID == c.ID || ref.Existing || ref.Replaced {
		t.Errorf("%+v", ref)
	}
	f.about(ref.ID, 10*time.Minute)
	f.expect(true, `SELECT finished_at IS NULL AND expires_at IS NULL AND result IS NULL AND job_id = `+fmt.Sprint(ref.ID)+` FROM jobgen.job_result`)
	f.exec(`UPDATE jobgen.jobs SET run_at = clock_timestamp()`)
	if n := f.one(f.claim(10)); n.ID != ref.ID || n.Recorded {
		t.Errorf("%+v", n)
	}
}

// A transaction that owns the job by lock runs it, for as long as its handler takes.
func TestDebounceDoesNotWaitForWhoeverRunsTheJob(t *testing.T) {
	t.Parallel()
	f := open(t)
	ref := f.enqueue("old", jobs.Debounce(0, 0))
	owner := f.begin(pgx.TxOptions{})
	value[int64](t, owner, `SELECT id FROM jobgen.jobs FOR UPDATE`)
	caller := f.begin(pgx.TxOptions{})
	_, err := caller.Exec(f.ctx(), `SET LOCAL lock_timeout = '1ms'`)
	f.no(err)
	next := f.enqueueOn(caller, "new", jobs.Debounce(0, 0))
	if next.ID == ref.ID || next.Existing {
		t.Errorf("%+v", next)
	}
	f.no(caller.Commit(f.ctx()))
	f.no(owner.Commit(f.ctx()))
	if old, now := f.note(ref.ID), f.note(next.ID); old != "old" || now != "new" {
		t.Errorf("%q, %q", old, now)
	}
}

// However enqueues, claims and completions meet: what was committed last runs, and its result stays.
func TestG2WhatIsDebouncedLastRunsLast(t *testing.T) {
	t.Parallel()
	rounds := 40
	if testing.Short() {
		rounds = 8
	}
	f := open(t)
	f.exec(`CREATE TABLE doc (key text PRIMARY KEY, last text); INSERT INTO doc VALUES ('a', '')`)
	var mu sync.Mutex
	ran := map[string]bool{} // notes
	work := func(c engine.Claimed) {
		if c.Recorded {
			if _, err := f.store.Complete(f.ctx(), f.worker.ID, []engine.Success{{Hold: hold(c)}}); err != nil {
				t.Error(err)
			}
			return
		}
		var o order
		err := json.Unmarshal(c.Payload, &o)
		mu.Lock()
		ran[o.Note] = true
		mu.Unlock()
		if err != nil {
			t.Error(err)
		}
		s := engine.Success{Hold: hold(c), Record: true, Result: []byte(strconv.Quote(o.Note)), Keep: time.Hour}
		switch rand.IntN(4) {
		case 0:
			_, err = f.store.Fail(f.ctx(), f.worker.ID, []engine.Failure{{Hold: hold(c), Error: "no"}})
		case 1:
			err = f.store.InTx(f.ctx(), f.worker.ID, func(_ any, finish func(engine.Success) error) error { return finish(s) })
			if errors.Is(err, engine.ErrRecorded) {
				_, err = f.store.Complete(f.ctx(), f.worker.ID, []engine.Success{{Hold: hold(c)}})
			}
		default:
			for _, err = f.store.Complete(f.ctx(), f.worker.ID, []engine.Success{s}); errors.Is(err, engine.ErrLocked); {
				_, err = f.store.Complete(f.ctx(), f.worker.ID, []engine.Success{s})
			}
		}
		if err != nil {
			t.Error(err)
		}
	}
	for round := range rounds {
		clear(ran)
		var enqueuers, workers sync.WaitGroup
		var done atomic.Bool
		for w := range 2 {
			workers.Go(func() {
				for !t.Failed() {
					stop := done.Load() // before the claim: what it does not find then is not there
					got := f.claim(1 + w)
					for _, c := range got {
						work(c)
					}
					if stop && len(got) == 0 && value[int](t, f.pool, `SELECT count(*) FROM jobgen.jobs`) == 0 {
						return
					}
				}
			})
		}
		for e := range 4 {
			enqueuers.Go(func() {
				for i := range 5 {
					note := fmt.Sprintf("%d/%d/%d", round, e, i)
					err := pgx.BeginFunc(f.ctx(), f.pool, func(tx pgx.Tx) error {
						if _, err := jobs.Enqueue(f.ctx(), tx, keyed, order{ID: "a", Note: note}, jobs.Debounce(time.Duration(rand.IntN(3))*time.Millisecond, 5*time.Millisecond)); err != nil {
							return err
						}
						// In the order of the key's lock, which is the order of the commits.
						_, err := tx.Exec(f.ctx(), `UPDATE doc SET last = $1`, note)
						return err
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		enqueuers.Wait()
		done.Store(true)
		workers.Wait()
		if t.Failed() {
			return
		}
		last, recorded := value[string](t, f.pool, `SELECT last FROM doc`), value[string](t, f.pool, `SELECT result #>> '{}' FROM jobgen.job_result`)
		if !ran[last] || recorded != last {
			t.Fatalf("round %d: %s was committed last, %s is on record; what ran: %v", round, last, recorded, ran)
		}
	}
}
