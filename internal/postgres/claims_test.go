package postgres_test

import (
	"slices"
	"testing"
	"time"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

// A claim writes no index entry, however many jobs it takes and however large their payloads.
func TestG11AClaimIsAHOTUpdate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		payload int // bytes
	}{{"no payload", 0}, {"small", 50}, {"1 kB", 1000}, {"out of line", 20_000}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			w := f.worker(time.Hour)
			f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload)
				SELECT 'q', 'k', jsonb_build_object('s', (SELECT left(string_agg(md5(random()::text), ''), $1) FROM generate_series(0, $1 / 32) WHERE i > 0)) FROM generate_series(1, 1000) i`, c.payload)
			tx := f.begin(f.connect())
			got, err := gen.New(tx).Claim(f.ctx(), claimParams(w, 1000))
			if err != nil || len(got) != 1000 {
				t.Fatalf("claimed %d, %v", len(got), err)
			}
			all := value[int](t, tx, `SELECT pg_stat_get_xact_tuples_updated('jobgen.jobs'::regclass)`)
			hot := value[int](t, tx, `SELECT pg_stat_get_xact_tuples_hot_updated('jobgen.jobs'::regclass)`)
			if all != 1000 || hot != 1000 {
				t.Errorf("%d of %d updates are HOT", hot, all)
			}
		})
	}
}

func TestG7WhatAWorkerHoldsStandsInItsClaimsUntilTheyAreSpent(t *testing.T) {
	t.Parallel()
	f := open(t)
	w, other := f.worker(time.Hour), f.worker(time.Hour)
	f.enqueue(7)
	first, second := f.claim(w, 3), f.claim(w, 2)
	f.claim(other, 1)
	names := func(want ...[]engine.Claimed) {
		t.Helper()
		n := 0
		for _, batch := range want {
			n++
			var ids []int64
			for _, c := range batch {
				ids = append(ids, c.ID)
			}
			slices.Sort(ids)
			f.expect(1, "SELECT count(*) FROM jobgen.claims WHERE worker_id = $1 AND fence = $2 AND ARRAY(SELECT unnest(ids) ORDER BY 1) = $3", w.ID, batch[0].Fence, ids)
		}
		f.expect(n, "SELECT count(*) FROM jobgen.claims WHERE worker_id = $1", w.ID)
	}
	names(first, second)
	if _, err := f.store.Complete(f.ctx(), w.ID, successes(first)); err != nil {
		t.Fatal(err)
	}
	held, spent, err := f.store.Held(f.ctx(), w.ID)
	f.no(err)
	if want := holds(second); !sameHolds(held, want) || !slices.Equal(spent, []int64{first[0].Fence}) {
		t.Errorf("holds %v, want %v; spent are %v", held, want, spent)
	}
	// The one that finds nothing forgets, too; another worker's claims are not its business.
	third, _, err := f.store.Claim(f.ctx(), w, left(w), []int64{first[0].Fence, 12345}, false, 1)
	f.no(err)
	names(second, third)
	none, _, err := f.store.Claim(f.ctx(), &engine.Worker{ID: w.ID, Queues: []string{"q"}, Kinds: []engine.Kind{{Name: "none", Version: 1}}}, left(w), []int64{third[0].Fence}, false, 1)
	f.no(err)
	if len(none) != 0 {
		t.Fatalf("claimed %v", none)
	}
	names(second)
	f.expect(1, "SELECT count(*) FROM jobgen.claims WHERE worker_id = $1", other.ID)

	// What is left on record of a lost worker goes once nothing of it is held: with the round after the reclaim.
	f.lose(w.ID)
	if back := f.reclaim(false); len(back) != 2 {
		t.Errorf("reclaimed %v; third is held, but forgotten by its worker's word", back)
	}
	f.reclaim(false)
	f.expect(0, "SELECT count(*) FROM jobgen.claims WHERE worker_id = $1", w.ID)
	f.expect(1, "SELECT count(*) FROM jobgen.claims WHERE worker_id = $1", other.ID)
}

// A job that runs although no claim names it is found, in steps.
func TestG2ARunningJobThatNoClaimNamesIsNoted(t *testing.T) {
	t.Parallel()
	f := open(t)
	w, alive := f.worker(time.Hour), f.worker(time.Hour)
	f.enqueue(9)
	f.claim(w, 3)
	f.claim(alive, 3)
	f.exec("UPDATE jobgen.claims SET ids = ids[1:1] WHERE worker_id = $1", w.ID)
	f.exec("DELETE FROM jobgen.claims WHERE worker_id = $1", alive.ID)
	steps := 0
	for after := int64(-1); after != 0; steps++ {
		var err error
		if after, err = f.store.NoteUnclaimed(f.ctx(), max(after, 0), 2); err != nil {
			t.Fatal(err)
		}
	}
	if steps != 5 {
		t.Errorf("%d steps of two jobs for nine jobs", steps)
	}
	f.expect(0, `SELECT count(*) FROM jobgen.jobs j WHERE worker_id IS NOT NULL AND NOT EXISTS (
		SELECT FROM jobgen.claims c WHERE c.worker_id = j.worker_id AND c.fence = j.fence AND j.id = ANY(c.ids))`)
	f.expect(6, "SELECT sum(cardinality(ids)) FROM jobgen.claims")
	f.lose(w.ID)
	if back := f.reclaim(false); len(back) != 3 {
		t.Errorf("reclaimed %v", back)
	}
}

// A worker that leaves takes its claims along; one that holds something keeps them.
func TestG7AWorkerThatLeavesLeavesNoClaims(t *testing.T) {
	t.Parallel()
	f := open(t)
	empty, full := f.worker(time.Hour), f.worker(time.Hour)
	f.enqueue(2)
	if _, err := f.store.Complete(f.ctx(), empty.ID, successes(f.claim(empty, 1))); err != nil {
		t.Fatal(err)
	}
	f.claim(full, 1)
	f.no(f.store.Leave(f.ctx(), empty.ID))
	f.no(f.store.Leave(f.ctx(), full.ID))
	f.expect(0, "SELECT count(*) FROM jobgen.workers WHERE id = $1", empty.ID)
	f.expect(0, "SELECT count(*) FROM jobgen.claims WHERE worker_id = $1", empty.ID)
	if back := f.reclaim(false); len(back) != 1 {
		t.Errorf("reclaimed %v", back)
	}
}

func claimParams(w *engine.Worker, n int) gen.ClaimParams {
	arg := gen.ClaimParams{WorkerID: w.ID, N: int32(n), Kinds: []string{"k", "l"}, Versions: []int32{1, 1}, Spent: []int64{}}
	for _, m := range left(w) {
		arg.Queues, arg.Priorities, arg.Limits = append(arg.Queues, m.Queue), append(arg.Priorities, int16(m.Priority)), append(arg.Limits, int32(n))
		arg.MarkAts, arg.MarkIds = append(arg.MarkAts, m.At), append(arg.MarkIds, m.ID)
	}
	return arg
}

func successes(batch []engine.Claimed) (done []engine.Success) {
	for _, h := range holds(batch) {
		done = append(done, engine.Success{Hold: h})
	}
	return done
}

func sameHolds(a, b []engine.Hold) bool {
	by := func(x, y engine.Hold) int { return int(x.ID - y.ID) }
	return slices.Equal(slices.SortedFunc(slices.Values(a), by), slices.SortedFunc(slices.Values(b), by))
}
