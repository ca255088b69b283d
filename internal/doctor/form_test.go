package doctor_test

import (
	"os"
	"strings"
	"testing"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
	"github.com/jobgen-go/jobgen/internal/doctor"
)

// What doctor takes for the form of the schema is what the migrations make. After a change of a migration, write it anew:
// go test ./internal/doctor -run Form -update.
func TestTheFormThatIsExpectedIsThatOfTheMigrations(t *testing.T) {
	t.Parallel()
	p := admit(t)
	tx, err := p.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	q := gen.New(tx)
	if err := q.DoctorBegin(t.Context(), "10s"); err != nil {
		t.Fatal(err)
	}
	rows, err := q.DoctorForm(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, r := range rows {
		if r.Rel == "enqueued" || strings.HasPrefix(r.Rel, "jobtest") { // of jobtest's own
			continue
		}
		b.WriteString(strings.Join([]string{r.What, r.Rel, r.Name, r.Def}, "\t") + "\n")
	}
	if *update {
		if err := os.WriteFile("form.txt", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile("form.txt")
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the migrations make\n%s\nform.txt has\n%s\nwrite it anew with: go test ./internal/doctor -run Form -update", b.String(), want)
	}
}

func TestEachCheckIsInTheDocumentation(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operating/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range doctor.Names() {
		if !strings.Contains(string(page), "\n| `"+c.Check+"` | ") {
			t.Errorf("%s is not in docs/operating/doctor.md", c.Check)
		}
	}
}
