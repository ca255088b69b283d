-- name: Cancel :many
-- Cancel ends jobs that wait or are dead: in one statement they leave jobs, stand in job_archive, and their keys are free.
-- Of those that run it notes the wish in the row, where the statement that ends the attempt meets it, and tells their
-- workers. It waits for no job's row: one that somebody else has locked is owned by lock, if job_start says so, and its
-- worker is told; else it is locked, as a rule for a moment, and the caller asks again. Its own job in a handler's transaction
-- that has it locked (jobgen.job) runs as well. A row that is changed while this
-- runs is locked first (found), so that DELETE and UPDATE see one form of it. Served by the primary keys (owned is LATERAL:
-- as a join, a plan made while the tables were empty walked all jobs) and by job_result_job: a job that has not ended is named by
-- the arbiter row of its key alone, and by kinds and keys such a plan read all results of the kinds. A record that is there
-- already is that of another job, whose id has been drawn again because the sequence was set back by hand: the newer one stays.
WITH found AS MATERIALIZED (
  SELECT j.id, j.status FROM jobgen.jobs j
  WHERE j.id = ANY(@ids::bigint[]) AND (cardinality(@kinds::text[]) = 0 OR j.kind = ANY(@kinds::text[]))
    AND (cardinality(@statuses::text[]) = 0 OR j.status = ANY(@statuses::text[]))
    AND j.id IS DISTINCT FROM nullif(current_setting('jobgen.job', true), '')::bigint
  FOR UPDATE SKIP LOCKED
), ended AS (
  DELETE FROM jobgen.jobs j
  WHERE j.id = ANY(ARRAY(SELECT found.id FROM found WHERE found.status <> 'running'))
  RETURNING j.id, j.queue, j.kind, j.key, j.version, j.attempt, j.crashes, j.payload, j.headers, j.created_at
), freed AS (
  DELETE FROM jobgen.job_result r
  WHERE r.job_id = ANY(ARRAY(SELECT ended.id FROM ended WHERE ended.key IS NOT NULL)) AND left(r.key, 4) <> 'job:' AND r.finished_at IS NULL
), archived AS (
  INSERT INTO jobgen.job_archive (job_id, status, queue, kind, key, version, attempt, crashes, payload, headers, reason, created_at, expires_at)
  SELECT ended.id, 'cancelled', ended.queue, ended.kind, ended.key, ended.version, ended.attempt, ended.crashes, ended.payload, ended.headers,
         nullif(@reason::text, ''), ended.created_at, clock_timestamp() + sqlc.arg(keep_us)::bigint * interval '1 microsecond'
  FROM ended
  ON CONFLICT (job_id) DO UPDATE
  SET (status, queue, kind, key, version, attempt, crashes, payload, headers, reason, created_at, started_at, worker_id, finished_at, expires_at)
    = (EXCLUDED.status, EXCLUDED.queue, EXCLUDED.kind, EXCLUDED.key, EXCLUDED.version, EXCLUDED.attempt, EXCLUDED.crashes, EXCLUDED.payload,
       EXCLUDED.headers, EXCLUDED.reason, EXCLUDED.created_at, EXCLUDED.started_at, EXCLUDED.worker_id, EXCLUDED.finished_at, EXCLUDED.expires_at)
), history AS (
  INSERT INTO jobgen.job_attempt (job_id, attempt, fence, worker_id, started_at, outcome, error)
  SELECT ended.id, ended.attempt, 0, '00000000-0000-0000-0000-000000000000', clock_timestamp(), 'cancelled', @reason::text FROM ended
), asked AS (
  UPDATE jobgen.jobs j
  SET cancel_reason = coalesce(j.cancel_reason, @reason::text)
  WHERE j.id = ANY(ARRAY(SELECT found.id FROM found WHERE found.status = 'running'))
  RETURNING j.id, j.worker_id
), owned AS MATERIALIZED (
  SELECT j.id, l.worker_id
  FROM jobgen.jobs j CROSS JOIN LATERAL (
    SELECT s.worker_id FROM jobgen.job_start s WHERE s.job_id = j.id ORDER BY s.started_at DESC LIMIT 1
  ) l
  WHERE j.id = ANY(@ids::bigint[]) AND NOT j.id = ANY(ARRAY(SELECT found.id FROM found))
    AND (cardinality(@statuses::text[]) = 0 OR 'running' = ANY(@statuses::text[]))
    AND (cardinality(@kinds::text[]) = 0 OR j.kind = ANY(@kinds::text[]))
), told AS (
  INSERT INTO jobgen.job_cancel AS c (job_id, worker_id, reason)
  SELECT t.id, t.worker_id, @reason::text FROM (SELECT * FROM asked UNION ALL SELECT * FROM owned) t ORDER BY t.id
  ON CONFLICT (job_id) DO UPDATE SET worker_id = EXCLUDED.worker_id
  RETURNING c.worker_id
), notified AS MATERIALIZED (
  SELECT pg_notify('jobgen_' || n.worker_id::text, 'control') FROM (SELECT DISTINCT told.worker_id FROM told) n
)
SELECT j.id, (CASE WHEN j.id IN (SELECT ended.id FROM ended) THEN 'cancelled'
                   WHEN j.id IN (SELECT asked.id FROM asked) OR j.id IN (SELECT owned.id FROM owned) THEN 'asked'
                   ELSE 'locked' END)::text AS answer
