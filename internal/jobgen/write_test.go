//go:build unix

package jobgen

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What belongs to somebody else stays as it is, and one message says why. Root may write everywhere, so jobgen runs as
// nobody here.
func TestWhatIsNotOursToWriteStaysAsItIs(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, to have files that belong to two users")
	}
	const nobody = 65534
	for name, c := range map[string]struct {
		prepare func(dir string) error
		want    string
	}{
		"directory": {
			func(dir string) error { return os.Remove(filepath.Join(dir, "b/jobs_gen.go")) },
			"DIR/b/jobs_gen.go cannot be written: its directory is not writable for you",
		},
		"file": {
			func(dir string) error { return os.Chmod(filepath.Join(dir, "b"), 0o777) },
			"DIR/b/jobs_gen.go belongs to somebody else and is not writable for you",
		},
		"orphan": {
			func(dir string) error {
				return os.WriteFile(filepath.Join(dir, "b/b.go"), []byte("package b\n"), 0o644)
			},
			"DIR/b/jobs_gen.go belongs to somebody else and is not writable for you",
		},
		"source": {
			func(dir string) error { return os.Chmod(filepath.Join(dir, "b/b.go"), 0o600) },
			"open DIR/b/b.go: permission denied",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := sharedEnv(t)
			dir, err := os.MkdirTemp("", "jobgen-test-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			archive{files: []archiveFile{
				{"a/a.go", "package a\n\n//job:kind a.a timeout=1s\ntype A struct{}\n"},
				{"b/b.go", "package b\n\n//job:kind b.b timeout=1s\ntype B struct{}\n"},
				{"b/jobs_gen.go", header + "\n\npackage b\n"},
			}}.extract(t, dir, plainGoMod)
			// Not written by this process: another test's fork could hold the file open for writing when it is to run.
			if out, err := exec.CommandContext(t.Context(), "cp", env.jobgen, filepath.Join(dir, "jobgen")).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for _, err := range []error{
				os.Chmod(dir, 0o777), os.Chmod(filepath.Join(dir, "a"), 0o777), c.prepare(dir),
				os.Mkdir(filepath.Join(dir, "_home"), 0o777), os.Chmod(filepath.Join(dir, "_home"), 0o777),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "jobgen"), "./...")
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "HOME="+dir+"/_home", "GOCACHE="+dir+"/_home/cache", "GOPATH="+dir+"/_home", "GOWORK=off", "GOFLAGS=")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			out, err := cmd.CombinedOutput()
			if want := strings.ReplaceAll(c.want, "DIR", dir); cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), want) {
				t.Errorf("%v, %s\nwant %s", err, out, want)
			}
			if strings.Count(string(out), "\n") != 1 {
				t.Errorf("more than one line: %s", out)
			}
			for _, d := range []string{"a", "b"} {
				entries, _ := os.ReadDir(filepath.Join(dir, d))
				for _, e := range entries {
					if e.Name() != d+".go" && (d != "b" || e.Name() != OutputName) {
						t.Errorf("there is a new %s/%s", d, e.Name())
					}
				}
			}
		})
	}
}
