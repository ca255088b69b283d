package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

var riverPeer = peer{name: "river", migrate: func(ctx context.Context, url string) error {
	return withPool(ctx, url, 2, func(pool *pgxpool.Pool) error {
		m, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet()})
		if err != nil {
			return err
		}
		_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
		return err
	})
}}

type riverArgs payload

func (riverArgs) Kind() string { return "bench.plain" }

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	handle func(i int)
}

func (w *riverWorker) Work(_ context.Context, j *river.Job[riverArgs]) error {
	w.handle(j.Args.N)
	return nil
}

// River's fastest sensible settings for short jobs: of 500, 1,000, 2,000, 5,000 and 10,000 workers at a cooldown of 1 ms,
// 1,000 and 2,000 came out best. Fewer fetch in smaller batches, more only take memory; a cooldown of 10 ms took a third.
const (
	riverWorkers  = 2000
	riverCooldown = time.Millisecond
	riverPoll     = 20 * time.Millisecond
	riverConns    = 20
)

var (
	drainRiver = riverDrain("river", "River", fmt.Sprintf("its fastest sensible settings: MaxWorkers %d (which is also its batch), FetchCooldown %s, FetchPollInterval %s, pool of %d",
		riverWorkers, riverCooldown, riverPoll, riverConns), 0, riverFast)
	drainRiverDefaults = riverDrain("river-defaults", "River, default settings", riverDefaults, 20, river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
	})
)

var riverFast = river.Config{
	FetchCooldown: riverCooldown, FetchPollInterval: riverPoll, JobTimeout: -1,
	Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: riverWorkers}},
}

// riverPrompt is for jobs that come one by one.
var riverPrompt = river.Config{
	FetchCooldown: riverCooldown, FetchPollInterval: riverPoll, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
}

var riverPromptNote = fmt.Sprintf("MaxWorkers 100, FetchCooldown %s, FetchPollInterval %s", riverCooldown, riverPoll)

const riverDefaults = "MaxWorkers 100, which has no default; FetchCooldown 100ms, FetchPollInterval 1s"

func riverDrain(name, label, note string, part int, config river.Config) entrant {
	return entrant{
		name: name, label: label, note: note, peer: riverPeer, part: part,
		seed: func(ctx context.Context, url string, n int) error {
			return withPool(ctx, url, 2, func(pool *pgxpool.Pool) error {
				c, err := riverInserter(pool, 0)
				if err != nil {
					return err
				}
				_, err = c.InsertManyFast(ctx, riverParams(n))
				return err
			})
		},
		open: func(ctx context.Context, url string, n int) (*session, error) {
			r := newRoll(n)
			return openPool(ctx, url, riverConns, func(ctx context.Context, pool *pgxpool.Pool) error {
				c, err := startRiver(ctx, pool, config, r.call)
				if err != nil {
					return err
				}
				if err := r.await(ctx, nil); err != nil {
					return err
				}
				if err := c.Stop(ctx); err != nil {
					return err
				}
				return r.verify()
			})
		},
		verify: riverDone,
	}
}

func riverDone(ctx context.Context, conn *pgx.Conn, n int) error {
	if err := expect(ctx, conn, n, `SELECT count(*) FROM river_job WHERE state = 'completed'`); err != nil {
		return err
	}
	return expect(ctx, conn, n, `SELECT count(*) FROM river_job`)
}

func riverNothingLeft(ctx context.Context, conn *pgx.Conn, _ int) error {
	return expect(ctx, conn, 0, `SELECT count(*) FROM river_job WHERE state <> 'completed'`)
}

// startRiver starts a worker with the settings.
func startRiver(ctx context.Context, pool *pgxpool.Pool, config river.Config, handle func(int)) (*river.Client[pgx.Tx], error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{handle: handle})
	config.Logger, config.Workers = quiet(), workers
	c, err := river.NewClient(riverpgxv5.New(pool), &config)
	if err != nil {
		return nil, err
	}
	return c, c.Start(ctx)
}

// riverInserter makes a client that only inserts. It notifies no more often than once in a cooldown; 0: River's default.
func riverInserter(pool *pgxpool.Pool, cooldown time.Duration) (*river.Client[pgx.Tx], error) {
	return river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet(), FetchCooldown: cooldown})
}

func riverParams(n int) []river.InsertManyParams {
	params := make([]river.InsertManyParams, n)
	for i := range params {
		params[i].Args = riverArgs{N: i}
	}
	return params
}

func enqueueRiver(conns int) entrant {
	return entrant{
		name: "river", label: "River", peer: riverPeer, note: "Client.Insert on a pool",
		open: func(ctx context.Context, url string, n int) (*session, error) {
			return openCallers(ctx, url, conns, n, func(pool *pgxpool.Pool) (call, error) {
				c, err := riverInserter(pool, 0)
				return func(ctx context.Context, i int) error {
					_, err := c.Insert(ctx, riverArgs{N: i}, nil)
					return err
				}, err
			})
		},
		verify: riverQueued,
	}
}

var enqueueManyRiver = entrant{
	name: "river", label: "River", peer: riverPeer, note: "InsertManyFast, which is a COPY; gives back no ids",
	open: func(ctx context.Context, url string, n int) (*session, error) {
		params := riverParams(n)
		return openPool(ctx, url, 1, func(ctx context.Context, pool *pgxpool.Pool) error {
			c, err := riverInserter(pool, 0)
			if err != nil {
				return err
			}
			_, err = c.InsertManyFast(ctx, params)
			return err
		})
	},
	verify: riverQueued,
}

func riverQueued(ctx context.Context, conn *pgx.Conn, n int) error {
	if err := expect(ctx, conn, n, `SELECT count(*) FROM river_job`); err != nil {
		return err
	}
	return expect(ctx, conn, n, `SELECT count(DISTINCT args->>'n') FROM river_job WHERE state = 'available'`)
}
