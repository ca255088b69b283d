package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// A kind that fails everywhere does not fill the log: ten lines, and how many were left out. Each names the worker, the job's
// last error, and nothing that is secret.
func TestLinesThatAreAlikeAreBounded(t *testing.T) {
	t.Parallel()
	pool := database(t)
	bad, good := kind("t.bad"), kind("t.other")
	enqueueMany(t, pool, bad, func() (ts []task) {
		for i := range 30 {
			ts = append(ts, task{N: i, Do: "s3cret"})
		}
		return ts
	}())
	enqueue(t, pool, good, task{})
	fail := func(context.Context, *jobs.Job[task]) error { return jobs.Permanent(errors.New("card declined")) }
	w := start(t, pool, worker.Config{}, func(r *worker.Registry) { worker.HandleNone(r, bad, fail); worker.HandleNone(r, good, fail) })
	drained(t, pool, soon)
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	log := w.log.String()
	if n := strings.Count(log, `"job is dead"`); n != 12 { // ten of one kind, one of the other, and the one that tells of the rest
		t.Errorf("%d lines", n)
	}
	if !w.log.has(`msg="lines were left out: there were too many like it" line="job is dead" kind=t.bad lines=20 worker=`) {
		t.Error("it is to say how many were left out")
	}
	if !w.log.has(`level=ERROR msg="job is dead" job=31 kind=t.other queue=q attempt=1 max_attempts=20 error="card declined" worker=`) || w.log.has("s3cret") {
		t.Error("the line is to have the error and no payload")
	}
}

// A step that fails between heartbeats that do not is one line, not one with each heartbeat.
func TestAFaultThatStaysIsNotSaidAgainAndAgain(t *testing.T) {
	t.Parallel()
	pool := database(t)
	execute(t, pool, `ALTER TABLE jobgen.queues RENAME TO elsewhere`)
	execute(t, pool, `CREATE TABLE jobgen.queues (LIKE jobgen.elsewhere)`)
	w := start(t, pool, worker.Config{Heartbeat: 20 * time.Millisecond}, func(r *worker.Registry) {
		worker.HandleNone(r, kind("t.k"), func(context.Context, *jobs.Job[task]) error { return nil })
	})
	eventually(t, soon, "it runs", func() bool { return w.log.has("worker started") })
	execute(t, pool, `DROP TABLE jobgen.queues`)
	eventually(t, soon, "it says so", func() bool { return w.log.has("step=look") })
	beats := func() time.Time { return one[time.Time](t, pool, `SELECT beat_at FROM jobgen.workers`) }
	for range 20 {
		before := beats()
		eventually(t, soon, "it goes on", func() bool { return beats().After(before) })
	}
	if n := strings.Count(w.log.String(), "step=look"); n != 1 {
		t.Errorf("it was said %d times", n)
	}
	execute(t, pool, `ALTER TABLE jobgen.elsewhere RENAME TO queues`)
}

// What a worker logs of connections that fail names no password.
func TestTheLogHasNoPassword(t *testing.T) {
	t.Parallel()
	pool := database(t)
	config := pool.Config()
	config.ConnConfig.Password = "s3cret-word"
	app, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(app.Close)
	slow, network := proxied(t, app)
	defer network.Refuse(false)
	w := start(t, slow, worker.Config{Lease: 300 * time.Millisecond}, func(r *worker.Registry) {
		worker.HandleNone(r, kind("t.k"), func(context.Context, *jobs.Job[task]) error { return nil })
	})
	eventually(t, soon, "it runs", func() bool { return w.log.has("worker started") })
	network.Refuse(true)
	network.Cut()
	eventually(t, soon, "it says so", func() bool { return w.log.has("does not do what is asked") })
	if w.log.has("s3cret-word") {
		t.Error("the password is in the log")
	}
}
