package doctor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/internal/doctor"
)

// hire puts a live worker of queue q on record; set changes its row.
func (p *patient) hire(set string) (id string) {
	p.Helper()
	id = value[string](p, `INSERT INTO jobgen.workers (id, lease_until, pid, host, build, queues, kinds, versions, timeouts_us)
		VALUES (gen_random_uuid(), clock_timestamp() + interval '15 seconds', 4711, 'web-1', '', '{q}', '{k}', '{2}', '{0}') RETURNING id::text`)
	if set != "" {
		p.exec("UPDATE jobgen.workers SET "+set+" WHERE id = $1::text::uuid", id)
	}
	return id
}

// wait puts n jobs on record that have waited for a while.
func (p *patient) wait(n int, queue, kind string, version int, since string) {
	p.Helper()
	p.exec(`INSERT INTO jobgen.jobs (queue, kind, version, payload, run_at) SELECT $2, $3, $4, '{}', clock_timestamp() - $5::text::interval FROM generate_series(1, $1::int)`, n, queue, kind, version, since)
}

func TestJobsThatNoLiveWorkerTakesAreFound(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.wait(300, "q", "k", 1, "2 hours")
	p.wait(5, "elsewhere", "k", 1, "2 minutes")
	p.hire("lost_at = clock_timestamp(), beat_at = clock_timestamp() - interval '1 hour'")
	p.finds("workers", doctor.Critical, "No worker is alive, and jobs wait", "queue q, kind k: at least 200 wait, the oldest for 2h0m", "1 worker is on record and lost; the last was heard of 1h0m ago")
	p.hire("")
	p.wait(3, "q", "unknown", 1, "20 minutes")
	p.wait(2, "q", "k", 3, "3 hours") // ahead of the others of its kind, as what nobody takes comes to be
	p.wait(2, "q", "k", 2, "20 minutes")
	p.wait(2, "q", "young", 1, "20 seconds")
	r := p.examine("workers")
	if len(r.Findings) != 3 {
		t.Errorf("%+v", r.Findings)
	}
	p.in(r, "workers", doctor.Warning, "No live worker takes jobs of the queue elsewhere", "5 wait, the oldest for 2m")
	p.in(r, "workers", doctor.Critical, "No live worker handles the kind unknown", "3 wait", "jobctl jobs list --kind unknown --status queued")
	p.in(r, "workers", doctor.Critical, "No live worker reads payloads of version 3 of the kind k", "2 wait, the oldest for 3h0m")
	p.wait(250, "elsewhere", "many", 1, "90 seconds")
	p.finds("workers", doctor.Warning, "No live worker takes jobs of the queue elsewhere", "kind many: 250 wait, the oldest for 1m")
	p.exec("DELETE FROM jobgen.jobs WHERE kind = 'many'")
	p.hire("queues = '{q,elsewhere}', kinds = '{k,unknown,young}', versions = '{3,1,1}'")
	p.healthy("workers")
	p.hire("stuck = 2")
	p.hire("stuck = 1, pid = 4712")
	p.finds("workers", doctor.Warning, "Handlers run on although their context has ended", "web-1, pid 4711: 2 stuck", "web-1, pid 4712: 1 stuck", "jobctl jobs list --error 'the handler ignored that'")
	p.exec("UPDATE jobgen.workers SET slots = 2, running = 2, stuck = 2 WHERE lost_at IS NULL")
	p.finds("workers", doctor.Critical, "Handlers run on although their context has ended, in all slots")
}

func TestAQueueThatWasForgottenPausedIsFound(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.hire("")
	p.exec("INSERT INTO jobgen.queues (name, paused_at) VALUES ('odd queue', clock_timestamp() - interval '3 hours')")
	p.healthy("paused", "workers") // nothing waits
	p.wait(2, "odd queue", "k", 1, "150 minutes")
	p.healthy("workers")
	p.finds("paused", doctor.Warning, "The queue odd queue is paused", "paused for 3h0m; 2 wait, the oldest for 2h30m", "jobctl queues resume 'odd queue'")
	p.exec("UPDATE jobgen.queues SET paused_at = clock_timestamp()")
	p.healthy("paused")
}

