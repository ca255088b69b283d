package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	gen "github.com/jobgen-go/jobgen/gen/postgres"

	"github.com/jobgen-go/jobgen/internal/human"
)

// settingsOf gives what a new session of this role has.
func (v *visit) settingsOf(names ...string) (map[string]string, error) {
	rows, err := v.q.DoctorSettings(v.ctx, names)
	all := map[string]string{}
	for _, r := range rows {
		all[r.Name] = r.Value
	}
	return all, err
}

// roles are this one and those of the workers.
func (v *visit) roles() ([]string, error) {
	fleet, err := v.q.DoctorFleetRoles(v.ctx)
	if !slices.Contains(fleet, v.server.Role) {
		fleet = append(fleet, v.server.Role)
	}
	return fleet, err
}

// writes are commands of jobctl that change something.
const writes = "jobs requeue, jobs cancel, queues pause and their like"

func (v *visit) permissions() error {
	roles, err := v.roles()
	if err != nil {
		return err
	}
	barred, err := v.q.DoctorUsage(v.ctx, roles)
	if err != nil {
		return err
	}
	lacks, err := v.q.DoctorPrivileges(v.ctx, roles)
	if err != nil {
		return err
	}
	fleet, err := v.q.DoctorFleetRoles(v.ctx)
	if err != nil {
		return err
	}
	for _, role := range roles {
		var what, grants []string
		reads := true
		if slices.Contains(barred, role) {
			what, grants, reads = append(what, "usage of schema jobgen"), append(grants, "GRANT USAGE ON SCHEMA jobgen TO "+ident(role)+";"), false
		}
		by := map[string][]string{}
		for _, l := range lacks {
			if l.Role == role {
				object := "TABLE"
				if l.Relkind == "S" {
					object = "SEQUENCE"
				}
				by[l.Privilege+" ON "+object] = append(by[l.Privilege+" ON "+object], l.Name)
				reads = reads && (l.Privilege != "SELECT" || l.Relkind == "S")
			}
		}
		for _, key := range slices.Sorted(maps.Keys(by)) {
			var names []string
			for _, name := range by[key] {
				names = append(names, "jobgen."+ident(name))
			}
			what = append(what, key+" "+list(by[key]))
			grants = append(grants, "GRANT "+key+" "+strings.Join(names, ", ")+" TO "+ident(role)+";")
		}
		if len(what) == 0 {
			continue
		}
		var f draft
		switch {
		case slices.Contains(fleet, role):
			f = v.find(Critical, "The workers' role %s lacks permissions", role).so("Statements that need them fail: jobs are not claimed, or not finished.")
		case reads:
			f = v.find(Note, "The role %s may look, and change nothing", role).so("Refused to it: %s.", writes)
		default:
			f = v.find(Warning, "The role %s lacks permissions", role).so("Refused to it: %s, and what reads those tables.", writes)
		}
		for _, w := range what {
			f = f.saw("missing: %s", w)
		}
		f.sql("", strings.Join(grants, "\n"))
	}
	return nil
}

