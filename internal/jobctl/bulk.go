package jobctl

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/human"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

const (
	// bulkChunk jobs are changed in one statement, and so in one transaction that holds their locks.
	bulkChunk = 1000
	// tallyChunk jobs are counted by one statement.
	tallyChunk = 10_000
	// chunkTimeout bounds a chunk, which an interrupt does not cut: so it is known how far a run got.
	chunkTimeout = 30 * time.Second
	// secondTry is how long after the first one what was locked is tried again; secondMost bounds what is kept for it.
	secondTry  = 500 * time.Millisecond
	secondMost = 100_000
	// sampleSize is how many jobs a dry run shows.
	sampleSize = 5
)

// action is what a command does to jobs.
type action struct {
	verb, past string
	asks       bool // also about jobs that are named by their ids
	sel        selection
	yes        bool
	dryRun     bool
	// statuses are those of jobs it changes, as their rows have it; empty: any.
	statuses func() []string
	// chunk changes what it can of ids, in one transaction.
	chunk func(ctx context.Context, op postgres.Operator, ids []int64) (changed, error)
	// refusal says why a job was left as it is.
	refusal func(s refused) string
}

// changed is what became of a chunk: what is in none of them was left as it is.
type changed struct {
	done  []int64
	asked []int64 // cancel: of these, which run, the worker was asked
	taken []int64 // requeue: their key is another job's
}

const bulkHelp = `
Of jobs that filters select it counts first how many they are, and asks (--yes
answers, and is required where nobody can be asked; --dry-run only counts, and
shows some). They are changed %d in a transaction, oldest first, each once,
and only those that there were at the beginning. One that somebody else has
locked is tried a second time at the end. Interrupted, it finishes the
transaction and says how far it got; running it again is safe and goes on with
what is left, and so is running it twice at the same time.`

func (a *action) flags(c *cli, cmd *cobra.Command, allowed []string) {
	a.sel.flags(c, cmd, allowed, true)
	cmd.Flags().BoolVar(&a.yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&a.dryRun, "dry-run", false, "change nothing; tell what would be "+a.past)
}

// check refuses to change all jobs because somebody forgot to say which.
func (a *action) check(c *cli, args []string) error {
	if err := a.sel.check(args); err != nil {
		return err
	}
	switch {
	case len(args) == 0 && !a.sel.filtered():
		return fmt.Errorf("say which jobs to %s: ids, filters like --kind, or --all", a.verb)
	case (len(args) == 0 || a.asks) && !a.yes && !a.dryRun && !c.Ask:
		return fmt.Errorf("it would %s many jobs, or for good, and there is no terminal to ask on: add --yes, or --dry-run to see what it would do", a.verb)
	}
	return nil
}

func (c *cli) act(ctx context.Context, op postgres.Operator, a *action) error {
	if ids := a.sel.filter.IDs; len(ids) > 0 {
		return c.actOnIDs(ctx, op, a, ids)
	}
	return c.actOnMany(ctx, op, a)
}

// refused is a job that was left as it is.
type refused struct {
	ID     int64  `json:"id"`
	Status string `json:"status"`
	Reason string `json:"reason"`

	when      string // since when it is that, or how long ago it ended
	expiresAt string // of one on record, in how long that ends
	holder    *postgres.KeyHolder
	now       time.Time
}

