package jobgen

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// history is a module that goes through commits: each replaces files and runs jobgen.
type history struct {
	t   *testing.T
	dir string
}

func newHistory(t *testing.T) *history {
	h := &history{t, t.TempDir()}
	archive{}.extract(t, h.dir, plainGoMod)
	return h
}

// edit writes files, which are given by name and content in turn. One whose content is empty is removed.
func (h *history) edit(files ...string) {
	h.t.Helper()
	for i := 0; i < len(files); i += 2 {
		path := filepath.Join(h.dir, files[i])
		err := os.Remove(path)
		if files[i+1] != "" {
			err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(files[i+1]), 0o666))
		}
		if err != nil {
			h.t.Fatal(err)
		}
	}
}

// generate runs jobgen and gives what it reports: "RULE SUBJECT" for changes of what is stored, "note: " before the staged.
func (h *history) generate(patterns ...string) (reported []string) {
	h.t.Helper()
	if patterns == nil {
		patterns = []string{"./..."}
	}
	outputs, list, err := Plan(h.t.Context(), h.dir, patterns)
	if err == nil && !Stop(list) {
		_, err = Write(outputs)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return told(list)
}

func told(list []Diag) (reported []string) {
	for _, d := range list {
		s := d.Rule + " " + d.Subject
		if d.Subject == "" {
			s = d.Rule + ": " + d.Msg
		}
		if d.Note {
			s = "note: " + s
		}
		reported = append(reported, s)
	}
	return reported
}

// commit is edit and generate, and says what has to be reported.
func (h *history) commit(want []string, files ...string) {
	h.t.Helper()
	h.edit(files...)
	h.wantReport(h.generate(), want...)
}

func (h *history) wantReport(got []string, want ...string) {
	h.t.Helper()
	if !slices.Equal(got, want) {
		h.t.Errorf("reported:\n\t%s\nwant:\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func (h *history) read(name string) string {
	b, err := os.ReadFile(filepath.Join(h.dir, name))
	if err != nil {
		h.t.Helper()
		h.t.Fatal(err)
	}
	return string(b)
}

func (h *history) lock() string { h.t.Helper(); return h.read(LockName) }

// wantFacts looks for lines of the lock, or for their absence if they start with an exclamation mark.
func (h *history) wantFacts(lines ...string) {
	h.t.Helper()
	lock := h.lock()
	for _, line := range lines {
		line, absent := strings.CutPrefix(line, "!")
		if strings.Contains(lock, line) == absent {
			h.t.Errorf("%s: there is %v, in\n%s", line, !absent, lock)
		}
	}
}

func (h *history) accept(rule, subject string) error {
	outputs, list, err := Accept(h.t.Context(), h.dir, rule, subject, "none is left <& checked>")
	if err == nil && list != nil {
		err = fmt.Errorf("%v", told(list))
	}
	if err == nil {
		_, err = Write(outputs)
	}
	return err
}

func (h *history) forget(subject string) error {
	outputs, list, err := Forget(h.t.Context(), h.dir, subject, true)
	if err == nil && list != nil {
		err = fmt.Errorf("%v", told(list))
	}
	if err == nil {
		_, err = Write(outputs)
	}
	return err
}

// a is a package with one kind of these fields.
func a(fields ...string) string {
	return "package a\n\n//job:kind a.a timeout=1s\ntype A struct {\n\t" + strings.Join(fields, "\n\t") + "\n}\n"
}

const (
	id     = "ID string `json:\"id\"`"
	cents  = "Cents int64 `json:\"cents\"`"
	note   = "Note string `json:\"note,omitempty\"`"
	result = "\ntype R struct {\n\tN string `json:\"n\"`\n}\n"
)

func TestTheLockFollowsSafeChangesInSilence(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.commit(nil, "a.go", a(id, cents))
	h.commit(nil, "a.go", a(id, cents, note))
	h.wantFacts(`"a.a/v1.note": "string,optional"`)
	h.commit(nil, "a.go", a(id, "Cents *int64 `json:\"cents,omitempty\"`", note))
	h.wantFacts(`"a.a/v1.cents": "*int64,optional"`)
	h.commit(nil, "b/b.go", "package b\n\n//job:kind b.b timeout=1s\ntype B struct{}\n")
	h.wantFacts(`"b.b/v1": "object"`)
}

// Renaming what has only a Go name, and moving it, changes no byte of the lock.
func TestGoNamesAreNotInTheLock(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.commit(nil, "a.go", "package a\n\n//job:kind a.a timeout=1s\n//job:key Inner.ID\ntype A struct {\n\tInner Inner `json:\"inner\"`\n}\n\ntype Inner struct {\n\tID string `json:\"id\"`\n\tState State `json:\"state\"`\n}\n\ntype State int\n\nconst Paid State = 1\n")
	before := h.lock()
	h.commit(nil, "a.go", "", "jobs_gen.go", "", "x/y.go", "package z\n\nimport \"example.com/app/parts\"\n\n//job:kind a.a timeout=2s attempts=7 priority=3\n//job:key Of.Ident\ntype Charge struct {\n\tOf parts.Part `json:\"inner\"`\n}\n",
		"parts/p.go", "package parts\n\ntype Part struct {\n\tState Status `json:\"state\"`\n\tIdent string `json:\"id\"`\n}\n\ntype Status int\n\nconst Paid Status = 1\n")
	if after := h.lock(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func TestStagedChangesAreToldOnce(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.commit(nil, "a.go", a("N int32 `json:\"n\"`", note))
	h.commit([]string{"note: optional-field-removed a.a.note", "note: int-widened a.a.n"}, "a.go", a("N int64 `json:\"n\"`"))
	h.commit(nil)
}

func TestABreakingChangeWritesNothing(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.commit(nil, "a/a.go", a(id), "b/b.go", strings.ReplaceAll(a(id), "a.a", "b.b"))
	files := []string{"a/" + OutputName, "b/" + OutputName, LockName}
	before := map[string]string{}
	for _, f := range files {
		before[f] = h.read(f)
		if err := os.Chtimes(filepath.Join(h.dir, f), longAgo, longAgo); err != nil {
			t.Fatal(err)
		}
	}
	untouched := func() {
		t.Helper()
		for _, f := range files {
			info, err := os.Stat(filepath.Join(h.dir, f))
			if err != nil || !info.ModTime().Equal(longAgo) || h.read(f) != before[f] {
				t.Errorf("%s has been written, %v", f, err)
			}
		}
	}
	h.commit([]string{"number-string b.b.id"}, "a/a.go", strings.Replace(a(id, cents), "timeout=1s", "timeout=2s", 1), "b/b.go", strings.ReplaceAll(a("ID int `json:\"id\"`"), "a.a", "b.b"))
	untouched()
	// What is stale is found all the same.
	list, err := Check(t.Context(), h.dir, []string{"./..."})
	if err != nil {
		t.Fatal(err)
	}
	stale := "stale: this file is not what the annotations ask for: run go tool jobgen ./..."
	h.wantReport(told(list), stale, "number-string b.b.id")
	untouched()
	// And a run in which nothing changes does not touch the lock either.
	h.commit(nil, "a/a.go", a(id), "b/b.go", strings.ReplaceAll(a(id), "a.a", "b.b"))
	untouched()
}

func TestAnExceptionAllowsExactlyOneChangeOnce(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	str, num, boolean := "N string `json:\"n\"`", "N int `json:\"n\"`", "N bool `json:\"n\"`"
	h.commit(nil, "a.go", a(str))
	h.edit("a.go", a(num))
	if err := h.accept("number-string", "a.a.n"); err != nil {
		t.Fatal(err)
	}
	h.wantFacts(`"a.a/v1.n": "string"`, `"a.a/accepted/number-string.n": {"from":"string","to":"int","reason":"none is left <& checked>"}`)
	// Not another change of the field, nor of another field, nor as long as there is one that is not accepted.
	h.commit([]string{"json-type a.a.n"}, "a.go", a(boolean))
	h.commit([]string{"number-string a.a.n"}, "a.go", a("N int64 `json:\"n\"`"))
	// This one, and it is used up.
	h.commit(nil, "a.go", a(num))
	h.wantFacts(`"a.a/v1.n": "int"`, `"reason":"none is left <& checked>","used":true}`)
	h.commit([]string{"number-string a.a.n"}, "a.go", a(str))
	if err := h.accept("number-string", "a.a.n"); err != nil {
		t.Fatal(err)
	}
	h.commit(nil)
	h.commit([]string{"number-string a.a.n"}, "a.go", a(num))
	if n := strings.Count(h.lock(), "/accepted/"); n != 1 {
		t.Errorf("%d exceptions are on record; want the last of the rule and the field", n)
	}
}

func TestAnExceptionForAChangeThatWasTakenBackGoes(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.commit(nil, "a.go", a("N string `json:\"n\"`"), "b/b.go", "package b\n")
	h.edit("a.go", a("N int `json:\"n\"`"))
	if err := h.accept("number-string", "a.a.n"); err != nil {
		t.Fatal(err)
	}
	h.edit("b/b.go", "package b\n\n//job:kind b.b timeout=1s\ntype B struct{}\n")
	h.wantReport(h.generate("./b")) // another package's run leaves it alone
	h.wantFacts("/accepted/")
	h.commit(nil, "a.go", a("N string `json:\"n\"`"))
	h.wantFacts("!/accepted/")
}

func TestAcceptWantsAReasonAndAChangeThatIsThere(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.commit(nil, "a.go", a(id, cents))
	wantErr := func(err error, want string) {
		t.Helper()
		if err == nil || err.Error() != want {
			t.Errorf("%v\nwant: %s", err, want)
		}
	}
	wantErr(h.accept("number-string", "a.a.id"), "there is no number-string of a.a.id to accept: no incompatible change is there at all")
	h.edit("a.go", a("ID int `json:\"id\"`", "Cents float64 `json:\"cents\"`"))
	wantErr(h.accept("number-string", "a.a.cents"), "there is no number-string of a.a.cents to accept; what there is:\n\tint-float a.a.cents\n\tnumber-string a.a.id")
	wantErr(h.accept("number-strong", "a.a.id"), "there is no rule number-strong; did you mean number-string? (go tool jobgen help rules)")
	_, _, err := Accept(t.Context(), h.dir, "number-string", "a.a.id", " ")
	wantErr(err, `accept needs -reason "…": who reads the lock next year wants to know why no job is harmed`)
	if err := h.accept("number-string", "a.a.id"); err != nil {
		t.Fatal(err)
	}
	wantErr(h.accept("list", "a.a"), "there is no list of a.a to accept; what there is:\n\tint-float a.a.cents")
	h.edit("a.go", "package a\n")
	wantErr(h.accept("kind-removed", "a.a"), "a kind that is gone is forgotten, not accepted: go tool jobgen forget a.a")
}

func TestForgetDropsWhatIsNotDeclaredAnyMore(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.commit(nil, "a.go", a(id, note), "b/b.go", strings.ReplaceAll(a(id), "a.a", "b.b"))
	if err := h.forget("b.b"); err == nil || err.Error() != "kind b.b is still declared: remove the type and its //job: lines first" {
		t.Error(err)
	}
	h.commit([]string{"kind-removed b.b"}, "b/b.go", "package b\n")
	if err := h.forget("c.c"); err == nil || err.Error() != "the lock has no removed kind or field c.c; kinds that are gone: b.b" {
		t.Error(err)
	}
	_, _, err := Forget(t.Context(), h.dir, "b.b", false)
	for _, want := range []string{"jobctl jobs list --kind b.b", "WHERE kind = 'b.b';", "go tool jobgen forget b.b -checked"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant: %s", err, want)
		}
	}
	if err := h.forget("b.b"); err != nil {
		t.Fatal(err)
	}
	h.wantFacts("!b.b", "a.a/v1")
	h.commit(nil)

	h.commit([]string{"note: optional-field-removed a.a.note"}, "a.go", a(id))
	h.commit([]string{"number-string a.a.note"}, "a.go", a(id, "Note int `json:\"note\"`"))
	if err := h.forget("a.a.note"); err != nil {
		t.Fatal(err)
	}
	h.commit(nil)
	h.commit([]string{"kind-removed a.a"}, "a.go", "package a\n")
	if err := h.forget("a.a"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(h.dir, LockName)); err == nil {
		t.Error("the lock says nothing any more, and is still there")
	}
	h.commit(nil)
}

// A removed field's name does not come back as something else, as long as jobs of before may be stored.
func TestRemovedNamesAreRemembered(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.commit(nil, "a.go", a(id, note, "Part *struct {\n\tN int `json:\"n\"`\n\tOf []string `json:\"of\"`\n} `json:\"part\"`"))
	h.commit([]string{"note: optional-field-removed a.a.note", "note: optional-field-removed a.a.part"}, "a.go", a(id))
	h.wantFacts(`"a.a/v1.note": "gone string,optional"`, `"a.a/v1.part": "gone *object"`, `"a.a/v1.part.of": "gone []string"`)
	h.commit(nil, "a.go", a(id, cents))
	h.commit([]string{"number-string a.a.note"}, "a.go", a(id, cents, "Note int `json:\"note\"`"))
	h.commit([]string{"number-string a.a.NOTE"}, "a.go", a(id, cents, "Note int `json:\"NOTE\"`")) // encoding/json does not mind case
	h.commit([]string{"int-float a.a.part.n"}, "a.go", a(id, cents, "Part *struct {\n\tN float64 `json:\"n\"`\n} `json:\"part\"`"))
	h.commit(nil, "a.go", a(id, cents, note)) // as it was
	h.wantFacts(`"a.a/v1.note": "string,optional"`, `"a.a/v1.part.n": "gone int"`)

	// Of results as well.
	result := func(field string) string {
		return "package b\n\n//job:kind b.b timeout=1s result=R\ntype B struct{}\n\ntype R struct {\n\t" + field + "\n}\n"
	}
	h.commit(nil, "b/b.go", result(note))
	h.commit([]string{"note: optional-field-removed b.b/result.note"}, "b/b.go", result(""))
	h.commit([]string{"number-string b.b/result.note"}, "b/b.go", result("Note int `json:\"note\"`"))
}

// Nor does a name that is reserved, when the line that reserved it is gone.
func TestReservedNamesAreRemembered(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	reserve := func(line, field string) string {
		return "package a\n\n//job:kind a.a timeout=1s\n" + line + "\ntype A struct {\n\t" + field + "\n}\n"
	}
	h.commit(nil, "a.go", reserve("//job:reserve fields=cents,x", id))
	h.commit([]string{"reserve-removed a.a.x"}, "a.go", reserve("//job:reserve fields=cents", id))
	h.commit([]string{"reserve-removed a.a.x", "reserved-reused a.a.cents"}, "a.go", reserve("//", cents+"\n\t"+id))
	h.commit([]string{"reserve-removed a.a.x", "reserved-reused a.a.cents"}, "a.go", reserve("//", id+"\n\tCents int64 `json:\"CENTS\"`"))
	if err := h.accept("reserve-removed", "a.a.x"); err != nil {
		t.Fatal(err)
	}
	h.commit(nil, "a.go", reserve("//job:reserve fields=cents", id))
	h.wantFacts("!reserved.x", "reserved.cents")
}

// Another version has another form, which the upgrade functions see to. Keys and results have no version.
func TestAVersionFreesThePayloadButNotKeyAndResult(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	kind := func(v, key, typ, rtyp string) string {
		return "package a\n\nimport \"encoding/json\"\n\n//job:kind a.a timeout=1s result=R v=" + v + "\n//job:key " + key + "\ntype A struct {\n\tA string `json:\"a\"`\n\tB string `json:\"b\"`\n\tN " + typ +
			" `json:\"n\"`\n}\n\ntype R struct {\n\tN " + rtyp + " `json:\"n\"`\n}\n\nfunc upgradeAV1(json.RawMessage) (a A, err error) { return }\nfunc upgradeAV2(json.RawMessage) (a A, err error) { return }\n"
	}
	h.commit(nil, "a.go", kind("1", "A", "string", "string"))
	h.commit([]string{"note: version-raised a.a"}, "a.go", kind("2", "A", "int", "string"))
	h.wantFacts(`"a.a/v1.n": "string"`, `"a.a/v2.n": "int"`, `"a.a/version": "2"`)
	h.commit([]string{"note: version-raised a.a", "key-changed a.a", "number-string a.a/result.n"}, "a.go", kind("3", "B", "bool", "int"))
	h.commit([]string{"json-type a.a.n"}, "a.go", kind("2", "A", "bool", "string"))
	h.commit([]string{"version-lowered a.a"}, "a.go", kind("1", "A", "string", "string"))
	h.commit(nil, "a.go", kind("2", "A", "int", "string"))
}

// A change in several ways is each of them, and no more than that.
func TestAChangeOfAFormIsTakenApart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ before, after, want string }{
		{"int64", "int64", ""},
		{"int32", "*int64", "pointer-added int-widened"},
		{"*int64", "int32", "pointer-removed int-narrowed"},
		{"[]*int64", "[]int64", "pointer-removed"},
		{"map[string][]int64", "map[string][]int32", "int-narrowed"},
		{"map[int8]int64", "map[int16]int32", "map-key-widened int-narrowed"},
		{"[4]int64", "[2]float64", "array-shortened int-float"},
		{"[]int64", "int64", "list"},
		{"*object", "json", "raw-gained"},
		{"json", "*object", "raw-lost"},
		{"json", "*json", "pointer-added"},
		{"time", "*time", "pointer-added"},
		{"text(a.B)", "*text(a.B)", "pointer-added-opaque"},
		{"time", "text(a.B)", "marshaler-gained"},
		{"text(a.B)", "string", "marshaler-lost"},
		{"custom(a.B)", "text(a.B)", "marshaler-changed"},
		{"uint32", "int64", "int-widened"},
		{"uint32", "int32", "int-sign"},
		{"int8", "uint64", "int-sign"},
		{"uint64", "int64", "int-sign"},
		{"uint64", "uint", "int-size"},
		{"float32", "duration", "duration"},
		{"quoted int64", "string", "json-type"},
		{"quoted int64", "int64", "string-option"},
		{"same(.)", "object", ""},
		{"map[string]string", "same(.)", "object-map"},
		{"bytes", "[]int64", "json-type"},
		{"bool", "object", "json-type"},
	} {
		before, err := parseWire(c.before)
		after, err2 := parseWire(c.after)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		ids := valueRules(before, after)
		slices.Sort(ids)
		if got := strings.Join(slices.Compact(ids), " "); got != strings.Join(slices.Sorted(strings.FieldsSeq(c.want)), " ") {
			t.Errorf("%s to %s: %s, want %s", c.before, c.after, got, c.want)
		}
	}
}

// What is gone and what is new is one field under two names as far as can be told.
func TestARenamedFieldIsRecognised(t *testing.T) {
	t.Parallel()
	address := "\ntype Address struct {\n\tStreet string `json:\"street\"`\n\tCity string `json:\"city\"`\n}\n"
	for _, c := range []struct{ name, before, after, want string }{
		{"spelt otherwise", "N int `json:\"order_id\"`", "N int `json:\"orderId\"`", "json-name a.a.orderId"},
		{"in another case", "N int `json:\"id\"`", "N int `json:\"ID\"`", "json-name-case a.a.ID"},
		{"the only one", "N int `json:\"n\"`", "Amount int `json:\"amount\"`", "json-name a.a.amount"},
		{"optional", "N int `json:\"n,omitempty\"`", "Amount int `json:\"amount,omitempty\"`", "json-name a.a.amount"},
		{"of another type", "N int `json:\"n\"`", "Amount string `json:\"amount\"`", "field-removed a.a.n"},
		{"one of several", "N int `json:\"alpha\"`\n\tM int `json:\"beta\"`", "N int `json:\"gamma\"`", "field-removed a.a.alpha, field-removed a.a.beta"},
		{"of an embedded struct", "Address", "Address Address `json:\"address\"`", "embedding a.a.address"},
		{"of one that was not embedded", "Address Address `json:\"address\"`", "Address", "embedding a.a.address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHistory(t)
			h.commit(nil, "a.go", a(c.before)+address)
			h.commit(strings.Split(c.want, ", "), "a.go", a(c.after)+address)
		})
	}
}

func TestARenamedKindKeepsItsPast(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	named := func(head, field string) string {
		return "package a\n\n//job:kind " + head + "\ntype A struct {\n\t" + field + "\n}\n"
	}
	h.commit(nil, "a.go", named("a.old timeout=1s", id))
	h.commit([]string{"kind-removed a.old"}, "a.go", named("a.new timeout=1s", id))
	h.commit([]string{"note: kind-renamed a.new", "number-string a.new.id"}, "a.go", named("a.new timeout=1s\n//job:was a.old", "ID int `json:\"id\"`"))
	h.commit([]string{"note: kind-renamed a.new"}, "a.go", named("a.new timeout=1s\n//job:was a.old", id))
	h.wantFacts(`"a.new/was/a.old": "kind"`, `"a.new/v1.id"`, `!"a.old/`)
	h.commit(nil, "a.go", named("a.new timeout=1s\n//job:was a.old a.oldest", id))
	h.commit([]string{"was-removed a.old"}, "a.go", named("a.new timeout=1s\n//job:was a.oldest", id))
	h.commit([]string{"was-removed a.old", "was-removed a.oldest"}, "a.go", named("a.new timeout=1s", id))
	if err := h.forget("a.oldest"); err != nil {
		t.Fatal(err)
	}
	h.commit(nil, "a.go", named("a.new timeout=1s\n//job:was a.old", id))
	h.wantFacts("!oldest", "was/a.old")

	// Two kinds become one: the jobs of both have to be readable.
	h.commit(nil, "a.go", named("a.new timeout=1s\n//job:was a.old a.oldest", id), "b/b.go", strings.ReplaceAll(a("ID int `json:\"id\"`"), "a.a", "b.b"))
	h.commit([]string{"note: kind-renamed a.new", "number-string a.new.id"}, "a.go", named("a.new timeout=1s\n//job:was a.old a.oldest b.b", id), "b/b.go", "package b\n")
}

// Two kinds that become one bring along the names each has given up.
func TestAMergedKindRemembersRemovedNamesOfBoth(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	b := func(fields ...string) string { return strings.ReplaceAll(a(fields...), "a.a", "b.b") }
	h.commit(nil, "a/a.go", a(id), "b/b.go", b(id, note))
	h.commit([]string{"note: optional-field-removed b.b.note"}, "b/b.go", b(id))
	taking := func(fields ...string) string {
		return strings.Replace(a(fields...), "timeout=1s", "timeout=1s\n//job:was b.b", 1)
	}
	h.commit([]string{"note: kind-renamed a.a"}, "a/a.go", taking(id), "b/b.go", "package b\n")
	h.commit([]string{"number-string a.a.note"}, "a/a.go", taking(id, "Note int `json:\"note\"`"))
}

// go generate runs jobgen once for each package.
func TestARunOverOnePackageLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.commit(nil, "a/a.go", a(id), "b/b.go", strings.ReplaceAll(a(id), "a.a", "b.b"))
	before := h.lock()
	h.edit("a/a.go", a(id, cents), "b/b.go", strings.ReplaceAll(a("ID int `json:\"id\"`"), "a.a", "b.b"))
	h.wantReport(h.generate("./a"))
	if want := strings.Replace(before, `  "a.a/v1.id"`, "  \"a.a/v1.cents\": \"int64\",\n  \"a.a/v1.id\"", 1); h.lock() != want {
		t.Errorf("got:\n%s\nwant:\n%s", h.lock(), want)
	}
	h.wantReport(h.generate("./b"), "number-string b.b.id")
	// A kind that cannot be seen for a mistake in another package has not been removed.
	h.edit("b/b.go", "package b\n\n//job:kind b,b timeout=1s\ntype B struct{}\n")
	h.wantReport(h.generate("./a"))
	h.edit("b/b.go", "package b\n")
	h.wantReport(h.generate("./a"), "kind-removed b.b")
	// A kind may move to another package.
	h.edit("c/c.go", strings.ReplaceAll(a(id), "a.a", "b.b"))
	h.wantReport(h.generate("./a"))
	h.wantReport(h.generate("./c"))
}

