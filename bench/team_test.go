package main

import "testing"

func TestATeamNoticesWhatRanInTwoProcesses(t *testing.T) {
	one, two := newRoll(70), newRoll(70)
	for i := range 69 {
		one.call(i)
	}
	two.call(69)
	sum := one.ran()
	if err := sum.add(two.ran()); err != nil || sum.count() != 70 {
		t.Errorf("%d of 70 jobs; %v", sum.count(), err)
	}
	two.call(3)
	if one.ran().add(two.ran()) == nil {
		t.Error("job 3 ran in both and nobody noticed")
	}
}
