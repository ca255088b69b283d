package jobotel

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/jobgen-go/jobgen/worker"
)

// StateKey is on jobgen.worker.slots (busy, stuck, idle) and on jobgen.worker.holds (waiting, running, storing).
const StateKey = attribute.Key("jobgen.state")

// ObserveWorker makes w's Stats metrics. They are read when the application's reader collects, and cost nothing between. If a
// process has several workers, give each attributes that tell it from the others, or they are one. Unregister what it returns to
// end that, as a rule never. Of o, it needs the MeterProvider.
//
// Now: jobgen.worker.slots and jobgen.worker.holds. Since w was made: jobgen.worker.claims and jobgen.worker.claimed,
// jobgen.worker.flushes, jobgen.worker.flushed and jobgen.worker.flush.time, jobgen.worker.reclaimed,
// jobgen.worker.heartbeat.failures, jobgen.worker.losses. What they mean, worker.Stats says.
func ObserveWorker(w *worker.Worker, o Options, attributes ...attribute.KeyValue) (metric.Registration, error) {
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	m := o.MeterProvider.Meter(Scope, metric.WithSchemaURL(semconv.SchemaURL))
	var all []metric.Observable
	var failed error
	now := func(name, unit, what string) metric.Int64Observable {
		i, err := m.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
		if err != nil {
			failed = err
		}
		all = append(all, i)
		return i
	}
	count := func(name, unit, what string) metric.Int64Observable {
		i, err := m.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
		if err != nil {
			failed = err
		}
		all = append(all, i)
		return i
	}
	slots := now("jobgen.worker.slots", "{slot}", "Handlers that may run at once, by what the slot is at. Stuck: its handler ignores its ended context.")
	holds := now("jobgen.worker.holds", "{job}", "Jobs that this worker has claimed and whose outcome is not stored, by how far they are.")
	claims := count("jobgen.worker.claims", "{statement}", "Claims, those that found nothing included.")
	claimed := count("jobgen.worker.claimed", "{job}", "Jobs that claims brought.")
	flushes := count("jobgen.worker.flushes", "{statement}", "Statements that stored outcomes.")
	flushed := count("jobgen.worker.flushed", "{job}", "Outcomes that they stored.")
	reclaimed := count("jobgen.worker.reclaimed", "{job}", "Jobs of lost workers that this one has given back.")
	failures := count("jobgen.worker.heartbeat.failures", "{heartbeat}", "Heartbeats that did not renew the lease.")
	losses := count("jobgen.worker.losses", "{loss}", "How often this worker was found dead although it lived.")
	flushTime, err := m.Float64ObservableCounter("jobgen.worker.flush.time", metric.WithUnit("s"), metric.WithDescription("Time that storing outcomes took."))
	if err != nil {
		failed = err
	}
	if failed != nil {
		return nil, failed
	}
	set := metric.WithAttributeSet(attribute.NewSet(attributes...))
	in := func(state string) metric.ObserveOption {
		return metric.WithAttributeSet(attribute.NewSet(append([]attribute.KeyValue{StateKey.String(state)}, attributes...)...))
	}
	busy, stuck, idle, waiting, running, storing := in("busy"), in("stuck"), in("idle"), in("waiting"), in("running"), in("storing")
	return m.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		s := w.Stats()
		n := len(s.Stuck)
		to.ObserveInt64(slots, int64(s.Running-n), busy)
		to.ObserveInt64(slots, int64(n), stuck)
		to.ObserveInt64(slots, int64(max(s.Slots-s.Running, 0)), idle) // after a Resize more may run than there are slots
		to.ObserveInt64(holds, int64(s.Waiting), waiting)
		to.ObserveInt64(holds, int64(s.Running-n), running)
		to.ObserveInt64(holds, int64(s.Storing), storing)
		to.ObserveInt64(claims, s.Claims, set)
		to.ObserveInt64(claimed, s.Claimed, set)
		to.ObserveInt64(flushes, s.Flushes, set)
		to.ObserveInt64(flushed, s.Flushed, set)
		to.ObserveFloat64(flushTime, s.FlushTime.Seconds(), set)
		to.ObserveInt64(reclaimed, s.Reclaimed, set)
		to.ObserveInt64(failures, s.Failures, set)
		to.ObserveInt64(losses, s.Losses, set)
		return nil
	}, append(all, flushTime)...)
}
