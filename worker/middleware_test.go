package worker_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

type next = func(context.Context) error

// around is a worker's configuration with Work parts.
func around(parts ...func(ctx context.Context, job *jobs.Info, next next) error) worker.Config {
	var cfg worker.Config
	for _, p := range parts {
		cfg.Middleware = append(cfg.Middleware, jobs.Middleware{Work: p})
	}
	return cfg
}

// notes collects what middleware and handlers saw.
type notes struct {
	mu    sync.Mutex
	lines []string
}

func (n *notes) add(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, fmt.Sprintf(format, args...))
}

func (n *notes) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.lines)
}

// The first middleware is the outermost, and what each puts into the context reaches the handler, whatever kind of one.
func TestWorkMiddlewareOrderAndContext(t *testing.T) {
	t.Parallel()
	type key struct{}
	for _, how := range []string{"plain", "transactional", "owned by lock"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			transactional := how != "plain"
			db := database(t)
			var n notes
			named := func(name string) func(context.Context, *jobs.Info, next) error {
				return func(ctx context.Context, job *jobs.Info, next next) error {
					path, _ := ctx.Value(key{}).(string)
					path += name
					n.add("before %s", path)
					err := next(context.WithValue(ctx, key{}, path))
					n.add("after %s", path)
					return err
				}
			}
			cfg := around(named("a"), nil, named("b"), named("c"))
			s := answering("k")
			s.Lock = how == "owned by lock"
			start(t, db, cfg, func(r *worker.Registry) {
				if transactional {
					worker.HandleTx(r, s, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
						n.add("handler %v", ctx.Value(key{}))
						return "done", leave(ctx, tx, 1, "tx")
					})
					return
				}
				worker.Handle(r, s, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
					n.add("handler %v", ctx.Value(key{}))
					return "done", nil
				})
			})
			if got, err := await(t, db, enqueue(t, db, s, task{})); got != "done" || err != nil {
				t.Fatalf("result %q, error %v", got, err)
			}
			want := []string{"before a", "before ab", "before abc", "handler abc", "after abc", "after ab", "after a"}
			if got := n.all(); !slices.Equal(got, want) {
				t.Errorf("calls %q, want %q", got, want)
			}
			if transactional && one[int](t, db, `SELECT count(*) FROM effect`) != 1 {
				t.Error("the handler's effect is not there")
			}
		})
	}
}

// Middleware knows the job whatever its payload, and has an Info of its own.
func TestWorkMiddlewareSeesTheJob(t *testing.T) {
	t.Parallel()
	db := database(t)
	s := keyed("k")
	s.MaxAttempts = 3
	infos := make(chan jobs.Info, 10)
	keys := make(chan string, 10)
	start(t, db, around(func(ctx context.Context, job *jobs.Info, next next) error {
		infos <- *job
		keys <- job.Key()
		job.Headers["added"] = "by the middleware"
		return next(ctx)
	}), func(r *worker.Registry) {
		worker.Handle(r, s, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
			if j.Attempt == 1 {
				return "", errors.New("not yet")
			}
			return fmt.Sprint(j.Headers), nil
		})
	})
	ref := enqueue(t, db, s, task{N: 7}, jobs.Headers(map[string]string{"h": "1"}))
	if got, err := await(t, db, ref); got != "map[h:1]" || err != nil {
		t.Errorf("the handler saw headers %s, error %v; want its own", got, err)
	}
	for attempt := 1; attempt <= 2; attempt++ {
		i := receive(t, "a call", infos)
		if i.ID != ref.ID || i.Kind != "k" || i.Queue != "q" || i.Attempt != attempt || i.MaxAttempts != 3 || i.Headers["h"] != "1" || i.Waited <= 0 || i.Waited > time.Hour {
			t.Errorf("attempt %d: %+v", attempt, i)
		}
		if key := receive(t, "a key", keys); key != "1/i1:7" {
			t.Errorf("key %q", key)
		}
	}
}

