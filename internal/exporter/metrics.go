package exporter

import "math"

// Metrics are all that there are, in the order of the page.
var Metrics []*desc

func gauge(name, help string, labels ...string) *desc {
	d := &desc{Name: "jobgen_" + name, Type: "gauge", Help: help, Labels: labels}
	Metrics = append(Metrics, d)
	return d
}

// most is a gauge of which the greatest counts where several are folded into one.
func most(name, help string, labels ...string) *desc {
	d := gauge(name, help, labels...)
	d.most = true
	return d
}

func counter(name, help string, labels ...string) *desc {
	d := gauge(name, help, labels...)
	d.Type = "counter"
	return d
}

func histogram(name, help string, labels ...string) *desc {
	d := gauge(name, help, labels...)
	d.Type = "histogram"
	return d
}

// bounds are those of run times in seconds, the same for all kinds, so that they can be added up: 1 ms to 70 minutes.
var bounds = func() (b []float64) {
	for i := range 23 {
		b = append(b, math.Ldexp(1, i)/1000)
	}
	return b
}()

var (
	up            = gauge("up", "1 if the database answers and is migrated. If 0, all but the exporter's own metrics are left out.")
	partSuccess   = gauge("exporter_part_success", "1 if this part could be read. If 0, its metrics are left out.", "part")
	partErrors    = counter("exporter_part_errors_total", "How often a part could not be read since the exporter was started.", "part")
	partDuration  = gauge("exporter_part_duration_seconds", "How long it took to read a part.", "part")
	duration      = gauge("exporter_duration_seconds", "How long it took to read all.")
	collections   = counter("exporter_collections_total", "How often the database was read since the exporter was started. Scrapes in between share what was read.")
	folded        = gauge("exporter_folded", "How many queues, kinds in a queue, or schedules are folded into those with the name other.", "of")
	schemaVersion = gauge("schema_version", "The newest migration of the schema.")

	jobsNow   = gauge("jobs", "Jobs in the table by state: ready (due), scheduled (for later, retries included), running, dead.", "queue", "kind", "state")
	oldest    = most("oldest_ready_age_seconds", "How long the oldest ready job has been due. 0: none is ready.", "queue", "kind")
	unhandled = gauge("unhandled_jobs", "Ready jobs that no live worker would take: none polls the queue and handles the kind.", "queue", "kind")
	lookShare = gauge("look_share", "The part of the table from which the levels were counted. 1: they are exact; less: they are estimates.")

	arrived   = counter("jobs_arrived_total", "Jobs enqueued or requeued.", "queue", "kind")
	succeeded = counter("jobs_succeeded_total", "Jobs that succeeded.", "queue", "kind")
	cancelled = counter("jobs_cancelled_total", "Jobs that were cancelled, or whose deadline had passed.", "queue", "kind")
	died      = counter("jobs_died_total", "Jobs that were out of attempts, or failed for good.", "queue", "kind")
	failed    = counter("attempts_failed_total", "Attempts that failed, timed out ones and the last of dead jobs included.", "queue", "kind")
	timedOut  = counter("attempts_timed_out_total", "Failed attempts that the timeout of the kind ended.", "queue", "kind")
	snoozed   = counter("attempts_snoozed_total", "Attempts whose handler put its job off.", "queue", "kind")
	reclaimed = counter("attempts_reclaimed_total", "Attempts that ended because their worker was lost. Growth is workers dying.", "queue", "kind")
	runTime   = histogram("run_seconds", "How long attempts ran, whatever came of them.", "queue", "kind")

	workers      = gauge("workers", "Worker processes: alive (the lease stands), lost (within the last day).", "state")
	queueWorkers = gauge("queue_workers", "Live workers that poll a queue.", "queue")
	queuePaused  = most("queue_paused", "1 if a queue is paused.", "queue")
	slots        = gauge("slots", "Handlers that the live workers together may run at once. Workers before schema 3 count 0.")
	busySlots    = gauge("slots_busy", "Of these, how many ran one at the last heartbeat.")
	skew         = most("worker_clock_skew_seconds", "How far the clock of the live worker that is furthest off is from the database's.")
	stuckWorkers = gauge("workers_stuck", "Live workers with at least one handler that ignores its ended context.")
	stuckSlots   = gauge("slots_stuck", "Slots of live workers that such handlers take up.")
	overdue      = most("schedule_overdue_seconds", "How long the next tick of a schedule has been due. 0: it is not.", "kind", "name")

	horizonAge    = most("horizon_age_seconds", "For how long the oldest snapshot of a holder has kept VACUUM from removing dead rows. Of slots and standbys: at least, since the exporter began to look.", "holder")
	horizonXacts  = most("horizon_age_transactions", "How many transactions ago the oldest snapshot of a holder was taken.", "holder")
	tableBytes    = gauge("table_bytes", "Size of a table without its indexes.", "table")
	indexBytes    = gauge("index_bytes", "Size of an index.", "table", "index")
	liveTuples    = gauge("table_live_tuples", "Rows of a table, as the statistics have it.", "table")
	deadTuples    = gauge("table_dead_tuples", "Dead rows of a table, as the statistics have it.", "table")
	vacuumed      = gauge("table_vacuum_age_seconds", "How long ago VACUUM last went over a table. Left out: never, or before a crash of the server.", "table")
	notifyUsage   = gauge("notify_queue_usage_ratio", "How full the server's queue of notifications is. At 1, enqueueing fails.")
	connections   = gauge("database_connections", "Client connections to the server, all databases.")
	connectionMax = gauge("database_connections_max", "Client connections that the server allows (max_connections).")
)
