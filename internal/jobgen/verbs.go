package jobgen

import (
	"fmt"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// verb is one directive, //job:NAME. The table below drives the parser, `jobgen help` and the documentation:
// what is not in it does not exist.
type verb struct {
	Name    string `json:"name"`
	Package bool   `json:"package"` // belongs in the package's doc comment, not on a type
	Doc     string `json:"doc"`
	Arg     *key   `json:"arg,omitempty"` // the word before the keys
	Keys    []key  `json:"keys,omitempty"`
	Later   bool   `json:"later,omitempty"` // recognised, not supported yet
}

// key is one key=value of a verb; a flag is a key without Value.
type key struct {
	Name    string `json:"name"`
	Value   string `json:"value,omitempty"`   // what to write after the equals sign
	Default string `json:"default,omitempty"` // what holds without it
	Doc     string `json:"doc"`
	// set stores a value in a, or says what it should have been.
	set func(a *annotation, v string) error
}

// annotation is what the directives of one place say: of a type, or of a package's doc comment.
type annotation struct {
	at map[string]token.Pos // where "kind", "kind.timeout", … are written

	name     string
	queue    string
	priority int
	attempts int
	timeout  time.Duration
	result   string
	tx       bool

	key  []string // Go field paths
	keep time.Duration

	backoff   string // exp, linear or const
	base, max time.Duration
}

func (a *annotation) has(what string) bool { _, ok := a.at[what]; return ok }

// What holds where an annotation says nothing.
const (
	defaultQueue    = "default"
	defaultAttempts = 20
	defaultKeep     = 24 * time.Hour
	defaultBase     = time.Second
	defaultMax      = time.Hour
)

// A job's own value, else the package's, else the default: these keys may stand in both places.
var (
	queueKey = key{"queue", "NAME", defaultQueue, "where the job waits; workers choose the queues they serve",
		func(a *annotation, v string) error { a.queue = v; return checkName(v) }}
	priorityKey = key{"priority", "0..9", "0", "bigger is claimed first",
		func(a *annotation, v string) (err error) { a.priority, err = intIn(v, 0, 9); return }}
	attemptsKey = key{"attempts", "1..32767", strconv.Itoa(defaultAttempts), "how often the job is started in all, the first time included",
		func(a *annotation, v string) (err error) { a.attempts, err = intIn(v, 1, 32767); return }}
	timeoutKey = key{"timeout", "DURATION", "", "how long one attempt may run; required, here or in //job:defaults",
		func(a *annotation, v string) (err error) { a.timeout, err = duration(v); return }}
)

var verbs = []verb{
	{Name: "kind", Doc: "declares the type below as the payload of a kind of job",
		Arg: &key{"NAME", "NAME", "", "the stored name, data for months: lower-case words joined by dots, at most 100 bytes",
			func(a *annotation, v string) error { a.name = v; return checkName(v) }},
		Keys: []key{queueKey, priorityKey, attemptsKey, timeoutKey,
			{"result", "Type", "none", "what the handler returns: an exported struct of the same package",
				func(a *annotation, v string) error { a.result = v; return checkResultName(v) }},
			{"v", "N", "1", "version of the payload; more than 1 is not supported yet", setVersion},
			{"own", "lease|lock", "lease", "how a worker holds the job; lock is not supported yet", setOwn},
			{"tx", "", "", "the handler gets the transaction that also records its outcome",
				func(a *annotation, _ string) error { a.tx = true; return nil }},
		}},
	{Name: "key", Doc: "names the fields that identify the work: a second job with the same key is not run",
		Arg: &key{"A,B.C", "A,B.C", "", "Go field paths; their order is the key's order",
			func(a *annotation, v string) error { a.key = strings.Split(v, ","); return nil }},
		Keys: []key{{"for", "DURATION", "24h", "how long the result is remembered",
			func(a *annotation, v string) (err error) { a.keep, err = duration(v); return }}}},
	{Name: "retry", Doc: "says how long a failed job waits before its next attempt",
		Keys: []key{
			{"backoff", "exp|linear|const", "exp", "how the wait grows with the attempts",
				func(a *annotation, v string) error { a.backoff = v; return oneOf(v, "exp", "linear", "const") }},
			{"base", "DURATION", "1s", "the first wait",
				func(a *annotation, v string) (err error) { a.base, err = duration(v); return }},
			{"max", "DURATION", "1h", "the longest wait",
				func(a *annotation, v string) (err error) { a.max, err = duration(v); return }},
		}},
	{Name: "cron", Later: true, Doc: "enqueues the kind on a schedule",
		Arg: &key{Name: `"EXPR"`, Value: `"EXPR"`, Doc: "five fields, quoted"},
		Keys: []key{
			{Name: "tz", Value: "ZONE", Doc: "the time zone of the schedule"},
			{Name: "name", Value: "NAME", Doc: "the schedule's stored name"},
			{Name: "missed", Value: "skip|once|all", Doc: "what to do about ticks that passed unseen"},
		}},
	{Name: "was", Later: true, Doc: "names earlier kinds that still decode into this type",
		Arg: &key{Name: "NAME", Value: "NAME…", Doc: "the earlier kinds"}},
	{Name: "reserve", Later: true, Doc: "keeps JSON names from ever coming back",
		Keys: []key{{Name: "fields", Value: "a,b", Doc: "the JSON names"}}},
	{Name: "defaults", Package: true, Doc: "says what the kinds of the package inherit",
		Keys: []key{queueKey, priorityKey, attemptsKey, timeoutKey}},
	{Name: "registry", Package: true, Later: true, Doc: "emits RegisterAll, for every package of the module, here"},
}

func findVerb(name string) *verb {
	if i := slices.IndexFunc(verbs, func(v verb) bool { return v.Name == name }); i >= 0 {
		return &verbs[i]
	}
	return nil
}

func (v *verb) find(name string) *key {
	if i := slices.IndexFunc(v.Keys, func(k key) bool { return k.Name == name }); i >= 0 {
		return &v.Keys[i]
	}
	return nil
}

func verbNames() (names []string) {
	for _, v := range verbs {
		names = append(names, v.Name)
	}
	return names
}

func (v *verb) keyNames() (names []string) {
	for _, k := range v.Keys {
		names = append(names, k.Name)
	}
	return names
}

// errLater marks a value that will be accepted one day.
type errLater string

func (e errLater) Error() string { return string(e) }

var nameForm = regexp.MustCompile(`^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$`)

// checkName holds for kinds and queues alike.
func checkName(s string) error {
	switch {
	case len(s) > 100:
		return fmt.Errorf("is %d bytes long; at most 100 can be stored", len(s))
	case !nameForm.MatchString(s):
		return fmt.Errorf("want lower-case words of letters, digits and _, joined by dots, such as billing.charge_card")
	}
	return nil
}

func intIn(s string, least, most int) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("want a whole number from %d to %d", least, most)
	}
	return n, nil
}

