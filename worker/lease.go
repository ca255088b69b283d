package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// heartbeat is the loop that renews the lease, and learns on the way which holds are gone. After a loss it goes on under
// a new id; nothing of the old one can be used any more.
func (w *Worker) heartbeat(ctx context.Context) {
	for every := w.cfg.Heartbeat; wait(ctx, jitter(every)); {
		every = w.cfg.Heartbeat
		asked := w.ledger.longRunning(w.cfg.Heartbeat / 2)
		holds := make([]engine.Hold, len(asked))
		for i, h := range asked {
			holds[i] = h.name()
		}
		beat, err := w.beat(ctx, holds)
		switch {
		case err != nil:
			w.contact.failed(w.log, "heartbeat", err)
			w.counters.failures.Add(1)
			w.ledger.distrust()
			every = w.cfg.Heartbeat / 5
		case beat.Renewed:
			w.contact.made(w.log, w.cfg.Lease, beat.Now)
			poke(w.beaten)
			for _, h := range w.ledger.gone(asked, beat.Gone) {
				w.tell(slog.LevelWarn, "job was taken back from this worker while its handler runs; the handler is cancelled", h.Claimed)
			}
		default:
			old := w.self.Load().ID
			self := w.identity()
			// The new id is registered before it is used, and nothing is claimed under the old one meanwhile: it is lost.
			for w.register(ctx, self) != nil && wait(ctx, w.cfg.Heartbeat/5) {
			}
			held := w.become(self)
			w.counters.losses.Add(1)
			w.log.Error("this worker was found dead and its jobs were given to others: it was out of contact for longer than its lease", "lost_worker", old, "lease", w.cfg.Lease, "jobs", held)
		}
	}
}

func (w *Worker) register(ctx context.Context, self engine.Worker) error {
	ctx, cancel := limit(ctx)
	defer cancel()
	return w.store.Register(ctx, self, w.cfg.Lease)
}

func (w *Worker) beat(ctx context.Context, holds []engine.Hold) (engine.Beat, error) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Lease/3) // time is left for another try
	defer cancel()
	return w.store.Heartbeat(ctx, w.self.Load().ID, w.cfg.Lease, w.ledger.load(), holds)
}

// contact is what this process knows of its contact with the database. It speaks up when contact is lost and when it is
// back, not for each statement between.
type contact struct {
	mu     sync.Mutex
	since  instant   // of the first heartbeat of an uninterrupted series
	last   instant   // heartbeat
	now    time.Time // the database's clock at the last heartbeat
	broken bool
	said   bool               // in the log
	told   map[string]instant // when it was last said of a step
}

func (c *contact) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since, c.last = 0, 0
}

func (c *contact) made(log *slog.Logger, lease time.Duration, databaseNow time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since == 0 || since(c.last) > lease {
		c.since = now()
	}
	c.last, c.now = now(), databaseNow
	if c.broken {
		if c.broken = false; c.said {
			c.said = false
			log.Info("contact with the database is back")
		}
	}
}

func (c *contact) failed(log *slog.Logger, step string, err error) {
	if errors.Is(err, context.Canceled) {
		return // shutting down
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if step == "heartbeat" {
		c.since = 0
	}
	if !c.broken {
		c.broken = true
		if last, is := c.told[step]; is && since(last) < linesEvery {
			return // a step that fails again and again, between heartbeats that do not
		}
		if c.told == nil {
			c.told = map[string]instant{}
		}
		c.told[step], c.said = now(), true
		log.Error("the database does not do what is asked; trying until it does", "step", step, "error", err)
	}
}

// lasted tells whether contact has been uninterrupted for d: after an outage, the others get that long to renew their
// leases before this worker judges them.
func (c *contact) lasted(d time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since != 0 && since(c.since) >= d && since(c.last) < d
}

// clock is the database's clock now, as far as it is known.
func (c *contact) clock() (at time.Time, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == 0 || c.now.IsZero() {
		return time.Time{}, false
	}
	return c.now.Add(since(c.last)), true
}

// databaseTime is the database's clock at the last heartbeat, or zero.
func (c *contact) databaseTime() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}
