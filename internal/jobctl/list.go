package jobctl

import (
	"cmp"
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
	"github.com/jobgen-go/jobgen/internal/human"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// listMost bounds what one list reads into memory.
const listMost = 10_000

func (c *cli) jobsList() *cobra.Command {
	var s selection
	var limit int
	before := int64(math.MaxInt64)
	cmd := &cobra.Command{
		Use:   "list [ID…]",
		Short: "List jobs, newest first",
		Long: `List shows the jobs that are queued, running or dead, newest first; with
--status cancelled or succeeded, those that have left the queue and stay on
record. The columns:

  TRIES  how often the job has been started, of how often at most
  AGE    how long ago it was enqueued
  NOTE   queued: since when or in how long it is due; running: for how long;
         and the first line of the error of the last attempt
` + selectionHelp + `
Interrupted, it prints what it has found, and says where to go on. With --json,
last_error has at most 300 characters; jobs show has all of it. Exit status 1 if
no job matches.`,
		Example: `  jobctl jobs list --status dead
  jobctl jobs list --status ready --kind mail.send --waiting 1h
  jobctl jobs list --payload customer.id=17 --error timeout
  jobctl jobs list --status dead --json | jq '.jobs[].id'`,
		Args: func(_ *cobra.Command, args []string) error { return s.check(args) },
		PreRunE: func(*cobra.Command, []string) error {
			if limit < 1 || limit > listMost {
				return fmt.Errorf("--limit is %d; it may be 1 to %d", limit, listMost)
			}
			if before < 1 {
				return fmt.Errorf("--before is %d; it is the id of a job", before)
			}
			return nil
		},
		ValidArgsFunction: c.completeIDs(),
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, _ []string) error {
			return c.list(ctx, op, &s, before, limit)
		}),
	}
	s.flags(c, cmd, append(slices.Clone(statuses), archived...), false)
	flags := cmd.Flags()
	flags.IntVar(&limit, "limit", 50, "how many at most")
	flags.Int64Var(&before, "before", before, "only jobs with ids below this `id`: the next page")
	flags.Lookup("before").DefValue = "0" // which pflag does not print
	return cmd
}

// listing is what a list has found: more than limit tells that there are more, and goOn where an interrupted one goes on.
type listing struct {
	jobs   []engine.Job
	looked int64
	goOn   int64
}

