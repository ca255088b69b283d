package postgres

import (
	"context"
	"time"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

// SetQueue decides about a queue, in db's transaction if it is one, and tells how many live workers poll it. They are told
// when it commits.
func SetQueue(ctx context.Context, db gen.DBTX, name string, d engine.Decision) (workers int, err error) {
	told, err := gen.New(db).SetQueue(ctx, gen.SetQueueParams{Name: name, Paused: d.Paused, Weight: short(d.Weight), Slots: short(d.Slots)})
	return int(told), translate(err)
}

func short(n *int) *int32 {
	if n == nil {
		return nil
	}
	i := int32(*n)
	return &i
}

// Queues lists the queues about which something has been decided and those that live workers poll, by name, and tells the
// database's time.
func (o Operator) Queues(ctx context.Context) (out []engine.ListedQueue, now time.Time, err error) {
	rows, err := o.q().ListQueues(ctx)
	for _, r := range rows {
		out, now = append(out, engine.ListedQueue{Name: r.Name, PausedAt: r.PausedAt, Weight: int(r.Weight), Slots: int(r.Slots), Workers: int(r.Workers)}), r.DbNow
	}
	return out, now, translate(err)
}
