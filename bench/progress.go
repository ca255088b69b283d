package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// width of a terminal that everything fits into.
const width = 80

// progress tells what goes on: on a terminal in one line that is written over and over, elsewhere in a line for each step.
type progress struct {
	out      io.Writer
	terminal bool
	short    bool
	steps    int
	begin    time.Time
	line     string
}

func newProgress(out io.Writer, short bool) *progress {
	p := &progress{out: out, short: short, begin: time.Now()}
	if f, ok := out.(*os.File); ok {
		if info, err := f.Stat(); err == nil {
			p.terminal = info.Mode()&os.ModeCharDevice != 0
		}
	}
	return p
}

func (p *progress) say(line string) {
	if p.terminal {
		fmt.Fprintf(p.out, "\r%-*s", width-1, cut(line, width-1))
	}
	p.line = line
}

// header says what is going to run.
func (p *progress) header(r *results) {
	p.end()
	if !p.short {
		for _, line := range append(r.about(), extent(r.Jobs, r.Rounds)) {
			fmt.Fprintln(p.out, wrap(line, width))
		}
		fmt.Fprintln(p.out)
	}
}

func (p *progress) step(of int, line string) {
	p.steps++
	p.say(fmt.Sprintf("[%d/%d] %s (%s)", p.steps, of, line, time.Since(p.begin).Round(time.Second)))
}

// detail tells how far a step is.
func (p *progress) detail(line string) {
	switch line = p.line + ": " + line; {
	case p.terminal:
		fmt.Fprintf(p.out, "\r%-*s", width-1, cut(line, width-1))
	case !p.short:
		fmt.Fprintln(p.out, cut(line, width))
	}
}

func (p *progress) done(_ contest, _ entrant, one sample) {
	if !p.terminal && !p.short {
		fmt.Fprintln(p.out, cut(fmt.Sprintf("%s: %s jobs/s", p.line, count(rate.of(one))), width))
	}
}

// end clears the line.
func (p *progress) end() {
	if p.terminal {
		fmt.Fprintf(p.out, "\r%*s\r", width-1, "")
	}
}

func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// wrap breaks a paragraph into lines of at most n characters.
func wrap(s string, n int) string {
	var b strings.Builder
	at := 0
	for _, word := range strings.Fields(s) {
		w := len([]rune(word))
		switch {
		case at == 0:
		case at+1+w > n:
			b.WriteByte('\n')
			at = 0
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += w
	}
	return b.String()
}
