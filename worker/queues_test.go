package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// queued is kind in a queue of its own choice.
func queued(name, queue string) *jobs.Spec[task, jobs.None] {
	s := kind(name)
	s.Queue = queue
	return s
}

// gate is a handler that counts who is inside and keeps everybody there until it is opened.
type gate struct {
	inside  atomic.Int32
	entered chan task
	open    chan struct{}
	once    sync.Once
}

// newGate makes one. The test defers its release: a worker's end waits for it.
func newGate() *gate { return &gate{entered: make(chan task, 10_000), open: make(chan struct{})} }

func (g *gate) release() { g.once.Do(func() { close(g.open) }) }

func (g *gate) pass(_ context.Context, j *jobs.Job[task]) error {
	g.inside.Add(1)
	defer g.inside.Add(-1)
	g.entered <- j.Payload
	<-g.open
	return nil
}

func handles[P any](s *jobs.Spec[P, jobs.None], fn func(context.Context, *jobs.Job[P]) error) func(*worker.Registry) {
	return func(r *worker.Registry) { worker.HandleNone(r, s, fn) }
}

func pause(t *testing.T, db jobs.DB, queue string) {
	t.Helper()
	if err := jobs.PauseQueue(context.WithoutCancel(t.Context()), db, queue); err != nil {
		t.Fatal(err)
	}
}

func resume(t *testing.T, db jobs.DB, queue string) {
	t.Helper()
	if err := jobs.ResumeQueue(context.WithoutCancel(t.Context()), db, queue); err != nil {
		t.Fatal(err)
	}
}

// untouched tells whether all jobs of a queue wait without an attempt spent.
func untouched(t *testing.T, pool *pgxpool.Pool, queue string, n int) bool {
	return one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE queue = $1 AND status = 'queued' AND attempt = 0`, queue) == n
}

func TestNothingOfAPausedQueueStartsUntilItIsResumed(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec, other := queued("t.paused", `He said "stop"; it's Ωver`), queued("t.open", "open")
	w := start(t, pool, worker.Config{}, handles(spec, nothing), handles(other, nothing))
	pause(t, pool, spec.Queue)
	eventually(t, soon, "the worker knows", func() bool { return w.log.has("queue is paused") })
	enqueueMany(t, pool, spec, numbered(5))
	enqueue(t, pool, spec, task{}, jobs.In(50*time.Millisecond))
	execute(t, pool, `UPDATE jobgen.jobs SET crashes = 2 WHERE id = (SELECT min(id) FROM jobgen.jobs)`) // a suspect, too
	enqueueMany(t, pool, other, numbered(5))
	// Long enough for ordinary claims, sweeps and the look for suspects.
	always(t, 3*time.Second, "all jobs of the queue wait, and nobody asks to be woken for it", func() bool {
		return untouched(t, pool, spec.Queue, 6) && one[int](t, pool, `SELECT count(*) FROM jobgen.wake WHERE queue = $1`, spec.Queue) == 0
	})
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE queue = 'open'`); n != 0 {
		t.Errorf("%d jobs of the other queue have not run", n)
	}
	resume(t, pool, spec.Queue)
	drained(t, pool, soon)
}

// A worker reads what has been decided before its first claim.
func TestAWorkerThatStartsWhileAQueueIsPausedObeys(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec, other := queued("t.paused", "paused"), queued("t.open", "open")
	pause(t, pool, "paused") // which no worker has ever polled
	enqueueMany(t, pool, spec, numbered(50))
	enqueueMany(t, pool, other, numbered(50))
	var ran atomic.Int32
	start(t, pool, worker.Config{}, handles(other, nothing), handles(spec, func(context.Context, *jobs.Job[task]) error { ran.Add(1); return nil }))
	eventually(t, soon, "the open queue is empty", func() bool { return one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE queue = 'open'`) == 0 })
	if n := ran.Load(); n > 0 || !untouched(t, pool, "paused", 50) {
		t.Errorf("%d jobs of the paused queue ran", n)
	}
}

