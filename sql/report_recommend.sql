-- recommend_moves(): what earns the fast space
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS index_mover CASCADE;
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE regress_rec_slow LOCATION '';
CREATE TABLESPACE regress_rec_fast LOCATION '';
CREATE TABLESPACE regress_rec_same LOCATION '';
ALTER TABLESPACE regress_rec_slow SET (random_page_cost = 4.1);
ALTER TABLESPACE regress_rec_fast SET (random_page_cost = 1.1);
ALTER TABLESPACE regress_rec_same SET (random_page_cost = 4.1);
-- other tables of the database shall not matter
SET random_page_cost = 1.1;
DELETE FROM index_mover.sample;
DELETE FROM index_mover.probe;

-- in-place tablespaces are on one device: as if each had its own
SELECT pg_get_functiondef('index_mover.tablespace_facts'::regproc) AS real_facts \gset
SELECT replace(:'real_facts', 'index_mover.tablespace_facts', 'public.rec_facts') AS copy \gset
:copy;
\set own_devices 'CREATE OR REPLACE FUNCTION index_mover.tablespace_facts(tablespace name, OUT tablespace_oid oid, OUT free_bytes bigint, OUT reserved_bytes bigint, OUT device bigint, OUT lost_on_reboot text, OUT total_bytes bigint) LANGUAGE sql AS $$ SELECT tablespace_oid, free_bytes, reserved_bytes, tablespace_oid::bigint, lost_on_reboot, total_bytes FROM public.rec_facts($1) $$'
:own_devices;
RESET client_min_messages;

-- says nothing where nothing is known, and why
SELECT rank, index, reason FROM recommend_moves('regress_rec_fast');

CREATE TABLE rec_hot (id int, a int, b text, c int[], d int) WITH (autovacuum_enabled = off) TABLESPACE regress_rec_slow;
CREATE TABLE rec_table (id int, pad text) WITH (autovacuum_enabled = off) TABLESPACE regress_rec_slow;
INSERT INTO rec_hot SELECT g, g, md5(g::text), ARRAY[g, g % 7], g FROM generate_series(1, 20000) g;
INSERT INTO rec_table SELECT g, repeat('x', 100) FROM generate_series(1, 5000) g;
CREATE INDEX rec_a ON rec_hot (a) TABLESPACE regress_rec_slow;
CREATE INDEX rec_b ON rec_hot (b) TABLESPACE regress_rec_slow;
CREATE INDEX rec_c ON rec_hot USING gin (c) WITH (gin_pending_list_limit = 4096) TABLESPACE regress_rec_slow;
CREATE INDEX rec_d ON rec_hot (d) TABLESPACE regress_rec_fast;
CREATE INDEX rec_e ON rec_hot (d, a) TABLESPACE regress_rec_slow;
CREATE INDEX rec_bloated ON rec_hot (id) TABLESPACE regress_rec_slow;
CREATE UNIQUE INDEX rec_table_id ON rec_table (id) TABLESPACE regress_rec_slow;
DELETE FROM rec_hot WHERE id % 3 <> 0;
VACUUM rec_hot;
INSERT INTO rec_hot (c) SELECT ARRAY[g, g % 7] FROM generate_series(1, 10000) g;
REINDEX INDEX rec_a;
REINDEX INDEX rec_b;
REINDEX INDEX rec_d;
REINDEX INDEX rec_e;

-- what would have been read in the last 10,000 seconds
CREATE FUNCTION rec_rate(rel regclass, idx name, per_second float8) RETURNS void LANGUAGE sql AS $$
	INSERT INTO index_mover.sample
	SELECT now() - interval '10000 s', rel, idx,
		   (SELECT CASE WHEN idx IS NULL THEN pg_stat_get_blocks_fetched(rel) - pg_stat_get_blocks_hit(rel)
						ELSE (SELECT idx_blks_read FROM pg_statio_user_indexes WHERE relid = rel AND indexrelname = idx) END)
		   - (per_second * 10000)::bigint
$$;
-- (an index that nobody uses earns nothing)
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT count(a) FROM rec_hot WHERE a = 3;
SELECT count(b) FROM rec_hot WHERE b = md5('3');
SELECT count(id) FROM rec_hot WHERE id = 3;
SELECT count(d) FROM rec_hot WHERE d = 3;
SET enable_bitmapscan = on;
SELECT count(*) > 0 AS found FROM rec_hot WHERE c @> '{3}';
RESET enable_seqscan;
SELECT pg_stat_force_next_flush();
SELECT idx_scan > 0 AS used, string_agg(indexrelname, ' ' ORDER BY indexrelname)
  FROM pg_stat_user_indexes WHERE relname LIKE 'rec\_%' GROUP BY 1 ORDER BY 1;
