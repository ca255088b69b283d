package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jobgen-go/jobgen/internal/pgserver"
)

// The entrants of a test are processes of the test's own program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == childArg {
		os.Exit(child())
	}
	os.Exit(m.Run())
}

// measured runs the program on a server that keeps its data in memory, and gives its options and what it printed.
func measured(t *testing.T, args ...string) (options, string) {
	t.Helper()
	o, err := parse(append(args, "-peers", ""))
	if err != nil {
		t.Fatal(err)
	}
	o.rest, o.volatile = 0, true
	var out bytes.Buffer
	err = run(t.Context(), o, &out)
	if errors.Is(err, pgserver.ErrUnavailable) {
		t.Skip(err) // it measures on a server of its own, and there is none on this machine
	}
	if err != nil {
		t.Fatal(err)
	}
	return o, out.String()
}

// A small run with everything in it: each entrant is checked by the run itself, each figure is there, each ratio is
// written, and nothing is wider than a terminal.
func TestRunMeasuresVerifiesAndWrites(t *testing.T) {
	folder := t.TempDir()
	o, printed := measured(t, "-jobs", "200", "-rounds", "1", "-only", "peers,features,enqueue,processes,full", "-out", folder, "-profile", filepath.Join(folder, "profiles"))
	fits(t, printed)
	var written struct {
		Ratios   map[string]spread
		Chapters map[string]struct {
			Figures map[string]map[string]map[string]spread
			Curves  map[string]map[string][]float64 `json:"latency_ms_quantiles"`
		}
	}
	b, err := os.ReadFile(filepath.Join(folder, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &written); err != nil {
		t.Fatal(err)
	}
	markdown, err := os.ReadFile(filepath.Join(folder, "RESULTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range ratios {
		if r.metric.key == cpu.key {
			continue // 200 jobs can take less than the server's clock ticks
		}
		if terms := slices.Concat(r.ours, r.other); slices.ContainsFunc(terms, func(t term) bool { return lacks(o, t) }) {
			continue
		}
		got, ok := written.Ratios[r.key]
		if !ok && runtime.GOOS != "linux" {
			continue
		}
		if (got.Median <= 0 && !early(r.metric)) || got.Min > got.Median || got.Median > got.Max {
			t.Errorf("%s: %v", r.key, got)
		}
		if !strings.Contains(printed, r.key) || !bytes.Contains(markdown, []byte("`"+r.key+"`")) {
			t.Errorf("%s is not reported", r.key)
		}
	}
	for _, c := range contests {
		if !o.runs(c) {
			continue
		}
		for _, e := range c.takingPart(o) {
			ms := []metric{rate, wal, commits}
			if c.metrics != nil {
				ms = c.metrics
			}
			for _, m := range ms {
				if got := written.Chapters[c.group].Figures[c.name][e.name][m.key]; got.Min <= 0 && !early(m) || got == (spread{}) {
					t.Errorf("%s, %s: %s is %v", c.name, e.name, m.key, got)
				}
			}
			if info, err := os.Stat(profileFile(o.profile, c.name, e.name)); err != nil || info.Size() == 0 {
				t.Errorf("%s, %s: no profile: %v", c.name, e.name, err)
			}
		}
	}
	for e, curve := range written.Chapters["peers"].Curves["latency"] {
		p50 := written.Chapters["peers"].Figures["latency"][e][p50.key].Median
		if len(curve) != curvePoints || !slices.IsSorted(curve) || curve[50] != p50 {
			t.Errorf("%s: the distribution of latencies, whose median is %v, is %v", e, p50, curve)
		}
	}
	if n := len(written.Chapters["peers"].Curves["latency"]); n < 5 || !bytes.Contains(markdown, []byte("plots/latency.svg")) {
		t.Errorf("%d distributions of latencies", n)
	}
	host, _ := os.Hostname()
	for _, secret := range []string{host, folder, os.TempDir() + "/"} {
		if secret != "" && bytes.Contains(markdown, []byte(secret)) {
			t.Errorf("RESULTS.md names %s", secret)
		}
	}
}

// early tells whether a figure can be below zero: a handler that polls may start before the enqueue has returned.
func early(m metric) bool { return m.key == p50.key || m.key == p99.key }

// lacks tells whether an entrant cannot take part here.
func lacks(o options, t term) bool {
	c, e, _ := find(t.contest, t.entrant)
	return !o.runs(c) || !slices.ContainsFunc(c.takingPart(o), func(one entrant) bool { return one.name == e.name })
}

func TestChaptersOfOtherGroupsAreKept(t *testing.T) {
	folder := t.TempDir()
	run := func(contest, entrant string, rate float64) *results {
		return &results{Jobs: 100, Rounds: 1, samples: samples{{contest, entrant}: {{jobs: 100, seconds: 100 / rate}}}}
	}
	for _, r := range []*results{run("drain", "jobgen", 10), run(featureDrain, "plain", 20), run(featureDrain, "plain", 40)} {
		if err := r.write(folder); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(filepath.Join(folder, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got record
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	for t1, want := range map[term]float64{{"drain", "jobgen"}: 10, {featureDrain, "plain"}: 40} {
		c, _, _ := find(t1.contest, t1.entrant)
		if s := got.Chapters[c.group].figure(t1, rate); s.Median != want {
			t.Errorf("%v: %v instead of %v", t1, s.Median, want)
		}
	}
	markdown, err := os.ReadFile(filepath.Join(folder, "RESULTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups[:2] {
		if !bytes.Contains(markdown, []byte("## "+g.title+"\n")) {
			t.Errorf("RESULTS.md has no chapter %s", g.title)
		}
	}
}

func TestShortPrintsOnlyRatiosAndWritesNothing(t *testing.T) {
	folder := t.TempDir()
	t.Chdir(folder)
	_, printed := measured(t, "-short", "-jobs", "200", "-only", "enqueuemany")
	if !strings.Contains(printed, "\nenqueuemany/insert ") || !strings.Contains(printed, "target ≥ 3 of River") || strings.Contains(printed, "min–max") {
		t.Errorf("printed:\n%s", printed)
	}
	if files, _ := os.ReadDir(folder); len(files) > 0 {
		t.Errorf("wrote %v", files)
	}
}

func TestRewriteWritesFromTheResultsAndMeasuresNothing(t *testing.T) {
	folder := t.TempDir()
	first := &results{Jobs: 100, Rounds: 1, samples: samples{{"drain", "jobgen"}: {{jobs: 100, seconds: 1}}}}
	if err := first.write(folder); err != nil {
		t.Fatal(err)
	}
	markdown := filepath.Join(folder, "RESULTS.md")
	was, _ := os.ReadFile(markdown)
	if err := os.Remove(markdown); err != nil {
		t.Fatal(err)
	}
	o, err := parse([]string{"-rewrite", "-out", folder})
	if err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), o, io.Discard); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(markdown); len(was) == 0 || !bytes.Equal(got, was) {
		t.Errorf("RESULTS.md is now\n%s\nand was\n%s", got, was)
	}
}

// A run is one of a commit; results of other chapters, which runs leave behind, do not make it another.
func TestRunsKnowTheirCommit(t *testing.T) {
	root := t.TempDir()
	git := func(args ...string) {
		cmd := exec.Command("git", append([]string{"-C", root, "-c", "user.name=x", "-c", "user.email=x@example.com"}, args...)...)
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Skipf("git: %v: %s", err, said) // without git, results name no commit
		}
	}
	write := func(name string) {
		file := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(t.Name()+name), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("bench/main.go")
	t.Chdir(filepath.Join(root, "bench"))
	if got := checkedOut(t.Context()); got != "" {
		t.Errorf("outside of a checkout: %q", got)
	}
	git("init", "-q")
	git("add", "-A")
	git("commit", "-q", "-m", "first")
	write("README.md")
	write("bench/RESULTS.md")
	write("bench/plots/hold.svg")
	if got := checkedOut(t.Context()); !regexp.MustCompile("^[0-9a-f]{10}$").MatchString(got) {
		t.Errorf("nothing but results has changed: %q", got)
	}
	write("worker/claim.go")
	if got := checkedOut(t.Context()); !strings.HasSuffix(got, " and changes") {
		t.Errorf("the worker has changed: %q", got)
	}
}

// What continuous integration runs: the ratios that targets are about, on one screen.
func TestShortIsAboutTargets(t *testing.T) {
	o, printed := measured(t, "-short", "-jobs", "200")
	lines := strings.Split(strings.TrimSpace(printed), "\n")
	if len(lines) > 25 {
		t.Errorf("%d lines:\n%s", len(lines), printed)
	}
	for _, line := range lines {
		if utf8.RuneCountInString(line) > width {
			t.Errorf("too wide: %s", line)
		}
	}
	for _, r := range ratios {
		if r.metric.key == cpu.key {
			continue // 200 jobs can take less than the server's clock ticks
		}
		_, targeted := targetOf(r.key)
		ran := !slices.ContainsFunc(slices.Concat(r.ours, r.other), func(t term) bool { return lacks(o, t) })
		if said := strings.Contains(printed, "\n"+r.key+" "); said != (targeted && ran) {
			t.Errorf("%s: printed %t", r.key, said)
		}
	}
}

// Nothing can be said of their figures when they are this short.
func TestLongPartsWork(t *testing.T) {
	o, printed := measured(t, "-rounds", "1", "-jobs", "100", "-out", t.TempDir(), "-only", "idle,hold,spiral,memory,full-10m,churn", "-for", "1s")
	fits(t, printed)
	b, err := os.ReadFile(filepath.Join(o.out, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var written record
	if err := json.Unmarshal(b, &written); err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		contest string
		series  []string
	}{{"hold", []string{rate.key}}, {"spiral", []string{"backlog", "dead_rows", claim50.key, claim99.key}}} {
		c, _, _ := find(one.contest, "jobgen")
		for _, e := range c.entrants {
			for _, name := range one.series {
				if s := written.Chapters[c.group].Series[c.name][e.name][name]; len(s.Values) == 0 || s.Every <= 0 {
					t.Errorf("%s, %s: %s over time is %v", c.name, e.name, name, s)
				}
			}
		}
	}
}

// fits checks that nothing is wider than a terminal.
func fits(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

func TestRollNoticesWhatRunsTwiceOrNever(t *testing.T) {
	r := newRoll(2)
	r.call(0)
	r.call(0)
	select {
	case <-r.done:
		t.Error("done, but job 1 has not run")
	default:
	}
	if r.verify() == nil {
		t.Error("job 0 ran twice and nobody noticed")
	}
	r = newRoll(2)
	r.call(1)
	r.call(0)
	<-r.done
	if err := r.verify(); err != nil {
		t.Error(err)
	}
	r.call(2)
	if r.verify() == nil {
		t.Error("job 2 does not exist and nobody noticed")
	}
}

func TestPartialRunsDoNotOverwriteResults(t *testing.T) {
	for args, want := range map[string]string{"": ".", "-only drain": "", "-only peers": ".", "-only processes,idle": ".", "-only peers,drain": "", "-short": "", "-only drain -out x": "x", "-short -out x": "", "-only peers -entrants jobgen": "", "-only peers -entrants jobgen -out x": "x"} {
		o, err := parse(strings.Fields(args))
		if err != nil || o.out != want {
			t.Errorf("%q: out is %q, want %q; %v", args, o.out, want, err)
		}
	}
}

func TestBehindNamesWhoIsBetterAndByHowMuch(t *testing.T) {
	s := func(seconds, wal float64) []sample {
		return []sample{{jobs: 100, seconds: seconds, wal: wal, server: math.NaN()}}
	}
	r := results{samples: samples{
		{"enqueuemany", "jobgen"}: s(2, 100), {"enqueuemany", "sql"}: s(1, 200), {"enqueuemany", "copy"}: s(1.99, 99), {"enqueuemany", "river"}: s(4, 50),
	}}
	got := strings.Join(r.chapters()["peers"].behind(), "\n")
	want := "Better than jobgen in enqueuemany: bare INSERT: jobs/s (2.00×); River: WAL B/job (2.00×)."
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestNumbers(t *testing.T) {
	for got, want := range map[string]string{
		count(0): "0", count(999): "999", count(1000): "1,000", count(1234567.8): "1,234,568", count(-1234): "-1,234", count(math.NaN()): unknown,
		number(12.34): "12.3", number(123.4): "123", brief(12_345): "12.3k", brief(123_456): "123k", brief(999): "999",
		wrap("a bb ccc", 4): "a bb\nccc",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