func (c *cli) actOnIDs(ctx context.Context, op postgres.Operator, a *action, ids []int64) error {
	if a.asks && !a.yes && !a.dryRun {
		if err := c.confirm(ctx, fmt.Sprintf("%s %s%s?", upper(a.verb), human.Count(len(ids), "job", "jobs"), forGood(a))); err != nil {
			return err
		}
	}
	var done []int64
	var left []refused
	var failed error
	interrupted := false
	for chunk := range slices.Chunk(ids, bulkChunk) {
		if interrupted = ctx.Err() != nil; interrupted {
			break
		}
		some, refused, err := a.some(ctx, op, chunk)
		done, left = append(done, some...), append(left, refused...)
		if failed = err; failed != nil {
			break
		}
	}
	out := map[string]any{a.past: orNothing(done), "refused": orNothing(left)}
	if a.dryRun {
		out["dry_run"] = true
	}
	if interrupted {
		out["interrupted"] = true
	}
	if err := c.print(out, func(w io.Writer) {
		would := ""
		if a.dryRun {
			would = "would be "
		}
		for _, id := range done {
			fmt.Fprintf(w, "job %d %s%s\n", id, would, a.past)
		}
	}); err != nil {
		return err
	}
	for _, r := range left {
		c.note("job %d %s", r.ID, r.Reason)
	}
	switch {
	case failed != nil:
		return &stopped{fmt.Sprintf("stopped after %d of %d; running it again is safe", len(done), len(ids)), failed}
	case interrupted:
		return findingf("interrupted after %d of %d; running it again is safe", len(done), len(ids))
	case len(left) > 0:
		return findingf("%d of %d not %s", len(left), len(ids), a.past)
	}
	return nil
}

