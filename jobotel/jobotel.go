// Package jobotel is middleware that traces and measures jobs with OpenTelemetry: the trace continues from the enqueuer to
// the handler, and the metrics are those of the semantic conventions for messaging (of version 1.43.0; they are in
// development and may change with this package).
//
//	telemetry := jobotel.Middleware(jobotel.Options{})
//	producer := &jobs.Producer{Middleware: []jobs.Middleware{telemetry}}
//	w, err := worker.New(pool, &registry, worker.Config{Middleware: []jobs.Middleware{telemetry}})
//
// It needs the OpenTelemetry API only; the application brings the SDK.
package jobotel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"
	"go.opentelemetry.io/otel/trace"

	"github.com/jobgen-go/jobgen/jobs"
)

// Scope is the name of the tracer and of the meter.
const Scope = "github.com/jobgen-go/jobgen/jobotel"

// Attributes beside those of the conventions. KindKey is on every span and every measurement.
const (
	KindKey        = attribute.Key("jobgen.kind")
	AttemptKey     = attribute.Key("jobgen.attempt")      // of a process span; 1 for the first
	MaxAttemptsKey = attribute.Key("jobgen.max_attempts") // of a process span
	WaitedKey      = attribute.Key("jobgen.waited")       // of a process span: seconds for which the job had been due
	SnoozedKey     = attribute.Key("jobgen.snoozed")      // of a process span: seconds by which its job was put off; no failure
	ExistingKey    = attribute.Key("jobgen.existing")     // of the send span of one job: its key was taken
)

const (
	system  = "jobgen"
	send    = "enqueue" // messaging.operation.name of a span of type send
	process = "process"
)

// Options say where telemetry goes. The zero value means the globals of package otel, also if they are set later.
type Options struct {
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	// Propagator writes the trace context into the jobs' headers, and reads it there. Unless the application calls
	// otel.SetTextMapPropagator, the global one does nothing, and no trace continues in a handler.
	Propagator propagation.TextMapPropagator
}

// Middleware gives both parts; the enqueuer and the worker need not share one.
//
// An enqueue is a span "enqueue QUEUE" of kind producer. Its context goes into the headers of its jobs, with the baggage if the
// propagator carries it: but not if the caller has set one of the propagator's headers, which then stays as it is and is
// linked to; and the baggage only if there is room for it (jobs.MaxHeaders).
//
// An attempt is a span "process QUEUE" of kind consumer. Its parent is the span that enqueued the job, to which it
// also has a link; it is in the same trace, so a retried job has several (jobgen.attempt). A job that brings no trace context,
// such as that of a schedule, starts a trace, whatever span the worker was started in.
//
// Metrics: messaging.client.sent.messages and messaging.client.operation.duration (enqueue), and
// messaging.client.consumed.messages and messaging.process.duration (attempts), and jobgen.wait.duration (of each attempt: how
// long its job had been due). What a worker itself does, ObserveWorker measures.
//
// A failure has an error.type: panic, exit (the handler ended its goroutine), timeout (of the kind), deadline (of the job),
// cancelled (the job), lease_lost, interrupted (the context ended otherwise, as at a shutdown), invalid (refused to be enqueued),
// or else the error's Go type, beneath Permanent and RetryIn. An attempt that ends with jobs.Snooze is no failure.
func Middleware(o Options) jobs.Middleware {
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	if o.Propagator == nil {
		o.Propagator = otel.GetTextMapPropagator()
	}
	m := o.MeterProvider.Meter(Scope, metric.WithSchemaURL(semconv.SchemaURL))
	t := &telemetry{propagator: o.Propagator, tracer: o.TracerProvider.Tracer(Scope, trace.WithSchemaURL(semconv.SchemaURL))}
	buckets := metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
	var errs [5]error
	t.sent, errs[0] = messagingconv.NewClientSentMessages(m)
	t.sending, errs[1] = messagingconv.NewClientOperationDuration(m, buckets)
	t.consumed, errs[2] = messagingconv.NewClientConsumedMessages(m)
	t.processing, errs[3] = messagingconv.NewProcessDuration(m, buckets)
	t.waiting, errs[4] = m.Float64Histogram("jobgen.wait.duration", metric.WithUnit("s"),
		metric.WithDescription("How long jobs had been due when they were claimed for an attempt; for a further one, since the end of the back-off."),
		metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600))
	if err := errors.Join(errs[:]...); err != nil {
		otel.Handle(err)
	}
	return jobs.Middleware{Enqueue: t.enqueue, Work: t.work}
}

