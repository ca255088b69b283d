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

	"github.com/jobgen-go/jobgen/internal/doctor"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/human"
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
	// Status is the job's, or of a job that is not in the queue: finished, succeeded, cancelled, deleted, removed, ended or unknown.
	Status   string              `json:"status"`
	Job      *engine.Job         `json:"job,omitempty"`
	Worker   *postgres.Runner    `json:"worker,omitempty"` // that runs it
	Waits    *postgres.Waits     `json:"waits,omitempty"`  // what stands between it and its start
	Why      []string            `json:"why,omitempty"`    // the same in words, the first thing first
	Holder   *postgres.KeyHolder `json:"key_holder,omitempty"`
	Result   *engine.Result      `json:"result,omitempty"`
	Archived *engine.Archived    `json:"archived,omitempty"`
	Attempts []engine.Attempt    `json:"attempts"`
	Now      time.Time           `json:"now"`
	drawn    int64
}

func (c *cli) jobsShow() *cobra.Command {
	var full bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show all that is on record of a job",
		Long: `Show tells a job's story: what it is, why it waits or who runs it, who has its
key if that is not the job itself, its payload and headers, its history (when it
was enqueued, each attempt that did not succeed, where it ran, how it ended, how
long the job waited before), and the result if it has finished. It cuts long
errors, payloads and histories; --full prints all.

The status of a job that is not in the queue any more:

  finished  its result, or that it is done, is on record
  succeeded so is the job itself, because its kind asks for it
  cancelled somebody cancelled it, or its deadline passed; it is on record with
            the reason for 30 days
  deleted   somebody deleted it; that is on record like a failed attempt
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
			s.Worker, s.Holder, s.drawn = found.Worker, found.Holder, found.Drawn
			if s.Now, err = op.Now(ctx); err != nil {
				return err
			}
			if s.Job != nil && s.Job.Status == "queued" {
				c.askWhy(ctx, op, &s)
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
	case len(s.Attempts) > 0 && s.Attempts[len(s.Attempts)-1].Outcome == "deleted":
		return "deleted"
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
		if s.ID > s.drawn {
			return findingf("job %d is unknown: nothing is on record, and no job has had that id yet (the last one is %d)", s.ID, s.drawn)
		}
		return findingf("job %d is unknown: nothing is on record: it succeeded and its kind keeps no record, or its record has expired, or the transaction that enqueued it was rolled back or is still open", s.ID)
	}
	return nil
}

func (c *cli) writeStory(w io.Writer, s story, full bool) {
	fmt.Fprintln(w, s.headline())
	field := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-11s %s\n", name, escape(fmt.Sprintf(format, args...)))
	}
	moment := func(name string, t time.Time) {
		ago := "in " + human.Age(t.Sub(s.Now))
		if !t.After(s.Now) {
			ago = human.Age(s.Now.Sub(t)) + " ago"
		}
		field(name, "%s (%s)", c.time(t), ago)
	}
	if j := s.Job; j != nil {
		fmt.Fprintln(w)
		field("kind", "%s, version %d", j.Kind, j.Version)
		field("queue", "%s, priority %d", j.Queue, j.Priority)
		if j.Key != "" {
			field("key", "%s%s", j.Key, s.whoseKey())
		}
		for _, why := range s.Why {
			field("waits", "%s", why)
		}
		field("tries", "%d of %d, and %s", j.Attempt, j.MaxAttempts, human.Count(j.Crashes, "crash", "crashes"))
		moment("created", j.CreatedAt)
		if j.Status == "queued" {
			moment("due", j.RunAt)
		}
		if j.Deadline != nil {
			moment("deadline", *j.Deadline)
		}
		if j.Snoozes > 0 {
			field("put off", "%s", human.Count(j.Snoozes, "time", "times"))
		}
		if j.Cancel != nil {
			field("cancel", "%s", cmp.Or(*j.Cancel, "asked for, without a reason"))
		}
		if j.ClaimedAt != nil {
			moment("last start", *j.ClaimedAt)
		}
		if j.WorkerID != nil {
			field("worker", "%s", s.runner())
		}
		writeContent(w, j.Headers, j.Payload, full)
	}
	if a := s.Archived; a != nil {
		fmt.Fprintln(w)
		field("kind", "%s, version %d", a.Kind, a.Version)
		field("queue", "%s", a.Queue)
		if a.Key != "" {
			field("key", "%s%s", a.Key, s.whoseKey())
		}
		if a.Reason != "" {
			field("reason", "%s", a.Reason)
		}
		field("tries", "%d, and %s", a.Attempt, human.Count(a.Crashes, "crash", "crashes"))
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
		if h := s.Holder; h != nil && h.Job > 0 && h.Job != s.ID && h.Status != "" && !h.Expired {
			return fmt.Sprintf("job %d is dead; its key is job %d's now: jobctl jobs show %d", s.ID, h.Job, h.Job)
		}
		return fmt.Sprintf("job %d is dead; for a fresh start: jobctl jobs requeue %d", s.ID, s.ID)
	case "finished":
		return fmt.Sprintf("job %d has finished, %s ago", s.ID, human.Age(s.Now.Sub(*s.Result.FinishedAt)))
	case "cancelled":
		return fmt.Sprintf("job %d was cancelled, %s ago", s.ID, human.Age(s.Now.Sub(s.Archived.FinishedAt)))
	case "succeeded":
		return fmt.Sprintf("job %d has succeeded, %s ago", s.ID, human.Age(s.Now.Sub(s.Archived.FinishedAt)))
	case "deleted":
		a := s.Attempts[len(s.Attempts)-1]
		return escape(fmt.Sprintf("job %d was deleted, %s ago, %s", s.ID, human.Age(s.Now.Sub(a.EndedAt)), a.Error))
	case "removed":
		return escape(fmt.Sprintf("job %d is gone without a result: its row was removed by hand; its key %s is free", s.ID, s.Result.Key))
	}
	return fmt.Sprintf("job %d has ended without a record (its kind keeps none, or it was purged); what is left:", s.ID)
}

func (c *cli) writeHistory(w io.Writer, s story, full bool) {
	shown, most := s.Attempts, errorLines
	if s.Status == "deleted" {
		return // its headline says it
	}
	if full {
		most = 0
	} else if len(shown) > attemptsMost {
		shown = shown[len(shown)-attemptsMost:]
	}
	if len(s.Attempts) > 0 {
		fmt.Fprintf(w, "\nhistory: %s did not succeed\n", human.Count(len(s.Attempts), "attempt", "attempts"))
	} else {
		fmt.Fprintln(w, "\nhistory")
	}
	line := func(at time.Time, format string, args ...any) {
		fmt.Fprintf(w, "  %s  %s\n", c.time(at), escape(fmt.Sprintf(format, args...)))
	}
	var last time.Time // the end of what was before
	switch {
	case s.Job != nil:
		last = s.Job.CreatedAt
	case s.Archived != nil:
		last = s.Archived.CreatedAt
	}
	if !last.IsZero() {
		line(last, "enqueued")
	}
	if n := len(s.Attempts) - len(shown); n > 0 {
		fmt.Fprintf(w, "  … %d earlier; --full shows all\n", n)
		last = time.Time{}
	}
	for _, a := range shown {
		switch {
		case a.WorkerID == uuid.Nil:
			line(a.EndedAt, "%s while it waited", a.Outcome)
		default:
			writeWait(w, last, a.StartedAt)
			line(a.StartedAt, "attempt %d %s after %s%s", a.Attempt, a.Outcome, took(a.EndedAt.Sub(a.StartedAt)), on(a.Host, a.PID))
		}
		last = a.EndedAt
		writeLines(w, "    ", a.Error, most)
	}
	writeNow(w, s, last, line)
	// As a rule the last error is that of the last attempt; the history may have been purged.
	if j := s.Job; j != nil && j.LastError != "" && (len(shown) == 0 || shown[len(shown)-1].Error != j.LastError) {
		fmt.Fprintln(w, "\nlast error")
		writeLines(w, "  ", j.LastError, most)
	}
}

// writeNow ends a history with what is now, or was the end.
func writeNow(w io.Writer, s story, last time.Time, line func(at time.Time, format string, args ...any)) {
	switch j := s.Job; {
	case j == nil && s.Result != nil && s.Result.FinishedAt != nil:
		line(*s.Result.FinishedAt, "succeeded")
	case j == nil && s.Status == "succeeded":
		line(s.Archived.FinishedAt, "succeeded")
	case j == nil:
	case j.Status == "running" && j.ClaimedAt != nil:
		where := ""
		if s.Worker != nil {
			where = on(s.Worker.Host, s.Worker.PID)
		}
		writeWait(w, last, *j.ClaimedAt)
		line(*j.ClaimedAt, "attempt %d runs%s", j.Attempt, where)
	case j.Status == "queued":
		waits, again := "", ""
		if !j.RunAt.After(s.Now) {
			waits = ", and waits"
		}
		if j.Attempt+j.Crashes == 0 && slices.ContainsFunc(s.Attempts, counts) {
			again = " of a fresh start"
		}
		line(j.RunAt, "due for attempt %d%s%s", j.Attempt+1, again, waits)
	}
}

// counts tells whether an attempt has counted as one, or as a crash, so that a job of which none counts now was requeued.
func counts(a engine.Attempt) bool { return a.Outcome == "failed" || a.Outcome == "crashed" }

// on is where something ran, as far as that is known.
func on(host string, pid int) string {
	if host == "" {
		return ""
	}
	return fmt.Sprintf(" on %s (pid %d)", host, pid)
}

// writeWait tells how long nothing happened before a start, if that is worth a word.
func writeWait(w io.Writer, since, start time.Time) {
	if d := start.Sub(since); !since.IsZero() && d >= time.Second {
		fmt.Fprintf(w, "    waited %s\n", human.Age(d))
	}
}

// runner says who runs the job, and whether it still counts as alive.
func (s *story) runner() string {
	w := s.Worker
	if w == nil {
		return fmt.Sprintf("%s, which is not on record: the job goes back to its queue within seconds", s.Job.WorkerID)
	}
	who := fmt.Sprintf("%s, pid %d (%s)", w.Host, w.PID, w.ID)
	switch {
	case w.LostAt != nil:
		return fmt.Sprintf("%s, lost %s ago: the job goes back to its queue within seconds, if another worker lives", who, human.Age(s.Now.Sub(*w.LostAt)))
	case !w.Alive:
		return fmt.Sprintf("%s, whose lease ran out %s ago: the job goes back to its queue within seconds, if another worker lives", who, human.Age(s.Now.Sub(w.LeaseUntil)))
	}
	return fmt.Sprintf("%s, alive: last heartbeat %s ago", who, human.Age(s.Now.Sub(w.BeatAt)))
}

// whoseKey says who has the job's key, if that is not simply the job itself.
func (s *story) whoseKey() string {
	h := s.Holder
	switch {
	case h == nil:
		return ""
	case h.Job == 0:
		return " (nobody's now)"
	case h.Expired:
		return fmt.Sprintf(" (was last job %d's, whose result has expired: it is free)", h.Job)
	case h.Finished && h.Job == s.ID:
		return " (its work is on record as done)"
	case h.Finished:
		return fmt.Sprintf(" (its work was done by job %d)", h.Job)
	case h.Status == "":
		return " (nobody's now)"
	}
	return fmt.Sprintf(" (job %d's now, which is %s)", h.Job, h.Status)
}

// waitsTimeout bounds the look at what is ahead of a job, which walks the queue's index.
const waitsTimeout = 3 * time.Second

// askWhy finds out why a queued job waits.
func (c *cli) askWhy(ctx context.Context, op postgres.Operator, s *story) {
	ctx, cancel := context.WithTimeout(ctx, waitsTimeout)
	defer cancel()
	waits, err := op.Waits(ctx, s.Job)
	if err != nil {
		s.Why = []string{"it could not be found out why: " + oneLine(err.Error())}
		return
	}
	s.Waits, s.Why = &waits, why(s.Job, waits, s.Now)
	if s.Holder != nil && !s.Holder.Free() {
		s.Why = append(s.Why, "its key is another's: it ends without running as soon as a worker gets to it")
	}
}

// suspectFrom is from how many crashes on a job is started alone.
const suspectFrom = 2

// why says why a queued job waits, the first thing first.
func why(j *engine.Job, waits postgres.Waits, now time.Time) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if j.Cancel != nil {
		say("somebody has asked to end it: it ends as soon as a worker gets to it")
	}
	if j.Deadline != nil && !j.Deadline.After(now) {
		say("its deadline has passed: it ends cancelled as soon as a worker gets to it")
	}
	if j.RunAt.After(now) {
		say("it is due in %s", human.Age(j.RunAt.Sub(now)))
	}
	switch {
	case waits.PausedAt != nil:
		say("its queue is paused, for %s; to go on: jobctl queues resume %s", human.Age(now.Sub(*waits.PausedAt)), doctor.Argument(j.Queue))
	case waits.Polls == 0:
		say("no live worker polls its queue")
	case waits.Handles == 0:
		say("no live worker of its queue handles its kind (%d of other kinds)", waits.Polls)
	case waits.Reads == 0:
		say("no live worker of its queue reads version %d of its kind: they are of an older build", j.Version)
	}
	if j.Crashes >= suspectFrom {
		say("%s: it is started only by a worker that runs nothing else", human.Count(j.Crashes, "worker was lost while it ran it", "workers were lost while they ran it"))
	}
	switch {
	case waits.Ahead >= postgres.AheadMost:
		say("%s jobs or more of its queue are due before it", human.Number(int64(waits.Ahead)))
	case waits.Ahead > 0 && !j.RunAt.After(now):
		say("%s of its queue %s due before it", human.Count(waits.Ahead, "job", "jobs"), map[bool]string{true: "is", false: "are"}[waits.Ahead == 1])
	case len(out) == 0:
		say("it is the next of its queue: workers have no free slot, or have not come by yet")
	}
	return out
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
	if w := s.Worker; w != nil {
		w.StartedAt, w.BeatAt, w.LeaseUntil = w.StartedAt.UTC(), w.BeatAt.UTC(), w.LeaseUntil.UTC()
		if w.LostAt != nil {
			t := w.LostAt.UTC()
			w.LostAt = &t
		}
	}
	if s.Waits != nil && s.Waits.PausedAt != nil {
		t := s.Waits.PausedAt.UTC()
		s.Waits.PausedAt = &t
	}
	for i := range s.Attempts {
		a := &s.Attempts[i]
		a.StartedAt, a.EndedAt = a.StartedAt.UTC(), a.EndedAt.UTC()
	}
}
