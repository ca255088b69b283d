package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// Worker runs the jobs of some queues in this process. Make one with New and call Run once.
type Worker struct {
	reg  *Registry
	cfg  Config
	log  *slog.Logger
	open func(context.Context) (engine.Store, error)

	store  engine.Store
	self   atomic.Pointer[engine.Worker] // new after each loss of the lease
	ran    atomic.Bool
	hurry  chan struct{} // closed: no grace at shutdown
	ledger *ledger

	handlers   context.Context // base of every handler's context: it has the values of Run's, and never ends
	outcomes   outcomes
	room       room
	marks      marks
	wake       chan struct{} // this worker was notified
	policy     atomic.Pointer[policy]
	controlled chan struct{} // there is something new for control
	beaten     chan struct{} // a heartbeat has renewed the lease: control looks
	signs      chan struct{} // it has, so upkeep may have something to do
	lost       atomic.Bool   // there is: a worker is lost
	moved      chan struct{} // this worker has a new id to listen under
	listening  atomic.Bool
	sweepNow   atomic.Bool
	suspects   atomic.Bool // one is waiting
	purges     purges
	looked     int64 // the id up to which upkeep has looked for jobs that no claim names

	starts        starts
	doubts        doubts
	asleep        atomic.Bool  // the claim loop is, for longer than pollShort
	wakes         atomic.Int64 // notifications, since the claim loop last asked
	newest        int64        // the biggest id claimed; the claim loop's
	lockFound     atomic.Int64 // jobs owned by lock, since the claim loop last asked
	lockSweep     atomic.Bool  // as sweepNow, for them
	lockSweepCost atomic.Int64 // of the last sweep for them, in nanoseconds

	contact  contact
	counters counters
	tally    tally
	fleet    atomic.Int64 // workers whose lease stands, as of the last look
	lines    lines
}

// New makes a worker that gets its jobs from pool's database. It keeps a few connections of its own (six at most); the
// transactions of transactional handlers come from pool. Every mistake in the registry and the configuration is returned,
// joined. It does not touch the database.
func New(pool *pgxpool.Pool, r *Registry, cfg Config) (*Worker, error) {
	return newWorker(r, cfg, func(ctx context.Context) (engine.Store, error) { return postgres.Open(ctx, pool) })
}

func newWorker(r *Registry, cfg Config, open func(context.Context) (engine.Store, error)) (*Worker, error) {
	errs := slices.Clone(r.errs)
	cfg, err := cfg.withDefaults(r)
	errs = append(errs, r.check(postgres.TxType(), cfg.Queues)...)
	if errs = append(errs, err); errors.Join(errs...) != nil {
		return nil, errors.Join(errs...)
	}
	w := &Worker{
		reg: r.with(&cfg), cfg: cfg, open: open,
		hurry: make(chan struct{}), ledger: newLedger(cfg.Concurrency), marks: newMarks(cfg.Queues),
		outcomes: outcomes{poke: make(chan struct{}, 1), delayed: map[*time.Timer]outcome{}}, wake: make(chan struct{}, 1), controlled: make(chan struct{}, 1), beaten: make(chan struct{}, 1), signs: make(chan struct{}, 1), moved: make(chan struct{}, 1),
		purges: purges{length: time.Second},
		tally:  tally{counts: map[tallied]*engine.Sample{}},
		doubts: doubts{moment: doubtTime, since: map[int64]instant{}},
		starts: starts{undo: map[mark]struct{}{}, poke: make(chan struct{}, 1), ended: make(chan struct{})},
	}
	w.log = slog.New(signed{cfg.Logger.Handler(), &w.self})
	w.policy.Store(&policy{})
	w.decided(nil)
	return w, nil
}

// errShutdown is the cause of the contexts of handlers that outlived the grace of a shutdown.
var errShutdown = errors.New("jobgen: the worker is shutting down")

// cancelTime is how long cancelled handlers get to return at a shutdown, and endTime how long the last statements get.
const (
	cancelTime = 2 * time.Second
	endTime    = 10 * time.Second
)

