package schema_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobtest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func texts(t *testing.T, pool *pgxpool.Pool, sql string) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%v: %s", err, sql)
	}
	return lines
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%v: %s", err, sql)
	}
}

// What programs and people read of the views may only grow at the end.
func TestTheColumnsOfTheViewsStayAsTheyAre(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	got := strings.Join(texts(t, pool, `
		SELECT c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
		WHERE c.relnamespace = 'jobgen'::regnamespace AND c.relkind = 'v' AND a.attnum > 0
		ORDER BY c.relname, a.attnum`), "\n") + "\n" +
		strings.Join(texts(t, pool, `SELECT proname || '(' || pg_get_function_identity_arguments(oid) || ') ' || pg_get_function_result(oid)
			FROM pg_proc WHERE pronamespace = 'jobgen'::regnamespace`), "\n") + "\n"
	const file = "testdata/views.txt"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the views have changed: got\n%s\nwant\n%s", got, want)
	}
}

// someWorker is alive, the other one lost.
const someWorker, otherWorker = "'b5b2a1f0-5a1c-4d7e-9b1a-1f0a5a1c4d7e'", "'c5b2a1f0-5a1c-4d7e-9b1a-1f0a5a1c4d7e'"

// furnish has something for each view to tell.
func furnish(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	exec(t, pool, `INSERT INTO jobgen.workers (id, lease_until, lost_at, pid, host, build, queues, kinds, slots, running) VALUES
		(`+someWorker+`, clock_timestamp() + interval '1 hour', NULL, 7, 'web-1', 'v1', '{mail}', '{mail.send}', 10, 1),
		(`+otherWorker+`, clock_timestamp() - interval '1 hour', clock_timestamp(), 8, 'web-2', 'v1', '{mail}', '{mail.send}', NULL, NULL)`)
	exec(t, pool, `INSERT INTO jobgen.jobs (id, queue, kind, key, payload, status, attempt, max_attempts, worker_id, fence, claimed_at, run_at, last_error) VALUES
		(1, 'mail', 'mail.send', 'k', '{}', 'queued', 0, 3, NULL, 0, NULL, now(), NULL),
		(2, 'mail', 'mail.send', NULL, '{}', 'running', 1, 3, `+someWorker+`, 5, now() - interval '1 minute', now(), NULL),
		(3, 'mail', 'mail.send', NULL, '{}', 'dead', 3, 3, NULL, 0, NULL, now() - interval '1 day', 'no such mailbox'),
		(4, 'mail', 'mail.lock', NULL, '{}', 'queued', 0, 3, NULL, 0, NULL, now(), NULL)`)
	exec(t, pool, `SELECT setval('jobgen.job_id', 1000)`)
	exec(t, pool, `INSERT INTO jobgen.claims VALUES (`+someWorker+`, 5, '{2,99}'), (`+otherWorker+`, 4, '{2}')`)
	exec(t, pool, `INSERT INTO jobgen.job_start (job_id, worker_id) VALUES (4, `+someWorker+`), (1, `+otherWorker+`)`)
	exec(t, pool, `INSERT INTO jobgen.job_attempt (job_id, attempt, fence, worker_id, started_at, ended_at, outcome, error)
		VALUES (3, 3, 1, `+otherWorker+`, now() - interval '25 hours 1 second', now() - interval '24 hours 1 second', 'failed', 'no such mailbox')`)
	exec(t, pool, `INSERT INTO jobgen.job_result (kind, key, job_id, finished_at, expires_at) VALUES
		('mail.send', 'job:5', 5, now(), now() + interval '1 day'), ('mail.send', 'six', 6, now(), now() + interval '1 day')`)
	exec(t, pool, `INSERT INTO jobgen.job_archive (job_id, status, queue, kind, version, attempt, crashes, payload, created_at, expires_at, reason)
		VALUES (7, 'cancelled', 'mail', 'mail.send', 1, 0, 0, '{}', now() - interval '1 hour', now() + interval '1 day', 'not wanted')`)
	exec(t, pool, `INSERT INTO jobgen.queues (name, paused_at) VALUES ('mail', now())`)
	exec(t, pool, `INSERT INTO jobgen.looks (minute, newest_id, share) VALUES (date_trunc('minute', now()) - interval '10 minutes', 0, 1), (date_trunc('minute', now()) - interval '1 minute', 4, 0.5)`)
	// Of the minute before the look, only what has come and gone is counted yet; that does not count.
	exec(t, pool, `INSERT INTO jobgen.samples (minute, queue, kind, arrived, succeeded, failed, died, cancelled, reclaimed, run_us, ready, scheduled, running, dead, oldest_us) VALUES
		(date_trunc('minute', now()) - interval '10 minutes', 'old', 'old.kind', 1000, 1000, 0, 0, 0, 0, 0, 77, 0, 0, 0, 1),
		(date_trunc('minute', now()) - interval '1 minute', 'mail', 'mail.send', 7, 7, 0, 0, 0, 0, 4000000, 12, 4, 1, 1, 90000000),
		(date_trunc('minute', now()) - interval '2 minutes', 'mail', 'mail.send', 7, 70, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL),
		(date_trunc('minute', now()) - interval '3 minutes', 'mail', 'mail.send', 20, 5, 3, 2, 3, 1, 0, NULL, NULL, NULL, NULL, NULL),
		(date_trunc('minute', now()) - interval '7 minutes', 'mail', 'mail.send', 5, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL),
		(date_trunc('minute', now()) - interval '3 minutes', 'mail', 'mail.lock', 0, 10, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL),
		('-infinity', 'mail', 'mail.send', 1000, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL)`)
}

