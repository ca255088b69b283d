package jobctl_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/internal/jobctl"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// busy has jobs in each status.
func busy(q *queue) (dead int64) {
	q.Helper()
	dead = q.deadJob()
	enqueue(q, sendMail, charge{"scheduled", 1}, jobs.In(2*time.Hour))
	running := enqueue(q, sendMail, charge{"running", 2})
	if got := q.claim(q.worker(), 1); len(got) != 1 || got[0].ID != running {
		q.Fatalf("claimed %v", got)
	}
	enqueue(q, sendMail, charge{"due", 3})
	enqueue(q, &jobs.Spec[charge, jobs.None]{Kind: "reports.weekly_summary_for_every_customer_and_region", Queue: "reports_at_night"}, charge{})
	q.settle()
	return dead
}

func TestListFitsTheTerminal(t *testing.T) {
	t.Parallel()
	q := open(t)
	busy(q)
	for _, width := range []int{60, 80, 200} {
		env := q.env
		env.Width = width
		q.ctlIn(env, "jobs", "list").want(0, "5 jobs, newest first; that is all").clean(width).golden(fmt.Sprintf("list_%d.txt", width))
	}
	pipe := q.ctl("jobs", "list").clean(80).golden("list_80.txt")
	env := q.env
	env.Getenv = func(name string) string {
		return map[string]string{"COLUMNS": "200", "DATABASE_URL": q.url()}[name]
	}
	q.ctlIn(env, "jobs", "list").golden("list_200.txt")
	if p := process(t, []string{"DATABASE_URL=" + q.url()}, "jobs", "list").want(0).clean(80); strings.Count(p.out, "\n") != strings.Count(pipe.out, "\n") {
		t.Errorf("a process of its own prints %s", p.out)
	}
	for _, width := range []int{1, 10, 30, 40} {
		env.Width = width
		q.ctlIn(env, "jobs", "list").want(0)
	}
}

func TestListFiltersAndPages(t *testing.T) {
	t.Parallel()
	q := open(t)
	busy(q)
	q.deadMails(3) // and the due one with them, last
	ids := func(args ...string) (out []int64, before int64) {
		t.Helper()
		var v struct {
			Jobs []struct {
				ID     int64
				Status string
			}
			Before int64
		}
		q.ctl(append([]string{"jobs", "list", "--json"}, args...)...).decode(&v)
		for _, j := range v.Jobs {
			out = append(out, j.ID)
		}
		return out, v.Before
	}
	for _, c := range []struct {
		args   []string
		want   []int64
		before int64
	}{
		{nil, []int64{8, 7, 6, 5, 4, 3, 2, 1}, 0},
		{[]string{"--limit", "3"}, []int64{8, 7, 6}, 6},
		{[]string{"--limit", "3", "--before", "6"}, []int64{5, 4, 3}, 3},
		{[]string{"--limit", "3", "--before", "4"}, []int64{3, 2, 1}, 0},
		{[]string{"--limit", "8"}, []int64{8, 7, 6, 5, 4, 3, 2, 1}, 0},
		{[]string{"--status", "running"}, []int64{3}, 0},
		{[]string{"--status", "dead,running", "--status", "dead"}, []int64{7, 6, 4, 3, 1}, 0},
		{[]string{"--kind", "billing.charge_card", "--kind", "mail.send", "--before", "4"}, []int64{3, 2, 1}, 0},
		{[]string{"--status", "dead"}, []int64{7, 6, 4, 1}, 0},
		{[]string{"--status", "dead", "--limit", "2"}, []int64{7, 6}, 6},
		{[]string{"--status", "dead", "--limit", "2", "--before", "6"}, []int64{4, 1}, 0},
		{[]string{"--status", "dead", "--kind", "mail.send", "--kind", "none"}, []int64{7, 6, 4}, 0},
		{[]string{"--status", "dead", "--queue", "billing", "--queue", "none"}, []int64{1}, 0},
		{[]string{"--queue", "reports_at_night"}, []int64{5}, 0},
		{[]string{"--queue", "billing", "--status", "queued"}, nil, 0},
	} {
		if got, before := ids(c.args...); !slices.Equal(got, c.want) || before != c.before {
			t.Errorf("%v: got %v and before %d, want %v and %d", c.args, got, before, c.want, c.before)
		}
	}
	q.ctl("jobs", "list", "--limit", "3").want(0, "3 jobs, newest first, and there are more: --before 6 shows the next")
}

