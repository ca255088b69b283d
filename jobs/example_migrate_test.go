package jobs_test

import (
	"context"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
)

// A program that migrates when it starts, however many of it there are.
func ExampleMigrate() {
	connect := func(ctx context.Context) (*pgxpool.Pool, error) {
		pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
		if err != nil {
			return nil, err
		}
		if err := jobs.Migrate(ctx, pool); err != nil {
			pool.Close()
			return nil, fmt.Errorf("migrate: %w", err)
		}
		return pool, nil
	}
	_ = connect
}