func orNothing[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func forGood(a *action) string {
	if a.asks {
		return " for good"
	}
	return ""
}

// some answers for each id, in the order given. An error may come beside what was done.
func (a *action) some(ctx context.Context, op postgres.Operator, ids []int64) (done []int64, left []refused, err error) {
	ctx, cancel := chunkContext(ctx)
	defer cancel()
	if !a.dryRun {
		got, err := a.chunk(ctx, op, ids)
		if err != nil {
			return nil, nil, err
		}
		done = got.done
	}
	rest := without(ids, done)
	if len(rest) > 0 {
		if left, err = a.refusals(ctx, op, rest); err != nil {
			return done, nil, err
		}
	}
	if a.dryRun {
		changeable := a.statuses()
		if len(changeable) == 0 {
			changeable = []string{"queued", "running", "dead"}
		}
		left = slices.DeleteFunc(left, func(r refused) bool {
			fine := slices.Contains(changeable, r.Status) && (r.holder == nil || a.verb != "requeue")
			if fine {
				done = append(done, r.ID)
			}
			return fine
		})
	}
	place := make(map[int64]int, len(ids))
	for i, id := range ids {
		place[id] = i
	}
	slices.SortFunc(done, func(x, y int64) int { return place[x] - place[y] })
	return done, left, nil
}

// without gives what of ids is in none of the others.
func without(ids []int64, others ...[]int64) (out []int64) {
	gone := map[int64]bool{}
	for _, other := range others {
		for _, id := range other {
			gone[id] = true
		}
	}
	for _, id := range ids {
		if !gone[id] {
			out = append(out, id)
		}
	}
	return out
}

// refusals says of jobs that were left as they are what they are.
func (a *action) refusals(ctx context.Context, op postgres.Operator, ids []int64) ([]refused, error) {
	// Jobs before results: what finishes in between is seen as finished, not as unknown.
	jobs, err := op.List(ctx, ids)
	if err != nil {
		return nil, err
	}
	holders, err := op.KeyHolders(ctx, ids)
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
	out := make([]refused, len(ids))
	for i, id := range ids {
		r := refused{ID: id, Status: "unknown", now: now}
		if at := slices.IndexFunc(results, func(r engine.Result) bool { return r.JobID == id && r.FinishedAt != nil }); at >= 0 {
			r.Status, r.when, r.expiresAt = "finished", human.Age(now.Sub(*results[at].FinishedAt))+" ago", human.Age(results[at].ExpiresAt.Sub(now))
		}
		if at := slices.IndexFunc(archived, func(a engine.Archived) bool { return a.ID == id }); at >= 0 {
			r.Status, r.when, r.expiresAt = archived[at].Status, human.Age(now.Sub(archived[at].FinishedAt))+" ago", human.Age(archived[at].ExpiresAt.Sub(now))
		}
		if at := slices.IndexFunc(jobs, func(j engine.Job) bool { return j.ID == id }); at >= 0 {
			r.Status, r.when = jobs[at].Status, since(jobs[at].Status, jobs[at].RunAt, jobs[at].ClaimedAt, now)
			if h, is := holders[id]; is && !h.Free() {
				r.holder = &h
			}
		}
		r.Reason = a.refusal(r)
		out[i] = r
	}
	return out, nil
}

// tally is what a filter selects: how many of what, the sum of it, when the oldest was enqueued, and some of it.
type tally struct {
	parts  []postgres.Tally
	n      int64
	oldest time.Time
	sample []int64
	taken  int // jobs whose key is another's
}

// actOnMany does what is to be done to all that the filters select, chunk by chunk.
func (c *cli) actOnMany(ctx context.Context, op postgres.Operator, a *action) error {
	if err := a.sel.resolve(ctx, op); err != nil {
		return err
	}
	filter := a.sel.filter
	if len(filter.Statuses) == 0 {
		filter.Statuses = a.statuses()
	}
	walk, err := op.Walk(ctx, filter, false, 0)
	if err != nil {
		return err
	}
	run := bulkRun{c: c, op: op, a: a, filter: filter}
	// With --yes a walk over everything is not made twice, to know how much there is.
	if counted := a.dryRun || !a.yes || !walk.All(); counted {
		if run.tally, err = c.count(ctx, op, a, walk); err != nil {
			return err
		}
		switch {
		case run.tally.n == 0:
		case a.dryRun:
			return c.preview(ctx, op, a, run.tally)
		case !a.yes:
			now, err := op.Now(ctx)
			if err != nil {
				return err
			}
			if err := c.confirm(ctx, upper(a.verb)+" "+run.tally.what(a, now)+forGood(a)+"?"); err != nil {
				return err
			}
		}
		if run.tally.n > 0 {
			if walk, err = op.Walk(ctx, filter, false, walk.Last); err != nil {
				return err
			}
		}
	}
	run.walk = walk
	err = run.all(ctx)
	return run.report(err)
}

// count looks at all that the filters select and counts it.
func (c *cli) count(ctx context.Context, op postgres.Operator, a *action, walk *postgres.Walk) (t tally, err error) {
	defer c.progress("")
	began := time.Now()
	for !walk.Done() {
		ids, err := walk.Next(ctx, tallyChunk)
		if err == nil && len(ids) > 0 {
			err = t.add(ctx, op, a, ids)
		}
		if ctx.Err() != nil {
			return t, findingf("interrupted while counting; nothing was changed")
		}
		if err != nil {
			return t, &stopped{"stopped while counting; nothing was changed", err}
		}
		if time.Since(began) > progressFrom {
			c.progress(fmt.Sprintf("counting: %s so far; %s", human.Number(t.n), walked(walk, began)))
		}
	}
	slices.SortFunc(t.parts, func(x, y postgres.Tally) int {
		return cmp.Or(cmp.Compare(y.N, x.N), cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Queue, y.Queue), cmp.Compare(x.Status, y.Status))
	})
	return t, nil
}

func (t *tally) add(ctx context.Context, op postgres.Operator, a *action, ids []int64) error {
	parts, err := op.Tally(ctx, ids)
	if err != nil {
		return err
	}
	t.sample = append(t.sample, ids...)
	t.sample = t.sample[:min(len(t.sample), sampleSize)]
	for _, p := range parts {
		t.n += p.N
		if t.oldest.IsZero() || p.Oldest.Before(t.oldest) {
			t.oldest = p.Oldest
		}
		at := slices.IndexFunc(t.parts, func(o postgres.Tally) bool { return o.Status == p.Status && o.Kind == p.Kind && o.Queue == p.Queue })
		if at < 0 {
			t.parts = append(t.parts, p)
			continue
		}
		if o := &t.parts[at]; p.Oldest.Before(o.Oldest) {
			o.Oldest = p.Oldest
		}
		t.parts[at].N += p.N
	}
	if a.verb != "requeue" {
		return nil
	}
	holders, err := op.KeyHolders(ctx, ids)
	for _, h := range holders {
		if !h.Free() {
			t.taken++
		}
	}
	return err
}

