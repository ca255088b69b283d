package worker_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/pgproxy"
)

// another gives a second pool on pool's database, changed by change. It closes before the test's database goes.
func another(t testing.TB, pool *pgxpool.Pool, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config := pool.Config()
	change(config)
	p, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// proxied gives a pool whose connections go through a proxy, as do those of a worker that is made with it.
func proxied(t testing.TB, pool *pgxpool.Pool) (*pgxpool.Pool, *pgproxy.Proxy) {
	t.Helper()
	network, err := pgproxy.Start(pool.Config().ConnConfig.Config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(network.Close)
	return another(t, pool, func(c *pgxpool.Config) { c.ConnConfig.DialFunc = network.Dial }), network
}

// statement chooses the executions of one of the statements in queries/.
func statement(name string) pgproxy.Match { return pgproxy.Runs("-- name: " + name + " ") }

// tap sees each statement of a worker before it is sent, and can hold it up.
type tap struct {
	mu    sync.Mutex
	times map[string][]time.Time
	hooks map[string]func(ctx context.Context) context.Context
}

// tapped gives a pool whose statements, and those of a worker that is made with it, pass a tap.
func tapped(t testing.TB, pool *pgxpool.Pool) (*pgxpool.Pool, *tap) {
	t.Helper()
	p := &tap{times: map[string][]time.Time{}, hooks: map[string]func(context.Context) context.Context{}}
	return another(t, pool, func(c *pgxpool.Config) { c.ConnConfig.Tracer = p }), p
}

// TraceQueryStart implements pgx.QueryTracer. Statements go by their names in queries/.
func (p *tap) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	name, _, _ := strings.Cut(strings.TrimPrefix(data.SQL, "-- name: "), " ")
	p.mu.Lock()
	p.times[name] = append(p.times[name], time.Now())
	hook := p.hooks[name]
	p.mu.Unlock()
	if hook != nil {
		ctx = hook(ctx)
	}
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (p *tap) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// before calls hook before each statement of that name; the statement runs under the context it returns.
func (p *tap) before(name string, hook func(context.Context) context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hooks[name] = hook
}

// sent is when statements of that name were sent.
func (p *tap) sent(name string) []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]time.Time(nil), p.times[name]...)
}

// stretched waits until the worker behind p is idle and polls at its longest interval, and returns just after a claim:
// without being woken, it will not claim again for some three seconds.
func (p *tap) stretched(t testing.TB) {
	t.Helper()
	begin := time.Now()
	eventually(t, 2*soon, "the worker's polling is stretched", func() bool {
		times := p.sent("Claim")
		n := len(times)
		return n > 1 && times[n-2].After(begin) && times[n-1].Sub(times[n-2]) > 3500*time.Millisecond && time.Since(times[n-1]) < 500*time.Millisecond
	})
}

// alterDatabase changes the test's database and ends all its sessions, as a failover does; the function it returns takes
// the change back. It works from another database of the server.
func alterDatabase(t testing.TB, pool *pgxpool.Pool, change, back string) (restore func()) {
	t.Helper()
	config := pool.Config().ConnConfig
	name := config.Database
	config.Database = "postgres"
	admin, err := pgx.ConnectConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	alter := func(how string) {
		execute(t, admin, "ALTER DATABASE "+pgx.Identifier{name}.Sanitize()+" "+how)
		execute(t, admin, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
		pool.Reset() // which does not find out by itself
	}
	restored := false
	restore = func() {
		if !restored {
			restored = true
			alter(back)
			_ = admin.Close(context.Background())
		}
	}
	t.Cleanup(restore)
	alter(change)
	return restore
}

// refuseAll closes the database to everybody; the function it returns ends the outage.
func refuseAll(t testing.TB, pool *pgxpool.Pool) (restore func()) {
	t.Helper()
	return alterDatabase(t, pool, "ALLOW_CONNECTIONS false", "ALLOW_CONNECTIONS true")
}
