package jobs

import (
	"context"
	"fmt"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// Limits of what can be decided about a queue.
const (
	MaxWeight = 1000
	MaxSlots  = 100_000
)

// PauseQueue stops the claiming of a queue's jobs, by all workers, from when db's transaction commits, if it is one. The
// workers are notified; one that misses it sees it within a few seconds. Running handlers go on, what was claimed but has
// not started goes back without an attempt spent, and enqueueing and schedules go on. A queue that is paused stays paused,
// also over restarts, and one that nobody knows yet can be paused.
func PauseQueue(ctx context.Context, db DB, name string) error {
	paused := true
	return decide(ctx, db, name, engine.Decision{Paused: &paused})
}

// ResumeQueue ends what PauseQueue began. What lies in the queue is claimed in its order. For a queue that is not paused it
// does nothing.
func ResumeQueue(ctx context.Context, db DB, name string) error {
	paused := false
	return decide(ctx, db, name, engine.Decision{Paused: &paused})
}

// SetQueueWeight decides how large a queue's share is of a worker's slots, beside the other queues that have jobs of the
// same priority: 1 to MaxWeight, in place of what the workers' programs say (worker.Config.Weights). 0 takes the decision
// back.
func SetQueueWeight(ctx context.Context, db DB, name string, weight int) error {
	if weight < 0 || weight > MaxWeight {
		return fmt.Errorf("jobs: the weight of queue %q is %d; it must be 1 to %d, or 0 for what the workers' programs say", name, weight, MaxWeight)
	}
	return decide(ctx, db, name, engine.Decision{Weight: &weight})
}

// SetQueueSlots decides how many of a queue's jobs run at once in each worker process: 1 to MaxSlots, in place of what the
// workers' programs say (worker.Config.QueueSlots). 0 takes the decision back; to stop a queue, use PauseQueue. When it
// is less than what runs, running handlers go on and nothing starts until there is room.
func SetQueueSlots(ctx context.Context, db DB, name string, slots int) error {
	if slots < 0 || slots > MaxSlots {
		return fmt.Errorf("jobs: the slots of queue %q are %d; they must be 1 to %d, or 0 for what the workers' programs say (to stop a queue, pause it)", name, slots, MaxSlots)
	}
	return decide(ctx, db, name, engine.Decision{Slots: &slots})
}

func decide(ctx context.Context, db DB, name string, d engine.Decision) error {
	if problem := checkName(name); problem != "" {
		return fmt.Errorf("jobs: the queue name %q %s", name, problem)
	}
	db, _ = unwrap(db)
	if _, err := postgres.SetQueue(ctx, db, name, d); err != nil {
		return fmt.Errorf("jobs: queue %q: %w", name, err)
	}
	return nil
}
