package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/storable"
	"github.com/jobgen-go/jobgen/jobs"
)

// outcome is what became of a hold. Exactly one of release, cancel, err and success (none of them) is meant.
type outcome struct {
	hold    *hold
	release bool // give the job back, the attempt with it
	cancel  bool // end it, its handler was not called: somebody has asked for that, or its deadline has passed
	err     error
	result  []byte
	stored  bool               // the handler's transaction has stored it, if err is nil
	verdict bool               // err is the database's word on the hold; a handler may return the same errors and mean another job
	unsure  bool               // it may be stored already, its answer was lost: finding nothing to change is no staleness then
	doubt   *engine.DoubtError // err is that the answer to COMMIT was lost: what happened is to be looked up
}

// outcomes are waiting to be stored.
type outcomes struct {
	mu      sync.Mutex
	waiting []outcome
	spare   []outcome               // room for waiting, from the flush before
	delayed map[*time.Timer]outcome // nil: a shutdown has begun
	poke    chan struct{}
}

func (o *outcomes) put(one outcome) {
	o.mu.Lock()
	o.waiting = append(o.waiting, one)
	first := len(o.waiting) == 1
	o.mu.Unlock()
	if first {
		poke(o.poke)
	}
}

func (o *outcomes) take() []outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	batch := o.waiting
	o.waiting, o.spare = o.spare, nil
	return batch
}

// recycle takes back what take gave, once nothing refers to it.
func (o *outcomes) recycle(batch []outcome) {
	clear(batch)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spare = batch[:0]
}

// room is what flushes write in, over and over; it is the complete loop's.
type room struct {
	plain, recorded, unkeyed, archived []outcome
	done                               []engine.Success
}

// complete is the loop that stores outcomes. What has gathered while one flush was on its way is the next: alone, an
// outcome is stored at once; under load, the batches grow by themselves. It ends with ctx, after a last flush.
func (w *Worker) complete(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-w.outcomes.poke:
			w.flush(context.WithoutCancel(ctx), ctx.Done())
		case <-ctx.Done():
		}
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	for {
		w.flush(end, end.Done())
		// What is left waits for another session: for a lock, or for the end of a transaction in doubt.
		if _, _, held := w.ledger.counts(); held == 0 || !wait(end, lastDelay) {
			return
		}
	}
}

// storeTime bounds one statement of a flush; laterDelay is how long an outcome waits for its reason to pass, lastDelay during
// a shutdown.
const (
	storeTime  = 30 * time.Second
	laterDelay = time.Second
	lastDelay  = 50 * time.Millisecond
)

// later puts an outcome after a moment, a shorter one during a shutdown.
func (o *outcomes) later(one outcome) {
	o.mu.Lock()
	if o.delayed == nil {
		o.mu.Unlock()
		time.AfterFunc(lastDelay, func() { o.put(one) })
		return
	}
	defer o.mu.Unlock()
	var timer *time.Timer
	timer = time.AfterFunc(laterDelay, func() {
		o.mu.Lock()
		_, still := o.delayed[timer]
		delete(o.delayed, timer)
		o.mu.Unlock()
		if still {
			o.put(one)
		}
	})
	o.delayed[timer] = one
}

// hurry puts what later has delayed, and lets nothing be delayed for long any more.
func (o *outcomes) hurry() {
	o.mu.Lock()
	delayed := o.delayed
	o.delayed = nil
	o.mu.Unlock()
	for timer, one := range delayed {
		timer.Stop()
		o.put(one)
	}
}