// A payload, and headers, that do not decode fail within the middleware.
func TestWorkMiddlewareSeesWhatDoesNotDecode(t *testing.T) {
	t.Parallel()
	db := database(t)
	seen := make(chan error, 10)
	start(t, db, around(func(ctx context.Context, job *jobs.Info, next next) error {
		err := next(ctx)
		seen <- err
		return jobs.Permanent(err)
	}), func(r *worker.Registry) {
		worker.HandleNone(r, kind("k"), func(context.Context, *jobs.Job[task]) error { t.Error("it ran"); return nil })
	})
	for column, value := range map[string]string{"payload": `"no task"`, "headers": `[1]`} {
		execute(t, db, `INSERT INTO jobgen.jobs (id, queue, kind, payload, headers) VALUES (nextval('jobgen.job_id'), 'q', 'k',
			CASE $1 WHEN 'payload' THEN $2::jsonb ELSE '{}' END, CASE $1 WHEN 'headers' THEN $2::jsonb END)`, column, value)
		if err := receive(t, "a failure", seen); err == nil || !strings.Contains(err.Error(), "decode") {
			t.Errorf("%s: %v", column, err)
		}
	}
	eventually(t, soon, "both are dead", func() bool {
		return one[int](t, db, `SELECT count(*) FROM jobgen.jobs WHERE status = 'dead'`) == 2
	})
}

// What a middleware returns is the attempt's outcome, within what can be stored.
func TestWorkMiddlewareDecidesTheOutcome(t *testing.T) {
	t.Parallel()
	mine := errors.New("mine")
	hide := func(ctx context.Context, _ *jobs.Info, next next) error { _ = next(ctx); return nil }
	skip := func(context.Context, *jobs.Info, next) error { return nil }
	for _, c := range []struct {
		name    string
		work    func(context.Context, *jobs.Info, next) error
		do      string // what the handler does
		without string // outcome for a kind without a result: the error, or "" for success
		result  string // for one with
		tx      string // for a transactional one
	}{
		{"passes on", func(ctx context.Context, _ *jobs.Info, next next) error { return next(ctx) }, "ok", "", "", ""},
		{"passes an error on", func(ctx context.Context, _ *jobs.Info, next next) error { return next(ctx) }, "fail", "on purpose", "on purpose", "on purpose"},
		{"replaces an error", func(ctx context.Context, _ *jobs.Info, next next) error { _ = next(ctx); return mine }, "fail", "mine", "mine", "mine"},
		{"replaces success", func(ctx context.Context, _ *jobs.Info, next next) error { _ = next(ctx); return mine }, "ok", "mine", "mine", "mine"},
		{"hides an error", hide, "fail", "", "in place of the handler's error", "in place of a transactional handler's error"},
		{"hides a panic", hide, "panic", "", "in place of the handler's error", "in place of a transactional handler's error"},
		{"skips", skip, "ok", "", "without calling the handler", ""},
		{"panics before", func(context.Context, *jobs.Info, next) error { panic("ouch") }, "ok", "panic: ouch", "panic: ouch", "panic: ouch"},
		{"panics after", func(ctx context.Context, _ *jobs.Info, next next) error { _ = next(ctx); panic("ouch") }, "ok", "panic: ouch", "panic: ouch", "panic: ouch"},
		{"exits", func(context.Context, *jobs.Info, next) error { runtime.Goexit(); return nil }, "ok", "Goexit", "Goexit", "Goexit"},
		{"exits after", func(ctx context.Context, _ *jobs.Info, next next) error { _ = next(ctx); runtime.Goexit(); return nil }, "ok", "Goexit", "Goexit", "Goexit"},
		{"sees a panic as an error", func(ctx context.Context, _ *jobs.Info, next next) error {
			var p *jobs.PanicError
			if err := next(ctx); !errors.As(err, &p) || p.Value != "at the disco" || !strings.Contains(string(p.Stack), "worker_test.misbehave") {
				return fmt.Errorf("got %v", err)
			}
			return mine
		}, "panic", "mine", "mine", "mine"},
		{"calls next twice", func(ctx context.Context, _ *jobs.Info, next next) error { return errors.Join(next(ctx), next(ctx)) }, "ok", "second time", "second time", "second time"},
		{"ignores the refusal", func(ctx context.Context, _ *jobs.Info, next next) error { err := next(ctx); _ = next(ctx); return err }, "ok", "", "", ""},
		{"passes a nil context on", func(_ context.Context, _ *jobs.Info, next next) error { return next(nil) }, "use context", "panic", "panic", "panic"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := database(t)
			plain, result, tx := kind("plain"), answering("result"), kind("tx")
			var n notes
			pass := func(ctx context.Context, _ *jobs.Info, next next) error { return next(ctx) }
			start(t, db, around(pass, c.work, pass), func(r *worker.Registry) {
				worker.HandleNone(r, plain, func(ctx context.Context, j *jobs.Job[task]) error {
					n.add("plain")
					return misbehave(ctx, c.do)
				})
				worker.Handle(r, result, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
					n.add("result")
					return "done", misbehave(ctx, c.do)
				})
				worker.HandleTxNone(r, tx, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) error {
					n.add("tx")
					_, err := tx.Exec(context.WithoutCancel(t.Context()), `INSERT INTO effect (what) VALUES ('tx')`)
					return errors.Join(err, misbehave(ctx, c.do))
				})
			})
			once := jobs.MaxAttempts(1)
			check := func(name, want string, id int64, err error) {
				t.Helper()
				var dead *jobs.DeadError
				switch {
				case want == "" && err != nil && !errors.Is(err, jobs.ErrNoRecord):
					t.Errorf("%s: %v, want success", name, err)
				case want != "" && (!errors.As(err, &dead) || !strings.Contains(dead.LastError, want)):
					t.Errorf("%s: %v, want it dead of %q", name, err, want)
				}
			}
			ref := enqueue(t, db, plain, task{}, once)
			_, err := await(t, db, ref)
			check("a plain kind", c.without, ref.ID, err)
			answered := enqueue(t, db, result, task{}, once)
			got, err := await(t, db, answered)
			check("a kind with a result", c.result, answered.ID, err)
			if c.result == "" && got != "done" {
				t.Errorf("the result is %q", got)
			}
			ref = enqueue(t, db, tx, task{}, once)
			_, err = await(t, db, ref)
			check("a transactional kind", c.tx, ref.ID, err)
			ran := slices.Contains(n.all(), "tx")
			if want := ran && c.tx == ""; want != one[bool](t, db, `SELECT EXISTS (SELECT FROM effect)`) {
				t.Errorf("the transactional handler's effect is there: %t, want %t", !want, want)
			}
			for _, name := range []string{"plain", "result", "tx"} {
				if lines := n.all(); len(lines) > 0 && strings.Count(strings.Join(lines, " "), name) != 1 {
					t.Errorf("handlers ran: %q, want each once", lines)
				}
			}
		})
	}
}

