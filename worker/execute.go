package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

// runner starts what is waiting, one after the other, until nothing is, and rests until more is, or the worker shuts down. A
// handler that ends its goroutine (runtime.Goexit) ends the runner with it; another takes its place.
func (w *Worker) runner() {
	id := goroutineID()
	var h *hold
	defer func() {
		if h != nil && w.ledger.respawn(h) {
			go w.runner()
		}
	}()
	for {
		if h = w.ledger.start(w.handlers, h); h == nil {
			if !w.ledger.rest() {
				return
			}
			continue
		}
		h.runner.Store(id)
		w.run(h)
	}
}

var errGoexit = errors.New("the handler ended its goroutine (runtime.Goexit, as t.FailNow does) instead of returning")

// run executes one job and hands its outcome on, whatever the handler does.
func (w *Worker) run(h *hold) {
	o := outcome{hold: h, err: errGoexit}
	defer func() {
		cause := context.Cause(h.ctx)
		current := w.ledger.returned(h)
		w.returnedLate(h)
		if !h.givenUp {
			w.conclude(o, cause, current)
		}
	}()
	if h.handler.tx == nil {
		o.result, o.err = invoke(h, nil)
		return
	}
	o = w.runTx(h)
}

// runTx executes the job of a transactional handler.
func (w *Worker) runTx(h *hold) outcome {
	o := outcome{hold: h, stored: true}
	// Waiting for a connection is no part of the attempt: it is not the handler's time.
	err := w.store.InTx(h.ctx, h.owner, func(tx any, finish func(engine.Success) error) error {
		if cutter, can := tx.(engine.Cutter); can {
			w.ledger.opened(h, cutter)
		}
		result, err := invoke(h, tx)
		if err != nil {
			return w.starved(h, err)
		}
		o.verdict = true
		h.finishing.Store(true)
		return h.finished(finish(h.success(result)))
	})
	if o.verdict {
		err = h.late(err)
	}
	o.err = err
	return o
}

// finished is what it means that the last statements of a transactional handler's transaction have ended with err.
func (h *hold) finished(err error) error {
	var refused *engine.ValueError
	if len(h.Then) > 0 && errors.As(err, &refused) {
		return &refusedError{refused} // the handler would want the same again
	}
	return err
}

// late says in an error that came after the handler that its time was over, if it was: it had ignored that.
func (h *hold) late(err error) error {
	if end := h.timeout.Load(); err != nil && end != nil && end.at < now() {
		return fmt.Errorf("%w: %w", end.cause, err)
	}
	return err
}

// starved adds to the failure of a transactional handler that ran out of time what it may have waited for.
func (w *Worker) starved(h *hold, err error) error {
	end := h.timeout.Load()
	if failed, is := err.(*failedError); is && end != nil && end.at < now() && w.store.TxFull() {
		failed.Failure.Error += fmt.Sprintf("\n(all %d connections of the pool given to worker.New were in use then: a transactional handler that takes another one than its transaction's can wait for itself)", w.store.TxLimit())
	}
	return err
}

// timeout is the end of a handler's time: its kind's timeout, or its job's deadline if that is earlier.
type timeout struct {
	at    instant
	cause error
}

// timeLeft is how much time a handler that is called now has, and the cause of its context's end then; nil: it has all the
// time in the world. The deadline is the database's; what is left of it was computed there, and since then it is measured.
func (h *hold) timeLeft() (d time.Duration, cause error) {
	if d = h.handler.timeout; d > 0 {
		cause = timeoutError(d)
	}
	if h.Deadline != nil {
		if left := h.Left - since(h.entered); cause == nil || left < d {
			return left, jobs.ErrDeadline
		}
	}
	return d, cause
}

// errNoTime: the deadline came before the handler could be called.
var errNoTime = errors.New("the deadline has passed")

// timeoutError is the cause of a handler's context after its kind's timeout.
type timeoutError time.Duration

