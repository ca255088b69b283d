// Package docs checks the pages.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jobgen-go/jobgen/jobtest"
)

// example is Go code in a page, with the file that it was taken from: `<!-- example: worker/example_test.go -->`.
var example = regexp.MustCompile("(?s)(?:<!-- example: (\\S+) -->\n)?```go\n(.*?)```\n")

// The Go code of the pages about the runtime and about operating stands in a file that is compiled, and as a rule run, by a test.
func TestTheCodeOfThePagesIsCompiled(t *testing.T) {
	t.Parallel()
	var pages []string
	for _, of := range []string{"runtime", "operating"} {
		found, err := filepath.Glob(of + "/*.md")
		if err != nil || len(found) == 0 {
			t.Fatal("no pages", err)
		}
		pages = append(pages, found...)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range example.FindAllStringSubmatch(string(text), -1) {
			if m[1] == "" {
				t.Errorf("%s: say where this code stands, with a line <!-- example: FILE --> above it:\n%s", page, m[2])
				continue
			}
			source, err := os.ReadFile(filepath.Join("..", m[1]))
			if err != nil {
				t.Errorf("%s: %v", page, err)
			} else if !strings.Contains(unindented(string(source)), unindented(m[2])) {
				t.Errorf("%s: this code does not stand in %s:\n%s", page, m[1], m[2])
			}
		}
	}
}

// The statements of the pages about the tables work on them.
func TestTheSQLOfThePagesAboutTheTablesRuns(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"runtime/tables.md", "operating/retention.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		pool := jobtest.DB(t)
		blocks := regexp.MustCompile("(?s)```sql\n(.*?)```\n").FindAllStringSubmatch(string(text), -1)
		if len(blocks) == 0 {
			t.Errorf("%s: there is none", page)
		}
		for _, block := range blocks {
			for statement := range strings.SplitSeq(strings.TrimSpace(block[1]), ";\n") {
				if _, err := pool.Exec(t.Context(), statement); err != nil {
					t.Errorf("%s: %v: %s", page, err, statement)
				}
			}
		}
	}
}

// unindented is text without the white space at the beginning of its lines.
func unindented(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimSpace(l)
	}
	return strings.Join(lines, "\n")
}
