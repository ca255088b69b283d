package jobctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/cron"
	"github.com/jobgen-go/jobgen/internal/human"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/jobs"
)

const (
	// tickLate is how late a tick may be without being missed: as it is for the workers.
	tickLate = time.Minute
	// ticksMost bounds how many missed ticks are counted.
	ticksMost = 1000
	// ticksAhead is how many ticks to come are shown.
	ticksAhead = 3
)

func (c *cli) schedules() *cobra.Command {
	list := c.schedulesList()
	cmd := group("schedules", "See what ticks when, what was missed; run one now, pause one",
		`A schedule enqueues a job at each of its ticks, as long as a worker is alive that
handles its kind: the workers' programs declare the schedules. What is decided here
about one holds until it is decided otherwise, or until no program declares it.`)
	byDefault(cmd, list)
	cmd.AddCommand(list, c.schedulesShow(), c.schedulesRun(),
		c.schedulesDecide("pause", "Let a schedule's ticks pass without a job",
			`Pause lets ticks pass without a job, from now on. Jobs that earlier ticks have
enqueued stay; run still works.`,
			func(ctx context.Context, op postgres.Operator, s *schedule) error {
				return op.PauseSchedule(ctx, s.Kind, s.Name)
			}),
		c.schedulesDecide("resume", "Go on with a paused schedule",
			`Resume ends a pause. Ticks that passed meanwhile are not made up for, whatever the
schedule says about missed ones; to have one of them: jobctl schedules run --tick.`,
			func(ctx context.Context, op postgres.Operator, s *schedule) error {
				if s.parsed == nil {
					return findingf("its next tick cannot be computed here: %s; nothing was changed", s.problem)
				}
				return op.ResumeSchedule(ctx, s.Kind, s.Name, s.parsed.Next(s.now))
			}))
	return cmd
}

// schedule is one with what can be said of it at a time.
type schedule struct {
	postgres.ListedSchedule
	now     time.Time
	parsed  *cron.Schedule // nil: it cannot be read here
	problem string         // and why
	late    int            // how many of its ticks are overdue
	more    bool           // there are more of them
}

func (c *cli) findSchedules(ctx context.Context, op postgres.Operator) ([]schedule, time.Time, error) {
	found, now, err := op.Schedules(ctx)
	out := make([]schedule, len(found))
	for i, f := range found {
		s := &out[i]
		s.ListedSchedule, s.now = f, now
		if s.parsed, err = cron.Parse(f.Cron, f.Zone); err != nil {
			s.parsed, s.problem, err = nil, err.Error(), nil
			continue
		}
		if now.Sub(f.NextAt) > tickLate && f.PausedAt == nil {
			for at := f.NextAt; !at.After(now); at = s.parsed.Next(at) {
				if s.late++; s.late == ticksMost {
					s.more = true
					break
				}
			}
		}
	}
	return out, now, err
}

// findSchedule finds the one that the arguments name: a kind, and a name if it has several.
func (c *cli) findSchedule(ctx context.Context, op postgres.Operator, args []string) (*schedule, error) {
	all, _, err := c.findSchedules(ctx, op)
	if err != nil {
		return nil, err
	}
	var names []string
	var found *schedule
	for i := range all {
		if s := &all[i]; s.Kind == args[0] && (len(args) == 1 || s.Name == args[1]) {
			found, names = s, append(names, s.Name)
		}
	}
	switch {
	case len(names) == 0:
		return nil, findingf("there is no schedule %s; `jobctl schedules` lists them", strings.Join(args, " "))
	case len(names) > 1:
		return nil, findingf("kind %s has %d schedules; name one of them: %s", args[0], len(names), strings.Join(names, ", "))
	}
	return found, nil
}

func checkSchedule(args []string) error {
	if len(args) < 1 || len(args) > 2 {
		return fmt.Errorf("it takes the schedule's kind, and its name if the kind has several; it got %d arguments", len(args))
	}
	return nil
}

func (s *schedule) title() string {
	if s.Name == s.Kind {
		return s.Kind
	}
	return s.Kind + " " + s.Name
}

// state is the schedule in a word.
func (s *schedule) state() string {
	switch {
	case s.PausedAt != nil:
		return "paused"
	case s.late > 0:
		return "missed"
	case s.parsed == nil:
		return "unreadable"
	case s.Workers == 0:
		return "no worker"
	}
	return "ok"
}

// missed is how many ticks are.
func (s *schedule) missed() string {
	n := human.Count(s.late, "tick", "ticks")
	if s.more {
		n = fmt.Sprintf("%d ticks or more", s.late)
	}
	return n
}

