// Package doctor looks for what hurts a queue, or is about to. A check is a function over a few statements of
// queries/postgres/doctor.sql, and a line in the list in checks.go; limits.go says from when on something matters, and why.
//
// Each check has a transaction of its own that is read-only, works for two seconds at most and waits for no lock, so one that
// fails does not spoil the others, and none gets in the way of the queue. What a check could not see it says: what was not
// looked at is not healthy.
//
// Texts are not escaped: what strangers have written is in them.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	gen "github.com/jobgen-go/jobgen/gen/postgres"

	"github.com/jobgen-go/jobgen/internal/human"
)

// Severity is how bad a finding is.
type Severity string

const (
	// Critical: jobs stand still, are lost, or soon will be.
	Critical Severity = "critical"
	// Warning: it costs, or it will hurt if nothing is done.
	Warning Severity = "warning"
	// Note: good to know; a healthy queue may have it.
	Note Severity = "note"
)

func (s Severity) rank() int { return slices.Index([]Severity{Critical, Warning, Note}, s) }

// Finding is something wrong.
type Finding struct {
	Check       string   `json:"check"`
	Severity    Severity `json:"severity"`
	Title       string   `json:"title"`
	Evidence    []string `json:"evidence"`
	Consequence string   `json:"consequence"`
	Remedies    []Remedy `json:"remedies"`
}

// Remedy is something to do about a finding. Of SQL and Command one is to be pasted as it is, or both are empty: then it is a
// change to a program.
type Remedy struct {
	Say     string `json:"say"` // when to do it, and what it costs
	SQL     string `json:"sql,omitempty"`
	Command string `json:"command,omitempty"`
}

// Unchecked is what could not be looked at.
type Unchecked struct {
	Check  string `json:"check"`
	Reason string `json:"reason"`
	Remedy string `json:"remedy,omitempty"` // SQL or words
}

// Checked is a check that found nothing.
type Checked struct {
	Check string `json:"check"`
	Asks  string `json:"asks"`
}

// Report is what all checks came to, the worst first.
type Report struct {
	Findings  []Finding   `json:"findings"`
	Unchecked []Unchecked `json:"not_checked"`
	Healthy   []Checked   `json:"healthy"`
	Server    string      `json:"server"`
	Now       time.Time   `json:"now"`
}

// Count tells how many findings have a severity.
func (r *Report) Count(s Severity) (n int) {
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// check is a line of the list.
type check struct {
	name string
	asks string // what is true if it finds nothing
	run  func(*visit) error
}

// Names lists the checks with what they ask.
func Names() (all []Checked) {
	for _, c := range checks {
		all = append(all, Checked{c.name, c.asks})
	}
	return all
}

// visit is one check at work.
type visit struct {
	ctx    context.Context
	tx     pgx.Tx
	q      *gen.Queries
	pool   *pgxpool.Pool
	limits Limits
	server *gen.DoctorServerRow
	check  string
	report *Report
	missed bool // part of it could not be looked at
}

// Run makes the checks that are named, or all. The error is for what no check can be made without.
func Run(ctx context.Context, pool *pgxpool.Pool, names []string, limits Limits) (*Report, error) {
	r := &Report{Findings: []Finding{}, Unchecked: []Unchecked{}, Healthy: []Checked{}}
	var server gen.DoctorServerRow
	v := visit{ctx: ctx, pool: pool, limits: limits, server: &server, report: r}
	if err := v.within(func() (err error) { server, err = v.q.DoctorServer(ctx); return err }); err != nil {
		return nil, err
	}
	r.Server, r.Now = "PostgreSQL "+server.VersionName, server.DbNow.UTC()
	for _, c := range checks {
		if len(names) > 0 && !slices.Contains(names, c.name) {
			continue
		}
		v.check, v.missed = c.name, false
		before := len(r.Findings)
		err := v.within(func() error { return c.run(&v) })
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			v.cannot(explain(err, limits.Time), remedy(err, server.Role))
		}
		if len(r.Findings) == before && !v.missed {
			r.Healthy = append(r.Healthy, Checked{c.name, c.asks})
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return a.Severity.rank() - b.Severity.rank() })
	return r, nil
}

