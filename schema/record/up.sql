INSERT INTO jobgen.schema_version (version_id, is_applied, tstamp) VALUES (:version, true, now() AT TIME ZONE 'UTC');
