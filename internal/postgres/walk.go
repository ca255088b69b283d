package postgres

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"time"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

// A statement of a walk looks at so many jobs that it takes about walkTime: no snapshot is held for long, and a person sees it
// move.
const (
	walkFirst = 2_000
	walkMost  = 100_000
	walkTime  = 250 * time.Millisecond
)

// Walk finds the jobs that a filter selects, some at a time. Of each call of Next it looks at the next part of what there is by
// the narrowest way to it: the ids; what runs, as the workers' claims name it; what is dead; the job that has a key; else all.
type Walk struct {
	Looked int64 // at so many jobs
	First  int64 // the id at which it began; 0: it has not
	At     int64 // the last id it has looked at
	Last   int64 // where it ends if nothing ends it before

	op    Operator
	f     engine.Filter
	route string
	down  bool
	high  int64 // upwards, the highest id; downwards, of what is left to look at
	low   int64
	ids   []int64 // what is left of them
	n     int
	done  bool
}

// Walk begins a walk: down, from id high to older ones; else from the oldest one up to high, so each job is met once, whatever
// becomes of it meanwhile, and what is enqueued meanwhile is not. 0 is the newest one.
func (o Operator) Walk(ctx context.Context, f engine.Filter, down bool, high int64) (*Walk, error) {
	if high == 0 {
		var err error
		if high, err = o.q().NewestID(ctx); err != nil {
			return nil, translate(err)
		}
	}
	w := &Walk{op: o, f: f, down: down, high: high, n: walkFirst, route: "up", Last: high}
	if down {
		w.route, w.Last = "down", 0
	}
	var err error
	switch {
	case len(f.IDs) > 0:
		w.ids = slices.Clone(f.IDs)
	case slices.Equal(f.Statuses, []string{"running"}):
		w.ids, err = o.q().RunningIDs(ctx)
	case slices.Equal(f.Statuses, []string{"dead"}):
		w.route = "dead " + w.route
		return w, nil
	case f.Key != "":
		w.ids, err = o.q().KeyIDs(ctx, f.Key)
	default:
		return w, nil
	}
	if w.route = "ids"; down {
		slices.SortFunc(w.ids, func(a, b int64) int { return int(b - a) })
	}
	w.done = len(w.ids) == 0
	return w, translate(err)
}

// All tells whether the walk looks at all jobs that there are.
func (w *Walk) All() bool { return w.route == "up" || w.route == "down" }

// Done tells that there is nothing left to look at.
func (w *Walk) Done() bool { return w.done }

// Next looks on, for a moment, and gives what it has found: at most so many ids, and possibly none although there are more to come.
func (w *Walk) Next(ctx context.Context, most int) ([]int64, error) {
	if w.done {
		return nil, nil
	}
	wants, err := encodeWants(w.f.Payload)
	if err != nil {
		return nil, err
	}
	n := min(w.n, max(len(w.ids), 1))
	if w.route != "ids" {
		n = w.n
	}
	began := time.Now() //nolint:forbidigo // an interval, which decides only how much the next step looks at
	row, err := w.op.q().Walk(ctx, gen.WalkParams{
		Route: w.route, N: int32(n), Most: int32(most), Low: w.low, High: w.high, Ids: orEmpty(w.ids[:min(n, len(w.ids))]),
		Kinds: orEmpty(w.f.Kinds), Queues: orEmpty(w.f.Queues), Statuses: orEmpty(w.f.Statuses), Key: w.f.Key,
		CreatedBefore: w.f.CreatedBefore, CreatedAfter: w.f.CreatedAfter, DueBefore: w.f.DueBefore, Error: w.f.Error, Wants: wants,
	})
	if err != nil {
		return nil, translate(err)
	}
	switch took := time.Since(began); { //nolint:forbidigo // the same
	case took < walkTime/2 && row.Looked >= int64(n):
		w.n = min(w.n*2, walkMost)
	case took > walkTime*2:
		w.n = max(w.n/2, walkFirst/4)
	}
	w.Looked += row.Looked
	if w.First == 0 {
		w.First = row.FirstID
	}
	switch {
	case w.route == "ids":
		w.ids = w.ids[row.Looked:]
		w.done = len(w.ids) == 0
	case !row.More:
		w.done, w.At = true, w.Last
	case w.down:
		w.At, w.high = row.LastID, row.LastID-1
	default:
		w.At, w.low = row.LastID, row.LastID
	}
	return row.Ids, nil
}

