package jobtest

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/worker"
)

const (
	// runTimeout is how long Run waits for the jobs to end.
	runTimeout = time.Minute
	runPoll    = 3 * time.Millisecond
)

// Run runs the jobs that are due with the handlers that register puts into the registry, and returns when none of them
// is left: neither waiting nor running, nor enqueued by one that ran.
//
//	jobtest.Run(t, db, func(r *worker.Registry) { app.Register(r, handlers) })
//
// It starts a real worker and stops it, so keys, results, attempts and transactions are as in production. What a failed
// job leaves is looked at afterwards: it waits for its next attempt, or is dead (Enqueued: Status, Attempt, LastError).
// Jobs scheduled for later, kinds without a handler and what lies in a paused queue stay where they are. Mistakes in the registry fail the test, and
// so do handlers that have not returned within a minute.
func Run(t testing.TB, db *pgxpool.Pool, register func(*worker.Registry)) {
	t.Helper()
	run(t, db, nil, register)
}

// RunJob runs one job, now, also if it is scheduled for later, and returns when it has ended or waits for its next
// attempt. Other jobs stay where they are, also those that it enqueues. What the job left is looked at afterwards, by
// awaiting its Ref or with Enqueued. A job that does not wait to be run fails the test.
//
//	ref, err := app.EnqueueSendMail(ctx, db, app.SendMail{To: "ada@example.com"})
//	…
//	jobtest.RunJob(t, db, ref.ID, func(r *worker.Registry) { app.Register(r, handlers) })
func RunJob(t testing.TB, db *pgxpool.Pool, id int64, register func(*worker.Registry)) {
	t.Helper()
	alone(t, db, id, func(_ context.Context, queue string) { run(t, db, []string{queue}, register) })
}

// logger shows what a worker warns of beside the test's own output.
func logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func run(t testing.TB, db *pgxpool.Pool, queues []string, register func(*worker.Registry)) {
	t.Helper()
	var r worker.Registry
	register(&r)
	w, err := worker.New(db, &r, worker.Config{
		Queues: queues,
		// A transactional handler has a connection of the pool, and may want a second one.
		Concurrency: int(max(db.Config().MaxConns/2, 1)), Grace: -1,
		Logger: logger(t),
	})
	if err != nil {
		t.Fatalf("jobtest: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), runTimeout)
	defer cancel()
	running, stop := context.WithCancel(ctx)
	stopped := make(chan error, 1)
	go func() { stopped <- w.Run(running) }()

	err = settled(ctx, db, stopped)
	if err != nil && ctx.Err() != nil {
		t.Errorf("jobtest: jobs are still waiting or running after %s: does a handler not return, or is a payload's version newer than its handler?", runTimeout)
	} else if err != nil {
		t.Errorf("jobtest: %v", err)
	}
	stop()
	if err := <-stopped; err != nil && !errors.Is(err, context.Canceled) { // it may still have been starting
		t.Errorf("jobtest: %v", err)
	}
}

// settled returns once the worker has registered and nothing is left to run, or once the worker has ended.
func settled(ctx context.Context, db *pgxpool.Pool, stopped chan error) error {
	tick := time.NewTicker(runPoll)
	defer tick.Stop()
	for {
		workers, left, err := postgres.Unfinished(ctx, db)
		if err != nil || workers > 0 && left == 0 {
			return err
		}
		select {
		case err := <-stopped:
			stopped <- err // for the caller, who waits for it too
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
