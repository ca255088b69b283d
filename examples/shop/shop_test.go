package main

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// TestMain lets the test binary be the worker processes, as the demo starts itself for them.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == workerMode {
		os.Exit(runWorker(os.Args[2:], os.Stdin, os.Stderr))
	}
	os.Exit(m.Run())
}

// short is the demo in a reduced form. The work is long enough for a killed worker to hold jobs.
func short(t *testing.T, more ...string) []string {
	return append([]string{"-n", "200", "-lease", "1s", "-work", "60ms", "-images", folderOfImages(t)}, more...)
}

func TestEveryPromiseHoldsAndKeepLeavesTheDatabaseUp(t *testing.T) {
	t.Parallel()
	d, out, end := start(t, short(t, "-keep")...)
	out.wait(t, "  ls ")
	for _, want := range []string{
		"200 lines of orders.csv: 197 orders, and 3 that are none",
		"line   61  amount -1 is negative",
		"9 files below",
		"got SIGKILL while it held",
		"after the kill: the lease of worker",
		"taken back from worker",
		"✓ Broken images are dead at once   3 of 3",
		"✓ One thumbnail per good image     6 images, 6 files",
		"tief/в архиве/ünïcode 画像.png cannot be decoded",
		"\nAll 8 promises held.\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the demo does not say %q", want)
		}
	}
	if strings.Contains(out.String(), "✗") {
		t.Error("a promise did not hold")
	}

	url := regexp.MustCompile(`psql '(.+)'`).FindStringSubmatch(out.String())
	if url == nil {
		t.Fatal("the demo does not say how to connect")
	}
	if os.Getenv("DATABASE_URL") == "" { // else the password may be left out
		conn, err := pgx.Connect(t.Context(), url[1])
		if err != nil {
			t.Fatal(err)
		}
		var invoices int
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM shop.invoices`).Scan(&invoices); err != nil || invoices == 0 {
			t.Errorf("%d invoices, %v", invoices, err)
		}
		_ = conn.Close(t.Context())
	}
	if code := end(); code != exitHeld {
		t.Errorf("exit status %d", code)
	}
	nothingLeft(t, d)
}

func TestWithoutTheKeyDuplicatesRunAndTheTableSaysSo(t *testing.T) {
	t.Parallel()
	broken(t, "key", "✗ A duplicate runs nothing", "✗ One invoice for each valid order")
}

func TestWithoutTheTransactionInvoicesAreWrittenTwiceAndTheTableSaysSo(t *testing.T) {
	t.Parallel()
	broken(t, "tx", "✗ One invoice for each valid order")
}

// broken runs a demo in which something is left out, and wants exactly these promises broken.
func broken(t *testing.T, without string, promises ...string) {
	d, out, _ := start(t, short(t, "-without", without)...)
	if code := out.exit(t); code != exitBroken {
		t.Errorf("exit status %d, want %d", code, exitBroken)
	}
	for _, p := range promises {
		if !strings.Contains(out.String(), p) {
			t.Errorf("the table does not say %q", p)
		}
	}
	if got := strings.Count(out.String(), "✗"); got != len(promises) {
		t.Errorf("%d promises are broken, want %d", got, len(promises))
	}
	if !strings.Contains(out.String(), "did NOT hold") || !strings.Contains(out.String(), d.folder) {
		t.Error("the end does not say that it failed, and where the logs are")
	}
	if logs, _ := filepath.Glob(filepath.Join(d.folder, "worker-*.log")); len(logs) != workers {
		t.Errorf("the logs are not there: %v", logs)
	}
	_ = os.RemoveAll(d.folder)
	nothingLeft(t, d)
}

func TestAnInterruptLeavesNothing(t *testing.T) {
	t.Parallel()
	d, out, end := start(t, short(t, "-work", "300ms")...)
	out.wait(t, "\nWorkers ")
	if code := end(); code != exitInterrupted {
		t.Errorf("exit status %d, want %d", code, exitInterrupted)
	}
	if !strings.Contains(out.String(), "interrupted") {
		t.Error("the demo does not say that it was interrupted")
	}
	nothingLeft(t, d)
}

func TestWhatCannotRunSaysWhy(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	noOrders := filepath.Join(empty, "orders.csv")
	if err := os.WriteFile(noOrders, []byte("hello\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"-lease 1ms", "-lease is 1ms; it must be 1s to 1h"},
		{"-without sense", "it may be key or tx"},
		{"-n -1", "must not be negative"},
		{"-work 1h", "-work is 1h0m0s"},
		{"orders.csv", `unexpected argument "orders.csv"`},
		{"-lease soon", "invalid value"},
		{"-images " + empty + "/none", "choose a folder of images with -images"},
		{"-images " + empty, "no PNG, JPEG or GIF files below"},
		{"-orders " + empty + "/none", "no such file"},
		{"-orders " + noOrders, "no orders in orders.csv"},
	} {
		_, out, _ := start(t, strings.Fields(c.args)...)
		if code := out.exit(t); code != exitCannotRun {
			t.Errorf("%s: exit status %d, want %d", c.args, code, exitCannotRun)
		}
		if !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: %q, want %q", c.args, out.String(), c.want)
		}
	}
	_, out, _ := start(t, "-help")
	if code := out.exit(t); code != exitHeld || !strings.Contains(out.String(), "-keep") {
		t.Errorf("-help: exit status %d, %q", code, out.String())
	}
}

func TestAPasswordOfDatabaseURLIsNotShown(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://ada:secret@localhost/jobgen_1", "postgres://localhost/jobgen_1?user=ada&password=secret",
		"host=localhost user=ada password=secret dbname=postgres dbname=jobgen_1",
	} {
		shown, note := withoutPassword(url, "DATABASE_URL")
		if strings.Contains(shown+note, "secret") || !strings.Contains(shown, "jobgen_1") || note == "" {
			t.Errorf("%s is shown as %q (%s)", url, shown, note)
		}
	}
	if shown, note := withoutPassword("postgres:///db?host=/tmp", "DATABASE_URL"); shown != "postgres:///db?host=/tmp" || note != "" {
		t.Errorf("%q (%s)", shown, note)
	}
}

func TestFoldKeepsToTheWidthAndLosesNoWord(t *testing.T) {
	t.Parallel()
	text := "Its lease has to run out,\n15 s after — Übergrößenträger " + strings.Repeat("x", 30)
	for width := 16; width < 60; width++ {
		lines := fold(text, width)
		for _, l := range lines {
			if utf8.RuneCountInString(l) > width {
				t.Errorf("width %d: %q", width, l)
			}
		}
		if got := strings.Join(lines, " "); width >= 30 && got != strings.ReplaceAll(text, "\n", " ") {
			t.Errorf("width %d: %q", width, got)
		}
	}
}

func TestFiguresAreReadable(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0", 7: "7", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1234: "-1,234", -123: "-123"} {
		if got := count(n); got != want {
			t.Errorf("%d is written %s, want %s", n, got, want)
		}
	}
	for _, c := range []struct {
		done, total int
		want        string
	}{{0, 10, "[>    ]"}, {5, 10, "[==>  ]"}, {10, 10, "[=====]"}, {12, 10, "[=====]"}, {0, 0, "[>    ]"}} {
		if got := bar(c.done, c.total, 5); got != c.want {
			t.Errorf("%d of %d is %s, want %s", c.done, c.total, got, c.want)
		}
	}
}

func TestTheMovingLineOnATerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := &screen{out: &out, terminal: true}
	s.progress(strings.Repeat("é", 200))
	s.progress("too soon")
	s.say("stays")
	s.progress("")
	want := "\r\033[K" + strings.Repeat("é", columns-1) + "…" + "\r\033[K" + "stays\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// output is what a demo writes, on both streams.
type output struct {
	mu     sync.Mutex
	text   strings.Builder
	grown  chan struct{}
	status chan int
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.grown <- struct{}{}:
	default:
	}
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// wait waits until the demo has written the text.
func (o *output) wait(t *testing.T, text string) {
	t.Helper()
	timeout := time.NewTimer(time.Minute)
	defer timeout.Stop()
	for !strings.Contains(o.String(), text) {
		select {
		case <-o.grown:
		case code := <-o.status:
			t.Fatalf("the demo ended with status %d and did not say %q", code, text)
		case <-timeout.C:
			t.Fatalf("the demo did not say %q within a minute", text)
		}
	}
}

// exit waits for the demo's end and gives its exit status.
func (o *output) exit(t *testing.T) int {
	t.Helper()
	select {
	case code := <-o.status:
		o.status <- code
		return code
	case <-time.After(time.Minute):
		t.Fatal("the demo did not end within a minute")
	}
	return 0
}

// start starts a demo. The function interrupts it and gives its exit status.
func start(t *testing.T, args ...string) (*demo, *output, func() int) {
	t.Helper()
	out := &output{grown: make(chan struct{}, 1), status: make(chan int, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	d, code := parse(args, out, out)
	if d == nil {
		out.status <- code
		cancel()
		return nil, out, nil
	}
	go func() { out.status <- d.main(ctx, out) }()
	t.Cleanup(func() {
		cancel()
		out.exit(t)
		if t.Failed() {
			t.Logf("the demo wrote:\n%s", out)
		}
		for l := range strings.Lines(out.String()) {
			if width := utf8.RuneCountInString(strings.TrimSuffix(l, "\n")); width > 80 && !strings.Contains(l, "psql '") && !strings.Contains(l, "/") {
				t.Errorf("%d columns: %s", width, l)
			}
		}
	})
	return d, out, func() int { cancel(); return out.exit(t) }
}

// nothingLeft wants the demo's processes and folder gone.
func nothingLeft(t *testing.T, d *demo) {
	t.Helper()
	for _, p := range d.fleet {
		if !p.hasEnded() {
			t.Errorf("%s still runs", p.name)
		}
	}
	if _, err := os.Stat(d.folder); d.folder == "" || !os.IsNotExist(err) {
		t.Errorf("the folder %s is still there", d.folder)
	}
	if err := d.pool.Ping(t.Context()); err == nil {
		t.Error("the database can still be reached")
	}
}

// folderOfImages has six good images and three broken ones, at several depths.
func folderOfImages(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	m := image.NewPaletted(image.Rect(0, 0, 200, 100), color.Palette{color.White, color.Black, color.NRGBA{R: 200, A: 100}})
	for i := range m.Pix {
		m.Pix[i] = uint8(i % 3)
	}
	encode := func(f func(io.Writer) error) []byte {
		var b bytes.Buffer
		if err := f(&b); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	asPNG := encode(func(w io.Writer) error { return png.Encode(w, m) })
	asJPEG := encode(func(w io.Writer) error { return jpeg.Encode(w, m, nil) })
	asGIF := encode(func(w io.Writer) error { return gif.Encode(w, m, nil) })
	for path, data := range map[string][]byte{
		"a.png": asPNG, "b.jpeg": asJPEG, "c.gif": asGIF, "D.JPG": asJPEG,
		"tief/в архиве/ein bild.PNG": asPNG, "tief/really a gif.png": asGIF,
		"tief/в архиве/ünïcode 画像.png": asPNG[:len(asPNG)/2], "empty.gif": nil, "tief/no image.jpg": []byte("<html>"),
		"README": []byte("no image"), "notes.txt": asPNG,
	} {
		path = filepath.Join(folder, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}
