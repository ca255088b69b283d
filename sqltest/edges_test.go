package sqltest

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
)

// state is the SQLSTATE that the driver's own error has.
func (f *fixture) state(err error) string {
	var ofPgx *pgconn.PgError
	var ofPq *pq.Error
	switch {
	case f.driver == "pgx" && errors.As(err, &ofPgx):
		return ofPgx.Code
	case f.driver == "postgres" && errors.As(err, &ofPq):
		return string(ofPq.Code)
	}
	return ""
}

func TestAwaitRefusesATransaction(t *testing.T) {
	each(t, func(f *fixture) {
		for _, l := range libraries {
			tx := l.begin(f)
			for _, db := range []jobs.DB{jobs.SQL(tx.conn), (&jobs.Producer{}).On(jobs.SQL(tx.conn))} {
				if _, err := WelcomeRef(1).Await(f.ctx(), db); !errors.Is(err, jobs.ErrInTransaction) {
					f.Errorf("in a transaction of %s: %v", l.name, err)
				}
			}
			f.no(tx.rollback())
			if _, err := WelcomeRef(1).Await(f.ctx(), jobs.SQL(l.pool(f))); !errors.Is(err, jobs.ErrNoRecord) {
				f.Errorf("on what %s has outside of a transaction: %v", l.name, err)
			}
		}
		conn, err := f.db.Conn(f.ctx())
		f.no(err)
		defer conn.Close()
		tx, err := conn.BeginTx(f.ctx(), nil)
		f.no(err)
		if _, err := WelcomeRef(1).Await(f.ctx(), jobs.SQL(conn)); !errors.Is(err, jobs.ErrInTransaction) {
			f.Errorf("on a connection with a transaction: %v", err)
		}
		f.no(tx.Rollback())
	})
}

func TestAwaitOfADeadJobAndOfAContextThatEnds(t *testing.T) {
	each(t, func(f *fixture) {
		db := jobs.SQL(f.db)
		ref, err := EnqueueWelcome(f.ctx(), db, Welcome{Name: "a", Note: "fail"})
		f.no(err)
		ctx, cancel := context.WithTimeout(f.ctx(), 20*time.Millisecond)
		defer cancel()
		if _, err := ref.Await(ctx, db); !errors.Is(err, context.DeadlineExceeded) {
			f.Errorf("awaiting a job that nobody runs: %v", err)
		}
		f.work()
		var dead *jobs.DeadError
		if _, err := ref.Await(f.ctx(), db); !errors.As(err, &dead) || dead.LastError != "no such mailbox" || dead.Attempts != 1 {
			f.Errorf("awaiting a dead job: %v", err)
		}
	})
}

func TestATransactionThatIsOverStoresNothing(t *testing.T) {
	each(t, func(f *fixture) {
		for _, l := range libraries {
			for _, commit := range []bool{true, false} {
				tx := l.begin(f)
				if commit {
					f.no(tx.commit())
				} else {
					f.no(tx.rollback())
				}
				for range 2 {
					_, err := EnqueueWelcome(f.ctx(), jobs.SQL(tx.conn), Welcome{Name: "a"})
					_, many := EnqueueWelcomeMany(f.ctx(), jobs.SQL(tx.conn), []Welcome{{Name: "a"}, {Name: "b"}})
					for _, err := range []error{err, many} {
						if !errors.Is(err, sql.ErrTxDone) || strings.Contains(fmt.Sprint(err), "unknown") {
							f.Errorf("after the end of a transaction of %s: %v", l.name, err)
						}
					}
				}
			}
		}
		f.counts(0, 0)
	})
}

func TestABrokenTransactionAndACancelledContextStoreNothing(t *testing.T) {
	each(t, func(f *fixture) {
		tx := f.begin()
		if _, err := tx.ExecContext(f.ctx(), "SELECT 1/0"); err == nil {
			f.Fatal("no error")
		}
		if _, err := EnqueueWelcome(f.ctx(), jobs.SQL(tx), Welcome{Name: "a"}); err == nil || f.state(err) != "25P02" {
			f.Errorf("in a broken transaction: %v", err)
		}
		f.no(tx.Rollback())
		ctx, cancel := context.WithCancel(f.ctx())
		tx, err := f.db.BeginTx(f.ctx(), nil)
		f.no(err)
		cancel()
		for _, db := range []jobs.SQLConn{f.db, tx} {
			if _, err := EnqueueWelcome(ctx, jobs.SQL(db), Welcome{Name: "a"}); !errors.Is(err, context.Canceled) {
				f.Errorf("cancelled: %v", err)
			}
		}
		f.no(tx.Rollback())
		f.counts(0, 0)
	})
}

