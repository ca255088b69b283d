// Package schema holds the migrations of each database engine; it is the only place with DDL.
package schema

import "embed"

// Postgres are the numbered migrations in goose's form.
//
//go:embed postgres/*.sql
var Postgres embed.FS

// Clock gives the database of a test a clock that can be moved; see jobtest.NewClock. It is no migration.
//
//go:embed jobtest/clock.sql
var Clock string
