// Package trial is what every version of the application in testdata/history is tried with: it enqueues the version's
// samples, works what is stored with the version's handlers, or awaits results, and prints what each of them means to the
// version. All versions are compiled into one program, each as a package of its own; see history_test.go.
package trial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// Version is the application as of one commit.
type Version struct {
	Samples  func(*Jobs)
	Register func(*worker.Registry, *Jobs)
}

// Jobs are the samples of a version, and what its handlers saw.
type Jobs struct {
	samples []sample

	mu   sync.Mutex
	seen []Line
}

// Line is what the program prints of one job.
type Line struct {
	Sample   string `json:"sample,omitempty"`
	ID       int64  `json:"id"`
	Kind     string `json:"kind,omitempty"`
	Existing bool   `json:"existing,omitempty"`
	Payload  any    `json:"payload,omitempty"`
	Result   any    `json:"result,omitempty"` // of a kind that has one
	Error    string `json:"error,omitempty"`
}

type sample struct {
	name    string
	enqueue func(context.Context, jobs.DB) (Line, error)
	await   func(context.Context, jobs.DB, int64) Line
}

// Sample is a job as the version's callers enqueue it. One of the same name in another version is the same work.
func Sample[P, R any](s *Jobs, name string, payload P, enqueue func(context.Context, jobs.DB, P, ...jobs.Option) (jobs.Ref[R], error), ref func(int64) jobs.Ref[R]) {
	s.samples = append(s.samples, sample{name,
		func(ctx context.Context, db jobs.DB) (Line, error) {
			r, err := enqueue(ctx, db, payload)
			return Line{Sample: name, ID: r.ID, Kind: r.Kind, Existing: r.Existing, Payload: meaning(payload)}, err
		},
		func(ctx context.Context, db jobs.DB, id int64) Line {
			result, err := ref(id).Await(ctx, db)
			if err != nil {
				return Line{Sample: name, ID: id, Error: err.Error()}
			}
			return Line{Sample: name, ID: id, Result: meaning(result)}
		},
	})
}

// Result ends a handler.
func Result[P, R any](s *Jobs, job *jobs.Job[P], result R) (R, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, Line{ID: job.ID, Kind: job.Kind, Payload: meaning(job.Payload), Result: meaning(result)})
	return result, nil
}

// Done ends a handler without a result.
func Done[P any](s *Jobs, job *jobs.Job[P]) error {
	_, err := Result[P, any](s, job, nil)
	return err
}

// meaning is the value's JSON, unless the type says that it is taken for something else, by its method Means.
func meaning(v any) any {
	if m, ok := v.(interface{ Means() any }); ok {
		return m.Means()
	}
	return v
}

// Main runs one version: VERSION enqueue, VERSION work QUEUE,…, or VERSION await SAMPLE=ID …
func Main(versions map[string]Version) {
	if err := run(context.Background(), versions[os.Args[1]], os.Args[2], os.Args[3:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, v Version, command string, args []string) error {
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()
	var s Jobs
	v.Samples(&s)
	out := json.NewEncoder(os.Stdout)
	switch command {
	case "enqueue":
		for _, sample := range s.samples {
			line, err := sample.enqueue(ctx, db)
			if err == nil {
				err = out.Encode(line)
			}
			if err != nil {
				return err
			}
		}
	case "work":
		if err := work(ctx, db, v, &s, strings.Split(args[0], ",")); err != nil {
			return err
		}
		for _, line := range s.seen {
			if err := out.Encode(line); err != nil {
				return err
			}
		}
	case "await":
		ids := map[string]int64{}
		for _, arg := range args {
			name, id, _ := strings.Cut(arg, "=")
			var n int64
			if _, err := fmt.Sscan(id, &n); err != nil {
				return err
			}
			ids[name] = n
		}
		for _, name := range slices.Sorted(maps.Keys(ids)) {
			i := slices.IndexFunc(s.samples, func(s sample) bool { return s.name == name })
			if err := out.Encode(s.samples[i].await(ctx, db, ids[name])); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("unknown command %s", command)
	}
	return nil
}

// last is a job that is enqueued after all others of its queue. A claim takes jobs in their order, so once it runs,
// whatever the worker would take has been taken.
var last = &jobs.Spec[struct{}, jobs.None]{Kind: "trial.last"}

func work(ctx context.Context, db *pgxpool.Pool, v Version, s *Jobs, queues []string) error {
	var r worker.Registry
	v.Register(&r, s)
	ran := make(chan struct{}, len(queues))
	spec := *last
	spec.Queue = queues[0]
	worker.HandleNone(&r, &spec, func(context.Context, *jobs.Job[struct{}]) error {
		ran <- struct{}{}
		return nil
	})
	for _, q := range queues {
		if _, err := jobs.Enqueue(ctx, db, &spec, struct{}{}, jobs.Queue(q)); err != nil {
			return err
		}
	}
	w, err := worker.New(db, &r, worker.Config{Queues: queues, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	for range queues {
		select {
		case <-ran:
		case err := <-ended:
			return errors.Join(errors.New("the worker ended before its jobs"), err)
		}
	}
	stop() // it waits for handlers that run
	return <-ended
}
