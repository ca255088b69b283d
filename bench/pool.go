package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// newPool gives a pool with all its connections open.
func newPool(ctx context.Context, url string, conns int) (*pgxpool.Pool, error) {
	return newTracedPool(ctx, url, conns, nil)
}

func newTracedPool(ctx context.Context, url string, conns int, tracer pgx.QueryTracer) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(conns)
	config.ConnConfig.Tracer = tracer
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	held := make([]*pgxpool.Conn, 0, conns)
	defer func() {
		for _, c := range held {
			c.Release()
		}
	}()
	for range conns {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		held = append(held, c)
	}
	return pool, nil
}

// poolOf is a pool of so many connections, whose statements tracer sees; nil: nobody does.
type poolOf struct {
	conns  int
	tracer pgx.QueryTracer
}

// openPools gives pools of one database, all of them or none.
func openPools(ctx context.Context, url string, of ...poolOf) (pools []*pgxpool.Pool, closeAll func(), err error) {
	closeAll = func() {
		for _, p := range pools {
			p.Close()
		}
	}
	for _, p := range of {
		pool, err := newTracedPool(ctx, url, p.conns, p.tracer)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		pools = append(pools, pool)
	}
	return pools, closeAll, nil
}

func withPool(ctx context.Context, url string, conns int, do func(*pgxpool.Pool) error) error {
	pool, err := newPool(ctx, url, conns)
	if err != nil {
		return err
	}
	defer pool.Close()
	return do(pool)
}

// openPool is a session whose run is one call.
func openPool(ctx context.Context, url string, conns int, run func(context.Context, *pgxpool.Pool) error) (*session, error) {
	pool, err := newPool(ctx, url, conns)
	if err != nil {
		return nil, err
	}
	return &session{close: pool.Close, run: func(ctx context.Context) error { return run(ctx, pool) }}, nil
}

// openCallers is a session of as many callers as connections, who share n calls evenly.
func openCallers(ctx context.Context, url string, callers, n int, prepare func(*pgxpool.Pool) (call, error)) (*session, error) {
	pool, err := newPool(ctx, url, callers)
	if err != nil {
		return nil, err
	}
	do, err := prepare(pool)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &session{close: pool.Close, run: func(ctx context.Context) error { return inParallel(ctx, callers, n, do) }}, nil
}

// inParallel has so many callers share n calls evenly.
func inParallel(ctx context.Context, callers, n int, do call) error {
	g, ctx := errgroup.WithContext(ctx)
	for caller := range callers {
		g.Go(func() error {
			for i := caller; i < n; i += callers {
				if err := do(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// call does what is to be done for job i.
type call func(ctx context.Context, i int) error
