-- name: MigrationLock :one
-- MigrationLock tells who migrates: who holds the lock of LockMigrations, and for how long.
SELECT l.pid::int AS pid, coalesce(a.application_name, '')::text AS application, coalesce(host(a.client_addr), '')::text AS address,
       coalesce((extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000)::bigint, 0)::bigint AS since_us
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid,
     (SELECT hashtextextended('jobgen.migrate', 0) AS key OFFSET 0) k
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
  AND l.classid = ((k.key >> 32) & 4294967295)::oid AND l.objid = (k.key & 4294967295)::oid
LIMIT 1;

-- name: SchemaOwner :one
-- SchemaOwner is who may migrate; no row: nobody has yet.
SELECT pg_get_userbyid(n.nspowner)::text AS owner, current_user::text AS "user", current_database()::text AS database
FROM pg_catalog.pg_namespace n WHERE n.nspname = 'jobgen';

-- name: LiveWorkers :many
-- LiveWorkers are those that would lose the tables they work on. workers is small.
SELECT w.host, w.pid FROM jobgen.workers w
WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp()
ORDER BY w.host, w.pid;

-- name: LossOfInit :one
-- LossOfInit counts what goes with migration 1, each up to @most.
SELECT (SELECT count(*) FROM (SELECT FROM jobgen.jobs j WHERE NOT j.dead LIMIT @most) x) AS jobs,
       (SELECT count(*) FROM (SELECT FROM jobgen.jobs j WHERE j.dead LIMIT @most) x) AS dead,
       (SELECT count(*) FROM (SELECT FROM jobgen.job_result r LIMIT @most) x) AS results,
       (SELECT count(*) FROM (SELECT FROM jobgen.job_attempt a LIMIT @most) x) AS attempts,
       (SELECT count(*) FROM (SELECT FROM jobgen.samples s LIMIT @most) x) AS samples;

-- name: LossOfSchedules :one
-- LossOfSchedules counts what goes with migration 2.
SELECT count(*) FROM (SELECT FROM jobgen.schedules s LIMIT @most) x;

-- name: LossOfRuntime :one
-- LossOfRuntime counts what goes with migration 3, each up to @most.
SELECT (SELECT count(*) FROM (SELECT FROM jobgen.job_archive a LIMIT @most) x) AS archived,
       (SELECT count(*) FROM (SELECT FROM jobgen.job_cancel c LIMIT @most) x) AS cancels,
       (SELECT count(*) FROM (SELECT FROM jobgen.job_start s LIMIT @most) x) AS starts,
       (SELECT count(*) FROM (SELECT FROM jobgen.queues q LIMIT @most) x) AS queues;