func (v *visit) locks() error {
	waits, err := v.q.DoctorLocks(v.ctx)
	if err != nil {
		return err
	}
	v.seesAll()
	waits = slices.DeleteFunc(waits, func(l gen.DoctorLocksRow) bool { return us(l.WaitsUs) < v.limits.LockWait })
	if len(waits) == 0 {
		return nil
	}
	// The roots: who blocks, and waits for nobody.
	blocks := map[int32]int{}
	for _, w := range waits {
		for _, pid := range w.BlockedBy {
			if !slices.ContainsFunc(waits, func(o gen.DoctorLocksRow) bool { return o.Pid == pid }) {
				blocks[pid]++
			}
		}
	}
	who, err := v.q.DoctorSessions(v.ctx, slices.Sorted(maps.Keys(blocks)))
	if err != nil {
		return err
	}
	s := Warning
	if len(waits) >= 10 || us(waits[0].WaitsUs) >= v.limits.LongWait {
		s = Critical
	}
	f := v.find(s, "%s for a lock on the queue", human.Count(len(waits), "session waits", "sessions wait"))
	for _, w := range waits[:min(3, len(waits))] {
		f = f.saw("%s, waits for %s", session(w.Pid, w.Role, w.Application, "", 0), age(us(w.WaitsUs))).sawQuery(w.Query)
	}
	for _, b := range who {
		f = f.saw("they are blocked by %s", session(b.Pid, b.Role, b.Application, b.State, us(b.OpenUs))).sawQuery(b.Query)
	}
	if blocks[0] > 0 {
		f = f.saw("they are blocked by a prepared transaction")
	}
	f = f.so("What waits holds its connection, and what waits behind it does, too. Claims pass rows that are locked; a lock on the table stops them.")
	for _, b := range who {
		f = f.sql("Ends what blocks; what it has not committed is rolled back.", fmt.Sprintf("SELECT pg_terminate_backend(%d);", b.Pid))
	}
	if blocks[0] > 0 {
		f.sql("Then ROLLBACK PREPARED or COMMIT PREPARED, as its coordinator says.", "SELECT gid, prepared, owner FROM pg_prepared_xacts ORDER BY prepared;")
	}
	return nil
}

func (v *visit) transactions() error {
	idle, err := v.q.DoctorIdle(v.ctx, v.limits.Idle.Microseconds())
	if err != nil {
		return err
	}
	v.seesAll()
	if len(idle) == 0 {
		return nil
	}
	f := v.find(Warning, "Sessions are idle in a transaction, and nothing ends them")
	roles := map[string]bool{}
	for _, s := range idle[:min(5, len(idle))] {
		roles[s.Role] = true
		f = f.saw("%s, idle for %s", session(s.Pid, s.Role, s.Application, "", 0), age(us(s.IdleUs))).sawQuery(s.Query)
	}
	if len(idle) > 5 {
		f = f.saw("and more")
	}
	f = f.so("Each keeps its locks, and as a rule dead rows. A program that has lost its way keeps them for ever.")
	var statements []string
	for _, s := range idle {
		statements = append(statements, fmt.Sprintf("SELECT pg_terminate_backend(%d);", s.Pid))
	}
	f = f.sql("Ends them; what they have not committed is rolled back.", strings.Join(statements, "\n"))
	statements = nil
	for _, role := range slices.Sorted(maps.Keys(roles)) {
		statements = append(statements, fmt.Sprintf("ALTER ROLE %s SET idle_in_transaction_session_timeout = '5min';", ident(role)))
	}
	f.sql("So that the server does it, for new sessions; a transactional handler may be idle for as long as it computes.", strings.Join(statements, "\n"))
	return nil
}

// duration reads a setting of time as it is written for a role, in units of ms if it has none.
func duration(s string) time.Duration {
	s = strings.ReplaceAll(strings.TrimSpace(s), " ", "")
	if n, err := strconv.Atoi(s); err == nil {
		return time.Duration(n) * time.Millisecond
	}
	if n, is := strings.CutSuffix(s, "d"); is {
		days, _ := strconv.Atoi(n)
		return time.Duration(days) * 24 * time.Hour
	}
	d, _ := time.ParseDuration(strings.Replace(s, "min", "m", 1))
	return d
}

// setting is something set that the queue does not bear.
type setting struct {
	name     string
	bad      func(value string) bool
	severity Severity
	so       string
	value    string // that it should have
}

func is(bad ...string) func(string) bool {
	return func(value string) bool { return slices.Contains(bad, value) }
}

func shorterThan(d time.Duration) func(string) bool {
	return func(value string) bool { t := duration(value); return t > 0 && t < d }
}

