package jobgen

import (
	"context"
	"fmt"
	"go/ast"
	"go/scanner"
	"go/token"
	"go/types"
	"slices"
	"strconv"
	"strings"
)

// resolver finds out the types of payloads without compiling anything. It follows the names a payload mentions, through
// the package and into what it imports, and type-checks just the declarations it met. So code that does not compile (it
// may call an EnqueueX that is yet to be written) is in nobody's way unless a payload is made of it, and importing a
// package costs only what is used of it.
type resolver struct {
	m       *module
	index   map[*pkg]*index
	queue   []symbol        // met, not yet looked at
	waiting []symbol        // needs imports that have not been listed
	unknown map[string]bool // those imports
	checked map[string]*checked
	broken  map[*file]bool // declare what was met, and do not parse
}

// symbol is a name that a payload mentions: of pkg itself or, if from is set, of what file from imports as qual.
type symbol struct {
	pkg  *pkg
	name string
	from *file
	qual string
}

// index is a package's declarations and those of them that payloads reach.
type index struct {
	decls   map[string]decl
	methods map[string][]decl // marshalling methods by receiver
	keep    map[ast.Node]bool
	// constants names, for each identifier, a constant of every group of constants that mentions it; nil until asked for.
	constants map[string][]string
}

// decl is one declaration. node is what has to be kept of it: the type's spec, or the whole group of constants or
// variables, which depend on each other's place.
type decl struct {
	file *file
	node ast.Node
	spec *ast.TypeSpec // nil unless a type
}

// checked is a type-checked package and what the checker complained of.
type checked struct {
	*types.Package
	errs []types.Error
	busy bool // being checked: who imports it now is part of a cycle
}

// marshalling are the methods that change how encoding/json writes or reads a type.
var marshalling = map[string]bool{"MarshalJSON": true, "UnmarshalJSON": true, "MarshalText": true, "UnmarshalText": true}

func newResolver(m *module) *resolver {
	return &resolver{m: m, index: map[*pkg]*index{}, unknown: map[string]bool{}, checked: map[string]*checked{}, broken: map[*file]bool{}}
}

// want asks for a type of p and everything it is made of.
func (r *resolver) want(p *pkg, name string) { r.queue = append(r.queue, symbol{pkg: p, name: name}) }

// follow visits all that was asked for. Imports are looked up by go list, all that one round needs at once; payloads of
// usual depth need one round.
func (r *resolver) follow(ctx context.Context) error {
	for {
		for len(r.queue) > 0 {
			s := r.queue[len(r.queue)-1]
			r.queue = r.queue[:len(r.queue)-1]
			r.visit(s)
		}
		if len(r.unknown) == 0 {
			return nil
		}
		var paths []string
		for path := range r.unknown {
			paths = append(paths, path)
		}
		list, err := goList(ctx, r.m.dir, paths...)
		if err != nil {
			return fmt.Errorf("looking up what payloads import: %w", err)
		}
		for _, l := range list {
			if r.m.pkgs[l.ImportPath] == nil {
				r.m.add(l)
			}
		}
		for path := range r.unknown {
			if r.m.pkgs[path] == nil { // go list has nothing under this name: never ask again
				r.m.pkgs[path] = &pkg{path: path, listErr: "not found"}
			}
		}
		clear(r.unknown)
		r.queue, r.waiting = r.waiting, nil
	}
}

// visit keeps the declaration behind s and queues what it mentions.
func (r *resolver) visit(s symbol) {
	if s.from != nil {
		target := r.imported(s.from, s.qual)
		if target == nil {
			if len(r.unknown) > 0 {
				r.waiting = append(r.waiting, s)
			}
			return
		}
		s = symbol{pkg: target, name: s.name}
	}
	ix := r.indexOf(s.pkg)
	d, ok := ix.decls[s.name]
	if !ok || ix.keep[d.node] {
		return
	}
	ix.keep[d.node] = true
	if d.file.err != nil {
		r.broken[d.file] = true
	}
	methods := ix.methods[s.name]
	for _, m := range methods {
		ix.keep[m.node] = true
		r.mention(s.pkg, m.file, m.node.(*ast.FuncDecl).Type)
	}
	if d.spec != nil {
		r.mentionConstants(s.pkg, ix, d)
		if _, isStruct := d.spec.Type.(*ast.StructType); isStruct && len(methods) > 0 {
			return // opaque: what it is made of never reaches the wire
		}
	}
	r.mention(s.pkg, d.file, d.node)
}

