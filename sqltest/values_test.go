package sqltest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobgen-go/jobgen/internal/sqldb"
)

// Arrays go to the server as text; what it takes them for is asked element by element, and they come back as arrays.
func TestArraysOfTextArriveAsTheyWere(t *testing.T) {
	each(t, func(f *fixture) {
		db := sqldb.New(f.db)
		check := func(in []string) {
			f.Helper()
			rows, err := db.Query(f.ctx(), "SELECT e FROM unnest($1::text[]) WITH ORDINALITY u (e, n) ORDER BY n", in)
			f.no(err)
			seen := []string{}
			for rows.Next() {
				var s string
				f.no(rows.Scan(&s))
				seen = append(seen, s)
			}
			f.no(rows.Err())
			var back []string
			f.no(db.QueryRow(f.ctx(), "SELECT $1::text[]", in).Scan(&back))
			if !slices.Equal(seen, in) || !slices.Equal(back, in) {
				f.Fatalf("%.300q\narrived as\n%.300q\nand came back as\n%.300q", in, seen, back)
			}
		}
		for _, in := range [][]string{
			{}, {""}, {"", ""}, {"NULL"}, {"null", "Null", "nULL"}, {"{"}, {"}"}, {"{}"}, {","}, {`"`}, {`\`}, {`\\`, `\"`, `"\`},
			{" ", "  a  ", "\t", "\n", "\r\n", "\v", "\f"}, {"'", "''", "$1", "$$", "?", ":a", "--", "/*"}, {`E'\n'`, `\u0041`, `\x41`},
			{"ü", "☃", "🙂", "\u2028", "\ufeff", "\ufffd", "\u0001", "\u007f", "\u0085"}, {"a,b", "a\",\"b", "{a,b}", "({[\"\\", `a\`},
			{strings.Repeat(`\"`, 1<<20)}, slices.Repeat([]string{`a"b`}, 20_000),
		} {
			check(in)
		}
		alphabet := []string{"", "a", "NULL", `"`, `\`, ",", "{", "}", " ", "'", "\n", "$1", "?", "ü", "🙂", "\x01", "0", ";"}
		seed := rand.Uint64()
		f.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 1))
		for range 150 {
			in := make([]string, random.IntN(40))
			for i := range in {
				for range random.IntN(12) {
					in[i] += alphabet[random.IntN(len(alphabet))]
				}
			}
			check(in)
		}
	})
}

// roundTrip sends a value and reads it back.
func roundTrip[T any](f *fixture, as string, in T, same func(a, b T) bool) {
	f.Helper()
	var out T
	if err := sqldb.New(f.db).QueryRow(f.ctx(), "SELECT $1::"+as, in).Scan(&out); err != nil {
		f.Errorf("%v as %s: %v", in, as, err)
	} else if !same(in, out) {
		f.Errorf("%v as %s came back as %v", in, as, out)
	}
}

func equal[T comparable](a, b T) bool { return a == b }

func pointers[T comparable](a, b *T) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

func TestValuesOfEachTypeComeBack(t *testing.T) {
	each(t, func(f *fixture) {
		text, n, id, at, flag := `a'"\☃`, int64(math.MinInt64), uuid.New(), time.Date(1931, 2, 3, 4, 5, 6, 789_000, time.FixedZone("", 3600)), true
		sameTime := func(a, b time.Time) bool { return a.Equal(b) }
		roundTrip(f, "text", text, equal)
		roundTrip(f, "bigint", n, equal)
		roundTrip(f, "int", int32(math.MinInt32), equal)
		roundTrip(f, "smallint", int16(-1), equal)
		roundTrip(f, "bool", flag, equal)
		roundTrip(f, "uuid", id, equal)
		roundTrip(f, "timestamptz", at, sameTime)
		roundTrip(f, "jsonb", []byte(`{"a": "\\"}`), func(a, b []byte) bool { return string(a) == string(b) })
		roundTrip(f, "jsonb", []byte(nil), func(_, b []byte) bool { return b == nil })
		for _, p := range []*string{nil, &text} {
			roundTrip(f, "text", p, pointers)
		}
		for _, p := range []*int64{nil, &n} {
			roundTrip(f, "bigint", p, pointers)
		}
		for _, p := range []*bool{nil, &flag} {
			roundTrip(f, "bool", p, pointers)
		}
		for _, p := range []*uuid.UUID{nil, &id} {
			roundTrip(f, "uuid", p, pointers)
		}
		for _, p := range []*time.Time{nil, &at} {
			roundTrip(f, "timestamptz", p, func(a, b *time.Time) bool { return a == nil && b == nil || a != nil && b != nil && a.Equal(*b) })
		}
		roundTrip(f, "text[]", []string(nil), func(_, b []string) bool { return b == nil })
		roundTrip(f, "bigint[]", []int64{math.MinInt64, 0, math.MaxInt64}, slices.Equal)
		roundTrip(f, "int[]", []int32{math.MinInt32, math.MaxInt32}, slices.Equal)
		roundTrip(f, "smallint[]", []int16{math.MinInt16, math.MaxInt16}, slices.Equal)
		roundTrip(f, "bool[]", []bool{true, false}, slices.Equal)
		roundTrip(f, "uuid[]", []uuid.UUID{id, {}}, slices.Equal)
		db := sqldb.New(f.db)
		var third string
		f.no(db.QueryRow(f.ctx(), "SELECT ($1::timestamptz[])[2]::timestamptz = $2::timestamptz", []time.Time{{}, at}, at).Scan(&third))
		if third != "true" && third != "t" {
			f.Errorf("a time in an array is another one: %q", third)
		}
		var none []string
		if err := db.QueryRow(f.ctx(), "SELECT ARRAY['a', NULL]").Scan(&none); err == nil {
			f.Errorf("a NULL among texts: %q", none)
		}
		if _, err := db.Exec(f.ctx(), "SELECT $1", struct{}{}); err == nil || !strings.Contains(err.Error(), "struct {}") {
			f.Errorf("an argument of a type that no driver takes: %v", err)
		}
		tag, err := db.Exec(f.ctx(), "INSERT INTO users SELECT g::text FROM generate_series(1, 12) g")
		if err != nil || tag.RowsAffected() != 12 {
			f.Errorf("%d rows, %v", tag.RowsAffected(), err)
		}
	})
}

// What is asked about a key that is taken is planned for the tables as they are (internal/postgres/fresh.go), while what
// every enqueue runs stays prepared.
func TestWhatIsRareIsPlannedAnew(t *testing.T) {
	t.Parallel()
	f := open(t, "pgx")
	f.db.SetMaxOpenConns(1)
	for range 3 {
		f.exec("TRUNCATE jobgen.jobs, jobgen.job_result")
		f.enqueueAll(f.db)
		f.exec("TRUNCATE jobgen.jobs, jobgen.job_result")
		tx := f.begin()
		f.enqueueAll(tx)
		f.no(tx.Commit())
	}
	for like, want := range map[string]bool{"KeyState :": false, "KeyStates :": false, "EnqueueKeyed :": true, "EnqueueManyKeyed :": true, "Enqueue :": true} {
		var is bool
		f.no(f.db.QueryRowContext(f.ctx(), "SELECT EXISTS (SELECT FROM pg_prepared_statements WHERE statement LIKE $1)", fmt.Sprintf("-- name: %s%%", like)).Scan(&is))
		if is != want {
			f.Errorf("%s is prepared: %v, want %v", like, is, want)
		}
	}
}
