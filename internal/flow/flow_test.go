package flow_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/flow"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func minute(i int) time.Time { return noon.Add(time.Duration(i) * time.Minute) }

// looked are looks at the beginnings of minutes.
func looked(minutes ...int) (looks []engine.Look) {
	for _, i := range minutes {
		looks = append(looks, engine.Look{At: minute(i).Add(20 * time.Millisecond), Share: 1})
	}
	return looks
}

func upto(n int) (minutes []int) {
	for i := range n + 1 {
		minutes = append(minutes, i)
	}
	return minutes
}

// steady are n minutes in each of which so many came and went.
func steady(n, in, out int) (samples []engine.Sample) {
	for i := range n {
		samples = append(samples, engine.Sample{Minute: minute(i), Arrived: int64(in), Succeeded: int64(out)})
	}
	return samples
}

// show is a trend in a line.
func show(t flow.Trend) string {
	line := fmt.Sprintf("%s; in %.4g due %.4g out %.4g, growth %.4g/h, over %s", t.Verdict, t.In, t.Due, t.Out, t.Growth, t.To.Sub(t.From))
	if t.Drain != 0 {
		line += fmt.Sprint(", drains in ", t.Drain)
	}
	if t.More != 0 {
		line += fmt.Sprint(", ", t.More, " more")
	}
	return line
}

