//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package pgserver

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed keeper.sh
var keeperScript string

// folderPrefix begins the name of each server's temporary folder, which contains
//
//	owner    locked (flock) by the process that owns the server
//	log      what the server wrote
//	pg/      all that the server itself may touch: data/ and its socket
const folderPrefix = "jobgen-pg-"

// maxSocketPath is what the narrowest of the supported systems allows for a socket's path (Linux
// 107 bytes, macOS 103).
const maxSocketPath = 103

// local is a server started from installed binaries.
type local struct {
	bin        string
	port       int    // on which it listens beside its socket; 0: on none
	password   string // for that port
	folder     string
	lock       *os.File
	log        *os.File
	keeper     *exec.Cmd
	toKeeper   *os.File            // the pipe whose breaking ends the server
	postmaster *os.Process         // nil until it has been started
	credential *syscall.Credential // whom the server runs as; nil means as we do
}

// startBinaries starts a server from the newest installed binaries that are new enough.
func startBinaries(ctx context.Context, o Options) (*Server, error) {
	bin, version, err := findBinaries(ctx, o.BinDir, o.Version)
	if err != nil {
		return nil, err
	}
	sweepFolders()
	l := &local{bin: bin, port: o.Port}
	if o.Port > 0 {
		l.password = portPassword()
	}
	if err := l.start(ctx, o); err != nil {
		_ = l.stop()
		return nil, fmt.Errorf("%s: %w", bin, err)
	}
	return &Server{
		URL:    l.url(),
		Source: fmt.Sprintf("installed binaries (PostgreSQL %s)", version),
		stop:   l.stop,
	}, nil
}

func (l *local) start(ctx context.Context, o Options) error {
	if os.Geteuid() == 0 {
		// Postgres refuses to run as root.
		var err error
		if l.credential, err = Unprivileged(); err != nil {
			return err
		}
	}
	if err := l.makeFolder(o.Durable); err != nil {
		return err
	}
	if err := l.startKeeper(); err != nil {
		return err
	}
	if err := l.initdb(ctx, "C.UTF-8"); err != nil {
		// Not every system has that locale.
		if ctx.Err() != nil || !strings.Contains(err.Error(), "locale") {
			return err
		}
		_ = os.RemoveAll(l.data())
		if err := l.initdb(ctx, "C"); err != nil {
			return err
		}
	}
	if err := l.startPostmaster(o); err != nil {
		return err
	}
	return l.awaitReady(ctx)
}

func (l *local) sockets() string { return filepath.Join(l.folder, "pg") }
func (l *local) data() string    { return filepath.Join(l.folder, "pg", "data") }

func (l *local) url() string {
	if l.port > 0 {
		u := url.URL{Scheme: "postgres", User: url.UserPassword("postgres", l.password), Host: "127.0.0.1:" + strconv.Itoa(l.port), Path: "/postgres"}
		u.RawQuery = url.Values{"sslmode": {"disable"}}.Encode()
		return u.String()
	}
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/postgres"}
	// The port is named, because PGPORT may be set.
	u.RawQuery = url.Values{"host": {l.sockets()}, "port": {"5432"}}.Encode()
	return u.String()
}

// makeFolder makes the temporary folder and marks it as owned by this process.
func (l *local) makeFolder(durable bool) error {
	parent, err := l.parentFolder(durable)
	if err != nil {
		return err
	}
	if l.folder, err = os.MkdirTemp(parent, folderPrefix); err != nil {
		return err
	}
	if l.lock, err = os.OpenFile(filepath.Join(l.folder, "owner"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	if err := syscall.Flock(int(l.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s: %w", l.lock.Name(), err)
	}
	if err := os.Mkdir(l.sockets(), 0o700); err != nil {
		return err
	}
	if l.credential != nil {
		if err := os.Chmod(l.folder, 0o711); err != nil {
			return err
		}
		return os.Chown(l.sockets(), int(l.credential.Uid), int(l.credential.Gid))
	}
	return nil
}

// parentFolder chooses where the folder goes. Data that need not be durable go into memory, unless
// $TMPDIR says where temporary files belong. Places are passed over in which a socket's path would
// get too long, or where the server's user cannot get.
func (l *local) parentFolder(durable bool) (string, error) {
	parents := []string{filepath.Clean(os.TempDir()), "/tmp"}
	if memory := memoryFolder(); memory != "" && !durable && os.Getenv("TMPDIR") == "" {
		parents = slices.Insert(parents, 0, memory)
	}
	var errs []error
	for _, parent := range slices.Compact(parents) {
		socket := filepath.Join(parent, folderPrefix+"0123456789", "pg", ".s.PGSQL.5432")
		switch {
		case len(socket) > maxSocketPath:
			errs = append(errs, fmt.Errorf("%s: too long for a socket's path", parent))
		case strings.ContainsAny(parent, `,"'`):
			errs = append(errs, fmt.Errorf("%s: a socket's folder may not have commas or quotes", parent))
		case l.credential != nil && !reachable(parent):
			errs = append(errs, fmt.Errorf("%s: not open to other users", parent))
		default:
			return parent, nil
		}
	}
	return "", errors.Join(errs...)
}

// reachable tells whether any user may pass through a folder and all above it.
func reachable(folder string) bool {
	for {
		info, err := os.Stat(folder)
		if err != nil || info.Mode()&0o001 == 0 {
			return false
		}
		if folder == filepath.Dir(folder) {
			return true
		}
		folder = filepath.Dir(folder)
	}
}

// startKeeper starts the process that clears up when this one ends.
func (l *local) startKeeper() error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	l.toKeeper = write
	keeper := exec.Command("/bin/sh", "-c", keeperScript, "jobgen-pg-keeper", l.folder)
	keeper.Stdin = read
	keeper.Dir = "/"
	// In a session of its own, a terminal's Ctrl-C and hang-up do not reach it.
	keeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := keeper.Start(); err != nil {
		return fmt.Errorf("start the keeper: %w", err)
	}
	l.keeper = keeper
	return nil
}

// tellKeeper names the process to stop; 0 means none.
func (l *local) tellKeeper(pid int) error {
	_, err := fmt.Fprintln(l.toKeeper, pid)
	return err
}

// command prepares one of Postgres's programs.
func (l *local) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(l.bin, program), args...)
	cmd.Dir = l.sockets()
	// PGPORT, PGDATA and their like would be taken as settings, locale variables as the cluster's.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "PG") || strings.HasPrefix(variable, "LC_") ||
			strings.HasPrefix(variable, "LANG") || strings.HasPrefix(variable, "TZ=")
	})
	cmd.Env = append(cmd.Env, "LC_ALL=C", "TZ=UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: l.credential}
	return cmd
}

