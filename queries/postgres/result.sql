-- name: KeyState :one
-- KeyState tells, in one snapshot, what stands behind a key: its job while there is one, its result once there is one.
SELECT r.job_id, (r.finished_at IS NOT NULL)::bool AS finished, coalesce(r.expires_at <= clock_timestamp(), false)::bool AS expired,
       r.result, coalesce(j.status, '')::text AS status, coalesce(j.attempt, 0)::int AS attempt,
       coalesce(j.last_error, '')::text AS last_error
FROM jobgen.job_result r LEFT JOIN jobgen.jobs j ON j.id = r.job_id
WHERE r.kind = @kind AND r.key = @key;

-- name: KeyStates :many
-- KeyStates is KeyState for many keys of a kind, without the results.
SELECT r.key, r.job_id, (r.finished_at IS NOT NULL)::bool AS finished, coalesce(r.expires_at <= clock_timestamp(), false)::bool AS expired,
       coalesce(j.status, '')::text AS status
FROM jobgen.job_result r LEFT JOIN jobgen.jobs j ON j.id = r.job_id
WHERE r.kind = @kind AND r.key = ANY(@keys::text[]);

-- name: JobState :one
-- JobState is KeyState by the job's id, for a job of any of the kinds: a kind and its earlier names. Served by the primary keys and, for a job with a key, by job_result_job.
SELECT (r.finished_at IS NOT NULL)::bool AS finished, r.result, coalesce(j.status, '')::text AS status,
       coalesce(j.attempt, 0)::int AS attempt, coalesce(j.last_error, '')::text AS last_error
FROM (SELECT @id::bigint AS id) x
LEFT JOIN jobgen.jobs j ON j.id = x.id AND j.kind = ANY(@kinds::text[])
LEFT JOIN LATERAL (
  SELECT a.result, a.finished_at FROM jobgen.job_result a WHERE a.kind = ANY(@kinds::text[]) AND a.key = 'job:' || x.id
  UNION ALL
  SELECT b.result, b.finished_at FROM (
    SELECT o.kind, o.result, o.finished_at FROM jobgen.job_result o WHERE o.job_id = x.id AND left(o.key, 4) <> 'job:'
    OFFSET 0 -- else a plan made before the first ANALYZE reads all keys of the kinds as well
  ) b WHERE b.kind = ANY(@kinds::text[])
  LIMIT 1
) r ON true;

-- name: TransactionTime :one
-- TransactionTime is when the transaction began: the same for two statements only if they are in one. Text, because no
-- setting of a session keeps a driver from reading that.
SELECT now()::text AS at;
