package doctor

import (
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/human"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// form is what DoctorForm finds after the migrations; a test writes it.
//
//go:embed form.txt
var form string

// thing is a line of it.
type thing struct{ what, rel, name, def string }

func (t thing) same(o thing) bool { return t.what == o.what && t.rel == o.rel && t.name == o.name }

func expected() (all []thing) {
	for line := range strings.Lines(form) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		all = append(all, thing{f[0], f[1], f[2], f[3]})
	}
	return all
}

// difference is something of the form that is not as expected. want or have is empty if there is none.
type difference struct{ want, have thing }

// differences compares what there is of some sort with what a migration makes. Nothing is said of tables that are not ours.
func (v *visit) differences(whats ...string) (all []difference, err error) {
	rows, err := v.q.DoctorForm(v.ctx)
	if err != nil {
		return nil, err
	}
	if err := v.current(); err != nil {
		return nil, err
	}
	var have []thing
	for _, r := range rows {
		have = append(have, thing{r.What, r.Rel, r.Name, r.Def})
	}
	ours := expected()
	for _, w := range ours {
		if !slices.Contains(whats, w.what) {
			continue
		}
		if i := slices.IndexFunc(have, w.same); i < 0 {
			all = append(all, difference{want: w})
		} else if have[i].def != w.def {
			all = append(all, difference{w, have[i]})
		}
	}
	for _, h := range have {
		known := slices.ContainsFunc(ours, func(w thing) bool { return w.rel == h.rel })
		if known && slices.Contains(whats, h.what) && !slices.ContainsFunc(ours, h.same) {
			all = append(all, difference{have: h})
		}
	}
	return all, nil
}

// current gives an error if the schema is not of the version whose form is known.
func (v *visit) current() error {
	all, err := postgres.Migrations(v.ctx, v.pool)
	switch {
	case len(all) == 0:
		return err
	case slices.ContainsFunc(all, func(m postgres.Migration) bool { return m.Name == "" || m.AppliedAt.IsZero() }):
		return errOther
	}
	return nil
}

var errOther = errors.New("the schema is of another version than this jobctl, which does not know what it should look like; see the check schema")

func (v *visit) schema() error {
	all, err := postgres.Migrations(v.ctx, v.pool)
	if len(all) == 0 {
		return err
	}
	var waits, applied, newer []string
	for _, m := range all {
		n := strconv.FormatInt(m.Version, 10)
		switch {
		case m.Name == "":
			newer = append(newer, n)
		case m.AppliedAt.IsZero():
			waits = append(waits, n)
		default:
			applied = append(applied, n)
		}
	}
	if len(newer) > 0 {
		f := v.find(Warning, "The schema is newer than this jobctl").saw("the database has version %s; this jobctl knows %s", newer[len(newer)-1], applied[max(0, len(applied)-1)]).
			do("Use a jobctl of the jobgen that migrated it.")
		if err != nil {
			f.Severity = Critical
			f.so("Programs built with this version of jobgen do not start on it.")
		} else {
			f.so("Programs built with this version of jobgen go on working; this jobctl does not know all of what it sees.")
		}
	}
	if len(waits) > 0 {
		v.find(Critical, "Migrations wait").saw("applied: %s; not applied: %s", list(applied), list(waits)).
			so("Programs built with this version of jobgen do not start.").
			run("Expands the schema; programs of the version before go on working beside it.", "jobctl migrate up")
	}
	rows, err := v.q.DoctorVersions(v.ctx)
	if err != nil {
		return err
	}
	for _, r := range rows {
		if !r.IsApplied && !slices.Contains(waits, strconv.FormatInt(r.VersionID, 10)) {
			continue // taken back, and applied again
		}
		if !r.IsApplied {
			v.find(Warning, "A migration was taken back").saw("version %d is noted as not applied", r.VersionID).
				so("What it made may be there or not.").run("Applies it again.", "jobctl migrate up")
		}
	}
	return nil
}