// mention queues every package-level name within n.
func (r *resolver) mention(p *pkg, f *file, n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				if _, local := r.indexOf(p).decls[x.Name]; !local {
					r.queue = append(r.queue, symbol{pkg: p, name: n.Sel.Name, from: f, qual: x.Name})
					return false
				}
			}
		case *ast.Ident:
			r.queue = append(r.queue, symbol{pkg: p, name: n.Name})
			if importsDot(f) {
				r.queue = append(r.queue, symbol{pkg: p, name: n.Name, from: f, qual: "."})
			}
		case *ast.Field: // its type, not its name, which may be spelled like something else
			r.mention(p, f, n.Type)
			return false
		case *ast.BlockStmt:
			return false
		}
		return true
	})
}

func importsDot(f *file) bool {
	return slices.ContainsFunc(f.ast.Imports, func(s *ast.ImportSpec) bool { return s.Name != nil && s.Name.Name == "." })
}

// imported finds the package that f calls qual. It notes in r.unknown the imports it would have to know to tell.
func (r *resolver) imported(f *file, qual string) *pkg {
	var unnamed []string
	for _, spec := range f.ast.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		switch {
		case path == "C" || path == "unsafe":
		case spec.Name == nil:
			unnamed = append(unnamed, path)
		case spec.Name.Name == qual:
			if r.m.pkgs[path] == nil {
				r.unknown[path] = true
			}
			return r.m.pkgs[path]
		}
	}
	for _, path := range unnamed {
		switch p := r.m.pkgs[path]; {
		case p == nil:
			r.unknown[path] = true
		case p.name == qual:
			return p
		}
	}
	return nil
}

// reportBroken reports the files that declare what payloads are made of and do not parse: what the parser made of them may
// lack fields.
func (r *resolver) reportBroken(ds *diags) {
	for f := range r.broken {
		if list, ok := f.err.(scanner.ErrorList); ok {
			ds.addAt(list[0].Pos, ruleSyntax, unparsed, list[0].Msg)
		}
	}
}

func (r *resolver) indexOf(p *pkg) *index {
	if ix := r.index[p]; ix != nil {
		return ix
	}
	ix := &index{decls: map[string]decl{}, methods: map[string][]decl{}, keep: map[ast.Node]bool{}}
	r.index[p] = ix
	for _, f := range p.files {
		if f.test || f.ignored {
			continue
		}
		r.m.parse(f)
		for _, d := range f.ast.Decls {
			ix.add(f, d)
		}
	}
	return ix
}

func (ix *index) add(f *file, d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv != nil && len(d.Recv.List) == 1 && marshalling[d.Name.Name] {
			name := receiver(d.Recv.List[0].Type)
			ix.methods[name] = append(ix.methods[name], decl{file: f, node: d})
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				ix.decls[spec.Name.Name] = decl{f, spec, spec}
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					ix.decls[name.Name] = decl{file: f, node: d}
				}
			}
		}
	}
}

// receiver is the name of the type a method belongs to.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.ParenExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	}
	return ""
}

// check type-checks what follow has kept of the package. It never fails as a whole: a payload made of something that
// could not be resolved has an invalid type there.
func (r *resolver) check(p *pkg) *checked {
	if c := r.checked[p.path]; c != nil {
		return c
	}
	c := &checked{Package: types.NewPackage(p.path, p.name), busy: true}
	r.checked[p.path] = c
	conf := types.Config{
		IgnoreFuncBodies: true, FakeImportC: true, DisableUnusedImportCheck: true,
		Importer: r,
		Error: func(err error) {
			if e, ok := err.(types.Error); ok {
				c.errs = append(c.errs, e)
			}
		},
	}
	_ = types.NewChecker(&conf, r.m.fset, c.Package, nil).Files(r.kept(p)) // errors are in c.errs
	c.busy = false
	return c
}

