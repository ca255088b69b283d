package worker_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/worker"
)

func nothing(context.Context, *jobs.Job[task]) error { return nil }

func TestEachBadSettingHasItsSentence(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cfg  worker.Config
		want string
	}{
		{worker.Config{Concurrency: -1}, "worker: Concurrency is -1; it must be 1 to 100000"},
		{worker.Config{Concurrency: 100_001}, "worker: Concurrency is 100001; it must be 1 to 100000"},
		{worker.Config{Lease: 99 * time.Millisecond}, "worker: Lease is 99ms; it must be 100ms to 24h"},
		{worker.Config{Lease: -time.Second}, "worker: Lease is -1s; it must be 100ms to 24h"},
		{worker.Config{Lease: 25 * time.Hour}, "worker: Lease is 25h0m0s; it must be 100ms to 24h"},
		{worker.Config{Heartbeat: 6 * time.Second}, "worker: Heartbeat is 6s; it must be positive and at most a third of Lease (15s), so that one lost heartbeat loses no job"},
		{worker.Config{Heartbeat: -1}, "worker: Heartbeat is -1ns; it must be positive and at most a third of Lease (15s), so that one lost heartbeat loses no job"},
		{worker.Config{Reclaim: -time.Second}, "worker: Reclaim is -1s; it must be positive and at most 24h"},
		{worker.Config{Reclaim: 100 * 365 * 24 * time.Hour}, "worker: Reclaim is 876000h0m0s; it must be positive and at most 24h"},
		{worker.Config{MaxCrashes: 2}, "worker: MaxCrashes is 2; it must be 3 to 1000: two crashes can be another job's doing"},
		{worker.Config{MaxCrashes: 1001}, "worker: MaxCrashes is 1001; it must be 3 to 1000: two crashes can be another job's doing"},
		{worker.Config{KeepAttempts: -time.Hour}, "worker: KeepAttempts is -1h0m0s; it must not be negative"},
		{worker.Config{Queues: []string{"q", ""}}, `worker: queue "" has 0 bytes; it must have 1 to 100`},
		{worker.Config{Queues: []string{strings.Repeat("x", 101)}}, `worker: queue "` + strings.Repeat("x", 101) + `" has 101 bytes; it must have 1 to 100`},
		{worker.Config{Queues: []string{"a\x00b"}}, `worker: queue "a\x00b" has a NUL at byte 1, which Postgres cannot store in text; use []byte for binary data`},
		{worker.Config{Queues: []string{"a\xff"}}, `worker: queue "a\xff" is not valid UTF-8; use []byte for binary data`},
	} {
		var r worker.Registry
		worker.HandleNone(&r, kind("t.k"), nothing)
		w, err := worker.New(nil, &r, c.cfg)
		if w != nil || err == nil || err.Error() != c.want {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
}

func TestGoodSettingsAtTheirLimits(t *testing.T) {
	t.Parallel()
	for _, cfg := range []worker.Config{
		{},
		{Concurrency: 1, Lease: 100 * time.Millisecond, Reclaim: 1, MaxCrashes: 3, Grace: -1, KeepAttempts: 1},
		{Concurrency: 100_000, Lease: 24 * time.Hour, Heartbeat: 8 * time.Hour, MaxCrashes: 1000, Queues: []string{strings.Repeat("x", 100), "q", "q"}},
	} {
		var r worker.Registry
		worker.HandleNone(&r, kind("t.k"), nothing)
		if _, err := worker.New(nil, &r, cfg); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

type handlers interface{ HandleMail(context.Context) error }

type mailer struct{}

func (*mailer) HandleMail(context.Context) error { return nil }

type whole struct{ handlers } // what an application embeds

type nested struct{ *whole }

type named struct{ Other handlers } // not embedded: no methods of it are promoted

type otherTx struct{}

func TestEachMistakeInTheRegistryHasItsSentence(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		fill func(*worker.Registry)
		want []string
	}{
		{"nothing", func(*worker.Registry) {}, []string{"worker: no handler is registered; call the emitted Register before New"}},
		{"two handlers of a kind", func(r *worker.Registry) {
			worker.HandleNone(r, kind("t.k"), nothing)
			worker.HandleNone(r, kind("t.k"), nothing)
		}, []string{`worker: kind "t.k" has two handlers; remove one Handle or Register call`}},
		{"a nil function", func(r *worker.Registry) {
			worker.HandleNone(r, kind("t.k"), nil)
		}, []string{`worker: the handler of "t.k" is nil`}},
		{"nil functions of all forms", func(r *worker.Registry) {
			worker.Handle[task, string](r, answering("t.a"), nil)
			worker.HandleTx[pgx.Tx, task, string](r, answering("t.b"), nil)
			worker.HandleTxNone[pgx.Tx, task](r, kind("t.c"), nil)
		}, []string{`the handler of "t.a" is nil`, `the handler of "t.b" is nil`, `the handler of "t.c" is nil`}},
		{"another database's transaction", func(r *worker.Registry) {
			worker.HandleTxNone(r, kind("t.k"), func(context.Context, otherTx, *jobs.Job[task]) error { return nil })
		}, []string{`worker: the handler of "t.k" wants a worker_test.otherTx; this database gives a pgx.Tx`}},
		{"a nil value", func(r *worker.Registry) {
			if r.Check(nil) {
				t.Error("nil is accepted")
			}
		}, []string{"worker: Register: the value is nil; give it a value that has the handlers"}},
		{"a nil pointer", func(r *worker.Registry) {
			if r.Check((*mailer)(nil)) {
				t.Error("a nil pointer is accepted")
			}
		}, []string{"worker: Register: *worker_test.mailer is nil"}},
		{"an embedded nil interface", func(r *worker.Registry) {
			if r.Check(whole{}) {
				t.Error("an embedded nil interface is accepted")
			}
		}, []string{"worker: Register: worker_test.handlers in worker_test.whole is nil"}},
		{"the same, deeper and behind pointers", func(r *worker.Registry) {
			if r.Check(&nested{&whole{}}) {
				t.Error("an embedded nil interface is accepted")
			}
		}, []string{"worker_test.handlers in worker_test.whole", "is nil"}},
		{"an embedded interface with a nil pointer in it", func(r *worker.Registry) {
			if r.Check(whole{(*mailer)(nil)}) {
				t.Error("a nil pointer in an embedded interface is accepted")
			}
		}, []string{"*worker_test.mailer in worker_test.whole is nil"}},
		{"mistakes of the registry and of the configuration come together", func(r *worker.Registry) {
			worker.HandleNone(r, kind("t.k"), nothing)
			worker.HandleNone(r, kind("t.k"), nothing)
			r.Check(nil)
		}, []string{"has two handlers", "the value is nil", "Concurrency is -5"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r worker.Registry
			c.fill(&r)
			cfg := worker.Config{}
			if strings.HasPrefix(c.name, "mistakes") {
				cfg.Concurrency = -5
			}
			w, err := worker.New(nil, &r, cfg)
			if w != nil || err == nil {
				t.Fatalf("accepted (error %v)", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
		})
	}
}

func TestCompleteHandlersAreAccepted(t *testing.T) {
	t.Parallel()
	var r worker.Registry
	for _, h := range []any{&mailer{}, whole{&mailer{}}, &whole{&mailer{}}, &nested{&whole{&mailer{}}}, named{}, mailer{}} {
		if !r.Check(h) {
			t.Errorf("%T is refused", h)
		}
	}
}

func TestQueuesDefaultToThoseOfTheKinds(t *testing.T) {
	t.Parallel()
	pool := database(t)
	a, b, c := kind("t.a"), kind("t.b"), kind("t.c")
	a.Queue, b.Queue, c.Queue = "two", "one", "two"
	w := start(t, pool, worker.Config{}, stampers(pool, a, b, c))
	eventually(t, soon, "it runs", func() bool { return w.log.has("worker started") })
	if got := one[[]string](t, pool, `SELECT queues FROM jobgen.workers`); strings.Join(got, " ") != "one two" {
		t.Errorf("queues: %v", got)
	}
	elsewhere := enqueue(t, pool, a, task{N: 1}, jobs.Queue("three"))
	enqueue(t, pool, b, task{N: 2})
	eventually(t, soon, "the job of its queues ran", func() bool { return ran(t, pool, 2) })
	if r := look(t, pool, elsewhere.ID); r.Status != "queued" {
		t.Errorf("the job of another queue is %s", r)
	}
}

// What is wrong with the database is said at the start, in a sentence that says what to do.
func TestRunSaysWhatIsWrongWithTheDatabase(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		spoil  func(t *testing.T, pool *pgxpool.Pool)
		change func(*pgxpool.Config)
		want   string
	}{
		{name: "nothing listens", change: func(c *pgxpool.Config) {
			c.ConnConfig.Host, c.ConnConfig.Port, c.ConnConfig.Fallbacks = "127.0.0.1", 1, nil
		}, want: "check that it runs and that the connection string is right"},
		{name: "no such database", change: func(c *pgxpool.Config) { c.ConnConfig.Database = "jobgen_no_such_database" },
			want: `database "jobgen_no_such_database" does not exist; create it or correct the connection string`},
		{name: "no such role", change: func(c *pgxpool.Config) {
			c.ConnConfig.User, c.ConnConfig.Password = "jobgen_no_such_role", "wrong"
		}, want: "the database refused the login; check user and password in the connection string"},
		{name: "not migrated", spoil: func(t *testing.T, pool *pgxpool.Pool) { execute(t, pool, `DROP SCHEMA jobgen CASCADE`) },
			want: "run jobs.Migrate or `jobctl migrate up`"},
		{name: "an older schema", spoil: func(t *testing.T, pool *pgxpool.Pool) {
			execute(t, pool, `DELETE FROM jobgen.schema_version WHERE version_id > 0`)
		},
			want: "it has version 0, this program needs"},
		{name: "a newer schema", spoil: func(t *testing.T, pool *pgxpool.Pool) {
			execute(t, pool, `INSERT INTO jobgen.schema_version (version_id, is_applied) VALUES (999, true)`)
		}, want: "the database has schema version 999 and this program knows"},
		{name: "read-only", change: func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on" },
			want: "the database is read-only"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := jobtest.DB(t)
			if c.spoil != nil {
				c.spoil(t, pool)
			}
			if c.change != nil {
				pool = another(t, pool, c.change)
			}
			var r worker.Registry
			worker.HandleNone(&r, kind("t.k"), nothing)
			w, err := worker.New(pool, &r, worker.Config{Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- w.Run(t.Context()) }()
			err = receive(t, "Run returns", done)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestRunSaysThatTheRoleMayNot(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	if !one[bool](t, pool, `SELECT rolcreaterole OR rolsuper FROM pg_roles WHERE rolname = current_user`) {
		t.Skip("this server's role may not create roles")
	}
	role := "jobgen_test_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	execute(t, pool, `CREATE ROLE `+role)
	t.Cleanup(func() { execute(t, pool, `DROP ROLE `+role) })
	weak := another(t, pool, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role })
	var r worker.Registry
	worker.HandleNone(&r, kind("t.k"), nothing)
	w, err := worker.New(weak, &r, worker.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "grant this role usage of schema jobgen") {
		t.Errorf("Run: %v", err)
	}
}

func TestNewDoesNotTouchTheDatabase(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(context.Background(), "host=127.0.0.1 port=1 user=nobody dbname=nowhere")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var r worker.Registry
	worker.HandleNone(&r, kind("t.k"), nothing)
	if _, err := worker.New(pool, &r, worker.Config{}); err != nil {
		t.Error(err)
	}
}
