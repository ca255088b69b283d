package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

// doneElsewhere stands in the archive of a job that had a key and whose handler was not called, or is rolled back.
const doneElsewhere = "the work of its key is that of another job"

// archive is complete for outcomes that stay in the archive, whether they leave a record as well or not.
func archive(ctx context.Context, db gen.DBTX, id uuid.UUID, done []engine.Success, ids, fences []int64, inTx bool) (c completed, err error) {
	n := len(done)
	arg := gen.CompleteArchivedParams{
		InTx: inTx, Ids: ids, Fences: fences, WorkerID: id,
		Records: make([]bool, n), Results: make([]string, n), KeepUs: make([]int64, n), RetainUs: make([]int64, n), Reasons: make([]string, n),
	}
	for i, d := range done {
		arg.Records[i], arg.Results[i], arg.KeepUs[i], arg.RetainUs[i] = d.Record, string(d.Result), d.Keep.Microseconds(), d.Retain.Microseconds()
		if d.Key != "" && !d.Record {
			arg.Reasons[i] = doneElsewhere
		}
	}
	var row gen.CompleteArchivedRow
	dest := fields(&row, nil)
	c.ended = make([]int64, 0, n)
	_, err = each(db, func(rows pgx.Rows) error {
		err := rows.Scan(dest...)
		if c.ended, c.xact = append(c.ended, row.ID), row.Xact; !row.Recorded {
			c.unrecorded = append(c.unrecorded, row.ID)
		}
		return err
	}).CompleteArchived(ctx, arg)
	return c, translate(err)
}
