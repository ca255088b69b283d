package jobctl_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/internal/jobctl"
	"github.com/jobgen-go/jobgen/jobs"
)

// mails enqueues n jobs of mail.send.
func (q *queue) mails(n int) {
	q.Helper()
	if _, err := jobs.EnqueueMany(q.Context(), q.pool, sendMail, make([]charge, n)); err != nil {
		q.Fatal(err)
	}
}

func TestNobodyChangesAllJobsByForgettingToSayWhich(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"requeue", "cancel", "delete"} {
		run(t, t.Context(), jobctl.Env{}, "jobs", verb, "--yes").want(2, "say which jobs to "+verb, "--all").sentence()
		run(t, t.Context(), jobctl.Env{}, "jobs", verb, "--all").want(2, "no terminal to ask on", "--yes").sentence()
		run(t, t.Context(), jobctl.Env{}, "jobs", verb, "--kind", "", "--yes").want(2, "--kind is empty").sentence()
		run(t, t.Context(), jobctl.Env{}, "jobs", verb, "1", "--all", "--yes").want(2, "not both").sentence()
	}
	run(t, t.Context(), jobctl.Env{}, "jobs", "delete", "1").want(2, "no terminal to ask on").sentence()
	q := open(t)
	q.mails(2)
	q.deadJob()
	q.ctl("jobs", "delete", "--all", "--yes").want(0, "deleted 3")
	if q.count("SELECT count(*) FROM jobgen.jobs") != 0 {
		t.Error("--all is not all")
	}
}

