package jobctl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

const (
	// requeueChunk jobs are requeued in one statement, and so in one transaction that holds their locks.
	requeueChunk = 1000
	// chunkTimeout bounds a chunk, which an interrupt does not cut: so it is known how far a run got.
	chunkTimeout = 30 * time.Second
)

// requeue is the command's flags.
type requeue struct {
	kind        string
	dead        bool
	yes, dryRun bool
}

func (c *cli) jobsRequeue() *cobra.Command {
	var r requeue
	cmd := &cobra.Command{
		Use:   "requeue (ID… | --kind KIND)",
		Short: "Give dead jobs a fresh start",
		Long: `Requeue puts dead jobs back into their queues, due at once, with all their
attempts before them and no crashes counted. The payload, the key and the
history stay. Only dead jobs can be requeued; of any other it says why not, and
the exit status is 1.

With --kind, all dead jobs of that kind are requeued, after a question (--yes
answers it, and is required where nobody can be asked), ` + fmt.Sprint(requeueChunk) + ` in a transaction.
Each is taken once: a job that dies again meanwhile stays dead. An interrupted
run leaves nothing half done and says how far it got; running it again goes on
with what is still dead.`,
		Example: `  jobctl jobs requeue 4711 4712
  jobctl jobs requeue --kind billing.charge_card --dry-run
  jobctl jobs requeue --kind billing.charge_card --yes
  jobctl jobs list --status dead --queue mail --json |
    jq '.jobs[].id' | xargs jobctl jobs requeue`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && r.kind == "":
				return errors.New("name the jobs to requeue by their ids, or give --kind for all dead jobs of a kind")
			case len(args) > 0 && (r.kind != "" || r.dead):
				return errors.New("give either ids or --kind, not both")
			case r.kind != "" && !r.yes && !r.dryRun && !c.Ask:
				return errors.New("--kind requeues many jobs, and there is no terminal to ask on: add --yes, or --dry-run to count them")
			}
			return checkIDs(args, 0)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.operate(func(ctx context.Context, op postgres.Operator, args []string) error {
			if r.kind != "" {
				return c.requeueKind(ctx, op, r)
			}
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			return c.requeueIDs(ctx, op, ids, r.dryRun)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&r.kind, "kind", "", "all dead jobs of this `kind`")
	flags.BoolVar(&r.dead, "dead", false, "with --kind: only dead jobs, which is what it does anyhow")
	flags.BoolVar(&r.yes, "yes", false, "do not ask")
	flags.BoolVar(&r.dryRun, "dry-run", false, "change nothing; tell what would be requeued")
	_ = cmd.RegisterFlagCompletionFunc("kind", c.completeKinds(true))
	return cmd
}

// refusal is a job that was not requeued.
type refusal struct {
	ID     int64  `json:"id"`
	Status string `json:"status"`
	reason string
}

func (c *cli) requeueIDs(ctx context.Context, op postgres.Operator, ids []int64, dryRun bool) error {
	out := struct {
		Requeued    []int64   `json:"requeued"`
		Refused     []refusal `json:"refused"`
		DryRun      bool      `json:"dry_run,omitempty"`
		Interrupted bool      `json:"interrupted,omitempty"`
	}{Requeued: []int64{}, Refused: []refusal{}, DryRun: dryRun}
	var failed error
	for chunk := range slices.Chunk(ids, requeueChunk) {
		if out.Interrupted = ctx.Err() != nil; out.Interrupted {
			break
		}
		done, refused, err := requeueSome(ctx, op, chunk, dryRun)
		out.Requeued, out.Refused = append(out.Requeued, done...), append(out.Refused, refused...)
		if failed = err; failed != nil {
			break
		}
	}
	if err := c.print(out, func(w io.Writer) {
		verb := "requeued"
		if dryRun {
			verb = "would be requeued"
		}
		for _, id := range out.Requeued {
			fmt.Fprintf(w, "job %d %s\n", id, verb)
		}
	}); err != nil {
		return err
	}
	for _, r := range out.Refused {
		c.note("job %d %s", r.ID, r.reason)
	}
	switch {
	case failed != nil:
		return fmt.Errorf("stopped after %d of %d; running it again is safe: %w", len(out.Requeued), len(ids), failed)
	case out.Interrupted:
		return findingf("interrupted after %d of %d; running it again is safe", len(out.Requeued), len(ids))
	case len(out.Refused) > 0:
		return findingf("%d of %d not requeued", len(out.Refused), len(ids))
	}
	return nil
}

// requeueSome answers for each id, in the order given. An error may come beside what was done.
func requeueSome(ctx context.Context, op postgres.Operator, ids []int64, dryRun bool) (done []int64, refused []refusal, err error) {
	ctx, cancel := chunkContext(ctx)
	defer cancel()
	if !dryRun {
		if done, err = op.Requeue(ctx, engine.Filter{IDs: ids}, len(ids)); err != nil {
			return nil, nil, err
		}
	}
	rest := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return slices.Contains(done, id) })
	if len(rest) > 0 {
		if refused, err = refusals(ctx, op, rest); err != nil {
			return done, nil, err
		}
	}
	if dryRun {
		refused = slices.DeleteFunc(refused, func(r refusal) bool {
			if r.Status == "dead" {
				done = append(done, r.ID)
			}
			return r.Status == "dead"
		})
	}
	place := func(id int64) int { return slices.Index(ids, id) }
	slices.SortFunc(done, func(a, b int64) int { return place(a) - place(b) })
	return done, refused, nil
}

