package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

const week = 7 * 24 * time.Hour

// purge purges until there is nothing left to purge and tells how many calls it took.
func (f *fixture) purge() int {
	f.Helper()
	for calls := 1; ; calls++ {
		done, err := f.store.Purge(f.ctx(), engine.Keep{Attempts: week, Samples: 2 * week})
		if err != nil {
			f.Fatal(err)
		}
		if !done.More {
			return calls
		}
	}
}

func TestPurgeRemovesWhatHasExpiredAndNothingElse(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.exec(`INSERT INTO jobgen.job_result (kind, key, job_id, finished_at, expires_at) VALUES
		('k', 'same', 1, now(), now() - interval '1 s'), ('l', 'same', 2, now(), now() + interval '1 h'),
		('k', 'kept', 3, now(), now() + interval '1 h'), ('l', 'gone', 7, now(), now() - interval '1 s'), ('k', 'job:4', 4, now(), now() - interval '1 year')`)
	f.exec(`INSERT INTO jobgen.job_result (kind, key, job_id) VALUES ('k', 'unfinished', 5), ('l', 'unfinished', 6)`)
	worker := f.worker(time.Hour)
	f.exec(`INSERT INTO jobgen.job_attempt (job_id, attempt, fence, worker_id, started_at, ended_at, outcome, error) VALUES
		(1, 1, 1, $1, now(), now() - interval '8 days', 'failed', ''), (1, 2, 2, $1, now(), now() - interval '6 days', 'failed', ''),
		(2, 1, 3, $1, now(), now() - interval '1 year', 'failed', '')`, worker.ID)
	f.exec(`INSERT INTO jobgen.samples (minute, queue, kind) VALUES (now() - interval '15 days', 'q', 'k'), (now() - interval '13 days', 'q', 'k')`)
	f.purge()
	f.expect("k/kept k/unfinished l/same l/unfinished", "SELECT string_agg(kind || '/' || key, ' ' ORDER BY kind, key) FROM jobgen.job_result")
	f.expect("1/2", "SELECT string_agg(job_id || '/' || attempt, ' ') FROM jobgen.job_attempt")
	f.expect("1,1", `SELECT concat(count(*) FILTER (WHERE minute > '-infinity'), ',', count(*) FILTER (WHERE minute = '-infinity')) FROM jobgen.samples`)
}

func TestPurgeForgetsLostWorkersAfterADayOnceTheyHoldNothing(t *testing.T) {
	t.Parallel()
	f := open(t)
	alive, fresh, old, holding := f.worker(time.Hour), f.worker(time.Hour), f.worker(time.Hour), f.worker(time.Hour)
	f.enqueue(1)
	f.claim(holding, 1)
	f.exec("UPDATE jobgen.workers SET lost_at = now() - interval '1 hour' WHERE id = $1", fresh.ID)
	f.exec("UPDATE jobgen.workers SET lost_at = now() - interval '25 hours' WHERE id IN ($1, $2)", old.ID, holding.ID)
	f.purge()
	f.expect(3, "SELECT count(*) FROM jobgen.workers WHERE id IN ($1, $2, $3)", alive.ID, fresh.ID, holding.ID)
	f.expect(3, "SELECT count(*) FROM jobgen.workers")
}

func TestPurgeWorksInChunks(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.exec(`INSERT INTO jobgen.job_result (kind, key, job_id, finished_at, expires_at)
		SELECT 'k' || i % 3, 'key ' || i, i, now(), now() - i * interval '1 s' FROM generate_series(1, 2500) i`)
	purged, err := gen.New(f.session()).PurgeResults(f.ctx(), gen.PurgeResultsParams{N: 100})
	if err != nil || purged.N != 100 {
		t.Errorf("a purge of 100 removed %d, %v", purged.N, err)
	}
	f.expect("key 2400", "SELECT key FROM jobgen.job_result ORDER BY expires_at LIMIT 1")
	if calls := f.purge(); calls != 3 {
		t.Errorf("2,400 rows took %d calls, want 3 of 1,000", calls)
	}
	f.expect(0, "SELECT count(*) FROM jobgen.job_result")
}