// Workers' own sessions set statement_timeout and default_transaction_isolation for themselves.
var badSettings = []setting{
	{"fsync", is("off"), Critical, "After a crash of the machine the database may be lost, with all jobs in it.", "on"},
	{"full_page_writes", is("off"), Critical, "After a crash of the machine the database may be damaged.", "on"},
	{"default_transaction_read_only", is("on"), Critical, "Nothing can be enqueued, claimed or finished.", "off"},
	{"synchronous_commit", is("off"), Warning, "A crash of the server loses what was committed in its last moments: jobs that were enqueued are gone, and such as were finished run again.", "on"},
	{"statement_timeout", shorterThan(5 * time.Second), Warning, "It ends enqueues of many jobs, and what transactional handlers do, when the database is slow for a moment.", "'30s'"},
	{"transaction_timeout", shorterThan(time.Minute), Warning, "It ends the transactions of transactional handlers, however healthy they are.", "0"},
	{"lock_timeout", shorterThan(time.Second), Warning, "An enqueue with a key waits for others of that key, and fails by it.", "'5s'"},
	{"idle_session_timeout", shorterThan(24 * time.Hour), Warning, "It ends connections that wait in pools, and the one by which a worker is notified: each time it connects anew.", "0"},
	{"idle_in_transaction_session_timeout", shorterThan(time.Minute), Warning, "It ends transactional handlers that compute for longer between two statements; they fail and are tried again.", "'5min'"},
	{"default_transaction_isolation", is("serializable", "repeatable read"), Note, "Enqueues in such transactions may fail with a serialization failure, and have to be tried again.", "'read committed'"},
	{"session_replication_role", is("replica"), Warning, "Triggers and foreign keys are not looked at.", "origin"},
}

func (v *visit) settings() error {
	var names []string
	for _, b := range badSettings {
		names = append(names, b.name)
	}
	values, err := v.settingsOf(names...)
	if err != nil {
		return err
	}
	sources, err := v.q.DoctorSettings(v.ctx, names)
	if err != nil {
		return err
	}
	for _, b := range badSettings {
		i := slices.IndexFunc(sources, func(s gen.DoctorSettingsRow) bool { return s.Name == b.name })
		// What is set for a role or a database is found below; what this session has asked for is no other's.
		if i < 0 || !b.bad(values[b.name]) || slices.Contains([]string{"user", "database", "database user", "client", "session"}, sources[i].Source) {
			continue
		}
		f := v.find(b.severity, "%s is %s", b.name, shown(b, values[b.name])).saw("it is set for the whole server (%s)", sources[i].Source).so("%s", b.so)
		if sources[i].Source == "command line" || sources[i].Source == "environment variable" {
			f.do("Start the server without it; on its command line it comes before what ALTER SYSTEM sets.")
		} else {
			f.sql("", fmt.Sprintf("ALTER SYSTEM SET %s = %s;\nSELECT pg_reload_conf();", b.name, b.value))
		}
	}
	rows, err := v.q.DoctorRoleSettings(v.ctx)
	if err != nil {
		return err
	}
	roles, err := v.roles()
	if err != nil {
		return err
	}
	for _, r := range rows {
		if r.Role != "" && !slices.Contains(roles, r.Role) {
			continue
		}
		name, value, _ := strings.Cut(r.Entry, "=")
		for _, b := range badSettings {
			if b.name != name || !b.bad(value) {
				continue
			}
			of, alter := "database "+r.Database, "ALTER DATABASE "+ident(r.Database)
			switch {
			case r.Role != "" && r.Database != "":
				of, alter = fmt.Sprintf("role %s in database %s", r.Role, r.Database), fmt.Sprintf("ALTER ROLE %s IN DATABASE %s", ident(r.Role), ident(r.Database))
			case r.Role != "":
				of, alter = "role "+r.Role, "ALTER ROLE "+ident(r.Role)
			case r.Database == "":
				of, alter = "all roles", "ALTER ROLE ALL"
			}
			v.find(b.severity, "%s is %s", b.name, shown(b, value)).saw("it is set for %s", of).so("%s", b.so).
				sql("For new sessions.", alter+" RESET "+b.name+";")
		}
	}
	return nil
}

