package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/pgserver"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// ofWorkers is how many connections workers have open.
func ofWorkers(t testing.TB, db jobs.DB) int {
	t.Helper()
	return one[int](t, db, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'jobgen worker'`)
}

// A worker never has more than six connections of its own, also when the database keeps all of its loops waiting, and it
// leaves none behind.
func TestAWorkerOpensSixConnectionsAtMost(t *testing.T) {
	t.Parallel()
	db := database(t)
	spec := kind("c.count")
	release := make(chan struct{})
	w := start(t, db, worker.Config{Lease: 3 * time.Second, Heartbeat: 50 * time.Millisecond, Reclaim: 50 * time.Millisecond}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(context.Context, *jobs.Job[task]) error { <-release; return nil })
	}, leaveTick(db, ticking(jobs.Schedule{Name: "n", Cron: "* * * * *", Zone: "UTC"})))
	eventually(t, soon, "the worker listens", func() bool { return one[int](t, db, `SELECT count(*) FROM jobgen.wake`) == 1 })
	enqueueMany(t, db, spec, numbered(20))
	eventually(t, soon, "jobs run", func() bool { return one[int](t, db, `SELECT count(*) FROM jobgen.jobs WHERE status = 'running'`) == 20 })
	lock, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Rollback(context.Background())
	execute(t, lock, `LOCK TABLE jobgen.workers, jobgen.jobs, jobgen.queues, jobgen.job_cancel, jobgen.schedules IN ACCESS EXCLUSIVE MODE`)
	close(release)
	eventually(t, soon, "four loops and the outcomes wait", func() bool {
		return one[int](t, db, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'jobgen worker' AND wait_event_type = 'Lock'`) >= 4
	})
	always(t, time.Second, "no more than six connections", func() bool { return ofWorkers(t, db) <= 6 })
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	drained(t, db, soon)
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	eventually(t, soon, "all connections are closed", func() bool { return ofWorkers(t, db) == 0 })
}

// The application's pool has one connection, and everything there is uses it.
func TestAPoolOfOneConnectionIsEnough(t *testing.T) {
	t.Parallel()
	db := database(t)
	app := another(t, db, func(c *pgxpool.Config) { c.MaxConns = 1 })
	plain, tx := kind("c.plain"), kind("c.tx")
	start(t, app, worker.Config{}, func(r *worker.Registry) {
		worker.HandleNone(r, plain, func(ctx context.Context, j *jobs.Job[task]) error {
			return leave(ctx, app, j.Payload.N, "plain")
		})
		worker.HandleTxNone(r, tx, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) error {
			if _, err := jobs.Enqueue(ctx, tx, plain, j.Payload); err != nil {
				return err
			}
			return leave(ctx, tx, j.Payload.N, "tx")
		})
	})
	enqueueMany(t, app, tx, numbered(60))
	enqueueMany(t, app, plain, numbered(60))
	drained(t, db, soon)
	if got := fmt.Sprint(all[string](t, db, `SELECT what || ' ' || count(*) || ' ' || count(DISTINCT n) FROM effect GROUP BY what ORDER BY what COLLATE "C"`)); got != "[plain 120 60 tx 60 60]" {
		t.Errorf("effects %s", got)
	}
}

// A transactional handler that waits for a second connection of the same pool ends with its time, and is told why.
func TestAHandlerThatWaitsForItsOwnConnectionIsTold(t *testing.T) {
	t.Parallel()
	db := database(t)
	app := another(t, db, func(c *pgxpool.Config) { c.MaxConns = 1 })
	spec := answering("c.second")
	spec.Timeout, spec.MaxAttempts = 300*time.Millisecond, 1
	start(t, app, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		_, err := app.Exec(ctx, `SELECT 1`)
		return "", err
	}))
	_, err := await(t, db, enqueue(t, db, spec, task{}))
	if err == nil || !strings.Contains(err.Error(), "timeout after 300ms") || !strings.Contains(err.Error(), "all 1 connections of the pool given to worker.New were in use") {
		t.Errorf("got %v", err)
	}
}

