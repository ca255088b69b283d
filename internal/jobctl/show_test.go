package jobctl_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/jobs"
)

func TestShowTellsWhyAJobWaits(t *testing.T) {
	t.Parallel()
	q := open(t)
	n := enqueue(q, sendMail, charge{"o-1", 1})
	why := func(texts ...string) {
		t.Helper()
		for i, text := range texts {
			texts[i] = "waits       " + text
		}
		q.ctl("jobs", "show", id(n)).want(0, texts...)
	}
	why("no live worker polls its queue")
	other := q.worker()
	q.exec("UPDATE jobgen.workers SET kinds = '{other}' WHERE id = $1", other.ID)
	why("no live worker of its queue handles its kind (1 of other kinds)")
	q.exec("UPDATE jobgen.workers SET kinds = '{other,mail.send}', versions = '{9,1}' WHERE id = $1", other.ID)
	q.exec("UPDATE jobgen.jobs SET version = 2")
	why("no live worker of its queue reads version 2 of its kind: they are of an older build")
	q.exec("UPDATE jobgen.workers SET versions = NULL")
	why("it is the next of its queue")
	q.exec("UPDATE jobgen.workers SET versions = '{1,2}'")
	why("it is the next of its queue")
	q.exec("UPDATE jobgen.jobs SET version = 1")
	q.exec("UPDATE jobgen.workers SET lease_until = clock_timestamp() - interval '1 second'")
	why("no live worker polls its queue")
	q.worker()
	q.ctl("queues", "pause", "mail").want(0)
	why("its queue is paused, for 0s; to go on: jobctl queues resume mail")
	q.ctl("queues", "resume", "mail").want(0)

	q.exec("UPDATE jobgen.jobs SET run_at = clock_timestamp() + interval '90 minutes 30 seconds'")
	q.ctl("jobs", "show", id(n)).want(0, "waits       it is due in 1h30m", "  due for attempt 1\n")
	q.exec("UPDATE jobgen.jobs SET run_at = clock_timestamp() - interval '1 minute', crashes = 2, deadline = clock_timestamp(), cancel_reason = ''")
	why("somebody has asked to end it", "its deadline has passed: it ends cancelled", "2 workers were lost while they ran it: it is started only by a worker that runs nothing else")
	q.exec("UPDATE jobgen.jobs SET crashes = 0, deadline = NULL, cancel_reason = NULL")

	before := enqueue(q, sendMail, charge{"first", 1})
	q.exec("UPDATE jobgen.jobs SET run_at = clock_timestamp() - interval '1 hour' WHERE id = $1", before)
	enqueue(q, sendMail, charge{"behind", 1})
	enqueue(q, chargeCard, charge{"of another queue", 1})
	why("1 job of its queue is due before it")
	enqueue(q, sendMail, charge{"more important", 1}, jobs.Priority(9))
	enqueue(q, sendMail, charge{"later", 1}, jobs.Priority(9), jobs.In(time.Hour))
	why("2 jobs of its queue are due before it")
	q.mails(1)
	q.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, priority) SELECT 'mail', 'mail.send', '{}', 9 FROM generate_series(1, 10001)`)
	why("10,000 jobs or more of its queue are due before it")
	var v struct {
		Waits struct{ Polls, Handles, Reads, Ahead int }
		Why   []string
	}
	if q.ctl("jobs", "show", id(n), "--json").decode(&v); fmt.Sprint(v) != "{{1 1 1 10000} [10,000 jobs or more of its queue are due before it]}" {
		t.Errorf("JSON: %v", v)
	}
}

func TestShowTellsWhoRunsAJobAndWhetherThatWorkerLives(t *testing.T) {
	t.Parallel()
	q := open(t)
	n := enqueue(q, sendMail, charge{"o-1", 1})
	w := q.worker()
	q.claim(w, 1)
	q.exec("UPDATE jobgen.jobs SET claimed_at = clock_timestamp() - interval '5 minutes 2 seconds', created_at = clock_timestamp() - interval '2 hours 5 minutes 30 seconds'")
	q.ctl("jobs", "show", id(n)).want(0, "job 1 is running for 5m2s", "worker      web-1, pid 1 ("+w.ID.String()+"), alive: last heartbeat 0s ago", "    waited 2h0m\n", "  attempt 1 runs on web-1 (pid 1)\n")
	q.exec("UPDATE jobgen.workers SET lease_until = clock_timestamp() - interval '10 seconds 500 ms'")
	q.ctl("jobs", "show", id(n)).want(0, "whose lease ran out 10s ago: the job goes back to its queue within seconds")
	q.exec("UPDATE jobgen.workers SET lost_at = clock_timestamp() - interval '10 seconds 500 ms'")
	q.ctl("jobs", "show", id(n)).want(0, "lost 10s ago: the job goes back")
	q.exec("DELETE FROM jobgen.workers")
	q.ctl("jobs", "show", id(n)).want(0, "which is not on record: the job goes back")

	owned := enqueue(q, sendMail, charge{"o-2", 1})
	w = q.worker()
	q.exec("INSERT INTO jobgen.job_start (job_id, worker_id, started_at) VALUES ($1, $2, clock_timestamp() - interval '20 seconds 500 ms')", owned, w.ID)
	q.ctl("jobs", "show", id(owned)).want(0, "is running for 20s", "alive: last heartbeat", "attempt 1 runs on web-1")
	q.ctl("jobs", "list", "--status", "running").want(0, "2   running", "for 20s", "2 jobs")
}

func TestShowTellsUnknownIDsApart(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.ctl("jobs", "show", "1").want(1, "no job has had that id yet (the last one is 0)").sentence()
	n := enqueue(q, sendMail, charge{"o-1", 1})
	q.finish(q.worker(), 1, "")
	q.exec("DELETE FROM jobgen.job_result")
	q.ctl("jobs", "show", id(n)).want(1, "it succeeded and its kind keeps no record").sentence()
	q.ctl("jobs", "show", "2").want(1, "no job has had that id yet (the last one is 1)").sentence()
	q.exec(`INSERT INTO jobgen.job_archive (job_id, status, queue, kind, version, attempt, crashes, payload, created_at, expires_at)
		VALUES (1, 'succeeded', 'mail', 'mail.send', 1, 1, 0, '{}', clock_timestamp() - interval '1 hour', clock_timestamp() + interval '1 day')`)
	q.ctl("jobs", "show", id(n)).want(0, "job 1 has succeeded, 0s ago", "succeeded   ", "  succeeded\n")
	q.ctl("jobs", "list", "--status", "succeeded").want(0, "succeeded  mail.send")
}

func TestAFreshStartIsToldFromAFirstOne(t *testing.T) {
	t.Parallel()
	q := open(t)
	n := enqueue(q, sendMail, charge{"o-1", 1})
	q.ctl("jobs", "show", id(n)).want(0, "  due for attempt 1, and waits\n")
	w := q.worker()
	q.fail(w, 1, true, "no such mailbox")
	q.ctl("jobs", "list", "--status", "dead").want(0, "jobctl jobs show "+id(n)+"; for a fresh start: jobctl jobs requeue")
	q.ctl("jobs", "requeue", id(n)).want(0)
	q.ctl("jobs", "show", id(n)).want(0, "attempt 1 failed", "  due for attempt 1 of a fresh start, and waits\n")
	if o := q.ctl("jobs", "list").want(0); strings.Contains(o.err, "fresh start") {
		t.Error(o.err)
	}
	q.exec("UPDATE jobgen.jobs SET crashes = 2, last_error = 'the worker process was lost'")
	q.ctl("jobs", "list").want(0, ", 2 crashes: ")
}