// flush stores what is waiting, in one statement for each form of outcome. Once stop is closed, it tries nothing a second
// time; a statement under way is not cut, because its answer would be lost.
func (w *Worker) flush(ctx context.Context, stop <-chan struct{}) {
	taken := w.outcomes.take()
	plain, recorded, unkeyed, archived := w.room.plain[:0], w.room.recorded[:0], w.room.unkeyed[:0], w.room.archived[:0]
	var failed, released, cancelled, followed, doubtful []outcome
	for _, o := range taken {
		switch {
		case o.doubt != nil:
			doubtful = append(doubtful, o)
		case o.release:
			released = append(released, o)
		case o.cancel:
			cancelled = append(cancelled, o)
		case o.err != nil:
			failed = append(failed, o)
		case o.hold.Then != nil:
			followed = append(followed, o)
		case o.hold.handler.retain > 0:
			archived = append(archived, o)
		case o.hold.Recorded || !o.hold.records():
			plain = append(plain, o)
		case o.hold.Key == "":
			unkeyed = append(unkeyed, o)
		default:
			recorded = append(recorded, o)
		}
	}
	if doubtful != nil {
		failed = append(failed, w.lookUp(ctx, stop, doubtful)...)
	}
	w.write(ctx, stop, plain, w.succeed)
	w.write(ctx, stop, unkeyed, w.succeed)
	w.write(ctx, stop, recorded, w.succeed)
	w.write(ctx, stop, archived, w.succeed)
	w.write(ctx, stop, failed, w.fail)
	w.write(ctx, stop, released, w.giveBack)
	w.write(ctx, stop, cancelled, w.end)
	for len(followed) > 0 { // last: they take longest
		n := together(followed)
		w.write(ctx, stop, followed[:n], w.succeed)
		followed = followed[n:]
	}
	w.outcomes.recycle(taken)
	clear(plain)
	clear(recorded)
	clear(unkeyed)
	clear(archived)
	w.room.plain, w.room.recorded, w.room.unkeyed, w.room.archived = plain, recorded, unkeyed, archived
}

// Bounds of the follow-ups that are stored in one transaction, unless a single job has more.
const (
	followMany  = 1000
	followBytes = 16 << 20
)

// together is how many of the outcomes, which have follow-ups, are to be stored in one transaction.
func together(os []outcome) int {
	jobs, bytes := 0, 0
	for i, o := range os {
		for _, f := range o.hold.Then {
			jobs += len(f.Elements)
			for _, e := range f.Elements {
				bytes += len(e.Payload)
			}
		}
		if i > 0 && (jobs > followMany || bytes > followBytes) {
			return i
		}
	}
	return len(os)
}

// writer stores outcomes of one form and returns the ids of those that were current holds. The rest of them may be jobs that
// have been asked to end, or have no time left: that is looked for next.
type writer func(ctx context.Context, batch []outcome) (ended idSet, rest []outcome, err error)

// write stores a batch, whatever it takes: while the database is away it tries again, and a value the database refuses
// is cornered by halving the batch, so that it harms only its own job (G9); a row that another session has locked, or that is
// damaged, likewise.
func (w *Worker) write(ctx context.Context, stop <-chan struct{}, batch []outcome, store writer) {
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		if batch = w.ledger.onlyCurrent(batch); len(batch) == 0 {
			return
		}
		begin := now()
		ended, rest, err := func() (idSet, []outcome, error) {
			ctx, cancel := context.WithTimeout(ctx, storeTime)
			defer cancel()
			return store(ctx, batch)
		}()
		var refused *engine.ValueError
		damaged := errors.Is(err, engine.ErrDamaged)
		apart := damaged || errors.Is(err, engine.ErrLocked)
		switch {
		case err == nil:
			w.counters.stored(len(batch)-len(rest), since(begin)) // the rest comes again
			if len(rest) > 0 {
				batch = slices.DeleteFunc(batch, func(o outcome) bool { return !ended.has(o.hold.ID) })
			}
			w.settle(batch, ended)
			w.write(ctx, stop, rest, w.end)
			return
		case (apart || errors.As(err, &refused)) && len(batch) > 1:
			w.write(ctx, stop, batch[:len(batch)/2], store)
			w.write(ctx, stop, batch[len(batch)/2:], store)
			return
		case errors.As(err, &refused):
			w.refuse(ctx, stop, batch[0], refused)
			return
		case apart:
			if damaged {
				w.contact.failed(w.log, "store outcomes", fmt.Errorf("job %d: %w", batch[0].hold.ID, err))
			}
			w.ledger.park(batch[0].hold)
			w.outcomes.later(batch[0]) // by itself; the others go on
			return
		}
		w.contact.failed(w.log, "store outcomes", err)
		if errors.Is(err, engine.ErrUnknown) {
			for i := range batch {
				batch[i].unsure = true
			}
		}
		if !waitOr(stop, delay) {
			for _, o := range batch {
				w.outcomes.put(o) // for the last flush; after that, Run tells how many holds are left
			}
			return
		}
	}
}