// Run works until ctx ends, then shuts down: it stops claiming, gives back what has not started, waits for running
// handlers up to Config.Grace, cancels them, gives their jobs back without spending an attempt, and leaves. It returns nil
// after a clean end, an error if the database could not be used at the start, and an error if handlers had to be left
// behind or jobs could not be given back (others take them after the lease). While it runs it outlives any outage.
func (w *Worker) Run(ctx context.Context) (err error) {
	if w.ran.Swap(true) {
		return errors.New("worker: Run was called before; make another Worker")
	}
	if w.store, err = w.open(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	defer w.store.Close()
	start, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	if err := w.store.Check(start); ctx.Err() != nil {
		return nil // asked to stop before it began
	} else if err != nil {
		return err
	}
	if err := w.declare(start); ctx.Err() != nil {
		return nil
	} else if err != nil {
		return err
	}
	self := w.identity()
	if err := w.register(context.WithoutCancel(ctx), self); err != nil {
		return err
	}
	w.become(self)
	first, err := w.readControl(context.WithoutCancel(ctx)) // before the first claim: a queue may be paused
	if err != nil {
		return errors.Join(err, w.store.Leave(context.WithoutCancel(ctx), self.ID))
	}
	w.decided(first.Queues)
	w.contact.made(w.log, w.cfg.Lease, time.Time{})
	w.handlers = context.WithoutCancel(ctx)
	w.ledger.setLocks(w.store.TxLimit(), w.reg.leasing())
	if limit := w.store.TxLimit(); limit < w.cfg.Concurrency && w.reg.transactional() {
		w.log.Warn("transactional handlers wait for each other: the pool given to New has fewer connections than this worker has slots", "connections", limit, "concurrency", w.cfg.Concurrency)
	}
	w.log.Info("worker started", "queues", w.cfg.Queues, "kinds", len(self.Kinds)+len(self.Locks), "concurrency", w.cfg.Concurrency)

	// The loops that claim end with ctx; those that keep and store what is held end after the handlers.
	ctx, quit := context.WithCancelCause(ctx)
	defer quit(nil)
	loops, finish := context.WithCancel(context.WithoutCancel(ctx))
	defer finish()
	stopped := make(chan struct{})
	var g errgroup.Group
	g.Go(func() error { defer close(stopped); w.claim(ctx); return nil })
	g.Go(func() error { w.listen(ctx); return nil })
	g.Go(func() error { w.upkeep(ctx); return nil })
	g.Go(func() error { w.tick(ctx); return nil })
	g.Go(func() error { w.sample(loops); return nil })
	g.Go(func() error { w.heartbeat(loops); return nil })
	g.Go(func() error { w.control(loops); return nil })
	g.Go(func() error { w.watch(loops, quit); return nil })
	g.Go(func() error { w.complete(loops); return nil })
	g.Go(func() error { w.start(loops); return nil })
	g.Go(func() error { defer finish(); <-stopped; return w.shutdown() })
	err = g.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, ErrStuck) {
		err = errors.Join(cause, err)
	}

	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if counts := w.tally.take(); len(counts) > 0 {
		w.writeCounts(end, counts, 0)
	}
	if _, _, held := w.ledger.counts(); held > 0 {
		err = errors.Join(err, fmt.Errorf("worker: %d jobs could not be given back; other workers take them when the lease has run out (%s)", held, w.cfg.Lease))
	}
	err = errors.Join(err, w.store.Leave(end, w.self.Load().ID))
	w.tellLeftOut(0)
	if err != nil {
		w.log.Error("worker stopped, and not in order", "error", err)
	} else {
		w.log.Info("worker stopped")
	}
	return err
}

// RunUntilSignal is Run until SIGINT or SIGTERM. A second one ends the grace: handlers are cancelled at once.
func (w *Worker) RunUntilSignal(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	done := make(chan struct{})
	defer close(done)
	go func() {
		for _, then := range []func(){cancel, func() { close(w.hurry) }} {
			select {
			case <-signals:
				then()
			case <-done:
				return
			}
		}
	}()
	return w.Run(ctx)
}

// shutdown ends what runs, after claiming has stopped.
func (w *Worker) shutdown() error {
	w.ledger.close()
	w.outcomes.hurry()
	w.giveUnstarted(w.ledger.unstarted())
	if !w.drained(w.cfg.Grace, w.hurry) {
		w.ledger.cancelAll(errShutdown)
		w.drained(cancelTime, nil)
	}
	left, found, back := w.ledger.abandon()
	if left == 0 {
		return nil
	}
	dump := goroutines()
	for _, h := range found {
		w.tell(slog.LevelError, "a handler ignores its cancelled context and is left behind", h.Claimed, "duration", since(h.started).Round(time.Millisecond), "stack", stackOf(dump, h.runner.Load()))
		if tx := w.ledger.transaction(h); tx != nil {
			tx.Cut() // its locks would last as long as the process
		}
		if h.locked {
			w.starts.unmark(h.owner, h.ID) // it is no crash
		}
	}
	w.giveUnstarted(back)
	return fmt.Errorf("worker: %d handlers ignored their cancelled context and still run; their jobs go on without them", left)
}

// drained waits until no handler runs but those that are stuck, at most for d or until cut, and tells whether none does.
func (w *Worker) drained(d time.Duration, cut <-chan struct{}) bool {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	for {
		if w.ledger.idle() {
			return true
		}
		select {
		case <-w.ledger.room:
		case <-timer.C:
			return false
		case <-cut:
			return false
		}
	}
}

// identity is this process under a new worker id.
func (w *Worker) identity() engine.Worker {
	self := engine.Worker{ID: uuid.New(), PID: os.Getpid(), Build: build(), Queues: w.cfg.Queues, Slots: w.ledger.load().Slots}
	self.Host, _ = os.Hostname()
	for name, h := range w.reg.handlers {
		if k := (engine.Kind{Name: name, Version: h.version, Timeout: h.timeout}); h.lock {
			self.Locks = append(self.Locks, k)
		} else {
			self.Kinds = append(self.Kinds, k)
		}
	}
	for _, ks := range [][]engine.Kind{self.Kinds, self.Locks} {
		slices.SortFunc(ks, func(a, b engine.Kind) int { return strings.Compare(a.Name, b.Name) })
	}
	return self
}

func (w *Worker) become(self engine.Worker) (held int) {
	held = w.ledger.own(self.ID, engine.ErrLeaseLost)
	w.contact.reset()
	if before := w.self.Swap(&self); before != nil {
		poke(w.moved)
	}
	return held
}

// build names the program's version, for an operator who looks at who is alive.
func build() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	version := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			version += " " + s.Value[:12]
		}
	}
	return version
}