// refusals says of jobs that were not requeued what they are instead.
func refusals(ctx context.Context, op postgres.Operator, ids []int64) ([]refusal, error) {
	// Jobs before results: what finishes in between is seen as finished, not as unknown.
	jobs, err := op.List(ctx, engine.Filter{IDs: ids}, 1<<63-1, len(ids))
	if err != nil {
		return nil, err
	}
	results, err := op.Results(ctx, ids)
	if err != nil {
		return nil, err
	}
	archived, err := op.Archived(ctx, ids)
	if err != nil {
		return nil, err
	}
	now, err := op.Now(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]refusal, len(ids))
	for i, id := range ids {
		r := refusal{ID: id, Status: "unknown", reason: "is unknown: nothing is on record"}
		if at := slices.IndexFunc(results, func(r engine.Result) bool { return r.JobID == id && r.FinishedAt != nil }); at >= 0 {
			r = refusal{id, "finished", fmt.Sprintf("has finished, %s ago; enqueue the work anew if it must run again", age(now.Sub(*results[at].FinishedAt)))}
		}
		if at := slices.IndexFunc(archived, func(a engine.Archived) bool { return a.ID == id }); at >= 0 {
			a := archived[at]
			r = refusal{id, a.Status, fmt.Sprintf("is %s, %s ago; enqueue the work anew if it must run after all", a.Status, age(now.Sub(a.FinishedAt)))}
		}
		if at := slices.IndexFunc(jobs, func(j engine.Job) bool { return j.ID == id }); at >= 0 {
			j := jobs[at]
			r.Status = j.Status
			switch when := since(j.Status, j.RunAt, j.ClaimedAt, now); j.Status {
			case "queued":
				r.reason = "is queued already, " + when
			case "running":
				r.reason = "is running " + when + "; only a dead job can be requeued"
			case "dead":
				r.reason = "is dead, but somebody else is just changing it; try again"
			}
		}
		out[i] = r
	}
	return out, nil
}

// bulk is what became of requeueing a kind.
type bulk struct {
	Kind        string `json:"kind"`
	Dead        int    `json:"dead"` // before
	Requeued    int    `json:"requeued"`
	DryRun      bool   `json:"dry_run,omitempty"`
	Interrupted bool   `json:"interrupted,omitempty"`
}

func (c *cli) requeueKind(ctx context.Context, op postgres.Operator, r requeue) error {
	dead, err := op.CountDead(ctx, r.kind)
	if err != nil {
		return err
	}
	what := count(dead.N, "dead job", "dead jobs") + " of kind " + escape(r.kind)
	if dead.N > 0 {
		what += fmt.Sprintf(" (oldest: %s)", age(dead.Oldest))
	}
	out := bulk{Kind: r.kind, Dead: dead.N, DryRun: r.dryRun}
	if dead.N > 0 && !r.dryRun {
		if !r.yes {
			if err := c.confirm(ctx, "Requeue "+what+"?"); err != nil {
				return err
			}
		}
		err = c.requeueAll(ctx, op, r.kind, dead, &out)
	}
	if err := c.print(out, func(w io.Writer) {
		switch {
		case r.dryRun && dead.N > 0:
			fmt.Fprintln(w, "would requeue", what)
		case out.Requeued > 0:
			fmt.Fprintf(w, "requeued %d of %s\n", out.Requeued, what)
		}
	}); err != nil {
		return err
	}
	switch {
	case err != nil:
		return fmt.Errorf("stopped after %d of %d; running it again is safe and goes on with what is still dead: %w", out.Requeued, dead.N, err)
	case out.Interrupted:
		return findingf("interrupted after %d of %d; running it again is safe and goes on with what is still dead", out.Requeued, dead.N)
	case dead.N == 0:
		return findingf("no dead jobs of kind %s", r.kind)
	case !r.dryRun && out.Requeued < dead.N:
		return findingf("%d were not requeued: somebody else requeued, purged or is just changing them; run it again to be sure", dead.N-out.Requeued)
	}
	return nil
}

// requeueAll requeues chunk by chunk until there are no more, or ctx ends.
func (c *cli) requeueAll(ctx context.Context, op postgres.Operator, kind string, dead postgres.Dead, out *bulk) error {
	defer c.progress("")
	after := int64(0)
	for {
		if ctx.Err() != nil {
			out.Interrupted = true
			return nil
		}
		ids, err := requeueNext(ctx, op, kind, after, dead.NewestID)
		if err != nil {
			return err
		}
		out.Requeued += len(ids)
		if len(ids) < requeueChunk {
			return nil
		}
		after = slices.Max(ids)
		c.progress(fmt.Sprintf("%d of %d requeued", out.Requeued, out.Dead))
	}
}

func requeueNext(ctx context.Context, op postgres.Operator, kind string, after, upto int64) ([]int64, error) {
	ctx, cancel := chunkContext(ctx)
	defer cancel()
	return op.RequeueKind(ctx, kind, after, upto, requeueChunk)
}

func chunkContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), chunkTimeout)
}

// progress replaces the line before; only a terminal shows it.
func (c *cli) progress(text string) {
	if c.Progress {
		fmt.Fprint(c.Stderr, "\r\x1b[K", text)
	}
}

// confirm asks a person. Anything but a yes is a no.
func (c *cli) confirm(ctx context.Context, question string) error {
	fmt.Fprint(c.Stderr, question, " [y/N] ")
	answer := make(chan string, 1)
	go func() { // ends with the process if nobody answers
		line, _ := bufio.NewReader(c.Stdin).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
	case <-ctx.Done():
		fmt.Fprintln(c.Stderr)
	}
	return findingf("nothing was changed")
}
