-- name: MarkLost :many
-- MarkLost writes expired leases lost, for good: a heartbeat of such a worker is refused from then on. A row that its
-- worker's heartbeat has locked is skipped. No order: that was a walk through the primary key, a page for each version that
-- heartbeats have left (36,000, where the table had 2,400). Wake rows go with them, and those that nobody alive owns: left behind, each would
-- swallow the wake-ups of its queue.
WITH lost AS (
  UPDATE jobgen.workers
  SET lost_at = clock_timestamp()
  WHERE id = ANY(ARRAY(
    SELECT w.id FROM jobgen.workers w
    WHERE w.lost_at IS NULL AND w.lease_until < clock_timestamp()
    FOR UPDATE SKIP LOCKED
  ))
  RETURNING id, host, pid, beat_at
), asleep AS (
  DELETE FROM jobgen.wake k
  WHERE k.worker_id IN (SELECT lost.id FROM lost)
     OR NOT EXISTS (SELECT FROM jobgen.workers w WHERE w.id = k.worker_id AND w.lost_at IS NULL)
)
SELECT id, host, pid, beat_at FROM lost;

-- name: NoteUnclaimed :one
-- NoteUnclaimed looks at the next n jobs by id above @after and notes the claims of those that run although no claim names them,
-- so that Reclaim finds them if their worker is lost: set running by hand, or restored without their claims. It tells where it
-- has got to; 0: to the end. Served by the primary keys.
WITH looked AS MATERIALIZED (
  SELECT j.id, j.worker_id, j.fence FROM jobgen.jobs j WHERE j.id > @after::bigint ORDER BY j.id LIMIT @n
), noted AS (
  INSERT INTO jobgen.claims AS c (worker_id, fence, ids)
  SELECT l.worker_id, l.fence, array_agg(l.id) FROM looked l
  WHERE l.worker_id IS NOT NULL AND NOT EXISTS (
    SELECT FROM jobgen.claims x WHERE x.worker_id = l.worker_id AND x.fence = l.fence AND l.id = ANY(x.ids) OFFSET 0
  )
  GROUP BY l.worker_id, l.fence
  ON CONFLICT (worker_id, fence) DO UPDATE SET ids = c.ids || EXCLUDED.ids
)
SELECT (CASE WHEN count(*) = @n THEN max(looked.id) ELSE 0 END)::bigint AS upto FROM looked;

