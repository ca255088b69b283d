package jobctl

import (
	"encoding/json"
	"math"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/flow"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// trend is which way a row moves. Its rates are NaN, in JSON null, if they are not known.
type trend struct {
	Verdict flow.Verdict `json:"verdict"`
	In      known        `json:"in_per_minute"` // came
	Due     known        `json:"due_per_minute"`
	Out     known        `json:"out_per_minute"` // left for good
	Failed  known        `json:"failed_per_minute"`
	Reclaim known        `json:"reclaimed_per_minute"`
	Growth  known        `json:"growth_per_hour"`
	Drains  *float64     `json:"drains_in_s"`            // of drains
	More    int          `json:"more_workers,omitempty"` // of never: about how many would do; 0: not known
	Workers int          `json:"workers"`                // live, that handle it
	From    *time.Time   `json:"from"`                   // what the rates are of; null: they are not known
	To      *time.Time   `json:"to"`
	Seen    bool         `json:"seen,omitempty"` // not counted by workers: the growth is what was seen between two looks
}

// known is a number that may be NaN, which is null in JSON.
type known float64

func (k known) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(k)) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(k))
}

func (k known) text(format func(float64) string) string {
	if math.IsNaN(float64(k)) {
		return "?"
	}
	return format(float64(k))
}

// staleAfter is for how long nobody may have looked for what has been counted to be of now.
const staleAfter = 3 * time.Minute

// trendOf asks internal/flow, unless nobody counts any more, or not yet.
func (r *statsRow) trendOf(v *view, live int) trend {
	crew, workers := crewOf(v.crews, place{r.Queue, r.Kind})
	if live == 0 || v.lastLook().Before(v.look.At.Add(-staleAfter)) {
		return r.seen(v, live)
	}
	f := flow.Of(r.history, v.looks, r.level(), crew, flow.Window)
	if !f.To.After(f.From) { // they count since a moment ago
		return r.seen(v, live)
	}
	t := trend{
		Verdict: f.Verdict, In: known(f.In), Due: known(f.Due), Out: known(f.Out), Failed: known(f.Failed), Reclaim: known(f.Reclaims),
		Growth: known(f.Growth), More: f.More, Workers: workers,
	}
	t.From, t.To = new(f.From.UTC()), new(f.To.UTC())
	if f.Verdict == flow.Drains {
		t.Drains = new(f.Drain.Seconds())
	}
	return t
}

func (t *trend) unknown() {
	nan := known(math.NaN())
	t.In, t.Due, t.Out, t.Failed, t.Reclaim, t.Growth = nan, nan, nan, nan, nan, nan
}

// seen is the trend from an earlier look to this one, where nothing has been counted. Without a worker nothing leaves, so what is new has come.
func (r *statsRow) seen(v *view, live int) trend {
	_, workers := crewOf(v.crews, place{r.Queue, r.Kind})
	t := trend{Verdict: flow.Unknown, Workers: workers, Seen: true}
	t.unknown()
	if r.Ready == 0 {
		t.Verdict = flow.Empty
	} else if live == 0 {
		t.Verdict = flow.Never
	}
	g := v.before
	if g == nil || !g.at.Before(v.look.At) {
		return t
	}
	minutes := v.look.At.Sub(g.at).Minutes()
	more := float64(r.Ready-g.ready[place{r.Queue, r.Kind}]) / minutes
	t.Growth, t.From, t.To = known(60*more), new(g.at.UTC()), new(v.look.At.UTC())
	if live == 0 {
		t.In, t.Due, t.Out = known(max(more, 0)), known(max(more, 0)), 0
	}
	return t
}

// glance is what was ready at a time, by row.
type glance struct {
	at    time.Time
	ready map[place]int64
}

func (v *view) lastLook() (at time.Time) {
	for _, l := range v.looks {
		if l.At.After(at) {
			at = l.At
		}
	}
	return at
}

// lastGlance is the last look of the fleet; nil: there is none.
func (f *statsFlags) lastGlance(v *view) *glance {
	g := &glance{at: v.lastLook(), ready: map[place]int64{}}
	if g.at.IsZero() {
		return nil
	}
	for _, s := range v.samples {
		if s.Level != nil && s.Minute.Equal(g.at.Truncate(time.Minute)) {
			f.count(g, *s.Level)
		}
	}
	return g
}

func (f *statsFlags) glance(look engine.Look) *glance {
	g := &glance{at: look.At, ready: map[place]int64{}}
	for _, l := range look.Levels {
		f.count(g, l)
	}
	return g
}

func (f *statsFlags) count(g *glance, l engine.Level) {
	if f.wants(l.Queue, l.Kind) {
		for _, at := range f.places(l.Queue, l.Kind) {
			g.ready[at] += l.Ready
		}
	}
}

// What a watch remembers of its own looks.
const (
	glancesFor   = 5 * time.Minute
	glanceEnough = 30 * time.Second // older than that it is preferred to the last look of the fleet
)

// memory is what a watch has seen.
type memory struct{ glances []*glance }

// remember notes a look, and chooses with which earlier one it is to be compared.
func (m *memory) remember(f *statsFlags, v *view) {
	for len(m.glances) > 0 && v.look.At.Sub(m.glances[0].at) > glancesFor {
		m.glances = m.glances[1:]
	}
	own := len(m.glances) > 0
	if v.before = f.lastGlance(v); own && (v.before == nil || v.look.At.Sub(m.glances[0].at) >= glanceEnough) {
		v.before = m.glances[0]
	}
	m.glances = append(m.glances, f.glance(v.look))
}

// crewOf is the live workers that a row has.
func crewOf(crews []postgres.Crew, at place) (crew flow.Crew, workers int) {
	slots, busy := 0, 0
	for _, c := range crews {
		if at.in(c) {
			workers += c.Workers
			slots, busy = slots+c.Slots, busy+c.Running
		}
	}
	crew.Workers = workers
	if slots > 0 {
		crew.Busy = float64(busy) / float64(slots)
	}
	return crew, workers
}
