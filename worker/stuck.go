package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/storable"
)

// ErrStuck is what Run returns, wrapped, after Config.MaxStuck handlers were stuck at once: the process is to be replaced.
var ErrStuck = errors.New("worker: handlers are stuck")

// Stats is what a worker is doing now, and what it has done since it was made.
type Stats struct {
	Slots   int     // how many handlers may run at once
	Running int     // how many do, those that are stuck included
	Waiting int     // jobs that are claimed and not started
	Storing int     // jobs whose handler has returned, or was not called, and whose outcome is not stored yet
	Stuck   []Stuck // the oldest first

	// These only grow. Jobs owned by lock are in Running and in nothing below: they are not claimed, and end in their own transactions.
	Claims    int64         // claim statements that were answered, those that found nothing included
	Claimed   int64         // jobs that they brought
	Flushes   int64         // statements that stored outcomes
	Flushed   int64         // outcomes in them
	FlushTime time.Duration // that they took
	Reclaimed int64         // jobs of lost workers that this one has given back
	Failures  int64         // heartbeats that did not renew the lease, because the database did not answer in time or refused
	Losses    int64         // how often this worker was found dead although it lived, and went on under a new id
}

// Stuck is a handler that has not returned for Config.StuckAfter since its context ended. It takes up a slot until it does.
type Stuck struct {
	ID      int64 // of its job, which has gone on without it
	Kind    string
	Attempt int
	For     time.Duration // since its context ended
}

// Stats may be called at any time, by any goroutine.
func (w *Worker) Stats() Stats {
	l := w.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &w.counters
	s := Stats{
		Slots: l.slots, Running: len(l.active), Waiting: len(l.waiting),
		Claims: c.claims.Load(), Claimed: c.claimed.Load(), Flushes: c.flushes.Load(), Flushed: c.flushed.Load(), FlushTime: time.Duration(c.flushTime.Load()),
		Reclaimed: c.reclaimed.Load(), Failures: c.failures.Load(), Losses: c.losses.Load(),
	}
	held := 0 // of those that run: the others are stale, given up, or owned by lock
	for h := range l.active {
		if l.byID[h.ID] == h {
			held++
		}
		if h.stuck {
			s.Stuck = append(s.Stuck, Stuck{ID: h.ID, Kind: h.Kind, Attempt: h.Attempt, For: since(h.ended)})
		}
	}
	slices.SortFunc(s.Stuck, func(a, b Stuck) int { return cmp.Or(cmp.Compare(b.For, a.For), cmp.Compare(a.ID, b.ID)) })
	s.Storing = max(len(l.byID)-held-s.Waiting, 0)
	return s
}

// watch is the loop that finds handlers that ignore their ended context. It reports each once, lets its job go on, and
// calls quit when there are too many.
func (w *Worker) watch(ctx context.Context, quit context.CancelCauseFunc) {
	every := min(time.Second, w.cfg.StuckAfter/4)
	for wait(ctx, jitter(every)) {
		w.tellLeftOut(linesEvery)
		found, n := w.ledger.ignoring(w.cfg.StuckAfter)
		if len(found) > 0 {
			dump := goroutines()
			for _, h := range found {
				w.giveUp(h, dump)
			}
		}
		// Resize may have left fewer slots than MaxStuck.
		if slots := w.ledger.load().Slots; w.cfg.MaxStuck > 0 && n >= min(w.cfg.MaxStuck, slots) {
			quit(fmt.Errorf("%w: %d of %d slots are taken by handlers that ignored the end of their context for %s or more; their jobs have gone on without them", ErrStuck, n, slots, w.cfg.StuckAfter))
		}
	}
}

// load is what others can read of this worker, as of its last heartbeat.
func (l *ledger) load() engine.Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	return engine.Load{Slots: l.slots, Running: len(l.active), Stuck: l.stuck}
}

