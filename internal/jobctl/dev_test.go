package jobctl_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/internal/jobctl"
)

// starts skips a test where no server can be started: the others may have one from DATABASE_URL.
func (o outcome) starts() outcome {
	o.t.Helper()
	if strings.Contains(o.err, "no PostgreSQL server found") {
		o.t.Skip(o.err)
	}
	return o
}

// printed calls then with each text that is printed.
type printed struct {
	text []byte
	then func()
}

func (p *printed) Write(b []byte) (int, error) {
	p.text = append(p.text, b...)
	p.then()
	return len(b), nil
}

func TestDevIsAMigratedServerUntilItIsInterruptedAndThenItIsGone(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	run(t, t.Context(), jobctl.Env{}, "dev", "--port", port).want(3, "port "+port+" is not free").sentence()
	l.Close()
	for _, args := range [][]string{{"dev"}, {"dev", "--port", port}} {
		ctx, interrupt := context.WithCancel(t.Context())
		var url string
		var out printed
		out.then = func() {
			defer interrupt()
			m := regexp.MustCompile(`^export DATABASE_URL='(.*)'\n$`).FindStringSubmatch(string(out.text))
			if m == nil {
				t.Errorf("it printed %q", out.text)
				return
			}
			url = m[1]
			run(t, t.Context(), jobctl.Env{Zone: time.UTC}, "migrate", "status", "--database-url", url).want(0)
			if len(args) > 1 && !strings.Contains(url, "@127.0.0.1:"+port+"/") {
				t.Errorf("it listens at %s", url)
			}
			if len(args) > 1 {
				run(t, t.Context(), jobctl.Env{Zone: time.UTC}, "migrate", "status", "--database-url", strings.Replace(url, "//postgres:", "//postgres:x", 1)).want(3, "refused the login")
			}
		}
		var errs bytes.Buffer
		code := jobctl.Main(ctx, args, jobctl.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "postgres://nobody@127.0.0.1:1/x" }})
		interrupt()
		outcome{t, code, string(out.text), errs.String()}.starts().want(0, "PostgreSQL from ", "Ctrl-C ends it")
		if conn, err := pgx.Connect(t.Context(), url); err == nil {
			conn.Close(t.Context())
			t.Error("the server is still there")
		}
	}
}

func TestDevRunsACommandAndEndsAsItDoes(t *testing.T) {
	t.Parallel()
	process(t, nil, "dev", "--", "sh", "-c", `JOBCTL_TEST_PROCESS=1 "$0" migrate status && exit 7`, os.Args[0]).starts().want(7, "00001_init.sql")
	process(t, nil, "dev", "--", "sh", "-c", "kill -TERM $$").want(128 + 15)
	process(t, nil, "dev", "--", "/no/such/command").want(127, "no such file")
	process(t, nil, "dev", "--", "true").want(0)
}

func TestDevWithoutAWayToAServerSaysHowToGetOne(t *testing.T) {
	t.Parallel()
	process(t, []string{"JOBGEN_PG=docker", "DOCKER_HOST=tcp://127.0.0.1:1"}, "dev").want(3, "one of these is enough", "apt-get install postgresql", "start Docker").conceals("DATABASE_URL")
	process(t, []string{"JOBGEN_PG=binaries"}, "dev", "--version", "99").want(3, "99 is wanted")
	for want, args := range map[string][]string{
		"put -- before the command: jobctl dev -- ls -l": {"ls", "--", "-l"},
		"name the command after --":                      {"--"},
		"--port is 0":                                    {"--port", "0"},
		"--version is 13":                                {"--version", "13"},
		"--database-url is not for it":                   {"--database-url", "postgres://x@y/z"},
	} {
		run(t, t.Context(), jobctl.Env{}, append([]string{"dev"}, args...)...).want(2, want).sentence()
	}
}
