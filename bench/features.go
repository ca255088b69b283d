package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/jobgen-go/jobgen/joblog"
	"github.com/jobgen-go/jobgen/jobotel"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// What each feature of the runtime costs a job that uses it, and what all of them cost one that uses none: the plain job
// of an older checkout (-baseline).

const (
	featureDrain   = "feature-drain"
	featureEnqueue = "feature-enqueue"
)

// txPart is for jobs that have a transaction each.
const txPart = 10

var featureDrains = contest{
	name: featureDrain, group: "features", title: "Drain of %s no-op jobs, each with one feature", jobs: all,
	note: "As the drain against others. Where jobs have a transaction of their own, " + strconv.Itoa(txPart) + " times fewer are drained.",
	entrants: []entrant{
		variant{name: "plain", label: "plain", note: "default settings (worker.Config{})"}.entrant(),
		{
			name: "before", label: "plain, before", note: "the checkout given by -baseline, with its own schema", peer: beforePeer, verify: emptied,
			needs: needsBaseline, foreign: &foreign{before, term{"drain", "jobgen"}},
		},
		variant{name: "middleware", label: "middleware", note: "one that only calls next", config: worker.Config{Middleware: []jobs.Middleware{passing}}}.entrant(),
		variant{name: "log-off", label: "joblog, level off", note: "its handler takes errors only", config: logging(slog.LevelError)}.entrant(),
		variant{name: "log-on", label: "joblog", note: "a line for each job, to a text handler that writes to nowhere", config: logging(slog.LevelInfo)}.entrant(),
		variant{name: "otel", label: "jobotel", note: "the API without an SDK", config: worker.Config{Middleware: []jobs.Middleware{jobotel.Middleware(jobotel.Options{})}}}.entrant(),
		variant{name: "deadline", label: "deadline", note: "jobs.Within an hour", opts: []jobs.Option{jobs.Within(time.Hour)}}.entrant(),
		variant{name: "headers", label: "headers", note: "one of 55 bytes", opts: []jobs.Option{jobs.Headers(header)}}.entrant(),
		variant{name: "key", label: "key", note: "one for each job, and so an empty result on record", kind: keyedKind}.entrant(),
		variant{name: "tx", label: "transaction", note: "worker.HandleTxNone, which does nothing in its transaction", register: handleTx(plainKind), part: txPart}.entrant(),
		variant{name: "lock", label: "own=lock", note: "the same, owned by a row lock", kind: lockKind, register: handleTx(lockKind), part: txPart}.entrant(),
		drainFollowups,
		variant{name: "policy", label: "weights, reserved slots", note: "a second queue, empty; weights 3 to 1, and 10 of 100 slots for priority 5 and more", config: worker.Config{
			Queues: []string{queue, otherQueue}, Weights: map[string]int{queue: 3, otherQueue: 1}, Reserve: []worker.Reserve{{Priority: 5, Slots: 10}},
		}}.entrant(),
		variant{name: "slots", label: "slots of a queue", note: "worker.Config.QueueSlots: 50 of 100", config: worker.Config{QueueSlots: map[string]int{queue: 50}}}.entrant(),
		drainPaused,
		drainPgBouncer,
	},
}

var featureRatios = []ratio{
	{key: "drain/before", says: "drain, jobs/s: a job without any feature over the same at the checkout given by -baseline", metric: rate, ours: []term{{featureDrain, "plain"}}, other: []term{{featureDrain, "before"}}},
	{key: "cpu/before", says: "drain, client + server CPU per job: the same", metric: cpu, ours: []term{{featureDrain, "plain"}}, other: []term{{featureDrain, "before"}}},
	{key: "wal/before", says: "drain, WAL per job: the same", metric: wal, ours: []term{{featureDrain, "plain"}}, other: []term{{featureDrain, "before"}}},
	drainRatio("middleware", "a middleware"),
	drainRatio("log-off", "joblog, its level off"),
	drainRatio("log-on", "joblog, a line for each job"),
	drainRatio("otel", "jobotel without an SDK"),
	drainRatio("deadline", "a deadline"),
	drainRatio("headers", "a header"),
	drainRatio("key", "a key"),
	drainRatio("tx", "a transactional handler"),
	drainRatio("lock", "own=lock"),
	drainRatio("followup", "a follow-up for every other job"),
	drainRatio("policy", "weights and reserved slots"),
	drainRatio("slots", "slots of the queue limited to 50"),
	drainRatio("paused", "another queue of the worker, paused, with as many jobs in it"),
	drainRatio("pgbouncer", "PgBouncer between worker and server"),
	{key: "enqueue1/before", says: "single enqueue, jobs/s: without any feature over the same at the checkout given by -baseline", metric: rate, ours: []term{{featureEnqueue, "plain"}}, other: []term{{featureEnqueue, "before"}}},
	enqueueRatio("middleware", "plain", "a middleware"),
	enqueueRatio("headers", "plain", "a header"),
	enqueueRatio("sql", "plain", "database/sql on pgx's driver"),
	enqueueRatio("key", "plain", "a new key"),
	enqueueRatio("key-taken", "key", "a key that is taken"),
	enqueueRatio("replace", "key", "Replace and a new key"),
	enqueueRatio("replace-taken", "key-taken", "Replace of a job that waits"),
	enqueueRatio("debounce-taken", "key-taken", "Debounce of a job that waits"),
}

