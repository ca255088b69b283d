package worker

import (
	"context"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// How often a worker looks for signs of something to do at least. What is asked of it, a notification as a rule brings
// sooner; so this is how long one that was lost leaves a pause or a cancellation unseen.
const (
	lookEvery = 5 * time.Second
	lookDeaf  = 3 * time.Second // while no notification arrives
)

// control is the loop that looks for signs of something to do, and learns what operators have decided about queues and
// which running jobs are to be stopped. It goes on during the grace of a shutdown: what runs can still be cancelled. As a
// rule it looks right after a heartbeat: the second statement in a row costs a server whose caches have gone cold half of the first.
func (w *Worker) control(ctx context.Context) {
	decided := true // something is, as far as is known
	for timer := time.NewTimer(0); ; timer.Reset(w.lookPause()) {
		asked := false
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-w.controlled:
			asked = true
		case <-w.beaten:
		case <-timer.C:
		}
		if !asked {
			asked = w.readSigns(ctx) || decided
		}
		if !asked {
			continue
		}
		c, err := w.readControl(ctx)
		if err != nil {
			w.contact.failed(w.log, "control", err)
			decided = true
			continue
		}
		decided = len(c.Queues) > 0
		w.decided(c.Queues)
		for _, h := range w.ledger.cancel(c.Cancels) {
			w.outcomes.put(outcome{hold: h, cancel: true})
		}
	}
}

// lookPause is how long control waits for a heartbeat or a notification before it looks all the same.
func (w *Worker) lookPause() time.Duration {
	every := min(w.cfg.Reclaim, lookEvery)
	if !w.listening.Load() {
		every = min(every, lookDeaf)
	}
	if every >= w.cfg.Heartbeat {
		return 2 * w.cfg.Heartbeat // unless they fail, they come first
	}
	return jitter(every)
}

// readSigns looks for signs, passes them on, and tells whether something may be asked of this worker.
func (w *Worker) readSigns(ctx context.Context) (asked bool) {
	ctx, cancel := limit(ctx)
	defer cancel()
	signs, err := w.store.Signs(ctx)
	if err == nil && signs.Suspects {
		signs.Suspects, err = w.store.SuspectWaiting(ctx, w.unpaused(w.self.Load()))
	}
	if err != nil {
		w.contact.failed(w.log, "look", err)
		return false
	}
	w.fleet.Store(int64(signs.Fleet))
	if signs.Lost {
		w.lost.Store(true)
	}
	poke(w.signs)
	if signs.Suspects {
		w.suspects.Store(true)
		poke(w.ledger.room)
		poke(w.wake)
	}
	return signs.Asked
}

func (w *Worker) readControl(ctx context.Context) (engine.Control, error) {
	ctx, cancel := limit(ctx)
	defer cancel()
	return w.store.Control(ctx, w.self.Load())
}

// decided brings what has been decided about queues into force.
func (w *Worker) decided(queues []engine.Queue) {
	before, p := w.policy.Load(), w.cfg.policy(queues)
	if p.equal(before) {
		return
	}
	w.policy.Store(p)
	back, runners := w.ledger.obey(p)
	w.giveUnstarted(back)
	w.hire(runners)
	poke(w.wake)
	for _, q := range w.cfg.Queues { // now that it is true
		switch now, then := p.paused[q], before.paused[q]; {
		case now && !then:
			w.log.Info("queue is paused", "queue", q)
		case then && !now:
			w.log.Info("queue is resumed", "queue", q)
		}
	}
}

// unpaused is self with those of its queues that are not paused.
func (w *Worker) unpaused(self *engine.Worker) *engine.Worker {
	p := w.policy.Load()
	if len(p.paused) == 0 {
		return self
	}
	open := *self
	open.Queues = p.open(self.Queues)
	return &open
}
