package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const logsPage = "operating/logs.md"

// logged is all that the code says of one message.
type logged struct {
	levels, fields map[string]bool
	where          string
}

// Every line that the module can write is on the page, with its levels and its fields, and the page has no other.
func TestThePageOfLogLinesIsComplete(t *testing.T) {
	t.Parallel()
	code := map[string]*logged{}
	for _, dir := range []string{"worker", "jobs", "joblog", "jobotel", "internal", "cmd"} {
		packages := map[string][]*ast.File{}
		files := token.NewFileSet()
		err := filepath.WalkDir(filepath.Join("..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() && d.Name() == "testdata" {
				return filepath.SkipDir
			}
			if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(files, path, nil, 0)
			packages[filepath.Dir(path)] = append(packages[filepath.Dir(path)], f)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range packages {
			findLines(t, files, p, code)
		}
	}
	text, err := os.ReadFile(logsPage)
	if err != nil {
		t.Fatal(err)
	}
	page, vocabulary := map[string]*logged{}, map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if m := regexp.MustCompile("^\\| `([a-z_]+)` \\| [^|]+ \\|$").FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			vocabulary[m[1]] = true
		}
		if m := regexp.MustCompile("^\\| ((?:`[A-Z]+` ?)+)\\| `([^`]+)` \\|([^|]*)\\| [^|]+ \\|$").FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			page[m[2]] = &logged{levels: words(m[1]), fields: words(m[3])}
		}
	}
	used := map[string]bool{"worker": true}
	for message, c := range code {
		p := page[message]
		maps.Copy(used, c.fields)
		switch {
		case p == nil:
			t.Errorf("%s: %q is not on the page: | %s | `%s` | %s | … |", c.where, message, list(c.levels), message, list(c.fields))
		case !maps.Equal(p.levels, c.levels):
			t.Errorf("%s: %q has the levels %s, on the page %s", c.where, message, list(c.levels), list(p.levels))
		case !maps.Equal(p.fields, c.fields):
			t.Errorf("%s: %q has the fields %s, on the page %s", c.where, message, list(c.fields), list(p.fields))
		}
	}
	for message := range page {
		if code[message] == nil {
			t.Errorf("the page has %q, which nobody writes", message)
		}
	}
	for name := range used {
		if !vocabulary[name] {
			t.Errorf("the field %s is not in the table of fields", name)
		}
	}
	for name := range vocabulary {
		if !used[name] {
			t.Errorf("the table of fields has %s, which no line has", name)
		}
	}
}

func words(s string) map[string]bool {
	out := map[string]bool{}
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(s, -1) {
		out[m[1]] = true
	}
	return out
}

func list(set map[string]bool) string {
	var out []string
	for _, s := range slices.Sorted(maps.Keys(set)) {
		out = append(out, "`"+s+"`")
	}
	return strings.Join(out, " ")
}

