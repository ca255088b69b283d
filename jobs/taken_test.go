package jobs_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
)

func TestG6ASerializableCallerGetsAnErrorNeverADuplicate(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		// What happens to the key after the caller's snapshot was taken.
		for name, meanwhile := range map[string]func(f *fixture){
			"another enqueues it": func(f *fixture) { running(f) },
			"its job succeeds":    func(f *fixture) { f.finish(f.one(f.claim(1)), "{}", time.Hour) },
			"its job dies":        func(f *fixture) { f.die(f.one(f.claim(1)), "no") },
			"its dead job is revived": func(f *fixture) {
				_, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"})
				f.no(err)
			},
			"its expired result is purged": func(f *fixture) {
				_, err := f.store.Purge(f.ctx(), engine.Keep{Attempts: time.Hour, Samples: time.Hour})
				f.no(err)
			},
			"its expired result is purged and it is enqueued again": func(f *fixture) {
				_, err := f.store.Purge(f.ctx(), engine.Keep{Attempts: time.Hour, Samples: time.Hour})
				f.no(err)
				running(f)
			},
		} {
			t.Run(fmt.Sprint(level, ": ", name), func(t *testing.T) {
				t.Parallel()
				f := open(t)
				switch {
				case strings.Contains(name, "expired"):
					expired(f)
				case strings.Contains(name, "dead"):
					dead(f)
				case strings.HasPrefix(name, "its"):
					_, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"})
					f.no(err)
				}
				for _, many := range []bool{false, true} {
					tx := f.begin(pgx.TxOptions{IsoLevel: level})
					value[int](t, tx, "SELECT count(*) FROM jobgen.jobs") // the snapshot
					if !many {
						meanwhile(f)
					}
					var refs []jobs.Ref[receipt]
					var err error
					if many {
						refs, err = jobs.EnqueueMany(f.ctx(), tx, keyed, []order{{ID: "a"}, {ID: "b"}, {ID: "a"}})
					} else {
						refs = make([]jobs.Ref[receipt], 1)
						refs[0], err = jobs.Enqueue(f.ctx(), tx, keyed, order{ID: "a"})
					}
					if err == nil {
						err = tx.Commit(f.ctx())
					}
					_ = tx.Rollback(f.ctx())
					if err != nil && !serialization(err) {
						t.Errorf("got %v, want nothing or a serialization failure", err)
					}
					live := value[int](t, f.pool, "SELECT count(*) FROM jobgen.jobs j WHERE key = (SELECT key FROM jobgen.job_result WHERE right(key, 1) = 'a') AND status <> 'dead'")
					results := value[int](t, f.pool, "SELECT count(*) FROM jobgen.job_result WHERE right(key, 1) = 'a' AND finished_at IS NOT NULL AND expires_at > now()")
					if live+results > 1 {
						t.Errorf("%d jobs and %d results of one key", live, results)
					}
					if err == nil && refs[0].ID != value[int64](t, f.pool, "SELECT job_id FROM jobgen.job_result WHERE right(key, 1) = 'a'") {
						t.Errorf("the answer %+v is not the key's job", refs[0])
					}
				}
			})
		}
	}
}

func TestG6ADeadJobsKeyRevivesItWithTheNewPayload(t *testing.T) {
	t.Parallel()
	f := open(t)
	c := dead(f)
	f.exec("UPDATE jobgen.jobs SET crashes = 4")
	ref, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a", Note: "new"}, jobs.Priority(7), jobs.MaxAttempts(3), jobs.Headers(map[string]string{"h": "new"}))
	if err != nil || ref.ID != c.ID || ref.Existing {
		t.Fatalf("%+v, %v", ref, err)
	}
	job := jobtest.EnqueuedOne[order](t, f.pool, keyed.Kind)
	if job.Status != "queued" || job.Payload.Note != "new" || job.Attempt != 0 || job.MaxAttempts != 3 || job.Priority != 7 || job.Headers["h"] != "new" {
		t.Errorf("%+v", job)
	}
	f.expect(0, "SELECT crashes FROM jobgen.jobs")
	again, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a", Note: "newer"})
	if err != nil || !again.Existing {
		t.Errorf("%+v, %v", again, err)
	}
	if c := f.one(f.claim(1)); c.Attempt != 1 {
		t.Errorf("attempt %d", c.Attempt)
	}
}

