--
-- The plan: which indexes, by which method, in which order, and why not
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS index_mover CASCADE;
CREATE EXTENSION IF NOT EXISTS btree_gist;
CREATE EXTENSION IF NOT EXISTS bloom;
RESET client_min_messages;
-- the estimates and the free space depend on the machine
SET index_mover.progress_interval = 0;
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE regress_plan_ts LOCATION '';
CREATE TABLESPACE regress_plan_ts2 LOCATION '';
CREATE ROLE regress_plan_owner;
CREATE ROLE regress_plan_other;
CREATE SCHEMA regress_plan;
GRANT ALL ON SCHEMA regress_plan TO regress_plan_owner, regress_plan_other;
GRANT CREATE ON TABLESPACE regress_plan_ts TO regress_plan_owner;
GRANT EXECUTE ON FUNCTION move_indexes, move_schema_indexes, move_tablespace_indexes
	TO regress_plan_owner, regress_plan_other;
SET search_path = regress_plan, public;

CREATE TABLE t (a int PRIMARY KEY, b text, c int, r int4range,
				CONSTRAINT t_excl EXCLUDE USING gist (c WITH =, r WITH &&));
CREATE INDEX t_hash ON t USING hash (c);
CREATE INDEX t_brin ON t USING brin (a);
CREATE INDEX t_bloom ON t USING bloom (a);
CREATE UNIQUE INDEX t_expr ON t (upper(b), a) INCLUDE (c) WHERE c > 0;
CREATE INDEX t_there ON t (c) TABLESPACE regress_plan_ts;
INSERT INTO t SELECT i, repeat('x', 100), i, int4range(i, i + 1) FROM generate_series(1, 3000) i;

-- the rows of a table
CREATE VIEW plan_of_t AS
	SELECT * FROM move_indexes('t', 'regress_plan_ts', 'rebuild', dry_run => true);
SELECT name, kind, method, status, sqlstate
  FROM plan_of_t ORDER BY name COLLATE "C";
SELECT name, detail ~ 'exclusion' AS told FROM plan_of_t WHERE sqlstate = '0A000';
SELECT detail FROM plan_of_t WHERE status = 'skipped' AND sqlstate IS NULL;
SELECT bool_and(size = pg_table_size(name::regclass)) AS size,
	   bool_and(elapsed > '0 s' AND elapsed < '1 hour') AS estimated,
	   bool_and(detail = format('Writes %s of WAL. There is enough free space.', CASE current_setting('wal_level') WHEN 'minimal' THEN '0 bytes' ELSE pg_size_pretty(size) END)) AS wal_and_fits
  FROM plan_of_t WHERE status = 'planned';
SELECT bool_and(elapsed IS NULL) AS not_estimated FROM plan_of_t WHERE status = 'skipped';
SELECT bool_and(lock_time IS NULL AND job IS NULL) AS nothing_done FROM plan_of_t;
-- tenths of a second, rounded up
SELECT elapsed = interval '0.1 s' * ceil(pg_table_size('t_pkey') / 15360.0 * 10) AS estimated
  FROM move_indexes('t_pkey', 'regress_plan_ts', 'copy', dry_run => true, settings => '{"max_rate": "15kB"}');

-- of a small one it is milliseconds, and learnt from the small ones before, without what they waited
BEGIN;
DELETE FROM index_mover.move_log;
SELECT m.method, bool_and(p.elapsed < '0.03 s') AS quick
  FROM unnest('{copy,rebuild}'::text[]) m(method), move_indexes('t_pkey', 'regress_plan_ts', m.method, dry_run => true) p GROUP BY 1 ORDER BY 1;
INSERT INTO index_mover.move_log (job, item, relation, old_relation, relation_name, kind, table_oid, table_name, from_tablespace_oid, to_tablespace_oid,
								  requested, method, status, size_before, started_at, finished_at, idle)
	SELECT g, 1, 1, 1, '', 'index', 1, '', 1, 1, 'copy', 'copy', 'moved', 8192, now() - interval '2.05 s', now(), 2000 FROM generate_series(1, 10) g;
