//go:build unix

package doctor_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobgen-go/jobgen/internal/doctor"
	"github.com/jobgen-go/jobgen/internal/pgserver"
)

// A standby with feedback has the primary keep what its queries may still see. The primary knows of that as the snapshot of the
// walsender, or, if the standby has a slot, of the slot, and of its slot alone.
func TestAStandbyWhoseQueryKeepsDeadRowsIsFoundUntilTheQueryEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		backup   []string
		settings []string
		title    string
		names    string // how the finding names the standby
		holder   string // the metric's
	}{
		{"without a slot", nil, nil,
			"A standby keeps dead rows", "standby replica one at this machine (walsender pid ", "standby"},
		{"with a slot", []string{"-C", "-S", "replica_one"}, nil,
			"A replication slot keeps dead rows", "physical slot replica_one, in use by standby replica one at this machine (walsender pid ", "slot"},
		{"with a temporary slot", nil, []string{"wal_receiver_create_temp_slot=on"},
			"A replication slot keeps dead rows", ", in use by standby replica one at this machine (walsender pid ", "slot"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := alone(t, map[string]string{"wal_level": "replica", "max_wal_senders": "5", "max_replication_slots": "5", "autovacuum": "off"})
			there, stop := p.standby("replica one", c.backup, c.settings...)
			p.pinned().limits.SlotWAL = doctor.Default.SlotWAL
			pid := value[int](p, "SELECT pid FROM pg_stat_replication")

			reader := there.session("application_name", "a report")
			p.on(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ")
			p.on(reader, "SELECT count(*) FROM jobgen.jobs")
			p.healthy("horizon") // it is young
			p.finish(3000)
			p.until(`SELECT n_dead_tup >= 3000 FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass`)
			p.until(`SELECT coalesce(max(age(x)), 0) >= $1 FROM (SELECT backend_xmin FROM pg_stat_replication UNION ALL SELECT xmin FROM pg_replication_slots) AS held (x)`, 5)
			p.limits.SlotAge = 5

			found := func(s doctor.Severity) doctor.Finding {
				p.Helper()
				return p.finds("horizon", s, c.title, c.names+fmt.Sprint(pid, ")"), "its oldest snapshot", "3,003 dead rows and 0 live", "On the standby",
					"pg_terminate_backend(pid)", "hot_standby_feedback = off", "cancelled after max_standby_streaming_delay")
			}
			f := found(doctor.Warning)
			if len(p.examine("horizon").Findings) != 1 || len(f.Remedies) != 2 {
				t.Errorf("more than what is to be done: %s", show(f))
			}
			p.limits.ManyDead = 3000
			found(doctor.Critical)
			kept := p.holders()
			if len(kept) != 1 || kept[c.holder] < 5 {
				t.Errorf("the metric says %v", kept)
			}
			p.exec("VACUUM jobgen.jobs")
			p.until(`SELECT n_dead_tup >= 3000 AND last_vacuum IS NOT NULL FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass`)

			// What the first remedy shows there is the reader, and its end cures.
			var blamed uint32
			if err := there.pool.QueryRow(t.Context(), "SELECT pid::bigint FROM ("+strings.TrimSuffix(f.Remedies[0].SQL, ";")+") AS held").Scan(&blamed); err != nil {
				t.Fatal(err)
			}
			if blamed != reader.PgConn().PID() {
				t.Errorf("pid %d is shown, and %d keeps the rows", blamed, reader.PgConn().PID())
			}
			there.exec("SELECT pg_terminate_backend($1::int)", blamed)
			p.soonHealthy("horizon")
			p.until(`SELECT coalesce(max(age(x)), 0) < 5 FROM (SELECT backend_xmin FROM pg_stat_replication UNION ALL SELECT xmin FROM pg_replication_slots) AS held (x)`)
			p.exec("VACUUM jobgen.jobs")
			p.until(`SELECT n_dead_tup = 0 FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass`)

			// So does the second: with a snapshot, and without feedback.
			reader = there.session("application_name", "another report")
			p.on(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ")
			p.on(reader, "SELECT count(*) FROM jobgen.jobs")
			p.finish(3000)
			p.until(`SELECT n_dead_tup >= 3000 FROM pg_stat_user_tables WHERE relid = 'jobgen.jobs'::regclass`)
			found(doctor.Critical)
			for statement := range strings.SplitSeq(f.Remedies[1].SQL, ";\n") {
				there.exec(statement)
			}
			p.soonHealthy("horizon")
			if kept := p.holders(); len(kept) != 0 {
				t.Errorf("the metric says %v", kept)
			}

			// A standby that goes leaves nothing behind, unless it has a slot that stays.
			there.exec("ALTER SYSTEM SET hot_standby_feedback = on")
			there.exec("SELECT pg_reload_conf()")
			p.until(`SELECT count(x) > 0 FROM (SELECT backend_xmin FROM pg_stat_replication UNION ALL SELECT xmin FROM pg_replication_slots) AS held (x)`)
			stop()
			p.until("SELECT count(*) = 0 FROM pg_stat_replication")
			p.finish(3000)
			if c.backup == nil {
				p.healthy("horizon")
				return
			}
			p.cured(p.finds("horizon", doctor.Critical, c.title, "physical slot replica_one, not in use", "pg_drop_replication_slot('replica_one')", "gone for good"))
		})
	}
}

