package exporter_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/exporter"
	"github.com/jobgen-go/jobgen/internal/pgproxy"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/jobtest"
)

// soon is a generous limit for what takes a moment.
const soon = 30 * time.Second

// fixture is an exporter on a database of the test's own.
type fixture struct {
	*testing.T
	pool *pgxpool.Pool
	*exporter.Exporter
	log lines
}

// lines are those of the log.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func start(t *testing.T, change func(*exporter.Config, *pgxpool.Config)) *fixture {
	t.Helper()
	f := &fixture{T: t, pool: jobtest.DB(t)}
	config := exporter.Config{Timeout: soon, Most: 100, Explain: func(err error) error { return err }}
	pool := f.pool.Config()
	pool.MaxConns = 2
	if change != nil {
		change(&config, pool)
	}
	config.Log = slog.New(slog.NewTextHandler(&f.log, nil))
	own, err := pgxpool.NewWithConfig(context.Background(), pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Close)
	f.Exporter = exporter.New(postgres.Operator{Pool: own}, config)
	return f
}

func (f *fixture) exec(sql string, args ...any) {
	f.Helper()
	if _, err := f.pool.Exec(f.Context(), sql, args...); err != nil {
		f.Fatalf("%s: %v", sql, err)
	}
}

func (f *fixture) get(path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	f.ServeHTTP(w, httptest.NewRequestWithContext(f.Context(), http.MethodGet, path, nil))
	return w
}

// scrape reads the page as a map from a series to its value, and fails the test if a line is no sample, a series is there
// twice, or a metric is not in the list.
func (f *fixture) scrape() map[string]float64 {
	f.Helper()
	return read(f.T, f.get("/metrics").Body)
}

var sampleLine = regexp.MustCompile(`^(([a-z_]+)(?:\{(?:[a-z]+="(?:[^"\\\n]|\\[\\n"])*",?)+\})?) (\S+)$`)

func read(t *testing.T, page io.Reader) map[string]float64 {
	t.Helper()
	known := map[string]bool{}
	for _, d := range exporter.Metrics {
		known[d.Name] = true
	}
	found := map[string]float64{}
	for s := bufio.NewScanner(page); s.Scan(); {
		if strings.HasPrefix(s.Text(), "#") {
			continue
		}
		m := sampleLine.FindStringSubmatch(s.Text())
		if m == nil {
			t.Errorf("no sample: %q", s.Text())
			continue
		}
		if _, twice := found[m[1]]; twice {
			t.Errorf("twice: %s", m[1])
		}
		base := regexp.MustCompile(`^(jobgen_run_seconds)_(bucket|sum|count)$`).ReplaceAllString(m[2], "$1")
		if !known[base] {
			t.Errorf("not in the list of metrics: %s", m[2])
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			t.Errorf("%s: %v", s.Text(), err)
		}
		found[m[1]] = v
	}
	return found
}

// want checks values; -1: the series is not there.
func want(t *testing.T, got map[string]float64, series map[string]float64) {
	t.Helper()
	for name, value := range series {
		v, there := got[name]
		if !there {
			v = -1
		}
		if v != value {
			t.Errorf("%s is %v, want %v", name, v, value)
		}
	}
}

const enqueue = `INSERT INTO jobgen.jobs (queue, kind, payload, run_at) VALUES ($1, $2, '{}', clock_timestamp() + $3::float8 * interval '1 second')`

const register = `INSERT INTO jobgen.workers (id, host, pid, build, queues, kinds, lease_until, lost_at, stuck, slots, running, skew_us)
	VALUES (gen_random_uuid(), 'h', 1, 'b', $1::text[], $2::text[], clock_timestamp() + $3::float8 * interval '1 second', CASE WHEN $3 < 0 THEN clock_timestamp() END, nullif($4, 0), 100, 7, -1500000)`

