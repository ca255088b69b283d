package worker

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// lockers are the goroutines that run jobs owned by lock (jobs.Spec.Lock): each looks for one, runs it in the transaction
// that has it locked, and looks for the next, until there is none. Each takes a slot, also while it looks.

// locks starts lockers for the claim loop, which owns it.
type locks struct {
	worker *Worker
	seek   *search // the ordinary one
	sweeps pacer
	swept  instant // a sweep was tried
	last   instant // a locker was started
}

func (w *Worker) newLocks() *locks {
	return &locks{worker: w, seek: &search{marks: newMarks(w.cfg.Queues)}, sweeps: pacer{next: now().add(sweepEvery)}}
}

// try starts a locker, and another one for a sweep if it is time for one.
func (l *locks) try(woken bool) {
	w := l.worker
	if !w.reg.locking() {
		return
	}
	if l.sweep() && since(l.swept) >= pollFirst {
		l.swept = now()
		asked := w.lockSweep.Swap(false)
		s := &search{marks: newMarks(w.cfg.Queues), sweep: true}
		s.dry.Store(true)
		if w.spawn(s) {
			l.sweeps.plan(time.Duration(w.lockSweepCost.Load()), int(w.fleet.Load()))
			if !woken {
				return // it sees what the ordinary one would see
			}
		} else if asked { // no slot is free
			w.lockSweep.Store(true)
		}
	}
	if woken || w.ledger.yields() || since(l.last) >= pollFirst {
		l.last = now()
		if woken {
			l.seek.dry.Store(false)
		}
		l.seek.again.Store(true) // one that is looking may have looked too soon
		w.spawn(l.seek)
	}
}

// sweep tells whether it is time for one.
func (l *locks) sweep() bool {
	return l.worker.reg.locking() && (l.worker.lockSweep.Load() || l.sweeps.due())
}

// pause is d, or shorter if a sweep is due before: nobody is woken by a job that comes back from a process that died.
func (l *locks) pause(d time.Duration) time.Duration {
	if !l.worker.reg.locking() {
		return d
	}
	return max(min(d, l.sweeps.next.sub(now())), min(d, pollFirst)) // due already: no slot was free for it
}

// search is a way through the queue, shared by lockers. It has marks of its own: those of the claim loop say nothing of
// jobs owned by lock. A job whose transaction was rolled back is to the left of the marks, and found by the next sweep.
// Sweeps of several workers at once are harmless, so they are paced only.
type search struct {
	mu      sync.Mutex
	marks   marks
	sweep   bool         // from the left end
	looking atomic.Int64 // lockers that ask the database now
	again   atomic.Bool  // a locker that finds nothing looks once more
	dry     atomic.Bool  // the last look found nothing: as a rule there is nothing again
}

func (s *search) ranges(p *policy, band *opening) ([]engine.Mark, []asked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks.policy, s.marks.band = p, band
	return s.marks.ranges(), slices.Clone(s.marks.asked)
}

func (s *search) advance(asked []asked, batch []engine.Claimed, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks.asked = asked
	s.marks.advance(batch, now, len(batch) == 0)
	s.marks.took(batch)
}

// spawn starts a locker on s, unless one is looking already: if that finds a job it starts the next.
func (w *Worker) spawn(s *search) bool {
	if s.looking.Load() > 0 || !w.ledger.seat(false) {
		return false
	}
	s.looking.Add(1)
	go w.locker(s)
	return true
}

// locker runs jobs until it finds none, or a suspect is to run alone, or a shutdown begins. A handler that ends its
// goroutine (runtime.Goexit) ends the locker; another takes its place.
func (w *Worker) locker(s *search) {
	ended, id := false, goroutineID()
	defer func() {
		w.unseat()
		if !ended {
			w.spawn(s)
		}
	}()
	for first := true; ; first = false {
		if !first {
			if !w.ledger.keepsSeat() {
				break
			}
			s.looking.Add(1)
		}
		s.again.Store(false)
		job, counted := w.look(s)
		s.looking.Add(-1)
		if job == nil && s.again.Load() {
			continue
		}
		if job == nil {
			break
		}
		w.spawn(s)
		w.runAdmitted(job, counted, id)
	}
	ended = true
}

