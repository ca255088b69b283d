package worker_test

import (
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/worker"
)

// However much expires in the time between two purges, one goes on, round after round, until nothing is left: else a fleet whose
// jobs leave results faster than a fixed number per minute would fill its disk.
func TestAPurgeThatLeavesSomethingGoesOnInTheNextRound(t *testing.T) {
	t.Parallel()
	pool := database(t)
	execute(t, pool, `INSERT INTO jobgen.job_result (kind, key, job_id, finished_at, expires_at)
		SELECT 'k', 'job:' || i, i, now() - interval '2 s', now() - interval '1 s' FROM generate_series(1, 3500) i`)
	execute(t, pool, `INSERT INTO jobgen.job_result (kind, key, job_id, finished_at, expires_at) VALUES ('k', 'kept', 0, now(), now() + interval '1 h')`)
	startChanged(t, pool, worker.Config{Reclaim: 10 * time.Millisecond}, worker.PurgeByChunk, func(r *worker.Registry) { worker.HandleNone(r, kind("t.none"), nothing) })
	eventually(t, soon, "all that has expired is gone, and nothing else", func() bool {
		return one[string](t, pool, `SELECT string_agg(key, ' ') FROM (SELECT key FROM jobgen.job_result LIMIT 2) r`) == "kept"
	})
}
