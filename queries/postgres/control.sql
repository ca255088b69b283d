-- name: Signs :one
-- Signs tells whether there is anything for the statements that cost more: a decision about a queue, a wish to cancel, a
-- suspect that is due, of whatever queue, job and kind; and whether a lease has run out, or a worker that was lost a short while
-- ago has claims left (one in flight can commit until its statement_timeout; what comes later is found when orphans are looked for).
-- Every worker of an idle fleet sends it with each heartbeat, so it is as cheap as can be: one walk through workers, which is
-- small, a probe of claims for each that was lost, and three of what is empty as a rule: two tables, and jobs_suspect.
-- It is apart from Heartbeat, so that nothing about all these can cost a worker its lease.
SELECT EXISTS (SELECT FROM jobgen.queues) AS decided,
       EXISTS (SELECT FROM jobgen.job_cancel) AS cancels,
       EXISTS (SELECT FROM jobgen.jobs q WHERE NOT q.dead AND q.crashes >= 2 AND q.run_at <= now() AND q.worker_id IS NULL) AS suspects,
       count(*) FILTER (WHERE w.lost_at IS NULL AND w.lease_until > now())::int AS fleet,
       coalesce(bool_or(CASE WHEN w.lost_at IS NULL THEN w.lease_until < now()
                             WHEN w.lost_at > now() - interval '2 minutes'
                             THEN EXISTS (SELECT FROM jobgen.claims c WHERE c.worker_id = w.id) END), false)::bool AS lost
FROM jobgen.workers w;

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
