package pgserver

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"
)

// defaultImage is small, and its major version is the one most in use.
const defaultImage = "postgres:17-alpine"

// containerLabel marks our containers, so that ones which never ran can be found and removed.
const containerLabel = "com.github.jobgen-go.pgserver"

// lifeline is the first process of the container. Its standard input is connected to the process
// that owns the server. When that ends, the read ends, the server is killed, and the engine removes
// the container. The image's own entry point and its arguments are "$@".
const lifeline = `
exec 3<&0
"$@" </dev/null 3<&- &
server=$!
{ read -r _ <&3; kill -KILL "$server"; } >/dev/null 2>&1 &
wait "$server"
`

// container is a server in a container.
type container struct {
	pool     *dockertest.Pool
	id       string
	lifeline io.Closer // closing it ends the container
	attached docker.CloseWaiter
	log      *tail
}

// startDocker starts a server in a container of a Docker engine.
func startDocker(ctx context.Context, o Options) (*Server, error) {
	pool, err := engine(ctx)
	if err != nil {
		return nil, err
	}
	removeUnstarted(ctx, pool)
	image := cmp.Or(os.Getenv("JOBGEN_PG_IMAGE"), defaultImage)
	if o.Version > 0 {
		image = fmt.Sprintf("postgres:%d-alpine", o.Version)
	}
	entrypoint, err := pull(ctx, pool, image, o.Log)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", image, err)
	}
	c := &container{pool: pool, log: &tail{to: o.Log}}
	address, err := c.start(ctx, o, image, entrypoint)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("image %s: %w", image, err), c.stop())
	}
	return &Server{URL: address, Source: fmt.Sprintf("Docker (%s)", image), stop: c.stop}, nil
}

