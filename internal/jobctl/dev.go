package jobctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/pgserver"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/internal/supervise"
)

// startTimeout is for a server to start; an image may have to be pulled.
const startTimeout = 5 * time.Minute

// exitCode ends jobctl as the command ended that it ran.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// dev is the command's flags.
type dev struct{ port, version int }

func (c *cli) dev() *cobra.Command {
	var d dev
	cmd := &cobra.Command{
		Use:   "dev [-- COMMAND ARG…]",
		Short: "A throwaway Postgres with jobgen's tables",
		Long: `Dev starts a Postgres server of its own, migrates it, prints its DATABASE_URL, and
stays until Ctrl-C; then the server and all that was in it are removed, also when
jobctl is killed. With a command, it runs that with DATABASE_URL set, passes
signals on to it, and ends with it, with its exit status (125: dev's own fault,
126: it cannot be started, 127: it is not there).

The server comes from installed server programs or from a Docker engine. It keeps
its data in memory where it can and flushes nothing: it is for development and
tests. DATABASE_URL and the PG* variables do not matter to it, but for PGPASSWORD,
which is the password that --port asks for.`,
		Example: `  jobctl dev
  jobctl dev -- go run ./cmd/worker
  jobctl dev --port 5433 --version 17`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch flags := cmd.Flags(); {
			case len(args) > 0 && cmd.ArgsLenAtDash() != 0:
				return fmt.Errorf("put -- before the command: jobctl dev -- %s", strings.Join(args, " "))
			case cmd.ArgsLenAtDash() == 0 && len(args) == 0:
				return errors.New("name the command after --")
			case c.hasURL():
				return errors.New("dev starts a server of its own; --database-url is not for it")
			case flags.Changed("port") && (d.port < 1 || d.port > 65535):
				return fmt.Errorf("--port is %d; it must be 1 to 65535", d.port)
			case flags.Changed("version") && (d.version < 14 || d.version > 99):
				return fmt.Errorf("--version is %d; it is a major version of Postgres, 14 or later", d.version)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return c.runDev(cmd.Context(), d, args) },
	}
	cmd.Flags().IntVar(&d.port, "port", 0, "listen on this `port` of 127.0.0.1 too, and ask for a password there")
	cmd.Flags().IntVar(&d.version, "version", 0, "the major `version` of Postgres; else the newest installed")
	return cmd
}

func (c *cli) runDev(ctx context.Context, d dev, args []string) error {
	if d.port > 0 { // else the fault would be hidden among the ways that did not work
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(d.port)))
		if err != nil {
			return &databaseError{fmt.Sprintf("port %d is not free; choose another: %s", d.port, network(err)), err}
		}
		_ = l.Close()
	}
	// A signal is the command's, once there is one; until then it ends the start, by ctx.
	signals := make(chan os.Signal, 8)
	if len(args) > 0 {
		signal.Notify(signals, supervise.Signals...)
		defer signal.Stop(signals)
	}
	server, err := startDev(ctx, d)
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		// In lines: there are three ways to a server, with what each needs.
		fmt.Fprintln(c.Stderr, "jobctl:", err)
		return exitCode(exitDatabase)
	}
	defer func() {
		if err := server.Close(); err != nil {
			c.note("%s", err)
		}
	}()
	if len(args) > 0 {
		command := exec.Command(args[0], args[1:]...)
		command.Stdin, command.Stdout, command.Stderr = c.Stdin, c.Stdout, c.Stderr
		command.Env = append(os.Environ(), "DATABASE_URL="+server.URL)
		if status := supervise.Run(command, signals, func(err error) { c.note("jobctl: %s", err) }); status != 0 {
			return exitCode(status)
		}
		return nil
	}
	if err := c.print(struct {
		DatabaseURL string `json:"database_url"`
		Source      string `json:"source"`
	}{server.URL, server.Source}, func(w io.Writer) {
		fmt.Fprintf(w, "export DATABASE_URL='%s'\n", server.URL)
	}); err != nil {
		return err
	}
	c.note("PostgreSQL from %s; Ctrl-C ends it and removes all that is in it", server.Source)
	<-ctx.Done()
	return nil
}

// startDev gives a migrated server.
func startDev(ctx context.Context, d dev) (*pgserver.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	server, err := pgserver.Start(ctx, pgserver.Options{IgnoreDatabaseURL: true, Port: d.port, Version: d.version, Label: "dev"})
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.New(ctx, server.URL)
	if err == nil {
		_, err = postgres.Migrate(ctx, pool, func(error) {})
		pool.Close()
	}
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return server, nil
}
