package worker

import (
	"sync/atomic"
	"time"
)

// counters are what Stats tells of the past. They are counted by statement, not by job.
type counters struct {
	claims, claimed                        atomic.Int64
	flushes, flushed, flushTime, reclaimed atomic.Int64
	failures, losses                       atomic.Int64
}

func (c *counters) stored(outcomes int, took time.Duration) {
	c.flushes.Add(1)
	c.flushed.Add(int64(outcomes))
	c.flushTime.Add(int64(took))
}
