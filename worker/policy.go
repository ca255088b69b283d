package worker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

// Reserve keeps slots free for urgent jobs: Slots of a worker's slots are used by jobs of Priority or more only.
type Reserve struct {
	Priority int // 1 to 9
	Slots    int // at least 1; together less than Concurrency
}

// policy is what restricts or orders the claims of a worker: its Config, and over that what has been decided in the
// database. It does not change; a change makes another. The zero value restricts nothing.
type policy struct {
	paused  map[string]bool
	slots   map[string]int // handlers at once, of queues with a limit
	weights map[string]int // of all queues; nil: they take turns
	reserve []Reserve      // by priority, biggest first
}

// plain tells whether one claim over all ranges is right: nothing is restricted.
func (p *policy) plain() bool { return len(p.slots) == 0 && len(p.reserve) == 0 && p.weights == nil }

func (p *policy) equal(q *policy) bool {
	return maps.Equal(p.paused, q.paused) && maps.Equal(p.slots, q.slots) && maps.Equal(p.weights, q.weights) && slices.Equal(p.reserve, q.reserve)
}

// policy puts what has been decided over what the program says.
func (c *Config) policy(decided []engine.Queue) *policy {
	p := &policy{reserve: c.Reserve}
	slots, weights := maps.Clone(c.QueueSlots), map[string]int{}
	for _, q := range c.Queues {
		weights[q] = cmp.Or(c.Weights[q], 1)
	}
	for _, d := range decided {
		if d.Paused {
			if p.paused == nil {
				p.paused = map[string]bool{}
			}
			p.paused[d.Name] = true
		}
		if d.Slots > 0 {
			if slots == nil {
				slots = map[string]int{}
			}
			slots[d.Name] = d.Slots
		}
		if d.Weight > 0 {
			weights[d.Name] = d.Weight
		}
	}
	p.slots = slots
	for _, w := range weights {
		if w != weights[c.Queues[0]] {
			p.weights = weights
			break
		}
	}
	return p
}

// open lists the queues of all that are not paused.
func (p *policy) open(queues []string) []string {
	if len(p.paused) == 0 {
		return queues
	}
	return slices.DeleteFunc(slices.Clone(queues), func(q string) bool { return p.paused[q] })
}

// closed is how many slots jobs of less than a priority may not use.
func (p *policy) closed(priority int) (n int) {
	for _, r := range p.reserve {
		if r.Priority >= priority {
			n += r.Slots
		}
	}
	return n
}

// reserved is how many slots are reserved in all.
func (c *Config) reserved() (n int) {
	for _, r := range c.Reserve {
		n += r.Slots
	}
	return n
}

// checkPolicy finds what contradicts itself in the fields that share slots out, and puts Reserve in order.
func (c *Config) checkPolicy() error {
	for _, q := range slices.Sorted(maps.Keys(c.Weights)) {
		if n := c.Weights[q]; !slices.Contains(c.Queues, q) {
			return notPolled("Weights", q)
		} else if n < 1 || n > jobs.MaxWeight {
			return fmt.Errorf("worker: Weights[%q] is %d; it must be 1 to %d (to stop a queue, pause it or leave it out of Queues)", q, n, jobs.MaxWeight)
		}
	}
	for _, q := range slices.Sorted(maps.Keys(c.QueueSlots)) {
		if n := c.QueueSlots[q]; !slices.Contains(c.Queues, q) {
			return notPolled("QueueSlots", q)
		} else if n < 1 || n > jobs.MaxSlots {
			return fmt.Errorf("worker: QueueSlots[%q] is %d; it must be 1 to %d (leave the queue out of QueueSlots for no limit)", q, n, jobs.MaxSlots)
		}
	}
	c.Reserve = slices.Clone(c.Reserve)
	slices.SortFunc(c.Reserve, func(a, b Reserve) int { return b.Priority - a.Priority })
	for i, r := range c.Reserve {
		switch {
		case r.Priority < 1 || r.Priority > jobs.MaxPriority:
			return fmt.Errorf("worker: Reserve has the priority %d; it must be 1 to %d: all jobs have at least 0", r.Priority, jobs.MaxPriority)
		case r.Slots < 1:
			return fmt.Errorf("worker: Reserve has %d slots for priority %d; it must be at least 1", r.Slots, r.Priority)
		case i > 0 && c.Reserve[i-1].Priority == r.Priority:
			return fmt.Errorf("worker: Reserve has the priority %d twice; add their slots up", r.Priority)
		}
	}
	if n := c.reserved(); n >= c.Concurrency {
		return fmt.Errorf("worker: Reserve keeps %d slots free and Concurrency is %d; no slot would be left for other jobs: make Concurrency larger or Reserve smaller", n, c.Concurrency)
	}
	return nil
}

func notPolled(field, queue string) error {
	return fmt.Errorf("worker: %s names the queue %q, which this worker does not poll; add it to Config.Queues or remove it from %s", field, queue, field)
}
