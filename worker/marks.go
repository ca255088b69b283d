package worker

import (
	"cmp"
	"slices"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

// marks is the low-water mark of each range (queue and priority): the pair (run_at, id) up to which this worker has
// looked. Claims start there, so that the index entries of running and of finished jobs are not walked again. A range that is not
// looked at, because its queue is paused or full, keeps its mark. The claim loop owns it.
//
// There are two marks of each range. at stays behind the database's clock by slack, for transactions that commit late; near by
// nearSlack only. A worker with much to do starts most of its claims at near, since what comes in within slack may be more than a claim
// should walk, and some at at.
type marks struct {
	queues []string
	at     []engine.Mark // by priority, then queue
	near   []engine.Mark
	closer bool      // claims start at near
	level  []bool    // both marks of a range were the same when the last claim started
	latest time.Time // the latest database time seen
	turn   int       // rotates the queues of one priority, so that none starves the others
	shares []float64 // of each range: jobs taken by the weight of its queue; the smallest comes first

	policy *policy  // nil: restricts nothing
	band   *opening // where a claim looks and how much it takes; nil: everywhere
	asked  []asked  // ranges of the last claim
}

// asked is a range that was asked for, by its place, and at how many jobs the claim was to stop; 0: at none.
type asked struct{ at, limit int }

func newMarks(queues []string) marks {
	m := marks{queues: queues, shares: make([]float64, (jobs.MaxPriority+1)*len(queues))}
	m.reset()
	m.ranges() // all are open
	return m
}

func (m *marks) reset() {
	m.at, m.near, m.level = m.at[:0], m.near[:0], make([]bool, (jobs.MaxPriority+1)*len(m.queues))
	for p := jobs.MaxPriority; p >= 0; p-- {
		for _, q := range m.queues {
			m.at = append(m.at, engine.Mark{Queue: q, Priority: p})
		}
	}
	m.near = append(m.near, m.at...)
}

// ranges are the marks of what is open, in the order in which a claim is to look: bigger priorities first.
func (m *marks) ranges() []engine.Mark {
	return m.inOrder(func(k engine.Mark) engine.Mark { return k })
}

// leftEnd are the ranges of a sweep.
func (m *marks) leftEnd() []engine.Mark {
	return m.inOrder(func(k engine.Mark) engine.Mark { return engine.Mark{Queue: k.Queue, Priority: k.Priority} })
}

func (m *marks) inOrder(f func(engine.Mark) engine.Mark) []engine.Mark {
	q := len(m.queues)
	out := make([]engine.Mark, 0, len(m.at))
	m.asked = m.asked[:0]
	m.turn++
	for first := 0; first < len(m.at); first += q {
		if p := m.at[first].Priority; m.band != nil && (p < m.band.low || p > m.band.high) {
			continue
		}
		begin := len(out)
		for i := range q {
			at, limit := first+(i+m.turn)%q, 0
			k := m.at[at]
			if m.level[at] = k == m.near[at]; m.closer {
				k = m.near[at]
			}
			if m.policy != nil && m.policy.paused[k.Queue] {
				continue
			}
			if m.band != nil {
				most, limited := m.band.queues[k.Queue]
				if limited && most <= 0 {
					continue
				}
				limit = most
			}
			k = f(k)
			k.Limit = limit
			out, m.asked = append(out, k), append(m.asked, asked{at, limit})
		}
		if m.policy != nil && m.policy.weights != nil {
			slices.SortStableFunc(out[begin:], func(a, b engine.Mark) int {
				return cmp.Compare(m.shares[m.place(a.Queue, a.Priority)], m.shares[m.place(b.Queue, b.Priority)])
			})
		}
	}
	return out
}

// took notes what a claim took, for the limits of the round's next claim and for the order of queues with weights. In that
// order, a queue that had nothing does not save up: it is put level with those that had.
func (m *marks) took(batch []engine.Claimed) {
	if m.band != nil {
		for _, c := range batch {
			if _, limited := m.band.queues[c.Queue]; limited {
				m.band.queues[c.Queue]--
			}
		}
	}
	if m.policy == nil || m.policy.weights == nil {
		return
	}
	taken := make([]int, len(m.at))
	for _, c := range batch {
		if at := m.place(c.Queue, c.Priority); at >= 0 {
			taken[at]++
		}
	}
	for first := 0; first < len(m.at); first += len(m.queues) {
		level, some := 0.0, false
		for at := first; at < first+len(m.queues); at++ {
			if taken[at] > 0 && (!some || m.shares[at] < level) {
				level, some = m.shares[at], true
			}
		}
		for at := first; some && at < first+len(m.queues); at++ {
			if n := taken[at]; n > 0 {
				m.shares[at] += float64(n) / float64(m.policy.weights[m.at[at].Queue])
			} else {
				m.shares[at] = max(m.shares[at], level)
			}
		}
	}
}

// advance notes what a claim from the marks has looked at, as of the database's time now. A claim that was not full has
// looked at everything it was asked to, but for ranges that ended at their limit. No mark comes closer to now than its slack:
// rows that are committed late within it are still seen. A claim from near says nothing about what lies between the two marks.
func (m *marks) advance(batch []engine.Claimed, now time.Time, all bool) {
	if now.IsZero() {
		return
	}
	if now.Before(m.latest.Add(-slack / 2)) {
		m.reset() // the database's clock went back
	}
	m.latest = now
	far, close := engine.Mark{At: now.Add(-slack)}, engine.Mark{At: now.Add(-nearSlack)}
	raise := func(at int, seen engine.Mark) {
		m.near[at].Raise(lesser(seen, close))
		if !m.closer || m.level[at] {
			m.at[at].Raise(lesser(seen, far))
		}
	}
	if all {
		for _, a := range m.asked {
			if k := &m.at[a.at]; a.limit == 0 || a.limit > count(batch, k.Queue, k.Priority) {
				raise(a.at, close)
			}
		}
	}
	for _, c := range batch {
		if at := m.place(c.Queue, c.Priority); at >= 0 { // else it is not one of ours: nothing to note
			raise(at, engine.Mark{At: c.RunAt, ID: c.ID})
		}
	}
}

func lesser(a, b engine.Mark) engine.Mark {
	if b.Before(a) {
		return b
	}
	return a
}

func count(batch []engine.Claimed, queue string, priority int) (n int) {
	for i := range batch {
		if batch[i].Priority == priority && batch[i].Queue == queue {
			n++
		}
	}
	return n
}

// place is where a range stands in at; -1: it is not one of ours.
func (m *marks) place(queue string, priority int) int {
	q := slices.Index(m.queues, queue)
	if q < 0 || priority < 0 || priority > jobs.MaxPriority {
		return -1
	}
	return (jobs.MaxPriority-priority)*len(m.queues) + q
}
