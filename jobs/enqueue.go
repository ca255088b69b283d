package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/internal/storable"
)

// DB is what a job is enqueued on. *pgxpool.Pool, *pgxpool.Conn, *pgx.Conn and pgx.Tx satisfy it as they are; SQL
// makes one of what database/sql and the libraries on it have.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Producer enqueues with settings of its own: EnqueueX(ctx, p.On(tx), payload). It must not change once it is in use.
type Producer struct {
	// MaxPayload is the limit of a payload as JSON, in bytes; zero means the constant MaxPayload.
	MaxPayload int
	// Middleware is wrapped around each enqueue, the first outermost; of each, the part Enqueue.
	Middleware []Middleware
}

// On gives a DB that enqueues on db with p's settings. If db comes from On itself, its middleware is further in, and its
// MaxPayload counts if p has none.
func (p *Producer) On(db DB) DB { return producerDB{db, p} }

type producerDB struct {
	DB
	p *Producer
}

// unwrap gives the DB beneath all producers, and their settings.
func unwrap(db DB) (DB, Producer) {
	var all Producer
	for {
		p, ok := db.(producerDB)
		if !ok {
			break
		}
		if db = p.DB; all.MaxPayload == 0 {
			all.MaxPayload = p.p.MaxPayload
		}
		if len(all.Middleware) == 0 {
			all.Middleware = p.p.Middleware
		} else {
			all.Middleware = slices.Concat(all.Middleware, p.p.Middleware)
		}
	}
	if all.MaxPayload <= 0 {
		all.MaxPayload = MaxPayload
	}
	return db, all
}

func producer(db DB) engine.Producer {
	if then, is := db.(*followUps); is {
		return then
	}
	return postgres.Producer{DB: db}
}

// Enqueue stores one job, in db's transaction if it is one (G1). If the job's key is taken, it stores nothing and answers
// with the job or the recorded result that is there (Ref.Existing); the dead job of a key it revives with the new
// payload. What is wrong with the payload or an option comes back as *InvalidError.
func Enqueue[P, R any](ctx context.Context, db DB, s *Spec[P, R], payload P, opts ...Option) (Ref[R], error) {
	refs, err := enqueue(ctx, db, s, []P{payload}, opts)
	if err != nil {
		return Ref[R]{}, err
	}
	return refs[0], nil
}

// EnqueueMany is Enqueue for many payloads at once: all are stored or none. Ref i answers for payload i. Thousands without
// keys are copied in (COPY), if db is pgx's; they have one run_at, and keep their order. (A DB of your own making needs a
// method Begin like a pool's for that, and for keys of dead jobs and of expired results, which take statements of their
// own.)
func EnqueueMany[P, R any](ctx context.Context, db DB, s *Spec[P, R], payloads []P, opts ...Option) ([]Ref[R], error) {
	return enqueue(ctx, db, s, payloads, opts)
}

// maxStatement bounds the payloads of one EnqueueMany, in bytes, well below what the protocol can carry.
const maxStatement = 256 << 20

func enqueue[P, R any](ctx context.Context, db DB, s *Spec[P, R], payloads []P, opts []Option) ([]Ref[R], error) {
	o, err := resolve(s, opts)
	if err != nil {
		return nil, err
	}
	if o.key != nil && len(payloads) > 1 {
		return nil, invalid(s.Kind, "key", "is given for many jobs at once; enqueue them one by one, or declare a key for the kind")
	}
	db, p := unwrap(db)
	if len(p.Middleware) > 0 && len(payloads) > 0 {
		// A copy, so that those of a caller without middleware need not be on the heap.
		return enqueueWithin(ctx, p.Middleware, db, p.MaxPayload, s, slices.Clone(payloads), o)
	}
	return store(ctx, db, p.MaxPayload, s, payloads, &o)
}

// store encodes payloads of at most limit bytes and inserts them.
func store[P, R any](ctx context.Context, db DB, limit int, s *Spec[P, R], payloads []P, o *options) ([]Ref[R], error) {
	to := producer(db)
	var copying *postgres.Copying
	if pg, is := to.(postgres.Producer); is && s.Key == nil && o.key == nil {
		if copying = pg.Copy(ctx, o.Insert, len(payloads)); copying != nil {
			defer copying.Close()
		}
	}
	elements := make([]engine.Element, len(payloads))
	total := 0
	for i, p := range payloads {
		field := func() string {
			if len(payloads) > 1 {
				return fmt.Sprintf("payload %d", i)
			}
			return "payload"
		}
		b, err := storable.JSON(p, limit)
		if err != nil {
			return nil, &InvalidError{Kind: s.Kind, Field: field(), Problem: err.Error(), Err: err}
		}
		if total += len(b); total > maxStatement {
			return nil, invalid(s.Kind, "payloads", fmt.Sprintf("take more than %d bytes together; enqueue fewer at once, in one transaction", maxStatement))
		}
		elements[i].Payload = b
		switch {
		case o.key != nil:
			elements[i].Key = storable.Key(*o.key)
		case s.Key != nil:
			var k KeyBuilder
			s.Key(&k, p)
			elements[i].Key = storable.Key(string(k.b))
		}
		if s.Key != nil && elements[i].Key == "" {
			return nil, invalid(s.Kind, field(), "gives an empty key; the kind's Key function must write at least one field")
		}
	}
	var got []engine.Inserted
	var err error
	if copying != nil {
		got, err = copying.Enqueue(elements)
	} else {
		got, err = to.Enqueue(ctx, o.Insert, elements)
	}
	if err != nil {
		return nil, refusal(s.Kind, err)
	}
	refs := make([]Ref[R], len(got))
	for i, g := range got {
		refs[i] = Ref[R]{Kind: s.Kind, ID: g.ID, Existing: g.Existing, Replaced: g.Replaced, key: elements[i].Key}
		if g.Kind != "" {
			refs[i].Kind = g.Kind
		}
	}
	return refs, nil
}

// refusal is what the caller is told of an insert that failed with err.
func refusal(kind string, err error) error {
	var value *engine.ValueError
	var refused *InvalidError
	switch {
	case errors.As(err, &refused):
		return err
	case errors.As(err, &value):
		// What jsonb alone knows to refuse, such as a number of too many digits or too deep a nesting.
		return &InvalidError{Kind: kind, Field: "payload", Problem: "was refused by the database: " + err.Error(), Err: err}
	}
	return fmt.Errorf("enqueue %s: %w", kind, err)
}
