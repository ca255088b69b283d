package jobotel_test

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/jobgen-go/jobgen/jobotel"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// collect reads what a meter provider has: "name{attributes}" and its value, a histogram's being its count; and units by name.
func collect(t *testing.T, r *sdkmetric.ManualReader) (values map[string]float64, units map[string]string) {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := r.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	values, units = map[string]float64{}, map[string]string{}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			units[m.Name] = m.Unit
			put := func(set attribute.Set, v float64) {
				values[m.Name+"{"+set.Encoded(attribute.DefaultEncoder())+"}"] = v
			}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					put(p.Attributes, float64(p.Value))
				}
			case metricdata.Sum[float64]:
				for _, p := range d.DataPoints {
					put(p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					put(p.Attributes, float64(p.Count))
				}
			}
		}
	}
	return values, units
}

func TestAWorkerIsMeasured(t *testing.T) {
	t.Parallel()
	o := observe(t)
	s := kind("k")
	started, release := make(chan struct{}, 5), make(chan struct{})
	var r worker.Registry
	worker.HandleNone(&r, s, func(context.Context, *jobs.Job[task]) error {
		started <- struct{}{}
		<-release
		return nil
	})
	w, err := worker.New(o.db, &r, worker.Config{Concurrency: 5, Middleware: []jobs.Middleware{o.middleware}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	reader := sdkmetric.NewManualReader()
	registration, err := jobotel.ObserveWorker(w, jobotel.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))}, attribute.String("which", "first"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jobs.EnqueueMany(t.Context(), o.db, s, make([]task, 3)); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	for range 3 {
		select {
		case <-started:
		case <-time.After(30 * time.Second):
			t.Fatal("they do not start")
		}
	}
	got, _ := collect(t, reader)
	for name, want := range map[string]float64{
		"jobgen.worker.slots{jobgen.state=busy,which=first}": 3, "jobgen.worker.slots{jobgen.state=idle,which=first}": 2, "jobgen.worker.slots{jobgen.state=stuck,which=first}": 0,
		"jobgen.worker.holds{jobgen.state=running,which=first}": 3, "jobgen.worker.holds{jobgen.state=waiting,which=first}": 0, "jobgen.worker.holds{jobgen.state=storing,which=first}": 0,
		"jobgen.worker.claimed{which=first}": 3, "jobgen.worker.flushed{which=first}": 0, "jobgen.worker.losses{which=first}": 0,
	} {
		if v, there := got[name]; !there || v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
	close(release)
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	got, units := collect(t, reader)
	if got["jobgen.worker.flushed{which=first}"] != 3 || got["jobgen.worker.flushes{which=first}"] < 1 || got["jobgen.worker.flush.time{which=first}"] <= 0 || got["jobgen.worker.claims{which=first}"] < 1 {
		t.Errorf("after the run: %v", got)
	}
	attempts, more := collect(t, o.metrics)
	if n := attempts["jobgen.wait.duration{jobgen.kind=k,messaging.destination.name=q,messaging.operation.name=process,messaging.system=jobgen}"]; n != 3 {
		t.Errorf("%v waits: %v", n, attempts)
	}
	maps.Copy(units, more)
	onThePage(t, units)
	if err := registration.Unregister(); err != nil {
		t.Error(err)
	}
	if got, _ := collect(t, reader); len(got) != 0 {
		t.Errorf("after it was unregistered: %v", got)
	}
}

// onThePage checks that the page has each metric with its unit, and that each metric of the worker on it is there.
func onThePage(t *testing.T, units map[string]string) {
	t.Helper()
	page, err := os.ReadFile("../docs/runtime/opentelemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	onPage := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z.]+)` \\| ([a-z-]+(?: counter)?)(?:, (\\S+))? \\|").FindAllStringSubmatch(string(page), -1) {
		onPage[m[1]] = m[3]
	}
	for name, unit := range units {
		if strings.HasPrefix(unit, "{message") {
			unit = ""
		}
		if on, there := onPage[name]; !there || on != unit {
			t.Errorf("the page has %q as %q, it is %q", name, on, unit)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(onPage)) {
		if _, there := units[name]; !there && strings.HasPrefix(name, "jobgen.") {
			t.Error("only on the page:", name)
		}
	}
}
