package jobctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/postgres"
	"github.com/jobgen-go/jobgen/internal/storable"
)

// statuses of jobs in the queue; ready and scheduled together are queued. Those of a job that has left it are in archived.
var (
	statuses = []string{"queued", "ready", "scheduled", "running", "dead"}
	archived = []string{"cancelled", "succeeded"}
)

// selection is what the flags of a command say of the jobs that it is about.
type selection struct {
	filter                engine.Filter
	key                   string
	older, newer, waiting string
	payload               []string
	all                   bool
	allowed               []string
	given                 func(flag string) bool
}

const selectionHelp = `
The filters, all of which must hold: --kind, --queue and --status (of several
values, one); --older and --newer, by when a job was enqueued, and --waiting, by
how long it has been due (90s, 2h, 7d); --error, a part of its last error in
whatever case; --key; --payload PATH=VALUE, by what stands in the payload:
customer.id=17, items.0.sku=A-1, "a.b".c=true. A value matches a string of these
letters and an equal number, true, false, null, object or array.

Jobs that run, and dead ones, are found without looking at what waits, and --key
asks who has the key now. Other filters look at job after job; a terminal shows
how far that is.
`

// flags adds the filters to a command about jobs of these statuses.
func (s *selection) flags(c *cli, cmd *cobra.Command, allowed []string, bulk bool) {
	flags, f := cmd.Flags(), &s.filter
	s.allowed, s.given = allowed, flags.Changed
	flags.StringSliceVar(&f.Statuses, "status", nil, "only of this `status`; joined by commas, or repeated")
	flags.StringArrayVar(&f.Kinds, "kind", nil, "only this `kind`; may be repeated")
	flags.StringArrayVar(&f.Queues, "queue", nil, "only this `queue`; may be repeated")
	flags.StringVar(&s.older, "older", "", "only those enqueued longer ago than this `age`")
	flags.StringVar(&s.newer, "newer", "", "only those enqueued within this `age`")
	flags.StringVar(&s.waiting, "waiting", "", "only queued ones that are due for this `long`")
	flags.StringVar(&f.Error, "error", "", "only those with this `text` in their last error")
	flags.StringVar(&s.key, "key", "", "only the job with this `key`")
	flags.StringArrayVar(&s.payload, "payload", nil, "only with this in the payload (`path=value`)")
	if bulk {
		flags.BoolVar(&s.all, "all", false, "all jobs: without a filter, required")
	}
	_ = cmd.RegisterFlagCompletionFunc("status", completeList(allowed))
	_ = cmd.RegisterFlagCompletionFunc("kind", c.completeKinds(slices.Equal(allowed, []string{"dead"})))
	_ = cmd.RegisterFlagCompletionFunc("queue", c.completeQueues())
}

// check reads what can be read without the database: the flags, and ids in their place.
func (s *selection) check(args []string) (err error) {
	f := &s.filter
	if f.IDs, err = parseIDs(args); err != nil {
		return err
	}
	// An empty one would select everything, which a script with an unset variable does not mean.
	for flag, empty := range map[string]bool{
		"status": len(f.Statuses) == 0, "older": s.older == "", "newer": s.newer == "", "waiting": s.waiting == "", "error": f.Error == "", "key": s.key == "",
	} {
		if empty && s.given(flag) {
			return fmt.Errorf("--%s is empty", flag)
		}
	}
	for _, v := range f.Statuses {
		if !slices.Contains(s.allowed, v) {
			return fmt.Errorf("--status is %q; it may be %s", v, strings.Join(s.allowed, ", "))
		}
	}
	for _, t := range []struct {
		flag   string
		values []string
	}{{"--kind", f.Kinds}, {"--queue", f.Queues}, {"--error", []string{f.Error}}} {
		for _, v := range t.values {
			if problem := storable.Problem(v); problem != "" {
				return fmt.Errorf("%s %q %s", t.flag, v, problem)
			}
			if v == "" && t.flag != "--error" {
				return fmt.Errorf("%s is empty", t.flag)
			}
		}
	}
	for _, d := range []struct{ flag, value string }{{"--older", s.older}, {"--newer", s.newer}, {"--waiting", s.waiting}} {
		if _, err := parseAge(d.flag, d.value); err != nil {
			return err
		}
	}
	if f.Key = s.key; !storable.Hashed(s.key) {
		f.Key = storable.Key(s.key)
	}
	f.Payload = nil
	for _, p := range s.payload {
		want, err := parseWant(p)
		if err != nil {
			return err
		}
		f.Payload = append(f.Payload, want)
	}
	if len(f.IDs) > 0 && s.filtered() {
		return errors.New("give either ids or filters, not both")
	}
	return nil
}

// filtered tells whether there is a filter, or --all in its place.
func (s *selection) filtered() bool {
	f := &s.filter
	return s.all || len(f.Statuses)+len(f.Kinds)+len(f.Queues)+len(f.Payload) > 0 || s.older+s.newer+s.waiting+s.key+f.Error != ""
}

