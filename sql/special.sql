-- Relations and indexes that a rebuild treats specially, or not at all.
-- Fault (indexes): materialized view, extension's, inheritance child, foreign partition (also
--   sql/plan)
\getenv abs_srcdir PG_ABS_SRCDIR
\set setup :abs_srcdir '/sql/include/setup.sql'
\set ECHO none
\i :setup
\set ECHO all
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS btree_gist;
RESET client_min_messages;
CREATE SCHEMA special;
SET search_path = special, public;

-- exclusion constraints cannot be rebuilt concurrently
CREATE TABLE excl (id int PRIMARY KEY, during int4range, EXCLUDE USING gist (id WITH =, during WITH &&))
	WITH (autovacuum_enabled = false);
INSERT INTO excl SELECT g, int4range(g, g + 5) FROM generate_series(1, 200) g;
SELECT r.* FROM move_indexes('excl', 'regress_fast', method => 'rebuild') m, oracle.rows(m) r ORDER BY 1;
SELECT detail LIKE '%exclusion constraint%' AND detail LIKE '%copy%' AS detail
  FROM move_indexes('excl_id_during_excl', 'regress_fast', method => 'rebuild');

-- TOAST is where its table is: refused by itself
CREATE TABLE toasted (id int PRIMARY KEY, t text) WITH (autovacuum_enabled = false);
INSERT INTO toasted SELECT g, string_agg(md5(g::text || h), '') FROM generate_series(1, 20) g, generate_series(1, 100) h GROUP BY g;
SELECT reltoastrelid::regclass AS toast,
       (SELECT indexrelid::regclass FROM pg_index WHERE indrelid = reltoastrelid) AS toast_index
  FROM pg_class WHERE oid = 'toasted'::regclass \gset
\set VERBOSITY sqlstate
SELECT move_indexes(:'toast', 'regress_fast', method => 'rebuild');
SELECT move_indexes(:'toast_index', 'regress_fast', method => 'copy');
SELECT move_table(:'toast', 'regress_fast');
\set VERBOSITY default
-- the table's own indexes do not include it
SELECT r.* FROM move_indexes('toasted', 'regress_fast', method => 'rebuild') m, oracle.rows(m) r;

-- materialized views
CREATE MATERIALIZED VIEW mv AS SELECT g AS id, g % 10 AS grp FROM generate_series(1, 500) g;
CREATE UNIQUE INDEX mv_id ON mv (id);
CREATE INDEX mv_grp ON mv (grp);
SELECT oracle.remember_metadata('mv');
SELECT r.* FROM move_indexes('mv', 'regress_fast', method => 'rebuild') m, oracle.rows(m) r ORDER BY 1;
REFRESH MATERIALIZED VIEW CONCURRENTLY mv;
SELECT oracle.verdict('mv');
SELECT * FROM oracle.metadata_changes('mv');

-- inheritance: the named table only
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
SELECT r.* FROM move_indexes('parent', 'regress_fast', method => 'rebuild') m, oracle.rows(m) r ORDER BY 1;
-- what the hint prints moves those that can move
CREATE FOREIGN DATA WRAPPER regress_special;
CREATE SERVER regress_special FOREIGN DATA WRAPPER regress_special;
CREATE FOREIGN TABLE afar () INHERITS (parent) SERVER regress_special;
CREATE TEMP TABLE passing (PRIMARY KEY (id)) INHERITS (parent);
SELECT replace(index_mover.printed_command('move_children', 'special.parent', 'regress_fast'), 'm.*', 'm.name, m.status') \gexec
DROP TABLE passing;
DROP FOREIGN DATA WRAPPER regress_special CASCADE;

-- invalid indexes: skipped with the table, repaired when named
CREATE TABLE broken (id int) WITH (autovacuum_enabled = false);
INSERT INTO broken VALUES (1), (1), (2);
CREATE UNIQUE INDEX CONCURRENTLY broken_u ON broken (id);
CREATE INDEX broken_i ON broken (id);
SELECT r.* FROM move_indexes('broken', 'regress_fast', method => 'rebuild') m, oracle.rows(m) r ORDER BY 1;
DELETE FROM broken WHERE ctid = '(0,2)';
SELECT r.* FROM move_indexes('broken_u', 'regress_fast', method => 'rebuild') m, oracle.rows(m) r;
SELECT indisvalid, indisready, indislive FROM pg_index WHERE indexrelid = 'broken_u'::regclass;
SELECT oracle.verdict('broken');
-- another tool's leftover is neither moved nor repaired nor dropped; the detail
-- says how to drop it
CREATE INDEX broken_i_ccnew ON broken (id);
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'broken_i_ccnew'::regclass;
SELECT name, status, sqlstate, detail FROM move_indexes('broken', 'regress_slow', method => 'rebuild') ORDER BY 1;
SELECT * FROM index_mover_cleanup();
SELECT indexrelid::regclass, indisvalid FROM pg_index WHERE indrelid = 'broken'::regclass ORDER BY 1;
DROP INDEX broken_i_ccnew;

-- an index that belongs to an extension, and one that depends on one
CREATE TABLE member (id int PRIMARY KEY);
CREATE INDEX member_i ON member (id);
ALTER INDEX member_i DEPENDS ON EXTENSION btree_gist;
ALTER EXTENSION btree_gist ADD TABLE member;
SELECT oracle.remember_metadata('member');
SELECT r.* FROM move_indexes('member', 'regress_fast', method => 'rebuild') m, oracle.rows(m) r ORDER BY 1;
SELECT * FROM oracle.metadata_changes('member');
ALTER EXTENSION btree_gist DROP TABLE member;

-- temporary tables and system catalogs
CREATE TEMP TABLE temporary (id int PRIMARY KEY);
SELECT * FROM move_indexes('temporary', 'regress_fast', method => 'rebuild');
\echo :SQLSTATE
SELECT * FROM move_indexes('pg_temp.temporary_pkey', 'regress_fast');
\echo :SQLSTATE
SELECT * FROM move_indexes('pg_catalog.pg_class', 'regress_fast', method => 'rebuild');
\echo :SQLSTATE
SELECT * FROM move_indexes('pg_catalog.pg_class_oid_index', 'regress_fast');
\echo :SQLSTATE
SELECT * FROM move_indexes('pg_catalog.pg_database', 'regress_fast');
\echo :SQLSTATE

SELECT * FROM oracle.leftovers();
SELECT * FROM oracle.files();
SET client_min_messages = warning;
DROP SCHEMA special CASCADE;
