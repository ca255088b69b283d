package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
)

// FleetWorker is a worker process for a person to look at. What is nil its program does not say: it is older.
type FleetWorker struct {
	ID         uuid.UUID
	Host       string
	PID        int
	Build      string
	StartedAt  time.Time
	BeatAt     time.Time
	LeaseUntil time.Time
	LostAt     *time.Time
	Queues     []string
	Kinds      []FleetKind
	Slots      *int
	Running    *int // at the last heartbeat, those that are stuck included
	Stuck      int  // likewise
	Skew       *time.Duration
	Pooled     *bool
}

// FleetKind is a kind that a worker handles.
type FleetKind struct {
	Name    string
	Version int            // 0: its program does not say
	Timeout *time.Duration // 0: none
}

// State is alive; late: no heartbeat for more than half of the lease; expired: the lease has run out, and others are about to
// find that; or lost.
func (w *FleetWorker) State(now time.Time) string {
	switch {
	case w.LostAt != nil:
		return "lost"
	case !w.LeaseUntil.After(now):
		return "expired"
	case now.Sub(w.BeatAt) > w.Lease()/2:
		return "late"
	}
	return "alive"
}

// Lease is what each heartbeat gives.
func (w *FleetWorker) Lease() time.Duration { return w.LeaseUntil.Sub(w.BeatAt) }

// Workers reads the workers on record: first those that count as alive, then those that were lost within a day, the latest
// first.
func (o Operator) Workers(ctx context.Context) (out []FleetWorker, now time.Time, err error) {
	rows, err := o.q().ListWorkers(ctx)
	if err != nil {
		return nil, now, translate(err)
	}
	if len(rows) == 0 {
		now, err = o.Now(ctx)
		return nil, now, err
	}
	for _, r := range rows {
		w := FleetWorker{
			ID: r.ID, Host: r.Host, PID: int(r.Pid), Build: r.Build, StartedAt: r.StartedAt, BeatAt: r.BeatAt, LeaseUntil: r.LeaseUntil, LostAt: r.LostAt,
			Queues: r.Queues, Slots: long(r.Slots), Running: long(r.Running), Stuck: int(r.Stuck), Skew: micro(r.SkewUs), Pooled: r.Pooled,
		}
		for i, name := range r.Kinds {
			k := FleetKind{Name: name}
			if i < len(r.Versions) && i < len(r.TimeoutsUs) {
				k.Version, k.Timeout = int(r.Versions[i]), micro(&r.TimeoutsUs[i])
			}
			w.Kinds = append(w.Kinds, k)
		}
		out, now = append(out, w), r.DbNow
	}
	return out, now, nil
}

func long(n *int32) *int {
	if n == nil {
		return nil
	}
	i := int(*n)
	return &i
}

func micro(us *int64) *time.Duration {
	if us == nil {
		return nil
	}
	d := microseconds(*us)
	return &d
}

// HeldJob is a job that a worker holds. It runs, or, within a second or two of its claim, may still wait in the worker for a slot.
type HeldJob struct {
	ID                   int64
	Kind, Queue          string
	Attempt, MaxAttempts int
	Since                time.Time // its claim, or the start of one that is owned by lock
	Lock                 bool      // owned by lock: it runs for certain
	Asked                bool      // somebody wants it ended
}

// HeldSum is how many jobs a worker holds, as far as was counted, and the oldest of them.
type HeldSum struct {
	Jobs   int
	More   bool
	Oldest HeldJob // its ID, Kind, Since and Lock
}

// heldMost bounds what is read of each worker, startsMost the starts of jobs owned by lock.
const (
	heldMost   = 1000
	heldAll    = 10_000 // of all workers together, but no less than heldLeast of each: a hundred with 4,000 jobs each took 3.4 s without
	heldLeast  = 20
	startsMost = 10_000
)

// HeldSums tells what workers hold: the more of them, the less of each.
func (o Operator) HeldSums(ctx context.Context, workers []uuid.UUID) (map[uuid.UUID]HeldSum, error) {
	most := min(max(heldAll/max(len(workers), 1), heldLeast), heldMost)
	rows, err := o.q().HeldSums(ctx, gen.HeldSumsParams{Workers: workers, N: int32(most) + 1})
	if err != nil {
		return nil, translate(err)
	}
	out := map[uuid.UUID]HeldSum{}
	for _, r := range rows {
		out[r.WorkerID] = HeldSum{Jobs: min(int(r.Held), most), More: int(r.Held) > most, Oldest: HeldJob{ID: r.JobID, Kind: r.Kind, Since: r.ClaimedAt}}
	}
	starts, err := o.q().StartedJobs(ctx, gen.StartedJobsParams{Workers: workers, N: startsMost})
	for _, r := range starts {
		s := out[r.WorkerID]
		if s.Jobs++; s.Jobs == 1 || r.StartedAt.Before(s.Oldest.Since) {
			s.Oldest = HeldJob{ID: r.ID, Kind: r.Kind, Since: r.StartedAt, Lock: true}
		}
		out[r.WorkerID] = s
	}
	return out, translate(err)
}

// HeldJobs lists what a worker holds, the oldest first, n of each way of owning at most.
func (o Operator) HeldJobs(ctx context.Context, worker uuid.UUID, n int) (out []HeldJob, err error) {
	starts, err := o.q().StartedJobs(ctx, gen.StartedJobsParams{Workers: []uuid.UUID{worker}, N: int32(n)})
	if err != nil {
		return nil, translate(err)
	}
	for _, r := range starts {
		out = append(out, HeldJob{
			ID: r.ID, Kind: r.Kind, Queue: r.Queue, Attempt: int(r.Attempt) + 1, MaxAttempts: int(r.MaxAttempts), Since: r.StartedAt, Lock: true,
		})
	}
	rows, err := o.q().HeldJobs(ctx, gen.HeldJobsParams{Worker: worker, N: int32(n)})
	for _, r := range rows {
		out = append(out, HeldJob{
			ID: r.ID, Kind: r.Kind, Queue: r.Queue, Attempt: int(r.Attempt), MaxAttempts: int(r.MaxAttempts), Since: r.ClaimedAt, Asked: r.Asked,
		})
	}
	return out, translate(err)
}
