package jobs_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
)

// enqueue enqueues the work a.
func (f *fixture) enqueue(note string, opts ...jobs.Option) jobs.Ref[receipt] {
	f.Helper()
	return f.enqueueOn(f.pool, note, opts...)
}

func (f *fixture) enqueueOn(db jobs.DB, note string, opts ...jobs.Option) jobs.Ref[receipt] {
	f.Helper()
	ref, err := jobs.Enqueue(f.ctx(), db, keyed, order{ID: "a", Note: note}, opts...)
	f.no(err)
	return ref
}

// note is what the job has as its payload's note.
func (f *fixture) note(id int64) string {
	f.Helper()
	return value[string](f.T, f.pool, `SELECT coalesce(payload->>'note', '') FROM jobgen.jobs WHERE id = $1`, id)
}

func TestReplaceGivesAJobThatWaitsNewContentInPlace(t *testing.T) {
	t.Parallel()
	f := open(t)
	first := f.enqueue("old", jobs.Replace(), jobs.Headers(map[string]string{"h": "old"}))
	if first.Existing || first.Replaced {
		t.Errorf("the first: %+v", first)
	}
	// It has been tried twice, once in a worker that died.
	f.exec(`UPDATE jobgen.jobs SET attempt = 2, crashes = 1, snoozes = 3, cancel_reason = 'old'`)
	newer := *keyed
	newer.Version = 4
	second, err := jobs.Enqueue(f.ctx(), f.pool, &newer, order{ID: "a", Note: "new"}, jobs.Replace(), jobs.Queue("other"), jobs.Priority(7),
		jobs.MaxAttempts(2), jobs.Headers(map[string]string{"h": "new"}), jobs.In(time.Hour), jobs.Within(2*time.Hour))
	if err != nil || second.ID != first.ID || !second.Existing || !second.Replaced {
		t.Fatalf("%+v, %v", second, err)
	}
	f.counts(1, 1)
	job := jobtest.EnqueuedOne[order](t, f.pool, keyed.Kind)
	if job.Payload.Note != "new" || job.Queue != "other" || job.Priority != 7 || job.MaxAttempts != 2 || job.Headers["h"] != "new" || job.Attempt != 0 {
		t.Errorf("%+v", job)
	}
	f.expect(true, `SELECT version = 4 AND crashes = 1 AND snoozes IS NULL AND cancel_reason IS NULL AND deadline > run_at AND run_at > clock_timestamp() + interval '59 minutes' FROM jobgen.jobs`)
	// Without options it has none.
	f.enqueue("newest", jobs.Replace())
	f.expect(true, `SELECT version = 1 AND headers IS NULL AND deadline IS NULL AND queue = 'q' AND priority = 0 AND max_attempts = 20 AND run_at <= clock_timestamp() FROM jobgen.jobs`)
	if c := f.one(f.claim(10)); c.ID != first.ID || c.Attempt != 1 || c.Recorded {
		t.Errorf("%+v", c)
	}
}

func TestG1AReplacementIsRolledBackWithItsTransaction(t *testing.T) {
	t.Parallel()
	f := open(t)
	ref := f.enqueue("old")
	tx := f.begin(pgx.TxOptions{})
	if got := f.enqueueOn(tx, "new", jobs.Replace()); !got.Replaced {
		t.Errorf("%+v", got)
	}
	f.no(tx.Rollback(f.ctx()))
	if note := f.note(ref.ID); note != "old" {
		t.Errorf("it has %q", note)
	}
}

