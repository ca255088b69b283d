package worker

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/jobs"
)

func TestAWishToCancelReachesWhatRunsAndTakesOutWhatWaits(t *testing.T) {
	t.Parallel()
	me := uuid.New()
	l := newLedger(2)
	l.own(me, nil)
	hs := held(me, 1, 5)
	l.add(me, hs)
	runs, returned := l.start(context.Background(), nil), l.start(context.Background(), nil)
	l.returned(returned)
	var wishes []engine.Cancel
	for _, h := range []*hold{runs, returned, hs[3]} {
		wishes = append(wishes, engine.Cancel{ID: h.ID, Reason: "why"})
	}
	wishes = append(wishes, engine.Cancel{ID: 4711})
	if got := l.cancel(wishes); !slices.Equal(got, []*hold{hs[3]}) {
		t.Errorf("taken out: %v", got)
	}
	if cause := context.Cause(runs.ctx); !errors.Is(cause, jobs.ErrCancelled) || cause.Error() != "jobs: the job was cancelled: why" {
		t.Errorf("the cause is %v", cause)
	}
	if again := l.cancel(wishes); again != nil { // the next look finds the same wishes
		t.Errorf("taken out again: %v", again)
	}
	for _, want := range []*hold{hs[2], hs[4], nil} {
		if got := l.start(context.Background(), nil); got != want {
			t.Errorf("started %v, want %v", got, want)
		}
	}
	if !l.current(hs[3]) {
		t.Error("what was taken out is not held any more, so its outcome could not be stored")
	}
}
