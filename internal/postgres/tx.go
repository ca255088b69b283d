package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

const endTimeout = 10 * time.Second

// InTx upholds G5.
func (s *Store) InTx(ctx context.Context, id uuid.UUID, fn func(tx any, finish func(engine.Success) error) error) error {
	tx, err := s.app.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return fmt.Errorf("%w: %w", engine.ErrNotBegun, err)
	}
	defer func() {
		ctx, cancel := ending(ctx)
		defer cancel()
		_ = tx.Rollback(ctx) // after a commit it does nothing; if it fails, the connection is gone and the transaction with it
	}()
	finished := false
	err = fn(handlerTx{tx}, func(done engine.Success) error {
		if err := usable(tx); err != nil {
			return err
		}
		ctx, cancel := ending(ctx)
		defer cancel()
		ended, unrecorded, err := complete(ctx, gen.New(fresh(tx)), id, []engine.Success{done})
		switch {
		case err == nil && len(ended) == 0:
			err = engine.ErrLeaseLost
		case err == nil && len(unrecorded) > 0:
			err = engine.ErrRecorded
		case err == nil:
			err = translate(follow(ctx, tx, done.Then))
		}
		finished = err == nil
		return err
	})
	if err != nil || !finished {
		return err
	}
	ctx, cancel := ending(ctx)
	defer cancel()
	return commit(ctx, tx)
}

// usable tells what is wrong with a transaction after a handler that returned no error.
func usable(tx pgx.Tx) error {
	switch tx.Conn().PgConn().TxStatus() {
	case 'I':
		return errors.New("the handler ended its transaction by a statement of its own; what it committed stands, without the job's completion")
	case 'E':
		return errors.New("the handler returned no error, but a statement in its transaction had failed; return that error, or use a savepoint (tx.Begin)")
	}
	return nil
}

func commit(ctx context.Context, tx pgx.Tx) error {
	err := tx.Commit(ctx)
	var pg *pgconn.PgError
	if err == nil || errors.As(err, &pg) && !relayed(pg) || errors.Is(err, pgx.ErrTxCommitRollback) {
		return err
	}
	return fmt.Errorf("%w: COMMIT: %w", engine.ErrUnknown, err)
}

// ending is a context for the last statements of a transaction: bounded, but not cut by a timeout or a shutdown that
// comes when the handler has already succeeded.
func ending(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
}

// handlerTx is the transaction a handler gets: it cannot end it. Begin still gives a savepoint, which it can.
type handlerTx struct{ pgx.Tx }

var errEnds = errors.New("jobgen: the worker commits or rolls back this transaction: return nil or an error instead")

func (handlerTx) Commit(context.Context) error   { return errEnds }
func (handlerTx) Rollback(context.Context) error { return errEnds }
