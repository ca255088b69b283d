package jobs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"golang.org/x/sync/errgroup"

	"github.com/jobgen-go/jobgen/internal/pgbouncer"
	"github.com/jobgen-go/jobgen/internal/pgproxy"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/jobs"
)

// ways are the two ways of EnqueueMany without keys, by how many jobs they are for.
var ways = map[string]int{"inserted": postgres.CopyFrom - 1, "copied": postgres.CopyFrom}

func orders(n int) []order {
	os := make([]order, n)
	for i := range os {
		os[i].ID = fmt.Sprint(i)
	}
	return os
}

// copies counts the COPYs on the connections of a pool.
type copies struct{ n atomic.Int32 }

func (*copies) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (*copies) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *copies) TraceCopyFromStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceCopyFromStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (*copies) TraceCopyFromEnd(context.Context, *pgx.Conn, pgx.TraceCopyFromEndData) {}

func (c *copies) on(f *fixture) *pgxpool.Pool {
	return with(f.T, f.pool, func(config *pgxpool.Config) { config.ConnConfig.Tracer, config.MaxConns = c, 1 })
}

// stored checks that refs are the jobs of os, one by one, and the only ones.
func (f *fixture) stored(refs []jobs.Ref[jobs.None], os []order) {
	f.Helper()
	if len(refs) != len(os) {
		f.Fatalf("%d references for %d payloads", len(refs), len(os))
	}
	ids, want := make([]int64, len(refs)), make([]string, len(refs))
	for i, r := range refs {
		if ids[i], want[i] = r.ID, os[i].ID; r.Existing || r.Kind != plain.Kind || i > 0 && r.ID <= refs[i-1].ID {
			f.Fatalf("ref %d is %+v", i, r)
		}
	}
	f.expect(len(refs), `SELECT count(*) FROM jobgen.jobs j JOIN unnest($1::bigint[], $2::text[]) AS e (id, name) ON j.id = e.id AND j.payload->>'id' = e.name`, ids, want)
	f.expect(len(refs), `SELECT count(*) FROM jobgen.jobs`)
}

func TestManyJobsAreCopiedWhereverPgxCan(t *testing.T) {
	t.Parallel()
	f := open(t)
	var seen copies
	pool := seen.on(f)
	sqlPool := with(t, f.pool, func(config *pgxpool.Config) { config.ConnConfig.Tracer = &seen })
	sql := stdlib.OpenDBFromPool(sqlPool)
	defer sql.Close()
	within := func(do func(jobs.DB)) func() {
		return func() {
			f.no(pgx.BeginFunc(f.ctx(), pool, func(tx pgx.Tx) error { do(tx); return nil }))
		}
	}
	conn := func(do func(*pgxpool.Conn)) func() {
		return func() { f.no(pool.AcquireFunc(f.ctx(), func(c *pgxpool.Conn) error { do(c); return nil })) }
	}
	for way, n := range ways {
		many := func(db jobs.DB) {
			refs, err := jobs.EnqueueMany(f.ctx(), db, plain, orders(n))
			f.no(err)
			if _, isTx := db.(pgx.Tx); !isTx {
				f.stored(refs, orders(n))
			}
		}
		for name, c := range map[string]struct {
			do  func()
			can bool
		}{
			"pool":              {func() { many(pool) }, true},
			"producer":          {func() { many((&jobs.Producer{}).On(pool)) }, true},
			"pooled connection": {conn(func(c *pgxpool.Conn) { many(c) }), true},
			"connection":        {conn(func(c *pgxpool.Conn) { many(c.Conn()) }), true},
			"transaction":       {within(many), true},
			"savepoint": {within(func(tx jobs.DB) {
				f.no(pgx.BeginFunc(f.ctx(), tx.(pgx.Tx), func(tx pgx.Tx) error { many(tx); return nil }))
			}), true},
			"what has only Begin": {func() { many(struct{ beginner }{pool}) }, true},
			"what has no Begin":   {func() { many(struct{ jobs.DB }{pool}) }, false},
			"database/sql":        {func() { many(jobs.SQL(sql)) }, false},
		} {
			f.exec("TRUNCATE jobgen.jobs")
			seen.n.Store(0)
			c.do()
			f.expect(n, "SELECT count(*) FROM jobgen.jobs")
			if is := seen.n.Load() == 1; is != (c.can && way == "copied") {
				t.Errorf("%s on a %s: %d COPYs", way, name, seen.n.Load())
			}
		}
	}
}

