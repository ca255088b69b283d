package worker

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

// hold is a job this process holds, from its claim until its outcome is stored.
type hold struct {
	*engine.Claimed
	handler *handler
	owner   uuid.UUID // the worker id under which it was claimed
	claim   *claim    // that it came with; nil: one that is not counted
	entered instant
	ctx     context.Context
	cancel  context.CancelCauseFunc // set when its handler starts
	started instant
	ran     time.Duration           // how long its handler ran, once it has returned
	timeout atomic.Pointer[timeout] // when its handler's context ends, once it has been called; nil: never
	locked  bool                    // its handler runs in the transaction that owns it by lock: it is no hold, unless it is adopted
	ended   instant                 // when its context was first seen to have ended; zero: not yet
	stuck   bool                    // it ignores that
	givenUp bool                    // its job goes on without it: what it returns is stale
	runner  atomic.Int64            // the goroutine that it runs in
	tx      engine.Cutter           // its transaction; nil: none
	limits  *limits                 // that it is counted against; nil: none
	// finishing: its transaction has removed the row, or is about to, so that the row's absence is no loss.
	finishing atomic.Bool
}

// claim counts the jobs of one claim that are still held.
type claim struct {
	fence int64
	left  int
}

func (h *hold) name() engine.Hold { return engine.Hold{ID: h.ID, Fence: h.Fence} }

// superfluous tells of a job as it was claimed that its key's work is on record already (G6): its row only has to go.
func (h *hold) superfluous() bool { return h.Recorded && h.Cancel == nil }

// over tells of a job as it was claimed that it is not to start: somebody has asked for its end, or its deadline has passed.
func (h *hold) over() bool {
	return h.Cancel != nil || !h.Recorded && h.Deadline != nil && h.Left <= 0
}

// ledger is what this process holds. There are two limits: running handlers (slots) and holds whose outcome is not yet
// stored. With one for both, a slot would wait for the database after each job (measured: 5k jobs/s at 10 slots).
//
// A hold is current while byID has it under its id: an outcome of any other is stale by definition and never reaches the
// database (G4). A claim is entered whole, under one lock, so a flush that contains any pair of it sees all of it.
type ledger struct {
	mu      sync.Mutex
	owner   uuid.UUID
	byID    map[int64]*hold
	claims  map[int64]*claim // those that are counted, by fence
	spent   []int64          // fences of claims of which nothing is held any more: the database need not know of them
	waiting []*hold          // claimed, not started; first in, first out
	slots   int
	runners int // goroutines that start what is waiting
	resting int // and that may be called to do so again
	called  int // and that are
	call    sync.Cond
	running int // handlers that have not returned, stale ones included
	active  map[*hold]struct{}
	parked  map[*hold]struct{} // their outcomes wait for another session: they take up no room, up to maxHolds of them
	stuck   int                // handlers that ignore their ended context
	closed  bool               // nothing is started any more
	limits  *limits            // nil: nothing but slots limits what starts
	paused  map[string]bool    // queues of which nothing starts

	lockers  int           // goroutines that run jobs owned by lock (lock.go)
	lockMost int           // of them at once
	lockConn int           // connections for them
	mixed    bool          // there are jobs of both sorts
	wanted   bool          // a locker was refused a slot
	alone    bool          // no locker starts
	ending   map[int64]int // jobs owned by lock, from their start until their end is stored or left to others

	finished int64 // handlers returned, ever
	measured int64 // finished, when the rate was last measured
	since    instant
	rate     float64 // handlers returned per second while there is work; starting long ones is no sign of speed

	room  chan struct{} // signalled when a hold is gone or a slot is free
	eased chan struct{} // signalled when a limit lets something start that it has kept from being claimed
}

func newLedger(slots int) *ledger {
	l := &ledger{
		byID: map[int64]*hold{}, claims: map[int64]*claim{}, active: map[*hold]struct{}{}, parked: map[*hold]struct{}{}, ending: map[int64]int{},
		slots: slots, room: make(chan struct{}, 1), eased: make(chan struct{}, 1),
	}
	l.call.L = &l.mu
	return l
}

