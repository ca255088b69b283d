package jobs

import (
	"context"
	"fmt"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/storable"
)

// Cancellation is what Cancel found and did.
type Cancellation string

const (
	// Cancelled: the job waited, or was dead. It is on record as cancelled now and will not run; its key is free.
	Cancelled Cancellation = engine.StatusCancelled
	// CancelAsked: the job runs, and its worker is asked to stop it. It ends cancelled unless its handler succeeds all the same;
	// Await tells which.
	CancelAsked Cancellation = engine.StatusAsked
	// CancelTooLate: the job had succeeded. Nothing was changed.
	CancelTooLate Cancellation = engine.StatusFinished
	// CancelledBefore: the job was on record as cancelled already. Nothing was changed, nor was the reason.
	CancelledBefore Cancellation = engine.StatusAlready
)

// maxReason is the limit of a cancellation's reason, in bytes; what is longer is cut.
const maxReason = 1 << 10

// Cancel ends a job, on whatever machine it is. One that waits or is dead leaves the queue in this statement and stands in
// job_archive, with the reason, for 30 days; if it had a key, the key is free again. Of one that runs, the worker is asked:
// within moments, or seconds if a notification is lost, it cancels the handler's context with the cause ErrCancelled. The
// wish outlives a failure, a shutdown and a crash of that worker: from now on the job succeeds or ends cancelled, and is not
// started again. (A worker of a version without cancellation does not know of it.) The reason may be empty.
//
// In a transaction it takes effect with its commit; until then the job is locked, its worker cannot store its outcome, and
// another Cancel of it waits. A row that somebody else has locked for seconds is an error, and nothing has changed then. A job
// of which nothing is on record is ErrNoRecord: there never was one, or it succeeded and its kind keeps no record.
func Cancel(ctx context.Context, db DB, id int64, reason string) (Cancellation, error) {
	return cancel(ctx, db, nil, id, reason)
}

// Cancel is the function Cancel for this job.
func (r Ref[R]) Cancel(ctx context.Context, db DB, reason string) (Cancellation, error) {
	if r.ID == 0 {
		return "", fmt.Errorf("cancel %s: %w", r.Kind, ErrNotStored)
	}
	return cancel(ctx, db, r.kinds(), r.ID, reason)
}

func cancel(ctx context.Context, db DB, kinds []string, id int64, reason string) (Cancellation, error) {
	db, _ = unwrap(db)
	answer, err := producer(db).Cancel(ctx, kinds, id, storable.Text(reason, maxReason))
	switch {
	case err != nil:
		return "", fmt.Errorf("cancel job %d: %w", id, err)
	case answer == "":
		return "", fmt.Errorf("%w (job %d)", ErrNoRecord, id)
	}
	return Cancellation(answer), nil
}
