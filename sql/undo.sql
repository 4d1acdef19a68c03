-- undo_move(), resume_move() and calls for many relations: one that cannot be moved is named, and the others are moved.
\getenv abs_srcdir PG_ABS_SRCDIR
\set setup :abs_srcdir '/sql/include/setup.sql'
\set ECHO none
\i :setup
\set ECHO all
CREATE SCHEMA undo;
SET search_path = undo, public;
SET default_tablespace = regress_slow;
CREATE TABLE t (i int, j int, k int) WITH (autovacuum_enabled = false);
CREATE INDEX t_i ON t (i);
CREATE INDEX t_j ON t (j);
CREATE INDEX t_k ON t (k);
INSERT INTO t SELECT g, g, g FROM generate_series(1, 100) g;
CREATE VIEW places AS
	SELECT c.relname, s.spcname FROM pg_class c LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace
	 WHERE c.relnamespace = 'undo'::regnamespace AND c.relkind IN ('r', 'i') ORDER BY 1;
RESET default_tablespace;

-- job 301000 moves all, and 301001 one of them again; undone in this order
SELECT setval('index_mover.job_seq', 301000, false);
SELECT DISTINCT status FROM move_indexes('t', 'regress_fast');
SELECT status FROM move_indexes('t_i', 'pg_default');
SELECT name, status, sqlstate, detail ~ '^Job 301001 has moved it since\.$' AS since FROM undo_move(301000, dry_run => true) ORDER BY name;
SELECT job, name, status FROM undo_move(301001);
SELECT job, name, status FROM undo_move(301000) ORDER BY name;
SELECT * FROM places WHERE relname LIKE 't\__';
-- it is undone, whatever is moved from now on
SELECT name, status, sqlstate, detail FROM undo_move(301000, dry_run => true) ORDER BY name;
SELECT job, status FROM move_indexes('t_i', 'regress_fast');
SELECT name, status, sqlstate, detail FROM undo_move(301000) ORDER BY name;
SELECT * FROM places WHERE relname LIKE 't\__';
-- what has undone it can be undone, but for what was moved since, and that again
SELECT setval('index_mover.job_seq', 301100, false);
SELECT name, status, detail ~ 'Job 301004 has moved it since' AS since FROM undo_move(301003) ORDER BY name;
SELECT name, status FROM undo_move(301100) ORDER BY name;
SELECT * FROM places WHERE relname LIKE 't\__';
-- the rest of an undo is one, too
SELECT setval('index_mover.job_seq', 301200, false);
SELECT DISTINCT status FROM move_indexes('t', 'pg_default');
SELECT count(*) FROM move_indexes('t_j', 'regress_fast');
SELECT job, name, status FROM undo_move(301201, wait => false, settings => '{"swap_after": "infinity"}');
SELECT cancel_move(301202);
CALL wait_for_move(301202, raise => false);
SELECT resume_move(301202, '{"swap_after": ""}');
CALL wait_for_move(301203);
SELECT name, status, regexp_replace(detail, 'Writes \S+ \S+ of', 'Writes') AS detail FROM undo_move(301200, dry_run => true) ORDER BY 1;

-- by OID: renamed, and moved again by that name; another index has got the name
SELECT setval('index_mover.job_seq', 302000, false);
SELECT DISTINCT status FROM move_indexes('t', 'regress_slow');
SELECT status FROM move_indexes('t_i', 'regress_fast');
ALTER INDEX t_i RENAME TO t_renamed;
CREATE INDEX t_i ON t (i, j) TABLESPACE regress_fast;
SELECT status FROM move_indexes('t_renamed', 'pg_default');
SELECT name, status, detail FROM undo_move(302001);
SELECT name, status FROM undo_move(302002);
-- what has happened to the other one is nothing to it
SELECT status FROM move_indexes('t_i', 'pg_default');
SELECT name, status FROM undo_move(302001);
SELECT * FROM places WHERE relname IN ('t_i', 't_renamed');
-- dropped, and another one made by that name, which a later job has moved to where the first one was
SELECT setval('index_mover.job_seq', 302100, false);
SELECT status FROM move_indexes('t_k', 'regress_fast');
DROP INDEX t_k;
CREATE INDEX t_k ON t (k, i) TABLESPACE regress_slow;
SELECT name, status, detail FROM undo_move(302100);
SELECT status FROM move_indexes('t_k', 'regress_fast');
SELECT name, status, detail FROM undo_move(302100);
SELECT * FROM places WHERE relname = 't_k';
-- a rebuild, ours or core's, has changed the OID
SELECT setval('index_mover.job_seq', 302200, false);
SELECT status FROM move_indexes('t_j', 'regress_fast', method => 'copy');
SELECT status FROM move_indexes('t_j', 'pg_default', method => 'rebuild');
ALTER INDEX t_j RENAME TO t_rebuilt;
CREATE INDEX t_j ON t (j, i) TABLESPACE regress_fast;
SELECT name, status, detail FROM undo_move(302200);
SELECT name, status, method FROM undo_move(302201);
REINDEX INDEX CONCURRENTLY t_rebuilt;
SELECT name, status, method FROM undo_move(302200);
SELECT * FROM places WHERE relname IN ('t_j', 't_rebuilt');