func TestRecursiveTypesAreComparedToTheirEnd(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	tree := func(typ string) string {
		return a("Root Node `json:\"root\"`") + "\ntype Node struct {\n\tLabel " + typ + " `json:\"label\"`\n\tKids []Node `json:\"kids\"`\n\tOther *Pair `json:\"other\"`\n}\n\ntype Pair struct {\n\tLeft map[string]Node `json:\"left\"`\n\tSelf *Pair `json:\"self\"`\n}\n"
	}
	h.commit(nil, "a.go", tree("string"))
	h.wantFacts(`"a.a/v1.root.kids": "[]same(.root)"`, `"a.a/v1.root.other.left": "map[string]same(.root)"`, `"a.a/v1.root.other.self": "*same(.root.other)"`)
	h.commit(nil)
	h.commit([]string{"number-string a.a.root.label"}, "a.go", tree("int"))
	// The same on the wire, spelled out once.
	unrolled := strings.Replace(tree("string"), "Kids []Node", "Kids []Kid", 1) + "\ntype Kid struct {\n\tLabel string `json:\"label\"`\n\tKids []Kid `json:\"kids\"`\n\tOther *Pair `json:\"other\"`\n}\n"
	changed := strings.Replace(unrolled, "type Kid struct {\n\tLabel string", "type Kid struct {\n\tLabel int", 1)
	h.commit([]string{"number-string a.a.root.kids[].label"}, "a.go", changed)
	h.commit(nil, "a.go", unrolled)
	h.commit([]string{"number-string a.a.root.kids[].label"}, "a.go", changed)
}