SELECT m.method, bool_and(p.elapsed BETWEEN '0.05 s' AND '0.07 s') AS learnt
  FROM unnest('{copy,rebuild}'::text[]) m(method), move_indexes('t_pkey', 'regress_plan_ts', m.method, dry_run => true) p GROUP BY 1 ORDER BY 1;
ROLLBACK;

-- order
SELECT bool_and(size >= lag) AS smallest_first
  FROM (SELECT size, lag(size) OVER (ORDER BY ordinality)
		  FROM move_indexes('t', 'regress_plan_ts', 'rebuild', dry_run => true) WITH ORDINALITY
		 WHERE status = 'planned') q;

-- a share of the file system that cannot be kept free
\set VERBOSITY terse
SELECT status, regexp_replace(detail, '\d+ (bytes|[kMGTP]B)', 'N', 'g') AS detail FROM move_indexes('t_pkey', 'regress_plan_ts', 'rebuild', dry_run => true, settings => '{"min_free_space": "99.99%"}');
-- a table without blocks needs none
CREATE TABLE without_blocks ();
SELECT status, detail ~ 'Does not fit' AS does_not_fit FROM move_table('without_blocks', 'regress_plan_ts', dry_run => true, settings => '{"min_free_space": "100%"}');
SELECT status FROM move_table('without_blocks', 'regress_plan_ts', settings => '{"min_free_space": "100%"}');
DROP TABLE without_blocks;
\set VERBOSITY default

-- one index; the target may be the database's default
SELECT name, status FROM move_indexes('t_there', 'pg_default', 'rebuild', dry_run => true);
SELECT name, status, sqlstate, detail FROM move_indexes('t_pkey', 'pg_default', 'rebuild', dry_run => true);

-- access methods that copy does not know, unlogged tables, TOAST
CREATE FUNCTION regress_plan_handler(internal) RETURNS index_am_handler LANGUAGE C AS 'bloom', 'blhandler';
CREATE ACCESS METHOD regress_plan_mine TYPE INDEX HANDLER regress_plan_handler;
CREATE OPERATOR CLASS regress_plan_ops DEFAULT FOR TYPE int USING regress_plan_mine AS OPERATOR 1 =, FUNCTION 1 hashint4(int);
CREATE TABLE am (a int);
CREATE INDEX am_a ON am USING regress_plan_mine (a);
CREATE UNLOGGED TABLE u (a int PRIMARY KEY);
SELECT m.name, m.method, m.status, m.sqlstate
  FROM (VALUES ('am'::regclass), ('u')) v(rel), (VALUES ('auto'), ('copy'), ('rebuild')) w(method),
	   LATERAL move_indexes(rel, 'regress_plan_ts', w.method, dry_run => true) m
 ORDER BY 1, rel::text, w.method;
SELECT detail ~ 'Method rebuild can.$' AS rebuild_can FROM move_indexes('u', 'regress_plan_ts', 'copy', dry_run => true);
\set VERBOSITY sqlstate
SELECT move_indexes(reltoastrelid, 'regress_plan_ts', dry_run => true) FROM pg_class WHERE oid = 't'::regclass;
\set VERBOSITY default


-- auto says why.  The bloat is made by a fillfactor that is taken away: what a
-- vacuum removes depends on the snapshots of others
SELECT m.name, m.method, regexp_replace(m.detail, 'Writes .* of WAL', 'Writes N of WAL') AS detail
  FROM (VALUES ('am'::regclass), ('u')) v(rel), LATERAL move_indexes(rel, 'regress_plan_ts', 'auto', dry_run => true) m
 ORDER BY m.name COLLATE "C";
