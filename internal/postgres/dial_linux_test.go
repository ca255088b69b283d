package postgres_test

import (
	"context"
	"net"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/pgproxy"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/jobtest"
)

// A worker's own connections are given up by the kernel when the other end is gone, whoever dials them.
func TestSilentlyDeadConnectionsAreNoticedByTheKernel(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	p, err := pgproxy.Start(pool.Config().ConnConfig.Config) // for TCP
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	var mu sync.Mutex
	var conns []*net.TCPConn
	config := pool.Config()
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := p.Dial(ctx, network, addr)
		if err == nil {
			mu.Lock()
			conns = append(conns, c.(*net.TCPConn))
			mu.Unlock()
		}
		return c, err
	}
	app, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(app.Close)
	s, err := postgres.Open(t.Context(), app)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(conns) == 0 {
		t.Fatal("the application's DialFunc was not used")
	}
	for _, c := range conns {
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		for name, option := range map[string]struct{ option, want int }{
			"TCP_USER_TIMEOUT": {0x12, 10000}, "TCP_KEEPIDLE": {syscall.TCP_KEEPIDLE, 4}, "TCP_KEEPINTVL": {syscall.TCP_KEEPINTVL, 2}, "TCP_KEEPCNT": {syscall.TCP_KEEPCNT, 3},
		} {
			_ = raw.Control(func(fd uintptr) {
				if got, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, option.option); got != option.want || err != nil {
					t.Errorf("%s is %d, %v; want %d", name, got, err, option.want)
				}
			})
		}
	}
}
