package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/examples/shop/images"
	"github.com/jobgen-go/jobgen/examples/shop/orders"
	"github.com/jobgen-go/jobgen/jobs"
)

// promise is one line of the table: what was promised, what was found, and whether that is the same.
type promise struct {
	text  string
	found string
	held  bool
}

// proof gathers the promises, with the figures and reasons that go under the table.
type proof struct {
	promises         []promise
	broken           []brokenImage
	enqueued, worked string
}

type brokenImage struct{ path, reason string }

func (p *proof) check(text string, held bool, found string, args ...any) {
	p.promises = append(p.promises, promise{text, fmt.Sprintf(found, args...), held})
}

// prove asks the database and the folder of thumbnails. stopped is how the workers that were not killed have ended.
func (d *demo) prove(ctx context.Context, stopped error) (*proof, error) {
	ctx, cancel := within(ctx, 2*time.Minute, "checking")
	defer cancel()
	p := &proof{}
	for _, step := range []func(context.Context, *proof) error{
		d.proveInvoices, d.proveDuplicates, d.proveReclaim, d.proveImages, d.proveNothingLost,
	} {
		if err := step(ctx, p); err != nil {
			return nil, because(ctx, err)
		}
	}
	left, err := d.holders(ctx)
	if err != nil {
		return nil, because(ctx, err)
	}
	found := fmt.Sprintf("%d processes, exit status 0, all signed off", len(d.survivors()))
	if stopped != nil || len(left) > 0 {
		found = fmt.Sprintf("%d not signed off; %v", len(left), stopped)
	}
	p.check("The other workers stop cleanly", stopped == nil && len(left) == 0, "%s", found)
	return p, because(ctx, d.measureWork(ctx, p))
}

// proveInvoices compares orders and invoices with the file, letter by letter and cent by cent.
func (d *demo) proveInvoices(ctx context.Context, p *proof) error {
	ids, inFile := map[string]bool{}, map[orders.Order]bool{}
	for _, o := range d.input.orders {
		ids[o.ID] = true
		o.Line = 0
		inFile[o] = true
	}
	stored := map[string]int{}
	wrong := 0
	same := func(id, customer string, cents int64) {
		if !inFile[orders.Order{ID: id, Customer: customer, Cents: cents}] {
			wrong++
		}
	}
	err := d.each(ctx, `SELECT id, customer, cents FROM shop.orders`, func(id, customer string, cents int64) {
		stored[id] = 0
		same(id, customer, cents)
	})
	if err != nil {
		return err
	}
	p.check("No line of the file is lost", len(stored) == len(ids) && wrong == 0,
		"%s: %s, %s, %d refused with the reason", plural(d.input.lines, "line"), plural(len(stored), "order"),
		plural(len(d.input.orders)-len(stored), "duplicate"), len(d.input.refused))

	invoices := 0
	err = d.each(ctx, `SELECT order_id, customer, cents FROM shop.invoices`, func(id, customer string, cents int64) {
		stored[id]++
		invoices++
		same(id, customer, cents)
	})
	if err != nil {
		return err
	}
	none, several := 0, 0
	for _, n := range stored {
		switch {
		case n == 0:
			none++
		case n > 1:
			several++
		}
	}
	found := fmt.Sprintf("%s, each equal to its line in the file", plural(invoices, "invoice"))
	if none+several+wrong > 0 {
		found = fmt.Sprintf("%s for %s: %s without one, %d with several, %d not as in the file",
			plural(invoices, "invoice"), plural(len(stored), "order"), count(none), several, wrong)
	}
	p.check("One invoice for each valid order", none+several+wrong == 0 && len(stored) == len(ids), "%s", found)
	return nil
}

// proveDuplicates compares what was run, by the workers' own logs, with what there was to run.
func (d *demo) proveDuplicates(ctx context.Context, p *proof) error {
	orderOf := map[int64]string{} // by the number of the invoice
	err := d.each(ctx, `SELECT order_id, '', number FROM shop.invoices`, func(id, _ string, number int64) { orderOf[number] = id })
	if err != nil {
		return err
	}
	known := map[int64]bool{} // jobs of invoices
	ids := map[string]bool{}
	existing, otherReceipt := 0, 0
	for i, ref := range d.placed.invoices {
		o := d.input.orders[i]
		known[ref.ID] = true
		ids[o.ID] = true
		if !ref.Existing {
			continue
		}
		existing++
		if receipt, err := await(ctx, d, ref); err != nil || orderOf[receipt.Number] != o.ID {
			otherReceipt++
		}
	}
	duplicates := len(d.input.orders) - len(ids)

	starts := map[int64]int{}
	for _, worker := range d.fleet {
		if err := worker.starts(starts); err != nil {
			return err
		}
	}
	recorded := map[int64]int{} // attempts that did not succeed
	err = d.each(ctx, `SELECT '', '', job_id FROM jobgen.job_attempt`, func(_, _ string, job int64) { recorded[job]++ })
	if err != nil {
		return err
	}
	total, restarts, unexplained := 0, 0, 0
	for job := range known {
		total += starts[job]
		restarts += max(starts[job]-1, 0)
		if starts[job] > 1+recorded[job] {
			unexplained++
		}
	}
	held := existing == duplicates && otherReceipt == 0 && unexplained == 0 && len(known) == len(ids)
	found := fmt.Sprintf("%s answered with the receipt of the first; %s for %s",
		plural(existing, "duplicate"), plural(total, "handler start"), plural(len(known), "invoice"))
	if restarts > 0 {
		found += fmt.Sprintf(", %d of them again after the kill", restarts)
	}
	if !held {
		found = fmt.Sprintf("%d of %s answered with the job of the first, %d with another receipt; %s for %s, %s for %s",
			existing, plural(duplicates, "duplicate"), otherReceipt, plural(len(known), "job"), plural(len(ids), "order"),
			plural(total, "handler start"), plural(len(known), "job"))
	}
	p.check("A duplicate runs nothing", held, "%s", found)
	return nil
}

