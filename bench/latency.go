package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// arrivals is how jobs arrive: one at a time, least apart and further by an exponentially distributed time of that mean, so
// that they meet a worker at any point of its polling.
type arrivals struct{ least, mean time.Duration }

var (
	trickle = arrivals{0, 20 * time.Millisecond}
	seldom  = arrivals{300 * time.Millisecond, 100 * time.Millisecond} // each finds a worker that has gone to sleep
)

const (
	warmUp    = 10  // one in so many, the first, are not measured
	collected = 200 // one job in so many of a drain
)

var latencies = contest{
	name: "latency", group: "peers", title: "From commit to the start of the handler, %s jobs",
	jobs: func(n int) int { return max(n/collected, 2*warmUp) }, metrics: []metric{p50, p99},
	note: fmt.Sprintf("One job every %s on average, at random, is enqueued by the worker's own process, on a connection of its own, to a worker that has nothing "+
		"else to do. Measured from when the enqueue returns, which is after the COMMIT. The first tenth is not counted.", trickle.mean),
	entrants: []entrant{
		latencyJobgen(trickle), latencySQL(trickle), latencyRiver(trickle, false), latencyRiver(trickle, true), latencyGue(false), latencyGue(true),
		graphile("latency", "concurrentJobs 24, maxPoolSize 25, no local queue", 0),
		graphile("latency-defaults", "concurrentJobs 1, maxPoolSize 10", 0),
		pgBoss("latency", "a queue with notify, useListenNotify, batchSize 100, localConcurrency 2", 0),
	},
}

var latenciesIdle = contest{
	name: "latency-idle", group: "peers", title: "From commit to the start of the handler, %s jobs, each for an idle worker",
	jobs: func(n int) int { return max(n/10/collected, warmUp/2) }, metrics: []metric{p50, p99},
	note:     fmt.Sprintf("The same, but at least %s apart.", seldom.least),
	entrants: []entrant{latencyJobgen(seldom), latencySQL(seldom), latencyRiver(seldom, false)},
}

// openLatency opens a session of a worker that start starts.
func openLatency(a arrivals, conns int, start serving) func(context.Context, string, int) (*session, error) {
	return func(ctx context.Context, url string, n int) (*session, error) {
		pools, closeAll, err := openPools(ctx, url, poolOf{conns, nil}, poolOf{1, nil})
		if err != nil {
			return nil, err
		}
		r := newRoll(n)
		committed, started := make([]time.Time, n), make([]time.Time, n)
		enqueue, stop, err := start(ctx, pools[0], pools[1], func(i int) {
			if i >= 0 && i < n {
				started[i] = time.Now()
			}
			r.call(i)
		})
		if err != nil {
			closeAll()
			return nil, err
		}
		s := &session{close: closeAll}
		s.run = func(ctx context.Context) error {
			random := rand.New(rand.NewPCG(1, 2))
			gap := time.NewTimer(0)
			defer gap.Stop()
			for i := range n {
				select {
				case <-gap.C:
				case <-ctx.Done():
					return ctx.Err()
				}
				gap.Reset(a.least + time.Duration(random.ExpFloat64()*float64(a.mean)))
				if err := enqueue(ctx, i); err != nil {
					return err
				}
				committed[i] = time.Now()
			}
			if err := errors.Join(r.await(ctx, nil), stop(), r.verify()); err != nil {
				return err
			}
			var all []float64
			for i := n / warmUp; i < n; i++ {
				all = append(all, started[i].Sub(committed[i]).Seconds())
			}
			slices.Sort(all)
			s.figures.P50, s.figures.P99, s.figures.Curve = quantile(all, 0.50), quantile(all, 0.99), curve(all)
			return nil
		}
		return s, nil
	}
}

// curvePoints is how many quantiles are kept of a distribution: each hundredth, and both ends.
const curvePoints = 101

// curve is the distribution of sorted values.
func curve(sorted []float64) []float64 {
	c := make([]float64, curvePoints)
	for i := range c {
		c[i] = quantile(sorted, float64(i)/(curvePoints-1))
	}
	return c
}

// quantile of sorted values.
func quantile(sorted []float64, q float64) float64 {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func latencyJobgen(a arrivals) entrant {
	return entrant{
		name: "jobgen", label: "jobgen", note: "default settings (worker.Config{}, pool of 4)", peer: jobgenPeer, verify: emptied,
		open: openLatency(a, 4, serveJobgen),
	}
}

// latencySQL is the floor: LISTEN, and at each notification claim all that is there.
func latencySQL(a arrivals) entrant {
	return entrant{
		name: "sql", label: "hand-written SQL", note: "the floor: a LISTEN loop on one connection, plain pgx; claim and delete, each a commit", peer: jobgenPeer, verify: emptied,
		open: openLatency(a, 1, func(ctx context.Context, pool, enqueuer *pgxpool.Pool, handle func(int)) (call, func() error, error) {
			c, err := pool.Acquire(ctx)
			if err != nil {
				return nil, nil, err
			}
			if _, err := c.Exec(ctx, "LISTEN bench"); err != nil {
				return nil, nil, err
			}
			running, cancel := context.WithCancel(ctx)
			ended := make(chan error, 1)
			go func() {
				defer c.Release()
				err := handwrittenListen(running, c.Conn(), handle)
				if running.Err() != nil {
					err = nil
				}
				ended <- err
			}()
			const insert = `WITH job AS (INSERT INTO jobgen.jobs (queue, kind, payload) VALUES ($1, $2, $3) RETURNING id) SELECT id, pg_notify('bench', '')::text FROM job`
			return func(ctx context.Context, i int) error {
					b, err := encode([]payload{{N: i}})
					if err != nil {
						return err
					}
					_, err = enqueuer.Exec(ctx, insert, queue, plainKind.Kind, b[0])
					return err
				}, func() error {
					// The last job has started; it is removed before the next notification is awaited.
					_, err := enqueuer.Exec(ctx, "SELECT pg_notify('bench', 'stop')")
					err = errors.Join(err, <-ended)
					cancel()
					return err
				}, nil
		}),
	}
}

func handwrittenListen(ctx context.Context, conn *pgx.Conn, handle func(int)) error {
	for fence := 1; ; {
		n, err := conn.WaitForNotification(ctx)
		if err != nil || n.Payload == "stop" {
			return err
		}
		for {
			rows, err := conn.Query(ctx, handwrittenClaim, fence, "00000000-0000-0000-0000-000000000001", queue, handwrittenBatch)
			if err != nil {
				return err
			}
			fence++
			ids, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (id int64, err error) {
				var payload []byte
				return id, row.Scan(&id, &payload)
			})
			if err != nil {
				return err
			}
			if len(ids) == 0 {
				break
			}
			for _, id := range ids {
				handle(int(id - 1))
			}
			if _, err := conn.Exec(ctx, handwrittenComplete, ids); err != nil {
				return err
			}
		}
	}
}

func latencyRiver(a arrivals, defaults bool) entrant {
	e := entrant{name: "river", label: "River", note: riverPromptNote, peer: riverPeer, verify: riverDone}
	config := riverPrompt
	if defaults {
		e.name, e.label, e.note = "river-defaults", "River, default settings", riverDefaults
		config.FetchCooldown, config.FetchPollInterval = 0, 0
	}
	e.open = openLatency(a, riverConns, serveRiver(config))
	return e
}