// own starts a new worker id. What was held under the old one is lost: handlers are cancelled and the holds are not
// current any more. It returns how many.
func (l *ledger) own(id uuid.UUID, cause error) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.byID)
	for _, h := range l.byID {
		if h.cancel != nil {
			h.cancel(cause)
		}
	}
	clear(l.byID)
	clear(l.parked)
	clear(l.claims)
	l.waiting, l.spent, l.owner = nil, nil, id
	poke(l.room)
	return n
}

// add enters a whole claim and returns how many more runners it needs, and what is to go back because its queue was paused
// meanwhile. Holds of another owner than the present one are left out: that worker was lost while the claim was on its way,
// and what it claimed will be taken back.
func (l *ledger) add(owner uuid.UUID, batch []*hold) (runners int, back []*hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if owner != l.owner {
		return 0, nil
	}
	if l.running == 0 && len(l.waiting) == 0 {
		l.since, l.measured = now(), l.finished
	}
	at := now()
	for _, h := range batch {
		h.entered = at
		if old := l.byID[h.ID]; old != nil {
			l.forget(old)
			if old.cancel != nil {
				old.cancel(engine.ErrLeaseLost)
			}
		}
		l.byID[h.ID] = h
	}
	l.waiting = append(l.waiting, batch...)
	if len(l.paused) > 0 {
		back = l.takePaused()
	}
	return l.hire(), back
}

// enter is add for a hold that needs no handler: it only waits for its outcome to be stored.
func (l *ledger) enter(owner uuid.UUID, h *hold) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if owner != l.owner {
		return false
	}
	if old := l.byID[h.ID]; old != nil {
		l.forget(old)
	}
	l.byID[h.ID] = h
	return true
}

// forget drops a current hold. The caller has the lock.
func (l *ledger) forget(h *hold) {
	delete(l.byID, h.ID)
	delete(l.parked, h)
	if c := h.claim; c != nil {
		if c.left--; c.left == 0 && l.claims[c.fence] == c {
			delete(l.claims, c.fence)
			l.spent = append(l.spent, c.fence)
		}
	}
}

// count begins to count a claim that has just come. Its fence may be that of an earlier one, if the server has lost its last
// transactions: that one must not be spent in its place. The caller has the lock.
func (l *ledger) count(c *claim) {
	l.claims[c.fence] = c
	l.spent = slices.DeleteFunc(l.spent, func(fence int64) bool { return fence == c.fence })
}

// counting is count for a claim of owner.
func (l *ledger) counting(owner uuid.UUID, c *claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if owner == l.owner {
		l.count(c)
	}
}

// distrust counts no claim any more of those that have come. It is for when contact was lost: a server that comes back without
// its last transactions (a failover, a crash without synchronous_commit) has jobs running again whose outcomes it had stored,
// and only their claims name them. What is spent of these, the database tells (unseen).
func (l *ledger) distrust() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.claims)
	l.spent = nil
}

// abandonRow drops a hold whose row stays this worker's. Its claim is never spent, so that the job is found when the worker stops.
func (l *ledger) abandonRow(h *hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byID[h.ID] == h {
		h.claim = nil
		l.forget(h)
	}
	poke(l.room)
}

// takeSpent hands over the fences of the claims that are spent.
func (l *ledger) takeSpent() (fences []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fences, l.spent = l.spent, nil
	return fences
}

// putSpent takes what the database says is spent.
func (l *ledger) putSpent(owner uuid.UUID, fences []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if owner != l.owner || len(fences) == 0 {
		return
	}
	l.spent = append(l.spent, fences...)
	slices.Sort(l.spent) // what is there already is not put twice
	l.spent = slices.Compact(l.spent)
}

// start takes the next hold for a runner, or says that it is none any more. done is what the runner has run before, if anything: its
// outcome is in hand, and its slot is free.
func (l *ledger) start(base context.Context, done *hold) *hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	if done != nil {
		l.free(done)
	}
	if yields := l.wanted && l.lockers == 0 && !l.alone; l.closed || len(l.waiting) == 0 || yields || l.runners+l.lockers > l.slots {
		l.runners--
		poke(l.room)
		return nil
	}
	var h *hold
	if l.limits == nil {
		h = l.waiting[0]
		l.waiting[0] = nil
		l.waiting = l.waiting[1:]
	} else if h = l.next(); h == nil {
		l.runners--
		poke(l.room)
		return nil
	}
	if len(l.waiting) == 0 {
		l.waiting = nil
		poke(l.room)
	}
	h.ctx, h.cancel = context.WithCancelCause(base)
	h.started = now()
	l.running++
	l.active[h] = struct{}{}
	if l.limits != nil {
		l.counted(h)
	}
	return h
}

