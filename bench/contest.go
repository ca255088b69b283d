package main

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// contest is one task that several entrants do. A new measurement is a new contest; a new peer is a new entrant.
type contest struct {
	name  string
	group string // what -only can name as a whole, and RESULTS.md has a chapter for
	title string // %s: the number of jobs
	note  string // what to know to read the figures
	// jobs is how many jobs it takes when a drain takes n.
	jobs func(n int) int
	// length is for how long it goes on unless -for says otherwise; 0: until its jobs are done. A contest that goes by time
	// has no jobs; its entrants are given seconds instead.
	length   time.Duration
	metrics  []metric // what is told of it; nil: metrics
	together bool     // its entrants work at the same time, each on a server of its own
	across   bool     // in tables entrants stand side by side, and metrics below each other
	entrants []entrant
}

// entrant is one way to do a contest's task.
type entrant struct {
	name  string
	label string // in tables
	note  string // settings and what is special, in the results
	peer  peer   // whose tables its database has
	// part is the share of the contest's jobs that it gets, one in so many, where it would take minutes; 0: all.
	part int
	// processes share its jobs; 0: one, which knows itself when it has done them.
	processes int
	// beside works in a process of its own while the entrant is measured. Nothing of it is measured but what it costs the server.
	beside *entrant
	// components has its CPU time told by component, which costs something.
	components bool
	// needs says what it lacks on this machine; nil, or an answer of "": nothing.
	needs func(o options) string
	// foreign is the entrant of another program that this is. It has neither seed nor open.
	foreign *foreign
	// fill does what takes a while before seed, and says how far it is; nil: nothing.
	fill func(ctx context.Context, url string, n int, say func(string)) error
	// seed fills the fresh database, before the clock starts; nil: it stays empty.
	seed func(ctx context.Context, url string, n int) error
	// open prepares in the entrant's own process: connections, values. Also before the clock.
	open func(ctx context.Context, url string, n int) (*session, error)
	// verify fails unless the database shows that n jobs were done, and nothing else.
	verify func(ctx context.Context, conn *pgx.Conn, n int) error
	// verifyBeside is given, too, what was run beside; nil: it does not matter.
	verifyBeside func(ctx context.Context, conn *pgx.Conn, n int, beside ran) error
}

// session is an entrant ready to go.
type session struct {
	run     func(ctx context.Context) error // what is measured; it returns when the last job is done and stored
	figures answer                          // further ones, which run has set
	close   func()
	// Of a process that shares its jobs with others, or works beside: stop ends its run, and roll is what it has run.
	stop chan struct{}
	roll *roll
}

// peer is a queue with tables of its own.
type peer struct {
	name    string
	migrate func(ctx context.Context, url string) error
}

func all(n int) int { return n }

// size is what the contest's entrants are given: jobs or, if it goes by time, seconds.
func (c contest) size(jobs int, length time.Duration) int {
	if c.length == 0 {
		return c.jobs(jobs)
	}
	if length == 0 {
		length = c.length
	}
	return int(length.Seconds())
}

// contests in the order in which they run and are reported.
var contests = []contest{
	{
		name: "drain", group: "peers", title: "Drain of %s no-op jobs, 1 process", jobs: all,
		note: "From the start of the worker until its clean stop, which comes with the last outcome stored. The backlog was " +
			"enqueued, vacuumed, analyzed and is a few seconds old.",
		entrants: []entrant{
			drainJobgen, drainJobgenTuned, drainJobgenResults, drainSQL, drainRiver, drainRiverDefaults,
			graphile("drain", "the settings of its page on performance: concurrentJobs 24, maxPoolSize 25, localQueue.size 500, completeJobBatchDelay 0, failJobBatchDelay 0", 0),
			graphile("drain-defaults", "concurrentJobs 1, maxPoolSize 10, no batches", 50),
			pgBoss("drain", "batchSize 1000, localConcurrency 2, burstWhenBatchFull, pollingIntervalSeconds 0.5; on default settings it takes a job every two seconds", 0),
			drainGue(false, 10), drainGue(true, 50),
		},
	},
	{
		name: "enqueue1", group: "peers", title: "%s single enqueues, 1 connection, no workers", jobs: func(n int) int { return n / 20 },
		entrants: []entrant{enqueueJobgen(1), enqueueSQL(1), enqueueRiver(1), graphile("enqueue1", "addJob on a pg.Pool", 0), pgBoss("enqueue1", "send, to a queue without notify", 0), enqueueGue(1)},
	},
	{
		name: "enqueue16", group: "peers", title: "%s single enqueues, 16 connections, no workers", jobs: func(n int) int { return n / 5 },
		entrants: []entrant{enqueueJobgen(16), enqueueSQL(16), enqueueRiver(16), graphile("enqueue16", "addJob on a pg.Pool", 0), pgBoss("enqueue16", "send, to a queue without notify", 0), enqueueGue(16)},
	},
	{
		name: "enqueuemany", group: "peers", title: "%s jobs enqueued by one call, no workers", jobs: all,
		entrants: []entrant{enqueueManyJobgen, enqueueManySQL, enqueueManyCopy, enqueueManyRiver, graphile("enqueuemany", "addJobs", 0), pgBoss("enqueuemany", "insert", 0), enqueueManyGue},
	},
	enqueueBusy,
	enqueueIdle,
	latencies,
	latenciesIdle,
	featureDrains,
	featureEnqueues,
	processes,
	fullTables,
	costs,
	idleFleet,
	held,
	spiral,
	memories,
	fullest,
	churn,
}

