//go:build unix

package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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
				fails := answering("p.fails")
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
				drained(t, db, soon)
				got := fmt.Sprint(all[string](t, db, `SELECT what || ' ' || count(*) || ' ' || count(DISTINCT n) FROM effect GROUP BY what ORDER BY what COLLATE "C"`))
				if want := "[ 50 50 follows 1 1 in a transaction 1 1 keyed 3 3 tx 1 1]"; got != want {
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

var _ = sync.Mutex{}
var _ = syscall.SIGKILL
