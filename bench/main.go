// Bench measures jobgen against other queues and against hand-written SQL, all in one run on one machine.
//
//	cd bench && go run . [-jobs 100000] [-rounds 5] [-only peers,feature-drain] [-baseline ../../before]
//
// It starts a Postgres of its own, durable, and goes through the contests (contest.go) round by round: each entrant gets a
// fresh database, a process of its own and a CHECKPOINT before it, and afterwards is checked: every job ran once and
// nothing is left. Absolute figures move by a factor of two with the machine's mood. Only the ratios count: each is taken
// within a round, between entrants that ran one after the other, and reported as the median over the rounds with the
// smallest and the largest.
//
// Each group of contests (contest.go) that is run as a whole gets its chapter of results.json in the folder that the
// program is started in; other groups' chapters stay as they were. Of results.json it writes RESULTS.md, which opens with
// jobgen beside the others and with the targets (targets.go), the pictures in plots/, and the figures of the README: -rewrite
// does that without measuring. No figure is written by hand, and none is compared with one of another run.
//
// Long ones run only if they are named: -only hold -for 10m, -only spiral -for 15m (for each entrant), -only memory,
// -only full-10m, -only idle.
//
// With -short it measures little, once, prints only ratios and writes nothing: that is for CI, and shows that the program
// works, not how fast jobgen is. Where a job's CPU time goes (components.go) is -only cost.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	jobs, rounds int
	length       time.Duration // of contests that go by time; 0: their own
	only         []string      // names of groups and contests; empty: all
	entrants     []string      // names of those that take part; empty: all
	baseline     string        // checkout to compare with; empty: none
	peers        string        // folder with the queues of Node; empty: they do not take part
	short        bool
	targeted     bool   // only those peers of whom a target speaks
	rewrite      bool   // RESULTS.md and the plots, of results.json; nothing is measured
	out          string // folder of the results; empty: nothing is written
	profile      string // folder of CPU profiles; empty: none
	rest         time.Duration
	volatile     bool // the server keeps its data in memory and flushes nothing: for tests, which measure nothing
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == childArg {
		os.Exit(child())
	}
	o, err := parse(os.Args[1:])
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal is fatal at once; the server goes away all the same.
	context.AfterFunc(ctx, stop)
	switch err := run(ctx, o, os.Stdout); {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "bench: interrupted; nothing is left behind and nothing was written")
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// rest is how old a backlog is at least when its drain begins. Right after an enqueue, a queue may look again and again at
// what was just committed, in case something is committed late (jobgen does, for two seconds); a backlog is older.
const rest = 3 * time.Second

// long is what is run once: in a quarter of an hour the machine has had all its moods.
const long = 5 * time.Minute

func parse(args []string) (options, error) {
	o := options{rest: rest}
	var only, entrants string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.IntVar(&o.jobs, "jobs", 100_000, "jobs of a drain; contests with slower steps take a part of it")
	f.DurationVar(&o.length, "for", 0, "how long contests that go by time (hold, spiral, churn) take for each entrant in each round; 0: a minute, 90 seconds, and ten minutes; from 5m on, there is one round unless -rounds says otherwise")
	f.IntVar(&o.rounds, "rounds", 5, "rounds, interleaved; an odd number has a median of its own")
	f.StringVar(&only, "only", "", "groups or contests to run, separated by commas; without it, all but idle, hold, spiral, memory, full-10m and churn: "+strings.Join(selectable(), ", "))
	f.StringVar(&entrants, "entrants", "", "entrants that take part, separated by commas, as results.json names them; without it, all")
	f.StringVar(&o.baseline, "baseline", "", "a checkout of an older commit, to compare jobs without any feature with")
	f.StringVar(&o.peers, "peers", nodeFolder(), "folder with the queues of Node, where peers/install has put them; empty: without them")
	f.BoolVar(&o.short, "short", false, "10,000 jobs, one round, print only ratios, write nothing; without -only, those that targets are about")
	f.StringVar(&o.out, "out", ".", "folder that gets RESULTS.md and results.json, if a whole group was run; given, parts of one are written, too")
	f.BoolVar(&o.rewrite, "rewrite", false, "measure nothing: write RESULTS.md and the plots again from results.json")
	f.StringVar(&o.profile, "profile", "", "folder that gets a CPU profile of each entrant's process (pprof), from the last round")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if o.short {
		if !given["jobs"] {
			o.jobs = 10_000
		}
		if !given["rounds"] {
			o.rounds = 1
		}
		o.targeted = only == ""
	}
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	if entrants != "" {
		o.entrants = strings.Split(entrants, ",")
	}
	if o.length >= long && !given["rounds"] {
		o.rounds = 1
	}
	if o.rewrite {
		return o, nil
	}
	if o.short || entrants != "" && !given["out"] || slices.ContainsFunc(o.only, func(name string) bool { return !isGroup(name) }) && !given["out"] {
		o.out = "" // a part must not take the place of the whole
	}
	for _, name := range o.only {
		if !slices.Contains(selectable(), name) {
			return o, fmt.Errorf("-only: there is no contest %q; there are %s", name, strings.Join(selectable(), ", "))
		}
	}
	for _, name := range o.entrants {
		if !slices.ContainsFunc(contests, func(c contest) bool { _, _, ok := find(c.name, name); return o.runs(c) && ok }) {
			return o, fmt.Errorf("-entrants: there is no %q in what is to run", name)
		}
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.jobs < 100 || o.jobs > 10_000_000:
		return o, fmt.Errorf("-jobs is %d; it must be 100 to 10000000", o.jobs)
	case o.length != 0 && o.length < time.Second:
		return o, fmt.Errorf("-for is %s; it must be at least 1s", o.length)
	case o.rounds < 1:
		return o, fmt.Errorf("-rounds is %d; it must be at least 1", o.rounds)
	}
	return o, nil
}

// run measures, prints and writes.
func run(ctx context.Context, o options, out io.Writer) error {
	if o.rewrite {
		return (&results{}).write(o.out)
	}
	results, err := measure(ctx, o, newProgress(out, o.short))
	if err != nil {
		return err
	}
	results.print(out, o)
	if o.out == "" {
		return nil
	}
	return results.write(o.out)
}
