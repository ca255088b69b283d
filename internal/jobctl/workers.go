package jobctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/human"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

const (
	// lostFor is how long a lost worker is in the list without --all.
	lostFor = time.Hour
	// heldTimeout bounds the look at what workers hold, which walks dead rows where vacuum is held up.
	heldTimeout = 3 * time.Second
	// mayWait is how long a claimed job may wait in its worker for a slot: after a second it goes back.
	mayWait = 2 * time.Second
	// ignores is how far past its timeout a handler has not ended with it.
	ignores = 2 * time.Second
)

func (c *cli) workers() *cobra.Command {
	list := c.workersList()
	cmd := group("workers", "See who is alive, what each runs, and who was lost",
		`A worker is a process that has registered itself in the database. It renews its
lease with a heartbeat; one that does not is found lost by the others, and its jobs
run again. To stop one, send its process SIGTERM: it finishes what it runs within
its grace and gives the rest back. Jobctl cannot do that for you: whatever
supervises the process would start it again. To stop work, pause its queues.`)
	byDefault(cmd, list)
	cmd.AddCommand(list, c.workersShow())
	return cmd
}

// byDefault makes a group do what one of its commands does, if none is named.
func byDefault(group, cmd *cobra.Command) {
	group.RunE, group.Example = cmd.RunE, cmd.Example
	group.Flags().AddFlagSet(cmd.Flags())
}

func (c *cli) workersList() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "list", Short: "List live workers, and those lost within an hour",
		Long: `List shows each worker process on record. The columns:

  STATE   alive; late: no heartbeat for more than half of its lease; expired: its
          lease has run out, and others are about to find that; lost, since when
  UP      since when it runs
  BUSY    handlers that ran at its last heartbeat, of how many at once; ? if its
          program is too old to say
  STUCK   of these, handlers that run on although their context has ended
  HOLDS   jobs that are its own: those that run, those that wait in its memory for
          a slot (a second at most), and those whose outcome is being stored; 100+:
          more than were counted
  OLDEST  of these, what was claimed first, and how long ago

Exit status 1 if no worker is alive.`,
		Example: `  jobctl workers
  jobctl workers --json | jq -r '.workers[] | select(.state == "late") | .host'`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, _ []string) error { return c.listWorkers(ctx, op, all) }),
	}
	cmd.Flags().BoolVar(&all, "all", false, "also workers lost more than an hour ago; they stay on record for a day")
	return cmd
}

// workerJSON is a worker as --json shows it.
type workerJSON struct {
	ID         uuid.UUID   `json:"id"`
	State      string      `json:"state"`
	Host       string      `json:"host"`
	PID        int         `json:"pid"`
	Build      string      `json:"build"`
	StartedAt  time.Time   `json:"started_at"`
	BeatAt     time.Time   `json:"beat_at"`
	LeaseUntil time.Time   `json:"lease_until"`
	LostAt     *time.Time  `json:"lost_at,omitempty"`
	Queues     []string    `json:"queues"`
	Kinds      []kindJSON  `json:"kinds"`
	Slots      *int        `json:"slots"`   // null, here and below: its program does not say
	Running    *int        `json:"running"` // handlers, at the last heartbeat
	Stuck      int         `json:"stuck"`
	Skew       *float64    `json:"skew_seconds"`
	Pooled     *bool       `json:"pooled"`
	Holds      *int        `json:"holds"`                // null: it took too long to find out
	HoldsMore  bool        `json:"holds_more,omitempty"` // there are more than that
	Oldest     *heldJSON   `json:"oldest,omitempty"`
	Jobs       *[]heldJSON `json:"jobs,omitempty"` // of workers show
	JobsMore   bool        `json:"jobs_more,omitempty"`
}

type kindJSON struct {
	Name    string   `json:"name"`
	Version int      `json:"version,omitempty"`
	Timeout *float64 `json:"timeout_seconds,omitempty"` // 0: none; absent: its program does not say
}

type heldJSON struct {
	ID          int64     `json:"id"`
	Kind        string    `json:"kind"`
	Queue       string    `json:"queue,omitempty"`
	Attempt     int       `json:"attempt,omitempty"`
	MaxAttempts int       `json:"max_attempts,omitempty"`
	Since       time.Time `json:"since"`
	Lock        bool      `json:"lock,omitempty"`
	Asked       bool      `json:"asked_to_end,omitempty"`
}

