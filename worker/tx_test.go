package worker_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// transactional registers a transactional handler for spec.
func transactional(spec *jobs.Spec[task, string], fn func(context.Context, pgx.Tx, *jobs.Job[task]) (string, error)) func(*worker.Registry) {
	return func(r *worker.Registry) { worker.HandleTx(r, spec, fn) }
}

func TestG5EffectsResultAndCompletionCommitTogether(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.tx")
	effect := make(chan struct{})
	commit := make(chan struct{})
	start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		if err := leave(ctx, tx, j.Payload.N, "effect"); err != nil {
			return "", err
		}
		close(effect)
		<-commit
		return "result", nil
	}))
	ref := enqueue(t, pool, spec, task{N: 1})
	receive(t, "the handler has had its effect", effect)
	if ran(t, pool, 1) {
		t.Error("the effect is seen before the commit")
	}
	if r := look(t, pool, ref.ID); r.Status != "running" {
		t.Errorf("the job is %s", r)
	}
	close(commit)
	if got, err := await(t, pool, ref); got != "result" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	// One transaction wrote them all: what it left carries one xmin, and the row went with it.
	if !one[bool](t, pool, `SELECT e.xmin = r.xmin FROM effect e, jobgen.job_result r WHERE r.job_id = $1`, ref.ID) {
		t.Error("the effect and the result come from different transactions")
	}
	if r := look(t, pool, ref.ID); r.Status != "" {
		t.Errorf("the job is %s", r)
	}
}

func TestG5TransactionThatFailsLeavesNothingButTheFailure(t *testing.T) {
	t.Parallel()
	type outcome struct {
		want    string // in the recorded error
		effects int    // that stand
	}
	for _, c := range []struct {
		name string
		outcome
		fn func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error)
	}{
		{"error", outcome{want: "on purpose"}, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			return "", errors.New("on purpose")
		}},
		{"panic", outcome{want: "panic: on purpose"}, func(context.Context, pgx.Tx, *jobs.Job[task]) (string, error) {
			panic("on purpose")
		}},
		{"Goexit", outcome{want: "runtime.Goexit"}, func(context.Context, pgx.Tx, *jobs.Job[task]) (string, error) {
			runtime.Goexit()
			return "", nil
		}},
		{"timeout", outcome{want: "timeout after 500ms: "}, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			_, err := tx.Exec(ctx, `SELECT pg_sleep(60)`)
			return "", err
		}},
		{"timeout, ignored", outcome{want: "timeout after 500ms: "}, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			_, _ = tx.Exec(ctx, `SELECT pg_sleep(60)`)
			return "fine", nil
		}},
		{"SQL error, ignored", outcome{want: "a statement in its transaction had failed"}, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			_, _ = tx.Exec(ctx, `SELECT 1/0`)
			return "fine", nil
		}},
		{"constraint violated at commit", outcome{want: "violates foreign key constraint"}, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			_, err := tx.Exec(ctx, `INSERT INTO child VALUES (1)`)
			return "fine", err
		}},
		{"COMMIT by SQL", outcome{want: "ended its transaction by a statement of its own", effects: 1}, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			_, err := tx.Exec(ctx, `COMMIT`)
			return "fine", err
		}},
		{"ROLLBACK by SQL", outcome{want: "ended its transaction by a statement of its own"}, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			_, err := tx.Exec(ctx, `ROLLBACK`)
			return "fine", err
		}},
		{"COMMIT AND CHAIN", outcome{want: "ended its transaction by a statement of its own", effects: 1}, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			_, err := tx.Exec(ctx, `COMMIT AND CHAIN`)
			return "fine", errors.Join(err, leave(ctx, tx, 2, "in the next transaction"))
		}},
		{"ROLLBACK AND CHAIN", outcome{want: "ended its transaction by a statement of its own"}, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			_, err := tx.Exec(ctx, `ROLLBACK AND CHAIN`)
			return "fine", errors.Join(err, leave(ctx, tx, 2, "in the next transaction"))
		}},
		{"COMMIT; BEGIN", outcome{want: "ended its transaction by a statement of its own", effects: 1}, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			_, err := tx.Exec(ctx, `COMMIT; BEGIN`)
			return "fine", errors.Join(err, leave(ctx, tx, 2, "in the next transaction"))
		}},
		{"RESET ALL", outcome{want: "RESET ALL"}, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			_, err := tx.Exec(ctx, `RESET ALL`)
			return "fine", err
		}},
		{"Commit", outcome{want: "the worker commits or rolls back this transaction"}, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			return "fine", tx.Commit(ctx)
		}},
		{"Rollback", outcome{want: "the worker commits or rolls back this transaction"}, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			return "fine", tx.Rollback(ctx)
		}},
		{"its connection is closed", outcome{want: ""}, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			_ = tx.Conn().Close(ctx)
			return "fine", nil
		}},
		{"its backend is terminated", outcome{want: ""}, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			_, _ = tx.Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
			return "fine", nil
		}},
		{"a result that cannot be stored", outcome{want: "refused to store"}, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
			return "forbidden", nil
		}},
	} {
		for _, lock := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lock %t", c.name, lock), func(t *testing.T) {
				t.Parallel()
				pool := database(t)
				execute(t, pool, `
				CREATE TABLE parent (id int PRIMARY KEY);
				CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
				ALTER TABLE jobgen.job_result ADD CONSTRAINT taste CHECK (result <> '"forbidden"')`)
				spec := answering("t.tx")
				spec.Lock = lock
				spec.Timeout = 500 * time.Millisecond
				if !strings.HasPrefix(c.name, "timeout") {
					spec.Timeout = 0
				}
				spec.MaxAttempts = 2
				var runs atomic.Int64
				start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
					if runs.Add(1) > 1 {
						return "second", leave(ctx, tx, 2, "second")
					}
					if err := leave(ctx, tx, 1, "first"); err != nil {
						return "", err
					}
					return c.fn(ctx, tx, j)
				}))
				ref := enqueue(t, pool, spec, task{N: 1})
				if got, err := await(t, pool, ref); got != "second" || err != nil {
					t.Errorf("got %q, %v", got, err)
				}
				if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_start`); n != 0 {
					t.Errorf("%d marks are left", n)
				}
				text := one[string](t, pool, `SELECT error FROM jobgen.job_attempt WHERE outcome = 'failed' AND attempt = 1`)
				if want := c.want; want == "refused to store" {
					if !strings.Contains(text, "taste") {
						t.Errorf("the failure on record is %q", text)
					}
				} else if !strings.Contains(text, want) {
					t.Errorf("the failure on record is %q, want %q in it", text, want)
				}
				if n := one[int](t, pool, `SELECT count(*) FROM effect WHERE n = 1`); n != c.effects {
					t.Errorf("%d effects of the first attempt stand, want %d", n, c.effects)
				}
				if n := one[int](t, pool, `SELECT count(*) FROM effect WHERE n = 2`); n != 1 {
					t.Errorf("%d effects of the second attempt stand", n)
				}
				if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`); n != 1 {
					t.Errorf("%d attempts are on record", n)
				}
			})
		}
	}
}

