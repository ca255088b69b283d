package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// ticking is a kind with one schedule, which leaves the tick of each of its jobs as an effect.
func ticking(schedules ...jobs.Schedule) *jobs.Spec[task, jobs.None] {
	s := kind("nightly")
	s.Schedules = schedules
	return s
}

func leaveTick(db jobs.DB, s *jobs.Spec[task, jobs.None]) func(*worker.Registry) {
	return func(r *worker.Registry) {
		worker.HandleNone(r, s, func(ctx context.Context, j *jobs.Job[task]) error {
			return leave(ctx, db, j.Payload.N, j.ScheduledAt().UTC().Format(time.RFC3339))
		})
	}
}

// G10: there is no leader, and any number of workers enqueue each tick once, also those that nobody was there for.
func TestG10EachTickIsEnqueuedOnce(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := ticking(jobs.Schedule{Name: "n", Cron: "0 * * * *", Zone: "Europe/Berlin", Missed: jobs.MissedAll})
	execute(t, pool, `INSERT INTO jobgen.schedules (kind, name, cron, zone, missed, next_at)
		VALUES ('nightly', 'n', '0 * * * *', 'Europe/Berlin', 'all', date_trunc('hour', now()) - interval '2 days')`)
	want := one[int](t, pool, `SELECT count(*) FROM generate_series(date_trunc('hour', now()) - interval '2 days', now(), '1 hour')`)
	for range 6 {
		start(t, pool, worker.Config{Concurrency: 2}, leaveTick(pool, spec))
	}
	eventually(t, soon, "all ticks have run", func() bool { return one[int](t, pool, `SELECT count(*) FROM effect`) >= want })
	drained(t, pool, soon)
	ran := all[string](t, pool, `SELECT what FROM effect ORDER BY what::timestamptz`)
	distinct := slices.Compact(slices.Clone(ran))
	if len(ran) != len(distinct) || len(ran) > want+1 { // the clock may strike meanwhile
		t.Errorf("%d jobs ran for %d ticks, %d of them due at the start: %v", len(ran), len(distinct), want, ran)
	}
	if first := one[bool](t, pool, `SELECT min(what::timestamptz) = date_trunc('hour', now() - interval '2 days') OR date_part('minute', now()) = 0 FROM effect`); !first {
		t.Errorf("the first tick that ran is %s", ran[0])
	}
}

// A tick wakes a worker that sleeps and is enqueued when it is due, by the database's clock (G12).
func TestG12ATickIsDueByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	pool := database(t)
	execute(t, pool, `INSERT INTO jobgen.schedules (kind, name, cron, zone, missed, next_at)
		VALUES ('nightly', 'n', '0 3 * * *', 'UTC', 'once', date_trunc('second', now()) + interval '2 seconds')`)
	start(t, pool, worker.Config{}, leaveTick(pool, ticking(jobs.Schedule{Name: "n", Cron: "0 3 * * *", Zone: "UTC"})))
	eventually(t, soon, "the tick has run", func() bool { return one[int](t, pool, `SELECT count(*) FROM effect`) == 1 })
	if early := one[bool](t, pool, `SELECT at < what::timestamptz FROM effect`); early {
		t.Error("the job of a tick ran before the tick")
	}
	if next := one[bool](t, pool, `SELECT next_at > now() AND extract(hour FROM next_at AT TIME ZONE 'UTC') = 3 AND last_at < now() FROM jobgen.schedules`); !next {
		t.Error("the schedule has not moved on to the next night")
	}
}

