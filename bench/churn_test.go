package main

import (
	"math"
	"testing"
)

// What autovacuum says of itself is on one line of several, and a line can come in pieces. An ordinary VACUUM does not count.
func TestAutovacuumsCPUTimeIsTakenFromTheLog(t *testing.T) {
	var v vacuumCPU
	for _, piece := range []string{
		"LOG:  automatic vacuum of table \"db.jobgen.jobs\": index scans: 1\n\tpages: 0 removed\n\tsystem usage: CPU: user: 0.2",
		"5 s, system: 0.01 s, elapsed: 9.00 s\nLOG:  checkpoint starting: time\n",
		"\tsystem usage: CPU: user: 5.00 s, system: 5.00 s, elapsed: 9.00 s\n",
		"LOG:  automatic analyze of table \"db.jobgen.jobs\"\n\tsystem usage: CPU: user: 0.50 s, system: 0.00 s, elapsed: 9.00 s\n",
	} {
		if _, err := v.Write([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	if got := v.seconds(); math.Abs(got-0.76) > 1e-9 {
		t.Errorf("%v s instead of 0.76", got)
	}
}

func TestEarlyAndLateAreTheSecondAndTheLastSixth(t *testing.T) {
	values := make([]float64, churnParts)
	for i := range values {
		values[i] = float64(i / 10)
	}
	s := sample{series: map[string]series{"claim_p99_ms": {Values: values}}}
	if early, last, growth := claimEarly.of(s), claimLate.of(s), claimGrowth.of(s); early != 1 || last != 5 || growth != 5 {
		t.Errorf("%v, %v, %v instead of 1, 5, 5", early, last, growth)
	}
	if got := claimLate.of(sample{}); !math.IsNaN(got) {
		t.Errorf("without a series: %v", got)
	}
}
