package jobgen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Scaffold is Plan with, beside its outputs, the skeleton of a handler and a test of it for each kind without one. These
// files are the user's from then on.
//
// A kind has a handler if a function of the module, tests aside, takes a *jobs.Job of it. The new ones become methods of
// the type that handles the other kinds of the package, wherever in the module that is; if there is none yet, of a new
// type beside the kinds.
func Scaffold(ctx context.Context, dir string, patterns []string) ([]Output, []Diag, error) {
	p, err := plan(ctx, dir, patterns)
	if err != nil {
		return nil, nil, err
	}
	found := findHandlers(p.m, p.kinds)
	for i, k := range p.kinds {
		if !k.pkg.wanted || len(found[k]) > 0 {
			continue
		}
		own := slices.DeleteFunc(slices.Clone(p.kinds), func(other *kind) bool { return other.pkg != k.pkg })
		first := !slices.ContainsFunc(p.kinds[:i], func(before *kind) bool { return before.pkg == k.pkg && len(found[before]) == 0 })
		h, ok := homeOf(p.ds, p.m, k, own, found)
		if !ok {
			continue
		}
		h.declare = h.declare && first
		outputs, err := scaffoldKind(p.ds, p.m, h, k)
		if err != nil {
			return nil, nil, err
		}
		p.outputs = append(p.outputs, outputs...)
	}
	if Stop(p.ds.list) {
		p.outputs = nil
	}
	return p.outputs, p.ds.sorted(), nil
}

// handler is a function that takes the job of a kind.
type handler struct {
	pkg     *pkg
	typ     string // of the receiver; "" for a function
	pointer bool   // the receiver is one
	pos     token.Pos
}

// findHandlers looks in the whole module.
func findHandlers(m *module, kinds []*kind) map[*kind][]handler {
	byName := map[string]*kind{} // import path and Go name
	for _, k := range kinds {
		byName[k.pkg.path+"."+k.goName] = k
	}
	found := map[*kind][]handler{}
	for _, p := range m.sorted() {
		for _, f := range p.files {
			if !p.main || f.test || f.ignored || !bytes.Contains(f.src, []byte("Job[")) {
				continue
			}
			m.parse(f)
			ast.Inspect(f.ast, func(n ast.Node) bool {
				var h handler
				var params *ast.FieldList
				switch n := n.(type) {
				case *ast.FuncDecl:
					h, params = handler{pkg: p, pos: n.Name.Pos()}, n.Type.Params
					if n.Recv != nil && len(n.Recv.List) == 1 {
						h.typ = receiver(n.Recv.List[0].Type)
						_, h.pointer = n.Recv.List[0].Type.(*ast.StarExpr)
					}
				case *ast.FuncLit:
					h, params = handler{pkg: p, pos: n.Pos()}, n.Type.Params
				default:
					return true
				}
				for _, param := range params.List {
					if k := byName[jobType(m, p, f, param.Type)]; k != nil {
						found[k] = append(found[k], h)
					}
				}
				return true
			})
		}
	}
	return found
}

// jobType gives the import path and name of P where a parameter is a *jobs.Job[P], whatever the file calls package jobs.
func jobType(m *module, p *pkg, f *file, e ast.Expr) string {
	star, ok := e.(*ast.StarExpr)
	if !ok {
		return ""
	}
	index, ok := star.X.(*ast.IndexExpr)
	if !ok {
		return ""
	}
	if job, ok := index.X.(*ast.SelectorExpr); !ok || job.Sel.Name != "Job" {
		return ""
	}
	switch payload := index.Index.(type) {
	case *ast.Ident:
		return p.path + "." + payload.Name
	case *ast.SelectorExpr:
		if qual, ok := payload.X.(*ast.Ident); ok {
			for _, spec := range f.ast.Imports {
				if m.importName(spec) == qual.Name {
					return strings.Trim(spec.Path.Value, "\"`") + "." + payload.Sel.Name
				}
			}
		}
	}
	return ""
}

// home is the type that gets a method, and what names mean in its package.
type home struct {
	handler
	scope   scope
	declare bool // it does not exist yet
}

// homeOf finds where the handler of k belongs: to the one type that handles the package's other kinds.
func homeOf(ds *diags, m *module, k *kind, own []*kind, found map[*kind][]handler) (home, bool) {
	var types []handler
	for _, other := range own {
		methods := slices.DeleteFunc(slices.Clone(found[other]), func(h handler) bool { return h.typ == "" })
		if len(methods) == 0 {
			methods = found[other] // functions; beside methods, those are what wraps handlers
		}
		for _, h := range methods {
			if h.typ == "" {
				ds.add(k.spec.Name.Pos(), ruleScaffold, "%s is handled by a function (%s) and not by a method, so there is no type for %s to go to: write its handler where that one is", other.goName, ds.place(h.pos), k.goName)
				return home{}, false
			}
			if !slices.ContainsFunc(types, func(t handler) bool { return t.pkg == h.pkg && t.typ == h.typ }) {
				types = append(types, h)
			}
		}
	}
	switch len(types) {
	case 0:
		s := packageScope(m, k.pkg)
		return home{handler{pkg: k.pkg, typ: s.unused("Handler", "JobHandler"), pointer: true}, s, true}, true
	case 1:
		return home{types[0], packageScope(m, types[0].pkg), false}, true
	}
	ds.add(k.spec.Name.Pos(), ruleScaffold, "the kinds of this package are handled by several types (%s, %s): write the method %s of the one it belongs to", ds.place(types[0].pos), ds.place(types[1].pos), k.goName)
	return home{}, false
}

