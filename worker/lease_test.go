package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/pgproxy"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// A worker freezes for longer than its lease; another one takes its jobs and finishes them; the first one thaws. Nothing it
// then says of its old holds changes anything, and it goes on working under a new id.
func TestG4StaleHoldChangesNothing(t *testing.T) {
	t.Parallel()
	pool := database(t)
	slow, network := proxied(t, pool)
	spec := answering("t.frozen")
	next := answering("t.next")
	names := []string{"returns", "fails", "runs"}

	thawed := make(chan struct{})
	started := make(chan string, 3)
	causes := make(chan error, 3)
	a := start(t, slow, worker.Config{Lease: time.Second, Queues: []string{"q"}}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
			started <- j.Payload.Do
			switch j.Payload.Do {
			case "returns": // while the worker is frozen
				<-thawed
				return "of A", nil
			case "fails":
				<-thawed
				return "", errors.New("of A")
			}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return "of A", nil
		})
		worker.Handle(r, next, func(context.Context, *jobs.Job[task]) (string, error) { return "of A", nil })
	})
	var refs []jobs.Ref[string]
	for _, do := range names {
		refs = append(refs, enqueue(t, pool, spec, task{Do: do}))
	}
	for range names {
		receive(t, "A's handlers have started", started)
	}
	before := one[uuid.UUID](t, pool, `SELECT id FROM jobgen.workers`)

	network.Freeze()
	start(t, pool, worker.Config{Lease: 2 * time.Second, Reclaim: 100 * time.Millisecond}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(context.Context, *jobs.Job[task]) (string, error) { return "of B", nil })
	})
	for _, ref := range refs {
		if got, err := await(t, pool, ref); got != "of B" || err != nil {
			t.Fatalf("B's result is %q, %v", got, err)
		}
	}
	close(thawed) // two handlers return; their outcomes are under way when the network is back
	network.Heal()
	if cause := receive(t, "A's running handler is cancelled", causes); !errors.Is(cause, jobs.ErrLeaseLost) {
		t.Errorf("the cause is %v", cause)
	}
	eventually(t, soon, "A goes on under a new id", func() bool {
		return one[int](t, pool, `SELECT count(*) FROM jobgen.workers WHERE lost_at IS NULL AND id <> $1`, before) == 2
	})
	if got, err := await(t, pool, enqueue(t, pool, next, task{})); got != "of A" || err != nil {
		t.Errorf("A's next job gives %q, %v", got, err)
	}
	eventually(t, soon, "A has reported its stale outcomes", func() bool { return a.log.has("changes nothing") })
	if err := a.stop(); err != nil {
		t.Error(err)
	}
	for i, ref := range refs {
		if got, err := await(t, pool, ref); got != "of B" || err != nil {
			t.Errorf("the result of the job that %s became %q, %v", names[i], got, err)
		}
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.jobs`); n != 0 {
		t.Errorf("%d jobs are left", n)
	}
	if got := all[string](t, pool, `SELECT outcome FROM jobgen.job_attempt`); fmt.Sprint(got) != "[crashed crashed crashed]" {
		t.Errorf("on record: %v", got)
	}
	if one[bool](t, pool, `SELECT EXISTS (SELECT FROM jobgen.workers WHERE id = $1 AND lost_at IS NULL)`, before) {
		t.Error("the lost worker has been revived")
	}
}

// The same with a process that is really stopped, and which has no way to notice.
func TestG4StoppedProcessComesBackToNothing(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec, next := answering("t.stopped"), answering("t.next")
	c := spawn(t, pool, "sleeper", nil)
	ref := enqueue(t, pool, spec, task{N: 1})
	eventually(t, soon, "the child runs the job", func() bool { return one[int](t, pool, `SELECT count(*) FROM effect WHERE what = 'started'`) == 1 })
	before := one[uuid.UUID](t, pool, `SELECT id FROM jobgen.workers`)
	c.signal(syscall.SIGSTOP)
	b := start(t, pool, worker.Config{Lease: 2 * time.Second, Reclaim: 100 * time.Millisecond}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(context.Context, *jobs.Job[task]) (string, error) { return "of B", nil })
	})
	if got, err := await(t, pool, ref); got != "of B" || err != nil {
		t.Fatalf("B's result is %q, %v", got, err)
	}
	c.signal(syscall.SIGCONT)
	eventually(t, soon, "the child's handler is cancelled", func() bool { return one[int](t, pool, `SELECT count(*) FROM effect WHERE what LIKE 'ended%'`) == 1 })
	if got := one[string](t, pool, `SELECT what FROM effect WHERE what LIKE 'ended%'`); got != "ended: "+jobs.ErrLeaseLost.Error() {
		t.Errorf("the handler %s", got)
	}
	if got, err := await(t, pool, enqueue(t, pool, next, task{})); got != "of A" || err != nil {
		t.Errorf("the child's next job gives %q, %v", got, err)
	}
	if got, _ := await(t, pool, ref); got != "of B" {
		t.Errorf("the result became %q", got)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.workers WHERE lost_at IS NULL AND id <> $1`, before); n != 2 {
		t.Errorf("%d other workers are alive, want B and the child's second life", n)
	}
	_ = b
}