-- name: Reclaim :many
-- Reclaim gives running jobs of lost workers back to the queue, at most n: the attempt is returned, a crash is counted
-- and, at max_crashes, the job is dead; one that is asked to end goes back, for the next claim to end it. run_at keeps to the right of every worker's mark. Lost workers are looked at for
-- as long as they are on record, because a claim in flight can commit after its worker was judged. With @orphans, jobs
-- whose worker is on no record at all go back too; that reads the key of all of claims. Rows that somebody else has locked are
-- skipped. The samples are written in order, so that two reclaims at once do not deadlock. Each lost worker is a probe of
-- claims of its own (LATERAL, OFFSET 0); as a join, the planner read what the whole fleet was running, and locked it. What is held is locked and
-- packed into arrays; as a join, a plan made while the table was empty walked all of it. A claim none of whose jobs is
-- held any more, by the statement's snapshot, is forgotten: this or the next round's. Idle workers are woken, to learn when the jobs are due.
-- greatest and coalesce are for rows that were set running by hand: one of them must not keep the others from going back.
WITH lost AS MATERIALIZED (
  SELECT w.id FROM jobgen.workers w WHERE w.lost_at IS NOT NULL
  UNION ALL
  SELECT o.worker_id FROM (
    SELECT DISTINCT c.worker_id FROM jobgen.claims c WHERE @orphans::bool
  ) o WHERE NOT EXISTS (SELECT FROM jobgen.workers x WHERE x.id = o.worker_id)
), held AS MATERIALIZED (
  SELECT r.id, c.fence, c.worker_id
  FROM lost CROSS JOIN LATERAL (
    SELECT o.worker_id, o.fence, o.ids FROM jobgen.claims o WHERE o.worker_id = lost.id OFFSET 0
  ) c CROSS JOIN LATERAL (
    SELECT j.id FROM jobgen.jobs j
    WHERE j.id = ANY(c.ids) AND j.fence = c.fence AND j.worker_id = c.worker_id
    LIMIT @n
    FOR UPDATE SKIP LOCKED
  ) r
  LIMIT @n
), spent AS MATERIALIZED (
  SELECT s.at
  FROM lost CROSS JOIN LATERAL (
    SELECT c.ctid AS at FROM jobgen.claims c
    WHERE c.worker_id = lost.id AND NOT EXISTS (
      SELECT FROM jobgen.jobs j WHERE j.id = ANY(c.ids) AND j.fence = c.fence AND j.worker_id = c.worker_id OFFSET 0
    )
    LIMIT @n
    FOR UPDATE SKIP LOCKED
  ) s
  LIMIT @n
), forgotten AS (
  DELETE FROM jobgen.claims c WHERE c.ctid = ANY(ARRAY(SELECT spent.at FROM spent))
), packed AS MATERIALIZED (
  SELECT array_agg(held.id) AS ids, array_agg(held.fence) AS fences, array_agg(held.worker_id) AS workers FROM held
), back AS (
  UPDATE jobgen.jobs j
  SET status = CASE WHEN j.crashes + 1 >= sqlc.arg(max_crashes)::int AND j.cancel_reason IS NULL THEN 'dead' ELSE 'queued' END,
      attempt = greatest(j.attempt - 1, 0), crashes = j.crashes + 1, fence = 0, worker_id = NULL,
      run_at = greatest(j.run_at, clock_timestamp())
               + least(sqlc.arg(backoff_us)::bigint * 2 ^ least(j.crashes, 12), 3600000000) * (0.5 + 0.5 * random()) * interval '1 microsecond',
      last_error = CASE WHEN j.crashes + 1 >= sqlc.arg(max_crashes)::int
        THEN 'crashed ' || (j.crashes + 1) || ' times: each time the worker process was lost while it ran this job'
        ELSE 'the worker process was lost while it ran this job (crash ' || (j.crashes + 1) || ')' END
  FROM packed
  WHERE j.id = ANY(packed.ids)
  RETURNING j.id, j.queue, j.kind, j.attempt, j.crashes, j.status, j.claimed_at, j.last_error,
    packed.fences[array_position(packed.ids, j.id)] AS fence, packed.workers[array_position(packed.ids, j.id)] AS worker_id
), history AS (
  INSERT INTO jobgen.job_attempt (job_id, attempt, fence, worker_id, started_at, outcome, error)
  SELECT back.id, back.attempt + 1, back.fence, back.worker_id, coalesce(back.claimed_at, clock_timestamp()), 'crashed', back.last_error FROM back
), sampled AS (
  INSERT INTO jobgen.samples AS s (minute, queue, kind, reclaimed, died)
  SELECT date_trunc('minute', now()), back.queue, back.kind, count(*), count(*) FILTER (WHERE back.status = 'dead') FROM back GROUP BY 2, 3 ORDER BY 2, 3
  ON CONFLICT (minute, queue, kind) DO UPDATE SET reclaimed = s.reclaimed + EXCLUDED.reclaimed, died = s.died + EXCLUDED.died
), woken AS MATERIALIZED (
  SELECT pg_notify('jobgen_' || w.worker_id::text, '')
  FROM jobgen.wake w WHERE w.queue IN (SELECT back.queue FROM back)
)
SELECT back.id, back.queue, back.kind, back.attempt, back.crashes, back.worker_id::uuid AS worker_id, (back.status = 'dead')::bool AS dead
FROM back WHERE (SELECT count(*) FROM woken) >= 0;
