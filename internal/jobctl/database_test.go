package jobctl_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/jobgen-go/jobgen/internal/jobctl"
	"github.com/jobgen-go/jobgen/jobtest"
)

// onJobs are the commands that need the tables.
var onJobs = [][]string{
	{"jobs", "list"}, {"jobs", "show", "1"}, {"jobs", "requeue", "1"}, {"jobs", "requeue", "--kind", "k", "--yes"}, {"jobs", "requeue", "--kind", "k", "--dry-run"},
	{"stats"}, {"stats", "--watch"}, {"status"}, {"queues"}, {"queues", "list"}, {"workers"}, {"schedules"},
}

var onSchema = [][]string{{"migrate", "up"}, {"migrate", "status"}}

func TestOnAnEmptyDatabaseEachCommandSaysSoAndNothingIsMissing(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.ctl("jobs", "list").want(1, "no jobs").sentence()
	q.ctl("jobs", "list", "--status", "dead,running", "--kind", "k").want(1, "no jobs with status dead or running and kind k").sentence()
	q.ctl("jobs", "show", "1").want(1, "job 1 is unknown: nothing is on record").sentence()
	q.ctl("jobs", "requeue", "1").want(1, "job 1 is unknown: nothing is on record")
	q.ctl("jobs", "requeue", "--kind", "k", "--yes").want(1, "no jobs that are dead with kind k").sentence()
	q.ctl("jobs", "requeue", "--kind", "k", "--dry-run").want(1, "no jobs that are dead with kind k")
	q.ctl("migrate", "up").want(0, "nothing to do")
	q.ctl("migrate", "status").want(0, "00001_init.sql").golden("status.txt")
	for _, args := range append(onJobs, onSchema...) {
		if slices.Contains(args, "--watch") {
			continue // it does not end
		}
		var v map[string]any
		o := q.ctl(append(args, "--json")...)
		o.clean(0).decode(&v)
		if o.code > 1 {
			t.Errorf("%v --json: exit code %d", args, o.code)
		}
	}
}

func TestWithoutTheSchemaStatusSaysWhatWaitsAndCreatesNothing(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.exec("DROP SCHEMA jobgen CASCADE")
	for _, args := range onJobs {
		q.ctl(args...).want(3, "not migrated", "`jobctl migrate up`", "DATABASE_URL").sentence()
	}
	o := q.ctl("migrate", "status").want(1, "00001_init.sql", "waits", "jobctl migrate up").golden("status_waits.txt")
	var v struct{ Waiting int }
	q.ctl("migrate", "status", "--json").want(1).decode(&v)
	if n := q.count("SELECT count(*) FROM pg_namespace WHERE nspname = 'jobgen'"); n != 0 {
		t.Error("status created the schema")
	}
	if waits := strings.Count(o.out, "waits"); v.Waiting == 0 || v.Waiting != waits {
		t.Errorf("JSON has %d waiting, the table %d", v.Waiting, waits)
	}
	q.ctl("migrate", "up").want(0, "applied 00001_init.sql")
	q.ctl("migrate", "up").want(0, "nothing to do")
	q.ctl("migrate", "status").want(0)
}

func TestTheTimeOfAMigrationIsRightInWhateverZoneItWasApplied(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.exec("DROP SCHEMA jobgen CASCADE")
	q.ctl("migrate", "up", "--database-url", with(q.url(), "timezone=Asia/Tokyo")).want(0)
	var v struct {
		Migrations []struct {
			AppliedAt string `json:"applied_at"`
		}
	}
	q.ctl("migrate", "status", "--json", "--database-url", with(q.url(), "timezone=America/New_York")).want(0).decode(&v)
	if n := q.count("SELECT round(abs(extract(epoch FROM clock_timestamp() - $1::text::timestamptz)) / 60)::int", v.Migrations[0].AppliedAt); n != 0 {
		t.Errorf("applied at %s: %d minutes off", v.Migrations[0].AppliedAt, n)
	}
}

func TestANewerSchemaIsLeftAlone(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.exec("INSERT INTO jobgen.schema_version (version_id, is_applied) VALUES (9999, true)")
	for _, args := range append(onJobs, []string{"migrate", "up"}) {
		q.ctl(args...).want(3, "schema version 9999", "newer").sentence()
	}
	q.ctl("migrate", "status").want(3, "00001_init.sql", "9999", "(newer than this jobctl)", "schema version 9999")
}

func TestAMissingDatabaseIsNamedWithWhereItsNameCameFrom(t *testing.T) {
	t.Parallel()
	q := open(t)
	url := withDatabase(t, q.url(), "jobgen_no_such")
	for _, args := range append(onJobs, onSchema...) {
		q.ctl(append(args, "--database-url", url)...).want(3, `database "jobgen_no_such"`, "does not exist", "create it", "[--database-url: ").sentence()
	}
	q.env.Getenv = func(string) string { return url }
	q.ctl("jobs", "list").want(3, "[DATABASE_URL: ").sentence()
}

