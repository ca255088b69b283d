//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/internal/supervise"
)

// TestMain is also the program under test, and the commands that it runs.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && (os.Args[1] == "outer" || os.Args[1] == "inner"):
		os.Exit(command(os.Args[1]))
	case os.Getenv("JOBGEN_TEST_WITH") != "":
		os.Exit(run(os.Args[1:], os.Stderr))
	}
	os.Exit(m.Run())
}

// command waits for a signal, says so and returns its exit status. The outer one starts the inner
// one and says its word after it. Without a signal they end when their standard input does.
func command(name string) int {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, supervise.Signals...)
	if name == "outer" {
		inner := exec.Command(os.Args[0], "inner")
		inner.Stdin, inner.Stdout, inner.Stderr = os.Stdin, os.Stdout, os.Stderr
		if _ = inner.Run(); inner.ProcessState.ExitCode() != 5 {
			return 1
		}
		<-signals
	} else {
		fmt.Println(os.Getenv("DATABASE_URL"))
		orphaned := make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			close(orphaned)
		}()
		select {
		case <-signals:
		case <-orphaned:
			return 1
		}
	}
	fmt.Println(name)
	if len(signals) > 0 {
		fmt.Println(name, "again")
	}
	return 5
}

// with is a run of the program. Its standard input is no terminal.
type with struct {
	*exec.Cmd
	out    *bufio.Reader
	stdin  io.WriteCloser // which commands watch for the end of the test
	stderr bytes.Buffer
}

func start(t *testing.T, env []string, args ...string) *with {
	t.Helper()
	w := &with{Cmd: exec.Command(os.Args[0], args...)}
	w.Env = append(append(os.Environ(), "JOBGEN_TEST_WITH=1", "DATABASE_URL=", "JOBGEN_PG="), env...)
	w.Stderr = &w.stderr
	var err error
	if w.stdin, err = w.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := w.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.out = bufio.NewReader(stdout)
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	giveUp := func() { _, _ = w.stdin.Close(), w.Process.Kill() }
	timeout := time.AfterFunc(time.Minute, giveUp)
	t.Cleanup(func() {
		timeout.Stop()
		giveUp()
	})
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

// folderIn is the folder of a server started from binaries, "" for any other.
func folderIn(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Query().Get("host")
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
	if folder := folderIn(t, url); folder != "" {
		if _, err := os.Stat(folder); err == nil {
			t.Errorf("%s is still there", folder)
		}
	}
}

func TestAServerThatIsThereIsUsedAndStays(t *testing.T) {
	t.Parallel()
	outer := start(t, nil, "--", os.Args[0], "inner")
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
			w := start(t, nil, "--", os.Args[0], "outer")
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
