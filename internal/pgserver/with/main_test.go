//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestMain is also the program under test: with JOBGEN_TEST_WITH set, the test binary is with.
func TestMain(m *testing.M) {
	if os.Getenv("JOBGEN_TEST_WITH") != "" {
		os.Exit(run(os.Args[1:], os.Stderr))
	}
	os.Exit(m.Run())
}

// with is a run of the program. Its standard input is no terminal.
type with struct {
	*exec.Cmd
	out    *bufio.Reader
	stderr bytes.Buffer
}

func start(t *testing.T, env []string, args ...string) *with {
	t.Helper()
	w := &with{Cmd: exec.Command(os.Args[0], args...)}
	w.Env = append(append(os.Environ(), "JOBGEN_TEST_WITH=1", "DATABASE_URL=", "JOBGEN_PG="), env...)
	w.Stderr = &w.stderr
	stdout, err := w.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.out = bufio.NewReader(stdout)
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Process.Kill() })
	return w
}

func (w *with) line(t *testing.T) string {
	t.Helper()
	line, err := w.out.ReadString('\n')
	if err != nil {
		t.Fatalf("%v\n%s", err, &w.stderr)
	}
	return strings.TrimSpace(line)
}

// end waits for the program and returns its exit status.
func (w *with) end() int {
	_, _ = io.Copy(io.Discard, w.out)
	_ = w.Wait()
	return w.ProcessState.ExitCode()
}

func answers(url string) bool {
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		return false
	}
	return conn.Close(context.Background()) == nil
}

func TestCommandGetsAServerAndItsStatusIsPassedOn(t *testing.T) {
	t.Parallel()
	w := start(t, nil, "--", "sh", "-c", `echo "$DATABASE_URL"; exit 7`)
	url := w.line(t)
	if status := w.end(); status != 7 {
		t.Errorf("status %d\n%s", status, &w.stderr)
	}
	if !strings.Contains(w.stderr.String(), "with: PostgreSQL from ") {
		t.Errorf("stderr: %s", &w.stderr)
	}
	if answers(url) {
		t.Error("the server is still there")
	}
}

func TestAServerThatIsThereIsUsedAndStays(t *testing.T) {
	t.Parallel()
	outer := start(t, nil, "--", "sh", "-c", `echo "$DATABASE_URL"; exec sleep 600`)
	url := outer.line(t)
	inner := start(t, []string{"DATABASE_URL=" + url}, "--", "sh", "-c", `echo "$DATABASE_URL"`)
	if got := inner.line(t); got != url {
		t.Errorf("DATABASE_URL became %s", got)
	}
	if status := inner.end(); status != 0 || inner.stderr.Len() != 0 {
		t.Errorf("status %d\n%s", status, &inner.stderr)
	}
	if !answers(url) {
		t.Error("the server was stopped")
	}
	own := start(t, []string{"DATABASE_URL=" + url}, "-own", "-durable", "--", "sh", "-c", `echo "$DATABASE_URL"`)
	if got := own.line(t); got == url {
		t.Error("-own used the server that was there")
	}
	if status := own.end(); status != 0 {
		t.Errorf("status %d\n%s", status, &own.stderr)
	}
	_ = outer.Process.Signal(syscall.SIGTERM)
	outer.end()
}

// A signal reaches the command and what the command has started, once; with ends after them.
func TestSignalsReachAllProcessesOfTheCommand(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			w := start(t, nil, "--", "sh", "-c", `
				trap 'echo outer; exit 5' INT TERM HUP
				sh -c 'trap "echo inner; exit" INT TERM HUP; echo "$DATABASE_URL"; while :; do sleep 600; done'
				while :; do sleep 600; done`)
			url := w.line(t)
			if err := w.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if got := w.line(t) + " " + w.line(t); got != "inner outer" {
				t.Errorf("signal reached %s", got)
			}
			if status := w.end(); status != 5 {
				t.Errorf("status %d\n%s", status, &w.stderr)
			}
			if answers(url) {
				t.Error("the server is still there")
			}
		})
	}
}

func TestCommandEndedByASignalGives128AndItsNumber(t *testing.T) {
	t.Parallel()
	w := start(t, nil, "--", "sh", "-c", `kill -KILL $$`)
	if status := w.end(); status != 128+9 {
		t.Errorf("status %d\n%s", status, &w.stderr)
	}
}

func TestSignalDuringTheStartEndsIt(t *testing.T) {
	t.Parallel()
	// initdb is a program of ours that tells when it is called and then hangs.
	bin := t.TempDir()
	if err := os.Chmod(strings.TrimSuffix(bin, "/001"), 0o755); err != nil {
		t.Fatal(err)
	}
	script := func(name, text string) {
		if err := os.WriteFile(bin+"/"+name, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	called := bin + "/called"
	if err := syscall.Mkfifo(called, 0o622); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(called, 0o622); err != nil {
		t.Fatal(err)
	}
	script("postgres", `echo "postgres (PostgreSQL) 17.0"`)
	script("initdb", `echo now >`+called+`; exec sleep 600`)
	w := start(t, []string{"JOBGEN_PG=binaries", "JOBGEN_PGBIN=" + bin}, "--", "true")
	if _, err := os.ReadFile(called); err != nil {
		t.Fatal(err)
	}
	if err := w.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if status := w.end(); status != 128+2 {
		t.Errorf("status %d\n%s", status, &w.stderr)
	}
}

func TestFaultsOfTheCallAreToldFromTheCommandsOwn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env    []string
		args   []string
		status int
		want   string
	}{
		"no command":      {nil, nil, 125, "usage: with"},
		"unknown flag":    {nil, []string{"-fast", "--", "true"}, 125, "not defined: -fast"},
		"help":            {nil, []string{"-h"}, 0, "usage: with"},
		"no such command": {nil, []string{"--", "no-such-command"}, 127, "not found"},
		"not executable":  {nil, []string{"--", "/etc/passwd"}, 126, "permission denied"},
		"no server":       {[]string{"DATABASE_URL=postgres://u:s3cr3t@127.0.0.1:1/d"}, []string{"--", "true"}, 125, "with: DATABASE_URL: cannot connect"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, c.env, c.args...)
			if status := w.end(); status != c.status {
				t.Errorf("status %d, want %d", status, c.status)
			}
			if !strings.Contains(w.stderr.String(), c.want) || strings.Contains(w.stderr.String(), "s3cr3t") {
				t.Errorf("stderr: %s", &w.stderr)
			}
		})
	}
}
