package doctor_test

import (
	"context"
	"crypto/rand"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/doctor"
	"github.com/jobgen-go/jobgen/internal/pgserver"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/jobtest"
)

var update = flag.Bool("update", false, "rewrite what the schema should look like")

// patient is a database of the test's own, and limits that a test can reach.
type patient struct {
	*testing.T
	pool   *pgxpool.Pool
	limits doctor.Limits
}

// century is longer than a release of Postgres lasts.
const century = 100 * 365 * 24 * time.Hour

// limits are jobctl's, but on a server of any age.
func limits() doctor.Limits {
	l := doctor.Default
	l.Unfixed = century
	return l
}

func admit(t *testing.T) *patient {
	t.Helper()
	return &patient{t, jobtest.DB(t), limits()}
}

// alone is a server of the test's own.
func alone(t *testing.T, settings map[string]string) *patient {
	t.Helper()
	s, err := pgserver.Start(t.Context(), pgserver.Options{IgnoreDatabaseURL: true, Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	pool, err := pgxpool.New(context.Background(), s.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := postgres.Migrate(t.Context(), pool, func(error) {}); err != nil {
		t.Fatal(err)
	}
	return &patient{t, pool, limits()}
}

func (p *patient) exec(sql string, args ...any) {
	p.Helper()
	if _, err := p.pool.Exec(p.Context(), sql, args...); err != nil {
		p.Fatalf("%s: %v", sql, err)
	}
}

func value[T any](p *patient, sql string, args ...any) (v T) {
	p.Helper()
	if err := p.pool.QueryRow(p.Context(), sql, args...).Scan(&v); err != nil {
		p.Fatalf("%s: %v", sql, err)
	}
	return v
}

// session is a connection beside the pool's.
func (p *patient) session(params ...string) *pgx.Conn {
	p.Helper()
	config := p.pool.Config().ConnConfig.Copy()
	for i := 0; i < len(params); i += 2 {
		config.RuntimeParams[params[i]] = params[i+1]
	}
	c, err := pgx.ConnectConfig(p.Context(), config)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func (p *patient) on(c *pgx.Conn, sql string, args ...any) {
	p.Helper()
	if _, err := c.Exec(p.Context(), sql, args...); err != nil {
		p.Fatalf("%s: %v", sql, err)
	}
}

// until polls the database until sql is true.
func (p *patient) until(sql string, args ...any) {
	p.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !value[bool](p, sql, args...) {
		if time.Now().After(deadline) {
			p.Fatalf("never became true: %s %v", sql, args)
		}
		<-tick.C
	}
}

func (p *patient) examine(names ...string) *doctor.Report {
	p.Helper()
	return p.examineBy(p.pool, names...)
}

func (p *patient) examineBy(pool *pgxpool.Pool, names ...string) *doctor.Report {
	p.Helper()
	r, err := doctor.Run(p.Context(), pool, names, p.limits)
	if err != nil {
		p.Fatal(err)
	}
	return r
}

// finds expects one finding of a check with this severity, and texts in its title, evidence, consequence or remedies.
func (p *patient) finds(check string, s doctor.Severity, texts ...string) doctor.Finding {
	p.Helper()
	return p.in(p.examine(check), check, s, texts...)
}

func (p *patient) in(r *doctor.Report, check string, s doctor.Severity, texts ...string) doctor.Finding {
	p.Helper()
	var all []string
	for _, f := range r.Findings {
		text := show(f)
		all = append(all, text)
		found := f.Check == check && f.Severity == s
		for _, want := range texts {
			found = found && strings.Contains(text, want)
		}
		if found {
			if f.Title == "" || len(f.Evidence) == 0 || f.Consequence == "" || len(f.Remedies) == 0 {
				p.Errorf("incomplete: %s", text)
			}
			return f
		}
	}
	p.Fatalf("no %s finding of %s with %q in:\n%s\nnot checked: %v", s, check, texts, strings.Join(all, "\n"), r.Unchecked)
	return doctor.Finding{}
}

func show(f doctor.Finding) string {
	lines := append([]string{string(f.Severity) + ": " + f.Title + " [" + f.Check + "]"}, f.Evidence...)
	lines = append(lines, "so: "+f.Consequence)
	for _, r := range f.Remedies {
		lines = append(lines, "do: "+r.Say, r.SQL, r.Command)
	}
	return strings.Join(lines, "\n")
}

// healthy expects that nothing is found and everything looked at.
func (p *patient) healthy(names ...string) {
	p.Helper()
	r := p.examine(names...)
	for _, f := range r.Findings {
		p.Errorf("found:\n%s", show(f))
	}
	for _, u := range r.Unchecked {
		p.Errorf("not checked: %+v", u)
	}
	if len(names) > 0 && len(r.Healthy) != len(names) {
		p.Errorf("healthy: %v", r.Healthy)
	}
}

// cure pastes the SQL of the finding's first remedy that has some.
func (p *patient) cure(f doctor.Finding) {
	p.Helper()
	for _, r := range f.Remedies {
		if r.SQL != "" {
			for statement := range strings.SplitSeq(r.SQL, ";\n") {
				p.exec(statement)
			}
			return
		}
	}
	p.Fatalf("no SQL to paste in: %s", show(f))
}

// cured expects the check to be healthy after the cure.
func (p *patient) cured(f doctor.Finding) {
	p.Helper()
	p.cure(f)
	p.soonHealthy(f.Check)
}

// soonHealthy waits for what a cure does not wait for: the end of a session.
func (p *patient) soonHealthy(check string) {
	p.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for len(p.examine(check).Findings) > 0 && time.Now().Before(deadline) {
		<-tick.C
	}
	p.healthy(check)
}

// role makes one that has these privileges on the tables.
func (p *patient) role(privileges string) string {
	p.Helper()
	name := "doctor_" + strings.ToLower(strings.ReplaceAll(rand.Text(), "-", ""))
	p.exec("CREATE ROLE " + name + " LOGIN")
	p.Cleanup(func() {
		ctx := context.Background()
		if _, err := p.pool.Exec(ctx, "DROP OWNED BY "+name+"; DROP ROLE "+name); err != nil {
			p.Error(err)
		}
	})
	if privileges != "" {
		p.exec("GRANT USAGE ON SCHEMA jobgen TO " + name)
		p.exec("GRANT " + privileges + " ON ALL TABLES IN SCHEMA jobgen TO " + name)
	}
	return name
}

// as is a pool of that role.
func (p *patient) as(role string) *pgxpool.Pool {
	p.Helper()
	config := p.pool.Config()
	config.ConnConfig.User = role
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(pool.Close)
	return pool
}

// holders are those of the metric jobgen_horizon_age, in transactions.
func (p *patient) holders() map[string]int64 {
	p.Helper()
	rows, err := postgres.Operator{Pool: p.pool}.MeasureHorizon(p.Context())
	if err != nil {
		p.Fatal(err)
	}
	holders := map[string]int64{}
	for _, r := range rows {
		holders[r.Holder] = r.Transactions
	}
	return holders
}
