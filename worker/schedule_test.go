package worker

import (
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/internal/cron"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

// What is enqueued for ticks that passed, by policy.
func TestMissedTicks(t *testing.T) {
	t.Parallel()
	hourly, err := cron.Parse("0 * * * *", "Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	at := func(hour, minute, second int) time.Time {
		return time.Date(2026, 6, 1, hour, minute, second, 0, time.UTC)
	}
	for _, c := range []struct {
		name        string
		missed      string
		now         time.Time
		ticks       []time.Time
		passed, nxt time.Time
	}{
		{"a tick in time", "once", at(8, 0, 0), []time.Time{at(8, 0, 0)}, at(8, 0, 0), at(9, 0, 0)},
		{"a tick in time is not missed", "skip", at(8, 0, 59), []time.Time{at(8, 0, 0)}, at(8, 0, 0), at(9, 0, 0)},
		{"skip leaves late ones out", "skip", at(11, 30, 0), nil, at(11, 0, 0), at(12, 0, 0)},
		{"skip takes the one that is in time", "skip", at(11, 0, 1), []time.Time{at(11, 0, 0)}, at(11, 0, 0), at(12, 0, 0)},
		{"once is one for all, at the last", "once", at(11, 30, 0), []time.Time{at(11, 0, 0)}, at(11, 0, 0), at(12, 0, 0)},
		{"all is each", "all", at(11, 30, 0), []time.Time{at(8, 0, 0), at(9, 0, 0), at(10, 0, 0), at(11, 0, 0)}, at(11, 0, 0), at(12, 0, 0)},
	} {
		ticks, passed, next := dueTicks(hourly, engine.Schedule{Missed: c.missed, NextAt: at(8, 0, 0)}, c.now)
		if len(ticks) != len(c.ticks) || !passed.Equal(c.passed) || !next.Equal(c.nxt) {
			t.Errorf("%s: %v, passed %s, next %s", c.name, ticks, passed, next)
			continue
		}
		for i := range ticks {
			if !ticks[i].Equal(c.ticks[i]) {
				t.Errorf("%s: tick %d is %s, want %s", c.name, i, ticks[i], c.ticks[i])
			}
		}
	}
	many, passed, next := dueTicks(hourly, engine.Schedule{Missed: string(jobs.MissedAll), NextAt: at(8, 0, 0)}, at(8, 0, 0).AddDate(1, 0, 0))
	if len(many) != tickMany || !next.Equal(passed.Add(time.Hour)) {
		t.Errorf("a year of hours: %d ticks at once, the last %s, the next %s", len(many), passed, next)
	}
}
