package jobs

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// OnSuccess is where a handler enqueues what is to follow its job: EnqueueX(ctx, job.OnSuccess(), payload). It stores nothing
// yet. What is enqueued on it is checked at once, and inserted in the transaction that records the job's result and removes
// it: both or neither (G1, G5). It is dropped if the attempt ends in any other way: an error, a panic, a shutdown, a lost
// lease, or another job that has done the key's work already.
//
// The Ref of such an enqueue has no id yet. With a key it can be awaited by that, once this job has succeeded; without one
// it cannot be awaited (ErrNotStored). A key that turns out to be taken means what it always means, that nothing new is
// enqueued; options such as In count from the job's completion. What the database itself refuses ends this job dead, with
// the reason.
//
// It may be used by several goroutines of the handler. After the handler has returned, and on a Job that no worker has made,
// an enqueue is ErrNoHandler. Reading and writing through it is refused: it is a DB for enqueueing only. The follow-ups of
// one job are at most 100,000, with 64 MiB of payload; let one of them enqueue the rest.
func (i *Info) OnSuccess() DB { return i.then }

var (
	// ErrNotStored is the answer about a job that has no id yet: it is stored when the handler that enqueued it on
	// OnSuccess has succeeded.
	ErrNotStored = errors.New("jobs: this job is not stored before the handler that enqueued it succeeds, and has no id")
	// ErrNoHandler is the answer of OnSuccess when no handler runs: the job's handler has returned, or no worker has made the job.
	ErrNoHandler = errors.New("jobs: OnSuccess is for the handler of a job that a worker runs, until it returns")

	errNoStatements = errors.New("jobs: OnSuccess takes what is enqueued on it, and no statements: it has no connection")
)

const (
	maxFollowUps     = 100_000
	maxFollowUpBytes = 64 << 20
)

// followUps is what a running job's handler wants enqueued. It is a DB and, for Enqueue, what stands behind one.
type followUps struct {
	mu    sync.Mutex
	ended bool
	list  *followUpList // nil as a rule
}

type followUpList struct {
	all      []engine.FollowUp
	n, bytes int
}

var _ engine.Producer = (*followUps)(nil)

func (f *followUps) Enqueue(_ context.Context, in engine.Insert, elements []engine.Element) ([]engine.Inserted, error) {
	if f == nil {
		return nil, ErrNoHandler
	}
	if len(elements) == 0 {
		return nil, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return nil, ErrNoHandler
	}
	if f.list == nil {
		f.list = &followUpList{}
	}
	n, bytes := f.list.n+len(elements), f.list.bytes
	for _, e := range elements {
		bytes += len(e.Payload)
	}
	if n > maxFollowUps || bytes > maxFollowUpBytes {
		return nil, invalid(in.Kind, "follow-ups", fmt.Sprintf("of one job would be more than %d, or take more than %d bytes; enqueue one that enqueues the rest", maxFollowUps, maxFollowUpBytes))
	}
	f.list.n, f.list.bytes = n, bytes
	f.list.all = append(f.list.all, engine.FollowUp{Insert: in, Elements: elements})
	return make([]engine.Inserted, len(elements)), nil
}

func (*followUps) State(context.Context, []string, int64, string) (engine.State, error) {
	return engine.State{}, errNoStatements
}

func (*followUps) Cancel(context.Context, []string, int64, string) (string, error) {
	return "", errNoStatements
}

func (*followUps) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, errNoStatements
}
func (*followUps) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return nil, errNoStatements
}
func (*followUps) QueryRow(context.Context, string, ...any) pgx.Row { return noRow{} }

type noRow struct{}

func (noRow) Scan(...any) error { return errNoStatements }

// End ends what Decode began: OnSuccess takes nothing any more, and c has what it was given. It is for package worker;
// nothing outside this module can call it.
func End(i *Info, c *engine.Claimed) {
	i.then.mu.Lock()
	defer i.then.mu.Unlock()
	if i.then.ended = true; i.then.list != nil {
		c.Then, i.then.list = i.then.list.all, nil
	}
}
