package jobs

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// Emitted1 is the handshake between emitted code and this library: code emitted by a generator that needs more of the
// runtime than this version has names a constant that is not here.
const Emitted1 = true

// Emitted2 is Emitted1 for code with kinds that are owned by lock.
const Emitted2 = true

// None is the result of a kind that declares none.
type None = struct{}

// Spec is a kind as declared: P is its payload, R its result. Emitted code fills one in for each annotated struct.
type Spec[P, R any] struct {
	// Kind is the stored name of the job type. It is data: jobs in the database name it for as long as they live.
	Kind string
	// Queue is where jobs of this kind wait.
	Queue string
	// Version is the version of the payload's form; zero means 1. Workers leave newer ones alone (G13).
	Version int
	// Priority is 0 to 9, bigger first.
	Priority int
	// MaxAttempts is how often a job is started at most, the first time included; zero means DefaultMaxAttempts.
	MaxAttempts int
	// Timeout is after how long the handler's context is cancelled; zero means never.
	Timeout time.Duration
	// Lock makes workers own jobs of this kind by a row lock instead of a lease: claim, handler, result and removal are one
	// transaction, so the end of a process puts its jobs back at once. The handler is a transactional one. It is for short
	// work that only touches the database: see docs/runtime/lock.md.
	Lock bool
	// Key computes the idempotency key of a payload; nil means the kind has none.
	Key func(k *KeyBuilder, payload P)
	// KeepResult is how long a result, and with it the key, is remembered; zero means DefaultKeepResult.
	KeepResult time.Duration
	// Backoff is the delay between attempts.
	Backoff Backoff
	// Was are earlier names of the kind. Jobs that were enqueued under one of them run with this kind's handler, and a key
	// that is taken under one of them is taken. While programs that know the kind by its old name only still enqueue, the
	// same key can be taken once under each name.
	Was []string
	// Upgrade reads payloads of older versions: Upgrade[i] those of version i+1. There is one for each older version.
	Upgrade []func(old json.RawMessage) (P, error)
	// Schedules enqueue jobs of this kind by themselves, with the zero value of P as payload.
	Schedules []Schedule
	// Package is what the package that declares this kind declares in all. Nil for a kind written by hand.
	Package *Package
}

// Package lists what one package declares. A worker with a handler of it must have one for each of its kinds whose queue
// it polls.
type Package struct {
	Name  string
	Kinds []Declared
}

// Declared is a kind as its package declares it.
type Declared struct{ Kind, Queue string }

// Schedule enqueues a job at each tick of a cron expression. It is stored when a worker that handles its kind starts; from
// then on each tick is enqueued once, by whichever worker is first (G10), also over restarts and on days on which clocks
// change: a time that is skipped ticks when the clocks go forward, one that comes twice ticks the first time, and * in the
// hour field means every hour that passes.
type Schedule struct {
	Name string // unique among the schedules of its kind
	Cron string // minute hour day-of-month month day-of-week, or @hourly, @daily, @weekly, @monthly, @yearly
	Zone string // IANA name; empty: UTC
	// Missed is what to do about ticks at which no worker ran.
	Missed Missed
}

// Missed is the policy for ticks at which no worker ran.
type Missed string

const (
	MissedOnce Missed = ""     // one job for all of them, at the time of the last; the default
	MissedSkip Missed = "skip" // none; a tick counts as missed when it is a minute late
	MissedAll  Missed = "all"  // one job for each
)

// Defaults of a Spec.
const (
	DefaultMaxAttempts = 20
	DefaultKeepResult  = 24 * time.Hour
)

// Limits of what is stored.
const (
	MaxName     = 100      // bytes of a kind or queue
	MaxPriority = 9        //
	MaxTries    = 32767    // of MaxAttempts
	MaxPayload  = 1 << 20  // bytes of a payload as JSON, unless a Producer says otherwise
	MaxHeaders  = 16 << 10 // bytes of all headers of a job as JSON
)

// maxDelay is the furthest a job can be scheduled: a hundred years, well inside what the database can store.
const maxDelay = 100 * 365 * 24 * time.Hour

// Job is a running job as its handler sees it.
type Job[P any] struct {
	Info
	Payload P
}

// Info is what is known of a running job whatever its payload: for its handler and for middleware, which have a copy each.
type Info struct {
	ID          int64
	Kind, Queue string
	// Attempt is 1 for the first start. An operator may reset it.
	Attempt, MaxAttempts int
	// Waited is how long the job had been due when it was claimed, by the database's clock. For a further attempt it counts
	// from the end of the back-off.
	Waited time.Duration
	// Headers are what the enqueuer attached, such as a trace context. Nil if nothing.
	Headers map[string]string
	key     string
	then    *followUps // nil if no worker has made it
}

// Key identifies the work and is the same for each attempt: pass it on as the idempotency key of whatever the handler
// calls outside the database, where effects happen at least once. For a kind without a key it is made from the job's id.
func (i *Info) Key() string {
	if i.key == "" {
		return reservedKey(i.ID)
	}
	return i.key
}

// ScheduledAt is the tick of the schedule that enqueued the job, or zero if none did. It may be long past: see Missed.
func (i *Info) ScheduledAt() time.Time {
	t, _ := time.Parse(time.RFC3339, i.Headers[ScheduledAtHeader])
	return t
}

// ScheduledAtHeader is the header that carries a job's tick.
const ScheduledAtHeader = reservedHeader + "scheduled_at"

const reservedHeader = "jobgen."

func reservedKey(id int64) string { return fmt.Sprintf("%s%d", reservedPrefix, id) }

const reservedPrefix = "job:"

// read fills i from a claimed row.
func (i *Info) read(c *engine.Claimed) error {
	*i = Info{ID: c.ID, Kind: c.Kind, Queue: c.Queue, Attempt: c.Attempt, MaxAttempts: c.MaxAttempts, Waited: c.Waited, key: c.Key}
	if len(c.Headers) > 0 {
		if err := json.Unmarshal(c.Headers, &i.Headers); err != nil {
			return fmt.Errorf("headers do not decode: %w", err)
		}
	}
	return nil
}

// Decode makes a Job of a claimed row. It is for package worker; nothing outside this module can call it.
func Decode[P, R any](s *Spec[P, R], c *engine.Claimed) (*Job[P], error) {
	made := &struct { // one allocation
		Job[P]
		then followUps
	}{}
	j := &made.Job
	if err := j.read(c); err != nil {
		return nil, err
	}
	j.then = &made.then
	if older := c.Version; older < max(s.Version, 1) {
		if older < 1 || older > len(s.Upgrade) {
			return nil, fmt.Errorf("payload has version %d, and there is no function to upgrade it to version %d", older, s.Version)
		}
		var err error
		if j.Payload, err = s.Upgrade[older-1](c.Payload); err != nil {
			return nil, fmt.Errorf("payload of version %d does not upgrade to version %d: %w", older, s.Version, err)
		}
		return j, nil
	}
	if err := json.Unmarshal(c.Payload, &j.Payload); err != nil {
		return nil, fmt.Errorf("payload does not decode into %T: %w", j.Payload, err)
	}
	return j, nil
}

// Scheduled is how a tick of s enqueues, or what is wrong with s. It is for package worker.
func Scheduled[P, R any](s *Spec[P, R]) (engine.Insert, error) {
	o, err := resolve(s, nil)
	return o.Insert, err
}
