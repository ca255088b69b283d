package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// listener counts what a worker's channel gets.
type listener struct {
	f       *fixture
	conn    *pgx.Conn
	channel string
	sent    int
}

func (f *fixture) listen(w *engine.Worker) *listener {
	f.Helper()
	l := &listener{f: f, conn: f.connect(), channel: "jobgen_" + w.ID.String()}
	must(f.T, l.conn, "LISTEN "+pgx.Identifier{l.channel}.Sanitize())
	return l
}

// count tells how many notifications have come since it was last asked. A notification of our own, which comes after all
// that was committed before it, marks the end.
func (l *listener) count() (n int) {
	l.f.Helper()
	l.sent++
	end := fmt.Sprint("end ", l.sent)
	l.f.exec("SELECT pg_notify($1, $2)", l.channel, end)
	for {
		got, err := l.conn.WaitForNotification(l.f.ctx())
		if err != nil {
			l.f.Fatal(err)
		}
		if got.Payload == end {
			return n
		}
		n++
	}
}

// sleep tells how many workers sleep, as the worker learns it.
func (f *fixture) sleep(w *engine.Worker) int {
	f.Helper()
	n, err := f.store.Sleep(f.ctx(), w)
	f.no(err)
	return n
}

func TestAnEnqueueWakesOneIdleWorkerOfItsQueueAndNobodyElse(t *testing.T) {
	t.Parallel()
	f := open(t)
	idle, busy, elsewhere := f.worker(time.Hour), f.worker(time.Hour), f.worker(time.Hour)
	elsewhere.Queues = []string{"other"}
	f.sleep(idle)
	f.sleep(idle) // twice is once
	f.sleep(elsewhere)
	mine, theirs, others := f.listen(idle), f.listen(busy), f.listen(elsewhere)
	element := func(key string) engine.Element { return engine.Element{Key: key, Payload: []byte("{}")} }
	many := func(key string, n int) (out []engine.Element) {
		for i := range n {
			e := element("")
			if key != "" {
				e.Key = fmt.Sprint(key, i)
			}
			out = append(out, e)
		}
		return out
	}
	steps := []struct {
		name string
		do   func()
		want int
	}{
		{"nothing", func() {}, 0},
		{"Enqueue", func() { f.insert(element("")) }, 1},
		{"EnqueueMany", func() { f.insert(many("", 50)...) }, 1},
		{"EnqueueMany that copies", func() { f.insert(many("", postgres.CopyFrom)...) }, 1},
		{"Enqueue with a key", func() { f.insert(element("a")) }, 1},
		{"Enqueue with a key that is taken", func() { f.insert(element("a")) }, 0},
		{"EnqueueMany with keys", func() { f.insert(many("b", 3)...) }, 1},
		{"EnqueueMany with keys that are all taken", func() { f.insert(many("b", 3)...) }, 0},
		{"reviving a dead job", func() {
			f.exec("UPDATE jobgen.jobs SET status = 'dead' WHERE key = 'a'")
			f.insert(element("a"))
		}, 1},
		{"a rolled back transaction", func() { f.rolledBack(func(tx pgx.Tx) { f.insertOn(tx, many("", 2)...) }) }, 0},
		{"a rolled back COPY", func() { f.rolledBack(func(tx pgx.Tx) { f.insertOn(tx, many("", postgres.CopyFrom)...) }) }, 0},
		{"a savepoint that was rolled back", func() {
			tx := f.begin(f.connect())
			save, err := tx.Begin(f.ctx())
			f.no(err)
			f.insertOn(save, element(""))
			f.insertOn(save, many("c", 2)...)
			f.no(save.Rollback(f.ctx()))
			f.no(tx.Commit(f.ctx()))
		}, 0},
		{"a transaction, once it commits", func() {
			tx := f.begin(f.connect())
			f.insertOn(tx, element(""))
			if n := mine.count(); n != 0 {
				t.Errorf("woken %d times before the commit", n)
			}
			f.no(tx.Commit(f.ctx()))
		}, 1},
		{"Enqueue after it is awake", func() {
			f.no(f.store.Awake(f.ctx(), idle.ID))
			f.insert(element(""))
			f.insert(many("", 3)...)
			f.insert(many("d", 3)...)
		}, 0},
	}
	for _, s := range steps {
		s.do()
		if n := mine.count(); n != s.want {
			t.Errorf("%s: notified %d times, want %d", s.name, n, s.want)
		}
	}
	if n := theirs.count() + others.count(); n != 0 {
		t.Errorf("workers that are busy or serve another queue were notified %d times", n)
	}
}