func asHeld(j postgres.HeldJob) heldJSON {
	return heldJSON{j.ID, j.Kind, j.Queue, j.Attempt, j.MaxAttempts, j.Since.UTC(), j.Lock, j.Asked}
}

func inSeconds(d *time.Duration) *float64 {
	if d == nil {
		return nil
	}
	s := d.Seconds()
	return &s
}

func asWorker(w *postgres.FleetWorker, now time.Time) workerJSON {
	out := workerJSON{
		ID: w.ID, State: w.State(now), Host: w.Host, PID: w.PID, Build: w.Build, StartedAt: w.StartedAt.UTC(), BeatAt: w.BeatAt.UTC(), LeaseUntil: w.LeaseUntil.UTC(),
		Queues: w.Queues, Kinds: []kindJSON{}, Slots: w.Slots, Running: w.Running, Stuck: w.Stuck, Skew: inSeconds(w.Skew), Pooled: w.Pooled,
	}
	if w.LostAt != nil {
		at := w.LostAt.UTC()
		out.LostAt = &at
	}
	for _, k := range w.Kinds {
		out.Kinds = append(out.Kinds, kindJSON{k.Name, k.Version, inSeconds(k.Timeout)})
	}
	return out
}

func (w *workerJSON) holds(s postgres.HeldSum) {
	w.Holds, w.HoldsMore = &s.Jobs, s.More
	if s.Jobs > 0 {
		oldest := asHeld(s.Oldest)
		w.Oldest = &oldest
	}
}

func (c *cli) listWorkers(ctx context.Context, op postgres.Operator, all bool) error {
	found, now, err := op.Workers(ctx)
	if err != nil {
		return err
	}
	short := shortest(found)
	out := struct {
		Workers []workerJSON `json:"workers"`
		Now     time.Time    `json:"now"`
	}{[]workerJSON{}, now.UTC()}
	hidden, live, ids := 0, 0, []uuid.UUID(nil)
	for i := range found {
		w := &found[i]
		if !all && w.LostAt != nil && now.Sub(*w.LostAt) > lostFor {
			hidden++
			continue
		}
		if w.LostAt == nil {
			live++
		}
		out.Workers, ids = append(out.Workers, asWorker(w, now)), append(ids, w.ID)
	}
	held, err := within(ctx, func(ctx context.Context) (map[uuid.UUID]postgres.HeldSum, error) { return op.HeldSums(ctx, ids) })
	slow := errors.Is(err, errSlow)
	if err != nil && !slow {
		return err
	}
	for i := range out.Workers {
		if !slow {
			out.Workers[i].holds(held[out.Workers[i].ID])
		}
	}
	if err := c.print(out, func(w io.Writer) {
		if len(out.Workers) > 0 {
			c.writeWorkers(w, out.Workers, short, now)
		}
	}); err != nil {
		return err
	}
	for i := range out.Workers {
		w := &out.Workers[i]
		where := fmt.Sprintf("worker %s (%s, pid %d)", w.ID.String()[:short], w.Host, w.PID)
		switch w.State {
		case "late":
			c.note("%s is late: no heartbeat for %s; if none comes within %s, its jobs go to others", where, human.Age(now.Sub(w.BeatAt)), human.Age(w.LeaseUntil.Sub(now)))
		case "expired":
			c.note("%s has not been heard of for %s: its lease has run out, and a live worker is about to take its jobs back", where, human.Age(now.Sub(w.BeatAt)))
		case "lost":
			if w.Holds != nil && *w.Holds > 0 {
				c.note("%s is lost, and %s not been taken back yet: a live worker does it within seconds", where, human.Count(*w.Holds, "job has", "jobs have"))
			}
			continue
		}
		if w.Stuck > 0 {
			c.note(`%s has %s that ignore their ended context and keep their slots; its log says which ("a handler ignores its context", with the stack)`, where, human.Count(w.Stuck, "handler", "handlers"))
		}
	}
	if slow {
		c.noteSlow()
	}
	if hidden > 0 {
		c.note("%s lost more than an hour ago: --all shows them", human.Count(hidden, "more was", "more were"))
	}
	if live == 0 {
		return findingf("no worker is alive: nothing is claimed, and no schedule ticks")
	}
	return nil
}

