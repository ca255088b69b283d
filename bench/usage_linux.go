package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// tick is the unit of times in /proc: USER_HZ, which is 100 on every architecture that Go runs on.
const tick = 1.0 / 100

// isPostmaster tells whether the process is a server on that data folder. The number alone could come from a container.
func isPostmaster(pid int, folder string) bool {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err == nil && bytes.Contains(line, []byte(folder))
}

// serverCPU is what a postmaster and all its processes have used so far, in seconds: the living, and those that have
// ended, which the kernel adds up with their parent. While a process passes from the one to the other it is in neither
// sum or in both, so the sum of the ended must be the same before and after.
func serverCPU(pid int) float64 {
	for range 100 {
		before, ok := processTimes(pid)
		if !ok {
			break
		}
		sum := before.own + before.ended
		living, ok := children(pid)
		if !ok {
			break
		}
		for _, child := range living {
			times, _ := processTimes(child)
			sum += times.own
		}
		if after, _ := processTimes(pid); after.ended == before.ended {
			return sum * tick
		}
	}
	return math.NaN()
}

// backgroundCPU is what the server's processes have used that belong to no session and live as long as it does, in seconds.
func backgroundCPU(pid int) float64 {
	living, ok := children(pid)
	if !ok {
		return math.NaN()
	}
	sum := 0.0
	for _, child := range living {
		title, _ := os.ReadFile("/proc/" + strconv.Itoa(child) + "/cmdline")
		for _, name := range []string{"checkpointer", "background writer", "walwriter", "autovacuum"} {
			if bytes.Contains(title, []byte(": "+name)) {
				times, _ := processTimes(child)
				sum += times.own * tick
			}
		}
	}
	return sum
}

func children(pid int) (pids []int, ok bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(pid) + "/children")
	for _, child := range strings.Fields(string(text)) {
		n, _ := strconv.Atoi(child)
		pids = append(pids, n)
	}
	return pids, err == nil
}

// times are in ticks.
type times struct{ own, ended float64 }

func processTimes(pid int) (t times, ok bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return t, false
	}
	// The name in parentheses may contain anything; after it come the fields from the third on.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 15 {
		return t, false
	}
	number := func(i int) float64 { v, _ := strconv.ParseFloat(fields[i-3], 64); return v }
	return times{own: number(14) + number(15), ended: number(16) + number(17)}, true
}

// ownMemory is the largest resident set of this process, in bytes. Getrusage's counts the parent's, too.
func ownMemory() float64 { return keyed("/proc/self/status", "VmHWM:") }

// machineMemory is in bytes.
func machineMemory() float64 { return keyed("/proc/meminfo", "MemTotal:") }

// keyed reads a line of the form "Key:  123 kB".
func keyed(file, key string) float64 {
	text, _ := os.ReadFile(filepath.Clean(file))
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == key {
			if v, err := strconv.ParseFloat(f[1], 64); err == nil {
				return v * 1024
			}
		}
	}
	return math.NaN()
}

// machineCPU is what the whole machine has used so far, in seconds.
func machineCPU() float64 {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return math.NaN()
	}
	line, _, _ := strings.Cut(string(text), "\n")
	sum := 0.0
	for i, field := range strings.Fields(line) {
		// cpu user nice system idle iowait irq softirq; then steal, and guest times, which are in user already
		if i == 0 || i == 4 || i == 5 || i > 7 {
			continue
		}
		v, _ := strconv.ParseFloat(field, 64)
		sum += v
	}
	return sum * tick
}
