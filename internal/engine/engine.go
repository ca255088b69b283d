// Package engine holds what jobs, worker and every database engine share: plain rows and the interfaces of the
// life-cycle steps. It imports no driver and nothing of this module.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"time"

	"github.com/google/uuid"
)

var (
	ErrLeaseLost   = errors.New("jobgen: lease lost: the job was taken back from this worker")
	ErrNotMigrated = errors.New("jobgen: the database has no jobgen tables, or an older form of them: run jobs.Migrate or `jobctl migrate up`")
	// ErrLocked: somebody else has a row of the statement locked, and it did not wait for long.
	ErrLocked = errors.New("jobgen: locked by another session")
	// ErrDamaged: the database reports an internal error or damaged data, as a rule of one row.
	ErrDamaged = errors.New("jobgen: internal error of the database, or damaged data")
	// ErrNotBegun: no transaction could be opened for a handler, which was not called.
	ErrNotBegun = errors.New("jobgen: no transaction for the handler")
	// ErrUnknown: the connection ended before the answer came, so the statement may have taken effect.
	ErrUnknown = errors.New("jobgen: outcome unknown")
	// ErrDeaf: no notification ever arrives by this connection.
	ErrDeaf = errors.New("jobgen: the database is behind a pooler in transaction mode, which passes no notifications on")
)

// DoubtError is ErrUnknown of a COMMIT, with what it takes to look it up by Fates.
type DoubtError struct {
	Xact int64 // the transaction's id, with its epoch
	Err  error
}

func (e *DoubtError) Error() string   { return "the answer to COMMIT was lost: " + e.Err.Error() }
func (e *DoubtError) Unwrap() []error { return []error{ErrUnknown, e.Err} }

// ErrRecorded: the key's result is on record already, of another job.
var ErrRecorded = errors.New("jobgen: the key's work is already done, by another job")

// ValueError is the database's refusal of a value in a statement, as opposed to its being away or busy. The same
// statement fails again; without that value it would not.
type ValueError struct{ Err error }

func (e *ValueError) Error() string { return e.Err.Error() }
func (e *ValueError) Unwrap() error { return e.Err }

// Insert is what the jobs of one enqueue have in common.
type Insert struct {
	Queue, Kind string
	Version     int
	Priority    int
	MaxAttempts int
	Was         []string      // earlier names of the kind: a key that is taken under one of them is taken
	At          time.Time     // zero: now
	In          time.Duration // from now, by the database's clock; the later of the two counts
	Deadline    time.Time     // zero: none
	Within      time.Duration // zero: none; a deadline from now, by the database's clock; the earlier of the two counts
	Headers     []byte        // a JSON object, or nil
	// Replace: the job of a taken key gets the new content if it still waits. Debounce, with Replace: it then runs In from
	// now, but at most Most after it was first enqueued, and if it does not wait any more a new job gets the key.
	Replace, Debounce bool
	Most              time.Duration
}

// Element is what each job of an enqueue has of its own.
type Element struct {
	Key     string // "": none
	Payload []byte
}

// Inserted answers for one Element. Existing: this call enqueued nothing, the key's job or result was there already.
type Inserted struct {
	ID       int64
	Kind     string // the one asked for, or an earlier name of it
	Existing bool
	Replaced bool // with Existing: the job that was there waited, and has the new content
}

// State is what is known of a job: its status while it is in jobs, its result once there is one.
type State struct {
	Status    string // "": not in jobs, nor cancelled, nor in the archive
	Finished  bool   // a result is on record
	Result    []byte // nil: finished without a value
	Attempt   int
	LastError string
	Reason    string // of a job that was cancelled
}

// Answers to Producer.Cancel, beside StatusFinished.
const (
	StatusCancelled = "cancelled" // also the State of such a job
	StatusSucceeded = "succeeded" // only the State of a job that stays on record, and of which there is no result
	StatusAsked     = "asked"
	StatusFinished  = "finished"
	StatusAlready   = "already cancelled"
)

