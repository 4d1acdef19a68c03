-- Partitioned tables: all leaves, and the default for new partitions.
\getenv abs_srcdir PG_ABS_SRCDIR
\set setup :abs_srcdir '/sql/include/setup.sql'
\set ECHO none
\i :setup
\set ECHO all
CREATE SCHEMA partitioned;
SET search_path = partitioned, public;
CREATE TABLE p (id int, grp int, txt text, PRIMARY KEY (id, grp)) PARTITION BY RANGE (id);
CREATE INDEX p_txt ON p (txt);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (1000) WITH (autovacuum_enabled = false);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (1000) TO (2000) PARTITION BY LIST (grp);
CREATE TABLE p2a PARTITION OF p2 FOR VALUES IN (0, 1) WITH (autovacuum_enabled = false);
CREATE TABLE p2b PARTITION OF p2 DEFAULT WITH (autovacuum_enabled = false);
CREATE INDEX p2b_own ON p2b (grp);
CREATE INDEX p_only ON ONLY p (grp);
INSERT INTO p SELECT g, g % 5, 't' || g FROM generate_series(0, 1999) g;
VACUUM ANALYZE p1, p2a, p2b;
CREATE VIEW spaces AS
	SELECT c.relname, c.relkind, coalesce(t.spcname, '') AS tablespace
	  FROM (SELECT relid FROM pg_partition_tree('p')) r
	  JOIN pg_index i ON i.indrelid = r.relid
	  JOIN pg_class c ON c.oid = i.indexrelid
	  LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace;
SELECT oracle.remember_metadata('p');

-- the whole tree
SELECT r.* FROM move_indexes('p', 'regress_fast', method => 'rebuild') m, oracle.rows(m) r ORDER BY 1;
SELECT * FROM spaces ORDER BY 1;
SELECT * FROM oracle.metadata_changes('p');
SELECT oracle.verdict('p');
-- new partitions get the new default
CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (2000) TO (3000);
SELECT * FROM spaces WHERE relname LIKE 'p3%' ORDER BY 1;

-- a subtree, a leaf, a partitioned index, a leaf's index
SELECT r.* FROM move_indexes('p2', 'regress_slow', method => 'rebuild') m, oracle.rows(m) r ORDER BY 1;
SELECT r.* FROM move_indexes('p1', 'regress_slow', method => 'rebuild') m, oracle.rows(m) r ORDER BY 1;
SELECT r.* FROM move_indexes('p_txt', 'regress_slow', method => 'rebuild') m, oracle.rows(m) r ORDER BY 1;
SELECT r.* FROM move_indexes('p2a_txt_idx', 'regress_fast', method => 'rebuild') m, oracle.rows(m) r ORDER BY 1;
SELECT * FROM spaces ORDER BY 1;
SELECT * FROM oracle.metadata_changes('p') WHERE index_name NOT LIKE 'p3%' AND attribute <> 'children';
SELECT oracle.verdict('p');
-- no partitions at all
CREATE TABLE q (id int PRIMARY KEY) PARTITION BY HASH (id);
SELECT r.* FROM move_indexes('q', 'regress_fast', method => 'rebuild') m, oracle.rows(m) r ORDER BY 1;
-- the default can be told apart from an index by its row
SELECT kind, method IS NULL AS no_method, size FROM move_indexes('q', 'regress_slow');
SELECT * FROM oracle.leftovers();
SELECT * FROM oracle.files();
SET client_min_messages = warning;
DROP SCHEMA partitioned CASCADE;
