package worker_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

const published = `SELECT coalesce((SELECT format('%s %s %s %s/%s %s', kinds, versions, timeouts_us, running, slots, abs(skew_us) < 5000000)
	FROM jobgen.workers WHERE lost_at IS NULL), '')`

// A worker tells operators what it is like, also once it has a new id, and how busy it is.
func TestAWorkerTellsWhatItIsLike(t *testing.T) {
	t.Parallel()
	pool := database(t)
	slow, quick, locked := kind("t.slow"), kind("t.quick"), kind("t.locked")
	slow.Timeout, slow.Version, slow.Upgrade, slow.Was = time.Hour, 2, []func(json.RawMessage) (task, error){func(json.RawMessage) (task, error) { return task{}, nil }}, []string{"t.old"}
	locked.Lock = true
	started, letGo := make(chan struct{}, 2), make(chan struct{})
	defer close(letGo)
	w := start(t, pool, worker.Config{Concurrency: 3, Heartbeat: 50 * time.Millisecond}, func(r *worker.Registry) {
		worker.HandleNone(r, slow, func(context.Context, *jobs.Job[task]) error { started <- struct{}{}; <-letGo; return nil })
		worker.HandleNone(r, quick, func(context.Context, *jobs.Job[task]) error { return nil })
		worker.HandleTxNone(r, locked, func(context.Context, pgx.Tx, *jobs.Job[task]) error { started <- struct{}{}; <-letGo; return nil })
	})
	enqueue(t, pool, slow, task{})
	enqueue(t, pool, locked, task{})
	for range 2 {
		receive(t, "a handler runs", started)
	}
	becomes := func(what, want string) {
		t.Helper()
		var got string
		defer func() {
			if t.Failed() {
				t.Logf("%s", got)
			}
		}()
		eventually(t, soon, what, func() bool { got = one[string](t, pool, published); return got == want })
	}
	const kinds = "{t.old,t.quick,t.slow,t.locked} {2,1,2,1} {3600000000,0,3600000000,0} "
	becomes("it is told", kinds+"2/3 t")
	if err := w.w.Resize(5); err != nil {
		t.Fatal(err)
	}
	becomes("Resize is told", kinds+"2/5 t")
	execute(t, pool, `UPDATE jobgen.workers SET lost_at = clock_timestamp()`)
	becomes("under a new id all is told again", kinds+"2/5 t")
}

func TestAWorkerTellsWhatItIsLikeBeforeItsFirstHeartbeat(t *testing.T) {
	t.Parallel()
	pool := database(t)
	start(t, pool, worker.Config{Concurrency: 3, Lease: time.Hour}, func(r *worker.Registry) {
		worker.HandleNone(r, kind("t.k"), func(context.Context, *jobs.Job[task]) error { return nil })
	})
	eventually(t, soon, "it is told", func() bool { return one[string](t, pool, published) == "{t.k} {1} {0} 0/3 t" })
}

// What a schedule's ticks enqueue is on record, so that an operator can have it at any time.
func TestADeclaredScheduleTellsWhatItsTicksEnqueue(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.ticks")
	spec.Priority, spec.MaxAttempts, spec.Schedules = 4, 6, []jobs.Schedule{{Name: "n", Cron: "0 3 1 1 *", Zone: "UTC"}}
	run := func() string {
		t.Helper()
		w := start(t, pool, worker.Config{}, func(r *worker.Registry) {
			worker.HandleNone(r, spec, func(context.Context, *jobs.Job[task]) error { return nil })
		})
		eventually(t, soon, "it runs", func() bool { return w.log.has("worker started") })
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		return one[string](t, pool, `SELECT format('%s v%s p%s %s %s', queue, version, priority, max_attempts, payload) FROM jobgen.schedules`)
	}
	if got := run(); got != `q v1 p4 6 {"N": 0}` {
		t.Error(got)
	}
	spec.Priority = 5
	if got := run(); got != `q v1 p5 6 {"N": 0}` {
		t.Error("a program that declares it otherwise changes it:", got)
	}
}
