package main

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// plot is a picture of a chapter.
type plot struct {
	file, group, alt string
	picture          []byte
}

// plots are those for which there are figures.
func (cs chapters) plots() (ps []plot) {
	for _, one := range []struct {
		file, group, alt string
		draw             func(chapter) []byte
	}{
		{"latency.svg", "peers", "Time from commit to the start of the handler, for each queue", chapter.plotLatency},
		{"cost.svg", "cost", "CPU time per job by component, for each queue", chapter.plotCost},
		{"hold.svg", "hold", "Throughput over time while a snapshot is held", chapter.plotHold},
		{"spiral.svg", "spiral", "Backlog and claim times over time under old snapshots", chapter.plotSpiral},
		{"churn.svg", "churn", "Size of jobs and claim times over time under steady load", chapter.plotChurn},
	} {
		c, ok := cs[one.group]
		if !ok {
			continue
		}
		if picture := one.draw(c); picture != nil {
			ps = append(ps, plot{one.file, one.group, one.alt, picture})
		}
	}
	return ps
}

// writePlots leaves the pictures in a folder.
func (cs chapters) writePlots(folder string) error {
	for _, p := range cs.plots() {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, p.file), p.picture, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// who has which colour in every plot.
func colourOf(entrant string) string {
	for _, c := range []struct{ prefix, colour string }{{"jobgen-quiet", "teal"}, {"held", "teal"}, {"update", "orange"}, {"archive", "purple"}, {"jobgen", "blue"}, {"sql", "grey"}, {"river", "orange"}} {
		if strings.HasPrefix(entrant, c.prefix) {
			return c.colour
		}
	}
	return "purple"
}

// courses are a figure over time, of each entrant that has it.
func (c chapter) courses(contestName, figure string) (cs []course) {
	for _, one := range c.ran() {
		if one.name != contestName {
			continue
		}
		for _, e := range one.entrants {
			if s, ok := c.Series[contestName][e.name][figure]; ok && len(s.Values) > 0 {
				label := strings.NewReplacer(" SQL", "", "no old snapshot", "no snapshot").Replace(e.label)
				cs = append(cs, course{label, colourOf(e.name), s})
			}
		}
	}
	return cs
}

func (c chapter) plotHold() []byte {
	cs := c.courses("hold", rate.key)
	if len(cs) == 0 {
		return nil
	}
	p := newSVG(370, "Throughput while a snapshot is held open", "Jobs are enqueued as fast as they are worked off, and vacuum can remove none of those that are gone. The last round.")
	p.panel(panel{top: 92, height: 240, says: "jobs/s", foot: true, courses: cs})
	return p.end()
}

func (c chapter) plotSpiral() []byte {
	backlog, claim := c.courses("spiral", "backlog"), c.courses("spiral", "claim_p99_ms")
	if len(backlog) == 0 || len(claim) == 0 {
		return nil
	}
	p := newSVG(560, "800 jobs/s under overlapping old snapshots", "Vacuum can remove only what is older than the oldest snapshot. Both scales are logarithmic. The last round.")
	p.panel(panel{top: 92, height: 180, says: "jobs waiting, at most in each stretch", log: true, courses: backlog})
	p.panel(panel{top: 330, height: 190, says: "ms that claims take, 99th percentile of each stretch", log: true, foot: true, courses: claim})
	return p.end()
}

func (c chapter) plotChurn() []byte {
	only := func(figure string) (cs []course) {
		for _, one := range c.courses("churn", figure) {
			if slices.Contains([]string{"jobgen", "held", "update", "archive"}, one.label) {
				cs = append(cs, one)
			}
		}
		return cs
	}
	size, claim := only(hotSize.key), only("claim_p99_ms")
	if len(size) == 0 || len(claim) == 0 {
		return nil
	}
	p := newSVG(560, fmt.Sprintf("%d jobs/s, and what becomes of the table", churnRate), "held: a snapshot is held through the second third. update, archive: a hand-written loop that keeps what has finished for a sixth.")
	p.panel(panel{top: 92, height: 180, says: "MB of jobs, indexes not counted; both scales are logarithmic", log: true, courses: size})
	p.panel(panel{top: 330, height: 190, says: "ms that claims take, 99th percentile", log: true, foot: true, courses: claim})
	return p.end()
}

func (c chapter) plotLatency() []byte {
	type row struct {
		label, colour string
		curve         []float64
	}
	var rows []row
	least, most := math.Inf(1), 0.0
	for _, one := range c.ran() {
		if one.name != "latency" {
			continue
		}
		for _, e := range one.entrants {
			curve := c.Curves[one.name][e.name]
			if len(curve) != curvePoints {
				continue
			}
			rows = append(rows, row{e.label, colourOf(e.name), curve})
			least, most = min(least, curve[1]), max(most, curve[99])
		}
	}
	if len(rows) == 0 {
		return nil
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.curve[50], b.curve[50]) })
	const left, right, top, step = 222.0, plotWidth - 130.0, 92.0, 34.0
	bottom := top + step*float64(len(rows))
	p := newSVG(int(bottom)+44, "From commit to the start of the handler", "Thin: 1% to 99% of the jobs. Thick: 10% to 90%. Dot: the median. The scale is logarithmic: a step to the right is ten times slower.")
	x := scale{start: left, end: right, log: true}
	x.from, x.to = decades(max(least, 0.01), most)
	for _, v := range x.ticks() {
		p.line(x.at(v), top-8, x.at(v), bottom, "grid")
		p.text(x.at(v), bottom+18, "soft", "middle", timeText(v))
	}
	p.text(plotWidth-16, top-14, "soft", "end", "median / 99%, ms")
	for i, r := range rows {
		y := top + step*(float64(i)+0.5)
		q := func(percent int) float64 { return x.at(r.curve[percent]) }
		p.text(left-14, y+4, weight(r.label), "end", r.label)
		p.rect(q(1), y-2, q(99)-q(1), 4, "f-"+r.colour)
		p.rect(q(10), y-8, max(q(90)-q(10), 2), 16, "f-"+r.colour)
		p.circle(q(50), y, 4.5, "dot")
		p.text(plotWidth-16, y+4, "", "end", milliseconds(r.curve[50])+" / "+milliseconds(r.curve[99]))
	}
	return p.end()
}

