-- The method copy: what it moves, what it leaves as it was, what it costs.
\getenv abs_srcdir PG_ABS_SRCDIR
\set setup :abs_srcdir '/sql/include/setup.sql'
\set ECHO none
\i :setup
\set ECHO all
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS btree_gist;
CREATE EXTENSION IF NOT EXISTS bloom;
RESET client_min_messages;
CREATE SCHEMA copy;
SET search_path = copy, public;
CREATE TABLE c (
	id int CONSTRAINT c_pk PRIMARY KEY USING INDEX TABLESPACE regress_slow,
	grp int, txt text, pt point, rng int4range, arr int[], maybe int)
	WITH (autovacuum_enabled = false);
SET default_tablespace = regress_slow;
ALTER TABLE c ADD CONSTRAINT c_excl EXCLUDE USING gist (grp WITH =, rng WITH &&);
ALTER TABLE c ADD CONSTRAINT c_defer UNIQUE (txt) DEFERRABLE;
CREATE INDEX c_hash ON c USING hash (txt);
CREATE INDEX c_gin ON c USING gin (arr);
CREATE INDEX c_gist ON c USING gist (pt);
CREATE INDEX c_spgist ON c USING spgist (txt);
CREATE INDEX c_brin ON c USING brin (id) WITH (pages_per_range = 1);
CREATE INDEX c_partial ON c (grp) WHERE maybe IS NULL;
CREATE INDEX c_expr ON c (upper(txt), (id % 10));
RESET default_tablespace;
COMMENT ON INDEX c_hash IS 'a comment';
ALTER INDEX c_expr ALTER COLUMN 2 SET STATISTICS 77;
INSERT INTO c SELECT g, g % 13, 'text ' || g, point(g % 71, g % 53), int4range(g, g + 1), ARRAY[g % 31, g % 7], NULLIF(g % 3, 0)
  FROM generate_series(1, 4000) g;
VACUUM ANALYZE c;
-- the GIN index has a pending list
INSERT INTO c SELECT g, g % 13, 'text ' || g, point(g % 71, g % 53), int4range(g, g + 1), ARRAY[g % 31, g % 7], NULLIF(g % 3, 0)
  FROM generate_series(4001, 4200) g;
SELECT pending_tuples > 0 AS pending FROM gin_pending_list('c_gin');
SELECT count(*) AS expressions_with_statistics FROM pg_statistic WHERE starelid = 'c_expr'::regclass;
SELECT oracle.remember_keys('c');
SELECT oracle.remember_metadata('c');
CREATE TEMP TABLE before AS
	SELECT x.oid, relname, relfilenode, relpages, reltuples FROM pg_index JOIN pg_class x ON x.oid = indexrelid WHERE indrelid = 'c'::regclass;

-- every access method and kind of constraint
SELECT r.* FROM move_indexes('c', 'regress_fast', method => 'copy', settings => '{"verify": true}') m,
	oracle.rows(m) r ORDER BY r.name COLLATE "C";
SELECT pending_tuples > 0 AS pending FROM gin_pending_list('c_gin');
-- the same OID, pages and tuples; another file
SELECT relname, x.relname IS NOT NULL AS same_oid, x.relfilenode <> b.relfilenode AS other_file,
       x.relpages = b.relpages AND x.reltuples = b.reltuples AS same_numbers
  FROM before b LEFT JOIN pg_class x USING (oid, relname) ORDER BY relname COLLATE "C";
SELECT * FROM oracle.metadata_changes('c');
SELECT oracle.verdict('c', 200);
-- what the history says of it; there are no writers, so only block 0 is copied again, once for each try
SELECT name, method, status, size_before = size_after AS same_size, blocks_copied * current_setting('block_size')::int <= size_before AS copied,
       blocks_recopied BETWEEN 1 AND lock_attempts AS recopied, lock_time IS NOT NULL AND lock_time < interval '30 s' AS lock_time, lock_attempts > 0 AS attempts,
       wal_bytes > 0 AS wal
  FROM index_mover_history WHERE job = (SELECT max(job) FROM index_mover_history) ORDER BY name COLLATE "C";
-- constraints still hold
\set VERBOSITY sqlstate
INSERT INTO c VALUES (1);
INSERT INTO c VALUES (-1, 1, 'x', NULL, '[1,2)');
INSERT INTO c VALUES (-1, -1, 'text 1');
\set VERBOSITY default
-- it can be written to, and goes back
DELETE FROM c WHERE id % 5 = 0;
VACUUM c;
INSERT INTO c SELECT g, g % 13, 'text ' || g, point(g % 71, g % 53), int4range(g, g + 1), ARRAY[g % 31, g % 7], NULLIF(g % 3, 0)
  FROM generate_series(5001, 7000) g;
SELECT status, count(*) FROM move_indexes('c', 'regress_slow', method => 'copy') GROUP BY status;
SELECT oracle.verdict('c', 200);
-- already there
SELECT r.* FROM move_indexes('c_hash', 'regress_slow', method => 'copy') m, oracle.rows(m) r;
-- to the database's own tablespace and back
SELECT r.* FROM move_indexes('c_hash', 'pg_default', method => 'copy') m, oracle.rows(m) r;
SELECT reltablespace FROM pg_class WHERE oid = 'c_hash'::regclass;
SELECT r.* FROM undo_move((SELECT max(job) FROM index_mover_history)) m, oracle.rows(m) r;

