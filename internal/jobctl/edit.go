package jobctl

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/human"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/internal/storable"
	"github.com/jobgen-go/jobgen/jobs"
)

// edit is the command's flags.
type edit struct {
	payload, queue, runAt, delay, deadline string
	priority, maxAttempts                  int
	set                                    func(flag string) bool
	yes, dryRun                            bool
}

// editFlags are those that change something.
var editFlags = []string{"payload", "queue", "priority", "max-attempts", "run-at", "delay", "deadline"}

func (c *cli) jobsEdit() *cobra.Command {
	var e edit
	cmd := &cobra.Command{
		Use:   "edit ID",
		Short: "Change a job that waits or is dead",
		Long: `Edit changes a queued or dead job: its payload, queue, priority, number of
attempts, when it is due, its deadline. Without a flag that says what, it opens
the payload in $VISUAL or $EDITOR. It shows what would change, and asks (--yes
answers, and is required where nobody can be asked).

A job that runs is not changed: its handler has the payload already. If the job
has changed since it was read (it was started, or somebody else edited it),
nothing is changed, and the exit status is 1. A dead job stays dead: requeue it
then. A key stays what it is, whatever the payload says.

A job whose queue or priority changes goes to the end of what is due there. One
cannot be due in the past: that means now.`,
		Example: `  jobctl jobs edit 4711
  jobctl jobs edit 4711 --payload @fixed.json && jobctl jobs requeue 4711
  jobctl jobs edit 4711 --priority 9 --delay 0s --yes
  jobctl jobs edit 4711 --deadline none`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := oneID(cmd, args); err != nil {
				return err
			}
			e.set = cmd.Flags().Changed
			return c.checkEdit(&e)
		},
		ValidArgsFunction: c.completeIDs("queued", "dead"),
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			return c.edit(ctx, op, ids[0], &e)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&e.payload, "payload", "", "this `json`; @FILE reads a file, - stdin")
	flags.StringVar(&e.queue, "queue", "", "into this `queue`")
	flags.IntVar(&e.priority, "priority", 0, "`number` from 0 to 9, bigger ones first")
	flags.IntVar(&e.maxAttempts, "max-attempts", 0, "how often it is started at most (`number`)")
	flags.StringVar(&e.runAt, "run-at", "", "due at this `time` (2026-01-02T15:04:05Z)")
	flags.StringVar(&e.delay, "delay", "", "due after this `duration`; 0s is now")
	flags.StringVar(&e.deadline, "deadline", "", "a `time`, a duration from now, or none")
	flags.BoolVar(&e.yes, "yes", false, "do not ask")
	flags.BoolVar(&e.dryRun, "dry-run", false, "change nothing; show what would be changed")
	_ = cmd.RegisterFlagCompletionFunc("queue", c.completeQueues())
	return cmd
}

// checkEdit finds what is wrong with the flags by themselves.
func (c *cli) checkEdit(e *edit) error {
	some := false
	for _, f := range editFlags {
		some = some || e.set(f)
	}
	switch {
	case e.set("run-at") && e.set("delay"):
		return errors.New("give either --run-at or --delay, not both")
	case e.set("priority") && (e.priority < 0 || e.priority > jobs.MaxPriority):
		return fmt.Errorf("--priority is %d; it may be 0 to %d", e.priority, jobs.MaxPriority)
	case e.set("max-attempts") && (e.maxAttempts < 1 || e.maxAttempts > jobs.MaxTries):
		return fmt.Errorf("--max-attempts is %d; it may be 1 to %d", e.maxAttempts, jobs.MaxTries)
	case !some && !c.Ask:
		return errors.New("say what to change, with flags; there is no terminal for an editor")
	case !e.yes && !e.dryRun && !c.Ask:
		return errors.New("there is no terminal to ask on: add --yes, or --dry-run to see what would change")
	case e.payload == "-" && !e.yes && !e.dryRun:
		return errors.New("stdin has the payload, so nobody can be asked there: add --yes or --dry-run")
	}
	if e.set("queue") {
		if err := checkQueues([]string{e.queue}); err != nil {
			return err
		}
	}
	if _, err := parseAge("--delay", e.delay); err != nil {
		return err
	}
	if e.set("run-at") {
		if _, err := time.Parse(time.RFC3339, e.runAt); err != nil {
			return fmt.Errorf("--run-at is %q; it is a time with its zone, like 2026-01-02T15:04:05Z or 2026-01-02T15:04:05+01:00", e.runAt)
		}
	}
	if e.set("deadline") && e.deadline != "none" {
		if _, err := time.Parse(time.RFC3339, e.deadline); err == nil {
			return nil
		}
		if d, err := parseAge("", e.deadline); err != nil || d == 0 {
			return fmt.Errorf("--deadline is %q; it is a time like 2026-01-02T15:04:05Z, a duration like 2h, or none", e.deadline)
		}
	}
	return nil
}

