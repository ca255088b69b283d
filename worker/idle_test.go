package worker_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// asleep is how many workers want to be woken.
func asleep(t testing.TB, db jobs.DB) int {
	t.Helper()
	return one[int](t, db, `SELECT count(DISTINCT worker_id) FROM jobgen.wake`)
}

// gated registers kinds whose handlers tell started and wait for gate.
func gated(started chan<- int, gate <-chan bool, specs ...*jobs.Spec[task, jobs.None]) func(*worker.Registry) {
	return func(r *worker.Registry) {
		for _, s := range specs {
			worker.HandleNone(r, s, func(_ context.Context, j *jobs.Job[task]) error {
				started <- j.Payload.N
				<-gate
				return nil
			})
		}
	}
}

// sleeper is an idle worker that is none: it counts how often it is woken.
func sleeper(t testing.TB, db *pgxpool.Pool, queue string, kinds ...string) (woken <-chan bool) {
	t.Helper()
	id := uuid.New()
	conn, err := pgx.ConnectConfig(t.Context(), db.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	execute(t, conn, `LISTEN "jobgen_`+id.String()+`"`)
	execute(t, db, `INSERT INTO jobgen.workers (id, host, pid, build, queues, kinds, lease_until) VALUES ($1, 'h', 1, 'b', ARRAY[$2], $3, clock_timestamp() + interval '1 h')`, id, queue, kinds)
	execute(t, db, `INSERT INTO jobgen.wake (queue, worker_id, kinds) VALUES ($1, $2, $3)`, queue, id, kinds)
	c := make(chan bool, 1000)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan bool)
	go func() {
		defer close(done)
		defer conn.Close(context.WithoutCancel(ctx))
		for {
			if _, err := conn.WaitForNotification(ctx); err != nil {
				return
			}
			c <- true
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

// Between single jobs, and while one runs, nothing is written for the worker to be woken again.
func TestAWorkerSleepsWhileSingleJobsRun(t *testing.T) {
	t.Parallel()
	pool := database(t)
	watched, tap := tapped(t, pool)
	spec := kind("t.single")
	started, gate := make(chan int), make(chan bool)
	start(t, watched, worker.Config{}, gated(started, gate, spec))
	defer close(gate)
	eventually(t, soon, "the worker sleeps", func() bool { return asleep(t, pool) == 1 })
	for n := range 3 {
		enqueue(t, pool, spec, task{N: n})
		receive(t, "the job runs", started)
	}
	if n, m := len(tap.sent("Sleep")), len(tap.sent("Awake")); n != 1 || m != 0 {
		t.Errorf("it wrote its wake rows %d times and removed them %d times", n, m)
	}
}

// A worker without a free slot asks nobody to wake it, and has another woken for what it may have been woken for.
func TestAFullWorkerSwallowsNoWakeUp(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec, other := kind("t.full"), kind("t.other")
	started, gate := make(chan int), make(chan bool)
	start(t, pool, worker.Config{Concurrency: 1}, gated(started, gate, spec, other))
	eventually(t, soon, "the worker sleeps", func() bool { return asleep(t, pool) == 1 })
	woken := sleeper(t, pool, "q", other.Kind) // no enqueue that follows wakes it
	enqueueMany(t, pool, spec, numbered(2))    // for the second the worker has no room
	receive(t, "a job runs", started)
	receive(t, "another worker is woken in its place", woken)
	if n := asleep(t, pool); n != 1 {
		t.Errorf("%d workers sleep, want only the other", n)
	}
	execute(t, pool, `DELETE FROM jobgen.wake`) // of the other
	gate <- true
	receive(t, "the other job runs", started)
	gate <- true
	eventually(t, soon, "the worker sleeps again", func() bool { return asleep(t, pool) == 1 })
}

// A suspect runs alone: meanwhile, the worker starts nothing else.
// Also if its wake rows could not be removed at first.
func TestAFullWorkerRemovesItsWakeRowsInTheEnd(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.full")
	started, gate := make(chan int, 2), make(chan bool)
	w := start(t, pool, worker.Config{Concurrency: 1}, gated(started, gate, spec))
	defer close(gate)
	eventually(t, soon, "the worker sleeps", func() bool { return asleep(t, pool) == 1 })
	execute(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$`)
	execute(t, pool, `CREATE TRIGGER refuse BEFORE DELETE ON jobgen.wake FOR EACH ROW EXECUTE FUNCTION refuse()`)
	enqueueMany(t, pool, spec, numbered(2)) // for the second it has no room
	receive(t, "the job runs", started)
	eventually(t, soon, "it fails to remove them", func() bool { return w.log.has("not now") })
	execute(t, pool, `DROP TRIGGER refuse ON jobgen.wake`)
	eventually(t, soon, "it does", func() bool { return asleep(t, pool) == 0 })
}

func TestAWorkerWithASuspectSwallowsNoWakeUp(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.suspect")
	started, gate := make(chan int), make(chan bool)
	start(t, pool, worker.Config{Reclaim: 50 * time.Millisecond}, gated(started, gate, spec))
	eventually(t, soon, "the worker sleeps", func() bool { return asleep(t, pool) == 1 })
	woken := sleeper(t, pool, "q", spec.Kind)
	execute(t, pool, `INSERT INTO jobgen.jobs (queue, kind, payload, crashes) VALUES ('q', $1, '{"N": 1}', 2)`, spec.Kind)
	receive(t, "it runs", started)
	defer close(gate)
	receive(t, "another worker is woken in its place", woken)
	if n := asleep(t, pool); n != 1 {
		t.Errorf("%d workers sleep, want only the other", n)
	}
}

// A worker that shuts down takes no wake-up into its grace.
func TestAWorkerThatShutsDownSwallowsNoWakeUp(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.ending")
	started, gate := make(chan int), make(chan bool)
	w := start(t, pool, worker.Config{}, gated(started, gate, spec))
	eventually(t, soon, "the worker sleeps", func() bool { return asleep(t, pool) == 1 })
	enqueue(t, pool, spec, task{})
	receive(t, "its job runs", started)
	woken := sleeper(t, pool, "q", spec.Kind)
	w.cancel()
	receive(t, "another worker is woken in its place", woken)
	if n := asleep(t, pool); n != 1 {
		t.Errorf("%d workers sleep, want only the other", n)
	}
	close(gate)
}

func TestAPausedQueueWakesNobody(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.paused")
	start(t, pool, worker.Config{}, stampers(pool, spec))
	eventually(t, soon, "the worker sleeps", func() bool { return asleep(t, pool) == 1 })
	if err := jobs.PauseQueue(t.Context(), pool, "q"); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "it asks nobody to wake it", func() bool { return asleep(t, pool) == 0 })
	if err := jobs.ResumeQueue(t.Context(), pool, "q"); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "the worker sleeps again", func() bool { return asleep(t, pool) == 1 })
}

// Jobs that come so often that waking somebody for each would slow down those who enqueue wake nobody; afterwards the
// worker sleeps again.
func TestManyEnqueuesWakeNobody(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.often")
	start(t, pool, worker.Config{}, stampers(pool, spec))
	eventually(t, soon, "the worker sleeps", func() bool { return asleep(t, pool) == 1 })
	var g sync.WaitGroup
	var awake atomic.Bool
	for range 4 {
		g.Go(func() {
			for !awake.Load() {
				enqueue(t, pool, spec, task{})
			}
		})
	}
	eventually(t, soon, "the worker is awake", func() bool { return asleep(t, pool) == 0 })
	awake.Store(true)
	g.Wait()
	drained(t, pool, soon)
	eventually(t, soon, "the worker sleeps again", func() bool { return asleep(t, pool) == 1 })
}

// An enqueue that commits at any point between a claim that finds nothing and being asleep is found, as is one that comes
// while the worker asks when the next job is due.
func TestNoWakeUpIsLostWhileAWorkerFallsAsleep(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"Claim", "Sleep", "NextDue"} {
		t.Run("before "+statement, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			watched, tap := tapped(t, pool)
			spec := kind("t.falling")
			var n atomic.Int64
			tap.before(statement, func(ctx context.Context) context.Context {
				if i := n.Add(1); i <= 5 {
					enqueue(t, pool, spec, task{N: int(i)})
				}
				return ctx
			})
			start(t, watched, worker.Config{}, stampers(pool, spec))
			eventually(t, soon, fmt.Sprint("what was enqueued before ", statement, " has run"), func() bool {
				i := min(n.Load(), 5)
				return i > 0 && one[int64](t, pool, `SELECT count(*) FROM effect`) >= i
			})
		})
	}
}
