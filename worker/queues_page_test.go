package worker_test

import (
	"context"
	"errors"
	"log"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

func sharedOut(pool *pgxpool.Pool, registry *worker.Registry) (*worker.Worker, error) {
	return worker.New(pool, registry, worker.Config{
		Queues:      []string{"mail", "reports"},
		Concurrency: 50,
		// While both have work of the same priority, mail starts three jobs for each report.
		Weights: map[string]int{"mail": 3, "reports": 1},
		// The report database stands four at once from each process.
		QueueSlots: map[string]int{"reports": 4},
		// However much bulk mail there is, 10 slots are left for jobs with jobs.Priority(5) or more.
		Reserve: []worker.Reserve{{Priority: 5, Slots: 10}},
	})
}

// maintenance keeps reports from being claimed while fn works.
func maintenance(ctx context.Context, pool *pgxpool.Pool, fn func(context.Context) error) error {
	if err := jobs.PauseQueue(ctx, pool, "reports"); err != nil {
		return err
	}
	err := fn(ctx)
	return errors.Join(err, jobs.ResumeQueue(context.WithoutCancel(ctx), pool, "reports"))
}

// halve is for a machine that has become too hot.
func halve(w *worker.Worker) error {
	return w.Resize(max(w.Stats().Slots/2, 11)) // more than what is reserved
}

func replaceWhenStuck(ctx context.Context, pool *pgxpool.Pool, registry *worker.Registry) {
	w, err := worker.New(pool, registry, worker.Config{
		Concurrency: 50,
		StuckAfter:  30 * time.Second, // after its context ended; the default
		MaxStuck:    10,
	})
	if err != nil {
		log.Fatal(err)
	}
	err = w.RunUntilSignal(ctx)
	if errors.Is(err, worker.ErrStuck) {
		log.Fatal(err) // the supervisor starts another process
	}
	if err != nil {
		log.Print(err)
	}
}

func stuckNow(w *worker.Worker) (lines []string) {
	for _, s := range w.Stats().Stuck {
		lines = append(lines, s.Kind+" has ignored its context for "+s.For.String())
	}
	return lines
}

func TestThePagesAboutQueuesAndStuckHandlersWork(t *testing.T) {
	t.Parallel()
	pool := database(t)
	mail, reports := queued("page.mail", "mail"), queued("page.reports", "reports")
	var registry worker.Registry
	handles(mail, nothing)(&registry)
	handles(reports, nothing)(&registry)
	w, err := sharedOut(pool, &registry)
	if err != nil {
		t.Fatal(err)
	}
	if err := halve(w); err != nil || w.Stats().Slots != 25 || len(stuckNow(w)) != 0 {
		t.Errorf("%+v, %v", w.Stats(), err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	if err := maintenance(t.Context(), pool, func(context.Context) error {
		enqueue(t, pool, reports, task{})
		return nil
	}); err != nil {
		t.Error(err)
	}
	enqueueMany(t, pool, mail, numbered(10))
	drained(t, pool, soon)
	stop()
	if err := receive(t, "Run returns", done); err != nil {
		t.Error(err)
	}
	replaceWhenStuck(ctx, pool, &registry) // whose context has ended: it returns at once
}
