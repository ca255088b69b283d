package postgres_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

func (f *fixture) reclaim(orphans bool) []engine.Reclaimed {
	f.Helper()
	back, err := f.store.Reclaim(f.ctx(), 1000, 5, 0, orphans)
	if err != nil {
		f.Fatal(err)
	}
	return back
}

// lose has the lease of a worker run out and the worker judged.
func (f *fixture) lose(id uuid.UUID) {
	f.Helper()
	f.exec("UPDATE jobgen.workers SET lease_until = clock_timestamp() - interval '1 s' WHERE id = $1", id)
	if lost, err := f.store.MarkLost(f.ctx()); err != nil || len(lost) != 1 || lost[0].ID != id {
		f.Fatalf("marked %v lost, %v", lost, err)
	}
}

func TestG7TheJobsOfALostWorkerGoBack(t *testing.T) {
	t.Parallel()
	f := open(t)
	gone, alive := f.worker(time.Hour), f.worker(time.Hour)
	f.enqueue(5)
	held := f.claim(gone, 3)
	f.claim(alive, 2)
	if back := f.reclaim(true); len(back) != 0 {
		t.Fatalf("reclaimed %v from workers that live", back)
	}
	f.lose(gone.ID)
	back := f.reclaim(false)
	if len(back) != 3 {
		t.Fatalf("reclaimed %+v, want three", back)
	}
	for i, b := range back {
		if b.Worker != gone.ID || b.Crashes != 1 || b.Dead || b.Kind != "k" || b.Queue != "q" || !slices.ContainsFunc(held, func(c engine.Claimed) bool { return c.ID == b.ID }) {
			t.Errorf("reclaimed %d: %+v", i, b)
		}
	}
	f.expect(3, `SELECT count(*) FROM jobgen.jobs WHERE status = 'queued' AND attempt = 0 AND crashes = 1 AND fence = 0 AND worker_id IS NULL
		AND last_error LIKE '%worker process was lost%'`)
	f.expect(3, `SELECT count(*) FROM jobgen.job_attempt a JOIN jobgen.jobs j ON j.id = a.job_id
		WHERE a.outcome = 'crashed' AND a.attempt = 1 AND a.worker_id = $1 AND a.fence = $2 AND a.started_at = j.claimed_at`, gone.ID, held[0].Fence)
	f.expect(3, "SELECT reclaimed FROM jobgen.samples WHERE queue = 'q' AND kind = 'k'")
	if again := f.reclaim(true); len(again) != 0 {
		t.Errorf("reclaimed a second time: %v", again)
	}
	f.expect(2, "SELECT count(*) FROM jobgen.jobs WHERE status = 'running' AND worker_id = $1", alive.ID)
}

func TestG4AfterAReclaimTheOldHolderChangesNothing(t *testing.T) {
	t.Parallel()
	f := open(t)
	old, now := f.worker(time.Hour), f.worker(time.Hour)
	f.enqueue(1)
	stale := holds(f.claim(old, 1))[0]
	f.lose(old.ID)
	f.reclaim(false)
	fresh := holds(f.claim(now, 1))
	if len(fresh) != 1 || fresh[0].Fence <= stale.Fence {
		t.Fatalf("the next hold is %v, the one before %v: a fence only grows", fresh, stale)
	}
	for _, w := range writes {
		if n := w.do(f, old.ID, stale); n != 0 {
			t.Errorf("%s with the old hold changed %d", w.name, n)
		}
	}
	f.expect(1, "SELECT count(*) FROM jobgen.jobs WHERE status = 'running' AND worker_id = $1 AND fence = $2", now.ID, fresh[0].Fence)
}

func TestG7AClaimThatCommitsAfterItsWorkerWasJudgedIsTakenBack(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.worker(time.Hour)
	f.enqueue(2)
	queues, priorities, ats, ids := ranges(longAgo)
	inFlight := f.begin(f.session())
	rows, err := gen.New(inFlight).Claim(f.ctx(), gen.ClaimParams{
		WorkerID: w.ID, Queues: queues, Priorities: priorities, MarkAts: ats, MarkIds: ids, Kinds: []string{"k"}, Versions: []int32{1}, N: 2,
	})
	if err != nil || len(rows) != 2 {
		t.Fatal(rows, err)
	}
	f.lose(w.ID)
	if back := f.reclaim(true); len(back) != 0 {
		t.Fatalf("reclaimed %v before the claim committed", back)
	}
	if err := inFlight.Commit(f.ctx()); err != nil {
		t.Fatal(err)
	}
	if back := f.reclaim(false); len(back) != 2 {
		t.Errorf("reclaimed %v after the claim committed, want both", back)
	}
}

