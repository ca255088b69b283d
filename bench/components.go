package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/pprof/profile"
	"github.com/jackc/pgx/v5"
)

// Where the CPU time of a job goes. The server's comes from the server: with log_statement_stats it says for each message
// what its handling took of user and system time (pg_stat_statements knows elapsed time only, which on two cores that
// three processes share is mostly waiting for a core). The client's comes from a CPU profile, by what stands on the
// stack, scaled to what the process used. Both cost something, so the contest is one of its own, and the figures that are
// compared come from others.

// part is a component of a job's cost.
type part struct {
	key, label string
	of         string // a part of this one; empty: of the whole
}

const (
	partClient, partServer             = "client", "server"
	partClaim, partComplete, partOther = "claim", "complete", "other"
	partCommit, partBackground         = "commit", "background"
)

var parts = []part{
	{key: partClient, label: "client"},
	{key: "network", label: "client: sockets", of: partClient},
	{key: "driver", label: "client: driver", of: partClient},
	{key: "json", label: "client: JSON", of: partClient},
	{key: "queue", label: "client: the queue", of: partClient},
	{key: "handlers", label: "client: handlers", of: partClient},
	{key: "memory", label: "client: memory, GC", of: partClient},
	{key: "runtime", label: "client: scheduler", of: partClient},
	{key: partServer, label: "server"},
	{key: partClaim, label: "server: claim", of: partServer},
	{key: partComplete, label: "server: complete", of: partServer},
	{key: partOther, label: "server: other SQL", of: partServer},
	{key: partCommit, label: "server: commit, rest", of: partServer},
	{key: partBackground, label: "server: background", of: partServer},
}

func (p part) metric() metric {
	key := p.key
	if p.of != "" {
		key = p.of + "_" + key
	}
	return metric{"component_" + key + "_us_per_job", p.label, false, func(s sample) float64 {
		v, ok := s.parts[p.key]
		if _, told := s.parts[partClient]; !ok || !told {
			return math.NaN()
		}
		return v * 1e6 / float64(s.jobs)
	}}
}

func partOf(key string) part {
	for _, p := range parts {
		if p.key == key {
			return p
		}
	}
	panic("no part " + key)
}

func partMetrics() (ms []metric) {
	for _, p := range parts {
		ms = append(ms, p.metric())
	}
	return ms
}

var costs = contest{
	name: "cost", group: "cost", title: "CPU µs per job of a drain of %s, by component", jobs: all, metrics: partMetrics(), across: true,
	note: "A round of its own, whose logging and profiling cost something; what is compared elsewhere is measured without. Server: what it says " +
		"of each message with log_statement_stats, user and system time. Commit, rest: what its sessions used beside that: commits, the protocol, their start. " +
		"Background: checkpointer, writers, autovacuum. Client: a CPU profile by what stands on the stack, scaled to what the process used; " +
		"of programs that are not in Go only the sum is known.",
	entrants: []entrant{
		costOf(drainJobgen, "jobgen"), costOf(drainJobgenResults, "results"), costOf(drainSQL, "SQL"), costOf(drainRiver, "River"),
		costOf(graphile("drain", "as in the drain", 0), "graphile"), costOf(pgBoss("drain", "as in the drain", 0), "pg-boss"), costOf(drainGue(false, 10), "gue"),
	},
}

// costOf is an entrant of the drain, with a label that is short enough to head a column.
func costOf(e entrant, label string) entrant {
	e.label, e.components = label, true
	return e
}