func (c *cli) noteSlow() {
	c.note("what workers hold could not be read within %s: they hold very many jobs, or vacuum is held up by a long transaction; see `jobctl doctor`", heldTimeout)
}

var errSlow = errors.New("took too long")

// within gives fn a limited time.
func within[T any](ctx context.Context, fn func(context.Context) (T, error)) (T, error) {
	limited, cancel := context.WithTimeout(ctx, heldTimeout)
	defer cancel()
	v, err := fn(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = errSlow
	}
	return v, err
}

// shortest is how many characters of an id tell the workers apart, eight at least.
func shortest(found []postgres.FleetWorker) int {
	ids := make([]string, len(found))
	for i, w := range found {
		ids[i] = w.ID.String()
	}
	slices.Sort(ids)
	n := 8
	for i := 1; i < len(ids); i++ {
		for n < len(ids[i]) && ids[i][:n] == ids[i-1][:n] {
			n++
		}
	}
	return n
}

func (c *cli) writeWorkers(w io.Writer, workers []workerJSON, short int, now time.Time) {
	table := []column{
		{title: "WORKER"}, {title: "STATE"}, {title: "HOST", min: 8}, {title: "PID", spare: 2}, {title: "UP", spare: 1}, {title: "BUSY"}, {title: "STUCK"},
		{title: "HOLDS", spare: 3}, {title: "OLDEST", min: 12}, {title: "BUILD", min: 8, spare: 4},
	}
	for _, x := range workers {
		state, up, stuck := x.State, human.Age(now.Sub(x.StartedAt)), ""
		if x.LostAt != nil {
			state, up = "lost "+human.Age(now.Sub(*x.LostAt))+" ago", ""
		}
		if x.Stuck > 0 {
			stuck = strconv.Itoa(x.Stuck)
		}
		oldest := ""
		if x.Oldest != nil {
			oldest = human.Age(now.Sub(x.Oldest.Since)) + " " + escape(x.Oldest.Kind)
		}
		for i, cell := range []string{
			x.ID.String()[:short], state, escape(x.Host), strconv.Itoa(x.PID), up, x.busy(), stuck, x.held(), oldest, escape(x.Build),
		} {
			table[i].cells = append(table[i].cells, cell)
		}
	}
	if !slices.ContainsFunc(workers, func(x workerJSON) bool { return x.Stuck > 0 }) {
		table = slices.DeleteFunc(table, func(c column) bool { return c.title == "STUCK" })
	}
	writeTable(w, c.width(), table)
}

func (w *workerJSON) busy() string {
	switch {
	case w.State == "lost":
		return ""
	case w.Slots == nil || w.Running == nil:
		return "?"
	}
	return fmt.Sprintf("%d/%d", *w.Running, *w.Slots)
}

func (w *workerJSON) held() string {
	switch {
	case w.Holds == nil:
		return "?"
	case w.HoldsMore:
		return strconv.Itoa(*w.Holds) + "+"
	}
	return strconv.Itoa(*w.Holds)
}

// someID is the beginning of a worker's id.
var someID = regexp.MustCompile(`^[0-9a-f][0-9a-f-]{0,35}$`)

func (c *cli) workersShow() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show a worker, and the jobs it runs",
		Long: `Show prints all that is on record of a worker, and the jobs that are its own, the
oldest first. The beginning of its id is enough.

The database does not tell a job that runs from one that waits in the worker's
memory for a slot; but after a second such a job goes back, so those that were
claimed longer ago run (or have just ended). A handler that is stuck is not among
them: its job has gone on without it.`,
		Example: `  jobctl workers show 3f2a
  jobctl workers show 3f2a --json | jq '.worker.jobs[].id'`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) != 1:
				return fmt.Errorf("it takes one worker's id or its beginning, and got %d arguments", len(args))
			case !someID.MatchString(strings.ToLower(args[0])):
				return fmt.Errorf("%q is not the beginning of a worker's id, as `jobctl workers` shows it", args[0])
			case limit < 1 || limit > listMost:
				return fmt.Errorf("--limit is %d; it may be 1 to %d", limit, listMost)
			}
			return nil
		},
		ValidArgsFunction: c.completeWorkers,
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, args []string) error {
			return c.showWorker(ctx, op, strings.ToLower(args[0]), limit)
		}),
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "how many jobs at most")
	return cmd
}

