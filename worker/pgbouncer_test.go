//go:build unix

package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/jobgen-go/jobgen/internal/pgbouncer"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// modes are ways to connect to a pooler in transaction mode that work for an application.
var modes = []string{"exec", "cache_describe", "simple_protocol"}

func mode(m string) string { return "default_query_exec_mode=" + m }

// clean asserts that nothing of a worker is left in the pooler's connections to the server. The first few of them are
// looked at: as many as are asked at once.
func clean(t *testing.T, through *pgxpool.Pool) {
	t.Helper()
	ctx := t.Context()
	n := int(through.Config().MaxConns)
	for range n {
		tx, err := through.Begin(ctx) // each holds a connection of the pooler's
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(ctx)
		var got string
		if err := tx.QueryRow(ctx, `SELECT concat_ws(' ',
			(SELECT string_agg(name || '=' || setting, ' ') FROM pg_settings WHERE source = 'session'
			   AND name NOT IN ('client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings', 'application_name', 'transaction_isolation', 'transaction_read_only', 'transaction_deferrable')),
			(SELECT string_agg('listens to ' || c, ' ') FROM pg_listening_channels() c),
			(SELECT string_agg('has prepared ' || statement, ' ') FROM pg_prepared_statements WHERE name <> ''),
			(SELECT string_agg('has locked ' || classid || '/' || objid, ' ') FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()))`).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != "" {
			t.Errorf("a connection of the pooler's has something left in it: %s", got)
		}
	}
}

func TestEverythingWorksThroughAPoolerInTransactionMode(t *testing.T) {
	for _, m := range modes {
		for _, style := range []string{"ISO", "German"} {
			t.Run(m+", "+style, func(t *testing.T) {
				t.Parallel()
				db := database(t)
				execute(t, db, fmt.Sprintf("ALTER DATABASE %s SET datestyle = '%s'", pgx.Identifier{one[string](t, db, "SELECT current_database()")}.Sanitize(), style))
				through := pgbouncer.Start(t, db, "default_pool_size = 4").Pool(mode(m), "pool_max_conns=4")
				plain, withKey, tx := kind("p.plain"), keyed("p.keyed"), answering("p.tx")
				locked := answering("p.locked")
				locked.Lock = true
				fails, stops := answering("p.fails"), answering("p.stops")
				var tries atomic.Int64
				w := start(t, through, worker.Config{}, func(r *worker.Registry) {
					worker.HandleNone(r, plain, func(ctx context.Context, j *jobs.Job[task]) error {
						return leave(ctx, through, j.Payload.N, j.Payload.Do)
					})
					worker.Handle(r, withKey, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
						return j.Payload.Do, leave(ctx, through, j.Payload.N, "keyed")
					})
					worker.HandleTx(r, tx, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
						if _, err := jobs.Enqueue(ctx, tx, plain, task{N: j.Payload.N, Do: "follows"}); err != nil {
							return "", err
						}
						return "tx", leave(ctx, tx, j.Payload.N, "tx")
					})
					worker.HandleTx(r, locked, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
						return "locked", leave(ctx, tx, j.Payload.N, "locked")
					})
					worker.Handle(r, stops, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
						<-ctx.Done()
						return "", context.Cause(ctx)
					})
					worker.Handle(r, fails, func(ctx context.Context, j *jobs.Job[task]) (string, error) {
						if tries.Add(1) == 1 {
							return "", errors.New("first time")
						}
						return "second time", nil
					})
				})
				ctx := context.WithoutCancel(t.Context())

				// In the caller's transaction, committed and rolled back.
				for n, end := range map[int]func(pgx.Tx) error{1: func(tx pgx.Tx) error { return tx.Commit(ctx) }, 2: func(tx pgx.Tx) error { return tx.Rollback(ctx) }} {
					tx, err := through.Begin(ctx)
					if err != nil {
						t.Fatal(err)
					}
					enqueue(t, tx, plain, task{N: n, Do: "in a transaction"}, jobs.Headers(map[string]string{"a": "b'\\"}))
					if err := end(tx); err != nil {
						t.Fatal(err)
					}
				}
				enqueueMany(t, through, plain, numbered(50), jobs.In(10*time.Millisecond), jobs.Priority(9))

				ref := enqueue(t, through, withKey, task{N: 7, Do: "it's \\ done"})
				if got, err := await(t, through, ref); got != "it's \\ done" || err != nil {
					t.Errorf("got %q, %v", got, err)
				}
				again := enqueue(t, through, withKey, task{N: 7, Do: "again"})
				if got, err := await(t, through, again); got != "it's \\ done" || err != nil || !again.Existing {
					t.Errorf("got %q, %v, existing %v", got, err, again.Existing)
				}
				for i, ref := range enqueueMany(t, through, withKey, []task{{N: 6, Do: "six"}, {N: 7, Do: "again"}, {N: 8, Do: "eight"}}) {
					if got, err := await(t, through, ref); got != []string{"six", "it's \\ done", "eight"}[i] || err != nil {
						t.Errorf("got %q, %v", got, err)
					}
				}
				if got, err := await(t, through, enqueue(t, through, tx, task{N: 9})); got != "tx" || err != nil {
					t.Errorf("got %q, %v", got, err)
				}
				if got, err := await(t, through, enqueue(t, through, fails, task{})); got != "second time" || err != nil {
					t.Errorf("got %q, %v", got, err)
				}
				if got, err := await(t, through, enqueue(t, through, locked, task{N: 9})); got != "locked" || err != nil {
					t.Errorf("got %q, %v", got, err)
				}
				// Cancelled while it runs, and without a notification.
				stop := enqueue(t, through, stops, task{})
				eventually(t, soon, "the job runs", func() bool { return look(t, db, stop.ID).Status == "running" })
				if _, err := jobs.Cancel(ctx, through, stop.ID, "not \\ 'needed'"); err != nil {
					t.Error(err)
				}
				drained(t, db, soon)
				got := fmt.Sprint(all[string](t, db, `SELECT what || ' ' || count(*) || ' ' || count(DISTINCT n) FROM effect GROUP BY what ORDER BY what COLLATE "C"`))
				if want := "[ 50 50 follows 1 1 in a transaction 1 1 keyed 3 3 locked 1 1 tx 1 1]"; got != want {
					t.Errorf("effects %s, want %s", got, want)
				}
				if n := one[int](t, db, `SELECT count(*) FROM jobgen.wake`); n != 0 {
					t.Errorf("%d workers want to be woken, which they cannot be", n)
				}
				clean(t, through)
				if err := w.stop(); err != nil {
					t.Error(err)
				}
				if n := strings.Count(w.log.String(), "not listening"); n != 1 || !w.log.has("level=INFO msg=\"not listening") || w.log.has("level=ERROR") {
					t.Errorf("deafness is announced %d times, want once, and no error:\n%s", n, w.log)
				}
				if n := one[int](t, db, `SELECT count(*) FROM jobgen.workers`); n != 0 {
					t.Errorf("%d workers have not left", n)
				}
			})
		}
	}
}

