package jobctl_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

// declare stores schedules as a worker's program declares them.
func (q *queue) declare() {
	q.Helper()
	var kinds []string
	var all []engine.Schedule
	add := func(kind, name, cron, zone, missed string) {
		kinds = append(kinds, kind)
		all = append(all, engine.Schedule{
			Kind: kind, Name: name, Cron: cron, Zone: zone, Missed: missed, NextAt: time.Now().Add(time.Hour),
			Job: engine.Insert{Queue: "mail", Kind: kind, Version: 2, Priority: 3, MaxAttempts: 7}, Payload: []byte(`{"n": 0}`),
		})
	}
	add(sendMail.Kind, sendMail.Kind, "0 3 * * *", "Europe/Berlin", "once")
	add("reports.refresh", "day", "*/10 * * * *", "UTC", "skip")
	add("reports.refresh", "night", "@hourly", "UTC", "all")
	if err := q.store.Declare(q.Context(), kinds, all); err != nil {
		q.Fatal(err)
	}
	q.exec(`UPDATE jobgen.schedules SET next_at = clock_timestamp() + interval '5 hours 30 seconds', last_at = clock_timestamp() - interval '19 hours 30 seconds'`)
}

func (q *queue) late(name, by string) {
	q.Helper()
	q.exec(`UPDATE jobgen.schedules SET next_at = date_trunc('minute', clock_timestamp()) - $2::text::interval WHERE name = $1`, name, by)
}

func TestSchedulesListsTicksThatComeAndThoseThatWereMissed(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.ctl("schedules").want(0, "no schedule is on record")
	q.ctl("schedules", "--json").want(0, `"schedules": []`)
	q.declare()
	q.worker() // handles mail.send
	for _, width := range []int{60, 80, 140} {
		env := q.env
		env.Width = width
		q.ctlIn(env, "schedules").want(0, "reports.refresh day: no live worker handles its kind, so its next tick will be missed").clean(width).golden(fmt.Sprintf("schedules-%d.txt", width))
	}
	q.late("day", "35 minutes")
	q.late(sendMail.Kind, "75 hours")
	o := q.ctl("schedules", "list").want(1, "2 schedules have missed ticks", "missed for 35m", "missed for 3d3h",
		"reports.refresh day has missed", "no live worker handles its kind: start one, or, if no program declares it any more, see `jobctl doctor` for how to forget it; the missed ones will be skipped",
		"mail.send has missed", "1 live worker handles its kind, but none has moved it on: see their logs; it will make up for them with one job")
	if !regexp.MustCompile(`reports.refresh day has missed [45] ticks, since 20`).MatchString(o.err) {
		t.Error(o.err)
	}
	q.late("day", "1000 days")
	q.ctl("schedules").want(1, "missed 1000 ticks or more")
	q.late("day", "0")
	q.late(sendMail.Kind, "0")
	q.ctl("schedules").want(0) // within the loop's slack
	q.exec(`UPDATE jobgen.schedules SET zone = 'Mars/Olympus' WHERE name = 'day'`)
	q.ctl("schedules").want(0, "unreadable", "reports.refresh day cannot be read here", "Mars/Olympus")
	q.ctl("schedules", "show", "reports.refresh", "day").want(0, "cannot be read here")
	q.ctl("schedules", "pause", "reports.refresh", "day").want(0)
	q.ctl("schedules", "resume", "reports.refresh", "day").want(1, "its next tick cannot be computed here")
}