const (
	// KeepCancelled is how long a cancelled job stays on record, unless the worker that ended it says otherwise.
	KeepCancelled = 30 * 24 * time.Hour
	// KeepSchedules is how long a schedule is kept of which nobody enqueues the ticks any more.
	KeepSchedules = 90 * 24 * time.Hour
	// MaxSnoozes is how often a handler can put its job off; after that, each time is a failed attempt.
	MaxSnoozes = 1000
)

// Producer is what an application's connection can do.
type Producer interface {
	// Enqueue inserts all or none, in one statement as a rule, and answers in the order given.
	Enqueue(ctx context.Context, in Insert, elements []Element) ([]Inserted, error)
	// State reads by kind and key if there is a key, else by the id of a job of any of the kinds.
	State(ctx context.Context, kinds []string, id int64, key string) (State, error)
	// Cancel ends a job that waits or is dead, and asks the worker of one that runs. Without kinds, whatever its kind. The
	// answer is one of the constants, or "" if nothing is on record; ErrLocked: somebody else keeps the row locked.
	Cancel(ctx context.Context, kinds []string, id int64, reason string) (string, error)
}

// Claimed is a job as a claim gives it.
type Claimed struct {
	ID, Fence            int64
	Queue, Kind, Key     string
	Version, Priority    int
	Attempt, MaxAttempts int
	Crashes              int
	Recorded             bool // the key's result is on record already, or the key a newer job's: there is nothing to do
	RunAt                time.Time
	Deadline             *time.Time    // nil: none
	Left                 time.Duration // from the claim to the deadline, by the database's clock
	Cancel               *string       // why it is to end without running; nil: it is not
	Waited               time.Duration // since RunAt, when it was claimed
	Payload, Headers     []byte
	Then                 []FollowUp // what its handler, once it has returned, wants enqueued if it succeeded
}

// Hold is what a process has of a job after a claim.
type Hold struct{ ID, Fence int64 }

// Success is a hold whose handler succeeded. Record: write a job_result row, which lives for Keep; Kind and Key are for finding out
// why there is none. Unkeyed: the job has no key, so the row is new. Retain: the job stays in job_archive for so long; 0: it is gone.
type Success struct {
	Hold
	Kind, Key       string
	Record, Unkeyed bool
	Result          []byte // JSON; nil: none
	Keep, Retain    time.Duration
	Then            []FollowUp // enqueued in the transaction that completes the hold, and only if that finds it
}

// FollowUp is an enqueue that waits for a job to succeed.
type FollowUp struct {
	Insert
	Elements []Element
}

// Failure is a hold whose attempt failed.
type Failure struct {
	Hold
	Delay     time.Duration // until the next attempt
	Permanent bool          // dead, whatever attempts are left
	Snooze    bool          // put off: the attempt is not spent, unless that has been done MaxSnoozes times
	Error     string
}

// InDoubt is a job whose transaction was finishing it, and had its row locked, when the answer to COMMIT was lost. Xact is
// the transaction's id; 0: not known.
type InDoubt struct {
	Hold
	Xact int64
}

// Fate is what became of a transaction that finished a job.
type Fate int

const (
	Undecided  Fate = iota // it has not ended: ask again
	Committed              // the job is finished
	RolledBack             // the job is as it was before
	Taken                  // rolled back, and the job is not the worker's any more
)

// Failed answers for one Failure that was a current hold.
type Failed struct {
	ID      int64
	Dead    bool
	Snoozed bool
}

// Keep is how long things stay on record that carry no time of their own to go.
type Keep struct {
	Attempts, Samples time.Duration
	Cancelled         time.Duration // of a job that the purge itself cancels
	Dead              time.Duration // 0: for ever
}

// Purged is what a purge has removed that is worth a line, and whether there is more.
type Purged struct {
	More      bool
	Dead      map[string]int64 // dead jobs, by kind
	Schedules []Schedule       // Kind and Name only
}

