package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// illustrated are chapters with all that there are plots of.
func illustrated() chapters {
	s := func(v float64) map[string]spread {
		figures := map[string]spread{rate.key: {1, 1, 1}}
		for _, p := range parts {
			figures[p.metric().key] = spread{v, v, v}
		}
		return figures
	}
	over := func(values ...float64) map[string]series { return map[string]series{rate.key: {10, values}} }
	curve := func(ms float64) []float64 {
		c := make([]float64, curvePoints)
		for i := range c {
			c[i] = ms * (1 + float64(i)/100)
		}
		return c
	}
	return chapters{
		"peers": {
			Figures: map[string]map[string]map[string]spread{"latency": {"jobgen": s(1), "gue-defaults": s(1)}},
			Curves:  map[string]map[string][]float64{"latency": {"jobgen": curve(0.6), "gue-defaults": curve(4000)}},
		},
		"cost": {Figures: map[string]map[string]map[string]spread{"cost": {"jobgen": s(4), "river": s(10), "gue": s(150)}}},
		"hold": {
			Figures: map[string]map[string]map[string]spread{"hold": {"jobgen": s(1), "river": s(1)}},
			Series:  map[string]map[string]map[string]series{"hold": {"jobgen": over(50_000, 49_000, 51_000), "river": over(12_000, 9000, 0)}},
		},
		"churn": {
			Figures: map[string]map[string]map[string]spread{"churn": {"jobgen": s(1), "held": s(1), "delete": s(1)}},
			Series: map[string]map[string]map[string]series{"churn": {
				"jobgen": {hotSize.key: {60, []float64{20, 21}}, claim99.key: {60, []float64{1, 2}}},
				"held":   {hotSize.key: {60, []float64{20, 900}}, claim99.key: {60, []float64{1, 3}}},
				"delete": {hotSize.key: {60, []float64{20, 20}}, claim99.key: {60, []float64{1, 2}}},
			}},
		},
	}
}

// Every plot is well-formed, in both colour schemes, within its bounds, and named in RESULTS.md.
func TestPlotsAreDrawnAndEmbedded(t *testing.T) {
	cs := illustrated()
	folder := t.TempDir()
	if err := cs.writePlots(folder); err != nil {
		t.Fatal(err)
	}
	markdown := string(cs.markdown())
	for file, words := range map[string][]string{
		"latency.svg": {"jobgen", "gue, default settings", "0.90 / 1.19", "6,000 / 7,960", "1 s"},
		"cost.svg":    {"jobgen", "River", "gue", "→ 900 µs", "24.0 µs", "server: claim"},
		"hold.svg":    {"jobgen 51.0k", "River 0", "50k", "jobs/s"},
		"churn.svg":   {"jobgen 21", "held 900", "held 3", "100"},
	} {
		picture, err := os.ReadFile(filepath.Join(folder, file))
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.Contains(markdown, "](plots/"+file+")") {
			t.Errorf("RESULTS.md does not show %s", file)
		}
		if !strings.Contains(string(picture), "prefers-color-scheme: dark") {
			t.Errorf("%s has one colour scheme", file)
		}
		for _, w := range words {
			if !strings.Contains(string(picture), ">"+w+"<") {
				t.Errorf("%s does not say %q", file, w)
			}
		}
		for _, bad := range []string{"NaN", "Inf"} {
			if strings.Contains(string(picture), bad) {
				t.Errorf("%s has %s in it", file, bad)
			}
		}
		d := xml.NewDecoder(strings.NewReader(string(picture)))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Errorf("%s: %v", file, err)
				break
			}
		}
	}
}

func TestPlotsWithoutFiguresAreLeftOut(t *testing.T) {
	for group := range illustrated() {
		cs := illustrated()
		c := cs[group]
		c.Series, c.Curves = nil, nil
		if group == "cost" {
			c.Figures = nil
		}
		cs[group] = c
		for _, p := range cs.plots() {
			if p.group == group {
				t.Errorf("%s was drawn of nothing", p.file)
			}
		}
	}
}

func TestTicksAreRound(t *testing.T) {
	for _, c := range []struct {
		scale scale
		want  []float64
	}{
		{scale{from: 0, to: 10}, []float64{0, 2, 4, 6, 8, 10}},
		{scale{from: 0, to: 139_000}, []float64{0, 20_000, 40_000, 60_000, 80_000, 100_000, 120_000}},
		{scale{from: 0, to: 0.9}, []float64{0, 0.2, 0.4, 0.6, 0.8}},
		{scale{from: 0.1, to: 100, log: true}, []float64{0.1, 1, 10, 100}},
	} {
		got := c.scale.ticks()
		if !slices.EqualFunc(got, c.want, func(a, b float64) bool { return math.Abs(a-b) < 1e-9*max(1, b) }) {
			t.Errorf("%v to %v: %v, want %v", c.scale.from, c.scale.to, got, c.want)
		}
	}
}

func TestLabelsDoNotOverlap(t *testing.T) {
	at := []float64{100, 101, 300, 99, 100}
	got := apart(at, 18)
	order := slices.Sorted(slices.Values(got))
	for i := 1; i < len(order); i++ {
		if order[i]-order[i-1] < 17.5 {
			t.Errorf("%v: less than 18 apart", got)
		}
	}
	if got[2] != 300 || got[3] > got[1] {
		t.Errorf("%v: moved without need, or out of order", got)
	}
}