// A restart keeps what is due; another expression or zone begins anew; what is not declared any more is forgotten, of the
// worker's own kinds only.
func TestSchedulesAreStoredWhenAWorkerStarts(t *testing.T) {
	t.Parallel()
	pool := database(t)
	execute(t, pool, `INSERT INTO jobgen.schedules (kind, name, cron, zone, missed, next_at) VALUES
		('nightly', 'kept', '0 3 * * *', 'UTC', 'skip', '2100-01-01'),
		('nightly', 'moved', '0 3 * * *', 'UTC', 'skip', '2100-01-01'),
		('nightly', 'gone', '0 3 * * *', 'UTC', 'skip', '2100-01-01'),
		('others', 'gone', '0 3 * * *', 'UTC', 'skip', '2100-01-01')`)
	spec := ticking(
		jobs.Schedule{Name: "kept", Cron: "0 3 * * *", Zone: "UTC", Missed: jobs.MissedAll},
		jobs.Schedule{Name: "moved", Cron: "0 3 * * *", Zone: "Asia/Tokyo", Missed: jobs.MissedSkip},
		jobs.Schedule{Name: "new", Cron: "@daily"},
	)
	w := start(t, pool, worker.Config{}, leaveTick(pool, spec))
	eventually(t, soon, "the worker has started", func() bool { return w.log.has("worker started") })
	got := strings.Join(all[string](t, pool, `SELECT kind || ' ' || name || ' ' || missed || ' ' || (next_at = '2100-01-01') FROM jobgen.schedules ORDER BY 1`), ", ")
	if want := "nightly kept all true, nightly moved skip false, nightly new once false, others gone skip true"; got != want {
		t.Errorf("stored: %s\nwant:   %s", got, want)
	}
}

func TestMistakesInSchedulesAreFoundWhenTheWorkerIsMade(t *testing.T) {
	t.Parallel()
	pool := database(t)
	for want, schedules := range map[string][]jobs.Schedule{
		"is no schedule":    {{Name: "a", Cron: "99 * * * *"}},
		"is not known":      {{Name: "a", Cron: "0 * * * *", Zone: "Mars/Olympus"}},
		`has the name ""`:   {{Cron: "0 * * * *"}},
		"unique in":         {{Name: "a", Cron: "0 * * * *"}, {Name: "a", Cron: "1 * * * *"}},
		`policy "sometime`:  {{Name: "a", Cron: "0 * * * *", Missed: "sometimes"}},
		"have the same key": nil,
	} {
		spec := ticking(schedules...)
		if schedules == nil {
			spec = ticking(jobs.Schedule{Name: "a", Cron: "0 * * * *"})
			spec.Key = func(k *jobs.KeyBuilder, p task) { k.Int(1) }
		}
		var reg worker.Registry
		leaveTick(pool, spec)(&reg)
		if _, err := worker.New(pool, &reg, worker.Config{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New: %v; want an error with %q", err, want)
		}
	}
}

// A kind that was renamed: its new handler runs what was enqueued under the old name, a key taken under the old name is
// taken, and a job can be awaited by its id under either.
func TestARenamedKindGoesOn(t *testing.T) {
	t.Parallel()
	pool := database(t)
	old, renamed := keyed("charge"), keyed("billing.charge")
	renamed.Was = []string{"charge", "charge_card"}
	waiting := enqueue(t, pool, old, task{N: 1})
	taken := enqueue(t, pool, renamed, task{N: 1})
	if !taken.Existing || taken.ID != waiting.ID || taken.Kind != "charge" {
		t.Errorf("a key that is taken under the old name gives %+v, not job %d", taken, waiting.ID)
	}
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, renamed, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
			return fmt.Sprint(j.Kind, " ", j.Payload.N), leave(ctx, pool, j.Payload.N, j.Kind)
		})
	})
	for _, ref := range []jobs.Ref[string]{waiting, taken, jobs.RefTo(renamed, waiting.ID)} {
		if got, err := await(t, pool, ref); got != "charge 1" || err != nil {
			t.Errorf("awaiting %+v: %q, %v", ref, got, err)
		}
	}
	refs := enqueueMany(t, pool, renamed, []task{{N: 2}, {N: 1}, {N: 3}, {N: 2}})
	for i, want := range []string{"billing.charge 2", "charge 1", "billing.charge 3", "billing.charge 2"} {
		if got, err := await(t, pool, refs[i]); got != want || err != nil {
			t.Errorf("ref %d: %q, %v; want %q", i, got, err, want)
		}
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 3 {
		t.Errorf("%d handlers ran for three keys", n)
	}
}

