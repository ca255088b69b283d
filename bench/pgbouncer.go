package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// drainPgBouncer is the plain drain through a PgBouncer that runs beside the worker, with the settings that it comes with
// but for the mode.
var drainPgBouncer = func() entrant {
	plain := variant{name: "pgbouncer", label: "through PgBouncer", note: "in transaction mode; its own CPU is not in the figures"}.entrant()
	plain.needs = func(options) string {
		if _, err := exec.LookPath("pgbouncer"); err != nil {
			return "pgbouncer (scripts/apt-install pgbouncer)"
		}
		return ""
	}
	direct := plain.open
	plain.open = func(ctx context.Context, url string, n int) (*session, error) {
		through, stop, err := startPgBouncer(ctx, url)
		if err != nil {
			return nil, err
		}
		s, err := direct(ctx, through, n)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		closed := s.close
		s.close = func() { closed(); _ = stop() }
		return s, nil
	}
	return plain
}()

// pgBouncerKeeper ends PgBouncer, and removes its folder, when its standard input ends, as it does with the process that
// holds the other end.
const pgBouncerKeeper = `trap '' HUP INT TERM
pgbouncer -q "$1/ini" </dev/null & pid=$!
read -r _
kill -TERM "$pid"; wait "$pid"
rm -rf "$1"`

// startPgBouncer returns the address under which PgBouncer leads to the database.
func startPgBouncer(ctx context.Context, url string) (through string, stop func() error, err error) {
	to, err := pgx.ParseConfig(url)
	if err != nil {
		return "", nil, err
	}
	folder, err := os.MkdirTemp("/tmp", "jobgen-bench-pgb-") // a socket's path must be short
	if err != nil {
		return "", nil, err
	}
	ini := []string{
		"[databases]", fmt.Sprintf("%s = host=%s port=%d dbname=%s user=%s", to.Database, to.Host, to.Port, to.Database, to.User),
		"[pgbouncer]", "listen_addr =", "listen_port = 6432", "unix_socket_dir = " + folder, "auth_type = any", "pool_mode = transaction",
	}
	cmd := exec.Command("/bin/sh", "-c", pgBouncerKeeper, "jobgen-bench-pgbouncer", folder)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr, cmd.Dir = &said, &said, "/"
	in, err := cmd.StdinPipe()
	if err == nil {
		err = errors.Join(
			os.Chmod(folder, 0o755),
			os.WriteFile(filepath.Join(folder, "ini"), []byte(strings.Join(ini, "\n")+"\n"), 0o644),
			unprivileged(cmd, folder),
			cmd.Start())
	}
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(folder))
	}
	stop = func() error { return errors.Join(in.Close(), cmd.Wait()) }
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if c, err := net.Dial("unix", filepath.Join(folder, ".s.PGSQL.6432")); err == nil {
			return fmt.Sprintf("host=%s port=6432 dbname=%s user=%s", folder, to.Database, to.User), stop, c.Close()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", nil, errors.Join(ctx.Err(), stop(), errors.New(said.String()))
		}
	}
}
