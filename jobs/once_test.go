package jobs_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
)

func TestG6TwoEnqueuesOfOneKeyMakeOneJob(t *testing.T) {
	t.Parallel()
	f := open(t)
	// The first has not committed when the second comes.
	tx := f.begin(pgx.TxOptions{})
	first, err := jobs.Enqueue(f.ctx(), tx, keyed, order{ID: "a", Note: "first"})
	f.no(err)
	second := f.connect()
	got := make(chan jobs.Ref[receipt])
	go func() {
		ref, err := jobs.Enqueue(f.ctx(), second, keyed, order{ID: "a", Note: "second"})
		if err != nil {
			t.Error(err)
		}
		got <- ref
	}()
	f.until(`SELECT coalesce(wait_event_type = 'Lock', false) FROM pg_stat_activity WHERE pid = $1`, second.PgConn().PID())
	f.no(tx.Commit(f.ctx()))
	if ref := <-got; ref.ID != first.ID || !ref.Existing || first.Existing {
		t.Errorf("the refs are %+v and %+v", first, ref)
	}
	if job := jobtest.EnqueuedOne[order](t, f.pool, keyed.Kind); job.Payload.Note != "first" {
		t.Errorf("%+v", job)
	}

	// The first rolls back: the second is the job.
	tx = f.begin(pgx.TxOptions{})
	_, err = jobs.Enqueue(f.ctx(), tx, keyed, order{ID: "b"})
	f.no(err)
	go func() {
		ref, err := jobs.Enqueue(f.ctx(), second, keyed, order{ID: "b"})
		if err != nil {
			t.Error(err)
		}
		got <- ref
	}()
	f.until(`SELECT coalesce(wait_event_type = 'Lock', false) FROM pg_stat_activity WHERE pid = $1`, second.PgConn().PID())
	f.no(tx.Rollback(f.ctx()))
	if ref := <-got; ref.Existing {
		t.Errorf("%+v is not new", ref)
	}
	f.expect(2, "SELECT count(*) FROM jobgen.jobs")
}

func TestG6ManyEnqueuesOfOneKeyAtOnceMakeOneJob(t *testing.T) {
	t.Parallel()
	f := open(t)
	for round := range 20 {
		var mu sync.Mutex
		ids := map[int64]bool{}
		fresh := 0
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				ref, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: fmt.Sprint(round)})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				ids[ref.ID] = true
				if !ref.Existing {
					fresh++
				}
			})
		}
		all.Wait()
		if len(ids) != 1 || fresh != 1 {
			t.Fatalf("%d ids, %d of them new", len(ids), fresh)
		}
	}
	f.counts(20, 20)
}

// gate is a connection on which each statement waits until it is let through.
type gate struct {
	jobs.DB
	arrived chan struct{}
	pass    chan struct{}
}

func (g gate) wait() { g.arrived <- struct{}{}; <-g.pass }

func (g gate) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	g.wait()
	return g.DB.Exec(ctx, sql, args...)
}

func (g gate) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	g.wait()
	return g.DB.Query(ctx, sql, args...)
}

func (g gate) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	g.wait()
	return g.DB.QueryRow(ctx, sql, args...)
}

