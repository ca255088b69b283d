package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/human"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

const (
	headRows    = 200     // of each queue and priority
	oldestJobs  = 100_000 // that are looked at for such as nobody runs
	deadRows    = 100     // of each kind, whose errors are compared
	deadCounted = 1000    // of each kind: then counting ends (DoctorDead)
	overdueRows = 10_001
)

func handles(w *gen.DoctorWorkersRow, h *gen.DoctorHeadsRow) (queue, kind, version bool) {
	queue = slices.Contains(w.Queues, h.Queue)
	i := slices.Index(w.Kinds, h.Kind)
	kind = i >= 0
	version = kind && (h.Version == 1 || i >= len(w.Versions) || h.Version <= w.Versions[i])
	return queue, queue && kind, queue && version
}

func atLeast(n int64) string {
	if n >= headRows {
		return "at least " + human.Number(n)
	}
	return human.Number(n)
}

// heads are the longest waiting jobs of each queue, none if they cannot be had in time: while a snapshot is held, the entries of
// what has been finished lie before them.
func (v *visit) heads() (heads []gen.DoctorHeadsRow, err error) {
	err = pgx.BeginFunc(v.ctx, v.tx, func(tx pgx.Tx) error {
		heads, err = gen.New(tx).DoctorHeads(v.ctx, headRows)
		return err
	})
	if err != nil && v.ctx.Err() == nil {
		v.cannot("the jobs that have waited longest, and the versions of their payloads: "+explain(err, v.limits.Time), remedy(err, v.server.Role))
		return nil, nil
	}
	return heads, err
}

