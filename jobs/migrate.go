package jobs

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/postgres"
)

// Migrate creates the schema jobgen and brings its tables up to this library's version. Any number of processes may call
// it when they start: one does the work, the others wait. It touches nothing outside the schema jobgen and works on a
// connection of its own, so a pool of one connection is enough. A schema newer than this library is an error.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := postgres.Migrate(ctx, pool)
	return err
}
