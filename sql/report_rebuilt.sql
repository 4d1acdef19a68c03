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
VACUUM ANALYZE rr;

CREATE TABLE rr_before (method name, index regclass, bloat text, size bigint, ratio float8, low float8, high float8);
CREATE FUNCTION rr_look(text) RETURNS void LANGUAGE sql AS $$
	INSERT INTO rr_before
		SELECT amname, c.oid, $1, pg_relation_size(c.oid), b.bloat_ratio, b.bloat_ratio_low, b.bloat_ratio_high
		  FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = c.relam, LATERAL index_bloat(c.oid) b
		 WHERE indrelid = 'rr'::regclass $$;
-- an autovacuum of something else may keep VACUUM from removing rows
CREATE FUNCTION rr_wait_for_others() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity
				   WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()) LOOP
		PERFORM pg_sleep(0.05);
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
-- a prediction of btree is within a tenth of the truth, or a page; of the others eight of ten are within 0.10, and
-- the intervals are of use
CREATE FUNCTION rr_judge(text, OUT method name, OUT indexes bigint, OUT near boolean, OUT useful boolean, OUT wrong text)
RETURNS SETOF record LANGUAGE sql AS $$
	SELECT method, count(*), count(*) FILTER (WHERE ok) >= CASE method WHEN 'btree' THEN 1 ELSE 0.8 END * count(*), bool_and(high - low < 0.5),
		   CASE WHEN count(*) FILTER (WHERE ok) < CASE method WHEN 'btree' THEN 1 ELSE 0.8 END * count(*)
				THEN string_agg(format('%s: %s [%s, %s] %s', index, ratio, low, high, truth), ', ') FILTER (WHERE ok IS NOT TRUE) END
	  FROM (SELECT *, CASE method WHEN 'btree' THEN abs((1 - ratio) * size - now) <= greatest(0.1 * now, page) + 1
						   ELSE abs(ratio - truth) <= 0.10 END AS ok
			  FROM (SELECT b.*, now, page, greatest(1 - now / size, 0) AS truth
					  FROM rr_before b, LATERAL (SELECT pg_relation_size(index)::float8 AS now,
						   current_setting('block_size')::float8 AS page) n
					 WHERE bloat = $1) t) v
	 GROUP BY method ORDER BY method $$;

-- fresh: what is there is what a rebuild makes
SELECT rr_look('fresh');
SELECT * FROM rr_judge('fresh');

-- four in ten gone, evenly; then much memory for the rebuild, and little
DELETE FROM rr WHERE id % 5 < 2;
SELECT rr_wait_for_others();
VACUUM ANALYZE rr;
SELECT rr_look('even');
REINDEX TABLE rr;
SELECT * FROM rr_judge('even');
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

-- a hash of few values: most buckets stay empty, and a few have chains
CREATE TABLE rr_line WITH (autovacuum_enabled = off) AS SELECT g AS id FROM generate_series(1, 20000) g;
CREATE INDEX rr_line_h ON rr_line USING hash ((id % 5));
DELETE FROM rr_line WHERE id % 2 = 0 OR id < 10000;
SELECT rr_wait_for_others();
VACUUM rr_line;
CREATE TABLE rr_line_before AS
	SELECT i, b.* FROM unnest('{rr_line_h}'::regclass[]) i, LATERAL index_bloat(i, exact => true) b;
REINDEX TABLE rr_line;
SELECT i, is_exact, bloat_bytes > 0 AS bytes, pages = sampled_pages AS every_page,
	   abs(bloat_ratio - 1 + pg_relation_size(i) / (pages * current_setting('block_size')::float8)) <= 0.10 AS near
  FROM rr_line_before;

DROP TABLE rr_before, rr_line, rr_line_before;
DROP FUNCTION rr_look, rr_judge, rr_wait_for_others;
DROP TABLE rr CASCADE;
