package jobctl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/jobctl"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// asProcess makes the test binary a jobctl, for what only a process of its own can show.
const asProcess = "JOBCTL_TEST_PROCESS"

func TestMain(m *testing.M) {
	if os.Getenv(asProcess) == "" {
		os.Exit(m.Run())
	}
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // as cmd/jobctl does
	os.Exit(jobctl.Main(ctx, os.Args[1:], jobctl.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Zone: time.UTC,
	}))
}

// queue is a database of the test's own and a jobctl that works on it.
type queue struct {
	*testing.T
	pool  *pgxpool.Pool
	store *postgres.Store
	env   jobctl.Env
}

func open(t *testing.T) *queue {
	t.Helper()
	return on(t, jobtest.DB(t))
}

func on(t *testing.T, pool *pgxpool.Pool) *queue {
	t.Helper()
	store, err := postgres.Open(context.Background(), pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	q := &queue{T: t, pool: pool, store: store}
	q.env = jobctl.Env{Zone: time.FixedZone("", 2*60*60), Getenv: func(name string) string {
		if name == "DATABASE_URL" {
			return q.url()
		}
		return ""
	}}
	return q
}

func (q *queue) url() string { return q.pool.Config().ConnString() }

// outcome is what one command did.
type outcome struct {
	t        *testing.T
	code     int
	out, err string
}

func (q *queue) ctl(args ...string) outcome {
	q.Helper()
	env := q.env
	env.Width = 0
	return q.ctlIn(env, args...)
}

func (q *queue) ctlIn(env jobctl.Env, args ...string) outcome {
	q.Helper()
	return run(q.T, q.Context(), env, args...)
}

func run(t *testing.T, ctx context.Context, env jobctl.Env, args ...string) outcome {
	t.Helper()
	var out, err bytes.Buffer
	if env.Stdin == nil {
		env.Stdin = strings.NewReader("")
	}
	if env.Getenv == nil {
		env.Getenv = func(string) string { return "" }
	}
	env.Stdout = &out
	if env.Stderr == nil {
		env.Stderr = &err
	}
	code := jobctl.Main(ctx, args, env)
	return outcome{t, code, out.String(), err.String()}
}

// want checks the exit code, and that stdout and stderr together hold each text.
func (o outcome) want(code int, texts ...string) outcome {
	o.t.Helper()
	if o.code != code {
		o.t.Errorf("exit code %d, want %d\n%s%s", o.code, code, o.out, o.err)
	}
	for _, text := range texts {
		if !strings.Contains(o.out+o.err, text) {
			o.t.Errorf("%q is not in:\n%s%s", text, o.out, o.err)
		}
	}
	return o
}

// sentence checks that an error is one line and no usage dump, and that nothing went to stdout.
func (o outcome) sentence() outcome {
	o.t.Helper()
	if o.out != "" || strings.Count(o.err, "\n") != 1 || !strings.HasPrefix(o.err, "jobctl: ") {
		o.t.Errorf("not one sentence on stderr: %q, and on stdout %q", o.err, o.out)
	}
	return o
}

// clean checks that nothing in the output acts on a terminal, and that no line is wider than width.
func (o outcome) clean(width int) outcome {
	o.t.Helper()
	for line := range strings.SplitSeq(o.out, "\n") {
		if i := strings.IndexFunc(line, func(r rune) bool { return !unicode.IsGraphic(r) || r == unicode.ReplacementChar }); i >= 0 {
			o.t.Errorf("raw %q in %q", line[i:], line)
		}
		if n := len([]rune(line)); width > 0 && n > width {
			o.t.Errorf("%d columns, want at most %d: %s", n, width, line)
		}
	}
	return o
}

var (
	someTime = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \+02:00`)
	someUUID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)
)

// golden compares stdout with a file, times and worker ids aside.
func (o outcome) golden(name string) outcome {
	o.t.Helper()
	got := someTime.ReplaceAllString(o.out, "2026-01-02 15:04:05 +02:00")
	got = someUUID.ReplaceAllString(got, "00000000-0000-0000-0000-000000000000")
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			o.t.Fatal(err)
		}
		return o
	}
	want, err := os.ReadFile(file)
	if err != nil {
		o.t.Fatal(err)
	}
	if got != string(want) {
		o.t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
	}
	return o
}

// decode reads stdout as one JSON object.
func (o outcome) decode(into any) {
	o.t.Helper()
	dec := json.NewDecoder(strings.NewReader(o.out))
	if err := dec.Decode(into); err != nil || dec.More() {
		o.t.Errorf("stdout is not one JSON object (%v): %s", err, o.out)
	}
}

type charge struct {
	OrderID string `json:"order_id"`
	Cents   int    `json:"cents"`
}

var (
	chargeCard = &jobs.Spec[charge, string]{Kind: "billing.charge_card", Queue: "billing", Priority: 5, MaxAttempts: 2}
	sendMail   = &jobs.Spec[charge, jobs.None]{Kind: "mail.send", Queue: "mail"}
)

func enqueue[P, R any](q *queue, s *jobs.Spec[P, R], payload P, opts ...jobs.Option) int64 {
	q.Helper()
	ref, err := jobs.Enqueue(q.Context(), q.pool, s, payload, opts...)
	if err != nil {
		q.Fatal(err)
	}
	return ref.ID
}

func (q *queue) exec(sql string, args ...any) {
	q.Helper()
	if _, err := q.pool.Exec(q.Context(), sql, args...); err != nil {
		q.Fatalf("%s: %v", sql, err)
	}
}

func (q *queue) count(sql string, args ...any) (n int) {
	q.Helper()
	if err := q.pool.QueryRow(q.Context(), sql, args...).Scan(&n); err != nil {
		q.Fatalf("%s: %v", sql, err)
	}
	return n
}

// worker registers a worker of both kinds.
func (q *queue) worker() *engine.Worker {
	q.Helper()
	w := &engine.Worker{ID: uuid.New(), Host: "web-1", PID: 1, Build: "test", Queues: []string{"billing", "mail"}}
	for _, k := range []string{chargeCard.Kind, sendMail.Kind} {
		w.Kinds = append(w.Kinds, engine.Kind{Name: k, Version: 1})
	}
	if err := q.store.Register(q.Context(), *w, time.Hour); err != nil {
		q.Fatal(err)
	}
	return w
}

// claim starts the next jobs, at most n.
func (q *queue) claim(w *engine.Worker, n int) []engine.Claimed {
	q.Helper()
	var marks []engine.Mark
	for _, name := range w.Queues {
		for p := 9; p >= 0; p-- {
			marks = append(marks, engine.Mark{Queue: name, Priority: p, At: time.Unix(0, 0)})
		}
	}
	got, _, err := q.store.Claim(q.Context(), w, marks, nil, false, n)
	if err != nil {
		q.Fatal(err)
	}
	return got
}

// fail ends an attempt of all jobs that are due, n at most.
func (q *queue) fail(w *engine.Worker, n int, permanent bool, text string) {
	q.Helper()
	q.failAll(w, q.claim(w, n), permanent, text)
}

// failHeld ends the attempts of jobs that run, for good.
func (q *queue) failHeld(w *engine.Worker, held []engine.Claimed) {
	q.Helper()
	q.failAll(w, held, true, "no")
}

func (q *queue) failAll(w *engine.Worker, held []engine.Claimed, permanent bool, text string) {
	q.Helper()
	var failed []engine.Failure
	for _, c := range held {
		failed = append(failed, engine.Failure{Hold: engine.Hold{ID: c.ID, Fence: c.Fence}, Permanent: permanent, Error: text})
	}
	if len(failed) == 0 {
		q.Fatal("nothing to fail")
	}
	if _, err := q.store.Fail(q.Context(), w.ID, failed); err != nil {
		q.Fatal(err)
	}
}

// crash loses the worker of all that it holds.
func (q *queue) crash(w *engine.Worker) {
	q.Helper()
	q.exec("UPDATE jobgen.workers SET lease_until = clock_timestamp() - interval '1 second' WHERE id = $1", w.ID)
	if _, err := q.store.MarkLost(q.Context()); err != nil {
		q.Fatal(err)
	}
	if _, err := q.store.Reclaim(q.Context(), 1000, 5, 0, false); err != nil {
		q.Fatal(err)
	}
}

// finish completes all jobs that are due, n at most.
func (q *queue) finish(w *engine.Worker, n int, result string) {
	q.Helper()
	var done []engine.Success
	for _, c := range q.claim(w, n) {
		done = append(done, engine.Success{Hold: engine.Hold{ID: c.ID, Fence: c.Fence}, Record: true, Result: []byte(result), Keep: time.Hour})
	}
	if _, err := q.store.Complete(q.Context(), w.ID, done); err != nil {
		q.Fatal(err)
	}
}

const stack = "panic: index out of range [3] with length 3\n\ngoroutine 12 [running]:\nmain.(*handlers).ChargeCard(0xc000123456)\n\t/src/app/handlers.go:42 +0x1d\nmain.main()"

// deadJob makes a keyed job that crashed once, failed twice and is dead.
func (q *queue) deadJob() int64 {
	q.Helper()
	id := enqueue(q, chargeCard, charge{"o-17", 1290}, jobs.Key("order o-17"), jobs.Headers(map[string]string{"traceparent": "00-4bf92f-00f067-01"}))
	lost := q.worker()
	q.claim(lost, 1)
	q.crash(lost)
	w := q.worker()
	q.fail(w, 1, false, "card declined")
	q.fail(w, 1, false, stack)
	return id
}

// deadMails makes n dead jobs of mail.send.
func (q *queue) deadMails(n int) {
	q.Helper()
	if _, err := jobs.EnqueueMany(q.Context(), q.pool, sendMail, make([]charge, n)); err != nil {
		q.Fatal(err)
	}
	q.fail(q.worker(), n, true, "no such mailbox")
}

// settle puts all times of a test's jobs hours into the past, so that the ages in a golden file do not change while the
// test runs.
func (q *queue) settle() {
	q.Helper()
	q.exec(`UPDATE jobgen.jobs SET created_at = clock_timestamp() - interval '3 hours 30 minutes 30 seconds',
		claimed_at = claimed_at - interval '2 hours 30 seconds', run_at = run_at - interval '30 minutes 30 seconds'`)
	q.exec(`UPDATE jobgen.job_attempt SET ended_at = ended_at - interval '2 hours', started_at = ended_at - interval '2 hours 1.25 seconds'`)
	q.exec(`UPDATE jobgen.job_archive SET created_at = created_at - interval '3 hours 30 minutes 30 seconds',
		finished_at = finished_at - interval '2 hours 30 seconds', expires_at = expires_at + interval '30 minutes 30 seconds'`)
	q.exec(`UPDATE jobgen.job_result SET finished_at = finished_at - interval '20 minutes 30 seconds', expires_at = expires_at + interval '30 minutes 30 seconds'`)
}

// withDatabase is the connection string with another database in it.
func withDatabase(t *testing.T, connection, name string) string {
	t.Helper()
	u, err := url.Parse(connection)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

func id(n int64) string { return fmt.Sprint(n) }

// On a terminal, what is said beside the output fits, and a command that is to be pasted stays whole if it can; for a program it is one line.
func TestNotesFitATerminal(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.exec("INSERT INTO jobgen.schedules (kind, name, cron, zone, missed, next_at) VALUES ('k', 'n', '0 * * * *', 'UTC', 'once', now() - interval '3 hours')")
	env := q.env
	long := 0
	for line := range strings.Lines(run(t, t.Context(), env, "schedules").err) {
		long = max(long, len(line))
	}
	env.Progress, env.Width = true, 60
	o := run(t, t.Context(), env, "schedules")
	for line := range strings.Lines(o.err) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 60 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if long < 100 || !strings.Contains(o.err, "`jobctl doctor`") {
		t.Errorf("the longest line of a pipe has %d bytes; on a terminal:\n%s", long, o.err)
	}
}