func drainRatio(name, says string) ratio {
	return ratio{key: "drain-" + name + "/drain", says: "drain, jobs/s: with " + says + ", over plain jobs", metric: rate, ours: []term{{featureDrain, name}}, other: []term{{featureDrain, "plain"}}}
}

func enqueueRatio(name, over, says string) ratio {
	under := "enqueue1"
	if over != "plain" {
		under = "enqueue1-" + over
	}
	label := map[string]string{"plain": "plain ones", "key": "a new key", "key-taken": "a key that is taken"}[over]
	return ratio{key: "enqueue1-" + name + "/" + under, says: "single enqueue, jobs/s: with " + says + ", over " + label, metric: rate, ours: []term{{featureEnqueue, name}}, other: []term{{featureEnqueue, over}}}
}

var (
	passing = jobs.Middleware{
		Enqueue: func(ctx context.Context, _ *jobs.Enqueueing, next func(context.Context) error) error {
			return next(ctx)
		},
		Work: func(ctx context.Context, _ *jobs.Info, next func(context.Context) error) error { return next(ctx) },
	}
	header = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}

	keyedKind = &jobs.Spec[payload, jobs.None]{
		Kind: "bench.plain", Queue: queue, Key: func(k *jobs.KeyBuilder, p payload) { k.Int(int64(p.N)) },
	}
	lockKind = &jobs.Spec[payload, jobs.None]{Kind: "bench.plain", Queue: queue, Lock: true}
)

func logging(level slog.Level) worker.Config {
	logger := slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: level}))
	return worker.Config{Middleware: []jobs.Middleware{joblog.Middleware(logger)}}
}

// variant is the drain of jobs that differ from plain ones in one thing. Zero is as plain.
type variant struct {
	name, label, note string
	part              int
	kind              *jobs.Spec[payload, jobs.None]
	opts              []jobs.Option // of the enqueue
	config            worker.Config
	register          func(*worker.Registry, *roll)
}

func (v variant) entrant() entrant {
	if v.kind == nil {
		v.kind = plainKind
	}
	if v.register == nil {
		v.register = func(reg *worker.Registry, r *roll) {
			worker.HandleNone(reg, v.kind, func(_ context.Context, j *jobs.Job[payload]) error {
				r.call(j.Payload.N)
				return nil
			})
		}
	}
	return entrant{
		name: v.name, label: v.label, note: v.note, peer: jobgenPeer, part: v.part, verify: emptied,
		seed: func(ctx context.Context, url string, n int) error { return seedJobgen(ctx, url, v.kind, n, v.opts...) },
		open: func(ctx context.Context, url string, n int) (*session, error) {
			return openWorker(ctx, url, n, v.config, v.register)
		},
	}
}

func handleTx(kind *jobs.Spec[payload, jobs.None]) func(*worker.Registry, *roll) {
	return func(reg *worker.Registry, r *roll) {
		worker.HandleTxNone(reg, kind, func(_ context.Context, _ pgx.Tx, j *jobs.Job[payload]) error {
			r.call(j.Payload.N)
			return nil
		})
	}
}

// drainFollowups runs as many jobs as the others: the first half is enqueued before, and each of it is followed by one of
// the second. So a job less is enqueued beforehand for each that is enqueued while the clock runs.
var drainFollowups = entrant{
	name: "followup", label: "follow-ups", peer: jobgenPeer, verify: emptied,
	note: "half of the jobs wait at the start, and each enqueues one of the other half, a plain job, on job.OnSuccess(); the enqueue of that half is in the figures",
	seed: func(ctx context.Context, url string, n int) error { return seedJobgen(ctx, url, plainKind, n-n/2) },
	open: func(ctx context.Context, url string, n int) (*session, error) {
		return openWorker(ctx, url, n, worker.Config{}, func(reg *worker.Registry, r *roll) {
			worker.HandleNone(reg, plainKind, func(ctx context.Context, j *jobs.Job[payload]) error {
				r.call(j.Payload.N)
				next := j.Payload.N + n - n/2
				if next >= n {
					return nil
				}
				_, err := jobs.Enqueue(ctx, j.OnSuccess(), plainKind, payload{N: next})
				return err
			})
		})
	},
}

const otherQueue = "bench-other"

