package worker

import (
	"context"
	"errors"
	"math/bits"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// sampleSpread is how long after the end of a minute the workers of a fleet have written their counts.
const sampleSpread = 3 * time.Second

// sample is the loop that, at the end of each minute by the database's clock, takes the fleet's look at the levels, unless another
// worker has, and writes what this one has counted. What was stored after the loop has ended, Run writes.
func (w *Worker) sample(ctx context.Context) {
	var minute time.Time
	for pause := time.Duration(0); wait(ctx, pause); {
		at, known := w.contact.clock()
		if pause = w.cfg.Heartbeat; !known {
			continue
		}
		if m := at.Truncate(time.Minute); !m.Equal(minute) {
			first := minute.IsZero()
			minute = m
			begin := now().add(m.Sub(at))
			counts := w.tally.take()
			if _, err := w.takeLook(ctx); err != nil {
				w.contact.failed(w.log, "look", err)
			}
			if !first { // at first there is nothing but to learn how far ids have come
				wait(ctx, rand.N(min(sampleSpread, w.cfg.Heartbeat)))
			}
			w.writeCounts(context.WithoutCancel(ctx), counts, since(begin)+time.Minute/2)
			if at, known = w.contact.clock(); !known {
				continue
			}
		}
		pause = min(pause, minute.Add(time.Minute).Sub(at)+time.Millisecond)
	}
}

func (w *Worker) takeLook(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTime)
	defer cancel()
	return w.store.Look(ctx)
}

// writeCounts adds counts to the minute that it was so long ago. If they could not be written, they go with those of the next minute. If
// the answer was lost they may have been written: they are given up, since twice would be worse than not at all.
func (w *Worker) writeCounts(ctx context.Context, counts []engine.Sample, ago time.Duration) {
	ctx, cancel := limit(ctx)
	defer cancel()
	horizon, err := w.store.Sample(ctx, counts, ago)
	if err != nil {
		w.contact.failed(w.log, "sample", err)
		if !errors.Is(err, engine.ErrUnknown) {
			w.tally.putBack(counts)
		}
		return
	}
	w.tally.see(horizon)
}

// tally counts what has happened to the jobs of this process since the last full minute, once the database has it.
type tally struct {
	mu      sync.Mutex
	counts  map[tallied]*engine.Sample
	key     tallied        // of what was counted last
	last    *engine.Sample // nil: nothing was
	horizon engine.Horizon
}

type tallied struct{ queue, kind string }

// of is what is counted of h's kind in its queue. The caller has the lock.
func (t *tally) of(h *hold) *engine.Sample {
	k := tallied{h.Queue, h.Kind}
	if t.last == nil || t.key != k {
		t.key, t.last = k, t.counts[k]
		if t.last == nil {
			t.last = &engine.Sample{Queue: k.queue, Kind: k.kind, RunTimes: make([]int64, engine.RunTimeBuckets)}
			t.counts[k] = t.last
		}
	}
	return t.last
}

// ran counts an attempt, if h's handler was called, and gives what else is to be counted. The caller has the lock.
func (t *tally) ran(h *hold) *engine.Sample {
	s := t.of(h)
	if h.started != 0 {
		s.RunTime += h.ran
		s.RunTimes[min(bits.Len64(uint64(h.ran/time.Millisecond)), engine.RunTimeBuckets-1)]++
	}
	return s
}

// left counts the arrival of a job that has left jobs before any look could see it. The caller has the lock.
func (t *tally) left(h *hold, s *engine.Sample) {
	if t.horizon.Known && h.ID > t.horizon.Since {
		s.Arrived++
	}
}

// succeeded counts those of a batch that have ended.
func (t *tally) succeeded(batch []outcome, ended idSet) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range batch {
		if h := batch[i].hold; ended.all || ended.some[h.ID] {
			s := t.ran(h)
			s.Succeeded++
			t.left(h, s)
		}
	}
}

// success counts one.
func (t *tally) success(h *hold) { t.succeeded([]outcome{{hold: h}}, idSet{all: true}) }

// failed counts an attempt that did not succeed.
func (t *tally) failed(h *hold, err error, answer engine.Failed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.ran(h)
	switch {
	case answer.Snoozed:
		s.Snoozed++
		return
	case timedOut(err):
		s.TimedOut++
	}
	s.Failed++
	if answer.Dead {
		s.Died++
	}
}

// cancelled counts a job that has ended so.
func (t *tally) cancelled(h *hold) {
	if h.Kind == "" {
		return // it was held without being known, and nothing but its id is
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.ran(h)
	s.Cancelled++
	t.left(h, s)
}

// unsure counts an outcome whose answer was lost: the job is not this worker's any more, and nobody has taken it back.
func (t *tally) unsure(o outcome) {
	switch {
	case o.release:
	case o.cancel:
		t.cancelled(o.hold)
	case o.err != nil:
		f := o.hold.failure(o.err)
		t.failed(o.hold, o.err, engine.Failed{Dead: f.Permanent || !f.Snooze && o.hold.Attempt >= o.hold.MaxAttempts, Snoozed: f.Snooze})
	default:
		t.success(o.hold)
	}
}

// take hands over what was counted in a minute that has ended.
func (t *tally) take() []engine.Sample {
	t.mu.Lock()
	defer t.mu.Unlock()
	counts := make([]engine.Sample, 0, len(t.counts))
	for _, s := range t.counts {
		counts = append(counts, *s)
	}
	t.counts, t.last = map[tallied]*engine.Sample{}, nil
	t.horizon.Since = t.horizon.Next
	return counts
}

// putBack takes back what could not be written.
func (t *tally) putBack(counts []engine.Sample) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range counts {
		c := &counts[i]
		if s := t.counts[tallied{c.Queue, c.Kind}]; s != nil {
			s.Add(c)
		} else {
			t.counts[tallied{c.Queue, c.Kind}] = c
		}
	}
}

func (t *tally) see(h engine.Horizon) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.horizon = h
}

// timedOut tells whether an attempt failed because its kind's timeout was over.
func timedOut(err error) bool {
	if failed, is := err.(*failedError); is {
		return failed.timedOut
	}
	var timeout timeoutError
	return errors.As(err, &timeout)
}