// Refusing Commit and Rollback leaves the transaction usable: a handler that calls them all the same and returns nil commits.
func TestG5HandlerCannotEndItsTransaction(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.tx")
	start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		defer tx.Rollback(ctx) // as everybody writes it
		if err := leave(ctx, tx, 1, "before"); err != nil {
			return "", err
		}
		if err := tx.Commit(ctx); err == nil {
			return "", errors.New("Commit was not refused")
		}
		return "ok", leave(ctx, tx, 2, "after")
	}))
	if got, err := await(t, pool, enqueue(t, pool, spec, task{})); got != "ok" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 2 {
		t.Errorf("%d effects stand", n)
	}
}

func TestG5SavepointsWork(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.tx")
	start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		inner, err := tx.Begin(ctx)
		if err != nil {
			return "", err
		}
		if _, err := inner.Exec(ctx, `SELECT 1/0`); err == nil {
			return "", errors.New("1/0 has a value")
		}
		if err := inner.Rollback(ctx); err != nil {
			return "", err
		}
		if inner, err = tx.Begin(ctx); err != nil {
			return "", err
		}
		if err := leave(ctx, inner, 1, "kept"); err != nil {
			return "", err
		}
		if err := inner.Commit(ctx); err != nil {
			return "", err
		}
		if inner, err = tx.Begin(ctx); err != nil { // left open
			return "", err
		}
		return "ok", leave(ctx, inner, 2, "kept as well")
	}))
	if got, err := await(t, pool, enqueue(t, pool, spec, task{})); got != "ok" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 2 {
		t.Errorf("%d effects stand", n)
	}
}

