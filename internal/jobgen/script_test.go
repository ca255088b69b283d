package jobgen

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// Each archive in testdata/script is one behaviour: a module and the commands to run in it, in the language of testscript
// with the commands below.
func TestScripts(t *testing.T) {
	t.Parallel()
	env := sharedEnv(t)
	testscript.Run(t, testscript.Params{
		Dir:                "testdata/script",
		UpdateScripts:      *update,
		RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			e.Vars = append(e.Vars, env.vars...)
			write := func(name, body string) error {
				path := filepath.Join(e.WorkDir, name)
				if _, err := os.Lstat(path); err == nil {
					return nil // the script brings its own
				}
				return os.WriteFile(path, []byte(body), 0o666)
			}
			return errors.Join(write("go.mod", env.goMod), write("go.sum", string(env.goSum)))
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"jobgen":  func(ts *testscript.TestScript, neg bool, args []string) { run(ts, neg, env.jobgen, args) },
			"go":      func(ts *testscript.TestScript, neg bool, args []string) { run(ts, neg, "go", args) },
			"status":  status,
			"silent":  silent,
			"replace": replace,
			"paste":   paste,
			"age":     age,
			"aged":    aged,
			"mode":    mode,
			"lonely":  lonely,
		},
	})
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

// run runs a program as exec does, and remembers its exit status.
func run(ts *testscript.TestScript, neg bool, program string, args []string) {
	code := 0
	if err := ts.Exec(program, args...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	ts.Setenv("status", strconv.Itoa(code))
	if neg != (code != 0) {
		ts.Fatalf("exit status %d", code)
	}
}

// status N: the exit status of the last jobgen or go.
func status(ts *testscript.TestScript, _ bool, args []string) {
	if got := ts.Getenv("status"); got != args[0] {
		ts.Fatalf("exit status %s", got)
	}
}

// silent: the last command printed nothing at all.
func silent(ts *testscript.TestScript, _ bool, _ []string) {
	if text := ts.ReadFile("stdout") + ts.ReadFile("stderr"); text != "" {
		ts.Fatalf("it printed %s", text)
	}
}

// replace OLD NEW FILE.
func replace(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile(args[2])
	if !strings.Contains(text, args[0]) {
		ts.Fatalf("there is no %q in %s", args[0], args[2])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[2]), []byte(strings.ReplaceAll(text, args[0], args[1])), 0o666))
}

// paste FILE TEXT: write TEXT and, below it, what the last command offered to paste.
func paste(ts *testscript.TestScript, _ bool, args []string) {
	body := args[1] + "\n\n"
	for line := range strings.Lines(ts.ReadFile("stderr")) {
		if code, ok := strings.CutPrefix(line, "\t"); ok {
			body += code
		}
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(body), 0o666))
}

var longAgo = time.Unix(1_000_000_000, 0)

// age FILE: as if last written long ago. aged FILE: it was not written since.
func age(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(os.Chtimes(ts.MkAbs(args[0]), longAgo, longAgo))
}

func aged(ts *testscript.TestScript, _ bool, args []string) {
	info, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	if !info.ModTime().Equal(longAgo) {
		ts.Fatalf("it was written")
	}
}

// mode MODE FILE: what chmod has set.
func mode(ts *testscript.TestScript, _ bool, args []string) {
	info, err := os.Stat(ts.MkAbs(args[1]))
	ts.Check(err)
	if got := fmt.Sprintf("%o", info.Mode().Perm()); got != args[0] {
		ts.Fatalf("it is %s", got)
	}
}

// lonely DIR: no temporary file is left there.
func lonely(ts *testscript.TestScript, _ bool, args []string) {
	entries, err := os.ReadDir(ts.MkAbs(args[0]))
	ts.Check(err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			ts.Fatalf("%s is left", e.Name())
		}
	}
}
