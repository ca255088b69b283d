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

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// The tables over an hour of steady, modest load, as autovacuum keeps them: what grows, what a finished job costs that is
// deleted, and what one costs that stays.

const (
	churnRate  = 500 // jobs per second
	churnBatch = 25  // enqueued at a time
	churnTick  = time.Second * churnBatch / churnRate
	churnParts = 60 // of the series
	churnKeeps = 6  // what is kept is kept for one such part of the time
	churnPurge = 10_000
	churnText  = 150 // bytes of a payload

	handwrittenBegin = "UPDATE jobgen.jobs\nSET status = 'running'" // of a claim
)

var churn = contest{
	name: "churn", group: "churn", title: fmt.Sprintf("%s jobs/s for %%s seconds, and what becomes of the tables", count(churnRate)),
	length: 10 * time.Minute, together: true, across: true,
	metrics: []metric{server, wal, hotSize, pkeySize, claimIndexSize, claimsSize, historySize, hotShare, vacuumTime, claimEarly, claimLate},
	note: fmt.Sprintf("All entrants work at the same time, each on a server of its own with autovacuum as it comes. Jobs with payloads of some 180 bytes are enqueued %d at a time and worked off at once. "+
		"Sizes in MB and claims' 99th percentiles are those of the last sixth of the time (early: of the second). "+
		"jobgen, results, held: jobgen on default settings; without a result for each job, with one that is kept for a sixth of the time, and without, while a snapshot is held through the second third of the time. "+
		"In jobgen.jobs one job is dead and one is scheduled for next year, from before all others. "+
		"delete, update, archive, parts: one hand-written loop on jobgen's table, which looks for jobs every %s and removes what has finished; or marks it done in its place, and deletes it after a sixth of the time; "+
		"or moves it to a table of history, from which it is deleted then; or to one in partitions by time, which are dropped.", churnBatch, churnTick),
	entrants: []entrant{
		churnJobgen("jobgen", "jobgen", churnPlain, false), churnJobgen("results", "results", churnResult, false), churnJobgen("held", "held", churnPlain, true),
		churnDelete.entrant(), churnUpdate.entrant(), churnArchive.entrant(), churnPartitions.entrant(),
	},
}

var churnRatios = []ratio{
	{key: "churn-late/early", says: "steady load, 99th percentile of claims: jobgen in the last sixth of the time over the second", metric: claimGrowth, ours: []term{{"churn", "jobgen"}}},
	{key: "churn-server-update/delete", says: "server CPU per job: finished jobs marked done and deleted later, over deleted at once", metric: server,
		ours: []term{{"churn", "update"}}, other: []term{{"churn", "delete"}}},
	{key: "churn-server-archive/delete", says: "the same, moved to a history table", metric: server, ours: []term{{"churn", "archive"}}, other: []term{{"churn", "delete"}}},
	{key: "churn-server-parts/delete", says: "the same, moved to one in partitions", metric: server, ours: []term{{"churn", "parts"}}, other: []term{{"churn", "delete"}}},
	{key: "churn-wal-update/delete", says: "WAL per job: finished jobs marked done and deleted later, over deleted at once", metric: wal,
		ours: []term{{"churn", "update"}}, other: []term{{"churn", "delete"}}},
	{key: "churn-wal-archive/delete", says: "the same, moved to a history table", metric: wal, ours: []term{{"churn", "archive"}}, other: []term{{"churn", "delete"}}},
	{key: "churn-wal-parts/delete", says: "the same, moved to one in partitions", metric: wal, ours: []term{{"churn", "parts"}}, other: []term{{"churn", "delete"}}},
}

