// Command with runs another command with DATABASE_URL set.
//
//	go run ./internal/pgserver/with [-durable] [-own] -- command [argument ...]
//
// If DATABASE_URL is set, with changes nothing. Otherwise it starts a server (package pgserver
// tells how), so that all the packages of one go test share it, and stops it when the command has
// ended. Signals reach the command, and with ends as the command did: with its exit status, or
// with 128 plus the number of the signal that ended it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"github.com/jobgen-go/jobgen/internal/pgserver"
	"github.com/jobgen-go/jobgen/internal/supervise"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stderr))
}

func run(args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("with", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: with [-durable] [-own] -- command [argument ...]")
		flags.PrintDefaults()
	}
	durable := flags.Bool("durable", false, "keep data on disk and flush them, as in production")
	own := flags.Bool("own", false, "start a server also if DATABASE_URL is set")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return supervise.OurFault
	}
	if flags.NArg() == 0 {
		flags.Usage()
		return supervise.OurFault
	}

	// From here on a signal is the command's. Until there is one, it ends the start.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, supervise.Signals...)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // an image may be pulled
	defer cancel()
	started := make(chan struct{})
	interrupted := make(chan os.Signal, 1)
	go func() {
		select {
		case sig := <-signals:
			interrupted <- sig
			cancel()
		case <-started:
		}
	}()

	begin := time.Now()
	server, err := pgserver.Start(ctx, pgserver.Options{Durable: *durable, IgnoreDatabaseURL: *own, Label: "with"})
	close(started)
	select {
	case sig := <-interrupted:
		if server != nil {
			_ = server.Close()
		}
		return 128 + supervise.Number(sig)
	default:
	}
	if err != nil {
		fmt.Fprintln(stderr, "with:", err)
		return supervise.OurFault
	}
	if server.Source != "DATABASE_URL" {
		fmt.Fprintf(stderr, "with: PostgreSQL from %s, ready after %v\n",
			server.Source, time.Since(begin).Round(10*time.Millisecond))
	}

	command := exec.Command(flags.Arg(0), flags.Args()[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.Env = append(os.Environ(), "DATABASE_URL="+server.URL)
	status := supervise.Run(command, signals, func(err error) { fmt.Fprintln(stderr, "with:", err) })

	if err := server.Close(); err != nil {
		fmt.Fprintln(stderr, "with:", err)
		if status == 0 {
			status = supervise.OurFault
		}
	}
	return status
}
