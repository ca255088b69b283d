package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/jobgen-go/jobgen/internal/pgserver"
)

// together has all entrants of a contest do their tasks at the same time, each on a server of its own: so that an hour takes
// an hour, and each has its WAL and its CPU time told apart.
func (b *bench) together(ctx context.Context, o options, c contest, entrants []entrant) ([]sample, error) {
	ones := make([]sample, len(entrants))
	servers := make([]float64, len(entrants))
	g, ctx := errgroup.WithContext(ctx)
	for i, e := range entrants {
		g.Go(func() (err error) {
			defer func() {
				if err != nil {
					err = fmt.Errorf("%s: %w", e.name, err)
				}
			}()
			var log tail
			var vacuums vacuumCPU
			own := maps.Clone(settings)
			own["log_autovacuum_min_duration"] = "0"
			s, err := pgserver.Start(ctx, pgserver.Options{Durable: !o.volatile, Settings: own, Label: "bench", IgnoreDatabaseURL: true, Log: io.MultiWriter(&log, &vacuums)})
			if err != nil {
				return err
			}
			defer func() {
				if said := log.String(); err != nil && said != "" {
					err = fmt.Errorf("%w; the end of the server's log:\n%s", err, said)
				}
				err = errors.Join(err, s.Close())
			}()
			conn, err := pgx.Connect(ctx, s.URL)
			if err != nil {
				return err
			}
			defer conn.Close(context.WithoutCancel(ctx))
			one := &bench{server: s, meter: newMeter(ctx, conn), rest: b.rest, told: b.told, programs: b.programs}
			ones[i], err = one.enter(ctx, task{Contest: c.name, Entrant: e.name, Jobs: c.size(o.jobs, o.length)}, e)
			ones[i].vacuum = vacuums.seconds()
			servers[i] = serverCPU(one.meter.pid)
			return err
		})
	}
	err := g.Wait()
	for _, used := range servers {
		b.beside += used
	}
	return ones, err
}

// vacuumCPU listens to a server's log for what autovacuum took.
type vacuumCPU struct {
	mu     sync.Mutex
	line   []byte
	inside bool
	sum    float64
}

var usage = regexp.MustCompile(`system usage: CPU: user: ([0-9.]+) s, system: ([0-9.]+) s`)

// Write takes the log as it comes.
func (v *vacuumCPU) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.line = append(v.line, p...)
	for {
		line, rest, ok := bytes.Cut(v.line, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		switch found := usage.FindSubmatch(line); {
		case found != nil && v.inside:
			user, _ := strconv.ParseFloat(string(found[1]), 64)
			system, _ := strconv.ParseFloat(string(found[2]), 64)
			v.sum += user + system
		case !bytes.HasPrefix(line, []byte("\t")):
			v.inside = bytes.Contains(line, []byte("automatic vacuum of table")) || bytes.Contains(line, []byte("automatic analyze of table"))
		}
		v.line = append(v.line[:0], rest...)
	}
}

func (v *vacuumCPU) seconds() float64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.sum
}
