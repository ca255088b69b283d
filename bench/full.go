package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// What finished, dead and scheduled jobs cost those that are to run.

// others are what tables hold beside each job that is drained.
type others struct{ finished, dead, scheduled int }

var (
	someOthers = others{10, 1, 1}
	manyOthers = others{100, 10, 10} // of a drain of 100,000: ten million, and twice a million
)

var (
	claimCPU    = labelled(partOf(partClaim).metric(), "claim µs")
	completeCPU = labelled(partOf(partComplete).metric(), "complete µs")
)

func labelled(m metric, label string) metric {
	m.label = label
	return m
}

const fullNote = "Beside each job that is drained there are %d results of finished ones on record, %d dead, and %d for next week, of higher priority."

var fullTables = contest{
	name: "full", group: "full", title: "Drain of %s no-op jobs from tables that hold others", jobs: all,
	note:     fmt.Sprintf(fullNote, someOthers.finished, someOthers.dead, someOthers.scheduled),
	entrants: []entrant{drainBeside(others{}), drainBeside(someOthers)},
}

var fullest = contest{
	name: "full-10m", group: "full-10m", title: "Drain of %s no-op jobs from tables that hold far more", jobs: all,
	metrics: []metric{rate, claimCPU, completeCPU, cpu},
	note: fmt.Sprintf(fullNote, manyOthers.finished, manyOthers.dead, manyOthers.scheduled) +
		" Claim, complete: server CPU per job, as the server tells it of each statement.",
	entrants: []entrant{dissected(drainBeside(others{})), dissected(drainBeside(manyOthers))},
}

var fullRatios = []ratio{
	{key: "full/empty", says: "drain, jobs/s: from full tables over from tables with nothing else", metric: rate, ours: []term{{"full", "full"}}, other: []term{{"full", "empty"}}},
	{key: "cpu-full/empty", says: "drain, client + server CPU per job: the same", metric: cpu, ours: []term{{"full", "full"}}, other: []term{{"full", "empty"}}},
	fullerRatio("full-10m/empty", "drain, jobs/s: from tables with 100 times as many jobs finished and 20 times as many dead or scheduled, over from empty ones", rate),
	fullerRatio("cpu-full-10m/empty", "client + server CPU per job: the same", cpu),
	fullerRatio("claim-full-10m/empty", "server CPU of claiming a job: the same", claimCPU),
	fullerRatio("complete-full-10m/empty", "server CPU of completing a job: the same", completeCPU),
}

func fullerRatio(key, says string, m metric) ratio {
	return ratio{key: key, says: says, metric: m, ours: []term{{"full-10m", "full"}}, other: []term{{"full-10m", "empty"}}}
}

func dissected(e entrant) entrant {
	e.components = true
	return e
}

func drainBeside(o others) entrant {
	if o == (others{}) {
		return variant{name: "empty", label: "nothing else", note: "default settings"}.entrant()
	}
	e := variant{name: "full", label: "full tables", note: "default settings"}.entrant()
	e.fill = o.fill
	e.verify = func(ctx context.Context, conn *pgx.Conn, n int) error {
		if err := expect(ctx, conn, n*o.finished, `SELECT count(*) FROM jobgen.job_result WHERE finished_at IS NOT NULL`); err != nil {
			return err
		}
		if err := expect(ctx, conn, n*o.dead, `SELECT count(*) FROM jobgen.jobs WHERE status = 'dead'`); err != nil {
			return err
		}
		return expect(ctx, conn, n*(o.dead+o.scheduled), `SELECT count(*) FROM jobgen.jobs`)
	}
	return e
}

// fillStep is how many rows one statement inserts.
const fillStep = 500_000

func (o others) fill(ctx context.Context, url string, n int, say func(string)) error {
	return withPool(ctx, url, 1, func(pool *pgxpool.Pool) error {
		for _, f := range []struct {
			what   string
			rows   int
			insert string
		}{
			{"finished", n * o.finished, `INSERT INTO jobgen.job_result (kind, key, job_id, finished_at, expires_at, result)
				SELECT 'bench.done', i::text, 1000000000 + i, clock_timestamp(), clock_timestamp() + interval '1 day', '{}' FROM generate_series($1::int, $2::int) i`},
			{"dead", n * o.dead, `INSERT INTO jobgen.jobs (id, queue, kind, payload, status, attempt)
				SELECT 2000000000 + i, 'bench', 'bench.plain', '{"n": -1}', 'dead', 20 FROM generate_series($1::int, $2::int) i`},
			{"scheduled", n * o.scheduled, `INSERT INTO jobgen.jobs (id, queue, kind, payload, priority, run_at)
				SELECT 3000000000 + i, 'bench', 'bench.plain', '{"n": -1}', 5, now() + interval '7 days' FROM generate_series($1::int, $2::int) i`},
		} {
			for from := 1; from <= f.rows; from += fillStep {
				if f.rows > fillStep {
					say(fmt.Sprintf("%s of %s %s", count(float64(from-1)), count(float64(f.rows)), f.what))
				}
				if _, err := pool.Exec(ctx, f.insert, from, min(from+fillStep-1, f.rows)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