// drainPaused drains beside a queue that has as many jobs and is paused.
var drainPaused = func() entrant {
	e := variant{
		name: "paused", label: "another queue paused", note: "as many jobs in a second queue, which is paused",
		config: worker.Config{Queues: []string{queue, otherQueue}},
	}.entrant()
	seed := e.seed
	e.seed = func(ctx context.Context, url string, n int) error {
		if err := seedJobgen(ctx, url, plainKind, n, jobs.Queue(otherQueue)); err != nil {
			return err
		}
		if err := withPool(ctx, url, 1, func(pool *pgxpool.Pool) error { return jobs.PauseQueue(ctx, pool, otherQueue) }); err != nil {
			return err
		}
		return seed(ctx, url, n)
	}
	e.verify = func(ctx context.Context, conn *pgx.Conn, n int) error {
		return expect(ctx, conn, n, `SELECT count(*) FILTER (WHERE status = 'queued' AND queue = 'bench-other') + 2 * count(*) FILTER (WHERE queue = 'bench') FROM jobgen.jobs`)
	}
	return e
}()

// takenKeys is how many keys the enqueues share that find theirs taken.
const takenKeys = 10

var featureEnqueues = contest{
	name: featureEnqueue, group: "features", title: "%s single enqueues, 1 connection, each with one feature", jobs: func(n int) int { return n / 20 },
	note: fmt.Sprintf("No workers. Where keys are taken there are %d; the first enqueue of each makes the job, and the others find it waiting.", takenKeys),
	entrants: []entrant{
		enqueueVariant("plain", "plain", "jobs.Enqueue on a pool", nil),
		{
			name: "before", label: "plain, before", note: "the checkout given by -baseline, with its own schema", peer: beforePeer, verify: queued,
			needs: needsBaseline, foreign: &foreign{before, term{"enqueue1", "jobgen"}},
		},
		enqueueVariant("middleware", "middleware", "a jobs.Producer with one that only calls next",
			func(db jobs.DB) jobs.DB { return (&jobs.Producer{Middleware: []jobs.Middleware{passing}}).On(db) }),
		enqueueVariant("headers", "headers", "one of 55 bytes", nil, jobs.Headers(header)),
		enqueueThroughSQL,
		enqueueKeyed("key", "key", "new each time", false),
		enqueueKeyed("key-taken", "key, taken", "a key that is taken", true),
		enqueueKeyed("replace", "Replace", "new keys", false, jobs.Replace()),
		enqueueKeyed("replace-taken", "Replace, taken", "of a job that waits", true, jobs.Replace()),
		enqueueKeyed("debounce-taken", "Debounce, taken", "of a job that waits", true, jobs.Debounce(time.Minute, time.Hour)),
	},
}

// enqueueVariant enqueues plain jobs on what on makes of the pool.
func enqueueVariant(name, label, note string, on func(jobs.DB) jobs.DB, opts ...jobs.Option) entrant {
	return entrant{
		name: name, label: label, note: note, peer: jobgenPeer, verify: queued,
		open: func(ctx context.Context, url string, n int) (*session, error) {
			return openCallers(ctx, url, 1, n, func(pool *pgxpool.Pool) (call, error) {
				var db jobs.DB = pool
				if on != nil {
					db = on(db)
				}
				return func(ctx context.Context, i int) error {
					_, err := jobs.Enqueue(ctx, db, plainKind, payload{N: i}, opts...)
					return err
				}, nil
			})
		},
	}
}

func enqueueKeyed(name, label, note string, taken bool, opts ...jobs.Option) entrant {
	key := func(i int) string { return strconv.Itoa(i) }
	verify := queued
	if taken {
		key = func(i int) string { return strconv.Itoa(i % takenKeys) }
		verify = func(ctx context.Context, conn *pgx.Conn, n int) error {
			return queued(ctx, conn, min(n, takenKeys))
		}
	}
	return entrant{
		name: name, label: label, note: note, peer: jobgenPeer, verify: verify,
		open: func(ctx context.Context, url string, n int) (*session, error) {
			return openCallers(ctx, url, 1, n, func(pool *pgxpool.Pool) (call, error) {
				return func(ctx context.Context, i int) error {
					_, err := jobs.Enqueue(ctx, pool, plainKind, payload{N: i}, append(opts, jobs.Key(key(i)))...)
					return err
				}, nil
			})
		},
	}
}

var enqueueThroughSQL = entrant{
	name: "sql", label: "database/sql", note: "jobs.SQL on a *sql.DB of pgx's driver", peer: jobgenPeer, verify: queued,
	open: func(ctx context.Context, url string, n int) (*session, error) {
		db, err := sql.Open("pgx", url)
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(1)
		if err := db.PingContext(ctx); err != nil {
			return nil, err
		}
		return &session{close: func() { _ = db.Close() }, run: func(ctx context.Context) error {
			on := jobs.SQL(db)
			for i := range n {
				if _, err := jobs.Enqueue(ctx, on, plainKind, payload{N: i}); err != nil {
					return err
				}
			}
			return nil
		}}, nil
	},
}
