package jobs_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/pgproxy"
	"github.com/jobgen-go/jobgen/jobs"
)

// cut gives a pool on f's database whose connections go through a proxy.
func cut(t *testing.T, pool *pgxpool.Pool) (*pgxpool.Pool, *pgproxy.Proxy) {
	t.Helper()
	network, err := pgproxy.Start(pool.Config().ConnConfig.Config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(network.Close)
	return with(t, pool, func(c *pgxpool.Config) { c.ConnConfig.DialFunc = network.Dial }), network
}

func receive(f *fixture, c <-chan struct{}) {
	f.Helper()
	select {
	case <-c:
	case <-f.ctx().Done():
		f.Fatal("the message has not come")
	}
}

// The answer to an enqueue is lost: the caller learns that it does not know, and with a key it can just ask again.
func TestG6EnqueueWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	for _, act := range []pgproxy.Act{pgproxy.CutBefore, pgproxy.CutDuring, pgproxy.CutInside} {
		t.Run(act.String(), func(t *testing.T) {
			t.Parallel()
			f := open(t)
			slow, network := cut(t, f.pool)
			lost := network.On(pgproxy.Runs("-- name: EnqueueKeyed "), 1, act)
			_, err := jobs.Enqueue(f.ctx(), slow, keyed, order{ID: "a"})
			receive(f, lost.Done())
			if !errors.Is(err, jobs.ErrUnknown) {
				t.Errorf("the caller got %v", err)
			}
			ref, err := jobs.Enqueue(f.ctx(), slow, keyed, order{ID: "a"})
			if err != nil || ref.Existing != (act != pgproxy.CutBefore) {
				t.Errorf("again: %+v, %v", ref, err)
			}
			f.expect(1, `SELECT count(*) FROM jobgen.jobs`)
		})
	}
}

// What certainly was not done is not in doubt.
func TestErrUnknownIsForWhatMayHaveBeenDone(t *testing.T) {
	t.Parallel()
	f := open(t)
	slow, network := cut(t, f.pool)
	network.Refuse(true)
	if _, err := jobs.Enqueue(f.ctx(), slow, plain, order{ID: "a"}); err == nil || errors.Is(err, jobs.ErrUnknown) {
		t.Errorf("without a connection: %v", err)
	}
	f.exec(`ALTER TABLE jobgen.jobs ADD CONSTRAINT no CHECK (payload->>'id' <> 'no')`)
	if _, err := jobs.Enqueue(f.ctx(), f.pool, plain, order{ID: "no"}); err == nil || errors.Is(err, jobs.ErrUnknown) {
		t.Errorf("refused: %v", err)
	}
	// An operator ends the session: the error comes with the connection's end, and the statement may have been done.
	f.exec(`CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$;
		CREATE TRIGGER die AFTER INSERT ON jobgen.jobs FOR EACH ROW EXECUTE FUNCTION die()`)
	_, err := jobs.Enqueue(f.ctx(), f.pool, plain, order{ID: "a"})
	var pg *pgconn.PgError
	if !errors.Is(err, jobs.ErrUnknown) || !errors.As(err, &pg) {
		t.Errorf("terminated: %v", err)
	}
}

// EnqueueMany with keys has a transaction of its own: cut anywhere, it is whole or not at all, and can be asked again.
func TestG6EnqueueManyCutAtAnyMessage(t *testing.T) {
	t.Parallel()
	for _, act := range []pgproxy.Act{pgproxy.CutBefore, pgproxy.CutDuring, pgproxy.CutShort} {
		t.Run(act.String(), func(t *testing.T) {
			t.Parallel()
			f := open(t)
			slow, network := cut(t, f.pool)
			orders := func(round int) (os []order) {
				for i := range 3 {
					os = append(os, order{ID: fmt.Sprint(round, " ", i)})
				}
				return os
			}
			n, ended := 0, false
			for !ended {
				n++
				slow.Reset()
				fired := network.On(func(m pgproxy.Message) bool { return m.Type != 'X' && !m.Cancel }, n, act)
				_, err := jobs.EnqueueMany(f.ctx(), slow, keyed, orders(n))
				if err != nil {
					receive(f, fired.Done())
				}
				select {
				case <-fired.Done():
				default:
					ended = true // the conversation has fewer messages
				}
				fired.Disarm()
				if here := count(f, n); here != 0 && here != 3 {
					t.Errorf("cut at message %d: %d jobs", n, here)
				} else if err == nil && here == 0 {
					t.Errorf("cut at message %d: no error, and no jobs", n)
				} else if here == 3 && err != nil && !errors.Is(err, jobs.ErrUnknown) {
					t.Errorf("cut at message %d: the jobs are there, and the error is %v", n, err)
				}
				if _, err := jobs.EnqueueMany(f.ctx(), slow, keyed, orders(n)); err != nil {
					t.Errorf("after a cut at message %d: %v", n, err)
				}
				if here := count(f, n); here != 3 {
					t.Errorf("after a cut at message %d: %d jobs", n, here)
				}
			}
			if n < 5 {
				t.Errorf("the conversation has %d messages", n)
			}
		})
	}
}

func count(f *fixture, round int) (n int) {
	f.Helper()
	f.no(f.pool.QueryRow(f.ctx(), `SELECT count(*) FROM jobgen.jobs WHERE payload->>'id' LIKE $1`, fmt.Sprint(round, " %")).Scan(&n))
	return n
}

// A migration that is cut anywhere can be started again.
func TestMigrateCutAtAnyCommit(t *testing.T) {
	t.Parallel()
	for _, act := range []pgproxy.Act{pgproxy.CutBefore, pgproxy.CutDuring} {
		t.Run(act.String(), func(t *testing.T) {
			t.Parallel()
			pool := empty(t)
			slow, network := cut(t, pool)
			changes := func(m pgproxy.Message) bool {
				sql := strings.ToLower(m.SQL)
				return (m.Type == 'Q' || m.Type == 'B') && (strings.HasPrefix(sql, "commit") || strings.Contains(sql, "create ") || strings.Contains(sql, "insert "))
			}
			for n := 1; ; n++ {
				fired := network.On(changes, n, act)
				err := jobs.Migrate(t.Context(), slow)
				if err != nil {
					receive(&fixture{T: t}, fired.Done())
				}
				fired.Disarm()
				if again := jobs.Migrate(t.Context(), slow); again != nil {
					t.Fatalf("after a cut at change %d: %v", n, again)
				}
				usable(t, pool)
				select {
				case <-fired.Done():
				default:
					if n < 5 {
						t.Errorf("there are %d changes", n-1)
					}
					return
				}
				if _, err := pool.Exec(t.Context(), `DROP SCHEMA jobgen CASCADE`); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
