-- name: PurgeResults :one
-- PurgeResults removes up to n rows that have expired; rows that somebody else has locked are skipped. now() and not
-- clock_timestamp(), which would be no index condition: each purge would read all that has not expired yet. By ctid, which
-- leaves no choice: (kind, key) IN (SELECT … LIMIT n), planned while the table was empty, ran the subquery again for every row of
-- the table (28 million buffers for 220,000 rows) and removed ten times n; with arrays of kinds and keys, such a plan read all
-- results of the kinds. It tells up to where it has got: with that as @after, the next chunk does not walk
-- what the ones before have left dead, which while a snapshot is held made each thousand rows a millisecond slower.
WITH doomed AS MATERIALIZED (
  SELECT r.ctid AS at, r.expires_at FROM jobgen.job_result r
  WHERE r.expires_at <= now() AND r.expires_at >= coalesce(sqlc.narg(after)::timestamptz, '-infinity')
  ORDER BY r.expires_at
  LIMIT @n
  FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM jobgen.job_result
  WHERE ctid = ANY(ARRAY(SELECT doomed.at FROM doomed)) AND expires_at <= now()
  RETURNING job_id
)
SELECT count(*)::bigint AS n,
  coalesce((SELECT max(doomed.expires_at) FROM doomed WHERE doomed.expires_at > '-infinity'), 'epoch')::timestamptz AS upto
FROM gone;

-- name: PurgeAttempts :one
-- PurgeAttempts removes the old history of up to n jobs. The index on ended_at is a BRIN: the table is append-only, so
-- what is old lies together, though not in order. upto and @after are as in PurgeResults.
WITH doomed AS MATERIALIZED (
  SELECT o.job_id, o.ended_at FROM jobgen.job_attempt o
  WHERE o.ended_at < now() - sqlc.arg(keep_us)::bigint * interval '1 microsecond'
    AND o.ended_at >= coalesce(sqlc.narg(after)::timestamptz, '-infinity')
  LIMIT @n
), gone AS (
  DELETE FROM jobgen.job_attempt
  WHERE job_id = ANY(ARRAY(SELECT doomed.job_id FROM doomed)) AND ended_at < now() - sqlc.arg(keep_us)::bigint * interval '1 microsecond'
  RETURNING job_id
)
SELECT count(*)::bigint AS n,
  coalesce((SELECT max(doomed.ended_at) FROM doomed WHERE doomed.ended_at > '-infinity'), 'epoch')::timestamptz AS upto
FROM gone;

-- name: PurgeSamples :execrows
-- PurgeSamples removes up to n old rows that have been summed. Served by the primary key.
DELETE FROM jobgen.samples
WHERE ctid = ANY(ARRAY(
  SELECT s.ctid FROM jobgen.samples s
  WHERE s.minute > '-infinity' AND s.minute < now() - sqlc.arg(keep_us)::bigint * interval '1 microsecond' AND s.summed
  ORDER BY s.minute
  LIMIT @n
  FOR UPDATE SKIP LOCKED
));

-- name: PurgeLooks :execrows
-- PurgeLooks removes old looks, of which there is one for each minute.
DELETE FROM jobgen.looks l
WHERE l.minute < now() - sqlc.arg(keep_us)::bigint * interval '1 microsecond';

-- name: PurgeWorkers :execrows
-- PurgeWorkers forgets lost workers that hold nothing any more, after a day. Their claims go as Reclaim finds them spent.
DELETE FROM jobgen.workers w
WHERE w.lost_at < clock_timestamp() - interval '1 day'
  AND NOT EXISTS (SELECT FROM jobgen.claims c WHERE c.worker_id = w.id OFFSET 0);

-- name: PurgeArchive :one
-- PurgeArchive removes up to n jobs that have been on record for long enough, as PurgeResults does, and for its reasons. Served by
-- job_archive_expiry.
WITH doomed AS MATERIALIZED (
  SELECT a.ctid AS at, a.expires_at FROM jobgen.job_archive a
  WHERE a.expires_at <= now() AND a.expires_at >= coalesce(sqlc.narg(after)::timestamptz, '-infinity')
  ORDER BY a.expires_at
  LIMIT @n
  FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM jobgen.job_archive
  WHERE ctid = ANY(ARRAY(SELECT doomed.at FROM doomed)) AND expires_at <= now()
  RETURNING job_id
)
SELECT count(*)::bigint AS n,
  coalesce((SELECT max(doomed.expires_at) FROM doomed WHERE doomed.expires_at > '-infinity'), 'epoch')::timestamptz AS upto
FROM gone;

