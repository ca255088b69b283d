package sqldb

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/jackc/pgx/v5"
)

// Anew gives d in a form that has each statement planned for the tables as they are (see internal/postgres/fresh.go). lib/pq
// always does that. pgx keeps prepared statements under database/sql too, and the mode that prevents it can be passed as
// an argument, but no other driver must get that, and a *sql.Tx does not tell its driver. So the first argument goes as a
// question that pgx alone hears: it takes it for a pgx.QueryRewriter, and calls it before it sends anything; every other
// driver takes it for a driver.Valuer, and gets the argument. What is neither of the three types of database/sql may have
// prepared the statement (GORM's PrepareStmt), and then its number of arguments is fixed.
func (d DB) Anew() DB {
	d.anew = plain(d.conn)
	return d
}

type question struct{ first any }

var (
	_      driver.Valuer     = question{}
	_      pgx.QueryRewriter = question{}
	errPgx                   = errors.New("jobs: this is pgx") // never leaves this package
)

func (q question) Value() (driver.Value, error) { return q.first, nil }

// RewriteQuery goes on unchanged in every mode but pgx's default: whoever has chosen one, as some poolers ask for, keeps it.
func (q question) RewriteQuery(_ context.Context, conn *pgx.Conn, query string, args []any) (string, []any, error) {
	if conn.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		return "", nil, errPgx
	}
	return query, append([]any{q.first}, args...), nil
}
