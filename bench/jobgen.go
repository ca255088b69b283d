package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

var jobgenPeer = peer{name: "jobgen", migrate: func(ctx context.Context, url string) error {
	return withPool(ctx, url, 1, func(pool *pgxpool.Pool) error { return jobs.Migrate(ctx, pool) })
}}

// result is what the jobs of drain-results leave on record: {"n":12345,"state":"sent"}.
type result struct {
	N     int    `json:"n"`
	State string `json:"state"`
}

var (
	plainKind  = &jobs.Spec[payload, jobs.None]{Kind: "bench.plain", Queue: queue}
	resultKind = &jobs.Spec[payload, result]{Kind: "bench.result", Queue: queue}
)

const queue = "bench"

var drainJobgen = variant{name: "jobgen", label: "jobgen", note: "default settings (worker.Config{})"}.entrant()

var drainJobgenTuned = variant{
	name: "jobgen-tuned", label: "jobgen, tuned", note: "Concurrency 1000", config: worker.Config{Concurrency: 1000},
}.entrant()

var drainJobgenResults = entrant{
	name: "jobgen-results", label: "jobgen, with results", peer: jobgenPeer,
	note: "the same, with a typed result recorded for each job",
	seed: func(ctx context.Context, url string, n int) error { return seedJobgen(ctx, url, resultKind, n) },
	open: func(ctx context.Context, url string, n int) (*session, error) {
		return openWorker(ctx, url, n, worker.Config{}, func(reg *worker.Registry, r *roll) {
			worker.Handle(reg, resultKind, func(_ context.Context, j *jobs.Job[payload]) (result, error) {
				r.call(j.Payload.N)
				return result{N: j.Payload.N, State: "sent"}, nil
			})
		})
	},
	verify: func(ctx context.Context, conn *pgx.Conn, n int) error {
		if err := expect(ctx, conn, n, `SELECT count(DISTINCT result->>'n') FROM jobgen.job_result WHERE finished_at IS NOT NULL`); err != nil {
			return err
		}
		return emptied(ctx, conn, n)
	},
}

func seedJobgen[R any](ctx context.Context, url string, kind *jobs.Spec[payload, R], n int, opts ...jobs.Option) error {
	return withPool(ctx, url, 1, func(pool *pgxpool.Pool) error {
		_, err := jobs.EnqueueMany(ctx, pool, kind, payloads(n), opts...)
		return err
	})
}

// openWorker makes a worker. What it has to say goes to standard error, where it is seen if it fails.
func openWorker(ctx context.Context, url string, n int, config worker.Config, register func(*worker.Registry, *roll)) (*session, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	var reg worker.Registry
	r := newRoll(n)
	register(&reg, r)
	config.Logger = quiet()
	w, err := worker.New(pool, &reg, config)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &session{close: pool.Close, run: func(ctx context.Context) error {
		running, stop := context.WithCancel(ctx)
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- w.Run(running) }()
		if err := r.await(ctx, ended); err != nil {
			return err
		}
		stop()
		if err := <-ended; err != nil {
			return err
		}
		return r.verify()
	}}, nil
}

func enqueueJobgen(conns int) entrant {
	return entrant{
		name: "jobgen", label: "jobgen", peer: jobgenPeer, note: "jobs.Enqueue on a pool",
		open: func(ctx context.Context, url string, n int) (*session, error) {
			return openCallers(ctx, url, conns, n, func(pool *pgxpool.Pool) (call, error) {
				return func(ctx context.Context, i int) error {
					_, err := jobs.Enqueue(ctx, pool, plainKind, payload{N: i})
					return err
				}, nil
			})
		},
		verify: queued,
	}
}

var enqueueManyJobgen = entrant{
	name: "jobgen", label: "jobgen", peer: jobgenPeer, note: "jobs.EnqueueMany; gives back a reference for each job",
	open: func(ctx context.Context, url string, n int) (*session, error) {
		ps := payloads(n)
		return openPool(ctx, url, 1, func(ctx context.Context, pool *pgxpool.Pool) error {
			refs, err := jobs.EnqueueMany(ctx, pool, plainKind, ps)
			if err == nil && len(refs) != n {
				err = fmt.Errorf("%d references for %d jobs", len(refs), n)
			}
			return err
		})
	},
	verify: queued,
}

// emptied checks that a drain of jobgen.jobs left nothing.
func emptied(ctx context.Context, conn *pgx.Conn, _ int) error {
	return expect(ctx, conn, 0, `SELECT count(*) FROM jobgen.jobs`)
}

// queued checks that n different jobs wait in jobgen.jobs.
func queued(ctx context.Context, conn *pgx.Conn, n int) error {
	if err := expect(ctx, conn, n, `SELECT count(*) FROM jobgen.jobs`); err != nil {
		return err
	}
	return expect(ctx, conn, n, `SELECT count(DISTINCT payload->>'n') FROM jobgen.jobs WHERE status = 'queued' AND kind = 'bench.plain'`)
}
