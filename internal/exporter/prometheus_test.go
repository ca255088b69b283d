//go:build prometheus

package exporter_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/exporter"
	"github.com/jobgen-go/jobgen/internal/pgserver"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// These tests need Prometheus: make test-metrics installs it. They run every expression of the alert rules and of the dashboard
// on a Prometheus that scrapes a queue at work, and see each rule quiet while the queue is well and firing once it has what the rule
// warns of, made for real. Minutes last a second here: in the rules, and in the dashboard.

const folder = "../../docs/operating/prometheus"

// child is a worker that this test kills.
const child = "JOBGEN_EXPORTER_TEST_CHILD"

func TestMain(m *testing.M) {
	if at := os.Getenv(child); at != "" {
		pool, err := pgxpool.New(context.Background(), at)
		if err == nil {
			err = shift(context.Background(), pool, map[string]func(context.Context) error{"lost": func(ctx context.Context) error {
				fmt.Println("running")
				<-ctx.Done()
				return ctx.Err()
			}})
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func spec(kind string) *jobs.Spec[int, jobs.None] {
	s := &jobs.Spec[int, jobs.None]{Kind: kind, Queue: "q", MaxAttempts: 20, Backoff: jobs.Backoff{Base: 10 * time.Millisecond, Max: 10 * time.Millisecond}}
	switch kind {
	case "bad":
		s.MaxAttempts = 2
	case "stuck":
		s.Queue, s.Timeout = "stuck", 100*time.Millisecond
	}
	return s
}

// shift runs a worker until ctx ends.
func shift(ctx context.Context, pool *pgxpool.Pool, handlers map[string]func(context.Context) error) error {
	var r worker.Registry
	for kind, fn := range handlers {
		worker.HandleNone(&r, spec(kind), func(ctx context.Context, _ *jobs.Job[int]) error { return fn(ctx) })
	}
	w, err := worker.New(pool, &r, worker.Config{
		Concurrency: 10, Lease: time.Second, Reclaim: 100 * time.Millisecond, StuckAfter: 100 * time.Millisecond, Grace: 500 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// site is a queue with a Prometheus that scrapes it.
type site struct {
	*testing.T
	pool  *pgxpool.Pool
	url   string
	at    string // of Prometheus
	began time.Time
	log   *lines
	fired map[string]bool
	all   sync.WaitGroup
}

func TestEachAlertFiresAndEachPanelShowsSomething(t *testing.T) {
	s := &site{T: t, log: &lines{}, fired: map[string]bool{}}
	server, err := pgserver.Start(t.Context(), pgserver.Options{IgnoreDatabaseURL: true, Settings: map[string]string{"max_connections": "60"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	s.url, _, err = server.CreateDatabase(t.Context(), "template0")
	if err != nil {
		t.Fatal(err)
	}
	if s.pool, err = pgxpool.New(context.Background(), s.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.pool.Close)
	if err := jobs.Migrate(t.Context(), s.pool); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() { stop(); s.all.Wait() })

	s.exec("CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA jobgen TO reader; GRANT SELECT ON ALL TABLES IN SCHEMA jobgen TO reader; GRANT SELECT ON ALL SEQUENCES IN SCHEMA jobgen TO reader")
	main, stopMain := s.export(ctx, "")
	reader, _ := s.export(ctx, "reader")
	s.prometheus(ctx, main, reader)
	pinned, err := pgx.Connect(ctx, s.url) // from the beginning, so that it is old in time
	if err != nil {
		t.Fatal(err)
	}
	defer pinned.Close(context.Background())
	for _, q := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"} {
		if _, err := pinned.Exec(ctx, q); err != nil {
			t.Fatal(err)
		}
	}

	// Well: one worker that stays, others by turns (a worker that ends hands its counts in), a burst that drains.
	handlers := map[string]func(context.Context) error{
		"fine": func(ctx context.Context) error { return pause(ctx, 100*time.Millisecond) },
		"bad":  func(context.Context) error { return errors.New("broken") },
	}
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	working, dismiss := context.WithCancel(ctx)
	s.all.Go(func() {
		_ = shift(working, s.pool, map[string]func(context.Context) error{"stuck": func(context.Context) error { <-release; return nil }})
	})
	s.all.Go(func() {
		for working.Err() == nil {
			turn, end := context.WithTimeout(working, 3*time.Second)
			_ = shift(turn, s.pool, handlers)
			end()
		}
	})
	s.exec("VACUUM jobgen.jobs")
	s.enqueue("fine", 600)
	healthy := s.began.Add(20 * time.Second)
	s.every(ctx, 100*time.Millisecond, healthy, func() { s.enqueue("fine", 1) })
	if fired := s.ask(`ALERTS{alertstate="firing"}`, s.began, time.Now()); len(fired) > 0 {
		t.Errorf("alerts on a healthy queue: %v", fired)
	}

	// Sick.
	s.enqueue("stuck", 1)
	if err := jobs.PauseQueue(ctx, s.pool, "quiet"); err != nil {
		t.Fatal(err)
	}
	s.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, run_at) VALUES ('q', 'nobody', '0', clock_timestamp() - interval '1 minute')`)
	s.exec(`INSERT INTO jobgen.schedules (kind, name, cron, zone, missed, next_at) VALUES ('nobody', 'late', '@daily', 'UTC', 'once', now() - interval '1 minute')`)
	s.exec("REVOKE SELECT ON jobgen.samples FROM reader")
	s.all.Go(func() { // workers that are killed while they run a job
		for working.Err() == nil {
			s.kill(working)
		}
	})
	crowd := s.crowd(ctx, server.URL)
	sick, over := context.WithTimeout(ctx, 90*time.Second)
	defer over()
	due := map[string]bool{
		"JobgenOldestReady": true, "JobgenNeverDrains": true, "JobgenUnhandled": true, "JobgenFailing": true, "JobgenDying": true, "JobgenReclaims": true,
		"JobgenStuck": true, "JobgenScheduleOverdue": true, "JobgenHorizonPinned": true, "JobgenConnections": true, "JobgenPartUnread": true,
	}
	s.until(sick, due, func() {
		s.enqueue("fine", 2)
		s.enqueue("bad", 2)
		s.exec(`INSERT INTO jobgen.jobs (queue, kind, payload) VALUES ('q', 'nobody', '0')`)
	})
	for _, c := range crowd {
		c.Close(context.Background())
	}
	s.panels() // while all is there
	dismiss()
	s.until(sick, map[string]bool{"JobgenNoWorker": true}, func() {})
	s.exec("ALTER SCHEMA jobgen RENAME TO away")
	s.until(sick, map[string]bool{"JobgenDatabaseDown": true}, func() {})
	stopMain()
	s.until(sick, map[string]bool{"JobgenExporterDown": true}, func() {})

	for alert, expr := range rules(t) {
		s.ask(expr, time.Now(), time.Now())                  // all are understood
		if !s.fired[alert] && alert != "JobgenNotifyQueue" { // that one takes gigabytes of notifications; its unit test has to do
			t.Errorf("%s has not fired", alert)
		}
	}
	t.Logf("took %s", time.Since(s.began).Round(time.Second))
}

// The rules are valid, and their unit tests pass.
func TestTheRulesPassPromtool(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.Command("promtool", args...)
		cmd.Dir = folder
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	tested, err := os.ReadFile(folder + "/alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for alert := range rules(t) {
		if n := strings.Count(string(tested), `alertname="`+alert+`"`); n < 2 {
			t.Errorf("%s has no unit test", alert)
		}
	}
	f := start(t, nil)
	f.exec(enqueue, "mail", "a\"b\\c\nd", -1)
	cmd := exec.Command("promtool", "check", "metrics")
	cmd.Stdin = f.get("/metrics").Body
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// Each metric is in a rule or a panel, and each panel and rule asks for metrics that there are.
func TestNoMetricIsForNothing(t *testing.T) {
	text := strings.Join(append(panelsOf(t), values(rules(t))...), "\n")
	asked := map[string]bool{}
	for _, m := range regexp.MustCompile(`jobgen_[a-z_]+`).FindAllString(text, -1) {
		asked[regexp.MustCompile(`^(jobgen_run_seconds)_(bucket|sum|count)$`).ReplaceAllString(m, "$1")] = true
	}
	for _, d := range exporter.Metrics {
		if !asked[d.Name] {
			t.Errorf("nobody looks at %s", d.Name)
		}
		delete(asked, d.Name)
	}
	for name := range asked {
		t.Errorf("there is no %s", name)
	}
}

func values(m map[string]string) (out []string) {
	for _, v := range m {
		out = append(out, v)
	}
	return out
}

// fast makes minutes seconds.
func fast(text string) string {
	text = regexp.MustCompile(`\b(\d+)m\b`).ReplaceAllString(text, "${1}s")
	return strings.ReplaceAll(text, "* 60", "* 1")
}

// rules are the expressions of the rules by alert, as promtool's reading has them in Prometheus, sped up.
func rules(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile(folder + "/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^      - alert: (\w+)\n        expr: (?:\|\n((?:          .*\n)+)|(.*)\n)`).FindAllStringSubmatch(string(b), -1) {
		found[m[1]] = fast(m[2] + m[3])
	}
	if n := strings.Count(string(b), "- alert:"); n != len(found) || n == 0 {
		t.Fatalf("%d of %d rules could be read", len(found), n)
	}
	return found
}

// panelsOf are the expressions of the dashboard.
func panelsOf(t *testing.T) (exprs []string) {
	t.Helper()
	b, err := os.ReadFile(folder + "/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	type panel struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr, RefID string }
		Panels  []json.RawMessage
	}
	var d struct {
		Title, UID    string
		SchemaVersion int
		Panels        []panel
		Annotations   struct{ List []struct{ Expr string } }
		Templating    struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 || p.Title == "" || p.GridPos.X+p.GridPos.W > 24 || (p.Type == "row") != (len(p.Targets) == 0) {
			t.Errorf("panel %d %q: its id, title, place or targets", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if was := cells[cell]; was != "" {
					t.Fatalf("panel %q lies on %q", p.Title, was)
				}
				cells[cell] = p.Title
			}
		}
		for _, target := range p.Targets {
			exprs = append(exprs, target.Expr)
		}
	}
	for _, a := range d.Annotations.List {
		if a.Expr != "" {
			exprs = append(exprs, a.Expr)
		}
	}
	if len(exprs) < 40 {
		t.Fatalf("only %d expressions", len(exprs))
	}
	return exprs
}

// panels runs what the dashboard shows: each expression has had something to show.
func (s *site) panels() {
	s.Helper()
	choose := strings.NewReplacer("$instance", ".*", "$queue", ".*", "$kind", ".*")
	for _, expr := range panelsOf(s.T) {
		if strings.Contains(choose.Replace(expr), "$") {
			s.Errorf("a variable that is not there: %s", expr)
		}
		if found := s.ask(fast(choose.Replace(expr)), s.began, time.Now()); len(found) == 0 {
			s.Errorf("a panel is empty: %s", expr)
		}
	}
}

func (s *site) exec(sql string, args ...any) {
	s.Helper()
	if _, err := s.pool.Exec(s.Context(), sql, args...); err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
}

func (s *site) enqueue(kind string, n int) {
	s.Helper()
	if _, err := jobs.EnqueueMany(s.Context(), s.pool, spec(kind), make([]int, n)); err != nil {
		s.Fatal(err)
	}
}

// export starts an exporter, as role if it is not empty.
func (s *site) export(ctx context.Context, role string) (address string, stop func()) {
	s.Helper()
	config, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		s.Fatal(err)
	}
	config.MaxConns = 2
	if role != "" {
		config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "SET SESSION AUTHORIZATION "+role)
			return err
		}
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		s.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	e := exporter.New(postgres.Operator{Pool: pool}, exporter.Config{
		Interval: 200 * time.Millisecond, Timeout: soon, Most: 100, Log: slog.New(slog.NewTextHandler(s.log, nil)), Explain: func(err error) error { return err },
	})
	ctx, stop = context.WithCancel(ctx)
	s.all.Go(func() {
		defer pool.Close()
		if err := e.Serve(ctx, l); err != nil {
			s.Error(err)
		}
	})
	return l.Addr().String(), stop
}

// prometheus starts one with the rules, and waits until it answers.
func (s *site) prometheus(ctx context.Context, targets ...string) {
	s.Helper()
	dir := s.TempDir()
	b, err := os.ReadFile(folder + "/alerts.yaml")
	if err != nil {
		s.Fatal(err)
	}
	config := fmt.Sprintf(`{global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}, rule_files: [alerts.yaml],
		scrape_configs: [{job_name: jobgen, static_configs: [{targets: ["%s"]}]}]}`, strings.Join(targets, `", "`))
	for name, text := range map[string]string{"alerts.yaml": fast(string(b)), "prometheus.yaml": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			s.Fatal(err)
		}
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	s.at = free.Addr().String()
	free.Close()
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+s.at)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Start(); err != nil {
		s.Fatal(err, "; make test-metrics installs it")
	}
	s.all.Go(func() {
		if err := cmd.Wait(); err != nil && ctx.Err() == nil {
			s.Errorf("prometheus: %v\n%s", err, log.String())
		}
	})
	ready, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	for pause(ready, 50*time.Millisecond) == nil {
		if r, err := http.Get("http://" + s.at + "/-/ready"); err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				s.began = time.Now()
				return
			}
		}
	}
	s.Fatal("Prometheus is not ready")
}