// A notification can get lost. What was decided is seen all the same, by the next look.
func TestAPauseWithoutANotificationIsSeen(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.k")
	w := start(t, pool, worker.Config{}, handles(spec, nothing))
	eventually(t, soon, "it runs", func() bool { return w.log.has("worker started") })
	execute(t, pool, `INSERT INTO jobgen.queues (name, paused_at) VALUES ('q', now())`)
	eventually(t, soon, "the pause is seen", func() bool { return w.log.has("queue is paused") })
	enqueue(t, pool, spec, task{})
	execute(t, pool, `DELETE FROM jobgen.queues`)
	drained(t, pool, soon)
}

// While a queue is paused its marks stay where they were, so that what was enqueued meanwhile is found without a sweep.
func TestWhatLayInAPausedQueueIsFoundByAnOrdinaryClaim(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec, other := queued("t.paused", "paused"), queued("t.open", "open")
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	execute(t, conn, `SELECT pg_advisory_lock(hashtextextended('jobgen.sweep', 0))`) // no sweep finds anything
	w := start(t, pool, worker.Config{}, handles(spec, nothing), handles(other, nothing))
	enqueue(t, pool, spec, task{})
	drained(t, pool, soon) // the marks are somewhere
	pause(t, pool, "paused")
	eventually(t, soon, "the worker knows", func() bool { return w.log.has("queue is paused") })
	ref := enqueue(t, pool, spec, task{})
	// Until the marks of the other queue are well past this job.
	eventually(t, soon, "time goes by", func() bool {
		enqueue(t, pool, other, task{})
		return one[bool](t, pool, `SELECT clock_timestamp() > run_at + interval '4 s' FROM jobgen.jobs WHERE id = $1`, ref.ID)
	})
	resume(t, pool, "paused")
	drained(t, pool, soon)
}

func TestRunningHandlersOutliveAPauseAndEnqueueingGoesOn(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec, g := kind("t.k"), newGate()
	defer g.release()
	w := start(t, pool, worker.Config{Concurrency: 2}, handles(spec, g.pass))
	enqueueMany(t, pool, spec, numbered(10))
	receive(t, "one runs", g.entered)
	receive(t, "another runs", g.entered)
	pause(t, pool, "q")
	eventually(t, soon, "the worker knows", func() bool { return w.log.has("queue is paused") })
	enqueueMany(t, pool, spec, numbered(10))
	g.release()
	eventually(t, soon, "the two are done", func() bool { return one[int](t, pool, `SELECT count(*) FROM jobgen.jobs`) == 18 })
	if !untouched(t, pool, "q", 18) {
		t.Error("an attempt was spent on what has not started")
	}
	resume(t, pool, "q")
	drained(t, pool, soon)
}

