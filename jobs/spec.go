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
	// Key computes the idempotency key of a payload; nil means the kind has none.
	Key func(k *KeyBuilder, payload P)
	// KeepResult is how long a result, and with it the key, is remembered; zero means DefaultKeepResult.
	KeepResult time.Duration
	// Backoff is the delay between attempts.
	Backoff Backoff
}

// Defaults of a Spec.
const (
	DefaultMaxAttempts = 20
	DefaultKeepResult  = 24 * time.Hour
)

// Limits of what is stored.
const (
	MaxName     = 100     // bytes of a kind or queue
	MaxPriority = 9       //
	MaxTries    = 32767   // of MaxAttempts
	MaxPayload  = 1 << 20 // bytes of a payload as JSON, unless a Producer says otherwise
)

// maxDelay is the furthest a job can be scheduled: a hundred years, well inside what the database can store.
const maxDelay = 100 * 365 * 24 * time.Hour

// Job is a running job as its handler sees it.
type Job[P any] struct {
	Info
	Payload P
}

// Info is what is known of a running job whatever its payload.
type Info struct {
	ID          int64
	Kind, Queue string
	// Attempt is 1 for the first start. An operator may reset it.
	Attempt, MaxAttempts int
	// Headers are what the enqueuer attached, such as a trace context. Nil if nothing.
	Headers map[string]string
	key     string
}

// Key identifies the work and is the same for each attempt: pass it on as the idempotency key of whatever the handler
// calls outside the database, where effects happen at least once. For a kind without a key it is made from the job's id.
func (i *Info) Key() string {
	if i.key == "" {
		return reservedKey(i.ID)
	}
	return i.key
}

func reservedKey(id int64) string { return fmt.Sprintf("%s%d", reservedPrefix, id) }

const reservedPrefix = "job:"

// Decode makes a Job of a claimed row. It is for package worker; nothing outside this module can call it.
func Decode[P, R any](s *Spec[P, R], c *engine.Claimed) (*Job[P], error) {
	j := &Job[P]{Info: Info{ID: c.ID, Kind: c.Kind, Queue: c.Queue, Attempt: c.Attempt, MaxAttempts: c.MaxAttempts, key: c.Key}}
	if len(c.Headers) > 0 {
		if err := json.Unmarshal(c.Headers, &j.Headers); err != nil {
			return nil, fmt.Errorf("headers do not decode: %w", err)
		}
	}
	if err := json.Unmarshal(c.Payload, &j.Payload); err != nil {
		return nil, fmt.Errorf("payload does not decode into %T: %w", j.Payload, err)
	}
	return j, nil
}
