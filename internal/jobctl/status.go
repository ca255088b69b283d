package jobctl

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/human"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// statusSince is how far status looks back.
const statusSince = 15 * time.Minute

// deadExact dead jobs are counted, also where the table is too big to count the others.
const deadExact = 1000

// standing is what status tells.
type standing struct {
	Now       time.Time `json:"now"`
	Server    string    `json:"server"`
	Standby   bool      `json:"standby,omitempty"`
	Schema    int64     `json:"schema"`
	Exact     bool      `json:"exact"` // false: ready and scheduled are estimates, and 1000 dead or more
	Workers   workforce `json:"workers"`
	Ready     int64     `json:"ready"`
	Oldest    float64   `json:"oldest_s"`
	Scheduled int64     `json:"scheduled"`
	Running   int64     `json:"running"`
	Dead      int64     `json:"dead"`
	Trend     trend     `json:"trend"`
	Findings  []trouble `json:"findings"`
	Well      bool      `json:"well"`
}

func (c *cli) status() *cobra.Command {
	var oldest time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Whether all is well, in a few lines",
		Long: `Status tells in a few lines who works, what waits and which way it moves, and
whether that is well; if not, why, and what to look at next. For a check by a
monitoring system: exit status 0 if all is well, 1 if not, 3 if the database cannot
be used. Not well is a queue that never drains at its present rates, workers that
die, jobs that wait while no worker is alive, and, with --oldest, a ready job that
has waited for longer than that. Dead jobs are told, and are no reason by themselves.`,
		Example: `  jobctl status
  jobctl status --oldest 5m >/dev/null || page-somebody
  jobctl status --json | jq .ready`,
		Args: func(cmd *cobra.Command, args []string) error {
			if oldest < 0 {
				return fmt.Errorf("--oldest is %s; it must not be negative", oldest)
			}
			return cobra.NoArgs(cmd, args)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, _ []string) error {
			s, err := lookStanding(ctx, op, oldest)
			if err != nil {
				return err
			}
			if err := c.print(s, func(w io.Writer) { c.writeStanding(w, s) }); err != nil {
				return err
			}
			if !s.Well {
				return &finding{}
			}
			return nil
		}),
	}
	cmd.Flags().DurationVar(&oldest, "oldest", 0, "not well if a ready job has waited for longer; 0: however long")
	return cmd
}

func lookStanding(ctx context.Context, op postgres.Operator, oldest time.Duration) (s standing, err error) {
	f := statsFlags{since: statusSince}
	v, err := f.counts(ctx, op)
	if err != nil {
		return s, err
	}
	p := f.draw(v)
	t := p.Total
	s = standing{
		Now: p.Now, Exact: p.Share >= 1, Workers: p.Workers, Ready: t.Ready, Oldest: t.Oldest, Scheduled: t.Scheduled, Running: t.Running, Dead: t.Dead,
		Trend: t.Trend, Findings: p.Findings, Well: p.failing() == 0,
	}
	if oldest > 0 && s.Oldest > oldest.Seconds() {
		s.Well = false
		s.Findings = append(s.Findings, trouble{What: "oldest", Fails: true, Text: fmt.Sprintf("a ready job has waited for %s, longer than %s", human.Age(seconds(s.Oldest)), span(oldest))})
	}
	if s.Schema, err = op.SchemaVersion(ctx); err != nil {
		return s, err
	}
	s.Server, s.Standby, err = serverOf(ctx, op)
	return s, err
}

// serverOf tells the server's version, and whether it is a standby.
func serverOf(ctx context.Context, op postgres.Operator) (version string, standby bool, err error) {
	conn, err := op.Pool.Acquire(ctx)
	if err != nil {
		return "", false, err
	}
	defer conn.Release()
	version, _, _ = strings.Cut(conn.Conn().PgConn().ParameterStatus("server_version"), " ")
	return version, conn.Conn().PgConn().ParameterStatus("in_hot_standby") == "on", nil
}

func (c *cli) writeStanding(w io.Writer, s standing) {
	about := ""
	if !s.Exact {
		about = "about "
	}
	server := "PostgreSQL " + s.Server
	if s.Standby {
		server += ", a standby"
	}
	line := func(name, text string) { wrapTo(w, c.width(), fmt.Sprintf("%-9s", name), "         ", text) }
	line("server", fmt.Sprintf("%s, jobgen's schema %d", server, s.Schema))
	workers := fmt.Sprintf("%d alive", s.Workers.Live)
	if s.Workers.Slots > 0 {
		workers += fmt.Sprintf(", %d of %d slots busy", s.Workers.Busy, s.Workers.Slots)
	}
	if s.Workers.Lost > 0 {
		workers += fmt.Sprintf("; %d lost in the last %s", s.Workers.Lost, span(statusSince))
	}
	line("workers", workers)
	ready := fmt.Sprintf("%s%s", about, short(float64(s.Ready)))
	if s.Ready > 0 {
		ready += fmt.Sprintf(", the oldest for %s; %s", human.Age(seconds(s.Oldest)), direction(s.Trend))
	}
	line("ready", ready)
	aboutDead := about
	if s.Dead < deadExact {
		aboutDead = ""
	}
	line("running", fmt.Sprintf("%s; scheduled %s%s; dead %s%s", short(float64(s.Running)), about, short(float64(s.Scheduled)), aboutDead, short(float64(s.Dead))))
	next := map[string]bool{}
	for _, f := range s.Findings {
		c.writeParagraph(w, map[bool]colour{true: hurts, false: careful}[f.Fails], "! "+f.Text)
		switch f.What {
		case "no_workers", "workers_die", "stuck":
			next["jobctl workers"] = true
		case "died":
			next["jobctl jobs list --status dead"] = true
		default:
			next["jobctl stats"] = true
		}
	}
	if s.Dead > 0 {
		next["jobctl jobs list --status dead"] = true
	}
	verdict := "well"
	if !s.Well {
		verdict = "not well"
	}
	if len(next) > 0 {
		verdict += "; look at `" + strings.Join(slices.Sorted(maps.Keys(next)), "`, `") + "`"
	}
	c.writeParagraph(w, plainly, verdict)
	if !s.Well {
		fmt.Fprintln(w, "what to do about it: `jobctl doctor`")
	}
}