// workers: what nobody takes comes to be what has waited longest.
func (v *visit) workers() error {
	all, err := v.q.DoctorWorkers(v.ctx)
	if err != nil {
		return err
	}
	heads, err := v.heads()
	if err != nil {
		return err
	}
	paused, err := v.q.DoctorPaused(v.ctx)
	if err != nil {
		return err
	}
	var live, stuck []gen.DoctorWorkersRow
	for _, w := range all {
		if w.Live {
			live = append(live, w)
		}
		if w.Stuck > 0 && w.Live {
			stuck = append(stuck, w)
		}
	}
	if len(stuck) > 0 {
		var slots, taken int32
		for _, w := range live {
			slots, taken = slots+w.Slots, taken+w.Stuck
		}
		severity, title := Warning, "Handlers run on although their context has ended"
		if slots > 0 && taken >= slots && len(heads) > 0 {
			severity, title = Critical, title+", in all slots"
		}
		f := v.find(severity, "%s", title)
		for _, w := range stuck[:min(len(stuck), 5)] {
			f = f.saw("worker %s on %s, pid %d: %d stuck", w.ID, w.Host, w.Pid, w.Stuck)
		}
		if len(stuck) > 5 {
			f = f.saw("and %d more workers", len(stuck)-5)
		}
		f.so("Each holds a slot, and memory, until the process ends. Their jobs have gone on without them.").
			do("The worker's log has the stack of each: there the handler ignores ctx. To have the slots back now, restart it; Config.MaxStuck ends a process with too many.").
			run("Whose they are, as far as those jobs have not ended or failed otherwise since:", "jobctl jobs list --error 'the handler ignored that'")
	}
	// Behind a backlog of what is handled, heads show nothing of what is not; a look at all levels does.
	look, err := postgres.Operator{Pool: v.pool}.Look(v.ctx)
	if err != nil {
		v.cannot("kinds behind a backlog of others: "+explain(err, v.limits.Time), remedy(err, v.server.Role))
	}
	for _, l := range look.Levels {
		if l.Ready > 0 && !slices.ContainsFunc(heads, func(h gen.DoctorHeadsRow) bool { return h.Queue == l.Queue && h.Kind == l.Kind }) {
			heads = append(heads, gen.DoctorHeadsRow{Queue: l.Queue, Kind: l.Kind, Version: 1, N: l.Ready, WaitsUs: l.Oldest.Microseconds()})
		}
	}
	heads = slices.DeleteFunc(heads, func(h gen.DoctorHeadsRow) bool {
		return us(h.WaitsUs) < v.limits.Unhandled || slices.ContainsFunc(paused, func(p gen.DoctorPausedRow) bool { return p.Name == h.Queue })
	})
	if len(heads) == 0 {
		return nil
	}
	if len(live) == 0 {
		f := v.find(Critical, "No worker is alive, and jobs wait")
		for i, h := range heads[:min(len(heads), 5)] {
			f = f.saw("queue %s, kind %s: %s wait, the oldest for %s", h.Queue, h.Kind, atLeast(h.N), age(us(h.WaitsUs)))
			if i == 4 && len(heads) > 5 {
				f = f.saw("and %d more kinds", len(heads)-5)
			}
		}
		if n := len(all); n > 0 {
			f = f.saw("%s on record and lost; the last was heard of %s ago", human.Count(n, "worker is", "workers are"), age(us(slices.MinFunc(all, func(a, b gen.DoctorWorkersRow) int { return int(min(1, max(-1, a.BeatUs-b.BeatUs))) }).BeatUs)))
		}
		f.so("Nothing runs, no schedule ticks, nothing is purged.").do("Start the program that runs the worker; its log says why it ended.")
		return nil
	}
	for _, h := range heads {
		var queue, kind, version bool
		for i := range live {
			a, b, c := handles(&live[i], &h)
			queue, kind, version = queue || a, kind || b, version || c
		}
		severity := Warning
		if us(h.WaitsUs) >= v.limits.Forlorn {
			severity = Critical
		}
		wait := atLeast(h.N)
		for _, l := range look.Levels { // heads end at a bound that the kinds of a queue share
			if l.Queue == h.Queue && l.Kind == h.Kind && l.Ready > h.N && !(queue && kind) {
				if wait = human.Number(l.Ready); look.Share < 1 {
					wait = "about " + wait
				}
			}
		}
		saw := fmt.Sprintf("queue %s, kind %s: %s wait, the oldest for %s", h.Queue, h.Kind, wait, age(us(h.WaitsUs)))
		if h.ID > 0 {
			saw += fmt.Sprintf(" (job %d)", h.ID)
		}
		cancel := "jobctl jobs list --kind " + Argument(h.Kind) + " --status queued"
		switch {
		case !queue:
			v.find(severity, "No live worker takes jobs of the queue %s", h.Queue).saw("%s", saw).saw("%s, of other queues", human.Count(len(live), "live worker", "live workers")).
				so("They wait until one does.").do("Start a worker of that queue (Config.Queues), or enqueue to another.").run("What waits:", cancel)
		case !kind:
			v.find(severity, "No live worker handles the kind %s", h.Kind).saw("%s", saw).saw("%s, none with this kind and queue", human.Count(len(live), "live worker", "live workers")).
				so("They wait until one does.").
				do("Deploy a program that registers it. If the kind was renamed, its new declaration takes the old name along (//job:was).").run("What waits, and can be cancelled:", cancel)
		case !version:
			v.find(severity, "No live worker reads payloads of version %d of the kind %s", h.Version, h.Kind).saw("%s", saw).saw("the live workers know an older version").
				so("They wait until one does.").do("Deploy the program that enqueues them to the workers, too.").run("What waits:", cancel)
		}
	}
	return nil
}

func (v *visit) paused() error {
	paused, err := v.q.DoctorPaused(v.ctx)
	if err != nil || len(paused) == 0 {
		return err
	}
	heads, err := v.heads()
	if err != nil {
		return err
	}
	for _, p := range paused {
		var n, waits int64
		for _, h := range heads {
			if h.Queue == p.Name {
				n, waits = n+h.N, max(waits, h.WaitsUs)
			}
		}
		if n > 0 && us(p.PausedUs) >= v.limits.Paused {
			v.find(Warning, "The queue %s is paused, and jobs wait", p.Name).saw("paused for %s; %s wait, the oldest for %s", age(us(p.PausedUs)), atLeast(n), age(us(waits))).
				so("None of them starts.").run("If it was forgotten.", "jobctl queues resume "+Argument(p.Name))
		}
	}
	return nil
}

