package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/storable"
	"github.com/jobgen-go/jobgen/jobs"
)

// outcome is what became of a hold. Exactly one of release, cancel, err and success (none of them) is meant.
type outcome struct {
	hold    *hold
	release bool // give the job back, the attempt with it
	cancel  bool // end it, its handler was not called: somebody has asked for that, or its deadline has passed
	err     error
	result  []byte
	stored  bool // the handler's transaction has stored it, if err is nil
	verdict bool // err is the database's word on the hold; a handler may return the same errors and mean another job
	unsure  bool // it may be stored already, its answer was lost: finding nothing to change is no staleness then
}

// outcomes are waiting to be stored.
type outcomes struct {
	mu      sync.Mutex
	waiting []outcome
	delayed map[*time.Timer]outcome // nil: none is to be delayed any more
	poke    chan struct{}
}

func (o *outcomes) put(one outcome) {
	o.mu.Lock()
	o.waiting = append(o.waiting, one)
	first := len(o.waiting) == 1
	o.mu.Unlock()
	if first {
		poke(o.poke)
	}
}

func (o *outcomes) take() []outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	batch := o.waiting
	o.waiting = nil
	return batch
}

// complete is the loop that stores outcomes. What has gathered while one flush was on its way is the next: alone, an
// outcome is stored at once; under load, the batches grow by themselves. It ends with ctx, after a last flush.
func (w *Worker) complete(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-w.outcomes.poke:
			w.flush(context.WithoutCancel(ctx), ctx.Done())
		case <-ctx.Done():
		}
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	w.flush(end, end.Done())
}

// storeTime bounds one statement of a flush; laterDelay is how long an outcome waits for its reason to pass.
const (
	storeTime  = 30 * time.Second
	laterDelay = time.Second
)

// later puts an outcome after a moment, or at once during a shutdown, which would not wait for it.
func (o *outcomes) later(one outcome) {
	o.mu.Lock()
	if o.delayed == nil {
		o.mu.Unlock()
		o.put(one)
		return
	}
	defer o.mu.Unlock()
	var timer *time.Timer
	timer = time.AfterFunc(laterDelay, func() {
		o.mu.Lock()
		_, still := o.delayed[timer]
		delete(o.delayed, timer)
		o.mu.Unlock()
		if still {
			o.put(one)
		}
	})
	o.delayed[timer] = one
}

// hurry puts what later has delayed, and lets nothing be delayed any more.
func (o *outcomes) hurry() {
	o.mu.Lock()
	delayed := o.delayed
	o.delayed = nil
	o.mu.Unlock()
	for timer, one := range delayed {
		timer.Stop()
		o.put(one)
	}
}

// flush stores what is waiting, in one statement for each form of outcome. Once stop is closed, it tries nothing a second
// time; a statement under way is not cut, because its answer would be lost.
func (w *Worker) flush(ctx context.Context, stop <-chan struct{}) {
	var plain, recorded, failed, released, cancelled, followed []outcome
	for _, o := range w.outcomes.take() {
		switch {
		case o.release:
			released = append(released, o)
		case o.cancel:
			cancelled = append(cancelled, o)
		case o.err != nil:
			failed = append(failed, o)
		case o.hold.Then != nil:
			followed = append(followed, o)
		case o.hold.Recorded || !o.hold.success(nil).Record:
			plain = append(plain, o)
		default:
			recorded = append(recorded, o)
		}
	}
	w.write(ctx, stop, plain, w.succeed)
	w.write(ctx, stop, recorded, w.succeed)
	w.write(ctx, stop, failed, w.fail)
	w.write(ctx, stop, released, w.giveBack)
	w.write(ctx, stop, cancelled, w.end)
	for len(followed) > 0 { // last: they take longest
		n := together(followed)
		w.write(ctx, stop, followed[:n], w.succeed)
		followed = followed[n:]
	}
}

// Bounds of the follow-ups that are stored in one transaction, unless a single job has more.
const (
	followMany  = 1000
	followBytes = 16 << 20
)

