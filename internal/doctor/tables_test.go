package doctor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/internal/doctor"
)

func TestIndexesThatAreMissingInvalidOrStrangeAreFoundAndMended(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.exec("DROP INDEX jobgen.jobs_claim")
	f := p.finds("indexes", doctor.Critical, "The index jobs_claim is missing", "CREATE INDEX CONCURRENTLY jobs_claim ON jobgen.jobs")
	p.finds("plans", doctor.Critical, "Claim reads the whole of jobs")
	p.cured(f)
	p.healthy("plans")

	p.exec("ALTER TABLE jobgen.jobs DROP CONSTRAINT jobs_pkey")
	p.finds("plans", doctor.Critical, "Complete ")
	p.cured(p.finds("indexes", doctor.Critical, "The index jobs_pkey is missing", "ADD PRIMARY KEY USING INDEX jobs_pkey"))
	p.healthy("plans", "tables")

	p.exec("INSERT INTO jobgen.jobs (queue, kind, payload) SELECT 'q', 'same', '{}' FROM generate_series(1, 2)")
	if _, err := p.pool.Exec(t.Context(), "CREATE UNIQUE INDEX CONCURRENTLY one_of_a_kind ON jobgen.jobs (kind)"); err == nil {
		t.Fatal("a unique index on what is not")
	}
	p.cured(p.finds("indexes", doctor.Warning, "An invalid index is on the table jobs", "one_of_a_kind", "DROP INDEX CONCURRENTLY jobgen.one_of_a_kind"))

	// A REINDEX that is cut off leaves one behind, too.
	p.exec("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'jobgen.jobs_suspect'::regclass")
	p.cured(p.finds("indexes", doctor.Critical, "The index jobs_suspect is invalid", "REINDEX INDEX CONCURRENTLY jobgen.jobs_suspect"))

	p.exec("CREATE INDEX by_status ON jobgen.jobs (status, kind)")
	p.cured(p.finds("indexes", doctor.Warning, "A stranger's index is on the table jobs", "by_status", "HOT"))
	p.exec("CREATE INDEX by_creation ON jobgen.jobs (created_at)")
	p.cured(p.finds("indexes", doctor.Note, "A stranger's index", "created_at", "DROP INDEX CONCURRENTLY jobgen.by_creation"))

	p.exec("DROP INDEX jobgen.jobs_dead; CREATE INDEX jobs_dead ON jobgen.jobs (id) WHERE dead")
	p.cured2(p.finds("indexes", doctor.Warning, "The index jobs_dead is another than a migration made", "it is: CREATE INDEX jobs_dead ON jobgen.jobs USING btree (id) WHERE dead", "it should be:"))
}

// cured2 is cured with two remedies.
func (p *patient) cured2(f doctor.Finding) {
	p.Helper()
	p.cure(f)
	f.Remedies = f.Remedies[1:]
	p.cured(f)
}

