-- name: DoctorBegin :exec
-- DoctorBegin sets what bounds a check, for the rest of its transaction: it gives up rather than wait or work for long. Without a
-- search path, no stranger's function or table stands in for the catalog's, and definitions come out with full names.
SELECT set_config('statement_timeout', @statement_timeout::text, true), set_config('lock_timeout', '100ms', true),
       set_config('search_path', 'pg_catalog', true), set_config('jit', 'off', true), set_config('datestyle', 'ISO', true),
       set_config('timezone', 'UTC', true);

-- name: DoctorServer :one
-- DoctorServer tells what most checks depend on. hidden: sessions of which this role may not see what they do.
SELECT current_setting('server_version_num')::int AS version, current_setting('server_version')::text AS version_name,
       pg_is_in_recovery()::bool AS standby, clock_timestamp()::timestamptz AS db_now, current_user::text AS role,
       current_database()::text AS database, pg_has_role('pg_read_all_stats', 'USAGE')::bool AS sees_all,
       (SELECT count(*) FROM pg_catalog.pg_stat_activity a WHERE a.query = '<insufficient privilege>')::int AS hidden,
       d.deadlocks::bigint AS deadlocks, (extract(epoch FROM clock_timestamp() - coalesce(d.stats_reset, pg_postmaster_start_time())) * 1000000)::bigint AS counted_us,
       (SELECT age(b.datfrozenxid) FROM pg_catalog.pg_database b WHERE b.datname = current_database())::bigint AS frozen_age
FROM pg_catalog.pg_stat_database d WHERE d.datname = current_database();

-- name: DoctorSettings :many
-- DoctorSettings gives what a new session of this role has.
SELECT s.name::text AS name, s.reset_val::text AS value, s.source::text AS source FROM pg_catalog.pg_settings s WHERE s.name = ANY(@names::text[]);

-- name: DoctorRoleSettings :many
-- DoctorRoleSettings lists what is set for roles and databases that a session here can have. '': for all.
SELECT coalesce(r.rolname, '')::text AS role, coalesce(d.datname, '')::text AS database, c.entry::text AS entry
FROM pg_catalog.pg_db_role_setting s
CROSS JOIN LATERAL unnest(s.setconfig) AS c(entry)
LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.setrole
LEFT JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase
WHERE s.setdatabase = 0 OR d.datname = current_database();

-- name: DoctorHorizon :many
-- DoctorHorizon lists the sessions that keep dead rows of this database from being removed, by a snapshot or by a transaction
-- that has written. A vacuum keeps nothing. A walsender without a database: a standby with hot_standby_feedback, and no slot for
-- it; one with a database: the first copy of a table for a subscription.
SELECT a.pid::int AS pid, coalesce(a.usename, '')::text AS role, coalesce(a.application_name, '')::text AS application,
       coalesce(a.state, '')::text AS state, (a.backend_type = 'walsender' AND a.datid IS NULL)::bool AS standby, coalesce(host(a.client_addr), '')::text AS address,
       greatest(coalesce(age(a.backend_xmin), 0), coalesce(age(a.backend_xid), 0))::bigint AS age,
       coalesce((extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000)::bigint, 0)::bigint AS open_us,
       left(coalesce(a.query, ''), 300)::text AS query
FROM pg_catalog.pg_stat_activity a
WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.pid <> pg_backend_pid()
  AND (a.datname = current_database() OR a.datid IS NULL AND a.backend_type = 'walsender')
  AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_progress_vacuum v WHERE v.pid = a.pid)
ORDER BY open_us DESC, age DESC
LIMIT 20;

-- name: DoctorSlots :many
-- DoctorSlots lists replication slots, and who uses them. xmin keeps dead rows of all tables (a standby's feedback), catalog_xmin
-- those of catalogs. A temporary slot goes with its session, so only what it keeps meanwhile is of interest: a standby may have one.
SELECT s.slot_name::text AS name, s.slot_type::text AS type, s.active::bool AS active, coalesce(age(s.xmin), 0)::bigint AS age,
       coalesce(age(s.catalog_xmin), 0)::bigint AS catalog_age, coalesce(s.wal_status, '')::text AS wal_status,
       (CASE WHEN pg_is_in_recovery() OR s.restart_lsn IS NULL THEN 0 ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn) END)::bigint AS kept,
       coalesce(s.active_pid, 0)::int AS pid, coalesce(r.application_name, '')::text AS application, coalesce(host(r.client_addr), '')::text AS address
