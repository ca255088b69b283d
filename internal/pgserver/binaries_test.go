//go:build unix

package pgserver

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestInstalledBinariesGiveAServerForTests(t *testing.T) {
	t.Parallel()
	s := own(t, Options{})
	if !strings.HasPrefix(s.Source, "installed binaries (PostgreSQL ") {
		t.Errorf("Source is %q", s.Source)
	}
	for setting, want := range map[string]string{
		"server_encoding": "UTF8", "timezone": "UTC", "log_timezone": "UTC", "listen_addresses": "",
		"max_connections": "300", "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
	} {
		if got := ask[string](t, s.URL, `SELECT current_setting($1)`, setting); got != want {
			t.Errorf("%s is %q, want %q", setting, got, want)
		}
	}
	if os.Geteuid() == 0 {
		var stat syscall.Stat_t
		if err := syscall.Stat(filepath.Join(folderOf(t, s.URL), "pg"), &stat); err != nil {
			t.Fatal(err)
		}
		if stat.Uid == 0 || stat.Mode&0o077 != 0 {
			t.Errorf("the data belong to uid %d with mode %o", stat.Uid, stat.Mode&0o777)
		}
	}
}

func TestDurableServerFlushesToDisk(t *testing.T) {
	t.Parallel()
	s := own(t, Options{Durable: true})
	for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		if got := ask[string](t, s.URL, `SELECT current_setting($1)`, setting); got != "on" {
			t.Errorf("%s is %q", setting, got)
		}
	}
	if folder := folderOf(t, s.URL); strings.HasPrefix(folder, "/dev/shm") {
		t.Errorf("durable data are in memory: %s", folder)
	}
}

func TestCallersSettingsWin(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	s := own(t, Options{Log: &log, Settings: map[string]string{
		"max_connections": "17", "wal_level": "logical", "log_statement": "all"}})
	if got := ask[string](t, s.URL, `SELECT current_setting('max_connections') || current_setting('wal_level')`); got != "17logical" {
		t.Errorf("settings are %s", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server's log at Options.Log", func() bool {
		return strings.Contains(log.String(), "current_setting('wal_level')")
	})
}

func TestCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	s := own(t, Options{})
	folder, pid := folderOf(t, s.URL), postmasterOf(t, s.URL)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if exists(folder) || alive(pid) {
			t.Fatalf("folder there: %v, process alive: %v", exists(folder), alive(pid))
		}
	}
	if _, _, err := s.CreateDatabase(t.Context(), ""); err == nil {
		t.Error("a closed server created a database")
	}
	if _, err := s.Template(t.Context(), "x", fill); err == nil {
		t.Error("a closed server made a template")
	}
}

// However the process ends that started a server, the server and its folder go, and the process
// ends as it would have without.
func TestServerGoesWithItsOwner(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		end   func(*child) error
		ended func(*os.ProcessState) bool
	}{
		{"by SIGKILL", kill(syscall.SIGKILL), bySignal(syscall.SIGKILL)},
		{"by SIGTERM", kill(syscall.SIGTERM), bySignal(syscall.SIGTERM)},
		{"by Ctrl-C", killGroup(syscall.SIGINT), bySignal(syscall.SIGINT)},
		{"by hang-up", killGroup(syscall.SIGHUP), bySignal(syscall.SIGHUP)},
		{"by SIGQUIT", killGroup(syscall.SIGQUIT), byStatus(2)}, // Go prints all stacks and exits
		{"by a panic", func(c *child) error { return c.stdin.Close() }, byStatus(2)},
		{"by os.Exit", func(c *child) error { return c.stdin.Close() }, byStatus(0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			env := "JOBGEN_TEST_END="
			if strings.Contains(c.name, "panic") {
				env += "panic"
			}
			owner := spawn(t, "owner", "JOBGEN_PG=binaries", env).awaitReady(t)
			folder, pid := folderOf(t, owner.url), postmasterOf(t, owner.url)
			if !alive(pid) {
				t.Fatal("the server does not run")
			}
			if err := c.end(owner); err != nil {
				t.Fatal(err)
			}
			_ = owner.cmd.Wait()
			if !c.ended(owner.cmd.ProcessState) {
				t.Errorf("the owner ended with %v", owner.cmd.ProcessState)
			}
			eventually(t, "the server has ended", func() bool { return !alive(pid) })
			eventually(t, "its folder is gone", func() bool { return !exists(folder) })
		})
	}
}

func kill(sig syscall.Signal) func(*child) error {
	return func(c *child) error { return c.cmd.Process.Signal(sig) }
}

// killGroup does what a terminal does.
func killGroup(sig syscall.Signal) func(*child) error {
	return func(c *child) error { return syscall.Kill(-c.cmd.Process.Pid, sig) }
}

func bySignal(sig syscall.Signal) func(*os.ProcessState) bool {
	return func(s *os.ProcessState) bool {
		status := s.Sys().(syscall.WaitStatus)
		return status.Signaled() && status.Signal() == sig
	}
}

func byStatus(code int) func(*os.ProcessState) bool {
	return func(s *os.ProcessState) bool { return s.ExitCode() == code }
}

func TestOwnerKilledDuringInitdbLeavesNothing(t *testing.T) {
	t.Parallel()
	l := &local{bin: installed(t)}
	if os.Geteuid() == 0 {
		l.credential, _ = Unprivileged()
	}
	if err := l.makeFolder(false); err != nil {
		t.Fatal(err)
	}
	if err := l.startKeeper(); err != nil {
		t.Fatal(err)
	}
	initdb := l.command("initdb", "-D", l.data(), "--no-sync")
	if err := initdb.Start(); err != nil {
		t.Fatal(err)
	}
	if err := l.tellKeeper(initdb.Process.Pid); err != nil {
		t.Fatal(err)
	}
	eventually(t, "initdb is at work", func() bool { return exists(filepath.Join(l.data(), "base")) })
	_ = l.toKeeper.Close() // which is all that is left of an owner that was killed
	_ = initdb.Wait()
	_ = l.keeper.Wait()
	_ = l.lock.Close()
	if exists(l.folder) {
		t.Errorf("%s is still there", l.folder)
	}
}

