package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/pgproxy"
	"github.com/jobgen-go/jobgen/internal/pgserver"
	"github.com/jobgen-go/jobgen/jobs"
)

// lease of the workers: short, so that a run sees many end.
const lease = 1500 * time.Millisecond

// world is a run: a server of its own, a network for each worker process, and what is known of what happened.
type world struct {
	t       testing.TB
	seed    uint64
	folder  string
	log     io.Writer
	server  *pgserver.Server
	url     string
	name    string        // of the database
	pool    *pgxpool.Pool // the operator's, past all networks
	places  []*place
	proxies []*pgproxy.Proxy

	mu     sync.Mutex
	failed []string
	sure   map[int64]string // what producers know to be committed, with its kind
	counts map[string]int   // faults, by name

	archived map[int64]bool // jobs that are on record as cancelled
	outcomes map[string]int
	jobs     int
	changes  int
}

func open(t testing.TB, seed uint64, places int) *world {
	t.Helper()
	ctx := t.Context()
	w := &world{t: t, seed: seed, folder: t.TempDir(), sure: map[int64]string{}, counts: map[string]int{}}
	file, err := os.Create(filepath.Join(w.folder, "workers.log"))
	check(t, err)
	t.Cleanup(func() { _ = file.Close() })
	w.log = file
	w.server, err = pgserver.Start(ctx, pgserver.Options{IgnoreDatabaseURL: true, Durable: !*forgetFlag, Label: "faults", Settings: map[string]string{"max_connections": "200"}})
	check(t, err)
	t.Cleanup(func() { _ = w.server.Close() })
	w.url, _, err = w.server.CreateDatabase(ctx, "")
	check(t, err)
	w.pool, err = connect(context.WithoutCancel(ctx), w.url, "", "operator", 10)
	check(t, err)
	t.Cleanup(w.pool.Close)
	w.name = w.pool.Config().ConnConfig.Database
	check(t, jobs.Migrate(ctx, w.pool))
	_, err = w.pool.Exec(ctx, auditSchema)
	check(t, err)
	for i := range places {
		proxy, err := pgproxy.Start(w.pool.Config().ConnConfig.Config)
		check(t, err)
		t.Cleanup(proxy.Close)
		w.proxies = append(w.proxies, proxy)
		w.places = append(w.places, &place{world: w, index: i})
	}
	return w
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shape is how the count-th process of a place is made: like a deploy that changed something.
func (w *world) shape(index, count int) process {
	random := rand.New(rand.NewPCG(w.seed, uint64(index)<<32|uint64(count)))
	name := fmt.Sprintf("w%d.%d", index, count)
	p := process{Name: name, URL: w.url, Proxy: w.proxies[index].Addr(), History: filepath.Join(w.folder, name+".json"),
		Conns: int32(4 + random.IntN(8)), Slots: 1 + random.IntN(40), Kinds: 6}
	p.Quotas = p.Slots > 5 && random.IntN(4) == 0
	if index > 0 && random.IntN(4) == 0 {
		p.Kinds = 3 + random.IntN(3)
	}
	return p
}

func (w *world) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = append(w.failed, fmt.Sprintf(format, args...))
}

func (w *world) committed(kind string, ps []work) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range ps {
		w.sure[p.N] = kind
	}
}

// exec does something that may be refused: a fault is not the only one.
func (w *world) exec(ctx context.Context, sql string, args ...any) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, _ = w.pool.Exec(ctx, sql, args...)
}

// maintain does something about the database from outside, for certain.
func (w *world) maintain(ctx context.Context, sql string) {
	w.until(ctx, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, w.server.URL)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		_, err = conn.Exec(ctx, fmt.Sprintf(sql, w.name))
		return err
	})
}

// until tries until it works.
func (w *world) until(ctx context.Context, do func(context.Context) error) {
	end := time.NewTimer(time.Minute)
	defer end.Stop()
	for {
		one, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := do(one)
		cancel()
		if err == nil || ctx.Err() != nil {
			return
		}
		select {
		case <-end.C:
			w.fail("the harness itself cannot go on: %v", err)
			return
		default:
			wait(ctx, 50*time.Millisecond)
		}
	}
}