// together is how many of the outcomes, which have follow-ups, are to be stored in one transaction.
func together(os []outcome) int {
	jobs, bytes := 0, 0
	for i, o := range os {
		for _, f := range o.hold.Then {
			jobs += len(f.Elements)
			for _, e := range f.Elements {
				bytes += len(e.Payload)
			}
		}
		if i > 0 && (jobs > followMany || bytes > followBytes) {
			return i
		}
	}
	return len(os)
}

// writer stores outcomes of one form and returns the ids of those that were current holds. The rest of them may be jobs that
// have been asked to end, or have no time left: that is looked for next.
type writer func(ctx context.Context, batch []outcome) (ended map[int64]bool, rest []outcome, err error)

// write stores a batch, whatever it takes: while the database is away it tries again, and a value the database refuses
// is cornered by halving the batch, so that it harms only its own job (G9); a row that another session has locked, likewise.
func (w *Worker) write(ctx context.Context, stop <-chan struct{}, batch []outcome, store writer) {
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		if batch = w.ledger.onlyCurrent(batch); len(batch) == 0 {
			return
		}
		ended, rest, err := func() (map[int64]bool, []outcome, error) {
			ctx, cancel := context.WithTimeout(ctx, storeTime)
			defer cancel()
			return store(ctx, batch)
		}()
		var refused *engine.ValueError
		locked := errors.Is(err, engine.ErrLocked)
		switch {
		case err == nil:
			if len(rest) > 0 {
				batch = slices.DeleteFunc(batch, func(o outcome) bool { return !ended[o.hold.ID] })
			}
			w.settle(batch, ended)
			w.write(ctx, stop, rest, w.end)
			return
		case (locked || errors.As(err, &refused)) && len(batch) > 1:
			w.write(ctx, stop, batch[:len(batch)/2], store)
			w.write(ctx, stop, batch[len(batch)/2:], store)
			return
		case errors.As(err, &refused):
			w.refuse(ctx, stop, batch[0], refused)
			return
		case locked:
			w.outcomes.later(batch[0]) // by itself; the others go on
			return
		}
		w.contact.failed(w.log, "store outcomes", err)
		if errors.Is(err, engine.ErrUnknown) {
			for i := range batch {
				batch[i].unsure = true
			}
		}
		if !waitOr(stop, delay) {
			for _, o := range batch {
				w.outcomes.put(o) // for the last flush; after that, Run tells how many holds are left
			}
			return
		}
	}
}

// settle frees the holds of a stored batch and reports those that the database did not know any more.
func (w *Worker) settle(batch []outcome, ended map[int64]bool) {
	hs := make([]*hold, len(batch))
	for i, o := range batch {
		hs[i] = o.hold
		if !ended[o.hold.ID] && !o.unsure {
			w.log.Warn("a handler's outcome came too late and changes nothing: its job was taken back", "job", o.hold.ID, "kind", o.hold.Kind, "attempt", o.hold.Attempt)
		}
	}
	w.ledger.settle(hs...)
}

// refuse ends a job whose outcome the database will not take: it fails for good, with the database's reason.
func (w *Worker) refuse(ctx context.Context, stop <-chan struct{}, o outcome, reason error) {
	if _, again := o.err.(*refusedError); again {
		w.log.Error("the database takes no outcome of this job; it stays running until this worker stops", "job", o.hold.ID, "kind", o.hold.Kind, "error", reason)
		w.ledger.settle(o.hold)
		return
	}
	o.release, o.cancel, o.err = false, false, &refusedError{reason}
	w.write(ctx, stop, []outcome{o}, w.fail)
}

type refusedError struct{ err error }

func (e *refusedError) Error() string {
	return "the handler ended, but the database refused to store its outcome: " + e.err.Error()
}
func (e *refusedError) Unwrap() error { return jobs.Permanent(e.err) }

