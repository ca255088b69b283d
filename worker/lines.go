package worker

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// Every line of a worker has the field worker, and those about a job have job, kind, queue and attempt; docs/operating/logs.md
// has them all, and a test compares it with the code.

const (
	// Of lines that are alike (one message about one kind), so many are written in so long; the others are counted.
	linesAlike = 10
	linesEvery = time.Minute
)

// tell writes a line about a job, unless there have just been many like it.
func (w *Worker) tell(level slog.Level, message string, c *engine.Claimed, fields ...any) {
	if w.lines.allow(level, message, c.Kind) {
		w.log.Log(context.Background(), level, message, append([]any{"job", c.ID, "kind", c.Kind, "queue", c.Queue, "attempt", c.Attempt}, fields...)...)
	}
}

// lines bounds how many lines are written of things that happen to one job after the other: what is wrong with all jobs of a
// kind is no news for each of them, and jobs that are dead are on record.
type lines struct {
	mu    sync.Mutex
	alike map[alike]*burst
}

type alike struct {
	level         slog.Level
	message, kind string
}

type burst struct {
	since instant
	n     int
	left  int // out
}

func (l *lines) allow(level slog.Level, message, kind string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := alike{level, message, kind}
	b := l.alike[key]
	if b == nil {
		if l.alike == nil {
			l.alike = map[alike]*burst{}
		}
		b = &burst{since: now()}
		l.alike[key] = b
	}
	if b.n++; b.n > linesAlike {
		b.left++
		return false
	}
	return true
}

// ended takes the bursts that have lasted for that long, and gives those of which lines were left out.
func (l *lines) ended(every time.Duration) (out map[alike]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, b := range l.alike {
		if since(b.since) < every {
			continue
		}
		delete(l.alike, key)
		if b.left > 0 {
			if out == nil {
				out = map[alike]int{}
			}
			out[key] = b.left
		}
	}
	return out
}

// tellLeftOut says of what lines were left out.
func (w *Worker) tellLeftOut(every time.Duration) {
	for key, n := range w.lines.ended(every) {
		if key.level >= slog.LevelWarn {
			w.log.Warn("lines were left out: there were too many like it", "line", key.message, "kind", key.kind, "lines", n)
		} else {
			w.log.Info("lines were left out: there were too many like it", "line", key.message, "kind", key.kind, "lines", n)
		}
	}
}

// signed adds to each line which worker it is from: its id changes when its lease is lost.
type signed struct {
	slog.Handler
	self *atomic.Pointer[engine.Worker]
}

func (s signed) Handle(ctx context.Context, r slog.Record) error {
	if self := s.self.Load(); self != nil {
		r = r.Clone()
		r.AddAttrs(slog.Any("worker", self.ID))
	}
	return s.Handler.Handle(ctx, r)
}

func (s signed) WithAttrs(attrs []slog.Attr) slog.Handler {
	return signed{s.Handler.WithAttrs(attrs), s.self}
}
func (s signed) WithGroup(name string) slog.Handler { return signed{s.Handler.WithGroup(name), s.self} }
