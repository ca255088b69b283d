package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

const day = 24 * time.Hour

// archivedRow is a row of job_archive.
type archivedRow struct {
	Status, Queue, Kind string
	Key, Reason         *string
	Attempt, Crashes    int
	Payload, Headers    string
	Created             time.Time
	Started             *time.Time
	Worker              *uuid.UUID
	Finished, Expires   time.Time
}

// onRecord reads a job's row of job_archive; its status is "" if there is none.
func onRecord(t testing.TB, db jobs.DB, id int64) (a archivedRow) {
	t.Helper()
	err := db.QueryRow(t.Context(), `SELECT status, queue, kind, key, reason, attempt, crashes, payload::text, coalesce(headers::text, ''), created_at, started_at, worker_id, finished_at, expires_at
		FROM jobgen.job_archive WHERE job_id = $1`, id).Scan(&a.Status, &a.Queue, &a.Kind, &a.Key, &a.Reason, &a.Attempt, &a.Crashes, &a.Payload, &a.Headers,
		&a.Created, &a.Started, &a.Worker, &a.Finished, &a.Expires)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatal(err)
	}
	return a
}

// completion is one of the ways in which a job is completed.
type completion struct {
	kind    string
	add     func(r *worker.Registry, kind string, work func(context.Context, jobs.DB, *jobs.Job[task]) error)
	enqueue func(t testing.TB, db jobs.DB, kind string, p task) int64
	result  bool // it leaves one
}

func completions() []completion {
	plainSpec := func(kind string, key, lock bool) *jobs.Spec[task, jobs.None] {
		s := &jobs.Spec[task, jobs.None]{Kind: kind, Queue: "q", Backoff: jobs.Backoff{Base: time.Millisecond}, Lock: lock}
		if key {
			s.Key = func(k *jobs.KeyBuilder, p task) { k.Int(int64(p.N)) }
		}
		return s
	}
	resultSpec := func(kind string, key, lock bool) *jobs.Spec[task, string] {
		s := answering(kind)
		if key {
			s = keyed(kind)
		}
		s.Lock = lock
		return s
	}
	var all []completion
	for _, key := range []bool{false, true} {
		for _, result := range []bool{false, true} {
			for _, how := range []string{"plain", "tx", "lock"} {
				lock := how == "lock"
				f := completion{kind: fmt.Sprintf("t.%s_%t_%t", how, key, result), result: key || result}
				f.enqueue = func(t testing.TB, db jobs.DB, kind string, p task) int64 {
					h := jobs.Headers(map[string]string{"trace": "1"})
					if result {
						return enqueue(t, db, resultSpec(kind, key, lock), p, h).ID
					}
					return enqueue(t, db, plainSpec(kind, key, lock), p, h).ID
				}
				f.add = func(r *worker.Registry, kind string, work func(context.Context, jobs.DB, *jobs.Job[task]) error) {
					switch {
					case how == "plain" && result:
						worker.Handle(r, resultSpec(kind, key, lock), func(ctx context.Context, j *jobs.Job[task]) (string, error) { return "ok", work(ctx, nil, j) })
					case how == "plain":
						worker.HandleNone(r, plainSpec(kind, key, lock), func(ctx context.Context, j *jobs.Job[task]) error { return work(ctx, nil, j) })
					case result:
						worker.HandleTx(r, resultSpec(kind, key, lock), func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) (string, error) {
							return "ok", work(ctx, tx, j)
						})
					default:
						worker.HandleTxNone(r, plainSpec(kind, key, lock), func(ctx context.Context, tx pgx.Tx, j *jobs.Job[task]) error { return work(ctx, tx, j) })
					}
				}
				all = append(all, f)
			}
		}
	}
	return all
}

