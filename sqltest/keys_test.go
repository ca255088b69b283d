package sqltest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jobgen-go/jobgen/jobs"
	"github.com/jobgen-go/jobgen/jobtest"
)

func TestG6KeysThatAreTakenExpiredAndDead(t *testing.T) {
	each(t, func(f *fixture) {
		for name, on := range map[string]func(fn func(db jobs.DB)){
			"database": func(fn func(db jobs.DB)) { fn(jobs.SQL(f.db)) },
			"transaction": func(fn func(db jobs.DB)) {
				tx := f.begin()
				fn(jobs.SQL(tx))
				f.no(tx.Commit())
			},
		} {
			f.exec("TRUNCATE jobgen.jobs, jobgen.job_result")
			names := []Welcome{{Name: name + " recorded"}, {Name: name + " dead", Note: "fail"}, {Name: name + " expired"}}
			var first []jobs.Ref[Sent]
			on(func(db jobs.DB) {
				var err error
				first, err = EnqueueWelcomeMany(f.ctx(), db, names)
				f.no(err)
			})
			f.work()
			f.exec("UPDATE jobgen.job_result SET expires_at = now() - interval '1 s' WHERE key LIKE '%expired%'")
			names[1].Note = ""
			check := func(refs []jobs.Ref[Sent]) {
				f.Helper()
				if refs[0] != exists(first[0]) {
					f.Errorf("%s: a recorded key gives %+v, want %+v", name, refs[0], first[0])
				}
				if refs[1].ID != first[1].ID || refs[1].Existing {
					f.Errorf("%s: a dead job is revived as %+v, was %+v", name, refs[1], first[1])
				}
				if refs[2].ID == first[2].ID || refs[2].Existing {
					f.Errorf("%s: an expired key gives %+v, was %+v", name, refs[2], first[2])
				}
			}
			// One by one, undone, and then at once.
			tx := f.begin()
			var refs []jobs.Ref[Sent]
			for _, w := range names {
				ref, err := EnqueueWelcome(f.ctx(), jobs.SQL(tx), w)
				f.no(err)
				refs = append(refs, ref)
			}
			check(refs)
			f.no(tx.Rollback())
			on(func(db jobs.DB) {
				refs, err := EnqueueWelcomeMany(f.ctx(), db, names)
				f.no(err)
				check(refs)
			})
			f.work()
			f.expect(3, "SELECT count(*) FROM jobgen.job_result WHERE finished_at IS NOT NULL")
		}
	})
}

func exists(r jobs.Ref[Sent]) jobs.Ref[Sent] {
	r.Existing = true
	return r
}

// All are stored or none, also when keys that are taken need statements of their own; and a transaction that is open stays
// open, also where nothing tells that it is.
func TestEnqueueManyStoresAllOrNone(t *testing.T) {
	each(t, func(f *fixture) {
		_, err := EnqueueWelcome(f.ctx(), jobs.SQL(f.db), Welcome{Name: "b", Note: "fail"})
		f.no(err)
		f.work()
		f.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'no'; END$$`)
		f.exec(`CREATE TRIGGER refuse BEFORE UPDATE ON jobgen.jobs FOR EACH ROW WHEN (old.status = 'dead') EXECUTE FUNCTION refuse()`)
		both := []Welcome{{Name: "b"}, {Name: "a"}}
		for _, l := range libraries {
			if _, err := EnqueueWelcomeMany(f.ctx(), jobs.SQL(l.pool(f)), both); err == nil || !strings.Contains(err.Error(), "no") {
				f.Errorf("on what %s has: %v", l.name, err)
			}
			f.counts(1, 1)
		}
		f.exec(`DROP TRIGGER refuse ON jobgen.jobs`)
		conn, err := f.db.Conn(f.ctx())
		f.no(err)
		defer conn.Close()
		if _, err := conn.ExecContext(f.ctx(), "BEGIN"); err != nil {
			f.Fatal(err)
		}
		if _, err := EnqueueWelcomeMany(f.ctx(), jobs.SQL(conn), both); err != nil {
			f.Error(err)
		}
		if _, err := conn.ExecContext(f.ctx(), "ROLLBACK"); err != nil {
			f.Fatal(err)
		}
		f.counts(1, 1)
		if _, err := EnqueueWelcomeMany(f.ctx(), jobs.SQL(conn), both); err != nil {
			f.Error(err)
		}
		f.counts(2, 2)
	})
}

func TestG6ConcurrentEnqueuersOfTheSameKeys(t *testing.T) {
	each(t, func(f *fixture) {
		const callers, keys = 8, 20
		ids := make([]map[string]int64, callers)
		var all sync.WaitGroup
		for c := range callers {
			ids[c] = map[string]int64{}
			all.Go(func() {
				var ws []Welcome
				for k := range keys { // each caller in another order
					ws = append(ws, Welcome{Name: fmt.Sprint((k*7 + c) % keys)})
				}
				tx, err := f.db.BeginTx(f.ctx(), nil)
				if err != nil {
					f.Error(err)
					return
				}
				defer tx.Rollback()
				refs, err := EnqueueWelcomeMany(f.ctx(), jobs.SQL(tx), ws)
				if err = errors.Join(err, tx.Commit()); err != nil {
					f.Error(err)
					return
				}
				for i, r := range refs {
					ids[c][ws[i].Name] = r.ID
				}
			})
		}
		all.Wait()
		f.counts(keys, keys)
		for _, got := range ids {
			if fmt.Sprint(got) != fmt.Sprint(ids[0]) {
				f.Errorf("two callers got different jobs for the same keys:\n%v\n%v", got, ids[0])
			}
		}
	})
}

func TestReplaceAndDebounce(t *testing.T) {
	each(t, func(f *fixture) {
		for _, l := range libraries {
			tx := l.begin(f)
			for _, db := range []jobs.DB{jobs.SQL(l.pool(f)), jobs.SQL(tx.conn)} {
				name := fmt.Sprintf("%s %T", l.name, db)
				first, err := EnqueueWelcome(f.ctx(), db, Welcome{Name: name, Note: "1"})
				f.no(err)
				again, err := EnqueueWelcome(f.ctx(), db, Welcome{Name: name, Note: "2"}, jobs.Replace(), jobs.Within(time.Hour))
				if err != nil || again.ID != first.ID || !again.Replaced {
					f.Errorf("%s: %+v replaces %+v: %v", l.name, again, first, err)
				}
				refs, err := EnqueueWelcomeMany(f.ctx(), db, []Welcome{{Name: name + " other"}, {Name: name, Note: "3"}}, jobs.Debounce(time.Hour, 0))
				if err != nil || len(refs) != 2 || refs[1].ID != first.ID || !refs[1].Replaced || refs[0].Replaced {
					f.Errorf("%s: %+v replaces %+v: %v", l.name, refs, first, err)
				}
				got := jobtest.Enqueued[Welcome](f.T, db, "users.welcome")
				if len(got) < 2 || got[0].Payload.Note != "3" || got[0].ID != first.ID {
					f.Errorf("%s: %+v", l.name, got)
				}
				if db == jobs.SQL(tx.conn) {
					f.no(tx.rollback())
				}
				f.exec("TRUNCATE jobgen.jobs, jobgen.job_result")
			}
		}
	})
}
