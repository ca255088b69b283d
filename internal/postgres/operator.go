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
		}
	}
	return s, translate(err)
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

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
