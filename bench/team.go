package main

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Some tasks take more than one process. Those of a team share the jobs of one task; none of them can know when the last
// job is done, so each tells how many it has run, and is told to stop. One that works beside an entrant keeps the workers
// out of the process that is measured; it is told to stop, too.

// ran are the jobs that a process has run, a bit for each.
type ran []byte

func (r *roll) ran() ran {
	out := make(ran, 0, 4*len(r.seen))
	for i := range r.seen {
		v := r.seen[i].Load()
		out = append(out, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
	}
	return out
}

func (r ran) count() (n int) {
	for _, b := range r {
		n += bits.OnesCount8(b)
	}
	return n
}

// add fails if a job is in both.
func (r ran) add(other ran) error {
	if len(r) != len(other) {
		return fmt.Errorf("%d and %d bytes of jobs", len(r), len(other))
	}
	twice := 0
	for i := range r {
		twice += bits.OnesCount8(r[i] & other[i])
		r[i] |= other[i]
	}
	if twice > 0 {
		return fmt.Errorf("%d jobs ran in two processes", twice)
	}
	return nil
}

// orWait checks that each of n jobs has run or waits, and none has done both. Jobs are told by their numbers.
func (r ran) orWait(ctx context.Context, conn *pgx.Conn, n int) error {
	rows, err := conn.Query(ctx, `SELECT (payload->>'n')::int FROM jobgen.jobs WHERE status = 'queued'`)
	if err != nil {
		return err
	}
	waiting, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return err
	}
	have := append(ran{}, r...)
	for _, i := range waiting {
		if i < 0 || i >= 8*len(have) || have[i/8]&(1<<(i%8)) != 0 {
			return fmt.Errorf("job %d waits, though it has run, waits twice or does not exist", i)
		}
		have[i/8] |= 1 << (i % 8)
	}
	if got := have.count(); got != n {
		return fmt.Errorf("%d of %d jobs have run or wait", got, n)
	}
	return nil
}

// team are the processes of one entrant.
type team struct {
	members []*process
	beside  *process
	jobs    int
}

// startTeam returns when all are ready to go.
func startTeam(ctx context.Context, t task, command []string) (_ *team, err error) {
	all := &team{jobs: t.Jobs}
	defer func() {
		if err != nil {
			err = errors.Join(err, all.wait())
		}
	}()
	_, e, _ := find(t.Contest, t.Entrant)
	if e.beside != nil {
		one := t
		one.Entrant, one.Profile = e.beside.name, ""
		if all.beside, err = startChild(ctx, one); err != nil {
			return nil, err
		}
	}
	for range max(e.processes, 1) {
		p, err := startChild(ctx, t, command...)
		if err != nil {
			return nil, err
		}
		all.members = append(all.members, p)
		t.Profile = "" // one is enough
	}
	return all, nil
}

// run lets them go and returns what they did together, and which jobs they ran if they tell.
func (all *team) run(ctx context.Context) (answer, error) {
	var stand answer
	stood := make(chan error, 1)
	if all.beside != nil {
		go func() (err error) {
			defer func() { stood <- err }()
			stand, err = all.beside.run(ctx, nil)
			return err
		}()
	}
	a, err := all.share(ctx)
	if all.beside == nil {
		return a, err
	}
	err = errors.Join(err, all.beside.stop(), <-stood)
	a.Ran = stand.Ran
	return a, err
}

func (all *team) share(ctx context.Context) (answer, error) {
	var (
		mu      sync.Mutex
		called  = make([]int, len(all.members))
		answers = make([]answer, len(all.members))
		errs    = make([]error, len(all.members))
		stop    = sync.OnceFunc(func() {
			for i, p := range all.members {
				if err := p.stop(); err != nil {
					mu.Lock()
					errs[i] = errors.Join(errs[i], err)
					mu.Unlock()
				}
			}
		})
		ended sync.WaitGroup
	)
	for i, p := range all.members {
		ended.Go(func() {
			a, err := p.run(ctx, func(n int) {
				mu.Lock()
				called[i] = n
				sum := 0
				for _, c := range called {
					sum += c
				}
				mu.Unlock()
				if sum >= all.jobs {
					stop()
				}
			})
			mu.Lock()
			answers[i], errs[i] = a, errors.Join(errs[i], err)
			mu.Unlock()
			if err != nil && len(all.members) > 1 {
				stop() // the others would wait for its jobs
			}
		})
	}
	ended.Wait()
	if err := errors.Join(errs...); err != nil {
		return answer{}, err
	}
	a := answers[0]
	for _, other := range answers[1:] {
		a.Seconds = max(a.Seconds, other.Seconds)
		a.Client += other.Client
		a.Memory += other.Memory
		if err := ran(a.Ran).add(other.Ran); err != nil {
			return a, err
		}
	}
	if got := ran(a.Ran).count(); a.Ran != nil && got != all.jobs {
		return a, fmt.Errorf("%d of %d jobs have run", got, all.jobs)
	}
	return a, nil
}

// wait ends them all.
func (all *team) wait() (err error) {
	for _, p := range append([]*process{all.beside}, all.members...) {
		if p != nil {
			err = errors.Join(err, p.wait())
		}
	}
	return err
}