func TestSchedulesShowTellsWhatATickEnqueues(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.declare()
	q.worker()
	q.exec(`UPDATE jobgen.schedules SET next_at = '2100-07-01 03:00 Europe/Berlin', last_at = NULL WHERE kind = $1`, sendMail.Kind)
	o := q.ctl("schedules", "show", sendMail.Kind).want(0, "schedule mail.send ticks in", "cron     0 3 * * * in Europe/Berlin", "once: one job makes up",
		"next     Thu 2100-07-01 03:00:00 +02:00, in ", "then     Fri 2100-07-02 03:00:00 +02:00\n", "1 live one handles its kind",
		"job      kind mail.send, version 2, in queue mail, priority 3, 7 attempts at most", `"n": 0`)
	if strings.Contains(o.out, "here") {
		t.Error("the zones are alike")
	}
	q.ctl("schedules", "show", "reports.refresh", "night").want(0, "will miss its next tick", "+00:00 (here ", "+02:00), in 5h0m", "19h0m ago", "0 live ones handle")
	q.exec(`UPDATE jobgen.schedules SET next_at = date_trunc('hour', clock_timestamp()) - interval '2 hours' WHERE name = 'night'`)
	q.ctl("schedules", "show", "reports.refresh", "night").want(1, "has missed 3 ticks: no live worker handles its kind", "a job makes up for each")
	q.ctl("schedules", "show", "reports.refresh").want(1, "kind reports.refresh has 2 schedules; name one of them: day, night").sentence()
	q.ctl("schedules", "show", "x", "y").want(1, "there is no schedule x y").sentence()
	for _, args := range []string{"show", "show|a|b|c", "run", "pause", "list|x", "run|a|--tick|noon", "stop|a"} {
		q.ctl(append([]string{"schedules"}, strings.Split(args, "|")...)...).want(2).sentence()
	}
	q.ctl("__complete", "schedules", "run", "").want(0, "mail.send\nreports.refresh")
	q.ctl("__complete", "schedules", "run", "reports.refresh", "").want(0, "day\nnight")

	var got struct {
		Schedule struct {
			State       string
			MissedTicks int `json:"missed_ticks"`
			Job         struct {
				Queue   string
				Payload json.RawMessage
			}
			Then []time.Time
		}
	}
	q.ctl("schedules", "show", "reports.refresh", "night", "--json").want(1).decode(&got)
	if s := got.Schedule; s.State != "missed" || s.MissedTicks != 3 || s.Job.Queue != "mail" || len(s.Then) != 3 {
		t.Errorf("%+v", got)
	}
}

func TestAScheduleIsRunByHandAsATickWould(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.declare()
	before := q.text(`SELECT string_agg(next_at || ' ' || last_at, ',') FROM jobgen.schedules`)
	q.ctl("schedules", "run", sendMail.Kind, "--tick", "2026-03-01T02:00:00Z").want(0, "job 1 enqueued, for the tick Sun 2026-03-01 03:00:00 +01:00", "no live worker handles mail.send: the job waits")
	if got := q.text(`SELECT format('%s %s v%s p%s %s %s %s', queue, kind, version, priority, max_attempts, payload, headers) FROM jobgen.jobs`); got !=
		`mail mail.send v2 p3 7 {"n": 0} {"`+jobs.ScheduledAtHeader+`": "2026-03-01T03:00:00+01:00"}` {
		t.Error(got)
	}
	q.worker()
	q.ctl("queues", "pause", "mail").want(0)
	var got struct {
		JobID       int64     `json:"job_id"`
		ScheduledAt time.Time `json:"scheduled_at"`
	}
	q.ctl("schedules", "run", "reports.refresh", "day", "--json").want(0, "queue mail is paused").decode(&got)
	if got.JobID != 2 || time.Since(got.ScheduledAt) > time.Minute {
		t.Errorf("%+v", got)
	}
	if after := q.text(`SELECT string_agg(next_at || ' ' || last_at, ',') FROM jobgen.schedules`); after != before {
		t.Errorf("it moved: %s, %s", before, after)
	}
	q.exec(`UPDATE jobgen.schedules SET queue = NULL, version = NULL, priority = NULL, max_attempts = NULL, payload = NULL`) // of an older program
	q.ctl("schedules", "run", sendMail.Kind).want(1, "mail.send cannot be run from here", "older than this schema").sentence()
	q.ctl("schedules", "show", sendMail.Kind).want(0, "not on record")
	if n := q.count(`SELECT count(*) FROM jobgen.jobs`); n != 2 {
		t.Errorf("%d jobs", n)
	}
}

