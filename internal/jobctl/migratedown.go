package jobctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/human"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// migrateDown is the command's flags.
type migrateDown struct {
	to                 int64 // -1: one step
	yes, force, dryRun bool
}

func (c *cli) migrateDown() *cobra.Command {
	var d migrateDown
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Take migrations back, with what is in their tables",
		Long: `Down takes the newest migration back, or with --to all that are newer than that
version. It is for a migration that you regret and for development: a program that
is rolled back needs no down, it goes on beside the newer schema.

What the migrations made is lost: it says what, and how much, and asks (--yes
answers, and is required where nobody can be asked). It refuses while workers are
alive, unless --force; stop them first. One who migrates at the same time, up or
down, waits for the other.`,
		Example: `  jobctl migrate down --dry-run
  jobctl migrate down
  jobctl migrate down --to 2 --yes`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0:
				return cobra.NoArgs(cmd, args)
			case cmd.Flags().Changed("to") && d.to < 0:
				return errors.New("--to must be 0 or more; 0 leaves no table")
			case !d.yes && !d.dryRun && !c.Ask:
				return errors.New("down loses data, and there is no terminal to ask on: add --yes, or --dry-run to see what it loses")
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			db, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer db.pool.Close()
			return db.explain(c.goDown(cmd.Context(), db, d))
		},
	}
	flags := cmd.Flags()
	flags.Int64Var(&d.to, "to", -1, "the `version` to go back to; else one step")
	flags.BoolVar(&d.yes, "yes", false, "do not ask")
	flags.BoolVar(&d.force, "force", false, "also while workers are alive")
	flags.BoolVar(&d.dryRun, "dry-run", false, "change nothing; tell what would be lost")
	return cmd
}

func (c *cli) goDown(ctx context.Context, db *database, d migrateDown) error {
	all, err := postgres.Migrations(ctx, db.pool)
	if len(all) == 0 {
		return err
	}
	from, to := int64(0), d.to
	for _, m := range all {
		if m.Name == "" {
			return findingf("the schema has version %d, which this jobctl does not know: take it back with the jobctl that made it", m.Version)
		}
		if !m.AppliedAt.IsZero() {
			from = max(from, m.Version)
		}
	}
	if to < 0 {
		to = max(from-1, 0)
	}
	out := struct {
		From      int64           `json:"from"`
		To        int64           `json:"to"`
		TakenBack []migration     `json:"taken_back"`
		Lost      []postgres.Loss `json:"lost"`
		Workers   []string        `json:"live_workers"`
		DryRun    bool            `json:"dry_run,omitempty"`
	}{from, to, []migration{}, []postgres.Loss{}, []string{}, d.dryRun}
	if to > from {
		return findingf("the schema has version %d; only `jobctl migrate up` goes to %d", from, to)
	}
	if to == from {
		return c.print(out, func(w io.Writer) { fmt.Fprintln(w, "nothing to do") })
	}
	op := postgres.Operator{Pool: db.pool}
	if out.Workers, err = op.LiveWorkers(ctx); err != nil {
		return err
	}
	lost, err := op.Losses(ctx, from, to)
	if err != nil {
		return err
	}
	out.Lost = append(out.Lost, lost...)
	var names, losses []string
	for _, m := range all {
		if m.Version > to && m.Version <= from {
			names = append(names, m.Name)
		}
	}
	for _, l := range lost {
		losses = append(losses, fmt.Sprintf("%s: %s", l.What, lossCount(l.N)))
	}
	would := fmt.Sprintf("takes back %s, from version %d to %d", strings.Join(names, " and "), from, to)
	if d.dryRun {
		return c.print(out, func(w io.Writer) {
			fmt.Fprintln(w, "would:", would)
			for _, l := range losses {
				fmt.Fprintln(w, "lost: ", l)
			}
			if len(losses) == 0 {
				fmt.Fprintln(w, "nothing stored would be lost")
			}
			if n := len(out.Workers); n > 0 {
				fmt.Fprintf(w, "refused while %s alive: %s\n", human.Count(n, "worker is", "workers are"), escape(strings.Join(firstOf(out.Workers), ", ")))
			}
		})
	}
	if n := len(out.Workers); n > 0 && !d.force {
		return findingf("%s alive (%s) and would lose the tables they work on; stop them first, or add --force; nothing was changed",
			human.Count(n, "worker is", "workers are"), strings.Join(firstOf(out.Workers), ", "))
	}
	if !d.yes {
		c.note("this %s", would)
		for _, l := range losses {
			c.note("  lost: %s", l)
		}
		if err := c.confirm(ctx, "Go down?"); err != nil {
			return err
		}
	}
	done, err := postgres.MigrateDown(ctx, db.pool, from, to, func(why error) { c.note("%s (Ctrl-C gives up)", why) })
	for _, m := range done {
		out.TakenBack = append(out.TakenBack, migration{Version: m.Version, Name: m.Name})
	}
	if err == nil || len(done) > 0 {
		if err := c.print(out, func(w io.Writer) {
			for _, m := range done {
				fmt.Fprintln(w, "took back", m.Name)
			}
		}); err != nil {
			return err
		}
	}
	return interrupted(ctx, err, len(done), len(names))
}

// interrupted says how far an interrupted migration got.
func interrupted(ctx context.Context, err error, done, of int) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return findingf("interrupted after %d of %s, nothing is half done; running it again is safe and goes on from there", done, human.Count(of, "migration", "migrations"))
}

func lossCount(n int64) string {
	if n > postgres.LossLimit {
		return fmt.Sprintf("more than %d", postgres.LossLimit)
	}
	return fmt.Sprint(n)
}

// firstOf is what fits into a line.
func firstOf(names []string) []string {
	const most = 3
	if len(names) <= most {
		return names
	}
	return append(names[:most:most], fmt.Sprintf("and %d more", len(names)-most))
}
