// Package flow computes which way a queue moves, from what has been counted by the minute. A level says nothing about direction.
//
// It is pure: what it is given was read by internal/postgres (Look, Looks, Samples), and the caller has picked the samples of the
// queues and kinds that it asks about; of several, their sum is meant. Nothing that comes out is NaN, infinite or negative that
// should not be.
package flow

import (
	"math"
	"slices"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// Verdict is what becomes of the jobs that are ready.
type Verdict string

const (
	Empty   Verdict = "empty"   // none is
	Unknown Verdict = "unknown" // too little has been counted yet: it takes four minutes; or none has left, and none has been waiting for two
	Steady  Verdict = "steady"  // as many become due as leave, as far as can be told; or less waits than leaves in a minute
	Drains  Verdict = "drains"  // in Trend.Drain
	Never   Verdict = "never"   // more become due than leave, or none leaves
)

// Crew are the live workers that handle what is asked about.
type Crew struct {
	Workers int
	Busy    float64 // the part of their slots in which something ran, 0 to 1; 0: not known, so they count as busy
}

// Trend is which way something moves.
type Trend struct {
	From, To time.Time // the whole minutes that were counted; To is not one of them. Equal: none, and the rates are not known
	In       float64   // jobs that arrived, per minute
	Due      float64   // of these and of those scheduled before, jobs that became due: In less what the number of scheduled jobs has grown by
	Out      float64   // jobs that ended for good (succeeded, cancelled or dead), per minute
	Failed   float64   // attempts, per minute
	Reclaims float64   // attempts lost with their worker, per minute: workers die
	Growth   float64   // of what is due, jobs per hour; negative: it shrinks
	Verdict  Verdict
	Drain    time.Duration // of Drains: until nothing is ready, at this rate
	// More is about how many more workers like these would keep up, of Never; 0: not known, since nothing has been finished, or the
	// present ones have slots to spare, so that it is not for want of workers.
	More int
}

// Window is the time over which rates are taken as a rule: long enough for chance to even out, short enough to show what changes.
const Window = 15 * time.Minute

// sure is how many standard deviations of a count in and out must differ by: with fewer, it may be chance.
const sure = 2

// onTime is how late in its minute a look may be taken for counts by the minute to be compared with it.
const onTime = 15 * time.Second

// uncounted is for how long nothing has been counted yet of what happens, as a rule.
const uncounted = 2 * time.Minute

// century is the longest time to drain: beyond it the figure says nothing.
const century = 100 * 365 * 24 * time.Hour

// Of computes a trend over the last whole minutes, at most window of them, between two looks: what is counted of the minute that is not
// over, and of the one before, is not all there is. looks tell which minutes somebody counted in: a minute without a sample between two
// looks was zero, and where there was no look for a while nothing before it counts. level is what there is now.
func Of(samples []engine.Sample, looks []engine.Look, level engine.Level, crew Crew, window time.Duration) Trend {
	t := Trend{Verdict: Unknown}
	from, to := bounds(looks, window)
	if to.After(from) {
		t.count(samples, from, to)
	}
	known := t.To.After(t.From)
	switch minutes := t.To.Sub(t.From).Minutes(); {
	case level.Ready == 0:
		t.Verdict = Empty
	case !known:
	case t.Out == 0 && level.Oldest < uncounted: // what waits may have come since
	case t.Out == 0:
		t.Verdict = Never
	case t.Due-t.Out > chance(t, minutes):
		t.Verdict = Never
		t.More = more(t, crew)
	case t.Out-t.Due > chance(t, minutes) && float64(level.Ready) > t.Out:
		t.Verdict = Drains
		t.Drain = duration(float64(level.Ready) / (t.Out - t.Due))
	default:
		t.Verdict = Steady
	}
	return t
}

// bounds are the minutes of the looks between which to count. What had arrived by a look is known at the next one.
func bounds(looks []engine.Look, window time.Duration) (from, to time.Time) {
	var minutes []time.Time
	for _, l := range looks {
		if m := l.At.Truncate(time.Minute); l.At.Sub(m) <= onTime {
			minutes = append(minutes, m)
		}
	}
	if len(minutes) < 3 {
		return from, to
	}
	slices.SortFunc(minutes, time.Time.Compare)
	minutes = minutes[:len(minutes)-1]
	to = minutes[len(minutes)-1]
	from = to
	for i := len(minutes) - 2; i >= 0 && to.Sub(minutes[i]) <= max(window, time.Minute); i-- {
		if from.Sub(minutes[i]) > gap {
			break
		}
		from = minutes[i]
	}
	return from, to
}

// gap is for how long nobody may look for what is counted to be one series: a look that was missed, or a restart of all workers.
const gap = 5 * time.Minute

func (t *Trend) count(samples []engine.Sample, from, to time.Time) {
	t.From, t.To = from, to
	minutes := to.Sub(from).Minutes()
	var scheduled int64
	for i := range samples {
		s := &samples[i]
		if s.Level != nil && s.Minute.Equal(to) {
			scheduled += s.Level.Scheduled
		}
		if s.Level != nil && s.Minute.Equal(from) {
			scheduled -= s.Level.Scheduled
		}
		if s.Minute.Before(from) || !s.Minute.Before(to) {
			continue
		}
		t.In += float64(s.Arrived)
		t.Out += float64(s.Succeeded) + float64(s.Cancelled) + float64(s.Died)
		t.Failed += float64(s.Failed)
		t.Reclaims += float64(s.Reclaimed)
	}
	for _, rate := range []*float64{&t.In, &t.Out, &t.Failed, &t.Reclaims} {
		*rate /= minutes
	}
	t.Due = max(t.In-float64(scheduled)/minutes, 0)
	t.Growth = 60 * (t.Due - t.Out)
}

// chance is by how much in and out may differ by chance, per minute.
func chance(t Trend, minutes float64) float64 {
	return sure * math.Sqrt((t.Due+t.Out)*minutes) / minutes
}

// more asks how many workers it takes for as many jobs to leave as become due, if each does what a busy one does now.
func more(t Trend, crew Crew) int {
	busy := crew.Busy
	if !(busy > 0 && busy <= 1) { // NaN likewise
		busy = 1
	}
	need := math.Ceil(float64(crew.Workers)*busy*t.Due/t.Out - 1e-9)
	return int(min(max(need-float64(crew.Workers), 0), 1e6))
}

func duration(minutes float64) time.Duration {
	if minutes >= century.Minutes() {
		return century
	}
	return time.Duration(minutes * float64(time.Minute))
}

// Quantile is the run time that a part q of the attempts counted in runTimes (engine.Sample) did not exceed; false: there are none.
// It is found linearly inside a bucket, whose upper bound is twice its lower one: so it is less than twice the real one and more than
// half of it; below 1 ms it is at most 1 ms off.
func Quantile(runTimes []int64, q float64) (time.Duration, bool) {
	total := 0.0
	for _, n := range runTimes {
		total += float64(max(n, 0))
	}
	if total == 0 {
		return 0, false
	}
	if !(q > 0) { // NaN likewise
		q = 0
	}
	rank := min(q, 1) * total
	last := time.Duration(0)
	for i, count := range runTimes {
		n := float64(max(count, 0))
		if n == 0 {
			continue
		}
		low, high := bucket(i)
		if rank <= n {
			return low + time.Duration(rank/n*float64(high-low)), true
		}
		rank -= n
		last = high
	}
	return last, true // rounding
}

// bucket are the bounds of a bucket of run times.
func bucket(i int) (low, high time.Duration) {
	i = min(i, engine.RunTimeBuckets-1)
	if i > 0 {
		low = time.Millisecond << (i - 1)
	}
	return low, time.Millisecond << i
}
