package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	gen "github.com/jobgen-go/jobgen/gen/postgres"
)

// Hot is a statement that workers send at whatever rate jobs come, and the index of jobs that is there for it.
type Hot struct {
	Name, Index string
	call        func(context.Context, *gen.Queries) error
}

// HotStatements are those whose plan tells whether the indexes of jobs are used as they are meant to be.
var HotStatements = []Hot{
	{"Claim", "jobs_claim", func(ctx context.Context, q *gen.Queries) error { _, err := q.Claim(ctx, gen.ClaimParams{}); return err }},
	{"ClaimSuspect", "jobs_suspect", func(ctx context.Context, q *gen.Queries) error {
		_, err := q.ClaimSuspect(ctx, gen.ClaimSuspectParams{})
		return err
	}},
	{"NextDue", "jobs_claim", func(ctx context.Context, q *gen.Queries) error {
		_, err := q.NextDue(ctx, gen.NextDueParams{})
		return err
	}},
	{"Lock", "jobs_claim", func(ctx context.Context, q *gen.Queries) error { _, err := q.Lock(ctx, gen.LockParams{}); return err }},
	{"Complete", "jobs_pkey", func(ctx context.Context, q *gen.Queries) error {
		_, err := q.Complete(ctx, gen.CompleteParams{})
		return err
	}},
	{"CompleteRecorded", "jobs_pkey", func(ctx context.Context, q *gen.Queries) error {
		_, err := q.CompleteRecorded(ctx, gen.CompleteRecordedParams{})
		return err
	}},
	{"Fail", "jobs_pkey", func(ctx context.Context, q *gen.Queries) error { _, err := q.Fail(ctx, gen.FailParams{}); return err }},
	{"Release", "jobs_pkey", func(ctx context.Context, q *gen.Queries) error {
		_, err := q.Release(ctx, gen.ReleaseParams{})
		return err
	}},
	{"Fates", "jobs_pkey", func(ctx context.Context, q *gen.Queries) error { _, err := q.Fates(ctx, gen.FatesParams{}); return err }},
	{"Held", "jobs_pkey", func(ctx context.Context, q *gen.Queries) error { _, err := q.Held(ctx, uuid.Nil); return err }},
	{"Heartbeat", "jobs_pkey", func(ctx context.Context, q *gen.Queries) error {
		_, err := q.Heartbeat(ctx, gen.HeartbeatParams{})
		return err
	}},
	{"Reclaim", "jobs_pkey", func(ctx context.Context, q *gen.Queries) error {
		_, err := q.Reclaim(ctx, gen.ReclaimParams{})
		return err
	}},
}

// Plan is a node of the plan of a statement.
type Plan struct {
	Type     string `json:"Node Type"`
	Relation string `json:"Relation Name"`
	Index    string `json:"Index Name"`
	Cond     string `json:"Index Cond"`
	Plans    []Plan `json:"Plans"`
}

// All are the nodes of a plan.
func (p *Plan) All() []*Plan {
	all := []*Plan{p}
	for i := range p.Plans {
		all = append(all, p.Plans[i].All()...)
	}
	return all
}

// preparedName is in the way of nobody else's statement, also behind a pooler.
const preparedName = "jobgen_explain"

// Explain gives the plan that a worker's session makes for a statement, whatever its arguments are. The statement does not run.
// Like any plan of it, this takes the lock on jobs that a claim takes (RowExclusive), until tx ends. The settings of a worker's
// session hold for the rest of tx.
func (h Hot) Explain(ctx context.Context, tx pgx.Tx) (*Plan, error) {
	if _, err := gen.New(tx).Session(ctx, gen.SessionParams{IsLocal: true, LockTimeout: "100ms"}); err != nil {
		return nil, err
	}
	sql, args := captured(func(q *gen.Queries) error { return h.call(ctx, q) })
	var raw []byte
	err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { // a savepoint, so that what is prepared can be put away in any case
		if _, err := tx.Exec(ctx, "PREPARE "+preparedName+" AS "+sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		return tx.QueryRow(ctx, fmt.Sprintf("EXPLAIN (FORMAT JSON) EXECUTE %s (%s)", preparedName, strings.TrimPrefix(strings.Repeat(", NULL", len(args)), ", ")),
			pgx.QueryExecModeSimpleProtocol).Scan(&raw)
	})
	if _, away := tx.Exec(ctx, "DEALLOCATE "+preparedName, pgx.QueryExecModeSimpleProtocol); err == nil {
		err = away
	}
	if err != nil {
		return nil, err
	}
	var plans []struct{ Plan Plan }
	if err := json.Unmarshal(raw, &plans); err != nil {
		return nil, err
	}
	return &plans[0].Plan, nil
}

// capture takes the SQL and the arguments that a method of gen.Queries sends.
type capture struct {
	sql  string
	args []any
}

var errCaptured = errors.New("captured")

func (c *capture) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	c.sql, c.args = sql, args
	return pgconn.CommandTag{}, errCaptured
}

func (c *capture) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	c.sql, c.args = sql, args
	return nil, errCaptured
}

func (c *capture) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	c.sql, c.args = sql, args
	return capturedRow{}
}

type capturedRow struct{}

func (capturedRow) Scan(...any) error { return errCaptured }

// captured gives what call sends, and sends nothing.
func captured(call func(*gen.Queries) error) (sql string, args []any) {
	var c capture
	_ = call(gen.New(&c))
	return c.sql, c.args
}