// settle frees the holds of a stored batch and reports those that the database did not know any more. What a look-up did not
// end goes on elsewhere.
func (w *Worker) settle(batch []outcome, ended idSet) {
	hs := make([]*hold, 0, len(batch))
	for _, o := range batch {
		switch h := o.hold; {
		case ended.has(h.ID):
		case o.doubt != nil:
			continue
		case !o.unsure:
			w.tell(slog.LevelWarn, saysLate, h.Claimed)
		case o.err != nil:
			w.tally.unsure(o)
			w.tell(slog.LevelWarn, "job failed; the answer to storing that was lost, and the job is not this worker's any more", h.Claimed, "error", firstLine(o.err))
			poke(w.wake)
		default:
			w.tally.unsure(o)
		}
		hs = append(hs, o.hold)
	}
	w.ledger.settle(hs...)
}

const (
	saysCommitted = "the answer to COMMIT was lost; the transaction had committed, and the job is done"
	saysLate      = "a handler's outcome came too late and changes nothing: its job was taken back"
)

// lookUp finds out what became of transactions of which the answer to COMMIT was lost (G5), and returns those that were
// rolled back, as failures. Their holds stay in the ledger, and so under the lease, until it is known.
func (w *Worker) lookUp(ctx context.Context, stop <-chan struct{}, doubtful []outcome) (failed []outcome) {
	w.write(ctx, stop, doubtful, func(ctx context.Context, batch []outcome) (idSet, []outcome, error) {
		doubts := make([]engine.InDoubt, len(batch))
		for i, o := range batch {
			doubts[i] = engine.InDoubt{Hold: o.hold.name(), Xact: o.doubt.Xact}
		}
		fates, err := w.store.Fates(ctx, batch[0].hold.owner, doubts)
		if err != nil {
			return idSet{}, nil, err
		}
		ended := idSet{some: make(map[int64]bool, len(batch))}
		for i, o := range batch {
			line := []any{"transaction", o.doubt.Xact, "error", firstLine(o.doubt.Err)}
			switch fates[i] {
			case engine.Undecided:
				w.ledger.park(o.hold)
				w.outcomes.later(o)
			case engine.RolledBack:
				// The handler ran, so the attempt is spent: what makes each COMMIT fail must not go on for ever.
				failed = append(failed, outcome{hold: o.hold, err: &rolledBackError{o.doubt}})
			case engine.Committed:
				w.tell(slog.LevelWarn, saysCommitted, o.hold.Claimed, line...)
				w.tally.success(o.hold)
				ended.some[o.hold.ID] = true
			case engine.Taken:
				w.tell(slog.LevelWarn, "the answer to COMMIT was lost; the transaction was rolled back, and its job was taken back", o.hold.Claimed, line...)
				ended.some[o.hold.ID] = true
			}
		}
		return ended, nil, nil
	})
	return failed
}

// rolledBackError is what stands on record of a transaction that a look-up found rolled back.
type rolledBackError struct{ doubt *engine.DoubtError }

func (e *rolledBackError) Error() string {
	return "the handler succeeded, but the connection was lost at COMMIT and its transaction was rolled back: " + e.doubt.Err.Error()
}

// refuse ends a job whose outcome the database will not take: it fails for good, with the database's reason.
func (w *Worker) refuse(ctx context.Context, stop <-chan struct{}, o outcome, reason error) {
	if _, again := o.err.(*refusedError); again {
		w.tell(slog.LevelError, "the database takes no outcome of this job; it stays running until this worker stops", o.hold.Claimed, "error", reason)
		w.ledger.abandonRow(o.hold)
		return
	}
	o.release, o.cancel, o.err = false, false, &refusedError{reason}
	w.write(ctx, stop, []outcome{o}, w.fail)
}

type refusedError struct{ err error }

func (e *refusedError) Error() string {
	return "the handler ended, but the database refused to store its outcome: " + e.err.Error()
}
func (e *refusedError) Unwrap() error { return jobs.Permanent(e.err) }

func (w *Worker) succeed(ctx context.Context, batch []outcome) (idSet, []outcome, error) {
	done := slices.Grow(w.room.done[:0], len(batch))[:len(batch)]
	for i, o := range batch {
		done[i] = o.hold.success(o.result)
		done[i].Record = done[i].Record && !o.hold.Recorded
	}
	ids, err := w.store.Complete(ctx, batch[0].hold.owner, done)
	clear(done)
	w.room.done = done
	ended := set(ids, len(batch))
	if err == nil {
		w.tally.succeeded(batch, ended)
	}
	return ended, nil, err
}

