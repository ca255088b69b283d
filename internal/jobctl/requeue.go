package jobctl

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/human"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

func (c *cli) jobsRequeue() *cobra.Command {
	var delay, spread string
	var dead bool
	a := &action{verb: "requeue", past: "requeued", statuses: func() []string { return []string{"dead"} }, refusal: notRequeued}
	cmd := &cobra.Command{
		Use:   "requeue (ID… | filters)",
		Short: "Give dead jobs a fresh start",
		Long: `Requeue puts dead jobs back into their queues, due at once, or after --delay and
spread over --spread, with all their attempts before them and no crashes
counted. The payload, the key and the history stay, and so does a deadline.

Only dead jobs can be requeued: of any other it says why not, and the exit
status is 1. A cancelled or finished job is not put back: somebody may know
already how it ended; enqueue the work anew. A job whose key is another job's by
now (handed over while it ran, or enqueued anew) stays dead, because of two jobs
with one key only one does the work: it says which job has the key.
` + selectionHelp + fmt.Sprintf(bulkHelp, bulkChunk),
		Example: `  jobctl jobs requeue 4711 4712
  jobctl jobs requeue --kind billing.charge_card --dry-run
  jobctl jobs requeue --kind billing.charge_card --error timeout --spread 10m
  jobctl jobs requeue --queue mail --newer 2h --yes`,
		Args: func(_ *cobra.Command, args []string) error {
			for flag, value := range map[string]string{"--delay": delay, "--spread": spread} {
				if _, err := parseAge(flag, value); err != nil {
					return err
				}
			}
			if len(args) > 0 && dead {
				return fmt.Errorf("give either ids or filters, not both")
			}
			if a.sel.filter.Statuses == nil && dead {
				a.sel.filter.Statuses = []string{"dead"}
			}
			return a.check(c, args)
		},
		ValidArgsFunction: c.completeIDs("dead"),
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, _ []string) error {
			in, _ := parseAge("", delay)
			over, _ := parseAge("", spread)
			a.chunk = func(ctx context.Context, op postgres.Operator, ids []int64) (got changed, err error) {
				got.done, got.taken, err = op.Requeue(ctx, ids, in, over)
				return got, err
			}
			return c.act(ctx, op, a)
		}),
	}
	a.flags(c, cmd, []string{"dead"})
	flags := cmd.Flags()
	flags.StringVar(&delay, "delay", "", "due after this `duration`")
	flags.StringVar(&spread, "spread", "", "due spread over this `duration`, not all at once")
	flags.BoolVar(&dead, "dead", false, "only dead jobs, as it does anyhow")
	return cmd
}

// notRequeued says why a job was not requeued.
func notRequeued(r refused) string {
	switch r.Status {
	case "finished", "succeeded":
		return fmt.Sprintf("has finished, %s; enqueue the work anew if it must run again", r.when)
	case "cancelled":
		return fmt.Sprintf("is cancelled, %s; enqueue the work anew if it must run after all", r.when)
	case "queued":
		return "is queued already, " + r.when
	case "running":
		return "is running " + r.when + "; only a dead job can be requeued"
	case "dead":
		if r.holder != nil {
			return takenKey(r)
		}
		return "is dead, but somebody else is just changing it; try again"
	}
	return "is unknown: nothing is on record"
}

// takenKey says who has a dead job's key by now, and what to do.
func takenKey(r refused) string {
	h := r.holder
	switch {
	case h.FinishedAt != nil:
		by := fmt.Sprintf("job %d", h.Job)
		if h.Job == r.ID {
			by = "itself"
		}
		return fmt.Sprintf("is dead, and the work of its key %q was done by %s, %s ago: requeued, it would end without running. "+
			"If that is enough: jobctl jobs delete %d. If it must run again: after that result expires, in %s",
			h.Key, by, human.Age(r.now.Sub(*h.FinishedAt)), r.ID, human.Age(max(h.ExpiresAt.Sub(r.now), time.Second)))
	case h.Status == "dead":
		return fmt.Sprintf("is dead, and its key %q is now that of job %d, which is dead too: one of them can run. "+
			"The newer one: jobctl jobs requeue %d. This one: jobctl jobs cancel %d, then requeue it", h.Key, h.Job, h.Job, h.Job)
	}
	return fmt.Sprintf("is dead, and its key %q is now that of job %d, which is %s and does the work. "+
		"If that is enough: jobctl jobs delete %d. If this one must run instead: jobctl jobs cancel %d, then requeue it", h.Key, h.Job, h.Status, r.ID, h.Job)
}
