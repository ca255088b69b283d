package jobgen

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden parts of testdata/diag")

const plainGoMod = "module example.com/app\n\ngo 1.26\n"

// Each archive in testdata/diag is a module with mistakes; its file "want" is what is reported, with lines and columns.
func TestEveryMistakeIsReportedAtItsPlaceWithTheFix(t *testing.T) {
	t.Parallel()
	cases, err := filepath.Glob("testdata/diag/*.txtar")
	if err != nil || len(cases) == 0 {
		t.Fatal("no cases", err)
	}
	for _, path := range cases {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			a := readArchive(t, path)
			want := &a.files[len(a.files)-1]
			if want.name != "want" {
				t.Fatal("the last file must be want")
			}
			dir := t.TempDir()
			archive{files: a.files[:len(a.files)-1]}.extract(t, dir, plainGoMod)
			outputs, mistakes, err := Plan(t.Context(), dir, []string{"./..."})
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for _, d := range mistakes {
				got.WriteString(d.Format(dir) + "\n")
			}
			if len(mistakes) == 0 || len(outputs) > 0 {
				t.Errorf("%d mistakes and %d outputs; want some and none", len(mistakes), len(outputs))
			}
			if got.String() == want.body {
				return
			}
			if *update {
				want.body = got.String()
				if err := os.WriteFile(path, a.format(), 0o666); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("got:\n%swant:\n%s", got.String(), want.body)
		})
	}
}
