package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
)

// CopyFrom is how many jobs without keys are copied in rather than inserted. COPY saves more than a microsecond for each job, but
// takes a millisecond more, and four round trips, or two in a transaction: at half a millisecond each they are won back here.
const CopyFrom = 2000

// copier is what *pgx.Conn, *pgxpool.Conn and pgx.Tx are, and no connection of database/sql is.
type copier interface {
	gen.DBTX
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
}

// beginner is what has a copier to give.
type beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Copying is an enqueue of many jobs that has begun: the database draws their ids while the jobs are still being encoded.
type Copying struct {
	ctx      context.Context
	in       engine.Insert
	n        int
	ready    chan struct{} // closed once what follows is set
	own      pgx.Tx        // nil: the application's is open
	db       copier
	drawn    gen.DrawRow
	err      error
	panicked any
}

// Copy begins to enqueue n jobs without keys. It is nil if these are inserted rather than copied: they are few, or p cannot.
// Otherwise it must be closed, and p's DB not be used before that.
func (p Producer) Copy(ctx context.Context, in engine.Insert, n int) *Copying {
	if _, is := p.DB.(beginner); !is || n < CopyFrom {
		return nil
	}
	c := &Copying{ctx: ctx, in: in, n: n, ready: make(chan struct{})}
	go func() {
		defer close(c.ready)
		defer func() { c.panicked = recover() }() // it is the caller's, as if this were its goroutine
		c.err = c.draw(p.DB)
	}()
	return c
}

func (c *Copying) draw(db gen.DBTX) error {
	open, err := InTransaction(c.ctx, db)
	if err != nil {
		return err
	}
	if !open {
		if c.own, err = db.(beginner).Begin(c.ctx); err != nil {
			return err
		}
		db = c.own
	}
	c.db = db.(copier)
	c.drawn, err = gen.New(db).Draw(c.ctx, gen.DrawParams{
		At: instant(c.in.At), DelayUs: c.in.In.Microseconds(), Deadline: instant(c.in.Deadline), WithinUs: within(c.in), N: int32(c.n),
	})
	return err
}

// Enqueue ends what Copy began, with its n elements.
func (c *Copying) Enqueue(elements []engine.Element) ([]engine.Inserted, error) {
	<-c.ready
	if c.panicked != nil {
		panic(c.panicked)
	}
	if c.err != nil {
		return nil, translate(c.err)
	}
	rows := copied{elements: elements, ids: c.drawn.Ids, next: -1}
	rows.add("id", nil)
	rows.add("payload", nil)
	rows.add("queue", c.in.Queue)
	rows.add("kind", c.in.Kind)
	rows.add("run_at", c.drawn.RunAt)
	rows.add("created_at", c.drawn.Now)
	// Each column costs, so what the table has by default is left to it.
	rows.unless(1, "version", c.in.Version)
	rows.unless(0, "priority", c.in.Priority)
	rows.unless(20, "max_attempts", c.in.MaxAttempts)
	if c.in.Headers != nil {
		rows.add("headers", c.in.Headers)
	}
	if !c.in.Deadline.IsZero() || c.in.Within != 0 {
		rows.add("deadline", c.drawn.Deadline)
	}
	if _, err := c.db.CopyFrom(c.ctx, pgx.Identifier{"jobgen", "jobs"}, rows.columns, &rows); err != nil {
		return nil, translate(err)
	}
	if err := gen.New(c.db).Wake(c.ctx, gen.WakeParams{Queue: c.in.Queue, Kind: c.in.Kind, Wake: wake(c.n)}); err != nil {
		return nil, translate(err)
	}
	if c.own != nil {
		if err := c.own.Commit(c.ctx); err != nil {
			return nil, translate(err)
		}
	}
	out := make([]engine.Inserted, c.n)
	for i, id := range c.drawn.Ids {
		out[i].ID = id
	}
	return out, nil
}

// Close leaves nothing of what has not been enqueued, and after Enqueue does nothing.
func (c *Copying) Close() {
	if <-c.ready; c.own != nil {
		_ = c.own.Rollback(c.ctx) // if it fails, the connection is gone and the transaction with it
	}
}

// copied are elements as rows of jobs.
type copied struct {
	columns  []string
	values   []any // those of the next row; the first two are its own
	elements []engine.Element
	ids      []int64
	next     int
}

func (c *copied) add(column string, value any) {
	c.columns, c.values = append(c.columns, column), append(c.values, value)
}

func (c *copied) unless(byDefault int, column string, value int) {
	if value != byDefault {
		c.add(column, value)
	}
}

func (c *copied) Next() bool {
	c.next++
	return c.next < len(c.elements)
}

func (c *copied) Values() ([]any, error) {
	c.values[0], c.values[1] = c.ids[c.next], c.elements[c.next].Payload
	return c.values, nil
}

func (*copied) Err() error { return nil }
