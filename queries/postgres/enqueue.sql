-- name: Enqueue :one
-- Enqueue inserts one job without a key and, if workers that handle it ask to be woken, wakes one of them, any: they share
-- the load, and one that has died takes with it only some of the wake-ups.
-- Locks nothing but its own row. pg_notify is reached only when a wake row is there, because a NOTIFY makes the commit
-- take a lock that all notifying commits share. run_at is clock_timestamp(), not now(): the jobs of one transaction keep
-- their order. Of a deadline at a time and one in so long, the earlier counts.
WITH ins AS (
  INSERT INTO jobgen.jobs (queue, kind, version, payload, headers, priority, max_attempts, run_at, deadline)
  VALUES (@queue, @kind, @version, (@payload::text)::jsonb, (sqlc.narg(headers)::text)::jsonb, @priority, @max_attempts,
          greatest(sqlc.narg(at)::timestamptz, clock_timestamp() + sqlc.arg(delay_us)::bigint * interval '1 microsecond'),
          least(sqlc.narg(deadline)::timestamptz, clock_timestamp() + sqlc.narg(within_us)::bigint * interval '1 microsecond'))
  RETURNING id
), woken AS (
  SELECT pg_notify('jobgen_' || i.worker_id::text, '')
  FROM (SELECT w.worker_id FROM jobgen.wake w WHERE w.queue = @queue AND @kind = ANY(w.kinds) ORDER BY random() LIMIT 1) i
)
SELECT ins.id, (SELECT count(*) FROM woken) AS woken FROM ins;

-- name: EnqueueKeyed :one
-- EnqueueKeyed inserts the arbiter row of the key and, only if that succeeds, the job. No row: the key is taken; KeyState
-- tells by what, in a statement (and snapshot) of its own. Waits for another transaction that is inserting the same key.
-- Served by job_result's primary key.
WITH k AS (
  INSERT INTO jobgen.job_result (kind, key, job_id)
  VALUES (@kind, @key, nextval('jobgen.job_id'))
  ON CONFLICT (kind, key) DO NOTHING
  RETURNING job_id
), ins AS (
  INSERT INTO jobgen.jobs (id, queue, kind, key, version, payload, headers, priority, max_attempts, run_at, deadline)
  SELECT k.job_id, @queue, @kind, @key, @version, (@payload::text)::jsonb, (sqlc.narg(headers)::text)::jsonb, @priority, @max_attempts,
         greatest(sqlc.narg(at)::timestamptz, clock_timestamp() + sqlc.arg(delay_us)::bigint * interval '1 microsecond'),
         least(sqlc.narg(deadline)::timestamptz, clock_timestamp() + sqlc.narg(within_us)::bigint * interval '1 microsecond')
  FROM k
  RETURNING id
), woken AS (
  SELECT pg_notify('jobgen_' || i.worker_id::text, '')
  FROM ins, LATERAL (SELECT w.worker_id FROM jobgen.wake w WHERE w.queue = @queue AND @kind = ANY(w.kinds) ORDER BY random() LIMIT 1) i
)
SELECT ins.id, (SELECT count(*) FROM woken) AS woken FROM ins;

-- name: EnqueueMany :many
-- EnqueueMany inserts jobs of one kind in one statement and returns their ids in the caller's order. Wakes as many idle
-- workers as the jobs may need. (A LEFT JOIN to the count would be removed by the planner, and the NOTIFY with it.)
WITH input AS MATERIALIZED (
  SELECT nextval('jobgen.job_id') AS id, e.payload
  FROM (SELECT unnest(@payloads::text[]) AS payload) e
), ins AS (
  INSERT INTO jobgen.jobs (id, queue, kind, version, payload, headers, priority, max_attempts, run_at, deadline)
  SELECT input.id, @queue, @kind, @version, input.payload::jsonb, (sqlc.narg(headers)::text)::jsonb, @priority, @max_attempts,
         greatest(sqlc.narg(at)::timestamptz, clock_timestamp() + sqlc.arg(delay_us)::bigint * interval '1 microsecond'),
         least(sqlc.narg(deadline)::timestamptz, clock_timestamp() + sqlc.narg(within_us)::bigint * interval '1 microsecond')
  FROM input
), woken AS MATERIALIZED (
  SELECT pg_notify('jobgen_' || i.worker_id::text, '')
  FROM (SELECT w.worker_id FROM jobgen.wake w WHERE w.queue = @queue AND @kind = ANY(w.kinds) ORDER BY random() LIMIT @wake::int) i
)
SELECT input.id::bigint AS id FROM input WHERE (SELECT count(*) FROM woken) >= 0 ORDER BY input.id;

-- name: Draw :one
-- Draw gives what jobs that are to be copied in need of the database: their ids, in order, and the times of all of them. (With
-- defaults that call clock_timestamp(), COPY inserts row by row.) deadline counts only if one was given.
SELECT clock.now::timestamptz AS now,
       greatest(sqlc.narg(at)::timestamptz, clock.now + sqlc.arg(delay_us)::bigint * interval '1 microsecond')::timestamptz AS run_at,
       coalesce(least(sqlc.narg(deadline)::timestamptz, clock.now + sqlc.narg(within_us)::bigint * interval '1 microsecond'), clock.now)::timestamptz AS deadline,
       ARRAY(SELECT nextval('jobgen.job_id') FROM generate_series(1, @n::int))::bigint[] AS ids
