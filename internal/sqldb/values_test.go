package sqldb

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
)

// Each argument and each result of each statement can go through database/sql, also those that no enqueue uses yet.
func TestEachTypeOfTheGeneratedStatementsIsKnown(t *testing.T) {
	t.Parallel()
	methods := reflect.TypeFor[*gen.Queries]()
	seen := 0
	for i := range methods.NumMethod() {
		m := methods.Method(i)
		if m.Name == "WithTx" {
			continue
		}
		for n := 2; n < m.Type.NumIn(); n++ {
			for _, typ := range fields(m.Type.In(n)) {
				seen++
				if _, known := value(filled(typ)); !known {
					t.Errorf("%s takes a %s", m.Name, typ)
				}
			}
		}
		for n := range m.Type.NumOut() - 1 {
			out := m.Type.Out(n)
			if out.Kind() == reflect.Slice && out.Elem().Kind() != reflect.Uint8 {
				out = out.Elem()
			}
			for _, typ := range fields(out) {
				seen++
				if typ.Kind() != reflect.Slice || typ.Elem().Kind() == reflect.Uint8 {
					continue // scanned by database/sql
				}
				if dest := reflect.New(typ).Interface(); reflect.TypeOf(target(dest)) == reflect.TypeOf(dest) {
					t.Errorf("%s gives a %s", m.Name, typ)
				}
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d types were seen", seen)
	}
}

// fields are the types of a struct's fields, or the type itself if it is one value.
func fields(t reflect.Type) []reflect.Type {
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]() || t == reflect.TypeFor[uuid.UUID]() {
		return []reflect.Type{t}
	}
	var out []reflect.Type
	for i := range t.NumField() {
		out = append(out, t.Field(i).Type)
	}
	return out
}

// filled is a value of the type with something in it.
func filled(t reflect.Type) any {
	switch t.Kind() {
	case reflect.Pointer:
		return reflect.New(t.Elem()).Interface()
	case reflect.Slice:
		return reflect.MakeSlice(t, 1, 1).Interface()
	}
	return reflect.Zero(t).Interface()
}

func FuzzArraysAreTakenApartAsTheyWerePut(f *testing.F) {
	for _, s := range []string{"", "NULL", `"`, `\`, "{}", "a,b", " ", `{"a`, `{a,"b\"c",NULL}`, "{,}", "{a,}", `{"a"b}`, `{a\}`} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, in := range [][]string{{}, {a}, {a, b}, {b, "", a}} {
			text, _ := value(in)
			var out []string
			if err := (elements[string]{&out}).Scan(text); err != nil || !slices.Equal(in, out) {
				t.Errorf("%q became %q: %v", in, out, err)
			}
		}
		_, _ = split(a) // whatever a driver gives, there is no panic and no endless loop
	})
}

func TestWhatIsNoArrayIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{", "}", "a", "{,}", "{a,}", "{,a}", `{"a}`, `{"a"b}`, `{a"b}`, `{a\}`, `{"a\"}`, "{{a}}", "[0:1]={a,b}"} {
		if got, err := split(text); err == nil {
			t.Errorf("%s was taken apart into %d elements", text, len(got))
		}
	}
}
