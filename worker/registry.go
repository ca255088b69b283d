package worker

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/jobgen-go/jobgen/internal/cron"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/storable"
	"github.com/jobgen-go/jobgen/jobs"
)

// Registry collects the handlers of a worker, as a rule through the emitted Register. Mistakes are kept and returned by
// New, all at once. The zero value is empty and ready to use; it must not change after New.
type Registry struct {
	handlers map[string]*handler // by every name of their kind
	packages map[*jobs.Package]bool
	errs     []error
}

// handler is a kind with what runs it, its types erased.
type handler struct {
	kind      string   // its name,
	was       []string // and earlier ones
	queue     string
	version   int
	insert    engine.Insert // of a job that a schedule enqueues
	schedules []jobs.Schedule
	zero      func() ([]byte, error) // the payload of such a job
	timeout   time.Duration
	backoff   jobs.Backoff
	keep      time.Duration
	retain    time.Duration // how long a success stays in the archive; 0: it does not
	result    bool          // the kind has a result, so each success leaves a record
	tx        reflect.Type  // of the transaction it wants; nil: none
	lock      bool          // owned by lock
	call      func(ctx context.Context, tx any, c *engine.Claimed) (result []byte, err error)
}

// Handle registers fn for a kind with a result. The handler runs in a goroutine of its own, under a context that ends at
// the kind's timeout, at the job's deadline (cause jobs.ErrDeadline), when the job is cancelled (jobs.ErrCancelled) or taken
// back from this worker (jobs.ErrLeaseLost), and when a shutdown's grace is over. What it returns decides how the job ends:
// see docs/runtime/outcomes.md. Its effects outside the database happen at least once: see jobs.Info.Key.
func Handle[P, R any](r *Registry, s *jobs.Spec[P, R], fn func(context.Context, *jobs.Job[P]) (R, error)) {
	add(r, s, nil, fn == nil, func(ctx context.Context, _ any, j *jobs.Job[P]) (R, error) { return fn(ctx, j) })
}

// HandleNone is Handle for a kind without a result.
func HandleNone[P any](r *Registry, s *jobs.Spec[P, jobs.None], fn func(context.Context, *jobs.Job[P]) error) {
	add(r, s, nil, fn == nil, func(ctx context.Context, _ any, j *jobs.Job[P]) (jobs.None, error) { return jobs.None{}, fn(ctx, j) })
}

// HandleTx registers fn for a transactional kind: what it does in the transaction, the result and the job's completion
// commit together or not at all (G5). fn returns nil or an error and leaves the end of the
// transaction to the worker: Commit and Rollback are refused, and ending it by SQL (COMMIT, ROLLBACK AND CHAIN) fails the
// attempt, though what was committed by it stands. If the answer to COMMIT is lost, the worker looks up what happened. T is the transaction
// type of the database, pgx.Tx for Postgres. The transaction is READ COMMITTED and comes from the pool given to New, so no
// more such handlers run at once than it has connections; the others wait for one within their timeout. A handler that
// takes further connections from the same pool can make all of them wait for ever: it should use its transaction only.
func HandleTx[T, P, R any](r *Registry, s *jobs.Spec[P, R], fn func(context.Context, T, *jobs.Job[P]) (R, error)) {
	add(r, s, reflect.TypeFor[T](), fn == nil, func(ctx context.Context, tx any, j *jobs.Job[P]) (R, error) { return fn(ctx, tx.(T), j) })
}

// HandleTxNone is HandleTx for a kind without a result.
func HandleTxNone[T, P any](r *Registry, s *jobs.Spec[P, jobs.None], fn func(context.Context, T, *jobs.Job[P]) error) {
	add(r, s, reflect.TypeFor[T](), fn == nil, func(ctx context.Context, tx any, j *jobs.Job[P]) (jobs.None, error) {
		return jobs.None{}, fn(ctx, tx.(T), j)
	})
}