-- name: PurgeDead :one
-- PurgeDead looks at the next n dead jobs from (kind, id) on, in the order of jobs_dead, and removes those that died longer ago
-- than that, with the arbiter rows of their keys: a key is free again then. It tells of which kinds it removed how many, and how
-- far it has got: kind and id of the last that it looked at; looked < n: to the end. When a job died is its run_at, for which there
-- is no index: one more would cost each enqueue something. It waits for nobody: a job that somebody has locked, or whose arbiter
-- row somebody has (Replace, in a transaction of the application's), is left for the next time. Arbiters are locked first, as by
-- Replace, which takes a job that is locked though its arbiter is not for one that is about to run, and leaves it as it is.
WITH looked AS MATERIALIZED (
  SELECT d.id, d.kind, d.run_at FROM jobgen.jobs d
  WHERE d.dead AND (d.kind, d.id) > (@after_kind::text, @after_id::bigint)
  ORDER BY d.kind, d.id
  LIMIT @n
), old AS MATERIALIZED (
  SELECT j.id, j.key FROM jobgen.jobs j
  WHERE j.id = ANY(ARRAY(
    SELECT looked.id FROM looked WHERE looked.run_at < now() - sqlc.arg(keep_us)::bigint * interval '1 microsecond'
  )) AND j.dead
), arbiter AS MATERIALIZED (
  SELECT r.ctid AS at, r.job_id FROM jobgen.job_result r
  WHERE r.job_id = ANY(ARRAY(SELECT old.id FROM old WHERE old.key IS NOT NULL)) AND left(r.key, 4) <> 'job:' AND r.finished_at IS NULL
  FOR UPDATE SKIP LOCKED
), busy AS MATERIALIZED (
  SELECT r.job_id FROM jobgen.job_result r
  WHERE r.job_id = ANY(ARRAY(SELECT old.id FROM old WHERE old.key IS NOT NULL)) AND left(r.key, 4) <> 'job:' AND r.finished_at IS NULL
    AND r.job_id NOT IN (SELECT arbiter.job_id FROM arbiter)
), doomed AS MATERIALIZED (
  SELECT j.id FROM jobgen.jobs j
  WHERE j.id = ANY(ARRAY(SELECT old.id FROM old WHERE old.id NOT IN (SELECT busy.job_id FROM busy)))
    AND j.dead AND j.run_at < now() - sqlc.arg(keep_us)::bigint * interval '1 microsecond'
  FOR UPDATE SKIP LOCKED
), freed AS (
  DELETE FROM jobgen.job_result r
  WHERE r.ctid = ANY(ARRAY(SELECT arbiter.at FROM arbiter WHERE arbiter.job_id IN (SELECT doomed.id FROM doomed)))
), gone AS (
  DELETE FROM jobgen.jobs j
  WHERE j.id = ANY(ARRAY(SELECT doomed.id FROM doomed))
  RETURNING j.kind
), counted AS (
  SELECT gone.kind, count(*) AS n FROM gone GROUP BY gone.kind
)
SELECT (SELECT count(*) FROM looked)::bigint AS looked,
  coalesce((SELECT array_agg(counted.kind) FROM counted), '{}')::text[] AS kinds,
  coalesce((SELECT array_agg(counted.n) FROM counted), '{}')::bigint[] AS counts,
  coalesce((SELECT l.kind FROM looked l ORDER BY l.kind DESC, l.id DESC LIMIT 1), '')::text AS last_kind,
  coalesce((SELECT l.id FROM looked l ORDER BY l.kind DESC, l.id DESC LIMIT 1), 0)::bigint AS last_id;

-- name: PurgeSchedules :many
-- PurgeSchedules forgets schedules whose tick nobody has enqueued for that long: no program handles their kind any more. (One that
-- does enqueues it within seconds.)
DELETE FROM jobgen.schedules s
WHERE s.next_at < now() - sqlc.arg(keep_us)::bigint * interval '1 microsecond'
RETURNING s.kind, s.name;

-- name: PurgeCancels :execrows
-- PurgeCancels removes up to n messages about jobs that have ended. Reads the whole table, which is small, and empty as a rule.
DELETE FROM jobgen.job_cancel
WHERE job_id = ANY(ARRAY(
  SELECT x.job_id FROM jobgen.job_cancel x
  WHERE NOT EXISTS (SELECT FROM jobgen.jobs j WHERE j.id = x.job_id OFFSET 0)
  LIMIT @n
  FOR UPDATE SKIP LOCKED
));

-- name: UnheardCancels :many
-- UnheardCancels lists messages to workers that do not run their job any more, although the job is still there: if it is owned
-- by lock, the last one that started it is another, or is lost.
SELECT x.job_id, x.worker_id
FROM jobgen.job_cancel x
WHERE EXISTS (SELECT FROM jobgen.jobs j WHERE j.id = x.job_id AND j.worker_id IS DISTINCT FROM x.worker_id OFFSET 0)
  AND NOT EXISTS (
    SELECT FROM (SELECT s.worker_id FROM jobgen.job_start s WHERE s.job_id = x.job_id ORDER BY s.started_at DESC LIMIT 1) l
    JOIN jobgen.workers w ON w.id = l.worker_id
    WHERE l.worker_id = x.worker_id AND w.lost_at IS NULL
  )
LIMIT @n;

-- name: TakeCancel :one
-- TakeCancel takes such a message away; whoever does asks again.
DELETE FROM jobgen.job_cancel WHERE job_id = @job_id AND worker_id = @worker_id RETURNING reason;
