package jobctl_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/jobs"
)

func TestEditChangesAWaitingJobAndShowsWhat(t *testing.T) {
	t.Parallel()
	q := open(t)
	n := enqueue(q, chargeCard, charge{"o-17", 1290}, jobs.Key("order o-17"), jobs.In(time.Hour))
	q.ctl("jobs", "edit", id(n), "--payload", `{"order_id": "o-17", "cents": 990}`, "--dry-run").
		want(0, "would change queued job 1\n  payload\n     {\n    -  \"cents\": 1290,\n    +  \"cents\": 990,\n       \"order_id\": \"o-17\"\n     }\n").clean(80)
	if q.count("SELECT count(*) FROM jobgen.jobs WHERE payload ->> 'cents' = '1290'") != 1 {
		t.Fatal("--dry-run changed it")
	}
	q.ctl("jobs", "edit", id(n), "--payload", `{"order_id": "o-17", "cents": 990}`, "--priority", "9", "--queue", "other", "--max-attempts", "3",
		"--deadline", "3d", "--run-at", "2999-01-01T00:00:00Z", "--yes").want(1, "before the job is due")
	q.ctl("jobs", "edit", id(n), "--payload", `{"order_id": "o-17", "cents": 990}`, "--priority", "9", "--queue", "other", "--max-attempts", "3",
		"--deadline", "3d", "--delay", "2h", "--yes").
		want(0, "  queue        billing → other\n  priority     5 → 9\n  max_attempts 2 → 3\n  run_at ", "  deadline     none → ", "job 1 changed\n", "its key stays order o-17")
	if q.count(`SELECT count(*) FROM jobgen.jobs WHERE payload = '{"order_id": "o-17", "cents": 990}' AND priority = 9 AND queue = 'other' AND max_attempts = 3
		AND deadline BETWEEN clock_timestamp() + interval '71 hours' AND clock_timestamp() + interval '72 hours'
		AND run_at BETWEEN clock_timestamp() + interval '119 minutes' AND clock_timestamp() + interval '2 hours'`) != 1 {
		t.Errorf("it is %s", q.ctl("jobs", "show", id(n)).out)
	}
	q.ctl("jobs", "edit", id(n), "--priority", "9", "--payload", `{"cents":990,"order_id":"o-17"}`, "--yes").want(0, "is like that already; nothing was changed")
	q.ctl("jobs", "edit", id(n), "--deadline", "none", "--yes").want(0, " → none")
	var v struct {
		ID      int64
		Changes []struct {
			Field    string
			From, To any
		}
	}
	q.ctl("jobs", "edit", id(n), "--priority", "0", "--yes", "--json").want(0).decode(&v)
	if fmt.Sprint(v) != "{1 [{priority 9 0}]}" {
		t.Errorf("JSON: %v", v)
	}
}

func TestEditNeverPutsAJobToTheLeftOfAMark(t *testing.T) {
	t.Parallel()
	q := open(t)
	due := func(n int64, hours string) {
		q.exec("UPDATE jobgen.jobs SET run_at = clock_timestamp() + $2::interval WHERE id = $1", n, hours)
	}
	before := "run_at < clock_timestamp() - interval '1 hour'"
	now := "run_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp()"
	for _, c := range []struct {
		args []string
		from string
		want string
	}{
		{[]string{"--payload", "{}"}, "-2 hours", before}, // it keeps its place
		{[]string{"--deadline", "5h"}, "-2 hours", before},
		{[]string{"--priority", "7"}, "-2 hours", now},
		{[]string{"--queue", "other"}, "-2 hours", now},
		{[]string{"--queue", "other"}, "2 hours", "run_at > clock_timestamp() + interval '1 hour'"},
		{[]string{"--run-at", "2020-01-01T00:00:00Z"}, "2 hours", now},
		{[]string{"--delay", "0s"}, "2 hours", now},
		{[]string{"--delay", "0s", "--queue", "other"}, "-2 hours", now},
	} {
		n := enqueue(q, sendMail, charge{"x", 1})
		due(n, c.from)
		q.ctl(append([]string{"jobs", "edit", id(n), "--yes"}, c.args...)...).want(0)
		if q.count("SELECT count(*) FROM jobgen.jobs WHERE id = $1 AND "+c.want, n) != 1 {
			t.Errorf("%v of a job due in %s: not %s", c.args, c.from, c.want)
		}
	}
}

func TestEditOfADeadJobLeavesItDead(t *testing.T) {
	t.Parallel()
	q := open(t)
	n := q.deadJob()
	q.ctl("jobs", "edit", id(n), "--payload", `{"order_id":"o-17","cents":1}`, "--yes").want(0, "job 1 changed", "still dead; for a fresh start: jobctl jobs requeue 1")
	if q.count("SELECT count(*) FROM jobgen.jobs WHERE dead AND payload ->> 'cents' = '1'") != 1 {
		t.Error("it is not as it should be")
	}
	q.ctl("jobs", "edit", id(n), "--delay", "1h", "--yes").want(1, "requeue 1 --delay")
	q.ctl("jobs", "edit", id(n), "--max-attempts", "1", "--yes").want(1, "started 2 times, so --max-attempts is 2 at least")
	q.ctl("jobs", "requeue", id(n)).want(0)
	q.ctl("jobs", "edit", id(n), "--max-attempts", "1", "--yes").want(0) // none is spent
}

