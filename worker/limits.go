package worker

import (
	"fmt"
	"slices"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

// limits count what runs against what the policy allows: how many handlers of a queue, and how many of jobs that are not
// urgent enough for the reserved slots. The ledger has them under its lock, and has none while nothing is limited.
//
// A priority has room if, for each reservation above it, what runs of less than that reservation's priority fits into the
// slots left: an urgent job thus takes a reserved slot first.
type limits struct {
	*policy
	queues     map[string]int // running, of each queue with a limit
	priorities [jobs.MaxPriority + 1]int
	locks      [jobs.MaxPriority + 1]int // of these, how many are owned by lock
}

func (l *limits) count(h *hold, n int) {
	if _, limited := l.slots[h.Queue]; limited {
		l.queues[h.Queue] += n
	}
	l.priorities[h.Priority] += n
	if h.locked {
		l.locks[h.Priority] += n
	}
}

// room is how many more jobs of a priority can start beside what is counted.
func (l *limits) room(priority, slots int) int {
	n := slots - total(l.priorities[:])
	for _, r := range l.reserve {
		if r.Priority > priority {
			n = min(n, slots-l.closed(r.Priority)-total(l.priorities[:r.Priority]))
		}
	}
	return n
}

// lockRoom tells whether a locker, of which there may be most, can run a job of a priority: what is reserved is kept free
// among the lockers too. Where there are too few for that, one is left to jobs that are not urgent.
func (l *limits) lockRoom(priority, most int) bool {
	return !slices.ContainsFunc(l.reserve, func(r Reserve) bool {
		return r.Priority > priority && total(l.locks[:r.Priority]) >= max(most-l.closed(r.Priority), 1)
	})
}

// reserved is how many slots are. The caller has the lock.
func (l *ledger) reserved() int {
	if l.limits == nil {
		return 0
	}
	return l.limits.closed(0)
}

// full tells whether as many jobs of a queue run as it has slots.
func (l *limits) full(queue string) bool {
	most, limited := l.slots[queue]
	return limited && l.queues[queue] >= most
}

// may tells whether h can start now.
func (l *limits) may(h *hold, slots int) bool {
	return !l.full(h.Queue) && (len(l.reserve) == 0 || l.room(h.Priority, slots) > 0)
}

// with is l with what waits counted too.
func (l *limits) with(waiting []*hold) *limits {
	c := &limits{policy: l.policy, queues: map[string]int{}, priorities: l.priorities}
	for q, n := range l.queues {
		c.queues[q] = n
	}
	for _, h := range waiting {
		c.count(h, 1)
	}
	return c
}

func total(ns []int) (sum int) {
	for _, n := range ns {
		sum += n
	}
	return sum
}

// obey brings a policy into force. It returns what was claimed ahead of queues that are paused now, to be given back, and
// how many more runners are needed.
func (l *ledger) obey(p *policy) (back []*hold, runners int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused, l.limits = p.paused, nil
	if len(p.slots) > 0 || len(p.reserve) > 0 {
		l.limits = &limits{policy: p, queues: map[string]int{}}
		for h := range l.active {
			l.counted(h)
		}
	}
	poke(l.room)
	poke(l.eased)
	return l.takePaused(), l.hire()
}

// takePaused takes out what waits of paused queues, takeBarred what has waited for longer than patience and may not start
// yet. The caller has the lock.
func (l *ledger) takePaused() []*hold {
	return l.take(func(h *hold) bool { return l.paused[h.Queue] })
}

func (l *ledger) takeBarred(patience time.Duration) []*hold {
	return l.take(func(h *hold) bool { return since(h.entered) >= patience && !l.limits.may(h, l.slots) })
}

func (l *ledger) take(which func(*hold) bool) (out []*hold) {
	l.waiting = slices.DeleteFunc(l.waiting, func(h *hold) bool {
		is := which(h)
		if is {
			out = append(out, h)
		}
		return is
	})
	return out
}

// resize changes the number of slots, and returns how many more runners are needed.
func (l *ledger) resize(slots int) (runners int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slots = slots
	l.shareLocks()
	poke(l.room)
	poke(l.eased)
	return l.hire()
}

// hire decides how many more runners what waits needs, calls those that rest, and returns how many are to be made. The caller
// has the lock.
func (l *ledger) hire() int {
	n := max(min(l.slots-l.runners-l.lockers, len(l.waiting)), 0)
	l.runners += n
	again := min(n, l.resting)
	l.resting -= again
	l.called += again
	for range again {
		l.call.Signal()
	}
	return n - again
}

// mostResting bounds the goroutines that rest, with stacks of some KiB each.
const mostResting = 100

// rest waits until hire calls, and tells whether it has. A runner that has grown its stack, and knows its number, costs less
// than a new one: a tenth of the CPU time of a drain.
func (l *ledger) rest() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.resting >= mostResting {
		return false
	}
	l.resting++
	for l.called == 0 {
		if l.closed {
			l.resting--
			return false
		}
		l.call.Wait()
	}
	l.called--
	return true
}

// counted counts a handler that runs against the limits. The caller has the lock.
func (l *ledger) counted(h *hold) {
	h.limits = l.limits
	l.limits.count(h, 1)
}

