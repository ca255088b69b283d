package doctor_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jobgen-go/jobgen/internal/doctor"
)

func TestSettingsThatTheQueueDoesNotBearAreFoundWhereverTheyAreSet(t *testing.T) {
	t.Parallel()
	p := durable(t)
	for _, c := range []struct {
		set, value string
		severity   doctor.Severity
		texts      []string
	}{
		{"fsync", "off", doctor.Critical, []string{"fsync is off", "for the whole server (configuration file)"}},
		{"full_page_writes", "off", doctor.Critical, []string{"full_page_writes is off"}},
		{"synchronous_commit", "off", doctor.Warning, []string{"synchronous_commit is off", "jobs that were enqueued are gone"}},
	} {
		p.exec(fmt.Sprintf("ALTER SYSTEM SET %s = %s", c.set, c.value))
		p.exec("SELECT pg_reload_conf()")
		p.until("SELECT current_setting($1) = $2", c.set, c.value)
		f := p.finds("settings", c.severity, c.texts...)
		p.cure(f)
		p.until("SELECT current_setting($1) <> $2", c.set, c.value)
		p.healthy("settings")
	}
	name := p.role("ALL")
	app := p.as(name)
	for _, c := range []struct {
		set      string
		severity doctor.Severity
		texts    []string
	}{
		{"ALTER ROLE " + name + " SET statement_timeout = '2s'", doctor.Warning, []string{"statement_timeout is 2s", "it is set for role " + name}},
		{"ALTER ROLE " + name + " SET lock_timeout = 50", doctor.Warning, []string{"lock_timeout is 50ms"}},
		{"ALTER DATABASE postgres SET idle_session_timeout = '10min'", doctor.Warning, []string{"idle_session_timeout is 10m", "it is set for database postgres"}},
		{"ALTER ROLE " + name + " IN DATABASE postgres SET idle_in_transaction_session_timeout = '5s'", doctor.Warning, []string{"in database postgres"}},
		{"ALTER ROLE ALL SET default_transaction_isolation = 'serializable'", doctor.Note, []string{"default_transaction_isolation is serializable", "all roles"}},
		{"ALTER ROLE " + name + " SET synchronous_commit = off", doctor.Warning, []string{"synchronous_commit is off"}},
		{"ALTER ROLE " + name + " SET default_transaction_read_only = on", doctor.Critical, []string{"Nothing can be enqueued"}},
	} {
		p.exec(c.set)
		f := p.in(p.examineBy(app, "settings"), "settings", c.severity, c.texts...)
		p.cure(f)
		if r := p.examineBy(app, "settings"); len(r.Findings) > 0 {
			t.Errorf("not cured: %+v", r.Findings)
		}
	}
	// What is set for a role that is no worker's is its own affair, and what is long enough is none.
	p.exec("ALTER ROLE " + name + " SET statement_timeout = '1s'")
	p.healthy("settings")
	p.exec("ALTER ROLE " + name + " SET statement_timeout = '2min'")
	if r := p.examineBy(app, "settings"); len(r.Healthy) != 1 {
		t.Errorf("%+v", r)
	}
	// A worker's role is found by its sessions.
	p.exec("ALTER ROLE " + name + " SET statement_timeout = '1s'")
	q := &patient{t, app, p.limits}
	q.session("application_name", "jobgen worker")
	p.finds("settings", doctor.Warning, "statement_timeout is 1s", "role "+name)
}

