package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// The README has the few figures that somebody asks for who looks for a queue, between these marks. They are written with
// RESULTS.md, so that no page has figures of another run.
const (
	readmeBegin = "<!-- figures: written by make bench -->\n"
	readmeEnd   = "<!-- end of figures -->\n"
)

// readmeRows are those whom jobgen is compared with there, by the end of a ratio's key.
var readmeRows = []struct{ key, label string }{
	{"river", "River"}, {"graphile-worker", "graphile-worker"}, {"pg-boss", "pg-boss"}, {"gue", "gue"}, {"floor", "hand-written SQL, no promises"},
}

// readme is what stands between the marks.
func (cs chapters) readme() string {
	c, ok := cs["peers"]
	if !ok {
		return ""
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "jobgen on default settings, as a multiple of others tuned; ratios of one run (%s; medians):\n", c.run())
	b.WriteString("\n| jobgen over | drain, jobs/s | CPU per job (less is better) | single enqueue, 16 connections, jobs/s | commit → handler start, median (less is better) |\n|---|---:|---:|---:|---:|\n")
	for _, r := range readmeRows {
		var cells []string
		for _, key := range []string{"drain", "cpu", "enqueue16", "latency-p50"} {
			of := key + "/" + r.key
			if r.key == "floor" && key == "enqueue16" {
				of = "enqueue16/insert"
			}
			cell := ""
			if s, ok := c.Ratios[of]; ok {
				cell = ratioText(s.Median) + "×"
			}
			cells = append(cells, cell)
		}
		if strings.Join(cells, "") != "" {
			fmt.Fprintf(&b, "| %s | %s |\n", r.label, strings.Join(cells, " | "))
		}
	}
	b.WriteString("\n")
	return b.String()
}

// writeReadme replaces the figures in the README of the checkout whose bench folder this is; elsewhere there is none.
func (cs chapters) writeReadme(folder string) error {
	file := filepath.Join(folder, "..", "README.md")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	head, rest, begun := strings.Cut(string(text), readmeBegin)
	_, tail, ended := strings.Cut(rest, readmeEnd)
	if !begun || !ended {
		return nil
	}
	return os.WriteFile(file, []byte(head+readmeBegin+cs.readme()+readmeEnd+tail), 0o644)
}