// engine connects to the Docker engine that DOCKER_HOST names, else to the first that answers on a
// socket where one usually listens.
func engine(ctx context.Context) (*dockertest.Pool, error) {
	endpoints := []string{""} // dockertest looks into the environment
	if os.Getenv("DOCKER_HOST") == "" && os.Getenv("DOCKER_URL") == "" && os.Getenv("DOCKER_MACHINE_NAME") == "" {
		home, _ := os.UserHomeDir()
		for _, socket := range []string{
			filepath.Join(home, ".docker/run/docker.sock"),
			filepath.Join(home, ".colima/default/docker.sock"),
			filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "docker.sock"),
		} {
			if _, err := os.Stat(socket); err == nil {
				endpoints = append(endpoints, "unix://"+socket)
			}
		}
	}
	var errs []error
	for _, endpoint := range endpoints {
		pool, err := dockertest.NewPool(endpoint)
		if err == nil {
			patience, cancel := context.WithTimeout(ctx, 5*time.Second)
			err = pool.Client.PingWithContext(patience)
			cancel()
			if err == nil {
				return pool, nil
			}
			err = fmt.Errorf("%s: %w", pool.Client.Endpoint(), err)
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// pull makes sure that the engine has the image, and returns the image's entry point.
func pull(ctx context.Context, pool *dockertest.Pool, image string, log io.Writer) ([]string, error) {
	found, err := pool.Client.InspectImage(image)
	if errors.Is(err, docker.ErrNoSuchImage) {
		repository, tag := image, "latest"
		if colon := strings.LastIndex(image, ":"); colon > strings.LastIndex(image, "/") {
			repository, tag = image[:colon], image[colon+1:]
		}
		if log == nil {
			log = io.Discard
		}
		err = pool.Client.PullImage(docker.PullImageOptions{
			Repository: repository, Tag: tag, OutputStream: log, Context: ctx,
		}, docker.AuthConfiguration{})
		if err != nil {
			return nil, fmt.Errorf("pull: %w", err)
		}
		found, err = pool.Client.InspectImage(image)
	}
	if err != nil {
		return nil, err
	}
	if found.Config == nil {
		return nil, nil
	}
	return found.Config.Entrypoint, nil
}

// start runs the container and returns the server's URL once the server takes connections.
func (c *container) start(ctx context.Context, o Options, image string, entrypoint []string) (string, error) {
	host, loopback := c.host()
	publish := ""
	if loopback {
		publish = "127.0.0.1"
	}
	password, port := rand.Text(), ""
	if o.Port > 0 {
		password, port = portPassword(), strconv.Itoa(o.Port)
	}
	created, err := c.pool.Client.CreateContainer(docker.CreateContainerOptions{
		Context: ctx,
		Config: &docker.Config{
			Image:        image,
			Labels:       map[string]string{containerLabel: "throwaway server"},
			Env:          []string{"POSTGRES_PASSWORD=" + password, "POSTGRES_INITDB_ARGS=--no-sync --encoding=UTF8"},
			Entrypoint:   []string{"sh", "-c", lifeline, "sh"},
			Cmd:          append(append(entrypoint, "postgres"), o.settings()...),
			ExposedPorts: map[docker.Port]struct{}{"5432/tcp": {}},
			OpenStdin:    true,
			StdinOnce:    true,
			AttachStdin:  true,
			AttachStdout: true,
			AttachStderr: true,
		},
		HostConfig: &docker.HostConfig{
			AutoRemove:   true,
			PortBindings: map[docker.Port][]docker.PortBinding{"5432/tcp": {{HostIP: publish, HostPort: port}}},
			ShmSize:      256 << 20, // the default of 64 MiB is too little for parallel queries
		},
	})
	if err != nil {
		return "", err
	}
	c.id = created.ID
	if err := c.attach(ctx); err != nil {
		return "", err
	}
	if err := c.pool.Client.StartContainerWithContext(c.id, nil, ctx); err != nil {
		return "", err
	}
	return c.awaitReady(ctx, host, password)
}

// host is where published ports are found, and whether that is this machine.
func (c *container) host() (name string, loopback bool) {
	endpoint, err := url.Parse(c.pool.Client.Endpoint())
	if err != nil || endpoint.Hostname() == "" || endpoint.Scheme == "unix" || endpoint.Scheme == "npipe" {
		return "127.0.0.1", true
	}
	ip := net.ParseIP(endpoint.Hostname())
	return endpoint.Hostname(), endpoint.Hostname() == "localhost" || (ip != nil && ip.IsLoopback())
}

// attach connects the lifeline, and returns once it holds.
func (c *container) attach(ctx context.Context) error {
	read, write := io.Pipe()
	c.lifeline = write
	ready := make(chan struct{})
	attached, err := c.pool.Client.AttachToContainerNonBlocking(docker.AttachToContainerOptions{
		Container:   c.id,
		InputStream: read, OutputStream: c.log, ErrorStream: c.log,
		Stream: true, Stdin: true, Stdout: true, Stderr: true,
		Success: ready,
	})
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	c.attached = attached
	select {
	case <-ready:
		ready <- struct{}{}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("attach: %w", ctx.Err())
	}
}

func (c *container) awaitReady(ctx context.Context, host, password string) (string, error) {
	begin := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		state, err := c.pool.Client.InspectContainerWithContext(c.id, ctx)
		if err != nil {
			return "", fmt.Errorf("the container is gone: %w: %s", err, c.log)
		}
		if !state.State.Running {
			return "", fmt.Errorf("the container ended at once: %s", c.log)
		}
		var places []string
		for _, binding := range state.NetworkSettings.Ports["5432/tcp"] {
			places = append(places, net.JoinHostPort(host, binding.HostPort))
		}
		// Where we are in a container ourselves, published ports are somewhere else.
		if address := state.NetworkSettings.IPAddress; address != "" && time.Since(begin) > 5*time.Second {
			places = append(places, net.JoinHostPort(address, "5432"))
		}
		for _, place := range places {
			u := url.URL{Scheme: "postgres", User: url.UserPassword("postgres", password), Host: place,
				Path: "/postgres", RawQuery: "sslmode=disable"}
			patience, cancel := context.WithTimeout(ctx, 2*time.Second)
			conn, connectErr := connect(patience, u.String())
			cancel()
			if connectErr == nil {
				return u.String(), conn.Close(ctx)
			}
			err = connectErr
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", fmt.Errorf("not ready in time: %w: %w: %s", ctx.Err(), err, c.log)
		}
	}
}

// stop removes the container, and returns once the engine no longer knows it.
func (c *container) stop() error {
	if c.id == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	removeErr := c.pool.Client.RemoveContainer(docker.RemoveContainerOptions{
		ID: c.id, Force: true, RemoveVolumes: true, Context: ctx,
	})
	if c.lifeline != nil {
		_ = c.lifeline.Close()
	}
	if c.attached != nil {
		_ = c.attached.Wait()
	}
	// AutoRemove may have been faster, and be still at it.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := c.pool.Client.InspectContainerWithContext(c.id, ctx)
		var gone *docker.NoSuchContainer
		if errors.As(err, &gone) {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("remove container %.12s: %w", c.id, cmp.Or(removeErr, ctx.Err()))
		}
	}
	if transport, ok := c.pool.Client.HTTPClient.Transport.(*http.Transport); ok {
		transport.CloseIdleConnections()
	}
	return nil
}

// removeUnstarted removes containers whose owner was killed between creating and starting them. All
// others are removed by the engine when their lifeline breaks.
func removeUnstarted(ctx context.Context, pool *dockertest.Pool) {
	found, err := pool.Client.ListContainers(docker.ListContainersOptions{
		All: true, Context: ctx,
		Filters: map[string][]string{"label": {containerLabel}, "status": {"created"}},
	})
	if err != nil {
		return
	}
	for _, c := range found {
		if time.Since(time.Unix(c.Created, 0)) > 10*time.Minute {
			_ = pool.Client.RemoveContainer(docker.RemoveContainerOptions{ID: c.ID, RemoveVolumes: true, Context: ctx})
		}
	}
}

// tail passes a log on and keeps the end of it for error messages.
type tail struct {
	to io.Writer

	mu  sync.Mutex
	end []byte
}

func (t *tail) Write(p []byte) (int, error) {
	const most = 1000
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, p...)
	t.end = t.end[max(0, len(t.end)-most):]
	if t.to != nil {
		return t.to.Write(p)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return lastWords(string(t.end))
}
