package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// The statements that end jobs match ids and fences apart, which is only right if no stale pair is in a flush: with (1, 5)
// beside a live (2, 9), job 1 held at 9 would be finished by an outcome that is not its own.
func TestG4StaleOutcomeInAFlushDoesNotEndTheLiveHold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		put     error
		release bool
		want    string // what becomes of job 2
		spec    func(*worker.Registry)
	}{
		{name: "succeed", want: "", spec: func(r *worker.Registry) {
			worker.HandleNone(r, kind("t.fenced"), func(context.Context, *jobs.Job[task]) error { return nil })
		}},
		{name: "succeed with a record", want: "", spec: func(r *worker.Registry) {
			worker.Handle(r, answering("t.fenced"), func(context.Context, *jobs.Job[task]) (string, error) { return "", nil })
		}},
		{name: "fail", put: errors.New("no"), want: "queued", spec: func(r *worker.Registry) {
			worker.HandleNone(r, kind("t.fenced"), func(context.Context, *jobs.Job[task]) error { return nil })
		}},
		{name: "release", release: true, want: "queued", spec: func(r *worker.Registry) {
			worker.HandleNone(r, kind("t.fenced"), func(context.Context, *jobs.Job[task]) error { return nil })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			me := uuid.New()
			var reg worker.Registry
			c.spec(&reg)
			b, err := worker.NewBench(t.Context(), pool, &reg, me)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			enqueueMany(t, pool, kind("t.fenced"), numbered(2))
			setRunning(t, pool, me, 9)
			b.Hold("t.fenced", 1, 9, true)
			b.Put(b.Hold("t.fenced", 1, 5, false), c.put, c.release)
			b.Put(b.Hold("t.fenced", 2, 9, true), c.put, c.release)
			b.Flush(t.Context())
			if r := look(t, pool, 1); r.Status != "running" || r.Fence != 9 {
				t.Errorf("job 1, which is held at 9, is now %s", r)
			}
			if r := look(t, pool, 2); r.Status != c.want {
				t.Errorf("job 2 is %s, want %q", r, c.want)
			}
			if n := b.Holds(); n != 1 {
				t.Errorf("%d holds are in the ledger, want that of job 1", n)
			}
		})
	}
}

func TestG6DuplicateKeyGivesTheRecordedResultAndDoesNotRun(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := keyed("t.keyed")
	var runs atomic.Int64
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(_ context.Context, j *jobs.Job[task]) (string, error) {
			runs.Add(1)
			return "result of " + j.Payload.Do, nil
		})
	})
	first := enqueue(t, pool, spec, task{N: 1, Do: "first"})
	for _, do := range []string{"second", "third"} {
		if got, err := await(t, pool, first); got != "result of first" || err != nil {
			t.Fatalf("got %q, %v", got, err)
		}
		again := enqueue(t, pool, spec, task{N: 1, Do: do})
		if !again.Existing {
			t.Errorf("the %s enqueue of the key made a job", do)
		}
		if got, err := await(t, pool, again); got != "result of first" || err != nil {
			t.Errorf("the %s one's result is %q, %v", do, got, err)
		}
	}
	if runs.Load() != 1 {
		t.Errorf("it ran %d times", runs.Load())
	}
}

func TestG6ManyEnqueuersAndTwoWorkersRunAKeyOnce(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := keyed("t.keyed")
	const keys, callers = 40, 4
	var runs [keys]atomic.Int64
	for range 2 {
		start(t, pool, worker.Config{Concurrency: 8}, func(r *worker.Registry) {
			worker.Handle(r, spec, func(_ context.Context, j *jobs.Job[task]) (string, error) {
				runs[j.Payload.N].Add(1)
				return fmt.Sprint(j.Payload.N), nil
			})
		})
	}
	done := make(chan error, callers)
	for range callers {
		go func() {
			var err error
			for n := range keys {
				ref, e := jobs.Enqueue(t.Context(), pool, spec, task{N: n})
				if e == nil {
					var got string
					if got, e = ref.Await(t.Context(), pool); e == nil && got != fmt.Sprint(n) {
						e = fmt.Errorf("key %d gives %q", n, got)
					}
				}
				err = errors.Join(err, e)
			}
			done <- err
		}()
	}
	for range callers {
		if err := receive(t, "the callers are done", done); err != nil {
			t.Error(err)
		}
	}
	for n := range runs {
		if got := runs[n].Load(); got != 1 {
			t.Errorf("key %d ran %d times", n, got)
		}
	}
}

