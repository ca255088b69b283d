-- name: Claim :many
-- Claim gives up to n queued jobs to one worker, under one new fence, if the worker's own lease still stands.
-- Locks the rows it takes, and no others: each range stops at its own limit (n, where the worker has none for its queue),
-- and the LIMIT around them at n in all.
-- The inner query runs once (InitPlan), whatever the plan. The outer re-check must not be a literal that implies
-- jobs_claim's predicate (status = 'queued'): that lets a generic plan walk the whole index (330 to 430 ms on a million
-- rows). Each range is an index range of jobs_claim from its mark to now(), so that neither jobs scheduled for later nor
-- the dead entries of finished ones are walked. A sweep starts all ranges at the left end, one sweep at a time.
-- recorded: there is nothing to do, because the key's work is on record, or the key was handed over to a newer job (Replace).
WITH me AS MATERIALIZED (
  SELECT nextval('jobgen.fence') AS fence
  FROM jobgen.workers w
  WHERE w.id = @worker_id::uuid AND w.lost_at IS NULL AND w.lease_until > clock_timestamp()
    AND (NOT @sweep::bool OR pg_try_advisory_xact_lock(hashtextextended('jobgen.sweep', 0)))
)
UPDATE jobgen.jobs j
SET status = 'running', fence = me.fence, attempt = attempt + 1, worker_id = @worker_id::uuid, claimed_at = clock_timestamp()
FROM me
WHERE j.worker_id IS NULL AND j.id = ANY(ARRAY(
  SELECT c.id
  FROM (SELECT unnest(@queues::text[]) AS queue,
               unnest(@priorities::smallint[]) AS priority,
               unnest(@mark_ats::timestamptz[]) AS mark_at,
               unnest(@mark_ids::bigint[]) AS mark_id,
               unnest(@limits::int[]) AS most) m
  CROSS JOIN LATERAL (
    SELECT q.id FROM jobgen.jobs q
    WHERE q.status = 'queued' AND q.crashes < 2 AND q.queue = m.queue AND q.priority = m.priority
      AND (q.run_at, q.id) > (m.mark_at, m.mark_id) AND q.run_at <= now()
      AND q.kind = ANY(@kinds::text[])
      AND (q.version = 1 OR q.version <= (@versions::int[])[array_position(@kinds::text[], q.kind)])
    ORDER BY q.run_at NULLS FIRST, q.id -- as in jobs_claim
    LIMIT m.most
    FOR UPDATE SKIP LOCKED
  ) c
  LIMIT @n
))
RETURNING j.id, j.fence, j.queue, j.kind, j.version, j.priority, j.run_at, j.attempt, j.max_attempts, j.crashes, j.key,
  j.payload, j.headers, j.deadline, j.cancel_reason, now()::timestamptz AS db_now,
  (j.key IS NOT NULL AND EXISTS (
    SELECT FROM jobgen.job_result r WHERE r.kind = j.kind AND r.key = j.key AND (r.finished_at IS NOT NULL OR r.job_id > j.id)
  ))::bool AS recorded;

-- name: ClaimSuspect :many
-- ClaimSuspect is Claim for one job that has been running in two lost workers or more; the caller holds nothing else.
WITH me AS MATERIALIZED (
  SELECT nextval('jobgen.fence') AS fence
  FROM jobgen.workers w
  WHERE w.id = @worker_id::uuid AND w.lost_at IS NULL AND w.lease_until > clock_timestamp()
)
UPDATE jobgen.jobs j
SET status = 'running', fence = me.fence, attempt = attempt + 1, worker_id = @worker_id::uuid, claimed_at = clock_timestamp()
FROM me
WHERE j.worker_id IS NULL AND j.id = ANY(ARRAY(
  SELECT q.id FROM jobgen.jobs q
  WHERE q.status = 'queued' AND q.crashes >= 2 AND q.queue = ANY(@queues::text[]) AND q.run_at <= now()
    AND q.kind = ANY(@kinds::text[])
    AND (q.version = 1 OR q.version <= (@versions::int[])[array_position(@kinds::text[], q.kind)])
  ORDER BY q.priority DESC, q.run_at, q.id
  LIMIT 1
  FOR UPDATE SKIP LOCKED
))
RETURNING j.id, j.fence, j.queue, j.kind, j.version, j.priority, j.run_at, j.attempt, j.max_attempts, j.crashes, j.key,
  j.payload, j.headers, j.deadline, j.cancel_reason, now()::timestamptz AS db_now,
  (j.key IS NOT NULL AND EXISTS (
    SELECT FROM jobgen.job_result r WHERE r.kind = j.kind AND r.key = j.key AND (r.finished_at IS NOT NULL OR r.job_id > j.id)
  ))::bool AS recorded;

-- name: Held :many
-- Held lists what a worker holds. Served by jobs_held.
SELECT id, fence FROM jobgen.jobs WHERE status = 'running' AND worker_id = @worker_id::uuid;

-- name: SuspectWaiting :one
-- SuspectWaiting tells whether a suspect is due that this worker could run. Served by jobs_suspect.
SELECT EXISTS (
  SELECT FROM jobgen.jobs q
  WHERE q.status = 'queued' AND q.crashes >= 2 AND q.queue = ANY(@queues::text[]) AND q.run_at <= now()
    AND q.kind = ANY(@kinds::text[])
    AND (q.version = 1 OR q.version <= (@versions::int[])[array_position(@kinds::text[], q.kind)])
);

-- name: NextDue :one
-- NextDue tells in how many microseconds the next job becomes due, at most @within_us. One probe of jobs_claim for each
-- range. Jobs already due are not its concern.
SELECT least(@within_us::bigint, coalesce(min(extract(epoch FROM d.run_at - now()) * 1000000), @within_us::bigint))::bigint AS us
FROM (SELECT unnest(@queues::text[]) AS queue, unnest(@priorities::smallint[]) AS priority) m
CROSS JOIN LATERAL (
  SELECT q.run_at FROM jobgen.jobs q
  WHERE q.status = 'queued' AND q.crashes < 2 AND q.queue = m.queue AND q.priority = m.priority AND q.run_at > now()
  ORDER BY q.run_at NULLS FIRST, q.id
  LIMIT 1
) d;
