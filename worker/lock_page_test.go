package worker_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// Rollup counts an account's events of a day into one row.
type Rollup struct {
	Account int64  `json:"account"`
	Day     string `json:"day"`
}

// rollup is what jobgen emits for the annotation on the page.
var rollup = &jobs.Spec[Rollup, jobs.None]{Kind: "stats.rollup", Queue: "stats", Lock: true}

type statistics struct{}

func (statistics) Rollup(ctx context.Context, tx pgx.Tx, job *jobs.Job[Rollup]) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO daily (account, day, events)
		SELECT account, day, count(*) FROM events WHERE account = $1 AND day = $2 GROUP BY 1, 2
		ON CONFLICT (account, day) DO UPDATE SET events = EXCLUDED.events`,
		job.Payload.Account, job.Payload.Day)
	return err
}

func TestPageOfOwnershipByLock(t *testing.T) {
	t.Parallel()
	pool := database(t)
	execute(t, pool, `CREATE TABLE events (account bigint, day date);
		CREATE TABLE daily (account bigint, day date, events bigint, PRIMARY KEY (account, day));
		INSERT INTO events VALUES (1, '2026-11-30'), (1, '2026-11-30'), (2, '2026-11-30')`)
	start(t, pool, worker.Config{}, func(r *worker.Registry) { worker.HandleTxNone(r, rollup, statistics{}.Rollup) })
	if _, err := jobs.Enqueue(t.Context(), pool, rollup, Rollup{Account: 1, Day: "2026-11-30"}); err != nil {
		t.Fatal(err)
	}
	drained(t, pool, soon)
	if n := one[int](t, pool, `SELECT events FROM daily WHERE account = 1`); n != 2 {
		t.Errorf("%d events", n)
	}
}
