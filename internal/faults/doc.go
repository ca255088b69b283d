// Package faults tests the promises under faults: worker processes and producers on a real Postgres, a random schedule of faults
// that a seed decides, and a checker that reads what each process wrote down and what the database recorded.
//
//	go test ./internal/faults -faults.for 2m                 a run with a random seed, which it prints
//	go test ./internal/faults -faults.seed 7 -faults.for 2m  the schedule of that seed once more
//	make faults-proof                                        deliberate breaks of the code, each of which must be noticed
//
// What happens is decided by the seed: which fault, when, to whom and for how long. How the processes interleave is the
// machine's. There is nothing here but tests: plan_test.go has the faults, worker_test.go the processes, produce_test.go
// what gives them work, audit_test.go what the database records, check_test.go what must hold, mutation_test.go the breaks that
// must be noticed.
package faults
