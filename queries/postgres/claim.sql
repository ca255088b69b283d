-- name: Claim :many
-- Claim gives up to n queued jobs to one worker, under one new fence, if the worker's own lease still stands.
-- Locks the rows it takes, and no others: each range stops at its own limit (n, where the worker has none for its queue),
-- and the LIMIT around them at n in all.
-- The inner query runs once (InitPlan), whatever the plan. Its row locks check the newest form of each row and keep it as it is, so
-- the UPDATE goes by the ids alone. (A literal there that implies jobs_claim's predicate, such as NOT dead, lets a generic plan
-- walk the whole index: 330 to 430 ms on a million rows.) Each range is an index range of jobs_claim from its mark to now(), so that neither jobs scheduled for later nor
-- those that run, nor the dead entries of finished ones, are walked. A sweep starts all ranges at the left end, one sweep at a
-- time. The UPDATE is HOT: it must change no column that an index mentions. In the same statement the claim is noted in claims, and
-- those of @spent, of which this worker holds nothing any more, are forgotten, each by a probe of its own: fence = ANY(@spent) became a
-- walk over all claims that the worker ever had, as far as a snapshot that is held keeps them from being cleaned away.
-- recorded: there is nothing to do, because the key's work is on record, or the key was handed over to a newer job (Replace).
WITH me AS MATERIALIZED (
  SELECT nextval('jobgen.fence') AS fence
  FROM jobgen.workers w
  WHERE w.id = @worker_id::uuid AND w.lost_at IS NULL AND w.lease_until > clock_timestamp()
    AND (NOT @sweep::bool OR pg_try_advisory_xact_lock(hashtextextended('jobgen.sweep', 0)))
), picked AS MATERIALIZED (
  SELECT me.fence, ARRAY(
  SELECT c.id
  FROM (SELECT unnest(@queues::text[]) AS queue,
               unnest(@priorities::smallint[]) AS priority,
               unnest(@mark_ats::timestamptz[]) AS mark_at,
               unnest(@mark_ids::bigint[]) AS mark_id,
               unnest(@limits::int[]) AS most) m
  CROSS JOIN LATERAL (
    SELECT q.id FROM jobgen.jobs q
    WHERE NOT q.dead AND q.crashes < 2 AND q.worker_id IS NULL AND q.queue = m.queue AND q.priority = m.priority
      AND (q.run_at, q.id) > (m.mark_at, m.mark_id) AND q.run_at <= now()
      AND q.kind = ANY(@kinds::text[])
      AND (q.version = 1 OR q.version <= (@versions::int[])[array_position(@kinds::text[], q.kind)])
    ORDER BY q.run_at NULLS FIRST, q.id -- as in jobs_claim
    LIMIT m.most
    FOR UPDATE SKIP LOCKED
  ) c
  LIMIT @n
  )::bigint[] AS ids
  FROM me
), noted AS (
  INSERT INTO jobgen.claims (worker_id, fence, ids)
  SELECT @worker_id::uuid, picked.fence, picked.ids FROM picked WHERE picked.ids <> '{}'
), forgotten AS (
  DELETE FROM jobgen.claims s WHERE s.ctid = ANY(ARRAY(
    SELECT c.ctid FROM (SELECT unnest(@spent::bigint[]) AS fence) f CROSS JOIN LATERAL (
      SELECT o.ctid FROM jobgen.claims o WHERE o.worker_id = @worker_id::uuid AND o.fence = f.fence OFFSET 0
    ) c
  ))
)
UPDATE jobgen.jobs j
SET status = 'running', fence = (SELECT picked.fence FROM picked), attempt = attempt + 1, worker_id = @worker_id::uuid, claimed_at = clock_timestamp()
WHERE j.id = ANY((SELECT picked.ids FROM picked)::bigint[])
RETURNING j.id, j.fence, j.queue, j.kind, j.version, j.priority, j.run_at, j.attempt, j.max_attempts, j.crashes, j.key,
  j.payload, j.headers, j.deadline, j.cancel_reason, now()::timestamptz AS db_now,
  (j.key IS NOT NULL AND EXISTS (
    SELECT FROM jobgen.job_result r WHERE r.kind = j.kind AND r.key = j.key AND (r.finished_at IS NOT NULL OR r.job_id > j.id)
  ))::bool AS recorded;

