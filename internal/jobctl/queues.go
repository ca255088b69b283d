package jobctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
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

func (c *cli) queues() *cobra.Command {
	cmd := group("queues", "See queues, pause and resume them, share slots out",
		`What is decided about a queue holds for all workers, until it is decided otherwise,
and comes before what their programs say. They see it at once as a rule, and within
seconds in any case.`)
	list := c.queuesList()
	byDefault(cmd, list)
	cmd.AddCommand(list,
		c.queuesDecide("pause QUEUE…", "Stop the claiming of a queue's jobs",
			`Pause stops the claiming of a queue's jobs. Running handlers go on, and so do
enqueueing and schedules. A queue that no worker knows yet can be paused.`, jobs.PauseQueue),
		c.queuesDecide("resume QUEUE…", "Go on with a paused queue",
			`Resume ends a pause. For a queue that is not paused it does nothing.`, jobs.ResumeQueue),
		c.queuesSet())
	return cmd
}

func (c *cli) queuesList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "Queues that have jobs, that workers poll, or about which something is decided",
		Long: `List shows the queues that have jobs, those that live workers poll, and those about
which something has been decided. READY is how many jobs could start now, and OLDEST
for how long the first of them has been waiting; which way that moves, jobctl stats
shows. An empty weight or number of slots is what the workers' programs say. Names
that are too long are cut in the middle; --json has them whole.`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, _ []string) error {
			queues, now, err := op.Queues(ctx)
			if err != nil {
				return err
			}
			look, err := op.Look(ctx)
			if err != nil {
				return err
			}
			return c.printQueues(queues, now, &look)
		}),
	}
}

func (c *cli) queuesDecide(use, short, long string, decide func(context.Context, jobs.DB, string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("name the queues")
			}
			return checkQueues(args)
		},
		ValidArgsFunction: c.completeQueues(),
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, args []string) error {
			return c.decide(ctx, op, args, func(tx pgx.Tx, queue string) error { return decide(ctx, tx, queue) })
		}),
	}
}

func (c *cli) queuesSet() *cobra.Command {
	var weight, slots int
	cmd := &cobra.Command{
		Use: "set QUEUE…", Short: "Decide a queue's weight and slots",
		Long: `Set decides in which proportion a queue gets a worker's slots, beside the other
queues that have jobs of the same priority, and how many of its jobs run at once in
each worker process. 0 takes a decision back: what the workers' programs say holds.`,
		Example: `  jobctl queues set mail --slots 5
  jobctl queues set reports --weight 0`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch flags := cmd.Flags(); {
			case len(args) == 0:
				return errors.New("name the queues")
			case !flags.Changed("weight") && !flags.Changed("slots"):
				return errors.New("say what to set: --weight, --slots or both")
			case weight < 0 || weight > jobs.MaxWeight:
				return fmt.Errorf("--weight is %d; it must be 1 to %d, or 0 to take it back", weight, jobs.MaxWeight)
			case slots < 0 || slots > jobs.MaxSlots:
				return fmt.Errorf("--slots is %d; it must be 1 to %d, or 0 to take it back (to stop a queue, pause it)", slots, jobs.MaxSlots)
			}
			return checkQueues(args)
		},
		ValidArgsFunction: c.completeQueues(),
	}
	cmd.Flags().IntVar(&weight, "weight", 0, "`share` of the slots, beside other queues")
	cmd.Flags().IntVar(&slots, "slots", 0, "how many `jobs` run at once in each process")
	cmd.RunE = c.operate(func(ctx context.Context, op postgres.Operator, args []string) error {
		return c.decide(ctx, op, args, func(tx pgx.Tx, queue string) error {
			if cmd.Flags().Changed("weight") {
				if err := jobs.SetQueueWeight(ctx, tx, queue, weight); err != nil {
					return err
				}
			}
			if cmd.Flags().Changed("slots") {
				return jobs.SetQueueSlots(ctx, tx, queue, slots)
			}
			return nil
		})
	})
	return cmd
}

func checkQueues(names []string) error {
	for _, name := range names {
		if name == "" || len(name) > jobs.MaxName {
			return fmt.Errorf("the queue name %q has %d bytes; it must have 1 to %d", name, len(name), jobs.MaxName)
		}
		if problem := storable.Problem(name); problem != "" {
			return fmt.Errorf("the queue name %q %s", name, problem)
		}
	}
	return nil
}

