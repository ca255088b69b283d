package jobctl

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/internal/storable"
)

func (c *cli) jobsDelete() *cobra.Command {
	var reason string
	a := &action{verb: "delete", past: "deleted", asks: true, refusal: notDeleted}
	a.statuses = func() []string { return []string{"queued", "dead"} }
	cmd := &cobra.Command{
		Use:   "delete (ID… | filters)",
		Short: "Remove queued or dead jobs for good",
		Long: `Delete removes jobs that wait or are dead, for good: payload, errors and history.
Their keys are free. What stays, for as long as failed attempts do, is one line
that jobs show prints: who deleted it, when, and --reason. Whoever awaits such a
job learns that nothing is on record of it.

A job that runs is not deleted: cancel it. To keep a record of what a job was,
cancel it instead: it stays on record for 30 days.
` + selectionHelp + fmt.Sprintf(bulkHelp, bulkChunk),
		Example: `  jobctl jobs delete 4711 --reason "customer asked for it"
  jobctl jobs delete --status dead --older 30d --dry-run
  jobctl jobs delete --status dead --kind mail.send --yes`,
		Args: func(_ *cobra.Command, args []string) error {
			if slices.Contains(a.sel.filter.Statuses, "running") {
				return fmt.Errorf("a job that runs cannot be deleted; see `jobctl jobs cancel`")
			}
			return a.check(c, args)
		},
		ValidArgsFunction: c.completeIDs("queued", "dead"),
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, _ []string) error {
			only := a.statuses()
			if s := a.sel.filter.Statuses; len(s) > 0 {
				only = rowStatuses(s)
			}
			why := storable.Text(reason, maxReason)
			a.chunk = func(ctx context.Context, op postgres.Operator, ids []int64) (got changed, err error) {
				got.done, err = op.Delete(ctx, ids, only, why)
				return got, err
			}
			return c.act(ctx, op, a)
		}),
	}
	a.flags(c, cmd, []string{"queued", "ready", "scheduled", "dead"})
	cmd.Flags().StringVar(&reason, "reason", "", "why; it is kept")
	return cmd
}

// notDeleted says why a job was not deleted.
func notDeleted(r refused) string {
	switch r.Status {
	case "finished", "succeeded":
		return fmt.Sprintf("has finished, %s; its record goes by itself in %s", r.when, r.expiresAt)
	case "cancelled":
		return fmt.Sprintf("is cancelled, %s; its record goes by itself in %s", r.when, r.expiresAt)
	case "running":
		return fmt.Sprintf("is running %s; end it first: jobctl jobs cancel %d", r.when, r.ID)
	case "queued", "dead":
		return "is " + r.Status + ", but somebody else has it locked; try again"
	}
	return "is unknown: nothing is on record"
}
