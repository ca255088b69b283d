package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

// Operator is what a person who operates a queue does to a database. It works on the pool it is given.
type Operator struct{ Pool *pgxpool.Pool }

func (o Operator) q() *gen.Queries { return gen.New(o.Pool) }

// Check tells whether the database is there and migrated. It may be read-only: looking works on a standby too.
func (o Operator) Check(ctx context.Context) error {
	if err := checkVersion(ctx, o.q()); !errors.Is(err, errReadOnly) {
		return err
	}
	row, err := o.q().SchemaVersion(ctx)
	if err != nil {
		return explain(err)
	}
	return compare(ctx, o.q(), row.Version)
}

// Now is the database's time.
func (o Operator) Now(ctx context.Context) (time.Time, error) {
	now, err := o.q().Now(ctx)
	return now, translate(err)
}

// List reads jobs by their ids, newest first. Those that have left jobs are left out.
func (o Operator) List(ctx context.Context, ids []int64) (out []engine.Job, err error) {
	rows, err := o.q().ListJobs(ctx, orEmpty(ids))
	out = make([]engine.Job, len(rows))
	for i, r := range rows {
		out[i] = engine.Job{
			ID: r.ID, Status: r.Status, Queue: r.Queue, Kind: r.Kind, Key: deref(r.Key), Version: int(r.Version), Priority: int(r.Priority),
			Attempt: int(r.Attempt), MaxAttempts: int(r.MaxAttempts), Crashes: int(r.Crashes), RunAt: r.RunAt, CreatedAt: r.CreatedAt, LastError: r.LastError,
		}
		if r.WorkerID != uuid.Nil {
			out[i].WorkerID = &r.WorkerID
		}
		if r.ClaimedAt.Unix() != 0 {
			out[i].ClaimedAt = &r.ClaimedAt
		}
	}
	return out, translate(err)
}

// wholeJob is a row of jobs with its payload and headers.
func wholeJob(r gen.ShowJobRow) (engine.Job, error) {
	j := engine.Job{
		ID: r.ID, Status: r.Status, Queue: r.Queue, Kind: r.Kind, Key: deref(r.Key), Version: int(r.Version), Priority: int(r.Priority),
		Attempt: int(r.Attempt), MaxAttempts: int(r.MaxAttempts), Crashes: int(r.Crashes), RunAt: r.RunAt, CreatedAt: r.CreatedAt,
		ClaimedAt: r.ClaimedAt, WorkerID: r.WorkerID, LastError: r.LastError, Payload: r.Payload,
		Deadline: r.Deadline, Snoozes: int(r.Snoozes), Cancel: r.CancelReason,
	}
	var err error
	j.Headers, err = decodeHeaders(r.ID, r.Headers)
	return j, err
}

func decodeHeaders(id int64, b []byte) (h map[string]string, err error) {
	if len(b) > 0 {
		if err := json.Unmarshal(b, &h); err != nil {
			return nil, fmt.Errorf("headers of job %d do not decode: %w", id, err)
		}
	}
	return h, nil
}

// Story is all that is on record of a job.
type Story struct {
	Job      *engine.Job
	Result   *engine.Result
	Archived *engine.Archived
	Attempts []engine.Attempt
	Holder   *KeyHolder // who has its key, if that is not simply the job itself
	Worker   *Runner    // of a job that runs; nil: it is not on record
	Drawn    int64      // the last id that has been drawn
}

// Runner is the worker that has a job.
type Runner struct {
	ID         uuid.UUID  `json:"id"`
	Host       string     `json:"host"`
	PID        int        `json:"pid"`
	Build      string     `json:"build"`
	StartedAt  time.Time  `json:"started_at"`
	BeatAt     time.Time  `json:"beat_at"`
	LeaseUntil time.Time  `json:"lease_until"`
	LostAt     *time.Time `json:"lost_at,omitempty"`
	Alive      bool       `json:"alive"` // its lease stands
}

// Show finds all that is on record of a job. It reads everything in one snapshot, so that a job that finishes meanwhile is
// not seen twice or not at all.
func (o Operator) Show(ctx context.Context, id int64) (s Story, err error) {
	tx, err := o.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return s, translate(err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	q := gen.New(tx)
	switch r, err := q.ShowJob(ctx, id); {
	case err == nil:
		j, err := wholeJob(r)
		if err != nil {
			return s, err
		}
		s.Job = &j
		if j.Status == "queued" {
			starts, err := q.ShowStart(ctx, id)
			if err != nil {
				return s, translate(err)
			}
			for _, start := range starts {
				j.Status, j.WorkerID, j.ClaimedAt = "running", &start.WorkerID, &start.StartedAt
				j.Attempt++ // it counts once it has ended
			}
		}
	case !errors.Is(err, pgx.ErrNoRows):
		return s, translate(err)
	}
	found, err := results(ctx, q, []int64{id}, true)
	if err != nil {
		return s, err
	}
	if len(found) > 0 {
		s.Result = &found[0]
	}
	archived, err := archived(ctx, q, []int64{id})
	if err != nil {
		return s, err
	}
	if len(archived) > 0 {
		s.Archived = &archived[0]
	}
	attempts, err := q.ShowAttempts(ctx, id)
	s.Attempts = make([]engine.Attempt, len(attempts))
	for i, a := range attempts {
		s.Attempts[i] = engine.Attempt{
			Attempt: int(a.Attempt), Fence: a.Fence, WorkerID: a.WorkerID, StartedAt: a.StartedAt, EndedAt: a.EndedAt, Outcome: a.Outcome, Error: a.Error,
			Host: a.Host, PID: int(a.Pid),
		}
	}
	if err != nil {
		return s, translate(err)
	}
	if err := showAround(ctx, q, id, &s); err != nil {
		return s, err
	}
	return s, nil
}

// showAround finds what concerns a job beside its own rows: who has its key, and who runs it.
func showAround(ctx context.Context, q *gen.Queries, id int64, s *Story) (err error) {
	if s.Drawn, err = q.DrawnID(ctx); err != nil {
		return translate(err)
	}
	kind, key := "", ""
	switch {
	case s.Job != nil:
		kind, key = s.Job.Kind, s.Job.Key
	case s.Archived != nil:
		kind, key = s.Archived.Kind, s.Archived.Key
	}
	if key != "" {
		r, err := q.KeyState(ctx, gen.KeyStateParams{Kind: kind, Key: key})
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			s.Holder = &KeyHolder{Key: key}
		case err != nil:
			return translate(err)
		case r.JobID != id || r.Finished:
			s.Holder = &KeyHolder{Key: key, Job: r.JobID, Status: r.Status, Finished: r.Finished, Expired: r.Expired}
		}
	}
	if s.Job == nil || s.Job.WorkerID == nil {
		return nil
	}
	w, err := q.ShowWorker(ctx, *s.Job.WorkerID)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	s.Worker = &Runner{ID: w.ID, Host: w.Host, PID: int(w.Pid), Build: w.Build, StartedAt: w.StartedAt, BeatAt: w.BeatAt, LeaseUntil: w.LeaseUntil, LostAt: w.LostAt, Alive: w.Alive}
	return translate(err)
}