func (l *local) initdb(ctx context.Context, locale string) error {
	args := []string{"--pgdata", l.data(), "--username=postgres", "--auth=trust",
		"--encoding=UTF8", "--locale=" + locale, "--no-sync", "--no-instructions"}
	if l.port > 0 {
		file := filepath.Join(l.sockets(), "password")
		if err := os.WriteFile(file, []byte(l.password+"\n"), 0o600); err != nil {
			return err
		}
		defer func() { _ = os.Remove(file) }()
		if l.credential != nil {
			if err := os.Chown(file, int(l.credential.Uid), int(l.credential.Gid)); err != nil {
				return err
			}
		}
		args = append(args, "--auth-host=scram-sha-256", "--pwfile="+file)
	}
	cmd := l.command("initdb", args...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := l.tellKeeper(cmd.Process.Pid); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	err := cmd.Wait()
	stop()
	if err != nil {
		return fmt.Errorf("initdb: %w: %s", cmp.Or(ctx.Err(), err), strings.TrimSpace(output.String()))
	}
	return l.tellKeeper(0)
}

func (l *local) startPostmaster(o Options) error {
	var err error
	if l.log, err = os.Create(filepath.Join(l.folder, "log")); err != nil {
		return err
	}
	args := append([]string{"-D", l.data(), "-k", l.sockets(), "-c", "listen_addresses=", "-c", "port=5432",
		"-c", "unix_socket_permissions=0700"}, o.settings()...)
	if l.port > 0 {
		args = append(args, "-c", "listen_addresses=127.0.0.1", "-c", "port="+strconv.Itoa(l.port))
	}
	cmd := l.command("postgres", args...)
	// Without Log a file and no pipe: nobody has to keep reading for the server to go on.
	cmd.Stderr = l.log
	if o.Log != nil {
		cmd.Stderr = io.MultiWriter(l.log, o.Log)
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	l.postmaster = cmd.Process
	return l.tellKeeper(cmd.Process.Pid)
}

// awaitReady returns once the server takes connections.
func (l *local) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := connect(ctx, l.url())
		if err == nil {
			return conn.Close(ctx)
		}
		// A look without waiting, so that no goroutine has to live as long as the server does.
		var status syscall.WaitStatus
		if pid, _ := syscall.Wait4(l.postmaster.Pid, &status, syscall.WNOHANG, nil); pid == l.postmaster.Pid {
			l.postmaster = nil
			_ = l.tellKeeper(0)
			return fmt.Errorf("postgres ended at once: %s", l.logTail())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not ready in time: %w: %s", err, l.logTail())
		}
	}
}

// logTail is what the server last said.
func (l *local) logTail() string {
	log, _ := os.ReadFile(filepath.Join(l.folder, "log"))
	return lastWords(string(log))
}

// stop ends the server and removes its folder. It copes with whatever start has left undone.
func (l *local) stop() error {
	if l.postmaster != nil {
		// Immediate shutdown: no checkpoint, no waiting for sessions, the data are thrown away.
		_ = l.postmaster.Signal(syscall.SIGQUIT)
		kill := time.AfterFunc(10*time.Second, func() { _ = l.postmaster.Kill() })
		_, _ = l.postmaster.Wait()
		kill.Stop()
		_ = l.tellKeeper(0)
	}
	if l.toKeeper != nil {
		_ = l.toKeeper.Close()
	}
	if l.keeper != nil {
		_ = l.keeper.Wait()
	}
	if l.folder == "" {
		return nil
	}
	err := os.RemoveAll(l.folder) // the keeper has, unless it was killed
	_ = l.log.Close()
	_ = l.lock.Close()
	return err
}

