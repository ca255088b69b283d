package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/pgserver"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
)

// empty gives a database without jobgen's schema.
func empty(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := jobtest.DB(t)
	if _, err := pool.Exec(t.Context(), "DROP SCHEMA jobgen CASCADE"); err != nil {
		t.Fatal(err)
	}
	return pool
}

// with gives a pool on the same database with another configuration.
func with(t *testing.T, pool *pgxpool.Pool, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config := pool.Config()
	change(config)
	p, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// check is the first thing a worker does with its database.
func check(t *testing.T, pool *pgxpool.Pool) error {
	t.Helper()
	store, err := postgres.Open(t.Context(), pool)
	if err != nil {
		return err
	}
	defer store.Close()
	return store.Check(t.Context())
}

// usable tells that the schema is there and does its work.
func usable(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if err := check(t, pool); err != nil {
		t.Error(err)
	}
	if _, err := jobs.Enqueue(t.Context(), pool, keyed, order{ID: "a"}); err != nil {
		t.Error(err)
	}
}

func TestTenProcessesMayMigrateAtOnce(t *testing.T) {
	t.Parallel()
	pool := empty(t)
	var all sync.WaitGroup
	steps := make(chan int, 10)
	for range 10 {
		own := with(t, pool, func(c *pgxpool.Config) { c.MaxConns = 1 })
		all.Go(func() {
			done, err := postgres.Migrate(t.Context(), own, func(error) {})
			if err != nil {
				t.Error(err)
			}
			steps <- len(done)
		})
	}
	all.Wait()
	close(steps)
	working := 0
	for n := range steps {
		if n > 0 {
			working++
		}
	}
	if working != 1 {
		t.Errorf("%d of 10 did the work", working)
	}
	usable(t, pool)
}

func TestMigrateTwiceIsOnceAndOneConnectionIsEnough(t *testing.T) {
	t.Parallel()
	pool := with(t, empty(t), func(c *pgxpool.Config) { c.MaxConns = 1 })
	held, err := pool.Acquire(t.Context()) // and the application is using it
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := jobs.Migrate(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
	}
	held.Release()
	usable(t, pool)
	if open := pool.Stat().AcquiredConns(); open != 0 {
		t.Errorf("%d connections are still in use", open)
	}
}

func TestWithoutTablesTheErrorSaysToMigrate(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]string{
		"no schema": "DROP SCHEMA jobgen CASCADE",
		"an empty schema, as an interrupted first migration leaves it": "DROP SCHEMA jobgen CASCADE; CREATE SCHEMA jobgen",
		"migrated down": "DROP TABLE jobgen.jobs, jobgen.job_result, jobgen.workers CASCADE; UPDATE jobgen.schema_version SET is_applied = false WHERE version_id > 0",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := jobtest.DB(t)
			if _, err := pool.Exec(t.Context(), broken); err != nil {
				t.Fatal(err)
			}
			_, enqueue := jobs.Enqueue(t.Context(), pool, plain, order{})
			_, enqueueKeyed := jobs.Enqueue(t.Context(), pool, keyed, order{ID: "a"})
			_, many := jobs.EnqueueMany(t.Context(), pool, plain, []order{{}, {}})
			_, await := jobs.RefTo(keyed, 1).Await(t.Context(), pool)
			for what, err := range map[string]error{"Enqueue": enqueue, "with a key": enqueueKeyed, "EnqueueMany": many, "Await": await, "Check": check(t, pool)} {
				if !errors.Is(err, jobs.ErrNotMigrated) || !strings.Contains(err.Error(), "run jobs.Migrate or `jobctl migrate up`") {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
}

func TestASchemaOfAnotherVersionIsAnErrorThatSaysWhatToDo(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	set := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	set("INSERT INTO jobgen.schema_version (version_id, is_applied) VALUES (999, true)")
	for what, err := range map[string]error{"Check": check(t, pool), "Migrate": jobs.Migrate(t.Context(), pool)} {
		if err == nil || errors.Is(err, jobs.ErrNotMigrated) || !strings.Contains(err.Error(), "has schema version 999") || !strings.Contains(err.Error(), "deploy a program built with a newer jobgen") {
			t.Errorf("newer: %s: %v", what, err)
		}
	}
	set("DELETE FROM jobgen.schema_version WHERE version_id > 0")
	if err := check(t, pool); !errors.Is(err, jobs.ErrNotMigrated) || !strings.Contains(err.Error(), "it has version 0") {
		t.Errorf("older: %v", err)
	}
}

func TestAHostileSearchPathDoesNotMatter(t *testing.T) {
	t.Parallel()
	pool := empty(t)
	for _, sql := range []string{
		"CREATE SCHEMA evil",
		"CREATE TABLE evil.jobs (id text)", "CREATE TABLE evil.job_result (id text)", "CREATE TABLE evil.workers (id text)",
		"CREATE TABLE evil.schema_version (id text)", "CREATE TABLE evil.goose_db_version (id text)", "CREATE SEQUENCE evil.job_id",
		"CREATE TABLE public.jobs (id text)", "CREATE TABLE public.schema_version (id text)",
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"evil, public", "", "no_such_schema"} {
		hostile := with(t, pool, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = path })
		if err := jobs.Migrate(t.Context(), hostile); err != nil {
			t.Fatalf("%q: %v", path, err)
		}
		usable(t, hostile)
		if _, err := hostile.Exec(t.Context(), "DROP SCHEMA jobgen CASCADE"); err != nil {
			t.Fatal(err)
		}
	}
	for _, table := range []string{"evil.jobs", "evil.schema_version", "public.jobs"} {
		if n := value[int](t, pool, "SELECT count(*) FROM "+table); n != 0 {
			t.Errorf("%s has %d rows", table, n)
		}
	}
}

// sentence asserts that an error is one clear sentence that says want and gives no password away.
func sentence(t *testing.T, what string, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	text := err.Error()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%s: %q is not in: %s", what, w, text)
		}
	}
	if strings.Contains(text, "s3cret") || strings.ContainsAny(text, "\n\t") || len(text) > 300 {
		t.Errorf("%s: not one clear sentence without the password: %q", what, text)
	}
}