// giveUp reports a stuck handler, ends its transaction, and fails its job's attempt, unless the job was taken back before.
// Whatever the handler returns later is stale.
func (w *Worker) giveUp(h *hold, dump []byte) {
	cause := context.Cause(h.ctx)
	if end := h.timeout.Load(); cause == nil && end != nil {
		cause = end.cause
	}
	if tx := w.ledger.transaction(h); tx != nil && !tx.Cut() {
		w.ledger.notStuck(h) // it has just returned
		return
	}
	if h.locked { // with its transaction, nothing says any more whose it is
		if fence := w.adoptLate(h, since(h.started)); fence != 0 {
			w.ledger.adopt(h, fence)
		}
	}
	goesOn := w.ledger.giveUp(h)
	w.tell(slog.LevelError, "a handler ignores its context: it still runs after that has ended, and keeps its slot", h.Claimed, "duration", since(h.started).Round(time.Millisecond), "ended", since(h.ended).Round(time.Millisecond), "cause", cause, "given_up", goesOn, "stack", stackOf(dump, h.runner.Load()))
	if goesOn {
		w.conclude(outcome{hold: h, err: fmt.Errorf("%w; the handler ignored that for %s and was given up", cause, since(h.ended).Round(time.Millisecond))}, context.Cause(h.ctx), true)
	}
	if goesOn && h.locked {
		w.ledger.release(h)
	}
}

// returnedLate says that a handler that was stuck has returned.
func (w *Worker) returnedLate(h *hold) {
	if h.stuck {
		w.tell(slog.LevelWarn, "a handler that had ignored its context has returned; its slot is free again", h.Claimed, "duration", since(h.started).Round(time.Millisecond))
	}
}

// ignoring finds the handlers that have gone on for patience since their context ended and were not known to, and tells
// how many there are in all.
func (l *ledger) ignoring(patience time.Duration) (found []*hold, all int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := range l.active {
		if h.ended == 0 {
			if end := h.timeout.Load(); end != nil && end.at.passed() {
				h.ended = end.at
			} else if h.ctx.Err() != nil {
				h.ended = now()
			}
		}
		if h.ended == 0 || h.stuck || since(h.ended) < patience || h.finishing.Load() {
			continue
		}
		h.stuck = true
		l.stuck++
		found = append(found, h)
	}
	if len(found) > 0 {
		poke(l.room) // a shutdown does not wait for them
	}
	return found, l.stuck
}

// opened notes the transaction of a handler.
func (l *ledger) opened(h *hold, tx engine.Cutter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.tx = tx
}

func (l *ledger) transaction(h *hold) engine.Cutter {
	l.mu.Lock()
	defer l.mu.Unlock()
	return h.tx
}

func (l *ledger) notStuck(h *hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, runs := l.active[h]; runs {
		h.stuck = false
		l.stuck--
	}
}

// giveUp makes what a handler will return stale, and tells whether its job is still this process's to fail.
func (l *ledger) giveUp(h *hold) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, runs := l.active[h]; !runs || l.byID[h.ID] != h {
		return false
	}
	h.givenUp, h.ran = true, since(h.started)
	return true
}

// maxStack bounds a stack in the log, maxDump that of all goroutines, in bytes.
const (
	maxStack = 8 << 10
	maxDump  = 16 << 20
)

// goroutines are the stacks of all goroutines. The world stands still for it, so it is made once for all that are found.
func goroutines() []byte {
	for size := 64 << 10; ; size *= 4 {
		b := make([]byte, size)
		if n := runtime.Stack(b, true); n < size || size >= maxDump {
			return b[:n]
		}
	}
}

// stackOf finds a goroutine in a dump.
func stackOf(dump []byte, id int64) string {
	for stack := range bytes.SplitSeq(dump, []byte("\n\n")) {
		if bytes.HasPrefix(stack, fmt.Appendf(nil, "goroutine %d [", id)) {
			return storable.Text(string(stack), maxStack)
		}
	}
	return "not found: there are too many goroutines"
}

// goroutineID is the number under which the calling goroutine stands in a dump. It costs a microsecond, so it is asked for
// once by each runner, not for each job.
func goroutineID() int64 {
	var b [48]byte
	text, _ := bytes.CutPrefix(b[:runtime.Stack(b[:], false)], []byte("goroutine "))
	number, _, _ := bytes.Cut(text, []byte(" "))
	id, _ := strconv.ParseInt(string(number), 10, 64)
	return id
}
