package worker_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/worker"
)

// BenchmarkOwnership runs jobs whose handler writes one row, by each way to own a job: the figures of docs/runtime/lock.md.
//
//	go test ./worker -run '^$' -bench Ownership -benchtime 3000x -count 5
func BenchmarkOwnership(b *testing.B) {
	for _, conns := range []int32{2, 9} {
		for _, own := range []string{"lease", "tx", "lock"} {
			b.Run(fmt.Sprintf("%s/%d", own, conns-1), func(b *testing.B) {
				pool := jobtest.DB(b)
				execute(b, pool, `CREATE TABLE effect (n bigint)`)
				app := another(b, pool, func(c *pgxpool.Config) { c.MaxConns = conns })
				spec := &jobs.Spec[task, jobs.None]{Kind: "b." + own, Queue: "q", Lock: own == "lock"}
				enqueueMany(b, pool, spec, numbered(b.N))
				done := make(chan struct{}, b.N)
				b.ResetTimer()
				start(b, app, worker.Config{Concurrency: int(conns - 1)}, func(r *worker.Registry) {
					if own == "lease" {
						worker.HandleNone(r, spec, func(ctx context.Context, j *jobs.Job[task]) error {
							_, err := app.Exec(ctx, `INSERT INTO effect VALUES ($1)`, j.Payload.N)
							done <- struct{}{}
							return err
						})
						return
					}
					worker.HandleTxNone(r, spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) error {
						_, err := tx.Exec(ctx, `INSERT INTO effect VALUES ($1)`, j.Payload.N)
						done <- struct{}{}
						return err
					})
				})
				for range b.N {
					<-done
				}
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
			})
		}
	}
}

// BenchmarkOwnershipLatency is the time from the enqueue of a job to its handler, in an idle worker.
func BenchmarkOwnershipLatency(b *testing.B) {
	for _, own := range []string{"tx", "lock"} {
		b.Run(own, func(b *testing.B) {
			pool := jobtest.DB(b)
			spec := &jobs.Spec[task, jobs.None]{Kind: "b." + own, Queue: "q", Lock: own == "lock"}
			started := make(chan struct{})
			start(b, pool, worker.Config{}, func(r *worker.Registry) {
				worker.HandleTxNone(r, spec, func(context.Context, pgx.Tx, *jobs.Job[task]) error {
					started <- struct{}{}
					return nil
				})
			})
			b.ResetTimer()
			for i := range b.N {
				enqueue(b, pool, spec, task{N: i})
				<-started
			}
		})
	}
}