-- name: ClaimSuspect :many
-- ClaimSuspect is Claim for one job that has been running in two lost workers or more; the caller holds nothing else. What is spent
-- the next Claim forgets.
WITH me AS MATERIALIZED (
  SELECT nextval('jobgen.fence') AS fence
  FROM jobgen.workers w
  WHERE w.id = @worker_id::uuid AND w.lost_at IS NULL AND w.lease_until > clock_timestamp()
), picked AS MATERIALIZED (
  SELECT me.fence, ARRAY(
  SELECT q.id FROM jobgen.jobs q
  WHERE NOT q.dead AND q.crashes >= 2 AND q.worker_id IS NULL AND q.queue = ANY(@queues::text[]) AND q.run_at <= now()
    AND q.kind = ANY(@kinds::text[])
    AND (q.version = 1 OR q.version <= (@versions::int[])[array_position(@kinds::text[], q.kind)])
  ORDER BY q.priority DESC, q.run_at, q.id
  LIMIT 1
  FOR UPDATE SKIP LOCKED
  )::bigint[] AS ids
  FROM me
), noted AS (
  INSERT INTO jobgen.claims (worker_id, fence, ids)
  SELECT @worker_id::uuid, picked.fence, picked.ids FROM picked WHERE picked.ids <> '{}'
)
UPDATE jobgen.jobs j
SET status = 'running', fence = (SELECT picked.fence FROM picked), attempt = attempt + 1, worker_id = @worker_id::uuid, claimed_at = clock_timestamp()
WHERE j.id = ANY((SELECT picked.ids FROM picked)::bigint[])
RETURNING j.id, j.fence, j.queue, j.kind, j.version, j.priority, j.run_at, j.attempt, j.max_attempts, j.crashes, j.key,
  j.payload, j.headers, j.deadline, j.cancel_reason, now()::timestamptz AS db_now,
  (j.key IS NOT NULL AND EXISTS (
    SELECT FROM jobgen.job_result r WHERE r.kind = j.kind AND r.key = j.key AND (r.finished_at IS NOT NULL OR r.job_id > j.id)
  ))::bool AS recorded;

-- name: Held :many
-- Held lists what a worker holds, and with id 0 the claims of which it holds nothing. A probe of jobs by id for each job that
-- its claims name.
SELECT coalesce(j.id, 0)::bigint AS id, c.fence
FROM jobgen.claims c LEFT JOIN LATERAL (
  SELECT h.id FROM jobgen.jobs h
  WHERE h.id = ANY(c.ids) AND h.fence = c.fence AND h.worker_id = c.worker_id
  OFFSET 0
) j ON true
WHERE c.worker_id = @worker_id::uuid;

-- name: SuspectWaiting :one
-- SuspectWaiting tells whether a suspect is due that this worker could run. Served by jobs_suspect.
SELECT EXISTS (
  SELECT FROM jobgen.jobs q
  WHERE NOT q.dead AND q.crashes >= 2 AND q.worker_id IS NULL AND q.queue = ANY(@queues::text[]) AND q.run_at <= now()
    AND q.kind = ANY(@kinds::text[])
    AND (q.version = 1 OR q.version <= (@versions::int[])[array_position(@kinds::text[], q.kind)])
);

-- name: NextDue :one
-- NextDue tells in how many microseconds the next job becomes due, at most @within_us: from the marks on, 0 if one is due
-- already, of whatever kind; or with @later, of those that are not due yet. One probe of jobs_claim for each range, which
-- also walks the entries of running jobs to the right of the mark. Nothing is subtracted from infinity, which somebody may have
-- written to put a job off for good: that would fail, for all of them.
SELECT greatest(least(@within_us::bigint, coalesce(min(extract(epoch FROM greatest(least(d.run_at, '9999-12-31Z'), '0001-01-01Z') - now()) * 1000000), @within_us::bigint)), 0)::bigint AS us
FROM (SELECT unnest(@queues::text[]) AS queue,
             unnest(@priorities::smallint[]) AS priority,
             unnest(@mark_ats::timestamptz[]) AS mark_at,
             unnest(@mark_ids::bigint[]) AS mark_id) m
CROSS JOIN LATERAL (
  SELECT q.run_at FROM jobgen.jobs q
  WHERE NOT q.dead AND q.crashes < 2 AND q.queue = m.queue AND q.priority = m.priority AND q.worker_id IS NULL
    AND (q.run_at, q.id) > (CASE WHEN @later::bool THEN now() ELSE m.mark_at END, CASE WHEN @later::bool THEN 9223372036854775807 ELSE m.mark_id END)
  ORDER BY q.run_at NULLS FIRST, q.id
  LIMIT 1
) d;