func (w *Worker) giveBack(ctx context.Context, batch []outcome) (idSet, []outcome, error) {
	holds := make([]engine.Hold, len(batch))
	for i, o := range batch {
		holds[i] = o.hold.name()
	}
	ids, err := w.store.Release(ctx, batch[0].hold.owner, holds)
	ended := set(ids, len(batch))
	return ended, without(batch, ended), err
}

// without are the outcomes that are not among those that have ended.
func without(batch []outcome, ended idSet) (rest []outcome) {
	for _, o := range batch {
		if !ended.has(o.hold.ID) {
			rest = append(rest, o)
		}
	}
	return rest
}

// end ends what is not to go on, whatever came of it.
func (w *Worker) end(ctx context.Context, batch []outcome) (idSet, []outcome, error) {
	holds := make([]engine.Cancelled, len(batch))
	byID := make(map[int64]*hold, len(batch))
	for i, o := range batch {
		holds[i] = engine.Cancelled{Hold: o.hold.name(), Started: o.hold.started != 0 && !o.cancel}
		if o.err != nil {
			holds[i].Error = o.hold.failure(o.err).Error
		}
		byID[o.hold.ID] = o.hold
	}
	answers, err := w.store.Cancel(ctx, batch[0].hold.owner, holds, w.cfg.KeepCancelled)
	ended := idSet{some: make(map[int64]bool, len(answers))}
	for _, a := range answers {
		ended.some[a.ID] = true
		h := byID[a.ID]
		w.tally.cancelled(h)
		w.tell(slog.LevelInfo, "job is cancelled", h.Claimed, "reason", a.Reason)
	}
	return ended, nil, err
}

func (w *Worker) fail(ctx context.Context, batch []outcome) (idSet, []outcome, error) {
	fs := make([]engine.Failure, len(batch))
	byID := make(map[int64]*outcome, len(batch))
	for i := range batch {
		fs[i] = batch[i].hold.failure(batch[i].err)
		byID[fs[i].ID] = &batch[i]
	}
	answers, err := w.store.Fail(ctx, batch[0].hold.owner, fs)
	ended := idSet{some: make(map[int64]bool, len(answers))}
	retried := false
	for _, a := range answers {
		ended.some[a.ID] = true
		o := byID[a.ID]
		w.tally.failed(o.hold, o.err, a)
		line := []any{"max_attempts", o.hold.MaxAttempts, "error", firstLine(o.err)}
		retried = retried || !a.Dead
		switch {
		case a.Snoozed:
			w.tell(slog.LevelDebug, "job is put off", o.hold.Claimed, line...)
		case a.Dead:
			w.tell(slog.LevelError, "job is dead", o.hold.Claimed, line...)
		default:
			w.tell(slog.LevelWarn, "job failed and will be tried again", o.hold.Claimed, line...)
		}
	}
	if retried {
		poke(w.wake) // an idle claim loop has to learn when they are due
	}
	return ended, without(batch, ended), err
}

// errorText is what stands on record of an error, a panic's stack with it: storable and bounded.
func errorText(err error) string {
	text := err.Error()
	if p := (*jobs.PanicError)(nil); errors.As(err, &p) {
		text += "\n\n" + string(p.Stack)
	}
	text = storable.Text(text, maxError)
	if strings.TrimSpace(text) == "" {
		return fmt.Sprintf("an error without a text, of type %T", err)
	}
	return text
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(errorText(err), "\n")
	return line
}

// idSet are some ids of a batch, or all, which is the rule and takes no memory.
type idSet struct {
	all  bool
	some map[int64]bool
}

func (s idSet) has(id int64) bool { return s.all || s.some[id] }

// set makes a set of different ids, out of n that there are.
func set(ids []int64, n int) idSet {
	if len(ids) == n {
		return idSet{all: true}
	}
	s := idSet{some: make(map[int64]bool, len(ids))}
	for _, id := range ids {
		s.some[id] = true
	}
	return s
}

// wait waits for d and tells whether ctx still stands.
func wait(ctx context.Context, d time.Duration) bool { return waitOr(ctx.Done(), d) }

func waitOr(stop <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-stop:
		return false
	case <-t.C:
		return true
	}
}
