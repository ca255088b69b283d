package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// blockForGood is what a stack must name.
//
//go:noinline
func blockForGood(until <-chan struct{}) { <-until }

// deaf is a handler that ignores its context. It says that it has started, and returns when it is let go.
type deaf struct{ started, letGo, returned chan struct{} }

func newDeaf() *deaf {
	return &deaf{make(chan struct{}, 100), make(chan struct{}), make(chan struct{}, 100)}
}

func (d *deaf) run() {
	d.started <- struct{}{}
	blockForGood(d.letGo)
	d.returned <- struct{}{}
}

// end lets it go and waits for its slots to be free: the end of a worker does not wait for a handler that is stuck.
func (d *deaf) end(w *running) {
	close(d.letGo)
	eventually(w.t, soon, "the stuck handlers have returned", func() bool { return w.w.Stats().Running == 0 })
}

const ignores = "a handler ignores its context"

// patient is a worker that finds stuck handlers soon.
func patient(cfg worker.Config) worker.Config {
	cfg.StuckAfter = 200 * time.Millisecond
	return cfg
}

func stuckOnRecord(t *testing.T, db jobs.DB) int {
	return one[int](t, db, `SELECT coalesce(sum(stuck), 0) FROM jobgen.workers`)
}

func TestAJobGoesOnWithoutItsStuckHandler(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := keyed("t.deaf")
	spec.Timeout = 50 * time.Millisecond
	d := newDeaf()
	ref := enqueue(t, pool, spec, task{N: 7, Do: "s3cret"})
	first := start(t, pool, patient(worker.Config{Concurrency: 1}), func(r *worker.Registry) {
		worker.Handle(r, spec, func(context.Context, *jobs.Job[task]) (string, error) { d.run(); return "too late", nil })
	})
	defer func() {
		if d != nil {
			close(d.letGo)
		}
	}()
	receive(t, "it runs", d.started)
	becomes(t, pool, ref.ID, "is queued again, its attempt failed", func(r row) bool {
		return r.Status == "queued" && r.Attempt == 1 && strings.Contains(r.LastError, "timeout after 50ms; the handler ignored that for") && strings.Contains(r.LastError, "was given up")
	})
	s := first.w.Stats()
	if len(s.Stuck) != 1 || s.Stuck[0].ID != ref.ID || s.Stuck[0].Kind != "t.deaf" || s.Stuck[0].Attempt != 1 || s.Stuck[0].For < 200*time.Millisecond || s.Running != 1 || s.Slots != 1 {
		t.Errorf("%+v", s)
	}
	eventually(t, soon, "others see it", func() bool { return stuckOnRecord(t, pool) == 1 })

	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(context.Context, *jobs.Job[task]) (string, error) { return "in time", nil })
	})
	if got, err := await(t, pool, ref); got != "in time" || err != nil {
		t.Fatalf("on the second worker: %q, %v", got, err)
	}
	close(d.letGo)
	receive(t, "the stuck handler returns", d.returned)
	d = nil
	eventually(t, soon, "its slot is free", func() bool { return first.w.Stats().Running == 0 && len(first.w.Stats().Stuck) == 0 })
	eventually(t, soon, "others see that", func() bool { return stuckOnRecord(t, pool) == 0 })
	if got, err := await(t, pool, ref); got != "in time" || err != nil {
		t.Errorf("after the stuck handler's success: %q, %v", got, err)
	}
	log := first.log.String()
	if strings.Count(log, ignores) != 1 || !strings.Contains(log, "blockForGood") || !strings.Contains(log, "kind=t.deaf") || strings.Contains(log, "s3cret") {
		t.Error("the log is to name it once, with its stack and without its payload")
	}
	if strings.Count(log, "its slot is free again") != 1 {
		t.Error("the log is to say that its slot is free again")
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt WHERE job_id = $1 AND outcome = 'failed'`, ref.ID); n != 1 {
		t.Errorf("%d failed attempts on record", n)
	}
}

func TestAStuckHandlerOnItsLastAttemptLeavesADeadJob(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.deaf")
	spec.Timeout, spec.MaxAttempts = 50*time.Millisecond, 1
	d := newDeaf()
	ref := enqueue(t, pool, spec, task{})
	w := start(t, pool, patient(worker.Config{}), handles(spec, func(context.Context, *jobs.Job[task]) error { d.run(); return nil }))
	defer d.end(w)
	becomes(t, pool, ref.ID, "is dead", func(r row) bool { return r.Status == "dead" })
}

// A job that was taken back has moved on already; its handler, which need not have a timeout, is reported all the same.
func TestAHandlerThatIgnoresTheLossOfItsJobIsReported(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.deaf")
	d := newDeaf()
	w := start(t, pool, patient(worker.Config{Concurrency: 1, Lease: 600 * time.Millisecond}), handles(spec, func(context.Context, *jobs.Job[task]) error { d.run(); return nil }))
	defer d.end(w)
	ref := enqueue(t, pool, spec, task{})
	receive(t, "it runs", d.started)
	execute(t, pool, `UPDATE jobgen.jobs SET status = 'queued', worker_id = NULL, fence = 0, run_at = now() + interval '1 hour' WHERE id = $1`, ref.ID)
	eventually(t, soon, "it is reported", func() bool { return w.log.has(ignores) && w.log.has("blockForGood") })
	if s := w.w.Stats(); len(s.Stuck) != 1 {
		t.Errorf("%+v", s)
	}
	if r := look(t, pool, ref.ID); r.Status != "queued" || r.LastError != "" {
		t.Errorf("the job is %s", r)
	}
}

// A transactional handler's locks go with its connection, so that the job can run elsewhere, and what it did is undone.
func TestTheTransactionOfAStuckHandlerIsRolledBack(t *testing.T) {
	t.Parallel()
	pool := database(t)
	execute(t, pool, `INSERT INTO effect (n, what) VALUES (1, 'row to lock')`)
	spec := answering("t.deaf")
	spec.Timeout = 50 * time.Millisecond
	d := newDeaf()
	defer func() {
		if d != nil {
			close(d.letGo)
		}
	}()
	ref := enqueue(t, pool, spec, task{})
	handler := func(answer string, stall func()) func(*worker.Registry) {
		return func(r *worker.Registry) {
			worker.HandleTx(r, spec, func(ctx context.Context, tx pgx.Tx, _ *jobs.Job[task]) (string, error) {
				_, err := tx.Exec(context.WithoutCancel(ctx), `UPDATE effect SET what = what || $1 WHERE n = 1`, " by "+answer)
				stall()
				return answer, err
			})
		}
	}
	first := start(t, pool, patient(worker.Config{Concurrency: 1}), handler("first", d.run))
	receive(t, "it runs, and holds a lock", d.started)
	becomes(t, pool, ref.ID, "is queued again", func(r row) bool { return r.Status == "queued" && r.Attempt == 1 })
	start(t, pool, worker.Config{}, handler("second", func() {}))
	if got, err := await(t, pool, ref); got != "second" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	close(d.letGo)
	receive(t, "the stuck handler returns", d.returned)
	d = nil
	eventually(t, soon, "its slot is free", func() bool { return first.w.Stats().Running == 0 })
	if got := one[string](t, pool, `SELECT what FROM effect`); got != "row to lock by second" {
		t.Errorf("the row says %q", got)
	}
	if got, err := await(t, pool, ref); got != "second" || err != nil {
		t.Errorf("after the first one's return: %q, %v", got, err)
	}
}

// A statement under a context of the handler's own is cancelled on the server.
func TestAStuckStatementIsCancelled(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.asleep")
	spec.Timeout, spec.MaxAttempts = 50*time.Millisecond, 1
	ref := enqueue(t, pool, spec, task{})
	start(t, pool, patient(worker.Config{}), func(r *worker.Registry) {
		worker.HandleTxNone(r, spec, func(ctx context.Context, tx pgx.Tx, _ *jobs.Job[task]) error {
			_, err := tx.Exec(context.WithoutCancel(ctx), `SELECT pg_sleep(600)`)
			return err
		})
	})
	becomes(t, pool, ref.ID, "is dead", func(r row) bool { return r.Status == "dead" })
	eventually(t, soon, "the server has stopped", func() bool {
		return one[int](t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'SELECT pg_sleep%'`) == 0
	})
}

