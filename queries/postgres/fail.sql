-- name: Fail :many
-- Fail ends attempts that did not succeed: back to the queue after a delay, or dead when no attempt is left or trying
-- again is pointless. A snooze gives the attempt back, up to @max_snoozes of them; each further one is a failure. Each pair
-- (id, fence) is matched exactly. Served by the primary key; a join with the unnested arrays, planned while the table was
-- empty, walked all of it for each flush. What is asked to end, or has no further try before its deadline, is left alone:
-- CancelHeld is for those. (Both in one statement would have to lock all rows first: a row that is changed meanwhile could
-- escape the UPDATE after it had escaped the DELETE.) OFFSET 0 keeps array_position from being computed for each use.
-- The run_at of a dead job is when it died (PurgeDead).
WITH failed AS (
  UPDATE jobgen.jobs j
  SET (status, attempt, snoozes, run_at, last_error) = (
    SELECT CASE WHEN v.permanent OR NOT v.snoozed AND j.attempt >= j.max_attempts THEN 'dead' ELSE 'queued' END,
           CASE WHEN v.snoozed THEN greatest(j.attempt - 1, 0) ELSE j.attempt END,
           CASE WHEN v.snooze THEN coalesce(j.snoozes, 0) + 1 ELSE j.snoozes END,
           clock_timestamp() + CASE WHEN v.permanent OR NOT v.snoozed AND j.attempt >= j.max_attempts THEN 0 ELSE v.delay_us END * interval '1 microsecond',
           CASE WHEN v.snoozed THEN j.last_error
                WHEN v.snooze THEN 'snoozed more than ' || a.max_snoozes || ' times, so this counts as a failed attempt: ' || v.error
                ELSE v.error END
    FROM (
      SELECT a.permanents[p.at] AS permanent, a.snoozes[p.at] AS snooze, a.delays_us[p.at] AS delay_us, a.errors[p.at] AS error,
             a.snoozes[p.at] AND coalesce(j.snoozes, 0) < a.max_snoozes AS snoozed
      FROM (SELECT array_position(a.ids, j.id) AS at OFFSET 0) p
    ) v
  ), fence = 0, worker_id = NULL
  FROM (SELECT @ids::bigint[] AS ids, @permanents::bool[] AS permanents, @snoozes::bool[] AS snoozes, @delays_us::bigint[] AS delays_us,
               @errors::text[] AS errors, sqlc.arg(max_snoozes)::int AS max_snoozes) a
  WHERE j.id = ANY(a.ids) AND j.fence = (@fences::bigint[])[array_position(a.ids, j.id)] AND j.worker_id = @worker_id::uuid
    AND j.cancel_reason IS NULL
    AND (j.deadline IS NULL OR clock_timestamp() + CASE WHEN j.attempt < j.max_attempts
         THEN a.delays_us[array_position(a.ids, j.id)] ELSE 0 END * interval '1 microsecond' < j.deadline)
  RETURNING j.id, j.attempt, j.status, j.snoozes, j.claimed_at, j.last_error, array_position(a.ids, j.id) AS at
), told AS (
  SELECT failed.id, failed.attempt, failed.status, failed.claimed_at, failed.last_error, failed.at,
         ((@snoozes::bool[])[failed.at] AND failed.snoozes <= sqlc.arg(max_snoozes)::int)::bool AS snoozed
  FROM failed
), history AS (
  INSERT INTO jobgen.job_attempt (job_id, attempt, fence, worker_id, started_at, outcome, error)
  SELECT told.id, told.attempt + told.snoozed::int, (@fences::bigint[])[told.at], @worker_id::uuid, coalesce(told.claimed_at, clock_timestamp()),
         CASE WHEN told.snoozed THEN 'snoozed' ELSE 'failed' END,
         CASE WHEN told.snoozed THEN (@errors::text[])[told.at] ELSE told.last_error END
  FROM told
)
SELECT told.id, (told.status = 'dead')::bool AS dead, told.snoozed FROM told;

-- name: Release :many
-- Release gives back holds whose work has not started or was interrupted by a shutdown; the attempt is returned. Current
-- holds only, as in Complete. run_at does not go back: nothing is put to the left of a worker's mark. Idle workers are woken.
WITH back AS (
  UPDATE jobgen.jobs
  SET status = 'queued', attempt = greatest(attempt - 1, 0), fence = 0, worker_id = NULL, run_at = greatest(run_at, clock_timestamp())
  WHERE id = ANY(@ids::bigint[]) AND fence = ANY(@fences::bigint[]) AND worker_id = @worker_id::uuid AND cancel_reason IS NULL
  RETURNING id, queue
), woken AS MATERIALIZED (
  SELECT pg_notify('jobgen_' || w.worker_id::text, '')
  FROM jobgen.wake w WHERE w.queue IN (SELECT back.queue FROM back)
)
SELECT back.id FROM back WHERE (SELECT count(*) FROM woken) >= 0;
