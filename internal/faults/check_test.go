package faults

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// verify decides whether the promises held.
func (w *world) verify() {
	ctx := context.WithoutCancel(w.t.Context())
	rows, err := w.pool.Query(ctx, readChanges)
	check(w.t, err)
	changes, err := pgx.CollectRows(rows, pgx.RowToStructByName[change])
	check(w.t, err)
	owners := map[string]string{}
	var id, name string
	rows, err = w.pool.Query(ctx, `SELECT id::text, process FROM faults.worker`)
	check(w.t, err)
	_, err = pgx.ForEachRow(rows, []any{&id, &name}, func() error { owners[id] = name; return nil })
	check(w.t, err)
	byJob := map[int64][]change{}
	for _, c := range changes {
		byJob[c.Job] = append(byJob[c.Job], c)
	}
	fences := map[int64]change{}
	for _, c := range changes {
		if c.NewStatus != "running" || c.OldStatus == "running" {
			continue
		}
		if f, ok := fences[c.NewFence]; ok && (f.Xact != c.Xact || f.NewWorker != c.NewWorker) {
			w.fail("G3: fence %d was used by two claims: %+v and %+v", c.NewFence, f, c)
		}
		fences[c.NewFence] = c
	}
	successes := map[int64]bool{}
	for _, e := range w.history() {
		if !e.Start && e.OK {
			successes[e.Job] = true
		}
	}
	effects := map[int64]int{}
	for _, text := range w.pairs(ctx, `SELECT job, count(*) FROM faults.effect GROUP BY job`) {
		effects[text[0]] = int(text[1])
	}
	w.archived = map[int64]bool{}
	for _, id := range w.ids(ctx, `SELECT job_id FROM jobgen.job_archive WHERE status = 'cancelled'`) {
		w.archived[id] = true
	}
	outcomes := map[string]int{}
	for job, cs := range byJob {
		outcome := w.story(job, cs, owners)
		outcomes[outcome]++
		kind := cs[0].Kind
		switch {
		case outcome == "":
		case transactional[kind] && outcome == "succeeded" && effects[job] > 1, transactional[kind] && outcome != "succeeded" && effects[job] > 0:
			w.fail("G5: job %d (%s) %s with %d effects of its transactional handler%s", job, kind, outcome, effects[job], story(cs))
		case kind == plain.Kind && outcome == "succeeded" && !successes[job], kind == result.Kind && outcome == "succeeded" && !successes[job]:
			w.fail("G2: job %d (%s) was removed as succeeded, and no handler returned success%s", job, kind, story(cs))
		case (kind == inTx.Kind || kind == locked.Kind) && outcome == "succeeded" && effects[job] != 1:
			w.fail("G5: job %d (%s) succeeded with %d effects%s", job, kind, effects[job], story(cs))
		}
	}
	w.outcomes = outcomes
	for _, q := range []struct{ promise, sql string }{
		{"G1: enqueued and committed, and no job was ever stored", `SELECT format('n %s, job %s', n, job) FROM faults.want w WHERE NOT EXISTS (SELECT FROM faults.change c WHERE c.job = w.job AND c.op = 'INSERT') LIMIT 5`},
		{"G1: a job without the transaction that enqueued it", `SELECT format('job %s', c.job) FROM faults.change c WHERE c.op = 'INSERT' AND NOT EXISTS (SELECT FROM faults.want w WHERE w.job = c.job) LIMIT 5`},
		{"G2: cancelled, and not on record", `SELECT format('job %s', c.job) FROM faults.change c WHERE c.op = 'DELETE' AND c.old_status = 'dead' AND NOT EXISTS (SELECT FROM jobgen.job_archive a WHERE a.job_id = c.job) LIMIT 5`},
		{"G6: two effects of one key", `SELECT format('%s key %s: %s', kind, n / 10, count(*)) FROM faults.effect WHERE kind = 'f.once' GROUP BY kind, n / 10 HAVING count(*) > 1 LIMIT 5`},
		{"G6: a key's work is on record, and its effect is not there", `SELECT format('key %s of job %s', r.key, r.job_id) FROM jobgen.job_result r WHERE r.kind = 'f.once' AND r.finished_at IS NOT NULL AND NOT EXISTS (SELECT FROM faults.effect e WHERE e.job = r.job_id) LIMIT 5`},
		{"the result is not what the handler returned", `SELECT format('job %s: %s', r.job_id, r.result) FROM jobgen.job_result r WHERE r.finished_at IS NOT NULL AND NOT EXISTS (SELECT FROM faults.want w WHERE w.job = r.job_id AND (r.result->>'N')::bigint = 2 * w.n + 1) LIMIT 5`},
		{"a kind with results succeeded without one", `SELECT format('job %s', c.job) FROM faults.change c WHERE c.op = 'DELETE' AND c.old_status = 'running' AND c.kind IN ('f.result', 'f.keyed', 'f.once')
			AND NOT EXISTS (SELECT FROM jobgen.job_archive a WHERE a.job_id = c.job) AND NOT EXISTS (SELECT FROM jobgen.job_result r WHERE r.job_id = c.job AND r.finished_at IS NOT NULL) LIMIT 5`},
		{"crashes on record are not those that happened", `SELECT format('job %s: %s, %s', job_id, count(*), (SELECT string_agg(format('%s %s: %s→%s %s→%s', c.kind, c.op, c.old_status, c.new_status, c.old_crashes, c.new_crashes), ' ' ORDER BY seq) FROM faults.change c WHERE c.job = a.job_id)) FROM jobgen.job_attempt a WHERE outcome = 'crashed' AND NOT EXISTS (SELECT FROM faults.want w WHERE w.job = a.job_id AND w.kind = 'f.lock') GROUP BY job_id
			HAVING count(*) <> (SELECT count(*) FROM faults.change c WHERE c.job = a.job_id AND c.new_crashes = c.old_crashes + 1) LIMIT 5`},
		{"a transaction was left open", `SELECT format('%s: %s, %s', pid, state, query) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%' LIMIT 5`},
		{"a claim of a job that runs is on no record", `SELECT format('job %s', j.id) FROM jobgen.jobs j WHERE j.worker_id IS NOT NULL AND NOT EXISTS (SELECT FROM jobgen.claims c WHERE c.worker_id = j.worker_id AND c.fence = j.fence AND j.id = ANY (c.ids)) LIMIT 5`},
	} {
		if found := w.texts(ctx, q.sql); len(found) > 0 {
			w.fail("%s: %v", q.promise, found)
		}
	}
	ns := map[int64]bool{}
	for _, n := range w.ids(ctx, `SELECT n FROM faults.want`) {
		ns[n] = true
	}
	for n, kind := range w.sure {
		if !ns[n] && !*forgetFlag {
			w.fail("G1: the commit of n %d (%s) was acknowledged, and nothing of it is there", n, kind)
		}
	}
	w.jobs, w.changes = len(byJob), len(changes)
}

