package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/examples/shop/images"
	"github.com/jobgen-go/jobgen/examples/shop/orders"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// concurrency is how many handlers each worker process runs at once: few, so that work is left when one is killed.
const concurrency = 8

// startedLine is the log line of each handler that starts. The demo counts them: they tell what was run whatever the
// database says, and outlive a SIGKILL.
const startedLine = "handler started"

// runWorker is a worker process. Its database is DATABASE_URL; its log, one JSON object a line, goes to log. It ends on
// SIGINT and SIGTERM, and with parent: a pipe whose other end the demo holds, so that no worker outlives it.
func runWorker(args []string, parent io.Reader, log io.Writer) int {
	var s settings
	var thumbnails string
	f := flag.NewFlagSet(workerMode, flag.ContinueOnError)
	f.SetOutput(log)
	s.flags(f)
	f.StringVar(&thumbnails, "thumbnails", "", "folder to put thumbnails into")
	if f.Parse(args) != nil {
		return exitCannotRun
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, parent)
		cancel()
	}()
	if err := work(ctx, s, thumbnails, slog.New(slog.NewJSONHandler(log, nil))); err != nil {
		fmt.Fprintln(log, "worker:", err)
		return exitBroken
	}
	return exitHeld
}

func work(ctx context.Context, s settings, thumbnails string, log *slog.Logger) error {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	config.MaxConns = concurrency // each running handler of orders.Invoice has a transaction, and so a connection
	if s.without == "tx" {
		config.MaxConns *= 2 // and takes a second one; with too few, all would wait for each other
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()

	started := func(job jobs.Info) {
		log.Info(startedLine, "job", job.ID, "kind", job.Kind, "attempt", job.Attempt)
	}
	pretend := func(ctx context.Context) error { return pause(ctx, s.work) }
	clerk := orders.Handlers(&orders.Clerk{Started: started, Work: pretend})
	if s.without == "tx" {
		clerk = &careless{pool: pool, started: started, work: pretend}
	}

	var registry worker.Registry
	orders.Register(&registry, clerk)
	images.Register(&registry, &images.Studio{From: s.images, To: thumbnails, Started: started, Work: pretend})
	w, err := worker.New(pool, &registry, worker.Config{
		Concurrency: concurrency,
		Lease:       s.lease,
		Reclaim:     min(4*time.Second, s.lease/2),
		Grace:       5 * time.Second,
		Logger:      log,
	})
	if err != nil {
		return err
	}
	return w.RunUntilSignal(ctx)
}

// careless is orders.Clerk with a mistake: it does not use the transaction it is given. What it writes stays when the
// job is rolled back.
type careless struct {
	pool    *pgxpool.Pool
	started func(jobs.Info)
	work    func(context.Context) error
}

func (c *careless) Invoice(ctx context.Context, _ pgx.Tx, job *jobs.Job[orders.Invoice]) (orders.Receipt, error) {
	c.started(job.Info)
	receipt, err := orders.Write(ctx, c.pool, job)
	if err != nil {
		return orders.Receipt{}, err
	}
	return receipt, c.work(ctx)
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
