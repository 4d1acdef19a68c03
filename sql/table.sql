-- Tables: what is moved with one, what is refused, and what a job of tables says.
\getenv abs_srcdir PG_ABS_SRCDIR
\set setup :abs_srcdir '/sql/include/setup.sql'
\set ECHO none
\i :setup
\set ECHO all
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE ROLE regress_owner LOGIN;
CREATE ROLE regress_nobody LOGIN;
CREATE SCHEMA tables;
GRANT ALL ON SCHEMA tables TO PUBLIC;
SET search_path = tables, public;
-- what is there, and where; names of TOAST tables are numbers
CREATE FUNCTION place(regclass) RETURNS TABLE (what text, place name) LANGUAGE sql STABLE AS $$
	WITH t AS (SELECT oid, reltoastrelid, relname::text FROM pg_class WHERE oid IN (SELECT $1 UNION SELECT relid FROM pg_partition_tree($1))),
	 r AS (SELECT relname AS what, oid FROM t UNION ALL SELECT relname || ', toast', reltoastrelid FROM t WHERE reltoastrelid <> 0
	       UNION ALL SELECT relname || ', toast index', indexrelid FROM t JOIN pg_index ON indrelid = reltoastrelid
	       UNION ALL SELECT relname || ', index', indexrelid FROM t JOIN pg_index ON indrelid = t.oid)
	SELECT what, coalesce(s.spcname, 'default') FROM r JOIN pg_class c USING (oid) LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace ORDER BY what COLLATE "C"
$$;
CREATE FUNCTION shown(move_result) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT CASE WHEN $1.kind LIKE 'toast%' THEN '-' ELSE $1.name END $$;

-- a table with its TOAST table, and not its indexes unless they are asked for
CREATE TABLE t (id int PRIMARY KEY, big text) WITH (autovacuum_enabled = false);
INSERT INTO t SELECT g, string_agg(md5(g::text || h), '') FROM generate_series(1, 100) g, generate_series(1, 100) h GROUP BY g;
SELECT shown(m), kind, status, method, size > 0 AS has_size, sqlstate, detail ~ 'Writes .* of WAL\. There is enough free space\.$' AS told FROM move_table('t', 'regress_fast', dry_run => true) m ORDER BY kind;
SELECT * FROM place('t');
SELECT shown(m), kind, status, method, elapsed > '0' AS took, lock_time > '0' AS locked, sqlstate, detail FROM move_table('t', 'regress_fast') m ORDER BY kind;
SELECT * FROM place('t');
SELECT shown(m), kind, status, detail FROM move_table('t', 'regress_fast', indexes => true, index_tablespace => 'regress_slow') m ORDER BY kind;
SELECT * FROM place('t');
SELECT shown(m), kind, status FROM move_table('t', 'pg_default', indexes => true) m ORDER BY kind;
SELECT * FROM place('t');
SELECT count(*), sum(length(big)) FROM t;
SELECT move_table('t', 'regress_fast', index_tablespace => 'regress_slow');
\echo :SQLSTATE
-- sizes are those of the files
SELECT kind, size = pg_relation_size(CASE kind WHEN 'table' THEN 't'::regclass WHEN 'toast' THEN reltoastrelid END)
            + coalesce(pg_relation_size(CASE kind WHEN 'table' THEN 't'::regclass ELSE reltoastrelid END, 'fsm'), 0)
            + coalesce(pg_relation_size(CASE kind WHEN 'table' THEN 't'::regclass ELSE reltoastrelid END, 'vm'), 0) AS right
  FROM move_table('t', 'regress_fast', dry_run => true) m, pg_class WHERE oid = 't'::regclass AND kind <> 'toast index' ORDER BY 1;

-- a rehearsal moves nothing
SELECT shown(m), kind, status, method, size > 0 AS has_size, elapsed > '0' AS took, lock_time, sqlstate, detail ~ '^Copied .* a second\. \d+ of \d+ blocks changed meanwhile, \d+ a second\.( Rounds that copied changed blocks again: \d+\.)? The copy was equal to the original\.$' AS told
  FROM move_table('t', 'regress_fast', rehearse => true) m WHERE kind <> 'toast index' ORDER BY kind;
SELECT status, moved, total FROM index_mover_jobs ORDER BY job DESC LIMIT 1;
SELECT * FROM place('t');
SELECT * FROM oracle.files();
SELECT name, status FROM move_indexes('t_pkey', 'regress_fast', rehearse => true);
-- nor does its rest, by the same policy
UPDATE index_mover.move_log SET status = 'failed' WHERE job = (SELECT max(job) FROM index_mover.job_log);
UPDATE index_mover.job_log SET policy = 'mine' WHERE job = (SELECT max(job) FROM index_mover.job_log);
SELECT resume_move(max(job)) AS job FROM index_mover.job_log \gset
CALL wait_for_move(:job);
SELECT status, policy, settings FROM index_mover_jobs WHERE job = :job;