// unseat gives a locker's slot back, to jobs held by lease if any are waiting.
func (w *Worker) unseat() {
	if w.ledger.unseat() {
		go w.runner()
	}
}

func (w *Worker) runAdmitted(job engine.Locked, counted *limits, goroutine int64) {
	c, _ := job.Job()
	defer w.ledger.dismiss(c, counted)
	w.runLocked(job, goroutine)
}

// look takes the next job of the search, and the limits against which it counts; nil: there is none.
func (w *Worker) look(s *search) (engine.Locked, *limits) {
	ctx, cancel := context.WithTimeout(w.handlers, claimTime)
	defer cancel()
	before, seen := now(), w.contact.databaseTime()
	ranges, asked := s.ranges(w.policy.Load(), w.ledger.lockBand())
	if len(ranges) == 0 {
		return nil, nil // all is paused, or full
	}
	var job engine.Locked
	var err error
	due := time.Duration(0)
	if s.dry.Load() { // a sixth of what it costs to open a transaction, lock nothing and roll back
		due, err = w.store.NextDue(ctx, ranges, false, time.Second)
	}
	if err == nil && due == 0 {
		job, err = w.store.Lock(ctx, w.self.Load(), ranges, w.skip())
	}
	s.dry.Store(job == nil)
	if s.sweep {
		w.lockSweepCost.Store(int64(since(before)))
	}
	if err != nil {
		w.contact.failed(w.log, "lock", err)
		return nil, nil
	}
	if job == nil {
		s.advance(asked, nil, seen)
		return nil, nil
	}
	c, at := job.Job()
	if w.ledger.isBusy(c.ID) {
		// Its transaction has ended since skip was asked, and its end is not stored yet.
		job.Rollback(w.handlers)
		s.again.Store(true)
		return nil, nil
	}
	counted, may := w.ledger.admit(c)
	if !may { // its queue was paused or filled up meanwhile
		job.Rollback(w.handlers)
		return nil, nil
	}
	s.advance(asked, []engine.Claimed{*c}, at)
	if w.lockFound.Add(1) == 1 && w.asleep.Load() {
		poke(w.wake) // there is work: the claim loop is to poll again
	}
	return job, counted
}

// runLocked runs one job and ends its transaction, whatever the handler does. A success commits in it. Any other outcome
// goes the way of all others: within the transaction, from which nobody can take the job, it becomes a hold by lease.
func (w *Worker) runLocked(job engine.Locked, goroutine int64) {
	c, _ := job.Job()
	h := &hold{Claimed: c, handler: w.reg.handlers[c.Kind], owner: w.self.Load().ID, entered: now(), locked: true}
	h.runner.Store(goroutine)
	if h.superfluous() {
		if err := job.Finish(w.handlers, h.owner, engine.Success{}); err != nil {
			job.Rollback(w.handlers)
			w.contact.failed(w.log, "lock", err)
		} else {
			w.tally.success(h)
		}
		return
	}
	if h.over() {
		if w.adopt(job, h, errNoTime) {
			w.outcomes.put(outcome{hold: h, cancel: true})
		}
		return
	}
	sure := w.doubts.over(h.ID)
	before, err := w.starts.mark(h, sure)
	if err == nil && before.Unsure && !sure {
		// Whoever started it may only have lost its connection, and is about to adopt it.
		w.doubts.begin(h.ID, w.again)
		err = errUnsure
	}
	if err != nil {
		job.Rollback(w.handlers)
		w.lockSweep.Store(true) // it is to the left of the marks now
		return
	}
	if before.Crashes > 0 && c.Crashes+before.Crashes >= suspicious {
		w.crashed(job, h, before.Crashes)
		return
	}
	o := outcome{hold: h, err: errGoexit, stored: true}
	tx := job.Tx()
	if cutter, can := tx.(engine.Cutter); can {
		h.tx = cutter
	}
	if !w.ledger.seize(h, w.handlers) {
		job.Rollback(w.handlers)
		w.starts.unmark(h.owner, h.ID)
		return
	}
	defer func() {
		cause := context.Cause(h.ctx)
		w.ledger.returned(h)
		if w.returnedLate(h); h.givenUp {
			job.Rollback(w.handlers)
			return
		}
		defer w.ledger.release(h)
		if o.err == nil {
			w.tally.success(h)
		} else if w.adopt(job, h, o.err) {
			w.conclude(o, cause, true)
		}
	}()
	result, err := invoke(h, tx)
	if err == nil {
		o.verdict = true
		err = h.late(h.finished(job.Finish(h.ctx, h.owner, h.success(result))))
	} else {
		err = w.starved(h, err)
	}
	o.err = err
}

