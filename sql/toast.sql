-- What core keeps together: a table, its TOAST table and the index of that are one move,
-- and alike in everything that is told of it.  What an earlier version has left in
-- different tablespaces is brought together by the next move.
-- Fault (tables): a table apart from its TOAST table, as an earlier version left it, in each
--   way: mended by each call, by `resume_move()` and `undo_move()`
\getenv abs_srcdir PG_ABS_SRCDIR
\set setup :abs_srcdir '/sql/include/setup.sql'
\set ECHO none
\i :setup
\set ECHO all
SET client_min_messages = warning;
CREATE SCHEMA together;
SET search_path = together, public;
-- "slow fast fast": where the three are; and who puts them there, with all rows
CREATE FUNCTION places(rel regclass) RETURNS text LANGUAGE sql STABLE AS $$
	SELECT string_agg(coalesce(replace(s.spcname, 'regress_', ''), 'default'), ' ' ORDER BY p.n)
	  FROM pg_class c JOIN pg_index i ON i.indrelid = c.reltoastrelid
	 CROSS JOIN LATERAL (VALUES (1, c.oid), (2, c.reltoastrelid), (3, i.indexrelid)) p(n, oid)
	  JOIN pg_class r ON r.oid = p.oid LEFT JOIN pg_tablespace s ON s.oid = r.reltablespace
	 WHERE c.oid = rel
$$;
CREATE PROCEDURE mix(rel regclass, places text) LANGUAGE plpgsql AS $$
BEGIN
	CALL oracle.mix(rel, VARIADIC regexp_split_to_array(replace(replace(places, 'slow', 'regress_slow'), 'fast', 'regress_fast'), ' ')::name[]);
	EXECUTE format('INSERT INTO %s TABLE kept', rel);
END
$$;
-- the rows of a job that moves them, as a whole; the rows of the history, each
CREATE FUNCTION told(kind text[], status text[], sqlstate text[]) RETURNS text LANGUAGE sql AS $$
	SELECT array_to_string($1, ',') || ': ' || array_to_string(ARRAY(SELECT DISTINCT unnest($2)), ',') || coalesce(' ' || array_to_string(ARRAY(SELECT DISTINCT unnest($3)), ','), '')
$$;
CREATE VIEW unlike AS
	SELECT p.job, p.relation_name, p.status, t.status AS of_table
	  FROM index_mover.move_log p
	 CROSS JOIN LATERAL (SELECT * FROM index_mover.move_log t WHERE t.job = p.job AND t.item < p.item AND t.kind NOT LIKE 'toast%'
						  ORDER BY t.item DESC LIMIT 1) t
	 WHERE p.kind LIKE 'toast%'
	   AND ROW(p.status, p.sqlstate, p.started_at, p.finished_at, p.lock_time, p.lock_attempts, p.to_tablespace_oid)
		   IS DISTINCT FROM ROW(t.status, t.sqlstate, t.started_at, t.finished_at, t.lock_time, t.lock_attempts, t.to_tablespace_oid);
CREATE TABLE t (id int PRIMARY KEY, big text) WITH (autovacuum_enabled = false, toast.autovacuum_enabled = false) TABLESPACE regress_slow;
ALTER TABLE t ALTER big SET STORAGE external;
INSERT INTO t SELECT g, repeat(md5(g::text), 100) FROM generate_series(1, 200) g;
CREATE TABLE kept (LIKE t INCLUDING STORAGE);
INSERT INTO kept TABLE t;
CREATE VIEW whole AS
	SELECT places('t'), count(*) AS rows, count(*) FILTER (WHERE t.big = kept.big) AS right,
		   (SELECT pg_relation_size(reltoastrelid) > 0 FROM pg_class WHERE oid = 't'::regclass) AS toast,
		   (SELECT count(*) FROM oracle.verify_heapam('t', check_toast => true)) AS damages, (SELECT count(*) FROM oracle.files()) AS files
	  FROM kept FULL JOIN t USING (id);
SELECT * FROM whole;

-- nothing moves a part of it alone
SELECT reltoastrelid::regclass AS toast, (SELECT indexrelid::regclass FROM pg_index WHERE indrelid = reltoastrelid) AS toast_index
  FROM pg_class WHERE oid = 't'::regclass \gset
\set VERBOSITY sqlstate
SELECT move_indexes(:'toast', 'regress_fast');
SELECT move_indexes(:'toast_index', 'regress_fast', 'copy');
SELECT move_indexes(:'toast_index', 'regress_fast', 'rebuild', dry_run => true);
SELECT move_table(:'toast', 'regress_fast');
SELECT move_table(:'toast', 'regress_fast', rehearse => true);
SELECT move_table(:'toast_index', 'regress_fast');
SELECT move_schema_tables('pg_toast', 'regress_fast');
SELECT move_schema_indexes('pg_toast', 'regress_fast');
\set VERBOSITY default
SELECT kind, status FROM move_indexes('t', 'regress_fast');
SELECT kind FROM move_tablespace_indexes('regress_slow', 'regress_fast', dry_run => true) WHERE name ~ 'toast';
SELECT kind FROM evacuate_tablespace('regress_slow', 'regress_fast', dry_run => true) WHERE name ~ 'toast' AND kind NOT LIKE 'toast%';
SELECT * FROM whole;

