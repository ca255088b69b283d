package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/pgproxy"
	"github.com/jobgen-go/jobgen/internal/pgserver"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// commits chooses the COMMITs of handlers' transactions; pgx sends them as a Query.
func commits(m pgproxy.Message) bool { return m.Type == 'Q' && m.SQL == "commit" }

// effecting is a transactional handler with one effect. It counts its runs.
func effecting(runs *atomic.Int64) func(context.Context, pgx.Tx, *jobs.Job[task]) (string, error) {
	return func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		n := runs.Add(1)
		return fmt.Sprint("run ", n), leave(ctx, tx, j.Payload.N, "effect")
	}
}

// settled checks that nothing of a worker's transactions is left with the server.
func settled(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	eventually(t, soon, "no transaction is left open", func() bool {
		return one[int](t, pool, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND xact_start IS NOT NULL`) == 0
	})
}

// The connection is cut around COMMIT. What happened is looked up: the effect is neither repeated nor lost, and the log
// says what happened.
func TestG5LostAnswerToCommitIsLookedUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		act  pgproxy.Act
		runs int
		log  string
	}{
		{pgproxy.CutBefore, 2, "rolled back"},
		{pgproxy.CutSent, 1, "the transaction had committed"},
		{pgproxy.CutDuring, 1, "the transaction had committed"},
		{pgproxy.CutInside, 1, "the transaction had committed"},
		{pgproxy.CutShort, 1, "the transaction had committed"},
		{pgproxy.CutAfter, 1, ""},
	} {
		locked := keyed("t.locked")
		locked.Lock = true
		for _, spec := range []*jobs.Spec[task, string]{answering("t.plain"), keyed("t.keyed"), locked} {
			t.Run(fmt.Sprintf("%s, %s", spec.Kind, c.act), func(t *testing.T) {
				t.Parallel()
				pool := database(t)
				slow, network := proxied(t, pool)
				var runs atomic.Int64
				w := start(t, slow, worker.Config{}, transactional(spec, effecting(&runs)))
				lost := network.On(commits, 1, c.act)
				ref := enqueue(t, pool, spec, task{N: 1})
				receive(t, "the cut", lost.Done())
				if got, err := await(t, pool, ref); got != fmt.Sprint("run ", c.runs) || err != nil {
					t.Errorf("got %q, %v", got, err)
				}
				drained(t, pool, soon)
				if err := w.stop(); err != nil {
					t.Error(err)
				}
				if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 1 || runs.Load() != int64(c.runs) {
					t.Errorf("%d effects of %d runs", n, runs.Load())
				}
				if got := all[string](t, pool, `SELECT outcome FROM jobgen.job_attempt`); len(got) != c.runs-1 && spec != locked {
					t.Errorf("attempts on record: %v", got)
				}
				if c.log != "" && !w.log.has(c.log) && (spec != locked || c.runs == 1) || c.log == "" && w.log.has("COMMIT") || w.log.has("too late") {
					t.Errorf("the log says otherwise")
				}
				settled(t, pool)
			})
		}
	}
}

// The conversation of a transactional job is cut at each message of the client, in each way.
func TestG5CutAtAnyMessageOfATransactionalJob(t *testing.T) {
	t.Parallel()
	handlers := func(m pgproxy.Message) bool { return m.App != "jobgen worker" }
	for _, act := range []pgproxy.Act{pgproxy.CutBefore, pgproxy.CutSent, pgproxy.CutDuring, pgproxy.CutInside, pgproxy.CutShort, pgproxy.CutAfter} {
		t.Run(act.String(), func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			slow, network := proxied(t, pool)
			spec := keyed("t.tx")
			var runs atomic.Int64
			w := start(t, slow, worker.Config{}, transactional(spec, effecting(&runs)))

			var seen []string
			all := network.On(func(m pgproxy.Message) bool {
				if handlers(m) {
					seen = append(seen, fmt.Sprintf("%q %.40q", m.Type, m.SQL))
				}
				return false
			}, 1, pgproxy.Hold)
			if _, err := await(t, pool, enqueue(t, pool, spec, task{N: 0})); err != nil {
				t.Fatal(err)
			}
			slow.Reset()
			all.Disarm()
			messages := slices.DeleteFunc(slices.Clone(seen), func(m string) bool { return strings.HasPrefix(m, "'X'") })
			if !strings.HasSuffix(messages[len(messages)-1], `"commit"`) {
				t.Fatalf("the last message is not COMMIT: %q", messages)
			}
			for k := 1; k <= len(messages); k++ {
				at := fmt.Sprintf("message %d, %s", k, messages[k-1])
				slow.Reset() // the conversation begins anew
				before := runs.Load()
				lost := network.On(func(m pgproxy.Message) bool { return handlers(m) && m.Type != 'X' }, k, act)
				ref := enqueue(t, pool, spec, task{N: k})
				if got, err := await(t, pool, ref); !strings.HasPrefix(got, "run ") || err != nil {
					t.Errorf("%s: got %q, %v", at, got, err)
				}
				receive(t, at, lost.Done())
				if n := one[int](t, pool, `SELECT count(*) FROM effect WHERE n = $1`, k); n != 1 {
					t.Errorf("%s: %d effects", at, n)
				}
				if n := runs.Load() - before; n > 2 {
					t.Errorf("%s: %d runs", at, n)
				}
				if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt WHERE job_id = $1`, ref.ID); int64(n) != runs.Load()-before-1 {
					t.Errorf("%s: %d failed attempts of %d runs", at, n, runs.Load()-before)
				}
			}
			drained(t, pool, soon)
			if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_result`); n != len(messages)+1 {
				t.Errorf("%d results", n)
			}
			if err := w.stop(); err != nil {
				t.Error(err)
			}
			settled(t, pool)
		})
	}
}

// slowCommits makes each COMMIT that has an effect wait until the lock that it returns is given back, and the first of them
// fail if fails. The driver cannot cancel it.
func slowCommits(t *testing.T, pool *pgxpool.Pool, network *pgproxy.Proxy, fails bool) (release func()) {
	t.Helper()
	network.On(func(m pgproxy.Message) bool { return m.Cancel }, 1, pgproxy.CutBefore)
	then := ""
	if fails {
		then = `IF nextval('fails') = 1 THEN RAISE EXCEPTION 'no'; END IF;`
	}
	execute(t, pool, `CREATE SEQUENCE fails;
		CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); `+then+` RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()`)
	lock, err := pool.Begin(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	execute(t, lock, `SELECT pg_advisory_xact_lock(1)`)
	release = func() { _ = lock.Rollback(context.Background()) }
	t.Cleanup(release)
	return release
}

// lookups counts the look-ups that are sent.
func lookups(network *pgproxy.Proxy) *atomic.Int64 {
	var n atomic.Int64
	look := statement("Fates")
	network.On(func(m pgproxy.Message) bool {
		if look(m) {
			n.Add(1)
		}
		return false
	}, 1, pgproxy.Hold)
	return &n
}

// The server is still at the COMMIT of which the answer is lost: the worker looks again, keeps the job meanwhile, and its
// slot is free.
func TestG5TransactionInDoubtIsLookedUpUntilItHasEnded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fails bool
		runs  int64
	}{"commits": {false, 1}, "fails": {true, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			slow, network := proxied(t, pool)
			spec, other := answering("t.tx"), answering("t.other")
			var runs atomic.Int64
			w := start(t, slow, worker.Config{Concurrency: 1, Lease: time.Second, Reclaim: 50 * time.Millisecond}, transactional(spec, effecting(&runs)), func(r *worker.Registry) {
				worker.Handle(r, other, func(context.Context, *jobs.Job[task]) (string, error) { return "other", nil })
			})
			release := slowCommits(t, pool, network, c.fails)
			looks := lookups(network)
			lost := network.On(commits, 1, pgproxy.CutSent)
			ref := enqueue(t, pool, spec, task{N: 1})
			receive(t, "the cut", lost.Done())
			eventually(t, soon, "it is looked up, and again", func() bool { return looks.Load() >= 3 })
			if r := look(t, pool, ref.ID); r.Status != "running" || r.Attempt != 1 || runs.Load() != 1 {
				t.Errorf("the job is %s after %d runs", r, runs.Load())
			}
			if got, err := await(t, pool, enqueue(t, pool, other, task{})); got != "other" || err != nil {
				t.Errorf("another job gives %q, %v", got, err)
			}
			release()
			if got, err := await(t, pool, ref); got != fmt.Sprint("run ", c.runs) || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
			drained(t, pool, soon)
			if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 1 || runs.Load() != c.runs {
				t.Errorf("%d effects of %d runs", n, runs.Load())
			}
			if n := one[int](t, pool, `SELECT count(*) FROM jobgen.workers WHERE lost_at IS NOT NULL`); n != 0 || w.log.has("found dead") {
				t.Error("the lease was lost meanwhile")
			}
		})
	}
}

// A shutdown waits for the end of a transaction in doubt, but not for ever; then the row decides.
func TestG5ShutdownWithATransactionInDoubt(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprint("ends too late: ", late), func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			slow, network := proxied(t, pool)
			spec := answering("t.tx")
			var runs atomic.Int64
			w := start(t, slow, worker.Config{}, transactional(spec, effecting(&runs)))
			release := slowCommits(t, pool, network, false)
			looks := lookups(network)
			lost := network.On(commits, 1, pgproxy.CutSent)
			ref := enqueue(t, pool, spec, task{N: 1})
			receive(t, "the cut", lost.Done())
			eventually(t, soon, "it is looked up", func() bool { return looks.Load() >= 1 })
			w.cancel()
			if !late {
				seen := looks.Load()
				eventually(t, soon, "the shutdown looks again", func() bool { return looks.Load() >= seen+3 })
				release()
			}
			err := w.wait(soon)
			if late != (err != nil && strings.Contains(err.Error(), "could not be given back")) {
				t.Errorf("Run: %v", err)
			}
			release()
			// Whoever comes next finds the job gone.
			start(t, pool, worker.Config{Lease: time.Second, Reclaim: 50 * time.Millisecond}, transactional(spec, effecting(&runs)))
			if got, err := await(t, pool, ref); got != "run 1" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
			drained(t, pool, soon)
			if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 1 || runs.Load() != 1 {
				t.Errorf("%d effects of %d runs", n, runs.Load())
			}
		})
	}
}

// The worker loses its lease before it can look: the row has decided, and whoever has the job goes by it.
func TestG5LeaseLostWhileATransactionIsInDoubt(t *testing.T) {
	t.Parallel()
	for act, want := range map[pgproxy.Act]int64{pgproxy.CutBefore: 2, pgproxy.CutDuring: 1} {
		t.Run(act.String(), func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			slow, network := proxied(t, pool)
			spec := answering("t.tx")
			var runs atomic.Int64
			w := start(t, slow, worker.Config{Lease: time.Second, Reclaim: 50 * time.Millisecond}, transactional(spec, effecting(&runs)))
			lost, asked := network.On(commits, 1, act), network.On(statement("Fates"), 1, pgproxy.Hold)
			ref := enqueue(t, pool, spec, task{N: 1})
			receive(t, "the cut", lost.Done())
			receive(t, "the look-up is on its way", asked.Done())
			execute(t, pool, `UPDATE jobgen.workers SET lost_at = clock_timestamp(), lease_until = clock_timestamp()`)
			eventually(t, soon, "the worker goes on under another id", func() bool { return w.log.has("found dead") })
			if got, err := await(t, pool, ref); got != fmt.Sprint("run ", want) || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
			asked.Release()
			drained(t, pool, soon)
			if err := w.stop(); err != nil {
				t.Error(err)
			}
			if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 1 || runs.Load() != want {
				t.Errorf("%d effects of %d runs", n, runs.Load())
			}
		})
	}
}

// The server ends the connection within COMMIT, with an error that says so: as if the answer had been lost.
func TestG5BackendTerminatedAtCommitIsLookedUp(t *testing.T) {
	t.Parallel()
	pool := database(t)
	execute(t, pool, `CREATE SEQUENCE once;
		CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('once') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER die AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()`)
	spec := answering("t.tx")
	var runs atomic.Int64
	w := start(t, pool, worker.Config{}, transactional(spec, effecting(&runs)))
	if got, err := await(t, pool, enqueue(t, pool, spec, task{N: 1})); got != "run 2" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 1 {
		t.Errorf("%d effects", n)
	}
	if !w.log.has("the connection was lost at COMMIT and its transaction was rolled back") {
		t.Error("the log says otherwise")
	}
}

// COMMIT gets lost on the way, and nobody is told. The server does not wait for it for as long as TCP would.
func TestG5LostCommitLocksTheJobForSecondsOnly(t *testing.T) {
	t.Parallel()
	pool := database(t)
	slow, network := proxied(t, pool)
	spec := answering("t.tx")
	var runs atomic.Int64
	start(t, slow, worker.Config{}, transactional(spec, effecting(&runs)))
	lost := network.On(commits, 1, pgproxy.StrandBefore)
	ref := enqueue(t, pool, spec, task{N: 1})
	receive(t, "COMMIT is lost", lost.Done())
	if got, err := await(t, pool, ref); got != "run 2" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 1 {
		t.Errorf("%d effects", n)
	}
	settled(t, pool)
}

// ownServer starts a server that the test may crash, with a migrated database on it.
func ownServer(t *testing.T) *pgxpool.Pool {
	t.Helper()
	s, err := pgserver.Start(t.Context(), pgserver.Options{IgnoreDatabaseURL: true, Settings: map[string]string{"synchronous_commit": "on"}})
	if errors.Is(err, pgserver.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if !strings.Contains(s.Source, "binaries") {
		t.Skip("the server's processes cannot be killed: ", s.Source)
	}
	url, _, err := s.CreateDatabase(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := jobs.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	execute(t, pool, `CREATE TABLE effect (n bigint, what text)`)
	return pool
}

// The server crashes after the answer to COMMIT was lost, and recovers.
func TestG5ServerCrashesAtCommit(t *testing.T) {
	t.Parallel()
	for act, want := range map[pgproxy.Act]int64{pgproxy.CutBefore: 2, pgproxy.CutDuring: 1, pgproxy.StrandBefore: 2} {
		t.Run(act.String(), func(t *testing.T) {
			t.Parallel()
			pool := ownServer(t)
			slow, network := proxied(t, pool)
			spec := answering("t.tx")
			var runs atomic.Int64
			start(t, slow, worker.Config{}, transactional(spec, effecting(&runs)))
			lost, asked := network.On(commits, 1, act), network.On(statement("Fates"), 1, pgproxy.Hold)
			ref := enqueue(t, pool, spec, task{N: 1})
			receive(t, "the cut", lost.Done())
			if act != pgproxy.StrandBefore {
				receive(t, "the look-up is on its way", asked.Done())
			}
			// A killed backend makes the postmaster end all the others and recover from the log.
			const checkpointer = `SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'` // another one after each recovery
			before := one[int](t, pool, checkpointer)
			if err := syscall.Kill(one[int](t, pool, `SELECT pg_backend_pid()`), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			asked.Release()
			eventually(t, 2*soon, "the server is back", func() bool {
				var now int
				return pool.QueryRow(context.WithoutCancel(t.Context()), checkpointer).Scan(&now) == nil && now != before
			})
			eventually(t, 2*soon, "the job is done", func() bool {
				var n int
				err := pool.QueryRow(context.WithoutCancel(t.Context()), `SELECT count(*) FROM jobgen.jobs`).Scan(&n)
				return err == nil && n == 0
			})
			if got, err := await(t, pool, ref); got != fmt.Sprint("run ", want) || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
			if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 1 || runs.Load() != want {
				t.Errorf("%d effects of %d runs", n, runs.Load())
			}
		})
	}
}

