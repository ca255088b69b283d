package postgres

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

func (s *Store) Sample(ctx context.Context, counts []engine.Sample, ago time.Duration) (engine.Horizon, error) {
	slices.SortFunc(counts, func(a, b engine.Sample) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Kind, b.Kind))
	})
	n := len(counts)
	numbers := make([]int64, 8*n)
	column := func(i int) []int64 { return numbers[i*n : (i+1)*n] }
	arg := gen.SampleParams{
		AgoUs: ago.Microseconds(), Buckets: engine.RunTimeBuckets, RunTimes: make([]int64, n*engine.RunTimeBuckets), Lengths: make([]int32, n),
		Queues: make([]string, n), Kinds: make([]string, n), Arrived: column(0), Succeeded: column(1), Failed: column(2), TimedOut: column(3),
		Snoozed: column(4), Cancelled: column(5), Died: column(6), RunUs: column(7),
	}
	for i, c := range counts {
		arg.Queues[i], arg.Kinds[i], arg.Arrived[i], arg.Succeeded[i], arg.Failed[i] = c.Queue, c.Kind, c.Arrived, c.Succeeded, c.Failed
		arg.TimedOut[i], arg.Snoozed[i], arg.Cancelled[i], arg.Died[i], arg.RunUs[i] = c.TimedOut, c.Snoozed, c.Cancelled, c.Died, c.RunTime.Microseconds()
		for b, times := range c.RunTimes {
			if arg.RunTimes[i*engine.RunTimeBuckets+b] = times; times > 0 {
				arg.Lengths[i] = int32(b + 1)
			}
		}
	}
	row, err := s.q.Sample(ctx, arg)
	if err != nil || len(row.Newest) == 0 {
		return engine.Horizon{}, translate(err)
	}
	h := engine.Horizon{Since: row.Newest[0], Next: row.Newest[0], Known: true}
	if row.Current {
		h.Since, h.Known = 0, len(row.Newest) > 1
		if h.Known {
			h.Since = row.Newest[1]
		}
	}
	return h, nil
}

// Bounds of what a look reads of the jobs that have arrived.
const (
	arrivalIDs    = 50_000
	arrivalRanges = 100
)

// Look takes one look a minute in the whole fleet. What has arrived it learns from ids: of those that were drawn between the two looks
// before this one, it counts the jobs that are still there, and the others were counted by the workers that have ended them since
// (Horizon), or are found among those that were cancelled while they waited. So the jobs of a transaction that lasts for up to a minute are counted too, and what little is left of many ids is
// counted as well as what comes and goes at once.
func (s *Store) Look(ctx context.Context) (taken bool, err error) {
	err = s.work.begin(ctx, func(tx pgx.Tx) error {
		q := gen.New(tx)
		if taken, err = q.LookTurn(ctx); err != nil || !taken {
			return err
		}
		if err := q.MendLooks(ctx); err != nil {
			return err
		}
		l, whole, err := look(ctx, tx, lookWhole, lookPages)
		if err != nil {
			return err
		}
		arg := gen.PutLookParams{At: l.At, NewestID: l.NewestID, Share: float32(l.Share), Whole: whole}
		for _, v := range l.Levels {
			arg.Queues, arg.Kinds, arg.OldestUs = append(arg.Queues, v.Queue), append(arg.Kinds, v.Kind), append(arg.OldestUs, v.Oldest.Microseconds())
			arg.Ready, arg.Scheduled = append(arg.Ready, v.Ready), append(arg.Scheduled, v.Scheduled)
			arg.Running, arg.Dead = append(arg.Running, v.Running), append(arg.Dead, v.Dead)
		}
		if err := between(ctx, q, &arg); err != nil {
			return err
		}
		_, err = q.PutLook(ctx, arg)
		return err
	})
	return taken && err == nil, translate(err)
}

// between adds what has happened between the two looks before this one and has not been counted by a worker: what has arrived and is still there,
// and what was cancelled while it waited.
func between(ctx context.Context, q *gen.Queries, arg *gen.PutLookParams) error {
	last, err := q.LastLooks(ctx)
	if err != nil || len(last) == 0 {
		return err
	}
	arg.Before = last[0].Minute
	if len(last) < 2 {
		return nil
	}
	arg.Since = last[0].Minute.Add(-time.Minute)
	type count struct{ arrived, cancelled int64 }
	counts := map[queueKind]*count{}
	of := func(queue, kind string) *count {
		k := queueKind{queue, kind}
		if counts[k] == nil {
			counts[k] = &count{}
		}
		return counts[k]
	}
	if last[1].NewestID < last[0].NewestID {
		afters, uptos, share := idRanges(last[1].NewestID, last[0].NewestID)
		rows, err := q.LookArrivals(ctx, gen.LookArrivalsParams{Afters: afters, Uptos: uptos})
		if err != nil {
			return err
		}
		for _, r := range rows {
			of(r.Queue, r.Kind).arrived = scaled(r.N, share)
		}
	}
	// What was cancelled then and had been drawn before the look before these two, that one or an earlier one has seen.
	rows, err := q.LookCancelled(ctx, gen.LookCancelledParams{After: last[1].TakenAt, Upto: last[0].TakenAt, Seen: last[len(last)-1].NewestID})
	for _, r := range rows {
		c := of(r.Queue, r.Kind)
		c.cancelled = r.N
		c.arrived += r.Arrived
	}
	for k, c := range counts {
		arg.OfQueues, arg.OfKinds, arg.Arrived, arg.Cancelled = append(arg.OfQueues, k.queue), append(arg.OfKinds, k.kind), append(arg.Arrived, c.arrived), append(arg.Cancelled, c.cancelled)
	}
	return err
}

// idRanges are the ids to look at between two, and which part of all they are: as a rule all; of many, some ranges that are spread
// evenly.
func idRanges(after, upto int64) (afters, uptos []int64, share float64) {
	if upto-after <= arrivalIDs {
		return []int64{after}, []int64{upto}, 1
	}
	step := (upto - after) / arrivalRanges
	for i := range int64(arrivalRanges) {
		afters = append(afters, after+i*step)
		uptos = append(uptos, after+i*step+arrivalIDs/arrivalRanges)
	}
	return afters, uptos, float64(arrivalIDs) / float64(upto-after)
}