// A job that is due keeps its place in the queue; nothing is put to the left of where workers have looked already.
func TestG11AReplacedJobNeverMovesToTheLeftOfAMark(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, before, want string
		opts               []jobs.Option
	}{
		{"due", `clock_timestamp() - interval '1 hour'`, `run_at < $1::timestamptz - interval '59 minutes'`, nil},
		{"due, then later", `clock_timestamp() - interval '1 hour'`, `run_at > $1::timestamptz + interval '59 minutes'`, []jobs.Option{jobs.In(time.Hour)}},
		{"due, then at a time that has passed", `clock_timestamp() - interval '1 hour'`, `run_at < $1::timestamptz - interval '59 minutes'`, []jobs.Option{jobs.At(time.Unix(0, 0))}},
		{"later, then now", `clock_timestamp() + interval '1 hour'`, `run_at BETWEEN $1 AND clock_timestamp()`, nil},
		{"due, in another queue", `clock_timestamp() - interval '1 hour'`, `run_at BETWEEN $1 AND clock_timestamp()`, []jobs.Option{jobs.Queue("other")}},
		{"due, with another priority", `clock_timestamp() - interval '1 hour'`, `run_at BETWEEN $1 AND clock_timestamp()`, []jobs.Option{jobs.Priority(1)}},
		{"later, debounced for too long", `clock_timestamp() + interval '1 hour', created_at = clock_timestamp() - interval '1 day'`, `run_at BETWEEN $1 AND clock_timestamp()`, []jobs.Option{jobs.Debounce(time.Minute, 0)}},
		{"due, debounced", `clock_timestamp() - interval '1 hour'`, `run_at > $1::timestamptz + interval '50 seconds'`, []jobs.Option{jobs.Debounce(time.Minute, 0)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			f.enqueue("old")
			f.exec(`UPDATE jobgen.jobs SET run_at = ` + c.before)
			before := value[time.Time](t, f.pool, `SELECT clock_timestamp()`)
			opts := c.opts
			if !strings.Contains(c.name, "debounced") {
				opts = append(opts, jobs.Replace())
			}
			if ref := f.enqueue("new", opts...); !ref.Replaced {
				t.Errorf("%+v", ref)
			}
			if !value[bool](t, f.pool, `SELECT `+c.want+` FROM jobgen.jobs`, before) {
				t.Errorf("run_at is %s; at %s it was to be %s", value[time.Time](t, f.pool, `SELECT run_at FROM jobgen.jobs`), before, c.want)
			}
		})
	}
}

func TestReplaceLeavesAloneWhatDoesNotWait(t *testing.T) {
	t.Parallel()
	f := open(t)
	c := running(f)
	existing := func(when string) {
		t.Helper()
		before := value[string](t, f.pool, `SELECT concat((SELECT json_agg(j) FROM jobgen.jobs j), (SELECT json_agg(r) FROM jobgen.job_result r))`)
		if ref := f.enqueue("new", jobs.Replace()); ref.ID != c.ID || !ref.Existing || ref.Replaced {
			t.Errorf("%s: %+v", when, ref)
		}
		if after := value[string](t, f.pool, `SELECT concat((SELECT json_agg(j) FROM jobgen.jobs j), (SELECT json_agg(r) FROM jobgen.job_result r))`); after != before {
			t.Errorf("%s:\nbefore %s\nafter  %s", when, before, after)
		}
	}
	existing("running")
	f.finish(c, `{"total": 1}`, time.Hour)
	existing("finished")
	f.exec(`UPDATE jobgen.job_result SET expires_at = now()`)
	if ref := f.enqueue("new", jobs.Replace()); ref.ID == c.ID || ref.Existing || ref.Replaced {
		t.Errorf("expired: %+v", ref)
	}
	f.exec(`DELETE FROM jobgen.jobs`)
	if ref := f.enqueue("new", jobs.Replace()); ref.Existing || ref.Replaced {
		t.Errorf("removed by hand: %+v", ref)
	}
	f.counts(1, 1)
}

func TestReplaceRevivesADeadJobAsAnyEnqueueDoes(t *testing.T) {
	t.Parallel()
	f := open(t)
	c := dead(f)
	f.exec("UPDATE jobgen.jobs SET crashes = 4")
	ref := f.enqueue("new", jobs.Replace(), jobs.MaxAttempts(3))
	if ref.ID != c.ID || ref.Existing || ref.Replaced {
		t.Errorf("%+v", ref)
	}
	f.expect(true, `SELECT status = 'queued' AND attempt = 0 AND crashes = 0 AND max_attempts = 3 AND payload->>'note' = 'new' FROM jobgen.jobs`)
}

