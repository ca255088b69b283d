// Package exporter is behind jobctl exporter: a page of metrics for Prometheus, read from the database. metrics.go names them all,
// collect.go reads them, text.go writes them, and exporter.go serves the page.
//
// The text format is written here: it is a hundred lines, and a library for it would be in the module graph of every program that
// enqueues a job.
package exporter

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jobgen-go/jobgen/internal/postgres"
)

// Config of an Exporter. Nothing has a default here.
type Config struct {
	Interval time.Duration // the database is read at most this often
	Timeout  time.Duration // and in at most this time
	Most     int           // label sets shown by themselves, of each sort; the others are folded into one with the name other
	Log      *slog.Logger
	Explain  func(error) error // says in an error from the database what to do
}

// Exporter makes the page. Scrapes that come at the same time, or within Interval, share one.
type Exporter struct {
	op  postgres.Operator
	cfg Config

	mu          sync.Mutex
	body        []byte
	read        time.Duration // when body was; 0: never
	most        int
	known       map[string]*names
	held        map[string]held
	failures    map[string]float64
	collections float64
	wrong       string // what was in the log last
}

// New makes one that does not touch the database yet.
func New(op postgres.Operator, cfg Config) *Exporter {
	return &Exporter{op: op, cfg: cfg, most: cfg.Most, known: map[string]*names{}, held: map[string]held{}, failures: map[string]float64{}}
}

var origin = time.Now().Add(-time.Hour) // for intervals only

func now() time.Duration { return time.Since(origin) }

// page is the page as of at most Interval ago. A scrape that has gone away does not end the reading: others wait for it too.
func (e *Exporter) page() []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.read != 0 && now()-e.read < e.cfg.Interval {
		return e.body
	}
	ctx, cancel := context.WithTimeout(context.Background(), e.cfg.Timeout)
	defer cancel()
	p, errs := e.collect(ctx)
	e.report(errs)
	var b bytes.Buffer
	_ = p.write(&b) // a buffer takes all
	e.body, e.read = b.Bytes(), now()
	return e.body
}

// report says once what is wrong, and once that it is not any more.
func (e *Exporter) report(errs map[string]error) {
	parts := slices.Sorted(maps.Keys(errs))
	wrong := strings.Join(parts, ", ")
	if wrong == e.wrong {
		return
	}
	e.wrong = wrong
	if wrong == "" {
		e.cfg.Log.Info("all can be read again")
		return
	}
	for _, part := range parts {
		e.cfg.Log.Error("cannot be read; trying again with each scrape", "part", part, "error", e.cfg.Explain(errs[part]))
	}
}

// ServeHTTP serves /metrics, /-/healthy, and at / a page that names them.
func (e *Exporter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "GET only", http.StatusMethodNotAllowed)
		return
	}
	switch r.URL.Path {
	case "/metrics":
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		body := e.page()
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			_, _ = w.Write(body)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = z.Write(body)
		_ = z.Close()
	case "/-/healthy":
		fmt.Fprintln(w, "ok")
	case "/":
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintln(w, `<title>jobgen exporter</title><a href="/metrics">metrics</a> <a href="/-/healthy">healthy</a>`)
	default:
		http.NotFound(w, r)
	}
}

// Serve answers on l until ctx ends; scrapes under way get their answer.
func (e *Exporter) Serve(ctx context.Context, l net.Listener) error {
	s := &http.Server{
		Handler: e, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 2*e.cfg.Timeout + 10*time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(e.cfg.Log.Handler(), slog.LevelWarn),
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.Timeout+time.Second)
	defer cancel()
	err := s.Shutdown(end)
	if err != nil {
		err = errors.Join(err, s.Close())
	}
	if ended := <-ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}