func (v *visit) running() error {
	rows, err := v.q.DoctorRunning(v.ctx, gen.DoctorRunningParams{N: oldestJobs, OlderUs: v.limits.Orphaned.Microseconds()})
	if err != nil || len(rows) == 0 {
		return err
	}
	var ids []string
	f := v.find(Warning, "Jobs are marked running, and no live worker has them")
	for i, r := range rows {
		ids = append(ids, fmt.Sprint(r.ID))
		if i < 5 {
			why := "its worker is lost or not on record"
			if r.OnRecord {
				why = "no claim names it"
			}
			f = f.saw("job %d, kind %s, for %s: %s", r.ID, r.Kind, age(us(r.ForUs)), why)
		}
	}
	if n := len(rows); n > 5 {
		f = f.saw("%s in all, among the %s oldest jobs", human.Number(n), human.Number(oldestJobs))
	}
	ids = ids[:min(len(ids), 1000)]
	f.so("They neither run nor end. Any live worker takes such jobs back within minutes: so none is alive, or its upkeep fails.").
		do("Start a worker, or see the log of one for what its upkeep says.").
		sql("By hand, only if no worker can be started: it counts no crash.", "UPDATE jobgen.jobs SET status = 'queued', worker_id = NULL, fence = 0, attempt = greatest(attempt - 1, 0), run_at = clock_timestamp()\nWHERE status = 'running' AND id IN ("+strings.Join(ids, ", ")+");")
	return nil
}

// leases: how long a job runs has nothing to do with the lease, which a heartbeat renews. What the lease has to outlast is the
// longest time in which a living worker's heartbeat does not get through.
func (v *visit) leases() error {
	all, err := v.q.DoctorWorkers(v.ctx)
	if err != nil {
		return err
	}
	var longest, lease time.Duration
	var saw []string
	for _, old := range all {
		if old.Live {
			lease = max(lease, us(old.LeaseUs))
		}
		if !old.Lost || us(old.LostUs) > 24*v.limits.Lost {
			continue
		}
		// It lives on under a new id.
		for _, w := range all {
			if w.Host == old.Host && w.Pid == old.Pid && w.ID != old.ID && w.StartedUs < old.BeatUs && us(old.LostUs-w.StartedUs) < v.limits.Lost && w.StartedUs <= old.LostUs {
				gap := us(old.BeatUs - w.StartedUs)
				longest = max(longest, gap)
				line := fmt.Sprintf("%s, pid %d: no heartbeat got through for %s, %s ago", old.Host, old.Pid, age(gap), age(us(old.LostUs)))
				if old.Pid == 1 {
					line += " (pid 1: a container that was restarted looks the same)"
				}
				saw = append(saw, line)
				break
			}
		}
	}
	if len(saw) > 0 {
		s := Note
		if slices.ContainsFunc(saw, func(line string) bool { return !strings.Contains(line, "(pid 1:") }) {
			s = Warning
		}
		f := v.find(s, "Workers were taken for dead although they lived")
		for _, line := range saw[:min(5, len(saw))] {
			f = f.saw("%s", line)
		}
		if len(saw) > 5 {
			f = f.saw("and %d more in the last day", len(saw)-5)
		}
		f = f.so("Their jobs were given to others while their handlers still ran: what such a handler does outside the database happens twice.").
			do("Find what stopped the process, or its way to the database, for so long: too little CPU (a limit, too high a Config.Concurrency), swapping, a suspended machine, a failover.")
		if lease > 0 {
			f = f.saw("the lease is %s", age(lease))
		}
		f.do("If such gaps are to be expected there: Config.Lease of %s. The jobs of a worker that really dies then wait that long.", age((2 * longest).Round(time.Second)))
	}
	for _, w := range all {
		if w.Live && w.LeaseUs > 0 && w.BeatUs > w.LeaseUs*7/10 {
			v.find(Warning, "A worker's heartbeat is late").saw("worker %s on %s, pid %d: last heartbeat %s ago, lease %s", w.ID, w.Host, w.Pid, age(us(w.BeatUs)), age(us(w.LeaseUs))).
				so("It is dead, or will be taken for dead in %s: its jobs then run elsewhere.", age(us(w.LeaseUs-w.BeatUs))).
				do("If the process lives: see the check locks, and whether it has CPU time.")
		}
	}
	return nil
}

// quantile is the bound under which a share q of the attempts of a histogram stayed: its buckets end at 1, 2, 4, … ms.
func quantile(buckets []int64, q float64) (bound time.Duration, n int64) {
	for _, b := range buckets {
		n += b
	}
	below := int64(0)
	for i, b := range buckets {
		if below += b; float64(below) >= q*float64(n) && n > 0 {
			return time.Millisecond << i, n
		}
	}
	return 0, n
}

