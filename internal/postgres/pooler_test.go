//go:build unix

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/pgbouncer"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/jobtest"
)

// behind is a fixture whose store works through a pooler.
func behind(t *testing.T, app func(*pgbouncer.Pooler) *pgxpool.Pool, settings ...string) *fixture {
	t.Helper()
	f := &fixture{T: t, pool: jobtest.DB(t)}
	var err error
	if f.store, err = postgres.Open(f.ctx(), app(pgbouncer.Start(t, f.pool, settings...))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.store.Close)
	return f
}

func deaf(f *fixture) bool {
	f.Helper()
	ctx, cancel := context.WithCancel(f.ctx())
	defer cancel()
	err := f.store.Listen(ctx, uuid.New(), cancel, func() {}, func() {})
	if !errors.Is(err, engine.ErrDeaf) && !errors.Is(err, context.Canceled) {
		f.Fatal(err)
	}
	return errors.Is(err, engine.ErrDeaf)
}

// Whether connections are shared is found out, also where the pooler rotates or has others to serve.
func TestASharedConnectionIsFoundOut(t *testing.T) {
	for name, c := range map[string]struct {
		settings []string
		busy     int
		deaf     bool
	}{
		"transaction mode":                        {[]string{"pool_mode = transaction"}, 0, true},
		"transaction mode, one connection":        {[]string{"default_pool_size = 1"}, 0, true},
		"transaction mode, rotating":              {[]string{"server_round_robin = 1"}, 0, true},
		"transaction mode, rotating, busy":        {[]string{"server_round_robin = 1"}, 4, true},
		"transaction mode, busy":                  {[]string{"default_pool_size = 3"}, 4, true},
		"transaction mode, busy, two connections": {[]string{"default_pool_size = 2"}, 2, true},
		"session mode":                            {[]string{"pool_mode = session", "default_pool_size = 20"}, 0, false},
		"session mode, rotating":                  {[]string{"pool_mode = session", "default_pool_size = 20", "server_round_robin = 1"}, 0, false},
		"session mode, busy":                      {[]string{"pool_mode = session", "default_pool_size = 20"}, 4, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var other *pgxpool.Pool
			f := behind(t, func(p *pgbouncer.Pooler) *pgxpool.Pool {
				other = p.Pool("default_query_exec_mode=exec")
				return p.Pool()
			}, c.settings...)
			ctx, stop := context.WithCancel(f.ctx())
			var turns atomic.Int64
			done := make(chan struct{})
			for range c.busy {
				go func() {
					defer func() { done <- struct{}{} }()
					for ctx.Err() == nil {
						if _, err := other.Exec(ctx, "SELECT pg_sleep(0.0005)"); err == nil {
							turns.Add(1)
						}
					}
				}()
			}
			for c.busy > 0 && turns.Load() < 20 && ctx.Err() == nil {
				f.until("SELECT true")
			}
			if err := f.store.Check(f.ctx()); err != nil {
				t.Error(err)
			}
			if got := deaf(f); got != c.deaf {
				t.Errorf("deaf: %v", got)
			}
			f.worker(time.Hour)
			f.expect(c.deaf, `SELECT pooled FROM jobgen.workers`)
			stop()
			for range c.busy {
				<-done
			}
		})
	}
}

func TestAServerIsNeverTakenForAPooler(t *testing.T) {
	t.Parallel()
	f := open(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		config := f.pool.Config()
		config.ConnConfig.DefaultQueryExecMode = mode
		app, err := pgxpool.NewWithConfig(f.ctx(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer app.Close()
		if f.store, err = postgres.Open(f.ctx(), app); err != nil {
			t.Fatal(err)
		}
		defer f.store.Close()
		if deaf(f) {
			t.Errorf("deaf in mode %v", mode)
		}
	}
}

// Each of a worker's statements runs under its settings, whatever the database's own, and leaves none of them behind.
func TestAWorkersSettingsHoldBehindAPooler(t *testing.T) {
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := &fixture{T: t, pool: jobtest.DB(t)}
			f.exec(fmt.Sprintf("ALTER DATABASE %s SET default_transaction_isolation = 'serializable'", pgx.Identifier{value[string](t, f.pool, "SELECT current_database()")}.Sanitize()))
			f.exec(`CREATE TABLE seen (op text, settings text);
				CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					INSERT INTO public.seen VALUES (TG_OP, (SELECT string_agg(current_setting(s), ' ') FROM unnest('{enable_seqscan,enable_sort,enable_incremental_sort,plan_cache_mode,jit,transaction_isolation,statement_timeout,lock_timeout}'::text[]) s));
					RETURN coalesce(NEW, OLD);
				END $$;
				CREATE TRIGGER see BEFORE UPDATE OR DELETE ON jobgen.jobs FOR EACH ROW EXECUTE FUNCTION see()`)
			pooler := pgbouncer.Start(t, f.pool, "default_pool_size = 1")
			app := pooler.Pool("default_query_exec_mode=" + mode)
			var err error
			if f.store, err = postgres.Open(f.ctx(), app); err != nil {
				t.Fatal(err)
			}
			defer f.store.Close()
			w := f.worker(time.Hour)
			f.enqueue(2)
			held := f.claim(w, 2)
			if len(held) != 2 {
				t.Fatalf("claimed %d", len(held))
			}
			done := []engine.Success{{Hold: holds(held)[0]}, {Hold: holds(held)[1]}}
			if got, err := f.store.Complete(f.ctx(), w.ID, done[:1]); err != nil || len(got) != 1 {
				t.Errorf("completed %v, %v", got, err)
			}
			f.expect("[off off off force_generic_plan off read committed 30s 0]", `SELECT array_agg(DISTINCT settings) FROM seen WHERE op = 'UPDATE'`)
			f.expect("[off off off force_generic_plan off read committed 30s 100ms]", `SELECT array_agg(DISTINCT settings) FROM seen WHERE op = 'DELETE'`)

			// The row that another session has locked is not waited for, and what failed leaves no transaction behind.
			locker := f.begin(f.connect())
			must(t, locker, "SELECT 1 FROM jobgen.jobs FOR UPDATE")
			if _, err := f.store.Complete(f.ctx(), w.ID, done[1:]); !errors.Is(err, engine.ErrLocked) {
				t.Errorf("got %v", err)
			}
			if err := locker.Rollback(f.ctx()); err != nil {
				t.Fatal(err)
			}
			if got, err := f.store.Complete(f.ctx(), w.ID, done[1:]); err != nil || len(got) != 1 {
				t.Errorf("completed %v, %v", got, err)
			}

			left := value[string](t, simple{app}, `SELECT concat_ws(' ', current_setting('enable_seqscan'), current_setting('plan_cache_mode'), current_setting('lock_timeout'),
				current_setting('transaction_isolation'), (SELECT count(*) FROM pg_prepared_statements WHERE name <> ''))`)
			if left != "on auto 0 serializable 0" {
				t.Errorf("the connection is left with %s", left)
			}
		})
	}
}

// simple asks by the simple protocol, which prepares nothing.
type simple struct{ *pgxpool.Pool }

func (s simple) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return s.Pool.QueryRow(ctx, sql, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
}

// What a pooler says of a connection that it lost says nothing of the statement.
func TestAPoolersErrorLeavesTheOutcomeOpen(t *testing.T) {
	t.Parallel()
	err := postgres.Translate(&pgconn.PgError{Severity: "FATAL", Code: "08P01", Message: "server conn crashed?"})
	if !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("got %v", err)
	}
}