func (v *visit) tables() error {
	all, err := v.q.DoctorTables(v.ctx)
	if err != nil {
		return err
	}
	owners := map[string][]string{}
	most := ""
	for _, t := range all {
		owners[t.Owner] = append(owners[t.Owner], t.Name)
		if len(owners[t.Owner]) > len(owners[most]) {
			most = t.Owner
		}
	}
	for owner, names := range owners {
		if owner != most {
			f := v.find(Warning, "Tables belong to different roles").saw("%s: %s; the others: %s", owner, list(names), most).
				so("The next migration is refused for the tables that are not its role's.")
			for _, name := range names {
				f = f.sql("", fmt.Sprintf("ALTER TABLE jobgen.%s OWNER TO %s;", ident(name), ident(most)))
			}
		}
	}
	for _, t := range all {
		name := "jobgen." + ident(t.Name)
		if t.Persistence == "u" {
			v.find(Critical, "The table %s is unlogged", t.Name).saw("%s has %s", name, human.Count(t.Live, "row", "rows")).
				so("After a crash of the server it is empty, and on a standby it always is: jobs that were committed are lost.").
				sql("Writes the table anew; nobody can use it meanwhile.", "ALTER TABLE "+name+" SET LOGGED;")
		}
		if t.RowSecurity {
			v.find(Critical, "Row-level security is on for the table %s", t.Name).saw("%s", name).
				so("COPY is refused to all but its owner, by which many jobs are enqueued at once; and rows that a policy hides are never run.").
				sql("", "ALTER TABLE "+name+" DISABLE ROW LEVEL SECURITY;")
		}
		for i, trigger := range t.TriggerNames {
			v.find(Warning, "A stranger's trigger is on the table %s", t.Name).saw("%s", t.Triggers[i]).
				so("It runs for each job, in the statement that enqueues, claims or finishes many; if it fails, so does that.").
				sql("Takes it off.", fmt.Sprintf("ALTER TABLE %s DISABLE TRIGGER %s;", name, ident(trigger)))
		}
		for _, rule := range t.Rules {
			v.find(Warning, "A stranger's rule is on the table %s", t.Name).saw("rule %s", rule).
				so("It rewrites our statements; what they then do is not known.").
				sql("", fmt.Sprintf("DROP RULE %s ON %s;", ident(rule), name))
		}
		for i, key := range t.ReferencedBy {
			v.find(Warning, "A foreign key refers to the table %s", t.Name).saw("%s", key).
				so("A job that is referred to cannot leave the table: it is finished, and its completion fails. Each completion looks for such rows.").
				sql("Keep the job's id without the constraint.", t.Unreference[i])
		}
		if len(t.Publications) > 0 && !t.Identified {
			v.find(Warning, "The table %s is published without an identity", t.Name).saw("publication %s; the table has no primary key", list(t.Publications)).
				so("DELETE is refused, so what has expired is not purged.").
				sql("", "ALTER TABLE "+name+" REPLICA IDENTITY FULL;")
		}
	}
	return v.columns()
}

func (v *visit) columns() error {
	all, err := v.differences("table", "column", "constraint")
	if err != nil {
		return err
	}
	var gone []string
	for _, d := range all {
		if d.want.what == "table" {
			gone = append(gone, d.want.rel)
			v.find(Critical, "The table %s is missing", d.want.rel).saw("migrations are noted as applied, and the table is not there").
				so("Workers and enqueues fail.").do("Restore it from a backup; schema/postgres has its definition, for one that is to be empty.")
		}
	}
	for _, d := range all {
		w, h := d.want, d.have
		switch {
		case slices.Contains(gone, w.rel) || w.what == "table" || w.what == "constraint" && h.name != "": // its text depends on the server's version
		case w.what == "constraint":
			v.find(Note, "A constraint of the table %s is missing", w.rel).saw("%s %s", w.name, w.def).so("A row that breaks it, written by hand, is found out late.").
				sql("", fmt.Sprintf("ALTER TABLE jobgen.%s ADD CONSTRAINT %s %s;", ident(w.rel), ident(w.name), w.def))
		case h.what == "constraint":
			v.find(Warning, "A stranger's constraint is on the table %s", h.rel).saw("%s %s", h.name, h.def).
				so("A statement about many jobs fails for all of them if it is broken for one.").
				sql("", fmt.Sprintf("ALTER TABLE jobgen.%s DROP CONSTRAINT %s;", ident(h.rel), ident(h.name)))
		case h.name == "":
			v.find(Critical, "A column of the table %s is missing", w.rel).saw("%s %s", w.name, w.def).so("Statements that name it fail.").
				sql("", fmt.Sprintf("ALTER TABLE jobgen.%s ADD COLUMN %s %s;", ident(w.rel), ident(w.name), w.def))
		case w.name == "":
			f := v.find(Note, "A stranger's column is in the table %s", h.rel).saw("%s %s", h.name, h.def).so("It goes with the row when the job is finished; a migration may need its name.")
			if strings.Contains(h.def, "NOT NULL") && !strings.Contains(h.def, "DEFAULT") {
				f.Severity = Critical
				f = f.so("It has no default and must not be null, so nothing can be inserted.")
			}
			f.sql("", fmt.Sprintf("ALTER TABLE jobgen.%s DROP COLUMN %s;", ident(h.rel), ident(h.name)))
		default:
			v.find(Warning, "A column of the table %s is not as a migration made it", w.rel).saw("%s is %s", w.name, h.def).saw("it should be %s", w.def).
				so("Statements may fail, or find other rows than they should.").do("Put it back as it was, with ALTER TABLE.")
		}
	}
	return nil
}