// An enqueue meets the end of its key's job in each way the statements of the two can interleave. Whatever happens, the
// key has one job that is to run or one result, and the enqueue's answer names it.
func TestG6AnEnqueueThatMeetsTheEndOfItsKeysJob(t *testing.T) {
	t.Parallel()
	for _, end := range []struct {
		name string
		// prepare brings the key to where the end begins; step is the statement that ends it, in a transaction.
		prepare func(f *fixture) engine.Claimed
		// step tells whether it is another enqueue that was told it made the job.
		step   func(f *fixture, tx pgx.Tx, c engine.Claimed) bool
		commit bool
	}{
		{"it succeeds", running, record, true},
		{"its success is rolled back", running, record, false},
		{"it dies", running, func(f *fixture, tx pgx.Tx, c engine.Claimed) bool {
			failed, err := gen.New(tx).Fail(f.ctx(), gen.FailParams{
				WorkerID: f.worker.ID, Ids: []int64{c.ID}, Fences: []int64{c.Fence}, DelaysUs: []int64{0}, Permanents: []bool{true}, Snoozes: []bool{false}, Errors: []string{"no"},
			})
			f.no(err)
			if len(failed) != 1 || !failed[0].Dead {
				f.Fatalf("failed %+v", failed)
			}
			return false
		}, true},
		{"it goes back to the queue", running, func(f *fixture, tx pgx.Tx, c engine.Claimed) bool {
			back, err := gen.New(tx).Release(f.ctx(), gen.ReleaseParams{WorkerID: f.worker.ID, Ids: []int64{c.ID}, Fences: []int64{c.Fence}})
			f.no(err)
			if len(back) != 1 {
				f.Fatal("nothing was released")
			}
			return false
		}, true},
		{"its expired result is purged", expired, purge, true},
		{"the purge of its expired result is rolled back", expired, purge, false},
		{"it is dead and another revives it", dead, func(f *fixture, tx pgx.Tx, c engine.Claimed) bool {
			ref, err := jobs.Enqueue(f.ctx(), tx, keyed, order{ID: "a", Note: "other"})
			f.no(err)
			return !ref.Existing
		}, true},
		{"its result has expired and another enqueues", expired, func(f *fixture, tx pgx.Tx, c engine.Claimed) bool {
			ref, err := jobs.Enqueue(f.ctx(), tx, keyed, order{ID: "a", Note: "other"})
			f.no(err)
			return !ref.Existing
		}, true},
	} {
		t.Run(end.name, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			const most = 4 // statements of the enqueue, and then some
			for at := range most {
				for ends := at; ends <= most; ends++ {
					f.exec("TRUNCATE jobgen.jobs, jobgen.job_result")
					c := end.prepare(f)
					tx := f.begin(pgx.TxOptions{})
					conn := f.connect()
					g := gate{conn, make(chan struct{}), make(chan struct{})}
					type answer struct {
						jobs.Ref[receipt]
						error
					}
					done := make(chan answer, 1)
					go func() {
						ref, err := jobs.Enqueue(f.ctx(), g, keyed, order{ID: "a", Note: "mine"})
						done <- answer{ref, err}
					}()
					<-g.arrived
					var got *answer
					promised := false
					waiting := true // at the gate
					// look waits until the statement let through has ended or waits for a lock.
					look := func() {
						tick := time.NewTicker(time.Millisecond)
						defer tick.Stop()
						for {
							select {
							case <-g.arrived:
								waiting = true
								return
							case a := <-done:
								got = &a
								return
							case <-tick.C:
								if f.blocked(conn.PgConn().PID()) {
									return
								}
							}
						}
					}
					for step := range most + 1 {
						if step == at {
							promised = end.step(f, tx, c)
						}
						if step == ends {
							if end.commit {
								f.no(tx.Commit(f.ctx()))
							} else {
								f.no(tx.Rollback(f.ctx()))
							}
						}
						if waiting && got == nil {
							waiting = false
							g.pass <- struct{}{}
							look()
						}
					}
					for got == nil {
						if waiting {
							waiting = false
							g.pass <- struct{}{}
						}
						select {
						case <-g.arrived:
							waiting = true
						case a := <-done:
							got = &a
						}
					}
					when := fmt.Sprintf("statement before %d, commit before %d", at, ends)
					if got.error != nil {
						t.Fatalf("%s: %v", when, got.error)
					}
					live := value[int](t, f.pool, "SELECT count(*) FROM jobgen.jobs WHERE status <> 'dead'")
					results := value[int](t, f.pool, "SELECT count(*) FROM jobgen.job_result WHERE finished_at IS NOT NULL AND expires_at > now()")
					if live+results != 1 && !(live == 0 && value[bool](t, f.pool, "SELECT count(*) = 1 FROM jobgen.jobs WHERE status = 'dead'") && got.Existing) {
						t.Errorf("%s: %d jobs and %d results", when, live, results)
					}
					if live == 1 {
						note := value[string](t, f.pool, "SELECT coalesce(payload->>'note', '') FROM jobgen.jobs")
						if (note == "mine") == got.Existing {
							t.Errorf("%s: the job's payload is %q, and the answer is %+v", when, note, got)
						}
						if promised && end.commit && note != "other" {
							t.Errorf("%s: the job's payload is %q, and another enqueue was told that it made the job", when, note)
						}
					}
					if id := value[int64](t, f.pool, "SELECT job_id FROM jobgen.job_result"); id != got.ID {
						t.Errorf("%s: the answer is job %d, the key's job %d", when, got.ID, id)
					}
				}
			}
		})
	}
}

func running(f *fixture) engine.Claimed {
	f.Helper()
	_, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"})
	f.no(err)
	return f.one(f.claim(10))
}

func expired(f *fixture) engine.Claimed {
	f.Helper()
	c := running(f)
	f.finish(c, "", 0)
	return c
}

func dead(f *fixture) engine.Claimed {
	f.Helper()
	c := running(f)
	f.die(c, "no")
	return c
}

// record is the completion with a result, on a transaction.
func record(f *fixture, tx pgx.Tx, c engine.Claimed) bool {
	f.Helper()
	rows, err := gen.New(tx).CompleteRecorded(f.ctx(), gen.CompleteRecordedParams{
		WorkerID: f.worker.ID, Ids: []int64{c.ID}, Fences: []int64{c.Fence}, Results: []string{"{}"}, KeepUs: []int64{time.Hour.Microseconds()},
	})
	f.no(err)
	if len(rows) != 1 || !rows[0].Recorded {
		f.Fatalf("completed %+v", rows)
	}
	return false
}

// purge removes the expired result, if the enqueue has not been first.
func purge(f *fixture, tx pgx.Tx, _ engine.Claimed) bool {
	f.Helper()
	_, err := gen.New(tx).PurgeResults(f.ctx(), gen.PurgeResultsParams{N: 10})
	f.no(err)
	return false
}
