package jobctl

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// What is shown unless --full is given.
const (
	errorLines   = 3
	payloadLines = 60
	attemptsMost = 20
)

// story is all that is on record of a job.
type story struct {
	ID int64 `json:"id"`
	// Status is the job's, or of a job that is not in the queue: finished, cancelled, removed, ended or unknown.
	Status   string           `json:"status"`
	Job      *engine.Job      `json:"job,omitempty"`
	Result   *engine.Result   `json:"result,omitempty"`
	Archived *engine.Archived `json:"archived,omitempty"`
	Attempts []engine.Attempt `json:"attempts"`
	Now      time.Time        `json:"now"`
}

func (c *cli) jobsShow() *cobra.Command {
	var full bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show all that is on record of a job",
		Long: `Show prints the job, its payload, its headers, the attempts that failed or
crashed with their times and errors, and the result if it has finished. It cuts
long errors, payloads and histories; --full prints all.

The status of a job that is not in the queue any more:

  finished  its result, or that it is done, is on record
  cancelled somebody cancelled it, or its deadline passed; it is on record with
            the reason for 30 days
  removed   its key is on record, but it was removed by hand before it finished
  ended     nothing but failed attempts is left: it finished and its kind keeps
            no record, or it was purged
  unknown   nothing is on record, and the exit status is 1. A job whose kind has
            neither a key nor a result leaves no record when it succeeds.`,
		Example: `  jobctl jobs show 4711
  jobctl jobs show 4711 --full | less
  jobctl jobs show 4711 --json | jq .job.payload`,
		Args:              oneID,
		ValidArgsFunction: c.completeIDs(),
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			s := story{ID: ids[0]}
			found, err := op.Show(ctx, s.ID)
			if err != nil {
				return err
			}
			s.Job, s.Result, s.Archived, s.Attempts = found.Job, found.Result, found.Archived, found.Attempts
			if s.Now, err = op.Now(ctx); err != nil {
				return err
			}
			if s.Status = s.status(); s.Job != nil && s.Result != nil && s.Result.FinishedAt == nil {
				s.Result = nil // it only says that the key is this job's
			}
			return c.show(s, full)
		}),
	}
	cmd.Flags().BoolVar(&full, "full", false, "print errors, payload and history whole")
	return cmd
}

func (s *story) status() string {
	switch {
	case s.Job != nil:
		return s.Job.Status
	case s.Result != nil && s.Result.FinishedAt != nil:
		return "finished"
	case s.Archived != nil:
		return s.Archived.Status
	case s.Result != nil:
		return "removed"
	case len(s.Attempts) > 0:
		return "ended"
	}
	return "unknown"
}

func (c *cli) show(s story, full bool) error {
	if c.json {
		s.utc()
	}
	if err := c.print(s, func(w io.Writer) {
		if s.Status != "unknown" {
			c.writeStory(w, s, full)
		}
	}); err != nil {
		return err
	}
	if s.Status == "unknown" {
		return findingf("job %d is unknown: nothing is on record (one that succeeded leaves a record only if its kind has a key or a result)", s.ID)
	}
	return nil
}

func (c *cli) writeStory(w io.Writer, s story, full bool) {
	fmt.Fprintln(w, s.headline())
	field := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-11s %s\n", name, escape(fmt.Sprintf(format, args...)))
	}
	moment := func(name string, t time.Time) {
		ago := "in " + age(t.Sub(s.Now))
		if !t.After(s.Now) {
			ago = age(s.Now.Sub(t)) + " ago"
		}
		field(name, "%s (%s)", c.time(t), ago)
	}
	if j := s.Job; j != nil {
		fmt.Fprintln(w)
		field("kind", "%s, version %d", j.Kind, j.Version)
		field("queue", "%s, priority %d", j.Queue, j.Priority)
		if j.Key != "" {
			field("key", "%s", j.Key)
		}
		field("tries", "%d of %d, and %s", j.Attempt, j.MaxAttempts, count(j.Crashes, "crash", "crashes"))
		moment("created", j.CreatedAt)
		if j.Status == "queued" {
			moment("due", j.RunAt)
		}
		if j.Deadline != nil {
			moment("deadline", *j.Deadline)
		}
		if j.Snoozes > 0 {
			field("put off", "%s", count(j.Snoozes, "time", "times"))
		}
		if j.Cancel != nil {
			field("cancel", "%s", cmp.Or(*j.Cancel, "asked for, without a reason"))
		}
		if j.ClaimedAt != nil {
			moment("last start", *j.ClaimedAt)
		}
		if j.WorkerID != nil {
			field("worker", "%s", j.WorkerID)
		}
		writeContent(w, j.Headers, j.Payload, full)
	}
	if a := s.Archived; a != nil {
		fmt.Fprintln(w)
		field("kind", "%s, version %d", a.Kind, a.Version)
		field("queue", "%s", a.Queue)
		if a.Key != "" {
			field("key", "%s (not taken by this job any more)", a.Key)
		}
		if a.Reason != "" {
			field("reason", "%s", a.Reason)
		}
		field("tries", "%d, and %s", a.Attempt, count(a.Crashes, "crash", "crashes"))
		moment("created", a.CreatedAt)
		moment(a.Status, a.FinishedAt)
		moment("kept until", a.ExpiresAt)
		writeContent(w, a.Headers, a.Payload, full)
	}
	finished := s.Result != nil && s.Result.FinishedAt != nil
	if finished {
		fmt.Fprintln(w)
		field("kind", "%s", s.Result.Kind)
		if s.Result.Key != fmt.Sprintf("job:%d", s.ID) { // made up for a kind without a key
			field("key", "%s", s.Result.Key)
		}
		moment("finished", *s.Result.FinishedAt)
		moment("kept until", *s.Result.ExpiresAt)
	}
	c.writeHistory(w, s, full)
	switch {
	case finished && len(s.Result.Result) == 0:
		fmt.Fprintln(w, "\nthe result has no value")
	case finished:
		fmt.Fprintln(w, "\nresult")
		writeJSON(w, s.Result.Result, full)
	}
}