FROM pg_catalog.pg_replication_slots s LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid
WHERE NOT s.temporary OR s.xmin IS NOT NULL
ORDER BY s.slot_name;

-- name: DoctorPrepared :many
SELECT p.gid::text AS gid, p.owner::text AS role, age(p.transaction)::bigint AS age,
       (extract(epoch FROM clock_timestamp() - p.prepared) * 1000000)::bigint AS open_us
FROM pg_catalog.pg_prepared_xacts p WHERE p.database = current_database()
ORDER BY p.prepared LIMIT 20;

-- name: DoctorForm :many
-- DoctorForm describes the tables of the schema, one line for each thing that a migration makes. Of a table that goose makes,
-- nothing is said; constraints NOT NULL are in the columns.
WITH tables AS (
  SELECT c.oid, c.relname, c.reloptions, c.reltoastrelid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = 'jobgen' AND c.relkind IN ('r', 'p') AND c.relname <> 'schema_version'
)
SELECT f.what::text AS what, f.rel::text AS rel, f.name::text AS name, f.def::text AS def FROM (
  SELECT 'table'::text AS what, t.relname::text AS rel, ''::text AS name, ''::text AS def FROM tables t
  UNION ALL
  SELECT 'column', t.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod)
    || CASE WHEN a.attcollation NOT IN (0, 100) THEN ' COLLATE "' || (SELECT o.collname FROM pg_catalog.pg_collation o WHERE o.oid = a.attcollation) || '"' ELSE '' END
    || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
    || CASE WHEN a.attgenerated <> '' THEN ' GENERATED ' ELSE CASE WHEN a.atthasdef THEN ' DEFAULT ' ELSE '' END END
    || coalesce((SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_catalog.pg_attrdef d WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum), '')
  FROM tables t JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid WHERE a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
  SELECT 'index', t.relname::text, x.relname::text, pg_get_indexdef(i.indexrelid) || CASE WHEN i.indisvalid THEN '' ELSE ' INVALID' END
  FROM tables t JOIN pg_catalog.pg_index i ON i.indrelid = t.oid JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
  UNION ALL
  SELECT 'constraint', t.relname::text, k.conname::text, regexp_replace(pg_get_constraintdef(k.oid), '\s+', ' ', 'g')
  FROM tables t JOIN pg_catalog.pg_constraint k ON k.conrelid = t.oid WHERE k.contype IN ('c', 'f', 'x')
  UNION ALL
  SELECT 'storage', t.relname::text, split_part(o.option, '=', 1), split_part(o.option, '=', 2)
  FROM tables t CROSS JOIN LATERAL unnest(t.reloptions) AS o(option)
  UNION ALL
  SELECT 'storage', t.relname::text, 'toast.' || split_part(o.option, '=', 1), split_part(o.option, '=', 2)
  FROM tables t JOIN pg_catalog.pg_class x ON x.oid = t.reltoastrelid CROSS JOIN LATERAL unnest(x.reloptions) AS o(option)
) f
ORDER BY 1, 2, 3;

