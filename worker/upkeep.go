package worker

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
)

// How often each worker of a fleet looks for what is seldom there, times the fleet's size.
const (
	purgeEvery  = time.Minute
	orphanEvery = time.Minute
	purgeChunks = 20     // in a row
	noteMany    = 20_000 // jobs looked at, for one that runs and that no claim names
)

// upkeep is the loop that takes back what lost workers held, notices suspects, and purges what has expired. Any number of
// workers do this at once (G10).
func (w *Worker) upkeep(ctx context.Context) {
	purge, orphans := now().add(rand.N(purgeEvery)), now().add(rand.N(orphanEvery))
	for wait(ctx, jitter(w.cfg.Reclaim)) {
		fleet := time.Duration(max(w.fleet.Load(), 1))
		look := orphans.passed()
		if look {
			orphans = now().add(jitter(orphanEvery * fleet))
		}
		if err := w.reclaim(ctx, look); err != nil && ctx.Err() == nil {
			w.contact.failed(w.log, "reclaim", err)
			continue
		}
		if w.suspectWaiting(ctx) {
			w.suspects.Store(true)
			poke(w.ledger.room)
			poke(w.wake)
		}
		if purge.passed() {
			purge = now().add(jitter(purgeEvery * fleet))
			if err := w.purge(ctx); err != nil && ctx.Err() == nil {
				w.contact.failed(w.log, "purge", err)
			}
		}
	}
}

func (w *Worker) suspectWaiting(ctx context.Context) bool {
	ctx, cancel := limit(ctx)
	defer cancel()
	waiting, err := w.store.SuspectWaiting(ctx, w.unpaused(w.self.Load()))
	return err == nil && waiting
}

// reclaim judges workers only after a full lease of contact, so that after an outage the live ones come first (G7).
func (w *Worker) reclaim(ctx context.Context, orphans bool) error {
	if !w.contact.lasted(w.cfg.Lease) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, claimTime) // what it leaves is the next round's
	defer cancel()
	lost, err := w.store.MarkLost(ctx)
	if err != nil {
		return err
	}
	if orphans {
		if w.looked, err = w.store.NoteUnclaimed(ctx, w.looked, noteMany); err != nil {
			return err
		}
	}
	for _, l := range lost {
		w.log.Error("a worker is lost: its lease ran out", "worker", l.ID, "host", l.Host, "pid", l.PID, "last_heartbeat", l.LastBeat)
	}
	type group struct {
		worker uuid.UUID
		kind   string
		dead   bool
	}
	for {
		back, err := w.store.Reclaim(ctx, reclaimMany, w.cfg.MaxCrashes, crashDelay, orphans)
		if err != nil {
			return err
		}
		counts := map[group]int{}
		for _, b := range back {
			counts[group{b.Worker, b.Kind, b.Dead}]++
			if b.Dead {
				w.log.Error("job is dead", "job", b.ID, "kind", b.Kind, "queue", b.Queue, "crashes", b.Crashes, "error", "each time the worker process was lost while it ran this job")
			}
		}
		for g, n := range counts {
			if !g.dead {
				w.log.Warn("jobs of a lost worker reclaimed", "worker", g.worker, "kind", g.kind, "jobs", n)
			}
		}
		if len(back) < reclaimMany {
			return nil
		}
	}
}

func (w *Worker) purge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, claimTime)
	defer cancel()
	for range purgeChunks {
		if more, err := w.store.Purge(ctx, w.cfg.KeepAttempts, keepSamples); err != nil || !more {
			return err
		}
	}
	return nil
}
