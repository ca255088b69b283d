-- A clock for the database of a test: the functions by which the statements of jobgen read the time, in a schema that its
-- sessions search before pg_catalog. CURRENT_TIMESTAMP and its like are no functions and stay as they are.
CREATE SCHEMA jobtest;

CREATE TABLE jobtest.clock (shift interval NOT NULL);
INSERT INTO jobtest.clock VALUES ('0');

CREATE FUNCTION jobtest.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL RESTRICTED
  AS 'SELECT pg_catalog.clock_timestamp() + c.shift FROM jobtest.clock c';
CREATE FUNCTION jobtest.now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL RESTRICTED
  AS 'SELECT pg_catalog.now() + c.shift FROM jobtest.clock c';
CREATE FUNCTION jobtest.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL RESTRICTED
  AS 'SELECT pg_catalog.statement_timestamp() + c.shift FROM jobtest.clock c';

GRANT USAGE ON SCHEMA jobtest TO public;
GRANT SELECT ON jobtest.clock TO public;

DO $$
DECLARE
  d record;
BEGIN
  -- Defaults name their function by its identity, so they do not follow the search path.
  FOR d IN
    SELECT a.attrelid::regclass AS of_table, quote_ident(a.attname) AS of_column
    FROM pg_attrdef x JOIN pg_attribute a ON a.attrelid = x.adrelid AND a.attnum = x.adnum
    JOIN pg_class c ON c.oid = a.attrelid
    WHERE c.relnamespace = 'jobgen'::regnamespace AND pg_get_expr(x.adbin, x.adrelid) = 'clock_timestamp()'
  LOOP
    EXECUTE format('ALTER TABLE %s ALTER COLUMN %s SET DEFAULT jobtest.clock_timestamp()', d.of_table, d.of_column);
  END LOOP;
  EXECUTE format('ALTER DATABASE %I SET search_path = jobtest, pg_catalog, "$user", public', current_database());
END $$;
