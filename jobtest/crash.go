package jobtest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/crash"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/worker"
)

// Point is a moment in a job's run at which its process may die.
type Point int

const (
	// AfterClaim: the job is claimed, its handler was not called.
	AfterClaim Point = iota
	// AfterEffects: the handler has returned, and nothing of that is stored: what a transactional handler wrote is rolled
	// back, what any handler did elsewhere stands.
	AfterEffects
	// BeforeCommit: of a transactional handler, the result is written and the job removed in its transaction, which then
	// is rolled back. Of another handler, the same as AfterEffects.
	BeforeCommit
	// AfterCommit: all is stored, and the process that did it knows nothing of it any more.
	AfterCommit
)

// Points are all of them, in their order.
var Points = []Point{AfterClaim, AfterEffects, BeforeCommit, AfterCommit}

func (p Point) String() string {
	if p < 0 || int(p) >= len(Points) {
		return fmt.Sprintf("Point(%d)", int(p))
	}
	return [...]string{"after claim", "after effects", "before commit", "after commit"}[p]
}

// Crash runs one job up to a point, at which its process dies: the job is left as a killed worker leaves it, running, until
// the lease of that worker has run out (owned by lock, it waits again at once). So a test sees whether a handler's effects outside the database bear to happen
// again:
//
//	for _, point := range jobtest.Points {
//		t.Run(point.String(), func(t *testing.T) {
//			db := jobtest.DB(t)
//			clock := jobtest.NewClock(t, db)
//			ref, err := app.EnqueueChargeCard(t.Context(), db, app.ChargeCard{OrderID: "o-17", Cents: 4200})
//			…
//			jobtest.Crash(t, db, ref.ID, point, register)
//			clock.Advance(time.Minute) // the lease ends, the job is taken back
//			jobtest.Run(t, db, register)
//			if provider.Charges("o-17") != 1 {
//				t.Errorf("charged %d times", provider.Charges("o-17"))
//			}
//		})
//	}
//
// The job may be scheduled for later. Mistakes in the registry and a job that does not wait to be run fail the test.
func Crash(t testing.TB, db *pgxpool.Pool, id int64, at Point, register func(*worker.Registry)) {
	t.Helper()
	if at < 0 || int(at) >= len(Points) {
		t.Fatalf("jobtest: no such point: %d; use one of jobtest.Points", int(at))
	}
	var r worker.Registry
	register(&r)
	alone(t, db, id, func(ctx context.Context, queue string) {
		found, err := crash.Run(ctx, db, &r, queue, logger(t), crash.Point(at))
		if err == nil && !found {
			err = errors.New("the registry has no handler for the job's kind, or an older version of it")
		}
		if err != nil {
			t.Fatalf("jobtest: %v", err)
		}
	})
}

// alone calls fn while a waiting job is in a queue of its own, due now, which nobody else polls.
func alone(t testing.TB, db *pgxpool.Pool, id int64, fn func(ctx context.Context, queue string)) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	queue := fmt.Sprintf("jobtest.%d", id)
	was, err := postgres.MoveJob(ctx, db, id, queue)
	if errors.Is(err, pgx.ErrNoRows) {
		t.Fatalf("jobtest: no job %d waits to be run: it has ended, runs, is dead, or was never committed", id)
	} else if err != nil {
		t.Fatalf("jobtest: %v", err)
	}
	defer func() {
		if err := postgres.PutBack(ctx, db, id, was); err != nil {
			t.Errorf("jobtest: %v", err)
		}
	}()
	fn(ctx, queue)
}
