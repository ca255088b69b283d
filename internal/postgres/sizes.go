package postgres

import (
	"context"
	"time"
)

// Size is how large a table of the schema is, with its TOAST table, or an index.
type Size struct {
	Table string `json:"table"`
	Index string `json:"index,omitempty"` // "": the table itself
	Bytes int64  `json:"bytes"`
	*Tuples
}

// Tuples is what the server has counted of a table. An immediate shutdown makes it forget.
type Tuples struct {
	Live         int64      `json:"rows"`
	Dead         int64      `json:"dead_rows"`
	AutovacuumAt *time.Time `json:"last_autovacuum"` // nil: never
	VacuumAt     *time.Time `json:"last_vacuum"`
}

// Sizes tells how large the tables of the schema are: each table before its indexes. It fails rather than wait for longer than
// half a second for somebody who has a table for himself.
func (o Operator) Sizes(ctx context.Context) ([]Size, error) {
	rows, err := o.q().Sizes(ctx)
	out := make([]Size, len(rows))
	for i, r := range rows {
		out[i] = Size{Table: r.OfTable, Index: r.IndexName, Bytes: r.Bytes}
		if r.IndexName == "" {
			out[i].Tuples = &Tuples{Live: r.Live, Dead: r.Dead, AutovacuumAt: orNever(r.AutovacuumAt), VacuumAt: orNever(r.VacuumAt)}
		}
	}
	return out, translate(err)
}

func orNever(t time.Time) *time.Time {
	if t.Unix() == 0 {
		return nil
	}
	t = t.UTC()
	return &t
}

// Crew is how many live workers there are with the same queues and kinds.
type Crew struct {
	Queues  []string `json:"queues"`
	Kinds   []string `json:"kinds"`
	Workers int      `json:"workers"`
	Slots   int      `json:"slots"`   // of all of them together
	Running int      `json:"running"` // in how many of these a handler ran at their last heartbeats
	Stuck   int      `json:"stuck"`   // in how many of these one runs on although its context has ended
	Untold  int      `json:"untold"`  // of Workers: do not tell their slots, and Slots and Running are without them
}

// Crews tells which live workers there are, by what they do.
func (o Operator) Crews(ctx context.Context) ([]Crew, error) {
	rows, err := o.q().Crews(ctx)
	out := make([]Crew, len(rows))
	for i, r := range rows {
		out[i] = Crew{Queues: r.Queues, Kinds: r.Kinds, Workers: int(r.Workers), Slots: int(r.Slots), Running: int(r.Running), Stuck: int(r.Stuck), Untold: int(r.Untold)}
	}
	return out, translate(err)
}

// LostWorkers tells how many workers were found dead within d, and for how long none that is on record has been heard of; less
// than 0: none is.
func (o Operator) LostWorkers(ctx context.Context, d time.Duration) (lost int, silent time.Duration, err error) {
	r, err := o.q().LostWorkers(ctx, d.Microseconds())
	if silent = -1; err == nil && orNever(r.HeardAt) != nil {
		silent = max(r.DbNow.Sub(r.HeardAt), 0)
	}
	return int(r.Lost), silent, translate(err)
}