// Every type can hold every other: the number of paths explodes.
func TestAPayloadThatIsTooLargeToWriteDownIsRefused(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(a("T T0 `json:\"t\"`"))
	for i := range 8 {
		fmt.Fprintf(&b, "\ntype T%d struct {\n", i)
		for k := range 8 {
			fmt.Fprintf(&b, "\tF%d *T%[1]d `json:\"f%[1]d\"`\n", k)
		}
		b.WriteString("}\n")
	}
	h := newHistory(t)
	h.commit([]string{"payload: A has more than 2000 fields when what is nested in it is counted: store the nested part as json.RawMessage, or under an id of its own"}, "a.go", b.String())
}

func TestConstantsAreFoundHoweverTheyAreDeclared(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.commit(nil, "a.go", strings.Replace(a("A State `json:\"a\"`", "B []*Hidden `json:\"b\"`", "C parts.Code `json:\"c\"`", "D time.Month `json:\"d\"`", "E Bare `json:\"e\"`", "F *Day `json:\"f\"`")+`
type State int

const (
	_ State = iota
	Paid
	Shipped
	numStates // a bound, not a state
)

type Hidden string

const one, two = Hidden("1"), Hidden("2")

type Bare int

const Other = 1

type Day = parts.Day
`, "package a\n", "package a\n\nimport (\n\t\"time\"\n\n\t\"example.com/app/parts\"\n)\n", 1), "parts/p.go", "package parts\n\ntype Code uint8\n\ntype Day int\n\nconst Mon Day = 1\n", "parts/q.go", "package parts\n\nconst Fine Code = 1 << iota\n\nvar V Code = 7\n")
	facts := []string{"!numStates", "!Other", "!January", "!=V", "!=_"}
	for _, f := range []string{"a=Paid\": \"1", "a=Shipped\": \"2", "b[]=one\": \"1", "b[]=two\": \"2", "c=Fine\": \"1", "f=Mon\": \"1"} {
		facts = append(facts, `"a.a/v1.`+f+`"`)
	}
	h.wantFacts(facts...)
}