func misbehave(ctx context.Context, how string) error {
	switch how {
	case "fail":
		return errors.New("on purpose")
	case "panic":
		panic("at the disco")
	case "use context":
		return ctx.Err()
	}
	return nil
}

// The follow-ups of a handler that failed are dropped, even if a middleware makes a success of it; an enqueue of a follow-up
// goes through the Producer's middleware.
func TestMiddlewareAndFollowUps(t *testing.T) {
	t.Parallel()
	db := database(t)
	p := &jobs.Producer{Middleware: []jobs.Middleware{{Enqueue: func(ctx context.Context, e *jobs.Enqueueing, next func(context.Context) error) error {
		e.Headers["by"] = "middleware"
		return next(ctx)
	}}}}
	start(t, db, around(func(ctx context.Context, job *jobs.Info, next next) error {
		_ = next(ctx)
		if _, err := jobs.Enqueue(ctx, job.OnSuccess(), kind("never"), task{}); !errors.Is(err, jobs.ErrNoHandler) {
			t.Errorf("a follow-up of a middleware: %v", err)
		}
		return nil
	}), func(r *worker.Registry) {
		worker.HandleNone(r, kind("k"), func(ctx context.Context, j *jobs.Job[task]) error {
			_, err := jobs.Enqueue(ctx, p.On(j.OnSuccess()), kind("next"), j.Payload)
			return errors.Join(err, misbehave(ctx, j.Payload.Do))
		})
	})
	for _, what := range []string{"fail", "panic", ""} {
		ref := enqueue(t, db, kind("k"), task{Do: what})
		becomes(t, db, ref.ID, "is gone", func(r row) bool { return r.Status == "" })
	}
	if got := all[string](t, db, `SELECT headers::text || payload::text FROM jobgen.jobs WHERE kind = 'next'`); !slices.Equal(got, []string{`{"by": "middleware"}{"N": 0}`}) {
		t.Errorf("follow-ups: %q", got)
	}
	if n := one[int](t, db, `SELECT count(*) FROM jobgen.jobs WHERE kind = 'never'`); n != 0 {
		t.Error("a middleware has enqueued a follow-up")
	}
}

