package main

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// serving starts a worker on pool that calls handle with the number of each job. What it returns enqueues one job on
// enqueuer and, in the end, stops the worker.
type serving func(ctx context.Context, pool, enqueuer *pgxpool.Pool, handle func(i int)) (enqueue call, stop func() error, err error)

// serveJobgen is on default settings.
func serveJobgen(ctx context.Context, pool, enqueuer *pgxpool.Pool, handle func(int)) (call, func() error, error) {
	var reg worker.Registry
	worker.HandleNone(&reg, plainKind, func(_ context.Context, j *jobs.Job[payload]) error {
		handle(j.Payload.N)
		return nil
	})
	w, err := worker.New(pool, &reg, worker.Config{Logger: quiet()})
	if err != nil {
		return nil, nil, err
	}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	return func(ctx context.Context, i int) error {
			_, err := jobs.Enqueue(ctx, enqueuer, plainKind, payload{N: i})
			return err
		}, func() error {
			cancel()
			return <-ended
		}, nil
}

// serveSQL is the loop of the hand-written drain. It knows a job by its id, so that each gets the one of its number.
func serveSQL(ctx context.Context, pool, enqueuer *pgxpool.Pool, handle func(int)) (call, func() error, error) {
	var stopped atomic.Bool
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- handwrittenLoop(running, pool, handle, func(ctx context.Context) bool {
			return !stopped.Load() && pause(ctx, spiralPoll) == nil
		})
	}()
	const insert = `INSERT INTO jobgen.jobs (id, queue, kind, payload) VALUES ($1, $2, $3, $4) RETURNING id`
	return func(ctx context.Context, i int) error {
			b, err := encode([]payload{{N: i}})
			if err != nil {
				return err
			}
			var id int64
			return enqueuer.QueryRow(ctx, insert, i+1, queue, plainKind.Kind, b[0]).Scan(&id)
		}, func() error {
			stopped.Store(true)
			defer cancel()
			return <-ended
		}, nil
}

func serveRiver(config river.Config) serving {
	return func(ctx context.Context, pool, enqueuer *pgxpool.Pool, handle func(int)) (call, func() error, error) {
		workers := river.NewWorkers()
		river.AddWorker(workers, &riverWorker{handle: handle})
		config := config
		config.Logger, config.Workers = quiet(), workers
		c, err := river.NewClient(riverpgxv5.New(pool), &config)
		if err != nil {
			return nil, nil, err
		}
		inserter, err := riverInserter(enqueuer, config.FetchCooldown)
		if err != nil {
			return nil, nil, err
		}
		return func(ctx context.Context, i int) error {
			_, err := inserter.Insert(ctx, riverArgs{N: i}, nil)
			return err
		}, func() error { return c.Stop(ctx) }, c.Start(ctx)
	}
}
