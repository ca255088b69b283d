-- name: Fail :many
-- Fail ends attempts that did not succeed: back to the queue after a delay, or dead when no attempt is left or trying
-- again is pointless. Each pair (id, fence) is matched exactly. Served by the primary key; a join with the unnested
-- arrays, planned while the table was empty, walked all of it for each flush.
WITH failed AS (
  UPDATE jobgen.jobs j
  SET status = CASE WHEN (@permanents::bool[])[array_position(@ids::bigint[], j.id)] OR j.attempt >= j.max_attempts THEN 'dead' ELSE 'queued' END,
      run_at = clock_timestamp() + (@delays_us::bigint[])[array_position(@ids::bigint[], j.id)] * interval '1 microsecond',
      fence = 0, worker_id = NULL, last_error = (@errors::text[])[array_position(@ids::bigint[], j.id)]
  WHERE j.id = ANY(@ids::bigint[]) AND j.fence = (@fences::bigint[])[array_position(@ids::bigint[], j.id)]
    AND j.worker_id = @worker_id::uuid
  RETURNING j.id, j.attempt, j.status, j.claimed_at, j.last_error, (@fences::bigint[])[array_position(@ids::bigint[], j.id)] AS fence
), history AS (
  INSERT INTO jobgen.job_attempt (job_id, attempt, fence, worker_id, started_at, outcome, error)
  SELECT failed.id, failed.attempt, failed.fence, @worker_id::uuid, coalesce(failed.claimed_at, clock_timestamp()), 'failed', failed.last_error FROM failed
)
SELECT failed.id, (failed.status = 'dead')::bool AS dead FROM failed;

-- name: Release :many
-- Release gives back holds whose work has not started or was interrupted by a shutdown; the attempt is returned. Current
-- holds only, as in Complete. run_at does not go back: nothing is put to the left of a worker's mark. Idle workers are woken.
WITH back AS (
  UPDATE jobgen.jobs
  SET status = 'queued', attempt = greatest(attempt - 1, 0), fence = 0, worker_id = NULL, run_at = greatest(run_at, clock_timestamp())
  WHERE id = ANY(@ids::bigint[]) AND fence = ANY(@fences::bigint[]) AND worker_id = @worker_id::uuid
  RETURNING id, queue
), woken AS MATERIALIZED (
  SELECT pg_notify('jobgen_' || w.worker_id::text, '')
  FROM jobgen.wake w WHERE w.queue IN (SELECT back.queue FROM back)
)
SELECT back.id FROM back WHERE (SELECT count(*) FROM woken) >= 0;
