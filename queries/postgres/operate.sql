-- name: ListJobs :many
-- ListJobs reads jobs by their ids, newest first. A job owned by lock is running if the worker that has marked its start lives.
SELECT j.id, (CASE WHEN s.worker_id IS NULL THEN j.status ELSE 'running' END)::text AS status, j.queue, j.kind, j.version, j.key, j.priority, j.attempt,
       j.max_attempts, j.crashes, j.run_at, j.created_at, coalesce(s.started_at, j.claimed_at, 'epoch')::timestamptz AS claimed_at,
       coalesce(s.worker_id, j.worker_id, '00000000-0000-0000-0000-000000000000')::uuid AS worker_id,
       coalesce(left(j.last_error, 300), '')::text AS last_error
FROM jobgen.jobs j LEFT JOIN LATERAL (
  SELECT o.worker_id, o.started_at
  FROM jobgen.job_start o JOIN jobgen.workers w ON w.id = o.worker_id
  WHERE o.job_id = j.id AND j.status = 'queued' AND w.lost_at IS NULL AND w.lease_until > clock_timestamp()
  ORDER BY o.started_at DESC
  LIMIT 1
) s ON true
WHERE j.id = ANY(@ids::bigint[])
ORDER BY j.id DESC;

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
-- ShowAttempts tells of each attempt on record, with where it ran for as long as its worker is.
SELECT a.attempt, a.fence, a.worker_id, a.started_at, a.ended_at, a.outcome, a.error, coalesce(w.host, '')::text AS host, coalesce(w.pid, 0)::int AS pid
FROM jobgen.job_attempt a LEFT JOIN jobgen.workers w ON w.id = a.worker_id
WHERE a.job_id = @job_id ORDER BY a.ended_at, a.attempt;

-- name: ShowWorker :one
SELECT w.id, w.host, w.pid, w.build, w.started_at, w.beat_at, w.lease_until, w.lost_at, (w.lost_at IS NULL AND w.lease_until > clock_timestamp())::bool AS alive
FROM jobgen.workers w WHERE w.id = @id;

-- name: DrawnID :one
-- DrawnID is the last id that has been drawn; 0: none.
SELECT coalesce(pg_sequence_last_value('jobgen.job_id'), 0)::bigint AS id;

-- name: WhyWaits :one
-- WhyWaits tells what stands between a queued job and its start: what has been decided about its queue, how many live workers
-- poll the queue, handle the kind there, and read the version, and how many due jobs are before it, counted up to @most. Those are index
-- ranges of jobs_claim, one for each priority; workers is small.
SELECT (SELECT q.paused_at FROM jobgen.queues q WHERE q.name = @queue) AS paused_at,
       count(*)::int AS polls, count(*) FILTER (WHERE @kind::text = ANY(w.kinds))::int AS handles,
       count(*) FILTER (WHERE @kind::text = ANY(w.kinds)
         AND (@version::int = 1 OR w.versions IS NULL OR w.versions[array_position(w.kinds, @kind::text)] >= @version::int))::int AS reads,
       (SELECT count(*) FROM (
          SELECT FROM generate_series(9, @priority::int, -1) p CROSS JOIN LATERAL (
            SELECT FROM jobgen.jobs a
            WHERE a.queue = @queue AND a.priority = p AND NOT a.dead AND a.crashes < 2 AND a.worker_id IS NULL AND a.run_at <= now()
              AND (p > @priority::int OR (a.run_at, a.id) < (@run_at::timestamptz, @id::bigint))
            ORDER BY a.run_at NULLS FIRST, a.id
            LIMIT @most
          ) x
          LIMIT @most
        ) n)::int AS ahead
FROM jobgen.workers w
WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND @queue = ANY(w.queues);

