package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
)

func us(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// age is a duration in two units at most.
func age(d time.Duration) string {
	const day = 24 * time.Hour
	switch d = max(d, 0); {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < day:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
}

// num is a number with its thousands apart.
func num[T int | int32 | int64 | float64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func count[T int | int32 | int64](n T, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return num(n) + " " + many
}

// size is a number of bytes.
func size(n int64) string {
	units := []string{"bytes", "kB", "MB", "GB", "TB"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	if i == 0 || f >= 100 {
		return fmt.Sprintf("%.0f %s", f, units[i])
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
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
