package worker

import (
	"context"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// controlEvery is how often a worker looks for what is asked of it; a notification as a rule brings it sooner, so this is
// how long one that was lost leaves a pause or a cancellation unseen.
const controlEvery = 3 * time.Second

// control is the loop that learns what operators have decided about queues, and which running jobs are to be stopped. It
// goes on during the grace of a shutdown: what runs can still be cancelled.
func (w *Worker) control(ctx context.Context) {
	for timer := time.NewTimer(0); ; timer.Reset(jitter(controlEvery)) {
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-w.controlled:
		case <-timer.C:
		}
		c, err := w.readControl(ctx)
		if err != nil {
			w.contact.failed(w.log, "control", err)
			continue
		}
		w.decided(c.Queues)
		for _, h := range w.ledger.cancel(c.Cancels) {
			w.outcomes.put(outcome{hold: h, cancel: true})
		}
	}
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
		if p.paused[q] != before.paused[q] {
			w.log.Info(map[bool]string{true: "queue is paused", false: "queue is resumed"}[p.paused[q]], "queue", q)
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
