package jobctl_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/jobgen-go/jobgen/internal/jobctl"
)

// bare is a database without the schema.
func bare(t *testing.T) *queue {
	t.Helper()
	q := open(t)
	q.exec("DROP SCHEMA jobgen CASCADE")
	return q
}

// describe is all that is in schema jobgen, and which version it says it is.
func (q *queue) describe() string {
	q.Helper()
	var text string
	err := q.pool.QueryRow(q.Context(), `
		SELECT coalesce(string_agg(line, E'\n' ORDER BY line), '') FROM (
		SELECT 'table ' || c.relname || ' ' || c.relkind::text || ' ' || coalesce(array_to_string(c.reloptions, ','), '') AS line
		FROM pg_class c WHERE c.relnamespace = 'jobgen'::regnamespace
		UNION ALL
		SELECT 'column ' || c.relname || '.' || a.attname || ' ' || a.attnum || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull || ' ' ||
		       coalesce(pg_get_expr(d.adbin, d.adrelid), '') || ' ' || a.attidentity::text
		FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE c.relnamespace = 'jobgen'::regnamespace AND a.attnum > 0
		UNION ALL
		SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'jobgen'
		UNION ALL
		SELECT 'view ' || viewname || definition FROM pg_views WHERE schemaname = 'jobgen'
		UNION ALL
		SELECT 'function ' || proname || prosrc FROM pg_proc WHERE pronamespace = 'jobgen'::regnamespace
		UNION ALL
		SELECT 'constraint ' || conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'jobgen'::regnamespace
		UNION ALL
		SELECT 'version ' || version_id || ' ' || is_applied FROM jobgen.schema_version) x`).Scan(&text)
	if err != nil {
		q.Fatal(err)
	}
	return text
}

// tools applies the files of a folder as each tool does it. (goose is the real one; all of them were run by hand.)
var tools = map[string]func(t *testing.T, q *queue, dir string, down bool) error{
	"goose": func(t *testing.T, q *queue, dir string, down bool) error {
		db := stdlib.OpenDBFromPool(q.pool)
		defer db.Close()
		p, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS(dir))
		if err != nil {
			return err
		}
		if down {
			_, err = p.DownTo(t.Context(), 0)
		} else {
			_, err = p.Up(t.Context())
		}
		return err
	},
	"tern": func(t *testing.T, q *queue, dir string, down bool) error { // it sends a part of a file as one text, in a transaction
		return each(t, q, dir, "*.sql", down, func(text string) string {
			up, back, found := strings.Cut(text, "---- create above / drop below ----")
			if !found {
				t.Error("no separator")
			}
			if down {
				return "BEGIN;" + back + ";COMMIT"
			}
			return "BEGIN;" + up + ";COMMIT"
		})
	},
	"golang-migrate": func(t *testing.T, q *queue, dir string, down bool) error { // a file is one text
		if down {
			return each(t, q, dir, "*.down.sql", down, same)
		}
		return each(t, q, dir, "*.up.sql", down, same)
	},
	"atlas": func(t *testing.T, q *queue, dir string, down bool) error {
		if down {
			return nil
		}
		return each(t, q, dir, "*.sql", down, func(text string) string { return "BEGIN;" + text + ";COMMIT" })
	},
	"plain": func(t *testing.T, q *queue, dir string, down bool) error {
		if down {
			return each(t, q, dir, "*.down.sql", down, same)
		}
		return each(t, q, dir, "*[a-z].sql", down, func(text string) string {
			if strings.Contains(text, "DROP TABLE") {
				return ""
			}
			return text
		})
	},
}

func same(text string) string { return text }

// each sends the files in order, or in reverse.
func each(t *testing.T, q *queue, dir, pattern string, reverse bool, text func(string) string) error {
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	if reverse {
		slices.Reverse(files)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if pattern == "*[a-z].sql" && strings.HasSuffix(file, ".down.sql") {
			continue
		}
		if _, err := q.pool.Exec(t.Context(), text(string(b))); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
	}
	return nil
}

