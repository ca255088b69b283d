package worker

import (
	"context"
	"testing"

	"github.com/google/uuid"
)

// A runner that has nothing to do rests; what is claimed next is for it, not for a new one, and a shutdown ends it.
func TestRunnersRestAndAreCalledAgain(t *testing.T) {
	t.Parallel()
	me := uuid.New()
	l := newLedger(10)
	l.own(me, nil)
	rested := make(chan bool)
	rest := func() { rested <- l.rest() }
	resting := func(n int) {
		t.Helper()
		for l.mu.Lock(); l.resting != n; l.mu.Lock() {
			l.mu.Unlock()
		}
		l.mu.Unlock()
	}
	go rest()
	resting(1)
	if runners, _ := l.add(me, held(me, 1, 3)); runners != 2 {
		t.Errorf("%d new runners for 3 jobs and one that rests, want 2", runners)
	}
	if !<-rested {
		t.Error("it was not called")
	}
	for range 3 {
		if l.start(context.Background(), nil) == nil {
			t.Error("nothing to start")
		}
	}
	go rest()
	resting(1)
	l.close()
	if <-rested || l.rest() {
		t.Error("it goes on after the shutdown")
	}
}