// changedByClaim: an index that mentions one of these columns has to be written by each claim.
var changedByClaim = regexp.MustCompile(`\b(status|fence|attempt|worker_id|claimed_at)\b`)

func (v *visit) indexes() error {
	all, err := v.differences("index")
	if err != nil {
		return err
	}
	severity := func(rel string) Severity {
		if rel == "jobs" || rel == "claims" || rel == "job_result" {
			return Critical
		}
		return Warning
	}
	for _, d := range all {
		w, h := d.want, d.have
		drop := "DROP INDEX CONCURRENTLY jobgen." + ident(h.name) + ";"
		_, invalid := strings.CutSuffix(h.def, " INVALID")
		switch {
		case h.name == "":
			create(v.find(severity(w.rel), "The index %s is missing", w.name).saw("it should be: %s", w.def).
				so("What it serves reads the whole table: the more jobs wait, the slower."), w)
		case invalid && w.name == "":
			v.find(Warning, "An invalid index is on the table %s", h.rel).saw("%s, left by a CREATE INDEX or REINDEX CONCURRENTLY that failed", h.name).
				so("It is written for each job, and read by nobody.").sql("", drop)
		case invalid:
			f := v.find(severity(w.rel), "The index %s is invalid", w.name).saw("a CREATE INDEX or REINDEX CONCURRENTLY of it failed").
				so("What it serves reads the whole table: the more jobs wait, the slower. And it is written for each job.")
			f.sql("Builds it anew beside the old one; jobs go on.", "REINDEX INDEX CONCURRENTLY jobgen."+ident(w.name)+";")
		case w.name == "":
			f := v.find(Note, "A stranger's index is on the table %s", h.rel).saw("%s", h.def).so("Each job that is enqueued pays for it.")
			if h.rel == "jobs" && changedByClaim.MatchString(h.def) {
				f.Severity = Warning
				f = f.so("A claim changes what it mentions, so no claim is a HOT update any more: each writes to all indexes (a third more CPU time, twice the WAL).")
			}
			f.sql("If no query of yours needs it.", drop)
		default:
			create(v.find(Warning, "The index %s is another than a migration made", w.name).saw("it is: %s", h.def).saw("it should be: %s", w.def).
				so("What it should serve may read more than it needs.").sql("", drop), w)
		}
	}
	return nil
}

// create adds the statements that make an index as a migration does.
func create(f draft, w thing) {
	statement := strings.Replace(w.def, " INDEX ", " INDEX CONCURRENTLY ", 1) + ";"
	if strings.HasSuffix(w.name, "_pkey") {
		statement += fmt.Sprintf("\nALTER TABLE jobgen.%s ADD PRIMARY KEY USING INDEX %s;", ident(w.rel), ident(w.name))
	}
	f.sql("Builds it; jobs go on.", statement)
}

// options are what steers autovacuum, of one table.
type options map[string]float64

// autovacuumOptions reads what holds for each table: its own setting, else the server's.
func (v *visit) autovacuumOptions() (map[string]options, error) {
	names := []string{"autovacuum_vacuum_threshold", "autovacuum_vacuum_scale_factor"}
	settings, err := v.settingsOf(names...)
	if err != nil {
		return nil, err
	}
	rows, err := v.q.DoctorForm(v.ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]options{}
	for _, r := range rows {
		if all[r.Rel] == nil {
			all[r.Rel] = options{}
			for _, name := range names {
				all[r.Rel][name], _ = strconv.ParseFloat(settings[name], 64)
			}
		}
		if n, err := strconv.ParseFloat(r.Def, 64); r.What == "storage" && err == nil {
			all[r.Rel][r.Name] = n
		}
	}
	return all, nil
}

