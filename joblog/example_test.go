package joblog_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/examples/shop/orders"
	"github.com/jobgen-go/jobgen/joblog"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/worker"
)

// tenantKey is where the application keeps the tenant that it is working for.
type tenantKey struct{}

// tenants carries the tenant from the context in which a job is enqueued to the one in which it is handled.
var tenants = jobs.Middleware{
	Enqueue: func(ctx context.Context, e *jobs.Enqueueing, next func(context.Context) error) error {
		tenant, ok := ctx.Value(tenantKey{}).(string)
		if !ok {
			return errors.New("no tenant in the context: " + e.Kind + " is not enqueued")
		}
		e.Headers["tenant"] = tenant
		return next(ctx)
	},
	Work: func(ctx context.Context, job *jobs.Info, next func(context.Context) error) error {
		return next(context.WithValue(ctx, tenantKey{}, job.Headers["tenant"]))
	},
}

// serve wires an application up: what it enqueues goes through producer, and what its worker runs through the same
// middleware.
func serve(pool *pgxpool.Pool, logger *slog.Logger, handlers orders.Handlers) (*jobs.Producer, *worker.Worker, error) {
	middleware := []jobs.Middleware{tenants, joblog.Middleware(logger)}
	producer := &jobs.Producer{Middleware: middleware}
	var registry worker.Registry
	orders.Register(&registry, handlers)
	w, err := worker.New(pool, &registry, worker.Config{Middleware: middleware, Logger: logger})
	return producer, w, err
}

// place stores an order and enqueues its invoice.
func place(ctx context.Context, pool *pgxpool.Pool, producer *jobs.Producer, o orders.Order) (ref jobs.Ref[orders.Receipt], err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO shop.orders (id, customer, cents) VALUES ($1, $2, $3)`, o.ID, o.Customer, o.Cents)
		if err != nil {
			return err
		}
		ref, err = orders.EnqueueInvoice(ctx, producer.On(tx), orders.Invoice{OrderID: o.ID, Customer: o.Customer, Cents: o.Cents})
		return err
	})
	return ref, err
}

// clerk handles the jobs of package orders.
type clerk struct{ tenants chan string }

func (c clerk) Invoice(ctx context.Context, tx pgx.Tx, job *jobs.Job[orders.Invoice]) (orders.Receipt, error) {
	c.tenants <- ctx.Value(tenantKey{}).(string)
	receipt, err := orders.Write(ctx, tx, job)
	joblog.Logger(ctx).Info("invoice written", "number", receipt.Number) // with job, kind, queue and attempt
	return receipt, err
}

// The example of the page docs/runtime/middleware.md works.
func TestExampleOfMiddleware(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	if err := orders.CreateTables(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	var b book
	c := clerk{make(chan string, 1)}
	producer, w, err := serve(pool, logger(&b, slog.LevelInfo), c)
	if err != nil {
		t.Fatal(err)
	}
	o := orders.Order{ID: "o-17", Customer: "ada", Cents: 4200}
	if _, err := place(t.Context(), pool, producer, o); err == nil {
		t.Error("an invoice without a tenant was enqueued")
	}
	ref, err := place(context.WithValue(t.Context(), tenantKey{}, "acme"), pool, producer, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	if _, err := ref.Await(t.Context(), pool); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if tenant := <-c.tenants; tenant != "acme" {
		t.Errorf("the handler ran for the tenant %q", tenant)
	}
	for _, message := range []string{"invoice written", "handler succeeded"} {
		lines := b.lines(t, message)
		if !slices.ContainsFunc(lines, func(m map[string]any) bool { return m["kind"] == "orders.invoice" && m["job"] == float64(ref.ID) }) {
			t.Errorf("no line %q: %v", message, lines)
		}
	}
}
