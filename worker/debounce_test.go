package worker_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// Whoever runs the job, by a lease or by its row lock: a debounced enqueue does not wait for it, and a new job does what it
// asks for. Of the job that ran already, neither the effect nor the removal is in danger.
func TestG2WhatIsDebouncedWhileItsJobRunsRunsAfterIt(t *testing.T) {
	t.Parallel()
	for name, form := range forms {
		for _, fails := range []bool{false, true} {
			t.Run(map[bool]string{false: name, true: name + ", fails"}[fails], func(t *testing.T) {
				t.Parallel()
				pool := database(t)
				started, end := make(chan bool, 5), make(chan bool)
				_, register := form("t.debounced", func(ctx context.Context, j *jobs.Job[task]) error {
					if err := leave(ctx, pool, j.Payload.N, "ran"); err != nil {
						return err
					}
					if _, err := jobs.Enqueue(ctx, j.OnSuccess(), later(), task{}); err != nil || j.Payload.N > 1 {
						return err
					}
					started <- true
					<-end
					if fails {
						return jobs.RetryIn(0, context.Canceled)
					}
					return nil
				})
				start(t, another(t, pool, func(c *pgxpool.Config) { c.MaxConns = 8 }), worker.Config{}, register)
				spec := keyed("t.debounced")
				spec.Key = func(k *jobs.KeyBuilder, _ task) { k.String("doc") }
				first := enqueue(t, pool, spec, task{N: 1}, jobs.Debounce(0, 0))
				receive(t, "the first runs", started)
				second := enqueue(t, pool, spec, task{N: 2}, jobs.Debounce(time.Hour, 0))
				third := enqueue(t, pool, spec, task{N: 3}, jobs.Debounce(time.Hour, 0))
				if second.ID == first.ID || second.Existing || third.ID != second.ID || !third.Replaced {
					t.Errorf("%+v, %+v, %+v", first, second, third)
				}
				close(end)
				gone(t, pool, first.ID)
				if n := count(t, pool, "t.later"); n == 1 == fails {
					t.Errorf("%d follow-ups: what the first did counts if it succeeds", n)
				}
				execute(t, pool, `UPDATE jobgen.jobs SET run_at = clock_timestamp()`)
				gone(t, pool, third.ID)
				if got := all[int](t, pool, `SELECT n FROM effect ORDER BY id`); !slices.Equal(got, []int{1, 3}) {
					t.Errorf("what ran: %v", got)
				}
				if !one[bool](t, pool, `SELECT job_id = $1 AND finished_at IS NOT NULL FROM jobgen.job_result WHERE kind = 't.debounced'`, third.ID) {
					t.Error("the last one is not on record")
				}
			})
		}
	}
}
