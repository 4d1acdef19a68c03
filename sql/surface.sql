-- What a user calls and sees: names and columns, wrong calls, settings that a job keeps.
\getenv abs_srcdir PG_ABS_SRCDIR
\set setup :abs_srcdir '/sql/include/setup.sql'
\set ECHO none
\i :setup
\set ECHO all
SET intervalstyle = postgres;
CREATE SCHEMA surface;
SET search_path = surface, public;
-- for the numbers of jobs in messages
SELECT setval('index_mover.job_seq', 200000, false);

-- columns and their types
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.relnamespace = 'public'::regnamespace
   AND c.relname IN ('move_result', 'index_mover_jobs', 'index_mover_progress', 'index_mover_history')
 ORDER BY c.relname, a.attnum;
SELECT p.proname, a.name, a.type::regtype
  FROM pg_proc p CROSS JOIN unnest(p.proargnames, p.proallargtypes, p.proargmodes) WITH ORDINALITY a(name, type, mode, n)
 WHERE p.oid IN ('index_mover_cleanup'::regproc, 'index_mover_blockers'::regproc, 'index_mover_check'::regproc) AND a.mode <> 'i'
 ORDER BY p.proname, a.n;

-- what \df and \dv list, and how the calls are written; nothing else of the extension is outside its own schema
CREATE VIEW members AS
	SELECT d.classid::regclass AS catalog, d.objid, o.schema, o.name
	  FROM pg_extension e
	  JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
	 CROSS JOIN LATERAL pg_identify_object(d.classid, d.objid, 0) o
	 WHERE e.extname = 'index_mover'
   -- from 17 on, the row types of tables and views, and arrays, are members, too
   AND NOT EXISTS (SELECT FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid
					WHERE d.classid = 'pg_type'::regclass AND t.oid = d.objid AND (t.typelem <> 0 OR c.relkind <> 'c'));
SELECT p.proname, p.prokind FROM members m JOIN pg_proc p ON p.oid = m.objid
 WHERE m.catalog = 'pg_proc'::regclass AND m.schema = 'public' ORDER BY 1;
SELECT c.relname, c.relkind FROM members m JOIN pg_class c ON c.oid = m.objid
 WHERE m.catalog = 'pg_class'::regclass AND m.schema = 'public' ORDER BY 1;
SELECT m.name FROM members m WHERE m.catalog = 'pg_type'::regclass AND m.schema = 'public' ORDER BY 1;
SELECT DISTINCT m.catalog, m.schema FROM members m WHERE m.schema IS DISTINCT FROM 'public' ORDER BY 1, 2;
SELECT m.name FROM members m WHERE m.schema IS NULL;
SELECT format('%s(%s)', p.oid::regproc, pg_get_function_arguments(p.oid)) AS call, pg_get_function_result(p.oid) AS returns
  FROM pg_proc p
 WHERE p.oid IN ('move_indexes'::regproc, 'move_schema_indexes'::regproc, 'move_tablespace_indexes'::regproc, 'undo_move'::regproc,
				 'wait_for_move'::regproc, 'cancel_move'::regproc, 'pause_move'::regproc, 'resume_move'::regproc, 'alter_move'::regproc)
 ORDER BY p.proname;
SELECT extname, extrelocatable FROM pg_extension WHERE extname = 'index_mover';

CREATE TABLE t (id int, txt text) WITH (autovacuum_enabled = false);
CREATE INDEX t_id ON t (id);
CREATE INDEX t_txt ON t (txt);
CREATE TABLE bare (id int);
INSERT INTO t SELECT g, 't' || g FROM generate_series(1, 1000) g;

-- a row of a call, with a name of 13 characters, fits 100 columns with the blank before it
CREATE INDEX thirteen_char ON t (id, txt);
SELECT length(m::text) < 100 AS fits, m.method, m.status FROM move_indexes('thirteen_char', 'regress_fast', method => 'copy') m;
SELECT length(m::text) < 100 AS fits, m.method, m.status FROM move_indexes('thirteen_char', 'regress_slow', method => 'rebuild') m;
DROP INDEX thirteen_char;