// uncut are the run times of the attempts that a timeout did not end: what those took says how long the timeout is, not the work.
// They lie from the timeout's bucket on, the stuck ones far above.
func uncut(buckets []int64, timeout time.Duration, cut int64) []int64 {
	out := slices.Clone(buckets)
	for i := len(out) - 1; i >= 0 && cut > 0 && time.Millisecond<<i > timeout/2; i-- {
		n := min(out[i], cut)
		out[i], cut = out[i]-n, cut-n
	}
	return out
}

func (v *visit) timeouts() error {
	day, err := v.q.DoctorRunTimes(v.ctx, (24 * time.Hour).Microseconds())
	if err != nil {
		return err
	}
	workers, err := v.q.DoctorWorkers(v.ctx)
	if err != nil {
		return err
	}
	limit := map[string]time.Duration{}
	for _, w := range workers {
		for i, k := range w.Kinds {
			if w.Live && i < len(w.TimeoutsUs) {
				limit[k] = us(w.TimeoutsUs[i])
			}
		}
	}
	var far []string
	for _, k := range day {
		timeout := limit[k.Kind]
		slow, n := quantile(k.RunTimes, 0.999)
		half, free := quantile(uncut(k.RunTimes, timeout, k.TimedOut), 0.5)
		attempts := k.Succeeded + k.Failed
		switch {
		case k.TimedOut >= v.limits.CutLeast && float64(k.TimedOut) >= v.limits.CutShare*float64(attempts):
			f := v.find(Warning, "The timeout of the kind %s ends many attempts", k.Kind).
				saw("%s of %s attempts in the last day", human.Number(k.TimedOut), human.Number(attempts))
			if timeout > 0 {
				f = f.saw("the timeout is %s%s", age(timeout), map[bool]string{true: "; half of the others take less than " + age(half), false: "; hardly any comes to an end before"}[free > 0])
			}
			f = f.so("Each of these has used a slot for the whole timeout, and is tried again.")
			if timeout > 0 && free == 0 {
				f.do("Either the work takes longer: then raise it (//job:kind … timeout=%s). Or it hangs: see what the handler waits for, and bound that by itself.", (4 * timeout).String())
			} else if timeout > 0 && half*8 > timeout {
				f.do("The timeout is near to what the work takes: raise it (//job:kind … timeout=%s).", (4 * timeout).String())
			} else {
				f.do("Most attempts are much faster, so these hang: see what the handler waits for, and bound that by itself. A longer timeout would hold slots for longer.")
			}
			f.run("Which jobs:", "jobctl jobs list --kind "+Argument(k.Kind)+" --status queued,dead --error 'timeout after'")
		case timeout >= v.limits.FarLeast && n >= v.limits.FarRuns && float64(slow)*v.limits.FarFactor <= float64(timeout):
			far = append(far, fmt.Sprintf("kind %s: timeout %s; of %s attempts in the last day, 99.9%% took less than %s", k.Kind, age(timeout), human.Number(n), age(slow)))
		}
	}
	if len(far) > 0 {
		f := v.find(Note, "Timeouts that no run comes near")
		for _, line := range far[:min(5, len(far))] {
			f = f.saw("%s", line)
		}
		if len(far) > 5 {
			f = f.saw("and %d more kinds", len(far)-5)
		}
		f.so("A handler that hangs holds its slot for all that time.").do("A timeout of ten times the slowest run ends such a handler soon enough.")
	}
	return nil
}

