package doctor

import (
	"slices"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/flow"
	"github.com/jobgen-go/jobgen/internal/human"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// direction: a backlog is a state; that it grows is what hurts. Of what no live worker takes, the check workers tells.
func (v *visit) direction() error {
	op := postgres.Operator{Pool: v.pool}
	look, err := op.Look(v.ctx)
	if err != nil {
		return err
	}
	since := flow.Window + 5*time.Minute
	looks, err := op.Looks(v.ctx, since)
	if err != nil {
		return err
	}
	samples, err := op.Samples(v.ctx, since)
	if err != nil {
		return err
	}
	workers, err := v.q.DoctorWorkers(v.ctx)
	if err != nil {
		return err
	}
	paused, err := v.q.DoctorPaused(v.ctx)
	if err != nil {
		return err
	}
	var unknown []string
	for _, l := range look.Levels {
		if l.Ready == 0 || l.Oldest < v.limits.Backlog {
			continue
		}
		stopped := false
		for _, p := range paused {
			stopped = stopped || p.Name == l.Queue
		}
		var crew flow.Crew
		slots, running, stuck := 0, 0, 0
		for _, w := range workers {
			if w.Live && slices.Contains(w.Queues, l.Queue) && slices.Contains(w.Kinds, l.Kind) {
				crew.Workers++
				slots, running, stuck = slots+int(w.Slots), running+int(w.Running), stuck+int(w.Stuck)
			}
		}
		if crew.Workers == 0 || stopped {
			continue // the checks workers and paused tell
		}
		if slots > 0 {
			crew.Busy = float64(running) / float64(slots)
		}
		of := slices.DeleteFunc(slices.Clone(samples), func(s engine.Sample) bool { return s.Queue != l.Queue || s.Kind != l.Kind })
		switch t := flow.Of(of, looks, l, crew, flow.Window); t.Verdict {
		case flow.Unknown:
			unknown = append(unknown, l.Kind)
		case flow.Never:
			f := v.find(Warning, "The backlog of the kind %s never drains at this rate", l.Kind).
				saw("queue %s: %s wait, the oldest for %s", l.Queue, human.Number(l.Ready), age(l.Oldest)).
				saw("in the last %s, %.3g a minute became due, and %.3g left", age(t.To.Sub(t.From)), t.Due, t.Out).
				saw("%s, %d%% of whose slots are used", human.Count(crew.Workers, "worker takes them", "workers take them"), int(100*crew.Busy))
			if int64(t.Growth) == 0 { // nothing comes any more
				f.so("It stays as it is, and those that wait go on waiting.")
			} else {
				f.so("It grows by %s jobs an hour, and each waits for longer than the one before.", human.Number(int64(t.Growth)))
			}
			switch {
			case stuck*2 > slots:
				f.do("%d of their %d slots are stuck: see the check workers. More of these workers would get stuck, too.", stuck, slots)
			case t.More > 0:
				f.do("About %s like these would keep up. Before that: more slots (Config.Concurrency), if the machines and what the handlers call have room.", human.Count(t.More, "more worker", "more workers"))
			case t.Out == 0:
				f.do("None leaves: see what its handlers do, and fail with.").run("", "jobctl jobs list --kind "+Argument(l.Kind)+" --status running,dead")
			default:
				f.do("The workers have slots to spare, so it is not for want of them: see whether they wait for a lock (check locks), for the database, or give attempts back as failed.")
			}
		}
	}
	if len(unknown) > 0 {
		v.cannot("too little has been counted yet to tell which way backlogs move, of the kinds "+list(unknown), "run it again when workers have been counting for five minutes")
	}
	return nil
}