// resolve turns ages into times, by the database's clock.
func (s *selection) resolve(ctx context.Context, op postgres.Operator) error {
	if s.older+s.newer+s.waiting == "" {
		return nil
	}
	now, err := op.Now(ctx)
	if err != nil {
		return err
	}
	before := func(value string) *time.Time {
		if value == "" {
			return nil
		}
		d, _ := parseAge("", value)
		t := now.Add(-d)
		return &t
	}
	s.filter.CreatedBefore, s.filter.CreatedAfter, s.filter.DueBefore = before(s.older), before(s.newer), before(s.waiting)
	return nil
}

// String says what the filters leave.
func (s *selection) String() string {
	var parts []string
	for _, p := range []struct {
		name   string
		values []string
	}{{"status", s.filter.Statuses}, {"kind", s.filter.Kinds}, {"queue", s.filter.Queues}, {"payload", s.payload}} {
		if len(p.values) > 0 {
			parts = append(parts, p.name+" "+strings.Join(p.values, map[bool]string{true: " and ", false: " or "}[p.name == "payload"]))
		}
	}
	for _, p := range []struct{ name, value string }{{"key", s.key}, {"an error with", s.filter.Error}, {"an age over", s.older}, {"an age up to", s.newer}, {"a wait over", s.waiting}} {
		if p.value != "" {
			parts = append(parts, p.name+" "+p.value)
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " with " + strings.Join(parts, " and ")
}

var days = regexp.MustCompile(`^([0-9]{1,6})d`)

// parseAge reads a duration, which may begin with days. "" is 0.
func parseAge(flag, value string) (time.Duration, error) {
	if value == "" {
		return 0, nil
	}
	var whole time.Duration
	rest := value
	if m := days.FindStringSubmatch(value); m != nil {
		n, _ := strconv.Atoi(m[1])
		whole, rest = time.Duration(min(n, 36500))*24*time.Hour, value[len(m[0]):]
		if rest == "" {
			return whole, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s is %q; it is a duration like 90s, 2h, 1h30m or 7d", flag, value)
	}
	return whole + d, nil
}

// parseWant reads PATH=VALUE. A name with a point in it, or with =, stands in quotation marks.
func parseWant(s string) (w engine.Want, err error) {
	rest := s
	for {
		var name string
		if strings.HasPrefix(rest, `"`) {
			end := 1
			for end < len(rest) && rest[end] != '"' {
				if rest[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(rest) || json.Unmarshal([]byte(rest[:end+1]), &name) != nil {
				return w, fmt.Errorf("--payload %q: the name in quotation marks has no end, or is no JSON string", s)
			}
			rest = rest[end+1:]
		} else if end := strings.IndexAny(rest, ".="); end >= 0 {
			name, rest = rest[:end], rest[end:]
		} else {
			return w, fmt.Errorf("--payload is %q; it is a path and a value, like customer.id=17", s)
		}
		if name == "" {
			return w, fmt.Errorf("--payload %q: a name in the path is empty", s)
		}
		w.Path = append(w.Path, name)
		if value, is := strings.CutPrefix(rest, "="); is {
			w.Text = value
			break
		}
		var more bool
		if rest, more = strings.CutPrefix(rest, "."); !more {
			return w, fmt.Errorf("--payload is %q; after a name comes a point or =", s)
		}
	}
	if problem := storable.Problem(strings.Join(w.Path, "") + w.Text); problem != "" {
		return w, fmt.Errorf("--payload %q %s", s, problem)
	}
	if text := []byte(strings.TrimSpace(w.Text)); isJSON(text) {
		w.JSON = text
	}
	return w, nil
}

// isJSON tells whether a text is JSON that the database takes.
func isJSON(text []byte) bool {
	if !json.Valid(text) || bytes.HasPrefix(text, []byte(`-`)) && len(text) < 2 {
		return false
	}
	if _, err := storable.JSON(json.RawMessage(text), len(text)+1); err != nil {
		return false
	}
	var v any
	return json.Unmarshal(text, &v) == nil // a number out of range is none
}

// parseIDs reads ids as they were typed, each once, in their order.
func parseIDs(args []string) (ids []int64, err error) {
	seen := map[int64]bool{}
	for _, a := range args {
		id, err := strconv.ParseInt(a, 10, 64)
		if err != nil || id < 1 {
			return nil, fmt.Errorf("%q is no job id; ids are numbers, as `jobctl jobs list` shows them", a)
		}
		if !seen[id] {
			ids = append(ids, id)
		}
		seen[id] = true
	}
	return ids, nil
}

// oneID refuses anything but one id.
func oneID(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("it takes one job id, and got %d arguments", len(args))
	}
	_, err := parseIDs(args)
	return err
}
