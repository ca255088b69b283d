package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jobgen-go/jobgen/internal/jobctl"
)

var (
	spans    = regexp.MustCompile("(?s)`(jobctl [^`]+)`")
	blocks   = regexp.MustCompile("(?s)```[a-z]*\n(.*?)```")
	commands = regexp.MustCompile(`(?:^|\s|\()(?:\$ )?(?:go tool |go run \./cmd/)?(jobctl [^|>;&#)]*)`)
	word     = regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)
)

// Each jobctl command line of a page, of the manuals and of the comments in alert rules is one that jobctl has.
func TestEachCommandLineOfJobctlOnAPageIsOne(t *testing.T) {
	t.Parallel()
	n := 0
	check := func(page, line string) {
		n++
		var args []string
		for _, w := range word.FindAllString(strings.ReplaceAll(line, "\\\n", " "), -1)[1:] {
			args = append(args, strings.Trim(w, `'".,:`))
		}
		if err := jobctl.Check(args); err != nil && !strings.Contains(err.Error(), "flag needs an argument") { // a flag is named
			t.Errorf("%s: %q: %v", page, line, err)
		}
	}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules" || d.Name() == "testdata"):
			return filepath.SkipDir
		case filepath.Ext(path) != ".md" || d.Name() == "decisions.md" || d.Name() == "CHANGELOG.md":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, b := range blocks.FindAllStringSubmatch(string(text), -1) {
			for _, line := range strings.Split(strings.ReplaceAll(b[1], "\\\n", " "), "\n") {
				if m := commands.FindStringSubmatch(line); m != nil && !strings.HasPrefix(strings.TrimSpace(line), "#") && !strings.HasPrefix(line, "jobctl:") {
					check(path, m[1])
				}
			}
		}
		for _, m := range spans.FindAllStringSubmatch(blocks.ReplaceAllString(string(text), ""), -1) {
			line, _, _ := strings.Cut(strings.Join(strings.Fields(m[1]), " "), " | ")
			check(path, line)
		}
		return nil
	})
	if err != nil || n < 20 {
		t.Error(n, err)
	}
	for _, wrong := range []string{"jobctl nonsense", "jobctl jobs nonsense", "jobctl migrate up --nonsense", "jobctl migrate sql --to x"} {
		if jobctl.Check(strings.Fields(wrong)[1:]) == nil {
			t.Errorf("%q is taken for one", wrong)
		}
	}
}