// what says what the filters select, as: 3 jobs with kind k: 2 queued, 1 running (oldest: 3h4m).
func (t tally) what(a *action, now time.Time) string {
	byStatus := map[string]int64{}
	for _, p := range t.parts {
		byStatus[p.Status] += p.N
	}
	var parts []string
	for _, s := range []string{"queued", "running", "dead"} {
		if byStatus[s] > 0 {
			parts = append(parts, human.Number(byStatus[s])+" "+s)
		}
	}
	which := parts[0] + " " + noun(t.n) + a.sel.String()
	if len(parts) > 1 {
		which = fmt.Sprintf("%s %s%s: %s", human.Number(t.n), noun(t.n), &a.sel, strings.Join(parts, ", "))
	}
	return fmt.Sprintf("%s (oldest: %s)", which, human.Age(now.Sub(t.oldest)))
}

func noun(n int64) string {
	if n == 1 {
		return "job"
	}
	return "jobs"
}

// preview is a dry run: what there is, and some of it.
func (c *cli) preview(ctx context.Context, op postgres.Operator, a *action, t tally) error {
	sample, err := op.List(ctx, t.sample)
	if err != nil {
		return err
	}
	now, err := op.Now(ctx)
	if err != nil {
		return err
	}
	slices.Reverse(sample) // oldest first, as they would be met
	for i := range sample {
		utc(&sample[i])
	}
	for i := range t.parts {
		t.parts[i].Oldest = t.parts[i].Oldest.UTC()
	}
	out := map[string]any{"dry_run": true, "matched": t.n, "parts": t.parts, "sample": sample}
	if a.verb == "requeue" {
		out["key_taken"] = t.taken
	}
	if err := c.print(out, func(w io.Writer) {
		fmt.Fprintln(w, escape(fmt.Sprintf("would %s %s", a.verb, t.what(a, now))))
		if len(t.parts) > 1 {
			fmt.Fprintln(w)
			table := []column{{title: "STATUS"}, {title: "KIND", min: 12}, {title: "QUEUE", min: 8, spare: 1}, {title: "JOBS"}, {title: "OLDEST", spare: 2}}
			for _, p := range t.parts[:min(len(t.parts), partsMost)] {
				for i, cell := range []string{p.Status, escape(p.Kind), escape(p.Queue), human.Number(p.N), human.Age(now.Sub(p.Oldest))} {
					table[i].cells = append(table[i].cells, cell)
				}
			}
			writeTable(w, c.width(), table)
			if more := len(t.parts) - partsMost; more > 0 {
				fmt.Fprintf(w, "… %d more\n", more)
			}
		}
		fmt.Fprintln(w, "\nthe first ones")
		writeTable(w, c.width(), c.columns(sample, now))
	}); err != nil {
		return err
	}
	if t.taken > 0 {
		c.note("%s of them would stay dead: the key of each is another job's by now, or its work is done", human.Number(int64(t.taken)))
	}
	return nil
}

// partsMost is how many kinds of jobs a dry run lists.
const partsMost = 20

// bulkRun is one run over what a filter selects, and how far it has got.
type bulkRun struct {
	c      *cli
	op     postgres.Operator
	a      *action
	filter engine.Filter
	tally  tally // n is 0: it was not counted
	walk   *postgres.Walk
	began  time.Time

	done, asked int64
	taken       int64
	takenIDs    []int64 // the first of them
	moved       int64   // what had changed when it was their turn
	locked      []int64
	lockedMore  int64
	interrupted bool
	inDoubt     int // jobs of the chunk whose answer was lost
}