func TestTheViewsMeanWhatThePageSays(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	if got := texts(t, pool, `SELECT o::text FROM jobgen.overview o`); len(got) != 0 {
		t.Errorf("overview of nothing: %q", got)
	}
	furnish(t, pool)
	for sql, want := range map[string]string{
		`SELECT concat_ws(' ', queue, kind, ready, oldest, scheduled, running, dead, in_per_minute, out_per_minute, failed_per_minute, reclaimed_per_minute, workers, paused, exact, as_of IS NOT NULL)
		 FROM jobgen.overview ORDER BY kind`: "mail mail.lock 0 0 0 0 0.0 2.0 0.0 0.0 0 t f t\nmail mail.send 12 00:01:30 4 1 1 5.0 2.0 0.6 0.2 1 t f t",
		`SELECT concat_ws(' ', job_id, queue, kind, key, attempts, crashes, error, now() - died_at BETWEEN '23 hours' AND '25 hours') FROM jobgen.dead`:                                   "3 mail mail.send 3 0 no such mailbox t",
		`SELECT concat_ws(' ', job_id, queue, kind, key, attempt, running_for >= '0 s', host, pid, lease_left > '59 min') FROM jobgen.running ORDER BY job_id`:                            "2 mail mail.send 1 t web-1 7 t\n4 mail mail.lock 1 t web-1 7 t",
		`SELECT concat_ws(' ', state, host, pid, build, queues, kinds, slots, running, stuck) FROM jobgen.fleet ORDER BY host`:                                                            "alive web-1 7 v1 {mail} {mail.send} 10 1 0\nlost web-2 8 v1 {mail} {mail.send} 0",
		`SELECT concat_ws(' ', queue, kind, arrived, succeeded, failed, died, reclaimed, run_time, ready, oldest) FROM jobgen.minutes WHERE minute > now() - interval '5 min' ORDER BY 1`: "mail mail.lock 0 10 0 0 0 00:00:00\nmail mail.send 20 5 3 2 1 00:00:00\nmail mail.send 7 7 0 0 0 00:00:04 12 00:01:30\nmail mail.send 7 70 0 0 0 00:00:00",
		`SELECT concat_ws(' ', event, attempt, took, detail) FROM jobgen.history(1)`:                                                                                                      "ready 0\nenqueued mail.send in mail, key k",
		`SELECT concat_ws(' ', event, attempt, took, detail) FROM jobgen.history(3) WHERE event <> 'enqueued'`:                                                                            "failed 3 01:00:00 no such mailbox\ndead 3 out of attempts; jobctl jobs requeue 3 gives it a fresh start",
		`SELECT concat_ws(' ', event, left(detail, 23)) FROM jobgen.history(5)`:                                                                                                           "recorded the result is kept unti",
		`SELECT concat_ws(' ', event, left(detail, 23)) FROM jobgen.history(6)`:                                                                                                           "recorded the result is kept unti",
		`SELECT concat_ws(' ', event, detail) FROM jobgen.history(7)`:                                                                                                                     "enqueued mail.send in mail\ncancelled not wanted",
		`SELECT event FROM jobgen.history(8)`: "",
	} {
		if got := strings.Join(texts(t, pool, sql), "\n"); got != want {
			t.Errorf("%s\ngot\n%s\nwant\n%s", sql, got, want)
		}
	}
	exec(t, pool, `UPDATE jobgen.looks SET taken_at = taken_at - interval '10 minutes'`)
	if got := texts(t, pool, `SELECT kind FROM jobgen.overview WHERE in_per_minute IS NULL AND out_per_minute >= 2 ORDER BY 1`); len(got) != 2 {
		t.Errorf("without a look, what came is known for %q", got)
	}
}

