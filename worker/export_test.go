package worker

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/jobs"
)

// Bench is a worker without its loops: a test enters holds, puts outcomes, and flushes, on the real statements.
type Bench struct{ w *Worker }

// NewBench makes one that is known to the database as owner. The caller closes it.
func NewBench(ctx context.Context, pool *pgxpool.Pool, r *Registry, owner uuid.UUID) (*Bench, error) {
	w, err := New(pool, r, Config{})
	if err != nil {
		return nil, err
	}
	if w.store, err = postgres.Open(ctx, pool); err != nil {
		return nil, err
	}
	self := w.identity()
	self.ID = owner
	w.become(self)
	return &Bench{w}, w.store.Register(ctx, self, w.cfg.Lease)
}

func (b *Bench) Close() { b.w.store.Close() }

// Hold makes a hold of a job of kind; with current, it is the process's present one.
func (b *Bench) Hold(kind string, id, fence int64, current bool) *hold {
	h := &hold{Claimed: &engine.Claimed{ID: id, Fence: fence, Kind: kind, Attempt: 1, MaxAttempts: 5}, handler: b.w.reg.handlers[kind], owner: b.w.self.Load().ID}
	if current {
		b.w.ledger.enter(h.owner, h)
	}
	return h
}

// Put puts an outcome: a success, a failure with err, or with release a giving back.
func (b *Bench) Put(h *hold, err error, release bool) {
	b.w.outcomes.put(outcome{hold: h, err: err, release: release})
}

func (b *Bench) Flush(ctx context.Context) { b.w.flush(ctx, ctx.Done()) }

// Holds is how many are in the ledger.
func (b *Bench) Holds() int {
	_, _, n := b.w.ledger.counts()
	return n
}

// AnswerLost is the claim loop's look for jobs that it holds without knowing, after a claim of which the answer was lost
// and that cannot commit any more since ago.
func (b *Bench) AnswerLost(ctx context.Context, ago time.Duration) {
	u := unseen{worker: b.w}
	u.note(engine.ErrUnknown)
	u.until = now().add(-ago)
	u.giveBack(ctx)
	u.last = 0 // the second look is a second later
	u.giveBack(ctx)
	b.Flush(ctx)
}

// Invoker gives a function that makes one attempt of a job of kind, without a database.
func Invoker(t testing.TB, r *Registry, kind string, ms []jobs.Middleware) func() error {
	w, err := New(nil, r, Config{Middleware: ms})
	if err != nil {
		t.Fatal(err)
	}
	h := &hold{Claimed: &engine.Claimed{ID: 1, Kind: kind, Version: 1, Attempt: 1, MaxAttempts: 5, Payload: []byte("{}")}, handler: w.reg.handlers[kind], ctx: t.Context()}
	return func() error {
		_, err := invoke(h, nil)
		return err
	}
}

// SetDoubtTime sets how long w leaves a job owned by lock to the live worker that has begun it, before Run.
func SetDoubtTime(w *Worker, d time.Duration) { w.doubts.moment = d }

// SetListenCheck sets how long a silent listening connection of w is trusted, before Run.
func SetListenCheck(w *Worker, d time.Duration) {
	open := w.open
	w.open = func(ctx context.Context) (engine.Store, error) {
		s, err := open(ctx)
		if err == nil {
			s.(*postgres.Store).SetListenCheck(d)
		}
		return s, err
	}
}

// PurgeByChunk makes w purge when its upkeep begins, one chunk in each round, before Run.
func PurgeByChunk(w *Worker) { w.purges = purges{more: true} }

// Pause is how long a worker that sleeps, and has found nothing for as long as that takes, pauses if the next job is due in so long.
func Pause(delay, due time.Duration) time.Duration {
	i := idleness{delay: delay}
	return i.until(due)
}
