package jobotel_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/jobgen-go/jobgen/examples/shop/orders"
	"github.com/jobgen-go/jobgen/jobotel"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/worker"
)

// telemetry sets OpenTelemetry up, once for the whole program. The exporters are the application's choice.
func telemetry(spans sdktrace.SpanExporter, metrics sdkmetric.Reader) (shutdown func(context.Context) error) {
	traces := sdktrace.NewTracerProvider(sdktrace.WithBatcher(spans))
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(metrics))
	otel.SetTracerProvider(traces)
	otel.SetMeterProvider(meters)
	// Without this line no trace continues in a handler.
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	return func(ctx context.Context) error { return errors.Join(traces.Shutdown(ctx), meters.Shutdown(ctx)) }
}

// serve wires the application up.
func serve(pool *pgxpool.Pool, handlers orders.Handlers) (*jobs.Producer, *worker.Worker, error) {
	middleware := []jobs.Middleware{jobotel.Middleware(jobotel.Options{})}
	producer := &jobs.Producer{Middleware: middleware} // EnqueueX(ctx, producer.On(tx), payload)
	var registry worker.Registry
	orders.Register(&registry, handlers)
	w, err := worker.New(pool, &registry, worker.Config{Middleware: middleware})
	if err == nil {
		_, err = jobotel.ObserveWorker(w, jobotel.Options{}) // what the worker itself does
	}
	return producer, w, err
}

type clerk struct{}

func (clerk) Invoice(ctx context.Context, tx pgx.Tx, job *jobs.Job[orders.Invoice]) (orders.Receipt, error) {
	_, span := otel.Tracer("shop").Start(ctx, "write invoice") // in the trace of the request that placed the order
	defer span.End()
	return orders.Write(ctx, tx, job)
}

// The example of the page docs/runtime/opentelemetry.md works, with the globals that other tests do not use.
func TestExampleOfOpenTelemetry(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	if err := orders.CreateTables(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	spans := keeping{tracetest.NewInMemoryExporter()}
	shutdown := telemetry(spans, sdkmetric.NewManualReader())
	producer, w, err := serve(pool, clerk{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, request := otel.Tracer("shop").Start(t.Context(), "POST /orders")
	if _, err := pool.Exec(ctx, `INSERT INTO shop.orders VALUES ('o-17', 'ada', 4200)`); err != nil {
		t.Fatal(err)
	}
	ref, err := orders.EnqueueInvoice(ctx, producer.On(pool), orders.Invoice{OrderID: "o-17", Customer: "ada", Cents: 4200})
	if err != nil {
		t.Fatal(err)
	}
	request.End()
	running, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(running) }()
	if _, err := ref.Await(t.Context(), pool); err != nil {
		t.Error(err)
	}
	stop()
	if err := errors.Join(<-done, shutdown(t.Context())); err != nil {
		t.Error(err)
	}
	got := spans.GetSpans()
	if len(got) != 4 {
		t.Errorf("%d spans, want the request, enqueue, process and that of the handler", len(got))
	}
	for _, s := range got {
		if s.SpanContext.TraceID() != request.SpanContext().TraceID() {
			t.Errorf("span %q is in another trace", s.Name)
		}
	}
}

// keeping is an exporter that still has its spans after a shutdown.
type keeping struct{ *tracetest.InMemoryExporter }

func (keeping) Shutdown(context.Context) error { return nil }

// Cost of the middleware itself, around a handler that does nothing, with a real SDK.
func BenchmarkWork(b *testing.B) {
	next := func(context.Context) error { return nil }
	info := &jobs.Info{ID: 1, Kind: "k", Queue: "q", Attempt: 1, MaxAttempts: 20,
		Headers: map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
	for _, c := range []struct {
		name    string
		options jobotel.Options
	}{
		{"globals not set", jobotel.Options{}},
		{"traces and metrics", jobotel.Options{
			TracerProvider: sdktrace.NewTracerProvider(), MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())), Propagator: propagation.TraceContext{},
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			work := jobotel.Middleware(c.options).Work
			b.ReportAllocs()
			for b.Loop() {
				if err := work(b.Context(), info, next); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
