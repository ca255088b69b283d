package jobtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/postgres"
)

// Clock is the clock of one test's database: all that jobgen decides by time, it decides by that (G12). So a test moves
// it instead of waiting: for a back-off, a schedule's tick, the end of a lease, a result's expiry.
type Clock struct {
	t  testing.TB
	db *pgxpool.Pool
}

// What a fleet on default settings does with the jobs of a lost worker.
const (
	maxCrashes = 5
	crashDelay = time.Second
)

// NewClock takes the clock of db's database in hand; db comes from DB. Its time goes on from the present one. Call it before workers run, since
// what has a connection open keeps the old clock, and once in a test.
//
//	clock := jobtest.NewClock(t, db)
//	…
//	jobtest.Run(t, db, register) // fails, to be tried again
//	clock.Advance(time.Hour)
//	jobtest.Run(t, db, register) // the second attempt
//
// The test's own SQL sees the clock too, where it calls now() or clock_timestamp(); CURRENT_TIMESTAMP it cannot reach.
func NewClock(t testing.TB, db *pgxpool.Pool) *Clock {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if err := postgres.InstallClock(ctx, db); err != nil {
		t.Fatalf("jobtest: %v", err)
	}
	db.Reset() // the sessions that are open do not have it
	c := &Clock{t, db}
	before := c.Now()
	c.move(time.Hour)
	if c.Now().Sub(before) < time.Hour {
		t.Fatalf("jobtest: the sessions of this pool do not see the clock; leave search_path out of its settings")
	}
	c.move(-time.Hour)
	return c
}

// Now is the clock's time.
func (c *Clock) Now() time.Time {
	c.t.Helper()
	now, err := postgres.Now(context.WithoutCancel(c.t.Context()), c.db)
	if err != nil {
		c.t.Fatalf("jobtest: %v", err)
	}
	return now
}

// Advance lets d pass. What is due then is run by the next Run; a worker that runs meanwhile notices within seconds (a
// tick of a schedule, within half a minute) and keeps its lease. The leases of other processes end on the way, also of one
// that Crash has made: their jobs are taken back, as other workers would do. A negative d sets the clock back, as an operator
// might; nothing that has happened is undone.
func (c *Clock) Advance(d time.Duration) {
	c.t.Helper()
	c.move(d)
}

// Set moves the clock to a time: the hour before the clocks change, the end of a month. That can be 292 years away.
func (c *Clock) Set(to time.Time) {
	c.t.Helper()
	now := c.Now()
	d := to.Sub(now)
	if !now.Add(d).Equal(to) { // a time.Duration ends there
		c.t.Fatalf("jobtest: the clock is at %s and cannot be set to %s: that is more than 292 years away", now.Format(time.DateTime), to.Format(time.DateTime))
	}
	c.move(d)
}

func (c *Clock) move(d time.Duration) {
	c.t.Helper()
	if err := postgres.MoveClock(context.WithoutCancel(c.t.Context()), c.db, d, maxCrashes, crashDelay); err != nil {
		c.t.Fatalf("jobtest: %v", err)
	}
}