-- wrong names
SELECT * FROM move_indexes('nosuch', 'regress_fast');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', '"regress_fast"');
\echo :SQLSTATE
SELECT * FROM move_tablespace_indexes('"regress_slow"', 'regress_fast');
\echo :SQLSTATE
-- wrong sizes
SELECT * FROM move_schema_indexes('surface', 'regress_fast', min_size => '10GB');
\echo :SQLSTATE
SELECT count(*) FROM move_schema_indexes('surface', 'regress_fast', min_size => pg_size_bytes('10GB'));
SELECT * FROM move_schema_indexes('surface', 'regress_fast', min_size => 2, max_size => 1);
\echo :SQLSTATE
SELECT * FROM move_schema_indexes('surface', 'regress_fast', min_size => -1);
\echo :SQLSTATE
SELECT * FROM move_tablespace_indexes('regress_slow', 'regress_fast', min_size => 2, max_size => 1);
\echo :SQLSTATE
-- wrong moments; one that is past means at once
SELECT * FROM move_indexes('t', 'regress_fast', settings => '{"swap_after": "26:00"}');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'regress_fast', wait => false, settings => '{"swap_after": "some day"}');
\echo :SQLSTATE
SELECT * FROM move_indexes('t', 'regress_fast', wait => false, settings => '{"swap_after": ":"}');
\echo :SQLSTATE
-- a day before the time is no time of day, whatever its style
SET datestyle = 'German';
SELECT status FROM move_indexes('t_id', 'regress_fast', 'copy', dry_run => true, settings => '{"swap_after": "26.11.2026 05:00"}');
RESET datestyle;
-- of no matter to what does not swap
SET index_mover.swap_after = 'some day';
SELECT * FROM index_mover_cleanup();
SELECT count(*) > 0 AS reported FROM index_report('t');
RESET index_mover.swap_after;
SELECT name, status FROM move_indexes('t', 'regress_fast', method => 'copy', settings => '{"swap_after": "yesterday"}') ORDER BY name;

-- nothing to do
SET index_mover.progress_interval = '1s';
SELECT setval('index_mover.job_seq', 200100, false);
SELECT * FROM move_indexes('bare', 'regress_fast');
SELECT * FROM move_schema_indexes('surface', 'regress_fast', name_like => 'nosuch%');
-- not the extension's own tables
SELECT * FROM move_schema_indexes('index_mover', 'regress_fast');
\echo :SQLSTATE
-- all is in place
SELECT name, job, status, detail FROM move_indexes('t', 'regress_fast') ORDER BY name;
SELECT name, status, job FROM move_indexes('t', 'regress_fast', dry_run => true) ORDER BY name;
SELECT setval('index_mover.job_seq', 200200, false);
SELECT job FROM move_indexes('t', 'regress_fast') LIMIT 1 \gset
CALL wait_for_move(:job);
SELECT job, status, moved, total FROM index_mover_jobs WHERE job = :job;
SET index_mover.progress_interval = 0;
-- the first row is one that was skipped
SELECT status FROM move_indexes('t_id', 'regress_slow');
SELECT name, status, job > 0 AS job FROM move_indexes('t', 'regress_fast', wait => false);
CALL wait_for_move();
SELECT status FROM move_indexes('t_id', 'regress_slow');
SELECT job, status FROM move_indexes('t', 'regress_fast', wait => false) LIMIT 1 \gset
\echo :status
CALL wait_for_move(:job);
SELECT job = :job AS job, name, status, to_tablespace FROM index_mover_history ORDER BY index_mover_history.job DESC LIMIT 1;

-- steered without a number, and resumed with its settings; its swap waits for tomorrow
SELECT (now() + interval '1 day')::timestamp(0) AS tomorrow \gset
SET index_mover.max_rate = '30MB';
SELECT job, status FROM move_indexes('t_id', 'regress_slow', method => 'copy', wait => false,
	settings => jsonb_build_object('swap_after', :'tomorrow', 'prewarm', 'off')) \gset
RESET index_mover.max_rate;
\echo :status
SELECT pause_move(), resume_move(:job) = :job AS the_same;
SELECT pause_move(), pause_move(:job);
SELECT status, total, tablespace, settings->>'max_rate' AS max_rate, settings->>'prewarm' AS prewarm,
	(settings->>'swap_after')::timestamptz = :'tomorrow'::timestamptz AS swap_after
  FROM index_mover_jobs WHERE job = :job;
