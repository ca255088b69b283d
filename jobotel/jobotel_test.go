package jobotel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/jobgen-go/jobgen/jobotel"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/worker"
)

type task struct{ N int }

func kind(name string) *jobs.Spec[task, jobs.None] {
	return &jobs.Spec[task, jobs.None]{Kind: name, Queue: "q", MaxAttempts: 1, Backoff: jobs.Backoff{Base: time.Millisecond}}
}

// observed is an application with telemetry that a test reads back.
type observed struct {
	*testing.T
	db         *pgxpool.Pool
	spans      *tracetest.InMemoryExporter
	metrics    *sdkmetric.ManualReader
	tracer     trace.Tracer
	middleware jobs.Middleware
}

func observe(t *testing.T) *observed {
	o := &observed{T: t, db: jobtest.DB(t), spans: tracetest.NewInMemoryExporter(), metrics: sdkmetric.NewManualReader()}
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(o.spans))
	o.tracer = tracers.Tracer("the application")
	o.middleware = jobotel.Middleware(jobotel.Options{
		TracerProvider: tracers, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(o.metrics)),
		Propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}),
	})
	return o
}

func (o *observed) on(db jobs.DB) jobs.DB {
	return (&jobs.Producer{Middleware: []jobs.Middleware{o.middleware}}).On(db)
}

// work runs a worker until jobs no longer wait or run.
func (o *observed) work(register func(*worker.Registry)) {
	o.Helper()
	var r worker.Registry
	register(&r)
	w, err := worker.New(o.db, &r, worker.Config{Middleware: []jobs.Middleware{o.middleware}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		o.Fatal(err)
	}
	// As in a program that traces its start: jobs are no part of that.
	ctx, span := o.tracer.Start(context.WithoutCancel(o.Context()), "main")
	defer span.End()
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for left := 1; left > 0; {
		select {
		case <-tick.C:
		case <-limit.C:
			o.Fatal("jobs are left after 30 s")
		}
		if err := o.db.QueryRow(ctx, `SELECT count(*) FROM jobgen.jobs WHERE status <> 'dead' AND run_at < now() + interval '1 minute'`).Scan(&left); err != nil {
			o.Fatal(err)
		}
	}
	stop()
	if err := <-done; err != nil {
		o.Error(err)
	}
}

// named are the finished spans of that name, by their start.
func (o *observed) named(name string) tracetest.SpanStubs {
	var found tracetest.SpanStubs
	for _, s := range o.spans.GetSpans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	return found
}

func (o *observed) one(name string) tracetest.SpanStub {
	o.Helper()
	found := o.named(name)
	if len(found) != 1 {
		o.Fatalf("%d spans %q, want one", len(found), name)
	}
	return found[0]
}

func attributes(s tracetest.SpanStub) map[attribute.Key]string {
	m := map[attribute.Key]string{}
	for _, a := range s.Attributes {
		m[a.Key] = a.Value.String()
	}
	return m
}

// has checks attributes of a span; the value "" means that there is none.
func (o *observed) has(s tracetest.SpanStub, want map[attribute.Key]string) {
	o.Helper()
	got := attributes(s)
	for k, v := range want {
		if got[k] != v {
			o.Errorf("span %q: %s is %q, want %q", s.Name, k, got[k], v)
		}
	}
}

// measured reads the metrics: "name{attributes}" and what was counted.
func (o *observed) measured() map[string]string {
	o.Helper()
	var data metricdata.ResourceMetrics
	if err := o.metrics.Collect(o.Context(), &data); err != nil {
		o.Fatal(err)
	}
	out := map[string]string{}
	for _, scope := range data.ScopeMetrics {
		if scope.Scope.Name != jobotel.Scope || !strings.HasPrefix(scope.Scope.SchemaURL, "https://opentelemetry.io/schemas/1.") {
			o.Errorf("scope %+v", scope.Scope)
		}
		for _, m := range scope.Metrics {
			name := func(s attribute.Set) string {
				return m.Name + " " + m.Unit + " " + s.Encoded(attribute.DefaultEncoder())
			}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					out[name(p.Attributes)] = strconv.FormatInt(p.Value, 10)
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					out[name(p.Attributes)] = strconv.FormatUint(p.Count, 10)
					if m.Name == "jobgen.wait.duration" {
						if len(p.Bounds) != 16 || p.Bounds[15] != 3600 {
							o.Errorf("%s: buckets %v", m.Name, p.Bounds)
						}
					} else if len(p.Bounds) != 14 || p.Bounds[0] != 0.005 || p.Bounds[13] != 10 {
						o.Errorf("%s: buckets %v", m.Name, p.Bounds)
					}
				}
			}
		}
	}
	return out
}

