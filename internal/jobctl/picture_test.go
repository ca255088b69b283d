package jobctl

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/flow"
	"github.com/jobgen-go/jobgen/internal/human"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

var noon = time.Date(2026, 1, 2, 12, 0, 30, 0, time.UTC)

// scene is a view to which a test adds what it is about.
type scene struct{ view }

func newScene(workers int) *scene {
	s := &scene{view{look: engine.Look{At: noon, NewestID: 1000, Share: 1}, silent: 2 * time.Second, paused: map[string]time.Duration{}}}
	if workers > 0 {
		s.crews = []postgres.Crew{{Queues: []string{"mail", "billing"}, Kinds: []string{"mail.send", "mail.digest", "billing.charge_card"}, Workers: workers, Slots: 100 * workers, Running: 97 * workers}}
	}
	for i := 60; i >= 0; i-- {
		s.looks = append(s.looks, engine.Look{At: noon.Truncate(time.Minute).Add(-time.Duration(i) * time.Minute), NewestID: 1000, Share: 1})
	}
	return s
}

// flow is a kind to which so many came and from which so many went each minute of the last hour, with so many ready at its end.
func (s *scene) flow(queue, kind string, in, out, ready int64, oldest time.Duration) *scene {
	for i := range int64(61) {
		at := noon.Truncate(time.Minute).Add(-time.Duration(i) * time.Minute)
		s.samples = append(s.samples, engine.Sample{
			Minute: at, Queue: queue, Kind: kind, Arrived: in, Succeeded: out, Level: &engine.Level{Queue: queue, Kind: kind, Ready: max(ready-i*(in-out), 0)},
		})
	}
	s.look.Levels = append(s.look.Levels, engine.Level{Queue: queue, Kind: kind, Ready: ready, Oldest: oldest})
	return s
}

// of is the newest level or sample of a kind.
func (s *scene) level(kind string) *engine.Level {
	for i := range s.look.Levels {
		if s.look.Levels[i].Kind == kind {
			return &s.look.Levels[i]
		}
	}
	return nil
}

// ago is the sample of a kind so many minutes ago.
func (s *scene) ago(kind string, minutes int) *engine.Sample {
	for i := range s.samples {
		if s.samples[i].Kind == kind && noon.Truncate(time.Minute).Sub(s.samples[i].Minute) == time.Duration(minutes)*time.Minute {
			return &s.samples[i]
		}
	}
	return nil
}

func (s *scene) draw(f statsFlags) picture {
	if f.since == 0 {
		f.since = time.Hour
	}
	return f.draw(s.view)
}

func onTerminal(width int, vars ...string) *cli {
	return &cli{Env: Env{Width: width, Zone: time.UTC, Getenv: func(name string) string {
		for _, v := range vars {
			if n, value, _ := strings.Cut(v, "="); n == name {
				return value
			}
		}
		return ""
	}}}
}

func render(c *cli, p picture) string { return c.pictureText(p, nil) }

// sick is a night that went wrong.
func sick() *scene {
	s := newScene(3).
		flow("mail", "mail.send", 1200, 900, 18_300, 72*time.Minute).
		flow("mail", "mail.digest", 10, 10, 4, time.Second).
		flow("billing", "billing.charge_card", 30, 60, 400, 140*time.Second).
		flow("reports", "reports.quarterly_statement_of_accounts_for_customers_in_the_north", 1, 0, 61, time.Hour)
	s.level("mail.send").Running, s.level("mail.send").Scheduled, s.level("mail.digest").Dead = 120, 10, 9
	s.ago("mail.send", 7).Failed = 183
	s.ago("mail.digest", 2).Died = 2
	for i := range 6 {
		s.ago("mail.digest", i).Reclaimed = int64(8 - i)
	}
	s.lost = 4
	s.sizes = []postgres.Size{
		{Table: "job_attempt", Bytes: 40 << 20, Tuples: &postgres.Tuples{Live: 120_000}}, {Table: "job_attempt", Index: "job_attempt_job", Bytes: 3 << 20},
		{Table: "jobs", Bytes: 84 << 20, Tuples: &postgres.Tuples{Live: 18_900, Dead: 31_200, AutovacuumAt: new(noon.Add(-45 * time.Second))}},
		{Table: "jobs", Index: "jobs_claim", Bytes: 5 << 20}, {Table: "jobs", Index: "jobs_pkey", Bytes: 4 << 20},
		{Table: "queues", Bytes: 8 << 10, Tuples: &postgres.Tuples{}}, {Table: "workers", Bytes: 16 << 10, Tuples: &postgres.Tuples{Live: 7}},
	}
	return s
}

