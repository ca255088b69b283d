package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// results are a run.
type results struct {
	environment
	Jobs, Rounds int
	Length       time.Duration // of contests that go by time, if it was given
	Absent       []absent
	samples      samples
}

// absent is an entrant that could not take part, and what it lacked.
type absent struct {
	Contest string `json:"contest"`
	Entrant string `json:"entrant"`
	Needs   string `json:"needs"`
}

// chapter is one group of contests in one run, ready to be told and to be kept: a later run of other groups leaves it as it is.
type chapter struct {
	environment
	Jobs    int                                     `json:"jobs"`
	Rounds  int                                     `json:"rounds"`
	Length  time.Duration                           `json:"length_ns,omitempty"` // of contests that go by time, if it was given
	Ratios  map[string]spread                       `json:"ratios"`
	Figures map[string]map[string]map[string]spread `json:"figures"`                        // by contest, entrant and metric
	Series  map[string]map[string]map[string]series `json:"series,omitempty"`               // of the last round; by contest, entrant and name
	Curves  map[string]map[string][]float64         `json:"latency_ms_quantiles,omitempty"` // medians, from the smallest to the largest, at equal distances; by contest and entrant
	Absent  []absent                                `json:"absent,omitempty"`
}

// chapters are those of the groups that have run, by name.
type chapters map[string]chapter

func (r *results) chapters() chapters {
	cs := chapters{}
	for _, c := range contests {
		for _, e := range c.entrants {
			t := term{c.name, e.name}
			if len(r.samples[t]) == 0 {
				continue
			}
			if _, ok := cs[c.group]; !ok {
				cs[c.group] = chapter{
					environment: r.environment, Jobs: r.Jobs, Rounds: r.Rounds, Length: r.Length,
					Ratios: map[string]spread{}, Figures: map[string]map[string]map[string]spread{}, Series: map[string]map[string]map[string]series{},
					Curves: map[string]map[string][]float64{},
				}
			}
			figures := cs[c.group].Figures
			if figures[c.name] == nil {
				figures[c.name] = map[string]map[string]spread{}
			}
			in := map[string]spread{}
			for _, m := range recorded {
				if s := r.samples.spread(t, m); s.known() {
					in[m.key] = s.rounded()
				}
			}
			figures[c.name][e.name] = in
			if curve := r.samples.curve(t); curve != nil {
				curves := cs[c.group].Curves
				if curves[c.name] == nil {
					curves[c.name] = map[string][]float64{}
				}
				curves[c.name][e.name] = curve
			}
			if last := r.samples[t][len(r.samples[t])-1].series; last != nil {
				all := cs[c.group].Series
				if all[c.name] == nil {
					all[c.name] = map[string]map[string]series{}
				}
				all[c.name][e.name] = last
			}
		}
	}
	for _, one := range ratios {
		if s := r.samples.ratio(one); s.known() {
			cs[one.group()].Ratios[one.key] = s.rounded()
		}
	}
	for _, a := range r.Absent {
		for _, c := range contests {
			if ch, ok := cs[c.group]; ok && c.name == a.Contest {
				ch.Absent = append(ch.Absent, a)
				cs[c.group] = ch
			}
		}
	}
	return cs
}

// about are the lines that go before any figure.
func (e environment) about() []string {
	var v []string
	for _, name := range slices.Sorted(maps.Keys(e.Versions)) {
		v = append(v, name+" "+e.Versions[name])
	}
	var set []string
	for _, name := range told {
		set = append(set, name+"="+e.Settings[name])
	}
	return []string{
		fmt.Sprintf("%s, %s", e.Server, strings.Join(v, ", ")),
		strings.Join(set, " "),
		e.Machine,
	}
}

// run says which run a chapter is of.
func (c chapter) run() string {
	of := c.Date
	if c.Commit != "" {
		of += ", commit " + c.Commit
	}
	return of + ", " + extent(c.Jobs, c.Rounds)
}

// others is how busy the machine was with other things, without what follows from it.
func (c chapter) others() string {
	others, _, _ := strings.Cut(c.Others, ", so ")
	return others
}

func extent(jobs, rounds int) string {
	return fmt.Sprintf("drains of %s jobs, %s", count(float64(jobs)), counted(rounds))
}

func counted(rounds int) string {
	if rounds == 1 {
		return "1 round"
	}
	return fmt.Sprintf("%d rounds", rounds)
}

// figure is unknown if there is none.
func (c chapter) figure(t term, m metric) spread {
	if s, ok := c.Figures[t.contest][t.entrant][m.key]; ok {
		return s
	}
	return spread{math.NaN(), math.NaN(), math.NaN()}
}