// of a contest with series of so many parts
var (
	hotSize        = metric{"jobs_mb", "jobs MB", false, late("jobs_mb")}
	pkeySize       = metric{"jobs_pkey_mb", "its primary key", false, late("jobs_pkey_mb")}
	claimIndexSize = metric{"jobs_claim_mb", "its jobs_claim", false, late("jobs_claim_mb")}
	claimsSize     = metric{"claims_mb", "claims", false, late("claims_mb")}
	historySize    = metric{"history_mb", "what is kept", false, late("history_mb")}
	hotShare       = metric{"hot_percent", "updates HOT, %", true, late("hot_percent")}
	vacuumTime     = metric{"vacuum_us_per_job", "autovacuum µs/job", false, func(s sample) float64 { return s.vacuum * 1e6 / float64(s.jobs) }}
	claimLate      = metric{"claim_p99_late_ms", "claim ms p99, late", false, late("claim_p99_ms")}
	claimGrowth    = metric{"claim_p99_late_over_early", "claim p99 late/early", false, func(s sample) float64 { return claimLate.of(s) / claimEarly.of(s) }}
	claimEarly     = metric{"claim_p99_early_ms", "claim ms p99, early", false, func(s sample) float64 { return sixth(s, "claim_p99_ms", 1) }}
)

func late(name string) func(sample) float64 {
	return func(s sample) float64 { return sixth(s, name, 5) }
}

// sixth is the median of a sixth of a series, counted from 0; unknown if there is none.
func sixth(s sample, name string, i int) float64 {
	v := s.series[name].Values
	n := len(v) / 6
	return spreadOf(v[i*n : (i+1)*n]).Median
}

// lump is a payload of usual size.
type lump struct {
	N    int    `json:"n"`
	Text string `json:"text"`
}

func lumps(from, n int) []lump {
	ls := make([]lump, n)
	for i := range ls {
		ls[i] = lump{N: from + i, Text: fmt.Sprintf("%0*x", churnText, (from+i)*2654435761)}
	}
	return ls
}

// steady starts what works on pool and calls handle with the number of each job. What it returns enqueues so many jobs on
// enqueuer, numbered on from a number, and in the end stops the work. keep is for how long what is kept is.
type steady func(ctx context.Context, pool, enqueuer *pgxpool.Pool, keep time.Duration, handle func(int)) (enqueue func(ctx context.Context, from, n int) error, stop func() error, err error)

// churnPlain leaves nothing of a finished job.
func churnPlain(reg *worker.Registry, _ time.Duration, handle func(int)) func(context.Context, *pgxpool.Pool, []lump) error {
	kind := &jobs.Spec[lump, jobs.None]{Kind: plainKind.Kind, Queue: queue}
	worker.HandleNone(reg, kind, func(_ context.Context, j *jobs.Job[lump]) error {
		handle(j.Payload.N)
		return nil
	})
	return func(ctx context.Context, pool *pgxpool.Pool, ls []lump) error {
		_, err := jobs.EnqueueMany(ctx, pool, kind, ls)
		return err
	}
}

// churnResult leaves a result, for a while.
func churnResult(reg *worker.Registry, keep time.Duration, handle func(int)) func(context.Context, *pgxpool.Pool, []lump) error {
	kind := &jobs.Spec[lump, result]{Kind: resultKind.Kind, Queue: queue, KeepResult: keep}
	worker.Handle(reg, kind, func(_ context.Context, j *jobs.Job[lump]) (result, error) {
		handle(j.Payload.N)
		return result{N: j.Payload.N, State: "sent"}, nil
	})
	return func(ctx context.Context, pool *pgxpool.Pool, ls []lump) error {
		_, err := jobs.EnqueueMany(ctx, pool, kind, ls)
		return err
	}
}