SELECT resume_move(:job, '{"max_rate": "20MB"}') = :job AS the_same;
SELECT settings->>'max_rate' AS max_rate, settings->>'prewarm' AS prewarm FROM index_mover_jobs WHERE job = :job;
SELECT alter_move(:job, 'max_rate', '10MB');
SELECT settings->>'max_rate' AS max_rate FROM index_mover_jobs WHERE job = :job;
SELECT cancel_move();
CALL wait_for_move(:job, raise => false);
SELECT cancel_move(), cancel_move(:job);
SELECT status, moved, total, finished_at IS NOT NULL AS finished FROM index_mover_jobs WHERE job = :job;
-- what an ended job has left: a new one, with the same settings but for those that are named
SELECT resume_move(:job, '{"swap_after": ""}') AS rest \gset
CALL wait_for_move();
SELECT :rest > :job AS new;
SELECT status, moved, total, settings->>'max_rate' AS max_rate, settings->>'prewarm' AS prewarm, settings->>'swap_after' AS swap_after
  FROM index_mover_jobs WHERE job = :rest;
SELECT name, method, status FROM index_mover_history WHERE job = :rest;
-- nothing is left
SELECT resume_move(:rest) IS NULL AS nothing;
-- by the method that was asked for
SELECT job FROM move_indexes('t_id', 'regress_fast', method => 'rebuild', settings => '{"max_rate": "9MB"}') \gset

-- undo: the plan, then with the job's method and settings, or others
SELECT job IS NULL AS no_job, name, status, method FROM undo_move(:job, dry_run => true);
SELECT c.reltablespace = (SELECT oid FROM pg_tablespace WHERE spcname = 'regress_fast') AS still_there FROM pg_class c WHERE oid = 't_id'::regclass;
SELECT job, status, method FROM undo_move(:job) \gset
SELECT :'status' AS status, :'method' AS method, settings->>'max_rate' AS max_rate, tablespace FROM index_mover_jobs WHERE job = :job;
SELECT job, status, method FROM undo_move(:job, settings => '{"max_rate": "8MB", "prewarm": "off"}') \gset
SELECT :'status' AS status, :'method' AS method, settings->>'max_rate' AS max_rate, settings->>'prewarm' AS prewarm, tablespace
  FROM index_mover_jobs WHERE job = :job;
SELECT job, status FROM undo_move(:job, wait => false) \gset
\echo :status
CALL wait_for_move();
-- what another job has moved since stays
SELECT job FROM move_indexes('t', 'pg_default', method => 'copy') LIMIT 1 \gset
SELECT setval('index_mover.job_seq', 200300, false);
SELECT status FROM move_indexes('t_txt', 'regress_slow', method => 'copy');
SELECT name, status, sqlstate, regexp_replace(detail, 'Writes \S+ \S+ of', 'Writes') AS detail FROM undo_move(:job, dry_run => true) ORDER BY name;
SELECT name, status, sqlstate, detail FROM undo_move(:job) ORDER BY name;
SELECT c.relname, s.spcname FROM pg_class c JOIN pg_tablespace s ON s.oid = c.reltablespace WHERE c.relname IN ('t_id', 't_txt') ORDER BY 1;

