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
		w.queues.Store(&c.Queues)
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
