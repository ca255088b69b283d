-- name: Walk :one
-- Walk looks at up to @n jobs with @low < id <= @high and gives the ids of those that the filter selects, at most @most, with
-- the first and the last id that it has looked at, how many that were, and whether there may be more. So a filter that selects
-- one job in ten millions is served in steps of a bounded time, each with a snapshot of its own. @route says where it looks:
-- 'up' or 'down', at all jobs, by the primary key; 'dead up' or 'dead down', for each kind at the next @n of jobs_dead; 'ids', at
-- those of @ids, in their order. The branches of the other routes are not run. A job is read by the primary key, one after the
-- other (LATERAL), and only up to the last one that is wanted: a CTE gives its rows as they are asked for. What is empty
-- selects all. A job owned by lock is running if the worker that has marked its start lives. @wants is an array of {path,
-- text, json}: the payload at the path must be that text, or equal that JSON.
WITH RECURSIVE kinds AS (
  (SELECT d.kind FROM jobgen.jobs d WHERE d.dead AND @route::text IN ('dead up', 'dead down') ORDER BY d.kind LIMIT 1)
  UNION ALL
  SELECT (SELECT d.kind FROM jobgen.jobs d WHERE d.dead AND d.kind > k.kind ORDER BY d.kind LIMIT 1)
  FROM kinds k WHERE k.kind IS NOT NULL
), route AS (
  (SELECT j.id FROM jobgen.jobs j WHERE @route::text = 'up' AND j.id > @low::bigint AND j.id <= @high::bigint ORDER BY j.id LIMIT @n)
  UNION ALL
  (SELECT j.id FROM jobgen.jobs j WHERE @route::text = 'down' AND j.id > @low::bigint AND j.id <= @high::bigint ORDER BY j.id DESC LIMIT @n)
  UNION ALL
  (SELECT o.id FROM kinds k CROSS JOIN LATERAL (
     SELECT d.id FROM jobgen.jobs d WHERE d.dead AND d.kind = k.kind AND d.id > @low::bigint AND d.id <= @high::bigint ORDER BY d.id LIMIT @n
   ) o
   WHERE @route::text = 'dead up' AND (cardinality(@kinds::text[]) = 0 OR k.kind = ANY(@kinds::text[]))
   ORDER BY o.id LIMIT @n)
  UNION ALL
  (SELECT o.id FROM kinds k CROSS JOIN LATERAL (
     SELECT d.id FROM jobgen.jobs d WHERE d.dead AND d.kind = k.kind AND d.id > @low::bigint AND d.id <= @high::bigint ORDER BY d.id DESC LIMIT @n
   ) o
   WHERE @route::text = 'dead down' AND (cardinality(@kinds::text[]) = 0 OR k.kind = ANY(@kinds::text[]))
   ORDER BY o.id DESC LIMIT @n)
  UNION ALL
  (SELECT unnest(@ids::bigint[]) WHERE @route::text = 'ids')
), looked AS MATERIALIZED (
  SELECT route.id, row_number() OVER () AS place FROM route
), found AS MATERIALIZED (
  SELECT looked.id, looked.place
  FROM looked CROSS JOIN LATERAL (
    SELECT FROM jobgen.jobs j
    WHERE j.id = looked.id
      AND (cardinality(@kinds::text[]) = 0 OR j.kind = ANY(@kinds::text[]))
      AND (cardinality(@queues::text[]) = 0 OR j.queue = ANY(@queues::text[]))
      AND (cardinality(@statuses::text[]) = 0 OR @statuses::text[] && CASE
        WHEN j.status <> 'queued' THEN ARRAY[j.status]
        WHEN (SELECT EXISTS (SELECT FROM jobgen.job_start)) AND EXISTS (
          SELECT FROM jobgen.job_start s JOIN jobgen.workers w ON w.id = s.worker_id
          WHERE s.job_id = j.id AND w.lost_at IS NULL AND w.lease_until > clock_timestamp() OFFSET 0
        ) THEN ARRAY['running']
        WHEN j.run_at <= now() THEN ARRAY['queued', 'ready']
        ELSE ARRAY['queued', 'scheduled'] END)
      AND (@key::text = '' OR j.key = @key::text)
      AND (sqlc.narg(created_before)::timestamptz IS NULL OR j.created_at <= sqlc.narg(created_before)::timestamptz)
      AND (sqlc.narg(created_after)::timestamptz IS NULL OR j.created_at > sqlc.narg(created_after)::timestamptz)
      AND (sqlc.narg(due_before)::timestamptz IS NULL OR j.status = 'queued' AND j.run_at <= sqlc.narg(due_before)::timestamptz)
      AND (@error::text = '' OR strpos(lower(j.last_error), lower(@error::text)) > 0)
      AND (@wants::text = '' OR NOT EXISTS (
        SELECT FROM jsonb_array_elements(nullif(@wants::text, '')::jsonb) x
        WHERE (j.payload #>> ARRAY(SELECT jsonb_array_elements_text(x -> 'path')) = x ->> 'text'
          OR j.payload #> ARRAY(SELECT jsonb_array_elements_text(x -> 'path')) = x -> 'json') IS NOT TRUE
      ))
    OFFSET 0
  ) selected
  LIMIT @most
), stop AS MATERIALIZED (
  SELECT array_agg(found.id ORDER BY found.place) AS ids, count(*) AS n, max(found.place) AS place FROM found
)
SELECT coalesce(stop.ids, '{}')::bigint[] AS ids,
       coalesce((SELECT looked.id FROM looked WHERE looked.place = 1 LIMIT 1), 0)::bigint AS first_id,
       (CASE WHEN stop.n >= @most::int THEN stop.ids[stop.n]
             WHEN @route::text = 'ids' THEN 0
             ELSE coalesce((SELECT looked.id FROM looked ORDER BY looked.place DESC LIMIT 1), 0) END)::bigint AS last_id,
       (CASE WHEN stop.n >= @most::int THEN stop.place ELSE (SELECT count(*) FROM looked) END)::bigint AS looked,
       (CASE WHEN stop.n >= @most::int THEN true ELSE (SELECT count(*) FROM looked) >= @n::int END)::bool AS more
FROM stop;

-- name: WalkArchive :one
-- WalkArchive is Walk, downwards, for jobs that have left jobs and stay on record. What is looked for as an error is their reason.
WITH looked AS MATERIALIZED (
  SELECT a.job_id AS id, row_number() OVER () AS place FROM (
    SELECT r.job_id FROM jobgen.job_archive r WHERE r.job_id <= @high::bigint ORDER BY r.job_id DESC LIMIT @n
  ) a
), found AS MATERIALIZED (
  SELECT looked.id, looked.place
  FROM looked CROSS JOIN LATERAL (
    SELECT FROM jobgen.job_archive j
    WHERE j.job_id = looked.id
      AND (cardinality(@kinds::text[]) = 0 OR j.kind = ANY(@kinds::text[]))
      AND (cardinality(@queues::text[]) = 0 OR j.queue = ANY(@queues::text[]))
      AND j.status = ANY(@statuses::text[])
      AND (@key::text = '' OR j.key = @key::text)
      AND (sqlc.narg(created_before)::timestamptz IS NULL OR j.created_at <= sqlc.narg(created_before)::timestamptz)
      AND (sqlc.narg(created_after)::timestamptz IS NULL OR j.created_at > sqlc.narg(created_after)::timestamptz)
      AND (@error::text = '' OR strpos(lower(j.reason), lower(@error::text)) > 0)
      AND (@wants::text = '' OR NOT EXISTS (
        SELECT FROM jsonb_array_elements(nullif(@wants::text, '')::jsonb) x
        WHERE (j.payload #>> ARRAY(SELECT jsonb_array_elements_text(x -> 'path')) = x ->> 'text'
          OR j.payload #> ARRAY(SELECT jsonb_array_elements_text(x -> 'path')) = x -> 'json') IS NOT TRUE
      ))
    OFFSET 0
  ) selected
  LIMIT @most
), stop AS MATERIALIZED (
  SELECT array_agg(found.id ORDER BY found.place) AS ids, count(*) AS n, max(found.place) AS place FROM found
)
SELECT coalesce(stop.ids, '{}')::bigint[] AS ids,
       coalesce((SELECT looked.id FROM looked WHERE looked.place = 1 LIMIT 1), 0)::bigint AS first_id,
       (CASE WHEN stop.n >= @most::int THEN stop.ids[stop.n]
             ELSE coalesce((SELECT looked.id FROM looked ORDER BY looked.place DESC LIMIT 1), 0) END)::bigint AS last_id,
       (CASE WHEN stop.n >= @most::int THEN stop.place ELSE (SELECT count(*) FROM looked) END)::bigint AS looked,
       (CASE WHEN stop.n >= @most::int THEN true ELSE (SELECT count(*) FROM looked) >= @n::int END)::bool AS more
FROM stop;

-- name: NewestID :one
-- NewestID is the last id that there is: what is drawn later is greater. (In a database that was put together by hand, the sequence may be behind.)
SELECT greatest(pg_sequence_last_value('jobgen.job_id'), (SELECT max(j.id) FROM jobgen.jobs j), 0)::bigint AS id;

-- name: RunningIDs :many
-- RunningIDs finds what may be running without looking at what waits: what claims name, and starts of jobs owned by lock.
SELECT c.id::bigint AS id FROM (SELECT unnest(x.ids) AS id FROM jobgen.claims x UNION SELECT s.job_id FROM jobgen.job_start s) c ORDER BY c.id;

-- name: KeyIDs :many
-- KeyIDs finds the job that has a key now, of each kind, by one probe of job_result's primary key for each kind.
WITH RECURSIVE kinds AS (
  (SELECT r.kind FROM jobgen.job_result r ORDER BY r.kind LIMIT 1)
  UNION ALL
  SELECT (SELECT r.kind FROM jobgen.job_result r WHERE r.kind > k.kind ORDER BY r.kind LIMIT 1)
  FROM kinds k WHERE k.kind IS NOT NULL
)
SELECT a.job_id FROM kinds k CROSS JOIN LATERAL (
  SELECT r.job_id FROM jobgen.job_result r WHERE r.kind = k.kind AND r.key = @key::text LIMIT 1
) a ORDER BY a.job_id;

-- name: TallyJobs :many
-- TallyJobs counts jobs by what they are.
SELECT j.status, j.kind, j.queue, count(*)::bigint AS n, min(j.created_at)::timestamptz AS oldest
FROM jobgen.jobs j WHERE j.id = ANY(@ids::bigint[]) GROUP BY j.status, j.kind, j.queue;
