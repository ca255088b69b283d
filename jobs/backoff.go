package jobs

import (
	"math/rand/v2"
	"time"
)

// BackoffForm is how the delay between attempts grows.
type BackoffForm uint8

const (
	Exponential BackoffForm = iota // Base, 2·Base, 4·Base, …
	Linear                         // Base, 2·Base, 3·Base, …
	Constant                       // Base
)

// Backoff is the delay before a failed job is tried again: by its form, at most Max, times a uniform factor between 0.5
// and 1, so that jobs that failed together do not come back together. The zero value is exponential from 1 s to 1 h.
type Backoff struct {
	Form      BackoffForm
	Base, Max time.Duration // zero: 1 s, 1 h
}

// Delay is the delay after the given attempt, which counts from 1. It is never negative and never over Max.
func (b Backoff) Delay(attempt int) time.Duration {
	d := b.ceiling(attempt)
	return d/2 + rand.N(d/2+1)
}

func (b Backoff) ceiling(attempt int) time.Duration {
	base, limit := b.Base, b.Max
	if base <= 0 {
		base = time.Second
	}
	if limit <= 0 {
		limit = max(time.Hour, base)
	}
	n := time.Duration(max(attempt, 1))
	switch b.Form {
	case Exponential:
		if n > 63 || limit>>(n-1) < base {
			return limit
		}
		return base << (n - 1)
	case Linear:
		if limit/n < base {
			return limit
		}
		return base * n
	}
	return min(base, limit)
}
