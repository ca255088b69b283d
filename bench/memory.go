package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// What a worker takes of memory: as much as its slots hold, however long the backlog.

const (
	memorySlots   = 1000
	memoryBytes   = 4096
	memoryHandler = 10 * time.Millisecond
	memoryPart    = 100
)

// bulky is a payload of some size.
type bulky struct {
	N    int    `json:"n"`
	Text string `json:"text"`
}

var bulkyKind = &jobs.Spec[bulky, jobs.None]{Kind: "bench.bulky", Queue: queue}

var memories = contest{
	name: "memory", group: "memory", title: fmt.Sprintf("Drain of %%s jobs with payloads of %s bytes", count(memoryBytes)), jobs: func(n int) int { return 10 * n },
	note: fmt.Sprintf("By a worker with %s slots, whose handlers keep the payload for %s, so that all slots are taken. The payloads in all slots are %.0f MB. Of the memory the peak counts.",
		count(memorySlots), memoryHandler, float64(memorySlots*memoryBytes)/(1<<20)),
	entrants: []entrant{
		drainBulky("small", "a short backlog", memoryPart), drainBulky("large", "a long backlog", 0),
	},
}

var memoryRatios = []ratio{
	{key: "memory-backlog/small", says: fmt.Sprintf("peak memory of a worker with 1,000 slots: with a backlog over with one %d times as short", memoryPart), metric: memory,
		ours: []term{{"memory", "large"}}, other: []term{{"memory", "small"}}},
}

func drainBulky(name, label string, part int) entrant {
	return entrant{
		name: name, label: label, note: fmt.Sprintf("Concurrency %s", count(memorySlots)), peer: jobgenPeer, part: part, verify: emptied,
		seed: func(ctx context.Context, url string, n int) error {
			return withPool(ctx, url, 1, func(pool *pgxpool.Pool) error {
				// Text that the server stores compressed: what counts is what the worker gets.
				_, err := pool.Exec(ctx, `INSERT INTO jobgen.jobs (queue, kind, payload)
					SELECT $2, $3, jsonb_build_object('n', i, 'text', repeat(md5(i::text), $4::int / 32)) FROM generate_series(0, $1::int - 1) i`,
					n, queue, bulkyKind.Kind, memoryBytes)
				return err
			})
		},
		open: func(ctx context.Context, url string, n int) (*session, error) {
			return openWorker(ctx, url, n, worker.Config{Concurrency: memorySlots}, func(reg *worker.Registry, r *roll) {
				worker.HandleNone(reg, bulkyKind, func(_ context.Context, j *jobs.Job[bulky]) error {
					time.Sleep(memoryHandler) // what a handler waits for elsewhere, its payload in memory
					if len(j.Payload.Text) != memoryBytes {
						return fmt.Errorf("%d bytes instead of %d", len(j.Payload.Text), memoryBytes)
					}
					r.call(j.Payload.N)
					return nil
				})
			})
		},
	}
}
