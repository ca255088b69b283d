package main

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// target is what jobgen is meant to reach: a bound for the median of a ratio, or of a figure of its own.
type target struct {
	says    string // as a heading of those that follow with none
	key     string // of the ratio; empty: bench does not measure it
	asks    string // of what it is a bound, and its unit
	least   float64
	most    float64
	under   bool    // most is not allowed itself
	stretch float64 // further in the same direction; 0: none
	// A run proves it only if it is at least that long.
	length time.Duration
	jobs   int    // and its drains that large; 0: any
	run    string // the command that measures it; empty: the ratio's group
}

const minimumRounds = 5 // of a run whose medians say whether a target is met

var targets = []target{
	{says: "drain, 1 process", key: "drain/river", asks: "of River", least: 4, jobs: 100_000},
	{key: "drain/graphile-worker", asks: "of graphile-worker", least: 2},
	{key: "drain/floor", asks: "of the hand-written loop", least: 0.65, stretch: 0.85},
	{says: "drain with a typed result recorded for each job", key: "drain-results/river", asks: "of River without one", least: 2.5},
	{says: "drain on default settings", key: "drain-defaults/drain", asks: "of our own tuned drain", least: 0.8},
	{says: "CPU per job, client + server", key: "cpu/river", asks: "of River", most: 0.35},
	{says: "WAL per job, enqueue + drain", key: "wal/river", asks: "of River", most: 0.4},
	{says: "single enqueue, 16 connections, workers busy", key: "enqueue16-busy/insert", asks: "of a bare INSERT", least: 0.9},
	{says: "the same, workers idle", key: "enqueue16-idle/insert", asks: "of a bare INSERT", least: 0.7},
	{says: "EnqueueMany, 100k, ids returned", key: "enqueuemany/river", asks: "of River", least: 3, jobs: 100_000},
	{key: "enqueuemany/copy", asks: "of a bare COPY (stretch)", stretch: 0.7},
	{says: "commit → handler start, default settings, median", key: "latency-p50/floor", asks: "of the hand-written LISTEN loop", most: 1.3},
	{key: "latency-p99/floor", asks: "of the same, 99th percentile", most: 2},
	{says: "snapshot held for 10 minutes under load", key: "hold-last/hold-first", asks: "of the first sixth of the time, in the last", least: 0.95, length: 10 * time.Minute},
	{says: "800 jobs/s under three overlapping old snapshots, 15 minutes", key: "spiral-backlog", asks: "jobs waiting at worst", most: 100, under: true, length: 15 * time.Minute},
	{key: "spiral-p99", asks: "ms, p99 of claims in the worst stretch", most: 10, under: true, length: 15 * time.Minute},
	{says: "10M finished, 1M dead, 1M scheduled for next week, of higher priority", key: "claim-full-10m/empty", asks: "of the server CPU of claiming a job from empty tables", least: 0.9, most: 1.1, jobs: 100_000},
	{key: "complete-full-10m/empty", asks: "of that of completing it", least: 0.9, most: 1.1, jobs: 100_000},
	{says: "1, 2, 4, 8 workers", key: "processes-worst/one", asks: "of one, the slowest of them", least: 0.9},
	{says: "idle fleet: 100 workers, empty queues", key: "idle-statements", asks: "statements/s for each", most: 1, under: true},
	{key: "idle-server", asks: "% of a core of the server", most: 1, under: true},
	{says: "memory: 1M-row backlog, 1,000 slots", key: "memory-backlog/small", asks: "of the memory with a small backlog", most: 1.5, jobs: 100_000},
	{says: "generator, 500 packages, 100 kinds", asks: "s, go list included", most: 1, under: true, run: "go test -run '^$' -bench ModuleOf500Packages ./internal/jobgen"},
}

var idleRatios = []ratio{
	{key: "idle-statements", says: "100 idle workers: statements per second of each", metric: statements, ours: []term{{"idle", "jobgen"}}},
	{key: "idle-server", says: "100 idle workers: the server's CPU, % of a core", metric: busy, ours: []term{{"idle", "jobgen"}}},
}

// targetOf is the target that a ratio is held against.
func targetOf(key string) (target, bool) {
	for _, t := range targets {
		if t.key == key && key != "" {
			return t, true
		}
	}
	return target{}, false
}

// targeted tells whether a target is about an entrant's figures.
func targeted(t term) bool {
	for _, r := range ratios {
		if _, ok := targetOf(r.key); ok && slices.Contains(slices.Concat(r.ours, r.other), t) {
			return true
		}
	}
	return false
}

