package jobctl

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/doctor"
	"github.com/jobgen-go/jobgen/internal/engine"
	"github.com/jobgen-go/jobgen/internal/human"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// findingsShown is how many findings of one check are shown in full.
const findingsShown = 8

func (c *cli) doctor() *cobra.Command {
	var only []string
	var names []string
	for _, n := range doctor.Names() {
		names = append(names, n.Check)
	}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what hurts the queue, or is about to",
		Long: `Doctor looks at the queue, its tables, its workers and the server, and tells of
each thing that is wrong what it saw, what follows from it (so:), and what to do
(do:) as SQL or a command to be pasted. It changes nothing, and each check works
for two seconds at most and waits for no lock. What it was not allowed to see it
says: most needs the role pg_monitor.

  CRITICAL  jobs stand still or are lost, or soon will be
  WARNING   it costs, or it will hurt if nothing is done
  NOTE      good to know; a healthy queue may have it

Exit status 0: healthy, but for notes; 1: a warning, or a check that could not
be made; 3: something critical, or the database cannot be used at all.

The checks:
` + checksText(),
		Example: `  jobctl doctor
  jobctl doctor --only horizon,autovacuum
  jobctl doctor --json | jq -r '.findings[].remedies[].sql | values'`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			for _, name := range only {
				if !slices.Contains(names, name) {
					return fmt.Errorf("--only is %q; the checks are %s", name, strings.Join(names, ", "))
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			db, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer db.pool.Close()
			// Of another version than this jobctl's, or out of this role's reach, the schema is a finding.
			all, err := postgres.Migrations(cmd.Context(), db.pool)
			if len(all) > 0 && !slices.ContainsFunc(all, func(m postgres.Migration) bool { return !m.AppliedAt.IsZero() }) {
				return db.explain(engine.ErrNotMigrated)
			}
			report, failed := doctor.Run(cmd.Context(), db.pool, only, doctor.Default)
			if failed != nil {
				return db.explain(cmp.Or(err, failed)) // of the first contact, in one sentence
			}
			return c.diagnose(cmd.Context(), report)
		},
	}
	cmd.Flags().StringSliceVar(&only, "only", nil, "make this `check` only; joined by commas")
	_ = cmd.RegisterFlagCompletionFunc("only", completeList(names))
	return cmd
}

func checksText() string {
	var b strings.Builder
	for _, n := range doctor.Names() {
		fmt.Fprintf(&b, "  %-12s  %s\n", n.Check, n.Asks)
	}
	return strings.TrimRight(b.String(), "\n")
}

func (c *cli) diagnose(_ context.Context, r *doctor.Report) error {
	type summary struct {
		Critical  int `json:"critical"`
		Warnings  int `json:"warnings"`
		Notes     int `json:"notes"`
		Unchecked int `json:"not_checked"`
		Healthy   int `json:"healthy"`
	}
	s := summary{r.Count(doctor.Critical), r.Count(doctor.Warning), r.Count(doctor.Note), len(r.Unchecked), len(r.Healthy)}
	out := struct {
		Summary summary `json:"summary"`
		*doctor.Report
	}{s, r}
	if err := c.print(out, func(w io.Writer) { c.writeReport(w, r) }); err != nil {
		return err
	}
	switch {
	case s.Critical > 0:
		return &finding{code: exitDatabase}
	case s.Warnings+s.Unchecked > 0:
		return &finding{}
	}
	return nil
}

