-- index_bloat(): the size that it predicts against the size after a rebuild
SET client_min_messages = warning;
SET maintenance_work_mem = '16MB';
CREATE EXTENSION IF NOT EXISTS index_mover CASCADE;
CREATE EXTENSION IF NOT EXISTS pg_trgm;
CREATE EXTENSION IF NOT EXISTS btree_gist;
CREATE TABLE rr WITH (autovacuum_enabled = off) AS
	SELECT g AS id, hashint4(g) AS h, (hashint4(g) & 65535) AS h16, (hashint4(-g) & 65535) AS v16, md5(g::text) AS m
	  FROM generate_series(1, 15000) g;
-- a build of a hash index asks pg_class how many rows there are
VACUUM ANALYZE rr;
CREATE FUNCTION rr_json(rr) RETURNS jsonb IMMUTABLE LANGUAGE sql
	AS $$ SELECT jsonb_build_object('k', $1.h16 % 500, 'name', left($1.m, 4), 'tags', ARRAY[$1.id % 10, $1.v16 % 77]) $$;

CREATE UNIQUE INDEX rr_btree_unique ON rr (id);
CREATE UNIQUE INDEX rr_btree_random ON rr (m);
CREATE INDEX rr_btree_text ON rr ((m || repeat('x', id % 50)));
CREATE INDEX rr_btree_duplicates ON rr ((id % 200));
CREATE INDEX rr_btree_plain ON rr ((id % 200)) WITH (deduplicate_items = off);
CREATE INDEX rr_btree_two ON rr (v16, m) WITH (fillfactor = 70);
CREATE INDEX rr_hash_unique ON rr USING hash (id);
CREATE INDEX rr_hash_duplicates ON rr USING hash ((id % 200));
CREATE INDEX rr_hash_text ON rr USING hash (m);
CREATE INDEX rr_gin_array ON rr USING gin ((ARRAY[id % 100, id % 1000, h16 % 10000, id]));
CREATE INDEX rr_gin_tsvector ON rr USING gin (to_tsvector('simple', m || ' w' || id % 500));
CREATE INDEX rr_gin_trgm ON rr USING gin ((m || repeat('x', id % 50)) gin_trgm_ops);
CREATE INDEX rr_gin_trgm_short ON rr USING gin (left(m, 8) gin_trgm_ops);
CREATE INDEX rr_gin_jsonb ON rr USING gin (rr_json(rr));
CREATE INDEX rr_gin_jsonb_path ON rr USING gin (rr_json(rr) jsonb_path_ops);
CREATE INDEX rr_gin_text ON rr USING gin ((ARRAY[m, left(m, 3)]));
CREATE INDEX rr_gist_point ON rr USING gist (point(h16, v16));
CREATE INDEX rr_gist_point_duplicates ON rr USING gist (point(h16 % 50, v16 % 50));
CREATE INDEX rr_gist_range_ordered ON rr USING gist (int4range(id, id + 10));
CREATE INDEX rr_gist_range ON rr USING gist (int4range(h16, h16 + 10));
CREATE INDEX rr_gist_range_long ON rr USING gist (int4range(h16, h16 + v16));
CREATE INDEX rr_gist_box_large ON rr USING gist (box(point(h16, v16), point(h16 + v16, h16 + v16 + 9)));
CREATE INDEX rr_gist_int_duplicates ON rr USING gist ((h % 200));
CREATE INDEX rr_gist_tsvector ON rr USING gist (to_tsvector('simple', 'w' || id % 777 || ' ' || left(m, 4)));
CREATE INDEX rr_gist_trgm ON rr USING gist (left(m, 12) gist_trgm_ops);
CREATE INDEX rr_spgist_quad ON rr USING spgist (point(h16, v16));
CREATE INDEX rr_spgist_kd ON rr USING spgist (point(h16, v16) kd_point_ops);
CREATE INDEX rr_spgist_text ON rr USING spgist (m);
CREATE INDEX rr_spgist_inet ON rr USING spgist (('10.0.0.0'::inet + h16));
CREATE INDEX rr_spgist_range ON rr USING spgist (int4range(id, id + 10));
CREATE INDEX rr_brin ON rr USING brin (m) WITH (pages_per_range = 1);
VACUUM ANALYZE rr;

CREATE TABLE rr_before (method name, index regclass, bloat text, size bigint, ratio float8, low float8, high float8);
CREATE FUNCTION rr_look(text) RETURNS void LANGUAGE sql AS $$
	INSERT INTO rr_before
		SELECT amname, c.oid, $1, pg_relation_size(c.oid), b.bloat_ratio, b.bloat_ratio_low, b.bloat_ratio_high
		  FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = c.relam, LATERAL index_bloat(c.oid) b
		 WHERE indrelid = 'rr'::regclass $$;
