package faults

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
)

// produce enqueues until ctx ends, each time in a transaction that also notes what it enqueues. Some roll back, some commit
// late, some never learn whether they did.
func (w *world) produce(ctx context.Context, pool *pgxpool.Pool, index int) {
	random := rand.New(rand.NewPCG(w.seed, 1000+uint64(index)))
	for n := int64(index) * 1_000_000_000; ctx.Err() == nil; {
		kind, many := random.IntN(6), []int{1, 1, 1, 1, 20, 50}[random.IntN(6)]
		if random.IntN(40) == 0 && kind < 4 {
			many = 2500 // by COPY, where the kind has no key
		}
		ps := make([]work, many)
		for i := range ps {
			ps[i] = work{N: n, Trouble: random.Uint64()}
			n++
		}
		var opts []jobs.Option
		switch random.IntN(12) {
		case 0:
			opts = append(opts, jobs.Priority(random.IntN(10)))
		case 1:
			opts = append(opts, jobs.In(time.Duration(random.IntN(2000))*time.Millisecond))
		case 2:
			opts = append(opts, jobs.Within(time.Duration(random.IntN(6000)+1)*time.Millisecond))
		}
		late, rollback, regret := time.Duration(0), random.IntN(10) == 0, random.IntN(8) == 0
		if random.IntN(10) == 0 {
			late = time.Duration(random.IntN(2500)) * time.Millisecond
		}
		ids, committed := w.enqueue(ctx, pool, kind, ps, opts, late, rollback)
		if committed {
			w.committed(kinds[kind], ps)
			if regret {
				wait(ctx, time.Duration(random.IntN(30))*time.Millisecond)
				_, _ = jobs.Cancel(ctx, pool, ids[0], "not any more")
			}
		}
		wait(ctx, time.Duration(random.IntN(60))*time.Millisecond)
	}
}

var kinds = []string{plain.Kind, result.Kind, keyed.Kind, inTx.Kind, once.Kind, locked.Kind}

func (w *world) enqueue(ctx context.Context, pool *pgxpool.Pool, kind int, ps []work, opts []jobs.Option, late time.Duration, rollback bool) (ids []int64, committed bool) {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return nil, false
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	switch kinds[kind] {
	case plain.Kind:
		ids, err = enqueue(ctx, tx, plain, ps, opts)
	case result.Kind:
		ids, err = enqueue(ctx, tx, result, ps, opts)
	case keyed.Kind:
		ids, err = enqueue(ctx, tx, keyed, ps, opts)
	case inTx.Kind:
		ids, err = enqueue(ctx, tx, inTx, ps, opts)
	case once.Kind:
		ids, err = enqueue(ctx, tx, once, ps, opts)
	case locked.Kind:
		ids, err = enqueue(ctx, tx, locked, ps, opts)
	}
	if err != nil {
		return nil, false
	}
	ns := make([]int64, len(ps))
	for i, p := range ps {
		ns[i] = p.N
	}
	if _, err := tx.Exec(ctx, `INSERT INTO faults.want (n, kind, job) SELECT unnest($1::bigint[]), $2, unnest($3::bigint[])`, ns, kinds[kind], ids); err != nil {
		return nil, false
	}
	wait(ctx, late)
	if rollback {
		return nil, false
	}
	return ids, tx.Commit(ctx) == nil
}

func enqueue[R any](ctx context.Context, db jobs.DB, s *jobs.Spec[work, R], ps []work, opts []jobs.Option) (ids []int64, err error) {
	refs, err := jobs.EnqueueMany(ctx, db, s, ps, opts...)
	for _, r := range refs {
		ids = append(ids, r.ID)
	}
	return ids, err
}
