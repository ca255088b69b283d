package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/jobgen-go/jobgen/examples/shop/images"
	"github.com/jobgen-go/jobgen/examples/shop/orders"
	"github.com/jobgen-go/jobgen/internal/pgserver"
	"github.com/jobgen-go/jobgen/jobs"
)

const (
	workers   = 3
	customers = 4 // who place orders at the same time
)

// demo is one run of the demonstration.
type demo struct {
	settings
	ordersFile string
	lines      int
	keep       bool
	screen     *screen

	folder string // temporary: thumbnails and logs
	input  input
	pool   *pgxpool.Pool
	fleet  []*process
	placed placed
	kill   kill
	proved bool // the table is written
}

// input is what there is to do.
type input struct {
	orders  []orders.Order
	refused []orders.Refused
	lines   int
	images  []string // paths below settings.images, with slashes
	unnamed int      // images left out because of their names
}

// placed is what was enqueued.
type placed struct {
	invoices   []jobs.Ref[orders.Receipt] // of each input.orders
	thumbnails []jobs.Ref[images.Picture] // of each input.images
	took       time.Duration
}

// kill is what is known of the process that was killed.
type kill struct {
	process *process // nil: none was
	worker  string   // its id
	at      time.Time
	by      time.Time // at, by the database's clock
	told    bool      // that its jobs are back
}

// run is the demonstration from the first line to the last. It tells whether everything that was promised held; an error
// means that it could not be found out.
func (d *demo) run(ctx context.Context) (held bool, err error) {
	d.screen.say("jobgen demo: a shop writes invoices and makes thumbnails in three worker")
	d.screen.say("processes, one of which is killed half-way.\n")

	if err := d.readInput(ctx); err != nil {
		return false, err
	}
	if d.folder, err = os.MkdirTemp("", "jobgen-shop-"); err != nil {
		return false, err
	}
	defer func() {
		if ctx.Err() != nil && !d.proved || err == nil && held || len(d.fleet) == 0 {
			err = errors.Join(err, os.RemoveAll(d.folder))
			return
		}
		d.screen.fact("Logs", "what the workers wrote is in "+filepath.Join(d.folder, "worker-*.log"))
	}()
	if err := os.MkdirAll(filepath.Join(thumbnailsIn(d.folder), "unfinished"), 0o700); err != nil {
		return false, err
	}

	d.screen.progress("starting PostgreSQL …")
	url, source, closeDatabase, err := openDatabase(ctx)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, closeDatabase()) }()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return false, err
	}
	config.MaxConns = customers + 2
	if d.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return false, err
	}
	defer d.pool.Close()
	if err := errors.Join(jobs.Migrate(ctx, d.pool), orders.CreateTables(ctx, d.pool)); err != nil {
		return false, err
	}
	d.screen.fact("PostgreSQL", source)

	// From here on it is one event after the other.
	defer func() { _ = stop(d.fleet...) }()
	if err := d.startFleet(ctx, url); err != nil {
		return false, err
	}
	var late *lateError
	switch err := d.workOff(ctx); {
	case errors.As(err, &late):
		d.screen.fact("Gave up", late.Error()+"; the table tells what was left")
	case err != nil:
		return false, err
	}
	d.screen.progress("stopping the other workers …")
	stopped := stop(d.survivors()...)
	promises, err := d.prove(ctx, stopped)
	if err != nil {
		return false, err
	}
	held = d.report(promises)
	d.proved = true
	if d.keep {
		d.wait(ctx, url, source)
	}
	return held, nil
}