-- the same with a build on trial, where there is one
CREATE FUNCTION rr_try(text) RETURNS void LANGUAGE sql AS $$
	INSERT INTO rr_before
		SELECT amname, c.oid, $1, pg_relation_size(c.oid), b.bloat_ratio, b.bloat_ratio_low, b.bloat_ratio_high
		  FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = c.relam, LATERAL index_bloat(c.oid, exact => true) b
		 WHERE indrelid = 'rr'::regclass AND amname IN ('gist', 'spgist', 'brin') $$;
-- an autovacuum of something else may keep VACUUM from removing rows
CREATE FUNCTION rr_wait_for_others() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity
				   WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()) LOOP
		PERFORM pg_sleep(0.05);
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
-- a prediction is within a tenth of the truth, or a page, or an interval that holds it;
-- for which GiST indexes there is a figure depends on which ones the version sorts;
-- a build on trial gives one for each, of which a few differ from build to build
-- with assertions memory contexts have markers, so GIN's batches are smaller ones
CREATE FUNCTION rr_judge(text, OUT method name, OUT indexes bigint, OUT held bigint, OUT figures boolean, OUT wrong text)
RETURNS SETOF record LANGUAGE sql AS $$
	SELECT method, count(*), count(*) FILTER (WHERE ok),
		   CASE WHEN $1 ~ 'on trial' THEN count(ratio) = count(*) WHEN method = 'gist' THEN count(ratio) >= 2 WHEN method = 'spgist' THEN count(ratio) = 0 ELSE count(ratio) = count(*) END,
		   string_agg(format('%s: %s [%s, %s] %s', index, ratio, low, high, truth), ', ') FILTER (WHERE ok IS NOT TRUE)
	  FROM (SELECT *, CASE WHEN ratio IS NULL THEN truth BETWEEN low - page / size AND high + page / size
						   ELSE abs((1 - ratio) * size - now) <=
								greatest(CASE WHEN $1 ~ 'on trial' AND index::text ~ 'range_long|box_large|trgm' OR $1 = 'little memory' AND method = 'gin' AND current_setting('debug_assertions')::bool THEN 0.3 ELSE 0.1 END * now, page) + 1
						   END AS ok
			  FROM (SELECT b.*, now, page, greatest(1 - now / size, 0) AS truth
					  FROM rr_before b, LATERAL (SELECT pg_relation_size(index)::float8 AS now,
						   current_setting('block_size')::float8 AS page) n
					 WHERE bloat = $1) t) v
	 GROUP BY method ORDER BY method $$;

-- fresh: what is there is what a rebuild makes
SELECT rr_look('fresh');
SELECT * FROM rr_judge('fresh');
SELECT rr_try('fresh, on trial');
SELECT * FROM rr_judge('fresh, on trial');
-- where there is no room for it, an interval
SET client_min_messages = notice;
SET index_mover.min_free_space = 1;
SELECT bloat_ratio IS NULL AS unknown, bloat_ratio_low < bloat_ratio_high AS wide FROM index_bloat('rr_spgist_text', exact => true);
RESET index_mover.min_free_space;
SET client_min_messages = warning;
-- a build with buffers, little memory, nothing that writes to the database
CREATE INDEX rr_gist_buffered ON rr USING gist (int4range(h16, h16 + 10)) WITH (buffering = on);
BEGIN TRANSACTION READ ONLY;
SET LOCAL maintenance_work_mem = '1MB';
SELECT abs((1 - bloat_ratio) * pages * current_setting('block_size')::int / pg_relation_size('rr_gist_buffered') - 1) < 0.3 AS as_built
  FROM index_bloat('rr_gist_buffered', exact => true);
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
COMMIT;
DROP INDEX rr_gist_buffered;

-- four in ten gone, evenly; then much memory for the rebuild, and little
DELETE FROM rr WHERE id % 5 < 2;
SELECT rr_wait_for_others();
VACUUM ANALYZE rr;
SELECT rr_look('even');
SELECT rr_try('even, on trial');
REINDEX TABLE rr;
SELECT * FROM rr_judge('even');
SELECT * FROM rr_judge('even, on trial');
SET maintenance_work_mem = '2MB';
SELECT rr_look('little memory');
REINDEX TABLE rr;
SELECT * FROM rr_judge('little memory');

-- the first half gone, and of the rest three in four
SET maintenance_work_mem = '16MB';
DELETE FROM rr WHERE id < 7500 OR v16 % 4 > 0;
SELECT rr_wait_for_others();
VACUUM ANALYZE rr;
SELECT rr_look('uneven');
REINDEX TABLE rr;
SELECT * FROM rr_judge('uneven');

DROP TABLE rr_before;
DROP FUNCTION rr_look, rr_try, rr_judge;

-- points that a build packs: evenly spaced ones on a diagonal, every other one deleted
CREATE TABLE rr_line WITH (autovacuum_enabled = off) AS SELECT g AS id, point(g, g) AS p FROM generate_series(1, 20000) g;
CREATE INDEX rr_line_p ON rr_line USING gist (p);
DELETE FROM rr_line WHERE id % 2 = 0;
SELECT rr_wait_for_others();
VACUUM rr_line;
CREATE TABLE rr_line_before AS SELECT (1 - bloat_ratio) * pages AS predicted FROM index_bloat('rr_line_p', exact => true);
REINDEX INDEX rr_line_p;
SELECT abs(predicted * current_setting('block_size')::int / pg_relation_size('rr_line_p') - 1) < 0.1 AS as_rebuilt FROM rr_line_before;

