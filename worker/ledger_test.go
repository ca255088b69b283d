package worker

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

// held makes holds with ids from first on.
func held(owner uuid.UUID, first int64, n int) []*hold {
	hs := make([]*hold, n)
	for i := range hs {
		hs[i] = &hold{Claimed: &engine.Claimed{ID: first + int64(i), Fence: 1}, owner: owner}
	}
	return hs
}

// pace makes the ledger believe that it has been ending n handlers per second.
func (l *ledger) pace(n float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate, l.since, l.measured = n, now(), l.finished
}

func TestG3ClaimAheadForShortJobsOnly(t *testing.T) {
	t.Parallel()
	me := uuid.New()
	for _, c := range []struct {
		name                    string
		slots, running, waiting int
		rate                    float64
		want                    int
	}{
		{"nothing is held: all slots", 10, 0, 0, 0, 10},
		{"long jobs, all slots busy", 10, 10, 0, 2, 0},
		{"long jobs, one slot free", 10, 9, 0, 2, 1},
		{"short jobs: what starts in 50 ms beyond the slots", 10, 10, 0, 2000, 100},
		{"short jobs, enough is waiting", 10, 10, 80, 2000, 0},
		{"short jobs, more than half of it has been started", 10, 10, 40, 2000, 60},
		{"never more than the hold limit", 100, 0, 0, 1e9, maxHolds},
		{"many slots are their own limit", 5000, 0, 0, 1e9, 5000},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLedger(c.slots)
			l.own(me, nil)
			l.add(me, held(me, 1, c.running+c.waiting))
			for range c.running {
				l.start(context.Background(), nil)
			}
			l.pace(c.rate)
			if got := l.want(); got < c.want*9/10 || got > c.want {
				t.Errorf("want() = %d, want %d", got, c.want)
			}
		})
	}
}

func TestG3StoredHoldsMakeRoomAndUnstoredOnesDoNot(t *testing.T) {
	t.Parallel()
	me := uuid.New()
	l := newLedger(10)
	l.own(me, nil)
	l.add(me, held(me, 1, 10))
	for range 10 {
		h := l.start(context.Background(), nil)
		l.returned(h)
		l.free(h)
	}
	l.pace(0)
	if got := l.want(); got != 0 {
		t.Errorf("ten outcomes are not stored and it wants %d more", got)
	}
	l.settle(l.byID[1], l.byID[2], l.byID[3])
	l.pace(0)
	if got := l.want(); got != 3 {
		t.Errorf("three outcomes are stored and it wants %d more", got)
	}
}

// A claim for the little room that is left, while the outcomes of thousands are on their way to the database, costs as much time
// as a large one a moment later.
func TestG11IdleSlotsWaitForTheRoomThatComes(t *testing.T) {
	t.Parallel()
	me := uuid.New()
	l := newLedger(100)
	l.own(me, nil)
	hs := held(me, 1, maxHolds-50)
	l.add(me, hs)
	for range hs {
		h := l.start(context.Background(), nil)
		l.returned(h)
		l.free(h)
	}
	for _, c := range []struct{ stored, want int }{{0, 0}, {100, 0}, {1000, 1050}, {maxHolds - 50, maxHolds}} {
		l.settle(hs[:c.stored]...)
		l.pace(1e9)
		if got := l.want(); got != c.want {
			t.Errorf("%d of %d outcomes are stored, and it wants %d, want %d", c.stored, len(hs), got, c.want)
		}
	}
}

// The rate follows what happens: after a burst of short jobs, long ones are not claimed as if they were short.
func TestG3RateFollowsTheJobs(t *testing.T) {
	t.Parallel()
	l := newLedger(10)
	l.since = now().add(-20 * time.Millisecond)
	l.finished = 200
	l.measure()
	if l.rate < 1000 || l.rate > 10_001 {
		t.Errorf("200 handlers in 20 ms or a little more are %.0f a second", l.rate)
	}
	l.since = now().add(-time.Second) // and then nothing for a second
	l.measure()
	if l.rate > 1 {
		t.Errorf("after a second without a return the rate is still %.0f", l.rate)
	}
}

