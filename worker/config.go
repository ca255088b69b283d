package worker

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/storable"
	"github.com/jobgen-go/jobgen/jobs"
)

// Config is a worker's deployment. The zero value of each field is its default.
type Config struct {
	// Queues to poll; default: the queues that the registered kinds declare.
	Queues []string
	// Concurrency is how many handlers run at once; default 100.
	Concurrency int
	// Weights is in which proportion queues with waiting jobs of one priority get slots, counted in jobs started; a queue
	// that is not named has weight 1. Default: queues take turns. What is decided in the database (jobs.SetQueueWeight)
	// comes before it.
	Weights map[string]int
	// QueueSlots is how many handlers of a queue run at once in this process; a queue that is not named has no limit but
	// Concurrency. What is decided in the database (jobs.SetQueueSlots) comes before it.
	QueueSlots map[string]int
	// Reserve keeps slots free for urgent jobs, so that long bulk work cannot take all. Default: none.
	Reserve []Reserve
	// Lease is the time without a heartbeat after which this process counts as dead and its jobs are given to others
	// (G7). It does not limit how long a handler runs. Default 15 s, at least 100 ms.
	Lease time.Duration
	// Heartbeat is how often the lease is renewed; default and at most a third of Lease.
	Heartbeat time.Duration
	// Reclaim is how often this process looks for dead ones, give or take a quarter; default and at most 5 s. It looks with
	// each heartbeat too, so it matters only if it is less than Heartbeat.
	Reclaim time.Duration
	// Grace is how long a shutdown waits for running handlers before it cancels their contexts; default 25 s. Negative
	// means not at all.
	Grace time.Duration
	// MaxCrashes is after how many losses of the process that ran it a job is dead (G8); default 5, at least 3: from the
	// second crash on a job runs with nothing else in its process, so that only what kills the process dies for it.
	MaxCrashes int
	// StuckAfter is how long a handler may go on after its context has ended before it counts as stuck: it is reported with
	// its stack, its job goes on without it, and it keeps its slot until it returns. Default 30 s, at least 100 ms.
	StuckAfter time.Duration
	// MaxStuck is at how many stuck handlers at once, or at all slots if Resize has left fewer, Run shuts down and returns
	// ErrStuck, so that whatever supervises the process starts another. Default 0: never.
	MaxStuck int
	// Retain is for which kinds, and for how long, a job that has succeeded stays on record, with its payload, in
	// jobgen.job_archive: see docs/operating/retention.md. A kind that is not named leaves no more than its result, if it has
	// one or a key, and pays nothing. It is for what this worker finishes from now on, so give it to all workers of a kind.
	Retain map[string]time.Duration
	// KeepAttempts is how long the history of attempts that did not succeed is kept; default 7 days.
	KeepAttempts time.Duration
	// KeepCancelled is how long a job that this worker ends because it was cancelled, or has no time left, stays on record;
	// default 30 days, as for those that jobs.Cancel ends while they wait.
	KeepCancelled time.Duration
	// KeepDead is how long a dead job stays for somebody to requeue it, from its death; then it is purged with its payload, and its
	// key is free. Default 0: for ever. Of workers with different settings, the shortest time counts.
	KeepDead time.Duration
	// KeepSamples is how long the figures of each minute are kept (jobgen.samples); default 14 days.
	KeepSamples time.Duration
	// Middleware is wrapped around each attempt of a handler, the first outermost; of each, the part Work.
	Middleware []jobs.Middleware
	// Logger gets one line for each thing an operator acts on; default slog.Default().
	Logger *slog.Logger
}

