package jobgen

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// wire is the form of one JSON value, spelled much like the Go type that writes it: *int64, []object, map[string]float64.
// Names of Go types are not in it, for they are not on the wire; but for types that write themselves the name is all
// there is to know: text(net/netip.Addr).
type wire struct {
	op   byte   // 0, '*' (may be null), '[' (list), 'a' (array), 'm' (map)
	n    int    // elements of an array
	name string // of the base; of a map, what its keys are
	elem *wire
}

// The bases that are not named after a basic type of Go. Those are bool, string, int8 and so on.
const (
	wireObject   = "object"   // a struct; its fields are facts of their own
	wireBytes    = "bytes"    // []byte: a string in base64
	wireTime     = "time"     // time.Time: a string in RFC 3339
	wireDuration = "duration" // time.Duration: a number of nanoseconds
	wireJSON     = "json"     // json.RawMessage: anything
	wireNumber   = "number"   // json.Number: any number
	wireQuoted   = "quoted "  // before a base: the option ,string of the tag
)

func (w wire) String() string {
	switch w.op {
	case '*':
		return "*" + w.elem.String()
	case '[':
		return "[]" + w.elem.String()
	case 'a':
		return fmt.Sprintf("[%d]%s", w.n, w.elem)
	case 'm':
		return "map[" + w.name + "]" + w.elem.String()
	}
	return w.name
}

// parseWire reads what String writes.
func parseWire(s string) (w wire, err error) {
	elem := func(rest string) error {
		e, err := parseWire(rest)
		w.elem = &e
		return err
	}
	switch {
	case s == "":
		return w, fmt.Errorf("no type")
	case s[0] == '*':
		w.op = '*'
		return w, elem(s[1:])
	case strings.HasPrefix(s, "[]"):
		w.op = '['
		return w, elem(s[2:])
	case s[0] == '[':
		n, rest, _ := strings.Cut(s[1:], "]")
		w.op = 'a'
		if w.n, err = strconv.Atoi(n); err != nil || w.n < 0 {
			return w, fmt.Errorf("%q is no type", s)
		}
		return w, elem(rest)
	case strings.HasPrefix(s, "map["):
		key, rest, ok := cutKey(s[len("map["):])
		if !ok {
			return w, fmt.Errorf("%q is no type", s)
		}
		w.op, w.name = 'm', key
		return w, elem(rest)
	}
	w.name = s
	return w, nil
}

// cutKey splits "key]elem" at the bracket that ends the key, which may itself be an instance with brackets.
func cutKey(s string) (key, rest string, ok bool) {
	depth := 0
	for i, r := range s {
		switch r {
		case '[':
			depth++
		case ']':
			if depth--; depth < 0 {
				return s[:i], s[i+1:], true
			}
		}
	}
	return "", "", false
}

// base is what is left without pointers, lists and maps.
func (w wire) base() wire {
	for w.elem != nil {
		w = *w.elem
	}
	return w
}

// inside is what comes between a field's path and the paths of what it holds: [] for the elements of a list, {} of a map.
func (w wire) inside() (s string) {
	for ; w.elem != nil; w = *w.elem {
		switch w.op {
		case '[', 'a':
			s += "[]"
		case 'm':
			s += "{}"
		}
	}
	return s
}

// opaque tells whether a type of that name writes the value, not encoding/json.
func (w wire) opaque() bool {
	return w.op == 0 && (strings.HasPrefix(w.name, "text(") || strings.HasPrefix(w.name, "custom("))
}

// node is a field as stored, or the whole payload.
type node struct {
	wire
	optional bool // may be missing where it is written
	gone     bool // no longer written; only in the lock, so that the name does not come back as something else
	fields   map[string]*node
	enum     map[string]string // values by the constant's name, of a defined type with constants
	enumAt   map[string]token.Pos
	pos      token.Pos // of the field
	within   token.Pos // of the type that has the fields
}

// spell is the node as one fact of the lock.
func (n *node) spell() string {
	s := n.wire.String()
	if n.optional {
		s += ",optional"
	}
	if n.gone {
		s = "gone " + s
	}
	return s
}

func parseNode(s string) (n *node, err error) {
	n = &node{}
	s, n.gone = strings.CutPrefix(s, "gone ")
	s, n.optional = strings.CutSuffix(s, ",optional")
	n.wire, err = parseWire(s)
	return n, err
}

