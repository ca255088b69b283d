package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/schema"
	"github.com/jobgen-go/jobgen/worker"
)

// before is an older commit whose programs a deployment of today finds running, with schema 3. (None of schema 2 is one any more, nor an
// older one of 3: the first migrations have changed while nobody had them yet.)
const before = "5057ddc"

// builds makes the program of testdata/rolling with the library of today and with the one before.
func builds(t *testing.T) (today, old string) {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	build := func(in, of string) string {
		t.Helper()
		out := filepath.Join(dir, strconv.Itoa(len(in))+".program")
		cmd := exec.CommandContext(t.Context(), "go", "build", "-o", out, of)
		cmd.Dir = in
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, text)
		}
		return out
	}
	archive := exec.CommandContext(t.Context(), "git", "-C", root, "archive", before)
	var tar bytes.Buffer
	if archive.Stdout = &tar; archive.Run() != nil {
		t.Skipf("needs the repository's history, commit %s, and git", before)
	}
	if err := os.MkdirAll(filepath.Join(tree, "rolling"), 0o755); err != nil {
		t.Fatal(err)
	}
	unpack := exec.CommandContext(t.Context(), "tar", "-x", "-C", tree)
	unpack.Stdin = &tar
	if text, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, text)
	}
	source, err := os.ReadFile("testdata/rolling/main.go")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "rolling", "main.go"), source, 0o644); err != nil {
		t.Fatal(err)
	}
	return build(root, "./worker/testdata/rolling"), build(tree, "./rolling")
}

// program is one of the two, started.
type program struct {
	*exec.Cmd
	in  func() // ends its standard input
	log *logbook
}

func launch(t *testing.T, pool *pgxpool.Pool, path string, args ...string) *program {
	t.Helper()
	p := &program{Cmd: exec.Command(path, args...), log: &logbook{}}
	p.Env = append(os.Environ(), "DATABASE_URL="+pool.Config().ConnString())
	p.Stdout, p.Stderr = p.log, p.log
	in, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in = func() { _ = in.Close() }
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
		if t.Failed() {
			t.Logf("%s printed:\n%s", strings.Join(args, " "), p.log)
		}
	})
	return p
}

func (p *program) ended(t *testing.T) {
	t.Helper()
	p.in()
	if err := p.Wait(); err != nil {
		t.Errorf("%s: %v", strings.Join(p.Args[1:], " "), err)
	}
}