// The answer to a flush is lost: the worker does not take its own success for staleness, nor store it twice.
func TestLostAnswerToAFlushIsNoStaleness(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Complete", "CompleteUnkeyed", "CompleteRecorded", "Fail"} {
		for _, act := range []pgproxy.Act{pgproxy.CutBefore, pgproxy.CutDuring, pgproxy.CutInside} {
			t.Run(fmt.Sprintf("%s, %s", name, act), func(t *testing.T) {
				t.Parallel()
				pool := database(t)
				slow, network := proxied(t, pool)
				none, some, once := kind("t.none"), answering("t.some"), keyed("t.once")
				none.MaxAttempts = 2
				var runs atomic.Int64
				w := start(t, slow, worker.Config{}, func(r *worker.Registry) {
					worker.HandleNone(r, none, func(_ context.Context, j *jobs.Job[task]) error {
						if n := runs.Add(1); n == 1 && name == "Fail" {
							return errors.New("on purpose")
						}
						return leave(context.Background(), pool, j.Payload.N, "none")
					})
					count := func(context.Context, *jobs.Job[task]) (string, error) { return fmt.Sprint(runs.Add(1)), nil }
					worker.Handle(r, some, count)
					worker.Handle(r, once, count)
				})
				lost := network.On(statement(name), 1, act)
				if spec := map[string]*jobs.Spec[task, string]{"CompleteUnkeyed": some, "CompleteRecorded": once}[name]; spec != nil {
					if got, err := await(t, pool, enqueue(t, pool, spec, task{})); got != "1" || err != nil {
						t.Errorf("got %q, %v", got, err)
					}
				} else {
					enqueue(t, pool, none, task{})
				}
				receive(t, "the cut", lost.Done())
				drained(t, pool, soon)
				if err := w.stop(); err != nil {
					t.Error(err)
				}
				if w.log.has("too late") {
					t.Error("it takes its own success for staleness")
				}
				failed := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`)
				if want := map[bool]int{true: 1}[name == "Fail"]; failed != want || runs.Load() != int64(1+want) {
					t.Errorf("%d failed attempts on record, %d runs", failed, runs.Load())
				}
			})
		}
	}
}

// A handler of a job owned by lock that ends its transaction has given the job away; it is found out, whatever it began next.
func TestLockHandlerThatEndsItsTransactionFails(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{`COMMIT`, `COMMIT AND CHAIN`, `COMMIT; BEGIN`, `ROLLBACK AND CHAIN`} {
		t.Run(sql, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			spec := locking("t.lock")
			spec.MaxAttempts = 1
			start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
				_, err := tx.Exec(ctx, sql)
				return "fine", errors.Join(err, leave(ctx, tx, 1, "after"))
			}))
			ref := enqueue(t, pool, spec, task{N: 1})
			r := becomes(t, pool, ref.ID, "is dead", func(r row) bool { return r.Status == "dead" })
			if !strings.Contains(r.LastError, "ended its transaction by a statement of its own") {
				t.Errorf("the job is %s", r)
			}
			if n := one[int](t, pool, `SELECT count(*) FROM effect`); n != 0 && sql != `COMMIT` {
				t.Errorf("%d effects after the end of its transaction stand", n)
			}
		})
	}
}