func TestStatsFitsTheTerminalAndHasTheWorstOnTop(t *testing.T) {
	t.Parallel()
	for _, width := range []int{60, 80, 120} {
		c := onTerminal(width, "LANG=de_DE.UTF-8", "NO_COLOR=1")
		text := render(c, sick().draw(statsFlags{}))
		for line := range strings.Lines(text) {
			if n := cells(strings.TrimRight(line, "\n")); n > width {
				t.Errorf("%d columns in %d: %s", n, width, line)
			}
		}
		golden(t, fmt.Sprintf("stats_%d.txt", width), text)
	}
}

func TestACommandIsNotBrokenIfItFits(t *testing.T) {
	t.Parallel()
	for width, want := range map[int]string{
		40: "5 died in the last hour; see\n  `jobctl jobs list`, `jobctl stats`.\n",
		22: "5 died in the last\n  hour; see\n  `jobctl jobs list`,\n  `jobctl stats`.\n",
		14: "5 died in the\n  last hour;\n  see `jobctl\n  jobs list`,\n  `jobctl\n  stats`.\n",
	} {
		var b bytes.Buffer
		onTerminal(width, "NO_COLOR=1").writeParagraph(&b, hurts, "5 died in the last hour; see `jobctl jobs list`, `jobctl stats`.")
		if b.String() != want {
			t.Errorf("%d columns: %q, want %q", width, b.String(), want)
		}
	}
}

func TestColoursAreForTerminalsOnly(t *testing.T) {
	t.Parallel()
	p := sick().draw(statsFlags{})
	red := "\x1b[" + string(hurts) + "mnever\x1b[0m"
	if text := render(onTerminal(80, "LANG=C.UTF-8"), p); !strings.Contains(text, red) {
		t.Errorf("what never drains is not red: %q", text)
	}
	for _, c := range []*cli{onTerminal(0), onTerminal(80, "NO_COLOR=1"), onTerminal(80, "TERM=dumb")} {
		if text := render(c, p); strings.Contains(text, "\x1b") {
			t.Errorf("colours where there should be none: %q", text)
		}
	}
}

func TestSeriesAreDrawnInASCIIUnlessTheTerminalSaysUTF8(t *testing.T) {
	t.Parallel()
	p := sick().draw(statsFlags{})
	for _, vars := range [][]string{{"LANG=C.UTF-8"}, {"LANG=C", "LC_ALL=de_DE.utf8"}, {"LC_CTYPE=en_GB.UTF-8", "LANG=C"}} {
		if text := render(onTerminal(80, vars...), p); !strings.Contains(text, "▄▅▆") {
			t.Errorf("%q: no bars: %s", vars, text)
		}
	}
	for _, vars := range [][]string{nil, {"LANG=C"}, {"LC_ALL=POSIX", "LANG=C.UTF-8"}, {"LANG=de_DE.ISO-8859-1"}} {
		if text := render(onTerminal(80, vars...), p); strings.ContainsAny(text, string(bars)) || !strings.Contains(text, "-=+") {
			t.Errorf("%q: %s", vars, text)
		}
	}
}