func (c *cli) list(ctx context.Context, op postgres.Operator, s *selection, before int64, limit int) error {
	if err := s.resolve(ctx, op); err != nil {
		return err
	}
	l, err := c.find(ctx, op, s.filter, before, limit)
	if err != nil {
		return err
	}
	now, err := op.Now(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	out := struct {
		Jobs        []engine.Job `json:"jobs"`
		Before      int64        `json:"before,omitempty"` // what --before must be for the next page
		Interrupted bool         `json:"interrupted,omitempty"`
		Now         time.Time    `json:"now"`
	}{l.jobs, l.goOn, l.goOn > 0, now.UTC()}
	if len(l.jobs) > limit {
		out.Jobs, out.Before = l.jobs[:limit], l.jobs[limit-1].ID
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
	walked := ""
	if l.looked >= walkedMany {
		walked = fmt.Sprintf(" (looked at %s)", human.Number(l.looked))
	}
	switch n := len(out.Jobs); {
	case out.Interrupted:
		return findingf("interrupted after looking at %s jobs; --before %d goes on", human.Number(l.looked), l.goOn)
	case n == 0:
		if s.key != "" && !strings.Contains(s.key, "/") {
			return findingf("no jobs%s%s; emitted code makes keys like 1/s3:o-17 (jobs show prints one whole): look by payload, --payload order_id=o-17, or give it so", s, walked)
		}
		return findingf("no jobs%s%s", s, walked)
	case out.Before != 0:
		c.note("%s, newest first, and there are more: --before %d shows the next%s", human.Count(n, "job", "jobs"), out.Before, walked)
	default:
		c.note("%s%s, newest first; that is all%s", human.Count(n, "job", "jobs"), s, walked)
	}
	if j := out.Jobs; len(j) > 0 && !slices.ContainsFunc(j, func(j engine.Job) bool { return j.Status != "dead" }) {
		c.note("why one died: jobctl jobs show %d; for a fresh start: jobctl jobs requeue, with these filters", j[0].ID)
	}
	return nil
}

// walkedMany is at how many jobs a list has looked if it says so.
const walkedMany = 100_000

// find looks for limit jobs and one more, from the newest one with an id below before down.
func (c *cli) find(ctx context.Context, op postgres.Operator, f engine.Filter, before int64, limit int) (l listing, err error) {
	live := f
	live.Statuses = slices.DeleteFunc(slices.Clone(f.Statuses), func(s string) bool { return slices.Contains(archived, s) })
	left := f
	left.Statuses = slices.DeleteFunc(slices.Clone(f.Statuses), func(s string) bool { return !slices.Contains(archived, s) })
	if len(left.Statuses) == 0 || len(live.Statuses) > 0 {
		if err := c.findLive(ctx, op, live, before, limit, &l); err != nil {
			return l, err
		}
	}
	if len(left.Statuses) > 0 && l.goOn == 0 {
		if err := c.findArchived(ctx, op, left, before, limit, &l); err != nil {
			return l, err
		}
	}
	slices.SortFunc(l.jobs, func(a, b engine.Job) int { return cmp.Compare(b.ID, a.ID) })
	l.jobs = l.jobs[:min(len(l.jobs), limit+1)]
	return l, nil
}

func (c *cli) findLive(ctx context.Context, op postgres.Operator, f engine.Filter, before int64, limit int, l *listing) error {
	if before == 1 {
		return nil
	}
	walk, err := op.Walk(ctx, f, true, before-1)
	if err != nil {
		return err
	}
	defer c.progress("")
	began := time.Now()
	var ids []int64
	for !walk.Done() && len(ids) <= limit {
		found, err := walk.Next(ctx, limit+1-len(ids))
		if err != nil && (ctx.Err() == nil || walk.At == 0) {
			return err
		}
		if err != nil {
			l.goOn = walk.At
			break
		}
		ids = append(ids, found...)
		if time.Since(began) > progressFrom {
			c.progress(walked(walk, began) + fmt.Sprintf("; %d found", len(ids)))
		}
	}
	l.looked += walk.Looked
	if len(ids) == 0 {
		return nil
	}
	l.jobs, err = op.List(context.WithoutCancel(ctx), ids)
	return err
}

func (c *cli) findArchived(ctx context.Context, op postgres.Operator, f engine.Filter, before int64, limit int, l *listing) error {
	defer c.progress("")
	high, began, n := before-1, time.Now(), 0
	for next := high; next > 0 && n <= limit; {
		found, at, looked, err := op.NextArchived(ctx, f, next, archiveStep, limit+1-n)
		if err != nil && ctx.Err() != nil && next != high {
			l.goOn = next + 1
			return nil
		}
		if err != nil {
			return err
		}
		for _, a := range found {
			l.jobs = append(l.jobs, engine.Job{
				ID: a.ID, Status: a.Status, Queue: a.Queue, Kind: a.Kind, Key: a.Key, Version: a.Version, Attempt: a.Attempt, Crashes: a.Crashes,
				CreatedAt: a.CreatedAt, FinishedAt: &a.FinishedAt, LastError: a.Reason,
			})
		}
		n, next = n+len(found), at
		if l.looked += looked; time.Since(began) > progressFrom {
			c.progress(fmt.Sprintf("looked at %s jobs on record; %d found", human.Number(l.looked), n))
		}
	}
	return nil
}

const (
	// archiveStep is at how many jobs on record one statement looks.
	archiveStep = 20_000
	// progressFrom is how long a command takes before it shows how far it is.
	progressFrom = 500 * time.Millisecond
)

// walked tells how far a walk has got.
func walked(w *postgres.Walk, began time.Time) string {
	text := "looked at " + human.Number(w.Looked) + " jobs"
	if part := position(w); w.All() && part > 0 {
		text += fmt.Sprintf(" (%d%%)", int(part*100))
	}
	if took := time.Since(began); took >= time.Second {
		text += fmt.Sprintf(", %s/s", human.Number(int64(float64(w.Looked)/took.Seconds())))
	}
	return text
}

// position tells which part of the ids a walk has behind it.
func position(w *postgres.Walk) float64 {
	if w.First == w.Last {
		return 0
	}
	return float64(w.At-w.First) / float64(w.Last-w.First)
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
			strconv.FormatInt(j.ID, 10), j.Status, escape(j.Kind), escape(j.Queue), tries(j),
			human.Age(now.Sub(j.CreatedAt)), c.time(j.CreatedAt), note(j, now),
		} {
			table[i].cells = append(table[i].cells, cell)
		}
	}
	if c.width() < createdFrom {
		table = slices.DeleteFunc(table, func(c column) bool { return c.title == "CREATED" })
	}
	return table
}

func tries(j engine.Job) string {
	if j.MaxAttempts == 0 { // it has left the queue
		return strconv.Itoa(j.Attempt)
	}
	return fmt.Sprintf("%d/%d", j.Attempt, j.MaxAttempts)
}

// note is what matters most of a job at a glance.
func note(j engine.Job, now time.Time) string {
	when := since(j.Status, j.RunAt, j.ClaimedAt, now)
	if j.FinishedAt != nil {
		when = human.Age(now.Sub(*j.FinishedAt)) + " ago"
	}
	if j.Crashes > 0 && j.Status != "dead" {
		when += ", " + human.Count(j.Crashes, "crash", "crashes")
	}
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
		return "for " + human.Age(now.Sub(*claimedAt))
	case status == "queued" && runAt.After(now):
		return "due in " + human.Age(runAt.Sub(now))
	case status == "queued":
		return "due " + human.Age(now.Sub(runAt)) + " ago"
	}
	return ""
}

func utc(j *engine.Job) {
	j.RunAt, j.CreatedAt = j.RunAt.UTC(), j.CreatedAt.UTC()
	for _, p := range []**time.Time{&j.ClaimedAt, &j.FinishedAt, &j.Deadline} {
		if *p != nil {
			t := (*p).UTC()
			*p = &t
		}
	}
}