-- what the history says of it, and undo_move()
SELECT max(job) AS job FROM move_table('t', 'regress_fast') \gset
SELECT kind, status, from_tablespace, to_tablespace, lock_attempts > 0 AS attempts, blocks_copied > 0 AS copied FROM index_mover_history WHERE job = :job ORDER BY kind;
SELECT status, moved, total, percent FROM index_mover_jobs WHERE job = :job;
SELECT kind, status FROM undo_move(:job) ORDER BY kind;
SELECT * FROM place('t');

-- canceled, and resumed
SELECT max(job) AS job FROM move_table('t', 'regress_fast', wait => false, settings => '{"max_rate": "16kB", "max_workers": 1}') \gset
SELECT count(*) FROM cancel_move(:job);
CALL wait_for_move(:job, raise => false);
SELECT kind, status FROM index_mover_history WHERE job = :job AND kind = 'table';
SELECT count(*) > 0 AS queued FROM resume_move(:job, settings => '{"max_rate": "0"}');
SELECT max(job) AS job FROM index_mover_jobs \gset
CALL wait_for_move(:job);
SELECT * FROM place('t');
SELECT * FROM oracle.files();

-- kinds that are refused
CREATE VIEW v AS SELECT 1 AS one;
CREATE SEQUENCE q;
CREATE TYPE c AS (i int);
CREATE FOREIGN DATA WRAPPER regress_wrapper;
CREATE SERVER regress_server FOREIGN DATA WRAPPER regress_wrapper;
CREATE FOREIGN TABLE f (i int) SERVER regress_server;
CREATE TEMPORARY TABLE temp (i int);
\set VERBOSITY default
SELECT move_table('v', 'regress_fast');
\echo :SQLSTATE
SELECT move_table('q', 'regress_fast');
\echo :SQLSTATE
SELECT move_table('c', 'regress_fast');
\echo :SQLSTATE
SELECT move_table('f', 'regress_fast');
\echo :SQLSTATE
SELECT move_table('t_pkey', 'regress_fast');
\echo :SQLSTATE
SELECT move_table('pg_proc', 'regress_fast');
\echo :SQLSTATE
SELECT move_table('pg_largeobject', 'regress_fast');
\echo :SQLSTATE
SELECT move_table('temp', 'regress_fast');
\echo :SQLSTATE
SELECT move_table(0, 'regress_fast');
\echo :SQLSTATE
SELECT move_table('t', 'nosuch');
\echo :SQLSTATE
SELECT move_table('t', 'pg_global');
\echo :SQLSTATE
SELECT move_table(NULL, 'regress_fast');
\echo :SQLSTATE
SELECT move_table('t', NULL);
\echo :SQLSTATE
SELECT move_table('t', 'regress_fast', rehearse => NULL);
\echo :SQLSTATE
-- the extension's own
SELECT kind, status, sqlstate, detail FROM move_table('index_mover.job_log', 'regress_fast') WHERE kind = 'table';
-- no WAL tells what changes in it
CREATE UNLOGGED TABLE u (i int PRIMARY KEY);
SELECT name, kind, status, sqlstate, detail FROM move_table('u', 'regress_fast');
-- another name of the same access method, and another one
CREATE ACCESS METHOD regress_heap TYPE TABLE HANDLER heap_tableam_handler;
CREATE TABLE h (i int) USING regress_heap;
INSERT INTO h SELECT generate_series(1, 1000);
SELECT name, kind, status, sqlstate, detail FROM move_table('h', 'regress_fast');
SELECT count(*), sum(i) FROM h;
-- already there
SELECT name, kind, status, sqlstate, detail FROM move_table('h', 'regress_fast');
-- not within a transaction
BEGIN;
SELECT move_table('t', 'regress_slow');
\echo :SQLSTATE
ROLLBACK;

