package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// What happens when there are several workers, none has anything to do, the tables are full, or vacuum can remove nothing.

var processes = contest{
	name: "processes", group: "processes", title: "Drain of %s no-op jobs by several workers", jobs: all,
	note: "Each worker is a process of its own. Client CPU and memory are those of all together.",
	entrants: []entrant{
		drainWorkers(1), drainWorkers(2), drainWorkers(4), drainWorkers(8),
	},
}

var idleFleet = contest{
	name: "idle", group: "idle", title: "%s idle workers, each with a LISTEN connection", metrics: []metric{statements, busy, clientBusy},
	jobs: func(n int) int { return min(n/50, 100) },
	note: "On default settings, in one process. They have been idle for a while when the clock starts: 15 seconds for 100 of them, which are then watched for half a minute.",
	entrants: []entrant{{
		name: "jobgen", label: "jobgen", note: "per worker; the server's CPU is that of all", peer: jobgenPeer, open: openIdle,
		verify: emptied,
	}},
}

var held = contest{
	name: "hold", group: "hold", title: "A snapshot held for %s seconds under load",
	length: time.Minute, metrics: []metric{first, last, hold},
	note: fmt.Sprintf("A REPEATABLE READ transaction that has read stays open, so vacuum removes nothing. Meanwhile jobs are enqueued, %d at a time, whenever fewer than %d wait. "+
		"First and last: the first and the last sixth of the time.", holdBatch, holdBacklog),
	entrants: []entrant{holdJobgen, holdSQL, holdRiver},
}

var situationRatios = []ratio{
	{key: "processes-worst/one", says: "drain, jobs/s: the slowest of 2, 4 and 8 workers over one", metric: rate, worst: true,
		ours: []term{{"processes", "2"}, {"processes", "4"}, {"processes", "8"}}, other: []term{{"processes", "1"}}},
	{key: "hold-last/hold-first", says: "a snapshot held, jobs/s: jobgen in the last sixth of the time over the first", metric: hold, ours: []term{{"hold", "jobgen"}}},
	{key: "hold-last/hold-first-river", says: "the same of River", metric: hold, ours: []term{{"hold", "river"}}},
	{key: "hold-last/hold-first-sql", says: "the same of the hand-written loop", metric: hold, ours: []term{{"hold", "sql"}}},
}

func drainWorkers(k int) entrant {
	name := fmt.Sprint(k)
	return entrant{
		name: name, label: strings.TrimSuffix(name+" workers", map[bool]string{true: "s"}[k == 1]), note: "default settings", peer: jobgenPeer, verify: emptied,
		seed:      func(ctx context.Context, url string, n int) error { return seedJobgen(ctx, url, plainKind, n) },
		processes: k, open: func(ctx context.Context, url string, n int) (*session, error) {
			return openStopped(ctx, url, newRoll(n), nil)
		},
	}
}

// openStopped is a session of a worker that works until it is told to stop.
func openStopped(ctx context.Context, url string, r *roll, handle func()) (*session, error) {
	start, closeAll, err := openWorkers(ctx, url, 1, func(i int) {
		if handle != nil {
			handle()
		}
		r.call(i)
	}, nil)
	if err != nil {
		closeAll()
		return nil, err
	}
	s := &session{close: closeAll, roll: r, stop: make(chan struct{})}
	s.run = func(ctx context.Context) (err error) {
		end := start(ctx)
		select {
		case <-s.stop:
		case <-ctx.Done():
			err = fmt.Errorf("%d jobs run: %w", r.n-int(r.left.Load()), ctx.Err())
		}
		return errors.Join(err, end(), r.verify())
	}
	return s, nil
}

// openWorkers makes k workers, each with a pool of its own, on which tracer sees all statements.
func openWorkers(ctx context.Context, url string, k int, handle func(int), tracer pgx.QueryTracer) (start func(context.Context) (stop func() error), closeAll func(), err error) {
	reg := plainHandlers(handle)
	var pools []*pgxpool.Pool
	closeAll = func() {
		for _, p := range pools {
			p.Close()
		}
	}
	workers := make([]*worker.Worker, k)
	for i := range workers {
		config, err := pgxpool.ParseConfig(url)
		if err != nil {
			return nil, closeAll, err
		}
		config.ConnConfig.Tracer = tracer
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return nil, closeAll, err
		}
		pools = append(pools, pool)
		if workers[i], err = worker.New(pool, reg, worker.Config{Logger: quiet()}); err != nil {
			return nil, closeAll, err
		}
	}
	return func(ctx context.Context) func() error {
		return background(ctx, func(ctx context.Context) (err error) {
			ended := make(chan error, k)
			for _, w := range workers {
				go func() { ended <- w.Run(ctx) }()
			}
			for range workers {
				err = errors.Join(err, <-ended)
			}
			return err
		})
	}, closeAll, nil
}

