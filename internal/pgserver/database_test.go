//go:build unix

package pgserver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

const listDatabases = `SELECT string_agg(datname, ' ' ORDER BY datname) FROM pg_database`

func TestEachTestGetsADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	s := own(t, Options{Label: "Billing-Worker"})
	template, err := s.Template(t.Context(), "v1", fill)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			u, drop, err := s.CreateDatabase(t.Context(), template)
			if err != nil {
				t.Error(err)
				return
			}
			if name := ask[string](t, u, `SELECT current_database()`); !strings.HasPrefix(name, "jobgen_billing_worker_") {
				t.Errorf("database is called %s", name)
			}
			mustExec(t, u, `UPDATE filled SET answer = answer + 1`)
			if got := ask[int](t, u, `SELECT answer FROM filled`); got != 43 {
				t.Errorf("answer is %d: not a database of its own", got)
			}
			if err := drop(t.Context()); err != nil {
				t.Error(err)
			}
			if err := drop(t.Context()); err != nil {
				t.Errorf("second drop: %v", err)
			}
		})
	}
	wg.Wait()
	if got := ask[int](t, s.URL, `SELECT count(*) FROM pg_database WHERE datname LIKE 'jobgen\_%'`); got != 1 {
		t.Errorf("%d databases of ours, want the template only", got)
	}
}