// The same sources give the same lock, and so does a second run.
func TestTheLockIsDeterministic(t *testing.T) {
	t.Parallel()
	var want string
	for range 5 {
		h := newHistory(t)
		var files []string
		for _, i := range rand.Perm(20) {
			files = append(files, fmt.Sprintf("p%d/a%d.go", i%4, i), fmt.Sprintf("package p\n\n//job:kind p.k%d timeout=1s result=R%[1]d\n//job:key ID\ntype K%[1]d struct {\n\tID string `json:\"id\"`\n\tM map[string]R%[1]d `json:\"m\"`\n}\n\ntype R%[1]d struct {\n\tS S%[1]d `json:\"s\"`\n}\n\ntype S%[1]d int\n\nconst A%[1]d, B%[1]d, C%[1]d S%[1]d = 1, 2, 3\n", i))
		}
		h.commit(nil, files...)
		got := h.lock()
		if want == "" {
			want = got
		}
		if got != want {
			t.Fatalf("got:\n%s\nwant:\n%s", got, want)
		}
		h.commit(nil)
		if h.lock() != want {
			t.Fatal("a second run changed it")
		}
	}
}

// If one of the files cannot be written, none is.
func TestLockAndOutputAreWrittenTogether(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.commit(nil, "a.go", a(id))
	before, lock := h.read(OutputName), filepath.Join(h.dir, LockName)
	if err := os.Chmod(lock, 0o444); err != nil {
		t.Fatal(err)
	}
	h.edit("a.go", strings.Replace(a(id, cents), "timeout=1s", "timeout=2s", 1))
	outputs, list, err := Plan(t.Context(), h.dir, []string{"."})
	if err != nil || list != nil || len(outputs) != 2 {
		t.Fatal(len(outputs), list, err)
	}
	if _, err := Write(outputs); err == nil {
		t.Error("no error")
	}
	if h.read(OutputName) != before {
		t.Error("the output has been written, and the lock has not")
	}
}