// The stack of a panic stays on record, wherever the panic was.
func TestThePanicStackIsOnRecord(t *testing.T) {
	t.Parallel()
	db := database(t)
	start(t, db, around(func(ctx context.Context, job *jobs.Info, next next) error {
		if err := next(ctx); err != nil {
			return fmt.Errorf("wrapped: %w", err)
		}
		return nil
	}), func(r *worker.Registry) {
		worker.HandleNone(r, kind("k"), func(ctx context.Context, j *jobs.Job[task]) error { return misbehave(ctx, "panic") })
	})
	_, err := await(t, db, enqueue(t, db, kind("k"), task{}, jobs.MaxAttempts(1)))
	var dead *jobs.DeadError
	if !errors.As(err, &dead) || !strings.HasPrefix(dead.LastError, "wrapped: panic: at the disco\n\n") || !strings.Contains(dead.LastError, "worker_test.misbehave") {
		t.Errorf("on record: %v", err)
	}
}

// Permanent, RetryIn and Snooze mean the same from a middleware as from a handler.
func TestWorkMiddlewareDecidesAboutTheNextAttempt(t *testing.T) {
	t.Parallel()
	db := database(t)
	start(t, db, around(func(ctx context.Context, job *jobs.Info, next next) error {
		if job.Kind == "given up" {
			return jobs.Permanent(next(ctx))
		}
		if job.Kind == "put off" {
			_ = next(ctx)
			return jobs.Snooze(time.Hour)
		}
		return jobs.RetryIn(time.Hour, next(ctx))
	}), func(r *worker.Registry) {
		for _, k := range []string{"given up", "later", "put off"} {
			worker.HandleNone(r, kind(k), func(ctx context.Context, j *jobs.Job[task]) error { return misbehave(ctx, "fail") })
		}
	})
	dead := enqueue(t, db, kind("given up"), task{})
	becomes(t, db, dead.ID, "is dead at once", func(r row) bool { return r.Status == "dead" && r.Attempt == 1 })
	later := enqueue(t, db, kind("later"), task{})
	becomes(t, db, later.ID, "waits for an hour", func(r row) bool { return r.Status == "queued" && r.RunAt.Sub(r.DBNow) > 50*time.Minute })
	off := enqueue(t, db, kind("put off"), task{})
	becomes(t, db, off.ID, "is put off without an attempt", func(r row) bool {
		return r.Status == "queued" && r.Attempt == 0 && r.RunAt.Sub(r.DBNow) > 50*time.Minute
	})
}

// A middleware is within the kind's timeout, and sees what it was.
func TestWorkMiddlewareIsWithinTheTimeout(t *testing.T) {
	t.Parallel()
	db := database(t)
	s := kind("k")
	s.Timeout = 50 * time.Millisecond
	seen := make(chan error, 1)
	start(t, db, around(func(ctx context.Context, job *jobs.Info, next next) error {
		err := next(ctx)
		seen <- errors.Join(err, context.Cause(ctx))
		return err
	}), func(r *worker.Registry) {
		worker.HandleNone(r, s, func(ctx context.Context, j *jobs.Job[task]) error { <-ctx.Done(); return errors.New("interrupted") })
	})
	ref := enqueue(t, db, s, task{}, jobs.MaxAttempts(1))
	if err := receive(t, "the end of the handler", seen); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("the middleware saw %v", err)
	}
	becomes(t, db, ref.ID, "is dead of its timeout", func(r row) bool {
		return r.Status == "dead" && strings.Contains(r.LastError, "timeout after 50ms: interrupted")
	})
}