// groups in the order of the chapters of RESULTS.md.
var groups = []struct {
	name, title string
	long        bool // runs only if it is named
}{
	{"peers", "Others", false},
	{"features", "What features cost", false},
	{"enqueue", "Enqueueing beside a worker", false},
	{"processes", "Several workers", false},
	{"full", "Full tables", false},
	{"cost", "What a job's CPU time is made of", false},
	{"idle", "Nothing to do", true},
	{"hold", "A held snapshot", true},
	{"spiral", "Old snapshots", true},
	{"memory", "Memory", true},
	{"full-10m", "Fuller tables", true},
	{"churn", "The tables under steady load", true},
}

// selectable are the names that -only takes: groups, and contests.
func selectable() (names []string) {
	for _, g := range groups {
		names = append(names, g.name)
	}
	for _, c := range contests {
		if !slices.Contains(names, c.name) {
			names = append(names, c.name)
		}
	}
	return names
}

// isGroup tells whether a name is that of a group, or of its only contest.
func isGroup(name string) bool {
	for _, g := range groups {
		if g.name == name {
			return true
		}
	}
	return false
}

// runs tells whether the contest is selected.
func (o options) runs(c contest) bool {
	if o.targeted {
		return (c.group == "peers" || c.group == "enqueue") && len(c.takingPart(o)) > 0
	}
	if len(o.only) > 0 {
		return slices.Contains(o.only, c.name) || slices.Contains(o.only, c.group)
	}
	for _, g := range groups {
		if g.name == c.group {
			return !g.long
		}
	}
	return false
}

// takingPart are the entrants of a contest that can run here.
func (c contest) takingPart(o options) (es []entrant) {
	for _, e := range c.entrants {
		if len(o.entrants) > 0 && !slices.Contains(o.entrants, e.name) || o.targeted && !targeted(term{c.name, e.name}) {
			continue
		}
		if e.needs == nil || e.needs(o) == "" {
			es = append(es, e)
		}
	}
	return es
}

// find returns an entrant by its contest's name and its own.
func find(contestName, entrantName string) (contest, entrant, bool) {
	for _, c := range contests {
		for _, e := range c.entrants {
			if c.name == contestName && e.name == entrantName {
				return c, e, true
			}
			if c.name == contestName && e.beside != nil && e.beside.name == entrantName {
				return c, *e.beside, true
			}
		}
	}
	return contest{}, entrant{}, false
}

// ratio is a figure of ours over the same figure of another, within a round. Terms are added up: what enqueueing and
// draining cost together is two terms.
type ratio struct {
	key         string
	says        string
	metric      metric
	ours, other []term // without another, the figure itself
	worst       bool   // of ours the smallest counts, not the sum
}

type term struct{ contest, entrant string }

// group is that of its contests.
func (r ratio) group() string {
	for _, c := range contests {
		if c.name == r.ours[0].contest {
			return c.group
		}
	}
	return ""
}

// ratios are what targets are stated in. For rates more is better, for costs less.
var ratios = slices.Concat(
	peerRatios,
	featureRatios,
	enqueueRatios,
	situationRatios,
	spiralRatios,
	memoryRatios,
	fullRatios,
	idleRatios,
	churnRatios,
)

