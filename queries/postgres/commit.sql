-- name: Fates :many
-- Fates tells what became of transactions of which the answer to COMMIT was lost. Each had the row of its job locked until
-- it ended, so the row decides: there and free, it was rolled back; there and not free, it has not ended (or ended after this
-- statement's snapshot: ask again); gone, it committed, unless its status says otherwise: then somebody else has taken the
-- row. The status alone would not do: after a failover that lost the transaction, its number may be another's. It is not
-- asked for numbers from the future, which are an error. Locks the rows, waiting for none; served by the primary key.
WITH asked AS (
  SELECT unnest(@ids::bigint[]) AS id, unnest(@fences::bigint[]) AS fence, unnest(@xacts::bigint[]) AS xact
), free AS MATERIALIZED (
  SELECT j.id FROM jobgen.jobs j
  WHERE j.id = ANY(@ids::bigint[]) AND j.fence = (@fences::bigint[])[array_position(@ids::bigint[], j.id)]
    AND j.worker_id IS NOT DISTINCT FROM sqlc.narg(worker_id)::uuid
  FOR UPDATE SKIP LOCKED
)
SELECT asked.id::bigint AS id,
       EXISTS (
         SELECT FROM jobgen.jobs j WHERE j.id = asked.id AND j.fence = asked.fence AND j.worker_id IS NOT DISTINCT FROM sqlc.narg(worker_id)::uuid
         OFFSET 0
       )::bool AS there,
       (asked.id IN (SELECT free.id FROM free))::bool AS free,
       coalesce(CASE WHEN asked.xact > 0 AND asked.xact::text::xid8 < pg_snapshot_xmax(pg_current_snapshot())
         THEN pg_xact_status(asked.xact::text::xid8) END, '')::text AS status
FROM asked;