// decide decides about all queues or none, and shows what holds now.
func (c *cli) decide(ctx context.Context, op postgres.Operator, names []string, one func(tx pgx.Tx, queue string) error) error {
	names = slices.Compact(slices.Sorted(slices.Values(names))) // one order of locks for all
	if err := pgx.BeginFunc(ctx, op.Pool, func(tx pgx.Tx) error {
		for _, name := range names {
			if err := one(tx, name); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	queues, now, err := op.Queues(ctx)
	if err != nil {
		return err
	}
	queues = slices.DeleteFunc(queues, func(q engine.ListedQueue) bool { return !slices.Contains(names, q.Name) })
	if err := c.printQueues(queues, now, nil); err != nil {
		return err
	}
	for _, q := range queues {
		if q.Workers == 0 {
			c.note("no live worker polls %q; it holds for those to come", q.Name)
		}
	}
	return nil
}

// queueRow is a queue with what waits in it; Ready is nil if nobody looked.
type queueRow struct {
	engine.ListedQueue
	Ready  *int64   `json:"ready,omitempty"`
	Oldest *float64 `json:"oldest_s,omitempty"`
}

// printQueues shows queues. With a look, it is all there are, and what waits in each.
func (c *cli) printQueues(queues []engine.ListedQueue, now time.Time, look *engine.Look) error {
	out := struct {
		Queues []queueRow `json:"queues"`
		Share  float64    `json:"share,omitempty"` // the part of jobs that was counted; less than 1: ready is an estimate
		Now    time.Time  `json:"now"`
	}{Queues: []queueRow{}, Now: now.UTC()}
	if look != nil {
		out.Share = look.Share
		for _, l := range look.Levels {
			if !slices.ContainsFunc(queues, func(q engine.ListedQueue) bool { return q.Name == l.Queue }) {
				queues = append(queues, engine.ListedQueue{Name: l.Queue})
			}
		}
		slices.SortFunc(queues, func(a, b engine.ListedQueue) int { return strings.Compare(a.Name, b.Name) })
	}
	for _, q := range queues {
		if q.PausedAt != nil {
			at := q.PausedAt.UTC()
			q.PausedAt = &at
		}
		row := queueRow{ListedQueue: q}
		if look != nil {
			row.Ready, row.Oldest = new(int64), new(float64)
			for _, l := range look.Levels {
				if l.Queue == q.Name {
					*row.Ready += l.Ready
					*row.Oldest = max(*row.Oldest, l.Oldest.Seconds())
				}
			}
		}
		out.Queues = append(out.Queues, row)
	}
	if err := c.print(out, func(w io.Writer) {
		if len(out.Queues) > 0 {
			writeTable(w, c.width(), queueColumns(out.Queues, now, look != nil))
		}
	}); err != nil {
		return err
	}
	if len(out.Queues) == 0 {
		c.note("no queue has jobs, is polled by a live worker, or has anything decided about it")
	}
	if look != nil && look.Share < 1 {
		c.note("ready is estimated from %s of the table", percent(look.Share))
	}
	return nil
}

func queueColumns(rows []queueRow, now time.Time, looked bool) []column {
	columns := []column{
		{title: "QUEUE", min: 8, cut: middle}, {title: "STATE"}, {title: "READY", right: true}, {title: "OLDEST", right: true},
		{title: "WEIGHT", right: true, spare: 1}, {title: "SLOTS", right: true, spare: 2}, {title: "WORKERS", right: true},
	}
	for _, q := range rows {
		state, ready, oldest := "open", "", ""
		if q.PausedAt != nil {
			state = "paused for " + human.Age(now.Sub(*q.PausedAt))
		}
		if q.Ready != nil {
			ready = short(float64(*q.Ready))
			if *q.Ready > 0 {
				oldest = human.Age(seconds(*q.Oldest))
			}
		}
		for i, cell := range []string{escape(q.Name), state, ready, oldest, orNone(q.Weight), orNone(q.Slots), strconv.Itoa(q.Workers)} {
			columns[i].cells = append(columns[i].cells, cell)
		}
	}
	if !looked {
		columns = slices.Delete(columns, 2, 4)
	}
	return columns
}

func orNone(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}
