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
	cmd := &cobra.Command{
		Use:   "cancel ID…",
		Short: "End jobs that wait, run or are dead",
		Long: `Cancel ends jobs. One that waits or is dead leaves the queue at once; it stays on
record as cancelled for 30 days, and its key is free again. Of one that runs, the
worker is asked: it cancels the handler's context within seconds, and the job ends
cancelled unless the handler succeeds all the same; it is not started again.

Each id is by itself: what was done is printed, and if a job had finished, was
cancelled before or is unknown, the exit status is 1.`,
		Example: `  jobctl jobs cancel 4711 4712 --reason "customer left"
  jobctl jobs list --kind mail.send --json |
    jq '.jobs[].id' | xargs jobctl jobs cancel`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("name the jobs to cancel by their ids")
			}
			return checkIDs(args, 0)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			return c.cancelIDs(ctx, op, ids, storable.Text(reason, maxReason))
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why; it is kept with the job")
	return cmd
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
