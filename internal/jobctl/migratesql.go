package jobctl

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/schema"
)

// step is a migration as text: what stands before both ways, and the ways.
type step struct {
	version        int
	name           string // init
	lead, up, down string
}

// migrations reads the embedded ones, in order.
func migrations() (out []step) {
	files, err := fs.Glob(schema.Postgres, "postgres/*.sql")
	if err != nil {
		panic(err)
	}
	for _, file := range files {
		text, err := schema.Postgres.ReadFile(file)
		if err != nil {
			panic(err)
		}
		number, name, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".sql"), "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			panic(err)
		}
		lead, ways, _ := strings.Cut(string(text), "-- +goose Up\n")
		up, down, _ := strings.Cut(ways, "-- +goose Down\n")
		out = append(out, step{version, name, strings.TrimSpace(lead), strings.TrimSpace(up), strings.TrimSpace(down)})
	}
	return out
}

// record is a file of schema.Record, with the version and the ones around it.
func record(name string, version, before, after int) string {
	text, err := schema.Record.ReadFile("record/" + name + ".sql")
	if err != nil {
		panic(err)
	}
	return strings.NewReplacer(":version", strconv.Itoa(version), ":before", strconv.Itoa(before), ":after", strconv.Itoa(after)).Replace(string(text))
}

// parts are one way of a step: guard must reach the server as one statement, though it has semicolons in it.
func (s step) parts(down bool) (init, guard, body string) {
	if down {
		return "", record("guard", 0, s.version, s.version-1), s.down + "\n" + record("down", s.version, 0, 0)
	}
	if s.version == 1 {
		init = record("init", 0, 0, 0)
	}
	return init, record("guard", 0, s.version-1, s.version), s.up + "\n\n" + record("up", s.version, 0, 0)
}

// script is one way in a transaction.
func (s step) script(down bool) string {
	init, guard, body := s.parts(down)
	return "BEGIN;\n" + init + guard + "\n" + body + "COMMIT;\n"
}

// sqlFile is a migration in the form of another tool.
type sqlFile struct {
	Name string `json:"name"`
	SQL  string `json:"sql"`
}

// format is the form of a tool's migrations.
type format struct {
	digits int    // of the number in a file's name
	noDown string // why there is no way down of its own; "": there is
	next   string // what to do with the files
	files  func(s step, base string, down bool) []sqlFile
}

var formats = map[string]format{
	"plain": {5, "", "apply them in order with psql -v ON_ERROR_STOP=1 -f FILE", func(s step, base string, down bool) []sqlFile {
		if down {
			return []sqlFile{{base + ".down.sql", s.script(true)}}
		}
		return []sqlFile{{base + ".sql", s.heading() + s.script(false)}}
	}},
	"goose": {5, "its files have both ways in them", "goose up applies them", func(s step, base string, _ bool) []sqlFile {
		return []sqlFile{{base + ".sql", s.heading() + "-- +goose Up\n" + s.goose(false) + "\n-- +goose Down\n" + s.goose(true)}}
	}},
	"tern": {3, "its files have both ways in them", "tern migrate applies them", func(s step, base string, _ bool) []sqlFile {
		init, guard, body := s.parts(false)
		_, back, down := s.parts(true)
		return []sqlFile{{base + ".sql", s.heading() + init + guard + "\n" + body + "\n---- create above / drop below ----\n\n" + back + "\n" + down}}
	}},
	"golang-migrate": {6, "", "migrate up applies them", func(s step, base string, down bool) []sqlFile {
		if down {
			return []sqlFile{{base + ".down.sql", s.script(true)}}
		}
		return []sqlFile{{base + ".up.sql", s.heading() + s.script(false)}}
	}},
	"atlas": {5, "atlas computes the way down itself", "atlas migrate hash takes them into atlas.sum, and atlas migrate apply applies them", func(s step, base string, _ bool) []sqlFile {
		init, guard, body := s.parts(false)
		return []sqlFile{{base + ".sql", s.heading() + init + guard + "\n" + body}}
	}},
}

func (s step) heading() string {
	text := fmt.Sprintf("-- jobgen, schema version %d, as of `jobctl migrate sql`. Do not edit: jobgen relies on it.\n", s.version)
	if s.lead != "" {
		text += "--\n" + s.lead + "\n"
	}
	return text + "\n"
}

// goose is one way in goose's form: what has semicolons within is bracketed.
func (s step) goose(down bool) string {
	init, guard, body := s.parts(down)
	return init + "-- +goose StatementBegin\n" + guard + "-- +goose StatementEnd\n" + body
}

// export is the migrations of the versions after from up to to in the form of a tool, in the order in which they are applied. first
// numbers them.
func export(format string, from, to int, down, both bool, first int64) (out []sqlFile) {
	f := formats[format]
	for _, s := range migrations() {
		if s.version <= from || s.version > to {
			continue
		}
		base := fmt.Sprintf("%0*d_jobgen_%s", f.digits, first+int64(s.version-from-1), s.name)
		if !down || both {
			out = append(out, f.files(s, base, false)...)
		}
		if down || both && f.noDown == "" {
			out = append(out, f.files(s, base, true)...)
		}
	}
	if down && !both {
		slices.Reverse(out)
	}
	return out
}

