package worker_test

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/worker"
)

// workThroughPgBouncer is an application behind PgBouncer, and so is its worker.
func workThroughPgBouncer(ctx context.Context, registry *worker.Registry) error {
	app, err := pgxpool.New(ctx, "postgres://shop@pgbouncer:6432/shop?default_query_exec_mode=exec&pool_max_conns=20")
	if err != nil {
		return err
	}
	defer app.Close()
	w, err := worker.New(app, registry, worker.Config{Concurrency: 20})
	if err != nil {
		return err
	}
	return w.RunUntilSignal(ctx)
}

// workDirectly is the same application, whose worker goes to the server and is woken by it.
func workDirectly(ctx context.Context, registry *worker.Registry) error {
	direct, err := pgxpool.New(ctx, "postgres://shop@database:5432/shop?pool_max_conns=20")
	if err != nil {
		return err
	}
	defer direct.Close()
	w, err := worker.New(direct, registry, worker.Config{Concurrency: 20})
	if err != nil {
		return err
	}
	return w.RunUntilSignal(ctx)
}

func ExampleNew_pgBouncer() {
	_, _ = workThroughPgBouncer, workDirectly
}