// Waits is what stands between a queued job and its start.
type Waits struct {
	PausedAt *time.Time `json:"paused_at,omitempty"` // its queue
	Polls    int        `json:"polls"`               // live workers that poll its queue
	Handles  int        `json:"handles"`             // of these, those that handle its kind
	Reads    int        `json:"reads"`               // of these, those that read its version
	Ahead    int        `json:"ahead"`               // due jobs of its queue before it; AheadMost: or more
}

// AheadMost is up to where the jobs before another are counted.
const AheadMost = 10_000

// Waits tells why a queued job waits.
func (o Operator) Waits(ctx context.Context, j *engine.Job) (Waits, error) {
	r, err := o.q().WhyWaits(ctx, gen.WhyWaitsParams{
		Queue: j.Queue, Kind: j.Kind, Version: int32(j.Version), Priority: int32(j.Priority), RunAt: j.RunAt, ID: j.ID, Most: AheadMost,
	})
	return Waits{PausedAt: r.PausedAt, Polls: int(r.Polls), Handles: int(r.Handles), Reads: int(r.Reads), Ahead: int(r.Ahead)}, translate(err)
}

// Cancel is Producer.Cancel for a job of any kind.
func (o Operator) Cancel(ctx context.Context, id int64, reason string) (string, error) {
	return Producer{DB: o.Pool}.Cancel(ctx, nil, id, reason)
}

// Results finds what is recorded of jobs, without the results themselves.
func (o Operator) Results(ctx context.Context, ids []int64) ([]engine.Result, error) {
	return results(ctx, o.q(), ids, false)
}

// Archived finds jobs that have left jobs and stay on record.
func (o Operator) Archived(ctx context.Context, ids []int64) ([]engine.Archived, error) {
	return archived(ctx, o.q(), ids)
}

func archived(ctx context.Context, q *gen.Queries, ids []int64) ([]engine.Archived, error) {
	rows, err := q.Archived(ctx, gen.ArchivedParams{Ids: ids, Kinds: []string{}})
	if err != nil {
		return nil, translate(err)
	}
	out := make([]engine.Archived, len(rows))
	for i, r := range rows {
		headers, err := decodeHeaders(r.JobID, r.Headers)
		if err != nil {
			return nil, err
		}
		out[i] = engine.Archived{
			ID: r.JobID, Status: r.Status, Queue: r.Queue, Kind: r.Kind, Key: deref(r.Key), Version: int(r.Version), Attempt: int(r.Attempt),
			Crashes: int(r.Crashes), Reason: r.Reason, CreatedAt: r.CreatedAt, StartedAt: r.StartedAt, WorkerID: r.WorkerID, FinishedAt: r.FinishedAt, ExpiresAt: r.ExpiresAt, Payload: r.Payload,
			Headers: headers,
		}
	}
	return out, nil
}

func results(ctx context.Context, q *gen.Queries, ids []int64, whole bool) ([]engine.Result, error) {
	rows, err := q.ShowResults(ctx, gen.ShowResultsParams{Ids: ids, Whole: whole})
	out := make([]engine.Result, len(rows))
	for i, r := range rows {
		out[i] = engine.Result{Kind: r.Kind, Key: r.Key, JobID: r.JobID, Result: r.Result, FinishedAt: r.FinishedAt, ExpiresAt: r.ExpiresAt}
	}
	return out, translate(err)
}

// DeadKinds lists the kinds that have dead jobs, HandledKinds those that workers on record handle.
func (o Operator) DeadKinds(ctx context.Context) ([]string, error) {
	kinds, err := o.q().DeadKinds(ctx)
	return kinds, translate(err)
}

func (o Operator) HandledKinds(ctx context.Context) ([]string, error) {
	kinds, err := o.q().HandledKinds(ctx)
	return kinds, translate(err)
}

// orEmpty: a nil slice would be NULL, whose cardinality is not 0.
func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// deref gives the zero value for NULL.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
