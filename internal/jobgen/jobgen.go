// Package jobgen is the generator behind cmd/jobgen. A run is a pipeline, a file for each stage:
//
//	load.go       list the packages, read the files                       effects: go list, reads
//	directive.go  find and parse the //job: lines, by the table of verbs.go
//	resolve.go    type-check the declarations that payloads are made of    effects: go list, reads
//	payload.go    refuse what does not survive being stored as JSON
//	key.go        find the fields a key is made of
//	registry.go   find the packages RegisterAll registers
//	upgrade.go    find the functions that read earlier versions
//	emit.go       write each package's file, in memory
//	guard.go      compare with the lock what is stored of a kind          effects: reads
//	              (wire.go: its form; lock.go: the file; rules.go: what may change; compare.go: what has changed)
//	scaffold.go   write the skeletons of handlers, in memory             effects: looks for files in the way
//	write.go      put the files in place, all or none                     effects: writes
//
// Every stage reports into one list of diagnostics (diag.go) and goes on, so that one run shows all there is to mend.
// Nothing is emitted, let alone written, while the list holds a mistake.
package jobgen

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"go/ast"
	"go/scanner"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Output is one file to write, replace or remove.
type Output struct {
	Path string
	Old  []byte // nil: there is none
	New  []byte // nil: there must be none
}

// Plan works out what the files of the packages named by patterns should hold. It changes nothing. Mistakes in the
// sources come back as diagnostics, and then there are no outputs; notes come back beside outputs (see Stop); err is for
// what kept Plan from working at all.
func Plan(ctx context.Context, dir string, patterns []string) ([]Output, []Diag, error) {
	p, err := plan(ctx, dir, patterns)
	if err != nil {
		return nil, nil, err
	}
	return p.outputs, p.ds.sorted(), nil
}

// planned is what a run has worked out. There are no outputs if there is a mistake.
type planned struct {
	m         *module
	r         *resolver
	kinds     []*kind
	ds        *diags
	generated []Output // also if the only mistakes are incompatible changes
	outputs   []Output
}

func plan(ctx context.Context, dir string, patterns []string) (*planned, error) {
	p, err := resolve(ctx, dir, patterns)
	if err != nil {
		return nil, err
	}
	for _, pkg := range p.m.sorted() {
		if !pkg.wanted {
			continue
		}
		out, err := planPackage(p.ds, p.r, pkg, p.kinds)
		if err != nil {
			return nil, err
		}
		if out != nil {
			p.generated = append(p.generated, *out)
		}
	}
	if Stop(p.ds.list) {
		p.generated = nil
		return p, nil
	}
	locks, err := planLocks(p)
	if err != nil {
		return nil, err
	}
	if !Stop(p.ds.list) {
		p.outputs = append(p.generated, locks...)
	}
	return p, nil
}

// resolve reads the annotations and finds the types behind them.
func resolve(ctx context.Context, dir string, patterns []string) (*planned, error) {
	m, err := load(ctx, dir, patterns)
	if err != nil {
		return nil, err
	}
	p := &planned{m: m, r: newResolver(m), ds: &diags{fset: m.fset}}
	p.kinds = readKinds(p.ds, m)
	reportDuplicates(p.ds, p.kinds)
	reportRegistries(p.ds, m)
	for _, k := range p.kinds {
		if k.pkg.wanted {
			p.r.want(k.pkg, k.goName)
			p.r.want(k.pkg, k.result)
		}
	}
	if err := p.r.follow(ctx); err != nil {
		return nil, err
	}
	p.r.reportBroken(p.ds)
	return p, nil
}

// planPackage checks the package's kinds and, as long as nothing at all is wrong, emits its output. all are the kinds of
// all packages. Nil: nothing to do.
func planPackage(ds *diags, r *resolver, p *pkg, all []*kind) (*Output, error) {
	kinds := slices.DeleteFunc(slices.Clone(all), func(k *kind) bool { return k.pkg != p })
	if len(kinds) == 0 && !p.registry.IsValid() {
		if isOurs(p.output) {
			return &Output{Path: p.outputPath(), Old: p.output}, nil
		}
		return nil, nil
	}
	for _, k := range kinds {
		k.check(ds, r)
	}
	scope := packageScope(r.m, p)
	reportCollisions(ds, scope, p, kinds)
	for _, k := range kinds {
		noteUpgrades(ds, scope, k)
	}
	if p.registry.IsValid() {
		checkRegistry(ds, r.m, p, all)
	}
	if p.output != nil && !isOurs(p.output) {
		ds.addAt(token.Position{Filename: p.outputPath(), Line: 1, Column: 1}, ruleOutput,
			"this file was not written by jobgen (the line %q is missing), so it is left alone: rename it, or delete it to have it generated", header)
	}
	if Stop(ds.list) {
		return nil, nil
	}
	src, err := emit(p, scope, kinds, registered(p, all))
	if err != nil {
		return nil, err
	}
	return &Output{Path: p.outputPath(), Old: p.output, New: src}, nil
}

