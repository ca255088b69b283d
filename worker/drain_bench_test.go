//go:build unix

package worker_test

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/worker"
)

// BenchmarkDrain is what a job costs this process from its claim until its outcome is stored: allocations, and CPU time,
// which other processes on the machine disturb less than the clock.
//
//	go test ./worker -run '^$' -bench Drain -benchtime 20000x -count 6
func BenchmarkDrain(b *testing.B) {
	b.Run("plain", func(b *testing.B) {
		drain(b, kind("b.plain"), func(r *worker.Registry, s *jobs.Spec[task, jobs.None], returned func()) {
			worker.HandleNone(r, s, func(context.Context, *jobs.Job[task]) error { returned(); return nil })
		})
	})
	b.Run("timeout", func(b *testing.B) {
		s := kind("b.timeout")
		s.Timeout = soon
		drain(b, s, func(r *worker.Registry, s *jobs.Spec[task, jobs.None], returned func()) {
			worker.HandleNone(r, s, func(context.Context, *jobs.Job[task]) error { returned(); return nil })
		})
	})
	b.Run("result", func(b *testing.B) {
		drain(b, answering("b.result"), func(r *worker.Registry, s *jobs.Spec[task, string], returned func()) {
			worker.Handle(r, s, func(context.Context, *jobs.Job[task]) (string, error) { returned(); return "sent", nil })
		})
	})
	b.Run("key", func(b *testing.B) {
		drain(b, keyed("b.key"), func(r *worker.Registry, s *jobs.Spec[task, string], returned func()) {
			worker.Handle(r, s, func(context.Context, *jobs.Job[task]) (string, error) { returned(); return "sent", nil })
		})
	})
}

// drain measures b.N jobs that have been waiting for long enough to be behind the marks' slack, until the worker has stopped.
func drain[R any](b *testing.B, s *jobs.Spec[task, R], register func(*worker.Registry, *jobs.Spec[task, R], func())) {
	pool := jobtest.DB(b)
	enqueueMany(b, pool, s, numbered(b.N))
	execute(b, pool, `UPDATE jobgen.jobs SET run_at = run_at - interval '1 minute'`)
	execute(b, pool, `VACUUM ANALYZE jobgen.jobs`)
	var left atomic.Int64
	left.Store(int64(b.N))
	done := make(chan struct{})
	b.ReportAllocs()
	b.ResetTimer()
	before := ownCPU(b)
	w := start(b, pool, worker.Config{}, func(r *worker.Registry) {
		register(r, s, func() {
			if left.Add(-1) == 0 {
				close(done)
			}
		})
	})
	<-done
	if err := w.stop(); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	b.ReportMetric(float64(ownCPU(b)-before)/float64(b.N), "cpu-ns/op")
	if n := one[int](b, pool, `SELECT count(*) FROM jobgen.jobs`); n != 0 {
		b.Fatalf("%d jobs are left", n)
	}
}

// ownCPU is the processor time that this process has used, in nanoseconds.
func ownCPU(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
