package sqltest

import (
	"database/sql"
	"testing"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
)

// BenchmarkEnqueue is one enqueue in a transaction that is open. Compare within one run:
//
//	go test -run '^$' -bench Enqueue -count 5 .
func BenchmarkEnqueue(b *testing.B) {
	pool := jobtest.DB(b)
	open := func(driver, params string) *sql.Tx {
		db, err := sql.Open(driver, dsn(pool, params))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { db.Close() })
		tx, err := db.BeginTx(b.Context(), nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = tx.Rollback() })
		return tx
	}
	pgxTx, err := pool.Begin(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer pgxTx.Rollback(b.Context())
	for _, c := range []struct {
		name string
		db   jobs.DB
	}{
		{"pgx_itself", pgxTx},
		{"pgx_stdlib", jobs.SQL(open("pgx", ""))},
		{"pq", jobs.SQL(open("postgres", ""))},
		{"pq_binary_parameters", jobs.SQL(open("postgres", "binary_parameters=yes"))},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := jobs.Enqueue(b.Context(), c.db, plain, Welcome{Name: "a"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
