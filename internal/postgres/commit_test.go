package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// What became of a transaction: its job's row decides, its status only where the row is gone.
func TestG5FatesOfTransactions(t *testing.T) {
	t.Parallel()
	const aborted, committed, running, future = "aborted", "committed", "in progress", "future"
	for _, c := range []struct {
		name   string
		status string // of the transaction
		there  bool   // the job
		want   engine.Fate
	}{
		{"committed", committed, false, engine.Committed},
		{"rolled back", aborted, true, engine.RolledBack},
		{"rolled back, and the job was taken", aborted, false, engine.Taken},
		{"not ended", running, true, engine.Undecided},
		{"id unknown, job gone", "", false, engine.Committed},
		{"id unknown, job there", "", true, engine.RolledBack},
		{"lost with a failover, id not yet used again", future, true, engine.RolledBack},
		{"lost with a failover, id used again", committed, true, engine.RolledBack},
	} {
		for _, owner := range []string{"lease", "lock"} {
			t.Run(fmt.Sprintf("%s, own=%s", c.name, owner), func(t *testing.T) {
				t.Parallel()
				f := open(t)
				me := f.worker(time.Hour)
				f.insert(engine.Element{Payload: []byte("{}")})
				id, h := me.ID, engine.Hold{ID: value[int64](t, f.pool, `SELECT id FROM jobgen.jobs`)}
				if owner == "lease" {
					h = holds(f.claim(me, 1))[0]
				} else {
					id = uuid.Nil
				}
				var xact int64
				tx, err := f.pool.Begin(f.ctx())
				f.no(err)
				defer tx.Rollback(context.Background())
				if c.status == running || !c.there && c.status == committed {
					must(t, tx, `DELETE FROM jobgen.jobs WHERE id = $1`, h.ID)
				}
				xact = value[int64](t, tx, `SELECT pg_current_xact_id()::text::bigint`)
				switch c.status {
				case committed:
					f.no(tx.Commit(f.ctx()))
				case aborted:
					f.no(tx.Rollback(f.ctx()))
				case future:
					xact += 1 << 40
				case "":
					xact = 0
				}
				if !c.there {
					f.exec(`DELETE FROM jobgen.jobs WHERE id = $1`, h.ID)
				}
				got, err := f.store.Fates(f.ctx(), id, []engine.InDoubt{{Hold: h, Xact: xact}})
				if err != nil || len(got) != 1 || got[0] != c.want {
					t.Errorf("got %v, %v, want %v", got, err, c.want)
				}
				// Another hold of the job, whoever has it, is none of ours.
				h.Fence++
				if got, err = f.store.Fates(f.ctx(), id, []engine.InDoubt{{Hold: h, Xact: xact}}); c.there && c.status == aborted && (err != nil || got[0] != engine.Taken) {
					t.Errorf("of another hold: got %v, %v", got, err)
				}
			})
		}
	}
}

// Several at once are answered in the order asked; none waits for another.
func TestG5FatesAreAnsweredInOrder(t *testing.T) {
	t.Parallel()
	f := open(t)
	me := f.worker(time.Hour)
	f.insert(engine.Element{Payload: []byte("{}")}, engine.Element{Payload: []byte("{}")}, engine.Element{Payload: []byte("{}")})
	var doubts []engine.InDoubt
	for _, h := range holds(f.claim(me, 3)) {
		doubts = append(doubts, engine.InDoubt{Hold: h})
	}
	tx, err := f.pool.Begin(f.ctx())
	f.no(err)
	defer tx.Rollback(context.Background())
	must(t, tx, `DELETE FROM jobgen.jobs WHERE id = $1`, doubts[0].ID)
	f.exec(`DELETE FROM jobgen.jobs WHERE id = $1`, doubts[2].ID)
	got, err := f.store.Fates(f.ctx(), me.ID, doubts)
	if want := []engine.Fate{engine.Undecided, engine.RolledBack, engine.Committed}; err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}
