-- Jobs: dry run, without waiting, in transactions, history, bulk forms.
\getenv abs_srcdir PG_ABS_SRCDIR
\set setup :abs_srcdir '/sql/include/setup.sql'
\set ECHO none
\i :setup
\set ECHO all
CREATE SCHEMA jobs;
SET search_path = jobs, public;
CREATE TABLE t (id int PRIMARY KEY, txt text) WITH (autovacuum_enabled = false);
CREATE INDEX t_txt ON t (txt);
INSERT INTO t SELECT g, 't' || g FROM generate_series(1, 1000) g;
CREATE TABLE u (id int PRIMARY KEY) WITH (autovacuum_enabled = false);
INSERT INTO u SELECT generate_series(1, 100);
SELECT coalesce(max(job), 0) AS before FROM index_mover_history \gset

-- a plan, and nothing else
SELECT r.*, size > 0 AS size, elapsed > '0' AS elapsed, lock_time, job, regexp_replace(detail, 'Writes .* of WAL', 'Writes N of WAL') AS detail
  FROM move_indexes('t', 'regress_fast', method => 'rebuild', dry_run => true) m, oracle.rows(m) r ORDER BY 1;
SELECT count(*) FROM index_mover_history WHERE job > :before;
BEGIN;
SELECT r.status FROM move_indexes('t', 'regress_fast', method => 'rebuild', dry_run => true) m, oracle.rows(m) r;
COMMIT;
BEGIN READ ONLY;
SELECT status FROM move_indexes('t', 'regress_fast', method => 'rebuild', dry_run => true);
COMMIT;

-- without waiting: the job starts at COMMIT, and never after ROLLBACK
BEGIN;
SELECT name, status, job > :before AS job FROM move_indexes('t', 'regress_fast', method => 'rebuild', wait => false) ORDER BY 1;
SELECT name, status, started_at FROM index_mover_history WHERE job > :before ORDER BY 1;
ROLLBACK;
SELECT * FROM oracle.leftovers();
CALL wait_for_move();
BEGIN;
SAVEPOINT a;
SELECT count(*) FROM move_indexes('t', 'regress_fast', method => 'rebuild', wait => false);
ROLLBACK TO a;
COMMIT;
SELECT * FROM oracle.leftovers();
SELECT count(*) FROM index_mover_history WHERE job > :before;
-- nor if it was queued in a subtransaction of the one that aborts: the table is free again
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SELECT count(*) FROM move_indexes('t', 'regress_fast', method => 'rebuild', wait => false);
RELEASE b;
ROLLBACK TO a;
SELECT count(*) FROM move_indexes('t', 'regress_fast', method => 'rebuild', wait => false);
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT max(job) AS job FROM move_indexes('t', 'regress_fast', method => 'rebuild', wait => false) \gset
RELEASE a;
-- the table is taken now (terse: job and process are in the detail)
\set VERBOSITY terse
SELECT * FROM move_indexes('t_txt', 'regress_slow', method => 'rebuild', wait => false);
\echo :SQLSTATE
\set VERBOSITY default
ROLLBACK;
-- a prepared transaction has no process that could start the job
BEGIN;
SELECT count(*) FROM move_indexes('t', 'regress_fast', method => 'rebuild', wait => false);
PREPARE TRANSACTION 'regress_jobs';
\echo :SQLSTATE
SELECT * FROM oracle.leftovers();
BEGIN;
SELECT max(job) AS job FROM move_indexes('t', 'regress_fast', method => 'rebuild', wait => false) \gset
SELECT max(job) AS job2 FROM move_indexes('u', 'regress_fast', method => 'rebuild', wait => false) \gset
COMMIT;
CALL wait_for_move(:job);
CALL wait_for_move(:job2);
-- waiting for what has ended
CALL wait_for_move(:job);
SELECT job = :job AS job, name, kind, table_name, from_tablespace, to_tablespace, method, status,
       size_before > 0 AS size_before, size_after > 0 AS size_after, started_at <= finished_at AS times,
       elapsed > '0' AS elapsed, sqlstate, message, role = current_user AS role
  FROM index_mover_history WHERE job IN (:job, :job2) ORDER BY 2;
SET client_min_messages = warning;
SELECT cancel_move(:job) FROM generate_series(1, 2);
SELECT pause_move(:job);
RESET client_min_messages;

-- in a function or DO block at top level, at any isolation level
CREATE FUNCTION f() RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY SELECT m.status FROM move_indexes('t_txt', 'regress_slow', method => 'rebuild') m;
END $$;
SELECT f();
DO $$ BEGIN PERFORM move_indexes('t_txt', 'regress_fast', method => 'rebuild'); END $$;
SET default_transaction_isolation = 'serializable';
SELECT status FROM move_indexes('t_txt', 'regress_slow', method => 'rebuild');
SET default_transaction_isolation = 'repeatable read';
SELECT status FROM move_indexes('t_txt', 'regress_fast', method => 'rebuild');
RESET default_transaction_isolation;
-- an exception block is a subtransaction
DO $$ BEGIN
	PERFORM move_indexes('t_txt', 'regress_slow', method => 'rebuild');