func TestWithoutAServerEachCommandSaysWhereItLooked(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	for _, args := range slices.Concat(onJobs, onSchema, [][]string{{"doctor"}}) {
		run(t, t.Context(), jobctl.Env{}, append(args, "--database-url", "postgres://ada:geheim@"+address+"/app")...).
			want(3, "no database answers", address, `database "app"`, `user "ada"`).sentence().conceals("geheim")
	}
}

func TestAPasswordIsNeverPrinted(t *testing.T) {
	t.Parallel()
	const password = "geheim"
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		url := "postgres://ada:" + password + "@" + refuseLogins(t) + "/app?sslmode=disable"
		for _, args := range slices.Concat(onJobs, onSchema, [][]string{{"doctor"}}) {
			run(t, t.Context(), jobctl.Env{}, append(args, "--database-url", url)...).
				want(3, "refused the login", "check user and password", "--database-url").sentence().conceals(password)
		}
	})
	t.Run("malformed", func(t *testing.T) {
		t.Parallel()
		for _, url := range []string{
			"postgres://ada:" + password + "@host:port/app", "postgres://ada:" + password + "/x@host/app", "postgres://ada:%zz" + password + "@host/app",
			"host=db password=" + password + " port=x", "host=db password='" + password, "host=db password=" + password + " sslmode=sometimes", password,
			"mysql://ada:" + password + "@host/app?tls=true", "host", "db.example:5432",
			"postgres://ada:" + password + "@host/app?pool_max_conns=x", "postgres://ada:" + password + "@host/app?sslrootcert=/no/such/file&sslmode=verify-ca",
		} {
			env := jobctl.Env{Getenv: func(string) string { return url }}
			run(t, t.Context(), env, "jobs", "list").want(2, "DATABASE_URL").sentence().conceals(password)
			run(t, t.Context(), jobctl.Env{}, "jobs", "list", "--database-url", url).want(2, "--database-url").sentence().conceals(password)
		}
	})
	t.Run("help and usage", func(t *testing.T) {
		t.Parallel()
		env := jobctl.Env{Getenv: func(string) string { return "postgres://ada:" + password + "@host/app" }}
		for _, args := range [][]string{{"help"}, {"jobs", "list", "--help"}, {"jobs", "list", "--nonsense"}} {
			run(t, t.Context(), env, args...).conceals(password)
		}
	})
}

func TestLookingWorksOnAReadOnlyDatabaseAndRequeueingSaysWhyNot(t *testing.T) {
	t.Parallel()
	q := open(t)
	n := q.deadJob()
	url := with(q.url(), "default_transaction_read_only=on")
	q.ctl("jobs", "list", "--database-url", url).want(0, "dead")
	q.ctl("jobs", "show", id(n), "--database-url", url).want(0, "card declined")
	q.ctl("migrate", "status", "--database-url", url).want(0)
	q.ctl("jobs", "requeue", id(n), "--database-url", url).want(3, "read-only", "connect to the primary")
	for _, args := range [][]string{{"migrate", "up"}, {"migrate", "down", "--yes", "--force"}} {
		if o := q.ctl(append(args, "--database-url", url)...).want(3, "read-only", "connect to the primary").sentence(); strings.Contains(o.err, "unknown") {
			t.Errorf("%v: %s", args, o.err)
		}
	}
	if q.count("SELECT count(*) FROM jobgen.jobs WHERE status = 'dead'") != 1 {
		t.Error("the job is not dead any more")
	}
}

func TestWithoutTheRightToChangeJobsEachCommandSaysWhoMay(t *testing.T) {
	t.Parallel()
	q := open(t)
	n := q.deadJob()
	q.exec("CREATE ROLE looks_only LOGIN PASSWORD 'x'")
	t.Cleanup(func() {
		if _, err := q.pool.Exec(context.Background(), "DROP OWNED BY looks_only; DROP ROLE looks_only"); err != nil {
			t.Error(err)
		}
	})
	q.exec("GRANT USAGE ON SCHEMA jobgen TO looks_only; GRANT SELECT ON ALL TABLES IN SCHEMA jobgen TO looks_only; GRANT SELECT ON ALL SEQUENCES IN SCHEMA jobgen TO looks_only")
	url := with(q.url(), "role=looks_only")
	q.ctl("jobs", "list", "--database-url", url).want(0, "dead")
	for _, args := range [][]string{
		{"jobs", "requeue", id(n)}, {"jobs", "requeue", "--all", "--yes"}, {"jobs", "cancel", id(n)}, {"jobs", "delete", id(n), "--yes"},
		{"jobs", "edit", id(n), "--priority", "3", "--yes"}, {"queues", "pause", "mail"},
	} {
		o := q.ctl(append(args, "--database-url", url)...).want(3, "permission denied", "this role may not change that", "docs/operating/install.md")
		if strings.Contains(o.err, "SQLSTATE") {
			t.Errorf("%v: %s", args, o.err)
		}
	}
}

// What is missing is of this version, so there is nothing to migrate.
func TestOfASchemaThatLacksATableTheDoctorIsNamed(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.exec("DROP TABLE jobgen.job_archive CASCADE")
	q.ctl("jobs", "show", "1").want(3, "job_archive", "jobctl doctor").sentence()
}