func TestThePageSaysWhatIsThere(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.exec(enqueue, "mail", "send", -100)
	f.exec(enqueue, "mail", "send", -1)
	f.exec(enqueue, "mail", "send", 1000)
	f.exec(enqueue, "mail", "strange", -1)
	f.exec(`UPDATE jobgen.jobs SET status = 'dead' WHERE id = (SELECT id FROM jobgen.jobs WHERE kind = 'send' ORDER BY run_at DESC LIMIT 1)`)
	f.exec(`INSERT INTO jobgen.samples (minute, queue, kind, arrived, succeeded, failed, timed_out, snoozed, cancelled, died, reclaimed, run_us, run_times)
		VALUES ('-infinity', 'mail', 'send', 10, 6, 3, 2, 4, 1, 7, 0, 2500000, '{1,0,5}'), (now(), 'mail', 'send', 1, 0, 0, 0, 0, 0, 0, 5, 0, NULL)`)
	f.exec(register, []string{"mail"}, []string{"send"}, 60, 0)
	f.exec(register, []string{"mail"}, []string{"send"}, 60, 3)
	f.exec(register, []string{"mail"}, []string{"strange"}, -60, 2)
	f.exec(`INSERT INTO jobgen.queues (name, paused_at) VALUES ('quiet', now())`)
	f.exec(`INSERT INTO jobgen.schedules (kind, name, cron, zone, missed, next_at) VALUES ('send', 'late', '@daily', 'UTC', 'once', now() - interval '90 s'), ('send', 'soon', '@daily', 'UTC', 'once', now() + interval '90 s')`)
	got := f.scrape()
	send := `{queue="mail",kind="send"}`
	want(t, got, map[string]float64{
		`jobgen_up`: 1, `jobgen_look_share`: 1,
		`jobgen_jobs{queue="mail",kind="send",state="ready"}`:     2,
		`jobgen_jobs{queue="mail",kind="send",state="dead"}`:      1,
		`jobgen_jobs{queue="mail",kind="send",state="scheduled"}`: 0,
		`jobgen_jobs{queue="mail",kind="strange",state="ready"}`:  1,
		`jobgen_unhandled_jobs{queue="mail",kind="strange"}`:      1, `jobgen_unhandled_jobs` + send: 0,
		`jobgen_jobs_arrived_total` + send: 11, `jobgen_jobs_succeeded_total` + send: 6, `jobgen_jobs_cancelled_total` + send: 1, `jobgen_jobs_died_total` + send: 7,
		`jobgen_attempts_failed_total` + send: 3, `jobgen_attempts_timed_out_total` + send: 2, `jobgen_attempts_snoozed_total` + send: 4, `jobgen_attempts_reclaimed_total` + send: 5,
		`jobgen_jobs_succeeded_total{queue="mail",kind="strange"}`:       0,
		`jobgen_run_seconds_bucket{queue="mail",kind="send",le="0.001"}`: 1,
		`jobgen_run_seconds_bucket{queue="mail",kind="send",le="0.002"}`: 1,
		`jobgen_run_seconds_bucket{queue="mail",kind="send",le="0.004"}`: 6,
		`jobgen_run_seconds_bucket{queue="mail",kind="send",le="+Inf"}`:  6,
		`jobgen_run_seconds_sum` + send:                                  2.5,
		`jobgen_run_seconds_count` + send:                                6,
		`jobgen_workers{state="alive"}`:                                  2,
		`jobgen_workers{state="lost"}`:                                   1,
		`jobgen_slots`:                                                   200,
		`jobgen_slots_busy`:                                              14, `jobgen_worker_clock_skew_seconds`: 1.5,
		`jobgen_slots_stuck`:                                       3,
		`jobgen_workers_stuck`:                                     1,
		`jobgen_queue_workers{queue="mail"}`:                       2,
		`jobgen_queue_paused{queue="mail"}`:                        0,
		`jobgen_queue_paused{queue="quiet"}`:                       1,
		`jobgen_schedule_overdue_seconds{kind="send",name="soon"}`: 0,
	})
	for series, least := range map[string]float64{
		`jobgen_oldest_ready_age_seconds` + send: 100, `jobgen_schedule_overdue_seconds{kind="send",name="late"}`: 90,
		`jobgen_schema_version`: 3, `jobgen_table_bytes{table="jobs"}`: 8192, `jobgen_index_bytes{table="jobs",index="jobs_claim"}`: 8192, `jobgen_database_connections`: 1, `jobgen_database_connections_max`: 10,
	} {
		if got[series] < least || got[series] > least+1e9 {
			t.Errorf("%s is %v, want at least %v", series, got[series], least)
		}
	}
	for series, v := range got {
		if strings.HasPrefix(series, "jobgen_exporter_part_success") && v != 1 {
			t.Errorf("%s is %v\n%s", series, v, f.log.String())
		}
	}
}

func TestWhoeverHoldsTheHorizonIsNamed(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	want(t, f.scrape(), map[string]float64{`jobgen_horizon_age_transactions{holder="prepared"}`: 0, `jobgen_horizon_age_seconds{holder="session"}`: 0})
	f.exec(`BEGIN; CREATE TABLE public.t (); PREPARE TRANSACTION 'forgotten_` + f.pool.Config().ConnConfig.Database + `'`)
	old, err := f.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Rollback(context.Background())
	if _, err := old.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		f.exec("SELECT txid_current()")
	}
	got := f.scrape()
	for _, holder := range []string{"session", "prepared"} {
		if got[`jobgen_horizon_age_transactions{holder="`+holder+`"}`] < 3 || got[`jobgen_horizon_age_seconds{holder="`+holder+`"}`] <= 0 {
			t.Errorf("%s is not seen: %v", holder, got)
		}
	}
	f.exec(`ROLLBACK PREPARED 'forgotten_` + f.pool.Config().ConnConfig.Database + `'`)
	want(t, f.scrape(), map[string]float64{`jobgen_horizon_age_transactions{holder="prepared"}`: 0, `jobgen_horizon_age_seconds{holder="prepared"}`: 0})
}