// backend is the pid of one of the server's sessions.
func (w *world) backend(ctx context.Context) (pid int) {
	_ = w.pool.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid)
	return pid
}

func (w *world) ids(ctx context.Context, sql string, args ...any) []int64 {
	rows, err := w.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil
	}
	ids, _ := pgx.CollectRows(rows, pgx.RowTo[int64])
	return ids
}

// hold keeps a transaction open.
func (w *world) hold(ctx context.Context, d time.Duration, level pgx.TxIsoLevel, sql string, args ...any) {
	tx, err := w.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, sql, args...); err == nil {
		wait(ctx, d)
	}
}

// run lets the plan happen, then heals everything and waits until all is done.
func (w *world) run(steps []step, length time.Duration) {
	ctx := w.t.Context()
	for _, p := range w.places {
		p.spawn()
	}
	busy, stop := context.WithTimeout(ctx, length)
	defer stop()
	var producers, acting sync.WaitGroup
	for i := range 6 {
		pool, err := connect(context.WithoutCancel(ctx), w.url, w.proxies[i%len(w.proxies)].Addr(), fmt.Sprintf("p%d", i), 2)
		check(w.t, err)
		producers.Go(func() {
			defer pool.Close()
			w.produce(busy, pool, i)
		})
	}
	for _, s := range steps {
		wait(busy, s.after)
		if busy.Err() != nil {
			break
		}
		w.mu.Lock()
		w.counts[s.fault.name]++
		w.mu.Unlock()
		fmt.Fprintln(w.log, "FAULT", s)
		acting.Go(func() { s.fault.do(busy, w, s) })
	}
	<-busy.Done()
	acting.Wait()
	for _, p := range w.proxies {
		p.Refuse(false)
		p.Heal()
		p.Cut() // what is stranded
	}
	for _, p := range w.places {
		p.signal(syscall.SIGCONT)
	}
	producers.Wait()
	for _, q := range queues {
		w.until(ctx, func(ctx context.Context) error { return jobs.ResumeQueue(ctx, w.pool, q) })
		w.until(ctx, func(ctx context.Context) error { return jobs.SetQueueSlots(ctx, w.pool, q, 0) })
	}
	left := -1
	end := time.NewTimer(*patienceFlag)
	defer end.Stop()
	for left != 0 {
		_ = w.pool.QueryRow(ctx, `SELECT count(*) FROM jobgen.jobs WHERE NOT dead`).Scan(&left)
		select {
		case <-end.C:
			w.fail("G2: %d jobs are neither done nor dead %v after the last fault: %v", left, *patienceFlag,
				w.texts(ctx, `SELECT format('%s %s %s attempt %s crashes %s worker %s due in %s: %s', id, kind, status, attempt, crashes, worker_id, run_at - now(), last_error) FROM jobgen.jobs WHERE NOT dead ORDER BY id LIMIT 5`))
			for _, p := range w.places {
				p.signal(syscall.SIGQUIT) // Go prints all stacks
			}
			left = 0
		default:
			wait(ctx, 100*time.Millisecond)
		}
	}
	for _, p := range w.places {
		if !p.end(30 * time.Second) {
			w.fail("a worker process did not end within 30 s of SIGTERM")
		}
	}
}

func (w *world) texts(ctx context.Context, sql string, args ...any) []string {
	rows, err := w.pool.Query(ctx, sql, args...)
	if err != nil {
		return []string{err.Error()}
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		out = append(out, err.Error())
	}
	return out
}

// history reads what the worker processes wrote down.
func (w *world) history() (events []event) {
	names, err := filepath.Glob(filepath.Join(w.folder, "*.json"))
	check(w.t, err)
	for _, name := range names {
		file, err := os.Open(name)
		check(w.t, err)
		for lines := bufio.NewScanner(file); lines.Scan(); {
			var e event
			if json.Unmarshal(lines.Bytes(), &e) == nil { // a last line may be cut
				events = append(events, e)
			}
		}
		_ = file.Close()
	}
	return events
}
