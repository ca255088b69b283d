package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/jobgen-go/jobgen/jobs"
)

// transaction is a library's transaction, with what of it is passed to jobs.SQL.
type transaction struct {
	conn             jobs.SQLConn
	commit, rollback func() error
}

// libraries begin a transaction each, and each also gives what it has outside of one.
var libraries = []struct {
	name  string
	begin func(f *fixture) transaction
	pool  func(f *fixture) jobs.SQLConn
}{
	{"database/sql", func(f *fixture) transaction {
		tx, err := f.db.BeginTx(f.ctx(), nil)
		f.no(err)
		return transaction{tx, tx.Commit, tx.Rollback}
	}, func(f *fixture) jobs.SQLConn { return f.db }},
	{"database/sql connection", func(f *fixture) transaction {
		conn, err := f.db.Conn(f.ctx())
		f.no(err)
		tx, err := conn.BeginTx(f.ctx(), nil)
		f.no(err)
		return transaction{tx, func() error { return errors.Join(tx.Commit(), conn.Close()) }, func() error { return errors.Join(tx.Rollback(), conn.Close()) }}
	}, func(f *fixture) jobs.SQLConn {
		conn, err := f.db.Conn(f.ctx())
		f.no(err)
		f.Cleanup(func() { f.no(conn.Close()) })
		return conn
	}},
	{"sqlx", func(f *fixture) transaction {
		tx, err := sqlx.NewDb(f.db, f.driver).BeginTxx(f.ctx(), nil)
		f.no(err)
		return transaction{tx, tx.Commit, tx.Rollback}
	}, func(f *fixture) jobs.SQLConn { return sqlx.NewDb(f.db, f.driver) }},
	{"GORM", func(f *fixture) transaction {
		tx := openGORM(f, false).Begin()
		f.no(tx.Error)
		return transaction{tx.Statement.ConnPool, func() error { return tx.Commit().Error }, func() error { return tx.Rollback().Error }}
	}, func(f *fixture) jobs.SQLConn { return openGORM(f, false).Statement.ConnPool }},
	{"GORM with PrepareStmt", func(f *fixture) transaction {
		tx := openGORM(f, true).Begin()
		f.no(tx.Error)
		return transaction{tx.Statement.ConnPool, func() error { return tx.Commit().Error }, func() error { return tx.Rollback().Error }}
	}, func(f *fixture) jobs.SQLConn {
		db, err := openGORM(f, true).DB()
		f.no(err)
		return db
	}},
	{"bun", func(f *fixture) transaction {
		tx, err := bun.NewDB(f.db, pgdialect.New()).BeginTx(f.ctx(), nil)
		f.no(err)
		return transaction{tx, tx.Commit, tx.Rollback}
	}, func(f *fixture) jobs.SQLConn { return bun.NewDB(f.db, pgdialect.New()) }},
	{"ent", func(f *fixture) transaction {
		tx, err := entsql.OpenDB(dialect.Postgres, f.db).Tx(f.ctx())
		f.no(err)
		return transaction{tx.(*entsql.Tx), tx.Commit, tx.Rollback}
	}, func(f *fixture) jobs.SQLConn { return entsql.OpenDB(dialect.Postgres, f.db).DB() }},
}

func openGORM(f *fixture, prepare bool) *gorm.DB {
	f.Helper()
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: f.db}), &gorm.Config{PrepareStmt: prepare, Logger: logger.Discard})
	f.no(err)
	if prepare {
		f.Cleanup(db.ConnPool.(*gorm.PreparedStmtDB).Close)
	}
	return db
}

func TestG1JobsCommitWithTheTransactionOfEachLibraryAndWorkersRunThem(t *testing.T) {
	each(t, func(f *fixture) {
		for _, l := range libraries {
			tx := l.begin(f)
			f.enqueueAll(tx.conn)
			f.counts(0, 0)
			f.no(tx.commit())
			f.counts(6, 3)
			if f.Failed() {
				f.Fatal("with ", l.name)
			}
			f.work()
			f.counts(0, 3)
			f.exec("TRUNCATE jobgen.job_result")
		}
	})
}

func TestG1JobsRollBackWithTheTransactionOfEachLibrary(t *testing.T) {
	each(t, func(f *fixture) {
		for _, l := range libraries {
			tx := l.begin(f)
			f.enqueueAll(tx.conn)
			f.no(tx.rollback())
			f.counts(0, 0)
			if f.Failed() {
				f.Fatal("with ", l.name)
			}
		}
	})
}