func TestDropCutsOffSessionsAndIgnoresCancellation(t *testing.T) {
	t.Parallel()
	s := own(t, Options{})
	u, drop, err := s.CreateDatabase(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := drop(cancelled); err != nil {
		t.Fatal(err)
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a session outlived its database")
	}
}

func TestNamedServersOwnDatabaseIsNotTouched(t *testing.T) {
	t.Parallel()
	host := own(t, Options{})
	mustExec(t, host.URL, `CREATE DATABASE app`)
	// Names like ours, but not made by us.
	mustExec(t, host.URL, `CREATE DATABASE jobgen_production`)
	mustExec(t, host.URL, `CREATE DATABASE jobgen_shop_0badcafe_1`)
	app := withDatabase(host.URL, "app")
	mustExec(t, app, `CREATE TABLE precious AS SELECT 1 AS i`)
	dump := `SELECT string_agg(oid::regclass::text, ' ' ORDER BY oid) FROM pg_class WHERE oid >= 16384`
	databases, tables := ask[string](t, app, listDatabases), ask[string](t, app, dump)

	s := named(t, app)
	if s.Source != "DATABASE_URL" || s.URL != app {
		t.Errorf("server is %s from %s", s.URL, s.Source)
	}
	template, err := s.Template(t.Context(), "v1", fill)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		u, _, err := s.CreateDatabase(t.Context(), template) // and not dropped
		if err != nil {
			t.Fatal(err)
		}
		mustExec(t, u, `DROP TABLE filled`)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := ask[string](t, app, listDatabases); got != databases {
		t.Errorf("databases were %s\nand are %s", databases, got)
	}
	if got := ask[string](t, app, dump); got != tables {
		t.Errorf("tables were %s\nand are %s", tables, got)
	}
}

func TestDatabasesOfDeadRunsAreDropped(t *testing.T) {
	t.Parallel()
	host := own(t, Options{})
	env := []string{"DATABASE_URL=" + host.URL, "JOBGEN_PG="}
	dead := spawn(t, "leaver", env...).awaitReady(t)
	living := spawn(t, "leaver", env...).awaitReady(t)
	_ = dead.cmd.Process.Kill()
	_ = dead.cmd.Wait()
	eventually(t, "the server has noticed", func() bool {
		return ask[int](t, host.URL, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'jobgen pgserver'`) <= 2
	})

	s := named(t, host.URL)
	left := ask[string](t, s.URL, listDatabases)
	if name := databaseIn(t, dead.url); strings.Contains(left, name) {
		t.Errorf("%s of a dead run is still there", name)
	}
	if name := databaseIn(t, living.url); !strings.Contains(left, name) {
		t.Errorf("%s of a living run was dropped", name)
	}
}

func portIn(t *testing.T, url string) uint16 {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return config.Port
}

func databaseIn(t *testing.T, url string) string {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return config.Database
}

func TestProcessesMakeATemplateOnce(t *testing.T) {
	t.Parallel()
	host := own(t, Options{})
	mustExec(t, host.URL, `CREATE TABLE made (pid int)`)
	var children []*child
	for range 4 {
		children = append(children, spawn(t, "templater", "DATABASE_URL="+host.URL, "JOBGEN_PG="))
	}
	for _, c := range children {
		c.awaitReady(t)
	}
	keep := named(t, host.URL) // uses it too, so that the first to close does not drop it
	for _, c := range children {
		_ = c.stdin.Close()
	}
	if _, err := keep.Template(t.Context(), "shared by processes", func(ctx context.Context, u string) error {
		mustExec(t, host.URL, `INSERT INTO made VALUES (0)`)
		return exec1(ctx, u, `CREATE TABLE filled (i int)`)
	}); err != nil {
		t.Fatal(err)
	}
	for _, c := range children {
		if err := c.cmd.Wait(); err != nil {
			t.Errorf("child: %v\n%s", err, &c.errs)
		}
	}
	if got := ask[int](t, host.URL, `SELECT count(*) FROM made`); got < 1 || got > 2 {
		t.Errorf("the template was made %d times", got)
	}
}

func TestAnInterruptedTemplateIsMadeAgain(t *testing.T) {
	t.Parallel()
	s := own(t, Options{})
	broken := errors.New("broken")
	_, err := s.Template(t.Context(), "v1", func(ctx context.Context, u string) error {
		return errors.Join(exec1(ctx, u, `CREATE TABLE half_way (i int)`), broken)
	})
	if !errors.Is(err, broken) {
		t.Fatalf("error is %v", err)
	}
	template, err := s.Template(t.Context(), "v1", fill)
	if err != nil {
		t.Fatal(err)
	}
	u, _, err := s.CreateDatabase(t.Context(), template)
	if err != nil {
		t.Fatal(err)
	}
	tables := ask[string](t, u, `SELECT string_agg(tablename, ' ') FROM pg_tables WHERE schemaname = 'public'`)
	if tables != "filled" {
		t.Errorf("tables are %s", tables)
	}
}

func TestTemplatesNobodyUsesAreDropped(t *testing.T) {
	t.Parallel()
	host := own(t, Options{})
	first, second, third := named(t, host.URL), named(t, host.URL), named(t, host.URL)
	old, err := first.Template(t.Context(), "v1", fill)
	if err != nil {
		t.Fatal(err)
	}
	used, err := second.Template(t.Context(), "v2", fill)
	if err != nil {
		t.Fatal(err)
	}
	// As if the process of first had been killed.
	_ = first.templates[old].Close(t.Context())
	first.templates = nil
	eventually(t, "the old template is dropped when another is made", func() bool {
		name := "v3 " + strings.Repeat("x", int(third.next.Add(1)))
		if _, err := third.Template(t.Context(), name, fill); err != nil {
			t.Fatal(err)
		}
		return !strings.Contains(ask[string](t, host.URL, listDatabases), old)
	})
	if !strings.Contains(ask[string](t, host.URL, listDatabases), used) {
		t.Error("a template in use was dropped")
	}
	if err := errors.Join(second.Close(), third.Close()); err != nil {
		t.Fatal(err)
	}
	if left := ask[string](t, host.URL, listDatabases); strings.Contains(left, "jobgen_template") {
		t.Errorf("left: %s", left)
	}
}

// A message about DATABASE_URL is one sentence, names no password and what to do about it.
func TestWrongDatabaseURLIsExplained(t *testing.T) {
	t.Parallel()
	hba := filepath.Join(t.TempDir(), "hba")
	if err := os.WriteFile(hba, []byte("local all postgres trust\nlocal all all scram-sha-256\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(filepath.Dir(hba)), 0o755); err != nil { // the server is another user
		t.Fatal(err)
	}
	s := own(t, Options{Settings: map[string]string{"hba_file": hba}})
	mustExec(t, s.URL, `CREATE ROLE app LOGIN PASSWORD 'correct'`)
	as := func(user, password string) string {
		return strings.Replace(s.URL, "postgres@", user+":"+password+"@", 1)
	}
	for name, c := range map[string]struct{ url, want string }{
		"wrong password":   {as("app", "s3cr3t"), `cannot connect to database "postgres" at ` + folderOf(t, s.URL) + `/pg as user "app": password authentication failed for user "app"`},
		"may not create":   {as("app", "correct"), `role "app" may not create databases: ALTER ROLE "app" CREATEDB`},
		"refused":          {"postgres://app:s3cr3t@127.0.0.1:1/app", `cannot connect to database "app" at 127.0.0.1:1 as user "app": connect: connection refused`},
		"no such database": {strings.Replace(s.URL, "/postgres?", "/nowhere?", 1), `database "nowhere" does not exist`},
		"malformed":        {"postgres://app:s3cr3t%zz@localhost/app", "this is no connection string"},
		"malformed port":   {"postgres://app:s3cr3t@localhost:here/app", "this is no connection string"},
		"keywords":         {"host=127.0.0.1 port=1 user=app password=s3cr3t dbname=app", "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Start(t.Context(), Options{only: "url", databaseURL: c.url})
			if err == nil {
				t.Fatal("started")
			}
			text := err.Error()
			if !strings.HasPrefix(text, "DATABASE_URL: ") || !strings.Contains(text, c.want) {
				t.Errorf("error is %s\nwant       %s", text, c.want)
			}
			if strings.Contains(text, "s3cr3t") || strings.Contains(text, "\n") {
				t.Errorf("error is %q", text)
			}
			if errors.Is(err, ErrUnavailable) {
				t.Error("a server that was named is not the same as none at all")
			}
		})
	}
}

func TestWithoutAnyServerTheErrorNamesThreeWays(t *testing.T) {
	t.Parallel()
	c := spawn(t, "unlucky", "PATH=", "DATABASE_URL=", "JOBGEN_PG=", "JOBGEN_PGBIN=", "DOCKER_HOST=tcp://127.0.0.1:1")
	_ = c.stdin.Close()
	var text strings.Builder
	if _, err := c.out.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Wait()
	for _, want := range []string{"DATABASE_URL", "initdb", "Docker", "tcp://127.0.0.1:1: cannot connect", "apt-get install postgresql"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in the error", want)
		}
	}
	fits(t, text.String())
}

func TestLongReasonsStillFitOnAScreen(t *testing.T) {
	t.Parallel()
	words, path := strings.Repeat("a reason with many words ", 40), strings.Repeat("/path", 40)
	for _, reason := range []string{words, path, words + path, path + " " + words} {
		fits(t, (&unavailable{url: reason, binaries: reason, docker: reason}).Error())
	}
}

func fits(t *testing.T, text string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) > 24 {
		t.Errorf("%d lines", len(lines))
	}
	for _, line := range lines {
		if len([]rune(line)) > 80 {
			t.Errorf("%d columns: %s", len([]rune(line)), line)
		}
	}
	if t.Failed() {
		t.Log("\n" + text)
	}
}

func TestDatabaseIsExchangedInBothFormsOfConnectionString(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		"postgres://u:p@h:5432/app?sslmode=disable": "postgres://u:p@h:5432/new?sslmode=disable",
		"postgresql://h":                 "postgresql://h/new",
		"postgres:///app?host=%2Frun%2F": "postgres:///new?host=%2Frun%2F",
		"postgres://h/?dbname=app&a=1":   "postgres://h/new?a=1",
		"host=h dbname=app":              "host=h dbname=app dbname=new",
	} {
		got := withDatabase(from, "new")
		if got != want {
			t.Errorf("%s became %s", from, got)
		}
		if name := databaseIn(t, got); name != "new" {
			t.Errorf("%s names %s", got, name)
		}
	}
}