func (c *cli) writeReport(w io.Writer, r *doctor.Report) {
	width := c.width()
	var parts []string
	for _, p := range []struct {
		n         int
		one, many string
	}{
		{r.Count(doctor.Critical), "critical", "critical"}, {r.Count(doctor.Warning), "warning", "warnings"}, {r.Count(doctor.Note), "note", "notes"},
		{len(r.Unchecked), "not checked", "not checked"}, {len(r.Healthy), "healthy", "healthy"},
	} {
		if p.n > 0 {
			parts = append(parts, human.Count(p.n, p.one, p.many))
		}
	}
	wrapTo(w, width, "", "", strings.Join(parts, ", ")+"; "+r.Server+", "+r.Now.In(c.Zone).Format(time.DateTime+" -07:00"))
	shown := map[string]int{}
	for _, f := range r.Findings {
		if shown[f.Check]++; shown[f.Check] > findingsShown {
			continue
		}
		fmt.Fprintln(w)
		mark := strings.ToUpper(string(f.Severity))
		wrapTo(w, width, fmt.Sprintf("%-8s  ", mark), "          ", f.Title+" ["+f.Check+"]")
		for _, line := range f.Evidence {
			indent := "  "
			if trimmed := strings.TrimLeft(line, " "); trimmed != line {
				indent, line = "    ", trimmed
			}
			wrapTo(w, width, indent, indent+"  ", line)
		}
		if f.Consequence != "" {
			wrapTo(w, width, "  so: ", "      ", f.Consequence)
		}
		for _, d := range f.Remedies {
			first := "  do: "
			if d.Say != "" {
				wrapTo(w, width, first, "      ", d.Say)
				first = "      "
			}
			for line := range strings.Lines(d.SQL) {
				writeCode(w, width, &first, "", strings.TrimSuffix(line, "\n"))
			}
			if d.Command != "" {
				writeCode(w, width, &first, ` \`, d.Command)
			}
		}
	}
	for _, n := range doctor.Names() {
		if more := shown[n.Check] - findingsShown; more > 0 {
			fmt.Fprintln(w)
			wrapTo(w, width, "", "  ", fmt.Sprintf("… and %s of the check %s; --json shows all", human.Count(more, "more finding", "more findings"), n.Check))
		}
	}
	for _, u := range r.Unchecked {
		fmt.Fprintln(w)
		wrapTo(w, width, "NOT CHECKED  ", "  ", u.Check+": "+firstLine(u.Reason))
		if u.Remedy != "" {
			wrapTo(w, width, "  do: ", "      ", u.Remedy)
		}
	}
	if len(r.Healthy) == 0 {
		return
	}
	fmt.Fprintln(w)
	if len(r.Findings)+len(r.Unchecked) > 0 {
		var names []string
		for _, h := range r.Healthy {
			names = append(names, h.Check)
		}
		wrapTo(w, width, "healthy: ", "  ", strings.Join(names, ", "))
		return
	}
	for _, h := range r.Healthy {
		wrapTo(w, width, fmt.Sprintf("%-12s  ", h.Check), strings.Repeat(" ", 14), h.Asks)
	}
}

// wrapTo writes a text by words, in at most width columns.
func wrapTo(w io.Writer, width int, first, others, text string) {
	writeWords(w, width, first, others, "", strings.Fields(escape(text)))
}

// writeCode writes a line that is to be pasted. It is broken only where it stays the same: at spaces outside of quotes.
func writeCode(w io.Writer, width int, first *string, glue, line string) {
	var words []string
	var word strings.Builder
	quote := rune(0)
	for _, r := range escape(line) {
		switch {
		case quote == 0 && r == ' ':
			words = append(words, word.String())
			word.Reset()
			continue
		case quote == 0 && (r == '\'' || r == '"'):
			quote = r
		case r == quote:
			quote = 0
		}
		word.WriteRune(r)
	}
	writeWords(w, width, *first, "        ", glue, append(words, word.String()))
	*first = "      "
}

func writeWords(w io.Writer, width int, first, others, glue string, words []string) {
	line, empty := first, true
	for _, word := range words {
		for {
			space := " "
			if empty {
				space = ""
			}
			if empty && glue == "" && cells(line+word) > width && cells(others) < width/2 && !strings.ContainsAny(word, `'"`) {
				// A word that is longer than a line is cut: a URL, or a stranger's text.
				n := 0
				for i, r := range word {
					if n += cells(string(r)); cells(line)+n > width {
						fmt.Fprintln(w, line+word[:i])
						line, word = others, word[i:]
						break
					}
				}
				continue
			}
			if empty || cells(line+space+word+glue) <= width {
				line, empty = line+space+word, false
				break
			}
			fmt.Fprintln(w, line+glue)
			line, empty = others, true
		}
	}
	fmt.Fprintln(w, line)
}
