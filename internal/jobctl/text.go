package jobctl

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"

	"github.com/jobgen-go/jobgen/internal/human"
)

// plain tells whether a rune may go to a terminal as it is. U+FFFD may not: it stands for a byte that could not be
// stored, and should be seen to.
func plain(r rune) bool { return unicode.IsGraphic(r) && r != utf8.RuneError }

// escape replaces what a terminal would act on, line ends and tabs included.
func escape(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case plain(r):
			b.WriteString(s[i : i+n])
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		default:
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
		i += n
	}
	return b.String()
}

// escapeJSON is escape for JSON, which stays the same value. Control characters below U+0020 are escaped in JSON anyhow;
// DEL, C1, and what turns the direction of text are not.
func escapeJSON(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || plain(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := (r-0x10000)>>10+0xd800, (r-0x10000)&0x3ff+0xdc00
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// oneLine joins the lines of an error.
func oneLine(s string) string { return escape(strings.Join(strings.Fields(s), " ")) }

// firstLine is what a table shows of a text.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimLeft(s, " \t\r\n"), "\n")
	return escape(strings.TrimRight(line, " \t\r"))
}

// lines are the escaped lines of a text, at most n of them unless n is 0, and how many more there are.
func lines(s string, n int) (shown []string, more int) {
	for line := range strings.Lines(strings.TrimRight(s, " \t\r\n")) {
		line = strings.TrimRight(line, "\r\n")
		shown = append(shown, escape(strings.ReplaceAll(line, "\t", "    ")))
	}
	if n > 0 && len(shown) > n+1 { // "1 more line" takes a line itself
		return shown[:n], len(shown) - n
	}
	return shown, 0
}

// cells is how many columns a text takes on a terminal.
func cells(s string) (n int) {
	for _, r := range s {
		switch {
		case unicode.In(r, unicode.Mn, unicode.Me):
		case width.LookupRune(r).Kind() == width.EastAsianWide, width.LookupRune(r).Kind() == width.EastAsianFullwidth:
			n += 2
		default:
			n++
		}
	}
	return n
}

// fit cuts a text to n columns.
func fit(s string, n int) string {
	if cells(s) <= n {
		return s
	}
	used := 0
	for i, r := range s {
		w := cells(string(r))
		if used+w > n-1 {
			return s[:i] + "…"
		}
		used += w
	}
	return s
}

// middle cuts texts to n columns in their middle, where names differ least. Those that would then look alike are cut elsewhere,
// so that they do not, or numbered if there is no such place.
func middle(texts []string, n int) []string {
	alike := map[string][]string{} // what is shown, of which texts
	at := func(text string, tail int) string {
		if cells(text) <= n {
			return text
		}
		return middleAt(text, n, tail)
	}
	half := max(n-1, 0) / 2
	for _, text := range texts {
		shown := at(text, half)
		if !slices.Contains(alike[shown], text) {
			alike[shown] = append(alike[shown], text)
		}
	}
	of := map[string]string{}
	for _, shown := range slices.Sorted(maps.Keys(alike)) {
		group := alike[shown]
		if len(group) == 1 {
			of[group[0]] = shown
			continue
		}
		tail := 0
		for ; tail < n-1; tail++ {
			apart := map[string]bool{}
			for _, text := range group {
				shown := at(text, tail)
				apart[shown] = apart[shown] || len(alike[shown]) == 0
			}
			if len(apart) == len(group) && !slices.Contains(slices.Collect(maps.Values(apart)), false) {
				break
			}
		}
		for i, text := range group {
			if of[text] = at(text, tail); tail == n-1 {
				mark := fmt.Sprintf("…%d", i+1)
				of[text] = strings.TrimSuffix(fit(text, max(n-cells(mark)+1, 1)), "…") + mark
			}
			alike[of[text]] = append(alike[of[text]], text)
		}
	}
	out := make([]string, len(texts))
	for i, text := range texts {
		out[i] = of[text]
	}
	return out
}

// middleAt keeps tail columns of a text's end.
func middleAt(text string, n, tail int) string {
	end := len(text)
	for end > 0 {
		_, size := utf8.DecodeLastRuneInString(text[:end])
		if cells(text[end-size:]) > tail {
			break
		}
		end -= size
	}
	return fit(text[:end]+"…", n-cells(text[end:])) + text[end:]
}

// column is a column of a table. min is how narrow it may get; 0 means that it keeps its width. Where even the narrowest
// form does not fit, columns go, those with the highest spare first.
type column struct {
	title string
	min   int
	spare int
	right bool // numbers
	cells []string
	cut   func(cells []string, n int) []string // nil: each by fit
	paint func(row int, text string) string    // nil: as it is
}

const gap = "  "

// writeTable writes columns of the same length in at most limit terminal columns.
func writeTable(w io.Writer, limit int, columns []column) {
	widths := make([]int, len(columns))
	total := len(gap) * (len(columns) - 1)
	for i, c := range columns {
		widths[i] = cells(c.title)
		for _, cell := range c.cells {
			widths[i] = max(widths[i], cells(cell))
		}
		total += widths[i]
	}
	for ; total > limit; total-- {
		widest, spare := -1, 0
		for i, c := range columns {
			if c.min > 0 && widths[i] > max(c.min, cells(c.title)) && (widest < 0 || widths[i] >= widths[widest]) {
				widest = i
			}
			if c.spare > columns[spare].spare {
				spare = i
			}
		}
		if widest < 0 {
			if columns[spare].spare > 0 {
				writeTable(w, limit, slices.Delete(slices.Clone(columns), spare, spare+1))
				return
			}
			break
		}
		widths[widest]--
	}
	shown := make([][]string, len(columns))
	for i, c := range columns {
		if shown[i] = c.cells; c.cut != nil {
			shown[i] = c.cut(c.cells, widths[i])
		}
	}
	for row := -1; row < len(columns[0].cells); row++ {
		var b strings.Builder
		blank := 0 // not written, as nothing may follow
		for i, c := range columns {
			text := c.title
			if row >= 0 {
				text = fit(shown[i][row], widths[i])
			}
			pad := widths[i] - cells(text)
			if c.right {
				blank, pad = blank+pad, 0
			}
			if trimmed := strings.TrimRight(text, " "); trimmed != "" {
				b.WriteString(strings.Repeat(" ", blank))
				blank, pad = 0, pad+len(text)-len(trimmed)
				if row >= 0 && c.paint != nil {
					trimmed = c.paint(row, trimmed)
				}
				b.WriteString(trimmed)
			} else {
				pad += len(text)
			}
			blank += pad + len(gap)
		}
		fmt.Fprintln(w, b.String())
	}
}

// width is what tables must fit into.
func (c *cli) width() int {
	if c.Width > 0 {
		return c.Width
	}
	if n, err := strconv.Atoi(c.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	return 80
}

func (c *cli) time(t time.Time) string { return t.In(c.Zone).Format("2006-01-02 15:04:05 -07:00") }

// took is how long an attempt ran.
func took(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return "less than 1ms"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return human.Age(d)
}
