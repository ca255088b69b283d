package jobs_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/jobs"
)

// Reindex brings the search index up to date with a document.
type Reindex struct{ DocID string }

var reindex = &jobs.Spec[Reindex, jobs.None]{
	Kind: "search.reindex", Queue: "search", KeepResult: time.Minute,
	Key: func(k *jobs.KeyBuilder, p Reindex) { k.String(p.DocID) },
}

func saveDocument(ctx context.Context, tx pgx.Tx, id, text string) error {
	if _, err := tx.Exec(ctx, "UPDATE documents SET text = $2 WHERE id = $1", id, text); err != nil {
		return err
	}
	// Ten seconds after the last edit, and a minute after the first at the latest.
	_, err := jobs.Enqueue(ctx, tx, reindex, Reindex{DocID: id}, jobs.Debounce(10*time.Second, time.Minute))
	return err
}

// The example of docs/runtime/replace.md.
func TestTheExampleOfDebounce(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.exec(`CREATE TABLE documents (id text PRIMARY KEY, text text); INSERT INTO documents VALUES ('d', '')`)
	for _, text := range []string{"a", "ab", "abc"} {
		f.no(pgx.BeginFunc(f.ctx(), f.pool, func(tx pgx.Tx) error { return saveDocument(f.ctx(), tx, "d", text) }))
	}
	f.counts(1, 1)
}
