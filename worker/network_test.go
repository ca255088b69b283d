package worker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobgen-go/jobgen/internal/pgproxy"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// The listening connection dies without a word: packets are dropped, nothing is reset. It is asked whether it lives, another
// takes its place, and a sweep follows for what was missed meanwhile.
func TestSilentlyDeadListenerIsNoticedAndASweepFollows(t *testing.T) {
	t.Parallel()
	pool := database(t)
	slow, network := proxied(t, pool)
	spec := kind("t.deaf")
	var listener atomic.Int64 // the connection that listens
	var listens atomic.Int64
	listen := pgproxy.Runs("LISTEN")
	network.On(func(m pgproxy.Message) bool {
		if listen(m) && listens.Add(1) == 1 {
			listener.Store(int64(m.Conn))
		}
		return false
	}, 1, pgproxy.Hold)
	dead := network.On(func(m pgproxy.Message) bool { return !listen(m) && int64(m.Conn) == listener.Load() }, 1, pgproxy.StrandBefore)
	w := startChanged(t, slow, worker.Config{}, func(w *worker.Worker) { worker.SetListenCheck(w, 200*time.Millisecond) }, stampers(pool, spec))
	receive(t, "the listening connection is asked, and dead", dead.Done())
	// A job that no mark leads to and that wakes nobody.
	execute(t, pool, `INSERT INTO jobgen.jobs (queue, kind, payload, run_at) VALUES ('q', 't.deaf', '{"N": 1}', now() - interval '1 hour')`)
	eventually(t, soon, "it listens again", func() bool { return listens.Load() >= 2 })
	eventually(t, soon, "the job was found", func() bool { return ran(t, pool, 1) })
	if !w.log.has("not listening") || !w.log.has("dead") {
		t.Error("nothing is said of it")
	}
}

// After a reconnect the sweep is not left to its own pace, which in a large fleet is half a minute.
func TestASweepFollowsEachReconnectOfTheListener(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.deaf")
	execute(t, pool, `INSERT INTO jobgen.workers (id, lease_until, pid, host, build, queues, kinds)
		SELECT gen_random_uuid(), now() + interval '1 hour', 1, 'h', 'b', '{other}', '{}' FROM generate_series(1, 100)`)
	start(t, pool, worker.Config{Lease: time.Second}, stampers(pool, spec))
	// The first sweep is due a second after the start, and made with the next claim, five seconds later at most.
	eventually(t, soon, "the worker knows its fleet, and its next sweep is far off", func() bool {
		return one[bool](t, pool, `SELECT EXISTS (SELECT FROM jobgen.workers WHERE queues = '{q}' AND beat_at > started_at + interval '7 s')`)
	})
	execute(t, pool, `INSERT INTO jobgen.jobs (queue, kind, payload, run_at) VALUES ('q', 't.deaf', '{"N": 1}', now() - interval '1 hour')`)
	execute(t, pool, `SELECT pg_terminate_backend($1)`, listeners(t, pool)[0])
	// At its own pace the next sweep comes 22 s after the last at the earliest.
	eventually(t, 10*time.Second, "the job was found after the worker listened again", func() bool { return ran(t, pool, 1) })
}

// A worker is in a black hole: its connections are dead without a word, and new ones are not answered. Others take its jobs
// when its lease is over; when the network is back it goes on under a new id.
func TestG7WorkerInABlackHoleLosesItsLeaseAndRecovers(t *testing.T) {
	t.Parallel()
	pool := database(t)
	slow, network := proxied(t, pool)
	spec, own := answering("t.shared"), answering("t.own")
	started := make(chan struct{})
	causes := make(chan error, 1)
	a := start(t, slow, worker.Config{Lease: time.Second, Reclaim: 100 * time.Millisecond}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(ctx context.Context, _ *jobs.Job[task]) (string, error) {
			close(started)
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return "of A", nil
		})
		worker.Handle(r, own, func(context.Context, *jobs.Job[task]) (string, error) { return "of A", nil })
	})
	ref := enqueue(t, pool, spec, task{})
	receive(t, "A's handler runs", started)
	before := one[uuid.UUID](t, pool, `SELECT id FROM jobgen.workers`)
	network.Freeze()
	network.Strand()
	start(t, pool, worker.Config{Lease: 2 * time.Second, Reclaim: 100 * time.Millisecond}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(context.Context, *jobs.Job[task]) (string, error) { return "of B", nil })
	})
	if got, err := await(t, pool, ref); got != "of B" || err != nil {
		t.Fatalf("got %q, %v", got, err)
	}
	network.Heal()
	if cause := receive(t, "A's handler is cancelled", causes); cause != jobs.ErrLeaseLost {
		t.Errorf("the cause is %v", cause)
	}
	eventually(t, soon, "A goes on under a new id", func() bool {
		return one[int](t, pool, `SELECT count(*) FROM jobgen.workers WHERE lost_at IS NULL AND id <> $1`, before) == 2
	})
	next := enqueue(t, pool, own, task{})
	// A claim that was under way is given half a minute.
	eventually(t, 4*soon, "A works again", func() bool { return look(t, pool, next.ID).Status == "" })
	if got, err := await(t, pool, next); got != "of A" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_result`); n != 2 {
		t.Errorf("%d results", n)
	}
	if !a.log.has("was found dead") {
		t.Error("nothing is said of it")
	}
}

// The answer to a schedule's tick is lost: its job is enqueued once.
func TestTickWhoseAnswerIsLostEnqueuesOnce(t *testing.T) {
	t.Parallel()
	for _, act := range []pgproxy.Act{pgproxy.CutBefore, pgproxy.CutDuring} {
		t.Run(act.String(), func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			slow, network := proxied(t, pool)
			execute(t, pool, `INSERT INTO jobgen.schedules (kind, name, cron, zone, missed, next_at)
				VALUES ('nightly', 'n', '0 3 1 1 *', 'UTC', 'once', now())`)
			lost := network.On(statement("Tick"), 1, act)
			start(t, slow, worker.Config{}, leaveTick(pool, ticking(jobs.Schedule{Name: "n", Cron: "0 3 1 1 *", Zone: "UTC"})))
			receive(t, "the cut", lost.Done())
			eventually(t, 2*soon, "it ran", func() bool { return one[int](t, pool, `SELECT count(*) FROM effect`) >= 1 })
			eventually(t, soon, "the schedule has moved on", func() bool { return one[bool](t, pool, `SELECT next_at > now() FROM jobgen.schedules`) })
			drained(t, pool, soon)
			if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 1 {
				t.Errorf("it ran %d times", n)
			}
		})
	}
}
