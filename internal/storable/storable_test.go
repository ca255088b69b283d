package storable_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jobgen-go/jobgen/internal/storable"
	"github.com/jobgen-go/jobgen/jobtest"
)

type inner struct {
	Text string `json:"text"`
}

type base struct {
	Promoted string `json:"promoted"`
}

type node struct {
	base
	Text   string            `json:"text,omitempty"`
	Names  []inner           `json:"names,omitempty"`
	Map    map[string]*inner `json:"map,omitempty"`
	Any    any               `json:"any,omitempty"`
	Raw    json.RawMessage   `json:"raw,omitempty"`
	Bytes  []byte            `json:"bytes,omitempty"`
	Float  float64           `json:"float,omitempty"`
	Time   time.Time         `json:"time,omitzero"`
	Hidden string            `json:"-"`
	Parent *node             `json:"-"`
	Own    *own              `json:"own,omitempty"`
}

// own writes itself; its inside is nobody's business.
type own struct{ binary string }

func (o *own) MarshalJSON() ([]byte, error) { return json.Marshal(fmt.Sprintf("%x", o.binary)) }

const limit = 1 << 20

func TestWhatTheDatabaseCannotStoreIsRefusedWithItsPlace(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]any{
		"Text: has a NUL at byte 1":                        node{Text: "a\x00b"},
		"Text: is not valid UTF-8":                         node{Text: "a\xffb"},
		"base.Promoted: is not valid UTF-8":                node{base: base{"\xff"}},
		"Names[1].Text: has a NUL at byte 0":               &node{Names: []inner{{"fine"}, {"\x00"}}},
		"Map.k.Text: is not valid UTF-8":                   node{Map: map[string]*inner{"k": {"\xff"}}},
		"Map.(key): has a NUL":                             node{Map: map[string]*inner{"k\x00": nil}},
		"Any.deep[0]: is not valid UTF-8":                  node{Any: map[string]any{"deep": []any{"\xff"}}},
		"raw.a[0]: has a NUL":                              node{Raw: json.RawMessage(`{"a": ["\u0000"]}`)},
		"raw.(key): has a NUL":                             node{Raw: json.RawMessage(`{"\u0000": 1}`)},
		"RawMessage or a MarshalJSON that gives invalid":   node{Raw: json.RawMessage("\"\xff\"")},
		`gives \ud83d, half of a surrogate pair`:           node{Raw: json.RawMessage(`"\ud83d"`)},
		`gives \uDC00, half of a surrogate pair`:           node{Raw: json.RawMessage(`"\uDC00\ud83d"`)},
		`gives \ud83e, half of a surrogate pair`:           node{Raw: json.RawMessage(`"\ud83d\ude00 \ud83e\\ude00"`)},
		"unsupported value: NaN":                           node{Float: math.NaN()},
		"unsupported value: +Inf":                          node{Float: math.Inf(1)},
		"unsupported type: chan int":                       node{Any: make(chan int)},
		"is 1048577 bytes of JSON; the limit is 1048576":   strings.Repeat("x", limit-1),
		"year outside of range":                            node{Time: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
		"(key): has a NUL":                                 map[string]int{"\x00": 1},
		"has a NUL at byte 0, which Postgres cannot store": "\x00",
	} {
		b, err := storable.JSON(v, limit)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: got %.60q, %v; want %q", fmt.Sprintf("%+v", v), b, err, want)
		}
	}
}

func TestWhatTheDatabaseCanStoreComesBackAsItWas(t *testing.T) {
	t.Parallel()
	db := jobtest.DB(t)
	loop := node{Text: "\uFFFD is a character like any other", Hidden: "\xff\x00"}
	loop.Parent = &loop
	for _, v := range []any{
		loop,
		node{Text: `\u0000 \ufffd \ud800 as text`, Hidden: "\x00"},
		node{Text: "\uFFFD \\u0000", Parent: &loop},
		node{Text: `\\u0000`}, node{Text: "\u2028 </script> & \x7f \x01 😀 \U0010FFFF"},
		node{Bytes: []byte{0, 255, 254}, Text: `\u0000`}, node{Own: &own{"\x00\xff"}, Text: `\ufffd`},
		node{Raw: json.RawMessage(`{"😀": "\ud83d\ude00 \uFFFD \\ud800 \\u0000"}`)},
		strings.Repeat("x", limit-2), nil, []int(nil), map[string]string{}, "", 0, math.MaxInt64, uint64(math.MaxUint64), math.MaxFloat64, math.SmallestNonzeroFloat64,
	} {
		b, err := storable.JSON(v, limit)
		if err != nil {
			t.Errorf("%.60q: %v", fmt.Sprintf("%+v", v), err)
			continue
		}
		var back []byte
		if err := db.QueryRow(t.Context(), "SELECT $1::text::jsonb", string(b)).Scan(&back); err != nil {
			t.Errorf("%.60q: %v", b, err)
			continue
		}
		var was, is any
		if err := json.Unmarshal(b, &was); err != nil {
			t.Error(err)
		}
		if err := json.Unmarshal(back, &is); err != nil {
			t.Error(err)
		}
		if fmt.Sprint(was) != fmt.Sprint(is) {
			t.Errorf("%.60q came back as %.60q", b, back)
		}
	}
}

func FuzzJSONIsStorableOrRefused(f *testing.F) {
	for _, s := range []string{`"a"`, `"\u0000"`, `"\ud800"`, `"\\ud800"`, `"\ud83d\ude00"`, "\"\xff\"", `{"\ufffd":1}`} {
		f.Add("text", s)
	}
	f.Fuzz(func(t *testing.T, text, raw string) {
		v := node{Text: text}
		if json.Valid([]byte(raw)) {
			v.Raw = json.RawMessage(raw)
		}
		b, err := storable.JSON(v, limit)
		if err != nil {
			return
		}
		var back node
		if !utf8.Valid(b) || json.Unmarshal(b, &back) != nil || back.Text != text {
			t.Errorf("%q %q: stored %q, back %q", text, raw, b, back.Text)
		}
	})
}

func TestTextIsMadeStorableAndKeepsBothEnds(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": "", "plain": "plain", "a\x00b": "a\uFFFDb", "a\xffb": "a\uFFFDb", "☃": "☃",
	} {
		if got := storable.Text(in, 100); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	for _, in := range []string{strings.Repeat("é", 1000), strings.Repeat("x", 101), "start" + strings.Repeat("\xff\x00😀", 500) + "end"} {
		for limit := 5; limit < 120; limit++ {
			got := storable.Text(in, limit)
			if len(got) > limit || !utf8.ValidString(got) || strings.Contains(got, "\x00") {
				t.Fatalf("limit %d: %d bytes, %q", limit, len(got), got)
			}
		}
	}
	got := storable.Text("the cause"+strings.Repeat(" ", 5000)+"the place", 100)
	if !strings.HasPrefix(got, "the cause") || !strings.HasSuffix(got, "the place") {
		t.Errorf("%q", got)
	}
}
