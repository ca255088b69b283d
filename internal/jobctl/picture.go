package jobctl

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jobgen-go/jobgen/internal/doctor"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/flow"
	"github.com/jobgen-go/jobgen/internal/human"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// picture is what stats shows.
type picture struct {
	Now      time.Time       `json:"now"`
	Since    float64         `json:"since_s"`
	Share    float64         `json:"share"` // the part of jobs that was counted; less than 1: levels are estimates
	Workers  workforce       `json:"workers"`
	Findings []trouble       `json:"findings"` // worst first
	Total    statsRow        `json:"total"`
	Rows     []statsRow      `json:"rows"` // worst first
	Sizes    []postgres.Size `json:"sizes"`
	NoSizes  string          `json:"sizes_error,omitempty"`

	by string
}

// workforce is who works.
type workforce struct {
	Live   int             `json:"live"`
	Slots  int             `json:"slots"`
	Busy   int             `json:"busy"`     // slots in which a handler ran at their last heartbeats
	Untold int             `json:"untold"`   // of Live: do not tell their slots
	Lost   int             `json:"lost"`     // found dead since
	Silent *float64        `json:"silent_s"` // for how long none that is on record has been heard of; null: none is
	Crews  []postgres.Crew `json:"crews"`
}

// trouble is a finding.
type trouble struct {
	What  string `json:"what"` // no_workers, never_drains, workers_die, stuck, paused or died
	Queue string `json:"queue,omitempty"`
	Kind  string `json:"kind,omitempty"`
	Text  string `json:"text"`
	Fails bool   `json:"fails"` // --check
}

// statsRow is a kind in a queue; without a kind, a queue; without a queue, a kind in all of them; without either, everything.
type statsRow struct {
	Queue     string  `json:"queue,omitempty"`
	Kind      string  `json:"kind,omitempty"`
	Ready     int64   `json:"ready"`
	Oldest    float64 `json:"oldest_s"`
	Scheduled int64   `json:"scheduled"`
	Running   int64   `json:"running"`
	Dead      int64   `json:"dead"`
	Paused    bool    `json:"paused,omitempty"`
	During    during  `json:"during"`
	Trend     trend   `json:"trend"`
	Series    series  `json:"series"`

	history []engine.Sample
}

// during is what happened since, the unfinished minute included.
type during struct {
	Arrived   int64 `json:"arrived"`
	Succeeded int64 `json:"succeeded"`
	Failed    int64 `json:"failed"` // attempts
	TimedOut  int64 `json:"timed_out"`
	Snoozed   int64 `json:"snoozed"`
	Cancelled int64 `json:"cancelled"`
	Died      int64 `json:"died"`
	Reclaimed int64 `json:"reclaimed"`
}

// series are by minute, the last of which is not finished.
type series struct {
	Ready     gappy `json:"ready"` // and, as the last, that of now
	Arrived   gappy `json:"arrived"`
	Left      gappy `json:"left"`
	Reclaimed gappy `json:"reclaimed"`
}

// gappy has NaN where nothing is known, which is null in JSON.
type gappy []float64

func (g gappy) MarshalJSON() ([]byte, error) {
	out := make([]*float64, len(g))
	for i := range g {
		if !math.IsNaN(g[i]) {
			out[i] = &g[i]
		}
	}
	return json.Marshal(out)
}

// view is all that a picture is made of.
type view struct {
	look    engine.Look
	samples []engine.Sample
	looks   []engine.Look
	crews   []postgres.Crew
	lost    int
	silent  time.Duration
	paused  map[string]time.Duration // how long
	sizes   []postgres.Size
	noSizes error
	before  *glance // an earlier look, for when nobody counts
}

// place is where a row belongs.
type place struct{ queue, kind string }

// within is the row of a kind in a queue, if there is a row for less.
func (f *statsFlags) within(queue, kind string) place {
	switch f.by {
	case "queue":
		return place{queue, ""}
	case "kind":
		return place{"", kind}
	}
	return place{queue, kind}
}

func (f *statsFlags) wants(queue, kind string) bool {
	return (len(f.queues) == 0 || slices.Contains(f.queues, queue)) && (len(f.kinds) == 0 || slices.Contains(f.kinds, kind))
}