func TestDecisionsAboutAQueueAreTransactionalAndIdempotent(t *testing.T) {
	t.Parallel()
	pool := database(t)
	ctx := context.WithoutCancel(t.Context())
	name := `Caps and "quotes" and 'these'`
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		pause(t, tx, name)
		return errors.New("no")
	})
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.queues`); err == nil || n != 0 {
		t.Errorf("rolled back, and there are %d rows", n)
	}
	state := func() string {
		return one[string](t, pool, `SELECT concat_ws('|', paused_at IS NOT NULL, weight, slots) FROM jobgen.queues WHERE name = $1`, name)
	}
	pause(t, pool, name)
	before := one[time.Time](t, pool, `SELECT paused_at FROM jobgen.queues`)
	pause(t, pool, name)
	if again := one[time.Time](t, pool, `SELECT paused_at FROM jobgen.queues`); !again.Equal(before) {
		t.Errorf("paused at %s, then at %s", before, again)
	}
	for _, c := range []struct {
		what string
		do   func() error
		want string
	}{
		{"weight", func() error { return jobs.SetQueueWeight(ctx, pool, name, 3) }, "t|3"},
		{"slots", func() error { return jobs.SetQueueSlots(ctx, pool, name, 7) }, "t|3|7"},
		{"resume", func() error { return jobs.ResumeQueue(ctx, pool, name) }, "f|3|7"},
		{"resume again", func() error { return jobs.ResumeQueue(ctx, pool, name) }, "f|3|7"},
		{"no weight", func() error { return jobs.SetQueueWeight(ctx, pool, name, 0) }, "f|7"},
		{"no slots", func() error { return jobs.SetQueueSlots(ctx, pool, name, 0) }, "f"},
	} {
		if err := c.do(); err != nil || state() != c.want {
			t.Errorf("%s: %s, %v; want %s", c.what, state(), err, c.want)
		}
	}
}

func TestWhatCannotBeDecidedAboutAQueueIsRefused(t *testing.T) {
	t.Parallel()
	pool := database(t)
	ctx := context.WithoutCancel(t.Context())
	for _, c := range []struct {
		err  error
		want string
	}{
		{jobs.PauseQueue(ctx, pool, ""), "is empty"},
		{jobs.PauseQueue(ctx, pool, strings.Repeat("q", 200)), "has 200 bytes; the limit is 100"},
		{jobs.ResumeQueue(ctx, pool, "a\x00b"), "queue name"},
		{jobs.SetQueueWeight(ctx, pool, "q", -1), "1 to 1000"},
		{jobs.SetQueueWeight(ctx, pool, "q", 1001), "1 to 1000"},
		{jobs.SetQueueSlots(ctx, pool, "q", -1), "pause it"},
		{jobs.SetQueueSlots(ctx, pool, "q", 100_001), "1 to 100000"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v; want something about %q", c.err, c.want)
		}
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.queues`); n != 0 {
		t.Errorf("%d rows", n)
	}
}

func TestContradictoryConfigurationsAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cfg  worker.Config
		want string
	}{
		{worker.Config{Weights: map[string]int{"Q": 2}}, `Weights names the queue "Q", which this worker does not poll`},
		{worker.Config{Weights: map[string]int{"q": 0}}, "1 to 1000"},
		{worker.Config{Weights: map[string]int{"q": 1001}}, "1 to 1000"},
		{worker.Config{QueueSlots: map[string]int{"x": 2}}, "does not poll"},
		{worker.Config{QueueSlots: map[string]int{"q": -1}}, "1 to 100000"},
		{worker.Config{Reserve: []worker.Reserve{{Priority: 0, Slots: 1}}}, "all jobs have at least 0"},
		{worker.Config{Reserve: []worker.Reserve{{Priority: 10, Slots: 1}}}, "1 to 9"},
		{worker.Config{Reserve: []worker.Reserve{{Priority: 5}}}, "at least 1"},
		{worker.Config{Reserve: []worker.Reserve{{Priority: 5, Slots: 1}, {Priority: 5, Slots: 2}}}, "twice"},
		{worker.Config{Concurrency: 10, Reserve: []worker.Reserve{{Priority: 5, Slots: 6}, {Priority: 8, Slots: 4}}}, "no slot would be left"},
		{worker.Config{StuckAfter: time.Millisecond}, "at least 100ms"},
		{worker.Config{StuckAfter: -1}, "at least 100ms"},
		{worker.Config{MaxStuck: -1}, "0 (never)"},
		{worker.Config{MaxStuck: 101}, "Concurrency (100)"},
	} {
		var r worker.Registry
		handles(kind("t.k"), nothing)(&r)
		if _, err := worker.New(nil, &r, c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v; want something about %q", c.cfg, err, c.want)
		}
	}
}

