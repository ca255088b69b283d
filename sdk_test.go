// Package jobgen_test tries the SDK as its users meet it: a module of their own that gets jobgen from a module proxy, runs
// go generate, compiles, and works jobs on a real Postgres.
package jobgen_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jobgen-go/jobgen/jobtest"
)

const modulePath = "github.com/jobgen-go/jobgen"

// setup makes the module of TestSDK.
const setup = `go mod init example.com/app
go get -tool github.com/jobgen-go/jobgen/cmd/jobgen@latest
go get github.com/jobgen-go/jobgen/worker@latest
`

// TestSDK follows jobs from an annotated struct to a stored result: see testdata/sdk/main.go for the steps.
func TestSDK(t *testing.T) {
	t.Parallel()
	app := newUserModule(t, setup)
	for _, name := range []string{"main.go", "billing/billing.go"} {
		text, err := os.ReadFile(filepath.Join("testdata/sdk", name))
		if err != nil {
			t.Fatal(err)
		}
		app.write(name, strings.TrimPrefix(string(text), "//go:build ignore\n\n"))
	}
	app.run("go", "generate", "./...")
	app.run("go", "vet", "./...")
	app.run("go", "tool", "jobgen", "check", "./...")
	app.run("go", "build", "-o", "app", ".")
	out := app.run("./app")
	if want := "nothing is left behind\n"; !strings.HasSuffix(out, want) {
		t.Errorf("the story did not come to its end, %q:\n%s", want, out)
	}
}

// TestTutorial compiles and runs the tutorial of the README, and compares what it prints.
func TestTutorial(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	app := newUserModule(t, regexp.MustCompile("(?s)<!-- setup -->\n```sh\n(.*?)```").FindStringSubmatch(string(readme))[1])
	blocks := regexp.MustCompile("(?s)<!-- file: (\\S+) -->\n```\\w*\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	want := ""
	for _, b := range blocks {
		if b[1] == "output" {
			want = b[2]
			continue
		}
		app.write(b[1], b[2])
	}
	if len(blocks) < 3 || want == "" {
		t.Fatalf("README.md has %d marked blocks and the output %q; the tutorial needs its files and an output", len(blocks), want)
	}
	app.run("go", "generate", "./...")
	app.run("go", "vet", "./...")
	app.run("go", "build", "-o", "app", ".")
	if got := app.run("./app"); got != want {
		t.Errorf("the tutorial prints\n%s\nthe README says\n%s", got, want)
	}
}

// userModule is a module outside this one.
type userModule struct {
	t   *testing.T
	dir string
	env []string
}

// newUserModule runs the commands that make a module, which get jobgen, tool and library, from a file:// proxy made of
// this checkout.
func newUserModule(t *testing.T, commands string) *userModule {
	t.Helper()
	proxy, version := proxyOf(t, ".")
	cache := strings.TrimSpace(string(output(t, ".", nil, "go", "env", "GOMODCACHE")))
	m := &userModule{t: t, dir: t.TempDir(), env: append(os.Environ(),
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(cache, "cache/download")+","+strings.TrimSpace(string(output(t, ".", nil, "go", "env", "GOPROXY"))),
		"GOSUMDB=off", "GOFLAGS=-modcacherw", "GOWORK=off",
		"DATABASE_URL="+jobtest.DB(t).Config().ConnString(),
	)}
	t.Cleanup(func() { // what the module cache has kept of this version, which nobody else will ask for
		for _, old := range []string{cache + "/" + modulePath + "@" + version, cache + "/cache/download/" + modulePath + "/@v/" + version + ".*"} {
			found, _ := filepath.Glob(old)
			for _, f := range found {
				os.RemoveAll(f)
			}
		}
	})
	for _, line := range strings.Split(strings.TrimSpace(commands), "\n") {
		words := strings.Fields(strings.ReplaceAll(line, "@latest", "@"+version))
		m.run(words[0], words[1:]...)
	}
	return m
}

func (m *userModule) write(name, text string) {
	m.t.Helper()
	file := filepath.Join(m.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

func (m *userModule) run(name string, args ...string) string {
	m.t.Helper()
	return string(output(m.t, m.dir, m.env, name, args...))
}

func output(t *testing.T, dir string, env []string, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var out, errs bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out.Bytes(), errs.Bytes())
	}
	return out.Bytes()
}

// proxyOf makes a folder that serves the module in dir, as git knows it, under a version of its own.
func proxyOf(t *testing.T, dir string) (proxy, version string) {
	t.Helper()
	var nested []string // modules in folders of their own are not part of this one
	var names []string
	for _, name := range strings.Split(string(output(t, dir, nil, "git", "ls-files", "--cached", "--others", "--exclude-standard")), "\n") {
		if info, err := os.Stat(filepath.Join(dir, name)); name == "" || err != nil || !info.Mode().IsRegular() {
			continue
		}
		if names = append(names, name); name != "go.mod" && filepath.Base(name) == "go.mod" {
			nested = append(nested, filepath.Dir(name)+"/")
		}
	}
	files := map[string][]byte{}
	sum := sha256.New()
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		part := true
		for _, n := range nested {
			part = part && !strings.HasPrefix(name, n)
		}
		if part {
			files[name] = text
			fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
		}
	}
	version = "v0.0.0-20260101000000-" + hex.EncodeToString(sum.Sum(nil))[:12]
	proxy = t.TempDir()
	at := filepath.Join(proxy, modulePath, "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	var zipped bytes.Buffer
	z := zip.NewWriter(&zipped)
	for _, name := range names {
		if text, part := files[name]; part {
			f, err := z.Create(modulePath + "@" + version + "/" + name)
			if err == nil {
				_, err = f.Write(text)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	info, _ := json.Marshal(map[string]string{"Version": version, "Time": "2026-01-01T00:00:00Z"})
	for name, text := range map[string][]byte{"list": []byte(version + "\n"), version + ".info": info, version + ".mod": files["go.mod"], version + ".zip": zipped.Bytes()} {
		if err := os.WriteFile(filepath.Join(at, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return proxy, version
}
