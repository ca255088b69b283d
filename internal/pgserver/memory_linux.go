package pgserver

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// memoryFolder is a file system in memory with room for a test run, "" if there is none. A
// database is copied there in 20 ms; on a disk in 30 to 230 ms, depending on what else the disk
// has to do. A container's /dev/shm is too small as a rule (64 MiB) and is passed over.
func memoryFolder() string {
	const folder, room = "/dev/shm", 4 << 30
	var fs syscall.Statfs_t
	if syscall.Statfs(folder, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < room || memoryAvailable() < room {
		return ""
	}
	const tmpfs = 0x01021994
	if fs.Type != tmpfs {
		return ""
	}
	return folder
}

// memoryAvailable is what the kernel believes could be used without swapping, in bytes.
func memoryAvailable() uint64 {
	info, _ := os.ReadFile("/proc/meminfo")
	_, rest, _ := strings.Cut(string(info), "MemAvailable:")
	var kib uint64
	_, _ = fmt.Sscan(rest, &kib)
	return kib << 10
}