// all goes through everything, chunk by chunk, until there are no more, or ctx ends.
func (r *bulkRun) all(ctx context.Context) error {
	defer r.c.progress("")
	r.began = time.Now()
	for !r.walk.Done() {
		ids, err := r.walk.Next(ctx, bulkChunk)
		if r.interrupted = ctx.Err() != nil; r.interrupted {
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.chunk(ctx, ids); err != nil {
			return err
		}
		r.show()
	}
	return r.again(ctx)
}

// again tries what was locked a second time.
func (r *bulkRun) again(ctx context.Context) error {
	if len(r.locked) == 0 {
		return nil
	}
	timer := time.NewTimer(secondTry)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		r.interrupted = true
		return nil
	case <-timer.C:
	}
	locked := r.locked
	r.locked = nil
	for ids := range slices.Chunk(locked, bulkChunk) {
		if r.interrupted = ctx.Err() != nil; r.interrupted {
			r.lockedMore += int64(len(locked) - len(r.locked))
			return nil
		}
		if err := r.chunk(ctx, ids); err != nil {
			return err
		}
	}
	return nil
}

// chunk changes some jobs in one transaction, and sorts what it could not.
func (r *bulkRun) chunk(ctx context.Context, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := chunkContext(ctx)
	defer cancel()
	got, err := r.a.chunk(ctx, r.op, ids)
	if err != nil {
		if errors.Is(err, engine.ErrUnknown) {
			r.inDoubt = len(ids)
		}
		return err
	}
	r.done, r.asked, r.taken = r.done+int64(len(got.done)), r.asked+int64(len(got.asked)), r.taken+int64(len(got.taken))
	r.takenIDs = append(r.takenIDs, got.taken...)
	r.takenIDs = r.takenIDs[:min(len(r.takenIDs), sampleSize)]
	rest := without(ids, got.done, got.asked, got.taken)
	if len(rest) == 0 {
		return nil
	}
	// What is still as it was selected was locked; the rest has changed since.
	jobs, err := r.op.List(ctx, rest)
	if err != nil {
		return err
	}
	same := r.a.statuses()
	if len(r.filter.Statuses) > 0 {
		same = rowStatuses(r.filter.Statuses)
	}
	locked := 0
	for _, j := range jobs {
		if len(same) == 0 || slices.Contains(same, j.Status) {
			if locked++; len(r.locked) < secondMost {
				r.locked = append(r.locked, j.ID)
			} else {
				r.lockedMore++
			}
		}
	}
	r.moved += int64(len(rest) - locked)
	return nil
}

