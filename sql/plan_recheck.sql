--
-- What changes between the plan and the move.  A job that is queued in a
-- transaction block starts at COMMIT, with a plan that the rest of the block
-- has made out of date.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS index_mover CASCADE;
RESET client_min_messages;
-- how a move goes depends on the machine
SET index_mover.progress_interval = 0;
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE regress_recheck_ts LOCATION '';
CREATE TABLESPACE regress_recheck_ts2 LOCATION '';
CREATE ROLE regress_recheck_owner;
CREATE ROLE regress_recheck_other;
GRANT CREATE ON TABLESPACE regress_recheck_ts TO regress_recheck_owner;
GRANT EXECUTE ON FUNCTION move_indexes TO regress_recheck_owner;
GRANT EXECUTE ON FUNCTION resume_move TO regress_recheck_owner;
GRANT EXECUTE ON PROCEDURE wait_for_move TO regress_recheck_owner;
CREATE SCHEMA regress_recheck;
CREATE SCHEMA regress_recheck2;
GRANT ALL ON SCHEMA regress_recheck TO regress_recheck_owner, regress_recheck_other;
SET search_path = regress_recheck, public;

CREATE TABLE t (a int PRIMARY KEY, b int);
CREATE INDEX t_dropped ON t (b);
CREATE INDEX t_replaced ON t (b);
CREATE INDEX t_renamed ON t (b);
CREATE INDEX t_elsewhere ON t (b);
CREATE INDEX t_there ON t (b);
CREATE INDEX t_invalid ON t (b);
INSERT INTO t SELECT i, i FROM generate_series(1, 1000) i;

-- one index: dropped; another of the same name: a stranger, left alone
BEGIN;
SELECT job AS job FROM move_indexes('t', 'regress_recheck_ts', 'rebuild', wait => false) LIMIT 1 \gset
DROP INDEX t_dropped;
DROP INDEX t_replaced;
CREATE INDEX t_replaced ON t (b);
ALTER INDEX t_renamed RENAME TO t_renamed_2;
ALTER INDEX t_elsewhere SET TABLESPACE regress_recheck_ts2;
ALTER INDEX t_there SET TABLESPACE regress_recheck_ts;
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 't_invalid'::regclass;
COMMIT;
CALL wait_for_move(:job);
SELECT name, status, sqlstate, message FROM index_mover_history
 WHERE job = :job ORDER BY name COLLATE "C";
SELECT indexrelid::regclass, indisvalid, spcname
  FROM pg_index JOIN pg_class c ON c.oid = indexrelid LEFT JOIN pg_tablespace s ON s.oid = reltablespace
 WHERE indrelid = 't'::regclass ORDER BY indexrelid::regclass::text COLLATE "C";

-- the invalid index named itself is repaired where it is, or on its way
SELECT name, status, sqlstate FROM move_indexes('t_invalid', 'pg_default', 'rebuild');
SELECT indisvalid FROM pg_index WHERE indexrelid = 't_invalid'::regclass;
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 't_invalid'::regclass;
SELECT name, status, sqlstate FROM move_indexes('t_invalid', 'regress_recheck_ts', 'rebuild');
SELECT indisvalid FROM pg_index WHERE indexrelid = 't_invalid'::regclass;

-- ROLLBACK: no job
BEGIN;
SELECT status FROM move_indexes('t_pkey', 'pg_default', 'rebuild', wait => false);
ROLLBACK;
SELECT spcname FROM pg_class JOIN pg_tablespace s ON s.oid = reltablespace WHERE relname = 't_pkey';

-- the table: dropped, or in another schema
CREATE TABLE dropped (a int PRIMARY KEY);
CREATE TABLE moved (a int PRIMARY KEY);
BEGIN;
SELECT job AS job FROM move_indexes('dropped', 'regress_recheck_ts', 'rebuild', wait => false) \gset
SELECT job AS job2 FROM move_indexes('moved', 'regress_recheck_ts', 'rebuild', wait => false) \gset
DROP TABLE dropped;
ALTER TABLE moved SET SCHEMA regress_recheck2;
COMMIT;
CALL wait_for_move(:job);
CALL wait_for_move(:job2);
SELECT name, status, sqlstate, message FROM index_mover_history
 WHERE job IN (:job, :job2) ORDER BY name COLLATE "C";

