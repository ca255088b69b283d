package worker

import (
	"testing"
	"time"
)

// How often jobs are enqueued is told apart from how many come at once, and by how many workers they are shared.
func TestArrivals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		workers     int
		every       time.Duration // between wake-ups of this worker
		ids         int64         // between them
		least, most float64       // per second, at the end
	}{
		{"one every 20 ms", 1, 20 * time.Millisecond, 1, 40, 65},
		{"one every ms", 1, time.Millisecond, 1, 900, 1100},
		{"a batch of 1,000 every second", 1, time.Second, 1000, 0, 15},
		{"one every 20 ms, shared by 100", 100, 2 * time.Second, 100, 0, 65},
		{"one every ms, shared by 10", 10, 10 * time.Millisecond, 10, 900, 1200},
		{"one every 20 ms, and many for other queues", 1, 20 * time.Millisecond, 1000, 40, 65},
	} {
		var a arrivals
		at, id := now(), int64(1)
		for range 1000 {
			at, id = at.add(c.every), id+c.ids
			a.note(at, 1, id)
		}
		if _, r := a.rates(at, c.workers); r < c.least || r > c.most {
			t.Errorf("%s: %.0f a second, want %.0f to %.0f", c.name, r, c.least, c.most)
		}
		if fast, slow := a.rates(at.add(2*time.Second), c.workers); fast+slow > 5 {
			t.Errorf("%s: two seconds later %.0f and %.0f a second", c.name, fast, slow)
		}
	}
}
