package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/internal/pgproxy"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// An idle worker sends two statements with each heartbeat, and next to nothing else: what costs more waits for a sign.
func TestAnIdleWorkerSendsTwoStatementsAHeartbeat(t *testing.T) {
	t.Parallel()
	pool := database(t)
	watched, tap := tapped(t, pool)
	start(t, watched, worker.Config{Lease: 1500 * time.Millisecond}, stampers(pool, kind("t.idle")))
	eventually(t, soon, "the worker sleeps", func() bool { return one[int](t, pool, `SELECT count(*) FROM jobgen.wake`) == 1 })
	count := func(names ...string) (n int) {
		for _, name := range names {
			n += len(tap.sent(name))
		}
		return n
	}
	beats, looks := count("Heartbeat"), count("Signs")
	others := []string{"Control", "MarkLost", "Reclaim", "SuspectWaiting", "PurgeResults"}
	before := count(others...)
	eventually(t, soon, "ten heartbeats", func() bool { return count("Heartbeat") >= beats+10 })
	if n, m := count("Signs")-looks, count("Heartbeat")-beats; n > m+1 {
		t.Errorf("%d looks in %d heartbeats", n, m)
	}
	// The first look after the listener is there, and a minute's share of orphans and expired rows.
	if n := count(others...) - before; n > 5 {
		t.Errorf("%d statements without a sign", n)
	}
}

// Who looks for lost workers may be lost itself: each worker looks, and those that freeze leave it to the others.
func TestG7AFleetThatMostlyFreezesTakesJobsBack(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.frozen")
	cfg := worker.Config{Lease: time.Second}
	var networks []*pgproxy.Proxy
	for range 4 {
		slow, network := proxied(t, pool)
		start(t, slow, cfg, stampers(pool, spec))
		networks = append(networks, network)
	}
	start(t, pool, cfg, stampers(pool, spec))
	alive := func() int { return one[int](t, pool, `SELECT count(*) FROM jobgen.workers WHERE lost_at IS NULL`) }
	eventually(t, soon, "five workers are alive", func() bool { return alive() == 5 })
	execute(t, pool, `INSERT INTO jobgen.workers (id, host, pid, build, queues, kinds, lease_until)
		VALUES ('00000000-0000-0000-0000-000000000001', 'h', 1, 'b', '{q}', '{t.frozen}', clock_timestamp() + interval '2 s')`)
	enqueue(t, pool, spec, task{N: 1}, jobs.In(time.Hour))
	execute(t, pool, `UPDATE jobgen.jobs SET run_at = now(), status = 'running', attempt = 1, claimed_at = now(), fence = nextval('jobgen.fence'),
		worker_id = '00000000-0000-0000-0000-000000000001'`)
	execute(t, pool, `INSERT INTO jobgen.claims (worker_id, fence, ids) SELECT worker_id, fence, ARRAY[id] FROM jobgen.jobs`)
	for _, network := range networks {
		network.Freeze()
		defer network.Heal()
	}
	eventually(t, soon, "its job ran", func() bool { return ran(t, pool, 1) })
	eventually(t, soon, "the frozen ones are lost", func() bool { return alive() == 1 })
}

// A worker that sleeps never sleeps past a job that it knows of.
func TestAPauseEndsBeforeTheNextJobIsDue(t *testing.T) {
	t.Parallel()
	for delay := 40 * time.Millisecond; delay <= 5*time.Second; delay *= 2 {
		for n := range time.Duration(200) {
			due := delay/2 + delay*n/200
			if got := worker.Pause(delay, due); got > due {
				t.Fatalf("a pause of %s, with a job due in %s", got, due)
			}
		}
	}
}

// A job may become due just after the claim for another one, of a kind that this worker does not know, and before the worker
// asks what is due next: that leaves out what is due already.
func TestAJobThatBecomesDueAfterAClaimForAStrangersStartsOnTime(t *testing.T) {
	t.Parallel()
	pool := database(t)
	watched, tap := tapped(t, pool)
	spec, strange := kind("t.known"), kind("t.strange")
	enqueue(t, pool, spec, task{N: 1}, jobs.In(time.Hour))
	start(t, watched, worker.Config{}, stampers(pool, spec))
	eventually(t, soon, "the worker sleeps", func() bool { return asleep(t, pool) == 1 })
	due := time.Now().Add(4 * time.Second) // until then its pauses get longer
	enqueue(t, pool, strange, task{}, jobs.At(due))
	var moved time.Time
	became := make(chan bool)
	tap.before("NextDue", func(ctx context.Context) context.Context {
		claims := tap.sent("Claim")
		if moved.IsZero() && claims[len(claims)-1].After(due) {
			moved = time.Now()
			execute(t, pool, `UPDATE jobgen.jobs SET run_at = clock_timestamp() WHERE kind = 't.known'`)
			close(became)
		}
		return ctx
	})
	receive(t, "the other job is due too", became)
	eventually(t, soon, "it runs", func() bool { return ran(t, pool, 1) })
	if late := time.Since(moved); late > 2*time.Second {
		t.Errorf("it ran %s after it was due", late)
	}
}