func TestEachModuleOfAWorkspaceHasALock(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.edit("go.mod", "", "go.work", "go 1.26\n\nuse (\n\t./one\n\t./two\n)\n",
		"one/go.mod", "module example.com/one\n\ngo 1.26\n", "one/a.go", a(id),
		"two/go.mod", "module example.com/two\n\ngo 1.26\n", "two/deep/a.go", a("ID int `json:\"id\"`"))
	h.wantReport(h.generate("./one/...", "./two/..."))
	if one, two := h.read("one/"+LockName), h.read("two/"+LockName); !strings.Contains(one, `.id": "string"`) || !strings.Contains(two, `.id": "int"`) {
		t.Errorf("%s\n%s", one, two)
	}
	h.edit("two/deep/a.go", a(id))
	if err := h.accept("number-string", "a.a.id"); err != nil {
		t.Fatal(err)
	}
	h.wantReport(h.generate("./two/..."))
}

// Each archive in testdata/lock/file is a lock as somebody left it, and what is made of it: the lock as it is written
// again, or an error.
func TestLocksThatWereMergedOrDamaged(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/lock/file/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatal("no cases", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			ar := readArchive(t, path)
			if len(ar.files) != 2 {
				t.Fatal("the files must be lock and want")
			}
			// git would take the markers of the archive for its own.
			in := strings.ReplaceAll(ar.files[0].body, "@", "")
			var got string
			l, err := readLock([]byte(in))
			if err != nil {
				got = err.Error() + "\n"
			} else {
				for _, r := range l.repaired {
					got += "repaired: " + r + "\n"
				}
				got += string(l.format())
				again, err := readLock(l.format())
				if err != nil || again.repaired != nil || !bytes.Equal(again.format(), l.format()) {
					t.Errorf("read again: %v", err)
				}
			}
			switch {
			case got == ar.files[1].body:
			case *update:
				ar.files[1].body = got
				if err := os.WriteFile(path, ar.format(), 0o666); err != nil {
					t.Fatal(err)
				}
			default:
				t.Errorf("got:\n%swant:\n%s", got, ar.files[1].body)
			}
		})
	}
}