func TestMigrationsInTheFormOfAnotherToolGiveTheSameSchema(t *testing.T) {
	t.Parallel()
	want := open(t).describe()
	for name, apply := range tools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := bare(t)
			dir := t.TempDir()
			q.ctl("migrate", "sql", "--format", name, "--dir", dir).want(0, "00001_jobgen_init"[map[bool]int{true: 2}[name == "tern"]:], "appl")
			if err := apply(t, q, dir, false); err != nil {
				t.Fatal(err)
			}
			if got := q.describe(); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			q.ctl("migrate", "status").want(0)
			q.ctl("migrate", "up").want(0, "nothing to do")
			on(t, q.pool)
			enqueue(q, sendMail, charge{})
			if err := apply(t, q, dir, false); name != "goose" && (err == nil || !strings.Contains(err.Error(), "the schema has version 4")) {
				t.Errorf("applied again: %v", err)
			}
			if name == "atlas" {
				return
			}
			_, _ = q.pool.Exec(t.Context(), "ROLLBACK")
			if err := apply(t, q, dir, true); err != nil {
				t.Fatal(err)
			}
			q.ctl("migrate", "status").want(1, "4 migrations wait")
			q.ctl("migrate", "up").want(0, "applied 00001_init.sql", "applied 00004_views.sql")
			if got := q.describe(); got != want {
				t.Errorf("up after down: got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestMigrateUpGoesOnFromPlainSQL(t *testing.T) {
	t.Parallel()
	want := open(t).describe()
	q := bare(t)
	q.exec(q.ctl("migrate", "sql", "--to", "2").want(0).out)
	q.ctl("migrate", "status").want(1, "2 migrations wait")
	q.ctl("migrate", "up").want(0, "applied 00003_runtime.sql")
	if got := q.describe(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	q.exec(q.ctl("migrate", "sql", "--down", "--from", "2").want(0).out)
	q.ctl("migrate", "status").want(1, "2 migrations wait")
}

func TestMigrateSQLNeedsNoDatabaseAndOverwritesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	nothing := jobctl.Env{}
	run(t, t.Context(), nothing, "migrate", "sql", "--format", "tern", "--dir", dir, "--first", "17", "--from", "2").want(0, "017_jobgen_runtime.sql", "018_jobgen_views.sql", "tern migrate")
	run(t, t.Context(), nothing, "migrate", "sql", "--format", "tern", "--dir", dir, "--first", "17", "--from", "2").want(0, "there already: "+dir)
	if err := os.WriteFile(filepath.Join(dir, "018_jobgen_views.sql"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, t.Context(), nothing, "migrate", "sql", "--format", "tern", "--dir", dir, "--first", "16", "--from", "1").want(1, "018_jobgen_views.sql is there already", "nothing was written").sentence()
	if files, _ := os.ReadDir(dir); len(files) != 2 {
		t.Errorf("it has written: %v", files)
	}
	run(t, t.Context(), nothing, "migrate", "sql", "--format", "goose", "--dir", dir, "--first", "20261130120000", "--from", "3").want(0, "20261130120000_jobgen_views.sql")
	var v struct{ Files []struct{ Name, SQL string } }
	run(t, t.Context(), nothing, "migrate", "sql", "--json", "--format", "golang-migrate", "--down").want(0).decode(&v)
	if len(v.Files) != 4 || v.Files[0].Name != "000004_jobgen_views.down.sql" || !strings.Contains(v.Files[3].SQL, "DROP TABLE") {
		t.Errorf("%+v", v)
	}
	for want, args := range map[string][]string{
		`--format is "flyway"; it may be atlas, golang-migrate, goose, plain, tern`: {"--format", "flyway"},
		"--from is 4":                         {"--from", "4"},
		"--to is 2; it is the last migration": {"--from", "2", "--to", "2"},
		"--to is 99":                          {"--to", "99"},
		"--down is not for goose":             {"--format", "goose", "--down"},
		"--down is not for atlas":             {"--format", "atlas", "--down"},
		"leave --down out":                    {"--down", "--dir", dir},
		"--first must be 1":                   {"--first", "0"},
		"there is no folder":                  {"--dir", filepath.Join(dir, "none")},
		"unknown command":                     {"x"},
	} {
		run(t, t.Context(), nothing, append([]string{"migrate", "sql"}, args...)...).want(2, want).sentence()
	}
}

func TestDownSaysWhatIsLostAndAsks(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.deadMails(3)
	enqueue(q, sendMail, charge{})
	q.exec("DELETE FROM jobgen.workers")
	q.exec("INSERT INTO jobgen.schedules VALUES ('k', 'n', '* * * * *', 'UTC', 'once', now())")
	q.exec("INSERT INTO jobgen.queues (name, paused_at) VALUES ('mail', now())")
	before := q.describe()

	q.ctl("migrate", "down", "--dry-run").want(0, "would: takes back 00004_views.sql, from version 4 to 3", "nothing stored would be lost")
	q.ctl("migrate", "down", "--dry-run", "--to", "0").want(0, "00001_init.sql and 00002", "jobs that wait or run: 1\n", "dead jobs: 3\n", "attempts on record: 3\n", "schedules, with when they ticked last: 1\n", "decisions about queues (pauses, weights, slots): 1\n")
	q.ctl("migrate", "down", "--dry-run", "--to", "2").want(0, "decisions about queues").conceals("dead jobs")
	q.ctl("migrate", "down").want(2, "add --yes").sentence()
	q.ctl("migrate", "down", "--to", "-1", "--yes").want(2, "--to must be 0 or more").sentence()
	env := q.env
	env.Ask = true
	env.Stdin = strings.NewReader("n\n")
	q.ctlIn(env, "migrate", "down", "--to", "0").want(1, "lost: dead jobs: 3", "Go down?", "nothing was changed")
	q.ctl("migrate", "down", "--to", "7", "--yes").want(1, "only `jobctl migrate up` goes to 7").sentence()
	if after := q.describe(); after != before {
		t.Error("something has changed")
	}

	w := q.worker()
	q.ctl("migrate", "down", "--dry-run").want(0, "refused while 1 worker is alive: web-1/1")
	q.ctl("migrate", "down", "--yes").want(1, "1 worker is alive (web-1/1)", "--force", "nothing was changed").sentence()
	q.ctl("migrate", "down", "--yes", "--force").want(0, "took back 00004_views.sql")
	q.exec("UPDATE jobgen.workers SET lease_until = clock_timestamp() - interval '1 second' WHERE id = $1", w.ID)
	env.Stdin = strings.NewReader("y\n")
	q.ctlIn(env, "migrate", "down").want(0, "lost: decisions about queues (pauses, weights, slots): 1", "took back 00003_runtime.sql")
	q.ctl("migrate", "down", "--to", "2", "--yes").want(0, "nothing to do")
	var v struct {
		From, To  int64
		TakenBack []struct{ Name string } `json:"taken_back"`
		Lost      []struct {
			What string
			N    int64
		}
	}
	q.ctl("migrate", "down", "--to", "0", "--yes", "--json").want(0).decode(&v)
	if v.From != 2 || v.To != 0 || len(v.TakenBack) != 2 || v.TakenBack[0].Name != "00002_schedules.sql" || len(v.Lost) == 0 || v.Lost[0].N != 1 {
		t.Errorf("%+v", v)
	}
	q.ctl("migrate", "down", "--yes").want(0, "nothing to do")
	q.ctl("migrate", "up").want(0, "applied 00004_views.sql")
	if after := q.describe(); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	q.exec("INSERT INTO jobgen.schema_version (version_id, is_applied) VALUES (9999, true)")
	q.ctl("migrate", "down", "--yes").want(1, "version 9999, which this jobctl does not know").sentence()
}

// lockMigrations takes the lock of those who migrate, as another jobctl would.
func (q *queue) lockMigrations() (release func()) {
	q.Helper()
	config := q.pool.Config()
	config.ConnConfig.RuntimeParams["application_name"] = "the other one"
	other, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		q.Fatal(err)
	}
	tx, err := other.Begin(q.Context())
	if err != nil {
		q.Fatal(err)
	}
	if _, err := tx.Exec(q.Context(), "SELECT pg_advisory_xact_lock(hashtextextended('jobgen.migrate', 0))"); err != nil {
		q.Fatal(err)
	}
	return func() {
		_ = tx.Rollback(context.Background())
		other.Close()
	}
}

func TestOneWhoWaitsForAnotherToMigrateSaysForWhom(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"migrate", "up"}, {"migrate", "down", "--yes"}} {
		q := open(t)
		q.exec(q.ctl("migrate", "sql", "--down", "--from", "3").out)
		release := q.lockMigrations()
		env := q.env
		said := &watch{text: "another process migrates: pid ", then: release}
		env.Stderr = said
		q.ctlIn(env, args...).want(0, map[bool]string{true: "applied 00004_views.sql", false: "took back 00003_runtime.sql"}[args[1] == "up"])
		if text := said.String(); !strings.Contains(text, "(the other one), for 1s; waiting until it has ended (Ctrl-C gives up)") && !strings.Contains(text, "(the other one), for 2s") {
			t.Errorf("it said: %s", text)
		}
	}
}

