package docs

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/worker"
)

type task struct{ N int }

// What operating/backup.md says of a dump that is taken while jobs run: what was running runs again where it is restored, what was
// done with a key does not, and numbers go on.
func TestADumpOfALiveQueueIsRestoredWithWhatWasRunning(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"pg_dump", "pg_restore"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err) // nothing here makes dumps: the name of the missing program is in err
		}
	}
	ctx := t.Context()
	quick := &jobs.Spec[task, jobs.None]{Kind: "docs.quick", Queue: "q"}
	slow := &jobs.Spec[task, jobs.None]{Kind: "docs.slow", Queue: "q"}
	work := func(pool *pgxpool.Pool, ran chan string, block <-chan struct{}) (stop func()) {
		var r worker.Registry
		worker.Handle(&r, quick, func(_ context.Context, j *jobs.Job[task]) (jobs.None, error) {
			ran <- fmt.Sprint("quick ", j.Payload.N)
			return jobs.None{}, nil
		})
		worker.Handle(&r, slow, func(ctx context.Context, j *jobs.Job[task]) (jobs.None, error) {
			ran <- fmt.Sprint("slow ", j.Payload.N)
			select {
			case <-block:
			case <-ctx.Done():
			}
			return jobs.None{}, ctx.Err()
		})
		w, err := worker.New(pool, &r, worker.Config{Lease: 3 * time.Second, Heartbeat: time.Second, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		return func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	next := func(ran chan string) string {
		t.Helper()
		select {
		case s := <-ran:
			return s
		case <-time.After(time.Minute):
			t.Fatal("nothing runs")
		}
		return ""
	}

	pool := jobtest.DB(t)
	var server int
	if err := pool.QueryRow(ctx, "SELECT current_setting('server_version_num')::int / 10000").Scan(&server); err != nil {
		t.Fatal(err)
	}
	version, err := exec.CommandContext(ctx, "pg_dump", "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	var dump int
	if _, err := fmt.Sscanf(string(version), "pg_dump (PostgreSQL) %d", &dump); err != nil {
		t.Fatalf("%q: %v", version, err)
	}
	if dump < server {
		t.Skipf("the pg_dump here is of Postgres %d, which does not dump Postgres %d", dump, server)
	}
	here, block := make(chan string, 100), make(chan struct{})
	stop := work(pool, here, block)
	done, err := jobs.Enqueue(ctx, pool, quick, task{1}, jobs.Key("one"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := done.Await(ctx, pool); err != nil {
		t.Fatal(err)
	}
	if _, err := jobs.Enqueue(ctx, pool, slow, task{2}, jobs.Key("two")); err != nil {
		t.Fatal(err)
	}
	if got := []string{next(here), next(here)}; got[1] != "slow 2" {
		t.Fatal(got)
	}
	file := filepath.Join(t.TempDir(), "dump")
	command(t, "pg_dump", "--format=custom", "--file="+file, pool.Config().ConnString())
	close(block)
	stop()

	other := jobtest.DB(t)
	if _, err := other.Exec(ctx, "DROP SCHEMA jobgen CASCADE"); err != nil {
		t.Fatal(err)
	}
	command(t, "pg_restore", "--no-owner", "--exit-on-error", "--dbname="+other.Config().ConnString(), file)
	// And the claims and sequences are lost, too: the page says how to mend that.
	if _, err := other.Exec(ctx, "TRUNCATE jobgen.claims; SELECT setval('jobgen.job_id', 1, false), setval('jobgen.fence', 1, false)"); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("operating/backup.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)```\n").FindAllStringSubmatch(string(page), -1) {
		if _, err := other.Exec(ctx, block[1]); err != nil {
			t.Fatal(err)
		}
	}
	there, released := make(chan string, 100), make(chan struct{})
	close(released)
	stop = work(other, there, released)
	defer stop()
	again, err := jobs.Enqueue(ctx, other, quick, task{3}, jobs.Key("one"))
	if err != nil || !again.Existing || again.ID != done.ID {
		t.Errorf("what was done with a key is enqueued again: %+v, %v", again, err)
	}
	fresh, err := jobs.Enqueue(ctx, other, quick, task{4}, jobs.Key("four"))
	if err != nil || fresh.ID <= done.ID+1 {
		t.Errorf("a number is used twice: %+v, %v", fresh, err)
	}
	ran := map[string]bool{next(there): true, next(there): true}
	if !ran["slow 2"] || !ran["quick 4"] {
		t.Errorf("it ran %v", ran)
	}
	var crashes int
	if err := other.QueryRow(ctx, "SELECT count(*) FROM jobgen.job_attempt WHERE outcome = 'crashed'").Scan(&crashes); err != nil || crashes != 1 {
		t.Errorf("%d crashes on record, %v", crashes, err)
	}
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}
