-- name: Sizes :many
-- Sizes tells how large each table of the schema and each of its indexes is, tables first within each. It reads what the server
-- has counted, not the tables. Epoch: never. To ask for a size takes a lock that waits for who changes a table or truncates it: it gives up
-- after half a second.
WITH soon AS MATERIALIZED (
  SELECT set_config('lock_timeout', '500ms', true) AS set
)
SELECT t.relname::text AS of_table, coalesce(i.relname, '')::text AS index_name,
       (CASE WHEN i.oid IS NULL THEN pg_table_size(t.oid) ELSE pg_relation_size(i.oid) END)::bigint AS bytes,
       coalesce(s.n_live_tup, 0)::bigint AS live, coalesce(s.n_dead_tup, 0)::bigint AS dead,
       coalesce(s.last_autovacuum, 'epoch')::timestamptz AS autovacuum_at, coalesce(s.last_vacuum, 'epoch')::timestamptz AS vacuum_at
FROM soon
JOIN pg_catalog.pg_namespace n ON n.nspname = 'jobgen' AND soon.set IS NOT NULL
JOIN pg_catalog.pg_class t ON t.relnamespace = n.oid AND t.relkind IN ('r', 'p')
LEFT JOIN pg_catalog.pg_stat_all_tables s ON s.relid = t.oid
CROSS JOIN LATERAL (
  SELECT NULL::oid AS oid, NULL::text AS relname
  UNION ALL
  SELECT c.oid, c.relname::text FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class c ON c.oid = x.indexrelid WHERE x.indrelid = t.oid
) i
ORDER BY t.relname, i.relname NULLS FIRST;

-- name: Crews :many
-- Crews tells how many live workers there are of each sort, with the same queues and kinds, and how busy they were at their last
-- heartbeats. workers is small.
SELECT w.queues::text[] AS queues, w.kinds::text[] AS kinds, count(*)::int AS workers, coalesce(sum(w.slots), 0)::int AS slots,
       coalesce(sum(w.running), 0)::int AS running, coalesce(sum(w.stuck), 0)::int AS stuck, (count(*) - count(w.slots))::int AS untold
FROM jobgen.workers w
WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp()
GROUP BY w.queues, w.kinds
ORDER BY w.queues, w.kinds;

-- name: LostWorkers :one
-- LostWorkers tells how many workers were found dead within a time, and when one was last heard of (epoch: none is on
-- record; those that left in order are not).
SELECT count(*) FILTER (WHERE w.lost_at > clock_timestamp() - sqlc.arg(within_us)::bigint * interval '1 microsecond')::int AS lost,
       coalesce(max(w.beat_at), 'epoch')::timestamptz AS heard_at, clock_timestamp()::timestamptz AS db_now
FROM jobgen.workers w;
