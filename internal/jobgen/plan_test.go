package jobgen

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// manyKinds is a module of that many packages, some of them with kinds.
func manyKinds(packages, kinds int, pad func(i int) string) archive {
	var a archive
	for i := range packages {
		body := fmt.Sprintf("// Package p%d is one of many.\npackage p%[1]d\n\nimport (\n\t\"context\"\n\t\"net/http\"\n)\n\nfunc F(context.Context, *http.Request) {}\n", i)
		for k := range kinds {
			if k%packages == i {
				body += fmt.Sprintf("\n//job:kind p%d.k%d timeout=1s\n//job:key ID,At\ntype K%[2]d struct {\n\tID string `json:\"id\"`\n\tAt time.Time `json:\"at\"`\n\tRaw json.RawMessage `json:\"raw\"`\n}\n", i, k)
			}
		}
		if strings.Contains(body, "time.Time") {
			body = strings.Replace(body, "\"context\"\n", "\"context\"\n\t\"encoding/json\"\n\t\"time\"\n", 1)
		}
		a.files = append(a.files, archiveFile{fmt.Sprintf("p%d/p.go", i), body})
		for n := range 3 {
			a.files = append(a.files, archiveFile{fmt.Sprintf("p%d/f%d.go", i, n), fmt.Sprintf("package p%d\n\n%s", i, pad(n))})
		}
	}
	return a
}

// The same sources give the same bytes, whatever file a kind is in, and however many processors work on it.
// Not parallel: it sets GOMAXPROCS.
func TestOutputDependsOnNothingButTheSources(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	var types []string
	for k := range 30 {
		types = append(types, fmt.Sprintf("//job:kind p.k%d timeout=1s\n//job:key ID\ntype K%[1]d struct {\n\tID string `json:\"id\"`\n}\n\n", k))
	}
	var want []byte
	for try := range 20 {
		runtime.GOMAXPROCS(1 + try%3)
		rand.Shuffle(len(types), func(i, j int) { types[i], types[j] = types[j], types[i] })
		a := archive{}
		for n := range 5 {
			a.files = append(a.files, archiveFile{fmt.Sprintf("f%d.go", rand.IntN(1000)*5+n), "package p\n\n" + strings.Join(types[n*6:n*6+6], "")})
		}
		dir := t.TempDir()
		a.extract(t, dir, plainGoMod)
		outputs, mistakes, err := Plan(t.Context(), dir, []string{"./..."})
		if err != nil || len(mistakes) > 0 || len(outputs) != 2 { // and the lock
			t.Fatal(outputs, mistakes, err)
		}
		if want == nil {
			want = outputs[0].New
		}
		if !bytes.Equal(outputs[0].New, want) {
			t.Fatalf("try %d differs", try)
		}
	}
}

// The worked example in the command's manual is true.
func TestTheManualShowsWhatIsEmitted(t *testing.T) {
	t.Parallel()
	manual, err := os.ReadFile("../../cmd/jobgen/main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(manual), "this struct in package billing,\n\n")
	source, rest, _ := strings.Cut(rest, "\ngets these declarations:\n")
	emitted, _, found := strings.Cut(rest, "\nAn application enqueues")
	if !found {
		t.Fatal("the manual has no example")
	}
	dir := t.TempDir()
	archive{files: []archiveFile{{"billing.go", "package billing\n\n" + strings.ReplaceAll(source, "\n\t", "\n")[1:]}}}.extract(t, dir, plainGoMod)
	outputs, mistakes, err := Plan(t.Context(), dir, []string{"."})
	if err != nil || len(outputs) != 2 {
		t.Fatal(mistakes, err)
	}
	for line := range strings.Lines(emitted) {
		if line, indented := strings.CutPrefix(strings.TrimRight(line, "\n"), "\t"); indented && !strings.Contains(string(outputs[0].New), line) {
			t.Errorf("the manual shows %q, which is not emitted", line)
		}
	}
}

// A write that fails leaves every file as it was, and no others.
func TestAFailedWriteChangesNothing(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]func(dir string) Output{
		"no directory": func(dir string) Output {
			return Output{Path: filepath.Join(dir, "missing", OutputName), New: []byte("new")}
		},
		"rename fails": func(dir string) Output { // onto a directory that appeared after planning
			return Output{Path: filepath.Join(dir, "removed", OutputName), Old: []byte("x")}
		},
		"somebody was faster": func(dir string) Output { // wrote a file where there was none when we planned
			return Output{Path: filepath.Join(dir, "b/b.go"), New: []byte("new")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			old := filepath.Join(dir, "a", OutputName)
			archive{files: []archiveFile{{"a/" + OutputName, "old"}, {"b/b.go", ""}}}.extract(t, dir, "")
			_, err := Write([]Output{
				{Path: old, Old: []byte("old"), New: []byte("new")},
				{Path: filepath.Join(dir, "b", OutputName), New: []byte("new")},
				last(dir),
			})
			if err == nil {
				t.Fatal("no error")
			}
			if got, _ := os.ReadFile(old); string(got) != "old" {
				t.Errorf("the file that was there holds %q", got)
			}
			for _, d := range []string{"a", "b"} {
				entries, _ := os.ReadDir(filepath.Join(dir, d))
				if len(entries) != 1 {
					t.Errorf("%s holds %v", d, entries)
				}
			}
		})
	}
}

// The figure that matters: a module of 500 packages and 2,000 files, 100 kinds in it, go list included.
func BenchmarkModuleOf500Packages(b *testing.B) {
	dir := b.TempDir()
	pad := strings.Repeat("// A line of a comment, as files have many of them.\n", 100)
	manyKinds(500, 100, func(int) string { return pad }).extract(b, dir, plainGoMod)
	outputs, mistakes, err := Plan(b.Context(), dir, []string{"./..."})
	if err != nil || len(mistakes) > 0 || len(outputs) != 101 {
		b.Fatal(len(outputs), mistakes, err)
	}
	if _, err := Write(outputs); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		outputs, _, err := Plan(b.Context(), dir, []string{"./..."})
		if err != nil {
			b.Fatal(err)
		}
		if changed, err := Write(outputs); err != nil || len(changed) > 0 {
			b.Fatal(len(changed), err)
		}
	}
}