-- BRIN's summaries of rows that are gone
CREATE TABLE rr_gone WITH (autovacuum_enabled = off) AS SELECT g AS id, md5(g::text) || repeat('x', 200) AS m FROM generate_series(1, 10000) g;
CREATE INDEX rr_gone_m ON rr_gone USING brin (m) WITH (pages_per_range = 1);
DELETE FROM rr_gone WHERE id < 5000;
SELECT rr_wait_for_others();
VACUUM rr_gone;
CREATE TABLE rr_gone_before AS SELECT round((1 - bloat_ratio) * pages) AS predicted, pages FROM index_bloat('rr_gone_m', exact => true);
REINDEX INDEX rr_gone_m;
SELECT predicted * current_setting('block_size')::int = pg_relation_size('rr_gone_m') AS as_rebuilt, predicted < 0.7 * pages AS smaller
  FROM rr_gone_before;

-- several columns, NULLs, INCLUDE, a predicate, low fillfactor
CREATE INDEX rr_gist_several ON rr USING gist (nullif(id % 5, 0), int4range(h16, h16 + 10)) INCLUDE (m) WITH (fillfactor = 60)
 WHERE v16 < 60000;
CREATE TABLE rr_several AS SELECT (1 - bloat_ratio) * pages AS predicted, pages FROM index_bloat('rr_gist_several', exact => true);
SELECT pages > 10 AS some_pages, abs(predicted / pages - 1) < 0.3 AS as_built FROM rr_several;
CREATE INDEX rr_spgist_several ON rr USING spgist (nullif(left(m, 20), '')) INCLUDE (id, v16) WITH (fillfactor = 60) WHERE v16 < 60000;
SELECT pages > 10 AS some_pages, bloat_ratio <= 0.1 AS as_built FROM index_bloat('rr_spgist_several', exact => true);

-- what the index calls runs as the owner of the table, restricted as in a build, for those who may REINDEX
CREATE ROLE regress_rr_owner;
CREATE ROLE regress_rr_reader IN ROLE pg_stat_scan_tables, regress_rr_owner;
CREATE ROLE regress_rr_stranger IN ROLE pg_stat_scan_tables;
CREATE FUNCTION rr_escape() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	CREATE TEMP TABLE rr_escaped ();
	RAISE 'not restricted';
EXCEPTION WHEN insufficient_privilege THEN
	NULL;
END $$;
CREATE FUNCTION rr_range(int) RETURNS int4range IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	IF $1 = 77 THEN
		PERFORM set_config('application_name', 'left behind', false);
		PERFORM public.rr_escape();
	END IF;
	IF current_user <> 'regress_rr_owner' THEN
		RAISE 'called as %', current_user;
	END IF;
	RETURN int4range($1, $1 + 10);
END $$;
CREATE TEMP TABLE rr_mine ();	-- shows how the files of this session begin
CREATE TABLE rr_owned WITH (autovacuum_enabled = off) AS SELECT hashint4(g) & 65535 AS k FROM generate_series(1, 2000) g;
INSERT INTO rr_owned VALUES (77);
ALTER TABLE rr_owned OWNER TO regress_rr_owner;
CREATE INDEX rr_owned_k ON rr_owned USING gist (rr_range(k));
SET application_name = 'before';
SET ROLE regress_rr_reader;
SELECT bloat_ratio IS NOT NULL AS tried, current_user FROM index_bloat('rr_owned_k', exact => true);
RESET ROLE;
SET client_min_messages = notice;
SET ROLE regress_rr_stranger;
SELECT bloat_ratio IS NOT NULL AS tried FROM index_bloat('rr_owned_k', exact => true);
RESET ROLE;
SET client_min_messages = warning;
SHOW application_name;
RESET application_name;
-- a sample calls nothing, and its errors are the caller's
CREATE OR REPLACE FUNCTION rr_range(int) RETURNS int4range IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RAISE 'called'; END $$;
SELECT pages > 0 AS sampled FROM index_bloat('rr_owned_k');
\set VERBOSITY terse
SELECT index_bloat('rr_owned_k', exact => true);
SELECT current_user = session_user AS myself;
-- no file is left, neither where it went well nor after the error
SELECT count(*) AS files
  FROM pg_relation_filepath('rr_mine') mine, LATERAL pg_ls_dir(regexp_replace(mine, '/[^/]*$', '')) file
 WHERE file ~ ('^' || substring(mine, 't[0-9]+_'));

DROP TABLE rr_mine, rr_owned, rr_line, rr_line_before, rr_gone, rr_gone_before, rr_several;
DROP FUNCTION rr_range, rr_escape, rr_wait_for_others;
DROP ROLE regress_rr_owner, regress_rr_reader, regress_rr_stranger;
DROP TABLE rr CASCADE;