func (d *demo) readInput(ctx context.Context) error {
	text, name := []byte(orders.File), "orders.csv"
	if d.ordersFile != "" {
		var err error
		if text, err = os.ReadFile(d.ordersFile); err != nil {
			return err
		}
		name = filepath.Base(d.ordersFile)
	}
	if d.lines > 0 {
		lines := bytes.SplitAfterN(text, []byte("\n"), d.lines+2) // the header is not counted
		text = bytes.Join(lines[:min(len(lines), d.lines+1)], nil)
	}
	in := &d.input
	var err error
	if in.orders, in.refused, err = orders.Read(bytes.NewReader(text)); err != nil {
		return err
	}
	in.lines = len(in.orders) + len(in.refused)
	if len(in.orders) == 0 {
		return fmt.Errorf("no orders in %s; each line should be order_id,customer,cents", name)
	}
	if d.images == "" {
		root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
		if err != nil {
			return fmt.Errorf("the Go distribution, whose test images are used, was not found (go env GOROOT: %w); choose a folder of images with -images", err)
		}
		d.images = filepath.Join(strings.TrimSpace(string(root)), "src", "image")
	}
	// A path that leads here through a link would not be walked.
	if d.images, err = filepath.EvalSymlinks(d.images); err == nil {
		d.images, err = filepath.Abs(d.images)
	}
	if err != nil {
		return fmt.Errorf("%w; choose a folder of images with -images", err)
	}
	if in.images, in.unnamed, err = findImages(d.images); err != nil {
		return err
	}
	if len(in.images) == 0 {
		return fmt.Errorf("no PNG, JPEG or GIF files below %s; choose another folder with -images", d.images)
	}

	d.screen.fact("Orders", fmt.Sprintf("%s of %s: %s, and %s", plural(in.lines, "line"), name,
		plural(len(in.orders), "order"), noOrder(len(in.refused))))
	for i, r := range in.refused {
		if i == 10 {
			d.screen.fact("", fmt.Sprintf("… and %d more", len(in.refused)-i))
			break
		}
		d.screen.say("%s", clip(fmt.Sprintf("             line %4d  %s", r.Line, r.Reason), columns))
	}
	found := fmt.Sprintf("%s below %s", plural(len(in.images), "file"), d.images)
	if in.unnamed > 0 {
		found += fmt.Sprintf("; %d left out, because their names are not UTF-8", in.unnamed)
	}
	d.screen.fact("Images", found)
	return nil
}

func noOrder(n int) string {
	if n == 1 {
		return "1 that is none"
	}
	return count(n) + " that are none"
}

func findImages(folder string) (paths []string, unnamed int, err error) {
	err = fs.WalkDir(os.DirFS(folder), ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		switch strings.ToLower(filepath.Ext(path)) {
		case ".png", ".jpg", ".jpeg", ".gif":
			if !utf8.ValidString(path) { // no JSON can carry it
				unnamed++
				return nil
			}
			paths = append(paths, path)
		}
		return nil
	})
	return paths, unnamed, err
}

func thumbnailsIn(folder string) string { return filepath.Join(folder, "thumbnails") }

// openDatabase gives a new database on the Postgres of DATABASE_URL, of installed binaries or of a container.
func openDatabase(ctx context.Context) (url, source string, closeAll func() error, err error) {
	server, err := pgserver.Start(ctx, pgserver.Options{Durable: true, Label: "shop"})
	if err != nil {
		return "", "", nil, err
	}
	url, drop, err := server.CreateDatabase(ctx, "")
	if err != nil {
		return "", "", nil, errors.Join(err, server.Close())
	}
	return url, server.Source, func() error {
		return errors.Join(drop(context.WithoutCancel(ctx)), server.Close())
	}, nil
}

