package cron

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func ticks(t *testing.T, expr, zone, from, to string) []string {
	t.Helper()
	s, err := Parse(expr, zone)
	if err != nil {
		t.Fatal(err)
	}
	loc, _ := time.LoadLocation(zone)
	at, err1 := time.ParseInLocation("2006-01-02 15:04", from, loc)
	end, err2 := time.ParseInLocation("2006-01-02 15:04", to, loc)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	var out []string
	for at = s.Next(at.Add(-time.Second)); at.Before(end); at = s.Next(at) {
		out = append(out, at.In(loc).Format("01-02 15:04 -07"))
	}
	return out
}

func TestTicksOnDaysOnWhichClocksChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, expr, zone, from, to, want string }{
		{"a skipped time ticks when the clocks go forward, once", "30 2 * * *", "Europe/Berlin", "2026-03-28 12:00", "2026-03-30 12:00", "03-29 03:00 +02, 03-30 02:30 +02"},
		{"skipped times that fall together tick once", "0,15,30 2 * * *", "Europe/Berlin", "2026-03-29 00:00", "2026-03-29 12:00", "03-29 03:00 +02"},
		{"the time the clocks go forward to ticks once", "0 3 * * *", "Europe/Berlin", "2026-03-29 00:00", "2026-03-30 00:00", "03-29 03:00 +02"},
		{"a repeated time ticks at the first", "30 2 * * *", "Europe/Berlin", "2026-10-25 00:00", "2026-10-26 12:00", "10-25 02:30 +02, 10-26 02:30 +01"},
		{"a repeated time ticks at the first, in America", "30 1 * * *", "America/New_York", "2026-11-01 00:00", "2026-11-01 23:00", "11-01 01:30 -04"},
		{"the hour after the repeated one", "0 3 * * *", "Europe/Berlin", "2026-10-25 00:00", "2026-10-26 00:00", "10-25 03:00 +01"},
		{"midnight that does not exist", "0 0 * * *", "America/Santiago", "2026-09-05 12:00", "2026-09-07 12:00", "09-06 01:00 -03, 09-07 00:00 -03"},
		{"a day that does not exist", "0 12 * * *", "Pacific/Apia", "2011-12-28 12:00", "2012-01-01 00:00", "12-28 12:00 -10, 12-29 12:00 -10, 12-31 00:00 +14, 12-31 12:00 +14"},
		{"a shift of half an hour", "15 2 * * *", "Australia/Lord_Howe", "2026-10-03 12:00", "2026-10-05 12:00", "10-04 02:30 +11, 10-05 02:15 +11"},
		{"every hour means every hour that passes", "0 * * * *", "Australia/Lord_Howe", "2026-10-04 00:00", "2026-10-04 05:00", "10-04 00:00 +10, 10-04 01:00 +10, 10-04 03:00 +11, 10-04 04:00 +11"},
		{"Sundays only, or the 13th", "0 9 13 * 0", "UTC", "2026-11-12 00:00", "2026-11-23 00:00", "11-13 09:00 +00, 11-15 09:00 +00, 11-22 09:00 +00"},
		{"the end of February", "0 0 29 2 *", "UTC", "2026-01-01 00:00", "2033-01-01 00:00", "02-29 00:00 +00, 02-29 00:00 +00"},
		{"hourly on one day of the year", "0 * 29 2 *", "UTC", "2028-02-29 22:00", "2032-02-29 01:00", "02-29 22:00 +00, 02-29 23:00 +00, 02-29 00:00 +00"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := strings.Join(ticks(t, c.expr, c.zone, c.from, c.to), ", "); got != c.want {
				t.Errorf("%s in %s: %s; want %s", c.expr, c.zone, got, c.want)
			}
		})
	}
}

func TestEveryHourOfALongAndAShortDay(t *testing.T) {
	t.Parallel()
	for day, want := range map[string]int{"2026-11-01": 25, "2026-03-08": 23, "2026-06-01": 24} {
		next, _ := time.Parse("2006-01-02", day)
		tomorrow := next.AddDate(0, 0, 1).Format("2006-01-02")
		if n := len(ticks(t, "0 * * * *", "America/New_York", day+" 00:00", tomorrow+" 00:00")); n != want {
			t.Errorf("%s has %d hourly ticks; want %d", day, n, want)
		}
		if n := len(ticks(t, "*/15 * * * *", "America/New_York", day+" 00:00", tomorrow+" 00:00")); n != 4*want {
			t.Errorf("%s has %d quarters; want %d", day, n, 4*want)
		}
	}
}

// In any zone, ticks only grow, come again from any instant between two of them, and show their wall-clock time unless
// that does not exist.
func TestTicksInManyZones(t *testing.T) {
	t.Parallel()
	zones := []string{"UTC", "Europe/Berlin", "America/New_York", "America/Santiago", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca", "Pacific/Apia", "America/St_Johns", "Asia/Tehran", "Antarctica/Troll", "Europe/Dublin"}
	exprs := []string{"30 2 * * *", "0 * * * *", "*/7 * * * *", "0 0 * * *", "59 23 31 12 *", "15,45 1-3 * * 0", "0 12 1 * *"}
	for _, zone := range zones {
		for _, expr := range exprs {
			s, err := Parse(expr, zone)
			if err != nil {
				t.Fatal(err)
			}
			at := time.Date(1995+rand.IntN(45), time.Month(1+rand.IntN(12)), 1+rand.IntN(28), rand.IntN(24), rand.IntN(60), rand.IntN(60), 0, time.UTC)
			for range 400 {
				next := s.Next(at)
				if !next.After(at) {
					t.Fatalf("%s in %s: the tick after %s is %s", expr, zone, at, next)
				}
				between := at.Add(time.Duration(rand.Int64N(int64(next.Sub(at)))))
				if again := s.Next(between); !again.Equal(next) {
					t.Fatalf("%s in %s: the tick after %s is %s, but from %s on it is %s", expr, zone, at, next, between, again)
				}
				at = next
			}
		}
	}
}

func TestExpressionsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ expr, zone, want string }{
		{"", "", "is no schedule"},
		{"* * * *", "", "5 fields"},
		{"60 * * * *", "", "above maximum"},
		{"0 9 * * 7", "", "Sunday is 0"},
		{"0 0 13 * 5 *", "", "5 fields"},
		{"0 0 31 2 *", "", "never ticks"},
		{"@every 5m", "", "no fixed ticks"},
		{"TZ=UTC 0 0 * * *", "", "use tz="},
		{"CRON_TZ=UTC", "", "use tz="},
		{"0 0 * * *", "Mars/Olympus", "is not known"},
		{"0 0 * * *", "Local", "differs"},
	} {
		if _, err := Parse(c.expr, c.zone); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Parse(%q, %q): %v; want an error with %q", c.expr, c.zone, err, c.want)
		}
	}
}
