package jobgen

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// LockName is the file, one per module beside go.mod, that says what stored jobs look like.
const LockName = "jobs.lock.json"

// lockFormat is the format of the lock this jobgen writes, and the newest it reads.
const lockFormat = 1

const lockComment = "What stored jobs look like, kept by jobgen. Commit it; it is not for editing (go tool jobgen help lock)."

// lock is the content of a lock file: facts, one a line, each complete in itself, so that git merges most changes of two
// branches by itself and a diff reads without what is around it:
//
//	KIND/version            the payload's version
//	KIND/queue              where it waits
//	KIND/key                JSON paths and types of the key's fields, in order
//	KIND/was/NAME           an earlier name
//	KIND/reserved.NAME      a JSON name that must not come back
//	KIND/vN                 the payload of version N, as a whole: object
//	KIND/vN.PATH            one field of it; [] stands for the elements of a list, {} for those of a map
//	KIND/vN.PATH=NAME       one constant of the field's type
//	KIND/result, …          the same of the result
//	KIND/accepted/RULE.PATH an exception, see accept.go
//
// A fact is a string; an exception is an object.
type lock struct {
	facts    map[string]string
	accepted map[string]exception
	lines    map[string]int // where each is in the file
	repaired []string       // what was decided in merging two sides

	byKind map[string]map[string]string // the facts by kind; nil if they have to be sorted out again
}

// exception is one breaking change that somebody has accepted: from exactly one form to exactly one other.
type exception struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Reason string `json:"reason"`
	// Used: the lock has the new form, so the exception allows nothing any more. It stays as the record of why.
	Used bool `json:"used,omitempty"`
}

func newLock() *lock {
	return &lock{facts: map[string]string{}, accepted: map[string]exception{}, lines: map[string]int{}}
}

// format writes the lock: sorted, and ending in a line of its own without a comma, so that adding a fact changes no
// other line. Nil if it says nothing.
func (l *lock) format() []byte {
	if len(l.facts)+len(l.accepted) == 0 {
		return nil
	}
	var b bytes.Buffer
	write := func(v any) {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(v) // strings and structs of strings can be encoded
		b.Truncate(b.Len() - 1)
	}
	entries := map[string]any{}
	for key, fact := range l.facts {
		entries[key] = fact
	}
	for key, e := range l.accepted {
		entries[key] = e
	}
	entries["//"] = lockComment // sorts before every kind
	b.WriteString("{\n")
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		b.WriteString("  ")
		write(key)
		b.WriteString(": ")
		write(entries[key])
		b.WriteString(",\n")
	}
	fmt.Fprintf(&b, "  \"format\": %d\n}\n", lockFormat)
	return b.Bytes()
}

// lockError is what is wrong with a lock file, and where.
type lockError struct {
	line, col int
	msg       string
}

func (e *lockError) Error() string { return fmt.Sprintf("%d:%d: %s", e.line, e.col, e.msg) }

func (e *lockError) diag(path string) Diag {
	return Diag{Pos: token.Position{Filename: path, Line: e.line, Column: e.col}, Rule: ruleLock, Msg: e.msg}
}

const howToRestore = "restore it from the last commit (git checkout HEAD -- " + LockName + ") and run go tool jobgen ./... again"

// readLock reads a lock file. One with conflict markers is put together from both sides.
func readLock(data []byte) (*lock, error) {
	ours, theirs, base, conflict := splitConflict(string(data))
	if !conflict {
		return parseLock(data)
	}
	var sides []*lock
	for _, text := range []string{ours, theirs} {
		l, err := parseLock([]byte(text))
		if err != nil {
			return nil, err
		}
		sides = append(sides, l)
	}
	var b *lock
	if base != "" {
		var err error
		if b, err = parseLock([]byte(base)); err != nil {
			return nil, err
		}
	}
	return mergeLocks(sides[0], sides[1], b)
}

