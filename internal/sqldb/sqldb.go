// Package sqldb makes a connection of database/sql, under whatever driver, look like one of pgx.
//
// The drivers have nothing in common but driver.Value, so arguments are turned into those (values.go), and results are
// turned back from them.
package sqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// Conn is what *sql.DB, *sql.Conn, *sql.Tx and most wrappers of them are.
type Conn interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// DB runs statements written for pgx on a Conn.
type DB struct {
	conn Conn
	anew bool
}

// New takes a wrapper that embeds a *sql.Tx, *sql.DB or *sql.Conn for that: bun's own methods put arguments into the text of a
// statement where it has question marks and drop them elsewhere, and of a *sqlx.Tx as such nothing would be known.
func New(conn Conn) DB { return DB{conn: embedded(conn)} }

func embedded(conn Conn) Conn {
	if plain(conn) {
		return conn
	}
	v := reflect.Indirect(reflect.ValueOf(conn))
	if v.Kind() != reflect.Struct {
		return conn
	}
	for _, name := range []string{"Tx", "DB", "Conn"} {
		field, is := v.Type().FieldByName(name)
		if !is || !field.Anonymous {
			continue
		}
		if inner, err := v.FieldByIndexErr(field.Index); err == nil && inner.CanInterface() {
			if c, is := inner.Interface().(Conn); is && plain(c) {
				return c
			}
		}
	}
	return conn
}

func plain(conn Conn) bool {
	switch conn.(type) {
	case *sql.DB, *sql.Conn, *sql.Tx:
		return true
	}
	return false
}

// String names what is beneath, for messages.
func (d DB) String() string { return fmt.Sprintf("%T", d.conn) }

// IsTx tells whether d is a transaction. It is not known of a connection, on which one may be open or not, and of what is
// no type of database/sql and does not look like a transaction.
func (d DB) IsTx() (is, known bool) {
	switch d.conn.(type) {
	case interface {
		Commit() error
		Rollback() error
	}:
		return true, true
	case *sql.DB:
		return false, true
	}
	return false, false
}

// InTx calls fn with a transaction of its own. d must not be in one.
func (d DB) InTx(ctx context.Context, fn func(DB) error) error {
	db, can := d.conn.(interface {
		BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
	})
	if !can {
		return refuse("%s cannot begin a transaction, and this takes more than one statement; pass a *sql.DB or a transaction", d)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after a commit it does nothing
	if err := fn(DB{conn: tx, anew: d.anew}); err != nil {
		return err
	}
	return tx.Commit()
}

func (d DB) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	var result sql.Result
	err := d.run(args, func(args []any) (err error) {
		result, err = d.conn.ExecContext(ctx, query, args...)
		return err
	})
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	n, err := result.RowsAffected()
	return pgconn.NewCommandTag(strconv.FormatInt(n, 10)), err
}

func (d DB) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	var rs *sql.Rows
	err := d.run(args, func(args []any) (err error) {
		rs, err = d.conn.QueryContext(ctx, query, args...)
		return err
	})
	if err != nil {
		return &rows{err: err}, err
	}
	return &rows{rs: rs}, nil
}

func (d DB) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	rs, _ := d.Query(ctx, query, args...)
	return row{rs}
}

// run calls a statement with the driver's form of its arguments.
func (d DB) run(args []any, call func([]any) error) error {
	err := d.call(args, call)
	if is, _ := d.IsTx(); is && errors.Is(err, driver.ErrBadConn) {
		return &noConn{err}
	}
	return err
}

func (d DB) call(args []any, call func([]any) error) error {
	vs, err := values(args)
	if err != nil {
		return err
	}
	if d.anew && len(vs) > 0 {
		err := call(append([]any{question{vs[0]}}, vs[1:]...))
		if !errors.Is(err, errPgx) {
			return err
		}
		vs = append([]any{pgx.QueryExecModeCacheDescribe}, vs...)
	}
	return call(vs)
}

type row struct{ rs pgx.Rows }

func (r row) Scan(dest ...any) error {
	if !r.rs.Next() { // which has closed them, like a Scan that fails
		if err := r.rs.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rs.Scan(dest...); err != nil {
		return err
	}
	r.rs.Close() // a statement outside a transaction commits, or fails to, after its last row
	return r.rs.Err()
}

// rows are pgx.Rows without what only the wire knows: RawValues, Conn and TypeMap give nil.
type rows struct {
	rs  *sql.Rows
	err error // of the query, a scan, or the end
}

func (r *rows) Close() {
	if r.rs == nil {
		return
	}
	err := r.rs.Err()
	if closing := r.rs.Close(); err == nil {
		err = closing
	}
	if r.err == nil {
		r.err = err
	}
	r.rs = nil
}

func (r *rows) Err() error {
	if r.err == nil && r.rs != nil {
		return r.rs.Err()
	}
	return r.err
}

// Next closes the rows after the last one, as pgx does.
func (r *rows) Next() bool {
	if r.rs == nil {
		return false
	}
	if r.rs.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *rows) Scan(dest ...any) error {
	if r.rs == nil {
		return errors.Join(refuse("rows are closed"), r.err)
	}
	targets := make([]any, len(dest))
	for i, d := range dest {
		targets[i] = target(d)
	}
	if err := r.rs.Scan(targets...); err != nil {
		r.Close()
		r.err = err
		return err
	}
	return nil
}

func (r *rows) Values() ([]any, error) {
	out := make([]any, len(r.FieldDescriptions()))
	dest := make([]any, len(out))
	for i := range out {
		dest[i] = &out[i]
	}
	return out, r.Scan(dest...)
}

// FieldDescriptions has the names alone.
func (r *rows) FieldDescriptions() []pgconn.FieldDescription {
	if r.rs == nil {
		return nil
	}
	names, _ := r.rs.Columns() // it fails for closed rows only
	out := make([]pgconn.FieldDescription, len(names))
	for i, n := range names {
		out[i].Name = n
	}
	return out
}

func (r *rows) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }
func (r *rows) RawValues() [][]byte           { return nil }
func (r *rows) Conn() *pgx.Conn               { return nil }
func (r *rows) TypeMap() *pgtype.Map          { return nil }

// noConn is what drivers say when the connection of a transaction is gone, and with it the transaction, and pgx also while
// rows are open.
type noConn struct{ err error }

func (e *noConn) Error() string {
	return e.err.Error() + " (it is lost, or busy with rows that are not closed yet); nothing was stored"
}
func (e *noConn) Unwrap() error   { return e.err }
func (*noConn) SafeToRetry() bool { return true }

// refusal is an error from before anything was sent.
type refusal string

func refuse(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

func (r refusal) Error() string { return "jobs: " + string(r) }

// SafeToRetry is what pgconn.SafeToRetry looks for.
func (refusal) SafeToRetry() bool { return true }
