// Package jobs is what an application imports to enqueue jobs and to await their results. Emitted code calls it; the
// worker that runs the jobs is package worker.
//
// A job is enqueued on whatever the application has in its hands, a pool, a connection or a transaction, and commits or
// rolls back with it (G1). Every time that decides anything is the database's (G12): the application passes durations.
package jobs
