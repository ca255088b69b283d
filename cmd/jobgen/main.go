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
	jobgen check [packages]   change nothing; report what jobgen would change, and what is not compatible with stored jobs;
	                          -format text|json|github
	jobgen accept RULE KIND[.FIELD] -reason "…"
	                          allow one incompatible change, as check reports it
	jobgen forget KIND [-checked]
	                          drop a removed kind from the lock; without -checked, tell what to check first
	jobgen scaffold [packages]
	                          write the skeleton of a handler, and a test, for each kind without one
	jobgen help [topic]       the annotations: keys (all of them), or one verb such as kind; what may change: rules, lock
	jobgen help -json         the annotations as data; jobgen help rules -json: the rules

Scaffold writes KIND_handler.go and KIND_handler_test.go for each kind that no function of the module takes a *jobs.Job
of, and jobs_gen.go as well. The files are yours: scaffold never writes over one. Their methods belong to the type that
handles the package's other kinds, or to a new type Handler.

Packages are named as for the go command; the default is the package in the current directory. Jobgen reads the sources
of the module whether they compile or not, so it can be run from nothing. If any package has a mistake, no file of any
package is written. A jobs_gen.go that does not carry jobgen's header is never touched.

# Stored jobs outlive the program

Jobs are read by a later program than the one that stored them. What each kind looks like as stored is in jobs.lock.json,
one beside each go.mod, which jobgen keeps and you commit. A change that programs before and after it can live with is put
into the lock in silence (a new field), or with the order of deployment if that matters (a wider integer). One by which
something stored would be lost or misread (a JSON name changed) is a mistake, and nothing is written: take it back, raise
the payload's version, or, if no stored job is concerned, allow just this one with jobgen accept. "jobgen help rules"
lists what may change, "jobgen help lock" tells what is in the lock and how merges of it go.

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
	"slices"
	"strings"

	"github.com/jobgen-go/jobgen/internal/jobgen"
)

const usage = `usage:
	jobgen [packages]         write jobs_gen.go for annotated types
	jobgen check [packages]   report what jobgen would change (exit 1), change nothing; -format text|json|github
	jobgen accept RULE KIND[.FIELD] -reason "…"
	                          allow one incompatible change, as check reports it
	jobgen forget KIND [-checked]
	                          drop a removed kind from jobs.lock.json
	jobgen scaffold [packages]
	                          write the skeleton of a handler, and a test, for each kind without one
	jobgen help [topic]       explain annotations; topics: %s
	jobgen help -json         the table of annotations as data; jobgen help rules -json: that of changes
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
		case "accept", "forget":
			return keepLock(ctx, dir, args[0], args[1:], stdout, stderr)
		case "help", "-h", "-help", "--help":
			return help(args[1:], stdout, stderr)
		}
	}
	known := map[string]bool{}
	if command == "check" {
		known["format"] = true
	}
	args, flags, err := parse(args, known)
	if err != nil {
		fmt.Fprintf(stderr, "jobgen: %v\n"+usage, err, topics())
		return 2
	}
	if len(args) == 0 {
		args = []string{"."}
	}
	if command == "check" {
		return check(ctx, dir, args, flags["format"], stdout, stderr)
	}
	plan := jobgen.Plan
	if command == "scaffold" {
		plan = jobgen.Scaffold
	}
	outputs, diags, err := plan(ctx, dir, args)
	return write(dir, outputs, diags, err, stdout, stderr)
}

// write puts in place what was planned, unless there are mistakes, and says so.
func write(dir string, outputs []jobgen.Output, diags []jobgen.Diag, err error, stdout, stderr io.Writer) int {
	if err == nil && !jobgen.Stop(diags) {
		outputs, err = jobgen.Write(outputs)
	}
	if err == nil {
		err = jobgen.Report(stderr, "text", dir, diags)
	}
	if err != nil {
		fmt.Fprintln(stderr, "jobgen:", err)
		return 2
	}
	if jobgen.Stop(diags) {
		return 1
	}
	report(dir, outputs, stdout)
	return 0
}

// check reports as text on the standard error, like every mistake, and in the forms for programs on the standard output.
func check(ctx context.Context, dir string, packages []string, format string, stdout, stderr io.Writer) int {
	to := stdout
	switch {
	case format == "" || format == "text":
		to = stderr
	case !slices.Contains(jobgen.Formats, format):
		fmt.Fprintf(stderr, "jobgen: no format %q; formats: %s\n", format, strings.Join(jobgen.Formats, ", "))
		return 2
	}
	diags, err := jobgen.Check(ctx, dir, packages)
	if err == nil {
		err = jobgen.Report(to, format, dir, diags)
	}
	switch {
	case err != nil:
		fmt.Fprintln(stderr, "jobgen:", err)
		return 2
	case jobgen.Stop(diags):
		return 1
	}
	return 0
}

// keepLock is what a person decides about the lock: accept and forget.
func keepLock(ctx context.Context, dir, command string, args []string, stdout, stderr io.Writer) int {
	known, want := map[string]bool{"reason": true}, 2
	if command == "forget" {
		known, want = map[string]bool{"checked": false}, 1
	}
	words, flags, err := parse(args, known)
	if err == nil && len(words) != want {
		err = fmt.Errorf("%s takes %s", command, map[string]string{"accept": "a rule and a kind or field", "forget": "a kind"}[command])
	}
	if err != nil {
		fmt.Fprintf(stderr, "jobgen: %v\n"+usage, err, topics())
		return 2
	}
	var outputs []jobgen.Output
	var diags []jobgen.Diag
	if command == "accept" {
		outputs, diags, err = jobgen.Accept(ctx, dir, words[0], words[1], flags["reason"])
	} else {
		_, checked := flags["checked"]
		outputs, diags, err = jobgen.Forget(ctx, dir, words[0], checked)
	}
	return write(dir, outputs, diags, err, stdout, stderr)
}

// parse takes the flags out of args, wherever they stand. known tells which there are, and whether they have a value.
func parse(args []string, known map[string]bool) (words []string, flags map[string]string, err error) {
	flags = map[string]string{}
	for i := 0; i < len(args); i++ {
		name, value, given := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		valued, ok := known[name]
		switch {
		case !strings.HasPrefix(args[i], "-"):
			words = append(words, args[i])
			continue
		case !ok || given && !valued:
			return nil, nil, fmt.Errorf("unknown flag %s", args[i])
		case valued && !given:
			if i++; i == len(args) {
				return nil, nil, fmt.Errorf("-%s needs a value", name)
			}
			value = args[i]
		}
		flags[name] = value
	}
	return words, flags, nil
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
	case args[0] == "rules" && len(args) > 1 && args[1] == "-json":
		if err := jobgen.RulesJSON(stdout); err != nil {
			fmt.Fprintln(stderr, "jobgen:", err)
			return 2
		}
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
