-- name: Plan :exec
-- Plan sets what the plans of Lock and CompleteLocked rely on (see Session) for the rest of the transaction: the connection is
-- the application's. What was set before is kept where Unplan finds it.
SELECT set_config('jobgen.seqscan', current_setting('enable_seqscan'), true), set_config('enable_seqscan', 'off', true),
       set_config('jobgen.sort', current_setting('enable_sort'), true), set_config('enable_sort', 'off', true),
       set_config('jobgen.incremental_sort', current_setting('enable_incremental_sort'), true), set_config('enable_incremental_sort', 'off', true),
       set_config('jobgen.plan_cache_mode', current_setting('plan_cache_mode'), true), set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('jobgen.jit', current_setting('jit'), true), set_config('jit', 'off', true),
       set_config('jobgen.datestyle', current_setting('datestyle'), true), set_config('datestyle', 'ISO', true);

-- name: Unplan :exec
-- Unplan gives the handler the settings of its connection back.
SELECT set_config('enable_seqscan', current_setting('jobgen.seqscan'), true),
       set_config('enable_sort', current_setting('jobgen.sort'), true),
       set_config('enable_incremental_sort', current_setting('jobgen.incremental_sort'), true),
       set_config('plan_cache_mode', current_setting('jobgen.plan_cache_mode'), true),
       set_config('jit', current_setting('jobgen.jit'), true),
       set_config('datestyle', current_setting('jobgen.datestyle'), true);

-- name: Savepoint :exec
-- Savepoint is what a handler's transaction goes back to when it has failed: the row lock stays, what the handler did goes.
SAVEPOINT jobgen;

-- name: RollbackToSavepoint :exec
ROLLBACK TO SAVEPOINT jobgen;

-- name: Lock :many
-- Lock takes the first due job by its row lock, which is all that owns it until the transaction ends; it changes nothing. The
-- ranges are those of Claim; @skip are jobs to leave alone. The columns are those of the locked row itself, and not of a join with it: the row may be newer
-- than the statement's snapshot. They are Claim's, without a fence. A wish to cancel that its worker died with is still a message. The LIMIT at the end stops at the first range that has one. Served by jobs_claim.
-- jobgen.job tells what the handler sends in the same transaction whose transaction it is: its own lock does not keep it from the row.
SELECT set_config('jobgen.job', c.id::text, true)::bigint AS id, 0::bigint AS fence, c.queue, c.kind, c.version, c.priority, c.run_at, (c.attempt + 1)::int AS attempt, c.max_attempts, c.crashes, c.key,
  c.payload, c.headers, c.deadline,
  coalesce(c.cancel_reason, (SELECT x.reason FROM jobgen.job_cancel x WHERE x.job_id = c.id)) AS cancel_reason, now()::timestamptz AS db_now,
  (c.key IS NOT NULL AND EXISTS (
    SELECT FROM jobgen.job_result r WHERE r.kind = c.kind AND r.key = c.key AND (r.finished_at IS NOT NULL OR r.job_id > c.id)
  ))::bool AS recorded
FROM (SELECT unnest(@queues::text[]) AS queue,
             unnest(@priorities::smallint[]) AS priority,
             unnest(@mark_ats::timestamptz[]) AS mark_at,
             unnest(@mark_ids::bigint[]) AS mark_id) m
CROSS JOIN LATERAL (
  SELECT q.id, q.queue, q.kind, q.version, q.priority, q.run_at, q.attempt, q.max_attempts, q.crashes, q.key, q.payload, q.headers,
    q.deadline, q.cancel_reason
  FROM jobgen.jobs q
  WHERE NOT q.dead AND q.crashes < 2 AND q.worker_id IS NULL AND q.queue = m.queue AND q.priority = m.priority
    AND (q.run_at, q.id) > (m.mark_at, m.mark_id) AND q.run_at <= now()
    AND q.kind = ANY(@kinds::text[]) AND q.id <> ALL(@skip::bigint[])
    AND (q.version = 1 OR q.version <= (@versions::int[])[array_position(@kinds::text[], q.kind)])
  ORDER BY q.run_at NULLS FIRST, q.id -- as in jobs_claim
  LIMIT 1
  FOR UPDATE SKIP LOCKED
) c
LIMIT 1;

-- name: LockSuspect :many
-- LockSuspect is Lock for a job with two crashes or more; the caller runs nothing else. Served by jobs_suspect.
SELECT set_config('jobgen.job', q.id::text, true)::bigint AS id, 0::bigint AS fence, q.queue, q.kind, q.version, q.priority, q.run_at, (q.attempt + 1)::int AS attempt, q.max_attempts, q.crashes, q.key,
  q.payload, q.headers, q.deadline,
  coalesce(q.cancel_reason, (SELECT x.reason FROM jobgen.job_cancel x WHERE x.job_id = q.id)) AS cancel_reason, now()::timestamptz AS db_now,
  (q.key IS NOT NULL AND EXISTS (
    SELECT FROM jobgen.job_result r WHERE r.kind = q.kind AND r.key = q.key AND (r.finished_at IS NOT NULL OR r.job_id > q.id)
  ))::bool AS recorded
