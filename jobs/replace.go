package jobs

import (
	"fmt"
	"time"
)

// Replace is for an enqueue with a key: if the key's job still waits, it gets this payload, and the options of this enqueue,
// in place of what it had (Ref.Replaced). It keeps its id, and its place in the queue if it was due; its attempts begin anew.
// A job that runs already, or has a result on record, is left alone, as without the option (Ref.Existing); so what comes
// while the job runs is dropped: see Debounce for a rule under which it is not. A dead job is revived, as always.
//
// The enqueue locks the key until its transaction ends: other enqueues with Replace or Debounce for the same key wait, and
// so may the completion of its job.
func Replace() Option { return func(o *options) { o.Insert.Replace = true } }

// Debounce is for an enqueue with a key, of work that is worth doing once for many requests: the first enqueue runs after
// delay; each further one, while that job waits, replaces it as Replace does and puts it off until delay has passed since, but
// never to more than most after the first. Zero most means ten times delay. All times are the database's.
//
// No request is lost. If the key's job runs already, or has finished, the enqueue starts a new job under the key, which runs
// after delay: also when the result of the last one is still remembered, and beside the last one if that takes longer than
// delay. An attempt that fails after its key has been handed over in this way is not tried again: the new job does its work.
// So under a key used with Debounce each job takes effect once (G6), and an enqueue finds a job that has not begun or
// makes one. A Ref of it awaits what stands behind the key now: the latest run.
//
// It takes the place of In and At, and of Replace. It locks like Replace.
func Debounce(delay, most time.Duration) Option {
	return func(o *options) { o.debounce = &debounce{delay, most} }
}

type debounce struct{ delay, most time.Duration }

// mostDelays is how many times the delay a debounced job is put off at most, if its enqueue does not say.
const mostDelays = 10

// replacement checks Replace and Debounce, and puts the latter into what is inserted.
func replacement[P, R any](s *Spec[P, R], o *options) error {
	name, d := "replace", o.debounce
	if d != nil {
		name = "debounce"
	}
	switch {
	case d == nil && !o.Replace:
		return nil
	case s.Key == nil && o.key == nil:
		return invalid(s.Kind, name, "needs a key, which says what is the same work; declare one for the kind (//job:key), or give one with jobs.Key")
	case d == nil:
		return nil
	case o.Replace:
		return invalid(s.Kind, name, "replaces by itself; leave out Replace")
	case o.In != 0 || !o.At.IsZero():
		return invalid(s.Kind, name, "says when the job runs; leave out In and At")
	case d.delay < 0 || d.most < 0:
		return invalid(s.Kind, name, fmt.Sprintf("by %s, at most %s, is negative", d.delay, d.most))
	case d.delay > maxDelay || d.most > maxDelay:
		return invalid(s.Kind, name, fmt.Sprintf("by %s, at most %s, is more than a hundred years", d.delay, d.most))
	case d.most == 0:
		d = &debounce{d.delay, min(d.delay, maxDelay/mostDelays) * mostDelays}
	case d.most < d.delay:
		return invalid(s.Kind, name, fmt.Sprintf("by %s cannot be within %s; give at least the delay, or zero for %d times the delay", d.delay, d.most, mostDelays))
	}
	o.Replace, o.Insert.Debounce, o.In, o.Most = true, true, d.delay, max(d.most, d.delay)
	return nil
}
