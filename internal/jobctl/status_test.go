package jobctl_test

import (
	"strings"
	"testing"

	"github.com/jobgen-go/jobgen/internal/jobctl"
)

func TestStatusSaysInAFewLinesWhetherAllIsWell(t *testing.T) {
	t.Parallel()
	q := open(t)
	o := q.ctl("status").want(0, "server   PostgreSQL ", ", jobgen's schema 4\n", "workers  0 alive\n", "ready    0\n", "running  0; scheduled 0; dead 0\n", "! no worker is alive", "\nwell; look at `jobctl workers`\n")
	if n := strings.Count(o.out, "\n"); n != 6 {
		t.Errorf("%d lines: %s", n, o.out)
	}
	q.deadMails(2)
	q.ctl("status").want(0, "dead 2\n", "`jobctl jobs list --status dead`")
	w := q.worker()
	enqueue(q, chargeCard, charge{})
	if len(q.claim(w, 1)) != 1 {
		t.Fatal("nothing to claim")
	}
	enqueue(q, sendMail, charge{})
	q.exec("UPDATE jobgen.jobs SET run_at = run_at - interval '10 minutes 30 seconds' WHERE status = 'queued'")
	if o := q.ctl("status", "--oldest", "20m"); strings.Contains(o.out, "longer than") || !strings.Contains(o.out, "ready    1, the oldest for 10m") || !strings.Contains(o.out, "running  1; scheduled 0; dead 2") {
		t.Error(o.out)
	}
	q.ctl("status", "--oldest", "5m").want(1, "a ready job has waited for 10m, longer than 5m", "not well; look at ")
	q.exec("UPDATE jobgen.workers SET lease_until = clock_timestamp() - interval '1 second'")
	q.ctl("status").want(1, "workers  0 alive", "! ", "not well; look at ", "jobctl workers`", "\nwhat to do about it: `jobctl doctor`\n").clean(80)
	var v struct {
		Schema, Ready, Running, Dead int64
		Server                       string
		Well, Exact                  bool
		Findings                     []struct{ What string }
	}
	q.ctl("status", "--json").want(1).decode(&v)
	if v.Schema != 4 || v.Ready != 1 || v.Running != 1 || v.Dead != 2 || v.Server == "" || v.Well || !v.Exact || len(v.Findings) == 0 {
		t.Errorf("%+v", v)
	}
	q.ctl("status", "--database-url", with(q.url(), "default_transaction_read_only=on")).want(1, "workers  0 alive")
	env := q.env
	env.Getenv = func(name string) string {
		return map[string]string{"COLUMNS": "60", "DATABASE_URL": q.url()}[name]
	}
	q.ctlIn(env, "status").want(1).clean(60)
	run(t, t.Context(), jobctl.Env{}, "status", "--oldest", "-1s").want(2, "--oldest is -1s").sentence()
	run(t, t.Context(), jobctl.Env{}, "status", "--database-url", "postgres://x@127.0.0.1:1/y").want(3, "no database answers").sentence()
	q.exec("DROP SCHEMA jobgen CASCADE")
	q.ctl("status").want(3, "not migrated").sentence()
}
