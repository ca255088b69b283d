package postgres_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// notHot are the statements whose cost may follow the size of the tables, or that read none that grows.
var notHot = map[string]string{
	"AppliedMigrations": "migrating", "CreateSchema": "migrating", "LockMigrations": "migrating", "OldestBeside": "migrating", "SchemaVersion": "migrating",
	"Backend": "settings", "Plan": "settings", "Session": "settings", "Unplan": "settings", "RollbackToSavepoint": "settings", "Savepoint": "settings",
	"Now": "a clock", "TransactionTime": "a clock",
	"CountByKind": "tests only", "ExtendLeases": "tests only", "JobsOfKind": "tests only", "LeaseEnds": "tests only", "MoveClock": "tests only",
	"MoveJob": "tests only", "PutBack": "tests only", "Unfinished": "tests only", "WakeAll": "tests only",
	"DeadKinds": "an operator's", "DeleteJobs": "an operator's", "DrawnID": "an operator's", "EditJob": "an operator's", "EditableJob": "an operator's", "HandledKinds": "an operator's",
	"KeyHolders": "an operator's", "KeyIDs": "an operator's", "ListJobs": "an operator's", "ListQueues": "an operator's", "NewestID": "an operator's",
	"RequeueJobs": "an operator's", "RunningIDs": "an operator's", "SetQueue": "an operator's", "TallyJobs": "an operator's", "Walk": "an operator's",
	"WalkArchive":  "an operator's",
	"ShowAttempts": "an operator's", "ShowJob": "an operator's", "ShowResults": "an operator's", "ShowStart": "an operator's",
	"ShowWorker": "an operator's", "WhyWaits": "an operator's",
	"LookLimit": "settings", "LookFirst": "one look a minute in a fleet", "LookLevels": "one look a minute in a fleet", "LookQueues": "one look a minute in a fleet",
	"LookHeads": "one look a minute in a fleet", "LookDead": "one look a minute in a fleet", "LookRunning": "one look a minute in a fleet",
	"MetricsWorkers": "one for each scrape", "MetricsSchedules": "one for each scrape", "MetricsHorizon": "one for each scrape",
	"MetricsTables": "one for each scrape", "MetricsIndexes": "one for each scrape", "MetricsServer": "one for each scrape",
	"Samples": "an operator's", "Looks": "an operator's", "Unsummed": "an operator's",
	"Crews": "an operator's", "LostWorkers": "an operator's", "Sizes": "an operator's",
	"LiveWorkers": "migrating", "LossOfInit": "migrating", "LossOfRuntime": "migrating", "LossOfSchedules": "migrating", "MigrationLock": "migrating", "SchemaOwner": "migrating",
	"ListWorkers": "an operator's", "HeldSums": "an operator's", "HeldJobs": "an operator's", "StartedJobs": "an operator's",
	"ListSchedules": "an operator's", "RunSchedule": "an operator's", "PauseSchedule": "an operator's", "ResumeSchedule": "an operator's",
	"StoreSchedule": "as many rows as are declared", "DropSchedules": "as many rows as are declared", "Schedules": "as many rows as are declared",
	"WithTx": "no statement",
}

// Whoever adds a statement decides whether its plan is tested.
func TestEachStatementIsKnownToBeHotOrNot(t *testing.T) {
	t.Parallel()
	var sc scene
	hot := map[string]bool{}
	for _, s := range sc.statements() {
		hot[s.query()] = true
	}
	queries := reflect.TypeFor[*gen.Queries]()
	all := map[string]bool{}
	for i := range queries.NumMethod() {
		name := queries.Method(i).Name
		all[name] = true
		if strings.HasPrefix(name, "Doctor") {
			continue // an operator's
		}
		if _, is := notHot[name]; is == hot[name] {
			t.Errorf("%s: in the plan tests: %v, and in notHot: %v; one of them must say what is to be said of it", name, hot[name], is)
		}
	}
	for name := range notHot {
		if !all[name] {
			t.Errorf("there is no statement %s", name)
		}
	}
}

