package worker

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// quiet tells whether a worker that sleeps need not claim, because nothing is due. To ask that costs the server a third of a
// claim, and of a look by lockers less.
func (i *idleness) quiet(ctx context.Context) bool {
	w := i.worker
	if i.asleep == uuid.Nil || i.asleep != w.self.Load().ID || i.delay <= pollShort || w.lockFound.Load() > 0 {
		return false
	}
	ctx, cancel := limit(ctx)
	defer cancel()
	seen := w.contact.databaseTime() // from before: what is not found was not there then
	w.marks.policy, w.marks.band, w.marks.closer = w.policy.Load(), nil, false
	ranges := w.marks.ranges()
	due, err := w.store.NextDue(ctx, ranges, false, dueWithin)
	if err != nil || due == 0 || len(ranges) == 0 {
		return false
	}
	w.marks.advance(nil, seen, true)
	w.due, w.dueSeen = due, now()
	return true
}

// dueWithin is longer than any pause.
const dueWithin = 2 * pollLong

// nextDue tells how long until a job is due that is not yet, at most dueWithin.
func (w *Worker) nextDue(ctx context.Context) (time.Duration, error) {
	if since(w.dueSeen) < pollShort { // quiet has just asked
		return w.due, nil
	}
	return w.store.NextDue(ctx, w.marks.ranges(), true, dueWithin)
}
