package postgres

import (
	"context"
	"reflect"

	"github.com/jackc/pgx/v5"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
)

// each gives db in a form whose queries hand every row to scan, and look empty to their caller. The generated functions
// allocate each row and its list of destinations, and a slice of rows that grows: two thirds of what a claim allocated. Their
// SQL and their arguments stay theirs.
func each(db gen.DBTX, scan func(pgx.Rows) error) *gen.Queries { return gen.New(eachDB{db, scan}) }

type eachDB struct {
	gen.DBTX
	scan func(pgx.Rows) error
}

func (d eachDB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := d.DBTX.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return &eachRows{Rows: rows, scan: d.scan}, nil
}

type eachRows struct {
	pgx.Rows
	scan func(pgx.Rows) error
	err  error
}

func (r *eachRows) Next() bool {
	for r.err == nil && r.Rows.Next() {
		r.err = r.scan(r.Rows)
	}
	return false
}

func (r *eachRows) Err() error {
	if r.err != nil {
		return r.err
	}
	return r.Rows.Err()
}

// fields are pointers to the fields of a generated row, for Scan: the columns of its query, in their order. instead has what
// is to be scanned in place of fields, by name.
func fields(row any, instead map[string]any) []any {
	v := reflect.ValueOf(row).Elem()
	dest := make([]any, v.NumField())
	for i := range dest {
		if dest[i] = instead[v.Type().Field(i).Name]; dest[i] == nil {
			dest[i] = v.Field(i).Addr().Interface()
		}
	}
	return dest
}

// intern gives b as a string: the one of known that it is, if it is one.
func intern(b []byte, known []string) string {
	for _, s := range known {
		if s == string(b) {
			return s
		}
	}
	return string(b)
}
