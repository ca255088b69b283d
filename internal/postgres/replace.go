package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

// replaceable tells whether an enqueue changes what stands behind its taken key. What has expired or was removed by hand is
// not taken; a job that runs and a result are left alone, unless a debounced enqueue wants another run after them.
func replaceable(in engine.Insert, state gen.KeyStateRow) bool {
	switch {
	case !in.Replace, state.Expired, state.Status == "" && !state.Finished:
		return false
	}
	return in.Debounce || state.Status == "queued" || state.Status == "dead"
}

// replace fails with pgx.ErrNoRows if the key is not that job's any more.
func replace(ctx context.Context, q *gen.Queries, in engine.Insert, e engine.Element, job int64, hand bool) (engine.Inserted, error) {
	row, err := q.Replace(ctx, gen.ReplaceParams{
		Kind: in.Kind, Key: e.Key, JobID: job, Queue: in.Queue, Version: int32(in.Version), Payload: string(e.Payload), Headers: headers(in),
		Priority: int16(in.Priority), MaxAttempts: int32(in.MaxAttempts), At: instant(in.At), DelayUs: in.In.Microseconds(), Deadline: instant(in.Deadline), WithinUs: within(in),
		Debounce: in.Debounce, MostUs: in.Most.Microseconds(), Hand: hand,
	})
	return engine.Inserted{ID: row.ID, Existing: !row.Enqueued, Replaced: row.Replaced}, err
}

// replaceRenamed looks at a kind's earlier names: a job that waits under one of them is replaced there, and keeps the name.
// One that does not wait any more answers for the key like that of the kind itself, but a debounced enqueue passes it by.
func (p Producer) replaceRenamed(ctx context.Context, in engine.Insert, e engine.Element) (one engine.Inserted, is bool, err error) {
	q := gen.New(fresh(p.DB))
	for _, in.Kind = range in.Was {
		for range keyTries {
			state, err := q.KeyState(ctx, gen.KeyStateParams{Kind: in.Kind, Key: e.Key})
			if errors.Is(err, pgx.ErrNoRows) {
				break
			}
			if err != nil {
				return one, false, err
			}
			switch {
			case state.Status == "dead", !replaceable(engine.Insert{Replace: true, Debounce: true}, state):
			case state.Status == "queued":
				one, err = replace(ctx, q, in, e, state.JobID, false)
				if errors.Is(err, pgx.ErrNoRows) {
					continue
				}
				is = err == nil && (one.Replaced || !in.Debounce)
			default:
				one, is = engine.Inserted{ID: state.JobID, Existing: true}, !in.Debounce
			}
			if one.Kind = in.Kind; is || err != nil {
				return one, is, err
			}
			break
		}
	}
	return engine.Inserted{}, false, nil
}