-- name: DoctorTables :many
-- DoctorTables tells of each table how large it is, how it is kept, and what strangers have put on it.
SELECT c.relname::text AS name, r.rolname::text AS owner, c.relpersistence::text AS persistence, c.relrowsecurity::bool AS row_security,
       (c.relreplident = 'f' OR c.relreplident = 'i' OR c.relreplident = 'd'
         AND EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid))::bool AS identified,
       ARRAY(SELECT p.pubname::text FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_tables t ON t.pubname = p.pubname
             WHERE t.schemaname = 'jobgen' AND t.tablename = c.relname AND (p.pubdelete OR p.pubupdate))::text[] AS publications,
       ARRAY(SELECT pg_get_triggerdef(t.oid) FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled <> 'D' ORDER BY t.oid)::text[] AS triggers,
       ARRAY(SELECT t.tgname::text FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled <> 'D' ORDER BY t.oid)::text[] AS trigger_names,
       ARRAY(SELECT w.rulename::text FROM pg_catalog.pg_rewrite w WHERE w.ev_class = c.oid)::text[] AS rules,
       ARRAY(SELECT format('%I.%I: %I', fn.nspname, fc.relname, k.conname) FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class fc ON fc.oid = k.conrelid JOIN pg_catalog.pg_namespace fn ON fn.oid = fc.relnamespace
             WHERE k.confrelid = c.oid AND k.contype = 'f')::text[] AS referenced_by,
       ARRAY(SELECT format('ALTER TABLE %I.%I DROP CONSTRAINT %I;', fn.nspname, fc.relname, k.conname) FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class fc ON fc.oid = k.conrelid JOIN pg_catalog.pg_namespace fn ON fn.oid = fc.relnamespace
             WHERE k.confrelid = c.oid AND k.contype = 'f')::text[] AS unreference,
       greatest(c.reltuples, 0)::float8 AS tuples, c.relpages::bigint AS pages, pg_table_size(c.oid)::bigint AS size, pg_indexes_size(c.oid)::bigint AS indexes_size,
       coalesce(s.n_live_tup, 0)::bigint AS live, coalesce(s.n_dead_tup, 0)::bigint AS dead, coalesce(s.n_mod_since_analyze, 0)::bigint AS modified,
       coalesce(s.n_tup_upd, 0)::bigint AS updated, coalesce(s.n_tup_hot_upd, 0)::bigint AS hot_updated,
       -- -1: never
       coalesce((extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum)) * 1000000)::bigint, -1)::bigint AS vacuumed_us,
       coalesce((extract(epoch FROM clock_timestamp() - greatest(s.last_analyze, s.last_autoanalyze)) * 1000000)::bigint, -1)::bigint AS analyzed_us,
       age(c.relfrozenxid)::bigint AS frozen_age
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace JOIN pg_catalog.pg_roles r ON r.oid = c.relowner
LEFT JOIN pg_catalog.pg_stat_all_tables s ON s.relid = c.oid
WHERE n.nspname = 'jobgen' AND c.relkind = 'r'
ORDER BY c.relname;

-- name: DoctorIndexes :many
-- DoctorIndexes tells how large each index is. reltuples is what the last vacuum or analyze counted.
SELECT t.relname::text AS rel, c.relname::text AS name, greatest(c.reltuples, 0)::float8 AS tuples, pg_relation_size(c.oid)::bigint AS size
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid JOIN pg_catalog.pg_class t ON t.oid = i.indrelid JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
WHERE n.nspname = 'jobgen' AND c.relkind = 'i' AND i.indisvalid
ORDER BY 1, 2;

-- name: DoctorVacuums :many
-- DoctorVacuums lists what autovacuum works on now, in all databases.
SELECT coalesce(a.datname, '')::text AS database, left(coalesce(a.query, ''), 120)::text AS query,
       coalesce((extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000)::bigint, 0)::bigint AS for_us
FROM pg_catalog.pg_stat_activity a WHERE a.backend_type = 'autovacuum worker'
ORDER BY 3 DESC;

-- name: DoctorMinute :one
-- DoctorMinute is how many attempts have ended in a minute, in the busiest of the last ten: what a vacuum has to do.
SELECT coalesce(max(m.n), 0)::bigint AS ended FROM (
  SELECT sum(s.succeeded + s.failed + s.snoozed + s.cancelled + s.reclaimed) AS n FROM jobgen.samples s
  WHERE s.minute > now() - interval '10 minutes' GROUP BY s.minute
) m;

