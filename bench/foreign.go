package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// foreign is an entrant of another program: one that speaks the protocol of child.go, calls its entrants what it likes,
// and makes their tables. Its drains find jobs that its entrant of the same name in enqueuemany has enqueued.
type foreign struct {
	program string
	as      term
}

// programs are the other programs of a run, by name.
type programs map[string]program

type program struct {
	child   []string // command line of a child
	migrate func(ctx context.Context, url, peer string) error
}

// before is the program of an older checkout.
const before = "before"

var beforePeer = peer{name: before}

func needsBaseline(o options) string {
	if o.baseline == "" {
		return "-baseline, a checkout to compare with"
	}
	return ""
}

// buildBaseline builds what is needed of a checkout of the whole repository into a folder.
func buildBaseline(ctx context.Context, checkout, into string) (program, error) {
	bench, jobctl := filepath.Join(into, "bench"), filepath.Join(into, "jobctl")
	for _, b := range []struct{ folder, pkg, out string }{{filepath.Join(checkout, "bench"), ".", bench}, {checkout, "./cmd/jobctl", jobctl}} {
		cmd := exec.CommandContext(ctx, "go", "build", "-o", b.out, b.pkg)
		cmd.Dir = b.folder
		if said, err := cmd.CombinedOutput(); err != nil {
			return program{}, fmt.Errorf("-baseline: go build of %s: %w: %s", b.pkg, err, said)
		}
	}
	return program{child: []string{bench, childArg}, migrate: func(ctx context.Context, url, _ string) error {
		cmd := exec.CommandContext(ctx, jobctl, "migrate", "up")
		cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
		if said, err := cmd.CombinedOutput(); err != nil {
			return errors.Join(err, errors.New(string(said)))
		}
		return nil
	}}, nil
}
