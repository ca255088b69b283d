package worker

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
)

// idleness decides how a worker that has room learns of the next job. Either it sleeps: its wake rows stand, each enqueue
// wakes one of those who sleep, and it polls seldom. So a job starts at once, but a NOTIFY costs, and commits with one go
// one after the other. Or it is awake and polls every few milliseconds, and nobody is woken for it. It sleeps unless jobs
// come so often that this is dearer, or it does not keep up; the rows stay while single jobs run.
type idleness struct {
	worker *Worker
	asleep uuid.UUID // the worker id under which the wake rows stand; zero: none does
	queues []string  // that they are for
	fleet  int       // how many workers slept when they were written
	doubt  bool      // they may be gone
	rose   instant   // they were removed, or should have been

	since  instant // of nothing found; zero: the last claim found something
	late   instant // since then, each claim was full or there was no room for one; zero: it keeps up
	woken  bool    // the coming claim is because of a notification
	delay  time.Duration
	timed  bool          // the present pause ends when a job is due
	cost   time.Duration // of a claim, an average
	coming arrivals

	due     time.Duration // until a job is due, as quiet has found
	dueSeen instant       // when; zero: never
}

const (
	wakeShare  = 0.2                    // of its time that a worker may spend on claims, one for each enqueue, and sleep
	behindMost = 20 * time.Millisecond  // so long a worker that does not keep up may swallow wake-ups
	dwell      = 250 * time.Millisecond // from rising to sleeping, so that wake rows are not written all the time
)

// pause sleeps when it is time to, and tells how long to wait before the next claim.
func (i *idleness) pause(ctx context.Context) time.Duration {
	w := i.worker
	w.asleep.Store(false)
	ctx, cancel := limit(ctx)
	defer cancel()
	self := w.self.Load()
	queues, partly := w.ledger.awaits(w.cfg.Queues)
	if partly || !slices.Equal(queues, i.queues) {
		i.rise(ctx)
	}
	switch {
	case partly:
		return i.poll(pollPartly)
	case len(queues) == 0:
		return aheadMost // for what waits here and cannot start; control and limits that ease are signalled
	case !w.listening.Load():
		most := pollDeaf
		if i.since == 0 || since(i.since) < dwell {
			most = pollShort
		}
		return i.poll(most)
	case i.asleep == self.ID && !i.doubt:
		return i.stretch(ctx)
	case i.rose != 0 && since(i.rose) < dwell:
		return i.poll(pollShort)
	}
	me := *self
	me.Queues = queues
	fleet, err := w.store.Sleep(ctx, &me)
	if err != nil {
		w.contact.failed(w.log, "sleep", err)
		return i.poll(pollDeaf)
	}
	i.asleep, i.queues, i.fleet, i.doubt, i.delay = self.ID, queues, fleet, false, pollShort
	return 0 // claim once more: what was enqueued before the row was there woke nobody
}

// poll is how long a worker that is awake waits: the longer it has found nothing, up to most.
func (i *idleness) poll(most time.Duration) time.Duration {
	if i.since != 0 {
		i.delay = max(i.delay*3/2, pollFirst)
	}
	i.delay = min(i.delay, most)
	return jitter(i.delay)
}

// stretch is pause of a worker that sleeps.
func (i *idleness) stretch(ctx context.Context) time.Duration {
	w := i.worker
	if i.since == 0 {
		i.delay = pollShort
		return jitter(i.delay)
	}
	i.delay = min(i.delay*2, pollLong)
	w.asleep.Store(true)
	due, err := i.nextDue(ctx)
	if err != nil {
		due = dueWithin
	}
	return i.until(due)
}

// until is how long a worker that sleeps pauses if the next job that is not due yet is in so long: never past it. After a
// claim for a job that was due, which another kind's or another worker's may have been, it looks once more soon: what became due
// between that claim and the question is not in its answer.
func (i *idleness) until(due time.Duration) time.Duration {
	pause := jitter(i.delay)
	if i.timed {
		pause = pollShort
	}
	if i.timed = due < pause+pollShort; i.timed {
		return max(due, time.Millisecond)
	}
	return pause
}

// wake notes that the coming claim is because of a notification.
func (i *idleness) wake() {
	i.woken = true
	i.worker.asleep.Store(false)
}