func TestADatabaseThatCannotBeUsedIsOneClearSentence(t *testing.T) {
	t.Parallel()
	both := func(t *testing.T, name string, pool *pgxpool.Pool, want ...string) {
		t.Helper()
		sentence(t, name+": Migrate", jobs.Migrate(t.Context(), pool), want...)
		sentence(t, name+": Check", check(t, pool), want...)
	}
	pool := jobtest.DB(t)
	secret := func(c *pgxpool.Config) { c.ConnConfig.Password = "s3cret" }

	both(t, "missing database", with(t, pool, func(c *pgxpool.Config) { secret(c); c.ConnConfig.Database = "jobgen_none" }),
		`database "jobgen_none" does not exist`, "create it or correct the connection string")

	// A port that nobody listens on, because it was just given back.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	config, err := pgxpool.ParseConfig(fmt.Sprintf("postgres://app:s3cret@%s/app", address))
	if err != nil {
		t.Fatal(err)
	}
	refused, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer refused.Close()
	both(t, "refused port", refused, "no database answers at "+address+" (connect: connection refused)", "check that it runs and that the connection string is right")

	readOnly := with(t, pool, func(c *pgxpool.Config) { secret(c); c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on" })
	both(t, "read-only", readOnly, "read-only", "connect to the primary")
	bare := empty(t)
	sentence(t, "read-only and empty: Migrate", jobs.Migrate(t.Context(), with(t, bare, func(c *pgxpool.Config) {
		secret(c)
		c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	})), "read-only", "connect to the primary")

	role := "jobgen_guest_" + strings.ReplaceAll(pool.Config().ConnConfig.Database, "-", "_")
	if _, err := pool.Exec(t.Context(), "CREATE ROLE "+role+" LOGIN"); err != nil {
		t.Fatal(err)
	}
	defer pool.Exec(context.Background(), "DROP ROLE "+role)
	guest := with(t, pool, func(c *pgxpool.Config) { c.ConnConfig.User = role; secret(c) })
	both(t, "no rights", guest, "permission denied for schema jobgen", "grant this role usage of schema jobgen")
	guest.Close()
}

func TestAWrongPasswordIsOneClearSentence(t *testing.T) {
	t.Parallel()
	// The server reads it as another user than the test.
	folder, err := os.MkdirTemp("", "jobgen-hba-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	hba := filepath.Join(folder, "hba.conf")
	if err := errors.Join(os.Chmod(folder, 0o755), os.WriteFile(hba, []byte("local all app scram-sha-256\nlocal all all trust\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	server, err := pgserver.Start(ctx, pgserver.Options{IgnoreDatabaseURL: true, Settings: map[string]string{"hba_file": hba}})
	if errors.Is(err, pgserver.ErrUnavailable) {
		t.Skip(err) // it needs a server of its own
	}
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	admin, err := pgxpool.New(ctx, server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if _, err := admin.Exec(ctx, "CREATE ROLE app LOGIN PASSWORD 'right'"); err != nil {
		t.Fatal(err)
	}
	app := with(t, admin, func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = "app", "s3cret" })
	sentence(t, "Migrate", jobs.Migrate(ctx, app), "refused the login", "check user and password", `"app"`)
	sentence(t, "Check", check(t, app), "refused the login", "check user and password", `"app"`)
}
