package worker_test

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/worker"
)

const ChargeCardKind = "billing.charge_card" // emitted

// workWithHistory keeps each charge on record for a quarter of a year, and dead jobs for a month.
func workWithHistory(ctx context.Context, pool *pgxpool.Pool, registry *worker.Registry) error {
	const day = 24 * time.Hour
	w, err := worker.New(pool, registry, worker.Config{
		Retain:       map[string]time.Duration{ChargeCardKind: 90 * day},
		KeepAttempts: 30 * day,
		KeepDead:     30 * day,
	})
	if err != nil {
		return err
	}
	return w.RunUntilSignal(ctx)
}

func ExampleConfig_retention() {
	_ = workWithHistory
}