// The wish to cancel a start that crashed is about what was to be done then.
func TestReplaceTakesBackTheWishToCancel(t *testing.T) {
	t.Parallel()
	f := open(t)
	ref := f.enqueue("old")
	f.exec("UPDATE jobgen.jobs SET cancel_reason = 'why'")
	f.exec("INSERT INTO jobgen.job_cancel (job_id, worker_id, reason) VALUES ($1, gen_random_uuid(), 'why')", ref.ID)
	if got := f.enqueue("new", jobs.Replace()); got.ID != ref.ID || !got.Replaced {
		t.Errorf("%+v", got)
	}
	f.expect("new", `SELECT concat(payload->>'note', cancel_reason, (SELECT reason FROM jobgen.job_cancel)) FROM jobgen.jobs`)
}

// A claim that has not committed, or a transaction that owns the job by lock: the job still looks as if it waited.
func TestReplaceDoesNotWaitForWhoeverRunsTheJob(t *testing.T) {
	t.Parallel()
	f := open(t)
	ref := f.enqueue("old")
	owner := f.begin(pgx.TxOptions{})
	value[int64](t, owner, `SELECT id FROM jobgen.jobs FOR UPDATE`)
	caller := f.begin(pgx.TxOptions{})
	_, err := caller.Exec(f.ctx(), `SET LOCAL lock_timeout = '1ms'`)
	f.no(err)
	if got := f.enqueueOn(caller, "new", jobs.Replace()); got.ID != ref.ID || !got.Existing || got.Replaced {
		t.Errorf("%+v", got)
	}
	f.no(caller.Commit(f.ctx()))
	f.no(owner.Commit(f.ctx()))
	if note := f.note(ref.ID); note != "old" {
		t.Errorf("it has %q", note)
	}
}

// Two replacements do not take each other for a worker: the second waits, and the last to commit is what runs.
func TestReplaceWaitsForAnotherReplacement(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(pgx.Tx, context.Context) error{"commits": pgx.Tx.Commit, "rolls back": pgx.Tx.Rollback} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			ref := f.enqueue("old")
			first, second := f.begin(pgx.TxOptions{}), f.connect()
			f.enqueueOn(first, "first", jobs.Replace())
			got := make(chan jobs.Ref[receipt])
			go func() {
				ref, err := jobs.Enqueue(f.ctx(), second, keyed, order{ID: "a", Note: "second"}, jobs.Replace())
				if err != nil {
					t.Error(err)
				}
				got <- ref
			}()
			f.until(`SELECT coalesce(wait_event_type = 'Lock', false) FROM pg_stat_activity WHERE pid = $1`, second.PgConn().PID())
			f.no(end(first, f.ctx()))
			if got := <-got; got.ID != ref.ID || !got.Replaced {
				t.Errorf("%+v", got)
			}
			if note := f.note(ref.ID); note != "second" {
				t.Errorf("it has %q", note)
			}
		})
	}
}

func TestReplaceOfMany(t *testing.T) {
	t.Parallel()
	f := open(t)
	enqueue := func(db jobs.DB, note string, ids ...string) []jobs.Ref[receipt] {
		t.Helper()
		var orders []order
		for i, id := range ids {
			orders = append(orders, order{ID: id, Note: fmt.Sprint(note, i)})
		}
		refs, err := jobs.EnqueueMany(f.ctx(), db, keyed, orders, jobs.Replace())
		f.no(err)
		return refs
	}
	enqueue(f.pool, "old ", "c", "r")
	f.exec(`UPDATE jobgen.jobs SET status = 'running', worker_id = $1, fence = 1 WHERE payload->>'id' = 'r'`, f.worker.ID)
	refs := enqueue(f.pool, "new ", "d", "c", "r", "a", "c", "d")
	var got []string
	for _, r := range refs {
		got = append(got, fmt.Sprintf("%t %t %s", r.Existing, r.Replaced, f.note(r.ID)))
	}
	if want := []string{"false false new 5", "true true new 4", "true false old 1", "false false new 3", "true true new 4", "true true new 5"}; !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	f.counts(4, 4)

	// In key order, whatever the caller's: two callers wait for each other and do not deadlock.
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for range 25 {
				ids := []string{"a", "c", "d", "e", "f", "g"}
				if i%2 == 0 {
					slices.Reverse(ids)
				}
				enqueue(f.pool, fmt.Sprint(i), ids...)
			}
		})
	}
	all.Wait()
}

