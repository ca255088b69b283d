-- name: StoreSchedule :exec
-- StoreSchedule makes a declared schedule known, or changes it. Only another expression or zone moves its next tick: a
-- restart keeps what is due. The worker that started last is right.
INSERT INTO jobgen.schedules AS s (kind, name, cron, zone, missed, next_at, queue, version, priority, max_attempts, payload)
VALUES (@kind, @name, @cron, @zone, @missed, @next_at, @queue::text, @version::int, @priority::smallint, @max_attempts::int, (@payload::text)::jsonb)
ON CONFLICT (kind, name) DO UPDATE
SET cron = EXCLUDED.cron, zone = EXCLUDED.zone, missed = EXCLUDED.missed,
    queue = EXCLUDED.queue, version = EXCLUDED.version, priority = EXCLUDED.priority, max_attempts = EXCLUDED.max_attempts, payload = EXCLUDED.payload,
    next_at = CASE WHEN (s.cron, s.zone) = (EXCLUDED.cron, EXCLUDED.zone) THEN s.next_at ELSE EXCLUDED.next_at END
WHERE (s.cron, s.zone, s.missed, s.queue, s.version, s.priority, s.max_attempts, s.payload) IS DISTINCT FROM
      (EXCLUDED.cron, EXCLUDED.zone, EXCLUDED.missed, EXCLUDED.queue, EXCLUDED.version, EXCLUDED.priority, EXCLUDED.max_attempts, EXCLUDED.payload);

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
-- another worker was first, neither. While it is paused it only moves on. Two at once wait for the row: the second finds it moved.
WITH moved AS (
  UPDATE jobgen.schedules s
  SET next_at = @next_at, last_at = CASE WHEN s.paused_at IS NULL THEN @last_at ELSE s.last_at END
  WHERE s.kind = @kind AND s.name = @name AND s.next_at = @at_tick
  RETURNING s.kind, s.paused_at
), ins AS (
  INSERT INTO jobgen.jobs (queue, kind, version, payload, headers, priority, max_attempts)
  SELECT @queue, moved.kind, @version, (@payload::text)::jsonb, h.header::jsonb, @priority, @max_attempts
  FROM moved CROSS JOIN (SELECT unnest(@headers::text[]) AS header) h
  WHERE moved.paused_at IS NULL
  RETURNING id
), woken AS MATERIALIZED (
  SELECT pg_notify('jobgen_' || i.worker_id::text, '')
  FROM (SELECT w.worker_id FROM jobgen.wake w WHERE w.queue = @queue AND @kind = ANY(w.kinds) AND EXISTS (SELECT FROM ins) ORDER BY random() LIMIT 1) i
)
SELECT moved.kind FROM moved WHERE (SELECT count(*) FROM woken) >= 0;

-- name: ListSchedules :many
-- ListSchedules reads all schedules for a person, and how many live workers handle the kind of each.
SELECT s.kind, s.name, s.cron, s.zone, s.missed, s.next_at, s.last_at, s.paused_at,
       s.queue, s.version, s.priority, s.max_attempts, coalesce(s.payload, 'null')::jsonb AS payload,
       (SELECT count(*) FROM jobgen.workers w
        WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND s.kind = ANY(w.kinds))::int AS workers,
       clock_timestamp()::timestamptz AS db_now
FROM jobgen.schedules s ORDER BY s.kind, s.name;

-- name: RunSchedule :one
-- RunSchedule enqueues a job as a tick would, with @header, and leaves the schedule as it is. No row: there is no such
-- schedule any more, or its row does not say what to enqueue.
WITH ins AS (
  INSERT INTO jobgen.jobs (queue, kind, version, payload, headers, priority, max_attempts)
  SELECT s.queue, s.kind, s.version, s.payload, (@header::text)::jsonb, s.priority, s.max_attempts
  FROM jobgen.schedules s WHERE s.kind = @kind AND s.name = @name AND s.queue IS NOT NULL
  RETURNING id, queue, kind
), woken AS MATERIALIZED (
  SELECT pg_notify('jobgen_' || i.worker_id::text, '')
  FROM (SELECT w.worker_id FROM jobgen.wake w JOIN ins ON w.queue = ins.queue AND ins.kind = ANY(w.kinds) ORDER BY random() LIMIT 1) i
)
SELECT ins.id, EXISTS (SELECT FROM jobgen.queues q WHERE q.name = ins.queue AND q.paused_at IS NOT NULL) AS paused
FROM ins WHERE (SELECT count(*) FROM woken) >= 0;

-- name: PauseSchedule :execrows
-- PauseSchedule makes ticks enqueue nothing. One that is paused stays so since when it was.
UPDATE jobgen.schedules s SET paused_at = coalesce(s.paused_at, clock_timestamp()) WHERE s.kind = @kind AND s.name = @name;

-- name: ResumeSchedule :execrows
-- ResumeSchedule ends a pause. Ticks that nobody has moved on from meanwhile are not made up for: @next_at is the first one to come.
UPDATE jobgen.schedules s
SET paused_at = NULL, next_at = CASE WHEN s.paused_at IS NOT NULL THEN greatest(s.next_at, @next_at) ELSE s.next_at END
WHERE s.kind = @kind AND s.name = @name;
