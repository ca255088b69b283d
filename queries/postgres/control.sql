-- name: Control :one
-- Control tells a worker, in one round trip, what operators have decided about its queues and which of its jobs are to be
-- stopped. All columns of one queue stand at one position. Both tables are small, and empty as a rule.
SELECT coalesce(q.names, '{}')::text[] AS queues, coalesce(q.paused, '{}')::bool[] AS paused,
       coalesce(q.weights, '{}')::int[] AS weights, coalesce(q.slots, '{}')::int[] AS slots,
       coalesce(c.ids, '{}')::bigint[] AS cancel_ids, coalesce(c.reasons, '{}')::text[] AS cancel_reasons
FROM (
  SELECT array_agg(s.name) AS names, array_agg(s.paused_at IS NOT NULL) AS paused,
         array_agg(coalesce(s.weight, 0)) AS weights, array_agg(coalesce(s.slots, 0)) AS slots
  FROM jobgen.queues s WHERE s.name = ANY(@queues::text[])
) q
CROSS JOIN (
  SELECT array_agg(x.job_id) AS ids, array_agg(x.reason) AS reasons
  FROM jobgen.job_cancel x WHERE x.worker_id = @worker_id::uuid
) c;
