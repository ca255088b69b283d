//go:build unix

package main

import (
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/jobgen-go/jobgen/internal/pgserver"
)

// ownCPU is what this process has used, in seconds.
func ownCPU() float64 { return rusage(syscall.RUSAGE_SELF) }

// endedCPU is what those of this process's children have used that have ended and were waited for.
func endedCPU() float64 { return rusage(syscall.RUSAGE_CHILDREN) }

func rusage(who int) float64 {
	var u syscall.Rusage
	if syscall.Getrusage(who, &u) != nil {
		return 0
	}
	return (time.Duration(u.Utime.Nano()) + time.Duration(u.Stime.Nano())).Seconds()
}

// unprivileged makes a program that refuses to run as root run as the server does, and gives it its folder.
func unprivileged(cmd *exec.Cmd, folder string) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() != 0 {
		return nil
	}
	own, err := pgserver.Unprivileged()
	if err != nil {
		return err
	}
	cmd.SysProcAttr.Credential = own
	return os.Chown(folder, int(own.Uid), int(own.Gid))
}
