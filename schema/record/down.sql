DELETE FROM jobgen.schema_version WHERE version_id = :version;