func (v *visit) deadRows() error {
	all, err := v.q.DoctorTables(v.ctx)
	if err != nil {
		return err
	}
	opts, err := v.autovacuumOptions()
	if err != nil {
		return err
	}
	minute, err := v.q.DoctorMinute(v.ctx)
	if err != nil {
		return err
	}
	vacuums, err := v.q.DoctorVacuums(v.ctx)
	if err != nil {
		return err
	}
	settings, err := v.settingsOf("autovacuum_max_workers")
	if err != nil {
		return err
	}
	young, err := v.young()
	if err != nil {
		return err
	}
	for _, t := range all {
		o := opts[t.Name]
		comes := int64(o["autovacuum_vacuum_threshold"] + o["autovacuum_vacuum_scale_factor"]*t.Tuples)
		// Each attempt leaves two dead rows at most; ten minutes' worth is what a busy queue can have between two vacuums of a
		// large table.
		normal := max(v.limits.Dead, v.limits.DeadRounds*comes, 10*2*minute)
		if o == nil || t.Dead < normal {
			continue
		}
		saw := fmt.Sprintf("jobgen.%s: %s, %s; autovacuum should come from %s on", t.Name, human.Count(t.Dead, "dead row", "dead rows"), human.Number(t.Live)+" live", human.Number(comes))
		vacuum := "VACUUM jobgen." + ident(t.Name) + ";"
		never := t.VacuumedUs < 0
		if slices.ContainsFunc(vacuums, func(w gen.DoctorVacuumsRow) bool { return strings.Contains(w.Query, "jobgen."+t.Name) }) {
			continue // it is at it
		}
		if !never && us(t.VacuumedUs) < v.limits.Unvacuumed {
			if slices.ContainsFunc(v.report.Findings, func(f Finding) bool { return f.Check == "horizon" }) {
				continue // the cause has been named
			}
			v.find(Warning, "Vacuum comes to the table %s and cannot remove dead rows", t.Name).saw("%s", saw).saw("last vacuum %s ago", age(us(t.VacuumedUs))).
				so("The table grows, and claims get dearer.").
				sql("Who keeps them: the oldest is first. A standby or a replication slot may, too (see the check horizon).", "SELECT pid, usename, state, xact_start, left(query, 60) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL ORDER BY age(backend_xmin) DESC LIMIT 5;")
			continue
		}
		if never && young {
			continue
		}
		f := v.find(Warning, "Autovacuum does not come to the table %s", t.Name).saw("%s", saw)
		if never {
			f = f.saw("it was never vacuumed")
		} else {
			f = f.saw("last vacuum %s ago", age(us(t.VacuumedUs)))
		}
		f = f.so("The table and its indexes grow, and claims get dearer.").sql("Does it once. Jobs go on.", vacuum)
		if most, _ := strconv.Atoi(settings["autovacuum_max_workers"]); len(vacuums) >= most && most > 0 {
			f.saw("all %d autovacuum workers are busy, for %s: %s", most, age(us(vacuums[0].ForUs)), vacuums[0].Query).
				sql("More workers, after a restart of the server; they share the cost limit, so raise that too.", fmt.Sprintf("ALTER SYSTEM SET autovacuum_max_workers = %d;\nALTER SYSTEM SET autovacuum_vacuum_cost_limit = 2000;\nSELECT pg_reload_conf();", 2*most))
		} else {
			f.do("Find out why: is autovacuum on (see the check autovacuum)? Does somebody lock the table again and again (see the server's log for \"canceling autovacuum task\")?")
		}
	}
	return nil
}

// young tells whether the schema is so new that autovacuum need not have come.
func (v *visit) young() (bool, error) {
	rows, err := v.q.AppliedMigrations(v.ctx)
	if err != nil || len(rows) == 0 {
		return true, err
	}
	return v.server.DbNow.Sub(rows[0].AppliedAt) < v.limits.Unvacuumed, nil
}

