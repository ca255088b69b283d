package schema_test

import (
	"context"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/jobgen-go/jobgen/jobtest"
	"github.com/jobgen-go/jobgen/schema"
)

func provider(t *testing.T, pool *pgxpool.Pool) *goose.Provider {
	t.Helper()
	files, err := fs.Sub(schema.Postgres, "postgres")
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithTableName("jobgen.schema_version"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// describe lists all that is in schema jobgen, as the catalogs know it.
func describe(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		SELECT 'table ' || c.relname || ' ' || c.relkind::text || ' ' || coalesce(array_to_string(c.reloptions, ','), '')
		FROM pg_class c WHERE c.relnamespace = 'jobgen'::regnamespace AND c.relname NOT LIKE 'schema_version%'
		UNION ALL
		SELECT 'column ' || c.relname || '.' || a.attname || ' ' || a.attnum || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull || ' ' ||
		       coalesce(pg_get_expr(d.adbin, d.adrelid), '') || ' ' || a.attcollation::regcollation
		FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE c.relnamespace = 'jobgen'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND c.relname <> 'schema_version'
		UNION ALL
		SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'jobgen' AND tablename <> 'schema_version'
		UNION ALL
		SELECT 'constraint ' || conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)
		FROM pg_constraint WHERE connamespace = 'jobgen'::regnamespace AND conrelid <> 'jobgen.schema_version'::regclass
		ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

func TestUpDownUpGivesTheSameSchema(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	p := provider(t, pool)
	before := describe(t, pool)
	if n := strings.Count(before, "\n"); n < 80 {
		t.Fatalf("the schema has only %d lines:\n%s", n, before)
	}
	if _, err := pool.Exec(t.Context(), `INSERT INTO jobgen.jobs (queue, kind, payload) VALUES ('q', 'k', '{}')`); err != nil {
		t.Fatal(err)
	}
	if _, err := p.DownTo(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if left := describe(t, pool); left != "" {
		t.Errorf("down has left:\n%s", left)
	}
	if _, err := p.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := describe(t, pool); after != before {
		t.Errorf("before:\n%s\n\nafter:\n%s", before, after)
	}
}

func TestMigrationsAreNumberedWithoutGapsAndNameTheirSchema(t *testing.T) {
	t.Parallel()
	files, err := fs.Glob(schema.Postgres, "postgres/*")
	if err != nil {
		t.Fatal(err)
	}
	object := regexp.MustCompile(`(?i)\b(CREATE (TABLE|SEQUENCE)|ALTER TABLE|DROP TABLE|DROP SEQUENCE|\) ON|INDEX \w+ ON)\s+(IF (NOT )?EXISTS\s+)?(\S+)`)
	for i, file := range files {
		if want := fmt.Sprintf("postgres/%05d_", i+1); !strings.HasPrefix(file, want) || !strings.HasSuffix(file, ".sql") {
			t.Errorf("file %d is %s, want %s….sql", i+1, file, want)
		}
		text, err := schema.Postgres.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"-- +goose Up", "-- +goose Down"} {
			if strings.Count(string(text), part) != 1 {
				t.Errorf("%s has not one %q", file, part)
			}
		}
		for _, m := range object.FindAllStringSubmatch(string(text), -1) {
			// A search_path that is set otherwise must not matter.
			if !strings.HasPrefix(m[len(m)-1], "jobgen.") {
				t.Errorf("%s: %q does not name the schema", file, m[0])
			}
		}
	}
}

// What the Go code checks first, the tables check too: jobs are also written by hand.
func TestTheTablesRefuseWhatCannotBe(t *testing.T) {
	t.Parallel()
	pool := jobtest.DB(t)
	ok := map[string]string{"queue": "'q'", "kind": "'k'", "payload": "'{}'"}
	for name, change := range map[string]map[string]string{
		"":                                   nil,
		"an unknown status":                  {"status": "'done'"},
		"running without a worker":           {"status": "'running'", "fence": "1"},
		"running without a fence":            {"status": "'running'", "worker_id": "gen_random_uuid()"},
		"queued with a worker":               {"worker_id": "gen_random_uuid()"},
		"queued with a fence":                {"fence": "1"},
		"dead with a worker":                 {"status": "'dead'", "worker_id": "gen_random_uuid()", "fence": "1"},
		"queued without an attempt left":     {"attempt": "20"},
		"more attempts than allowed":         {"attempt": "21", "status": "'dead'"},
		"a negative attempt":                 {"attempt": "-1"},
		"no attempts":                        {"max_attempts": "0"},
		"too many attempts":                  {"max_attempts": "32768"},
		"a priority under 0":                 {"priority": "-1"},
		"a priority over 9":                  {"priority": "10"},
		"an empty queue":                     {"queue": "''"},
		"a queue of 101 bytes":               {"queue": "repeat('x', 101)"},
		"an empty kind":                      {"kind": "''"},
		"a kind of 51 characters of 2 bytes": {"kind": "repeat('é', 51)"},
		"an empty key":                       {"key": "''"},
		"a key of 201 bytes":                 {"key": "repeat('x', 201)"},
		"version 0":                          {"version": "0"},
		"no payload":                         {"payload": "NULL"},
	} {
		values := map[string]string{}
		for _, m := range []map[string]string{ok, change} {
			for k, v := range m {
				values[k] = v
			}
		}
		var columns, texts []string
		for k, v := range values {
			columns, texts = append(columns, k), append(texts, v)
		}
		_, err := pool.Exec(context.Background(), fmt.Sprintf("INSERT INTO jobgen.jobs (%s) VALUES (%s)", strings.Join(columns, ", "), strings.Join(texts, ", ")))
		if (err == nil) != (name == "") {
			t.Errorf("%q: %v", name, err)
		}
	}
}
