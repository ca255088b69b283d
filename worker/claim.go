package worker

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// claim is the loop that gets jobs. It is the only one that claims, and it owns the marks. It claims whenever there is
// room and the last claim was full; after a claim that was not, it waits for the next poll or for being woken.
func (w *Worker) claim(ctx context.Context) {
	var (
		idle   = idleness{worker: w}
		sweeps = pacer{}
		locks  = w.newLocks()
		unseen = unseen{worker: w, last: now()}
		solo   = soloist{worker: w, unseen: &unseen, patience: w.cfg.Lease}
		full   = true  // the last claim was: more may be waiting
		back   = now() // when a claim is to start further back next
		timer  = time.NewTimer(0)
	)
	defer timer.Stop()
	sweeps.next = now().add(sweepEvery)
	for ctx.Err() == nil {
		if w.suspects.Swap(false) && solo.ready() {
			idle.rise(ctx)
			solo.play(ctx)
			full = true
		}
		unseen.giveBack(ctx)
		w.giveUnstarted(w.ledger.overdue(aheadMost))
		n := w.ledger.want()
		if n == 0 {
			locks.try(false)
			select {
			case <-ctx.Done():
			case <-w.ledger.room:
			case <-time.After(idle.behind(ctx)): // the rate is measured anew
			}
			continue
		}
		if !full {
			timer.Reset(locks.pause(idle.pause(ctx)))
			select {
			case <-ctx.Done():
				continue
			case <-w.wake:
				idle.wake()
			case <-w.ledger.eased:
			case <-timer.C:
				if !locks.sweep() && !sweeps.due() && idle.quiet(ctx) {
					continue
				}
			}
			n = max(w.ledger.want(), 1)
		}
		lockers := w.ledger.lockersFirst()
		if lockers {
			locks.try(idle.woken)
		}
		sweep := w.sweepNow.Swap(false) || sweeps.due()
		before := now()
		if w.marks.closer = !idle.woken && !back.passed(); !w.marks.closer {
			back = before.add(jitter(min(lookBack*time.Duration(max(w.fleet.Load(), 1)), lookMost)))
		}
		got, all, err := w.round(ctx, n, sweep)
		if !lockers && got == 0 {
			locks.try(idle.woken)
		}
		if sweep {
			sweeps.plan(since(before), int(w.fleet.Load()))
		}
		if err != nil {
			w.contact.failed(w.log, "claim", err)
			unseen.note(err)
			full = false
			idle.fail()
			continue
		}
		found := got + int(w.lockFound.Swap(0))
		if sweep && found == 0 {
			full = full || idle.woken // as a rule another worker is sweeping: that says nothing about what waits
			continue
		}
		full = all
		idle.found(ctx, found, all, since(before))
	}
	idle.rise(context.WithoutCancel(ctx))
	// What came with a last claim is given back by shutdown.
}

// claimTime bounds a claim's statement, as the session's statement_timeout does on the server's side. It is not cut short
// by a shutdown: a claim that commits unseen would leave its jobs to the lease.
const claimTime = 30 * time.Second

// stepTime bounds the other statements of the loops.
const stepTime = 10 * time.Second

// limit bounds a statement: a connection that has died without a word (a firewall that forgot it) would hold its loop up
// for as long as TCP takes to notice, which may be hours.
func limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, stepTime)
}

// unseen looks after claims whose answer was lost: they may have committed, or may yet, and this process would keep their
// jobs running by its heartbeats without knowing of them. It works in the claim loop, so no other claim is under way.
type unseen struct {
	worker *Worker
	look   bool
	until  instant // such a claim cannot commit any more, as a rule
	last   instant
	before map[engine.Hold]bool // what was unknown at the last look
}

// unseenEvery is how often it looks without a reason: a network can keep a statement back for longer than anybody waits.
const unseenEvery = time.Minute

// note begins to look if err leaves it open whether a claim took effect.
func (u *unseen) note(err error) {
	if errors.Is(err, engine.ErrUnknown) {
		u.look, u.until = true, now().add(2*claimTime)
	}
}