// kind is one annotated type, with the package's defaults applied.
type kind struct {
	annotated
	pkg    *pkg
	goName string
	parts  []keyPart
}

// readKinds reads the annotations of the whole module: of the packages that were not asked for only to know their
// kinds' names. Kinds come in the order of package path and Go name, whatever file they are in.
func readKinds(ds *diags, m *module) (kinds []*kind) {
	for _, p := range m.pkgs {
		if !p.main {
			continue
		}
		into := ds
		if !p.wanted {
			into = &diags{fset: ds.fset}
		}
		kinds = append(kinds, readPackage(into, m, p)...)
		p.broken = !p.wanted && len(into.list) > 0
	}
	slices.SortFunc(kinds, func(a, b *kind) int {
		return cmp.Or(cmp.Compare(a.pkg.path, b.pkg.path), cmp.Compare(a.goName, b.goName))
	})
	return kinds
}

// conflict is the first line of a merge conflict.
var conflict = regexp.MustCompile(`(?m)^<<<<<<< `)

func readPackage(ds *diags, m *module, p *pkg) (kinds []*kind) {
	var defaults *annotated
	for _, f := range p.files {
		if !f.mentionsJob() {
			continue
		}
		m.parse(f)
		if at := conflict.FindIndex(f.src); at != nil && f.err != nil && p.wanted {
			line := 1 + bytes.Count(f.src[:at[0]], []byte("\n"))
			ds.addAt(token.Position{Filename: f.path, Line: line, Column: 1}, ruleSyntax, "merge-conflict markers: resolve the conflict first")
			continue // what each side says is not what will be
		}
		if list, ok := f.err.(scanner.ErrorList); ok && strings.Contains(string(f.src), "//job:") {
			ds.addAt(list[0].Pos, ruleSyntax, unparsed, list[0].Msg)
		}
		for _, a := range readAnnotations(ds, f) {
			switch {
			case f.test:
				ds.add(a.pos, rulePlacement, "this is in a test file, which %s cannot see: move it to a file whose name does not end in _test.go", OutputName)
			case f.ignored || f.constrained():
				ds.add(a.pos, rulePlacement, "this file has build constraints, and %s has none: move it to a file that is always compiled", OutputName)
			case a.pkg && defaults != nil:
				ds.add(a.pos, ruleRepeated, "the package has a doc comment with //job: lines already, in %s: keep them in one place", filepath.Base(defaults.file.path))
			case a.pkg:
				defaults = &a
				p.registry = a.at["registry"]
				p.name = f.ast.Name.Name // go list may have it from a stale output
			case a.has("kind.NAME"):
				kinds = append(kinds, &kind{annotated: a, pkg: p, goName: a.spec.Name.Name})
			}
		}
	}
	for _, k := range kinds {
		k.inherit(ds, defaults)
		p.name = k.file.ast.Name.Name
	}
	return kinds
}

// inherit fills in what the kind leaves open.
func (k *kind) inherit(ds *diags, defaults *annotated) {
	given := func(name string) bool { return defaults != nil && defaults.has("defaults."+name) }
	if !k.has("kind.queue") {
		if k.queue = defaultQueue; given("queue") {
			k.queue = defaults.queue
		}
	}
	if !k.has("kind.attempts") {
		if k.attempts = defaultAttempts; given("attempts") {
			k.attempts = defaults.attempts
		}
	}
	if !k.has("kind.priority") && given("priority") {
		k.priority = defaults.priority
	}
	if !k.has("kind.timeout") {
		if !given("timeout") {
			ds.add(k.at["kind"], ruleMissing, "kind %s has no timeout: add timeout=30s (or as long as one attempt may take), or //job:defaults timeout=… to the package's doc comment", k.name)
		} else {
			k.timeout = defaults.timeout
		}
	}
	if !k.has("kind.v") {
		k.version = 1
	}
	if k.has("key") && !k.has("key.for") {
		k.keep = defaultKeep
	}
}

// check looks at the types behind the annotation.
func (k *kind) check(ds *diags, r *resolver) {
	checkPayload(ds, r, k.pkg, k.goName, k.spec.Name.Pos(), k.reserved...)
	if k.result != "" && checkResultName(k.result) == nil {
		checkPayload(ds, r, k.pkg, k.result, k.at["kind.result"])
	}
	if k.has("key.A,B.C") {
		k.parts = resolveKey(ds, r, k.pkg, k.goName, &k.annotation)
	}
}