// A handler that has returned success is not cut off, however long its COMMIT takes.
func TestAHandlerThatCommitsIsNotStuck(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.slow_commit")
	spec.Timeout = 50 * time.Millisecond
	execute(t, pool, `CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1); RETURN NULL; END'`)
	execute(t, pool, `CREATE CONSTRAINT TRIGGER dawdle AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION dawdle()`)
	ref := enqueue(t, pool, spec, task{})
	w := start(t, pool, patient(worker.Config{MaxStuck: 1}), func(r *worker.Registry) {
		worker.HandleTx(r, spec, func(ctx context.Context, tx pgx.Tx, _ *jobs.Job[task]) (string, error) {
			return "done", leave(ctx, tx, 1, "x")
		})
	})
	if got, err := await(t, pool, ref); got != "done" || err != nil || w.log.has(ignores) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestRunEndsWhenTooManyHandlersAreStuck(t *testing.T) {
	t.Parallel()
	pool := database(t)
	deafs, good := kind("t.deaf"), queued("t.good", "good")
	deafs.Timeout, deafs.Backoff.Base = 50*time.Millisecond, time.Hour
	d := newDeaf()
	defer close(d.letGo)
	running := make(chan struct{}, 100)
	w := start(t, pool, patient(worker.Config{Concurrency: 4, MaxStuck: 2, Grace: 100 * time.Millisecond}),
		handles(deafs, func(context.Context, *jobs.Job[task]) error { d.run(); return nil }),
		handles(good, func(ctx context.Context, _ *jobs.Job[task]) error {
			running <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}))
	ref := enqueue(t, pool, good, task{})
	receive(t, "a good one runs", running)
	enqueue(t, pool, deafs, task{})
	eventually(t, soon, "one is stuck", func() bool { return len(w.w.Stats().Stuck) == 1 })
	select {
	case <-w.done:
		t.Fatal("Run has returned after one")
	default:
	}
	enqueue(t, pool, deafs, task{})
	err := w.wait(soon)
	if !errors.Is(err, worker.ErrStuck) || !strings.Contains(err.Error(), "2 of 4 slots") {
		t.Errorf("Run: %v", err)
	}
	if r := look(t, pool, ref.ID); r.Status != "queued" || r.Attempt != 0 {
		t.Errorf("the good job is %s", r)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.workers`); n != 0 {
		t.Errorf("%d workers are on record", n)
	}
}

// Slots that stuck handlers take are no others' slots, whatever the size.
// After Resize fewer slots may be left than MaxStuck: a worker of which all are taken is as good as none.
func TestRunEndsWhenAllSlotsAreStuck(t *testing.T) {
	t.Parallel()
	pool := database(t)
	deafs := kind("t.deaf")
	deafs.Timeout, deafs.Backoff.Base = 50*time.Millisecond, time.Hour
	d := newDeaf()
	w := start(t, pool, patient(worker.Config{Concurrency: 4, MaxStuck: 3, Grace: 100 * time.Millisecond}),
		handles(deafs, func(context.Context, *jobs.Job[task]) error { d.run(); return nil }))
	defer d.end(w)
	enqueueMany(t, pool, deafs, numbered(2))
	eventually(t, soon, "two are stuck", func() bool { return len(w.w.Stats().Stuck) == 2 })
	if err := w.w.Resize(2); err != nil {
		t.Fatal(err)
	}
	if err := w.wait(soon); !errors.Is(err, worker.ErrStuck) || !strings.Contains(err.Error(), "2 of 2 slots") {
		t.Errorf("Run: %v", err)
	}
}

func TestStuckHandlersKeepTheirSlots(t *testing.T) {
	t.Parallel()
	pool := database(t)
	deafs, good, g := kind("t.deaf"), queued("t.good", "good"), newGate()
	defer g.release()
	deafs.Timeout, deafs.MaxAttempts = 50*time.Millisecond, 1
	d := newDeaf()
	defer close(d.letGo)
	w := start(t, pool, patient(worker.Config{Concurrency: 3}), handles(deafs, func(context.Context, *jobs.Job[task]) error { d.run(); return nil }), handles(good, g.pass))
	enqueueMany(t, pool, deafs, numbered(2))
	eventually(t, soon, "two are stuck", func() bool { return len(w.w.Stats().Stuck) == 2 })
	enqueueMany(t, pool, good, numbered(10))
	receive(t, "one slot is left", g.entered)
	always(t, 300*time.Millisecond, "and no more", func() bool { return g.inside.Load() == 1 })
	if err := w.w.Resize(5); err != nil {
		t.Fatal(err)
	}
	receive(t, "two more", g.entered)
	receive(t, "two more", g.entered)
	if s := w.w.Stats(); s.Running != 5 || s.Slots != 5 {
		t.Errorf("%+v", s)
	}
	g.release()
	eventually(t, soon, "all good ones are done", func() bool { return one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE queue = 'good'`) == 0 })
	if err := w.stop(); err == nil || !strings.Contains(err.Error(), "2 handlers ignored their cancelled context") {
		t.Errorf("Run: %v", err)
	}
}