func TestG6ClaimedRowWhoseKeyIsRecordedEndsWithoutRunning(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := keyed("t.keyed")
	var runs atomic.Int64
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(context.Context, *jobs.Job[task]) (string, error) { runs.Add(1); return "once", nil })
	})
	ref := enqueue(t, pool, spec, task{N: 1})
	if got, err := await(t, pool, ref); got != "once" || err != nil {
		t.Fatalf("got %q, %v", got, err)
	}
	// Further rows with the key, as an operator's copy or a restored backup brings them.
	execute(t, pool, `INSERT INTO jobgen.jobs (queue, kind, key, payload) SELECT 'q', kind, key, '{"N": 1}' FROM jobgen.job_result, generate_series(1, 50)`)
	drained(t, pool, soon)
	if runs.Load() != 1 {
		t.Errorf("it ran %d times", runs.Load())
	}
	if got, err := await(t, pool, ref); got != "once" || err != nil {
		t.Errorf("the result became %q, %v", got, err)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`); n != 0 {
		t.Errorf("%d attempts are on record", n)
	}
}

// Two rows of one key run at the same time in two workers: the effect of the one that is not the key's job is rolled back.
func TestG6TwoWorkersWithOneKeyTakeEffectOnce(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := keyed("t.keyed")
	both := make(chan struct{}, 2)
	release := make(chan struct{})
	for range 2 {
		start(t, pool, worker.Config{Concurrency: 1}, func(r *worker.Registry) {
			worker.HandleTx(r, spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
				if err := leave(ctx, tx, j.Payload.N, "done"); err != nil {
					return "", err
				}
				both <- struct{}{}
				<-release
				return "ok", nil
			})
		})
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	ref := enqueue(t, tx, spec, task{N: 1})
	execute(t, tx, `INSERT INTO jobgen.jobs (queue, kind, key, payload) SELECT queue, kind, key, payload FROM jobgen.jobs`)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	receive(t, "one handler runs", both)
	receive(t, "the other handler runs", both)
	close(release)
	drained(t, pool, soon)
	if got, err := await(t, pool, ref); got != "ok" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 1 {
		t.Errorf("it took effect %d times", n)
	}
}

type silent struct{}

func (silent) Error() string { return "" }

// nilError is what a typed nil pointer returned as an error is: asking it for its text panics.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

func TestG9BadRowHarmsOnlyItself(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := &jobs.Spec[task, json.RawMessage]{Kind: "t.result", Queue: "q", MaxAttempts: 1}
	plain := kind("t.plain")
	plain.MaxAttempts = 1
	register := func(r *worker.Registry) {
		worker.Handle(r, spec, func(_ context.Context, j *jobs.Job[task]) (json.RawMessage, error) {
			switch j.Payload.Do {
			case "nul":
				return json.RawMessage(`"a\u0000b"`), nil
			case "surrogate": // JSON by Go's rules, not by Postgres's
				return json.RawMessage(`"\ud800"`), nil
			case "number":
				return json.RawMessage(`1e999999`), nil
			case "syntax":
				return json.RawMessage(`{`), nil
			case "big":
				return json.RawMessage(`"` + strings.Repeat("x", jobs.MaxPayload) + `"`), nil
			}
			return json.RawMessage(fmt.Sprint(j.Payload.N)), nil
		})
		worker.HandleNone(r, plain, func(_ context.Context, j *jobs.Job[task]) error {
			switch j.Payload.Do {
			case "nul":
				return errors.New("a\x00b")
			case "utf8":
				return errors.New("a\xffb")
			case "long":
				return errors.New("begin" + strings.Repeat("x", 1<<20) + "end")
			case "empty":
				return silent{}
			case "nilerror":
				var e *nilError
				return e
			case "panics":
				panic(silent{})
			}
			return nil
		})
	}
	// What is good and what is bad comes in one batch.
	var good []task
	for n := range 300 {
		good = append(good, task{N: n})
	}
	bad := map[int64]string{} // id → what its error must contain
	add := func(id int64, want string) { bad[id] = want }
	enqueueMany(t, pool, spec, good[:150])
	enqueueMany(t, pool, plain, good[:150])
	add(enqueue(t, pool, spec, task{Do: "nul"}).ID, "result cannot be stored")
	add(enqueue(t, pool, spec, task{Do: "surrogate"}).ID, "")
	add(enqueue(t, pool, spec, task{Do: "number"}).ID, "refused to store its outcome")
	add(enqueue(t, pool, spec, task{Do: "syntax"}).ID, "result cannot be stored")
	add(enqueue(t, pool, spec, task{Do: "big"}).ID, "the limit is")
	add(enqueue(t, pool, plain, task{Do: "nul"}).ID, "a\ufffdb")
	add(enqueue(t, pool, plain, task{Do: "utf8"}).ID, "a\ufffdb")
	add(enqueue(t, pool, plain, task{Do: "long"}).ID, "xend")
	add(enqueue(t, pool, plain, task{Do: "empty"}).ID, "an error without a text, of type worker_test.silent")
	add(enqueue(t, pool, plain, task{Do: "nilerror"}).ID, "nil pointer")
	add(enqueue(t, pool, plain, task{Do: "panics"}).ID, "panic: ")
	for _, payload := range []string{`[]`, `{"N": "text"}`, `null`, `{"N": 1e30}`} {
		id := one[int64](t, pool, `INSERT INTO jobgen.jobs (queue, kind, payload, max_attempts) VALUES ('q', 't.plain', $1::text::jsonb, 1) RETURNING id`, payload)
		if payload != `null` { // which decodes, into nothing
			add(id, "payload does not decode into worker_test.task")
		}
	}
	add(one[int64](t, pool, `INSERT INTO jobgen.jobs (queue, kind, payload, headers, max_attempts) VALUES ('q', 't.plain', '{}', '[1]', 1) RETURNING id`), "headers do not decode")
	enqueueMany(t, pool, spec, good[150:])
	enqueueMany(t, pool, plain, good[150:])

	start(t, pool, worker.Config{}, register)
	drained(t, pool, soon)
	for id, want := range bad {
		r := look(t, pool, id)
		if r.Status != "dead" || !strings.Contains(r.LastError, want) {
			t.Errorf("job %d is %.300s, want it dead of %q", id, r, want)
		}
		if len(r.LastError) > 9000 {
			t.Errorf("job %d has %d bytes of error", id, len(r.LastError))
		}
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.jobs`); n != len(bad) {
		t.Errorf("%d jobs are left, want the %d bad ones", n, len(bad))
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_result WHERE finished_at IS NOT NULL`); n != 300 {
		t.Errorf("%d of 300 good results are on record", n)
	}
}

// A constraint or trigger of the user's on our tables refuses one row; the rest of its batch is stored.
func TestG9RefusingTriggerHarmsOnlyItsRow(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := answering("t.trigger")
	execute(t, pool, `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		  IF NEW.result = '"n77"' THEN RAISE EXCEPTION 'not seventy-seven'; END IF;
		  RETURN NEW;
		END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON jobgen.job_result FOR EACH ROW EXECUTE FUNCTION refuse();
		ALTER TABLE jobgen.job_result ADD CHECK (result <> '"n33"')`)
	refs := enqueueMany(t, pool, spec, numbered(120))
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(_ context.Context, j *jobs.Job[task]) (string, error) {
			return fmt.Sprintf("n%d", j.Payload.N), nil
		})
	})
	drained(t, pool, soon)
	for n, ref := range refs {
		got, err := await(t, pool, ref)
		var dead *jobs.DeadError
		switch {
		case n == 33 && errors.As(err, &dead) && strings.Contains(dead.LastError, "violates check constraint"):
		case n == 77 && errors.As(err, &dead) && strings.Contains(dead.LastError, "not seventy-seven"):
		case n != 33 && n != 77 && err == nil && got == fmt.Sprintf("n%d", n):
		default:
			t.Errorf("job %d: %q, %v", n, got, err)
		}
	}
}

// The database refuses even the failure: the job stays with this worker and goes back when it stops; others are not held up.
func TestG9JobOfWhichNothingCanBeStoredHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.nothing")
	execute(t, pool, `ALTER TABLE jobgen.job_attempt ADD CONSTRAINT not_14 CHECK (job_id <> 14)`)
	refs := enqueueMany(t, pool, spec, numbered(20), jobs.MaxAttempts(1))
	w := start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(_ context.Context, j *jobs.Job[task]) error {
			return jobs.Permanent(fmt.Errorf("number %d", j.Payload.N))
		})
	})
	eventually(t, soon, "the others are dead", func() bool {
		return one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE status = 'dead'`) >= 19
	})
	eventually(t, soon, "the worker says so", func() bool { return w.log.has("takes no outcome of this job") })
	if r := look(t, pool, refs[13].ID); r.Status != "running" {
		t.Errorf("job 14 is %s", r)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	execute(t, pool, `ALTER TABLE jobgen.job_attempt DROP CONSTRAINT not_14`)
	start(t, pool, worker.Config{Lease: time.Second, Reclaim: 100 * time.Millisecond}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(context.Context, *jobs.Job[task]) error { return nil })
	})
	drained(t, pool, soon)
	if r := look(t, pool, refs[13].ID); r.Status != "" {
		t.Errorf("job 14 is %s", r)
	}
}

