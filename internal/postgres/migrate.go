package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
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
// the pool's. A step that needs a lock which it does not get soon is tried again until ctx ends. What it waits for, waiting is
// told: one line each time.
func Migrate(ctx context.Context, pool *pgxpool.Pool, waiting func(error)) (done []Migration, err error) {
	err = migrating(ctx, pool, false, waiting, func(p *goose.Provider) error {
		return untilLocked(ctx, waiting, &done, p.Up)
	})
	return done, err
}

// MigrateDown takes the schema from version from back to version to, and returns the steps it took back. It is Migrate in
// all else. What the steps made is lost.
func MigrateDown(ctx context.Context, pool *pgxpool.Pool, from, to int64, waiting func(error)) (done []Migration, err error) {
	err = migrating(ctx, pool, true, waiting, func(p *goose.Provider) error {
		switch have, err := p.GetDBVersion(ctx); {
		case err != nil:
			return err
		case have != from:
			return fmt.Errorf("jobgen: somebody else has migrated meanwhile, the schema has version %d now; look at it again", have)
		}
		return untilLocked(ctx, waiting, &done, func(ctx context.Context) ([]*goose.MigrationResult, error) { return p.DownTo(ctx, to) })
	})
	return done, err
}

// untilLocked takes steps, and again while one does not get its lock. What was taken is added to done.
func untilLocked(ctx context.Context, waiting func(error), done *[]Migration, steps func(context.Context) ([]*goose.MigrationResult, error)) error {
	for {
		results, err := steps(ctx)
		var part *goose.PartialError
		if errors.As(err, &part) {
			results = part.Applied
		}
		for _, r := range results {
			*done = append(*done, Migration{Version: r.Source.Version, Name: r.Source.Path})
		}
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != lockNotAvailable {
			return err
		}
		waiting(fmt.Errorf("another transaction uses a table that a migration changes; trying again until it has ended: %w", pg))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lockPause):
		}
	}
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
//
// If there is nothing to bring up to date, it does not call fn unless the way is down.
func migrating(ctx context.Context, app *pgxpool.Pool, down bool, waiting func(error), fn func(*goose.Provider) error) (err error) {
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
	lock, err := lockMigrations(ctx, pool, waiting)
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
	case !errors.Is(err, engine.ErrNotMigrated) && (err != nil || !down): // nil: there is nothing to do
		return err
	}
	if !down {
		if err := q.CreateSchema(ctx); err != nil {
			return owned(ctx, q, err)
		}
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
	return owned(ctx, q, fn(p))
}

// owned is explain for one who migrates: rights to use the tables, as workers have them, are not enough for that.
func owned(ctx context.Context, q *gen.Queries, err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "42501" { // insufficient_privilege
		return explain(err)
	}
	switch is, err := q.SchemaOwner(ctx); {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("jobgen: %s; the first migration makes a schema: run it as the database's owner, or grant this role CREATE on the database: %w", pg.Message, pg)
	case err != nil:
		return explain(err)
	case is.Owner == is.User: // it is about something else
		return fmt.Errorf("jobgen: %s; a migration needs to own all that is in schema jobgen: %w", pg.Message, pg)
	default:
		return fmt.Errorf("jobgen: %s; to migrate, connect as %s, who owns schema jobgen, or as a member of that role (workers need only usage of the schema and of what is in it): %w", pg.Message, is.Owner, pg)
	}
}

// lockEvery is how often one who waits for another to migrate looks whether it has; after lockQuiet it says that it waits, and
// again each lockAgain.
const (
	lockEvery = 50 * time.Millisecond
	lockQuiet = time.Second
	lockAgain = 30 * time.Second
)

// lockMigrations gives the transaction that holds the migration lock.
func lockMigrations(ctx context.Context, pool *pgxpool.Pool, waiting func(error)) (pgx.Tx, error) {
	tick := time.NewTicker(lockEvery)
	defer tick.Stop()
	say := time.NewTimer(lockQuiet)
	defer say.Stop()
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
		case <-say.C:
			say.Reset(lockAgain)
			if other, err := gen.New(pool).MigrationLock(ctx); err == nil {
				waiting(migratesToo(other))
			}
		case <-tick.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// migratesToo names one who has the migration lock. The name of an application and its state are seen by its own role and by members of
// pg_read_all_stats only.
func migratesToo(other gen.MigrationLockRow) error {
	who := fmt.Sprintf("pid %d", other.Pid)
	var more []string
	for _, s := range []string{other.Application, other.Address} {
		if s != "" {
			more = append(more, s)
		}
	}
	if more != nil {
		who += " (" + strings.Join(more, " at ") + ")"
	}
	if other.SinceUs > 0 {
		who += fmt.Sprintf(", for %s", microseconds(other.SinceUs).Round(time.Second))
	}
	return fmt.Errorf("another process migrates: %s; waiting until it has ended", who)
}

// Loss is what a migration down takes away.
type Loss struct {
	What string `json:"what"`
	N    int64  `json:"n"`
}

// LossLimit is how far losses are counted: a count of ten million rows is as good a warning when it is cut.
const LossLimit = 100_000

// Losses counts what going down from version from to version to takes away, each up to LossLimit + 1.
func (o Operator) Losses(ctx context.Context, from, to int64) (out []Loss, err error) {
	const most = LossLimit + 1
	add := func(what string, n int64) {
		if n > 0 {
			out = append(out, Loss{what, n})
		}
	}
	takes := func(version int64) bool { return to < version && version <= from }
	if takes(1) {
		r, err := o.q().LossOfInit(ctx, most)
		if err != nil {
			return nil, explain(err)
		}
		add("jobs that wait or run", r.Jobs)
		add("dead jobs", r.Dead)
		add("results and keys in use", r.Results)
		add("attempts on record", r.Attempts)
		add("rows of what happened by minute", r.Samples)
	}
	if takes(2) {
		n, err := o.q().LossOfSchedules(ctx, most)
		if err != nil {
			return nil, explain(err)
		}
		add("schedules, with when they ticked last", n)
	}
	if takes(3) {
		r, err := o.q().LossOfRuntime(ctx, most)
		if err != nil {
			return nil, explain(err)
		}
		add("archived jobs", r.Archived)
		add("requests to cancel a running job", r.Cancels)
		add("marks of jobs owned by lock that run", r.Starts)
		add("decisions about queues (pauses, weights, slots)", r.Queues)
	}
	return out, nil
}

// LiveWorkers names the live workers, as host and pid. On a schema without the table, there are none.
func (o Operator) LiveWorkers(ctx context.Context) ([]string, error) {
	rows, err := o.q().LiveWorkers(ctx)
	out := make([]string, len(rows))
	for i, r := range rows {
		out[i] = fmt.Sprintf("%s/%d", r.Host, r.Pid)
	}
	return out, explain(err)
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
