package faults

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	seedFlag = flag.Uint64("faults.seed", 0, "the schedule; 0: a random one")
	forFlag  = flag.Duration("faults.for", 12*time.Second, "how long faults go on")
	onlyFlag = flag.String("faults.only", "", "only this fault, by name")
	keepFlag = flag.String("faults.log", "", "write what the workers log to this file")
	// Retries, leases, a claim that was lost in a connection that is dead: what work may take when nothing is wrong any more.
	patienceFlag = flag.Duration("faults.patience", 90*time.Second, "how long after the last fault all work must have ended")
	forgetFlag   = flag.Bool("faults.forgetful", false, "the server forgets its last moments when it crashes (synchronous_commit and fsync off)")
	placeFlag    = flag.Int("faults.workers", 4, "worker processes at once")
)

// Nothing is lost, nothing happens twice, and every count is right, whatever happens to processes, network and server.
func TestPromisesHoldUnderFaults(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(rand.Uint32())
	}
	t.Logf("again: go test ./internal/faults -run '^%s$' -faults.seed %d -faults.for %v", t.Name(), seed, *forFlag)
	if *onlyFlag != "" && !slices.ContainsFunc(faults, func(f fault) bool { return f.name == *onlyFlag }) {
		t.Fatalf("there is no fault %q", *onlyFlag)
	}
	w := open(t, seed, *placeFlag)
	w.run(plan(seed, *forFlag, *placeFlag, *onlyFlag), *forFlag)
	w.verify()
	w.report()
}

func (w *world) report() {
	var faults []string
	for _, name := range slices.Sorted(maps.Keys(w.counts)) {
		faults = append(faults, fmt.Sprintf("%s %d", name, w.counts[name]))
	}
	w.t.Logf("%d jobs (%v), %d changes; faults: %s", w.jobs, w.outcomes, w.changes, strings.Join(faults, ", "))
	for i, text := range w.failed {
		if i == 10 {
			w.t.Errorf("… and %d more", len(w.failed)-i)
			break
		}
		w.t.Error(text)
	}
	if *keepFlag != "" {
		b, err := os.ReadFile(w.folder + "/workers.log")
		check(w.t, err)
		check(w.t, os.WriteFile(*keepFlag, b, 0o644))
	}
}