func (w *world) pairs(ctx context.Context, sql string) (out [][2]int64) {
	rows, err := w.pool.Query(ctx, sql)
	check(w.t, err)
	var a, b int64
	_, err = pgx.ForEachRow(rows, []any{&a, &b}, func() error { out = append(out, [2]int64{a, b}); return nil })
	check(w.t, err)
	return out
}

// story follows a job through its changes and tells how it ended: succeeded, dead, cancelled; "" if that was not to be found out.
func (w *world) story(job int64, cs []change, owners map[string]string) string {
	fence, crashes := int64(0), 0
	bad := func(promise, what string, c change) {
		w.fail("%s: job %d (%s): %s, in change %d%s", promise, job, c.Kind, what, c.Seq, story(cs))
	}
	for i, c := range cs {
		if (c.Op == "INSERT") != (i == 0) {
			bad("G2", "it did not begin with its enqueue, or was enqueued twice", c)
		}
		if i > 0 && (cs[i-1].NewStatus != c.OldStatus || cs[i-1].NewFence != c.OldFence) {
			bad("G4", "two changes do not follow one another", c)
		}
		if c.Op == "INSERT" {
			continue
		}
		claimed := c.NewStatus == "running" && c.OldStatus != "running"
		left := c.OldStatus == "running" && c.NewStatus != "running"
		holder := owners[c.OldWorker]
		switch {
		case claimed:
			if c.OldStatus != "queued" {
				bad("G3", "claimed although it did not wait", c)
			}
			if c.NewFence <= fence {
				bad("G4", fmt.Sprintf("fence %d after %d", c.NewFence, fence), c)
			}
			if c.NewAttempt != c.OldAttempt+1 {
				bad("G4", "the attempt was not counted", c)
			}
			if owners[c.NewWorker] != c.Process {
				bad("G3", "claimed for another", c)
			}
			fence = c.NewFence
		case c.NewStatus == "running": // a wish to cancel
			if c.NewFence != c.OldFence || c.NewWorker != c.OldWorker || c.NewAttempt != c.OldAttempt {
				bad("G3", "it changed hands while it ran", c)
			}
		case left && c.NewCrashes == c.OldCrashes+1:
			if !c.Lost {
				bad("G7", "taken back from a worker that was not lost", c)
			}
			if c.NewAttempt != c.OldAttempt-1 {
				bad("G8", "the attempt of a crash was not given back", c)
			}
			crashes++
		case left && c.Process != holder:
			bad("G4", fmt.Sprintf("process %q ended the hold of %q", c.Process, holder), c)
		}
		if c.Op != "DELETE" && c.NewCrashes != c.OldCrashes && (!left || c.NewCrashes != c.OldCrashes+1) {
			// own=lock counts a crash when it finds the mark of a start
			if c.Kind != locked.Kind {
				bad("G8", "crashes changed without one", c)
			}
		}
	}
	last := cs[len(cs)-1]
	switch {
	case last.Op != "DELETE" && last.NewStatus == "dead":
		return "dead"
	case last.Op != "DELETE":
		return "" // reported already
	case w.archived[job]:
		return "cancelled"
	}
	return "succeeded"
}

// story prints what happened to a job.
func story(cs []change) string {
	text := ""
	for _, c := range cs {
		text += fmt.Sprintf("\n    %d %s by %q: %s → %s, fence %d → %d, attempt %d → %d, crashes %d → %d, lost %v", c.Seq, c.Op, c.Process, c.OldStatus, c.NewStatus,
			c.OldFence, c.NewFence, c.OldAttempt, c.NewAttempt, c.OldCrashes, c.NewCrashes, c.Lost)
	}
	return text
}
