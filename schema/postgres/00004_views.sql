-- What psql needs to tell how a queue is: docs/operating/sql.md. The columns of these views keep their names, types and meaning from
-- version to version; new ones come at the end. The tables behind them may change. None shows a payload, so that a role with rights
-- to the views alone can watch a queue. None walks over jobs.

-- +goose Up

-- What there is of each kind in each queue, as of the last look (a worker takes one each minute), and what came and went in each of
-- five minutes on average: the last ones of which all is counted. What came in a minute and waits is known at the second look after it, so
-- with the minute before the last look, less would seem to come than does.
CREATE VIEW jobgen.overview AS
WITH look AS (
  SELECT l.minute, l.taken_at, l.share, l.taken_at > now() - interval '6 minutes' AS fresh FROM jobgen.looks l ORDER BY l.minute DESC LIMIT 1
), counted AS (
  SELECT coalesce((SELECT look.minute FROM look WHERE look.fresh), date_trunc('minute', now())) - interval '1 minute' AS upto
), level AS (
  SELECT s.queue, s.kind, s.ready, s.scheduled, s.running, s.dead, s.oldest_us
  FROM jobgen.samples s WHERE s.minute = (SELECT look.minute FROM look) AND s.ready IS NOT NULL
), flow AS (
  SELECT s.queue, s.kind, sum(s.arrived) AS came, sum(s.succeeded + s.cancelled + s.died) AS went, sum(s.failed) AS failed, sum(s.reclaimed) AS reclaimed
  FROM jobgen.samples s
  WHERE s.minute >= (SELECT counted.upto FROM counted) - interval '5 minutes' AND s.minute < (SELECT counted.upto FROM counted)
  GROUP BY s.queue, s.kind
)
SELECT b.queue, b.kind,
       coalesce(l.ready, 0)::bigint AS ready,
       CASE WHEN l.ready > 0 THEN make_interval(secs => l.oldest_us / 1000000.0) END AS oldest, -- how long the oldest ready job had waited; null: none is ready
       coalesce(l.scheduled, 0)::bigint AS scheduled,
       coalesce(l.running, 0)::bigint AS running,
       coalesce(l.dead, 0)::bigint AS dead,
       -- Null: nobody has looked in these minutes, so nobody has counted what came.
       CASE WHEN look.fresh THEN round(coalesce(f.came, 0) / 5, 1) END AS in_per_minute,
       round(coalesce(f.went, 0) / 5, 1) AS out_per_minute,             -- succeeded, cancelled or died
       round(coalesce(f.failed, 0) / 5, 1) AS failed_per_minute,        -- attempts
       round(coalesce(f.reclaimed, 0) / 5, 1) AS reclaimed_per_minute,  -- attempts whose worker was lost
       (SELECT count(*) FROM jobgen.workers w
        WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND b.queue = ANY(w.queues) AND b.kind = ANY(w.kinds)) AS workers, -- alive, for this kind in this queue
       EXISTS (SELECT FROM jobgen.queues q WHERE q.name = b.queue AND q.paused_at IS NOT NULL) AS paused,
       look.taken_at AS as_of,    -- null: nobody has looked yet
       look.share >= 1 AS exact   -- false: the levels are estimates
FROM (SELECT level.queue, level.kind FROM level UNION SELECT flow.queue, flow.kind FROM flow) b
LEFT JOIN level l ON l.queue = b.queue AND l.kind = b.kind
LEFT JOIN flow f ON f.queue = b.queue AND f.kind = b.kind
LEFT JOIN look ON true;

-- Jobs that are out of attempts. id + 0: in the order of ids the planner would walk the primary key, past all that waits.
CREATE VIEW jobgen.dead AS
SELECT j.id + 0 AS job_id, j.queue, j.kind, j.key, j.attempt AS attempts, j.crashes, j.last_error AS error, j.created_at,
       j.run_at AS died_at
FROM jobgen.jobs j
WHERE j.dead;

-- Jobs that run, those owned by lock included. OFFSET 0: each is looked up by its primary key, whatever the planner thinks of their number.
CREATE VIEW jobgen.running AS
SELECT r.job_id, r.queue, r.kind, r.key, r.attempt, r.since, clock_timestamp() - r.since AS running_for,
       r.worker_id, w.host, w.pid, w.lease_until - clock_timestamp() AS lease_left -- negative: about to be taken back; null: the worker is not on record
FROM (
  SELECT j.id AS job_id, j.queue, j.kind, j.key, j.attempt, j.claimed_at AS since, c.worker_id
  FROM jobgen.claims c CROSS JOIN LATERAL unnest(c.ids) AS u(id) CROSS JOIN LATERAL (
    SELECT h.id, h.queue, h.kind, h.key, h.attempt, h.claimed_at FROM jobgen.jobs h WHERE h.id = u.id AND h.fence = c.fence AND h.worker_id = c.worker_id OFFSET 0
  ) j
  UNION ALL
  SELECT j.id, j.queue, j.kind, j.key, j.attempt + 1, s.started_at, s.worker_id
  FROM jobgen.job_start s CROSS JOIN LATERAL (
    SELECT h.id, h.queue, h.kind, h.key, h.attempt FROM jobgen.jobs h WHERE h.id = s.job_id AND h.status = 'queued' OFFSET 0
  ) j
  WHERE EXISTS (SELECT FROM jobgen.workers o WHERE o.id = s.worker_id AND o.lost_at IS NULL AND o.lease_until > clock_timestamp())
) r
LEFT JOIN jobgen.workers w ON w.id = r.worker_id;

