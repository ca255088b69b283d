-- name: ListJobs :many
-- ListJobs reads jobs from the newest id down. Empty filters mean all.
SELECT id, status, queue, kind, version, key, priority, attempt, max_attempts, crashes, run_at, created_at, claimed_at, worker_id,
       coalesce(left(last_error, 300), '')::text AS last_error
FROM jobgen.jobs
WHERE (cardinality(@statuses::text[]) = 0 OR status = ANY(@statuses::text[]))
  AND (cardinality(@kinds::text[]) = 0 OR kind = ANY(@kinds::text[]))
  AND (cardinality(@queues::text[]) = 0 OR queue = ANY(@queues::text[]))
  AND (cardinality(@ids::bigint[]) = 0 OR id = ANY(@ids::bigint[]))
  AND id < @before::bigint
ORDER BY id DESC
LIMIT @n;

-- name: ListDead :many
-- ListDead is ListJobs for dead jobs only: what is asked for in an incident, over a long queue. For each kind that has
-- dead jobs it walks jobs_dead from the newest id down, n rows at most. (ListJobs walks the primary key, past all that is
-- queued: 320 ms on a million jobs, 1 s when it also names a kind; this takes 13 ms, jobctl's start included.)
WITH RECURSIVE kinds AS (
  (SELECT d.kind FROM jobgen.jobs d WHERE d.dead ORDER BY d.kind LIMIT 1)
  UNION ALL
  SELECT (SELECT d.kind FROM jobgen.jobs d WHERE d.dead AND d.kind > k.kind ORDER BY d.kind LIMIT 1)
  FROM kinds k WHERE k.kind IS NOT NULL
)
SELECT j.id, j.status, j.queue, j.kind, j.version, j.key, j.priority, j.attempt, j.max_attempts, j.crashes, j.run_at,
       j.created_at, j.claimed_at, j.worker_id, coalesce(left(j.last_error, 300), '')::text AS last_error
FROM kinds k CROSS JOIN LATERAL (
  SELECT * FROM jobgen.jobs d
  WHERE d.dead AND d.kind = k.kind AND d.id < @before::bigint
    AND (cardinality(@queues::text[]) = 0 OR d.queue = ANY(@queues::text[]))
  ORDER BY d.id DESC
  LIMIT @n
) j
WHERE cardinality(@kinds::text[]) = 0 OR k.kind = ANY(@kinds::text[])
ORDER BY j.id DESC
LIMIT @n;

-- name: ShowJob :one
SELECT id, status, queue, kind, version, key, priority, attempt, max_attempts, crashes, run_at, created_at, claimed_at,
       worker_id, payload, headers, coalesce(last_error, '')::text AS last_error, deadline, coalesce(snoozes, 0)::int AS snoozes, cancel_reason
FROM jobgen.jobs WHERE id = @id;

-- name: ShowStart :many
-- ShowStart tells who runs a job that is owned by lock, whose row says nothing of it: the worker that has marked its start, if
-- it lives.
SELECT s.worker_id, s.started_at
FROM jobgen.job_start s JOIN jobgen.workers w ON w.id = s.worker_id
WHERE s.job_id = @id AND w.lost_at IS NULL AND w.lease_until > clock_timestamp()
ORDER BY s.started_at DESC
LIMIT 1;

-- name: ShowResults :many
-- ShowResults finds what is recorded of jobs by their ids alone, without the results themselves unless @whole. Served by
-- job_result_job for a job with a key. For one without, the key is known but not the kind: the recursion walks the kinds,
-- one probe of the primary key for each, and then probes each for the reserved key (by LIMIT 1, whatever the plan).
WITH RECURSIVE kinds AS (
  (SELECT r.kind FROM jobgen.job_result r ORDER BY r.kind LIMIT 1)
  UNION ALL
  SELECT (SELECT r.kind FROM jobgen.job_result r WHERE r.kind > k.kind ORDER BY r.kind LIMIT 1)
  FROM kinds k WHERE k.kind IS NOT NULL
)
SELECT f.kind, f.key, f.job_id, (CASE WHEN @whole::bool THEN f.result END)::jsonb AS result, f.finished_at, f.expires_at
FROM (
  SELECT a.kind, a.key, a.job_id, a.result, a.finished_at, a.expires_at FROM (SELECT unnest(@ids::bigint[]) AS id) x CROSS JOIN kinds k CROSS JOIN LATERAL (
    SELECT r.kind, r.key, r.job_id, r.result, r.finished_at, r.expires_at FROM jobgen.job_result r WHERE r.kind = k.kind AND r.key = 'job:' || x.id AND r.job_id = x.id LIMIT 1
  ) a
  UNION ALL
  SELECT b.kind, b.key, b.job_id, b.result, b.finished_at, b.expires_at FROM jobgen.job_result b WHERE b.job_id = ANY(@ids::bigint[]) AND left(b.key, 4) <> 'job:'
) f
ORDER BY f.job_id, f.finished_at DESC NULLS LAST;

-- name: ShowAttempts :many
SELECT attempt, fence, worker_id, started_at, ended_at, outcome, error
FROM jobgen.job_attempt WHERE job_id = @job_id ORDER BY ended_at, attempt;

-- name: RequeueDead :many
-- RequeueDead gives dead jobs a fresh start, at most n, in id order. Rows that somebody else has locked are skipped. The
-- arbiter row of a key still names its dead job, so a requeue can meet no conflict. Served by jobs_dead.
WITH requeued AS (
  UPDATE jobgen.jobs
  SET status = 'queued', attempt = 0, crashes = 0, snoozes = NULL, cancel_reason = NULL, run_at = clock_timestamp()
  WHERE id = ANY(ARRAY(
    SELECT d.id FROM jobgen.jobs d
    WHERE d.dead AND (cardinality(@kinds::text[]) = 0 OR d.kind = ANY(@kinds::text[]))
      AND (cardinality(@queues::text[]) = 0 OR d.queue = ANY(@queues::text[]))
      AND (cardinality(@ids::bigint[]) = 0 OR d.id = ANY(@ids::bigint[]))
    ORDER BY d.kind, d.id
    LIMIT @n
    FOR UPDATE SKIP LOCKED
  ))
  RETURNING id, queue
), woken AS MATERIALIZED (
  SELECT pg_notify('jobgen_' || w.worker_id::text, '')
  FROM jobgen.wake w WHERE w.queue IN (SELECT requeued.queue FROM requeued)
)
SELECT requeued.id FROM requeued WHERE (SELECT count(*) FROM woken) >= 0;

-- name: RequeueKind :many
-- RequeueKind is RequeueDead for the next n dead jobs of a kind above @after, up to @upto. A run that goes on from the
-- last id it got takes each job once: one that dies again meanwhile is behind it, and the run ends. An index range of
-- jobs_dead under any plan, so that the entries of what is requeued already are not walked again.
WITH requeued AS (
  UPDATE jobgen.jobs
  SET status = 'queued', attempt = 0, crashes = 0, snoozes = NULL, cancel_reason = NULL, run_at = clock_timestamp()
  WHERE id = ANY(ARRAY(
    SELECT d.id FROM jobgen.jobs d
    WHERE d.dead AND d.kind = @kind AND d.id > @after::bigint AND d.id <= @upto::bigint
    ORDER BY d.id
    LIMIT @n
    FOR UPDATE SKIP LOCKED
  ))
  RETURNING id, queue
), woken AS MATERIALIZED (
  SELECT pg_notify('jobgen_' || w.worker_id::text, '')
  FROM jobgen.wake w WHERE w.queue IN (SELECT requeued.queue FROM requeued)
)
SELECT requeued.id FROM requeued WHERE (SELECT count(*) FROM woken) >= 0;

-- name: CountDead :one
-- CountDead tells what RequeueKind would take. Served by jobs_dead.
SELECT count(*) AS n, coalesce(max(id), 0)::bigint AS newest_id,
       coalesce(min(created_at), clock_timestamp())::timestamptz AS oldest, clock_timestamp()::timestamptz AS db_now
FROM jobgen.jobs WHERE dead AND kind = @kind;

-- name: DeadKinds :many
-- DeadKinds lists the kinds that have dead jobs, by one probe of jobs_dead for each.
WITH RECURSIVE kinds AS (
  (SELECT d.kind FROM jobgen.jobs d WHERE d.dead ORDER BY d.kind LIMIT 1)
  UNION ALL
  SELECT (SELECT d.kind FROM jobgen.jobs d WHERE d.dead AND d.kind > k.kind ORDER BY d.kind LIMIT 1)
  FROM kinds k WHERE k.kind IS NOT NULL
)
SELECT k.kind::text AS kind FROM kinds k WHERE k.kind IS NOT NULL;

-- name: HandledKinds :many
-- HandledKinds lists the kinds that workers on record handle.
SELECT DISTINCT unnest(w.kinds)::text AS kind FROM jobgen.workers w ORDER BY 1;

-- name: Now :one
SELECT clock_timestamp()::timestamptz AS db_now;

-- name: AppliedMigrations :many
-- AppliedMigrations reads goose's table. The migrations' own sessions are in UTC, and so is what goose writes there.
SELECT version_id, (tstamp AT TIME ZONE 'UTC')::timestamptz AS applied_at
FROM jobgen.schema_version WHERE is_applied AND version_id > 0 ORDER BY version_id;