func TestScrapesShareWhatWasRead(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *exporter.Config, _ *pgxpool.Config) { c.Interval = time.Hour })
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { want(t, f.scrape(), map[string]float64{`jobgen_exporter_collections_total`: 1}) })
	}
	all.Wait()
	g := start(t, nil) // no interval
	want(t, g.scrape(), map[string]float64{`jobgen_exporter_collections_total`: 1})
	want(t, g.scrape(), map[string]float64{`jobgen_exporter_collections_total`: 2})
}

// onlyOwn checks that nothing is said of a database that is not there.
func onlyOwn(t *testing.T, got map[string]float64) {
	t.Helper()
	want(t, got, map[string]float64{`jobgen_up`: 0})
	for series := range got {
		if series != "jobgen_up" && !strings.HasPrefix(series, "jobgen_exporter_") {
			t.Errorf("stale: %s", series)
		}
	}
}

func TestWithoutTheDatabaseNothingIsClaimedAndItComesBack(t *testing.T) {
	t.Parallel()
	var network *pgproxy.Proxy
	f := start(t, func(_ *exporter.Config, pool *pgxpool.Config) {
		var err error
		if network, err = pgproxy.Start(pool.ConnConfig.Config); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(network.Close)
		pool.ConnConfig.DialFunc = network.Dial
	})
	f.exec(enqueue, "mail", "send", -1)
	ready := `jobgen_jobs{queue="mail",kind="send",state="ready"}`
	want(t, f.scrape(), map[string]float64{`jobgen_up`: 1, ready: 1})
	network.Refuse(true)
	network.Cut()
	for range 3 {
		onlyOwn(t, f.scrape())
	}
	if n := strings.Count(f.log.String(), "cannot be read"); n != 1 {
		t.Errorf("%d lines of the same:\n%s", n, f.log.String())
	}
	network.Refuse(false)
	want(t, f.scrape(), map[string]float64{`jobgen_up`: 1, ready: 1})
	if !strings.Contains(f.log.String(), "all can be read again") {
		t.Error(f.log.String())
	}
	f.exec("ALTER SCHEMA jobgen RENAME TO away")
	onlyOwn(t, f.scrape())
	f.exec("ALTER SCHEMA away RENAME TO jobgen")
	want(t, f.scrape(), map[string]float64{`jobgen_up`: 1, ready: 1})
}

func TestAPartThatHangsTakesNoOtherWithIt(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *exporter.Config, _ *pgxpool.Config) { c.Timeout = time.Second })
	f.exec(enqueue, "mail", "send", -1)
	f.exec(register, []string{"mail"}, []string{"send"}, 60, 0)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "LOCK TABLE jobgen.jobs"); err != nil {
		t.Fatal(err)
	}
	got := f.scrape()
	want(t, got, map[string]float64{
		`jobgen_up`: 1, `jobgen_workers{state="alive"}`: 1, `jobgen_exporter_part_success{part="levels"}`: 0,
		`jobgen_jobs{queue="mail",kind="send",state="ready"}`: -1,
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	got = f.scrape()
	want(t, got, map[string]float64{
		`jobgen_exporter_part_success{part="levels"}`: 1, `jobgen_exporter_part_errors_total{part="levels"}`: 1,
		`jobgen_jobs{queue="mail",kind="send",state="ready"}`: 1,
	})
}

func TestNamesOfStrangersDoNotBreakThePage(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.exec(enqueue, "mail", "a\"b\\c\nd", -1)
	f.exec(enqueue, "other", "other", -1)
	want(t, f.scrape(), map[string]float64{`jobgen_jobs{queue="mail",kind="a\"b\\c\nd",state="ready"}`: 1})
}

// A database in SQL_ASCII has whatever bytes were sent to it.
func TestNamesThatAreNoUTF8AreMended(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := exporter.WriteOdd(&b, "k\xff", "k\xfe"); err != nil {
		t.Fatal(err)
	}
	want(t, read(t, strings.NewReader(b.String())), map[string]float64{"jobgen_unhandled_jobs{queue=\"q\",kind=\"k\uFFFD\"}": 2})
}

func TestWhatIsTooManyIsOneAndAPlaceIsKept(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *exporter.Config, _ *pgxpool.Config) { c.Most = 2 })
	succeed := func(kind string, n int) {
		f.exec(`INSERT INTO jobgen.samples AS s (minute, queue, kind, succeeded) VALUES ('-infinity', 'q', $1, $2)
			ON CONFLICT (minute, queue, kind) DO UPDATE SET succeeded = s.succeeded + EXCLUDED.succeeded`, kind, n)
	}
	for i := range 20 {
		succeed(fmt.Sprintf("k%02d", i), 1+i)
	}
	total := func(kind string) string { return `jobgen_jobs_succeeded_total{queue="q",kind="` + kind + `"}` }
	folded := `jobgen_jobs_succeeded_total{queue="other",kind="other"}`
	want(t, f.scrape(), map[string]float64{total("k19"): 20, total("k18"): 19, total("k17"): -1, folded: 18 * 19 / 2, `jobgen_exporter_folded{of="kind"}`: 18})
	succeed("k00", 1000)
	want(t, f.scrape(), map[string]float64{total("k19"): 20, total("k18"): 19, total("k00"): -1, folded: 18*19/2 + 1000})
}

