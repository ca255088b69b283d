package pgproxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/pgproxy"
	"github.com/jobgen-go/jobgen/jobtest"
)

const soon = 30 * time.Second

// through gives a proxy in front of a test's database, and a way to connect through it.
func through(t *testing.T) (*pgxpool.Pool, *pgproxy.Proxy, func() *pgx.Conn) {
	t.Helper()
	pool := jobtest.DB(t)
	if _, err := pool.Exec(t.Context(), `CREATE TABLE effect (n int)`); err != nil {
		t.Fatal(err)
	}
	config := pool.Config().ConnConfig
	p, err := pgproxy.Start(config.Config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	config.DialFunc = p.Dial
	config.RuntimeParams["application_name"] = "through"
	return pool, p, func() *pgx.Conn {
		c, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(context.Background()) })
		return c
	}
}

func effects(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM effect`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func receive(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	timer := time.NewTimer(soon)
	defer timer.Stop()
	select {
	case <-c:
	case <-timer.C:
		t.Fatalf("not within %s: %s", soon, what)
	}
}

// What each cut at a statement leaves: in the database, and with the client.
func TestCutsAtAStatement(t *testing.T) {
	t.Parallel()
	for _, form := range []struct {
		name string
		exec func(*pgx.Conn) error
	}{
		{"Query", func(c *pgx.Conn) error {
			_, err := c.Exec(context.Background(), `INSERT INTO effect VALUES (1)`)
			return err
		}},
		{"Bind", func(c *pgx.Conn) error {
			_, err := c.Exec(context.Background(), `INSERT INTO effect VALUES ($1)`, 1)
			return err
		}},
	} {
		for _, cut := range []struct {
			act     pgproxy.Act
			effects int
			heard   bool
		}{
			{pgproxy.CutBefore, 0, false},
			{pgproxy.CutDuring, 1, false},
			{pgproxy.CutInside, 1, false},
			{pgproxy.CutShort, 1, false},
			{pgproxy.CutAfter, 1, true},
		} {
			t.Run(fmt.Sprintf("%s, %s", form.name, cut.act), func(t *testing.T) {
				t.Parallel()
				pool, p, connect := through(t)
				c := connect()
				lost := p.On(pgproxy.Runs("insert into EFFECT"), 1, cut.act)
				err := form.exec(c)
				receive(t, "the cut", lost.Done())
				if heard := err == nil; heard != cut.heard {
					t.Errorf("the client got %v", err)
				}
				if c.Ping(t.Context()) == nil {
					t.Error("the connection still stands")
				}
				if n := effects(t, pool); n != cut.effects {
					t.Errorf("%d effects", n)
				}
				if err := form.exec(connect()); err != nil {
					t.Errorf("on a new connection: %v", err)
				}
			})
		}
	}
}

// pgx sends COMMIT as a Query. An answer that is on its way to an earlier request is not taken for that of a later one.
func TestActsOnTheAnswerOfTheMessageInAPipeline(t *testing.T) {
	t.Parallel()
	pool, p, connect := through(t)
	c := connect()
	lost := p.On(func(m pgproxy.Message) bool { return m.Type == 'B' && strings.Contains(m.SQL, "'second'") }, 1, pgproxy.CutDuring)
	pipeline := c.PgConn().StartPipeline(t.Context())
	for _, which := range []string{"first", "second", "third"} {
		pipeline.SendQueryParams(`INSERT INTO effect SELECT 1 WHERE '`+which+`' <> ''`, nil, nil, nil, nil)
		if err := pipeline.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := pipeline.GetResults(); err != nil {
		t.Errorf("the first: %v", err)
	} else if tag, err := got.(*pgconn.ResultReader).Close(); tag.RowsAffected() != 1 || err != nil {
		t.Errorf("the first: %v, %v", tag, err)
	}
	receive(t, "the cut", lost.Done())
	_, _ = pipeline.GetResults() // its Sync
	if got, err := pipeline.GetResults(); err == nil {
		t.Errorf("the second: %v", got)
	}
	if n := effects(t, pool); n < 2 {
		t.Errorf("%d effects", n)
	}
}

func TestTriggersCountMessagesAndActOnce(t *testing.T) {
	t.Parallel()
	pool, p, connect := through(t)
	lost := p.On(pgproxy.Runs("insert"), 3, pgproxy.CutBefore)
	never := p.On(pgproxy.Runs("insert"), 4, pgproxy.CutBefore)
	never.Disarm()
	c := connect()
	for n := range 2 {
		if _, err := c.Exec(t.Context(), `INSERT INTO effect VALUES ($1)`, n); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Exec(t.Context(), `INSERT INTO effect VALUES ($1)`, 2); err == nil {
		t.Error("the third was answered")
	}
	receive(t, "the cut", lost.Done())
	c = connect()
	for n := range 3 {
		if _, err := c.Exec(t.Context(), `INSERT INTO effect VALUES ($1)`, n); err != nil {
			t.Fatal(err)
		}
	}
	if n := effects(t, pool); n != 5 {
		t.Errorf("%d effects", n)
	}
}

// A match sees each message with what it belongs to.
func TestMessagesSayWhatTheyBelongTo(t *testing.T) {
	t.Parallel()
	_, p, connect := through(t)
	var saw []string
	p.On(func(m pgproxy.Message) bool {
		if m.Type != 'p' { // how the server wants to be logged in to is its own affair
			saw = append(saw, fmt.Sprintf("%d %s %s %s", m.Conn, m.App, string(max(m.Type, '-')), m.SQL))
		}
		return false
	}, 1, pgproxy.CutBefore)
	c := connect()
	for range 2 {
		if _, err := c.Exec(t.Context(), `SELECT $1::int`, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := pgx.BeginFunc(t.Context(), c, func(pgx.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	p.Close()
	want := `1 through - 
1 through P SELECT $1::int
1 through D SELECT $1::int
1 through S 
1 through B SELECT $1::int
1 through E SELECT $1::int
1 through S 
1 through B SELECT $1::int
1 through E SELECT $1::int
1 through S 
1 through Q begin
1 through Q commit`
	if got := strings.Join(saw, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestStrandedConnectionsSayNothingAndNewOnesWork(t *testing.T) {
	t.Parallel()
	for _, act := range []pgproxy.Act{pgproxy.StrandBefore, pgproxy.StrandDuring} {
		t.Run(act.String(), func(t *testing.T) {
			t.Parallel()
			pool, p, connect := through(t)
			stranded := p.On(pgproxy.Runs("insert"), 1, act)
			ctx, cancel := context.WithCancel(t.Context())
			failed := make(chan error, 1)
			c := connect()
			go func() {
				_, err := c.Exec(ctx, `INSERT INTO effect VALUES (1)`)
				failed <- err
			}()
			receive(t, "it is stranded", stranded.Done())
			if n := effects(t, pool); (n == 1) != (act == pgproxy.StrandDuring) {
				t.Errorf("%d effects", n)
			}
			select {
			case err := <-failed:
				t.Errorf("the client was told: %v", err)
			default:
			}
			if err := connect().Ping(t.Context()); err != nil {
				t.Errorf("a new connection: %v", err)
			}
			cancel()
			if err := <-failed; !errors.Is(err, context.Canceled) {
				t.Errorf("the client got %v", err)
			}
		})
	}
}

func TestHeldMessageGoesOnWhenReleased(t *testing.T) {
	t.Parallel()
	pool, p, connect := through(t)
	held := p.On(pgproxy.Runs("insert"), 1, pgproxy.Hold)
	c := connect()
	done := make(chan error, 1)
	go func() {
		_, err := c.Exec(context.Background(), `INSERT INTO effect VALUES (1)`)
		done <- err
	}()
	receive(t, "the message is held", held.Done())
	if n := effects(t, pool); n != 0 {
		t.Errorf("%d effects while it is held", n)
	}
	held.Release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := effects(t, pool); n != 1 {
		t.Errorf("%d effects", n)
	}
}

// The server works on while its client is gone, and does not notice before it answers.
func TestCutWhileTheServerWorks(t *testing.T) {
	t.Parallel()
	pool, p, connect := through(t)
	lock, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Rollback(context.Background())
	if _, err := lock.Exec(t.Context(), `SELECT pg_advisory_xact_lock(1)`); err != nil {
		t.Fatal(err)
	}
	p.On(func(m pgproxy.Message) bool { return m.Cancel }, 1, pgproxy.CutBefore)
	lost := p.On(pgproxy.Runs("insert"), 1, pgproxy.CutSent)
	if _, err := connect().Exec(t.Context(), `INSERT INTO effect SELECT 1 FROM pg_advisory_xact_lock(1)`); err == nil {
		t.Error("the client got an answer")
	}
	receive(t, "the cut", lost.Done())
	if n := effects(t, pool); n != 0 {
		t.Errorf("%d effects", n)
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(soon); effects(t, pool) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the server did nothing")
		}
	}
}

func TestHeldMessageCanMeetAnotherAct(t *testing.T) {
	t.Parallel()
	pool, p, connect := through(t)
	held := p.On(pgproxy.Runs("insert"), 1, pgproxy.Hold)
	c := connect()
	done := make(chan error, 1)
	go func() {
		_, err := c.Exec(context.Background(), `INSERT INTO effect VALUES (1)`)
		done <- err
	}()
	receive(t, "the message is held", held.Done())
	receive(t, "the cut", held.ReleaseInto(pgproxy.CutDuring).Done())
	if err := <-done; err == nil {
		t.Error("the client got an answer")
	}
	if n := effects(t, pool); n != 1 {
		t.Errorf("%d effects", n)
	}
}

func TestFrozenNetworkDeliversWhenItHeals(t *testing.T) {
	t.Parallel()
	_, p, connect := through(t)
	c := connect()
	p.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	config := c.Config()
	if fresh, err := pgx.ConnectConfig(ctx, config); err == nil {
		t.Error("a new connection works")
		fresh.Close(t.Context())
	}
	done := make(chan error, 1)
	go func() { done <- c.Ping(context.Background()) }()
	p.Heal()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestResetAndRefusal(t *testing.T) {
	t.Parallel()
	_, p, connect := through(t)
	c := connect()
	p.Refuse(true)
	p.Reset()
	if _, err := c.PgConn().Conn().Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Errorf("the client got %v", err)
	}
	if fresh, err := pgx.ConnectConfig(t.Context(), c.Config()); err == nil {
		t.Error("a new connection works")
		fresh.Close(t.Context())
	}
	p.Heal()
	if err := connect().Ping(t.Context()); err != nil {
		t.Error(err)
	}
}