// splitConflict gives the two or, with merge.conflictStyle diff3, three files that git has put into one. Lines keep their
// numbers: what belongs to another side is empty.
func splitConflict(text string) (ours, theirs, base string, conflict bool) {
	var sides [3]strings.Builder
	const all = -1
	in, hasBase := all, false
	for line := range strings.Lines(text) {
		mark, _, _ := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
		switch {
		case mark == "<<<<<<<":
			in, conflict, line = 0, true, "\n"
		case mark == "|||||||" && in == 0:
			in, hasBase, line = 2, true, "\n"
		case mark == "=======" && in != all:
			in, line = 1, "\n"
		case mark == ">>>>>>>" && in == 1:
			in, line = all, "\n"
			for i := range sides {
				sides[i].WriteString(line)
			}
			continue
		}
		for i := range sides {
			if in == all || in == i {
				sides[i].WriteString(line)
			} else {
				sides[i].WriteString("\n")
			}
		}
	}
	if !hasBase {
		sides[2].Reset()
	}
	return sides[0].String(), sides[1].String(), sides[2].String(), conflict
}

// parseLock reads a lock without conflict markers. A fact that is there twice comes of a merge that kept both sides
// (merge=union in .gitattributes), and is decided like a conflict.
func parseLock(data []byte) (*lock, error) {
	l, twice := newLock(), newLock()
	fail := func(offset int64, format string, args ...any) error {
		line, col := position(data, offset)
		return &lockError{line, col, fmt.Sprintf(format, args...)}
	}
	// Checked as a whole first, for a decoder does not tell exactly where an error is.
	if se, bad := errors.AsType[*json.SyntaxError](json.Unmarshal(data, new(any))); bad {
		offset, msg := se.Offset-1, se.Error()
		if strings.HasPrefix(msg, "unexpected end") {
			offset, msg = int64(len(bytes.TrimRight(data, " \n\r\t"))), "it ends too early"
		}
		return nil, fail(offset, "this lock cannot be read: %s; %s", msg, howToRestore)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, _ := dec.Token(); t != json.Delim('{') {
		return nil, fail(0, "this lock cannot be read: it is not an object; %s", howToRestore)
	}
	format, formatAt := 0, int64(0)
	type pair struct {
		key   string
		at    int64
		value json.RawMessage
	}
	var pairs []pair
	for dec.More() {
		t, err := dec.Token()
		p := pair{at: dec.InputOffset()}
		p.key, _ = t.(string) // the names of an object are strings
		if encoded, err := json.Marshal(p.key); err == nil {
			p.at -= int64(len(encoded)) // where the name starts, if it has no unusual escapes
		}
		if err = errors.Join(err, dec.Decode(&p.value)); err != nil {
			return nil, fail(p.at, "this lock cannot be read: %v; %s", err, howToRestore)
		}
		if p.key == "format" {
			formatAt = p.at
			if json.Unmarshal(p.value, &format) != nil {
				return nil, fail(p.at, "the format is %s, not a number; %s", p.value, howToRestore)
			}
			continue
		}
		pairs = append(pairs, p)
	}
	switch {
	case format > lockFormat:
		return nil, fail(formatAt, "this lock has format %d, and this jobgen knows %d: it was written by a newer one; run go get -tool github.com/jobgen-go/jobgen/cmd/jobgen@latest", format, lockFormat)
	case format < 1:
		return nil, fail(0, "this is no lock of jobgen's: it has no format; move it away if it is something else, or else %s", howToRestore)
	}
	for _, p := range pairs {
		if strings.HasPrefix(p.key, "//") {
			continue
		}
		into := l
		if _, dup := l.lines[p.key]; dup {
			into = twice
		}
		into.lines[p.key], _ = position(data, p.at)
		var err error
		if factKind(p.key) == kindException {
			var e exception
			err = json.Unmarshal(p.value, &e)
			into.accepted[p.key] = e
		} else {
			var s string
			err = json.Unmarshal(p.value, &s)
			into.facts[p.key] = s
		}
		if err != nil || factKind(p.key) == "" {
			return nil, fail(p.at, "%s is not a fact that jobgen writes; %s", strings.TrimSpace(p.key+" "+string(p.value)), howToRestore)
		}
	}
	if len(twice.lines) > 0 {
		return mergeLocks(l, overlay(l, twice), nil)
	}
	for name := range l.kinds() {
		if _, err := l.stored(name); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// overlay is the other side of a file that has some lines twice.
func overlay(l, twice *lock) *lock {
	o := &lock{facts: maps.Clone(l.facts), accepted: maps.Clone(l.accepted), lines: maps.Clone(l.lines)}
	maps.Copy(o.facts, twice.facts)
	maps.Copy(o.accepted, twice.accepted)
	maps.Copy(o.lines, twice.lines)
	return o
}

func position(data []byte, offset int64) (line, col int) {
	before := data[:min(max(offset, 0), int64(len(data)))]
	return bytes.Count(before, []byte("\n")) + 1, len(before) - bytes.LastIndexByte(before, '\n')
}

// What a fact is about.
const (
	kindHeader    = "header" // version, queue, key
	kindWas       = "was"
	kindReserved  = "reserved"
	kindPayload   = "payload"
	kindResult    = "result"
	kindException = "exception"
)

// factKind tells what the fact of that key is about, "" if it is none.
func factKind(key string) string {
	name, rest, ok := strings.Cut(key, "/")
	if !ok || checkName(name) != nil {
		return ""
	}
	switch {
	case rest == "version", rest == "queue", rest == "key":
		return kindHeader
	case strings.HasPrefix(rest, "was/"):
		return kindWas
	case strings.HasPrefix(rest, "reserved."):
		return kindReserved
	case strings.HasPrefix(rest, "accepted/"):
		return kindException
	}
	tree, path := cutTree(rest)
	if _, _, err := splitPath(path); err != nil {
		return ""
	}
	if tree == "result" {
		return kindResult
	}
	if n, err := strconv.Atoi(strings.TrimPrefix(tree, "v")); err == nil && tree == "v"+strconv.Itoa(n) && n > 0 {
		return kindPayload
	}
	return ""
}

// cutTree splits v1.a.b into v1 and .a.b.
func cutTree(rest string) (tree, path string) {
	if i := strings.IndexAny(rest, ".="); i >= 0 {
		return rest[:i], rest[i:]
	}
	return rest, ""
}

// kinds are the kinds in the lock, with their facts.
func (l *lock) kinds() map[string]map[string]string {
	if l.byKind == nil {
		l.byKind = map[string]map[string]string{}
		for key, fact := range l.facts {
			name, _, _ := strings.Cut(key, "/")
			if l.byKind[name] == nil {
				l.byKind[name] = map[string]string{}
			}
			l.byKind[name][key] = fact
		}
	}
	return l.byKind
}

// stored is one kind as the lock has it.
type stored struct {
	version    int
	queue, key string
	was        []string
	reserved   []string
	payloads   map[int]*node
	result     *node // nil if it has none
}

// stored gives the kind of that name, or nil if the lock has none.
func (l *lock) stored(name string) (*stored, error) {
	s := &stored{payloads: map[int]*node{}}
	trees := map[string]map[string]string{}
	for key, fact := range l.of(name) {
		rest := key[len(name)+1:]
		switch factKind(key) {
		case kindHeader:
			switch rest {
			case "version":
				n, err := strconv.Atoi(fact)
				if err != nil || n < 1 {
					return nil, l.bad(key, "%q is no version", fact)
				}
				s.version = n
			case "queue":
				s.queue = fact
			case "key":
				s.key = fact
			}
		case kindWas:
			s.was = append(s.was, strings.TrimPrefix(rest, "was/"))
		case kindReserved:
			s.reserved = append(s.reserved, strings.TrimPrefix(rest, "reserved."))
		default:
			tree, path := cutTree(rest)
			if trees[tree] == nil {
				trees[tree] = map[string]string{}
			}
			trees[tree][path] = fact
		}
	}
	if len(trees) == 0 && s.version == 0 {
		return nil, nil
	}
	slices.Sort(s.was)
	slices.Sort(s.reserved)
	for tree, facts := range trees {
		root, path, err := parseTree(facts)
		if err != nil {
			return nil, l.bad(name+"/"+tree+path, "%w", err)
		}
		if tree == "result" {
			s.result = root
		} else {
			n, _ := strconv.Atoi(tree[1:]) // factKind has seen to it
			s.payloads[n] = root
		}
	}
	if s.payloads[s.version] == nil {
		return nil, l.bad(name+"/version", "there is no payload of version %d", s.version)
	}
	return s, nil
}

// bad reports a fact that is not what jobgen writes.
func (l *lock) bad(key, format string, args ...any) error {
	return &lockError{max(l.lines[key], 1), 3, fmt.Errorf(key+": "+format+"; "+howToRestore, args...).Error()}
}

// of are the facts of one kind.
func (l *lock) of(name string) map[string]string { return l.kinds()[name] }

// drop takes a kind out, its exceptions too.
func (l *lock) drop(name string) {
	l.byKind = nil
	under := func(key string) bool { return strings.HasPrefix(key, name+"/") }
	maps.DeleteFunc(l.facts, func(key, _ string) bool { return under(key) })
	maps.DeleteFunc(l.accepted, func(key string, _ exception) bool { return under(key) })
}

// put stores a kind.
func (l *lock) put(name string, s *stored) {
	l.byKind = nil
	set := func(rest, fact string) { l.facts[name+"/"+rest] = fact }
	set("version", strconv.Itoa(s.version))
	set("queue", s.queue)
	if s.key != "" {
		set("key", s.key)
	}
	for _, was := range s.was {
		set("was/"+was, "kind")
	}
	for _, r := range s.reserved {
		set("reserved."+r, "field")
	}
	for n, root := range s.payloads {
		root.flatten("", func(path, fact string) { set("v"+strconv.Itoa(n)+path, fact) })
	}
	if s.result != nil {
		s.result.flatten("", func(path, fact string) { set("result"+path, fact) })
	}
}

// mergeLocks puts two sides of a merge together: what either has, since jobs of both may be stored. If base is known,
// what one side has removed or changed and the other has left alone is as that side has it. Where both have changed one
// fact, the one that tells more of what may be stored is taken if that can be told; else it is an error.
func mergeLocks(ours, theirs, base *lock) (*lock, error) {
	m := newLock()
	keep := func(from *lock, key string) {
		m.lines[key] = from.lines[key]
		if e, ok := from.accepted[key]; ok {
			m.accepted[key] = e
		}
		if f, ok := from.facts[key]; ok {
			m.facts[key] = f
		}
	}
	same := func(a, b *lock, key string) bool {
		fa, inA := a.facts[key]
		fb, inB := b.facts[key]
		ea, exA := a.accepted[key]
		eb, exB := b.accepted[key]
		return inA == inB && exA == exB && fa == fb && ea == eb
	}
	keys := slices.Concat(slices.Collect(maps.Keys(ours.lines)), slices.Collect(maps.Keys(theirs.lines)))
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		_, inOurs := ours.lines[key]
		_, inTheirs := theirs.lines[key]
		switch {
		case inOurs && inTheirs && same(ours, theirs, key):
			keep(ours, key)
		case base != nil && same(ours, base, key):
			keep(theirs, key)
		case base != nil && same(theirs, base, key):
			keep(ours, key)
		case !inTheirs:
			keep(ours, key)
		case !inOurs:
			keep(theirs, key)
		default:
			from, err := decide(ours, theirs, key)
			if err != nil {
				return nil, err
			}
			keep(from, key)
			if _, ok := m.facts[key]; ok {
				m.repaired = append(m.repaired, fmt.Sprintf("%s was both %q and %q: took %[4]q", key, ours.facts[key], theirs.facts[key], m.facts[key]))
			}
		}
	}
	m.tidy()
	for name := range m.kinds() {
		if _, err := m.stored(name); err != nil {
			return nil, err
		}
	}
	if m.repaired == nil {
		m.repaired = []string{}
	}
	return m, nil
}

// decide chooses the side whose fact covers what the other side may have stored.
func decide(ours, theirs *lock, key string) (*lock, error) {
	name, rest, _ := strings.Cut(key, "/")
	a, b := ours.facts[key], theirs.facts[key]
	prefer := func(first bool) (*lock, error) {
		if first {
			return ours, nil
		}
		return theirs, nil
	}
	unsure := &lockError{ours.lines[key], 3, fmt.Sprintf("both sides of the merge changed %s, to %q and to %q, and jobs of both forms may be stored: delete the line of the side that was never deployed and the conflict markers around it, then run go tool jobgen ./...", key, a, b)}
	switch factKind(key) {
	case kindException:
		ea, eb := ours.accepted[key], theirs.accepted[key]
		switch sameChange := ea.From == eb.From && ea.To == eb.To; {
		case sameChange:
			return prefer(ea.Used || !eb.Used) // it is used up on both sides
		case !ea.Used && !eb.Used:
			unsure.msg = fmt.Sprintf("both sides of the merge accepted a change at %s, and not the same: delete both lines and accept again what is to be", key)
			return nil, unsure
		}
		return prefer(!ea.Used || eb.Used) // what still allows something is needed
	case kindHeader:
		switch rest {
		case "version":
			va, _ := strconv.Atoi(a)
			vb, _ := strconv.Atoi(b)
			return prefer(va >= vb)
		case "queue":
			return prefer(true) // a queue that was left is only a notice
		}
		return nil, unsure
	case kindWas, kindReserved:
		return prefer(true)
	}
	// A side that has accepted just this change, or removed the field, knows what the other did not.
	tree, path := cutTree(rest)
	for _, side := range []*lock{ours, theirs} {
		other := theirs
		if side == theirs {
			other = ours
		}
		for k, e := range side.accepted {
			if _, place, ok := exceptionOf(name, k); ok && place == placeOf(tree, path) && e.Used && e.From == other.facts[key] && e.To == side.facts[key] {
				return side, nil
			}
		}
	}
	na, errA := parseNode(a)
	nb, errB := parseNode(b)
	if errA != nil || errB != nil || strings.Contains(path, "=") {
		return nil, unsure
	}
	if na.wire.String() == nb.wire.String() {
		if na.gone != nb.gone {
			return prefer(na.gone)
		}
		return prefer(!na.optional) // what is always there is missed most
	}
	aFits, bFits := !slices.ContainsFunc(valueRules(na.wire, nb.wire), isBreaking), !slices.ContainsFunc(valueRules(nb.wire, na.wire), isBreaking)
	if aFits != bFits && !na.gone && !nb.gone {
		return prefer(bFits) // b does not read all of a
	}
	return nil, unsure
}

// placeOf is how a fact's place is written after the name of its kind: .a.b in a payload, /result.a.b in a result.
func placeOf(tree, path string) string {
	if tree == "result" {
		return "/result" + path
	}
	return path
}

// exceptionKey is where the exception to a rule is stored; subject is KIND and a place, if the change has one.
func exceptionKey(kind, rule, subject string) string {
	return kind + "/accepted/" + rule + strings.TrimPrefix(subject, kind)
}

// exceptionOf takes an exceptionKey apart.
func exceptionOf(kind, key string) (rule, place string, ok bool) {
	rest, ok := strings.CutPrefix(key, kind+"/accepted/")
	if i := strings.IndexAny(rest, "./="); i >= 0 {
		return rest[:i], rest[i:], ok
	}
	return rest, "", ok
}

func isBreaking(id string) bool { return findRule(id).Class == Breaking }

// tidy takes out what a union has left without a place: fields within something that is of another form now.
func (l *lock) tidy() {
	for again := true; again; {
		again = false
		for key := range l.facts {
			if k := factKind(key); k != kindPayload && k != kindResult {
				continue
			}
			if parent, ok := l.parent(key); ok && !parent {
				delete(l.facts, key)
				again = true
			}
		}
	}
}

// parent tells whether the fact of what holds a field is there and of the form that holds it; ok is false for the root.
func (l *lock) parent(key string) (there, ok bool) {
	cut := lastName(key)
	if cut < 0 {
		return true, false
	}
	holder := key[:cut]
	inside := ""
	for strings.HasSuffix(holder, "[]") || strings.HasSuffix(holder, "{}") {
		inside = holder[len(holder)-2:] + inside
		holder = holder[:len(holder)-2]
	}
	fact, found := l.facts[holder]
	n, err := parseNode(fact)
	if !found || err != nil || n.inside() != inside {
		return false, true
	}
	if key[cut] == '=' {
		return !n.base().isObject(), true
	}
	return n.base().name == wireObject, true
}

// lastName is where the last .NAME or =NAME of a fact's key begins; -1 if it has none.
func lastName(key string) int {
	slash := strings.IndexByte(key, '/')
	_, path := cutTree(key[slash+1:])
	start := len(key) - len(path)
	last := -1
	for i := start; i < len(key); {
		switch {
		case key[i] == '=':
			return i
		case strings.HasPrefix(key[i:], `."`):
			last = i
			quoted, err := strconv.QuotedPrefix(key[i+1:])
			if err != nil {
				return last
			}
			i += 1 + len(quoted)
		case key[i] == '.':
			last = i
			i++
		default:
			i++
		}
	}
	return last
}

// lockManual is jobgen help lock.
const lockManual = `jobs.lock.json says what the jobs that are stored look like, one fact a line, one file beside each go.mod. jobgen reads and
writes it together with jobs_gen.go; commit it like that. It is what "jobgen check" compares with.

Each line is whole in itself:

  "billing.charge_card/version": "1"                  the payload's version
  "billing.charge_card/queue": "billing"
  "billing.charge_card/key": "order_id string"        the key's fields, in their order
  "billing.charge_card/was/charge_card": "kind"       an earlier name
  "billing.charge_card/reserved.amount": "field"      a JSON name that must not come back
  "billing.charge_card/v1.items[].sku": "string"      a field of the payload; [] is within a list, {} within a map
  "billing.charge_card/v1.note": "string,optional"    one that may be missing (omitempty, omitzero, an embedded pointer)
  "billing.charge_card/v1.memo": "gone string"        one that was removed: the name must not come back as something else
  "billing.charge_card/v1.state=Paid": "2"            a constant of the field's type
  "billing.charge_card/result.number": "string"       the same of the result
  "billing.charge_card/accepted/int-narrowed.cents"   an exception: from which form to which, and why

Names of Go types are not in it, except of types that write themselves. What MarshalJSON and MarshalText do is their own
business: if what they write changes, nothing here can tell. Constants of a type are those declared with it in its
package; unexported ones count only if there are no exported ones.

When two branches are merged, git puts most changes together by itself. Conflict markers are no harm either: jobgen takes
what either side has, and says what it decided. It stops where both sides gave one field two forms, of which jobs may be
stored. With this line in .gitattributes there are no markers at all, and the same happens:

  jobs.lock.json merge=union

An exception (jobgen accept) allows one change from exactly one form to exactly one other. The next run of jobgen uses it
up; the line then stays as the record of why.
`