func TestG1JobsRollBackWithASavepoint(t *testing.T) {
	each(t, func(f *fixture) {
		for _, l := range libraries {
			tx := l.begin(f)
			f.exec("TRUNCATE jobgen.jobs, jobgen.job_result")
			if _, err := tx.conn.ExecContext(f.ctx(), "SAVEPOINT mine"); err != nil {
				f.Fatal(l.name, err)
			}
			f.enqueueAll(tx.conn)
			if _, err := tx.conn.ExecContext(f.ctx(), "ROLLBACK TO SAVEPOINT mine"); err != nil {
				f.Fatal(l.name, err)
			}
			_, err := EnqueueWelcome(f.ctx(), jobs.SQL(tx.conn), Welcome{Name: "kept"})
			f.no(err)
			f.no(tx.commit())
			f.counts(1, 1)
			f.expect("kept", "SELECT payload->>'name' FROM jobgen.jobs")
		}
	})
}

func TestG1GORMsNestedTransactions(t *testing.T) {
	each(t, func(f *fixture) {
		undo := errors.New("undo")
		err := openGORM(f, false).Transaction(func(tx *gorm.DB) error {
			_, err := EnqueueWelcome(f.ctx(), jobs.SQL(tx.Statement.ConnPool), Welcome{Name: "outer"})
			f.no(err)
			err = tx.Transaction(func(tx *gorm.DB) error {
				f.enqueueAll(tx.Statement.ConnPool)
				return undo
			})
			if !errors.Is(err, undo) {
				f.Errorf("the nested transaction: %v", err)
			}
			return nil
		})
		f.no(err)
		f.counts(1, 1)
	})
}

func TestEnqueueOutsideOfATransaction(t *testing.T) {
	each(t, func(f *fixture) {
		for _, l := range libraries {
			f.enqueueAll(l.pool(f))
			f.counts(6, 3)
			if f.Failed() {
				f.Fatal("with ", l.name)
			}
			f.exec("TRUNCATE jobgen.jobs, jobgen.job_result")
		}
	})
}

func TestG1OneConnectionIsEnough(t *testing.T) {
	each(t, func(f *fixture) {
		f.db.SetMaxOpenConns(1)
		f.enqueueAll(f.db)
		tx := f.begin()
		_, err := EnqueueWelcomeMany(f.ctx(), jobs.SQL(tx), []Welcome{{Name: "8"}, {Name: "7"}, {Name: "6"}})
		f.no(err)
		f.no(tx.Commit())
		f.counts(8, 5)
	})
}

// The examples of docs/runtime/database-sql.md.
func TestSigningUpWithSqlxAndGORM(t *testing.T) {
	each(t, func(f *fixture) {
		for name, signUp := range map[string]func(ctx context.Context, name string) (jobs.Ref[Sent], error){
			"sqlx": func(ctx context.Context, name string) (jobs.Ref[Sent], error) {
				return SignUpSqlx(ctx, sqlx.NewDb(f.db, f.driver), name)
			},
			"gorm": func(ctx context.Context, name string) (jobs.Ref[Sent], error) {
				return SignUpGORM(ctx, openGORM(f, false), name)
			},
		} {
			ref, err := signUp(f.ctx(), name)
			f.no(err)
			// A name that is taken: the second user is not stored, and neither is a job.
			if _, err := signUp(f.ctx(), name); err == nil {
				f.Errorf("%s: signed up twice", name)
			}
			f.expect(1, "SELECT count(*) FROM jobgen.jobs")
			f.work()
			if sent, err := ref.Await(f.ctx(), jobs.SQL(f.db)); err != nil || sent.To != name {
				f.Errorf("%s: awaited %+v, %v", name, sent, err)
			}
			if sent, err := WelcomeRef(ref.ID).Await(f.ctx(), jobs.SQL(f.db)); err != nil || sent.To != name {
				f.Errorf("%s: awaited by id %+v, %v", name, sent, err)
			}
		}
	})
}

// GORM's pool of prepared statements cannot begin a *sql.Tx: what takes several statements says so, and stores nothing.
func TestSeveralStatementsAreNotSpreadOverAPool(t *testing.T) {
	each(t, func(f *fixture) {
		pool := jobs.SQL(openGORM(f, true).ConnPool)
		_, err := EnqueueWelcomeMany(f.ctx(), pool, []Welcome{{Name: "a"}, {Name: "b"}})
		if err == nil || !strings.Contains(err.Error(), "pass a *sql.DB or a transaction") {
			f.Errorf("several statements on GORM's pool of prepared statements: %v", err)
		}
		f.counts(0, 0)
		if _, err := EnqueueWelcome(f.ctx(), pool, Welcome{Name: "a"}); err != nil {
			f.Errorf("one statement: %v", err)
		}
		f.counts(1, 1)
	})
}

var _ = []jobs.SQLConn{(*sql.DB)(nil), (*sql.Conn)(nil), (*sql.Tx)(nil), (*sqlx.Tx)(nil), (*sqlx.DB)(nil), (*sqlx.Conn)(nil), bun.Tx{}, (*bun.DB)(nil), bun.Conn{}, gorm.ConnPool(nil), (*entsql.Tx)(nil)}