EXCEPTION WHEN OTHERS THEN RAISE NOTICE '% %', SQLSTATE, SQLERRM;
END $$;
-- prepared, and with a cursor
PREPARE p(regclass, name) AS SELECT status FROM move_indexes($1, $2, method => 'rebuild');
EXECUTE p('t_txt', 'regress_slow');
BEGIN;
DECLARE c CURSOR FOR SELECT count(*) FROM move_indexes('t_txt', 'regress_fast', method => 'rebuild');
FETCH c;
\echo :SQLSTATE
ROLLBACK;
-- the result as a table; several calls in one statement
CREATE TEMP TABLE result AS SELECT * FROM move_indexes('t', 'regress_slow', method => 'rebuild');
SELECT name, status FROM result ORDER BY 1;
SELECT m.name, m.status FROM (VALUES ('t'::regclass), ('u')) AS r(rel), move_indexes(r.rel, 'regress_fast', method => 'rebuild') m ORDER BY 1;

-- settings of one call (the server of the tests has this one on)
SET index_mover.verify = off;
SELECT status FROM move_indexes('u', 'regress_slow', method => 'rebuild',
                                settings => '{"max_rate": "50MB", "prewarm": false, "verify": true, "lock_wait": "5min", "max_duration": 0}');
SHOW index_mover.max_rate;
SELECT name, unit, context, boot_val FROM pg_settings WHERE name LIKE 'index\_mover.%' ORDER BY 1;