func churnJobgen(name, label string, register func(*worker.Registry, time.Duration, func(int)) func(context.Context, *pgxpool.Pool, []lump) error, held bool) entrant {
	serve := func(ctx context.Context, pool, enqueuer *pgxpool.Pool, keep time.Duration, handle func(int)) (func(context.Context, int, int) error, func() error, error) {
		var reg worker.Registry
		enqueue := register(&reg, keep, handle)
		stop, err := startJobgen(ctx, pool, &reg)
		return func(ctx context.Context, from, n int) error { return enqueue(ctx, enqueuer, lumps(from, n)) }, stop, err
	}
	return entrant{
		name: name, label: label, note: "default settings", peer: jobgenPeer,
		seed: func(ctx context.Context, url string, _ int) error {
			return withPool(ctx, url, 1, func(pool *pgxpool.Pool) error {
				_, err := pool.Exec(ctx, `
					INSERT INTO jobgen.jobs (queue, kind, payload, status, attempt) VALUES ('bench', 'bench.plain', '{"n": -1}', 'dead', 20);
					INSERT INTO jobgen.jobs (queue, kind, payload, run_at) VALUES ('bench', 'bench.plain', '{"n": -1}', now() + interval '1 year')`)
				return err
			})
		},
		open: func(ctx context.Context, url string, n int) (*session, error) {
			return openChurn(ctx, url, time.Duration(n)*time.Second, 4, "-- name: Claim ", held, serve)
		},
		verify: func(ctx context.Context, conn *pgx.Conn, _ int) error {
			return expect(ctx, conn, 2, `SELECT count(*) FROM jobgen.jobs`)
		},
	}
}

// way is what a hand-written loop does with finished jobs.
type way struct {
	name, label string
	prepare     string // DDL
	claim       string
	complete    string
	purge       func(ctx context.Context, pool *pgxpool.Pool, keep time.Duration) error // nil: nothing is kept
	left        string                                                                  // counts jobs that have not finished
}

var churnDelete = way{
	name: "delete", label: "delete", claim: handwrittenClaim,
	complete: `DELETE FROM jobgen.jobs WHERE id = ANY($1)`,
	left:     `SELECT count(*) FROM jobgen.jobs`,
}

// As in jobgen's own index, what a claim changes must not stand in the predicate.
var churnUpdate = way{
	name: "update", label: "update", claim: strings.Replace(handwrittenClaim, "NOT dead", "NOT dead AND finished_at IS NULL", 1),
	prepare: `
		ALTER TABLE jobgen.jobs ADD COLUMN finished_at timestamptz;
		DO $$ DECLARE name text; BEGIN
		  FOR name IN SELECT conname FROM pg_constraint WHERE conrelid = 'jobgen.jobs'::regclass AND contype = 'c' AND pg_get_constraintdef(oid) LIKE '%status%' LOOP
		    EXECUTE format('ALTER TABLE jobgen.jobs DROP CONSTRAINT %I', name);
		  END LOOP;
		END $$;
		DROP INDEX jobgen.jobs_claim;
		CREATE INDEX jobs_claim ON jobgen.jobs (queue, priority DESC, run_at NULLS FIRST, id) WITH (deduplicate_items = off) WHERE NOT dead AND finished_at IS NULL AND crashes < 2;
		CREATE INDEX jobs_finished ON jobgen.jobs (finished_at) WHERE finished_at IS NOT NULL`,
	complete: `UPDATE jobgen.jobs SET status = 'done', finished_at = clock_timestamp(), worker_id = NULL, fence = 0 WHERE id = ANY($1)`,
	purge: purgeOld(`DELETE FROM jobgen.jobs WHERE id = ANY(ARRAY(
		SELECT id FROM jobgen.jobs WHERE finished_at < now() - $1::interval ORDER BY finished_at LIMIT $2))`),
	left: `SELECT count(*) FROM jobgen.jobs WHERE finished_at IS NULL`,
}

const churnHistory = `job_id bigint NOT NULL, queue text NOT NULL, kind text NOT NULL, payload jsonb NOT NULL, attempt integer NOT NULL, created_at timestamptz NOT NULL, finished_at timestamptz NOT NULL DEFAULT clock_timestamp()`

const churnMove = `
	WITH gone AS (DELETE FROM jobgen.jobs WHERE id = ANY($1) RETURNING id, queue, kind, payload, attempt, created_at)
	INSERT INTO jobgen.history (job_id, queue, kind, payload, attempt, created_at) SELECT * FROM gone`