// encodeWants gives what the payload must have as the statement takes it; "": nothing.
func encodeWants(wants []engine.Want) (string, error) {
	if len(wants) == 0 {
		return "", nil
	}
	b, err := json.Marshal(wants)
	return string(b), err
}

// NextArchived looks at the next n jobs that have left jobs and stay on record, from high down, and gives those that the
// filter selects, and where to go on; 0: that was all.
func (o Operator) NextArchived(ctx context.Context, f engine.Filter, high int64, n, most int) (found []engine.Archived, next, looked int64, err error) {
	wants, err := encodeWants(f.Payload)
	if err != nil {
		return nil, 0, 0, err
	}
	if high == 0 {
		high = math.MaxInt64
	}
	row, err := o.q().WalkArchive(ctx, gen.WalkArchiveParams{
		High: high, N: int32(n), Most: int32(most), Kinds: orEmpty(f.Kinds), Queues: orEmpty(f.Queues), Statuses: orEmpty(f.Statuses), Key: f.Key,
		CreatedBefore: f.CreatedBefore, CreatedAfter: f.CreatedAfter, Error: f.Error, Wants: wants,
	})
	if err != nil {
		return nil, 0, 0, translate(err)
	}
	if row.More {
		next = row.LastID - 1
	}
	if len(row.Ids) > 0 {
		found, err = archived(ctx, o.q(), row.Ids)
		slices.SortFunc(found, func(a, b engine.Archived) int { return int(b.ID - a.ID) })
	}
	return found, next, row.Looked, err
}

// Tally is how many jobs are of a status, kind and queue.
type Tally struct {
	Status string    `json:"status"`
	Kind   string    `json:"kind"`
	Queue  string    `json:"queue"`
	N      int64     `json:"jobs"`
	Oldest time.Time `json:"oldest"` // when the oldest was enqueued
}

// Tally counts jobs by what they are.
func (o Operator) Tally(ctx context.Context, ids []int64) ([]Tally, error) {
	rows, err := o.q().TallyJobs(ctx, ids)
	out := make([]Tally, len(rows))
	for i, r := range rows {
		out[i] = Tally(r)
	}
	return out, translate(err)
}

// Requeue gives dead jobs a fresh start, due after a delay and spread over a while. taken are those that stay dead because their key is another job's by
// now: KeyHolders tells whose.
func (o Operator) Requeue(ctx context.Context, ids []int64, delay, spread time.Duration) (requeued, taken []int64, err error) {
	rows, err := o.q().RequeueJobs(ctx, gen.RequeueJobsParams{Ids: ids, DelayUs: delay.Microseconds(), SpreadUs: spread.Microseconds()})
	for _, r := range rows {
		if r.Requeued {
			requeued = append(requeued, r.ID)
		} else {
			taken = append(taken, r.ID)
		}
	}
	return requeued, taken, translate(err)
}

// KeyHolder is who has the key of a job that is not its own.
type KeyHolder struct {
	Key        string     `json:"key"`
	Job        int64      `json:"job_id,omitempty"` // 0: nobody
	Status     string     `json:"status,omitempty"` // "": it is not in jobs
	Finished   bool       `json:"finished,omitempty"`
	FinishedAt *time.Time `json:"-"`
	ExpiresAt  *time.Time `json:"-"`
	Expired    bool       `json:"expired,omitempty"`
}

