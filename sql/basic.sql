-- The main job: every kind of index of a table goes to another tablespace.
\getenv abs_srcdir PG_ABS_SRCDIR
\set setup :abs_srcdir '/sql/include/setup.sql'
\set ECHO none
\i :setup
\set ECHO all
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS btree_gist;
CREATE EXTENSION IF NOT EXISTS pg_trgm;
CREATE EXTENSION IF NOT EXISTS bloom;
RESET client_min_messages;
CREATE SCHEMA basic;
SET search_path = basic, public;
CREATE TABLE t (
	id int CONSTRAINT t_pk PRIMARY KEY USING INDEX TABLESPACE regress_slow,
	grp int NOT NULL, txt text, num numeric, pt point, rng int4range, arr int[], doc tsvector, js jsonb, maybe int)
	WITH (fillfactor = 70, autovacuum_enabled = false);
SET default_tablespace = regress_slow;
-- access methods
CREATE INDEX t_btree ON t (num);
CREATE INDEX t_hash ON t USING hash (txt);
CREATE INDEX t_gist ON t USING gist (pt);
CREATE INDEX t_spgist ON t USING spgist (txt);
CREATE INDEX t_gin ON t USING gin (arr);
CREATE INDEX t_gin_js ON t USING gin (js jsonb_path_ops) WITH (fastupdate = off);
CREATE INDEX t_gin_doc ON t USING gin (doc);
CREATE INDEX t_brin ON t USING brin (id) WITH (pages_per_range = 4, autosummarize = on);
CREATE INDEX t_bloom ON t USING bloom (id, grp) WITH (length = 96, col1 = 3);
-- kinds of btree
CREATE UNIQUE INDEX t_unique ON t (id, grp);
ALTER TABLE t ADD CONSTRAINT t_constraint UNIQUE (id, num) INCLUDE (grp);
CREATE UNIQUE INDEX t_nnd ON t (id, maybe) NULLS NOT DISTINCT;
CREATE UNIQUE INDEX t_include ON t (id) INCLUDE (grp, txt) WITH (fillfactor = 80, deduplicate_items = off);
CREATE INDEX t_partial ON t (grp) WHERE maybe IS NULL;
CREATE INDEX t_expr ON t (upper(txt), (num * 2));
CREATE INDEX t_desc ON t (txt COLLATE "C" DESC NULLS LAST, grp ASC NULLS FIRST);
CREATE INDEX t_opclass ON t (txt text_pattern_ops);
CREATE INDEX t_opcparam ON t USING gist (txt gist_trgm_ops (siglen = 32));
CREATE UNIQUE INDEX t_identity ON t (id) WHERE id > 0;
CREATE UNIQUE INDEX t_replica ON t (grp, id);
RESET default_tablespace;
ALTER TABLE t REPLICA IDENTITY USING INDEX t_replica;
ALTER TABLE t CLUSTER ON t_btree;
COMMENT ON INDEX t_btree IS 'ordered by number';
COMMENT ON CONSTRAINT t_constraint ON t IS 'of the constraint';
ALTER INDEX t_expr ALTER COLUMN 2 SET STATISTICS 77;
CREATE TABLE referencing (id int REFERENCES t, num numeric);
CREATE VIEW grouped AS SELECT id, txt, count(*) OVER () FROM t GROUP BY id;
INSERT INTO t
SELECT g, g % 97, 'text ' || g % 109, g, point(g % 71, g % 53), int4range(g, g + 10), ARRAY[g % 31, g % 7],
       to_tsvector('simple', 'w' || g % 211 || ' x' || g % 11), jsonb_build_object('k', g % 101),
       CASE WHEN g % 3 = 0 THEN g % 50 END
  FROM generate_series(1, 2000) g;
INSERT INTO referencing SELECT g, g FROM generate_series(1, 100) g;
VACUUM ANALYZE t;
SELECT oracle.remember_keys('t');
SELECT oracle.remember_metadata('t');
CREATE TEMP TABLE before AS SELECT indexrelid AS oid, pg_relation_filepath(indexrelid) AS path FROM pg_index WHERE indrelid = 't'::regclass;

