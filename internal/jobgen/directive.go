package jobgen

import (
	"cmp"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// directive is one //job: line, split into words.
type directive struct {
	pos   token.Pos // of the slashes
	verb  word
	words []word
	bad   bool // the words could not be split, which has been reported
}

// word is one argument. A quoted one is unquoted here.
type word struct {
	pos    token.Pos
	text   string
	quoted bool
}

// scanComment splits a comment if it is a directive of ours. One that only looks like it is reported: a
// directive must never be ignored in silence.
func scanComment(ds *diags, c *ast.Comment) (directive, bool) {
	d, ok := ast.ParseDirective(c.Slash, c.Text)
	if !ok || d.Tool != "job" {
		if fix := nearMiss(c.Text); fix != "" {
			ds.add(c.Slash, ruleNearMiss, "this is not a directive and would be ignored; write %s", fix)
		} else if m := inBlock.FindStringSubmatchIndex(c.Text); m != nil && strings.HasPrefix(c.Text, "/*") {
			fix := strings.TrimSpace(strings.TrimSuffix(c.Text[m[2]:m[3]], "*/"))
			ds.add(c.Slash+token.Pos(m[2]), ruleNearMiss, "a directive within a /* comment */ is none and would be ignored; end the comment before it: %s", fix)
		}
		return directive{}, false
	}
	words, bad := splitArgs(d.ArgsPos, d.Args)
	if bad.IsValid() {
		ds.add(bad, ruleValue, "a quoted word must end with its quote and be followed by a space; write it without quotes, or close it")
	}
	return directive{d.Slash, word{pos: d.Slash + token.Pos(len("//job:")), text: d.Name}, words, bad.IsValid()}, true
}

// splitArgs is Directive.ParseArgs that also tells where a malformed quote begins, and which words were quoted.
func splitArgs(pos token.Pos, args string) (words []word, bad token.Pos) {
	for rest := args; ; {
		trimmed := strings.TrimLeftFunc(rest, unicode.IsSpace)
		pos += token.Pos(len(rest) - len(trimmed))
		if rest = trimmed; rest == "" {
			return words, token.NoPos
		}
		w := word{pos: pos}
		n := strings.IndexFunc(rest, unicode.IsSpace)
		if n < 0 {
			n = len(rest)
		}
		w.text = rest[:n]
		if rest[0] == '"' || rest[0] == '`' {
			q, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return nil, pos
			}
			w.text, _ = strconv.Unquote(q) // a quoted prefix unquotes
			w.quoted = true
			n = len(q)
			if r, _ := utf8.DecodeRuneInString(rest[n:]); n < len(rest) && !unicode.IsSpace(r) {
				return nil, pos
			}
		}
		words = append(words, w)
		pos += token.Pos(n)
		rest = rest[n:]
	}
}

// mentions are the bytes without which a file holds neither a directive nor a near miss.
var mentions = [][]byte{[]byte("job:"), []byte("Job:"), []byte("JOB:")}

var nearMissForm = regexp.MustCompile(`^(//|/\*)([ \t]*)(job|Job|JOB):([ \t]*)([A-Za-z]*)([^\n]*)`)

// inBlock finds a line that would be a directive if it were not within a /* comment */; an indented one is
// an example.
var inBlock = regexp.MustCompile(`(?m)^(//job:[a-z]+(?:[ \t].*)?)$`)

// nearMiss tells how to write a comment that was probably meant as a directive: // job:kind, //job: kind, //Job:kind,
// /*job:kind*/. With blanks on both sides of "job:" it is prose, unless a key=value follows.
func nearMiss(text string) (fix string) {
	m := nearMissForm.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	open, before, tool, after, name, rest := m[1], m[2], m[3], m[4], m[5], m[6]
	known := findVerb(strings.ToLower(name)) != nil && (rest == "" || strings.ContainsAny(rest[:1], " \t*"))
	switch {
	case known && (before == "" || after == "" || strings.Contains(rest, "=")):
		rest = strings.TrimSpace(strings.TrimSuffix(rest, "*/"))
		return strings.TrimSpace("//job:" + strings.ToLower(name) + " " + rest)
	case open == "//" && before == "" && tool == "job" && after == "":
		return "//job: and one of " + strings.Join(verbNames(), ", ")
	}
	return ""
}