func TestG7RunningJobsOfAWorkerThatIsOnNoRecordGoBackToo(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.worker(time.Hour)
	f.enqueue(2)
	f.claim(w, 2)
	f.exec("DELETE FROM jobgen.workers")
	if back := f.reclaim(false); len(back) != 0 {
		t.Errorf("reclaimed orphans without being asked to: %v", back)
	}
	if back := f.reclaim(true); len(back) != 2 || back[0].Worker != w.ID {
		t.Errorf("reclaimed %v, want both orphans", back)
	}
}

func TestG8AJobThatKillsItsProcessEndsDeadAlsoOnItsLastAttempt(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, max_attempts) VALUES ('q', 'k', '{}', 1)`)
	for crash := 1; ; crash++ {
		w := f.worker(time.Hour)
		held := f.claim(w, 10)
		if crash > 2 {
			// A suspect is left out of ordinary claims, so that nothing else dies with it.
			if len(held) != 0 {
				t.Fatalf("after %d crashes it was claimed among others", crash-1)
			}
			waiting, err := f.store.SuspectWaiting(f.ctx(), w)
			if err != nil || !waiting {
				t.Fatalf("after %d crashes no suspect waits, %v", crash-1, err)
			}
			held, err = f.store.ClaimSuspect(f.ctx(), w)
			if err != nil {
				t.Fatal(err)
			}
		}
		if len(held) != 1 || held[0].Attempt != 1 || held[0].Crashes != crash-1 {
			t.Fatalf("crash %d: claimed %+v", crash, held)
		}
		f.lose(w.ID)
		back := f.reclaim(false)
		if len(back) != 1 || back[0].Crashes != crash || back[0].Dead != (crash == 5) {
			t.Fatalf("crash %d: reclaimed %+v", crash, back)
		}
		if back[0].Dead {
			break
		}
	}
	text := value[string](t, f.pool, "SELECT last_error FROM jobgen.jobs WHERE status = 'dead' AND attempt = 0")
	if !strings.Contains(text, "crashed 5 times") || !strings.Contains(text, "worker process was lost") {
		t.Errorf("last_error does not tell a person what happened: %q", text)
	}
	f.expect(5, "SELECT count(*) FROM jobgen.job_attempt WHERE outcome = 'crashed'")
	f.expect(5, "SELECT sum(reclaimed)::int FROM jobgen.samples")
}

func TestReclaimBacksOffWithinItsBounds(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, crashes) SELECT 'q', 'k', '{}', i % 2 FROM generate_series(1, 60) i`)
	w := f.worker(time.Hour)
	if got := f.claim(w, 100); len(got) != 60 {
		t.Fatal(len(got))
	}
	f.lose(w.ID)
	before := value[time.Time](t, f.pool, "SELECT clock_timestamp()")
	if back, err := f.store.Reclaim(f.ctx(), 1000, 100, time.Minute, false); err != nil || len(back) != 60 {
		t.Fatal(len(back), err)
	}
	after := value[time.Time](t, f.pool, "SELECT clock_timestamp()")
	// Base at the first crash, twice as much at the second, times a factor of 0.5 to 1.
	for crashes, base := range map[int]time.Duration{1: time.Minute, 2: 2 * time.Minute} {
		lo := value[time.Time](t, f.pool, "SELECT min(run_at) FROM jobgen.jobs WHERE crashes = $1", crashes)
		hi := value[time.Time](t, f.pool, "SELECT max(run_at) FROM jobgen.jobs WHERE crashes = $1", crashes)
		if lo.Before(before.Add(base/2)) || hi.After(after.Add(base)) || !lo.Before(hi) {
			t.Errorf("after %d crashes they come back after %s to %s, want a spread within %s to %s", crashes, lo.Sub(before), hi.Sub(before), base/2, base)
		}
	}
}

