package jobs

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/internal/storable"
)

// Rows with a key's stored form outlive deployments.
func TestG6TheStoredFormOfAKeyNeverChanges(t *testing.T) {
	t.Parallel()
	berlin := time.FixedZone("Berlin", 3600)
	for want, build := range map[string]func(*KeyBuilder){
		"":                           func(*KeyBuilder) {},
		"1/s0:":                      func(k *KeyBuilder) { k.String("") },
		"1/s5:a:b/1":                 func(k *KeyBuilder) { k.String("a:b/1") },
		"1/s5:ö€":                    func(k *KeyBuilder) { k.String("ö€") },
		"1/i2:-7u1:7b4:trueb5:false": func(k *KeyBuilder) { k.Int(-7).Uint(7).Bool(true).Bool(false) },
		"1/i20:-9223372036854775808u20:18446744073709551615": func(k *KeyBuilder) { k.Int(math.MinInt64).Uint(math.MaxUint64) },
		"1/x4:00ffx0:": func(k *KeyBuilder) { k.Bytes([]byte{0, 255}).Bytes(nil) },
		"1/t20:2026-11-30T08:00:00Zt30:2026-11-30T08:00:00.000000001Z": func(k *KeyBuilder) {
			k.Time(time.Date(2026, 11, 30, 9, 0, 0, 0, berlin)).Time(time.Date(2026, 11, 30, 8, 0, 0, 1, time.UTC))
		},
	} {
		var k KeyBuilder
		build(&k)
		if got := string(k.b); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for key, want := range map[string]string{
		"plain":                  "plain",
		strings.Repeat("x", 200): strings.Repeat("x", 200),
		strings.Repeat("x", 201): "sha256:84a0678c90937f5dcf9994d5866668da6b995109c8ad845410559b48a4ecafed",
		"a\x00b":                 "sha256:59b271ae1bbcb1d31d41929817f4b16fb439eb4f31520b5ad1d5ce98920a7138",
		"a\xffb":                 "sha256:01ce0241d2a0e71a4fecd5a8d71157fe2787197732fc15d889cbcf36c38e3c68",
		"sha256:x":               "sha256:fe8eb9ab9836bcf963c044b6f84eb71c089db399876f45e72a6c21b488da26c4",
	} {
		if got := storable.Key(key); got != want {
			t.Errorf("%.20q is stored as %q, want %q", key, got, want)
		}
	}
}

// field is one value that a key can be built of.
type field struct {
	tag   byte
	text  string
	n     int64
	moved *time.Location
}

func (f field) write(k *KeyBuilder) {
	switch f.tag {
	case 's':
		k.String(f.text)
	case 'x':
		k.Bytes([]byte(f.text))
	case 'i':
		k.Int(f.n)
	case 'u':
		k.Uint(uint64(f.n))
	case 'b':
		k.Bool(f.n%2 == 0)
	case 't':
		k.Time(time.Unix(0, f.n).In(f.moved))
	}
}

// identity is equal for fields that mean the same.
func (f field) identity() string {
	switch f.tag {
	case 's', 'x':
		return fmt.Sprintf("%c%q", f.tag, f.text)
	case 'b':
		return fmt.Sprintf("b%v", f.n%2 == 0)
	}
	return fmt.Sprintf("%c%d", f.tag, f.n)
}

func TestG6DifferentFieldsNeverGiveTheSameKey(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	// Texts that look like the key's own syntax, so that a builder that only joined them would be caught.
	texts := []string{"", "a", "b", "ab", "1", "1:", ":1", "s1:a", "1/s1:a", "/", "\x00", "\xff", "i1:1", "s:a", "as:b", "as1:b", "i:1", "1i:1", "true", "a\x00", "00", "ff"}
	zones := []*time.Location{time.UTC, time.FixedZone("east", 3600*14), time.FixedZone("west", -3600*11)}
	seen, stored := map[string]string{}, map[string]string{}
	for range 200_000 {
		var k KeyBuilder
		var identity strings.Builder
		for range r.IntN(4) {
			f := field{tag: "sxiubt"[r.IntN(6)], text: texts[r.IntN(len(texts))], n: int64(r.IntN(3)) - 1, moved: zones[r.IntN(len(zones))]}
			f.write(&k)
			identity.WriteString(f.identity())
		}
		for _, m := range []struct {
			of  map[string]string
			key string
		}{{seen, string(k.b)}, {stored, storable.Key(string(k.b))}} {
			if was, is := m.of[m.key]; is && was != identity.String() {
				t.Fatalf("%s and %s both give %q", was, identity.String(), m.key)
			}
			m.of[m.key] = identity.String()
		}
	}
	if len(seen) < 10_000 {
		t.Errorf("only %d different keys were tried", len(seen))
	}
}

func FuzzG6DifferentFieldsNeverGiveTheSameKey(f *testing.F) {
	f.Add("a", "b", "ab", "", int64(1), int64(2))
	f.Fuzz(func(t *testing.T, a, b, c, d string, i, j int64) {
		build := func(x, y string, n int64) string {
			var k KeyBuilder
			k.String(x).Bytes([]byte(y)).Int(n)
			return string(k.b)
		}
		if same := a == c && b == d && i == j; same != (build(a, b, i) == build(c, d, j)) {
			t.Errorf("%q %q %d and %q %q %d: %q", a, b, i, c, d, j, build(a, b, i))
		}
	})
}

func FuzzG6AStoredKeyFitsAndIsStorable(f *testing.F) {
	f.Add("a", "b")
	f.Add(strings.Repeat("é", 100), "\x00")
	f.Add("sha256:00", "\xff")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := storable.Key(a), storable.Key(b)
		if len(x) > storable.MaxKey || strings.ToValidUTF8(x, "") != x || strings.Contains(x, "\x00") {
			t.Errorf("%q is stored as %q", a, x)
		}
		if (a == b) != (x == y) {
			t.Errorf("%q and %q are stored as %q and %q", a, b, x, y)
		}
	})
}