CREATE TABLE fresh (a int, b int) WITH (autovacuum_enabled = off);
INSERT INTO fresh SELECT i, i FROM generate_series(1, 10000) i;
CREATE INDEX fresh_a ON fresh (a);
CREATE INDEX fresh_spgist ON fresh USING spgist ((b::text));
CREATE TABLE bloated (a int, b int) WITH (autovacuum_enabled = off);
INSERT INTO bloated SELECT i, i FROM generate_series(1, 5000) i;
CREATE INDEX bloated_a ON bloated (a) WITH (fillfactor = 10);
ALTER INDEX bloated_a RESET (fillfactor);
ALTER TABLE bloated ADD CONSTRAINT bloated_excl EXCLUDE USING btree (b WITH =) WITH (fillfactor = 10);
ALTER INDEX bloated_excl RESET (fillfactor);
SELECT m.name, m.method, regexp_replace(regexp_replace(m.detail, 'bloat of \d\.\d\d', 'bloat of N'), 'Writes .* of WAL', 'Writes N of WAL') AS detail
  FROM (VALUES (1, 0.3), (2, 1), (3, 0)) t(n, threshold), (VALUES ('fresh'::regclass), ('bloated')) v(rel),
	   LATERAL move_indexes(rel, 'regress_plan_ts', dry_run => true, settings => jsonb_build_object('rebuild_threshold', threshold)) m
 WHERE threshold > 0 OR rel = 'bloated'::regclass
 ORDER BY n, m.name COLLATE "C";
DROP TABLE fresh, bloated;

-- materialized views, plain inheritance
CREATE MATERIALIZED VIEW mv AS SELECT a FROM t;
CREATE INDEX mv_a ON mv (a);
SELECT name, kind, status FROM move_indexes('mv', 'regress_plan_ts', 'rebuild', dry_run => true);
CREATE TABLE parent (a int PRIMARY KEY);
CREATE TABLE child (PRIMARY KEY (a)) INHERITS (parent);
SELECT name, kind, status FROM move_indexes('parent', 'regress_plan_ts', 'rebuild', dry_run => true);
SELECT m.name, m.status FROM pg_inherits, move_indexes(inhrelid, 'regress_plan_ts', 'rebuild', dry_run => true) m WHERE inhparent = 'regress_plan.parent'::regclass;

-- partitions: the leaves, then the defaults for new partitions
CREATE TABLE p (a int PRIMARY KEY, b text) PARTITION BY RANGE (a);
CREATE INDEX p_b ON p (b);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (100) PARTITION BY RANGE (a);
CREATE TABLE p21 PARTITION OF p2 FOR VALUES FROM (10) TO (50);
CREATE INDEX p21_own ON p21 (b, a);
SELECT name, kind, status, size > 0 AS has_file FROM move_indexes('p', 'regress_plan_ts', 'rebuild', dry_run => true);
SELECT name, kind, status, size > 0 AS has_file FROM move_indexes('p_b', 'regress_plan_ts', 'rebuild', dry_run => true);
SELECT name, kind, status FROM move_indexes('p2_b_idx', 'regress_plan_ts', 'rebuild', dry_run => true);
SELECT name, kind, status FROM move_indexes('p21', 'regress_plan_ts', 'rebuild', dry_run => true);
ALTER INDEX p_b SET TABLESPACE regress_plan_ts;
SELECT name, status, detail FROM move_indexes('p_b', 'regress_plan_ts', 'rebuild', dry_run => true) WHERE kind = 'default' AND name = 'p_b';

-- a partition that is a foreign table is passed over
CREATE FOREIGN DATA WRAPPER regress_plan_fdw;
CREATE SERVER regress_plan_server FOREIGN DATA WRAPPER regress_plan_fdw;
CREATE TABLE fp (a int, b int) PARTITION BY RANGE (a);
CREATE INDEX fp_b ON fp (b);
CREATE TABLE fp1 PARTITION OF fp FOR VALUES FROM (0) TO (10);
CREATE FOREIGN TABLE fp2 PARTITION OF fp FOR VALUES FROM (10) TO (20) SERVER regress_plan_server;
SELECT name, kind, status FROM move_indexes('fp', 'regress_plan_ts', 'rebuild', dry_run => true);

