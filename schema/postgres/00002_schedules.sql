-- +goose Up

-- Durable cron: one row for each schedule of a kind. next_at decides who enqueues a tick: whoever moves it on.
CREATE TABLE jobgen.schedules (
  kind    text COLLATE "C" NOT NULL CHECK (octet_length(kind) BETWEEN 1 AND 100),
  name    text COLLATE "C" NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 100),
  cron    text NOT NULL,
  zone    text NOT NULL,
  missed  text COLLATE "C" NOT NULL CHECK (missed IN ('once', 'skip', 'all')),
  next_at timestamptz NOT NULL,
  last_at timestamptz,
  PRIMARY KEY (kind, name)
);

-- +goose Down
SET LOCAL lock_timeout = '2s';
DROP TABLE jobgen.schedules;
