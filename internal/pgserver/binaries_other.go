//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package pgserver

import (
	"context"
	"errors"
	"runtime"
)

func startBinaries(context.Context, Options) (*Server, error) {
	return nil, errors.New("not supported on " + runtime.GOOS + ": the server listens on a unix socket and is stopped by signals")
}
