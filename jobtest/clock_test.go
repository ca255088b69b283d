package jobtest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/worker"
)

// A back-off of hours passes without being waited for.
func TestTheClockPassesABackoff(t *testing.T) {
	t.Parallel()
	db := jobtest.DB(t)
	clock := jobtest.NewClock(t, db)
	slow := &jobs.Spec[mail, jobs.None]{Kind: "test.slow", Queue: "q", Backoff: jobs.Backoff{Base: time.Hour, Max: time.Hour}}
	if _, err := jobs.Enqueue(t.Context(), db, slow, mail{To: "ada"}); err != nil {
		t.Fatal(err)
	}
	attempts := 0
	register := func(r *worker.Registry) {
		worker.HandleNone(r, slow, func(context.Context, *jobs.Job[mail]) error {
			if attempts++; attempts < 3 {
				return errors.New("mailbox full")
			}
			return nil
		})
	}
	jobtest.Run(t, db, register)
	jobtest.Run(t, db, register)
	if attempts != 1 {
		t.Fatalf("%d attempts before the back-off has passed", attempts)
	}
	for want := 2; want <= 3; want++ {
		clock.Advance(time.Hour)
		if jobtest.Run(t, db, register); attempts != want {
			t.Fatalf("%d attempts, want %d", attempts, want)
		}
	}
	if left := jobtest.Enqueued[mail](t, db, slow.Kind); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

// A schedule ticks at the times that it names, also in the night in which the clocks go forward.
func TestTheClockMakesSchedulesTick(t *testing.T) {
	t.Parallel()
	db := jobtest.DB(t)
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	clock := jobtest.NewClock(t, db)
	clock.Set(time.Date(2030, 3, 30, 12, 0, 0, 0, berlin))
	nightly := &jobs.Spec[mail, jobs.None]{Kind: "test.nightly", Queue: "q", Schedules: []jobs.Schedule{{Name: "n", Cron: "30 2 * * *", Zone: "Europe/Berlin"}}}
	var ticks []string
	register := func(r *worker.Registry) {
		worker.HandleNone(r, nightly, func(_ context.Context, j *jobs.Job[mail]) error {
			ticks = append(ticks, j.ScheduledAt().In(berlin).Format("2 15:04"))
			return nil
		})
	}
	jobtest.Run(t, db, register) // declares the schedule
	for range 3 {
		clock.Advance(24 * time.Hour)
		jobtest.Run(t, db, register)
	}
	// On the 31st there is no 02:30: it ticks when the clocks go forward.
	if len(ticks) != 3 || ticks[0] != "31 03:00" || ticks[1] != "1 02:30" || ticks[2] != "2 02:30" {
		t.Errorf("ticks: %q", ticks)
	}
}

// A result is forgotten when it expires, and the key with it.
func TestTheClockPassesTheExpiryOfAResult(t *testing.T) {
	t.Parallel()
	db := jobtest.DB(t)
	clock := jobtest.NewClock(t, db)
	register := func(r *worker.Registry) {
		worker.Handle(r, add, func(context.Context, *jobs.Job[sum]) (int, error) { return 1, nil })
	}
	enqueue := func() jobs.Ref[int] {
		t.Helper()
		ref, err := jobs.Enqueue(t.Context(), db, add, sum{[]int{1}})
		if err != nil {
			t.Fatal(err)
		}
		return ref
	}
	enqueue()
	jobtest.Run(t, db, register)
	clock.Advance(23 * time.Hour)
	if !enqueue().Existing {
		t.Error("the key is forgotten before its result expires")
	}
	clock.Advance(time.Hour + time.Minute)
	if enqueue().Existing {
		t.Error("the key is still taken after its result has expired")
	}
}

// A worker that runs meanwhile keeps its lease and its jobs, and finds what has become due.
func TestAWorkerOfThisProcessOutlivesAJumpOfTheClock(t *testing.T) {
	t.Parallel()
	db := jobtest.DB(t)
	clock := jobtest.NewClock(t, db)
	started, finish := make(chan string, 2), make(chan struct{})
	var r worker.Registry
	worker.HandleNone(&r, note, func(ctx context.Context, j *jobs.Job[mail]) error {
		started <- j.Payload.To
		<-finish
		return ctx.Err()
	})
	w, err := worker.New(db, &r, worker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	for _, one := range []struct {
		to string
		in time.Duration
	}{{"now", 0}, {"tomorrow", 24 * time.Hour}} {
		if _, err := jobs.Enqueue(t.Context(), db, note, mail{To: one.to}, jobs.In(one.in)); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-started; got != "now" {
		t.Errorf("started %s", got)
	}
	clock.Advance(25 * time.Hour)
	if got := <-started; got != "tomorrow" {
		t.Errorf("started %s", got)
	}
	close(finish)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	var crashes int
	if err := db.QueryRow(t.Context(), "SELECT count(*) FROM jobgen.job_attempt").Scan(&crashes); err != nil || crashes != 0 {
		t.Errorf("%d attempts are on record, %v", crashes, err)
	}
}

// A pool whose sessions choose their own search path is refused, rather than left on another clock.
func TestAPoolThatCannotSeeTheClockIsRefused(t *testing.T) {
	t.Parallel()
	config := jobtest.DB(t).Config()
	config.ConnConfig.RuntimeParams["search_path"] = "public"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if got := failure(t, func(t testing.TB) { jobtest.NewClock(t, pool) }); !strings.Contains(got, "do not see the clock") {
		t.Errorf("%s", got)
	}
}

func TestTheClockSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	db := jobtest.DB(t)
	jobtest.NewClock(t, db)
	if got := failure(t, func(t testing.TB) { jobtest.NewClock(t, db) }); !strings.Contains(got, "has a clock already") {
		t.Errorf("a second clock: %s", got)
	}
	for _, to := range []time.Time{{}, time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC)} {
		if got := failure(t, func(t testing.TB) { jobtest.NewClock(t, jobtest.DB(t)).Set(to) }); !strings.Contains(got, "292 years") {
			t.Errorf("set to %s: %s", to, got)
		}
	}
}
