-- name: JobsOfKind :many
-- JobsOfKind reads all jobs of a kind, oldest first, for a test's assertions. It reads the whole table.
SELECT id, status, queue, kind, version, key, priority, attempt, max_attempts, crashes, run_at, created_at, claimed_at,
       worker_id, payload, headers, coalesce(last_error, '')::text AS last_error
FROM jobgen.jobs WHERE kind = @kind ORDER BY id;

-- name: CountByKind :many
-- CountByKind tells what else is there when an assertion finds nothing.
SELECT kind, count(*) AS n FROM jobgen.jobs GROUP BY kind ORDER BY kind;

-- name: Unfinished :one
-- Unfinished counts the live workers, and the jobs that they run or could run now.
SELECT (SELECT count(*) FROM jobgen.workers w WHERE w.lost_at IS NULL)::int AS workers,
       (SELECT count(*) FROM jobgen.jobs j
        WHERE j.status = 'running'
           OR j.status = 'queued' AND j.run_at <= clock_timestamp()
              AND EXISTS (SELECT FROM jobgen.workers w WHERE w.lost_at IS NULL AND j.kind = ANY(w.kinds) AND j.queue = ANY(w.queues)))::int AS jobs;


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
