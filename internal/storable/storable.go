// Package storable makes what comes from the application fit for the database, or says why it is not: JSON as jsonb takes
// it, and text without NUL and invalid UTF-8.
package storable

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// JSON encodes v in a form that the database stores as it is, of at most limit bytes. encoding/json writes NUL as an escape, which jsonb refuses, and
// replaces invalid UTF-8 without a word: both are refused here, with the place.
func JSON(v any, limit int) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(b) > limit {
		return nil, fmt.Errorf("is %d bytes of JSON; the limit is %d", len(b), limit)
	}
	if bytes.Contains(b, []byte(`\u0000`)) || bytes.Contains(b, []byte(`\ufffd`)) {
		// Rare, so it may be slow. An escaped backslash before "u0000" is no NUL.
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
	return b, nil
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

// unstorable finds the first text in v that cannot be stored, and the way to it.
func unstorable(v reflect.Value, path string) (where, problem string) {
	switch v.Kind() {
	case reflect.String:
		return path, Problem(v.String())
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return unstorable(v.Elem(), path)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
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
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\ufffd"), "\ufffd")
	if len(s) <= limit {
		return s
	}
	const gap = "\n…\n"
	half := max(limit-len(gap), 0) / 2
	head, tail := s[:half], s[len(s)-half:]
	return strings.ToValidUTF8(head, "") + gap + strings.ToValidUTF8(tail, "")
}
