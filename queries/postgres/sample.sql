-- name: Sample :one
-- Sample adds what a worker has counted to the rows of a minute: the one that it was @ago_us ago, or five minutes ago, since rows
-- older than that are about to be summed. @run_times has @buckets numbers for each row, of which the first @lengths[i] count. In
-- order of the primary key, so that two at once do not deadlock. No fsync is waited for: the counts of the last moment may go
-- with a server that crashes. It tells how far ids had come at the last two looks, the last one first, and whether that was in
-- this minute. Served by the primary keys.
WITH lazy AS MATERIALIZED (
  SELECT set_config('synchronous_commit', 'off', true) AS off
), counted AS (
  INSERT INTO jobgen.samples AS s (minute, queue, kind, arrived, succeeded, failed, timed_out, snoozed, cancelled, died, run_us, run_times)
  SELECT date_trunc('minute', now() - least(sqlc.arg(ago_us)::bigint, 300000000) * interval '1 microsecond'),
         c.queue, c.kind, c.arrived, c.succeeded, c.failed, c.timed_out, c.snoozed, c.cancelled, c.died, c.run_us,
         nullif((@run_times::bigint[])[c.at * sqlc.arg(buckets)::int + 1 : c.at * sqlc.arg(buckets)::int + c.length], '{}')
  FROM lazy CROSS JOIN (
    SELECT unnest(@queues::text[]) AS queue, unnest(@kinds::text[]) AS kind, unnest(@arrived::bigint[]) AS arrived,
           unnest(@succeeded::bigint[]) AS succeeded, unnest(@failed::bigint[]) AS failed, unnest(@timed_out::bigint[]) AS timed_out,
           unnest(@snoozed::bigint[]) AS snoozed, unnest(@cancelled::bigint[]) AS cancelled, unnest(@died::bigint[]) AS died,
           unnest(@run_us::bigint[]) AS run_us, unnest(@lengths::int[]) AS length,
           generate_series(0, cardinality(@queues::text[]) - 1) AS at
  ) c
  WHERE lazy.off IS NOT NULL
  ORDER BY c.queue COLLATE "C", c.kind COLLATE "C"
  ON CONFLICT (minute, queue, kind) DO UPDATE
  SET arrived = s.arrived + EXCLUDED.arrived, succeeded = s.succeeded + EXCLUDED.succeeded, failed = s.failed + EXCLUDED.failed,
      timed_out = s.timed_out + EXCLUDED.timed_out, snoozed = s.snoozed + EXCLUDED.snoozed, cancelled = s.cancelled + EXCLUDED.cancelled,
      died = s.died + EXCLUDED.died, run_us = s.run_us + EXCLUDED.run_us,
      run_times = (SELECT array_agg(coalesce(s.run_times[b.i], 0) + coalesce(EXCLUDED.run_times[b.i], 0) ORDER BY b.i)
                   FROM generate_series(1, greatest(cardinality(s.run_times), cardinality(EXCLUDED.run_times))) AS b(i))
)
SELECT ARRAY(SELECT l.newest_id FROM jobgen.looks l ORDER BY l.minute DESC LIMIT 2)::bigint[] AS newest,
       EXISTS (SELECT FROM jobgen.looks l WHERE l.minute >= date_trunc('minute', now())) AS current;

-- name: LookTurn :one
-- LookTurn tells whether the look of this minute is still to be taken, and by nobody else at this moment. If there is one from ahead,
-- the clock was set back, and this minute has come again.
SELECT ((NOT EXISTS (SELECT FROM jobgen.looks l WHERE l.minute >= date_trunc('minute', now()))
         OR EXISTS (SELECT FROM jobgen.looks l WHERE l.minute > now() + interval '1 minute'))
        AND pg_try_advisory_xact_lock(hashtextextended('jobgen.look', 0)))::bool AS turn;

