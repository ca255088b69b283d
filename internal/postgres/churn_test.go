package postgres_test

import (
	"fmt"
	"strings"
	"testing"
)

// What comes and goes while a snapshot is held leaves dead rows and index entries behind, which nothing cleans away. Only
// statements that are seldom sent may walk them.
func TestG11HotStatementsCostTheSameHoweverMuchHasComeAndGoneUnderAHeldSnapshot(t *testing.T) {
	for _, churn := range []struct {
		name string
		n    int
		come func(f *fixture, sc *scene, n int)
		walk string  // statements that walk what is left behind
		most float64 // buffers for each row that has come and gone
	}{
		{
			"claims", 20_000, func(f *fixture, sc *scene, n int) {
				f.exec(`INSERT INTO jobgen.claims (worker_id, fence, ids)
					SELECT w, 1000000 + i, '{1}' FROM generate_series(1, $1::int) i, unnest(ARRAY[$2::uuid, $3]) w`, n, sc.worker, sc.lost)
				f.exec(`DELETE FROM jobgen.claims WHERE fence >= 1000000`)
			},
			// Once a minute, when a worker leaves, and while there are lost ones.
			"Held Leave Reclaim PurgeWorkers NoteUnclaimed", 0.1,
		}, {
			"wake rows", 20_000, func(f *fixture, sc *scene, n int) {
				f.exec(fmt.Sprintf(`DO $$ BEGIN FOR i IN 1 .. %d LOOP
					INSERT INTO jobgen.wake (queue, worker_id, kinds) SELECT 'q', id, '{k}' FROM jobgen.workers LIMIT 100;
					DELETE FROM jobgen.wake;
				END LOOP; END $$`, n/100))
			},
			// A worker that falls asleep and rises (a few times a second at most) leaves a row, so an enqueue gets slower by this
			// much until the snapshot goes.
			"Sleep Wake Enqueue EnqueueKeyed EnqueueMany EnqueueManyKeyed Revive Replace Tick Release Reclaim MarkLost", 1,
		}, {
			"heartbeats", 14_400, func(f *fixture, sc *scene, n int) { // a hundred workers, twelve minutes
				f.exec(fmt.Sprintf(`DO $$ BEGIN FOR i IN 1 .. %d LOOP
					UPDATE jobgen.workers SET beat_at = clock_timestamp() WHERE lost_at IS NULL;
				END LOOP; END $$`, n/100))
			},
			// Whatever asks whether the lease stands reads each version of the worker's own row, and who looks at the fleet, all of them.
			"Claim ClaimSuspect Adopt Start Heartbeat GiveUp Leave MarkLost Reclaim PurgeWorkers Signs", 0.6,
		}, {
			"messages", 20_000, func(f *fixture, sc *scene, n int) {
				f.exec(`INSERT INTO jobgen.job_cancel (job_id, worker_id, reason) SELECT -i, $2, '' FROM generate_series(1, $1::int) i`, n, sc.worker)
				f.exec(`DELETE FROM jobgen.job_cancel`)
			},
			"Control PurgeCancels UnheardCancels TakeCancel Signs", 0.02, // somebody has asked for each
		}, {
			"starts", 20_000, func(f *fixture, sc *scene, n int) {
				f.exec(`INSERT INTO jobgen.job_start (job_id, worker_id) SELECT -i, $2 FROM generate_series(1, $1::int) i`, n, sc.worker)
				f.exec(`DELETE FROM jobgen.job_start`)
			},
			"PurgeStarts", 0.02, // once a minute
		},
	} {
		t.Run(churn.name, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			f.quiet()
			var sc scene
			all := f.prepared(&sc)
			f.stage(&sc)
			f.analyze()
			all = append(all, f.prepared(&sc)...)
			before := f.costs(all)
			f.hold()
			churn.come(f, &sc, churn.n)
			walks := strings.Fields(churn.walk)
			f.bounded(fmt.Sprintf("after %d %s have come and gone", churn.n, churn.name), all, before, func(s statement) int {
				for _, name := range walks {
					if s.query() == name {
						return int(churn.most * float64(churn.n))
					}
				}
				return 0
			})
		})
	}
}
