package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"
)

// A worker that must die, freeze or get signals runs in a child process: this test binary again, told by its environment
// which role to play.
const (
	roleVariable = "JOBGEN_WORKER_TEST_ROLE"
	urlVariable  = "JOBGEN_WORKER_TEST_URL"
	argsVariable = "JOBGEN_WORKER_TEST_ARGS"
)

// roles are what a child process can be. A role gets a pool on the test's database and the arguments as JSON.
var roles = map[string]func(ctx context.Context, pool *pgxpool.Pool, args []byte) error{}

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role))
	}
	flag.Parse()
	// These tests wait for leases and time-outs more than they compute: more of them at once than there are cores.
	parallel := false
	flag.Visit(func(f *flag.Flag) { parallel = parallel || f.Name == "test.parallel" })
	if !parallel {
		_ = flag.Set("test.parallel", "8")
	}
	before := goleak.IgnoreCurrent()
	code := m.Run()
	// Each worker has been stopped: of their goroutines none may be left. What belongs to the server for the tests stays
	// until the process ends.
	if err := goleak.Find(before, goleak.IgnoreAnyFunction("os/exec.(*Cmd).watchCtx")); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "left behind by the tests:", err)
		code = 1
	}
	os.Exit(code)
}

func play(role string) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// The parent's end of standard input closes with the parent, however that ends.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	pool, err := pgxpool.New(ctx, os.Getenv(urlVariable))
	if err == nil {
		err = roles[role](ctx, pool, []byte(os.Getenv(argsVariable)))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		return 1
	}
	return 0
}

// child is a worker process.
type child struct {
	t     testing.TB
	cmd   *exec.Cmd
	done  chan struct{} // closed when it has ended
	mu    sync.Mutex
	print bytes.Buffer
}

// Write takes what the child prints.
func (c *child) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.print.Write(p)
}

func (c *child) output() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.print.String()
}

// spawn starts a child process, which is killed when the test ends.
func spawn(t testing.TB, pool *pgxpool.Pool, role string, args any) *child {
	t.Helper()
	if roles[role] == nil {
		t.Fatalf("no role %q", role)
	}
	text, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: exec.Command(os.Args[0]), done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), roleVariable+"="+role, urlVariable+"="+pool.Config().ConnString(), argsVariable+"="+string(text))
	c.cmd.Stdout, c.cmd.Stderr = c, c
	if _, err := c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.done)
	}()
	t.Cleanup(func() {
		c.kill()
		if t.Failed() {
			t.Logf("child %s (pid %d) printed:\n%s", role, c.cmd.Process.Pid, c.output())
		}
	})
	return c
}

// signal sends sig to the child.
func (c *child) signal(sig syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(sig); err != nil {
		c.t.Errorf("signal %s: %v", sig, err)
	}
}

// kill ends the child as kill -9 does, and waits until it is gone.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
}

// ended waits for the child to end by itself and gives its exit code.
func (c *child) ended(within time.Duration) int {
	c.t.Helper()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
		c.t.Fatalf("the child process has not ended within %s", within)
	}
	return c.cmd.ProcessState.ExitCode()
}