-- name: MendLooks :exec
-- MendLooks does nothing unless the clock was set back. Looks from ahead would be the last ones until it is as late again: they go, and the last two
-- of them stand for those of the last two minutes, since what they say of ids goes on to be true. So do samples that have been
-- summed of minutes that are counted into again: what was added to them would be in no sum. Served by the primary keys.
WITH ahead AS (
  DELETE FROM jobgen.looks l
  WHERE l.minute >= date_trunc('minute', now()) AND EXISTS (SELECT FROM jobgen.looks o WHERE o.minute > now() + interval '1 minute')
  RETURNING l.minute, l.newest_id, l.share
), last AS (
  SELECT a.newest_id, a.share, date_trunc('minute', now()) - row_number() OVER (ORDER BY a.minute DESC) * interval '1 minute' AS minute
  FROM ahead a ORDER BY a.minute DESC LIMIT 2
), again AS (
  DELETE FROM jobgen.samples s WHERE s.minute > now() - interval '7 minutes' AND s.summed
)
INSERT INTO jobgen.looks (minute, taken_at, newest_id, share)
SELECT last.minute, last.minute, last.newest_id, last.share FROM last
ON CONFLICT (minute) DO UPDATE SET taken_at = EXCLUDED.taken_at, newest_id = EXCLUDED.newest_id, share = EXCLUDED.share;

-- name: LastLooks :many
SELECT l.minute, l.taken_at, l.newest_id FROM jobgen.looks l ORDER BY l.minute DESC LIMIT 3;

-- name: LookArrivals :many
-- LookArrivals counts the jobs in some ranges of ids. Served by the primary key.
SELECT j.queue, j.kind, count(*) AS n
FROM (SELECT unnest(@afters::bigint[]) AS after, unnest(@uptos::bigint[]) AS upto) r CROSS JOIN LATERAL (
  SELECT a.queue, a.kind FROM jobgen.jobs a WHERE a.id > r.after AND a.id <= r.upto
  OFFSET 0
) j
GROUP BY j.queue, j.kind;

-- name: LookCancelled :many
-- LookCancelled counts the jobs that were cancelled between two times while they waited, or were dead, and of these, those with an id
-- after @seen, whose arrival no look has counted before they went. (Cancel cannot count them: it runs in the application's
-- transactions, where it would keep the row of the minute locked.) Served by job_attempt_ended and the primary key.
SELECT r.queue, r.kind, count(*) AS n, count(*) FILTER (WHERE a.job_id > @seen::bigint) AS arrived
FROM jobgen.job_attempt a CROSS JOIN LATERAL (
  SELECT x.queue, x.kind FROM jobgen.job_archive x WHERE x.job_id = a.job_id
  OFFSET 0
) r
WHERE a.ended_at > @after::timestamptz AND a.ended_at <= @upto::timestamptz AND a.outcome = 'cancelled' AND a.fence = 0
GROUP BY r.queue, r.kind;

-- name: PutLook :execrows
-- PutLook stores a look, if nobody has stored one of its minute: the levels, and what it has counted in the minute @since. With @whole, what was
-- there at the look @before and is not any more is 0 now; without, nothing is known of it. Each of the two parts goes in order of
-- the primary key.
WITH mine AS (
  INSERT INTO jobgen.looks AS l (minute, taken_at, newest_id, share)
  VALUES (date_trunc('minute', sqlc.arg(at)::timestamptz), sqlc.arg(at)::timestamptz, @newest_id::bigint, @share::real)
  ON CONFLICT (minute) DO NOTHING
  RETURNING l.minute
), counted AS (
  INSERT INTO jobgen.samples AS s (minute, queue, kind, arrived, cancelled)
  SELECT greatest(@since::timestamptz, mine.minute - interval '5 minutes'), c.queue, c.kind, c.arrived, c.cancelled
  FROM mine CROSS JOIN (
    SELECT unnest(@of_queues::text[]) AS queue, unnest(@of_kinds::text[]) AS kind, unnest(@arrived::bigint[]) AS arrived,
           unnest(@cancelled::bigint[]) AS cancelled
  ) c
  ORDER BY c.queue COLLATE "C", c.kind COLLATE "C"
  ON CONFLICT (minute, queue, kind) DO UPDATE SET arrived = s.arrived + EXCLUDED.arrived, cancelled = s.cancelled + EXCLUDED.cancelled
)
INSERT INTO jobgen.samples AS s (minute, queue, kind, ready, scheduled, running, dead, oldest_us)
SELECT mine.minute, v.queue, v.kind, v.ready, v.scheduled, v.running, v.dead, v.oldest_us
FROM mine CROSS JOIN (
  SELECT unnest(@queues::text[]) AS queue, unnest(@kinds::text[]) AS kind, unnest(@ready::bigint[]) AS ready,
         unnest(@scheduled::bigint[]) AS scheduled, unnest(@running::bigint[]) AS running, unnest(@dead::bigint[]) AS dead,
         unnest(@oldest_us::bigint[]) AS oldest_us
  UNION ALL
  SELECT b.queue, b.kind, 0, 0, 0, 0, 0
  FROM jobgen.samples b
  WHERE @whole::bool AND b.minute = @before::timestamptz AND b.ready + b.scheduled + b.running + b.dead > 0
    AND NOT EXISTS (
      SELECT FROM (SELECT unnest(@queues::text[]) AS queue, unnest(@kinds::text[]) AS kind) x WHERE x.queue = b.queue AND x.kind = b.kind
    )
) v
ORDER BY v.queue COLLATE "C", v.kind COLLATE "C"
ON CONFLICT (minute, queue, kind) DO UPDATE
SET ready = EXCLUDED.ready, scheduled = EXCLUDED.scheduled, running = EXCLUDED.running, dead = EXCLUDED.dead, oldest_us = EXCLUDED.oldest_us;