-- all of them
SELECT r.* FROM move_indexes('t', 'regress_fast', method => 'rebuild') m, oracle.rows(m) r ORDER BY 1;
SELECT oracle.verdict('t');
SELECT * FROM oracle.metadata_changes('t');
SELECT * FROM oracle.leftovers();
SELECT * FROM oracle.files();
-- none is the old file
SELECT count(*) FROM pg_index i JOIN before b ON pg_relation_filepath(i.indexrelid) = b.path WHERE indrelid = 't'::regclass;
-- a second call finds nothing to do
SELECT DISTINCT r.method, r.status, r.sqlstate, m.job IS NOT NULL AS job, m.detail
  FROM move_indexes('t', 'regress_fast', method => 'rebuild') m, oracle.rows(m) r;

-- they still do what they are for
INSERT INTO t (id, grp, num) VALUES (1, 1, -1);
DELETE FROM t WHERE id = 5;
INSERT INTO t (id, grp, num) VALUES (-2, 1, -2) ON CONFLICT (id) DO NOTHING;
DELETE FROM t WHERE id < 0;

-- one index, and back
SELECT r.* FROM move_indexes('t_hash', 'regress_slow', method => 'rebuild') m, oracle.rows(m) r;
-- the row, and what the history has of it
SELECT job IS NOT NULL AS job, name, kind, status, method, size > 0 AS size, elapsed > '0' AS elapsed, lock_time, sqlstate, detail
  FROM move_indexes('t_btree', 'regress_slow', method => 'rebuild');
SELECT name, kind, table_name, from_tablespace, to_tablespace, method, status, size_before > 0 AS size_before, size_after > 0 AS size_after,
       elapsed > '0' AS elapsed, lock_time, sqlstate
  FROM index_mover_history ORDER BY job DESC LIMIT 1;
-- the name is that of the final index
SELECT name::regclass::oid AS oid FROM move_indexes('t_btree', 'regress_fast', method => 'rebuild') \gset
SELECT :oid = 't_btree'::regclass AS final_oid;
SELECT r.* FROM move_indexes('t_btree', 'regress_slow', method => 'rebuild') m, oracle.rows(m) r;
-- the database's default tablespace is not recorded in pg_class
SELECT r.* FROM move_indexes('t_btree', 'pg_default', method => 'rebuild') m, oracle.rows(m) r;
SELECT reltablespace FROM pg_class WHERE oid = 't_btree'::regclass;
SELECT r.* FROM move_indexes('t_btree', 'pg_default', method => 'rebuild') m, oracle.rows(m) r;
SELECT * FROM oracle.metadata_changes('t');
SELECT oracle.verdict('t');

-- LIMIT does not stop the move
SELECT count(*) FROM (SELECT FROM move_indexes('t', 'regress_slow', method => 'rebuild') LIMIT 1) m;
SELECT t.spcname, count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
  LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace
 WHERE i.indrelid = 't'::regclass GROUP BY 1;

-- empty table, no index at all, unlogged table
CREATE TABLE empty (id int PRIMARY KEY, t text);
CREATE INDEX empty_gin ON empty USING gin (to_tsvector('simple', t));
CREATE INDEX empty_brin ON empty USING brin (id);
SELECT r.* FROM move_indexes('empty', 'regress_fast', method => 'rebuild') m, oracle.rows(m) r ORDER BY 1;
INSERT INTO empty SELECT g, 't' || g FROM generate_series(1, 100) g;
SELECT oracle.verdict('empty');
CREATE TABLE bare (id int);
SELECT r.* FROM move_indexes('bare', 'regress_fast') m, oracle.rows(m) r;
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY, t text);
CREATE INDEX unlogged_hash ON unlogged USING hash (t);
INSERT INTO unlogged SELECT g, 't' || g FROM generate_series(1, 100) g;
SELECT r.* FROM move_indexes('unlogged', 'regress_fast') m, oracle.rows(m) r ORDER BY 1;
SELECT oracle.verdict('unlogged');
SELECT * FROM oracle.leftovers();
SELECT * FROM oracle.files();

SET client_min_messages = warning;
DROP SCHEMA basic CASCADE;
