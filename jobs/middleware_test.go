package jobs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
)

// around is a middleware with an Enqueue part only.
func around(f func(ctx context.Context, e *jobs.Enqueueing, next func(context.Context) error) error) jobs.Middleware {
	return jobs.Middleware{Enqueue: f}
}

func within(ms ...jobs.Middleware) *jobs.Producer { return &jobs.Producer{Middleware: ms} }

func headersOf(f *fixture, id int64) map[string]string {
	f.Helper()
	var h map[string]string
	f.no(json.Unmarshal(value[[]byte](f.T, f.pool, `SELECT coalesce(headers, '{}') FROM jobgen.jobs WHERE id = $1`, id), &h))
	return h
}

// The first middleware is the outermost, that of an outer Producer outside of all; parts that are nil are passed over, and
// what one puts into the context is seen further in.
func TestEnqueueMiddlewareOrder(t *testing.T) {
	t.Parallel()
	f := open(t)
	type key struct{}
	var calls []string
	named := func(name string) jobs.Middleware {
		return around(func(ctx context.Context, e *jobs.Enqueueing, next func(context.Context) error) error {
			path, _ := ctx.Value(key{}).(string)
			path += name
			calls = append(calls, "before "+path)
			err := next(context.WithValue(ctx, key{}, path))
			calls = append(calls, "after "+path)
			return err
		})
	}
	_, err := jobs.Enqueue(f.ctx(), within(named("a"), jobs.Middleware{}, named("b")).On(within(named("c")).On(f.pool)), plain, order{ID: "1"})
	f.no(err)
	want := []string{"before a", "before ab", "before abc", "after abc", "after ab", "after a"}
	if !slices.Equal(calls, want) {
		t.Errorf("calls %q, want %q", calls, want)
	}
	f.expect(1, `SELECT count(*) FROM jobgen.jobs`)
}

// An enqueue of many is one call, which sees what the options say before, and the jobs after.
func TestEnqueueMiddlewareSeesWhatIsEnqueued(t *testing.T) {
	t.Parallel()
	f := open(t)
	var seen []jobs.Enqueueing
	look := within(around(func(ctx context.Context, e *jobs.Enqueueing, next func(context.Context) error) error {
		seen = append(seen, *e)
		err := next(ctx)
		seen = append(seen, *e)
		return err
	}))
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	refs, err := jobs.EnqueueMany(f.ctx(), look.On(f.pool), keyed, []order{{ID: "1"}, {ID: "2"}},
		jobs.Queue("other"), jobs.Priority(3), jobs.MaxAttempts(7), jobs.In(time.Hour), jobs.At(at), jobs.Within(2*time.Hour), jobs.Deadline(at.Add(time.Hour)), jobs.Headers(map[string]string{"h": "1"}))
	f.no(err)
	again, err := jobs.Enqueue(f.ctx(), look.On(f.pool), keyed, order{ID: "2"})
	f.no(err)
	if len(seen) != 4 {
		t.Fatalf("%d calls, want one for each enqueue", len(seen)/2)
	}
	want := jobs.Enqueueing{Kind: "test.keyed", Queue: "other", Priority: 3, MaxAttempts: 7, Count: 2, In: time.Hour, At: at, Within: 2 * time.Hour, Deadline: at.Add(time.Hour), Headers: map[string]string{"h": "1"}}
	if !reflect.DeepEqual(seen[0], want) {
		t.Errorf("before: %+v, want %+v", seen[0], want)
	}
	want.Enqueued = []jobs.Enqueued{{Kind: "test.keyed", ID: refs[0].ID}, {Kind: "test.keyed", ID: refs[1].ID}}
	if !reflect.DeepEqual(seen[1], want) {
		t.Errorf("after: %+v, want %+v", seen[1], want)
	}
	if e := seen[3]; e.Count != 1 || len(e.Enqueued) != 1 || !e.Enqueued[0].Existing || e.Enqueued[0].ID != again.ID || e.Headers == nil {
		t.Errorf("after an enqueue of a taken key: %+v", e)
	}

	refs, err = jobs.EnqueueMany(f.ctx(), look.On(f.pool), keyed, nil)
	f.no(err)
	if len(seen) != 4 || len(refs) != 0 {
		t.Error("an enqueue of nothing went through the middleware")
	}
}

// A middleware has the last word on the headers, the caller's map stays as it is, and they are checked like the caller's.
func TestEnqueueMiddlewareSetsHeaders(t *testing.T) {
	t.Parallel()
	f := open(t)
	set := func(name, value string) jobs.Middleware {
		return around(func(ctx context.Context, e *jobs.Enqueueing, next func(context.Context) error) error {
			e.Headers[name] = value
			delete(e.Headers, "unwanted")
			return next(ctx)
		})
	}
	mine := map[string]string{"a": "caller", "b": "caller", "unwanted": "caller"}
	refs, err := jobs.EnqueueMany(f.ctx(), within(set("b", "outer"), set("c", "outer"), set("c", "inner")).On(f.pool), plain, []order{{ID: "1"}, {ID: "2"}}, jobs.Headers(mine))
	f.no(err)
	for _, r := range refs {
		if got := fmt.Sprint(headersOf(f, r.ID)); got != "map[a:caller b:outer c:inner]" {
			t.Errorf("stored headers %s", got)
		}
	}
	if len(mine) != 3 || mine["b"] != "caller" {
		t.Errorf("the caller's map became %v", mine)
	}
	ref, err := jobs.Enqueue(f.ctx(), within(set("only", "one")).On(f.pool), plain, order{})
	f.no(err)
	if got := fmt.Sprint(headersOf(f, ref.ID)); got != "map[only:one]" {
		t.Errorf("stored headers %s", got)
	}

	for _, wrong := range [][2]string{{"jobgen.scheduled_at", "x"}, {"nul", "\x00"}, {"nul\x00", ""}, {"long", strings.Repeat("x", jobs.MaxHeaders)}} {
		_, err := jobs.Enqueue(f.ctx(), within(set(wrong[0], wrong[1])).On(f.pool), plain, order{})
		var refused *jobs.InvalidError
		if !errors.As(err, &refused) || !strings.HasPrefix(refused.Field, "headers") {
			t.Errorf("header %.20q: %v, want it refused", wrong[0], err)
		}
	}
	f.expect(3, `SELECT count(*) FROM jobgen.jobs`)
}