type telemetry struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	sent       messagingconv.ClientSentMessages
	sending    messagingconv.ClientOperationDuration
	consumed   messagingconv.ClientConsumedMessages
	processing messagingconv.ProcessDuration
	waiting    metric.Float64Histogram
}

func (t *telemetry) enqueue(ctx context.Context, e *jobs.Enqueueing, next func(context.Context) error) (err error) {
	attributes := append(common(send, e.Queue, e.Kind), semconv.MessagingOperationTypeSend)
	if e.Count > 1 {
		attributes = append(attributes, semconv.MessagingBatchMessageCount(e.Count))
	}
	own := t.present(e.Headers)
	var links []trace.Link
	if own {
		links = linkTo(t.propagator.Extract(context.Background(), propagation.MapCarrier(e.Headers)))
	}
	start := time.Now()
	ctx, span := t.tracer.Start(ctx, send+" "+e.Queue, trace.WithSpanKind(trace.SpanKindProducer), trace.WithTimestamp(start),
		trace.WithAttributes(attributes...), trace.WithLinks(links...))
	if !own {
		t.inject(ctx, e.Kind, e.Headers)
	}
	failure := semconv.ErrorTypeKey.String("panic") // until next returns
	defer func() {
		if len(e.Enqueued) == 1 && e.Enqueued[0].ID != 0 { // a follow-up has no id yet
			span.SetAttributes(semconv.MessagingMessageID(strconv.FormatInt(e.Enqueued[0].ID, 10)), ExistingKey.Bool(e.Enqueued[0].Existing))
		}
		took := end(span, start, failure, err)
		measured := measured(send, e.Queue, e.Kind, failure)
		t.sent.AddSet(ctx, int64(e.Count), attribute.NewSet(measured...))
		t.sending.RecordSet(ctx, took, attribute.NewSet(append(measured, semconv.MessagingOperationTypeSend)...))
	}()
	err = next(ctx)
	failure = errorType(ctx, err)
	return err
}

func (t *telemetry) work(ctx context.Context, job *jobs.Info, next func(context.Context) error) (err error) {
	if trace.SpanContextFromContext(ctx).IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{}) // the one in which the worker was started
	}
	ctx = t.propagator.Extract(ctx, propagation.MapCarrier(job.Headers))
	start := time.Now()
	ctx, span := t.tracer.Start(ctx, process+" "+job.Queue, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(start),
		trace.WithLinks(linkTo(ctx)...), trace.WithAttributes(append(common(process, job.Queue, job.Kind),
			semconv.MessagingOperationTypeProcess, semconv.MessagingMessageID(strconv.FormatInt(job.ID, 10)),
			AttemptKey.Int(job.Attempt), MaxAttemptsKey.Int(job.MaxAttempts), WaitedKey.Float64(job.Waited.Seconds()))...))
	well := attribute.NewSet(common(process, job.Queue, job.Kind)...)
	t.waiting.Record(ctx, job.Waited.Seconds(), metric.WithAttributeSet(well))
	failure := semconv.ErrorTypeKey.String("exit") // until next returns; a panic comes back from it as an error
	defer func() {
		took := end(span, start, failure, err)
		set := well
		if failure.Valid() {
			set = attribute.NewSet(measured(process, job.Queue, job.Kind, failure)...)
		}
		t.consumed.AddSet(ctx, 1, set)
		t.processing.RecordSet(ctx, took, set)
	}()
	err = next(ctx)
	failure = errorType(ctx, err)
	if delay, snoozed := jobs.SnoozeDelay(err); snoozed && !jobs.IsPermanent(err) {
		failure = attribute.KeyValue{}
		span.SetAttributes(SnoozedKey.Float64(delay.Seconds()))
	}
	return err
}

