// Package postgres implements the engine over the statements of gen/postgres; it is the only package that imports them.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/sqldb"
)

// Producer enqueues on a connection, pool or transaction of the application.
type Producer struct{ DB gen.DBTX }

var _ engine.Producer = Producer{}

// Enqueue upholds G1 and G6: one statement, and for a taken key a second one that tells by what; many jobs are copied in.
func (p Producer) Enqueue(ctx context.Context, in engine.Insert, elements []engine.Element) ([]engine.Inserted, error) {
	switch {
	case len(elements) == 0:
		return nil, nil
	case len(elements) == 1:
		one, err := p.enqueueOne(ctx, in, elements[0])
		return []engine.Inserted{one}, translate(err)
	}
	keyed := elements[0].Key != ""
	if !keyed {
		if c := p.Copy(ctx, in, len(elements)); c != nil {
			defer c.Close()
			return c.Enqueue(elements)
		}
	}
	var out []engine.Inserted
	err := p.atomically(ctx, keyed, func(p Producer) (err error) {
		out, err = p.enqueueMany(ctx, in, elements)
		return err
	})
	return out, translate(err)
}

// atomically calls fn in a transaction of its own if fn may need several statements and the application has none open.
func (p Producer) atomically(ctx context.Context, several bool, fn func(Producer) error) error {
	if !several {
		return fn(p)
	}
	if open, err := InTransaction(ctx, p.DB); open || err != nil {
		if err != nil {
			return err
		}
		return fn(p)
	}
	switch db := p.DB.(type) {
	case sqldb.DB:
		return db.InTx(ctx, func(tx sqldb.DB) error {
			p.DB = tx
			return fn(p)
		})
	case beginner:
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			p.DB = tx
			return fn(p)
		})
	}
	return fn(p)
}

// InTransaction tells whether what runs on db is part of a transaction that the application has open.
func InTransaction(ctx context.Context, db gen.DBTX) (bool, error) {
	switch db := db.(type) {
	case pgx.Tx:
		return true, nil
	case *pgx.Conn:
		return db.PgConn().TxStatus() != 'I', nil
	case *pgxpool.Conn:
		return db.Conn().PgConn().TxStatus() != 'I', nil
	case sqldb.DB:
		if is, known := db.IsTx(); known {
			return is, nil
		}
		// Two statements that began in one transaction began at one time.
		first, err := gen.New(db).TransactionTime(ctx)
		if err != nil {
			return false, err
		}
		second, err := gen.New(db).TransactionTime(ctx)
		return err == nil && first == second, err
	}
	return false, nil
}

func (p Producer) enqueueOne(ctx context.Context, in engine.Insert, e engine.Element) (engine.Inserted, error) {
	if e.Key != "" {
		return p.enqueueKeyed(ctx, in, e)
	}
	row, err := gen.New(p.DB).Enqueue(ctx, gen.EnqueueParams{
		Queue: in.Queue, Kind: in.Kind, Version: int32(in.Version), Payload: string(e.Payload), Headers: headers(in),
		Priority: int16(in.Priority), MaxAttempts: int32(in.MaxAttempts), At: instant(in.At), DelayUs: in.In.Microseconds(), Deadline: instant(in.Deadline), WithinUs: within(in),
	})
	return engine.Inserted{ID: row.ID}, err
}

// keyTries bounds how often an enqueue starts over because the key's row was purged or finished between two of its
// statements; each round needs another transaction to win that race again.
const keyTries = 100

