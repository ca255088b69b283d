package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
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

// The key is being handed over when the job ends: its completion waits for that transaction, and what the job did counts.
func TestG2WhatEndsWhileItsKeyIsHandedOverIsNotThrownAway(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]bool{"lease": false, "lock": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			spec := keyed("t.handed")
			spec.Lock = lock
			started, end := make(chan bool), make(chan bool)
			start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
				started <- true
				<-end
				_, err := jobs.Enqueue(ctx, j.OnSuccess(), later(), task{})
				return "done", errors.Join(err, leave(ctx, tx, j.Payload.N, "effect"))
			}))
			first := enqueue(t, pool, spec, task{N: 1})
			receive(t, "it runs", started)
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			second := enqueue(t, tx, spec, task{N: 1}, jobs.Debounce(time.Hour, 0))
			close(end)
			blocked(t, pool)
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			gone(t, pool, first.ID)
			if r := look(t, pool, second.ID); r.Status != "queued" {
				t.Errorf("the new job is %s", r)
			}
			if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 1 || count(t, pool, later().Kind) != 1 {
				t.Errorf("%d effects and %d follow-ups", n, count(t, pool, later().Kind))
			}
		})
	}
}

// blocked waits until a session waits for a lock.
func blocked(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	eventually(t, soon, "a session waits for a lock", func() bool {
		return one[bool](t, pool, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`)
	})
}

// A job and the one that has its key now end in one flush, in either order.
func TestAJobAndItsSuccessorThatEndTogether(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][]int{"the older first": {1, 2}, "the newer first": {2, 1}} {
		for _, follows := range []bool{false, true} {
			t.Run(map[bool]string{false: name, true: name + ", with follow-ups"}[follows], func(t *testing.T) {
				t.Parallel()
				pool := database(t)
				spec, other := keyed("t.together"), kind("t.other")
				spec.Key = func(k *jobs.KeyBuilder, _ task) { k.String("doc") }
				started, ends := make(chan bool), []chan bool{make(chan bool), make(chan bool), make(chan bool)}
				w := start(t, pool, worker.Config{}, func(r *worker.Registry) {
					worker.Handle(r, spec, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
						started <- true
						<-ends[j.Payload.N]
						if follows {
							_, err := jobs.Enqueue(ctx, j.OnSuccess(), later(), task{})
							return "", err
						}
						return "", nil
					})
					worker.HandleNone(r, other, func(ctx context.Context, j *jobs.Job[task]) error {
						started <- true
						<-ends[0]
						_, err := jobs.Enqueue(ctx, j.OnSuccess(), keyedLater(), task{})
						return err
					})
				})
				first := enqueue(t, pool, spec, task{N: 1})
				receive(t, "the first runs", started)
				second := enqueue(t, pool, spec, task{N: 2}, jobs.Debounce(0, 0))
				receive(t, "the second runs", started)
				enqueue(t, pool, other, task{})
				receive(t, "the other runs", started)
				// A flush waits for the key of a follow-up; what ends meanwhile goes into the next, together.
				tx, err := pool.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				enqueue(t, tx, keyedLater(), task{})
				close(ends[0])
				blocked(t, pool)
				for i, n := range order {
					close(ends[n])
					eventually(t, soon, "it has ended", func() bool { return w.w.Stats().Running == 1-i })
				}
				if err := tx.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				gone(t, pool, first.ID)
				gone(t, pool, second.ID)
				if !one[bool](t, pool, `SELECT job_id = $1 AND finished_at IS NOT NULL FROM jobgen.job_result WHERE kind = 't.together'`, second.ID) {
					t.Error("the second is not on record")
				}
			})
		}
	}
}

// A handler asks for another run of its own work. By its lock the job looks, in its own transaction, as if it waited.
func TestG2AHandlerThatDebouncesItsOwnKeyRunsAgain(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]bool{"lease": false, "lock": true} {
		for where, db := range map[string]func(pgx.Tx, *jobs.Job[task]) jobs.DB{
			"in its transaction": func(tx pgx.Tx, _ *jobs.Job[task]) jobs.DB { return tx },
			"on success":         func(_ pgx.Tx, j *jobs.Job[task]) jobs.DB { return j.OnSuccess() },
		} {
			t.Run(name+", "+where, func(t *testing.T) {
				t.Parallel()
				pool := database(t)
				spec := keyed("t.again")
				spec.Lock = lock
				start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
					if j.Payload.Do != "" {
						return "", leave(ctx, tx, 2, j.Payload.Do)
					}
					if ref, err := jobs.Enqueue(ctx, tx, spec, task{N: 1, Do: "replaced"}, jobs.Replace()); err != nil || !ref.Existing || ref.Replaced {
						return "", fmt.Errorf("replacing itself: %+v, %w", ref, err)
					}
					_, err := jobs.Enqueue(ctx, db(tx, j), spec, task{N: 1, Do: "again"}, jobs.Debounce(0, 0))
					return "", errors.Join(err, leave(ctx, tx, 1, "first"))
				}))
				gone(t, pool, enqueue(t, pool, spec, task{N: 1}).ID)
				drained(t, pool, soon)
				if got := all[string](t, pool, `SELECT what FROM effect ORDER BY id`); !slices.Equal(got, []string{"first", "again"}) {
					t.Errorf("what ran: %v", got)
				}
			})
		}
	}
}
