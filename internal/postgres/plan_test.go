package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// statement is a statement of ours with its arguments, and where it runs.
type statement struct {
	name   string
	call   func(*gen.Queries) error
	on     place
	index  string // if it is jobs' to serve it: the only way into jobs, within bounds
	conn   *pgx.Conn
	shared bool // a worker's, but behind a pooler: planned anew each time, with settings for one transaction
}

// query is the name of what it runs; what follows a comma in the statement's name tells cases of one apart.
func (s statement) query() string {
	name, _, _ := strings.Cut(s.name, ",")
	return name
}

// place is what prepares a statement, and how.
type place int

const (
	onWorker place = iota // a connection with a worker's settings, prepared once
	onApp                 // one of the application's, prepared once
	onAppNow              // one of the application's, planned anew each time (see fresh)
)

// node is a node of a plan.
type node struct {
	Type      string  `json:"Node Type"`
	Relation  string  `json:"Relation Name"`
	Subplan   string  `json:"Subplan Name"`
	CTE       string  `json:"CTE Name"`
	Index     string  `json:"Index Name"`
	Cond      string  `json:"Index Cond"`
	Filter    string  `json:"Filter"`
	Removed   float64 `json:"Rows Removed by Filter"`
	Rechecked float64 `json:"Rows Removed by Index Recheck"`
	Rows      float64 `json:"Actual Rows"`
	Loops     float64 `json:"Actual Loops"`
	Hit       int     `json:"Shared Hit Blocks"`
	Read      int     `json:"Shared Read Blocks"`
	Plans     []node  `json:"Plans"`
}

func (n *node) all() []*node {
	out := []*node{n}
	for i := range n.Plans {
		out = append(out, n.Plans[i].all()...)
	}
	return out
}

// buffers counts what the plan has touched. A node's count has its children's in it, but not those of the parts of a WITH that
// nothing reads: they run when it has ended.
func (n *node) buffers() int {
	all := n.all()
	sum := n.Hit + n.Read
	for _, part := range all {
		name, is := strings.CutPrefix(part.Subplan, "CTE ")
		if is && part.Type == "ModifyTable" && !slices.ContainsFunc(all, func(n *node) bool { return n.CTE == name }) {
			sum += part.Hit + part.Read
		}
	}
	return sum
}

// String shows the plan for a failure's message.
func (n *node) String() string {
	var b strings.Builder
	var walk func(*node, int)
	walk = func(n *node, depth int) {
		fmt.Fprintf(&b, "\n%s%s %s %s", strings.Repeat("  ", depth), n.Type, n.Relation, n.Index)
		if n.Cond != "" {
			fmt.Fprintf(&b, " cond=%s", n.Cond)
		}
		if n.Filter != "" {
			fmt.Fprintf(&b, " filter=%s removed=%v", n.Filter, n.Removed)
		}
		fmt.Fprintf(&b, " rows=%v×%v buffers=%d", n.Rows, n.Loops, n.buffers())
		for i := range n.Plans {
			walk(&n.Plans[i], depth+1)
		}
	}
	walk(n, 0)
	return b.String()
}

// prepare prepares the statement under its name, as pgx's statement cache does, and runs it often enough for Postgres to
// turn to a generic plan if it ever will.
func (f *fixture) prepare(s statement) statement {
	f.Helper()
	sql, _ := postgres.Captured(s.call)
	if sql == "" {
		f.Fatalf("%s: no text", s.name)
	}
	if s.on == onAppNow || s.shared {
		return s
	}
	if _, err := s.conn.Prepare(f.ctx(), s.name, sql); err != nil {
		f.Fatalf("%s: %v", s.name, err)
	}
	for range 8 {
		f.explain(s)
	}
	return s
}

