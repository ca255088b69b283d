package doctor

import (
	"fmt"
	"strings"

	gen "github.com/jobgen-go/jobgen/gen/postgres"

	"github.com/jobgen-go/jobgen/internal/human"
)

// table finds one of the tables.
func table(all []gen.DoctorTablesRow, name string) gen.DoctorTablesRow {
	for _, t := range all {
		if t.Name == name {
			return t
		}
	}
	return gen.DoctorTablesRow{}
}

// horizon: a vacuum removes no row that some snapshot may still see, however long ago it has ended.
func (v *visit) horizon() error {
	sessions, err := v.q.DoctorHorizon(v.ctx)
	if err != nil {
		return err
	}
	all, err := v.q.DoctorTables(v.ctx)
	if err != nil {
		return err
	}
	v.seesAll()
	dead := table(all, "jobs").Dead + table(all, "claims").Dead
	rows := fmt.Sprintf("jobgen.jobs has %s and %s live", human.Count(table(all, "jobs").Dead, "dead row", "dead rows"), human.Number(table(all, "jobs").Live))
	const so = "Vacuum can remove no row that has ended since: the tables grow by each job that finishes, and claims get dearer, until it ends."
	severity := func(old bool) Severity {
		if old && dead >= v.limits.ManyDead {
			return Critical
		}
		return Warning
	}
	for _, s := range sessions {
		if s.Standby {
			if s.Age >= v.limits.SlotAge {
				feedback(v.find(severity(true), "A standby keeps dead rows from being removed").
					saw("%s: its oldest snapshot is %s old", standby(s.Application, s.Address, s.Pid), human.Count(s.Age, "transaction", "transactions")).saw("%s", rows).so(so))
			}
			continue
		}
		if us(s.OpenUs) < v.limits.Old {
			continue
		}
		f := v.find(severity(us(s.OpenUs) >= v.limits.VeryOld), "A session keeps dead rows from being removed").
			saw("%s", session(s.Pid, s.Role, s.Application, s.State, us(s.OpenUs))).sawQuery(s.Query).
			saw("it began %s ago; %s", human.Count(s.Age, "transaction", "transactions"), rows).so(so)
		say := "Ends it; what it has written is rolled back, and its query, which still runs, is lost."
		switch {
		case strings.HasPrefix(s.State, "idle"):
			say = "Ends it; what it has written and not committed is rolled back. Nothing of it runs now."
		case s.Application == "pg_dump":
			say = "Ends it, and the dump is lost. Dump from a standby, or when little runs."
		}
		f.sql(say, fmt.Sprintf("SELECT pg_terminate_backend(%d);", s.Pid))
	}
	if err := v.slots(rows, severity(true)); err != nil {
		return err
	}
	prepared, err := v.q.DoctorPrepared(v.ctx)
	if err != nil {
		return err
	}
	for _, p := range prepared {
		if us(p.OpenUs) >= v.limits.Old {
			v.find(severity(us(p.OpenUs) >= v.limits.VeryOld), "A prepared transaction keeps dead rows from being removed").
				saw("%s of role %s, prepared %s and %s ago", literal(p.Gid), p.Role, age(us(p.OpenUs)), human.Count(p.Age, "transaction", "transactions")).saw("%s", rows).
				so("%s Its locks are held, too, also over a restart.", so).
				sql("If the other databases have rolled it back, or nobody coordinates it any more: what it wrote is lost.", "ROLLBACK PREPARED "+literal(p.Gid)+";").
				sql("If they have committed it:", "COMMIT PREPARED "+literal(p.Gid)+";")
		}
	}
	return nil
}

// standby names one by what the primary knows of it.
func standby(application, address string, pid int32) string {
	if address == "" {
		address = "this machine" // it came through a socket
	}
	return fmt.Sprintf("standby %s at %s (walsender pid %d)", application, address, pid)
}

// feedback says what to do about a standby's snapshot: the session that has it is not on this server.
func feedback(f draft) draft {
	return f.sql("On the standby, or on one behind it: find the session with the oldest snapshot; pg_terminate_backend(pid) there ends it, and its query is lost.",
		"SELECT pid, usename, application_name, state, xact_start, left(query, 60) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() ORDER BY age(backend_xmin) DESC LIMIT 5;").
		sql("Or, on the standby, no feedback: a query there that needs rows which a vacuum has removed then holds up replay, and is cancelled after max_standby_streaming_delay.",
			"ALTER SYSTEM SET hot_standby_feedback = off;\nSELECT pg_reload_conf();")
}

func (v *visit) slots(rows string, severity Severity) error {
	slots, err := v.q.DoctorSlots(v.ctx)
	if err != nil {
		return err
	}
	for _, s := range slots {
		saw := fmt.Sprintf("%s slot %s, %s", s.Type, s.Name, map[bool]string{true: "in use", false: "not in use"}[s.Active])
		least := v.limits.SlotAge
		if !s.Active {
			least /= 10
		}
		drop := func(f draft) draft {
			if s.Active {
				return f.sql("Its consumer lags: look there first. This shows where it is.", "SELECT * FROM pg_stat_replication;")
			}
			return f.sql("If its consumer is gone for good; one that comes back has to be set up anew.", "SELECT pg_drop_replication_slot("+literal(s.Name)+");")
		}
		// A physical slot's xmin is what its standby asks for, which may have replayed everything.
		hold := drop
		if s.Active && s.Type == "physical" {
			saw += " by " + standby(s.Application, s.Address, s.Pid)
			hold = feedback
		}
		switch {
		case s.WalStatus == "lost":
			drop(v.find(Note, "A replication slot is of no use any more").saw("%s: WAL that it needs has been removed", saw).
				so("Its consumer cannot go on from it."))
		case s.Age >= least && s.Age > 0:
			hold(v.find(severity, "A replication slot keeps dead rows from being removed").saw("%s", saw).
				saw("its oldest snapshot (xmin) is %s old", human.Count(s.Age, "transaction", "transactions")).saw("%s", rows).saw("it keeps %s of WAL", human.Bytes(s.Kept)).
				so("Vacuum can remove no row that has ended since: the tables grow by each job that finishes, and claims get dearer, until the slot moves on or goes."))
		case s.Kept >= v.limits.SlotWAL && !s.Active || s.Kept >= 20*v.limits.SlotWAL:
			f := v.find(Warning, "A replication slot makes the server keep WAL").saw("%s", saw).saw("it keeps %s of WAL", human.Bytes(s.Kept)).
				so("The disk fills, and a server with a full disk stops. A queue writes about a kilobyte of WAL for each job.")
			if s.CatalogAge > 0 {
				f = f.saw("it keeps dead rows of the catalogs, %s old, and none of jobgen's tables", human.Count(s.CatalogAge, "transaction", "transactions"))
			}
			drop(f).sql("A bound for all slots; one that needs more is lost.", "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB';\nSELECT pg_reload_conf();")
		}
	}
	return nil
}