func TestShowTellsTheWholeStoryOfADeadJob(t *testing.T) {
	t.Parallel()
	q := open(t)
	n := q.deadJob()
	q.settle()
	q.ctl("jobs", "show", id(n)).want(0).clean(80).golden("show.txt")
	q.ctl("jobs", "show", id(n), "--full").want(0).clean(80).golden("show_full.txt")
	var v struct {
		ID     int64
		Status string
		Job    struct {
			Kind    string
			Payload charge
			Headers map[string]string
			RunAt   time.Time `json:"run_at"`
		}
		Result   *struct{}
		Attempts []struct {
			Attempt        int
			Outcome, Error string
			StartedAt      time.Time `json:"started_at"`
			EndedAt        time.Time `json:"ended_at"`
		}
		Now time.Time
	}
	o := q.ctl("jobs", "show", id(n), "--json").want(0).clean(0)
	o.decode(&v)
	if v.ID != n || v.Status != "dead" || v.Job.Payload != (charge{"o-17", 1290}) || v.Job.Headers["traceparent"] == "" || v.Result != nil ||
		len(v.Attempts) != 3 || v.Attempts[0].Outcome != "crashed" || v.Attempts[2].Error != stack ||
		v.Attempts[2].EndedAt.Sub(v.Attempts[2].StartedAt) < time.Second || v.Now.Location() != time.UTC || v.Now.Before(v.Attempts[2].EndedAt) {
		t.Errorf("got %+v from %s", v, o.out)
	}
}

func TestShowTellsWhatBecameOfAJobThatHasLeftTheQueue(t *testing.T) {
	t.Parallel()
	q := open(t)
	w := q.worker()
	keyed := enqueue(q, chargeCard, charge{"o-1", 1}, jobs.Key("order o-1"))
	q.fail(w, 1, false, "card declined")
	q.finish(w, 1, `{"number": "r-1"}`)
	plain := enqueue(q, chargeCard, charge{"o-2", 1})
	q.finish(w, 1, `"r-2"`)
	valueless := enqueue(q, chargeCard, charge{"o-3", 1})
	q.finish(w, 1, "")
	removed := enqueue(q, chargeCard, charge{"o-4", 1}, jobs.Key("order o-4"))
	ended := enqueue(q, sendMail, charge{"o-5", 1})
	q.exec("DELETE FROM jobgen.jobs WHERE id = $1", removed)
	q.fail(w, 1, true, "no such mailbox")
	q.exec("DELETE FROM jobgen.jobs WHERE id = $1", ended)
	q.settle()

	q.ctl("jobs", "show", id(keyed)).want(0).clean(80).golden("show_finished.txt")
	if o := q.ctl("jobs", "show", id(plain)).want(0, "has finished, 20m ago", `"r-2"`, "billing.charge_card"); strings.Contains(o.out, "job:") {
		t.Errorf("the reserved key is shown: %s", o.out)
	}
	q.ctl("jobs", "show", id(valueless)).want(0, "has finished", "the result has no value")
	q.ctl("jobs", "show", id(removed)).want(0, "gone without a result", "key order o-4 is free")
	q.ctl("jobs", "show", id(ended)).want(0, "ended without a record", "no such mailbox")
	q.ctl("jobs", "show", "4711").want(1, "unknown: nothing is on record").sentence()
	for n, status := range map[int64]string{keyed: "finished", removed: "removed", ended: "ended", 4711: "unknown"} {
		var v struct{ Status string }
		if q.ctl("jobs", "show", id(n), "--json").decode(&v); v.Status != status {
			t.Errorf("job %d: status %q, want %q", n, v.Status, status)
		}
	}
	q.ctl("jobs", "requeue", id(keyed), id(removed)).want(1, "job 1 has finished, 20m ago", "is unknown")
}