func TestG10ConcurrentPurgesAreHarmless(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.exec(`INSERT INTO jobgen.job_result (kind, key, job_id, finished_at, expires_at)
		SELECT 'k', 'key ' || i, i, now(), now() + CASE WHEN i <= 100 THEN interval '1 h' ELSE interval '-1 h' END FROM generate_series(1, 5000) i`)
	f.exec(`INSERT INTO jobgen.job_attempt (job_id, attempt, fence, worker_id, started_at, ended_at, outcome, error)
		SELECT i / 3, 1, i, gen_random_uuid(), now(), now() - interval '8 days', 'failed', '' FROM generate_series(1, 5000) i`)
	// One key is locked by somebody's transaction; a purge does not wait for it.
	lock := f.begin(f.connect())
	must(t, lock, "SELECT FROM jobgen.job_result WHERE key = 'key 4000' FOR UPDATE")
	var all sync.WaitGroup
	for range 4 {
		store := f.openStore()
		all.Go(func() {
			for more := true; more; {
				done, err := store.Purge(f.ctx(), engine.Keep{Attempts: week, Samples: week})
				if err != nil {
					t.Error(err)
				}
				more = done.More
			}
		})
	}
	all.Wait()
	f.expect(101, "SELECT count(*) FROM jobgen.job_result")
	f.expect(0, "SELECT count(*) FROM jobgen.job_attempt")
	_ = lock.Rollback(context.Background())
	f.purge()
	f.expect(100, "SELECT count(*) FROM jobgen.job_result")
}

// A chunk begins where the one before has ended, and a purge at the left end.
func TestAPurgeDoesNotWalkWhatItHasLeftDead(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.exec(`INSERT INTO jobgen.job_result (kind, key, job_id, finished_at, expires_at)
		SELECT 'k', 'key ' || i, i, now(), now() - interval '1 h' + i * interval '1 ms' FROM generate_series(1, 2500) i`)
	f.exec(`INSERT INTO jobgen.job_result (kind, key, job_id, finished_at, expires_at) VALUES ('k', 'for ever expired', 0, now(), '-infinity')`)
	chunk := func() {
		if _, err := f.store.Purge(f.ctx(), engine.Keep{Attempts: week, Samples: week}); err != nil {
			t.Fatal(err)
		}
	}
	chunk()
	f.expect("key 1000", "SELECT key FROM jobgen.job_result ORDER BY expires_at LIMIT 1")
	f.exec(`INSERT INTO jobgen.job_result (kind, key, job_id, finished_at, expires_at) VALUES ('k', 'late', 1, now(), now() - interval '2 h')`)
	chunk()
	f.expect("late", "SELECT key FROM jobgen.job_result ORDER BY expires_at LIMIT 1")
	f.purge()
	f.expect(1, "SELECT count(*) FROM jobgen.job_result")
	f.purge()
	f.expect(0, "SELECT count(*) FROM jobgen.job_result")
}

func TestAPurgeOfTheArchiveWorksInChunksAndDoesNotWalkWhatItHasLeftDead(t *testing.T) {
	t.Parallel()
	f := open(t)
	put := func(from, to int, expires string) {
		f.exec(`INSERT INTO jobgen.job_archive (job_id, status, queue, kind, version, attempt, crashes, payload, created_at, expires_at)
			SELECT i, CASE WHEN i % 2 = 0 THEN 'succeeded' ELSE 'cancelled' END, 'q', 'k', 1, 1, 0, '{}', now(), `+expires+` FROM generate_series($1::int, $2) i`, from, to)
	}
	put(1, 2500, "now() - interval '1 h' + i * interval '1 ms'")
	put(9001, 9010, "now() + interval '1 h'")
	lock := f.begin(f.connect())
	must(t, lock, "SELECT FROM jobgen.job_archive WHERE job_id = 1 FOR UPDATE")
	chunk := func() {
		if _, err := f.store.Purge(f.ctx(), engine.Keep{Attempts: week, Samples: week}); err != nil {
			t.Fatal(err)
		}
	}
	chunk()
	f.expect("1 1002", "SELECT string_agg(job_id::text, ' ') FROM (SELECT job_id FROM jobgen.job_archive ORDER BY expires_at LIMIT 2) a")
	put(8001, 8001, "now() - interval '2 h'") // committed late
	chunk()
	f.expect("8001 1 2002", "SELECT string_agg(job_id::text, ' ') FROM (SELECT job_id FROM jobgen.job_archive ORDER BY expires_at LIMIT 3) a")
	f.purge()
	f.expect("8001 1", "SELECT string_agg(job_id::text, ' ' ORDER BY expires_at) FROM jobgen.job_archive WHERE job_id < 9000")
	_ = lock.Rollback(context.Background())
	f.purge()
	f.expect(10, "SELECT count(*) FROM jobgen.job_archive")
}

