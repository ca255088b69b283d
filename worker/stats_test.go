package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

func TestStatsTellWhatAWorkerIsAt(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.stats")
	started, release := make(chan struct{}, 20), make(chan struct{})
	w := start(t, pool, worker.Config{Concurrency: 3, Grace: -1}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(ctx context.Context, _ *jobs.Job[task]) error {
			started <- struct{}{}
			select {
			case <-release:
			case <-ctx.Done():
			}
			return nil
		})
	})
	enqueueMany(t, pool, spec, numbered(20))
	for range 3 {
		receive(t, "three run", started)
	}
	eventually(t, soon, "three run, and none is stored", func() bool {
		s := w.w.Stats()
		return s.Slots == 3 && s.Running == 3 && s.Storing == 0 && s.Flushed == 0 && s.Claimed == int64(3+s.Waiting)
	})
	close(release)
	drained(t, pool, soon)
	eventually(t, soon, "all is counted", func() bool {
		s := w.w.Stats()
		return s.Running == 0 && s.Waiting == 0 && s.Storing == 0 && s.Claimed == 20 && s.Flushed == 20
	})
	if s := w.w.Stats(); s.Claims < 1 || s.Flushes < 1 || s.Flushes > 20 || s.FlushTime <= 0 || s.Reclaimed+s.Failures+s.Losses != 0 {
		t.Errorf("%+v", s)
	}
}

func TestStatsCountWhatIsStillToBeStored(t *testing.T) {
	t.Parallel()
	pool := database(t)
	slow, network := proxied(t, pool)
	spec := kind("t.storing")
	w := start(t, slow, worker.Config{Concurrency: 3, Lease: time.Minute}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(context.Context, *jobs.Job[task]) error {
			network.Freeze()
			return nil
		})
	})
	t.Cleanup(network.Heal) // before the worker is stopped
	enqueue(t, pool, spec, task{})
	eventually(t, soon, "its outcome waits", func() bool { return w.w.Stats().Storing == 1 && w.w.Stats().Running == 0 })
	network.Heal()
	eventually(t, soon, "it is stored", func() bool { return w.w.Stats().Storing == 0 && w.w.Stats().Flushed == 1 })
}

func TestStatsCountLossesAndWhatIsTakenBack(t *testing.T) {
	t.Parallel()
	pool := database(t)
	slow, network := proxied(t, pool)
	spec := kind("t.lost")
	started := make(chan struct{}, 4)
	a := start(t, slow, worker.Config{Lease: time.Second, Queues: []string{"q"}}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(ctx context.Context, _ *jobs.Job[task]) error {
			started <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		})
	})
	enqueueMany(t, pool, spec, numbered(2))
	for range 2 {
		receive(t, "both run", started)
	}
	network.Freeze()
	b := start(t, pool, worker.Config{Lease: 2 * time.Second, Reclaim: 100 * time.Millisecond}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(context.Context, *jobs.Job[task]) error { return nil })
	})
	drained(t, pool, soon)
	if s := b.w.Stats(); s.Reclaimed != 2 || s.Losses != 0 {
		t.Errorf("the one that took them back: %+v", s)
	}
	network.Heal()
	eventually(t, soon, "the other one knows", func() bool { s := a.w.Stats(); return s.Losses == 1 && s.Failures > 0 })
}
