package jobctl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/internal/jobctl"
	"github.com/jobgen-go/jobgen/internal/pgproxy"
	"github.com/jobgen-go/jobgen/jobs"
)

// backlog is an hour of a queue to which 60 jobs came each minute and from which 30 went, of which so many are there.
func (q *queue) backlog(queue, kind string, n int) {
	q.Helper()
	q.exec(`INSERT INTO jobgen.looks (minute, taken_at, newest_id, share)
		SELECT date_trunc('minute', now()) - i * interval '1 minute', date_trunc('minute', now()) - i * interval '1 minute', 1000, 1 FROM generate_series(0, 60) i ON CONFLICT DO NOTHING`)
	q.exec(`INSERT INTO jobgen.samples (minute, queue, kind, arrived, succeeded, ready, scheduled, running, dead, oldest_us)
		SELECT date_trunc('minute', now()) - i * interval '1 minute', $1, $2, 60, 30, greatest($3 - 30 * i, 0), 0, 0, 0, 0 FROM generate_series(0, 60) i`, queue, kind, n)
	if _, err := jobs.EnqueueMany(q.Context(), q.pool, &jobs.Spec[charge, jobs.None]{Kind: kind, Queue: queue}, make([]charge, n)); err != nil {
		q.Fatal(err)
	}
}

func TestStatsReadsLevelsAndWhatWorkersHaveCounted(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.ctl("stats").want(0, "0 workers; 0 ready", "! no worker is alive (none is on record)", "nothing waits, and nothing has happened in the last 1h", "TABLE", "jobs").clean(80)
	q.ctl("stats", "--check").want(0)
	q.ctl("stats", "--check", "--since", "2h", "--json").want(0)
	q.worker()
	q.backlog("mail", "mail.send", 2000)
	q.ctl("stats").want(0, "1 worker", "2000 ready", "mail.send in mail never drains at this rate: 60 come a minute and 30 go",
		"QUEUE / KIND", "mail / mail.send", "+1800", "never").clean(80)
	q.ctl("stats", "--check").want(1, "1 thing is wrong")
	q.ctl("stats", "--by", "queue", "--queue", "mail").want(0, "QUEUE  ", "never")
	q.ctl("stats", "--queue", "other").want(0, "nothing is known of it in the last 1h", "jobctl queues list")
	q.ctl("queues", "pause", "mail").want(0)
	q.ctl("stats", "--check").want(0, "mail is paused, for 0s; 2000 wait", "paused")
	var v struct {
		Rows []struct {
			Kind      string
			Ready     int64
			Scheduled int64
			Paused    bool
		}
		Sizes []struct{ Table, Index string }
	}
	if q.ctl("stats", "--json", "--by", "kind").want(0).decode(&v); len(v.Rows) != 1 || v.Rows[0].Kind != "mail.send" || v.Rows[0].Ready != 2000 {
		t.Errorf("%+v", v)
	}
	found := map[string]bool{}
	for _, s := range v.Sizes {
		found[s.Table+" "+s.Index] = true
	}
	if n := q.count("SELECT count(*) FROM pg_class WHERE relnamespace = 'jobgen'::regnamespace AND relkind IN ('r', 'i')"); len(v.Sizes) != n || !found["jobs jobs_claim"] || !found["jobs "] {
		t.Errorf("%d sizes, want %d: %v", len(v.Sizes), n, v.Sizes)
	}
}

func TestStatsDoesNotWaitForATableThatSomebodyHasForHimself(t *testing.T) {
	t.Parallel()
	q := open(t)
	tx, err := q.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "LOCK jobgen.job_archive IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	q.ctl("stats").want(0, "0 ready", "the sizes of the tables are not known", "lock timeout")
	q.ctl("stats", "--json").want(0, `"sizes_error"`)
}

func TestWrongUsageOfStats(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--by|status": "queue or kind", "--since|1m": "5m to 336h", "--since|x": "invalid argument", "--watch|--interval|0s": "200ms or more", "--watch|--check": "not both",
		"--interval|5s": "goes with --watch", "mail": "unknown command",
	} {
		run(t, t.Context(), jobctl.Env{}, append([]string{"stats"}, strings.Split(args, "|")...)...).want(2, want).sentence()
	}
}