// findLines finds what a package logs, by slog's methods on something that is called log, and by worker's tell.
func findLines(t *testing.T, files *token.FileSet, p []*ast.File, into map[string]*logged) {
	constants, fieldsOf := map[string]string{}, map[string]ast.Node{}
	for _, f := range p {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if v, is := s.(*ast.ValueSpec); is && d.Tok == token.CONST && len(v.Values) == 1 {
						if text, is := stringOf(v.Values[0], nil); is {
							constants[v.Names[0].Name] = text
						}
					}
				}
			case *ast.FuncDecl:
				fieldsOf[d.Name.Name+"()"] = d
			}
		}
	}
	for _, f := range p {
		for _, d := range f.Decls {
			fn, is := d.(*ast.FuncDecl)
			if !is || fn.Body == nil || fn.Name.Name == "tell" {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				call, is := n.(*ast.CallExpr)
				if !is {
					return true
				}
				sel, is := call.Fun.(*ast.SelectorExpr)
				if !is {
					return true
				}
				name, args := sel.Sel.Name, call.Args
				level := strings.ToUpper(strings.TrimSuffix(name, "Context"))
				fields := map[string]bool{}
				switch {
				case name == "tell":
					level = strings.ToUpper(strings.TrimPrefix(args[0].(*ast.SelectorExpr).Sel.Name, "Level"))
					for _, f := range []string{"job", "kind", "queue", "attempt"} {
						fields[f] = true
					}
					args = append([]ast.Expr{args[1]}, args[3:]...)
				case !isLog(sel.X) || !slices.Contains([]string{"DEBUG", "INFO", "WARN", "ERROR", "LOG", "LOGATTRS"}, level):
					return true
				case strings.HasSuffix(name, "Context"):
					args = args[1:]
				}
				at := files.Position(call.Pos()).String()
				message, known := stringOf(args[0], constants)
				if !known {
					t.Errorf("%s: the message is no constant", at)
					return true
				}
				if rest := args[1:]; call.Ellipsis.IsValid() {
					collect(rest[len(rest)-1], fn, fieldsOf, fields)
				} else {
					pairs(t, at, rest, fields)
				}
				if into[message] == nil {
					into[message] = &logged{map[string]bool{}, map[string]bool{}, at}
				}
				into[message].levels[level] = true
				maps.Copy(into[message].fields, fields)
				return true
			})
		}
	}
}

func isLog(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "slog" || strings.EqualFold(x.Name, "log") || strings.EqualFold(x.Name, "logger")
	case *ast.SelectorExpr:
		return strings.EqualFold(x.Sel.Name, "log") || strings.EqualFold(x.Sel.Name, "logger")
	case *ast.CallExpr:
		sel, is := x.Fun.(*ast.SelectorExpr)
		return is && sel.Sel.Name == "to"
	}
	return false
}

func stringOf(x ast.Expr, constants map[string]string) (string, bool) {
	switch x := x.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(x.Value)
		return text, err == nil && x.Kind == token.STRING
	case *ast.Ident:
		text, is := constants[x.Name]
		return text, is
	}
	return "", false
}

func pairs(t *testing.T, at string, args []ast.Expr, fields map[string]bool) {
	for i := 0; i < len(args); i += 2 {
		name, is := stringOf(args[i], nil)
		if !is {
			if t != nil {
				t.Errorf("%s: the name of a field is no literal", at)
			}
			continue
		}
		fields[name] = true
	}
}

// collect finds the fields of x..., where x is a list, append to one, a variable of the function, or what a function gives.
func collect(x ast.Node, fn *ast.FuncDecl, fieldsOf map[string]ast.Node, fields map[string]bool) {
	switch x := x.(type) {
	case *ast.CompositeLit:
		pairs(nil, "", x.Elts, fields)
	case *ast.CallExpr:
		if f, is := x.Fun.(*ast.Ident); is && f.Name == "append" {
			collect(x.Args[0], fn, fieldsOf, fields)
			pairs(nil, "", x.Args[1:], fields)
		} else if f, is := x.Fun.(*ast.SelectorExpr); is && fieldsOf[f.Sel.Name+"()"] != nil {
			ast.Inspect(fieldsOf[f.Sel.Name+"()"], func(n ast.Node) bool {
				if list, is := n.(*ast.CompositeLit); is {
					pairs(nil, "", list.Elts, fields)
				}
				return true
			})
		}
	case *ast.Ident:
		ast.Inspect(fn, func(n ast.Node) bool {
			if set, is := n.(*ast.AssignStmt); is {
				for i, left := range set.Lhs {
					if id, is := left.(*ast.Ident); is && id.Name == x.Name && i < len(set.Rhs) {
						if c, is := set.Rhs[i].(*ast.CallExpr); is && len(c.Args) > 0 {
							pairs(nil, "", c.Args[1:], fields) // fields = append(fields, …)
						} else {
							collect(set.Rhs[i], fn, fieldsOf, fields)
						}
					}
				}
			}
			return true
		})
	}
}
