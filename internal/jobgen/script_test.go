package jobgen

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Each archive in testdata/script is one behaviour: a module and the commands to run in it, in the language of the go
// command's own script tests, as far as needed here. See script.commands.
func TestScripts(t *testing.T) {
	t.Parallel()
	scripts, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, path := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			env := sharedEnv(t)
			a := readArchive(t, path)
			s := &script{t: t, dir: t.TempDir(), env: env.vars, jobgen: env.jobgen}
			a.extract(t, s.dir, env.goMod)
			if err := os.WriteFile(filepath.Join(s.dir, "go.sum"), env.goSum, 0o666); err != nil {
				t.Fatal(err)
			}
			s.run(a.text)
		})
	}
}

// environment is what all scripts share: the command, built once, and a go.mod that is complete, so that no script has
// to work out a module graph.
type environment struct {
	goMod  string
	goSum  []byte
	vars   []string
	jobgen string // the binary
}

var sharedEnvOnce = sync.OnceValues(func() (*environment, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	bin, err := os.MkdirTemp("", "jobgen-test-")
	if err != nil {
		return nil, err
	}
	removeAfterTests = bin
	vars := append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
	run := func(dir string, args ...string) error {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir, cmd.Env = dir, vars
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", args, err, out)
		}
		return nil
	}
	jobgen := filepath.Join(bin, "jobgen")
	if err := run(root, "go", "build", "-o", jobgen, "./cmd/jobgen"); err != nil {
		return nil, err
	}
	// The go command completes go.mod from what this package imports.
	app := filepath.Join(bin, "app")
	goSum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		return nil, err
	}
	for name, body := range map[string]string{
		"go.mod": "module example.com/app\n\ngo 1.26\n\nrequire github.com/jobgen-go/jobgen v0.0.0\n\nreplace github.com/jobgen-go/jobgen => " + root + "\n",
		"go.sum": string(goSum),
		"a.go":   "package app\n\nimport (\n\t_ \"github.com/google/uuid\"\n\t_ \"" + pgxPath + "\"\n\t_ \"" + jobsPath + "\"\n\t_ \"" + jobtestPath + "\"\n\t_ \"" + workerPath + "\"\n)\n",
	} {
		if err := errors.Join(os.MkdirAll(app, 0o777), os.WriteFile(filepath.Join(app, name), []byte(body), 0o666)); err != nil {
			return nil, err
		}
	}
	if err := run(app, "go", "build", "./..."); err != nil { // also warms the build cache
		return nil, err
	}
	goMod, err := os.ReadFile(filepath.Join(app, "go.mod"))
	if err != nil {
		return nil, err
	}
	if goSum, err = os.ReadFile(filepath.Join(app, "go.sum")); err != nil {
		return nil, err
	}
	return &environment{string(goMod), goSum, vars, jobgen}, nil
})

var removeAfterTests string

func TestMain(m *testing.M) {
	code := m.Run()
	if removeAfterTests != "" {
		_ = os.RemoveAll(removeAfterTests)
	}
	os.Exit(code)
}

func sharedEnv(t testing.TB) *environment {
	t.Helper()
	env, err := sharedEnvOnce()
	if err != nil {
		t.Fatal(err)
	}
	return env
}

// script runs the lines of an archive's text. A line is a command with its words, perhaps in single quotes; "!" before it means
// that it must fail; "#" starts a comment.
type script struct {
	t              *testing.T
	dir            string
	env            []string
	jobgen         string
	stdout, stderr string // of the last jobgen or go command
	status         int
}

func (s *script) run(text string) {
	for i, line := range strings.Split(text, "\n") {
		words := scriptWords(line)
		if len(words) == 0 {
			continue
		}
		wantFailure := words[0] == "!"
		if wantFailure {
			words = words[1:]
		}
		err := s.command(words[0], words[1:])
		if (err != nil) != wantFailure {
			s.t.Fatalf("line %d: %s: %v\nstdout:\n%s\nstderr:\n%s", i+1, line, err, s.stdout, s.stderr)
		}
	}
}

