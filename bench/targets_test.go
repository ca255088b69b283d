package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTargetsNameRatios(t *testing.T) {
	keys := map[string]bool{}
	for _, r := range ratios {
		keys[r.key] = true
	}
	for _, one := range targets {
		switch {
		case one.key == "" && one.run == "":
			t.Errorf("%s: neither a ratio nor a command that measures it", one.says)
		case one.key != "" && !keys[one.key]:
			t.Errorf("%s: there is no ratio %q", one.says, one.key)
		case one.least == 0 && one.most == 0 && one.stretch == 0:
			t.Errorf("%s, %s: no bound", one.says, one.key)
		}
	}
}

func TestTargetsAreMetOrNot(t *testing.T) {
	for _, c := range []struct {
		target target
		median float64
		bound  string
		met    string
	}{
		{target{least: 4}, 4, "≥ 4", "yes"},
		{target{least: 4}, 3.99, "≥ 4", "NO"},
		{target{least: 0.65, stretch: 0.85}, 0.7, "≥ 0.65", "yes, stretch no"},
		{target{least: 0.65, stretch: 0.85}, 0.85, "≥ 0.65", "yes, stretch too"},
		{target{most: 0.35}, 0.35, "≤ 0.35", "yes"},
		{target{most: 0.35}, 0.36, "≤ 0.35", "NO"},
		{target{most: 100, under: true}, 100, "< 100", "NO"},
		{target{most: 100, under: true}, 0, "< 100", "yes"},
		{target{least: 0.9, most: 1.1}, 1.2, "0.9–1.1", "NO"},
		{target{least: 0.9, most: 1.1}, 0.8, "0.9–1.1", "NO"},
		{target{least: 0.9, most: 1.1}, 1, "0.9–1.1", "yes"},
		{target{stretch: 0.7}, 0.6, "≥ 0.7", "no"},
		{target{stretch: 0.7}, 0.7, "≥ 0.7", "yes"},
	} {
		if got := c.target.bound(); got != c.bound {
			t.Errorf("%+v: bound %q, want %q", c.target, got, c.bound)
		}
		if got := c.target.met(spread{Median: c.median}); got != c.met {
			t.Errorf("%s with %v: %q, want %q", c.bound, c.median, got, c.met)
		}
	}
}

// A target is computed from the chapter that has its ratio, says which that is, and what is missing of a run that proves it.
func TestTargetsAreComputedFromTheRatios(t *testing.T) {
	of := func(key string, median float64, rounds int, length time.Duration) chapter {
		return chapter{Rounds: rounds, Jobs: 100_000, Length: length, Ratios: map[string]spread{key: {median, median - 1, median + 1}}}
	}
	for _, c := range []struct {
		name     string
		chapters chapters
		row      string
	}{
		{"met", chapters{"peers": of("drain/river", 4.5, 5, 0)}, "| drain, 1 process | ≥ 4 of River | 4.50 (3.50–5.50) | yes | [peers](#others) |"},
		{"missed", chapters{"peers": of("drain/river", 3.5, 5, 0)}, "| drain, 1 process | ≥ 4 of River | 3.50 (2.50–4.50) | NO | [peers](#others) |"},
		{"too few rounds", chapters{"peers": of("drain/river", 4.5, 1, 0)}, "| yes | [peers](#others), but 1 round |"},
		{"too short", chapters{"hold": of("hold-last/hold-first", 0.96, 5, time.Minute)}, "| yes | [hold](#a-held-snapshot), but not for 10m |"},
		{"long enough", chapters{"hold": of("hold-last/hold-first", 0.96, 1, 10*time.Minute)}, "| yes | [hold](#a-held-snapshot) |"},
		{"too few jobs", chapters{"peers": {Rounds: 5, Jobs: 20_000, Ratios: map[string]spread{"drain/river": {4.5, 4, 5}}}}, "| yes | [peers](#others), but drains of 20,000 |"},
		{"not run", chapters{}, "| drain, 1 process | ≥ 4 of River | not measured | | `make bench ARGS=\"-only peers\"` |"},
		{"not run, by time", chapters{}, "| not measured | | `make bench ARGS=\"-only hold -for 10m\"` |"},
	} {
		var b bytes.Buffer
		c.chapters.targets(&b)
		if !strings.Contains(b.String(), c.row) {
			t.Errorf("%s: there is no\n%s\nin\n%s", c.name, c.row, b.String())
		}
	}
}

