-- index_report(): one row per index, and one of the table
-- Fault (storage): an index like another one that enforces more, is used otherwise, or that
--   others rely on
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

SELECT index, table_name, access_method, tablespace, size = pg_relation_size(coalesce(index, table_name)) AS size, movable,
	   regexp_replace(bloat_source, 'between .*', 'between ..') AS bloat_source, pending_pages > 0 AS pending,
	   regexp_replace(remark, '(; )?statistics cover less than a day', '') AS remark
  FROM index_report('t') ORDER BY index::text;
-- without a relation: every user index, not sampled
SELECT count(*) > 10 AS several, bool_and(bloat_source = 'not measured') AS not_sampled,
	   bool_and(table_name::text NOT LIKE 'pg_%') AS user_indexes
  FROM index_report();
SELECT count(*) FILTER (WHERE bloat_source <> 'not measured') > 5 AS sampled FROM index_report(sample => true);
-- a partitioned table or index stands for its leaves
SELECT index, table_name FROM index_report('p') ORDER BY index::text, table_name::text;
SELECT index, table_name FROM index_report('p_id') ORDER BY index::text;
SELECT index, movable FROM index_report('u');
-- shared catalogs are elsewhere
SELECT bool_and(size IS NULL) FROM index_report('pg_authid', true);
-- not those of the tables that moves write to, which a report of all leaves out
SELECT array_agg(DISTINCT r.movable::text) AS movable, count(DISTINCT r.table_name) > 4 AS several,
	   (SELECT count(*) FROM index_report() WHERE table_name::text ~ '^index_mover\.') AS in_all
  FROM pg_class c, index_report(c.oid::regclass) r WHERE c.relnamespace = 'index_mover'::regnamespace AND c.relkind = 'r';
-- what is movable by a method is what a dry run of that method would move
CREATE TABLE d (id int, UNIQUE (id) DEFERRABLE);
SELECT r.index, r.movable, m.method, p.status, p.detail
  FROM unnest('{copy,rebuild}'::text[]) m(method),
	   index_report() r,
	   LATERAL move_indexes(r.index, CASE r.tablespace WHEN 'regress_report_ts' THEN 'pg_default' ELSE 'regress_report_ts' END,
							method => m.method, dry_run => true) p
 WHERE r.index IS NOT NULL AND (m.method = ANY (r.movable)) <> (p.status = 'planned');
SELECT r.table_name, r.movable, p.status, p.detail
  FROM index_report() r,
	   LATERAL move_table(r.table_name, CASE r.tablespace WHEN 'regress_report_ts' THEN 'pg_default' ELSE 'regress_report_ts' END, dry_run => true) p
 WHERE r.index IS NULL AND r.table_name::text !~ '^index_mover\.' AND p.kind = 'table' AND ('copy' = ANY (r.movable)) <> (p.status = 'planned');
-- one index, a TOAST table, something without indexes
SELECT index, bloat_source FROM index_report('t_a');
SELECT index, bloat_source FROM index_report('t_a', sample => false);
CREATE TABLE big (x text);
SELECT access_method, movable FROM index_report((SELECT reltoastrelid FROM pg_class WHERE oid = 'big'::regclass)) ORDER BY access_method;
ALTER TABLE big ALTER x SET STORAGE EXTERNAL;
INSERT INTO big VALUES (repeat('x', 100000));
SELECT pg_stat_force_next_flush();
-- the table's line: NULL where a column says something of indexes
SELECT index, table_name, access_method, tablespace, idx_scan, table_blks_read = blks_read AS own_reads, bloat_ratio, bloat_source,
	   pending_pages, writes, movable,
	   size = pg_relation_size('big') + pg_relation_size((SELECT reltoastrelid FROM pg_class WHERE oid = 'big'::regclass)) AS size_with_toast
  FROM index_report('big');

-- use and writes are the statistics collector's
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT b FROM t WHERE b = 5;
RESET enable_seqscan;
RESET enable_bitmapscan;
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
SELECT stats_since > now() - interval '1 hour' AS just_now, remark FROM index_report('t_a');
-- "unused" has evidence: a week of statistics of this server, of an index that is not younger
BEGIN;
CREATE OR REPLACE FUNCTION index_mover.stats_since() RETURNS timestamptz LANGUAGE sql AS $$ SELECT now() - current_setting('regress.stats')::interval $$;
SET LOCAL regress.stats = '41 days 5 hours';
SELECT remark FROM index_report('t_a') WHERE current_setting('track_commit_timestamp') = 'off';
CREATE FUNCTION real_report(relation regclass, sample boolean,
	OUT size bigint, OUT duplicate_of regclass, OUT bloat_ratio float8, OUT bloat_bytes bigint, OUT bloat_source text,
	OUT pending_pages bigint, OUT pending_tuples bigint, OUT pending_bytes bigint, OUT pending_limit_bytes bigint,
	OUT is_spare boolean, OUT tablespace name, OUT file_birth timestamptz)