func TestASeriesGoesFromNothingToItsHighestAndLeavesBlankWhatNobodySaw(t *testing.T) {
	t.Parallel()
	gap := math.NaN()
	for _, c := range []struct {
		series []float64
		n      int
		want   string
	}{
		{nil, 8, ""},
		{[]float64{0, 0, 0}, 8, "▁▁▁"},
		{[]float64{0, 1, 1000}, 8, "▁▂█"},
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8}, 8, "▂▃▄▅▆▇██"},
		{[]float64{1, 3, 4, 4}, 2, "▅█"},
		{[]float64{gap, 4, gap, gap, 8, 8}, 3, "▅ █"},
		{[]float64{7}, 8, "█"},
	} {
		if got := spark(c.series, c.n, bars); got != c.want {
			t.Errorf("%v in %d: %q, want %q", c.series, c.n, got, c.want)
		}
	}
}

func TestNumbersAreShortForPeople(t *testing.T) {
	t.Parallel()
	for n, want := range map[float64]string{0: "0", 9999: "9999", 9999.6: "10.0k", 12_345: "12.3k", 99_960: "100k", 999_600: "1.0M", 1_234_567: "1.2M", -45_000: "-45.0k", 5e12: "5.0T", 2e15: "2000T"} {
		if got := short(n); got != want {
			t.Errorf("%v: %s, want %s", n, got, want)
		}
	}
	for n, want := range map[float64]string{0: "0", 0.01: "<0.1", 0.4: "0.4", 3: "3", 9.96: "10", 1200: "1200"} {
		if got := rate(n); got != want {
			t.Errorf("%v: %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 8192: "8.0 kB", 1 << 20: "1.0 MB", 10 << 20: "10 MB", 3 << 40: "3.0 TB"} {
		if got := human.Bytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{time.Hour: "1h", 90 * time.Minute: "1h30m", 5 * time.Minute: "5m", 200 * time.Millisecond: "200ms", 336 * time.Hour: "336h"} {
		if got := span(d); got != want {
			t.Errorf("%d: %s, want %s", d, got, want)
		}
	}
}

func TestNamesThatAreCutStayApart(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{
		{"reports.for_customers_in_the_north.daily", "reports.for_customers_in_the_south.daily", "reports.for_customers_in_the_north.weekly", "reports.x"},
		{"a-very-long-name-that-ends-in-1", "a-very-long-name-that-ends-in-2"},
		{"1-is-how-a-very-long-name-begins", "2-is-how-a-very-long-name-begins"},
		{strings.Repeat("a", 50) + "1" + strings.Repeat("b", 48), strings.Repeat("a", 50) + "2" + strings.Repeat("b", 48), strings.Repeat("a", 50) + "3" + strings.Repeat("b", 48)},
		{strings.Repeat("界", 30) + "1", strings.Repeat("界", 30) + "2"},
		{"same", "same"},
	} {
		for n := 8; n <= 20; n++ {
			seen := map[string]string{}
			for i, shown := range middle(names, n) {
				if was, is := seen[shown]; is && was != names[i] {
					t.Errorf("in %d columns %q and %q are both %q", n, was, names[i], shown)
				}
				if seen[shown] = names[i]; cells(shown) > n {
					t.Errorf("%q has %d columns, more than %d", shown, cells(shown), n)
				}
			}
		}
	}
	if got := middle([]string{"reports.for_customers_in_the_north.daily", "reports.for_customers_in_the_south.daily"}, 15); got[0] != "repor…rth.daily" {
		t.Errorf("%q: not cut in the middle, where they are apart", got)
	}
}

func TestAQueueOfSeveralKindsHasItsSumAboveThem(t *testing.T) {
	t.Parallel()
	p := sick().draw(statsFlags{})
	var names []string
	for _, l := range arrange(&p) {
		names = append(names, l.name)
	}
	if got, want := strings.Join(names[:3], "|"), "mail|  mail.send|  mail.digest"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, f := range []statsFlags{{by: "queue"}, {by: "kind"}} {
		for _, r := range sick().draw(f).Rows {
			if (f.by == "queue") != (r.Kind == "") || (f.by == "kind") != (r.Queue == "") {
				t.Errorf("by %s: %q %q", f.by, r.Queue, r.Kind)
			}
		}
	}
	sums := sick().draw(statsFlags{by: "queue"}).Rows
	if r := sums[0]; r.Queue != "mail" || r.Ready != 18_304 || r.During.Arrived != 61*1210 || r.Oldest != 72*60 {
		t.Errorf("%+v", r)
	}
	if p := sick().draw(statsFlags{kinds: []string{"mail.digest"}}); p.Total.Ready != 4 || len(p.Rows) != 2 {
		t.Errorf("only one kind: %+v", p.Rows)
	}
}

func TestWhatNeverDrainsStandsAboveWhatIsOldAndWhatIsPausedDoesNot(t *testing.T) {
	t.Parallel()
	order := func(s *scene) (names []string) {
		for _, r := range s.draw(statsFlags{by: "kind"}).Rows {
			names = append(names, r.Kind)
		}
		return names
	}
	s := newScene(2).flow("billing", "billing.charge_card", 30, 60, 400, time.Hour).flow("mail", "mail.send", 100, 50, 4000, time.Minute).flow("mail", "mail.digest", 1, 1, 0, 0)
	if got := strings.Join(order(s), " "); got != "mail.send billing.charge_card mail.digest" {
		t.Error(got)
	}
	s.paused["mail"] = time.Hour
	p := s.draw(statsFlags{})
	if got := p.Rows[0].Queue; got != "billing" {
		t.Errorf("%s is first, though the other is paused", got)
	}
}

func TestWhatHurtsIsSaidInWords(t *testing.T) {
	t.Parallel()
	findings := func(s *scene) (out []string, fails int) {
		p := s.draw(statsFlags{})
		for _, f := range p.Findings {
			out = append(out, f.What+": "+f.Text)
		}
		return out, p.failing()
	}
	check := func(name string, s *scene, fails int, want ...string) {
		t.Helper()
		got, n := findings(s)
		if n != fails || len(got) != len(want) {
			t.Errorf("%s: %d fail, want %d: %q", name, n, fails, got)
			return
		}
		for i := range want {
			if !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("%s: %q, want %q", name, got[i], want[i])
			}
		}
	}
	check("well", newScene(1).flow("mail", "mail.send", 10, 10, 0, 0), 0)
	check("empty", newScene(1), 0)
	check("nobody", newScene(0), 0, "no_workers: no worker is alive (the last was heard of 2s ago)")
	s := newScene(0).flow("mail", "mail.send", 10, 0, 600, time.Hour)
	s.silent = -1
	check("nobody, and work waits", s, 1, "no_workers: no worker is alive (none is on record)")
	check("too slow", newScene(2).flow("mail", "mail.send", 100, 50, 4000, time.Hour), 1, "never_drains: mail.send in mail never drains at this rate: 100 come a minute and 50 go; about 2 more workers like these")
	s = newScene(2).flow("mail", "mail.send", 100, 50, 4000, time.Hour)
	s.crews[0].Running = 20
	check("for another reason", s, 1, "never_drains: mail.send in mail never drains at this rate: 100 come a minute and 50 go; not for want of workers: 10% of their slots are busy")
	check("nothing of it runs", newScene(2).flow("mail", "mail.send", 0, 0, 9, time.Hour), 1, "never_drains: mail.send in mail: 9 wait, and none has run of late; `jobctl doctor` looks for why")
	s = newScene(2).flow("mail", "mail.send", 0, 0, 9, time.Hour)
	s.ago("mail.send", 2).Failed = 40
	check("it runs, and fails", s, 1, "never_drains: mail.send in mail never drains at this rate: 0 come a minute and 0 go")
	s = newScene(2).flow("mail", "mail.send", 10, 10, 4, time.Second)
	s.crews[0].Stuck = 6
	check("some stuck", s, 0, "stuck: 6 of 200 slots are taken by handlers that go on although their context has ended; see `jobctl workers`")
	s.crews[0].Stuck = 200
	check("all stuck", s, 1, "stuck: 200 of 200 slots are taken by handlers that go on although their context has ended; see `jobctl workers`")
	s = newScene(2).flow("mail", "mail.send", 100, 50, 4000, time.Hour)
	s.crews[0].Stuck = 150
	check("too slow because stuck", s, 1, "stuck: 150 of 200 slots are taken by handlers that go on although their context has ended; see `jobctl workers`",
		"never_drains: mail.send in mail never drains at this rate: 100 come a minute and 50 go; most of its workers' slots are stuck")
	check("no such worker", newScene(2).flow("reports", "r", 1, 0, 61, time.Hour), 1, "never_drains: r in reports: 61 wait, and no live worker polls that queue")
	check("no such handler", newScene(2).flow("mail", "new", 1, 0, 61, time.Hour), 1, "never_drains: new in mail: 61 wait, and no live worker handles it")
	s = newScene(2).flow("mail", "mail.send", 100, 0, 6100, time.Hour).flow("mail", "mail.digest", 1, 0, 61, time.Hour)
	s.paused["mail"] = 2 * time.Hour
	check("paused", s, 0, "paused: mail is paused, for 2h0m; 6161 wait; to go on: `jobctl queues resume mail`")
	s = newScene(2).flow("mail", "mail.send", 10, 10, 0, 0)
	s.ago("mail.send", 1).Reclaimed, s.lost = 12, 2
	check("dying", s, 1, "workers_die: workers die: 12 attempts were taken back from lost workers in the last 1h (2 workers), 2 a minute of late")
	s = newScene(2).flow("mail", "mail.send", 10, 10, 0, 0)
	s.ago("mail.send", 30).Reclaimed = 1
	check("died", s, 0, "workers_die: workers died: 1 attempt was taken back from lost workers in the last 1h, none for 30m")
	s = newScene(2).flow("mail", "mail.send", 10, 10, 0, 0)
	s.ago("mail.send", 30).Died = 3
	check("dead", s, 0, "died: mail.send in mail: 3 jobs died in the last 1h; see `jobctl jobs list --status dead`")
}

func TestWithoutAWorkerTheDirectionIsWhatWasSeenBetweenTwoLooks(t *testing.T) {
	t.Parallel()
	s := newScene(0).flow("mail", "mail.send", 10, 10, 500, time.Hour).flow("mail", "mail.digest", 0, 5, 0, 0)
	s.look.At = noon.Add(30 * time.Minute)
	f, m := statsFlags{since: time.Hour}, memory{}
	see := func() picture {
		m.remember(&f, &s.view)
		return f.draw(s.view)
	}
	check := func(name string, p picture, verdict flow.Verdict, growth, in float64, text string) {
		t.Helper()
		r := p.Total
		if r.Trend.Verdict != verdict || float64(r.Trend.Growth) != growth || float64(r.Trend.In) != in || !r.Trend.Seen {
			t.Errorf("%s: %+v", name, r.Trend)
		}
		if !strings.Contains(p.Findings[0].Text, text) {
			t.Errorf("%s: %s", name, p.Findings[0].Text)
		}
	}
	// The workers' last look was 30 minutes ago, with 500 ready.
	s.level("mail.send").Ready = 800
	check("since the workers' last look", see(), flow.Never, 590.1639344262295, 9.836065573770492, "growth is what was seen in 30m")
	// jobctl's own is newer, but too short ago at first.
	s.look.At = s.look.At.Add(10 * time.Second)
	s.level("mail.send").Ready = 810
	if p := see(); p.Total.Trend.To.Sub(*p.Total.Trend.From) < 30*time.Minute {
		t.Errorf("%+v", p.Total.Trend)
	}
	s.look.At = s.look.At.Add(50 * time.Second)
	s.level("mail.send").Ready = 860
	check("since its own first look", see(), flow.Never, 3600, 60, "growth is what was seen in 1m0s")
	// Nobody has ever looked.
	s.looks, s.samples, m = nil, nil, memory{}
	p := see()
	if tr := p.Total.Trend; tr.Verdict != flow.Never || tr.From != nil || !math.IsNaN(float64(tr.Growth)) {
		t.Errorf("%+v", tr)
	}
	if text := render(onTerminal(0), p); !strings.Contains(text, "860 ready: never drains") || !strings.Contains(text, "?") {
		t.Error(text)
	}
	// There are workers again, which have not counted for long: only growth is known.
	s.crews = newScene(1).crews
	s.look.At = s.look.At.Add(time.Minute)
	s.level("mail.send").Ready = 870
	if tr := see().Total.Trend; tr.Verdict != flow.Unknown || tr.Workers != 1 || tr.Growth != 600 || !math.IsNaN(float64(tr.Out)) {
		t.Errorf("%+v", tr)
	}
}

func TestTheHeadSaysWhetherItIsAnEstimate(t *testing.T) {
	t.Parallel()
	s := sick()
	s.look.Share = 0.03
	if text := render(onTerminal(120), s.draw(statsFlags{})); !strings.Contains(text, "estimated from 3% of the table") {
		t.Error(text)
	}
	if text := render(onTerminal(120), sick().draw(statsFlags{})); strings.Contains(text, "estimated") {
		t.Error(text)
	}
}

func TestTheHeadSaysHowBusyWorkersAre(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		slots, busy, untold int
		want                string
	}{
		{300, 120, 0, "3 workers, 120 of 300 slots busy; "}, {200, 7, 1, "3 workers, 7 of 200 slots busy; "}, {0, 0, 3, "3 workers; "},
	} {
		s := sick()
		s.crews[0].Slots, s.crews[0].Running, s.crews[0].Untold = c.slots, c.busy, c.untold
		if text := render(onTerminal(200, "NO_COLOR=1"), s.draw(statsFlags{})); !strings.HasPrefix(text, c.want) {
			t.Errorf("want %s: %s", c.want, text)
		}
	}
}

func TestJSONHasTheNumbersAsTheyAre(t *testing.T) {
	t.Parallel()
	s := sick()
	s.looks = append(s.looks[:30], s.looks[32:]...) // nobody looked for two minutes
	for i := range s.samples {
		if m := noon.Sub(s.samples[i].Minute) / time.Minute; m == 30 || m == 29 {
			s.samples[i].Level = nil
		}
	}
	line := onTerminal(80).pictureLine(new(s.draw(statsFlags{})), nil)
	if strings.Contains(line, "\n") {
		t.Error("more than a line")
	}
	var p struct {
		Rows []struct {
			Queue, Kind string
			Ready       int64
			Oldest      float64 `json:"oldest_s"`
			During      struct{ Reclaimed int64 }
			Trend       struct {
				Verdict string
				Drain   *float64 `json:"drains_in_s"`
			}
			Series struct{ Ready []*float64 }
		}
		Sizes []struct {
			Table, Index string
			Rows         *int64
		}
	}
	if err := json.Unmarshal([]byte(line), &p); err != nil {
		t.Fatal(err)
	}
	for _, r := range p.Rows {
		if r.Kind == "mail.send" {
			if r.Ready != 18_300 || r.Oldest != 4320 || r.Trend.Verdict != string(flow.Never) || r.Trend.Drain != nil || len(r.Series.Ready) != 62 || *r.Series.Ready[61] != 18_300 {
				t.Errorf("%+v", r)
			}
			if r.Series.Ready[30] != nil || r.Series.Ready[29] == nil {
				t.Error("what nobody saw is not null")
			}
		}
		if r.Kind == "mail.digest" && r.During.Reclaimed != 33 {
			t.Errorf("%+v", r)
		}
	}
	if len(p.Sizes) != 7 || p.Sizes[3].Index != "jobs_claim" || p.Sizes[3].Rows != nil || *p.Sizes[2].Rows != 18_900 {
		t.Errorf("%+v", p.Sizes)
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal([]byte(got), want) {
		t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
	}
}