-- bulk forms
CREATE SCHEMA bulk;
CREATE TABLE bulk.a (id int PRIMARY KEY) WITH (autovacuum_enabled = false);
CREATE TABLE bulk.b (id int PRIMARY KEY, t text UNIQUE) WITH (autovacuum_enabled = false);
CREATE MATERIALIZED VIEW bulk.m AS SELECT * FROM bulk.a;
CREATE UNIQUE INDEX m_id ON bulk.m (id);
CREATE VIEW bulk.v AS SELECT * FROM bulk.a;
CREATE TABLE bulk.p (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE bulk.p1 PARTITION OF bulk.p FOR VALUES FROM (0) TO (10);
SELECT r.* FROM move_schema_indexes('bulk', 'regress_slow', method => 'rebuild') m, oracle.rows(m) r ORDER BY 1;
ALTER TABLE t SET SCHEMA bulk;
SELECT r.name, r.from_tablespace, r.to_tablespace, r.status FROM move_tablespace_indexes('regress_slow', 'regress_fast', method => 'rebuild') m, oracle.rows(m) r ORDER BY 1;
SELECT r.* FROM move_tablespace_indexes('regress_slow', 'regress_fast', method => 'rebuild') m, oracle.rows(m) r;
-- only some of them
SELECT name FROM move_schema_indexes('bulk', 'regress_slow', method => 'rebuild', dry_run => true, name_like => '%\_pkey', name_not_like => 'p%') ORDER BY 1;
SELECT name FROM move_schema_indexes('bulk', 'regress_slow', method => 'rebuild', dry_run => true, min_size => 20000) ORDER BY 1;
SELECT name FROM move_tablespace_indexes('regress_fast', 'regress_slow', method => 'rebuild', dry_run => true, max_size => 20000, name_like => 'm\_id') ORDER BY 1;
-- (both limits are inclusive)
SELECT pg_table_size('bulk.m_id') AS size \gset
SELECT name FROM move_tablespace_indexes('regress_fast', 'regress_slow', method => 'rebuild', dry_run => true, min_size => :size, max_size => :size, name_like => 'm\_id');
SELECT name FROM move_schema_indexes('bulk', 'regress_slow', name_like => 'BULK%');
SELECT name FROM move_schema_indexes('bulk', 'regress_slow', min_size => -1);
\echo :SQLSTATE
CREATE SCHEMA nothing;
SELECT * FROM move_schema_indexes('nothing', 'regress_fast');

-- one index that fails does not stop the others, and on_failure decides the end
CREATE TABLE bulk.c (i int) WITH (autovacuum_enabled = false);
CREATE INDEX c_good ON bulk.c (i);
CREATE TABLE bulk.bad_numbers (i int);
CREATE FUNCTION bulk.check_number(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF EXISTS (SELECT FROM bulk.bad_numbers b WHERE b.i = check_number.i) THEN RAISE 'number %', i; END IF;
	RETURN i;
END $$;
CREATE INDEX c_bad ON bulk.c (bulk.check_number(i));
INSERT INTO bulk.c SELECT generate_series(1, 20);
INSERT INTO bulk.bad_numbers VALUES (13);
SELECT name, status, sqlstate, detail FROM move_indexes('bulk.c', 'regress_slow', method => 'rebuild') ORDER BY 1;
SELECT * FROM oracle.leftovers();
SET index_mover.on_failure = 'error';
-- for the number in the hint
SELECT setval('index_mover.job_seq', 100000, false);
SELECT name, status, sqlstate, detail FROM move_indexes('bulk.c', 'regress_fast', method => 'rebuild') ORDER BY 1;
\echo :SQLSTATE
RESET index_mover.on_failure;
SELECT name, status, sqlstate, message FROM index_mover_history WHERE table_name = 'bulk.c' ORDER BY job, name;
SELECT max(job) AS job FROM move_indexes('bulk.c', 'regress_slow', method => 'rebuild', wait => false) \gset
\set VERBOSITY terse
CALL wait_for_move(:job);
-- it is this session's last one until another is committed: queued, with nothing to move, in a savepoint
BEGIN;
SELECT count(*) FROM move_indexes('bulk.c', 'regress_slow', method => 'rebuild', wait => false);
ROLLBACK;
CALL wait_for_move();
BEGIN;
SELECT count(*) FROM move_indexes('bulk.c_good', 'regress_slow', wait => false);
ROLLBACK;
CALL wait_for_move();
BEGIN;
SAVEPOINT a;
SELECT count(*) FROM move_indexes('bulk.c', 'regress_slow', method => 'rebuild', wait => false);
ROLLBACK TO a;
COMMIT;
CALL wait_for_move();
-- or is queued in this very transaction
DO $$ BEGIN
	PERFORM move_indexes('bulk.c_good', 'regress_fast', wait => false);
	CALL wait_for_move();
END $$;
SELECT status FROM index_mover_history WHERE name = 'bulk.c_good' ORDER BY job DESC LIMIT 1;
CALL wait_for_move();
-- a call that waits has one, too, and one that has nothing to move
SELECT status FROM move_indexes('bulk.c', 'regress_fast', method => 'rebuild') ORDER BY name;
CALL wait_for_move();
SELECT status FROM move_indexes('bulk.c_good', 'regress_fast');
CALL wait_for_move();
-- nothing was to be moved: it has ended when it was submitted
SELECT status, moved, total, percent, finished_at = started_at AS ended FROM index_mover_jobs ORDER BY job DESC LIMIT 1;

-- a function that raises the SQLSTATE of a cancel cancels nothing
CREATE TABLE bulk.raises (i int) WITH (autovacuum_enabled = false);
CREATE FUNCTION bulk.stop(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN i; END $$;
CREATE INDEX raises_first ON bulk.raises (bulk.stop(i));
CREATE INDEX raises_second ON bulk.raises (i);
INSERT INTO bulk.raises VALUES (1);
CREATE OR REPLACE FUNCTION bulk.stop(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RAISE 'stop' USING ERRCODE = 'query_canceled'; END $$;
SELECT name, status, sqlstate, detail FROM move_indexes('bulk.raises', 'regress_fast', method => 'rebuild',
	settings => '{"max_workers": 1}') ORDER BY 1;
DROP TABLE bulk.raises;
DROP FUNCTION bulk.stop;

-- what a superuser has written there
BEGIN;
UPDATE index_mover.job_log SET settings = '[1]';
SELECT undo_move(max(job), dry_run => true) FROM index_mover_jobs;
\echo :SQLSTATE
ROLLBACK;

-- an index that is dropped before its turn needs no move any more
CREATE TABLE w (a int PRIMARY KEY, b int);
CREATE INDEX w_b ON w (b);
INSERT INTO w SELECT g, g FROM generate_series(1, 1000) g;
BEGIN;
SELECT max(job) AS job FROM move_indexes('w', 'regress_fast', method => 'copy', wait => false) \gset
DROP INDEX w_b;
COMMIT;
CALL wait_for_move(:job);
SELECT status, moved, total, percent FROM index_mover_jobs WHERE job = :job;
-- nor does one that was only rehearsed
SELECT max(job) AS job FROM move_indexes('w', 'pg_default', method => 'copy', rehearse => true) \gset
SELECT status, moved, total, percent FROM index_mover_jobs WHERE job = :job;

-- what another job moves away is not "already" where it is
SELECT status FROM move_table('w', 'regress_fast', indexes => true) ORDER BY name;
BEGIN;
SELECT max(job) AS job FROM move_table('w', 'pg_default', wait => false) \gset
SELECT status FROM move_table('w', 'regress_fast', wait => false);
\echo :SQLSTATE
ROLLBACK;
BEGIN;
SELECT max(job) AS job FROM move_table('w', 'pg_default', wait => false) \gset
SELECT name, status, sqlstate, replace(detail, :'job', 'N') AS detail FROM move_schema_tables('jobs', 'regress_fast', name_like => '_', wait => false) WHERE kind = 'table' ORDER BY 1;
-- nor twice to the same place
SELECT status FROM move_table('w', 'pg_default', wait => false);
\echo :SQLSTATE
ROLLBACK;
\set VERBOSITY default
DELETE FROM bulk.bad_numbers;
SELECT name, status FROM move_indexes('bulk.c', 'regress_slow', method => 'rebuild') ORDER BY 1;
SELECT oracle.verdict('bulk.c');
SELECT * FROM oracle.leftovers();
SELECT * FROM oracle.files();
SELECT * FROM index_mover_cleanup(dry_run => true);
SELECT * FROM index_mover_cleanup();

SET client_min_messages = warning;
DROP SCHEMA jobs, bulk, nothing CASCADE;
