// Package jobctl is the command line behind cmd/jobctl: a file for each command, database.go for the way to the database
// and its errors, text.go for what a terminal gets.
//
// What goes to a terminal was written by strangers (payloads, error texts, kinds), so none of it gets there but through
// text.go, which escapes what a terminal would act on. Ages are computed from the database's time.
package jobctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/postgres"
)

// Env is the process around a command.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Zone           *time.Location             // of the times in tables
	Width          int                        // columns of the terminal that Stdout is; 0: it is none
	Height         int                        // its lines; 0: not known
	Size           func() (width, height int) // what they are now; nil: as above
	Ask            bool                       // Stdin is a terminal
	Progress       bool                       // Stderr is a terminal
}

// Exit codes, in the order of how wrong things are.
const (
	exitOK       = 0
	exitFindings = 1
	exitUsage    = 2
	exitDatabase = 3
)

const manual = `Jobctl operates a live jobgen queue: it brings the schema up to date, shows
jobs with their whole history, revives dead ones, cancels, deletes and changes
others, and pauses queues. Whether all is well: jobctl status. What is going on
now, and which way it moves: jobctl stats. Who is alive and runs what: jobctl
workers; what ticks: jobctl schedules. What hurts, or is about to, and what to
do about it: jobctl doctor. A throwaway Postgres to try it on: jobctl dev.
Metrics for Prometheus: jobctl exporter.

Database
  --database-url names it, else the environment variable DATABASE_URL, else the
  variables that psql reads (PGHOST, PGPORT, PGDATABASE, PGUSER, PGPASSWORD,
  PGPASSFILE, PGSERVICE, …). Prefer a variable or a password file: other users
  of the machine can see a password on the command line.

Output
  Tables fit the terminal, or 80 columns where there is none (COLUMNS overrides
  that); what does not fit ends in …. Their times are local, with the offset;
  ages are by the database's clock. Notes go to stderr. With --json, stdout is
  one JSON object whose times are RFC 3339 in UTC, or empty if there is nothing
  to tell but an error, which is a line on stderr then too. Control characters
  in payloads, errors and names are printed as escapes.

Exit status
  0  done
  1  done, with a finding: nothing matched, something was refused or is left to
     do, a migration waits
  2  the command line is wrong; nothing was done
  3  the database cannot be reached or used, or is not migrated; doctor: jobs
     stand still or are lost, or soon will be`

// Main runs one command and returns the exit code.
func Main(ctx context.Context, args []string, env Env) int {
	c := &cli{Env: env}
	root := c.root()
	root.SetArgs(args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	var f *finding
	var d *databaseError
	var code exitCode
	switch {
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &f):
		if f.text != "" {
			c.say("jobctl: " + f.text)
		}
		return max(f.code, exitFindings)
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		c.say("jobctl: interrupted")
		return exitFindings
	case errors.As(err, &d):
		c.say("jobctl: " + d.Error())
		return exitDatabase
	}
	// The rest is from cobra, which has no type for it, or from a command that found its arguments wrong.
	c.say(fmt.Sprintf("jobctl: %s; see `%s --help`", err, cmd.CommandPath()))
	return exitUsage
}

// cli is one run of jobctl: the process, and the flags that every command has.
type cli struct {
	Env
	databaseURL string
	hasURL      func() bool // --database-url was given
	json        bool
	progressed  bool // a line of progress stands on stderr
}

// finding ends a command that did its work and has something to say about it.
type finding struct {
	text string
	code int // 0: exitFindings
}

func (f *finding) Error() string { return f.text }

func findingf(format string, args ...any) error { return &finding{text: fmt.Sprintf(format, args...)} }