// The trace that was under way when a job was enqueued, in the caller's transaction, is the one of its handler: with it
// the baggage.
func TestTheTraceContinuesFromEnqueueToHandler(t *testing.T) {
	t.Parallel()
	o := observe(t)
	s := kind("k")
	member, err := baggage.NewMember("tenant", "7")
	if err != nil {
		t.Fatal(err)
	}
	bag, err := baggage.New(member)
	if err != nil {
		t.Fatal(err)
	}
	ctx, request := o.tracer.Start(baggage.ContextWithBaggage(t.Context(), bag), "request")
	var ref jobs.Ref[jobs.None]
	err = pgx.BeginFunc(ctx, o.db, func(tx pgx.Tx) (err error) {
		ref, err = jobs.Enqueue(ctx, o.on(tx), s, task{}, jobs.Headers(map[string]string{"mine": "1"}))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	request.End()
	o.work(func(r *worker.Registry) {
		worker.HandleTxNone(r, s, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) error {
			_, span := o.tracer.Start(ctx, "in the handler", trace.WithAttributes(
				attribute.String("tenant", baggage.FromContext(ctx).Member("tenant").Value()), attribute.String("mine", j.Headers["mine"])))
			span.End()
			// What it enqueues continues the same trace.
			_, err := jobs.Enqueue(ctx, o.on(tx), kind("next"), task{}, jobs.In(time.Hour))
			return err
		})
	})

	sends, work, inside := o.named("enqueue q"), o.one("process q"), o.one("in the handler")
	if len(sends) != 2 {
		t.Fatalf("%d sends", len(sends))
	}
	send, followUp := sends[0], sends[1]
	for _, s := range []tracetest.SpanStub{send, work, inside, followUp} {
		if s.SpanContext.TraceID() != request.SpanContext().TraceID() {
			t.Errorf("span %q is in another trace", s.Name)
		}
	}
	id := request.SpanContext().SpanID()
	for _, s := range []tracetest.SpanStub{send, work, inside} {
		if s.Parent.SpanID() != id {
			t.Errorf("span %q is not the child of the one before", s.Name)
		}
		id = s.SpanContext.SpanID()
	}
	if followUp.Parent.SpanID() != work.SpanContext.SpanID() {
		t.Error("what the handler enqueues is not a child of its attempt")
	}
	if len(work.Links) != 1 || work.Links[0].SpanContext.SpanID() != send.SpanContext.SpanID() {
		t.Errorf("links of the attempt: %+v", work.Links)
	}
	if send.SpanKind != trace.SpanKindProducer || work.SpanKind != trace.SpanKindConsumer {
		t.Errorf("span kinds %s, %s", send.SpanKind, work.SpanKind)
	}
	o.has(inside, map[attribute.Key]string{"tenant": "7", "mine": "1"})
	o.has(send, map[attribute.Key]string{
		"messaging.system": "jobgen", "messaging.operation.name": "enqueue", "messaging.operation.type": "send", "messaging.destination.name": "q",
		"messaging.message.id": strconv.FormatInt(ref.ID, 10), "messaging.batch.message_count": "", "jobgen.kind": "k", "jobgen.existing": "false", "error.type": "",
	})
	o.has(work, map[attribute.Key]string{
		"messaging.system": "jobgen", "messaging.operation.name": "process", "messaging.operation.type": "process", "messaging.destination.name": "q",
		"messaging.message.id": strconv.FormatInt(ref.ID, 10), "jobgen.kind": "k", "jobgen.attempt": "1", "jobgen.max_attempts": "1", "error.type": "",
	})
	if waited, err := strconv.ParseFloat(attributes(work)["jobgen.waited"], 64); err != nil || waited <= 0 || waited > 60 {
		t.Errorf("jobgen.waited %q", attributes(work)["jobgen.waited"])
	}
	if work.Status.Code != codes.Unset || send.Status.Code != codes.Unset {
		t.Errorf("status %+v, %+v", send.Status, work.Status)
	}
	sent, took, consumed, processed := "messaging.client.sent.messages {message} ", "messaging.client.operation.duration s ", "messaging.client.consumed.messages {message} ", "messaging.process.duration s "
	measured := o.measured()
	for name, want := range map[string]string{
		sent + "jobgen.kind=k,messaging.destination.name=q,messaging.operation.name=enqueue,messaging.system=jobgen":                               "1",
		took + "jobgen.kind=k,messaging.destination.name=q,messaging.operation.name=enqueue,messaging.operation.type=send,messaging.system=jobgen": "1",
		consumed + "jobgen.kind=k,messaging.destination.name=q,messaging.operation.name=process,messaging.system=jobgen":                           "1",
		"jobgen.wait.duration s " + "jobgen.kind=k,messaging.destination.name=q,messaging.operation.name=process,messaging.system=jobgen":          "1",
		processed + "jobgen.kind=k,messaging.destination.name=q,messaging.operation.name=process,messaging.system=jobgen":                          "1",
	} {
		if measured[name] != want {
			t.Errorf("%s: %q, want %s", name, measured[name], want)
		}
	}
	if len(measured) != 7 { // and two of the follow-up
		t.Errorf("measured %v", measured)
	}
}

// Jobs enqueued together have one send span, and an attempt each in its trace.
func TestManyJobsShareASendSpan(t *testing.T) {
	t.Parallel()
	o := observe(t)
	if _, err := jobs.EnqueueMany(t.Context(), o.on(o.db), kind("k"), make([]task, 3)); err != nil {
		t.Fatal(err)
	}
	o.work(func(r *worker.Registry) {
		worker.HandleNone(r, kind("k"), func(context.Context, *jobs.Job[task]) error { return nil })
	})
	send := o.one("enqueue q")
	o.has(send, map[attribute.Key]string{"messaging.batch.message_count": "3", "messaging.message.id": "", "jobgen.existing": ""})
	attempts := o.named("process q")
	if len(attempts) != 3 {
		t.Fatalf("%d attempts", len(attempts))
	}
	for _, a := range attempts {
		if a.Parent.SpanID() != send.SpanContext.SpanID() {
			t.Error("an attempt is not the child of the send span")
		}
	}
	if n := o.measured()["messaging.client.sent.messages {message} jobgen.kind=k,messaging.destination.name=q,messaging.operation.name=enqueue,messaging.system=jobgen"]; n != "3" {
		t.Errorf("sent %s messages, want 3", n)
	}
}

// A taken key is a send that enqueued nothing.
func TestATakenKeyIsOnTheSpan(t *testing.T) {
	t.Parallel()
	o := observe(t)
	for range 2 {
		if _, err := jobs.Enqueue(t.Context(), o.on(o.db), kind("k"), task{}, jobs.Key("same")); err != nil {
			t.Fatal(err)
		}
	}
	sends := o.named("enqueue q")
	o.has(sends[0], map[attribute.Key]string{"jobgen.existing": "false"})
	o.has(sends[1], map[attribute.Key]string{"jobgen.existing": "true", "messaging.message.id": attributes(sends[0])["messaging.message.id"]})
}

type cardError struct{ code int }

func (e *cardError) Error() string { return fmt.Sprintf("card refused: %d\nmore", e.code) }

// Each attempt has its span, whatever it ends with.
func TestFailuresAreOnTheSpan(t *testing.T) {
	t.Parallel()
	o := observe(t)
	ctx, request := o.tracer.Start(t.Context(), "request")
	retried := kind("retried")
	retried.MaxAttempts = 3
	slow := kind("slow")
	slow.Timeout = 20 * time.Millisecond
	own := kind("own")
	for _, s := range []*jobs.Spec[task, jobs.None]{retried, slow, own, kind("panics"), kind("exits"), kind("gives up"), kind("undecodable"), kind("snoozes"), kind("too late"), kind("is cancelled")} {
		var opts []jobs.Option
		if s.Kind == "too late" {
			opts = append(opts, jobs.Within(time.Second))
		}
		if _, err := jobs.Enqueue(ctx, o.on(o.db), s, task{}, opts...); err != nil {
			t.Fatal(err)
		}
	}
	request.End()
	o.work(func(r *worker.Registry) {
		worker.HandleNone(r, retried, func(_ context.Context, j *jobs.Job[task]) error {
			if j.Attempt < 3 {
				return &cardError{51}
			}
			return nil
		})
		worker.HandleNone(r, slow, func(ctx context.Context, _ *jobs.Job[task]) error { <-ctx.Done(); return errors.New("interrupted") })
		worker.HandleNone(r, own, func(context.Context, *jobs.Job[task]) error {
			return fmt.Errorf("calling: %w", context.DeadlineExceeded)
		})
		worker.HandleNone(r, kind("snoozes"), func(context.Context, *jobs.Job[task]) error { return jobs.Snooze(time.Hour) })
		worker.HandleNone(r, kind("too late"), func(ctx context.Context, _ *jobs.Job[task]) error { <-ctx.Done(); return errors.New("interrupted") })
		worker.HandleNone(r, kind("is cancelled"), func(ctx context.Context, j *jobs.Job[task]) error {
			if _, err := jobs.Cancel(context.WithoutCancel(ctx), o.db, j.ID, "no need"); err != nil {
				return err
			}
			<-ctx.Done()
			return errors.New("interrupted")
		})
		worker.HandleNone(r, kind("panics"), func(context.Context, *jobs.Job[task]) error { panic("ouch") })
		worker.HandleNone(r, kind("exits"), func(context.Context, *jobs.Job[task]) error { runtime.Goexit(); return nil })
		worker.HandleNone(r, kind("gives up"), func(context.Context, *jobs.Job[task]) error { return jobs.Permanent(jobs.RetryIn(0, &cardError{4})) })
		worker.HandleNone(r, &jobs.Spec[[]string, jobs.None]{Kind: "undecodable", Queue: "q"}, func(context.Context, *jobs.Job[[]string]) error { return nil })
	})

	attempts := map[string]tracetest.SpanStubs{}
	for _, s := range o.named("process q") {
		attempts[attributes(s)[jobotel.KindKey]] = append(attempts[attributes(s)[jobotel.KindKey]], s)
		if s.SpanContext.TraceID() != request.SpanContext().TraceID() {
			t.Error("an attempt is in another trace")
		}
	}
	for name, want := range map[string]struct{ types, status string }{
		"retried":      {"*jobotel_test.cardError *jobotel_test.cardError -", "card refused: 51"},
		"slow":         {"timeout", "interrupted"},
		"own":          {"context.deadlineExceededError", "calling: context deadline exceeded"},
		"too late":     {"deadline", "interrupted"},
		"is cancelled": {"cancelled", "interrupted"},
		"panics":       {"panic", "panic: ouch"},
		"exits":        {"exit", "exit"},
		"gives up":     {"*jobotel_test.cardError", "card refused: 4"},
		"undecodable":  {"*json.UnmarshalTypeError", "payload"},
	} {
		var types []string
		for i, s := range attempts[name] {
			o.has(s, map[attribute.Key]string{"jobgen.attempt": strconv.Itoa(i + 1)})
			if failure := attributes(s)["error.type"]; failure == "" {
				types = append(types, "-")
				if s.Status.Code != codes.Unset || len(s.Events) != 0 {
					t.Errorf("%s: a success with status %+v and events %v", name, s.Status, s.Events)
				}
				continue
			} else {
				types = append(types, failure)
			}
			if s.Status.Code != codes.Error || !strings.HasPrefix(s.Status.Description, want.status) || strings.Contains(s.Status.Description, "\n") {
				t.Errorf("%s: status %+v", name, s.Status)
			}
			if name == "exits" {
				continue
			}
			if len(s.Events) != 1 || s.Events[0].Name != "exception" {
				t.Errorf("%s: events %+v", name, s.Events)
			} else if event := fmt.Sprint(s.Events[0].Attributes); strings.Contains(event, "jobotel_test.go") != (name == "panics") {
				t.Errorf("%s: the exception %s", name, event)
			}
		}
		if got := strings.Join(types, " "); got != want.types {
			t.Errorf("%s: error types %q, want %q", name, got, want.types)
		}
	}
	if s := attempts["snoozes"]; len(s) != 1 || s[0].Status.Code != codes.Unset || attributes(s[0])["error.type"] != "" || attributes(s[0])["jobgen.snoozed"] != "3600" {
		t.Errorf("a snooze: %+v", s)
	}
	measured := o.measured()
	for name, want := range map[string]string{
		"messaging.client.consumed.messages {message} error.type=panic,jobgen.kind=panics,messaging.destination.name=q,messaging.operation.name=process,messaging.system=jobgen": "1",
		"messaging.process.duration s error.type=timeout,jobgen.kind=slow,messaging.destination.name=q,messaging.operation.name=process,messaging.system=jobgen":                 "1",
		"messaging.process.duration s error.type=exit,jobgen.kind=exits,messaging.destination.name=q,messaging.operation.name=process,messaging.system=jobgen":                   "1",
		"messaging.process.duration s jobgen.kind=retried,messaging.destination.name=q,messaging.operation.name=process,messaging.system=jobgen":                                 "1",
	} {
		if measured[name] != want {
			t.Errorf("%s: %q, want %s", name, measured[name], want)
		}
	}
}

// A refused enqueue is a failed send.
func TestARefusedEnqueueIsOnTheSpan(t *testing.T) {
	t.Parallel()
	o := observe(t)
	if _, err := jobs.Enqueue(t.Context(), o.on(o.db), &jobs.Spec[string, jobs.None]{Kind: "k", Queue: "q"}, "\x00"); err == nil {
		t.Fatal("it was stored")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := jobs.Enqueue(ctx, o.on(o.db), kind("k"), task{}); err == nil {
		t.Fatal("it was stored")
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = jobs.Enqueue(t.Context(), o.on(o.db), &jobs.Spec[panics, jobs.None]{Kind: "k", Queue: "q"}, panics{})
	}()
	sends := o.named("enqueue q")
	for i, want := range []string{"invalid", "interrupted", "panic"} {
		o.has(sends[i], map[attribute.Key]string{"error.type": want, "messaging.message.id": ""})
		if sends[i].Status.Code != codes.Error {
			t.Errorf("%s: status %+v", want, sends[i].Status)
		}
	}
	if n := o.measured()["messaging.client.sent.messages {message} error.type=invalid,jobgen.kind=k,messaging.destination.name=q,messaging.operation.name=enqueue,messaging.system=jobgen"]; n != "1" {
		t.Errorf("failed sends: %q", n)
	}
}

type panics struct{}

func (panics) MarshalJSON() ([]byte, error) { panic("ouch") }

// A job without a trace context starts a trace of its own, whatever span the worker was started in.
func TestAJobWithoutATraceStartsOne(t *testing.T) {
	t.Parallel()
	o := observe(t)
	if _, err := jobs.Enqueue(t.Context(), o.db, kind("k"), task{}); err != nil {
		t.Fatal(err)
	}
	o.work(func(r *worker.Registry) {
		worker.HandleNone(r, kind("k"), func(context.Context, *jobs.Job[task]) error { return nil })
	})
	work, main := o.one("process q"), o.one("main")
	if work.Parent.IsValid() || len(work.Links) != 0 || work.SpanContext.TraceID() == main.SpanContext.TraceID() {
		t.Errorf("parent %v, links %v", work.Parent, work.Links)
	}
}

// A trace context that the caller has set himself is the one the job gets; the send span links to it.
func TestTheCallersOwnTraceContextStays(t *testing.T) {
	t.Parallel()
	o := observe(t)
	const own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if _, err := jobs.Enqueue(t.Context(), o.on(o.db), kind("k"), task{}, jobs.Headers(map[string]string{"traceparent": own})); err != nil {
		t.Fatal(err)
	}
	o.work(func(r *worker.Registry) {
		worker.HandleNone(r, kind("k"), func(context.Context, *jobs.Job[task]) error { return nil })
	})
	send, work := o.one("enqueue q"), o.one("process q")
	if work.Parent.SpanID().String() != "b7ad6b7169203331" || len(send.Links) != 1 || send.Links[0].SpanContext.SpanID() != work.Parent.SpanID() {
		t.Errorf("parent of the attempt %v, links of the send span %v", work.Parent, send.Links)
	}
}

// Baggage that there is no room for is left behind; the job is enqueued, and its trace continues.
func TestTooMuchBaggageIsLeftBehind(t *testing.T) {
	t.Parallel()
	o := observe(t)
	member, err := baggage.NewMember("b", strings.Repeat("x", 1000))
	if err != nil {
		t.Fatal(err)
	}
	bag, err := baggage.New(member)
	if err != nil {
		t.Fatal(err)
	}
	ctx := baggage.ContextWithBaggage(t.Context(), bag)
	for _, c := range []struct{ used, want int }{{jobs.MaxHeaders - 500, 2}, {jobs.MaxHeaders - 40, 1}, {100, 3}} {
		ref, err := jobs.Enqueue(ctx, o.on(o.db), kind("k"), task{}, jobs.Headers(map[string]string{"mine": strings.Repeat("x", c.used)}))
		if err != nil {
			t.Errorf("with %d bytes of headers: %v", c.used, err)
			continue
		}
		var n int
		if err := o.db.QueryRow(ctx, `SELECT count(*) FROM jobgen.jobs j, jsonb_object_keys(j.headers) WHERE id = $1`, ref.ID).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n != c.want {
			t.Errorf("with %d bytes of headers: %d headers stored, want %d", c.used, n, c.want)
		}
	}
}
