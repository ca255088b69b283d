package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jackc/pgx/v5/pgxpool"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// statement is a hot statement on a connection of its own, prepared as its caller prepares it.
type statement struct {
	name   string
	conn   *pgx.Conn
	params int
	anew   string // its text, if it is planned anew each time, with settings for one transaction: behind a pooler
}

// text gives the SQL that a method of gen.Queries runs.
func text(call func(*gen.Queries) error) string {
	var c capture
	_ = call(gen.New(&c))
	return c.sql
}

var errCaptured = errors.New("captured")

type capture struct{ sql string }

func (c *capture) Exec(_ context.Context, sql string, _ ...any) (pgconn.CommandTag, error) {
	c.sql = sql
	return pgconn.CommandTag{}, errCaptured
}

func (c *capture) Query(_ context.Context, sql string, _ ...any) (pgx.Rows, error) {
	c.sql = sql
	return nil, errCaptured
}

func (c *capture) QueryRow(_ context.Context, sql string, _ ...any) pgx.Row {
	c.sql = sql
	return capturedRow{}
}

type capturedRow struct{}

func (capturedRow) Scan(...any) error { return errCaptured }

// node is a node of a plan.
type node struct {
	Type      string  `json:"Node Type"`
	Relation  string  `json:"Relation Name"`
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

func (n *node) buffers() int { return n.Hit + n.Read }

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

// prepare prepares the statement on conn under its name, as pgx's statement cache does, and runs it often enough for
// Postgres to turn to a generic plan if it ever will.
func (f *fixture) prepare(name string, conn *pgx.Conn, call func(*gen.Queries) error, args ...any) statement {
	f.Helper()
	sql := text(call)
	if sql == "" {
		f.Fatalf("%s: no text", name)
	}
	s := statement{name: name, conn: conn, params: len(args)}
	if f.shared {
		s.conn, s.anew = f.connect(), sql
	} else if _, err := conn.Prepare(f.ctx(), name, sql); err != nil {
		f.Fatalf("%s: %v", name, err)
	}
	for range 8 {
		f.explain(s, args...)
	}
	return s
}

// explain runs the statement in a transaction that is rolled back and gives the plan it ran by.
func (f *fixture) explain(s statement, args ...any) *node {
	f.Helper()
	if len(args) != s.params {
		f.Fatalf("%s: %d arguments, want %d", s.name, len(args), s.params)
	}
	placeholders := make([]string, len(args))
	for i := range args {
		placeholders[i] = fmt.Sprintf("$%d", i+1)
	}
	tx := f.begin(s.conn)
	defer tx.Rollback(context.Background())
	if s.anew != "" {
		if _, err := gen.New(tx).Session(f.ctx(), gen.SessionParams{IsLocal: true, LockTimeout: "0"}); err != nil {
			f.Fatal(err)
		}
		must(f.T, tx, "PREPARE "+pgx.Identifier{s.name}.Sanitize()+" AS "+s.anew)
		defer must(f.T, tx, "DEALLOCATE "+pgx.Identifier{s.name}.Sanitize())
	}
	var raw []byte
	sql := fmt.Sprintf("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE %s(%s)", pgx.Identifier{s.name}.Sanitize(), strings.Join(placeholders, ", "))
	// By the simple protocol pgx writes the values into the text; EXECUTE takes no parameters.
	err := tx.QueryRow(f.ctx(), sql, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...).Scan(&raw)
	if err != nil {
		f.Fatalf("%s: %v", s.name, err)
	}
	var plans []struct{ Plan node }
	if err := json.Unmarshal(raw, &plans); err != nil {
		f.Fatal(err)
	}
	return &plans[0].Plan
}

// indexed asserts that the plan reads relation only through the index named.
func (f *fixture) indexed(name string, plan *node, relation, index string) {
	f.Helper()
	found := false
	for _, n := range plan.all() {
		switch {
		case n.Loops == 0: // not run
		case n.Type == "Seq Scan" && n.Relation == relation:
			f.Errorf("%s: reads the whole of %s:%v", name, relation, plan)
			return
		case n.Index == "":
		case n.Index == index:
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

// ranges are the arguments of Claim for queue q.
func ranges(markAt time.Time, markID int64) (queues []string, priorities []int16, ats []time.Time, ids []int64) {
	for p := int16(9); p >= 0; p-- {
		queues, priorities, ats, ids = append(queues, "q"), append(priorities, p), append(ats, markAt), append(ids, markID)
	}
	return
}

func claimArgs(worker uuid.UUID, markAt time.Time, markID int64, n int) []any {
	queues, priorities, ats, ids := ranges(markAt, markID)
	return []any{worker.String(), false, queues, priorities, ats, ids, slices.Repeat([]int32{int32(n)}, len(ids)), []string{"k", "l"}, []int32{1, 1}, n, []int64{}}
}

var longAgo = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// hot is a statement with the index that must serve it.
type hot struct {
	statement
	relation, index string
	args            func() []any
}

// hotStatements prepares a worker's statements, each on a connection of its own with the settings it has in production.
func (f *fixture) hotStatements(w *engine.Worker, held *[]engine.Claimed) (all []hot) {
	f.Helper()
	ctx := f.ctx()
	ids := func() (s []int64) {
		for _, c := range *held {
			s = append(s, c.ID)
		}
		return s
	}
	fences := func() []int64 { return []int64{(*held)[0].Fence} }
	n := func() int { return len(*held) }
	me := w.ID.String()
	const queuedID = 40_000 // one that is queued, once there are any
	add := func(name, relation, index string, call func(*gen.Queries) error, args func() []any) {
		f.Helper()
		all = append(all, hot{f.prepare(name, f.session(), call, args()...), relation, index, args})
	}

	add("Claim", "jobs", "jobs_claim",
		func(q *gen.Queries) error { _, err := q.Claim(ctx, gen.ClaimParams{}); return err },
		func() []any { return claimArgs(w.ID, longAgo, 0, 100) })
	add("Complete", "jobs", "jobs_pkey",
		func(q *gen.Queries) error { _, err := q.Complete(ctx, gen.CompleteParams{}); return err },
		func() []any { return []any{ids(), fences(), me, false} })
	add("CompleteRecorded", "jobs", "jobs_pkey",
		func(q *gen.Queries) error {
			_, err := q.CompleteRecorded(ctx, gen.CompleteRecordedParams{})
			return err
		},
		func() []any {
			return []any{false, ids(), fences(), me, slices.Repeat([]string{"1"}, n()), make([]int64, n())}
		})
	add("CompleteUnkeyed", "jobs", "jobs_pkey",
		func(q *gen.Queries) error {
			_, err := q.CompleteUnkeyed(ctx, gen.CompleteUnkeyedParams{})
			return err
		},
		func() []any { return []any{ids(), fences(), me, slices.Repeat([]string{"1"}, n()), make([]int64, n())} })
	add("Fates", "jobs", "jobs_pkey",
		func(q *gen.Queries) error { _, err := q.Fates(ctx, gen.FatesParams{}); return err },
		func() []any { return []any{me, ids(), slices.Repeat(fences(), n()), make([]int64, n())} })
	add("Fail", "jobs", "jobs_pkey",
		func(q *gen.Queries) error { _, err := q.Fail(ctx, gen.FailParams{}); return err },
		func() []any {
			return []any{slices.Repeat(fences(), n()), me, ids(), make([]bool, n()), make([]bool, n()), make([]int64, n()), make([]string, n()), 1000}
		})
	add("CancelHeld", "jobs", "jobs_pkey",
		func(q *gen.Queries) error { _, err := q.CancelHeld(ctx, gen.CancelHeldParams{}); return err },
		func() []any {
			return []any{ids(), slices.Repeat(fences(), n()), me, make([]bool, n()), int64(1000), make([]string, n())}
		})
	add("Cancel", "jobs", "jobs_pkey",
		func(q *gen.Queries) error { _, err := q.Cancel(ctx, gen.CancelParams{}); return err },
		func() []any { return []any{ids(), []string{}, "", int64(1000)} })
	add("PurgeArchive", "job_archive", "job_archive_expiry",
		func(q *gen.Queries) error { _, err := q.PurgeArchive(ctx, 100); return err },
		func() []any { return []any{100} })
	add("Release", "jobs", "jobs_pkey",
		func(q *gen.Queries) error { _, err := q.Release(ctx, gen.ReleaseParams{}); return err },
		func() []any { return []any{ids(), fences(), me} })
	add("Heartbeat", "jobs", "jobs_pkey",
		func(q *gen.Queries) error { _, err := q.Heartbeat(ctx, gen.HeartbeatParams{}); return err },
		func() []any { return []any{ids(), slices.Repeat(fences(), n()), me, time.Hour.Microseconds()} })
	add("Reclaim", "jobs", "jobs_pkey",
		func(q *gen.Queries) error { _, err := q.Reclaim(ctx, gen.ReclaimParams{}); return err },
		func() []any { return []any{false, 100, 5, int64(1000)} })
	add("ClaimSuspect", "jobs", "jobs_suspect",
		func(q *gen.Queries) error { _, err := q.ClaimSuspect(ctx, gen.ClaimSuspectParams{}); return err },
		func() []any { return []any{me, []string{"q"}, []string{"k", "l"}, []int32{1, 1}} })
	add("Lock", "jobs", "jobs_claim",
		func(q *gen.Queries) error { _, err := q.Lock(ctx, gen.LockParams{}); return err },
		func() []any {
			queues, priorities, ats, ids := ranges(longAgo, 0)
			return []any{queues, priorities, ats, ids, []string{"k", "l"}, []int64{}, []int32{1, 1}}
		})
	add("LockSuspect", "jobs", "jobs_suspect",
		func(q *gen.Queries) error { _, err := q.LockSuspect(ctx, gen.LockSuspectParams{}); return err },
		func() []any { return []any{[]string{"q"}, []string{"k", "l"}, []int64{}, []int32{1, 1}} })
	add("CompleteLocked", "jobs", "jobs_pkey",
		func(q *gen.Queries) error { _, err := q.CompleteLocked(ctx, gen.CompleteLockedParams{}); return err },
		func() []any { return []any{true, queuedID, 1, me, "1", int64(1000)} })
	add("Adopt", "jobs", "jobs_pkey",
		func(q *gen.Queries) error { _, err := q.Adopt(ctx, gen.AdoptParams{}); return err },
		func() []any { return []any{queuedID, 1, me, int64(0)} })
	add("Crash", "jobs", "jobs_pkey",
		func(q *gen.Queries) error { _, err := q.Crash(ctx, gen.CrashParams{}); return err },
		func() []any { return []any{queuedID, 1, 5, int64(1000), me} })
	add("NextDue", "jobs", "jobs_claim",
		func(q *gen.Queries) error { _, err := q.NextDue(ctx, gen.NextDueParams{}); return err },
		func() []any {
			queues, priorities, _, _ := ranges(longAgo, 0)
			return []any{time.Hour.Microseconds(), queues, priorities}
		})
	add("PurgeResults", "job_result", "job_result_expiry",
		func(q *gen.Queries) error { _, err := q.PurgeResults(ctx, gen.PurgeResultsParams{N: 100}); return err },
		func() []any { return []any{nil, 100} })
	return all
}

func TestG11HotStatementsKeepTheirIndexesHoweverTheyWerePrepared(t *testing.T) {
	analyzed := "ANALYZE jobgen.jobs, jobgen.job_result, jobgen.workers, jobgen.wake"
	for _, start := range []struct {
		name, sql string
		shared    bool
	}{
		{"prepared on empty tables that were never analyzed", "", false},
		{"prepared on empty tables that were analyzed", analyzed, false},
		{"planned anew behind a pooler", analyzed, true},
	} {
		t.Run(start.name, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			f.shared = start.shared
			// The planner learns nothing unless the test tells it.
			for _, table := range []string{"jobs", "job_result", "workers", "wake"} {
				f.exec("ALTER TABLE jobgen." + table + " SET (autovacuum_enabled = off)")
			}
			f.exec(start.sql)
			w := f.worker(time.Hour)
			f.exec("SELECT nextval('jobgen.job_id')")
			held := []engine.Claimed{{ID: 1, Fence: 1}, {ID: 2, Fence: 1}}
			all := f.hotStatements(w, &held)
			check := func(when string) {
				t.Helper()
				for _, h := range all {
					f.indexed(h.name+" "+when, f.explain(h.statement, h.args()...), h.relation, h.index)
				}
			}

			f.exec(`INSERT INTO jobgen.jobs (id, queue, kind, key, payload, run_at)
				SELECT nextval('jobgen.job_id'), 'q', 'k', 'key ' || i, '{}', clock_timestamp() - interval '1 hour' + i * interval '1 millisecond'
				FROM generate_series(1, 50000) i`)
			f.exec(`INSERT INTO jobgen.job_result (kind, key, job_id) SELECT kind, key, id FROM jobgen.jobs`)
			f.exec(`INSERT INTO jobgen.job_result (kind, key, job_id, finished_at, expires_at)
				SELECT 'k', 'old ' || i, -i, now(), now() + (i - 1000) * interval '1 minute' FROM generate_series(1, 20000) i`)
			held = f.claim(w, 300)
			crashed := f.worker(time.Hour)
			if len(held) != 300 || len(f.claim(crashed, 300)) != 300 {
				t.Fatalf("claimed %d", len(held))
			}
			f.exec("UPDATE jobgen.workers SET lost_at = now() WHERE id = $1", crashed.ID)
			f.exec(`INSERT INTO jobgen.job_archive (job_id, status, queue, kind, version, attempt, crashes, payload, created_at, expires_at)
				SELECT -i, 'cancelled', 'q', 'k', 1, 0, 0, '{}', now(), now() + (i - 1000) * interval '1 minute' FROM generate_series(1, 20000) i`)
			check("after 50,000 jobs came")
			f.exec("ANALYZE jobgen.jobs, jobgen.job_result, jobgen.workers, jobgen.wake")
			check("after ANALYZE")
			// A stranger's indexes may serve a statement as well as ours do; what counts is that none of them is walked.
			cost := make([]int, len(all))
			measure := func(h hot) *node {
				f.exec("VACUUM jobgen.jobs") // what the one before has left behind, which was rolled back
				return f.explain(h.statement, h.args()...)
			}
			for i, h := range all {
				cost[i] = measure(h).buffers()
			}
			f.exec(`CREATE INDEX ON jobgen.jobs (worker_id); CREATE INDEX ON jobgen.jobs (status); CREATE INDEX ON jobgen.jobs (queue, run_at);
				CREATE INDEX ON jobgen.jobs (fence); CREATE INDEX ON jobgen.jobs (kind, priority); CREATE INDEX ON jobgen.jobs (run_at, id)`)
			for i, h := range all {
				// Each new index costs each row written to it about five buffers.
				plan := measure(h)
				if most := cost[i] + 6*5*int(max(plan.Rows, 10)); plan.buffers() > most {
					t.Errorf("%s touches %d buffers with a stranger's indexes, %d without:%v", h.name, plan.buffers(), cost[i], plan)
				}
			}
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

func TestG11AClaimCostsTheSameBesideScheduledDeadAndFinishedJobs(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.exec("ALTER TABLE jobgen.jobs SET (autovacuum_enabled = off)")
	w := f.worker(time.Hour)
	claim := f.prepare("Claim", f.session(), func(q *gen.Queries) error { _, err := q.Claim(f.ctx(), gen.ClaimParams{}); return err },
		claimArgs(w.ID, longAgo, 0, 100)...)
	f.fill(150_000)
	cost := func(at time.Time, id int64) int {
		t.Helper()
		plan := f.explain(claim, claimArgs(w.ID, at, id, 100)...)
		if plan.Rows != 100 {
			t.Fatalf("claimed %v", plan)
		}
		return plan.buffers()
	}
	base := cost(longAgo, 0)
	same := func(what string, got int) {
		t.Helper()
		if got > base+base/4 {
			t.Errorf("a claim touches %d buffers %s, %d without", got, what, base)
		}
	}

	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, priority, run_at)
		SELECT 'q', 'k', '{}', 9, now() + interval '7 days' FROM generate_series(1, 40000)`)
	same("beside 40,000 jobs of higher priority scheduled for next week", cost(longAgo, 0))

	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, priority, status, attempt, run_at)
		SELECT 'q', 'k', '{}', 9, 'dead', 20, now() - interval '1 day' FROM generate_series(1, 40000)`)
	same("beside 40,000 dead jobs", cost(longAgo, 0))

	// 40,000 jobs finish while an old snapshot pins them, all of them earlier than what is still queued.
	old := f.connect()
	must(t, old, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	must(t, old, "SELECT count(*) FROM jobgen.jobs WHERE queue = 'q'")
	f.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, run_at)
		SELECT 'q', 'finished', '{}', now() - interval '1 day' FROM generate_series(1, 40000)`)
	last := value[int64](t, f.pool, "SELECT max(id) FROM jobgen.jobs WHERE kind = 'finished'")
	at := value[time.Time](t, f.pool, "SELECT max(run_at) FROM jobgen.jobs WHERE kind = 'finished'")
	f.exec("DELETE FROM jobgen.jobs WHERE kind = 'finished'")
	same("after 40,000 jobs have finished to the left of the mark", cost(at, last))
	if swept := cost(longAgo, 0); swept <= base+base/4 {
		t.Errorf("a claim from the left end touches %d buffers: the dead entries that this test is about are not there", swept)
	}
}