func init() {
	roles["sleeper"] = func(ctx context.Context, pool *pgxpool.Pool, _ []byte) error {
		var r worker.Registry
		worker.Handle(&r, answering("t.stopped"), func(ctx context.Context, j *jobs.Job[task]) (string, error) {
			if err := leave(ctx, pool, j.Payload.N, "started"); err != nil {
				return "", err
			}
			<-ctx.Done()
			return "of A", leave(ctx, pool, j.Payload.N, "ended: "+context.Cause(ctx).Error())
		})
		worker.Handle(&r, answering("t.next"), func(context.Context, *jobs.Job[task]) (string, error) { return "of A", nil })
		w, err := worker.New(pool, &r, worker.Config{Lease: time.Second})
		if err != nil {
			return err
		}
		return w.RunUntilSignal(ctx)
	}
}

// A hold that is taken away (here by hand) is learned of by heartbeat, and the handler is told.
func TestG4HandlerOfALostHoldIsCancelledByHeartbeat(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.robbed")
	causes := make(chan error, 1)
	var runs atomic.Int64
	w := start(t, pool, worker.Config{Lease: 3 * time.Second, Heartbeat: 100 * time.Millisecond}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(ctx context.Context, j *jobs.Job[task]) error {
			if runs.Add(1) > 1 {
				return nil
			}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return errors.New("of the stale one")
		})
	})
	ref := enqueue(t, pool, spec, task{})
	becomes(t, pool, ref.ID, "runs", func(r row) bool { return r.Status == "running" })
	execute(t, pool, `UPDATE jobgen.jobs SET status = 'queued', fence = 0, worker_id = NULL, attempt = attempt - 1, run_at = clock_timestamp() + interval '2 s'`)
	if cause := receive(t, "the handler is cancelled", causes); !errors.Is(cause, jobs.ErrLeaseLost) {
		t.Errorf("the cause is %v", cause)
	}
	drained(t, pool, soon)
	if runs.Load() != 2 {
		t.Errorf("it ran %d times", runs.Load())
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`); n != 0 {
		t.Errorf("the stale failure is on record %d times", n)
	}
	if !w.log.has("taken back from this worker") {
		t.Error("nothing is said of it")
	}
}

// holder registers a handler that notes its start and then runs until the process ends.
func init() {
	roles["holder"] = func(ctx context.Context, pool *pgxpool.Pool, args []byte) error {
		var cfg worker.Config
		if err := json.Unmarshal(args, &cfg); err != nil {
			return err
		}
		var r worker.Registry
		worker.HandleNone(&r, kind("t.held"), func(ctx context.Context, j *jobs.Job[task]) error {
			if err := leave(ctx, pool, j.Payload.N, "in the child"); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		})
		w, err := worker.New(pool, &r, cfg)
		if err != nil {
			return err
		}
		return w.RunUntilSignal(ctx)
	}
}

func TestG7JobsOfAKilledWorkerRunAgainAfterItsLease(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.held")
	const jobsHeld = 4
	c := spawn(t, pool, "holder", map[string]any{"Lease": time.Second, "Concurrency": jobsHeld})
	refs := enqueueMany(t, pool, spec, numbered(jobsHeld), jobs.MaxAttempts(1))
	eventually(t, soon, "the child runs them", func() bool { return one[int](t, pool, `SELECT count(*) FROM effect`) == jobsHeld })
	attempts := make(chan int, jobsHeld)
	start(t, pool, worker.Config{Lease: 2 * time.Second, Reclaim: 50 * time.Millisecond}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(ctx context.Context, j *jobs.Job[task]) error {
			attempts <- j.Attempt
			return leave(ctx, pool, j.Payload.N, "here")
		})
	})
	// While the child lives, nobody takes its jobs: several leases long.
	always(t, 3*time.Second, "the child keeps its jobs", func() bool { return one[int](t, pool, `SELECT count(*) FROM effect`) == jobsHeld })
	c.kill()
	lease := one[time.Time](t, pool, `SELECT lease_until FROM jobgen.workers WHERE pid = $1`, c.cmd.Process.Pid)
	drained(t, pool, soon)
	first := one[time.Time](t, pool, `SELECT min(at) FROM effect WHERE what = 'here'`)
	last := one[time.Time](t, pool, `SELECT max(at) FROM effect WHERE what = 'here'`)
	if first.Before(lease) {
		t.Errorf("a job ran again %s before the lease was over", lease.Sub(first))
	}
	if late := last.Sub(lease); late > 15*time.Second {
		t.Errorf("the last job ran again %s after the lease was over", late)
	}
	for range refs {
		if n := receive(t, "attempts", attempts); n != 1 {
			t.Errorf("the crash used up an attempt: the handler saw attempt %d", n)
		}
	}
	if n := one[int](t, pool, `SELECT sum(reclaimed)::int FROM jobgen.samples`); n != jobsHeld {
		t.Errorf("samples count %d reclaimed jobs, want %d", n, jobsHeld)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt WHERE outcome = 'crashed' AND attempt = 1`); n != jobsHeld {
		t.Errorf("%d crashes are on record", n)
	}
}