type beginner interface {
	jobs.DB
	Begin(context.Context) (pgx.Tx, error)
}

func TestJobsAreTheSameWhicheverWayTheyAreStored(t *testing.T) {
	t.Parallel()
	f := open(t)
	noon := time.Date(2031, 5, 6, 12, 0, 0, 123456789, time.UTC)
	for name, opts := range map[string][]jobs.Option{
		"by default":             nil,
		"with all there is":      {jobs.Queue("other"), jobs.Priority(9), jobs.MaxAttempts(3), jobs.At(noon), jobs.Deadline(noon.Add(time.Hour)), jobs.Headers(map[string]string{"a": `"é`})},
		"with what they are":     {jobs.Priority(0), jobs.MaxAttempts(20), jobs.In(-time.Hour)},
		"the later, the earlier": {jobs.At(noon), jobs.In(time.Hour), jobs.Deadline(noon.Add(time.Hour)), jobs.Within(50 * 365 * 24 * time.Hour)},
	} {
		for version := range 3 {
			s := *plain
			s.Version = version
			var rows []string
			for _, n := range ways {
				f.exec("TRUNCATE jobgen.jobs")
				os := orders(n)
				os[0].Note = `quote ' backslash \ dollar $1 "x" ☃`
				_, err := jobs.EnqueueMany(f.ctx(), f.pool, &s, os, opts...)
				f.no(err)
				rows = append(rows, value[string](t, f.pool, `SELECT string_agg(DISTINCT (to_jsonb(j) - '{id,payload,created_at,run_at,deadline}'::text[] || jsonb_build_object(
						'runs', CASE WHEN run_at > '2031-01-01' THEN run_at::text ELSE round(extract(epoch FROM run_at - created_at) / 10)::text END,
						'expires', CASE WHEN deadline > '2031-01-01' THEN deadline::text ELSE round(extract(epoch FROM deadline - created_at) / 10)::text END,
						'created', created_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp()))::text, ' ') || min(payload::text COLLATE "C") FROM jobgen.jobs j`))
			}
			if rows[0] != rows[1] {
				t.Errorf("%s, version %d:\n%s\n%s", name, version, rows[0], rows[1])
			}
		}
	}
}

func TestADeadlineOfManyCountsFromTheEnqueue(t *testing.T) {
	t.Parallel()
	f := open(t)
	for _, n := range ways {
		_, err := jobs.EnqueueMany(f.ctx(), f.pool, plain, orders(n), jobs.Within(time.Hour), jobs.In(time.Minute))
		f.no(err)
	}
	f.expect(true, `SELECT bool_and(deadline - created_at BETWEEN interval '59 minutes' AND interval '60 minutes' AND run_at - created_at BETWEEN interval '59 seconds' AND interval '61 seconds') FROM jobgen.jobs`)
}

// What is refused before anything is sent leaves the caller's transaction as it was; what the database refuses ends it.
func TestOneOfManyThatCannotBeStored(t *testing.T) {
	t.Parallel()
	f := open(t)
	for way, n := range ways {
		for problem, bad := range map[string]doc{"Text: has a NUL": {Text: "\x00"}, "was refused by the database": {Raw: json.RawMessage("1e1000000")}} {
			all := make([]doc, n)
			all[n/2] = bad
			field, usable := fmt.Sprint("payload ", n/2), true
			if strings.Contains(problem, "database") {
				field, usable = "payload", false
			}
			_, err := jobs.EnqueueMany(f.ctx(), f.pool, docs, all)
			refused(t, err, field, problem)
			tx := f.begin(pgx.TxOptions{})
			_, err = jobs.Enqueue(f.ctx(), tx, docs, doc{})
			f.no(err)
			_, err = jobs.EnqueueMany(f.ctx(), tx, docs, all)
			refused(t, err, field, problem)
			if _, err = jobs.Enqueue(f.ctx(), tx, docs, doc{}); (err == nil) != usable {
				t.Errorf("%s, %s: the transaction goes on with %v", way, problem, err)
			}
			f.no(tx.Rollback(f.ctx()))
			f.counts(0, 0)
		}
	}
}