func TestNothingAStrangerWroteActsOnTheTerminal(t *testing.T) {
	t.Parallel()
	q := open(t)
	const evil = "\x1b[2J\x1b]0;owned\a\rnow you see\u009b31m \u202egnp.exe \u2028\ufffd\x7f end"
	spec := &jobs.Spec[map[string]string, jobs.None]{Kind: "mail\x1b[31m.send", Queue: "mail\r"}
	n := enqueue(q, spec, map[string]string{"a\x1b[1m": "b\r\x7f\u0085\u202e\U000e0041"}, jobs.Key("k"+evil), jobs.Headers(map[string]string{"h" + evil: evil}))
	w := q.worker()
	w.Queues, w.Kinds[0].Name = []string{spec.Queue}, spec.Kind
	q.fail(w, 1, true, evil+"\nsecond line"+evil)
	for _, args := range [][]string{
		{"stats"}, {"stats", "--json"}, {"stats", "--queue", evil}, {"queues", "list"}, {"jobs", "list"}, {"jobs", "list", "--kind", spec.Kind}, {"jobs", "list", "--json"}, {"jobs", "show", id(n)}, {"jobs", "show", id(n), "--full"}, {"jobs", "show", id(n), "--json"},
		{"jobs", "requeue", "--kind", spec.Kind, "--dry-run"}, {"jobs", "list", "--kind", "no" + evil}, {"jobs", "requeue", "--kind", "no" + evil, "--yes"},
		{"jobs", "requeue", "--kind", spec.Kind, "--yes"}, {"jobs", "show", evil}, {"jobs", evil}, {evil}, {"jobs", "list", "--" + evil}, {"jobs", "list", "--status", evil},
	} {
		o := q.ctl(args...)
		o.out += o.err
		if o.clean(0).out == "" {
			t.Errorf("%q prints nothing", args)
		}
	}
	env := q.env
	env.Ask, env.Progress = true, true
	q.exec("UPDATE jobgen.jobs SET status = 'dead', attempt = 20")
	asked := q.ctlIn(env, "jobs", "requeue", "--kind", spec.Kind).want(1, `Requeue 1 dead job with kind mail\x1b[31m.send`)
	asked.out = asked.err[:strings.IndexByte(asked.err, '?')]
	asked.clean(0)
	q.ctl("jobs", "show", id(n)).want(0, `\x1b[2J`, `\r`, `\u202e`, `\ufffd`, `\u0085`, `\udb40\udc41`)
	var v struct {
		Job struct {
			Kind    string
			Payload map[string]string
		}
		Attempts []struct{ Error string }
	}
	if q.ctl("jobs", "show", id(n), "--json").decode(&v); v.Job.Kind != spec.Kind || v.Job.Payload["a\x1b[1m"] != "b\r\x7f\u0085\u202e\U000e0041" ||
		!strings.HasPrefix(v.Attempts[0].Error, evil) {
		t.Errorf("JSON says something else than the database: %q", v)
	}
}

