package worker

import (
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (m *marks) find(queue string, priority int) *engine.Mark { return &m.at[m.place(queue, priority)] }

// at is epoch plus seconds.
func at(seconds float64) time.Time { return epoch.Add(time.Duration(seconds * float64(time.Second))) }

func job(queue string, priority int, runAt time.Time, id int64) engine.Claimed {
	return engine.Claimed{Queue: queue, Priority: priority, RunAt: runAt, ID: id}
}

func TestG11MarkIsThePairOfTheLastJobTaken(t *testing.T) {
	t.Parallel()
	m := newMarks([]string{"a", "b"})
	m.advance([]engine.Claimed{job("a", 0, at(1), 7), job("a", 0, at(1), 9), job("b", 5, at(3), 4)}, at(100), false)
	for _, c := range []struct {
		queue    string
		priority int
		at       time.Time
		id       int64
	}{
		{"a", 0, at(1), 9},
		{"b", 5, at(3), 4},
		{"a", 5, time.Time{}, 0}, // a full claim says nothing about ranges it took nothing from
		{"b", 0, time.Time{}, 0},
	} {
		if got := m.find(c.queue, c.priority); !got.At.Equal(c.at) || got.ID != c.id {
			t.Errorf("mark of %s/%d is (%s, %d), want (%s, %d)", c.queue, c.priority, got.At, got.ID, c.at, c.id)
		}
	}
}

func TestG11MarksAdvanceAlsoWhenAClaimFindsNothing(t *testing.T) {
	t.Parallel()
	m := newMarks([]string{"a"})
	m.advance(nil, at(100), true)
	for _, k := range m.ranges() {
		if !k.At.Equal(at(100).Add(-slack)) {
			t.Errorf("mark of priority %d is %s", k.Priority, k.At)
		}
	}
	m.advance(nil, time.Time{}, true) // the database's time is not known yet
	if k := m.find("a", 0); !k.At.Equal(at(100).Add(-slack)) {
		t.Errorf("the mark went to %s", k.At)
	}
}

func TestG11MarksStayBehindTheClockBySlack(t *testing.T) {
	t.Parallel()
	m := newMarks([]string{"a"})
	m.advance([]engine.Claimed{job("a", 0, at(99.5), 3)}, at(100), false)
	if k := m.find("a", 0); !k.At.Equal(at(100).Add(-slack)) || k.ID != 0 {
		t.Errorf("a job of half a second ago moved the mark to (%s, %d)", k.At, k.ID)
	}
}

func TestG11MarksOnlyMoveRight(t *testing.T) {
	t.Parallel()
	m := newMarks([]string{"a"})
	m.advance([]engine.Claimed{job("a", 0, at(50), 7)}, at(100), false)
	m.advance([]engine.Claimed{job("a", 0, at(50), 3), job("a", 0, at(20), 99)}, at(101), false)
	if k := m.find("a", 0); !k.At.Equal(at(50)) || k.ID != 7 {
		t.Errorf("the mark went to (%s, %d)", k.At, k.ID)
	}
	m.advance([]engine.Claimed{job("a", 0, at(50), 8)}, at(101), false)
	if k := m.find("a", 0); !k.At.Equal(at(50)) || k.ID != 8 {
		t.Errorf("the mark stays at (%s, %d)", k.At, k.ID)
	}
	// A little jitter between two answers is not the clock going back.
	m.advance(nil, at(100.9), false)
	if k := m.find("a", 0); !k.At.Equal(at(50)) {
		t.Errorf("the mark went to %s", k.At)
	}
}

func TestG11MarksAreResetWhenTheClockGoesBack(t *testing.T) {
	t.Parallel()
	m := newMarks([]string{"a"})
	m.advance(nil, at(1000), true)
	m.advance(nil, at(500), false)
	if k := m.find("a", 0); !k.At.IsZero() {
		t.Errorf("after the clock went back the mark is still %s", k.At)
	}
	m.advance(nil, at(501), true)
	if k := m.find("a", 0); !k.At.Equal(at(501).Add(-slack)) {
		t.Errorf("the new clock's mark is %s", k.At)
	}
}

func TestMarksIgnoreWhatIsNotTheirs(t *testing.T) {
	t.Parallel()
	m := newMarks([]string{"a"})
	m.advance([]engine.Claimed{job("other", 0, at(1), 7)}, at(100), false)
	for _, k := range m.ranges() {
		if !k.At.IsZero() {
			t.Errorf("mark of %s/%d moved to %s", k.Queue, k.Priority, k.At)
		}
	}
}

func TestQueuesTakeTurnsAndPrioritiesDoNot(t *testing.T) {
	t.Parallel()
	m := newMarks([]string{"a", "b", "c"})
	first := map[string]int{}
	for range 30 {
		ranges := m.ranges()
		if len(ranges) != 30 {
			t.Fatalf("%d ranges", len(ranges))
		}
		first[ranges[0].Queue]++
		seen := map[engine.Mark]bool{}
		for i, k := range ranges {
			if k.Priority != 9-i/3 {
				t.Fatalf("range %d has priority %d", i, k.Priority)
			}
			seen[k] = true
		}
		if len(seen) != 30 {
			t.Fatalf("a range is there twice: %v", ranges)
		}
	}
	if first["a"] != 10 || first["b"] != 10 || first["c"] != 10 {
		t.Errorf("how often each queue came first: %v", first)
	}
}

func TestSweepStartsAtTheLeftEnd(t *testing.T) {
	t.Parallel()
	m := newMarks([]string{"a"})
	m.advance(nil, at(100), true)
	for _, k := range m.leftEnd() {
		if !k.At.IsZero() || k.ID != 0 {
			t.Errorf("a sweep of priority %d starts at (%s, %d)", k.Priority, k.At, k.ID)
		}
	}
	if k := m.find("a", 0); k.At.IsZero() {
		t.Error("a sweep moved the mark")
	}
}

// A claim from the nearer mark has not looked at what lies between the two: a late commit there is still to be found.
func TestG2AClaimFromTheNearerMarkLeavesTheOtherOne(t *testing.T) {
	t.Parallel()
	m := newMarks([]string{"a"})
	start := func() engine.Mark { return m.ranges()[jobs.MaxPriority] }
	m.ranges()
	m.advance(nil, at(100), true)
	m.closer = true
	if k := start(); !k.At.Equal(at(100).Add(-nearSlack)) {
		t.Errorf("starts at %s", k.At)
	}
	m.advance([]engine.Claimed{job("a", 0, at(100.2), 3)}, at(105), true)
	if k := start(); !k.At.Equal(at(105).Add(-nearSlack)) {
		t.Errorf("then at %s", k.At)
	}
	m.closer = false
	if k := start(); !k.At.Equal(at(100).Add(-slack)) {
		t.Errorf("looks back to %s, want where it had looked to the last time", k.At)
	}
	m.advance(nil, at(106), true)
	if k := start(); !k.At.Equal(at(106).Add(-slack)) {
		t.Errorf("looks back to %s", k.At)
	}
}

// In an old backlog both marks are the same, and stay so: looking back costs nothing there.
func TestG11BothMarksGoThroughABacklogTogether(t *testing.T) {
	t.Parallel()
	m := newMarks([]string{"a"})
	for i, closer := range []bool{false, true, true} {
		m.closer = closer
		m.ranges()
		m.advance([]engine.Claimed{job("a", 0, at(float64(i)), int64(i))}, at(100), false)
	}
	m.closer = false
	if k := m.ranges()[jobs.MaxPriority]; !k.At.Equal(at(2)) || k.ID != 2 {
		t.Errorf("looks back to (%s, %d)", k.At, k.ID)
	}
}
