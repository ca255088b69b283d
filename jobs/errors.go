package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
)

var (
	// ErrLeaseLost is the cause of a handler's cancelled context when its job was taken back from its worker (G4). What
	// the handler returns then changes nothing.
	ErrLeaseLost = engine.ErrLeaseLost
	// ErrCancelled is the cause of a handler's cancelled context when somebody cancelled its job (Cancel). If the handler then
	// returns an error, whichever, the job ends cancelled; if it succeeds, the job has succeeded.
	ErrCancelled = errors.New("jobs: the job was cancelled")
	// ErrDeadline is the cause of a handler's context that ended at its job's deadline (Within, Deadline). It matches
	// context.DeadlineExceeded, as does the cause of one that ended at its kind's timeout; that one is not ErrDeadline.
	ErrDeadline error = deadlineError{}
	// ErrNotMigrated means that the database has no jobgen tables, or an older form of them.
	ErrNotMigrated = engine.ErrNotMigrated
	// ErrUnknown means that the connection was lost before the database's answer came, so that what was asked for may have
	// taken effect: outside a transaction, the job may have been enqueued. Enqueued again, one with a key is found (the Ref says
	// Existing); one without is a second job. Within a transaction of the caller's nothing is in doubt: it is rolled back,
	// unless it was its COMMIT, which the caller sends, that was not answered. errors.As still finds the driver's error.
	ErrUnknown = engine.ErrUnknown
	// ErrNoRecord is Await's answer for a job of which nothing is on record: it succeeded and its kind keeps no record
	// (no key, no result, no retention), its record has expired, it was dead for longer than worker.Config.KeepDead, or there
	// never was such a job.
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

type deadlineError struct{}

func (deadlineError) Error() string        { return "the job's deadline has passed" }
func (deadlineError) Is(target error) bool { return target == context.DeadlineExceeded }

// CancelledError is Await's answer for a job that was cancelled, or whose deadline passed before it could succeed.
type CancelledError struct {
	Kind   string
	ID     int64
	Reason string // "": none was given
}

func (e *CancelledError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("jobs: %s job %d was cancelled", e.Kind, e.ID)
	}
	return fmt.Sprintf("jobs: %s job %d was cancelled: %s", e.Kind, e.ID, e.Reason)
}

// Permanent is what a handler returns when trying again is pointless: the job is dead at once, with err on record. Without
// an error there is none to be permanent about: Permanent(nil) is nil, a success. Wrapped or joined it means the same, and
// more than Snooze or RetryIn beside it.
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
// A negative delay means now, one over a hundred years means a hundred years. RetryIn(d, nil) is nil, a success. Wrapped or
// joined it means the same; of two, the first counts.
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

// MaxSnoozes is how often a job can be put off by Snooze. Each further time counts as a failed attempt, so that a job that is
// never ready ends dead.
const MaxSnoozes = engine.MaxSnoozes

// Snooze is what a handler returns when it is too early for its job: it is put off for d and the attempt is not spent. A
// handler that does it more than MaxSnoozes times fails with each further one. Zero or a negative d means at once, after
// what waits already; one over a hundred years means a hundred years. A transactional handler's work is rolled back, as with
// any error. Wrapped or joined it means the same, and more than RetryIn beside it. It is no failure: the worker logs it at
// level Debug only, and job_attempt has it with the error's text.
func Snooze(d time.Duration) error { return &snooze{min(max(d, 0), maxDelay)} }

type snooze struct{ delay time.Duration }

func (e *snooze) Error() string { return "put off for " + e.delay.String() }

// SnoozeDelay is the delay that Snooze put into err, if any.
func SnoozeDelay(err error) (time.Duration, bool) {
	var s *snooze
	if errors.As(err, &s) {
		return s.delay, true
	}
	return 0, false
}