AS '$libdir/index_mover', 'index_mover_relation_report' LANGUAGE C STRICT;
CREATE OR REPLACE FUNCTION index_mover.relation_report(relation regclass, sample boolean,
	OUT size bigint, OUT duplicate_of regclass, OUT bloat_ratio float8, OUT bloat_bytes bigint, OUT bloat_source text,
	OUT pending_pages bigint, OUT pending_tuples bigint, OUT pending_bytes bigint, OUT pending_limit_bytes bigint,
	OUT is_spare boolean, OUT tablespace name, OUT file_birth timestamptz) LANGUAGE sql AS $$
	SELECT r.size, r.duplicate_of, r.bloat_ratio, r.bloat_bytes, r.bloat_source, r.pending_pages, r.pending_tuples, r.pending_bytes,
		   r.pending_limit_bytes, r.is_spare, r.tablespace, now() - current_setting('regress.age')::interval
	  FROM ri.real_report($1, $2) r $$;
-- a counter that was reset (which 19 tells of each relation) was so with all others
CREATE FUNCTION real_heat(OUT relation regclass, OUT kind text, OUT tablespace name, OUT size bigint, OUT reads_per_second float8,
	OUT heat float8, OUT period interval, OUT samples bigint, OUT last_use timestamptz, OUT last_index_use timestamptz,
	OUT last_change timestamptz, OUT known_since timestamptz, OUT reset_at timestamptz) RETURNS SETOF record
AS '$libdir/index_mover', 'index_mover_relation_heat' LANGUAGE C;
CREATE OR REPLACE FUNCTION index_mover.relation_heat(OUT relation regclass, OUT kind text, OUT tablespace name, OUT size bigint,
	OUT reads_per_second float8, OUT heat float8, OUT period interval, OUT samples bigint, OUT last_use timestamptz,
	OUT last_index_use timestamptz, OUT last_change timestamptz, OUT known_since timestamptz, OUT reset_at timestamptz)
RETURNS SETOF record LANGUAGE sql AS $$
	SELECT h.relation, h.kind, h.tablespace, h.size, h.reads_per_second, h.heat, h.period, h.samples, h.last_use, h.last_index_use,
		   h.last_change, h.known_since, now() - current_setting('regress.stats')::interval
	  FROM ri.real_heat() h $$;
SET LOCAL regress.age = '100 days';
SELECT index, remark FROM index_report('t') WHERE index IS NOT NULL ORDER BY index::text;
SELECT index, remark FROM index_report('p') WHERE index IS NOT NULL ORDER BY index::text;
SET LOCAL regress.age = '8 days';
SELECT remark FROM index_report('t_a');
CREATE INDEX t_expression ON t ((a + 1));
SELECT remark FROM index_report('t_expression');
DROP INDEX t_expression;
SET LOCAL regress.age = '6 days';
SELECT remark FROM index_report('t_a');
SET LOCAL regress.age = '100 days';
SET LOCAL regress.stats = '6 days 23 hours';
SELECT remark FROM index_report('t_a');
SET LOCAL regress.stats = '41 days';
SET LOCAL track_counts = off;
SELECT remark FROM index_report('t_a');
SET LOCAL track_counts = on;
ALTER TABLE t CLUSTER ON t_a_desc;
SELECT remark FROM index_report('t_a_desc');
ROLLBACK;

-- "duplicate of" is said of what the other index can stand in for, and of the one to drop
CREATE EXTENSION IF NOT EXISTS pg_trgm SCHEMA public;
CREATE TABLE e (a int PRIMARY KEY, b int, c int, d text, r int4range,
				CONSTRAINT e_over EXCLUDE USING gist (r WITH &&), CONSTRAINT e_same EXCLUDE USING gist (r WITH =));
