package postgres_test

import (
	"context"
	"math"
	"slices"
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

// walk goes to the end, most at a time, and gives what it found.
func walk(t *testing.T, pool *pgxpool.Pool, f engine.Filter, down bool, most int) (found []int64, w *postgres.Walk) {
	t.Helper()
	w, err := postgres.Operator{Pool: pool}.Walk(t.Context(), f, down, 0)
	if err != nil {
		t.Fatal(err)
	}
	for !w.Done() {
		ids, err := w.Next(t.Context(), most)
		if err != nil {
			t.Fatal(err)
		}
		if len(ids) > most {
			t.Fatalf("%d ids, asked for %d at most", len(ids), most)
		}
		found = append(found, ids...)
	}
	return found, w
}

func execAll(t *testing.T, pool *pgxpool.Pool, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// one job of each sort: 1 ready, 2 scheduled, 3 running, 4 dead, 5 ready but run by lock, 6 dead of another kind, 7 ready in
// another queue.
func sorts(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := jobtest.DB(t)
	w, dead := uuid.New().String(), uuid.New().String()
	execAll(t, pool,
		`INSERT INTO jobgen.workers (id, pid, host, build, queues, kinds, lease_until) VALUES ('`+w+`', 1, 'h', 'b', '{q}', '{k}', clock_timestamp() + interval '1 hour')`,
		`INSERT INTO jobgen.jobs (queue, kind, payload, created_at) VALUES ('q', 'k', '{"order": {"id": 17, "tags": ["a", "b.c"]}, "a.b": true, "n": null}', now() - interval '3 hours')`,
		`INSERT INTO jobgen.jobs (queue, kind, payload, run_at) VALUES ('q', 'k', '{"order": {"id": "17"}}', now() + interval '1 hour')`,
		`INSERT INTO jobgen.jobs (queue, kind, payload, status, worker_id, fence, attempt, claimed_at) VALUES ('q', 'k', '{"order": {"id": 170}}', 'running', '`+w+`', 7, 1, now())`,
		`INSERT INTO jobgen.claims (worker_id, fence, ids) VALUES ('`+w+`', 7, '{3,99}')`,
		`INSERT INTO jobgen.jobs (queue, kind, key, payload, status, attempt, last_error) VALUES ('q', 'k', 'o-4', '[17]', 'dead', 20, E'Timeout after 30s\nat 100%_x')`,
		`INSERT INTO jobgen.job_result (kind, key, job_id) VALUES ('k', 'o-4', 4)`,
		`INSERT INTO jobgen.jobs (queue, kind, payload, run_at) VALUES ('q', 'k', '17', now() - interval '2 hours')`,
		`INSERT INTO jobgen.job_start (job_id, worker_id) VALUES (5, '`+w+`'), (1, '`+dead+`')`,
		`INSERT INTO jobgen.jobs (queue, kind, key, payload, status) VALUES ('q', 'l', 'o-6', '{}', 'dead')`,
		`INSERT INTO jobgen.jobs (queue, kind, payload, run_at) VALUES ('r', 'k', '{}', now() - interval '1 minute')`,
	)
	return pool
}

func TestEachFilterSelectsWhatItSaysUpAndDown(t *testing.T) {
	t.Parallel()
	pool := sorts(t)
	ago := func(d time.Duration) *time.Time { at := time.Now().Add(-d); return &at }
	want := func(text, json string, path ...string) []engine.Want {
		w := engine.Want{Path: path, Text: text}
		if json != "" {
			w.JSON = []byte(json)
		}
		return []engine.Want{w}
	}
	for name, c := range map[string]struct {
		f    engine.Filter
		want []int64
	}{
		"nothing":             {engine.Filter{}, []int64{1, 2, 3, 4, 5, 6, 7}},
		"kind":                {engine.Filter{Kinds: []string{"l", "none"}}, []int64{6}},
		"queue":               {engine.Filter{Queues: []string{"r"}}, []int64{7}},
		"queued":              {engine.Filter{Statuses: []string{"queued"}}, []int64{1, 2, 7}},
		"ready":               {engine.Filter{Statuses: []string{"ready"}}, []int64{1, 7}},
		"scheduled":           {engine.Filter{Statuses: []string{"scheduled"}}, []int64{2}},
		"running":             {engine.Filter{Statuses: []string{"running"}}, []int64{3, 5}},
		"running and dead":    {engine.Filter{Statuses: []string{"running", "dead"}}, []int64{3, 4, 5, 6}},
		"dead":                {engine.Filter{Statuses: []string{"dead"}}, []int64{4, 6}},
		"dead of a kind":      {engine.Filter{Statuses: []string{"dead"}, Kinds: []string{"k"}}, []int64{4}},
		"ids":                 {engine.Filter{IDs: []int64{2, 6, 99}, Statuses: []string{"dead"}}, []int64{6}},
		"key":                 {engine.Filter{Key: "o-4"}, []int64{4}},
		"dead with a key":     {engine.Filter{Key: "o-6", Statuses: []string{"dead"}}, []int64{6}},
		"older":               {engine.Filter{CreatedBefore: ago(2 * time.Hour)}, []int64{1}},
		"newer":               {engine.Filter{CreatedAfter: ago(2 * time.Hour)}, []int64{2, 3, 4, 5, 6, 7}},
		"waiting":             {engine.Filter{DueBefore: ago(time.Hour)}, []int64{5}},
		"error":               {engine.Filter{Error: "tIMEOUT"}, []int64{4}},
		"error is no pattern": {engine.Filter{Error: "100%_"}, []int64{4}},
		"error, not a match":  {engine.Filter{Error: "%"}, []int64{4}},
		"payload":             {engine.Filter{Payload: want("17", "17", "order", "id")}, []int64{1, 2}},
		"payload, number":     {engine.Filter{Payload: want("17.0", "17.0", "order", "id")}, []int64{1}},
		"payload, string":     {engine.Filter{Payload: want(`"17"`, `"17"`, "order", "id")}, []int64{2}},
		"payload, in a list":  {engine.Filter{Payload: want("b.c", "", "order", "tags", "1")}, []int64{1}},
		"payload, a list":     {engine.Filter{Payload: want(`["a","b.c"]`, `["a","b.c"]`, "order", "tags")}, []int64{1}},
		"payload, null":       {engine.Filter{Payload: want("null", "null", "n")}, []int64{1}},
		"payload, a point":    {engine.Filter{Payload: want("true", "true", "a.b")}, []int64{1}},
		"payload, first":      {engine.Filter{Payload: want("17", "17", "0")}, []int64{4}},
		"payload, injection":  {engine.Filter{Payload: want("17", "", `order') OR true --`)}, nil},
		"payload, two":        {engine.Filter{Payload: append(want("17", "17", "order", "id"), want("a", "", "order", "tags", "0")...)}, []int64{1}},
		"all at once": {engine.Filter{Kinds: []string{"k"}, Queues: []string{"q"}, Statuses: []string{"dead"}, Key: "o-4", Error: "30s", CreatedAfter: ago(time.Hour),
			Payload: want("17", "17", "0")}, []int64{4}},
	} {
		for _, most := range []int{1, 100} {
			if got, _ := walk(t, pool, c.f, false, most); !slices.Equal(got, c.want) {
				t.Errorf("%s, up by %d: got %v, want %v", name, most, got, c.want)
			}
			got, _ := walk(t, pool, c.f, true, most)
			if slices.Reverse(got); !slices.Equal(got, c.want) && name != "ids" {
				t.Errorf("%s, down by %d: got (reversed) %v, want %v", name, most, got, c.want)
			}
		}
	}
}

func TestAWalkLooksAtEachJobOnceAndTellsHowFarItIs(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	execAll(t, pool, `INSERT INTO jobgen.jobs (queue, kind, payload, status) SELECT 'q', 'k' || i % 3, to_jsonb(i), CASE WHEN i % 10 = 0 THEN 'dead' ELSE 'queued' END FROM generate_series(1, 9000) i`,
		`DELETE FROM jobgen.jobs WHERE id BETWEEN 3000 AND 4999`)
	for _, down := range []bool{false, true} {
		got, w := walk(t, pool, engine.Filter{Payload: []engine.Want{{Path: []string{}, Text: "8999"}}}, down, 10)
		if !slices.Equal(got, []int64{8999}) || w.Looked != 7000 || w.At != w.Last {
			t.Errorf("down %v: found %v, looked at %d of 7000 jobs, and is at %d of %d", down, got, w.Looked, w.At, w.Last)
		}
		if got, w := walk(t, pool, engine.Filter{}, down, 700); len(got) != 7000 || w.Looked != 7000 {
			t.Errorf("down %v: found %d, looked at %d", down, len(got), w.Looked)
		}
		if got, w := walk(t, pool, engine.Filter{Statuses: []string{"dead"}, Kinds: []string{"k1", "k2"}}, down, 100); len(got) != 467 || w.Looked != 467 || !slices.IsSortedFunc(got, func(a, b int64) int {
			if down {
				return int(b - a)
			}
			return int(a - b)
		}) {
			t.Errorf("down %v: found %d dead ones, looked at %d: %v", down, len(got), w.Looked, got)
		}
	}
	// What a page does not need is not looked at.
	w, err := postgres.Operator{Pool: pool}.Walk(t.Context(), engine.Filter{}, true, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	if ids, err := w.Next(t.Context(), 51); err != nil || len(ids) != 51 || w.Looked != 51 || ids[0] != 9000 {
		t.Errorf("the first page: %v, %v; looked at %d", ids, err, w.Looked)
	}
}

func TestAWalkUpEndsThoughJobsKeepComing(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	insert := `INSERT INTO jobgen.jobs (queue, kind, payload) SELECT 'q', 'k', '{}' FROM generate_series(1, 10)`
	execAll(t, pool, insert)
	w, err := postgres.Operator{Pool: pool}.Walk(t.Context(), engine.Filter{}, false, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for !w.Done() {
		ids, err := w.Next(t.Context(), 3)
		if err != nil {
			t.Fatal(err)
		}
		n += len(ids)
		execAll(t, pool, insert)
		if n > 10 {
			t.Fatal("it meets what was enqueued meanwhile")
		}
	}
	if n != 10 {
		t.Errorf("met %d of 10", n)
	}
}

// A step of a walk must not read what it does not look at, however it is planned.
func TestAWalkIsServedByIndexes(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	execAll(t, pool, `INSERT INTO jobgen.jobs (queue, kind, payload, status) SELECT 'q', 'k' || i % 5, '{}', CASE WHEN i % 10 = 0 THEN 'dead' ELSE 'queued' END FROM generate_series(1, 30000) i`,
		`INSERT INTO jobgen.job_archive (job_id, status, queue, kind, version, attempt, crashes, payload, created_at, expires_at)
			SELECT 100000 + i, 'cancelled', 'q', 'k', 1, 0, 0, '{}', now(), now() + interval '1 day' FROM generate_series(1, 20000) i`)
	check := func(when, mode string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), "SET plan_cache_mode = "+mode); err != nil {
			t.Fatal(err)
		}
		sql, _ := postgres.Captured(func(q *gen.Queries) error { _, err := q.Walk(t.Context(), gen.WalkParams{}); return err })
		archive, _ := postgres.Captured(func(q *gen.Queries) error { _, err := q.WalkArchive(t.Context(), gen.WalkArchiveParams{}); return err })
		for _, c := range []struct{ sql, args string }{
			{sql, "10, 'up', 100, 5000, 1000000, '{}', '{}', '{}', '{}', '', null, null, null, '', ''"},
			{sql, "10, 'down', 100, 0, 20000, '{k1}', '{}', '{}', '{ready}', '', null, null, null, 'x', ''"},
			{sql, "10, 'dead up', 100, 5000, 1000000, '{}', '{}', '{}', '{dead}', '', null, null, null, '', ''"},
			{sql, "10, 'dead down', 100, 0, 20000, '{}', '{}', '{}', '{dead}', '', null, null, null, '', ''"},
			{sql, "10, 'ids', 3, 0, 20000, '{}', '{1,2,3}', '{}', '{}', '', null, null, null, '', ''"},
			{archive, "10, 100, 110000, '{}', '{}', '{cancelled}', '', null, null, '', ''"},
		} {
			if _, err := conn.Exec(t.Context(), "PREPARE q AS "+c.sql); err != nil {
				t.Fatal(err)
			}
			rows, err := conn.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) EXECUTE q("+c.args+")")
			if err != nil {
				t.Fatal(err)
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			plan := strings.Join(lines, "\n")
			for _, line := range lines {
				if strings.Contains(line, "Seq Scan on job") && !strings.Contains(line, "never executed") && !strings.Contains(line, "job_start") {
					t.Errorf("%s, %s: %s reads a whole table:\n%s", when, mode, c.args, plan)
				}
			}
			if _, err := conn.Exec(t.Context(), "DEALLOCATE q"); err != nil {
				t.Fatal(err)
			}
		}
	}
	check("not analyzed", "force_custom_plan")
	execAll(t, pool, "ANALYZE jobgen.jobs, jobgen.job_archive, jobgen.job_start")
	check("analyzed", "force_custom_plan")
	check("analyzed", "force_generic_plan")
}
