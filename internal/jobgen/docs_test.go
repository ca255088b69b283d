package jobgen

import (
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// marked is a comment in a page, and the code below it if there is some: file (of the reader's module, in Go), emitted
// (lines of what jobgen writes for it), help (a topic) and scaffolded (a file). -update formats the first and writes the
// last two.
var marked = regexp.MustCompile("(?s)<!-- (file|emitted|help|scaffolded): (\\S+) -->\n(?:```\\w*\n(.*?)```\n)?")

// The example of each page compiles and is formatted, and what the page says is emitted for it is.
func TestThePagesAreTrue(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/jobgen/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal("no pages", err)
	}
	for _, page := range pages {
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			text := string(data)
			dir := modulePage(t, text)
			got := marked.ReplaceAllStringFunc(text, func(block string) string {
				m := marked.FindStringSubmatch(block)
				kind, name, code := m[1], m[2], m[3]
				content := func() string {
					b, err := os.ReadFile(filepath.Join(dir, name))
					if err != nil {
						t.Error(err)
					}
					return string(b)
				}
				switch kind {
				case "file":
					formatted, err := format.Source([]byte(code))
					if err != nil {
						t.Errorf("%s: %v", name, err)
					}
					return fmt.Sprintf("<!-- file: %s -->\n```go\n%s```\n", name, formatted)
				case "emitted":
					for line := range strings.Lines(code) {
						if !strings.Contains(content(), line) {
							t.Errorf("%s does not have the line %s", name, line)
						}
					}
				case "help":
					var help strings.Builder
					if !Help(&help, name) {
						t.Errorf("no help on %s", name)
					}
					return fmt.Sprintf("<!-- help: %s -->\n```text\n%s```\n", name, strings.TrimPrefix(help.String(), "\n"))
				case "scaffolded":
					return fmt.Sprintf("<!-- scaffolded: %s -->\n```go\n%s```\n", name, content())
				}
				return block
			})
			if got == text {
				return
			}
			if !*update {
				t.Errorf("the page is not what -update makes of it:\n%s", got)
			} else if err := os.WriteFile(page, []byte(got), 0o666); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// modulePage writes the page's files into a module, generates and vets it.
func modulePage(t *testing.T, text string) (dir string) {
	var a archive
	command := []string{"./..."}
	for _, m := range marked.FindAllStringSubmatch(text, -1) {
		switch m[1] {
		case "file":
			a.files = append(a.files, archiveFile{m[2], m[3]})
		case "scaffolded":
			command = []string{"scaffold", "./..."}
		}
	}
	if len(a.files) == 0 {
		return ""
	}
	env := sharedEnv(t)
	dir = t.TempDir()
	a.files = append(a.files, archiveFile{"go.sum", string(env.goSum)})
	a.extract(t, dir, env.goMod)
	for _, args := range [][]string{append([]string{env.jobgen}, command...), {"go", "vet", "./..."}} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir, cmd.Env = dir, env.vars
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	return dir
}