-- a job that fails in the background
CREATE TABLE c (i int) WITH (autovacuum_enabled = false);
CREATE TABLE bad_numbers (i int);
CREATE FUNCTION check_number(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF EXISTS (SELECT FROM surface.bad_numbers b WHERE b.i = check_number.i) THEN RAISE 'number %', i; END IF;
	RETURN i;
END $$;
CREATE INDEX c_good ON c (i);
CREATE INDEX c_bad ON c (check_number(i));
INSERT INTO c SELECT generate_series(1, 20);
INSERT INTO bad_numbers VALUES (13);
SELECT setval('index_mover.job_seq', 200400, false);
SELECT count(*) FROM move_indexes('c', 'regress_slow', method => 'rebuild', wait => false, settings => '{"max_rate": "7MB"}');
CALL wait_for_move();
\echo :SQLSTATE
CALL wait_for_move(raise => false);
\echo :SQLSTATE
SELECT name, status, sqlstate, message FROM index_mover_history WHERE job = 200400 ORDER BY name;
SELECT status, moved, total FROM index_mover_jobs WHERE job = 200400;
-- its rest
SELECT resume_move(200400);
CALL wait_for_move(200401);
\echo :SQLSTATE
SELECT status, moved, total, settings->>'max_rate' AS max_rate FROM index_mover_jobs WHERE job = 200401;
-- on_failure = error, waiting and not
SELECT count(*) FROM move_indexes('c', 'regress_fast', method => 'rebuild', settings => '{"on_failure": "error"}');
\echo :SQLSTATE
SELECT count(*) FROM move_indexes('c', 'regress_slow', method => 'rebuild', wait => false, settings => '{"on_failure": "error"}');
CALL wait_for_move();
\echo :SQLSTATE
DELETE FROM bad_numbers;
SELECT resume_move(200403);
CALL wait_for_move();
SELECT status, moved, total, settings->>'on_failure' AS on_failure FROM index_mover_jobs WHERE job = 200404;

-- the free space that is reserved: a share, a size, or the smaller of both
SHOW index_mover.min_free_space;
SET index_mover.min_free_space = '5%';
SET index_mover.min_free_space = '0.5 %';
SET index_mover.min_free_space = '10GB';
SET index_mover.min_free_space = '100 MB';
SET index_mover.min_free_space = '10GB, 5%';
SET index_mover.min_free_space = '5%,10GB';
SHOW index_mover.min_free_space;
SET index_mover.min_free_space = 0.05;
\echo :SQLSTATE
\set VERBOSITY sqlstate
SET index_mover.min_free_space = '5';
SET index_mover.min_free_space = '101%';
SET index_mover.min_free_space = '-1%';
SET index_mover.min_free_space = '-1GB';
SET index_mover.min_free_space = '5%, 6%';
SET index_mover.min_free_space = '1GB, 2GB';
SET index_mover.min_free_space = '5%, 1GB, 1GB';
SET index_mover.min_free_space = '5%,';
SET index_mover.min_free_space = '5 percent';
SET index_mover.min_free_space = '';
SET index_mover.min_free_space = 'NaN%';
SELECT * FROM move_indexes('c', 'pg_default', settings => '{"min_free_space": 0.05}');
\set VERBOSITY default
SET index_mover.min_free_space = '100%';
\set VERBOSITY terse
SELECT name, status, regexp_replace(detail, '\d+ (bytes|[kMGTP]B)', 'N', 'g') AS detail
  FROM move_indexes('c_good', 'pg_default', method => 'copy', dry_run => true);
\set VERBOSITY default
SET client_min_messages = error;
SELECT name, status, sqlstate FROM move_indexes('c_good', 'pg_default', method => 'copy');
RESET client_min_messages;
SELECT name, status, sqlstate FROM move_indexes('c_good', 'pg_default', method => 'copy', settings => '{"min_free_space": "100%, 1kB"}');
SET index_mover.min_free_space = 0;
SELECT name, status, sqlstate FROM move_indexes('c_good', 'regress_fast', method => 'copy');

-- the history ends at history_retention
SHOW index_mover.history_retention;
SELECT max(job) AS newest, count(*) FILTER (WHERE job <= 200403) AS old FROM index_mover_jobs \gset
SELECT count(*) FROM index_mover_cleanup();
UPDATE index_mover.job_log SET submitted_at = submitted_at - interval '400 days' WHERE job <= 200403;
UPDATE index_mover.move_log SET started_at = started_at - interval '400 days', finished_at = finished_at - interval '400 days' WHERE job <= 200403;
SET index_mover.history_retention = 0;
SELECT count(*) FROM index_mover_cleanup(dry_run => true);
RESET index_mover.history_retention;
SELECT kind, object = :old || ' jobs' AS jobs, tablespace, size, action FROM index_mover_cleanup(dry_run => true);
SELECT count(*) = :old AS still_there FROM index_mover_jobs WHERE job <= 200403;
SELECT kind, object = :old || ' jobs' AS jobs, tablespace, size, action FROM index_mover_cleanup();
SELECT min(job) > 200403 AS deleted, max(job) = :newest AS kept FROM index_mover_jobs;
SELECT min(job) > 200403 AS deleted FROM index_mover_history;
SELECT count(*) FROM index_mover_cleanup();
SELECT undo_move(200400);
\echo :SQLSTATE

SELECT oracle.verdict('t');
SELECT oracle.verdict('c');
SELECT * FROM oracle.leftovers();
SELECT * FROM oracle.files();
SET client_min_messages = warning;
DROP SCHEMA surface CASCADE;
