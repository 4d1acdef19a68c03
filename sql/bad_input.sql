-- Whatever is wrong with a call: one clean error with the right SQLSTATE, and
-- nothing changed.
\getenv abs_srcdir PG_ABS_SRCDIR
\set setup :abs_srcdir '/sql/include/setup.sql'
\set ECHO none
\i :setup
\set ECHO all
CREATE SCHEMA bad_input;
SET search_path = bad_input, public;
CREATE TABLE t (id int PRIMARY KEY, txt text) WITH (autovacuum_enabled = false);
CREATE INDEX t_txt ON t (txt);
INSERT INTO t SELECT g, 't' || g FROM generate_series(1, 100) g;
CREATE VIEW v AS SELECT * FROM t;
CREATE SEQUENCE s;
CREATE TYPE composite AS (a int);
CREATE FOREIGN DATA WRAPPER regress_fdw;
CREATE SERVER regress_server FOREIGN DATA WRAPPER regress_fdw;
CREATE FOREIGN TABLE f (a int) SERVER regress_server;
SELECT oracle.remember_metadata('t');

-- the relation: wrong kind
SELECT * FROM move_indexes('v', 'regress_fast');
\echo :SQLSTATE
SELECT * FROM move_indexes('s', 'regress_fast');
\echo :SQLSTATE
SELECT * FROM move_indexes('composite', 'regress_fast');
\echo :SQLSTATE
SELECT * FROM move_indexes('f', 'regress_fast');
\echo :SQLSTATE
-- the relation: not there
SELECT * FROM move_indexes('nosuch', 'regress_fast');
\echo :SQLSTATE
SELECT * FROM move_indexes(0::oid, 'regress_fast');
\echo :SQLSTATE
SELECT * FROM move_indexes(4294967295::oid, 'regress_fast');
\echo :SQLSTATE
-- an OID of another catalog
SELECT * FROM move_indexes('pg_catalog.int4'::regtype::oid, 'regress_fast');
\echo :SQLSTATE

-- NULL
SELECT * FROM move_indexes(NULL, 'regress_fast');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', NULL);
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'regress_fast', NULL);
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'regress_fast', dry_run => NULL);
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'regress_fast', wait => NULL);
\echo :SQLSTATE
SELECT * FROM move_schema_indexes(NULL, 'regress_fast');
\echo :SQLSTATE
SELECT * FROM move_schema_indexes('bad_input', NULL);
\echo :SQLSTATE
SELECT * FROM move_tablespace_indexes(NULL, 'regress_fast');
\echo :SQLSTATE
SELECT * FROM move_tablespace_indexes('regress_slow', NULL);
\echo :SQLSTATE
SELECT * FROM undo_move(NULL);
\echo :SQLSTATE
SELECT resume_move(NULL);
\echo :SQLSTATE
SELECT alter_move(NULL, 'max_rate', '1MB');
\echo :SQLSTATE
SELECT * FROM index_mover_cleanup(NULL);
\echo :SQLSTATE
CALL wait_for_move(1, NULL);
\echo :SQLSTATE
-- all jobs, of which there are none; the last one of this session, that has none
SELECT cancel_move(NULL), pause_move(NULL);
CALL wait_for_move(NULL);
\echo :SQLSTATE

-- the tablespace
SELECT * FROM move_indexes('t', 'nosuch');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', '');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'pg_global');
\echo :SQLSTATE
SELECT * FROM move_schema_indexes('bad_input', 'nosuch');
\echo :SQLSTATE
SELECT * FROM move_tablespace_indexes('nosuch', 'regress_fast');
\echo :SQLSTATE
SELECT * FROM move_tablespace_indexes('regress_slow', 'nosuch');
\echo :SQLSTATE
SELECT * FROM move_tablespace_indexes('pg_global', 'regress_fast');
\echo :SQLSTATE
SELECT * FROM heal_tablespace('pg_global');
\echo :SQLSTATE
-- the schema
SELECT * FROM move_schema_indexes('nosuch', 'regress_fast');
\echo :SQLSTATE
SELECT * FROM move_schema_indexes(4294967295::oid, 'regress_fast');
\echo :SQLSTATE