func TestShutdownTellsWhereAHandlerIsThatItLeavesBehind(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.deaf")
	d := newDeaf()
	defer close(d.letGo)
	w := start(t, pool, worker.Config{Grace: -1}, handles(spec, func(context.Context, *jobs.Job[task]) error { return deeply(400, d.run) }))
	enqueue(t, pool, spec, task{})
	receive(t, "it runs", d.started)
	if err := w.stop(); err == nil {
		t.Error("Run returned nil")
	}
	var line string
	for l := range strings.Lines(w.log.String()) {
		if strings.Contains(l, "left behind") {
			line = l
		}
	}
	if !strings.Contains(line, "blockForGood") || len(line) > 10<<10 {
		t.Errorf("a line of %d bytes: %.300s", len(line), line)
	}
}

// deeply calls fn in a stack of many kilobytes.
func deeply(n int, fn func()) error {
	if n == 0 {
		fn()
		return nil
	}
	if err := deeply(n-1, fn); err != nil {
		return fmt.Errorf("%d: %w", n, err)
	}
	return nil
}

// A job owned by lock goes on too: its transaction is cut off, so that its row is free, and its attempt counts.
func TestAStuckJobOwnedByLockGoesOn(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.deaf")
	spec.Lock, spec.Timeout = true, 50*time.Millisecond
	d := newDeaf()
	ref := enqueue(t, pool, spec, task{})
	handler := func(answer string, stall func()) func(*worker.Registry) {
		return func(r *worker.Registry) {
			worker.HandleTx(r, spec, func(ctx context.Context, tx pgx.Tx, _ *jobs.Job[task]) (string, error) {
				err := leave(ctx, tx, 1, answer)
				stall()
				return answer, err
			})
		}
	}
	first := start(t, pool, patient(worker.Config{Concurrency: 1}), handler("first", d.run))
	receive(t, "it runs", d.started)
	becomes(t, pool, ref.ID, "has failed an attempt", func(r row) bool {
		return r.Status == "queued" && r.Attempt == 1 && strings.Contains(r.LastError, "was given up")
	})
	start(t, pool, worker.Config{}, handler("second", func() {}))
	if got, err := await(t, pool, ref); got != "second" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt WHERE outcome = 'crashed'`); n != 0 {
		t.Errorf("%d crashes", n)
	}
	d.end(first)
	if got := all[string](t, pool, `SELECT what FROM effect`); len(got) != 1 || got[0] != "second" {
		t.Errorf("effects: %q", got)
	}
	if !first.log.has("blockForGood") {
		t.Error("no stack")
	}
}