// returned says that h's handler has returned: it cannot be robbed any more, nor given up. Its slot and its hold are not
// free yet. It tells whether the hold is still current.
func (l *ledger) returned(h *hold) (current bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !h.locked { // the rate is for claiming ahead
		l.finished++
	}
	delete(l.active, h)
	if !h.givenUp {
		h.ran = since(h.started)
	}
	if h.stuck {
		l.stuck--
	}
	if h.locked && h.limits != nil {
		l.uncount(h)
	}
	h.cancel(nil)
	return l.byID[h.ID] == h
}

// free frees the slot of a handler that has returned, once its outcome is in hand: a shutdown that sees no handler running
// flushes for the last time. The caller has the lock.
func (l *ledger) free(h *hold) {
	l.running--
	if h.limits != nil {
		l.uncount(h)
	}
}

// respawn says that a runner has died with its handler h (runtime.Goexit) and tells whether another is to take its place.
func (l *ledger) respawn(h *hold) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free(h)
	if l.closed || len(l.waiting) == 0 || l.runners+l.lockers > l.slots {
		l.runners--
		poke(l.room)
		return false
	}
	return true
}

// current tells whether h is still this process's hold of its job.
func (l *ledger) current(h *hold) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byID[h.ID] == h
}

// onlyCurrent drops outcomes of holds that are not current: a statement that matches ids and fences apart must not see
// a stale pair beside a live one.
func (l *ledger) onlyCurrent(batch []outcome) []outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := batch[:0]
	for _, o := range batch {
		if l.byID[o.hold.ID] == o.hold {
			kept = append(kept, o)
		}
	}
	return kept
}

// settle removes holds whose outcome is stored, or that turned out stale.
func (l *ledger) settle(hs ...*hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range hs {
		if l.byID[h.ID] == h {
			l.forget(h)
		}
	}
	poke(l.room)
}

// park says that h's outcome waits for another session, which may take its time: it makes room for another hold.
func (l *ledger) park(h *hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byID[h.ID] == h {
		l.parked[h] = struct{}{}
		poke(l.room)
	}
}

// gone settles holds that the database says are no longer this worker's, and cancels their handlers.
func (l *ledger) gone(asked []*hold, ids []int64) (lost []*hold) {
	missing := make(map[int64]bool, len(ids))
	for _, id := range ids {
		missing[id] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range asked {
		// Only a handler that still runs can have been robbed: the row of one that has returned leaves by its own outcome.
		if _, runs := l.active[h]; runs && missing[h.ID] && l.byID[h.ID] == h && !h.finishing.Load() {
			h.cancel(engine.ErrLeaseLost)
			l.forget(h)
			lost = append(lost, h)
		}
	}
	return lost
}

// unknown lists those of the holds named that are not in the ledger.
func (l *ledger) unknown(held []engine.Hold) (strays []engine.Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range held {
		if mine := l.byID[h.ID]; mine == nil || mine.Fence != h.Fence {
			strays = append(strays, h)
		}
	}
	return strays
}

// longRunning lists current holds whose handlers have run for at least d.
func (l *ledger) longRunning(d time.Duration) (hs []*hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := now()
	for h := range l.active {
		if l.byID[h.ID] == h && at.sub(h.started) >= d {
			hs = append(hs, h)
		}
	}
	return hs
}

// overdue takes out holds that were claimed ahead and have waited for longer than patience, but for those that start now:
// long jobs came where short ones had set the rate, and other workers may be free for them.
func (l *ledger) overdue(patience time.Duration) (hs []*hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limits != nil {
		hs = l.takeBarred(patience)
	}
	if len(l.waiting) == 0 || since(l.waiting[0].entered) < patience {
		return hs
	}
	l.measure()
	soon := min(int(l.rate*ahead.Seconds()), len(l.waiting))
	hs = append(hs, l.waiting[soon:]...)
	l.waiting = slices.Clone(l.waiting[:soon])
	return hs
}

// unstarted takes all waiting holds out, to be given back.
func (l *ledger) unstarted() []*hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	hs := l.waiting
	l.waiting = nil
	return hs
}