-- the method
SELECT * FROM move_indexes('t', 'regress_fast', method => 'fast');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'regress_fast', method => '');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'regress_fast', method => repeat('x', 70));
\echo :SQLSTATE

-- jobs
SELECT cancel_move(-1);
\echo :SQLSTATE
SELECT cancel_move(9223372036854775807);
\echo :SQLSTATE
CALL wait_for_move(0);
\echo :SQLSTATE
CALL wait_for_move(9223372036854775807);
\echo :SQLSTATE

-- settings
SELECT * FROM move_indexes('t', 'regress_fast', settings => '{"nosuch": 1}');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'regress_fast', settings => '{"nosuch": {"a": 1}}');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'regress_fast', settings => '{"work_mem": "1GB"}');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'regress_fast', settings => '{"max_rate": "fast"}');
\echo :SQLSTATE
\set VERBOSITY sqlstate
SELECT * FROM move_indexes('t', 'regress_fast', settings => '{"max_rate": -1}');
\echo :SQLSTATE
\set VERBOSITY default
SELECT * FROM move_indexes('t', 'regress_fast', settings => '{"max_rate": "NaN"}');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'regress_fast', settings => '{"max_rate": 99999999999999999999}');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'regress_fast', settings => '{"max_rate": {"a": 1}}');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'regress_fast', settings => '{"max_rate": null}');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'regress_fast', settings => '[1]');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'regress_fast', settings => '"x"');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'regress_fast', settings => 'null');
\echo :SQLSTATE
SET index_mover.nosuch = 1;
\echo :SQLSTATE
SET index_mover.max_workers = 0;
\echo :SQLSTATE
SET index_mover.verify = 'random';
\echo :SQLSTATE
SET index_mover.min_free_space = 2;
\echo :SQLSTATE

-- a moment that is wrong
BEGIN;
SELECT * FROM move_indexes('t', 'regress_fast');
\echo :SQLSTATE
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT * FROM move_indexes('t', 'regress_fast');
\echo :SQLSTATE
ROLLBACK;
BEGIN;
SELECT * FROM undo_move(1);
\echo :SQLSTATE
ROLLBACK;
BEGIN;
SELECT * FROM index_mover_cleanup();
\echo :SQLSTATE
ROLLBACK;
BEGIN;
CALL wait_for_move(1);
\echo :SQLSTATE
ROLLBACK;
DO $$ BEGIN CALL wait_for_move(-1); END $$;
\echo :SQLSTATE
SELECT count(*) FROM t \; SELECT * FROM move_indexes('t', 'regress_fast');
\echo :SQLSTATE
SET default_transaction_read_only = on;
SELECT * FROM move_indexes('t', 'regress_fast');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'regress_fast', wait => false);
\echo :SQLSTATE
SELECT * FROM index_mover_cleanup();
\echo :SQLSTATE
SET default_transaction_read_only = off;
-- the caller's own locks
DO $$ BEGIN LOCK t IN ACCESS SHARE MODE; PERFORM move_indexes('t', 'regress_fast', method => 'rebuild'); END $$;
\echo :SQLSTATE
DO $$ BEGIN LOCK t IN SHARE UPDATE EXCLUSIVE MODE; PERFORM move_indexes('t_txt', 'regress_fast'); END $$;
\echo :SQLSTATE
DO $$ BEGIN PERFORM count(*) FROM t; PERFORM move_schema_indexes('bad_input', 'regress_fast', method => 'rebuild'); END $$;
\echo :SQLSTATE
SELECT * FROM t, move_indexes('t', 'regress_fast', method => 'rebuild');
\echo :SQLSTATE

-- a table of the extension that was renamed
BEGIN;
ALTER TABLE index_mover.ledger RENAME TO index_mover_elsewhere;
SELECT * FROM index_mover_cleanup(dry_run => true);
\echo :SQLSTATE
ROLLBACK;

-- nothing has happened, and the session is well
SELECT * FROM oracle.metadata_changes('t');
SELECT DISTINCT reltablespace FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid WHERE indrelid = 't'::regclass;
SELECT * FROM oracle.leftovers();
SELECT r.* FROM move_indexes('t', 'regress_fast', method => 'REBUILD') m, oracle.rows(m) r ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA bad_input CASCADE;
DROP SERVER regress_server;
DROP FOREIGN DATA WRAPPER regress_fdw;
