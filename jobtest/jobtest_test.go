package jobtest_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
)

type mail struct {
	To string `json:"to"`
}

var sendMail = &jobs.Spec[mail, jobs.None]{Kind: "test.send_mail", Queue: "mail", Priority: 3, MaxAttempts: 5}

func TestEachTestHasADatabaseOfItsOwnAndEmpty(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			db := jobtest.DB(t)
			if got := jobtest.Enqueued[mail](t, db, sendMail.Kind); len(got) != 0 {
				t.Fatalf("a new database has jobs: %v", got)
			}
			if _, err := jobs.Enqueue(t.Context(), db, sendMail, mail{To: fmt.Sprint(i)}); err != nil {
				t.Fatal(err)
			}
			if got := jobtest.EnqueuedOne[mail](t, db, sendMail.Kind); got.Payload.To != fmt.Sprint(i) {
				t.Errorf("found another test's job: %+v", got)
			}
		})
	}
}

func TestTheDatabaseIsGoneAfterTheTest(t *testing.T) {
	t.Parallel()
	outer := jobtest.DB(t)
	var name string
	t.Run("inner", func(t *testing.T) {
		name = jobtest.DB(t).Config().ConnConfig.Database
	})
	var there bool
	if err := outer.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&there); err != nil {
		t.Fatal(err)
	}
	if there || name == "" {
		t.Errorf("database %q is still there", name)
	}
}

func TestEnqueuedSeesTheCallersTransactionAndNobodyElsesUncommittedJobs(t *testing.T) {
	t.Parallel()
	db := jobtest.DB(t)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	ref, err := jobs.Enqueue(t.Context(), tx, sendMail, mail{To: "ada"}, jobs.Key("k"), jobs.In(time.Hour), jobs.Headers(map[string]string{"a": "b"}))
	if err != nil {
		t.Fatal(err)
	}
	got := jobtest.EnqueuedOne[mail](t, tx, sendMail.Kind)
	if wait := got.RunAt.Sub(got.CreatedAt); wait < time.Hour-time.Second || wait > time.Hour+time.Second {
		t.Errorf("runs %s after it was created, want an hour", wait)
	}
	if got.ID != ref.ID || got.Payload != (mail{To: "ada"}) || got.Queue != "mail" || got.Key != "k" || got.Status != "queued" ||
		got.Priority != 3 || got.MaxAttempts != 5 || got.Attempt != 0 || got.Version != 1 || got.Headers["a"] != "b" {
		t.Errorf("got %+v", got)
	}
	if outside := jobtest.Enqueued[mail](t, db, sendMail.Kind); len(outside) != 0 {
		t.Errorf("outside the transaction there is %+v", outside)
	}
}

func TestEnqueuedOneSaysWhatIsThereInstead(t *testing.T) {
	t.Parallel()
	db := jobtest.DB(t)
	one := func() string {
		return failure(t, func(t testing.TB) { jobtest.EnqueuedOne[mail](t, db, sendMail.Kind) })
	}
	expect := func(got string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%q is not in: %s", w, got)
			}
		}
	}
	expect(one(), "expected one job of kind test.send_mail", "no jobs at all", "not committed")
	other := &jobs.Spec[mail, jobs.None]{Kind: "test.other", Queue: "mail"}
	if _, err := jobs.Enqueue(t.Context(), db, other, mail{}); err != nil {
		t.Fatal(err)
	}
	expect(one(), "found 0", "1 × test.other")
	if _, err := jobs.EnqueueMany(t.Context(), db, sendMail, []mail{{To: "ada"}, {To: "bob"}}); err != nil {
		t.Fatal(err)
	}
	expect(one(), "found 2", `{"to": "ada"}`, `{"to": "bob"}`, "queued in queue mail")
	expect(failure(t, func(t testing.TB) { jobtest.Enqueued[[]int](t, db, sendMail.Kind) }), "does not decode into []int", `{"to": "ada"}`)
}

// recorder is a test that fails without failing the test that runs it.
type recorder struct {
	testing.TB
	text string
}

func (r *recorder) Helper() {}
func (r *recorder) Fatalf(format string, args ...any) {
	r.text = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failure gives the text with which fn fails its test.
func failure(t *testing.T, fn func(testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t}
	var done sync.WaitGroup
	done.Go(func() { fn(r) })
	done.Wait()
	if r.text == "" {
		t.Error("it did not fail")
	}
	return r.text
}