// standby makes one of the patient's server, with feedback. Its data and socket are in the folder of that server, so that they go
// with it even if this process is killed, and a server whose data are gone ends.
func (p *patient) standby(name string, backup []string, settings ...string) (there *patient, stop func()) {
	p.Helper()
	config := p.pool.Config()
	folder, port := config.ConnConfig.Host, "5433"
	if !filepath.IsAbs(folder) {
		p.Skip("a standby is made of installed binaries, and the server is not of those: ", folder)
	}
	bin := value[string](p, "SELECT setting FROM pg_config WHERE name = 'BINDIR'")
	if _, err := exec.LookPath(filepath.Join(bin, "pg_basebackup")); err != nil {
		p.Skip(err)
	}
	data := filepath.Join(folder, "standby")
	command := func(program string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, program), args...)
		cmd.Dir = folder
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if os.Geteuid() == 0 { // Postgres refuses to run as root
			var err error
			if cmd.SysProcAttr.Credential, err = pgserver.Unprivileged(); err != nil {
				p.Fatal(err)
			}
		}
		return cmd
	}
	copying := command("pg_basebackup", append([]string{"-D", data, "-h", folder, "-p", fmt.Sprint(config.ConnConfig.Port), "-U", config.ConnConfig.User,
		"-R", "-X", "stream", "-c", "fast", "--no-sync"}, backup...)...)
	if out, err := copying.CombinedOutput(); err != nil {
		p.Fatalf("pg_basebackup: %v\n%s", err, out)
	}

	args := []string{"-D", data, "-k", folder}
	settings = append([]string{"listen_addresses=", "port=" + port, "cluster_name=" + name, "fsync=off",
		"wal_receiver_status_interval=1", "wal_retrieve_retry_interval=100"}, settings...)
	for _, setting := range []string{"max_connections", "max_prepared_transactions", "max_wal_senders", "max_worker_processes"} { // as many as there, or it does not start
		settings = append(settings, setting+"="+value[string](p, "SELECT current_setting($1)", setting))
	}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	// Not of the command line, which ALTER SYSTEM could not change.
	conf, err := os.OpenFile(filepath.Join(data, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = conf.WriteString("hot_standby_feedback = on\n")
		err = cmp.Or(err, conf.Close())
	}
	if err != nil {
		p.Fatal(err)
	}
	server := command("postgres", args...)
	log, err := os.Create(filepath.Join(p.TempDir(), "log"))
	if err != nil {
		p.Fatal(err)
	}
	server.Stderr = log
	if err := server.Start(); err != nil {
		p.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Wait() }()
	end := func() {
		_ = server.Process.Signal(syscall.SIGQUIT)
		kill := time.AfterFunc(10*time.Second, func() { _ = server.Process.Kill() })
		<-ended
		kill.Stop()
	}
	p.Cleanup(func() {
		end()
		_ = log.Close()
		if said, err := os.ReadFile(log.Name()); err == nil && p.Failed() {
			p.Logf("the standby:\n%s", said)
		}
	})

	url := fmt.Sprintf("postgres://%s@/%s?host=%s&port=%s", config.ConnConfig.User, config.ConnConfig.Database, folder, port)
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(pool.Close)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); ; {
		c, err := pgx.ConnectConfig(p.Context(), pool.Config().ConnConfig)
		if err == nil {
			_ = c.Close(p.Context())
			break
		}
		select {
		case <-ended:
			p.Fatal("the standby ended at once")
		case <-tick.C:
		}
		if time.Now().After(deadline) {
			p.Fatal(err)
		}
	}
	p.until("SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'")
	return &patient{p.T, pool, doctor.Default}, end
}
