package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

func (s *Store) Now(ctx context.Context) (time.Time, error) {
	var now time.Time
	var err error
	s.compareClocks(func() (time.Time, error) {
		now, err = s.q.Now(ctx)
		return now, err
	})
	return now, translate(err)
}

func (s *Store) Declare(ctx context.Context, kinds []string, schedules []engine.Schedule) error {
	drop := gen.DropSchedulesParams{Kinds: kinds}
	for _, d := range schedules {
		if err := s.q.StoreSchedule(ctx, gen.StoreScheduleParams{
			Kind: d.Kind, Name: d.Name, Cron: d.Cron, Zone: d.Zone, Missed: d.Missed, NextAt: d.NextAt,
			Queue: d.Job.Queue, Version: int32(d.Job.Version), Priority: int16(d.Job.Priority), MaxAttempts: int32(d.Job.MaxAttempts), Payload: string(d.Payload),
		}); err != nil {
			return translate(err)
		}
		drop.OfKinds, drop.Names = append(drop.OfKinds, d.Kind), append(drop.Names, d.Name)
	}
	_, err := s.q.DropSchedules(ctx, drop)
	return translate(err)
}

func (s *Store) Schedules(ctx context.Context, kinds []string) ([]engine.Schedule, time.Time, error) {
	rows, err := s.q.Schedules(ctx, kinds)
	if err != nil || len(rows) == 0 {
		return nil, time.Time{}, translate(err)
	}
	out := make([]engine.Schedule, len(rows))
	for i, r := range rows {
		out[i] = engine.Schedule{Kind: r.Kind, Name: r.Name, Cron: r.Cron, Zone: r.Zone, Missed: r.Missed, NextAt: r.NextAt}
	}
	return out, rows[0].DbNow, nil
}

func (s *Store) Tick(ctx context.Context, d engine.Schedule, last, next time.Time, in engine.Insert, payload []byte, headers [][]byte) (bool, error) {
	arg := gen.TickParams{
		Kind: d.Kind, Name: d.Name, AtTick: d.NextAt, NextAt: next, LastAt: &last,
		Queue: in.Queue, Version: int32(in.Version), Payload: string(payload), Priority: int16(in.Priority), MaxAttempts: int32(in.MaxAttempts),
	}
	for _, h := range headers {
		arg.Headers = append(arg.Headers, string(h))
	}
	n, err := s.q.Tick(ctx, arg)
	return n > 0, translate(err)
}

// ListedSchedule is a schedule for a person to look at.
type ListedSchedule struct {
	engine.Schedule  // Job and Payload: what a tick enqueues, if Told
	LastAt, PausedAt *time.Time
	Told             bool // false: the program that stored it was too old to say what a tick enqueues
	Workers          int  // live ones that handle its kind
}

// Schedules lists all schedules, and tells the database's time.
func (o Operator) Schedules(ctx context.Context) (out []ListedSchedule, now time.Time, err error) {
	rows, err := o.q().ListSchedules(ctx)
	if err != nil {
		return nil, now, translate(err)
	}
	if len(rows) == 0 {
		now, err = o.Now(ctx)
		return nil, now, err
	}
	for _, r := range rows {
		s := ListedSchedule{
			Schedule: engine.Schedule{Kind: r.Kind, Name: r.Name, Cron: r.Cron, Zone: r.Zone, Missed: r.Missed, NextAt: r.NextAt},
			LastAt:   r.LastAt, PausedAt: r.PausedAt, Workers: int(r.Workers),
			Told: r.Queue != nil && r.Version != nil && r.Priority != nil && r.MaxAttempts != nil, // one written by hand may lack any
		}
		if s.Told {
			s.Payload = json.RawMessage(r.Payload)
			s.Job = engine.Insert{Queue: *r.Queue, Kind: r.Kind, Version: int(*r.Version), Priority: int(*r.Priority), MaxAttempts: int(*r.MaxAttempts)}
		}
		out, now = append(out, s), r.DbNow
	}
	return out, now, nil
}

// ErrNoSchedule: it is gone, or what it enqueues is not on record.
var ErrNoSchedule = errors.New("jobgen: there is no such schedule any more, or its program does not say what it enqueues")

// RunSchedule enqueues what a tick of the schedule would, and tells whether the queue is paused. The schedule does not move.
func (o Operator) RunSchedule(ctx context.Context, kind, name string, header []byte) (id int64, paused bool, err error) {
	r, err := o.q().RunSchedule(ctx, gen.RunScheduleParams{Kind: kind, Name: name, Header: string(header)})
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, ErrNoSchedule
	}
	return r.ID, r.Paused, translate(err)
}

// PauseSchedule makes the ticks of a schedule enqueue nothing, until ResumeSchedule, which goes on with next.
func (o Operator) PauseSchedule(ctx context.Context, kind, name string) error {
	n, err := o.q().PauseSchedule(ctx, gen.PauseScheduleParams{Kind: kind, Name: name})
	return one(n, err)
}

func (o Operator) ResumeSchedule(ctx context.Context, kind, name string, next time.Time) error {
	n, err := o.q().ResumeSchedule(ctx, gen.ResumeScheduleParams{Kind: kind, Name: name, NextAt: next})
	return one(n, err)
}

func one(n int64, err error) error {
	if err == nil && n == 0 {
		return ErrNoSchedule
	}
	return translate(err)
}