// counter counts statements.
type counter struct{ n atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func openIdle(ctx context.Context, url string, k int) (*session, error) {
	var c counter
	start, closeAll, err := openWorkers(ctx, url, k, func(int) {}, &c)
	if err != nil {
		closeAll()
		return nil, err
	}
	stop := start(ctx)
	settle := time.Duration(k) * 150 * time.Millisecond
	if err := pause(ctx, settle); err != nil {
		return nil, err
	}
	s := &session{close: func() { _ = stop(); closeAll() }}
	s.run = func(ctx context.Context) error {
		before := c.n.Load()
		if err := pause(ctx, 2*settle); err != nil {
			return err
		}
		s.figures.Statements = float64(c.n.Load() - before)
		return nil
	}
	return s, nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const (
	holdBatch   = 1000
	holdBacklog = 5000
	holdParts   = 60      // of a series; ten are a sixth of the time
	holdMost    = 200_000 // jobs per second; no queue is faster
)

// openHold opens a session in which a worker works under a held snapshot for n seconds. What start returns enqueues
// a batch of payloads and, in the end, stops the worker.
func openHold(conns int, start func(ctx context.Context, pool *pgxpool.Pool, handle func(int)) (enqueue func(context.Context, []payload) error, stop func() error, err error)) func(context.Context, string, int) (*session, error) {
	return func(ctx context.Context, url string, n int) (*session, error) {
		length := time.Duration(n) * time.Second
		r := newRoll(int(length.Seconds()*holdMost) + holdBacklog)
		var called atomic.Int64
		s := &session{}
		holder, err := pgx.Connect(ctx, url)
		if err != nil {
			return nil, err
		}
		inner, err := openPool(ctx, url, conns, func(ctx context.Context, pool *pgxpool.Pool) error {
			if _, err := holder.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class"); err != nil {
				return err
			}
			enqueue, stop, err := start(ctx, pool, func(i int) { r.call(i); called.Add(1) })
			if err != nil {
				return err
			}
			enqueued := 0
			begin := time.Now()
			each := length.Seconds() / holdParts
			rates := series{Every: each, Values: make([]float64, holdParts)}
			before := 0.0
			for part := 0; part < holdParts; {
				for part < holdParts && time.Since(begin) >= length*time.Duration(part+1)/holdParts {
					now := float64(called.Load())
					rates.Values[part] = math.Round((now - before) / each)
					before = now
					part++
				}
				if enqueued-int(called.Load()) >= holdBacklog {
					if err := pause(ctx, time.Millisecond); err != nil {
						return err
					}
					continue
				}
				batch := make([]payload, holdBatch)
				for i := range batch {
					batch[i].N = enqueued + i
				}
				if err := enqueue(ctx, batch); err != nil {
					return err
				}
				enqueued += len(batch)
			}
			for int(called.Load()) < enqueued {
				if err := pause(ctx, time.Millisecond); err != nil {
					return fmt.Errorf("%d of %d jobs called: %w", called.Load(), enqueued, err)
				}
			}
			const sixth = holdParts / 6
			s.figures = answer{
				Jobs: enqueued, First: mean(rates.Values[:sixth]), Last: mean(rates.Values[holdParts-sixth:]),
				Series: map[string]series{rate.key: rates},
			}
			return errors.Join(stop(), r.verify())
		})
		if err != nil {
			return nil, err
		}
		s.run = inner.run
		s.close = func() { inner.close(); _ = holder.Close(context.WithoutCancel(ctx)) }
		return s, nil
	}
}

func mean(values []float64) (sum float64) {
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

var holdJobgen = entrant{
	name: "jobgen", label: "jobgen", note: "default settings; jobs.EnqueueMany", peer: jobgenPeer, verify: emptied,
	open: openHold(4, func(ctx context.Context, pool *pgxpool.Pool, handle func(int)) (func(context.Context, []payload) error, func() error, error) {
		stop, err := startJobgen(ctx, pool, plainHandlers(handle))
		return func(ctx context.Context, ps []payload) error {
			_, err := jobs.EnqueueMany(ctx, pool, plainKind, ps)
			return err
		}, stop, err
	}),
}

var holdSQL = entrant{
	name: "sql", label: "hand-written SQL", note: "the floor of the drain, which looks again after a millisecond when there is nothing; an INSERT of arrays", peer: jobgenPeer, verify: emptied,
	open: openHold(3, func(ctx context.Context, pool *pgxpool.Pool, handle func(int)) (func(context.Context, []payload) error, func() error, error) {
		return func(ctx context.Context, ps []payload) error {
			encoded, err := encode(ps)
			if err != nil {
				return err
			}
			_, err = pool.Exec(ctx, handwrittenInsert, queue, plainKind.Kind, encoded)
			return err
		}, startSQL(ctx, pool, time.Millisecond, handle), nil
	}),
}

var holdRiver = entrant{
	name: "river", label: "River", note: "the settings of its drain; InsertManyFast", peer: riverPeer,
	verify: riverNothingLeft,
	open: openHold(riverConns, func(ctx context.Context, pool *pgxpool.Pool, handle func(int)) (func(context.Context, []payload) error, func() error, error) {
		c, err := startRiver(ctx, pool, riverFast, handle)
		if err != nil {
			return nil, nil, err
		}
		return func(ctx context.Context, ps []payload) error {
			params := make([]river.InsertManyParams, len(ps))
			for i, p := range ps {
				params[i].Args = riverArgs(p)
			}
			_, err := c.InsertManyFast(ctx, params)
			return err
		}, func() error { return c.Stop(ctx) }, nil
	}),
}
