package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

// runner starts what is waiting, one after the other, until nothing is. A handler that ends its goroutine
// (runtime.Goexit) ends the runner with it; another takes its place.
func (w *Worker) runner() {
	ended := false
	defer func() {
		if !ended && w.ledger.respawn() {
			go w.runner()
		}
	}()
	for {
		h := w.ledger.start(w.handlers)
		if h == nil {
			ended = true
			return
		}
		w.run(h)
	}
}

var errGoexit = errors.New("the handler ended its goroutine (runtime.Goexit, as t.FailNow does) instead of returning")

// run executes one job and hands its outcome on, whatever the handler does.
func (w *Worker) run(h *hold) {
	o := outcome{hold: h, err: errGoexit}
	defer func() {
		cause := context.Cause(h.ctx)
		w.ledger.returned(h)
		w.conclude(o, cause)
		w.ledger.free() // only now: a shutdown that sees no handler running flushes for the last time
	}()
	ctx := h.ctx
	if d := h.handler.timeout; d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d, timeoutError(d))
		defer cancel()
	}
	if h.handler.tx == nil {
		o.result, o.err = invoke(ctx, h, nil)
	} else {
		o.stored = true
		err := w.store.InTx(ctx, h.owner, func(tx any, finish func(engine.Success) error) error {
			result, err := invoke(ctx, h, tx)
			if err != nil {
				return err
			}
			o.verdict = true
			h.finishing.Store(true)
			return finish(h.success(result))
		})
		o.err = err
	}
	if timeout := context.Cause(ctx); o.err != nil && errors.Is(timeout, context.DeadlineExceeded) && context.Cause(h.ctx) == nil {
		o.err = fmt.Errorf("%w: %w", timeout, o.err)
	}
}

// timeoutError is the cause of a handler's context after its kind's timeout.
type timeoutError time.Duration

func (d timeoutError) Error() string        { return "timeout after " + time.Duration(d).String() }
func (d timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// invoke calls the handler and turns a panic into an error. So does a panic in the methods of the error it returns (a nil
// pointer of an error type has them), which would otherwise come in the loop that stores outcomes.
func invoke(ctx context.Context, h *hold, tx any) (result []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n\n%s", p, debug.Stack())
		}
	}()
	if result, err = h.handler.call(ctx, tx, &h.Claimed); err != nil {
		_ = h.failure(err)
	}
	return result, err
}

// success is what finishing h with result writes.
func (h *hold) success(result []byte) engine.Success {
	return engine.Success{Hold: h.name(), Record: h.handler.result || h.Key != "", Result: result, Keep: h.handler.keep}
}

// failure is what failing h with err writes.
func (h *hold) failure(err error) engine.Failure {
	f := engine.Failure{Hold: h.name(), Permanent: jobs.IsPermanent(err), Error: errorText(err)}
	if delay, ok := jobs.RetryDelay(err); ok {
		f.Delay = delay
	} else {
		f.Delay = h.handler.backoff.Delay(h.Attempt)
	}
	return f
}

// conclude decides what a returned handler means. cause is why its context had been cancelled before, if it had.
func (w *Worker) conclude(o outcome, cause error) {
	h := o.hold
	switch {
	case o.err == nil && o.stored:
		w.ledger.settle(h)
	case o.verdict && errors.Is(o.err, engine.ErrRecorded):
		// Another job did the key's work; what this one did is rolled back, and its row only has to go (G6).
		h.Recorded = true
		w.outcomes.put(outcome{hold: h})
	case !w.ledger.current(h) || o.verdict && errors.Is(o.err, engine.ErrLeaseLost):
		w.log.Warn("a handler's outcome came too late and changes nothing: its job was taken back", "job", h.ID, "kind", h.Kind, "attempt", h.Attempt)
		w.ledger.settle(h)
	case o.err != nil && errors.Is(cause, errShutdown):
		o.release = true
		w.outcomes.put(o)
	default:
		o.unsure = o.verdict && errors.Is(o.err, engine.ErrUnknown)
		w.outcomes.put(o)
	}
}