// A row that another session has locked delays its own job only: success, failure, and the record of a result.
func TestG9LockedRowHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	pool := database(t)
	plain, bad, recorded := kind("t.plain"), kind("t.bad"), answering("t.recorded")
	bad.MaxAttempts = 1
	var locked []int64
	for range 3 {
		for i, refs := range [][]int64{ids(enqueueMany(t, pool, plain, numbered(20))), ids(enqueueMany(t, pool, bad, numbered(20))), ids(enqueueMany(t, pool, recorded, numbered(20)))} {
			locked = append(locked, refs[i])
		}
	}
	begun := make(chan struct{}, 1000)
	end := make(chan struct{})
	do := func() { begun <- struct{}{}; <-end }
	start(t, pool, worker.Config{Concurrency: 200}, func(r *worker.Registry) {
		worker.HandleNone(r, plain, func(context.Context, *jobs.Job[task]) error { do(); return nil })
		worker.HandleNone(r, bad, func(context.Context, *jobs.Job[task]) error { do(); return errors.New("bad") })
		worker.Handle(r, recorded, func(context.Context, *jobs.Job[task]) (string, error) { do(); return "done", nil })
	})
	eventually(t, soon, "all handlers run", func() bool { return len(begun) == 180 })
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	execute(t, tx, `SELECT FROM jobgen.jobs WHERE id = ANY($1) FOR UPDATE`, locked)
	close(end)
	eventually(t, soon, "the others have ended", func() bool {
		return one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE status = 'running'`) == len(locked)
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	drained(t, pool, soon)
	if dead := one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE status = 'dead' AND attempt = 1`); dead != 60 {
		t.Errorf("%d of 60 bad jobs are dead", dead)
	}
	if done := one[int](t, pool, `SELECT count(*) FROM jobgen.job_result WHERE finished_at IS NOT NULL`); done != 60 {
		t.Errorf("%d of 60 results are on record", done)
	}
}

