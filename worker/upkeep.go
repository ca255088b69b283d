package worker

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// How often a fleet looks for what is seldom there.
const (
	purgeEvery  = time.Minute
	orphanEvery = time.Minute
	noteMany    = 20_000 // jobs looked at, for one that runs and that no claim names
)

// upkeep is the loop that takes back what lost workers held, and purges what has expired. Whether a worker is lost, control
// has seen; any worker that has takes its jobs back (G10).
func (w *Worker) upkeep(ctx context.Context) {
	purge, orphans := newShare(purgeEvery), newShare(orphanEvery)
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.signs:
		}
		fleet := int(w.fleet.Load())
		if look := orphans.due(fleet); w.lost.Swap(false) || look {
			if err := w.reclaim(ctx, look); err != nil && ctx.Err() == nil {
				w.contact.failed(w.log, "reclaim", err)
				continue
			}
		}
		if purge.due(fleet) || w.purges.more {
			if err := w.purge(ctx); err != nil && ctx.Err() == nil {
				w.contact.failed(w.log, "purge", err)
			}
		}
	}
}

// purges are how long to purge in a row, since reclaim waits for it, and whether the last purge has left something for the
// next round.
type purges struct {
	length time.Duration
	more   bool
}

// share paces what the whole fleet is to do about so often: each worker waits in proportion to the fleet's size, as it is
// when it asks, so that those who are left go on at that pace when many are gone.
type share struct {
	every, wait time.Duration
	last        instant
}

func newShare(every time.Duration) *share { return &share{every, rand.N(every), now()} }

// due tells whether it is this worker's turn, and takes it.
func (s *share) due(fleet int) bool {
	if since(s.last) < s.wait*time.Duration(max(fleet, 1)) {
		return false
	}
	s.last, s.wait = now(), jitter(s.every)
	return true
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
		w.log.Warn("a worker is lost: its lease ran out", "lost_worker", l.ID, "host", l.Host, "pid", l.PID, "last_heartbeat", l.LastBeat)
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
		w.counters.reclaimed.Add(int64(len(back)))
		counts := map[group]int{}
		for _, b := range back {
			counts[group{b.Worker, b.Kind, b.Dead}]++
			if b.Dead {
				w.tell(slog.LevelError, "job is dead", &engine.Claimed{ID: b.ID, Kind: b.Kind, Queue: b.Queue, Attempt: b.Attempt}, "crashes", b.Crashes, "error", "each time the worker process was lost while it ran this job")
			}
		}
		for g, n := range counts {
			if !g.dead {
				w.log.Warn("jobs of a lost worker reclaimed", "lost_worker", g.worker, "kind", g.kind, "jobs", n)
			}
		}
		if len(back) < reclaimMany {
			return nil
		}
	}
}

// purge removes what has expired, chunk by chunk.
func (w *Worker) purge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, claimTime)
	defer cancel()
	for begin := now(); ; {
		done, err := w.store.Purge(ctx, w.cfg.keep())
		w.purges.more = done.More
		for kind, n := range done.Dead {
			w.log.Warn("dead jobs purged: nobody has requeued them for as long as Config.KeepDead", "kind", kind, "jobs", n)
		}
		for _, s := range done.Schedules {
			w.log.Warn("a schedule is forgotten: no program has handled its kind for 90 days", "kind", s.Kind, "schedule", s.Name)
		}
		if err != nil || !w.purges.more || since(begin) >= w.purges.length {
			return err
		}
	}
}
