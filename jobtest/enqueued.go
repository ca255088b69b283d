package jobtest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/jobs"
)

// Job is an enqueued job as a test looks at it. A finished job is not there any more: await its Ref instead.
type Job[P any] struct {
	ID      int64
	Payload P
	// Status is queued, running or dead.
	Status      string
	Queue       string
	Key         string // "": none
	Version     int
	Priority    int
	MaxAttempts int
	Attempt     int
	// RunAt and CreatedAt are the database's times: compare them with each other, not with time.Now().
	RunAt, CreatedAt time.Time
	Headers          map[string]string
	LastError        string
	Deadline         *time.Time // the database's time; nil: none
	Snoozes          int        // how often its handler has put it off
}

// Enqueued gives the jobs of a kind, oldest first, with their payloads as P. Passed a transaction, it sees what that has
// enqueued and not yet committed. A payload that does not decode fails the test.
func Enqueued[P any](t testing.TB, db jobs.DB, kind string) []Job[P] {
	t.Helper()
	rows, err := postgres.JobsOfKind(context.WithoutCancel(t.Context()), db, kind)
	if err != nil {
		t.Fatalf("jobtest: reading the jobs of kind %s: %v", kind, err)
	}
	out := make([]Job[P], len(rows))
	for i, r := range rows {
		out[i] = Job[P]{
			ID: r.ID, Status: r.Status, Queue: r.Queue, Key: r.Key, Version: r.Version, Priority: r.Priority,
			MaxAttempts: r.MaxAttempts, Attempt: r.Attempt, RunAt: r.RunAt, CreatedAt: r.CreatedAt, Headers: r.Headers, LastError: r.LastError,
			Deadline: r.Deadline, Snoozes: r.Snoozes,
		}
		if err := json.Unmarshal(r.Payload, &out[i].Payload); err != nil {
			t.Fatalf("jobtest: payload of %s job %d does not decode into %T: %v\n\t%s", kind, r.ID, out[i].Payload, err, r.Payload)
		}
	}
	return out
}

// EnqueuedOne is Enqueued for a test that expects exactly one job of the kind, and fails otherwise with what is there.
func EnqueuedOne[P any](t testing.TB, db jobs.DB, kind string) Job[P] {
	t.Helper()
	found := Enqueued[P](t, db, kind)
	if len(found) != 1 {
		t.Fatalf("jobtest: expected one job of kind %s, found %s", kind, describe(t, db, kind))
	}
	return found[0]
}

// describe says what is there instead.
func describe(t testing.TB, db jobs.DB, kind string) string {
	ctx := context.WithoutCancel(t.Context())
	rows, err := postgres.JobsOfKind(ctx, db, kind)
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d", len(rows))
	for i, r := range rows {
		if i == 10 {
			fmt.Fprintf(&b, "\n\t… and %d more", len(rows)-i)
			break
		}
		fmt.Fprintf(&b, "\n\t%s", line(r))
	}
	if len(rows) > 0 {
		return b.String()
	}
	counts, err := postgres.CountByKind(ctx, db)
	switch {
	case err != nil:
		return err.Error()
	case len(counts) == 0:
		return "no jobs at all: were they enqueued on another database, in a transaction that is not committed (pass that one) or was rolled back, or has a worker finished them?"
	}
	b.WriteString("; there are jobs of other kinds:")
	for _, c := range counts {
		fmt.Fprintf(&b, "\n\t%d × %s", c.N, c.Kind)
	}
	return b.String()
}

func line(r engine.Job) string {
	s := fmt.Sprintf("job %d %s in queue %s", r.ID, r.Status, r.Queue)
	if r.Key != "" {
		s += fmt.Sprintf(", key %q", r.Key)
	}
	const shown = 200
	payload := string(r.Payload)
	if len(payload) > shown {
		payload = strings.ToValidUTF8(payload[:shown], "") + "…"
	}
	return s + ": " + payload
}
