package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// columns is what the demo writes at most on a line.
const columns = 79

// screen is where the demo writes: lines that stay, and below them, on a terminal, one that moves. Elsewhere the moving
// line is written out every few seconds.
type screen struct {
	out      io.Writer
	terminal bool
	shown    bool // a moving line stands on the terminal
	last     time.Time
}

const (
	everyTerminal = 100 * time.Millisecond
	everyFile     = 2 * time.Second
)

func newScreen(out io.Writer) *screen {
	f, is := out.(*os.File)
	return &screen{out: out, terminal: is && term.IsTerminal(int(f.Fd()))}
}

// progress shows text as the moving line, unless the last one has just been shown. No text takes the line away.
func (s *screen) progress(text string) {
	if text == "" {
		if s.shown {
			fmt.Fprint(s.out, "\r\033[K")
			s.shown = false
		}
		return
	}
	every := everyFile
	if s.terminal {
		every = everyTerminal
	}
	if time.Since(s.last) < every {
		return
	}
	s.last = time.Now()
	if text = clip(text, columns); s.terminal {
		fmt.Fprint(s.out, "\r\033[K", text)
		s.shown = true
		return
	}
	fmt.Fprintln(s.out, text)
}

// say writes lines that stay.
func (s *screen) say(format string, args ...any) {
	s.progress("")
	fmt.Fprintf(s.out, format+"\n", args...)
}

// fact writes a labelled text, folded.
func (s *screen) fact(label, text string) {
	for i, line := range fold(text, columns-13) {
		if i > 0 {
			label = ""
		}
		s.say("%-12s %s", label, line)
	}
}

// bar is a progress bar of the given width.
func bar(done, total, width int) string {
	n := 0
	if total > 0 {
		n = min(max(done*width/total, 0), width)
	}
	head := ""
	if n < width {
		head = ">"
	}
	return "[" + strings.Repeat("=", n) + head + strings.Repeat(" ", max(width-n-1, 0)) + "]"
}

// fold breaks text at spaces into lines of at most width characters; a longer word is cut.
func fold(text string, width int) []string {
	var lines []string
	for _, paragraph := range strings.Split(text, "\n") {
		line := ""
		for _, word := range strings.Fields(paragraph) {
			switch {
			case line == "":
				line = word
			case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
				line += " " + word
			default:
				lines = append(lines, clip(line, width))
				line = word
			}
		}
		lines = append(lines, clip(line, width))
	}
	return lines
}

// clip cuts text to width characters.
func clip(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// count writes 1993 as 1,993.
func count[N int | int64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// plural writes 1 job, 2 jobs.
func plural[N int | int64](n N, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + one + "s"
}

// seconds writes 17.4s.
func seconds(d time.Duration) string { return d.Round(100 * time.Millisecond).String() }