// A column of jobs that no view names can be dropped, by a later migration.
func TestTheViewsHoldNoColumnThatTheyDoNotShow(t *testing.T) {
	t.Parallel()
	got := strings.Join(texts(t, jobtest.DB(t), `SELECT DISTINCT column_name::text FROM information_schema.view_column_usage
		WHERE view_schema = 'jobgen' AND table_schema = 'jobgen' AND table_name = 'jobs' ORDER BY 1`), " ")
	if want := "attempt claimed_at crashes created_at dead fence id key kind last_error queue run_at status worker_id"; got != want {
		t.Errorf("the views use %s, want %s", got, want)
	}
}

// What the page asks runs, and none of it walks over jobs or one of its indexes but that of the dead, however many jobs wait.
func TestNoQuestionOfThePageWalksOverJobs(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	furnish(t, pool)
	// The dead are old, and what waits is new: the planner thinks that the newest of the dead are soon found among all.
	exec(t, pool, `INSERT INTO jobgen.jobs (queue, kind, payload, status) SELECT 'mail', 'mail.send', '{}', 'dead' FROM generate_series(1, 2000)`)
	exec(t, pool, `INSERT INTO jobgen.jobs (queue, kind, payload) SELECT 'mail', 'mail.send', '{}' FROM generate_series(1, 50000)`)
	exec(t, pool, `ANALYZE jobgen.jobs`)
	page, err := os.ReadFile("../docs/operating/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sql\n(SELECT.*?);\n```\n").FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 8 {
		t.Fatalf("the page asks only %d questions", len(blocks))
	}
	questions := []string{
		`SELECT * FROM jobgen.overview`, `SELECT * FROM jobgen.running`, `SELECT * FROM jobgen.running WHERE kind = 'mail.send'`, `SELECT * FROM jobgen.fleet`,
		`SELECT * FROM jobgen.dead`, `SELECT * FROM jobgen.dead ORDER BY job_id DESC LIMIT 20`, `SELECT * FROM jobgen.dead WHERE kind = 'mail.send' ORDER BY job_id LIMIT 1`,
		`SELECT * FROM jobgen.history(3)`, `SELECT count(*) FROM jobgen.dead`,
	}
	for _, b := range blocks {
		questions = append(questions, b[1])
	}
	walk := regexp.MustCompile(`Seq Scan on jobs|using jobs_(claim|suspect)|Scan on jobs_(claim|suspect)`)
	for _, question := range questions {
		plan := strings.Join(texts(t, pool, `EXPLAIN (ANALYZE, COSTS off, TIMING off) `+question), "\n")
		if walk.MatchString(plan) || regexp.MustCompile(`rows=[0-9]{5}`).MatchString(plan) || regexp.MustCompile(`Removed by Filter: [0-9]{5}`).MatchString(plan) {
			t.Errorf("%s\n%s", question, plan)
		}
	}
}

// A role with rights to the views alone sees them, and no payload.
func TestARoleMayBeGivenTheViewsAlone(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	furnish(t, pool)
	role := "jobgen_views_" + pool.Config().ConnConfig.Database
	exec(t, pool, "CREATE ROLE "+role)
	defer exec(t, pool, fmt.Sprintf("DROP OWNED BY %[1]s; DROP ROLE %[1]s", role))
	page, err := os.ReadFile("../docs/operating/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	grants := regexp.MustCompile("(?s)```sql\n(GRANT.*?)```\n").FindStringSubmatch(string(page))
	exec(t, pool, strings.ReplaceAll(grants[1], "monitoring", role))
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SET LOCAL ROLE "+role); err != nil {
			return err
		}
		for _, view := range []string{"overview", "dead", "running", "fleet", "minutes"} {
			if _, err := tx.Exec(t.Context(), "SELECT * FROM jobgen."+view); err != nil {
				return fmt.Errorf("%s: %w", view, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, column := range texts(t, pool, `SELECT column_name FROM information_schema.columns c JOIN information_schema.views v USING (table_schema, table_name) WHERE table_schema = 'jobgen'`) {
		if column == "payload" {
			t.Error("a view shows payloads")
		}
	}
}
