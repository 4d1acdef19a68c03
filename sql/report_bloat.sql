-- index_bloat(): what a rebuild would give back, from a sample
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS index_mover CASCADE;
CREATE EXTENSION IF NOT EXISTS pgstattuple;
CREATE TABLE rb (id int, k int, t text, a int[], p point, r int4range);
INSERT INTO rb
	SELECT g, g % 500, md5(g::text), ARRAY[g % 100, g], point(g * 7919::bigint % 100003, g * 104729::bigint % 99991), int4range(g, g + 10)
	  FROM generate_series(1, 100000) g;
CREATE UNIQUE INDEX rb_btree ON rb (id);
CREATE INDEX rb_dedup ON rb (k);
CREATE INDEX rb_text ON rb (t) WITH (fillfactor = 70);
CREATE INDEX rb_hash ON rb USING hash (id);
CREATE INDEX rb_gin ON rb USING gin (a);
CREATE INDEX rb_gist ON rb USING gist (p);
VACUUM ANALYZE rb;

-- fresh: nothing to gain
SELECT i, b.pages = pg_relation_size(i) / current_setting('block_size')::int AS pages,
	   b.sampled_pages <= 400 AS bounded, b.fillfactor,
	   b.bloat_ratio < 0.1 AS fresh, b.bloat_ratio_low < 0.1 AS perhaps_fresh,
	   b.bloat_ratio_low <= b.bloat_ratio AND b.bloat_ratio <= b.bloat_ratio_high AS ordered,
	   abs(b.bloat_bytes - b.bloat_ratio * pg_relation_size(i)) <= 0.00005 * pg_relation_size(i) + 1 AS bytes,
	   concat(b.leaf_density, '|', b.bloat_ratio_low, '|', b.bloat_ratio, '|', b.bloat_ratio_high) !~ '\.\d{5}' AS short
  FROM unnest('{rb_btree,rb_dedup,rb_text,rb_hash,rb_gin,rb_gist}'::regclass[]) i,
	   LATERAL index_bloat(i) b;

-- an autovacuum of something else may keep VACUUM from removing rows
CREATE FUNCTION rb_wait_for_others() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity
				   WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()) LOOP
		PERFORM pg_sleep(0.05);
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;

-- half of the rows gone
DELETE FROM rb WHERE id % 2 = 0;
SELECT rb_wait_for_others();
VACUUM ANALYZE rb;
CREATE TABLE rb_before AS
	SELECT i, b.*, pg_relation_size(i) AS size
	  FROM unnest('{rb_btree,rb_dedup,rb_text,rb_hash,rb_gin,rb_gist}'::regclass[]) i,
		   LATERAL index_bloat(i) b;

-- the same density as pgstatindex from all pages, and from a sample where there is one (two are read whole;
-- report_samples has many samples); 18 counts the room of a page a little otherwise
SELECT i, CASE WHEN NOT b.is_exact THEN abs(b.leaf_density - s.avg_leaf_density / 100) < 0.03 END AS density,
	   CASE WHEN NOT b.is_exact THEN abs(b.bloat_ratio - x.bloat_ratio) < 0.03 END AS sample_agrees,
	   abs(x.leaf_density - s.avg_leaf_density / 100) < 0.001 AS exact_density,
	   x.is_exact, x.bloat_ratio_low = x.bloat_ratio_high AS no_interval
  FROM rb_before b, LATERAL pgstatindex(i) s, LATERAL index_bloat(i, exact => true) x
 WHERE i IN ('rb_btree'::regclass, 'rb_dedup', 'rb_text');

-- no more than 400 blocks of any of them, counted by the statistics
ALTER TABLE rb SET (autovacuum_enabled = off);
SELECT pg_stat_force_next_flush();
SELECT count(pg_stat_reset_single_table_counters(indexrelid)) FROM pg_index WHERE indrelid = 'rb'::regclass;
SELECT count(b.*) FROM pg_index, LATERAL index_bloat(indexrelid) b WHERE indrelid = 'rb'::regclass;
SELECT pg_stat_force_next_flush();
SELECT indexrelname, idx_blks_read + idx_blks_hit BETWEEN 1 AND 400 AS counted
  FROM pg_statio_user_indexes WHERE relname = 'rb' ORDER BY 1;