-- name: DoctorWorkers :many
-- DoctorWorkers lists the workers on record.
SELECT w.id, w.host, w.pid, w.queues, w.kinds, w.versions::int[] AS versions, w.timeouts_us::bigint[] AS timeouts_us, w.skew_us, w.pooled, coalesce(w.stuck, 0)::int AS stuck, coalesce(w.slots, 0)::int AS slots, coalesce(w.running, 0)::int AS running,
       (w.lost_at IS NULL AND w.lease_until > clock_timestamp())::bool AS live, (w.lost_at IS NOT NULL)::bool AS lost,
       (extract(epoch FROM w.lease_until - w.beat_at) * 1000000)::bigint AS lease_us,
       (extract(epoch FROM clock_timestamp() - w.beat_at) * 1000000)::bigint AS beat_us,
       (extract(epoch FROM clock_timestamp() - w.started_at) * 1000000)::bigint AS started_us,
       coalesce((extract(epoch FROM clock_timestamp() - w.lost_at) * 1000000)::bigint, 0)::bigint AS lost_us
FROM jobgen.workers w ORDER BY w.started_at LIMIT 10000;

-- name: DoctorHeads :many
-- DoctorHeads looks at the longest waiting jobs of each queue and priority, @n of each: what nobody takes comes to lie there. The
-- queues are found by one probe of jobs_claim each; then each range is read from its left end.
WITH RECURSIVE queues AS (
  (SELECT q.queue FROM jobgen.jobs q WHERE NOT q.dead AND q.crashes < 2 ORDER BY q.queue LIMIT 1)
  UNION ALL
  SELECT (SELECT q.queue FROM jobgen.jobs q WHERE NOT q.dead AND q.crashes < 2 AND q.queue > k.queue ORDER BY q.queue LIMIT 1)
  FROM queues k WHERE k.queue IS NOT NULL
)
SELECT k.queue::text AS queue, h.kind::text AS kind, h.version::int AS version, count(*)::bigint AS n,
       (extract(epoch FROM clock_timestamp() - min(h.run_at)) * 1000000)::bigint AS waits_us, min(h.id)::bigint AS id
FROM queues k CROSS JOIN generate_series(0, 9) AS p(priority) CROSS JOIN LATERAL (
  SELECT j.id, j.kind, j.version, j.run_at FROM jobgen.jobs j
  WHERE NOT j.dead AND j.crashes < 2 AND j.worker_id IS NULL AND j.queue = k.queue AND j.priority = p.priority::smallint AND j.run_at <= now()
  ORDER BY j.run_at NULLS FIRST, j.id
  LIMIT @n
) h
WHERE k.queue IS NOT NULL
GROUP BY 1, 2, 3 ORDER BY 5 DESC;

-- name: DoctorPaused :many
SELECT q.name, (extract(epoch FROM clock_timestamp() - q.paused_at) * 1000000)::bigint AS paused_us FROM jobgen.queues q WHERE q.paused_at IS NOT NULL ORDER BY q.name;

-- name: DoctorRunning :many
-- DoctorRunning looks at the @n oldest jobs for such as run although no worker on record has them, or no claim names them. A claim in
-- flight, and what upkeep mends within minutes, is left out.
SELECT j.id, j.kind, j.worker_id::text AS worker_id, (extract(epoch FROM clock_timestamp() - j.claimed_at) * 1000000)::bigint AS for_us,
       EXISTS (SELECT FROM jobgen.workers w WHERE w.id = j.worker_id AND w.lost_at IS NULL)::bool AS on_record
FROM (SELECT o.id, o.kind, o.worker_id, o.fence, o.claimed_at FROM jobgen.jobs o ORDER BY o.id LIMIT @n) j
WHERE j.worker_id IS NOT NULL AND (j.claimed_at IS NULL OR j.claimed_at < clock_timestamp() - sqlc.arg(older_us)::bigint * interval '1 microsecond')
  AND (NOT EXISTS (SELECT FROM jobgen.claims c WHERE c.worker_id = j.worker_id AND c.fence = j.fence AND j.id = ANY(c.ids))
    OR NOT EXISTS (SELECT FROM jobgen.workers w WHERE w.id = j.worker_id AND (w.lost_at IS NULL OR w.lost_at > clock_timestamp() - sqlc.arg(older_us)::bigint * interval '1 microsecond')))
ORDER BY j.id LIMIT 1000;