// A hundred handlers hold or wait for the application's connections for several leases; the worker renews its own.
func TestHandlersThatUseUpThePoolStarveNoHeartbeat(t *testing.T) {
	t.Parallel()
	db := database(t)
	app := another(t, db, func(c *pgxpool.Config) { c.MaxConns = 5 })
	spec := kind("c.hog")
	var holding atomic.Int64
	release := make(chan struct{})
	w := start(t, app, worker.Config{Lease: time.Second, Reclaim: 50 * time.Millisecond}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(ctx context.Context, j *jobs.Job[task]) error {
			c, err := app.Acquire(ctx)
			if err != nil {
				return err
			}
			defer c.Release()
			holding.Add(1)
			<-release
			return leave(ctx, c, j.Payload.N, "done")
		})
	})
	// Another one, to take the jobs back if it may.
	start(t, db, worker.Config{Lease: time.Second, Reclaim: 50 * time.Millisecond, Queues: []string{"other"}}, func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(context.Context, *jobs.Job[task]) error { return nil })
	})
	enqueueMany(t, db, spec, numbered(100))
	eventually(t, soon, "the pool is used up", func() bool { return holding.Load() == 5 })
	began := one[time.Time](t, db, `SELECT max(beat_at) FROM jobgen.workers WHERE queues = '{q}'`)
	eventually(t, soon, "the lease has been renewed for three leases", func() bool {
		return one[bool](t, db, `SELECT max(beat_at) > $1::timestamptz + interval '3 seconds' FROM jobgen.workers WHERE queues = '{q}' AND lost_at IS NULL`, began)
	})
	close(release)
	drained(t, db, soon)
	if got := fmt.Sprint(one[int](t, db, `SELECT count(*) FROM effect`), one[int](t, db, `SELECT count(*) FROM jobgen.job_attempt`)); got != "100 0" {
		t.Errorf("effects and attempts that did not succeed: %s, want 100 0", got)
	}
	if w.log.has("found dead") {
		t.Error("the lease was lost")
	}
}