// ask runs an expression over a time, and gives the labels of the series that it found.
func (s *site) ask(expr string, from, to time.Time) (found []map[string]string) {
	s.Helper()
	at := func(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }
	r, err := http.PostForm("http://"+s.at+"/api/v1/query_range", url.Values{"query": {expr}, "start": {at(from)}, "end": {at(to)}, "step": {"1"}})
	if err != nil {
		s.Fatal(err)
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Metric map[string]string }
		}
	}
	if err := json.Unmarshal(b, &answer); err != nil || answer.Status != "success" {
		s.Errorf("%s: %v %s", expr, err, b)
	}
	for _, r := range answer.Data.Result {
		found = append(found, r.Metric)
	}
	return found
}

// until does something twice a second until all alerts that are due fire at once.
func (s *site) until(ctx context.Context, due map[string]bool, do func()) {
	s.Helper()
	left := []string{}
	for pause(ctx, 500*time.Millisecond) == nil {
		do()
		firing := map[string]bool{}
		for _, a := range s.ask(`ALERTS{alertstate="firing"}`, time.Now(), time.Now()) {
			firing[a["alertname"]] = true
			s.fired[a["alertname"]] = true
		}
		left = left[:0]
		for alert := range due {
			if !firing[alert] {
				left = append(left, alert)
			}
		}
		if len(left) == 0 {
			return
		}
	}
	s.Fatalf("these do not fire: %v\n%s", left, s.log.String())
}

// every does something again and again until a time.
func (s *site) every(ctx context.Context, d time.Duration, end time.Time, do func()) {
	for time.Now().Before(end) && pause(ctx, d) == nil {
		do()
	}
}

// kill starts a process with a worker, and kills it while it runs a job.
func (s *site) kill(ctx context.Context) {
	if _, err := jobs.Enqueue(ctx, s.pool, spec("lost"), 0); err != nil {
		return
	}
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), child+"="+s.url)
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.Error(err)
		return
	}
	if err := cmd.Start(); err != nil {
		if ctx.Err() == nil {
			s.Error(err)
		}
		return
	}
	_, _ = out.Read(make([]byte, 1)) // running
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	_ = pause(ctx, 2*time.Second)
}

// crowd takes nearly all connections.
func (s *site) crowd(ctx context.Context, at string) (all []*pgx.Conn) {
	for {
		c, err := pgx.Connect(ctx, at)
		if err != nil {
			break
		}
		all = append(all, c)
	}
	for _, c := range all[len(all)-4:] { // the exporters and workers need some
		c.Close(ctx)
	}
	return all[:len(all)-4]
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