// headline says in one line what became of the job, and what can be done.
func (s *story) headline() string {
	switch s.Status {
	case "queued":
		return fmt.Sprintf("job %d is queued, %s", s.ID, since(s.Status, s.Job.RunAt, nil, s.Now))
	case "running":
		return strings.TrimRight(fmt.Sprintf("job %d is running %s", s.ID, since(s.Status, s.Job.RunAt, s.Job.ClaimedAt, s.Now)), " ")
	case "dead":
		return fmt.Sprintf("job %d is dead; for a fresh start: jobctl jobs requeue %d", s.ID, s.ID)
	case "finished":
		return fmt.Sprintf("job %d has finished, %s ago", s.ID, age(s.Now.Sub(*s.Result.FinishedAt)))
	case "cancelled":
		return fmt.Sprintf("job %d was cancelled, %s ago", s.ID, age(s.Now.Sub(s.Archived.FinishedAt)))
	case "removed":
		return escape(fmt.Sprintf("job %d is gone without a result: its row was removed by hand; its key %s is free", s.ID, s.Result.Key))
	}
	return fmt.Sprintf("job %d has ended without a record (its kind keeps none, or it was purged); what is left:", s.ID)
}

func (c *cli) writeHistory(w io.Writer, s story, full bool) {
	shown, most := s.Attempts, errorLines
	if full {
		most = 0
	} else if len(shown) > attemptsMost {
		shown = shown[len(shown)-attemptsMost:]
	}
	if len(s.Attempts) > 0 {
		fmt.Fprintf(w, "\n%s did not succeed\n", count(len(s.Attempts), "attempt", "attempts"))
	}
	if n := len(s.Attempts) - len(shown); n > 0 {
		fmt.Fprintf(w, "  … %d earlier; --full shows all\n", n)
	}
	for _, a := range shown {
		after := ", after " + took(a.EndedAt.Sub(a.StartedAt))
		if a.WorkerID == uuid.Nil { // cancelled while it waited
			after = ""
		}
		fmt.Fprintf(w, "  %d  %s %s%s\n", a.Attempt, c.time(a.StartedAt), a.Outcome, after)
		writeLines(w, "     ", a.Error, most)
	}
	// As a rule the last error is that of the last attempt; the history may have been purged.
	if j := s.Job; j != nil && j.LastError != "" && (len(shown) == 0 || shown[len(shown)-1].Error != j.LastError) {
		fmt.Fprintln(w, "\nlast error")
		writeLines(w, "  ", j.LastError, most)
	}
}

func writeContent(w io.Writer, headers map[string]string, payload json.RawMessage, full bool) {
	if len(headers) > 0 {
		fmt.Fprintln(w, "\nheaders")
		for _, name := range slices.Sorted(maps.Keys(headers)) {
			fmt.Fprintf(w, "  %s: %s\n", escape(name), escape(headers[name]))
		}
	}
	fmt.Fprintln(w, "\npayload")
	writeJSON(w, payload, full)
}

// writeJSON writes indented JSON. The database keeps jsonb, so the order of fields is its own.
func writeJSON(w io.Writer, raw json.RawMessage, full bool) {
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		b.Reset()
		b.Write(raw)
	}
	most := payloadLines
	if full {
		most = 0
	}
	writeLines(w, "  ", escapeJSON(b.String()), most)
}

func writeLines(w io.Writer, indent, text string, most int) {
	shown, more := lines(text, most)
	for _, line := range shown {
		fmt.Fprintln(w, strings.TrimRight(indent+line, " "))
	}
	if more > 0 {
		fmt.Fprintf(w, "%s… %d more lines; --full shows all\n", indent, more)
	}
}

func (s *story) utc() {
	s.Now = s.Now.UTC()
	if s.Job != nil {
		utc(s.Job)
	}
	if s.Result != nil {
		for _, t := range []*time.Time{s.Result.FinishedAt, s.Result.ExpiresAt} {
			if t != nil {
				*t = t.UTC()
			}
		}
	}
	if a := s.Archived; a != nil {
		a.CreatedAt, a.FinishedAt, a.ExpiresAt = a.CreatedAt.UTC(), a.FinishedAt.UTC(), a.ExpiresAt.UTC()
	}
	for i := range s.Attempts {
		a := &s.Attempts[i]
		a.StartedAt, a.EndedAt = a.StartedAt.UTC(), a.EndedAt.UTC()
	}
}