func TestReplaceFindsAJobUnderAnEarlierNameOfItsKind(t *testing.T) {
	t.Parallel()
	for _, many := range []bool{false, true} {
		f := open(t)
		renamed := *rekeyed
		renamed.Was = []string{keyed.Kind}
		replace := func(note string, opts ...jobs.Option) jobs.Ref[receipt] {
			t.Helper()
			orders := []order{{ID: "a", Note: note}}
			if many {
				orders = append(orders, order{ID: "b"})
			}
			refs, err := jobs.EnqueueMany(f.ctx(), f.pool, &renamed, orders, opts...)
			f.no(err)
			return refs[0]
		}
		ref := f.enqueue("old")
		if got := replace("new", jobs.Replace()); got.ID != ref.ID || got.Kind != keyed.Kind || !got.Replaced || f.note(ref.ID) != "new" {
			t.Errorf("%+v, %q", got, f.note(ref.ID))
		}
		if got := replace("newer", jobs.Debounce(0, 0)); got.ID != ref.ID || got.Kind != keyed.Kind || !got.Replaced || f.note(ref.ID) != "newer" {
			t.Errorf("debounced: %+v, %q", got, f.note(ref.ID))
		}
		c := f.claim(1)[0]
		if c.ID != ref.ID {
			t.Fatalf("%+v", c)
		}
		if got := replace("late", jobs.Replace()); got.ID != ref.ID || got.Kind != keyed.Kind || !got.Existing || got.Replaced {
			t.Errorf("running: %+v", got)
		}
		again := replace("late", jobs.Debounce(0, 0))
		if again.ID == ref.ID || again.Kind != rekeyed.Kind || again.Existing {
			t.Errorf("running, debounced: %+v", again)
		}
		if got := replace("latest", jobs.Debounce(0, 0)); got.ID != again.ID || got.Kind != rekeyed.Kind || !got.Replaced {
			t.Errorf("and once more: %+v", got)
		}
	}
}

func TestReplaceAndDebounceRefuseWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	f := open(t)
	refuse := func(field, want string, opts ...jobs.Option) {
		t.Helper()
		_, err := jobs.Enqueue(f.ctx(), f.pool, keyed, order{ID: "a"}, opts...)
		refused(t, err, field, want)
	}
	for name, option := range map[string]jobs.Option{"replace": jobs.Replace(), "debounce": jobs.Debounce(time.Second, time.Minute)} {
		_, err := jobs.Enqueue(f.ctx(), f.pool, plain, order{}, option)
		refused(t, err, name, "needs a key, which says what is the same work; declare one")
		_, err = jobs.EnqueueMany(f.ctx(), f.pool, plain, []order{{}, {}}, option)
		refused(t, err, name, "needs a key")
		if _, err := jobs.Enqueue(f.ctx(), f.pool, plain, order{}, option, jobs.Key("k")); err != nil {
			t.Error(err)
		}
	}
	refuse("debounce", "leave out Replace", jobs.Debounce(time.Second, 0), jobs.Replace())
	refuse("debounce", "leave out In and At", jobs.Debounce(time.Second, 0), jobs.In(time.Second))
	refuse("debounce", "leave out In and At", jobs.At(time.Unix(0, 0)), jobs.Debounce(time.Second, 0))
	refuse("debounce", "by -1ns, at most 0s, is negative", jobs.Debounce(-1, 0))
	refuse("debounce", "by 1s, at most -1ns, is negative", jobs.Debounce(time.Second, -1))
	refuse("debounce", "cannot be within 1s", jobs.Debounce(2*time.Second, time.Second))
	refuse("debounce", "more than a hundred years", jobs.Debounce(200*365*24*time.Hour, 0))
	f.counts(1, 1)
}