// draw makes a picture of a view.
func (f *statsFlags) draw(v view) picture {
	p := picture{Now: v.look.At.UTC(), Since: f.since.Seconds(), Share: v.look.Share, Sizes: v.sizes, by: f.by, Findings: []trouble{}, Rows: []statsRow{}}
	p.Workers = workforce{Lost: v.lost, Crews: v.crews}
	if v.silent >= 0 {
		s := v.silent.Seconds()
		p.Workers.Silent = &s
	}
	for _, c := range v.crews {
		p.Workers.Live += c.Workers
		p.Workers.Slots += c.Slots
		p.Workers.Busy += c.Running
		p.Workers.Untold += c.Untold
	}
	if v.noSizes != nil {
		p.NoSizes = v.noSizes.Error()
	}
	b := board{rows: map[place]*statsRow{}, from: v.look.At.Add(-f.since).Truncate(time.Minute)}
	b.minutes = int(v.look.At.Sub(b.from)/time.Minute) + 1
	b.looked = make([]bool, b.minutes)
	for _, l := range v.looks {
		if i := b.minute(l.At); i >= 0 {
			b.looked[i] = true
		}
	}
	for _, s := range v.samples {
		if i := b.minute(s.Minute); i >= 0 && s.Level != nil {
			b.looked[i] = true
		}
	}
	for _, at := range f.places("", "") {
		b.row(at)
	}
	for _, s := range v.samples {
		if f.wants(s.Queue, s.Kind) && b.minute(s.Minute) >= 0 {
			for _, at := range f.places(s.Queue, s.Kind) {
				b.row(at).happened(s, b.minute(s.Minute))
			}
		}
	}
	for _, l := range v.look.Levels {
		if f.wants(l.Queue, l.Kind) {
			for _, at := range f.places(l.Queue, l.Kind) {
				b.row(at).is(l)
			}
		}
	}
	for at, r := range b.rows {
		_, r.Paused = v.paused[r.Queue]
		r.Series.Ready = append(r.Series.Ready, float64(r.Ready))
		r.Trend = r.trendOf(&v, p.Workers.Live)
		if at == (place{}) {
			p.Total = *r
		} else if r.alive() {
			p.Rows = append(p.Rows, *r)
		}
	}
	slices.SortFunc(p.Rows, worse)
	p.find(v)
	return p
}

// places are the rows to which a kind in a queue counts: its own, that of its queue, and that of everything.
func (f *statsFlags) places(queue, kind string) []place {
	if queue == "" {
		return []place{{}}
	}
	out := []place{{}, f.within(queue, kind)}
	if f.by == "" {
		out = append(out, place{queue, ""})
	}
	return out
}

// board is where rows come together.
type board struct {
	rows    map[place]*statsRow
	from    time.Time
	minutes int
	looked  []bool // by minute: somebody looked
}

func (b *board) minute(t time.Time) int {
	if i := int(t.Sub(b.from) / time.Minute); !t.Before(b.from) && i < b.minutes {
		return i
	}
	return -1
}

func (b *board) row(at place) *statsRow {
	if r := b.rows[at]; r != nil {
		return r
	}
	r := &statsRow{Queue: at.queue, Kind: at.kind, history: make([]engine.Sample, b.minutes)}
	for _, s := range []*gappy{&r.Series.Ready, &r.Series.Arrived, &r.Series.Left, &r.Series.Reclaimed} {
		*s = make(gappy, b.minutes)
		for i, looked := range b.looked {
			if !looked {
				(*s)[i] = math.NaN()
			}
		}
	}
	for i := range r.history {
		r.history[i] = engine.Sample{Minute: b.from.Add(time.Duration(i) * time.Minute), Queue: at.queue, Kind: at.kind}
		if b.looked[i] {
			r.history[i].Level = &engine.Level{Queue: at.queue, Kind: at.kind}
		}
	}
	b.rows[at] = r
	return r
}

