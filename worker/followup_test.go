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

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// forms are the forms of a handler, each registered for a kind that calls body.
var forms = map[string]func(name string, body func(ctx context.Context, j *jobs.Job[task]) error) (*jobs.Spec[task, string], func(*worker.Registry)){
	"without a result": func(name string, body func(ctx context.Context, j *jobs.Job[task]) error) (*jobs.Spec[task, string], func(*worker.Registry)) {
		s := kind(name)
		return answering(name), func(r *worker.Registry) { worker.HandleNone(r, s, body) }
	},
	"with a result": func(name string, body func(ctx context.Context, j *jobs.Job[task]) error) (*jobs.Spec[task, string], func(*worker.Registry)) {
		s := answering(name)
		return s, func(r *worker.Registry) {
			worker.Handle(r, s, func(ctx context.Context, j *jobs.Job[task]) (string, error) { return "done", body(ctx, j) })
		}
	},
	"transactional": func(name string, body func(ctx context.Context, j *jobs.Job[task]) error) (*jobs.Spec[task, string], func(*worker.Registry)) {
		s := kind(name)
		return answering(name), func(r *worker.Registry) {
			worker.HandleTxNone(r, s, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) error { return body(ctx, j) })
		}
	},
	"transactional with a result": func(name string, body func(ctx context.Context, j *jobs.Job[task]) error) (*jobs.Spec[task, string], func(*worker.Registry)) {
		s := answering(name)
		return s, func(r *worker.Registry) {
			worker.HandleTx(r, s, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) { return "done", body(ctx, j) })
		}
	},
	"owned by lock": func(name string, body func(ctx context.Context, j *jobs.Job[task]) error) (*jobs.Spec[task, string], func(*worker.Registry)) {
		s := answering(name)
		s.Lock = true
		return s, func(r *worker.Registry) {
			worker.HandleTx(r, s, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) { return "done", body(ctx, j) })
		}
	},
}

// later is a kind that nobody handles: its jobs stay where a test can look at them.
func later() *jobs.Spec[task, jobs.None] {
	s := kind("t.later")
	s.Queue = "nobody"
	return s
}

// keyedLater is later with a key, the task's N.
func keyedLater() *jobs.Spec[task, string] {
	s := keyed("t.keyedlater")
	s.Queue = "nobody"
	return s
}

func count(t testing.TB, pool *pgxpool.Pool, kind string) int {
	t.Helper()
	return one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE kind = $1`, kind)
}

// gone waits until a job has left jobs.
func gone(t testing.TB, pool *pgxpool.Pool, id int64) {
	t.Helper()
	becomes(t, pool, id, "has ended", func(r row) bool { return r.Status == "" })
}

func TestG5FollowUpsAreStoredInTheTransactionThatCompletesTheirJob(t *testing.T) {
	t.Parallel()
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			// Every row remembers the transaction that removed or wrote it.
			execute(t, pool, `
				CREATE TABLE seen (what text, xid text DEFAULT pg_current_xact_id()::text);
				CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
					INSERT INTO seen (what) VALUES (TG_ARGV[0]); RETURN NULL;
				END$$;
				CREATE TRIGGER removed AFTER DELETE ON jobgen.jobs FOR EACH ROW EXECUTE FUNCTION see('removed');
				CREATE TRIGGER stored AFTER INSERT ON jobgen.jobs FOR EACH ROW WHEN (NEW.queue = 'nobody') EXECUTE FUNCTION see('stored');`)
			spec, register := form("t.first", func(ctx context.Context, j *jobs.Job[task]) error {
				then := j.OnSuccess()
				if _, err := jobs.Enqueue(ctx, then, later(), task{N: 7}, jobs.Priority(3), jobs.In(time.Hour), jobs.Headers(map[string]string{"h": "v"})); err != nil {
					return err
				}
				if _, err := jobs.EnqueueMany(ctx, then, keyedLater(), numbered(2)); err != nil {
					return err
				}
				if n := one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE queue = 'nobody'`); n != 0 {
					return fmt.Errorf("%d are stored while the handler runs", n)
				}
				return nil
			})
			start(t, pool, worker.Config{}, register)
			gone(t, pool, enqueue(t, pool, spec, task{}).ID)
			if n, m := count(t, pool, "t.later"), count(t, pool, "t.keyedlater"); n != 1 || m != 2 {
				t.Errorf("%d and %d follow-ups are stored", n, m)
			}
			if n := one[int](t, pool, `SELECT count(DISTINCT xid) FROM seen`); n != 1 {
				t.Errorf("they took %d transactions", n)
			}
			if !one[bool](t, pool, `SELECT priority = 3 AND headers = '{"h": "v"}' AND run_at > clock_timestamp() + interval '30 minutes' FROM jobgen.jobs WHERE kind = 't.later'`) {
				t.Error("the options are lost")
			}
		})
	}
}

