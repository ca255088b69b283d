package exporter

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// collect reads the database. What cannot be read is left out, and told in errs by its part.
func (e *Exporter) collect(ctx context.Context) (page, map[string]error) {
	p, errs := page{}, map[string]error{}
	begin := now()
	e.collections++
	err := e.op.Check(ctx)
	p.put(up, truth(err == nil))
	if err != nil {
		errs["database"] = err
	} else {
		c := &collection{e: e, page: p}
		for _, part := range []struct {
			name string
			read func(context.Context) error
		}{
			// The dear ones last: they must not take the others' time.
			{"schema", c.schema}, {"workers", c.workers}, {"queues", c.queues}, {"schedules", c.schedules}, {"server", c.server},
			{"horizon", c.horizon}, {"tables", c.tables}, {"totals", c.totals}, {"levels", c.levels},
		} {
			start := now()
			err := part.read(ctx)
			if err != nil {
				errs[part.name] = err
				e.failures[part.name]++
			}
			p.put(partSuccess, truth(err == nil), part.name)
			p.put(partErrors, e.failures[part.name], part.name)
			p.put(partDuration, (now() - start).Seconds(), part.name)
		}
		c.flows()
		for of, known := range e.known {
			p.put(folded, float64(known.folded), of)
		}
	}
	p.put(collections, e.collections)
	p.put(duration, (now() - begin).Seconds())
	return p, errs
}

// collection is one round.
type collection struct {
	e      *Exporter
	page   page
	live   []postgres.MeasuredWorker
	unread bool // workers could not be read: who would take what is not known
	sums   []postgres.Sample
	summed bool
	looked *postgres.Look
}

func (c *collection) schema(ctx context.Context) error {
	version, err := c.e.op.SchemaVersion(ctx)
	if err == nil {
		c.page.put(schemaVersion, float64(version))
	}
	return err
}

func (c *collection) workers(ctx context.Context) error {
	all, err := c.e.op.MeasureWorkers(ctx)
	if c.unread = err != nil; c.unread {
		return err
	}
	for _, w := range all {
		if w.Alive {
			c.live = append(c.live, w)
		}
	}
	c.page.put(workers, float64(len(c.live)), "alive")
	c.page.put(workers, float64(len(all)-len(c.live)), "lost")
	for _, d := range []*desc{slots, busySlots, stuckWorkers, stuckSlots, skew} {
		c.page.put(d, 0)
	}
	for _, w := range c.live {
		c.page.put(slots, float64(w.Slots))
		c.page.put(busySlots, float64(w.Running))
		c.page.put(skew, w.Skew)
		c.page.put(stuckSlots, float64(w.Stuck))
		c.page.put(stuckWorkers, truth(w.Stuck > 0))
	}
	return nil
}

func (c *collection) queues(ctx context.Context) error {
	listed, _, err := c.e.op.Queues(ctx)
	if err != nil {
		return err
	}
	names := admit(c.e, "queue", listed, func(q engine.ListedQueue) ([]string, int64) { return []string{q.Name}, int64(q.Workers) })
	for i, q := range listed {
		c.page.put(queueWorkers, float64(q.Workers), names[i]...)
		c.page.put(queuePaused, truth(q.PausedAt != nil), names[i]...)
	}
	return nil
}

func (c *collection) schedules(ctx context.Context) error {
	all, err := c.e.op.MeasureSchedules(ctx)
	if err != nil {
		return err
	}
	names := admit(c.e, "schedule", all, func(s postgres.MeasuredSchedule) ([]string, int64) { return []string{s.Kind, s.Name}, 0 })
	for i, s := range all {
		c.page.put(overdue, max(s.Overdue, 0), names[i]...)
	}
	return nil
}

func (c *collection) server(ctx context.Context) error {
	s, err := c.e.op.MeasureServer(ctx)
	if err != nil {
		return err
	}
	c.page.put(notifyUsage, s.NotifyUsage)
	c.page.put(connections, float64(s.Connections))
	c.page.put(connectionMax, float64(s.ConnectionsMax))
	return nil
}

// held is since when the oldest snapshot of a sort of holder has been the same.
type held struct {
	xmin  string
	since time.Duration
}

func (c *collection) horizon(ctx context.Context) error {
	rows, err := c.e.op.MeasureHorizon(ctx)
	if err != nil {
		return err
	}
	at := now()
	seen := map[string]held{}
	for _, holder := range []string{"session", "prepared", "slot", "standby"} { // also those that hold nothing, so that an alert ends
		c.page.put(horizonXacts, 0, holder)
		c.page.put(horizonAge, 0, holder)
	}
	for _, r := range rows {
		c.page.put(horizonXacts, float64(r.Transactions), r.Holder)
		if r.Seconds < 0 {
			h := c.e.held[r.Holder]
			if h.xmin != r.Xmin {
				h = held{r.Xmin, at}
			}
			seen[r.Holder] = h
			r.Seconds = (at - h.since).Seconds()
		}
		c.page.put(horizonAge, r.Seconds, r.Holder)
	}
	c.e.held = seen
	return nil
}