// The share of each queue is counted in starts while all have work.
func TestWeightsShareOutTheStarts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		weights     map[string]int // in the program
		decided     int            // in the database, for the queue "large"
		concurrency int
		want        float64 // share of "large"
	}{
		{"by the program", map[string]int{"large": 3}, 0, 10, 0.75},
		{"by the database", map[string]int{"small": 3}, 9, 100, 0.75},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			large, small := queued("t.large", "large"), queued("t.small", "small")
			const each, until = 4000, 4000
			enqueueMany(t, pool, large, numbered(each))
			enqueueMany(t, pool, small, numbered(each))
			if c.decided > 0 {
				if err := jobs.SetQueueWeight(t.Context(), pool, "large", c.decided); err != nil {
					t.Fatal(err)
				}
			}
			var all, larges atomic.Int32
			count := func(mine *atomic.Int32) func(context.Context, *jobs.Job[task]) error {
				return func(context.Context, *jobs.Job[task]) error {
					if all.Add(1) <= until && mine != nil {
						mine.Add(1)
					}
					return nil
				}
			}
			start(t, pool, worker.Config{Concurrency: c.concurrency, Weights: c.weights}, handles(large, count(&larges)), handles(small, count(nil)))
			drained(t, pool, 2*soon)
			if got := float64(larges.Load()) / until; got < c.want-0.05 || got > c.want+0.05 {
				t.Errorf("of the first %d jobs, %.3f are of the queue with the large weight; want %.2f", until, got, c.want)
			}
		})
	}
}

func TestAQueueUsesNoMoreSlotsThanItHas(t *testing.T) {
	t.Parallel()
	pool := database(t)
	few, many := queued("t.few", "Few"), queued("t.many", "many")
	g := newGate()
	defer g.release()
	var most atomic.Int32
	note := func(n int32) {
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
	}
	var inFew atomic.Int32
	w := start(t, pool, worker.Config{Concurrency: 10, QueueSlots: map[string]int{"Few": 2, "many": 8}}, handles(many, g.pass),
		handles(few, func(ctx context.Context, j *jobs.Job[task]) error {
			note(inFew.Add(1))
			defer inFew.Add(-1)
			return leave(ctx, pool, j.Payload.N, "few") // long enough for others to come in
		}))
	for p := range 3 { // a claim looks into each priority, and may find as many in each
		enqueueMany(t, pool, few, numbered(200), jobs.Priority(p))
	}
	enqueueMany(t, pool, many, numbered(20))
	for range 8 {
		receive(t, "the other queue uses what is left", g.entered)
	}
	eventually(t, soon, "the limited queue empties beside it", func() bool { return one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE queue = 'Few'`) == 0 })
	if n := most.Load(); n < 1 || n > 2 {
		t.Errorf("%d handlers of the queue ran at once", n)
	}
	if s := w.w.Stats(); s.Slots != 10 || s.Running < 8 {
		t.Errorf("%+v", s)
	}

	// The database has the last word, while it runs.
	if err := jobs.SetQueueSlots(t.Context(), pool, "Few", 1); err != nil {
		t.Fatal(err)
	}
	if err := jobs.SetQueueSlots(t.Context(), pool, "many", 3); err != nil {
		t.Fatal(err)
	}
	g.release()
	drained(t, pool, soon)
	// It knows soon, and does not say when.
	eventually(t, soon, "of a hundred jobs no two run at once", func() bool {
		most.Store(0)
		enqueueMany(t, pool, few, numbered(100))
		drained(t, pool, soon)
		return most.Load() == 1
	})
}

func TestBulkWorkLeavesReservedSlotsToUrgentJobs(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec, g := kind("t.k"), newGate()
	defer g.release()
	start(t, pool, worker.Config{Concurrency: 6, Reserve: []worker.Reserve{{Priority: 5, Slots: 2}, {Priority: 8, Slots: 1}}}, handles(spec, g.pass))
	enter := func(n, priority int) {
		t.Helper()
		for range n {
			if got := receive(t, fmt.Sprintf("a job of priority %d starts", priority), g.entered); got.N != priority {
				t.Fatalf("a job of priority %d starts", got.N)
			}
		}
	}
	same := func(priority, n int) []task {
		ts := make([]task, n)
		for i := range ts {
			ts[i].N = priority
		}
		return ts
	}
	enqueueMany(t, pool, spec, same(0, 300))
	enter(3, 0)
	enqueueMany(t, pool, spec, same(5, 3), jobs.Priority(5))
	enter(2, 5)
	enqueueMany(t, pool, spec, same(8, 1), jobs.Priority(8))
	enter(1, 8)
	always(t, time.Second, "nothing more starts, and nothing is claimed ahead", func() bool {
		return g.inside.Load() == 6 && one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE status = 'running'`) == 6
	})
	g.release()
	drained(t, pool, 2*soon)
}

