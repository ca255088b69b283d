package worker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// locking is answering, owned by lock.
func locking(name string) *jobs.Spec[task, string] {
	s := answering(name)
	s.Lock = true
	return s
}

func TestLockEffectsResultAndRemovalCommitTogether(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := locking("t.lock")
	effect, commit := make(chan struct{}), make(chan struct{})
	start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		if j.Attempt != 1 {
			t.Errorf("attempt %d", j.Attempt)
		}
		if err := leave(ctx, tx, j.Payload.N, "effect"); err != nil {
			return "", err
		}
		close(effect)
		<-commit
		return "result", nil
	}))
	ref := enqueue(t, pool, spec, task{N: 1})
	receive(t, "the handler has had its effect", effect)
	if ran(t, pool, 1) {
		t.Error("the effect is seen before the commit")
	}
	if r := look(t, pool, ref.ID); r.Status != "queued" || r.Attempt != 0 {
		t.Errorf("the job is %s", r)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_start WHERE job_id = $1`, ref.ID); n != 1 {
		t.Errorf("%d marks", n)
	}
	close(commit)
	if got, err := await(t, pool, ref); got != "result" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if !one[bool](t, pool, `SELECT e.xmin = r.xmin FROM effect e, jobgen.job_result r WHERE r.job_id = $1`, ref.ID) {
		t.Error("the effect and the result come from different transactions")
	}
	if r := look(t, pool, ref.ID); r.Status != "" {
		t.Errorf("the job is %s", r)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_start`); n != 0 {
		t.Errorf("%d marks are left", n)
	}
}

func TestLockFailureSpendsAttempts(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := locking("t.lock")
	spec.MaxAttempts = 3
	start(t, pool, worker.Config{}, transactional(spec, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
		if err := leave(ctx, tx, j.Attempt, "rolled back"); err != nil {
			return "", err
		}
		return "", errors.New("on purpose")
	}))
	ref := enqueue(t, pool, spec, task{N: 1})
	r := becomes(t, pool, ref.ID, "is dead", func(r row) bool { return r.Status == "dead" })
	if r.Attempt != 3 || r.Crashes != 0 || r.LastError != "on purpose" {
		t.Errorf("the job is %s", r)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt WHERE outcome = 'failed' AND error = 'on purpose' AND started_at <= ended_at`); n != 3 {
		t.Errorf("%d attempts are on record", n)
	}
	if n := one[int](t, pool, `SELECT (SELECT count(*) FROM effect) + (SELECT count(*) FROM jobgen.job_start)`); n != 0 {
		t.Errorf("%d effects and marks stand", n)
	}
}