func TestG6AReplacementAtAStrictIsolationLevelIsNeverADuplicate(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for name, meanwhile := range map[string]func(f *fixture){
			"nothing":         func(f *fixture) {},
			"it is claimed":   func(f *fixture) { f.one(f.claim(1)) },
			"it succeeds":     func(f *fixture) { f.finish(f.one(f.claim(1)), "{}", time.Hour) },
			"it dies":         func(f *fixture) { f.die(f.one(f.claim(1)), "no") },
			"it is replaced":  func(f *fixture) { f.enqueue("other", jobs.Replace()) },
			"it is debounced": func(f *fixture) { f.one(f.claim(1)); f.enqueue("other", jobs.Debounce(0, 0)) },
		} {
			for option, o := range map[string]jobs.Option{"Replace": jobs.Replace(), "Debounce": jobs.Debounce(0, 0)} {
				t.Run(fmt.Sprint(level, ", ", option, ": ", name), func(t *testing.T) {
					t.Parallel()
					f := open(t)
					f.enqueue("old")
					tx := f.begin(pgx.TxOptions{IsoLevel: level})
					value[int](t, tx, "SELECT count(*) FROM jobgen.jobs") // the snapshot
					meanwhile(f)
					ref, err := jobs.Enqueue(f.ctx(), tx, keyed, order{ID: "a", Note: "new"}, o)
					if err == nil {
						err = tx.Commit(f.ctx())
					}
					_ = tx.Rollback(f.ctx())
					if err != nil && !serialization(err) {
						t.Errorf("got %v, want nothing or a serialization failure", err)
					}
					if err == nil && ref.Replaced && f.note(ref.ID) != "new" || name == "nothing" && !ref.Replaced {
						t.Errorf("%+v: %q", ref, f.note(ref.ID))
					}
					f.expect(1, `SELECT count(*) FROM jobgen.job_result`)
					if n := value[int](t, f.pool, `SELECT count(*) FROM jobgen.jobs WHERE status = 'queued'`); n > 1 {
						t.Errorf("%d jobs wait", n)
					}
				})
			}
		}
	}
}

// Other enqueues send what they sent before there were these options.
func TestOnlyAReplacingEnqueueTouchesTheJobOfATakenKey(t *testing.T) {
	t.Parallel()
	f := open(t)
	s := &statements{DB: f.pool}
	sent := func(opts ...jobs.Option) string {
		s.names = nil
		f.enqueueOn(s, "", opts...)
		return strings.Join(s.names, " ")
	}
	for _, want := range []string{"EnqueueKeyed", "EnqueueKeyed KeyState"} {
		if got := sent(); got != want {
			t.Errorf("sent %q, want %q", got, want)
		}
	}
	if got, want := sent(jobs.Replace()), "EnqueueKeyed KeyState Replace"; got != want {
		t.Errorf("sent %q, want %q", got, want)
	}
}

// statements notes the names of the statements that are sent.
type statements struct {
	jobs.DB
	names []string
}

func (s *statements) note(sql string) {
	_, rest, _ := strings.Cut(sql, "-- name: ")
	name, _, _ := strings.Cut(rest, " ")
	s.names = append(s.names, name)
}

func (s *statements) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	s.note(sql)
	return s.DB.Exec(ctx, sql, args...)
}

func (s *statements) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	s.note(sql)
	return s.DB.Query(ctx, sql, args...)
}

func (s *statements) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	s.note(sql)
	return s.DB.QueryRow(ctx, sql, args...)
}