// flatten gives the facts of n and what is in it, by path.
func (n *node) flatten(path string, put func(path, fact string)) {
	put(path, n.spell())
	path += n.inside()
	for name, value := range n.enum {
		put(path+"="+name, value)
	}
	for name, f := range n.fields {
		if n.base().name == wireObject { // same(…) refers to fields that are written elsewhere
			f.flatten(path+"."+pathName(name), put)
		}
	}
}

// pathName writes a JSON name in a path, in quotes if it is not made of letters, digits, _ and -.
func pathName(name string) string {
	plain := func(r rune) bool {
		return r == '_' || r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
	}
	if name == "" || strings.TrimFunc(name, plain) != "" {
		return strconv.Quote(name)
	}
	return name
}

// splitPath splits .a[].b=C into its fields' names and the constant's.
func splitPath(path string) (names []string, constant string, err error) {
	for path != "" {
		switch {
		case path[0] == '=':
			return names, path[1:], nil
		case strings.HasPrefix(path, "[]"), strings.HasPrefix(path, "{}"):
			path = path[2:]
		case strings.HasPrefix(path, `."`):
			quoted, err := strconv.QuotedPrefix(path[1:])
			if err != nil {
				return nil, "", fmt.Errorf("%q is no path", path)
			}
			name, _ := strconv.Unquote(quoted) // a quoted prefix unquotes
			names, path = append(names, name), path[1+len(quoted):]
		case path[0] == '.':
			end := strings.IndexAny(path[1:], ".[{=")
			if end < 0 {
				end = len(path) - 1
			}
			names, path = append(names, path[1:1+end]), path[1+end:]
		default:
			return nil, "", fmt.Errorf("%q is no path", path)
		}
	}
	return names, "", nil
}

// parseTree puts facts together again. They are sorted by path here, so that what holds a field comes before it.
func parseTree(facts map[string]string) (root *node, bad string, err error) {
	for _, path := range slices.Sorted(maps.Keys(facts)) {
		names, constant, err := splitPath(path)
		if err != nil {
			return nil, path, err
		}
		at := root
		last := ""
		if constant == "" && len(names) > 0 {
			names, last = names[:len(names)-1], names[len(names)-1]
		}
		for _, name := range names {
			if at != nil {
				at = at.fields[name]
			}
		}
		switch {
		case path != "" && at == nil:
			return nil, path, fmt.Errorf("there is no fact about what holds it")
		case constant != "":
			if at.enum == nil {
				at.enum = map[string]string{}
			}
			at.enum[constant] = facts[path]
			continue
		}
		n, err := parseNode(facts[path])
		if err != nil {
			return nil, path, err
		}
		if path == "" {
			root = n
			continue
		}
		if at.fields == nil {
			at.fields = map[string]*node{}
		}
		at.fields[last] = n
	}
	if root == nil {
		return nil, "", fmt.Errorf("there is no fact about the whole")
	}
	return root, "", root.link(nil)
}

// link makes same(path) refer to the fields at that path, above: recursive types have no end otherwise. above are the
// objects around n.
func (n *node) link(above []*node) error {
	path, refers := cutSame(n.base().name)
	if refers {
		for _, a := range above {
			// Objects are identified by their path from the root, which is how they are found again.
			if a.fields != nil && pathOf(above, a) == path {
				n.fields = a.fields
				return nil
			}
		}
		return fmt.Errorf("nothing above it is at %s", path)
	}
	for _, f := range n.fields {
		if err := f.link(append(slices.Clone(above), n)); err != nil {
			return err
		}
	}
	return nil
}

// pathOf is the path of the object that is one of a chain of nodes, each within the one before.
func pathOf(chain []*node, of *node) string {
	path := ""
	for i, n := range chain {
		if i > 0 {
			for name, f := range chain[i-1].fields {
				if f == n {
					path += "." + pathName(name)
				}
			}
		}
		path += n.inside()
		if n == of {
			break
		}
	}
	if path == "" {
		return "."
	}
	return path
}

func cutSame(name string) (path string, ok bool) {
	path, ok = strings.CutPrefix(name, "same(")
	return strings.TrimSuffix(path, ")"), ok
}

// maxFacts bounds a payload: a lock that nobody can read guards nothing. Types that refer to each other in circles can
// have very many paths.
const maxFacts = 2000

// wireBuilder walks a checked payload as payloadCheck does, and notes what encoding/json makes of it.
type wireBuilder struct {
	*payloadCheck
	around []around // the structs being walked
	count  int
}

type around struct {
	t      types.Type
	path   string
	fields map[string]*node
}

