package jobctl

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

var statuses = []string{"queued", "running", "dead"}

// listMost bounds what one list reads into memory.
const listMost = 10_000

func (c *cli) jobsList() *cobra.Command {
	var filter engine.Filter
	var limit int
	before := int64(math.MaxInt64)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List queued, running and dead jobs, newest first",
		Long: `List shows the jobs that are queued, running or dead, newest first; finished
jobs have left the queue. The columns:

  TRIES  how often the job has been started, of how often at most
  AGE    how long ago it was enqueued
  NOTE   queued: since when or in how long it is due; running: for how long;
         and the first line of the error of the last attempt

With --json, last_error has at most 300 characters; jobs show has all of it.
Exit status 1 if no job matches.`,
		Example: `  jobctl jobs list --status dead
  jobctl jobs list --status queued,running --kind mail.send --limit 200
  jobctl jobs list --status dead --json | jq '.jobs[].id'`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			for _, s := range filter.Statuses {
				if !slices.Contains(statuses, s) {
					return fmt.Errorf("--status is %q; it may be %s", s, strings.Join(statuses, ", "))
				}
			}
			if limit < 1 || limit > listMost {
				return fmt.Errorf("--limit is %d; it may be 1 to %d", limit, listMost)
			}
			if before < 1 {
				return fmt.Errorf("--before is %d; it is the id of a job", before)
			}
			return nil
		},
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, _ []string) error {
			jobs, err := op.List(ctx, filter, before, limit+1)
			if err != nil {
				return err
			}
			now, err := op.Now(ctx)
			if err != nil {
				return err
			}
			return c.list(filter, jobs, limit, now)
		}),
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&filter.Statuses, "status", nil, "only `queued`, running, dead; joined by commas")
	flags.StringArrayVar(&filter.Kinds, "kind", nil, "only this `kind`; may be repeated")
	flags.StringArrayVar(&filter.Queues, "queue", nil, "only this `queue`; may be repeated")
	flags.IntVar(&limit, "limit", 50, "how many at most")
	flags.Int64Var(&before, "before", before, "only jobs with ids below this `id`: the next page")
	flags.Lookup("before").DefValue = "0" // which pflag does not print
	_ = cmd.RegisterFlagCompletionFunc("status", completeList(statuses))
	_ = cmd.RegisterFlagCompletionFunc("kind", c.completeKinds(false))
	return cmd
}

// list prints up to limit of jobs; one more of them tells that there are more.
func (c *cli) list(filter engine.Filter, jobs []engine.Job, limit int, now time.Time) error {
	out := struct {
		Jobs   []engine.Job `json:"jobs"`
		Before int64        `json:"before,omitempty"` // what --before must be for the next page
		Now    time.Time    `json:"now"`
	}{jobs, 0, now.UTC()}
	if len(jobs) > limit {
		out.Jobs, out.Before = jobs[:limit], jobs[limit-1].ID
	}
	if c.json {
		for i := range out.Jobs {
			utc(&out.Jobs[i])
		}
	}
	if err := c.print(out, func(w io.Writer) {
		if len(out.Jobs) > 0 {
			writeTable(w, c.width(), c.columns(out.Jobs, now))
		}
	}); err != nil {
		return err
	}
	switch n := len(out.Jobs); {
	case n == 0:
		return findingf("no jobs%s", describe(filter))
	case out.Before != 0:
		c.note("%s, newest first, and there are more: --before %d shows the next", count(n, "job", "jobs"), out.Before)
	default:
		c.note("%s%s, newest first; that is all", count(n, "job", "jobs"), describe(filter))
	}
	return nil
}

// describe says what a filter left.
func describe(f engine.Filter) string {
	var parts []string
	for _, p := range []struct {
		name   string
		values []string
	}{{"status", f.Statuses}, {"kind", f.Kinds}, {"queue", f.Queues}} {
		if len(p.values) > 0 {
			parts = append(parts, p.name+" "+strings.Join(p.values, " or "))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " with " + strings.Join(parts, " and ")
}

// createdFrom is how wide a terminal must be for the time of enqueueing to be shown beside the age.
const createdFrom = 120

func (c *cli) columns(jobs []engine.Job, now time.Time) []column {
	table := []column{
		{title: "ID"}, {title: "STATUS"}, {title: "KIND", min: 12}, {title: "QUEUE", min: 8, spare: 2}, {title: "TRIES"},
		{title: "AGE", spare: 1}, {title: "CREATED"}, {title: "NOTE", min: 14},
	}
	for _, j := range jobs {
		for i, cell := range []string{
			strconv.FormatInt(j.ID, 10), j.Status, escape(j.Kind), escape(j.Queue), fmt.Sprintf("%d/%d", j.Attempt, j.MaxAttempts),
			age(now.Sub(j.CreatedAt)), c.time(j.CreatedAt), note(j, now),
		} {
			table[i].cells = append(table[i].cells, cell)
		}
	}
	if c.width() < createdFrom {
		table = slices.DeleteFunc(table, func(c column) bool { return c.title == "CREATED" })
	}
	return table
}

// note is what matters most of a job at a glance.
func note(j engine.Job, now time.Time) string {
	when := since(j.Status, j.RunAt, j.ClaimedAt, now)
	if j.LastError == "" {
		return when
	}
	if when != "" {
		when += ": "
	}
	return when + firstLine(j.LastError)
}

// since tells for how long a queued or running job has been that.
func since(status string, runAt time.Time, claimedAt *time.Time, now time.Time) string {
	switch {
	case status == "running" && claimedAt != nil:
		return "for " + age(now.Sub(*claimedAt))
	case status == "queued" && runAt.After(now):
		return "due in " + age(runAt.Sub(now))
	case status == "queued":
		return "due " + age(now.Sub(runAt)) + " ago"
	}
	return ""
}

func utc(j *engine.Job) {
	j.RunAt, j.CreatedAt = j.RunAt.UTC(), j.CreatedAt.UTC()
	if j.ClaimedAt != nil {
		t := j.ClaimedAt.UTC()
		j.ClaimedAt = &t
	}
}