-- partitioned tables: the leaves, and where new ones are made, last
CREATE TABLE p (id int, big text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (10) TO (100) PARTITION BY RANGE (id);
CREATE TABLE p_2a PARTITION OF p_2 FOR VALUES FROM (10) TO (20);
INSERT INTO p SELECT g, repeat('x', g) FROM generate_series(1, 19) g;
SELECT name, kind, status, method FROM move_table('p', 'regress_fast') WHERE kind IN ('table', 'default') ORDER BY kind DESC, name;
SELECT * FROM place('p');
CREATE TABLE p_3 PARTITION OF p FOR VALUES FROM (100) TO (200);
SELECT * FROM place('p_3');
SELECT count(*) FROM p;
SELECT kind, status, count(*) FROM move_table('p', 'pg_default', indexes => true, index_tablespace => 'regress_slow') GROUP BY 1, 2 ORDER BY 1, 2;
SELECT * FROM place('p');

-- materialized views; names that need quotes
CREATE MATERIALIZED VIEW m AS SELECT id FROM t;
CREATE TABLE "a ""b""; DROP TABLE t; --" (i int);
INSERT INTO "a ""b""; DROP TABLE t; --" VALUES (1);
SELECT name, kind, status FROM move_table('m', 'regress_fast');
SELECT name, kind, status FROM move_table('"a ""b""; DROP TABLE t; --"', 'regress_fast');
SELECT name, kind, status, from_tablespace, to_tablespace FROM index_mover_history ORDER BY job DESC LIMIT 1;

-- a schema, and a part of it; what is excluded takes its TOAST table and its indexes along
CREATE SCHEMA bulk;
CREATE TABLE bulk.aa (i int PRIMARY KEY, t text);
CREATE TABLE bulk.ab (i int, t text);
CREATE TABLE bulk.b (i int);
CREATE UNLOGGED TABLE bulk.u (i int);
CREATE VIEW bulk.v AS SELECT 1 AS one;
INSERT INTO bulk.b SELECT generate_series(1, 10000);
SELECT shown(m), kind, status FROM move_schema_tables('bulk', 'regress_fast', name_like => 'a%', dry_run => true) m ORDER BY kind, shown(m) COLLATE "C";
SELECT shown(m), kind, status FROM move_schema_tables('bulk', 'regress_fast', name_not_like => 'a%', dry_run => true) m ORDER BY kind, shown(m) COLLATE "C";
SELECT shown(m), kind, status FROM move_schema_tables('bulk', 'regress_fast', min_size => 100000, dry_run => true) m ORDER BY kind, shown(m) COLLATE "C";
SELECT shown(m), kind, status FROM move_schema_tables('bulk', 'regress_fast', max_size => 100000, indexes => true, dry_run => true) m ORDER BY kind, shown(m) COLLATE "C";
SELECT kind, status, sqlstate, count(*) FROM move_schema_tables('bulk', 'regress_fast', indexes => true) GROUP BY 1, 2, 3 ORDER BY 1, 2;
SELECT * FROM place('bulk.aa');
SELECT * FROM move_schema_tables('bulk', 'regress_fast', min_size => 2, max_size => 1);
\echo :SQLSTATE
SELECT * FROM move_schema_tables('pg_catalog', 'regress_fast');

-- whose table it is; MAINTAIN, of 17, is for indexes
CREATE TABLE owned (i int PRIMARY KEY);
CREATE TABLE of_super (i int PRIMARY KEY);
ALTER TABLE owned OWNER TO regress_owner;
DO $$ BEGIN IF current_setting('server_version_num')::int >= 170000 THEN GRANT MAINTAIN ON owned, of_super TO regress_nobody; END IF; END $$;
SET ROLE regress_owner;
SELECT * FROM move_table('owned', 'regress_fast');
\echo :SQLSTATE
SELECT * FROM move_schema_tables('tables', 'regress_fast');
\echo :SQLSTATE
RESET ROLE;
GRANT EXECUTE ON FUNCTION move_table(regclass, name, boolean, name, boolean, boolean, boolean, boolean, jsonb),
	move_schema_tables(regnamespace, name, boolean, name, boolean, boolean, boolean, boolean, jsonb, text, text, bigint, bigint) TO PUBLIC;
SET ROLE regress_owner;
SELECT * FROM move_table('owned', 'regress_fast');
\echo :SQLSTATE
RESET ROLE;
GRANT CREATE ON TABLESPACE regress_fast TO regress_owner, regress_nobody;
SET ROLE regress_nobody;
SELECT * FROM move_table('owned', 'regress_fast');
\echo :SQLSTATE
RESET ROLE;
SET ROLE regress_owner;
SELECT name, kind, status FROM move_table('owned', 'regress_fast');
SELECT * FROM move_table('of_super', 'regress_fast');
\echo :SQLSTATE
SELECT name, kind, status, sqlstate FROM move_schema_tables('tables', 'regress_fast', name_like => 'o%') ORDER BY name;
RESET ROLE;
REVOKE EXECUTE ON FUNCTION move_table(regclass, name, boolean, name, boolean, boolean, boolean, boolean, jsonb),
	move_schema_tables(regnamespace, name, boolean, name, boolean, boolean, boolean, boolean, jsonb, text, text, bigint, bigint) FROM PUBLIC;
REVOKE CREATE ON TABLESPACE regress_fast FROM regress_owner, regress_nobody;

SELECT * FROM oracle.files();
SELECT * FROM oracle.leftovers();
RESET search_path;
DROP SCHEMA tables, bulk CASCADE;
DROP FOREIGN DATA WRAPPER regress_wrapper CASCADE;
DROP ACCESS METHOD regress_heap;
DROP ROLE regress_owner, regress_nobody;
