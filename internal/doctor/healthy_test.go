package doctor_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/pgserver"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// durable is a server as it should be; that of other tests does not flush.
func durable(t *testing.T) *patient {
	t.Helper()
	s, err := pgserver.Start(t.Context(), pgserver.Options{IgnoreDatabaseURL: true, Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	pool, err := pgxpool.New(context.Background(), s.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := postgres.Migrate(t.Context(), pool, func(error) {}); err != nil {
		t.Fatal(err)
	}
	return &patient{t, pool, limits()}
}

func TestAnEmptyDatabaseIsHealthyRightAfterItsMigration(t *testing.T) {
	t.Parallel()
	p := durable(t)
	p.healthy()
	p.exec("VACUUM (FREEZE, ANALYZE)")
	p.healthy()
}

func TestABusyQueueIsHealthy(t *testing.T) {
	t.Parallel()
	p := durable(t)
	type payload struct{ N int }
	kind := &jobs.Spec[payload, jobs.None]{Kind: "work", Queue: "q", Timeout: time.Minute}
	keyed := &jobs.Spec[payload, int]{Kind: "keyed", Queue: "q", Key: func(k *jobs.KeyBuilder, p payload) { k.Int(int64(p.N)) }}
	var registry worker.Registry
	worker.HandleNone(&registry, kind, func(context.Context, *jobs.Job[payload]) error { return nil })
	worker.Handle(&registry, keyed, func(_ context.Context, j *jobs.Job[payload]) (int, error) {
		if j.Attempt == 1 && j.Payload.N%10 == 0 {
			return 0, errors.New("at the first time")
		}
		return j.Payload.N, nil
	})
	w, err := worker.New(p.pool, &registry, worker.Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	for i := range 20 {
		if _, err := jobs.EnqueueMany(t.Context(), p.pool, kind, make([]payload, 2000)); err != nil {
			t.Fatal(err)
		}
		if _, err := jobs.Enqueue(t.Context(), p.pool, keyed, payload{i}); err != nil {
			t.Fatal(err)
		}
		if i%5 == 4 {
			p.healthy()
		}
	}
	p.until("SELECT NOT EXISTS (SELECT FROM jobgen.jobs)")
	p.healthy()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	p.healthy()
}