func TestG2EverySuccessOfARetainedKindStaysOnRecordHoweverItIsStored(t *testing.T) {
	t.Parallel()
	pool := database(t)
	later := kind("t.later")
	retain := map[string]time.Duration{}
	cfg := worker.Config{Retain: retain}
	register := func(r *worker.Registry) { worker.HandleNone(r, later, nothing) }
	all := completions()
	for _, f := range all {
		retain[f.kind] = 3 * day
	}
	start(t, pool, cfg, register, func(r *worker.Registry) {
		for _, f := range all {
			f.add(r, f.kind, func(ctx context.Context, _ jobs.DB, j *jobs.Job[task]) error {
				if j.Attempt == 1 {
					return errors.New("once")
				}
				if j.Payload.Do == "follow" {
					_, err := jobs.Enqueue(ctx, j.OnSuccess(), later, task{N: j.Payload.N})
					return err
				}
				return nil
			})
		}
	})
	ids := map[string][]int64{}
	n := 0
	for _, f := range all {
		for range 20 {
			n++
			ids[f.kind] = append(ids[f.kind], f.enqueue(t, pool, f.kind, task{N: n, Do: []string{"", "follow"}[n%2]}))
		}
	}
	notRetained := enqueue(t, pool, later, task{})
	drained(t, pool, soon)
	self := one[uuid.UUID](t, pool, `SELECT id FROM jobgen.workers`)
	for _, f := range all {
		for _, id := range ids[f.kind] {
			a := onRecord(t, pool, id)
			switch {
			case a.Status != "succeeded" || a.Queue != "q" || a.Kind != f.kind || a.Reason != nil || a.Attempt != 2 || a.Crashes != 0:
				t.Fatalf("%s: %+v", f.kind, a)
			case !strings.HasPrefix(a.Payload, `{"`) || a.Headers != `{"trace": "1"}`:
				t.Fatalf("%s: %+v", f.kind, a)
			case a.Worker == nil || *a.Worker != self || a.Started == nil || a.Started.Before(a.Created) || a.Finished.Before(*a.Started):
				t.Fatalf("%s: worker %v, created %v, started %v, finished %v", f.kind, a.Worker, a.Created, a.Started, a.Finished)
			case a.Expires.Sub(a.Finished).Round(time.Second) != 3*day:
				t.Fatalf("%s is kept for %s", f.kind, a.Expires.Sub(a.Finished))
			case strings.Contains(f.kind, "true_") != (a.Key != nil):
				t.Fatalf("%s has the key %v", f.kind, a.Key)
			}
		}
		results := one[int](t, pool, `SELECT count(*) FROM jobgen.job_result WHERE kind = $1 AND finished_at IS NOT NULL AND job_id = ANY($2)`, f.kind, ids[f.kind])
		if f.result && results != 20 || !f.result && results != 0 {
			t.Errorf("%s left %d results", f.kind, results)
		}
	}
	if got := one[int](t, pool, `SELECT count(*) FROM jobgen.job_archive`); got != n {
		t.Errorf("%d jobs are in the archive, want %d", got, n)
	}
	if got := one[int64](t, pool, `SELECT last_value FROM jobgen.job_id`) - int64(n) - 1; got != int64(n/2) {
		t.Errorf("%d follow-ups were enqueued, want %d", got, n/2)
	}
	if _, err := await(t, pool, notRetained); !errors.Is(err, jobs.ErrNoRecord) {
		t.Errorf("a kind that is not retained: %v", err)
	}
}