// reportDuplicates reports, at both places, stored names that two types of one module have or had.
func reportDuplicates(ds *diags, kinds []*kind) {
	type id struct{ module, name string }
	type use struct {
		k   *kind
		was bool
	}
	first := map[id]use{}
	report := func(name string, here, there use) {
		other := there.k.pkg.path + "." + there.k.goName
		switch {
		case !here.was && !there.was:
			ds.add(here.k.at["kind.NAME"], ruleDuplicate, "kind %s is also declared by %s: rows of one would be read as the other; rename one", name, other)
		case !here.was:
			ds.add(here.k.at["kind.NAME"], ruleDuplicate, "kind %s is also an earlier name of %s: stored jobs could be of either; rename this kind, or take it out of //job:was there", name, other)
		case !there.was:
			ds.add(here.k.at["was."+name], ruleDuplicate, "kind %s is also declared by %s: stored jobs could be of either; remove it here, or rename that kind", name, other)
		default:
			ds.add(here.k.at["was."+name], ruleDuplicate, "kind %s is also an earlier name of %s: stored jobs could be of either; remove one", name, other)
		}
	}
	claim := func(name string, u use) {
		other, dup := first[id{u.k.pkg.module, name}]
		switch {
		case !dup:
			first[id{u.k.pkg.module, name}] = u
		case other.k != u.k: // one kind's own repetitions are reported where they are read
			report(name, u, other)
			report(name, other, u)
		}
	}
	for _, k := range kinds {
		claim(k.name, use{k, false})
	}
	for _, k := range kinds {
		for _, name := range k.was {
			claim(name, use{k, true})
		}
	}
}

// scope is what the names of a package's files mean, apart from what we emit.
type scope struct {
	decls   map[string]token.Pos // of the package, its test files included
	imports map[string]token.Pos // of any of its files
}

func packageScope(m *module, p *pkg) scope {
	s := scope{map[string]token.Pos{}, map[string]token.Pos{}}
	for _, f := range p.files {
		if m.parse(f); f.ast.Name.Name != p.name { // an external test, or a program beside the package
			continue
		}
		for _, d := range f.ast.Decls {
			for _, id := range declared(d) {
				s.decls[id.Name] = id.Pos()
			}
		}
		for _, spec := range f.ast.Imports {
			s.imports[m.importName(spec)] = spec.Pos()
		}
	}
	return s
}

// declared are the package-level identifiers of a declaration.
func declared(d ast.Decl) (ids []*ast.Ident) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			ids = append(ids, d.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				ids = append(ids, spec.Name)
			case *ast.ValueSpec:
				ids = append(ids, spec.Names...)
			}
		}
	}
	return ids
}

// importName is what a file calls an import; where the package has not been looked up, what it is called by custom.
func (m *module) importName(spec *ast.ImportSpec) string {
	importPath, _ := strconv.Unquote(spec.Path.Value)
	if spec.Name != nil {
		return spec.Name.Name
	}
	if p := m.pkgs[importPath]; p != nil && p.name != "" {
		return p.name
	}
	return path.Base(importPath)
}

// predeclared are the identifiers emitted code needs with their usual meaning.
var predeclared = []string{"bool", "error", "int64", "string", "uint64"}

// reportCollisions reports names we are going to declare and the package has already, at the declaration in the way.
func reportCollisions(ds *diags, s scope, p *pkg, kinds []*kind) {
	taken := func(name, by string) {
		if pos, ok := s.decls[name]; ok {
			ds.add(pos, ruleCollision, "jobgen emits %s %s: rename this one", name, by)
		} else if pos, ok := s.imports[name]; ok {
			ds.add(pos, ruleCollision, "jobgen emits %s %s: import this under another name", name, by)
		}
	}
	owner := map[string]*kind{}
	for _, k := range kinds {
		for _, name := range k.emits() {
			if other := owner[name]; other != nil {
				ds.add(k.spec.Name.Pos(), ruleCollision, "types %s and %s would both get %s: rename one of the types", other.goName, k.goName, name)
				continue
			}
			owner[name] = k
			taken(name, "for type "+k.goName)
		}
	}
	if len(kinds) > 0 {
		taken("Handlers", "for the package")
		taken("Register", "for the package")
		taken(packageVar, "for the package")
	}
	if p.registry.IsValid() {
		taken("RegisterAll", "for the module")
	}
	for _, name := range predeclared {
		if pos, ok := s.decls[name]; ok {
			ds.add(pos, ruleCollision, "emitted code needs the predeclared %s: rename this one", name)
		}
	}
}

// emits lists what emit declares for the kind.
func (k *kind) emits() []string {
	return []string{k.goName + "Kind", k.specVar(), "Enqueue" + k.goName, "Enqueue" + k.goName + "Many", "Handle" + k.goName, k.goName + "Ref"}
}

// specVar names the unexported variable of the kind: chargeCardSpec, httpFetchSpec.
func (k *kind) specVar() string {
	rs := []rune(k.goName)
	for i := range rs {
		if i > 0 && i+1 < len(rs) && unicode.IsLower(rs[i+1]) || unicode.IsLower(rs[i]) {
			break
		}
		rs[i] = unicode.ToLower(rs[i])
	}
	return string(rs) + "Spec"
}

// bug is a fault of ours, which nobody can mend in their own sources.
func bug(format string, args ...any) error {
	return fmt.Errorf("bug in jobgen, please report it (your files are as they were): "+format, args...)
}