-- name: RequeueJobs :many
-- RequeueJobs gives dead jobs a fresh start, due @delay_us from now and spread over @spread_us: to the right of every mark. Rows that somebody else has
-- locked are skipped, and what is not dead is left alone. A key is asked of its arbiter: as a rule it still names the dead job. If it
-- names another that has not ended, or a result that has not expired, the job stays dead, and requeued is false: Claim would
-- drop it. If it names nobody's (there is no row, its result has expired, its job is gone), it is this job's again; of two in one call, the newer one's.
-- Locks jobs first, then arbiters in the order of their keys, then the samples in theirs, which count them as arrived. Served by the primary keys.
WITH found AS MATERIALIZED (
  SELECT j.id, j.kind, j.key FROM jobgen.jobs j
  WHERE j.id = ANY(@ids::bigint[]) AND j.dead
  FOR UPDATE SKIP LOCKED
), keyed AS MATERIALIZED (
  SELECT f.id, f.kind, f.key, (r.job_id = f.id AND r.finished_at IS NULL) AS own,
         (r.job_id IS NULL OR r.expires_at <= clock_timestamp()
          OR r.finished_at IS NULL AND NOT EXISTS (SELECT FROM jobgen.jobs o WHERE o.id = r.job_id OFFSET 0)) AS free
  FROM found f LEFT JOIN LATERAL (
    SELECT a.job_id, a.finished_at, a.expires_at FROM jobgen.job_result a WHERE a.kind = f.kind AND a.key = f.key OFFSET 0
  ) r ON true
  WHERE f.key IS NOT NULL
), taken AS (
  INSERT INTO jobgen.job_result AS r (kind, key, job_id)
  SELECT DISTINCT ON (k.kind, k.key) k.kind, k.key, k.id FROM keyed k WHERE k.free ORDER BY k.kind, k.key, k.id DESC
  ON CONFLICT (kind, key) DO UPDATE
  SET job_id = EXCLUDED.job_id, finished_at = NULL, expires_at = NULL, result = NULL
  WHERE r.expires_at <= clock_timestamp() OR r.finished_at IS NULL AND NOT EXISTS (SELECT FROM jobgen.jobs o WHERE o.id = r.job_id)
  RETURNING r.job_id
), requeued AS (
  UPDATE jobgen.jobs
  SET status = 'queued', attempt = 0, crashes = 0, snoozes = NULL, cancel_reason = NULL,
      run_at = clock_timestamp() + (sqlc.arg(delay_us)::bigint + sqlc.arg(spread_us)::bigint * random()) * interval '1 microsecond'
  WHERE id = ANY(ARRAY(
    SELECT found.id FROM found WHERE found.key IS NULL
    UNION ALL SELECT keyed.id FROM keyed WHERE keyed.own
    UNION ALL SELECT taken.job_id FROM taken
  ))
  RETURNING id, queue, kind
), sampled AS (
  INSERT INTO jobgen.samples AS s (minute, queue, kind, arrived)
  SELECT date_trunc('minute', now()), requeued.queue, requeued.kind, count(*) FROM requeued GROUP BY 2, 3 ORDER BY 2, 3
  ON CONFLICT (minute, queue, kind) DO UPDATE SET arrived = s.arrived + EXCLUDED.arrived
), woken AS MATERIALIZED (
  SELECT pg_notify('jobgen_' || w.worker_id::text, '')
  FROM jobgen.wake w WHERE w.queue IN (SELECT requeued.queue FROM requeued)
)
SELECT found.id, (found.id IN (SELECT requeued.id FROM requeued))::bool AS requeued
FROM found WHERE (SELECT count(*) FROM woken) >= 0;

-- name: KeyHolders :many
-- KeyHolders tells who has the keys of jobs, of those whose key is not simply their own.
SELECT j.id, r.key, r.job_id AS holder, coalesce(o.status, '')::text AS status, r.finished_at, r.expires_at,
       coalesce(r.expires_at <= clock_timestamp(), false)::bool AS expired
FROM jobgen.jobs j CROSS JOIN LATERAL (
  SELECT a.key, a.job_id, a.finished_at, a.expires_at FROM jobgen.job_result a WHERE a.kind = j.kind AND a.key = j.key OFFSET 0
) r LEFT JOIN LATERAL (
  SELECT h.status FROM jobgen.jobs h WHERE h.id = r.job_id OFFSET 0
) o ON true
WHERE j.id = ANY(@ids::bigint[]) AND j.key IS NOT NULL AND (r.job_id <> j.id OR r.finished_at IS NOT NULL)
ORDER BY j.id;