// change is what an edit does to one field.
type change struct {
	Field string `json:"field"`
	From  any    `json:"from"`
	To    any    `json:"to"`
	text  [2]string
}

func (c *cli) edit(ctx context.Context, op postgres.Operator, id int64, e *edit) error {
	job, err := op.Editable(ctx, id)
	if err == nil && job.Status == "running" || errors.Is(err, pgx.ErrNoRows) {
		return notEditable(ctx, op, id)
	}
	if err != nil {
		return err
	}
	asked, changes, err := c.plan(ctx, job, e)
	if err != nil {
		return err
	}
	if len(changes) > 0 && !e.dryRun {
		if !e.yes {
			c.writeChanges(c.Stderr, changes)
			if err := c.confirm(ctx, fmt.Sprintf("Change %s job %d?", job.Status, id)); err != nil {
				return err
			}
		}
		var value *engine.ValueError
		done, err := op.Edit(ctx, job, asked)
		if errors.As(err, &value) {
			return findingf("the database refuses it: %s; nothing was changed", value)
		}
		if err != nil {
			return err
		}
		if !done {
			return c.lostEdit(ctx, op, job)
		}
	}
	out := struct {
		ID      int64    `json:"id"`
		Changes []change `json:"changes"`
		DryRun  bool     `json:"dry_run,omitempty"`
	}{id, orNothing(changes), e.dryRun}
	if err := c.print(out, func(w io.Writer) {
		switch {
		case e.dryRun && len(changes) > 0:
			fmt.Fprintf(w, "would change %s job %d\n", job.Status, id)
			c.writeChanges(w, changes)
		case len(changes) > 0:
			if e.yes {
				c.writeChanges(w, changes)
			}
			fmt.Fprintf(w, "job %d changed\n", id)
		}
	}); err != nil {
		return err
	}
	switch {
	case len(changes) == 0:
		c.note("job %d is like that already; nothing was changed", id)
	case job.Status == "dead" && !e.dryRun:
		c.note("it is still dead; for a fresh start: jobctl jobs requeue %d", id)
	}
	if asked.Payload != nil && job.Key != "" {
		c.note("its key stays %s, whatever the payload says", job.Key)
	}
	return nil
}

// notEditable says why a job that is not queued or dead cannot be changed.
func notEditable(ctx context.Context, op postgres.Operator, id int64) error {
	a := action{refusal: func(r refused) string {
		switch r.Status {
		case "running":
			return fmt.Sprintf("is running %s: its handler has the payload already. Wait until it has ended, or end it: jobctl jobs cancel %d", r.when, id)
		case "unknown":
			return "is unknown: nothing is on record"
		}
		return "is " + r.Status + ", " + r.when + ": there is nothing left to change"
	}}
	left, err := a.refusals(ctx, op, []int64{id})
	if err != nil {
		return err
	}
	return findingf("job %d %s", id, left[0].Reason)
}

// lostEdit says why nothing was changed: the job is not as it was, or somebody else is at it.
func (c *cli) lostEdit(ctx context.Context, op postgres.Operator, seen postgres.Editable) error {
	now, err := op.Editable(ctx, seen.ID)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && now.Status == "running" {
		return notEditable(ctx, op, seen.ID)
	}
	if err != nil {
		return err
	}
	if now.Seen == seen.Seen {
		if listed, err := op.List(ctx, []int64{seen.ID}); err == nil && len(listed) == 1 && listed[0].Status == "running" {
			return notEditable(ctx, op, seen.ID) // owned by lock
		}
		return findingf("job %d is locked by somebody else; nothing was changed; try again", seen.ID)
	}
	return findingf("job %d has changed since it was read; nothing was changed; look at it (jobctl jobs show %d) and try again", seen.ID, seen.ID)
}