func (d timeoutError) Error() string        { return "timeout after " + time.Duration(d).String() }
func (d timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// invoke calls the handler under its kind's timeout and turns a panic into an error. What comes back as an error is a
// failedError: the methods of the handler's own error are called here, once, where their panics harm nobody.
func invoke(h *hold, tx any) (result []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &jobs.PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	ctx := h.ctx
	if d, cause := h.timeLeft(); cause != nil {
		if d <= 0 {
			return nil, errNoTime
		}
		h.timeout.Store(&timeout{now().add(d), cause}) // first: it must not be after the context's end
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d, cause)
		defer cancel()
	}
	if result, err = h.handler.call(ctx, tx, h.Claimed); err == nil {
		return result, nil
	}
	timedOut := false
	if cause := context.Cause(ctx); errors.Is(cause, context.DeadlineExceeded) && context.Cause(h.ctx) == nil {
		_, timedOut = cause.(timeoutError)
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return nil, &failedError{h.failure(err), timedOut}
}

// failedError is a handler's error as it will stand on record.
type failedError struct {
	engine.Failure
	timedOut bool
}

func (e *failedError) Error() string { return e.Failure.Error }

// success is what finishing h with result writes.
func (h *hold) success(result []byte) engine.Success {
	return engine.Success{Hold: h.name(), Kind: h.Kind, Key: h.Key, Record: h.records(), Unkeyed: h.Key == "", Result: result, Keep: h.handler.keep, Retain: h.handler.retain, Then: h.Then}
}

// records tells whether a success of h leaves a record.
func (h *hold) records() bool { return h.handler.result || h.Key != "" }

// failure is what failing h with err writes.
func (h *hold) failure(err error) engine.Failure {
	if failed, is := err.(*failedError); is { // as it comes from invoke; wrapped, it is another error
		f := failed.Failure
		f.Hold = h.name() // a job owned by lock had none then
		return f
	}
	f := engine.Failure{Hold: h.name(), Error: errorText(err)}
	// The order is what jobs documents: of several in one error, the first of these counts.
	if f.Permanent = jobs.IsPermanent(err); f.Permanent {
		return f
	}
	if f.Delay, f.Snooze = jobs.SnoozeDelay(err); f.Snooze {
		return f
	}
	var chosen bool
	if f.Delay, chosen = jobs.RetryDelay(err); !chosen {
		f.Delay = h.handler.backoff.Delay(h.Attempt)
	}
	return f
}

func doubtOf(err error) (doubt *engine.DoubtError) {
	errors.As(err, &doubt)
	return doubt
}

// conclude decides what a returned handler means. cause is why its context had been cancelled before, if it had; current,
// whether its hold was when it returned.
func (w *Worker) conclude(o outcome, cause error, current bool) {
	h := o.hold
	switch {
	case o.err == nil && o.stored:
		w.tally.success(h)
		w.ledger.settle(h)
	case o.verdict && errors.Is(o.err, engine.ErrRecorded):
		// Another job did the key's work; what this one did is rolled back, and its row only has to go (G6).
		h.Recorded, h.Then = true, nil
		w.outcomes.put(outcome{hold: h})
	case o.verdict && doubtOf(o.err) != nil:
		o.doubt = doubtOf(o.err)
		if current {
			w.outcomes.put(o)
			return
		}
		w.tell(slog.LevelWarn, "the answer to COMMIT was lost, and the worker's lease with it: the job is done, or another worker does it", h.Claimed)
	case !current || o.verdict && errors.Is(o.err, engine.ErrLeaseLost):
		w.tell(slog.LevelWarn, saysLate, h.Claimed)
		w.ledger.settle(h)
	case o.err != nil && errors.Is(cause, errShutdown):
		o.release = true
		w.outcomes.put(o)
	case errors.Is(o.err, errNoTime):
		o.cancel, o.err = true, nil
		w.outcomes.put(o)
	case errors.Is(o.err, engine.ErrNotBegun):
		// The handler was not called, so no attempt is spent. A moment later, because the reason may last.
		w.tell(slog.LevelWarn, "no transaction for a handler; its job goes back", h.Claimed, "error", firstLine(o.err))
		o.release = true
		w.outcomes.later(o)
	default:
		w.outcomes.put(o)
	}
}