// randomLock is a lock with some of everything.
func randomLock(rnd *rand.Rand) *lock {
	l := newLock()
	for range 1 + rnd.IntN(3) {
		name := fmt.Sprintf("k%d.x", rnd.IntN(4))
		s := &stored{version: 1 + rnd.IntN(3), queue: fmt.Sprintf("q%d", rnd.IntN(2)), payloads: map[int]*node{}}
		if rnd.IntN(2) == 0 {
			s.key = "id string"
		}
		s.payloads[s.version] = randomNode(rnd, 0)
		s.payloads[1] = randomNode(rnd, 0)
		if rnd.IntN(2) == 0 {
			s.result = randomNode(rnd, 0)
			s.was = []string{fmt.Sprintf("was%d", rnd.IntN(3))}
			s.reserved = []string{pathName(randomName(rnd))}
			l.accepted[exceptionKey(name, "list", name+"."+pathName(randomName(rnd)))] = exception{"a => b", "c: \"d\"", "ün <reason>", rnd.IntN(2) == 0}
		}
		l.drop(name)
		l.put(name, s)
	}
	return l
}

var randomNames = []string{"a", "b", "order_id", "x-y", "a.b", "with space", "ä", "[]", "{}", "=", "#", "1"}

func randomName(rnd *rand.Rand) string { return randomNames[rnd.IntN(len(randomNames))] }