SELECT rec_rate('rec_hot', 'rec_a', 12), rec_rate('rec_hot', 'rec_b', 20), rec_rate('rec_hot', 'rec_c', 30),
	   rec_rate('rec_hot', 'rec_bloated', 40), rec_rate('rec_hot', 'rec_d', 0), rec_rate('rec_hot', 'rec_e', 100),
	   rec_rate('rec_hot', NULL, 1), rec_rate('rec_table', NULL, 0), rec_rate('rec_table', 'rec_table_id', 0);

-- room for all of them: the greatest gain first; unread ones stay where they are
SELECT rank, index, method, from_tablespace, to_tablespace, size_after < size AS shrinks,
	   round(reads_per_second) AS reads, round(gain_ms_per_second::numeric, 1) AS gain,
	   bloat_ratio > 0.5 AS bloated, pending_pages > 16 AS pending
  FROM recommend_moves('regress_rec_fast', 1000000000);
SELECT index, regexp_replace(regexp_replace(reason, '\d+ pages', 'N pages'), '(\d+\.\d+|@ .* secs)', 'N', 'g') AS reason, command
  FROM recommend_moves('regress_rec_fast', 1000000000);

-- a budget for one of them and what is there: the unread one has to leave
SELECT rank, index, from_tablespace, to_tablespace, regexp_replace(left(reason, 20), '\d+\.\d+', 'N') AS reason
  FROM recommend_moves('regress_rec_fast', pg_relation_size('rec_a') + 8192 * 20);
SELECT sum(size_after) <= pg_relation_size('rec_a') + 8192 * 20 AS fits
  FROM recommend_moves('regress_rec_fast', pg_relation_size('rec_a') + 8192 * 20)
 WHERE to_tablespace = 'regress_rec_fast';
-- no room
SELECT rank, index, left(reason, 35) AS reason FROM recommend_moves('regress_rec_fast', 8192 * 12);

-- the default is what is free and what is there already, less the reserve: as if 10 MB of the file system
-- were free or taken by rec_d
BEGIN;
CREATE OR REPLACE FUNCTION index_mover.tablespace_facts(
	tablespace name, OUT tablespace_oid oid, OUT free_bytes bigint, OUT reserved_bytes bigint,
	OUT device bigint, OUT lost_on_reboot text, OUT total_bytes bigint) LANGUAGE sql AS $$
	SELECT oid, 10000000 - pg_relation_size('rec_d'), current_setting('regress.reserved')::bigint, oid::bigint, NULL, NULL::bigint FROM pg_tablespace WHERE spcname = $1 $$;
CREATE FUNCTION rec_set(tablespace name, budget bigint) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(concat_ws(' ', rank, index, method, to_tablespace), ', ' ORDER BY rank) FROM recommend_moves($1, $2) $$;
-- 5 MB
SET LOCAL regress.reserved = 5000000;
SELECT rec_set('regress_rec_fast', NULL), rec_set('regress_rec_fast', NULL) = rec_set('regress_rec_fast', 5000000) AS same;
SET LOCAL regress.reserved = 9375000;
SELECT rec_set('regress_rec_fast', NULL), rec_set('regress_rec_fast', NULL) = rec_set('regress_rec_fast', 625000) AS same;
-- until nothing fits
SET LOCAL regress.reserved = 9960000;
SELECT rank, index, split_part(reason, ';', 1) AS reason FROM recommend_moves('regress_rec_fast');
SET LOCAL regress.reserved = 50000000;
SELECT rank, index, split_part(reason, ';', 1) AS reason FROM recommend_moves('regress_rec_fast');
ALTER TABLESPACE regress_rec_same SET (random_page_cost = 1.1);
SELECT rank, index, to_tablespace, command, reason FROM recommend_moves('regress_rec_same');
SELECT rank, index, to_tablespace, command, reason FROM recommend_moves('regress_rec_same', 40000);
ROLLBACK;
-- and with the real one
SET index_mover.min_free_space = '100%';
SELECT rank, index, split_part(reason, ';', 1) AS reason FROM recommend_moves('regress_rec_fast');
SET index_mover.min_free_space = 0;
SELECT rank, index FROM recommend_moves('regress_rec_fast');
SET index_mover.min_free_space = '100%, 1MB';
SELECT reserved_bytes FROM index_mover.tablespace_facts('regress_rec_fast');
RESET index_mover.min_free_space;