func TestG5NothingFollowsAnAttemptThatDidNotSucceed(t *testing.T) {
	t.Parallel()
	ends := map[string]func(ctx context.Context, pool *pgxpool.Pool, j *jobs.Job[task]) error{
		"an error":           func(context.Context, *pgxpool.Pool, *jobs.Job[task]) error { return errors.New("no") },
		"a permanent error":  func(context.Context, *pgxpool.Pool, *jobs.Job[task]) error { return jobs.Permanent(errors.New("no")) },
		"a panic":            func(context.Context, *pgxpool.Pool, *jobs.Job[task]) error { panic("no") },
		"runtime.Goexit":     func(context.Context, *pgxpool.Pool, *jobs.Job[task]) error { runtime.Goexit(); return nil },
		"its job taken back": func(ctx context.Context, pool *pgxpool.Pool, j *jobs.Job[task]) error { return steal(ctx, pool, j.ID) },
	}
	for name, form := range forms {
		for how, end := range ends {
			if name == "owned by lock" && how == "its job taken back" {
				continue // nobody can
			}
			t.Run(name+": "+how, func(t *testing.T) {
				t.Parallel()
				pool := database(t)
				ended := make(chan bool, 10)
				spec, register := form("t.first", func(ctx context.Context, j *jobs.Job[task]) error {
					defer func() { ended <- true }()
					if _, err := jobs.Enqueue(ctx, j.OnSuccess(), later(), j.Payload); err != nil {
						return err
					}
					return end(ctx, pool, j)
				})
				r := start(t, pool, worker.Config{}, register)
				ref := enqueue(t, pool, spec, task{}, jobs.MaxAttempts(1))
				receive(t, "the handler ends", ended)
				if how == "its job taken back" {
					eventually(t, soon, "the worker says so", func() bool { return r.log.has("came too late") })
				} else {
					becomes(t, pool, ref.ID, "is dead", func(r row) bool { return r.Status == "dead" })
				}
				if n := count(t, pool, "t.later"); n != 0 {
					t.Errorf("%d follow-ups are stored", n)
				}
			})
		}
	}
}

// steal gives a running job to a worker that there is not.
func steal(ctx context.Context, pool *pgxpool.Pool, id int64) error {
	_, err := pool.Exec(ctx, `UPDATE jobgen.jobs SET fence = nextval('jobgen.fence'), worker_id = $2 WHERE id = $1`, id, uuid.New())
	if err == nil {
		_, err = gen.New(pool).NoteUnclaimed(ctx, gen.NoteUnclaimedParams{N: 1000})
	}
	return err
}

func TestG5AnAttemptThatSucceedsAfterOthersEnqueuesItsOwnFollowUpsOnly(t *testing.T) {
	t.Parallel()
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			spec, register := form("t.first", func(ctx context.Context, j *jobs.Job[task]) error {
				if _, err := jobs.Enqueue(ctx, j.OnSuccess(), later(), task{N: j.Attempt}); err != nil || j.Attempt < 3 {
					return errors.Join(err, errors.New("again"))
				}
				return nil
			})
			start(t, pool, worker.Config{}, register)
			gone(t, pool, enqueue(t, pool, spec, task{}).ID)
			if got := all[int](t, pool, `SELECT (payload->>'N')::int FROM jobgen.jobs`); !slices.Equal(got, []int{3}) {
				t.Errorf("follow-ups of the attempts %v", got)
			}
		})
	}
}

