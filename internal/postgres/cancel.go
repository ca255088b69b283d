package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

// A row that somebody else has locked is looked at again, from the first to the last pause, growing by half, so many times:
// about five seconds in all.
const (
	lockedFirst = 2 * time.Millisecond
	lockedLast  = 250 * time.Millisecond
	lockedTries = 30
)

// statusLocked is the statement's answer for a row that somebody else has locked.
const statusLocked = "locked"

func (p Producer) Cancel(ctx context.Context, kinds []string, id int64, reason string) (string, error) {
	q := gen.New(fresh(p.DB))
	pause := lockedFirst
	for range lockedTries {
		answer, err := cancel(ctx, q, kinds, id, reason, engine.KeepCancelled)
		switch {
		case err != nil:
			return "", err
		case answer == "":
			return p.ended(ctx, q, kinds, id)
		case answer != statusLocked:
			return answer, nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return "", context.Cause(ctx)
		case <-timer.C:
		}
		pause = min(pause+pause/2, lockedLast)
	}
	return "", fmt.Errorf("job %d: %w; it was neither cancelled nor asked to end; try again", id, engine.ErrLocked)
}

// cancel tries once. "": it is not in jobs.
func cancel(ctx context.Context, q *gen.Queries, kinds []string, id int64, reason string, keep time.Duration) (string, error) {
	rows, err := q.Cancel(ctx, gen.CancelParams{
		Ids: []int64{id}, Kinds: orEmpty(kinds), Statuses: []string{}, Reason: reason, KeepUs: keep.Microseconds(),
	})
	if err != nil || len(rows) == 0 {
		return "", translate(err)
	}
	return rows[0].Answer, nil
}

// ended tells what became of a job that is not in jobs.
func (p Producer) ended(ctx context.Context, q *gen.Queries, kinds []string, id int64) (string, error) {
	archived, err := q.Archived(ctx, gen.ArchivedParams{Ids: []int64{id}, Kinds: orEmpty(kinds)})
	if err != nil || len(archived) > 0 {
		if err == nil && archived[0].Status == engine.StatusCancelled {
			return engine.StatusAlready, nil
		}
		return engine.StatusFinished, translate(err)
	}
	var finished bool
	if len(kinds) > 0 {
		var row gen.JobStateRow
		row, err = q.JobState(ctx, gen.JobStateParams{ID: id, Kinds: kinds})
		finished = row.Finished
	} else {
		var found []engine.Result
		found, err = results(ctx, q, []int64{id}, false)
		for _, r := range found {
			finished = finished || r.FinishedAt != nil
		}
	}
	if err != nil || !finished {
		return "", translate(err)
	}
	return engine.StatusFinished, nil
}

func (s *Store) Cancel(ctx context.Context, id uuid.UUID, holds []engine.Cancelled, keep time.Duration) ([]engine.Cancel, error) {
	arg := gen.CancelHeldParams{WorkerID: id, KeepUs: keep.Microseconds()}
	for _, h := range holds {
		arg.Ids, arg.Fences = append(arg.Ids, h.ID), append(arg.Fences, h.Fence)
		arg.Started, arg.Errors = append(arg.Started, h.Started), append(arg.Errors, h.Error)
	}
	rows, err := s.ended.CancelHeld(ctx, arg)
	out := make([]engine.Cancel, len(rows))
	for i, r := range rows {
		out[i] = engine.Cancel(r)
	}
	return out, translate(err)
}

// purgeCancels removes messages that have no reader any more. A job that is still there without having been ended, because
// its worker was lost or it is owned by lock, is cancelled again, by its message.
func (s *Store) purgeCancels(ctx context.Context, keep time.Duration) (int64, error) {
	unheard, err := s.q.UnheardCancels(ctx, purgeChunk)
	if err != nil {
		return 0, translate(err)
	}
	for _, u := range unheard {
		err := s.work.begin(ctx, func(tx pgx.Tx) error {
			q := gen.New(tx)
			reason, err := q.TakeCancel(ctx, gen.TakeCancelParams(u))
			if err != nil {
				return err
			}
			answer, err := cancel(ctx, q, nil, u.JobID, reason, keep)
			if err == nil && answer == statusLocked {
				err = engine.ErrLocked
			}
			return err
		})
		if err != nil && !errors.Is(err, pgx.ErrNoRows) && !errors.Is(err, engine.ErrLocked) { // gone, or for the next purge
			return 0, translate(err)
		}
	}
	n, err := s.q.PurgeCancels(ctx, purgeChunk)
	return n, translate(err)
}