-- the tablespaces of some of a job's relations are gone
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE regress_gone LOCATION '';
CREATE TABLE g (i int) TABLESPACE regress_gone;
CREATE INDEX g_i ON g (i) TABLESPACE regress_slow;
SELECT setval('index_mover.job_seq', 303000, false);
SELECT name, status FROM move_table('g', 'pg_default', indexes => true, index_tablespace => 'regress_fast') ORDER BY name;
DROP TABLESPACE regress_gone;
SELECT name, status, sqlstate, detail FROM undo_move(303000) ORDER BY name;
CREATE TABLESPACE regress_gone LOCATION '';
SELECT name, status FROM move_table('g', 'regress_gone', indexes => true, index_tablespace => 'regress_fast',
	wait => false, settings => '{"swap_after": "infinity"}') ORDER BY name;
SELECT cancel_move(303002);
CALL wait_for_move(303002, raise => false);
DROP TABLESPACE regress_gone;
SELECT resume_move(303002, '{"swap_after": ""}');
CALL wait_for_move();
SELECT resume_move(303002);
SELECT * FROM places WHERE relname IN ('g', 'g_i');

-- one is another role's by now, one in a schema that is closed, one is gone
CREATE ROLE regress_undo;
GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO regress_undo;
GRANT USAGE ON SCHEMA undo TO regress_undo;
CREATE SCHEMA closing;
CREATE TABLE a (i int PRIMARY KEY USING INDEX TABLESPACE regress_slow);
CREATE TABLE b (i int PRIMARY KEY USING INDEX TABLESPACE regress_slow);
CREATE TABLE c (i int PRIMARY KEY USING INDEX TABLESPACE regress_slow);
CREATE TABLE d (i int PRIMARY KEY USING INDEX TABLESPACE regress_slow);
ALTER TABLE a OWNER TO regress_undo;
ALTER TABLE b OWNER TO regress_undo;
ALTER TABLE c OWNER TO regress_undo;
ALTER TABLE d OWNER TO regress_undo;
GRANT EXECUTE ON FUNCTION move_schema_indexes, undo_move, resume_move TO regress_undo;
SELECT setval('index_mover.job_seq', 304000, false);
SET ROLE regress_undo;
SELECT name, status FROM move_schema_indexes('undo', 'regress_fast', name_like => '_\_pkey') ORDER BY name;
RESET ROLE;
ALTER TABLE a OWNER TO CURRENT_USER;
ALTER TABLE b SET SCHEMA closing;
DROP TABLE c;
SET ROLE regress_undo;
-- (from 17 on the first one's words are others, because MAINTAIN would do)
SELECT name, status, sqlstate, substring(detail, '[a-z]+ "[a-z]+"') AS detail FROM undo_move(304000) ORDER BY name;
RESET ROLE;
REVOKE CREATE ON TABLESPACE regress_fast FROM regress_undo;
SET ROLE regress_undo;
SELECT name, status, sqlstate, detail FROM undo_move(304001) ORDER BY name;
RESET ROLE;

-- one is in the job of another call: its row says so, unless it is the only one
CREATE TABLE e (i int PRIMARY KEY USING INDEX TABLESPACE regress_slow);
CREATE INDEX e_i ON e (i) TABLESPACE regress_slow;
SELECT setval('index_mover.job_seq', 305000, false);
BEGIN;
SELECT count(*) FROM move_indexes('d', 'regress_fast', wait => false);
SELECT name, status, sqlstate, detail FROM move_schema_indexes('undo', 'regress_fast', name_like => '_\_pkey', wait => false) ORDER BY name;
SAVEPOINT a;
\set VERBOSITY terse
SELECT name, status, sqlstate, detail FROM move_schema_indexes('undo', 'regress_fast', name_like => '_\_pkey', wait => false) ORDER BY name;
\set VERBOSITY default
ROLLBACK;
-- one is locked by the transaction that waits
SELECT m.name, m.status, m.sqlstate, m.detail FROM (SELECT count(*) FROM e) one, move_schema_indexes('undo', 'regress_fast', name_like => '_\_pkey') m ORDER BY name;
SELECT * FROM places WHERE relname LIKE '_\_pkey';
-- a history that a later version has written
BEGIN;
UPDATE index_mover.move_log SET status = 'strange' WHERE job = 304001;
SELECT resume_move(304001);
ROLLBACK;

SELECT oracle.verdict('t');
SELECT * FROM oracle.leftovers();
SELECT * FROM oracle.files();
SET client_min_messages = warning;
REVOKE ALL ON TABLESPACE regress_slow, regress_fast FROM regress_undo;
DROP SCHEMA undo, closing CASCADE;
REVOKE ALL ON FUNCTION move_schema_indexes, undo_move, resume_move FROM regress_undo;
DROP ROLE regress_undo;