-- what the probes have measured counts more than the settings
INSERT INTO index_mover.probe
	SELECT now(), oid, CASE spcname WHEN 'regress_rec_fast' THEN 5 ELSE 1 END, 1, 1, 1, 1
	  FROM pg_tablespace WHERE spcname IN ('regress_rec_fast', 'regress_rec_slow', 'regress_rec_same');
DELETE FROM index_mover.sample WHERE index_name = 'rec_d';
SELECT rec_rate('rec_hot', 'rec_d', 15);
SELECT rank, index, from_tablespace, to_tablespace, round(gain_ms_per_second) AS gain, reason ~ 'as probed' AS probed
  FROM recommend_moves('regress_rec_same');
-- but between tablespaces of one device nothing is gained, whatever they have measured
:real_facts;
SELECT rank, index, reason FROM recommend_moves('regress_rec_same');
SELECT index, to_tablespace, gain_ms_per_second AS gain, regexp_replace(reason, '(\d+\.\d+|@ .* secs)', 'N', 'g') AS reason
  FROM recommend_moves('regress_rec_fast', 0) WHERE index = 'rec_d'::regclass;
BEGIN;
CREATE OR REPLACE FUNCTION index_mover.tablespace_facts(
	tablespace name, OUT tablespace_oid oid, OUT free_bytes bigint, OUT reserved_bytes bigint,
	OUT device bigint, OUT lost_on_reboot text, OUT total_bytes bigint) LANGUAGE sql AS $$
	SELECT oid, 10000000, 0, CASE WHEN spcname ~ '^regress_rec' THEN 1 END, NULL, NULL::bigint FROM pg_tablespace WHERE spcname = $1 $$;
SELECT rank, index, reason FROM recommend_moves('regress_rec_same');
-- nor of one without a directory
SELECT rank, index, reason FROM recommend_moves('pg_default', 1000000000);
ROLLBACK;
:own_devices;
DELETE FROM index_mover.probe;

-- the table's own reads outweigh those of its indexes: move the table
DELETE FROM index_mover.sample;
SELECT rec_rate('rec_table', NULL, 50), rec_rate('rec_table', 'rec_table_id', 40);
SELECT index, table_name, method, round(reads_per_second) AS reads,
	   reason ~ 'outweigh those of its indexes' AS table_instead, reason ~ 'warning: the table itself is read more' AS warned, command
  FROM recommend_moves('regress_rec_fast', 1000000000) WHERE table_name = 'rec_table'::regclass;

-- a table that is there counts, and stays or leaves as an index does
BEGIN;
SELECT count(rec_rate('rec_hot', i, 0)) = 0 AS unread FROM unnest('{rec_a,rec_b,rec_c,rec_d,rec_e,rec_bloated,NULL}'::name[]) i;
ALTER TABLE rec_table SET TABLESPACE regress_rec_fast;
CREATE FUNCTION rec_set(budget bigint) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(concat_ws(' ', rank, coalesce(index, table_name), to_tablespace, round(gain_ms_per_second)), ', ' ORDER BY rank)
	  FROM recommend_moves('regress_rec_fast', budget) $$;
SET LOCAL client_min_messages = warning;
SELECT rec_set(pg_relation_size('rec_table_id') + 8192) AS one, rec_set(pg_relation_size('rec_table') + pg_relation_size('rec_table_id') + pg_relation_size('rec_d')) AS three;
SELECT index, from_tablespace, split_part(reason, ';', 1) AS reason, command
  FROM recommend_moves('regress_rec_fast', pg_relation_size('rec_table_id')) WHERE table_name = 'rec_table'::regclass AND to_tablespace = 'pg_default';
-- one that gains more stays
ALTER TABLESPACE pg_default SET (random_page_cost = 4.1);
SELECT rec_set(pg_relation_size('rec_table'));
-- the default budget has its bytes in it
CREATE OR REPLACE FUNCTION index_mover.tablespace_facts(
	tablespace name, OUT tablespace_oid oid, OUT free_bytes bigint, OUT reserved_bytes bigint,
	OUT device bigint, OUT lost_on_reboot text, OUT total_bytes bigint) LANGUAGE sql AS $$ SELECT oid, 0, 0, oid::bigint, NULL, NULL::bigint FROM pg_tablespace WHERE spcname = $1 $$;
