package jobctl_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jobgen-go/jobgen/internal/doctor"
)

// unhurt are all checks but that of settings, as the server of tests does not flush, and that of the server's version, which may be old.
func unhurt() string {
	var names []string
	for _, n := range doctor.Names() {
		if n.Check != "settings" && n.Check != "server" {
			names = append(names, n.Check)
		}
	}
	return strings.Join(names, ",")
}

func TestDoctorOnAHealthyQueueListsWhatWasChecked(t *testing.T) {
	t.Parallel()
	q := open(t)
	checks := strings.Split(unhurt(), ",")
	for _, width := range []int{60, 80, 200} {
		env := q.env
		env.Width = width
		o := q.ctlIn(env, "doctor", "--only", unhurt()).want(0, "healthy; PostgreSQL").clean(width)
		for _, n := range doctor.Names() {
			if slices.Contains(checks, n.Check) && (!strings.Contains(o.out, "\n"+n.Check+" ") || width == 200 && !strings.Contains(o.out, n.Asks)) {
				t.Errorf("%s is not in:\n%s", n.Check, o.out)
			}
		}
		if width >= 80 && strings.Count(o.out, "\n") > 40 {
			t.Errorf("more than a screen:\n%s", o.out)
		}
	}
	var v struct {
		Summary  struct{ Healthy int }
		Findings []any
		Healthy  []doctor.Checked
	}
	q.ctl("doctor", "--json", "--only", unhurt()).want(0).clean(0).decode(&v)
	if v.Summary.Healthy != len(checks) || len(v.Healthy) != v.Summary.Healthy || v.Findings == nil {
		t.Errorf("%+v", v)
	}
}

func TestDoctorSaysWhatItSawWhatFollowsAndWhatToDo(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.deadMails(3)
	q.exec("DELETE FROM jobgen.workers; DELETE FROM jobgen.wake")
	q.exec("CREATE INDEX \"odd\u202e index\" ON jobgen.jobs (status)")
	enqueue(q, chargeCard, charge{"o-1", 1})
	q.exec("UPDATE jobgen.jobs SET run_at = clock_timestamp() - interval '2 hours' WHERE status = 'queued'")
	for _, width := range []int{60, 80} {
		env := q.env
		env.Width = width
		o := q.ctlIn(env, "doctor", "--only", unhurt()).want(3, "1 critical, 2 warnings, ", "CRITICAL  No worker is alive, and jobs wait [workers]",
			"  queue billing, kind billing.charge_card: 1 wait,", "\n  so: Nothing runs, no schedule ticks,", "\n  do: Start the program", "\nhealthy: schema, ").clean(width)
		if c, w := strings.Index(o.out, "CRITICAL"), strings.Index(o.out, "WARNING"); c > w {
			t.Errorf("not the worst first:\n%s", o.out)
		}
	}
	q.ctl("doctor", "--only", "dead-jobs").want(1, "1 warning", "kind mail.send: 3", "\n      jobctl jobs requeue --kind mail.send\n").clean(80)
	q.ctl("doctor", "--only", "schema,paused").want(0, "2 healthy")

	var v struct {
		Summary  struct{ Critical, Warnings int }
		Findings []doctor.Finding
	}
	o := q.ctl("doctor", "--json", "--only", unhurt()).want(3).clean(0)
	o.decode(&v)
	if v.Summary.Critical != 1 || v.Summary.Warnings != 2 || len(v.Findings) < 3 || v.Findings[0].Check != "workers" {
		t.Errorf("%s", o.out)
	}
}

// What is to be pasted stays what it is, however narrow the terminal.
func TestDoctorsRemediesCanBePastedFromANarrowTerminal(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.exec("DROP INDEX jobgen.jobs_claim")
	env := q.env
	env.Width = 60
	o := q.ctlIn(env, "doctor", "--only", "indexes").want(3, "The index jobs_claim is missing").clean(60)
	_, after, _ := strings.Cut(o.out, "do: Builds it; jobs go on.\n")
	statement, _, _ := strings.Cut(after, ";\n")
	q.exec(statement)
	q.ctl("doctor", "--only", "indexes,plans").want(0)
}

func TestDoctorKnowsAnotherVersionOfTheSchemaForAFinding(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.exec("INSERT INTO jobgen.schema_version (version_id, is_applied) VALUES (99, true)")
	q.ctl("doctor").want(3, "The schema is newer than this jobctl [schema]", "the database has version 99", "do not start on it", "NOT CHECKED").clean(80)
	q.exec("INSERT INTO jobgen.compatibility (version, oldest) VALUES (99, 1)")
	q.ctl("doctor", "--only", "schema").want(1, "WARNING", "go on working").clean(80)
	q.exec("DELETE FROM jobgen.schema_version WHERE version_id IN (3, 99)")
	q.ctl("doctor", "--only", "schema").want(3, "Migrations wait", "not applied: 3", "jobctl migrate up").clean(80)
	q.exec("DROP SCHEMA jobgen CASCADE")
	q.ctl("doctor").want(3, "not migrated", "`jobctl migrate up`").sentence()
}

func TestDoctorRefusesWhatIsNoCheck(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.ctl("doctor", "--only", "horizon,blood").want(2, `--only is "blood"`, "dead-rows").sentence()
	q.ctl("doctor", "now").want(2).sentence()
}

func TestDoctorsTextOfStrangersCannotActOnATerminal(t *testing.T) {
	t.Parallel()
	q := open(t)
	nasty := "k\x1b[31m" + strings.Repeat("wide 漢字 ", 5) + "\u202e"
	q.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, status, attempt, claimed_at, last_error) VALUES ($1, $1, '{}', 'dead', 20, now(), $2)`, nasty, nasty+nasty+nasty)
	q.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, run_at) VALUES ($1, $1, '{}', now() - interval '1 hour')`, nasty)
	for _, width := range []int{60, 80} {
		env := q.env
		env.Width = width
		o := q.ctlIn(env, "doctor", "--only", "workers,dead-jobs").want(3, `\x1b[31m`).clean(0)
		if strings.Contains(o.out, "\x1b") {
			t.Errorf("%q", o.out)
		}
	}
	o := q.ctl("doctor", "--json").clean(0)
	if !json.Valid([]byte(o.out)) {
		t.Error(fmt.Sprint(o.out))
	}
}

func TestDoctorShowsAFewFindingsOfEachCheckAndCountsTheRest(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.worker()
	q.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, run_at) SELECT 'q', 'k' || i, '{}', clock_timestamp() - interval '5 minutes' FROM generate_series(1, 50) i`)
	q.ctl("doctor", "--only", "workers").want(1, "50 warnings", "… and 42 more findings of the check workers; --json shows all").clean(80)
	var v struct{ Findings []doctor.Finding }
	q.ctl("doctor", "--only", "workers", "--json").decode(&v)
	if len(v.Findings) != 50 {
		t.Errorf("%d findings", len(v.Findings))
	}
}
