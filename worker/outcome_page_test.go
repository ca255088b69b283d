package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/worker"
)

// The code of docs/runtime/outcomes.md.

// SendReminder is a payload; its kind would be emitted.
type SendReminder struct {
	Appointment string `json:"appointment"`
}

var reminderSpec = &jobs.Spec[SendReminder, jobs.None]{
	Kind: "mail.send_reminder", Queue: "mail", Key: func(k *jobs.KeyBuilder, p SendReminder) { k.String(p.Appointment) },
}

func enqueueReminder(ctx context.Context, db jobs.DB, p SendReminder, opts ...jobs.Option) (jobs.Ref[jobs.None], error) {
	return jobs.Enqueue(ctx, db, reminderSpec, p, opts...)
}

// What the mail provider of the example says.
var (
	errMailbox = errors.New("no such mailbox")
	errBusy    = errors.New("too many requests")
)

type mailProvider struct {
	ready bool
	says  error
	block chan struct{} // closed when a send has begun that only its context ends
}

func (m *mailProvider) send(ctx context.Context, _, _ string) error {
	if m.block != nil {
		close(m.block)
		<-ctx.Done()
		return ctx.Err()
	}
	return m.says
}

func (m *mailProvider) remind(ctx context.Context, job *jobs.Job[SendReminder]) error {
	if !m.ready {
		return jobs.Snooze(time.Minute) // not a failure: no attempt is spent
	}
	err := m.send(ctx, job.Payload.Appointment, job.Key())
	switch {
	case errors.Is(err, errMailbox):
		return jobs.Permanent(err) // no attempt will help
	case errors.Is(err, errBusy):
		return jobs.RetryIn(10*time.Minute, err) // a failed attempt; the next one in ten minutes
	case errors.Is(context.Cause(ctx), jobs.ErrCancelled):
		return fmt.Errorf("stopped half-way: %w", err) // whatever it returns, the job ends cancelled
	}
	return err // nil: done; else a failed attempt, and the kind's back-off
}

func cancelAppointment(ctx context.Context, pool *pgxpool.Pool, appointment string, reminder int64) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "DELETE FROM appointments WHERE id = $1", appointment); err != nil {
			return err
		}
		_, err := jobs.Cancel(ctx, tx, reminder, "the appointment is cancelled")
		return err
	})
}

func bookAppointment(ctx context.Context, pool *pgxpool.Pool, appointment string, in time.Duration) (reminder int64, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO appointments VALUES ($1)", appointment); err != nil {
			return err
		}
		// An hour before; a reminder that comes after the appointment is worth nothing.
		ref, err := enqueueReminder(ctx, tx, SendReminder{Appointment: appointment}, jobs.In(in-time.Hour), jobs.Within(in))
		reminder = ref.ID
		return err
	})
	return reminder, err
}

func TestOutcomesPage(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := jobtest.DB(t)
	execute(t, pool, `CREATE TABLE appointments (id text PRIMARY KEY)`)
	clock := jobtest.NewClock(t, pool)
	m := &mailProvider{}
	register := func(r *worker.Registry) { worker.HandleNone(r, reminderSpec, m.remind) }
	book := func(appointment string, in time.Duration) jobs.Ref[jobs.None] {
		t.Helper()
		id, err := bookAppointment(ctx, pool, appointment, in)
		if err != nil {
			t.Fatal(err)
		}
		return jobs.RefTo(reminderSpec, id)
	}
	job := func() jobtest.Job[SendReminder] { return jobtest.EnqueuedOne[SendReminder](t, pool, reminderSpec.Kind) }

	// Put off, then tried again later, then for good.
	first := book("a-1", 24*time.Hour)
	clock.Advance(23 * time.Hour)
	jobtest.Run(t, pool, register)
	if j := job(); j.Attempt != 0 || j.Snoozes != 1 {
		t.Errorf("put off: %+v", j)
	}
	clock.Advance(time.Minute)
	m.ready, m.says = true, errBusy
	jobtest.Run(t, pool, register)
	if j := job(); j.Attempt != 1 || j.LastError != "too many requests" {
		t.Errorf("tried later: %+v", j)
	}
	clock.Advance(10 * time.Minute)
	m.says = errMailbox
	jobtest.Run(t, pool, register)
	if j := job(); j.Status != "dead" || j.Attempt != 2 {
		t.Errorf("permanent: %+v", j)
	}
	if err := cancelAppointment(ctx, pool, "a-1", first.ID); err != nil {
		t.Error(err)
	}
	cancelled(t, pool, first, "the appointment is cancelled")

	// No worker was there in time.
	late := book("a-2", 2*time.Hour)
	clock.Advance(3 * time.Hour)
	jobtest.Run(t, pool, register)
	cancelled(t, pool, late, "its deadline has passed")

	// Cancelled before it was due, and while it runs.
	waiting := book("a-3", 2*time.Hour)
	if err := cancelAppointment(ctx, pool, "a-3", waiting.ID); err != nil {
		t.Error(err)
	}
	cancelled(t, pool, waiting, "the appointment is cancelled")
	running := book("a-4", 2*time.Hour)
	clock.Advance(time.Hour)
	m.block = make(chan struct{})
	start(t, pool, worker.Config{}, register)
	receive(t, "it runs", m.block)
	if err := cancelAppointment(ctx, pool, "a-4", running.ID); err != nil {
		t.Error(err)
	}
	cancelled(t, pool, running, "the appointment is cancelled")
	if got := story(t, pool, running.ID); got != "1 cancelled the appointment is cancelled: stopped half-way: context canceled" {
		t.Errorf("on record: %s", got)
	}
}