-- name: DeleteJobs :many
-- DeleteJobs removes jobs for good, if they are as @statuses says (queued, dead): their keys are free, and what is on record of them goes. What stays
-- is who did it, as an attempt. Rows that somebody else has locked are skipped: so is a job owned by lock that runs. The arbiters of keys are
-- locked first, and waited for, as by PurgeDead and for its reason. Served by the primary keys and the indexes by job.
WITH arbiter AS MATERIALIZED (
  SELECT r.ctid AS at, r.job_id FROM jobgen.job_result r
  WHERE r.job_id = ANY(@ids::bigint[]) AND left(r.key, 4) <> 'job:' AND r.finished_at IS NULL
  ORDER BY r.kind, r.key
  FOR UPDATE
), found AS MATERIALIZED (
  SELECT j.id, j.attempt FROM jobgen.jobs j
  WHERE (SELECT count(*) FROM arbiter) >= 0
    AND j.id = ANY(@ids::bigint[]) AND j.status = ANY(@statuses::text[]) AND j.status IN ('queued', 'dead')
  FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM jobgen.jobs j WHERE j.id = ANY(ARRAY(SELECT found.id FROM found)) RETURNING j.id
), freed AS (
  DELETE FROM jobgen.job_result r
  WHERE r.ctid = ANY(ARRAY(SELECT arbiter.at FROM arbiter WHERE arbiter.job_id IN (SELECT found.id FROM found)))
), forgotten AS (
  DELETE FROM jobgen.job_attempt a WHERE a.job_id = ANY(ARRAY(SELECT found.id FROM found))
), unstarted AS (
  DELETE FROM jobgen.job_start s WHERE s.job_id = ANY(ARRAY(SELECT found.id FROM found))
), unasked AS (
  DELETE FROM jobgen.job_cancel c WHERE c.job_id = ANY(ARRAY(SELECT found.id FROM found))
), noted AS (
  INSERT INTO jobgen.job_attempt (job_id, attempt, fence, worker_id, started_at, outcome, error)
  SELECT found.id, found.attempt, 0, '00000000-0000-0000-0000-000000000000', clock_timestamp(), 'deleted',
         concat_ws(': ', 'by database user ' || session_user, nullif(@reason::text, ''))
  FROM found
)
SELECT gone.id FROM gone;

-- name: EditableJob :one
-- EditableJob is what EditJob changes, with the row's version as it was seen.
SELECT j.id, j.status, j.kind, j.key, j.queue, j.priority, j.run_at, j.attempt, j.max_attempts, j.deadline, j.payload, j.xmin::text AS seen,
       clock_timestamp()::timestamptz AS db_now
FROM jobgen.jobs j WHERE j.id = @id;

-- name: EditJob :many
-- EditJob changes a job that waits or is dead, if it is as it was seen. Null leaves as it is. No row: it has changed, or somebody has it locked.
-- run_at is never put to the left of a worker's mark: another time is now at the earliest, and in another range (queue, priority) a job has no place to
-- keep. One that keeps its range keeps its place. (While it is locked here a claim may pass it by; a sweep finds it.) Wakes idle workers of its queue.
WITH found AS MATERIALIZED (
  SELECT j.id FROM jobgen.jobs j
  WHERE j.id = @id AND j.status IN ('queued', 'dead') AND j.xmin::text = @seen::text
  FOR UPDATE SKIP LOCKED
), edited AS (
  UPDATE jobgen.jobs j
  SET payload = coalesce((sqlc.narg(payload)::text)::jsonb, j.payload), queue = coalesce(sqlc.narg(queue), j.queue),
      priority = coalesce(sqlc.narg(priority), j.priority), max_attempts = coalesce(sqlc.narg(max_attempts), j.max_attempts),
      deadline = CASE WHEN @no_deadline::bool THEN NULL ELSE coalesce(sqlc.narg(deadline)::timestamptz, clock_timestamp() + sqlc.narg(within_us)::bigint * interval '1 microsecond', j.deadline) END,
      run_at = CASE
        WHEN coalesce(sqlc.narg(at)::timestamptz, clock_timestamp() + sqlc.narg(delay_us)::bigint * interval '1 microsecond') IS NOT NULL
        THEN greatest(coalesce(sqlc.narg(at)::timestamptz, clock_timestamp() + sqlc.narg(delay_us)::bigint * interval '1 microsecond'), clock_timestamp())
        WHEN j.status = 'queued' AND (coalesce(sqlc.narg(queue), j.queue) <> j.queue OR coalesce(sqlc.narg(priority), j.priority) <> j.priority)
        THEN greatest(j.run_at, clock_timestamp())
        ELSE j.run_at END
  WHERE j.id = ANY(ARRAY(SELECT found.id FROM found))
  RETURNING j.id, j.queue, j.status
), woken AS MATERIALIZED (
  SELECT pg_notify('jobgen_' || w.worker_id::text, '')
  FROM jobgen.wake w WHERE w.queue IN (SELECT edited.queue FROM edited WHERE edited.status = 'queued')
)
SELECT edited.id FROM edited WHERE (SELECT count(*) FROM woken) >= 0;

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
