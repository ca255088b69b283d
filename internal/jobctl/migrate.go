package jobctl

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobgen-go/jobgen/internal/human"
	"github.com/jobgen-go/jobgen/internal/postgres"
)

// migration is a step as JSON.
type migration struct {
	Version   int64      `json:"version"`
	Name      string     `json:"name,omitempty"` // "": a newer program's
	AppliedAt *time.Time `json:"applied_at,omitempty"`
}

func (c *cli) migrateUp() *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "Apply the migrations that wait",
		Long: `Up applies the migrations that wait and prints each, or "nothing to do". It
creates the schema jobgen if it is not there, and touches nothing outside it.
Any number of them may run at once, also beside applications that call
jobs.Migrate: one works, the others wait for it.`,
		Example: `  jobctl migrate up
  jobctl migrate up --database-url postgres://app@db.example/app`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			db, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer db.pool.Close()
			done, err := postgres.Migrate(cmd.Context(), db.pool, func(why error) { c.note("%s (Ctrl-C gives up)", why) })
			if err != nil {
				waits := 0
				all, _ := postgres.Migrations(context.WithoutCancel(cmd.Context()), db.pool)
				for _, m := range all {
					if m.AppliedAt.IsZero() {
						waits++
					}
				}
				err = interrupted(cmd.Context(), err, len(done), len(done)+waits)
			}
			out := struct {
				Applied []migration `json:"applied"`
			}{[]migration{}}
			for _, m := range done {
				out.Applied = append(out.Applied, migration{Version: m.Version, Name: m.Name})
			}
			if err != nil && len(done) == 0 {
				return db.explain(err)
			}
			if err := c.print(out, func(w io.Writer) {
				for _, m := range done {
					fmt.Fprintln(w, "applied", m.Name)
				}
				if len(done) == 0 {
					fmt.Fprintln(w, "nothing to do")
				}
			}); err != nil {
				return err
			}
			return db.explain(err)
		},
	}
}

func (c *cli) migrateStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List the migrations and whether they are applied",
		Long: `Status lists each migration with the time it was applied, or "waits". It
changes nothing and waits for nobody. Exit status 0: the schema is current;
1: something waits, and ` + "`jobctl migrate up`" + ` applies it; 3: the schema is newer
than this jobctl.`,
		Example: `  jobctl migrate status
  jobctl migrate status --json | jq .waiting`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			db, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer db.pool.Close()
			all, newer := postgres.Migrations(cmd.Context(), db.pool)
			if len(all) == 0 {
				return db.explain(newer)
			}
			out := struct {
				Migrations []migration `json:"migrations"`
				Waiting    int         `json:"waiting"`
			}{}
			version, name, applied := column{title: "VERSION"}, column{title: "NAME", min: 10}, column{title: "APPLIED"}
			for _, m := range all {
				row := migration{Version: m.Version, Name: m.Name}
				at := "waits"
				if m.AppliedAt.IsZero() {
					out.Waiting++
				} else {
					utc := m.AppliedAt.UTC()
					row.AppliedAt, at = &utc, c.time(m.AppliedAt)
				}
				out.Migrations = append(out.Migrations, row)
				if m.Name == "" {
					m.Name = "(newer than this jobctl)"
				}
				version.cells = append(version.cells, strconv.FormatInt(m.Version, 10))
				name.cells, applied.cells = append(name.cells, m.Name), append(applied.cells, at)
			}
			if err := c.print(out, func(w io.Writer) { writeTable(w, c.width(), []column{version, name, applied}) }); err != nil {
				return err
			}
			if newer == nil && out.Waiting > 0 {
				return findingf("%s; apply with `jobctl migrate up`", human.Count(out.Waiting, "migration waits", "migrations wait"))
			}
			return db.explain(newer)
		},
	}
}