FROM jobgen.jobs q
WHERE NOT q.dead AND q.crashes >= 2 AND q.worker_id IS NULL AND q.queue = ANY(@queues::text[]) AND q.run_at <= now()
  AND q.kind = ANY(@kinds::text[]) AND q.id <> ALL(@skip::bigint[])
  AND (q.version = 1 OR q.version <= (@versions::int[])[array_position(@kinds::text[], q.kind)])
ORDER BY q.priority DESC, q.run_at, q.id
LIMIT 1
FOR UPDATE SKIP LOCKED;

-- name: Start :many
-- Start marks jobs as started, and tells how many earlier starts it found on each of which nobody has stored the end: the
-- caller has their row locks, so nobody runs them any more, and those are crashes. Unsure: one is of a worker that is not
-- lost; it may live, have lost its connection only, and be about to adopt the job. Such a job is marked only if that is ruled
-- out (sure), so that the one who adopts it finds no mark that is no start. The mark is a transaction of its own,
-- so it outlives the process; it need not outlive the server, whose crash is none of the job's doing, so no fsync is waited for.
WITH lazy AS MATERIALIZED (
  SELECT set_config('synchronous_commit', 'off', true) AS off
), before AS MATERIALIZED (
  SELECT s.job_id, count(*)::int AS crashes,
         bool_or(s.worker_id <> @worker_id::uuid AND EXISTS (
           SELECT FROM jobgen.workers w WHERE w.id = s.worker_id AND w.lost_at IS NULL OFFSET 0
         ))::bool AS unsure
  FROM jobgen.job_start s
  WHERE s.job_id = ANY(@ids::bigint[])
  GROUP BY s.job_id
), mine AS (
  INSERT INTO jobgen.job_start (job_id, worker_id)
  SELECT a.id, @worker_id::uuid
  FROM lazy CROSS JOIN (SELECT unnest(@ids::bigint[]) AS id, unnest(@sure::bool[]) AS sure) a
  WHERE lazy.off IS NOT NULL AND (a.sure OR NOT EXISTS (SELECT FROM before WHERE before.job_id = a.id AND before.unsure))
  ON CONFLICT (job_id, worker_id) DO UPDATE SET started_at = EXCLUDED.started_at
)
SELECT before.job_id, before.crashes, before.unsure FROM before;

-- name: Unstart :exec
-- Unstart takes marks back: of jobs that were not started after all, and of those that a shutdown leaves behind.
DELETE FROM jobgen.job_start s
WHERE s.job_id = ANY(@ids::bigint[]) AND s.worker_id = @worker_id::uuid;

-- name: CompleteLocked :many
-- CompleteLocked removes a job whose row lock the transaction has, with the marks of its starts, and with @record its result
-- goes on record, as in CompleteRecorded; xact is as there. What marks of other workers there were is its history. No row: the job is gone.
WITH done AS (
  DELETE FROM jobgen.jobs j WHERE j.id = @id::bigint AND j.worker_id IS NULL RETURNING j.id, j.kind, j.key
), gone AS (
  DELETE FROM jobgen.job_start s WHERE s.job_id = @id::bigint RETURNING s.worker_id, s.started_at
), history AS (
  INSERT INTO jobgen.job_attempt (job_id, attempt, fence, worker_id, started_at, outcome, error)
  SELECT @id::bigint, @attempt::int, 0, gone.worker_id, gone.started_at, 'crashed', 'the worker process, or its connection, was lost while it ran this job'
  FROM gone WHERE gone.worker_id <> @worker_id::uuid
), put AS (
  INSERT INTO jobgen.job_result AS r (kind, key, job_id, result, finished_at, expires_at)
  SELECT done.kind, coalesce(done.key, 'job:' || done.id), done.id, nullif(@result::text, '')::jsonb,
         clock_timestamp(), clock_timestamp() + sqlc.arg(keep_us)::bigint * interval '1 microsecond'
  FROM done WHERE @record::bool
  ON CONFLICT (kind, key) DO UPDATE
  SET result = EXCLUDED.result, finished_at = EXCLUDED.finished_at, expires_at = EXCLUDED.expires_at
  WHERE r.job_id = EXCLUDED.job_id AND r.finished_at IS NULL
  RETURNING r.job_id
)
SELECT done.id, (NOT @record::bool OR EXISTS (SELECT FROM put))::bool AS recorded, (CASE WHEN current_setting('jobgen.tx', true) = 'on'
  AND set_config('idle_in_transaction_session_timeout', '10s', true) <> '' THEN pg_current_xact_id()::text::bigint ELSE 0 END)::bigint AS xact
