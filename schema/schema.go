// Package schema holds the migrations of each database engine; it is the only place with DDL.
package schema

import "embed"

// Postgres are the numbered migrations in goose's form.
//
//go:embed postgres/*.sql
var Postgres embed.FS
