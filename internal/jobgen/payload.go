package jobgen

import (
	"fmt"
	"go/token"
	"go/types"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// payloadCheck walks one payload or result type as encoding/json does, and refuses what would not come back as it went
// in, or would change on the wire when somebody renames a Go field.
type payloadCheck struct {
	ds     *diags
	r      *resolver
	pkg    *pkg
	anchor token.Pos       // the last field met in the user's own module
	seen   map[string]bool // types already walked
	// reserved are the JSON names that the payload's own fields must not have; nil further down.
	reserved []string
}

// checkPayload checks the named type. at is where to report what is wrong with the type as a whole.
func checkPayload(ds *diags, r *resolver, p *pkg, name string, at token.Pos, reserved ...string) {
	c := &payloadCheck{ds, r, p, at, map[string]bool{}, reserved}
	tn, ok := r.check(p).Scope().Lookup(name).(*types.TypeName)
	switch {
	case !ok:
		c.refuse("%s is not declared as a type in package %s%s", name, p.name, didYouMean(name, r.indexOf(p).types()))
		return
	case !tn.Exported():
		c.refuse("%s is unexported, and so would be %s's parameters: rename it to %s", name, "Enqueue"+export(name), export(name))
		return
	case tn.IsAlias():
		c.refuse("%s is an alias, which has no name of its own: write type %[1]s struct { … }, without the equals sign", name)
		return
	}
	named, ok := tn.Type().(*types.Named)
	if !ok || named.TypeParams().Len() > 0 {
		c.refuse("%s is generic: define a type from one instance of it, type %[1]sOfX %[1]s[X], and annotate that", name)
		return
	}
	s, ok := named.Underlying().(*types.Struct)
	if !ok {
		if isInvalid(named.Underlying()) {
			c.invalid(name, at)
			return
		}
		c.refuse("%s is not a struct, so nothing can ever be added to it: write type %[1]s struct { Value %s `json:\"value\"` }", name, c.spell(named.Underlying()))
		return
	}
	if m := c.marshaller(named); m != nil {
		c.refuse("%s has %s of its own%s: what it writes cannot be checked; leave the method out, or give it to the type of one field", name, m.Name(), c.promotedFrom(s, m))
		return
	}
	c.structure(name, s, false)
}

func (c *payloadCheck) refuse(format string, args ...any) {
	c.ds.add(c.anchor, rulePayload, format, args...)
}

// jsonField is a field as it appears in the object, embedded structs flattened.
type jsonField struct {
	name  string // in JSON
	path  string // in Go, from the payload's type
	depth int
	v     *types.Var
}

// structure checks the fields of a struct that is written as a JSON object.
func (c *payloadCheck) structure(path string, s *types.Struct, addressable bool) {
	before := c.anchor
	defer func() { c.anchor = before }()
	fields := c.fields(path, s, 0, map[*types.Struct]bool{})
	for i, f := range fields {
		for _, g := range fields[:i] {
			c.anchor = c.at(before, f.v)
			switch {
			case f.name != g.name && strings.EqualFold(f.name, g.name):
				c.refuse("%s (%q) and %s (%q) differ only by case, which encoding/json does not tell apart: rename one of the JSON names", g.path, g.name, f.path, f.name)
			case f.name == g.name && f.depth == g.depth:
				c.refuse("%s and %s are both %q in JSON, so encoding/json drops both: rename one", g.path, f.path, f.name)
			}
		}
	}
	reserved := c.reserved
	c.reserved = nil
	for _, f := range fields {
		c.anchor = c.at(before, f.v)
		if slices.ContainsFunc(reserved, func(name string) bool { return strings.EqualFold(name, f.name) }) {
			c.ds.add(c.anchor, ruleReserve, "%s is %q in JSON, which //job:reserve keeps from coming back: stored jobs may hold it with its old meaning; choose another name", f.path, f.name)
		}
		c.value(f.path, f.v.Type(), addressable)
	}
}

// fields lists the fields of the JSON object and refuses those that would not be in it.
func (c *payloadCheck) fields(path string, s *types.Struct, depth int, within map[*types.Struct]bool) (out []jsonField) {
	if within[s] {
		return nil
	}
	within[s] = true
	defer delete(within, s)
	before := c.anchor
	for i := range s.NumFields() {
		f := s.Field(i)
		c.anchor = c.at(before, f)
		fpath := path + "." + f.Name()
		tag, hasTag := reflect.StructTag(s.Tag(i)).Lookup("json")
		name, _, _ := strings.Cut(tag, ",")
		embedded, pointer := embeddedStruct(f)
		switch {
		case tag == "-":
		case embedded != nil && name == "" && c.marshaller(f.Type()) == nil:
			if pointer && !f.Exported() {
				c.refuse("%s embeds a pointer to an unexported struct, which encoding/json cannot fill: embed the struct itself", fpath)
				continue
			}
			out = append(out, c.fields(fpath, embedded, depth+1, within)...)
		case isInvalid(types.Unalias(f.Type())):
			c.invalid(fpath, f.Pos())
		case !f.Exported():
			c.refuse("%s is unexported, so it would be lost: %s", fpath, c.fix(f, "export it, or write `json:\"-\"`"))
		case !hasTag && strings.Contains(s.Tag(i), "json"):
			c.refuse("the tag of %s is malformed, so encoding/json ignores it: write `json:\"%s\"`", fpath, snake(f.Name()))
		case !hasTag || name == "":
			c.refuse("%s has no JSON name, so renaming the field would lose what is stored: %s", fpath, c.fix(f, "write `json:\"%s\"`", snake(f.Name())))
		case !validName(name):
			c.refuse("%q is no JSON name that encoding/json accepts: write `json:\"%s\"` on %s", name, snake(f.Name()), fpath)
		default:
			out = append(out, jsonField{name, fpath, depth, f})
		}
	}
	c.anchor = before
	return out
}

// value checks a type in a place where a JSON value is expected. Only addressable values have their pointer methods
// called by encoding/json.
func (c *payloadCheck) value(path string, t types.Type, addressable bool) {
	t = types.Unalias(t)
	if isInvalid(t) {
		c.invalid(path, c.anchor)
		return
	}
	if c.marshaller(t) != nil && !types.IsInterface(t) {
		c.opaque(path, t, addressable)
		return
	}
	switch u := t.Underlying().(type) {
	case *types.Basic:
		switch {
		case u.Info()&types.IsComplex != 0:
			c.refuse("%s is %s, which JSON has no form for: store two float64 fields", path, c.spell(t))
		case u.Kind() == types.UnsafePointer || u.Kind() == types.Uintptr:
			c.refuse("%s is %s, an address of one process: store the data itself", path, c.spell(t))
		case u.Kind() == types.Invalid: // a named type made of something that is not there
			pos := c.anchor
			if n, ok := t.(*types.Named); ok && c.r.m.ours(n.Obj().Pkg()) {
				pos = n.Obj().Pos()
			}
			c.invalid(path, pos)
		}
	case *types.Pointer:
		c.value(path, u.Elem(), true)
	case *types.Slice:
		c.value(path+"[]", u.Elem(), true)
	case *types.Array:
		c.value(path+"[]", u.Elem(), addressable)
	case *types.Map:
		c.mapKey(path, u.Key())
		c.value(path+"[]", u.Elem(), false)
	case *types.Struct:
		id := fmt.Sprint(addressable, types.TypeString(t, nil))
		if !c.seen[id] {
			c.seen[id] = true
			c.structure(path, u, addressable)
		}
	case *types.Interface:
		c.refuse("%s is %s, whose concrete type is lost when it is read back: write the concrete type, or json.RawMessage", path, c.spell(t))
	case *types.Signature:
		c.refuse("%s is a func, which cannot be stored: store what the handler needs to choose it", path)
	case *types.Chan:
		c.refuse("%s is a channel, which cannot be stored: return a result and Await it", path)
	}
}

// opaque checks a type that writes itself. What it writes is its own business, but it has to be called, and to read what
// it wrote.
func (c *payloadCheck) opaque(path string, t types.Type, addressable bool) {
	write := c.firstMethod(t, "MarshalJSON", "MarshalText")
	read := c.firstMethod(t, "UnmarshalJSON", "UnmarshalText")
	switch {
	case write == nil:
		c.refuse("%s: %s has %s but writes itself the usual way, so it would not come back as it went in: give it Marshal%s as well", path, c.spell(t), read.Name(), strings.TrimPrefix(read.Name(), "Unmarshal"))
	case read == nil:
		c.refuse("%s: %s has %s but nothing that reads it again: give it Un%s as well", path, c.spell(t), write.Name(), strings.ToLower(write.Name()[:1])+write.Name()[1:])
	case !addressable && types.NewMethodSet(t).Lookup(nil, write.Name()) == nil:
		c.refuse("%s: %s of %s has a pointer receiver, so encoding/json does not call it here: declare it on the value, or make the field a pointer", path, write.Name(), c.spell(t))
	}
}

// mapKey checks what encoding/json demands of keys: strings, integers, or text of their own.
func (c *payloadCheck) mapKey(path string, k types.Type) {
	b, ok := k.Underlying().(*types.Basic)
	if ok && b.Info()&(types.IsString|types.IsInteger) != 0 && b.Kind() != types.Uintptr || c.method(k, "MarshalText") != nil {
		return
	}
	if isInvalid(types.Unalias(k)) {
		c.invalid(path, c.anchor)
		return
	}
	c.refuse("%s has keys of type %s, which JSON has no form for: use a string or an integer", path, c.spell(k))
}

// marshaller is a method by which t or *t escapes encoding/json's usual rules, if it has one.
func (c *payloadCheck) marshaller(t types.Type) *types.Func {
	return c.firstMethod(t, "MarshalJSON", "UnmarshalJSON", "MarshalText", "UnmarshalText")
}

func (c *payloadCheck) firstMethod(t types.Type, names ...string) *types.Func {
	for _, name := range names {
		if m := c.method(t, name); m != nil {
			return m
		}
	}
	return nil
}

func (c *payloadCheck) method(t types.Type, name string) *types.Func {
	obj, _, _ := types.LookupFieldOrMethod(t, true, nil, name)
	m, _ := obj.(*types.Func)
	return m
}

// promotedFrom names the embedded field that brought the method in.
func (c *payloadCheck) promotedFrom(s *types.Struct, m *types.Func) string {
	for f := range s.Fields() {
		if f.Embedded() && c.method(f.Type(), m.Name()) == m {
			return ", promoted from the embedded " + f.Name()
		}
	}
	return ""
}

// invalid reports a type that could not be resolved, with the reason if one can be found on its line.
func (c *payloadCheck) invalid(path string, pos token.Pos) {
	if why := c.r.whyInvalid(pos); why != "" {
		c.refuse("the type of %s cannot be resolved: %s", path, why)
		return
	}
	const advice = "if another generator makes it, run that one first"
	line := func(p token.Pos) string { at := c.r.m.fset.Position(p); return fmt.Sprint(at.Filename, at.Line) }
	for _, checked := range c.r.checked {
		for _, e := range checked.errs {
			if line(e.Pos) == line(pos) {
				c.ds.add(e.Pos, rulePayload, "the type of %s cannot be resolved: %s; %s", path, e.Msg, advice)
				return
			}
		}
	}
	c.refuse("the type of %s cannot be resolved: make its package compile; %s", path, advice)
}

// at is where to report about a field: at the field if its source is the user's, else at the user's field that leads to it.
func (c *payloadCheck) at(anchor token.Pos, f *types.Var) token.Pos {
	if c.foreign(f) || f.Origin() != f { // of an instance: what is wrong is the type argument
		return anchor
	}
	return f.Pos()
}

func (c *payloadCheck) foreign(f *types.Var) bool { return !c.r.m.ours(f.Pkg()) }

// fix is what to do about field f: advice for the user's own fields, something else for those they cannot change.
func (c *payloadCheck) fix(f *types.Var, advice string, args ...any) string {
	if c.foreign(f) {
		return "package " + f.Pkg().Name() + " is not yours to change, so copy what you need into a struct of your own"
	}
	return fmt.Sprintf(advice, args...)
}

func (c *payloadCheck) spell(t types.Type) string {
	return types.TypeString(t, func(p *types.Package) string {
		if p.Path() == c.pkg.path {
			return ""
		}
		return p.Name()
	})
}

func embeddedStruct(f *types.Var) (s *types.Struct, pointer bool) {
	if !f.Embedded() {
		return nil, false
	}
	t := types.Unalias(f.Type())
	if p, ok := t.(*types.Pointer); ok {
		t, pointer = p.Elem(), true
	}
	s, _ = t.Underlying().(*types.Struct)
	return s, pointer
}

func isInvalid(t types.Type) bool {
	b, ok := t.(*types.Basic)
	return ok && b.Kind() == types.Invalid
}

// validName is encoding/json's own idea of a usable name.
func validName(s string) bool {
	for _, r := range s {
		if !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			return false
		}
	}
	return s != ""
}

// snake spells a Go name the way JSON names usually are: OrderID is order_id.
func snake(name string) string {
	var b strings.Builder
	rs := []rune(name)
	for i, r := range rs {
		if unicode.IsUpper(r) && i > 0 && (!unicode.IsUpper(rs[i-1]) || i+1 < len(rs) && unicode.IsLower(rs[i+1])) && rs[i-1] != '_' {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

func export(name string) string {
	r, n := utf8.DecodeRuneInString(name)
	return string(unicode.ToUpper(r)) + name[n:]
}