func TestG6ARecordedResultAnswersForTheKeyUntilItExpires(t *testing.T) {
	t.Parallel()
	f := open(t)
	c := running(f)
	f.finish(c, `{"total": 3}`, time.Hour)
	ref, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"})
	if err != nil || !ref.Existing || ref.ID != c.ID {
		t.Fatalf("%+v, %v", ref, err)
	}
	if got, err := ref.Await(f.ctx(), f.pool); err != nil || got.Total != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	f.counts(0, 1)
	f.exec("UPDATE jobgen.job_result SET expires_at = now()") // and not purged
	next, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"})
	if err != nil || next.Existing || next.ID == c.ID {
		t.Errorf("after it expired: %+v, %v", next, err)
	}
	f.counts(1, 1)
	f.expect(true, "SELECT finished_at IS NULL AND result IS NULL FROM jobgen.job_result")
}

func TestG6AKeyWhoseJobWasRemovedByHandIsFree(t *testing.T) {
	t.Parallel()
	f := open(t)
	c := running(f)
	f.exec("DELETE FROM jobgen.jobs")
	ref, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"})
	if err != nil || ref.Existing || ref.ID == c.ID {
		t.Errorf("%+v, %v", ref, err)
	}
}

func TestG6APurgeRacingEnqueuesOfTheSameKeyLosesNoWork(t *testing.T) {
	t.Parallel()
	f := open(t)
	rounds := 2000
	if testing.Short() {
		rounds = 200
	}
	var calls atomic.Int64
	done := make(chan struct{})
	var upkeep, enqueuers sync.WaitGroup
	// One purges and one finishes what there is, with results that expire at once.
	upkeep.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if _, err := f.store.Purge(f.ctx(), engine.Keep{Attempts: time.Hour, Samples: time.Hour}); err != nil {
				t.Error(err)
			}
		}
	})
	upkeep.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			for _, c := range f.claim(10) {
				f.finish(c, "{}", 0)
			}
		}
	})
	for range 8 {
		conn := f.connect()
		enqueuers.Go(func() {
			for calls.Add(1) <= int64(rounds) {
				ref, err := jobs.Enqueue(f.ctx(), conn, keyed, order{ID: "a"})
				if err != nil || ref.ID == 0 {
					t.Errorf("%+v, %v", ref, err)
					return
				}
			}
		})
	}
	enqueuers.Wait()
	close(done)
	upkeep.Wait()
	// Each job that was promised to a caller is there still, or has run.
	for _, c := range f.claim(10) {
		f.finish(c, "{}", time.Hour)
	}
	f.expect(0, "SELECT count(*) FROM jobgen.jobs")
	ref, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"})
	if err != nil {
		t.Error(err)
	}
	if !ref.Existing {
		f.one(f.claim(10))
	}
	f.expect(1, "SELECT count(*) FROM jobgen.job_result")
}

func TestG6TheSameKeyInTwoKindsIsTwoJobs(t *testing.T) {
	t.Parallel()
	f := open(t)
	a, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"})
	f.no(err)
	b, err := jobs.Enqueue(f.ctx(), f.pool, rekeyed, order{ID: "a"})
	f.no(err)
	if a.ID == b.ID || a.Existing || b.Existing {
		t.Errorf("%+v, %+v", a, b)
	}
	f.counts(2, 2)
}