func shown(b setting, value string) string {
	if d := duration(value); d > 0 && strings.HasSuffix(b.name, "timeout") {
		return age(d)
	}
	return value
}

func (v *visit) connections() error {
	s, err := v.settingsOf("max_connections", "superuser_reserved_connections", "reserved_connections")
	if err != nil {
		return err
	}
	rows, err := v.q.DoctorConnections(v.ctx)
	if err != nil {
		return err
	}
	most, _ := strconv.Atoi(s["max_connections"])
	for _, name := range []string{"superuser_reserved_connections", "reserved_connections"} {
		n, _ := strconv.Atoi(s[name])
		most -= n
	}
	used := 0
	var who []string
	for i, r := range rows {
		used += int(r.N)
		if i < 6 {
			who = append(who, fmt.Sprintf("%s %d", r.Application, r.N))
		}
	}
	if most <= 0 || float64(used) < v.limits.Connections*float64(most) {
		return nil
	}
	severity := Warning
	if float64(used) >= v.limits.Full*float64(most) {
		severity = Critical
	}
	v.find(severity, "Few connections are left").saw("%d of %d are used", used, most).saw("%s", strings.Join(who, ", ")).
		so("The next process that starts, or a pool that grows, is refused. A worker has up to four of its own, beside its application's pool.").
		do("Smaller pools (pool_max_conns) or a pooler: docs/runtime/connections.md counts what a fleet needs.").
		sql("Or more, after a restart of the server.", fmt.Sprintf("ALTER SYSTEM SET max_connections = %d;", 2*most))
	return nil
}

func (v *visit) notify() error {
	usage, err := v.q.DoctorNotify(v.ctx)
	if err != nil {
		return err
	}
	if usage < v.limits.Notify {
		return nil
	}
	oldest, err := v.q.DoctorOldest(v.ctx)
	if err != nil {
		return err
	}
	v.seesAll()
	severity := Warning
	if usage >= v.limits.NotifyFull {
		severity = Critical
	}
	f := v.find(severity, "The queue of notifications is not drained").saw("%.3g%% of it is used", 100*usage)
	for _, s := range oldest {
		f = f.saw("%s, database %s", session(s.Pid, s.Role, s.Application, s.State, us(s.OpenUs)), s.Database).sawQuery(s.Query)
	}
	f = f.so("A session that listens and stays in a transaction holds it back. When it is full, each commit with a NOTIFY fails: enqueues do, and so does what enqueues.")
	if len(oldest) > 0 {
		f.sql("Ends the oldest transaction; what it has not committed is rolled back.", fmt.Sprintf("SELECT pg_terminate_backend(%d);", oldest[0].Pid))
	}
	return nil
}

func (v *visit) clocks() error {
	workers, err := v.q.DoctorWorkers(v.ctx)
	if err != nil {
		return err
	}
	future, err := v.q.DoctorFuture(v.ctx)
	if err != nil {
		return err
	}
	var off []string
	for _, w := range workers {
		if w.Live && w.SkewUs != nil && us(*w.SkewUs).Abs() >= v.limits.Skew {
			way := "ahead of"
			if *w.SkewUs < 0 {
				way = "behind"
			}
			off = append(off, fmt.Sprintf("%s (worker %s): %s %s the database's", w.Host, w.ID, age(us(*w.SkewUs).Abs()), way))
		}
	}
	if len(off) > 0 {
		f := v.find(Warning, "Clocks of workers are wrong")
		for _, line := range off[:min(5, len(off))] {
			f = f.saw("%s", line)
		}
		if len(off) > 5 {
			f = f.saw("and %d more", len(off)-5)
		}
		f.so("Nothing of the queue is decided by them; logs and traces do not fit together, and times that a program passes (jobs.At, jobs.Deadline) are off by as much.").
			do("Run chrony or systemd-timesyncd there.")
	}
	if len(future) > 0 {
		f := v.find(Warning, "The database's clock has gone back")
		for _, l := range future {
			f = f.saw("%s is %s in the future", l.What, age(us(l.AheadUs)))
		}
		f.so("Jobs that were due wait until it is that time again, and leases last for longer.").do("Let the server's clock be slewed, not set (chrony, makestep only at the start).")
	}
	return nil
}