func (u *unseen) giveBack(ctx context.Context) {
	at := now()
	every := unseenEvery
	if u.look {
		every = time.Second
	}
	if at.sub(u.last) < every {
		return
	}
	u.last = at
	ctx, cancel := limit(ctx)
	defer cancel()
	w := u.worker
	self := w.self.Load()
	held, spent, err := w.store.Held(ctx, self.ID)
	if err != nil {
		w.contact.failed(w.log, "held", err)
		return
	}
	w.ledger.putSpent(self.ID, spent) // those of lost answers are counted by nobody
	u.look = at < u.until             // one look must come after it, however long the database is away
	// Twice in a row, because the outcome of a hold can be stored between the answer and this line.
	unknown := map[engine.Hold]bool{}
	for _, s := range w.ledger.unknown(held) {
		if unknown[s] = true; !u.before[s] {
			u.look = true
			continue
		}
		h := &hold{Claimed: &engine.Claimed{ID: s.ID, Fence: s.Fence}, owner: self.ID}
		if w.ledger.enter(self.ID, h) {
			w.log.Warn("a job claimed by a statement whose answer was lost is given back", "job", s.ID)
			w.outcomes.put(outcome{hold: h, release: true, unsure: true})
		}
	}
	u.before = unknown
}

// round claims what can start, and tells how much that was and whether more may be waiting. That is one claim, unless the
// policy restricts what may start or weighs queues.
func (w *Worker) round(ctx context.Context, n int, sweep bool) (got int, full bool, err error) {
	p := w.policy.Load()
	w.marks.policy, w.marks.band = p, nil
	if p.plain() {
		got, err = w.claimOnce(ctx, n, sweep)
		return got, got == n, err
	}
	for i := 0; ; i++ {
		band, more := w.ledger.opening(i, n)
		if !more {
			return got, full, nil
		}
		w.marks.band = &band
		portion := band.n
		if p.weights != nil {
			portion = max(portion/portions, 1) // each begins with another queue
		}
		for left := band.n; left > 0; {
			ask := min(left, portion)
			k, err := w.claimOnce(ctx, ask, sweep)
			got += k
			if left -= k; err != nil {
				return got, false, err
			} else if full = full || k > 0 && left == 0; k < ask {
				break
			}
		}
	}
}

// portions is into how many claims a round is divided while queues have weights.
const portions = 4

func (w *Worker) claimOnce(ctx context.Context, n int, sweep bool) (int, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTime)
	defer cancel()
	self := w.self.Load()
	seen := w.contact.databaseTime()
	from := w.marks.ranges()
	if len(self.Kinds) == 0 {
		w.marks.advance(nil, seen, true) // lockers have marks of their own; these are for NextDue
		// Jobs that it runs by lock and adopts are claims, too.
		if spent := w.ledger.takeSpent(); len(spent) > 0 {
			_, _, err := w.ask(ctx, self, nil, spent, false, 0)
			return 0, err
		}
		return 0, nil
	}
	if sweep {
		from = w.marks.leftEnd()
	}
	if len(from) == 0 {
		return 0, nil // all is paused, or full
	}
	batch, now, err := w.ask(ctx, self, from, w.ledger.takeSpent(), sweep, n)
	if err != nil {
		return 0, err
	}
	if !sweep {
		if now.IsZero() {
			now = seen // from before the claim, so what the claim did not find was not there then
		}
		w.marks.advance(batch, now, len(batch) < n)
	}
	w.marks.took(batch)
	w.take(self, batch)
	return len(batch), nil
}

// ask is the claim's statement.
func (w *Worker) ask(ctx context.Context, self *engine.Worker, from []engine.Mark, spent []int64, sweep bool, n int) ([]engine.Claimed, time.Time, error) {
	batch, now, err := w.store.Claim(ctx, self, from, spent, sweep, n)
	if err != nil {
		w.ledger.distrust()
	} else {
		w.counters.claims.Add(1)
	}
	return batch, now, err
}