func TestRunningJobsThatNobodyHasAreFoundAndGivenBack(t *testing.T) {
	t.Parallel()
	p := admit(t)
	w := p.hire("")
	run := func(worker, claimed string, claim bool) {
		p.exec(`WITH j AS (INSERT INTO jobgen.jobs (queue, kind, payload, status, worker_id, fence, attempt, claimed_at)
			VALUES ('q', 'k', '{}', 'running', $1::text::uuid, nextval('jobgen.fence'), 1, clock_timestamp() - $2::text::interval) RETURNING *)
			INSERT INTO jobgen.claims SELECT worker_id, fence, ARRAY[id] FROM j WHERE $3`, worker, claimed, claim)
	}
	run(w, "5 hours", true) // runs for long, and in order
	run("b5b2a1f0-5a1c-4d7e-9b1a-1f0a5a1c4d7e", "2 seconds", true)
	p.healthy("running")
	run("b5b2a1f0-5a1c-4d7e-9b1a-1f0a5a1c4d7e", "2 hours", true)
	run(w, "1 hour", false)
	f := p.finds("running", doctor.Warning, "Jobs are marked running, and no live worker has them", "for 2h0m: its worker is lost or not on record", "for 1h0m: no claim names it", "WHERE status = 'running' AND id IN (3, 4)")
	p.cured(f)
	if n := value[int](p, "SELECT count(*) FROM jobgen.jobs WHERE status = 'running'"); n != 2 {
		t.Errorf("%d run, want those that are somebody's", n)
	}
}

func TestAWorkerThatWasTakenForDeadIsFoundByItsNewID(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.hire("lost_at = clock_timestamp() - interval '10 minutes', beat_at = clock_timestamp() - interval '10 minutes 30 seconds', lease_until = clock_timestamp() - interval '10 minutes 15 seconds', started_at = clock_timestamp() - interval '5 hours'")
	p.hire("host = 'web-2', started_at = clock_timestamp() - interval '1 minute'") // another, started since
	p.healthy("leases")
	p.hire("started_at = clock_timestamp() - interval '9 minutes 50 seconds'")
	f := p.finds("leases", doctor.Warning, "taken for dead although they lived", "web-1, pid 4711: no heartbeat got through for 40s, 10m ago", "the lease is 15s", "Config.Lease of 1m", "happens twice")
	if f.Remedies[0].SQL != "" {
		t.Errorf("%+v", f)
	}
	p.exec("UPDATE jobgen.workers SET pid = 1")
	p.finds("leases", doctor.Note, "a container that was restarted looks the same")
	p.exec("DELETE FROM jobgen.workers")
	p.hire("beat_at = clock_timestamp() - interval '12 seconds', lease_until = clock_timestamp() + interval '3 seconds'")
	p.finds("leases", doctor.Warning, "A worker's heartbeat is late", "last heartbeat 12s ago, lease 15s")
}

// sample counts for a kind: attempts by how long they took (2^i ms), and more.
func (p *patient) sample(kind string, buckets string, succeeded, failed, timedOut, reclaimed, died int) {
	p.Helper()
	p.exec(`INSERT INTO jobgen.samples (minute, queue, kind, run_times, succeeded, failed, timed_out, reclaimed, died)
		VALUES (date_trunc('minute', now()) - interval '5 minutes', 'q', $1, $2::text::bigint[], $3, $4, $5, $6, $7)`, kind, buckets, succeeded, failed, timedOut, reclaimed, died)
}