func TestG7LongJobRunsOnceForAsLongAsItLikes(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.long")
	end := make(chan struct{})
	var runs atomic.Int64
	for range 3 {
		start(t, pool, worker.Config{Lease: 1500 * time.Millisecond, Reclaim: 50 * time.Millisecond}, func(r *worker.Registry) {
			worker.HandleNone(r, spec, func(ctx context.Context, _ *jobs.Job[task]) error {
				runs.Add(1)
				select {
				case <-end:
				case <-ctx.Done():
					t.Errorf("the handler was cancelled: %v", context.Cause(ctx))
				}
				return nil
			})
		})
	}
	ref := enqueue(t, pool, spec, task{})
	eventually(t, soon, "it runs", func() bool { return runs.Load() == 1 })
	fence := look(t, pool, ref.ID).Fence
	always(t, 6*time.Second, "it is held by the worker that claimed it", func() bool { return look(t, pool, ref.ID).Fence == fence && runs.Load() == 1 })
	close(end)
	drained(t, pool, soon)
	if runs.Load() != 1 {
		t.Errorf("it ran %d times", runs.Load())
	}
}

func TestG7FleetKeepsItsJobsThroughAnOutage(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec, after := kind("t.kept"), kind("t.after")
	const lease, total = 1500 * time.Millisecond, 12
	end := make(chan struct{})
	var runs [total]atomic.Int64
	for range 3 {
		start(t, pool, worker.Config{Lease: lease, Reclaim: 50 * time.Millisecond, Concurrency: 4}, func(r *worker.Registry) {
			worker.HandleNone(r, spec, func(ctx context.Context, j *jobs.Job[task]) error {
				runs[j.Payload.N].Add(1)
				if j.Payload.N%2 == 0 {
					return nil // during the outage, or right away
				}
				select {
				case <-end:
				case <-ctx.Done():
					t.Errorf("a handler was cancelled: %v", context.Cause(ctx))
				}
				return nil
			})
			worker.HandleNone(r, after, func(context.Context, *jobs.Job[task]) error { return nil })
		})
	}
	eventually(t, soon, "all three workers are there", func() bool {
		return one[int](t, pool, `SELECT count(*) FROM jobgen.workers`) == 3
	})
	enqueueMany(t, pool, spec, numbered(total))
	eventually(t, soon, "all run", func() bool {
		n := 0
		for i := range runs {
			n += int(runs[i].Load())
		}
		return n == total
	})
	restore := refuseAll(t, pool)
	outage := time.NewTimer(4 * lease)
	defer outage.Stop()
	<-outage.C
	restore()
	eventually(t, soon, "all three workers have renewed their leases", func() bool {
		return one[int](t, pool, `SELECT count(*) FROM jobgen.workers WHERE lost_at IS NULL AND lease_until > now()`) == 3
	})
	enqueueMany(t, pool, after, numbered(20))
	always(t, 2*lease, "the fleet keeps its jobs", func() bool {
		return one[int](t, pool, `SELECT count(*) FROM jobgen.workers WHERE lost_at IS NOT NULL`) == 0
	})
	close(end)
	drained(t, pool, soon)
	for i := range runs {
		if n := runs[i].Load(); n != 1 {
			t.Errorf("job %d ran %d times", i, n)
		}
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`); n != 0 {
		t.Errorf("%d attempts are on record", n)
	}
}

// A claim can commit after its worker was judged: its jobs go back all the same.
func TestG7ClaimThatCommitsAfterItsWorkerWasLostIsTakenBack(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.inflight")
	ref := enqueue(t, pool, spec, task{N: 1})
	dead := uuid.New()
	execute(t, pool, `INSERT INTO jobgen.workers (id, host, pid, build, queues, kinds, lease_until)
		VALUES ($1, 'h', 1, 'b', '{q}', '{t.inflight}', clock_timestamp() + interval '10 s')`, dead)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	got, err := gen.New(tx).Claim(t.Context(), gen.ClaimParams{
		WorkerID: dead, Queues: []string{"q"}, Priorities: []int16{0}, MarkAts: []time.Time{{}}, MarkIds: []int64{0},
		Kinds: []string{"t.inflight"}, Versions: []int32{1}, N: 10,
	})
	if err != nil || len(got) != 1 {
		t.Fatalf("claimed %d, %v", len(got), err)
	}
	execute(t, pool, `UPDATE jobgen.workers SET lease_until = clock_timestamp() - interval '1 s' WHERE id = $1`, dead)
	start(t, pool, worker.Config{Lease: 500 * time.Millisecond, Reclaim: 50 * time.Millisecond}, stampers(pool, spec))
	eventually(t, soon, "the dead worker is marked lost", func() bool {
		return one[bool](t, pool, `SELECT lost_at IS NOT NULL FROM jobgen.workers WHERE id = $1`, dead)
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "its job ran", func() bool { return ran(t, pool, 1) })
	drained(t, pool, soon)
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 1 {
		t.Errorf("it ran %d times (job %d)", n, ref.ID)
	}
}

// A claim under the id of a worker that is lost, or whose lease has run out, gets nothing.
func TestG4LostWorkerClaimsNothing(t *testing.T) {
	t.Parallel()
	pool := database(t)
	enqueue(t, pool, kind("t.k"), task{})
	for _, state := range []string{
		`clock_timestamp() - interval '1 s', NULL`,
		`clock_timestamp() + interval '1 h', clock_timestamp()`,
	} {
		id := uuid.New()
		execute(t, pool, `INSERT INTO jobgen.workers (id, host, pid, build, queues, kinds, lease_until, lost_at) VALUES ($1, 'h', 1, 'b', '{q}', '{t.k}', `+state+`)`, id)
		got, err := gen.New(pool).Claim(t.Context(), gen.ClaimParams{
			WorkerID: id, Queues: []string{"q"}, Priorities: []int16{0}, MarkAts: []time.Time{{}}, MarkIds: []int64{0},
			Kinds: []string{"t.k"}, Versions: []int32{1}, N: 10,
		})
		if err != nil || len(got) != 0 {
			t.Errorf("with (lease_until, lost_at) = (%s) it claims %d, %v", state, len(got), err)
		}
	}
}

// The connection breaks after a claim has committed and before its answer arrives: the process does not know what it
// holds, and its heartbeats keep it.
func TestG7ClaimWhoseAnswerIsLostIsGivenBackAndRuns(t *testing.T) {
	t.Parallel()
	pool := database(t)
	slow, network := proxied(t, pool)
	spec := kind("t.unseen")
	w := start(t, slow, worker.Config{}, stampers(pool, spec))
	eventually(t, soon, "the worker is asleep", func() bool { return one[int](t, pool, `SELECT count(*) FROM jobgen.wake`) == 1 })
	held := network.On(statement("Claim"), 1, pgproxy.Hold)
	receive(t, "a claim is on its way", held.Done())
	refs := enqueueMany(t, pool, spec, numbered(3))
	receive(t, "it has claimed, and its answer is lost", held.ReleaseInto(pgproxy.CutDuring).Done())
	for n := range refs {
		eventually(t, soon, "the job ran", func() bool { return ran(t, pool, n) })
	}
	drained(t, pool, soon)
	if !w.log.has("whose answer was lost") {
		t.Error("nothing is said of it")
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`); n != 0 {
		t.Errorf("%d attempts are on record: no handler had started", n)
	}
	eventually(t, soon, "the claim is forgotten", func() bool { return one[int](t, pool, `SELECT count(*) FROM jobgen.claims`) == 0 })
}

