package pgserver

import "strings"

// unavailable is the error that names the three ways to get a server and why each failed here. It
// fits on a screen of 80 columns and 24 lines, also inside the output of go test. Without url it
// names two: the caller wants a server of its own.
type unavailable struct {
	url, binaries, docker string
}

func (u *unavailable) Error() string {
	programs := "PostgreSQL's server programs (initdb, postgres)\n" +
		wrap(u.binaries) +
		"   e.g. apt-get install postgresql, or brew install postgresql@17\n"
	engine := "a Docker engine\n" +
		wrap(u.docker) +
		"   e.g. start Docker; JOBGEN_PG_IMAGE names another image"
	if u.url == "" {
		return ErrUnavailable.Error() + "; one of these is enough:\n\n1. " + programs + "\n2. " + engine
	}
	return ErrUnavailable.Error() + "; any one of these three is enough:\n" +
		"\n1. DATABASE_URL, a server on which you may create databases\n" +
		wrap(u.url) +
		"   e.g. export DATABASE_URL=postgres://postgres@localhost:5432/postgres\n" +
		"\n2. " + programs + "\n3. " + engine
}

func (u *unavailable) Unwrap() error { return ErrUnavailable }

// wrap lays a reason out in at most four lines of at most 72 columns. What does not fit is left
// out of the middle: an error starts with what was tried and ends with what went wrong.
func wrap(reason string) string {
	const columns, lines = 72, 4
	var out []string
	line := ""
	for _, word := range strings.Fields("→ " + reason) {
		for len(word) > columns {
			out, line, word = append(out, line+" "+word[:columns-len(line)-1]), "", word[columns-len(line)-1:]
		}
		if line != "" && len(line)+1+len(word) > columns {
			out, line = append(out, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	out = append(out, line)
	if len(out) > lines {
		out = append(append(out[:lines-2:lines-2], "…"), out[len(out)-1])
	}
	return "   " + strings.Join(out, "\n   ") + "\n"
}

// lastWords picks from a server's log why it ended: from the last fatal message on, or the last
// three lines.
func lastWords(log string) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	from := max(0, len(lines)-3)
	for i, line := range lines {
		if strings.Contains(line, "FATAL:") || strings.Contains(line, "PANIC:") {
			from = i
		}
	}
	return strings.Join(lines[from:], "\n")
}