func oneOf(s string, words ...string) error {
	if !slices.Contains(words, s) {
		return fmt.Errorf("want %s%s", strings.Join(words, " or "), didYouMean(s, words))
	}
	return nil
}

// duration is Go's own form with d for days of 24 hours before it: 30s, 1h30m, 30d, 1d12h.
func duration(s string) (time.Duration, error) {
	var total time.Duration
	days, rest, found := strings.Cut(s, "d")
	if found {
		n, err := strconv.ParseUint(days, 10, 16) // 16 bits: 179 years, within a time.Duration
		if err != nil {
			return 0, errDuration
		}
		total = time.Duration(n) * 24 * time.Hour
	} else {
		rest = s
	}
	if rest != "" || !found {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 {
			return 0, errDuration
		}
		total += d
	}
	if total <= 0 {
		return 0, fmt.Errorf("must be more than nothing")
	}
	return total, nil
}

var errDuration = fmt.Errorf("want a duration such as 30s, 5m, 1h30m or 30d")

func checkResultName(v string) error {
	switch {
	case strings.ContainsAny(v, "*[]"):
		return fmt.Errorf("want the plain name of a struct type, such as result=Receipt")
	case strings.Contains(v, "."):
		_, name, _ := strings.Cut(v, ".")
		return fmt.Errorf("want a type of the same package: declare type %s struct here and write result=%[1]s", name)
	case !token.IsIdentifier(v) || !token.IsExported(v):
		return fmt.Errorf("want the name of an exported struct type of this package, such as result=Receipt")
	}
	return nil
}

func setVersion(_ *annotation, v string) error {
	n, err := intIn(v, 1, 32767)
	if err == nil && n > 1 {
		return errLater("versions above 1 are not supported yet: only add fields, or declare a new kind")
	}
	return err
}

func setOwn(_ *annotation, v string) error {
	if v == "lock" {
		return errLater("not supported yet: remove it, a lease is the default")
	}
	return oneOf(v, "lease", "lock")
}