// suspicious is how many crashes set a job apart, as the statements say as well.
const suspicious = 2

// crashed counts what killed other processes, as upkeep does for jobs held by lease (G8).
func (w *Worker) crashed(job engine.Locked, h *hold, crashes int) {
	back, err := job.Crash(w.handlers, h.owner, crashes, w.cfg.MaxCrashes, crashDelay)
	switch {
	case err != nil:
		job.Rollback(w.handlers)
		w.starts.unmark(h.owner, h.ID)
		w.contact.failed(w.log, "lock", err)
	case back.Dead:
		w.tell(slog.LevelError, "job is dead", h.Claimed, "crashes", back.Crashes, "error", "each time the worker process, or its connection, was lost while it ran this job")
	default:
		w.tell(slog.LevelWarn, "a job has crashed the process that ran it, or shared it; it will run alone", h.Claimed, "crashes", back.Crashes)
	}
}

// adopt makes h a hold by lease after its handler did not succeed with err, and tells whether it is one. If its transaction
// is over (its connection was lost, the answer to COMMIT was lost, the handler ended it), the database has the last
// word on the job: whoever has it now has it, and if it is gone it was committed.
func (w *Worker) adopt(job engine.Locked, h *hold, reason error) bool {
	var ran time.Duration
	if h.started != 0 {
		ran = since(h.started)
	}
	fence, err := job.Adopt(w.handlers, h.owner, ran)
	if err != nil {
		job.Rollback(w.handlers)
		fence = w.adoptLate(h, ran)
	}
	if fence != 0 && w.ledger.adopt(h, fence) {
		return true
	}
	w.lockSweep.Store(true)
	if doubt := doubtOf(reason); doubt != nil {
		ctx, cancel := limit(w.handlers)
		defer cancel()
		fates, err := w.store.Fates(ctx, uuid.Nil, []engine.InDoubt{{Hold: engine.Hold{ID: h.ID}, Xact: doubt.Xact}})
		if err == nil && fates[0] == engine.Committed {
			w.tally.success(h)
			w.tell(slog.LevelWarn, saysCommitted, h.Claimed, "transaction", doubt.Xact, "error", firstLine(doubt.Err))
			return false
		}
	}
	w.tell(slog.LevelWarn, "a handler's transaction ended before its outcome was known; the job is finished or waits, as the database says, and no attempt is spent", h.Claimed, "error", firstLine(reason))
	return false
}

// adoptLate is adopt without the transaction. Another worker may have the row locked: as a rule for a moment, since it sees
// the mark of this one.
func (w *Worker) adoptLate(h *hold, ran time.Duration) int64 {
	patience := now().add(w.doubts.moment)
	for delay := 5 * time.Millisecond; ; delay = min(2*delay, doubtTime/4) {
		ctx, cancel := limit(w.handlers)
		fence, waits, err := w.store.Adopt(ctx, h.owner, h.Claimed, ran)
		cancel()
		if err != nil {
			w.contact.failed(w.log, "adopt", err)
			waits = !w.ledger.isClosed()
		} else {
			waits = waits && !patience.passed()
		}
		if !waits || !waitOr(w.starts.ended, delay) {
			return fence
		}
	}
}

// doubts are jobs that this worker has locked and found started by another that is not known to be lost. That one gets a
// moment to adopt its job.
type doubts struct {
	mu     sync.Mutex
	moment time.Duration
	since  map[int64]instant
}

// doubtTime is that moment; it is how much longer the job of a killed process waits.
const doubtTime = time.Second

var errUnsure = errors.New("jobgen: another worker may be about to say how the job ended")

// begin begins the moment; again is called when it has passed.
func (d *doubts) begin(id int64, again func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.since[id] = now()
	time.AfterFunc(d.moment, again)
}

// over tells whether the moment has passed.
func (d *doubts) over(id int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	first, known := d.since[id]
	delete(d.since, id)
	return known && since(first) >= d.moment
}

