package jobgen

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Class says what a change of what is stored means for jobs that are stored already and for programs that run already.
type Class string

const (
	// Safe: programs before and after the change read what the others write. The lock follows by itself.
	Safe Class = "safe"
	// Staged: the new program reads what the old one wrote (but for a value that it has given up: optional-field-removed),
	// and not always the other way round, so the order of deployment matters. The lock follows by itself, and jobgen says
	// the order.
	Staged Class = "staged"
	// Breaking: something stored would be lost, misread or never run. Nothing is generated until it is taken back,
	// versioned or accepted.
	Breaking Class = "breaking"
)

// Rule is one way in which what is stored can change. The table below is all of them: it drives the comparison, what is
// printed, `jobgen help rules` and the documentation.
//
// Payloads are written by the programs that enqueue and read by workers; results are written by workers and read by the
// programs that await. Both outlive the program that wrote them, so for both the new program must read what the old one
// wrote. Only the order of a staged deployment differs, as the readers of the one are the writers of the other. The
// texts have {rows}, {readers} and {writers} in these places.
type Rule struct {
	ID      string `json:"id"`
	Class   Class  `json:"class"`
	Change  string `json:"-"`               // how a change is told, if not "{subject} was {from} and is {to}"
	Purpose string `json:"purpose"`         // what the change does
	Advice  string `json:"advice"`          // what to do about it
	Order   string `json:"order,omitempty"` // of a staged change: what to deploy first
	Example string `json:"example"`
	// Kind: it is about the kind itself, not about what is in its payload or result.
	Kind bool `json:"kind,omitempty"`
	// Forget: what is gone is forgotten (jobgen forget) when nothing of it is stored any more. It cannot be accepted.
	Forget bool `json:"forget,omitempty"`

	// match recognises a change of a value's form. The first rule that matches is reported. Rules without it are about
	// fields and kinds, and the comparison knows when they apply.
	match func(before, after wire) bool
}

const (
	readersFirst = "deploy {readers} first, then {writers}"
	nothingElse  = "nothing else to do"
)

