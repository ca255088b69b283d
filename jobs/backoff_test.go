package jobs

import (
	"math"
	"testing"
	"time"
)

func TestBackoffGrowsIsCappedAndNeverNegative(t *testing.T) {
	t.Parallel()
	attempts := []int{math.MinInt, -1, 0, 1, 2, 3, 12, 13, 33, 34, 55, 62, 63, 64, 65, 310, 32767, math.MaxInt32, math.MaxInt}
	for _, b := range []Backoff{
		{}, {Form: Linear}, {Form: Constant},
		{Base: time.Nanosecond}, {Base: time.Minute, Max: 24 * time.Hour}, {Form: Linear, Base: 7 * time.Second, Max: time.Minute},
		{Base: 1, Max: math.MaxInt64}, {Form: Linear, Base: 1, Max: math.MaxInt64}, {Form: Constant, Base: math.MaxInt64},
		{Base: math.MaxInt64}, {Base: 2 * time.Hour}, {Base: time.Hour, Max: time.Second}, {Form: Linear, Base: time.Hour, Max: time.Second},
		{Base: -1, Max: -1}, {Form: Linear, Base: math.MinInt64, Max: math.MinInt64},
	} {
		limit := b.Max
		if limit <= 0 {
			limit = max(time.Hour, b.Base)
		}
		last := time.Duration(0)
		for _, n := range attempts {
			ceiling := b.ceiling(n)
			if ceiling < last || ceiling > limit || ceiling <= 0 {
				t.Errorf("%+v: the ceiling after attempt %d is %s, after the one before %s, limit %s", b, n, ceiling, last, limit)
			}
			last = ceiling
			for range 100 {
				if d := b.Delay(n); d < ceiling/2 || d > ceiling {
					t.Errorf("%+v: the delay after attempt %d is %s, want %s to %s", b, n, d, ceiling/2, ceiling)
				}
			}
		}
	}
}

func TestBackoffFormsAreWhatTheirNamesSay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		b    Backoff
		want [4]time.Duration
	}{
		{Backoff{}, [4]time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}},
		{Backoff{Max: 5 * time.Second}, [4]time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second}},
		{Backoff{Form: Linear, Base: time.Minute}, [4]time.Duration{time.Minute, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute}},
		{Backoff{Form: Constant, Base: time.Minute}, [4]time.Duration{time.Minute, time.Minute, time.Minute, time.Minute}},
	} {
		for i, want := range c.want {
			if got := c.b.ceiling(i + 1); got != want {
				t.Errorf("%+v after attempt %d: %s, want %s", c.b, i+1, got, want)
			}
		}
	}
	if got := (Backoff{}).ceiling(13); got != time.Hour {
		t.Errorf("default after attempt 13: %s, want the hour", got)
	}
}

func TestBackoffSpreadsJobsThatFailedTogether(t *testing.T) {
	t.Parallel()
	low, high := 0, 0
	for range 1000 {
		switch d := (Backoff{Base: time.Minute}).Delay(1); {
		case d < 40*time.Second:
			low++
		case d > 50*time.Second:
			high++
		}
	}
	if low < 200 || high < 200 {
		t.Errorf("of 1,000 delays %d are in the lowest third and %d in the highest", low, high)
	}
}