func TestG5LeaseLostDuringTheTransactionRollsItBack(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.tx")
	var runs atomic.Int64
	w := start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		n := int(runs.Add(1))
		if n == 1 {
			if _, err := pool.Exec(ctx, `UPDATE jobgen.jobs SET status = 'queued', fence = 0, worker_id = NULL, attempt = attempt - 1`); err != nil {
				return "", err
			}
			eventually(t, soon, "the job runs again", func() bool { return runs.Load() == 2 })
		}
		return fmt.Sprint(n), leave(ctx, tx, n, "effect")
	}))
	ref := enqueue(t, pool, spec, task{})
	if got, err := await(t, pool, ref); got != "2" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(all[int](t, pool, `SELECT n::int FROM effect`)); got != "[2]" {
		t.Errorf("effects of runs %s stand", got)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`); n != 0 {
		t.Errorf("%d attempts are on record", n)
	}
	if !w.log.has("changes nothing") {
		t.Error("nothing is said of it")
	}
}

// A transactional handler holds no lock on its job while it runs: an operator can look at it, and change it.
func TestG5RunningTransactionLocksNoJob(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.tx")
	running, release := make(chan struct{}), make(chan struct{})
	start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		close(running)
		<-release
		return "ok", nil
	}))
	ref := enqueue(t, pool, spec, task{})
	receive(t, "the handler runs", running)
	execute(t, pool, `SELECT 1 FROM jobgen.jobs FOR UPDATE NOWAIT`)
	close(release)
	if got, err := await(t, pool, ref); got != "ok" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// The application's pool is smaller than the number of handlers: they wait for it, and nothing else does.
func TestG5SmallPoolDelaysHandlersAndNothingElse(t *testing.T) {
	t.Parallel()
	pool := database(t)
	small := another(t, pool, func(c *pgxpool.Config) { c.MaxConns = 1 })
	spec := answering("t.tx")
	start(t, small, worker.Config{Lease: time.Second, Reclaim: 50 * time.Millisecond}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		_, err := tx.Exec(ctx, `SELECT pg_sleep(0.03)`)
		return "ok", err
	}))
	for _, ref := range enqueueMany(t, pool, spec, numbered(60)) {
		if got, err := await(t, pool, ref); got != "ok" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`); n != 0 {
		t.Errorf("%d attempts are on record", n)
	}
}

// Waiting for a connection is not the handler's time: it spends no attempt, however short the kind's timeout.
func TestG5WaitingForAConnectionSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	pool := database(t)
	config := pool.Config()
	config.MaxConns = 1
	small, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(small.Close)
	spec := kind("t.tx")
	spec.Timeout, spec.MaxAttempts = 500*time.Millisecond, 1
	enqueueMany(t, pool, spec, numbered(20))
	start(t, small, worker.Config{}, func(r *worker.Registry) {
		worker.HandleTxNone(r, spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) error {
			_, err := tx.Exec(ctx, `INSERT INTO effect (n) SELECT $1 FROM pg_sleep(0.1)`, j.Payload.N)
			return err
		})
	})
	drained(t, pool, soon)
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 20 {
		t.Errorf("%d of 20 handlers had their effect; the others are dead: %v", n, all[string](t, pool, `SELECT last_error FROM jobgen.jobs`))
	}
}

// A transaction that cannot be opened gives the job back unspent.
func TestG5ATransactionThatCannotBeOpenedSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	pool := database(t)
	var refuse atomic.Bool
	refuse.Store(true)
	config := pool.Config()
	config.PrepareConn = func(_ context.Context, c *pgx.Conn) (bool, error) {
		if refuse.Load() && c.Config().RuntimeParams["application_name"] != "jobgen worker" {
			return true, errors.New("no connection for you")
		}
		return true, nil
	}
	app, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(app.Close)
	spec := kind("t.tx")
	spec.MaxAttempts = 1
	ref := enqueue(t, pool, spec, task{N: 1})
	w := start(t, app, worker.Config{}, func(r *worker.Registry) {
		worker.HandleTxNone(r, spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) error {
			return leave(ctx, tx, j.Payload.N, "done")
		})
	})
	eventually(t, soon, "the worker says so", func() bool { return w.log.has("no transaction for a handler") })
	eventually(t, soon, "the job is back", func() bool { return strings.HasPrefix(look(t, pool, ref.ID).Status, "queued") })
	refuse.Store(false)
	eventually(t, soon, "the job has run", func() bool { return one[int](t, pool, `SELECT count(*) FROM effect`) == 1 })
	drained(t, pool, soon)
}
