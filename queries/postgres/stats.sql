-- name: LookLimit :exec
-- LookLimit bounds each further statement of a look's transaction: none of them is to hold the vacuum horizon for long.
SELECT set_config('statement_timeout', sqlc.arg(ms)::text, true);

-- name: LookFirst :one
-- LookFirst tells what a look has to know first: how big the tables are, and how far ids have come.
SELECT clock_timestamp()::timestamptz AS db_now,
       coalesce(pg_sequence_last_value('jobgen.job_id'::regclass), 0)::bigint AS newest_id,
       (pg_relation_size('jobgen.jobs'::regclass) / current_setting('block_size')::bigint)::bigint AS pages,
       (pg_relation_size('jobgen.claims'::regclass) / current_setting('block_size')::bigint)::bigint AS claim_pages;

-- name: LookLevels :many
-- LookLevels counts what is in so many percent of the pages of jobs. They are the same pages each time, and those of a smaller
-- share are among those of a bigger one: so they stay in memory, and from one look to the next the levels move by what has
-- happened there, not by the choice of pages.
SELECT j.queue, j.kind, j.priority,
       count(*) FILTER (WHERE j.status = 'queued' AND j.run_at <= now()) AS ready,
       count(*) FILTER (WHERE j.status = 'queued' AND j.run_at > now()) AS scheduled,
       count(*) FILTER (WHERE j.status = 'running') AS running,
       count(*) FILTER (WHERE j.status = 'dead') AS dead,
       coalesce(extract(epoch FROM now() - greatest(min(j.run_at) FILTER (WHERE j.status = 'queued' AND j.run_at <= now()), CASE WHEN bool_or(j.status = 'queued' AND j.run_at <= now()) THEN '0001-01-01Z'::timestamptz END)) * 1000000, 0)::bigint AS oldest_us
FROM jobgen.jobs j TABLESAMPLE SYSTEM (sqlc.arg(percent)::real) REPEATABLE (0)
GROUP BY j.queue, j.kind, j.priority;

-- name: LookQueues :many
-- LookQueues lists the queues that are known without reading jobs.
SELECT unnest(w.queues)::text AS queue FROM jobgen.workers w
UNION
SELECT q.name FROM jobgen.queues q
UNION
SELECT s.queue FROM jobgen.samples s WHERE s.minute > now() - interval '10 minutes';

-- name: LookHeads :many
-- LookHeads counts the first @n jobs of each range of some queues: what is due, and what is for later. A range with fewer is
-- counted exactly. Served by jobs_claim; it walks the entries of finished jobs that vacuum has not been able to remove, so it may
-- run into its time limit while the horizon is pinned. Suspects are in jobs_suspect.
SELECT h.queue::text AS queue, h.priority::smallint AS priority, h.later, h.kind,
       count(*) AS n, (extract(epoch FROM now() - greatest(least(min(h.run_at), now()), '0001-01-01Z'::timestamptz)) * 1000000)::bigint AS oldest_us
FROM (
  SELECT q.queue, p.priority, false AS later, r.kind, r.run_at
  FROM (SELECT unnest(@queues::text[]) AS queue) q CROSS JOIN (SELECT generate_series(0, 9)::smallint AS priority) p CROSS JOIN LATERAL (
    SELECT j.kind, j.run_at FROM jobgen.jobs j
    WHERE NOT j.dead AND j.crashes < 2 AND j.worker_id IS NULL AND j.queue = q.queue AND j.priority = p.priority AND j.run_at <= now()
    ORDER BY j.run_at NULLS FIRST, j.id LIMIT @n::int
  ) r
  UNION ALL
  SELECT q.queue, p.priority, true AS later, r.kind, r.run_at
  FROM (SELECT unnest(@queues::text[]) AS queue) q CROSS JOIN (SELECT generate_series(0, 9)::smallint AS priority) p CROSS JOIN LATERAL (
    SELECT j.kind, j.run_at FROM jobgen.jobs j
    WHERE NOT j.dead AND j.crashes < 2 AND j.worker_id IS NULL AND j.queue = q.queue AND j.priority = p.priority AND j.run_at > now()
    ORDER BY j.run_at NULLS FIRST, j.id LIMIT @n::int
  ) r
) h
GROUP BY h.queue, h.priority, h.later, h.kind;

-- name: LookDead :many
-- LookDead counts the first @n dead jobs of each kind. Served by jobs_dead.
WITH RECURSIVE kinds AS (
  (SELECT d.kind FROM jobgen.jobs d WHERE d.dead ORDER BY d.kind LIMIT 1)
  UNION ALL
  SELECT (SELECT d.kind FROM jobgen.jobs d WHERE d.dead AND d.kind > k.kind ORDER BY d.kind LIMIT 1)
  FROM kinds k WHERE k.kind IS NOT NULL
)
SELECT r.queue, r.kind, count(*) AS n
FROM kinds k CROSS JOIN LATERAL (
  SELECT d.queue, d.kind FROM jobgen.jobs d WHERE d.dead AND d.kind = k.kind ORDER BY d.id LIMIT @n::int
) r
GROUP BY r.queue, r.kind;

-- name: LookRunning :many
-- LookRunning counts what workers hold, by their claims: those in so many percent of the pages of claims. A probe of jobs by id for
-- each job that these name.
SELECT r.queue, r.kind, count(*) AS n
FROM jobgen.claims c TABLESAMPLE SYSTEM (sqlc.arg(percent)::real) REPEATABLE (0) CROSS JOIN LATERAL (
  SELECT j.queue, j.kind FROM jobgen.jobs j WHERE j.id = ANY(c.ids) AND j.fence = c.fence AND j.worker_id = c.worker_id
  OFFSET 0
) r
GROUP BY r.queue, r.kind;

-- name: Samples :many
-- Samples reads what has been counted in the last @since_us. Served by the primary key.
SELECT s.minute, s.queue, s.kind, s.arrived, s.succeeded, s.failed, s.timed_out, s.snoozed, s.cancelled, s.died, s.reclaimed,
       s.run_us, s.run_times, s.ready, s.scheduled, s.running, s.dead, s.oldest_us
FROM jobgen.samples s
WHERE s.minute >= date_trunc('minute', now() - sqlc.arg(since_us)::bigint * interval '1 microsecond') AND s.minute > '-infinity'
ORDER BY s.minute, s.queue, s.kind;

-- name: Looks :many
-- Looks lists the looks of the last @since_us.
SELECT l.minute, l.taken_at, l.newest_id, l.share
FROM jobgen.looks l
WHERE l.minute >= date_trunc('minute', now() - sqlc.arg(since_us)::bigint * interval '1 microsecond')
ORDER BY l.minute;

-- name: Unsummed :many
-- Unsummed reads what adds up to all that has ever been counted: the rows of minute -infinity, and those that SumSamples has not
-- added to them yet. Served by samples_unsummed.
SELECT s.queue, s.kind, s.arrived, s.succeeded, s.failed, s.timed_out, s.snoozed, s.cancelled, s.died, s.reclaimed, s.run_us, s.run_times
FROM jobgen.samples s
WHERE NOT s.summed
ORDER BY s.queue, s.kind;