// History does not lie in the order in which it ended: space is used again.
func TestAPurgeOfTheHistoryFindsAllOfItInWhateverOrderItLies(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.exec(`INSERT INTO jobgen.job_attempt (job_id, attempt, fence, worker_id, started_at, ended_at, outcome, error)
		SELECT i, 1, i, gen_random_uuid(), now(), now() - interval '8 days' - (i * 7919 % 5000) * interval '1 s', 'failed', '' FROM generate_series(1, 5000) i`)
	f.purge()
	f.expect(0, "SELECT count(*) FROM jobgen.job_attempt")
}

// dies inserts dead jobs of a kind with keys, the first of n that died a minute less than an hour ago, each a minute before.
func (f *fixture) dies(kind string, n int) {
	f.Helper()
	f.exec(`WITH j AS (
		INSERT INTO jobgen.jobs (queue, kind, key, payload, status, attempt, run_at)
		SELECT 'q', $1::text, 'key ' || i, '{}', 'dead', 20, now() - interval '59 minutes' - (i - 1) * interval '1 minute' FROM generate_series(1, $2::int) i
		RETURNING id, kind, key
	) INSERT INTO jobgen.job_result (kind, key, job_id) SELECT kind, key, id FROM j`, kind, n)
}

func TestPurgeRemovesDeadJobsAndFreesTheirKeysIfThatIsAskedFor(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.dies("k", 5)
	f.dies("l", 3)
	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, run_at) VALUES ('q', 'k', '{}', now() - interval '1 year')`) // waits
	f.exec(`INSERT INTO jobgen.job_result (kind, key, job_id, finished_at, expires_at) SELECT 'k', 'another''s', min(id), now(), now() + interval '1 h' FROM jobgen.jobs`)
	f.purge()
	f.expect(9, "SELECT count(*) FROM jobgen.jobs")
	done, err := f.store.Purge(f.ctx(), engine.Keep{Attempts: week, Samples: week, Dead: time.Hour})
	if err != nil || done.More || len(done.Dead) != 2 || done.Dead["k"] != 4 || done.Dead["l"] != 2 {
		t.Errorf("%+v, %v", done, err)
	}
	f.expect("k/dead k/queued l/dead", "SELECT string_agg(kind || '/' || status, ' ' ORDER BY kind, status) FROM jobgen.jobs")
	f.expect("k/another's k/key 1 l/key 1", "SELECT string_agg(kind || '/' || key, ' ' ORDER BY kind, key) FROM jobgen.job_result")
}

// A purge waits neither for a dead job that somebody has locked nor for one whose key somebody is replacing.
func TestG10PurgesOfDeadJobsWaitForNobodyAndAreHarmlessAtOnce(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.dies("k", 4000)
	f.exec("UPDATE jobgen.jobs SET run_at = run_at - interval '1 hour'")
	lock := f.begin(f.connect())
	must(t, lock, "SELECT FROM jobgen.jobs WHERE key = 'key 100' FOR UPDATE")
	must(t, lock, "SELECT FROM jobgen.job_result WHERE key = 'key 200' FOR NO KEY UPDATE")
	var all sync.WaitGroup
	var purged atomic.Int64
	for range 4 {
		store := f.openStore()
		all.Go(func() {
			for more := true; more; {
				done, err := store.Purge(f.ctx(), engine.Keep{Attempts: week, Samples: week, Dead: time.Hour})
				if err != nil {
					t.Error(err)
				}
				purged.Add(done.Dead["k"])
				more = done.More
			}
		})
	}
	all.Wait()
	f.purgeDead()
	const left = `SELECT (SELECT string_agg(key, ', ' ORDER BY key) FROM jobgen.jobs) || '; ' || (SELECT string_agg(key, ', ' ORDER BY key) FROM jobgen.job_result)`
	f.expect("key 100, key 200; key 100, key 200", left)
	_ = lock.Rollback(context.Background())
	purged.Add(f.purgeDead())
	f.expect(0, "SELECT (SELECT count(*) FROM jobgen.jobs) + (SELECT count(*) FROM jobgen.job_result)")
	if n := purged.Load(); n != 4000 {
		t.Errorf("%d were counted as purged", n)
	}
}

// purgeDead purges what has been dead for an hour.
func (f *fixture) purgeDead() (n int64) {
	f.Helper()
	for {
		done, err := f.store.Purge(f.ctx(), engine.Keep{Attempts: week, Samples: week, Dead: time.Hour})
		if err != nil {
			f.Fatal(err)
		}
		for _, of := range done.Dead {
			n += of
		}
		if !done.More {
			return n
		}
	}
}

// However many there are that are to stay, one purge looks at so many, and the next goes on from there.
func TestAPurgeOfDeadJobsIsBoundedAndGetsToAll(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, status, attempt) SELECT 'q', 'k' || i % 3, '{}', 'dead', 20 FROM generate_series(1, 25000) i`)
	f.exec(`UPDATE jobgen.jobs SET run_at = now() - interval '2 hours' WHERE id > 24990 AND kind = 'k2'`)
	if first, second := f.purgeDead(), f.purgeDead(); first != 0 || second != 3 {
		t.Errorf("the first purge removed %d, the second %d; want 0 of 20,000 that it looks at, and then 3", first, second)
	}
	f.expect(24997, "SELECT count(*) FROM jobgen.jobs")
}

