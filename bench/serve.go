package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// serving starts a worker on pool that calls handle with the number of each job. What it returns enqueues one job on
// enqueuer and, in the end, stops the worker.
type serving func(ctx context.Context, pool, enqueuer *pgxpool.Pool, handle func(i int)) (enqueue call, stop func() error, err error)

// background runs run; stop ends its context and gives what it returns.
func background(ctx context.Context, run func(context.Context) error) (stop func() error) {
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- run(running) }()
	return func() error {
		cancel()
		return <-ended
	}
}

// startJobgen starts a worker on default settings.
func startJobgen(ctx context.Context, pool *pgxpool.Pool, reg *worker.Registry) (stop func() error, err error) {
	w, err := worker.New(pool, reg, worker.Config{Logger: quiet()})
	if err != nil {
		return nil, err
	}
	return background(ctx, w.Run), nil
}

// plainHandlers calls handle with the number of each plain job.
func plainHandlers(handle func(int)) *worker.Registry {
	var reg worker.Registry
	worker.HandleNone(&reg, plainKind, func(_ context.Context, j *jobs.Job[payload]) error {
		handle(j.Payload.N)
		return nil
	})
	return &reg
}

func serveJobgen(ctx context.Context, pool, enqueuer *pgxpool.Pool, handle func(int)) (call, func() error, error) {
	stop, err := startJobgen(ctx, pool, plainHandlers(handle))
	return func(ctx context.Context, i int) error {
		_, err := jobs.Enqueue(ctx, enqueuer, plainKind, payload{N: i})
		return err
	}, stop, err
}

// startSQL starts the loop of the hand-written drain, which looks again after poll when there is nothing, and when it is
// stopped once it finds nothing.
func startSQL(ctx context.Context, pool *pgxpool.Pool, poll time.Duration, handle func(int)) (stop func() error) {
	var stopped atomic.Bool
	ended := make(chan error, 1)
	go func() {
		ended <- handwrittenLoop(ctx, pool, handle, func(ctx context.Context) bool {
			return !stopped.Load() && pause(ctx, poll) == nil
		})
	}()
	return func() error {
		stopped.Store(true)
		return <-ended
	}
}

// serveSQL knows a job by its id, so that each gets the one of its number.
func serveSQL(ctx context.Context, pool, enqueuer *pgxpool.Pool, handle func(int)) (call, func() error, error) {
	stop := startSQL(ctx, pool, spiralPoll, handle)
	const insert = `INSERT INTO jobgen.jobs (id, queue, kind, payload) VALUES ($1, $2, $3, $4) RETURNING id`
	return func(ctx context.Context, i int) error {
		b, err := encode([]payload{{N: i}})
		if err != nil {
			return err
		}
		var id int64
		return enqueuer.QueryRow(ctx, insert, i+1, queue, plainKind.Kind, b[0]).Scan(&id)
	}, stop, nil
}

func serveRiver(config river.Config) serving {
	return func(ctx context.Context, pool, enqueuer *pgxpool.Pool, handle func(int)) (call, func() error, error) {
		c, err := startRiver(ctx, pool, config, handle)
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
		}, func() error { return c.Stop(ctx) }, nil
	}
}
