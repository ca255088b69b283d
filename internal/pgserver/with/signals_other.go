//go:build !unix

package main

import (
	"os"
	"os/exec"
)

var passedOn = []os.Signal{os.Interrupt}

func isolate(command *exec.Cmd) (forward func(os.Signal)) {
	return func(sig os.Signal) { _ = command.Process.Signal(sig) }
}

func signalNumber(os.Signal) int { return 2 }

func exitStatus(state *os.ProcessState) int { return state.ExitCode() }
