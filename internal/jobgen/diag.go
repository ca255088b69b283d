package jobgen

import (
	"cmp"
	"fmt"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
)

// Diag is one mistake in the user's source (or one finding of Check), at the place where it is to be mended.
type Diag struct {
	Pos  token.Position
	Rule string // stable id, for filters and documentation
	Msg  string // what is wrong and what to write instead
	// Note: nothing is wrong here, but something is left to do. It stops nothing.
	Note bool
	// Subject is what an incompatible change is of, as accept takes it: KIND[.FIELD].
	Subject string
	// Paste is Go code that does what Msg asks for, if there is any.
	Paste string
}

// The rules, by the stage that reports them. Those of changes to what is stored are in rules.go.
const (
	ruleNearMiss  = "near-miss" // a comment that looks like a directive and is none
	rulePlacement = "placement" // a directive that is not on what it describes
	ruleUnknown   = "unknown"   // a verb or key that does not exist
	ruleRepeated  = "repeated"  // a second value
	ruleValue     = "value"     // a value that cannot be
	ruleMissing   = "missing"   // something required is not there
	ruleUpgrade   = "upgrade"   // a version of a payload that nothing reads
	ruleReserve   = "reserve"   // a field that must not come back
	ruleRegistry  = "registry"  // a package that RegisterAll cannot name
	ruleDuplicate = "duplicate" // one kind declared twice
	rulePayload   = "payload"   // a type that does not survive being stored as JSON
	ruleKey       = "key"       // a key that cannot be computed
	ruleCollision = "collision" // an emitted name that is taken
	ruleScaffold  = "scaffold"  // a handler that has no place to go
	ruleOutput    = "output"    // a jobs_gen.go that is not ours to write
	ruleSyntax    = "syntax"    // an annotated file that does not parse
	ruleStale     = "stale"     // Check: the output is missing or differs
	ruleOrphan    = "orphan"    // Check: output without kinds
	rulePattern   = "pattern"   // a package that is not ours to generate for
	ruleLock      = "lock"      // a lock that cannot be read, or was put together from two sides of a merge
)

// unparsed is said of a file from which something is needed, with the parser's words.
const unparsed = "%s: this file declares kinds, or what payloads are made of: mend it first"

// Format gives the diagnostic as path:line:col: message (rule), the path relative to dir where that is shorter. Code to
// paste follows, indented.
func (d Diag) Format(dir string) string {
	note := ""
	if d.Note {
		note = "note: "
	}
	s := fmt.Sprintf("%s:%d:%d: %s%s (%s)", shortPath(dir, d.Pos.Filename), d.Pos.Line, d.Pos.Column, note, d.Msg, d.Rule)
	for line := range strings.Lines(d.Paste) {
		s += "\n\t" + strings.TrimRight(line, "\n")
	}
	return s
}

// Stop tells whether any of the diagnostics is more than a note.
func Stop(list []Diag) bool {
	return slices.ContainsFunc(list, func(d Diag) bool { return !d.Note })
}

func shortPath(dir, path string) string {
	if rel, err := filepath.Rel(dir, path); err == nil && len(rel) < len(path) {
		return rel
	}
	return path
}

// diags collects. It is handed down the stages, so that one run reports everything it can see.
type diags struct {
	fset *token.FileSet
	list []Diag
}

func (ds *diags) add(pos token.Pos, rule, format string, args ...any) {
	// PositionFor, unadjusted: a //line comment must not send the reader to another file.
	ds.addAt(ds.fset.PositionFor(pos, false), rule, format, args...)
}

func (ds *diags) addAt(pos token.Position, rule, format string, args ...any) {
	ds.list = append(ds.list, Diag{Pos: pos, Rule: rule, Msg: fmt.Sprintf(format, args...)})
}

// note tells what is left to do, with the code for it.
func (ds *diags) note(pos token.Pos, rule, paste, format string, args ...any) {
	ds.list = append(ds.list, Diag{Pos: ds.fset.PositionFor(pos, false), Rule: rule, Msg: fmt.Sprintf(format, args...), Note: true, Paste: paste})
}

// sorted gives the diagnostics in file order, and one only where two kinds lead to the same mistake.
func (ds *diags) sorted() []Diag {
	slices.SortStableFunc(ds.list, func(a, b Diag) int {
		return cmp.Or(cmp.Compare(a.Pos.Filename, b.Pos.Filename), cmp.Compare(a.Pos.Line, b.Pos.Line),
			cmp.Compare(a.Pos.Column, b.Pos.Column), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Msg, b.Msg))
	})
	return slices.CompactFunc(ds.list, func(a, b Diag) bool { return a.Pos == b.Pos && a.Rule == b.Rule && a.Subject == b.Subject })
}

// didYouMean is "; did you mean x?" for the candidate nearest to got, or nothing if none is near.
func didYouMean(got string, candidates []string) string {
	best, least := "", 3
	for _, c := range candidates {
		if d := distance(strings.ToLower(got), strings.ToLower(c)); d < least && d < len(c) {
			best, least = c, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// distance counts the single-letter edits between a and b, a swap of neighbours counting as one.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
