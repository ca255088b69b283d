package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/vgarvardt/gue/v5"
	"github.com/vgarvardt/gue/v5/adapter/pgxv5"
)

// gueSchema is migrations/schema.sql of the pinned release, which the module does not export.
const gueSchema = `
CREATE TABLE gue_jobs (
  job_id      TEXT        NOT NULL PRIMARY KEY,
  priority    SMALLINT    NOT NULL,
  run_at      TIMESTAMPTZ NOT NULL,
  job_type    TEXT        NOT NULL,
  args        BYTEA       NOT NULL,
  error_count INTEGER     NOT NULL DEFAULT 0,
  last_error  TEXT,
  queue       TEXT        NOT NULL,
  created_at  TIMESTAMPTZ NOT NULL,
  updated_at  TIMESTAMPTZ NOT NULL
);
CREATE INDEX idx_gue_jobs_selector ON gue_jobs (queue, run_at, priority);`

var guePeer = peer{name: "gue", migrate: func(ctx context.Context, url string) error {
	return withPool(ctx, url, 1, func(pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, gueSchema)
		return err
	})
}}

// gue's fastest sensible settings on two cores. Each worker has a transaction, and so a connection, for each job.
const (
	gueWorkers = 20
	guePoll    = 10 * time.Millisecond
	gueBatch   = 1000 // jobs of an EnqueueBatch, which is one statement with eight parameters each
)

func gueOptions(defaults bool) (workers int, options []gue.WorkerPoolOption, note string) {
	options = []gue.WorkerPoolOption{gue.WithPoolQueue(queue), gue.WithPoolGracefulShutdown(nil)}
	if defaults {
		return gueWorkers, options, fmt.Sprintf("%d workers, which have no default; they poll every 5s, and the highest priority comes first", gueWorkers)
	}
	return gueWorkers, append(options, gue.WithPoolPollInterval(guePoll), gue.WithPoolPollStrategy(gue.RunAtPollStrategy)),
		fmt.Sprintf("%d workers, poll interval %s, the oldest job first, which its index serves", gueWorkers, guePoll)
}

// startGue starts a pool of workers.
func startGue(ctx context.Context, pool *pgxpool.Pool, defaults bool, handle func(int)) (stop func() error, err error) {
	c, err := gue.NewClient(pgxv5.NewConnPool(pool))
	if err != nil {
		return nil, err
	}
	workers, options, _ := gueOptions(defaults)
	w, err := gue.NewWorkerPool(c, gue.WorkMap{plainKind.Kind: func(_ context.Context, j *gue.Job) error {
		var p payload
		if err := json.Unmarshal(j.Args, &p); err != nil {
			return err
		}
		handle(p.N)
		return nil
	}}, workers, options...)
	if err != nil {
		return nil, err
	}
	return background(ctx, w.Run), nil
}

func drainGue(defaults bool, part int) entrant {
	e := entrant{
		name: "gue", label: "gue", peer: guePeer, part: part, verify: gueDone,
		seed: func(ctx context.Context, url string, n int) error {
			return withPool(ctx, url, 1, func(pool *pgxpool.Pool) error { return gueEnqueueMany(ctx, pool, n) })
		},
		open: func(ctx context.Context, url string, n int) (*session, error) {
			r := newRoll(n)
			return openPool(ctx, url, gueWorkers, func(ctx context.Context, pool *pgxpool.Pool) error {
				stop, err := startGue(ctx, pool, defaults, r.call)
				if err != nil {
					return err
				}
				if err := r.await(ctx, nil); err != nil {
					return err
				}
				if err := stop(); err != nil {
					return err
				}
				return r.verify()
			})
		},
	}
	_, _, e.note = gueOptions(defaults)
	if defaults {
		e.name, e.label = "gue-defaults", "gue, default settings"
	}
	return e
}

func latencyGue(defaults bool) entrant {
	e := drainGue(defaults, 0)
	e.seed = nil
	e.open = openLatency(trickle, gueWorkers, func(ctx context.Context, pool, enqueuer *pgxpool.Pool, handle func(int)) (call, func() error, error) {
		enqueue, err := gueEnqueue(enqueuer)
		if err != nil {
			return nil, nil, err
		}
		stop, err := startGue(ctx, pool, defaults, handle)
		return enqueue, stop, err
	})
	return e
}

func gueEnqueue(pool *pgxpool.Pool) (call, error) {
	c, err := gue.NewClient(pgxv5.NewConnPool(pool))
	return func(ctx context.Context, i int) error {
		j, err := gueJob(i)
		if err != nil {
			return err
		}
		return c.Enqueue(ctx, j)
	}, err
}

func enqueueGue(conns int) entrant {
	return entrant{
		name: "gue", label: "gue", peer: guePeer, note: "Client.Enqueue on a pool; wakes nobody", verify: gueQueued,
		open: func(ctx context.Context, url string, n int) (*session, error) {
			return openCallers(ctx, url, conns, n, gueEnqueue)
		},
	}
}

var enqueueManyGue = entrant{
	name: "gue", label: "gue", peer: guePeer, note: fmt.Sprintf("Client.EnqueueBatchTx of %d at a time, in one transaction; wakes nobody", gueBatch), verify: gueQueued,
	open: func(ctx context.Context, url string, n int) (*session, error) {
		return openPool(ctx, url, 1, func(ctx context.Context, pool *pgxpool.Pool) error { return gueEnqueueMany(ctx, pool, n) })
	},
}

func gueEnqueueMany(ctx context.Context, pool *pgxpool.Pool, n int) error {
	c, err := gue.NewClient(pgxv5.NewConnPool(pool))
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for from := 0; from < n; from += gueBatch {
			batch := make([]*gue.Job, min(gueBatch, n-from))
			for i := range batch {
				if batch[i], err = gueJob(from + i); err != nil {
					return err
				}
			}
			if err := c.EnqueueBatchTx(ctx, batch, pgxv5.NewTx(tx)); err != nil {
				return err
			}
		}
		return nil
	})
}

func gueJob(i int) (*gue.Job, error) {
	b, err := json.Marshal(payload{N: i})
	return &gue.Job{Queue: queue, Type: plainKind.Kind, Args: b}, err
}

func gueDone(ctx context.Context, conn *pgx.Conn, _ int) error {
	return expect(ctx, conn, 0, `SELECT count(*) FROM gue_jobs`)
}

func gueQueued(ctx context.Context, conn *pgx.Conn, n int) error {
	return expect(ctx, conn, n, `SELECT count(DISTINCT convert_from(args, 'UTF8')::jsonb->>'n') FROM gue_jobs`)
}
