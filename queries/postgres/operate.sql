-- name: ListJobs :many
-- ListJobs reads jobs from the newest id down. Empty filters mean all.
SELECT id, status, queue, kind, key, priority, attempt, max_attempts, crashes, run_at, created_at, claimed_at, worker_id,
       coalesce(left(last_error, 300), '')::text AS last_error
FROM jobgen.jobs
WHERE (cardinality(@statuses::text[]) = 0 OR status = ANY(@statuses::text[]))
  AND (cardinality(@kinds::text[]) = 0 OR kind = ANY(@kinds::text[]))
  AND (cardinality(@queues::text[]) = 0 OR queue = ANY(@queues::text[]))
  AND id < @before::bigint
ORDER BY id DESC
LIMIT @n;

-- name: ShowJob :one
SELECT id, status, queue, kind, version, key, priority, attempt, max_attempts, crashes, run_at, created_at, claimed_at,
       worker_id, payload, headers, coalesce(last_error, '')::text AS last_error
FROM jobgen.jobs WHERE id = @id;

-- name: ShowResult :one
-- ShowResult finds what is recorded of a job that has left jobs.
SELECT kind, key, job_id, result, finished_at, expires_at FROM jobgen.job_result
WHERE job_id = @id ORDER BY finished_at DESC NULLS LAST LIMIT 1;

-- name: ShowAttempts :many
SELECT attempt, fence, worker_id, started_at, ended_at, outcome, error
FROM jobgen.job_attempt WHERE job_id = @job_id ORDER BY ended_at, attempt;

-- name: RequeueDead :many
-- RequeueDead gives dead jobs a fresh start, at most n, in id order. Rows that somebody else has locked are skipped. The
-- arbiter row of a key still names its dead job, so a requeue can meet no conflict. Served by jobs_dead.
WITH requeued AS (
  UPDATE jobgen.jobs
  SET status = 'queued', attempt = 0, crashes = 0, run_at = clock_timestamp()
  WHERE id = ANY(ARRAY(
    SELECT d.id FROM jobgen.jobs d
    WHERE d.status = 'dead' AND (cardinality(@kinds::text[]) = 0 OR d.kind = ANY(@kinds::text[]))
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
