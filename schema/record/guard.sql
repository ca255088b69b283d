DO $$
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('jobgen.migrate', 0));
  IF (SELECT max(version_id) FROM jobgen.schema_version WHERE is_applied) <> :before THEN
    RAISE EXCEPTION 'this takes jobgen from schema version :before to :after, and the schema has version %',
      (SELECT max(version_id) FROM jobgen.schema_version WHERE is_applied);
  END IF;
END
$$;