// ran are the contests with figures, each with those of its entrants that have some.
func (c chapter) ran() (cs []contest) {
	for _, one := range contests {
		one.entrants = slices.DeleteFunc(slices.Clone(one.entrants), func(e entrant) bool { return c.Figures[one.name][e.name] == nil })
		if len(one.entrants) > 0 {
			cs = append(cs, one)
		}
	}
	return cs
}

func (c chapter) title(one contest) string {
	if !strings.Contains(one.title, "%s") {
		return one.title
	}
	return fmt.Sprintf(one.title, count(float64(one.size(c.Jobs, c.Length))))
}

func (c chapter) ratios() (rs []ratio) {
	for _, one := range ratios {
		if _, ok := c.Ratios[one.key]; ok {
			rs = append(rs, one)
		}
	}
	return rs
}

// print tells the run to a terminal.
func (r *results) print(out io.Writer, o options) {
	if o.short {
		fmt.Fprintf(out, "%s: shows that it works, not how fast jobgen is\n", extent(r.Jobs, r.Rounds))
	}
	cs := r.chapters()
	for _, g := range groups {
		if c, ok := cs[g.name]; ok && o.short {
			c.printRatios(out, o.targeted)
		} else if ok {
			c.print(out)
		}
	}
	fmt.Fprintln(out, wrap(r.Others, width))
}

// printRatios writes a line for each ratio, or for each that a target is about, and what it should be.
func (c chapter) printRatios(out io.Writer, targeted bool) {
	for _, one := range c.ratios() {
		t, ok := targetOf(one.key)
		if targeted && !ok {
			continue
		}
		says := one.says
		if ok {
			says = "target " + t.bound() + " " + t.asks
		}
		fmt.Fprintln(out, cut(fmt.Sprintf("%-24s %6s  %s", one.key, ratioText(c.Ratios[one.key].Median), says), width))
	}
}

func (c chapter) print(out io.Writer) {
	for _, one := range c.ran() {
		c.table(out, one)
		fmt.Fprintln(out)
	}
	for _, a := range c.Absent {
		fmt.Fprintln(out, wrap(fmt.Sprintf("Left out: %s in %s; it needs %s.", a.Entrant, a.Contest, a.Needs), width))
	}
	if slices.ContainsFunc(c.ran(), func(one contest) bool { return one.metrics == nil }) {
		fmt.Fprintln(out, wrap("client, server: CPU µs per job; WAL: bytes per job; dead: row versions per job; MB: memory of the client process. Medians.", width))
		fmt.Fprintln(out)
	}
	for i, one := range c.ratios() {
		if i == 0 {
			fmt.Fprintf(out, "%-39s %7s  %-13s %s\n", "ratio", "median", "min–max", "wanted")
		}
		s := c.Ratios[one.key]
		fmt.Fprintf(out, "%-39s %7s  %-13s %s\n", one.key, ratioText(s.Median), ratioText(s.Min)+"–"+ratioText(s.Max), c.wanted(one))
	}
	for i, line := range c.behind() {
		if i == 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintln(out, wrap(line, width))
	}
}

func (c chapter) table(out io.Writer, one contest) {
	fmt.Fprintf(out, "%s\n", c.title(one))
	if one.across {
		fmt.Fprintf(out, "%-20s", "")
		for _, e := range one.entrants {
			fmt.Fprintf(out, " %7s", e.label)
		}
		fmt.Fprintln(out)
		for _, m := range one.metrics {
			fmt.Fprintf(out, "%-20s", m.label)
			for _, e := range one.entrants {
				fmt.Fprintf(out, " %*s", max(len(e.label), 7), number(c.figure(term{one.name, e.name}, m).Median))
			}
			fmt.Fprintln(out)
		}
		if d := c.distance(); d != "" {
			fmt.Fprintf(out, "\n%s\n", wrap(d, width))
		}
		return
	}
	if one.metrics != nil {
		// The smallest and the largest are left out where there is no room for them.
		column := (width-26)/len(one.metrics) - 1
		fmt.Fprintf(out, "%-26s", "")
		for _, m := range one.metrics {
			fmt.Fprintf(out, " %*s", min(column, 17), m.label)
		}
		fmt.Fprintln(out)
		for _, e := range one.entrants {
			fmt.Fprintf(out, "%-26s", cut(e.label, 26))
			for _, m := range one.metrics {
				s := c.figure(term{one.name, e.name}, m)
				text := fine(s.Median)
				if all := text + " (" + fine(s.Min) + "–" + fine(s.Max) + ")"; utf8.RuneCountInString(all) <= column {
					text = all
				}
				fmt.Fprintf(out, " %*s", min(column, 17), text)
			}
			fmt.Fprintln(out)
		}
		return
	}
	fmt.Fprintf(out, "%-21s %9s %15s %7s %7s %6s %4s %4s\n", "", "jobs/s", "min–max", "client", "server", "WAL", "dead", "MB")
	for _, e := range one.entrants {
		t := term{one.name, e.name}
		f := func(m metric) float64 { return c.figure(t, m).Median }
		s := c.figure(t, rate)
		fmt.Fprintf(out, "%-21s %9s %15s %7s %7s %6s %4s %4s\n", cut(e.label, 21), count(s.Median),
			brief(s.Min)+"–"+brief(s.Max), number(f(client)), number(f(server)), count(f(wal)), number(f(dead)), count(f(memory)))
	}
}

