package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Translate is for tests of errors that no server gives on demand.
var Translate = translate

// LookAtPart is Operator.Look at a table that is too big to be counted: at most so many pages are.
func (o Operator) LookAtPart(ctx context.Context, most int64) (l Look, err error) {
	return l, pgx.BeginFunc(ctx, o.Pool, func(tx pgx.Tx) error {
		l, _, err = look(ctx, tx, 0, most)
		return err
	})
}

// Captured is for tests that look at statements without sending them.
var Captured = captured