func TestTimeoutsAreComparedWithTheRunTimesOfTheirKinds(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.hire(fmt.Sprintf("kinds = '{far,cuts,hangs,most,all,fits}', timeouts_us = '{%d,%d,%d,%d,%d,%d}'", time.Hour.Microseconds(), time.Second.Microseconds(), time.Minute.Microseconds(), (2 * time.Second).Microseconds(), (2 * time.Second).Microseconds(), (10 * time.Minute).Microseconds()))
	p.sample("far", "{2000,500,100}", 2600, 0, 0, 0, 0)
	p.sample("fits", "{0,0,0,0,0,0,0,0,0,0,0,0,0,0,2000}", 2000, 0, 0, 0, 0) // 8 to 16 s
	p.sample("cuts", "{0,0,0,0,0,0,0,0,0,500,300}", 700, 100, 100, 0, 0)     // half take 256 to 512 ms
	p.sample("hangs", "{900}", 900, 100, 100, 0, 0)
	p.sample("most", "{200,0,0,0,0,0,0,0,0,0,0,800,0,100}", 200, 900, 900, 0, 0)
	p.sample("all", "{0,0,0,0,0,0,0,0,0,0,0,800,0,100}", 0, 900, 900, 0, 0)
	r := p.examine("timeouts")
	if len(r.Findings) != 5 {
		t.Errorf("%+v", r.Findings)
	}
	p.in(r, "timeouts", doctor.Note, "Timeouts that no run comes near", "kind far: timeout 1h0m; of 2,600 attempts in the last day, 99.9% took less than 4ms")
	p.in(r, "timeouts", doctor.Warning, "The timeout of the kind cuts ends many attempts", "100 of 800 attempts", "the timeout is 1s; half of the others take less than 512ms", "timeout=4s")
	p.in(r, "timeouts", doctor.Warning, "The timeout of the kind most ends many attempts", "900 of 1,100 attempts", "the timeout is 2s; half of the others take less than 1ms", "so these hang")
	p.in(r, "timeouts", doctor.Warning, "The timeout of the kind all ends many attempts", "the timeout is 2s; hardly any comes to an end before", "Either the work takes longer", "timeout=8s", "Or it hangs")
	p.in(r, "timeouts", doctor.Warning, "The timeout of the kind hangs ends many attempts", "so these hang", "jobctl jobs list --kind hangs --status queued,dead --error 'timeout after'")
}

func TestKindsThatTakeTheirWorkerDownAreFound(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.hire("")
	p.wait(2, "q", "oom", 1, "1 minute")
	p.healthy("crashes")
	p.exec("UPDATE jobgen.jobs SET crashes = 3")
	p.finds("crashes", doctor.Warning, "Jobs of the kind oom take their worker down", "2 jobs", "3 times at most", "jobctl jobs show 1")
	p.exec("UPDATE jobgen.jobs SET crashes = 0")
	for range 3 {
		p.hire("lost_at = clock_timestamp() - interval '5 minutes', lease_until = clock_timestamp() - interval '6 minutes', pid = pid + 1")
	}
	p.sample("oom", "{}", 0, 0, 0, 7, 0)
	p.finds("crashes", doctor.Warning, "Workers were lost", "3 workers in the last 1h0m", "7 jobs were taken back, of the kinds oom (7)", "jobctl jobs list --error 'the worker process was lost'")
}

