// Package supervise runs a command in the place of the program that starts it: signals reach it, and its exit status is the
// program's.
package supervise

import (
	"errors"
	"os"
	"os/exec"
)

// OurFault is the exit status for what is not the command's own, as env, nohup and timeout have it; 126 and 127 are a command
// that cannot be started, and one that is not there.
const OurFault = 125

// Run runs the command, passes signals on to it and returns the status to exit with. What keeps the command from running, report is
// told.
func Run(command *exec.Cmd, signals <-chan os.Signal, report func(error)) int {
	forward := isolate(command)
	if err := command.Start(); err != nil {
		report(err)
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			return 127
		}
		return 126
	}
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case sig := <-signals:
				forward(sig)
			case <-ended:
				return
			}
		}
	}()
	err := command.Wait()
	close(ended)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		report(err)
		return OurFault
	}
	return exitStatus(command.ProcessState)
}