func scriptWords(line string) (words []string) {
	line, _, _ = strings.Cut(line, "#")
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			words = append(words, part)
		} else {
			words = append(words, strings.Fields(part)...)
		}
	}
	return words
}

// command is the language: what each command asserts is its error.
func (s *script) command(name string, args []string) error {
	path := func(i int) string { return filepath.Join(s.dir, args[i]) }
	content := func(i int) string { b, _ := os.ReadFile(path(i)); return string(b) }
	switch name {
	case "jobgen", "go": // run it
		return s.exec(name, args...)
	case "status": // status N: the exit status of the last run
		if want, _ := strconv.Atoi(args[0]); want != s.status {
			return fmt.Errorf("exit status %d, want %d", s.status, want)
		}
	case "stdout": // stdout REGEXP: the last run printed it
		return matches(s.stdout, args[0])
	case "stderr":
		return matches(s.stderr, args[0])
	case "silent": // the last run printed nothing at all
		if s.stdout+s.stderr != "" {
			return errors.New("it is not silent")
		}
	case "grep": // grep REGEXP FILE
		return matches(content(1), args[0])
	case "cmp": // cmp FILE FILE
		if content(0) != content(1) {
			return fmt.Errorf("they differ:\n%s", content(0))
		}
	case "exists":
		for i := range args {
			if _, err := os.Lstat(path(i)); err != nil {
				return err
			}
		}
	case "cp":
		return os.WriteFile(path(1), []byte(content(0)), 0o666)
	case "mv":
		return os.Rename(path(0), path(1))
	case "rm":
		return os.RemoveAll(path(0))
	case "mkdir":
		return os.MkdirAll(path(0), 0o777)
	case "symlink": // symlink NEW TARGET
		return os.Symlink(args[1], path(0))
	case "chmod": // chmod MODE FILE
		mode, err := strconv.ParseUint(args[0], 8, 32)
		return errors.Join(err, os.Chmod(path(1), os.FileMode(mode)))
	case "mode": // mode MODE FILE: what chmod has set
		info, err := os.Stat(path(1))
		if err == nil && fmt.Sprintf("%o", info.Mode().Perm()) != args[0] {
			err = fmt.Errorf("it is %o", info.Mode().Perm())
		}
		return err
	case "replace": // replace OLD NEW FILE
		if !strings.Contains(content(2), args[0]) {
			return errors.New("nothing to replace")
		}
		return os.WriteFile(path(2), []byte(strings.ReplaceAll(content(2), args[0], args[1])), 0o666)
	case "paste": // paste FILE TEXT: write TEXT and, below it, what the last run offered to paste
		body := args[1] + "\n\n"
		for line := range strings.Lines(s.stderr) {
			if code, ok := strings.CutPrefix(line, "\t"); ok {
				body += code
			}
		}
		return os.WriteFile(path(0), []byte(body), 0o666)
	case "cd":
		s.dir = path(0)
	case "env": // env NAME=VALUE
		s.env = append(slices.Clone(s.env), args[0])
	case "age": // age FILE: as if last written long ago
		return os.Chtimes(path(0), longAgo, longAgo)
	case "aged": // not written since
		info, err := os.Stat(path(0))
		if err == nil && !info.ModTime().Equal(longAgo) {
			err = errors.New("it was written")
		}
		return err
	case "lonely": // no temporary file is left in the directory
		entries, err := os.ReadDir(path(0))
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") {
				err = errors.Join(err, fmt.Errorf("%s is left", e.Name()))
			}
		}
		return err
	default:
		s.t.Fatalf("no command %q", name)
	}
	return nil
}

var longAgo = time.Unix(1_000_000_000, 0)

func matches(text, pattern string) error {
	if !regexp.MustCompile("(?m)" + pattern).MatchString(text) {
		return fmt.Errorf("no match for %q", pattern)
	}
	return nil
}

func (s *script) exec(name string, args ...string) error {
	if name == "jobgen" {
		name = s.jobgen
	}
	cmd := exec.CommandContext(s.t.Context(), name, args...)
	cmd.Dir, cmd.Env = s.dir, s.env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	s.stdout, s.stderr, s.status = stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
	return err
}
