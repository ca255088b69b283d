package worker

import (
	"context"
	"errors"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/crash"
	"github.com/jobgen-go/jobgen/internal/engine"
)

func init() { crash.Run = crashAt }

// errKilled rolls a handler's transaction back as the end of its connection would.
var errKilled = errors.New("worker: killed by the test")

// crashAt is one job's way through a worker without its loops, left at a point. Its worker row is that of another process,
// since this one lives.
func crashAt(ctx context.Context, pool *pgxpool.Pool, registry any, queue string, log *slog.Logger, at crash.Point) (found bool, err error) {
	w, err := New(pool, registry.(*Registry), Config{Queues: []string{queue}, Logger: log})
	if err != nil {
		return false, err
	}
	if w.store, err = w.open(ctx); err != nil {
		return false, err
	}
	defer w.store.Close()
	w.handlers = ctx
	self := w.identity()
	self.PID = 0
	if err := w.register(ctx, self); err != nil {
		return false, err
	}
	w.become(self)
	if w.reg.locking() {
		if found, err = w.crashLocked(ctx, &self, at); err != nil || found {
			return found, err
		}
	}
	if !w.reg.leasing() {
		return false, nil
	}
	batch, _, err := w.store.Claim(ctx, &self, w.marks.leftEnd(), nil, false, 1)
	if err == nil && len(batch) == 0 {
		batch, err = w.store.ClaimSuspect(ctx, &self)
	}
	if err != nil || len(batch) == 0 {
		return false, err
	}
	h := &hold{Claimed: &batch[0], handler: w.reg.handlers[batch[0].Kind], owner: self.ID}
	w.ledger.add(self.ID, []*hold{h})
	w.ledger.start(ctx, nil)
	if at == crash.AfterClaim {
		return true, nil
	}
	o := outcome{hold: h, stored: h.handler.tx != nil}
	if !o.stored {
		if o.result, o.err = invoke(h, nil); at != crash.AfterCommit {
			return true, nil // what the handler did stands; nobody has heard of it
		}
	} else {
		o.err = w.store.InTx(h.ctx, self.ID, func(tx any, finish func(engine.Success) error) error {
			result, err := invoke(h, tx)
			if err != nil {
				return err
			}
			if at == crash.AfterEffects {
				return errKilled
			}
			if err := finish(h.success(result)); err != nil || at == crash.AfterCommit {
				return err
			}
			return errKilled
		})
		if errors.Is(o.err, errKilled) {
			return true, nil
		}
	}
	w.conclude(o, nil, w.ledger.returned(h))
	w.flush(ctx, ctx.Done())
	return true, nil
}

// crashLocked is crashAt for a job owned by lock: with the process goes its transaction, and the mark of its start stays.
func (w *Worker) crashLocked(ctx context.Context, self *engine.Worker, at crash.Point) (found bool, err error) {
	job, err := w.store.Lock(ctx, self, w.marks.leftEnd(), nil)
	if err == nil && job == nil {
		job, err = w.store.LockSuspect(ctx, self, nil)
	}
	if err != nil || job == nil {
		return false, err
	}
	c, _ := job.Job()
	h := &hold{Claimed: c, handler: w.reg.handlers[c.Kind], owner: self.ID, entered: now(), locked: true}
	if _, err := w.store.Start(ctx, self.ID, []int64{h.ID}, []bool{true}); err != nil || at == crash.AfterClaim {
		job.Rollback(ctx)
		return true, err
	}
	w.ledger.seize(h, ctx)
	result, err := invoke(h, job.Tx())
	if at != crash.AfterCommit {
		job.Rollback(ctx)
		return true, nil
	}
	if err == nil {
		err = job.Finish(ctx, self.ID, h.success(result))
	}
	if w.ledger.returned(h); err != nil && w.adopt(job, h, err) {
		w.conclude(outcome{hold: h, err: err}, nil, true)
		w.flush(ctx, ctx.Done())
	}
	return true, nil
}