func (c *cli) root() *cobra.Command {
	root := group("jobctl", "Operate a live jobgen queue", manual)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// A name may begin with a dash.
		if _, takes, _ := strings.Cut(cmd.Use, " "); takes != "" && !strings.Contains(takes, "ID") && strings.HasPrefix(err.Error(), "unknown ") {
			return fmt.Errorf("%w (if it is no flag but a name, put -- before it: %s -- NAME)", err, cmd.CommandPath())
		}
		return err
	})
	flags := root.PersistentFlags()
	flags.StringVar(&c.databaseURL, "database-url", "", "connection `string`; else $DATABASE_URL, else $PG*")
	flags.BoolVar(&c.json, "json", false, "print one JSON object")
	c.hasURL = func() bool { return flags.Changed("database-url") }

	migrate := group("migrate", "Bring the schema up to date, or see whether it is",
		"The tables are in the schema jobgen, which no other program's tables share.")
	migrate.AddCommand(c.migrateUp(), c.migrateStatus(), c.migrateDown(), c.migrateSQL())
	jobs := group("jobs", "See jobs, revive dead ones, cancel, delete and change others",
		`A job is queued, running or dead. A finished job has left the queue: what is on
record of it then is its result, if its kind has a result or a key, and the
attempts that failed before. A cancelled one is on record for 30 days.`)
	jobs.AddCommand(c.jobsList(), c.jobsShow(), c.jobsRequeue(), c.jobsCancel(), c.jobsDelete(), c.jobsEdit())
	root.AddCommand(migrate, jobs, c.queues())
	root.AddCommand(c.exporter())
	root.AddCommand(c.stats())
	root.AddCommand(c.workers(), c.schedules())
	root.AddCommand(c.dev())
	root.AddCommand(c.doctor())
	root.AddCommand(c.status())
	return root
}

// group is a command that only has others. Cobra by itself answers an unknown one with help and success.
func group(name, short, long string) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, Long: long, SuggestionsMinimumDistance: 2, DisableFlagsInUseLine: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			hint := ""
			if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
				hint = fmt.Sprintf(" (did you mean %s?)", strings.Join(like, " or "))
			}
			return fmt.Errorf("%s has no command %q%s", cmd.CommandPath(), args[0], hint)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
}

// operator is the body of a command on a migrated database.
type operator func(ctx context.Context, op postgres.Operator, args []string) error

func (c *cli) operate(fn operator) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		db, err := c.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer db.close()
		op := postgres.Operator{Pool: db.pool}
		if err := op.Check(cmd.Context()); err != nil {
			return db.explain(err)
		}
		return db.explain(lacking(fn(cmd.Context(), op, args)))
	}
}

// print writes v as JSON, or calls text for what a person reads.
func (c *cli) print(v any, text func(w io.Writer)) error {
	var b strings.Builder
	if c.json {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(v); err != nil {
			return err
		}
	} else {
		text(&b)
	}
	out := b.String()
	if c.json {
		out = escapeJSON(out)
	}
	if _, err := io.WriteString(c.Stdout, out); err != nil {
		return findingf("cannot write the output: %s", err)
	}
	return nil
}

// note tells a person something beside the output.
func (c *cli) note(format string, args ...any) { c.say(fmt.Sprintf(format, args...)) }

// say writes a text to Stderr: for a program on one line, for a terminal on as many as it takes.
func (c *cli) say(text string) {
	if !c.Progress {
		fmt.Fprintln(c.Stderr, oneLine(text))
		return
	}
	width := c.width()
	writeWords(c.Stderr, width, "", "  ", "", unbroken(strings.Fields(escape(text)), width-2))
}

// Check tells whether a command line names a command and flags that there are, whose values may be: a page that shows it is right. It
// does not look at arguments, which may be placeholders.
func Check(args []string) error {
	root := (&cli{Env: Env{Getenv: func(string) string { return "" }}}).root()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(rest); err != nil {
		return fmt.Errorf("%s: %w", cmd.CommandPath(), err)
	}
	if cmd.HasSubCommands() {
		return cmd.ValidateArgs(cmd.Flags().Args())
	}
	return nil
}
