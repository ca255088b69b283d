package jobs

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/postgres"
)

// Migrate creates the schema jobgen and brings its tables up to this library's version. Any number of processes may call
// it when they start: one does the work, the others wait. It touches nothing outside the schema jobgen and works on a
// connections of its own, so a pool of one is enough.
//
// Workers and enqueuers of the version before go on working while it runs and after it: see docs/runtime/deploys.md. A step
// that needs a table for itself does not make them queue up behind a long transaction: it gives up after two seconds, says
// so on slog's default logger, and tries again until ctx ends. A schema that is newer than this library is left alone; it is
// an error if this library cannot work beside it.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := postgres.Migrate(ctx, pool, func(why error) {
		slog.WarnContext(ctx, "jobgen: a migration waits", "error", why)
	})
	return err
}
