package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// The death spiral: jobs arrive at a steady, modest rate while analysts keep old snapshots open. Vacuum can remove nothing
// that is younger than the oldest of them, so the dead versions of finished jobs pile up for a minute or two, and each claim
// of a queue that looks from the left end walks over them; it falls behind, and then its backlog makes each claim slower
// still.

const (
	spiralRate     = 800 // jobs per second
	spiralCallers  = 4   // who enqueue them, one by one
	spiralReaders  = 3   // who hold snapshots
	spiralLongest  = 120 * time.Second
	spiralParts    = 15 // of the series; figures are those of the worst
	spiralOrders   = 500_000
	spiralAnalysis = `SELECT customer, count(*), sum(amount) FROM orders GROUP BY customer ORDER BY 3 DESC LIMIT 10`
)

var spiral = contest{
	name: "spiral", group: "spiral", title: fmt.Sprintf("%d jobs/s for %%s seconds, under old snapshots", spiralRate),
	length: 90 * time.Second, metrics: []metric{rate, backlogWorst, claim99, p99},
	note: fmt.Sprintf("Jobs are enqueued one by one, each when it is due. Meanwhile %d REPEATABLE READ transactions follow each other in turns, each open for two ninths of the time, "+
		"at most %s: one after the other makes analytic reads (of another table, without parallel query) for a third of its life and then only stays open, so that one read is always "+
		"busy and some old snapshot always stands. Claims are timed where the worker calls them, those that find nothing included. The backlog is what has been enqueued and has not started; "+
		"it and the claims' percentile are those of the worst of %d equal stretches of time, the first of which does not count: statistics are gathered after it. ms p99: from commit to the start of the handler, over all.", spiralReaders, spiralLongest, spiralParts),
	entrants: []entrant{
		spiralEntrant("jobgen", "jobgen", "default settings", true, jobgenPeer, emptied, "-- name: Claim ", 4, serveJobgen),
		spiralEntrant("jobgen-quiet", "jobgen, no old snapshot", "the same reads, each in a transaction of its own", false, jobgenPeer, emptied, "-- name: Claim ", 4, serveJobgen),
		spiralEntrant("sql", "hand-written SQL", fmt.Sprintf("the floor of the drain, which looks again after %s when there is nothing; a bare INSERT", spiralPoll), true, jobgenPeer, emptied,
			strings.TrimSpace(handwrittenClaim), 3, serveSQL),
		spiralEntrant("river", "River", riverPromptNote, true, riverPeer, riverNothingLeft, "-- name: JobGetAvailable ", riverConns, serveRiver(riverPrompt)),
	},
}

var spiralRatios = []ratio{
	{key: "spiral-p99/quiet", says: "800 jobs/s, 99th percentile of claims in the worst stretch: jobgen under old snapshots over jobgen without", metric: claim99,
		ours: []term{{"spiral", "jobgen"}}, other: []term{{"spiral", "jobgen-quiet"}}},
	{key: "spiral-p99", says: "the same, in ms, of jobgen under old snapshots", metric: claim99, ours: []term{{"spiral", "jobgen"}}},
	{key: "spiral-p99-sql", says: "the same of the hand-written loop", metric: claim99, ours: []term{{"spiral", "sql"}}},
	{key: "spiral-p99-river", says: "the same of River", metric: claim99, ours: []term{{"spiral", "river"}}},
	{key: "spiral-backlog", says: "the largest backlog, in jobs, of jobgen under old snapshots", metric: backlogWorst, ours: []term{{"spiral", "jobgen"}}},
	{key: "spiral-backlog-sql", says: "the same of the hand-written loop", metric: backlogWorst, ours: []term{{"spiral", "sql"}}},
	{key: "spiral-backlog-river", says: "the same of River", metric: backlogWorst, ours: []term{{"spiral", "river"}}},
}

const spiralPoll = 5 * time.Millisecond

