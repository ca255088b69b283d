// Package schema holds the migrations of each database engine; it is the only place with DDL.
package schema

import "embed"

// Postgres are the numbered migrations in goose's form.
//
//go:embed postgres/*.sql
var Postgres embed.FS

// Record is what keeps jobgen's table of versions when another tool migrates: init.sql comes before the first migration,
// guard.sql before each step (it takes the migration lock and refuses a schema of another version), up.sql and down.sql after it.
//
//go:embed record/*.sql
var Record embed.FS

// Clock gives the database of a test a clock that can be moved; see jobtest.NewClock. It is no migration.
//
//go:embed jobtest/clock.sql
var Clock string
