package worker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

// in puts holds into queues in turn.
func in(hs []*hold, queues ...string) []*hold {
	for i, h := range hs {
		h.Queue = queues[i%len(queues)]
	}
	return hs
}

func TestWhatWasClaimedAheadOfAPausedQueueGoesBack(t *testing.T) {
	t.Parallel()
	me := uuid.New()
	l := newLedger(2)
	l.own(me, nil)
	l.add(me, in(held(me, 1, 10), "open", "paused"))
	l.start(context.Background(), nil)
	l.start(context.Background(), nil)
	back, _ := l.obey(&policy{paused: map[string]bool{"paused": true}})
	if len(back) != 4 || slices.ContainsFunc(back, func(h *hold) bool { return h.Queue != "paused" || h.started != 0 }) {
		t.Errorf("%d go back", len(back))
	}
	// A claim that was under way brings more.
	if _, back := l.add(me, in(held(me, 101, 10), "paused", "open")); len(back) != 5 {
		t.Errorf("%d of the claim go back", len(back))
	}
	if _, waiting, _ := l.counts(); waiting != 9 {
		t.Errorf("%d wait", waiting)
	}
	if len(l.onlyCurrent([]outcome{{hold: back[0], release: true}})) != 1 {
		t.Error("what goes back is not current, so the database would not hear of it")
	}
}

func TestAGrownLedgerHiresForWhatWaits(t *testing.T) {
	t.Parallel()
	me := uuid.New()
	l := newLedger(1)
	l.own(me, nil)
	if n, _ := l.add(me, held(me, 1, 3)); n != 1 {
		t.Errorf("hires %d", n)
	}
	l.start(context.Background(), nil)
	if n := l.resize(10); n != 2 {
		t.Errorf("hires %d more for two that wait", n)
	}
}

func TestAShrunkLedgerStartsNothingUntilThereIsRoom(t *testing.T) {
	t.Parallel()
	me := uuid.New()
	l := newLedger(3)
	l.own(me, nil)
	l.add(me, held(me, 1, 10))
	var running []*hold
	for range 3 {
		running = append(running, l.start(context.Background(), nil))
	}
	if n := l.resize(1); n != 0 {
		t.Errorf("hires %d", n)
	}
	for i, h := range running {
		l.returned(h)
		l.free(h)
		if next := l.start(context.Background(), nil); (next != nil) != (i == 2) { // two of three runners leave
			t.Errorf("after handler %d: starts %v", i, next)
		}
	}
}