// explain runs the statement in a transaction that is rolled back and gives the plan it ran by.
func (f *fixture) explain(s statement) *node {
	f.Helper()
	text, args := postgres.Captured(s.call)
	tx := f.begin(s.conn)
	defer tx.Rollback(context.Background())
	name := pgx.Identifier{s.name}.Sanitize()
	if s.on == onAppNow || s.shared {
		if s.shared {
			if _, err := gen.New(tx).Session(f.ctx(), gen.SessionParams{IsLocal: true, LockTimeout: "0"}); err != nil {
				f.Fatal(err)
			}
		}
		must(f.T, tx, "PREPARE "+name+" AS "+text)
		defer must(f.T, tx, "DEALLOCATE "+name)
	}
	execute := name
	if len(args) > 0 {
		placeholders := make([]string, len(args))
		for i := range args {
			placeholders[i] = fmt.Sprintf("$%d", i+1)
		}
		execute += "(" + strings.Join(placeholders, ", ") + ")"
	}
	var raw []byte
	// By the simple protocol pgx writes the values into the text; EXECUTE takes no parameters.
	err := tx.QueryRow(f.ctx(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE "+execute, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...).Scan(&raw)
	if err != nil {
		f.Fatalf("%s: %v", s.name, err)
	}
	var plans []struct{ Plan node }
	if err := json.Unmarshal(raw, &plans); err != nil {
		f.Fatal(err)
	}
	return &plans[0].Plan
}

// indexed asserts that the plan reads none of the tables that grow as a whole, and jobs through the index named.
func (f *fixture) indexed(name string, plan *node, index string) {
	f.Helper()
	found := index == ""
	for _, n := range plan.all() {
		switch {
		case n.Loops == 0: // not run
		case n.Type == "Seq Scan" && slices.Contains([]string{"jobs", "job_result", "job_archive", "job_attempt", "samples"}, n.Relation):
			f.Errorf("%s: reads the whole of %s:%v", name, n.Relation, plan)
			return
		case n.Index == index && index != "":
			found = true
			if n.Cond == "" || index == "jobs_claim" && !strings.Contains(n.Cond, "now()") {
				f.Errorf("%s: walks all of %s:%v", name, index, plan)
			}
		}
	}
	if !found {
		f.Errorf("%s: does not use %s:%v", name, index, plan)
	}
}

// fill inserts n queued jobs into priority 0 of queue q, the way a busy queue looks, without telling the planner.
func (f *fixture) fill(n int) {
	f.Helper()
	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, run_at)
		SELECT 'q', 'k', '{}', clock_timestamp() - interval '1 hour' + i * interval '1 millisecond' FROM generate_series(1, $1::int) i`, n)
}

var longAgo = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// planRows is how large the tables are: a million with make test-plans.
func planRows(t *testing.T) int {
	s := os.Getenv("JOBGEN_PLAN_ROWS")
	if s == "" {
		return 50_000
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal("JOBGEN_PLAN_ROWS: ", err)
	}
	return n
}

// quiet keeps the planner from learning anything unless the test tells it.
func (f *fixture) quiet() {
	f.Helper()
	f.exec(`DO $$ DECLARE t regclass; BEGIN
		FOR t IN SELECT oid FROM pg_class WHERE relnamespace = 'jobgen'::regnamespace AND relkind = 'r' LOOP
			EXECUTE 'ALTER TABLE ' || t || ' SET (autovacuum_enabled = off)';
		END LOOP;
	END $$`)
}

func (f *fixture) analyze() {
	f.Helper()
	f.exec(`VACUUM ANALYZE jobgen.jobs, jobgen.claims, jobgen.workers, jobgen.wake, jobgen.job_result, jobgen.job_attempt, jobgen.job_archive, jobgen.job_cancel, jobgen.job_start, jobgen.samples`)
}

// load inserts n jobs that wait, each with a key, and a tenth as many rows of each kind of record. The first twenty of the
// records have expired.
func (f *fixture) load(n int) {
	f.Helper()
	last := value[int64](f.T, f.pool, `SELECT last_value FROM jobgen.job_id`)
	f.exec(`INSERT INTO jobgen.jobs (id, queue, kind, key, payload, run_at)
		SELECT i, 'q', 'k', 'key ' || i, '{}', now() - interval '2 hours' + i * interval '1 millisecond'
		FROM (SELECT nextval('jobgen.job_id') AS i FROM generate_series(1, $1::int) OFFSET 0) i`, n)
	f.exec(`INSERT INTO jobgen.job_result (kind, key, job_id) SELECT kind, key, id FROM jobgen.jobs WHERE id > $1`, last)
	from := value[int64](f.T, f.pool, `SELECT count(*) FROM jobgen.job_archive`) + 1
	to := from + int64(n/10) - 1
	f.exec(`INSERT INTO jobgen.job_result (kind, key, job_id, finished_at, expires_at)
		SELECT 'k', 'old ' || i, -i, now(), now() + (i - 20) * interval '1 minute' FROM generate_series($1::bigint, $2) i`, from, to)
	f.exec(`INSERT INTO jobgen.job_archive (job_id, status, queue, kind, version, attempt, crashes, payload, created_at, expires_at)
		SELECT -i, 'cancelled', 'q', 'k', 1, 0, 0, '{}', now(), now() + (i - 20) * interval '1 minute' FROM generate_series($1::bigint, $2) i`, from, to)
	f.exec(`INSERT INTO jobgen.job_attempt (job_id, attempt, fence, worker_id, started_at, ended_at, outcome, error)
		SELECT -i, 1, 1, gen_random_uuid(), now(), now() + (i - 20) * interval '1 ms' - interval '7 days', 'failed', '' FROM generate_series($1::bigint, $2) i`, from, to)
	f.exec(`SELECT brin_summarize_new_values('jobgen.job_attempt_ended')`) // autovacuum does it
	f.exec(`INSERT INTO jobgen.samples (minute, queue, kind) SELECT now() + (i - 20) * interval '1 minute' - interval '14 days', 'q', 'k' FROM generate_series($1::bigint, $2) i`, from, to)
}

// fleet is n live workers, each of which runs jobs of a claim of its own, left of all that waits.
func (f *fixture) fleet(queue string, n, jobs int) {
	f.Helper()
	f.exec(`WITH w AS (
		INSERT INTO jobgen.workers (id, lease_until, pid, host, build, queues, kinds)
		SELECT gen_random_uuid(), now() + interval '1 day', 1, 'host', '', '{q}', '{k}' FROM generate_series(1, $1::int) RETURNING id
	), c AS (
		INSERT INTO jobgen.claims (worker_id, fence, ids)
		SELECT id, nextval('jobgen.fence'), ARRAY(SELECT nextval('jobgen.job_id') FROM generate_series(1, $2::int) WHERE id IS NOT NULL) FROM w RETURNING *
	)
	INSERT INTO jobgen.jobs (id, queue, kind, payload, status, worker_id, fence, attempt, run_at, claimed_at)
	SELECT unnest(ids), $3::text, 'k', '{}', 'running', worker_id, fence, 1, now() - interval '3 hours', now() FROM c`, n, jobs, queue)
}

// stage makes a scene of a thousand jobs: a worker that holds some, a lost one that holds as many, and one that is dead.
func (f *fixture) stage(sc *scene) {
	f.Helper()
	f.load(1000)
	last := value[int64](f.T, f.pool, "SELECT last_value FROM jobgen.job_id")
	f.fleet("q", 100, 1)
	f.exec(`INSERT INTO jobgen.schedules (kind, name, cron, zone, missed, next_at) VALUES ('k', 'nightly', '', '', 'once', $1)`, longAgo)
	w, lost := f.worker(time.Hour), f.worker(time.Hour)
	sc.worker, sc.lost, sc.mark = w.ID, lost.ID, value[time.Time](f.T, f.pool, "SELECT now() - interval '150 minutes'")
	sc.held = f.claim(w, heldRows)
	if len(sc.held) != heldRows || len(f.claim(lost, heldRows)) != heldRows {
		f.Fatalf("claimed %d", len(sc.held))
	}
	f.lose(lost.ID)
	sc.queued, sc.dead, sc.spent = last-100, last-200, []int64{1, 2, 3}
	f.exec(`UPDATE jobgen.jobs SET status = 'dead', attempt = 20 WHERE id = $1`, sc.dead)
	f.expect(10, `SELECT count(*) FROM jobgen.jobs WHERE id = ANY($1) AND status = 'queued'`, sc.ten())
}

// heldRows is how many jobs most statements are about.
const heldRows = 30

// costs runs each statement and gives the buffers that it touches.
func (f *fixture) costs(all []statement) []int {
	f.Helper()
	out := make([]int, len(all))
	for i, s := range all {
		out[i] = f.explain(s).buffers()
	}
	return out
}

// bounded asserts that no statement costs more than it did, but for what deeper indexes and fuller pages cost, and for what is
// allowed extra. Without that, each must use the index that it is for.
func (f *fixture) bounded(when string, all []statement, before []int, extra func(statement) int) {
	f.Helper()
	for i, s := range all {
		plan := f.explain(s)
		// What those before have left on a page, rolled back, keeps an update from being HOT: then it writes to three indexes.
		most := 2*before[i] + 60 + 8*int(plan.Rows)
		if extra != nil {
			most += extra(s)
		}
		if cost := plan.buffers(); cost > most {
			f.Errorf("%s touches %d buffers %s, %d with a thousand jobs:%v", s.name, cost, when, before[i], plan)
		} else if testing.Verbose() {
			f.Logf("%s: %d buffers %s, %d with a thousand jobs", s.name, cost, when, before[i])
		}
		if extra == nil {
			f.indexed(s.name+" "+when, plan, s.index)
		}
	}
}

func TestG11HotStatementsKeepTheirIndexesHoweverTheyWerePrepared(t *testing.T) {
	for _, start := range []struct {
		name     string
		analyzed int // when statistics were gathered: before the first job, or after the first thousand; -1: never
		shared   bool
	}{
		{"prepared on empty tables that were never analyzed", -1, false},
		{"prepared on empty tables that were analyzed", 0, false},
		{"prepared with a thousand jobs", 1000, false},
		{"planned anew behind a pooler, by the statistics of a thousand jobs", 1000, true},
	} {
		t.Run(start.name, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			f.shared = start.shared
			f.quiet()
			var sc scene
			var all []statement
			if start.analyzed == 0 {
				f.analyze()
			}
			if start.analyzed <= 0 {
				all = f.prepared(&sc)
			}
			f.stage(&sc)
			if start.analyzed > 0 {
				f.analyze()
				all = f.prepared(&sc)
				f.analyze() // and clean away what that has left behind
			}
			before := f.costs(all)
			n := planRows(t)
			begin := time.Now()
			f.load(n)
			f.fleet("other", 20, n/200) // what live workers run
			t.Logf("%d jobs loaded in %v", n, time.Since(begin))
			when := fmt.Sprintf("after %d jobs came", n)
			f.bounded(when, all, before, nil)
			if start.analyzed < 0 {
				return
			}
			f.analyze()
			f.bounded(when+" and were analyzed", all, before, nil)

			// A stranger's indexes may serve a statement as well as ours do; what counts is that none of them is walked.
			f.exec(`CREATE INDEX ON jobgen.jobs (worker_id); CREATE INDEX ON jobgen.jobs (status); CREATE INDEX ON jobgen.jobs (queue, run_at);
				CREATE INDEX ON jobgen.jobs (fence); CREATE INDEX ON jobgen.jobs (kind, priority); CREATE INDEX ON jobgen.jobs (run_at, id)`)
			f.bounded("with a stranger's indexes", all, before, func(statement) int { return 6 * 6 * heldRows })
		})
	}
}

// The application's connections have no settings of ours, so its statements must be planned for the tables as they are.
func TestG11AnApplicationsStatementsArePlannedForTheTablesAsTheyAre(t *testing.T) {
	t.Parallel()
	f := open(t)
	for _, table := range []string{"jobs", "job_result"} {
		f.exec("ALTER TABLE jobgen." + table + " SET (autovacuum_enabled = off)")
	}
	f.exec("ANALYZE jobgen.jobs, jobgen.job_result") // empty
	config := f.pool.Config()
	config.MaxConns = 1 // one connection has all the plans
	app, err := pgxpool.NewWithConfig(f.ctx(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	store, err := postgres.Open(f.ctx(), app)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	w := f.worker(time.Hour)
	read := func(d db) int64 {
		return value[int64](t, d, `SELECT coalesce(sum(seq_tup_read), 0)::bigint FROM pg_stat_xact_user_tables WHERE relname IN ('jobs', 'job_result')`)
	}
	// all does each thing once, and tells how many rows were read by sequential scans.
	all := func(key string) (rows int64) {
		t.Helper()
		var before int64 // of earlier transactions, not reported yet
		f.insert(engine.Element{Key: key, Payload: []byte("{}")})
		var c engine.Claimed
		for c.Key != key {
			for _, c = range f.claim(w, 1000) {
				if c.Key == key {
					break
				}
			}
		}
		for _, record := range []bool{false, true} {
			err := store.InTx(f.ctx(), w.ID, func(tx any, finish func(engine.Success) error) error {
				p := postgres.Producer{DB: tx.(pgx.Tx)}
				before = read(tx.(pgx.Tx))
				for _, what := range [][]engine.Element{{{Key: key, Payload: []byte("{}")}}, {{Key: key, Payload: []byte("{}")}, {Key: key + "x", Payload: []byte("{}")}}} {
					if _, err := p.Enqueue(f.ctx(), insertion, what); err != nil {
						return err
					}
				}
				for key, option := range map[string]func(*engine.Insert){ // one waits, one runs
					key + "x": func(in *engine.Insert) { in.Replace = true },
					key:       func(in *engine.Insert) { in.Replace, in.Debounce = true, true },
				} {
					in := insertion
					option(&in)
					if got, err := p.Enqueue(f.ctx(), in, []engine.Element{{Key: key, Payload: []byte("{}")}}); err != nil || got[0].Existing == in.Debounce {
						return fmt.Errorf("%+v, %w", got, err)
					}
				}
				for _, k := range []string{"", key} {
					if _, err := p.State(f.ctx(), []string{"k"}, c.ID, k); err != nil {
						return err
					}
				}
				if err := finish(engine.Success{Hold: engine.Hold{ID: c.ID, Fence: c.Fence}, Kind: c.Kind, Key: c.Key, Record: record}); err != nil {
					return err
				}
				rows += read(tx.(pgx.Tx)) - before
				return errRollback
			})
			if !errors.Is(err, errRollback) {
				t.Fatal(err)
			}
		}
		return rows
	}
	for i := range 8 {
		all(fmt.Sprint("warm ", i))
	}
	f.fill(20_000)
	f.exec(`INSERT INTO jobgen.job_result (kind, key, job_id) SELECT 'l', 'other ' || i, -i FROM generate_series(1, 20000) i`)
	if rows := all("test"); rows > 1000 {
		t.Errorf("one job's statements read %d rows by sequential scans", rows)
	}
}

var errRollback = errors.New("roll back")

func TestG11HotStatementsCostTheSameBesideScheduledDeadFinishedAndRunningJobs(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.quiet()
	n := planRows(t)
	var sc scene
	f.stage(&sc)
	f.load(1000)
	all := slices.DeleteFunc(f.prepared(&sc), func(s statement) bool { return s.name == "Claim, a sweep" })
	sweep := f.prepare(statement{name: "sweep", conn: f.session(), call: func(q *gen.Queries) error {
		_, err := q.Claim(context.Background(), sc.claim(longAgo, true))
		return err
	}})
	f.analyze()
	before, swept := f.costs(all), f.explain(sweep).buffers()
	check := func(what string, args ...any) {
		t.Helper()
		f.analyze() // and clean away what the last round has left behind
		f.bounded("beside "+fmt.Sprintf(what, args...), all, before, func(statement) int { return 0 })
	}

	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, priority, run_at)
		SELECT 'q', 'k', '{}', 9, now() + interval '7 days' FROM generate_series(1, $1::int)`, n)
	check("%d jobs of higher priority scheduled for next week", n)

	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, priority, status, attempt, run_at)
		SELECT 'q', 'k', '{}', 9, 'dead', 20, now() - interval '1 day' FROM generate_series(1, $1::int)`, n)
	check("%d dead jobs", n)

	f.fleet("q", 100, n/1000)
	check("%d jobs that live workers run", n/10)

	// Jobs finish while an old snapshot pins them, all of them earlier than what is still queued.
	f.hold()
	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, run_at)
		SELECT 'q', 'finished', '{}', now() - interval '1 day' FROM generate_series(1, $1::int)`, n)
	f.exec("DELETE FROM jobgen.jobs WHERE kind = 'finished'")
	check("%d jobs that have finished to the left of the mark", n)
	if cost := f.explain(sweep).buffers(); cost <= swept+n/100 {
		t.Errorf("a claim from the left end touches %d buffers: the dead entries that this test is about are not there", cost)
	}
}

// hold keeps what is deleted from now on from being cleaned away.
func (f *fixture) hold() {
	f.Helper()
	old := f.connect()
	must(f.T, old, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	must(f.T, old, "SELECT count(*) FROM jobgen.workers")
}
