-- name: Register :exec
-- Register makes a worker known, with its first lease.
INSERT INTO jobgen.workers (id, host, pid, build, queues, kinds, versions, timeouts_us, pooled, slots, running, skew_us, lease_until)
VALUES (@id, @host, @pid, @build, @queues::text[], @kinds::text[], @versions::int[], @timeouts_us::bigint[], @pooled::bool, @slots::int, 0, @skew_us::bigint,
        clock_timestamp() + sqlc.arg(lease_us)::bigint * interval '1 microsecond');

-- name: Heartbeat :one
-- Heartbeat renews a lease and tells which of the holds named are no longer this worker's. renewed is false for a worker
-- that is marked lost, and for one whose lease ran out while this statement waited for the lock on its row: the process
-- that sent it may be long dead. A lease that ran out before the statement arrived, and that nobody has marked lost, is
-- renewed: that is the whole fleet after an outage of the database. The row is locked first, and the lease read after.
-- No fsync is waited for: a server that crashes may forget the renewals of its last moment, and nobody judges before all have had a full lease to
-- come back. What else changes of the worker goes with it: the row is written anyhow.
WITH lazy AS MATERIALIZED (
  SELECT set_config('synchronous_commit', 'off', true) AS off
), me AS MATERIALIZED (
  SELECT w.id, w.lease_until, w.lost_at FROM jobgen.workers w WHERE w.id = @worker_id::uuid FOR UPDATE
), beat AS (
  UPDATE jobgen.workers w
  SET beat_at = clock_timestamp(), lease_until = clock_timestamp() + sqlc.arg(lease_us)::bigint * interval '1 microsecond',
      slots = @slots::int, running = @running::int, stuck = nullif(@stuck::int, 0), skew_us = @skew_us::bigint
  FROM me CROSS JOIN lazy
  WHERE w.id = me.id AND me.lost_at IS NULL AND lazy.off IS NOT NULL
    AND (me.lease_until > clock_timestamp() OR me.lease_until < statement_timestamp())
  RETURNING w.id
)
SELECT EXISTS (SELECT FROM beat) AS renewed,
       clock_timestamp()::timestamptz AS db_now,
       ARRAY(
         SELECT h.id FROM (SELECT unnest(@ids::bigint[]) AS id, unnest(@fences::bigint[]) AS fence) h
         WHERE NOT EXISTS (
           SELECT FROM jobgen.jobs j WHERE j.id = h.id AND j.fence = h.fence AND j.worker_id = @worker_id::uuid
           OFFSET 0 -- keeps it a probe by id; as an anti-join it could become a walk over all of jobs
         )
       )::bigint[] AS gone;

-- name: Leave :execrows
-- Leave removes a worker that holds nothing any more, and its claims.
WITH asleep AS (
  DELETE FROM jobgen.wake a WHERE a.worker_id = @id
), held AS MATERIALIZED (
  SELECT FROM jobgen.claims c CROSS JOIN LATERAL (
    SELECT FROM jobgen.jobs h WHERE h.id = ANY(c.ids) AND h.fence = c.fence AND h.worker_id = c.worker_id LIMIT 1
  ) j
  WHERE c.worker_id = @id LIMIT 1
), forgotten AS (
  DELETE FROM jobgen.claims c WHERE c.worker_id = @id AND NOT EXISTS (SELECT FROM held)
)
DELETE FROM jobgen.workers w
WHERE w.id = @id AND NOT EXISTS (SELECT FROM held);

-- name: GiveUp :exec
-- GiveUp marks a worker lost at its own word, so that what it still holds is taken back at once.
UPDATE jobgen.workers SET lost_at = clock_timestamp() WHERE id = @id AND lost_at IS NULL;

-- name: Sleep :one
-- Sleep says that a worker wants to be woken, and tells how many do for its queues, itself among them, but for those that
-- do so at this moment.
WITH me AS (
  INSERT INTO jobgen.wake (queue, worker_id, kinds)
  SELECT unnest(@queues::text[]), @worker_id::uuid, @kinds::text[]
  ON CONFLICT DO NOTHING
)
SELECT (1 + count(DISTINCT w.worker_id))::int AS asleep
FROM jobgen.wake w WHERE w.queue = ANY(@queues::text[]) AND w.worker_id <> @worker_id::uuid;

-- name: Awake :exec
-- Awake takes that back, and wakes another worker in its place: the last wake-ups may have been for jobs that this one
-- cannot start now.
WITH awake AS (
  DELETE FROM jobgen.wake WHERE worker_id = @worker_id RETURNING queue, kinds
)
SELECT pg_notify('jobgen_' || i.worker_id::text, '')
FROM awake CROSS JOIN LATERAL (
  SELECT w.worker_id FROM jobgen.wake w
  WHERE w.queue = awake.queue AND w.kinds && awake.kinds AND w.worker_id <> @worker_id
  ORDER BY random() LIMIT 1
) i;

-- name: Session :execrows
-- Session sets what the plans of the hot statements rely on, for the rest of the connection. A plan cached while the table
-- was empty became a sequential scan of a million rows (900 ms). A claim that was planned anew for each call turned to a
-- stranger's index on (queue, run_at) with a sort, and walked 20 times as many pages; none of our statements needs to
-- sort much, so an order comes from an index where one has it. After statement_timeout, no statement of a process that is
-- gone can commit. lock_timeout is for the connection that stores outcomes: a row that somebody has locked must not hold
-- up those of other jobs; '0' is none. Times that come as text are read as ISO.
-- It sets nothing unless the session is that of @backend (0: any): behind a pooler it may be anybody's. @is_local is for
-- there: until the end of the transaction.
SELECT set_config('enable_seqscan', 'off', @is_local::bool), set_config('enable_sort', 'off', @is_local::bool),
       set_config('enable_incremental_sort', 'off', @is_local::bool), set_config('plan_cache_mode', 'force_generic_plan', @is_local::bool),
       set_config('jit', 'off', @is_local::bool), set_config('default_transaction_isolation', 'read committed', @is_local::bool),
       set_config('statement_timeout', '30s', @is_local::bool), set_config('lock_timeout', @lock_timeout::text, @is_local::bool),
       set_config('datestyle', 'ISO', @is_local::bool)
WHERE @backend::int IN (0, pg_backend_pid());

-- name: Backend :one
-- Backend tells which process of the server answers.
SELECT pg_backend_pid()::int AS pid;

-- name: SchemaVersion :one
-- SchemaVersion is the newest migration applied.
SELECT coalesce(max(version_id), 0)::bigint AS version, (pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on')::bool AS read_only
FROM jobgen.schema_version WHERE is_applied;

-- name: OldestBeside :one
-- OldestBeside is the oldest schema whose programs go on working beside the one of @version.
SELECT oldest FROM jobgen.compatibility WHERE version = @version;

-- name: LockMigrations :one
-- LockMigrations serialises those who migrate, without waiting: whoever waited for it in a transaction would keep a pooler's
-- connection from the one who has it. The lock ends with the transaction; a session's would be left behind in a pooler's
-- connection.
SELECT pg_try_advisory_xact_lock(hashtextextended('jobgen.migrate', 0))::bool AS locked
FROM (SELECT set_config('idle_in_transaction_session_timeout', '0', true) OFFSET 0) s;

-- name: CreateSchema :exec
-- CreateSchema makes the place for goose's table, before the first migration runs.
CREATE SCHEMA IF NOT EXISTS jobgen;
