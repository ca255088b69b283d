package main

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A little SVG, as much as four plots need. A library would bring fonts and rasterizers along; and what makes these
// readable is in the details: labels at the lines instead of a legend, both colour schemes, numbers beside the marks.

// plotWidth is about what GitHub gives a picture in a page.
const plotWidth = 830

// svg is a picture in the making.
type svg struct{ b bytes.Buffer }

// newSVG begins a picture with its title and what to know to read it. Its background is its own: the page's may be dark
// when the reader's system is not.
func newSVG(height int, title, subtitle string) *svg {
	p := &svg{}
	fmt.Fprintf(&p.b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">
<title>%s</title>
<style>
text { font: 13px -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 }
.ours { font-weight: 600 }
.soft { fill: #59636e; font-size: 12px }
.on { fill: #fff; font-size: 12px }
.back { fill: #fff } .grid { stroke: #d1d9e0 } .axis { stroke: #59636e } .dot { fill: #fff }
.line { fill: none; stroke-width: 2; stroke-linejoin: round } .thin { opacity: .5 }
`, plotWidth, height, plotWidth, height, escape(title))
	for _, c := range colours {
		fmt.Fprintf(&p.b, ".s-%s { stroke: %s } .f-%s { fill: %s }\n", c.name, c.light, c.name, c.light)
	}
	p.b.WriteString("@media (prefers-color-scheme: dark) {\ntext { fill: #f0f6fc } .soft { fill: #9198a1 } .on { fill: #0d1117 }\n" +
		".back { fill: #0d1117 } .grid { stroke: #3d444d } .axis { stroke: #9198a1 } .dot { fill: #0d1117 }\n")
	for _, c := range colours {
		fmt.Fprintf(&p.b, ".s-%s { stroke: %s } .f-%s { fill: %s }\n", c.name, c.dark, c.name, c.dark)
	}
	fmt.Fprintf(&p.b, "}\n</style>\n<rect class=\"back\" width=\"%d\" height=\"%d\"/>\n", plotWidth, height)
	p.text(16, 26, "title", "start", title)
	p.text(16, 46, "soft", "start", subtitle)
	return p
}

// colours are told apart by those who see no red or green, and on both backgrounds.
var colours = []struct{ name, light, dark string }{
	{"blue", "#0969da", "#4493f8"},
	{"orange", "#bc4c00", "#f0883e"},
	{"teal", "#0a7c76", "#39c5bb"},
	{"purple", "#8250df", "#ab7df8"},
	{"grey", "#6e7781", "#9198a1"},
}

func (p *svg) text(x, y float64, class, anchor, s string) {
	fmt.Fprintf(&p.b, `<text x="%s" y="%s" class="%s" text-anchor="%s">%s</text>`+"\n", px(x), px(y), class, anchor, escape(s))
}

func (p *svg) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&p.b, `<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>`+"\n", px(x1), px(y1), px(x2), px(y2), class)
}

func (p *svg) rect(x, y, w, h float64, class string) {
	fmt.Fprintf(&p.b, `<rect x="%s" y="%s" width="%s" height="%s" class="%s"/>`+"\n", px(x), px(y), px(max(w, 0)), px(h), class)
}

func (p *svg) circle(x, y, r float64, class string) {
	fmt.Fprintf(&p.b, `<circle cx="%s" cy="%s" r="%s" class="%s"/>`+"\n", px(x), px(y), px(r), class)
}

func (p *svg) end() []byte {
	p.b.WriteString("</svg>\n")
	return p.b.Bytes()
}

func px(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

func escape(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}

// scale maps values to pixels.
type scale struct {
	from, to   float64 // values
	start, end float64 // pixels
	log        bool
}

func (s scale) at(v float64) float64 {
	from, to := s.from, s.to
	if s.log {
		from, to, v = math.Log(from), math.Log(to), math.Log(max(v, s.from))
	}
	return s.start + (v-from)/(to-from)*(s.end-s.start)
}

// ticks are round values: of a logarithmic scale the powers of ten, of another about four steps.
func (s scale) ticks() (ts []float64) {
	if s.log {
		for e := math.Ceil(math.Log10(s.from) - 1e-9); e <= math.Log10(s.to)+1e-9; e++ {
			ts = append(ts, math.Pow(10, e))
		}
		return ts
	}
	rough := (s.to - s.from) / 4
	step := math.Pow(10, math.Floor(math.Log10(rough)))
	for _, f := range []float64{5, 2} {
		if step*f <= rough {
			step *= f
			break
		}
	}
	for v := math.Ceil(s.from/step) * step; v <= s.to*(1+1e-9); v += step {
		ts = append(ts, v)
	}
	return ts
}

// decades widens bounds to powers of ten.
func decades(least, most float64) (from, to float64) {
	return math.Pow(10, math.Floor(math.Log10(least))), math.Pow(10, math.Ceil(math.Log10(most)))
}

func tickText(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'f', -1, 64) + "M"
	case v >= 1000:
		return strconv.FormatFloat(v/1000, 'f', -1, 64) + "k"
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// timeText writes milliseconds.
func timeText(v float64) string {
	if v >= 1000 {
		return tickText(v/1000) + " s"
	}
	return tickText(v) + " ms"
}

// course is a line of a plot over time.
type course struct {
	label, colour string
	series
}

// panel draws courses over time, each with its label at its end.
type panel struct {
	top, height float64
	says        string // what the values are, with their unit
	log         bool
	foot        bool // time is written below it
	courses     []course
}

const (
	panelLeft  = 64.0
	panelRight = plotWidth - 186.0
)

func (p *svg) panel(d panel) {
	most, least, end := 0.0, math.Inf(1), 0.0
	for _, c := range d.courses {
		most = max(most, slices.Max(c.Values))
		for _, v := range c.Values {
			if v > 0 {
				least = min(least, v)
			}
		}
		end = max(end, c.Every*float64(len(c.Values)))
	}
	y := scale{from: 0, to: most * 1.08, start: d.top + d.height, end: d.top, log: d.log}
	if d.log {
		y.from, y.to = decades(min(least, most), most)
		if y.from == y.to {
			y.to *= 10
		}
	}
	unit, per := "s", 1.0
	if end >= 180 {
		unit, per = "min", 60
	}
	x := scale{from: 0, to: end / per, start: panelLeft, end: panelRight}
	p.text(panelLeft-48, d.top-10, "soft", "start", d.says)
	for _, v := range y.ticks() {
		p.line(panelLeft, y.at(v), panelRight, y.at(v), "grid")
		p.text(panelLeft-8, y.at(v)+4, "soft", "end", tickText(v))
	}
	p.line(panelLeft, d.top+d.height, panelRight, d.top+d.height, "axis")
	if d.foot {
		for _, v := range x.ticks() {
			p.text(x.at(v), d.top+d.height+18, "soft", "middle", tickText(v)+" "+unit)
		}
	}
	ends := make([]float64, len(d.courses))
	for i, c := range d.courses {
		var points []string
		for j, v := range c.Values {
			points = append(points, px(x.at((float64(j)+0.5)*c.Every/per))+","+px(y.at(v)))
		}
		fmt.Fprintf(&p.b, `<polyline points="%s" class="line s-%s"/>`+"\n", strings.Join(points, " "), c.colour)
		ends[i] = y.at(c.Values[len(c.Values)-1])
	}
	for i, at := range apart(ends, 18) {
		values := d.courses[i].Values
		tenth := values[len(values)-max(len(values)/10, 1):]
		last := spreadOf(tenth).Median // one stretch may be an accident
		p.line(x.at((float64(len(values))-0.5)*d.courses[i].Every/per), ends[i], panelRight+8, at, "thin s-"+d.courses[i].colour)
		p.text(panelRight+12, at+4, "f-"+d.courses[i].colour, "start", d.courses[i].label+" "+endText(last))
	}
}

func endText(v float64) string {
	if v < 10 {
		return strconv.FormatFloat(v, 'g', 2, 64)
	}
	return brief(v)
}

// apart moves positions so that they are at least so far from each other, as little as it takes, and keeps their order.
func apart(at []float64, least float64) []float64 {
	order := make([]int, len(at))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(at[a], at[b]) })
	moved := slices.Clone(at)
	for range 100 {
		for i := 1; i < len(order); i++ {
			a, b := order[i-1], order[i]
			if gap := moved[b] - moved[a]; gap < least {
				moved[a] -= (least - gap) / 2
				moved[b] += (least - gap) / 2
			}
		}
	}
	return moved
}
