package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/internal/human"
)

func us(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// age tells less than a second too.
func age(d time.Duration) string {
	if 0 < d && d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return human.Age(d)
}

// clip cuts a text to n runes.
func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// list joins names, the first few of them.
func list(names []string) string {
	const most = 8
	if n := len(names); n > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n-most)
	}
	return strings.Join(names, ", ")
}

// ident is a name as SQL writes it. Left without quotes is only what is no keyword for sure: our own names, and such with _ in them.
func ident(name string) string {
	if simple.MatchString(name) && (strings.Contains(name, "_") || slices.ContainsFunc(expected(), func(t thing) bool { return t.rel == name })) && !keyword.MatchString(name) {
		return name
	}
	return pgx.Identifier{name}.Sanitize()
}

var (
	simple  = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)
	keyword = regexp.MustCompile(`^(current|session|system|localtime)_`)
)

// literal is a string constant of SQL that stays the same when it is printed on a terminal.
func literal(s string) string {
	quoted := strings.ReplaceAll(s, "'", "''")
	plain := func(r rune) bool { return unicode.IsGraphic(r) && r != unicode.ReplacementChar }
	if !strings.Contains(s, `\`) && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return "'" + quoted + "'"
	}
	var b strings.Builder
	for _, r := range quoted {
		switch {
		case r == '\\':
			b.WriteString(`\\`)
		case plain(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return "E'" + b.String() + "'"
}

// Argument is a word of a shell's command.
func Argument(s string) string {
	if s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !(r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)) || strings.ContainsRune("._:/-@", r))
	}) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// session is what is known of one, on one line.
func session(pid int32, role, application, state string, open time.Duration) string {
	parts := []string{fmt.Sprintf("pid %d", pid)}
	for _, p := range []string{role, application} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	if role != "" {
		parts[1] = "role " + role
	}
	if state != "" {
		parts = append(parts, state)
	}
	if open > 0 {
		parts = append(parts, "transaction open for "+age(open))
	}
	return strings.Join(parts, ", ")
}
