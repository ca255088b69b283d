package doctor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jobgen-go/jobgen/internal/doctor"
)

// pinned lets whatever keeps dead rows be old enough.
func (p *patient) pinned() *patient {
	p.limits.Old, p.limits.VeryOld, p.limits.SlotAge, p.limits.SlotWAL = 0, 0, 10, 1
	return p
}

// finish makes and removes n jobs, so that as many dead rows are left.
func (p *patient) finish(n int) {
	p.Helper()
	for range 3 { // several transactions: age is counted in them
		p.exec(`INSERT INTO jobgen.jobs (queue, kind, payload) SELECT 'q', 'k', '{}' FROM generate_series(1, $1::int)`, n/3+1)
		p.exec(`DELETE FROM jobgen.jobs`)
	}
}

func TestASessionWithAnOldSnapshotIsFoundAndItsEndCures(t *testing.T) {
	t.Parallel()
	p := admit(t)
	c := p.session("application_name", "a report")
	p.on(c, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	p.on(c, "SELECT count(*) /* the\tyearly report */ FROM jobgen.jobs")
	p.healthy("horizon") // it is young
	p.pinned().finish(3000)
	p.until(`SELECT n_dead_tup >= 3000 FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass`)
	pid := c.PgConn().PID()
	f := p.finds("horizon", doctor.Warning, fmt.Sprintf("pid %d, role ", pid), "a report, idle in transaction", "the yearly report", "3,003 dead rows and 0 live",
		fmt.Sprintf("pg_terminate_backend(%d)", pid), "rolled back")
	p.limits.ManyDead = 3000
	p.finds("horizon", doctor.Critical, "a report")
	p.cured(f)
}

func TestATransactionThatHasWrittenIsFoundThoughItHasNoSnapshot(t *testing.T) {
	t.Parallel()
	p := admit(t).pinned()
	c := p.session("application_name", "writer")
	p.on(c, "BEGIN")
	p.on(c, "INSERT INTO jobgen.queues (name) VALUES ('q')")
	p.cured(p.finds("horizon", doctor.Warning, "writer, idle in transaction"))
}

func TestWhatAnotherRoleDoesIsNotCheckedWithoutTheRightToSeeIt(t *testing.T) {
	t.Parallel()
	p := admit(t).pinned()
	c := p.session("application_name", "hidden")
	p.on(c, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	p.on(c, "SELECT 1")
	name := p.role("SELECT")
	pool := p.as(name)
	for _, check := range []string{"horizon", "locks", "transactions"} {
		r := p.examineBy(pool, check)
		if len(r.Healthy) != 0 || len(r.Unchecked) != 1 || !strings.Contains(r.Unchecked[0].Remedy, "GRANT pg_monitor TO") {
			t.Fatalf("%+v", r)
		}
		if !strings.Contains(r.Unchecked[0].Reason, "does not see") {
			t.Errorf("%+v", r.Unchecked)
		}
	}
	p.exec(p.examineBy(pool, "horizon").Unchecked[0].Remedy)
	p.in(p.examineBy(pool, "horizon"), "horizon", doctor.Warning, "hidden")
}

func TestReplicationSlotsAndPreparedTransactionsAreFoundAndRemoved(t *testing.T) {
	t.Parallel()
	p := alone(t, map[string]string{"wal_level": "logical", "max_prepared_transactions": "5", "max_replication_slots": "5", "max_wal_senders": "5"})
	p.healthy("horizon")
	t.Run("a prepared transaction", func(t *testing.T) {
		c := p.session()
		p.on(c, "BEGIN")
		p.on(c, "INSERT INTO jobgen.queues (name) VALUES ('q')")
		p.on(c, `PREPARE TRANSACTION E'it''s \\ "odd"\n'`)
		p.healthy("horizon")
		p.limits.Old = 0
		f := p.finds("horizon", doctor.Warning, `E'it''s \\ "odd"\U0000000a'`, "prepared", "ROLLBACK PREPARED", "COMMIT PREPARED", "locks")
		p.cured(f)
	})
	t.Run("the first copy of a table for a subscription", func(t *testing.T) {
		c := p.session("replication", "database", "application_name", "copier")
		p.on(c, "BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
		p.on(c, "CREATE_REPLICATION_SLOT copying TEMPORARY LOGICAL pgoutput USE_SNAPSHOT")
		p.limits.Old = 0
		f := p.finds("horizon", doctor.Warning, "A session keeps dead rows", "copier, idle in transaction")
		kept := p.holders()
		if _, is := kept["session"]; !is || len(kept) != 1 {
			t.Errorf("the metric says %v", kept)
		}
		p.cured(f)
		p.limits.Old = doctor.Default.Old
	})
	t.Run("a slot that nobody uses", func(t *testing.T) {
		p.exec("SELECT pg_create_logical_replication_slot('left_over', 'pgoutput')")
		p.healthy("horizon")
		p.finish(3000)
		p.limits.SlotWAL = value[int64](p, "SELECT (pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) / 2)::bigint FROM pg_replication_slots")
		f := p.finds("horizon", doctor.Warning, "makes the server keep WAL", "logical slot left_over, not in use", "none of jobgen's tables", "pg_drop_replication_slot('left_over')", "set up anew")
		p.cured(f)
		p.limits.SlotWAL = doctor.Default.SlotWAL
	})
}

func TestDeadRowsThatAutovacuumDoesNotComeForAreFound(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.limits.Dead, p.limits.Unvacuumed = 1000, 0
	p.exec("ALTER TABLE jobgen.jobs SET (autovacuum_enabled = off, autovacuum_vacuum_threshold = 100)")
	p.finish(3000)
	p.until(`SELECT n_dead_tup >= 3000 FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass`)
	f := p.finds("dead-rows", doctor.Warning, "Autovacuum does not come to the table jobs", "3,003 dead rows, 0 live; autovacuum should come from 100 on", "never vacuumed", "VACUUM jobgen.jobs;")
	p.cure(f)
	p.until(`SELECT n_dead_tup = 0 FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass`)
	p.healthy("dead-rows")
	f = p.finds("autovacuum", doctor.Critical, "Autovacuum is off for the table jobs", "autovacuum_enabled of jobgen.jobs is off")
	p.cure(f)
	p.cured(p.finds("autovacuum", doctor.Warning, "autovacuum_vacuum_threshold of jobgen.jobs is 100; a migration made it 1000"))
}

func TestAVacuumThatCannotRemoveDeadRowsIsFound(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.limits.Dead, p.limits.DeadRounds = 1000, 0
	c := p.session()
	p.on(c, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	p.on(c, "SELECT 1")
	p.finish(3000)
	p.until(`SELECT n_dead_tup >= 3000 FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass`) // before 15 they are counted late, and would be again
	p.exec("VACUUM jobgen.jobs")
	p.until(`SELECT n_dead_tup >= 3000 AND last_vacuum IS NOT NULL FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass`)
	f := p.finds("dead-rows", doctor.Warning, "cannot remove dead rows", "3,003 dead rows", "pg_stat_activity")
	p.limits.Old = 0
	if r := p.examine("horizon", "dead-rows"); len(r.Findings) != 1 || r.Findings[0].Check != "horizon" {
		t.Errorf("the cause is named, and so is the symptom: %+v", r.Findings)
	}
	p.cure(f) // shows who
	p.on(c, "ROLLBACK")
	p.exec("VACUUM jobgen.jobs")
	p.until(`SELECT n_dead_tup = 0 FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass`)
	p.healthy("dead-rows")
}
