package postgres

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

// What a look answers with: see engine.
type (
	Level  = engine.Level
	Look   = engine.Look
	Sample = engine.Sample
)

// Bounds of a look. Up to lookWhole pages (80 MB) all are counted; of more, at most lookPages, which hold some thousands of jobs
// and are as many reads from a disk at most.
const (
	lookWhole   = 10_000
	lookPages   = 2_000
	lookClaims  = 200
	lookHeads   = 200  // jobs of each range
	lookQueues  = 200  // queues whose ranges are looked at
	lookDead    = 1000 // dead jobs of each kind
	lookTimeout = 5 * time.Second
	headTimeout = 500 * time.Millisecond // of what a pinned vacuum horizon makes slow
)

// Look is a look at all levels, now. Of a big table it counts a sample of pages, and what is exact and cheap besides: how many
// run, the dead of kinds that have few, and the heads of queues, so short queues as a whole.
func (o Operator) Look(ctx context.Context) (Look, error) {
	tx, err := o.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly})
	if err != nil {
		return Look{}, translate(err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	look, _, err := look(ctx, tx, lookWhole, lookPages)
	return look, translate(err)
}

// look takes several statements, each with a snapshot of its own, so that none is held for long. whole tells whether there is nothing
// of what it has not found; else that may have escaped it.
func look(ctx context.Context, tx pgx.Tx, countable, most int64) (l Look, whole bool, err error) {
	q := gen.New(tx)
	if err := limitLook(ctx, q, lookTimeout); err != nil {
		return l, false, err
	}
	first, err := q.LookFirst(ctx)
	if err != nil {
		return l, false, err
	}
	l = Look{At: first.DbNow, NewestID: first.NewestID, Share: lookShare(first.Pages, countable, most)}
	rows, err := q.LookLevels(ctx, float32(100*l.Share))
	if err != nil {
		return l, false, err
	}
	if l.Share == 1 {
		l.Levels = exactly(rows)
		return l, true, nil
	}
	whole, err = sampled(ctx, tx, &l, rows, lookShare(first.ClaimPages, lookClaims, lookClaims))
	return l, whole, err
}

func limitLook(ctx context.Context, q *gen.Queries, d time.Duration) error {
	return q.LookLimit(ctx, strconv.FormatInt(d.Milliseconds(), 10))
}

// lookShare is the part of so many pages to count: all, or a power of two of which most are not exceeded. By halves, so that the
// pages of one look are among those of the one before, or the other way round.
func lookShare(pages, whole, most int64) float64 {
	if pages <= whole {
		return 1
	}
	return math.Exp2(-math.Ceil(math.Log2(float64(pages) / float64(most))))
}

type queueKind struct{ queue, kind string }

type levels map[queueKind]*Level

func (ls levels) of(queue, kind string) *Level {
	l := ls[queueKind{queue, kind}]
	if l == nil {
		l = &Level{Queue: queue, Kind: kind}
		ls[queueKind{queue, kind}] = l
	}
	return l
}

func (ls levels) sorted() []Level {
	out := make([]Level, 0, len(ls))
	for _, l := range ls {
		if l.Ready+l.Scheduled+l.Running+l.Dead > 0 {
			out = append(out, *l)
		}
	}
	slices.SortFunc(out, func(a, b Level) int { return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Kind, b.Kind)) })
	return out
}

func exactly(rows []gen.LookLevelsRow) []Level {
	ls := levels{}
	for _, r := range rows {
		l := ls.of(r.Queue, r.Kind)
		l.Ready += r.Ready
		l.Scheduled += r.Scheduled
		l.Running += r.Running
		l.Dead += r.Dead
		l.Oldest = max(l.Oldest, microseconds(r.OldestUs))
	}
	return ls.sorted()
}

// span is a range of a queue: what is due of a priority, or what is for later.
type span struct {
	queue    string
	priority int16
	later    bool
}

// sampled completes what was found in a part of the pages.
func sampled(ctx context.Context, tx pgx.Tx, l *Look, rows []gen.LookLevelsRow, claims float64) (whole bool, err error) {
	q := gen.New(tx)
	known, err := q.LookQueues(ctx)
	if err != nil {
		return false, err
	}
	for _, r := range rows {
		known = append(known, r.Queue)
	}
	slices.Sort(known)
	known = slices.Compact(known)
	known = known[:min(len(known), lookQueues)]
	dead, err := q.LookDead(ctx, lookDead)
	if err != nil {
		return false, err
	}
	running, err := q.LookRunning(ctx, float32(100*claims))
	if err != nil {
		return false, err
	}
	heads, err := headsOf(ctx, tx, known)
	if err != nil {
		return false, err
	}
	l.Levels = merge(rows, l.Share, known, heads, dead, running, claims)
	return heads != nil, nil
}

// headsOf is nil if it would have taken too long.
func headsOf(ctx context.Context, tx pgx.Tx, queues []string) ([]gen.LookHeadsRow, error) {
	if err := limitLook(ctx, gen.New(tx), headTimeout); err != nil {
		return nil, err
	}
	inner, err := tx.Begin(ctx) // a savepoint
	if err != nil {
		return nil, err
	}
	heads, err := gen.New(inner).LookHeads(ctx, gen.LookHeadsParams{Queues: queues, N: lookHeads})
	var pg sqlError
	switch {
	case err == nil:
		if heads == nil {
			heads = []gen.LookHeadsRow{}
		}
		err = inner.Commit(ctx)
	case errors.As(err, &pg) && pg.SQLState() == queryCanceled && ctx.Err() == nil:
		heads, err = nil, inner.Rollback(ctx)
	}
	if err != nil {
		return nil, err
	}
	return heads, limitLook(ctx, gen.New(tx), lookTimeout)
}