// place is what a comment group stands on.
type place struct {
	spec   *ast.TypeSpec // the type it documents, if that may carry directives
	pkg    bool          // it documents the package
	misfit string        // else: what it stands on, and what to do about it
}

// annotated is a place with what its directives say.
type annotated struct {
	place
	annotation
	file *file
	pos  token.Pos // of the first directive
}

// readAnnotations parses every directive of the file.
func readAnnotations(ds *diags, f *file) (out []annotated) {
	places := findPlaces(f)
	for _, group := range f.ast.Comments {
		var found []directive
		for _, c := range group.List {
			if d, ok := scanComment(ds, c); ok {
				found = append(found, d)
			}
		}
		if len(found) == 0 {
			continue
		}
		p := places[group]
		if p.misfit == "" && p.spec == nil && !p.pkg {
			p.misfit = detachedFrom(ds, f, group)
		}
		if p.misfit != "" {
			for _, d := range found {
				ds.add(d.pos, rulePlacement, "%s", p.misfit)
			}
			continue
		}
		a := annotation{at: map[string]token.Pos{}}
		for _, d := range found {
			a.read(ds, d, p.pkg)
		}
		a.complete(ds)
		out = append(out, annotated{p, a, f, found[0].pos})
	}
	return out
}

// read adds one directive.
func (a *annotation) read(ds *diags, d directive, onPackage bool) {
	v := findVerb(d.verb.text)
	switch {
	case v == nil:
		ds.add(d.verb.pos, ruleUnknown, "there is no //job:%s%s (jobgen help keys lists what there is)", d.verb.text, didYouMean(d.verb.text, verbNames()))
		return
	case v.Package && !onPackage:
		ds.add(d.pos, rulePlacement, "//job:%s concerns the whole package: move it to the package's doc comment", v.Name)
		return
	case !v.Package && onPackage:
		ds.add(d.pos, rulePlacement, "//job:%s describes a type: move it to the type's doc comment", v.Name)
		return
	case v.Repeats:
		line := annotation{at: map[string]token.Pos{v.Name: d.pos}}
		line.readWords(ds, v, d)
		line.schedule.at = line.at
		a.schedules = append(a.schedules, line.schedule)
		if !a.has(v.Name) {
			a.at[v.Name] = d.pos
		}
		return
	case a.has(v.Name):
		ds.add(d.pos, ruleRepeated, "a second //job:%s: keep one", v.Name)
		return
	}
	a.at[v.Name] = d.pos
	a.readWords(ds, v, d)
}

// readWords adds what stands behind the verb.
func (a *annotation) readWords(ds *diags, v *verb, d directive) {
	if d.bad {
		return
	}
	rest := d.words
	if v.Arg != nil {
		rest = a.readArg(ds, v, d)
	}
	for _, w := range rest {
		a.readKey(ds, v, w)
	}
}

// readArg adds the word before the keys, or all of them where the verb takes many, and returns what is left.
func (a *annotation) readArg(ds *diags, v *verb, d directive) (rest []word) {
	isKey := func(w word) bool { return !w.quoted && strings.Contains(w.text, "=") }
	n := slices.IndexFunc(d.words, isKey)
	if n < 0 {
		n = len(d.words)
	}
	args, rest := d.words[:n], d.words[n:]
	switch {
	case n == 0:
		ds.add(d.verb.pos, ruleMissing, "//job:%s needs %s first: %s", v.Name, v.Arg.Value, v.Arg.Doc)
	case v.Arg.quoted() && !args[0].quoted:
		ds.add(args[0].pos, ruleValue, "write %s as one word in quotes: //job:%s %q", v.Arg.Value, v.Name, joinWords(args))
	case v.Arg.many():
		for _, w := range args {
			a.at[v.Name+"."+w.text] = w.pos
			a.store(ds, v.Arg, "", w)
		}
	default:
		a.at[v.Name+"."+v.Arg.Name] = args[0].pos
		a.store(ds, v.Arg, "", args[0])
		return d.words[1:]
	}
	return rest
}

func joinWords(words []word) string {
	var texts []string
	for _, w := range words {
		texts = append(texts, w.text)
	}
	return strings.Join(texts, " ")
}

