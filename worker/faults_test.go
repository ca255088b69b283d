package worker_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
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

// proxy is a relay in front of the server: the network, which a test can make fail.
type proxy struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond
	toward  bool // what the client sends passes
	back    bool // what the server sends passes
	closed  bool
	conns   map[net.Conn]net.Conn // client to server
	strands map[net.Conn]bool     // clients whose connections have died without a word
}

// proxied gives a pool whose connections go through a proxy, as do those of a worker that is made with it.
func proxied(t testing.TB, pool *pgxpool.Pool) (*pgxpool.Pool, *proxy) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, toward: true, back: true, conns: map[net.Conn]net.Conn{}, strands: map[net.Conn]bool{}}
	p.changed = sync.NewCond(&p.mu)
	conn := pool.Config().ConnConfig
	network, address := pgconn.NetworkAddress(conn.Host, conn.Port)
	p.wg.Go(func() { p.accept(network, address) })
	t.Cleanup(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		_ = listener.Close()
		p.cut()
		p.wg.Wait()
	})
	return another(t, pool, func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", listener.Addr().String())
		}
	}), p
}

func (p *proxy) accept(network, address string) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial(network, address)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client] = server
		p.mu.Unlock()
		p.wg.Go(func() { p.relay(client, server, server, client, &p.toward) })
		p.wg.Go(func() { p.relay(client, server, client, server, &p.back) })
	}
}

// relay copies from one side to the other for as long as open says so.
func (p *proxy) relay(client, server, to, from net.Conn, open *bool) {
	defer p.drop(client, server)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		for (!*open || p.strands[client]) && !p.closed && p.conns[client] != nil {
			p.changed.Wait()
		}
		alive := p.conns[client] != nil
		p.mu.Unlock()
		if !alive || err != nil && err != io.EOF {
			return
		}
		if _, werr := to.Write(buf[:n]); werr != nil || err != nil {
			return
		}
	}
}

func (p *proxy) drop(client, server net.Conn) {
	p.mu.Lock()
	delete(p.conns, client)
	p.changed.Broadcast()
	p.mu.Unlock()
	_ = client.Close()
	_ = server.Close()
}

// pass says what passes from now on; what does not is kept, and follows when it may.
func (p *proxy) pass(toward, back bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.toward, p.back = toward, back
	p.changed.Broadcast()
}

// freeze stops all traffic without an error, as a process that is stopped sees it.
func (p *proxy) freeze() { p.pass(false, false) }

// thaw ends a freeze; what was on its way arrives.
func (p *proxy) thaw() { p.pass(true, true) }

// strand lets nothing pass on the connections there are, for ever and without an error, as a firewall does that has
// forgotten them. New ones work.
func (p *proxy) strand() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for client := range p.conns {
		p.strands[client] = true
	}
}

// cut closes all connections. New ones are accepted.
func (p *proxy) cut() {
	p.mu.Lock()
	conns := p.conns
	p.conns = map[net.Conn]net.Conn{}
	p.changed.Broadcast()
	p.mu.Unlock()
	for client, server := range conns {
		_ = client.Close()
		_ = server.Close()
	}
}

// loseAnswer shuts the way back of all connections while the next statement of that name, which must claim jobs, is under
// way; the statement commits. What it returns is closed when that has been done.
func loseAnswer(t testing.TB, pool *pgxpool.Pool, network *proxy, name string) <-chan struct{} {
	t.Helper()
	execute(t, pool, `CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.2); RETURN NEW; END $$;
		CREATE TRIGGER linger BEFORE UPDATE ON jobgen.jobs FOR EACH ROW WHEN (NEW.status = 'running' AND OLD.status = 'queued') EXECUTE FUNCTION linger()`)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), soon)
	t.Cleanup(cancel)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lingers := false; !lingers; {
			if err := pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
				AND wait_event = 'PgSleep' AND query LIKE '-- name: ' || $1 || ' %')`, name).Scan(&lingers); err != nil {
				return
			}
		}
		network.pass(true, false)
		_, _ = pool.Exec(ctx, `DROP TRIGGER linger ON jobgen.jobs`)
	}()
	return done
}

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