// uncount is for a handler that has returned. Whatever it had kept from being claimed can be claimed now.
func (l *ledger) uncount(h *hold) {
	if h.limits != l.limits { // it was started under other limits, which count no more
		return
	}
	if l.limits.full(h.Queue) || l.partly() {
		poke(l.eased)
	}
	l.limits.count(h, -1)
}

// admit tells whether a job that is about to run by lock may, and counts it against the limits it returns, if there are any.
func (l *ledger) admit(c *engine.Claimed) (*limits, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := &hold{Claimed: c, locked: true}
	if l.paused[c.Queue] || l.limits != nil && !(l.limits.may(h, l.slots) && l.limits.lockRoom(c.Priority, l.lockMost)) {
		return nil, false
	}
	if l.limits != nil {
		l.limits.count(h, 1)
	}
	return l.limits, true
}

// dismiss takes that back.
func (l *ledger) dismiss(c *engine.Claimed, counted *limits) {
	if counted == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.uncount(&hold{Claimed: c, limits: counted, locked: true})
}

// lockBand is where a job to run by lock can be looked for; nil: everywhere.
func (l *ledger) lockBand() *opening {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limits == nil {
		return nil
	}
	band := &opening{high: jobs.MaxPriority, queues: map[string]int{}}
	for band.low <= jobs.MaxPriority && !(l.limits.room(band.low, l.slots) > 0 && l.limits.lockRoom(band.low, l.lockMost)) {
		band.low++
	}
	for q, most := range l.limits.slots {
		band.queues[q] = most - l.limits.queues[q]
	}
	return band
}

// next takes the first of those waiting that may start, if one may. The caller has the lock.
func (l *ledger) next() *hold {
	i := l.startable()
	if i < 0 {
		return nil
	}
	h := l.waiting[i]
	l.waiting = slices.Delete(l.waiting, i, i+1)
	return h
}

func (l *ledger) startable() int {
	return slices.IndexFunc(l.waiting, func(h *hold) bool { return l.limits.may(h, l.slots) })
}

// partly tells whether reserved slots are all that is left.
func (l *ledger) partly() bool {
	return l.limits != nil && len(l.limits.reserve) > 0 && l.limits.room(0, l.slots) <= 0
}

// opening is the i-th of what can be claimed now, if there are that many; n is what is wanted if nothing is limited.
func (l *ledger) opening(i, n int) (opening, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := []opening{{low: 0, high: jobs.MaxPriority, n: n}}
	if l.limits != nil {
		all = l.openings()
	}
	if i >= len(all) {
		return opening{}, false
	}
	return all[i], true
}

// awaits tells for which of the queues a new job could start, and whether only an urgent one could.
func (l *ledger) awaits(queues []string) (open []string, partly bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.paused) == 0 && l.limits == nil {
		return queues, false
	}
	for _, q := range queues {
		if full := l.limits != nil && l.limits.full(q); !full && !l.paused[q] {
			open = append(open, q)
		}
	}
	return open, l.partly()
}

// opening is what can be claimed of the priorities from low to high.
type opening struct {
	low, high int
	n         int
	queues    map[string]int // of these, how many of each queue that has a limit
}

// bands divides the priorities where the reservations do, the most urgent first.
func (p *policy) bands() (bands []opening) {
	high := jobs.MaxPriority
	for _, r := range p.reserve {
		bands = append(bands, opening{low: r.Priority, high: high})
		high = r.Priority - 1
	}
	return append(bands, opening{low: 0, high: high})
}

// openings are what can be claimed now: a number for each band. What is limited is claimed for free slots only, never
// ahead: bulk work that waits here would be kept from other workers, and could take no reserved slot. The caller has the
// lock.
func (l *ledger) openings() []opening {
	held := l.limits.with(l.waiting)
	queues := map[string]int{}
	for q, most := range l.limits.slots {
		queues[q] = max(most-held.queues[q], 0)
	}
	bands := l.limits.bands()
	for i := range bands {
		b := &bands[i]
		b.queues = queues
		if len(bands) == 1 {
			b.n = l.ahead(l.startable() < 0)
		} else {
			b.n = max(min(held.room(b.low, l.slots), l.slots-l.running-l.lockers-len(l.waiting), max(maxHolds, l.slots)-len(l.byID)+min(len(l.parked), maxHolds)), 0)
		}
	}
	return bands
}

// Resize changes how many handlers run at once, in place of Config.Concurrency. When there are fewer slots than running
// handlers, those go on, and nothing starts until there is room; more slots are used at once. It may be called at any
// time, by any goroutine.
func (w *Worker) Resize(n int) error {
	reserved := w.cfg.reserved()
	switch {
	case n < 1 || n > jobs.MaxSlots:
		return fmt.Errorf("worker: Resize(%d): it must be 1 to %d (to stop claiming, pause the queues)", n, jobs.MaxSlots)
	case n <= reserved:
		return fmt.Errorf("worker: Resize(%d): Config.Reserve keeps %d slots free; it must be more than that", n, reserved)
	}
	w.hire(w.ledger.resize(n))
	return nil
}

func (w *Worker) hire(runners int) {
	for range runners {
		go w.runner()
	}
}