const queryCanceled = "57014"

// merge puts together what was found in a share of the pages and what is exact. heads are nil if they are not known.
func merge(rows []gen.LookLevelsRow, share float64, queues []string, heads []gen.LookHeadsRow, dead []gen.LookDeadRow, running []gen.LookRunningRow, claims float64) []Level {
	ls := levels{}
	// What the sample says of each kind in each range, and what the heads say of it.
	type part struct {
		span
		kind string
	}
	estimates := map[part]int64{}
	estimated := levels{}
	for _, r := range rows {
		estimates[part{span{r.Queue, r.Priority, false}, r.Kind}] = scaled(r.Ready, share)
		estimates[part{span{r.Queue, r.Priority, true}, r.Kind}] = scaled(r.Scheduled, share)
		estimated.of(r.Queue, r.Kind).Dead += scaled(r.Dead, share)
		l := ls.of(r.Queue, r.Kind)
		l.Oldest = max(l.Oldest, microseconds(r.OldestUs))
	}
	counted := map[part]int64{}
	whole := map[span]int64{}
	for _, h := range heads {
		s := span{h.Queue, h.Priority, h.Later}
		counted[part{s, h.Kind}] = h.N
		whole[s] += h.N
		if !h.Later {
			l := ls.of(h.Queue, h.Kind)
			l.Oldest = max(l.Oldest, microseconds(h.OldestUs))
		}
	}
	put := func(p part, n int64) {
		if l := ls.of(p.queue, p.kind); p.later {
			l.Scheduled += n
		} else {
			l.Ready += n
		}
	}
	exact := func(s span) bool {
		_, asked := slices.BinarySearch(queues, s.queue)
		return heads != nil && asked && whole[s] < lookHeads
	}
	for p, n := range estimates {
		if !exact(p.span) {
			put(p, max(n, counted[p]))
		}
	}
	for p, n := range counted {
		if _, both := estimates[p]; exact(p.span) || !both {
			put(p, n)
		}
	}
	ofKind := map[string]int64{}
	for _, d := range dead {
		ofKind[d.Kind] += d.N
		ls.of(d.Queue, d.Kind).Dead = d.N
	}
	for k, e := range estimated {
		if ofKind[k.kind] >= lookDead {
			l := ls.of(k.queue, k.kind)
			l.Dead = max(l.Dead, e.Dead)
		}
	}
	for _, r := range running {
		ls.of(r.Queue, r.Kind).Running = scaled(r.N, claims)
	}
	for _, l := range ls {
		if l.Ready == 0 {
			l.Oldest = 0
		}
	}
	return ls.sorted()
}

func scaled(n int64, share float64) int64 { return int64(math.Round(float64(n) / share)) }

func microseconds(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// Samples is what has been counted since so long ago, by minute, the oldest first; what is not known yet of the last minute, or of
// the one before, comes later.
func (o Operator) Samples(ctx context.Context, since time.Duration) ([]Sample, error) {
	rows, err := o.q().Samples(ctx, since.Microseconds())
	out := make([]Sample, len(rows))
	for i, r := range rows {
		out[i] = Sample{Minute: r.Minute, Queue: r.Queue, Kind: r.Kind,
			Arrived: r.Arrived, Succeeded: r.Succeeded, Failed: r.Failed, TimedOut: r.TimedOut, Snoozed: r.Snoozed, Cancelled: r.Cancelled,
			Died: r.Died, Reclaimed: r.Reclaimed, RunTime: microseconds(r.RunUs), RunTimes: r.RunTimes,
		}
		if r.Ready != nil {
			out[i].Level = &Level{
				Queue: r.Queue, Kind: r.Kind, Ready: *r.Ready, Scheduled: deref(r.Scheduled), Running: deref(r.Running), Dead: deref(r.Dead),
				Oldest: microseconds(deref(r.OldestUs)),
			}
		}
	}
	return out, translate(err)
}

// Looks are when the fleet looked, since so long ago, without the levels: in a minute with a look, what has no sample was zero;
// in one without, nothing is known.
func (o Operator) Looks(ctx context.Context, since time.Duration) ([]Look, error) {
	rows, err := o.q().Looks(ctx, since.Microseconds())
	out := make([]Look, len(rows))
	for i, r := range rows {
		out[i] = Look{At: r.TakenAt, NewestID: r.NewestID, Share: float64(r.Share)}
	}
	return out, translate(err)
}

// Totals are the sums since ever, by queue and kind, without levels. They only grow.
func (o Operator) Totals(ctx context.Context) ([]Sample, error) {
	rows, err := o.q().Unsummed(ctx)
	if err != nil {
		return nil, translate(err)
	}
	sums := map[queueKind]*Sample{}
	for _, r := range rows {
		k := queueKind{r.Queue, r.Kind}
		if sums[k] == nil {
			sums[k] = &Sample{Queue: r.Queue, Kind: r.Kind}
		}
		sums[k].Add(&Sample{
			Arrived: r.Arrived, Succeeded: r.Succeeded, Failed: r.Failed, TimedOut: r.TimedOut, Snoozed: r.Snoozed, Cancelled: r.Cancelled,
			Died: r.Died, Reclaimed: r.Reclaimed, RunTime: microseconds(r.RunUs), RunTimes: r.RunTimes,
		})
	}
	out := make([]Sample, 0, len(sums))
	for _, s := range slices.SortedFunc(maps.Values(sums), func(a, b *Sample) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Kind, b.Kind))
	}) {
		out = append(out, *s)
	}
	return out, nil
}
