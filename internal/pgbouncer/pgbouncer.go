//go:build unix

// Package pgbouncer runs PgBouncer for tests, in front of the database that a test has.
package pgbouncer

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/pgserver"
)

// Pooler is a running PgBouncer.
type Pooler struct {
	t      testing.TB
	to     *pgx.ConnConfig
	folder string
	keeper *exec.Cmd
	stop   io.WriteCloser
}

// readyTime is how long a start may take.
const readyTime = 30 * time.Second

// keeper runs PgBouncer until its standard input ends, as it does with the process that holds the other end. "keep" on it
// means that the folder stays, for another start.
const keeper = `trap '' HUP INT TERM
pgbouncer -q "$1/ini" </dev/null & pid=$!
read -r keep
kill -TERM "$pid"; wait "$pid"
[ -n "$keep" ] || rm -rf "$1"`

// Start starts a PgBouncer that leads to pool's database, in transaction mode unless settings, lines of its configuration,
// say otherwise. It goes away with the test. Without the program the test is skipped.
func Start(t testing.TB, pool *pgxpool.Pool, settings ...string) *Pooler {
	t.Helper()
	if _, err := exec.LookPath("pgbouncer"); err != nil {
		t.Skip("pgbouncer is not installed (scripts/apt-install pgbouncer)")
	}
	folder, err := os.MkdirTemp("/tmp", "jobgen-pgb-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	p := &Pooler{t: t, to: pool.Config().ConnConfig, folder: folder}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	target := fmt.Sprintf("host=%s port=%d dbname=%s user=%s", p.to.Host, p.to.Port, p.to.Database, p.to.User)
	if p.to.Password != "" {
		target += " password=" + p.to.Password
	}
	ini := []string{
		"[databases]", p.to.Database + " = " + target,
		"[pgbouncer]", "listen_addr =", "listen_port = 6432", "unix_socket_dir = " + folder, "unix_socket_mode = 0777", "auth_type = any",
		"logfile = " + filepath.Join(folder, "log"), "pool_mode = transaction", "default_pool_size = 10", "max_client_conn = 200", "query_wait_timeout = 60",
	}
	p.write("ini", strings.Join(append(ini, settings...), "\n")+"\n")
	if os.Geteuid() == 0 {
		own, err := pgserver.Unprivileged()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(folder, int(own.Uid), int(own.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	p.Start()
	t.Cleanup(func() {
		p.end("")
		if log, _ := os.ReadFile(filepath.Join(folder, "log")); t.Failed() && len(log) > 0 {
			t.Logf("pgbouncer logged:\n%s", log[max(0, len(log)-4000):])
		}
	})
	return p
}

func (p *Pooler) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.folder, name), []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// Start starts it again after Stop, at the same address.
func (p *Pooler) Start() {
	p.t.Helper()
	var output bytes.Buffer
	p.keeper = exec.Command("/bin/sh", "-c", keeper, "jobgen-pgbouncer", p.folder)
	p.keeper.Stdout, p.keeper.Stderr, p.keeper.Dir = &output, &output, "/"
	p.keeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() == 0 { // it refuses to run as root
		p.keeper.SysProcAttr.Credential, _ = pgserver.Unprivileged()
	}
	var err error
	if p.stop, err = p.keeper.StdinPipe(); err == nil {
		err = p.keeper.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	tick, late := time.NewTicker(5*time.Millisecond), time.NewTimer(readyTime)
	defer tick.Stop()
	defer late.Stop()
	for {
		if c, err := net.Dial("unix", filepath.Join(p.folder, ".s.PGSQL.6432")); err == nil {
			_ = c.Close()
			return
		}
		select {
		case <-tick.C:
		case <-late.C:
			log, _ := os.ReadFile(filepath.Join(p.folder, "log"))
			p.end("keep")
			p.t.Fatalf("pgbouncer does not start: %s%s", output.String(), log)
		}
	}
}

// Stop ends it at once: its clients and its connections to the server are cut.
func (p *Pooler) Stop() { p.end("keep") }

func (p *Pooler) end(word string) {
	if p.keeper == nil {
		return
	}
	if word != "" {
		_, _ = fmt.Fprintln(p.stop, word)
	}
	_ = p.stop.Close()
	_ = p.keeper.Wait()
	p.keeper = nil
}

// Config is for a pool that connects through it, with the way to send statements that params name
// (default_query_exec_mode=exec).
func (p *Pooler) Config(params ...string) *pgxpool.Config {
	p.t.Helper()
	config, err := pgxpool.ParseConfig(fmt.Sprintf("host=%s port=6432 dbname=%s user=%s sslmode=disable %s",
		p.folder, p.to.Database, cmp.Or(p.to.User, "any"), strings.Join(append([]string{"pool_max_conns=8"}, params...), " ")))
	if err != nil {
		p.t.Fatal(err)
	}
	return config
}

// Pool is a pool of that Config.
func (p *Pooler) Pool(params ...string) *pgxpool.Pool {
	p.t.Helper()
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(p.t.Context()), p.Config(params...))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(pool.Close)
	return pool
}