func TestRequeueRevivesADeadJobWithItsKeyAndKeepsItsHistory(t *testing.T) {
	t.Parallel()
	q := open(t)
	n := q.deadJob()
	q.ctl("jobs", "requeue", id(n), "--dry-run").want(0, "would be requeued")
	if q.count("SELECT count(*) FROM jobgen.jobs WHERE status = 'dead'") != 1 {
		t.Fatal("--dry-run requeued it")
	}
	q.ctl("jobs", "requeue", id(n), id(n)).want(0, "job 1 requeued\n")
	if q.count(`SELECT count(*) FROM jobgen.jobs WHERE id = $1 AND status = 'queued' AND attempt = 0 AND crashes = 0 AND key = 'order o-17'
		AND run_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp()`, n) != 1 {
		t.Errorf("not as new: %s", q.ctl("jobs", "show", id(n)).out)
	}
	q.ctl("jobs", "show", id(n)).want(0, "is queued, due 0s ago", "3 attempts did not succeed")
	if _, err := jobs.Enqueue(t.Context(), q.pool, chargeCard, charge{}, jobs.Key("order o-17")); err != nil || q.count("SELECT count(*) FROM jobgen.jobs") != 1 {
		t.Errorf("its key is not taken any more (%v)", err)
	}
}

func TestWhatIsNotDeadIsRefusedByNameAndTheOthersGoOn(t *testing.T) {
	t.Parallel()
	q := open(t)
	finished := enqueue(q, chargeCard, charge{}, jobs.Key("k"))
	q.finish(q.worker(), 1, "")
	dead := busy(q)
	tx, err := q.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	q.deadMails(3)
	const locked = 5 // the due mail of busy died with them
	if _, err := tx.Exec(t.Context(), "SELECT FROM jobgen.jobs WHERE id = $1 FOR UPDATE", locked); err != nil {
		t.Fatal(err)
	}
	args := []string{"jobs", "requeue", id(finished), "4", "3", id(dead), id(locked), "4711"}
	q.ctl(append(args, "--json", "--dry-run")...).want(1)
	o := q.ctl(args...).want(1,
		"job 1 has finished, 20m ago", "job 4 is running for 2h0m; only a dead job can be requeued", "job 3 is queued already, due in 1h29m",
		"job 2 requeued", "job 5 is dead, but somebody else is just changing it", "job 4711 is unknown", "5 of 6 not requeued")
	if o.out != "job 2 requeued\n" {
		t.Errorf("stdout is %q", o.out)
	}
	var v struct {
		Requeued []int64
		Refused  []struct {
			ID     int64
			Status string
		}
	}
	q.ctl(append(args, "--json")...).want(1).decode(&v)
	if got := fmt.Sprint(v); got != "{[] [{1 finished} {4 running} {3 queued} {2 queued} {5 dead} {4711 unknown}]}" {
		t.Errorf("got %s", got)
	}
	q.ctl("jobs", "requeue", "--kind", sendMail.Kind, "--yes").want(1, "requeued 2 of 3 jobs", "1 not requeued: somebody else has them locked")
}