// Cancelled is a hold that is to end because somebody has asked for it or for its deadline.
type Cancelled struct {
	Hold
	Started bool   // its handler was called
	Error   string // what the handler returned
}

// Mark is how far a worker has looked into one range of a queue.
type Mark struct {
	Queue    string
	Priority int
	At       time.Time
	ID       int64
	Limit    int // of what a claim takes from the range; 0: none but the claim's own
}

// Before tells whether m lies to the left of n in one range.
func (m Mark) Before(n Mark) bool { return m.At.Before(n.At) || m.At.Equal(n.At) && m.ID < n.ID }

// Raise moves m to the right, up to n; never to the left.
func (m *Mark) Raise(n Mark) {
	if m.Before(n) {
		m.At, m.ID = n.At, n.ID
	}
}

// Kind is a kind a worker handles, the newest payload version of it that it can read, and when its handler's context ends.
type Kind struct {
	Name    string
	Version int
	Timeout time.Duration // 0: never
}

// Schedule is a durable cron of a kind. Missed is once, skip or all.
type Schedule struct {
	Kind, Name, Cron, Zone, Missed string
	NextAt                         time.Time
	Job                            Insert // what a tick enqueues; only for Declare, as is Payload
	Payload                        []byte
}

// Worker is a process as the database knows it.
type Worker struct {
	ID     uuid.UUID
	Host   string
	PID    int
	Build  string
	Queues []string
	Kinds  []Kind // held by lease
	Locks  []Kind // owned by lock
	Slots  int    // at the start
}

// Load is how busy a worker is.
type Load struct {
	Slots   int // handlers at once
	Running int // how many run
	Stuck   int // of these, how many ignore their ended context
}

// Beat is the answer to a heartbeat.
type Beat struct {
	Renewed bool
	Now     time.Time // the database's clock
	Gone    []int64   // ids of the holds named that are no longer this worker's
}

// Signs tell whether there may be something for a worker to do, or to learn.
type Signs struct {
	Fleet    int  // workers whose lease stands
	Lost     bool // a lease has run out, or a worker that was lost a short while ago still holds something: MarkLost and Reclaim
	Suspects bool // one is due, somewhere: SuspectWaiting
	Asked    bool // something has been decided about some queue, or some job is to be stopped: Control
}

// Control is what is asked of a worker from outside while it runs.
type Control struct {
	Queues  []Queue  // those of its queues about which something has been decided
	Cancels []Cancel // jobs it runs that are to be stopped
}

// Queue is what has been decided about a queue.
type Queue struct {
	Name   string
	Paused bool
	Weight int // 0: what the program says
	Slots  int // handlers at once in each process; 0: what the program says
}

// Decision is what is to be decided about a queue; nil leaves it as it is.
type Decision struct {
	Paused        *bool
	Weight, Slots *int // 0: what the program says
}

// Cancel is the wish to stop a running job, or a job that has ended so.
type Cancel struct {
	ID     int64
	Reason string
}

// Lost is a worker that has just been marked lost.
type Lost struct {
	ID       uuid.UUID
	Host     string
	PID      int
	LastBeat time.Time
}

// Reclaimed is a job taken back from a lost worker.
type Reclaimed struct {
	ID          int64
	Queue, Kind string
	Attempt     int
	Crashes     int
	Worker      uuid.UUID
	Dead        bool
}

