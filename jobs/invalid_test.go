package jobs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
)

// refused asserts that err is an *InvalidError about field that says want.
func refused(t *testing.T, err error, field, want string) {
	t.Helper()
	var invalid *jobs.InvalidError
	if !errors.As(err, &invalid) || invalid.Field != field || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), invalid.Kind) {
		t.Errorf("got %T %.200q, want an InvalidError about %s that says %q", err, fmt.Sprint(err), field, want)
	}
}

type doc struct {
	Text string             `json:"text,omitempty"`
	Map  map[string]string  `json:"map,omitempty"`
	List []map[string][]any `json:"list,omitempty"`
	Raw  json.RawMessage    `json:"raw,omitempty"`
	Real float64            `json:"real,omitempty"`
}

var docs = &jobs.Spec[doc, jobs.None]{Kind: "test.doc", Queue: "q"}

func TestAPayloadThatCannotBeStoredIsRefusedAndNothingIsStored(t *testing.T) {
	t.Parallel()
	f := open(t)
	for want, v := range map[string]doc{
		"Text: has a NUL at byte 1":                 {Text: "a\x00"},
		"Text: is not valid UTF-8":                  {Text: "\xff"},
		"Map.(key): has a NUL":                      {Map: map[string]string{"\x00": ""}},
		"List[1].deep[0]: has a NUL":                {List: []map[string][]any{nil, {"deep": {"\x00"}}}},
		"raw.a: has a NUL":                          {Raw: json.RawMessage(`{"a":"\u0000"}`)},
		"half of a surrogate pair":                  {Raw: json.RawMessage(`"\ud800"`)},
		"NaN":                                       {Real: math.NaN()},
		"bytes of JSON; the limit is 1048576":       {Text: strings.Repeat("x", jobs.MaxPayload)},
		"was refused by the database: ":             {Raw: json.RawMessage("1e1000000")},
		"was refused by the database: ERROR: stack": {Raw: json.RawMessage(strings.Repeat("[", 9000) + strings.Repeat("]", 9000))},
	} {
		_, err := jobs.Enqueue(f.ctx(), f.pool, docs, v)
		if err == nil && strings.Contains(want, "stack") {
			f.exec("DELETE FROM jobgen.jobs") // this server's stack is deep enough
			continue
		}
		refused(t, err, "payload", want)
		_, err = jobs.EnqueueMany(f.ctx(), f.pool, docs, []doc{{Text: "fine"}, v})
		field := "payload 1"
		if strings.Contains(want, "refused by the database") {
			field = "payload" // it does not say which
		}
		refused(t, err, field, want)
		f.counts(0, 0)
	}
}

func TestAProducerHasItsOwnLimit(t *testing.T) {
	t.Parallel()
	f := open(t)
	small := &jobs.Producer{MaxPayload: 20}
	_, err := jobs.Enqueue(f.ctx(), small.On(f.pool), docs, doc{Text: "more than twenty bytes"})
	refused(t, err, "payload", "the limit is 20")
	_, err = jobs.Enqueue(f.ctx(), small.On(f.pool), docs, doc{Text: "short"})
	f.no(err)
	large := &jobs.Producer{MaxPayload: 3 << 20}
	_, err = jobs.Enqueue(f.ctx(), large.On(f.pool), docs, doc{Text: strings.Repeat("x", 2<<20)})
	f.no(err)
	_, err = jobs.Enqueue(f.ctx(), small.On(large.On(f.pool)), docs, doc{Text: "more than twenty bytes"})
	refused(t, err, "payload", "the limit is 20")
	f.counts(2, 0)
}

func TestTextThatOnlyLooksUnstorableIsStored(t *testing.T) {
	t.Parallel()
	f := open(t)
	want := doc{Text: "\uFFFD \\u0000 \\ufffd", Map: map[string]string{`\u0000`: `\ud800`}, Raw: json.RawMessage(`{"a": "\\u0000"}`)}
	_, err := jobs.Enqueue(f.ctx(), f.pool, docs, want)
	f.no(err)
	got := jobtest.EnqueuedOne[doc](t, f.pool, docs.Kind).Payload
	if got.Text != want.Text || got.Map[`\u0000`] != `\ud800` || string(got.Raw) != string(want.Raw) {
		t.Errorf("stored %+v, back %+v", want, got)
	}
}

