package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

// locked is a job owned by the row lock of its transaction, which is one of the application's pool.
type locked struct {
	tx  pgx.Tx
	of  *handlerTx
	job engine.Claimed
	at  time.Time
}

func (s *Store) Lock(ctx context.Context, w *engine.Worker, marks []engine.Mark, skip []int64) (engine.Locked, error) {
	arg := gen.LockParams{Skip: orEmpty(skip)}
	arg.Kinds, arg.Versions = kinds(w.Locks)
	for _, m := range marks {
		arg.Queues, arg.Priorities = append(arg.Queues, m.Queue), append(arg.Priorities, int16(m.Priority))
		arg.MarkAts, arg.MarkIds = append(arg.MarkAts, m.At), append(arg.MarkIds, m.ID)
	}
	return s.lock(ctx, func(q *gen.Queries) ([]gen.LockRow, error) { return q.Lock(ctx, arg) })
}

func (s *Store) LockSuspect(ctx context.Context, w *engine.Worker, skip []int64) (engine.Locked, error) {
	arg := gen.LockSuspectParams{Queues: w.Queues, Skip: orEmpty(skip)}
	arg.Kinds, arg.Versions = kinds(w.Locks)
	return s.lock(ctx, func(q *gen.Queries) (out []gen.LockRow, err error) {
		rows, err := q.LockSuspect(ctx, arg)
		for _, r := range rows {
			out = append(out, gen.LockRow(r))
		}
		return out, err
	})
}

func (s *Store) lock(ctx context.Context, take func(*gen.Queries) ([]gen.LockRow, error)) (engine.Locked, error) {
	tx, err := s.app.BeginTx(ctx, pgx.TxOptions{BeginQuery: begin})
	if err != nil {
		return nil, translate(err)
	}
	l := &locked{tx: tx, of: newHandlerTx(tx)}
	rows, err := take(gen.New(planned{tx, true}))
	if err != nil || len(rows) == 0 {
		l.Rollback(ctx)
		return nil, translate(err)
	}
	l.at, l.job = rows[0].DbNow, claimed((*gen.ClaimRow)(&rows[0]))
	return l, nil
}

func (l *locked) Job() (*engine.Claimed, time.Time) { return &l.job, l.at }

func (l *locked) Tx() any { return l.of }

func (l *locked) Finish(ctx context.Context, id uuid.UUID, done engine.Success) error {
	if !l.of.end() {
		return errCut
	}
	if err := usable(l.tx); err != nil {
		return err
	}
	ctx, cancel := ending(ctx)
	defer cancel()
	q := gen.New(planned{l.tx, false})
	arg := gen.CompleteLockedParams{
		Record: done.Record, ID: l.job.ID, Attempt: int32(l.job.Attempt), WorkerID: id, Result: string(done.Result), KeepUs: done.Keep.Microseconds(),
	}
	rows, err := completeLocked(ctx, q, arg, done.Retain)
	switch {
	case err == nil && (len(rows) == 0 || rows[0].Xact == 0):
		return errEnded // and had begun another
	case err == nil && !rows[0].Recorded:
		var lost []int64
		if lost, err = overtaken(ctx, q, []engine.Success{done}, []int64{done.ID}); len(lost) > 0 {
			return engine.ErrRecorded
		}
	}
	if err == nil {
		err = follow(ctx, l.tx, done.Then)
	}
	if err = translate(err); errors.Is(err, engine.ErrUnknown) {
		return &lostError{err}
	} else if err != nil {
		return err
	}
	return commit(ctx, l.tx, rows[0].Xact)
}

func completeLocked(ctx context.Context, q *gen.Queries, arg gen.CompleteLockedParams, retain time.Duration) ([]gen.CompleteLockedRow, error) {
	if retain == 0 {
		return q.CompleteLocked(ctx, arg)
	}
	rows, err := q.CompleteLockedArchived(ctx, gen.CompleteLockedArchivedParams{
		Record: arg.Record, ID: arg.ID, Attempt: arg.Attempt, WorkerID: arg.WorkerID, Result: arg.Result, KeepUs: arg.KeepUs, RetainUs: retain.Microseconds(),
	})
	out := make([]gen.CompleteLockedRow, len(rows))
	for i, r := range rows {
		out[i] = gen.CompleteLockedRow(r)
	}
	return out, err
}

func (l *locked) Adopt(ctx context.Context, id uuid.UUID, ran time.Duration) (int64, error) {
	if !l.of.end() {
		return 0, errCut
	}
	ctx, cancel := ending(ctx)
	defer cancel()
	if err := gen.New(l.tx).RollbackToSavepoint(ctx); err != nil {
		return 0, translate(err)
	}
	fence, _, err := adopt(ctx, gen.New(planned{l.tx, false}), id, &l.job, ran)
	if err != nil {
		return 0, err
	}
	return fence, commit(ctx, l.tx, 0)
}