// Three workers, two of which share four connections to the server with the application and one of which is killed, do
// each of some thousand jobs once.
func TestThreeWorkersBehindAPoolerDoEachJobOnce(t *testing.T) {
	t.Parallel()
	db := database(t)
	through := pgbouncer.Start(t, db, "default_pool_size = 4").Pool(mode("exec"), "pool_max_conns=4")
	const n = 3000
	spec := keyed("p.many")
	enqueueMany(t, through, spec, numbered(n))
	for range 3 {
		start(t, through, worker.Config{}, func(r *worker.Registry) {
			worker.HandleTx(r, spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
				return "ok", leave(ctx, tx, j.Payload.N, "done")
			})
		})
	}
	drained(t, db, 3*soon)
	if got := fmt.Sprint(one[int](t, db, `SELECT count(*) FROM effect`), one[int](t, db, `SELECT count(DISTINCT n) FROM effect`)); got != fmt.Sprint(n, n) {
		t.Errorf("%s effects, want %d of %d", got, n, n)
	}
	if got := one[int](t, db, `SELECT count(*) FROM jobgen.job_attempt`); got != 0 {
		t.Errorf("%d attempts did not succeed: %v", got, all[string](t, db, `SELECT DISTINCT error FROM jobgen.job_attempt`))
	}
	clean(t, through)
}

func TestG7JobsOfAWorkerKilledBehindAPoolerRunAgain(t *testing.T) {
	t.Parallel()
	db := database(t)
	through := pgbouncer.Start(t, db, "default_pool_size = 4").Pool(mode("exec"), "pool_max_conns=4")
	spec := kind("t.held")
	c := spawn(t, through, "holder", map[string]any{"Lease": time.Second, "Concurrency": 4})
	enqueueMany(t, through, spec, numbered(4), jobs.MaxAttempts(1))
	eventually(t, soon, "the child runs them", func() bool { return one[int](t, db, `SELECT count(*) FROM effect`) == 4 })
	start(t, through, worker.Config{Lease: 2 * time.Second, Reclaim: 50 * time.Millisecond}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(ctx context.Context, j *jobs.Job[task]) error { return leave(ctx, through, j.Payload.N, "here") })
	})
	c.signal(syscall.SIGKILL)
	drained(t, db, soon)
	if n := one[int](t, db, `SELECT count(*) FROM effect WHERE what = 'here'`); n != 4 {
		t.Errorf("%d of 4 ran again", n)
	}
	clean(t, through)
}

