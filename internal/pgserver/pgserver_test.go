//go:build unix

package pgserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// TestMain is also the main function of the processes that tests start and kill: playing names the
// part such a process plays.
func TestMain(m *testing.M) {
	if part := os.Getenv("JOBGEN_TEST_PART"); part != "" {
		play(part)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// play is what a child process does. It says "ready" with what its parent wants to know, and goes
// on or ends when its standard input does.
func play(part string) {
	ctx := context.Background()
	must := func(err error) {
		if err != nil {
			fmt.Println("failed:", err)
			os.Exit(3)
		}
	}
	awaitParent := func() { _, _ = io.Copy(io.Discard, os.Stdin) }
	switch part {
	case "owner": // starts a server and never closes it
		s, err := Start(ctx, Options{IgnoreDatabaseURL: true})
		must(err)
		fmt.Println("ready", s.URL)
		awaitParent()
		if os.Getenv("JOBGEN_TEST_END") == "panic" {
			panic("on purpose")
		}
	case "leaver": // creates a database and never drops it
		s, err := Start(ctx, Options{})
		must(err)
		u, _, err := s.CreateDatabase(ctx, "")
		must(err)
		fmt.Println("ready", u)
		awaitParent()
	case "templater": // asks for the same template as others at the same time
		s, err := Start(ctx, Options{})
		must(err)
		fmt.Println("ready", s.URL)
		awaitParent()
		template, err := s.Template(ctx, "shared by processes", func(ctx context.Context, u string) error {
			must(exec1(ctx, s.URL, `INSERT INTO made SELECT pg_backend_pid()`))
			return exec1(ctx, u, `CREATE TABLE filled (i int)`)
		})
		must(err)
		u, drop, err := s.CreateDatabase(ctx, template)
		must(err)
		must(exec1(ctx, u, `INSERT INTO filled VALUES (1)`))
		must(drop(ctx))
		must(s.Close())
	case "unlucky": // finds nothing
		binaryPlaces = nil
		_, err := Start(ctx, Options{})
		fmt.Println(err)
	}
}

// child is a process that plays a part.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	url   string
	out   *bufio.Reader
	errs  bytes.Buffer
}

func spawn(t *testing.T, part string, env ...string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), append(env, "JOBGEN_TEST_PART="+part)...)
	c.cmd.Stderr = &c.errs
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(stdout)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	return c
}

// awaitReady waits for the child's "ready".
func (c *child) awaitReady(t *testing.T) *child {
	t.Helper()
	line, err := c.out.ReadString('\n')
	var found bool
	if c.url, found = strings.CutPrefix(strings.TrimSpace(line), "ready "); err != nil || !found {
		t.Fatalf("child: %q, %v\n%s", line, err, &c.errs)
	}
	return c
}

// ask runs one query that returns one value.
func ask[T any](t *testing.T, url, query string, args ...any) T {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var value T
	if err := conn.QueryRow(context.Background(), query, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}

// exec1 runs one statement on a connection of its own.
func exec1(ctx context.Context, url, statement string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statement)
	return err
}

func mustExec(t *testing.T, url, statement string) {
	t.Helper()
	if err := exec1(context.Background(), url, statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// eventually looks again until the condition holds; the processes looked at are not ours, so that
// there is nothing to be told by.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(20 * time.Second)
	for !condition() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("after 20 s still not: %s", what)
		}
	}
}

// folderOf is the temporary folder of a server started from binaries.
func folderOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(u.Query().Get("host"))
}

// postmasterOf is the process id of a server started from binaries.
func postmasterOf(t *testing.T, address string) int {
	t.Helper()
	var pid int
	content, err := os.ReadFile(filepath.Join(folderOf(t, address), "pg", "data", "postmaster.pid"))
	if err == nil {
		_, err = fmt.Sscan(string(content), &pid)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// alive tells whether a process runs. A zombie, whose parent has not looked yet, does not.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist) || !exists("/proc/self")
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

// own starts a server from binaries and closes it when the test ends.
func own(t *testing.T, o Options) *Server {
	t.Helper()
	o.only, o.IgnoreDatabaseURL = "binaries", true
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// named opens the server at an address as if DATABASE_URL named it.
func named(t *testing.T, address string) *Server {
	t.Helper()
	s, err := Start(t.Context(), Options{only: "url", databaseURL: address})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func fill(ctx context.Context, url string) error {
	return exec1(ctx, url, `CREATE TABLE filled AS SELECT 42 AS answer`)
}
