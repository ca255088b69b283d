package worker

import (
	"context"
	"errors"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// listen is the loop that hears this worker being woken. While it is down, the claim loop polls more often; after each
// reconnect a sweep follows, for what was missed. Behind a pooler that passes nothing on, it ends at once.
func (w *Worker) listen(ctx context.Context) {
	said := false
	for delay := 100 * time.Millisecond; ctx.Err() == nil; {
		begin := now()
		conn, cancel := context.WithCancel(ctx)
		go func() {
			select {
			case <-w.moved: // to a new worker id, and so to another channel
				cancel()
			case <-conn.Done():
			}
		}()
		err := w.store.Listen(conn, w.self.Load().ID, w.heard, w.woken, func() { poke(w.controlled) })
		w.listening.Store(false)
		moved := conn.Err() != nil
		cancel()
		if moved {
			continue
		}
		w.ledger.distrust()
		if errors.Is(err, engine.ErrDeaf) {
			w.log.Info("not listening: the database is behind a pooler in transaction mode, which passes no notifications on; new jobs are found by polling, within a second or so")
			return
		}
		if delay = min(2*delay, 10*time.Second); since(begin) > time.Minute {
			said, delay = false, 100*time.Millisecond
		}
		if !said {
			w.log.Warn("not listening: new jobs are found by polling only, within a second, until the connection is back", "error", err)
			said = true
		}
		wait(ctx, jitter(delay))
	}
}

// heard is called when the connection listens.
func (w *Worker) heard() {
	w.listening.Store(true)
	w.sweepNow.Store(true)
	w.lockSweep.Store(true)
	poke(w.wake)
	poke(w.controlled)
}

// woken is called for each wake-up.
func (w *Worker) woken() {
	w.wakes.Add(1)
	poke(w.wake)
}
