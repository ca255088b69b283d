package jobgen

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
	"time"
)

// Every comment is read as go/ast reads it, and none that starts like a directive of ours is ignored in silence.
func FuzzDirectivesAreReadAsGoReadsThem(f *testing.F) {
	for _, seed := range []string{
		"//job:kind a.b timeout=1s", `//job:cron "0 3 * * *" tz=Europe/Berlin`, "//job:key `A`  B\t", `//job:kind "a`, `//job:kind "a"b`,
		"//job:", "//job: kind a", "//Job:kind a", "// job:kind a", "/*job:kind a*/", "//go:generate x", "//job:kind\u00a0a", "//job:kind a\r",
		"//job:kind \"\\x00\" `\xff`", "//job:k", "//job:k\u2003\"x\"\u2003y=\"z\"", "//job:0", "//job:é",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.ContainsAny(text, "\n") || !strings.HasPrefix(text, "//") && !strings.HasPrefix(text, "/*") {
			return
		}
		const slash = 100
		fset := token.NewFileSet()
		fset.AddFile("f.go", 1, len(text)+200)
		ds := &diags{fset: fset}
		got, ok := scanComment(ds, &ast.Comment{Slash: slash, Text: text})

		want, isDirective := ast.ParseDirective(slash, text)
		if isOurs := isDirective && want.Tool == "job"; ok != isOurs {
			t.Fatalf("taken as ours: %v, go/ast says %v", ok, isOurs)
		}
		if strings.HasPrefix(text, "//job:") && !ok && len(ds.list) == 0 && !prose(text) {
			t.Fatal("ignored in silence")
		}
		if !ok {
			return
		}
		if got.verb.text != want.Name {
			t.Fatalf("verb %q, want %q", got.verb.text, want.Name)
		}
		args, err := want.ParseArgs()
		if got.bad != (err != nil) || got.bad != (len(ds.list) == 1) {
			t.Fatalf("bad: %v with %d mistakes, go/ast says %v", got.bad, len(ds.list), err)
		}
		if err != nil {
			return
		}
		if len(got.words) != len(args) {
			t.Fatalf("%d words, want %d", len(got.words), len(args))
		}
		for i, w := range got.words {
			if w.text != args[i].Arg || w.pos != args[i].Pos {
				t.Fatalf("word %d: %q at %d, want %q at %d", i, w.text, w.pos, args[i].Arg, args[i].Pos)
			}
		}
		// Whatever the words, reading them finishes, and says something about all but good ones.
		a := annotation{at: map[string]token.Pos{}}
		a.read(ds, got, false)
		a.complete(ds)
		if findVerb(got.verb.text) == nil && len(ds.list) == 0 {
			t.Fatal("an unknown verb was accepted")
		}
	})
}

// prose starts with "//job:" and a blank, and no verb follows: "//job: see below".
func prose(text string) bool {
	rest := strings.TrimPrefix(text, "//job:")
	return rest != "" && strings.ContainsAny(rest[:1], " \t")
}

func TestDurationsAreGosWithDays(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"30s": 30 * time.Second, "1h30m": 90 * time.Minute, "1.5h": 90 * time.Minute, "30d": 30 * day, "1d12h": 36 * time.Hour, "1ns": 1,
		"": 0, "d": 0, "-1s": 0, "-1d": 0, "0": 0, "0d": 0, "30": 0, "1d-1h": 0, "1.5d": 0, "1dd": 0, "1h1d": 0, "99999999999d": 0, "1e3s": 0, "+5s": 5 * time.Second,
	} {
		got, err := duration(text)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("duration(%q) = %v, %v; want %v", text, got, err, want)
		}
		if again, err := duration(spell(got)); want > 0 && (err != nil || again != want) {
			t.Errorf("%v is spelt %q, which reads as %v, %v", got, spell(got), again, err)
		}
	}
}

// The table is what users read: each entry explains itself, and each does something.
func TestEveryVerbAndKeyIsExplained(t *testing.T) {
	t.Parallel()
	for _, v := range verbs {
		keys := v.Keys
		if v.Arg != nil {
			keys = append(keys[:len(keys):len(keys)], *v.Arg)
		}
		if v.Doc == "" {
			t.Errorf("%s has no explanation", v.Name)
		}
		for _, k := range keys {
			if k.Doc == "" || k.set == nil {
				t.Errorf("%s.%s: explained %v, does something %v", v.Name, k.Name, k.Doc != "", k.set != nil)
			}
		}
		var help strings.Builder
		if !Help(&help, v.Name) || !strings.Contains(help.String(), "//job:"+v.Name) {
			t.Errorf("no help on %s", v.Name)
		}
	}
}

// The example of each verb has the verb in it, and is accepted.
func TestEachVerbHasAnExampleThatIsTrue(t *testing.T) {
	t.Parallel()
	for _, v := range verbs {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			_, example, found := strings.Cut(v.manual(), "\nExample:\n")
			if !found || !strings.Contains(example, "//job:"+v.Name) {
				t.Fatal("no example")
			}
			example = strings.ReplaceAll(example, "\n\t", "\n")
			if !strings.Contains(example, "\npackage ") {
				example = "package example\n" + example
			}
			dir := t.TempDir()
			archive{files: []archiveFile{{"example.go", example}}}.extract(t, dir, plainGoMod)
			outputs, diags, err := Plan(t.Context(), dir, []string{"."})
			if err != nil || len(diags) > 0 || len(outputs) == 0 {
				t.Errorf("%d outputs, %v, %v", len(outputs), diags, err)
			}
		})
	}
}