// rules are in the order in which match is tried, within the groups of their subject.
var rules = []Rule{
	// Kinds.
	{ID: "kind-added", Class: Safe, Kind: true, Change: "{subject} is new",
		Purpose: "nothing of it is stored yet", Advice: "nothing to do: old workers leave alone what they have no handler for",
		Example: "//job:kind billing.refund"},
	{ID: "kind-renamed", Class: Staged, Kind: true, Change: "{from} is called {to} now",
		Purpose: "stored jobs keep the old name, which the new program runs too; old workers do not know the new one",
		Advice:  "keep the //job:was line for as long as jobs of the old name may be stored", Order: readersFirst,
		Example: "//job:kind charge_card → //job:kind billing.charge_card + //job:was charge_card"},
	{ID: "kind-removed", Class: Breaking, Kind: true, Change: "kind {subject} is not declared any more",
		Purpose: "jobs of it that are still stored would wait for ever",
		Advice:  "if it has another name now, write //job:was {subject} there; else keep the kind until none of its jobs are left, then run go tool jobgen forget {subject}, which tells how to check",
		Example: "the type and its //job:kind deleted", Forget: true},
	{ID: "was-added", Class: Safe, Kind: true, Change: "{subject} takes over {to}",
		Purpose: "jobs of that name run here", Advice: "nothing to do",
		Example: "//job:was charge_card, a kind of before there was a lock"},
	{ID: "was-removed", Class: Breaking, Kind: true, Change: "no kind takes over {subject} any more, as {from} did",
		Purpose: "jobs stored under the old name would wait for ever",
		Advice:  "put //job:was {subject} back; when none of its jobs are left, run go tool jobgen forget {subject}, which tells how to check",
		Example: "//job:was charge_card deleted", Forget: true},
	{ID: "queue-changed", Class: Staged, Kind: true, Change: "{subject} waits in queue {to}, and was in {from}",
		Purpose: "stored jobs stay in the old queue, new ones go to the new", Advice: "let workers serve both until the old queue is empty",
		Order:   "let workers serve both queues first, then deploy the programs that enqueue",
		Example: "queue=billing → queue=payments"},
	{ID: "version-raised", Class: Staged, Kind: true, Change: "{subject} has version {to}, and had {from}",
		Purpose: "stored payloads pass through the upgrade functions; old workers leave the new version alone, so its jobs wait for new ones",
		Advice:  "the lock keeps the older form: test the upgrade function with it", Order: readersFirst,
		Example: "v=2"},
	{ID: "version-lowered", Class: Breaking, Kind: true, Change: "{subject} has version {to}, and had {from}",
		Purpose: "stored jobs of the newer version would wait for ever, as a worker leaves alone what is newer than itself", Advice: "put the v= of before back, or go on to a higher one",
		Example: "v=2 → v=1"},
	{ID: "key-added", Class: Staged, Kind: true, Change: "{subject} has the key {to}, and had none",
		Purpose: "jobs that old programs enqueue have no key, so work may be done twice until all are new",
		Advice:  "do not rely on the key before", Order: "deploy all programs that enqueue, wait until the jobs without a key are done, and only then rely on the key",
		Example: "//job:key OrderID added"},
	{ID: "key-changed", Class: Breaking, Kind: true, Change: "{subject} has the key {to}, and had {from}",
		Purpose: "the same work gets another key than before the deployment, so what is stored or remembered under the old one is done again",
		Advice:  "put the fields of //job:key back in their order; for another identity declare another kind; if only a JSON name is another, accept it, for names are not in the key",
		Example: "//job:key A,B → //job:key B,A"},
	{ID: "result-added", Class: Staged, Kind: true, Change: "{subject} has a result, and had none",
		Purpose: "jobs that old workers finish have none, which is read as the zero value", Advice: "await results only after all workers are new",
		Order:   "deploy workers first, then the programs that await",
		Example: "result=Receipt added"},
	{ID: "result-removed", Class: Breaking, Kind: true, Change: "{subject} has no result any more",
		Purpose: "running programs that await one would get the zero value without an error", Advice: "keep it until nobody awaits it",
		Example: "result=Receipt deleted"},
	{ID: "reserve-removed", Class: Breaking, Kind: true, Change: "{subject} is not reserved any more",
		Purpose: "the name was never to come back, since stored {rows} may hold it with its old meaning", Advice: "put it back into //job:reserve fields=",
		Example: "//job:reserve fields=amount deleted"},
	{ID: "reserved-reused", Class: Breaking, Kind: true, Change: "{subject} is a field again, and was reserved",
		Purpose: "stored {rows} may hold it with its old meaning", Advice: "choose another JSON name",
		Example: "//job:reserve fields=amount → Amount int64 `json:\"amount\"`"},

	// Fields.
	{ID: "field-added", Class: Safe, Change: "{subject} ({to}) is new",
		Purpose: "{rows} without it are read as its zero value, and old programs pass over it", Advice: "let the zero value mean: not known",
		Example: "Note string `json:\"note\"` added"},
	{ID: "optional-field-removed", Class: Staged, Change: "{subject} ({from}) is gone",
		Purpose: "the new program passes over it; old ones read it as missing, which it could always be",
		Advice:  "the lock remembers the name, so that it does not come back as something else", Order: readersFirst,
		Example: "Note string `json:\"note,omitempty\"` deleted"},
	{ID: "field-removed", Class: Breaking, Change: "{subject} ({from}) is gone",
		Purpose: "what stored {rows} hold there is lost, and old programs, for which it was always there, read the zero value without an error",
		Advice:  "put it back with omitempty, deploy that everywhere, and remove it with the next deployment",
		Example: "Note string `json:\"note\"` deleted"},
	{ID: "json-name-case", Class: Breaking, Change: "{subject} was called {from}",
		Purpose: "encoding/json does not mind case, but SQL, other languages and encoding/json/v2 miss what is stored under the old spelling",
		Advice:  "put the old JSON name back; the Go field can have any name",
		Example: "`json:\"order_id\"` → `json:\"Order_ID\"`"},
	{ID: "json-name", Class: Breaking, Change: "{subject} seems to be what was called {from}",
		Purpose: "what is stored under the old name is not read any more",
		Advice:  "put the old JSON name back (the Go field can have any name); if it is another field, add it in one deployment and remove the old one in another",
		Example: "`json:\"order_id\"` → `json:\"order\"`"},
	{ID: "embedding", Class: Breaking, Change: "the fields of {subject} are {to}, and were {from}",
		Purpose: "what is stored in the one place is not looked for in the other",
		Advice:  "embed it as before, or name it as before",
		Example: "Address → Address Address `json:\"address\"`"},
	{ID: "omit-added", Class: Safe,
		Purpose: "a missing value is read as the zero value, which is what is left out", Advice: "nothing to do (an empty list comes back as nil)",
		Example: "`json:\"note\"` → `json:\"note,omitempty\"`"},
	{ID: "omit-removed", Class: Safe,
		Purpose: "the zero value is written now, and was read for a missing one before", Advice: "nothing to do",
		Example: "`json:\"note,omitempty\"` → `json:\"note\"`"},

	// The values a defined type has names for.
	{ID: "enum-declared", Class: Safe, Change: "{subject} is a type with constants now",
		Purpose: "its values are written as before", Advice: "check that stored {rows} hold none but these",
		Example: "string → type Currency string with constants"},
	{ID: "enum-dropped", Class: Safe, Change: "{subject} is a type without constants now",
		Purpose: "its values are written as before", Advice: "nothing to do: values are not checked any more",
		Example: "type Currency string with constants → string"},
	{ID: "enum-renamed", Class: Safe, Change: "{subject}: the constant {from} is called {to} now",
		Purpose: "only the value is stored", Advice: "nothing to do",
		Example: "Shipped Status = 2 → Sent Status = 2"},
	{ID: "enum-changed", Class: Breaking, Change: "{subject}: the constant is {to}, and was {from}",
		Purpose: "stored {rows} hold the old value, which means something else now, or nothing",
		Advice:  "put the old value back; add constants at the end of an iota",
		Example: "Shipped Status = 2 → Shipped Status = 3"},
	{ID: "enum-removed", Class: Breaking, Change: "{subject} is gone (its value was {from})",
		Purpose: "stored {rows} may hold the value, and nothing in the program knows it any more",
		Advice:  "keep the constant until no {rows} hold its value",
		Example: "const Shipped deleted"},
	{ID: "enum-added", Class: Staged, Change: "{subject} is new (its value is {to})",
		Purpose: "old programs do not know the value", Advice: "give a switch over the values a default that returns an error", Order: readersFirst,
		Example: "const Returned added"},

	// Values: anything, which includes null.
	{ID: "raw-gained", Class: Staged,
		Purpose: "json.RawMessage holds whatever is stored; old programs expect its old form", Advice: "check the form in the handler", Order: readersFirst,
		Example: "Address → json.RawMessage", match: func(_, b wire) bool { return b.is(wireJSON) }},
	{ID: "raw-lost", Class: Breaking,
		Purpose: "stored {rows} may hold any JSON there, and not all of it decodes into the new type", Advice: "keep json.RawMessage and decode it in the handler",
		Example: "json.RawMessage → Address", match: func(a, b wire) bool { return a.is(wireJSON) && !b.base().is(wireJSON) }},

	// Values: null.
	{ID: "pointer-added", Class: Safe,
		Purpose: "null is read as the zero value where it is not expected", Advice: "nothing to do",
		Example: "int64 → *int64",
		match:   func(a, b wire) bool { return b.op == '*' && a.op != '*' && !b.base().opaque() }},
	{ID: "pointer-added-opaque", Class: Staged,
		Purpose: "old programs hand null to the type's own decoder, which may refuse it or make something of it", Advice: "check what UnmarshalJSON does with null", Order: readersFirst,
		Example: "Money → *Money, with MarshalJSON",
		match:   func(a, b wire) bool { return b.op == '*' && a.op != '*' }},
	{ID: "pointer-removed", Class: Breaking,
		Purpose: "a stored null, which meant that there is no value, is read as zero", Advice: "keep the pointer",
		Example: "*int64 → int64",
		match:   func(a, b wire) bool { return a.op == '*' && b.op != '*' }},

	// Values: who writes them.
	{ID: "marshaler-changed", Class: Breaking,
		Purpose: "each type writes itself its own way, which cannot be seen from here", Advice: "keep the type; if the new one reads what the old one wrote, accept it",
		Example: "a.Money → b.Money, each with MarshalJSON", match: func(a, b wire) bool { return a.opaque() && b.opaque() }},
	{ID: "time-string", Class: Breaking,
		Purpose: "a time.Time refuses every string that is not a time in RFC 3339", Advice: "keep the type; convert in Go",
		Example: "time.Time → string", match: either(wireTime, "string")},
	{ID: "marshaler-gained", Class: Breaking,
		Purpose: "the new type reads and writes itself its own way, and stored {rows} have the old form", Advice: "leave the type without methods of its own for JSON or text",
		Example: "string → a type with UnmarshalText", match: func(_, b wire) bool { return b.opaque() || b.is(wireTime) }},
	{ID: "marshaler-lost", Class: Breaking,
		Purpose: "stored {rows} hold what the old type wrote its own way, and old programs read only that", Advice: "keep the type's methods for JSON or text",
		Example: "a type with MarshalText → string", match: func(a, _ wire) bool { return a.opaque() || a.is(wireTime) }},

	// Values: lists, maps, objects.
	{ID: "array-shortened", Class: Breaking,
		Purpose: "further elements of stored {rows} are dropped without an error", Advice: "keep the length",
		Example: "[4]int → [2]int", match: func(a, b wire) bool { return a.op == 'a' && b.op == 'a' && a.n > b.n }},
	{ID: "array-lengthened", Class: Staged,
		Purpose: "stored {rows} are filled up with zero; old programs drop further elements without an error", Advice: nothingElse, Order: readersFirst,
		Example: "[2]int → [4]int", match: func(a, b wire) bool { return a.op == 'a' && b.op == 'a' && a.n < b.n }},
	{ID: "array-to-slice", Class: Staged,
		Purpose: "old programs drop further elements without an error", Advice: nothingElse, Order: readersFirst,
		Example: "[2]int → []int", match: func(a, b wire) bool { return a.op == 'a' && b.op == '[' }},
	{ID: "slice-to-array", Class: Breaking,
		Purpose: "further elements of stored {rows} are dropped without an error", Advice: "keep the slice, and check its length in the handler",
		Example: "[]int → [2]int", match: func(a, b wire) bool { return a.op == '[' && b.op == 'a' }},
	{ID: "list", Class: Breaking,
		Purpose: "one value does not decode into a list, nor a list into one value", Advice: "add a field with the list under a new JSON name, and read both",
		Example: "string → []string", match: func(a, b wire) bool { return a.isList() != b.isList() && !a.is(wireBytes) && !b.is(wireBytes) }},
	{ID: "map-key-widened", Class: Staged,
		Purpose: "old programs refuse keys beyond the old type", Advice: nothingElse, Order: readersFirst,
		Example: "map[int32]string → map[string]string",
		match: func(a, b wire) bool {
			return a.op == 'm' && b.op == 'm' && a.name != b.name && (b.name == "string" && !strings.HasPrefix(a.name, "text(") || fits(wire{name: a.name}, wire{name: b.name}))
		}},
	{ID: "map-key", Class: Breaking,
		Purpose: "keys of stored {rows} do not decode into the new type", Advice: "keep the type of the keys",
		Example: "map[string]string → map[int]string", match: func(a, b wire) bool { return a.op == 'm' && b.op == 'm' && a.name != b.name }},
	{ID: "object-map", Class: Breaking,
		Purpose: "a struct has fields of several types, a map has one type for all, and whatever names", Advice: "keep it, or store json.RawMessage",
		Example: "map[string]string → Address",
		match: func(a, b wire) bool {
			return a.op == 'm' && b.isObject() || b.op == 'm' && a.isObject()
		}},

	// Values: strings and numbers.
	{ID: "string-option", Class: Breaking,
		Purpose: "with the option ,string a number is written as a string, and neither form is read as the other", Advice: "leave the option as it was",
		Example: "`json:\"cents\"` → `json:\"cents,string\"`", match: func(a, b wire) bool { return a.quoted() != b.quoted() && a.unquoted() == b.unquoted() }},
	{ID: "bytes-string", Class: Breaking,
		Purpose: "[]byte is written in base64: a stored string is refused or decoded into something else", Advice: "keep the type; convert in Go",
		Example: "string → []byte", match: either("string", wireBytes)},
	{ID: "duration", Class: Breaking,
		Purpose: "a number is read as nanoseconds, whatever unit it was stored in, and the other way round", Advice: "add a field under a new JSON name that says the unit, such as wait_ms",
		Example: "int64 → time.Duration", match: func(a, b wire) bool { return a.is(wireDuration) && b.isNumber() || b.is(wireDuration) && a.isNumber() }},
	{ID: "number-string", Class: Breaking,
		Purpose: "a number does not decode into a string, nor a string into a number", Advice: "add a field under a new JSON name, and read both",
		Example: "string → int64",
		match: func(a, b wire) bool {
			return a.isNumber() && b.isString() || b.isNumber() && a.isString()
		}},
	{ID: "number-gained", Class: Staged,
		Purpose: "json.Number holds any number; old programs refuse what is beyond their type", Advice: nothingElse, Order: readersFirst,
		Example: "int64 → json.Number", match: func(a, b wire) bool { return a.isNumber() && b.is(wireNumber) }},
	{ID: "number-lost", Class: Breaking,
		Purpose: "stored {rows} may hold any number there, also fractions and what is beyond the new type", Advice: "keep json.Number and convert in the handler",
		Example: "json.Number → int64", match: func(a, b wire) bool { return a.is(wireNumber) && b.isNumber() }},
	{ID: "int-float", Class: Breaking,
		Purpose: "a fraction does not decode into an integer, and integers beyond 2^53 are rounded without an error", Advice: "add a field under a new JSON name; for money use an integer of cents",
		Example: "int64 → float64", match: func(a, b wire) bool { return a.isInt() && b.isFloat() || a.isFloat() && b.isInt() }},
	{ID: "int-size", Class: Safe,
		Purpose: "int has 64 bits on every platform that servers run on", Advice: "nothing to do, unless a program is built for a 32-bit platform: treat it as narrowed there",
		Example: "int → int64", match: func(a, b wire) bool { return fits(a, b) && fits(b, a) }},
	{ID: "int-widened", Class: Staged,
		Purpose: "old programs refuse numbers beyond the old type", Advice: nothingElse, Order: readersFirst,
		Example: "int32 → int64", match: fits},
	{ID: "int-sign", Class: Breaking,
		Purpose: "negative numbers do not decode into an unsigned type, nor the largest unsigned ones into a signed type", Advice: "keep the type",
		Example: "int64 → uint64", match: func(a, b wire) bool { return a.isInt() && b.isInt() && a.unsigned() != b.unsigned() }},
	{ID: "int-narrowed", Class: Breaking,
		Purpose: "stored numbers beyond the new type do not decode", Advice: "keep the wider type",
		Example: "int64 → int32", match: func(a, b wire) bool { return a.isInt() && b.isInt() }},
	{ID: "float-widened", Class: Staged,
		Purpose: "old programs round to the old precision without an error, and refuse what is beyond it", Advice: nothingElse, Order: readersFirst,
		Example: "float32 → float64", match: func(a, b wire) bool { return a.is("float32") && b.is("float64") }},
	{ID: "float-narrowed", Class: Breaking,
		Purpose: "stored numbers are rounded without an error, or do not decode", Advice: "keep float64",
		Example: "float64 → float32", match: func(a, b wire) bool { return a.isFloat() && b.isFloat() }},
	{ID: "json-type", Class: Breaking,
		Purpose: "one is not read as the other", Advice: "add a field under a new JSON name, and read both",
		Example: "bool → string", match: func(a, b wire) bool { return a.String() != b.String() }},
}