// The database goes away with the answer and stays away for longer than the claim could have taken.
func TestG7ClaimWhoseAnswerIsLostInALongOutageIsGivenBack(t *testing.T) {
	t.Parallel()
	pool := database(t)
	me := uuid.New()
	var reg worker.Registry
	stampers(pool, kind("t.unseen"))(&reg)
	b, err := worker.NewBench(t.Context(), pool, &reg, me)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	enqueueMany(t, pool, kind("t.unseen"), numbered(2))
	setRunning(t, pool, me, 9)
	b.Hold("t.unseen", 1, 9, true) // this one is known
	b.AnswerLost(t.Context(), time.Hour)
	if r := look(t, pool, 1); r.Status != "running" {
		t.Errorf("the job that runs is %s", r)
	}
	if r := look(t, pool, 2); r.Status != "queued" || r.Attempt != 0 {
		t.Errorf("the job that nobody runs is %s", r)
	}
}

func TestG10AnyNumberOfWorkersDoUpkeepAtOnce(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.orphan")
	const lost, each = 30, 20
	refs := enqueueMany(t, pool, spec, numbered(lost*each))
	// Thirty workers that have died with twenty jobs each.
	execute(t, pool, `
		WITH dead AS (
		  INSERT INTO jobgen.workers (id, host, pid, build, queues, kinds, lease_until)
		  SELECT gen_random_uuid(), 'h', n, 'b', '{q}', '{t.orphan}', clock_timestamp() FROM generate_series(1, $1) n
		  RETURNING id, pid
		)
		UPDATE jobgen.jobs j SET status = 'running', worker_id = dead.id, fence = nextval('jobgen.fence'), attempt = 1, claimed_at = clock_timestamp()
		FROM dead WHERE j.id % $1 = dead.pid - 1`, lost)
	noteClaims(t, pool)
	var logs []*running
	for range 3 {
		logs = append(logs, start(t, pool, worker.Config{Lease: 3 * time.Second, Reclaim: time.Millisecond}, stampers(pool, spec)))
	}
	drained(t, pool, 2*soon)
	if n := one[int](t, pool, `SELECT count(*) FROM (SELECT job_id FROM jobgen.job_attempt WHERE outcome = 'crashed' GROUP BY 1 HAVING count(*) = 1) x`); n != len(refs) {
		t.Errorf("%d of %d jobs were reclaimed exactly once", n, len(refs))
	}
	if n := one[int](t, pool, `SELECT count(DISTINCT n) FROM effect`); n != len(refs) {
		t.Errorf("%d of %d jobs ran", n, len(refs))
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != len(refs) {
		t.Errorf("they ran %d times", n)
	}
	if n := one[int](t, pool, `SELECT sum(reclaimed)::int FROM jobgen.samples`); n != len(refs) {
		t.Errorf("samples count %d", n)
	}
	for _, w := range logs {
		if w.log.has("deadlock") || w.log.has("step=reclaim") {
			t.Errorf("upkeep got in its own way:\n%s", w.log)
		}
	}
}

// Running jobs whose worker is on no record at all cannot be: the CHECK refuses them without one, and with an unknown one
// they are taken back.
func TestG2RunningJobsOfAnUnknownWorkerAreTakenBack(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.stray")
	enqueue(t, pool, spec, task{N: 1})
	if _, err := pool.Exec(t.Context(), `UPDATE jobgen.jobs SET status = 'running', fence = 1`); err == nil {
		t.Error("a running job without a worker was accepted")
	}
	setRunning(t, pool, uuid.New(), 9)
	got, err := gen.New(pool).Reclaim(t.Context(), gen.ReclaimParams{N: 10, MaxCrashes: 5, BackoffUs: 1000, Orphans: true})
	if err != nil || len(got) != 1 {
		t.Errorf("reclaimed %d, %v", len(got), err)
	}
	start(t, pool, worker.Config{}, stampers(pool, spec))
	drained(t, pool, soon)
}

// All connections die without a word, as behind a firewall that has forgotten them. Nobody restarts the worker.
func TestG7WorkerOutlivesConnectionsThatDieSilently(t *testing.T) {
	t.Parallel()
	pool := database(t)
	slow, network := proxied(t, pool)
	slow, tap := tapped(t, slow)
	spec := kind("t.stranded")
	start(t, slow, worker.Config{Lease: 2 * time.Second, Reclaim: 100 * time.Millisecond}, stampers(pool, spec))
	enqueue(t, pool, spec, task{N: 1})
	eventually(t, soon, "the job ran", func() bool { return ran(t, pool, 1) })
	drained(t, pool, soon) // its outcome is not on its way
	// It happens to the claim loop in the middle of its idle round.
	stranded := make(chan struct{})
	var once sync.Once
	tap.before("NextDue", func(ctx context.Context) context.Context {
		once.Do(func() { network.Strand(); close(stranded) })
		return ctx
	})
	receive(t, "the connections have died", stranded)
	enqueue(t, pool, spec, task{N: 2})
	// A statement is given half a minute.
	eventually(t, 4*soon, "the worker works again", func() bool { return ran(t, pool, 2) })
}

// The connection that the heartbeat uses dies without a word: there is time for another one before the lease is over.
func TestG7SilentlyDeadConnectionLosesNoLease(t *testing.T) {
	t.Parallel()
	pool := database(t)
	slow, network := proxied(t, pool)
	slow, tap := tapped(t, slow)
	spec := kind("t.kept")
	end := make(chan struct{})
	var runs atomic.Int64
	register := func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(ctx context.Context, _ *jobs.Job[task]) error {
			runs.Add(1)
			select {
			case <-end:
			case <-ctx.Done():
				t.Errorf("the handler was cancelled: %v", context.Cause(ctx))
			}
			return nil
		})
	}
	start(t, slow, worker.Config{Lease: 6 * time.Second}, register)
	enqueue(t, pool, spec, task{})
	eventually(t, soon, "it runs", func() bool { return runs.Load() == 1 })
	start(t, pool, worker.Config{Lease: time.Second, Reclaim: 50 * time.Millisecond}, register)
	stranded := make(chan struct{})
	var once sync.Once
	tap.before("Heartbeat", func(ctx context.Context) context.Context {
		once.Do(func() { network.Strand(); close(stranded) })
		return ctx
	})
	receive(t, "the connections have died", stranded)
	always(t, 8*time.Second, "the worker keeps its job", func() bool {
		return runs.Load() == 1 && one[int](t, pool, `SELECT count(*) FROM jobgen.workers WHERE lost_at IS NOT NULL`) == 0
	})
	close(end)
	drained(t, pool, 2*soon)
	if runs.Load() != 1 {
		t.Errorf("it ran %d times", runs.Load())
	}
}

// A worker whose heartbeats fail keeps trying, whatever the reason, and works on without a restart.
func TestWorkerOutlivesAReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.readonly")
	w := start(t, pool, worker.Config{Lease: time.Second}, stampers(pool, spec))
	enqueue(t, pool, spec, task{N: 1})
	drained(t, pool, soon)
	restore := alterDatabase(t, pool, "SET default_transaction_read_only = on", "RESET default_transaction_read_only")
	eventually(t, soon, "the worker says so", func() bool { return w.log.has("does not do what is asked") })
	restore()
	eventually(t, soon, "a job can be enqueued", func() bool {
		_, err := jobs.Enqueue(t.Context(), pool, spec, task{N: 2})
		return err == nil
	})
	eventually(t, soon, "it ran", func() bool { return ran(t, pool, 2) })
	eventually(t, soon, "the worker says so", func() bool { return w.log.has("contact with the database is back") })
}