func TestQueuesListTellsWhatWaitsAlsoWhereNobodyWorks(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.worker()
	enqueue(q, sendMail, charge{})
	enqueue(q, sendMail, charge{}, jobs.In(time.Hour))
	long := strings.Repeat("q", 40)
	for _, name := range []string{long + "1" + long, long + "2" + long} {
		enqueue(q, &jobs.Spec[charge, jobs.None]{Kind: "k", Queue: name}, charge{})
	}
	q.exec("UPDATE jobgen.jobs SET run_at = run_at - interval '10 minutes 30 seconds'")
	o := q.ctl("queues", "list").want(0, "READY", "OLDEST").clean(80)
	seen := map[string]bool{}
	for line := range strings.Lines(o.out) {
		seen[strings.Fields(line)[0]] = true
	}
	if len(seen) != 5 {
		t.Errorf("names that cannot be told apart: %s", o.out)
	}
	var v struct {
		Queues []struct {
			Name    string
			Ready   int
			Oldest  float64 `json:"oldest_s"`
			Workers int
		}
	}
	q.ctl("queues", "list", "--json").want(0).decode(&v)
	got := map[string]string{}
	for _, r := range v.Queues {
		got[r.Name] = fmt.Sprint(r.Ready, int(r.Oldest/60), r.Workers)
	}
	if len(got) != 4 || got["mail"] != "1 10 1" || got["billing"] != "0 0 1" || got[long+"2"+long] != "1 10 0" {
		t.Errorf("%v", got)
	}
}

func TestANameThatBeginsWithADashIsExplained(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.ctl("queues", "pause", "--x").want(2, "unknown flag: --x (if it is no flag but a name, put -- before it: jobctl queues pause -- NAME)").sentence()
	q.ctl("queues", "pause", "--", "--x").want(0, "paused for")
	if o := q.ctl("stats", "--x").want(2); strings.Contains(o.err, "put --") {
		t.Error("stats takes no names: ", o.err)
	}
}

// output is what a running command has written so far.
type output struct {
	mu      sync.Mutex
	text    bytes.Buffer
	written chan struct{}
}

func newOutput() *output { return &output{written: make(chan struct{}, 1)} }

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.written <- struct{}{}:
	default:
	}
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// until waits until cond holds of what was written after from.
func (o *output) until(t *testing.T, what string, from int, cond func(string) bool) (to int) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		text := o.String()
		if len(text) > from && cond(text[from:]) {
			return len(text)
		}
		select {
		case <-o.written:
		case <-limit:
			t.Fatalf("not in time: %s; got %q", what, text[from:])
		}
	}
}

func has(text string) func(string) bool {
	return func(s string) bool { return strings.Contains(s, text) }
}

// watched is stats --watch while it runs.
type watched struct {
	*output
	stop func() (code int)
}

func (q *queue) watch(env jobctl.Env, args ...string) watched {
	q.Helper()
	ctx, cancel := context.WithCancel(q.Context())
	out := newOutput()
	env.Stdin, env.Stdout, env.Stderr = strings.NewReader(""), out, out
	ended := make(chan int, 1)
	go func() {
		ended <- jobctl.Main(ctx, append([]string{"stats", "--watch", "--interval", "200ms"}, args...), env)
	}()
	stop := sync.OnceValue(func() int { cancel(); return <-ended })
	q.Cleanup(func() { stop() })
	return watched{out, stop}
}

func TestWatchOnATerminalRedrawsInPlaceAndRestoresItOnCtrlC(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.worker()
	env, size := q.env, make(chan [2]int, 1)
	env.Width, env.Height = 80, 50
	env.Size = func() (int, int) {
		select {
		case s := <-size:
			return s[0], s[1]
		default:
			return 0, 0
		}
	}
	w := q.watch(env)
	at := w.until(t, "a picture", 0, has("0 ready"))
	if text := w.String(); !strings.HasPrefix(text, "\x1b[?1049h\x1b[?25l\x1b[H") {
		t.Errorf("not on the other screen: %q", text)
	}
	q.backlog("mail", "mail.send", 300)
	at = w.until(t, "what is new", at, has("300 ready"))
	size <- [2]int{60, 6}
	at = w.until(t, "the new size", at, has("more lines: a higher terminal"))
	frame := w.String()
	frame = frame[strings.LastIndex(frame, "\x1b[H"):]
	if n := strings.Count(frame, "\n"); n != 5 {
		t.Errorf("%d lines on a terminal of 6: %q", n+1, frame)
	}
	if code := w.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	text := w.String()
	_, after, left := strings.Cut(text, "\x1b[?25h\x1b[?1049l")
	if !left || !strings.Contains(after, "300 ready") || strings.Contains(after, "\x1b[H") {
		t.Errorf("the terminal is not as it was, with the last picture on it: %q", text[at:])
	}
}

