package worker_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/worker"
)

type ping struct{ N int }

func TestSmoke(t *testing.T) {
	pool := jobtest.DB(t)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	spec := &jobs.Spec[ping, int]{Kind: "t.ping", Queue: "q", Key: func(k *jobs.KeyBuilder, p ping) { k.Int(int64(p.N)) }}
	plain := &jobs.Spec[ping, jobs.None]{Kind: "t.plain", Queue: "q"}
	bad := &jobs.Spec[ping, int]{Kind: "t.bad", Queue: "q", MaxAttempts: 2, Backoff: jobs.Backoff{Base: time.Millisecond}}
	var n atomic.Int64
	var reg worker.Registry
	worker.Handle(&reg, spec, func(ctx context.Context, j *jobs.Job[ping]) (int, error) { return j.Payload.N * 2, nil })
	worker.HandleNone(&reg, plain, func(ctx context.Context, j *jobs.Job[ping]) error { n.Add(1); return nil })
	worker.Handle(&reg, bad, func(ctx context.Context, j *jobs.Job[ping]) (int, error) { return 0, errors.New("no") })
	w, err := worker.New(pool, &reg, worker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	const total = 100000
	ps := make([]ping, total)
	begin := time.Now()
	if _, err := jobs.EnqueueMany(ctx, pool, plain, ps); err != nil {
		t.Fatal(err)
	}
	fmt.Println("enqueue", time.Since(begin))
	wctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	begin = time.Now()
	go func() { done <- w.Run(wctx) }()
	for n.Load() < total {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("drain", float64(total)/time.Since(begin).Seconds(), "jobs/s")
	ref, err := jobs.Enqueue(ctx, pool, spec, ping{21})
	fmt.Println(ref, err)
	fmt.Println(ref.Await(ctx, pool))
	ref, err = jobs.Enqueue(ctx, pool, spec, ping{21})
	fmt.Println(ref, err)
	fmt.Println(ref.Await(ctx, pool))
	ref, err = jobs.Enqueue(ctx, pool, bad, ping{21})
	fmt.Println(ref.Await(ctx, pool))
	stop()
	fmt.Println(<-done)
	var left int
	pool.QueryRow(context.Background(), "select count(*) from jobgen.jobs").Scan(&left)
	fmt.Println(left)
}