func TestWhatRolesLackIsFoundAndGranted(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.healthy("permissions")
	reader := p.role("SELECT")
	pool := p.as(reader)
	p.in(p.examineBy(pool, "permissions"), "permissions", doctor.Note, "may look, and change nothing", "missing: INSERT ON TABLE", "missing: USAGE ON SEQUENCE fence, job_id", "jobs requeue")
	q := &patient{t, pool, p.limits}
	q.session("application_name", "jobgen worker")
	f := p.finds("permissions", doctor.Critical, "The workers' role "+reader+" lacks permissions", "jobs are not claimed")
	p.cured(f)

	stranger := p.role("")
	other := p.as(stranger)
	f = p.in(p.examineBy(other, "permissions"), "permissions", doctor.Warning, "lacks permissions", "usage of schema jobgen")
	r := p.examineBy(other, "workers", "schedules", "history", "schema")
	for _, u := range r.Unchecked {
		if !strings.Contains(u.Reason, "permission denied") || !strings.Contains(u.Remedy+u.Reason, "GRANT USAGE ON SCHEMA jobgen TO "+stranger) && !strings.Contains(u.Reason, "grant this role") {
			t.Errorf("%+v", u)
		}
	}
	if len(r.Unchecked) < 4 || len(r.Healthy) != 0 {
		t.Errorf("%+v", r)
	}
	p.cure(f)
	if r := p.examineBy(other, "permissions", "workers", "schedules", "history", "schema"); len(r.Healthy) != 5 {
		t.Errorf("%+v", r)
	}
}

