package jobgen_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/jobgen-go/jobgen/jobtest"
)

var update = flag.Bool("update", false, "write testdata/history/VERDICTS.md")

// TestHistory follows an application through the changes of a year: what jobgen says of each is what happens on Postgres.
//
// Each archive in testdata/history is one change: files to write, and above them
//
//	verdict: safe|staged|breaking      what jobgen must say,
//	rule: RULE SUBJECT                 and by which rules (safe changes are not reported)
//	then: accepted|forgotten           a breaking change that is made nevertheless; without it, it is taken back
//	branch: NAME                       the commit goes to that branch, which begins here if it is new
//	merge: NAME                        first that branch is merged, with conflicts in the lock
//	delete: FILE
//	old: STEP …                        the programs that stored the old rows, if not only the one before
//	serves: QUEUE …                    the queues that workers serve from now on
//
// The changes are made in a git repository. Each of them, those that are refused included, becomes a program. Then, for each
// change, the program before it stores its samples and the one after it works them, and the other way round. What
// came of it is in VERDICTS.md. Whatever is there, it must agree with the class of the change.
func TestHistory(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	paths, err := filepath.Glob("testdata/history/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatal(len(paths), err)
	}
	for _, path := range paths {
		h.change(readChange(t, path))
	}
	program := h.build()
	var all []*trial
	for _, c := range h.changes {
		for _, old := range c.olds {
			all = append(all, &trial{change: c, old: h.named(old), program: program})
		}
	}
	t.Run("rows", func(t *testing.T) {
		for _, tr := range all {
			t.Run(tr.old.name+"→"+tr.name, func(t *testing.T) {
				t.Parallel()
				tr.run(t)
			})
		}
	})
	if !t.Failed() {
		checkVerdicts(t, h, all)
	}
}

// change is one archive, and what jobgen said of it.
type change struct {
	name, title         string
	verdict             string // as claimed
	rules               []string
	then, branch, merge string
	deleted             []string
	olds                []string
	serves              string
	files               []txtar.File
}

func readChange(t *testing.T, path string) *change {
	t.Helper()
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c := &change{name: strings.TrimSuffix(filepath.Base(path), ".txtar"), files: a.Files}
	title, directives, _ := strings.Cut(string(a.Comment), "\n\n")
	c.title = title
	for line := range strings.Lines(directives) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch word {
		case "":
		case "verdict":
			c.verdict = rest
		case "rule":
			c.rules = append(c.rules, rest)
		case "then":
			c.then = rest
		case "branch":
			c.branch = rest
		case "merge":
			c.merge = rest
		case "delete":
			c.deleted = strings.Fields(rest)
		case "old":
			c.olds = strings.Fields(rest)
		case "serves":
			c.serves = strings.ReplaceAll(rest, " ", ",")
		default:
			t.Fatalf("%s: unknown directive %q", path, line)
		}
	}
	slices.Sort(c.rules)
	return c
}

// history is the application's repository.
type history struct {
	t       *testing.T
	dir     string // the repository
	all     string // a module with every version as a package
	jobgen  string
	env     []string
	commits map[string]string // the last change that was committed, by branch
	serves  string
	changes []*change
}

const historyModule = "example.com/history"

func newHistory(t *testing.T) *history {
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	h := &history{t: t, dir: t.TempDir(), all: t.TempDir(), commits: map[string]string{}}
	h.jobgen = filepath.Join(t.TempDir(), "jobgen")
	h.env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off",
		"GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull, "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	output(t, root, nil, "go", "build", "-o", h.jobgen, "./cmd/jobgen")
	goMod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	// This module's own requirements, so that nothing has to be looked up.
	requires := strings.Join(regexp.MustCompile(`(?ms)^require .*?^\)\n|^require [^(\n]*\n`).FindAllString(string(goMod), -1), "\n")
	goMod = fmt.Appendf(nil, "module %s\n\ngo 1.26.0\n\nrequire %s v0.0.0\n\n%s\nreplace %[2]s => %[4]s\n", historyModule, modulePath, requires, root)
	goSum, err := os.ReadFile("go.sum")
	if err != nil {
		t.Fatal(err)
	}
	trial, err := os.ReadFile("testdata/history/trial/trial.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{h.dir, h.all} {
		writeFile(t, filepath.Join(dir, "go.mod"), goMod)
		writeFile(t, filepath.Join(dir, "go.sum"), goSum)
		writeFile(t, filepath.Join(dir, "trial/trial.go"), trial)
	}
	h.git("init", "-q", "-b", "main")
	h.git("add", ".")
	h.git("commit", "-q", "-m", "a module")
	return h
}