FROM done;

-- name: CompleteLockedArchived :many
-- CompleteLockedArchived is CompleteLocked for a kind that a worker's Retain names: the job goes into job_archive, as by
-- CompleteArchived.
WITH done AS (
  DELETE FROM jobgen.jobs j WHERE j.id = @id::bigint AND j.worker_id IS NULL
  RETURNING j.id, j.queue, j.kind, j.key, j.version, j.crashes, j.payload, j.headers, j.created_at
), gone AS (
  DELETE FROM jobgen.job_start s WHERE s.job_id = @id::bigint RETURNING s.worker_id, s.started_at
), history AS (
  INSERT INTO jobgen.job_attempt (job_id, attempt, fence, worker_id, started_at, outcome, error)
  SELECT @id::bigint, @attempt::int, 0, gone.worker_id, gone.started_at, 'crashed', 'the worker process, or its connection, was lost while it ran this job'
  FROM gone WHERE gone.worker_id <> @worker_id::uuid
), put AS (
  INSERT INTO jobgen.job_result AS r (kind, key, job_id, result, finished_at, expires_at)
  SELECT done.kind, coalesce(done.key, 'job:' || done.id), done.id, nullif(@result::text, '')::jsonb,
         clock_timestamp(), clock_timestamp() + sqlc.arg(keep_us)::bigint * interval '1 microsecond'
  FROM done WHERE @record::bool
  ON CONFLICT (kind, key) DO UPDATE
  SET result = EXCLUDED.result, finished_at = EXCLUDED.finished_at, expires_at = EXCLUDED.expires_at
  WHERE r.job_id = EXCLUDED.job_id AND r.finished_at IS NULL
  RETURNING r.job_id
), archived AS (
  INSERT INTO jobgen.job_archive (job_id, status, queue, kind, key, version, attempt, crashes, payload, headers, created_at, started_at, worker_id, expires_at)
  SELECT done.id, 'succeeded', done.queue, done.kind, done.key, done.version, @attempt::int, done.crashes, done.payload, done.headers, done.created_at,
         (SELECT min(gone.started_at) FROM gone WHERE gone.worker_id = @worker_id::uuid), @worker_id::uuid,
         clock_timestamp() + sqlc.arg(retain_us)::bigint * interval '1 microsecond'
  FROM done
  ON CONFLICT (job_id) DO UPDATE
  SET (status, queue, kind, key, version, attempt, crashes, payload, headers, reason, created_at, started_at, worker_id, finished_at, expires_at)
    = (EXCLUDED.status, EXCLUDED.queue, EXCLUDED.kind, EXCLUDED.key, EXCLUDED.version, EXCLUDED.attempt, EXCLUDED.crashes, EXCLUDED.payload,
       EXCLUDED.headers, EXCLUDED.reason, EXCLUDED.created_at, EXCLUDED.started_at, EXCLUDED.worker_id, EXCLUDED.finished_at, EXCLUDED.expires_at)
)
SELECT done.id, (NOT @record::bool OR EXISTS (SELECT FROM put))::bool AS recorded, (CASE WHEN current_setting('jobgen.tx', true) = 'on'
  AND set_config('idle_in_transaction_session_timeout', '10s', true) <> '' THEN pg_current_xact_id()::text::bigint ELSE 0 END)::bigint AS xact
FROM done;

