package postgres_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobgen-go/jobgen/internal/engine"
)

func TestATableOfJobsRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	f := open(t)
	f.insert(engine.Element{Payload: []byte("{}")})
	const worker = "worker_id = 'b5b2a1f0-5a1c-4d7e-9b1a-1f0a5a1c4d7e'"
	for _, set := range []string{
		"version = 0", "priority = -1", "priority = 10", "max_attempts = 0", "max_attempts = 32768", "crashes = -1", "crashes = 32768",
		"queue = ''", "queue = repeat('x', 101)", "kind = ''", "kind = repeat('x', 101)", "key = ''", "key = repeat('x', 201)",
		"status = ''", "status = 'other'", "status = 'succeeded'", "attempt = -1",
		worker, "fence = 1", worker + ", fence = 1", "attempt = max_attempts",
		"status = 'running'", "status = 'running', fence = 1", "status = 'running', " + worker, "status = 'running', fence = 1, attempt = max_attempts + 1, " + worker,
		"status = 'dead', fence = 1", "status = 'dead', " + worker, "status = 'dead', attempt = max_attempts + 1",
	} {
		_, err := f.pool.Exec(f.ctx(), "UPDATE jobgen.jobs SET "+set)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "23514" {
			t.Errorf("%s: %v", set, err)
		}
	}
	for _, set := range []string{
		"version = 2, priority = 9, max_attempts = 32767, crashes = 32767, queue = repeat('x', 100), kind = repeat('x', 100), key = repeat('x', 200)",
		"attempt = max_attempts - 1, key = NULL", "status = 'running', fence = 1, attempt = max_attempts, " + worker, "status = 'dead', fence = 0, worker_id = NULL",
	} {
		f.exec("UPDATE jobgen.jobs SET " + set)
	}
}