// within runs fn in a transaction as described above.
func (v *visit) within(fn func() error) error {
	return pgx.BeginTxFunc(v.ctx, v.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		v.tx, v.q = tx, gen.New(tx)
		if err := v.bound(); err != nil {
			return err
		}
		return fn()
	})
}

func (v *visit) bound() error {
	return v.q.DoctorBegin(v.ctx, fmt.Sprintf("%dms", v.limits.Time.Milliseconds()))
}

// find adds a finding; what is known of it is added by the methods of draft.
func (v *visit) find(s Severity, title string, args ...any) draft {
	v.report.Findings = append(v.report.Findings, Finding{Check: v.check, Severity: s, Title: fmt.Sprintf(title, args...), Evidence: []string{}, Remedies: []Remedy{}})
	return draft{&v.report.Findings[len(v.report.Findings)-1]}
}

// draft is a finding that is being written. It must not outlive the next find.
type draft struct{ *Finding }

func (d draft) saw(text string, args ...any) draft {
	d.Evidence = append(d.Evidence, fmt.Sprintf(text, args...))
	return d
}

// sawQuery is for what a session runs or ran last.
func (d draft) sawQuery(query string) draft {
	if query = strings.Join(strings.Fields(query), " "); query != "" && query != hiddenQuery {
		d.Evidence = append(d.Evidence, "query: "+clip(query, 150))
	}
	return d
}

func (d draft) so(text string, args ...any) draft {
	d.Consequence = fmt.Sprintf(text, args...)
	return d
}

func (d draft) sql(say, statement string) draft {
	d.Remedies = append(d.Remedies, Remedy{Say: say, SQL: statement})
	return d
}

func (d draft) run(say, command string) draft {
	d.Remedies = append(d.Remedies, Remedy{Say: say, Command: command})
	return d
}

func (d draft) do(say string, args ...any) draft {
	d.Remedies = append(d.Remedies, Remedy{Say: fmt.Sprintf(say, args...)})
	return d
}

// cannot says that the check, or a part of it, was not made.
func (v *visit) cannot(reason, remedy string) {
	v.missed = true
	v.report.Unchecked = append(v.report.Unchecked, Unchecked{v.check, reason, remedy})
}

// hiddenQuery is what the server shows instead of another role's query.
const hiddenQuery = "<insufficient privilege>"

// seesAll says so if this role does not see what other roles' sessions do.
func (v *visit) seesAll() {
	if !v.server.SeesAll && v.server.Hidden > 0 {
		v.cannot(fmt.Sprintf("role %s does not see what %s of other roles do", v.server.Role, human.Count(int64(v.server.Hidden), "session", "sessions")),
			"GRANT pg_monitor TO "+ident(v.server.Role)+";")
	}
}

// explain says why a check could not be made.
func explain(err error, limit time.Duration) string {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err.Error()
	}
	switch pg.Code {
	case "57014":
		return fmt.Sprintf("it took longer than %s", limit)
	case "42P01", "42703", "3F000":
		return "the schema is of another version: " + pg.Message
	case "55P03":
		return "somebody has locked what it would look at: " + pg.Message
	}
	return pg.Message
}

// remedy is what would let the check be made.
func remedy(err error, role string) string {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return ""
	}
	switch {
	case pg.Code == "42501" && strings.Contains(pg.Message, "schema jobgen"):
		return "GRANT USAGE ON SCHEMA jobgen TO " + ident(role) + "; GRANT SELECT ON ALL TABLES IN SCHEMA jobgen TO " + ident(role) + ";"
	case pg.Code == "42501" && strings.Contains(pg.Message, "permission denied for table"), pg.Code == "42501" && strings.Contains(pg.Message, "permission denied for sequence"):
		return "GRANT SELECT ON ALL TABLES IN SCHEMA jobgen TO " + ident(role) + ";"
	case pg.Code == "42501":
		return "GRANT pg_monitor TO " + ident(role) + ";"
	case pg.Code == "42P01", pg.Code == "42703", pg.Code == "3F000":
		return "see `jobctl migrate status`"
	}
	return ""
}