-- name: Adopt :many
-- Adopt turns a job that its worker has run by lock into one that it holds by lease, if it is as that worker found it: the
-- attempt counts, and the outcome is stored as that of any other job, also if somebody has asked for its end. Within the transaction that has the row lock nobody can
-- come between; without it, a job that somebody else has locked is left alone, and waits is true: it may be free again in a
-- moment. Marks of other workers are crashes. If it is not adopted, the worker's own mark stays, and becomes one.
WITH me AS MATERIALIZED (
  SELECT nextval('jobgen.fence') AS fence
  FROM jobgen.workers w
  WHERE w.id = @worker_id::uuid AND w.lost_at IS NULL AND w.lease_until > clock_timestamp()
), mine AS MATERIALIZED (
  SELECT q.id FROM jobgen.jobs q
  WHERE q.id = @id::bigint AND q.status = 'queued' AND q.attempt + 1 = sqlc.arg(attempt)::int AND EXISTS (SELECT FROM me)
  FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM jobgen.job_start s
  WHERE s.job_id = @id::bigint AND EXISTS (SELECT FROM mine)
  RETURNING s.worker_id, s.started_at
), adopted AS (
  UPDATE jobgen.jobs j
  SET status = 'running', fence = me.fence, attempt = j.attempt + 1, worker_id = @worker_id::uuid,
      crashes = j.crashes + (SELECT count(*) FROM gone WHERE gone.worker_id <> @worker_id::uuid)::int,
      claimed_at = clock_timestamp() - sqlc.arg(ran_us)::bigint * interval '1 microsecond',
      cancel_reason = coalesce(j.cancel_reason, (SELECT c.reason FROM jobgen.job_cancel c WHERE c.job_id = @id::bigint))
  FROM me
  WHERE j.worker_id IS NULL AND j.id = ANY(ARRAY(SELECT mine.id FROM mine))
  RETURNING j.id, j.attempt, j.fence
), noted AS (
  INSERT INTO jobgen.claims (worker_id, fence, ids)
  SELECT @worker_id::uuid, adopted.fence, ARRAY[adopted.id] FROM adopted
), history AS (
  INSERT INTO jobgen.job_attempt (job_id, attempt, fence, worker_id, started_at, outcome, error)
  SELECT adopted.id, adopted.attempt, 0, gone.worker_id, gone.started_at, 'crashed', 'the worker process, or its connection, was lost while it ran this job'
  FROM adopted JOIN gone ON gone.worker_id <> @worker_id::uuid
)
SELECT coalesce((SELECT adopted.fence FROM adopted), 0)::bigint AS fence,
       (EXISTS (SELECT FROM me) AND EXISTS (
         SELECT FROM jobgen.jobs j WHERE j.id = @id::bigint AND j.status = 'queued' AND j.attempt + 1 = sqlc.arg(attempt)::int
       ))::bool AS waits;

-- name: Crash :many
-- Crash counts what Start has found on a job whose row lock the transaction has as crashes, as Reclaim does for jobs held by
-- lease: dead at max_crashes, else back to wait for a process of its own.
WITH gone AS (
  DELETE FROM jobgen.job_start s WHERE s.job_id = @id::bigint RETURNING s.worker_id, s.started_at
), lost AS MATERIALIZED (
  SELECT @crashes::int AS n
), back AS (
  UPDATE jobgen.jobs j
  SET status = CASE WHEN j.crashes + lost.n >= sqlc.arg(max_crashes)::int THEN 'dead' ELSE 'queued' END,
      crashes = j.crashes + lost.n,
      run_at = greatest(j.run_at, clock_timestamp())
               + least(sqlc.arg(backoff_us)::bigint * 2 ^ least(greatest(j.crashes + lost.n - 1, 0), 12), 3600000000) * (0.5 + 0.5 * random()) * interval '1 microsecond',
      last_error = CASE WHEN j.crashes + lost.n >= sqlc.arg(max_crashes)::int
        THEN 'crashed ' || (j.crashes + lost.n) || ' times: each time the worker process, or its connection, was lost while it ran this job'
        ELSE 'the worker process, or its connection, was lost while it ran this job (crash ' || (j.crashes + lost.n) || ')' END
  FROM lost
  WHERE j.id = @id::bigint AND j.worker_id IS NULL
  RETURNING j.id, j.queue, j.kind, j.attempt, j.crashes, j.status, j.last_error
), history AS (
  INSERT INTO jobgen.job_attempt (job_id, attempt, fence, worker_id, started_at, outcome, error)
  SELECT back.id, back.attempt + 1, 0, gone.worker_id, gone.started_at, 'crashed', back.last_error
  FROM back JOIN gone ON gone.worker_id <> @worker_id::uuid
), sampled AS (
  INSERT INTO jobgen.samples AS s (minute, queue, kind, reclaimed, died)
  SELECT date_trunc('minute', now()), back.queue, back.kind, lost.n, (back.status = 'dead')::int FROM back CROSS JOIN lost
  ON CONFLICT (minute, queue, kind) DO UPDATE SET reclaimed = s.reclaimed + EXCLUDED.reclaimed, died = s.died + EXCLUDED.died
)
SELECT back.crashes, (back.status = 'dead')::bool AS dead FROM back;

-- name: PurgeStarts :execrows
-- PurgeStarts forgets the marks of jobs that are gone: purged by hand, or finished by a worker that holds by lease.
DELETE FROM jobgen.job_start
WHERE job_id = ANY(ARRAY(
  SELECT s.job_id FROM jobgen.job_start s
  WHERE s.started_at < now() - interval '1 minute'
    AND NOT EXISTS (SELECT FROM jobgen.jobs j WHERE j.id = s.job_id OFFSET 0)
  LIMIT @n
));