// readKey adds one key=value or flag of verb v.
func (a *annotation) readKey(ds *diags, v *verb, w word) {
	name, value, hasValue := strings.Cut(w.text, "=")
	if w.quoted {
		ds.add(w.pos, ruleUnknown, "//job:%s takes no quoted word here: write key=value, without quotes", v.Name)
		return
	}
	k := v.find(name)
	at := v.Name + "." + name
	if k != nil && !a.has(at) {
		defer func() { a.at[at] = w.pos }() // it counts as written even when it is wrong: nothing is reported twice
	}
	switch {
	case k == nil && !hasValue:
		ds.add(w.pos, ruleUnknown, "%q is no key of //job:%s%s; keys are written key=value, without blanks", w.text, v.Name, didYouMean(name, v.keyNames()))
	case k == nil:
		ds.add(w.pos, ruleUnknown, "//job:%s has no key %q%s", v.Name, name, elsewhere(v, name))
	case a.has(at):
		ds.add(w.pos, ruleRepeated, "a second %s: keep one", name)
	case k.Value == "" && hasValue:
		ds.add(w.pos, ruleValue, "%s is a flag: write %[1]s alone", name)
	case k.Value != "" && value == "":
		ds.add(w.pos, ruleValue, "%s needs a value: write %[1]s=%s, without blanks around the equals sign", name, k.Value)
	case strings.ContainsAny(value, "\"`"):
		ds.add(w.pos+token.Pos(len(name)+1), ruleValue, "no value of %s has quotes or blanks in it: write %[1]s=%s", name, k.Value)
	default:
		if hasValue {
			w.pos += token.Pos(len(name) + 1)
			w.text = value
		}
		a.store(ds, k, name+"=", w)
	}
}

// store sets one value.
func (a *annotation) store(ds *diags, k *key, prefix string, w word) {
	switch err := k.set(a, w.text).(type) {
	case nil:
	case errAt:
		ds.add(w.pos+token.Pos(err.offset), ruleValue, "%v", err)
	case errWhole:
		ds.add(w.pos, ruleValue, "%v", err)
	default:
		ds.add(w.pos, ruleValue, "%s%s: %v", prefix, w.text, err)
	}
}

// complete checks what one line alone cannot show.
func (a *annotation) complete(ds *diags) {
	for _, v := range verbs {
		if pos, ok := a.at[v.Name]; ok && !v.Package && !a.has("kind") {
			ds.add(pos, ruleMissing, "//job:%s without //job:kind: declare the kind first, //job:kind NAME timeout=DURATION", v.Name)
			return
		}
	}
	a.completeSchedules(ds)
	if slices.Contains(a.was, a.name) {
		ds.add(a.at["was."+a.name], ruleDuplicate, "%s is the kind's present name: name only what it was before", a.name)
	}
	if a.has("reserve") && !a.has("reserve.fields") {
		ds.add(a.at["reserve"], ruleMissing, "//job:reserve needs fields=a,b: the JSON names that must not come back")
	}
	if a.has("retry") {
		a.completeRetry(ds)
	}
}

// completeSchedules fills in what the schedules leave open. Their names tell them apart, so they must differ.
func (a *annotation) completeSchedules(ds *diags) {
	if a.has("cron") && a.has("key") {
		ds.add(a.at["key"], ruleValue, "a kind on a schedule has no key: every tick carries the same payload, so only the first would run; remove this line, or declare a kind of its own for the schedule")
	}
	names := map[string]bool{}
	for i := range a.schedules {
		s := &a.schedules[i]
		_, named := s.at["cron.name"]
		switch {
		case !named && len(a.schedules) > 1:
			ds.add(s.at["cron"], ruleMissing, "one of %d schedules of the kind: give each a name of its own, name=nightly", len(a.schedules))
			continue
		case !named:
			s.name = a.name
		case names[s.name]:
			ds.add(s.at["cron.name"], ruleDuplicate, "the kind has a schedule %s already: give this one another name", s.name)
		}
		names[s.name] = true
		s.zone, s.missed = cmp.Or(s.zone, defaultZone), cmp.Or(s.missed, defaultMissed)
	}
}

// completeRetry fills in what the line leaves open, and refuses waits that contradict each other.
func (a *annotation) completeRetry(ds *diags) {
	if !a.has("retry.backoff") {
		a.backoff = "exp"
	}
	if !a.has("retry.base") {
		a.base = defaultBase
	}
	switch {
	case a.backoff == "const" && a.has("retry.max"):
		ds.add(a.at["retry.max"], ruleValue, "max= has no meaning with backoff=const, which never grows: remove it")
	case a.backoff == "const":
		a.max = a.base
	case !a.has("retry.max"):
		if a.max = defaultMax; a.base > a.max {
			ds.add(a.at["retry.base"], ruleValue, "base=%s is more than max, which is %s unless you write max=", spell(a.base), spell(a.max))
		}
	case a.max > 0 && a.base > a.max:
		ds.add(a.at["retry.max"], ruleValue, "max=%s is less than base=%s: raise it", spell(a.max), spell(a.base))
	}
}