func (w *Worker) succeed(ctx context.Context, batch []outcome) (map[int64]bool, []outcome, error) {
	done := make([]engine.Success, len(batch))
	for i, o := range batch {
		done[i] = o.hold.success(o.result)
		done[i].Record = done[i].Record && !o.hold.Recorded
	}
	ids, err := w.store.Complete(ctx, batch[0].hold.owner, done)
	return set(ids), nil, err
}

func (w *Worker) giveBack(ctx context.Context, batch []outcome) (map[int64]bool, []outcome, error) {
	holds := make([]engine.Hold, len(batch))
	for i, o := range batch {
		holds[i] = o.hold.name()
	}
	ids, err := w.store.Release(ctx, batch[0].hold.owner, holds)
	ended := set(ids)
	return ended, without(batch, ended), err
}

// without are the outcomes that are not among those that have ended.
func without(batch []outcome, ended map[int64]bool) (rest []outcome) {
	if len(ended) == len(batch) {
		return nil
	}
	for _, o := range batch {
		if !ended[o.hold.ID] {
			rest = append(rest, o)
		}
	}
	return rest
}

// end ends what is not to go on, whatever came of it.
func (w *Worker) end(ctx context.Context, batch []outcome) (map[int64]bool, []outcome, error) {
	holds := make([]engine.Cancelled, len(batch))
	byID := make(map[int64]*hold, len(batch))
	for i, o := range batch {
		holds[i] = engine.Cancelled{Hold: o.hold.name(), Started: o.hold.started != 0 && !o.cancel}
		if o.err != nil {
			holds[i].Error = o.hold.failure(o.err).Error
		}
		byID[o.hold.ID] = o.hold
	}
	answers, err := w.store.Cancel(ctx, batch[0].hold.owner, holds)
	ended := make(map[int64]bool, len(answers))
	for _, a := range answers {
		ended[a.ID] = true
		h := byID[a.ID]
		w.log.Info("job is cancelled", "job", a.ID, "kind", h.Kind, "queue", h.Queue, "attempt", h.Attempt, "reason", a.Reason)
	}
	return ended, nil, err
}

func (w *Worker) fail(ctx context.Context, batch []outcome) (map[int64]bool, []outcome, error) {
	fs := make([]engine.Failure, len(batch))
	byID := make(map[int64]*outcome, len(batch))
	for i := range batch {
		fs[i] = batch[i].hold.failure(batch[i].err)
		byID[fs[i].ID] = &batch[i]
	}
	answers, err := w.store.Fail(ctx, batch[0].hold.owner, fs)
	ended := make(map[int64]bool, len(answers))
	retried := false
	for _, a := range answers {
		ended[a.ID] = true
		o := byID[a.ID]
		line := []any{"job", a.ID, "kind", o.hold.Kind, "queue", o.hold.Queue, "attempt", o.hold.Attempt, "max_attempts", o.hold.MaxAttempts, "error", firstLine(o.err)}
		retried = retried || !a.Dead
		switch {
		case a.Snoozed:
			w.log.Debug("job is put off", line...)
		case a.Dead:
			w.log.Error("job is dead", line...)
		default:
			w.log.Warn("job failed and will be tried again", line...)
		}
	}
	if retried {
		poke(w.wake) // an idle claim loop has to learn when they are due
	}
	return ended, without(batch, ended), err
}

// errorText is what stands on record of an error, a panic's stack with it: storable and bounded.
func errorText(err error) string {
	text := err.Error()
	if p := (*jobs.PanicError)(nil); errors.As(err, &p) {
		text += "\n\n" + string(p.Stack)
	}
	text = storable.Text(text, maxError)
	if strings.TrimSpace(text) == "" {
		return fmt.Sprintf("an error without a text, of type %T", err)
	}
	return text
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(errorText(err), "\n")
	return line
}

func set(ids []int64) map[int64]bool {
	m := make(map[int64]bool, len(ids))
	for _, id := range ids {
		m[id] = true
	}
	return m
}

// wait waits for d and tells whether ctx still stands.
func wait(ctx context.Context, d time.Duration) bool { return waitOr(ctx.Done(), d) }

func waitOr(stop <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-stop:
		return false
	case <-t.C:
		return true
	}
}
