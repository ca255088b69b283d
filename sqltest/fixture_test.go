package sqltest

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "github.com/lib/pq"              // the driver "postgres"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/worker"
)

// settings are the drivers, each also as it is set for a pooler between it and the server.
var settings = []struct{ name, driver, param string }{
	{"pgx", "pgx", ""},
	{"pgx_cache_describe", "pgx", "default_query_exec_mode=cache_describe"},
	{"pgx_exec", "pgx", "default_query_exec_mode=exec"},
	{"pgx_simple_protocol", "pgx", "default_query_exec_mode=simple_protocol"},
	{"pq", "postgres", ""},
	{"pq_binary_parameters", "postgres", "binary_parameters=yes"},
}

// fixture is a database of the test's own, reached through a driver and, to look at it, through pgx's pool.
type fixture struct {
	*testing.T
	pool   *pgxpool.Pool
	db     *sql.DB
	driver string
}

// each runs a test under each setting.
func each(t *testing.T, test func(f *fixture)) {
	t.Parallel()
	for _, s := range settings {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			test(open(t, s.driver, s.param))
		})
	}
}

func open(t *testing.T, driver string, params ...string) *fixture {
	t.Helper()
	f := &fixture{T: t, pool: jobtest.DB(t), driver: driver}
	f.exec(`CREATE TABLE users (name text PRIMARY KEY)`)
	f.db = f.connect(driver, params...)
	return f
}

func (f *fixture) connect(driver string, params ...string) *sql.DB {
	f.Helper()
	db, err := sql.Open(driver, dsn(f.pool, params...))
	f.no(err)
	f.Cleanup(func() {
		if n := db.Stats().InUse; n > 0 && !f.Failed() {
			f.Errorf("%d connections are in use: rows or a transaction were not closed", n)
		}
		f.no(db.Close())
	})
	db.SetMaxOpenConns(4)
	return db
}

// dsn is a connection string that both drivers take.
func dsn(pool *pgxpool.Pool, params ...string) string {
	c := pool.Config().ConnConfig
	return fmt.Sprintf("host='%s' port=%d user='%s' password='%s' dbname='%s' sslmode=disable %s",
		c.Host, c.Port, c.User, c.Password, c.Database, strings.Join(params, " "))
}

// ctx bounds each wait of a test, so that a deadlock fails it.
func (f *fixture) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	f.Cleanup(cancel)
	return ctx
}

func (f *fixture) no(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) exec(query string, args ...any) {
	f.Helper()
	if _, err := f.pool.Exec(f.ctx(), query, args...); err != nil {
		f.Fatalf("%s: %v", query, err)
	}
}

func (f *fixture) expect(want any, query string, args ...any) {
	f.Helper()
	var got any
	f.no(f.pool.QueryRow(f.ctx(), query, args...).Scan(&got))
	if fmt.Sprint(got) != fmt.Sprint(want) {
		f.Errorf("%s: got %v, want %v", query, got, want)
	}
}

func (f *fixture) begin() *sql.Tx {
	f.Helper()
	tx, err := f.db.BeginTx(f.ctx(), nil)
	f.no(err)
	f.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// work runs all jobs that are due.
func (f *fixture) work() {
	f.Helper()
	jobtest.Run(f.T, f.pool, func(r *worker.Registry) {
		HandleWelcome(r, func(_ context.Context, job *jobs.Job[Welcome]) (Sent, error) {
			if job.Payload.Note == "fail" {
				return Sent{}, jobs.Permanent(fmt.Errorf("no such mailbox"))
			}
			return Sent{To: job.Payload.Name}, nil
		})
		worker.Handle(r, plain, func(context.Context, *jobs.Job[Welcome]) (jobs.None, error) { return jobs.None{}, nil })
	})
}

// plain is a kind without a key.
var plain = &jobs.Spec[Welcome, jobs.None]{Kind: "users.plain", Queue: "mail"}

// counts are what enqueueing can leave behind.
func (f *fixture) counts(jobRows, resultRows int) {
	f.Helper()
	f.expect(jobRows, "SELECT count(*) FROM jobgen.jobs")
	f.expect(resultRows, "SELECT count(*) FROM jobgen.job_result")
}

// enqueueAll enqueues in each way there is, six jobs, three of them with a key, and meets two keys that are taken.
func (f *fixture) enqueueAll(db jobs.SQLConn) {
	f.Helper()
	on := jobs.SQL(db)
	_, err := jobs.Enqueue(f.ctx(), on, plain, Welcome{Name: "1"})
	f.no(err)
	_, err = jobs.EnqueueMany(f.ctx(), on, plain, []Welcome{{Name: "2"}, {Name: "3"}})
	f.no(err)
	four, err := EnqueueWelcome(f.ctx(), on, Welcome{Name: "4"})
	f.no(err)
	refs, err := EnqueueWelcomeMany(f.ctx(), on, []Welcome{{Name: "6"}, {Name: "4"}, {Name: "5"}})
	f.no(err)
	if len(refs) != 3 || refs[1].ID != four.ID || !refs[1].Existing || refs[0].Existing || refs[2].Existing {
		f.Errorf("refs %+v; the key of the second is job %d's", refs, four.ID)
	}
	again, err := EnqueueWelcome(f.ctx(), on, Welcome{Name: "6"})
	if err != nil || again.ID != refs[0].ID || !again.Existing {
		f.Errorf("%+v, %v; the key is job %d's", again, err, refs[0].ID)
	}
}
