package jobgen

import (
	"cmp"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// reportRegistries reports, at each place, that a module has more than one //job:registry.
func reportRegistries(ds *diags, m *module) {
	first := map[string]*pkg{}
	for _, p := range m.sorted() {
		if !p.registry.IsValid() {
			continue
		}
		other := first[p.module]
		if other == nil {
			first[p.module] = p
			continue
		}
		for _, pair := range [][2]*pkg{{p, other}, {other, p}} {
			ds.add(pair[0].registry, ruleRepeated, "package %s has //job:registry as well: keep one in the module, so that there is one RegisterAll to call", pair[1].path)
		}
	}
}

// registered are the packages whose kinds RegisterAll of p registers, by import path: all of p's module, asked for or not.
func registered(p *pkg, kinds []*kind) (pkgs []*pkg) {
	for _, k := range kinds {
		if k.pkg.module == p.module && !slices.Contains(pkgs, k.pkg) {
			pkgs = append(pkgs, k.pkg)
		}
	}
	return pkgs
}

// checkRegistry reports the kinds that a RegisterAll in p could not name.
func checkRegistry(ds *diags, m *module, p *pkg, kinds []*kind) {
	done := map[*pkg]bool{p: true}
	dead := map[*pkg]bool{}
	for _, k := range kinds {
		q := k.pkg
		if q.module != p.module || done[q] {
			continue
		}
		done[q] = true
		if q.name == "main" {
			ds.add(k.at["kind"], ruleRegistry, "RegisterAll in %s cannot import package main: move the kinds of %s to a package of their own, or //job:registry here", p.path, q.path)
		} else if tree := internalTo(q.path); !within(p.path, tree) {
			ds.add(k.at["kind"], ruleRegistry, "RegisterAll in %s cannot import %s, which is internal to %s: move //job:registry below that, or these kinds to where it can be imported", p.path, q.path, tree)
		} else if chain := m.importChain(q, p, dead); chain != nil {
			ds.add(p.registry, ruleRegistry, "RegisterAll cannot be here, it would make an import cycle: it needs %s, which imports %s; move //job:registry to a package that none with kinds imports, such as the command's", q.path, strings.Join(chain, ", which imports "))
		}
	}
}

// internalTo is the import path below which a package can be imported; "" if from everywhere.
func internalTo(importPath string) string {
	elements := strings.Split(importPath, "/")
	for i := len(elements) - 1; i >= 0; i-- {
		if elements[i] == "internal" {
			return strings.Join(elements[:i], "/")
		}
	}
	return ""
}

func within(importPath, tree string) bool {
	return tree == "" || importPath == tree || strings.HasPrefix(importPath, tree+"/")
}

// importChain gives the import paths that lead from one package of the main module to another, the last included; nil if
// there is no way. dead are packages already known not to lead there.
func (m *module) importChain(from, to *pkg, dead map[*pkg]bool) []string {
	if from == to {
		return []string{}
	}
	if dead[from] {
		return nil
	}
	dead[from] = true
	for _, importPath := range m.imports(from) {
		if next := m.pkgs[importPath]; next != nil && next.main {
			if chain := m.importChain(next, to, dead); chain != nil {
				return append([]string{importPath}, chain...)
			}
		}
	}
	return nil
}

// imports are what the package's files import, tests aside.
func (m *module) imports(p *pkg) (paths []string) {
	for _, f := range p.files {
		if f.test || f.ignored {
			continue
		}
		tree := f.ast
		if tree == nil { // do not keep it: whoever wants the file later wants all of it
			tree, _ = parser.ParseFile(token.NewFileSet(), f.path, f.src, parser.ImportsOnly|parser.SkipObjectResolution)
		}
		for _, spec := range tree.Imports {
			importPath, _ := strconv.Unquote(spec.Path.Value)
			paths = append(paths, importPath)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// registryNames chooses what RegisterAll of p calls the packages it imports: their own names, or, where those meet, with the
// names of the directories above. The parameter of each is its name with Handlers behind, so that must be free as well.
func registryNames(s scope, p *pkg, pkgs []*pkg, taken []string) map[*pkg]string {
	count := map[string]int{}
	for _, q := range pkgs {
		count[q.name]++
	}
	used := map[string]bool{p.name: true, "r": true}
	for _, name := range slices.Concat(taken, predeclared) {
		used[name] = true
	}
	names := map[*pkg]string{p: p.name}
	for _, q := range pkgs {
		if q == p {
			continue
		}
		name, above := q.name, path.Dir(q.path)
		if count[name] > 1 {
			name, above = plain(path.Base(above))+name, path.Dir(above)
		}
		free := func(name string) bool {
			_, declared := s.decls[name]
			return token.IsIdentifier(name) && !declared && !used[name] && !used[name+"Handlers"]
		}
		for n := 2; !free(name); n++ {
			if name, above = plain(path.Base(above))+name, path.Dir(above); above == "." || above == "/" {
				name = q.name + strconv.Itoa(n)
			}
		}
		names[q], used[name], used[name+"Handlers"] = name, true, true
	}
	return names
}

// plain leaves of a path element what can stand in an identifier.
func plain(element string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return r
		}
		return -1
	}, element)
}

// sorted are all packages by import path.
func (m *module) sorted() []*pkg {
	var list []*pkg
	for _, p := range m.pkgs {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *pkg) int { return cmp.Compare(a.path, b.path) })
	return list
}
