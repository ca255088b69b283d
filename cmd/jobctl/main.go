// Jobctl operates a live jobgen queue: it migrates the schema, shows jobs with their history, and gives dead ones a fresh
// start. Its manual is built in: jobctl help.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/jobgen-go/jobgen/internal/jobctl"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	width, height := size()
	os.Exit(jobctl.Main(ctx, os.Args[1:], jobctl.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Zone: time.Local,
		Width: width, Height: height, Size: size,
		Ask:      term.IsTerminal(int(os.Stdin.Fd())),
		Progress: term.IsTerminal(int(os.Stderr.Fd())),
	}))
}

// size is that of the terminal that stdout is; 0: it is none.
func size() (width, height int) {
	width, height, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		return 0, 0
	}
	return width, height
}
