// Package storable makes what comes from the application fit for the database, or says why it is not: JSON as jsonb takes
// it, and text without NUL and invalid UTF-8.
package storable

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// JSON encodes v in a form that the database stores as it is, of at most limit bytes. Refused, with the place, is what
// encoding/json lets through and jsonb does not (NUL, which it escapes; in a json.RawMessage also invalid UTF-8 and half a
// surrogate pair), and what it would change without a word (invalid UTF-8 in a string).
func JSON(v any, limit int) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(b) > limit {
		return nil, fmt.Errorf("is %d bytes of JSON; the limit is %d", len(b), limit)
	}
	if !utf8.Valid(b) {
		return nil, errors.New("has a json.RawMessage or a MarshalJSON that gives invalid UTF-8")
	}
	// Rare, so it may be slow. An escaped backslash before "u0000" is no NUL, and a U+FFFD may be meant.
	if bytes.Contains(b, []byte(`\u0000`)) || bytes.Contains(b, []byte(`\ufffd`)) {
		if path, problem := unstorable(reflect.ValueOf(v), ""); problem != "" {
			return nil, fmt.Errorf("%s: %s", strings.TrimPrefix(path, "."), problem)
		}
		var decoded any
		if json.Unmarshal(b, &decoded) == nil {
			if path, problem := unstorable(reflect.ValueOf(decoded), ""); problem != "" {
				return nil, fmt.Errorf("%s: %s", strings.TrimPrefix(path, "."), problem)
			}
		}
	}
	if half := halfPair(b); half != "" {
		return nil, fmt.Errorf("has a json.RawMessage or a MarshalJSON that gives %s, half of a surrogate pair", half)
	}
	return b, nil
}

// halfPair finds an escape in JSON that stands for half of a character outside the basic plane, without its other half.
func halfPair(b []byte) string {
	if !bytes.Contains(b, []byte(`\ud`)) && !bytes.Contains(b, []byte(`\uD`)) {
		return ""
	}
	surrogate := func(i int, from, to uint64) bool {
		if i+6 > len(b) || b[i] != '\\' || b[i+1] != 'u' {
			return false
		}
		n, err := strconv.ParseUint(string(b[i+2:i+6]), 16, 32)
		return err == nil && n >= from && n <= to
	}
	for i := 0; i < len(b); i++ {
		switch {
		case b[i] != '\\':
		case surrogate(i, 0xd800, 0xdbff) && surrogate(i+6, 0xdc00, 0xdfff):
			i += 11
		case surrogate(i, 0xd800, 0xdfff):
			return string(b[i : i+6])
		default:
			i++ // an escape of one character; \u0041 has nothing in it that could be taken for a backslash
		}
	}
	return ""
}

// Problem says what is wrong with a text that the database cannot store, or nothing.
func Problem(s string) string {
	if i := strings.IndexByte(s, 0); i >= 0 {
		return fmt.Sprintf("has a NUL at byte %d, which Postgres cannot store in text; use []byte for binary data", i)
	}
	if !utf8.ValidString(s) {
		return "is not valid UTF-8; use []byte for binary data"
	}
	return ""
}

var (
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// unstorable finds the first text in v that cannot be stored, and the way to it. It sees what encoding/json writes: not
// fields that are left out, and not the inside of what writes itself.
func unstorable(v reflect.Value, path string) (where, problem string) {
	if v.IsValid() && (v.Type().Implements(marshaler) || v.Type().Implements(textMarshaler)) {
		return "", ""
	}
	switch v.Kind() {
	case reflect.String:
		return path, Problem(v.String())
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return unstorable(v.Elem(), path)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); (f.IsExported() || f.Anonymous) && f.Tag.Get("json") != "-" {
				if where, problem = unstorable(v.Field(i), path+"."+f.Name); problem != "" {
					return where, problem
				}
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if where, problem = unstorable(it.Key(), path+".(key)"); problem != "" {
				return where, problem
			}
			if where, problem = unstorable(it.Value(), path+"."+fmt.Sprint(it.Key())); problem != "" {
				return where, problem
			}
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return "", ""
		}
		for i := range v.Len() {
			if where, problem = unstorable(v.Index(i), path+"["+strconv.Itoa(i)+"]"); problem != "" {
				return where, problem
			}
		}
	}
	return "", ""
}

// Text makes s storable: NUL and invalid UTF-8 are replaced by U+FFFD, and what is over limit bytes is cut out of its
// middle, because the cause stands at one end and the place at the other.
func Text(s string, limit int) string {
	if most := 4 * limit; len(s) > most { // cleaning megabytes for what is cut out anyway takes seconds
		s = s[:most/2] + s[len(s)-most/2:]
	}
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\ufffd"), "\ufffd")
	if len(s) <= limit {
		return s
	}
	const gap = "\n…\n"
	half := max(limit-len(gap), 0) / 2
	head, tail := s[:half], s[len(s)-half:]
	return strings.ToValidUTF8(head, "") + gap + strings.ToValidUTF8(tail, "")
}