func TestG6ManyJobsWithDuplicatesInsideAndOutsideTheBatch(t *testing.T) {
	t.Parallel()
	f := open(t)
	key := func(i int) string { return fmt.Sprintf("%02d", i) }
	// 0–9 wait already, 10–19 have results, 20–29 are dead, 30–39 have expired.
	before := map[string]int64{}
	for i := range 40 {
		ref, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: key(i), Note: "before"}, jobs.In(time.Duration(min(1, max(0, 10-i)))*time.Hour))
		f.no(err)
		before[key(i)] = ref.ID
	}
	for _, c := range f.claim(30) {
		job, err := jobs.Decode(keyed, &c)
		f.no(err)
		switch {
		case job.Payload.ID < "20":
			f.finish(c, "{}", time.Hour)
		case job.Payload.ID < "30":
			f.die(c, "no")
		default:
			f.finish(c, "{}", 0)
		}
	}
	var payloads []order
	for i := range 100 { // each of 50 keys twice
		payloads = append(payloads, order{ID: key(i % 50), Note: fmt.Sprint("batch ", i)})
	}
	rand.New(rand.NewPCG(3, 4)).Shuffle(len(payloads), func(i, j int) { payloads[i], payloads[j] = payloads[j], payloads[i] })
	refs, err := jobs.EnqueueMany(f.ctx(), f.pool, keyed, payloads)
	f.no(err)
	inJobs := map[int64]jobtest.Job[order]{}
	for _, j := range jobtest.Enqueued[order](t, f.pool, keyed.Kind) {
		inJobs[j.ID] = j
	}
	first := map[string]int64{}
	for i, r := range refs {
		p := payloads[i]
		id, again := first[p.ID]
		first[p.ID] = r.ID
		job, waits := inJobs[r.ID]
		switch {
		case r.ID == 0 || r.Kind != keyed.Kind:
			t.Errorf("payload %d (%s): no answer: %+v", i, p.ID, r)
		case again && (id != r.ID || !r.Existing):
			t.Errorf("payload %d (%s) is a duplicate: %+v, the first one %d", i, p.ID, r, id)
		case again:
		case p.ID < "20" && (r.ID != before[p.ID] || !r.Existing):
			t.Errorf("payload %d (%s) waits or is on record as %d: %+v", i, p.ID, before[p.ID], r)
		case p.ID >= "20" && p.ID < "30" && (r.ID != before[p.ID] || r.Existing || job.Payload.Note != p.Note || job.Status != "queued"):
			t.Errorf("payload %d (%s) revives %d: %+v, %+v", i, p.ID, before[p.ID], r, job)
		case p.ID >= "30" && (r.Existing || r.ID == before[p.ID] || !waits || job.Payload.Note != p.Note):
			t.Errorf("payload %d (%s) is new: %+v, %+v", i, p.ID, r, job)
		case waits && job.Payload.ID != p.ID:
			t.Errorf("payload %d (%s): the answer is the job of %s", i, p.ID, job.Payload.ID)
		}
	}
	if len(inJobs) != 40 { // 10 waited, 10 revived, 20 new
		t.Errorf("%d jobs", len(inJobs))
	}
	f.expect(50, "SELECT count(*) FROM jobgen.job_result")
}

func TestG6EnqueuesOfTheSameKeysInOppositeOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(f *fixture, keys []order){
		"new keys": func(*fixture, []order) {},
		"keys whose results have expired": func(f *fixture, keys []order) {
			_, err := jobs.EnqueueMany(f.ctx(), f.pool, keyed, keys)
			f.no(err)
			for _, c := range f.claim(len(keys)) {
				f.finish(c, "", 0)
			}
		},
		"keys of dead jobs": func(f *fixture, keys []order) {
			_, err := jobs.EnqueueMany(f.ctx(), f.pool, keyed, keys)
			f.no(err)
			for _, c := range f.claim(len(keys)) {
				f.die(c, "no")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			for round := range 5 {
				var keys []order
				for i := range 20 {
					keys = append(keys, order{ID: fmt.Sprintf("%d/%02d", round, i)})
				}
				prepare(f, keys)
				start := make(chan struct{})
				var all sync.WaitGroup
				var fresh atomic.Int64
				for i := range 4 {
					mine := slices.Clone(keys)
					if i%2 == 1 {
						slices.Reverse(mine)
					}
					tx := f.begin(pgx.TxOptions{})
					all.Go(func() {
						<-start
						refs, err := jobs.EnqueueMany(f.ctx(), tx, keyed, mine)
						if err == nil {
							err = tx.Commit(f.ctx())
						}
						if err != nil {
							t.Error(err)
							_ = tx.Rollback(context.Background())
						}
						for _, r := range refs {
							if !r.Existing {
								fresh.Add(1)
							}
						}
					})
				}
				close(start)
				all.Wait()
				if fresh.Load() != 20 {
					t.Errorf("%d of 20 keys were enqueued anew", fresh.Load())
				}
				f.exec("TRUNCATE jobgen.jobs, jobgen.job_result")
			}
		})
	}
}