// What a row takes beside its columns, and what an entry of an index takes at most, as a rule.
const (
	rowHeader  = 28
	indexEntry = 120
	pageSize   = 8192
)

// bloat estimates. Room that a backlog has left is used again, so this is about space on the disk alone.
func (v *visit) bloat() error {
	all, err := v.q.DoctorTables(v.ctx)
	if err != nil {
		return err
	}
	widths, err := v.q.DoctorWidths(v.ctx)
	if err != nil {
		return err
	}
	indexes, err := v.q.DoctorIndexes(v.ctx)
	if err != nil {
		return err
	}
	opts, err := v.autovacuumOptions()
	if err != nil {
		return err
	}
	for _, t := range all {
		// What has never been counted, or has grown since, is not judged.
		if t.VacuumedUs < 0 && t.AnalyzedUs < 0 || float64(t.Live) > 2*t.Tuples+10_000 {
			continue
		}
		rows := max(t.Tuples, float64(t.Live+t.Dead))
		var room int64
		var of []string
		note := func(what string, have int64, need float64) {
			if free := have - int64(need); free >= v.limits.Slack && free >= have/2 {
				room += free
				of = append(of, fmt.Sprintf("%s: %s, about %s of it empty", what, human.Bytes(have), human.Bytes(free)))
			}
		}
		width := int64(0)
		for _, w := range widths {
			if w.Name == t.Name {
				width = w.Width
			}
		}
		fill := opts[t.Name]["fillfactor"]
		if fill == 0 {
			fill = 100
		}
		if width > 0 || rows == 0 {
			note("rows", t.Pages*pageSize, 1.3*rows*float64(width+rowHeader)*100/fill)
		}
		for _, i := range indexes {
			if i.Rel == t.Name {
				note(i.Name, i.Size, indexEntry*i.Tuples)
			}
		}
		if len(of) == 0 {
			continue
		}
		f := v.find(Note, "About %s of the table %s are empty", human.Bytes(room), t.Name)
		for _, line := range of {
			f = f.saw("%s", line)
		}
		f.saw("%s, estimated from the statistics", human.Count(t.Live, "row", "rows")).
			so("Space on the disk, and longer backups; it is used again when a backlog comes. Claims do not notice.").
			sql("Gives it back, if the queue is short now: cuts off the empty end, then builds the indexes anew. Jobs go on.",
				fmt.Sprintf("VACUUM (TRUNCATE) jobgen.%s;\nREINDEX TABLE CONCURRENTLY jobgen.%s;", ident(t.Name), ident(t.Name)))
	}
	return nil
}

func (v *visit) autovacuum() error {
	s, err := v.settingsOf("autovacuum", "track_counts", "autovacuum_naptime")
	if err != nil {
		return err
	}
	const so = "Dead rows of finished jobs are never removed: tables and indexes grow without end, and one day transaction ids run out."
	for _, name := range []string{"autovacuum", "track_counts"} {
		if s[name] == "off" {
			v.find(Critical, "%s is off", name).saw("the setting %s of the server is off", name).so(so).
				sql("", "ALTER SYSTEM SET "+name+" = on;\nSELECT pg_reload_conf();")
		}
	}
	if n, _ := strconv.Atoi(s["autovacuum_naptime"]); n > 300 {
		v.find(Warning, "Autovacuum looks rarely").saw("autovacuum_naptime is %s", age(time.Duration(n)*time.Second)).
			so("In that time the tables grow by two rows for each job.").sql("", "ALTER SYSTEM SET autovacuum_naptime = '1min';\nSELECT pg_reload_conf();")
	}
	all, err := v.differences("storage")
	if err != nil {
		return err
	}
	for _, d := range all {
		rel, name := d.want.rel, d.want.name
		if rel == "" {
			rel, name = d.have.rel, d.have.name
		}
		saw := fmt.Sprintf("%s of jobgen.%s is %s; a migration made it %s", name, rel, orDefault(d.have.def), orDefault(d.want.def))
		set := fmt.Sprintf("ALTER TABLE jobgen.%s RESET (%s);", ident(rel), name)
		if d.want.def != "" {
			set = fmt.Sprintf("ALTER TABLE jobgen.%s SET (%s = %s);", ident(rel), name, d.want.def)
		}
		switch {
		case strings.HasSuffix(name, "autovacuum_enabled") && slices.Contains([]string{"off", "false", "no", "0"}, d.have.def):
			v.find(Critical, "Autovacuum is off for the table %s", rel).saw("%s", saw).so(so).sql("", set)
		case name == "fillfactor":
			// Where payloads are of an unlucky size, docs/runtime/tables.md says to raise that of jobs to 50.
			if n, err := strconv.Atoi(d.have.def); rel == "jobs" && err == nil && n >= 40 && n <= 50 {
				continue
			}
			v.find(Note, "The table %s is filled in another way", rel).saw("%s", saw).so("An update may find no room on its page and write to all indexes.").sql("For pages that are written from now on.", set)
		case strings.Contains(name, "vacuum") || strings.Contains(name, "analyze"):
			v.find(Warning, "Autovacuum has other settings for the table %s than a migration made", rel).saw("%s", saw).
				so("It may come too rarely, or work too slowly, for what finished jobs leave behind.").sql("", set)
		}
	}
	return nil
}

