package jobs_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
)

// counts are what an enqueue can leave behind.
func (f *fixture) counts(jobRows, resultRows int) {
	f.Helper()
	f.expect(jobRows, "SELECT count(*) FROM jobgen.jobs")
	f.expect(resultRows, "SELECT count(*) FROM jobgen.job_result")
}

// enqueueAll enqueues in each way there is: four jobs, two of them with a key.
func (f *fixture) enqueueAll(db jobs.DB) {
	f.Helper()
	_, err := jobs.Enqueue(f.ctx(), db, plain, order{ID: "1"})
	f.no(err)
	_, err = jobs.EnqueueMany(f.ctx(), db, plain, []order{{ID: "2"}, {ID: "3"}})
	f.no(err)
	_, err = jobs.Enqueue(f.ctx(), db, keyed, order{ID: "4"})
	f.no(err)
	_, err = jobs.EnqueueMany(f.ctx(), db, keyed, []order{{ID: "5"}, {ID: "6"}})
	f.no(err)
}

func TestG1JobsCommitWithTheCallersTransaction(t *testing.T) {
	t.Parallel()
	f := open(t)
	tx := f.begin(pgx.TxOptions{})
	f.enqueueAll(tx)
	f.counts(0, 0)
	if got := f.claim(10); len(got) != 0 {
		t.Errorf("claimed %v before the commit", got)
	}
	f.no(tx.Commit(f.ctx()))
	f.counts(6, 3)
	if got := f.claim(10); len(got) != 6 {
		t.Errorf("claimed %d of 6 after the commit", len(got))
	}
}

func TestG1JobsRollBackWithTheCallersTransaction(t *testing.T) {
	t.Parallel()
	f := open(t)
	tx := f.begin(pgx.TxOptions{})
	f.enqueueAll(tx)
	f.no(tx.Rollback(f.ctx()))
	f.counts(0, 0)
	// The key is free again.
	ref, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "4"})
	if err != nil || ref.Existing {
		t.Errorf("%+v, %v", ref, err)
	}
}

func TestG1JobsRollBackWithTheCallersSavepoint(t *testing.T) {
	t.Parallel()
	f := open(t)
	tx := f.begin(pgx.TxOptions{})
	save, err := tx.Begin(f.ctx())
	f.no(err)
	f.enqueueAll(save)
	f.no(save.Rollback(f.ctx()))
	_, err = jobs.Enqueue(f.ctx(), tx, keyed, order{ID: "kept"})
	f.no(err)
	f.no(tx.Commit(f.ctx()))
	f.counts(1, 1)
	if got := jobtest.EnqueuedOne[order](t, f.pool, keyed.Kind); got.Payload.ID != "kept" {
		t.Errorf("%+v", got)
	}
}

func TestG1OneConnectionIsEnough(t *testing.T) {
	t.Parallel()
	f := open(t)
	config := f.pool.Config()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(f.ctx(), config)
	f.no(err)
	defer pool.Close()
	f.enqueueAll(pool)
	f.enqueueAll(pool) // keys taken: more than one statement
	tx, err := pool.Begin(f.ctx())
	f.no(err)
	f.enqueueAll(tx)
	f.no(tx.Commit(f.ctx()))
	f.counts(12, 3)
}

func TestEnqueueOnWhateverTheApplicationHas(t *testing.T) {
	t.Parallel()
	f := open(t)
	conn, err := f.pool.Acquire(f.ctx())
	f.no(err)
	defer conn.Release()
	n := 0
	for _, db := range []jobs.DB{f.pool, conn, conn.Conn(), (&jobs.Producer{}).On(f.pool)} {
		f.enqueueAll(db)
		n++
	}
	f.counts(3*n+3, 3)
}