// await gives the result of a job that should have ended by now.
func await[R any](ctx context.Context, d *demo, ref jobs.Ref[R]) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
	defer cancel()
	return ref.Await(ctx, d.pool)
}

// proveReclaim looks at what the killed worker held.
func (d *demo) proveReclaim(ctx context.Context, p *proof) error {
	const text = "A killed worker's jobs run again"
	k := d.kill
	if k.process == nil {
		p.check(text, false, "no worker held a job half-way, so none was killed: too little work for this demo")
		return nil
	}
	var crashed, ran int
	var back, done *time.Time
	err := d.pool.QueryRow(ctx, `
		WITH crashed AS (
		  SELECT job_id, max(ended_at) AS back FROM jobgen.job_attempt
		  WHERE worker_id = $1::text::uuid AND outcome = 'crashed' GROUP BY job_id
		)
		SELECT count(*), count(r.finished_at) + count(f.ended_at), max(c.back), max(greatest(r.finished_at, f.ended_at))
		FROM crashed c
		LEFT JOIN jobgen.job_result r ON r.job_id = c.job_id AND r.finished_at IS NOT NULL
		LEFT JOIN LATERAL (
		  SELECT max(a.ended_at) AS ended_at FROM jobgen.job_attempt a
		  WHERE a.job_id = c.job_id AND a.outcome = 'failed' HAVING r.job_id IS NULL
		) f ON true`, k.worker).Scan(&crashed, &ran, &back, &done)
	if err != nil {
		return err
	}
	if crashed == 0 {
		p.check(text, false, "%s was killed, and no job of its was taken back", k.process.name)
		return nil
	}
	found := fmt.Sprintf("%s taken back from %s, %s after SIGKILL", plural(crashed, "job"), k.process.name, seconds(back.Sub(k.by)))
	limit := d.lease + 10*time.Second // the lease, one look for lost workers, the back-off after a crash
	if ran < crashed {
		p.check(text, false, "%s; %d of them have not run again", found, crashed-ran)
		return nil
	}
	p.check(text, done.Sub(k.by) <= limit, "%s; all done after %s (promised: %s at most)", found, seconds(done.Sub(k.by)), limit)
	return nil
}

// proveImages decodes every image itself, and compares.
func (d *demo) proveImages(ctx context.Context, p *proof) error {
	broken := map[string]string{} // path: why, as this process sees it
	good, missing := 0, 0
	expected := map[string]bool{}
	for i, path := range d.input.images {
		d.screen.progress(fmt.Sprintf("checking image %d of %d …", i+1, len(d.input.images)))
		if why := undecodable(filepath.Join(d.images, filepath.FromSlash(path))); why != nil {
			broken[path] = why.Error()
			continue
		}
		good++
		picture, err := await(ctx, d, d.placed.thumbnails[i])
		if err == nil {
			err = sizedPNG(filepath.Join(thumbnailsIn(d.folder), picture.File), picture.Width, picture.Height)
		}
		if err != nil {
			missing++
			continue
		}
		expected[picture.File] = true
	}
	entries, err := os.ReadDir(thumbnailsIn(d.folder))
	if err != nil {
		return err
	}
	files, strange := 0, 0
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		if files++; !expected[e.Name()] {
			strange++
		}
	}
	found := fmt.Sprintf("%s, %s of at most %d × %d pixels", plural(good, "image"), plural(files, "file"), images.Side, images.Side)
	if missing+strange > 0 {
		found += fmt.Sprintf("; %d missing or damaged, %d too many", missing, strange)
	}
	p.check("One thumbnail per good image", missing+strange == 0 && files == good, "%s", found)

	dead, tries, unclear := map[string]string{}, 0, 0
	err = d.each(ctx, `SELECT payload->>'path', last_error, attempt::bigint FROM jobgen.jobs WHERE status = 'dead'`,
		func(path, reason string, attempt int64) {
			dead[path] = reason
			tries += int(attempt)
			p.broken = append(p.broken, brokenImage{path, reason})
			// Readable: it names the image, says what this process finds wrong with it, and is one line.
			if !strings.Contains(reason, path) || !strings.Contains(reason, broken[path]) || strings.Contains(reason, "\n") {
				unclear++
			}
		})
	if err != nil {
		return err
	}
	slices.SortFunc(p.broken, func(a, b brokenImage) int { return strings.Compare(a.path, b.path) })
	both := 0
	for path := range broken {
		if _, is := dead[path]; is {
			both++
		}
	}
	found = fmt.Sprintf("%d of %d, each at its first attempt, with the reason (below)", both, len(broken))
	if unclear > 0 || len(dead) != both || tries != len(dead) {
		found = fmt.Sprintf("%d of %d, and %d others; %d attempts; %d reasons unclear", both, len(broken), len(dead)-both, tries, unclear)
	}
	p.check("Broken images are dead at once", both == len(broken) && len(dead) == both && unclear == 0 && tries == len(dead), "%s", found)
	return nil
}