-- invalid indexes
CREATE TABLE inv (a int, b int);
CREATE INDEX inv_a ON inv (a);
CREATE INDEX "inv_B_ccnew1" ON inv (b);
CREATE INDEX inv_there ON inv (a) TABLESPACE regress_plan_ts;
UPDATE pg_index SET indisvalid = false WHERE indrelid = 'inv'::regclass;
SELECT name, method, status, sqlstate, regexp_replace(detail, 'Writes .* of WAL', 'Writes N of WAL') AS detail FROM move_indexes('inv', 'regress_plan_ts', 'rebuild', dry_run => true);
SELECT name, status, sqlstate, regexp_replace(detail, 'Writes .* of WAL', 'Writes N of WAL') AS detail FROM move_indexes('inv_a', 'regress_plan_ts', 'rebuild', dry_run => true);
SELECT name, status, sqlstate FROM move_indexes('inv_a', 'regress_plan_ts', 'auto', dry_run => true);
SELECT name, status, sqlstate, regexp_replace(detail, 'Writes .* of WAL', 'Writes N of WAL') AS detail FROM move_indexes('inv_there', 'regress_plan_ts', 'rebuild', dry_run => true);
UPDATE pg_index SET indislive = false WHERE indexrelid = 'inv_a'::regclass;
SELECT name, status, sqlstate, regexp_replace(detail, 'Writes .* of WAL', 'Writes N of WAL') AS detail FROM move_indexes('inv_a', 'regress_plan_ts', 'rebuild', dry_run => true);
DROP TABLE inv;

-- names
CREATE TABLE "T ""1"" %s" (a int);
CREATE INDEX "I ""1"" %s ; drop" ON "T ""1"" %s" (a);
SELECT name, status FROM move_indexes('"T ""1"" %s"', 'regress_plan_ts', 'rebuild', dry_run => true);

-- bulk forms
SELECT name, status, sqlstate FROM move_schema_indexes('regress_plan', 'regress_plan_ts', 'rebuild', dry_run => true) ORDER BY name COLLATE "C";
SELECT name, status
  FROM move_tablespace_indexes('regress_plan_ts', 'regress_plan_ts2', 'rebuild', dry_run => true);
SELECT name, status, detail FROM move_tablespace_indexes('regress_plan_ts', 'regress_plan_ts', 'rebuild', dry_run => true);
SET client_min_messages = warning;	-- other databases
SELECT count(*) FILTER (WHERE i.indrelid::regclass::text ~ 'index_mover') AS own,
	   count(*) FILTER (WHERE c.reltablespace <> 0) AS elsewhere
  FROM move_tablespace_indexes('pg_default', 'regress_plan_ts', 'rebuild', dry_run => true) m
  JOIN pg_class c ON c.oid = m.name::regclass
  JOIN pg_index i ON i.indexrelid = c.oid;
RESET client_min_messages;

-- nothing to move
CREATE TABLE no_index (a int);
CREATE SCHEMA regress_plan_empty;
SELECT count(*) FROM move_indexes('no_index', 'regress_plan_ts', 'rebuild', dry_run => true);
SELECT count(*) FROM move_schema_indexes('regress_plan_empty', 'regress_plan_ts', 'rebuild', dry_run => true);
SELECT count(*) FROM move_tablespace_indexes('regress_plan_ts2', 'regress_plan_ts', 'rebuild', dry_run => true);

-- what other databases have there
SELECT current_database() AS db \gset
CREATE DATABASE regress_plan_db TEMPLATE template0 TABLESPACE regress_plan_ts2;
\c regress_plan_db
CREATE TABLE o (a int PRIMARY KEY, b int UNIQUE);
CREATE INDEX o_b ON o (b) TABLESPACE regress_plan_ts;
\c :db
SET index_mover.progress_interval = 0;
SET search_path = regress_plan, public;
SELECT count(*) FROM move_tablespace_indexes('regress_plan_ts', 'regress_plan_ts2', 'rebuild', dry_run => true);
SELECT count(*) FROM move_tablespace_indexes('regress_plan_ts2', 'regress_plan_ts', 'rebuild', dry_run => true);
DROP DATABASE regress_plan_db;