func (c *collection) tables(ctx context.Context) error {
	tables, indexes, err := c.e.op.MeasureTables(ctx)
	if err != nil {
		return err
	}
	for _, t := range tables {
		c.page.put(tableBytes, float64(t.Bytes), t.Name)
		c.page.put(liveTuples, float64(t.Live), t.Name)
		c.page.put(deadTuples, float64(t.Dead), t.Name)
		if t.Vacuumed >= 0 {
			c.page.put(vacuumed, t.Vacuumed, t.Name)
		}
	}
	for _, i := range indexes {
		c.page.put(indexBytes, float64(i.Bytes), i.TableName, i.Name)
	}
	return nil
}

func (c *collection) totals(ctx context.Context) (err error) {
	c.sums, err = c.e.op.Totals(ctx)
	c.summed = err == nil
	return err
}

func (c *collection) levels(ctx context.Context) error {
	look, err := c.e.op.Look(ctx)
	if err == nil {
		c.looked = &look
	}
	return err
}

// flow is what there is of a kind in a queue.
type flow struct {
	sum   *postgres.Sample
	level postgres.Level
}

// flows writes what is by queue and kind. A kind that is in one of the two has all metrics of both, so that a rate of 0 is 0 and
// not nothing.
func (c *collection) flows() {
	found := map[[2]string]*flow{}
	at := func(queue, kind string) *flow {
		if found[[2]string{queue, kind}] == nil {
			found[[2]string{queue, kind}] = &flow{level: postgres.Level{Queue: queue, Kind: kind}}
		}
		return found[[2]string{queue, kind}]
	}
	for i := range c.sums {
		at(c.sums[i].Queue, c.sums[i].Kind).sum = &c.sums[i]
	}
	if c.looked != nil {
		c.page.put(lookShare, c.looked.Share)
		for _, l := range c.looked.Levels {
			at(l.Queue, l.Kind).level = l
		}
	}
	all := slices.SortedFunc(maps.Values(found), func(a, b *flow) int {
		return cmp.Or(cmp.Compare(a.level.Queue, b.level.Queue), cmp.Compare(a.level.Kind, b.level.Kind))
	})
	names := admit(c.e, "kind", all, func(f *flow) ([]string, int64) {
		weight := f.level.Ready + f.level.Scheduled + f.level.Running + f.level.Dead
		if f.sum != nil {
			weight += f.sum.Succeeded + f.sum.Failed
		}
		return []string{f.level.Queue, f.level.Kind}, weight
	})
	for i, f := range all {
		if c.looked != nil {
			c.level(f.level, names[i])
		}
		if c.summed {
			c.sum(f.sum, names[i])
		}
	}
}

func (c *collection) level(l postgres.Level, name []string) {
	for state, n := range map[string]int64{"ready": l.Ready, "scheduled": l.Scheduled, "running": l.Running, "dead": l.Dead} {
		c.page.put(jobsNow, float64(n), name[0], name[1], state)
	}
	c.page.put(oldest, l.Oldest.Seconds(), name...)
	if !c.unread {
		taken := slices.ContainsFunc(c.live, func(w postgres.MeasuredWorker) bool {
			return slices.Contains(w.Kinds, l.Kind) && slices.Contains(w.Queues, l.Queue)
		})
		c.page.put(unhandled, truth(!taken)*float64(l.Ready), name...)
	}
}

func (c *collection) sum(s *postgres.Sample, name []string) {
	if s == nil {
		s = &postgres.Sample{}
	}
	for d, n := range map[*desc]int64{
		arrived: s.Arrived, succeeded: s.Succeeded, cancelled: s.Cancelled, died: s.Died,
		failed: s.Failed, timedOut: s.TimedOut, snoozed: s.Snoozed, reclaimed: s.Reclaimed,
	} {
		c.page.put(d, float64(n), name...)
	}
	h := c.page.sample(runTime, name)
	h.value += s.RunTime.Seconds()
	if h.buckets == nil {
		h.buckets = make([]float64, len(bounds)+1)
	}
	n := 0.0
	for i := range h.buckets {
		if i < len(bounds) && i < len(s.RunTimes) {
			n += float64(s.RunTimes[i])
		}
		if i == len(bounds) {
			for _, more := range s.RunTimes[min(i, len(s.RunTimes)):] {
				n += float64(more)
			}
		}
		h.buckets[i] += n
	}
}

// names are the label sets that are shown by themselves. Whoever has a place keeps it while the process lives: a counter that
// moved between its own series and that of the others would look like a restart, and a rate like a flood.
type names struct {
	have   map[string]bool
	folded int
}

const other = "other"

// admit gives each element its labels: its own or, once all places are taken, as many times other. Those with the most weight get
// the places that are left.
func admit[T any](e *Exporter, of string, all []T, labels func(T) ([]string, int64)) [][]string {
	known := e.known[of]
	if known == nil {
		known = &names{have: map[string]bool{}}
		e.known[of] = known
	}
	type one struct {
		i      int
		key    string
		weight int64
	}
	var strangers []one
	out := make([][]string, len(all))
	for i, element := range all {
		l, weight := labels(element)
		out[i] = l
		if key := keyOf(l); !known.have[key] {
			strangers = append(strangers, one{i, key, weight})
		}
	}
	slices.SortStableFunc(strangers, func(a, b one) int { return cmp.Compare(b.weight, a.weight) })
	places := min(max(e.most-len(known.have), 0), len(strangers))
	for _, s := range strangers[:places] {
		known.have[s.key] = true
	}
	for _, s := range strangers[places:] {
		out[s.i] = slices.Repeat([]string{other}, len(out[s.i]))
	}
	known.folded = len(strangers) - places
	return out
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