func TestARequeuedJobIsRunByAWorkerAndSucceeds(t *testing.T) {
	t.Parallel()
	q := open(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var mu sync.Mutex
	broken := true
	var registry worker.Registry
	worker.Handle(&registry, chargeCard, func(context.Context, *jobs.Job[charge]) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if broken {
			return "", jobs.Permanent(errors.New("the terminal is down"))
		}
		return "r-1", nil
	})
	w, err := worker.New(q.pool, &registry, worker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	ref, err := jobs.Enqueue(ctx, q.pool, chargeCard, charge{"o-1", 1}, jobs.Key("order o-1"))
	if err != nil {
		t.Fatal(err)
	}
	var dead *jobs.DeadError
	if _, err := ref.Await(ctx, q.pool); !errors.As(err, &dead) {
		t.Fatalf("it did not die: %v", err)
	}
	q.ctl("jobs", "list", "--status", "dead").want(0, "the terminal is down")
	mu.Lock()
	broken = false
	mu.Unlock()
	q.ctl("jobs", "requeue", id(ref.ID)).want(0)
	if got, err := ref.Await(ctx, q.pool); got != "r-1" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	q.ctl("jobs", "show", id(ref.ID)).want(0, "has finished", `"r-1"`, "1 attempt did not succeed", "the terminal is down")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAllDeadJobsOfAKindAreRequeuedInChunks(t *testing.T) {
	t.Parallel()
	q := open(t)
	other := q.deadJob()
	q.deadMails(3000)
	dead := "SELECT count(*) FROM jobgen.jobs WHERE status = 'dead'"
	q.exec("UPDATE jobgen.jobs SET created_at = clock_timestamp() - interval '3 days 4 hours 30 minutes' WHERE id = 2")
	q.ctl("jobs", "requeue", "--kind", sendMail.Kind, "--dry-run").want(0, "would requeue 3,000 dead jobs with kind mail.send (oldest: 3d4h)")
	if q.count(dead) != 3001 {
		t.Error("--dry-run requeued some")
	}
	env := q.env
	env.Progress = true
	q.ctlIn(env, "jobs", "requeue", "--dead", "--kind", sendMail.Kind, "--yes").
		want(0, "requeued 3,000 of 3,000 jobs with status dead and kind mail.send", "] 1,000 of 3,000 requeued", "] 2,000 of 3,000 requeued")
	if n := q.count("SELECT count(DISTINCT xmin::text) FROM jobgen.jobs WHERE kind = $1", sendMail.Kind); n != 3 {
		t.Errorf("in %d transactions, want 3", n)
	}
	if q.count(dead) != 1 {
		t.Errorf("%d dead, want only job %d of the other kind", q.count(dead), other)
	}
	q.deadMails(1)
	var v map[string]any
	o := q.ctl("jobs", "requeue", "--kind", sendMail.Kind, "--yes", "--json").want(0)
	if o.decode(&v); fmt.Sprint(v) != "map[matched:1 requeued:1]" || o.err != "" {
		t.Errorf("got %v and on stderr %q", v, o.err)
	}
}

func TestAnInterruptSaysHowFarItGotAndRunningItAgainGoesOn(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.deadMails(2500)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	env := q.env
	stderr := &watch{text: "1,000 of 2,500 requeued", then: interrupt}
	env.Progress, env.Stderr = true, stderr
	o := run(t, ctx, env, "jobs", "requeue", "--kind", sendMail.Kind, "--yes")
	o.err = stderr.String()
	if !strings.Contains(o.err, "requeued\r\x1b[Kjobctl: ") {
		t.Errorf("the progress is not wiped out: %q", o.err)
	}
	o.want(1, "requeued 1,000 of 2,500", "interrupted after 1,000 of 2,500; running it again is safe")
	if n := q.count("SELECT count(*) FROM jobgen.jobs WHERE status = 'dead'"); n != 1500 {
		t.Errorf("%d are dead, want 1500", n)
	}
	q.ctl("jobs", "requeue", "--kind", sendMail.Kind, "--yes").want(0, "requeued 1,500 of 1,500")
}

func TestAJobThatDiesAgainMeanwhileIsNotRequeuedTwice(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.deadMails(1500)
	w := q.worker()
	env := q.env
	env.Progress = true
	env.Stderr = &watch{text: "1,000 of 1,500 requeued", then: func() { q.fail(w, 1000, true, "still no such mailbox") }}
	run(t, t.Context(), env, "jobs", "requeue", "--kind", sendMail.Kind, "--yes").want(0, "requeued 1,500 of 1,500")
	if n := q.count("SELECT count(*) FROM jobgen.jobs WHERE status = 'dead'"); n != 1000 {
		t.Errorf("%d are dead, want the 1000 that died again", n)
	}
}

// watch is a writer that acts when a text is written to it.
type watch struct {
	strings.Builder
	text string
	then func()
}

func (w *watch) Write(p []byte) (int, error) {
	n, _ := w.Builder.Write(p)
	if w.then != nil && strings.Contains(w.String(), w.text) {
		w.then()
		w.then = nil
	}
	return n, nil
}

func TestRequeueingAKindAsksFirst(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.deadMails(2)
	dead := func() int { return q.count("SELECT count(*) FROM jobgen.jobs WHERE status = 'dead'") }
	ask := func(answer io.Reader) outcome {
		env := q.env
		env.Ask, env.Stdin = true, answer
		return q.ctlIn(env, "jobs", "requeue", "--kind", sendMail.Kind)
	}
	q.ctl("jobs", "requeue", "--kind", sendMail.Kind).want(2, "no terminal to ask on", "--yes").sentence()
	for _, answer := range []string{"", "\n", "n\n", "yesterday\n"} {
		ask(strings.NewReader(answer)).want(1, "Requeue 2 dead jobs with kind mail.send (oldest: ", "[y/N]", "nothing was changed")
	}
	silent, end := io.Pipe()
	defer end.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	env := q.env
	env.Ask, env.Stdin, env.Stderr = true, silent, &watch{text: "[y/N]", then: interrupt}
	run(t, ctx, env, "jobs", "requeue", "--kind", sendMail.Kind).want(1)
	if dead() != 2 {
		t.Fatal("they were requeued without a yes")
	}
	ask(strings.NewReader("Y\n")).want(0, "requeued 2 of 2")
	if dead() != 0 {
		t.Error("they are still dead")
	}
}

func TestAWrongCommandLineIsExitCode2AndReachesNoDatabase(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"nonsense"}, {"jobs", "nonsense"}, {"migrate", "down"}, {"jobs", "list", "extra"}, {"jobs", "list", "--nonsense"}, {"jobs", "list", "--status", "done"},
		{"jobs", "list", "--limit", "0"}, {"jobs", "list", "--limit", "10001"}, {"jobs", "list", "--limit", "x"}, {"jobs", "list", "--before", "0"},
		{"jobs", "show"}, {"jobs", "show", "1", "2"}, {"jobs", "show", "x"}, {"jobs", "show", "0"}, {"jobs", "show", "99999999999999999999"},
		{"jobs", "requeue"}, {"jobs", "requeue", "1", "x"}, {"jobs", "requeue", "1", "--kind", "k"}, {"jobs", "requeue", "--dead"}, {"jobs", "requeue", "--kind", "k"},
		{"migrate", "up", "now"}, {"migrate", "status", "now"},
	} {
		o := run(t, t.Context(), jobctl.Env{}, args...).want(2, "--help`").sentence()
		if strings.Contains(o.err, "Usage:") {
			t.Errorf("%v dumps its usage: %s", args, o.err)
		}
	}
	run(t, t.Context(), jobctl.Env{}, "jbs").want(2, "did you mean jobs?")
	run(t, t.Context(), jobctl.Env{}, "jobs", "lst").want(2, "did you mean list?")
}