// Free tells whether the next one who asks for the key gets it.
func (h KeyHolder) Free() bool { return h.Expired || !h.Finished && h.Status == "" }

// KeyHolders tells who has the keys of jobs, of those that have not got it themselves.
func (o Operator) KeyHolders(ctx context.Context, ids []int64) (map[int64]KeyHolder, error) {
	rows, err := o.q().KeyHolders(ctx, ids)
	out := map[int64]KeyHolder{}
	for _, r := range rows {
		out[r.ID] = KeyHolder{Key: r.Key, Job: r.Holder, Status: r.Status, Finished: r.FinishedAt != nil, FinishedAt: r.FinishedAt, ExpiresAt: r.ExpiresAt, Expired: r.Expired}
	}
	return out, translate(err)
}

// Delete removes jobs that are queued or dead, as statuses says, and tells which.
func (o Operator) Delete(ctx context.Context, ids []int64, statuses []string, reason string) ([]int64, error) {
	gone, err := o.q().DeleteJobs(ctx, gen.DeleteJobsParams{Ids: ids, Statuses: statuses, Reason: reason})
	return gone, translate(err)
}

// CancelMany is Cancel for jobs of a status, without a second try: it answers for those it has cancelled, or asked the worker of.
func (o Operator) CancelMany(ctx context.Context, ids []int64, statuses []string, reason string) (cancelled, asked []int64, err error) {
	rows, err := gen.New(fresh(o.Pool)).Cancel(ctx, gen.CancelParams{
		Ids: ids, Kinds: []string{}, Statuses: orEmpty(statuses), Reason: reason, KeepUs: engine.KeepCancelled.Microseconds(),
	})
	for _, r := range rows {
		switch r.Answer {
		case engine.StatusCancelled:
			cancelled = append(cancelled, r.ID)
		case engine.StatusAsked:
			asked = append(asked, r.ID)
		}
	}
	return cancelled, asked, translate(err)
}

// Editable is a job as Edit found it.
type Editable struct {
	engine.Job
	Seen string // the row's version
	Now  time.Time
}

// Editable reads a job that is to be edited; pgx.ErrNoRows: there is none.
func (o Operator) Editable(ctx context.Context, id int64) (Editable, error) {
	r, err := o.q().EditableJob(ctx, id)
	return Editable{Job: engine.Job{
		ID: r.ID, Status: r.Status, Kind: r.Kind, Key: deref(r.Key), Queue: r.Queue, Priority: int(r.Priority), RunAt: r.RunAt, Attempt: int(r.Attempt),
		MaxAttempts: int(r.MaxAttempts), Deadline: r.Deadline, Payload: r.Payload,
	}, Seen: r.Seen, Now: r.DbNow}, translate(err)
}

// Edit is what to change of a job; nil leaves as it is.
type Edit struct {
	Payload               json.RawMessage
	Queue                 *string
	Priority, MaxAttempts *int
	NoDeadline            bool
	Deadline              *time.Time
	Within                *time.Duration // a deadline from now
	At                    *time.Time
	Delay                 *time.Duration
}

// Edit changes a job if it is as it was seen, and tells whether it was.
func (o Operator) Edit(ctx context.Context, seen Editable, e Edit) (bool, error) {
	arg := gen.EditJobParams{ID: seen.ID, Seen: seen.Seen, Queue: e.Queue, NoDeadline: e.NoDeadline, Deadline: e.Deadline, At: e.At,
		MaxAttempts: short(e.MaxAttempts), WithinUs: micros(e.Within), DelayUs: micros(e.Delay)}
	if e.Payload != nil {
		text := string(e.Payload)
		arg.Payload = &text
	}
	if e.Priority != nil {
		p := int16(*e.Priority)
		arg.Priority = &p
	}
	ids, err := o.q().EditJob(ctx, arg)
	return len(ids) > 0, translate(err)
}

func micros(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	us := d.Microseconds()
	return &us
}