func add[P, R any](r *Registry, s *jobs.Spec[P, R], tx reflect.Type, missing bool, fn func(context.Context, any, *jobs.Job[P]) (R, error)) {
	if missing {
		r.errs = append(r.errs, fmt.Errorf("worker: the handler of %q is nil; give Handle a function", s.Kind))
	}
	h := &handler{
		kind: s.Kind, was: s.Was, queue: s.Queue, schedules: s.Schedules, version: max(s.Version, 1), timeout: s.Timeout, backoff: s.Backoff, keep: s.KeepResult,
		result: reflect.TypeFor[R]() != reflect.TypeFor[jobs.None](), tx: tx, lock: s.Lock,
	}
	if s.Lock && tx == nil {
		r.errs = append(r.errs, fmt.Errorf("worker: kind %q is owned by lock, and its handler takes no transaction; register it with HandleTx", s.Kind))
	}
	if h.keep <= 0 {
		h.keep = jobs.DefaultKeepResult
	}
	h.call = func(ctx context.Context, tx any, c *engine.Claimed) ([]byte, error) {
		j, err := jobs.Decode(s, c)
		if err != nil {
			return nil, err
		}
		defer jobs.End(&j.Info, c)
		result, err := fn(ctx, tx, j)
		if err != nil || !h.result {
			return nil, err
		}
		b, err := storable.JSON(result, jobs.MaxPayload)
		if err != nil {
			// The effects have happened, or would be rolled back each time: trying again cannot help.
			return nil, jobs.Permanent(fmt.Errorf("the handler succeeded, but its result cannot be stored: %w", err))
		}
		return b, nil
	}
	var err error
	if h.insert, err = jobs.Scheduled(s); err != nil {
		r.errs = append(r.errs, err)
	}
	h.zero = func() ([]byte, error) {
		var p P
		return storable.JSON(p, jobs.MaxPayload)
	}
	if n := h.version - 1; len(s.Upgrade) != n {
		r.errs = append(r.errs, fmt.Errorf("worker: kind %q has version %d and %d upgrade functions; it needs %d, one for each older version", s.Kind, h.version, len(s.Upgrade), n))
	}
	if len(s.Schedules) > 0 && s.Key != nil {
		r.errs = append(r.errs, fmt.Errorf("worker: kind %q has a key and a schedule; each tick would have the same key", s.Kind))
	}
	if r.handlers == nil {
		r.handlers, r.packages = map[string]*handler{}, map[*jobs.Package]bool{}
	}
	for _, name := range append([]string{s.Kind}, s.Was...) {
		if _, dup := r.handlers[name]; dup {
			r.errs = append(r.errs, fmt.Errorf("worker: kind %q has two handlers; remove one Handle or Register call", name))
			continue
		}
		r.handlers[name] = h
	}
	if s.Package != nil {
		r.packages[s.Package] = true
	}
}

// kinds are the registered handlers, each once.
func (r *Registry) kinds() (hs []*handler) {
	for name, h := range r.handlers {
		if name == h.kind {
			hs = append(hs, h)
		}
	}
	return hs
}

// check finds what is wrong with the handlers for a database with transactions of type tx and a worker of these queues.
// A queue in which jobs would wait for a handler that this program forgot is refused: one that a registered package
// declares a kind for, without a handler here. What lies in the database is not asked (G13).
func (r *Registry) check(tx reflect.Type, queues []string) (errs []error) {
	for _, h := range r.kinds() {
		if h.tx != nil && h.tx != tx {
			errs = append(errs, fmt.Errorf("worker: the handler of %q wants a %s; this database gives a %s", h.kind, h.tx, tx))
		}
		names := map[string]bool{}
		for _, s := range h.schedules {
			switch _, err := cron.Parse(s.Cron, s.Zone); {
			case err != nil:
				errs = append(errs, fmt.Errorf("worker: schedule %q of kind %q: %w", s.Name, h.kind, err))
			case s.Name == "" || len(s.Name) > jobs.MaxName || names[s.Name]:
				errs = append(errs, fmt.Errorf("worker: a schedule of kind %q has the name %q; it must have 1 to %d bytes and be unique in its kind", h.kind, s.Name, jobs.MaxName))
			case s.Missed != jobs.MissedOnce && s.Missed != jobs.MissedSkip && s.Missed != jobs.MissedAll:
				errs = append(errs, fmt.Errorf("worker: schedule %q of kind %q has the policy %q for missed ticks; use jobs.MissedOnce, MissedSkip or MissedAll", s.Name, h.kind, s.Missed))
			}
			names[s.Name] = true
		}
	}
	for p := range r.packages {
		for _, d := range p.Kinds {
			if r.handlers[d.Kind] == nil && slices.Contains(queues, d.Queue) {
				errs = append(errs, fmt.Errorf("worker: package %s declares %q for the queue %q, which this worker polls, and no handler is registered for it; use the emitted Register, or leave the queue out of Config.Queues", p.Name, d.Kind, d.Queue))
			}
		}
	}
	return errs
}

// any tells whether there is such a handler.
func (r *Registry) any(is func(*handler) bool) bool {
	for _, h := range r.handlers {
		if is(h) {
			return true
		}
	}
	return false
}

// transactional tells whether any handler wants a transaction when it starts; those of jobs owned by lock start with one.
func (r *Registry) transactional() bool {
	return r.any(func(h *handler) bool { return h.tx != nil && !h.lock })
}

func (r *Registry) locking() bool { return r.any(func(h *handler) bool { return h.lock }) }
func (r *Registry) leasing() bool { return r.any(func(h *handler) bool { return !h.lock }) }

// Check refuses a nil value, and a struct in which an embedded interface is nil: its methods exist, so it compiles, and
// panic when they are called. The emitted Register calls it first and registers nothing if it returns false.
func (r *Registry) Check(handlers any) bool {
	if where := findNil(reflect.ValueOf(handlers)); where != "" {
		r.errs = append(r.errs, fmt.Errorf("worker: Register: %s is nil; give it a value that has the handlers", where))
		return false
	}
	return true
}

// findNil follows pointers and embedded fields, which is where promoted methods come from.
func findNil(v reflect.Value) string {
	if !v.IsValid() {
		return "the value"
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return v.Type().String()
		}
		return findNil(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.Anonymous {
				continue
			}
			if k := f.Type.Kind(); (k == reflect.Interface || k == reflect.Pointer) && f.Type.NumMethod() > 0 || k == reflect.Struct {
				if where := findNil(v.Field(i)); where != "" {
					return fmt.Sprintf("%s in %s", where, v.Type())
				}
			}
		}
	}
	return ""
}
