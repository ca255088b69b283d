package worker

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// keep is how long things stay on record that carry no time of their own to go.
func (c *Config) keep() engine.Keep {
	return engine.Keep{Attempts: c.KeepAttempts, Samples: c.KeepSamples, Cancelled: c.KeepCancelled, Dead: c.KeepDead}
}

// checkRetention finds what is wrong with the fields that say how long things stay on record.
func (c *Config) checkRetention(r *Registry) error {
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"KeepAttempts", c.KeepAttempts}, {"KeepCancelled", c.KeepCancelled}, {"KeepDead", c.KeepDead}, {"KeepSamples", c.KeepSamples}} {
		if f.d < 0 {
			return fmt.Errorf("worker: %s is %s; it must not be negative", f.name, f.d)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(c.Retain)) {
		h := r.handlers[kind]
		switch d := c.Retain[kind]; {
		case h == nil:
			return fmt.Errorf("worker: Retain names the kind %q, for which no handler is registered; use the emitted constant of the kind (here are %s), or remove it from Retain", kind, r.names())
		case h.kind != kind:
			return fmt.Errorf("worker: Retain names %q, which is an earlier name of the kind %q; name it %q: its jobs are meant under every name", kind, h.kind, h.kind)
		case d < time.Microsecond:
			return fmt.Errorf("worker: Retain[%q] is %s; it must be at least 1µs (leave the kind out of Retain for no record of its successes)", kind, d)
		}
	}
	return nil
}

// names lists the registered kinds.
func (r *Registry) names() string {
	var names []string
	for _, h := range r.kinds() {
		names = append(names, h.kind)
	}
	slices.Sort(names)
	if more := len(names) - 10; more > 0 {
		names = append(names[:10], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}