FROM (SELECT clock_timestamp() AS now) clock;

-- name: Wake :exec
-- Wake wakes as many idle workers as the jobs that were copied in may need.
SELECT pg_notify('jobgen_' || i.worker_id::text, '')
FROM (SELECT w.worker_id FROM jobgen.wake w WHERE w.queue = @queue AND @kind::text = ANY(w.kinds) ORDER BY random() LIMIT @wake::int) i;

-- name: EnqueueManyKeyed :many
-- EnqueueManyKeyed is EnqueueMany for a kind with a key. The arbiter rows are inserted in key order, so that two callers
-- with the same keys wait for each other instead of deadlocking. An element without a new job has inserted = false.
WITH input AS MATERIALIZED (
  SELECT nextval('jobgen.job_id') AS id, e.key, e.payload
  FROM (SELECT unnest(@keys::text[]) AS key, unnest(@payloads::text[]) AS payload) e
), k AS (
  INSERT INTO jobgen.job_result (kind, key, job_id)
  SELECT @kind, input.key, input.id FROM input ORDER BY input.key COLLATE "C", input.id
  ON CONFLICT (kind, key) DO NOTHING
  RETURNING job_id
), ins AS (
  INSERT INTO jobgen.jobs (id, queue, kind, key, version, payload, headers, priority, max_attempts, run_at, deadline)
  SELECT input.id, @queue, @kind, input.key, @version, input.payload::jsonb, (sqlc.narg(headers)::text)::jsonb, @priority, @max_attempts,
         greatest(sqlc.narg(at)::timestamptz, clock_timestamp() + sqlc.arg(delay_us)::bigint * interval '1 microsecond'),
         least(sqlc.narg(deadline)::timestamptz, clock_timestamp() + sqlc.narg(within_us)::bigint * interval '1 microsecond')
  FROM input JOIN k ON k.job_id = input.id
  RETURNING id
), woken AS MATERIALIZED (
  SELECT pg_notify('jobgen_' || i.worker_id::text, '')
  FROM (SELECT w.worker_id FROM jobgen.wake w WHERE w.queue = @queue AND @kind = ANY(w.kinds) ORDER BY random() LIMIT @wake::int) i
  WHERE EXISTS (SELECT FROM ins)
)
SELECT input.id::bigint AS id, (ins.id IS NOT NULL)::bool AS inserted
FROM input LEFT JOIN ins ON ins.id = input.id
WHERE (SELECT count(*) FROM woken) >= 0
ORDER BY input.id;

-- name: Revive :one
-- Revive gives the dead job of a key a new payload and a fresh start. No row: it is no longer dead.
WITH revived AS (
  UPDATE jobgen.jobs
  SET status = 'queued', queue = @queue, version = @version, payload = (@payload::text)::jsonb, headers = (sqlc.narg(headers)::text)::jsonb, priority = @priority,
      attempt = 0, max_attempts = @max_attempts, crashes = 0,
      run_at = greatest(sqlc.narg(at)::timestamptz, clock_timestamp() + sqlc.arg(delay_us)::bigint * interval '1 microsecond'),
      deadline = least(sqlc.narg(deadline)::timestamptz, clock_timestamp() + sqlc.narg(within_us)::bigint * interval '1 microsecond'), snoozes = NULL, cancel_reason = NULL
  WHERE id = @id AND status = 'dead' AND kind = @kind AND key = @key::text
  RETURNING id
), woken AS (
  SELECT pg_notify('jobgen_' || i.worker_id::text, '')
  FROM revived, LATERAL (SELECT w.worker_id FROM jobgen.wake w WHERE w.queue = @queue AND @kind = ANY(w.kinds) ORDER BY random() LIMIT 1) i
)
SELECT revived.id, (SELECT count(*) FROM woken) AS woken FROM revived;