// bound is the target itself, such as "≥ 4".
func (t target) bound() string {
	number := func(v float64) string { return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", v), "0"), ".") }
	switch {
	case t.least > 0 && t.most > 0:
		return number(t.least) + "–" + number(t.most)
	case t.least > 0:
		return "≥ " + number(t.least)
	case t.most > 0 && t.under:
		return "< " + number(t.most)
	case t.most > 0:
		return "≤ " + number(t.most)
	}
	return "≥ " + number(t.stretch)
}

// met tells whether a median reaches the target, in a word.
func (t target) met(s spread) string {
	v := math.Round(s.Median*1000) / 1000 // the third digit is noise
	switch {
	case t.least == 0 && t.most == 0 && v >= t.stretch:
		return "yes"
	case t.least == 0 && t.most == 0:
		return "no"
	case v < t.least, t.most > 0 && v > t.most, t.under && v >= t.most:
		return "NO"
	case t.stretch > 0 && v >= t.stretch:
		return "yes, stretch too"
	case t.stretch > 0:
		return "yes, stretch no"
	}
	return "yes"
}

// short says why a chapter's run is too small to prove the target; empty: it is not.
func (t target) short(c chapter) string {
	switch {
	case t.length > 0 && c.Length < t.length:
		return fmt.Sprintf(", but not for %s", minutes(t.length))
	case c.Jobs < t.jobs:
		return fmt.Sprintf(", but drains of %s", count(float64(c.Jobs)))
	case t.length == 0 && c.Rounds < minimumRounds:
		return fmt.Sprintf(", but %s", counted(c.Rounds))
	}
	return ""
}

func minutes(d time.Duration) string { return strings.TrimSuffix(d.String(), "0s") }

// command measures the target.
func (t target) command() string {
	if t.run != "" {
		return t.run
	}
	group := t.key
	for _, r := range ratios {
		if r.key == t.key {
			group = r.group()
		}
	}
	if t.length > 0 {
		group += " -for " + minutes(t.length)
	}
	return fmt.Sprintf(`make bench ARGS="-only %s"`, group)
}

// targets writes the table of the targets.
func (cs chapters) targets(b *bytes.Buffer) {
	b.WriteString("| | target | measured: median (min–max) | met | run |\n|---|---|---:|---|---|\n")
	for _, t := range targets {
		asks := t.bound() + " " + t.asks
		if t.stretch > 0 && t.least > 0 {
			asks += fmt.Sprintf("; stretch: %.2f", t.stretch)
		}
		c, name, ok := cs.having(t.key)
		if !ok {
			fmt.Fprintf(b, "| %s | %s | not measured | | `%s` |\n", t.says, asks, t.command())
			continue
		}
		s, text := c.Ratios[t.key], ratioText
		fmt.Fprintf(b, "| %s | %s | %s (%s–%s) | %s | [%s](#%s)%s |\n", t.says, asks, text(s.Median), text(s.Min), text(s.Max), t.met(s), name, anchor(titleOf(name)), t.short(c))
	}
}

// having is the chapter with a ratio.
func (cs chapters) having(key string) (c chapter, name string, ok bool) {
	for _, g := range groups {
		if c, ok := cs[g.name]; ok {
			if _, ok := c.Ratios[key]; ok {
				return c, g.name, true
			}
		}
	}
	return chapter{}, "", false
}

func titleOf(group string) string {
	for _, g := range groups {
		if g.name == group {
			return g.title
		}
	}
	return ""
}

// anchor is what GitHub makes of a heading.
func anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		}
	}
	return b.String()
}

// peerRow is one row of the table of what others do, by the names that an entrant has in each contest.
type peerRow struct {
	label, name, batch, defaults string
	note                         string // instead of figures on default settings
}

var peerRows = []peerRow{
	{label: "**jobgen**, default settings", name: "jobgen", batch: "jobgen", note: "these are"},
	{label: "**jobgen**, tuned (drain)", name: "jobgen-tuned"},
	{label: "hand-written SQL, pgx", name: "sql", batch: "copy"},
	{label: "River", name: "river", batch: "river", defaults: "river-defaults"},
	{label: "graphile-worker", name: "graphile-worker", batch: "graphile-worker", defaults: "graphile-worker-defaults"},
	{label: "pg-boss", name: "pg-boss", batch: "pg-boss"},
	{label: "gue", name: "gue", batch: "gue", defaults: "gue-defaults"},
}

// peers writes the table of what others do, all of one chapter.
func (c chapter) peers(b *bytes.Buffer) {
	b.WriteString("| | single enqueue, 1 / 16 connections, jobs/s | batch enqueue, jobs/s | drain, jobs/s | drain, CPU µs/job, client + server | drain, WAL B/job | commit → handler start, ms p50 / p99 | the same on default settings |\n" +
		"|---|---:|---:|---:|---:|---:|---:|---:|\n")
	cell := func(between string, figures ...string) string {
		for _, f := range figures {
			if f == unknown {
				return ""
			}
		}
		return strings.Join(figures, between)
	}
	for _, r := range peerRows {
		median := func(contest, entrant string, m metric) float64 { return c.figure(term{contest, entrant}, m).Median }
		defaults := r.note
		if r.defaults != "" {
			drained := cell("", brief(median("drain", r.defaults, rate)))
			if drained != "" {
				drained = "drain " + drained
			}
			latency := cell(" / ", milliseconds(median("latency", r.defaults, p50)), milliseconds(median("latency", r.defaults, p99)))
			defaults = strings.Trim(latency+"; "+drained, "; ")
		}
		cells := []string{
			r.label,
			cell(" / ", count(median("enqueue1", r.name, rate)), count(median("enqueue16", r.name, rate))),
			cell("", brief(median("enqueuemany", r.batch, rate))),
			cell("", brief(median("drain", r.name, rate))),
			cell(" + ", number(median("drain", r.name, client)), number(median("drain", r.name, server))),
			cell("", count(median("drain", r.name, wal))),
			cell(" / ", milliseconds(median("latency", r.name, p50)), milliseconds(median("latency", r.name, p99))),
			defaults,
		}
		fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
	}
}

func milliseconds(v float64) string {
	if v >= 1000 {
		return count(v)
	}
	return fine(v)
}
