// Package crash is how jobtest has a worker die at a chosen point: package worker puts the function in, so that nothing of
// it is in worker's API.
package crash

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Point is where the process dies.
type Point int

const (
	AfterClaim Point = iota
	AfterEffects
	BeforeCommit
	AfterCommit
)

// Run claims the one job of queue with a worker of its own and runs it up to the point, as a process does that is killed
// there: nothing is given back, and its lease goes on. The registry is a *worker.Registry. It tells whether there was a job.
var Run func(ctx context.Context, pool *pgxpool.Pool, registry any, queue string, log *slog.Logger, at Point) (bool, error)
