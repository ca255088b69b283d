package jobctl

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/human"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

const (
	sinceLeast = 5 * time.Minute
	sinceMost  = 14 * 24 * time.Hour // samples are kept for as long
	everyLeast = 200 * time.Millisecond
)

// statsFlags are what a person asks stats for.
type statsFlags struct {
	queues, kinds []string
	by            string
	since, every  time.Duration
	watch, check  bool
}

func (c *cli) stats() *cobra.Command {
	var f statsFlags
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "What waits, which way it moves, and what is about to hurt",
		Long: `Stats shows, worst first, what waits in each queue and of each kind, and which
way it moves: how many jobs are ready says nothing about that, only how it has
changed does.

  READY      jobs that could start now, and OLDEST: for how long the first has
             been waiting
  IN, OUT    jobs that became due and that ended for good, a minute, of late
  GROWTH/H   by how many the waiting jobs grow an hour at these rates
  LAST 1h    the ready jobs over that time, from 0 to the row's highest value
  DRAINS     when nothing will be waiting at these rates; "never" if they grow
  RECLAIMED  attempts that ended because their worker was lost: workers dying

Below are what happened in that time, and the sizes of the tables. Names that
are too long are cut in the middle; --json has them whole, and exact numbers.

With --watch it looks again every --interval, until Ctrl-C: in place on a
terminal, else one block after another, with --json one object on a line. While
the database is away it goes on trying, and says how old the picture is.

Exit status 0; with --check 1 if a queue never drains, workers die, or none is
alive.`,
		Example: `  jobctl stats
  jobctl stats --watch --queue mail
  jobctl stats --by kind --since 6h
  jobctl stats --check >/dev/null || page-somebody
  jobctl stats --json | jq '.rows[] | select(.trend.verdict == "never")'`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case f.by != "" && f.by != "queue" && f.by != "kind":
				return fmt.Errorf("--by is %q; it may be queue or kind", f.by)
			case f.since < sinceLeast || f.since > sinceMost:
				return fmt.Errorf("--since is %s; it may be %s to %s", f.since, span(sinceLeast), span(sinceMost))
			case f.every < everyLeast:
				return fmt.Errorf("--interval is %s; it may be %s or more", f.every, everyLeast)
			case f.watch && f.check:
				return fmt.Errorf("give either --watch or --check, not both")
			case cmd.Flags().Changed("interval") && !f.watch:
				return fmt.Errorf("--interval goes with --watch")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return c.runStats(cmd, f) },
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.queues, "queue", nil, "only this `queue`; may be repeated")
	flags.StringArrayVar(&f.kinds, "kind", nil, "only this `kind`; may be repeated")
	flags.StringVar(&f.by, "by", "", "a row for each `queue`, or for each kind, in place of both")
	flags.DurationVar(&f.since, "since", time.Hour, "how far back the series go")
	flags.BoolVar(&f.watch, "watch", false, "look again and again")
	flags.DurationVar(&f.every, "interval", 2*time.Second, "how often --watch looks")
	flags.BoolVar(&f.check, "check", false, "exit status 1 if something never drains or workers die")
	_ = cmd.RegisterFlagCompletionFunc("kind", c.completeKinds(false))
	_ = cmd.RegisterFlagCompletionFunc("queue", c.completeQueues())
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions([]string{"queue", "kind"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (c *cli) runStats(cmd *cobra.Command, f statsFlags) error {
	db, err := c.connect(cmd.Context())
	if err != nil {
		return err
	}
	defer db.close()
	op := postgres.Operator{Pool: db.pool}
	var m memory
	look := func(ctx context.Context) (picture, error) {
		v, err := f.look(ctx, op)
		if err != nil {
			return picture{}, db.explain(lacking(err))
		}
		m.remember(&f, &v)
		return f.draw(v), nil
	}
	if err := op.Check(cmd.Context()); err != nil {
		return db.explain(err)
	}
	if f.watch {
		return watch(cmd.Context(), c, watching[picture]{every: f.every, look: look, text: c.pictureText, line: c.pictureLine})
	}
	p, err := look(cmd.Context())
	if err != nil {
		return err
	}
	if err := c.print(p, func(w io.Writer) { c.writePicture(w, &p, nil) }); err != nil {
		return err
	}
	if len(p.Rows) == 0 && len(f.queues)+len(f.kinds) > 0 {
		c.note("nothing is known of it in the last %s; see `jobctl queues list`, and jobctl stats without --queue and --kind", span(f.since))
	}
	if n := p.failing(); f.check && n > 0 {
		return findingf("%s", human.Count(n, "thing is wrong", "things are wrong"))
	}
	return nil
}

// look reads all that a picture is made of.
func (f *statsFlags) look(ctx context.Context, op postgres.Operator) (v view, err error) {
	if v, err = f.counts(ctx, op); err == nil {
		v.sizes, v.noSizes = op.Sizes(ctx) // they are not worth failing for
	}
	return v, err
}

// counts is look without the sizes.
func (f *statsFlags) counts(ctx context.Context, op postgres.Operator) (v view, err error) {
	if v.look, err = op.Look(ctx); err != nil {
		return v, err
	}
	if v.samples, err = op.Samples(ctx, f.since); err != nil {
		return v, err
	}
	if v.looks, err = op.Looks(ctx, f.since); err != nil {
		return v, err
	}
	if v.crews, err = op.Crews(ctx); err != nil {
		return v, err
	}
	if v.lost, v.silent, err = op.LostWorkers(ctx, f.since); err != nil {
		return v, err
	}
	queues, now, err := op.Queues(ctx)
	if err != nil {
		return v, err
	}
	v.paused = map[string]time.Duration{}
	for _, q := range queues {
		if q.PausedAt != nil {
			v.paused[q.Name] = now.Sub(*q.PausedAt)
		}
	}
	return v, ctx.Err()
}

// failing counts what --check fails for.
func (p *picture) failing() (n int) {
	for _, f := range p.Findings {
		if f.Fails {
			n++
		}
	}
	return n
}

func (c *cli) pictureText(p picture, down *outage) string {
	var b strings.Builder
	c.writePicture(&b, &p, down)
	return b.String()
}

// pictureLine is a picture on a line of JSON, or that there is none.
func (c *cli) pictureLine(p *picture, down *outage) string {
	var v any = p
	if p == nil {
		v = struct {
			Now   time.Time `json:"now"`
			Error string    `json:"error"`
		}{time.Now().UTC(), down.text}
	}
	line, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return escapeJSON(string(line))
}
