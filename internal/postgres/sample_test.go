package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/jobtest"
)

// clocked is open with a clock that stands at the beginning of a minute, or soon after.
func clocked(t *testing.T) (*fixture, *jobtest.Clock) {
	t.Helper()
	pool := jobtest.DB(t)
	clock := jobtest.NewClock(t, pool)
	f := &fixture{T: t, pool: pool}
	f.store = f.openStore()
	now := clock.Now()
	clock.Advance(now.Truncate(time.Minute).Add(time.Minute + 100*time.Millisecond).Sub(now))
	return f, clock
}

func (f *fixture) sample(ago time.Duration, counts ...engine.Sample) engine.Horizon {
	f.Helper()
	h, err := f.store.Sample(f.ctx(), counts, ago)
	f.no(err)
	return h
}

func (f *fixture) look() {
	f.Helper()
	taken, err := f.store.Look(f.ctx())
	f.no(err)
	if !taken {
		f.Fatal("the look of this minute was taken")
	}
}

// totals finds the sums of a kind in queue q.
func (f *fixture) totals(kind string) engine.Sample {
	f.Helper()
	all, err := postgres.Operator{Pool: f.pool}.Totals(f.ctx())
	f.no(err)
	for _, s := range all {
		if s.Queue == "q" && s.Kind == kind {
			return s
		}
	}
	return engine.Sample{}
}

func TestCountsOfAMinuteAddUp(t *testing.T) {
	t.Parallel()
	f, _ := clocked(t)
	one := engine.Sample{Queue: "q", Kind: "k", Arrived: 1, Succeeded: 2, Failed: 3, TimedOut: 1, Snoozed: 4, Cancelled: 5, Died: 1, RunTime: time.Second, RunTimes: []int64{1, 0, 2, 0}}
	f.sample(0, one, engine.Sample{Queue: "q", Kind: "l", Cancelled: 1})
	f.expect("{1,0,2}", `SELECT run_times::text FROM jobgen.samples WHERE kind = 'k'`) // as many as are needed
	f.expect(nil, `SELECT run_times FROM jobgen.samples WHERE kind = 'l'`)
	longer := one
	longer.RunTimes = []int64{0, 1, 0, 0, 7}
	f.sample(0, engine.Sample{Queue: "q", Kind: "l", RunTimes: []int64{3}}, longer)
	got, err := postgres.Operator{Pool: f.pool}.Samples(f.ctx(), time.Minute)
	f.no(err)
	if len(got) != 2 || fmt.Sprint(got[0].Arrived, got[0].Succeeded, got[0].Failed, got[0].TimedOut, got[0].Snoozed, got[0].Cancelled, got[0].Died, got[0].RunTime, got[0].RunTimes) != "2 4 6 2 8 10 2 2s [1 1 2 0 7]" {
		t.Errorf("%+v", got)
	}
	if len(got) != 2 || got[1].Cancelled != 1 || fmt.Sprint(got[1].RunTimes) != "[3]" {
		t.Errorf("%+v", got)
	}
}

// Counts belong to the minute in which they were made, if it is not long ago.
func TestCountsGoToTheirMinute(t *testing.T) {
	t.Parallel()
	f, _ := clocked(t)
	for i, ago := range []time.Duration{0, 30 * time.Second, 2 * time.Minute, 24 * time.Hour} {
		f.sample(ago, engine.Sample{Queue: "q", Kind: fmt.Sprint(i), Succeeded: 1})
	}
	f.expect("0:0 1:1 2:2 3:5", `SELECT string_agg(kind || ':' || (extract(epoch FROM date_trunc('minute', now()) - minute) / 60)::int, ' ' ORDER BY kind) FROM jobgen.samples`)
}