func TestPeersAreRowsOfOneTable(t *testing.T) {
	figures := func(rate float64) map[string]spread {
		s := func(v float64) spread { return spread{v, v, v} }
		return map[string]spread{"jobs_per_s": s(rate), "client_cpu_us_per_job": s(5), "server_cpu_us_per_job": s(11), "wal_bytes_per_job": s(697), "latency_p50_ms": s(0.67), "latency_p99_ms": s(1200)}
	}
	c := chapter{Figures: map[string]map[string]map[string]spread{}}
	for _, contest := range []string{"drain", "enqueue1", "enqueue16", "enqueuemany", "latency"} {
		c.Figures[contest] = map[string]map[string]spread{"jobgen": figures(82_330), "river": figures(999), "river-defaults": figures(1000)}
	}
	var b bytes.Buffer
	c.peers(&b)
	for _, row := range []string{
		"| **jobgen**, default settings | 82,330 / 82,330 | 82.3k | 82.3k | 5.0 + 11.0 | 697 | 0.67 / 1,200 | these are |",
		"| River | 999 / 999 | 999 | 999 | 5.0 + 11.0 | 697 | 0.67 / 1,200 | 0.67 / 1,200; drain 1.0k |",
		"| gue |  |  |  |  |  |  |  |", // did not take part
	} {
		if !strings.Contains(b.String(), row) {
			t.Errorf("there is no\n%s\nin\n%s", row, b.String())
		}
	}
	// Every name in the table is that of an entrant.
	for _, r := range peerRows {
		for contest, entrant := range map[string]string{"drain": r.name, "enqueuemany": r.batch, "latency": r.defaults} {
			if _, _, ok := find(contest, entrant); entrant != "" && !ok {
				t.Errorf("%s: there is no %s in %s", r.label, entrant, contest)
			}
		}
	}
}

// The README's figures are those of results.json, and of no other run.
func TestReadmeHasTheFiguresOfResults(t *testing.T) {
	b, err := os.ReadFile("results.json")
	if err != nil {
		t.Fatal(err)
	}
	var kept record
	if err := json.Unmarshal(b, &kept); err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := readmeBegin + kept.Chapters.readme() + readmeEnd; !strings.Contains(string(readme), want) {
		t.Errorf("run make bench ARGS=-rewrite: the README does not have\n%s", want)
	}
}

func TestReadmeIsWrittenBetweenItsMarks(t *testing.T) {
	cs := chapters{"peers": {Rounds: 5, Jobs: 100_000, environment: environment{Date: "2026-11-30", Commit: "abc"}, Ratios: map[string]spread{
		"drain/river": {4.5, 4, 5}, "cpu/river": {0.3, 0.2, 0.4}, "latency-p50/floor": {1.25, 1, 2}, "enqueue16/insert": {0.9, 0.8, 1},
	}}}
	root := t.TempDir()
	folder, file := filepath.Join(root, "bench"), filepath.Join(root, "README.md")
	if err := cs.writeReadme(folder); err != nil {
		t.Errorf("without a README: %v", err)
	}
	for before, after := range map[string]string{
		"no marks\n": "no marks\n",
		"a\n" + readmeBegin + "old\n" + readmeEnd + "b\n": "a\n" + readmeBegin +
			"jobgen on default settings, as a multiple of others tuned; ratios of one run (2026-11-30, commit abc, drains of 100,000 jobs, 5 rounds; medians):\n\n" +
			"| jobgen over | drain, jobs/s | CPU per job (less is better) | single enqueue, 16 connections, jobs/s | commit → handler start, median (less is better) |\n|---|---:|---:|---:|---:|\n" +
			"| River | 4.50× | 0.30× |  |  |\n| hand-written SQL, no promises |  |  | 0.90× | 1.25× |\n\n" + readmeEnd + "b\n",
	} {
		if err := os.WriteFile(file, []byte(before), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := cs.writeReadme(folder); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(file); string(got) != after {
			t.Errorf("got\n%s\nwant\n%s", got, after)
		}
	}
}

func TestAnchorsAreThoseOfGitHub(t *testing.T) {
	if got := anchor("What a job's CPU time is made of"); got != "what-a-jobs-cpu-time-is-made-of" {
		t.Error(got)
	}
}
