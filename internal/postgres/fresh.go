package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/sqldb"
)

// fresh gives db in a form that has each statement planned anew, for the tables as they are. The application's
// connections do not have a worker's settings (Session), and there a plan that was cached while a table was small or
// analyzed as empty is a sequential scan for as long as it is cached: 2,900 buffers for each completion at 200,000 jobs.
// A plan costs about 0.1 ms, so this is for what is not on every job's way. Whoever has chosen a mode other than pgx's
// own default, as some poolers ask for, keeps it, and so does a db that does not tell.
func fresh(db gen.DBTX) gen.DBTX {
	var conn *pgx.ConnConfig
	switch db := db.(type) {
	case *pgxpool.Pool:
		conn = db.Config().ConnConfig
	case *pgx.Conn:
		conn = db.Config()
	case sqldb.DB:
		return db.Anew()
	case interface{ Conn() *pgx.Conn }: // pgx.Tx, *pgxpool.Conn
		conn = db.Conn().Config()
	}
	if conn == nil || conn.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		return db
	}
	return modeDB{db, pgx.QueryExecModeCacheDescribe} // the description of the statement is cached all the same: one round trip
}

// modeDB is db with a way of its own to send statements.
type modeDB struct {
	db   gen.DBTX
	mode pgx.QueryExecMode
}

func (m modeDB) args(args []any) []any { return append([]any{m.mode}, args...) }

func (m modeDB) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return m.db.Exec(ctx, sql, m.args(args)...)
}

func (m modeDB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return m.db.Query(ctx, sql, m.args(args)...)
}

func (m modeDB) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return m.db.QueryRow(ctx, sql, m.args(args)...)
}