// startFleet starts the worker processes and waits until the database knows them.
func (d *demo) startFleet(ctx context.Context, url string) error {
	for n := range workers {
		p, err := startWorker(n+1, url, d.folder, d.settings)
		if err != nil {
			return err
		}
		d.fleet = append(d.fleet, p)
	}
	ctx, cancel := within(ctx, 30*time.Second, "starting the workers")
	defer cancel()
	for {
		if err := d.alive(); err != nil {
			return err
		}
		known, err := d.holders(ctx)
		switch {
		case err != nil:
			return because(ctx, err)
		case len(known) == workers:
			pids := make([]string, workers)
			for i, p := range d.fleet {
				pids[i] = fmt.Sprint(p.pid())
			}
			d.screen.fact("Workers", fmt.Sprintf("%d processes (pid %s), %d handlers each, lease %s",
				workers, strings.Join(pids, ", "), concurrency, d.lease))
			d.screen.say("")
			return nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// alive is an error if a process ended that was not killed.
func (d *demo) alive() error {
	for _, p := range d.survivors() {
		if p.hasEnded() {
			return fmt.Errorf("%s ended by itself (%v). The end of its log:\n%s", p.name, p.err, p.tail()) //nolint:errorlint // nil if it ended with status 0
		}
	}
	return nil
}

func (d *demo) survivors() []*process {
	return slices.DeleteFunc(slices.Clone(d.fleet), func(p *process) bool { return p == d.kill.process })
}

// workOff enqueues everything, kills a worker half-way, and returns when nothing is left to do, or when it takes too
// long: then the table tells what was left.
func (d *demo) workOff(ctx context.Context) error {
	patience := time.Minute + 2*d.lease + time.Duration(len(d.input.orders)+len(d.input.images))*(d.work+10*time.Millisecond)
	ctx, cancel := within(ctx, patience, "the work")
	defer cancel()

	g, both := errgroup.WithContext(ctx)
	placed := make(chan struct{})
	g.Go(func() error {
		defer close(placed)
		return d.place(both)
	})
	g.Go(func() error { return d.watch(both, placed) })
	return because(ctx, g.Wait())
}

// because is err, or why ctx ended before.
func because(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// place enqueues the orders about in the order of the file, and the images evenly between them.
func (d *demo) place(ctx context.Context) error {
	begin := time.Now()
	in, p := &d.input, &d.placed
	p.invoices = make([]jobs.Ref[orders.Receipt], len(in.orders))
	p.thumbnails = make([]jobs.Ref[images.Picture], len(in.images))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(customers)
	image := 0
	for i, o := range in.orders {
		g.Go(func() (err error) {
			var opts []jobs.Option
			if d.without == "key" {
				opts = append(opts, jobs.Key(fmt.Sprintf("line %d", o.Line)))
			}
			p.invoices[i], err = orders.Place(ctx, d.pool, o, opts...)
			return err
		})
		for ; image < len(in.images)*(i+1)/len(in.orders); image++ {
			n := image
			g.Go(func() (err error) {
				p.thumbnails[n], err = images.EnqueueThumbnail(ctx, d.pool, images.Thumbnail{Path: in.images[n]})
				return err
			})
		}
	}
	err := g.Wait()
	p.took = time.Since(begin)
	return err
}

// watch shows how far things are and kills a worker half-way. It returns when everything is placed and nothing is
// queued or running.
func (d *demo) watch(ctx context.Context, placed <-chan struct{}) error {
	expected := len(d.input.images)
	seen := map[string]bool{}
	for _, o := range d.input.orders {
		if !seen[o.ID] || d.without == "key" {
			expected++
		}
		seen[o.ID] = true
	}
	begin := time.Now()
	for {
		all := false
		select {
		case <-placed:
			all = true
		default:
		}
		if err := d.alive(); err != nil {
			return err
		}
		now, err := d.census(ctx)
		if err != nil {
			return err
		}
		if all && now.queued+now.running == 0 {
			return nil
		}
		d.screen.progress(d.progress(now, expected, time.Since(begin)))

		ended := now.succeeded + now.dead
		if d.kill.process == nil && ended >= expected/2 {
			// A worker that holds jobs of both kinds makes the better story; not for long, or it is over.
			if err := d.killOne(ctx, ended < expected*6/10); err != nil {
				return err
			}
		}
		if err := d.tellReclaim(ctx); err != nil {
			return err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

func (d *demo) progress(now census, expected int, since time.Duration) string {
	ended := now.succeeded + now.dead
	line := fmt.Sprintf("%4.0fs %s %s of %s done", since.Seconds(), bar(ended, expected, 22), count(ended), count(expected))
	if d.kill.process != nil {
		return fmt.Sprintf("%s; %s killed %.0fs ago", line, d.kill.process.name, time.Since(d.kill.at).Seconds())
	}
	return fmt.Sprintf("%s, %d running", line, now.running)
}

// killOne kills the worker that holds the most jobs, if one holds any, of both kinds if it should.
func (d *demo) killOne(ctx context.Context, both bool) error {
	holders, err := d.holders(ctx)
	if err != nil {
		return err
	}
	var victim holder
	for _, h := range holders {
		if h.invoices+h.thumbnails > victim.invoices+victim.thumbnails && (!both || min(h.invoices, h.thumbnails) > 0) {
			victim = h
		}
	}
	i := slices.IndexFunc(d.fleet, func(p *process) bool { return p.pid() == victim.pid })
	if i < 0 {
		return nil
	}
	// Jobs are short: locked, those of this moment are not done before the process is gone.
	tx, err := d.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	locked, err := tx.Exec(ctx, `SELECT FROM jobgen.jobs WHERE worker_id = $1 FOR UPDATE SKIP LOCKED`, victim.worker)
	if err != nil || locked.RowsAffected() == 0 {
		return err
	}
	k := kill{process: d.fleet[i], worker: victim.worker, at: time.Now()}
	if err := d.pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&k.by); err != nil {
		return err
	}
	if err := k.process.kill(); err != nil {
		return err
	}
	d.kill = k
	holders, err = d.holders(ctx) // what it has left behind
	if err != nil {
		return err
	}
	for _, h := range holders {
		if h.worker == k.worker {
			victim = h
		}
	}
	d.screen.fact("Kill", fmt.Sprintf("%s (pid %d) got SIGKILL while it held %s and %s. Nobody is told. "+
		"Its lease has to run out, %s after its last sign of life; then one of the others takes its jobs.", k.process.name, k.process.pid(),
		plural(victim.invoices, "invoice"), plural(victim.thumbnails, "thumbnail"), d.lease))
	d.screen.say("")
	return nil
}

// tellReclaim says so, once, when the jobs of the killed worker have been taken back.
func (d *demo) tellReclaim(ctx context.Context) error {
	k := &d.kill
	if k.process == nil || k.told {
		return nil
	}
	var n int
	var took float64
	err := d.pool.QueryRow(ctx, `
		SELECT count(*), coalesce(extract(epoch FROM max(ended_at) - $2), 0)::float8
		FROM jobgen.job_attempt WHERE worker_id = $1::text::uuid AND outcome = 'crashed'`, k.worker, k.by).Scan(&n, &took)
	if err != nil || n == 0 {
		return err
	}
	k.told = true
	d.screen.fact("Reclaim", fmt.Sprintf("%s after the kill: the lease of %s has run out, and its jobs are back in the queue: %d.",
		seconds(time.Duration(took*1e9)), k.process.name, n))
	d.screen.say("")
	return nil
}

// wait leaves everything as it is until a signal comes.
func (d *demo) wait(ctx context.Context, url, source string) {
	d.screen.say("")
	d.screen.say("The database and the folder stay until you press Ctrl-C. To look into them:\n")
	hidden, note := withoutPassword(url, source)
	d.screen.say("  psql '%s'", hidden)
	if note != "" {
		d.screen.say("  (%s)", note)
	}
	d.screen.say("  SELECT kind, status, last_error FROM jobgen.jobs;")
	d.screen.say("  SELECT * FROM shop.orders JOIN shop.invoices ON order_id = orders.id LIMIT 9;")
	d.screen.say("  ls %s\n", d.folder)
	<-ctx.Done()
}

// within gives ctx a deadline that says what it was for.
func within(ctx context.Context, d time.Duration, what string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, &lateError{what, d})
}

// lateError is the cause of a context that within has made, after its deadline.
type lateError struct {
	what  string
	limit time.Duration
}

func (e *lateError) Error() string {
	return fmt.Sprintf("%s took longer than %s", e.what, e.limit.Round(time.Second))
}
