package jobctl_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobgen-go/jobgen/internal/engine"
)

func uid(n int) uuid.UUID { return uuid.MustParse(fmt.Sprintf("%08x-0000-4000-8000-000000000001", n)) }

// member registers a worker with a fixed id that started days ago.
func (q *queue) member(n int, host, change string) *engine.Worker {
	q.Helper()
	w := &engine.Worker{ID: uid(n), Host: host, PID: 4000 + n, Build: "v1.4.0 0123456789ab", Queues: []string{"billing", "mail"}, Slots: 100, Kinds: []engine.Kind{
		{Name: chargeCard.Kind, Version: 3, Timeout: 30 * time.Second}, {Name: sendMail.Kind, Version: 1},
	}, Locks: []engine.Kind{{Name: "ledger.book", Version: 1, Timeout: time.Second}}}
	if err := q.store.Register(q.Context(), *w, time.Hour); err != nil {
		q.Fatal(err)
	}
	if _, err := q.store.Heartbeat(q.Context(), w.ID, time.Hour, engine.Load{Slots: 100, Running: 12 * n}, nil); err != nil {
		q.Fatal(err)
	}
	q.exec(`UPDATE jobgen.workers SET started_at = clock_timestamp() - $2 * interval '50 hours 30 minutes', skew_us = 0,
		beat_at = clock_timestamp() - interval '10 minutes 30 seconds', lease_until = clock_timestamp() + interval '49 minutes 30 seconds' WHERE id = $1`, w.ID, n)
	if change != "" {
		q.exec(`UPDATE jobgen.workers SET `+change+` WHERE id = $1`, w.ID)
	}
	return w
}

// fleet is one worker in each state.
func (q *queue) fleet() {
	q.Helper()
	charges := func(n int) {
		for i := range n {
			enqueue(q, chargeCard, charge{OrderID: fmt.Sprint(i)})
		}
	}
	a := q.member(1, "web-1", "stuck = 2, skew_us = -3725000000")
	charges(2)
	q.claim(a, 2)
	q.exec(`UPDATE jobgen.jobs SET claimed_at = clock_timestamp() - interval '125 minutes 30 seconds', cancel_reason = '' WHERE worker_id = $1`, a.ID)
	enqueue(q, sendMail, charge{})
	fresh := q.claim(a, 1)
	q.exec(`UPDATE jobgen.jobs SET claimed_at = clock_timestamp() + interval '1 hour' WHERE id = $1`, fresh[0].ID)
	var booked int64
	if err := q.pool.QueryRow(q.Context(), `INSERT INTO jobgen.jobs (queue, kind, payload) VALUES ('billing', 'ledger.book', '{}') RETURNING id`).Scan(&booked); err != nil {
		q.Fatal(err)
	}
	q.exec(`INSERT INTO jobgen.job_start (job_id, worker_id, started_at) VALUES ($1, $2, clock_timestamp() - interval '3 hours 30 seconds')`, booked, a.ID)
	q.member(2, "web-2", "slots = NULL, running = NULL, versions = NULL, timeouts_us = NULL, skew_us = NULL, pooled = NULL") // of an older program
	q.member(3, "web-3", "lease_until = clock_timestamp() + interval '2 minutes 30 seconds'")
	q.member(4, "web-4", "lease_until = clock_timestamp() - interval '1 second'")
	lost := q.member(5, "web-5", "")
	charges(1)
	q.claim(lost, 1)
	q.exec(`UPDATE jobgen.jobs SET claimed_at = clock_timestamp() - interval '11 minutes 30 seconds' WHERE worker_id = $1`, lost.ID)
	q.exec(`UPDATE jobgen.workers SET lost_at = clock_timestamp() - interval '10 minutes 15 seconds', lease_until = clock_timestamp() - interval '10 minutes 15 seconds' WHERE id = $1`, lost.ID)
	q.member(6, "web-6", "lost_at = clock_timestamp() - interval '3 hours 30 seconds'")
}

func TestWorkersListsWhoIsAliveAndWhatEachHolds(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.fleet()
	for _, width := range []int{60, 80, 140} {
		env := q.env
		env.Width = width
		q.ctlIn(env, "workers").want(0,
			"worker 00000001 (web-1, pid 4001) has 2 handlers that ignore their ended context",
			"worker 00000003 (web-3, pid 4003) is late: no heartbeat for 10m; if none comes within 2m",
			"worker 00000004 (web-4, pid 4004) has not been heard of for 10m",
			"worker 00000005 (web-5, pid 4005) is lost, and 1 job has not been taken back yet",
			"1 more was lost more than an hour ago: --all shows them",
		).clean(width).golden(fmt.Sprintf("workers-%d.txt", width))
	}
	if o := q.ctl("workers", "list", "--all").want(0, "00000006", "lost 3h0m ago"); strings.Contains(o.err, "more than an hour") {
		t.Error(o.err)
	}
}

