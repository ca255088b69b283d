package jobgen

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// OutputName is the file jobgen writes, one per package.
const OutputName = "jobs_gen.go"

// module is what one run sees: the packages it was asked for, the rest of the main module (for duplicate kinds), and,
// as far as payloads reach, what they import.
type module struct {
	dir  string // where go list runs
	fset *token.FileSet
	pkgs map[string]*pkg // by import path
}

// pkg is one package directory.
type pkg struct {
	path, name, dir string
	module          string // of the module path, "" for the standard library
	moduleDir       string // its root, if it is ours
	main            bool   // the module is ours to write in
	broken          bool   // not wanted, and its annotations have mistakes: kinds may be missing
	wanted          bool   // a pattern of the caller names it
	files           []*file
	registry        token.Pos // of its //job:registry, if it has one
	output          []byte    // its jobs_gen.go as it is now, nil if there is none
	listErr         string    // why go list could not find it
}

// file is one Go file other than our output.
type file struct {
	path    string
	test    bool // compiled into tests only
	ignored bool // build constraints exclude it here
	src     []byte
	ast     *ast.File
	err     error // of the parser
}

func (p *pkg) outputPath() string { return filepath.Join(p.dir, OutputName) }

// listed is what we ask go list for.
type listed struct {
	Dir, ImportPath, Name                                        string
	Match                                                        []string
	GoFiles, CgoFiles, IgnoredGoFiles, TestGoFiles, XTestGoFiles []string
	Module                                                       *struct {
		Path, Dir string
		Main      bool
	}
	Error *struct{ Err string }
}

func (l *listed) hasFiles() bool {
	return len(l.GoFiles)+len(l.CgoFiles)+len(l.IgnoredGoFiles)+len(l.TestGoFiles)+len(l.XTestGoFiles) > 0
}

// ours tells whether the package is part of the main module, so that its sources can be changed.
func (m *module) ours(p *types.Package) bool {
	found := m.pkgs[p.Path()]
	return found != nil && found.main
}

// goList runs go list -find, which neither loads dependencies nor minds code that does not compile.
func goList(ctx context.Context, dir string, patterns ...string) ([]listed, error) {
	args := []string{"list", "-e", "-find", "-json=Dir,ImportPath,Name,Match,GoFiles,CgoFiles,IgnoredGoFiles,TestGoFiles,XTestGoFiles,Module,Error", "--"}
	cmd := exec.CommandContext(ctx, "go", append(args, patterns...)...)
	cmd.Dir = dir
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		if text := strings.TrimSpace(stderr.String()); text != "" {
			err = errors.New(text)
		}
		return nil, fmt.Errorf("go list: %w", err)
	}
	var pkgs []listed
	for dec := json.NewDecoder(&out); ; {
		var l listed
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			return pkgs, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: reading its output: %w", err)
		}
		pkgs = append(pkgs, l)
	}
}

// load lists what the patterns name and everything else in the main module, and reads the files.
func load(ctx context.Context, dir string, patterns []string) (*module, error) {
	for _, p := range patterns {
		if strings.HasSuffix(p, ".go") {
			return nil, fmt.Errorf("%s is a file: name its package, ./%s", p, filepath.ToSlash(filepath.Dir(p)))
		}
	}
	patterns = slices.Clone(patterns)
	for i, p := range patterns {
		if strings.HasPrefix(p, ".") && strings.HasSuffix(p, "/") { // as completion types it; go list matches it without
			patterns[i] = strings.TrimRight(p, "/")
		}
	}
	list, err := list(ctx, dir, patterns)
	if err != nil {
		return nil, err
	}
	inModule := slices.ContainsFunc(list, func(l listed) bool { return l.Module != nil && l.Module.Main }) || hasGoMod(dir)
	m := &module{dir: dir, fset: token.NewFileSet(), pkgs: map[string]*pkg{}}
	unmatched := slices.Clone(patterns)
	for _, l := range list {
		p := m.add(l)
		for _, pattern := range patterns {
			if slices.Contains(l.Match, pattern) {
				p.wanted = true
				unmatched = slices.DeleteFunc(unmatched, func(u string) bool { return u == pattern })
			}
		}
		if p.wanted && !l.hasFiles() {
			switch {
			case !inModule:
				return nil, errors.New("not inside a Go module: run jobgen where go.mod is, or below")
			case l.Error != nil:
				return nil, errors.New(l.Error.Err)
			}
			return nil, fmt.Errorf("%s holds no Go files", l.ImportPath)
		}
		if p.wanted && !p.main {
			return nil, fmt.Errorf("%s is not in the module you are in: jobgen writes only there", l.ImportPath)
		}
	}
	if len(unmatched) > 0 {
		return nil, fmt.Errorf("no package matches %s", strings.Join(unmatched, " "))
	}
	return m, m.readMain()
}