var churnArchive = way{
	name: "archive", label: "archive", claim: handwrittenClaim,
	prepare:  `CREATE TABLE jobgen.history (` + churnHistory + `, PRIMARY KEY (job_id)); CREATE INDEX ON jobgen.history (finished_at)`,
	complete: churnMove,
	purge: purgeOld(`DELETE FROM jobgen.history WHERE job_id = ANY(ARRAY(
		SELECT job_id FROM jobgen.history WHERE finished_at < now() - $1::interval ORDER BY finished_at LIMIT $2))`),
	left: `SELECT count(*) FROM jobgen.jobs`,
}

var churnPartitions = way{
	name: "parts", label: "parts", claim: handwrittenClaim,
	prepare:  `CREATE TABLE jobgen.history (` + churnHistory + `) PARTITION BY RANGE (finished_at); CREATE INDEX ON jobgen.history (job_id)`,
	complete: churnMove,
	purge:    turnPartitions,
	left:     `SELECT count(*) FROM jobgen.jobs`,
}

// purgeOld deletes, some at a time, what is older than keep.
func purgeOld(statement string) func(context.Context, *pgxpool.Pool, time.Duration) error {
	return func(ctx context.Context, pool *pgxpool.Pool, keep time.Duration) error {
		for {
			tag, err := pool.Exec(ctx, statement, keep, churnPurge)
			if err != nil || tag.RowsAffected() < churnPurge {
				return err
			}
		}
	}
}

// turnPartitions creates the partition of the present and the next one, each for a quarter of what is kept, and drops those
// that are wholly older.
func turnPartitions(ctx context.Context, pool *pgxpool.Pool, keep time.Duration) error {
	width := max(int64(keep.Seconds())/4, 1)
	var now int64
	if err := pool.QueryRow(ctx, `SELECT extract(epoch FROM clock_timestamp())::bigint`).Scan(&now); err != nil {
		return err
	}
	for k := now / width; k <= now/width+1; k++ {
		if _, err := pool.Exec(ctx, fmt.Sprintf(`CREATE TABLE IF NOT EXISTS jobgen.history_%[1]d PARTITION OF jobgen.history FOR VALUES FROM (to_timestamp(%[2]d)) TO (to_timestamp(%[3]d))`, k, k*width, (k+1)*width)); err != nil {
			return err
		}
	}
	rows, err := pool.Query(ctx, `SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^history_' AND split_part(relname, '_', 2)::bigint < $1`, (now-int64(keep.Seconds()))/width)
	if err != nil {
		return err
	}
	old, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range old {
		if _, err := pool.Exec(ctx, "DROP TABLE jobgen."+name); err != nil {
			return err
		}
	}
	return nil
}