func TestWhatIsServed(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Serve(ctx, l) }()
	for path, status := range map[string]int{"/metrics": 200, "/-/healthy": 200, "/": 200, "/elsewhere": 404} {
		r, err := http.Get("http://" + l.Addr().String() + path) // asks for gzip, as Prometheus does
		if err != nil {
			t.Fatal(err)
		}
		if r.StatusCode != status {
			t.Errorf("%s: %s", path, r.Status)
		}
		if path == "/metrics" {
			if !r.Uncompressed || r.Header.Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" {
				t.Errorf("not compressed, or of another type: %v", r.Header)
			}
			want(t, read(t, r.Body), map[string]float64{"jobgen_up": 1})
		}
		r.Body.Close()
	}
	if r, err := http.Post("http://"+l.Addr().String()+"/metrics", "", nil); err != nil || r.StatusCode != http.StatusMethodNotAllowed {
		t.Error(r, err)
	}
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(soon):
		t.Error("it does not end")
	}
}

// The page docs/operating/metrics.md has each metric, its type and its labels, and no other.
func TestThePageOfTheManualIsComplete(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operating/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var has, should []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(jobgen_\\w+)` \\| (\\w+) \\| ([^|]*) \\|").FindAllStringSubmatch(string(text), -1) {
		has = append(has, fmt.Sprintf("%s %s %s", m[1], m[2], strings.ReplaceAll(strings.TrimSpace(m[3]), "`", "")))
	}
	for _, d := range exporter.Metrics {
		should = append(should, strings.TrimSpace(fmt.Sprintf("%s %s %s", d.Name, d.Type, strings.Join(d.Labels, ", "))))
		if d.Help == "" || (d.Type == "counter") != strings.HasSuffix(d.Name, "_total") {
			t.Errorf("%s %s: %q", d.Type, d.Name, d.Help)
		}
	}
	for i := range has {
		has[i] = strings.TrimSpace(has[i])
	}
	slices.Sort(has)
	slices.Sort(should)
	if missing, more := without(should, has), without(has, should); len(missing)+len(more) > 0 {
		t.Errorf("not in the manual: %q; only there: %q", missing, more)
	}
}

func without(a, b []string) (left []string) {
	in := map[string]bool{}
	for _, s := range b {
		in[s] = true
	}
	for _, s := range slices.Sorted(maps.Keys(set(a))) {
		if !in[s] {
			left = append(left, s)
		}
	}
	return left
}

func set(a []string) map[string]bool {
	m := map[string]bool{}
	for _, s := range a {
		m[s] = true
	}
	return m
}

// The role of the manual can read every part, and no payload.
func TestTheRoleOfTheManualIsEnough(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operating/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)```sql\n(CREATE ROLE .*?)```").FindStringSubmatch(string(text))
	if m == nil {
		t.Fatal("there is no CREATE ROLE")
	}
	var role string
	f := start(t, func(_ *exporter.Config, pool *pgxpool.Config) {
		role = "exporter_" + pool.ConnConfig.Database // roles are the whole server's
		pool.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "SET SESSION AUTHORIZATION "+pgx.Identifier{role}.Sanitize())
			return err
		}
	})
	f.exec(strings.ReplaceAll(m[1], "jobgen_exporter", role))
	t.Cleanup(func() {
		_, err := f.pool.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role)
		if err != nil {
			t.Error(err)
		}
	})
	f.exec(enqueue, "mail", "send", -1)
	got := f.scrape()
	for series, v := range got {
		if strings.HasPrefix(series, "jobgen_exporter_part_success") && v != 1 {
			t.Errorf("%s is %v\n%s", series, v, f.log.String())
		}
	}
	want(t, got, map[string]float64{`jobgen_up`: 1, `jobgen_jobs{queue="mail",kind="send",state="ready"}`: 1})
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SET LOCAL ROLE "+role); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT payload FROM jobgen.jobs"); err == nil {
		t.Error("it can read payloads")
	}
}