// found notes what a claim brought, whether it was full, and what it took.
func (i *idleness) found(ctx context.Context, n int, full bool, took time.Duration) {
	w := i.worker
	i.cost += (took - i.cost) / 8
	woken, unasked := i.woken, w.asleep.Load()
	i.woken = false
	events := int(w.wakes.Swap(0))
	if i.asleep == uuid.Nil {
		events = min(n, 8) // of one batch there may be many
	}
	i.coming.note(now(), events, w.newest)
	if !full {
		i.late = 0
	} else {
		i.behind(ctx)
	}
	if n == 0 {
		if i.since == 0 {
			i.since = now()
		}
		if woken { // another worker was faster, or it is for later: sleep on
			i.delay = pollShort
		}
		return
	}
	switch fast, slow := i.load(); {
	case i.asleep != uuid.Nil && max(fast, slow) > wakeShare:
		i.rise(ctx)
	case i.asleep != uuid.Nil && !woken && unasked:
		i.doubt = true // nobody said that this was there
	case i.asleep == uuid.Nil && slow > wakeShare/2:
		i.rose = now()
	}
	i.since, i.delay = 0, min(pollFirst*time.Duration(max(i.fleet, 1)), pollShort)
}

// load is the share of its time that claims for each enqueue take, or would. Five enqueues within fastSpan are the fewest
// that count as many, however slow a claim is.
func (i *idleness) load() (fast, slow float64) {
	fast, slow = i.coming.rates(now(), i.fleet)
	cost := min(max(i.cost, 200*time.Microsecond), 2*time.Millisecond) // of fewer than 100 a second each is worth it
	return fast * min(cost, 800*time.Microsecond).Seconds(), slow * cost.Seconds()
}

// behind notes that there is no room, or that more waits than there was room for, and tells when to look again. A worker
// that does not keep up rises, and another is woken for what this one cannot start.
func (i *idleness) behind(ctx context.Context) time.Duration {
	if i.late == 0 {
		i.late = now()
	}
	left := behindMost - since(i.late)
	if i.asleep == uuid.Nil || left <= 0 {
		i.rise(ctx)
		return aheadMost
	}
	return left
}

// rise removes the wake rows, and wakes another worker in place of this one.
func (i *idleness) rise(ctx context.Context) {
	if i.asleep == uuid.Nil {
		return
	}
	ctx, cancel := limit(ctx)
	defer cancel()
	asleep := i.asleep
	i.asleep, i.rose = uuid.Nil, now()
	if err := i.worker.store.Awake(ctx, asleep); err != nil {
		i.worker.contact.failed(i.worker.log, "awake", err)
		i.asleep, i.doubt = asleep, true // rows that are still there swallow the wake-ups of jobs that this worker cannot start
	}
}

func (i *idleness) fail() {
	if i.since == 0 {
		i.since = now()
	}
	i.doubt = true
	i.delay = max(i.delay, pollShort)
}

// arrivals estimates how often jobs are enqueued for the workers that share queues, by two signs of which the smaller
// counts. One is this worker's share, times their number: few of them know much. The other is how far ids have come: that
// of a batch counts all its jobs, and those of other queues are among them.
type arrivals struct {
	fast, slow  average
	first, last numbered
}

type numbered struct {
	id int64
	at instant
}

// An average of events per second, over about so long.
const (
	fastSpan = 20 * time.Millisecond
	slowSpan = 200 * time.Millisecond
)

// note counts events, which are wake-ups of a worker that sleeps, or jobs that another has found. newest is the biggest id seen.
func (a *arrivals) note(at instant, events int, newest int64) {
	a.fast.add(at, events, fastSpan)
	a.slow.add(at, events, slowSpan)
	if newest <= a.last.id {
		return
	}
	if a.first.at == 0 {
		a.first = numbered{newest, at}
	} else if at.sub(a.first.at) > 2*fastSpan {
		a.first = a.last
	}
	a.last = numbered{newest, at}
}

// rates are per second, of so many workers.
func (a *arrivals) rates(at instant, workers int) (fast, slow float64) {
	n := float64(max(workers, 1))
	fast, slow = a.fast.faded(at, fastSpan)*n, a.slow.faded(at, slowSpan)*n
	if a.first.at != 0 {
		ids := float64(a.last.id-a.first.id) / at.sub(a.first.at).Seconds()
		fast, slow = min(fast, ids), min(slow, ids)
	}
	return fast, slow
}

type average struct {
	value float64
	at    instant
}

func (a *average) faded(at instant, span time.Duration) float64 {
	return a.value * math.Exp(-at.sub(a.at).Seconds()/span.Seconds())
}

// add counts events since the last call: a slow claim ends with many at once, which did not come at once.
func (a *average) add(at instant, events int, span time.Duration) {
	passed := max(at.sub(a.at), time.Microsecond).Seconds()
	a.value, a.at = a.faded(at, span)+float64(events)*(1-math.Exp(-passed/span.Seconds()))/passed, at
}

func jitter(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2+1) }