func TestAFollowUpWithATakenKeyEnqueuesNothingNew(t *testing.T) {
	t.Parallel()
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			taken := enqueue(t, pool, keyedLater(), task{N: 1, Do: "first"})
			spec, register := form("t.first", func(ctx context.Context, j *jobs.Job[task]) error {
				for _, n := range []int{2, 1, 2} {
					if _, err := jobs.Enqueue(ctx, j.OnSuccess(), keyedLater(), task{N: n}); err != nil {
						return err
					}
				}
				return nil
			})
			start(t, pool, worker.Config{}, register)
			gone(t, pool, enqueue(t, pool, spec, task{}).ID)
			if n := count(t, pool, "t.keyedlater"); n != 2 {
				t.Errorf("%d jobs of two keys", n)
			}
			if !one[bool](t, pool, `SELECT payload->>'Do' = 'first' FROM jobgen.jobs WHERE id = $1`, taken.ID) {
				t.Error("the job that had the key is another one now")
			}
		})
	}
}

func TestAFollowUpIsCheckedWhenItIsEnqueued(t *testing.T) {
	t.Parallel()
	pool := database(t)
	got := make(chan error, 1)
	spec, register := forms["without a result"]("t.first", func(ctx context.Context, j *jobs.Job[task]) error {
		_, err := jobs.Enqueue(ctx, j.OnSuccess(), later(), task{}, jobs.Priority(10))
		got <- err
		var p jobs.Producer
		p.MaxPayload = 10
		_, err = jobs.Enqueue(ctx, p.On(j.OnSuccess()), later(), task{Do: "longer than that"})
		got <- err
		return nil
	})
	start(t, pool, worker.Config{}, register)
	enqueue(t, pool, spec, task{})
	for range 2 {
		var invalid *jobs.InvalidError
		if err := receive(t, "an answer", got); !errors.As(err, &invalid) {
			t.Errorf("got %v", err)
		}
	}
}

func TestG9AFollowUpThatTheDatabaseRefusesEndsItsOwnJobOnly(t *testing.T) {
	t.Parallel()
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			execute(t, pool, `ALTER TABLE jobgen.jobs ADD CONSTRAINT taste CHECK (kind <> 't.later' OR payload->>'N' <> '13')`)
			var runs sync.Map
			spec, register := form("t.first", func(ctx context.Context, j *jobs.Job[task]) error {
				if _, again := runs.LoadOrStore(j.ID, true); again {
					return errors.New("runs again")
				}
				_, err := jobs.EnqueueMany(ctx, j.OnSuccess(), later(), []task{{N: 100 + j.Payload.N}, j.Payload})
				return err
			})
			start(t, pool, worker.Config{}, register)
			refs := enqueueMany(t, pool, spec, numbered(30))
			becomes(t, pool, refs[13].ID, "is dead", func(r row) bool {
				return r.Status == "dead" && strings.Contains(r.LastError, "follow-up t.later") && strings.Contains(r.LastError, "taste")
			})
			eventually(t, soon, "all others have ended", func() bool { return count(t, pool, "t.first") == 1 })
			if n := count(t, pool, "t.later"); n != 2*29 {
				t.Errorf("%d follow-ups are stored", n)
			}
		})
	}
}

func TestManyFollowUpsOfOneJob(t *testing.T) {
	t.Parallel()
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			spec, register := form("t.first", func(ctx context.Context, j *jobs.Job[task]) error {
				if _, err := jobs.EnqueueMany(ctx, j.OnSuccess(), later(), numbered(10_000)); err != nil {
					return err
				}
				var group sync.WaitGroup
				for g := range 10 {
					group.Go(func() {
						for i := range 1_000 {
							if _, err := jobs.Enqueue(ctx, j.OnSuccess(), keyedLater(), task{N: 1000*g + i}); err != nil {
								t.Error(err)
							}
						}
					})
				}
				group.Wait()
				return nil
			})
			start(t, pool, worker.Config{}, register)
			gone(t, pool, enqueue(t, pool, spec, task{}).ID)
			if n, m := count(t, pool, "t.later"), count(t, pool, "t.keyedlater"); n != 10_000 || m != 10_000 {
				t.Errorf("%d and %d follow-ups are stored", n, m)
			}
			if got := all[int](t, pool, `SELECT (payload->>'N')::int FROM jobgen.jobs WHERE kind = 't.later' ORDER BY run_at, id`); !slices.IsSorted(got) {
				t.Error("they are not in the order in which they were enqueued")
			}
		})
	}
}