// distance says what jobgen takes more than the hand-written loop, by component, the largest first.
func (c chapter) distance() string {
	more := func(p part) float64 {
		return c.figure(term{costs.name, "jobgen"}, p.metric()).Median - c.figure(term{costs.name, "sql"}, p.metric()).Median
	}
	type item struct {
		label string
		more  float64
	}
	var items []item
	sum := 0.0
	for _, p := range parts {
		d := more(p)
		switch {
		case math.IsNaN(d):
		case p.of == "":
			sum += d
		case math.Abs(d) >= 0.05: // else it is written 0.0
			items = append(items, item{p.label, d})
		}
	}
	if len(items) == 0 {
		return ""
	}
	slices.SortStableFunc(items, func(a, b item) int { return cmp.Compare(b.more, a.more) })
	texts := make([]string, len(items))
	for i, one := range items {
		texts[i] = fmt.Sprintf("%s %+.1f", one.label, one.more)
	}
	return fmt.Sprintf("From the hand-written loop to jobgen: %+.1f µs per job: %s.", sum, strings.Join(texts, ", "))
}

// statementCPU listens to a server's log for what statements took.
type statementCPU struct {
	mu        sync.Mutex
	line      []byte
	seconds   float64 // of the message that is being told
	statement strings.Builder
	inside    bool // a statement, which can have more lines
	sum       map[string]float64
	mark      string
	told      chan struct{}
}

// Write takes the log as it comes.
func (s *statementCPU) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line = append(s.line, p...)
	for {
		line, rest, ok := bytes.Cut(s.line, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		s.read(string(line))
		s.line = append(s.line[:0], rest...)
	}
}

func (s *statementCPU) read(line string) {
	if s.inside && strings.HasPrefix(line, "\t") {
		s.statement.WriteString(line)
		return
	}
	if s.inside {
		if s.sum == nil {
			s.sum = map[string]float64{}
		}
		s.sum[step(s.statement.String())] += s.seconds
		s.statement.Reset()
		s.inside, s.seconds = false, 0
	}
	// "!	0.000648 s user, 0.000324 s system, 0.000972 s elapsed" is of one message. The session's total is in brackets.
	if rest, ok := strings.CutPrefix(line, "\t!\t"); ok && strings.HasSuffix(rest, "s elapsed") {
		var user, system float64
		if _, err := fmt.Sscanf(rest, "%f s user, %f s system", &user, &system); err == nil {
			s.seconds = user + system
		}
		return
	}
	if _, statement, ok := strings.Cut(line, "STATEMENT:  "); ok {
		s.inside = true
		s.statement.WriteString(statement)
		return
	}
	if s.told != nil && strings.HasSuffix(line, s.mark) {
		close(s.told)
		s.told = nil
	}
}

