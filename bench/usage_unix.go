//go:build unix

package main

import (
	"syscall"
	"time"
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
