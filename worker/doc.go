// Package worker runs jobs: it claims them, calls their handlers, and stores what came of it.
//
// A process makes a Registry, fills it with the emitted Register, makes a Worker with New, and calls Run.
//
// # The loops
//
// Run starts ten loops in one errgroup, and ends them in this order.
//
//	loop       file         starts with   waits for                              ends
//	claim      claim.go     Run           room in the ledger; a poll; a wake-up  with Run's context
//	listen     listen.go    Run           notifications                          with Run's context
//	upkeep     upkeep.go    Run           a look by control                      with Run's context
//	tick       schedule.go  Run           the next tick of a schedule            with Run's context
//	sample     sample.go    Run           the end of a minute                    after the last handler; Run writes the rest
//	heartbeat  lease.go     Run           its interval                           after the last handler
//	control    control.go   Run           a heartbeat; a notification            after the last handler
//	watch      stuck.go     Run           its interval                           after the last handler
//	complete   complete.go  Run           an outcome                             after the last handler, with a last flush
//	start      lock.go      Run           a job owned by lock that is to start   after the last handler
//
// Beside them, runners (execute.go) call handlers: claim starts as many as there are slots and work for, and each rests when
// nothing waits, until it is called again or the worker shuts down. They are not in the errgroup: a handler that ignores its
// cancelled context for ever must not keep Run from returning. Jobs owned by lock (lock.go) have no hold: lockers look for
// them, one each, run them in the transaction that has the row locked, and go on until there is none; claim starts the first,
// and each that finds a job another. What does not succeed becomes a hold. Middleware (middleware.go) is put around the
// handlers once, by New; a runner does not know of it.
//
// Where claims start, marks.go knows; how a worker with nothing to do learns of the next job, idle.go and quiet.go.
//
// # What they share
//
// The ledger (ledger.go) is what this process holds: each hold, (id, fence), from its claim until its outcome is stored.
// A claim enters it before any of its handlers starts; an outcome leaves it once the database has it. claim fills it as
// far as the two limits allow (slots, and holds not yet stored), runners take what waits, complete settles, heartbeat
// removes what the database says is gone. It counts what is left of each claim, too: the claim's row in the database, by which
// others would find the jobs of this process if it were lost, goes with the last of them. Everything else has one owner.
//
// No loop sleeps and none gives up: while the database is away they try again, at a bounded rate, and say so once. A
// worker that is found dead although it lives goes on under a new id with nothing held (heartbeat); what its old handlers
// return is stale and changes nothing.
package worker
