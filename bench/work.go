package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// payload is the same for every peer: {"n":12345}. Jobs are numbered from 0.
type payload struct {
	N int `json:"n"`
}

func payloads(n int) []payload {
	p := make([]payload, n)
	for i := range p {
		p[i].N = i
	}
	return p
}

func encode(ps []payload) ([][]byte, error) {
	out := make([][]byte, len(ps))
	for i, p := range ps {
		b, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		out[i] = b
	}
	return out, nil
}

// roll is called by every handler. It counts, and it notices a job that runs twice or was never enqueued.
type roll struct {
	n     int
	seen  []atomic.Uint32 // a bit for each job: the roll of millions must not be what a process's memory consists of
	left  atomic.Int64
	wrong atomic.Int64
	done  chan struct{} // closed when all have run
}

func newRoll(n int) *roll {
	r := &roll{n: n, seen: make([]atomic.Uint32, (n+31)/32), done: make(chan struct{})}
	r.left.Store(int64(n))
	return r
}

func (r *roll) call(i int) {
	if i < 0 || i >= r.n {
		r.wrong.Add(1)
		return
	}
	if bit := uint32(1) << (i % 32); r.seen[i/32].Or(bit)&bit != 0 {
		r.wrong.Add(1)
		return
	}
	if r.left.Add(-1) == 0 {
		close(r.done)
	}
}

// await returns when all jobs have run, or with an error.
func (r *roll) await(ctx context.Context, failed <-chan error) error {
	select {
	case <-r.done:
		return nil
	case err := <-failed:
		return fmt.Errorf("ended with %d jobs not run: %w", r.left.Load(), err)
	case <-ctx.Done():
		return fmt.Errorf("%d of %d jobs not run: %w", r.left.Load(), r.n, context.Cause(ctx))
	}
}

// verify is for after the end, when nothing can be called any more.
func (r *roll) verify() error {
	if n := r.wrong.Load(); n > 0 {
		return fmt.Errorf("%d calls for jobs that had run before or do not exist", n)
	}
	return nil
}

// expect compares a count with what it must be.
func expect(ctx context.Context, conn *pgx.Conn, want int, query string) error {
	var got int
	if err := conn.QueryRow(ctx, query).Scan(&got); err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%d instead of %d: %s", got, want, query)
	}
	return nil
}

// quiet logs only what is wrong.
func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