func (c *cli) completeWorkers(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.completeFrom(func(ctx context.Context, op postgres.Operator) (out []string, err error) {
		workers, now, err := op.Workers(ctx)
		for _, w := range workers {
			out = append(out, cobra.CompletionWithDesc(w.ID.String(), fmt.Sprintf("%s, %s pid %d", w.State(now), escape(w.Host), w.PID)))
		}
		return out, err
	})(cmd, args, "")
}

func (c *cli) showWorker(ctx context.Context, op postgres.Operator, prefix string, limit int) error {
	found, now, err := op.Workers(ctx)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(w postgres.FleetWorker) bool { return !strings.HasPrefix(w.ID.String(), prefix) })
	switch len(found) {
	case 0:
		return findingf("no worker on record has an id that begins with %s (a lost one stays for a day; one that has stopped in order is gone)", prefix)
	case 1:
	default:
		var ids []string
		for _, w := range found[:min(len(found), 5)] {
			ids = append(ids, w.ID.String())
		}
		return findingf("%d workers have ids that begin with %s: %s", len(found), prefix, strings.Join(ids, ", "))
	}
	w := asWorker(&found[0], now)
	jobs, err := within(ctx, func(ctx context.Context) ([]postgres.HeldJob, error) { return op.HeldJobs(ctx, w.ID, limit+1) })
	var sums map[uuid.UUID]postgres.HeldSum
	if err == nil {
		sums, err = within(ctx, func(ctx context.Context) (map[uuid.UUID]postgres.HeldSum, error) {
			return op.HeldSums(ctx, []uuid.UUID{w.ID})
		})
	}
	slow := errors.Is(err, errSlow)
	if err != nil && !slow {
		return err
	}
	if !slow {
		slices.SortStableFunc(jobs, func(a, b postgres.HeldJob) int { return a.Since.Compare(b.Since) })
		held := []heldJSON{}
		for _, j := range jobs[:min(len(jobs), limit)] {
			held = append(held, asHeld(j))
		}
		w.holds(sums[w.ID])
		w.Jobs, w.JobsMore = &held, len(jobs) > limit
	}
	if err := c.print(struct {
		Worker workerJSON `json:"worker"`
		Now    time.Time  `json:"now"`
	}{w, now.UTC()}, func(out io.Writer) { c.writeWorker(out, &w, now) }); err != nil {
		return err
	}
	if slow {
		c.noteSlow()
	}
	if w.JobsMore {
		c.note("the %d oldest of its jobs; there are more: --limit", limit)
	}
	return nil
}

