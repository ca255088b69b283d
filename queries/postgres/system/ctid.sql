-- For sqlc's eyes only, which knows no system columns. To name a row by its ctid, found in the same statement, leaves the planner
-- no choice of how to get at it.
ALTER TABLE jobgen.claims ADD COLUMN ctid tid NOT NULL;
ALTER TABLE jobgen.job_result ADD COLUMN ctid tid NOT NULL;
ALTER TABLE jobgen.job_archive ADD COLUMN ctid tid NOT NULL;
ALTER TABLE jobgen.samples ADD COLUMN ctid tid NOT NULL;
-- xmin tells whether a row has changed since it was read.
ALTER TABLE jobgen.jobs ADD COLUMN xmin xid NOT NULL;
