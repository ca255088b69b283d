// Package joblog is middleware that logs enqueues and attempts with log/slog.
//
//	log := joblog.Middleware(logger)
//	producer := &jobs.Producer{Middleware: []jobs.Middleware{log}}
//	w, err := worker.New(pool, &registry, worker.Config{Middleware: []jobs.Middleware{log}, Logger: logger})
//
// The worker's own lines (worker.Config.Logger) say what became of a job: tried again, dead, taken back. Those of this
// package say what ran and for how long, in the same words. Neither holds a payload, a result, a key or a header.
package joblog

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/jobgen-go/jobgen/internal/storable"
	"github.com/jobgen-go/jobgen/jobs"
)

// maxError is the limit of an error in a line, in bytes.
const maxError = 8 << 10

// Middleware logs to logger; nil means slog.Default(), as it is when a line is written.
//
//	level  message            when
//	Debug  handler started
//	Info   handler succeeded  it returned nil; its outcome has still to be stored
//	Info   handler snoozed    it returned jobs.Snooze: too early, and no failure
//	Warn   handler failed     it returned an error, panicked, or ended its goroutine
//	Debug  jobs enqueued      in the caller's transaction, if there is one
//	Warn   enqueue failed
//
// The fields are job, kind, queue, attempt, max_attempts, and at the end duration and error (its first line); at the start
// waited, how long the job had been due; of a snooze delay. An enqueue of many has count instead of job; existing tells that the key of a
// single job was taken. The context is the caller's and the handler's: a slog handler that reads a trace context finds it
// if jobotel's middleware stands before this one.
func Middleware(logger *slog.Logger) jobs.Middleware {
	l := &log{logger}
	return jobs.Middleware{Enqueue: l.enqueue, Work: l.work}
}

// Logger is the logger given to Middleware with the fields of the job that is running, for the handler's own lines. Outside
// of a handler it is slog.Default().
func Logger(ctx context.Context) *slog.Logger {
	a, ok := ctx.Value(running{}).(*attempt)
	if !ok {
		return slog.Default()
	}
	return a.log.to().With(a.fields()...)
}

// running is the key of the *attempt in a handler's context.
type running struct{}

type attempt struct {
	log *log
	job *jobs.Info
}

func (a *attempt) fields() []any {
	return []any{"job", a.job.ID, "kind", a.job.Kind, "queue", a.job.Queue, "attempt", a.job.Attempt, "max_attempts", a.job.MaxAttempts}
}

type log struct{ logger *slog.Logger }

func (l *log) to() *slog.Logger {
	if l.logger == nil {
		return slog.Default()
	}
	return l.logger
}

func (l *log) work(ctx context.Context, job *jobs.Info, next func(context.Context) error) (err error) {
	a := &attempt{l, job}
	if l.to().Enabled(ctx, slog.LevelDebug) {
		l.to().DebugContext(ctx, "handler started", append(a.fields(), "waited", job.Waited)...)
	}
	start := time.Now()
	returned := false
	defer func() {
		delay, snoozed := jobs.SnoozeDelay(err)
		switch duration := time.Since(start); {
		case !returned:
			l.to().WarnContext(ctx, "handler failed", append(a.fields(), "duration", duration, "error", "it ended its goroutine (runtime.Goexit)")...)
		case snoozed && !jobs.IsPermanent(err):
			l.to().InfoContext(ctx, "handler snoozed", append(a.fields(), "duration", duration, "delay", delay)...)
		case err != nil:
			l.to().WarnContext(ctx, "handler failed", append(a.fields(), "duration", duration, "error", firstLine(err))...)
		case l.to().Enabled(ctx, slog.LevelInfo):
			l.to().InfoContext(ctx, "handler succeeded", append(a.fields(), "duration", duration)...)
		}
	}()
	err = next(context.WithValue(ctx, running{}, a))
	returned = true
	return err
}

func (l *log) enqueue(ctx context.Context, e *jobs.Enqueueing, next func(context.Context) error) error {
	start := time.Now()
	err := next(ctx)
	if err == nil && !l.to().Enabled(ctx, slog.LevelDebug) {
		return nil
	}
	fields := []any{"kind", e.Kind, "queue", e.Queue, "duration", time.Since(start)}
	switch {
	case e.Count > 1:
		fields = append(fields, "count", e.Count)
	case len(e.Enqueued) == 1 && e.Enqueued[0].ID != 0: // a follow-up has no id yet
		fields = append(fields, "job", e.Enqueued[0].ID, "existing", e.Enqueued[0].Existing)
	}
	if err != nil {
		l.to().WarnContext(ctx, "enqueue failed", append(fields, "error", firstLine(err))...)
	} else {
		l.to().DebugContext(ctx, "jobs enqueued", fields...)
	}
	return err
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(storable.Text(err.Error(), maxError), "\n")
	return line
}