-- name: DoctorRunTimes :many
-- DoctorRunTimes sums what has been counted since @since_us ago by kind, in one pass.
WITH s AS MATERIALIZED (
  SELECT m.kind, m.succeeded, m.failed, m.timed_out, m.died, m.reclaimed, m.run_times FROM jobgen.samples m
  WHERE m.minute > now() - sqlc.arg(since_us)::bigint * interval '1 microsecond'
), b AS MATERIALIZED (
  SELECT s.kind, r.i, sum(r.n) AS n FROM s CROSS JOIN LATERAL unnest(s.run_times) WITH ORDINALITY AS r(n, i) GROUP BY s.kind, r.i
)
SELECT s.kind, sum(s.succeeded)::bigint AS succeeded, sum(s.failed)::bigint AS failed, sum(s.timed_out)::bigint AS timed_out,
       sum(s.died)::bigint AS died, sum(s.reclaimed)::bigint AS reclaimed,
       coalesce((SELECT array_agg(b.n ORDER BY b.i) FROM b WHERE b.kind = s.kind), '{}')::bigint[] AS run_times
FROM s GROUP BY s.kind ORDER BY s.kind;

-- name: DoctorCounts :many
-- DoctorCounts is DoctorRunTimes without how long attempts ran, which takes most of its time.
SELECT m.kind, sum(m.died)::bigint AS died, sum(m.reclaimed)::bigint AS reclaimed FROM jobgen.samples m
WHERE m.minute > now() - sqlc.arg(since_us)::bigint * interval '1 microsecond' AND (m.died > 0 OR m.reclaimed > 0)
GROUP BY m.kind ORDER BY m.kind;

-- name: DoctorConnections :many
-- DoctorConnections counts the sessions of clients, in all databases.
SELECT coalesce(nullif(a.application_name, ''), '(no application_name)')::text AS application, count(*)::int AS n
FROM pg_catalog.pg_stat_activity a WHERE a.pid IS NOT NULL AND a.usesysid IS NOT NULL AND coalesce(a.backend_type, 'client backend') IN ('client backend')
GROUP BY 1 ORDER BY 2 DESC, 1;

-- name: DoctorIdle :many
-- DoctorIdle lists sessions that have been idle in a transaction for longer than @older_us.
SELECT a.pid::int AS pid, a.usename::text AS role, a.application_name::text AS application, left(a.query, 300)::text AS query,
       (extract(epoch FROM clock_timestamp() - a.state_change) * 1000000)::bigint AS idle_us
FROM pg_catalog.pg_stat_activity a
WHERE a.datname = current_database() AND a.state IN ('idle in transaction', 'idle in transaction (aborted)')
  AND a.state_change < clock_timestamp() - sqlc.arg(older_us)::bigint * interval '1 microsecond'
ORDER BY a.state_change LIMIT 10;

-- name: DoctorFleetRoles :many
-- DoctorFleetRoles lists the roles whose sessions are a worker's.
SELECT DISTINCT a.usename::text AS role FROM pg_catalog.pg_stat_activity a
WHERE a.datname = current_database() AND a.application_name = 'jobgen worker' AND a.usename IS NOT NULL;

-- name: DoctorNotify :one
SELECT pg_notification_queue_usage()::float8 AS usage;

-- name: DoctorOldest :many
-- DoctorOldest lists the oldest transactions of all databases: one of a session that listens holds notifications back.
SELECT a.pid::int AS pid, coalesce(a.usename, '')::text AS role, coalesce(a.application_name, '')::text AS application, coalesce(a.datname, '')::text AS database,
       coalesce(a.state, '')::text AS state, (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000)::bigint AS open_us, left(coalesce(a.query, ''), 300)::text AS query
FROM pg_catalog.pg_stat_activity a WHERE a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
ORDER BY a.xact_start LIMIT 3;

-- name: DoctorFuture :many
-- DoctorFuture finds times of the database's own clock that have yet to come.
SELECT f.what::text AS what, (extract(epoch FROM f.at - clock_timestamp()) * 1000000)::bigint AS ahead_us FROM (
  SELECT 'the last heartbeat of a worker'::text AS what, max(w.beat_at) AS at FROM jobgen.workers w
  UNION ALL SELECT 'the start of a worker', max(w.started_at) FROM jobgen.workers w
  UNION ALL SELECT 'the last look at the queues', max(l.taken_at) FROM jobgen.looks l
  UNION ALL SELECT 'the last minute that was counted', max(s.minute) FROM jobgen.samples s
) f WHERE f.at > clock_timestamp() + interval '2 seconds';

