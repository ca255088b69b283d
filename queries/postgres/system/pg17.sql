-- For sqlc's eyes only, which does not know what Postgres 17 brought.
CREATE TABLE pg_catalog.pg_stat_checkpointer (num_timed bigint, num_requested bigint, stats_reset timestamptz);
