package jobs

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/storable"
)

// Option changes one enqueue.
type Option func(*options)

type options struct {
	engine.Insert
	key      *string
	headers  map[string]string
	debounce *debounce
}

// In delays the first attempt, counted by the database's clock. Negative means now; more than a hundred years is refused.
func In(d time.Duration) Option { return func(o *options) { o.In = d } }

// At schedules the first attempt. A time that has passed means now. With In, the later of the two counts.
func At(t time.Time) Option { return func(o *options) { o.At = t } }

// Within gives the job a deadline, d from now by the database's clock. After it the job is not worth running: one that still
// waits ends cancelled instead, a running handler's context ends (cause ErrDeadline), and what would be tried again later
// than that is not. d must be positive. With Deadline, the earlier of the two counts.
func Within(d time.Duration) Option {
	return func(o *options) {
		if o.Within = d; d <= 0 {
			o.Within = -1
		}
	}
}

// Deadline is Within with a time. One that has passed is no mistake, since only the database's clock decides that: the job
// is stored and ends cancelled when a worker gets it. The zero time is none.
func Deadline(t time.Time) Option { return func(o *options) { o.Insert.Deadline = t } }

// Priority overrides the kind's priority: 0 to 9, bigger first.
func Priority(p int) Option { return func(o *options) { o.Priority = p } }

// Queue overrides the kind's queue.
func Queue(name string) Option { return func(o *options) { o.Queue = name } }

// Key gives the job an idempotency key, in place of the one its kind computes. It must not be empty, nor begin with
// "job:", which is reserved.
func Key(key string) Option { return func(o *options) { o.key = &key } }

// MaxAttempts overrides how often the job is started at most, the first time included: 1 to 32767.
func MaxAttempts(n int) Option { return func(o *options) { o.MaxAttempts = n } }

// Headers attaches data that travels with the job beside its payload, such as a trace context: at most MaxHeaders bytes as
// JSON. Names that begin with "jobgen." are reserved. A middleware of the Producer may change them: see Enqueueing.
func Headers(h map[string]string) Option { return func(o *options) { o.headers = h } }

// resolve puts the options over what the kind declares, and checks the result.
func resolve[P, R any](s *Spec[P, R], opts []Option) (options, error) {
	o := options{Insert: engine.Insert{Queue: s.Queue, Kind: s.Kind, Version: max(s.Version, 1), Priority: s.Priority, MaxAttempts: s.MaxAttempts, Was: s.Was}}
	if o.MaxAttempts == 0 {
		o.MaxAttempts = DefaultMaxAttempts
	}
	for _, f := range opts {
		f(&o)
	}
	o.In = max(o.In, 0)
	if err := replacement(s, &o); err != nil {
		return o, err
	}
	switch {
	case checkName(o.Kind) != "":
		return o, invalid(s.Kind, "kind", checkName(o.Kind))
	case checkName(o.Queue) != "":
		return o, invalid(s.Kind, "queue", checkName(o.Queue))
	case o.Priority < 0 || o.Priority > MaxPriority:
		return o, invalid(s.Kind, "priority", fmt.Sprintf("is %d; it must be 0 to %d", o.Priority, MaxPriority))
	case o.MaxAttempts < 1 || o.MaxAttempts > MaxTries:
		return o, invalid(s.Kind, "max attempts", fmt.Sprintf("is %d; it must be 1 to %d (1: never try again)", o.MaxAttempts, MaxTries))
	case o.Version > math.MaxInt32:
		return o, invalid(s.Kind, "version", fmt.Sprintf("is %d; it must be at most %d", o.Version, math.MaxInt32))
	case o.In > maxDelay:
		return o, invalid(s.Kind, "delay", fmt.Sprintf("is %s; it must be at most a hundred years", o.In))
	case o.At.Year() > 9999 || !o.At.IsZero() && o.At.Year() < 1:
		return o, invalid(s.Kind, "time", fmt.Sprintf("is in the year %d; it must be between 1 and 9999", o.At.Year()))
	case o.Within < 0:
		return o, invalid(s.Kind, "deadline", "is not after now; Within takes a positive duration, and leaving it out means no deadline")
	case o.Within > maxDelay:
		return o, invalid(s.Kind, "deadline", fmt.Sprintf("is in %s; it must be within a hundred years", o.Within))
	case o.Insert.Deadline.Year() > 9999 || !o.Insert.Deadline.IsZero() && o.Insert.Deadline.Year() < 1:
		return o, invalid(s.Kind, "deadline", fmt.Sprintf("is in the year %d; it must be between 1 and 9999", o.Insert.Deadline.Year()))
	case o.Within > 0 && o.In >= o.Within || !o.Insert.Deadline.IsZero() && !o.At.Before(o.Insert.Deadline):
		return o, invalid(s.Kind, "deadline", "is not after the time at which the job is due, so it could never run")
	case o.key != nil && *o.key == "":
		return o, invalid(s.Kind, "key", "is empty; leave the option out for a job without a key")
	case o.key != nil && strings.HasPrefix(*o.key, reservedPrefix):
		return o, invalid(s.Kind, "key", fmt.Sprintf("begins with %q, which is reserved", reservedPrefix))
	}
	return o, o.encodeHeaders()
}

// encodeHeaders checks the headers and puts them into what is inserted.
func (o *options) encodeHeaders() error {
	o.Insert.Headers = nil
	if len(o.headers) == 0 {
		return nil
	}
	for name, value := range o.headers {
		if strings.HasPrefix(name, reservedHeader) {
			return invalid(o.Kind, "headers", fmt.Sprintf("name %q begins with %q, which is reserved", name, reservedHeader))
		}
		if p := storable.Problem(name); p != "" {
			return invalid(o.Kind, "headers", fmt.Sprintf("name %q %s", name, p))
		}
		if p := storable.Problem(value); p != "" {
			return invalid(o.Kind, "headers."+name, p)
		}
	}
	b, err := json.Marshal(o.headers)
	if err != nil {
		return invalid(o.Kind, "headers", err.Error())
	}
	if len(b) > MaxHeaders {
		return invalid(o.Kind, "headers", fmt.Sprintf("take %d bytes; the limit is %d", len(b), MaxHeaders))
	}
	o.Insert.Headers = b
	return nil
}

func checkName(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > MaxName:
		return fmt.Sprintf("has %d bytes; the limit is %d", len(name), MaxName)
	}
	return storable.Problem(name)
}