// A row that the database cannot write, as with a damaged page, delays its own job only.
func TestG9DamagedRowHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.plain")
	enqueueMany(t, pool, spec, numbered(60))
	execute(t, pool, `CREATE FUNCTION damage() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF OLD.id % 20 = 0 THEN RAISE 'invalid page in block 7' USING ERRCODE = 'data_corrupted'; END IF;
			RETURN OLD;
		END $$`)
	execute(t, pool, `CREATE TRIGGER damage BEFORE DELETE ON jobgen.jobs FOR EACH ROW EXECUTE FUNCTION damage()`)
	w := start(t, pool, worker.Config{}, handles(spec, func(context.Context, *jobs.Job[task]) error { return nil }))
	eventually(t, soon, "the others have ended", func() bool { return one[int](t, pool, `SELECT count(*) FROM jobgen.jobs`) == 3 })
	eventually(t, soon, "the log names one of them", func() bool { return w.log.has("damaged data") })
	execute(t, pool, `DROP TRIGGER damage ON jobgen.jobs`)
	drained(t, pool, soon)
}

func ids[R any](refs []jobs.Ref[R]) (ids []int64) {
	for _, r := range refs {
		ids = append(ids, r.ID)
	}
	return ids
}

// The ids of jobs come from a sequence. If somebody sets that back, a job whose id has left a record before fails with the
// reason, and only that one.
func TestG9AnIdThatIsUsedAgainHarmsOnlyItsJob(t *testing.T) {
	t.Parallel()
	pool := database(t)
	s := answering("t.again")
	refs := enqueueMany(t, pool, s, numbered(20))
	execute(t, pool, `INSERT INTO jobgen.job_result (kind, key, job_id, result, finished_at, expires_at)
		VALUES ('t.again', 'job:' || $1::bigint, $1, '"old"', now(), now() + interval '1 hour')`, refs[7].ID)
	start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, s, func(context.Context, *jobs.Job[task]) (string, error) { return "new", nil })
	})
	for i, ref := range refs {
		if i == 7 {
			becomes(t, pool, ref.ID, "is dead with the reason", func(r row) bool {
				return r.Status == "dead" && strings.Contains(r.LastError, "job_result_pkey")
			})
		} else if got, err := await(t, pool, ref); got != "new" || err != nil {
			t.Errorf("job %d: %q, %v", i, got, err)
		}
	}
}