-- each mixture, and a move to the one, to the other, or to a third tablespace
\t on
\a
SELECT format('CALL mix(%L, %L)', 't', m), format('SELECT told(array_agg(kind ORDER BY kind), array_agg(status), array_agg(sqlstate)) FROM move_table(%L, %L)', 't', target),
	   'SELECT * FROM whole'
  FROM unnest(ARRAY['regress_slow', 'regress_fast', 'pg_default']) target
 CROSS JOIN LATERAL (VALUES ('slow slow fast'), ('slow fast slow'), ('slow fast fast'), ('fast slow slow'), ('fast slow fast'), ('fast fast slow')) m(m)
 ORDER BY target, m
\gexec
\t off
\a
SELECT * FROM unlike;

-- a plan writes and needs space for what is not in place alone
CALL mix('t', 'fast slow slow');
SELECT kind, status, size > 0 AS has_size, detail ~ 'Writes 0 bytes of WAL' AND (size = 0 OR current_setting('wal_level') <> 'minimal') AS writes_nothing FROM move_table('t', 'regress_fast', dry_run => true) ORDER BY kind;
SELECT kind, status, size > 0 AS has_size FROM move_table('t', 'regress_fast') ORDER BY kind;
SELECT kind, blocks_copied > 0 AS copied, wal_bytes > 0 AS wal, from_tablespace, to_tablespace
  FROM index_mover_history WHERE job = (SELECT max(job) FROM index_mover_jobs) ORDER BY kind;
-- a rehearsal mends nothing
CALL mix('t', 'fast slow fast');
SELECT kind, status FROM move_table('t', 'regress_fast', rehearse => true) ORDER BY kind;
SELECT places('t');
-- nor does what is refused
SET client_min_messages = error;
SELECT kind, status, sqlstate FROM move_table('t', 'regress_fast', settings => '{"min_free_space": "99%"}') ORDER BY kind;
SELECT places('t');
-- there is nothing to do
CALL mix('t', 'fast fast fast');
SELECT kind, status, detail FROM move_table('t', 'regress_fast') ORDER BY kind;

-- by the schema, and by what is named no further
CALL mix('t', 'slow fast slow');
SELECT told(array_agg(kind ORDER BY kind), array_agg(status), array_agg(sqlstate)) FROM move_schema_tables('together', 'regress_fast', name_like => 't');
SELECT * FROM whole;
-- where the table is
CALL mix('t', 'slow fast fast');
SELECT told(array_agg(kind ORDER BY kind), array_agg(status), array_agg(sqlstate)) FROM evacuate_tablespace('regress_slow', 'regress_fast') WHERE kind ~ 'table|toast';
SELECT * FROM whole;
-- a partition is no exception
CREATE TABLE p (id int, big text) PARTITION BY RANGE (id);
CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (1000) TABLESPACE regress_slow;
INSERT INTO p SELECT * FROM t;
CALL mix('p_1', 'slow fast slow');
SELECT kind, status FROM move_table('p', 'regress_slow') ORDER BY kind;
SELECT places('p_1');
SELECT * FROM unlike;

-- an older job, whose history has parts by themselves
CALL mix('t', 'slow slow slow');
SELECT max(job) AS job FROM move_table('t', 'regress_fast') \gset
-- the job moved the TOAST table alone: as a whole they go back, and again
DELETE FROM index_mover.move_log WHERE job = :job AND kind <> 'toast';
CALL mix('t', 'slow fast slow');
SELECT told(array_agg(kind ORDER BY kind), array_agg(status), array_agg(sqlstate)) FROM undo_move(:job, dry_run => true);
SELECT told(array_agg(kind ORDER BY kind), array_agg(status), array_agg(sqlstate)) FROM undo_move(:job);
SELECT * FROM whole;
-- it failed to move it, or was killed: the whole goes there
UPDATE index_mover.move_log SET status = 'failed' WHERE job = :job;
SELECT resume_move(:job) > :job AS resumed;
SELECT max(job) AS rest FROM index_mover_jobs \gset
CALL wait_for_move(:rest);
SELECT * FROM whole;
-- a job that moved the table, and failed to move the rest
CALL mix('t', 'slow slow slow');
SELECT max(job) AS job FROM move_table('t', 'regress_fast') \gset
UPDATE index_mover.move_log SET status = 'failed' WHERE job = :job AND kind <> 'table';
CALL mix('t', 'fast slow slow');
SELECT resume_move(:job) > :job AS resumed;
SELECT max(job) AS rest FROM index_mover_jobs \gset
CALL wait_for_move(:rest);
SELECT * FROM whole;
-- one that moved them from two tablespaces: back to where the table was
CALL mix('t', 'slow slow slow');
SELECT max(job) AS job FROM move_table('t', 'regress_fast') \gset
UPDATE index_mover.move_log SET from_tablespace_oid = (SELECT oid FROM pg_tablespace WHERE spcname = 'pg_default') WHERE job = :job AND kind <> 'table';
UPDATE index_mover.move_log SET item = -item WHERE job = :job;
SELECT told(array_agg(kind ORDER BY kind), array_agg(status), array_agg(sqlstate)) FROM undo_move(:job);
SELECT * FROM whole;

-- a job that is canceled leaves all where they were, and says so of each
SELECT max(job) AS job FROM move_table('t', 'regress_fast', wait => false, settings => '{"max_rate": "16kB"}') \gset
SELECT count(*) FROM cancel_move(:job);
CALL wait_for_move(:job, raise => false);
SELECT kind, status, sqlstate FROM index_mover_history WHERE job = :job ORDER BY kind;
SELECT * FROM whole;
DROP SCHEMA together CASCADE;
SELECT * FROM oracle.leftovers();