// behind says where another is better than jobgen on default settings, by how much, and where nothing is.
func (c chapter) behind() (lines []string) {
	for _, one := range c.ran() {
		if one.group != "peers" {
			continue
		}
		ours := term{one.name, "jobgen"}
		ms := one.metrics
		if ms == nil {
			ms = []metric{rate, client, server, wal, commits, dead, memory}
		}
		var found []string
		for _, e := range one.entrants {
			t := term{one.name, e.name}
			if e.name == ours.entrant || strings.HasPrefix(e.name, "jobgen-") {
				continue
			}
			var in []string
			for _, m := range ms {
				us, them := c.figure(ours, m).Median, c.figure(t, m).Median
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
		lines = append(lines, fmt.Sprintf("Better than jobgen in %s: %s.", one.name, strings.Join(found, "; ")))
	}
	return lines
}

func factor(f float64) string {
	if math.IsInf(f, 0) || f >= 100 {
		return "by far"
	}
	return ratioText(f) + "×"
}

// wanted is in which direction a ratio is better, or what it is to reach and whether it does.
func (c chapter) wanted(r ratio) string {
	t, ok := targetOf(r.key)
	switch {
	case ok:
		met, _, _ := strings.Cut(t.met(c.Ratios[r.key]), ",")
		return t.bound() + ": " + met
	case r.metric.higher:
		return "higher"
	}
	return "lower"
}

// record is results.json: what is kept from run to run. Ratios are those of all chapters.
type record struct {
	Ratios   map[string]spread `json:"ratios"`
	Chapters chapters          `json:"chapters"`
}

// write leaves RESULTS.md for people and results.json for programs. Chapters of groups that were not run stay.
func (r *results) write(folder string) error {
	file := filepath.Join(folder, "results.json")
	kept := record{Ratios: map[string]spread{}, Chapters: chapters{}}
	switch b, err := os.ReadFile(file); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		var old record
		if err := json.Unmarshal(b, &old); err != nil {
			return fmt.Errorf("%s, which has the chapters of earlier runs: %w; remove it to write it anew", file, err)
		}
		if old.Chapters != nil {
			kept.Chapters = old.Chapters
		}
	}
	maps.Copy(kept.Chapters, r.chapters())
	for _, c := range kept.Chapters {
		maps.Copy(kept.Ratios, c.Ratios)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "RESULTS.md"), kept.Chapters.markdown(), 0o644); err != nil {
		return err
	}
	if err := kept.Chapters.writePlots(filepath.Join(folder, "plots")); err != nil {
		return err
	}
	if err := kept.Chapters.writeReadme(folder); err != nil {
		return err
	}
	b, err := json.MarshalIndent(kept, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

func (cs chapters) markdown() []byte {
	var b bytes.Buffer
	b.WriteString("# Results\n\nWritten by `make bench`; do not edit. Absolute figures move by a factor of two with the machine; only the ratios count.\n" +
		"Each is taken within a round, between entrants that ran one after the other, and is the median over the rounds, with the\n" +
		"smallest and the largest beside it. Each entrant in each round has a process and a database of its own, a CHECKPOINT before\n" +
		"it, and a check after it that each job ran once and nothing was left. Each chapter is one run: figures of different chapters\n" +
		"do not compare.\n")
	if c, ok := cs["peers"]; ok {
		fmt.Fprintf(&b, "\n## What others do, and jobgen\n\nMedians of one run (%s; %s), that of the chapter [%s](#%s), which has the settings of each and the\n"+
			"spreads. Batch enqueue is one call for all jobs; the hand-written one is a COPY. Empty: it did not take part.\n\n", c.run(), c.others(), titleOf("peers"), anchor(titleOf("peers")))
		c.peers(&b)
	}
	b.WriteString("\n## Targets\n\nComputed from the ratios of [results.json](results.json).\n\n")
	cs.targets(&b)
	b.WriteString("\n## Runs\n\n| chapter | run | the machine |\n|---|---|---|\n")
	for _, g := range groups {
		if c, ok := cs[g.name]; ok {
			fmt.Fprintf(&b, "| [%s](#%s) | %s | %s |\n", g.title, anchor(g.title), c.run(), c.others())
		}
	}
	for i, p := range cs.plots() {
		if i == 0 {
			b.WriteString("\n## Plots\n")
		}
		fmt.Fprintf(&b, "\n![%s](plots/%s)\n\nOf the chapter [%s](#%s): %s.\n", p.alt, p.file, titleOf(p.group), anchor(titleOf(p.group)), cs[p.group].run())
	}
	for _, g := range groups {
		if c, ok := cs[g.name]; ok {
			fmt.Fprintf(&b, "\n## %s\n\n`make bench ARGS=\"-only %s\"`, on %s:\n\n", g.title, g.name, c.run())
			c.markdown(&b)
		}
	}
	b.WriteString("\nWAL includes the full-page images that follow the CHECKPOINT. Dead rows are row versions left to vacuum: updated or\n" +
		"deleted. Server CPU is that of all the server's processes, autovacuum included.\n")
	return b.Bytes()
}

func (c chapter) markdown(b *bytes.Buffer) {
	for _, line := range append(c.about(), c.Others) {
		fmt.Fprintf(b, "- %s\n", line)
	}
	for _, a := range c.Absent {
		fmt.Fprintf(b, "- left out: %s in %s; it needs %s\n", a.Entrant, a.Contest, a.Needs)
	}
	for i, one := range c.ratios() {
		if i == 0 {
			b.WriteString("\n| ratio | median | min–max | wanted | |\n|---|---:|---:|---|---|\n")
		}
		s := c.Ratios[one.key]
		fmt.Fprintf(b, "| `%s` | %s | %s–%s | %s | %s |\n", one.key, ratioText(s.Median), ratioText(s.Min), ratioText(s.Max), c.wanted(one), one.says)
	}
	if behind := c.behind(); len(behind) > 0 {
		b.WriteString("\n### Where others are better\n\nThan jobgen on default settings, by more than a twentieth, and by which factor:\n\n")
		for _, line := range behind {
			fmt.Fprintf(b, "- %s\n", line)
		}
	}
	for _, one := range c.ran() {
		fmt.Fprintf(b, "\n### %s\n\n", c.title(one))
		if one.note != "" {
			fmt.Fprintf(b, "%s\n\n", one.note)
		}
		ms, text := one.metrics, fine
		if ms == nil {
			ms, text = metrics, number
		}
		if one.across {
			c.tableAcross(b, one)
			continue
		}
		b.WriteString("| |")
		for _, m := range ms {
			fmt.Fprintf(b, " %s |", m.label)
		}
		b.WriteString("\n|---|" + strings.Repeat("---:|", len(ms)) + "\n")
		for _, e := range one.entrants {
			fmt.Fprintf(b, "| %s |", e.label)
			for _, m := range ms {
				s := c.figure(term{one.name, e.name}, m)
				fmt.Fprintf(b, " %s", text(s.Median))
				switch {
				case one.metrics != nil:
					fmt.Fprintf(b, " (%s–%s)", text(s.Min), text(s.Max))
				case m.key == rate.key:
					fmt.Fprintf(b, " (%s–%s)", brief(s.Min), brief(s.Max))
				}
				b.WriteString(" |")
			}
			b.WriteString("\n")
		}
		b.WriteString("\n")
		for _, e := range one.entrants {
			fmt.Fprintf(b, "- %s: %s", e.label, e.note)
			if e.part > 1 {
				fmt.Fprintf(b, "; it gets one %s of the jobs", ordinal(e.part))
			}
			b.WriteString(".\n")
		}
	}
}

// tableAcross has entrants side by side.
func (c chapter) tableAcross(b *bytes.Buffer, one contest) {
	b.WriteString("| |")
	for _, e := range one.entrants {
		fmt.Fprintf(b, " %s |", e.label)
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(one.entrants)) + "\n")
	for _, m := range one.metrics {
		fmt.Fprintf(b, "| %s |", m.label)
		for _, e := range one.entrants {
			fmt.Fprintf(b, " %s |", number(c.figure(term{one.name, e.name}, m).Median))
		}
		b.WriteString("\n")
	}
	if d := c.distance(); d != "" {
		fmt.Fprintf(b, "\n%s\n", d)
	}
}

func ordinal(n int) string { return strconv.Itoa(n) + "th" }

// fine writes milliseconds, and what else is small.
func fine(v float64) string {
	switch {
	case math.IsNaN(v):
		return unknown
	case math.Abs(v) >= 1000:
		return brief(v)
	case math.Abs(v) < 10:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return number(v)
}

// rounded to four digits: the others are noise, and would be in every diff.
func (s spread) rounded() spread {
	return spread{rounded(s.Median), rounded(s.Min), rounded(s.Max)}
}

func rounded(v float64) float64 {
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	return v
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

func ratioText(v float64) string {
	if math.Abs(v) >= 100 {
		return count(v)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
