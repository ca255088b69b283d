package jobgen

import (
	"fmt"
	"go/token"
	"go/types"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// declaredKind is one kind as the sources have it, on the wire.
type declaredKind struct {
	*kind
	keyFact string
	payload *node // nil: the package was not asked for, and all that is known is its name
	result  *node
}

// change is one difference between what the lock has and what the sources have.
type change struct {
	rule     *Rule
	kind     string
	subject  string // KIND[.FIELD], or KIND/result[.FIELD]
	from, to string
	pos      token.Pos // NoPos: there is nothing left in the sources to point at
	fact     string    // then: the fact in the lock
	upgrade  string    // of a payload's field: the function that could convert stored jobs
}

// compare tells how the lock changes by what is declared. It is a function of its arguments: what is to be done about
// the changes is the caller's to decide. next is the lock to write if there is nothing breaking among them.
//
// complete is false if declarations may be missing for which other packages' mistakes are to blame.
func compare(old *lock, kinds []*declaredKind, complete bool) (changes []change, next *lock, err error) {
	c := &comparison{old: old, next: newLock()}
	maps.Copy(c.next.facts, old.facts)
	maps.Copy(c.next.accepted, old.accepted)
	claimed := map[string]bool{}
	for _, k := range kinds {
		claimed[k.name] = true
		for _, was := range k.was {
			claimed[was] = true
		}
	}
	for _, k := range kinds {
		if k.payload == nil {
			continue
		}
		if err := c.kindOf(k); err != nil {
			return nil, nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(old.kinds())) {
		if !claimed[name] && complete {
			c.report(change{kind: name, subject: name, fact: slices.Min(slices.Collect(maps.Keys(old.of(name))))}, "kind-removed")
		}
	}
	return c.changes, c.next, nil
}

type comparison struct {
	old, next *lock
	changes   []change
}

func (c *comparison) report(ch change, rule string) {
	if ch.rule = findRule(rule); ch.rule == nil {
		panic("no rule " + rule)
	}
	// One change may match a rule in several ways, such as by both ends of a pointer.
	if !slices.ContainsFunc(c.changes, func(o change) bool { return o.rule == ch.rule && o.subject == ch.subject }) {
		c.changes = append(c.changes, ch)
	}
}

// kindOf compares one kind and puts it into next.
func (c *comparison) kindOf(k *declaredKind) error {
	old, err := c.old.stored(k.name)
	if err != nil {
		return err
	}
	var others []*stored
	for _, was := range k.was {
		earlier, err := c.old.stored(was)
		if err != nil {
			return err
		}
		at := k.at["was."+was]
		switch {
		case earlier == nil && old != nil && !slices.Contains(old.was, was):
			c.report(change{kind: k.name, subject: k.name, to: was, pos: at}, "was-added")
		case earlier == nil:
		default:
			c.report(change{kind: k.name, subject: k.name, from: was, to: k.name, pos: at}, "kind-renamed")
			c.next.rename(was, k.name)
			if old == nil {
				old = earlier
				continue
			}
			// Two kinds become one: jobs of both are stored.
			c.sides(k, earlier)
			others = append(others, earlier)
			for n, payload := range earlier.payloads {
				if old.payloads[n] == nil {
					old.payloads[n] = payload
				}
			}
		}
	}
	now := &stored{version: k.version, queue: k.queue, key: k.keyFact, was: slices.Clone(k.was), payloads: map[int]*node{}, result: k.result}
	for _, name := range k.reserved {
		now.reserved = append(now.reserved, pathName(name))
	}
	if old == nil {
		c.report(change{kind: k.name, subject: k.name, pos: k.at["kind.NAME"]}, "kind-added")
		old = &stored{version: k.version, payloads: map[int]*node{}}
	} else {
		c.header(k, old)
		c.sides(k, old)
	}
	for n, payload := range old.payloads {
		if n != k.version {
			now.payloads[n] = payload // for tests of the upgrade functions
		}
	}
	now.payloads[k.version] = k.payload
	for _, s := range append(others, old) {
		remember(s.payloads[k.version], k.payload)
		remember(s.result, k.result)
	}
	for key := range c.old.of(k.name) {
		delete(c.next.facts, key)
	}
	c.next.put(k.name, now)
	return nil
}

// header compares what is not a field.
func (c *comparison) header(k *declaredKind, old *stored) {
	put := func(rule string, at token.Pos, from, to string) {
		c.report(change{kind: k.name, subject: k.name, from: from, to: to, pos: at}, rule)
	}
	if old.queue != k.queue {
		at, ok := k.at["kind.queue"]
		if !ok {
			at = k.at["kind.NAME"]
		}
		put("queue-changed", at, old.queue, k.queue)
	}
	for _, was := range old.was {
		if !slices.Contains(k.was, was) {
			c.report(change{kind: k.name, subject: was, from: k.name, pos: k.at["kind.NAME"]}, "was-removed")
		}
	}
	for _, name := range old.reserved {
		var f *node
		for _, field := range slices.Sorted(maps.Keys(k.payload.fields)) {
			if strings.EqualFold(field, nameOf(name)) { // encoding/json does not mind case
				f = k.payload.fields[field]
			}
		}
		reserved := slices.ContainsFunc(k.reserved, func(r string) bool { return pathName(r) == name })
		ch := change{kind: k.name, subject: k.name + "." + name, from: "reserved", to: "-", pos: k.at["kind.NAME"]}
		switch {
		case f != nil:
			ch.pos, ch.to = f.pos, f.spell()
			c.report(ch, "reserved-reused")
		case !reserved:
			c.report(ch, "reserve-removed")
		}
	}
}

// nameOf undoes pathName.
func nameOf(pathName string) string {
	if names, _, err := splitPath("." + pathName); err == nil && len(names) == 1 {
		return names[0]
	}
	return pathName
}

// sides compares version, key, payload and result with those of old, which is the kind itself or one that became it.
func (c *comparison) sides(k *declaredKind, old *stored) {
	put := func(rule string, at token.Pos, from, to string) {
		c.report(change{kind: k.name, subject: k.name, from: from, to: to, pos: at}, rule)
	}
	versionAt, ok := k.at["kind.v"]
	if !ok {
		versionAt = k.at["kind.NAME"]
	}
	switch {
	case k.version > old.version:
		put("version-raised", versionAt, strconv.Itoa(old.version), strconv.Itoa(k.version))
	case k.version < old.version:
		put("version-lowered", versionAt, strconv.Itoa(old.version), strconv.Itoa(k.version))
	default:
		t := &treeComparison{comparison: c, k: k, subject: k.name, seen: map[[2]uintptr]bool{}, upgrade: k.upgradeFunc(k.version)}
		t.node("", old.payloads[k.version], k.payload)
	}
	// Keys and results are stored without a version: what is said of the payload's does not help them.
	keyAt, ok := k.at["key"]
	if !ok {
		keyAt = k.at["kind.NAME"]
	}
	switch {
	case old.key == k.keyFact:
	case old.key == "":
		put("key-added", keyAt, "none", k.keyFact)
	default:
		put("key-changed", keyAt, old.key, keyOrNone(k.keyFact))
	}
	resultAt, ok := k.at["kind.result"]
	if !ok {
		resultAt = k.at["kind.NAME"]
	}
	switch {
	case old.result == nil && k.result == nil:
	case old.result == nil:
		c.report(change{kind: k.name, subject: k.name, from: "none", to: "result", pos: resultAt}, "result-added")
	case k.result == nil:
		c.report(change{kind: k.name, subject: k.name, from: "result", to: "none", pos: resultAt}, "result-removed")
	default:
		t := &treeComparison{comparison: c, k: k, subject: k.name + "/result", seen: map[[2]uintptr]bool{}}
		t.node("", old.result, k.result)
	}
}

func keyOrNone(key string) string {
	if key == "" {
		return "none"
	}
	return key
}

// treeComparison compares one payload or result.
type treeComparison struct {
	*comparison
	k       *declaredKind
	subject string
	upgrade string
	seen    map[[2]uintptr]bool // pairs of objects, as recursive types come back to them
}

func (t *treeComparison) put(rule, path, from, to string, pos token.Pos) {
	t.report(change{kind: t.k.name, subject: t.subject + path, from: from, to: to, pos: pos, upgrade: t.upgrade}, rule)
}

// node compares one value, and what is in it.
func (t *treeComparison) node(path string, before, after *node) {
	if !before.gone && before.optional != after.optional {
		rule := "omit-added"
		if before.optional {
			rule = "omit-removed"
		}
		t.put(rule, path, before.spell(), after.spell(), after.pos)
	}
	ids := valueRules(before.wire, after.wire)
	for _, id := range ids {
		t.put(id, path, before.spell(), after.spell(), after.pos)
	}
	if before.base().plain().name != after.base().plain().name {
		return
	}
	t.constants(path+after.inside(), before, after)
	if before.base().isObject() {
		pair := [2]uintptr{reflect.ValueOf(before.fields).Pointer(), reflect.ValueOf(after.fields).Pointer()}
		if !t.seen[pair] {
			t.seen[pair] = true
			t.object(path+after.inside(), before, after)
		}
	}
}

// constants compares the values a type has names for.
func (t *treeComparison) constants(path string, before, after *node) {
	switch {
	case len(before.enum) == 0 && len(after.enum) == 0:
		return
	case len(before.enum) == 0:
		t.put("enum-declared", path, "", "", after.pos)
		return
	case len(after.enum) == 0:
		t.put("enum-dropped", path, "", "", after.pos)
		return
	}
	nameOf := func(values map[string]string, value string) string {
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if values[name] == value {
				return name
			}
		}
		return ""
	}
	at := func(name string) token.Pos {
		if pos, ok := after.enumAt[name]; ok {
			return pos
		}
		return after.pos
	}
	for _, name := range slices.Sorted(maps.Keys(before.enum)) {
		was := before.enum[name]
		is, ok := after.enum[name]
		now := nameOf(after.enum, was)
		switch {
		case ok && is == was:
		case ok:
			t.put("enum-changed", path+"="+name, was, is, at(name))
		case now != "":
			t.put("enum-renamed", path+"="+name, name, now, at(now))
		default:
			t.put("enum-removed", path+"="+name, was, "-", after.pos)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after.enum)) {
		if _, ok := before.enum[name]; !ok && nameOf(before.enum, after.enum[name]) == "" {
			t.put("enum-added", path+"="+name, "-", after.enum[name], at(name))
		}
	}
}

// object compares fields. What is gone and what is new may be the same under another name.
func (t *treeComparison) object(path string, before, after *node) {
	gone, added := map[string]*node{}, map[string]*node{}
	for name, f := range before.fields {
		if after.fields[name] == nil && !f.gone {
			gone[name] = f
		}
	}
	for name, f := range after.fields {
		if before.fields[name] == nil {
			added[name] = f
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after.fields)) {
		if b := before.fields[name]; b != nil {
			t.node(path+"."+pathName(name), b, after.fields[name])
		}
	}
	t.moved(path, gone, added, false)
	t.moved(path, added, gone, true)
	t.renamed(path, gone, added)
	at := after.within
	if !at.IsValid() {
		at = after.pos
	}
	for _, name := range slices.Sorted(maps.Keys(gone)) {
		rule := "field-removed"
		if f := gone[name]; f.optional || f.op == '*' { // null is missing, too
			rule = "optional-field-removed"
		}
		t.put(rule, path+"."+pathName(name), gone[name].spell(), "-", at)
	}
	for _, name := range slices.Sorted(maps.Keys(added)) {
		f := added[name]
		// A removed field whose name differs only in case is read into this one.
		for _, other := range slices.Sorted(maps.Keys(before.fields)) {
			if o := before.fields[other]; o.gone && strings.EqualFold(other, name) {
				t.node(path+"."+pathName(name), o, f)
				f = nil
				break
			}
		}
		if f != nil {
			t.put("field-added", path+"."+pathName(name), "-", f.spell(), f.pos)
		}
	}
}

// moved finds fields that stand in an object of their own now (those of a struct that was embedded and has a name), or
// the other way round. It takes them out of both.
func (t *treeComparison) moved(path string, outer, inner map[string]*node, back bool) {
	for _, name := range slices.Sorted(maps.Keys(inner)) {
		object := inner[name]
		if object.base().name != wireObject || object.inside() != "" {
			continue
		}
		var found []string
		for _, f := range slices.Sorted(maps.Keys(object.fields)) {
			if outer[f] != nil && object.fields[f].base().String() == outer[f].base().String() {
				found = append(found, f)
			}
		}
		if len(found) == 0 || 2*len(found) < len(object.fields) {
			continue
		}
		const apart, beside = "in an object of their own", "beside its neighbours"
		if back {
			t.put("embedding", path+"."+pathName(name), apart, beside, outer[found[0]].pos)
		} else {
			t.put("embedding", path+"."+pathName(name), beside, apart, object.pos)
		}
		delete(inner, name)
		for _, f := range found {
			delete(outer, f)
		}
	}
}

// renamed pairs what is gone with what is new if it is the same but for its name: spelled alike, or the only one.
func (t *treeComparison) renamed(path string, gone, added map[string]*node) {
	pair := func(alike func(a, b string) bool, rule string) {
		for _, was := range slices.Sorted(maps.Keys(gone)) {
			for _, name := range slices.Sorted(maps.Keys(added)) {
				if f := added[name]; alike(was, name) && (rule == "json-name-case" || f.wire.String() == gone[was].wire.String()) {
					t.put(rule, path+"."+pathName(name), was, name, f.pos)
					if rule == "json-name-case" {
						t.node(path+"."+pathName(name), gone[was], f)
					}
					delete(gone, was)
					delete(added, name)
					break
				}
			}
		}
	}
	pair(strings.EqualFold, "json-name-case")
	pair(func(a, b string) bool { return plainName(a) == plainName(b) }, "json-name")
	pair(func(a, b string) bool {
		return min(len(a), len(b)) > 3 && (distance(plainName(a), plainName(b)) <= 2 || strings.Contains(a, b) || strings.Contains(b, a))
	}, "json-name")
	if len(gone) == 1 && len(added) == 1 {
		pair(func(string, string) bool { return true }, "json-name")
	}
}

func plainName(s string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(s))
}

