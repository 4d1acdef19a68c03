-- setup.sql
--   What every SQL test needs, made by the first that runs: two tablespaces (in
--   place, so no directories are needed), the extension, and the oracles.
SET client_min_messages = warning;
SELECT NOT EXISTS (SELECT FROM pg_tablespace WHERE spcname = 'regress_slow') AS no_slow,
       NOT EXISTS (SELECT FROM pg_tablespace WHERE spcname = 'regress_fast') AS no_fast,
       to_regnamespace('oracle') IS NULL AS no_oracle \gset
SET allow_in_place_tablespaces = on;
\if :no_slow
CREATE TABLESPACE regress_slow LOCATION '';
\endif
\if :no_fast
CREATE TABLESPACE regress_fast LOCATION '';
\endif
RESET allow_in_place_tablespaces;
CREATE EXTENSION IF NOT EXISTS index_mover CASCADE;
\if :no_oracle
\set oracles :abs_srcdir '/sql/include/oracles.sql'
\i :oracles
-- the columns of a result that are the same in every run, and the tablespaces, which the history knows;
-- the names sort alike in every locale
CREATE FUNCTION oracle.rows(move_result)
RETURNS TABLE (name name, kind text, from_tablespace name, to_tablespace name, method text, status text, sqlstate text)
LANGUAGE sql AS $$
	SELECT $1.name, $1.kind, h.from_tablespace, h.to_tablespace, $1.method, $1.status, $1.sqlstate
	  FROM (SELECT) AS one
	  LEFT JOIN index_mover_history h ON h.job = $1.job AND h.name = $1.name
$$;
\endif
-- a move's progress depends on the machine
SET index_mover.progress_interval = 0;
-- Rebuilding an index waits for the snapshots of all sessions, also those of the
-- statistics of a table: tests must not depend on autovacuum's timing.
RESET client_min_messages;