func TestG2AwaitOfARetainedKindWithoutAResultTellsThatItSucceeded(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.renamed")
	before := *spec
	before.Kind = "t.before"
	spec.Was = []string{before.Kind}
	start(t, pool, worker.Config{Retain: map[string]time.Duration{spec.Kind: day}}, func(r *worker.Registry) { worker.HandleNone(r, spec, nothing) })
	old, ref := enqueue(t, pool, &before, task{}), enqueue(t, pool, spec, task{})
	drained(t, pool, soon)
	for _, r := range []jobs.Ref[jobs.None]{old, ref, jobs.RefTo(spec, old.ID), jobs.RefTo(spec, ref.ID)} {
		if _, err := await(t, pool, r); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if a := onRecord(t, pool, old.ID); a.Kind != before.Kind {
		t.Errorf("it is on record as %q, and was enqueued as %q", a.Kind, before.Kind)
	}
	if got, err := jobs.Cancel(t.Context(), pool, ref.ID, ""); got != jobs.CancelTooLate || err != nil {
		t.Errorf("cancelling it answers %q, %v", got, err)
	}
}

// A transaction that is rolled back at COMMIT leaves no success on record.
func TestG5TheRecordOfASuccessCommitsWithTheHandlersTransactionOrNotAtAll(t *testing.T) {
	t.Parallel()
	pool := database(t)
	execute(t, pool, `ALTER TABLE effect ADD CONSTRAINT later UNIQUE (n) DEFERRABLE INITIALLY DEFERRED`)
	if err := leave(t.Context(), pool, 1, "in the way"); err != nil {
		t.Fatal(err)
	}
	retain := map[string]time.Duration{}
	var all []completion
	for _, f := range completions() {
		if !strings.HasPrefix(f.kind, "t.plain") {
			all, retain[f.kind] = append(all, f), day
		}
	}
	start(t, pool, worker.Config{Retain: retain}, func(r *worker.Registry) {
		for _, f := range all {
			f.add(r, f.kind, func(ctx context.Context, tx jobs.DB, j *jobs.Job[task]) error {
				return leave(ctx, tx, j.Payload.N, "done")
			})
		}
	})
	ids := map[string][2]int64{}
	for i, f := range all {
		ids[f.kind] = [2]int64{f.enqueue(t, pool, f.kind, task{N: 1}), f.enqueue(t, pool, f.kind, task{N: 10 + i})}
	}
	for _, f := range all {
		becomes(t, pool, ids[f.kind][0], "has failed at COMMIT", func(r row) bool { return strings.Contains(r.LastError, "later") })
		becomes(t, pool, ids[f.kind][1], "is done", func(r row) bool { return r.Status == "" })
		if a := onRecord(t, pool, ids[f.kind][0]); a.Status != "" {
			t.Errorf("%s was rolled back and is on record as %s", f.kind, a.Status)
		}
		if a := onRecord(t, pool, ids[f.kind][1]); a.Status != "succeeded" {
			t.Errorf("%s has committed and is on record as %q", f.kind, a.Status)
		}
	}
}

// The sequence of ids was set back by hand, so the ids of what is in the archive are drawn again.
func TestG9AnIDThatIsInTheArchiveAlreadyKeepsNoJobFromEnding(t *testing.T) {
	t.Parallel()
	pool := database(t)
	retain := map[string]time.Duration{}
	all := completions()
	for _, f := range all {
		retain[f.kind] = day
	}
	start(t, pool, worker.Config{Retain: retain}, func(r *worker.Registry) {
		for _, f := range all {
			f.add(r, f.kind, func(ctx context.Context, _ jobs.DB, j *jobs.Job[task]) error { return nil })
		}
	})
	execute(t, pool, `INSERT INTO jobgen.job_archive (job_id, status, queue, kind, version, attempt, crashes, payload, reason, created_at, expires_at)
		SELECT i, 'cancelled', 'old', 'old', 1, 0, 0, '{}', 'old', now(), now() + interval '1 day' FROM generate_series(1, 1000) i`)
	ids := map[string]int64{}
	for i, f := range all {
		ids[f.kind] = f.enqueue(t, pool, f.kind, task{N: i})
	}
	waiting := enqueue(t, pool, all[0].spec(), task{}, jobs.In(time.Hour))
	expired := enqueue(t, pool, all[0].spec(), task{}, jobs.Within(time.Nanosecond))
	if got, err := waiting.Cancel(t.Context(), pool, "new"); got != jobs.Cancelled || err != nil {
		t.Errorf("cancelling answers %q, %v", got, err)
	}
	drained(t, pool, soon)
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.job_attempt WHERE outcome = 'failed'`); n != 0 {
		t.Errorf("%d attempts failed", n)
	}
	for _, f := range all {
		if a := onRecord(t, pool, ids[f.kind]); a.Status != "succeeded" || a.Kind != f.kind || a.Reason != nil {
			t.Errorf("%s: %+v", f.kind, a)
		}
	}
	for _, id := range []int64{waiting.ID, expired.ID} {
		if a := onRecord(t, pool, id); a.Status != "cancelled" || a.Kind != all[0].kind {
			t.Errorf("%+v", a)
		}
	}
}

func (f completion) spec() *jobs.Spec[task, jobs.None] { return kind(f.kind) }

// What leaves the queue because its key's work is another job's says so.
func TestG6ARetainedJobWhoseWorkIsDoneAlreadySaysSo(t *testing.T) {
	t.Parallel()
	pool := database(t)
	plain, tx := keyed("t.keyed"), keyed("t.keyed_tx")
	begun, release := make(chan struct{}, 2), make(chan struct{})
	for range 2 {
		start(t, pool, worker.Config{Concurrency: 1, Retain: map[string]time.Duration{plain.Kind: day, tx.Kind: day}}, func(r *worker.Registry) {
			worker.Handle(r, plain, func(context.Context, *jobs.Job[task]) (string, error) { return "once", nil })
			worker.HandleTx(r, tx, func(context.Context, pgx.Tx, *jobs.Job[task]) (string, error) {
				begun <- struct{}{}
				<-release
				return "once", nil
			})
		})
	}
	ref := enqueue(t, pool, plain, task{N: 1})
	if _, err := await(t, pool, ref); err != nil {
		t.Fatal(err)
	}
	// A further row with the key, as a restored backup brings it; and two that run at the same time.
	execute(t, pool, `INSERT INTO jobgen.jobs (queue, kind, key, payload) SELECT 'q', kind, key, '{"N": 1}' FROM jobgen.job_result`)
	drained(t, pool, soon)
	both, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer both.Rollback(context.Background())
	enqueue(t, both, tx, task{N: 1})
	execute(t, both, `INSERT INTO jobgen.jobs (queue, kind, key, payload) SELECT queue, kind, key, payload FROM jobgen.jobs WHERE kind = $1`, tx.Kind)
	if err := both.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	receive(t, "one handler runs", begun)
	receive(t, "the other handler runs", begun)
	close(release)
	drained(t, pool, soon)
	for _, kind := range []string{plain.Kind, tx.Kind} {
		got := all[string](t, pool, `SELECT concat_ws(': ', status, reason) FROM jobgen.job_archive WHERE kind = $1 ORDER BY reason NULLS FIRST`, kind)
		if want := []string{"succeeded", "succeeded: the work of its key is that of another job"}; strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s: %q", kind, got)
		}
	}
}

func TestEachBadRetentionHasItsSentence(t *testing.T) {
	t.Parallel()
	renamed := kind("t.new")
	renamed.Was = []string{"t.old"}
	retain := func(kind string, d time.Duration) worker.Config {
		return worker.Config{Retain: map[string]time.Duration{kind: d}}
	}
	for _, c := range []struct {
		cfg  worker.Config
		want string
	}{
		{retain("t.new", day), ""},
		{retain("t.nwe", day), `worker: Retain names the kind "t.nwe", for which no handler is registered; use the emitted constant of the kind (here are t.k, t.new), or remove it from Retain`},
		{retain("t.old", day), `worker: Retain names "t.old", which is an earlier name of the kind "t.new"; name it "t.new": its jobs are meant under every name`},
		{retain("t.k", 0), `worker: Retain["t.k"] is 0s; it must be at least 1µs (leave the kind out of Retain for no record of its successes)`},
		{retain("t.k", -day), `worker: Retain["t.k"] is -24h0m0s; it must be at least 1µs (leave the kind out of Retain for no record of its successes)`},
		{worker.Config{KeepDead: -1}, "worker: KeepDead is -1ns; it must not be negative"},
		{worker.Config{KeepCancelled: -1}, "worker: KeepCancelled is -1ns; it must not be negative"},
		{worker.Config{KeepSamples: -1}, "worker: KeepSamples is -1ns; it must not be negative"},
	} {
		var r worker.Registry
		worker.HandleNone(&r, kind("t.k"), nothing)
		worker.HandleNone(&r, renamed, nothing)
		if _, err := worker.New(nil, &r, c.cfg); c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
}

func TestAJobThatAWorkerCancelsStaysForAsLongAsItsWorkerSays(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := kind("t.late")
	start(t, pool, worker.Config{KeepCancelled: day}, func(r *worker.Registry) { worker.HandleNone(r, spec, nothing) })
	late, waiting := enqueue(t, pool, spec, task{}, jobs.Within(time.Nanosecond)), enqueue(t, pool, spec, task{}, jobs.In(time.Hour))
	if _, err := waiting.Cancel(t.Context(), pool, ""); err != nil {
		t.Fatal(err)
	}
	drained(t, pool, soon)
	for id, want := range map[int64]time.Duration{late.ID: day, waiting.ID: 30 * day} {
		if a := onRecord(t, pool, id); a.Status != "cancelled" || a.Expires.Sub(a.Finished).Round(time.Second) != want || a.Started != nil || a.Worker != nil {
			t.Errorf("want it kept for %s: %+v", want, a)
		}
	}
}

// With KeepDead nobody has to purge dead jobs by hand.
func TestDeadJobsArePurgedAfterKeepDeadWithALine(t *testing.T) {
	t.Parallel()
	pool := database(t)
	spec := keyed("t.dead")
	old, fresh := enqueue(t, pool, spec, task{N: 1}), enqueue(t, pool, spec, task{N: 2})
	execute(t, pool, `UPDATE jobgen.jobs SET status = 'dead', run_at = now() - CASE id WHEN $1 THEN interval '25 hours' ELSE interval '23 hours' END`, old.ID)
	execute(t, pool, `INSERT INTO jobgen.schedules (kind, name, cron, zone, missed, next_at) VALUES
		('t.gone', 'nightly', '', '', 'once', now() - interval '91 days'), ('t.gone', 'yearly', '', '', 'once', now() - interval '89 days')`)
	w := startChanged(t, pool, worker.Config{Reclaim: 10 * time.Millisecond, KeepDead: day}, worker.PurgeByChunk, func(r *worker.Registry) {
		worker.Handle(r, spec, func(_ context.Context, j *jobs.Job[task]) (string, error) { return "ok", nil })
	})
	becomes(t, pool, old.ID, "is gone", func(r row) bool { return r.Status == "" })
	eventually(t, soon, "what was purged is in the log", func() bool {
		return w.log.has("kind=t.dead jobs=1") && w.log.has("kind=t.gone schedule=nightly")
	})
	if _, err := await(t, pool, old); !errors.Is(err, jobs.ErrNoRecord) {
		t.Errorf("the purged one: %v", err)
	}
	var still *jobs.DeadError
	if _, err := await(t, pool, fresh); !errors.As(err, &still) {
		t.Errorf("the other one: %v", err)
	}
	again := enqueue(t, pool, spec, task{N: 1})
	if got, err := await(t, pool, again); again.Existing || got != "ok" || err != nil {
		t.Errorf("the purged one's key: %+v gives %q, %v", again, got, err)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM jobgen.schedules`); n != 1 {
		t.Errorf("%d schedules are left", n)
	}
}