func (v *visit) crashes() error {
	suspects, err := v.q.DoctorSuspects(v.ctx)
	if err != nil {
		return err
	}
	hour, err := v.q.DoctorCounts(v.ctx, v.limits.Lost.Microseconds())
	if err != nil {
		return err
	}
	workers, err := v.q.DoctorWorkers(v.ctx)
	if err != nil {
		return err
	}
	for _, s := range suspects {
		v.find(Warning, "Jobs of the kind %s take their worker down", s.Kind).
			saw("%s whose worker was lost twice or more while it ran, %d times at most (job %d)", human.Count(s.N, "job", "jobs"), s.Crashes, s.ID).
			so("Each time, the jobs beside it wait until the lease has run out. Such a job now runs alone, and is dead after the fifth time.").
			run("What it is:", fmt.Sprintf("jobctl jobs show %d", s.ID)).
			do("See why the process ended: out of memory (the kernel's log), a fatal error of Go's (a concurrent map write, a stack that is too deep), os.Exit.")
	}
	lost := 0
	for _, w := range workers {
		if w.Lost && us(w.LostUs) < v.limits.Lost {
			lost++
		}
	}
	var back int64
	var kinds []string
	for _, k := range hour {
		if k.Reclaimed > 0 {
			back += k.Reclaimed
			kinds = append(kinds, fmt.Sprintf("%s (%s)", k.Kind, human.Number(k.Reclaimed)))
		}
	}
	if lost == 0 && back == 0 {
		return nil
	}
	s := Note
	if lost >= 3 {
		s = Warning
	}
	f := v.find(s, "Workers were lost").saw("%s in the last %s", human.Count(lost, "worker", "workers"), age(v.limits.Lost))
	if back > 0 {
		f = f.saw("%s taken back, of the kinds %s", human.Count(back, "job was", "jobs were"), list(kinds))
	}
	f.so("A process that ends in order leaves no trace here, so these were killed, crashed, or cut off. Their jobs waited until the lease had run out, and ran again.").
		run("What ran when they were lost, as far as it has not finished since:", "jobctl jobs list --error 'the worker process was lost'").
		do("Stop workers by SIGTERM, with time for their grace period (25s). Else see their logs and the kernel's.")
	return nil
}

// varies is what is different in each error of a sort.
var varies = regexp.MustCompile(`[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|0x[0-9a-fA-F]+|\b[0-9a-fA-F]{12,}\b|[0-9]+|"[^"]*"|'[^']*'`)

// sort is what errors of one sort have in common.
func sortOf(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return varies.ReplaceAllStringFunc(line, func(s string) string {
		if s[0] == '"' || s[0] == '\'' {
			return s[:1] + "…" + s[:1]
		}
		return "#"
	})
}

func (v *visit) deadJobs() error {
	rows, err := v.q.DoctorDead(v.ctx, deadRows)
	if err != nil || len(rows) == 0 {
		return err
	}
	day, err := v.q.DoctorCounts(v.ctx, (24 * time.Hour).Microseconds())
	if err != nil {
		return err
	}
	type kind struct {
		name          string
		n, last, died int64
		errors        map[string]int
		example       map[string]string // the newest of a sort
		read          int
	}
	var all []*kind
	for _, r := range rows {
		i := slices.IndexFunc(all, func(k *kind) bool { return k.name == r.Kind })
		if i < 0 {
			all, i = append(all, &kind{name: r.Kind, n: r.N, last: r.AgoUs, errors: map[string]int{}, example: map[string]string{}}), len(all)
		}
		k := all[i]
		k.last = min(k.last, r.AgoUs)
		k.read++
		sort := sortOf(r.Error)
		if k.errors[sort]++; k.errors[sort] == 1 {
			k.example[sort], _, _ = strings.Cut(strings.TrimSpace(r.Error), "\n")
		}
	}
	severity := Note
	var total int64
	for _, k := range all {
		for _, d := range day {
			if d.Kind == k.name {
				k.died = d.Died
			}
		}
		if k.died > 0 || us(k.last) < 24*time.Hour {
			severity = Warning
		}
		total += k.n
	}
	slices.SortFunc(all, func(a, b *kind) int { return int(min(1, max(-1, b.n-a.n))) })
	many := human.Count(total, "job is", "jobs are")
	if slices.ContainsFunc(all, func(k *kind) bool { return k.n >= deadCounted }) { // nobody has counted on
		many = human.Number(total) + " or more jobs are"
	}
	f := v.find(severity, "%s dead", many)
	for i, k := range all {
		if i == 5 {
			f = f.saw("and %d more kinds", len(all)-5)
			break
		}
		common := ""
		for text, n := range k.errors {
			if n > k.errors[common] || n == k.errors[common] && text < common {
				common = text
			}
		}
		line := fmt.Sprintf("kind %s: %s, the last %s ago", k.name, human.Number(k.n), age(us(k.last)))
		if k.n >= deadCounted {
			line = fmt.Sprintf("kind %s: 1,000 or more, the last %s ago", k.name, age(us(k.last)))
		}
		if k.died > 0 {
			line += fmt.Sprintf(", %s in the last day", human.Number(k.died))
		}
		f = f.saw("%s", line).saw("  %d of the newest %d like: %s", k.errors[common], k.read, clip(k.example[common], 120))
	}
	top := Argument(all[0].name)
	f.so("They stay until somebody decides about them; each is a row that backups and vacuums carry along.").
		run("See what is wrong:", "jobctl jobs list --status dead --kind "+top).
		run("When the cause is mended, a fresh start for each:", "jobctl jobs requeue --kind "+top)
	return nil
}