-- name: Replace :one
-- Replace gives the job of a taken key new content if it waits, or is dead. If it does neither (it runs, or has finished),
-- @hand hands the key over to a new job; what the other one leaves to do is then dropped by Claim. No row: the key is another
-- job's by now, or free; KeyState tells.
--
-- It locks the key's arbiter row first, so that callers go one after the other, and then the job's row only if nobody has
-- it: with the arbiter in hand, whoever has it is about to run the job (a claim in flight, or a transaction that owns it by
-- lock), and waiting for that could be waiting for a whole handler. In the transaction that owns it (jobgen.job) it runs as well.
-- The arbiter is locked by a subquery that runs before the job is read (InitPlan). Served by the primary keys.
--
-- run_at is never put to the left of a worker's mark. A job that is due keeps its place: in a queue that is behind, a steady
-- stream would keep it at the end for ever. (While it is locked here a claim may pass it by; a sweep finds it.) In another
-- range (queue, priority) it has no place to keep.
--
-- @debounce: @delay_us from now, but at most @most_us after the job was first enqueued; what has been tried since begins anew.
WITH arbiter AS MATERIALIZED (
  SELECT r.job_id FROM jobgen.job_result r
  WHERE r.kind = @kind AND r.key = @key AND r.job_id = @job_id
  FOR NO KEY UPDATE
), waiting AS MATERIALIZED (
  SELECT j.id, j.status = 'dead' AS dead,
         CASE WHEN @debounce::bool AND (j.attempt > 0 OR j.snoozes > 0 OR j.status = 'dead') THEN clock_timestamp() ELSE j.created_at END AS created_at,
         j.status = 'queued' AND j.queue = @queue AND j.priority = @priority AND j.run_at <= clock_timestamp() AS due
  FROM jobgen.jobs j
  WHERE j.id = (SELECT arbiter.job_id FROM arbiter) AND j.status IN ('queued', 'dead') AND j.kind = @kind AND j.key = @key
    AND j.id IS DISTINCT FROM nullif(current_setting('jobgen.job', true), '')::bigint
  FOR UPDATE SKIP LOCKED
), content AS MATERIALIZED (
  SELECT w.id, w.dead, w.created_at, w.due,
         CASE WHEN @debounce::bool
              THEN least(clock_timestamp() + sqlc.arg(delay_us)::bigint * interval '1 microsecond',
                         w.created_at + sqlc.arg(most_us)::bigint * interval '1 microsecond')
              ELSE greatest(sqlc.narg(at)::timestamptz, clock_timestamp() + sqlc.arg(delay_us)::bigint * interval '1 microsecond')
         END AS run_at
  FROM waiting w
), replaced AS (
  UPDATE jobgen.jobs j
  SET status = 'queued', queue = @queue, version = @version, payload = (@payload::text)::jsonb, headers = (sqlc.narg(headers)::text)::jsonb,
      priority = @priority, attempt = 0, max_attempts = @max_attempts, crashes = CASE WHEN c.dead THEN 0 ELSE j.crashes END,
      deadline = least(sqlc.narg(deadline)::timestamptz, clock_timestamp() + sqlc.narg(within_us)::bigint * interval '1 microsecond'),
      snoozes = NULL, cancel_reason = NULL, created_at = c.created_at,
      run_at = CASE WHEN c.due AND c.run_at <= clock_timestamp() THEN j.run_at ELSE greatest(c.run_at, clock_timestamp()) END
  FROM content c
  WHERE j.id = c.id
  RETURNING j.id
), unasked AS (
  DELETE FROM jobgen.job_cancel c WHERE c.job_id = ANY(ARRAY(SELECT replaced.id FROM replaced))
), handed AS (
  UPDATE jobgen.job_result r
  SET job_id = nextval('jobgen.job_id'), finished_at = NULL, expires_at = NULL, result = NULL
  WHERE @hand::bool AND r.kind = @kind AND r.key = @key AND EXISTS (SELECT FROM arbiter) AND NOT EXISTS (SELECT FROM waiting)
  RETURNING r.job_id
), ins AS (
  INSERT INTO jobgen.jobs (id, queue, kind, key, version, payload, headers, priority, max_attempts, run_at, deadline)
  SELECT handed.job_id, @queue, @kind, @key, @version, (@payload::text)::jsonb, (sqlc.narg(headers)::text)::jsonb, @priority, @max_attempts,
         clock_timestamp() + sqlc.arg(delay_us)::bigint * interval '1 microsecond',
         least(sqlc.narg(deadline)::timestamptz, clock_timestamp() + sqlc.narg(within_us)::bigint * interval '1 microsecond')
  FROM handed
  RETURNING id
), woken AS MATERIALIZED (
  SELECT pg_notify('jobgen_' || i.worker_id::text, '')
  FROM (SELECT w.worker_id FROM jobgen.wake w WHERE w.queue = @queue AND @kind = ANY(w.kinds) ORDER BY random() LIMIT 1) i
  WHERE EXISTS (SELECT FROM replaced) OR EXISTS (SELECT FROM ins)
)
SELECT coalesce((SELECT ins.id FROM ins), arbiter.job_id)::bigint AS id,
       EXISTS (SELECT FROM waiting WHERE NOT waiting.dead)::bool AS replaced,
       (EXISTS (SELECT FROM waiting WHERE waiting.dead) OR EXISTS (SELECT FROM ins))::bool AS enqueued
FROM arbiter
WHERE (SELECT count(*) FROM woken) >= 0;

-- name: ForgetKey :execrows
-- ForgetKey removes the arbiter row of a key whose result has expired, or whose job is gone without one (removed by
-- hand). Both are checked again here: another caller may have been first.
DELETE FROM jobgen.job_result r
WHERE r.kind = @kind AND r.key = @key AND r.job_id = @job_id
  AND (r.expires_at <= clock_timestamp()
       OR r.finished_at IS NULL AND NOT EXISTS (SELECT FROM jobgen.jobs j WHERE j.id = r.job_id));
