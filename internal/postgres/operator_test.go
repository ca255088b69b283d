package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
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

func TestRequeueingAndEditingWakeASleepingWorker(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	op := postgres.Operator{Pool: pool}
	newest := int64(0)
	for name, change := range map[string]func() (bool, error){
		"requeue": func() (bool, error) {
			ids, _, err := op.Requeue(t.Context(), []int64{newest}, 0, 0)
			return len(ids) == 1, err
		},
		"edit": func() (bool, error) {
			if _, err := pool.Exec(t.Context(), "UPDATE jobgen.jobs SET status = 'queued', attempt = 0"); err != nil {
				return false, err
			}
			seen, err := op.Editable(t.Context(), newest)
			if err != nil {
				return false, err
			}
			now := time.Duration(0)
			return op.Edit(t.Context(), seen, postgres.Edit{Delay: &now})
		},
	} {
		newest++
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
		if done, err := change(); err != nil || !done {
			t.Fatalf("%s: %v, %v", name, done, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if _, err := conn.WaitForNotification(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

// Between being selected and their turn, jobs start, die and are requeued: a change is for those that still are what was
// asked for.
func TestAChangeLeavesWhatIsNotWhatWasAskedForAnyMore(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	op := postgres.Operator{Pool: pool}
	deadJobs(t, pool, "k", 1) // 1
	execAll(t, pool, `INSERT INTO jobgen.jobs (queue, kind, payload) VALUES ('q', 'k', '{}')`,
		`INSERT INTO jobgen.jobs (queue, kind, payload, status, worker_id, fence, attempt) VALUES ('q', 'k', '{}', 'running', gen_random_uuid(), 1, 1)`)
	all := []int64{1, 2, 3}
	for _, c := range []struct {
		statuses []string
		want     string
	}{{[]string{"dead"}, "[1] []"}, {[]string{"queued"}, "[2] []"}, {[]string{"running"}, "[] [3]"}} {
		cancelled, asked, err := op.CancelMany(t.Context(), all, c.statuses, "")
		if got := fmt.Sprint(cancelled, asked); err != nil || got != c.want {
			t.Errorf("cancel %v: %s, %v; want %s", c.statuses, got, err, c.want)
		}
	}
	deadJobs(t, pool, "k", 1) // 4
	execAll(t, pool, `INSERT INTO jobgen.jobs (queue, kind, payload) VALUES ('q', 'k', '{}')`)
	all = []int64{3, 4, 5}
	for _, c := range []struct {
		statuses []string
		want     string
	}{{[]string{"running"}, "[]"}, {[]string{"queued"}, "[5]"}, {[]string{"dead"}, "[4]"}} {
		if gone, err := op.Delete(t.Context(), all, c.statuses, ""); err != nil || fmt.Sprint(gone) != c.want {
			t.Errorf("delete %v: %v, %v; want %s", c.statuses, gone, err, c.want)
		}
	}
	execAll(t, pool, `INSERT INTO jobgen.jobs (queue, kind, payload) VALUES ('q', 'k', '{}')`)
	if requeued, taken, err := op.Requeue(t.Context(), []int64{3, 6, 99}, 0, 0); err != nil || len(requeued)+len(taken) != 0 {
		t.Errorf("requeue of what is not dead: %v, %v, %v", requeued, taken, err)
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
		{func(q *gen.Queries) error { _, err := q.RequeueJobs(t.Context(), gen.RequeueJobsParams{}); return err }, "'{17, 18}', 0, 0"},
		{func(q *gen.Queries) error { _, err := q.DeleteJobs(t.Context(), gen.DeleteJobsParams{}); return err }, "'{17, 18}', '{dead}', ''"},
		{func(q *gen.Queries) error { _, err := q.ListJobs(t.Context(), nil); return err }, "'{17, 18}'"},
		{func(q *gen.Queries) error { _, err := q.TallyJobs(t.Context(), nil); return err }, "'{17, 18}'"},
		{func(q *gen.Queries) error { _, err := q.KeyHolders(t.Context(), nil); return err }, "'{17, 18}'"},
		{func(q *gen.Queries) error { _, err := q.KeyIDs(t.Context(), ""); return err }, "'o-17'"},
		{func(q *gen.Queries) error { _, err := q.NewestID(t.Context()); return err }, ""},
		{func(q *gen.Queries) error { _, err := q.DeadKinds(t.Context()); return err }, ""},
		{func(q *gen.Queries) error { _, err := q.ShowResults(t.Context(), gen.ShowResultsParams{}); return err }, "true, '{17, 18}'"},
	} {
		sql, _ := postgres.Captured(c.call)
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