// A worker that may have gone to sleep is woken, as by a tick.
func TestAScheduleThatIsRunByHandWakesAWorker(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.declare()
	w := q.worker()
	if _, err := q.store.Sleep(q.Context(), w); err != nil {
		t.Fatal(err)
	}
	ready, woken := make(chan struct{}), make(chan struct{}, 1)
	go func() {
		_ = q.store.Listen(q.Context(), w.ID, func() { close(ready) }, func() { woken <- struct{}{} }, func() {})
	}()
	<-ready
	q.ctl("schedules", "run", sendMail.Kind).want(0)
	select {
	case <-woken:
	case <-time.After(20 * time.Second):
		t.Error("nobody was woken")
	}
}

func TestASchedulesPauseLetsTicksPass(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.declare()
	q.worker()
	q.ctl("schedules", "pause", sendMail.Kind).want(0, "paused for 0s")
	q.exec(`UPDATE jobgen.schedules SET paused_at = paused_at - interval '2 hours 30 seconds'`)
	q.ctl("schedules", "pause", sendMail.Kind).want(0, "paused for 2h0m")
	tick := func() {
		t.Helper()
		found, now, err := q.store.Schedules(t.Context(), []string{sendMail.Kind})
		if err != nil {
			t.Fatal(err)
		}
		moved, err := q.store.Tick(t.Context(), found[0], now, now.Add(time.Hour), engine.Insert{Queue: "mail", Version: 1, MaxAttempts: 1}, []byte("{}"), [][]byte{[]byte("{}")})
		if err != nil || !moved {
			t.Error(moved, err)
		}
	}
	last := q.text(`SELECT last_at::text FROM jobgen.schedules WHERE kind = 'mail.send'`)
	tick()
	if n := q.count(`SELECT count(*) FROM jobgen.jobs`); n != 0 {
		t.Errorf("%d jobs of a paused schedule", n)
	}
	if now := q.text(`SELECT last_at::text FROM jobgen.schedules WHERE kind = 'mail.send'`); now != last {
		t.Error("a tick without a job is no last one")
	}
	q.late(sendMail.Kind, "50 hours")
	q.ctl("schedules", "list").want(0, "paused for 2h0m")
	q.declare() // a restart of a worker does not end it, nor does it move
	q.late(sendMail.Kind, "50 hours")
	q.ctl("schedules", "show", sendMail.Kind).want(0, "is paused, for 2h0m")
	q.ctl("schedules", "run", sendMail.Kind).want(0, "job 1 enqueued")
	q.ctl("schedules", "resume", sendMail.Kind).want(0, "mail.send", "ok")
	if next := q.count(`SELECT extract(epoch FROM next_at - now())::int FROM jobgen.schedules WHERE kind = 'mail.send'`); next <= 0 || next > 25*60*60 {
		t.Errorf("the next tick is in %d s", next)
	}
	tick()
	if n := q.count(`SELECT count(*) FROM jobgen.jobs`); n != 2 {
		t.Errorf("%d jobs", n)
	}
	at := q.text(`SELECT next_at::text FROM jobgen.schedules WHERE kind = 'mail.send'`)
	q.ctl("schedules", "resume", sendMail.Kind).want(0)
	if now := q.text(`SELECT next_at::text FROM jobgen.schedules WHERE kind = 'mail.send'`); now != at {
		t.Error("resume has moved a schedule that was not paused")
	}
}

func (q *queue) text(sql string, args ...any) (s string) {
	q.Helper()
	if err := q.pool.QueryRow(q.Context(), sql, args...).Scan(&s); err != nil {
		q.Fatalf("%s: %v", sql, err)
	}
	return s
}

func TestAScheduleWrittenByHandIsListedWhateverItLacks(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.exec(`INSERT INTO jobgen.schedules (kind, name, cron, zone, missed, next_at, queue) VALUES ('k', 'k', '@hourly', 'UTC', 'once', clock_timestamp() + interval '1 hour', 'mail')`)
	q.ctl("schedules").want(0, "k")
	q.ctl("schedules", "show", "k").want(0)
	q.ctl("schedules", "run", "k").want(1).sentence()
}
