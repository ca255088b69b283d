package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/internal/pgproxy"
	"github.com/jobgen-go/jobgen/jobs"
)

// fault is something that goes wrong, or that is done to a live queue. It returns when it has been undone.
type fault struct {
	name   string
	weight int
	do     func(ctx context.Context, w *world, s step)
}

// step is a fault of a plan, with what the seed has decided about it.
type step struct {
	after time.Duration // since the step before
	fault fault
	place int           // of the worker that it hits
	for_  time.Duration // how long it lasts
	dice  uint64        // whatever else is to be decided
}

func (s step) String() string {
	return fmt.Sprintf("%-22s place %d, %v, dice %d", s.fault.name, s.place, s.for_, s.dice%1000)
}

// plan is the schedule of a seed.
func plan(seed uint64, length time.Duration, places int, only string) (steps []step) {
	random := rand.New(rand.NewPCG(seed, 0))
	sum := 0
	for _, f := range faults {
		sum += f.weight
	}
	for at := time.Duration(0); at < length; {
		s := step{after: time.Duration(100+random.IntN(700)) * time.Millisecond, place: random.IntN(places), dice: random.Uint64()}
		s.for_ = []time.Duration{lease / 3, lease, 2 * lease, 3 * lease}[random.IntN(4)] + time.Duration(random.IntN(500))*time.Millisecond
		n := random.IntN(sum)
		for _, f := range faults {
			if n -= f.weight; only == f.name || only == "" && n < 0 {
				s.fault = f
				break
			}
		}
		at += s.after
		steps = append(steps, s)
	}
	return steps
}