// plan works out what is to be changed, and how that looks.
func (c *cli) plan(ctx context.Context, job postgres.Editable, e *edit) (asked postgres.Edit, changes []change, err error) {
	put := func(field string, from, to any) {
		changes = append(changes, change{Field: field, From: from, To: to, text: [2]string{fmt.Sprint(from), fmt.Sprint(to)}})
	}
	if e.set("queue") && e.queue != job.Queue {
		asked.Queue = &e.queue
		put("queue", job.Queue, e.queue)
	}
	if e.set("priority") && e.priority != job.Priority {
		asked.Priority = &e.priority
		put("priority", job.Priority, e.priority)
	}
	if e.set("max-attempts") && e.maxAttempts != job.MaxAttempts {
		least := job.Attempt
		if job.Status == "queued" {
			least++
		}
		if e.maxAttempts < least {
			return asked, nil, findingf("job %d is %s and has been started %s, so --max-attempts is %d at least", job.ID, job.Status, human.Count(job.Attempt, "time", "times"), least)
		}
		asked.MaxAttempts = &e.maxAttempts
		put("max_attempts", job.MaxAttempts, e.maxAttempts)
	}
	due := job.RunAt
	if e.set("run-at") || e.set("delay") {
		if job.Status == "dead" {
			return asked, nil, findingf("job %d is dead, so it is not due at any time; say so when it is requeued: jobctl jobs requeue %d --delay …", job.ID, job.ID)
		}
		d, _ := parseAge("", e.delay)
		due = job.Now.Add(d)
		if e.set("run-at") {
			at, _ := time.Parse(time.RFC3339, e.runAt)
			asked.At = &at
			if due = at; due.Before(job.Now) {
				due = job.Now
			}
		} else {
			asked.Delay = &d
		}
		c.putTime(&changes, "run_at", &job.RunAt, &due)
	}
	if err := c.planDeadline(job, e, due, &asked, &changes); err != nil {
		return asked, nil, err
	}
	return asked, changes, c.planPayload(ctx, job, e, &asked, &changes)
}

func (c *cli) planDeadline(job postgres.Editable, e *edit, due time.Time, asked *postgres.Edit, changes *[]change) error {
	if !e.set("deadline") {
		return nil
	}
	if e.deadline == "none" {
		if asked.NoDeadline = job.Deadline != nil; asked.NoDeadline {
			c.putTime(changes, "deadline", job.Deadline, nil)
		}
		return nil
	}
	at, err := time.Parse(time.RFC3339, e.deadline)
	if err == nil {
		asked.Deadline = &at
	} else {
		d, _ := parseAge("", e.deadline)
		at, asked.Within = job.Now.Add(d), &d
	}
	switch {
	case !at.After(job.Now):
		return findingf("that deadline has passed; to end the job: jobctl jobs cancel %d", job.ID)
	case job.Status == "queued" && !at.After(due):
		return findingf("that deadline is before the job is due, %s", c.time(due))
	}
	c.putTime(changes, "deadline", job.Deadline, &at)
	return nil
}

func (c *cli) putTime(changes *[]change, field string, from, to *time.Time) {
	ch := change{Field: field}
	for i, t := range []*time.Time{from, to} {
		ch.text[i] = "none"
		if t == nil {
			continue
		}
		ch.text[i] = c.time(*t)
		if i == 0 {
			ch.From = t.UTC()
		} else {
			ch.To = t.UTC()
		}
	}
	*changes = append(*changes, ch)
}

func (c *cli) planPayload(ctx context.Context, job postgres.Editable, e *edit, asked *postgres.Edit, changes *[]change) error {
	edited, err := c.newPayload(ctx, job, e, len(*changes) > 0 || anySet(e))
	if err != nil || edited == nil {
		return err
	}
	from, to := canonical(job.Payload), canonical(edited)
	if from == to {
		return nil
	}
	asked.Payload = edited
	*changes = append(*changes, change{Field: "payload", From: job.Payload, To: edited, text: [2]string{from, to}})
	return nil
}

func anySet(e *edit) bool {
	for _, f := range editFlags {
		if e.set(f) {
			return true
		}
	}
	return false
}

// newPayload reads the payload from where the flags say, or from an editor if no flag says anything; nil: it is not to change.
func (c *cli) newPayload(ctx context.Context, job postgres.Editable, e *edit, other bool) (json.RawMessage, error) {
	var b []byte
	var err error
	switch name, isFile := strings.CutPrefix(e.payload, "@"); {
	case !e.set("payload") && other:
		return nil, nil
	case !e.set("payload"):
		return c.editor(ctx, job)
	case e.payload == "-":
		b, err = io.ReadAll(io.LimitReader(c.Stdin, 4*jobs.MaxPayload))
	case isFile:
		b, err = os.ReadFile(name)
	default:
		b = []byte(e.payload)
	}
	if err != nil {
		return nil, findingf("cannot read the payload: %s", err)
	}
	out, err := checkPayload(b)
	if err != nil {
		return nil, findingf("the payload %s; nothing was changed", err)
	}
	return out, nil
}

