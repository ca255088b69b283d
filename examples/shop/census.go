package main

import (
	"context"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/jobgen-go/jobgen/examples/shop/images"
	"github.com/jobgen-go/jobgen/examples/shop/orders"
)

// census is where the jobs are.
type census struct{ queued, running, dead, succeeded int }

func (d *demo) census(ctx context.Context) (c census, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE status = 'queued'),
		       count(*) FILTER (WHERE status = 'running'),
		       count(*) FILTER (WHERE status = 'dead'),
		       (SELECT count(*) FROM jobgen.job_result WHERE finished_at IS NOT NULL)
		FROM jobgen.jobs`).Scan(&c.queued, &c.running, &c.dead, &c.succeeded)
	return c, err
}

// holder is a worker with what it holds.
type holder struct {
	worker               string
	pid                  int
	invoices, thumbnails int
}

// holders are the workers that nobody has found lost.
func (d *demo) holders(ctx context.Context) ([]holder, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT w.id::text, w.pid, count(*) FILTER (WHERE j.kind = $1), count(*) FILTER (WHERE j.kind = $2)
		FROM jobgen.workers w LEFT JOIN jobgen.jobs j ON j.worker_id = w.id AND j.status = 'running'
		WHERE w.lost_at IS NULL
		GROUP BY w.id, w.pid`, orders.InvoiceKind, images.ThumbnailKind)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (h holder, err error) {
		return h, row.Scan(&h.worker, &h.pid, &h.invoices, &h.thumbnails)
	})
}

// withoutPassword is what may be shown of the database's address. A password that the demo made up itself may.
func withoutPassword(address, source string) (shown, note string) {
	if source != "DATABASE_URL" {
		return address, ""
	}
	const where = "the password is the one in DATABASE_URL"
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "" {
		// key=value: the database's name is at the end.
		return address[max(strings.LastIndex(address, "dbname="), 0):], "with the host, user and password in DATABASE_URL"
	}
	query := u.Query()
	_, set := u.User.Password()
	if !set && !query.Has("password") {
		return address, ""
	}
	u.User = url.User(u.User.Username())
	query.Del("password")
	u.RawQuery = query.Encode()
	return u.String(), where
}
