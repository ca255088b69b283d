package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

func TestG3ConcurrentClaimersNeverShareAJob(t *testing.T) {
	t.Parallel()
	f := open(t)
	const jobs, claimers, perStore = 2000, 32, 4
	f.fill(jobs)
	var mu sync.Mutex
	taken := map[int64]int{}
	fences := map[int64]bool{}
	var all sync.WaitGroup
	for range claimers / perStore {
		store := f.openStore()
		for range perStore {
			w := f.worker(time.Hour)
			all.Go(func() {
				for {
					got, _, err := store.Claim(f.ctx(), w, left(w), nil, false, 37)
					if err != nil {
						t.Error(err)
						return
					}
					if len(got) == 0 {
						return
					}
					mu.Lock()
					if fences[got[0].Fence] {
						t.Errorf("fence %d was used by two claims", got[0].Fence)
					}
					fences[got[0].Fence] = true
					for _, c := range got {
						taken[c.ID]++
						if c.Fence != got[0].Fence {
							t.Errorf("one claim has fences %d and %d", got[0].Fence, c.Fence)
						}
					}
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	if len(taken) != jobs {
		t.Errorf("%d of %d jobs were claimed", len(taken), jobs)
	}
	for id, times := range taken {
		if times != 1 {
			t.Errorf("job %d was claimed %d times", id, times)
		}
	}
}

func TestG3AClaimOfNNeverTakesMoreThanNUnderAnyPlan(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.worker(time.Hour)
	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, priority) SELECT 'q', 'k', '{}', i % 10 FROM generate_series(1, 3000) i`)
	conn := f.session()
	switches := []string{"enable_hashjoin", "enable_nestloop", "enable_material", "enable_seqscan", "enable_bitmapscan"}
	queues, priorities, ats, ids := ranges(longAgo)
	for combination := range 1 << len(switches) {
		for _, mode := range []string{"force_generic_plan", "force_custom_plan"} {
			must(t, conn, "DISCARD PLANS")
			setting := mode
			must(t, conn, "SET plan_cache_mode = "+mode)
			for i, s := range switches {
				value := "on"
				if combination>>i&1 == 0 {
					value = "off"
				}
				must(t, conn, "SET "+s+" = "+value)
				setting += " " + s + "=" + value
			}
			for _, n := range []int32{1, 7, 350} {
				tx := f.begin(conn)
				got, err := gen.New(tx).Claim(f.ctx(), gen.ClaimParams{
					WorkerID: w.ID, Queues: queues, Priorities: priorities, MarkAts: ats, MarkIds: ids, Kinds: []string{"k"}, Versions: []int32{1}, N: n,
				})
				if err != nil {
					t.Fatal(err)
				}
				running := value[int](t, tx, "SELECT count(*) FROM jobgen.jobs WHERE status = 'running'")
				if len(got) != int(n) || running != int(n) {
					t.Errorf("%s: a claim of %d gave %d and left %d running", setting, n, len(got), running)
				}
				if n == 350 && slices.ContainsFunc(got, func(r gen.ClaimRow) bool { return r.Priority < 8 }) {
					t.Errorf("%s: a claim of 350 took jobs of low priority while 600 of high priority were waiting", setting)
				}
				_ = tx.Rollback(context.Background())
			}
		}
	}
}

func TestG3ASecondClaimerGetsTheOtherJobsWithoutWaiting(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.fill(20)
	queues, priorities, ats, ids := ranges(longAgo)
	claim := func() (got []int64, rollback func()) {
		tx := f.begin(f.session())
		must(t, tx, "SET LOCAL lock_timeout = '1ms'")
		rows, err := gen.New(tx).Claim(f.ctx(), gen.ClaimParams{
			WorkerID: f.worker(time.Hour).ID, Queues: queues, Priorities: priorities, MarkAts: ats, MarkIds: ids, Kinds: []string{"k"}, Versions: []int32{1}, N: 10,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			got = append(got, r.ID)
		}
		return got, func() { _ = tx.Rollback(context.Background()) }
	}
	a, rollbackA := claim()
	b, rollbackB := claim()
	defer rollbackB()
	if both := slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(a), b...)))); len(a) != 10 || len(b) != 10 || len(both) != 20 {
		t.Errorf("A claimed %v, B beside it %v", a, b)
	}
	rollbackA()
	again, rollback := claim()
	defer rollback()
	if slices.Sort(again); !slices.Equal(again, slices.Sorted(slices.Values(a))) {
		t.Errorf("after A rolled back %v could be claimed, want %v", again, a)
	}
}

func TestG3AWorkerWithoutALeaseClaimsNothing(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.fill(5)
	lost := f.worker(time.Hour)
	f.exec("UPDATE jobgen.workers SET lost_at = now() WHERE id = $1", lost.ID)
	unknown := *lost
	unknown.ID = uuid.New()
	for name, w := range map[string]*engine.Worker{"expired": f.worker(-time.Second), "lost": lost, "unknown": &unknown} {
		if got := f.claim(w, 5); len(got) != 0 {
			t.Errorf("a worker that is %s claimed %d jobs", name, len(got))
		}
		f.exec("UPDATE jobgen.jobs SET crashes = 2")
		if got, err := f.store.ClaimSuspect(f.ctx(), w); len(got) != 0 || err != nil {
			t.Errorf("a worker that is %s claimed a suspect: %v %v", name, got, err)
		}
		f.exec("UPDATE jobgen.jobs SET crashes = 0")
	}
	f.expect(5, "SELECT count(*) FROM jobgen.jobs WHERE status = 'queued' AND attempt = 0")
}

func TestAClaimTakesHigherPriorityFirstAndThenWhatIsDueLonger(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.worker(time.Hour)
	f.exec(`INSERT INTO jobgen.jobs (id, queue, kind, payload, priority, run_at) VALUES
		(1, 'q', 'k', '{}', 0, now() - interval '3 h'), (2, 'q', 'k', '{}', 5, now() - interval '1 h'), (3, 'q', 'k', '{}', 5, now() - interval '2 h'),
		(4, 'q', 'k', '{}', 9, now() + interval '1 h'), (5, 'other', 'k', '{}', 9, now() - interval '9 h'), (6, 'q', 'k', '{}', 0, now() - interval '4 h')`)
	for _, want := range []int64{3, 2, 6, 1} {
		got := f.claim(w, 1)
		if len(got) != 1 || got[0].ID != want {
			t.Fatalf("claimed %v, want job %d", got, want)
		}
	}
	if got := f.claim(w, 10); len(got) != 0 {
		t.Errorf("claimed %v: it is not due, or not of this queue", got)
	}
}

func TestG13AnOldWorkerSpendsNoAttemptOnWhatItCannotHandle(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.worker(time.Hour)
	f.exec(`INSERT INTO jobgen.jobs (id, queue, kind, version, payload) VALUES (1, 'q', 'unknown', 1, '{}'), (2, 'q', 'k', 2, '{}'), (3, 'q', 'l', 1, '{}')`)
	w.Kinds = []engine.Kind{{Name: "k", Version: 1}, {Name: "l", Version: 3}}
	if got := f.claim(w, 10); len(got) != 1 || got[0].ID != 3 {
		t.Errorf("claimed %v, want job 3", got)
	}
	f.expect(2, "SELECT count(*) FROM jobgen.jobs WHERE id < 3 AND status = 'queued' AND attempt = 0")
	w.Kinds[0].Version = 2
	if got := f.claim(w, 10); len(got) != 1 || got[0].ID != 2 || got[0].Version != 2 {
		t.Errorf("claimed %v, want job 2", got)
	}
}

func TestAClaimStartsAtItsMarkAndOneSweepRunsAtATime(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.worker(time.Hour)
	f.fill(10)
	// 300,000 rows of one INSERT share a run_at: so the mark is a pair.
	f.exec("UPDATE jobgen.jobs SET run_at = now() - interval '1 minute'")
	at := value[time.Time](t, f.pool, "SELECT run_at FROM jobgen.jobs LIMIT 1")
	fifth := value[int64](t, f.pool, "SELECT id FROM jobgen.jobs ORDER BY id OFFSET 4 LIMIT 1")
	marks := left(w)
	for i := range marks {
		marks[i].At, marks[i].ID = at, fifth
	}
	got, _, err := f.store.Claim(f.ctx(), w, marks, nil, false, 100)
	if err != nil || len(got) != 5 || slices.ContainsFunc(got, func(c engine.Claimed) bool { return c.ID <= fifth }) {
		t.Fatalf("claimed %v (%v), want the five to the right of the mark", got, err)
	}
	other := f.begin(f.session())
	must(t, other, "SELECT pg_advisory_xact_lock(hashtextextended('jobgen.sweep', 0))")
	if got, _, err := f.store.Claim(f.ctx(), w, left(w), nil, true, 100); err != nil || len(got) != 0 {
		t.Errorf("swept %v (%v) while another worker sweeps", got, err)
	}
	_ = other.Rollback(context.Background())
	if got, _, err := f.store.Claim(f.ctx(), w, left(w), nil, true, 100); err != nil || len(got) != 5 {
		t.Errorf("swept %v (%v), want the five to the left of the mark", got, err)
	}
}

func TestAClaimSaysWhichKeysAreOnRecord(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.worker(time.Hour)
	ids := f.insert(engine.Element{Key: "a", Payload: []byte("{}")}, engine.Element{Key: "b", Payload: []byte("{}")})
	f.exec("UPDATE jobgen.job_result SET finished_at = now(), expires_at = now() + interval '1 h' WHERE key = 'b'")
	for _, c := range f.claim(w, 10) {
		if want := c.ID == ids[1]; c.Recorded != want {
			t.Errorf("job %d with key %q: recorded is %v, want %v", c.ID, c.Key, c.Recorded, want)
		}
	}
}

func TestG13NextDueSeesOnlyWhatComes(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.worker(time.Hour)
	due := func(later bool) time.Duration {
		d, err := f.store.NextDue(f.ctx(), left(w), later, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := due(false); d != time.Minute {
		t.Errorf("with nothing at all: %s, want the limit", d)
	}
	f.fill(1)
	if d := due(true); d != time.Minute {
		t.Errorf("with nothing scheduled: %s, want the limit", d)
	}
	if d := due(false); d != 0 {
		t.Errorf("with a job that is due: %s", d)
	}
	f.claim(w, 1)
	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, priority, run_at) VALUES ('q', 'k', '{}', 3, now() + interval '30 s'), ('q', 'k', '{}', 9, now() + interval '2 h')`)
	for _, later := range []bool{false, true} {
		if d := due(later); d <= 0 || d > 30*time.Second {
			t.Errorf("with one that runs, and one in 30 s: %s (later: %v)", d, later)
		}
	}
}

// Somebody with psql puts a job off for good, or to the front.
func TestG9AJobWhoseTimeIsInfiniteKeepsNobodyFromWhatComesNorFromCounting(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.worker(time.Hour)
	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, run_at) VALUES ('q', 'k', '{}', 'infinity'), ('q', 'k', '{}', '-infinity')`)
	for _, later := range []bool{false, true} {
		if d, err := f.store.NextDue(f.ctx(), left(w), later, time.Minute); err != nil || d != time.Minute {
			t.Errorf("%s, %v (later: %v); want the limit", d, err, later)
		}
	}
	op := postgres.Operator{Pool: f.pool}
	whole, err := op.Look(f.ctx())
	if err != nil || len(whole.Levels) != 1 || whole.Levels[0].Ready != 1 || whole.Levels[0].Scheduled != 1 {
		t.Errorf("looked: %+v, %v", whole.Levels, err)
	}
	f.exec(`INSERT INTO jobgen.queues (name) VALUES ('q')`)
	if _, err := op.LookAtPart(f.ctx(), 0); err != nil {
		t.Error(err)
	}
}

func TestAStoreTellsWhatItIsConnectedTo(t *testing.T) {
	t.Parallel()
	f := open(t)
	if err := f.store.Check(f.ctx()); err != nil {
		t.Error(err)
	}
	var _ engine.Store = f.store
	if got, want := fmt.Sprint(f.store.TxType()), fmt.Sprint(postgres.TxType()); got != want {
		t.Errorf("TxType is %s, want %s", got, want)
	}
}

// Between a claim's snapshot and its lock on a row, another claim can take the row and commit. The lock is then that of a row
// which somebody else runs, so what the inner query asks of it is asked again of its newest form, and the lock keeps the answer true.
func TestG3AClaimLeavesAloneWhatAnotherTookBetweenItsSnapshotAndItsLock(t *testing.T) {
	t.Parallel()
	f := open(t)
	w, other := f.worker(time.Hour), f.worker(time.Hour)
	ids := f.enqueue(3)
	// The claim has its snapshot, and waits: nextval, its first step, needs a lock that the test has on the sequence.
	hold := f.begin(f.connect())
	must(t, hold, "ALTER SEQUENCE jobgen.fence CACHE 1")
	type result struct {
		got []engine.Claimed
		err error
	}
	done := make(chan result, 1)
	go func() {
		got, _, err := f.store.Claim(f.ctx(), w, left(w), nil, false, 10)
		done <- result{got, err}
	}()
	f.blocked(1)
	// Another claim commits meanwhile: with a fence of its own, since the sequence is not to be had.
	f.exec(`UPDATE jobgen.jobs SET status = 'running', fence = 1000, worker_id = $1, attempt = attempt + 1 WHERE id = $2`, other.ID, ids[0])
	// And another one is claimed and comes back: it waits as before, in a newer form.
	f.exec(`UPDATE jobgen.jobs SET status = 'running', fence = 1001, worker_id = $1, attempt = attempt + 1 WHERE id = $2`, other.ID, ids[1])
	f.exec(`UPDATE jobgen.jobs SET status = 'queued', fence = 0, worker_id = NULL WHERE id = $1`, ids[1])
	f.no(hold.Rollback(f.ctx()))
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	for _, c := range r.got {
		if c.ID == ids[0] {
			t.Errorf("took job %d, which another worker runs", c.ID)
		}
	}
	if len(r.got) != 2 {
		t.Errorf("claimed %d jobs, want the two that waited", len(r.got))
	}
	f.expect(other.ID.String(), "SELECT worker_id::text FROM jobgen.jobs WHERE id = $1", ids[0])
}
