package doctor

import "time"

// Limits say from when on something matters. docs/operating/doctor.md lists them with their reasons.
type Limits struct {
	Time time.Duration // for each check, on the server

	Old        time.Duration // a transaction that keeps dead rows: ten rounds of autovacuum
	VeryOld    time.Duration // a critical one, if it also keeps ManyDead rows
	SlotAge    int64         // transactions since the snapshot of a slot or standby; a tenth for a slot that nobody uses
	SlotWAL    int64         // bytes that a slot which nobody uses makes the server keep
	Dead       int64         // dead rows from which on a table is looked at
	ManyDead   int64
	DeadRounds int64         // of what makes autovacuum come: more is too many, if it has not come
	Unvacuumed time.Duration // for which autovacuum has not come though it should
	Slack      int64         // bytes of empty room in a table or index that are worth having back
	Wraparound int64         // transactions since the oldest frozen; autovacuum steps in at 200,000,000

	Unhandled time.Duration // a job waits that no worker handles, and much longer
	Forlorn   time.Duration
	Backlog   time.Duration // the oldest of jobs that come faster than they leave has waited
	Paused    time.Duration // a queue with work is paused
	Orphaned  time.Duration // a job runs that no live worker has: upkeep mends that within a minute
	Late      time.Duration // a schedule's tick
	Lost      time.Duration // how long ago a worker was lost, to be spoken of
	CutShare  float64       // of attempts that a timeout ended
	CutLeast  int64
	FarRuns   int64   // attempts by which a timeout is judged never to be reached
	FarFactor float64 // of the slowest of a thousand
	FarLeast  time.Duration

	Idle        time.Duration // in a transaction
	LockWait    time.Duration
	LongWait    time.Duration
	Connections float64 // share of those that can be had
	Full        float64
	Notify      float64 // share of the queue of notifications
	NotifyFull  float64
	Skew        time.Duration
	Unfixed     time.Duration // the server runs on after the last release of its major version
	Deadlocks   float64       // a day
	Checkpoints time.Duration // for which they have been counted: a start, or a test that makes databases, asks for many
	Keep        time.Duration
	KeptMany    int64
	History     int64 // bytes of a table of history
}

// Default is what jobctl uses.
var Default = Limits{
	Time: 2 * time.Second,

	Old: 10 * time.Minute, VeryOld: time.Hour, SlotAge: 1_000_000, SlotWAL: 1 << 30,
	Dead: 50_000, ManyDead: 1_000_000, DeadRounds: 10, Unvacuumed: 10 * time.Minute, Slack: 1 << 30, Wraparound: 1_000_000_000,

	Unhandled: time.Minute, Forlorn: 15 * time.Minute, Backlog: 5 * time.Minute, Paused: time.Hour, Orphaned: 10 * time.Minute, Late: 5 * time.Minute, Lost: time.Hour,
	CutShare: 0.05, CutLeast: 10, FarRuns: 1000, FarFactor: 100, FarLeast: 10 * time.Minute,

	Idle: 10 * time.Minute, LockWait: 5 * time.Second, LongWait: time.Minute, Connections: 0.8, Full: 0.95, Notify: 0.1, NotifyFull: 0.5,
	Skew: 2 * time.Second, Deadlocks: 10, Checkpoints: time.Hour, Keep: 365 * 24 * time.Hour, KeptMany: 100_000, History: 5 << 30,
}