FROM jobgen.jobs j
WHERE j.id = ANY(@ids::bigint[]) AND (cardinality(@kinds::text[]) = 0 OR j.kind = ANY(@kinds::text[]))
  AND (SELECT count(*) FROM notified) >= 0;

-- name: CancelHeld :many
-- CancelHeld ends holds that are not to go on: somebody has asked for it, or their deadline leaves no time. One whose handler
-- was not called gets its attempt back. Each pair (id, fence) is matched exactly, as in Fail. Served by the primary keys.
WITH ended AS (
  DELETE FROM jobgen.jobs j
  WHERE j.id = ANY(@ids::bigint[]) AND j.fence = (@fences::bigint[])[array_position(@ids::bigint[], j.id)]
    AND j.worker_id = @worker_id::uuid
  RETURNING j.id, j.queue, j.kind, j.key, j.version, j.attempt, j.crashes, j.payload, j.headers, j.created_at, j.fence, j.claimed_at,
    array_position(@ids::bigint[], j.id) AS at,
    CASE WHEN j.cancel_reason IS NOT NULL THEN j.cancel_reason
         WHEN j.deadline <= clock_timestamp() THEN 'its deadline has passed'
         ELSE 'its next attempt would come after its deadline' END AS reason
), freed AS (
  DELETE FROM jobgen.job_result r
  WHERE r.job_id = ANY(ARRAY(SELECT ended.id FROM ended WHERE ended.key IS NOT NULL)) AND left(r.key, 4) <> 'job:' AND r.finished_at IS NULL
), archived AS (
  INSERT INTO jobgen.job_archive (job_id, status, queue, kind, key, version, attempt, crashes, payload, headers, reason, created_at, started_at, worker_id, expires_at)
  SELECT ended.id, 'cancelled', ended.queue, ended.kind, ended.key, ended.version, greatest(ended.attempt - (NOT (@started::bool[])[ended.at])::int, 0),
         ended.crashes, ended.payload, ended.headers, nullif(ended.reason, ''), ended.created_at,
         CASE WHEN (@started::bool[])[ended.at] THEN ended.claimed_at END, CASE WHEN (@started::bool[])[ended.at] THEN @worker_id::uuid END,
         clock_timestamp() + sqlc.arg(keep_us)::bigint * interval '1 microsecond'
  FROM ended
  ON CONFLICT (job_id) DO UPDATE
  SET (status, queue, kind, key, version, attempt, crashes, payload, headers, reason, created_at, started_at, worker_id, finished_at, expires_at)
    = (EXCLUDED.status, EXCLUDED.queue, EXCLUDED.kind, EXCLUDED.key, EXCLUDED.version, EXCLUDED.attempt, EXCLUDED.crashes, EXCLUDED.payload,
       EXCLUDED.headers, EXCLUDED.reason, EXCLUDED.created_at, EXCLUDED.started_at, EXCLUDED.worker_id, EXCLUDED.finished_at, EXCLUDED.expires_at)
), history AS (
  INSERT INTO jobgen.job_attempt (job_id, attempt, fence, worker_id, started_at, outcome, error)
  SELECT ended.id, greatest(ended.attempt - (NOT (@started::bool[])[ended.at])::int, 0), ended.fence, @worker_id::uuid,
         coalesce(ended.claimed_at, clock_timestamp()), 'cancelled', concat_ws(': ', nullif(ended.reason, ''), nullif((@errors::text[])[ended.at], ''))
  FROM ended
), heard AS (
  DELETE FROM jobgen.job_cancel c WHERE c.job_id = ANY(ARRAY(SELECT ended.id FROM ended))
)
SELECT ended.id, ended.reason::text AS reason FROM ended;

-- name: Archived :many
-- Archived finds jobs that have left jobs and stay on record. Without kinds, whatever their kind.
SELECT a.job_id, a.status, a.queue, a.kind, a.key, a.version, a.attempt, a.crashes, a.payload, a.headers,
       coalesce(a.reason, '')::text AS reason, a.created_at, a.started_at, a.worker_id, a.finished_at, a.expires_at
FROM jobgen.job_archive a
WHERE a.job_id = ANY(@ids::bigint[]) AND (cardinality(@kinds::text[]) = 0 OR a.kind = ANY(@kinds::text[]));