func findRule(id string) *Rule {
	if i := slices.IndexFunc(rules, func(r Rule) bool { return r.ID == id }); i >= 0 {
		return &rules[i]
	}
	return nil
}

// valueRules are the rules that a change of a value's form breaks, from the outside in.
func valueRules(before, after wire) (ids []string) {
	before, after = before.plain(), after.plain()
	if before.String() == after.String() {
		return nil
	}
	switch {
	case before.op == '*' && after.op == '*':
		return valueRules(*before.elem, *after.elem)
	case before.op == after.op && before.op != 0 && before.op != 'm' && before.n == after.n:
		return valueRules(*before.elem, *after.elem)
	case before.op == 'm' && after.op == 'm' && before.name == after.name:
		return valueRules(*before.elem, *after.elem)
	}
	for _, r := range rules {
		if r.match != nil && r.match(before, after) {
			ids = append(ids, r.ID)
			break
		}
	}
	switch { // and what is inside
	case before.op == '*':
		ids = append(ids, valueRules(*before.elem, after)...)
	case after.op == '*':
		ids = append(ids, valueRules(before, *after.elem)...)
	case before.isList() && after.isList(), before.op == 'm' && after.op == 'm':
		ids = append(ids, valueRules(*before.elem, *after.elem)...)
	}
	return ids
}