func TestWatchInAPipePrintsABlockEachTimeAndJSONALine(t *testing.T) {
	t.Parallel()
	q := open(t)
	w := q.watch(q.env)
	w.until(t, "three blocks", 0, func(s string) bool { return strings.Count(s, "0 ready") >= 3 })
	w.stop()
	if text := w.String(); strings.Contains(text, "\x1b") || len(someTime.FindAllString(text, -1)) < 3 {
		t.Errorf("%q", text)
	}
	w = q.watch(q.env, "--json")
	w.until(t, "three lines", 0, func(s string) bool { return strings.Count(s, "\n") >= 3 })
	w.stop()
	for line := range strings.Lines(w.String()) {
		var v struct{ Now time.Time }
		if err := json.Unmarshal([]byte(line), &v); err != nil || v.Now.IsZero() {
			t.Errorf("no object with a time: %q (%v)", line, err)
		}
	}
}

func TestWatchSurvivesTheDatabaseAndSaysHowOldItsPictureIs(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.worker()
	q.backlog("mail", "mail.send", 300)
	proxy, err := pgproxy.Start(q.pool.Config().ConnConfig.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	env := q.env
	env.Getenv = func(name string) string {
		if name == "DATABASE_URL" {
			return through(t, q, proxy)
		}
		return ""
	}
	screen := env
	screen.Width, screen.Height = 80, 50
	w, pipe, lines := q.watch(screen), q.watch(env), q.watch(env, "--json")
	at := w.until(t, "a picture", 0, has("300 ready"))
	pipe.until(t, "a block", 0, has("300 ready"))
	lines.until(t, "a line", 0, has(`"ready":300`))

	proxy.Refuse(true)
	proxy.Reset()
	at = w.until(t, "that it is away", at, func(s string) bool { return regexp.MustCompile(`this is \d+s old; trying again:`).MatchString(s) })
	at = w.until(t, "the last picture", at, has("300 ready"))
	from := pipe.until(t, "a line that it is away", 0, has("no database answers"))
	line := lines.until(t, "an error", 0, has(`"error":"`))
	q.exec("DELETE FROM jobgen.jobs")
	proxy.Refuse(false)
	at = w.until(t, "that it is back", at, has("; 0 ready"))
	pipe.until(t, "a block", from, has("; 0 ready"))
	lines.until(t, "a line", line, has(`"ready":0`))

	proxy.Freeze()
	w.until(t, "that nothing comes", at, has("no answer for"))
	for _, c := range []watched{w, pipe, lines} {
		if code := c.stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
	if text := w.String(); !strings.Contains(text[strings.LastIndex(text, "\x1b[?1049l"):], "; 0 ready") {
		t.Error("the terminal is not as it was")
	}
}

// through is a connection string that leads through a proxy.
func through(t *testing.T, q *queue, proxy *pgproxy.Proxy) string {
	conn, err := proxy.Dial(t.Context(), "", "")
	if err != nil {
		t.Error(err)
		return ""
	}
	defer conn.Close()
	c := q.pool.Config().ConnConfig
	u := url.URL{Scheme: "postgres", User: url.UserPassword(c.User, c.Password), Host: conn.RemoteAddr().String(), Path: "/" + c.Database, RawQuery: "sslmode=disable"}
	return u.String()
}

func TestWatchThatNeverSawTheDatabaseEnds(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.exec("DROP SCHEMA jobgen CASCADE")
	q.ctl("stats", "--watch").want(3, "not migrated").sentence()
	q = open(t)
	q.exec("ALTER TABLE jobgen.looks RENAME TO elsewhere")
	q.ctl("stats", "--watch").want(3, "jobgen.looks", "jobctl doctor").sentence()
}