func (c *cli) migrateSQL() *cobra.Command {
	newest := len(migrations())
	var form, dir string
	var from, to int
	var first int64
	var down bool
	names := slices.Sorted(func(yield func(string) bool) {
		for name := range formats {
			if !yield(name) {
				return
			}
		}
	})
	cmd := &cobra.Command{
		Use: "sql", Short: "Print the migrations for another tool, or for psql",
		Long: `Sql prints the migrations as plain SQL, or in the form of another tool's files:
goose, tern, golang-migrate or atlas. It needs no database. What it prints also
keeps jobgen's own record of its version, so programs start on such a schema, and
` + "`jobctl migrate up`" + ` goes on from there; each step refuses a schema of another
version, and waits for others that migrate.

With --dir it writes files, named as the tool wants them, with the way down where
the tool has one, and overwrites none. In a folder that has migrations of your own,
--first is the number of the first file; --from is the version that you have, when
you come back for the migrations of a newer jobgen.`,
		Example: `  jobctl migrate sql | psql -v ON_ERROR_STOP=1
  jobctl migrate sql --format goose --dir db/migrations --first 20261130120000
  jobctl migrate sql --format tern --dir migrations --first 17
  jobctl migrate sql --from 3 --to 4
  jobctl migrate sql --down --from 3`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.NoArgs(cmd, args); err != nil {
				return err
			}
			f, known := formats[form]
			switch {
			case !known:
				return fmt.Errorf("--format is %q; it may be %s", form, strings.Join(names, ", "))
			case from < 0 || from >= newest:
				return fmt.Errorf("--from is %d; it is the version before the first migration wanted, 0 to %d", from, newest-1)
			case to <= from || to > newest:
				return fmt.Errorf("--to is %d; it is the last migration wanted, %d to %d", to, from+1, newest)
			case first < 0 || cmd.Flags().Changed("first") && first == 0:
				return errors.New("--first must be 1 or more")
			case down && f.noDown != "":
				return fmt.Errorf("--down is not for %s: %s", form, f.noDown)
			case down && dir != "":
				return errors.New("--dir writes the way down too; leave --down out")
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			if first == 0 {
				first = int64(from) + 1
			}
			files := export(form, from, to, down, dir != "", first)
			if dir != "" {
				return c.writeFiles(dir, files, formats[form].next)
			}
			return c.print(struct {
				Files []sqlFile `json:"files"`
			}{files}, func(w io.Writer) {
				for i, f := range files {
					if i > 0 {
						fmt.Fprintln(w)
					}
					if form != "plain" {
						fmt.Fprintln(w, "-- File", f.Name)
					}
					fmt.Fprint(w, f.SQL)
				}
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&form, "format", "plain", "`tool`: "+strings.Join(names, ", "))
	flags.StringVar(&dir, "dir", "", "write files into this `folder`")
	flags.IntVar(&from, "from", 0, "the `version` before the first migration")
	flags.IntVar(&to, "to", newest, "the `version` of the last migration")
	flags.Int64Var(&first, "first", 0, "the `number` in the name of the first file; else jobgen's version")
	flags.BoolVar(&down, "down", false, "print the way down, newest first")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.MarkFlagDirname("dir")
	return cmd
}

// writeFiles writes all or, if one is there and is another, none.
func (c *cli) writeFiles(dir string, files []sqlFile, next string) error {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("--dir: there is no folder %s; make it first", dir)
	}
	written, there := []string{}, []string{}
	for _, f := range files {
		switch have, err := os.ReadFile(filepath.Join(dir, f.Name)); {
		case errors.Is(err, fs.ErrNotExist):
			written = append(written, f.Name)
		case err != nil:
			return findingf("%s", err)
		case bytes.Equal(have, []byte(f.SQL)):
			there = append(there, f.Name)
		default:
			return findingf("%s is there already, and is another; nothing was written (--first gives other numbers)", filepath.Join(dir, f.Name))
		}
	}
	for _, f := range files {
		if slices.Contains(written, f.Name) {
			if err := os.WriteFile(filepath.Join(dir, f.Name), []byte(f.SQL), 0o644); err != nil {
				return findingf("%s", err)
			}
		}
	}
	if err := c.print(struct {
		Written []string `json:"written"`
		There   []string `json:"there"`
	}{written, there}, func(w io.Writer) {
		for _, name := range written {
			fmt.Fprintln(w, "wrote", escape(filepath.Join(dir, name)))
		}
		for _, name := range there {
			fmt.Fprintln(w, "there already:", escape(filepath.Join(dir, name)))
		}
	}); err != nil {
		return err
	}
	c.note("%s", next)
	return nil
}