// A dead job's run_at is when it died, whatever delay its handler asked for.
func TestTheTimeOfADeathIsOnRecord(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.enqueue(2)
	w := f.worker(time.Hour)
	held := f.claim(w, 2)
	failed := []engine.Failure{{Hold: holds(held)[0], Delay: 1000 * time.Hour, Permanent: true}, {Hold: holds(held)[1], Delay: 1000 * time.Hour}}
	if got, err := f.store.Fail(f.ctx(), w.ID, failed); err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	f.expect("dead true; queued false", `SELECT string_agg(status || ' ' || (run_at <= clock_timestamp())::text, '; ' ORDER BY status) FROM jobgen.jobs`)
}

// An enqueue that meets a purge, or a deletion, of its key's dead job either revives the job or makes another: never is it told that the
// dead one is there.
func TestG2AnEnqueueAtTheMomentOfAPurgeOfDeadJobsIsNotLost(t *testing.T) {
	t.Parallel()
	f := open(t)
	const n = 240
	dead := []string{"dead"}
	for round := range 18 {
		f.exec(`TRUNCATE jobgen.jobs, jobgen.job_result`)
		f.exec(`WITH j AS (INSERT INTO jobgen.jobs (queue, kind, key, payload, status, run_at) SELECT 'q', 'k', i, '{}', 'dead', now() - interval '1 day' FROM generate_series(1, $1::int) i RETURNING id, kind, key)
			INSERT INTO jobgen.job_result (kind, key, job_id) SELECT kind, key, id FROM j`, n)
		var ids []int64
		f.no(f.pool.QueryRow(f.ctx(), `SELECT array_agg(id ORDER BY id) FROM jobgen.jobs`).Scan(&ids))
		in := insertion
		in.Replace = round > 1
		in.Debounce = in.Replace && round < 4
		var wg sync.WaitGroup
		for range 2 {
			s := f.openStore()
			wg.Go(func() {
				for i := range 6 {
					if round%3 == 0 {
						if _, err := (postgres.Operator{Pool: f.pool}).Delete(f.ctx(), ids[i*n/6:(i+1)*n/6], dead, ""); err != nil {
							t.Error(err)
						}
					} else if _, err := s.Purge(f.ctx(), engine.Keep{Attempts: time.Hour, Samples: time.Hour, Dead: time.Hour}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for w := range 8 {
			wg.Go(func() {
				for i := range n / 8 {
					element := engine.Element{Payload: []byte(`{"new": true}`), Key: fmt.Sprint(w*n/8 + i + 1)}
					if got, err := (postgres.Producer{DB: f.pool}).Enqueue(f.ctx(), in, []engine.Element{element}); err != nil || got[0].Existing {
						t.Error(got, err)
					}
				}
			})
		}
		wg.Wait()
		f.expect(n, `SELECT count(*) FROM jobgen.jobs j JOIN jobgen.job_result r ON r.job_id = j.id AND r.key = j.key AND r.finished_at IS NULL WHERE j.status = 'queued' AND j.payload ? 'new'`)
	}
}
