-- name: ListWorkers :many
-- ListWorkers reads all workers on record, the live ones first. workers is small.
SELECT w.id, w.host, w.pid, w.build, w.started_at, w.beat_at, w.lease_until, w.lost_at, w.queues, w.kinds, w.versions, w.timeouts_us,
       w.slots, w.running, coalesce(w.stuck, 0)::int AS stuck, w.skew_us, w.pooled, clock_timestamp()::timestamptz AS db_now
FROM jobgen.workers w
ORDER BY w.lost_at DESC NULLS FIRST, w.host, w.started_at, w.id;

-- name: HeldSums :many
-- HeldSums tells how many jobs workers hold, as far as @n of each, and which of them was claimed first. For each worker, a range
-- of claims from the oldest on, and a probe of jobs by id for each job that a claim of it names, until there are @n. (With the probes
-- inside the order, all that a worker holds was read for it: 0.75 s for 100 workers with 4,000 each, now 0.16 s.)
SELECT w.id::uuid AS worker_id, s.held, coalesce(s.job_id, 0)::bigint AS job_id, coalesce(s.kind, '')::text AS kind,
       coalesce(s.claimed_at, clock_timestamp())::timestamptz AS claimed_at
FROM (SELECT unnest(@workers::uuid[]) AS id) w CROSS JOIN LATERAL (
  SELECT count(*)::int AS held, (array_agg(j.id ORDER BY j.claimed_at, j.id))[1] AS job_id,
         (array_agg(j.kind ORDER BY j.claimed_at, j.id))[1] AS kind, min(j.claimed_at) AS claimed_at
  FROM (
    SELECT p.id, p.kind, p.claimed_at
    FROM (
      SELECT u.id, c.fence FROM jobgen.claims c CROSS JOIN LATERAL unnest(c.ids) AS u(id) WHERE c.worker_id = w.id ORDER BY c.fence
    ) n CROSS JOIN LATERAL (
      SELECT h.id, h.kind, h.claimed_at FROM jobgen.jobs h WHERE h.id = n.id AND h.fence = n.fence AND h.worker_id = w.id OFFSET 0
    ) p
    LIMIT @n
  ) j
) s;

-- name: HeldJobs :many
-- HeldJobs lists what a worker holds, the oldest claims first, in the same way.
SELECT h.id, h.kind, h.queue, h.attempt, h.max_attempts, h.claimed_at::timestamptz AS claimed_at, (h.cancel_reason IS NOT NULL)::bool AS asked
FROM jobgen.claims c CROSS JOIN LATERAL (
  SELECT p.id, p.kind, p.queue, p.attempt, p.max_attempts, coalesce(p.claimed_at, clock_timestamp()) AS claimed_at, p.cancel_reason
  FROM jobgen.jobs p WHERE p.id = ANY(c.ids) AND p.fence = c.fence AND p.worker_id = c.worker_id OFFSET 0
) h
WHERE c.worker_id = @worker::uuid
ORDER BY c.fence
LIMIT @n;

-- name: StartedJobs :many
-- StartedJobs lists the jobs owned by lock that workers have marked as started, whose rows say nothing of it. job_start is
-- small: it has no more rows than handlers run.
SELECT s.worker_id, s.started_at, j.id, j.kind, j.queue, j.attempt, j.max_attempts
FROM jobgen.job_start s CROSS JOIN LATERAL (
  SELECT p.id, p.kind, p.queue, p.attempt, p.max_attempts FROM jobgen.jobs p WHERE p.id = s.job_id AND p.worker_id IS NULL AND NOT p.dead OFFSET 0
) j
WHERE s.worker_id = ANY(@workers::uuid[])
ORDER BY s.started_at
LIMIT @n;