// What is left when owner and keeper were both killed is cleared up by the next start.
func TestNextStartClearsUpWhenTheKeeperWasKilledToo(t *testing.T) {
	t.Parallel()
	owner := spawn(t, "owner", "JOBGEN_PG=binaries").awaitReady(t)
	folder, pid := folderOf(t, owner.url), postmasterOf(t, owner.url)
	before := time.Now().Add(-time.Minute)
	if err := os.Chtimes(folder, before, before); err != nil {
		t.Fatal(err)
	}

	sweepFolders()
	if !alive(pid) || !exists(folder) {
		t.Fatal("a server was swept away whose owner lives")
	}

	if err := syscall.Kill(keeperOf(t, folder), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = owner.cmd.Process.Kill()
	_ = owner.cmd.Wait()
	if !alive(pid) || !exists(folder) {
		t.Fatal("nothing was left to clear up: the test shows nothing")
	}

	sweepFolders()
	if alive(pid) {
		t.Error("the server still runs")
	}
	if exists(folder) {
		t.Errorf("%s is still there", folder)
	}
}

// keeperOf finds the process that will clear up a folder.
func keeperOf(t *testing.T, folder string) int {
	t.Helper()
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	if commands == nil {
		t.Skip("no /proc to find the keeper in")
	}
	for _, command := range commands {
		line, _ := os.ReadFile(command)
		if bytes.HasSuffix(line, []byte("\x00jobgen-pg-keeper\x00"+folder+"\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(command)))
			return pid
		}
	}
	t.Fatal("no keeper")
	return 0
}

// Who keeps the URL keeps the server, also when the Server itself is garbage.
func TestServerLivesOnWhenOnlyItsURLIsKept(t *testing.T) {
	t.Parallel()
	start := func() string {
		s, err := Start(t.Context(), Options{only: "binaries", IgnoreDatabaseURL: true})
		if err != nil {
			t.Fatal(err)
		}
		return s.URL
	}
	address := start()
	t.Cleanup(func() {
		for s := range open.Range {
			if s.(*Server).URL == address {
				_ = s.(*Server).Close()
			}
		}
	})
	for range 3 {
		runtime.GC() // finalizers run after the first one, and the keeper needs a moment
		if ask[int](t, address, `SELECT 1 FROM pg_sleep(0.1)`) != 1 {
			t.Fatal("no answer")
		}
	}
}

func TestFoldersOfOthersAreNotSwept(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can make a folder that belongs to somebody else")
	}
	folder, err := os.MkdirTemp(t.TempDir(), folderPrefix)
	if err != nil {
		t.Fatal(err)
	}
	before := time.Now().Add(-time.Hour)
	if err := os.Chown(folder, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(folder, before, before); err != nil {
		t.Fatal(err)
	}
	sweepFolder(folder)
	if !exists(folder) {
		t.Error("swept a folder that belongs to another user")
	}
	if err := os.Chown(folder, 0, 0); err != nil {
		t.Fatal(err)
	}
	sweepFolder(folder)
	if exists(folder) {
		t.Error("did not sweep an old folder of our own")
	}
}

func TestAServerThatCannotStartSaysWhyAndLeavesNothing(t *testing.T) {
	t.Parallel()
	_, err := startBinaries(t.Context(), Options{Settings: map[string]string{"shared_buffers": "a lot"}})
	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "shared_buffers": "a lot"`) {
		t.Errorf("error is %v", err)
	}
	if strings.Count(err.Error(), "\n") > 3 {
		t.Errorf("too long: %v", err)
	}
	l := &local{bin: "/nowhere"}
	if err := l.start(t.Context(), Options{}); err == nil {
		t.Error("started")
	}
	if err := l.stop(); err != nil || exists(l.folder) {
		t.Errorf("left %s: %v", l.folder, err)
	}
}

func TestACancelledStartEndsAtOnce(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, 30 * time.Millisecond} { // before and amid initdb
		ctx, cancel := context.WithTimeout(t.Context(), after)
		defer cancel()
		_, err := Start(ctx, Options{only: "binaries", IgnoreDatabaseURL: true})
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnavailable) {
			t.Errorf("after %v the error is %v", after, err)
		}
	}
}

func TestFolderAvoidsLongAndClosedPlaces(t *testing.T) {
	t.Parallel()
	closed := t.TempDir()
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	if reachable(closed) {
		t.Error("a folder of mode 0700 counts as reachable")
	}
	if !reachable("/tmp") {
		t.Error("/tmp counts as not reachable")
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Chmod(filepath.Dir(filepath.Dir(long)), 0o755); err != nil { // so that length alone decides
		t.Fatal(err)
	}
	if err := os.MkdirAll(long, 0o777); err != nil {
		t.Fatal(err)
	}
	owner := spawn(t, "owner", "JOBGEN_PG=binaries", "TMPDIR="+long).awaitReady(t)
	if folder := folderOf(t, owner.url); filepath.Dir(folder) != "/tmp" {
		t.Errorf("folder is %s", folder)
	}
	_ = owner.stdin.Close()
	_ = owner.cmd.Wait()
}

// installed is the folder of the binaries that tests use.
func installed(t *testing.T) string {
	t.Helper()
	bin, _, err := findBinaries(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// lockedBuffer is a buffer that a server may still be writing to.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