func TestG1ManyJobsAreOfTheCallersTransaction(t *testing.T) {
	t.Parallel()
	for way, n := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			tx := f.begin(pgx.TxOptions{})
			save, err := tx.Begin(f.ctx())
			f.no(err)
			_, err = jobs.EnqueueMany(f.ctx(), save, plain, orders(n))
			f.no(err)
			f.no(save.Rollback(f.ctx()))
			refs, err := jobs.EnqueueMany(f.ctx(), tx, plain, orders(n))
			f.no(err)
			f.counts(0, 0)
			f.no(tx.Commit(f.ctx()))
			f.stored(refs, orders(n))
			// A transaction that the caller has open on a connection stays open.
			conn := f.connect()
			_, err = conn.Exec(f.ctx(), "BEGIN")
			f.no(err)
			_, err = jobs.EnqueueMany(f.ctx(), conn, plain, orders(n))
			f.no(err)
			_, err = conn.Exec(f.ctx(), "ROLLBACK")
			f.no(err)
			f.counts(n, 0)
			// One that is broken already stays so.
			tx = f.begin(pgx.TxOptions{})
			if _, err := tx.Exec(f.ctx(), "SELECT 1/0"); err == nil {
				t.Fatal("no error")
			}
			if _, err := jobs.EnqueueMany(f.ctx(), tx, plain, orders(n)); err == nil || !strings.Contains(err.Error(), "25P02") {
				t.Errorf("in a broken transaction: %v", err)
			}
			f.no(tx.Rollback(f.ctx()))
			ctx, cancel := context.WithCancel(f.ctx())
			cancel()
			if _, err := jobs.EnqueueMany(ctx, f.pool, plain, orders(n)); err == nil {
				t.Error("a cancelled enqueue gave no error")
			}
			f.counts(n, 0)
		})
	}
}

