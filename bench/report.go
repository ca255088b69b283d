package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// results are a run, ready to be told.
type results struct {
	environment
	Jobs    int
	Rounds  int
	samples samples
}

// about are the lines that go before any figure.
func (r *results) about() []string {
	var v []string
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		v = append(v, name+" "+r.Versions[name])
	}
	var set []string
	for _, name := range told {
		set = append(set, name+"="+r.Settings[name])
	}
	return []string{
		fmt.Sprintf("%s, %s", r.Server, strings.Join(v, ", ")),
		strings.Join(set, " "),
		r.Machine,
		fmt.Sprintf("drains of %s jobs, %d rounds", count(float64(r.Jobs)), r.Rounds),
	}
}

// ran are the contests with figures.
func (r *results) ran() (cs []contest) {
	for _, c := range contests {
		if len(r.samples[term{c.name, c.entrants[0].name}]) > 0 {
			cs = append(cs, c)
		}
	}
	return cs
}

func (r *results) title(c contest) string {
	return fmt.Sprintf(c.title, count(float64(c.jobs(r.Jobs))))
}

// print tells it to a terminal.
func (r *results) print(out io.Writer, short bool) {
	if short {
		for _, one := range ratios {
			if s := r.samples.ratio(one); s.known() {
				fmt.Fprintf(out, "%-22s %s\n", one.key, ratioText(s.Median))
			}
		}
		fmt.Fprintln(out, wrap(r.Others, width))
		return
	}
	for _, c := range r.ran() {
		fmt.Fprintf(out, "%s\n", r.title(c))
		fmt.Fprintf(out, "%-21s %9s %15s %7s %7s %6s %4s %4s\n", "", "jobs/s", "min–max", "client", "server", "WAL", "dead", "MB")
		for _, e := range c.entrants {
			t := term{c.name, e.name}
			f := func(m metric) float64 { return r.samples.spread(t, m).Median }
			s := r.samples.spread(t, rate)
			fmt.Fprintf(out, "%-21s %9s %15s %7s %7s %6s %4s %4s\n", cut(e.label, 21), count(s.Median),
				brief(s.Min)+"–"+brief(s.Max), number(f(client)), number(f(server)), count(f(wal)), number(f(dead)), count(f(memory)))
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintln(out, wrap("client, server: CPU µs per job; WAL: bytes per job; dead: row versions per job; MB: memory of the client process. Medians.", width))
	fmt.Fprintln(out)
	fmt.Fprintf(out, "%-22s %7s  %-15s %s\n", "ratio", "median", "min–max", "better")
	for _, one := range ratios {
		if s := r.samples.ratio(one); s.known() {
			fmt.Fprintf(out, "%-22s %7s  %-15s %s\n", one.key, ratioText(s.Median), ratioText(s.Min)+"–"+ratioText(s.Max), direction(one.metric))
		}
	}
	fmt.Fprintln(out)
	for _, line := range r.behind() {
		fmt.Fprintln(out, wrap(line, width))
	}
	fmt.Fprintln(out, wrap(r.Others, width))
}

// behind says where another is better than jobgen on default settings, by how much, and where nothing is.
func (r *results) behind() (lines []string) {
	for _, c := range r.ran() {
		ours := term{c.name, c.entrants[0].name}
		var found []string
		for _, e := range c.entrants {
			t := term{c.name, e.name}
			if e.name == ours.entrant || strings.HasPrefix(e.name, "jobgen-") {
				continue
			}
			var in []string
			for _, m := range []metric{rate, client, server, wal, commits, dead, memory} {
				us, them := r.samples.spread(ours, m).Median, r.samples.spread(t, m).Median
				if m.higher {
					us, them = them, us
				}
				// Less than a twentieth apart is no difference.
				if them < us/1.05 && !math.IsNaN(us) {
					in = append(in, fmt.Sprintf("%s (%s)", m.label, factor(us/them)))
				}
			}
			if len(in) > 0 {
				found = append(found, e.label+": "+strings.Join(in, ", "))
			}
		}
		if len(found) == 0 {
			found = []string{"nobody"}
		}
		lines = append(lines, fmt.Sprintf("Better than jobgen in %s: %s.", c.name, strings.Join(found, "; ")))
	}
	return lines
}

func factor(f float64) string {
	if math.IsInf(f, 0) || f >= 100 {
		return "by far"
	}
	return ratioText(f) + "×"
}

func direction(m metric) string {
	if m.higher {
		return "higher"
	}
	return "lower"
}

// write leaves RESULTS.md for people and results.json for programs.
func (r *results) write(folder string) error {
	if err := os.WriteFile(filepath.Join(folder, "RESULTS.md"), r.markdown(), 0o644); err != nil {
		return err
	}
	b, err := r.json()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "results.json"), b, 0o644)
}