func TestSchedulesTickBehindAPooler(t *testing.T) {
	t.Parallel()
	db := database(t)
	through := pgbouncer.Start(t, db).Pool(mode("simple_protocol"))
	execute(t, db, `INSERT INTO jobgen.schedules (kind, name, cron, zone, missed, next_at)
		VALUES ('nightly', 'n', '0 * * * *', 'UTC', 'all', date_trunc('hour', now()) - interval '2 days')`)
	start(t, through, worker.Config{}, leaveTick(through, ticking(jobs.Schedule{Name: "n", Cron: "0 * * * *", Zone: "UTC", Missed: jobs.MissedAll})))
	eventually(t, soon, "two days of ticks have run", func() bool { return one[int](t, db, `SELECT count(DISTINCT what) FROM effect`) >= 49 })
}

// What runs when the pooler goes away is finished, and once, when it is back.
func TestAPoolerMayRestartUnderAWorker(t *testing.T) {
	t.Parallel()
	db := database(t)
	pooler := pgbouncer.Start(t, db, "server_idle_timeout = 1", "server_lifetime = 1")
	through := pooler.Pool(mode("cache_describe"))
	spec := kind("p.restart")
	const n = 2000
	enqueueMany(t, db, spec, numbered(n))
	w := start(t, through, worker.Config{Concurrency: 20}, func(r *worker.Registry) {
		worker.HandleTxNone(r, spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) error {
			return leave(ctx, tx, j.Payload.N, "done")
		})
	})
	for i := range 3 {
		at := (i + 1) * n / 5
		eventually(t, soon, "work goes on", func() bool { return one[int](t, db, `SELECT count(*) FROM effect`) > at })
		pooler.Stop()
		pooler.Start()
	}
	drained(t, db, soon)
	if got := fmt.Sprint(one[int](t, db, `SELECT count(*) FROM effect`), one[int](t, db, `SELECT count(DISTINCT n) FROM effect`)); got != fmt.Sprint(n, n) {
		t.Errorf("%s effects, want %d of %d", got, n, n)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
}

// One connection to the server for everything: each statement waits its turn, and none for another that waits for it.
func TestAPoolerWithOneConnectionIsEnough(t *testing.T) {
	t.Parallel()
	db := database(t)
	through := pgbouncer.Start(t, db, "default_pool_size = 1").Pool(mode("exec"))
	plain, tx := kind("p.plain"), kind("p.tx")
	for range 2 {
		start(t, through, worker.Config{Concurrency: 10}, func(r *worker.Registry) {
			worker.HandleNone(r, plain, func(ctx context.Context, j *jobs.Job[task]) error { return leave(ctx, through, j.Payload.N, "plain") })
			worker.HandleTxNone(r, tx, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) error {
				if _, err := jobs.Enqueue(ctx, tx, plain, j.Payload); err != nil {
					return err
				}
				return leave(ctx, tx, j.Payload.N, "tx")
			})
		})
	}
	enqueueMany(t, through, tx, numbered(100))
	drained(t, db, soon)
	if got := fmt.Sprint(all[string](t, db, `SELECT what || ' ' || count(*) || ' ' || count(DISTINCT n) FROM effect GROUP BY what ORDER BY what COLLATE "C"`)); got != "[plain 100 100 tx 100 100]" {
		t.Errorf("effects %s", got)
	}
}

// With pgx's own default, the error says what to do.
func TestPreparedStatementsBehindAPoolerFailWithAdvice(t *testing.T) {
	t.Parallel()
	db := database(t)
	pooler := pgbouncer.Start(t, db, "default_pool_size = 1")
	one, two := pooler.Pool(), pooler.Pool()
	spec := kind("p.advice")
	enqueue(t, one, spec, task{})
	_, err := jobs.Enqueue(t.Context(), two, spec, task{})
	if err == nil || !strings.Contains(err.Error(), "default_query_exec_mode=exec") {
		t.Errorf("got %v", err)
	}
}