func (c *cli) writeWorker(out io.Writer, w *workerJSON, now time.Time) {
	lease := w.LeaseUntil.Sub(w.BeatAt)
	switch where := fmt.Sprintf("on %s, pid %d", escape(w.Host), w.PID); w.State {
	case "lost":
		fmt.Fprintf(out, "worker %s was lost %s ago: no heartbeat within its lease of %s; it was %s\n", w.ID, human.Age(now.Sub(*w.LostAt)), human.Age(lease), where)
	case "alive":
		fmt.Fprintf(out, "worker %s is alive, %s\n", w.ID, where)
	default:
		fmt.Fprintf(out, "worker %s is %s: no heartbeat for %s, and its lease is %s; it is %s\n", w.ID, w.State, human.Age(now.Sub(w.BeatAt)), human.Age(lease), where)
	}
	fmt.Fprintln(out)
	field := func(name, format string, args ...any) {
		fmt.Fprintf(out, "%-11s %s\n", name, escape(fmt.Sprintf(format, args...)))
	}
	ago := func(t time.Time) string { return fmt.Sprintf("%s (%s ago)", c.time(t), human.Age(now.Sub(t))) }
	field("started", "%s", ago(w.StartedAt))
	field("heartbeat", "%s", ago(w.BeatAt))
	if w.State == "alive" || w.State == "late" {
		field("lease", "%s, %s left", human.Age(lease), human.Age(w.LeaseUntil.Sub(now)))
	}
	field("build", "%s", w.Build)
	if w.Pooled != nil {
		field("connection", "%s", map[bool]string{false: "direct", true: "by a transaction pooler: no wake-ups, it finds jobs by polling"}[*w.Pooled])
	}
	if w.Skew != nil {
		field("clock", "%s", skewText(time.Duration(*w.Skew*float64(time.Second))))
	}
	if w.Slots != nil && w.Running != nil {
		field("slots", "%d of %d busy at its last heartbeat", *w.Running, *w.Slots)
	}
	if w.Stuck > 0 {
		field("stuck", `%s; its log says which ("a handler ignores its context", with the stack)`, human.Count(w.Stuck, "handler", "handlers"))
	}
	field("queues", "%s", strings.Join(w.Queues, ", "))
	if w.Jobs != nil {
		c.writeHeld(out, w, now)
	}
	fmt.Fprintln(out)
	table := []column{{title: "KIND", min: 12}, {title: "VERSION"}, {title: "TIMEOUT"}}
	for _, k := range w.Kinds {
		version, timeout := "?", "?"
		if k.Version > 0 {
			version = strconv.Itoa(k.Version)
		}
		if k.Timeout != nil {
			timeout = cmp.Or(map[bool]string{true: "none"}[*k.Timeout == 0], took(time.Duration(*k.Timeout*float64(time.Second))))
		}
		for i, cell := range []string{escape(k.Name), version, timeout} {
			table[i].cells = append(table[i].cells, cell)
		}
	}
	writeTable(out, c.width(), table)
}

// skewText says how wrong a clock is; the measurement itself is not much better than a round trip.
func skewText(d time.Duration) string {
	switch {
	case d.Abs() < 100*time.Millisecond:
		return "as the database's, within 0.1s"
	case d > 0:
		return took(d) + " ahead of the database's"
	}
	return took(-d) + " behind the database's"
}

func (c *cli) writeHeld(out io.Writer, w *workerJSON, now time.Time) {
	if len(*w.Jobs) == 0 {
		fmt.Fprintln(out, "\nno job is its own now")
		return
	}
	n := w.held()
	fmt.Fprintf(out, "\n%s its own, the oldest first\n", map[bool]string{true: "1 job is", false: n + " jobs are"}[n == "1"])
	table := []column{{title: "JOB"}, {title: "KIND", min: 12}, {title: "QUEUE", min: 8, spare: 2}, {title: "TRY", spare: 1}, {title: "FOR"}, {title: "NOTE", min: 14}}
	for _, j := range *w.Jobs {
		ran := now.Sub(j.Since)
		for i, cell := range []string{
			strconv.FormatInt(j.ID, 10), escape(j.Kind), escape(j.Queue), fmt.Sprintf("%d/%d", j.Attempt, j.MaxAttempts), human.Age(ran), w.heldNote(j, ran),
		} {
			table[i].cells = append(table[i].cells, cell)
		}
	}
	writeTable(out, c.width(), table)
}

// heldNote is what is to be said of a job that a worker holds.
func (w *workerJSON) heldNote(j heldJSON, ran time.Duration) string {
	var notes []string
	i := slices.IndexFunc(w.Kinds, func(k kindJSON) bool { return k.Name == j.Kind })
	if i >= 0 && w.Kinds[i].Timeout != nil && *w.Kinds[i].Timeout > 0 {
		if timeout := time.Duration(*w.Kinds[i].Timeout * float64(time.Second)); w.LostAt == nil && ran > timeout+ignores {
			notes = append(notes, "past its timeout of "+took(timeout))
		}
	}
	if w.LostAt != nil {
		notes = append(notes, "waits to be taken back")
	} else if ran < mayWait && !j.Lock {
		notes = append(notes, "may still wait for a slot")
	}
	if j.Asked {
		notes = append(notes, "asked to end")
	}
	if j.Lock {
		notes = append(notes, "owned by lock")
	}
	return strings.Join(notes, ", ")
}
