package jobctl_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/jobgen-go/jobgen/internal/jobctl"
)

// serving starts jobctl exporter in this process, on a port of its own, and gives where it serves.
func serving(t *testing.T, env jobctl.Env, args ...string) (url string, stop func() int) {
	t.Helper()
	log, w := io.Pipe()
	env.Stderr, env.Stdout, env.Stdin = w, io.Discard, strings.NewReader("")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- jobctl.Main(ctx, append([]string{"exporter", "--listen", "localhost:0"}, args...), env)
		w.Close()
	}()
	return servedAt(t, log), func() int { cancel(); return <-ended }
}

// servedAt reads the log up to the line that tells where, and then the rest beside.
func servedAt(t *testing.T, log io.Reader) (url string) {
	t.Helper()
	r := bufio.NewReader(log)
	first, err := r.ReadString('\n')
	m := regexp.MustCompile(`address=(http://\S+)`).FindStringSubmatch(first)
	if m == nil {
		t.Fatalf("it does not say where it serves: %q, %v", first, err)
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	return m[1]
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestTheExporterServesUntilItIsStopped(t *testing.T) {
	t.Parallel()
	q := open(t)
	enqueue(q, sendMail, charge{})
	url, stop := serving(t, q.env)
	for _, line := range []string{"jobgen_up 1\n", `jobgen_jobs{queue="mail",kind="mail.send",state="ready"} 1` + "\n"} {
		if page := fetch(t, url); !strings.Contains(page, line) {
			t.Errorf("%q is not in:\n%s", line, page)
		}
	}
	if code := stop(); code != 0 {
		t.Error("exit code", code)
	}
}

func TestTheExporterEndsWellOnSIGTERM(t *testing.T) {
	t.Parallel()
	q := open(t)
	cmd := exec.Command(os.Args[0], "exporter", "--listen", "localhost:0")
	cmd.Env = append(os.Environ(), asProcess+"=1", "DATABASE_URL="+q.url())
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fetch(t, servedAt(t, log))
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestTheExporterStartsWithoutADatabase(t *testing.T) {
	t.Parallel()
	nobody, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	at := nobody.Addr().String()
	nobody.Close()
	url, stop := serving(t, jobctl.Env{Getenv: func(string) string { return "" }}, "--database-url", "postgres://u@"+at+"/d?sslmode=disable")
	if page := fetch(t, url); !strings.Contains(page, "jobgen_up 0\n") {
		t.Error(page)
	}
	if healthy := fetch(t, strings.TrimSuffix(url, "metrics")+"-/healthy"); healthy != "ok\n" {
		t.Error(healthy)
	}
	if code := stop(); code != 0 {
		t.Error("exit code", code)
	}
}

func TestTheExporterRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	q := open(t)
	taken, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	q.ctl("exporter", "--listen", taken.Addr().String()).want(2, "--listen", "in use").sentence()
	q.ctl("exporter", "--listen", "nowhere").want(2, "--listen").sentence()
	q.ctl("exporter", "--interval", "-1s").want(2, "--interval is -1s").sentence()
	q.ctl("exporter", "--timeout", "0s").want(2, "--timeout is 0s").sentence()
	q.ctl("exporter", "--most", "0").want(2, "--most is 0").sentence()
	q.ctl("exporter", "now").want(2).sentence()
	q.ctl("exporter", "--database-url", "mysql").want(2, "no connection string").sentence()
}
