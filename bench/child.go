package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"
)

// Each entrant works in a process of its own, this program called with childArg, so that its CPU and memory are its own.
// It reads a task, prepares, answers ready, waits for go, works, answers with its figures, and waits for its input to end.
// Its input ends when the parent does, however that happens, and then so does the child.
const childArg = "child"

// task is what a child is to do.
type task struct {
	Contest, Entrant, URL string
	Jobs                  int
	Profile               string // file; empty: none
	Rate                  int    // samples per second of CPU time; 0: pprof's
}

// answer is what a child says: first that it is ready, then its figures. Error ends it. What is 0 is not known.
type answer struct {
	Ready                   bool
	Seconds, Client, Memory float64
	P50, P99                float64           // latencies, in seconds
	First, Last             float64           // jobs per second at the beginning and at the end
	Series                  map[string]series // figures over time, by name
	Curve                   []float64         // latencies: quantiles at equal distances, in seconds
	Statements              float64
	Backlog                 float64 // jobs that waited, in the worst stretch of time
	Claim50, Claim99        float64 // how long claims took in the worst stretch, in seconds
	Jobs                    int     // if they were more than the task says
	Called                  int     // jobs so far: an answer before the last one, and without anything else
	Ran                     []byte  // jobs, a bit for each, of a process that is told to stop
	Error                   string
}

const (
	goWord    = "go\n"
	stopWord  = "stop\n"
	tellEvery = 2 * time.Millisecond // how many jobs it has run, for who says stop
	childTime = 10 * time.Minute     // that one entrant may take at most, beyond the length of a contest that goes by time
)

// child is the whole life of an entrant's process.
func child() int {
	in := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	var t task
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &t)
	}
	if err == nil {
		err = t.work(in, out)
	}
	if err != nil {
		_ = out.Encode(answer{Error: err.Error()})
		return 1
	}
	return 0
}

func (t task) work(in *bufio.Reader, out *json.Encoder) error {
	c, e, ok := find(t.Contest, t.Entrant)
	if !ok {
		return fmt.Errorf("there is no %s in %s", t.Entrant, t.Contest)
	}
	limit := childTime
	if c.length > 0 {
		limit += time.Duration(t.Jobs) * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	s, err := e.open(ctx, t.URL, t.Jobs)
	if err != nil {
		return err
	}
	defer s.close()
	if err := out.Encode(answer{Ready: true}); err != nil {
		return err
	}
	if word, err := in.ReadString('\n'); err != nil || word != goWord {
		return fmt.Errorf("expected %q: %q, %w", goWord, word, err)
	}
	ended := make(chan struct{})
	go func() {
		if word, _ := in.ReadString('\n'); word == stopWord && s.stop != nil {
			close(s.stop)
			_, _ = io.Copy(io.Discard, in)
		}
		select {
		case <-ended:
		default:
			os.Exit(1) // the parent is gone
		}
	}()
	if t.Profile != "" {
		f, err := os.Create(t.Profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if t.Rate > 0 {
			// StartCPUProfile cannot change it any more, and says so on standard error.
			runtime.SetCPUProfileRate(t.Rate)
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	begin, used := time.Now(), ownCPU()
	tell := func() error { return nil }
	if s.roll != nil {
		tell = s.roll.tell(out)
	}
	if err := errors.Join(s.run(ctx), tell()); err != nil {
		return err
	}
	seconds, client := time.Since(begin).Seconds(), zero(ownCPU()-used)
	a := s.figures
	a.Client, a.Memory = client, zero(ownMemory())
	if a.Seconds == 0 {
		a.Seconds = seconds
	}
	if s.roll != nil {
		a.Ran = s.roll.ran()
	}
	close(ended)
	return out.Encode(a)
}

// tell says again and again how many jobs have run, until what it returns is called.
func (r *roll) tell(out *json.Encoder) (end func() error) {
	ended, done := make(chan struct{}), make(chan error, 1)
	go func() {
		tick := time.NewTicker(tellEvery)
		defer tick.Stop()
		var err error
		for told := 0; ; {
			select {
			case <-tick.C:
			case <-ended:
				done <- err
				return
			}
			if called := r.n - int(r.left.Load()); called != told && err == nil {
				told, err = called, out.Encode(answer{Called: called})
			}
		}
	}()
	return func() error {
		close(ended)
		return <-done
	}
}

// JSON has no NaN.
func zero(v float64) float64 {
	if math.IsNaN(v) {
		return 0
	}
	return v
}

func known(v float64) float64 {
	if v == 0 {
		return math.NaN()
	}
	return v
}

// process is a child as its parent sees it.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
	stderr bytes.Buffer
}

// startChild starts a child, a process of this program unless a command line is given, and returns when it is ready to
// go. It ends with ctx, or when it is waited for.
func startChild(ctx context.Context, t task, command ...string) (_ *process, err error) {
	if len(command) == 0 {
		program, err := os.Executable()
		if err != nil {
			return nil, err
		}
		command = []string{program, childArg}
	}
	p := &process{cmd: exec.CommandContext(ctx, command[0], command[1:]...)}
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = 5 * time.Second
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = json.NewDecoder(stdout)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := json.Marshal(t)
	if err == nil {
		_, err = p.in.Write(append(line, '\n'))
	}
	if err == nil {
		_, err = p.answer(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.wait())
	}
	return p, nil
}

// run lets the child go and returns its figures. Before that it says how many jobs have run, if the child tells.
func (p *process) run(ctx context.Context, called func(int)) (answer, error) {
	if _, err := io.WriteString(p.in, goWord); err != nil {
		return answer{}, err
	}
	for {
		a, err := p.answer(ctx)
		if err != nil || a.Called == 0 {
			return a, err
		}
		if called != nil {
			called(a.Called)
		}
	}
}

// stop ends the run of a child that waits for it.
func (p *process) stop() error {
	_, err := io.WriteString(p.in, stopWord)
	return err
}

func (p *process) answer(ctx context.Context) (a answer, err error) {
	err = p.out.Decode(&a)
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case err != nil:
		err = fmt.Errorf("the process ended without an answer: %w", err)
	case a.Error != "":
		err = errors.New(a.Error)
	}
	return a, err
}

// wait ends the child. What it wrote to its standard error belongs to its error.
func (p *process) wait() error {
	_ = p.in.Close()
	err := p.cmd.Wait()
	if said := strings.TrimSpace(p.stderr.String()); err != nil && said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return err
}

// profileFile names the profile of an entrant.
func profileFile(folder, contestName, entrantName string) string {
	if folder == "" {
		return ""
	}
	return filepath.Join(folder, contestName+"-"+entrantName+".pprof")
}
