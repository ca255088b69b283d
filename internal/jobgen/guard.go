package jobgen

import (
	"errors"
	"fmt"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// guard is what the lock of one module says about its kinds.
type guard struct {
	path    string
	old     []byte // nil: there is no lock yet
	lock    *lock
	looked  map[string]bool // kinds whose packages were asked for
	changes []change
	next    *lock
}

// planLocks compares every module's lock with what its packages declare. Breaking changes become mistakes, staged ones
// notes; the outputs are the locks to write if there is no mistake.
func planLocks(p *planned) (outputs []Output, err error) {
	guards, err := compareModules(p)
	if err != nil {
		return nil, err
	}
	for _, g := range guards {
		g.apply(p.ds)
		if out := (Output{Path: g.path, Old: g.old, New: g.next.format()}); out.Old != nil || out.New != nil {
			outputs = append(outputs, out)
		}
	}
	return outputs, nil
}

// compareModules reads and compares the locks of the modules that packages were asked for of. A lock that cannot be read
// is a mistake, and its module left out.
func compareModules(p *planned) (guards []*guard, err error) {
	byDir := map[string]*guard{}
	complete := map[string]bool{}
	for _, pkg := range p.m.sorted() {
		if dir := pkg.moduleDir; pkg.wanted && dir != "" && byDir[dir] == nil {
			byDir[dir] = &guard{path: filepath.Join(dir, LockName), looked: map[string]bool{}}
			complete[dir] = true
			guards = append(guards, byDir[dir])
		}
	}
	for _, pkg := range p.m.pkgs {
		if pkg.broken {
			complete[pkg.moduleDir] = false
		}
	}
	kinds := map[*guard][]*declaredKind{}
	for _, k := range p.kinds {
		if g := byDir[k.pkg.moduleDir]; g != nil {
			kinds[g] = append(kinds[g], declare(p.ds, p.r, k))
			g.looked[k.name] = k.pkg.wanted
		}
	}
	if Stop(p.ds.list) {
		return nil, nil
	}
	return slices.DeleteFunc(guards, func(g *guard) bool {
		e := g.compare(kinds[g], complete[filepath.Dir(g.path)])
		if le, ok := errors.AsType[*lockError](e); ok {
			p.ds.list = append(p.ds.list, le.diag(g.path))
		} else if e != nil {
			err = errors.Join(err, e)
		}
		return e != nil
	}), err
}

func (g *guard) compare(kinds []*declaredKind, complete bool) (err error) {
	g.lock = newLock()
	g.old, err = os.ReadFile(g.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		g.old = nil
	case err != nil:
		return fmt.Errorf("reading the lock: %w", err)
	default:
		if g.lock, err = readLock(g.old); err != nil {
			return err
		}
	}
	g.changes, g.next, err = compare(g.lock, kinds, complete)
	return err
}

// declare finds out what a kind looks like on the wire, if its package was asked for.
func declare(ds *diags, r *resolver, k *kind) *declaredKind {
	d := &declaredKind{kind: k}
	if !k.pkg.wanted {
		return d
	}
	d.keyFact = k.keyFact(r)
	d.payload = payloadWire(ds, r, k.pkg, k.goName, k.spec.Name.Pos())
	if k.result != "" {
		d.result = payloadWire(ds, r, k.pkg, k.result, k.at["kind.result"])
	}
	return d
}

// apply turns the changes into diagnostics. An exception that allows a change is used up by it; one that allows nothing
// that is there any more was for a change that was taken back, and goes.
func (g *guard) apply(ds *diags) {
	if g.lock.repaired != nil {
		msg := "this lock came out of a merge; it is put together from both sides"
		if len(g.lock.repaired) > 0 {
			msg += ": " + strings.Join(g.lock.repaired, "; ")
		}
		ds.list = append(ds.list, Diag{Pos: token.Position{Filename: g.path, Line: 1, Column: 1}, Rule: ruleLock, Msg: msg, Note: true})
	}
	needed := map[string]bool{}
	for _, ch := range g.changes {
		key := exceptionKey(ch.kind, ch.rule.ID, ch.subject)
		switch e, ok := g.next.accepted[key]; {
		case ch.rule.Class == Safe:
		case ch.rule.Class == Breaking && ok && !e.Used && e.From == ch.from && e.To == ch.to:
			needed[key] = true
			e.Used = true
			g.next.accepted[key] = e
		default:
			ds.list = append(ds.list, g.diag(ds, ch))
		}
	}
	for key, e := range g.next.accepted {
		name, _, _ := strings.Cut(key, "/")
		if !e.Used && !needed[key] && g.looked[name] {
			delete(g.next.accepted, key)
		}
	}
}

func (g *guard) diag(ds *diags, ch change) Diag {
	d := Diag{Rule: ch.rule.ID, Msg: ch.message(), Note: ch.rule.Class == Staged, Subject: ch.subject}
	if ch.pos.IsValid() {
		d.Pos = ds.fset.PositionFor(ch.pos, false)
	} else {
		d.Pos = token.Position{Filename: g.path, Line: max(g.lock.lines[ch.fact], 1), Column: 3}
	}
	return d
}

// message tells what has changed, what that does, and what to do.
func (ch change) message() string {
	result := strings.HasPrefix(strings.TrimPrefix(ch.subject, ch.kind), "/result")
	told := ch.rule.Change
	if told == "" {
		told = "{subject} was {from} and is {to}"
	}
	s := told + ": {purpose}"
	switch {
	case ch.rule.Class == Staged:
		if s += ". Order of deployment: {order}"; ch.rule.Advice != nothingElse {
			s += ". {advice}"
		}
	case ch.rule.Forget:
		s += ". {advice}"
	case ch.upgrade != "":
		s += ". {advice}; or raise v= and convert in {upgrade}; or, if no stored {rows} are concerned, {accept}"
	default:
		s += ". {advice}; or, if no stored {rows} are concerned, {accept}"
	}
	s = strings.NewReplacer("{purpose}", ch.rule.Purpose, "{advice}", export(ch.rule.Advice), "{order}", ch.rule.Order,
		"{accept}", "go tool jobgen accept "+ch.rule.ID+" "+shellWord(ch.subject)+` -reason "…"`).Replace(s)
	s = strings.NewReplacer("{subject}", ch.subject, "{from}", ch.from, "{to}", ch.to, "{upgrade}", ch.upgrade).Replace(s)
	return fillSide(s, result)
}

// shellWord quotes what a shell would take for a pattern.
func shellWord(s string) string {
	if strings.ContainsAny(s, `[]{}"*? `) {
		return "'" + s + "'"
	}
	return s
}
