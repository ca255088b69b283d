package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/internal/pgserver"
)

// settings of the server: what a small production server has, so that neither the cache nor checkpoints are what is
// measured. All else is Postgres's default.
var settings = map[string]string{"shared_buffers": "1GB", "max_wal_size": "8GB"}

// measure goes through all contests, round by round. The order of entrants turns round every time, so that none always
// runs in another's wake.
func measure(ctx context.Context, o options, p *progress) (_ *results, err error) {
	p.say("starting Postgres")
	var log tail
	var told statementCPU
	s, err := pgserver.Start(ctx, pgserver.Options{Durable: !o.volatile, Settings: settings, Label: "bench", IgnoreDatabaseURL: true, Log: io.MultiWriter(&log, &told)})
	if err != nil {
		return nil, err
	}
	defer func() {
		if said := log.String(); err != nil && ctx.Err() == nil && said != "" {
			err = fmt.Errorf("%w; the end of the server's log:\n%s", err, said)
		}
		err = errors.Join(err, s.Close())
	}()
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if o.profile != "" {
		if err := os.MkdirAll(o.profile, 0o755); err != nil {
			return nil, err
		}
	}
	b := &bench{server: s, meter: newMeter(ctx, conn), rest: o.rest, say: p.detail, told: &told, programs: programs{node: nodeProgram(o.peers)}}
	if o.baseline != "" {
		folder, err := os.MkdirTemp("", "jobgen-bench-")
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
		p.say("building the baseline")
		if b.programs[before], err = buildBaseline(ctx, o.baseline, folder); err != nil {
			return nil, err
		}
	}
	r := &results{Jobs: o.jobs, Rounds: o.rounds, Length: o.length, samples: samples{}}
	if r.environment, err = b.meter.environment(ctx); err != nil {
		return nil, err
	}
	r.Versions, r.Machine, r.Commit = versions(), machine(), checkedOut(ctx)
	if needsNode(o) == "" {
		maps.Copy(r.Versions, nodeVersions())
	}
	p.header(r)

	var run []contest
	steps := 0
	for _, c := range contests {
		if !o.runs(c) {
			continue
		}
		run = append(run, c)
		steps += len(c.takingPart(o)) * o.rounds
		for _, e := range c.entrants {
			if e.needs != nil && e.needs(o) != "" {
				r.Absent = append(r.Absent, absent{c.name, e.name, e.needs(o)})
			}
		}
	}
	// What comes first finds everything cold: it runs once more than the others, unless it goes by time.
	if first := run[0].takingPart(o); len(first) > 0 && first[0].seed != nil && run[0].length == 0 && !o.short {
		p.say("warming up")
		t := task{Contest: run[0].name, Entrant: first[0].name, Jobs: run[0].size(o.jobs, o.length)}
		if _, err := b.enter(ctx, t, first[0]); err != nil {
			return nil, fmt.Errorf("%s, %s: %w", t.Contest, t.Entrant, err)
		}
	}
	load := b.load()
	for round := range o.rounds {
		for _, c := range run {
			entrants := c.takingPart(o)
			if round%2 == 1 {
				slices.Reverse(entrants)
			}
			if c.together {
				p.step(steps, fmt.Sprintf("round %d of %d: %s, all at once", round+1, o.rounds, c.name))
				ones, err := b.together(ctx, o, c, entrants)
				if err != nil {
					p.end()
					return nil, fmt.Errorf("%s, %w", c.name, err)
				}
				for i, e := range entrants {
					p.done(c, e, ones[i])
					r.samples[term{c.name, e.name}] = append(r.samples[term{c.name, e.name}], ones[i])
				}
				continue
			}
			for _, e := range entrants {
				p.step(steps, fmt.Sprintf("round %d of %d: %s, %s", round+1, o.rounds, c.name, e.name))
				t := task{Contest: c.name, Entrant: e.name, Jobs: max(c.size(o.jobs, o.length)/max(e.part, 1), 1)}
				if e.foreign != nil {
					t.Contest, t.Entrant = e.foreign.as.contest, e.foreign.as.entrant
				} else if round == o.rounds-1 {
					t.Profile = profileFile(o.profile, c.name, e.name)
				}
				one, err := b.enter(ctx, t, e)
				if err != nil {
					p.end()
					return nil, fmt.Errorf("%s, %s: %w", c.name, e.name, err)
				}
				p.done(c, e, one)
				r.samples[term{c.name, e.name}] = append(r.samples[term{c.name, e.name}], one)
			}
		}
	}
	r.Others = b.load().since(load)
	p.end()
	return r, nil
}