// Store is what a worker needs of a database: one method for each step of a job's life.
type Store interface {
	// Check tells whether the database is there, migrated and writable.
	Check(ctx context.Context) error
	Register(ctx context.Context, w Worker, lease time.Duration) error
	// Leave removes the worker if it holds nothing any more; otherwise marks it lost, so that the rest is taken back.
	Leave(ctx context.Context, id uuid.UUID) error
	Heartbeat(ctx context.Context, id uuid.UUID, lease time.Duration, load Load, holds []Hold) (Beat, error)

	// Claim takes up to n jobs from the marks on, in the order of the marks, and tells the database's time if it took any. It
	// forgets the claims with the fences of spent, of which the worker holds nothing any more: the jobs of a forgotten claim
	// are not found if their worker is lost.
	Claim(ctx context.Context, w *Worker, marks []Mark, spent []int64, sweep bool, n int) ([]Claimed, time.Time, error)
	// Held lists what the database says this worker holds, and the fences of claims of which it holds nothing any more.
	Held(ctx context.Context, id uuid.UUID) (held []Hold, spent []int64, err error)
	SuspectWaiting(ctx context.Context, w *Worker) (bool, error)
	ClaimSuspect(ctx context.Context, w *Worker) ([]Claimed, error)
	// NextDue tells how long until a job is due, of whatever kind, at most within: from the marks on, 0 if one is already; or
	// with later, of those that are not due yet.
	NextDue(ctx context.Context, marks []Mark, later bool, within time.Duration) (time.Duration, error)

	// Complete, Fail, Release and Cancel take current holds only and answer with those that were. Complete takes successes that
	// all have follow-ups, or that have none and all have Retain, or have neither and are alike in Record. What Fail and Release do not answer for may have been
	// asked to end, or have no time left: Cancel ends it, and tells why.
	Complete(ctx context.Context, id uuid.UUID, done []Success) ([]int64, error)
	Fail(ctx context.Context, id uuid.UUID, failed []Failure) ([]Failed, error)
	Release(ctx context.Context, id uuid.UUID, holds []Hold) ([]int64, error)
	Cancel(ctx context.Context, id uuid.UUID, holds []Cancelled, keep time.Duration) ([]Cancel, error)
	// Fates tells, in the order of doubts, what became of transactions of which the answer to COMMIT was lost. id is the
	// worker that the job's row named before; uuid.Nil: none (the row was queued, with fence 0).
	Fates(ctx context.Context, id uuid.UUID, doubts []InDoubt) ([]Fate, error)

	// NoteUnclaimed makes sure that Reclaim would find the next n jobs above an id, should they run, and tells how far it got; 0: to
	// the end.
	NoteUnclaimed(ctx context.Context, after int64, n int) (int64, error)
	// MarkLost judges the workers whose lease has run out; Reclaim takes back what lost workers hold, at most n.
	MarkLost(ctx context.Context) ([]Lost, error)
	Reclaim(ctx context.Context, n, maxCrashes int, backoff time.Duration, orphans bool) ([]Reclaimed, error)
	// Purge removes some of what has expired.
	Purge(ctx context.Context, keep Keep) (Purged, error)

	// Sample adds what this process has counted to the minute that it was so long ago, and tells how far ids had come. ErrUnknown: it
	// may have been added.
	Sample(ctx context.Context, counts []Sample, ago time.Duration) (Horizon, error)
	// Look takes the look of this minute, if it is not taken; the answer is whether it did.
	Look(ctx context.Context) (bool, error)

	// Now is the database's clock.
	Now(ctx context.Context) (time.Time, error)
	// Declare stores the schedules of kinds and forgets those that are not declared any more.
	Declare(ctx context.Context, kinds []string, schedules []Schedule) error
	// Schedules lists those of kinds, and the database's time.
	Schedules(ctx context.Context, kinds []string) ([]Schedule, time.Time, error)
	// Tick moves s on to next and enqueues a job with each of the headers, or neither if another worker was first.
	Tick(ctx context.Context, s Schedule, last, next time.Time, in Insert, payload []byte, headers [][]byte) (bool, error)

	// Sleep says that the worker wants to be woken, and tells of about how many workers of its queues that is so, itself
	// among them. Awake takes it back, and wakes another in its place.
	Sleep(ctx context.Context, w *Worker) (asleep int, err error)
	Awake(ctx context.Context, id uuid.UUID) error
	// Listen calls ready once it hears, woken for each wake-up of the worker, and controlled when Control has something
	// new for it, until ctx ends or the connection does. ErrDeaf: it cannot, and trying again is pointless.
	Listen(ctx context.Context, id uuid.UUID, ready, woken, controlled func()) error
	// Signs is one look at everything, cheap enough to go with each heartbeat.
	Signs(ctx context.Context) (Signs, error)
	// Control reads what is asked of the worker.
	Control(ctx context.Context, w *Worker) (Control, error)

	// InTx opens the transaction of a transactional handler, which is a Cutter, calls fn with it, and commits. ErrNotBegun: it could not be
	// opened, and fn was not called. fn gets a finish to call
	// last: it removes the job and records the result in the same transaction. It fails with ErrLeaseLost if the hold is
	// stale, with ErrRecorded if another job has done the key's work, and with a DoubtError if the answer to COMMIT was
	// lost. After any other error the transaction is rolled back.
	InTx(ctx context.Context, id uuid.UUID, fn func(tx any, finish func(Success) error) error) error

	// Lock opens a transaction that takes the first job of w.Locks from the marks on by its row lock; nil: there is none.
	// LockSuspect does so with a suspect. The caller ends what it gets by one of its methods.
	Lock(ctx context.Context, w *Worker, marks []Mark, skip []int64) (Locked, error)
	LockSuspect(ctx context.Context, w *Worker, skip []int64) (Locked, error)
	// Start marks jobs as started by a worker that has them locked, and tells of those that had been started before without
	// an end on record. One that is unsure is marked only if the caller is sure all the same. Unstart takes the worker's own marks away.
	Start(ctx context.Context, id uuid.UUID, jobs []int64, sure []bool) (map[int64]Starts, error)
	Unstart(ctx context.Context, id uuid.UUID, jobs []int64) error
	// Adopt is Locked.Adopt after the transaction has ended by itself. With a fence of 0, waits tells whether the job is as it
	// was, and only locked by somebody else now; if not, it is gone, or another worker has it.
	Adopt(ctx context.Context, id uuid.UUID, c *Claimed, ran time.Duration) (fence int64, waits bool, err error)

	// TxType is the type of tx in InTx and of Locked, TxLimit how many can be open at once, and TxFull tells whether no
	// further one can.
	TxType() reflect.Type
	TxLimit() int
	TxFull() bool
	Close()
}