var faults = []fault{
	{"kill", 6, func(_ context.Context, w *world, s step) { w.places[s.place].signal(syscall.SIGKILL) }},
	{"freeze", 6, func(ctx context.Context, w *world, s step) {
		p := w.places[s.place]
		p.signal(syscall.SIGSTOP)
		wait(ctx, s.for_)
		p.signal(syscall.SIGCONT)
	}},
	{"terminate", 4, func(ctx context.Context, w *world, s step) {
		for range 1 + s.dice%3 {
			w.places[s.place].signal(syscall.SIGTERM)
			wait(ctx, time.Duration(s.dice%50)*time.Millisecond)
		}
	}},
	{"connections end", 3, func(ctx context.Context, w *world, s step) {
		w.exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid % 3 = $1`, s.dice%3)
	}},
	{"listeners end", 2, func(ctx context.Context, w *world, _ step) {
		w.exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'listen%'`)
	}},
	{"server crashes", 2, func(ctx context.Context, w *world, _ step) {
		if pid := w.backend(ctx); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // its postmaster ends all and recovers
		}
	}},
	{"server away", 2, func(ctx context.Context, w *world, s step) {
		w.maintain(ctx, `ALTER DATABASE %s ALLOW_CONNECTIONS false`)
		w.maintain(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '%s'`)
		wait(ctx, s.for_)
		w.maintain(context.WithoutCancel(ctx), `ALTER DATABASE %s ALLOW_CONNECTIONS true`)
	}},
	{"read-only", 2, func(ctx context.Context, w *world, s step) {
		w.maintain(ctx, `ALTER DATABASE %s SET default_transaction_read_only = on`)
		w.maintain(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '%s'`)
		wait(ctx, s.for_)
		w.maintain(context.WithoutCancel(ctx), `ALTER DATABASE %s RESET default_transaction_read_only`)
		w.maintain(context.WithoutCancel(ctx), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '%s'`)
	}},
	{"cut at a message", 10, func(ctx context.Context, w *world, s step) {
		match := pgproxy.Runs(cutAt[s.dice%uint64(len(cutAt))])
		act := []pgproxy.Act{pgproxy.CutBefore, pgproxy.CutSent, pgproxy.CutDuring, pgproxy.CutInside, pgproxy.CutShort, pgproxy.CutAfter, pgproxy.StrandBefore, pgproxy.StrandDuring}[s.dice>>8%8]
		t := w.proxies[s.place].On(match, 1+int(s.dice>>16%5), act)
		select {
		case <-t.Done():
		case <-ctx.Done():
		}
		t.Disarm()
	}},
	{"network gone", 3, func(ctx context.Context, w *world, s step) { // packets are dropped, nobody is told
		w.proxies[s.place].Freeze()
		wait(ctx, s.for_)
		w.proxies[s.place].Heal()
	}},
	{"answers gone", 2, func(ctx context.Context, w *world, s step) {
		w.proxies[s.place].Pass(true, false)
		wait(ctx, s.for_)
		w.proxies[s.place].Heal()
	}},
	{"stranded", 2, func(_ context.Context, w *world, s step) { w.proxies[s.place].Strand() }},
	{"network slow", 2, func(ctx context.Context, w *world, s step) {
		ctx, cancel := context.WithTimeout(ctx, s.for_)
		defer cancel()
		for p := w.proxies[s.place]; ctx.Err() == nil; wait(ctx, 5*time.Millisecond) {
			p.Freeze()
			wait(ctx, time.Duration(20+s.dice%80)*time.Millisecond)
			p.Heal()
		}
	}},
	{"refused", 1, func(ctx context.Context, w *world, s step) {
		w.proxies[s.place].Refuse(true)
		w.proxies[s.place].Cut()
		wait(ctx, s.for_)
		w.proxies[s.place].Refuse(false)
	}},
	{"rows locked", 2, func(ctx context.Context, w *world, s step) {
		w.hold(ctx, s.for_, pgx.ReadCommitted, `SELECT FROM jobgen.jobs WHERE id % 3 = $1 FOR UPDATE SKIP LOCKED`, s.dice%3)
	}},
	{"table locked", 1, func(ctx context.Context, w *world, s step) {
		w.hold(ctx, s.for_, pgx.ReadCommitted, []string{`LOCK jobgen.jobs`, `LOCK jobgen.workers`, `LOCK jobgen.claims`, `LOCK jobgen.job_result`}[s.dice%4])
	}},
	{"snapshot held", 2, func(ctx context.Context, w *world, s step) {
		w.hold(ctx, 3*s.for_, pgx.RepeatableRead, `SELECT count(*) FROM jobgen.workers`)
	}},
	{"upkeep by hand", 3, func(ctx context.Context, w *world, s step) {
		w.exec(ctx, []string{`VACUUM FULL jobgen.jobs`, `VACUUM FULL jobgen.claims`, `REINDEX TABLE jobgen.jobs`, `REINDEX TABLE CONCURRENTLY jobgen.jobs`,
			`ALTER TABLE jobgen.jobs ADD COLUMN IF NOT EXISTS strange int`, `ALTER TABLE jobgen.jobs DROP COLUMN IF EXISTS strange`,
			`CREATE INDEX IF NOT EXISTS strange ON jobgen.jobs (queue, run_at)`, `DROP INDEX IF EXISTS jobgen.strange`, `ANALYZE jobgen.jobs`}[s.dice%9])
	}},
	{"cancels", 2, func(ctx context.Context, w *world, s step) {
		for _, id := range w.ids(ctx, `SELECT id FROM jobgen.jobs WHERE id % 7 = $1 LIMIT 20`, s.dice%7) {
			_, _ = jobs.Cancel(ctx, w.pool, id, "a cancel")
		}
	}},
	{"queue paused", 2, func(ctx context.Context, w *world, s step) {
		q := queues[s.dice%3]
		_ = jobs.PauseQueue(ctx, w.pool, q)
		wait(ctx, s.for_)
		w.until(context.WithoutCancel(ctx), func(ctx context.Context) error { return jobs.ResumeQueue(ctx, w.pool, q) })
	}},
	{"queue limited", 1, func(ctx context.Context, w *world, s step) {
		q := queues[s.dice%3]
		_ = jobs.SetQueueSlots(ctx, w.pool, q, int(s.dice>>8%5)+1)
		wait(ctx, s.for_)
		w.until(context.WithoutCancel(ctx), func(ctx context.Context) error { return jobs.SetQueueSlots(ctx, w.pool, q, 0) })
	}},
}

// cutAt are texts of the statements at which connections are cut.
var cutAt = []string{"-- name: Claim ", "-- name: ClaimSuspect ", "-- name: Complete ", "-- name: CompleteRecorded ", "-- name: CompleteUnkeyed ", "-- name: Fail ",
	"-- name: Release ", "-- name: Heartbeat ", "-- name: MarkLost ", "-- name: Reclaim ", "-- name: Register ", "-- name: Leave ", "-- name: Sleep ", "-- name: Awake ",
	"-- name: Signs ", "-- name: Control ", "-- name: CancelHeld ", "begin", "commit", "commit", "commit", "rollback", "faults.effect", "listen"}