-- name: DoctorLocks :many
-- DoctorLocks lists the sessions that wait for a lock, on a table of ours or while they have locked one.
SELECT a.pid::int AS pid, coalesce(a.usename, '')::text AS role, coalesce(a.application_name, '')::text AS application, left(coalesce(a.query, ''), 300)::text AS query,
       (extract(epoch FROM clock_timestamp() - coalesce((SELECT min(w.waitstart) FROM pg_catalog.pg_locks w WHERE w.pid = a.pid AND NOT w.granted), a.query_start)) * 1000000)::bigint AS waits_us,
       pg_blocking_pids(a.pid)::int[] AS blocked_by
FROM pg_catalog.pg_stat_activity a
WHERE a.wait_event_type = 'Lock' AND a.datname = current_database() AND a.pid <> pg_backend_pid()
  AND EXISTS (SELECT FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_class c ON c.oid = l.relation JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE l.pid = a.pid AND n.nspname = 'jobgen')
ORDER BY 5 DESC LIMIT 50;

-- name: DoctorSessions :many
-- DoctorSessions tells who sessions are.
SELECT a.pid::int AS pid, coalesce(a.usename, '')::text AS role, coalesce(a.application_name, '')::text AS application, coalesce(a.state, a.backend_type, '')::text AS state,
       coalesce((extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000)::bigint, 0)::bigint AS open_us, left(coalesce(a.query, ''), 300)::text AS query
FROM pg_catalog.pg_stat_activity a WHERE a.pid = ANY(@pids::int[]);

-- name: DoctorOverdue :many
-- DoctorOverdue counts what should have been purged an hour ago, up to @n of each. Served by the indexes of expiry.
SELECT 'job_result'::text AS rel, count(*)::bigint AS n FROM (SELECT FROM jobgen.job_result r WHERE r.expires_at < now() - interval '1 hour' LIMIT @n) a
UNION ALL
SELECT 'job_archive', count(*)::bigint FROM (SELECT FROM jobgen.job_archive r WHERE r.expires_at < now() - interval '1 hour' LIMIT @n) b;

-- name: DoctorKept :many
-- DoctorKept counts the results that are kept for longer than @longer_us from now, by kind, among @n of them.
SELECT k.kind::text AS kind, count(*)::bigint AS n, coalesce((extract(epoch FROM least(min(k.expires_at), '9999-01-01') - now()) * 1000000)::bigint, 0)::bigint AS least_us FROM (
  SELECT r.kind, r.expires_at FROM jobgen.job_result r WHERE r.expires_at > now() + sqlc.arg(longer_us)::bigint * interval '1 microsecond' LIMIT @n
) k GROUP BY 1 ORDER BY 2 DESC;

-- name: DoctorDead :many
-- DoctorDead reads the newest dead jobs of each kind, @n of each, and how many there are, up to a thousand. Served by jobs_dead.
WITH RECURSIVE kinds AS (
  (SELECT d.kind FROM jobgen.jobs d WHERE d.dead ORDER BY d.kind LIMIT 1)
  UNION ALL
  SELECT (SELECT d.kind FROM jobgen.jobs d WHERE d.dead AND d.kind > k.kind ORDER BY d.kind LIMIT 1)
  FROM kinds k WHERE k.kind IS NOT NULL
)
SELECT k.kind::text AS kind, (SELECT count(*) FROM (SELECT FROM jobgen.jobs d WHERE d.dead AND d.kind = k.kind LIMIT 1000) c)::bigint AS n,
       j.id::bigint AS id, coalesce(left(j.last_error, 300), '')::text AS error, (extract(epoch FROM clock_timestamp() - coalesce(j.claimed_at, j.run_at)) * 1000000)::bigint AS ago_us, j.crashes::int AS crashes
FROM kinds k CROSS JOIN LATERAL (
  SELECT d.id, d.last_error, d.claimed_at, d.run_at, d.crashes FROM jobgen.jobs d WHERE d.dead AND d.kind = k.kind ORDER BY d.id DESC LIMIT @n
) j
WHERE k.kind IS NOT NULL;

