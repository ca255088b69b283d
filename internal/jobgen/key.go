package jobgen

import (
	"go/token"
	"go/types"
	"reflect"
	"slices"
	"strings"
)

// keyPart is one field of a key as emitted code adds it: k.Method(p.path), converted if need be.
type keyPart struct {
	path   string
	method string // of the key builder
	to     string // the type to convert to; "" if it has that type
}

// resolveKey finds the fields of //job:key in the payload and how each goes into the key.
func resolveKey(ds *diags, r *resolver, p *pkg, typeName string, a *annotation) (parts []keyPart) {
	c := &payloadCheck{ds: ds, r: r, pkg: p}
	payload := r.check(p).Scope().Lookup(typeName).Type()
	pos := a.at["key.A,B.C"]
	for i, path := range a.key {
		refuse := func(format string, args ...any) { ds.add(pos, ruleKey, format, args...) }
		switch {
		case path == "":
			refuse("an empty field path: write the fields as A,B.C, without blanks")
		case slices.Contains(a.key[:i], path):
			refuse("%s is named twice: keep one", path)
		default:
			if f := c.keyField(payload, typeName, path, refuse); f != nil {
				if part, ok := c.keyPart(f.Type(), path); ok {
					parts = append(parts, part)
				} else if !isInvalid(types.Unalias(f.Type())) {
					refuse("%s is %s: a key is made of string, integer, bool, time.Time or [N]byte fields, which cannot be null%s", path, c.spell(f.Type()), keyAdvice(f.Type()))
				}
			}
		}
		pos += token.Pos(len(path) + 1)
	}
	return parts
}

// keyField follows a path of Go field names from t.
func (c *payloadCheck) keyField(t types.Type, typeName, path string, refuse func(string, ...any)) (f *types.Var) {
	at := typeName
	names := strings.Split(path, ".")
	for i, name := range names {
		s, ok := types.Unalias(t).Underlying().(*types.Struct)
		switch {
		case isInvalid(types.Unalias(t).Underlying()):
			return nil // reported as a payload
		case !ok:
			refuse("%s is %s, not a struct: %s ends there", at, c.spell(t), path)
			return nil
		case i > 0 && c.marshaller(t) != nil:
			refuse("%s is written by its own %s: what is inside it is not stored field by field; name %[1]s itself or a field beside it", strings.Join(names[:i], "."), c.marshaller(t).Name())
			return nil
		}
		obj, _, indirect := types.LookupFieldOrMethod(t, true, c.r.check(c.pkg).Package, name)
		f, ok = obj.(*types.Var)
		switch {
		case !ok:
			refuse("%s has no field %s%s", at, name, nearField(s, name))
			return nil
		case !f.Exported():
			refuse("%s.%s is unexported, so it is not stored: a key is made of stored fields", at, name)
			return nil
		case indirect:
			refuse("%s.%s is reached through a pointer, which may be nil: embed the struct itself", at, name)
			return nil
		case jsonTag(s, f) == "-":
			refuse("%s.%s is not stored (its tag is `json:\"-\"`): a key is made of stored fields", at, name)
			return nil
		}
		at, t = at+"."+name, f.Type()
	}
	return f
}

// keyPart chooses the builder's method by the type's shape, converting where the type has a name of its own.
func (c *payloadCheck) keyPart(t types.Type, path string) (keyPart, bool) {
	t = types.Unalias(t)
	part := func(method, to string) (keyPart, bool) {
		if b, ok := t.(*types.Basic); ok && b.Name() == to {
			to = ""
		}
		return keyPart{path, method, to}, true
	}
	switch u := t.Underlying().(type) {
	case *types.Basic:
		switch {
		case u.Info()&types.IsString != 0:
			return part("String", "string")
		case u.Info()&types.IsBoolean != 0:
			return part("Bool", "bool")
		case u.Kind() == types.Uintptr:
		case u.Info()&types.IsUnsigned != 0:
			return part("Uint", "uint64")
		case u.Info()&types.IsInteger != 0:
			return part("Int", "int64")
		}
	case *types.Array:
		if types.Identical(types.Unalias(u.Elem()), types.Typ[types.Byte]) {
			return part("Bytes", "")
		}
	case *types.Struct:
		switch when := c.timeTime(); {
		case when == nil:
		case types.Identical(t, when):
			return part("Time", "")
		case types.Identical(u, when.Underlying()):
			return part("Time", "time.Time")
		}
	}
	return keyPart{}, false
}

// timeTime is the type time.Time if anything of package time is in use.
func (c *payloadCheck) timeTime() types.Type {
	if p := c.r.m.pkgs["time"]; p != nil {
		if obj := c.r.check(p).Scope().Lookup("Time"); obj != nil {
			return obj.Type()
		}
	}
	return nil
}

func keyAdvice(t types.Type) string {
	switch u := types.Unalias(t).Underlying().(type) {
	case *types.Pointer:
		return "; use the value, or a field that is always there"
	case *types.Basic:
		if u.Info()&types.IsFloat != 0 {
			return "; use an integer, such as cents"
		}
	case *types.Struct:
		return "; name one of its fields, such as A.B"
	case *types.Slice:
		return "; use a string or an array"
	}
	return ""
}

// nearField helps with a misspelt name, and with JSON names, which are not what a key takes.
func nearField(s *types.Struct, name string) string {
	var names []string
	for i := range s.NumFields() {
		f := s.Field(i)
		if jsonTag(s, f) == name {
			return "; keys take Go names: write " + f.Name()
		}
		names = append(names, f.Name())
	}
	return didYouMean(name, names)
}

// jsonTag is the JSON name of f, a direct field of s; "" if it has none or comes from an embedded struct.
func jsonTag(s *types.Struct, f *types.Var) string {
	for i := range s.NumFields() {
		if s.Field(i) == f {
			tag := reflect.StructTag(s.Tag(i)).Get("json")
			if name, _, _ := strings.Cut(tag, ","); tag != "-," {
				return name
			}
		}
	}
	return ""
}