// payloadWire is the form of the named type of p; nil if it has too many fields, which is reported at pos.
func payloadWire(ds *diags, r *resolver, p *pkg, name string, pos token.Pos) *node {
	t := r.check(p).Scope().Lookup(name).Type()
	b := &wireBuilder{payloadCheck: &payloadCheck{ds: ds, r: r, pkg: p, anchor: pos}}
	root := &node{pos: pos}
	root.wire = b.value(root, t, "", false)
	if b.count > maxFacts {
		ds.add(pos, rulePayload, "%s has more than %d fields when what is nested in it is counted: store the nested part as json.RawMessage, or under an id of its own", name, maxFacts)
		return nil
	}
	return root
}

// value gives the form of t, and fills in what n has to know about the object or the constants in it.
func (b *wireBuilder) value(n *node, t types.Type, path string, quoted bool) wire {
	t = types.Unalias(t)
	if p, ok := t.Underlying().(*types.Pointer); ok {
		w := b.value(n, p.Elem(), path, quoted)
		if w.op == '*' { // a pointer to a pointer is null or not, too
			return w
		}
		return wire{op: '*', elem: &w}
	}
	if name := b.special(t); name != "" {
		return wire{name: name}
	}
	switch u := t.Underlying().(type) {
	case *types.Basic:
		n.enum, n.enumAt = b.constants(t)
		name := types.Typ[u.Kind()].Name() // uint8 for byte
		if quoted && u.Kind() <= types.String {
			name = wireQuoted + name
		}
		return wire{name: name}
	case *types.Slice:
		if e, ok := u.Elem().Underlying().(*types.Basic); ok && e.Kind() == types.Uint8 && b.marshaller(u.Elem()) == nil {
			return wire{name: wireBytes}
		}
		w := b.value(n, u.Elem(), path+"[]", false)
		return wire{op: '[', elem: &w}
	case *types.Array:
		w := b.value(n, u.Elem(), path+"[]", false)
		return wire{op: 'a', n: int(u.Len()), elem: &w}
	case *types.Map:
		w := b.value(n, u.Elem(), path+"{}", false)
		return wire{op: 'm', name: b.mapKeyWire(u.Key()), elem: &w}
	case *types.Struct:
		for _, a := range b.around {
			if types.Identical(a.t, t) {
				n.fields = a.fields
				return wire{name: "same(" + a.path + ")"}
			}
		}
		n.fields = map[string]*node{}
		b.around = append(b.around, around{t, cmp.Or(path, "."), n.fields})
		before := b.anchor
		if named, ok := t.(*types.Named); ok && b.r.m.ours(named.Obj().Pkg()) {
			n.within = named.Obj().Pos()
		}
		for name, f := range b.wireFields(u, before) {
			if b.count++; b.count > maxFacts {
				break
			}
			b.anchor = f.pos
			field := &node{pos: f.pos}
			field.wire = b.value(field, f.t, path+"."+pathName(name), f.quoted)
			field.optional = f.optional
			n.fields[name] = field
		}
		b.anchor = before
		b.around = b.around[:len(b.around)-1]
		return wire{name: wireObject}
	}
	return wire{name: types.TypeString(t, nil)} // not reached: payloadCheck refuses all else
}

// special are the types that do not look on the wire like what they are made of.
func (b *wireBuilder) special(t types.Type) string {
	if named, ok := t.(*types.Named); ok && named.Obj().Pkg() != nil {
		switch named.Obj().Pkg().Path() + "." + named.Obj().Name() {
		case "time.Time":
			return wireTime
		case "time.Duration":
			return wireDuration
		case "encoding/json.RawMessage":
			return wireJSON
		case "encoding/json.Number":
			return wireNumber
		}
	}
	switch {
	case b.marshaller(t) == nil:
		return ""
	case b.method(t, "MarshalJSON") != nil:
		return "custom(" + types.TypeString(t, nil) + ")"
	}
	return "text(" + types.TypeString(t, nil) + ")"
}

// mapKeyWire is how a map's keys are made into names.
func (b *wireBuilder) mapKeyWire(t types.Type) string {
	t = types.Unalias(t)
	u, basic := t.Underlying().(*types.Basic)
	if b.method(t, "UnmarshalText") != nil || !basic {
		return "text(" + types.TypeString(t, nil) + ")"
	}
	return types.Typ[u.Kind()].Name()
}

// wireField is a field of a JSON object.
type wireField struct {
	t        types.Type
	pos      token.Pos
	depth    int
	optional bool
	quoted   bool
}

