-- name: Complete :many
-- Complete removes finished jobs of kinds that leave no record. Only current holds may stand in one call: with a stale
-- (1, 5) beside a live (2, 9), job 1 held at 9 would go. Without a join it is a third faster than with one. Served by the primary key. With in_tx, as
-- the last statement before COMMIT in a handler's transaction, it tells the transaction's id (0: this is not the transaction
-- that began with the mark jobgen.tx, which ends with it), and leaves the server ten seconds to get the COMMIT, then it rolls back:
-- a client that died in between would lock the row for as long as TCP takes to notice, which may be hours.
DELETE FROM jobgen.jobs
WHERE id = ANY(@ids::bigint[]) AND fence = ANY(@fences::bigint[]) AND worker_id = @worker_id::uuid
RETURNING id, (CASE WHEN @in_tx::bool AND current_setting('jobgen.tx', true) = 'on'
  AND set_config('idle_in_transaction_session_timeout', '10s', true) <> '' THEN pg_current_xact_id()::text::bigint ELSE 0 END)::bigint AS xact;

-- name: CompleteRecorded :many
-- CompleteRecorded removes finished jobs and, in the same statement, records their results. The same rule: current holds
-- only; in_tx likewise. An arbiter row that another job has taken over or finished is left alone, and recorded is false;
-- HandedOver tells which of the two. (IN is a hashed subplan; the LEFT JOIN that was here became a nested loop over both
-- CTEs, n² of them.)
WITH done AS (
  DELETE FROM jobgen.jobs j
  WHERE j.id = ANY(@ids::bigint[]) AND j.fence = ANY(@fences::bigint[]) AND j.worker_id = @worker_id::uuid
  RETURNING j.id, j.kind, j.key
), outcome AS (
  SELECT unnest(@ids::bigint[]) AS id, unnest(@results::text[]) AS result, unnest(@keep_us::bigint[]) AS keep_us
), put AS (
  INSERT INTO jobgen.job_result AS r (kind, key, job_id, result, finished_at, expires_at)
  SELECT done.kind, coalesce(done.key, 'job:' || done.id), done.id, nullif(outcome.result, '')::jsonb,
         clock_timestamp(), clock_timestamp() + outcome.keep_us * interval '1 microsecond'
  FROM done JOIN outcome ON outcome.id = done.id
  ON CONFLICT (kind, key) DO UPDATE
  SET result = EXCLUDED.result, finished_at = EXCLUDED.finished_at, expires_at = EXCLUDED.expires_at
  WHERE r.job_id = EXCLUDED.job_id AND r.finished_at IS NULL
  RETURNING r.job_id
)
SELECT done.id, (done.id IN (SELECT put.job_id FROM put))::bool AS recorded, (CASE WHEN @in_tx::bool AND current_setting('jobgen.tx', true) = 'on'
  AND set_config('idle_in_transaction_session_timeout', '10s', true) <> '' THEN pg_current_xact_id()::text::bigint ELSE 0 END)::bigint AS xact
FROM done;

-- name: CompleteUnkeyed :many
-- CompleteUnkeyed is CompleteRecorded for jobs without a key. The row of a record is new then, so nothing looks for it: its key
-- is made from the id, an id is drawn from a sequence once, and its job leaves jobs once, in the statement that records it. A
-- repetition after a lost answer finds no job and inserts nothing. (If the sequence was set back by hand, the statement fails for
-- the id that is used again, and its job with it.)
WITH done AS (
  DELETE FROM jobgen.jobs j
  WHERE j.id = ANY(@ids::bigint[]) AND j.fence = ANY(@fences::bigint[]) AND j.worker_id = @worker_id::uuid
  RETURNING j.id, j.kind
), outcome AS (
  SELECT unnest(@ids::bigint[]) AS id, unnest(@results::text[]) AS result, unnest(@keep_us::bigint[]) AS keep_us
), put AS (
  INSERT INTO jobgen.job_result (kind, key, job_id, result, finished_at, expires_at)
  SELECT done.kind, 'job:' || done.id, done.id, nullif(outcome.result, '')::jsonb,
         clock_timestamp(), clock_timestamp() + outcome.keep_us * interval '1 microsecond'
  FROM done JOIN outcome ON outcome.id = done.id
)
SELECT done.id FROM done;