// common are the attributes of every span and measurement.
func common(operation, queue, kind string) []attribute.KeyValue {
	return append(make([]attribute.KeyValue, 0, 10), semconv.MessagingSystemKey.String(system),
		semconv.MessagingOperationName(operation), semconv.MessagingDestinationName(queue), KindKey.String(kind))
}

// measured are the attributes of a measurement.
func measured(operation, queue, kind string, failure attribute.KeyValue) []attribute.KeyValue {
	all := common(operation, queue, kind)
	if failure.Valid() {
		all = append(all, failure)
	}
	return all
}

// end ends span, and tells how long it took in seconds.
func end(span trace.Span, start time.Time, failure attribute.KeyValue, err error) float64 {
	stop := time.Now()
	if failure.Valid() && span.IsRecording() {
		text := failure.Value.AsString() // there is no error after a panic or runtime.Goexit
		if err != nil {
			text, _, _ = strings.Cut(err.Error(), "\n")
			with := []trace.EventOption{trace.WithTimestamp(stop)}
			if p := (*jobs.PanicError)(nil); errors.As(err, &p) {
				with = append(with, trace.WithAttributes(semconv.ExceptionStacktrace(string(p.Stack))))
			}
			span.RecordError(err, with...)
		}
		span.SetAttributes(failure)
		span.SetStatus(codes.Error, text)
	}
	span.End(trace.WithTimestamp(stop))
	return stop.Sub(start).Seconds()
}

// errorType is error.type; not valid if err is nil.
func errorType(ctx context.Context, err error) attribute.KeyValue {
	is := semconv.ErrorTypeKey.String
	var panicked *jobs.PanicError
	var invalid *jobs.InvalidError
	switch cause := context.Cause(ctx); {
	case err == nil:
		return attribute.KeyValue{}
	case errors.As(err, &panicked):
		return is("panic")
	case errors.As(err, &invalid):
		return is("invalid")
	case errors.Is(cause, jobs.ErrDeadline):
		return is("deadline")
	case errors.Is(cause, context.DeadlineExceeded):
		return is("timeout")
	case errors.Is(cause, jobs.ErrCancelled):
		return is("cancelled")
	case errors.Is(cause, jobs.ErrLeaseLost):
		return is("lease_lost")
	case cause != nil:
		return is("interrupted")
	}
	for {
		_, delayed := jobs.RetryDelay(err)
		beneath := errors.Unwrap(err)
		if beneath == nil || !delayed && !jobs.IsPermanent(err) {
			return semconv.ErrorType(err)
		}
		err = beneath
	}
}

// present tells whether the headers hold a context already.
func (t *telemetry) present(headers map[string]string) bool {
	for _, field := range t.propagator.Fields() {
		if _, ok := headers[field]; ok {
			return true
		}
	}
	return false
}

// inject writes ctx into the headers as far as there is room: telemetry must not keep a job from being enqueued.
func (t *telemetry) inject(ctx context.Context, kind string, headers map[string]string) {
	t.propagator.Inject(ctx, propagation.MapCarrier(headers))
	for _, drop := range [][]string{{"baggage"}, t.propagator.Fields()} {
		b, err := json.Marshal(headers)
		if err != nil || len(b) <= jobs.MaxHeaders {
			return
		}
		for _, field := range drop {
			if _, there := headers[field]; there {
				delete(headers, field)
				otel.Handle(fmt.Errorf("jobotel: %s is left out of the headers of a job of kind %s: they would take %d bytes, and the limit is %d", field, kind, len(b), jobs.MaxHeaders))
			}
		}
	}
}

// linkTo is a link to the span in ctx, if there is one.
func linkTo(ctx context.Context) []trace.Link {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		return []trace.Link{{SpanContext: sc}}
	}
	return nil
}