func (v *visit) schedules() error {
	rows, err := v.q.DoctorSchedules(v.ctx, v.limits.Late.Microseconds())
	if err != nil || len(rows) == 0 {
		return err
	}
	f := v.find(Warning, "%s late", human.Count(len(rows), "schedule is", "schedules are"))
	for _, r := range rows[:min(5, len(rows))] {
		f = f.saw("%s of kind %s: its tick was due %s ago", r.Name, r.Kind, age(us(r.LateUs)))
	}
	if len(rows) > 5 {
		f = f.saw("and %d more", len(rows)-5)
	}
	f.so("Its jobs are not enqueued. The next worker that knows the schedule makes up for it as its declaration says (missed).").
		do("Start a worker that registers the kind. If no program declares the schedule any more:").
		sql("To forget "+rows[0].Name+":", fmt.Sprintf("DELETE FROM jobgen.schedules WHERE kind = %s AND name = %s;", literal(rows[0].Kind), literal(rows[0].Name)))
	return nil
}

func (v *visit) history() error {
	overdue, err := v.q.DoctorOverdue(v.ctx, overdueRows)
	if err != nil {
		return err
	}
	for _, o := range overdue {
		if o.N > 0 {
			n := human.Number(o.N)
			if o.N == overdueRows {
				n = "more than " + human.Number(o.N-1)
			}
			v.find(Warning, "What has expired is not purged from the table %s", o.Rel).saw("%s rows expired an hour ago or earlier", n).
				so("The table grows.").do("Any live worker purges, about once a minute: start one, or see the log of one for what its upkeep says.")
		}
	}
	kept, err := v.q.DoctorKept(v.ctx, gen.DoctorKeptParams{LongerUs: v.limits.Keep.Microseconds(), N: int32(v.limits.KeptMany)})
	if err != nil {
		return err
	}
	var n int64
	var kinds []string
	for _, k := range kept {
		n += k.N
		kinds = append(kinds, fmt.Sprintf("%s (%s)", k.Kind, human.Number(k.N)))
	}
	if n > 0 {
		s := Note
		if n >= v.limits.KeptMany {
			s = Warning
		}
		v.find(s, "Results are kept for longer than %s", age(v.limits.Keep)).saw("%s: %s", human.Count(n, "result", "results"), list(kinds)).
			so("The table of keys grows by each job of these kinds and is never purged, as far as anybody can see.").
			do("A shorter keep= in the kind's annotation holds for the results from then on.").
			sql("For those that are there:", fmt.Sprintf("UPDATE jobgen.job_result SET expires_at = clock_timestamp() + interval '30 days'\nWHERE kind = %s AND expires_at > clock_timestamp() + interval '30 days';", literal(kept[0].Kind)))
	}
	all, err := v.q.DoctorTables(v.ctx)
	if err != nil {
		return err
	}
	live := table(all, "jobs")
	for _, name := range []string{"job_attempt", "job_archive", "job_result"} {
		if t := table(all, name); t.Size+t.IndexesSize >= max(v.limits.History, live.Size+live.IndexesSize) {
			v.find(Note, "The table %s is larger than the queue itself", name).saw("%s, %s; jobs: %s", human.Bytes(t.Size+t.IndexesSize), human.Count(t.Live, "row", "rows"), human.Bytes(live.Size+live.IndexesSize)).
				so("Backups and vacuums carry it along.").do("%s", map[string]string{
				"job_attempt": "Attempts that failed are kept for Config.KeepAttempts (7 days): see what fails (jobctl stats), or keep them for less.",
				"job_archive": "Keep finished jobs for less, or for fewer kinds.",
				"job_result":  "A shorter keep= in the annotations, or results for fewer kinds.",
			}[name])
		}
	}
	return nil
}
