package worker

import "time"

// instant is a moment on this process's monotonic clock, to measure and pace by. It is a type of its own so that it cannot
// be mixed up with a time of the database, which alone decides anything (G12): a wall clock that is wrong, or is set while
// the process runs, changes no instant. Zero is before all others, and means never.
type instant time.Duration

// origin is a little in the past, so that no instant is zero or before.
var origin = time.Now().Add(-time.Hour) //nolint:forbidigo // the one look at the clock: all instants are measured from it

func now() instant { return instant(time.Since(origin)) } //nolint:forbidigo // by the monotonic clock, as both have its reading

func since(i instant) time.Duration { return time.Duration(now() - i) }

func (i instant) add(d time.Duration) instant { return i + instant(d) }

func (i instant) sub(j instant) time.Duration { return time.Duration(i - j) }

// passed tells whether i is not in the future.
func (i instant) passed() bool { return i <= now() }