func TestG6ManyKeysAreTakenInKeyOrder(t *testing.T) {
	t.Parallel()
	f := open(t)
	var keys []order
	for i := range 20 {
		keys = append(keys, order{ID: fmt.Sprintf("%02d", 19-i)})
	}
	first := f.begin(pgx.TxOptions{})
	_, err := jobs.Enqueue(f.ctx(), first, keyed, order{ID: "00"})
	f.no(err)
	conn := f.connect()
	done := make(chan error)
	go func() {
		_, err := jobs.EnqueueMany(f.ctx(), conn, keyed, keys)
		done <- err
	}()
	f.until(`SELECT coalesce(wait_event_type = 'Lock', false) FROM pg_stat_activity WHERE pid = $1`, conn.PgConn().PID())
	// It waits for the first key and has none of the others, so nobody who goes in the same order can wait for it.
	other := f.begin(pgx.TxOptions{})
	_, err = other.Exec(f.ctx(), "SET LOCAL lock_timeout = '1ms'")
	f.no(err)
	for _, k := range keys[:19] {
		if _, err := jobs.Enqueue(f.ctx(), other, keyed, k); err != nil {
			t.Errorf("key %s: %v", k.ID, err)
			break
		}
	}
	_ = other.Rollback(f.ctx())
	_ = first.Rollback(f.ctx())
	if err := <-done; err != nil {
		t.Error(err)
	}
	f.counts(20, 20)
}

func TestG6KeysThatCannotBeStoredAsTheyAreWorkAllTheSame(t *testing.T) {
	t.Parallel()
	f := open(t)
	ids := map[int64]string{}
	for _, key := range []string{
		strings.Repeat("x", 200), strings.Repeat("x", 201), strings.Repeat("x", 100_000), strings.Repeat("é", 101),
		"a\x00b", "a\xffb", "a\xfeb", "ünï☃", "'; DROP TABLE jobgen.jobs; --", "sha256:" + strings.Repeat("0", 64),
	} {
		ref, err := jobs.Enqueue(f.ctx(), f.pool, plain, order{}, jobs.Key(key))
		if err != nil || ref.Existing {
			t.Errorf("key %.20q: %+v, %v", key, ref, err)
			continue
		}
		if was, taken := ids[ref.ID]; taken {
			t.Errorf("keys %.20q and %.20q share job %d", was, key, ref.ID)
		}
		ids[ref.ID] = key
		again, err := jobs.Enqueue(f.ctx(), f.pool, plain, order{}, jobs.Key(key))
		if err != nil || !again.Existing || again.ID != ref.ID {
			t.Errorf("key %.20q again: %+v, %v", key, again, err)
		}
	}
}

func TestG6AJobScheduledForLaterDoesNotConflictWithItself(t *testing.T) {
	t.Parallel()
	f := open(t)
	ref, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"}, jobs.In(time.Hour))
	f.no(err)
	f.exec("UPDATE jobgen.jobs SET run_at = now()")
	c := f.one(f.claim(10))
	if c.ID != ref.ID || c.Recorded {
		t.Errorf("%+v", c)
	}
	f.finish(c, "{}", time.Hour)
	f.counts(0, 1)
}