func TestWhatStrangersPutOnATableIsFoundAndTakenOff(t *testing.T) {
	t.Parallel()
	p := admit(t)
	for _, c := range []struct {
		make     string
		severity doctor.Severity
		texts    []string
	}{
		{"CREATE FUNCTION public.audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; CREATE TRIGGER audit AFTER INSERT ON jobgen.jobs FOR EACH ROW EXECUTE FUNCTION public.audit()",
			doctor.Warning, []string{"A stranger's trigger is on the table jobs", "public.audit()"}},
		{"CREATE RULE no_delete AS ON DELETE TO jobgen.wake DO ALSO NOTHING", doctor.Warning, []string{"rule is on the table wake", "no_delete"}},
		{"ALTER TABLE jobgen.jobs SET UNLOGGED", doctor.Critical, []string{"The table jobs is unlogged", "lost"}},
		{"ALTER TABLE jobgen.jobs ENABLE ROW LEVEL SECURITY", doctor.Critical, []string{"Row-level security", "COPY is refused"}},
		{"CREATE TABLE orders (job bigint REFERENCES jobgen.jobs (id))", doctor.Warning, []string{"A foreign key refers to the table jobs", "public.orders"}},
		{"CREATE PUBLICATION everything FOR ALL TABLES", doctor.Warning, []string{"The table job_attempt is published without an identity", "everything"}},
		{"ALTER TABLE jobgen.jobs ADD CONSTRAINT mine CHECK (length(kind) > 0)", doctor.Warning, []string{"A stranger's constraint", "mine"}},
		{"ALTER TABLE jobgen.queues DROP CONSTRAINT queues_weight_check", doctor.Note, []string{"A constraint of the table queues is missing"}},
		{"ALTER TABLE jobgen.jobs ADD COLUMN tenant text", doctor.Note, []string{"A stranger's column is in the table jobs", "tenant text"}},
		{"ALTER TABLE jobgen.jobs ADD COLUMN tenant text NOT NULL", doctor.Critical, []string{"A stranger's column is in the table jobs", "nothing can be inserted"}},
		{"ALTER TABLE jobgen.job_cancel DROP COLUMN reason", doctor.Critical, []string{"A column of the table job_cancel is missing", "reason text NOT NULL"}},
	} {
		p.exec(c.make)
		p.cured(p.finds("tables", c.severity, c.texts...))
	}
	p.exec("ALTER TABLE jobgen.jobs ALTER COLUMN last_error SET DEFAULT ''")
	p.finds("tables", doctor.Warning, "A column of the table jobs is not as a migration made it", "last_error is text DEFAULT ''::text")
	p.exec("ALTER TABLE jobgen.jobs ALTER COLUMN last_error DROP DEFAULT")
	p.exec("DROP TABLE jobgen.job_cancel")
	p.finds("tables", doctor.Critical, "The table job_cancel is missing")
}

func TestTablesOfAnotherRoleAreFound(t *testing.T) {
	t.Parallel()
	p := admit(t)
	name := p.role("ALL")
	p.exec("ALTER TABLE jobgen.samples OWNER TO " + name)
	p.cured(p.finds("tables", doctor.Warning, "Tables belong to different roles", name+": samples", "OWNER TO"))
}

func TestAutovacuumThatIsSwitchedOffIsFound(t *testing.T) {
	t.Parallel()
	p := alone(t, map[string]string{"autovacuum_max_workers": "1"})
	p.healthy("autovacuum")
	p.exec("ALTER SYSTEM SET autovacuum = off")
	p.exec("ALTER SYSTEM SET track_counts = off")
	p.exec("ALTER SYSTEM SET autovacuum_naptime = '1h'")
	p.exec("SELECT pg_reload_conf()")
	p.until("SELECT current_setting('track_counts') = 'off' AND current_setting('autovacuum_naptime') = '1h'")
	p.pool.Reset()
	r := p.examine("autovacuum")
	for _, f := range []doctor.Finding{
		p.in(r, "autovacuum", doctor.Critical, "autovacuum is off", "grow without end"),
		p.in(r, "autovacuum", doctor.Critical, "track_counts is off"),
		p.in(r, "autovacuum", doctor.Warning, "Autovacuum looks rarely", "1h0m"),
	} {
		p.cure(f)
	}
	p.soonHealthy("autovacuum")
}

func TestAllAutovacuumWorkersBusyIsNamedAsTheCause(t *testing.T) {
	t.Parallel()
	p := alone(t, map[string]string{"autovacuum_max_workers": "1", "autovacuum_naptime": "1s", "autovacuum_vacuum_cost_limit": "1"})
	p.limits.Dead, p.limits.DeadRounds, p.limits.Unvacuumed = 1000, 0, 0
	p.exec("ALTER TABLE jobgen.jobs SET (autovacuum_enabled = off)")
	p.finish(3000)
	// Somebody else's table, at a hundred pages a second.
	p.exec("CREATE TABLE big (t text) WITH (autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_threshold = 1, fillfactor = 10)")
	p.exec("INSERT INTO big SELECT repeat('x', 500) FROM generate_series(1, 20000)")
	p.exec("DELETE FROM big")
	p.until("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'autovacuum worker' AND query LIKE '%public.big%')")
	p.until(`SELECT n_dead_tup >= 3000 FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass`)
	p.finds("dead-rows", doctor.Warning, "Autovacuum does not come to the table jobs", "all 1 autovacuum workers are busy", "public.big", "autovacuum_max_workers = 2")
}