// Without a connection left at the server a worker does not start, and says what to do; one that runs goes on trying, and
// loses nothing.
func TestAServerWithoutAConnectionLeft(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 4*soon)
	defer cancel()
	const most = 12
	server, err := pgserver.Start(ctx, pgserver.Options{IgnoreDatabaseURL: true, Settings: map[string]string{
		"max_connections": fmt.Sprint(most), "superuser_reserved_connections": "0", "max_wal_senders": "0", "autovacuum": "off",
	}})
	if errors.Is(err, pgserver.ErrUnavailable) {
		t.Skip(err) // it needs a server of its own
	}
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	config, err := pgxpool.ParseConfig(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	app, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	if err := jobs.Migrate(ctx, app); err != nil {
		t.Fatal(err)
	}
	execute(t, app, `CREATE TABLE effect (id bigserial PRIMARY KEY, n bigint, what text, at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	spec := kind("c.full")
	register := func(r *worker.Registry) {
		worker.HandleNone(r, spec, func(ctx context.Context, j *jobs.Job[task]) error { return leave(ctx, app, j.Payload.N, "done") })
	}
	var hogs []*pgx.Conn
	hog := func() {
		for {
			c, err := pgx.ConnectConfig(ctx, config.ConnConfig)
			if err != nil {
				return
			}
			hogs = append(hogs, c)
		}
	}
	free := func() {
		for _, c := range hogs {
			_ = c.Close(ctx)
		}
		hogs = nil
	}
	defer free()

	hog()
	var reg worker.Registry
	register(&reg)
	w, err := worker.New(app, &reg, worker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(ctx); err == nil || !strings.Contains(err.Error(), "no connection left; raise max_connections") {
		t.Errorf("at the start: %v", err)
	}
	free()

	// Its connections live for a moment only, so that it needs new ones all the time.
	short := another(t, app, func(c *pgxpool.Config) { c.MaxConnLifetime = time.Millisecond })
	running := start(t, short, worker.Config{Lease: time.Second}, register)
	enqueue(t, app, spec, task{N: 1})
	eventually(t, soon, "the first job has run", func() bool { return one[int](t, app, `SELECT count(*) FROM effect`) == 1 })
	eventually(t, soon, "the worker is told why", func() bool { hog(); return running.log.has("no connection left; raise max_connections") })
	enqueueMany(t, app, spec, numbered(50))
	free()
	drained(t, app, soon)
	if n := one[int](t, app, `SELECT count(DISTINCT n) FROM effect`); n != 50 {
		t.Errorf("%d of 50 jobs had an effect", n)
	}
	if err := running.stop(); err != nil {
		t.Error(err)
	}
}

// A worker outlives the pool it was made with; what needs that pool goes back unspent.
func TestAPoolClosedUnderAWorkerCostsNoAttempt(t *testing.T) {
	t.Parallel()
	db := database(t)
	app := another(t, db, func(c *pgxpool.Config) { c.MaxConns = 2 })
	plain, tx := answering("c.plain"), kind("c.tx")
	tx.MaxAttempts = 1
	w := start(t, app, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, plain, func(context.Context, *jobs.Job[task]) (string, error) { return "ok", nil })
		worker.HandleTxNone(r, tx, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) error {
			return leave(ctx, tx, j.Payload.N, "tx")
		})
	})
	enqueue(t, db, tx, task{N: 1})
	drained(t, db, soon)
	app.Close()
	ref := enqueue(t, db, tx, task{N: 2})
	if got, err := await(t, db, enqueue(t, db, plain, task{})); got != "ok" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	eventually(t, soon, "the worker says so", func() bool { return w.log.has("closed pool") })
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if r := look(t, db, ref.ID); r.Status != "queued" || r.Attempt != 0 {
		t.Errorf("the job is %s", r)
	}
}

// Connections that are replaced all the time get a worker's settings each time.
func TestEachConnectionOfAWorkerHasItsSettings(t *testing.T) {
	t.Parallel()
	db := database(t)
	execute(t, db, `CREATE TABLE seen (pid int, settings text);
		CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO public.seen VALUES (pg_backend_pid(), concat_ws(' ', current_setting('enable_seqscan'), current_setting('plan_cache_mode'), current_setting('application_name'), current_setting('jobgen_test.mine')));
			RETURN NEW;
		END $$;
		CREATE TRIGGER see BEFORE UPDATE ON jobgen.jobs FOR EACH ROW EXECUTE FUNCTION see()`)
	config := db.Config()
	config.MinConns, config.MaxConnLifetime, config.HealthCheckPeriod = 3, 100*time.Millisecond, 50*time.Millisecond
	config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, `SET jobgen_test.mine = 'after'`)
		return err
	}
	app, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(app.Close)
	spec := answering("c.short")
	w := start(t, app, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(context.Context, *jobs.Job[task]) (string, error) { return "ok", nil })
	})
	eventually(t, soon, "five connections have claimed", func() bool {
		if _, err := await(t, db, enqueue(t, db, spec, task{})); err != nil {
			t.Fatal(err)
		}
		return one[int](t, db, `SELECT count(DISTINCT pid) FROM seen`) >= 5
	})
	if got := fmt.Sprint(all[string](t, db, `SELECT DISTINCT settings FROM seen`)); got != "[off force_generic_plan jobgen worker after]" {
		t.Errorf("settings %s", got)
	}
	// The listening connection is not the pool's any more, and hears all the time.
	eventually(t, soon, "the worker wants to be woken", func() bool { return one[int](t, db, `SELECT count(*) FROM jobgen.wake`) == 1 })
	if w.log.has("not listening") || w.log.has("level=ERROR") {
		t.Error("it did not work undisturbed")
	}
}

// counting traces queries.
type counting struct{ n atomic.Int64 }

func (c *counting) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (*counting) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// What the application's pool does to get its connections, such as fetching a token that is good for minutes, a worker
// and a migration do too.
func TestAWorkerConnectsAsTheApplicationDoes(t *testing.T) {
	t.Parallel()
	db := database(t)
	execute(t, db, "DROP SCHEMA jobgen CASCADE")
	user := db.Config().ConnConfig.User
	config := db.Config()
	config.ConnConfig.User = "nobody of that name"
	var tokens, greetings atomic.Int64
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		tokens.Add(1)
		c.User = user
		return nil
	}
	config.AfterConnect = func(context.Context, *pgx.Conn) error { greetings.Add(1); return nil }
	var queries counting
	config.ConnConfig.Tracer = &queries
	app, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(app.Close)
	if err := jobs.Migrate(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	if app.Stat().NewConnsCount() != 0 || tokens.Load() < 2 || greetings.Load() < 2 || queries.n.Load() == 0 {
		t.Errorf("migrating: %d tokens, %d greetings, %d queries traced", tokens.Load(), greetings.Load(), queries.n.Load())
	}
	tokens.Store(0)
	greetings.Store(0)
	queries.n.Store(0)
	spec := answering("c.hooks")
	start(t, app, worker.Config{}, func(r *worker.Registry) {
		worker.Handle(r, spec, func(context.Context, *jobs.Job[task]) (string, error) { return "ok", nil })
	})
	if got, err := await(t, db, enqueue(t, db, spec, task{})); got != "ok" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if tokens.Load() < 3 || greetings.Load() < 3 || queries.n.Load() == 0 {
		t.Errorf("working: %d tokens, %d greetings, %d queries traced", tokens.Load(), greetings.Load(), queries.n.Load())
	}
}

func TestAPoolWithoutConnectionsIsRefused(t *testing.T) {
	t.Parallel()
	config := database(t).Config()
	config.MaxConns = 0
	if _, err := pgxpool.NewWithConfig(t.Context(), config); err == nil { // so no worker ever sees one
		t.Error("pgx makes it")
	}
	if _, err := pgxpool.ParseConfig("host=h pool_max_conns=0"); err == nil {
		t.Error("pgx takes it from a connection string")
	}
	var reg worker.Registry
	worker.HandleNone(&reg, kind("c.nil"), func(context.Context, *jobs.Job[task]) error { return nil })
	w, err := worker.New(nil, &reg, worker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "pool given to worker.New is nil") {
		t.Errorf("got %v", err)
	}
}