func TestWorkersAsJSON(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.fleet()
	var got struct {
		Workers []struct {
			ID, State                    string
			Slots, Running, Stuck, Holds *int
			Skew                         *float64 `json:"skew_seconds"`
			Pooled                       *bool
			Oldest                       *struct{ Kind string }
			Kinds                        []struct {
				Name    string
				Version int
				Timeout *float64 `json:"timeout_seconds"`
			}
		}
		Now time.Time
	}
	q.ctl("workers", "--json").want(0).decode(&got)
	if len(got.Workers) != 5 || got.Now.IsZero() {
		t.Fatalf("%+v", got)
	}
	var states []string
	for _, w := range got.Workers {
		states = append(states, w.State)
	}
	if s := strings.Join(states, " "); s != "alive alive late expired lost" {
		t.Error(s)
	}
	a, old := got.Workers[0], got.Workers[1]
	if a.ID != uid(1).String() || *a.Slots != 100 || *a.Running != 12 || *a.Stuck != 2 || *a.Holds != 4 || *a.Skew != -3725 || *a.Pooled || a.Oldest.Kind != "ledger.book" {
		t.Errorf("%+v", a)
	}
	if k := a.Kinds[0]; k.Name != chargeCard.Kind || k.Version != 3 || *k.Timeout != 30 {
		t.Errorf("%+v", k)
	}
	if old.Slots != nil || old.Running != nil || old.Skew != nil || old.Pooled != nil || old.Kinds[0].Version != 0 || old.Kinds[0].Timeout != nil || *old.Holds != 0 || old.Oldest != nil {
		t.Errorf("%+v", old)
	}

	var one struct {
		Worker struct {
			State string
			Jobs  []struct {
				Kind  string
				Lock  bool
				Asked bool `json:"asked_to_end"`
			}
			JobsMore bool `json:"jobs_more"`
		}
	}
	q.ctl("workers", "show", "00000001", "--json", "--limit", "3").want(0, "the 3 oldest of its jobs").decode(&one)
	if j := one.Worker.Jobs; len(j) != 3 || !one.Worker.JobsMore || !j[0].Lock || j[1].Kind != chargeCard.Kind || !j[1].Asked {
		t.Errorf("%+v", one)
	}
}

func TestWorkersShowTellsWhatAWorkerRuns(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.fleet()
	for _, width := range []int{60, 80} {
		env := q.env
		env.Width = width
		q.ctlIn(env, "workers", "show", "00000001").want(0).clean(0).golden(fmt.Sprintf("worker-%d.txt", width))
	}
	q.ctl("workers", "show", "00000001-0000-4000").want(0, "1h2m behind the database's")
	q.ctl("workers", "show", "00000002").want(0, "no job is its own now", "?").golden("worker-old.txt")
	q.ctl("workers", "show", "00000003").want(0, "is late: no heartbeat for 10m")
	q.ctl("workers", "show", "00000004").want(0, "is expired: no heartbeat for 10m")
	q.ctl("workers", "show", "00000005").want(0, "was lost 10m ago", "waits to be taken back")
	q.ctl("workers", "show", "0000000").want(1, "6 workers have ids that begin with 0000000: 00000001-").sentence()
	q.ctl("workers", "show", "ffff").want(1, "no worker on record has an id that begins with ffff").sentence()
	for _, args := range []string{"show", "show|x", "show|1|2", "show|1|--limit|0", "stop|1", "list|1"} {
		q.ctl(append([]string{"workers"}, strings.Split(args, "|")...)...).want(2).sentence()
	}
	o := q.ctl("__complete", "workers", "show", "").want(0, uid(1).String()+"\talive, web-1 pid 4001", uid(5).String()+"\tlost")
	if strings.Contains(o.out, "4711") {
		t.Error(o.out)
	}
}

func TestWithoutALiveWorkerIsAFinding(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.ctl("workers").want(1, "no worker is alive").sentence()
	q.ctl("workers", "--json").want(1, `"workers": []`)
	q.member(1, "web-1", "lost_at = clock_timestamp()")
	q.ctl("workers").want(1, "no worker is alive", "web-1")
}

// Where what workers hold takes too long to read, who is alive is shown all the same.
func TestWorkersIsAnsweredWhileClaimsCannotBeRead(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.member(1, "web-1", "")
	tx, err := q.pool.Begin(q.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(q.Context(), `LOCK TABLE jobgen.claims IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	q.ctl("workers").want(0, "web-1", "12/100", "?", "could not be read within 3s")
	q.ctl("workers", "show", "00000001").want(0, "is alive, on web-1", "could not be read within 3s")
	q.ctl("workers", "--json").want(0, `"holds": null`)
}
