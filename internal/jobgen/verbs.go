package jobgen

import (
	"errors"
	"fmt"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jobgen-go/jobgen/internal/cron"
)

// verb is one directive, //job:NAME. The table below drives the parser, `jobgen help` and the documentation:
// what is not in it does not exist.
type verb struct {
	Name    string `json:"name"`
	Package bool   `json:"package"` // belongs in the package's doc comment, not on a type
	Doc     string `json:"doc"`
	Arg     *key   `json:"arg,omitempty"` // the word before the keys
	Keys    []key  `json:"keys,omitempty"`
	Repeats bool   `json:"repeats,omitempty"` // may stand on several lines
}

// key is one key=value of a verb; a flag is a key without Value. The word before the keys is written as its Value shows:
// in quotes if that is, several times if that ends in an ellipsis.
type key struct {
	Name    string `json:"name"`
	Value   string `json:"value,omitempty"`   // what to write after the equals sign
	Default string `json:"default,omitempty"` // what holds without it
	Doc     string `json:"doc"`
	// set stores a value in a, or says what it should have been.
	set func(a *annotation, v string) error
}

func (k *key) quoted() bool { return strings.HasPrefix(k.Value, `"`) }
func (k *key) many() bool   { return strings.HasSuffix(k.Value, "…") }

// annotation is what the directives of one place say: of a type, or of a package's doc comment.
type annotation struct {
	at map[string]token.Pos // where "kind", "kind.timeout", … are written

	name     string
	queue    string
	priority int
	attempts int
	timeout  time.Duration
	result   string
	version  int
	tx       bool
	lock     bool // own=lock

	key  []string // Go field paths
	keep time.Duration

	schedule  schedule   // of the line being read
	schedules []schedule // of all lines
	was       []string   // earlier kinds; at["was.NAME"] is where each is written
	reserved  []string   // JSON names

	backoff   string // exp, linear or const
	base, max time.Duration
}

// schedule is one //job:cron line.
type schedule struct {
	name, expr, zone, missed string
	at                       map[string]token.Pos // of this line alone
}

func (a *annotation) has(what string) bool { _, ok := a.at[what]; return ok }

// What holds where an annotation says nothing.
const (
	defaultQueue    = "default"
	defaultAttempts = 20
	defaultKeep     = 24 * time.Hour
	defaultBase     = time.Second
	defaultMax      = time.Hour
	defaultZone     = "UTC"
	defaultMissed   = "once"
)

// maxVersion is far more than a payload goes through; each version costs a function.
const maxVersion = 100

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
			{"v", "1..100", "1", "version of the payload's form; raising it takes a function that reads the version before, upgradeTypeV1",
				func(a *annotation, v string) (err error) { a.version, err = intIn(v, 1, maxVersion); return }},
			{"own", "lease|lock", "lease", "how a worker holds the job; lock, for short work on the database only, implies tx", setOwn},
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
	{Name: "cron", Repeats: true, Doc: "enqueues the kind on a schedule, with the zero payload; job.ScheduledAt() tells the tick. Not together with key",
		Arg: &key{`"EXPR"`, `"EXPR"`, "", "minute hour day-of-month month day-of-week, or @hourly, @daily, @weekly, @monthly, @yearly; in quotes",
			func(a *annotation, v string) error { a.schedule.expr = v; return checkCron(v, "") }},
		Keys: []key{
			{"tz", "ZONE", defaultZone, "the time zone of the expression, such as Europe/Berlin",
				func(a *annotation, v string) error { a.schedule.zone = v; return checkCron("@daily", v) }},
			{"name", "NAME", "the kind's name", "the schedule's stored name; required with more than one",
				func(a *annotation, v string) error { a.schedule.name = v; return checkName(v) }},
			{"missed", "skip|once|all", defaultMissed, "what to do about ticks that passed while no worker ran",
				func(a *annotation, v string) error { a.schedule.missed = v; return oneOf(v, "skip", "once", "all") }},
		}},
	{Name: "was", Doc: "names kinds that this one used to be: stored jobs of theirs still decode into this type and run here",
		Arg: &key{"NAME", "NAME…", "", "the earlier kinds, one or several",
			func(a *annotation, v string) error { return a.addWas(v) }}},
	{Name: "reserve", Doc: "keeps JSON names of removed fields from ever coming back with another meaning",
		Keys: []key{{"fields", "a,b", "", "the JSON names; required",
			func(a *annotation, v string) error {
				a.reserved = strings.Split(v, ",")
				return checkReserved(a.reserved)
			}}}},
	{Name: "defaults", Package: true, Doc: "says what the kinds of the package inherit",
		Keys: []key{queueKey, priorityKey, attemptsKey, timeoutKey}},
	{Name: "registry", Package: true, Doc: "emits RegisterAll here: it takes the Handlers of every package of the module, so that none is forgotten. One per module"},
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

// errWhole is a sentence that names the value itself.
type errWhole string

func (e errWhole) Error() string { return string(e) }

func checkCron(expr, zone string) error {
	if _, err := cron.Parse(expr, zone); err != nil {
		return errWhole(err.Error())
	}
	return nil
}

func (a *annotation) addWas(v string) error {
	if slices.Contains(a.was, v) {
		return errors.New("is named twice: keep one")
	}
	a.was = append(a.was, v)
	return checkName(v)
}

// errAt is about what stands so many bytes into the value, and names it.
type errAt struct {
	offset int
	text   string
}

func (e errAt) Error() string { return e.text }

func checkReserved(names []string) error {
	offset := 0
	for i, name := range names {
		switch {
		case name == "":
			return errAt{offset, "an empty name: write the JSON names as fields=a,b, without blanks"}
		case !validName(name):
			return errAt{offset, name + " is no JSON name that encoding/json accepts"}
		case slices.Contains(names[:i], name):
			return errAt{offset, name + " is named twice: keep one"}
		}
		offset += len(name) + 1
	}
	return nil
}

func setOwn(a *annotation, v string) error {
	if a.lock = v == "lock"; a.lock {
		a.tx = true
	}
	return oneOf(v, "lease", "lock")
}