func (r *results) markdown() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Results\n\nWritten by `make bench` on %s; do not edit. Absolute figures move by a factor of two with the machine; only\n"+
		"the ratios count. Each is taken within a round, between entrants that ran one after the other, and is the median over\n"+
		"%d rounds, with the smallest and the largest beside it.\n\n", r.Date, r.Rounds)
	for _, line := range r.about() {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	fmt.Fprintf(&b, "- %s\n", r.Others)
	b.WriteString("- each entrant in each round: a process and a database of its own, a CHECKPOINT before it, and a check after it that each job ran once and nothing was left\n")
	b.WriteString("\n## Ratios\n\n| ratio | median | min–max | better | |\n|---|---:|---:|---|---|\n")
	for _, one := range ratios {
		if s := r.samples.ratio(one); s.known() {
			fmt.Fprintf(&b, "| `%s` | %s | %s–%s | %s | %s |\n", one.key, ratioText(s.Median), ratioText(s.Min), ratioText(s.Max), direction(one.metric), one.says)
		}
	}
	b.WriteString("\n## Where others are better\n\nThan jobgen on default settings, by more than a twentieth, and by which factor:\n\n")
	for _, line := range r.behind() {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	for _, c := range r.ran() {
		fmt.Fprintf(&b, "\n## %s\n\n", r.title(c))
		if c.note != "" {
			fmt.Fprintf(&b, "%s\n\n", c.note)
		}
		b.WriteString("| |")
		for _, m := range metrics {
			fmt.Fprintf(&b, " %s |", m.label)
		}
		b.WriteString("\n|---|" + strings.Repeat("---:|", len(metrics)) + "\n")
		for _, e := range c.entrants {
			fmt.Fprintf(&b, "| %s |", e.label)
			for _, m := range metrics {
				s := r.samples.spread(term{c.name, e.name}, m)
				fmt.Fprintf(&b, " %s", number(s.Median))
				if m.key == rate.key {
					fmt.Fprintf(&b, " (%s–%s)", brief(s.Min), brief(s.Max))
				}
				b.WriteString(" |")
			}
			b.WriteString("\n")
		}
		b.WriteString("\n")
		for _, e := range c.entrants {
			fmt.Fprintf(&b, "- %s: %s.\n", e.label, e.note)
		}
	}
	b.WriteString("\nWAL includes the full-page images that follow the CHECKPOINT. Dead rows are row versions left to vacuum: updated or\n" +
		"deleted. Server CPU is that of all the server's processes, autovacuum included.\n")
	return b.Bytes()
}

func (r *results) json() ([]byte, error) {
	type entry map[string]spread
	figures := map[string]map[string]entry{}
	for _, c := range r.ran() {
		figures[c.name] = map[string]entry{}
		for _, e := range c.entrants {
			in := entry{}
			for _, m := range metrics {
				if s := r.samples.spread(term{c.name, e.name}, m); s.known() {
					in[m.key] = s.rounded()
				}
			}
			figures[c.name][e.name] = in
		}
	}
	rs := map[string]spread{}
	for _, one := range ratios {
		if s := r.samples.ratio(one); s.known() {
			rs[one.key] = s.rounded()
		}
	}
	b, err := json.MarshalIndent(struct {
		environment
		Jobs    int                         `json:"jobs"`
		Rounds  int                         `json:"rounds"`
		Ratios  map[string]spread           `json:"ratios"`
		Figures map[string]map[string]entry `json:"figures"`
	}{r.environment, r.Jobs, r.Rounds, rs, figures}, "", "  ")
	return append(b, '\n'), err
}

// rounded to four digits: the others are noise, and would be in every diff.
func (s spread) rounded() spread {
	f := func(v float64) float64 { v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64); return v }
	return spread{f(s.Median), f(s.Min), f(s.Max)}
}

const unknown = "n/a"

// count writes a whole number with separators.
func count(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return unknown
	}
	s := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// number writes small numbers with a decimal.
func number(v float64) string {
	if math.IsNaN(v) || math.Abs(v) >= 100 {
		return count(v)
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

// brief writes large numbers in thousands.
func brief(v float64) string {
	switch {
	case v >= 100_000:
		return strconv.FormatFloat(v/1000, 'f', 0, 64) + "k"
	case v >= 1000:
		return strconv.FormatFloat(v/1000, 'f', 1, 64) + "k"
	}
	return count(v)
}

func ratioText(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }
