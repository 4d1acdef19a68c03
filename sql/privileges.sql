-- Who may move what.
-- Fault (security): settings that harm others (also sql/bad_input)
\getenv abs_srcdir PG_ABS_SRCDIR
\set setup :abs_srcdir '/sql/include/setup.sql'
\set ECHO none
\i :setup
\set ECHO all
CREATE ROLE regress_owner LOGIN;
CREATE ROLE regress_group NOLOGIN;
CREATE ROLE regress_member LOGIN IN ROLE regress_group;
CREATE ROLE regress_nobody LOGIN;
CREATE SCHEMA priv;
GRANT ALL ON SCHEMA priv TO PUBLIC;
SET search_path = priv, public;
CREATE TABLE owned (id int PRIMARY KEY) WITH (autovacuum_enabled = false);
CREATE TABLE grouped (id int PRIMARY KEY) WITH (autovacuum_enabled = false);
CREATE TABLE super (id int PRIMARY KEY) WITH (autovacuum_enabled = false);
INSERT INTO owned SELECT generate_series(1, 100);
INSERT INTO grouped SELECT generate_series(1, 100);
INSERT INTO super SELECT generate_series(1, 100);
ALTER TABLE owned OWNER TO regress_owner;
ALTER TABLE grouped OWNER TO regress_group;

-- EXECUTE is not for all roles
SET ROLE regress_owner;
SELECT * FROM move_indexes('owned', 'regress_fast');
\echo :SQLSTATE
SELECT * FROM move_schema_indexes('priv', 'regress_fast');
\echo :SQLSTATE
SELECT * FROM move_tablespace_indexes('pg_default', 'regress_fast');
\echo :SQLSTATE
CALL wait_for_move(1);
\echo :SQLSTATE
SELECT * FROM index_mover_cleanup();
\echo :SQLSTATE
RESET ROLE;
SELECT p.proname, p.proacl IS NOT NULL AND NOT has_function_privilege('regress_nobody', p.oid, 'EXECUTE') AS revoked
  FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
 WHERE d.classid = 'pg_proc'::regclass AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'index_mover')
   AND p.proname IN ('move_indexes', 'move_schema_indexes', 'move_tablespace_indexes', 'wait_for_move', 'index_mover_cleanup')
   AND p.pronamespace = 'public'::regnamespace
 ORDER BY 1;
-- what printed commands call is open to all, and no way around that
SELECT n.nspname, p.proname FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE d.classid = 'pg_proc'::regclass AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'index_mover')
   AND has_schema_privilege('regress_nobody', n.oid, 'USAGE') AND has_function_privilege('regress_nobody', p.oid, 'EXECUTE')
 ORDER BY 1, 2;
SET ROLE regress_nobody;
\set VERBOSITY terse
SELECT * FROM index_mover_call.move_indexes('owned', 'regress_fast');
SELECT * FROM index_mover_call.move_table('owned', 'regress_fast');
SELECT * FROM index_mover_call.move_schema_indexes('public', 'regress_fast', false);
SELECT * FROM index_mover_call.move_schema_tables('public', 'regress_fast', false);
SELECT * FROM index_mover_call.evacuate_tablespace('regress_slow', 'regress_fast');
SELECT * FROM index_mover_call.heal_tablespace('regress_slow');
SELECT index_mover_call.cancel_move(1);
SELECT index_mover_call.resume_move(1);
SELECT index_mover_call.alter_move(1, 'max_rate', '1MB');
SELECT * FROM index_mover_call.index_mover_cleanup();
SELECT count(*) >= 0 AS may_look FROM index_mover_call.index_mover_blockers;
SELECT * FROM index_mover_call.index_mover_check;
SELECT * FROM index_mover_call.tablespace_probe('regress_fast');
\set VERBOSITY default
SELECT count(*) FROM index_mover_call.index_mover_jobs;
RESET ROLE;
-- and of the views those that their reader may read
REVOKE SELECT ON index_mover_history FROM PUBLIC;
SET ROLE regress_nobody;
SELECT count(*) FROM index_mover_call.index_mover_history;
\echo :SQLSTATE
RESET ROLE;
GRANT SELECT ON index_mover_history TO PUBLIC;
-- NULL is not all jobs
SELECT index_mover_call.cancel_move(NULL);
GRANT EXECUTE ON FUNCTION move_indexes(regclass, name, text, boolean, boolean, boolean, jsonb),
	move_schema_indexes(regnamespace, name, text, boolean, boolean, boolean, jsonb, text, text, bigint, bigint),
	move_tablespace_indexes(name, name, text, boolean, boolean, boolean, jsonb, text, text, bigint, bigint) TO PUBLIC;
GRANT EXECUTE ON PROCEDURE wait_for_move TO PUBLIC;

-- CREATE on the target
SET ROLE regress_owner;
SELECT * FROM move_indexes('owned', 'regress_fast', method => 'rebuild');
\echo :SQLSTATE
-- not needed for the database's default
SELECT status FROM move_indexes('owned', 'pg_default', method => 'rebuild');
RESET ROLE;
GRANT CREATE ON TABLESPACE regress_fast, regress_slow TO regress_owner, regress_group;

-- owner, member of the owning role, others
SET ROLE regress_owner;
SELECT status FROM move_indexes('owned', 'regress_fast', method => 'rebuild');
-- 17 and later have a privilege for it, and so other words
\set VERBOSITY sqlstate
SELECT * FROM move_indexes('super', 'regress_fast', method => 'rebuild');
\echo :SQLSTATE
SELECT * FROM move_indexes('super_pkey', 'regress_fast', method => 'rebuild', dry_run => true);
\echo :SQLSTATE
SELECT * FROM move_indexes('grouped', 'regress_fast', method => 'rebuild');
\echo :SQLSTATE
\set VERBOSITY default
SET ROLE regress_member;
SELECT status FROM move_indexes('grouped', 'regress_fast', method => 'rebuild');
-- a role that cannot log in
SET ROLE regress_group;
SELECT status FROM move_indexes('grouped', 'regress_slow', method => 'rebuild');
\set VERBOSITY sqlstate
SELECT * FROM move_indexes('pg_catalog.pg_class', 'regress_fast');
\echo :SQLSTATE
\set VERBOSITY default
RESET ROLE;
SET SESSION AUTHORIZATION regress_owner;
SELECT status FROM move_indexes('owned', 'regress_slow', method => 'rebuild');
RESET SESSION AUTHORIZATION;
-- the role may be out of connections, or expired: the caller is in already
ALTER ROLE regress_owner CONNECTION LIMIT 0 VALID UNTIL '2000-01-01';
SET ROLE regress_owner;
SELECT status FROM move_indexes('owned', 'regress_fast', method => 'rebuild');
RESET ROLE;

-- bulk forms leave out what the caller may not move
SET ROLE regress_owner;
SELECT name, status, sqlstate, substring(detail, 'table .*') AS detail FROM move_schema_indexes('priv', 'regress_slow', method => 'rebuild') ORDER BY 1;
SELECT name, status, sqlstate FROM move_tablespace_indexes('regress_slow', 'regress_fast', method => 'rebuild') ORDER BY 1;
RESET ROLE;

-- and remove nothing that moves of it have left: here a row of the ledger, for no index any more
INSERT INTO index_mover.ledger
SELECT nextval('index_mover.ledger_seq'), system_identifier, d.oid, 'i', 0, 0, 'super'::regclass, 'super_pkey'::regclass, 0, 1000000, 0, now(), ''
  FROM pg_control_system(), pg_database d WHERE datname = current_database();
SET ROLE regress_owner;
SELECT name, status, sqlstate FROM move_schema_indexes('priv', 'regress_fast', method => 'rebuild') ORDER BY 1;
RESET ROLE;
SELECT count(*) FROM index_mover.ledger;
SELECT name, status, sqlstate FROM move_indexes('super', 'pg_default', method => 'rebuild');
-- (the call does not wait for it)
DO $$ BEGIN
	FOR i IN 1 .. 1200 LOOP
		EXIT WHEN NOT EXISTS (SELECT FROM index_mover.ledger);
		PERFORM pg_sleep(0.05);
	END LOOP;
END $$;
SELECT count(*) FROM index_mover.ledger;
-- history: one's own jobs, one's own tables, or pg_read_all_stats
SET ROLE regress_nobody;
SELECT count(*) FROM index_mover_history;
SELECT count(*) FROM index_mover_progress;
SET ROLE regress_member;
SELECT DISTINCT table_name FROM index_mover_history WHERE table_name LIKE '%grouped' OR table_name LIKE '%owned' ORDER BY 1;
SET ROLE regress_owner;
SELECT DISTINCT table_name, role FROM index_mover_history ORDER BY 1;
RESET ROLE;
GRANT pg_read_all_stats TO regress_nobody;
SET ROLE regress_nobody;
SELECT count(*) > 5 FROM index_mover_history;
RESET ROLE;

-- no role can write or forge what the extension keeps
SET ROLE regress_owner;
SELECT * FROM index_mover.ledger;
\echo :SQLSTATE
-- not even with the schema
RESET ROLE;
GRANT USAGE ON SCHEMA index_mover TO regress_owner;
SET ROLE regress_owner;
SELECT * FROM index_mover.ledger;
\echo :SQLSTATE
SELECT * FROM index_mover.move_log;
\echo :SQLSTATE
SELECT * FROM index_mover.job_log;
\echo :SQLSTATE
UPDATE index_mover.job_log SET role = 0;
\echo :SQLSTATE
INSERT INTO index_mover.ledger SELECT;
\echo :SQLSTATE
DELETE FROM index_mover.ledger;
\echo :SQLSTATE
UPDATE index_mover.move_log SET relation = 0;
\echo :SQLSTATE
TRUNCATE index_mover.move_log;
\echo :SQLSTATE
SELECT nextval('index_mover.job_seq');
\echo :SQLSTATE
SELECT setval('index_mover.ledger_seq', 1);
\echo :SQLSTATE
DELETE FROM index_mover_history;
\echo :SQLSTATE
RESET ROLE;
REVOKE USAGE ON SCHEMA index_mover FROM regress_owner;
SET ROLE regress_owner;
-- settings that could harm others
SET index_mover.lock_timeout = '1h';
\echo :SQLSTATE
SET index_mover.on_blocker = 'terminate';
\echo :SQLSTATE
SET index_mover.max_workers = 8;
\echo :SQLSTATE
SET index_mover.min_free_space = 0;
\echo :SQLSTATE
SET index_mover.max_replica_lag = 0;
\echo :SQLSTATE
SELECT * FROM move_indexes('owned', 'regress_fast', settings => '{"lock_timeout": "1h"}');
\echo :SQLSTATE
SELECT * FROM move_indexes('owned', 'regress_fast', settings => '{"on_blocker": "cancel"}');
\echo :SQLSTATE
RESET ROLE;
-- but for who was granted one
GRANT SET ON PARAMETER index_mover.max_replica_lag TO regress_owner;
SET ROLE regress_owner;
SET index_mover.max_replica_lag = '1GB';
SHOW index_mover.max_replica_lag;
RESET index_mover.max_replica_lag;
SELECT status FROM move_indexes('owned', 'regress_slow', settings => '{"max_replica_lag": "1GB"}');
SELECT status FROM move_indexes('owned', 'regress_fast', settings => '{"max_replica_lag": "1GB", "lock_timeout": "1h"}');
\echo :SQLSTATE
RESET ROLE;
REVOKE SET ON PARAMETER index_mover.max_replica_lag FROM regress_owner;

SELECT * FROM oracle.leftovers();
SET client_min_messages = warning;
REVOKE EXECUTE ON FUNCTION move_indexes(regclass, name, text, boolean, boolean, boolean, jsonb),
	move_schema_indexes(regnamespace, name, text, boolean, boolean, boolean, jsonb, text, text, bigint, bigint),
	move_tablespace_indexes(name, name, text, boolean, boolean, boolean, jsonb, text, text, bigint, bigint) FROM PUBLIC;
REVOKE EXECUTE ON PROCEDURE wait_for_move FROM PUBLIC;
DROP SCHEMA priv CASCADE;
DROP OWNED BY regress_owner, regress_group, regress_member, regress_nobody;
DROP ROLE regress_member, regress_owner, regress_group, regress_nobody;