func TestTooManyFollowUpsAreRefusedInTheHandler(t *testing.T) {
	t.Parallel()
	pool := database(t)
	got := make(chan error, 2)
	spec, register := forms["without a result"]("t.first", func(ctx context.Context, j *jobs.Job[task]) error {
		_, err := jobs.EnqueueMany(ctx, j.OnSuccess(), later(), make([]task, 100_001))
		got <- err
		big := task{Do: strings.Repeat("x", 1_000_000)}
		for err = nil; err == nil; {
			_, err = jobs.Enqueue(ctx, j.OnSuccess(), later(), big)
		}
		got <- err
		return errors.New("enough")
	})
	start(t, pool, worker.Config{}, register)
	enqueue(t, pool, spec, task{}, jobs.MaxAttempts(1))
	for range 2 {
		var invalid *jobs.InvalidError
		if err := receive(t, "an answer", got); !errors.As(err, &invalid) || !strings.Contains(err.Error(), "follow-ups of one job") {
			t.Errorf("got %v", err)
		}
	}
}

func TestOnSuccessEndsWithTheHandler(t *testing.T) {
	t.Parallel()
	pool := database(t)
	for name, fail := range map[string]error{"t.succeeds": nil, "t.fails": errors.New("no")} {
		kept := make(chan jobs.DB, 1)
		spec, register := forms["without a result"](name, func(ctx context.Context, j *jobs.Job[task]) error {
			kept <- j.OnSuccess()
			return fail
		})
		start(t, pool, worker.Config{}, register)
		ref := enqueue(t, pool, spec, task{}, jobs.MaxAttempts(1))
		then := receive(t, "the handler", kept)
		becomes(t, pool, ref.ID, "has ended", func(r row) bool { return r.Status == "" || r.Status == "dead" })
		if _, err := jobs.Enqueue(t.Context(), then, later(), task{}); !errors.Is(err, jobs.ErrNoHandler) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if n := count(t, pool, "t.later"); n != 0 {
		t.Errorf("%d follow-ups are stored", n)
	}
	var byHand jobs.Job[task]
	if _, err := jobs.Enqueue(t.Context(), byHand.OnSuccess(), later(), task{}); !errors.Is(err, jobs.ErrNoHandler) {
		t.Errorf("a job made by hand: %v", err)
	}
}

func TestTheRefOfAFollowUpIsAwaitedByItsKey(t *testing.T) {
	t.Parallel()
	pool := database(t)
	next := keyed("t.next")
	keyedRef, plainRef := make(chan jobs.Ref[string], 1), make(chan jobs.Ref[string], 1)
	spec, register := forms["with a result"]("t.first", func(ctx context.Context, j *jobs.Job[task]) error {
		then := j.OnSuccess()
		k, err := jobs.Enqueue(ctx, then, next, task{N: 4})
		if err != nil {
			return err
		}
		keyedRef <- k
		p, err := jobs.Enqueue(ctx, then, answering("t.other"), task{})
		if err != nil {
			return err
		}
		plainRef <- p
		if _, err := k.Await(ctx, then); err == nil {
			return errors.New("it was awaited on OnSuccess")
		}
		if _, err := then.Exec(ctx, "SELECT 1"); err == nil {
			return errors.New("it runs statements")
		}
		var n int
		if err := then.QueryRow(ctx, "SELECT 1").Scan(&n); err == nil {
			return errors.New("it answers questions")
		}
		if _, err := then.Query(ctx, "SELECT 1"); err == nil {
			return errors.New("it runs queries")
		}
		return nil
	})
	start(t, pool, worker.Config{}, register, func(r *worker.Registry) {
		worker.Handle(r, next, func(ctx context.Context, j *jobs.Job[task]) (string, error) { return "next", nil })
	})
	if got, err := await(t, pool, enqueue(t, pool, spec, task{})); err != nil || got != "done" {
		t.Fatalf("%q, %v", got, err)
	}
	ref := receive(t, "its follow-up", keyedRef)
	if got, err := await(t, pool, ref); ref.ID != 0 || err != nil || got != "next" {
		t.Errorf("%+v: %q, %v", ref, got, err)
	}
	if _, err := receive(t, "the other one", plainRef).Await(t.Context(), pool); !errors.Is(err, jobs.ErrNotStored) {
		t.Errorf("without a key: %v", err)
	}
}

func TestFollowUpsHaveFollowUps(t *testing.T) {
	t.Parallel()
	pool := database(t)
	const jobsInAll = 60
	names := []string{"t.0", "t.1", "t.2", "t.3", "t.4"}
	var register []func(*worker.Registry)
	step := 0
	for _, form := range forms { // a link of each form
		n := step
		_, reg := form(names[n], func(ctx context.Context, j *jobs.Job[task]) error {
			if err := leave(ctx, pool, j.Payload.N, j.Kind); err != nil || j.Payload.N == jobsInAll-1 {
				return err
			}
			_, err := jobs.Enqueue(ctx, j.OnSuccess(), kind(names[(n+1)%len(names)]), task{N: j.Payload.N + 1})
			return err
		})
		register = append(register, reg)
		step++
	}
	start(t, pool, worker.Config{}, register...)
	enqueue(t, pool, kind(names[0]), task{})
	eventually(t, soon, "the chain has ended", func() bool { return one[int](t, pool, `SELECT count(*) FROM effect`) == jobsInAll })
	drained(t, pool, soon)
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != jobsInAll {
		t.Errorf("%d links ran", n)
	}
}

func TestAFollowUpWakesAnIdleWorkerOfItsKind(t *testing.T) {
	t.Parallel()
	pool := database(t)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	sleeper := uuid.New()
	execute(t, conn, `LISTEN "jobgen_`+sleeper.String()+`"`)
	execute(t, pool, `INSERT INTO jobgen.wake (queue, worker_id, kinds) VALUES ('nobody', $1, '{t.later}')`, sleeper)
	spec, register := forms["without a result"]("t.first", func(ctx context.Context, j *jobs.Job[task]) error {
		_, err := jobs.Enqueue(ctx, j.OnSuccess(), later(), task{})
		return err
	})
	start(t, pool, worker.Config{}, register)
	enqueue(t, pool, spec, task{})
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if _, err := conn.Conn().WaitForNotification(ctx); err != nil {
		t.Error(err)
	}
}

func TestG2ShutdownStoresTheFollowUpsOfWhatHasSucceeded(t *testing.T) {
	t.Parallel()
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			const n = 20
			started, end := make(chan bool, n), make(chan bool)
			spec, register := form("t.first", func(ctx context.Context, j *jobs.Job[task]) error {
				started <- true
				<-end
				_, err := jobs.Enqueue(ctx, j.OnSuccess(), later(), j.Payload)
				return err
			})
			wide := another(t, pool, func(c *pgxpool.Config) { c.MaxConns = n + 5 })
			r := start(t, wide, worker.Config{}, register)
			enqueueMany(t, pool, spec, numbered(n))
			for range n {
				receive(t, "a handler starts", started)
			}
			r.cancel()
			close(end)
			if err := r.wait(2 * soon); err != nil {
				t.Error(err)
			}
			if left, got := count(t, pool, "t.first"), count(t, pool, "t.later"); left != 0 || got != n {
				t.Errorf("%d jobs are left, %d follow-ups are stored", left, got)
			}
		})
	}
}

// Completions that are stored together are stored in transactions of a bounded size.
func TestFollowUpsOfManyJobs(t *testing.T) {
	t.Parallel()
	pool := database(t)
	const n, each = 300, 20
	spec, register := forms["with a result"]("t.first", func(ctx context.Context, j *jobs.Job[task]) error {
		_, err := jobs.EnqueueMany(ctx, j.OnSuccess(), later(), numbered(each))
		return err
	})
	start(t, pool, worker.Config{}, register)
	enqueueMany(t, pool, spec, numbered(n))
	eventually(t, soon, "all have ended", func() bool { return count(t, pool, "t.first") == 0 })
	if got := count(t, pool, "t.later"); got != n*each {
		t.Errorf("%d follow-ups are stored", got)
	}
	if most := one[int](t, pool, `SELECT max(n) FROM (SELECT count(*) AS n FROM jobgen.jobs GROUP BY xmin::text) x`); most > 1000 {
		t.Errorf("%d in one transaction", most)
	}
}