func TestG3StartingHandlersIsNoSpeed(t *testing.T) {
	t.Parallel()
	me := uuid.New()
	l := newLedger(10)
	l.own(me, nil)
	l.add(me, held(me, 1, 9))
	l.since = now().add(-2 * time.Millisecond)
	for range 9 {
		l.start(context.Background(), nil)
	}
	if n := l.want(); n != 1 {
		t.Errorf("with nine of ten slots busy it wants %d", n)
	}
}

func TestG4NewIdentityCancelsEverythingAndKeepsNothing(t *testing.T) {
	t.Parallel()
	before, after := uuid.New(), uuid.New()
	l := newLedger(2)
	l.own(before, nil)
	if n, _ := l.add(before, held(before, 1, 3)); n != 2 {
		t.Errorf("add asks for %d runners", n)
	}
	running := l.start(context.Background(), nil)
	if lost := l.own(after, engine.ErrLeaseLost); lost != 3 {
		t.Errorf("own says %d holds were lost", lost)
	}
	if cause := context.Cause(running.ctx); !errors.Is(cause, engine.ErrLeaseLost) {
		t.Errorf("the handler's context ended with %v", cause)
	}
	if l.current(running) {
		t.Error("a hold of the old identity is current")
	}
	// A claim that was on its way under the old id is not entered.
	if n, _ := l.add(before, held(before, 7, 1)); n != 0 || len(l.byID) != 0 {
		t.Errorf("a claim under the old id was entered: %v", l.byID)
	}
	// The stale handler takes up a slot until it returns.
	l.add(after, held(after, 10, 5))
	l.pace(0)
	if running, _, _ := l.counts(); running != 1 {
		t.Errorf("%d handlers run", running)
	}
	l.returned(running)
	l.free(running)
	l.settle(running)
	if _, _, holds := l.counts(); holds != 5 {
		t.Errorf("the stale handler's return removed a live hold: %d are left", holds)
	}
}

func TestG4NewHoldOfAJobReplacesTheOldOne(t *testing.T) {
	t.Parallel()
	me := uuid.New()
	l := newLedger(2)
	l.own(me, nil)
	l.add(me, held(me, 1, 1))
	old := l.start(context.Background(), nil)
	l.add(me, []*hold{{Claimed: &engine.Claimed{ID: 1, Fence: 9}, owner: me}})
	if !errors.Is(context.Cause(old.ctx), engine.ErrLeaseLost) {
		t.Error("the old hold's handler goes on")
	}
	if lost := l.gone([]*hold{old}, []int64{1}); len(lost) != 0 || l.byID[1] == nil {
		t.Error("a heartbeat's answer about the old hold removed the new one")
	}
	l.settle(old)
	if l.byID[1] == nil || l.byID[1].Fence != 9 {
		t.Error("settling the old hold removed the new one")
	}
}

func TestG4OnlyARunningHandlerIsRobbed(t *testing.T) {
	t.Parallel()
	me := uuid.New()
	l := newLedger(3)
	l.own(me, nil)
	l.add(me, held(me, 1, 3))
	runs, finishes, returned := l.start(context.Background(), nil), l.start(context.Background(), nil), l.start(context.Background(), nil)
	finishes.finishing.Store(true)
	l.returned(returned)
	lost := l.gone([]*hold{runs, finishes, returned}, []int64{1, 2, 3})
	if len(lost) != 1 || lost[0] != runs || !errors.Is(context.Cause(runs.ctx), engine.ErrLeaseLost) {
		t.Errorf("lost: %v", lost)
	}
	if !l.current(finishes) || !l.current(returned) || finishes.ctx.Err() != nil {
		t.Error("a hold whose outcome is on its way was given up")
	}
}

func TestG3WhatWaitsTooLongGoesBack(t *testing.T) {
	t.Parallel()
	me := uuid.New()
	l := newLedger(2)
	l.own(me, nil)
	l.add(me, held(me, 1, 102))
	l.start(context.Background(), nil)
	l.start(context.Background(), nil)
	if hs := l.overdue(time.Hour); len(hs) != 0 {
		t.Errorf("%d go back at once", len(hs))
	}
	l.pace(200) // ten in 50 ms
	if hs := l.overdue(0); len(hs) < 90 || len(hs) > 95 || hs[len(hs)-1].ID != 102 {
		t.Errorf("%d go back, want what is behind the next ten or a few less", len(hs))
	}
	if _, waiting, holds := l.counts(); waiting < 5 || waiting > 10 || holds != 102 {
		t.Errorf("%d wait, and %d are held until they have gone back", waiting, holds)
	}
}

