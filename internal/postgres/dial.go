package postgres

import (
	"context"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// deadAfter is when a worker's connection whose other end acknowledges nothing any more is given up: a statement on it would
// wait for its own limit (30 s for a claim), the kernel alone for a quarter of an hour. Only the network is judged by it: a server
// that works on a statement for longer still acknowledges, so no claim is cut that may commit.
const deadAfter = 10 * time.Second

// watched is dial for connections that are noticed when they have died without a word: by probes while nothing is under
// way or an answer is waited for, and, where the system can (Linux), by a limit for what was sent and is not acknowledged.
// What is no TCP connection (a unix socket, the application's own transport) stays as it is.
func watched(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if tcp, is := conn.(*net.TCPConn); is && err == nil {
			_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: deadAfter * 4 / 10, Interval: deadAfter * 2 / 10, Count: 3})
			limitUnacknowledged(tcp, deadAfter) // if either fails, the limits of the statements are left
		}
		return conn, err
	}
}
