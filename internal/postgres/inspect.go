package postgres

import (
	"context"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
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
