package sqldb

import (
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// values turns arguments into what every driver of Postgres takes alike: int64, bool, string, time.Time or nil.
func values(args []any) ([]any, error) {
	out := make([]any, len(args))
	for i, a := range args {
		v, known := value(a)
		if !known {
			return nil, refuse("argument $%d is a %T, which cannot go through database/sql; this is a bug in jobgen", i+1, a)
		}
		out[i] = v
	}
	return out, nil
}

func value(a any) (v any, known bool) {
	switch a := a.(type) {
	case nil, string, int64, float64, bool:
		return a, true
	case float32:
		return float64(a), true
	case int16:
		return int64(a), true
	case int32:
		return int64(a), true
	case time.Time:
		// pgx cuts off what is less than a microsecond, and the server would round what lib/pq sends.
		return a.Truncate(time.Microsecond), true
	case uuid.UUID:
		return a.String(), true
	case []byte: // JSON: jobgen has no bytea. As bytes it would be sent as such by drivers that do not know the parameter's type.
		if a == nil {
			return nil, true
		}
		return string(a), true
	case *string:
		return optional(a)
	case *int16:
		return optional(a)
	case *int32:
		return optional(a)
	case *int64:
		return optional(a)
	case *bool:
		return optional(a)
	case *time.Time:
		return optional(a)
	case *uuid.UUID:
		return optional(a)
	case []string:
		return array(a, quote)
	case []int16:
		return array(a, integer[int16])
	case []int32:
		return array(a, integer[int32])
	case []int64:
		return array(a, integer[int64])
	case []bool:
		return array(a, strconv.AppendBool)
	case []uuid.UUID:
		return array(a, func(b []byte, u uuid.UUID) []byte { return append(b, u.String()...) })
	case []time.Time:
		return array(a, func(b []byte, t time.Time) []byte {
			return t.UTC().AppendFormat(b, `"2006-01-02T15:04:05.000000Z"`)
		})
	}
	return nil, false
}

func optional[T any](p *T) (any, bool) {
	if p == nil {
		return nil, true
	}
	return value(*p)
}

// array is Postgres's text form of an array; a nil slice is NULL.
func array[T any](s []T, element func([]byte, T) []byte) (any, bool) {
	if s == nil {
		return nil, true
	}
	b := append(make([]byte, 0, 2+24*len(s)), '{')
	for i, e := range s {
		if i > 0 {
			b = append(b, ',')
		}
		b = element(b, e)
	}
	return string(append(b, '}')), true
}

func integer[T int16 | int32 | int64](b []byte, n T) []byte {
	return strconv.AppendInt(b, int64(n), 10)
}

// quote puts every text in quotes, so that none is taken for NULL, for a nested array or for white space.
func quote(b []byte, s string) []byte {
	b = append(b, '"')
	for {
		i := strings.IndexAny(s, `"\`)
		if i < 0 {
			return append(append(b, s...), '"')
		}
		b = append(b, s[:i]...)
		b = append(b, '\\', s[i])
		s = s[i+1:]
	}
}

// target is where database/sql scans what goes to dest.
func target(dest any) any {
	switch d := dest.(type) {
	case *[]string:
		return elements[string]{d}
	case *[]int16:
		return elements[int16]{d}
	case *[]int32:
		return elements[int32]{d}
	case *[]int64:
		return elements[int64]{d}
	case *[]bool:
		return elements[bool]{d}
	case *[]uuid.UUID:
		return elements[uuid.UUID]{d}
	}
	return dest // *[]byte and *time.Time as well, which are no arrays
}

// elements scans the text form of an array, which is what the drivers give.
type elements[T any] struct{ to *[]T }

func (e elements[T]) Scan(src any) error {
	var text string
	switch src := src.(type) {
	case nil:
		*e.to = nil
		return nil
	case string:
		text = src
	case []byte:
		text = string(src)
	default:
		return fmt.Errorf("jobs: the driver gives an array as %T", src)
	}
	parts, err := split(text)
	if err != nil {
		return err
	}
	out := make([]T, len(parts))
	for i, p := range parts {
		if p == nil {
			return fmt.Errorf("jobs: element %d of an array is NULL", i+1)
		}
		var one sql.Null[T]
		if err := one.Scan(*p); err != nil {
			return fmt.Errorf("jobs: element %d of an array: %w", i+1, err)
		}
		out[i] = one.V
	}
	*e.to = out
	return nil
}

// split takes the text form of an array of one dimension apart; NULL is nil.
func split(text string) ([]*string, error) {
	malformed := fmt.Errorf("jobs: %.100q is no array of one dimension", text)
	if len(text) < 2 || text[0] != '{' || text[len(text)-1] != '}' {
		return nil, malformed
	}
	rest := text[1 : len(text)-1]
	out := []*string{}
	for more := rest != ""; more; {
		var part strings.Builder
		i, quoted := 0, rest != "" && rest[0] == '"'
		if quoted {
			i = 1
		}
		for ; i < len(rest); i++ {
			c := rest[i]
			if quoted && c == '"' || !quoted && c == ',' {
				break
			}
			if !quoted && (c == '{' || c == '"') {
				return nil, malformed
			}
			if c == '\\' {
				if i++; i == len(rest) {
					return nil, malformed
				}
				c = rest[i]
			}
			part.WriteByte(c)
		}
		if quoted {
			if i == len(rest) {
				return nil, malformed
			}
			i++
		}
		switch s := part.String(); {
		case !quoted && s == "":
			return nil, malformed
		case !quoted && strings.EqualFold(s, "NULL"):
			out = append(out, nil)
		default:
			out = append(out, &s)
		}
		rest = rest[i:]
		if more = rest != ""; more {
			if rest[0] != ',' {
				return nil, malformed
			}
			rest = rest[1:]
		}
	}
	return out, nil
}