func writeFile(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o644)); err != nil {
		t.Fatal(err)
	}
}

func (h *history) git(args ...string) string {
	h.t.Helper()
	return string(output(h.t, h.dir, h.env, "git", args...))
}

func (h *history) named(name string) *change {
	h.t.Helper()
	i := slices.IndexFunc(h.changes, func(c *change) bool { return c.name == name })
	if i < 0 {
		h.t.Fatalf("there is no step %s", name)
	}
	return h.changes[i]
}

// ran is what came of one run of jobgen.
type ran struct {
	code           int
	stdout, stderr string
}

// run runs jobgen in dir.
func (h *history) run(dir string, args ...string) ran {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), h.jobgen, args...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, h.env, &stdout, &stderr
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		h.t.Fatal(err)
	}
	return ran{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func (h *history) succeeds(dir string, args ...string) ran {
	h.t.Helper()
	r := h.run(dir, args...)
	if r.code != 0 {
		h.t.Fatalf("jobgen %s: exit status %d\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r
}

// change makes one change, sees what jobgen says of it, and commits it or takes it back.
func (h *history) change(c *change) {
	t := h.t
	t.Helper()
	branch := cmp.Or(c.branch, "main")
	if h.commits[branch] == "" && branch != "main" {
		h.git("switch", "-q", "-c", branch)
		h.commits[branch] = h.commits["main"]
	} else {
		h.git("switch", "-q", branch)
	}
	if c.merge != "" {
		h.mergeConflicts(c)
	}
	for _, f := range c.files {
		writeFile(t, filepath.Join(h.dir, f.Name), f.Data)
	}
	for _, name := range c.deleted {
		if err := os.Remove(filepath.Join(h.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if c.olds == nil && h.commits[branch] != "" {
		c.olds = []string{h.commits[branch]}
	}
	h.serves = cmp.Or(c.serves, h.serves)
	c.serves = h.serves
	h.changes = append(h.changes, c)

	c.checkReport(t, h.run(h.dir, "check", "-format", "json", "./..."))
	if c.verdict != "breaking" {
		r := h.succeeds(h.dir, "./...")
		if told := strings.Count(r.stderr, "\n"); c.merge == "" && told != len(c.rules) || c.verdict == "staged" && !strings.Contains(r.stderr, "Order of deployment: ") {
			t.Errorf("%s: %s, but jobgen said\n%s", c.name, c.verdict, r.stderr)
		}
		if c.merge != "" && !strings.Contains(r.stderr, "this lock came out of a merge; it is put together from both sides") {
			t.Errorf("%s: jobgen does not tell that it repaired the lock:\n%s", c.name, r.stderr)
		}
		h.keep(h.dir, c)
		h.commit(c, branch)
		return
	}
	before := h.state()
	if r := h.run(h.dir, "./..."); r.code != 1 {
		t.Errorf("%s: a breaking change gave exit status %d", c.name, r.code)
	}
	if h.state() != before {
		t.Errorf("%s: a breaking change was refused, and something written", c.name)
	}
	dir := h.dir
	if c.then == "" { // the program that somebody would build who overrides jobgen
		dir = t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(h.dir)); err != nil {
			t.Fatal(err)
		}
	}
	for _, rule := range c.rules {
		id, subject, _ := strings.Cut(rule, " ")
		if id != "kind-removed" && id != "was-removed" {
			h.succeeds(dir, "accept", id, subject, "-reason", c.title)
			continue
		}
		if r := h.run(dir, "forget", subject); r.code == 0 || !strings.Contains(r.stderr, "-checked") {
			t.Errorf("%s: a kind was forgotten without a check: %+v", c.name, r)
		}
		h.succeeds(dir, "forget", subject, "-checked")
	}
	h.succeeds(dir, "./...")
	h.keep(dir, c)
	if c.then != "" {
		h.commit(c, branch)
		return
	}
	h.git("checkout", "-q", "--", ".")
	h.git("clean", "-q", "-f", "-d")
}

// mergeConflicts merges a branch that has touched the same places of the lock.
func (h *history) mergeConflicts(c *change) {
	cmd := exec.CommandContext(h.t.Context(), "git", "merge", "-q", "--no-commit", c.merge)
	cmd.Dir, cmd.Env = h.dir, h.env
	if out, err := cmd.CombinedOutput(); err == nil {
		h.t.Fatalf("%s: the merge has no conflict\n%s", c.name, out)
	}
	text, err := os.ReadFile(filepath.Join(h.dir, "jobs.lock.json"))
	if err != nil || !bytes.Contains(text, []byte("<<<<<<<")) {
		h.t.Fatalf("%s: the lock has no conflict, %v\n%s", c.name, err, text)
	}
}

// state is everything in the repository's folder.
func (h *history) state() string {
	return h.git("status", "--porcelain") + h.git("diff")
}

// commit commits a change; jobgen has nothing more to say of it.
func (h *history) commit(c *change, branch string) {
	h.t.Helper()
	if r := h.run(h.dir, "check", "./..."); r.code != 0 || r.stdout+r.stderr != "" {
		h.t.Errorf("%s: after jobgen, check says %+v", c.name, r)
	}
	h.git("add", ".")
	h.git("commit", "-q", "-m", c.title)
	h.commits[branch] = c.name
}

// keep copies the version to the others.
func (h *history) keep(dir string, c *change) {
	h.t.Helper()
	if err := os.CopyFS(filepath.Join(h.all, c.pkg()), os.DirFS(filepath.Join(dir, "billing"))); err != nil {
		h.t.Fatal(err)
	}
}

func (c *change) pkg() string { return "v" + strings.ReplaceAll(c.name, "-", "_") }

// checkReport compares what jobgen check says with the claim.
func (c *change) checkReport(t *testing.T, r ran) {
	t.Helper()
	var report struct {
		Findings []struct{ Rule, Class, Subject, Message string }
	}
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("%s: %v\n%+v", c.name, err, r)
	}
	verdict, rules := "safe", []string(nil)
	for _, f := range report.Findings {
		if f.Class == "" {
			continue // files that are not up to date
		}
		if verdict != "breaking" {
			verdict = f.Class
		}
		rules = append(rules, f.Rule+" "+f.Subject)
	}
	slices.Sort(rules)
	if verdict != c.verdict || !slices.Equal(rules, c.rules) {
		t.Fatalf("%s: jobgen says %s %q, the step %s %q", c.name, verdict, rules, c.verdict, c.rules)
	}
	if verdict == "breaking" && r.code != 1 {
		t.Errorf("%s: check of a breaking change has exit status %d", c.name, r.code)
	}
}

// build makes one program of all versions.
func (h *history) build() string {
	var imports, table strings.Builder
	for _, c := range h.changes {
		fmt.Fprintf(&imports, "\t%s %q\n", c.pkg(), historyModule+"/"+c.pkg())
		fmt.Fprintf(&table, "\t\t%q: {%[2]s.Samples, func(r *worker.Registry, s *trial.Jobs) { %[2]s.Register(r, %[2]s.App{Jobs: s}) }},\n", c.name, c.pkg())
	}
	writeFile(h.t, filepath.Join(h.all, "main.go"), fmt.Appendf(nil,
		"package main\n\nimport (\n%s\n\t%q\n\t%q\n)\n\nfunc main() {\n\ttrial.Main(map[string]trial.Version{\n%s\t})\n}\n",
		imports.String(), historyModule+"/trial", modulePath+"/worker", table.String()))
	program := filepath.Join(h.all, "program")
	output(h.t, h.all, h.env, "go", "build", "-o", program, ".")
	return program
}

// trial is one change on Postgres: rows of the program before it for the one after it, and the other way round.
type trial struct {
	*change
	old     *change
	program string

	oldToNew, newToOld outcomes // of payloads
	oldResult          outcomes // of old programs, awaited by the new one
	newResult          outcomes // of new programs, awaited by the old one
	again              outcomes // the new program enqueues the work of the old rows again: once or twice
}

// outcomes are what became of the samples, by name.
type outcomes map[string]string

const equal = "equal"

// line is trial.Line.
type line struct {
	Sample, Kind, Error string
	ID                  int64
	Existing            bool
	Payload, Result     any
}

func (tr *trial) run(t *testing.T) {
	tr.oldToNew, tr.newResult, tr.again = tr.rows(t, tr.old, tr.change)
	tr.newToOld, tr.oldResult, _ = tr.rows(t, tr.change, tr.old)
	tr.checkClass(t)
}

// rows has one version store its samples and another work them. Then the writer awaits the results, and the reader
// enqueues the same work again. What the reader leaves alone must be all the same to the writer afterwards.
func (tr *trial) rows(t *testing.T, writer, reader *change) (payloads, results, again outcomes) {
	db := jobtest.DB(t)
	run := func(c *change, args ...string) []line { t.Helper(); return runVersion(t, tr.program, db, c, args...) }
	written := run(writer, "enqueue")
	seen := map[int64]line{}
	for _, l := range run(reader, "work", reader.serves) {
		seen[l.ID] = l
	}
	payloads, results, again = outcomes{}, outcomes{}, outcomes{}
	left := map[int64]string{}
	await := []string{"await"}
	for _, w := range written {
		saw, worked := seen[w.ID]
		if worked {
			payloads[w.Sample] = compareMeanings(w.Payload, saw.Payload)
			if saw.Result != nil {
				await = append(await, fmt.Sprintf("%s=%d", w.Sample, w.ID))
			}
			continue
		}
		status, attempt, lastError := stored(t, db, w.ID)
		switch {
		case status == "queued" && attempt == 0:
			left[w.ID] = w.Sample
		case attempt > 0 && lastError != "":
			payloads[w.Sample] = "fails: " + shortError(lastError)
		default:
			t.Errorf("%s: the job is %q after %d attempts, and no handler has seen it", w.Sample, status, attempt)
		}
	}
	for _, l := range run(writer, await...) {
		results[l.Sample] = compareMeanings(seen[l.ID].Result, l.Result)
		if l.Error != "" {
			results[l.Sample] = "fails: " + shortError(l.Error)
		}
	}
	if writer == tr.old {
		for _, l := range run(reader, "enqueue") {
			before := slices.ContainsFunc(written, func(w line) bool { return w.Sample == l.Sample })
			if before && keyed(t, db, l) {
				again[l.Sample] = "twice"
				if l.Existing {
					again[l.Sample] = "once"
				}
			}
		}
	}
	if len(left) > 0 {
		after := map[int64]line{}
		for _, l := range run(writer, "work", writer.serves) {
			after[l.ID] = l
		}
		for _, w := range written {
			if left[w.ID] == "" {
				continue
			}
			payloads[w.Sample] = "left alone"
			if l, ok := after[w.ID]; !ok || compareMeanings(w.Payload, l.Payload) != equal {
				t.Errorf("%s: it was left alone by %s, and %s does not work it either", w.Sample, reader.name, writer.name)
			}
		}
	}
	return payloads, results, again
}

// runVersion runs the program as one version and reads what it prints.
func runVersion(t *testing.T, program string, db *pgxpool.Pool, c *change, args ...string) (lines []line) {
	t.Helper()
	env := append(os.Environ(), "DATABASE_URL="+db.Config().ConnString())
	out := json.NewDecoder(bytes.NewReader(output(t, ".", env, program, append([]string{c.name}, args...)...)))
	out.UseNumber()
	for out.More() {
		var l line
		if err := out.Decode(&l); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
	return lines
}

// stored is what is left of a job that no handler has seen.
func stored(t *testing.T, db *pgxpool.Pool, id int64) (status string, attempt int, lastError string) {
	t.Helper()
	err := db.QueryRow(t.Context(), `SELECT status::text, attempt, coalesce(last_error, '') FROM jobgen.jobs WHERE id = $1`, id).Scan(&status, &attempt, &lastError)
	if err != nil {
		t.Fatal(err)
	}
	return status, attempt, lastError
}

// keyed tells whether the job that was enqueued again has a key, or has been answered by one.
func keyed(t *testing.T, db *pgxpool.Pool, l line) (yes bool) {
	t.Helper()
	if l.Existing {
		return true
	}
	err := db.QueryRow(t.Context(), `SELECT key IS NOT NULL FROM jobgen.jobs WHERE id = $1`, l.ID).Scan(&yes)
	if err != nil {
		t.Fatal(err)
	}
	return yes
}

// shortError is the end of a chain of errors.
func shortError(s string) string {
	s = regexp.MustCompile(`^payload does not decode into \S+: `).ReplaceAllString(s, "")
	return regexp.MustCompile(`\bv\d\d_\w+\.`).ReplaceAllString(s, "billing.")
}

// compareMeanings tells what became of what the writer meant. What only the reader knows has its zero value, or it
// would be reported.
func compareMeanings(written, read any) string {
	w, r := map[string]any{}, map[string]any{}
	flatten("", written, w)
	flatten("", read, r)
	all := maps.Clone(w)
	maps.Copy(all, r)
	var diffs []string
	for _, path := range slices.Sorted(maps.Keys(all)) {
		is, inW := w[path]
		became, inR := r[path]
		switch {
		case inW && inR && is == became, !inW && isZero(became), !inR && isZero(is):
		case !inR:
			diffs = append(diffs, "loses "+path)
		case !inW:
			diffs = append(diffs, fmt.Sprintf("%s: nothing → %v", path, show(became)))
		default:
			diffs = append(diffs, fmt.Sprintf("%s: %v → %v", path, show(is), show(became)))
		}
	}
	return cmp.Or(strings.Join(diffs, ", "), equal)
}

func flatten(path string, v any, into map[string]any) {
	switch v := v.(type) {
	case map[string]any:
		for name, f := range v {
			flatten(strings.TrimPrefix(path+"."+name, "."), f, into)
		}
	case []any:
		for i, e := range v {
			flatten(fmt.Sprintf("%s[%d]", path, i), e, into)
		}
	default:
		into[path] = v
	}
}

func isZero(v any) bool {
	return v == nil || v == "" || v == false || v == json.Number("0") || v == "0s"
}

func show(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// checkClass compares what happened with what the class promises.
func (tr *trial) checkClass(t *testing.T) {
	fine := func(o outcomes, allowed func(string) bool) bool {
		for _, what := range o {
			if what != equal && !allowed(what) {
				return false
			}
		}
		return true
	}
	none := func(string) bool { return false }
	lost := regexp.MustCompile(`^loses \S+(, loses \S+)*$`).MatchString
	once := func(what string) bool { return what == "once" }
	readsOld := fine(tr.oldToNew, none) && fine(tr.oldResult, none) && fine(tr.again, once)
	switch tr.verdict {
	case "safe":
		// Old programs pass over new fields, and leave new kinds alone.
		passes := func(what string) bool { return lost(what) || what == "left alone" && tr.addsKind() }
		if !readsOld || !fine(tr.newToOld, passes) || !fine(tr.newResult, lost) {
			t.Errorf("it is called safe, and is not: %s", tr)
		}
	case "staged":
		if tr.removesOptional() { // what it held is passed over; it could always be missing
			readsOld = fine(tr.oldToNew, lost) && fine(tr.oldResult, lost) && fine(tr.again, once)
		} else if fine(tr.newToOld, none) && fine(tr.newResult, none) {
			t.Errorf("it is called staged, and old programs read all that new ones write: %s", tr)
		}
		if !readsOld {
			t.Errorf("it is called staged, and new programs do not read what old ones wrote: %s", tr)
		}
	case "breaking":
		if readsOld {
			t.Errorf("it is called breaking, and nothing breaks: %s", tr)
		}
	}
}

func (tr *trial) addsKind() bool {
	return slices.ContainsFunc(tr.files, func(f txtar.File) bool { return f.Name == "billing/app.go" }) || tr.merge != ""
}

func (tr *trial) removesOptional() bool {
	return slices.ContainsFunc(tr.rules, func(r string) bool { return strings.HasPrefix(r, "optional-field-removed ") })
}

func (tr *trial) String() string {
	return fmt.Sprintf("old rows, new program: %s; new rows, old program: %s; old results, new program: %s; new results, old program: %s; the same work again: %s",
		tr.oldToNew, tr.newToOld, tr.oldResult, tr.newResult, tr.again)
}

// String puts together what is the same for several samples, the usual last.
func (o outcomes) String() string {
	by := map[string][]string{}
	for _, sample := range slices.Sorted(maps.Keys(o)) {
		by[o[sample]] = append(by[o[sample]], sample)
	}
	if len(by) == 1 {
		for what := range by {
			return what
		}
	}
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(by)) {
		if what != equal {
			parts = append(parts, strings.Join(by[what], ", ")+": "+what)
		}
	}
	if len(by[equal]) > 0 {
		parts = append(parts, "else "+equal)
	}
	return cmp.Or(strings.Join(parts, "; "), "—")
}

// checkVerdicts compares the table of all that happened with VERDICTS.md.
func checkVerdicts(t *testing.T, h *history, all []*trial) {
	var b strings.Builder
	b.WriteString("# What jobgen says of each change, and what happens\n\n" +
		"Written by `go test -run TestHistory . -update`. Each row of the table was tried on Postgres: the program before the change stored\n" +
		"jobs that the one after it worked, and the other way round. `R:` is what became of results: those of old workers for new\n" +
		"programs, and those of new workers for old programs. Refused changes were built nevertheless, with accept or forget, to see\n" +
		"what they break. \"left alone\" means that no attempt was spent, and that the other program worked the job afterwards.\n\n" +
		"| change | jobgen says | by rule | old row, new program | new row, old program | same work enqueued again is done |\n|---|---|---|---|---|---|\n")
	for _, c := range h.changes {
		if len(c.olds) == 0 {
			fmt.Fprintf(&b, "| %s %s | %s | | | | |\n", c.name[:2], c.title, c.verdict)
		}
		for _, tr := range all {
			if tr.change != c {
				continue
			}
			title := c.title
			if len(c.olds) > 1 {
				title += " (rows of " + tr.old.name[:2] + ")"
			}
			verdict := c.verdict
			switch {
			case verdict == "breaking" && c.then == "":
				verdict += ", taken back"
			case verdict == "breaking":
				verdict += ", " + c.then
			}
			fmt.Fprintf(&b, "| %s %s | %s | %s | %s | %s | %s |\n", c.name[:2], title, verdict, strings.Join(c.rules, "; "),
				cell(tr.oldToNew, tr.oldResult), cell(tr.newToOld, tr.newResult), tr.again)
		}
	}
	got := b.String()
	t.Log("\n" + got)
	const golden = "testdata/history/VERDICTS.md"
	want, err := os.ReadFile(golden)
	switch {
	case err == nil && string(want) == got:
	case *update:
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not what came out (-update writes it), %v", golden, err)
	}
}

func cell(payloads, results outcomes) string {
	s := payloads.String()
	if r := results.String(); r != "—" && r != equal {
		s += "; R: " + r
	}
	return s
}