func spiralEntrant(name, label, note string, held bool, p peer, verify func(context.Context, *pgx.Conn, int) error, claim string, conns int, serve serving) entrant {
	return entrant{
		name: name, label: label, note: note, peer: p, verify: verify,
		seed: func(ctx context.Context, url string, n int) error {
			return withPool(ctx, url, 1, func(pool *pgxpool.Pool) error {
				_, err := pool.Exec(ctx, `CREATE TABLE orders AS SELECT i AS id, i::bigint * 7919 % 10007 AS customer, (i % 1000)::numeric AS amount FROM generate_series(1, $1::int) i`,
					min(spiralOrders, n*spiralOrders/60))
				return err
			})
		},
		open: func(ctx context.Context, url string, n int) (*session, error) {
			return openSpiral(ctx, url, time.Duration(n)*time.Second, held, claim, conns, serve)
		},
	}
}

func openSpiral(ctx context.Context, url string, length time.Duration, held bool, claim string, conns int, serve serving) (*session, error) {
	log := &spiralLog{each: length / spiralParts}
	pools, closeAll, err := openPools(ctx, url, poolOf{conns, &claimTimer{claim, log.claimed}}, poolOf{spiralCallers, nil}, poolOf{spiralReaders + 1, nil})
	if err != nil {
		return nil, err
	}
	worker, enqueuer, reader := pools[0], pools[1], pools[2]
	n := int(length.Seconds() * spiralRate)
	r := newRoll(n)
	committed, started := make([]time.Duration, n), make([]time.Duration, n)
	var called, enqueued atomic.Int64
	enqueue, stop, err := serve(ctx, worker, enqueuer, func(i int) {
		if i >= 0 && i < n {
			started[i] = time.Since(log.begin)
		}
		r.call(i)
		called.Add(1)
	})
	if err != nil {
		closeAll()
		return nil, err
	}
	s := &session{close: closeAll}
	s.run = func(ctx context.Context) error {
		log.start()
		reading, end := context.WithTimeout(ctx, length)
		defer end()
		g, working := errgroup.WithContext(ctx)
		g.Go(func() error { return analyse(reading, reader, held, min(length*2/9, spiralLongest)) })
		g.Go(func() error { return log.watchDead(reading, reader) })
		for caller := range spiralCallers {
			g.Go(func() error {
				due := time.NewTimer(0)
				defer due.Stop()
				for i := caller; i < n; i += spiralCallers {
					due.Reset(time.Until(log.begin.Add(time.Duration(i) * time.Second / spiralRate)))
					select {
					case <-due.C:
					case <-reading.Done():
						return nil // out of time: it could not even enqueue that many
					case <-working.Done():
						return working.Err()
					}
					if err := enqueue(working, i); err != nil {
						return err
					}
					committed[i] = time.Since(log.begin)
					log.waiting(committed[i], enqueued.Add(1)-called.Load())
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		for called.Load() < enqueued.Load() {
			if err := pause(ctx, time.Millisecond); err != nil {
				return fmt.Errorf("%d of %d jobs called: %w", called.Load(), enqueued.Load(), err)
			}
		}
		if err := errors.Join(stop(), r.verify()); err != nil {
			return err
		}
		var waits []float64
		for i := range n {
			if committed[i] > 0 && i >= n/warmUp {
				waits = append(waits, (started[i] - committed[i]).Seconds())
			}
		}
		slices.Sort(waits)
		s.figures = log.figures()
		s.figures.Jobs, s.figures.P50, s.figures.P99 = int(enqueued.Load()), quantile(waits, 0.50), quantile(waits, 0.99)
		return nil
	}
	return s, nil
}

// analyse reads all the time, one statement at a time, until ctx ends. If held, the reads are those of overlapping
// transactions that stay open for so long after they have begun.
func analyse(ctx context.Context, pool *pgxpool.Pool, held bool, long time.Duration) error {
	end := func(err error) error {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if !held {
		return end(pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
			if _, err := c.Exec(ctx, `SET max_parallel_workers_per_gather = 0`); err != nil {
				return err
			}
			for {
				if _, err := c.Exec(ctx, spiralAnalysis); err != nil {
					return err
				}
			}
		}))
	}
	var turn sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	for i := range spiralReaders {
		g.Go(func() error {
			turnFor := long / spiralReaders
			if err := pause(ctx, turnFor*time.Duration(i)); err != nil {
				return err
			}
			for {
				begin := time.Now()
				err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, `SET LOCAL max_parallel_workers_per_gather = 0`); err != nil {
						return err
					}
					for first := true; first || time.Since(begin) < turnFor; first = false {
						turn.Lock()
						_, err := tx.Exec(ctx, spiralAnalysis)
						turn.Unlock()
						if err != nil {
							return err
						}
					}
					return pause(ctx, long-time.Since(begin))
				})
				if err != nil {
					return err
				}
			}
		})
	}
	return end(g.Wait())
}