func (y way) entrant() entrant {
	return entrant{
		name: y.name, label: y.label, note: "hand-written", peer: jobgenPeer,
		seed: func(ctx context.Context, url string, _ int) error {
			return withPool(ctx, url, 1, func(pool *pgxpool.Pool) error {
				// As a jobgen worker's sessions: statistics of a moment when the table was empty must not make claims read all of it.
				_, err := pool.Exec(ctx, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET enable_seqscan = off', current_database()); END $$; `+y.prepare)
				return err
			})
		},
		open: func(ctx context.Context, url string, n int) (*session, error) {
			return openChurn(ctx, url, time.Duration(n)*time.Second, 3, handwrittenBegin, false, y.serve)
		},
		verify: func(ctx context.Context, conn *pgx.Conn, _ int) error { return expect(ctx, conn, 0, y.left) },
	}
}

func (y way) serve(ctx context.Context, pool, enqueuer *pgxpool.Pool, keep time.Duration, handle func(int)) (func(context.Context, int, int) error, func() error, error) {
	if y.purge != nil {
		if err := y.purge(ctx, pool, keep); err != nil {
			return nil, nil, err
		}
	}
	running, cancel := context.WithCancel(ctx)
	var stopped atomic.Bool
	g, working := errgroup.WithContext(running)
	g.Go(func() error {
		defer cancel()
		self := uuid.New()
		for fence := 1; !stopped.Load(); fence++ {
			rows, err := pool.Query(working, y.claim, fence, self, queue, handwrittenBatch)
			if err != nil {
				return err
			}
			var ids []int64
			var id int64
			var payload []byte
			if _, err := pgx.ForEachRow(rows, []any{&id, &payload}, func() error {
				ids = append(ids, id)
				handle(int(id - 1)) // a fresh database numbers from 1, in the order of the payloads
				return nil
			}); err != nil {
				return err
			}
			if len(ids) == 0 {
				if err := pause(working, churnTick); err != nil {
					return err
				}
				continue
			}
			tag, err := pool.Exec(working, y.complete, ids)
			if err != nil {
				return err
			}
			if int(tag.RowsAffected()) != len(ids) {
				return fmt.Errorf("finished %d of %d jobs", tag.RowsAffected(), len(ids))
			}
		}
		return nil
	})
	if y.purge != nil {
		g.Go(func() error {
			for pause(running, keep/20) == nil {
				if err := y.purge(working, pool, keep); err != nil && running.Err() == nil {
					return err
				}
			}
			return nil
		})
	}
	return func(ctx context.Context, from, n int) error {
			ls := lumps(from, n)
			_, err := enqueuer.Exec(ctx, `INSERT INTO jobgen.jobs (queue, kind, payload) SELECT $1, $2, unnest($3::jsonb[])`, queue, plainKind.Kind, ls)
			return err
		}, func() error {
			stopped.Store(true)
			return g.Wait()
		}, nil
}

// openChurn is a session of steady load for so long. Claims are the statements that begin with claim.
func openChurn(ctx context.Context, url string, length time.Duration, conns int, claim string, held bool, serve steady) (_ *session, err error) {
	keep := max(length/churnKeeps, 4*time.Second)
	watch := &churnWatch{each: length / churnParts, series: map[string]series{}}
	pools, closeAll, err := openPools(ctx, url, poolOf{conns, &claimTimer{claim: claim, note: watch.claimed}}, poolOf{1, nil}, poolOf{2, nil})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	worker, enqueuer := pools[0], pools[1]
	watch.pool = pools[2]
	if err := watch.prepare(ctx); err != nil {
		return nil, err
	}
	n := int(length.Seconds()) * churnRate
	r := newRoll(n)
	enqueue, stop, err := serve(ctx, worker, enqueuer, keep, func(i int) {
		r.call(i)
		watch.called.Add(1)
	})
	if err != nil {
		return nil, err
	}
	s := &session{close: closeAll}
	s.run = func(ctx context.Context) error {
		begin := time.Now()
		g, working := errgroup.WithContext(ctx)
		g.Go(func() error { return watch.run(working, begin) })
		if held {
			g.Go(func() error { return holdSnapshot(working, watch.pool, length/3, length/3) })
		}
		g.Go(func() error {
			for from := 0; from < n; from += churnBatch {
				if err := pause(working, time.Until(begin.Add(time.Duration(from)*time.Second/churnRate))); err != nil {
					return err
				}
				if err := enqueue(working, from, churnBatch); err != nil {
					return err
				}
			}
			return nil
		})
		if err := g.Wait(); err != nil {
			return err
		}
		select {
		case <-r.done:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d jobs called: %w", watch.called.Load(), n, ctx.Err())
		}
		s.figures = answer{Jobs: n, Series: watch.series}
		return errors.Join(stop(), r.verify())
	}
	return s, nil
}

// holdSnapshot keeps a transaction open that has read, after a while and for a while.
func holdSnapshot(ctx context.Context, pool *pgxpool.Pool, after, long time.Duration) error {
	if err := pause(ctx, after); err != nil {
		return err
	}
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT count(*) FROM pg_class`); err != nil {
			return err
		}
		return pause(ctx, long)
	})
}

// churnWatch measures the tables at the end of each part of the time.
type churnWatch struct {
	pool   *pgxpool.Pool
	each   time.Duration
	called atomic.Int64
	mu     sync.Mutex
	claims []float64 // seconds, since the last look
	series map[string]series
	index  bool // pgstattuple is there
}

func (w *churnWatch) claimed(_ time.Time, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.claims = append(w.claims, took.Seconds())
}

func (w *churnWatch) prepare(ctx context.Context) error {
	err := w.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pgstattuple') AND (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)`).Scan(&w.index)
	if err == nil && w.index {
		_, err = w.pool.Exec(ctx, `CREATE EXTENSION IF NOT EXISTS pgstattuple`)
	}
	return err
}