func orDefault(s string) string {
	if s == "" {
		return "the server's"
	}
	return s
}

func (v *visit) wraparound() error {
	if v.server.FrozenAge < v.limits.Wraparound {
		return nil
	}
	s := Warning
	if v.server.FrozenAge > 3*v.limits.Wraparound/2 {
		s = Critical
	}
	v.find(s, "Transaction ids run out").saw("the oldest row of database %s that is not frozen is %s old; at 2,000,000,000 the server refuses to write", v.server.Database, human.Count(v.server.FrozenAge, "transaction", "transactions")).
		so("Then nothing can be enqueued, claimed or finished until somebody has vacuumed.").
		sql("Hours, on large tables; nobody waits for it. What keeps dead rows keeps it from helping: see the check horizon.", "VACUUM (FREEZE, VERBOSE);")
	return nil
}

func (v *visit) plans() error {
	if v.server.Standby {
		v.cannot("a standby makes no plan for a statement that writes", "run it on the primary")
		return nil
	}
	type bad struct{ statement, why string }
	var all []bad
	for _, h := range postgres.HotStatements {
		plan, err := h.Explain(v.ctx, v.tx)
		if err == nil {
			err = v.bound()
		}
		if err != nil {
			return err
		}
		used := false
		why := ""
		for _, n := range plan.All() {
			used = used || n.Index == h.Index && n.Cond != ""
			switch {
			case n.Type == "Seq Scan" && (n.Relation == "jobs" || n.Relation == "job_result"):
				why = "reads the whole of " + n.Relation
			case n.Index != "" && n.Cond == "" && strings.HasPrefix(n.Index, "jobs_") && why == "":
				why = "walks the whole of " + n.Index
			}
		}
		if why == "" && !used {
			why = "does not use " + h.Index
		}
		if why != "" {
			all = append(all, bad{h.Name, why})
		}
	}
	if len(all) == 0 {
		return nil
	}
	f := v.find(Critical, "Hot statements do not use their index")
	for _, b := range all {
		f = f.saw("%s %s", b.statement, b.why)
	}
	f.so("Each of them costs more the more jobs there are: 900 ms instead of 1 with a million.").do("See the check indexes: one may be missing or invalid.")
	return nil
}

func (v *visit) statistics() error {
	all, err := v.q.DoctorTables(v.ctx)
	if err != nil {
		return err
	}
	young, err := v.young()
	if err != nil {
		return err
	}
	for _, t := range all {
		if t.Modified < max(2*v.limits.Dead, t.Live/2) || t.AnalyzedUs >= 0 && us(t.AnalyzedUs) < 6*v.limits.Unvacuumed || t.AnalyzedUs < 0 && young {
			continue
		}
		when := "never analyzed"
		if t.AnalyzedUs >= 0 {
			when = "last analyzed " + age(us(t.AnalyzedUs)) + " ago"
		}
		v.find(Warning, "The planner's statistics of the table %s are old", t.Name).
			saw("%s; %s since, %s", when, human.Count(t.Modified, "row has changed", "rows have changed"), human.Count(t.Live, "row live", "rows live")).
			so("Workers' statements do not rely on them; those of applications and of your own are planned for a table that has been.").
			sql("Seconds; jobs go on.", "ANALYZE jobgen."+ident(t.Name)+";")
	}
	return nil
}