// why says why ticks do not come, and what will become of those that did not.
func (s *schedule) why() string {
	why := "no live worker handles its kind: start one, or, if no program declares it any more, see `jobctl doctor` for how to forget it"
	if s.Workers > 0 {
		why = fmt.Sprintf("%s its kind, but none has moved it on: see their logs", human.Count(s.Workers, "live worker handles", "live workers handle"))
	}
	return why + map[string]string{
		"once": "; it will make up for them with one job", "skip": "; the missed ones will be skipped", "all": "; it will make up for each with a job",
	}[s.Missed]
}

type scheduleJSON struct {
	Kind        string           `json:"kind"`
	Name        string           `json:"name"`
	Cron        string           `json:"cron"`
	Zone        string           `json:"zone"`
	Policy      string           `json:"missed"` // once, skip or all
	NextAt      time.Time        `json:"next_at"`
	LastAt      *time.Time       `json:"last_at,omitempty"`
	PausedAt    *time.Time       `json:"paused_at,omitempty"`
	Workers     int              `json:"workers"` // live ones that handle its kind
	State       string           `json:"state"`   // ok, paused, missed, no worker, unreadable
	MissedTicks int              `json:"missed_ticks"`
	MissedMore  bool             `json:"missed_more,omitempty"` // there are more than that
	Problem     string           `json:"problem,omitempty"`
	Then        []time.Time      `json:"then,omitempty"` // the ticks after the next one
	Job         *scheduleJobJSON `json:"job,omitempty"`  // what a tick enqueues; absent: it is not on record
}

type scheduleJobJSON struct {
	Queue       string          `json:"queue"`
	Version     int             `json:"version"`
	Priority    int             `json:"priority"`
	MaxAttempts int             `json:"max_attempts"`
	Payload     json.RawMessage `json:"payload"`
}

func asSchedule(s *schedule) scheduleJSON {
	out := scheduleJSON{
		Kind: s.Kind, Name: s.Name, Cron: s.Cron, Zone: s.Zone, Policy: s.Missed, NextAt: s.NextAt.UTC(), LastAt: inUTC(s.LastAt), PausedAt: inUTC(s.PausedAt),
		Workers: s.Workers, State: s.state(), MissedTicks: s.late, MissedMore: s.more, Problem: s.problem,
	}
	if s.Told {
		out.Job = &scheduleJobJSON{s.Job.Queue, s.Job.Version, s.Job.Priority, s.Job.MaxAttempts, s.Payload}
	}
	return out
}

func inUTC(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

func (c *cli) schedulesList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List schedules with their next and last ticks",
		Long: `List shows the schedules that workers have declared. The columns:

  CRON   the expression, and the time zone that it is in
  LAST   how long ago the last tick was that enqueued a job
  NEXT   in how long the next one is; and when, on a wide terminal
  STATE  ok; paused; missed: the next tick is overdue, for how long; no worker: none
         is alive that handles the kind, so the next one will be missed; unreadable:
         this machine does not know the expression or the zone

Exit status 1 if ticks were missed.`,
		Example: `  jobctl schedules
  jobctl schedules --json | jq -r '.schedules[] | select(.state == "missed") | .kind'`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, _ []string) error {
			found, now, err := c.findSchedules(ctx, op)
			if err != nil {
				return err
			}
			return c.listSchedules(found, now)
		}),
	}
}

func (c *cli) listSchedules(found []schedule, now time.Time) error {
	out := struct {
		Schedules []scheduleJSON `json:"schedules"`
		Now       time.Time      `json:"now"`
	}{[]scheduleJSON{}, now.UTC()}
	missed := 0
	for i := range found {
		out.Schedules = append(out.Schedules, asSchedule(&found[i]))
		if found[i].state() == "missed" {
			missed++
		}
	}
	if err := c.print(out, func(w io.Writer) {
		if len(found) > 0 {
			c.writeSchedules(w, found)
		}
	}); err != nil {
		return err
	}
	for i := range found {
		switch s := &found[i]; s.state() {
		case "missed":
			c.note("%s has missed %s, since %s: %s", s.title(), s.missed(), c.time(s.NextAt), s.why())
		case "no worker":
			c.note("%s: no live worker handles its kind, so its next tick will be missed", s.title())
		case "unreadable":
			c.note("%s cannot be read here: %s", s.title(), s.problem)
		}
	}
	switch {
	case len(found) == 0:
		c.note("no schedule is on record: workers declare them when they start")
	case missed > 0:
		return findingf("%s missed ticks", human.Count(missed, "schedule has", "schedules have"))
	}
	return nil
}