// take enters what was claimed and starts runners for it, in the order of the queue: the statement's answer has none.
func (w *Worker) take(self *engine.Worker, batch []engine.Claimed) {
	w.counters.claimed.Add(int64(len(batch)))
	hs := make([]*hold, 0, len(batch))
	space := make([]hold, len(batch))
	all := &claim{left: len(batch)}
	if len(batch) > 0 {
		all.fence = batch[0].Fence
		w.ledger.counting(self.ID, all)
	}
	for i := range batch {
		c, h := &batch[i], &space[i]
		h.Claimed, h.handler, h.owner, h.claim = c, w.reg.handlers[c.Kind], self.ID, all
		w.newest = max(w.newest, c.ID)
		over := h.over()
		if !over && !h.superfluous() {
			hs = append(hs, h)
		} else if w.ledger.enter(self.ID, h) {
			w.outcomes.put(outcome{hold: h, cancel: over})
		}
	}
	slices.SortFunc(hs, func(a, b *hold) int {
		return cmp.Or(b.Priority-a.Priority, a.RunAt.Compare(b.RunAt), cmp.Compare(a.ID, b.ID))
	})
	runners, back := w.ledger.add(self.ID, hs)
	w.giveUnstarted(back)
	w.hire(runners)
}

// giveUnstarted gives back holds whose handlers have not been called.
func (w *Worker) giveUnstarted(hs []*hold) {
	for _, h := range hs {
		w.outcomes.put(outcome{hold: h, release: true})
	}
}

// pacer spaces sweeps for the whole fleet: each worker waits in proportion to the fleet's size, and to what a sweep costs.
type pacer struct{ next instant }

func (p *pacer) due() bool { return p.next.passed() }

func (p *pacer) plan(cost time.Duration, fleet int) {
	wait := min(sweepEvery*time.Duration(max(fleet, 1)), sweepMost)
	p.next = now().add(jitter(max(wait, sweepCost*cost)))
}

// soloist runs suspects: jobs that two lost workers or more were running. Whatever kills the next process is then known,
// because nothing else ran in it (G8).
type soloist struct {
	worker   *Worker
	unseen   *unseen
	next     instant
	patience time.Duration
}

// soloStint is how long suspects go on one after the other before other work gets as much time again.
const soloStint = 10 * time.Second

func (s *soloist) ready() bool { return s.next.passed() }

// play empties the process, then claims suspects one by one. It gives up after its patience, which doubles each time: a
// process full of long handlers is not the place, but the suspect must run some day.
func (s *soloist) play(ctx context.Context) {
	w := s.worker
	begin := now()
	w.ledger.setAlone(true)
	defer w.ledger.setAlone(false)
	w.giveUnstarted(w.ledger.unstarted())
	if !s.empty(ctx, s.patience) {
		s.next = now().add(4 * s.patience)
		s.patience *= 2
		return
	}
	s.patience = w.cfg.Lease
	for ctx.Err() == nil && since(begin) < soloStint {
		self := w.self.Load()
		claim, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTime)
		batch, err := w.store.ClaimSuspect(claim, w.unpaused(self))
		cancel()
		if err != nil {
			w.contact.failed(w.log, "claim", err)
			s.unseen.note(err)
			break
		}
		w.counters.claims.Add(1)
		if len(batch) == 0 {
			if !w.lockSuspect() || !s.empty(ctx, 0) {
				break
			}
			continue
		}
		w.tell(slog.LevelWarn, "a suspect runs alone in this process", &batch[0], "crashes", batch[0].Crashes)
		w.take(self, batch)
		if !s.empty(ctx, 0) {
			return
		}
	}
	s.next = now().add(since(begin))
}

// empty waits until this process holds nothing and runs nothing, for at most d, or for ever if d is 0. What was claimed by statements
// whose answers were lost need not wait for that.
func (s *soloist) empty(ctx context.Context, d time.Duration) bool {
	if d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		if running, _, holds := s.worker.ledger.counts(); running == 0 && holds == 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-s.worker.ledger.room:
		case <-look.C:
			s.unseen.giveBack(ctx)
		}
	}
}
