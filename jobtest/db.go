package jobtest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/pgserver"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/schema"
)

const (
	// startTimeout covers a first start: initdb, or the download of an image.
	startTimeout = 3 * time.Minute
	// releaseTimeout is how long the end of a test waits for connections it has not given back.
	releaseTimeout = 10 * time.Second
	// maxConns is the same on every machine, and leaves room for many tests on a server of 100 connections.
	maxConns = 8
)

// DB gives the test a database of its own, with jobgen's tables and nothing in them, and drops it when the test and its
// subtests have ended. The Postgres is the one DATABASE_URL names (databases jobgen_… are created beside the one it
// names, which is not touched), else one started from installed binaries, else from a Docker image; without any of
// them the test fails with a text that says what to do. One server serves all tests of a test binary and goes away with it, also when
// the binary is killed.
//
// The pool may open 8 connections. A test that wants other settings makes a pool of its own from pool.Config(). A
// connection that the test has not given back when it ends fails the test.
func DB(t testing.TB) *pgxpool.Pool {
	t.Helper()
	p, err := shared()
	if err != nil {
		t.Fatalf("jobtest: %v", err)
	}
	url, drop, err := p.server.CreateDatabase(t.Context(), p.template)
	if err != nil {
		t.Fatalf("jobtest: %v", err)
	}
	// Cleanups run last first: the pool closes before its database goes.
	t.Cleanup(func() {
		if err := drop(context.Background()); err != nil {
			t.Errorf("jobtest: %v", err)
		}
	})
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatalf("jobtest: %v", err)
	}
	config.MaxConns = maxConns
	// Not the test's context: it ends before the test's own cleanups run, and they may want the pool.
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatalf("jobtest: %v", err)
	}
	t.Cleanup(func() { closePool(t, pool) })
	return pool
}

// closePool closes the pool without hanging for ever when the test has kept a connection.
func closePool(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	timeout := time.NewTimer(releaseTimeout)
	defer timeout.Stop()
	select {
	case <-closed:
	case <-timeout.C:
		t.Errorf("jobtest: the test has ended and still has %d connections of its pool: close rows, end transactions, release connections", pool.Stat().AcquiredConns())
	}
}

// place is where the databases of this process come from.
type place struct {
	server   *pgserver.Server
	template string
}

// shared starts the server when the first test asks. It ends with the process (see pgserver), so no TestMain is needed.
var shared = sync.OnceValues(func() (place, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	server, err := pgserver.Start(ctx, pgserver.Options{})
	if err != nil {
		return place{}, err
	}
	name, err := templateName()
	if err != nil {
		return place{}, errors.Join(err, server.Close())
	}
	template, err := server.Template(ctx, name, migrate)
	if err != nil {
		return place{}, errors.Join(err, server.Close())
	}
	return place{server, template}, nil
})

func migrate(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = postgres.Migrate(ctx, pool, func(error) {})
	return err
}

// templateName changes with the migrations.
func templateName() (string, error) {
	sum := sha256.New()
	err := fs.WalkDir(schema.Postgres, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := schema.Postgres.ReadFile(path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(text), text)
		return err
	})
	return fmt.Sprintf("jobs_%x", sum.Sum(nil)[:6]), err
}
