package jobs

import (
	"context"
	"database/sql"

	"github.com/jobgen-go/jobgen/internal/sqldb"
)

// SQLConn is a connection of database/sql to the database that has jobgen's tables. *sql.DB, *sql.Conn and *sql.Tx are
// that, and so is what libraries build on them, as long as it passes statements and their arguments on: sqlx's Tx, the
// ConnPool of a GORM session, the transaction that bun embeds (docs/runtime/database-sql.md has a table).
type SQLConn interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// SQL lets jobs be enqueued, and awaited, through database/sql: EnqueueX(ctx, jobs.SQL(tx), payload). All that holds on
// pgx's pools and transactions holds here (G1, G6), under pgx's driver (pgx/v5/stdlib) and lib/pq. The errors that the
// database gives are the driver's own, and errors.As finds them.
//
// Under lib/pq a transaction does one thing at a time: close your rows before you enqueue. On a *sql.DB, database/sql
// repeats a statement whose connection it finds broken, and lib/pq may report it broken after the server has executed the
// statement; the job is then there twice, unless it has a key or was enqueued in a transaction.
func SQL(db SQLConn) DB { return sqldb.New(db) }