// close stops the starting of handlers.
func (l *ledger) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.call.Broadcast()
}

func (l *ledger) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// cancelAll cancels every running handler.
func (l *ledger) cancelAll(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := range l.active {
		h.cancel(cause)
	}
}

// cancel cancels the handlers of jobs that are to be stopped, and takes out those that have not started. What has returned is
// left alone: its outcome is on its way.
func (l *ledger) cancel(wishes []engine.Cancel) (unstarted []*hold) {
	if len(wishes) == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range wishes {
		h := l.byID[c.ID]
		if h == nil {
			h = l.locked(c.ID)
		}
		if h == nil {
			continue
		}
		if _, runs := l.active[h]; runs {
			h.cancel(cancelledError(c.Reason))
		} else if i := slices.Index(l.waiting, h); i >= 0 {
			l.waiting = slices.Delete(l.waiting, i, i+1)
			unstarted = append(unstarted, h)
		}
	}
	return unstarted
}

// cancelledError is the cause of a cancelled handler's context: why.
type cancelledError string

func (e cancelledError) Error() string {
	if e == "" {
		return jobs.ErrCancelled.Error()
	}
	return jobs.ErrCancelled.Error() + ": " + string(e)
}
func (e cancelledError) Unwrap() error { return jobs.ErrCancelled }

// abandon gives up the handlers that still run: what they return later is stale. left is how many there are; found are those
// not known to be stuck before, and back those whose holds are still this process's to give back.
func (l *ledger) abandon() (left int, found, back []*hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := range l.active {
		if !h.stuck {
			h.stuck = true
			l.stuck++
			found = append(found, h)
		}
		if !h.givenUp && l.byID[h.ID] == h {
			back = append(back, h)
		}
		h.givenUp = true
	}
	return len(l.active), found, back
}

// idle tells whether no handler runs, but those that are stuck.
func (l *ledger) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running+l.lockers == l.stuck
}

func (l *ledger) counts() (running, waiting, holds int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running + l.lockers, len(l.waiting), len(l.byID)
}

// want is how many jobs to claim now; 0: wait for room. A process claims what it has free slots for, and beyond that only
// what it will start within ahead at its present rate, so that short jobs are claimed in large batches and long ones are
// not hoarded.
func (l *ledger) want() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.measure()
	if l.limits == nil {
		return l.ahead(len(l.waiting) == 0)
	}
	n := 0
	for _, o := range l.openings() {
		n = max(n, o.n)
	}
	return n
}

// ahead is want as the slots and the rate have it. idle: of what waits, nothing could start. Slots that stand idle are a reason to
// claim at once, unless what is about to be stored will make room for many times as many. The caller has the lock.
func (l *ledger) ahead(idle bool) int {
	capacity := max(l.slots, min(maxHolds, l.slots+int(min(l.rate*ahead.Seconds(), maxHolds))))
	n := min(capacity-len(l.byID)+min(len(l.parked), maxHolds), capacity-l.running-l.lockers-len(l.waiting))
	unstored := len(l.byID) - len(l.parked) - l.running - len(l.waiting)
	if starving := idle && l.running+l.lockers < l.slots && n >= unstored/4; n > 0 && (starving || n >= capacity/2) {
		return n
	}
	return 0
}

// measure updates the rate: an average over about ahead, of the time in which there was work.
func (l *ledger) measure() {
	at := now()
	dt := at.sub(l.since)
	if dt < time.Millisecond || l.since == 0 {
		return
	}
	r := float64(l.finished-l.measured) / dt.Seconds()
	if l.rate == 0 {
		l.rate = r
	} else {
		l.rate += (r - l.rate) * (1 - math.Exp(-dt.Seconds()/ahead.Seconds()))
	}
	l.since, l.measured = at, l.finished
}

// poke wakes whoever waits on c, once.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
