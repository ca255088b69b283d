-- name: PurgeResults :execrows
-- Each purge removes at most n rows that have expired; rows another purge has locked are skipped.
DELETE FROM jobgen.job_result
WHERE (kind, key) IN (
  SELECT r.kind, r.key FROM jobgen.job_result r
  WHERE r.expires_at <= clock_timestamp()
  ORDER BY r.expires_at
  LIMIT @n
  FOR UPDATE SKIP LOCKED
);

-- name: PurgeAttempts :execrows
-- The index is a BRIN: the table is append-only, so what is old lies together.
DELETE FROM jobgen.job_attempt a
WHERE (a.job_id, a.fence) IN (
  SELECT o.job_id, o.fence FROM jobgen.job_attempt o
  WHERE o.ended_at < clock_timestamp() - sqlc.arg(keep_us)::bigint * interval '1 microsecond'
  LIMIT @n
) AND a.ended_at < clock_timestamp() - sqlc.arg(keep_us)::bigint * interval '1 microsecond';

-- name: PurgeSamples :execrows
DELETE FROM jobgen.samples s
WHERE s.minute < clock_timestamp() - sqlc.arg(keep_us)::bigint * interval '1 microsecond';

-- name: PurgeWorkers :execrows
-- PurgeWorkers forgets lost workers that hold nothing any more, after a day.
DELETE FROM jobgen.workers w
WHERE w.lost_at < clock_timestamp() - interval '1 day'
  AND NOT EXISTS (SELECT FROM jobgen.jobs j WHERE j.worker_id = w.id AND j.status = 'running');