func TestDeadJobsAreShownByKindWithTheirCommonestError(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, status, attempt, claimed_at, last_error)
		SELECT 'q', 'mail.send', '{}', 'dead', 20, clock_timestamp() - interval '5 minutes',
		       CASE WHEN i % 4 = 0 THEN 'no such mailbox' ELSE 'dial tcp 10.0.0.' || i || ':25: "smtp-' || i || '" refused' || E'\n\tstack' END
		FROM generate_series(1, 120) i`)
	p.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, status, attempt, claimed_at, last_error) VALUES ('q', 'odd kind', '{}', 'dead', 20, clock_timestamp() - interval '3 days', 'x')`)
	p.sample("mail.send", "{}", 0, 500, 0, 0, 42)
	p.finds("dead-jobs", doctor.Warning, "121 jobs are dead", "kind mail.send: 120, the last 5m0s ago, 42 in the last day", `75 of the newest 100 like: dial tcp 10.0.0.119:25: "smtp-119" refused`,
		"kind odd kind: 1, the last 3d0h ago", "jobctl jobs list --status dead --kind mail.send", "jobctl jobs requeue --kind mail.send")
	p.exec("DELETE FROM jobgen.jobs WHERE kind = 'mail.send'")
	p.finds("dead-jobs", doctor.Note, "1 job is dead", "jobctl jobs requeue --kind 'odd kind'")
	p.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, status, attempt) SELECT 'q', 'mail.send', '{}', 'dead', 20 FROM generate_series(1, 1200)`)
	p.finds("dead-jobs", doctor.Warning, "1,001 or more jobs are dead", "kind mail.send: 1,000 or more")
}

func TestSchedulesThatAreLateAreFound(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.exec(`INSERT INTO jobgen.schedules (kind, name, cron, zone, missed, next_at) VALUES ('k', 'it''s nightly', '', '', 'once', clock_timestamp() - interval '2 hours'), ('k', 'due', '', '', 'once', clock_timestamp())`)
	f := p.finds("schedules", doctor.Warning, "1 schedule is late", "it's nightly of kind k: its tick was due 2h0m ago")
	f.Remedies = f.Remedies[1:]
	p.cured(f)
}

func TestWhatIsNotPurgedOrKeptForEverIsFound(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.exec(`INSERT INTO jobgen.job_result (kind, key, job_id, finished_at, expires_at) SELECT 'k', 'k' || i, i, now(), now() - interval '2 hours' FROM generate_series(1, 20) i`)
	p.exec(`INSERT INTO jobgen.job_archive (job_id, status, queue, kind, version, attempt, crashes, payload, created_at, expires_at)
		SELECT i, 'cancelled', 'q', 'k', 1, 0, 0, '{}', now(), now() - interval '2 hours' FROM generate_series(1, 20000) i`)
	r := p.examine("history")
	p.in(r, "history", doctor.Warning, "not purged from the table job_result", "20 rows expired")
	p.in(r, "history", doctor.Warning, "not purged from the table job_archive", "more than 10,000 rows expired")
	p.exec("DELETE FROM jobgen.job_result; DELETE FROM jobgen.job_archive")
	p.exec(`INSERT INTO jobgen.job_result (kind, key, job_id, finished_at, expires_at) SELECT 'forever', 'k' || i, i, now(), CASE WHEN i = 1 THEN 'infinity' ELSE now() + interval '100 years' END FROM generate_series(1, 20) i`)
	f := p.finds("history", doctor.Note, "Results are kept for longer than 365d", "20 results: forever (20)")
	p.limits.KeptMany = 20
	p.finds("history", doctor.Warning, "Results are kept")
	p.cured(f)
	p.limits.History = 1
	if text := show(p.finds("history", doctor.Note, "The table job_archive is larger than the queue itself")); !strings.Contains(text, "jobs: ") {
		t.Error(text)
	}
}

func TestABacklogThatGrowsIsFoundAndOneThatShrinksIsNot(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.hire("kinds = '{grows,shrinks}', slots = 10, running = 10")
	p.exec(`INSERT INTO jobgen.looks (minute, taken_at, newest_id, share) SELECT m, m + interval '1 second', 0, 1 FROM generate_series(date_trunc('minute', now()) - interval '15 minutes', date_trunc('minute', now()), '1 minute') m`)
	p.exec(`INSERT INTO jobgen.samples (minute, queue, kind, arrived, succeeded, ready, scheduled, running, dead)
		SELECT m, 'q', k.kind, k.arrived, k.succeeded, 0, 0, 0, 0 FROM generate_series(date_trunc('minute', now()) - interval '15 minutes', date_trunc('minute', now()), '1 minute') m,
		(VALUES ('grows', 300, 100), ('shrinks', 100, 300)) k (kind, arrived, succeeded)`)
	p.wait(2000, "q", "grows", 1, "10 minutes")
	p.wait(2000, "q", "shrinks", 1, "10 minutes")
	r := p.examine("direction")
	p.in(r, "direction", doctor.Warning, "The backlog of the kind grows never drains", "queue q: 2,000 wait, the oldest for 10m", "300 a minute became due, and 100 left", "1 worker takes them, 100% of whose slots", "grows by 12,000 jobs an hour", "About 2 more workers")
	if len(r.Findings) != 1 {
		t.Errorf("%+v", r.Findings)
	}
	p.exec("UPDATE jobgen.workers SET stuck = 6")
	p.exec("UPDATE jobgen.samples SET arrived = 0, succeeded = 0, ready = 2000 WHERE kind = 'grows'")
	f := p.finds("direction", doctor.Warning, "The backlog of the kind grows never drains", "0 a minute became due, and 0 left", "It stays as it is", "6 of their 10 slots are stuck: see the check workers")
	if text := show(f); strings.Contains(text, "more worker") || strings.Contains(text, "grows by") {
		t.Error(text)
	}
	p.exec("DELETE FROM jobgen.looks")
	if r := p.examine("direction"); len(r.Unchecked) != 1 || len(r.Healthy) != 0 || !strings.HasSuffix(r.Unchecked[0].Reason, "grows, shrinks") {
		t.Errorf("%+v", r)
	}
}