// Two workers whose counts name the same rows in different order wait for each other and do not deadlock.
func TestManyWorkersCountAtOnce(t *testing.T) {
	t.Parallel()
	f := open(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			counts := make([]engine.Sample, 40)
			for j := range counts {
				counts[j] = engine.Sample{Queue: "q", Kind: fmt.Sprint((j*7 + i*13) % 40), Succeeded: 1, RunTimes: []int64{1}}
			}
			for range 20 {
				if _, err := f.store.Sample(context.Background(), counts, 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	f.expect("6400 6400", `SELECT sum(succeeded) || ' ' || sum(run_times[1]) FROM jobgen.samples`)
}

func TestOneLookIsTakenInAMinute(t *testing.T) {
	t.Parallel()
	f, clock := clocked(t)
	f.enqueue(3)
	var wg sync.WaitGroup
	var mu sync.Mutex
	taken := 0
	for range 6 {
		wg.Go(func() {
			is, err := f.store.Look(context.Background())
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if is {
				taken++
			}
		})
	}
	wg.Wait()
	f.expect(1, `SELECT count(*) FROM jobgen.looks`)
	f.expect("3", `SELECT string_agg(ready::text, ' ') FROM jobgen.samples`)
	if taken == 0 {
		t.Error("nobody has looked")
	}
	if is, err := f.store.Look(f.ctx()); is || err != nil {
		t.Error(is, err)
	}
	clock.Advance(time.Minute)
	f.exec(`DELETE FROM jobgen.jobs`)
	f.look()
	f.expect("3 0", `SELECT string_agg(ready::text, ' ' ORDER BY minute) FROM jobgen.samples`) // not unknown: it is 0
}

// fleet is a worker as far as samples are concerned: it ends jobs, and counts them.
type fleet struct {
	*fixture
	clock   *jobtest.Clock
	horizon engine.Horizon
	counts  map[string]*engine.Sample
}

func newFleet(f *fixture, clock *jobtest.Clock) *fleet {
	return &fleet{fixture: f, clock: clock, counts: map[string]*engine.Sample{}, horizon: f.sample(0)}
}

// end ends n jobs of a kind: the oldest, or the newest.
func (f *fleet) end(kind string, n int, newest bool) {
	f.Helper()
	order := map[bool]string{false: "ASC", true: "DESC"}[newest]
	rows, err := f.pool.Query(f.ctx(), `DELETE FROM jobgen.jobs WHERE id IN (SELECT id FROM jobgen.jobs WHERE kind = $1 ORDER BY id `+order+` LIMIT $2) RETURNING id`, kind, n)
	f.no(err)
	defer rows.Close()
	if f.counts[kind] == nil {
		f.counts[kind] = &engine.Sample{Queue: "q", Kind: kind}
	}
	for rows.Next() {
		var id int64
		f.no(rows.Scan(&id))
		f.counts[kind].Succeeded++
		if f.horizon.Known && id > f.horizon.Since {
			f.counts[kind].Arrived++
		}
	}
	f.no(rows.Err())
}

// minute ends a minute: a worker looks, and the counts are written.
func (f *fleet) minute() {
	f.Helper()
	f.clock.Advance(time.Minute)
	f.horizon.Since = f.horizon.Next
	f.look()
	var all []engine.Sample
	for _, s := range f.counts {
		all = append(all, *s)
	}
	clear(f.counts)
	f.horizon = f.sample(30*time.Second, all...)
}

func (f *fleet) arrive(kind string, n int) {
	f.Helper()
	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload) SELECT 'q', $1, '{}' FROM generate_series(1, $2)`, kind, n)
}

// What arrives and what leaves is what is counted, however long jobs wait: of k the newest leave at once and a backlog stays, of l
// each job waits for three minutes, m goes as it comes.
func TestArrivalsAndDeparturesAreCountedExactly(t *testing.T) {
	t.Parallel()
	f0, clock := clocked(t)
	f := newFleet(f0, clock)
	f.arrive("k", 1000) // before the first look: these are not counted
	f.minute()
	f.minute()
	for i := range 10 {
		f.arrive("k", 100)
		f.end("k", 60, true)
		f.arrive("l", 50)
		if i >= 3 {
			f.end("l", 50, false)
		}
		f.arrive("m", 40)
		f.end("m", 40, false)
		f.minute()
	}
	// In flight between two looks: a long transaction that began in one minute ends in the next.
	tx, err := f.pool.Begin(f.ctx())
	f.no(err)
	must(t, tx, `INSERT INTO jobgen.jobs (queue, kind, payload) SELECT 'q', 'n', '{}' FROM generate_series(1, 30)`)
	f.arrive("n", 1)
	f.minute()
	f.no(tx.Commit(f.ctx()))
	f.minute()
	f.minute()
	f.minute()
	for kind, want := range map[string]string{"k": "1000 600", "l": "500 350", "m": "400 400", "n": "31 0"} {
		if s := f.totals(kind); fmt.Sprint(s.Arrived, s.Succeeded) != want {
			t.Errorf("%s: %d arrived and %d succeeded, want %s", kind, s.Arrived, s.Succeeded, want)
		}
	}
	if s := f.totals("k"); s.Arrived-s.Succeeded != level(f.now(), "q", "k").Ready-1000 {
		t.Errorf("%+v: not what is there", s)
	}
}

func (f *fixture) now() postgres.Look {
	f.Helper()
	l, err := postgres.Operator{Pool: f.pool}.Look(f.ctx())
	f.no(err)
	return l
}

// A clock that is set back: looks are taken as before, what arrives is counted once, and what is counted into minutes that have been
// summed is not missing from the totals.
func TestAClockThatGoesBackStopsNoCounting(t *testing.T) {
	t.Parallel()
	f0, clock := clocked(t)
	f := newFleet(f0, clock)
	for i := range 60 {
		if f.arrive("k", 10); i >= 2 {
			f.end("k", 8, false)
		}
		f.minute()
	}
	f.purge()
	before := f.totals("k")
	if before.Arrived < 500 || before.Succeeded != 58*8 {
		t.Fatalf("%+v", before)
	}
	clock.Advance(-40 * time.Minute)
	ended := before.Succeeded
	for range 10 {
		f.arrive("k", 10)
		f.end("k", 8, true)
		ended += 8
		f.minute()
		if s := f.totals("k"); s.Succeeded != ended {
			t.Fatalf("%d are counted as succeeded, want %d", s.Succeeded, ended)
		}
	}
	f.purge()
	if s := f.totals("k"); s.Succeeded != ended || s.Arrived-before.Arrived < 80 || s.Arrived-before.Arrived > 120 {
		t.Errorf("%d arrived since, and %d succeeded: want about 100, and %d", s.Arrived-before.Arrived, s.Succeeded, ended)
	}
	f.expect(true, `SELECT max(minute) <= now() FROM jobgen.looks`)
}

// What is cancelled while it waits no worker has ended: the look counts it, and its arrival, whether or not a look has seen it before.
func TestCancelledJobsAreCounted(t *testing.T) {
	t.Parallel()
	f0, clock := clocked(t)
	f := newFleet(f0, clock)
	f.minute()
	f.minute()
	f.minute()
	p := postgres.Producer{DB: f.pool}
	cancel := func(ids []int64) {
		for _, id := range ids {
			answer, err := p.Cancel(f.ctx(), nil, id, "")
			f.no(err)
			if answer != engine.StatusCancelled {
				t.Fatal(answer)
			}
		}
	}
	for waits := range 5 { // through so many looks
		ids := f.enqueue(5)
		for range waits {
			f.minute()
		}
		cancel(ids[:3])
	}
	f.minute()
	f.minute()
	f.minute()
	if s := f.totals("k"); s.Cancelled != 15 || s.Arrived != 25 {
		t.Errorf("%d are counted as cancelled, want 15, and %d as arrived, want 25", s.Cancelled, s.Arrived)
	}
}

// What is taken back for the last time is dead, and counted as that too.
func TestReclaimCountsWhatItMakesDead(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.worker(time.Hour)
	f.enqueue(3)
	f.claim(w, 2)
	f.exec(`UPDATE jobgen.jobs SET crashes = 4 WHERE id = (SELECT min(id) FROM jobgen.jobs)`)
	f.exec(`UPDATE jobgen.workers SET lost_at = now()`)
	_, err := f.store.Reclaim(f.ctx(), 10, 5, time.Second, false)
	f.no(err)
	if s := f.totals("k"); s.Reclaimed != 2 || s.Died != 1 {
		t.Errorf("%+v", s)
	}
}

// Many purge at once, while counts are written: the totals never fall, and nothing is lost or counted twice.
func TestTotalsOnlyGrowWhileSamplesArePurged(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.exec(`INSERT INTO jobgen.samples (minute, queue, kind, arrived, succeeded, failed, reclaimed, run_us, run_times)
	        SELECT date_trunc('minute', now()) - i * interval '1 minute', 'q', k, 1, 2, 3, 4, 5, CASE WHEN i % 3 = 0 THEN ARRAY[1, 0, 1]::bigint[] WHEN i % 3 = 1 THEN ARRAY[1]::bigint[] END
	        FROM generate_series(0, 2999) i, unnest('{k,l}'::text[]) k`)
	before := f.totals("k")
	if before.Succeeded != 6000 || fmt.Sprint(before.RunTimes) != "[2000 0 1000]" {
		t.Fatalf("%+v", before)
	}
	var wg, watch sync.WaitGroup
	done := make(chan bool)
	watch.Go(func() {
		for last := before; ; {
			select {
			case <-done:
				return
			default:
			}
			s := f.totals("k")
			if s.Succeeded < last.Succeeded || s.RunTimes[0] < last.RunTimes[0] {
				t.Errorf("from %+v to %+v", last, s)
				return
			}
			last = s
		}
	})
	for range 4 {
		wg.Go(func() {
			s := f.openStore()
			for range 20 {
				if _, err := s.Purge(context.Background(), engine.Keep{Attempts: time.Hour, Samples: 24 * time.Hour}); err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				if _, err := s.Sample(context.Background(), []engine.Sample{{Queue: "q", Kind: "k", Succeeded: 1, RunTimes: []int64{1}}}, time.Hour); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	close(done)
	watch.Wait()
	if s := f.totals("k"); s.Succeeded != 6080 || s.Arrived != 3000 || s.Failed != 9000 || s.Reclaimed != 12000 || s.RunTime != 15*time.Millisecond || fmt.Sprint(s.RunTimes) != "[2080 0 1000]" {
		t.Errorf("%+v", s)
	}
	f.expect(0, `SELECT count(*) FROM jobgen.samples WHERE minute < now() - interval '24 hours 1 minute' AND minute > '-infinity'`)
	f.expect(true, `SELECT count(*) < 40 FROM jobgen.samples WHERE NOT summed`)
}