func TestHelpIsTheManual(t *testing.T) {
	t.Parallel()
	run(t, t.Context(), jobctl.Env{}, "help").want(0, "Exit status", "0  done", "1  done, with a finding", "2  the command line", "3  the database", "DATABASE_URL")
	for _, args := range [][]string{{"help"}, {"help", "jobs"}, {"help", "migrate"}, {"help", "jobs", "list"}, {"help", "jobs", "show"}, {"help", "jobs", "requeue"}, {"help", "migrate", "up"}, {"help", "migrate", "status"}} {
		o := run(t, t.Context(), jobctl.Env{}, args...).want(0, "Usage:", "--json").clean(80)
		if len(args) == 3 {
			o.want(0, "Examples:\n  jobctl "+strings.Join(args[1:], " "))
		}
	}
}

func TestTheShellCompletesStatusesAndKinds(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.deadJob()
	complete := func(args ...string) []string {
		t.Helper()
		o := q.ctl(append([]string{"__complete"}, args...)...).want(0)
		lines := strings.Split(strings.TrimSpace(o.out), "\n")
		return lines[:len(lines)-1] // the last is for the shell
	}
	for _, c := range []struct{ args, want []string }{
		{[]string{"jobs", "list", "--status", ""}, []string{"queued", "ready", "scheduled", "running", "dead", "cancelled", "succeeded"}},
		{[]string{"jobs", "list", "--status", "dead,"}, []string{"dead,queued", "dead,ready", "dead,scheduled", "dead,running", "dead,cancelled", "dead,succeeded"}},
		{[]string{"jobs", "list", "--kind", ""}, []string{"billing.charge_card", "mail.send"}},
		{[]string{"jobs", "requeue", "--kind", ""}, []string{"billing.charge_card"}},
	} {
		if got := complete(c.args...); !slices.Equal(got, c.want) {
			t.Errorf("%q: got %q, want %q", c.args, got, c.want)
		}
	}
}

