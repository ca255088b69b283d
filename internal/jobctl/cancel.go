package jobctl

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/internal/storable"
)

// maxReason is the limit of a reason, in bytes.
const maxReason = 1 << 10

// cancelled answers for a job that was to be cancelled.
type cancelled struct {
	ID     int64  `json:"id"`
	Status string `json:"status"` // cancelled, asked, finished, already cancelled, unknown or locked
}

func (c *cli) jobsCancel() *cobra.Command {
	var reason string
	a := &action{verb: "cancel", past: "cancelled", statuses: func() []string { return nil }}
	cmd := &cobra.Command{
		Use:   "cancel (ID… | filters)",
		Short: "End jobs that wait, run or are dead",
		Long: `Cancel ends jobs. One that waits or is dead leaves the queue at once; it stays on
record as cancelled for 30 days, and its key is free again. Of one that runs, the
worker is asked: it cancels the handler's context within seconds, and the job ends
cancelled unless the handler succeeds all the same; it is not started again.

Of ids, each is by itself: what was done is printed, and if a job had finished, was
cancelled before or is unknown, the exit status is 1.
` + selectionHelp + fmt.Sprintf(bulkHelp, bulkChunk),
		Example: `  jobctl jobs cancel 4711 4712 --reason "customer left"
  jobctl jobs cancel --kind mail.send --payload customer.id=17 --dry-run
  jobctl jobs cancel --queue reports --status queued --older 1d --yes`,
		Args:              func(_ *cobra.Command, args []string) error { return a.check(c, args) },
		ValidArgsFunction: c.completeIDs(),
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, _ []string) error {
			why := storable.Text(reason, maxReason)
			if ids := a.sel.filter.IDs; len(ids) > 0 && !a.dryRun {
				return c.cancelIDs(ctx, op, ids, why)
			}
			only := rowStatuses(a.sel.filter.Statuses)
			a.chunk = func(ctx context.Context, op postgres.Operator, ids []int64) (got changed, err error) {
				got.done, got.asked, err = op.CancelMany(ctx, ids, only, why)
				return got, err
			}
			return c.act(ctx, op, a)
		}),
	}
	a.refusal = notCancelled
	a.flags(c, cmd, statuses)
	cmd.Flags().StringVar(&reason, "reason", "", "why; it is kept with the job")
	return cmd
}

// notCancelled says, in a dry run, why a job would not be cancelled.
func notCancelled(r refused) string {
	switch r.Status {
	case "finished", "succeeded":
		return "has finished, " + r.when
	case "cancelled":
		return "is cancelled, " + r.when
	}
	return "is unknown: nothing is on record"
}

func (c *cli) cancelIDs(ctx context.Context, op postgres.Operator, ids []int64, reason string) error {
	out := struct {
		Jobs []cancelled `json:"jobs"`
	}{Jobs: []cancelled{}}
	refused := 0
	var failed error
	for _, id := range ids {
		status, err := op.Cancel(ctx, id, reason)
		if errors.Is(err, engine.ErrLocked) {
			status, err = "locked", nil
		}
		if failed = err; err != nil {
			break
		}
		if status == "" {
			status = "unknown"
		}
		if status != engine.StatusCancelled && status != engine.StatusAsked {
			refused++
		}
		out.Jobs = append(out.Jobs, cancelled{id, status})
	}
	if err := c.print(out, func(w io.Writer) {
		for _, j := range out.Jobs {
			fmt.Fprintf(w, "job %d %s\n", j.ID, map[string]string{
				engine.StatusCancelled: "is cancelled", engine.StatusAsked: "runs; its worker is asked to stop it",
				engine.StatusFinished: "had finished", engine.StatusAlready: "was cancelled before",
				"unknown": "is unknown: nothing is on record", "locked": "is locked by another session; try again",
			}[j.Status])
		}
	}); err != nil {
		return err
	}
	switch {
	case failed != nil:
		return fmt.Errorf("stopped after %d of %d; running it again is safe: %w", len(out.Jobs), len(ids), failed)
	case refused > 0:
		return findingf("%d of %d not cancelled", refused, len(ids))
	}
	return nil
}