func TestG10ConcurrentReclaimsTakeEachJobBackOnce(t *testing.T) {
	t.Parallel()
	f := open(t)
	const jobs = 600
	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload) SELECT 'q', CASE i % 2 WHEN 0 THEN 'k' ELSE 'l' END, '{}' FROM generate_series(1, $1::int) i`, jobs)
	for range 6 {
		w := f.worker(time.Hour)
		if got := f.claim(w, jobs/6); len(got) != jobs/6 {
			t.Fatal(len(got))
		}
		f.exec("UPDATE jobgen.workers SET lease_until = now() - interval '1 s' WHERE id = $1", w.ID)
	}
	var mu sync.Mutex
	times, judged := map[int64]int{}, map[uuid.UUID]int{}
	var all sync.WaitGroup
	for range 4 {
		store := f.openStore()
		all.Go(func() {
			for {
				lost, err := store.MarkLost(f.ctx())
				f.no(err)
				back, err := store.Reclaim(f.ctx(), 25, 5, 0, true)
				f.no(err)
				mu.Lock()
				for _, l := range lost {
					judged[l.ID]++
				}
				for _, b := range back {
					times[b.ID]++
				}
				done := len(times) == jobs
				mu.Unlock()
				if done || err != nil {
					return
				}
			}
		})
	}
	all.Wait()
	for id, n := range times {
		if n != 1 {
			t.Errorf("job %d was taken back %d times", id, n)
		}
	}
	for id, n := range judged {
		if n != 1 {
			t.Errorf("worker %s was judged %d times", id, n)
		}
	}
	f.expect(jobs, "SELECT sum(reclaimed)::int FROM jobgen.samples")
	f.expect(jobs, "SELECT count(*) FROM jobgen.job_attempt")
	f.expect(jobs, "SELECT count(*) FROM jobgen.jobs WHERE status = 'queued' AND crashes = 1")
}

func TestReclaimTakesNoMoreThanItIsAskedTo(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.enqueue(20)
	for range 2 {
		w := f.worker(time.Hour)
		f.claim(w, 10)
		f.lose(w.ID)
	}
	for _, want := range []int{13, 7, 0} {
		if back, err := f.store.Reclaim(f.ctx(), 13, 5, 0, false); err != nil || len(back) != want {
			t.Errorf("reclaimed %d, want %d (%v)", len(back), want, err)
		}
	}
}

func TestAJudgementSkipsAWorkerWhoseHeartbeatIsUnderWay(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.worker(-time.Second)
	beat := f.begin(f.connect())
	got, err := gen.New(beat).Heartbeat(f.ctx(), gen.HeartbeatParams{WorkerID: w.ID, LeaseUs: time.Hour.Microseconds()})
	if err != nil || !got.Renewed {
		t.Fatalf("%+v, %v", got, err)
	}
	if lost, err := f.store.MarkLost(f.ctx()); err != nil || len(lost) != 0 {
		t.Errorf("marked %v lost, %v", lost, err)
	}
	if err := beat.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	if lost, err := f.store.MarkLost(f.ctx()); err != nil || len(lost) != 0 {
		t.Errorf("marked %v lost after its heartbeat, %v", lost, err)
	}
}

func TestG10ReclaimsLockTheirSamplesInOrder(t *testing.T) {
	t.Parallel()
	f := open(t)
	kinds := "abcdefghij"
	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, status, fence, worker_id, attempt)
		SELECT 'q', substr($1, i, 1), '{}', 'running', 1, gen_random_uuid(), 1 FROM generate_series(length($1), 1, -1) i`, kinds)
	f.note()
	f.exec(`INSERT INTO jobgen.samples (minute, queue, kind)
		SELECT date_trunc('minute', now()) + m * interval '1 minute', 'q', substr($1, i, 1) FROM generate_series(1, length($1)) i, generate_series(0, 2) m`, kinds)
	first := f.begin(f.connect())
	must(t, first, "SELECT FROM jobgen.samples WHERE kind = 'a' FOR UPDATE")
	done := make(chan int)
	go func() {
		back, err := f.store.Reclaim(f.ctx(), 100, 5, 0, true)
		f.no(err)
		done <- len(back)
	}()
	f.blocked(1)
	// It waits for the first row and has none of the others, so nobody who goes in the same order can wait for it.
	other := f.begin(f.connect())
	if n := value[int](t, other, "WITH free AS (SELECT FROM jobgen.samples FOR UPDATE SKIP LOCKED) SELECT count(*) FROM free"); n != 3*(len(kinds)-1) {
		t.Errorf("%d samples are free while the reclaim waits for the first, want all %d others", n, 3*(len(kinds)-1))
	}
	_ = other.Rollback(context.Background())
	_ = first.Rollback(context.Background())
	if n := <-done; n != len(kinds) {
		t.Errorf("reclaimed %d", n)
	}
}

func TestG9AJobThatWasSetRunningByHandHarmsOnlyItself(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.worker(time.Hour)
	f.enqueue(2)
	f.claim(w, 1)
	f.exec("UPDATE jobgen.jobs SET status = 'running', worker_id = gen_random_uuid(), fence = 1 WHERE status = 'queued'")
	f.lose(w.ID)
	f.note()
	if back := f.reclaim(true); len(back) != 2 {
		t.Errorf("reclaimed %+v, want both", back)
	}
	f.expect(2, "SELECT count(*) FROM jobgen.jobs WHERE status = 'queued' AND attempt = 0")
}