// G2, G5, G6, G7 during a deployment: workers and enqueuers of the version before go on while and after the schema is
// migrated, beside those of today; each takes over from the other when one is killed.
func TestG2RollingDeploy(t *testing.T) {
	t.Parallel()
	today, old := builds(t)
	pool := jobtest.DB(t)
	downTo(t, pool, 3) // not migrated by old: that migration has been changed in place since, when nobody had it yet
	execute(t, pool, `CREATE TABLE effect (kind text, n int, by text)`)
	const batch = 200
	enqueue := func(path string, i int) *program {
		return launch(t, pool, path, "enqueue", strconv.Itoa(i*batch), strconv.Itoa((i+1)*batch))
	}
	by := func(name string) int {
		return one[int](t, pool, `SELECT count(*) FROM effect WHERE by = '`+name+`'`)
	}

	first := launch(t, pool, old, "work", "old")
	enqueue(old, 0).ended(t)
	eventually(t, 2*soon, "the old worker works on the old schema", func() bool { return by("old") > 0 })

	running := enqueue(old, 1)
	launch(t, pool, today, "migrate").ended(t)
	launch(t, pool, today, "migrate").ended(t)
	// What a next migration may do, as long as there is none that the programs of before do not know.
	execute(t, pool, `ALTER TABLE jobgen.jobs ADD COLUMN of_the_future text`)
	running.ended(t)
	enqueue(old, 2).ended(t) // begins on the new schema
	second := launch(t, pool, today, "work", "new")
	enqueue(today, 3).ended(t)
	eventually(t, 2*soon, "the new worker works beside it", func() bool { return by("new") > 0 })

	_ = second.Process.Kill()
	enqueue(today, 4).ended(t)
	done := func(n int) func() bool {
		return func() bool {
			return one[int](t, pool, `SELECT count(*) FROM jobgen.job_result WHERE finished_at IS NOT NULL`) == n*2*batch
		}
	}
	eventually(t, 2*soon, "the old worker takes over what a killed new one held", done(5))

	third := launch(t, pool, today, "work", "new again")
	eventually(t, 2*soon, "the next new worker is there", func() bool {
		return one[int](t, pool, `SELECT count(*) FROM jobgen.workers WHERE lost_at IS NULL`) == 2
	})
	_ = first.Process.Kill()
	enqueue(old, 5).ended(t)
	eventually(t, 2*soon, "the new worker takes over what a killed old one held", done(6))
	third.ended(t)

	if n := one[int](t, pool, `SELECT count(*) FROM (SELECT n FROM effect WHERE kind = 'tx' GROUP BY n HAVING count(*) = 1) x`); n != 6*batch {
		t.Errorf("%d of %d transactional jobs had their effect once", n, 6*batch)
	}
	if n := one[int](t, pool, `SELECT count(DISTINCT n) FROM effect WHERE kind = 'plain'`); n != 6*batch {
		t.Errorf("%d of %d plain jobs had their effect", n, 6*batch)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.jobs`); n != 0 {
		t.Errorf("%d jobs are left", n)
	}
}

// A program starts on a newer schema that says it may, and on no other.
func TestAProgramStartsBesideANewerSchemaThatAllowsIt(t *testing.T) {
	t.Parallel()
	pool := database(t)
	execute(t, pool, `ALTER TABLE jobgen.jobs ADD COLUMN of_the_future text`)
	execute(t, pool, `INSERT INTO jobgen.schema_version (version_id, is_applied) VALUES (5, true)`)
	execute(t, pool, `INSERT INTO jobgen.compatibility (version, oldest) VALUES (5, 4)`)
	if err := jobs.Migrate(t.Context(), pool); err != nil {
		t.Errorf("Migrate: %v", err)
	}
	s := answering("t.answer")
	w := start(t, pool, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, s, func(context.Context, *jobs.Job[task]) (string, error) { return "yes", nil })
	})
	if got, err := await(t, pool, enqueue(t, pool, s, task{})); err != nil || got != "yes" {
		t.Errorf("%q, %v", got, err)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	execute(t, pool, `UPDATE jobgen.compatibility SET oldest = 5 WHERE version = 5`)
	for what, err := range map[string]error{"Migrate": jobs.Migrate(t.Context(), pool), "Run": func() error {
		var r worker.Registry
		worker.Handle(&r, s, func(context.Context, *jobs.Job[task]) (string, error) { return "", nil })
		w, err := worker.New(pool, &r, worker.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		return w.Run(ctx)
	}()} {
		if err == nil || !strings.Contains(err.Error(), "has schema version 5") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// ALTER TABLE under live prepared statements, also one that changes the type of what they return, costs at most one try.
func TestAlterTableUnderAWorkerStallsNothing(t *testing.T) {
	t.Parallel()
	pool := database(t)
	s := answering("t.answer")
	start(t, pool, worker.Config{Concurrency: 4}, func(r *worker.Registry) {
		worker.Handle(r, s, func(context.Context, *jobs.Job[task]) (string, error) { return "yes", nil })
	})
	run := func() {
		t.Helper()
		for _, ref := range enqueueMany(t, pool, s, numbered(100)) {
			if _, err := await(t, pool, ref); err != nil {
				t.Fatal(err)
			}
		}
	}
	run()
	for _, ddl := range []string{
		`ALTER TABLE jobgen.jobs ADD COLUMN of_the_future text`,
		`DROP VIEW jobgen.dead, jobgen.running`, // as a migration would, and make them anew
		`ALTER TABLE jobgen.jobs ALTER COLUMN queue TYPE varchar(200) COLLATE "C"`,
		`ALTER TABLE jobgen.job_result ADD COLUMN of_the_future integer DEFAULT 7`,
		`CREATE INDEX of_the_future ON jobgen.jobs (of_the_future)`,
		`ALTER TABLE jobgen.workers ADD COLUMN of_the_future text`,
		`DROP INDEX jobgen.of_the_future`,
		`ALTER TABLE jobgen.jobs DROP COLUMN of_the_future`,
		`CLUSTER jobgen.jobs USING jobs_pkey`,
	} {
		execute(t, pool, ddl)
		run()
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt`); n != 0 {
		t.Errorf("%d attempts did not succeed", n)
	}
}

