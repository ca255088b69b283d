-- name: MetricsWorkers :many
-- MetricsWorkers tells what each worker on record is like.
SELECT (w.lost_at IS NULL AND w.lease_until > clock_timestamp())::bool AS alive,
       coalesce(w.stuck, 0)::int AS stuck, coalesce(w.slots, 0)::int AS slots, coalesce(w.running, 0)::int AS running,
       (abs(coalesce(w.skew_us, 0)) / 1000000.0)::float8 AS skew, w.queues, w.kinds
FROM jobgen.workers w;

-- name: MetricsSchedules :many
-- MetricsSchedules tells how long ago the next tick of each schedule was due; negative: it is not.
SELECT s.kind, s.name, extract(epoch FROM clock_timestamp() - s.next_at)::float8 AS overdue
FROM jobgen.schedules s;

-- name: MetricsHorizon :many
-- MetricsHorizon tells for each sort of holder the oldest snapshot that keeps VACUUM from removing dead rows of this database: in
-- transactions, and in seconds where the server knows. Slots and standbys have no time; xmin is the oldest one's, by which a
-- reader can tell whether it moves. A walsender that has a database copies a table for a subscription, as a session does.
SELECT h.holder::text AS holder, max(h.transactions)::bigint AS transactions, coalesce(max(h.seconds), -1)::float8 AS seconds,
       coalesce((array_agg(h.xmin ORDER BY h.transactions DESC))[1], '')::text AS xmin
FROM (
  SELECT 'session' AS holder, greatest(age(a.backend_xmin), age(a.backend_xid)) AS transactions,
         extract(epoch FROM clock_timestamp() - a.xact_start) AS seconds, a.backend_xmin::text AS xmin
  FROM pg_catalog.pg_stat_activity a
  WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type <> 'autovacuum worker'
    AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
  UNION ALL
  SELECT 'prepared', age(p.transaction), extract(epoch FROM clock_timestamp() - p.prepared), p.transaction::text
  FROM pg_catalog.pg_prepared_xacts p WHERE p.database = current_database()
  UNION ALL
  SELECT 'slot', age(s.xmin), NULL, s.xmin::text FROM pg_catalog.pg_replication_slots s WHERE s.xmin IS NOT NULL
  UNION ALL
  SELECT 'standby', age(a.backend_xmin), NULL, a.backend_xmin::text FROM pg_catalog.pg_stat_activity a
  WHERE a.backend_type = 'walsender' AND a.datid IS NULL AND a.backend_xmin IS NOT NULL
) h
GROUP BY h.holder;

-- name: MetricsTables :many
-- MetricsTables tells how big each table is, what it has beside (TOAST, the maps) included, and what VACUUM makes of it. vacuumed
-- is seconds ago; negative: never. Asks the file system, and waits for whoever has a table locked exclusively.
SELECT c.relname::text AS name, pg_table_size(c.oid)::bigint AS bytes,
       coalesce(pg_stat_get_live_tuples(c.oid), 0)::bigint AS live, coalesce(pg_stat_get_dead_tuples(c.oid), 0)::bigint AS dead,
       coalesce(extract(epoch FROM clock_timestamp() - greatest(pg_stat_get_last_vacuum_time(c.oid), pg_stat_get_last_autovacuum_time(c.oid))), -1)::float8 AS vacuumed
FROM pg_catalog.pg_class c
WHERE c.relnamespace = 'jobgen'::regnamespace AND c.relkind = 'r';

-- name: MetricsIndexes :many
-- MetricsIndexes is MetricsTables for indexes.
SELECT t.relname::text AS table_name, c.relname::text AS name, pg_relation_size(c.oid)::bigint AS bytes
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid JOIN pg_catalog.pg_class t ON t.oid = i.indrelid
WHERE c.relnamespace = 'jobgen'::regnamespace AND c.relkind = 'i';

-- name: MetricsServer :one
-- MetricsServer tells how full the server is: of connections, and of notifications that a slow listener has not taken.
SELECT pg_notification_queue_usage()::float8 AS notify_usage,
       (SELECT count(*) FROM pg_catalog.pg_stat_activity a WHERE a.backend_type = 'client backend')::bigint AS connections,
       current_setting('max_connections')::bigint AS connections_max;