// Jobs have times of the years 1 to 9999, unless somebody with psql has put one off for good.
func TestAJobWhoseTimeIsInfiniteHidesNoOther(t *testing.T) {
	t.Parallel()
	q := open(t)
	q.exec(`INSERT INTO jobgen.jobs (queue, kind, payload, run_at, created_at) VALUES
		('q', 'parked', '{}', 'infinity', '-infinity'), ('q', 'late', '{}', '294276-01-01', now()), ('q', 'early', '{}', '-infinity', now()), ('q', 'other', '{}', now(), now())`)
	q.ctl("jobs", "list").want(0, "parked", "late", "early", "other")
	var v struct {
		Jobs []struct {
			RunAt time.Time `json:"run_at"`
		}
	}
	q.ctl("jobs", "list", "--json").want(0).decode(&v)
	if len(v.Jobs) != 4 || v.Jobs[3].RunAt.Year() != 9999 || v.Jobs[2].RunAt.Year() != 9999 || v.Jobs[1].RunAt.Year() != 1 {
		t.Errorf("%+v", v.Jobs)
	}
	q.ctl("jobs", "show", "1", "--json").want(0, "9999-12-31")
	q.ctl("status").want(1, "ready    2")
	q.ctl("queues").want(0, "q")
	q.ctl("jobs", "edit", "1", "--delay", "0s", "--yes").want(0, "job 1 changed")
}

// A script whose variable is not set must not delete everything, or serve to everybody.
func TestAnEmptyFilterIsRefused(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--key", "--error", "--older", "--newer", "--waiting", "--status", "--kind", "--queue", "--payload"} {
		for _, verb := range []string{"delete", "cancel", "requeue"} {
			run(t, t.Context(), jobctl.Env{}, "jobs", verb, "--all", "--yes", flag, "", "--database-url", "postgres://x@127.0.0.1:1/y").want(2, flag).sentence()
		}
	}
	run(t, t.Context(), jobctl.Env{}, "exporter", "--listen", "").want(2, "--listen is empty")
}

func TestTheFlagGoesBeforeTheVariableAndThatBeforeThoseOfPsql(t *testing.T) {
	t.Parallel()
	if os.Getenv("JOBGEN_PG") == "docker" {
		t.Skip("needs settings that fit into the variables")
	}
	config := jobtest.DB(t).Config().ConnConfig
	libpq := []string{"PGHOST=" + config.Host, "PGUSER=" + config.User, "PGPASSWORD=" + config.Password, "PGDATABASE=" + config.Database, "PGSSLMODE=disable"}
	if config.Port != 0 {
		libpq = append(libpq, "PGPORT="+id(int64(config.Port)))
	}
	wrong := "postgres://ada@127.0.0.1:1/app"
	process(t, libpq, "migrate", "status").want(0)
	process(t, append(libpq, "DATABASE_URL="), "migrate", "status").want(0)
	process(t, append(libpq, "DATABASE_URL="+wrong), "migrate", "status").want(3, "[DATABASE_URL: ")
	process(t, append(libpq, "DATABASE_URL="+config.ConnString()), "migrate", "status", "--database-url", wrong).want(3, "[--database-url: ")
	process(t, append(libpq, "PGDATABASE=jobgen_no_such"), "migrate", "status").want(3, "[the PG* variables", "jobgen_no_such")
	process(t, append(libpq, "PGPORT=x"), "migrate", "status").want(2, "PG* variables")
}

// process runs jobctl in a process of its own, whose output is a pipe.
func process(t *testing.T, env []string, args ...string) outcome {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); name != "DATABASE_URL" && !strings.HasPrefix(name, "PG") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(append(cmd.Env, asProcess+"=1"), env...)
	var out, err strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &err
	if e := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(e)
	}
	return outcome{t, cmd.ProcessState.ExitCode(), out.String(), err.String()}
}

func (o outcome) conceals(secret string) outcome {
	o.t.Helper()
	if strings.Contains(o.out+o.err, secret) {
		o.t.Errorf("the secret is in the output: %s%s", o.out, o.err)
	}
	return o
}

// with adds a parameter to a connection string.
func with(url, parameter string) string {
	if strings.Contains(url, "?") {
		return url + "&" + parameter
	}
	return url + "?" + parameter
}

// refuseLogins is a server that asks for a password and takes none; it stands for a Postgres whose users have passwords,
// which that of the tests need not be.
func refuseLogins(t *testing.T) (address string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				server := pgproto3.NewBackend(conn, conn)
				if _, err := server.ReceiveStartupMessage(); err != nil {
					return
				}
				server.Send(&pgproto3.AuthenticationCleartextPassword{})
				if server.Flush() != nil || server.SetAuthType(pgproto3.AuthTypeCleartextPassword) != nil {
					return
				}
				if _, err := server.Receive(); err != nil {
					return
				}
				server.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01", Message: `password authentication failed for user "ada"`})
				_ = server.Flush()
			}()
		}
	}()
	return l.Addr().String()
}