func TestResizeWhileRunning(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec, g := kind("t.k"), newGate()
	defer g.release()
	w := start(t, pool, worker.Config{Concurrency: 2, Reserve: nil}, handles(spec, g.pass))
	for _, n := range []int{0, -1, 100_001} {
		if err := w.w.Resize(n); err == nil || !strings.Contains(err.Error(), "1 to 100000") {
			t.Errorf("Resize(%d): %v", n, err)
		}
	}
	enqueueMany(t, pool, spec, numbered(20))
	receive(t, "one", g.entered)
	receive(t, "two", g.entered)
	if err := w.w.Resize(5); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		receive(t, "the new slots are used at once", g.entered)
	}
	if err := w.w.Resize(1); err != nil {
		t.Fatal(err)
	}
	if s := w.w.Stats(); s.Slots != 1 || s.Running != 5 {
		t.Errorf("handlers that run are to finish: %+v", s)
	}
	g.release()
	drained(t, pool, soon)

	g2 := newGate()
	defer g2.release()
	other := queued("t.other", "q2")
	reserved := start(t, pool, worker.Config{Concurrency: 3, Reserve: []worker.Reserve{{Priority: 5, Slots: 2}}}, handles(other, g2.pass))
	if err := reserved.w.Resize(2); err == nil || !strings.Contains(err.Error(), "Reserve") {
		t.Errorf("Resize to what is reserved: %v", err)
	}
	if err := reserved.w.Resize(4); err != nil {
		t.Error(err)
	}
	enqueueMany(t, pool, other, numbered(20))
	receive(t, "one", g2.entered)
	receive(t, "two", g2.entered)
	always(t, 300*time.Millisecond, "two slots stay free", func() bool { return g2.inside.Load() == 2 })
}

// After a shrink, what ends makes no room until fewer run than there are slots, although jobs wait in the process.
func TestAShrunkWorkerKeepsToItsSlots(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.k")
	entered, leave := make(chan struct{}, 100), make(chan struct{}, 100)
	w := start(t, pool, worker.Config{Concurrency: 4}, handles(spec, func(context.Context, *jobs.Job[task]) error {
		entered <- struct{}{}
		<-leave
		return nil
	}))
	defer close(leave)
	enqueueMany(t, pool, spec, numbered(20))
	for range 4 {
		receive(t, "all slots are used", entered)
	}
	if err := w.w.Resize(1); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		leave <- struct{}{}
	}
	eventually(t, soon, "three have ended", func() bool { return one[int](t, pool, `SELECT count(*) FROM jobgen.jobs`) == 17 })
	always(t, 300*time.Millisecond, "the one that runs is enough", func() bool { return len(entered) == 0 && w.w.Stats().Running == 1 })
	leave <- struct{}{}
	receive(t, "its slot goes to another", entered)
	always(t, 100*time.Millisecond, "one at a time", func() bool { return len(entered) == 0 && w.w.Stats().Running == 1 })
}