// undecodable is why the image in the file cannot be decoded.
func undecodable(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if c, _, err := image.DecodeConfig(bytes.NewReader(data)); err == nil && c.Width*c.Height > images.MaxPixels {
		return errors.New("too many")
	}
	_, _, err = image.Decode(bytes.NewReader(data))
	return err
}

// sizedPNG is an error unless the file is a complete PNG of that size.
func sizedPNG(file string, width, height int) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	m, err := png.Decode(f)
	if err != nil {
		return err
	}
	if size := m.Bounds().Size(); size != image.Pt(width, height) || max(width, height) > images.Side || min(width, height) < 1 {
		return errors.New("not of the size that was recorded")
	}
	return nil
}

// proveNothingLost accounts for every job that was enqueued.
func (d *demo) proveNothingLost(ctx context.Context, p *proof) error {
	enqueued := len(d.placed.thumbnails)
	for _, ref := range d.placed.invoices {
		if !ref.Existing {
			enqueued++
		}
	}
	c, err := d.census(ctx)
	if err != nil {
		return err
	}
	p.check("Nothing is lost or left running", c.queued+c.running == 0 && c.succeeded+c.dead == enqueued,
		"%s: %s succeeded, %d dead, %d queued, %d running", plural(enqueued, "job"), count(c.succeeded), c.dead, c.queued, c.running)
	return nil
}

// measureWork says how fast it was, leaving out what had to wait for the lease.
func (d *demo) measureWork(ctx context.Context, p *proof) error {
	var done int
	var took float64
	err := d.pool.QueryRow(ctx, `
		SELECT count(*), coalesce(extract(epoch FROM max(finished_at) - min(finished_at)), 0)::float8
		FROM jobgen.job_result r
		WHERE finished_at IS NOT NULL AND NOT EXISTS (SELECT FROM jobgen.job_attempt a WHERE a.job_id = r.job_id)`).Scan(&done, &took)
	if err != nil || done == 0 || took == 0 {
		return err
	}
	n := len(d.placed.invoices) + len(d.placed.thumbnails)
	p.enqueued = fmt.Sprintf("%s in %s: %s a second, over %d connections, each order in one transaction with its row",
		count(n), seconds(d.placed.took), count(int(float64(n)/d.placed.took.Seconds())), customers)
	p.worked = fmt.Sprintf("%s in %s: %s a second, by %d handlers that take %s or more; not counting the jobs of the killed worker",
		count(done), seconds(time.Duration(took*1e9)), count(int(float64(done)/took)), workers*concurrency, d.work)
	return nil
}

// each runs a query of two texts and a number, and calls f for each row.
func (d *demo) each(ctx context.Context, query string, f func(a, b string, n int64)) error {
	rows, err := d.pool.Query(ctx, query)
	if err != nil {
		return err
	}
	var a, b string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&a, &b, &n}, func() error {
		f(a, b, n)
		return nil
	})
	return err
}

// report writes the table and tells whether every promise held.
func (d *demo) report(p *proof) bool {
	const left = 32
	broken := 0
	d.screen.say("\n  What was promised                What the database and the folder say\n")
	for _, one := range p.promises {
		mark := "✓"
		if !one.held {
			mark = "✗"
			broken++
		}
		text, found := fold(one.text, left), fold(one.found, columns-left-3)
		for i := range max(len(text), len(found)) {
			d.screen.say("%s", strings.TrimRight(fmt.Sprintf("%s %-*s %s", mark, left, line(text, i), line(found, i)), " "))
			mark = " "
		}
	}
	if len(p.broken) > 0 {
		d.screen.say("\nBroken images, and why, as jobgen has it on record:")
		for i, b := range p.broken {
			if i == 10 {
				d.screen.say("  … and %d more", len(p.broken)-i)
				break
			}
			d.screen.say("  %s", strings.Join(fold(b.reason, columns-4), "\n    "))
		}
	}
	d.screen.say("")
	if p.worked != "" {
		d.screen.fact("Enqueued", p.enqueued)
		d.screen.fact("Worked", p.worked)
		d.screen.say("")
	}
	if broken > 0 {
		d.screen.say("%d of %d promises did NOT hold.", broken, len(p.promises))
		return false
	}
	d.screen.say("All %d promises held.", len(p.promises))
	return true
}

func line(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}