// What a middleware returns counts, but there is no success without a job.
func TestEnqueueMiddlewareDecidesTheError(t *testing.T) {
	t.Parallel()
	mine := errors.New("mine")
	unwritable := order{Note: "\x00"}
	for _, c := range []struct {
		name    string
		payload order
		do      func(ctx context.Context, next func(context.Context) error) error
		want    string // "": success
		stored  int
	}{
		{"replaces an error", unwritable, func(ctx context.Context, next func(context.Context) error) error {
			if err := next(ctx); err == nil {
				return nil
			}
			return mine
		}, "mine", 0},
		{"cannot hide an error", unwritable, func(ctx context.Context, next func(context.Context) error) error { _ = next(ctx); return nil }, "payload", 0},
		{"refuses", order{}, func(context.Context, func(context.Context) error) error { return mine }, "mine", 0},
		{"cannot skip", order{}, func(context.Context, func(context.Context) error) error { return nil }, "without calling next", 0},
		{"fails afterwards", order{}, func(ctx context.Context, next func(context.Context) error) error {
			return errors.Join(next(ctx), mine)
		}, "mine", 1},
		{"calls next twice", order{}, func(ctx context.Context, next func(context.Context) error) error {
			return errors.Join(next(ctx), next(ctx))
		}, "second time", 1},
		{"ignores the refusal", order{}, func(ctx context.Context, next func(context.Context) error) error {
			err := next(ctx)
			if next(ctx) == nil {
				return errors.New("it was not refused")
			}
			return err
		}, "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			_, err := jobs.Enqueue(f.ctx(), within(around(func(ctx context.Context, _ *jobs.Enqueueing, next func(context.Context) error) error {
				return c.do(ctx, next)
			})).On(f.pool), plain, c.payload)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			f.expect(c.stored, `SELECT count(*) FROM jobgen.jobs`)
		})
	}
}

// next is refused once its middleware has returned.
func TestEnqueueNextIsRefusedAfterwards(t *testing.T) {
	t.Parallel()
	f := open(t)
	var late func(context.Context) error
	_, err := jobs.Enqueue(f.ctx(), within(around(func(ctx context.Context, _ *jobs.Enqueueing, next func(context.Context) error) error {
		late = next
		return errors.New("no")
	})).On(f.pool), plain, order{})
	if err == nil || late(f.ctx()) == nil {
		t.Error("next was not refused after its middleware had returned")
	}
	f.expect(0, `SELECT count(*) FROM jobgen.jobs`)
}

// A panic goes to the caller, whose transaction rolls back with everything in it (G1).
func TestEnqueueMiddlewarePanics(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("after next %t", after), func(t *testing.T) {
			t.Parallel()
			f := open(t)
			p := within(around(func(ctx context.Context, _ *jobs.Enqueueing, next func(context.Context) error) error {
				return next(ctx)
			}),
				around(func(ctx context.Context, _ *jobs.Enqueueing, next func(context.Context) error) error {
					if after {
						f.no(next(ctx))
					}
					panic("ouch")
				}))
			caught := func() (p0 any) {
				defer func() { p0 = recover() }()
				return pgx.BeginFunc(f.ctx(), f.pool, func(tx pgx.Tx) error {
					_, err := jobs.Enqueue(f.ctx(), p.On(tx), plain, order{})
					return err
				})
			}()
			if caught != "ouch" {
				t.Errorf("the caller got %v, want the panic", caught)
			}
			f.expect(0, `SELECT count(*) FROM jobgen.jobs`)
			_, err := jobs.Enqueue(f.ctx(), f.pool, plain, order{})
			f.no(err)
		})
	}
}

// The settings of a Producer beneath another hold where the outer has none.
func TestNestedProducers(t *testing.T) {
	t.Parallel()
	f := open(t)
	small := &jobs.Producer{MaxPayload: 20}
	if _, err := jobs.Enqueue(f.ctx(), within().On(small.On(f.pool)), plain, order{ID: strings.Repeat("x", 50)}); err == nil {
		t.Error("the inner Producer's limit did not hold")
	}
	_, err := jobs.Enqueue(f.ctx(), (&jobs.Producer{MaxPayload: 100}).On(small.On(f.pool)), plain, order{ID: strings.Repeat("x", 50)})
	f.no(err)
}

func BenchmarkEnqueueMiddleware(b *testing.B) {
	db := benchDB(b)
	pass := around(func(ctx context.Context, _ *jobs.Enqueueing, next func(context.Context) error) error {
		return next(ctx)
	})
	for _, c := range []struct {
		name string
		db   jobs.DB
	}{{"no producer", db}, {"none", within().On(db)}, {"one", within(pass).On(db)}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := jobs.Enqueue(b.Context(), c.db, plain, order{ID: "1"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func benchDB(b *testing.B) jobs.DB {
	conn, err := jobtest.DB(b).Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(conn.Release)
	return conn
}