// Starts are earlier starts of a job owned by lock of which no end is on record. Unsure: a worker that made one is not known
// to be lost.
type Starts struct {
	Crashes int
	Unsure  bool
}

// Locked is a job owned by the row lock of an open transaction. All methods but Job and Tx end the transaction.
type Locked interface {
	// Job is the row, and the database's time when it was locked. Its attempt is that of the start to come; it has no fence.
	Job() (*Claimed, time.Time)
	// Tx is what the handler gets.
	Tx() any
	// Finish removes the job and its marks, records the result, and commits. With an error nothing is committed, and the
	// transaction goes on, except with ErrUnknown: the answer to COMMIT was lost. ErrRecorded as in InTx.
	Finish(ctx context.Context, id uuid.UUID, done Success) error
	// Adopt undoes what the handler did, makes the job one that worker id holds by lease under the fence it returns, and
	// commits: its outcome can be stored as that of any other. A fence of 0: the worker's own lease has run out.
	Adopt(ctx context.Context, id uuid.UUID, ran time.Duration) (fence int64, err error)
	// Crash counts so many starts as crashes: back to the queue, or dead; and commits.
	Crash(ctx context.Context, id uuid.UUID, crashes, maxCrashes int, backoff time.Duration) (Reclaimed, error)
	// Rollback leaves the job as it was.
	Rollback(ctx context.Context)
}

// Cutter is a handler's transaction that can be ended from outside, by closing its connection under it. It tells whether
// it did: not once the handler has returned. It may be called by any goroutine.
type Cutter interface{ Cut() bool }