// Sizes in MB; rates and shares are made of the differences between two looks.
const (
	churnLook = `
WITH t AS (
  SELECT c.oid, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = 'jobgen' AND c.relkind = 'r'
)
SELECT pg_table_size('jobgen.jobs') / 1048576.0::float8,
       pg_relation_size('jobgen.jobs_pkey') / 1048576.0::float8,
       pg_relation_size('jobgen.jobs_claim') / 1048576.0::float8,
       pg_total_relation_size('jobgen.claims') / 1048576.0::float8,
       (SELECT sum(pg_total_relation_size(t.oid)) FROM t WHERE t.relname NOT IN ('jobs', 'claims', 'workers', 'wake')) / 1048576.0::float8,
       (SELECT sum(pg_total_relation_size(t.oid)) FROM t WHERE t.relname IN ('workers', 'wake')) / 1048576.0::float8,
       (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass)::float8,
       (SELECT n_tup_upd FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass)::float8,
       (SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass)::float8,
       (SELECT sum(autovacuum_count) FROM pg_stat_user_tables)::float8,
       (pg_current_wal_insert_lsn() - '0/0')::float8`
	churnLookIndex = `SELECT avg_leaf_density, 100.0 * (deleted_pages + empty_pages) / greatest(index_size / 8192, 1) FROM pgstatindex('jobgen.jobs_claim')`
)

func (w *churnWatch) run(ctx context.Context, begin time.Time) error {
	put := func(name string, v float64) {
		one := w.series[name]
		one.Every, one.Values = w.each.Seconds(), append(one.Values, rounded(zero(v)))
		w.series[name] = one
	}
	var calledBefore, updatedBefore, hotBefore, vacuumsBefore, walBefore float64
	for part := range churnParts + 1 {
		if err := pause(ctx, time.Until(begin.Add(w.each*time.Duration(part)))); err != nil {
			return err
		}
		var heap, pkey, claimIndex, claims, history, other, dead, updated, hot, vacuums, wal float64
		if err := w.pool.QueryRow(ctx, churnLook).Scan(&heap, &pkey, &claimIndex, &claims, &history, &other, &dead, &updated, &hot, &vacuums, &wal); err != nil {
			return err
		}
		called := float64(w.called.Load())
		w.mu.Lock()
		took := w.claims
		w.claims = nil
		w.mu.Unlock()
		if part > 0 {
			put(hotSize.key, heap)
			put(pkeySize.key, pkey)
			put(claimIndexSize.key, claimIndex)
			put(claimsSize.key, claims)
			put(historySize.key, history)
			put("workers_wake_mb", other)
			put("dead_rows", dead)
			put("wal_bytes_per_job", (wal-walBefore)/math.Max(called-calledBefore, 1))
			put(hotShare.key, 100*(hot-hotBefore)/math.Max(updated-updatedBefore, 1))
			put("vacuums", vacuums-vacuumsBefore)
			slices.Sort(took)
			for _, q := range []struct {
				name string
				of   float64
			}{{claim50.key, 0.50}, {claim99.key, 0.99}} {
				v := 0.0
				if len(took) > 0 {
					v = quantile(took, q.of) * 1e3
				}
				put(q.name, v)
			}
			if w.index {
				var density, empty float64
				if err := w.pool.QueryRow(ctx, churnLookIndex).Scan(&density, &empty); err != nil {
					return err
				}
				put("jobs_claim_density_percent", density)
				put("jobs_claim_empty_percent", empty)
			}
		}
		calledBefore, updatedBefore, hotBefore, vacuumsBefore, walBefore = called, updated, hot, vacuums, wal
	}
	return nil
}
