package jobgen

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The table of rules is true. Each rule has an archive in testdata/lock/rules: the program before and after such a change
// (old.go, new.go), values that each writes, and what becomes of them when the other program reads them. All of these
// programs are compiled into one and run. Each value is encoded by its own type, stored in a row with the kind, queue,
// version and key that the annotations give, and read by the other program as a worker would:
//
//	lossless    what was written comes back
//	upgraded    it went through the upgrade function, and means what it did
//	respelled   it comes back, but only because encoding/json does not mind case
//	misreads    it decodes, and means something else to the program (its function Sees says what it takes the job for)
//	changes     it decodes, and a value in it is lost or another one
//	unkeyed     it was stored without the key it would get now
//	rekeyed     it was stored under another key than it would get now
//	unclaimed   no worker takes it
//	fails       it does not decode
//
// The last file, want, is what jobgen reports, for the type as a payload and, unless the change is about the kind itself,
// for the same type as a result.
type ruleCase struct {
	id                        string
	claims                    map[string]string
	about                     string // "kind", or "" for what is in payload and result alike
	olderName, because, stray string
	serves                    []string
	old, new                  string
	archive                   archive
	path                      string
}

func readRuleCases(t *testing.T) (cases []*ruleCase) {
	paths, err := filepath.Glob("testdata/lock/rules/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		c := &ruleCase{id: strings.TrimSuffix(filepath.Base(path), ".txtar"), claims: map[string]string{}, archive: readArchive(t, path), path: path}
		if len(c.archive.files) != 3 || c.archive.files[2].name != "want" {
			t.Fatalf("%s: the files must be old.go, new.go and want", path)
		}
		c.old, c.new = c.archive.files[0].body, c.archive.files[1].body
		for line := range strings.Lines(c.archive.text) {
			word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch word {
			case "old->new", "new->old":
				c.claims[word] = rest
			case "no": // no result …: what is read where there is none
				_, c.claims["no result"], _ = strings.Cut(rest, " ")
			case "about":
				c.about = rest
			case "because":
				c.because = rest
			case "old": // old name …
				_, c.olderName, _ = strings.Cut(rest, " ")
			case "new": // new serves …
				c.serves = strings.Fields(rest)[1:]
			case "stored":
				c.stray = rest
			}
		}
		cases = append(cases, c)
	}
	return cases
}

// pkg is the package of the case in the module of all cases.
func (c *ruleCase) pkg() string { return strings.ReplaceAll(c.id, "-", "_") }

// source puts one side of the case into that package.
func (c *ruleCase) source(src string) string {
	src = strings.Replace(src, "package p\n", "package "+c.pkg()+"\n", 1)
	return regexp.MustCompile(`\bp\.(job|task|older)\b`).ReplaceAllString(src, c.pkg()+".$1")
}

// asResult makes the payload of a source the result of another kind.
func (c *ruleCase) asResult(src string) string {
	src = regexp.MustCompile(`(?m)^//job:.*\n`).ReplaceAllString(src, "")
	src = strings.Replace(src, "package p\n", "package "+c.pkg()+"_result\n", 1)
	return src + "\n//job:kind " + c.pkg() + "_result.job timeout=1s result=Job\ntype Other struct{}\n"
}

