package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobgen-go/jobgen/internal/engine"
)

// refusals are the classes of errors that one row causes: data exception, constraint, limit of a value, check of a view,
// and what triggers raise (RAISE EXCEPTION, and functions in other languages).
var refusals = []string{"22", "23", "54", "44", "P0", "38", "39"}

// translate puts the engine's meaning on what the driver reports. The driver's error stays reachable by errors.As.
func translate(err error) error {
	if err == nil || errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch {
		case pg.Code == "42P01" || pg.Code == "3F000" || pg.Code == "42703":
			return fmt.Errorf("%w (%s)", engine.ErrNotMigrated, pg.Message)
		case slices.Contains(refusals, pg.Code[:min(2, len(pg.Code))]):
			return &engine.ValueError{Err: err}
		}
		return err
	}
	if !pgconn.SafeToRetry(err) {
		return fmt.Errorf("%w: %w", engine.ErrUnknown, err)
	}
	return err
}

// explain is translate for the first contact with a database: one sentence that says what to do.
func explain(err error) error {
	var pg *pgconn.PgError
	var conn *pgconn.ConnectError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pg) && (pg.Code == "28P01" || pg.Code == "28000"):
		return fmt.Errorf("jobgen: the database refused the login; check user and password in the connection string: %s", pg.Message)
	case errors.As(err, &pg) && pg.Code == "3D000":
		return fmt.Errorf("jobgen: %s; create it or correct the connection string", pg.Message)
	case errors.As(err, &pg) && pg.Code == "42501":
		return fmt.Errorf("jobgen: %s; grant this role usage of schema jobgen and of its tables and sequences", pg.Message)
	case errors.As(err, &pg) && pg.Code == "53300":
		return fmt.Errorf("jobgen: the server has no connection left (%s); raise max_connections or make pools smaller", pg.Message)
	case errors.As(err, &conn), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("jobgen: no database answers; check that it runs and that the connection string is right: %w", err)
	}
	return translate(err)
}
