-- Names are COLLATE "C": they are identifiers, compared by bytes, whatever the database's locale.

-- +goose Up
CREATE SCHEMA IF NOT EXISTS jobgen;

CREATE SEQUENCE jobgen.job_id;

-- One number for each claim statement: it only grows and is never used twice, so (id, fence) names a hold for ever.
CREATE SEQUENCE jobgen.fence;

-- The hot table: only what is queued, running or dead. A finished job leaves it in the statement that finishes it.
--
-- A claim changes no column that an index mentions, and half of each page is left free for it: so it is a HOT update, which
-- writes no index entry. (That saves 35% of the server's time for a claimed job, and 40% of the WAL of a job.) Hence dead, which
-- stands in the indexes for status, and claims, which tells what a worker holds.
CREATE TABLE jobgen.jobs (
  id           bigint PRIMARY KEY DEFAULT nextval('jobgen.job_id'),
  run_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  claimed_at   timestamptz,
  fence        bigint NOT NULL DEFAULT 0,
  worker_id    uuid,
  version      integer NOT NULL DEFAULT 1,
  attempt      integer NOT NULL DEFAULT 0,
  max_attempts integer NOT NULL DEFAULT 20,
  crashes      integer NOT NULL DEFAULT 0,
  priority     smallint NOT NULL DEFAULT 0,
  status       text COLLATE "C" NOT NULL DEFAULT 'queued',
  dead         boolean NOT NULL GENERATED ALWAYS AS (status = 'dead') STORED,
  queue        text COLLATE "C" NOT NULL,
  kind         text COLLATE "C" NOT NULL,
  key          text COLLATE "C",
  payload      jsonb NOT NULL,
  headers      jsonb,
  last_error   text,
  -- Two checks, not one for each thing: each enqueue and each claim pays for them, and so it is a twelfth of a COPY less.
  CHECK (version >= 1 AND priority BETWEEN 0 AND 9 AND max_attempts BETWEEN 1 AND 32767 AND crashes BETWEEN 0 AND 32767
         AND octet_length(queue) BETWEEN 1 AND 100 AND octet_length(kind) BETWEEN 1 AND 100 AND octet_length(key) BETWEEN 1 AND 200),
  -- A queued row always has an attempt left, so attempt + 1 in the claim can break on no row.
  CHECK (attempt >= 0 AND CASE status
    WHEN 'queued'  THEN worker_id IS NULL AND fence <= 0 AND attempt < max_attempts
    WHEN 'running' THEN worker_id IS NOT NULL AND fence > 0 AND attempt <= max_attempts
    WHEN 'dead'    THEN worker_id IS NULL AND fence <= 0 AND attempt <= max_attempts
    ELSE false END)
) WITH (
  fillfactor = 43,
  -- Each job leaves dead tuples behind, so the table is vacuumed by their number, at full speed. Truncation would take
  -- an exclusive lock on a table that grows again at once.
  autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0.05, autovacuum_analyze_threshold = 1000, vacuum_truncate = off
);

-- Serves Claim. Suspects (two crashes or more) are left out: they are claimed alone, by jobs_suspect. NULLS FIRST, though
-- run_at is never null, makes it the only index in the order that Claim asks for: a stranger's (run_at, id) had it too, and
-- the planner walked 20 times as many pages with it. No two entries are equal, so there is nothing to deduplicate: to try it
-- on each page that is full was a thirtieth of a COPY.
CREATE INDEX jobs_claim ON jobgen.jobs (queue, priority DESC, run_at NULLS FIRST, id) WITH (deduplicate_items = off) WHERE NOT dead AND crashes < 2;
-- Serves ClaimSuspect. Empty as a rule.
CREATE INDEX jobs_suspect ON jobgen.jobs (queue, run_at, id) WHERE NOT dead AND crashes >= 2;
-- Serves listing and requeueing what is dead. Costs nothing until a job dies.
CREATE INDEX jobs_dead ON jobgen.jobs (kind, id) WHERE dead;

-- What each worker holds: one row for each claim statement, with the ids it took. Of these the worker holds those whose row in
-- jobs still has this fence and this worker_id. The worker removes the row, with a later claim, once that is none. ids is
-- stored as it is: to compress it took as long as to write it.
CREATE TABLE jobgen.claims (
  worker_id uuid NOT NULL,
  fence     bigint NOT NULL,
  ids       bigint[] NOT NULL,
  PRIMARY KEY (worker_id, fence)
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off,
  toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 1000, toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = off
);
ALTER TABLE jobgen.claims ALTER COLUMN ids SET STORAGE EXTERNAL;

-- One row for each worker process that counts as alive; a lost one stays for a day.
CREATE TABLE jobgen.workers (
  id          uuid PRIMARY KEY,
  started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  beat_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  lease_until timestamptz NOT NULL,
  lost_at     timestamptz,
  pid         integer NOT NULL,
  host        text NOT NULL,
  build       text NOT NULL,
  queues      text[] COLLATE "C" NOT NULL,
  kinds       text[] COLLATE "C" NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0);

-- One row for each queue of a worker that has been idle for a while. Apart from workers: heartbeats leave dead versions
-- there, and an enqueue must not walk them while a snapshot is held.
CREATE TABLE jobgen.wake (
  queue     text COLLATE "C" NOT NULL,
  worker_id uuid NOT NULL,
  kinds     text[] COLLATE "C" NOT NULL,
  PRIMARY KEY (queue, worker_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0);

-- The arbiter of keys: written when a key is enqueued (finished_at is null), updated by what finishes the work. A kind
-- that has a result but no key uses the reserved key 'job:<id>'.
CREATE TABLE jobgen.job_result (
  kind        text COLLATE "C" NOT NULL,
  key         text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 200),
  job_id      bigint NOT NULL,
  finished_at timestamptz,
  expires_at  timestamptz,
  result      jsonb,
  PRIMARY KEY (kind, key),
  CHECK ((finished_at IS NULL) = (expires_at IS NULL))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Serves a look-up by id of a job with a key, and what ends with it; without one the key is computed from the id.
CREATE INDEX job_result_job ON jobgen.job_result (job_id) WHERE left(key, 4) <> 'job:';
-- Serves PurgeResults.
CREATE INDEX job_result_expiry ON jobgen.job_result (expires_at) WHERE expires_at IS NOT NULL;

-- What did not succeed, append-only.
CREATE TABLE jobgen.job_attempt (
  job_id     bigint NOT NULL,
  attempt    integer NOT NULL,
  fence      bigint NOT NULL,
  worker_id  uuid NOT NULL,
  started_at timestamptz NOT NULL,
  ended_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  outcome    text COLLATE "C" NOT NULL CHECK (outcome IN ('failed', 'crashed')),
  error      text NOT NULL
);
-- Without ended_at: with it, PurgeAttempts walked all of this index instead of the other one.
CREATE INDEX job_attempt_job ON jobgen.job_attempt (job_id);
CREATE INDEX job_attempt_ended ON jobgen.job_attempt USING brin (ended_at) WITH (autosummarize = on, pages_per_range = 16);

-- What happened in a minute, for each queue and kind: what workers have counted, and, where one has looked, what there was then.
-- The row of minute -infinity has the sums of all rows that are summed, which change no more: so what has ever been counted is
-- the sum of the rows that are not, and only grows. Growth of reclaimed is workers dying.
CREATE TABLE jobgen.samples (
  minute    timestamptz NOT NULL,
  queue     text COLLATE "C" NOT NULL,
  kind      text COLLATE "C" NOT NULL,
  arrived   bigint NOT NULL DEFAULT 0, -- enqueued or requeued
  succeeded bigint NOT NULL DEFAULT 0,
  failed    bigint NOT NULL DEFAULT 0, -- attempts, the last of a job included
  timed_out bigint NOT NULL DEFAULT 0, -- of failed: ended by the kind's timeout
  snoozed   bigint NOT NULL DEFAULT 0, -- attempts
  cancelled bigint NOT NULL DEFAULT 0,
  died      bigint NOT NULL DEFAULT 0,
  reclaimed bigint NOT NULL DEFAULT 0, -- attempts that ended because their worker was lost
  run_us    bigint NOT NULL DEFAULT 0, -- how long all attempts that ended ran
  run_times bigint[],                  -- the number of those under 1 ms, then of those under 2, 4, 8 ms and so on; null: none
  ready     bigint,                    -- levels; null: nobody has looked
  scheduled bigint,
  running   bigint,
  dead      bigint,
  oldest_us bigint,                    -- how long the oldest ready job had waited
  summed    boolean NOT NULL DEFAULT false,
  PRIMARY KEY (minute, queue, kind)
) WITH (fillfactor = 70);
-- Serves Unsummed and SumSamples: what is asked for by each scrape of metrics is a few minutes, not two weeks.
CREATE INDEX samples_unsummed ON jobgen.samples (minute) WHERE NOT summed;

-- The look of a minute: whoever writes its row takes it.
CREATE TABLE jobgen.looks (
  minute    timestamptz PRIMARY KEY,
  taken_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  newest_id bigint NOT NULL,  -- the last id that had been drawn
  share     real NOT NULL     -- the part of jobs that was counted; 1: all of it, so the levels are exact
);

-- +goose Down
SET LOCAL lock_timeout = '2s';
-- The schema itself stays: goose's own table is in it.
DROP TABLE jobgen.looks, jobgen.samples, jobgen.job_attempt, jobgen.job_result, jobgen.wake, jobgen.workers, jobgen.claims, jobgen.jobs;
DROP SEQUENCE jobgen.fence, jobgen.job_id;