// Import makes the resolver the checker's importer.
func (r *resolver) Import(path string) (*types.Package, error) {
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	p := r.m.pkgs[path]
	switch {
	case p == nil:
		return nil, fmt.Errorf("package %s was not looked up", path)
	case p.name == "":
		return nil, fmt.Errorf("%s", p.listErr)
	}
	c := r.check(p)
	if c.busy {
		return nil, fmt.Errorf("import cycle through %s", path)
	}
	c.MarkComplete() // as far as anyone will ask
	return c.Package, nil
}

// kept gives the package's files reduced to the declarations payloads reach and the imports those use.
func (r *resolver) kept(p *pkg) (files []*ast.File) {
	ix := r.indexOf(p)
	for _, f := range p.files {
		if f.test || f.ignored {
			continue
		}
		small := *f.ast
		small.Decls, small.Imports, small.Comments = nil, nil, nil
		used := map[string]bool{}
		keep := func(d ast.Decl, n ast.Node) {
			small.Decls = append(small.Decls, d)
			ast.Inspect(n, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					if x, ok := s.X.(*ast.Ident); ok {
						used[x.Name] = true
					}
				}
				return true
			})
		}
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if ix.keep[d] {
					keep(d, d.Type)
				}
			case *ast.GenDecl:
				if ix.keep[d] {
					keep(d, d)
				}
				for _, spec := range d.Specs {
					if ix.keep[spec] {
						keep(&ast.GenDecl{TokPos: spec.Pos(), Tok: token.TYPE, Specs: []ast.Spec{spec}}, spec)
					}
				}
			}
		}
		if len(small.Decls) == 0 {
			continue
		}
		var imports []ast.Decl
		for _, spec := range f.ast.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			name := path // for C and unsafe
			if spec.Name != nil {
				name = spec.Name.Name
			} else if q := r.m.pkgs[path]; q != nil && q.name != "" {
				name = q.name
			}
			// A package that could not be found has no name: keep it, it may be the one that is meant.
			if lost := r.m.pkgs[path] != nil && r.m.pkgs[path].name == ""; used[name] || name == "." || lost {
				imports = append(imports, &ast.GenDecl{TokPos: spec.Pos(), Tok: token.IMPORT, Specs: []ast.Spec{spec}})
				small.Imports = append(small.Imports, spec)
			}
		}
		small.Decls = append(imports, small.Decls...)
		files = append(files, &small)
	}
	return files
}

// types are the names of the types the package declares.
func (ix *index) types() (names []string) {
	for name, d := range ix.decls {
		if d.spec != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// whyInvalid looks on the line of pos for a type of a package that could not be found, which the type-checker passes
// over in silence; "" if there is none.
func (r *resolver) whyInvalid(pos token.Pos) (why string) {
	at := r.m.fset.PositionFor(pos, false)
	for _, p := range r.m.pkgs {
		for _, f := range p.files {
			if f.path != at.Filename || f.ast == nil {
				continue
			}
			ast.Inspect(f.ast, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok || r.m.fset.PositionFor(s.Pos(), false).Line != at.Line {
					return true
				}
				if x, ok := s.X.(*ast.Ident); ok && why == "" {
					why = r.lostImport(f, x.Name)
				}
				return true
			})
		}
	}
	return why
}

func (r *resolver) lostImport(f *file, qual string) string {
	for _, spec := range f.ast.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		if r.m.importName(spec) != qual {
			continue
		}
		if path == "C" {
			return "it comes from cgo, whose types differ between platforms; write a Go type"
		}
		p := r.m.pkgs[path]
		if p == nil {
			continue
		}
		for _, f := range p.files {
			if list, ok := f.err.(scanner.ErrorList); ok && !f.test && !f.ignored {
				return fmt.Sprintf("%s:%d:%d does not parse, %s; mend that first", shortPath(r.m.dir, f.path), list[0].Pos.Line, list[0].Pos.Column, list[0].Msg)
			}
		}
		if p.name == "" {
			reason, _, _ := strings.Cut(p.listErr, ";")
			return "there is no package " + path + " (" + strings.TrimSpace(reason) + "); if another generator makes it, run that one first"
		}
	}
	return ""
}