func (f *fixture) insertOn(tx pgx.Tx, elements ...engine.Element) {
	f.Helper()
	if _, err := (postgres.Producer{DB: tx}).Enqueue(f.ctx(), insertion, elements); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) rolledBack(fn func(pgx.Tx)) {
	f.Helper()
	tx := f.begin(f.connect())
	fn(tx)
	f.no(tx.Rollback(f.ctx()))
}

// Those who sleep share the load; and if one of them has died, most wake-ups go to others.
func TestWakeUpsAreSharedByThoseWhoSleep(t *testing.T) {
	t.Parallel()
	f := open(t)
	var all []*listener
	for i := range 4 {
		w := f.worker(time.Hour)
		if n := f.sleep(w); n != i+1 {
			t.Errorf("it learns that %d sleep, want %d", n, i+1)
		}
		all = append(all, f.listen(w))
	}
	for range 100 {
		f.enqueue(1)
	}
	sum := 0
	for i, l := range all {
		n := l.count()
		if sum += n; n == 0 {
			t.Errorf("of 100 wake-ups worker %d got none", i)
		}
	}
	if sum != 100 {
		t.Errorf("100 jobs woke %d workers", sum)
	}
}

// A worker that does not want to be woken any more may have been woken for what it cannot start.
func TestWhoRisesWakesAnotherInItsPlace(t *testing.T) {
	t.Parallel()
	f := open(t)
	rising, idle, elsewhere, other := f.worker(time.Hour), f.worker(time.Hour), f.worker(time.Hour), f.worker(time.Hour)
	elsewhere.Queues, other.Kinds = []string{"other"}, []engine.Kind{{Name: "other", Version: 1}}
	var all []*listener
	for _, w := range []*engine.Worker{rising, idle, elsewhere, other} {
		f.sleep(w)
		all = append(all, f.listen(w))
	}
	woken := func() (n [4]int) {
		for i, l := range all {
			n[i] = l.count()
		}
		return n
	}
	f.no(f.store.Awake(f.ctx(), rising.ID))
	if n := woken(); n != [4]int{1: 1} {
		t.Errorf("rising, idle, of another queue, of another kind were woken %v times, want only the idle one, once", n)
	}
	f.no(f.store.Awake(f.ctx(), rising.ID))
	if n := woken(); n != [4]int{} {
		t.Errorf("one that was awake woke %v", n)
	}
}

func TestManyJobsWakeAsManyWorkersAsTheyAreWorth(t *testing.T) {
	t.Parallel()
	f := open(t)
	var all []*listener
	for range 4 {
		w := f.worker(time.Hour)
		f.sleep(w)
		all = append(all, f.listen(w))
	}
	for _, step := range []struct{ jobs, want int }{{1, 1}, {50, 1}, {250, 3}, {5000, 4}} {
		f.enqueue(step.jobs)
		woken := 0
		for _, l := range all {
			woken += l.count()
		}
		if woken != step.want {
			t.Errorf("%d jobs woke %d of 4 workers, want %d", step.jobs, woken, step.want)
		}
	}
}

func TestWakeRowsGoWithTheirWorker(t *testing.T) {
	t.Parallel()
	f := open(t)
	alive, leaving, lost := f.worker(time.Hour), f.worker(time.Hour), f.worker(time.Hour)
	for _, w := range []*engine.Worker{alive, leaving, lost} {
		f.sleep(w)
	}
	f.no(f.store.Leave(f.ctx(), leaving.ID))
	f.lose(lost.ID)
	f.expect(1, "SELECT count(*) FROM jobgen.wake")
	// A Sleep that was under way while its worker was judged.
	f.sleep(lost)
	f.sleep(leaving)
	if _, err := f.store.MarkLost(f.ctx()); err != nil {
		t.Fatal(err)
	}
	f.expect(alive.ID.String(), "SELECT string_agg(worker_id::text, ' ') FROM jobgen.wake")
}

func TestListenHearsItsWorkersWakeUps(t *testing.T) {
	t.Parallel()
	f := open(t)
	w := f.worker(time.Hour)
	f.sleep(w)
	ready, woken, ended := make(chan struct{}), make(chan struct{}, 10), make(chan error)
	ctx, cancel := context.WithCancel(f.ctx())
	go func() {
		ended <- f.store.Listen(ctx, w.ID, func() { close(ready) }, func() { woken <- struct{}{} }, func() {})
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	f.enqueue(1)
	select {
	case <-woken:
	case err := <-ended:
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Listen ended with %v", err)
	}
}
