-- name: StoreSchedule :exec
-- StoreSchedule makes a declared schedule known, or changes it. Only another expression or zone moves its next tick: a
-- restart keeps what is due. The worker that started last is right.
INSERT INTO jobgen.schedules AS s (kind, name, cron, zone, missed, next_at)
VALUES (@kind, @name, @cron, @zone, @missed, @next_at)
ON CONFLICT (kind, name) DO UPDATE
SET cron = EXCLUDED.cron, zone = EXCLUDED.zone, missed = EXCLUDED.missed,
    next_at = CASE WHEN (s.cron, s.zone) = (EXCLUDED.cron, EXCLUDED.zone) THEN s.next_at ELSE EXCLUDED.next_at END
WHERE (s.cron, s.zone, s.missed) IS DISTINCT FROM (EXCLUDED.cron, EXCLUDED.zone, EXCLUDED.missed);

-- name: DropSchedules :execrows
-- DropSchedules forgets the schedules of these kinds that are not declared any more: @names[i] of @of_kinds[i] are.
DELETE FROM jobgen.schedules s
WHERE s.kind = ANY(@kinds::text[])
  AND NOT EXISTS (
    SELECT FROM (SELECT unnest(@of_kinds::text[]) AS kind, unnest(@names::text[]) AS name) d
    WHERE d.kind = s.kind AND d.name = s.name
  );

-- name: Schedules :many
-- Schedules lists the schedules of some kinds with the database's time, which decides what is due.
SELECT kind, name, cron, zone, missed, next_at, clock_timestamp()::timestamptz AS db_now
FROM jobgen.schedules WHERE kind = ANY(@kinds::text[]) ORDER BY next_at;

-- name: Tick :execrows
-- Tick moves a schedule on from the tick it is at and enqueues a job for each of @headers, which tell the ticks' times; if
-- another worker was first, neither. Two at once wait for the row: the second finds it moved.
WITH moved AS (
  UPDATE jobgen.schedules s
  SET next_at = @next_at, last_at = @last_at
  WHERE s.kind = @kind AND s.name = @name AND s.next_at = @at_tick
  RETURNING s.kind
), ins AS (
  INSERT INTO jobgen.jobs (queue, kind, version, payload, headers, priority, max_attempts)
  SELECT @queue, moved.kind, @version, (@payload::text)::jsonb, h.header::jsonb, @priority, @max_attempts
  FROM moved CROSS JOIN (SELECT unnest(@headers::text[]) AS header) h
  RETURNING id
), woken AS MATERIALIZED (
  SELECT pg_notify('jobgen_' || i.worker_id::text, '')
  FROM (SELECT w.worker_id FROM jobgen.wake w WHERE w.queue = @queue AND @kind = ANY(w.kinds) AND EXISTS (SELECT FROM ins) ORDER BY random() LIMIT 1) i
)
SELECT moved.kind FROM moved WHERE (SELECT count(*) FROM woken) >= 0;