// A shutdown flushes for the last time when no handler runs, so a handler runs until its outcome is in hand.
func TestG2HandlerRunsUntilItsOutcomeIsInHand(t *testing.T) {
	t.Parallel()
	var r Registry
	HandleNone(&r, &jobs.Spec[int, jobs.None]{Kind: "k", Queue: "q"}, func(context.Context, *jobs.Job[int]) error { return nil })
	w, err := New(nil, &r, Config{})
	if err != nil {
		t.Fatal(err)
	}
	w.become(w.identity())
	w.handlers = context.Background()
	w.ledger.add(w.self.Load().ID, []*hold{{Claimed: &engine.Claimed{ID: 1, Fence: 1, Payload: []byte("1")}, handler: r.handlers["k"]}})
	w.outcomes.mu.Lock() // handing it on takes a while
	done := make(chan struct{})
	go func() { defer close(done); w.runner() }()
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		w.ledger.mu.Lock()
		returned := w.ledger.finished == 1
		w.ledger.mu.Unlock()
		if returned {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the handler has not returned")
		}
	}
	if running, _, _ := w.ledger.counts(); running != 1 {
		t.Errorf("%d handlers run while an outcome is on its way", running)
	}
	w.outcomes.mu.Unlock()
	w.ledger.close()
	<-done
	if running, _, _ := w.ledger.counts(); running != 0 || len(w.outcomes.take()) != 1 {
		t.Errorf("afterwards %d handlers run", running)
	}
}

// A claim is forgotten once none of its jobs is held, and not before: until then it is what finds them if this process is lost.
func TestG7AClaimIsSpentWithTheLastOfItsHolds(t *testing.T) {
	t.Parallel()
	me := uuid.New()
	l := newLedger(10)
	l.own(me, nil)
	batch := func(fence, first int64, n int) []*hold {
		hs, c := held(me, first, n), &claim{fence: fence, left: n}
		for _, h := range hs {
			h.Fence, h.claim = fence, c
		}
		l.counting(me, c)
		return hs
	}
	spent := func(want ...int64) {
		t.Helper()
		if got := l.takeSpent(); !slices.Equal(got, want) {
			t.Errorf("spent %v, want %v", got, want)
		}
	}
	a, b := batch(1, 1, 3), batch(2, 4, 2)
	l.enter(me, a[0]) // needs no handler, and its outcome may be stored before the others are entered
	l.settle(a[0])
	spent()
	l.add(me, a[1:])
	l.add(me, b)
	l.settle(a[1], b[0])
	spent()
	l.settle(a[1]) // once more
	spent()
	l.settle(a[2])
	spent(1)
	l.putSpent(me, []int64{1})
	spent(1)

	l.abandonRow(b[1]) // its row stays this worker's
	spent()
	if _, _, holds := l.counts(); holds != 0 {
		t.Errorf("%d holds are left", holds)
	}

	c, again := batch(3, 7, 1), batch(4, 7, 1)
	l.add(me, c)
	l.add(me, again) // taken back from this worker meanwhile, and claimed anew
	spent(3)
	stray := held(me, 8, 2) // from a claim whose answer was lost: how many there are is not known
	l.enter(me, stray[0])
	l.settle(stray[0], again[0])
	spent(4)

	lost := batch(8, 20, 1) // by a server that forgets it, and then issues its fence again
	l.add(me, lost)
	anew := batch(8, 21, 1)
	l.add(me, anew)
	l.settle(lost[0])
	spent()
	l.settle(anew[0])
	l.add(me, batch(8, 22, 1))
	spent()

	half := batch(9, 23, 2) // the outcome of the first is lost with the server
	l.add(me, half)
	done := batch(10, 25, 1)
	l.add(me, done)
	l.settle(half[0], done[0])
	l.distrust()
	l.settle(half[1])
	spent()

	l.add(me, batch(5, 10, 1))
	l.putSpent(me, []int64{6})
	l.own(uuid.New(), errors.New("lost")) // what stands under the old id is Reclaim's
	spent()
	l.putSpent(me, []int64{7})
	spent()
}

