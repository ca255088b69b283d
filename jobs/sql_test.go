package jobs_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/jobgen-go/jobgen/jobs"
)

// Other drivers, and libraries on database/sql, are tried in sqltest, a module of its own.
func TestG1JobsCommitAndRollBackWithATransactionOfDatabaseSQL(t *testing.T) {
	t.Parallel()
	f := open(t)
	db := stdlib.OpenDBFromPool(f.pool)
	defer db.Close()
	for _, commit := range []bool{false, true} {
		tx, err := db.BeginTx(f.ctx(), nil)
		f.no(err)
		f.enqueueAll(jobs.SQL(tx))
		f.enqueueAll(jobs.SQL(tx)) // keys taken
		f.counts(0, 0)
		if _, err := jobs.RefTo(keyed, 1).Await(f.ctx(), jobs.SQL(tx)); !errors.Is(err, jobs.ErrInTransaction) {
			t.Errorf("awaited in a transaction: %v", err)
		}
		if commit {
			f.no(tx.Commit())
		} else {
			f.no(tx.Rollback())
		}
	}
	f.counts(9, 3)
	f.enqueueAll(jobs.SQL(db))
	f.counts(12, 3)
}

func TestAwaitRefusesAConnectionWithATransaction(t *testing.T) {
	t.Parallel()
	f := open(t)
	conn := f.connect()
	if _, err := conn.Exec(f.ctx(), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	if _, err := jobs.RefTo(keyed, 1).Await(f.ctx(), conn); !errors.Is(err, jobs.ErrInTransaction) {
		t.Errorf("with a transaction: %v", err)
	}
	if _, err := conn.Exec(context.Background(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if _, err := jobs.RefTo(keyed, 1).Await(f.ctx(), conn); !errors.Is(err, jobs.ErrNoRecord) {
		t.Errorf("without one: %v", err)
	}
}