// What a doctor looks at is among the statements that the plan tests know, with the same index.
func TestADoctorExpectsTheIndexesThatAreTested(t *testing.T) {
	t.Parallel()
	var sc scene
	for _, h := range postgres.HotStatements {
		if !slices.ContainsFunc(sc.statements(), func(s statement) bool { return s.name == h.Name && s.index == h.Index && s.on == onWorker }) {
			t.Errorf("%s by %s is not in the plan tests", h.Name, h.Index)
		}
	}
}

// scene is what the hot statements are about. The zero value stands for tables that are empty.
type scene struct {
	worker, lost uuid.UUID
	held         []engine.Claimed // by worker
	queued       int64            // a job that waits, with the key "key <id>"; the ten after it do, too
	dead         int64            // likewise
	mark         time.Time        // where a claim begins
	spent        []int64          // claims to be forgotten
}

func (sc *scene) key() string { return fmt.Sprint("key ", sc.queued) }

func (sc *scene) ids() (ids []int64) {
	for _, c := range sc.held {
		ids = append(ids, c.ID)
	}
	return ids
}

func (sc *scene) fences() (fences []int64) {
	for _, c := range sc.held {
		fences = append(fences, c.Fence)
	}
	return fences
}

func (sc *scene) keys() (kinds, keys []string) {
	for _, c := range sc.held {
		kinds, keys = append(kinds, c.Kind), append(keys, c.Key)
	}
	return kinds, keys
}

// ten are ids of jobs that wait.
func (sc *scene) ten() (ids []int64) {
	for i := range int64(10) {
		ids = append(ids, sc.queued+i)
	}
	return ids
}

func (sc *scene) tenKeys(prefix string) (keys []string) {
	for _, id := range sc.ten() {
		keys = append(keys, fmt.Sprint(prefix, id))
	}
	return keys
}

// ranges are the ten ranges of queue q, from the mark on.
func ranges(at time.Time) (queues []string, priorities []int16, ats []time.Time, ids []int64) {
	for p := int16(9); p >= 0; p-- {
		queues, priorities, ats, ids = append(queues, "q"), append(priorities, p), append(ats, at), append(ids, 0)
	}
	return
}

func (sc *scene) claim(at time.Time, sweep bool) gen.ClaimParams {
	arg := gen.ClaimParams{WorkerID: sc.worker, Sweep: sweep, N: heldRows, Kinds: []string{"k", "l"}, Versions: []int32{1, 1}, Spent: orEmpty(sc.spent)}
	arg.Queues, arg.Priorities, arg.MarkAts, arg.MarkIds = ranges(at)
	arg.Limits = slices.Repeat([]int32{heldRows}, len(arg.MarkIds))
	return arg
}

func orEmpty(s []int64) []int64 { return append([]int64{}, s...) }

func (sc *scene) results() gen.CompleteRecordedParams {
	n := len(sc.held)
	return gen.CompleteRecordedParams{Ids: orEmpty(sc.ids()), Fences: orEmpty(sc.fences()), WorkerID: sc.worker, Results: slices.Repeat([]string{"1"}, n), KeepUs: make([]int64, n)}
}