func (v *visit) pooler() error {
	workers, err := v.q.DoctorWorkers(v.ctx)
	if err != nil {
		return err
	}
	pooled := 0
	for _, w := range workers {
		if w.Live && w.Pooled != nil && *w.Pooled {
			pooled++
		}
	}
	if pooled > 0 {
		v.find(Note, "Workers are behind a transaction pooler").saw("%s", human.Count(pooled, "worker", "workers")).
			so("LISTEN does not work there: an idle worker polls, and a job may wait for some seconds.").
			do("Connect workers directly, or by a pool in session mode (docs/runtime/pgbouncer.md), if that is too long.")
	}
	return nil
}

// endOfLife is when a major version got its last release.
var endOfLife = map[int32]time.Time{
	14: time.Date(2026, 11, 12, 0, 0, 0, 0, time.UTC),
	15: time.Date(2027, 11, 11, 0, 0, 0, 0, time.UTC),
	16: time.Date(2028, 11, 9, 0, 0, 0, 0, time.UTC),
	17: time.Date(2029, 11, 8, 0, 0, 0, 0, time.UTC),
	18: time.Date(2030, 11, 14, 0, 0, 0, 0, time.UTC),
}

func (v *visit) serverVersion() error {
	major := v.server.Version / 10_000
	end, known := endOfLife[major]
	switch {
	case major < 14:
		v.find(Critical, "The server is too old").saw("PostgreSQL %s", v.server.VersionName).so("jobgen needs 14 or later.").do("Upgrade the server (pg_upgrade).")
	case known && v.server.DbNow.Sub(end) > v.limits.Unfixed:
		v.find(Note, "The server gets no more fixes").saw("PostgreSQL %s; the last release of %d was on %s", v.server.VersionName, major, end.Format(time.DateOnly)).
			so("Faults that are found from now on stay in it.").do("Upgrade the server (pg_upgrade).")
	}
	if days := us(v.server.CountedUs).Hours() / 24; v.server.Deadlocks > 0 && us(v.server.CountedUs) > 0 && float64(v.server.Deadlocks) >= v.limits.Deadlocks*max(1, days) {
		v.find(Note, "Deadlocks").saw("%s in database %s in %s or more", human.Number(v.server.Deadlocks), v.server.Database, age(us(v.server.CountedUs))).
			so("The server ends one of the statements, which is tried again. Statements of the queue lock in one order; transactions that lock rows of their own beside an enqueue may not.").
			do("The server's log has both sides of each.")
	}
	return v.checkpoints()
}

func (v *visit) checkpoints() (err error) {
	var c gen.DoctorCheckpointsRow
	if v.server.Version >= 170_000 {
		var row gen.DoctorCheckpoints17Row
		row, err = v.q.DoctorCheckpoints17(v.ctx)
		c = gen.DoctorCheckpointsRow(row)
	} else {
		c, err = v.q.DoctorCheckpoints(v.ctx)
	}
	if err != nil {
		return err
	}
	s, err := v.settingsOf("max_wal_size")
	if err != nil {
		return err
	}
	if c.Requested >= 20 && c.Requested > c.Timed && us(c.CountedUs) >= v.limits.Checkpoints {
		mb, _ := strconv.ParseInt(s["max_wal_size"], 10, 64)
		v.find(Note, "Checkpoints come too often").saw("%s because WAL came to max_wal_size (%s), %s by time, in %s", human.Number(c.Requested), human.Bytes(mb<<20), human.Number(max(0, c.Timed)), age(us(c.CountedUs))).
			so("After each, the first change of a page writes all of it to the WAL: a queue writes up to several times as much.").
			sql("", fmt.Sprintf("ALTER SYSTEM SET max_wal_size = '%dMB';\nSELECT pg_reload_conf();", 4*mb))
	}
	return nil
}