// Unprivileged finds the user that a server started by root runs as.
func Unprivileged() (*syscall.Credential, error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if uidErr == nil && gidErr == nil && uid != 0 {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor a user nobody")
}

// binaryPlaces are where packages put the server's programs, apart from PATH.
var binaryPlaces = []string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
	"/usr/pgsql-*/bin",          // Red Hat, from postgresql.org
	"/usr/local/pgsql/bin",      // from source
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// findBinaries returns the folder of the server programs to use, and their version.
func findBinaries(ctx context.Context, named string, major int) (bin, version string, err error) {
	if named = cmp.Or(named, os.Getenv("JOBGEN_PGBIN")); named != "" {
		version, err := binaryVersion(ctx, named)
		if err == nil && major > 0 && majorIn(version) != major {
			err = fmt.Errorf("%s: PostgreSQL %s, and %d is wanted", named, version, major)
		}
		return named, version, err
	}
	var candidates []string
	if initdb, err := exec.LookPath("initdb"); err == nil {
		// What is in PATH is often a link, or a wrapper that stands alone.
		if initdb, err = filepath.EvalSymlinks(initdb); err == nil {
			candidates = append(candidates, filepath.Dir(initdb))
		}
	}
	for _, place := range binaryPlaces {
		folders, _ := filepath.Glob(place)
		slices.SortFunc(folders, func(a, b string) int { return cmp.Compare(majorIn(b), majorIn(a)) })
		candidates = append(candidates, folders...)
	}
	var errs []error
	for _, candidate := range candidates {
		version, err := binaryVersion(ctx, candidate)
		if err == nil && major > 0 && majorIn(version) != major {
			err = fmt.Errorf("%s: PostgreSQL %s, and %d is wanted", candidate, version, major)
		}
		if err == nil {
			return candidate, version, nil
		}
		errs = append(errs, err)
	}
	if errs == nil {
		return "", "", errors.New("none in PATH, /usr/lib/postgresql/*/bin, /usr/pgsql-*/bin, " +
			"/usr/local/pgsql/bin or Homebrew's folders")
	}
	return "", "", errors.Join(errs...)
}

var digits = regexp.MustCompile(`[0-9]+`)

// majorIn is the version number in a folder's name, 0 if there is none.
func majorIn(folder string) int {
	n, _ := strconv.Atoi(digits.FindString(folder))
	return n
}

// binaryVersion asks the programs in a folder which version they are, and refuses ones too old.
func binaryVersion(ctx context.Context, folder string) (string, error) {
	for _, program := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(folder, program)); err != nil {
			return "", fmt.Errorf("%s: no %s", folder, program)
		}
	}
	output, err := exec.CommandContext(ctx, filepath.Join(folder, "postgres"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s: postgres --version: %w", folder, err)
	}
	fields := strings.Fields(string(output)) // postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)
	if len(fields) < 3 {
		return "", fmt.Errorf("%s: postgres --version answers %q", folder, output)
	}
	if majorIn(fields[2]) < oldestVersion {
		return "", fmt.Errorf("%s: PostgreSQL %s, and jobgen needs %d or later", folder, fields[2], oldestVersion)
	}
	return fields[2], nil
}

// sweepFolders removes the folders of servers whose owner and keeper were both killed, and stops
// the servers if they still run.
func sweepFolders() {
	for _, parent := range []string{os.TempDir(), "/tmp", "/dev/shm"} {
		folders, _ := filepath.Glob(filepath.Join(parent, folderPrefix+"*"))
		for _, folder := range folders {
			sweepFolder(folder)
		}
	}
}

func sweepFolder(folder string) {
	info, err := os.Lstat(folder)
	if err != nil || !info.IsDir() {
		return
	}
	// Anybody may make a folder of that name in /tmp, with somebody else's process id in it.
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != os.Geteuid() {
		return
	}
	// A server that is being started has its folder before it has locked it.
	if time.Since(info.ModTime()) < 10*time.Second {
		return
	}
	lock, err := os.OpenFile(filepath.Join(folder, "owner"), os.O_RDWR, 0)
	if err == nil {
		defer lock.Close()
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			return // its owner lives
		}
	}
	stopOrphan(folder)
	_ = os.RemoveAll(folder)
}

// stopOrphan stops the server in a folder if it still runs. That a process id stands in
// postmaster.pid proves nothing after a restart of the machine; that the socket answers does.
func stopOrphan(folder string) {
	l := &local{folder: folder}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := connect(ctx, l.url())
	if err != nil {
		return
	}
	_ = conn.Close(ctx)
	file, err := os.Open(filepath.Join(l.data(), "postmaster.pid"))
	if err != nil {
		return
	}
	defer file.Close()
	var pid int
	if _, err := fmt.Fscan(io.LimitReader(file, 32), &pid); err != nil || pid <= 1 {
		return
	}
	if syscall.Kill(pid, syscall.SIGQUIT) != nil {
		return
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for syscall.Kill(pid, 0) == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