func TestEachRuleDoesWhatItsClassSays(t *testing.T) {
	t.Parallel()
	cases := readRuleCases(t)
	for _, r := range rules {
		if !slices.ContainsFunc(cases, func(c *ruleCase) bool { return c.id == r.ID }) {
			t.Errorf("rule %s has no archive in testdata/lock/rules", r.ID)
		}
	}
	dir := t.TempDir()
	write := func(side func(c *ruleCase) string) *planned {
		a := archive{}
		for _, c := range cases {
			a.files = append(a.files, archiveFile{c.pkg() + "/p.go", c.source(side(c))})
			if c.about == "" {
				a.files = append(a.files, archiveFile{c.pkg() + "_result/p.go", c.asResult(side(c))})
			}
		}
		a.extract(t, dir, plainGoMod)
		p, err := plan(t.Context(), dir, []string{"./..."})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	old := write(func(c *ruleCase) string { return c.old })
	if Stop(old.ds.list) {
		t.Fatal(old.ds.list)
	}
	for _, o := range old.outputs {
		if filepath.Base(o.Path) == LockName {
			if _, err := Write([]Output{o}); err != nil {
				t.Fatal(err)
			}
		}
	}
	after := write(func(c *ruleCase) string { return c.new })
	after.ds = &diags{fset: after.m.fset} // the changes themselves, of all classes
	guards, err := compareModules(after)
	if err != nil || len(guards) != 1 {
		t.Fatal(len(guards), err, after.ds.list)
	}
	outcomes := runRuleCases(t, cases, old.kinds, after.kinds)
	for _, c := range cases {
		t.Run(c.id, func(t *testing.T) {
			rule := findRule(c.id)
			if rule == nil {
				t.Fatal("there is no such rule")
			}
			if rule.Kind != (c.about == "kind") {
				t.Error("the rule and the archive do not agree whether this is about the kind itself")
			}
			c.checkReport(t, dir, after.ds, guards[0], rule)
			c.checkClaims(t, rule, outcomes[c.id])
		})
	}
}

// checkReport compares what is reported with the golden, and sees to it that the rule is what it is reported by.
func (c *ruleCase) checkReport(t *testing.T, dir string, ds *diags, g *guard, rule *Rule) {
	var got strings.Builder
	for _, pkg := range []string{c.pkg(), c.pkg() + "_result"} {
		found := false
		for _, ch := range g.changes {
			if !strings.HasPrefix(ch.subject, pkg+".") {
				continue
			}
			found = found || ch.rule == rule
			if ch.rule.Class == Safe {
				continue // not reported at all
			}
			d := g.diag(ds, ch)
			line := d.Format(dir)
			line = regexp.MustCompile(`jobs\.lock\.json:\d+`).ReplaceAllString(line, "jobs.lock.json:N")
			got.WriteString(strings.NewReplacer(pkg+"/p.go:", "new.go:", pkg+".", "p.").Replace(line) + "\n")
			if rank(ch.rule.Class) > rank(rule.Class) {
				t.Errorf("%s is reported as well, which is %s", ch.rule.ID, ch.rule.Class)
			}
		}
		if !found && (c.about == "" || pkg == c.pkg()) {
			t.Errorf("the change is not reported of %s", pkg)
		}
	}
	want := &c.archive.files[2]
	switch {
	case got.String() == want.body:
	case *update:
		want.body = got.String()
		if err := os.WriteFile(c.path, c.archive.format(), 0o666); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("got:\n%swant:\n%s", got.String(), want.body)
	}
}

func rank(c Class) int { return slices.Index([]Class{Safe, Staged, Breaking}, c) }

// checkClaims compares what happened with what the archive claims, and that with what the class of the rule promises.
func (c *ruleCase) checkClaims(t *testing.T, rule *Rule, outcome map[string]string) {
	for what, claim := range c.claims {
		if outcome[what] != claim {
			t.Errorf("%s: %s, and the archive claims %s", what, outcome[what], claim)
		}
	}
	newReadsOld, oldReadsNew := c.claims["old->new"], c.claims["new->old"]
	if zero := c.claims["no result"]; zero != "" { // a result that is missing is read as a zero value
		newReadsOld = map[Class]string{Staged: "lossless", Breaking: "changes"}[rule.Class]
		oldReadsNew = "changes"
	}
	fine := newReadsOld == "lossless" || newReadsOld == "upgraded"
	switch {
	case rule.ID == "kind-added": // there is nothing to read
	case c.because != "": // an exception, which says why
	case rule.Class == Safe && (!fine || oldReadsNew != "lossless" && oldReadsNew != "changes"):
		t.Errorf("safe, but new reads old: %s, old reads new: %s", newReadsOld, oldReadsNew)
	case rule.Class == Staged && rule.ID != "key-added" && (!fine || oldReadsNew == "lossless"):
		t.Errorf("staged, but new reads old: %s, old reads new: %s", newReadsOld, oldReadsNew)
	case rule.Class == Breaking && fine:
		t.Error("breaking, but the new program reads what the old one wrote")
	}
	if (rule.Order != "") != (rule.Class == Staged) {
		t.Error("staged rules, and no others, have an order of deployment")
	}
}

// runRuleCases compiles the types of all cases into one program, a package-level name of its own for each of theirs.
func runRuleCases(t *testing.T, cases []*ruleCase, before, after []*kind) map[string]map[string]string {
	dir := t.TempDir()
	var table bytes.Buffer
	write := func(name string, src []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), src, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range cases {
		fmt.Fprintf(&table, "{%q, %q, %q, %#v,\n", c.id, c.olderName, c.stray, c.serves)
		for side, src := range map[string]string{"old": c.old, "new": c.new} {
			write(c.pkg()+"_"+side+".go", renamed(t, src, c.pkg()+side))
		}
		fmt.Fprintf(&table, "%s,\n%s},\n", c.side(c.old, "old", before), c.side(c.new, "new", after))
	}
	program, err := os.ReadFile("testdata/lock/program.go.txt")
	if err != nil {
		t.Fatal(err)
	}
	program = bytes.Replace(program, []byte("/* cases */\n"), table.Bytes(), 1)
	if program, err = format.Source(program); err != nil {
		t.Fatal(err)
	}
	write("main.go", program)
	write("go.mod", []byte("module rules\n\ngo 1.26\n"))
	run := exec.CommandContext(t.Context(), "go", "run", ".")
	run.Dir, run.Env = dir, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	var stderr bytes.Buffer
	run.Stderr = &stderr
	out, err := run.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	var outcomes map[string]map[string]string
	if err := json.Unmarshal(out, &outcomes); err != nil {
		t.Fatal(err)
	}
	return outcomes
}

// side is the expression for one program of a case: what its annotations say, and its types.
func (c *ruleCase) side(src, side string, kinds []*kind) string {
	suffix := "_" + c.pkg() + side
	i := slices.IndexFunc(kinds, func(k *kind) bool { return k.pkg.name == c.pkg() })
	if i < 0 {
		return "side{}"
	}
	k := kinds[i]
	e := &emitter{time: "time"}
	key := "nil"
	if len(k.parts) > 0 {
		key = fmt.Sprintf("func(k *KeyBuilder, p Job%s) { k%s }", suffix, e.builderCalls(k.parts))
	}
	sees, upgrade, result := "nil", "nil", "nil"
	if strings.Contains(src, "func Sees(") {
		sees = "Sees" + suffix
	}
	if k.version > 1 {
		upgrade = "upgradeJobV1" + suffix
	}
	if strings.Contains(src, "type Result ") {
		result = "func(b []byte) (any, error) { var r Result" + suffix + "; err := json.Unmarshal(b, &r); return r, err }"
	}
	return fmt.Sprintf("sideOf(%q, %#v, %q, %d, Values%s, %s, %s, %s, %s)", k.name, append([]string{}, k.was...), k.queue, k.version, suffix, sees, key, upgrade, result)
}

// renamed gives every package-level name of a source a suffix, so that many sources fit into one package.
func renamed(t *testing.T, src, suffix string) []byte {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "", src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	f.Name.Name = "main"
	f.Comments = nil
	names, embedded := map[string]bool{}, map[string]bool{}
	for _, d := range f.Decls {
		for _, id := range declared(d) {
			names[id.Name] = true
		}
	}
	keep := map[*ast.Ident]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			for _, id := range n.Names {
				keep[id] = true
			}
			if id, ok := n.Type.(*ast.Ident); ok && n.Names == nil {
				embedded[id.Name] = true
			}
		case *ast.SelectorExpr:
			keep[n.Sel] = true
		case *ast.KeyValueExpr:
			if id, ok := n.Key.(*ast.Ident); ok && !embedded[id.Name] {
				keep[id] = true
			}
		case *ast.FuncDecl:
			if n.Recv != nil {
				keep[n.Name] = true
			}
		}
		return true
	})
	ast.Inspect(f, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && names[id.Name] && !keep[id] {
			id.Name += "_" + suffix
		}
		return true
	})
	var b bytes.Buffer
	if err := format.Node(&b, fset, f); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
