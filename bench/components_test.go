package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// The log of a server with log_statement_stats, in pieces as they may come.
func TestStatementCPUIsReadFromTheLog(t *testing.T) {
	message := func(statement string) string {
		return "2026-11-30 15:47:52.066 UTC [9985] LOG:  EXECUTE MESSAGE STATISTICS\n" +
			"2026-11-30 15:47:52.066 UTC [9985] DETAIL:  ! system usage stats:\n" +
			"\t!\t0.000400 s user, 0.000200 s system, 0.009000 s elapsed\n" +
			"\t!\t[1.013219 s user, 2.006609 s system total]\n" +
			"\t!\t20404 kB max resident size\n" +
			"2026-11-30 15:47:52.066 UTC [9985] STATEMENT:  " + statement + "\n"
	}
	log := message("-- name: Claim :many\n\tWITH me AS MATERIALIZED (\n\t  SELECT 1)") + message("-- name: Complete :many\n\tDELETE FROM jobgen.jobs") +
		message("-- name: Complete :many\n\tDELETE FROM jobgen.jobs") + message("-- name: Heartbeat :one") +
		message("\n\tUPDATE jobgen.jobs\n\tSET status = 'running'") + "2026-11-30 15:47:52.066 UTC [9985] LOG:  the end\n"
	for _, size := range []int{1, 7, len(log)} {
		var s statementCPU
		for piece := range slices.Chunk([]byte(log), size) {
			if _, err := s.Write(piece); err != nil {
				t.Fatal(err)
			}
		}
		for step, want := range map[string]float64{partClaim: 0.0012, partComplete: 0.0012, partOther: 0.0006} {
			if math.Abs(s.sum[step]-want) > 1e-9 {
				t.Errorf("in pieces of %d: %s took %v, want %v", size, step, s.sum[step], want)
			}
		}
	}
}

func TestStacksBelongToTheirInnermostPart(t *testing.T) {
	for want, stack := range map[string][]string{
		"memory":   {"runtime.nextFreeFast", "runtime.mallocgc", "encoding/json.Unmarshal", "github.com/jobgen-go/jobgen/worker.(*Worker).work"},
		"json":     {"reflect.Value.Set", "encoding/json.(*decodeState).object", "github.com/jobgen-go/jobgen/worker.(*Worker).work"},
		"driver":   {"runtime.memmove", "github.com/jackc/pgx/v5.(*baseRows).Scan", "github.com/jobgen-go/jobgen/gen/postgres.(*Queries).Claim"},
		"network":  {"internal/runtime/syscall.Syscall6", "syscall.write", "internal/poll.(*FD).Write", "net.(*conn).Write", "github.com/jackc/pgx/v5/pgconn.(*PgConn).flush"},
		"queue":    {"runtime.mapassign", "github.com/jobgen-go/jobgen/worker.(*ledger).add"},
		"handlers": {"sync/atomic.(*Int64).Add", "main.(*roll).call", "main.openWorker.func1", "github.com/jobgen-go/jobgen/worker.(*Worker).work"},
		"runtime":  {"runtime.futex", "runtime.findRunnable", "runtime.schedule", "runtime.mcall"},
	} {
		if got := frame(stack); got != want {
			t.Errorf("%v belongs to %s, want %s", stack, got, want)
		}
	}
}

func TestDistanceNamesTheLargestComponentFirst(t *testing.T) {
	figures := func(client, queue, server, claim float64) map[string]spread {
		f := map[string]spread{}
		for key, v := range map[string]float64{partClient: client, "queue": queue, partServer: server, partClaim: claim} {
			f[partOf(key).metric().key] = spread{v, v, v}
		}
		return f
	}
	c := chapter{Figures: map[string]map[string]map[string]spread{"cost": {"jobgen": figures(5, 3, 12, 8), "sql": figures(1, 0.5, 11, 9)}}}
	if got, want := c.distance(), "From the hand-written loop to jobgen: +5.0 µs per job: client: the queue +2.5, server: claim -1.0."; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if got := (chapter{}).distance(); got != "" {
		t.Errorf("of nothing: %s", got)
	}
}

// The parts of the two sides are those of a real run, and make up the whole of each.
func TestComponentsAddUp(t *testing.T) {
	folder := t.TempDir()
	_, printed := measured(t, "-jobs", "5000", "-rounds", "1", "-only", "cost", "-out", folder)
	b, err := os.ReadFile(filepath.Join(folder, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got record
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	c := got.Chapters["cost"]
	for _, e := range []string{"jobgen", "jobgen-results", "sql", "river", "gue"} {
		figure := func(key string) float64 { return c.figure(term{"cost", e}, partOf(key).metric()).Median }
		for _, key := range []string{partClaim, partComplete} {
			if v := figure(key); !(v > 0) {
				t.Errorf("%s: %s took %v; is it among the steps?", e, key, v)
			}
		}
		sum := 0.0
		for _, p := range parts {
			if p.of == partClient {
				sum += figure(p.key)
			}
		}
		if whole := figure(partClient); !(math.Abs(sum-whole) < whole/100) && !math.IsNaN(sum) {
			t.Errorf("%s: the client's parts are %v, the whole is %v", e, sum, whole)
		}
	}
	for line := range strings.Lines(printed) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, words := range []string{"client: sockets", "server: complete"} {
		if !strings.Contains(printed, words) {
			t.Errorf("not told: %s", words)
		}
	}
}