// A migration that needs a table for itself does not make the others queue up behind a long transaction that reads it.
func TestAMigrationDoesNotStallAFleetBehindALongTransaction(t *testing.T) {
	t.Parallel()
	pool := database(t)
	downTo(t, pool, 2)

	reader, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Rollback(context.Background()) }()
	if _, err := reader.Exec(t.Context(), `SELECT count(*) FROM jobgen.jobs`); err != nil {
		t.Fatal(err)
	}
	migrated := make(chan error, 1)
	go func() { migrated <- jobs.Migrate(context.WithoutCancel(t.Context()), pool) }()
	waits := func() bool {
		return one[int](t, pool, `SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
			WHERE d.datname = current_database() AND l.relation = 'jobgen.jobs'::regclass AND NOT l.granted`) > 0
	}
	for round := range 2 { // each time it waits for its lock, an enqueue gets behind it, and through
		eventually(t, 2*soon, fmt.Sprintf("the migration waits for its lock (round %d)", round), waits)
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		if _, err := pool.Exec(ctx, `INSERT INTO jobgen.jobs (queue, kind, payload) VALUES ('q', 't.kind', '{}')`); err != nil {
			t.Errorf("an enqueue behind the migration: %v", err)
		}
		cancel()
	}
	select {
	case err := <-migrated:
		t.Fatalf("the migration ended before the transaction: %v", err)
	default:
	}
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-migrated; err != nil {
		t.Error(err)
	}
}

// G12: a process whose clock is an hour off, either way, does all at the right time: only the database's clock decides, so a
// database that is an hour off is the same.
func TestG12AClockThatIsAnHourOffChangesNothing(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			clock := jobtest.NewClock(t, pool)
			clock.Advance(off)
			s := keyed("t.keyed")
			later := kind("t.later")
			tried := make(chan int, 10)
			w := start(t, pool, worker.Config{Lease: time.Second}, func(r *worker.Registry) {
				worker.Handle(r, s, func(_ context.Context, j *jobs.Job[task]) (string, error) {
					if j.Attempt < 3 {
						return "", fmt.Errorf("attempt %d", j.Attempt)
					}
					return "yes", nil
				})
				worker.HandleNone(r, later, func(_ context.Context, j *jobs.Job[task]) error {
					tried <- j.Payload.N
					return nil
				})
			})
			ref := enqueue(t, pool, s, task{N: 1})
			for n, in := range []time.Duration{30 * time.Minute, 100 * time.Millisecond, 0} {
				enqueue(t, pool, later, task{N: n}, jobs.In(in))
			}
			if got, err := await(t, pool, ref); err != nil || got != "yes" {
				t.Errorf("%q, %v", got, err)
			}
			if again := enqueue(t, pool, s, task{N: 1}); !again.Existing {
				t.Errorf("%+v", again)
			}
			if a, b := receive(t, "a job", tried), receive(t, "a job", tried); a+b != 3 {
				t.Errorf("ran %d and %d", a, b)
			}
			// A killed process: its lease ends by the same clock.
			execute(t, pool, `INSERT INTO jobgen.workers (id, host, pid, build, queues, kinds, lease_until)
				VALUES ('00000000-0000-0000-0000-000000000001', 'h', 0, 'b', '{q}', '{t.later}', clock_timestamp() + interval '500 ms')`)
			execute(t, pool, `INSERT INTO jobgen.jobs (queue, kind, payload, status, attempt, fence, worker_id)
				VALUES ('q', 't.later', '{"N": 7}', 'running', 1, nextval('jobgen.fence'), '00000000-0000-0000-0000-000000000001')`)
			noteClaims(t, pool)
			if n := receive(t, "the job of the killed process", tried); n != 7 {
				t.Errorf("ran %d", n)
			}
			if err := w.stop(); err != nil {
				t.Error(err)
			}
			if n := one[int](t, pool, `SELECT count(*) FROM jobgen.jobs WHERE kind = 't.later' AND status = 'queued'`); n != 1 {
				t.Errorf("%d jobs wait for later, want the one in half an hour", n)
			}
		})
	}
}

// downTo undoes migrations.
func downTo(t *testing.T, pool *pgxpool.Pool, version int64) {
	t.Helper()
	files, err := fs.Sub(schema.Postgres, "postgres")
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	steps, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithTableName("jobgen.schema_version"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := steps.DownTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
}