func TestCloseStartsNothingMore(t *testing.T) {
	t.Parallel()
	me := uuid.New()
	l := newLedger(2)
	l.own(me, nil)
	l.add(me, held(me, 1, 2))
	l.close()
	if h := l.start(context.Background(), nil); h != nil {
		t.Errorf("started %d after close", h.ID)
	}
	if hs := l.unstarted(); len(hs) != 2 {
		t.Errorf("%d are to be given back", len(hs))
	}
}

func TestBackoffOfSweepsGrowsWithTheFleetAndTheCost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cost     time.Duration
		fleet    int
		min, max time.Duration
	}{
		{0, 0, 700 * time.Millisecond, 1300 * time.Millisecond},
		{0, 1, 700 * time.Millisecond, 1300 * time.Millisecond},
		{0, 10, 7 * time.Second, 13 * time.Second},
		{0, 1000, 22 * time.Second, 38 * time.Second},
		{10 * time.Second, 1, 150 * time.Second, 250 * time.Second},
	} {
		var p pacer
		begin := now()
		p.plan(c.cost, c.fleet)
		if wait := p.next.sub(begin); wait < c.min || wait > c.max {
			t.Errorf("cost %s, fleet %d: the next sweep comes after %s", c.cost, c.fleet, wait)
		}
		if p.due() {
			t.Error("due at once")
		}
	}
}

func TestJitterIsAQuarterEitherWay(t *testing.T) {
	t.Parallel()
	low, high := time.Hour, time.Duration(0)
	for range 1000 {
		d := jitter(time.Second)
		low, high = min(low, d), max(high, d)
	}
	if low < 750*time.Millisecond || low > 800*time.Millisecond || high > 1250*time.Millisecond+1 || high < 1200*time.Millisecond {
		t.Errorf("jitter(1s) is between %s and %s", low, high)
	}
	if jitter(0) != 0 {
		t.Error("jitter(0) is not 0")
	}
}

func TestErrorTextIsStorableAndSaysSomething(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ err, want string }{
		{"plain", "plain"},
		{"a\x00b", "a\ufffdb"},
		{"a\xffb", "a\ufffdb"},
		{"", "an error without a text, of type *errors.errorString"},
		{" \n ", "an error without a text, of type *errors.errorString"},
	} {
		if got := errorText(errors.New(c.err)); got != c.want {
			t.Errorf("errorText(%q) = %q, want %q", c.err, got, c.want)
		}
	}
	long := make([]byte, 1<<20)
	for i := range long {
		long[i] = 'x'
	}
	if got := errorText(errors.New("begin" + string(long) + "end")); len(got) > maxError || got[:5] != "begin" || got[len(got)-3:] != "end" {
		t.Errorf("a megabyte became %d bytes, %q to %q", len(got), got[:5], got[len(got)-3:])
	}
}

// A locker that was refused a slot gets none while a suspect is to run alone, so no runner makes room for it: the suspect would wait for
// ever, and the claim loop for it.
func TestG8ASuspectStartsAlthoughALockerWasRefusedASlot(t *testing.T) {
	t.Parallel()
	me := uuid.New()
	l := newLedger(1)
	l.own(me, nil)
	l.setLocks(4, true)
	l.add(me, held(me, 1, 1))
	first := l.start(t.Context(), nil)
	if l.seat(false) {
		t.Fatal("a locker has a slot that a runner has")
	}
	l.setAlone(true)
	l.returned(first)
	l.settle(first)
	if next := l.start(t.Context(), first); next != nil {
		t.Fatalf("%+v starts", next)
	}
	if runners, _ := l.add(me, held(me, 2, 1)); runners != 1 {
		t.Fatalf("%d runners, want 1", runners)
	}
	if l.start(t.Context(), nil) == nil {
		t.Error("the suspect does not start")
	}
}