const (
	maxHolds    = 4000                   // holds at once, beyond Concurrency only claimed ahead or waiting to be stored
	ahead       = 50 * time.Millisecond  // what is claimed ahead is started within this time, at the present rate
	aheadMost   = time.Second            // and goes back if it has not been started within this time
	slack       = 2 * time.Second        // marks stay this far behind the database's clock: transactions commit late;
	nearSlack   = 100 * time.Millisecond // or only this far, for most claims of a busy worker: all but
	lookBack    = 100 * time.Millisecond // one in this time, times the fleet's size,
	lookMost    = time.Second            // but not longer than this, and those that are due to a wake-up
	pollFirst   = 5 * time.Millisecond   // polling of a worker that is not to be woken, if jobs come often;
	pollShort   = 20 * time.Millisecond  // else, and of one that is, after a job,
	pollLong    = 5 * time.Second        // from where it stretches to this, since an enqueue wakes it,
	pollPartly  = 50 * time.Millisecond  // to this, if only some of its jobs can start,
	pollDeaf    = time.Second            // or only to this while the listener is down
	sweepEvery  = time.Second            // one sweep in the fleet; each worker waits this long times the fleet's size,
	sweepMost   = 30 * time.Second       // but not longer than this,
	sweepCost   = 20                     // nor less than this many times what its last sweep took
	maxError    = 8 << 10                // bytes of an error text on record
	reclaimMany = 500                    // jobs taken back in one statement
	crashDelay  = time.Second            // back-off after the first crash; doubles
)

func (c Config) withDefaults(r *Registry) (Config, error) {
	if len(c.Queues) == 0 {
		for _, h := range r.handlers {
			c.Queues = append(c.Queues, h.queue)
		}
	}
	c.Queues = slices.Clone(c.Queues)
	slices.Sort(c.Queues)
	c.Queues = slices.Compact(c.Queues)
	setDefault(&c.Concurrency, 100)
	setDefault(&c.Lease, 15*time.Second)
	setDefault(&c.Heartbeat, c.Lease/3)
	setDefault(&c.Reclaim, lookEvery)
	setDefault(&c.Grace, 25*time.Second)
	setDefault(&c.MaxCrashes, 5)
	setDefault(&c.StuckAfter, 30*time.Second)
	setDefault(&c.KeepAttempts, 7*24*time.Hour)
	setDefault(&c.KeepCancelled, engine.KeepCancelled)
	setDefault(&c.KeepSamples, 14*24*time.Hour)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case len(r.handlers) == 0:
		return c, fmt.Errorf("worker: no handler is registered; call the emitted Register before New")
	case c.Concurrency < 1 || c.Concurrency > 100_000:
		return c, fmt.Errorf("worker: Concurrency is %d; it must be 1 to 100000", c.Concurrency)
	case c.Lease < 100*time.Millisecond || c.Lease > 24*time.Hour:
		return c, fmt.Errorf("worker: Lease is %s; it must be 100ms to 24h", c.Lease)
	case c.Heartbeat <= 0 || c.Heartbeat > c.Lease/3:
		return c, fmt.Errorf("worker: Heartbeat is %s; it must be positive and at most a third of Lease (%s), so that one lost heartbeat loses no job", c.Heartbeat, c.Lease)
	case c.Reclaim <= 0 || c.Reclaim > 24*time.Hour:
		return c, fmt.Errorf("worker: Reclaim is %s; it must be positive and at most 24h", c.Reclaim)
	case c.MaxCrashes < 3 || c.MaxCrashes > 1000:
		return c, fmt.Errorf("worker: MaxCrashes is %d; it must be 3 to 1000: two crashes can be another job's doing", c.MaxCrashes)
	case c.StuckAfter < 100*time.Millisecond:
		return c, fmt.Errorf("worker: StuckAfter is %s; it must be at least 100ms: handlers need a moment to return", c.StuckAfter)
	case c.MaxStuck < 0 || c.MaxStuck > c.Concurrency:
		return c, fmt.Errorf("worker: MaxStuck is %d; it must be 0 (never) to Concurrency (%d)", c.MaxStuck, c.Concurrency)
	}
	if err := c.checkRetention(r); err != nil {
		return c, err
	}
	for _, q := range c.Queues {
		if q == "" || len(q) > jobs.MaxName {
			return c, fmt.Errorf("worker: queue %q has %d bytes; it must have 1 to %d", q, len(q), jobs.MaxName)
		}
		if problem := storable.Problem(q); problem != "" {
			return c, fmt.Errorf("worker: queue %q %s", q, problem)
		}
	}
	return c, c.checkPolicy()
}

func setDefault[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}