-- wrong kinds of relation, and relations that cannot be moved
CREATE VIEW v AS SELECT 1 AS x;
CREATE SEQUENCE s;
CREATE TYPE ct AS (a int);
CREATE FOREIGN TABLE ft (a int) SERVER regress_plan_server;
CREATE TEMP TABLE tmp (a int PRIMARY KEY);
SELECT * FROM move_indexes('v', 'regress_plan_ts', dry_run => true);
SELECT * FROM move_indexes('s', 'regress_plan_ts', dry_run => true);
SELECT * FROM move_indexes('ct', 'regress_plan_ts', dry_run => true);
SELECT * FROM move_indexes('ft', 'regress_plan_ts', dry_run => true);
SELECT * FROM move_indexes('pg_class', 'regress_plan_ts', dry_run => true);
SELECT * FROM move_indexes('pg_class_oid_index', 'regress_plan_ts', dry_run => true);
SELECT * FROM move_indexes((SELECT reltoastrelid FROM pg_class WHERE relname = 'pg_proc')::regclass::oid, 'regress_plan_ts', dry_run => true);
SELECT * FROM move_indexes('tmp', 'regress_plan_ts', dry_run => true);
SELECT * FROM move_indexes(0::oid, 'regress_plan_ts', dry_run => true);
SELECT * FROM move_indexes(4294967295::oid, 'regress_plan_ts', dry_run => true);
SELECT * FROM move_indexes('t', 'regress_plan_nosuch', dry_run => true);
SELECT * FROM move_indexes('t', '', dry_run => true);
SELECT * FROM move_indexes('t', 'pg_global', dry_run => true);
SELECT * FROM move_schema_indexes('pg_catalog', 'regress_plan_ts', dry_run => true);
SELECT * FROM move_schema_indexes('pg_toast', 'regress_plan_ts', dry_run => true);
SELECT * FROM move_schema_indexes(4294967295::oid, 'regress_plan_ts', dry_run => true);
SELECT * FROM move_tablespace_indexes('regress_plan_nosuch', 'regress_plan_ts', dry_run => true);
SELECT * FROM move_tablespace_indexes('pg_global', 'regress_plan_ts', dry_run => true);
\set VERBOSITY sqlstate
SELECT * FROM move_indexes('v', 'regress_plan_ts', dry_run => true);
SELECT * FROM move_indexes('pg_class', 'regress_plan_ts', dry_run => true);
SELECT * FROM move_indexes('tmp', 'regress_plan_ts', dry_run => true);
SELECT * FROM move_indexes(4294967295::oid, 'regress_plan_ts', dry_run => true);
SELECT * FROM move_indexes('t', 'regress_plan_nosuch', dry_run => true);
SELECT * FROM move_indexes('t', 'pg_global', dry_run => true);
SELECT * FROM move_schema_indexes('pg_catalog', 'regress_plan_ts', dry_run => true);
SELECT * FROM move_schema_indexes(4294967295::oid, 'regress_plan_ts', dry_run => true);
SELECT * FROM move_schema_indexes(pg_my_temp_schema(), 'regress_plan_ts', dry_run => true);
SELECT * FROM move_tablespace_indexes('pg_global', 'regress_plan_ts', dry_run => true);

-- privileges: on the table, the target, the schema
CREATE TABLE owned (a int PRIMARY KEY);
ALTER TABLE owned OWNER TO regress_plan_owner;
CREATE TABLE pp (a int PRIMARY KEY) PARTITION BY RANGE (a);
CREATE TABLE pp1 PARTITION OF pp FOR VALUES FROM (0) TO (10);
ALTER TABLE pp OWNER TO regress_plan_owner;
SET ROLE regress_plan_other;
SELECT * FROM move_indexes('owned', 'pg_default', dry_run => true);
SELECT * FROM move_indexes('owned_pkey', 'pg_default', dry_run => true);
SELECT * FROM move_indexes('mv', 'pg_default', dry_run => true);
SELECT * FROM move_indexes('pg_class', 'pg_default', dry_run => true);
SET ROLE regress_plan_owner;
SELECT name, status, sqlstate FROM move_indexes('owned', 'regress_plan_ts', 'rebuild', dry_run => true);
SELECT name, status, sqlstate FROM move_indexes('owned', 'pg_default', 'rebuild', dry_run => true);
SELECT * FROM move_indexes('owned', 'regress_plan_ts2', dry_run => true);
SELECT name, status, sqlstate FROM move_indexes('pp', 'regress_plan_ts', 'rebuild', dry_run => true);
SELECT count(*) FILTER (WHERE status = 'planned') AS planned,
	   count(*) FILTER (WHERE name IN ('pp_pkey', 'owned_pkey') AND status = 'planned') AS own,
	   bool_and(sqlstate = '42501') FILTER (WHERE status = 'skipped' AND name <> 'pp_pkey' AND name NOT IN ('t_there')) AS others_refused
  FROM move_schema_indexes('regress_plan', 'regress_plan_ts', 'rebuild', dry_run => true);
