//go:build !linux

package main

import "math"

// What only Linux tells is not available elsewhere.
func isPostmaster(int, string) bool { return false }
func serverCPU(int) float64         { return math.NaN() }
func backgroundCPU(int) float64     { return math.NaN() }
func ownMemory() float64            { return math.NaN() }
func machineMemory() float64        { return math.NaN() }
func machineCPU() float64           { return math.NaN() }
