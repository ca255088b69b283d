package jobtest_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/worker"
)

// The code of docs/runtime/testing.md.

// Charge is a payload; its kind would be emitted.
type Charge struct {
	OrderID string `json:"order_id"`
}

var chargeSpec = &jobs.Spec[Charge, string]{Kind: "billing.charge", Queue: "billing", Key: func(k *jobs.KeyBuilder, p Charge) { k.String(p.OrderID) }}

func enqueueCharge(ctx context.Context, db jobs.DB, p Charge) (jobs.Ref[string], error) {
	return jobs.Enqueue(ctx, db, chargeSpec, p)
}

// provider is a payment provider that knows idempotency keys.
type provider struct {
	mu      sync.Mutex
	down    bool
	charges map[string]int
}

func (p *provider) charge(key string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return errors.New("provider is down")
	}
	p.charges[key] = 1
	return nil
}

func (p *provider) register(r *worker.Registry) {
	worker.Handle(r, chargeSpec, func(_ context.Context, job *jobs.Job[Charge]) (string, error) {
		return "charged", p.charge(job.Key())
	})
}

func TestAChargeIsTriedAgainWhenTheProviderIsBack(t *testing.T) {
	t.Parallel()
	db := jobtest.DB(t)
	clock := jobtest.NewClock(t, db)
	provider := &provider{charges: map[string]int{}, down: true}

	ref, err := enqueueCharge(t.Context(), db, Charge{OrderID: "o-17"})
	if err != nil {
		t.Fatal(err)
	}
	jobtest.Run(t, db, provider.register) // runs what is due, and returns
	job := jobtest.EnqueuedOne[Charge](t, db, chargeSpec.Kind)
	if job.Attempt != 1 || job.LastError != "provider is down" {
		t.Errorf("the job: %+v", job)
	}

	provider.down = false
	clock.Advance(time.Minute) // the back-off passes
	jobtest.Run(t, db, provider.register)
	if result, err := ref.Await(t.Context(), db); err != nil || result != "charged" {
		t.Errorf("result %q, error %v", result, err)
	}
}

func TestACustomerIsChargedOnceWhereverTheProcessDies(t *testing.T) {
	t.Parallel()
	for _, point := range jobtest.Points {
		t.Run(point.String(), func(t *testing.T) {
			t.Parallel()
			db := jobtest.DB(t)
			clock := jobtest.NewClock(t, db)
			provider := &provider{charges: map[string]int{}}
			ref, err := enqueueCharge(t.Context(), db, Charge{OrderID: "o-17"})
			if err != nil {
				t.Fatal(err)
			}
			jobtest.Crash(t, db, ref.ID, point, provider.register) // the process dies here
			clock.Advance(time.Minute)                             // its lease ends, the job is taken back
			jobtest.Run(t, db, provider.register)                  // another process
			if result, err := ref.Await(t.Context(), db); err != nil || result != "charged" {
				t.Errorf("result %q, error %v", result, err)
			}
			if len(provider.charges) != 1 {
				t.Errorf("charged %d times", len(provider.charges))
			}
		})
	}
}