-- name: CompleteArchived :many
-- CompleteArchived removes finished jobs of kinds that a worker's Retain names and puts them into job_archive in the same
-- statement; of those that leave one (records), the result goes on record, as in CompleteRecorded. The same rule: current holds
-- only; in_tx likewise; recorded is true for those that leave none. Apart from the statements above, which would pay for the
-- archive without using it. A record that is there already is that of another job, whose id has been drawn again because the
-- sequence was set back by hand: the newer one stays, and the job ends as any other.
WITH done AS (
  DELETE FROM jobgen.jobs j
  WHERE j.id = ANY(@ids::bigint[]) AND j.fence = ANY(@fences::bigint[]) AND j.worker_id = @worker_id::uuid
  RETURNING j.id, j.queue, j.kind, j.key, j.version, j.attempt, j.crashes, j.payload, j.headers, j.created_at, j.claimed_at
), outcome AS (
  SELECT unnest(@ids::bigint[]) AS id, unnest(@records::bool[]) AS record, unnest(@results::text[]) AS result, unnest(@keep_us::bigint[]) AS keep_us,
         unnest(@retain_us::bigint[]) AS retain_us, unnest(@reasons::text[]) AS reason
), put AS (
  INSERT INTO jobgen.job_result AS r (kind, key, job_id, result, finished_at, expires_at)
  SELECT done.kind, coalesce(done.key, 'job:' || done.id), done.id, nullif(outcome.result, '')::jsonb,
         clock_timestamp(), clock_timestamp() + outcome.keep_us * interval '1 microsecond'
  FROM done JOIN outcome ON outcome.id = done.id WHERE outcome.record
  ON CONFLICT (kind, key) DO UPDATE
  SET result = EXCLUDED.result, finished_at = EXCLUDED.finished_at, expires_at = EXCLUDED.expires_at
  WHERE r.job_id = EXCLUDED.job_id AND r.finished_at IS NULL
  RETURNING r.job_id
), archived AS (
  INSERT INTO jobgen.job_archive (job_id, status, queue, kind, key, version, attempt, crashes, payload, headers, reason, created_at, started_at, worker_id, expires_at)
  SELECT done.id, 'succeeded', done.queue, done.kind, done.key, done.version, done.attempt, done.crashes, done.payload, done.headers,
         nullif(outcome.reason, ''), done.created_at, done.claimed_at, @worker_id::uuid,
         clock_timestamp() + outcome.retain_us * interval '1 microsecond'
  FROM done JOIN outcome ON outcome.id = done.id
  ON CONFLICT (job_id) DO UPDATE
  SET (status, queue, kind, key, version, attempt, crashes, payload, headers, reason, created_at, started_at, worker_id, finished_at, expires_at)
    = (EXCLUDED.status, EXCLUDED.queue, EXCLUDED.kind, EXCLUDED.key, EXCLUDED.version, EXCLUDED.attempt, EXCLUDED.crashes, EXCLUDED.payload,
       EXCLUDED.headers, EXCLUDED.reason, EXCLUDED.created_at, EXCLUDED.started_at, EXCLUDED.worker_id, EXCLUDED.finished_at, EXCLUDED.expires_at)
)
SELECT done.id, (NOT outcome.record OR done.id IN (SELECT put.job_id FROM put))::bool AS recorded, (CASE WHEN @in_tx::bool AND current_setting('jobgen.tx', true) = 'on'
  AND set_config('idle_in_transaction_session_timeout', '10s', true) <> '' THEN pg_current_xact_id()::text::bigint ELSE 0 END)::bigint AS xact
FROM done JOIN outcome ON outcome.id = done.id;

-- name: HandedOver :many
-- HandedOver finds those of the jobs whose key is now a newer job's that has not finished: it was handed over while they ran
-- (Replace), and what they did counts. It is asked in a statement of its own, after the completion in the same transaction:
-- that one waits for a transaction that is handing the key over, and by its own snapshot the key would still be the job's. It has
-- locked the arbiter row, so the answer stands until the commit. Served by job_result's primary key.
SELECT o.id::bigint AS id
FROM (SELECT unnest(@ids::bigint[]) AS id, unnest(@kinds::text[]) AS kind, unnest(@keys::text[]) AS key) o
CROSS JOIN LATERAL (
  SELECT FROM jobgen.job_result r
  WHERE r.kind = o.kind AND r.key = o.key AND r.finished_at IS NULL AND r.job_id > o.id
  OFFSET 0
) newer;
