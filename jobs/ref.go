package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// Ref points at a job; R is the type of its result. It can be awaited in another process through its id: see XRef in the
// emitted code.
type Ref[R any] struct {
	Kind string
	// ID is zero for what was enqueued on OnSuccess: there is no job yet.
	ID int64
	// Existing: the key was taken, so the call that gave this Ref enqueued nothing. Its job, or the recorded result, is
	// the one that was there.
	Existing bool
	// Replaced, with Existing: that job still waited, and has been given what this call asked for (Replace, Debounce).
	Replaced bool
	key      string
	was      *[]string // earlier names of the kind; a pointer, so that Refs can be compared
}

// RefTo makes a Ref from a stored id.
func RefTo[P, R any](s *Spec[P, R], id int64) Ref[R] {
	return Ref[R]{Kind: s.Kind, ID: id, was: &s.Was}
}

// kinds are the kind and its earlier names.
func (r Ref[R]) kinds() []string {
	kinds := []string{r.Kind}
	if r.was != nil {
		kinds = append(kinds, *r.was...)
	}
	return kinds
}

// How often Await looks: from the first to the last, growing by half each time.
const (
	awaitFirst = 5 * time.Millisecond
	awaitLast  = 250 * time.Millisecond
)

// Await waits until the job has ended and gives its result; for a kind without one, the zero None. A dead job is a
// *DeadError, a cancelled one a *CancelledError for as long as it is on record (30 days). A job of which nothing is on record
// is ErrNoRecord, and so is one that succeeded but whose result has expired: so Await is for kinds with a key, a result or
// retention (worker.Config.Retain), and for jobs whose enqueueing has committed. It returns ctx's error when ctx ends first.
func (r Ref[R]) Await(ctx context.Context, db DB) (R, error) {
	var result R
	db, _ = unwrap(db)
	if open, err := postgres.InTransaction(ctx, db); open {
		return result, ErrInTransaction
	} else if err != nil {
		return result, fmt.Errorf("await %s job %d: %w", r.Kind, r.ID, err)
	}
	if r.ID == 0 && r.key == "" {
		return result, fmt.Errorf("await %s: %w", r.Kind, ErrNotStored)
	}
	kinds := r.kinds()
	wait := awaitFirst
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		state, err := producer(db).State(ctx, kinds, r.ID, r.key)
		switch {
		case err != nil:
			return result, fmt.Errorf("await %s job %d: %w", r.Kind, r.ID, err)
		case state.Finished && len(state.Result) > 0:
			if err := json.Unmarshal(state.Result, &result); err != nil {
				return result, fmt.Errorf("jobs: result of %s job %d does not decode into %T: %w", r.Kind, r.ID, result, err)
			}
			return result, nil
		case state.Finished:
			return result, nil
		case state.Status == "dead":
			return result, &DeadError{Kind: r.Kind, ID: r.ID, Attempts: state.Attempt, LastError: state.LastError}
		case state.Status == engine.StatusCancelled:
			return result, &CancelledError{Kind: r.Kind, ID: r.ID, Reason: state.Reason}
		case state.Status == engine.StatusSucceeded:
			if _, none := any(result).(None); !none {
				return result, fmt.Errorf("%w but that it succeeded: its result has expired (%s job %d)", ErrNoRecord, r.Kind, r.ID)
			}
			return result, nil
		case state.Status == "":
			return result, fmt.Errorf("%w (%s job %d)", ErrNoRecord, r.Kind, r.ID)
		}
		select {
		case <-ctx.Done():
			return result, context.Cause(ctx)
		case <-timer.C:
			wait = min(wait+wait/2, awaitLast)
			timer.Reset(wait)
		}
	}
}