func TestManyJobsUnderEachOfPgxsProtocols(t *testing.T) {
	t.Parallel()
	f := open(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		pool := with(t, f.pool, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
		for _, n := range ways {
			f.exec("TRUNCATE jobgen.jobs")
			refs, err := jobs.EnqueueMany(f.ctx(), pool, plain, orders(n), jobs.Within(time.Hour), jobs.Headers(map[string]string{"a": "b"}), jobs.Priority(1))
			if err != nil {
				t.Fatalf("%v: %v", mode, err)
			}
			f.stored(refs, orders(n))
			f.expect(n, `SELECT count(*) FROM jobgen.jobs WHERE headers = '{"a": "b"}' AND priority = 1 AND deadline BETWEEN run_at + interval '59 minutes' AND run_at + interval '61 minutes'`)
		}
	}
}

func TestConcurrentCallersOfManyGetTheirOwnJobs(t *testing.T) {
	t.Parallel()
	f := open(t)
	var g errgroup.Group
	const callers = 4
	all := make([][]jobs.Ref[jobs.None], callers)
	for i := range all {
		g.Go(func() (err error) {
			os := orders(2 * postgres.CopyFrom)
			for j := range os {
				os[j].Note = fmt.Sprint(i)
			}
			all[i], err = jobs.EnqueueMany(f.ctx(), f.pool, plain, os)
			return err
		})
		g.Go(func() error { // beside them, so that the ids have gaps
			for range 100 {
				if _, err := jobs.Enqueue(f.ctx(), f.pool, plain, order{ID: "single"}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	f.no(g.Wait())
	for i, refs := range all {
		var ids []int64
		for _, r := range refs {
			ids = append(ids, r.ID)
		}
		f.expect(2*postgres.CopyFrom, `SELECT count(*) FROM jobgen.jobs j JOIN unnest($1::bigint[]) WITH ORDINALITY e (id, nr) USING (id)
			WHERE j.payload->>'note' = $2 AND (j.payload->>'id')::int = e.nr - 1`, ids, fmt.Sprint(i))
	}
}

// bomb panics while it is encoded.
type bomb struct{ armed bool }

func (b bomb) MarshalJSON() ([]byte, error) {
	if b.armed {
		panic("bomb")
	}
	return []byte("{}"), nil
}

// A payload's MarshalJSON runs in the caller's goroutine, while the database is at work already.
func TestAPanicWhileManyAreEncodedLeavesNothing(t *testing.T) {
	t.Parallel()
	f := open(t)
	var seen copies
	pool := seen.on(f) // one connection: it must come back
	bombs := &jobs.Spec[bomb, jobs.None]{Kind: "test.bomb", Queue: "q"}
	for way, n := range ways {
		all := make([]bomb, n)
		all[n-1].armed = true
		func() {
			defer func() {
				if p := recover(); p != "bomb" {
					t.Errorf("%s: panicked with %v", way, p)
				}
			}()
			_, err := jobs.EnqueueMany(f.ctx(), pool, bombs, all)
			t.Errorf("%s: no panic, %v", way, err)
		}()
		f.counts(0, 0)
		_, err := jobs.EnqueueMany(f.ctx(), pool, bombs, all[:n-1])
		f.no(err)
		f.exec("TRUNCATE jobgen.jobs")
	}
}

// Jobs that are copied take a transaction of their own: cut anywhere, all are there or none.
func TestManyJobsCutAtAnyMessage(t *testing.T) {
	t.Parallel()
	for _, act := range []pgproxy.Act{pgproxy.CutBefore, pgproxy.CutDuring, pgproxy.CutShort} {
		t.Run(act.String(), func(t *testing.T) {
			t.Parallel()
			f := open(t)
			slow, network := cut(t, f.pool)
			n := 0
			for ended := false; !ended; {
				n++
				slow.Reset()
				f.exec("TRUNCATE jobgen.jobs")
				fired := network.On(func(m pgproxy.Message) bool { return m.Type != 'X' && !m.Cancel }, n, act)
				refs, err := jobs.EnqueueMany(f.ctx(), slow, plain, orders(postgres.CopyFrom))
				if err != nil {
					receive(f, fired.Done())
				}
				select {
				case <-fired.Done():
				default:
					ended = true // the conversation has fewer messages
				}
				fired.Disarm()
				switch here := value[int](t, f.pool, `SELECT count(*) FROM jobgen.jobs`); {
				case err == nil:
					f.stored(refs, orders(postgres.CopyFrom))
				case here != 0 && here != postgres.CopyFrom:
					t.Errorf("cut at message %d: %d jobs", n, here)
				case here != 0 && !errors.Is(err, jobs.ErrUnknown):
					t.Errorf("cut at message %d: the jobs are there, and the error is %v", n, err)
				}
			}
			if n < 10 {
				t.Errorf("the conversation has %d messages", n)
			}
		})
	}
}

func TestManyJobsThroughAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"exec", "cache_describe", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			through := pgbouncer.Start(t, f.pool, "default_pool_size = 2").Pool("default_query_exec_mode="+mode, "pool_max_conns=6")
			var g errgroup.Group
			for range 6 {
				g.Go(func() error {
					refs, err := jobs.EnqueueMany(f.ctx(), through, plain, orders(postgres.CopyFrom))
					if err == nil && len(refs) != postgres.CopyFrom {
						err = fmt.Errorf("%d references", len(refs))
					}
					return err
				})
			}
			f.no(g.Wait())
			f.expect(6*postgres.CopyFrom, `SELECT count(*) FROM jobgen.jobs`)
		})
	}
}
