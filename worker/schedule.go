package worker

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jobgen-go/jobgen/internal/cron"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

const (
	tickLook = 30 * time.Second // how often schedules are read, for what other workers have changed
	tickLate = time.Minute      // a tick later than this is missed, for jobs.MissedSkip
	tickMany = 1000             // ticks enqueued in one statement
)

// declare stores the schedules of the registered kinds as this program declares them.
func (w *Worker) declare(ctx context.Context) error {
	now, err := w.store.Now(ctx)
	if err != nil {
		return err
	}
	var kinds []string
	var declared []engine.Schedule
	for _, h := range w.reg.kinds() {
		kinds = append(kinds, h.kind)
		payload, err := h.zero()
		if err != nil && len(h.schedules) > 0 {
			return err
		}
		for _, s := range h.schedules {
			parsed, err := cron.Parse(s.Cron, s.Zone)
			if err != nil {
				return err // New has parsed it; the time zones of this machine have changed since
			}
			missed := s.Missed
			if missed == jobs.MissedOnce {
				missed = "once"
			}
			declared = append(declared, engine.Schedule{Kind: h.kind, Name: s.Name, Cron: s.Cron, Zone: s.Zone, Missed: string(missed), NextAt: parsed.Next(now), Job: h.insert, Payload: payload})
		}
	}
	return w.store.Declare(ctx, kinds, declared)
}

// tick is the loop that enqueues the jobs of schedules. Every worker does it: who moves a schedule on enqueues the tick
// (G10). What is due is decided by the database's clock (G12); this one only measures the wait.
func (w *Worker) tick(ctx context.Context) {
	scheduled := map[string]*handler{}
	var kinds []string
	for _, h := range w.reg.kinds() {
		if len(h.schedules) > 0 {
			scheduled[h.kind], kinds = h, append(kinds, h.kind)
		}
	}
	if len(kinds) == 0 {
		return
	}
	for pause := time.Duration(0); wait(ctx, pause); {
		var err error
		if pause, err = w.tickDue(ctx, kinds, scheduled); err != nil {
			w.contact.failed(w.log, "tick", err)
			pause = jitter(time.Second)
		}
	}
}

// tickDue enqueues what is due and tells how long to wait for the next tick.
func (w *Worker) tickDue(ctx context.Context, kinds []string, scheduled map[string]*handler) (time.Duration, error) {
	ctx, cancel := limit(ctx)
	defer cancel()
	schedules, now, err := w.store.Schedules(ctx, kinds)
	if err != nil {
		return 0, err
	}
	pause := tickLook
	for _, s := range schedules {
		if until := s.NextAt.Sub(now); until > 0 {
			pause = min(pause, until)
			continue
		}
		parsed, err := cron.Parse(s.Cron, s.Zone)
		if err != nil { // stored by another program, with other time zones
			w.log.Error("a stored schedule cannot be read; it does not tick here", "kind", s.Kind, "schedule", s.Name, "error", err)
			continue
		}
		ticks, passed, next := dueTicks(parsed, s, now)
		h := scheduled[s.Kind]
		payload, err := h.zero()
		if err != nil {
			return 0, err
		}
		headers := make([][]byte, len(ticks))
		for i, t := range ticks {
			if headers[i], err = json.Marshal(map[string]string{jobs.ScheduledAtHeader: t.Format(time.RFC3339)}); err != nil {
				return 0, err
			}
		}
		first, err := w.store.Tick(ctx, s, passed, next, h.insert, payload, headers)
		if err != nil {
			return 0, err
		}
		if late := now.Sub(s.NextAt); first && late > tickLate {
			w.log.Warn("ticks of a schedule were missed: no worker ran that handles its kind", "kind", s.Kind, "schedule", s.Name, "since", s.NextAt, "policy", s.Missed, "jobs", len(ticks))
		}
		pause = min(pause, max(next.Sub(now), 0))
	}
	return pause, nil
}

// dueTicks are the ticks for which s is to enqueue a job at now, the last one that has passed, and the next one.
func dueTicks(parsed *cron.Schedule, s engine.Schedule, now time.Time) (ticks []time.Time, passed, next time.Time) {
	for next = s.NextAt; !next.After(now); next = parsed.Next(next) {
		passed = next
		if s.Missed == string(jobs.MissedAll) {
			if ticks = append(ticks, next); len(ticks) == tickMany {
				return ticks, passed, parsed.Next(next)
			}
		}
	}
	if s.Missed == string(jobs.MissedAll) || s.Missed == string(jobs.MissedSkip) && now.Sub(passed) > tickLate {
		return ticks, passed, next
	}
	return []time.Time{passed}, passed, next
}