-- Worker processes. A lost one stays for a day.
CREATE VIEW jobgen.fleet AS
SELECT w.id AS worker_id,
       CASE WHEN w.lost_at IS NOT NULL THEN 'lost' WHEN w.lease_until <= clock_timestamp() THEN 'expired' ELSE 'alive' END AS state, -- expired: about to be lost
       w.host, w.pid, w.build, w.started_at, w.beat_at, w.lost_at, w.queues, w.kinds,
       w.slots,                         -- handlers at once; null: its program does not say
       w.running,                       -- handlers that ran at its last heartbeat; null: as slots
       coalesce(w.stuck, 0) AS stuck    -- of these, how many run on although their context has ended
FROM jobgen.workers w;

-- What happened in each minute, for 14 days.
CREATE VIEW jobgen.minutes AS
SELECT s.minute, s.queue, s.kind, s.arrived, s.succeeded, s.failed, s.timed_out, s.snoozed, s.cancelled, s.died, s.reclaimed,
       make_interval(secs => s.run_us / 1000000.0) AS run_time, -- of all attempts that ended, together
       s.ready, s.scheduled, s.running, s.dead,                 -- null: nobody looked in that minute
       CASE WHEN s.ready > 0 THEN make_interval(secs => s.oldest_us / 1000000.0) END AS oldest
FROM jobgen.samples s
WHERE s.minute > '-infinity';

-- What is on record of one job, in order. A function, because a result without a key is found by a key made from the id.
CREATE FUNCTION jobgen.history(job_id bigint)
RETURNS TABLE (at timestamptz, event text, attempt integer, took interval, worker_id uuid, detail text)
LANGUAGE sql STABLE AS $$
  WITH RECURSIVE kinds AS (
    (SELECT r.kind FROM jobgen.job_result r ORDER BY r.kind LIMIT 1)
    UNION ALL
    SELECT (SELECT r.kind FROM jobgen.job_result r WHERE r.kind > k.kind ORDER BY r.kind LIMIT 1)
    FROM kinds k WHERE k.kind IS NOT NULL
  )
  SELECT j.created_at, 'enqueued', NULL::integer, NULL::interval, NULL::uuid, j.kind || ' in ' || j.queue || coalesce(', key ' || j.key, '')
  FROM jobgen.jobs j WHERE j.id = $1
  UNION ALL
  SELECT a.created_at, 'enqueued', NULL, NULL, NULL, a.kind || ' in ' || a.queue || coalesce(', key ' || a.key, '')
  FROM jobgen.job_archive a WHERE a.job_id = $1
  UNION ALL
  SELECT t.ended_at, t.outcome, t.attempt, t.ended_at - t.started_at, t.worker_id, t.error
  FROM jobgen.job_attempt t WHERE t.job_id = $1
  UNION ALL
  SELECT a.finished_at, a.status, a.attempt, a.finished_at - a.started_at, a.worker_id, a.reason
  FROM jobgen.job_archive a WHERE a.job_id = $1
  UNION ALL
  SELECT f.finished_at, 'recorded', NULL, NULL, NULL, 'the result is kept until ' || f.expires_at
  FROM (
    SELECT r.finished_at, r.expires_at FROM kinds k CROSS JOIN LATERAL (
      SELECT o.finished_at, o.expires_at FROM jobgen.job_result o WHERE o.kind = k.kind AND o.key = 'job:' || $1 AND o.job_id = $1 LIMIT 1
    ) r
    UNION ALL
    SELECT b.finished_at, b.expires_at FROM jobgen.job_result b WHERE b.job_id = $1 AND left(b.key, 4) <> 'job:'
  ) f WHERE f.finished_at IS NOT NULL
  UNION ALL
  SELECT s.started_at, 'running', j.attempt + 1, clock_timestamp() - s.started_at, s.worker_id, 'owned by lock'
  FROM jobgen.job_start s JOIN jobgen.jobs j ON j.id = s.job_id JOIN jobgen.workers w ON w.id = s.worker_id
  WHERE s.job_id = $1 AND j.status = 'queued' AND w.lost_at IS NULL AND w.lease_until > clock_timestamp()
  UNION ALL
  SELECT CASE j.status WHEN 'running' THEN j.claimed_at ELSE j.run_at END, -- of a dead job, when it died
         CASE WHEN j.status <> 'queued' THEN j.status WHEN j.run_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END,
         j.attempt, CASE j.status WHEN 'running' THEN clock_timestamp() - j.claimed_at END, j.worker_id,
         CASE j.status WHEN 'dead' THEN 'out of attempts; jobctl jobs requeue ' || j.id || ' gives it a fresh start' END
  FROM jobgen.jobs j WHERE j.id = $1
  ORDER BY 1 NULLS LAST
$$;

-- A program that knows schema 2 goes on beside this one.
INSERT INTO jobgen.compatibility (version, oldest) VALUES (4, 2);

-- +goose Down
SET LOCAL lock_timeout = '2s';
DROP FUNCTION jobgen.history(bigint);
DROP VIEW jobgen.minutes, jobgen.fleet, jobgen.running, jobgen.dead, jobgen.overview;
DELETE FROM jobgen.compatibility WHERE version = 4;
