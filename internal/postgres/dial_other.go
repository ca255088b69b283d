//go:build !linux

package postgres

import (
	"net"
	"time"
)

func limitUnacknowledged(*net.TCPConn, time.Duration) {}
