package jobctl

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// short is a number in four figures at most: 9999, 12.4k, 124k, 1.2M.
func short(n float64) string {
	sign := ""
	if n < 0 {
		sign, n = "-", -n
	}
	if math.Round(n) < 10_000 {
		return sign + strconv.FormatFloat(math.Round(n), 'f', 0, 64)
	}
	for _, unit := range []string{"k", "M", "G", "T"} {
		if n /= 1000; n < 999.5 || unit == "T" {
			if n < 99.95 {
				return sign + strconv.FormatFloat(n, 'f', 1, 64) + unit
			}
			return sign + strconv.FormatFloat(n, 'f', 0, 64) + unit
		}
	}
	return ""
}

// rate is short, with what is left of it below ten; 0 is nothing at all.
func rate(n float64) string {
	switch {
	case n == 0:
		return "0"
	case math.Abs(n) < 0.05:
		return "<0.1"
	case math.Abs(n) < 9.95:
		return strings.TrimSuffix(strconv.FormatFloat(n, 'f', 1, 64), ".0")
	}
	return short(n)
}

// signed is rate with its sign.
func signed(n float64) string {
	if n > 0 {
		return "+" + rate(n)
	}
	return rate(n)
}

// span is a round duration as a flag has it: 1h, 90m, 45s.
func span(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

var (
	bars      = []rune("▁▂▃▄▅▆▇█")
	asciiBars = []rune("_.:-=+*#")
)

// spark draws a series in n columns, from 0 to its highest value: each column is the mean of its part. NaN is what nobody has
// seen, and is left blank.
func spark(series []float64, n int, levels []rune) string {
	if len(series) < n {
		n = len(series)
	}
	if n == 0 {
		return ""
	}
	columns := make([]float64, n)
	highest := 0.0
	for i := range columns {
		sum, seen := 0.0, 0
		for _, v := range series[i*len(series)/n : (i+1)*len(series)/n] {
			if !math.IsNaN(v) {
				sum, seen = sum+v, seen+1
			}
		}
		columns[i] = math.NaN()
		if seen > 0 {
			columns[i] = sum / float64(seen)
			highest = max(highest, columns[i])
		}
	}
	var b strings.Builder
	for _, v := range columns {
		switch {
		case math.IsNaN(v):
			b.WriteByte(' ')
		case v <= 0:
			b.WriteRune(levels[0])
		default: // the lowest is for nothing at all
			b.WriteRune(levels[min(1+int(v/highest*float64(len(levels)-1)), len(levels)-1)])
		}
	}
	return b.String()
}

// utf8 tells whether the terminal shows more than ASCII, as the C library finds it.
func (c *cli) utf8() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := c.Getenv(name); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}

func (c *cli) bars() []rune {
	if c.utf8() {
		return bars
	}
	return asciiBars
}

// colour of text on a terminal that has some, by SGR.
type colour string

const (
	plainly colour = ""
	hurts   colour = "31"
	careful colour = "33"
	strong  colour = "1"
	faint   colour = "2"
)

// paint is for text that is escaped already.
func (c *cli) paint(how colour, text string) string {
	if how == plainly || text == "" || !c.coloured() {
		return text
	}
	return "\x1b[" + string(how) + "m" + text + "\x1b[0m"
}

func (c *cli) coloured() bool {
	return c.Width > 0 && c.Getenv("NO_COLOR") == "" && c.Getenv("TERM") != "dumb"
}
