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
	batch, _, err := w.store.Claim(ctx, &self, w.marks.leftEnd(), false, 1)
	if err != nil || len(batch) == 0 {
		return false, err
	}
	h := &hold{Claimed: batch[0], handler: w.reg.handlers[batch[0].Kind], owner: self.ID}
	w.ledger.add(self.ID, []*hold{h})
	w.ledger.start(ctx)
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
	w.ledger.returned(h)
	w.conclude(o, nil)
	w.flush(ctx, ctx.Done())
	return true, nil
}
