package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/worker"
)

// A worker process is this test binary again, told so by its environment.
const processVariable = "JOBGEN_FAULTS_PROCESS"

// process is what a worker process is told.
type process struct {
	Name    string // w2.7: the seventh process in place 2
	URL     string
	Proxy   string // address of the network in front of the server
	History string // file to write its events to
	Conns   int32
	Slots   int
	Kinds   int // how many of the kinds it handles
	Quotas  bool
}

// event is what a handler notes: that it starts, and what it is about to return.
type event struct {
	Process string
	Job, N  int64
	Attempt int
	Start   bool
	OK      bool // of an end: it returns success
}

func TestMain(m *testing.M) {
	if told := os.Getenv(processVariable); told != "" {
		var p process
		err := json.Unmarshal([]byte(told), &p)
		if err == nil {
			go func() { // the parent's end of standard input closes with the parent, however that ends
				_, _ = io.Copy(io.Discard, os.Stdin)
				os.Exit(3)
			}()
			err = p.run()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, p.Name, "ended:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// connect gives a pool whose sessions tell the database which process they are of.
func connect(ctx context.Context, url, proxy, name string, conns int32) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	c.MaxConns = conns
	c.ConnConfig.RuntimeParams["faults.process"] = name
	if proxy != "" {
		c.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", proxy)
		}
	}
	return pgxpool.NewWithConfig(ctx, c)
}

func (p *process) run() error {
	ctx := context.Background()
	file, err := os.OpenFile(p.History, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	pool, err := connect(ctx, p.URL, p.Proxy, p.Name, p.Conns)
	if err != nil {
		return err
	}
	defer pool.Close()
	h := &handlers{process: p, file: file}
	var r worker.Registry
	for _, register := range []func(){
		func() {
			worker.HandleNone(&r, plain, func(ctx context.Context, j *jobs.Job[work]) error { return h.note(ctx, j, nil) })
		},
		func() {
			worker.HandleTxNone(&r, inTx, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[work]) error { return h.note(ctx, j, tx) })
		},
		func() {
			worker.Handle(&r, result, func(ctx context.Context, j *jobs.Job[work]) (answer, error) {
				return answerTo(j.Payload.N), h.note(ctx, j, nil)
			})
		},
		func() {
			worker.Handle(&r, keyed, func(ctx context.Context, j *jobs.Job[work]) (answer, error) {
				return answerTo(j.Payload.N), h.note(ctx, j, nil)
			})
		},
		func() {
			worker.HandleTx(&r, once, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[work]) (answer, error) {
				return answerTo(j.Payload.N), h.note(ctx, j, tx)
			})
		},
		func() {
			worker.HandleTxNone(&r, locked, func(ctx context.Context, tx pgx.Tx, j *jobs.Job[work]) error { return h.note(ctx, j, tx) })
		},
	}[:p.Kinds] {
		register()
	}
	cfg := worker.Config{Queues: queues, Concurrency: p.Slots, Lease: lease, Reclaim: lease / 4, Grace: time.Second, StuckAfter: time.Second, MaxCrashes: 1000,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	if p.Quotas {
		cfg.QueueSlots = map[string]int{"a": 7, "b": 5}
		cfg.Reserve = []worker.Reserve{{Slots: 2, Priority: 3}}
	}
	w, err := worker.New(pool, &r, cfg)
	if err != nil {
		return err
	}
	return w.RunUntilSignal(ctx)
}

// handlers write down what they do, in a file of their process. A write is in the kernel's hands when it returns, so it
// outlives the process.
type handlers struct {
	process *process
	mu      sync.Mutex
	file    *os.File
}

func (h *handlers) write(e event) error {
	e.Process = h.process.Name
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err = h.file.Write(append(b, '\n'))
	return err
}

// note is the body of each handler: it may have an effect, and may be in trouble.
func (h *handlers) note(ctx context.Context, j *jobs.Job[work], tx pgx.Tx) error {
	e := event{Job: j.ID, N: j.Payload.N, Attempt: j.Attempt, Start: true}
	if err := h.write(e); err != nil {
		return err
	}
	if tx != nil {
		if _, err := tx.Exec(ctx, `INSERT INTO faults.effect (kind, n, job, process) VALUES ($1, $2, $3, $4)`, j.Kind, j.Payload.N, j.ID, h.process.Name); err != nil {
			return err
		}
	}
	err := trouble(ctx, j.Payload.Trouble, j.Attempt)
	e.Start, e.OK = false, err == nil
	return errors.Join(err, h.write(e))
}

// trouble is what a handler meets. It becomes rarer with each attempt, so that a job ends.
func trouble(ctx context.Context, seed uint64, attempt int) error {
	r := seed * (2*uint64(attempt) + 1) >> 32 % 1000
	switch {
	case attempt > 5:
	case r < 30:
		return jobs.RetryIn(time.Duration(r)*10*time.Millisecond, errors.New("fails"))
	case r < 50 && rand.IntN(2) == 0: // a snooze gives the attempt back, so the seed alone would snooze for ever
		return jobs.Snooze(time.Duration(r) * 5 * time.Millisecond)
	case r < 55:
		panic("a panic")
	case r < 58:
		return jobs.Permanent(errors.New("fails for good"))
	case r < 62:
		wait(ctx, time.Duration(r-57)*time.Second)
	case r < 64: // does not look at its context
		wait(context.WithoutCancel(ctx), 2*lease)
	case r < 100:
		wait(ctx, time.Duration(r)*time.Millisecond/4)
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// place is where one worker process follows another.
type place struct {
	world *world
	index int
	mu    sync.Mutex
	cmd   *exec.Cmd
	count int
	over  bool
	done  chan struct{} // of the process that runs
}

// spawn starts the next process of a place; when it ends, another follows.
func (p *place) spawn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	p.count++
	w := p.world
	me := w.shape(p.index, p.count)
	told, err := json.Marshal(me)
	if err != nil {
		w.fail("%v", err)
		return
	}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), processVariable+"="+string(told))
	p.cmd.Stdout, p.cmd.Stderr = w.log, w.log
	if _, err := p.cmd.StdinPipe(); err != nil {
		w.fail("%v", err)
		return
	}
	if err := p.cmd.Start(); err != nil {
		w.fail("%v", err)
		return
	}
	done, cmd := make(chan struct{}), p.cmd
	p.done = done
	go func() {
		_ = cmd.Wait()
		close(done)
		wait(context.Background(), 100*time.Millisecond)
		p.spawn()
	}()
}

func (p *place) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil && p.cmd.Process != nil {
		_ = p.cmd.Process.Signal(sig)
	}
}

// end has no other process follow, and ends this one as an orchestrator does.
func (p *place) end(patience time.Duration) bool {
	p.mu.Lock()
	p.over = true
	done := p.done
	p.mu.Unlock()
	p.signal(syscall.SIGCONT)
	p.signal(syscall.SIGTERM)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		p.signal(syscall.SIGKILL)
		<-done
		return false
	}
}