SELECT rec_set(NULL), rec_set(pg_relation_size('rec_table') + pg_relation_size('rec_d'));
-- what is there and has no other place stays, and takes its bytes from a budget
ALTER TABLESPACE pg_default SET (random_page_cost = 1.1);
ALTER TABLE rec_table SET TABLESPACE pg_default;
DELETE FROM index_mover.sample WHERE index_name = 'rec_a';
SELECT rec_rate('rec_hot', 'rec_a', 40);
SELECT budget = 1000000000 AS large, string_agg(concat_ws(' ', index, from_tablespace, to_tablespace), ', ' ORDER BY index::text)
  FROM (VALUES (pg_relation_size('rec_a')), (1000000000)) b(budget), recommend_moves('pg_default', budget) GROUP BY 1 ORDER BY 1;
ROLLBACK;
-- what was seen for a quarter of an hour only
UPDATE index_mover.sample SET taken_at = now() - interval '1000 s';
SELECT count(*) > 0 AS rows, bool_and(reason ~ 'warning: the statistics cover only') AS warned
  FROM recommend_moves('regress_rec_fast', 1000000000) WHERE table_name = 'rec_table'::regclass;

-- without samples: the cumulative statistics, and the row says so
DELETE FROM index_mover.sample;
SELECT pg_stat_force_next_flush();
SELECT bool_or(index = 'rec_a'::regclass) AS rec_a, bool_and(reason ~ '\d block reads per second \(cumulative statistics, no samples\)') AS says_so
  FROM recommend_moves('regress_rec_fast', 1000000000);

-- samples: taken, differences, retention
SELECT take_index_sample() > 7 AS taken;
SELECT count(DISTINCT index_name) >= 7 AS indexes FROM index_mover.sample;
UPDATE index_mover.sample SET taken_at = taken_at - interval '20 days';
SELECT take_index_sample() > 7 AS taken;
SELECT max(taken_at) - min(taken_at) < interval '1 hour' AS old_ones_gone FROM index_mover.sample;
-- a reset counter doesn't make rates negative
UPDATE index_mover.sample SET blks_read = 1000000000, taken_at = taken_at - interval '1 hour';
SELECT min(reads_per_second) >= 0 AS never_negative FROM index_mover.read_rates();

-- errors, privileges
:real_facts;
SELECT * FROM recommend_moves('regress_nosuch');
SELECT * FROM recommend_moves('regress_rec_fast', -1);
\set VERBOSITY sqlstate
SELECT * FROM recommend_moves(NULL);
CREATE ROLE regress_rec_monitor IN ROLE pg_monitor;
CREATE ROLE regress_rec_nobody;
SET ROLE regress_rec_nobody;
SELECT * FROM recommend_moves('regress_rec_fast');
SELECT take_index_sample();
SELECT * FROM index_mover.sample;
SET ROLE regress_rec_monitor;
SELECT count(*) >= 0 AS allowed FROM recommend_moves('regress_rec_fast');
SELECT take_index_sample() > 7 AS taken;
RESET ROLE;
:own_devices;

-- a big one, where the greatest gain per byte would keep it out; else by gain per byte
DELETE FROM index_mover.sample;
SELECT rec_rate('rec_hot', 'rec_a', 12), rec_rate('rec_hot', 'rec_b', 20), rec_rate('rec_hot', 'rec_c', 0),
	   rec_rate('rec_hot', 'rec_bloated', 0), rec_rate('rec_hot', 'rec_d', 0), rec_rate('rec_hot', 'rec_e', 1),
	   rec_rate('rec_hot', NULL, 0), rec_rate('rec_table', NULL, 0), rec_rate('rec_table', 'rec_table_id', 0);
SELECT 12.0 / pg_relation_size('rec_a') > 20.0 / pg_relation_size('rec_b') AS denser,
	   pg_relation_size('rec_a') + pg_relation_size('rec_e') <= pg_relation_size('rec_b') AS both_fit;
SELECT index FROM recommend_moves('regress_rec_fast', pg_relation_size('rec_b')) WHERE to_tablespace = 'regress_rec_fast' ORDER BY rank;
SELECT index FROM recommend_moves('regress_rec_fast', pg_relation_size('rec_b') - 8192) WHERE to_tablespace = 'regress_rec_fast' ORDER BY rank;
SELECT index FROM recommend_moves('regress_rec_fast', pg_relation_size('rec_a') + pg_relation_size('rec_b')) WHERE to_tablespace = 'regress_rec_fast' ORDER BY rank;
DROP TABLE rec_hot, rec_table;
:real_facts;
DROP FUNCTION rec_rate, public.rec_facts;
DELETE FROM index_mover.sample;
DROP TABLESPACE regress_rec_slow;
DROP TABLESPACE regress_rec_fast;
DROP TABLESPACE regress_rec_same;
DROP ROLE regress_rec_monitor, regress_rec_nobody;
