package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// process is a worker process: this program, started again.
type process struct {
	name   string // worker 1
	log    string // the file with what it wrote
	cmd    *exec.Cmd
	parent io.Closer     // our end of the pipe that tells it to stop
	ended  chan struct{} // closed once it is gone
	err    error         // how it ended; read after ended
}

// startWorker starts the n-th worker process on the database at url.
func startWorker(n int, url, folder string, s settings) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{name: fmt.Sprintf("worker %d", n), log: filepath.Join(folder, fmt.Sprintf("worker-%d.log", n)), ended: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own
	p.cmd = exec.Command(program, workerMode, "-images", s.images, "-thumbnails", thumbnailsIn(folder),
		"-lease", s.lease.String(), "-work", s.work.String(), "-without", s.without)
	p.cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if p.parent, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill ends the process without giving it a chance to do anything about it, and waits until it is gone.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	<-p.ended
	return nil
}

// hasEnded tells whether the process is gone.
func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// stopTime is how long a worker gets to stop in good order: its grace, and some for its last statements.
const stopTime = 15 * time.Second

// stop asks the processes to stop, waits for them, and kills those that take too long. It returns how they ended, joined.
func stop(processes ...*process) error {
	for _, p := range processes {
		_ = p.parent.Close() // an error means that it has ended
	}
	timer := time.NewTimer(stopTime)
	defer timer.Stop()
	var errs []error
	for _, p := range processes {
		select {
		case <-p.ended:
		case <-timer.C:
			_ = p.cmd.Process.Kill()
			<-p.ended
			errs = append(errs, fmt.Errorf("%s did not stop within %s", p.name, stopTime))
			timer.Reset(0)
			continue
		}
		if p.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.name, p.err))
		}
	}
	return errors.Join(errs...)
}

// starts counts the handlers that the process started, by job. A last line that the kill cut short counts for nothing.
func (p *process) starts(count map[int64]int) error {
	f, err := os.Open(p.log)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Msg string `json:"msg"`
			Job int64  `json:"job"`
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == startedLine {
			count[line.Job]++
		}
	}
	return lines.Err()
}

// tail is the end of what the process wrote, short enough for a screen.
func (p *process) tail() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	lines = slices.Clone(lines[max(len(lines)-5, 0):])
	for i, l := range lines {
		if len(l) > 300 {
			lines[i] = strings.ToValidUTF8(l[:300], "") + "…"
		}
	}
	return strings.Join(lines, "\n")
}
