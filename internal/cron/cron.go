// Package cron tells the ticks of a schedule. robfig/cron parses the expression; what comes after is ours, because a
// tick must be right on the two days a year on which clocks change:
//
//   - An hour that the clocks skip: a tick whose wall-clock time does not exist that day is at the moment the clocks go
//     forward. "30 2 * * *" in Berlin is at 03:00 on that day, once.
//   - An hour that comes twice: a tick is at the first of the two. "30 2 * * *" in Berlin is at the first 02:30.
//   - An expression with * in the hour field means every hour that passes, not every hour on the clock: "0 * * * *" ticks
//     23 times on the short day and 25 times on the long one, and "*/15 * * * *" every fifteen minutes throughout.
package cron

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Schedule is a parsed expression in its time zone.
type Schedule struct {
	spec *cron.SpecSchedule
	loc  *time.Location
}

// everyHour is what robfig/cron adds to the bits of a field that was *.
const everyHour = 1 << 63

var parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// Parse reads five fields (minute, hour, day of month, month, day of week) or @hourly, @daily, @weekly, @monthly, @yearly.
// zone is an IANA name; empty means UTC. As in every cron, a tick needs the day of month or the day of week, if both are
// given. An expression that never ticks is an error.
func Parse(expr, zone string) (*Schedule, error) {
	switch {
	case strings.HasPrefix(expr, "TZ="), strings.HasPrefix(expr, "CRON_TZ="):
		return nil, fmt.Errorf("%q names its time zone itself; use tz=", expr)
	case strings.HasPrefix(expr, "@every"):
		return nil, fmt.Errorf("%q has no fixed ticks, so no two processes would agree on them; write five fields, such as \"*/5 * * * *\"", expr)
	case zone == "Local":
		return nil, fmt.Errorf("the time zone Local differs from machine to machine; use an IANA name, such as Europe/Berlin")
	}
	loc, err := time.LoadLocation(zone)
	if err != nil {
		return nil, fmt.Errorf("time zone %q is not known; use an IANA name, such as Europe/Berlin", zone)
	}
	parsed, err := parser.Parse(expr)
	if err != nil {
		return nil, fmt.Errorf("%q is no schedule: %w (minute hour day-of-month month day-of-week; Sunday is 0)", expr, err)
	}
	s := &Schedule{spec: parsed.(*cron.SpecSchedule), loc: loc}
	s.spec.Location = time.UTC // wall-clock times are calculated with as if they were UTC
	if s.spec.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, fmt.Errorf("%q never ticks: no such date comes", expr)
	}
	return s, nil
}

// Next is the first tick after t. It is never zero.
func (s *Schedule) Next(t time.Time) time.Time {
	if s.spec.Hour&everyHour != 0 {
		return s.nextHourly(t)
	}
	// The wall clock can show again what it showed before, so begin a day earlier and take what is after t.
	for wall := wallClock(t.In(s.loc)).AddDate(0, 0, -1); ; {
		wall = s.spec.Next(wall)
		if tick := s.instant(wall); tick.After(t) {
			return tick
		}
	}
}

// nextHourly looks at each minute that passes, but only on days that match.
func (s *Schedule) nextHourly(t time.Time) time.Time {
	t = t.Truncate(time.Minute).Add(time.Minute).In(s.loc)
	for {
		day := wallClock(t)
		if next := s.spec.Next(startOfDay(day).Add(-time.Second)); startOfDay(next).After(startOfDay(day)) {
			t = s.instant(startOfDay(next))
			continue
		}
		if s.spec.Minute&(1<<t.Minute()) != 0 {
			return t
		}
		t = t.Add(time.Minute).In(s.loc)
	}
}

// instant is when a wall clock in s.loc first shows wall, or the moment the clocks go forward over it.
func (s *Schedule) instant(wall time.Time) time.Time {
	at := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), 0, 0, s.loc)
	start, end := at.ZoneBounds()
	switch shown := wallClock(at); {
	case shown.After(wall): // skipped, and at is after the gap
		return start
	case shown.Before(wall): // skipped, and at is before the gap
		return end
	}
	if !start.IsZero() {
		// Before the clocks last changed, they may have shown the same.
		_, offset := at.Zone()
		_, before := start.Add(-time.Second).Zone()
		if first := at.Add(time.Duration(offset-before) * time.Second); first.Before(start) && wallClock(first.In(s.loc)).Equal(wall) {
			return first.In(s.loc)
		}
	}
	return at
}

// wallClock is what a clock in t's zone shows, as if it were UTC.
func wallClock(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
}

func startOfDay(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, t.Location())
}