// again has the claim loop sweep for jobs owned by lock, now.
func (w *Worker) again() {
	w.lockSweep.Store(true)
	poke(w.wake)
}

// skip are the jobs that lockers leave alone: those in doubt, and those that this process itself has not ended yet.
func (w *Worker) skip() []int64 {
	ids := w.ledger.busy()
	d := &w.doubts
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, first := range d.since {
		switch age := since(first); {
		case age < d.moment:
			ids = append(ids, id)
		case age > time.Minute:
			delete(d.since, id) // it was adopted
		}
	}
	return ids
}

// lockSuspect runs one suspect owned by lock, in a goroutine of its own, and tells whether there was one.
func (w *Worker) lockSuspect() bool {
	if !w.ledger.seat(true) {
		return false
	}
	found := make(chan bool, 1)
	go func() {
		defer w.unseat()
		ctx, cancel := context.WithTimeout(w.handlers, claimTime)
		job, err := w.store.LockSuspect(ctx, w.unpaused(w.self.Load()), w.skip())
		cancel()
		if err != nil {
			w.contact.failed(w.log, "lock", err)
		}
		found <- job != nil
		if job == nil {
			return
		}
		c, _ := job.Job()
		w.tell(slog.LevelWarn, "a suspect runs alone in this process", c, "crashes", c.Crashes)
		w.runLocked(job, goroutineID())
	}()
	return <-found
}

// starts are the marks of jobs that are about to start, and of those whose end took no mark away.
type starts struct {
	mu    sync.Mutex
	marks []*start
	undo  map[mark]struct{}
	poke  chan struct{}
	ended chan struct{} // the loop has
}

type mark struct {
	owner uuid.UUID
	job   int64
}

type start struct {
	hold   *hold
	sure   bool
	answer chan started
}

type started struct {
	before engine.Starts
	err    error
}

var errStopped = errors.New("jobgen: the worker has stopped")

// mark writes that h is about to start, sets its owner, and tells what starts there were before.
func (s *starts) mark(h *hold, sure bool) (engine.Starts, error) {
	one := &start{h, sure, make(chan started, 1)}
	s.mu.Lock()
	s.marks = append(s.marks, one)
	s.mu.Unlock()
	poke(s.poke)
	select {
	case a := <-one.answer:
		return a.before, a.err
	case <-s.ended:
		return engine.Starts{}, errStopped
	}
}

// unmark takes a mark away, some time soon.
func (s *starts) unmark(owner uuid.UUID, job int64) {
	s.mu.Lock()
	s.undo[mark{owner, job}] = struct{}{}
	s.mu.Unlock()
	poke(s.poke)
}

// start is the loop that marks starts: those that came while one statement was on its way go with the next.
func (w *Worker) start(ctx context.Context) {
	s := &w.starts
	defer close(s.ended)
	retry := time.NewTicker(time.Second)
	defer retry.Stop()
	for ended := false; !ended; {
		select {
		case <-s.poke:
		case <-retry.C:
		case <-ctx.Done():
		}
		ended = ctx.Err() != nil // before the look: what was taken back by then is seen
		s.mu.Lock()
		batch, undo := s.marks, len(s.undo) > 0
		s.marks = nil
		s.mu.Unlock()
		if undo {
			w.unmarkAll(ctx) // first: a mark that is still there would count as a crash
		}
		if len(batch) > 0 {
			w.markAll(ctx, batch)
		}
	}
}

func (w *Worker) markAll(ctx context.Context, batch []*start) {
	ctx, cancel := limit(context.WithoutCancel(ctx))
	defer cancel()
	self := w.self.Load().ID
	ids := make([]int64, len(batch))
	sure := make([]bool, len(batch))
	for i, one := range batch {
		ids[i], sure[i], one.hold.owner = one.hold.ID, one.sure, self
	}
	before, err := w.store.Start(ctx, self, ids, sure)
	if err != nil {
		w.contact.failed(w.log, "start", err)
	}
	for _, one := range batch {
		if err != nil {
			w.starts.unmark(self, one.hold.ID) // it may have been written
		}
		one.answer <- started{before[one.hold.ID], err}
	}
}