func (c *cli) writeSchedules(w io.Writer, found []schedule) {
	table := []column{{title: "SCHEDULE", min: 14}, {title: "CRON", min: 11}, {title: "ZONE", min: 8, spare: 2}, {title: "LAST", spare: 1}, {title: "NEXT"}, {title: "AT"}, {title: "STATE"}}
	for i := range found {
		s := &found[i]
		last, next, state := "", "in "+human.Age(s.NextAt.Sub(s.now)), s.state()
		if s.LastAt != nil {
			last = human.Age(s.now.Sub(*s.LastAt)) + " ago"
		}
		switch {
		case s.PausedAt != nil:
			next, state = "", "paused for "+human.Age(s.now.Sub(*s.PausedAt))
		case s.late > 0:
			next, state = "", "missed for "+human.Age(s.now.Sub(s.NextAt))
		case !s.NextAt.After(s.now):
			next = "now"
		}
		for i, cell := range []string{escape(s.title()), escape(s.Cron), escape(s.Zone), last, next, c.time(s.NextAt), state} {
			table[i].cells = append(table[i].cells, cell)
		}
	}
	if c.width() < createdFrom {
		table = slices.DeleteFunc(table, func(c column) bool { return c.title == "AT" })
	}
	writeTable(w, c.width(), table)
}

func (c *cli) schedulesShow() *cobra.Command {
	return &cobra.Command{
		Use: "show KIND [NAME]", Short: "Show a schedule, its ticks to come, and what they enqueue",
		Long: `Show prints all that is on record of a schedule. Its name is needed only if its kind
has several. Exit status 1 if ticks were missed.`,
		Example: `  jobctl schedules show reports.refresh day`,
		Args:    func(_ *cobra.Command, args []string) error { return checkSchedule(args) }, ValidArgsFunction: c.completeSchedules,
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, args []string) error {
			s, err := c.findSchedule(ctx, op, args)
			if err != nil {
				return err
			}
			return c.showSchedule(s)
		}),
	}
}

func (c *cli) completeSchedules(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.completeFrom(func(ctx context.Context, op postgres.Operator) (out []string, err error) {
		found, _, err := op.Schedules(ctx)
		for _, s := range found {
			if len(args) == 0 {
				out = append(out, s.Kind)
			} else if s.Kind == args[0] {
				out = append(out, s.Name)
			}
		}
		slices.Sort(out)
		return slices.Compact(out), err
	})(cmd, nil, "")
}

func (c *cli) showSchedule(s *schedule) error {
	out := asSchedule(s)
	if s.parsed != nil {
		for at := s.parsed.Next(s.NextAt); len(out.Then) < ticksAhead; at = s.parsed.Next(at) {
			out.Then = append(out.Then, at.UTC())
		}
	}
	if err := c.print(struct {
		Schedule scheduleJSON `json:"schedule"`
		Now      time.Time    `json:"now"`
	}{out, s.now.UTC()}, func(w io.Writer) { c.writeSchedule(w, s, out) }); err != nil {
		return err
	}
	if s.late > 0 {
		return findingf("%s has missed %s: %s", s.title(), s.missed(), s.why())
	}
	return nil
}

func (c *cli) writeSchedule(w io.Writer, s *schedule, out scheduleJSON) {
	field := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-8s %s\n", name, escape(fmt.Sprintf(format, args...)))
	}
	moment := func(t time.Time) string {
		if t.After(s.now) {
			return c.both(t, s.Zone) + ", in " + human.Age(t.Sub(s.now))
		}
		return c.both(t, s.Zone) + ", " + human.Age(s.now.Sub(t)) + " ago"
	}
	headline := "ticks in " + human.Age(s.NextAt.Sub(s.now))
	switch {
	case s.PausedAt != nil:
		headline = "is paused, for " + human.Age(s.now.Sub(*s.PausedAt))
	case s.late > 0:
		headline = "has missed " + s.missed()
	case s.parsed == nil:
		headline = "cannot be read here: " + s.problem
	case s.Workers == 0:
		headline = "will miss its next tick: no live worker handles its kind"
	}
	fmt.Fprintf(w, "schedule %s %s\n\n", escape(s.title()), escape(headline))
	field("cron", "%s in %s", s.Cron, s.Zone)
	field("missed", "%s", map[string]string{
		"once": "once: one job makes up for all ticks that are missed", "skip": "skip: missed ticks are not made up for", "all": "all: a job makes up for each tick that is missed",
	}[s.Missed])
	if s.LastAt != nil {
		field("last", "%s", moment(*s.LastAt))
	}
	field("next", "%s", moment(s.NextAt))
	for _, t := range out.Then {
		field("then", "%s", c.both(t, s.Zone))
	}
	field("workers", "%s its kind", human.Count(s.Workers, "live one handles", "live ones handle"))
	if s.Told {
		field("job", "kind %s, version %d, in queue %s, priority %d, %s at most", s.Kind, s.Job.Version, s.Job.Queue, s.Job.Priority, human.Count(s.Job.MaxAttempts, "attempt", "attempts"))
		writeContent(w, nil, s.Payload, false)
	} else {
		field("job", "not on record: %s", untold)
	}
}