// spiralLog has the figures of a run by stretches of time.
type spiralLog struct {
	each  time.Duration
	begin time.Time
	mu    sync.Mutex
	on    bool
	parts [spiralParts]struct {
		claims        []float64 // seconds
		backlog, dead float64
	}
}

func (l *spiralLog) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begin, l.on = time.Now(), true
}

// part is the stretch of a time after the beginning; what comes after the end is of no interest.
func (l *spiralLog) part(at time.Duration) int { return int(at / l.each) }

// claimed notes a claim of the worker's.
func (l *spiralLog) claimed(began time.Time, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.on {
		return
	}
	if part := l.part(began.Sub(l.begin)); part >= 0 && part < spiralParts {
		l.parts[part].claims = append(l.parts[part].claims, took.Seconds())
	}
}

// claimTimer sees the statements of a worker's pool and notes how long those took that begin like a claim.
type claimTimer struct {
	claim string
	note  func(began time.Time, took time.Duration)
}

type claimBegan struct{}

func (c *claimTimer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if !strings.HasPrefix(strings.TrimSpace(q.SQL), c.claim) {
		return ctx
	}
	return context.WithValue(ctx, claimBegan{}, time.Now())
}

func (c *claimTimer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryEndData) {
	if began, ok := ctx.Value(claimBegan{}).(time.Time); ok && q.Err == nil {
		c.note(began, time.Since(began))
	}
}

func (l *spiralLog) waiting(at time.Duration, jobs int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if part := l.part(at); part < spiralParts {
		l.parts[part].backlog = max(l.parts[part].backlog, float64(jobs))
	}
}

// watchDead asks near the end of each stretch how many dead row versions there are. After the first it has statistics
// gathered, as autovacuum would at its next turn: no table is new for long.
func (l *spiralLog) watchDead(ctx context.Context, pool *pgxpool.Pool) error {
	for part := range spiralParts {
		err := pause(ctx, time.Until(l.begin.Add(l.each*time.Duration(part+1)-l.each/10)))
		var dead float64
		if err == nil {
			err = pool.QueryRow(ctx, `SELECT coalesce(sum(n_dead_tup), 0)::float8 FROM pg_stat_user_tables`).Scan(&dead)
		}
		if err == nil && part == 0 {
			_, err = pool.Exec(ctx, `ANALYZE`)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.parts[part].dead = dead
		l.mu.Unlock()
	}
	return nil
}

// figures of the worst stretches but for the first, which starts everything, and of all.
func (l *spiralLog) figures() (a answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := func() series { return series{Every: l.each.Seconds(), Values: make([]float64, spiralParts)} }
	ms := func(seconds float64) float64 { return math.Round(seconds*1e5) / 100 }
	backlogs, dead, half, high := of(), of(), of(), of()
	for i, p := range l.parts {
		backlogs.Values[i], dead.Values[i] = p.backlog, p.dead
		if i > 0 {
			a.Backlog = max(a.Backlog, p.backlog)
		}
		if len(p.claims) == 0 {
			continue
		}
		slices.Sort(p.claims)
		p50, p99 := quantile(p.claims, 0.50), quantile(p.claims, 0.99)
		half.Values[i], high.Values[i] = ms(p50), ms(p99)
		if i > 0 {
			a.Claim50, a.Claim99 = max(a.Claim50, p50), max(a.Claim99, p99)
		}
	}
	a.Series = map[string]series{"backlog": backlogs, "dead_rows": dead, claim50.key: half, claim99.key: high}
	return a
}
