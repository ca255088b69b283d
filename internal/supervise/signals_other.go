//go:build !unix

package supervise

import (
	"os"
	"os/exec"
)

// Signals are those that are passed on to a command.
var Signals = []os.Signal{os.Interrupt}

func isolate(command *exec.Cmd) (forward func(os.Signal)) {
	return func(sig os.Signal) { _ = command.Process.Signal(sig) }
}

// Number is what a shell adds to 128 for a command that the signal ended.
func Number(os.Signal) int { return 2 }

func exitStatus(state *os.ProcessState) int { return state.ExitCode() }
