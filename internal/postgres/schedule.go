package postgres

import (
	"context"
	"time"

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
