package jobs_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/pgproxy"
	"github.com/jobgen-go/jobgen/jobs"
)

// enqueueOnce enqueues an order's job although the connection may be lost. The kind has a key, so asking again finds the job
// if the first try had stored it.
func enqueueOnce(ctx context.Context, pool *pgxpool.Pool, o order) (jobs.Ref[receipt], error) {
	ref, err := jobs.Enqueue(ctx, pool, keyed, o)
	if errors.Is(err, jobs.ErrUnknown) {
		ref, err = jobs.Enqueue(ctx, pool, keyed, o)
	}
	return ref, err
}

func TestExampleEnqueueOnce(t *testing.T) {
	t.Parallel()
	f := open(t)
	slow, network := cut(t, f.pool)
	network.On(pgproxy.Runs("-- name: EnqueueKeyed "), 1, pgproxy.CutDuring)
	ref, err := enqueueOnce(f.ctx(), slow, order{ID: "a"})
	if err != nil || !ref.Existing {
		t.Errorf("%+v, %v", ref, err)
	}
	f.expect(1, `SELECT count(*) FROM jobgen.jobs`)
}