// An attempt is not over, and a transaction not ended, while its handler runs: also if a middleware gives up on it.
func TestAMiddlewareCannotLeaveItsHandlerBehind(t *testing.T) {
	t.Parallel()
	db := database(t)
	s := kind("k")
	release, refused := make(chan struct{}), make(chan error, 1)
	left := make(chan next, 1)
	start(t, db, around(func(ctx context.Context, job *jobs.Info, next next) error {
		left <- next
		running := make(chan struct{})
		go func() { close(running); _ = next(ctx) }()
		<-running
		eventually(t, soon, "the handler runs", func() bool { return one[int](t, db, `SELECT count(*) FROM effect`) == 1 })
		return errors.New("gave up")
	}), func(r *worker.Registry) {
		worker.HandleTxNone(r, s, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) error {
			if err := leave(ctx, db, 1, "started"); err != nil {
				return err
			}
			<-release
			_, err := tx.Exec(ctx, `SELECT 1`)
			refused <- err
			return nil
		})
	})
	ref := enqueue(t, db, s, task{}, jobs.MaxAttempts(1))
	late := receive(t, "next", left)
	eventually(t, soon, "the handler runs", func() bool { return one[int](t, db, `SELECT count(*) FROM effect`) == 1 })
	always(t, 200*time.Millisecond, "the job runs while its handler does", func() bool { return look(t, db, ref.ID).Status == "running" })
	close(release)
	if err := receive(t, "the handler's statement", refused); err != nil {
		t.Errorf("the handler's transaction was ended under it: %v", err)
	}
	becomes(t, db, ref.ID, "is dead", func(r row) bool { return r.Status == "dead" && strings.Contains(r.LastError, "gave up") })
	if late(t.Context()) == nil {
		t.Error("next was not refused after its middleware had returned")
	}
}

// A renamed kind has the same middleware under each name, and the registry can serve another worker without any.
func TestMiddlewareBelongsToTheWorker(t *testing.T) {
	t.Parallel()
	db := database(t)
	s := kind("new")
	s.Was = []string{"old"}
	var reg worker.Registry
	worker.HandleNone(&reg, s, func(context.Context, *jobs.Job[task]) error { return nil })
	seen := make(chan string, 10)
	cfg := around(func(ctx context.Context, job *jobs.Info, next next) error { seen <- job.Kind; return next(ctx) })
	run := func(cfg worker.Config) (stop func()) {
		w, err := worker.New(db, &reg, cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		return func() {
			drained(t, db, soon)
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	enqueue(t, db, kind("old"), task{})
	stop := run(cfg)
	if k := receive(t, "a call", seen); k != "old" {
		t.Errorf("it saw %q", k)
	}
	enqueue(t, db, s, task{})
	if k := receive(t, "a call", seen); k != "new" {
		t.Errorf("it saw %q", k)
	}
	stop()
	enqueue(t, db, s, task{})
	run(worker.Config{})()
	if len(seen) != 0 {
		t.Error("the middleware of one worker is in another")
	}
}

// Without middleware a handler is called as it was registered; the figures are those of one attempt of a plain job.
func BenchmarkWorkMiddleware(b *testing.B) {
	pass := jobs.Middleware{Work: func(ctx context.Context, _ *jobs.Info, next func(context.Context) error) error { return next(ctx) }}
	for _, c := range []struct {
		name string
		ms   []jobs.Middleware
	}{{"none", nil}, {"enqueue only", []jobs.Middleware{{}}}, {"one", []jobs.Middleware{pass}}, {"two", []jobs.Middleware{pass, pass}}} {
		b.Run(c.name, func(b *testing.B) {
			var reg worker.Registry
			worker.HandleNone(&reg, kind("k"), func(context.Context, *jobs.Job[task]) error { return nil })
			invoke := worker.Invoker(b, &reg, "k", c.ms)
			b.ReportAllocs()
			for b.Loop() {
				if err := invoke(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