// take gives what has been told up to now, in seconds by step.
func (s *statementCPU) take(ctx context.Context, conn *pgx.Conn) (map[string]float64, error) {
	told := make(chan struct{})
	s.mu.Lock()
	s.told, s.mark = told, fmt.Sprintf("bench mark %d", time.Now().UnixNano())
	mark := s.mark
	s.mu.Unlock()
	// The log comes through a pipe: once this line has arrived, so have those before it.
	if _, err := conn.Exec(ctx, "DO $$ BEGIN RAISE LOG '"+mark+"'; END $$"); err != nil {
		return nil, err
	}
	patience := time.NewTimer(10 * time.Second)
	defer patience.Stop()
	select {
	case <-told:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-patience.C:
		return nil, nil // a server whose log is not read here
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := s.sum
	s.sum, s.seconds = nil, 0
	return sum, nil
}

// steps are how the statements that claim and complete begin, each queue's own; jobgen's and River's bear the names that
// sqlc gave them.
var steps = []struct{ begin, part string }{
	{"-- name: Claim", partClaim}, {"-- name: Complete", partComplete},
	{"UPDATE jobgen.jobs", partClaim}, {"DELETE FROM jobgen.jobs", partComplete}, // the hand-written loop
	{"-- name: JobGetAvailable", partClaim}, {"-- name: JobSetState", partComplete},
	{"with j_raw", partClaim}, {`delete from "graphile_worker"._private_jobs`, partComplete},
	{"WITH next AS", partClaim}, {"WITH results AS ( UPDATE pgboss.", partComplete},
	{"SELECT job_id, queue", partClaim}, {"DELETE FROM gue_jobs", partComplete},
}

func step(statement string) string {
	statement = strings.Join(strings.Fields(statement), " ")
	for _, s := range steps {
		if strings.HasPrefix(statement, s.begin) {
			return s.part
		}
	}
	return partOther
}

// profileRate is how often a second of CPU time the client is looked at: as often as Linux does it. A drain takes less than
// a second of it, so at the usual 100 a component would be a matter of ten samples.
const profileRate = 500

// clientParts divides what a Go process used by its CPU profile.
func clientParts(file string, used float64) (map[string]float64, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := profile.Parse(f)
	if err != nil {
		return nil, fmt.Errorf("CPU profile: %w", err)
	}
	sum, total := map[string]float64{}, 0.0
	for _, s := range p.Sample {
		v := float64(s.Value[len(s.Value)-1])
		sum[frame(functions(s))] += v
		total += v
	}
	if total == 0 {
		return nil, nil // too short
	}
	for _, one := range parts {
		if one.of == partClient {
			sum[one.key] *= used / total
		}
	}
	return sum, nil
}

// functions of a stack, the innermost first.
func functions(s *profile.Sample) (names []string) {
	for _, l := range s.Location {
		for _, line := range l.Line {
			names = append(names, line.Function.Name)
		}
	}
	return names
}

// frame decides to what part a stack belongs: to that of the innermost function that says so.
func frame(stack []string) string {
	for _, f := range stack {
		for _, rule := range []struct{ prefix, part string }{
			{"runtime.mallocgc", "memory"}, {"runtime.gc", "memory"}, {"runtime.bgsweep", "memory"}, {"runtime.bgscavenge", "memory"},
			{"runtime.wbBuf", "memory"}, {"runtime.(*mheap)", "memory"}, {"runtime.growslice", "memory"},
			{"internal/poll.", "network"}, {"net.(*conn)", "network"},
			{"encoding/json", "json"},
			{"github.com/jackc/", "driver"},
			{"main.(*roll)", "handlers"}, {"main.openWorker.", "handlers"}, {"main.variant.", "handlers"}, {"main.(*riverWorker)", "handlers"},
			{"github.com/jobgen-go/", "queue"}, {"github.com/riverqueue/", "queue"}, {"github.com/vgarvardt/", "queue"}, {"main.", "queue"},
		} {
			if strings.HasPrefix(f, rule.prefix) {
				return rule.part
			}
		}
	}
	return "runtime"
}

// dissect is a race whose CPU time is told by component.
func (b *bench) dissect(ctx context.Context, t task, command []string) (one sample, err error) {
	config, err := pgx.ParseConfig(t.URL)
	if err != nil {
		return one, err
	}
	if _, err := b.meter.conn.Exec(ctx, "ALTER DATABASE "+pgx.Identifier{config.Database}.Sanitize()+" SET log_statement_stats = on"); err != nil {
		return one, err
	}
	if t.Profile == "" && command == nil {
		folder, err := os.MkdirTemp("", "jobgen-bench-")
		if err != nil {
			return one, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
		t.Profile, t.Rate = filepath.Join(folder, "cpu.pprof"), profileRate
	}
	if _, err := b.told.take(ctx, b.meter.conn); err != nil {
		return one, err
	}
	if one, err = b.race(ctx, t, command); err != nil {
		return one, err
	}
	statements, err := b.told.take(ctx, b.meter.conn)
	if err != nil {
		return one, err
	}
	one.parts[partClient], one.parts[partServer] = one.client, one.server
	if len(statements) > 0 {
		rest := one.server - one.parts[partBackground]
		for step, seconds := range statements {
			one.parts[step] = seconds
			rest -= seconds
		}
		one.parts[partCommit] = max(rest, 0)
	}
	if command == nil {
		of, err := clientParts(t.Profile, one.client)
		if err != nil {
			return one, err
		}
		maps.Copy(one.parts, of)
	}
	return one, nil
}
