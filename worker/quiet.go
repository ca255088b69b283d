package worker

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/jobgen-go/jobgen/internal/engine"
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
	ranges := i.ranges()
	due, err := w.store.NextDue(ctx, ranges, false, dueWithin)
	if err != nil || due == 0 || len(ranges) == 0 {
		return false
	}
	w.marks.advance(nil, seen, true)
	i.due, i.dueSeen = due, now()
	return true
}

// dueWithin is longer than any pause.
const dueWithin = 2 * pollLong

// nextDue tells how long until a job is due that is not yet, at most dueWithin.
func (i *idleness) nextDue(ctx context.Context) (time.Duration, error) {
	if since(i.dueSeen) < pollShort { // quiet has just asked
		return i.due, nil
	}
	return i.worker.store.NextDue(ctx, i.ranges(), true, dueWithin)
}

// ranges are those of all jobs that this worker may look for, from the marks that are further back.
func (i *idleness) ranges() []engine.Mark {
	m := &i.worker.marks
	m.policy, m.band, m.closer = i.worker.policy.Load(), nil, false
	return m.ranges()
}