func randomNode(rnd *rand.Rand, depth int) *node {
	n := &node{optional: depth > 0 && rnd.IntN(3) == 0, gone: depth > 0 && rnd.IntN(5) == 0}
	base := []string{"string", "int64", "bytes", "text(a.b/c.D[e.f/g.H])", "quoted int"}[rnd.IntN(5)]
	if depth == 0 || depth < 3 && rnd.IntN(2) == 0 {
		base = wireObject
		n.fields = map[string]*node{}
		for range rnd.IntN(4) {
			n.fields[randomName(rnd)] = randomNode(rnd, depth+1)
		}
	} else if base == "string" && rnd.IntN(2) == 0 {
		n.enum = map[string]string{"One": "1", "Two": `"2" = ü`}
	}
	n.wire = wire{name: base}
	for depth > 0 && rnd.IntN(3) == 0 {
		elem := n.wire
		n.wire = []wire{{op: '*', elem: &elem}, {op: '[', elem: &elem}, {op: 'a', n: rnd.IntN(3), elem: &elem}, {op: 'm', name: "text(a.b[c.d])", elem: &elem}}[rnd.IntN(4)]
	}
	return n
}

func FuzzALockIsReadAsItIsWritten(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		want := randomLock(rand.New(rand.NewPCG(seed, 1)))
		got, err := readLock(want.format())
		if err != nil {
			t.Fatalf("%v\n%s", err, want.format())
		}
		if !maps.Equal(got.facts, want.facts) || !maps.Equal(got.accepted, want.accepted) || got.repaired != nil {
			t.Fatalf("got:\n%s\nwant:\n%s", got.format(), want.format())
		}
		for name := range got.kinds() { // and through the trees
			s, err := got.stored(name)
			if err != nil {
				t.Fatal(err)
			}
			for key := range got.of(name) {
				delete(got.facts, key)
			}
			got.put(name, s)
		}
		if !bytes.Equal(got.format(), want.format()) {
			t.Fatalf("got:\n%s\nwant:\n%s", got.format(), want.format())
		}
	})
}