// wireFields lists the fields of an object, those of embedded structs among them. Where two have one name, the outer wins.
func (b *wireBuilder) wireFields(s *types.Struct, anchor token.Pos) map[string]wireField {
	out := map[string]wireField{}
	var walk func(s *types.Struct, anchor token.Pos, depth int, optional bool, within []*types.Struct)
	walk = func(s *types.Struct, anchor token.Pos, depth int, optional bool, within []*types.Struct) {
		if slices.Contains(within, s) {
			return
		}
		for i := range s.NumFields() {
			f := s.Field(i)
			tag := reflect.StructTag(s.Tag(i)).Get("json")
			name, opts, _ := strings.Cut(tag, ",")
			pos := b.at(anchor, f)
			embedded, pointer := embeddedStruct(f)
			switch {
			case tag == "-":
			case embedded != nil && name == "" && b.marshaller(f.Type()) == nil:
				walk(embedded, pos, depth+1, optional || pointer, append(slices.Clone(within), s))
			default:
				if other, ok := out[name]; ok && other.depth <= depth {
					continue
				}
				options := strings.Split(opts, ",")
				out[name] = wireField{f.Type(), pos, depth,
					optional || slices.Contains(options, "omitzero") || slices.Contains(options, "omitempty") && canBeEmpty(f.Type()),
					slices.Contains(options, "string")}
			}
		}
	}
	walk(s, anchor, 0, false, nil)
	return out
}

// canBeEmpty tells whether omitempty has an effect: a struct is never empty.
func canBeEmpty(t types.Type) bool {
	switch u := t.Underlying().(type) {
	case *types.Struct:
		return false
	case *types.Array:
		return u.Len() == 0
	}
	return true
}

// constants are the values of a defined type that has some, by name: what a reader of the program takes for all there
// are. Unexported ones count only if there are no others, since as a rule they are bounds (numStates).
func (b *wireBuilder) constants(t types.Type) (values map[string]string, at map[string]token.Pos) {
	named, ok := t.(*types.Named)
	if !ok || named.Obj().Pkg() == nil || !b.r.hasConstants(named.Obj().Pkg().Path()) {
		return nil, nil
	}
	values, at = map[string]string{}, map[string]token.Pos{}
	exported := false
	scope := named.Obj().Pkg().Scope()
	for _, name := range scope.Names() {
		c, ok := scope.Lookup(name).(*types.Const)
		if !ok || !types.Identical(c.Type(), named) {
			continue
		}
		switch c.Val().Kind() {
		case constant.String:
			values[name] = constant.StringVal(c.Val())
		case constant.Int:
			values[name] = c.Val().ExactString()
		default: // of a bool or a float they are no list of what there is
			continue
		}
		exported = exported || c.Exported()
		if b.r.m.ours(c.Pkg()) {
			at[name] = c.Pos()
		}
	}
	maps.DeleteFunc(values, func(name, _ string) bool { return exported && !token.IsExported(name) })
	if len(values) == 0 {
		return nil, nil
	}
	return values, at
}

// hasConstants tells whether constants of the package are looked at. Not of the standard library: it grows with Go, and
// what it names (months, signals) is not the application's to handle one by one.
func (r *resolver) hasConstants(path string) bool {
	p := r.m.pkgs[path]
	return p != nil && p.module != ""
}

// mentionConstants queues the constants whose declarations name the type. A constant that gets the type only by way of
// another one is not found.
func (r *resolver) mentionConstants(p *pkg, ix *index, d decl) {
	switch d.spec.Type.(type) {
	case *ast.Ident, *ast.SelectorExpr, *ast.ParenExpr: // only what another type names can be a string or a number
	default:
		return
	}
	if !r.hasConstants(p.path) {
		return
	}
	if ix.constants == nil {
		ix.constants = map[string][]string{}
		seen := map[ast.Node]bool{}
		for name, d := range ix.decls {
			if group, ok := d.node.(*ast.GenDecl); ok && group.Tok == token.CONST && !seen[group] {
				seen[group] = true
				ast.Inspect(group, func(n ast.Node) bool {
					if id, ok := n.(*ast.Ident); ok {
						ix.constants[id.Name] = append(ix.constants[id.Name], name)
					}
					return true
				})
			}
		}
	}
	for _, name := range ix.constants[d.spec.Name.Name] {
		r.queue = append(r.queue, symbol{pkg: p, name: name})
	}
}