// A context that ends while a statement waits for a lock ends the wait.
func TestAContextEndsAnEnqueueThatWaits(t *testing.T) {
	each(t, func(f *fixture) {
		holder := f.begin()
		_, err := EnqueueWelcome(f.ctx(), jobs.SQL(holder), Welcome{Name: "a"})
		f.no(err)
		waiter := f.begin()
		ctx, cancel := context.WithCancel(f.ctx())
		ended := make(chan error)
		go func() {
			_, err := EnqueueWelcome(ctx, jobs.SQL(waiter), Welcome{Name: "a"})
			ended <- err
		}()
		f.waits()
		cancel()
		if err := <-ended; err == nil {
			f.Error("no error")
		}
		if err := waiter.Commit(); err == nil {
			f.Error("committed")
		}
		f.no(holder.Rollback())
		f.counts(0, 0)
	})
}

// waits until a session of the database waits for a lock.
func (f *fixture) waits() {
	f.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for ctx, is := f.ctx(), false; !is; <-tick.C {
		f.no(f.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").Scan(&is))
	}
}

func TestTheDatabasesErrorsMeanWhatTheyMeanUnderPgx(t *testing.T) {
	each(t, func(f *fixture) {
		var invalid *jobs.InvalidError
		_, err := jobs.Enqueue(f.ctx(), jobs.SQL(f.db), &jobs.Spec[json.RawMessage, jobs.None]{Kind: "k", Queue: "q"}, json.RawMessage("1e1000000"))
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), "was refused by the database") || f.state(err) == "" {
			f.Errorf("what jsonb refuses: %v", err)
		}
		// A snapshot that is older than the key.
		tx, err := f.db.BeginTx(f.ctx(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		f.no(err)
		var n int
		f.no(tx.QueryRowContext(f.ctx(), "SELECT count(*) FROM jobgen.jobs").Scan(&n))
		_, err = EnqueueWelcome(f.ctx(), jobs.SQL(f.db), Welcome{Name: "a"})
		f.no(err)
		if _, err = EnqueueWelcome(f.ctx(), jobs.SQL(tx), Welcome{Name: "a"}); f.state(err) != "40001" {
			f.Errorf("a serialization failure: %v", err)
		}
		f.no(tx.Rollback())
		// A lock that is held for longer than the session waits.
		tx = f.begin()
		_, err = EnqueueWelcome(f.ctx(), jobs.SQL(tx), Welcome{Name: "b"})
		f.no(err)
		impatient := f.begin()
		_, err = impatient.ExecContext(f.ctx(), "SET LOCAL lock_timeout = '1ms'")
		f.no(err)
		if _, err = EnqueueWelcome(f.ctx(), jobs.SQL(impatient), Welcome{Name: "b"}); f.state(err) != "55P03" {
			f.Errorf("a lock: %v", err)
		}
		f.no(impatient.Rollback())
		f.no(tx.Rollback())
		f.exec("DROP SCHEMA jobgen CASCADE")
		if _, err = EnqueueWelcome(f.ctx(), jobs.SQL(f.db), Welcome{Name: "a"}); !errors.Is(err, jobs.ErrNotMigrated) || !strings.Contains(err.Error(), "jobctl migrate up") {
			f.Errorf("without tables: %v", err)
		}
	})
}

// Outside a transaction the statement itself commits, after it has given its row.
func TestACommitThatFailsIsAnError(t *testing.T) {
	each(t, func(f *fixture) {
		f.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'too late'; END$$`)
		f.exec(`CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON jobgen.jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
		_, one := EnqueueWelcome(f.ctx(), jobs.SQL(f.db), Welcome{Name: "a"})
		_, many := EnqueueWelcomeMany(f.ctx(), jobs.SQL(f.db), []Welcome{{Name: "b"}, {Name: "c"}})
		_, plain := jobs.EnqueueMany(f.ctx(), jobs.SQL(f.db), plain, []Welcome{{Name: "b"}, {Name: "c"}})
		for _, err := range []error{one, many, plain} {
			if err == nil || !strings.Contains(err.Error(), "too late") {
				f.Errorf("got %v", err)
			}
		}
		f.counts(0, 0)
	})
}

// A connection that ends is neither a refusal of the payload nor anything else that it is not, and what the transaction had
// is gone with it.
func TestAConnectionThatEndsIsAnErrorAndTheNextOneWorks(t *testing.T) {
	each(t, func(f *fixture) {
		tx := f.begin()
		_, err := EnqueueWelcome(f.ctx(), jobs.SQL(tx), Welcome{Name: "a"})
		f.no(err)
		var pid int
		f.no(tx.QueryRowContext(f.ctx(), "SELECT pg_backend_pid()").Scan(&pid))
		f.exec("SELECT pg_terminate_backend($1, 10000)", pid)
		_, err = EnqueueWelcome(f.ctx(), jobs.SQL(tx), Welcome{Name: "b"})
		var invalid *jobs.InvalidError
		if err == nil || errors.As(err, &invalid) || errors.Is(err, jobs.ErrNotMigrated) {
			f.Errorf("on a connection that is gone: %v", err)
		}
		_ = tx.Rollback()
		f.counts(0, 0)
		f.enqueueAll(f.db)
		f.counts(6, 3)
	})
}

func TestAPayloadThatCannotBeStoredIsRefused(t *testing.T) {
	each(t, func(f *fixture) {
		tx := f.begin()
		for want, w := range map[string]Welcome{
			"has a NUL":            {Name: "a", Note: "\x00"},
			"is not valid UTF-8":   {Name: "a", Note: "\xff"},
			"the limit is 1048576": {Name: "a", Note: strings.Repeat("x", jobs.MaxPayload)},
		} {
			_, err := EnqueueWelcome(f.ctx(), jobs.SQL(tx), w)
			_, many := EnqueueWelcomeMany(f.ctx(), jobs.SQL(tx), []Welcome{{Name: "b"}, w})
			for _, err := range []error{err, many} {
				var invalid *jobs.InvalidError
				if !errors.As(err, &invalid) || !strings.Contains(err.Error(), want) {
					f.Errorf("got %.200q, want %q", fmt.Sprint(err), want)
				}
			}
		}
		large := (&jobs.Producer{MaxPayload: 3 << 20}).On(jobs.SQL(tx))
		note := strings.Repeat("ü\\", 700_000)
		_, err := EnqueueWelcome(f.ctx(), large, Welcome{Name: "large", Note: note})
		f.no(err)
		_, err = EnqueueWelcomeMany(f.ctx(), large, []Welcome{{Name: "large 1", Note: note}, {Name: "large 2", Note: note}})
		f.no(err)
		for _, j := range jobtest.Enqueued[Welcome](f.T, jobs.SQL(tx), "users.welcome") {
			if j.Payload.Note != note {
				f.Errorf("the note of %s came back as %.50q", j.Payload.Name, j.Payload.Note)
			}
		}
		f.no(tx.Commit())
		f.counts(3, 3)
	})
}

// A transaction does one thing at a time. pgx's driver calls its busy connection a bad one.
func TestAnEnqueueBetweenOpenRowsIsRefused(t *testing.T) {
	each(t, func(f *fixture) {
		tx := f.begin()
		rows, err := tx.QueryContext(f.ctx(), "SELECT generate_series(1, 10000)")
		f.no(err)
		rows.Next()
		if _, err = EnqueueWelcome(f.ctx(), jobs.SQL(tx), Welcome{Name: "a"}); err == nil || !strings.Contains(err.Error(), "busy") && !strings.Contains(err.Error(), "being processed") {
			f.Errorf("while rows are open: %v", err)
		}
		rows.Close()
		_ = tx.Rollback() // in pgx's mode exec the connection is spoilt
		f.counts(0, 0)
	})
}

// What the statements carry arrives as it was, whatever the session's settings.
func TestValuesArriveAsTheyWere(t *testing.T) {
	each(t, func(f *fixture) {
		text := "quote ' double \" backslash \\ dollar $1 ?, {comma,NULL} \n\t ☃ 🙂 \\u0041"
		zone := time.FixedZone("odd", -(5*3600 + 30*60))
		for _, set := range []string{"DateStyle = 'SQL, DMY'", "TimeZone = 'America/St_Johns'", "IntervalStyle = 'sql_standard'"} {
			for i, at := range []time.Time{
				time.Date(2031, 2, 3, 4, 5, 6, 789_123_999, zone), time.Date(9999, 12, 31, 23, 0, 0, 0, time.UTC),
				time.Date(2200, 7, 1, 0, 0, 0, 1000, time.UTC),
			} {
				f.exec("TRUNCATE jobgen.jobs, jobgen.job_result")
				tx := f.begin()
				_, err := tx.ExecContext(f.ctx(), "SET LOCAL "+set)
				f.no(err)
				db := jobs.SQL(tx)
				key := fmt.Sprint(text, i)
				one := Welcome{Name: key, Note: text}
				opts := []jobs.Option{jobs.At(at), jobs.Priority(7), jobs.MaxAttempts(3), jobs.Queue(text), jobs.Headers(map[string]string{"trace": text})}
				ref, err := EnqueueWelcome(f.ctx(), db, one, opts...)
				f.no(err)
				refs, err := EnqueueWelcomeMany(f.ctx(), db, []Welcome{{Name: text + "x", Note: text}, one, {Name: "NULL"}, {Name: " "}}, opts...)
				f.no(err)
				if refs[1].ID != ref.ID || !refs[1].Existing {
					f.Errorf("the key %q is taken by %+v, not by %+v", key, ref, refs[1])
				}
				f.no(tx.Commit())
				f.counts(4, 4)
				for _, j := range jobtest.Enqueued[Welcome](f.T, f.pool, "users.welcome") {
					if j.ID == ref.ID && j.Payload != one {
						f.Errorf("%+v", j.Payload)
					}
					if !j.RunAt.Equal(at.Truncate(time.Microsecond)) || j.Priority != 7 || j.MaxAttempts != 3 || j.Queue != text || j.Headers["trace"] != text {
						f.Errorf("under %s: run at %s, priority %d, attempts %d, queue %q, headers %q", set, j.RunAt, j.Priority, j.MaxAttempts, j.Queue, j.Headers)
					}
				}
			}
		}
	})
}

// jobtest's assertions take what jobs.SQL gives, and see what its transaction has not committed.
func TestAssertionsSeeWhatTheTransactionEnqueued(t *testing.T) {
	each(t, func(f *fixture) {
		tx, err := sqlx.NewDb(f.db, f.driver).BeginTxx(f.ctx(), nil)
		f.no(err)
		ref, err := EnqueueWelcome(f.ctx(), jobs.SQL(tx), Welcome{Name: "a", Note: "n"}, jobs.In(time.Hour))
		f.no(err)
		got := jobtest.EnqueuedOne[Welcome](f.T, jobs.SQL(tx), "users.welcome")
		if got.ID != ref.ID || got.Payload != (Welcome{Name: "a", Note: "n"}) {
			f.Errorf("%+v", got)
		}
		f.no(tx.Rollback())
	})
}

func TestCancelCommitsAndRollsBackWithTheTransaction(t *testing.T) {
	each(t, func(f *fixture) {
		ref, err := EnqueueWelcome(f.ctx(), jobs.SQL(f.db), Welcome{Name: "a"})
		f.no(err)
		for _, commit := range []bool{false, true} {
			tx := f.begin()
			if got, err := ref.Cancel(f.ctx(), jobs.SQL(tx), "quote ' \\ ☃"); err != nil || got != jobs.Cancelled {
				f.Errorf("%s, %v", got, err)
			}
			if !commit {
				f.no(tx.Rollback())
				f.counts(1, 1)
				continue
			}
			f.no(tx.Commit())
			f.counts(0, 0)
		}
		var cancelled *jobs.CancelledError
		if _, err := ref.Await(f.ctx(), jobs.SQL(f.db)); !errors.As(err, &cancelled) || cancelled.Reason != "quote ' \\ ☃" {
			f.Errorf("awaited %v", err)
		}
		if got, err := ref.Cancel(f.ctx(), jobs.SQL(f.db), "again"); err != nil || got != jobs.CancelledBefore {
			f.Errorf("again: %s, %v", got, err)
		}
	})
}