func (l *locked) Crash(ctx context.Context, id uuid.UUID, crashes, maxCrashes int, backoff time.Duration) (engine.Reclaimed, error) {
	ctx, cancel := ending(ctx)
	defer cancel()
	back := engine.Reclaimed{ID: l.job.ID, Queue: l.job.Queue, Kind: l.job.Kind}
	rows, err := gen.New(planned{l.tx, false}).Crash(ctx, gen.CrashParams{ID: l.job.ID, WorkerID: id, Crashes: int32(crashes), MaxCrashes: int32(maxCrashes), BackoffUs: backoff.Microseconds()})
	if err != nil {
		return back, translate(err)
	}
	for _, r := range rows {
		back.Crashes, back.Dead = int(r.Crashes), r.Dead
	}
	return back, commit(ctx, l.tx, 0)
}

func (l *locked) Rollback(ctx context.Context) {
	l.of.end()
	ctx, cancel := ending(ctx)
	defer cancel()
	_ = l.tx.Rollback(ctx) // if it fails, the connection is gone and the transaction with it
}

func (s *Store) Start(ctx context.Context, id uuid.UUID, jobs []int64, sure []bool) (map[int64]engine.Starts, error) {
	rows, err := s.q.Start(ctx, gen.StartParams{Ids: jobs, Sure: sure, WorkerID: id})
	before := make(map[int64]engine.Starts, len(rows))
	for _, r := range rows {
		before[r.JobID] = engine.Starts{Crashes: int(r.Crashes), Unsure: r.Unsure}
	}
	return before, translate(err)
}

func (s *Store) Unstart(ctx context.Context, id uuid.UUID, jobs []int64) error {
	return translate(s.q.Unstart(ctx, gen.UnstartParams{Ids: jobs, WorkerID: id}))
}

func (s *Store) Adopt(ctx context.Context, id uuid.UUID, c *engine.Claimed, ran time.Duration) (int64, bool, error) {
	return adopt(ctx, s.q, id, c, ran)
}

func adopt(ctx context.Context, q *gen.Queries, id uuid.UUID, c *engine.Claimed, ran time.Duration) (fence int64, waits bool, err error) {
	rows, err := q.Adopt(ctx, gen.AdoptParams{WorkerID: id, ID: c.ID, Attempt: int32(c.Attempt), RanUs: ran.Microseconds()})
	for _, r := range rows {
		fence, waits = r.Fence, r.Waits
	}
	return fence, waits && fence == 0, translate(err)
}

// planned runs statements in an application's transaction by the plans that they have in a worker's session, in one round
// trip with what sets it up. Before a handler, the settings are the connection's own again, and there is a savepoint.
type planned struct {
	tx     pgx.Tx
	before bool // a handler
}

func (p planned) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	var batch pgx.Batch
	q := gen.New(queued{&batch})
	_ = q.Plan(ctx)
	batch.Queue(sql, args...)
	if p.before {
		_ = q.Unplan(ctx)
		_ = q.Savepoint(ctx)
	}
	results := p.tx.SendBatch(ctx, &batch)
	if _, err := results.Exec(); err != nil {
		return nil, errors.Join(err, results.Close())
	}
	rows, err := results.Query()
	if err != nil {
		return nil, errors.Join(err, results.Close())
	}
	return &plannedRows{Rows: rows, results: results}, nil
}

func (p planned) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, errors.ErrUnsupported
}

func (p planned) QueryRow(context.Context, string, ...any) pgx.Row { return unsupportedRow{} }

type unsupportedRow struct{}

func (unsupportedRow) Scan(...any) error { return errors.ErrUnsupported }

// plannedRows reads the rest of the batch after its last row, so that an error in it is the query's.
type plannedRows struct {
	pgx.Rows
	results pgx.BatchResults
	err     error
}

func (r *plannedRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *plannedRows) Err() error { return errors.Join(r.Rows.Err(), r.err) }

func (r *plannedRows) Close() {
	r.Rows.Close()
	if err := r.results.Close(); r.err == nil {
		r.err = err
	}
}

// queued puts statements into a batch; what they answer is not asked for.
type queued struct{ batch *pgx.Batch }

func (q queued) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	q.batch.Queue(sql, args...)
	return pgconn.CommandTag{}, nil
}

func (queued) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return nil, errors.ErrUnsupported
}

func (queued) QueryRow(context.Context, string, ...any) pgx.Row { return unsupportedRow{} }
