//go:build !unix

package main

import (
	"errors"
	"math"
	"os/exec"
)

func ownCPU() float64   { return math.NaN() }
func endedCPU() float64 { return math.NaN() }

func unprivileged(*exec.Cmd, string) error { return errors.ErrUnsupported }
