package sqltest

import (
	"context"

	"github.com/jmoiron/sqlx"

	"github.com/jobgen-go/jobgen/jobs"
)

// SignUpSqlx stores a user and the job that welcomes it, both or neither.
func SignUpSqlx(ctx context.Context, db *sqlx.DB, name string) (jobs.Ref[Sent], error) {
	var none jobs.Ref[Sent]
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return none, err
	}
	defer tx.Rollback() // after a commit it does nothing
	if _, err := tx.NamedExecContext(ctx, `INSERT INTO users (name) VALUES (:name)`, map[string]any{"name": name}); err != nil {
		return none, err
	}
	ref, err := EnqueueWelcome(ctx, jobs.SQL(tx), Welcome{Name: name})
	if err != nil {
		return none, err
	}
	return ref, tx.Commit()
}