func (w *Worker) unmarkAll(ctx context.Context) {
	ctx, cancel := limit(context.WithoutCancel(ctx))
	defer cancel()
	s := &w.starts
	byOwner := map[uuid.UUID][]int64{}
	s.mu.Lock()
	for m := range s.undo {
		byOwner[m.owner] = append(byOwner[m.owner], m.job)
	}
	clear(s.undo)
	s.mu.Unlock()
	for owner, ids := range byOwner {
		if err := w.store.Unstart(ctx, owner, ids); err != nil {
			w.contact.failed(w.log, "start", err)
			s.mu.Lock()
			for _, id := range ids {
				s.undo[mark{owner, id}] = struct{}{}
			}
			s.mu.Unlock()
		}
	}
}

// seat gives a locker a slot. If none is free, one that runs jobs held by lease makes room after its present one.
func (l *ledger) seat(suspect bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.alone != suspect || l.lockers >= l.lockMost {
		return false
	}
	if l.runners+l.lockers >= l.slots {
		l.wanted = true
		return false
	}
	l.wanted = false
	l.lockers++
	return true
}

// yields tells whether runners make room for a locker that was refused a slot, so that it must not be kept waiting.
func (l *ledger) yields() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wanted
}

// lockersFirst tells whether a locker is to start before a claim. The only slot goes to jobs held by lease first, unless a
// runner has just made room in it: they take turns then. Beside reserved slots no runner has to, and it is left to chance.
func (l *ledger) lockersFirst() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.single() || l.wanted || l.slots > 1 && rand.N(2) == 0
}

// single tells whether both sorts of job share the only slot that is not reserved. The caller has the lock.
func (l *ledger) single() bool { return l.mixed && l.slots-l.reserved() == 1 }

// keepsSeat tells whether a locker may go on. The only slot of a worker that also holds by lease goes round.
func (l *ledger) keepsSeat() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.closed && !l.alone && !l.single() && l.runners+l.lockers <= l.slots
}

// unseat takes a locker's slot back and tells whether a runner is to take it.
func (l *ledger) unseat() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lockers--
	poke(l.room)
	if l.closed || len(l.waiting) == 0 || l.runners+l.lockers >= l.slots {
		return false
	}
	l.runners++
	return true
}

// setLocks limits the lockers. Beside jobs held by lease they get half of the slots at most, and the reserved ones for
// urgent jobs.
func (l *ledger) setLocks(conns int, mixed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mixed, l.lockConn = mixed, max(conns-1, 1) // a connection is left for the rest of the application
	l.shareLocks()
}

func (l *ledger) shareLocks() {
	l.lockMost = min(l.slots, l.lockConn)
	if l.mixed {
		l.lockMost = min(l.lockMost, max((l.slots-l.reserved())/2, 1)+l.reserved())
	}
}

// setAlone keeps lockers away, but for one that runs a suspect.
func (l *ledger) setAlone(alone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alone = alone
}

// seize enters a job owned by lock, whose handler starts: it has no hold. After close none starts: a handler that began
// after cancelAll would know nothing of the shutdown.
func (l *ledger) seize(h *hold, base context.Context) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	h.ctx, h.cancel = context.WithCancelCause(base)
	h.started = now()
	l.active[h] = struct{}{}
	l.ending[h.ID]++
	return true
}

// release says that a job owned by lock has ended, one way or another.
func (l *ledger) release(h *hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending[h.ID]--; l.ending[h.ID] == 0 {
		delete(l.ending, h.ID)
	}
}

func (l *ledger) isBusy(id int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ending[id] > 0
}

// busy are the jobs owned by lock that have not ended.
func (l *ledger) busy() (ids []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.ending {
		ids = append(ids, id)
	}
	return ids
}

// adopt enters a hold that was owned by lock.
func (l *ledger) adopt(h *hold, fence int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.Fence = fence
	if h.owner != l.owner {
		return false
	}
	h.claim = &claim{fence: fence, left: 1}
	l.count(h.claim)
	l.byID[h.ID] = h
	return true
}

// locked finds a job owned by lock whose handler runs.
func (l *ledger) locked(id int64) *hold {
	if l.lockers > 0 {
		for h := range l.active {
			if h.locked && h.ID == id {
				return h
			}
		}
	}
	return nil
}
