package storable

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// MaxKey is the longest key that is stored as it is, in bytes; a longer one is stored as its SHA-256.
const MaxKey = 200

// hashed begins the stored form of a key that cannot be stored as it is.
const hashed = "sha256:"

// Key is a key as it stands in the database: itself, or its hash if it is too long, not storable as text, or could be taken
// for the hash of another.
func Key(key string) string {
	if len(key) <= MaxKey && utf8.ValidString(key) && !strings.ContainsRune(key, 0) && !strings.HasPrefix(key, hashed) {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return hashed + hex.EncodeToString(sum[:])
}

// Hashed tells whether a key is of the form that Key gives to one that it cannot leave as it is.
func Hashed(key string) bool {
	digest, is := strings.CutPrefix(key, hashed)
	_, err := hex.DecodeString(digest)
	return is && err == nil && len(digest) == 2*sha256.Size
}
