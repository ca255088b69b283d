-- Expand only: a program that knows schema 2 goes on beside this one. New columns are null unless a job uses them, so they
-- cost a job that does not use them nothing but its bit in the row's null map, which claimed_at has made necessary anyway.

-- +goose Up
-- Behind a long transaction, a change of jobs that waits for its lock would make every enqueue and claim wait behind it. The one
-- who migrates tries again.
SET LOCAL lock_timeout = '2s';

ALTER TABLE jobgen.jobs
  ADD COLUMN deadline      timestamptz, -- after it the job is not worth running; null: always
  ADD COLUMN snoozes       integer,     -- how often its handler has put it off; null: never
  ADD COLUMN cancel_reason text;        -- somebody wants it ended while it runs, and why ('': no reason); null: nobody does

ALTER TABLE jobgen.job_attempt
  DROP CONSTRAINT job_attempt_outcome_check,
  ADD CONSTRAINT job_attempt_outcome_check CHECK (outcome IN ('failed', 'crashed', 'snoozed', 'cancelled', 'deleted')) NOT VALID;

-- Jobs that have left jobs and stay on record for a while: all that were cancelled (G2), and those that succeeded of kinds that
-- a worker's Retain names. Append-only.
CREATE TABLE jobgen.job_archive (
  job_id      bigint PRIMARY KEY,
  status      text COLLATE "C" NOT NULL CHECK (status IN ('succeeded', 'cancelled')),
  queue       text COLLATE "C" NOT NULL,
  kind        text COLLATE "C" NOT NULL,
  key         text COLLATE "C",
  version     integer NOT NULL,
  attempt     integer NOT NULL,
  crashes     integer NOT NULL,
  payload     jsonb NOT NULL,
  headers     jsonb,
  reason      text,
  created_at  timestamptz NOT NULL,
  started_at  timestamptz, -- its last attempt; null: it was not running when it ended
  worker_id   uuid,        -- whose that was
  finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at  timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
-- Serves PurgeArchive.
CREATE INDEX job_archive_expiry ON jobgen.job_archive (expires_at);

-- Messages to workers: stop this job. The wish itself stands in jobs.cancel_reason, where the statement that ends an attempt
-- cannot miss it; only for a job owned by lock, whose row nobody else can change, it stands here alone. Apart from jobs, so
-- that a worker finds its messages without an index there.
CREATE TABLE jobgen.job_cancel (
  job_id       bigint PRIMARY KEY,
  worker_id    uuid NOT NULL,
  requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  reason       text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX job_cancel_worker ON jobgen.job_cancel (worker_id);

-- A start of a job owned by lock (own=lock): written before its handler is called, in a transaction of its own, and taken
-- away by whatever ends the job in order. One that nobody took away is a crash.
CREATE TABLE jobgen.job_start (
  job_id     bigint NOT NULL,
  worker_id  uuid NOT NULL,
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (job_id, worker_id)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- What an operator has decided about a queue. A queue without a row is open, with the weight and slots that programs say.
CREATE TABLE jobgen.queues (
  name      text COLLATE "C" PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 100),
  paused_at timestamptz,
  weight    integer CHECK (weight BETWEEN 1 AND 1000),  -- null: what the worker's program says
  slots     integer CHECK (slots BETWEEN 1 AND 100000)  -- handlers at once in each process; null: what the program says
);

-- What a tick enqueues, so that an operator can have it now, and whether ticks are to enqueue nothing. Null: it is of a program
-- before this.
ALTER TABLE jobgen.schedules
  ADD COLUMN queue        text COLLATE "C",
  ADD COLUMN version      integer,
  ADD COLUMN priority     smallint,
  ADD COLUMN max_attempts integer,
  ADD COLUMN payload      jsonb,
  ADD COLUMN paused_at    timestamptz; -- null: it is not paused

-- What operators ask of a worker. Null: it is of a program before this schema.
ALTER TABLE jobgen.workers
  ADD COLUMN slots       integer,   -- handlers at once
  ADD COLUMN running     integer,   -- how many ran at the last heartbeat
  ADD COLUMN stuck       integer,   -- of these, how many run on although their context has ended; null: none
  ADD COLUMN versions    integer[], -- the newest version of each of kinds
  ADD COLUMN timeouts_us bigint[],  -- the timeout of each of kinds; 0: none
  ADD COLUMN skew_us     bigint,    -- how far its machine's clock was ahead of the database's
  ADD COLUMN pooled      boolean;   -- its connections come from a transaction pooler

-- For each migration, the oldest one whose programs go on working beside it. A program that finds a newer schema than it
-- knows starts only if it is in that range.
CREATE TABLE jobgen.compatibility (
  version bigint PRIMARY KEY,
  oldest  bigint NOT NULL
);
INSERT INTO jobgen.compatibility (version, oldest) VALUES (3, 2);

-- +goose Down
SET LOCAL lock_timeout = '2s';
DROP TABLE jobgen.compatibility, jobgen.queues, jobgen.job_start, jobgen.job_cancel, jobgen.job_archive;
DELETE FROM jobgen.job_attempt WHERE outcome NOT IN ('failed', 'crashed');
ALTER TABLE jobgen.job_attempt
  DROP CONSTRAINT job_attempt_outcome_check,
  ADD CONSTRAINT job_attempt_outcome_check CHECK (outcome IN ('failed', 'crashed'));
ALTER TABLE jobgen.schedules
  DROP COLUMN queue, DROP COLUMN version, DROP COLUMN priority, DROP COLUMN max_attempts, DROP COLUMN payload, DROP COLUMN paused_at;
ALTER TABLE jobgen.jobs DROP COLUMN deadline, DROP COLUMN snoozes, DROP COLUMN cancel_reason;
ALTER TABLE jobgen.workers
  DROP COLUMN slots, DROP COLUMN running, DROP COLUMN stuck, DROP COLUMN versions, DROP COLUMN timeouts_us, DROP COLUMN skew_us, DROP COLUMN pooled;
