package faults

// auditSchema makes the database record each change of a job, in the transaction that makes it: what is rolled back is not on
// record, and what is on record happened. Changes of one job are in order, because its row is locked from one to the next.
const auditSchema = `
CREATE SCHEMA faults;

-- What producers committed, in the transaction that enqueued it.
CREATE TABLE faults.want (n bigint PRIMARY KEY, kind text NOT NULL, job bigint NOT NULL);

-- What transactional handlers did.
CREATE TABLE faults.effect (seq bigserial, kind text NOT NULL, n bigint NOT NULL, job bigint NOT NULL, process text NOT NULL);

CREATE TABLE faults.change (
  seq bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(), xact xid8 NOT NULL DEFAULT pg_current_xact_id(),
  process text NOT NULL, op text NOT NULL, job bigint NOT NULL, kind text NOT NULL, key text,
  old_status text, new_status text, old_fence bigint, new_fence bigint, old_worker uuid, new_worker uuid,
  old_attempt int, new_attempt int, old_crashes int, new_crashes int,
  lost bool NOT NULL -- the worker that had the job was marked lost, or on no record
);

-- Which process a worker id is of.
CREATE TABLE faults.worker (id uuid PRIMARY KEY, process text NOT NULL);

CREATE FUNCTION faults.process() RETURNS text LANGUAGE sql AS $$ SELECT coalesce(current_setting('faults.process', true), '') $$;

CREATE FUNCTION faults.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO faults.change (process, op, job, kind, key, old_status, new_status, old_fence, new_fence, old_worker, new_worker,
    old_attempt, new_attempt, old_crashes, new_crashes, lost)
  VALUES (faults.process(), TG_OP, coalesce(NEW.id, OLD.id), coalesce(NEW.kind, OLD.kind), coalesce(NEW.key, OLD.key), OLD.status, NEW.status,
    OLD.fence, NEW.fence, OLD.worker_id, NEW.worker_id, OLD.attempt, NEW.attempt, OLD.crashes, NEW.crashes,
    OLD.worker_id IS NOT NULL AND NOT EXISTS (SELECT FROM jobgen.workers w WHERE w.id = OLD.worker_id AND w.lost_at IS NULL));
  RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON jobgen.jobs FOR EACH ROW EXECUTE FUNCTION faults.note();

CREATE FUNCTION faults.note_worker() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO faults.worker VALUES (NEW.id, faults.process());
  RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT ON jobgen.workers FOR EACH ROW EXECUTE FUNCTION faults.note_worker();
`

// change is a row of faults.change.
type change struct {
	Process, Op, Kind    string
	Seq, Job             int64
	Xact                 int64
	OldStatus, NewStatus string
	OldFence, NewFence   int64
	OldWorker, NewWorker string
	OldAttempt           int
	NewAttempt           int
	OldCrashes           int
	NewCrashes           int
	Lost                 bool
}

const readChanges = `SELECT process, op, kind, seq, job, xact::text::bigint AS xact, coalesce(old_status, '') AS old_status, coalesce(new_status, '') AS new_status,
  coalesce(old_fence, 0) AS old_fence, coalesce(new_fence, 0) AS new_fence, coalesce(old_worker::text, '') AS old_worker, coalesce(new_worker::text, '') AS new_worker,
  coalesce(old_attempt, 0) AS old_attempt, coalesce(new_attempt, 0) AS new_attempt, coalesce(old_crashes, 0) AS old_crashes, coalesce(new_crashes, 0) AS new_crashes, lost
FROM faults.change ORDER BY job, seq`
