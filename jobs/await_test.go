package jobs_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

func TestAwaitGivesTheTypedResult(t *testing.T) {
	t.Parallel()
	f := open(t)
	for _, s := range []*jobs.Spec[order, receipt]{keyed, returned} {
		ref, err := jobs.Enqueue(f.ctx(), f.pool, s, order{ID: "a"})
		f.no(err)
		type answer struct {
			receipt
			error
		}
		got := make(chan answer, 2)
		// By the ref, and by its id from another process.
		for _, r := range []jobs.Ref[receipt]{ref, jobs.RefTo(s, ref.ID)} {
			go func() {
				v, err := r.Await(f.ctx(), f.pool)
				got <- answer{v, err}
			}()
		}
		f.finish(f.one(f.claim(1)), `{"total": 42}`, time.Hour)
		for range 2 {
			if a := <-got; a.error != nil || a.Total != 42 {
				t.Errorf("%s: %+v", s.Kind, a)
			}
		}
	}
}

func TestAwaitOfAKindWithoutAResult(t *testing.T) {
	t.Parallel()
	f := open(t)
	s := &jobs.Spec[order, jobs.None]{Kind: keyed.Kind, Queue: "q", Key: byID}
	ref, err := jobs.Enqueue(f.ctx(), f.pool, s, order{ID: "a"})
	f.no(err)
	f.finish(f.one(f.claim(1)), "", time.Hour)
	if _, err := ref.Await(f.ctx(), f.pool); err != nil {
		t.Error(err)
	}
}

func TestAwaitOfADeadJob(t *testing.T) {
	t.Parallel()
	f := open(t)
	for _, s := range []*jobs.Spec[order, receipt]{keyed, returned} {
		ref, err := jobs.Enqueue(f.ctx(), f.pool, s, order{ID: "a"})
		f.no(err)
		f.die(f.one(f.claim(1)), "card expired")
		for _, r := range []jobs.Ref[receipt]{ref, jobs.RefTo(s, ref.ID)} {
			_, err := r.Await(f.ctx(), f.pool)
			var dead *jobs.DeadError
			if !errors.As(err, &dead) || dead.ID != ref.ID || dead.Kind != s.Kind || dead.Attempts != 1 || dead.LastError != "card expired" ||
				!strings.Contains(err.Error(), "dead after 1 attempts: card expired") {
				t.Errorf("%s: %+v", s.Kind, err)
			}
		}
	}
}

func TestAwaitOfAJobThatIsOnNoRecord(t *testing.T) {
	t.Parallel()
	f := open(t)
	ref, err := jobs.Enqueue(f.ctx(), f.pool, plain, order{})
	f.no(err)
	c := f.one(f.claim(1))
	if got, err := f.store.Complete(f.ctx(), f.worker.ID, []engine.Success{{Hold: hold(c)}}); err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	if _, err := ref.Await(f.ctx(), f.pool); !errors.Is(err, jobs.ErrNoRecord) {
		t.Errorf("a kind that leaves no record: %v", err)
	}
	if _, err := jobs.RefTo(keyed, 12345).Await(f.ctx(), f.pool); !errors.Is(err, jobs.ErrNoRecord) {
		t.Errorf("a job that never was: %v", err)
	}
	// Another kind's job of that id is not this one.
	other, err := jobs.Enqueue(f.ctx(), f.pool, returned, order{})
	f.no(err)
	if _, err := jobs.RefTo(keyed, other.ID).Await(f.ctx(), f.pool); !errors.Is(err, jobs.ErrNoRecord) {
		t.Errorf("another kind's job: %v", err)
	}
	f.claim(1)
	c = expired(f)
	_, err = f.store.Purge(f.ctx(), engine.Keep{Attempts: time.Hour, Samples: time.Hour})
	f.no(err)
	if _, err := jobs.RefTo(keyed, c.ID).Await(f.ctx(), f.pool); !errors.Is(err, jobs.ErrNoRecord) {
		t.Errorf("a record that was purged: %v", err)
	}
}

func TestAwaitRefusesATransaction(t *testing.T) {
	t.Parallel()
	f := open(t)
	conn, err := f.pool.Begin(f.ctx())
	f.no(err)
	defer conn.Rollback(context.Background())
	tx := f.begin(pgx.TxOptions{})
	for _, db := range []jobs.DB{tx, conn, (&jobs.Producer{}).On(tx)} {
		if _, err := jobs.RefTo(keyed, 1).Await(f.ctx(), db); !errors.Is(err, jobs.ErrInTransaction) {
			t.Errorf("%T: %v", db, err)
		}
	}
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	f := open(t)
	ref, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"})
	f.no(err)
	why := errors.New("the user went away")
	ctx, cancel := context.WithCancelCause(f.ctx())
	ended := make(chan error)
	go func() {
		_, err := ref.Await(ctx, f.pool)
		ended <- err
	}()
	cancel(why)
	if err := <-ended; !errors.Is(err, why) && !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestAwaitOfAResultOfAnotherType(t *testing.T) {
	t.Parallel()
	f := open(t)
	ref, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"})
	f.no(err)
	f.finish(f.one(f.claim(1)), `{"total": "many"}`, time.Hour)
	if _, err := ref.Await(f.ctx(), f.pool); err == nil || !strings.Contains(err.Error(), "does not decode into jobs_test.receipt") {
		t.Errorf("got %v", err)
	}
}
