-- gin_pending_list(): the list, its limit, and what each search pays for it
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS index_mover CASCADE;
CREATE EXTENSION IF NOT EXISTS pgstattuple;

-- blocks that the index scan of a search reads
CREATE FUNCTION rp_pages(word text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE plan json;
BEGIN
	SET LOCAL enable_seqscan = off;
	EXECUTE format('EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) SELECT FROM rp WHERE t @@ %L::tsquery', word)
		INTO plan;
	plan := plan -> 0 -> 'Plan' -> 'Plans' -> 0;
	RETURN (plan ->> 'Shared Hit Blocks')::bigint + (plan ->> 'Shared Read Blocks')::bigint;
END $$;

CREATE TABLE rp (t tsvector) WITH (autovacuum_enabled = off);
INSERT INTO rp SELECT to_tsvector('simple', md5(g::text)) FROM generate_series(1, 50000) g;
CREATE INDEX rp_gin ON rp USING gin (t) WITH (fastupdate = on, gin_pending_list_limit = 4096);
VACUUM rp;
SELECT * FROM gin_pending_list('rp_gin');
SELECT rp_pages(md5('1')) AS base \gset

-- rows that wait in the list: base + list
INSERT INTO rp SELECT to_tsvector('simple', md5(g::text)) FROM generate_series(50001, 65000) g;
SELECT p.pending_pages > 50 AS pending, p.pending_pages = s.pending_pages AS same_pages,
	   p.pending_tuples = s.pending_tuples AND p.pending_tuples = 15000 AS same_tuples,
	   p.pending_bytes = p.pending_pages * current_setting('block_size')::int AS bytes,
	   p.pending_limit_bytes, p.fastupdate
  FROM gin_pending_list('rp_gin') p, pgstatginindex('rp_gin') s;
SELECT rp_pages(md5('1')) = :base + extra_pages_per_search AS adds_up,
	   rp_pages(md5('60000')) >= extra_pages_per_search AS for_new_rows_too
  FROM gin_pending_list('rp_gin');

-- vacuum moves them into the tree
VACUUM rp;
SELECT * FROM gin_pending_list('rp_gin');
SELECT rp_pages(md5('1')) = :base AS as_before;

-- the limit is the index's own, or the setting
ALTER INDEX rp_gin RESET (gin_pending_list_limit);
SET gin_pending_list_limit = '1MB';
SELECT pending_limit_bytes FROM gin_pending_list('rp_gin');
ALTER INDEX rp_gin SET (fastupdate = off);
SELECT fastupdate FROM gin_pending_list('rp_gin');

-- errors
CREATE INDEX rp_btree ON rp (t);
CREATE TABLE rp_part (t tsvector) PARTITION BY LIST (t);
CREATE INDEX rp_part_gin ON rp_part USING gin (t);
SELECT * FROM gin_pending_list('rp_btree');
SELECT * FROM gin_pending_list('rp');
SELECT * FROM gin_pending_list('rp_part_gin');
\set VERBOSITY sqlstate
SELECT * FROM gin_pending_list(NULL);
SELECT * FROM gin_pending_list(4294967295);
CREATE ROLE regress_report_nobody;
SET ROLE regress_report_nobody;
SELECT * FROM gin_pending_list('rp_gin');
RESET ROLE;

DROP TABLE rp, rp_part;
DROP FUNCTION rp_pages;
DROP ROLE regress_report_nobody;