// unused is the first of the names that the package does not declare, or the last with a number.
func (s scope) unused(names ...string) string {
	for _, name := range names {
		if _, taken := s.decls[name]; !taken {
			return name
		}
	}
	last := names[len(names)-1]
	for n := 2; ; n++ {
		name := fmt.Sprint(last, n)
		if _, taken := s.decls[name]; !taken {
			return name
		}
	}
}

// scaffoldKind gives the files of one kind: its handler and, unless somebody has written one, its test.
func scaffoldKind(ds *diags, m *module, h home, k *kind) (outputs []Output, err error) {
	path := filepath.Join(h.pkg.dir, snake(k.goName)+"_handler.go")
	testPath := filepath.Join(h.pkg.dir, snake(k.goName)+"_handler_test.go")
	w := newSkeleton(m, h, k)
	add := func(path string, write func()) {
		w.buf.Reset()
		write()
		src, bad := format.Source(w.buf.Bytes())
		if bad != nil {
			err = bug("the skeleton of %s does not parse: %w", k.name, bad)
		}
		outputs = append(outputs, Output{Path: path, New: src})
	}
	if exists(path) {
		ds.addAt(token.Position{Filename: path, Line: 1, Column: 1}, ruleScaffold,
			"this file is where the handler of %s would go (no function takes *jobs.Job[%[1]s]); it is left alone: write the handler, or move the file away", k.goName)
		return nil, nil
	}
	add(path, w.handler)
	if !exists(testPath) {
		add(testPath, w.test)
	}
	return outputs, err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// skeleton writes the files of one kind. Its methods read in the order of the files.
type skeleton struct {
	emitter
	home
	k    *kind
	own  string // what the file calls the kind's package, with a dot; "" in that package
	zero string // what stands before the error in a return
}

func newSkeleton(m *module, h home, k *kind) *skeleton {
	s := h.scope
	w := &skeleton{home: h, k: k, emitter: emitter{context: s.free("context"), jobs: s.free("jobs"), pgx: s.free("pgx"), worker: s.free("worker")}}
	if h.pkg != k.pkg {
		w.own = s.free(k.pkg.name) + "."
	}
	if k.result != "" {
		w.zero = w.own + k.result + "{}, "
	}
	return w
}

func (w *skeleton) importOwn() {
	if w.own != "" {
		w.importAs(w.k.pkg.name, strings.TrimSuffix(w.own, "."), w.k.pkg.path)
	}
}

// notWritten is how the skeleton's error ends.
const notWritten = "the handler is not written yet"

func (w *skeleton) handler() {
	k, errorsName := w.k, w.scope.free("errors")
	w.line("package %s", w.pkg.name)
	w.line("import (")
	w.importAs("context", w.context, "context")
	w.importAs("errors", errorsName, "errors")
	w.line("")
	if k.tx {
		w.importAs("pgx", w.pgx, pgxPath)
	}
	w.importAs("jobs", w.jobs, jobsPath)
	w.importOwn()
	w.line(")")
	if w.declare {
		w.line("// %s runs the jobs of this package. Its fields are for what handlers need: pools, clients, settings.", w.typ)
		w.line("type %s struct{}", w.typ)
		w.line("")
		w.line("var _ Handlers = (*%s)(nil)", w.typ)
		w.line("")
	}
	star := ""
	if w.pointer {
		star = "*"
	}
	w.line("// %s runs %s.", k.goName, k.name)
	w.line("func (h %s%s) %s(ctx %s.Context, %sjob *%s.Job[%s%s]) %s {", star, w.typ, k.goName, w.context, w.txParam(), w.jobs, w.own, k.goName, w.returns())
	if k.tx {
		w.transactional()
	} else {
		w.plain()
	}
	w.limits()
	w.outcomes()
	w.line("return %s%s.Permanent(%s.New(%q))", w.zero, w.jobs, errorsName, k.name+": "+notWritten)
	w.line("}")
}

func (w *skeleton) txParam() string {
	if w.k.tx {
		return "tx " + w.pgx + ".Tx, "
	}
	return ""
}

func (w *skeleton) returns() string {
	if w.k.result != "" {
		return "(" + w.own + w.k.result + ", error)"
	}
	return "error"
}

func (w *skeleton) transactional() {
	w.line("// What is written through tx takes effect exactly once: it commits with the job's completion, or not at all.")
	w.line("//")
	w.line("//\t_, err := tx.Exec(ctx, \"INSERT INTO …\", job.Payload.…)")
	w.line("//")
	w.line("// Nothing else belongs here: a mail that was sent stays sent when tx is rolled back. Enqueue a job for it, in tx as")
	w.line("// well. What goes to another system through that job takes job.Key() along, which is the same for each attempt.")
	w.line("//")
}

func (w *skeleton) plain() {
	w.line("// This runs at least once: after a crash, a timeout or a lost connection it runs again. Whatever it does outside must")
	w.line("// be done once all the same, so pass job.Key() on, which is the same for each attempt:")
	w.line("//")
	w.line("//\treq.Header.Set(\"Idempotency-Key\", job.Key())")
	w.line("//\tdb.Exec(ctx, \"INSERT INTO … (job_key, …) VALUES ($1, …) ON CONFLICT (job_key) DO NOTHING\", job.Key(), …)")
	w.line("//")
	if !w.k.has("key") {
		w.line("// The kind has no //job:key, so that tells jobs apart, not work: what is enqueued twice is done twice.")
	}
	w.line("// If all that happens is writes to this database, declare the kind tx, and they happen exactly once.")
	w.line("//")
}

func (w *skeleton) limits() {
	if len(w.k.schedules) > 0 {
		w.line("// The payload of a scheduled job is the zero value; the tick it stands for is job.ScheduledAt().")
		w.line("//")
	}
	taken := ", when the job is taken from this worker,"
	if w.k.lock {
		taken = "" // nobody can
	}
	w.line("// ctx ends after %s%s and at shutdown: hand it to everything.", spell(w.k.timeout), taken)
	w.line("")
}

func (w *skeleton) outcomes() {
	done := "return nil"
	if w.k.result != "" {
		done = "return " + w.own + w.k.result + "{…}, nil"
	}
	lines := [][2]string{
		{done, "done"},
		{"return " + w.zero + "err", fmt.Sprintf("again after the back-off, at most %d attempts in all", w.k.attempts)},
		{"return " + w.zero + w.jobs + ".RetryIn(time.Minute, err)", "again in a minute"},
		{"return " + w.zero + w.jobs + ".Permanent(err)", "never again: the job is dead, and stays on record"},
	}
	width := 0
	for _, l := range lines {
		width = max(width, len([]rune(l[0])))
	}
	w.line("// What to return:")
	w.line("//")
	for _, l := range lines {
		w.line("//\t%-*s // %s", width, l[0], l[1])
	}
}

func (w *skeleton) test() {
	k, s := w.k, w.scope
	testing, jobtest, strs := s.free("testing"), s.free("jobtest"), s.free("strings")
	name := s.unused("Test"+k.goName, "Test"+k.goName+"Handler")
	w.line("package %s", w.pkg.name)
	w.line("import (")
	w.importAs("strings", strs, "strings")
	w.importAs("testing", testing, "testing")
	w.line("")
	w.importAs("jobtest", jobtest, jobtestPath)
	w.importAs("worker", w.worker, workerPath)
	w.importOwn()
	w.line(")")
	w.line("// A job of this kind from being enqueued to its end, in a real worker on a database of its own.")
	w.line("func %s(t *%s.T) {", name, testing)
	w.line("t.Parallel()")
	w.line("db := %s.DB(t)", jobtest)
	onRecord := k.result != "" || k.has("key") // else nothing is left of a job that succeeded
	if onRecord {
		w.line("ref, err := %sEnqueue%s(t.Context(), db, %[1]s%[2]s{})", w.own, k.goName)
	} else {
		w.line("_, err := %sEnqueue%s(t.Context(), db, %[1]s%[2]s{})", w.own, k.goName)
	}
	w.line("if err != nil {")
	w.line("t.Fatal(err)")
	w.line("}")
	w.line("%s.Run(t, db, func(r *%s.Registry) { %sRegister(r, new(%s)) })", jobtest, w.worker, w.own, w.typ)
	w.line("")
	if onRecord {
		w.line("// When the handler is written, err is nil and the result is what it should be.")
		w.line("_, err = ref.Await(t.Context(), db)")
		w.line("if err == nil || !%s.Contains(err.Error(), %q) {", strs, notWritten)
		w.line("t.Errorf(\"awaiting it gives %%v\", err)")
	} else {
		w.line("// When the handler is written, no job is left, and what it did is there.")
		w.line("left := %s.Enqueued[%s%s](t, db, %[2]s%[3]sKind)", jobtest, w.own, k.goName)
		w.line("if len(left) != 1 || !%s.Contains(left[0].LastError, %q) {", strs, notWritten)
		w.line("t.Errorf(\"left is %%+v\", left)")
	}
	w.line("}")
	w.line("}")
}

// place is where something stands, for a message.
func (ds *diags) place(pos token.Pos) string {
	at := ds.fset.PositionFor(pos, false)
	return fmt.Sprintf("%s:%d", filepath.Base(at.Filename), at.Line)
}
