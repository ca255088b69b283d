package joblog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/joblog"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/worker"
)

type task struct{ Secret string }

func kind(name string) *jobs.Spec[task, jobs.None] {
	return &jobs.Spec[task, jobs.None]{Kind: name, Queue: "q", MaxAttempts: 1}
}

// book keeps what is logged.
type book struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *book) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// lines are those with that message.
func (b *book) lines(t *testing.T, message string) (found []map[string]any) {
	t.Helper()
	for line := range strings.Lines(b.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		if m["msg"] == message {
			delete(m, "msg")
			delete(m, "time")
			found = append(found, m)
		}
	}
	return found
}

func logger(b *book, level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(b, &slog.HandlerOptions{Level: level}))
}

// Each enqueue and each attempt has its lines, in the worker's words; the handler's own lines have the job's fields; and
// nothing of a payload, a key, a header or a result is in any of them.
func TestLines(t *testing.T) {
	t.Parallel()
	db := jobtest.DB(t)
	var b book
	log := joblog.Middleware(logger(&b, slog.LevelDebug))
	on := (&jobs.Producer{Middleware: []jobs.Middleware{log}}).On(db)
	works, fails, panics, exits, sleeps := kind("works"), kind("fails"), kind("panics"), kind("exits"), kind("sleeps")
	ids := map[string]float64{}
	for _, s := range []*jobs.Spec[task, jobs.None]{works, fails, panics, exits, sleeps} {
		ref, err := jobs.Enqueue(t.Context(), on, s, task{"hush"}, jobs.Key("hush"+s.Kind), jobs.Headers(map[string]string{"hush": "hush"}))
		if err != nil {
			t.Fatal(err)
		}
		ids[s.Kind] = float64(ref.ID)
	}
	if _, err := jobs.EnqueueMany(t.Context(), on, kind("many"), []task{{"hush"}, {"hush"}}, jobs.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := jobs.Enqueue(t.Context(), on, works, task{"hush\x00"}); err == nil {
		t.Fatal("it was stored")
	}
	var reg worker.Registry
	worker.HandleNone(&reg, works, func(ctx context.Context, j *jobs.Job[task]) error {
		joblog.Logger(ctx).Info("the handler's own", "more", 1)
		return nil
	})
	worker.HandleNone(&reg, fails, func(context.Context, *jobs.Job[task]) error { return errors.New("no luck\nsecond line") })
	slept := make(chan struct{})
	worker.HandleNone(&reg, sleeps, func(context.Context, *jobs.Job[task]) error { defer close(slept); return jobs.Snooze(time.Hour) })
	worker.HandleNone(&reg, panics, func(context.Context, *jobs.Job[task]) error { panic("ouch") })
	worker.HandleNone(&reg, exits, func(context.Context, *jobs.Job[task]) error { runtime.Goexit(); return nil })
	w, err := worker.New(db, &reg, worker.Config{Logger: logger(&b, slog.LevelInfo), Middleware: []jobs.Middleware{log}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	<-slept
	for kind, id := range ids {
		if kind == "sleeps" {
			continue
		}
		await, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		_, err := jobs.RefTo(&jobs.Spec[task, jobs.None]{Kind: kind}, int64(id)).Await(await, db)
		if cancel(); await.Err() == context.DeadlineExceeded || (err == nil) != (kind == "works") && !errors.Is(err, jobs.ErrNoRecord) {
			t.Errorf("%s: %v", kind, err)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}

	fields := func(more ...string) []string {
		return slices.Sorted(slices.Values(append([]string{"level", "job", "kind", "queue", "attempt", "max_attempts"}, more...)))
	}
	for _, want := range []struct {
		message, kind, level, err string
		more                      []string
	}{
		{"handler started", "works", "DEBUG", "", []string{"waited"}},
		{"handler succeeded", "works", "INFO", "", []string{"duration"}},
		{"the handler's own", "works", "INFO", "", []string{"more"}},
		{"handler failed", "fails", "WARN", "no luck", []string{"duration", "error"}},
		{"handler failed", "panics", "WARN", "panic: ouch", []string{"duration", "error"}},
		{"handler failed", "exits", "WARN", "it ended its goroutine (runtime.Goexit)", []string{"duration", "error"}},
		{"handler snoozed", "sleeps", "INFO", "", []string{"duration", "delay"}},
		{"job is dead", "fails", "ERROR", "no luck", []string{"error", "worker"}}, // the worker's
	} {
		found := slices.DeleteFunc(b.lines(t, want.message), func(m map[string]any) bool { return m["kind"] != want.kind })
		if len(found) != 1 {
			t.Errorf("%d lines %q of %s, want one", len(found), want.message, want.kind)
			continue
		}
		line := found[0]
		if got := slices.Sorted(maps.Keys(line)); !slices.Equal(got, fields(want.more...)) {
			t.Errorf("%s of %s: fields %q, want %q", want.message, want.kind, got, fields(want.more...))
		}
		text, _ := line["error"].(string)
		if line["level"] != want.level || line["job"] != ids[want.kind] || line["queue"] != "q" || line["attempt"] != 1.0 || line["max_attempts"] != 1.0 || text != want.err {
			t.Errorf("%s of %s: %v", want.message, want.kind, line)
		}
	}
	var single, many []map[string]any
	for _, line := range b.lines(t, "jobs enqueued") {
		if line["level"] != "DEBUG" || line["duration"] == nil {
			t.Errorf("enqueued: %v", line)
		}
		if line["kind"] == "many" {
			many = append(many, line)
		} else {
			single = append(single, line)
		}
	}
	if len(many) != 1 || many[0]["count"] != 2.0 || many[0]["job"] != nil {
		t.Errorf("an enqueue of two: %v", many)
	}
	if len(single) != 5 || single[0]["job"] != ids["works"] || single[0]["existing"] != false || single[0]["count"] != nil {
		t.Errorf("enqueues of one: %v", single)
	}
	if failed := b.lines(t, "enqueue failed"); len(failed) != 1 || failed[0]["level"] != "WARN" || failed[0]["error"] == nil {
		t.Errorf("failed enqueues: %v", failed)
	}
	if strings.Contains(b.String(), "hush") {
		t.Errorf("the log holds what is private:\n%s", b.String())
	}
}

// Outside of a handler there is a logger too.
func TestLoggerOutsideOfAHandler(t *testing.T) {
	t.Parallel()
	if joblog.Logger(t.Context()) != slog.Default() {
		t.Error("it is not the default")
	}
}

// Cost of the middleware itself, around a handler that does nothing.
func BenchmarkWork(b *testing.B) {
	for _, level := range []slog.Level{slog.LevelWarn, slog.LevelInfo} {
		b.Run(level.String(), func(b *testing.B) {
			work := joblog.Middleware(slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: level}))).Work
			info := &jobs.Info{ID: 1, Kind: "k", Queue: "q", Attempt: 1, MaxAttempts: 20}
			b.ReportAllocs()
			for b.Loop() {
				if err := work(b.Context(), info, func(context.Context) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