// Jobs owned by lock obey like all others.
// Lockers are fewer than slots: beside jobs held by lease half of them, and never more than the pool has connections to spare.
func TestBulkWorkOwnedByLockLeavesLockersToUrgentJobs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		beside      bool // jobs held by lease
		connections int32
		bulk, more  int
	}{
		{"alone", false, 8, 4, 2},
		{"beside jobs held by lease", true, 8, 2, 2},
		{"with few connections", true, 5, 1, 2},
		{"with too few connections", true, 2, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			cfg := pool.Config()
			cfg.MaxConns = c.connections
			few, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(few.Close)
			spec, other, g := kind("t.lock"), kind("t.other"), newGate()
			spec.Lock = true
			defer g.release()
			register := func(r *worker.Registry) {
				worker.HandleTxNone(r, spec, func(ctx context.Context, _ pgx.Tx, j *jobs.Job[task]) error { return g.pass(ctx, j) })
				if c.beside {
					worker.HandleNone(r, other, nothing)
				}
			}
			start(t, few, worker.Config{Concurrency: 8, Reserve: []worker.Reserve{{Priority: 5, Slots: 2}, {Priority: 8, Slots: 1}}}, register)
			enter := func(n, priority int) {
				t.Helper()
				for range n {
					if got := receive(t, fmt.Sprintf("a job of priority %d starts", priority), g.entered); got.N != priority {
						t.Fatalf("a job of priority %d starts", got.N)
					}
				}
			}
			for range 20 {
				enqueue(t, pool, spec, task{N: 0})
			}
			enter(c.bulk, 0)
			if c.more > 0 {
				for range 5 {
					enqueue(t, pool, spec, task{N: 5}, jobs.Priority(5))
				}
				enter(c.more, 5)
				enqueue(t, pool, spec, task{N: 8}, jobs.Priority(8))
				enter(1, 8)
			}
			always(t, time.Second, "nothing more starts", func() bool { return len(g.entered) == 0 })
			g.release()
			drained(t, pool, soon)
		})
	}
}

// Jobs owned by lock and jobs held by lease take turns where there is one slot for both, without waiting for anything but each
// other.
func TestTheOnlySlotGoesRound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		cfg    worker.Config
		resize bool
	}{
		{"one slot", worker.Config{Concurrency: 1}, false},
		{"one slot is left", worker.Config{Concurrency: 8}, true},
		{"all others are reserved", worker.Config{Concurrency: 2, Reserve: []worker.Reserve{{Priority: 5, Slots: 1}}}, false},
		{"one slot, with limits", worker.Config{Concurrency: 1, QueueSlots: map[string]int{"q": 1}, Weights: map[string]int{"locked": 3}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			lock, lease := queued("t.lock", "locked"), kind("t.lease")
			lock.Lock = true
			const each = 250
			register := func(r *worker.Registry) {
				worker.HandleTxNone(r, lock, func(context.Context, pgx.Tx, *jobs.Job[task]) error { return nil })
				worker.HandleNone(r, lease, nothing)
			}
			enqueueMany(t, pool, lock, numbered(each))
			enqueueMany(t, pool, lease, numbered(each))
			w := start(t, pool, c.cfg, register)
			if c.resize {
				if err := w.w.Resize(1); err != nil {
					t.Fatal(err)
				}
			}
			drained(t, pool, soon) // with a second lost at each turn it takes a minute
		})
	}
}

func TestJobsOwnedByLockObeyThePolicyOfTheirQueue(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := queued("t.lock", "locked")
	spec.Lock = true
	var inside, most atomic.Int32
	register := func(r *worker.Registry) {
		worker.HandleTxNone(r, spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) error {
			n := inside.Add(1)
			defer inside.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			return leave(ctx, tx, j.Payload.N, "locked")
		})
	}
	pause(t, pool, "locked")
	enqueueMany(t, pool, spec, numbered(200))
	start(t, pool, worker.Config{Concurrency: 8, QueueSlots: map[string]int{"locked": 2}}, register)
	always(t, time.Second, "nothing of the paused queue starts", func() bool { return most.Load() == 0 && untouched(t, pool, "locked", 200) })
	resume(t, pool, "locked")
	drained(t, pool, soon)
	if n := most.Load(); n < 1 || n > 2 {
		t.Errorf("%d handlers of the queue ran at once", n)
	}
}
