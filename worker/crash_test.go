package worker_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/pgproxy"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

func init() {
	// mortal runs jobs of which some kill the process, as an out-of-memory kill or a fault in C code does.
	roles["mortal"] = func(ctx context.Context, pool *pgxpool.Pool, args []byte) error {
		var cfg worker.Config
		if err := json.Unmarshal(args, &cfg); err != nil {
			return err
		}
		var r worker.Registry
		worker.HandleNone(&r, kind("t.mortal"), func(ctx context.Context, j *jobs.Job[task]) error {
			if err := leave(ctx, pool, j.Payload.N, "started"); err != nil {
				return err
			}
			if j.Payload.Do == "kill" {
				os.Exit(9)
			}
			// Long enough to be under way when the poison kills the process.
			if _, err := pool.Exec(ctx, `SELECT pg_sleep(0.05)`); err != nil {
				return err
			}
			return leave(ctx, pool, j.Payload.N, "done")
		})
		w, err := worker.New(pool, &r, cfg)
		if err != nil {
			return err
		}
		return w.RunUntilSignal(ctx)
	}
}

// supervise keeps a child of the role alive until the test is over, as an init system does, and counts its deaths.
func supervise(t *testing.T, pool *pgxpool.Pool, role string, args any, until func() bool) (deaths int) {
	t.Helper()
	c := spawn(t, pool, role, args)
	eventually(t, 3*soon, "the supervised worker has done its work", func() bool {
		select {
		case <-c.done:
			if code := c.cmd.ProcessState.ExitCode(); code != 9 {
				t.Fatalf("the child ended with %d:\n%s", code, c.output())
			}
			deaths++
			c = spawn(t, pool, role, args)
		default:
		}
		return until()
	})
	return deaths
}

// One job kills its process whenever it runs. It ends dead after a bounded number of crashes; a hundred jobs that shared
// the process with it do not.
func TestG8PoisonDiesAndItsNeighboursDoNot(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.mortal")
	const others = 100
	poison := enqueue(t, pool, spec, task{N: -1, Do: "kill"})
	enqueueMany(t, pool, spec, numbered(others))
	deaths := supervise(t, pool, "mortal", map[string]any{"Lease": 600 * time.Millisecond, "Reclaim": 50 * time.Millisecond, "Concurrency": others + 1}, func() bool {
		return one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE status <> 'dead'`) == 0
	})
	if r := look(t, pool, poison.ID); r.Status != "dead" || r.Crashes != 5 || !strings.Contains(r.LastError, "crashed 5 times") {
		t.Errorf("the poison is %s", r)
	}
	if deaths != 5 {
		t.Errorf("the process died %d times", deaths)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.jobs`); n != 1 {
		t.Errorf("%d jobs are dead", n)
	}
	if n := one[int](t, pool, `SELECT count(DISTINCT n) FROM effect WHERE what = 'done'`); n != others {
		t.Errorf("%d of %d others have succeeded", n, others)
	}
	// From the third death on, whatever ran with the poison would have crashed with it.
	if n := one[int](t, pool, `SELECT count(*) FROM (SELECT job_id FROM jobgen.job_attempt WHERE outcome = 'crashed' AND job_id <> $1 GROUP BY 1 HAVING count(*) > 2) x`, poison.ID); n != 0 {
		t.Errorf("%d innocent jobs have crashed more than twice", n)
	}
}

func TestG8PoisonWithASingleAttemptIsBoundedAsWell(t *testing.T) {
	t.Parallel()
	pool := database(t)
	poison := enqueue(t, pool, kind("t.mortal"), task{N: -1, Do: "kill"}, jobs.MaxAttempts(1))
	deaths := supervise(t, pool, "mortal", map[string]any{"Lease": 600 * time.Millisecond, "Reclaim": 50 * time.Millisecond, "MaxCrashes": 3}, func() bool {
		return look(t, pool, poison.ID).Status == "dead"
	})
	if r := look(t, pool, poison.ID); deaths != 3 || r.Crashes != 3 || r.Attempt != 0 {
		t.Errorf("after %d deaths of the process the job is %s", deaths, r)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 3 {
		t.Errorf("it ran %d times", n)
	}
}

func TestG8SuspectsRunAloneAndOthersGoOnAfterThem(t *testing.T) {
	t.Parallel()
	pool := database(t)
	suspect, other := kind("t.suspect"), kind("t.other")
	enqueueMany(t, pool, other, numbered(40))
	enqueueMany(t, pool, suspect, numbered(3))
	execute(t, pool, `UPDATE jobgen.jobs SET crashes = 2 WHERE kind = 't.suspect'`)
	now := make(chan struct{}, 100) // handlers under way
	enter := func(name string) func(context.Context, *jobs.Job[task]) error {
		return func(ctx context.Context, j *jobs.Job[task]) error {
			now <- struct{}{}
			defer func() { <-now }()
			if n := len(now); name == "suspect" && n != 1 {
				t.Errorf("a suspect starts beside %d others", n-1)
			}
			if _, err := pool.Exec(ctx, `SELECT pg_sleep(0.1)`); err != nil {
				return err
			}
			if n := len(now); name == "suspect" && n != 1 {
				t.Errorf("a suspect runs beside %d others", n-1)
			}
			if n := one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE status = 'running'`); name == "suspect" && n != 1 {
				t.Errorf("%d jobs are held while a suspect runs", n)
			}
			return leave(ctx, pool, j.Payload.N, name)
		}
	}
	start(t, pool, worker.Config{Concurrency: 8, Reclaim: 50 * time.Millisecond}, func(r *worker.Registry) {
		worker.HandleNone(r, suspect, enter("suspect"))
		worker.HandleNone(r, other, enter("other"))
	})
	drained(t, pool, soon)
	if n := one[int](t, pool, `SELECT count(*) FROM effect WHERE what = 'suspect'`); n != 3 {
		t.Errorf("%d of 3 suspects ran", n)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect WHERE what = 'other'`); n != 40 {
		t.Errorf("%d of 40 others ran", n)
	}
}

// The answer to the claim of a suspect is lost: the job is found and given back, as with any other claim.
func TestG8SuspectWhoseClaimWasNotAnsweredRuns(t *testing.T) {
	t.Parallel()
	pool := database(t)
	slow, network := proxied(t, pool)
	spec := kind("t.suspect")
	enqueue(t, pool, spec, task{N: 1})
	execute(t, pool, `UPDATE jobgen.jobs SET crashes = 2, run_at = now() + interval '1 hour'`)
	start(t, slow, worker.Config{Reclaim: 200 * time.Millisecond}, stampers(pool, spec))
	eventually(t, soon, "the worker is asleep", func() bool { return one[int](t, pool, `SELECT count(*) FROM jobgen.wake`) == 1 })
	lost := network.On(statement("ClaimSuspect"), 1, pgproxy.CutDuring)
	execute(t, pool, `UPDATE jobgen.jobs SET run_at = now()`)
	receive(t, "it is claimed, and the answer is lost", lost.Done())
	eventually(t, soon, "the job ran", func() bool { return ran(t, pool, 1) })
	drained(t, pool, soon)
}
