package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/jobtest"
)

// deadJobs inserts n dead jobs of a kind.
func deadJobs(t *testing.T, pool *pgxpool.Pool, kind string, n int) {
	t.Helper()
	_, err := pool.Exec(t.Context(), `INSERT INTO jobgen.jobs (queue, kind, status, attempt, max_attempts, payload)
		SELECT 'q', $1, 'dead', 20, 20, '{}' FROM generate_series(1, $2)`, kind, n)
	if err != nil {
		t.Fatal(err)
	}
}

func TestRequeueingWakesASleepingWorker(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	op := postgres.Operator{Pool: pool}
	for name, requeue := range map[string]func() ([]int64, error){
		"by id":   func() ([]int64, error) { return op.Requeue(t.Context(), engine.Filter{}, 10) },
		"by kind": func() ([]int64, error) { return op.RequeueKind(t.Context(), "k", 0, 1<<62, 10) },
	} {
		deadJobs(t, pool, "k", 1)
		conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		id := uuid.New()
		if _, err := gen.New(conn).Sleep(t.Context(), gen.SleepParams{Queues: []string{"q"}, WorkerID: id, Kinds: []string{}}); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "LISTEN "+pgx.Identifier{"jobgen_" + id.String()}.Sanitize()); err != nil {
			t.Fatal(err)
		}
		if ids, err := requeue(); err != nil || len(ids) != 1 {
			t.Fatalf("%s: requeued %v, %v", name, ids, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if _, err := conn.WaitForNotification(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

func TestRequeueTakesWhatTheFilterSelectsAndNoMore(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	op := postgres.Operator{Pool: pool}
	deadJobs(t, pool, "k", 3) // 1 to 3
	deadJobs(t, pool, "l", 2) // 4, 5
	for _, c := range []struct {
		filter engine.Filter
		n      int
		want   int
	}{
		{engine.Filter{Queues: []string{"other"}}, 10, 0},
		{engine.Filter{Kinds: []string{"l"}, IDs: []int64{1, 4}}, 10, 1},
		{engine.Filter{Kinds: []string{"k"}}, 2, 2},
		{engine.Filter{}, 10, 2},
	} {
		if ids, err := op.Requeue(t.Context(), c.filter, c.n); err != nil || len(ids) != c.want {
			t.Errorf("%+v: requeued %v, %v; want %d", c.filter, ids, err, c.want)
		}
	}
}

// What operators ask must not read whole tables: it is asked in an incident, when they are large.
func TestWhatOperatorsAskIsServedByIndexesUnderAGenericPlan(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{
		`INSERT INTO jobgen.jobs (queue, kind, payload) SELECT 'q', 'k' || i % 5, '{}' FROM generate_series(1, 20000) i`,
		`INSERT INTO jobgen.jobs (queue, kind, status, payload) SELECT 'q', 'k' || i % 5, 'dead', '{}' FROM generate_series(1, 2000) i`,
		`INSERT INTO jobgen.job_result (kind, key, job_id) SELECT 'k' || i % 5, CASE WHEN i % 2 = 0 THEN 'job:' ELSE 'o-' END || i, i FROM generate_series(1, 20000) i`,
		`ANALYZE jobgen.jobs, jobgen.job_result`,
		`SET plan_cache_mode = force_generic_plan`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		call func(*gen.Queries) error
		args string
	}{
		{func(q *gen.Queries) error { _, err := q.RequeueKind(t.Context(), gen.RequeueKindParams{}); return err }, "'k1', 1, 1000000, 100"},
		{func(q *gen.Queries) error { _, err := q.ListDead(t.Context(), gen.ListDeadParams{}); return err }, "1000000, '{}', 51, '{}'"},
		{func(q *gen.Queries) error { _, err := q.CountDead(t.Context(), ""); return err }, "'k1'"},
		{func(q *gen.Queries) error { _, err := q.DeadKinds(t.Context()); return err }, ""},
		{func(q *gen.Queries) error { _, err := q.ShowResults(t.Context(), gen.ShowResultsParams{}); return err }, "true, '{17, 18}'"},
	} {
		sql, _ := captured(c.call)
		explain := "EXPLAIN " + sql
		if c.args != "" {
			if _, err := conn.Exec(t.Context(), "PREPARE q AS "+sql); err != nil {
				t.Fatal(err)
			}
			explain = "EXPLAIN EXECUTE q(" + c.args + ")"
		}
		rows, err := conn.Query(t.Context(), explain)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		if plan := strings.Join(lines, "\n"); strings.Contains(plan, "Seq Scan on jobs") || strings.Contains(plan, "Seq Scan on job_result") {
			t.Errorf("%s\nreads a whole table:\n%s", sql, plan)
		}
		if c.args != "" {
			if _, err := conn.Exec(t.Context(), "DEALLOCATE q"); err != nil {
				t.Fatal(err)
			}
		}
	}
}