// elsewhere tells which verb has the key that v does not, or which of v's keys is near.
func elsewhere(v *verb, name string) string {
	for _, other := range verbs {
		if other.Package == v.Package && other.find(name) != nil {
			return "; it belongs to //job:" + other.Name
		}
	}
	return didYouMean(name, v.keyNames())
}

// findPlaces tells of each comment group that belongs to a declaration what that is.
func findPlaces(f *file) map[*ast.CommentGroup]place {
	const typeOnly = "only the doc comment of a type declaration takes directives; this one is on "
	places := map[*ast.CommentGroup]place{}
	set := func(g *ast.CommentGroup, p place) {
		if _, taken := places[g]; g != nil && !taken {
			places[g] = p
		}
	}
	misfit := func(what string, groups ...*ast.CommentGroup) {
		for _, g := range groups {
			set(g, place{misfit: typeOnly + what})
		}
	}
	set(f.ast.Doc, place{pkg: true})
	top := map[ast.Decl]bool{}
	for _, d := range f.ast.Decls {
		top[d] = true
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			switch {
			case n.Tok == token.TYPE && !top[n]:
				set(n.Doc, place{misfit: "a type declared inside a function has no name elsewhere: move it to the package"})
			case n.Tok == token.TYPE && n.Lparen.IsValid():
				set(n.Doc, place{misfit: "this is on a group of types: give the type a declaration of its own, type X struct { … }"})
			case n.Tok == token.TYPE && len(n.Specs) == 1:
				set(n.Doc, place{spec: n.Specs[0].(*ast.TypeSpec)})
			case n.Tok == token.IMPORT:
				misfit("an import", n.Doc)
			default:
				misfit("a "+n.Tok.String()+" declaration", n.Doc)
			}
		case *ast.FuncDecl:
			misfit("func "+n.Name.Name, n.Doc)
		case *ast.TypeSpec:
			set(n.Doc, place{misfit: "type " + n.Name.Name + " stands in a group: give it a declaration of its own, type " + n.Name.Name + " struct { … }"})
			set(n.Comment, place{misfit: "this stands behind type " + n.Name.Name + ": move it to the line above the type"})
		case *ast.ValueSpec:
			misfit(n.Names[0].Name, n.Doc, n.Comment)
		case *ast.ImportSpec:
			misfit("an import", n.Doc, n.Comment)
		case *ast.Field:
			what := "a field"
			if len(n.Names) > 0 {
				what += ", " + n.Names[0].Name
			}
			misfit(what, n.Doc, n.Comment)
		}
		return true
	})
	return places
}

// detachedFrom explains a directive in a comment that documents nothing.
func detachedFrom(ds *diags, f *file, group *ast.CommentGroup) string {
	if group.End() < f.ast.Package {
		return "a blank line separates this from the package clause: remove the blank line"
	}
	for _, d := range f.ast.Decls {
		if d.Pos() <= group.Pos() && group.End() <= d.End() {
			return "this stands inside a declaration: move it to the doc comment of a type"
		}
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE && d.Pos() > group.End() {
			if separated := onlyBlanksAndComments(f, group.End(), start(g)); separated {
				return "a blank line separates this from type " + g.Specs[0].(*ast.TypeSpec).Name.Name + ": remove the blank line"
			}
			break
		}
	}
	return "this is on nothing: move it to the doc comment of a type, directly above it"
}

// start is where a declaration begins, its doc comment included.
func start(g *ast.GenDecl) token.Pos {
	if g.Doc != nil {
		return g.Doc.Pos()
	}
	return g.Pos()
}

func onlyBlanksAndComments(f *file, from, to token.Pos) bool {
	base := f.ast.FileStart
	for _, c := range f.ast.Comments {
		if c.Pos() >= from && c.End() <= to {
			if strings.TrimSpace(string(f.src[from-base:c.Pos()-base])) != "" {
				return false
			}
			from = c.End()
		}
	}
	return strings.TrimSpace(string(f.src[from-base:to-base])) == ""
}