func TestAnInterruptedMigrationSaysHowFarItGotAndGoesOn(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.exec(q.ctl("migrate", "sql", "--down", "--from", "1").out)
	tx, err := q.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT FROM jobgen.jobs"); err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	env := q.env
	env.Stderr = &watch{text: "another transaction uses a table", then: interrupt}
	o := run(t, ctx, env, "migrate", "up").want(1, "applied 00002_schedules.sql")
	if text := env.Stderr.(*watch).String(); !strings.Contains(text, "interrupted after 1 of 3 migrations, nothing is half done") {
		t.Errorf("%s%s", o.out, text)
	}
	q.ctl("migrate", "status").want(1, "2 migrations wait")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	q.ctl("migrate", "up").want(0, "applied 00003_runtime.sql", "applied 00004_views.sql")
}

func TestMigratingWithoutTheRightsSaysWhoHasThem(t *testing.T) {
	t.Parallel()
	q := open(t)
	role := q.role("GRANT USAGE ON SCHEMA jobgen TO %[1]s; GRANT ALL ON ALL TABLES IN SCHEMA jobgen TO %[1]s; GRANT ALL ON ALL SEQUENCES IN SCHEMA jobgen TO %[1]s")
	q.ctl("migrate", "up", "--database-url", role).want(0, "nothing to do")
	q.exec(q.ctl("migrate", "sql", "--down", "--from", "3").out)
	q.ctl("migrate", "up", "--database-url", role).want(3, "permission denied", "connect as postgres, who owns schema jobgen").sentence()
	q.ctl("migrate", "down", "--yes", "--database-url", role).want(3, "must be owner", "connect as postgres, who owns schema jobgen").sentence()
	q.exec("DROP SCHEMA jobgen CASCADE")
	q.ctl("migrate", "up", "--database-url", role).want(3, "permission denied for database", "grant this role CREATE on the database").sentence()
}

// role makes a role with these rights, and gives its connection string.
func (q *queue) role(grants string) (url string) {
	q.Helper()
	name := "jobgen_guest_" + q.pool.Config().ConnConfig.Database
	q.exec("CREATE ROLE " + name + " LOGIN")
	q.Cleanup(func() {
		_, _ = q.pool.Exec(context.Background(), "DROP OWNED BY "+name)
		if _, err := q.pool.Exec(context.Background(), "DROP ROLE "+name); err != nil {
			q.Error(err)
		}
	})
	q.exec(fmt.Sprintf(grants, name))
	return with(q.url(), "user="+name)
}