func TestAnOptionOutOfRangeIsRefusedAndNothingIsStored(t *testing.T) {
	t.Parallel()
	f := open(t)
	long := strings.Repeat("x", 101)
	century := 100 * 365 * 24 * time.Hour
	spec := func(change func(*jobs.Spec[order, jobs.None])) *jobs.Spec[order, jobs.None] {
		s := *plain
		change(&s)
		return &s
	}
	for _, c := range []struct {
		field, want string
		spec        *jobs.Spec[order, jobs.None]
		opts        []jobs.Option
	}{
		{"kind", "is empty", spec(func(s *jobs.Spec[order, jobs.None]) { s.Kind = "" }), nil},
		{"kind", "101 bytes; the limit is 100", spec(func(s *jobs.Spec[order, jobs.None]) { s.Kind = long }), nil},
		{"kind", "NUL", spec(func(s *jobs.Spec[order, jobs.None]) { s.Kind = "a\x00" }), nil},
		{"queue", "is empty", spec(func(s *jobs.Spec[order, jobs.None]) { s.Queue = "" }), nil},
		{"queue", "is empty", plain, []jobs.Option{jobs.Queue("")}},
		{"queue", "101 bytes; the limit is 100", plain, []jobs.Option{jobs.Queue(long)}},
		{"queue", "UTF-8", plain, []jobs.Option{jobs.Queue("\xff")}},
		{"priority", "is -1; it must be 0 to 9", plain, []jobs.Option{jobs.Priority(-1)}},
		{"priority", "is 10", plain, []jobs.Option{jobs.Priority(10)}},
		{"priority", "is 65536", plain, []jobs.Option{jobs.Priority(65536)}},
		{"priority", "is -3", spec(func(s *jobs.Spec[order, jobs.None]) { s.Priority = -3 }), nil},
		{"max attempts", "is 0; it must be 1 to 32767", plain, []jobs.Option{jobs.MaxAttempts(0)}},
		{"max attempts", "is -1", plain, []jobs.Option{jobs.MaxAttempts(-1)}},
		{"max attempts", "is 32768", plain, []jobs.Option{jobs.MaxAttempts(32768)}},
		{"max attempts", "is 4294967297", plain, []jobs.Option{jobs.MaxAttempts(1<<32 + 1)}},
		{"max attempts", "is -1", spec(func(s *jobs.Spec[order, jobs.None]) { s.MaxAttempts = -1 }), nil},
		{"version", "is 4294967297", spec(func(s *jobs.Spec[order, jobs.None]) { s.Version = 1<<32 + 1 }), nil},
		{"key", "is empty", plain, []jobs.Option{jobs.Key("")}},
		{"key", `begins with "job:"`, plain, []jobs.Option{jobs.Key("job:7")}},
		{"delay", "a hundred years", plain, []jobs.Option{jobs.In(century + 1)}},
		{"delay", "a hundred years", plain, []jobs.Option{jobs.In(math.MaxInt64)}},
		{"time", "year 294277", plain, []jobs.Option{jobs.At(time.Date(294277, 1, 1, 0, 0, 0, 0, time.UTC))}},
		{"time", "year 10000", plain, []jobs.Option{jobs.At(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC))}},
		{"time", "year -5000", plain, []jobs.Option{jobs.At(time.Date(-5000, 1, 1, 0, 0, 0, 0, time.UTC))}},
		{"headers", "NUL", plain, []jobs.Option{jobs.Headers(map[string]string{"\x00": ""})}},
		{"headers.a", "UTF-8", plain, []jobs.Option{jobs.Headers(map[string]string{"a": "\xff"})}},
		{"headers", "the limit is 16384", plain, []jobs.Option{jobs.Headers(map[string]string{"a": strings.Repeat("x", 17000)})}},
		{"payload", "gives an empty key", spec(func(s *jobs.Spec[order, jobs.None]) { s.Key = func(*jobs.KeyBuilder, order) {} }), nil},
	} {
		_, err := jobs.Enqueue(f.ctx(), f.pool, c.spec, order{}, c.opts...)
		refused(t, err, c.field, c.want)
	}
	_, err := jobs.EnqueueMany(f.ctx(), f.pool, plain, []order{{}, {}}, jobs.Key("one for two"))
	refused(t, err, "key", "many jobs at once")
	f.counts(0, 0)
}

func TestOptionsAtTheirLimitsAreStored(t *testing.T) {
	t.Parallel()
	f := open(t)
	name := strings.Repeat("é", 50)
	s := &jobs.Spec[order, jobs.None]{Kind: name, Queue: "q", Version: math.MaxInt32}
	_, err := jobs.Enqueue(f.ctx(), f.pool, s, order{}, jobs.Queue(name), jobs.Priority(9), jobs.MaxAttempts(32767),
		jobs.Key(strings.Repeat("k", 200)), jobs.Headers(map[string]string{"a": strings.Repeat("x", 16000)}))
	f.no(err)
	got := jobtest.EnqueuedOne[order](t, f.pool, name)
	if got.Queue != name || got.Priority != 9 || got.MaxAttempts != 32767 || got.Version != math.MaxInt32 || len(got.Key) != 200 || len(got.Headers["a"]) != 16000 {
		t.Errorf("%+v", got)
	}
	_, err = jobs.Enqueue(f.ctx(), f.pool, plain, order{})
	f.no(err)
	if got := jobtest.EnqueuedOne[order](t, f.pool, plain.Kind); got.Priority != 0 || got.MaxAttempts != 20 || got.Version != 1 || got.Key != "" || got.Headers != nil {
		t.Errorf("by default: %+v", got)
	}
}