-- name: SumSamples :one
-- SumSamples adds up to @n rows of finished minutes to those of minute -infinity, and marks them as summed: they change no more,
-- and Unsummed need not read them. Ten minutes, because counts may come late (Sample). Rows that another one sums at this moment
-- are skipped. The sums go in order. Served by samples_unsummed; by ctid, which leaves no choice.
WITH chunk AS MATERIALIZED (
  SELECT s.ctid AS at FROM jobgen.samples s
  WHERE NOT s.summed AND s.minute < now() - interval '10 minutes' AND s.minute > '-infinity'
  ORDER BY s.minute
  LIMIT @n
  FOR UPDATE SKIP LOCKED
), marked AS (
  UPDATE jobgen.samples s SET summed = true
  WHERE s.ctid = ANY(ARRAY(SELECT chunk.at FROM chunk))
  RETURNING s.queue, s.kind, s.arrived, s.succeeded, s.failed, s.timed_out, s.snoozed, s.cancelled, s.died, s.reclaimed, s.run_us, s.run_times
), times AS (
  SELECT b.queue, b.kind, array_agg(b.n ORDER BY b.i) AS run_times
  FROM (
    SELECT m.queue, m.kind, u.i, sum(u.n)::bigint AS n
    FROM marked m CROSS JOIN LATERAL unnest(m.run_times) WITH ORDINALITY AS u(n, i)
    GROUP BY m.queue, m.kind, u.i
  ) b
  GROUP BY b.queue, b.kind
), sums AS (
  INSERT INTO jobgen.samples AS s (minute, queue, kind, arrived, succeeded, failed, timed_out, snoozed, cancelled, died, reclaimed, run_us, run_times)
  SELECT '-infinity', m.queue, m.kind, sum(m.arrived), sum(m.succeeded), sum(m.failed), sum(m.timed_out), sum(m.snoozed), sum(m.cancelled),
         sum(m.died), sum(m.reclaimed), sum(m.run_us),
         (SELECT t.run_times FROM times t WHERE t.queue = m.queue AND t.kind = m.kind)
  FROM marked m
  GROUP BY m.queue, m.kind
  ORDER BY m.queue, m.kind
  ON CONFLICT (minute, queue, kind) DO UPDATE
  SET arrived = s.arrived + EXCLUDED.arrived, succeeded = s.succeeded + EXCLUDED.succeeded, failed = s.failed + EXCLUDED.failed,
      timed_out = s.timed_out + EXCLUDED.timed_out, snoozed = s.snoozed + EXCLUDED.snoozed, cancelled = s.cancelled + EXCLUDED.cancelled,
      died = s.died + EXCLUDED.died, reclaimed = s.reclaimed + EXCLUDED.reclaimed, run_us = s.run_us + EXCLUDED.run_us,
      run_times = (SELECT array_agg(coalesce(s.run_times[b.i], 0) + coalesce(EXCLUDED.run_times[b.i], 0) ORDER BY b.i)
                   FROM generate_series(1, greatest(cardinality(s.run_times), cardinality(EXCLUDED.run_times))) AS b(i))
)
SELECT count(*)::bigint AS n FROM marked;