// list asks go list for what the patterns match and for the rest of the main module, "work". To expand ./..., go list
// reads every file, though it finds the same packages as for "work", where it does not: with 500 packages that is 350 of
// 550 ms. So such patterns are matched here, and only those that match nothing, as below a testdata, are go list's.
func list(ctx context.Context, dir string, patterns []string) ([]listed, error) {
	trees := map[string]string{}
	others := []string{"work"}
	for _, p := range patterns {
		if tree := localTree(dir, p); tree != "" {
			trees[p] = tree
		} else {
			others = append(others, p)
		}
	}
	list, err := goList(ctx, dir, others...)
	if err != nil {
		return nil, err
	}
	for i, l := range list {
		for p, tree := range trees {
			if l.Module != nil && l.Module.Main && (l.Dir == tree || strings.HasPrefix(l.Dir, tree+string(filepath.Separator))) {
				list[i].Match = append(list[i].Match, p)
			}
		}
	}
	for _, l := range list {
		for _, p := range l.Match {
			delete(trees, p)
		}
	}
	if len(trees) == 0 {
		return list, nil
	}
	rest, err := goList(ctx, dir, slices.Collect(maps.Keys(trees))...)
	return append(list, rest...), err
}

// localTree is the directory that a pattern such as ./billing/... stands for; "" for other patterns.
func localTree(dir, pattern string) string {
	base, ok := strings.CutSuffix(filepath.ToSlash(pattern), "/...")
	local := base == "." || base == ".." || strings.HasPrefix(base, "./") || strings.HasPrefix(base, "../")
	if !ok || !local || strings.Contains(base, "...") {
		return ""
	}
	return filepath.Join(dir, base)
}

// hasGoMod tells whether dir is in a module, for one without packages.
func hasGoMod(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	parent := filepath.Dir(dir)
	return err == nil || parent != dir && hasGoMod(parent)
}

// add turns what go list says into a pkg. The files are read later.
func (m *module) add(l listed) *pkg {
	p := &pkg{path: l.ImportPath, name: l.Name, dir: l.Dir}
	if l.Module != nil {
		p.module, p.main = l.Module.Path, l.Module.Main
		if p.main {
			p.moduleDir = l.Module.Dir
		}
	}
	if l.Error != nil {
		p.listErr = l.Error.Err
	}
	for _, group := range []struct {
		names []string
		kind  file
	}{{l.GoFiles, file{}}, {l.CgoFiles, file{}}, {l.IgnoredGoFiles, file{ignored: true}},
		{l.TestGoFiles, file{test: true}}, {l.XTestGoFiles, file{test: true}}} {
		for _, name := range group.names {
			if name == OutputName {
				continue // what we write must not depend on what we wrote
			}
			f := group.kind
			f.path = filepath.Join(l.Dir, name)
			p.files = append(p.files, &f)
		}
	}
	slices.SortFunc(p.files, func(a, b *file) int { return strings.Compare(a.path, b.path) })
	m.pkgs[p.path] = p
	return p
}

// readMain reads the files of the main module's packages, several at a time: a module of 500 files is read in
// the time that go list takes to start.
func (m *module) readMain() error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed []error
	slots := make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	for _, p := range m.pkgs {
		if !p.main {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := p.read(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(failed...)
}

func (p *pkg) read() (err error) {
	if err := p.addUnlisted(); err != nil {
		return err
	}
	for _, f := range p.files {
		if f.src, err = os.ReadFile(f.path); err != nil {
			return fmt.Errorf("reading sources: %w", err)
		}
	}
	p.output, err = os.ReadFile(p.outputPath())
	if errors.Is(err, fs.ErrNotExist) {
		p.output, err = nil, nil
	} else if err == nil && p.output == nil {
		p.output = []byte{}
	}
	return err
}

// addUnlisted adds the Go files that go list passes over in silence, since it cannot read them or their build constraints.
// Without them, a package would seem to have fewer kinds.
func (p *pkg) addUnlisted() error {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return fmt.Errorf("reading sources: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		path := filepath.Join(p.dir, name)
		if !strings.HasSuffix(name, ".go") || name[0] == '_' || name[0] == '.' || name == OutputName || !e.Type().IsRegular() ||
			slices.ContainsFunc(p.files, func(f *file) bool { return f.path == path }) {
			continue
		}
		p.files = append(p.files, &file{path: path, ignored: true})
	}
	return nil
}

// mentionsJob is the byte search that spares us parsing the files without annotations.
func (f *file) mentionsJob() bool {
	return slices.ContainsFunc(mentions, func(m []byte) bool { return bytes.Contains(f.src, m) })
}

// parse is done once. What the parser could not read is left out; err says what that was.
func (m *module) parse(f *file) {
	if f.ast != nil {
		return
	}
	if f.src == nil { // a dependency's file
		if f.src, f.err = os.ReadFile(f.path); f.err != nil {
			f.ast = &ast.File{Name: ast.NewIdent("_")}
			return
		}
	}
	mode := parser.SkipObjectResolution
	if f.mentionsJob() {
		mode |= parser.ParseComments
	}
	f.ast, f.err = parser.ParseFile(m.fset, f.path, f.src, mode)
}

// constrained tells whether build constraints, in the file or in its name, decide if it is compiled.
func (f *file) constrained() bool {
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			if c.Pos() < f.ast.Package && constraint.IsGoBuild(c.Text) {
				return true
			}
		}
	}
	// A platform that does not exist: only a file whose name ends in _GOOS or _GOARCH is refused for it.
	nowhere := build.Context{GOOS: "nowhere", GOARCH: "nowhere", Compiler: "gc", CgoEnabled: true,
		OpenFile: func(string) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(f.src)), nil }}
	match, err := nowhere.MatchFile(filepath.Split(f.path))
	return err == nil && !match
}
