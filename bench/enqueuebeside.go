package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
)

// What an enqueue costs when there is a worker: one that has enough to do, and one that has gone to sleep and is to be woken.
// The bare INSERT runs beside the same worker; compared with one that has the machine for itself, the scheduler would be
// measured.

const (
	besideWorker  = "worker"
	besideCallers = 16
	busyBacklog   = 3                     // jobs that wait, for each that is enqueued
	busyHandler   = 10 * time.Millisecond // how long each takes: the worker is busy, and leaves something of the machine
	idleBurst     = 1000                  // jobs for each time that the worker is found asleep
)

var enqueueBusy = contest{
	name: "enqueue16-busy", group: "enqueue", title: "%s single enqueues, 16 connections, beside a busy worker", jobs: func(n int) int { return n / 5 },
	note: fmt.Sprintf("The worker, in a process of its own and on default settings, has a backlog of %d times as many jobs, each of which takes it %s. Server CPU and WAL are those of both. "+
		"Afterwards each job has run or waits.", busyBacklog, busyHandler),
	entrants: []entrant{enqueueBeside(enqueueJobgen(besideCallers), true), enqueueBeside(enqueueSQL(besideCallers), true)},
}

var enqueueIdle = contest{
	name: "enqueue16-idle", group: "enqueue", title: "%s single enqueues, 16 connections, beside an idle worker", jobs: func(n int) int { return n / 5 },
	note: fmt.Sprintf("In bursts of %s, each of which finds the worker asleep; the time between them does not count. The worker, in a process of its own and on default settings, runs "+
		"what is enqueued. The first of a burst is enqueued by jobgen, so that the worker wakes for the bare INSERT, too.", count(idleBurst)),
	entrants: []entrant{enqueueBeside(enqueueJobgen(besideCallers), false), enqueueBeside(enqueueSQL(besideCallers), false)},
}

var enqueueRatios = []ratio{
	{key: "enqueue16-busy/insert", says: "single enqueue, 16 connections, beside a busy worker, jobs/s: jobgen over a bare INSERT", metric: rate,
		ours: []term{{"enqueue16-busy", "jobgen"}}, other: []term{{"enqueue16-busy", "sql"}}},
	{key: "enqueue16-idle/insert", says: "the same beside a worker that is asleep when they begin", metric: rate,
		ours: []term{{"enqueue16-idle", "jobgen"}}, other: []term{{"enqueue16-idle", "sql"}}},
}

// enqueueBeside is an entrant of enqueue16 that runs beside a worker. Jobs that are enqueued have the first n numbers, the
// backlog has the next.
func enqueueBeside(e entrant, busy bool) entrant {
	bare, total := e.name == "sql", func(n int) int { return n }
	if busy {
		total = func(n int) int { return n * (1 + busyBacklog) }
		e.seed = func(ctx context.Context, url string, n int) error {
			return withPool(ctx, url, 1, func(pool *pgxpool.Pool) error {
				_, err := jobs.EnqueueMany(ctx, pool, plainKind, payloads(total(n))[n:])
				return err
			})
		}
	}
	e.beside = &entrant{name: besideWorker, open: func(ctx context.Context, url string, n int) (*session, error) {
		var handle func()
		if busy {
			handle = func() { time.Sleep(busyHandler) } // what a handler waits for elsewhere
		}
		return openStopped(ctx, url, newRoll(total(n)), handle)
	}}
	e.open = func(ctx context.Context, url string, n int) (*session, error) {
		return openBursts(ctx, url, n, busy, bare)
	}
	e.verify = func(context.Context, *pgx.Conn, int) error { return nil }
	e.verifyBeside = func(ctx context.Context, conn *pgx.Conn, n int, beside ran) error {
		return beside.orWait(ctx, conn, total(n))
	}
	return e
}

func openBursts(ctx context.Context, url string, n int, busy, bare bool) (*session, error) {
	pool, err := newPool(ctx, url, besideCallers)
	if err != nil {
		return nil, err
	}
	enqueue := func(ctx context.Context, i int) error {
		_, err := jobs.Enqueue(ctx, pool, plainKind, payload{N: i})
		return err
	}
	insert := enqueue
	if bare {
		insert = insertSQL(pool)
	}
	ready, burst := `SELECT EXISTS (SELECT FROM jobgen.jobs WHERE status = 'running')`, n
	if !busy {
		ready, burst = `SELECT EXISTS (SELECT FROM jobgen.wake)`, idleBurst
	}
	s := &session{close: pool.Close}
	s.run = func(ctx context.Context) error {
		var took time.Duration
		for from := 0; from < n; from += burst {
			for is := false; !is; {
				if err := pool.QueryRow(ctx, ready).Scan(&is); err != nil {
					return err
				}
				if err := pause(ctx, 5*time.Millisecond); err != nil {
					return fmt.Errorf("the worker is not ready: %w", err)
				}
			}
			begin := time.Now()
			err := inParallel(ctx, besideCallers, min(burst, n-from), func(ctx context.Context, i int) error {
				if i == 0 && !busy {
					return enqueue(ctx, from)
				}
				return insert(ctx, from+i)
			})
			if err != nil {
				return err
			}
			took += time.Since(begin)
		}
		s.figures.Seconds = took.Seconds()
		return nil
	}
	return s, nil
}

// insertSQL is the bare INSERT of one job.
func insertSQL(pool *pgxpool.Pool) call {
	const insert = `INSERT INTO jobgen.jobs (queue, kind, payload) VALUES ($1, $2, $3) RETURNING id`
	return func(ctx context.Context, i int) error {
		b, err := json.Marshal(payload{N: i})
		if err != nil {
			return err
		}
		var id int64
		return pool.QueryRow(ctx, insert, queue, plainKind.Kind, b).Scan(&id)
	}
}