func TestMoreIdsThanOneStatementTakes(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.deadMails(1100)
	args := []string{"jobs", "requeue"}
	for n := range 1101 {
		args = append(args, strconv.Itoa(n+1))
	}
	o := q.ctl(args...).want(1, "job 1101 is unknown", "1 of 1101 not requeued")
	if got := strings.Split(o.out, "\n"); len(got) != 1101 || got[0] != "job 1 requeued" || got[1099] != "job 1100 requeued" {
		t.Errorf("not in order: %s", o.out)
	}
}

func TestCancelSaysOfEachJobWhatBecameOfIt(t *testing.T) {
	t.Parallel()
	q := open(t)
	w := q.worker()
	finished := enqueue(q, chargeCard, charge{"o-1", 1}, jobs.Key("order o-1"))
	q.finish(w, 1, "")
	running := enqueue(q, sendMail, charge{"running", 2})
	q.claim(w, 1)
	waiting := enqueue(q, chargeCard, charge{"o-2", 2}, jobs.Key("order o-2"), jobs.Within(time.Hour), jobs.Headers(map[string]string{"h": "1"}))
	q.ctl("jobs", "show", id(waiting)).want(0, "deadline    ", "(in 59m)")
	q.exec("UPDATE jobgen.jobs SET snoozes = 3 WHERE id = $1", waiting)
	q.ctl("jobs", "show", id(waiting)).want(0, "put off     3 times")

	args := []string{"jobs", "cancel", id(waiting), id(running), id(finished), "4711", "--reason", "customer left\x1b[2J"}
	o := q.ctl(args...).want(1, "2 of 4 not cancelled").clean(0)
	if want := fmt.Sprintf("job %d is cancelled\njob %d runs; its worker is asked to stop it\njob %d had finished\njob 4711 is unknown: nothing is on record\n", waiting, running, finished); o.out != want {
		t.Errorf("stdout is %q", o.out)
	}
	var v struct{ Jobs []struct{ Status string } }
	q.ctl(append(args, "--json")...).want(1).decode(&v)
	if got := fmt.Sprint(v); got != "{[{already cancelled} {asked} {finished} {unknown}]}" {
		t.Errorf("got %s", got)
	}
	q.ctl("jobs", "cancel").want(2, "say which jobs to cancel")
	q.ctl("jobs", "requeue", id(waiting)).want(1, "is cancelled", "enqueue the work anew")
	q.ctl("jobs", "show", id(running)).want(0, "is running", "customer left")
	q.settle()
	q.ctl("jobs", "show", id(waiting)).want(0).clean(80).golden("show_cancelled.txt")
	var s struct {
		Status   string
		Archived struct {
			Reason    string
			Payload   charge
			ExpiresAt time.Time `json:"expires_at"`
		}
	}
	if q.ctl("jobs", "show", id(waiting), "--json").decode(&s); s.Status != "cancelled" || s.Archived.Payload != (charge{"o-2", 2}) || s.Archived.ExpiresAt.Location() != time.UTC {
		t.Errorf("got %+v", s)
	}
	// Its key is free.
	if again := enqueue(q, chargeCard, charge{"o-2", 2}, jobs.Key("order o-2")); again == waiting {
		t.Error("enqueued again, it is the same job")
	}
}