func TestTrend(t *testing.T) {
	t.Parallel()
	four := flow.Crew{Workers: 4}
	scheduled := steady(11, 100, 40)
	for i := range scheduled { // 60 of each minute's 100 are for later
		scheduled[i].Level = &engine.Level{Scheduled: int64(60 * i)}
	}
	dying := steady(11, 10, 0)
	for i := range dying {
		dying[i].Died, dying[i].Cancelled, dying[i].Failed, dying[i].Reclaimed = 6, 4, 12, 3
	}
	for _, c := range []struct {
		name    string
		samples []engine.Sample
		looks   []engine.Look
		ready   int64
		crew    flow.Crew
		want    string
	}{
		{"nothing was ever counted", nil, nil, 5, four, "unknown; in 0 due 0 out 0, growth 0/h, over 0s"},
		{"nothing is ready", steady(11, 10, 10), looked(upto(11)...), 0, four, "empty; in 10 due 10 out 10, growth 0/h, over 10m0s"},
		{"too few looks", steady(2, 10, 10), looked(0, 1), 5, four, "unknown; in 0 due 0 out 0, growth 0/h, over 0s"},
		{"the minute that is not over does not count, nor the one before", append(steady(2, 10, 20), engine.Sample{Minute: minute(2), Succeeded: 1}), looked(0, 1, 2, 3), 1000, four,
			"drains; in 10 due 10 out 20, growth -600/h, over 2m0s, drains in 1h40m0s"},
		{"it grows", steady(11, 150, 100), looked(upto(11)...), 1000, four, "never; in 150 due 150 out 100, growth 3000/h, over 10m0s, 2 more"},
		{"it grows a little", steady(11, 110, 100), looked(upto(11)...), 1000, four, "never; in 110 due 110 out 100, growth 600/h, over 10m0s, 1 more"},
		{"the workers have slots to spare", steady(11, 150, 100), looked(upto(11)...), 1000, flow.Crew{Workers: 4, Busy: 0.3}, "never; in 150 due 150 out 100, growth 3000/h, over 10m0s"},
		{"nobody works", steady(11, 10, 0), looked(upto(11)...), 1000, flow.Crew{}, "never; in 10 due 10 out 0, growth 600/h, over 10m0s"},
		{"nothing comes and nothing goes", nil, looked(upto(11)...), 1000, four, "never; in 0 due 0 out 0, growth 0/h, over 10m0s"},
		{"it drains", steady(11, 0, 100), looked(upto(11)...), 100_000, four, "drains; in 0 due 0 out 100, growth -6000/h, over 10m0s, drains in 16h40m0s"},
		{"a difference that may be chance", steady(11, 101, 100), looked(upto(11)...), 1000, four, "steady; in 101 due 101 out 100, growth 60/h, over 10m0s"},
		{"less waits than leaves in a minute", steady(11, 50, 100), looked(upto(11)...), 90, four, "steady; in 50 due 50 out 100, growth -3000/h, over 10m0s"},
		{"what is for later is not due", scheduled, looked(upto(11)...), 1000, four, "steady; in 100 due 40 out 40, growth 0/h, over 10m0s"},
		{"dead and cancelled jobs have left too", dying, looked(upto(11)...), 1000, four, "steady; in 10 due 10 out 10, growth 0/h, over 10m0s"},
		{"minutes without a sample were zero", steady(1, 100, 0), looked(upto(11)...), 1000, four, "never; in 10 due 10 out 0, growth 600/h, over 10m0s"},
		{"a look was missed", steady(11, 10, 20), looked(0, 1, 2, 5, 6, 7, 11), 1000, four, "drains; in 10 due 10 out 20, growth -600/h, over 7m0s, drains in 1h40m0s"},
		{"before a gap nothing counts", steady(30, 10, 20), looked(0, 1, 2, 3, 20, 21, 22, 23), 1000, four, "drains; in 10 due 10 out 20, growth -600/h, over 2m0s, drains in 1h40m0s"},
		{"at most the window", steady(60, 10, 20), looked(upto(60)...), 1000, four, "drains; in 10 due 10 out 20, growth -600/h, over 15m0s, drains in 1h40m0s"},
		{"hardly anything leaves", append(steady(11, 0, 0), engine.Sample{Minute: minute(3), Succeeded: math.MaxInt32}), looked(upto(11)...), math.MaxInt64, four,
			"drains; in 0 due 0 out 2.147e+08, growth -1.288e+10/h, over 10m0s, drains in " + (100 * 365 * 24 * time.Hour).String()},
	} {
		level := engine.Level{Ready: c.ready, Oldest: time.Hour}
		if got := show(flow.Of(c.samples, c.looks, level, c.crew, flow.Window)); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
	if got := flow.Of(dying, looked(upto(11)...), engine.Level{Ready: 1}, four, flow.Window); got.Reclaims != 3 || got.Failed != 12 {
		t.Errorf("%+v", got)
	}
	// The first jobs after a quiet night, and those of slow handlers, have only come: nobody is to be woken for them.
	for _, samples := range [][]engine.Sample{nil, steady(11, 1, 0)} {
		for oldest, want := range map[time.Duration]flow.Verdict{time.Minute: flow.Unknown, 3 * time.Minute: flow.Never} {
			if got := flow.Of(samples, looked(upto(11)...), engine.Level{Ready: 5, Oldest: oldest}, four, flow.Window); got.Verdict != want {
				t.Errorf("nothing has left, and the oldest has waited for %s: %s", oldest, got.Verdict)
			}
		}
	}
	if got := flow.Of(steady(11, 150, 100), looked(upto(11)...), engine.Level{Ready: 1000}, flow.Crew{Workers: 4, Busy: math.NaN()}, flow.Window); got.More != 2 {
		t.Errorf("%+v", got)
	}
	// A look in a minute's middle, as when the first worker starts, begins no series.
	late := append([]engine.Look{{At: minute(0).Add(40 * time.Second)}}, looked(1, 2, 3)...)
	if got := flow.Of(steady(3, 10, 20), late, engine.Level{Ready: 1}, four, flow.Window); !got.From.Equal(minute(1)) {
		t.Errorf("%+v", got)
	}
}

// The number of workers is right when they are there.
func TestMoreWorkersLikeTheseKeepUp(t *testing.T) {
	t.Parallel()
	for workers := 1; workers < 50; workers += 7 {
		for _, in := range []int{120, 150, 333, 1000} {
			got := flow.Of(steady(31, 10*in, 1000), looked(upto(31)...), engine.Level{Ready: 100_000}, flow.Crew{Workers: workers, Busy: 1}, 30*time.Minute)
			with := float64(workers+got.More) * 1000 / float64(workers)
			if less := float64(workers+got.More-1) * 1000 / float64(workers); got.More == 0 || with < float64(10*in) || less >= float64(10*in) {
				t.Errorf("%d workers, %d in: %d more", workers, in, got.More)
			}
		}
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		times []int64
		q     float64
		want  string
	}{
		{nil, 0.5, "0s false"},
		{[]int64{0, 0}, 0.5, "0s false"},
		{[]int64{10}, 0.5, "500µs true"},
		{[]int64{10}, 1, "1ms true"},
		{[]int64{0, 10}, 0.5, "1.5ms true"},
		{[]int64{0, 0, 10}, 0, "2ms true"},
		{[]int64{50, 0, 0, 50}, 0.5, "1ms true"},
		{[]int64{50, 0, 0, 50}, 0.75, "6ms true"},
		{[]int64{50, 0, 0, 50}, 2, "8ms true"},
		{[]int64{50}, math.NaN(), "0s true"},
		{[]int64{-5, 1}, 0.5, "1.5ms true"},
		{append(make([]int64, 28), 1), 1, "74h33m55.456s true"},
		{append(make([]int64, 90), 1), 1, "74h33m55.456s true"},
		{[]int64{math.MaxInt64, math.MaxInt64}, 0.99, "1.98ms true"},
	} {
		d, known := flow.Quantile(c.times, c.q)
		if got := fmt.Sprint(d, known); got != c.want {
			t.Errorf("%v of %v: %s, want %s", c.q, c.times, got, c.want)
		}
	}
}

// As documented: less than twice the real one, more than half of it.
func TestAQuantileIsWithinAFactorOfTwo(t *testing.T) {
	t.Parallel()
	for base := 1 * time.Millisecond; base < time.Hour; base = base*5/3 + 1 {
		var buckets [engine.RunTimeBuckets]int64
		i := 0
		for time.Millisecond<<i <= base {
			i++
		}
		buckets[i] = 100
		for _, q := range []float64{0.01, 0.5, 0.99} {
			d, _ := flow.Quantile(buckets[:], q)
			if f := float64(d) / float64(base); f >= 2.0001 || f <= 0.4999 {
				t.Errorf("%s was found as %s", base, d)
			}
		}
	}
}

func FuzzTrend(f *testing.F) {
	f.Add(int64(1), int64(2), int64(3), 4, 0.5, uint8(9))
	f.Fuzz(func(t *testing.T, in, out, ready int64, workers int, busy float64, n uint8) {
		samples := []engine.Sample{}
		for i := range int(n) {
			samples = append(samples, engine.Sample{Minute: minute(i), Arrived: abs(in), Succeeded: abs(out), Level: &engine.Level{Scheduled: abs(in ^ out)}})
		}
		got := flow.Of(samples, looked(upto(int(n))...), engine.Level{Ready: abs(ready)}, flow.Crew{Workers: max(workers, 0), Busy: busy}, flow.Window)
		for _, v := range []float64{got.In, got.Due, got.Out, got.Failed, got.Reclaims} {
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				t.Errorf("%+v", got)
			}
		}
		if math.IsNaN(got.Growth) || math.IsInf(got.Growth, 0) || got.Drain < 0 || got.More < 0 || got.Verdict == "" {
			t.Errorf("%+v", got)
		}
	})
}

func abs(n int64) int64 {
	if n < 0 {
		return -(n + 1)
	}
	return n
}