type bench struct {
	server   *pgserver.Server
	meter    *meter
	rest     time.Duration
	say      func(string) // how far a slow step is
	told     *statementCPU
	programs programs
	beside   float64 // CPU seconds of servers that have gone
}

// enter lets one entrant do its task once, on a database of its own, and checks what it did.
func (b *bench) enter(ctx context.Context, t task, e entrant) (one sample, err error) {
	migrate, seed := e.peer.migrate, e.seed
	var command []string
	if e.foreign != nil {
		other := b.programs[e.foreign.program]
		command = other.child
		migrate = func(ctx context.Context, url string) error { return other.migrate(ctx, url, e.peer.name) }
		if c := e.foreign.as.contest; strings.HasPrefix(c, "drain") {
			seed = func(ctx context.Context, url string, n int) error {
				_, err := runChild(ctx, task{Contest: "enqueuemany", Entrant: e.foreign.as.entrant, URL: url, Jobs: n}, command)
				return err
			}
		}
	}
	template, err := b.server.Template(ctx, e.peer.name, migrate)
	if err != nil {
		return one, err
	}
	var drop func(context.Context) error
	if t.URL, drop, err = b.server.CreateDatabase(ctx, template); err != nil {
		return one, err
	}
	defer func() {
		if ctx.Err() == nil { // else the whole server goes
			err = errors.Join(err, drop(ctx))
		}
	}()
	if e.fill != nil {
		if err := e.fill(ctx, t.URL, t.Jobs, b.say); err != nil {
			return one, fmt.Errorf("fill: %w", err)
		}
	}
	if seed != nil {
		if err := b.backlog(ctx, t, seed); err != nil {
			return one, fmt.Errorf("seed: %w", err)
		}
	}
	before, err := b.meter.count(ctx, t.URL)
	if err != nil {
		return one, err
	}
	race := b.race
	if e.components {
		race = b.dissect
	}
	if one, err = race(ctx, t, command); err != nil {
		return one, err
	}
	after, err := b.meter.count(ctx, t.URL)
	if err != nil {
		return one, err
	}
	one.commits, one.dead = after.commits-before.commits, after.dead-before.dead
	conn, err := pgx.Connect(ctx, t.URL)
	if err != nil {
		return one, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := e.verify(ctx, conn, t.Jobs); err != nil {
		return one, fmt.Errorf("it did not do what it should: %w", err)
	}
	if e.verifyBeside != nil {
		if err := e.verifyBeside(ctx, conn, t.Jobs, one.ran); err != nil {
			return one, fmt.Errorf("beside it: %w", err)
		}
	}
	return one, nil
}

// race is what is measured.
func (b *bench) race(ctx context.Context, t task, command []string) (one sample, err error) {
	p, err := startTeam(ctx, t, command)
	if err != nil {
		return one, err
	}
	defer func() { err = errors.Join(err, p.wait()) }()
	if _, err := b.meter.conn.Exec(ctx, "CHECKPOINT"); err != nil {
		return one, err
	}
	from, err := b.meter.read(ctx)
	if err != nil {
		return one, err
	}
	a, err := p.run(ctx)
	if err != nil {
		return one, err
	}
	to, err := b.meter.read(ctx)
	return sample{
		jobs: max(t.Jobs, a.Jobs), seconds: a.Seconds, client: known(a.Client), memory: known(a.Memory), server: to.cpu - from.cpu, wal: to.wal - from.wal,
		p50: known(a.P50), p99: known(a.P99), first: known(a.First), last: known(a.Last), queries: known(a.Statements),
		backlog: known(a.Backlog), claim50: known(a.Claim50), claim99: known(a.Claim99), series: a.Series, ran: a.Ran,
		curve: a.Curve, parts: map[string]float64{partBackground: to.background - from.background},
	}, err
}

// runChild lets a child do its task without measuring it.
func runChild(ctx context.Context, t task, command []string) (a answer, err error) {
	p, err := startChild(ctx, t, command...)
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, p.wait()) }()
	return p.run(ctx, nil)
}