// untold is why a schedule does not say what it enqueues.
const untold = "the program that declared it is older than this schema; a worker of today's stores it when it starts"

// both is a time in a schedule's zone, and here where that differs.
func (c *cli) both(t time.Time, zone string) string {
	here := c.time(t)
	loc, err := time.LoadLocation(zone)
	if err != nil {
		return here
	}
	there := t.In(loc).Format("Mon 2006-01-02 15:04:05 -07:00")
	if strings.HasSuffix(there, here) {
		return there
	}
	return there + " (here " + here + ")"
}

func (c *cli) schedulesRun() *cobra.Command {
	var tick string
	var at time.Time
	cmd := &cobra.Command{
		Use: "run KIND [NAME]", Short: "Enqueue the job of a tick now",
		Long: `Run enqueues one job as a tick would, with the payload, queue and priority that the
workers' program has declared, and leaves the schedule as it is: its next tick comes
in addition. The job stands for a tick at this moment (ScheduledAt), or at --tick:
to have yesterday's again, say when that was.`,
		Example: `  jobctl schedules run reports.nightly
  jobctl schedules run reports.nightly --tick 2026-03-01T03:00:00+01:00`,
		Args: func(_ *cobra.Command, args []string) (err error) {
			if tick != "" {
				if at, err = time.Parse(time.RFC3339, tick); err != nil {
					return fmt.Errorf("--tick is %q; it must be a time such as 2026-03-01T03:00:00+01:00", tick)
				}
			}
			return checkSchedule(args)
		},
		ValidArgsFunction: c.completeSchedules,
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, args []string) error {
			s, err := c.findSchedule(ctx, op, args)
			if err != nil {
				return err
			}
			if at.IsZero() {
				at = s.now
			}
			return c.runSchedule(ctx, op, s, at)
		}),
	}
	cmd.Flags().StringVar(&tick, "tick", "", "the `time` of the tick that the job stands for, RFC 3339 (default: now)")
	return cmd
}

func (c *cli) runSchedule(ctx context.Context, op postgres.Operator, s *schedule, at time.Time) error {
	if !s.Told {
		return findingf("%s cannot be run from here, for what it enqueues is not on record: %s", s.title(), untold)
	}
	if loc, err := time.LoadLocation(s.Zone); err == nil {
		at = at.In(loc)
	}
	header, err := json.Marshal(map[string]string{jobs.ScheduledAtHeader: at.Format(time.RFC3339)})
	if err != nil {
		return err
	}
	id, paused, err := op.RunSchedule(ctx, s.Kind, s.Name, header)
	if errors.Is(err, postgres.ErrNoSchedule) {
		return findingf("%s is gone: a worker that has just started does not declare it; nothing was enqueued", s.title())
	}
	if err != nil {
		return err
	}
	if err := c.print(struct {
		JobID       int64     `json:"job_id"`
		Kind        string    `json:"kind"`
		Name        string    `json:"name"`
		ScheduledAt time.Time `json:"scheduled_at"`
	}{id, s.Kind, s.Name, at.UTC().Truncate(time.Second)}, func(w io.Writer) {
		fmt.Fprintf(w, "job %d enqueued, for the tick %s\n", id, c.both(at, s.Zone))
	}); err != nil {
		return err
	}
	if s.Workers == 0 {
		c.note("no live worker handles %s: the job waits for one", s.Kind)
	}
	if paused {
		c.note("queue %s is paused: the job waits until it is resumed", s.Job.Queue)
	}
	return nil
}

func (c *cli) schedulesDecide(verb, short, long string, decide func(context.Context, postgres.Operator, *schedule) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " KIND [NAME]", Short: short, Long: long,
		Args: func(_ *cobra.Command, args []string) error { return checkSchedule(args) }, ValidArgsFunction: c.completeSchedules,
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, args []string) error {
			s, err := c.findSchedule(ctx, op, args)
			if err != nil {
				return err
			}
			if err := decide(ctx, op, s); errors.Is(err, postgres.ErrNoSchedule) {
				return findingf("%s is gone: a worker that has just started does not declare it", s.title())
			} else if err != nil {
				return err
			}
			if s, err = c.findSchedule(ctx, op, []string{s.Kind, s.Name}); err != nil {
				return err
			}
			return c.listSchedules([]schedule{*s}, s.now)
		}),
	}
}