// A worker's own statements need nothing of the connection string: with plain handlers, it may be any.
func TestAWorkerNeedsNoModeOfItsOwnBehindAPooler(t *testing.T) {
	t.Parallel()
	db := database(t)
	through := pgbouncer.Start(t, db, "default_pool_size = 2").Pool()
	spec := answering("p.default")
	var calls atomic.Int64
	enqueueMany(t, db, spec, numbered(100))
	for range 2 {
		start(t, through, worker.Config{}, func(r *worker.Registry) {
			worker.Handle(r, spec, func(context.Context, *jobs.Job[task]) (string, error) { calls.Add(1); return "ok", nil })
		})
	}
	drained(t, db, soon)
	if n := calls.Load(); n != 100 {
		t.Errorf("%d calls for 100 jobs", n)
	}
}

// A pooler that gives each client a session of its own is as good as none: settings and notifications work.
func TestAPoolerInSessionModeIsADirectConnection(t *testing.T) {
	t.Parallel()
	db := database(t)
	through := pgbouncer.Start(t, db, "pool_mode = session", "default_pool_size = 20").Pool()
	spec := kind("p.session")
	w := start(t, through, worker.Config{}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(ctx context.Context, j *jobs.Job[task]) error { return nil })
	})
	eventually(t, soon, "the worker wants to be woken", func() bool { return one[int](t, db, `SELECT count(*) FROM jobgen.wake`) == 1 })
	enqueue(t, through, spec, task{})
	drained(t, db, soon)
	if w.log.has("not listening") {
		t.Error("it does not listen")
	}
}

func TestAPoolerThatTakesNoMoreClientsIsNamed(t *testing.T) {
	t.Parallel()
	db := database(t)
	through := pgbouncer.Start(t, db, "max_client_conn = 1").Pool()
	var held *pgxpool.Conn
	var err error
	eventually(t, soon, "a connection to the pooler", func() bool { held, err = through.Acquire(t.Context()); return err == nil })
	defer held.Release()
	var r worker.Registry
	worker.HandleNone(&r, kind("p.full"), func(context.Context, *jobs.Job[task]) error { return nil })
	w, err := worker.New(through, &r, worker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "the pooler refused the connection") || !strings.Contains(err.Error(), "max_client_conn") {
		t.Errorf("got %v", err)
	}
}

func TestMigrationsRunThroughAPooler(t *testing.T) {
	t.Parallel()
	db := database(t)
	execute(t, db, "DROP SCHEMA jobgen CASCADE")
	pooler := pgbouncer.Start(t, db, "default_pool_size = 4")
	var g errgroup.Group
	for _, m := range append(modes, "cache_statement") {
		through := pooler.Pool(mode(m))
		g.Go(func() error { return jobs.Migrate(context.WithoutCancel(t.Context()), through) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	through := pooler.Pool(mode("exec"), "pool_max_conns=4")
	enqueue(t, through, kind("p.migrated"), task{})
	clean(t, through)
}

func TestAMigrationThatGetsNoSecondConnectionSaysSo(t *testing.T) {
	t.Parallel()
	db := database(t)
	execute(t, db, "DROP SCHEMA jobgen CASCADE")
	err := jobs.Migrate(t.Context(), pgbouncer.Start(t, db, "default_pool_size = 1").Pool())
	if err == nil || !strings.Contains(err.Error(), "default_pool_size") {
		t.Errorf("got %v", err)
	}
}

// What is a queue's name in the text of a statement is one in the simple protocol too.
func TestQueuesOfAnyNameWorkBehindAPooler(t *testing.T) {
	t.Parallel()
	db := database(t)
	pooler := pgbouncer.Start(t, db, "default_pool_size = 4")
	names := []string{"Capitals", "with spaces ", `"quoted"`, `it's`, `back\slash\`, "$1 ? :a @b", "; DROP TABLE effect; --", "/*", "schlüssel 🗝", "a\nb", strings.Repeat("q", jobs.MaxName)}
	for i, m := range modes {
		through := pooler.Pool(mode(m), "pool_max_conns=2")
		spec := kind("p.names." + m)
		w := start(t, through, worker.Config{Queues: names}, func(r *worker.Registry) {
			worker.HandleNone(r, spec, func(ctx context.Context, j *jobs.Job[task]) error {
				return leave(ctx, through, j.Payload.N, m+j.Queue)
			})
		})
		for _, name := range names {
			enqueue(t, through, spec, task{N: i}, jobs.Queue(name))
		}
		drained(t, db, soon)
		for _, name := range names {
			if n := one[int](t, db, `SELECT count(*) FROM effect WHERE what = $1`, m+name); n != 1 {
				t.Errorf("%s: the job of queue %q had %d effects", m, name, n)
			}
		}
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		var invalid *jobs.InvalidError
		if _, err := jobs.Enqueue(t.Context(), through, spec, task{}, jobs.Queue(strings.Repeat("q", 200))); !errors.As(err, &invalid) {
			t.Errorf("a name of 200 bytes: %v", err)
		}
	}
}
