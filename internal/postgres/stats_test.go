package postgres_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/internal/postgres"
)

// level finds the level of a kind in a queue.
func level(l postgres.Look, queue, kind string) postgres.Level {
	for _, v := range l.Levels {
		if v.Queue == queue && v.Kind == kind {
			return v
		}
	}
	return postgres.Level{Queue: queue, Kind: kind}
}

// short is a level without its oldest.
func short(l postgres.Level) string {
	return fmt.Sprintf("%s/%s %d ready, %d scheduled, %d running, %d dead", l.Queue, l.Kind, l.Ready, l.Scheduled, l.Running, l.Dead)
}

func TestALookAtASmallTableIsExact(t *testing.T) {
	t.Parallel()
	f := open(t)
	op := postgres.Operator{Pool: f.pool}
	empty, err := op.Look(f.ctx())
	f.no(err)
	if len(empty.Levels) != 0 || empty.Share != 1 || empty.NewestID != 0 || empty.At.IsZero() {
		t.Errorf("of an empty database: %+v", empty)
	}
	ids := f.enqueue(20)
	f.exec(`UPDATE jobgen.jobs SET run_at = now() - interval '1 hour' WHERE id = $1`, ids[19])
	f.exec(`UPDATE jobgen.jobs SET run_at = now() + interval '1 hour' WHERE id = ANY($1)`, ids[:3])
	f.exec(`UPDATE jobgen.jobs SET status = 'dead' WHERE id = ANY($1)`, ids[3:5])
	f.exec(`UPDATE jobgen.jobs SET kind = 'l', priority = 3 WHERE id = ANY($1)`, ids[5:7])
	f.exec(`UPDATE jobgen.jobs SET crashes = 2 WHERE id = $1`, ids[7])
	f.claim(f.worker(time.Minute), 1) // of kind l, which goes first
	l, err := op.Look(f.ctx())
	f.no(err)
	if l.Share != 1 || l.NewestID != ids[19] || len(l.Levels) != 2 {
		t.Errorf("%+v", l)
	}
	for _, want := range []string{"q/k 13 ready, 3 scheduled, 0 running, 2 dead", "q/l 1 ready, 0 scheduled, 1 running, 0 dead"} {
		if got := short(level(l, "q", want[2:3])); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if oldest := level(l, "q", "k").Oldest; oldest < time.Hour || oldest > time.Hour+time.Minute {
		t.Errorf("the oldest has waited %s", oldest)
	}
}

// Of a big table what is small is exact all the same: short queues, few dead, what runs, the age of the oldest.
func TestALookAtAPartOfTheTableIsExactWhereItCanBe(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.worker(time.Minute)
	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, run_at, priority)
	        SELECT 'q', CASE WHEN i % 4 = 0 THEN 'l' ELSE 'k' END, '{}', now() - i * interval '1 second', 1 FROM generate_series(1, 40000) i`)
	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, run_at) SELECT 'q', 'm', '{}', now() + interval '1 hour' FROM generate_series(1, 7) i`)
	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, status) SELECT 'q', 'k', '{}', 'dead' FROM generate_series(1, 5) i`)
	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, run_at) VALUES ('short', 'k', '{}', now() - interval '1 minute')`)
	f.exec(`INSERT INTO jobgen.queues (name) VALUES ('short')`)
	held := f.claim(w, 20)
	l, err := postgres.Operator{Pool: f.pool}.LookAtPart(f.ctx(), 250)
	f.no(err)
	if l.Share > 0.5 || l.Share < 0.05 {
		t.Fatalf("looked at %v", l.Share)
	}
	running := level(l, "q", "k").Running + level(l, "q", "l").Running
	if got := level(l, "q", "m"); running != int64(len(held)) || got.Scheduled != 7 || got.Ready != 0 || level(l, "q", "k").Dead != 5 || level(l, "short", "k").Ready != 1 {
		t.Errorf("%+v", l.Levels)
	}
	for kind, want := range map[string]float64{"k": 30000, "l": 10000} {
		if got := level(l, "q", kind); math.Abs(float64(got.Ready)/want-1) > 0.2 {
			t.Errorf("%s, want about %.0f", short(got), want)
		}
	}
	if oldest := max(level(l, "q", "k").Oldest, level(l, "q", "l").Oldest); oldest < 39_970*time.Second || oldest > 40_100*time.Second {
		t.Errorf("the oldest has waited %s", oldest)
	}
}

func TestSamplesAreReadAsTheyStand(t *testing.T) {
	t.Parallel()
	f := open(t)
	op := postgres.Operator{Pool: f.pool}
	f.exec(`INSERT INTO jobgen.samples (minute, queue, kind, succeeded, run_us, run_times, summed) VALUES
	        ('-infinity', 'q', 'k', 100, 1000000, '{90,10}', false), (date_trunc('minute', now()) - interval '1 day', 'q', 'k', 7, 1, '{7}', true)`)
	f.exec(`INSERT INTO jobgen.samples (minute, queue, kind, arrived, succeeded, failed, timed_out, snoozed, cancelled, died, reclaimed, run_us, run_times)
	        VALUES (date_trunc('minute', now()) - interval '1 minute', 'q', 'k', 1, 2, 3, 4, 5, 6, 7, 8, 9, '{1,2,3}')`)
	f.exec(`INSERT INTO jobgen.samples (minute, queue, kind, ready, scheduled, running, dead, oldest_us) VALUES (date_trunc('minute', now()), 'q', 'k', 1, 2, 3, 4, 5)`)
	f.exec(`INSERT INTO jobgen.looks (minute, newest_id, share) VALUES (date_trunc('minute', now()), 9, 0.25)`)
	got, err := op.Samples(f.ctx(), time.Hour)
	f.no(err)
	if len(got) != 2 || got[0].Level != nil || got[1].Level == nil || got[1].Minute.Sub(got[0].Minute) != time.Minute {
		t.Fatalf("%+v", got)
	}
	if s := got[0]; fmt.Sprint(s.Arrived, s.Succeeded, s.Failed, s.TimedOut, s.Snoozed, s.Cancelled, s.Died, s.Reclaimed, s.RunTime, s.RunTimes) != "1 2 3 4 5 6 7 8 9µs [1 2 3]" {
		t.Errorf("%+v", s)
	}
	if *got[1].Level != (postgres.Level{Queue: "q", Kind: "k", Ready: 1, Scheduled: 2, Running: 3, Dead: 4, Oldest: 5 * time.Microsecond}) {
		t.Errorf("%+v", *got[1].Level)
	}
	looks, err := op.Looks(f.ctx(), time.Hour)
	f.no(err)
	if len(looks) != 1 || looks[0].Share != 0.25 || looks[0].NewestID != 9 {
		t.Errorf("%+v", looks)
	}
	totals, err := op.Totals(f.ctx())
	f.no(err)
	if s := totals[0]; len(totals) != 1 || fmt.Sprint(s.Arrived, s.Succeeded, s.Reclaimed, s.RunTime, s.RunTimes) != "1 102 8 1.000009s [91 12 3]" || s.Level != nil {
		t.Errorf("%+v", totals)
	}
}