SELECT name, status, sqlstate FROM move_tablespace_indexes('regress_plan_ts', 'pg_default', 'rebuild', dry_run => true);
RESET ROLE;
SELECT 'owned'::regclass::oid AS owned \gset
REVOKE ALL ON SCHEMA regress_plan FROM regress_plan_owner;
SET ROLE regress_plan_owner;
SELECT * FROM public.move_indexes(:owned, 'regress_plan_ts', dry_run => true);
SELECT * FROM public.move_schema_indexes((SELECT oid FROM pg_namespace WHERE nspname = 'regress_plan'), 'regress_plan_ts', dry_run => true);
RESET ROLE;
REVOKE EXECUTE ON FUNCTION move_indexes FROM regress_plan_other;
SET ROLE regress_plan_other;
SELECT * FROM move_indexes('owned', 'pg_default', dry_run => true);
RESET ROLE;

-- a caller that would wait for itself
\set VERBOSITY default
SELECT move_indexes('t', 'regress_plan_ts', 'rebuild') FROM t;
DO $$
BEGIN
	PERFORM count(*) FROM ONLY p;
	PERFORM move_indexes('p21', 'regress_plan_ts', 'rebuild');
END $$;
\set VERBOSITY sqlstate
DO $$
BEGIN
	PERFORM 1 FROM t WHERE a = 1;
	PERFORM move_indexes('t_brin', 'regress_plan_ts', 'rebuild');
END $$;
DO $$
BEGIN
	LOCK TABLE p21 IN ACCESS SHARE MODE;
	PERFORM move_schema_indexes('regress_plan', 'regress_plan_ts', 'rebuild', name_like => 'p21%');
END $$;
DO $$
BEGIN
	INSERT INTO p VALUES (11, 'x');
	PERFORM move_indexes('p', 'regress_plan_ts', 'rebuild');
END $$;
\set VERBOSITY default
-- a plan may be asked for all the same, and keeps no lock itself
BEGIN;
SELECT count(*) FROM t WHERE a = 1;
SELECT count(*) FROM move_indexes('t', 'regress_plan_ts', 'rebuild', dry_run => true);
ROLLBACK;
BEGIN;
SELECT count(*) > 20 AS planned FROM move_schema_indexes('regress_plan', 'regress_plan_ts', 'auto', dry_run => true);
SELECT count(*) FROM pg_locks l
 WHERE l.pid = pg_backend_pid() AND l.relation >= 16384;
COMMIT;

-- nothing was touched
SELECT count(*) FROM pg_class WHERE reltablespace = (SELECT oid FROM pg_tablespace WHERE spcname = 'regress_plan_ts');

SET client_min_messages = warning;
DROP SCHEMA regress_plan, regress_plan_empty CASCADE;
DROP FOREIGN DATA WRAPPER regress_plan_fdw CASCADE;
DROP TABLESPACE regress_plan_ts;
DROP TABLESPACE regress_plan_ts2;
REVOKE EXECUTE ON FUNCTION move_indexes, move_schema_indexes, move_tablespace_indexes
	FROM regress_plan_owner, regress_plan_other;
DROP ROLE regress_plan_owner, regress_plan_other;