func (p Producer) enqueueKeyed(ctx context.Context, in engine.Insert, e engine.Element) (engine.Inserted, error) {
	if in.Replace {
		if one, is, err := p.replaceRenamed(ctx, in, e); is || err != nil {
			return one, err
		}
		in.Was = nil
	}
	for _, kind := range in.Was {
		if taken, err := p.takenAs(ctx, kind, []string{e.Key}); err != nil || len(taken) > 0 {
			return engine.Inserted{ID: taken[e.Key], Kind: kind, Existing: true}, err
		}
	}
	q := gen.New(p.DB)
	for range keyTries {
		row, err := q.EnqueueKeyed(ctx, gen.EnqueueKeyedParams{
			Kind: in.Kind, Key: e.Key, Queue: in.Queue, Version: int32(in.Version), Payload: string(e.Payload), Headers: headers(in),
			Priority: int16(in.Priority), MaxAttempts: int32(in.MaxAttempts), At: instant(in.At), DelayUs: in.In.Microseconds(), Deadline: instant(in.Deadline), WithinUs: within(in),
		})
		if !errors.Is(err, pgx.ErrNoRows) {
			return engine.Inserted{ID: row.ID}, err
		}
		q := gen.New(fresh(p.DB))
		state, err := q.KeyState(ctx, gen.KeyStateParams{Kind: in.Kind, Key: e.Key})
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			continue // purged meanwhile
		case err != nil:
			return engine.Inserted{}, err
		case replaceable(in, state):
			one, err := replace(ctx, q, in, e, state.JobID, in.Debounce)
			if !errors.Is(err, pgx.ErrNoRows) {
				return one, err
			}
		case state.Status == "dead":
			row, err := q.Revive(ctx, gen.ReviveParams{
				ID: state.JobID, Kind: in.Kind, Key: e.Key, Queue: in.Queue, Version: int32(in.Version), Payload: string(e.Payload),
				Headers: headers(in), Priority: int16(in.Priority), MaxAttempts: int32(in.MaxAttempts), At: instant(in.At), DelayUs: in.In.Microseconds(), Deadline: instant(in.Deadline), WithinUs: within(in),
			})
			if !errors.Is(err, pgx.ErrNoRows) {
				return engine.Inserted{ID: row.ID}, err
			}
		case state.Expired, state.Status == "" && !state.Finished:
			if _, err := q.ForgetKey(ctx, gen.ForgetKeyParams{Kind: in.Kind, Key: e.Key, JobID: state.JobID}); err != nil {
				return engine.Inserted{}, err
			}
		default:
			return engine.Inserted{ID: state.JobID, Existing: true}, nil
		}
	}
	return engine.Inserted{}, fmt.Errorf("jobgen: key %q of %s changed hands %d times while it was being enqueued; try again", e.Key, in.Kind, keyTries)
}

func (p Producer) enqueueMany(ctx context.Context, in engine.Insert, elements []engine.Element) ([]engine.Inserted, error) {
	q := gen.New(p.DB)
	out := make([]engine.Inserted, len(elements))
	payloads := make([]string, len(elements))
	for i, e := range elements {
		payloads[i] = string(e.Payload)
	}
	if elements[0].Key != "" && len(in.Was) > 0 && !in.Replace {
		return p.enqueueRenamed(ctx, in, elements)
	}
	if elements[0].Key == "" {
		ids, err := q.EnqueueMany(ctx, gen.EnqueueManyParams{
			Payloads: payloads, Queue: in.Queue, Kind: in.Kind, Version: int32(in.Version), Headers: headers(in),
			Priority: int16(in.Priority), MaxAttempts: int32(in.MaxAttempts), At: instant(in.At), DelayUs: in.In.Microseconds(), Deadline: instant(in.Deadline), WithinUs: within(in), Wake: wake(len(elements)),
		})
		for i, id := range ids {
			out[i].ID = id
		}
		return out, err
	}
	if in.Replace && len(in.Was) > 0 {
		return out, p.enqueueEach(ctx, in, elements, out)
	}
	keys := make([]string, len(elements))
	for i, e := range elements {
		keys[i] = e.Key
	}
	rows, err := q.EnqueueManyKeyed(ctx, gen.EnqueueManyKeyedParams{
		Keys: keys, Payloads: payloads, Kind: in.Kind, Queue: in.Queue, Version: int32(in.Version), Headers: headers(in),
		Priority: int16(in.Priority), MaxAttempts: int32(in.MaxAttempts), At: instant(in.At), DelayUs: in.In.Microseconds(), Deadline: instant(in.Deadline), WithinUs: within(in), Wake: wake(len(elements)),
	})
	if err != nil {
		return nil, err
	}
	var taken []string
	for i, r := range rows {
		if out[i].ID = r.ID; !r.Inserted {
			out[i].ID, taken = 0, append(taken, keys[i])
		}
	}
	if len(taken) == 0 {
		return out, nil
	}
	if !in.Replace {
		waiting, err := p.takenAs(ctx, in.Kind, taken)
		if err != nil {
			return nil, err
		}
		for i, e := range elements {
			if id, ok := waiting[e.Key]; ok && out[i].ID == 0 {
				out[i] = engine.Inserted{ID: id, Existing: true}
			}
		}
	}
	// What is left: keys of dead jobs, of results that have expired, and what is to be replaced.
	return out, p.enqueueEach(ctx, in, elements, out)
}

