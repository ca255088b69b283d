package postgres_test

import (
	"context"
	"sync"
	"testing"
	"time"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
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
	f.expect(1, "SELECT count(*) FROM jobgen.samples")
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