// Rows of older versions pass through their upgrade functions; one that cannot be upgraded fails its own attempt.
func TestOlderPayloadsAreUpgraded(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("versioned")
	spec.Version, spec.MaxAttempts = 3, 1
	spec.Upgrade = []func(json.RawMessage) (task, error){
		func(old json.RawMessage) (task, error) {
			var v1 struct{ Number string }
			if err := json.Unmarshal(old, &v1); err != nil || v1.Number == "" {
				return task{}, errors.Join(err, errors.New("no number"))
			}
			return task{N: len(v1.Number), Do: "v1"}, nil
		},
		func(old json.RawMessage) (task, error) { return task{N: 2, Do: "v2"}, nil },
	}
	insert := func(version int, payload string) jobs.Ref[string] {
		return jobs.RefTo(spec, one[int64](t, pool, `INSERT INTO jobgen.jobs (queue, kind, version, payload, max_attempts) VALUES ('q', 'versioned', $1, $2, 1) RETURNING id`, version, payload))
	}
	v1, v2, broken, newer := insert(1, `{"Number": "seven"}`), insert(2, `{}`), insert(1, `{}`), insert(4, `{}`)
	v3 := enqueue(t, pool, spec, task{N: 9})
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
			return fmt.Sprint(j.Payload.N, j.Payload.Do), nil
		})
	})
	for want, ref := range map[string]jobs.Ref[string]{"5v1": v1, "2v2": v2, "9": v3} {
		if got, err := await(t, pool, ref); got != want || err != nil {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	var dead *jobs.DeadError
	if _, err := await(t, pool, broken); !errors.As(err, &dead) || !strings.Contains(dead.LastError, "version 1 does not upgrade to version 3: no number") {
		t.Errorf("a payload that does not upgrade: %v", err)
	}
	if got := one[string](t, pool, `SELECT status || attempt FROM jobgen.jobs WHERE id = $1`, newer.ID); got != "queued0" {
		t.Errorf("a newer payload is %s, not left alone (G13)", got)
	}
	var reg worker.Registry
	spec.Upgrade = spec.Upgrade[:1]
	worker.Handle(&reg, spec, func(context.Context, *jobs.Job[task]) (string, error) { return "", nil })
	if _, err := worker.New(pool, &reg, worker.Config{}); err == nil || !strings.Contains(err.Error(), "version 3 and 1 upgrade functions") {
		t.Errorf("New with a missing upgrade function: %v", err)
	}
}

// A worker does not start when it polls a queue for which a registered package declares a kind that it cannot handle.
func TestAForgottenHandlerIsFoundWhenTheWorkerIsMade(t *testing.T) {
	t.Parallel()
	pool := database(t)
	pkg := &jobs.Package{Name: "billing", Kinds: []jobs.Declared{{Kind: "one", Queue: "q"}, {Kind: "two", Queue: "q"}, {Kind: "three", Queue: "elsewhere"}}}
	spec := kind("one")
	spec.Package = pkg
	var reg worker.Registry
	worker.HandleNone(&reg, spec, func(context.Context, *jobs.Job[task]) error { return nil })
	_, err := worker.New(pool, &reg, worker.Config{})
	if err == nil || !strings.Contains(err.Error(), `billing declares "two" for the queue "q"`) || strings.Contains(err.Error(), "three") {
		t.Errorf("New: %v", err)
	}
	if _, err := worker.New(pool, &reg, worker.Config{Queues: []string{"other"}}); err != nil {
		t.Errorf("New for another queue: %v", err)
	}
}
