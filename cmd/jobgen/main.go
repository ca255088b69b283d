/*
Jobgen turns annotated structs into typed background jobs.

	go get -tool github.com/jobgen-go/jobgen/cmd/jobgen
	go tool jobgen ./...

It reads the //job: lines in the doc comments of struct types and writes one file, jobs_gen.go, into each package that has
some. For example, this struct in package billing,

	// ChargeCard charges a customer's saved card.
	//
	//job:kind billing.charge_card queue=billing attempts=8 timeout=30s result=Receipt
	//job:key OrderID for=24h
	type ChargeCard struct {
		OrderID string `json:"order_id"`
		Cents   int64  `json:"cents"`
	}

	// Receipt is what charging gives.
	type Receipt struct {
		Number string `json:"number"`
	}

gets these declarations:

	const ChargeCardKind = "billing.charge_card"
	func EnqueueChargeCard(ctx context.Context, db jobs.DB, payload ChargeCard, opts ...jobs.Option) (jobs.Ref[Receipt], error)
	func EnqueueChargeCardMany(ctx context.Context, db jobs.DB, payloads []ChargeCard, opts ...jobs.Option) ([]jobs.Ref[Receipt], error)
	func HandleChargeCard(r *worker.Registry, fn func(context.Context, *jobs.Job[ChargeCard]) (Receipt, error))
	func ChargeCardRef(id int64) jobs.Ref[Receipt]

and the package, for all its kinds together, these:

	type Handlers interface {
		ChargeCard(context.Context, *jobs.Job[ChargeCard]) (Receipt, error)
	}
	func Register(r *worker.Registry, h Handlers)

An application enqueues with its own connection or transaction, and awaits the result if it wants it:

	ref, err := billing.EnqueueChargeCard(ctx, tx, billing.ChargeCard{OrderID: "o-17", Cents: 1290})
	…
	receipt, err := ref.Await(ctx, pool)

A worker implements billing.Handlers and registers it. A kind without a handler does not compile.

# Annotations

There is one //job: line for each concern: kind (required; its name is data for as long as jobs of it are stored), key,
retry, cron, was, reserve; and defaults and registry, in a package's doc comment. "jobgen help keys" lists what each may
say. All of it is strict: a
misspelt key, a value that cannot be, a line that is not directly above a type, or one that only looks like a
directive (// job:kind) is an error that tells what to write. A timeout has no default: it is said, for the kind or
for the package.

Raising the version of a payload (v=2) takes a function that reads what the version before has stored. Until it is written
the package does not compile; jobgen prints a form of it to paste.

//job:registry, in one package of the module, asks for RegisterAll there, which takes the Handlers of every package of the
module: a package that is forgotten does not compile.

A payload is an exported struct whose fields have JSON names and come back as they went in. What would not is refused,
each with what to write instead.

# Commands

	jobgen [packages]         write jobs_gen.go where it is missing or stale, remove it where no kinds are left
	jobgen check [packages]   change nothing; report what jobgen would change
	jobgen scaffold [packages]
	                          write the skeleton of a handler, and a test, for each kind without one
	jobgen help [topic]       the annotations: keys (all of them), or one verb such as kind
	jobgen help -json         the same as data

Scaffold writes KIND_handler.go and KIND_handler_test.go for each kind that no function of the module takes a *jobs.Job
of, and jobs_gen.go as well. The files are yours: scaffold never writes over one. Their methods belong to the type that
handles the package's other kinds, or to a new type Handler.

Packages are named as for the go command; the default is the package in the current directory. Jobgen reads the sources
of the module whether they compile or not, so it can be run from nothing. If any package has a mistake, no file of any
package is written. A jobs_gen.go that does not carry jobgen's header is never touched.

# Exit status

	0   done; for check, everything is up to date
	1   mistakes in the sources, one line each: path:line:col: message (rule); for check, also files that are not up to date
	2   could not run: unknown command or package, not in a module, a file that cannot be read or written
*/
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/jobgen-go/jobgen/internal/jobgen"
)

const usage = `usage:
	jobgen [packages]         write jobs_gen.go for annotated types
	jobgen check [packages]   report what jobgen would change (exit 1), change nothing
	jobgen scaffold [packages]
	                          write the skeleton of a handler, and a test, for each kind without one
	jobgen help [topic]       explain annotations; topics: %s
	jobgen help -json         the table of annotations as data
`

func main() {
	// An interrupt ends go list; it does not end the renames, which take no time and belong together.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	dir, err := os.Getwd()
	if err != nil {
		fmt.Fprintln(os.Stderr, "jobgen:", err)
		os.Exit(2)
	}
	code := run(ctx, dir, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without the process: the exit status is what it returns.
func run(ctx context.Context, dir string, args []string, stdout, stderr io.Writer) int {
	command := "generate"
	if len(args) > 0 {
		switch args[0] {
		case "check", "scaffold":
			command, args = args[0], args[1:]
		case "help", "-h", "-help", "--help":
			return help(args[1:], stdout, stderr)
		}
	}
	for _, a := range args {
		if strings.HasPrefix(a, "-") {
			fmt.Fprintf(stderr, "jobgen: unknown flag %s\n"+usage, a, topics())
			return 2
		}
	}
	if len(args) == 0 {
		args = []string{"."}
	}
	plan := jobgen.Plan
	if command == "scaffold" {
		plan = jobgen.Scaffold
	}
	outputs, diags, err := plan(ctx, dir, args)
	if err == nil && !jobgen.Stop(diags) {
		if command == "check" {
			diags = append(diags, jobgen.Findings(outputs)...)
		} else {
			outputs, err = jobgen.Write(outputs)
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, "jobgen:", err)
		return 2
	}
	for _, d := range diags {
		fmt.Fprintln(stderr, d.Format(dir))
	}
	if jobgen.Stop(diags) {
		return 1
	}
	if command != "check" {
		report(dir, outputs, stdout)
	}
	return 0
}

// report says what was changed, and nothing if that is nothing.
func report(dir string, changed []jobgen.Output, stdout io.Writer) {
	for _, o := range changed {
		verb := "wrote"
		if o.New == nil {
			verb = "removed"
		}
		path := o.Path
		if rel, err := filepath.Rel(dir, path); err == nil {
			path = rel
		}
		fmt.Fprintln(stdout, verb, path)
	}
}

func help(args []string, stdout, stderr io.Writer) int {
	switch {
	case len(args) == 0:
		fmt.Fprintf(stdout, usage, topics())
		return 0
	case args[0] == "-json":
		if err := jobgen.HelpJSON(stdout); err != nil {
			fmt.Fprintln(stderr, "jobgen:", err)
			return 2
		}
		return 0
	case jobgen.Help(stdout, args[0]):
		return 0
	}
	fmt.Fprintf(stderr, "jobgen: no help on %q; topics: %s\n", args[0], topics())
	return 2
}

func topics() string { return strings.Join(jobgen.Topics(), ", ") }
