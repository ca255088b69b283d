package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/schema"
)

// Migration is one step of the schema. AppliedAt is zero while it waits.
type Migration struct {
	Version   int64
	Name      string
	AppliedAt time.Time
}

// Migrate brings the schema up to this library's version and returns the steps it took, also those before one that failed.
// Any number of processes may call it at once: one works, the others wait for it. It uses connections of its own beside
// the pool's. A step that needs a lock which it does not get soon is tried again until ctx ends, and waiting is told each time.
func Migrate(ctx context.Context, pool *pgxpool.Pool, waiting func(error)) ([]Migration, error) {
	var done []Migration
	err := migrating(ctx, pool, func(p *goose.Provider) error {
		for {
			results, err := p.Up(ctx)
			var part *goose.PartialError
			if errors.As(err, &part) {
				results = part.Applied
			}
			for _, r := range results {
				done = append(done, Migration{Version: r.Source.Version, Name: r.Source.Path})
			}
			var pg *pgconn.PgError
			if !errors.As(err, &pg) || pg.Code != lockNotAvailable {
				return err
			}
			waiting(pg)
			select {
			case <-ctx.Done():
				return err
			case <-time.After(lockPause):
			}
		}
	})
	return done, err
}

// lockNotAvailable is what a step fails with after the lock_timeout that it sets; lockPause is how long what had to queue
// behind it gets before the next try.
const (
	lockNotAvailable = "55P03"
	lockPause        = time.Second
)

// Migrations lists all steps. It only reads, and waits for nobody: without the schema, all steps wait. Of a schema newer
// than this library it lists the steps it does not know too, without a name, and returns an error beside them.
func Migrations(ctx context.Context, pool *pgxpool.Pool) ([]Migration, error) {
	rows, err := gen.New(pool).AppliedMigrations(ctx)
	if err := explain(err); err != nil && !errors.Is(err, engine.ErrNotMigrated) {
		return nil, err
	}
	all := steps()
	for _, r := range rows {
		i := slices.IndexFunc(all, func(m Migration) bool { return m.Version == r.VersionID })
		if i < 0 {
			all, i = append(all, Migration{Version: r.VersionID}), len(all)
		}
		all[i].AppliedAt = r.AppliedAt
	}
	return all, compare(ctx, gen.New(pool), all[len(all)-1].Version)
}

// steps are the embedded migrations, in their order.
func steps() (all []Migration) {
	files, _ := fs.Glob(schema.Postgres, "postgres/*.sql")
	for _, file := range files {
		if version, err := goose.NumericComponent(file); err == nil {
			all = append(all, Migration{Version: version, Name: path.Base(file)})
		}
	}
	return all
}

// secondTime is how long a migration waits for a connection beside the one that holds its lock. A server gives or refuses
// it at once; a pooler with one connection to the server never does.
const secondTime = 10 * time.Second

// migrating calls fn under the migration lock. The lock is held by a transaction that does nothing else, beside the one
// that migrates: a session's lock would be left in a pooler's connection, and goose begins a transaction for each step.
func migrating(ctx context.Context, app *pgxpool.Pool, fn func(*goose.Provider) error) (err error) {
	config := app.Config()
	config.MaxConns, config.MinConns, config.MinIdleConns = migrateConns, 0, 0
	config.ConnConfig.RuntimeParams["timezone"] = "UTC" // goose's table has timestamps without a zone
	if prepares(config.ConnConfig) {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // so that it works through any pooler
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	lock, err := lockMigrations(ctx, pool)
	if err != nil {
		return explain(err)
	}
	defer lock.Rollback(context.WithoutCancel(ctx))
	second, cancel := context.WithTimeout(ctx, secondTime)
	defer cancel()
	q := gen.New(pool)
	switch err := checkVersion(second, q); {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return fmt.Errorf("jobgen: a migration needs two connections at once, and the second did not come within %s; let the pooler open two at least (default_pool_size), or connect to the database directly: %w", secondTime, err)
	case !errors.Is(err, engine.ErrNotMigrated): // nil: there is nothing to do
		return err
	}
	if err := q.CreateSchema(ctx); err != nil {
		return explain(err)
	}
	db := stdlib.OpenDBFromPool(pool)
	defer func() { err = errors.Join(err, db.Close()) }()
	migrations, err := fs.Sub(schema.Postgres, "postgres")
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, migrations, goose.WithTableName("jobgen.schema_version"))
	if err != nil {
		return err
	}
	return explain(fn(p))
}

// lockEvery is how often one who waits for another to migrate looks whether it has.
const lockEvery = 50 * time.Millisecond

// lockMigrations gives the transaction that holds the migration lock.
func lockMigrations(ctx context.Context, pool *pgxpool.Pool) (pgx.Tx, error) {
	tick := time.NewTicker(lockEvery)
	defer tick.Stop()
	for {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return nil, err
		}
		locked, err := gen.New(tx).LockMigrations(ctx)
		if locked {
			return tx, nil
		}
		if err = errors.Join(err, tx.Rollback(context.WithoutCancel(ctx))); err != nil {
			return nil, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// migrateConns: one for the lock, and what goose takes.
const migrateConns = 3

// errReadOnly keeps a worker and a migration from a database that an operator may still read.
var errReadOnly = errors.New("jobgen: the database is read-only (a standby, or default_transaction_read_only is on); connect to the primary")

// checkVersion compares the schema in the database with the one this library was built for.
func checkVersion(ctx context.Context, q *gen.Queries) error {
	have, err := q.SchemaVersion(ctx)
	switch {
	case err != nil:
		return explain(err)
	case have.ReadOnly && have.Version <= newest():
		return errReadOnly
	}
	return compare(ctx, q, have.Version)
}

// compare allows a newer schema beside which programs of this version go on working, as the schema itself says: during a
// deployment they do, and start too (a process that restarts, a roll-back).
func compare(ctx context.Context, q *gen.Queries, have int64) error {
	switch need := newest(); {
	case have > need:
		oldest, err := q.OldestBeside(ctx, have)
		if err == nil && oldest <= need {
			return nil
		} else if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return explain(err)
		}
		return fmt.Errorf("jobgen: the database has schema version %d and this program knows %d; deploy a program built with a newer jobgen", have, need)
	case have < need:
		return fmt.Errorf("%w (it has version %d, this program needs %d)", engine.ErrNotMigrated, have, need)
	}
	return nil
}

// newest is the number of the last migration in the embedded files.
func newest() int64 {
	all := steps()
	return all[len(all)-1].Version
}
