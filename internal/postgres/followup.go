package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

// completeThen is Complete for successes with follow-ups: all or nothing, in one transaction. Only what the completion finds
// has any, so a repetition after a lost answer enqueues nothing a second time, and a stale hold nothing at all.
func (s *Store) completeThen(ctx context.Context, id uuid.UUID, done []engine.Success) ([]int64, error) {
	var ended []int64
	err := s.outcomes.begin(ctx, func(tx pgx.Tx) error {
		var err error
		ended, err = finishThen(ctx, tx, id, done)
		return err
	})
	if err != nil {
		return nil, translate(err)
	}
	return ended, nil
}

func finishThen(ctx context.Context, tx pgx.Tx, id uuid.UUID, done []engine.Success) ([]int64, error) {
	byID := make(map[int64]*engine.Success, len(done))
	var recorded, plain, archived []engine.Success
	for i := range done {
		byID[done[i].ID] = &done[i]
		switch d := done[i]; {
		case d.Retain > 0:
			archived = append(archived, d)
		case d.Record:
			recorded = append(recorded, d)
		default:
			plain = append(plain, d)
		}
	}
	var all []int64
	var then []engine.FollowUp
	for _, form := range [][]engine.Success{plain, recorded, archived} {
		if len(form) == 0 {
			continue
		}
		c, err := complete(ctx, tx, id, form, false)
		if err != nil {
			return nil, err
		}
		if c.unrecorded, err = overtaken(ctx, gen.New(tx), form, c.unrecorded); err != nil {
			return nil, err
		}
		all = append(all, c.ended...)
		for _, id := range c.ended {
			if !slices.Contains(c.unrecorded, id) { // its key's work is another job's, and so is what follows it
				then = append(then, byID[id].Then...)
			}
		}
	}
	return all, follow(ctx, tx, then)
}

// follow enqueues follow-ups in the transaction that has completed their jobs.
func follow(ctx context.Context, tx pgx.Tx, then []engine.FollowUp) error {
	for _, f := range together(then) {
		if _, err := (Producer{DB: tx}).Enqueue(ctx, f.Insert, f.Elements); err != nil {
			return fmt.Errorf("follow-up %s: %w", f.Kind, err)
		}
	}
	return nil
}

// together makes one enqueue of all that differ in their elements only. Those with keys come last, by kind, and each in the
// order of its keys (Enqueue), so that two transactions with the same keys wait for each other as a rule, and do not
// deadlock.
func together(then []engine.FollowUp) []engine.FollowUp {
	if len(then) < 2 {
		return then
	}
	var out []engine.FollowUp
	at := map[string]int{}
	for _, f := range then {
		alike := fmt.Sprintf("%t %+v", f.Elements[0].Key != "", f.Insert)
		i, is := at[alike]
		if !is {
			i, at[alike] = len(out), len(out)
			out = append(out, engine.FollowUp{Insert: f.Insert})
		}
		out[i].Elements = append(out[i].Elements, f.Elements...)
	}
	slices.SortStableFunc(out, func(a, b engine.FollowUp) int { return cmp.Compare(keyedKind(a), keyedKind(b)) })
	return out
}

func keyedKind(f engine.FollowUp) string {
	if f.Elements[0].Key == "" {
		return ""
	}
	return f.Kind
}