// A handler that returns between being given up and that being stored changes nothing either.
func TestAHandlerThatIsGivenUpHasNoOutcome(t *testing.T) {
	t.Parallel()
	var r Registry
	until := make(chan struct{})
	started := make(chan struct{})
	HandleNone(&r, &jobs.Spec[int, jobs.None]{Kind: "k", Queue: "q"}, func(context.Context, *jobs.Job[int]) error { close(started); <-until; return nil })
	w, err := New(nil, &r, Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	w.become(w.identity())
	w.handlers = context.Background()
	h := &hold{Claimed: &engine.Claimed{ID: 1, Fence: 1, Version: 1, Payload: []byte("1")}, handler: w.reg.handlers["k"]}
	w.ledger.add(w.self.Load().ID, []*hold{h})
	done := make(chan struct{})
	go func() { defer close(done); w.runner() }()
	select {
	case <-started:
	case <-done:
		t.Fatal("it has not run:", w.outcomes.take()[0].err)
	}
	h.cancel(errors.New("enough"))
	w.ledger.ignoring(0)
	found, n := w.ledger.ignoring(0)
	if n != 1 {
		t.Fatalf("%d are stuck, found %v", n, found)
	}
	w.giveUp(h, goroutines())
	close(until)
	w.ledger.close()
	<-done
	out := w.outcomes.take()
	if len(out) != 1 || out[0].err == nil {
		t.Errorf("outcomes: %+v", out)
	}
	if running, _, _ := w.ledger.counts(); running != 0 || !w.ledger.idle() {
		t.Errorf("%d run, %d are stuck", running, w.ledger.stuck)
	}
}

func TestReservedSlotsAddUpAndUrgentJobsTakeThemFirst(t *testing.T) {
	t.Parallel()
	l := &limits{policy: &policy{reserve: []Reserve{{8, 2}, {5, 3}}}, queues: map[string]int{}}
	room := func() [3]int { return [3]int{l.room(9, 10), l.room(5, 10), l.room(0, 10)} }
	for _, c := range []struct {
		priority, n int
		want        [3]int
	}{
		{0, 0, [3]int{10, 8, 5}},
		{9, 2, [3]int{8, 8, 5}},
		{5, 3, [3]int{5, 5, 5}},
		{0, 5, [3]int{0, 0, 0}},
		{9, -2, [3]int{2, 0, 0}},
		{5, -1, [3]int{3, 1, 0}},
	} {
		l.count(&hold{Claimed: &engine.Claimed{Priority: c.priority}}, c.n)
		if got := room(); got != c.want {
			t.Errorf("after %+d of priority %d there is room for %v, want %v", c.n, c.priority, got, c.want)
		}
	}
}

func TestALockerIsAdmittedByTheSameLimits(t *testing.T) {
	t.Parallel()
	l := newLedger(10)
	l.own(uuid.New(), nil)
	l.obey(&policy{slots: map[string]int{"few": 2}, paused: map[string]bool{"paused": true}})
	few, paused := engine.Claimed{Queue: "few"}, engine.Claimed{Queue: "paused"}
	counted, one := l.admit(&few)
	_, two := l.admit(&few)
	_, three := l.admit(&few)
	_, four := l.admit(&paused)
	if !one || !two || three || four {
		t.Errorf("admitted: %v %v %v, and of a paused queue %v", one, two, three, four)
	}
	l.dismiss(&few, counted)
	if _, again := l.admit(&few); !again {
		t.Error("not admitted after one has ended")
	}
	l.obey(&policy{slots: map[string]int{"few": 1}})
	l.dismiss(&few, counted) // it was counted against limits that are no more
	if n := l.limits.queues["few"]; n != 0 {
		t.Errorf("%d are counted", n)
	}
}

// What a queue with weight 3 has had is charged by its weight, whatever the size of the claims.
func TestQueuesTakeTurnsByWhatTheyHaveHad(t *testing.T) {
	t.Parallel()
	m := newMarks([]string{"a", "b", "idle"})
	m.policy = &policy{weights: map[string]int{"a": 3, "b": 1, "idle": 1000}}
	had := map[string]int{}
	for i := range 1000 {
		first := ""
		for _, k := range m.ranges() {
			if k.Priority == 4 && k.Queue != "idle" {
				first = k.Queue
				break
			}
		}
		batch := make([]engine.Claimed, 1+i*7%50)
		for j := range batch {
			batch[j] = job(first, 4, at(1), int64(j))
		}
		had[first] += len(batch)
		m.took(batch)
	}
	if share := float64(had["a"]) / float64(had["a"]+had["b"]); share < 0.745 || share > 0.755 {
		t.Errorf("share %.3f: %v", share, had)
	}
	if got := m.shares[m.place("idle", 4)]; got == 0 {
		t.Error("a queue that had nothing saves up")
	}
}

func TestAMarkStaysWhereAClaimHasNotLooked(t *testing.T) {
	t.Parallel()
	m := newMarks([]string{"full", "limited", "open", "paused"})
	m.policy = &policy{paused: map[string]bool{"paused": true}}
	m.band = &opening{low: 2, high: 9, queues: map[string]int{"full": 0, "limited": 1}}
	for _, k := range m.ranges() {
		if k.Queue == "full" || k.Queue == "paused" || k.Priority < 2 || (k.Queue == "limited") != (k.Limit == 1) {
			t.Errorf("looks at %+v", k)
		}
	}
	m.advance([]engine.Claimed{job("limited", 3, at(1), 1)}, at(100), true)
	looked := at(100).Add(-slack)
	for _, c := range []struct {
		queue    string
		priority int
		want     time.Time
	}{{"open", 3, looked}, {"open", 1, time.Time{}}, {"full", 3, time.Time{}}, {"paused", 3, time.Time{}}, {"limited", 3, at(1)}, {"limited", 4, looked}} {
		if got := m.find(c.queue, c.priority).At; !got.Equal(c.want) {
			t.Errorf("mark of %s/%d is %s, want %s", c.queue, c.priority, got, c.want)
		}
	}
}