// Behind some poolers an application must not use prepared statements, and tells pgx so.
func TestEnqueueAndAwaitUnderEachOfPgxsProtocols(t *testing.T) {
	t.Parallel()
	f := open(t)
	for i, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		config := f.pool.Config()
		config.ConnConfig.DefaultQueryExecMode = mode
		pool, err := pgxpool.NewWithConfig(f.ctx(), config)
		f.no(err)
		defer pool.Close()
		id := string(rune('a' + i))
		note := `quote ' backslash \ dollar $1 "x" ☃`
		ref, err := jobs.Enqueue(f.ctx(), pool, keyed, order{ID: id, Note: note}, jobs.Headers(map[string]string{"trace": note}))
		if err != nil {
			t.Fatalf("%v: %v", mode, err)
		}
		f.enqueueAll(pool)
		f.enqueueAll(pool)
		again, err := jobs.Enqueue(f.ctx(), pool, keyed, order{ID: id})
		if err != nil || again.ID != ref.ID || !again.Existing {
			t.Errorf("%v: %+v, %v", mode, again, err)
		}
		for _, c := range f.claim(100) {
			if c.ID == ref.ID {
				job, err := jobs.Decode(keyed, &c)
				if err != nil || job.Payload.Note != note || job.Headers["trace"] != note {
					t.Errorf("%v: %+v, %v", mode, job, err)
				}
				f.finish(c, `{"total": 7}`, jobs.DefaultKeepResult)
			}
		}
		got, err := ref.Await(f.ctx(), pool)
		if err != nil || got.Total != 7 {
			t.Errorf("%v: awaited %+v, %v", mode, got, err)
		}
		if got, err = jobs.RefTo(keyed, ref.ID).Await(f.ctx(), pool); err != nil || got.Total != 7 {
			t.Errorf("%v: awaited by id %+v, %v", mode, got, err)
		}
	}
}

func TestEnqueueManyAnswersInTheOrderOfThePayloads(t *testing.T) {
	t.Parallel()
	f := open(t)
	var payloads []order
	for i := range 1000 {
		payloads = append(payloads, order{ID: string(rune('A' + i))})
	}
	refs, err := jobs.EnqueueMany(f.ctx(), f.pool, plain, payloads)
	f.no(err)
	stored := map[int64]string{}
	for _, j := range jobtest.Enqueued[order](t, f.pool, plain.Kind) {
		stored[j.ID] = j.Payload.ID
	}
	for i, r := range refs {
		if stored[r.ID] != payloads[i].ID || r.Existing || r.Kind != plain.Kind {
			t.Fatalf("ref %d is %+v, whose payload is %q; want %q", i, r, stored[r.ID], payloads[i].ID)
		}
	}
	none, err := jobs.EnqueueMany(f.ctx(), f.pool, plain, nil)
	if err != nil || len(none) != 0 {
		t.Errorf("no payloads: %v, %v", none, err)
	}
}

func TestAnEnqueueThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	f := open(t)
	ctx, cancel := context.WithCancel(f.ctx())
	cancel()
	if _, err := jobs.Enqueue(ctx, f.pool, keyed, order{ID: "1"}); err == nil {
		t.Error("a cancelled enqueue gave no error")
	}
	// In a transaction that is broken already.
	tx := f.begin(pgx.TxOptions{})
	if _, err := tx.Exec(f.ctx(), "SELECT 1/0"); err == nil {
		t.Fatal("no error")
	}
	if _, err := jobs.Enqueue(f.ctx(), tx, keyed, order{ID: "1"}); err == nil {
		t.Error("an enqueue in a broken transaction gave no error")
	}
	_ = tx.Rollback(f.ctx())
	f.counts(0, 0)
}

// All are stored or none, also when keys that are taken need statements of their own; and a transaction that the caller
// has open on a connection stays open.
func TestEnqueueManyStoresAllOrNone(t *testing.T) {
	t.Parallel()
	f := open(t)
	dead(f)
	f.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'no'; END$$`)
	f.exec(`CREATE TRIGGER refuse BEFORE UPDATE ON jobgen.jobs FOR EACH ROW WHEN (old.status = 'dead') EXECUTE FUNCTION refuse()`)
	conn := f.connect()
	for name, db := range map[string]jobs.DB{"pool": f.pool, "connection": conn} {
		if _, err := jobs.EnqueueMany(f.ctx(), db, keyed, []order{{ID: "b"}, {ID: "a"}}); err == nil {
			t.Errorf("on a %s: no error", name)
		}
		f.expect(1, "SELECT count(*) FROM jobgen.jobs")
		f.expect(1, "SELECT count(*) FROM jobgen.job_result")
	}
	f.exec(`DROP TRIGGER refuse ON jobgen.jobs`)
	if _, err := conn.Exec(f.ctx(), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	if _, err := jobs.EnqueueMany(f.ctx(), conn, keyed, []order{{ID: "b"}, {ID: "a"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(f.ctx(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	f.expect(1, "SELECT count(*) FROM jobgen.jobs")
}
