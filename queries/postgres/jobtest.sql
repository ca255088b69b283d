-- name: JobsOfKind :many
-- JobsOfKind reads all jobs of a kind, oldest first, for a test's assertions. It reads the whole table.
SELECT id, status, queue, kind, version, key, priority, attempt, max_attempts, crashes, run_at, created_at, claimed_at,
       worker_id, payload, headers, coalesce(last_error, '')::text AS last_error, deadline, coalesce(snoozes, 0)::int AS snoozes, cancel_reason
FROM jobgen.jobs WHERE kind = @kind ORDER BY id;

-- name: CountByKind :many
-- CountByKind tells what else is there when an assertion finds nothing.
SELECT kind, count(*) AS n FROM jobgen.jobs GROUP BY kind ORDER BY kind;

-- name: Unfinished :one
-- Unfinished counts the live workers, and the jobs that they run or could run now, with those of schedules that are due and
-- without those of paused queues.
SELECT (SELECT count(*) FROM jobgen.workers w WHERE w.lost_at IS NULL)::int AS workers,
       ((SELECT count(*) FROM jobgen.schedules s
         WHERE s.next_at <= clock_timestamp()
           AND EXISTS (SELECT FROM jobgen.workers w WHERE w.lost_at IS NULL AND s.kind = ANY(w.kinds)))
        + (SELECT count(*) FROM jobgen.jobs j
        WHERE j.status = 'running'
           OR j.status = 'queued' AND j.run_at <= clock_timestamp()
              AND EXISTS (SELECT FROM jobgen.workers w WHERE w.lost_at IS NULL AND j.kind = ANY(w.kinds) AND j.queue = ANY(w.queues))
              AND NOT EXISTS (SELECT FROM jobgen.queues q WHERE q.name = j.queue AND q.paused_at IS NOT NULL)))::int AS jobs;

-- name: MoveJob :one
-- MoveJob puts a waiting job into a queue, due now, and tells where it was.
UPDATE jobgen.jobs j
SET queue = @queue, run_at = least(j.run_at, clock_timestamp())
FROM (SELECT o.id, o.queue FROM jobgen.jobs o WHERE o.id = @id AND o.status = 'queued' FOR UPDATE) old
WHERE j.id = old.id
RETURNING old.queue;

-- name: PutBack :exec
-- PutBack ends what MoveJob began, if the job is still there.
UPDATE jobgen.jobs SET queue = @queue WHERE id = @id;

-- name: LeaseEnds :many
-- LeaseEnds lists how long the leases of processes other than this one have left, in microseconds, as far as they end
-- within @within_us: those of processes that a test has killed.
SELECT (extract(epoch FROM w.lease_until - clock_timestamp()) * 1000000)::bigint AS left_us
FROM jobgen.workers w
WHERE w.lost_at IS NULL AND (w.pid <> @pid OR w.host <> @host)
  AND w.lease_until <= clock_timestamp() + sqlc.arg(within_us)::bigint * interval '1 microsecond'
ORDER BY 1;

-- name: ExtendLeases :exec
-- ExtendLeases keeps the workers of this process alive over a jump of the clock, during which they can renew nothing.
UPDATE jobgen.workers w SET lease_until = w.lease_until + sqlc.arg(by_us)::bigint * interval '1 microsecond'
WHERE w.lost_at IS NULL AND w.pid = @pid AND w.host = @host;

-- name: WakeAll :exec
-- WakeAll wakes every idle worker: the time has jumped.
SELECT pg_notify('jobgen_' || w.worker_id::text, '') FROM jobgen.wake w;

-- name: MoveClock :exec
-- MoveClock moves the clock of a test's database.
UPDATE jobtest.clock SET shift = shift + sqlc.arg(by_us)::bigint * interval '1 microsecond';
