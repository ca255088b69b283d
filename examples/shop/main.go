/*
Shop shows jobgen at work, and checks what it promises. From the root of the repository:

	make demo
	make demo ARGS="-lease 2s -keep"

It takes an orders file and a folder of images. Each order is stored and its job orders.invoice enqueued in one
transaction; each image becomes a job images.thumbnail. Three worker processes run the jobs. Half-way one of them is
killed with SIGKILL while it holds some. At the end shop asks the database and the folder of thumbnails whether what was
promised holds, prints a table, and says it by its exit status, too.

Where to look:

	orders/orders.go      an annotated job, enqueued within a transaction, handled within a transaction
	images/thumbnails.go  an annotated job whose effect is a file, so that it can happen twice
	work.go               a worker process: register the handlers, run
	demo.go               the order of events
	proof.go              what is checked, and how

# Flags

	-orders FILE     orders, one a line: order_id,customer,cents (default: the file that comes with the shop)
	-n N             take only the first N lines of it
	-images DIR      folder with PNG, JPEG and GIF files, at any depth (default: src/image of the Go distribution)
	-lease D         time after which a silent worker counts as dead (default 15s, as in production)
	-work D          how long each handler pretends to work (default 20ms)
	-keep            leave the database up until Ctrl-C, and say how to connect
	-without WHAT    leave out key or tx, and see the table say which promise that breaks

# Exit status

	0    everything that was promised holds
	1    it does not
	2    the demo could not run
	130  interrupted

After the end, the processes, the database and the temporary folder are gone; if a promise did not hold, the folder stays,
for the workers' logs. If shop itself is killed, the processes and the database go all the same, and the folder stays.
*/
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	exitHeld        = 0
	exitBroken      = 1
	exitCannotRun   = 2
	exitInterrupted = 130
)

// workerMode is the hidden first argument with which shop starts itself as a worker process.
const workerMode = "worker"

func main() {
	if len(os.Args) > 1 && os.Args[1] == workerMode {
		os.Exit(runWorker(os.Args[2:], os.Stdin, os.Stderr))
	}
	// The first signal ends the demo in good order; the second ends it as usual.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	d, code := parse(os.Args[1:], os.Stdout, os.Stderr)
	if d != nil {
		code = d.main(ctx, os.Stderr)
	}
	os.Exit(code)
}

// settings are what both the demo and its workers are told.
type settings struct {
	images  string
	lease   time.Duration
	work    time.Duration
	without string
}

func (s *settings) flags(f *flag.FlagSet) {
	f.StringVar(&s.images, "images", "", "`folder` with PNG, JPEG and GIF files, at any depth\n(default: src/image of the Go distribution)")
	f.DurationVar(&s.lease, "lease", 15*time.Second, "time after which a silent worker counts as dead")
	f.DurationVar(&s.work, "work", 20*time.Millisecond, "how long each handler pretends to work")
	f.StringVar(&s.without, "without", "", "leave out `key or tx`, and see the table say which promise that breaks")
}

// parse makes a demo of the arguments; without one, it gives the exit status.
func parse(args []string, stdout, stderr io.Writer) (*demo, int) {
	d := &demo{screen: newScreen(stdout)}
	f := flag.NewFlagSet("shop", flag.ContinueOnError)
	f.SetOutput(stderr)
	d.flags(f)
	f.StringVar(&d.ordersFile, "orders", "", "`file` of orders, one a line: order_id,customer,cents\n(default: the one that comes with the shop)")
	f.IntVar(&d.lines, "n", 0, "take only the first `n` lines of the orders (default: all)")
	f.BoolVar(&d.keep, "keep", false, "leave the database up until Ctrl-C, and say how to connect")
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil, exitHeld
	case err != nil:
		return nil, exitCannotRun
	}
	switch {
	case f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q; see -help", f.Arg(0))
	case d.without != "" && d.without != "key" && d.without != "tx":
		err = fmt.Errorf("-without %s is not known; it may be key or tx", d.without)
	case d.lines < 0:
		err = fmt.Errorf("-n is %d; it must not be negative", d.lines)
	case d.lease < time.Second || d.lease > time.Hour:
		err = fmt.Errorf("-lease is %s; it must be 1s to 1h", d.lease)
	case d.work < 0 || d.work > time.Second:
		err = fmt.Errorf("-work is %s; it must be 0s to 1s", d.work)
	}
	if err != nil {
		fmt.Fprintln(stderr, "shop:", err)
		return nil, exitCannotRun
	}
	return d, exitHeld
}

// main runs the demo and gives its exit status.
func (d *demo) main(ctx context.Context, stderr io.Writer) int {
	held, err := d.run(ctx)
	d.screen.progress("")
	switch {
	case ctx.Err() != nil && !d.proved:
		fmt.Fprintln(stderr, "shop: interrupted; what was started is stopped and removed")
		return exitInterrupted
	case err != nil:
		fmt.Fprintln(stderr, "shop:", err)
		return exitCannotRun
	case !held:
		return exitBroken
	}
	return exitHeld
}
