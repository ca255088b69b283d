package postgres

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/schema"
)

// JobsOfKind reads all jobs of a kind, oldest first, as db sees them: inside a transaction, with what it has not
// committed.
func JobsOfKind(ctx context.Context, db gen.DBTX, kind string) ([]engine.Job, error) {
	rows, err := gen.New(db).JobsOfKind(ctx, kind)
	if err != nil {
		return nil, translate(err)
	}
	out := make([]engine.Job, len(rows))
	for i, r := range rows {
		if out[i], err = wholeJob(gen.ShowJobRow(r)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// KindCount is how many jobs of a kind are in jobs.
type KindCount struct {
	Kind string
	N    int64
}

// CountByKind counts the jobs of each kind, in the order of their names.
func CountByKind(ctx context.Context, db gen.DBTX) ([]KindCount, error) {
	rows, err := gen.New(db).CountByKind(ctx)
	out := make([]KindCount, len(rows))
	for i, r := range rows {
		out[i] = KindCount(r)
	}
	return out, translate(err)
}

// Unfinished counts the live workers, and the jobs that they run or could run now.
func Unfinished(ctx context.Context, db gen.DBTX) (workers, jobs int, err error) {
	row, err := gen.New(db).Unfinished(ctx)
	return int(row.Workers), int(row.Jobs), translate(err)
}

// MoveJob puts a waiting job into a queue, due now, and tells where it was; PutBack takes that back. Without such a job it
// fails with pgx.ErrNoRows.
func MoveJob(ctx context.Context, db gen.DBTX, id int64, queue string) (was string, err error) {
	was, err = gen.New(db).MoveJob(ctx, gen.MoveJobParams{ID: id, Queue: queue})
	return was, translate(err)
}

func PutBack(ctx context.Context, db gen.DBTX, id int64, queue string) error {
	return translate(gen.New(db).PutBack(ctx, gen.PutBackParams{ID: id, Queue: queue}))
}

// InstallClock gives the database of a test a clock that MoveClock moves. Sessions that were opened before do not have it.
func InstallClock(ctx context.Context, db gen.DBTX) error {
	_, err := db.Exec(ctx, schema.Clock)
	var pg sqlError
	if errors.As(err, &pg) && pg.SQLState() == "42P06" { // duplicate_schema
		return errors.New("this database has a clock already: call NewClock once in a test, and pass its Clock on")
	}
	return err
}

// MoveClock moves the clock on by d, or back. On its way it comes by each moment at which the lease of
// a worker ends that is not of this process, and has its jobs taken back then, as the rest of a fleet would do. The
// workers of this process keep their leases.
func MoveClock(ctx context.Context, pool *pgxpool.Pool, d time.Duration, maxCrashes int, backoff time.Duration) error {
	q := gen.New(pool)
	host, _ := os.Hostname()
	for {
		step, ends := d, false
		left, err := q.LeaseEnds(ctx, gen.LeaseEndsParams{Pid: int32(os.Getpid()), Host: host, WithinUs: d.Microseconds()})
		if err != nil {
			return translate(err)
		}
		if d > 0 && len(left) > 0 {
			step, ends = max(time.Duration(left[0]+1)*time.Microsecond, 0), true
		}
		if err := q.ExtendLeases(ctx, gen.ExtendLeasesParams{Pid: int32(os.Getpid()), Host: host, ByUs: step.Microseconds()}); err != nil {
			return translate(err)
		}
		if err := q.MoveClock(ctx, step.Microseconds()); err != nil {
			return translate(err)
		}
		if !ends {
			return translate(q.WakeAll(ctx))
		}
		d -= step
		s := Store{q: q}
		if _, err := s.MarkLost(ctx); err != nil {
			return err
		}
		for n := reclaimChunk; n == reclaimChunk; {
			back, err := s.Reclaim(ctx, reclaimChunk, maxCrashes, backoff, false)
			if err != nil {
				return err
			}
			n = len(back)
		}
	}
}

const reclaimChunk = 500

// Now is the database's clock.
func Now(ctx context.Context, db gen.DBTX) (time.Time, error) {
	now, err := gen.New(db).Now(ctx)
	return now, translate(err)
}
