-- index_report(): one row per index, and one of the table
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS index_mover CASCADE;
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE regress_report_ts LOCATION '';
CREATE SCHEMA ri;
SET search_path = ri, public;

CREATE TABLE t (id int PRIMARY KEY, a int, b int, v int[], r int4range, EXCLUDE USING gist (r WITH &&))
	WITH (autovacuum_enabled = off);
CREATE INDEX t_a ON t (a);
CREATE INDEX t_a_again ON t (a);
CREATE INDEX t_a_desc ON t (a DESC);
CREATE INDEX t_a_part ON t (a) WHERE b > 0;
CREATE INDEX t_b ON t (b) TABLESPACE regress_report_ts;
CREATE INDEX t_v ON t USING gin (v) WITH (gin_pending_list_limit = 64);
INSERT INTO t SELECT g, g, g, ARRAY[g], int4range(g, g + 1) FROM generate_series(1, 1000) g;
CREATE UNLOGGED TABLE u (id int PRIMARY KEY);
CREATE TABLE p (id int) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
CREATE INDEX p_id ON p (id);
\set VERBOSITY sqlstate
CREATE UNIQUE INDEX CONCURRENTLY t_bad ON t ((1));
\set VERBOSITY default

SELECT index, relation, access_method, tablespace, size = pg_relation_size(coalesce(index, relation)) AS size, movable,
	   regexp_replace(bloat_source, 'between .*', 'between ..') AS bloat_source, pending_pages > 0 AS pending,
	   regexp_replace(regexp_replace(remark, 'statistics were reset less than a day ago(; )?', ''), 'unused since [-0-9]+', 'unused') AS remark
  FROM index_report('t') ORDER BY index::text;
-- without a relation: every user index, not sampled
SELECT count(*) > 10 AS several, bool_and(bloat_source = 'not measured') AS not_sampled,
	   bool_and(relation::text NOT LIKE 'pg_%') AS user_indexes
  FROM index_report();
SELECT count(*) FILTER (WHERE bloat_source <> 'not measured') > 5 AS sampled FROM index_report(sample => true);
-- a partitioned table or index stands for its leaves
SELECT index, relation FROM index_report('p') ORDER BY index::text, relation::text;
SELECT index, relation FROM index_report('p_id') ORDER BY index::text;
SELECT index, movable FROM index_report('u');
-- not those of the tables that moves write to
SELECT relation, array_agg(DISTINCT movable::text) AS movable
  FROM index_report() WHERE relation::text ~ '^index_mover\.' GROUP BY 1 ORDER BY 1;
-- what is movable by a method is what a dry run of that method would move
CREATE TABLE d (id int, UNIQUE (id) DEFERRABLE);
SELECT r.index, r.movable, m.method, p.status, p.detail
  FROM unnest('{copy,rebuild}'::text[]) m(method),
	   index_report() r,
	   LATERAL move_indexes(r.index, CASE r.tablespace WHEN 'regress_report_ts' THEN 'pg_default' ELSE 'regress_report_ts' END,
							method => m.method, dry_run => true) p
 WHERE r.index IS NOT NULL AND (m.method = ANY (r.movable)) <> (p.status = 'planned');
SELECT r.relation, r.movable, p.status, p.detail
  FROM index_report() r,
	   LATERAL move_table(r.relation, CASE r.tablespace WHEN 'regress_report_ts' THEN 'pg_default' ELSE 'regress_report_ts' END, dry_run => true) p
 WHERE r.index IS NULL AND r.relation::text !~ '^index_mover\.' AND p.kind = 'table' AND ('copy' = ANY (r.movable)) <> (p.status = 'planned');
-- one index, a TOAST table, something without indexes
SELECT index, bloat_source FROM index_report('t_a');
SELECT index, bloat_source FROM index_report('t_a', sample => false);
CREATE TABLE big (x text);
SELECT access_method, movable FROM index_report((SELECT reltoastrelid FROM pg_class WHERE oid = 'big'::regclass)) ORDER BY access_method;
ALTER TABLE big ALTER x SET STORAGE EXTERNAL;
INSERT INTO big VALUES (repeat('x', 100000));
SELECT pg_stat_force_next_flush();
-- the table's line: NULL where a column says something of indexes
SELECT index, relation, access_method, tablespace, idx_scan, relation_blks_read = blks_read AS own_reads, bloat_ratio, bloat_source,
	   pending_pages, writes, movable,
	   size = pg_relation_size('big') + pg_relation_size((SELECT reltoastrelid FROM pg_class WHERE oid = 'big'::regclass)) AS size_with_toast
  FROM index_report('big');

-- use and writes are the statistics collector's
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT b FROM t WHERE b = 5;
SELECT pg_stat_force_next_flush();
SELECT index, idx_scan, blks_read + blks_hit > 0 AS blocks, hit_ratio BETWEEN 0 AND 1 AS hit_ratio, writes
  FROM index_report('t_b');

-- a pending list that has grown under a higher limit
ALTER INDEX t_v SET (gin_pending_list_limit = 4096);
INSERT INTO t SELECT g, g, g, ARRAY[g, -g], int4range(g, g + 1) FROM generate_series(1001, 5000) g;
ALTER INDEX t_v SET (gin_pending_list_limit = 64);
SELECT pending_tuples, pending_bytes > 65536 AS over, remark ~ 'pending list is over its limit' AS said FROM index_report('t_v');

-- counters that say nothing yet
SELECT pg_stat_reset();
SELECT stats_since > now() - interval '1 hour' AS just_now, remark ~ 'statistics were reset less than a day ago' AS said,
	   remark ~ 'unused since [-0-9]+' AS unused_since
  FROM index_report('t_b');

-- for pg_monitor
CREATE ROLE regress_report_monitor IN ROLE pg_monitor;
GRANT USAGE ON SCHEMA ri TO regress_report_monitor;
CREATE ROLE regress_report_scan IN ROLE pg_stat_scan_tables;
SET ROLE regress_report_monitor;
SELECT count(*) FROM index_report('ri.p');
SELECT count(*) > 10 FROM index_report(sample => true);
SET ROLE regress_report_scan;
SELECT count(*) FROM index_report();
RESET ROLE;

RESET search_path;
DROP SCHEMA ri CASCADE;
DROP TABLESPACE regress_report_ts;
DROP ROLE regress_report_monitor, regress_report_scan;