// plain takes same(…), which is how a recursive type is written down, for the object it is.
func (w wire) plain() wire {
	switch {
	case w.elem != nil:
		e := w.elem.plain()
		w.elem = &e
	case w.isObject():
		w.name = wireObject
	}
	return w
}

func (w wire) is(base string) bool { return w.op == 0 && w.name == base }
func (w wire) isList() bool        { return w.op == '[' || w.op == 'a' }
func (w wire) quoted() bool        { return w.op == 0 && strings.HasPrefix(w.name, wireQuoted) }
func (w wire) unquoted() string    { return strings.TrimPrefix(w.String(), wireQuoted) }
func (w wire) isString() bool      { return w.is("string") || w.quoted() || w.is(wireBytes) }
func (w wire) isFloat() bool       { return w.is("float32") || w.is("float64") }
func (w wire) unsigned() bool      { return strings.HasPrefix(w.name, "uint") }
func (w wire) isNumber() bool {
	return w.isInt() || w.isFloat() || w.is(wireNumber) || w.is(wireDuration)
}

func (w wire) isObject() bool {
	_, same := cutSame(w.name)
	return w.op == 0 && (same || w.name == wireObject)
}

// intBits are the bits an integer type has for its magnitude: what a signed one of that size holds.
var intBits = map[string]int{
	"int8": 7, "uint8": 8, "int16": 15, "uint16": 16, "int32": 31, "uint32": 32, "int64": 63, "int": 63, "uint64": 64, "uint": 64,
}

