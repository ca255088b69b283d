package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

const endTimeout = 10 * time.Second

// begin opens a handler's transaction and marks it, in one round trip. The mark goes with the transaction, however that
// ends, so the completing statement tells by it whether it runs in the one that began (COMMIT AND CHAIN leaves no other
// trace with the client). BEGIN takes no parameter and sqlc no BEGIN: it is not under queries/.
const begin = "begin isolation level read committed read write; set local jobgen.tx = 'on'"

var errEnded = errors.New("the handler ended its transaction by a statement of its own (or by RESET ALL took the worker's mark from it); what it committed stands, without the job's completion")

// InTx upholds G5.
func (s *Store) InTx(ctx context.Context, id uuid.UUID, fn func(tx any, finish func(engine.Success) error) error) error {
	tx, err := s.app.BeginTx(ctx, pgx.TxOptions{BeginQuery: begin})
	if err != nil {
		return fmt.Errorf("%w: %w", engine.ErrNotBegun, err)
	}
	handler := newHandlerTx(tx)
	defer func() {
		handler.end()
		ctx, cancel := ending(ctx)
		defer cancel()
		_ = tx.Rollback(ctx) // after a commit it does nothing; if it fails, the connection is gone and the transaction with it
	}()
	var xact int64
	err = fn(handler, func(done engine.Success) error {
		if !handler.end() {
			return errCut
		}
		if err := usable(tx); err != nil {
			return err
		}
		ctx, cancel := ending(ctx)
		defer cancel()
		planned := fresh(tx)
		q := gen.New(planned)
		c, err := complete(ctx, planned, id, []engine.Success{done}, true)
		switch {
		case err == nil && len(c.ended) == 0:
			err = engine.ErrLeaseLost
		case err == nil && c.xact == 0:
			err = errEnded
		case err == nil && len(c.unrecorded) > 0:
			if c.unrecorded, err = overtaken(ctx, q, []engine.Success{done}, c.unrecorded); len(c.unrecorded) > 0 {
				err = engine.ErrRecorded
			}
		}
		if err == nil {
			err = translate(follow(ctx, tx, done.Then))
		}
		switch {
		case errors.Is(err, engine.ErrUnknown):
			return &lostError{err}
		case err != nil:
			return err
		}
		xact = c.xact
		return nil
	})
	if err != nil || xact == 0 {
		return err
	}
	ctx, cancel := ending(ctx)
	defer cancel()
	return commit(ctx, tx, xact)
}

// usable tells what is wrong with a transaction after a handler that returned no error.
func usable(tx pgx.Tx) error {
	switch tx.Conn().PgConn().TxStatus() {
	case 'I':
		return errEnded
	case 'E':
		return errors.New("the handler returned no error, but a statement in its transaction had failed; return that error, or use a savepoint (tx.Begin)")
	}
	return nil
}

// commit says what is certain of a COMMIT that failed: a DoubtError if nothing is.
func commit(ctx context.Context, tx pgx.Tx, xact int64) error {
	err := tx.Commit(ctx)
	var pg *pgconn.PgError
	switch {
	case err == nil, errors.Is(err, pgx.ErrTxCommitRollback), errors.As(err, &pg) && !fatal(pg):
		return err
	case pgconn.SafeToRetry(err):
		return &lostError{err}
	}
	return &engine.DoubtError{Xact: xact, Err: err}
}

func (s *Store) Fates(ctx context.Context, id uuid.UUID, doubts []engine.InDoubt) ([]engine.Fate, error) {
	var arg gen.FatesParams
	if id != uuid.Nil {
		arg.WorkerID = &id
	}
	for _, d := range doubts {
		arg.Ids, arg.Fences, arg.Xacts = append(arg.Ids, d.ID), append(arg.Fences, d.Fence), append(arg.Xacts, d.Xact)
	}
	rows, err := s.ended.Fates(ctx, arg)
	if err != nil {
		return nil, translate(err)
	}
	byID := make(map[int64]engine.Fate, len(rows))
	for _, r := range rows {
		switch {
		case r.There && r.Free:
			byID[r.ID] = engine.RolledBack
		case r.There, r.Status == "in progress":
			byID[r.ID] = engine.Undecided
		case r.Status == "aborted":
			byID[r.ID] = engine.Taken
		default:
			byID[r.ID] = engine.Committed
		}
	}
	fates := make([]engine.Fate, len(doubts))
	for i, d := range doubts {
		fates[i] = byID[d.ID]
	}
	return fates, nil
}

// lostError is the end of a connection before COMMIT was sent. It is no ErrUnknown: the transaction cannot have committed.
type lostError struct{ err error }

func (e *lostError) Error() string {
	return "the connection was lost before COMMIT, and what the handler did in its transaction is rolled back: " + e.err.Error()
}

// ending is a context for the last statements of a transaction: bounded, but not cut by a timeout or a shutdown that
// comes when the handler has already succeeded.
func ending(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
}

// handlerTx is the transaction a handler gets: it cannot end it. Begin still gives a savepoint, which it can.
type handlerTx struct {
	pgx.Tx
	conn *pgconn.PgConn

	mu    sync.Mutex
	ended bool // the handler has returned
	cut   bool
}

func newHandlerTx(tx pgx.Tx) *handlerTx { return &handlerTx{Tx: tx, conn: tx.Conn().PgConn()} }

var (
	errEnds = errors.New("jobgen: the worker commits or rolls back this transaction: return nil or an error instead")
	errCut  = errors.New("jobgen: the handler ignored its ended context, so its transaction was rolled back")
)

func (*handlerTx) Commit(context.Context) error   { return errEnds }
func (*handlerTx) Rollback(context.Context) error { return errEnds }

// end says that the handler has returned. It is false if the transaction was cut before.
func (t *handlerTx) end() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	return !t.cut
}

// Cut closes the connection under the transaction, which the server then rolls back. What the handler may be using is not
// touched: a connection to the server is safe to close while it is read, and a statement that waits for its answer there ends
// with an error, on which pgx has the server cancel it.
func (t *handlerTx) Cut() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return t.cut
	}
	t.cut = true
	_ = t.conn.Conn().Close()
	return true
}