// remember keeps in after what is gone since before, marked so that its name does not come back as something else.
func remember(before, after *node) {
	if before == nil || after == nil || before.base().name != wireObject || after.base().name != wireObject || before.inside() != after.inside() {
		return
	}
	for name, f := range before.fields {
		if now := after.fields[name]; now != nil {
			remember(f, now)
		} else {
			after.fields[name] = f.asGone()
		}
	}
}

// asGone is the field as one that is not written any more, and all in it.
func (n *node) asGone() *node {
	g := &node{wire: n.wire, optional: n.optional, gone: true, enum: n.enum, fields: n.fields}
	if n.base().name == wireObject {
		g.fields = map[string]*node{}
		for name, f := range n.fields {
			g.fields[name] = f.asGone()
		}
	}
	return g
}

// rename moves the exceptions of a kind along with it, and drops the rest.
func (l *lock) rename(from, to string) {
	for key, e := range l.accepted {
		if rest, ok := strings.CutPrefix(key, from+"/"); ok {
			delete(l.accepted, key)
			l.accepted[to+"/"+rest] = e
		}
	}
	l.drop(from)
}

// keyFact gives the key's fields as they are stored, in order: their JSON paths and how each goes into the key.
func (k *kind) keyFact(r *resolver) string {
	var parts []string
	for _, part := range k.parts {
		t := r.check(k.pkg).Scope().Lookup(k.goName).Type()
		path := ""
		for name := range strings.SplitSeq(part.path, ".") {
			t, path = jsonStep(r.check(k.pkg).Package, t, name, path)
		}
		parts = append(parts, fmt.Sprintf("%s %s", strings.TrimPrefix(path, "."), strings.ToLower(part.method)))
	}
	return strings.Join(parts, ", ")
}

// jsonStep follows one Go field name and adds the JSON names on its way, embedded structs having none.
func jsonStep(p *types.Package, t types.Type, name, path string) (types.Type, string) {
	_, index, _ := types.LookupFieldOrMethod(t, true, p, name)
	for _, i := range index {
		s, ok := types.Unalias(t).Underlying().(*types.Struct)
		if !ok {
			break // not reached: resolveKey has followed the same path
		}
		f := s.Field(i)
		if tag := jsonTag(s, f); tag != "" {
			path += "." + pathName(tag)
		}
		t = f.Type()
	}
	return t, path
}