func TestWhoBlocksTheQueueIsFoundAndEnded(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.limits.LockWait = 0
	p.healthy("locks")
	holder := p.session("application_name", "a migration")
	p.on(holder, "BEGIN")
	p.on(holder, "LOCK TABLE jobgen.jobs IN EXCLUSIVE MODE")
	waiter := p.session("application_name", "an application")
	ended := make(chan error, 1)
	go func() {
		_, err := waiter.Exec(context.Background(), "INSERT INTO jobgen.jobs (queue, kind, payload) VALUES ('q', 'k', '{}')")
		ended <- err
	}()
	p.until("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'an application' AND datname = current_database())")
	f := p.finds("locks", doctor.Warning, "1 session waits for a lock on the queue", "an application, waits for", "query: INSERT INTO jobgen.jobs", "they are blocked by pid", "a migration, idle in transaction", "rolled back")
	p.limits.LongWait = 0
	p.finds("locks", doctor.Critical)
	p.cured(f)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestARowThatSomebodyKeepsLockedIsFoundByWhoWaitsForIt(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.limits.LockWait = 0
	p.wait(1, "q", "k", 1, "0")
	holder, waiter := p.session("application_name", "holder"), p.session("application_name", "waiter")
	p.on(holder, "BEGIN")
	p.on(holder, "UPDATE jobgen.jobs SET priority = 1")
	ended := make(chan error, 1)
	go func() {
		_, err := waiter.Exec(context.Background(), "DELETE FROM jobgen.jobs")
		ended <- err
	}()
	p.until("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'waiter' AND datname = current_database())")
	p.cured(p.finds("locks", doctor.Warning, "waiter, waits for", "holder, idle in transaction"))
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestSessionsThatIdleInATransactionAreFoundAndEnded(t *testing.T) {
	t.Parallel()
	p := admit(t)
	c := p.session("application_name", "forgetful")
	p.on(c, "BEGIN")
	p.on(c, "SELECT 1 AS forgotten")
	p.healthy("transactions")
	p.limits.Idle = 0
	role := value[string](p, "SELECT current_user::text")
	p.cured(p.finds("transactions", doctor.Warning, "forgetful, idle for", "forgotten", "idle_in_transaction_session_timeout = '5min'", role))
}

func TestFewConnectionsLeftAreFound(t *testing.T) {
	t.Parallel()
	p := alone(t, map[string]string{"max_connections": "20", "superuser_reserved_connections": "3"})
	p.healthy("connections")
	for range 12 {
		p.session("application_name", "jobgen worker")
	}
	f := p.finds("connections", doctor.Warning, "Few connections are left", " of 17 are used", "jobgen worker 12", "max_connections = 34")
	p.limits.Full = 0.7
	p.finds("connections", doctor.Critical)
	p.cure(f) // holds after a restart
}

func TestNotificationsThatAListenerHoldsBackAreFound(t *testing.T) {
	t.Parallel()
	p := alone(t, nil) // the queue is the server's
	p.healthy("notify")
	c := p.session("application_name", "a stuck listener")
	p.on(c, "LISTEN jobs")
	p.on(c, "BEGIN")
	p.on(c, "SELECT 1")
	p.exec("SELECT pg_notify('jobs', repeat('x', 7000) || i) FROM generate_series(1, 2000) i")
	p.limits.Notify = value[float64](p, "SELECT pg_notification_queue_usage()") / 2
	if p.limits.Notify == 0 {
		t.Fatal("nothing is in the queue")
	}
	f := p.finds("notify", doctor.Warning, "is not drained", "a stuck listener, idle in transaction", "pg_terminate_backend", "each commit with a NOTIFY fails")
	p.limits.NotifyFull = p.limits.Notify
	p.finds("notify", doctor.Critical)
	p.cure(f)
	p.until("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'a stuck listener')")
	p.exec("NOTIFY jobs") // moves the tail
	p.exec("SELECT pg_notify('jobs', repeat('x', 7000) || i) FROM generate_series(1, 200) i")
	p.soonHealthy("notify")
}

func TestClocksThatDisagreeAreFound(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.hire("skew_us = -500000")
	p.healthy("clocks")
	p.hire("skew_us = -90000000, host = 'late-1'")
	p.hire("skew_us = 3000000, host = 'early-1'")
	p.finds("clocks", doctor.Warning, "Clocks of workers are wrong", "late-1", "1m30s behind the database's", "early-1", "3s ahead of the database's")
	p.exec("DELETE FROM jobgen.workers")
	p.hire("beat_at = clock_timestamp() + interval '1 hour'") // by a clock that has been set back since
	p.finds("clocks", doctor.Warning, "The database's clock has gone back", "the last heartbeat of a worker is 59m in the future")
}

func TestWorkersBehindAPoolerAreANote(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.hire("pooled = false")
	p.healthy("pooler")
	p.hire("pooled = true")
	p.finds("pooler", doctor.Note, "behind a transaction pooler", "1 worker", "polls")
}

func TestAServerThatGetsNoMoreFixesIsANote(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.healthy("server")
	p.limits.Unfixed = -century // all have had their last release
	p.finds("server", doctor.Note, "The server gets no more fixes", "the last release of", "Upgrade")
}

func TestDeadlocksAndFrequentCheckpointsAreNotes(t *testing.T) {
	t.Parallel()
	p := alone(t, nil)
	p.healthy("server")
	for range 21 {
		p.exec("CREATE TEMP TABLE IF NOT EXISTS t (i int)")
		p.exec("CHECKPOINT")
	}
	count, reset := "SELECT checkpoints_req > 20 FROM pg_stat_bgwriter", "SELECT pg_stat_reset_shared('bgwriter')"
	if value[int](p, "SELECT current_setting('server_version_num')::int") >= 170_000 {
		count, reset = "SELECT num_requested > 20 FROM pg_stat_checkpointer", "SELECT pg_stat_reset_shared('checkpointer')"
	}
	p.until(count)
	p.healthy("server") // they have not been counted for long
	p.limits.Checkpoints = 0
	p.finds("server", doctor.Note, "Checkpoints come too often", "max_wal_size = '")
	p.exec(reset)
	p.limits.Deadlocks = 0.1
	p.wait(2, "q", "k", 1, "0")
	a, b := p.session("deadlock_timeout", "10ms"), p.session("deadlock_timeout", "10ms")
	p.on(a, "BEGIN; UPDATE jobgen.jobs SET priority = 1 WHERE id = 1")
	p.on(b, "BEGIN; UPDATE jobgen.jobs SET priority = 1 WHERE id = 2")
	ended := make(chan error, 1)
	go func() {
		_, err := a.Exec(context.Background(), "UPDATE jobgen.jobs SET priority = 1 WHERE id = 2")
		ended <- err
	}()
	_, err := b.Exec(t.Context(), "UPDATE jobgen.jobs SET priority = 1 WHERE id = 1")
	if err == nil {
		err = <-ended
	}
	if err == nil {
		t.Fatal("no deadlock")
	}
	a.Close(context.Background())
	b.Close(context.Background())
	p.until("SELECT deadlocks > 0 FROM pg_stat_database WHERE datname = current_database()")
	p.finds("server", doctor.Note, "Deadlocks", "1 in database postgres")
}
