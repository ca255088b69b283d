package jobgen

import (
	"bytes"
	"encoding/json"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// All that a payload can be made of, as the lock writes it: testdata/lock/wire is the source and the lock.
func TestEveryFormIsWrittenDown(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/lock/wire/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatal("no cases", err)
	}
	for _, path := range paths {
		ar := readArchive(t, path)
		h := newHistory(t)
		want := &ar.files[len(ar.files)-1]
		for _, f := range ar.files[:len(ar.files)-1] {
			h.edit(f.name, f.body)
		}
		h.wantReport(h.generate())
		switch got := h.lock(); {
		case got == want.body:
		case *update:
			want.body = got
			if err := os.WriteFile(path, ar.format(), 0o666); err != nil {
				t.Fatal(err)
			}
		default:
			t.Errorf("%s: got:\n%swant:\n%s", path, got, want.body)
		}
		h.commit(nil) // and is read as what it is
	}
}

func TestFindingsAreReportedInEachFormat(t *testing.T) {
	t.Parallel()
	at := func(path string, line, col int) token.Position {
		return token.Position{Filename: filepath.FromSlash(path), Line: line, Column: col}
	}
	list := []Diag{
		{Pos: at("/m/a,b/x:y.go", 3, 4), Rule: "int-narrowed", Subject: "a.a.n", Msg: "100% of it\r\nis \"lost\" <here>, is it: not"},
		{Pos: at("/m/a.go", 1, 1), Rule: "upgrade", Msg: "paste this:", Note: true, Paste: "func f() {\n}\n"},
		{Pos: at("/m/"+LockName, 1, 1), Rule: ruleStale, Msg: "stale"},
	}
	for format, want := range map[string]string{
		"text":   "a,b/x:y.go:3:4: 100% of it\r\nis \"lost\" <here>, is it: not (int-narrowed)\na.go:1:1: note: paste this: (upgrade)\n\tfunc f() {\n\t}\njobs.lock.json:1:1: stale (stale)\n",
		"github": "::error file=a%2Cb/x%3Ay.go,line=3,col=4,title=jobgen%3A int-narrowed::100%25 of it%0D%0Ais \"lost\" <here>, is it: not\n::notice file=a.go,line=1,col=1,title=jobgen%3A upgrade::paste this:%0Afunc f() {%0A}%0A\n::error file=jobs.lock.json,line=1,col=1,title=jobgen%3A stale::stale\n",
	} {
		var b bytes.Buffer
		if err := Report(&b, format, filepath.FromSlash("/m"), list); err != nil || b.String() != want {
			t.Errorf("%s, %v:\n%s\nwant:\n%s", format, err, b.String(), want)
		}
	}
	var b bytes.Buffer
	if err := Report(&b, "json", "/m", list); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Findings []map[string]any `json:"findings"`
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil || len(got.Findings) != 3 {
		t.Fatal(err, b.String())
	}
	first := got.Findings[0]
	for key, want := range map[string]any{"path": "a,b/x:y.go", "line": 3.0, "column": 4.0, "rule": "int-narrowed", "class": "breaking", "subject": "a.a.n", "message": list[0].Msg} {
		if first[key] != want {
			t.Errorf("%s is %v, want %v", key, first[key], want)
		}
	}
	if got.Findings[1]["note"] != true || got.Findings[2]["class"] != nil {
		t.Error(b.String())
	}
	b.Reset()
	if err := Report(&b, "json", "/m", nil); err != nil || !strings.Contains(b.String(), `"findings": []`) {
		t.Errorf("%v: %s", err, b.String())
	}
}

// The table says enough of each rule, once.
func TestTheTableOfRulesIsComplete(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, r := range rules {
		if seen[r.ID] || r.Purpose == "" || r.Advice == "" || r.Example == "" || rank(r.Class) < 0 {
			t.Errorf("rule %s: %+v", r.ID, r)
		}
		seen[r.ID] = true
		for _, text := range []string{r.Purpose, r.Advice, r.Order} {
			if strings.HasSuffix(text, ".") || strings.ContainsAny(general(text, true), "{}") {
				t.Errorf("rule %s: %q", r.ID, text)
			}
		}
	}
	var text, data bytes.Buffer
	if !Help(&text, "rules") || RulesJSON(&data) != nil {
		t.Fatal("no help")
	}
	var list []struct{ ID, Class, Purpose, Advice, Order, Example string }
	if err := json.Unmarshal(data.Bytes(), &list); err != nil || len(list) != len(rules) {
		t.Fatal(len(list), err)
	}
	for _, r := range list {
		if !strings.Contains(text.String(), "\n  "+r.ID+": ") || strings.Contains(r.Purpose+r.Advice+r.Order, "{rows}") {
			t.Errorf("%+v", r)
		}
	}
}
