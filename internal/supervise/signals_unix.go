//go:build unix

package supervise

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/term"
)

// Signals are those that are passed on to a command.
var Signals = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// isolate decides how signals will get to the command, and returns the function that sends them.
//
// At a terminal the command stays in our process group, because in another one it could not read
// what is typed. Ctrl-C then reaches it without us, and passing it on would make it two, which a
// worker takes as "stop at once". Elsewhere the command leads a group of its own, and a signal
// goes to all of that group: go test alone would not pass it on to the tests it runs.
func isolate(command *exec.Cmd) (forward func(os.Signal)) {
	if term.IsTerminal(int(os.Stdin.Fd())) {
		return func(sig os.Signal) {
			if sig != syscall.SIGINT && sig != syscall.SIGQUIT {
				_ = command.Process.Signal(sig)
			}
		}
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return func(sig os.Signal) {
		_ = syscall.Kill(-command.Process.Pid, sig.(syscall.Signal))
	}
}

// Number is what a shell adds to 128 for a command that the signal ended.
func Number(sig os.Signal) int { return int(sig.(syscall.Signal)) }

func exitStatus(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}