// happened adds what happened in a minute.
func (r *statsRow) happened(s engine.Sample, minute int) {
	h := &r.history[minute]
	h.Add(&s)
	if l := s.Level; l != nil {
		h.Level.Ready += l.Ready
		h.Level.Scheduled += l.Scheduled
		h.Level.Running += l.Running
		h.Level.Dead += l.Dead
		h.Level.Oldest = max(h.Level.Oldest, l.Oldest)
		r.Series.Ready.add(minute, float64(l.Ready))
	}
	r.Series.Arrived.add(minute, float64(s.Arrived))
	r.Series.Left.add(minute, float64(s.Succeeded+s.Cancelled+s.Died))
	r.Series.Reclaimed.add(minute, float64(s.Reclaimed))
	d := &r.During
	d.Arrived += s.Arrived
	d.Succeeded += s.Succeeded
	d.Failed += s.Failed
	d.TimedOut += s.TimedOut
	d.Snoozed += s.Snoozed
	d.Cancelled += s.Cancelled
	d.Died += s.Died
	d.Reclaimed += s.Reclaimed
}

func (g gappy) add(i int, v float64) {
	if math.IsNaN(g[i]) {
		g[i] = 0
	}
	g[i] += v
}

// is adds what there is now.
func (r *statsRow) is(l engine.Level) {
	r.Ready += l.Ready
	r.Scheduled += l.Scheduled
	r.Running += l.Running
	r.Dead += l.Dead
	r.Oldest = max(r.Oldest, l.Oldest.Seconds())
}

// alive tells whether there is anything to say of a row.
func (r *statsRow) alive() bool {
	return r.Ready+r.Scheduled+r.Running+r.Dead > 0 || r.During != during{}
}

// level is what there is now.
func (r *statsRow) level() engine.Level {
	return engine.Level{
		Queue: r.Queue, Kind: r.Kind, Ready: r.Ready, Scheduled: r.Scheduled, Running: r.Running, Dead: r.Dead,
		Oldest: time.Duration(r.Oldest * float64(time.Second)),
	}
}

// in tells whether a crew has something to do with a row.
func (at place) in(c postgres.Crew) bool {
	return (at.queue == "" || slices.Contains(c.Queues, at.queue)) && (at.kind == "" || slices.Contains(c.Kinds, at.kind))
}

// worse orders rows: what never drains first, then by how long the oldest has waited, then by how many wait.
func worse(a, b statsRow) int {
	never := func(r statsRow) int {
		if r.Trend.Verdict == flow.Never && !r.Paused {
			return 0
		}
		return 1
	}
	return cmp.Or(never(a)-never(b), cmp.Compare(b.Oldest, a.Oldest), cmp.Compare(b.Ready, a.Ready), cmp.Compare(b.During.Reclaimed, a.During.Reclaimed),
		cmp.Compare(b.Dead, a.Dead), strings.Compare(a.Queue, b.Queue), strings.Compare(a.Kind, b.Kind))
}

// leaves are the rows that are not the sum of others.
func (p *picture) leaves() []statsRow {
	return slices.DeleteFunc(slices.Clone(p.Rows), func(r statsRow) bool { return p.by == "" && r.Kind == "" })
}

func (r *statsRow) name() string {
	switch {
	case r.Kind == "":
		return r.Queue
	case r.Queue == "":
		return r.Kind
	}
	return fmt.Sprintf("%s in %s", r.Kind, r.Queue)
}

