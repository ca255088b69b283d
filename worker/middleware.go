package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

// with is r as a worker with this configuration runs it, and r itself if that changes nothing: jobs without middleware and
// retention pay nothing for them.
func (r *Registry) with(cfg *Config) *Registry {
	var work []jobs.Middleware
	for _, m := range cfg.Middleware {
		if m.Work != nil {
			work = append(work, m)
		}
	}
	if len(work) == 0 && len(cfg.Retain) == 0 {
		return r
	}
	changed := *r
	changed.handlers = make(map[string]*handler, len(r.handlers))
	for _, h := range r.kinds() {
		with := *h
		with.retain = cfg.Retain[h.kind]
		if len(work) > 0 {
			with.call = h.within(work)
		}
		for _, name := range append([]string{h.kind}, h.was...) {
			changed.handlers[name] = &with
		}
	}
	return &changed
}

var errPanicked = errors.New("the handler panicked")

// within is h's call with ms around it. What h and ms return together must be something that can be stored.
func (h *handler) within(ms []jobs.Middleware) func(context.Context, any, *engine.Claimed) ([]byte, error) {
	return func(ctx context.Context, tx any, c *engine.Claimed) (result []byte, err error) {
		var failure error // what the handler itself returned
		called := false
		err = jobs.AroundWork(ctx, ms, c, func(ctx context.Context) error {
			called, failure = true, errPanicked // until it returns
			result, failure = h.call(ctx, tx, c)
			return failure
		})
		if failure != nil {
			c.Then = nil // the follow-ups of a success of its own
		}
		switch {
		case err != nil:
			return nil, err
		case failure != nil && h.tx != nil:
			return nil, fmt.Errorf("a middleware returned nil in place of a transactional handler's error, so what it had written before would be committed: %w", failure)
		case h.result && failure != nil:
			return nil, fmt.Errorf("a middleware returned nil in place of the handler's error, but the kind has a result and there is none: %w", failure)
		case h.result && !called:
			return nil, errors.New("a middleware returned nil without calling the handler, but the kind has a result and there is none; return an error")
		}
		return result, nil
	}
}