-- name: DoctorSuspects :many
-- DoctorSuspects lists the jobs during which two workers or more were lost. Served by jobs_suspect.
SELECT s.kind::text AS kind, count(*)::bigint AS n, max(s.crashes)::int AS crashes, min(s.id)::bigint AS id FROM (
  SELECT q.kind, q.crashes, q.id FROM jobgen.jobs q WHERE NOT q.dead AND q.crashes >= 2 LIMIT 10000
) s GROUP BY 1 ORDER BY 2 DESC;

-- name: DoctorSchedules :many
-- DoctorSchedules lists the schedules whose tick is overdue.
SELECT s.kind, s.name, (extract(epoch FROM clock_timestamp() - s.next_at) * 1000000)::bigint AS late_us
FROM jobgen.schedules s WHERE s.next_at < clock_timestamp() - sqlc.arg(late_us)::bigint * interval '1 microsecond' ORDER BY s.next_at LIMIT 100;

-- name: DoctorPrivileges :many
-- DoctorPrivileges lists what roles lack that a worker or jobctl needs.
SELECT r.rolname::text AS role, p.privilege::text AS privilege, c.relkind::text AS relkind, c.relname::text AS name
FROM pg_catalog.pg_roles r CROSS JOIN pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace CROSS JOIN LATERAL (
  SELECT u.privilege FROM unnest(CASE WHEN c.relkind = 'S' THEN '{USAGE}'
    ELSE CASE WHEN c.relname IN ('schema_version', 'compatibility') THEN '{SELECT}' ELSE '{SELECT,INSERT,UPDATE,DELETE}' END END::text[]) AS u(privilege)
) p
WHERE r.rolname = ANY(@roles::text[]) AND n.nspname = 'jobgen' AND c.relkind IN ('r', 'S') AND c.relname <> 'schema_version_id_seq'
  AND NOT CASE WHEN c.relkind = 'S' THEN has_sequence_privilege(r.oid, c.oid, p.privilege) ELSE has_table_privilege(r.oid, c.oid, p.privilege) END
ORDER BY 1, 3 DESC, 2, 4;

-- name: DoctorUsage :many
-- DoctorUsage lists the roles that may not use the schema at all.
SELECT r.rolname::text AS role FROM pg_catalog.pg_roles r
WHERE r.rolname = ANY(@roles::text[]) AND EXISTS (SELECT FROM pg_catalog.pg_namespace n WHERE n.nspname = 'jobgen' AND NOT has_schema_privilege(r.oid, n.oid, 'USAGE'));

-- name: DoctorCheckpoints :one
-- DoctorCheckpoints counts checkpoints by what asked for them. Since 17 they are in a view of their own.
SELECT coalesce((to_jsonb(b) ->> 'checkpoints_timed')::bigint, -1)::bigint AS timed, coalesce((to_jsonb(b) ->> 'checkpoints_req')::bigint, 0)::bigint AS requested,
       coalesce((extract(epoch FROM clock_timestamp() - b.stats_reset) * 1000000)::bigint, 0)::bigint AS counted_us
FROM pg_catalog.pg_stat_bgwriter b;

-- name: DoctorCheckpoints17 :one
SELECT coalesce(c.num_timed, 0)::bigint AS timed, coalesce(c.num_requested, 0)::bigint AS requested,
       coalesce((extract(epoch FROM clock_timestamp() - c.stats_reset) * 1000000)::bigint, 0)::bigint AS counted_us
FROM pg_catalog.pg_stat_checkpointer c;

-- name: DoctorVersions :many
-- DoctorVersions reads what goose has noted.
SELECT v.version_id, v.is_applied FROM jobgen.schema_version v ORDER BY v.id;

-- name: DoctorWidths :many
-- DoctorWidths is how long a row is on average, by the planner's statistics.
SELECT s.tablename::text AS name, sum(s.avg_width)::bigint AS width FROM pg_catalog.pg_stats s WHERE s.schemaname = 'jobgen' GROUP BY 1;