-- and nothing to gain any more (report_rebuilt compares the sizes)
REINDEX TABLE rb;
SELECT i, b.bloat_ratio < 0.1 AS fresh, b.bloat_ratio_low = 0 AS perhaps_fresh
  FROM rb_before, LATERAL index_bloat(i) b ORDER BY i;

-- empty, tiny
CREATE TABLE rb_empty (id int PRIMARY KEY, a int[], p point, t text);
CREATE INDEX rb_empty_hash ON rb_empty USING hash (id);
CREATE INDEX rb_empty_gin ON rb_empty USING gin (a);
CREATE INDEX rb_empty_gist ON rb_empty USING gist (p);
SELECT i, b.bloat_ratio, b.bloat_bytes, b.is_exact
  FROM unnest('{rb_empty_pkey,rb_empty_hash,rb_empty_gin,rb_empty_gist}'::regclass[]) i,
	   LATERAL index_bloat(i) b;

-- cannot be measured: NULL, not an error
CREATE EXTENSION IF NOT EXISTS bloom;
CREATE INDEX rb_empty_bloom ON rb_empty USING bloom (id);
CREATE INDEX rb_empty_spgist ON rb_empty USING spgist (t);
CREATE INDEX rb_empty_brin ON rb_empty USING brin (id);
SELECT b.pages > 0 AS pages, b.fillfactor, b.bloat_ratio, b.bloat_ratio_low, b.is_exact
  FROM unnest('{rb_empty_bloom,rb_empty_spgist,rb_empty_brin}'::regclass[]) i, LATERAL index_bloat(i) b;

-- posting lists of many keys, each with rows all over the table
CREATE EXTENSION IF NOT EXISTS pg_trgm;
CREATE TABLE rb_trgm WITH (autovacuum_enabled = off) AS SELECT md5(g::text) AS t FROM generate_series(1, 20000) g;
CREATE INDEX rb_trgm_i ON rb_trgm USING gin (t gin_trgm_ops);
-- in a new session, whose memory is not there yet to be read by mistake
\c -
SET client_min_messages = warning;
SELECT bloat_ratio_low <= bloat_ratio_high AS measured FROM index_bloat('rb_trgm_i');
SELECT bloat_ratio_low <= bloat_ratio_high AS measured FROM index_bloat('rb_trgm_i', exact => true);

-- errors, in pgstattuple's words
CREATE TABLE rb_part (id int) PARTITION BY RANGE (id);
CREATE INDEX rb_part_i ON rb_part (id);
CREATE VIEW rb_view AS SELECT 1 AS one;
INSERT INTO rb_empty VALUES (1), (2);
\set VERBOSITY sqlstate
CREATE UNIQUE INDEX CONCURRENTLY rb_invalid ON rb_empty ((1));
SELECT * FROM index_bloat(NULL);
SELECT * FROM index_bloat(4294967295);
\set VERBOSITY default
SELECT * FROM index_bloat('rb');
SELECT * FROM index_bloat('rb_view');
SELECT * FROM index_bloat('rb_part_i');
SELECT * FROM index_bloat('rb_invalid');
SELECT * FROM index_bloat('rb_btree', 0);
SELECT * FROM index_bloat('rb_btree', NULL);
SELECT * FROM index_bloat('rb_btree', exact => NULL);

-- privileges
CREATE ROLE regress_report_nobody;
CREATE ROLE regress_report_scan IN ROLE pg_stat_scan_tables;
SET ROLE regress_report_nobody;
SELECT * FROM index_bloat('rb_btree');
SET ROLE regress_report_scan;
SELECT bloat_ratio < 0.01 AS fresh FROM index_bloat('rb_btree');
SELECT bloat_ratio < 0.01 AS fresh FROM index_bloat('rb_btree', exact => true);
RESET ROLE;

DROP VIEW rb_view;
DROP TABLE rb, rb_before, rb_empty, rb_trgm, rb_part;
DROP ROUTINE rb_wait_for_others;
DROP ROLE regress_report_nobody, regress_report_scan;