// ListedQueue is a queue for a person to look at.
type ListedQueue struct {
	Name     string     `json:"name"`
	PausedAt *time.Time `json:"paused_at,omitempty"`
	Weight   int        `json:"weight,omitempty"` // 0: what the programs say
	Slots    int        `json:"slots,omitempty"`
	Workers  int        `json:"workers"` // live ones that poll it
}

// Job is a row of jobs for a person to look at.
type Job struct {
	ID          int64             `json:"id"`
	Status      string            `json:"status"`
	Queue       string            `json:"queue"`
	Kind        string            `json:"kind"`
	Key         string            `json:"key,omitempty"`
	Version     int               `json:"version"`
	Priority    int               `json:"priority"`
	Attempt     int               `json:"attempt"`
	MaxAttempts int               `json:"max_attempts"`
	Crashes     int               `json:"crashes"`
	RunAt       time.Time         `json:"run_at,omitzero"`
	CreatedAt   time.Time         `json:"created_at"`
	FinishedAt  *time.Time        `json:"finished_at,omitempty"` // it has left the queue
	ClaimedAt   *time.Time        `json:"claimed_at,omitempty"`
	WorkerID    *uuid.UUID        `json:"worker_id,omitempty"`
	LastError   string            `json:"last_error,omitempty"`
	Deadline    *time.Time        `json:"deadline,omitempty"`
	Snoozes     int               `json:"snoozes,omitempty"`
	Cancel      *string           `json:"cancel,omitempty"` // why it is asked to end
	Payload     json.RawMessage   `json:"payload,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
}

// Result is a row of job_result for a person to look at.
type Result struct {
	Kind       string          `json:"kind"`
	Key        string          `json:"key"`
	JobID      int64           `json:"job_id"`
	Result     json.RawMessage `json:"result,omitempty"`
	FinishedAt *time.Time      `json:"finished_at,omitempty"`
	ExpiresAt  *time.Time      `json:"expires_at,omitempty"`
}

// Archived is a row of job_archive.
type Archived struct {
	ID         int64             `json:"id"`
	Status     string            `json:"status"`
	Queue      string            `json:"queue"`
	Kind       string            `json:"kind"`
	Key        string            `json:"key,omitempty"`
	Version    int               `json:"version"`
	Attempt    int               `json:"attempt"`
	Crashes    int               `json:"crashes"`
	Reason     string            `json:"reason,omitempty"`
	CreatedAt  time.Time         `json:"created_at"`
	StartedAt  *time.Time        `json:"started_at,omitempty"` // its last attempt
	WorkerID   *uuid.UUID        `json:"worker_id,omitempty"`  // whose that was
	FinishedAt time.Time         `json:"finished_at"`
	ExpiresAt  time.Time         `json:"expires_at"`
	Payload    json.RawMessage   `json:"payload,omitempty"`
	Headers    map[string]string `json:"headers,omitempty"`
}

// Attempt is a row of job_attempt.
type Attempt struct {
	Attempt   int       `json:"attempt"`
	Fence     int64     `json:"fence"`
	WorkerID  uuid.UUID `json:"worker_id"`
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at"`
	Outcome   string    `json:"outcome"`
	Error     string    `json:"error"`
	Host      string    `json:"host,omitempty"` // "": the worker is not on record any more, or it was none
	PID       int       `json:"pid,omitempty"`
}

// Filter selects jobs; what is empty selects all. Statuses may be ready and scheduled too, which together are queued, and, where
// those that have left the queue are looked at, cancelled and succeeded.
type Filter struct {
	Statuses, Kinds, Queues     []string
	IDs                         []int64
	Key                         string // as it is stored
	CreatedBefore, CreatedAfter *time.Time
	DueBefore                   *time.Time // only queued ones
	Error                       string     // a part of the last error, in whatever case; of a job that has left the queue, of the reason
	Payload                     []Want
}

// Want is what a payload must have at a path: this text, or an equal of this JSON.
type Want struct {
	Path []string        `json:"path"`
	Text string          `json:"text"`
	JSON json.RawMessage `json:"json,omitempty"`
}
