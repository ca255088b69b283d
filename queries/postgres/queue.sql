-- name: SetQueue :one
-- SetQueue decides about a queue, which need not be known to anybody yet. An argument that is null leaves its column as it
-- is; a weight or a number of slots that is 0 takes the decision back. All live workers that poll the queue are told, when
-- the transaction commits; one that misses it looks by itself. Locks the queue's row. workers is small.
WITH put AS (
  INSERT INTO jobgen.queues AS q (name, paused_at, weight, slots)
  VALUES (@name, CASE WHEN sqlc.narg(paused)::bool THEN clock_timestamp() END, nullif(sqlc.narg(weight)::int, 0), nullif(sqlc.narg(slots)::int, 0))
  ON CONFLICT (name) DO UPDATE
  SET paused_at = CASE WHEN sqlc.narg(paused)::bool IS NULL THEN q.paused_at WHEN sqlc.narg(paused)::bool THEN coalesce(q.paused_at, EXCLUDED.paused_at) END,
      weight = CASE WHEN sqlc.narg(weight)::int IS NULL THEN q.weight ELSE EXCLUDED.weight END,
      slots = CASE WHEN sqlc.narg(slots)::int IS NULL THEN q.slots ELSE EXCLUDED.slots END
), told AS MATERIALIZED (
  SELECT pg_notify('jobgen_' || w.id::text, 'control')
  FROM jobgen.workers w
  WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND @name = ANY(w.queues)
)
SELECT count(*)::int AS told FROM told;

-- name: ListQueues :many
-- ListQueues lists the queues about which something has been decided and those that live workers poll.
SELECT n.name::text AS name, q.paused_at, coalesce(q.weight, 0)::int AS weight, coalesce(q.slots, 0)::int AS slots,
       (SELECT count(*) FROM jobgen.workers w
        WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND n.name = ANY(w.queues))::int AS workers,
       clock_timestamp()::timestamptz AS db_now
FROM (
  SELECT s.name FROM jobgen.queues s
  UNION
  SELECT unnest(w.queues) FROM jobgen.workers w WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp()
) n
LEFT JOIN jobgen.queues q ON q.name = n.name
ORDER BY n.name;