// statements are all that are hot: whatever a worker or an enqueue sends, at whatever rate.
func (sc *scene) statements() (all []statement) {
	add := func(name string, on place, index string, call func(*gen.Queries) error) {
		all = append(all, statement{name: name, on: on, index: index, call: call})
	}
	ctx := context.Background() // nothing is sent

	add("Claim", onWorker, "jobs_claim", func(q *gen.Queries) error { _, err := q.Claim(ctx, sc.claim(sc.mark, false)); return err })
	add("Claim, a sweep", onWorker, "jobs_claim", func(q *gen.Queries) error { _, err := q.Claim(ctx, sc.claim(longAgo, true)); return err })
	add("ClaimSuspect", onWorker, "jobs_suspect", func(q *gen.Queries) error {
		_, err := q.ClaimSuspect(ctx, gen.ClaimSuspectParams{WorkerID: sc.worker, Queues: []string{"q"}, Kinds: []string{"k", "l"}, Versions: []int32{1, 1}})
		return err
	})
	add("SuspectWaiting", onWorker, "jobs_suspect", func(q *gen.Queries) error {
		_, err := q.SuspectWaiting(ctx, gen.SuspectWaitingParams{Queues: []string{"q"}, Kinds: []string{"k", "l"}, Versions: []int32{1, 1}})
		return err
	})
	for _, later := range []bool{false, true} {
		add(map[bool]string{false: "NextDue", true: "NextDue, later"}[later], onWorker, "jobs_claim", func(q *gen.Queries) error {
			arg := gen.NextDueParams{WithinUs: time.Hour.Microseconds(), Later: later}
			arg.Queues, arg.Priorities, arg.MarkAts, arg.MarkIds = ranges(sc.mark)
			_, err := q.NextDue(ctx, arg)
			return err
		})
	}
	add("Lock", onWorker, "jobs_claim", func(q *gen.Queries) error {
		arg := gen.LockParams{Kinds: []string{"k", "l"}, Versions: []int32{1, 1}, Skip: []int64{}}
		arg.Queues, arg.Priorities, arg.MarkAts, arg.MarkIds = ranges(sc.mark)
		_, err := q.Lock(ctx, arg)
		return err
	})
	add("LockSuspect", onWorker, "jobs_suspect", func(q *gen.Queries) error {
		_, err := q.LockSuspect(ctx, gen.LockSuspectParams{Queues: []string{"q"}, Kinds: []string{"k", "l"}, Versions: []int32{1, 1}, Skip: []int64{}})
		return err
	})
	add("Start", onWorker, "", func(q *gen.Queries) error {
		_, err := q.Start(ctx, gen.StartParams{WorkerID: sc.worker, Ids: sc.ten(), Sure: make([]bool, 10)})
		return err
	})
	add("Unstart", onWorker, "", func(q *gen.Queries) error {
		return q.Unstart(ctx, gen.UnstartParams{WorkerID: sc.worker, Ids: sc.ten()})
	})
	add("CompleteLocked", onWorker, "jobs_pkey", func(q *gen.Queries) error {
		_, err := q.CompleteLocked(ctx, gen.CompleteLockedParams{Record: true, ID: sc.queued, Attempt: 1, WorkerID: sc.worker, Result: "1", KeepUs: 1000})
		return err
	})
	add("CompleteLockedArchived", onWorker, "jobs_pkey", func(q *gen.Queries) error {
		_, err := q.CompleteLockedArchived(ctx, gen.CompleteLockedArchivedParams{Record: true, ID: sc.queued, Attempt: 1, WorkerID: sc.worker, Result: "1", KeepUs: 1000, RetainUs: 1000})
		return err
	})
	add("Adopt", onWorker, "jobs_pkey", func(q *gen.Queries) error {
		_, err := q.Adopt(ctx, gen.AdoptParams{ID: sc.queued, Attempt: 1, WorkerID: sc.worker})
		return err
	})
	add("Crash", onWorker, "jobs_pkey", func(q *gen.Queries) error {
		_, err := q.Crash(ctx, gen.CrashParams{ID: sc.queued, Crashes: 1, MaxCrashes: 5, BackoffUs: 1000, WorkerID: sc.worker})
		return err
	})

	complete := func(q *gen.Queries) error {
		_, err := q.Complete(ctx, gen.CompleteParams{Ids: orEmpty(sc.ids()), Fences: orEmpty(sc.fences()), WorkerID: sc.worker})
		return err
	}
	recorded := func(q *gen.Queries) error { _, err := q.CompleteRecorded(ctx, sc.results()); return err }
	handed := func(q *gen.Queries) error {
		kinds, keys := sc.keys()
		_, err := q.HandedOver(ctx, gen.HandedOverParams{Ids: orEmpty(sc.ids()), Kinds: append([]string{}, kinds...), Keys: append([]string{}, keys...)})
		return err
	}
	add("Complete", onWorker, "jobs_pkey", complete)
	add("CompleteRecorded", onWorker, "jobs_pkey", recorded)
	add("HandedOver", onWorker, "", handed)
	add("Complete, in a handler's transaction", onAppNow, "jobs_pkey", complete)
	add("CompleteRecorded, in a handler's transaction", onAppNow, "jobs_pkey", recorded)
	add("HandedOver, in a handler's transaction", onAppNow, "", handed)
	for name, on := range map[string]place{"CompleteArchived": onWorker, "CompleteArchived, in a handler's transaction": onAppNow} {
		add(name, on, "jobs_pkey", func(q *gen.Queries) error {
			r, n := sc.results(), len(sc.held)
			_, err := q.CompleteArchived(ctx, gen.CompleteArchivedParams{Ids: r.Ids, Fences: r.Fences, WorkerID: r.WorkerID, Results: r.Results, KeepUs: r.KeepUs,
				Records: slices.Repeat([]bool{true}, n), RetainUs: make([]int64, n), Reasons: make([]string, n)})
			return err
		})
	}
	add("CompleteUnkeyed", onWorker, "jobs_pkey", func(q *gen.Queries) error {
		r := sc.results()
		_, err := q.CompleteUnkeyed(ctx, gen.CompleteUnkeyedParams{Ids: r.Ids, Fences: r.Fences, WorkerID: r.WorkerID, Results: r.Results, KeepUs: r.KeepUs})
		return err
	})
	add("Fail", onWorker, "jobs_pkey", func(q *gen.Queries) error {
		n := len(sc.held)
		_, err := q.Fail(ctx, gen.FailParams{Ids: orEmpty(sc.ids()), Fences: orEmpty(sc.fences()), WorkerID: sc.worker, Permanents: make([]bool, n),
			Snoozes: make([]bool, n), DelaysUs: make([]int64, n), Errors: make([]string, n), MaxSnoozes: 1000})
		return err
	})
	add("Release", onWorker, "jobs_pkey", func(q *gen.Queries) error {
		_, err := q.Release(ctx, gen.ReleaseParams{Ids: orEmpty(sc.ids()), Fences: orEmpty(sc.fences()), WorkerID: sc.worker})
		return err
	})
	add("CancelHeld", onWorker, "jobs_pkey", func(q *gen.Queries) error {
		n := len(sc.held)
		_, err := q.CancelHeld(ctx, gen.CancelHeldParams{Ids: orEmpty(sc.ids()), Fences: orEmpty(sc.fences()), WorkerID: sc.worker, Started: make([]bool, n), KeepUs: 1000, Errors: make([]string, n)})
		return err
	})
	add("Fates", onWorker, "jobs_pkey", func(q *gen.Queries) error {
		_, err := q.Fates(ctx, gen.FatesParams{WorkerID: &sc.worker, Ids: orEmpty(sc.ids()), Fences: orEmpty(sc.fences()), Xacts: make([]int64, len(sc.held))})
		return err
	})
	add("Held", onWorker, "jobs_pkey", func(q *gen.Queries) error { _, err := q.Held(ctx, sc.worker); return err })
	add("Heartbeat", onWorker, "jobs_pkey", func(q *gen.Queries) error {
		_, err := q.Heartbeat(ctx, gen.HeartbeatParams{Ids: orEmpty(sc.ids()), Fences: orEmpty(sc.fences()), WorkerID: sc.worker, LeaseUs: time.Hour.Microseconds()})
		return err
	})
	add("Signs", onWorker, "jobs_suspect", func(q *gen.Queries) error { _, err := q.Signs(ctx); return err })
	add("Signs", onWorker, "jobs_suspect", func(q *gen.Queries) error { _, err := q.Signs(ctx); return err })
	add("Control", onWorker, "", func(q *gen.Queries) error {
		_, err := q.Control(ctx, gen.ControlParams{Queues: []string{"q"}, WorkerID: sc.worker})
		return err
	})
	add("Sleep", onWorker, "", func(q *gen.Queries) error {
		_, err := q.Sleep(ctx, gen.SleepParams{Queues: []string{"q"}, WorkerID: sc.worker, Kinds: []string{"k", "l"}})
		return err
	})
	add("Awake", onWorker, "", func(q *gen.Queries) error { return q.Awake(ctx, sc.worker) })
	add("Register", onWorker, "", func(q *gen.Queries) error {
		return q.Register(ctx, gen.RegisterParams{ID: uuid.New(), Host: "host", Build: "test", Queues: []string{"q"}, Kinds: []string{"k"}, Versions: []int32{1}, TimeoutsUs: []int64{0}, LeaseUs: 1})
	})
	add("Leave", onWorker, "", func(q *gen.Queries) error { _, err := q.Leave(ctx, sc.worker); return err })
	add("GiveUp", onWorker, "", func(q *gen.Queries) error { return q.GiveUp(ctx, sc.worker) })

	add("MarkLost", onWorker, "", func(q *gen.Queries) error { _, err := q.MarkLost(ctx); return err })
	add("NoteUnclaimed", onWorker, "jobs_pkey", func(q *gen.Queries) error {
		_, err := q.NoteUnclaimed(ctx, gen.NoteUnclaimedParams{N: int32(heldRows), After: 0})
		return err
	})
	reclaim := func(orphans bool) func(q *gen.Queries) error {
		return func(q *gen.Queries) error {
			_, err := q.Reclaim(ctx, gen.ReclaimParams{Orphans: orphans, N: heldRows, MaxCrashes: 5, BackoffUs: 1000})
			return err
		}
	}
	add("Reclaim", onWorker, "jobs_pkey", reclaim(false))
	add("Reclaim, of orphans", onWorker, "jobs_pkey", reclaim(true))
	add("PurgeResults", onWorker, "", func(q *gen.Queries) error { _, err := q.PurgeResults(ctx, gen.PurgeResultsParams{N: 10}); return err })
	for name, keep := range map[string]time.Duration{"PurgeAttempts": 7 * 24 * time.Hour, "PurgeAttempts, none": 8 * 24 * time.Hour} {
		add(name, onWorker, "", func(q *gen.Queries) error {
			_, err := q.PurgeAttempts(ctx, gen.PurgeAttemptsParams{N: 10, KeepUs: keep.Microseconds()})
			return err
		})
	}
	add("PurgeSamples", onWorker, "", func(q *gen.Queries) error {
		_, err := q.PurgeSamples(ctx, gen.PurgeSamplesParams{KeepUs: (14 * 24 * time.Hour).Microseconds(), N: 10})
		return err
	})
	add("PurgeLooks", onWorker, "", func(q *gen.Queries) error {
		_, err := q.PurgeLooks(ctx, (14 * 24 * time.Hour).Microseconds())
		return err
	})
	add("SumSamples", onWorker, "", func(q *gen.Queries) error { _, err := q.SumSamples(ctx, 10); return err })
	add("Sample", onWorker, "", func(q *gen.Queries) error {
		two := []int64{1, 1}
		_, err := q.Sample(ctx, gen.SampleParams{AgoUs: 1, Buckets: 1, RunTimes: two, Lengths: []int32{1, 1}, Queues: []string{"q", "q"}, Kinds: []string{"k", "l"},
			Arrived: two, Succeeded: two, Failed: two, TimedOut: two, Snoozed: two, Cancelled: two, Died: two, RunUs: two})
		return err
	})
	add("LookTurn", onWorker, "", func(q *gen.Queries) error { _, err := q.LookTurn(ctx); return err })
	add("MendLooks", onWorker, "", func(q *gen.Queries) error { return q.MendLooks(ctx) })
	add("LastLooks", onWorker, "", func(q *gen.Queries) error { _, err := q.LastLooks(ctx); return err })
	add("LookArrivals", onWorker, "jobs_pkey", func(q *gen.Queries) error {
		_, err := q.LookArrivals(ctx, gen.LookArrivalsParams{Afters: []int64{sc.queued - 1}, Uptos: []int64{sc.queued + 10}})
		return err
	})
	add("LookCancelled", onWorker, "", func(q *gen.Queries) error {
		_, err := q.LookCancelled(ctx, gen.LookCancelledParams{After: longAgo, Upto: longAgo.Add(time.Minute)})
		return err
	})
	add("PutLook", onWorker, "", func(q *gen.Queries) error {
		one := []int64{1}
		_, err := q.PutLook(ctx, gen.PutLookParams{Queues: []string{"q"}, Kinds: []string{"k"}, Ready: one, Scheduled: one, Running: one, Dead: one, OldestUs: one,
			Whole: true, Before: longAgo, At: longAgo, NewestID: 1, Share: 1, Since: longAgo.Add(-time.Minute), OfQueues: []string{"q"}, OfKinds: []string{"k"}, Arrived: one, Cancelled: one})
		return err
	})
	add("PurgeWorkers", onWorker, "", func(q *gen.Queries) error { _, err := q.PurgeWorkers(ctx); return err })
	add("PurgeArchive", onWorker, "", func(q *gen.Queries) error { _, err := q.PurgeArchive(ctx, gen.PurgeArchiveParams{N: 10}); return err })
	for name, arg := range map[string]gen.PurgeDeadParams{"PurgeDead": {N: 1, KeepUs: time.Hour.Microseconds()}, "PurgeDead, none": {N: 10, KeepUs: (365 * 24 * time.Hour).Microseconds()}} {
		add(name, onWorker, "", func(q *gen.Queries) error { _, err := q.PurgeDead(ctx, arg); return err })
	}
	add("PurgeSchedules", onWorker, "", func(q *gen.Queries) error { _, err := q.PurgeSchedules(ctx, 1000); return err })
	add("PurgeStarts", onWorker, "", func(q *gen.Queries) error { _, err := q.PurgeStarts(ctx, 10); return err })
	add("PurgeCancels", onWorker, "", func(q *gen.Queries) error { _, err := q.PurgeCancels(ctx, 10); return err })
	add("UnheardCancels", onWorker, "", func(q *gen.Queries) error { _, err := q.UnheardCancels(ctx, 10); return err })
	add("TakeCancel", onWorker, "", func(q *gen.Queries) error {
		_, err := q.TakeCancel(ctx, gen.TakeCancelParams{JobID: sc.queued, WorkerID: sc.worker})
		return err
	})
	add("Tick", onWorker, "", func(q *gen.Queries) error {
		_, err := q.Tick(ctx, gen.TickParams{Kind: "k", Name: "nightly", AtTick: longAgo, NextAt: longAgo.Add(time.Hour), Queue: "q", Version: 1, Payload: "{}", MaxAttempts: 1, Headers: []string{"{}"}})
		return err
	})

	for name, on := range map[string]place{"": onApp, ", by a worker": onWorker} { // a follow-up
		add("Enqueue"+name, on, "", func(q *gen.Queries) error {
			_, err := q.Enqueue(ctx, gen.EnqueueParams{Queue: "q", Kind: "k", Version: 1, Payload: "{}", MaxAttempts: 1})
			return err
		})
		add("EnqueueKeyed"+name, on, "", func(q *gen.Queries) error {
			_, err := q.EnqueueKeyed(ctx, gen.EnqueueKeyedParams{Queue: "q", Kind: "k", Key: "new", Version: 1, Payload: "{}", MaxAttempts: 1})
			return err
		})
		add("EnqueueKeyed, taken"+name, on, "", func(q *gen.Queries) error {
			_, err := q.EnqueueKeyed(ctx, gen.EnqueueKeyedParams{Queue: "q", Kind: "k", Key: sc.key(), Version: 1, Payload: "{}", MaxAttempts: 1})
			return err
		})
		add("EnqueueMany"+name, on, "", func(q *gen.Queries) error {
			_, err := q.EnqueueMany(ctx, gen.EnqueueManyParams{Payloads: slices.Repeat([]string{"{}"}, heldRows), Queue: "q", Kind: "k", Version: 1, MaxAttempts: 1, Wake: 2})
			return err
		})
		add("Draw"+name, on, "", func(q *gen.Queries) error { _, err := q.Draw(ctx, gen.DrawParams{N: heldRows}); return err })
		add("Wake"+name, on, "", func(q *gen.Queries) error { return q.Wake(ctx, gen.WakeParams{Queue: "q", Kind: "k", Wake: 2}) })
		add("EnqueueManyKeyed"+name, on, "", func(q *gen.Queries) error {
			keys := append(sc.tenKeys("key "), sc.tenKeys("new ")...)
			_, err := q.EnqueueManyKeyed(ctx, gen.EnqueueManyKeyedParams{Keys: keys, Payloads: slices.Repeat([]string{"{}"}, len(keys)), Queue: "q", Kind: "k", Version: 1, MaxAttempts: 1, Wake: 1})
			return err
		})
	}
	add("KeyState", onAppNow, "jobs_pkey", func(q *gen.Queries) error {
		_, err := q.KeyState(ctx, gen.KeyStateParams{Kind: "k", Key: sc.key()})
		return err
	})
	add("KeyStates", onAppNow, "jobs_pkey", func(q *gen.Queries) error {
		_, err := q.KeyStates(ctx, gen.KeyStatesParams{Kind: "k", Keys: sc.tenKeys("key ")})
		return err
	})
	add("JobState", onAppNow, "jobs_pkey", func(q *gen.Queries) error {
		_, err := q.JobState(ctx, gen.JobStateParams{ID: sc.queued, Kinds: []string{"k", "was k"}})
		return err
	})
	add("Archived", onAppNow, "", func(q *gen.Queries) error {
		_, err := q.Archived(ctx, gen.ArchivedParams{Ids: []int64{-1}, Kinds: []string{"k"}})
		return err
	})
	add("Revive", onAppNow, "jobs_pkey", func(q *gen.Queries) error {
		_, err := q.Revive(ctx, gen.ReviveParams{ID: sc.dead, Kind: "k", Key: fmt.Sprint("key ", sc.dead), Queue: "q", Version: 1, Payload: "{}", MaxAttempts: 1})
		return err
	})
	for name, hand := range map[string]bool{"Replace": false, "Replace, handing over": true} {
		add(name, onAppNow, "jobs_pkey", func(q *gen.Queries) error {
			_, err := q.Replace(ctx, gen.ReplaceParams{JobID: sc.queued, Kind: "k", Key: sc.key(), Queue: "q", Version: 1, Payload: "{}", MaxAttempts: 1, Hand: hand})
			return err
		})
	}
	add("ForgetKey", onAppNow, "jobs_pkey", func(q *gen.Queries) error {
		_, err := q.ForgetKey(ctx, gen.ForgetKeyParams{JobID: sc.queued, Kind: "k", Key: sc.key()})
		return err
	})
	add("Cancel", onAppNow, "jobs_pkey", func(q *gen.Queries) error {
		_, err := q.Cancel(ctx, gen.CancelParams{Ids: append(sc.ten(), sc.ids()...), Kinds: []string{}, Statuses: []string{}, KeepUs: 1000})
		return err
	})
	return all
}

// prepared are the hot statements on connections of their own: those of a worker share one, and the application's another.
func (f *fixture) prepared(sc *scene) (all []statement) {
	f.Helper()
	conns := map[place]*pgx.Conn{onWorker: f.session(), onApp: f.connect(), onAppNow: f.connect()}
	if f.shared {
		conns[onWorker] = f.connect()
	}
	for _, s := range sc.statements() {
		s.conn, s.shared = conns[s.on], f.shared && s.on == onWorker
		all = append(all, f.prepare(s))
	}
	return all
}
