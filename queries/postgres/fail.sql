-- name: Fail :many
-- Fail ends attempts that did not succeed: back to the queue after a delay, or dead when no attempt is left or trying
-- again is pointless. Each pair (id, fence) is matched exactly. Served by the primary key.
WITH outcome AS (
  SELECT unnest(@ids::bigint[]) AS id, unnest(@fences::bigint[]) AS fence, unnest(@delays_us::bigint[]) AS delay_us,
         unnest(@permanents::bool[]) AS permanent, unnest(@errors::text[]) AS error
), failed AS (
  UPDATE jobgen.jobs j
  SET status = CASE WHEN outcome.permanent OR j.attempt >= j.max_attempts THEN 'dead' ELSE 'queued' END,
      run_at = clock_timestamp() + outcome.delay_us * interval '1 microsecond',
      fence = 0, worker_id = NULL, last_error = outcome.error
  FROM outcome
  WHERE j.id = outcome.id AND j.fence = outcome.fence AND j.worker_id = @worker_id::uuid
  RETURNING j.id, j.attempt, j.status, j.claimed_at, outcome.fence, outcome.error
), history AS (
  INSERT INTO jobgen.job_attempt (job_id, attempt, fence, worker_id, started_at, outcome, error)
  SELECT failed.id, failed.attempt, failed.fence, @worker_id::uuid, failed.claimed_at, 'failed', failed.error FROM failed
)
SELECT failed.id, (failed.status = 'dead')::bool AS dead FROM failed;

-- name: Release :many
-- Release gives back holds whose work has not started or was interrupted by a shutdown; the attempt is returned. Current
-- holds only, as in Complete. run_at does not go back: nothing is put to the left of a worker's mark.
UPDATE jobgen.jobs
SET status = 'queued', attempt = attempt - 1, fence = 0, worker_id = NULL, run_at = greatest(run_at, clock_timestamp())
WHERE id = ANY(@ids::bigint[]) AND fence = ANY(@fences::bigint[]) AND worker_id = @worker_id::uuid
RETURNING id;