-- privileges on the target, on the table, on the schema
CREATE TABLE priv (a int PRIMARY KEY);
ALTER TABLE priv OWNER TO regress_recheck_owner;
BEGIN;
SET ROLE regress_recheck_owner;
SELECT job AS job FROM move_indexes('priv', 'regress_recheck_ts', 'rebuild', wait => false) \gset
RESET ROLE;
REVOKE CREATE ON TABLESPACE regress_recheck_ts FROM regress_recheck_owner;
COMMIT;
-- (the HINT has the job's number)
\set VERBOSITY terse
CALL wait_for_move(:job);
\set VERBOSITY default
SELECT name, status, sqlstate, message FROM index_mover_history WHERE job = :job;
-- the rest of the job is what lacked a privilege
SET ROLE regress_recheck_owner;
SELECT resume_move(:job);
RESET ROLE;
GRANT CREATE ON TABLESPACE regress_recheck_ts TO regress_recheck_owner;
BEGIN;
SET ROLE regress_recheck_owner;
SELECT job AS job FROM move_indexes('priv', 'regress_recheck_ts', 'rebuild', wait => false) \gset
RESET ROLE;
ALTER TABLE priv OWNER TO regress_recheck_other;
COMMIT;
-- (the HINT has the job's number)
\set VERBOSITY terse
CALL wait_for_move(:job);
\set VERBOSITY default
SELECT name, status, sqlstate FROM index_mover_history WHERE job = :job;
ALTER TABLE priv OWNER TO regress_recheck_owner;
BEGIN;
SET ROLE regress_recheck_owner;
SELECT job AS job FROM move_indexes('priv', 'regress_recheck_ts', 'rebuild', wait => false) \gset
RESET ROLE;
REVOKE USAGE ON SCHEMA regress_recheck FROM regress_recheck_owner;
COMMIT;
-- (the HINT has the job's number)
\set VERBOSITY terse
CALL wait_for_move(:job);
\set VERBOSITY default
SELECT name, status, sqlstate, message FROM index_mover_history WHERE job = :job;
GRANT USAGE ON SCHEMA regress_recheck TO regress_recheck_owner;
SET ROLE regress_recheck_owner;
SET client_min_messages = warning;
SELECT resume_move(:job) AS job \gset
CALL wait_for_move(:job);
SELECT name, status, sqlstate FROM index_mover_history WHERE job = :job;
SELECT resume_move(:job) IS NULL AS nothing;
RESET client_min_messages;
RESET ROLE;

-- partitions: a new one is made where the default says; the default was set by
-- another session, the parent dropped
CREATE TABLE p (a int PRIMARY KEY, b int) PARTITION BY RANGE (a);
CREATE INDEX p_b ON p (b);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
BEGIN;
SELECT job AS job FROM move_indexes('p', 'regress_recheck_ts', 'rebuild', wait => false) LIMIT 1 \gset
ALTER INDEX p_pkey SET TABLESPACE regress_recheck_ts;
DROP INDEX p_b;
COMMIT;
CALL wait_for_move(:job);
SELECT name, status, sqlstate, message FROM index_mover_history
 WHERE job = :job ORDER BY name COLLATE "C";
CREATE INDEX p_b ON p (b);
SELECT name, status, sqlstate FROM move_indexes('p', 'regress_recheck_ts', 'rebuild');
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
SELECT c.relname, spcname FROM pg_class c JOIN pg_tablespace s ON s.oid = reltablespace
 WHERE relnamespace = 'regress_recheck'::regnamespace AND relname ~ '^p[12]?_' ORDER BY 1;

SET client_min_messages = warning;
DROP SCHEMA regress_recheck, regress_recheck2 CASCADE;
DROP TABLESPACE regress_recheck_ts;
DROP TABLESPACE regress_recheck_ts2;
REVOKE EXECUTE ON FUNCTION move_indexes, resume_move FROM regress_recheck_owner;
REVOKE EXECUTE ON PROCEDURE wait_for_move FROM regress_recheck_owner;
DROP ROLE regress_recheck_owner, regress_recheck_other;