// backlog fills the database and leaves it as it would be some time later.
func (b *bench) backlog(ctx context.Context, t task, seed func(context.Context, string, int) error) error {
	if err := seed(ctx, t.URL, t.Jobs); err != nil {
		return err
	}
	resting := time.NewTimer(b.rest)
	defer resting.Stop()
	conn, err := pgx.Connect(ctx, t.URL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "VACUUM (ANALYZE)"); err != nil {
		return err
	}
	select {
	case <-resting.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	last []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = append(t.last, p...)
	t.last = t.last[max(0, len(t.last)-2000):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.last)
}

// load is what has been used so far, in seconds: of the machine's CPU, of it by this program and its server, and of time.
type load struct {
	at         time.Time
	used, ours float64
}

func (b *bench) load() load {
	return load{at: time.Now(), used: machineCPU(), ours: ownCPU() + endedCPU() + serverCPU(b.meter.pid) + b.beside}
}

// since tells how busy the machine was with other things.
func (l load) since(from load) string {
	cores := float64(runtime.NumCPU())
	others := ((l.used - from.used) - (l.ours - from.ours)) / l.at.Sub(from.at).Seconds()
	if math.IsNaN(others) {
		return "how busy the machine was with other things is not known"
	}
	verdict := "the machine was quiet"
	if others > 0.05*cores {
		verdict = "THE MACHINE WAS BUSY, so jobs/s and their ratios are worth little; CPU and WAL per job hold"
	}
	return fmt.Sprintf("other programs used %.2f of %.0f cores: %s", max(others, 0), cores, verdict)
}

// machine is the machine's shape.
func machine() string {
	shape := fmt.Sprintf("%d cores", runtime.NumCPU())
	if m := machineMemory(); !math.IsNaN(m) {
		shape += fmt.Sprintf(", %.0f GB", m/(1<<30))
	}
	return shape + ", " + runtime.GOOS + "/" + runtime.GOARCH + "; clients and server on the same machine"
}

// versions are those of Go and of the modules measured.
func versions() map[string]string {
	v := map[string]string{"go": strings.TrimPrefix(runtime.Version(), "go")}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	for _, m := range info.Deps {
		for name, path := range map[string]string{"river": "github.com/riverqueue/river", "gue": "github.com/vgarvardt/gue/v5", "pgx": "github.com/jackc/pgx/v5"} {
			if m.Path == path {
				v[name] = strings.TrimPrefix(m.Version, "v")
			}
		}
	}
	return v
}

// checkedOut is the commit in the folder that the program is started in, and whether what it is built of has changed since.
func checkedOut(ctx context.Context) string {
	git := func(args ...string) (string, error) {
		said, err := exec.CommandContext(ctx, "git", args...).Output()
		return strings.TrimSpace(string(said)), err
	}
	commit, err := git("rev-parse", "--short=10", "HEAD")
	if err != nil {
		return ""
	}
	// The results of the chapters before are no change.
	if changed, err := git("status", "--porcelain", "--", ":/", ":(top,exclude)README.md", ":(top,exclude)bench/RESULTS.md", ":(top,exclude)bench/results.json", ":(top,exclude)bench/plots"); err != nil || changed != "" {
		commit += " and changes"
	}
	return commit
}