// rowStatuses are statuses as the rows have them.
func rowStatuses(statuses []string) (out []string) {
	for _, s := range statuses {
		if s == "ready" || s == "scheduled" {
			s = "queued"
		}
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// barWidth is how wide a progress bar is.
const barWidth = 20

// show tells on a terminal how far the run is.
func (r *bulkRun) show() {
	var part float64
	var text string
	took := time.Since(r.began)
	if n := r.done + r.asked; r.tally.n > 0 {
		part = float64(n) / float64(r.tally.n)
		text = fmt.Sprintf("%s of %s %s", human.Number(n), human.Number(r.tally.n), r.a.past)
		if took > progressFrom && n > 0 {
			rate := float64(n) / took.Seconds()
			text += fmt.Sprintf(", %s/s, %s left", human.Number(int64(rate)), human.Age(time.Duration(float64(max(r.tally.n-n, 0))/rate*float64(time.Second))))
		}
	} else {
		part = position(r.walk)
		text = fmt.Sprintf("%s %s; %s", human.Number(n), r.a.past, walked(r.walk, r.began))
	}
	full := int(min(max(part, 0), 1) * barWidth)
	r.c.progress("[" + strings.Repeat("=", full) + strings.Repeat(" ", barWidth-full) + "] " + text)
}

// report says what the run did, or how far it got.
func (r *bulkRun) report(failed error) error {
	locked := int64(len(r.locked)) + r.lockedMore
	if failed == nil && !r.interrupted { // what was counted, but not met again, has changed too
		r.moved += max(r.tally.n-r.done-r.asked-r.taken-r.moved-locked, 0)
	}
	out := map[string]any{r.a.past: r.done}
	if r.tally.n > 0 || r.walk.Done() && failed == nil && !r.interrupted {
		out["matched"] = max(r.tally.n, r.done+r.asked+r.taken+r.moved+locked)
	}
	for name, n := range map[string]int64{"asked": r.asked, "key_taken": r.taken, "changed_meanwhile": r.moved, "locked": locked, "in_doubt": int64(r.inDoubt)} {
		if n > 0 {
			out[name] = n
		}
	}
	if r.interrupted {
		out["interrupted"] = true
	}
	if err := r.c.print(out, func(w io.Writer) {
		if r.done > 0 || r.asked == 0 && r.tally.n > 0 {
			of := ""
			if r.tally.n > 0 {
				of = " of " + human.Number(r.tally.n)
			}
			fmt.Fprintln(w, escape(fmt.Sprintf("%s %s%s %s%s", r.a.past, human.Number(r.done), of, noun(max(r.tally.n, r.done)), &r.a.sel)))
		}
		if r.asked > 0 {
			fmt.Fprintf(w, "asked the workers of %s that run to stop them\n", human.Number(r.asked))
		}
	}); err != nil {
		return err
	}
	r.explain()
	doubt := ""
	if r.inDoubt > 0 {
		doubt = fmt.Sprintf(" (of the last %d it is not known: the answer was lost)", r.inDoubt)
	}
	of := ""
	if r.tally.n > 0 {
		of = " of " + human.Number(r.tally.n)
	}
	so := fmt.Sprintf("after %s%s%s; running it again is safe and goes on with what is left", human.Number(r.done+r.asked), of, doubt)
	switch {
	case failed != nil:
		return &stopped{"stopped " + so, failed}
	case r.interrupted:
		return findingf("interrupted %s", so)
	case r.done+r.asked+r.taken+r.moved+locked == 0:
		return findingf("no jobs%s%s", statusOf(r.a, r.filter), &r.a.sel)
	case locked > 0:
		return findingf("%s not %s: somebody else has them locked; run it again", human.Number(locked), r.a.past)
	case r.taken > 0:
		return findingf("%s not %s: their keys are other jobs' by now", human.Number(r.taken), r.a.past)
	case r.moved > 0:
		return findingf("%s had changed by their turn (started, finished, requeued, cancelled), and were left as they are", human.Number(r.moved))
	}
	return nil
}

// statusOf names the statuses that a command looks for by itself.
func statusOf(a *action, f engine.Filter) string {
	if len(a.sel.filter.Statuses) > 0 || len(f.Statuses) == 0 {
		return ""
	}
	return " that are " + strings.Join(f.Statuses, " or ")
}

// explain tells of the first jobs whose key is another's what to do.
func (r *bulkRun) explain() {
	if len(r.takenIDs) == 0 {
		return
	}
	ctx, cancel := chunkContext(context.Background())
	defer cancel()
	left, err := r.a.refusals(ctx, r.op, r.takenIDs)
	if err != nil {
		return // the count is told anyhow
	}
	for _, l := range left {
		r.c.note("job %d %s", l.ID, l.Reason)
	}
	if more := r.taken - int64(len(left)); more > 0 {
		r.c.note("… and %s more like these", human.Number(more))
	}
}

func chunkContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), chunkTimeout)
}

// progress replaces the line before; only a terminal shows it.
func (c *cli) progress(text string) {
	if c.Progress && (text != "" || c.progressed) {
		fmt.Fprint(c.Stderr, "\r\x1b[K", text)
		c.progressed = text != ""
	}
}

// confirm asks a person. Anything but a yes is a no.
func (c *cli) confirm(ctx context.Context, question string) error {
	fmt.Fprint(c.Stderr, escape(question), " [y/N] ")
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
