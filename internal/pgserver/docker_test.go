//go:build unix

package pgserver

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"
)

// needEngine skips a test where there is no Docker engine, unless JOBGEN_PG=docker demands one.
func needEngine(t *testing.T) *dockertest.Pool {
	t.Helper()
	pool, err := engine(t.Context())
	if err == nil {
		t.Cleanup(pool.Client.HTTPClient.CloseIdleConnections)
		return pool
	}
	if os.Getenv("JOBGEN_PG") == "docker" {
		t.Fatal(err)
	}
	t.Skipf("no Docker engine: %v", err)
	return nil
}

// containersOf lists the containers that publish the port in a server's URL.
func containersOf(t *testing.T, pool *dockertest.Pool, url string) (ids []string) {
	t.Helper()
	all, err := pool.Client.ListContainers(docker.ListContainersOptions{
		All: true, Filters: map[string][]string{"label": {containerLabel}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		for _, port := range c.Ports {
			if port.PublicPort == int64(portIn(t, url)) {
				ids = append(ids, c.ID)
			}
		}
	}
	return ids
}

func TestDockerGivesAServerForTests(t *testing.T) {
	t.Parallel()
	pool := needEngine(t)
	var log lockedBuffer
	s, err := Start(t.Context(), Options{only: "docker", Log: &log, Settings: map[string]string{"max_connections": "17"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !strings.HasPrefix(s.Source, "Docker (") {
		t.Errorf("Source is %q", s.Source)
	}
	for setting, want := range map[string]string{
		"server_encoding": "UTF8", "timezone": "UTC", "max_connections": "17", "fsync": "off",
	} {
		if got := ask[string](t, s.URL, `SELECT current_setting($1)`, setting); got != want {
			t.Errorf("%s is %q, want %q", setting, got, want)
		}
	}
	template, err := s.Template(t.Context(), "v1", fill)
	if err != nil {
		t.Fatal(err)
	}
	u, _, err := s.CreateDatabase(t.Context(), template)
	if err != nil {
		t.Fatal(err)
	}
	if got := ask[int](t, u, `SELECT answer FROM filled`); got != 42 {
		t.Errorf("answer is %d", got)
	}
	if len(containersOf(t, pool, s.URL)) != 1 {
		t.Error("the container does not carry the label")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if left := containersOf(t, pool, s.URL); len(left) != 0 {
		t.Errorf("containers left: %v", left)
	}
	if !strings.Contains(log.String(), "ready to accept connections") {
		t.Error("the server's log did not get to Options.Log")
	}
}

func TestDockerContainerGoesWithItsOwner(t *testing.T) {
	t.Parallel()
	pool := needEngine(t)
	for _, c := range []struct {
		name string
		end  func(*child) error
	}{
		{"by SIGKILL", kill(syscall.SIGKILL)},
		{"by Ctrl-C", killGroup(syscall.SIGINT)},
		{"by os.Exit", func(c *child) error { return c.stdin.Close() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			owner := spawn(t, "owner", "JOBGEN_PG=docker").awaitReady(t)
			if len(containersOf(t, pool, owner.url)) != 1 {
				t.Fatal("no container")
			}
			if err := c.end(owner); err != nil {
				t.Fatal(err)
			}
			_ = owner.cmd.Wait()
			eventually(t, "the container is gone", func() bool { return len(containersOf(t, pool, owner.url)) == 0 })
		})
	}
}

func TestDockerServerThatCannotStartSaysWhyAndLeavesNothing(t *testing.T) {
	t.Parallel()
	needEngine(t)
	_, err := startDocker(t.Context(), Options{Settings: map[string]string{"shared_buffers": "a lot"}})
	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "shared_buffers": "a lot"`) {
		t.Errorf("error is %v", err)
	}
}

func TestDockerImageThatCannotBePulledIsNamed(t *testing.T) {
	t.Parallel()
	pool := needEngine(t)
	_, err := pull(t.Context(), pool, "localhost:1/no/such-image:v1", nil)
	if err == nil || !strings.HasPrefix(err.Error(), "pull: ") {
		t.Errorf("error is %v", err)
	}
}
