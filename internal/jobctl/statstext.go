package jobctl

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jobgen-go/jobgen/internal/flow"
	"github.com/jobgen-go/jobgen/internal/human"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// findingsMost is how many findings are said above the tables, which show the others.
const findingsMost = 6

// writePicture writes what a person looks at: what hurts on top, then what waits, what happened, and sizes.
func (c *cli) writePicture(w io.Writer, p *picture, down *outage) {
	if down != nil {
		c.writeParagraph(w, hurts, fmt.Sprintf("this is %s old; trying again: %s", human.Age(down.since), down.text))
	}
	c.writeHead(w, p)
	for i, f := range p.Findings {
		if i == findingsMost && len(p.Findings) > findingsMost+1 {
			c.writeParagraph(w, plainly, fmt.Sprintf("… and %d more findings: --json has them all", len(p.Findings)-i))
			break
		}
		how := careful
		if f.Fails {
			how = hurts
		}
		c.writeParagraph(w, how, "! "+f.Text)
	}
	if len(p.Rows) == 0 {
		fmt.Fprintf(w, "\nnothing waits, and nothing has happened in the last %s\n", span(seconds(p.Since)))
	} else {
		list := arrange(p)
		fmt.Fprintln(w)
		writeTable(w, c.width(), c.waiting(p, list))
		fmt.Fprintln(w)
		writeTable(w, c.width(), c.happened(p, list))
	}
	fmt.Fprintln(w)
	c.writeSizes(w, p)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// writeHead says how all of it stands.
func (c *cli) writeHead(w io.Writer, p *picture) {
	f, t := p.Workers, p.Total
	parts := []string{human.Count(f.Live, "worker", "workers")}
	switch {
	case f.Live == 0:
	case f.Untold == f.Live: // programs before schema 3
	default:
		parts[0] += fmt.Sprintf(", %d of %d slots busy", f.Busy, f.Slots)
	}
	ready := short(float64(t.Ready)) + " ready"
	if t.Ready > 0 || t.Trend.Growth > 0 { // NaN is not
		ready += ": " + direction(t.Trend)
	}
	parts = append(parts, ready)
	if p.Share < 1 {
		parts = append(parts, "estimated from "+percent(p.Share)+" of the table")
	}
	at := c.time(p.Now)
	head := strings.Join(parts, "; ")
	if room := c.width() - cells(head) - cells(at); room >= 2 {
		fmt.Fprintln(w, c.paint(strong, head)+strings.Repeat(" ", room)+at)
		return
	}
	fmt.Fprintln(w, at)
	c.writeParagraph(w, strong, head)
}

func percent(share float64) string {
	if n := 100 * share; n >= 1 {
		return fmt.Sprintf("%.0f%%", n)
	}
	return fmt.Sprintf("%.2g%%", 100*share)
}

// direction says in words which way a row moves.
func direction(t trend) string {
	switch {
	case t.Drains != nil:
		return "drains in " + human.Age(seconds(*t.Drains))
	case t.Verdict == flow.Never && t.From == nil:
		return "never drains"
	case t.Verdict == flow.Never:
		return t.Growth.text(signed) + " an hour, never drains"
	case t.From == nil:
		return "which way is not known yet"
	case t.Verdict == flow.Steady:
		return "steady"
	}
	return t.Growth.text(signed) + " an hour"
}

// writeParagraph wraps a text at the width of the terminal. Words wider than half of that are cut.
func (c *cli) writeParagraph(w io.Writer, how colour, text string) {
	limit, line := c.width(), ""
	flush := func() {
		fmt.Fprintln(w, c.paint(how, fit(line, limit)))
	}
	for _, word := range unbroken(strings.Fields(escape(text)), limit-2) {
		if !strings.Contains(word, " ") {
			word = middle([]string{word}, max(limit/2, 10))[0]
		}
		switch {
		case line == "":
			line = word
		case cells(line)+1+cells(word) > limit:
			flush()
			line = "  " + word
		default:
			line += " " + word
		}
	}
	flush()
}

// unbroken joins the words of each command, which stands between backquotes, if that fits: it is to be pasted.
func unbroken(words []string, limit int) (out []string) {
	for i := 0; i < len(words); i++ {
		for n := i + 1; strings.Count(words[i], "`") == 1 && n <= len(words); n++ {
			if command := strings.Join(words[i:n], " "); strings.Count(command, "`") == 2 {
				if cells(command) <= limit {
					words[n-1] = command
					i = n - 1
				}
				break
			}
		}
		out = append(out, words[i])
	}
	return out
}

// listed is a row with its name in the tables.
type listed struct {
	*statsRow
	name  string
	total bool // the sum of those that follow
}

// arrange groups the kinds of each queue below its sum, in the order of the worst of each. A queue with one kind has one row.
func arrange(p *picture) (out []listed) {
	if p.by != "" {
		for i := range p.Rows {
			r := &p.Rows[i]
			out = append(out, listed{statsRow: r, name: escape(r.Queue + r.Kind)})
		}
		return out
	}
	kinds := map[string][]*statsRow{}
	sums := map[string]*statsRow{}
	var queues []string
	for i := range p.Rows {
		r := &p.Rows[i]
		if r.Kind == "" {
			sums[r.Queue] = r
			continue
		}
		if kinds[r.Queue] == nil {
			queues = append(queues, r.Queue)
		}
		kinds[r.Queue] = append(kinds[r.Queue], r)
	}
	for _, q := range queues {
		if len(kinds[q]) == 1 {
			out = append(out, listed{statsRow: kinds[q][0], name: escape(q) + " / " + escape(kinds[q][0].Kind)})
			continue
		}
		out = append(out, listed{statsRow: sums[q], name: escape(q), total: true})
		for _, r := range kinds[q] {
			out = append(out, listed{statsRow: r, name: "  " + escape(r.Kind)})
		}
	}
	return out
}

func title(p *picture) string {
	if p.by != "" {
		return strings.ToUpper(p.by)
	}
	return "QUEUE / KIND"
}

// Columns of the name, and of the series, at the least.
const (
	nameLeast  = 16
	sparkLeast = 8
	sparkMost  = 30
	sparkFrom  = 100 // what the rest of a wide table takes
)

// table fills columns from rows.
func table(columns []column, rows []listed, cell func(r listed) []string) []column {
	for _, r := range rows {
		for i, text := range cell(r) {
			columns[i].cells = append(columns[i].cells, text)
		}
	}
	return columns
}

// waiting is the table of what waits and which way it moves.
func (c *cli) waiting(p *picture, rows []listed) []column {
	marked := func(of func(r *statsRow) colour) func(int, string) string {
		return func(i int, text string) string { return c.paint(of(rows[i].statsRow), text) }
	}
	stuck := func(r *statsRow) colour {
		if r.Trend.Verdict == flow.Never && r.Ready > 0 && !r.Paused {
			return hurts
		}
		return plainly
	}
	columns := []column{
		{title: title(p), min: nameLeast, cut: middle, paint: func(i int, text string) string {
			if rows[i].total {
				return c.paint(strong, text)
			}
			return text
		}},
		{title: "READY", right: true},
		{title: "OLDEST", right: true, paint: marked(stuck)},
		{title: "IN/MIN", right: true, spare: 2}, {title: "OUT/MIN", right: true, spare: 3},
		{title: "GROWTH/H", right: true, paint: marked(stuck)},
		{title: "LAST " + span(seconds(p.Since)), spare: 1},
		{title: "DRAINS", paint: marked(stuck)}, {title: "WORKERS", spare: 4, paint: marked(stuck)},
	}
	columns = table(columns, rows, func(r listed) []string {
		oldest := ""
		if r.Ready > 0 {
			oldest = human.Age(seconds(r.Oldest))
		}
		return []string{r.name, short(float64(r.Ready)), oldest, r.Trend.Due.text(rate), r.Trend.Out.text(rate), r.Trend.Growth.text(signed), "", drains(r.statsRow), workers(r.Trend)}
	})
	room := min(max(c.width()-sparkFrom, sparkLeast), sparkMost)
	for i, r := range rows {
		columns[6].cells[i] = spark(r.Series.Ready, room, c.bars())
	}
	return columns
}

// drains is when nothing will be waiting.
func drains(r *statsRow) string {
	switch t := r.Trend; {
	case r.Paused:
		return "paused"
	case r.Ready == 0:
		return ""
	case t.Drains != nil:
		return human.Age(seconds(*t.Drains))
	case t.Verdict == flow.Unknown:
		return "?"
	}
	return string(r.Trend.Verdict)
}

// workers is how many handle it, and how many more would do.
func workers(t trend) string {
	if t.More > 0 {
		return fmt.Sprintf("%d +%d", t.Workers, t.More)
	}
	return strconv.Itoa(t.Workers)
}

// happened is the table of what is done with jobs.
func (c *cli) happened(p *picture, rows []listed) []column {
	red := func(of func(r *statsRow) bool) func(int, string) string {
		return func(i int, text string) string {
			if of(rows[i].statsRow) {
				return c.paint(hurts, text)
			}
			return text
		}
	}
	columns := []column{
		{title: "IN THE LAST " + span(seconds(p.Since)), min: nameLeast, cut: middle},
		{title: "RUNNING", right: true}, {title: "SCHEDULED", right: true, spare: 2}, {title: "DEAD", right: true, paint: red(func(r *statsRow) bool { return r.During.Died > 0 })},
		{title: "SUCCEEDED", right: true, spare: 1}, {title: "FAILED", right: true},
		{title: "RECLAIMED", right: true, paint: red(func(r *statsRow) bool { return r.During.Reclaimed > 0 })},
	}
	return table(columns, rows, func(r listed) []string {
		dead := short(float64(r.Dead))
		if n := r.During.Died; n > 0 {
			dead += " +" + short(float64(n))
		}
		reclaimed := "0"
		if n := r.During.Reclaimed; n > 0 {
			reclaimed = fmt.Sprintf("%s, %s/min", short(float64(n)), r.Trend.Reclaim.text(rate))
		}
		return []string{r.name, short(float64(r.Running)), short(float64(r.Scheduled)), dead, short(float64(r.During.Succeeded)), short(float64(r.During.Failed)), reclaimed}
	})
}

// Tables below smallTable are shown as one, but for jobs; of those above, dead rows from deadShare on are marked.
const (
	smallTable = 1 << 20
	deadShare  = 0.2
)

// writeSizes shows how large the tables are.
func (c *cli) writeSizes(w io.Writer, p *picture) {
	if p.NoSizes != "" {
		c.writeParagraph(w, careful, "the sizes of the tables are not known: "+p.NoSizes)
		return
	}
	type entry struct {
		name           string
		indexes        int64
		*postgres.Size // of the table
	}
	var tables []entry
	for i := range p.Sizes {
		if s := &p.Sizes[i]; s.Index == "" {
			tables = append(tables, entry{name: s.Table, Size: s})
		} else {
			tables[len(tables)-1].indexes += s.Bytes
		}
	}
	if len(tables) == 0 {
		return
	}
	var shown []entry
	others, small := int64(0), 0
	for _, t := range tables {
		if t.name != "jobs" && t.Bytes+t.indexes < smallTable {
			others, small = others+t.Bytes+t.indexes, small+1
			continue
		}
		shown = append(shown, t)
	}
	ill := func(i int, text string) string {
		if t := shown[i]; t.Live+t.Dead > 0 && t.Bytes >= smallTable && float64(t.Dead) >= deadShare*float64(t.Live+t.Dead) {
			return c.paint(careful, text)
		}
		return text
	}
	columns := []column{
		{title: "TABLE"}, {title: "BYTES", right: true}, {title: "INDEXES", right: true}, {title: "ROWS", right: true},
		{title: "DEAD ROWS", right: true, paint: ill}, {title: "AUTOVACUUM", spare: 1},
	}
	for _, t := range shown {
		dead := short(float64(t.Dead))
		if n := t.Live + t.Dead; n > 0 && t.Dead > 0 {
			dead += fmt.Sprintf(" %.0f%%", 100*float64(t.Dead)/float64(n))
		}
		vacuumed := "never"
		if t.AutovacuumAt != nil {
			vacuumed = human.Age(p.Now.Sub(*t.AutovacuumAt)) + " ago"
		}
		for i, cell := range []string{t.name, human.Bytes(t.Bytes), human.Bytes(t.indexes), short(float64(t.Live)), dead, vacuumed} {
			columns[i].cells = append(columns[i].cells, cell)
		}
	}
	writeTable(w, c.width(), columns)
	if small > 0 {
		fmt.Fprintf(w, "and %s, %s together\n", human.Count(small, "other", "others"), human.Bytes(others))
	}
}