func TestAFilterThatCannotBeReadIsExitCode2(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--older", "x"}, {"--older", "-1h"}, {"--newer", "3"}, {"--waiting", "1w"}, {"--payload", "a"}, {"--payload", "=1"}, {"--payload", "a..b=1"}, {"--payload", `"a=1`},
		{"--payload", `"a"b=1`}, {"--payload", "a=\xff"}, {"--error", "\xff"}, {"--kind", "\xff"}, {"--status", "done"}, {"--queue", ""},
	} {
		run(t, t.Context(), jobctl.Env{}, append([]string{"jobs", "list"}, args...)...).want(2, args[0]).sentence()
	}
	run(t, t.Context(), jobctl.Env{}, "jobs", "delete", "--status", "running", "--yes").want(2, "jobctl jobs cancel")
	run(t, t.Context(), jobctl.Env{}, "jobs", "requeue", "--status", "queued", "--yes").want(2, "it may be dead")
	run(t, t.Context(), jobctl.Env{}, "jobs", "requeue", "1", "--spread", "x").want(2, "--spread")
}

func TestThePayloadFilterReadsPathsAndValues(t *testing.T) {
	t.Parallel()
	q := open(t)
	spec := &jobs.Spec[map[string]any, jobs.None]{Kind: "k", Queue: "q"}
	n := enqueue(q, spec, map[string]any{"order": map[string]any{"id": 17, "lines": []any{map[string]any{"sku": "A=1"}}}, "a.b": "x\ny", "t": true})
	enqueue(q, spec, map[string]any{"order": map[string]any{"id": "018"}})
	for _, want := range []string{"order.id=17", "order.id=17.0", "order.lines.0.sku=A=1", `"a.b"=x` + "\ny", `"\u0061.b"=x` + "\ny", "t=true", `order.lines=[{"sku":"A=1"}]`} {
		q.ctl("jobs", "list", "--payload", want).want(0, id(n), "1 job with payload")
	}
	q.ctl("jobs", "list", "--payload", "order.id=17", "--payload", "t=true").want(0, "payload order.id=17 and t=true")
	for _, not := range []string{"order.id=1", "order.id=18", "t=1", "order=17", "a.b=x", "' OR 1=1 --=1", "order.id=1e400"} {
		q.ctl("jobs", "list", "--payload", not).want(1, "no jobs with payload").sentence()
	}
}

func TestAKeyIsLookedForAsItWasGiven(t *testing.T) {
	t.Parallel()
	q := open(t)
	long := strings.Repeat("long ", 60)
	n := enqueue(q, chargeCard, charge{"o-1", 1}, jobs.Key(long))
	enqueue(q, chargeCard, charge{"o-2", 1}, jobs.Key("short"))
	q.ctl("jobs", "list", "--key", long).want(0, "1 job with key")
	var v struct{ Jobs []struct{ Key string } }
	q.ctl("jobs", "list", "--key", long, "--json").decode(&v)
	q.ctl("jobs", "list", "--key", v.Jobs[0].Key).want(0, id(n))
	q.ctl("jobs", "list", "--key", "none").want(1, "no jobs with key none; emitted code makes keys like 1/s3:o-17", "--payload order_id=o-17").sentence()
	if o := q.ctl("jobs", "list", "--key", "1/s4:none").want(1, "no jobs with key 1/s4:none"); strings.Contains(o.err, "emitted") {
		t.Error(o.err)
	}
}

func TestListShowsWhatHasLeftTheQueueWhenItIsAskedTo(t *testing.T) {
	t.Parallel()
	q := open(t)
	for i := range 5 {
		enqueue(q, chargeCard, charge{"o", i}, jobs.Key(fmt.Sprint("k", i)))
	}
	q.ctl("jobs", "cancel", "2", "4", "--reason", "Customer left").want(0)
	q.ctl("jobs", "list", "--status", "cancelled").want(0, "0s ago: Customer left", "2 jobs with status cancelled")
	ids := func(args ...string) (out []int64) {
		t.Helper()
		var v struct{ Jobs []struct{ ID int64 } }
		q.ctl(append([]string{"jobs", "list", "--json"}, args...)...).decode(&v)
		for _, j := range v.Jobs {
			out = append(out, j.ID)
		}
		return out
	}
	for want, args := range map[string][]string{
		"[5 4 3 2 1]": {"--status", "cancelled,queued"}, "[4 3]": {"--status", "cancelled,queued", "--before", "5", "--limit", "2"}, "[4]": {"--status", "cancelled", "--payload", "cents=3"},
		"[4 2]": {"--status", "cancelled", "--error", "customer"}, "[2]": {"--status", "cancelled,succeeded", "--key", "k1"}, "[]": {"--status", "succeeded"},
	} {
		if got := fmt.Sprint(ids(args...)); got != want {
			t.Errorf("%v: got %s, want %s", args, got, want)
		}
	}
	q.ctl("jobs", "list", "1", "3", "2").want(0, "2 jobs")
}

func TestDeleteRemovesAJobForGoodAndLeavesWhoDidIt(t *testing.T) {
	t.Parallel()
	q := open(t)
	dead := q.deadJob()
	queued := enqueue(q, chargeCard, charge{"o-2", 2}, jobs.Key("order o-2"))
	q.exec("INSERT INTO jobgen.job_cancel (job_id, worker_id, reason) VALUES ($1, gen_random_uuid(), '')", queued)
	q.exec("INSERT INTO jobgen.job_start (job_id, worker_id) VALUES ($1, gen_random_uuid())", queued)
	q.ctl("jobs", "delete", id(dead), id(queued), "--dry-run").want(0, "job 1 would be deleted\njob 2 would be deleted\n")
	if q.count("SELECT count(*) FROM jobgen.jobs") != 2 {
		t.Fatal("--dry-run deleted some")
	}
	env := q.env
	env.Ask, env.Stdin = true, strings.NewReader("n\n")
	q.ctlIn(env, "jobs", "delete", id(dead), id(queued)).want(1, "Delete 2 jobs for good? [y/N]", "nothing was changed")
	q.ctl("jobs", "delete", id(dead), id(queued), "4711", "--yes", "--reason", "wrong order\x1b").want(1, "job 1 deleted\njob 2 deleted\n", "job 4711 is unknown", "1 of 3 not deleted")
	for _, table := range []string{"jobs", "job_result", "job_start", "job_cancel", "job_archive"} {
		if n := q.count("SELECT count(*) FROM jobgen." + table); n != 0 {
			t.Errorf("%d rows are left in %s", n, table)
		}
	}
	if n := q.count("SELECT count(*) FROM jobgen.job_attempt WHERE outcome <> 'deleted'"); n != 0 {
		t.Errorf("%d attempts are left", n)
	}
	q.ctl("jobs", "show", id(dead)).want(0, "job 1 was deleted, 0s ago, by database user "+q.pool.Config().ConnConfig.User+`: wrong order\x1b`)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := jobs.RefTo(chargeCard, dead).Await(ctx, q.pool); !errors.Is(err, jobs.ErrNoRecord) {
		t.Errorf("who awaits it learns: %v", err)
	}
	if again := enqueue(q, chargeCard, charge{"o-2", 2}, jobs.Key("order o-2")); again == queued {
		t.Error("its key is not free")
	}
	q.ctl("jobs", "delete", id(dead), "--yes").want(1, "job 1 is unknown")
}

func TestDeleteLeavesWhatRunsIsLockedOrHasEnded(t *testing.T) {
	t.Parallel()
	q := open(t)
	w := q.worker()
	finished := enqueue(q, chargeCard, charge{"o-1", 1}, jobs.Key("k"))
	q.finish(w, 1, "")
	running := enqueue(q, sendMail, charge{"o-2", 1})
	q.claim(w, 1)
	cancelled := enqueue(q, sendMail, charge{"o-3", 1})
	q.ctl("jobs", "cancel", id(cancelled)).want(0)
	locked := enqueue(q, sendMail, charge{"o-4", 1})
	owned := enqueue(q, sendMail, charge{"o-5", 1})
	q.exec("INSERT INTO jobgen.job_start (job_id, worker_id) VALUES ($1, $2)", owned, w.ID)
	tx, err := q.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT FROM jobgen.jobs WHERE id IN ($1, $2) FOR UPDATE", locked, owned); err != nil {
		t.Fatal(err)
	}
	q.ctl("jobs", "delete", id(finished), id(running), id(cancelled), id(locked), id(owned), "--yes").want(1,
		"job 1 has finished, 0s ago; its record goes by itself in 59m", "job 2 is running for 0s; end it first: jobctl jobs cancel 2",
		"job 3 is cancelled, 0s ago; its record goes by itself in 29d23h", "job 4 is queued, but somebody else has it locked", "job 5 is running for 0s", "5 of 5 not deleted")
	q.ctl("jobs", "delete", "--kind", sendMail.Kind, "--yes").want(1, "1 not deleted: somebody else has them locked")
	if q.count("SELECT count(*) FROM jobgen.jobs") != 3 {
		t.Error("one is gone")
	}
}

func TestDeleteByFilterCountsShowsAndDeletesInChunks(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.deadMails(1200)
	q.mails(1300)
	enqueue(q, chargeCard, charge{"stays", 1})
	running := q.claim(q.worker(), 1)
	q.ctl("jobs", "delete", "--kind", sendMail.Kind, "--dry-run").want(0, "would delete 2,500 jobs with kind mail.send: 1,300 queued, 1,200 dead (oldest: ",
		"STATUS  KIND       QUEUE  JOBS   OLDEST\n", "queued  mail.send  mail   1,300  ", "the first ones")
	var v struct {
		Matched int64
		DryRun  bool `json:"dry_run"`
		Parts   []struct {
			Status string
			Jobs   int64
		}
		Sample []struct{ ID int64 }
	}
	q.ctl("jobs", "delete", "--kind", sendMail.Kind, "--dry-run", "--json").want(0).decode(&v)
	if fmt.Sprint(v) != "{2500 true [{queued 1300} {dead 1200}] [{1} {2} {3} {4} {5}]}" {
		t.Errorf("JSON: %+v", v)
	}
	env := q.env
	env.Ask, env.Progress, env.Stdin = true, true, strings.NewReader("y\n")
	q.ctlIn(env, "jobs", "delete", "--kind", sendMail.Kind).want(0, "Delete 2,500 jobs with kind mail.send: 1,300 queued, 1,200 dead (oldest: ", "for good? [y/N]",
		"[========            ] 1,000 of 2,500 deleted", "deleted 2,500 of 2,500 jobs with kind mail.send\n")
	if n := q.count("SELECT count(DISTINCT xmin::text) FROM jobgen.job_attempt"); n != 3 {
		t.Errorf("in %d transactions, want 3", n)
	}
	if q.count("SELECT count(*) FROM jobgen.jobs WHERE id = $1", running[0].ID) != 1 || q.count("SELECT count(*) FROM jobgen.jobs") != 1 {
		t.Error("it deleted another's")
	}
}

func TestCancelByFilterEndsWhatWaitsAndAsksForWhatRuns(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.mails(4)
	w := q.worker()
	q.claim(w, 2) // 1, 2
	keyed := enqueue(q, chargeCard, charge{"o-1", 1}, jobs.Key("k"))
	q.ctl("jobs", "cancel", "--queue", "mail", "--dry-run").want(0, "would cancel 4 jobs with queue mail: 2 queued, 2 running")
	q.ctl("jobs", "cancel", id(keyed), "4711", "--dry-run").want(1, "job 5 would be cancelled", "job 4711 is unknown")
	q.ctl("jobs", "cancel", "--queue", "mail", "--status", "ready", "--reason", "too late", "--yes").want(0, "cancelled 2 jobs with status ready and queue mail")
	if n := q.count("SELECT count(*) FROM jobgen.jobs WHERE cancel_reason IS NOT NULL"); n != 0 {
		t.Errorf("%d that run were asked to end", n)
	}
	if n := q.count("SELECT count(*) FROM jobgen.job_archive WHERE reason = 'too late' AND status = 'cancelled'"); n != 2 {
		t.Errorf("%d on record, want 2", n)
	}
	var v map[string]int
	q.ctl("jobs", "cancel", "--all", "--yes", "--json").want(0).decode(&v)
	if fmt.Sprint(v) != "map[asked:2 cancelled:1 matched:3]" {
		t.Errorf("JSON: %v", v)
	}
	q.ctl("jobs", "cancel", "--status", "running", "--yes").want(0, "asked the workers of 2 that run to stop them")
	if n := q.count("SELECT count(*) FROM jobgen.job_cancel"); n != 2 {
		t.Errorf("%d messages to workers, want 2", n)
	}
	q.ctl("jobs", "cancel", "--kind", "none", "--yes").want(1, "no jobs with kind none").sentence()
}

// A job that starts between being selected and its turn is not what was asked for.
func TestCancelOfWhatWaitsDoesNotAskForWhatHasStartedMeanwhile(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.mails(1500)
	w := q.worker()
	env := q.env
	env.Ask, env.Stdin = true, strings.NewReader("y\n")
	env.Stderr = &watch{text: "[y/N]", then: func() { q.claim(w, 10) }}
	var v map[string]int
	run(t, t.Context(), env, "jobs", "cancel", "--status", "queued", "--json").want(1).decode(&v)
	if v["cancelled"] != 1490 || v["asked"] != 0 || v["matched"] != 1500 {
		t.Errorf("JSON: %v", v)
	}
	if q.count("SELECT count(*) FROM jobgen.jobs WHERE status = 'running' AND cancel_reason IS NULL") != 10 {
		t.Error("it asked for some that run")
	}
}

func TestRequeueSpreadsAndDelays(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.deadMails(200)
	q.ctl("jobs", "requeue", "--kind", sendMail.Kind, "--delay", "1h", "--spread", "10m", "--yes").want(0, "requeued 200 of 200")
	if n := q.count("SELECT count(*) FROM jobgen.jobs WHERE run_at BETWEEN clock_timestamp() + interval '59 minutes' AND clock_timestamp() + interval '70 minutes'"); n != 200 {
		t.Errorf("%d are due in an hour to an hour and ten minutes, want all", n)
	}
	if n := q.count("SELECT extract(epoch FROM max(run_at) - min(run_at))::int FROM jobgen.jobs"); n < 300 {
		t.Errorf("spread over %d seconds", n)
	}
}

func TestAKeysConflictIsExplained(t *testing.T) {
	t.Parallel()
	q := open(t)
	w := q.worker()
	// handed makes a dead job whose key a newer one got while it ran.
	handed := func(key string) (old, newer int64) {
		t.Helper()
		old = enqueue(q, chargeCard, charge{"o", 1}, jobs.Key(key), jobs.MaxAttempts(1))
		got := q.claim(w, 1)
		if len(got) != 1 || got[0].ID != old {
			t.Fatalf("claimed %v", got)
		}
		newer = enqueue(q, chargeCard, charge{"o", 2}, jobs.Key(key), jobs.Debounce(time.Hour, 2*time.Hour), jobs.MaxAttempts(1))
		q.failHeld(w, got)
		if newer == old {
			t.Fatal("the key was not handed over")
		}
		return old, newer
	}
	due := func(n int64) {
		q.exec("UPDATE jobgen.jobs SET run_at = clock_timestamp() - interval '1 second' WHERE id = $1", n)
	}
	stays := func(old int64, texts ...string) {
		t.Helper()
		q.ctl("jobs", "requeue", id(old), "--dry-run").want(1, texts...)
		q.ctl("jobs", "requeue", id(old)).want(1, texts...)
		if q.count("SELECT count(*) FROM jobgen.jobs WHERE id = $1 AND dead", old) != 1 {
			t.Errorf("job %d is not dead any more", old)
		}
	}
	waits, newer := handed("waits")
	stays(waits, fmt.Sprintf(`its key "waits" is now that of job %d, which is queued`, newer), fmt.Sprintf("jobctl jobs cancel %d, then requeue it", newer), fmt.Sprintf("jobctl jobs delete %d", waits))
	q.ctl("jobs", "show", id(waits)).want(0, fmt.Sprintf("key         waits (job %d's now, which is queued)", newer))
	// As the message says.
	q.ctl("jobs", "cancel", id(newer)).want(0)
	q.ctl("jobs", "requeue", id(waits)).want(0)
	if again := enqueue(q, chargeCard, charge{"o", 3}, jobs.Key("waits")); again != waits {
		t.Errorf("the key is job %d's, not %d's", again, waits)
	}
	q.ctl("jobs", "delete", id(waits), "--yes").want(0)

	died, newer := handed("died")
	q.ctl("jobs", "show", id(died)).want(0, fmt.Sprintf("job %d is dead; its key is job %d's now: jobctl jobs show %d\n", died, newer, newer))
	due(newer)
	q.fail(w, 1, true, "no")
	stays(died, fmt.Sprintf("job %d, which is dead too", newer), fmt.Sprintf("jobctl jobs requeue %d", newer))
	q.ctl("jobs", "requeue", "--kind", chargeCard.Kind, "--yes").want(1, "requeued 1 of 2", fmt.Sprintf("job %d is dead, and its key", died), "1 not requeued: their keys are other jobs' by now")
	q.ctl("jobs", "delete", "--all", "--yes").want(0)

	done, newer := handed("done")
	due(newer)
	q.finish(w, 1, `"r"`)
	stays(done, fmt.Sprintf("was done by job %d, 0s ago: requeued, it would end without running", newer), "after that result expires, in 59m")
	q.ctl("jobs", "show", id(done)).want(0, fmt.Sprintf("(its work was done by job %d)", newer))
	q.ctl("jobs", "requeue", "--all", "--dry-run").want(0, "would requeue 1 dead job", "1 of them would stay dead")
	// Its result has expired: the key is free, and the job takes it back.
	q.exec("UPDATE jobgen.job_result SET expires_at = clock_timestamp() - interval '1 second', finished_at = clock_timestamp() - interval '2 seconds' WHERE key = 'done'")
	q.ctl("jobs", "show", id(done)).want(0, "whose result has expired: it is free)")
	q.ctl("jobs", "requeue", id(done)).want(0)
	if q.count("SELECT count(*) FROM jobgen.job_result WHERE key = 'done' AND job_id = $1 AND finished_at IS NULL AND result IS NULL", done) != 1 {
		t.Error("it has not got its key back")
	}
	q.ctl("jobs", "delete", "--all", "--yes").want(0)

	// It expired, was purged, and the work enqueued anew.
	anew, newer := handed("anew")
	q.ctl("jobs", "delete", id(newer), "--yes").want(0)
	again := enqueue(q, chargeCard, charge{"o", 3}, jobs.Key("anew"))
	stays(anew, fmt.Sprintf("is now that of job %d, which is queued", again))
	q.ctl("jobs", "delete", "--all", "--yes").want(0)

	// Nobody has it, and two want it: only the newer one gets it.
	first, second := handed("two")
	due(second)
	q.fail(w, 1, true, "no")
	q.exec("DELETE FROM jobgen.job_result")
	q.ctl("jobs", "requeue", id(first), id(second)).want(1, fmt.Sprintf("job %d requeued", second), fmt.Sprintf("job %d is dead, and its key", first))
	if q.count("SELECT count(*) FROM jobgen.job_result WHERE key = 'two' AND job_id = $1", second) != 1 {
		t.Error("the newer one has not got the key")
	}
	q.ctl("jobs", "delete", "--all", "--yes").want(0)

	// The job that had it was removed by hand.
	gone, newer := handed("gone")
	q.exec("DELETE FROM jobgen.jobs WHERE id = $1", newer)
	q.ctl("jobs", "requeue", id(gone)).want(0)
	if q.count("SELECT count(*) FROM jobgen.job_result WHERE key = 'gone' AND job_id = $1", gone) != 1 {
		t.Error("it has not got its key back")
	}
}

func TestWhatWasLockedIsTriedASecondTime(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.deadMails(1500)
	tx, err := q.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT FROM jobgen.jobs WHERE id IN (3, 1200) FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	env := q.env
	env.Progress = true
	env.Stderr = &watch{text: "1,498 of 1,500 requeued", then: func() { _ = tx.Rollback(context.Background()) }}
	run(t, t.Context(), env, "jobs", "requeue", "--kind", sendMail.Kind, "--yes").want(0, "requeued 1,500 of 1,500")
	if n := q.count("SELECT count(*) FROM jobgen.jobs WHERE dead"); n != 0 {
		t.Errorf("%d are still dead", n)
	}
}

func TestTwoRunsAtTheSameTimeChangeEachJobOnce(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.mails(4000)
	var all sync.WaitGroup
	deleted := make([]int, 3)
	for i := range deleted {
		all.Go(func() {
			var v struct{ Deleted int }
			if o := q.ctl("jobs", "delete", "--kind", sendMail.Kind, "--yes", "--json"); o.code > 1 {
				t.Error(o.err)
			} else {
				o.decode(&v)
			}
			deleted[i] = v.Deleted
		})
	}
	all.Wait()
	if sum := deleted[0] + deleted[1] + deleted[2]; sum != 4000 || q.count("SELECT count(*) FROM jobgen.job_attempt") != 4000 || q.count("SELECT count(*) FROM jobgen.jobs") != 0 {
		t.Errorf("deleted %v, %d on record", deleted, q.count("SELECT count(*) FROM jobgen.job_attempt"))
	}
}

func TestWhenTheDatabaseGoesAwayItSaysHowFarItGot(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.deadMails(2500)
	env := q.env
	stderr := &watch{text: "1,000 of 2,500 requeued", then: func() {
		q.exec("UPDATE pg_database SET datallowconn = false WHERE datname = current_database()")
		q.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'jobctl'")
	}}
	env.Progress, env.Stderr = true, stderr
	o := run(t, t.Context(), env, "jobs", "requeue", "--kind", sendMail.Kind, "--yes")
	o.err = strings.Join(strings.Fields(stderr.String()), " ") // it is a terminal, and has lines
	o.want(3, "requeued 1,000 of 2,500", "stopped after 1,000 of 2,500; running it again is safe and goes on with what is left")
	q.exec("UPDATE pg_database SET datallowconn = true WHERE datname = current_database()")
	if n := q.count("SELECT count(*) FROM jobgen.jobs WHERE dead"); n != 1500 {
		t.Errorf("%d are dead, want 1500", n)
	}
	q.ctl("jobs", "requeue", "--kind", sendMail.Kind, "--yes").want(0, "requeued 1,500 of 1,500")
}

func TestAnInterruptWhileCountingChangesNothing(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.mails(10)
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	run(t, ctx, q.env, "jobs", "delete", "--all", "--yes").want(1, "interrupted")
	env := q.env
	env.Ask = true
	ctx, interrupt = context.WithCancel(t.Context())
	defer interrupt()
	env.Stderr = &watch{text: "[y/N]", then: interrupt}
	silent := make(chan struct{})
	defer close(silent)
	env.Stdin = readerFunc(func([]byte) (int, error) { <-silent; return 0, errors.New("closed") })
	run(t, ctx, env, "jobs", "delete", "--all").want(1)
	if q.count("SELECT count(*) FROM jobgen.jobs") != 10 {
		t.Error("some are gone")
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestTheShellCompletesQueuesAndIDs(t *testing.T) {
	t.Parallel()
	q := open(t)
	dead := q.deadJob()
	q.mails(2)
	for _, c := range []struct{ args, want []string }{
		{[]string{"jobs", "list", "--queue", ""}, []string{"billing", "mail"}},
		{[]string{"jobs", "requeue", ""}, []string{id(dead) + "\tdead billing.charge_card"}},
		{[]string{"jobs", "show", ""}, []string{"3\tqueued mail.send", "2\tqueued mail.send", id(dead) + "\tdead billing.charge_card"}},
		{[]string{"jobs", "delete", "3", ""}, []string{"2\tqueued mail.send", id(dead) + "\tdead billing.charge_card"}},
	} {
		o := q.ctl(append([]string{"__complete"}, c.args...)...).want(0)
		lines := strings.Split(strings.TrimSpace(o.out), "\n")
		if got := lines[:len(lines)-1]; !slices.Equal(got, c.want) {
			t.Errorf("%q: got %q, want %q", c.args, got, c.want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		run(t, t.Context(), jobctl.Env{}, "completion", shell).want(0, "jobctl")
	}
}
