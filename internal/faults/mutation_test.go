package faults

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var mutationFlag = flag.String("faults.mutations", "", "break the code in these ways, a regular expression of their names, and see each noticed; minutes")

// mutation is a deliberate break: in one file, what matches old after the text in becomes new. It counts as noticed if a run
// fails with one of the promises in its report.
type mutation struct {
	name, file, in, old, new string
	promises                 string // regular expression
	only                     string // the fault that shows it soonest; "": all of them
}

var mutations = []mutation{
	{"a completion without fence and worker", "gen/postgres/complete.sql.go", "const complete =", `AND fence = ANY\(\$2::bigint\[\]\) AND worker_id = \$3::uuid`,
		`AND $$2::bigint[] IS NOT NULL AND $$3::uuid IS NOT NULL`, "G4|G5|G2: job", "network gone"},
	{"a recorded completion without fence and worker", "gen/postgres/complete.sql.go", "const completeRecorded =", `AND j.fence = ANY\(\$2::bigint\[\]\) AND j.worker_id = \$3::uuid`,
		`AND $$2::bigint[] IS NOT NULL AND $$3::uuid IS NOT NULL`, "G4|G5|G2: job", "network gone"},
	{"a failure without fence and worker", "gen/postgres/fail.sql.go", "const fail =", `AND j.fence = \((\$\d+::bigint\[\])\)\[array_position\(a.ids, j.id\)\] AND j.worker_id = (\$\d+::uuid)`,
		`AND ($1) IS NOT NULL AND $2 IS NOT NULL`, "G4|G5|G2: job", "network gone"},
	{"a release without fence and worker", "gen/postgres/fail.sql.go", "const release =", `AND fence = ANY\((\$\d+::bigint\[\])\) AND worker_id = (\$\d+::uuid)`,
		`AND ($1) IS NOT NULL AND $2 IS NOT NULL`, "G4", ""},
	{"a claim that locks nothing", "gen/postgres/claim.sql.go", "const claim =", `FOR UPDATE SKIP LOCKED`, ``, "G3", ""},
	{"a claim that looks at no holder", "gen/postgres/claim.sql.go", "const claim =", `AND q.worker_id IS NULL`, ``, "G3|G4", ""},
	{"a fence that does not grow", "gen/postgres/claim.sql.go", "const claim =", `nextval\('jobgen.fence'\)`, `1::bigint`, "G3|G4", ""},
	{"a reclaim that looks at no fence", "gen/postgres/reclaim.sql.go", "const reclaim =", `AND j.fence = c.fence AND j.worker_id = c.worker_id\n    LIMIT`, "AND j.worker_id IS NOT NULL\n    LIMIT", "G7", ""},
	{"a reclaim of live workers", "gen/postgres/reclaim.sql.go", "const reclaim =", `WHERE w.lost_at IS NOT NULL`, `WHERE true`, "G7", ""},
	{"a reclaim that keeps the attempt", "gen/postgres/reclaim.sql.go", "const reclaim =", `attempt = greatest\(j.attempt - 1, 0\)`, `attempt = j.attempt`, "G8", "kill"},
	{"a reclaim that counts no crash", "gen/postgres/reclaim.sql.go", "const reclaim =", `crashes = j.crashes \+ 1, fence`, `crashes = j.crashes, fence`, "G4|G8", "kill"},
	{"a claim that is noted nowhere", "gen/postgres/claim.sql.go", "const claim =", `WHERE picked.ids <> '\{\}'`, `WHERE false`, "G2: [0-9]+ jobs|a claim of a job", "kill"},
	{"an enqueue outside the transaction", "jobs/enqueue.go", "func EnqueueMany", `return enqueue\(ctx, db,`, `if tx, ok := db.(interface{ Conn() *pgx.Conn }); ok { c, err := pgx.ConnectConfig(ctx, tx.Conn().Config()); if err != nil { return nil, err }; defer c.Close(ctx); db = c }
	return enqueue(ctx, db,`, "G1", ""},
	{"results of another payload", "gen/postgres/complete.sql.go", "const completeUnkeyed =", `nullif\(outcome.result, ''\)::jsonb`, `'{"N": 1}'::jsonb`, "the result is not", ""},
}

// The checker notices each deliberate break of the code. Without it, a run that finds nothing would mean nothing.
func TestMutationsAreNoticed(t *testing.T) {
	if *mutationFlag == "" {
		t.Skip("each takes a build and up to a few runs: make faults-proof, or -faults.mutations .")
	}
	chosen := regexp.MustCompile(*mutationFlag)
	root, err := filepath.Abs("../..")
	check(t, err)
	copied := filepath.Join(t.TempDir(), "copy")
	list, err := exec.Command("git", "-C", root, "ls-files", "-z").Output()
	check(t, err)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		b, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue
		}
		check(t, err)
		to := filepath.Join(copied, name)
		check(t, os.MkdirAll(filepath.Dir(to), 0o755))
		check(t, os.WriteFile(to, b, 0o644))
	}
	for _, m := range mutations {
		if !chosen.MatchString(m.name) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			file := filepath.Join(copied, m.file)
			whole, err := os.ReadFile(file)
			check(t, err)
			defer func() { check(t, os.WriteFile(file, whole, 0o644)) }()
			broken, err := m.apply(whole)
			check(t, err)
			check(t, os.WriteFile(file, broken, 0o644))
			program := filepath.Join(t.TempDir(), "faults.test")
			build := exec.Command("go", "test", "-c", "-o", program, "./internal/faults")
			build.Dir = copied
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			promises := regexp.MustCompile(`(?m)^ *faults_test.go:\d+: (` + m.promises + `).*`)
			for seed := 1; seed <= 5; seed++ {
				run := exec.Command(program, "-test.run", "^TestPromisesHoldUnderFaults$", "-faults.seed", fmt.Sprint(seed), "-faults.for", "10s", "-faults.patience", "20s", "-faults.only", m.only)
				run.Dir = filepath.Join(copied, "internal/faults")
				out, err := run.CombinedOutput()
				if found := promises.Find(out); err != nil && found != nil {
					t.Logf("seed %d: %.200s", seed, bytes.TrimSpace(found))
					return
				}
				t.Logf("seed %d: %v\n%.600s", seed, err, out)
			}
			t.Error("nothing noticed it")
		})
	}
}

func (m mutation) apply(whole []byte) ([]byte, error) {
	at := bytes.Index(whole, []byte(m.in))
	if at < 0 {
		return nil, fmt.Errorf("%s has no %q", m.file, m.in)
	}
	old := regexp.MustCompile(m.old)
	place := old.FindSubmatchIndex(whole[at:])
	if place == nil {
		return nil, fmt.Errorf("%s has no %q after %q", m.file, m.old, m.in)
	}
	out := bytes.Clone(whole[:at+place[0]])
	out = old.Expand(out, []byte(m.new), whole[at:], place)
	return append(out, whole[at+place[1]:]...), nil
}
