package jobs

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// Middleware is wrapped around enqueueing (Producer.Middleware) and around handlers (worker.Config.Middleware). Either
// part may be nil. Of several, the first is the outermost. Both parts are called by many goroutines at once.
//
// A part does its work by calling next, once, with the context it was given or one derived from it: what it puts into the
// context is seen further in. A second call is refused with an error, and so is one after the part has returned. The
// part's own error is what counts: it may pass on what next returned, or another.
type Middleware struct {
	// Enqueue is wrapped around one call of Enqueue, or of EnqueueMany with all its payloads. What is wrong with the kind or
	// an option is refused before. An error before next means that nothing is enqueued; one after next does not undo what
	// next has stored: only a transaction does. The failure of next cannot be turned into nil, nor can next be left out
	// without an error: there would be no Ref to return. A panic goes to the caller.
	Enqueue func(ctx context.Context, e *Enqueueing, next func(context.Context) error) error

	// Work is wrapped around one attempt: the decoding of the payload and the handler, under the kind's timeout. A panic
	// further in comes back from next as a *PanicError; one of Work itself fails the attempt as one of the handler does.
	// After runtime.Goexit, deferred functions run, and nothing else. What next returned as an error is the attempt's
	// failure unless Work returns another; Permanent, RetryIn and Snooze mean what they mean in a handler. Nil means success, also in
	// place of an error, or if next was not called, with two exceptions: a kind with a result then lacks one, and what a
	// transactional handler had written before its error would be committed; there the attempt fails. An error in place of
	// nil fails the attempt, and rolls back a transaction. Follow-ups (Info.OnSuccess) of a handler that has failed are dropped
	// in any case; job.OnSuccess itself is for the handler.
	Work func(ctx context.Context, job *Info, next func(context.Context) error) error
}

// Enqueueing is what is about to be enqueued, as an Enqueue middleware sees it. Only Headers may be changed.
type Enqueueing struct {
	Kind, Queue           string
	Priority, MaxAttempts int
	// Count is how many payloads the call has, at least 1. (EnqueueMany without any does nothing, and calls nothing.)
	Count int
	// In, At, Within and Deadline are the options of these names; zero means now, or no deadline.
	In, Within   time.Duration
	At, Deadline time.Time
	// Headers are stored with each of the jobs: at first those of the option Headers, never nil. A middleware adds,
	// replaces or deletes some before it calls next, so the innermost has the last word. They are checked as the option's
	// are: not more than MaxHeaders bytes as JSON, no name that begins with "jobgen.".
	Headers map[string]string
	// Enqueued are the jobs, in the order of the payloads; empty until next has returned nil.
	Enqueued []Enqueued
}

// Enqueued is one job of an Enqueueing: its Ref without the type of its result.
type Enqueued struct {
	Kind     string // an earlier name of the kind, if the key was taken under it
	ID       int64  // 0 for a follow-up: see Info.OnSuccess
	Existing bool
}

// PanicError is a panic of a handler or a middleware.
type PanicError struct {
	Value any    // what was passed to panic
	Stack []byte // of the goroutine that panicked
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// recovered turns the value of recover into an error. It is to be called by the deferred function that has recovered it.
func recovered(p any) error { return &PanicError{p, debug.Stack()} }

var (
	errNext    = errors.New("jobs: next was called a second time, or after its middleware had returned; nothing was done")
	errSkipped = errors.New("jobs: a middleware returned nil without calling next, so nothing was enqueued; return an error")
)

// layer is one call of a middleware.
type layer struct {
	mu      sync.Mutex
	over    bool           // next was called, or the middleware has returned
	running sync.WaitGroup // next, in whatever goroutine
}

// call calls a middleware with a next that calls inner. It returns when both have: a middleware that gives up on next and
// leaves it to a goroutine must not end an attempt whose handler is still using its transaction.
func (l *layer) call(middleware func(next func(context.Context) error) error, inner func(context.Context) error) error {
	defer func() {
		l.enter()
		l.running.Wait()
	}()
	return middleware(func(ctx context.Context) error {
		if !l.enter() {
			return errNext
		}
		l.running.Add(1)
		defer l.running.Done()
		return inner(ctx)
	})
}

// enter tells whether it is the first to.
func (l *layer) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := !l.over
	l.over = true
	return first
}

// AroundWork calls handle within the Work parts of ms. It is for package worker; nothing outside this module can call it.
func AroundWork(ctx context.Context, ms []Middleware, c *engine.Claimed, handle func(context.Context) error) error {
	var job Info
	_ = job.read(c) // headers that do not decode fail the attempt further in
	return aroundWork(ctx, ms, &job, handle)
}

func aroundWork(ctx context.Context, ms []Middleware, job *Info, handle func(context.Context) error) error {
	for i, m := range ms {
		if m.Work == nil {
			continue
		}
		var l layer
		return l.call(
			func(next func(context.Context) error) error { return m.Work(ctx, job, next) },
			func(ctx context.Context) (err error) {
				defer func() {
					if p := recover(); p != nil {
						err = recovered(p)
					}
				}()
				return aroundWork(ctx, ms[i+1:], job, handle)
			})
	}
	return handle(ctx)
}

func aroundEnqueue(ctx context.Context, ms []Middleware, e *Enqueueing, store func(context.Context) error) error {
	for i, m := range ms {
		if m.Enqueue == nil {
			continue
		}
		var l layer
		return l.call(
			func(next func(context.Context) error) error { return m.Enqueue(ctx, e, next) },
			func(ctx context.Context) error { return aroundEnqueue(ctx, ms[i+1:], e, store) })
	}
	return store(ctx)
}

// enqueueWithin is enqueue within ms.
func enqueueWithin[P, R any](ctx context.Context, ms []Middleware, db DB, limit int, s *Spec[P, R], payloads []P, o options) ([]Ref[R], error) {
	e := &Enqueueing{
		Kind: o.Kind, Queue: o.Queue, Priority: o.Priority, MaxAttempts: o.MaxAttempts, Count: len(payloads),
		In: o.In, At: o.At, Within: o.Within, Deadline: o.Insert.Deadline,
		Headers: make(map[string]string, len(o.headers)+2), // room for a trace context
	}
	for name, value := range o.headers {
		e.Headers[name] = value
	}
	var refs []Ref[R]
	stored := errSkipped
	err := aroundEnqueue(ctx, ms, e, func(ctx context.Context) error {
		o.headers = e.Headers
		if stored = o.encodeHeaders(); stored != nil {
			return stored
		}
		if refs, stored = store(ctx, db, limit, s, payloads, &o); stored != nil {
			return stored
		}
		for _, r := range refs {
			e.Enqueued = append(e.Enqueued, Enqueued{Kind: r.Kind, ID: r.ID, Existing: r.Existing})
		}
		return nil
	})
	if err == nil {
		err = stored
	}
	if err != nil {
		return nil, err
	}
	return refs, nil
}