// enqueueEach enqueues the elements for which out has no answer yet, one by one, in key order, like the arbiter rows of
// EnqueueManyKeyed: two transactions with the same keys must not wait for each other.
func (p Producer) enqueueEach(ctx context.Context, in engine.Insert, elements []engine.Element, out []engine.Inserted) (err error) {
	var rest []int
	for i := range elements {
		if out[i].ID == 0 {
			rest = append(rest, i)
		}
	}
	slices.SortStableFunc(rest, func(a, b int) int { return strings.Compare(elements[a].Key, elements[b].Key) })
	for _, i := range rest {
		if out[i], err = p.enqueueKeyed(ctx, in, elements[i]); err != nil {
			return err
		}
	}
	return nil
}

// takenAs tells which of the keys are taken, as keys of kind, and by which jobs.
func (p Producer) takenAs(ctx context.Context, kind string, keys []string) (map[string]int64, error) {
	states, err := gen.New(fresh(p.DB)).KeyStates(ctx, gen.KeyStatesParams{Kind: kind, Keys: keys})
	if err != nil {
		return nil, err
	}
	taken := make(map[string]int64, len(states))
	for _, s := range states {
		if !s.Expired && (s.Finished || s.Status == "queued" || s.Status == "running") {
			taken[s.Key] = s.JobID
		}
	}
	return taken, nil
}

// enqueueRenamed is enqueueMany for a kind with earlier names: what is taken under one of them is answered first.
func (p Producer) enqueueRenamed(ctx context.Context, in engine.Insert, elements []engine.Element) ([]engine.Inserted, error) {
	keys := make([]string, len(elements))
	for i, e := range elements {
		keys[i] = e.Key
	}
	out := make([]engine.Inserted, len(elements))
	for _, kind := range in.Was {
		taken, err := p.takenAs(ctx, kind, keys)
		if err != nil {
			return nil, err
		}
		for i, e := range elements {
			if id, is := taken[e.Key]; is && !out[i].Existing {
				out[i] = engine.Inserted{ID: id, Kind: kind, Existing: true}
			}
		}
	}
	in.Was = nil
	var rest []engine.Element
	var at []int
	for i, e := range elements {
		if !out[i].Existing {
			rest, at = append(rest, e), append(at, i)
		}
	}
	if len(rest) == 0 {
		return out, nil
	}
	got, err := p.enqueueMany(ctx, in, rest)
	for i, one := range got {
		out[at[i]] = one
	}
	return out, err
}

// wake is how many idle workers n jobs are worth waking: one for each batch that a worker starts at once.
func wake(n int) int32 { return int32(n/100 + 1) }

// instant is t as a parameter, and null if it is zero. The copy keeps the zero case from allocating.
func instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	at := t
	return &at
}

// within is the time that the deadline leaves, in microseconds, or null.
func within(in engine.Insert) *int64 {
	if in.Within == 0 {
		return nil
	}
	us := in.Within.Microseconds()
	return &us
}

// headers is text, like the payload: without the server's description of the statement (QueryExecModeSimpleProtocol and
// QueryExecModeExec, as behind some poolers) pgx writes []byte as bytea.
func headers(in engine.Insert) *string {
	if in.Headers == nil {
		return nil
	}
	s := string(in.Headers)
	return &s
}

// State reads jobs first and the archive after, so that a job that is cancelled between is found there.
func (p Producer) State(ctx context.Context, kinds []string, id int64, key string) (engine.State, error) {
	q := gen.New(fresh(p.DB))
	var state engine.State
	if key == "" {
		row, err := q.JobState(ctx, gen.JobStateParams{ID: id, Kinds: kinds})
		if err != nil {
			return state, translate(err)
		}
		state = engine.State{Status: row.Status, Finished: row.Finished, Result: row.Result, Attempt: int(row.Attempt), LastError: row.LastError}
	} else {
		row, err := q.KeyState(ctx, gen.KeyStateParams{Kind: kinds[0], Key: key})
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return state, translate(err)
		}
		state = engine.State{Status: row.Status, Finished: row.Finished, Result: row.Result, Attempt: int(row.Attempt), LastError: row.LastError}
		if id == 0 || err == nil && row.JobID == id {
			return state, nil
		}
		// The key has no job, or another one than it had: this one may have been cancelled.
	}
	if key == "" && (state.Status != "" || state.Finished) {
		return state, nil
	}
	archived, err := q.Archived(ctx, gen.ArchivedParams{Ids: []int64{id}, Kinds: kinds})
	switch {
	case err != nil || len(archived) == 0:
	case archived[0].Status == engine.StatusCancelled:
		return engine.State{Status: engine.StatusCancelled, Reason: archived[0].Reason}, nil
	case state.Status == "" && !state.Finished: // else its key's work is another job's by now, which is asked for
		return engine.State{Status: engine.StatusSucceeded, Attempt: int(archived[0].Attempt)}, nil
	}
	return state, translate(err)
}
