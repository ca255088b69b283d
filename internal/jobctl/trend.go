package jobctl

import "github.com/jobgen-go/jobgen/internal/engine"

const never = "never"

// trend is which way a row moves.
type trend struct {
	Verdict string   `json:"verdict"`
	In      float64  `json:"in_per_minute"`
	Out     float64  `json:"out_per_minute"`
	Growth  float64  `json:"growth_per_hour"`
	Drain   *float64 `json:"drains_in_s"`
	More    int      `json:"more_workers,omitempty"`
	Workers int      `json:"workers"`
}

func (r *statsRow) trendOf(look engine.Look, workers int) trend {
	t := trend{Workers: workers}
	n := 0.0
	for i := max(len(r.history)-6, 0); i < len(r.history)-1; i++ {
		h := r.history[i]
		t.In += float64(h.Arrived)
		t.Out += float64(h.Succeeded + h.Cancelled + h.Died)
		n++
	}
	t.In /= n
	t.Out /= n
	t.Growth = 60 * (t.In - t.Out)
	switch {
	case r.Ready == 0:
		t.Verdict = "empty"
	case t.In >= t.Out:
		t.Verdict = never
		if t.Out > 0 && workers > 0 {
			t.More = 1 + int(float64(workers)*(t.In-t.Out)/t.Out)
		}
	default:
		t.Verdict = "drains"
		d := 60 * float64(r.Ready) / (t.Out - t.In)
		t.Drain = &d
	}
	return t
}