func TestEditRefusesWhatRunsHasEndedOrHasChanged(t *testing.T) {
	t.Parallel()
	q := open(t)
	w := q.worker()
	finished := enqueue(q, chargeCard, charge{"o-1", 1}, jobs.Key("a"))
	q.finish(w, 1, "")
	running := enqueue(q, sendMail, charge{"o-2", 1})
	q.claim(w, 1)
	locked := enqueue(q, sendMail, charge{"o-3", 1})
	owned := enqueue(q, sendMail, charge{"o-4", 1})
	q.exec("INSERT INTO jobgen.job_start (job_id, worker_id) VALUES ($1, $2)", owned, w.ID)
	tx, err := q.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT FROM jobgen.jobs WHERE id IN ($1, $2) FOR UPDATE", locked, owned); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int64]string{
		finished: "is finished, 0s ago", running: "is running for 0s: its handler has the payload already", 4711: "is unknown", locked: "is locked by somebody else",
		owned: "is running for 0s",
	} {
		q.ctl("jobs", "edit", id(n), "--priority", "3", "--yes").want(1, want).sentence()
	}
	if q.count("SELECT count(*) FROM jobgen.jobs WHERE priority = 3") != 0 {
		t.Error("one was changed")
	}
	_ = tx.Rollback(t.Context())
	env := q.env
	env.Ask = true
	stderr := &watch{text: "[y/N]", then: func() { q.exec("UPDATE jobgen.jobs SET last_error = 'x' WHERE id = $1", locked) }}
	env.Stderr, env.Stdin = stderr, strings.NewReader("y\n")
	o := q.ctlIn(env, "jobs", "edit", id(locked), "--priority", "3")
	o.err = stderr.String()
	o.want(1, "Change queued job 3? [y/N]", "has changed since it was read; nothing was changed")
	env.Stderr, env.Stdin = nil, strings.NewReader("n\n")
	q.ctlIn(env, "jobs", "edit", id(locked), "--priority", "3").want(1, "  priority     0 → 3\nChange queued job", "nothing was changed")
	if q.count("SELECT count(*) FROM jobgen.jobs WHERE priority = 3") != 0 {
		t.Error("it was changed")
	}
}

func TestEditRefusesAPayloadThatTheQueueDoesNotTake(t *testing.T) {
	t.Parallel()
	q := open(t)
	n := enqueue(q, sendMail, charge{"x", 1})
	big := filepath.Join(t.TempDir(), "big.json")
	if err := os.WriteFile(big, []byte(`"`+strings.Repeat("x", jobs.MaxPayload)+`"`), 0o600); err != nil {
		t.Fatal(err)
	}
	for payload, want := range map[string]string{
		"{\n\"a\": }": "is no JSON: line 2", "": "is no JSON", "{} {}": "is no JSON", `{"a":"\u0000"}`: "NUL", `"\ud800"`: "half of a surrogate pair",
		"@" + big: "the limit is 1048576", "@/no/such": "cannot read the payload", "1e1000000": "the database refuses it", `{"a": 1e400000}`: "the database refuses it",
	} {
		q.ctl("jobs", "edit", id(n), "--yes", "--payload", payload).want(1, want).sentence()
	}
	env := q.env
	env.Stdin = strings.NewReader(`{"cents": 12345678901234567890}`)
	q.ctlIn(env, "jobs", "edit", id(n), "--yes", "--payload", "-").want(0)
	if q.count(`SELECT count(*) FROM jobgen.jobs WHERE payload = '{"cents": 12345678901234567890}'`) != 1 {
		t.Error("a big number is not kept")
	}
}

func TestEditOpensTheEditor(t *testing.T) {
	t.Parallel()
	q := open(t)
	n := enqueue(q, sendMail, charge{"o-1", 17})
	edit := func(editor string) outcome {
		t.Helper()
		env := q.env
		answer, person, err := os.Pipe() // which the editor gets as it is, and leaves alone
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Close()
		if _, err := person.WriteString("y\n"); err != nil {
			t.Fatal(err)
		}
		person.Close()
		env.Ask, env.Stdin = true, answer
		env.Getenv = func(name string) string {
			return map[string]string{"DATABASE_URL": q.url(), "EDITOR": editor}[name]
		}
		return q.ctlIn(env, "jobs", "edit", id(n))
	}
	edit("true").want(0, "nothing was changed")
	edit("false").want(1, "the editor (false) failed").sentence()
	edit(`sed -i 's/"cents": 17/"cents": 18/'`).want(0, "-  \"cents\": 17,", "+  \"cents\": 18,", "job 1 changed")
	if q.count(`SELECT count(*) FROM jobgen.jobs WHERE payload ->> 'cents' = '18'`) != 1 {
		t.Error("it is not changed")
	}
	o := edit("sed -i d").want(1, "is no JSON", "what was typed is in ")
	_, file, _ := strings.Cut(o.err, "--payload @")
	if err := os.Remove(strings.TrimSpace(file)); err != nil {
		t.Error(err)
	}
}