var peerRatios = slices.Concat(
	[]ratio{
		{key: "drain/floor", says: "drain, jobs/s: jobgen over the hand-written loop", metric: rate, ours: []term{{"drain", "jobgen"}}, other: []term{{"drain", "sql"}}},
		{key: "drain-defaults/drain", says: "drain, jobs/s: jobgen on default settings over jobgen tuned", metric: rate, ours: []term{{"drain", "jobgen"}}, other: []term{{"drain", "jobgen-tuned"}}},
		{key: "drain-results/river", says: "drain, jobs/s: jobgen with a result for each job over River without", metric: rate, ours: []term{{"drain", "jobgen-results"}}, other: []term{{"drain", "river"}}},
		{key: "drain-results/drain", says: "drain, jobs/s: jobgen with a result for each job over jobgen without", metric: rate, ours: []term{{"drain", "jobgen-results"}}, other: []term{{"drain", "jobgen"}}},
		{key: "cpu/floor", says: "drain, client + server CPU per job: jobgen over the hand-written loop", metric: cpu, ours: []term{{"drain", "jobgen"}}, other: []term{{"drain", "sql"}}},
		{key: "wal-drain/floor", says: "WAL per job, drain alone: jobgen over the hand-written loop", metric: wal, ours: []term{{"drain", "jobgen"}}, other: []term{{"drain", "sql"}}},
		{key: "enqueue1/insert", says: "single enqueue, 1 connection, jobs/s: jobgen over a bare INSERT", metric: rate, ours: []term{{"enqueue1", "jobgen"}}, other: []term{{"enqueue1", "sql"}}},
		{key: "enqueue16/insert", says: "single enqueue, 16 connections, jobs/s: jobgen over a bare INSERT", metric: rate, ours: []term{{"enqueue16", "jobgen"}}, other: []term{{"enqueue16", "sql"}}},
		{key: "enqueuemany/insert", says: "batch enqueue, jobs/s: EnqueueMany over a bare INSERT of arrays", metric: rate, ours: []term{{"enqueuemany", "jobgen"}}, other: []term{{"enqueuemany", "sql"}}},
		{key: "enqueuemany/copy", says: "batch enqueue, jobs/s: EnqueueMany over a bare COPY", metric: rate, ours: []term{{"enqueuemany", "jobgen"}}, other: []term{{"enqueuemany", "copy"}}},
		{key: "latency-p50/floor", says: "commit to handler start, median: jobgen over the hand-written LISTEN loop", metric: p50, ours: []term{{"latency", "jobgen"}}, other: []term{{"latency", "sql"}}},
		{key: "latency-idle-p50/floor", says: "the same of jobs that come so seldom that each finds an idle worker", metric: p50, ours: []term{{"latency-idle", "jobgen"}}, other: []term{{"latency-idle", "sql"}}},
		{key: "latency-idle-p99/floor", says: "the same, 99th percentile", metric: p99, ours: []term{{"latency-idle", "jobgen"}}, other: []term{{"latency-idle", "sql"}}},
		{key: "latency-p99/floor", says: "commit to handler start, 99th percentile: jobgen over the hand-written LISTEN loop", metric: p99, ours: []term{{"latency", "jobgen"}}, other: []term{{"latency", "sql"}}},
	},
	against("river", "River", true), against("graphile-worker", "graphile-worker", true), against("pg-boss", "pg-boss", false), against("gue", "gue", true),
)

// against are the ratios of jobgen on default settings over another queue.
func against(name, label string, defaults bool) []ratio {
	one := func(key, says string, m metric, contests ...string) ratio {
		r := ratio{key: key + "/" + name, says: says + ": jobgen over " + label, metric: m}
		for _, c := range contests {
			r.ours, r.other = append(r.ours, term{c, "jobgen"}), append(r.other, term{c, name})
		}
		return r
	}
	rs := []ratio{
		one("drain", "drain, jobs/s", rate, "drain"),
		one("cpu", "drain, client + server CPU per job", cpu, "drain"),
		one("wal", "WAL per job, EnqueueMany + drain", wal, "enqueuemany", "drain"),
		one("wal-drain", "WAL per job, drain alone", wal, "drain"),
		one("enqueue1", "single enqueue, 1 connection, jobs/s", rate, "enqueue1"),
		one("enqueue16", "single enqueue, 16 connections, jobs/s", rate, "enqueue16"),
		one("enqueuemany", "batch enqueue, jobs/s", rate, "enqueuemany"),
		one("latency-p50", "commit to handler start, median", p50, "latency"),
		one("latency-p99", "commit to handler start, 99th percentile", p99, "latency"),
	}
	if defaults {
		name, label = name+"-defaults", label+" on default settings"
		rs = append(rs,
			one("drain", "drain, jobs/s", rate, "drain"),
			one("latency-p50", "commit to handler start, median", p50, "latency"),
			one("latency-p99", "commit to handler start, 99th percentile", p99, "latency"),
		)
	}
	return rs
}