// weight makes the rows of ours stand out.
func weight(label string) string {
	if strings.HasPrefix(label, "jobgen") {
		return "ours"
	}
	return ""
}

func (c chapter) plotCost() []byte {
	type piece struct {
		says, colour string
		of           []string // keys of parts
	}
	pieces := []piece{
		{"client", "blue", []string{partClient}},
		{"server: claim", "orange", []string{partClaim}},
		{"server: complete", "teal", []string{partComplete}},
		{"server: commits and all else", "grey", []string{partOther, partCommit, partBackground}},
	}
	type row struct {
		label  string
		values []float64
		sum    float64
	}
	var rows []row
	for _, one := range c.ran() {
		if one.name != costs.name {
			continue
		}
		for _, e := range one.entrants {
			_, drained, _ := find("drain", e.name) // whose label is written in full
			r := row{label: drained.label, values: make([]float64, len(pieces))}
			for i, piece := range pieces {
				for _, key := range piece.of {
					r.values[i] += c.figure(term{one.name, e.name}, partOf(key).metric()).Median
				}
				r.sum += r.values[i]
			}
			if !math.IsNaN(r.sum) {
				rows = append(rows, r)
			}
		}
	}
	if len(rows) == 0 {
		return nil
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.sum, b.sum) })
	// One that is far beyond all others would leave the others no room: its bar is cut.
	longest := rows[len(rows)-1].sum
	for i := len(rows) - 2; i >= 0 && rows[i].sum < longest/3; i-- {
		longest = rows[i].sum * 1.15
		break
	}
	const left, right, top, step = 158.0, plotWidth - 110.0, 96.0, 36.0
	bottom := top + step*float64(len(rows))
	p := newSVG(int(bottom)+44, "CPU time per job of a drain, client and server", "µs of CPU time, on both sides together: what decides how many jobs a machine gets through. A bar with an arrow goes on.")
	x := scale{from: 0, to: longest, start: left, end: right}
	at := left
	for _, piece := range pieces {
		p.rect(at, top-28, 12, 12, "f-"+piece.colour)
		p.text(at+18, top-18, "soft", "start", piece.says)
		at += 40 + 6.4*float64(len(piece.says))
	}
	for _, v := range x.ticks() {
		p.line(x.at(v), top, x.at(v), bottom, "grid")
		p.text(x.at(v), bottom+18, "soft", "middle", tickText(v)+" µs")
	}
	for i, r := range rows {
		y, from := top+step*float64(i)+6, 0.0
		p.text(left-14, y+17, weight(r.label), "end", r.label)
		for j, v := range r.values {
			a, b := x.at(min(from, longest)), x.at(min(from+v, longest))
			if b > a {
				p.rect(a, y, b-a, step-12, "f-"+pieces[j].colour)
			}
			if label := number(v); b-a > 8*float64(len(label)) {
				p.text((a+b)/2, y+16, "on", "middle", label)
			}
			from += v
		}
		says := number(r.sum) + " µs"
		if r.sum > longest {
			says = "→ " + says
		}
		p.text(x.at(min(r.sum, longest))+8, y+16, "", "start", says)
	}
	return p.end()
}