// checkPayload refuses what the queue does not take.
func checkPayload(b []byte) (json.RawMessage, error) {
	var raw json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		line := 1
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			line += bytes.Count(b[:min(int(syntax.Offset), len(b))], []byte("\n"))
		}
		return nil, fmt.Errorf("is no JSON: line %d: %w", line, err)
	}
	return storable.JSON(json.RawMessage(b), jobs.MaxPayload)
}

// editor lets a person edit the payload.
func (c *cli) editor(ctx context.Context, job postgres.Editable) (json.RawMessage, error) {
	file, err := os.CreateTemp("", fmt.Sprintf("jobctl-%d-*.json", job.ID))
	if err != nil {
		return nil, findingf("cannot make a file for the editor: %s", err)
	}
	keep := false
	defer func() {
		if !keep {
			_ = os.Remove(file.Name())
		}
	}()
	var before bytes.Buffer
	if err := json.Indent(&before, job.Payload, "", "  "); err != nil {
		return nil, err
	}
	before.WriteByte('\n')
	_, err = file.Write(before.Bytes())
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, findingf("cannot write the file for the editor: %s", err)
	}
	name := cmp.Or(c.Getenv("VISUAL"), c.Getenv("EDITOR"), "vi")
	cmd := exec.CommandContext(ctx, "sh", "-c", name+` "$1"`, name, file.Name()) // as git does: it may have arguments
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stderr, c.Stderr
	if err := cmd.Run(); err != nil {
		return nil, findingf("the editor (%s) failed: %s; nothing was changed", name, err)
	}
	after, err := os.ReadFile(file.Name())
	if err != nil {
		return nil, findingf("cannot read what was edited: %s", err)
	}
	out, err := checkPayload(after)
	if err != nil {
		keep = true
		return nil, findingf("the payload %s; nothing was changed; what was typed is in %s: mend it, and give it to --payload @%s", err, file.Name(), file.Name())
	}
	return out, nil
}

// canonical is JSON in a form that can be compared line by line.
func canonical(raw json.RawMessage) string {
	var v any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if dec.Decode(&v) != nil {
		return string(raw)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if enc.Encode(v) != nil {
		return string(raw)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (c *cli) writeChanges(w io.Writer, changes []change) {
	for _, ch := range changes {
		if ch.Field != "payload" {
			fmt.Fprintf(w, "  %-12s %s → %s\n", ch.Field, escape(ch.text[0]), escape(ch.text[1]))
			continue
		}
		fmt.Fprintln(w, "  payload")
		for _, line := range diff(strings.Split(ch.text[0], "\n"), strings.Split(ch.text[1], "\n")) {
			fmt.Fprintln(w, "   ", strings.TrimSuffix(escapeJSON(line), "\n"))
		}
	}
}

const (
	// diffAround lines are shown around what differs.
	diffAround = 3
	// diffMost bounds the table of a comparison; beyond it all is shown as removed and added.
	diffMost = 4_000_000
)

// diff compares texts line by line.
func diff(a, b []string) []string {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	all := make([]string, 0, len(a)+len(b))
	for _, line := range a[:head] {
		all = append(all, " "+line)
	}
	all = append(all, compared(a[head:len(a)-tail], b[head:len(b)-tail])...)
	for _, line := range a[len(a)-tail:] {
		all = append(all, " "+line)
	}
	near := make([]bool, len(all))
	for i, line := range all {
		if line[0] != ' ' {
			for j := max(i-diffAround, 0); j <= min(i+diffAround, len(all)-1); j++ {
				near[j] = true
			}
		}
	}
	var out []string
	for i, line := range all {
		switch {
		case near[i]:
			out = append(out, line)
		case i == 0 || near[i-1]:
			out = append(out, " …")
		}
	}
	return out
}

// compared is the part of a comparison that neither begins nor ends alike: by the longest common subsequence.
func compared(a, b []string) (out []string) {
	if len(a)*len(b) > diffMost {
		for _, line := range a {
			out = append(out, "-"+line)
		}
		for _, line := range b {
			out = append(out, "+"+line)
		}
		return out
	}
	common := make([][]int32, len(a)+1)
	for i := range common {
		common[i] = make([]int32, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, " "+a[i])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			out = append(out, "-"+a[i])
			i++
		default:
			out = append(out, "+"+b[j])
			j++
		}
	}
	return out
}
