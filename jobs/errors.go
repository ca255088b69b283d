package jobs

import (
	"errors"
	"fmt"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
)

var (
	// ErrLeaseLost is the cause of a handler's cancelled context when its job was taken back from its worker (G4). What
	// the handler returns then changes nothing.
	ErrLeaseLost = engine.ErrLeaseLost
	// ErrNotMigrated means that the database has no jobgen tables, or an older form of them.
	ErrNotMigrated = engine.ErrNotMigrated
	// ErrNoRecord is Await's answer for a job of which nothing is on record: it succeeded and its kind keeps no record
	// (no key, no result), its record has expired, or there never was such a job.
	ErrNoRecord = errors.New("jobs: nothing is on record of this job")
	// ErrInTransaction is Await's answer to a transaction, which could never see the result.
	ErrInTransaction = errors.New("jobs: Await inside a transaction cannot see the result; commit, then pass the pool")
)

// InvalidError refuses something that was to be enqueued. Nothing was stored.
type InvalidError struct {
	Kind    string
	Field   string // the option or part of the payload that is wrong
	Problem string
	Err     error // the cause, if there is one
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("jobs: cannot enqueue %s: %s %s", e.Kind, e.Field, e.Problem)
}
func (e *InvalidError) Unwrap() error { return e.Err }

func invalid(kind, field, problem string) error {
	return &InvalidError{Kind: kind, Field: field, Problem: problem}
}

// DeadError is Await's answer for a job that is out of attempts. An operator may give it a fresh start.
type DeadError struct {
	Kind      string
	ID        int64
	Attempts  int
	LastError string
}

func (e *DeadError) Error() string {
	return fmt.Sprintf("jobs: %s job %d is dead after %d attempts: %s", e.Kind, e.ID, e.Attempts, e.LastError)
}

// Permanent is what a handler returns when trying again is pointless: the job is dead at once, with err on record.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanent{err}
}

type permanent struct{ err error }

func (e *permanent) Error() string { return e.err.Error() }
func (e *permanent) Unwrap() error { return e.err }

// IsPermanent tells whether err is, or wraps, what Permanent made.
func IsPermanent(err error) bool {
	var p *permanent
	return errors.As(err, &p)
}

// RetryIn is what a handler returns to choose the delay before the next attempt itself. The attempt counts as failed.
// A negative delay means now, one over a hundred years means a hundred years.
func RetryIn(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &retryIn{min(max(d, 0), maxDelay), err}
}

type retryIn struct {
	delay time.Duration
	err   error
}

func (e *retryIn) Error() string { return e.err.Error() }
func (e *retryIn) Unwrap() error { return e.err }

// RetryDelay is the delay that RetryIn put into err, if any.
func RetryDelay(err error) (time.Duration, bool) {
	var r *retryIn
	if errors.As(err, &r) {
		return r.delay, true
	}
	return 0, false
}