// Whatever bytes are in the file, it is read, or there is an error at a place in it.
func FuzzNoLockIsTooBroken(f *testing.F) {
	paths, _ := filepath.Glob("testdata/lock/file/*.txtar")
	for _, path := range paths {
		f.Add(strings.ReplaceAll(readArchive(f, path).files[0].body, "@", ""))
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := readLock([]byte(text))
		if err != nil {
			le, ok := errors.AsType[*lockError](err)
			if !ok || le.line < 1 || le.col < 1 || le.line > strings.Count(text, "\n")+1 {
				t.Fatalf("%v", err)
			}
			return
		}
		if again, err := readLock(l.format()); l.format() != nil && (err != nil || !bytes.Equal(again.format(), l.format())) {
			t.Fatalf("%v\n%s", err, l.format())
		}
	})
}

// git merges two edits of a lock, with markers of either style or keeping both. What comes out holds every fact that
// either side has, or is refused; with the base known, what one side removed is gone.
func TestMergesOfRandomEditsLoseNothing(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git")
	}
	merged, refused, marked := 0, 0, 0
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		base := randomLock(rnd)
		ours, theirs := edited(rnd, base), edited(rnd, base)
		dir := t.TempDir()
		for name, l := range map[string]*lock{"base": base, "ours": ours, "theirs": theirs} {
			if err := os.WriteFile(filepath.Join(dir, name), l.format(), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		style := []string{"-q", "--diff3", "--zdiff3", "--union"}[seed%4]
		git := exec.Command("git", "merge-file", "-p", style, "ours", "base", "theirs")
		git.Dir = dir
		out, err := git.Output()
		if ee, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || ee.ExitCode() > 127) {
			t.Fatal(err)
		}
		got, err := readLock(out)
		if err != nil {
			if !strings.Contains(err.Error(), "both sides of the merge") {
				t.Fatalf("seed %d: %v\n%s", seed, err, out)
			}
			refused++
			continue
		}
		merged++
		if bytes.Contains(out, []byte("<<<<<<<")) {
			marked++
			if got.repaired == nil {
				t.Fatal("it is not reported as repaired")
			}
		}
		again, err := readLock(got.format())
		if err != nil || again.repaired != nil || !bytes.Equal(again.format(), got.format()) {
			t.Fatalf("seed %d: read again: %v\n%s", seed, err, got.format())
		}
		for _, side := range []*lock{ours, theirs} {
			for key, fact := range side.facts {
				_, inBase := base.facts[key]
				_, inBoth := map[bool]*lock{true: theirs, false: ours}[side == ours].facts[key]
				if _, ok := got.facts[key]; !ok && !inBase && !inBoth && strings.HasSuffix(key, ".added") {
					t.Fatalf("seed %d: %s %s is lost\n%s\n%s", seed, key, fact, out, got.format())
				}
			}
		}
	}
	if merged < 20 || marked < 10 || refused == 0 {
		t.Errorf("%d merged, %d of them with markers, %d refused: the edits are no good test", merged, marked, refused)
	}
}

// edited is a lock as a branch leaves it: with fields added, removed and changed.
func edited(rnd *rand.Rand, from *lock) *lock {
	l := newLock()
	maps.Copy(l.facts, from.facts)
	maps.Copy(l.accepted, from.accepted)
	names := slices.Sorted(maps.Keys(l.kinds()))
	for range 1 + rnd.IntN(3) {
		name := names[rnd.IntN(len(names))]
		s, err := l.stored(name)
		if err != nil {
			panic(err)
		}
		root := s.payloads[s.version]
		if root.fields == nil {
			root.fields = map[string]*node{}
		}
		switch rnd.IntN(4) {
		case 0:
			root.fields["added"] = &node{wire: wire{name: []string{"int32", "int64", "string"}[rnd.IntN(3)]}}
		case 1:
			root.fields[fmt.Sprintf("n%d", rnd.IntN(3))] = randomNode(rnd, 2)
		case 2:
			for _, f := range slices.Sorted(maps.Keys(root.fields)) {
				root.fields[f] = root.fields[f].asGone()
				break
			}
		case 3:
			s.payloads[s.version+1] = root
			s.version++
		}
		for key := range l.of(name) {
			delete(l.facts, key)
		}
		l.put(name, s)
	}
	return l
}