-- small ones: the metapage only; TOAST; a materialized view
CREATE TABLE empty (i int, j int[], long text);
CREATE INDEX empty_btree ON empty (i) TABLESPACE regress_slow;
CREATE INDEX empty_hash ON empty USING hash (i) TABLESPACE regress_slow;
CREATE INDEX empty_gin ON empty USING gin (j) TABLESPACE regress_slow;
CREATE INDEX empty_brin ON empty USING brin (i) TABLESPACE regress_slow;
SELECT r.* FROM move_indexes('empty', 'regress_fast', method => 'copy') m, oracle.rows(m) r ORDER BY r.name COLLATE "C";
INSERT INTO empty SELECT g, ARRAY[g], repeat('x', g) FROM generate_series(1, 500) g;
SELECT oracle.verdict('empty');
SELECT kind, status FROM move_table('empty', 'regress_fast') ORDER BY kind;
-- the index of a TOAST table, with its table
CREATE TABLE toasted (i int, long text) WITH (autovacuum_enabled = false, toast.autovacuum_enabled = false);
ALTER TABLE toasted ALTER long SET STORAGE EXTERNAL;
INSERT INTO toasted SELECT g, repeat(md5(g::text), 320) FROM generate_series(1, 600) g;
SELECT t.reltoastrelid::regclass AS toast, x.indexrelid::regclass AS toast_index
  FROM pg_class t JOIN pg_index x ON x.indrelid = t.reltoastrelid WHERE t.oid = 'toasted'::regclass \gset
SELECT pg_relation_size(:'toast_index') > current_setting('block_size')::int AS some_blocks;
SELECT kind, status, sqlstate FROM move_table('toasted', 'regress_fast', settings => '{"verify": true}') ORDER BY kind;
DELETE FROM toasted WHERE i % 3 = 0;
VACUUM toasted;
INSERT INTO toasted SELECT g, repeat(md5(g::text), 320) FROM generate_series(601, 900) g;
SELECT count(*), bool_and(long = repeat(md5(i::text), 320)) AS the_same FROM toasted;
SELECT oracle.verdict(:'toast', 200);
CREATE MATERIALIZED VIEW seen AS SELECT i FROM empty;
CREATE UNIQUE INDEX seen_i ON seen (i);
SELECT r.* FROM move_indexes('seen', 'regress_fast', method => 'copy') m, oracle.rows(m) r;
REFRESH MATERIALIZED VIEW CONCURRENTLY seen;
SELECT oracle.verdict('seen');

-- what it cannot move, and what can
CREATE UNLOGGED TABLE unlogged (i int PRIMARY KEY);
SELECT status, sqlstate, detail FROM move_indexes('unlogged', 'regress_fast', method => 'copy');
SELECT method, status FROM move_indexes('unlogged', 'regress_fast');

-- other access methods: by rebuild only
CREATE FUNCTION other_handler(internal) RETURNS index_am_handler LANGUAGE C AS 'bloom', 'blhandler';
CREATE ACCESS METHOD regress_other TYPE INDEX HANDLER other_handler;
CREATE OPERATOR CLASS other_int_ops DEFAULT FOR TYPE int USING regress_other AS
	OPERATOR 1 =, FUNCTION 1 hashint4(int);
CREATE TABLE other (i int, v int);
CREATE INDEX other_i ON other USING regress_other (i) TABLESPACE regress_slow;
INSERT INTO other SELECT g, g FROM generate_series(1, 3000) g;
SELECT oracle.remember_keys('other');
SELECT status, sqlstate, detail FROM move_indexes('other_i', 'regress_fast', method => 'copy');
SELECT method, status FROM move_indexes('other_i', 'regress_fast', dry_run => true);
SELECT method, status, sqlstate FROM move_indexes('other_i', 'regress_fast');
DELETE FROM other WHERE i % 3 = 0;
VACUUM other;
INSERT INTO other SELECT g, g FROM generate_series(3001, 4000) g;
SELECT oracle.verdict('other', 200);

-- WAL: the blocks that are copied, nine tenths full, and no more than 3 % beside them
CREATE TABLE big (i int) WITH (autovacuum_enabled = false);
INSERT INTO big SELECT generate_series(1, 200000);
CREATE INDEX big_i ON big (i);
SELECT status FROM move_indexes('big_i', 'regress_fast', method => 'copy');
SELECT size_before > 4000000 AS big, wal_bytes >= 0.88 * size_before OR current_setting('wal_level') = 'minimal' AS at_least, wal_bytes <= 0.94 * size_before AS at_most,
       blocks_copied * current_setting('block_size')::int = size_before AS each_block_once, blocks_recopied
  FROM index_mover_history ORDER BY job DESC LIMIT 1;
SELECT status FROM move_indexes('big_i', 'pg_default', method => 'copy',
	settings => '{"pacing": false, "prewarm": false, "max_rate": "200MB"}');
SELECT oracle.verdict('big', 50);

SELECT * FROM oracle.leftovers();
SELECT * FROM oracle.files();
SET client_min_messages = warning;
DROP ACCESS METHOD regress_other CASCADE;
DROP SCHEMA copy CASCADE;