CREATE UNIQUE INDEX e_a_nulls ON e (a) NULLS NOT DISTINCT;
CREATE UNIQUE INDEX e_b ON e (b);
CREATE UNIQUE INDEX e_b_nulls ON e (b) NULLS NOT DISTINCT;
CREATE INDEX e_b_plain ON e (b);
ALTER TABLE e ADD CONSTRAINT e_c_later UNIQUE (c) DEFERRABLE;
CREATE UNIQUE INDEX e_c_now ON e (c);
CREATE INDEX e_bc ON e (b, c);
CREATE INDEX e_b_c ON e (b) INCLUDE (c);
CREATE INDEX e_d ON e (d);
CREATE INDEX e_d_collate ON e (d COLLATE "C");
CREATE INDEX e_d_pattern ON e (d text_pattern_ops);
CREATE INDEX e_d_part ON e (d) WHERE b > 0;
CREATE INDEX e_d_part2 ON e (d) WHERE b > 1;
CREATE INDEX e_lower ON e (lower(d));
CREATE INDEX e_upper ON e (upper(d));
CREATE INDEX e_upper2 ON e (upper(d));
CREATE INDEX e_brin ON e USING brin (b);
CREATE INDEX e_text_sig ON e USING gist (d gist_trgm_ops);
CREATE INDEX e_text_sig32 ON e USING gist (d gist_trgm_ops (siglen = 32));
CREATE INDEX e_brin1 ON e USING brin (b) WITH (pages_per_range = 1);
CREATE INDEX e_r ON e USING gist (r);
-- what others rely on is kept: a foreign key, the replica identity, CLUSTER, an index of the partitioned table
CREATE TABLE f (a int, b int NOT NULL, c int NOT NULL);
CREATE UNIQUE INDEX f_a_first ON f (a);
CREATE UNIQUE INDEX f_a_referenced ON f (a);
ALTER INDEX f_a_first RENAME TO f_a_second;
CREATE TABLE f_of (a int REFERENCES f (a));
ALTER TABLE f ADD CONSTRAINT f_a_con UNIQUE (a);
CREATE UNIQUE INDEX f_b ON f (b);
CREATE UNIQUE INDEX f_b_identity ON f (b);
ALTER TABLE f REPLICA IDENTITY USING INDEX f_b_identity;
CREATE UNIQUE INDEX f_c_unique ON f (c);
CREATE INDEX f_c_clustered ON f (c);
CREATE INDEX f_c ON f (c);
ALTER TABLE f CLUSTER ON f_c_clustered;
CREATE INDEX p1_id ON p1 (id);
SELECT r.index, substring(r.remark FROM 'duplicate of [^;]*') AS remark
  FROM unnest('{e,f,p1}'::regclass[]) t, index_report(t) r WHERE r.remark ~ 'duplicate' ORDER BY r.index::text;
-- of a table with very many of them, in time
CREATE TABLE many (i int);
DO $$ BEGIN FOR n IN 1 .. 1100 LOOP EXECUTE format('CREATE INDEX many_%s ON many (i)', n); END LOOP; END $$;
SET statement_timeout = '3s';
SELECT count(*), count(*) FILTER (WHERE remark ~ 'duplicate of many_1\M') FROM index_report('many');
RESET statement_timeout;
DROP TABLE many;
-- one index whose access method has lost its library, in a new session: the rest is reported
CREATE FUNCTION lost_handler(internal) RETURNS index_am_handler LANGUAGE C AS 'bloom', 'blhandler';
CREATE ACCESS METHOD regress_lost TYPE INDEX HANDLER lost_handler;
CREATE OPERATOR CLASS int4_ops DEFAULT FOR TYPE int4 USING regress_lost AS OPERATOR 1 =(int4, int4), FUNCTION 1 hashint4(int4);
CREATE TABLE lost (i int, j int);
CREATE INDEX lost_i ON lost USING regress_lost (i);
CREATE INDEX lost_j ON lost (j);
UPDATE pg_proc SET probin = 'regress_nowhere' WHERE oid = 'lost_handler'::regproc;
\c -
SET search_path = ri, public;
SET client_min_messages = warning;
SELECT index, size FROM index_report('lost');
SELECT relation, size FROM relation_heat WHERE relation::text LIKE 'lost%' ORDER BY 1;
UPDATE pg_proc SET probin = 'bloom' WHERE oid = 'lost_handler'::regproc;
DROP ACCESS METHOD regress_lost CASCADE;
DROP TABLE lost;
DROP FUNCTION lost_handler;

-- what has no index and no rows
CREATE VIEW v AS SELECT 1;
\set SHOW_CONTEXT never
SELECT count(*) FROM index_report('v');
\set SHOW_CONTEXT errors

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