// find says what hurts, the worst first.
func (p *picture) find(v view) {
	add := func(what string, r statsRow, fails bool, format string, args ...any) {
		p.Findings = append(p.Findings, trouble{what, r.Queue, r.Kind, fmt.Sprintf(format, args...), fails})
	}
	waits := p.Total.Ready+p.Total.Running > 0
	if p.Workers.Live == 0 {
		heard := "none is on record"
		if v.silent >= 0 {
			heard = "the last was heard of " + human.Age(v.silent) + " ago"
		}
		if t := p.Total.Trend; t.From != nil {
			heard += fmt.Sprintf("; growth is what was seen in %s", human.Age(t.To.Sub(*t.From)))
		}
		add("no_workers", statsRow{}, waits, "no worker is alive (%s)", heard)
	}
	if n := p.Total.During.Reclaimed; n > 0 || v.lost > 0 {
		p.dying(v, n)
	}
	stuck := 0
	for _, c := range v.crews {
		stuck += c.Stuck
	}
	if stuck > 0 {
		add("stuck", statsRow{}, waits && stuck >= p.Workers.Slots, "%d of %s taken by handlers that go on although their context has ended; see `jobctl workers`", stuck, human.Count(p.Workers.Slots, "slot is", "slots are"))
	}
	held := map[string]int64{}
	for _, r := range p.leaves() {
		switch t := r.Trend; {
		case r.Ready == 0, p.Workers.Live == 0:
		case r.Paused:
			held[r.Queue] += r.Ready
		case t.Workers == 0:
			why := "no live worker handles it"
			if r.Queue != "" && !slices.ContainsFunc(v.crews, place{r.Queue, ""}.in) {
				why = "no live worker polls that queue"
			}
			add("never_drains", r, true, "%s: %s wait, and %s", r.name(), short(float64(r.Ready)), why)
		case t.Verdict == flow.Never && r.idle():
			add("never_drains", r, true, "%s: %s wait, and none has run of late; `jobctl doctor` looks for why", r.name(), short(float64(r.Ready)))
		case t.Verdict == flow.Never:
			add("never_drains", r, true, "%s never drains at this rate: %s come a minute and %s go%s", r.name(), t.Due.text(rate), t.Out.text(rate), v.more(r))
		}
	}
	for _, queue := range slices.Sorted(maps.Keys(held)) {
		add("paused", statsRow{Queue: queue}, false, "%s is paused, for %s; %s wait; to go on: `jobctl queues resume %s`", queue, human.Age(v.paused[queue]), short(float64(held[queue])), doctor.Argument(queue))
	}
	for _, r := range p.leaves() {
		if n := r.During.Died; n > 0 {
			add("died", r, false, "%s: %s died in the last %s; see `jobctl jobs list --status dead`", r.name(), human.Count(int(n), "job", "jobs"), span(time.Duration(p.Since*float64(time.Second))))
		}
	}
}

// idle tells whether nothing of a row runs or has run: then a rate says nothing, and more workers like these would not help.
func (r *statsRow) idle() bool {
	return r.Running == 0 && r.Trend.Out == 0 && r.Trend.Failed == 0 && r.Trend.Reclaim == 0
}

// more says how many workers would do.
func (v *view) more(r statsRow) string {
	at := place{r.Queue, r.Kind}
	crew, _ := crewOf(v.crews, at)
	slots, stuck := 0, 0
	for _, c := range v.crews {
		if at.in(c) {
			slots, stuck = slots+c.Slots, stuck+c.Stuck
		}
	}
	switch n := r.Trend.More; {
	case stuck*2 > slots:
		return "; most of its workers' slots are stuck"
	case n == 1:
		return "; about 1 more worker like these"
	case n > 1:
		return fmt.Sprintf("; about %d more workers like these", n)
	case r.Trend.Out > 0 && crew.Busy > 0:
		return fmt.Sprintf("; not for want of workers: %.0f%% of their slots are busy", 100*crew.Busy)
	}
	return ""
}

// dyingFor is for how long workers that were lost count as dying.
const dyingFor = 5 // minutes

// dying names what reclaims mean.
func (p *picture) dying(v view, reclaimed int64) {
	s := p.Total.Series.Reclaimed
	late, last := 0.0, 0
	for i, n := range s {
		if n > 0 {
			if last = len(s) - 1 - i; last <= dyingFor {
				late += n
			}
		}
	}
	window := span(time.Duration(p.Since * float64(time.Second)))
	text := fmt.Sprintf("%s lost in the last %s", human.Count(v.lost, "worker was", "workers were"), window)
	if reclaimed > 0 {
		text = fmt.Sprintf("%s taken back from lost workers in the last %s", human.Count(int(reclaimed), "attempt was", "attempts were"), window)
		if v.lost > 0 {
			text += fmt.Sprintf(" (%s)", human.Count(v.lost, "worker", "workers"))
		}
	}
	t := trouble{What: "workers_die", Text: "workers die: " + text, Fails: late > 0}
	switch {
	case late > 0:
		t.Text += fmt.Sprintf(", %s a minute of late", rate(late/(dyingFor+1)))
	case reclaimed > 0:
		t.Text = fmt.Sprintf("workers died: %s, none for %s", text, human.Age(time.Duration(last)*time.Minute))
	}
	p.Findings = append(p.Findings, t)
}
