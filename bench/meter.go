package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// meter reads what the server spends. It stands beside the entrants' databases, on a connection to another one.
type meter struct {
	conn *pgx.Conn
	pid  int // of the postmaster; 0: unknown, as in a container
}

func newMeter(ctx context.Context, conn *pgx.Conn) *meter {
	m := &meter{conn: conn}
	var file, folder string
	err := conn.QueryRow(ctx, `SELECT pg_read_file('postmaster.pid'), current_setting('data_directory')`).Scan(&file, &folder)
	lines := strings.Split(file, "\n")
	if pid, convErr := strconv.Atoi(lines[0]); err == nil && convErr == nil && isPostmaster(pid, folder) {
		m.pid = pid
	}
	return m
}

// reading is the state of the server's counters.
type reading struct{ wal, cpu, background float64 }

func (m *meter) read(ctx context.Context) (r reading, err error) {
	err = m.conn.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8`).Scan(&r.wal)
	r.cpu, r.background = serverCPU(m.pid), backgroundCPU(m.pid)
	return r, err
}

// counters are the statistics of one database.
type counters struct{ commits, dead float64 }

// count reads a database's counters once all its sessions are gone: a session adds what it did at its end, and before
// that at most once a second. own is a connection to the database, whose few commits do not matter.
func (m *meter) count(ctx context.Context, url string) (c counters, err error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return c, err
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for sessions, tries := 1, 0; sessions > 0 && tries < 1000; tries++ {
		err := m.conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'`,
			config.Database).Scan(&sessions)
		if err != nil {
			return c, err
		}
		select {
		case <-ctx.Done():
			return c, ctx.Err()
		case <-tick.C:
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return c, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, `
		SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),
		       (SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_user_tables)`).Scan(&c.commits, &c.dead)
	return c, err
}

// environment is what the results are worth nothing without. It names no host and no path.
type environment struct {
	Date     string            `json:"date"`             // by the database
	Commit   string            `json:"commit,omitempty"` // of the checkout that was built; empty: it is none
	Server   string            `json:"server"`
	Settings map[string]string `json:"settings"`
	Versions map[string]string `json:"versions"`
	Machine  string            `json:"machine"`
	Others   string            `json:"others"` // what else the machine did meanwhile
}

// told are the settings that are reported.
var told = []string{"shared_buffers", "max_wal_size", "fsync", "synchronous_commit", "full_page_writes", "wal_level",
	"wal_compression", "autovacuum", "jit", "max_connections"}

func (m *meter) environment(ctx context.Context) (e environment, err error) {
	err = m.conn.QueryRow(ctx, `SELECT to_char(now(), 'YYYY-MM-DD'), 'PostgreSQL ' || current_setting('server_version')`).Scan(&e.Date, &e.Server)
	if err != nil {
		return e, err
	}
	e.Server, _, _ = strings.Cut(e.Server, " (")
	e.Settings = map[string]string{}
	for _, name := range told {
		var value string
		if err := m.conn.QueryRow(ctx, `SELECT current_setting($1)`, name).Scan(&value); err != nil {
			return e, fmt.Errorf("setting %s: %w", name, err)
		}
		e.Settings[name] = value
	}
	return e, nil
}
