package jobs

import (
	"encoding/hex"
	"strconv"
	"time"
)

// KeyBuilder builds an idempotency key out of fields. Each field is written with its type and length, so that no two lists
// of values give the same key, and nothing depends on a time zone, a locale or the order of JSON fields. The zero value
// is an empty key, ready to use.
type KeyBuilder struct{ b []byte }

// keyVersion starts each built key; another form of key would start with another.
const keyVersion = "1/"

func (k *KeyBuilder) field(tag byte, s string) *KeyBuilder {
	if len(k.b) == 0 {
		k.b = append(k.b, keyVersion...)
	}
	k.b = append(k.b, tag)
	k.b = strconv.AppendInt(k.b, int64(len(s)), 10)
	k.b = append(k.b, ':')
	k.b = append(k.b, s...)
	return k
}

func (k *KeyBuilder) String(s string) *KeyBuilder { return k.field('s', s) }
func (k *KeyBuilder) Int(n int64) *KeyBuilder     { return k.field('i', strconv.FormatInt(n, 10)) }
func (k *KeyBuilder) Uint(n uint64) *KeyBuilder   { return k.field('u', strconv.FormatUint(n, 10)) }
func (k *KeyBuilder) Bool(b bool) *KeyBuilder     { return k.field('b', strconv.FormatBool(b)) }
func (k *KeyBuilder) Bytes(b []byte) *KeyBuilder  { return k.field('x', hex.EncodeToString(b)) }

// Time writes the instant, whatever zone t is in.
func (k *KeyBuilder) Time(t time.Time) *KeyBuilder {
	return k.field('t', t.UTC().Format(time.RFC3339Nano))
}