func (w wire) isInt() bool { return w.op == 0 && intBits[w.name] > 0 }

// fits tells whether every number of the integer type a is one of b.
func fits(a, b wire) bool {
	return a.isInt() && b.isInt() && intBits[a.name] <= intBits[b.name] && (a.unsigned() || !b.unsigned())
}

// either matches a change from one to the other, in whichever direction.
func either(x, y string) func(a, b wire) bool {
	return func(a, b wire) bool { return a.is(x) && b.is(y) || a.is(y) && b.is(x) }
}

// helpRules writes the table of rules, by class.
func helpRules(w io.Writer) {
	fmt.Fprint(w, "What may change of payloads and results while jobs are stored and programs run. jobgen compares with "+LockName+".\n")
	for _, class := range []struct {
		c    Class
		text string
	}{
		{Safe, "safe: nothing to do"},
		{Staged, "staged: allowed, in this order of deployment"},
		{Breaking, "breaking: nothing is generated until it is taken back, given a new version (v=), or accepted (jobgen accept)"},
	} {
		fmt.Fprintf(w, "\n%s\n", class.text)
		for i := range rules {
			if rules[i].Class == class.c {
				rules[i].help(w)
			}
		}
	}
}

func (r *Rule) help(w io.Writer) {
	fmt.Fprintf(w, "\n  %s: %s\n      %s;\n      %s\n", r.ID, r.Example, general(r.Purpose, false), general(r.Advice, false))
	switch {
	case r.Order == "":
	case r.Kind:
		fmt.Fprintf(w, "      order: %s\n", general(r.Order, false))
	default:
		fmt.Fprintf(w, "      order for a payload: %s\n      order for a result: %s\n", general(r.Order, false), general(r.Order, true))
	}
}

// general is a text of the table for no kind in particular.
func general(s string, result bool) string {
	return fillSide(strings.ReplaceAll(s, "{subject}", "KIND"), result)
}

// fillSide puts in who reads and who writes: of a payload, or of a result.
func fillSide(s string, result bool) string {
	if result {
		return strings.NewReplacer("{rows}", "results", "{readers}", "the programs that await", "{writers}", "workers").Replace(s)
	}
	return strings.NewReplacer("{rows}", "jobs", "{readers}", "workers", "{writers}", "the programs that enqueue").Replace(s)
}

// RulesJSON writes the table for programs: the texts as for a payload, the order of deployment for both.
func RulesJSON(w io.Writer) error {
	type data struct {
		Rule
		ResultOrder string `json:"result_order,omitempty"`
	}
	var out []data
	for _, r := range rules {
		d := data{Rule: r}
		if !r.Kind {
			d.ResultOrder = general(r.Order, true)
		}
		d.Purpose, d.Advice, d.Order = general(r.Purpose, false), general(r.Advice, false), general(r.Order, false)
		out = append(out, d)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "\t")
	return enc.Encode(out)
}