func TestRoomThatABacklogHasLeftIsANoteAndIsGivenBack(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.limits.Slack = 1 << 20
	p.exec(`INSERT INTO jobgen.jobs (queue, kind, payload) SELECT 'q', 'k', '{}' FROM generate_series(1, 50000)`)
	p.exec("ANALYZE jobgen.jobs")
	p.healthy("bloat") // it is full
	p.exec("ALTER TABLE jobgen.jobs SET (autovacuum_enabled = off)")
	p.exec(`DELETE FROM jobgen.jobs WHERE id % 500 <> 0`)
	p.until(`SELECT n_dead_tup > 40000 FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass`)
	p.exec("VACUUM ANALYZE jobgen.jobs")
	p.until(`SELECT n_dead_tup = 0 FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass`)
	f := p.finds("bloat", doctor.Note, "of the table jobs are empty", "rows: ", "jobs_claim: ", "VACUUM (TRUNCATE) jobgen.jobs;")
	p.exec(`DELETE FROM jobgen.jobs`) // what lies at the end of the file keeps what is before it
	p.cured(f)
}

func TestOldStatisticsAreFound(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.limits.Dead, p.limits.Unvacuumed = 1000, 0
	p.exec("ALTER TABLE jobgen.jobs SET (autovacuum_enabled = off)")
	p.exec(`INSERT INTO jobgen.jobs (queue, kind, payload) SELECT 'q', 'k', '{}' FROM generate_series(1, 5000)`)
	p.until(`SELECT n_mod_since_analyze >= 5000 FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass`)
	f := p.finds("statistics", doctor.Warning, "statistics of the table jobs are old", "never analyzed; 5,000 rows have changed", "ANALYZE jobgen.jobs;")
	p.cure(f)
	p.until(`SELECT n_mod_since_analyze = 0 FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass`)
	p.healthy("statistics")
}

func TestTransactionIDsThatRunOutAreFound(t *testing.T) {
	t.Parallel()
	p := alone(t, nil)
	p.finish(3)
	p.limits.Wraparound = value[int64](p, "SELECT age(datfrozenxid)::bigint FROM pg_database WHERE datname = current_database()")
	p.finds("wraparound", doctor.Warning, "Transaction ids run out", "VACUUM (FREEZE, VERBOSE)")
	p.limits.Wraparound /= 2
	f := p.finds("wraparound", doctor.Critical, "Transaction ids run out")
	p.cured(f)
}

// A check that is refused, or is too slow, does not spoil the others, and is not taken for healthy.
func TestAChecksFailureIsItsOwn(t *testing.T) {
	t.Parallel()
	p := admit(t)
	c := p.session()
	p.on(c, "BEGIN")
	p.on(c, "LOCK TABLE jobgen.schedules, jobgen.job_result IN ACCESS EXCLUSIVE MODE")
	begin := time.Now()
	r := p.examine("schedules", "history", "paused", "crashes")
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
	if len(r.Findings) != 0 || len(r.Unchecked) != 2 || len(r.Healthy) != 2 || !strings.Contains(r.Unchecked[0].Reason, "locked") {
		t.Errorf("%+v", r)
	}
	p.limits.Time = 80 * time.Millisecond // less than it waits for a lock
	r = p.examine("schedules", "paused")
	if len(r.Unchecked) != 1 || len(r.Healthy) != 1 || !strings.Contains(r.Unchecked[0].Reason, "longer than 80ms") {
		t.Errorf("%+v", r)
	}
}

// All that is left to others under this lock is to read. A plan of a claim takes a claim's lock, and gives up at once.
func TestADoctorOnlyReads(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.wait(10, "q", "k", 1, "0")
	p.hire("")
	c := p.session()
	p.on(c, "BEGIN")
	p.on(c, "LOCK TABLE "+value[string](p, "SELECT string_agg(oid::regclass::text, ', ') FROM pg_class WHERE relnamespace = 'jobgen'::regnamespace AND relkind = 'r'")+" IN EXCLUSIVE MODE")
	r := p.examine()
	if len(r.Unchecked) != 1 || r.Unchecked[0].Check != "plans" || !strings.Contains(r.Unchecked[0].Reason, "locked") {
		t.Errorf("%+v", r.Unchecked)
	}
	for _, f := range r.Findings {
		if f.Check != "settings" {
			t.Error(show(f))
		}
	}
}
