/* index_mover--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION index_mover" to load this file. \quit

---------------------------------------------------------------------------
-- Tables of the extension.  Nobody has privileges on them: they are written
-- in C only, so that no row can be forged.  They are not dumped: a ledger row
-- names files of one cluster, and a restored job must not start anything.
---------------------------------------------------------------------------

CREATE SEQUENCE index_mover_job_seq;
COMMENT ON SEQUENCE index_mover_job_seq IS 'numbers of index_mover''s jobs';

CREATE SEQUENCE index_mover_ledger_seq;
COMMENT ON SEQUENCE index_mover_ledger_seq IS 'numbers of the rows of index_mover_ledger';

CREATE TABLE index_mover_ledger (
	id bigint PRIMARY KEY,
	system_identifier text NOT NULL,
	database oid NOT NULL,
	kind "char" NOT NULL,			-- n new file, o old file, i index entry
	tablespace oid NOT NULL,
	relfilenumber oid NOT NULL,
	relation oid NOT NULL,
	index oid NOT NULL,
	new_index oid NOT NULL,
	job bigint NOT NULL,
	pid int NOT NULL,
	made_at timestamptz NOT NULL
);
COMMENT ON TABLE index_mover_ledger IS 'files and index entries that a move has made and not yet handed over or removed';

CREATE TABLE index_mover_move_log (
	job bigint NOT NULL,
	item int NOT NULL,
	index oid NOT NULL,
	index_name text NOT NULL,
	relation oid NOT NULL,
	relation_name text NOT NULL,
	from_tablespace name,
	to_tablespace name,
	from_tablespace_oid oid NOT NULL,
	to_tablespace_oid oid NOT NULL,
	method text NOT NULL,
	status text NOT NULL,
	size_before bigint,
	size_after bigint,
	submitted_at timestamptz NOT NULL,
	started_at timestamptz,
	finished_at timestamptz,
	lock_time interval,
	lock_attempts bigint,
	blocks_copied bigint,
	blocks_recopied bigint,
	wal_bytes bigint,
	sqlstate text,
	message text,
	role oid NOT NULL,
	PRIMARY KEY (job, item)
);
COMMENT ON TABLE index_mover_move_log IS 'every move of every job; read it through the view index_mover_history';

REVOKE ALL ON SEQUENCE index_mover_job_seq, index_mover_ledger_seq FROM PUBLIC;
REVOKE ALL ON TABLE index_mover_ledger, index_mover_move_log FROM PUBLIC;

---------------------------------------------------------------------------
-- Moving
---------------------------------------------------------------------------

CREATE TYPE index_move AS (
	index regclass,
	index_name text,
	relation regclass,
	from_tablespace name,
	to_tablespace name,
	method text,
	status text,
	size_before bigint,
	size_after bigint,
	bytes_to_read bigint,
	bytes_to_write bigint,
	wal_bytes bigint,
	fits boolean,
	estimated interval,
	elapsed interval,
	lock_time interval,
	job bigint,
	sqlstate text,
	detail text
);
COMMENT ON TYPE index_move IS 'one index of a move: the plan, or what became of it';

CREATE FUNCTION move_indexes(
	relation regclass, tablespace name, method text DEFAULT 'auto',
	dry_run boolean DEFAULT false, wait boolean DEFAULT true, settings jsonb DEFAULT NULL)
RETURNS SETOF index_move
AS 'MODULE_PATHNAME', 'index_mover_move_indexes'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION move_indexes(regclass, name, text, boolean, boolean, jsonb)
	IS 'move every index of a table, or one index, to a tablespace while reads and writes go on';
REVOKE ALL ON FUNCTION move_indexes(regclass, name, text, boolean, boolean, jsonb) FROM PUBLIC;

CREATE FUNCTION move_schema_indexes(
	schema regnamespace, tablespace name, method text DEFAULT 'auto',
	dry_run boolean DEFAULT false, wait boolean DEFAULT true, settings jsonb DEFAULT NULL)
RETURNS SETOF index_move
AS 'MODULE_PATHNAME', 'index_mover_move_schema_indexes'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION move_schema_indexes(regnamespace, name, text, boolean, boolean, jsonb)
	IS 'move every index of a schema''s tables to a tablespace while reads and writes go on';
REVOKE ALL ON FUNCTION move_schema_indexes(regnamespace, name, text, boolean, boolean, jsonb) FROM PUBLIC;

CREATE FUNCTION move_tablespace_indexes(
	from_tablespace name, to_tablespace name, method text DEFAULT 'auto',
	dry_run boolean DEFAULT false, wait boolean DEFAULT true, settings jsonb DEFAULT NULL)
RETURNS SETOF index_move
AS 'MODULE_PATHNAME', 'index_mover_move_tablespace_indexes'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION move_tablespace_indexes(name, name, text, boolean, boolean, jsonb)
	IS 'move every index of this database that is in one tablespace to another while reads and writes go on';
REVOKE ALL ON FUNCTION move_tablespace_indexes(name, name, text, boolean, boolean, jsonb) FROM PUBLIC;

CREATE PROCEDURE wait_for_move(job bigint)
AS 'MODULE_PATHNAME', 'index_mover_wait_for_move'
LANGUAGE C;
COMMENT ON PROCEDURE wait_for_move(bigint)
	IS 'wait for the end of a job without holding a snapshot';
REVOKE ALL ON PROCEDURE wait_for_move(bigint) FROM PUBLIC;

CREATE FUNCTION undo_move(job bigint, wait boolean DEFAULT true)
RETURNS SETOF index_move
AS 'MODULE_PATHNAME', 'index_mover_undo_move'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION undo_move(bigint, boolean)
	IS 'move every index of a job back to where it was';
REVOKE ALL ON FUNCTION undo_move(bigint, boolean) FROM PUBLIC;

---------------------------------------------------------------------------
-- Watching and steering
---------------------------------------------------------------------------

CREATE FUNCTION index_mover_job_is_alive(job bigint)
RETURNS boolean
AS 'MODULE_PATHNAME', 'index_mover_job_is_alive'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;
COMMENT ON FUNCTION index_mover_job_is_alive(bigint)
	IS 'whether a job of this database is queued or has a live worker';

CREATE FUNCTION index_mover_running(
	OUT pid int, OUT datid oid, OUT datname name, OUT relid oid, OUT index_relid oid,
	OUT job bigint, OUT index_name text, OUT relation text, OUT method text, OUT phase text,
	OUT blocks_total bigint, OUT blocks_done bigint, OUT blocks_changed bigint,
	OUT bytes_per_second bigint, OUT eta interval, OUT lock_attempts bigint,
	OUT blocked_by int[], OUT wal_lag_bytes bigint, OUT started_at timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'index_mover_running'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;
COMMENT ON FUNCTION index_mover_running()
	IS 'the running moves of this database; use the view index_mover_progress';

CREATE VIEW index_mover_progress AS
	SELECT * FROM index_mover_running();
COMMENT ON VIEW index_mover_progress IS 'the running moves of this database';
GRANT SELECT ON index_mover_progress TO PUBLIC;

CREATE VIEW index_mover_history WITH (security_barrier) AS
	SELECT l.job,
		   l.index_name,
		   l.relation::regclass AS relation,
		   l.from_tablespace,
		   l.to_tablespace,
		   l.method,
		   CASE WHEN l.status IN ('queued', 'running', 'paused') AND NOT a.alive
				THEN 'interrupted' ELSE l.status END AS status,
		   l.size_before,
		   l.size_after,
		   l.started_at,
		   l.finished_at,
		   l.finished_at - l.started_at AS elapsed,
		   l.lock_time,
		   l.lock_attempts,
		   l.blocks_copied,
		   l.blocks_recopied,
		   l.wal_bytes,
		   l.sqlstate,
		   l.message,
		   pg_catalog.pg_get_userbyid(l.role) AS role,
		   l.relation_name,
		   l.submitted_at
	  FROM index_mover_move_log l
	 CROSS JOIN LATERAL (SELECT index_mover_job_is_alive(l.job) OFFSET 0) AS a(alive)
	 WHERE pg_catalog.pg_has_role(l.role, 'USAGE')
		OR pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')
		OR EXISTS (SELECT FROM pg_catalog.pg_class c
					WHERE c.oid = l.relation
					  AND pg_catalog.pg_has_role(c.relowner, 'USAGE'));
COMMENT ON VIEW index_mover_history IS 'every move of every job of this database, also failed, cancelled and interrupted ones';
GRANT SELECT ON index_mover_history TO PUBLIC;

CREATE FUNCTION cancel_move(job bigint)
RETURNS boolean
AS 'MODULE_PATHNAME', 'index_mover_cancel_move'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION cancel_move(bigint) IS 'cancel a job; what it has moved stays moved';
REVOKE ALL ON FUNCTION cancel_move(bigint) FROM PUBLIC;

CREATE FUNCTION pause_move(job bigint)
RETURNS boolean
AS 'MODULE_PATHNAME', 'index_mover_pause_move'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION pause_move(bigint) IS 'pause a job: a copy at once, a rebuild before its next index';
REVOKE ALL ON FUNCTION pause_move(bigint) FROM PUBLIC;

CREATE FUNCTION resume_move(job bigint)
RETURNS boolean
AS 'MODULE_PATHNAME', 'index_mover_resume_move'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION resume_move(bigint) IS 'let a paused job go on, or do what an interrupted one has left';
REVOKE ALL ON FUNCTION resume_move(bigint) FROM PUBLIC;

CREATE FUNCTION alter_move(job bigint, setting text, value text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'index_mover_alter_move'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION alter_move(bigint, text, text) IS 'change a setting of a running or paused job';
REVOKE ALL ON FUNCTION alter_move(bigint, text, text) FROM PUBLIC;

CREATE FUNCTION index_mover_cleanup(
	dry_run boolean DEFAULT false,
	OUT kind text, OUT object text, OUT tablespace name, OUT size bigint, OUT action text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'index_mover_cleanup'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION index_mover_cleanup(boolean)
	IS 'remove what crashed or killed moves have left behind';
REVOKE ALL ON FUNCTION index_mover_cleanup(boolean) FROM PUBLIC;

---------------------------------------------------------------------------
-- Deciding what to move
---------------------------------------------------------------------------

-- The functions of this section that are plain SQL have SQL-standard bodies:
-- every name in them is resolved here, once, with nothing but pg_catalog in
-- the path, so that neither the caller's search_path nor an object that
-- somebody has put into this schema can redirect them.
SELECT pg_catalog.set_config('index_mover_install.search_path',
							 pg_catalog.current_setting('search_path'), true);

-- pgstattuple may live in any schema (and @extschema:name@ came with 16).
SELECT pg_catalog.set_config('search_path',
		   'pg_catalog, ' || pg_catalog.quote_ident(n.nspname) || ', pg_temp', true)
  FROM pg_catalog.pg_extension e
  JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
 WHERE e.extname = 'pgstattuple';

CREATE FUNCTION @extschema@.index_mover_pgstatindex(index regclass)
RETURNS float8[]
LANGUAGE sql STABLE STRICT PARALLEL SAFE
BEGIN ATOMIC
	SELECT ARRAY[s.leaf_pages::float8, s.internal_pages::float8, s.avg_leaf_density]
	  FROM pgstatindex(index) s;
END;
COMMENT ON FUNCTION @extschema@.index_mover_pgstatindex(regclass)
	IS 'leaf pages, internal pages and leaf density of a btree index; used by index_bloat';
REVOKE ALL ON FUNCTION @extschema@.index_mover_pgstatindex(regclass) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.index_mover_pgstatindex(regclass) TO pg_stat_scan_tables;

SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

CREATE FUNCTION @extschema@.index_mover_measure_bloat(
	index regclass, sample_pages int, exact boolean, quiet boolean, exact_pages float8[],
	OUT pages bigint, OUT sampled_pages bigint, OUT leaf_density float8, OUT fillfactor float8,
	OUT bloat_ratio float8, OUT bloat_ratio_low float8, OUT bloat_ratio_high float8,
	OUT bloat_bytes bigint, OUT exactly boolean)
AS 'MODULE_PATHNAME', 'index_mover_measure_bloat'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.index_mover_measure_bloat(regclass, int, boolean, boolean, float8[])
	IS 'measures the bloat of an index; use index_bloat';
REVOKE ALL ON FUNCTION @extschema@.index_mover_measure_bloat(regclass, int, boolean, boolean, float8[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.index_mover_measure_bloat(regclass, int, boolean, boolean, float8[]) TO pg_stat_scan_tables;

CREATE FUNCTION @extschema@.index_bloat(
	index regclass, sample_pages int DEFAULT 400,
	OUT pages bigint, OUT sampled_pages bigint, OUT leaf_density float8, OUT fillfactor float8,
	OUT bloat_ratio float8, OUT bloat_ratio_low float8, OUT bloat_ratio_high float8,
	OUT bloat_bytes bigint, INOUT exact boolean DEFAULT false)
LANGUAGE sql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
BEGIN ATOMIC
	SELECT b.*
	  FROM @extschema@.index_mover_measure_bloat(
			   $1, $2, $3, false,
			   -- where a rebuild would also merge duplicates, which
			   -- pgstatindex doesn't see, every page is read instead
			   CASE WHEN $3
					 AND EXISTS (SELECT FROM pg_class c
								   JOIN pg_index i ON i.indexrelid = c.oid
								  WHERE c.oid = $1::oid
									AND c.relkind = 'i'::"char"
									AND c.relam = 403::oid
									AND (i.indisunique OR
										 'deduplicate_items=off'::text = ANY (c.reloptions)))
					THEN @extschema@.index_mover_pgstatindex($1) END) b;
END;
COMMENT ON FUNCTION @extschema@.index_bloat(regclass, int, boolean)
	IS 'share of an index that a rebuild would give back, with a 95 % interval, from a random sample of its pages';
REVOKE ALL ON FUNCTION @extschema@.index_bloat(regclass, int, boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.index_bloat(regclass, int, boolean) TO pg_stat_scan_tables;

CREATE FUNCTION @extschema@.gin_pending_list(
	index regclass,
	OUT pending_pages bigint, OUT pending_tuples bigint, OUT pending_bytes bigint,
	OUT pending_limit_bytes bigint, OUT fastupdate boolean, OUT extra_pages_per_search bigint)
AS 'MODULE_PATHNAME', 'index_mover_gin_pending_list'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL SAFE;
COMMENT ON FUNCTION @extschema@.gin_pending_list(regclass)
	IS 'length of a GIN index''s pending list and what it costs each search';
REVOKE ALL ON FUNCTION @extschema@.gin_pending_list(regclass) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.gin_pending_list(regclass) TO pg_stat_scan_tables;

CREATE FUNCTION @extschema@.index_mover_try_gin_pending_list(
	index regclass, quiet boolean,
	OUT pending_pages bigint, OUT pending_tuples bigint, OUT pending_bytes bigint,
	OUT pending_limit_bytes bigint, OUT fastupdate boolean, OUT extra_pages_per_search bigint)
AS 'MODULE_PATHNAME', 'index_mover_gin_pending_list'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.index_mover_try_gin_pending_list(regclass, boolean)
	IS 'gin_pending_list for reports: NULLs where the index cannot be read now';
REVOKE ALL ON FUNCTION @extschema@.index_mover_try_gin_pending_list(regclass, boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.index_mover_try_gin_pending_list(regclass, boolean) TO pg_stat_scan_tables;

CREATE FUNCTION @extschema@.index_report(
	OUT index regclass, INOUT relation regclass DEFAULT NULL,
	OUT access_method name, OUT tablespace name, OUT size bigint,
	OUT idx_scan bigint, OUT blks_read bigint, OUT blks_hit bigint, OUT hit_ratio float8,
	OUT relation_blks_read bigint,
	OUT bloat_ratio float8, OUT bloat_bytes bigint, OUT bloat_source text,
	OUT pending_pages bigint, OUT pending_tuples bigint, OUT pending_bytes bigint,
	OUT writes bigint, OUT stats_since timestamptz, OUT movable text[], OUT remark text,
	sample boolean DEFAULT NULL)
RETURNS SETOF record
LANGUAGE sql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE ROWS 1000
BEGIN ATOMIC
	WITH wanted AS MATERIALIZED (
		-- the relation itself and its partitions; none = every user index
		SELECT $1::oid AS relid WHERE $1 IS NOT NULL
		UNION
		SELECT p.relid::oid FROM pg_partition_tree($1) p
	), ix AS MATERIALIZED (
		SELECT c.oid, c.relname, c.relam, c.relpersistence, i.indrelid, t.relkind AS table_kind,
			   i.indisvalid, i.indisunique, i.indisprimary, i.indisexclusion, i.indisreplident,
			   i.indkey::text AS keys, i.indclass::text AS classes,
			   i.indcollation::text AS collations, i.indoption::text AS options,
			   CASE WHEN i.indexprs IS NOT NULL THEN pg_get_expr(i.indexprs, i.indrelid) END AS expressions,
			   CASE WHEN i.indpred IS NOT NULL THEN pg_get_expr(i.indpred, i.indrelid) END AS predicate,
			   CASE c.reltablespace WHEN 0::oid THEN d.dattablespace ELSE c.reltablespace END AS tablespace_oid,
			   t.relnamespace = 99::oid AS is_toast,
			   c.relnamespace = 11::oid OR c.oid < 16384::oid AS is_catalog
		  FROM pg_index i
		  JOIN pg_class c ON c.oid = i.indexrelid
		  JOIN pg_class t ON t.oid = i.indrelid
		  JOIN pg_namespace n ON n.oid = c.relnamespace
		  JOIN pg_database d ON d.datname = current_database()
		 WHERE c.relkind = 'i'::"char"
		   AND CASE WHEN $1 IS NULL
					THEN c.oid >= 16384::oid
						 AND n.nspname !~ '^pg_toast'::text
						 AND n.nspname <> 'information_schema'::name
						 AND (c.relpersistence <> 't'::"char" OR n.oid = pg_my_temp_schema())
					ELSE i.indexrelid IN (SELECT w.relid FROM wanted w)
						 OR i.indrelid IN (SELECT w.relid FROM wanted w) END
	), grouped AS (
		SELECT x.*,
			   first_value(x.oid) OVER twins AS twin,
			   -- the first of several equal ones is the one to keep
			   row_number() OVER twins AS twin_number,
			   count(*) OVER (PARTITION BY x.indrelid) AS sisters,
			   count(*) OVER (PARTITION BY x.indrelid, x.tablespace_oid) AS sisters_here
		  FROM ix x
		WINDOW twins AS (PARTITION BY x.indrelid, x.relam, x.keys, x.classes, x.collations,
									  x.options, x.expressions, x.predicate, x.indisexclusion
						 ORDER BY x.indisvalid DESC, x.indisprimary DESC, x.indisreplident DESC,
								  x.indisunique DESC, x.oid)
	), stats AS MATERIALIZED (
		SELECT pg_stat_get_db_stat_reset_time(d.oid) AS reset_time
		  FROM pg_database d WHERE d.datname = current_database()
	)
	SELECT g.oid::regclass,
		   g.indrelid::regclass,
		   am.amname,
		   ts.spcname,
		   pg_relation_size(g.oid::regclass),
		   pg_stat_get_numscans(g.oid),
		   s.fetched - s.hit,
		   s.hit,
		   s.hit / NULLIF(s.fetched, 0::bigint)::float8,
		   pg_stat_get_blocks_fetched(g.indrelid) - pg_stat_get_blocks_hit(g.indrelid),
		   b.bloat_ratio,
		   b.bloat_bytes,
		   CASE WHEN b.bloat_ratio IS NULL THEN 'not measured'::text
				WHEN b.exactly THEN 'every page'::text
				ELSE 'sample of '::text || b.sampled_pages::text || ' pages'::text END,
		   p.pending_pages,
		   p.pending_tuples,
		   p.pending_bytes,
		   pg_stat_get_tuples_inserted(g.indrelid) + pg_stat_get_tuples_updated(g.indrelid)
			   - pg_stat_get_tuples_hot_updated(g.indrelid),
		   st.reset_time,
		   m.movable,
		   NULLIF(concat_ws('; '::text,
			   CASE WHEN NOT g.indisvalid THEN
					CASE WHEN g.relname ~ '_cc(new|old)\d*$'::text
						 THEN 'invalid, left by an interrupted concurrent build'::text
						 ELSE 'invalid'::text END END,
			   CASE WHEN g.twin_number > 1::bigint AND NOT g.indisprimary
					THEN 'duplicate of '::text || g.twin::regclass::text END,
			   CASE WHEN g.indisvalid AND NOT g.indisunique AND NOT g.indisexclusion
						 AND pg_stat_get_numscans(g.oid) = 0::bigint
					THEN 'unused'::text || coalesce(' since '::text || st.reset_time::date::text, ''::text) END,
			   CASE WHEN st.reset_time > now() - '1 day'::interval
					THEN 'statistics were reset less than a day ago'::text END,
			   CASE WHEN g.sisters > g.sisters_here
					THEN 'sister indexes are in another tablespace'::text END,
			   CASE WHEN p.pending_bytes > p.pending_limit_bytes
					THEN 'pending list is over its limit'::text END), ''::text)
	  FROM grouped g
	  JOIN pg_am am ON am.oid = g.relam
	  JOIN pg_tablespace ts ON ts.oid = g.tablespace_oid
	 CROSS JOIN stats st
	 CROSS JOIN LATERAL (SELECT pg_stat_get_blocks_fetched(g.oid) AS fetched,
								pg_stat_get_blocks_hit(g.oid) AS hit OFFSET 0) s
	  LEFT JOIN LATERAL @extschema@.index_mover_measure_bloat(
				   -- NULL is answered with NULLs; a condition in ON would come too late
				   CASE WHEN coalesce($2, $1 IS NOT NULL) THEN g.oid::regclass END,
				   400, false, true, NULL::float8[]) b ON true
	  LEFT JOIN LATERAL @extschema@.index_mover_try_gin_pending_list(
				   CASE WHEN g.relam = 2742::oid THEN g.oid::regclass END, true) p ON true
	 CROSS JOIN LATERAL (
		SELECT array_remove(ARRAY[
				   CASE WHEN g.relpersistence = 'p'::"char" AND g.indisvalid AND NOT g.is_catalog
							 AND (am.amname = ANY (ARRAY['btree', 'hash', 'gin', 'gist', 'spgist', 'brin', 'bloom']::name[])
								  OR am.amname::text = ANY (regexp_split_to_array(
										 coalesce(current_setting('index_mover.copy_access_methods'::text, true), ''::text),
										 '\s*,\s*'::text)))
						THEN 'copy'::text END,
				   CASE WHEN g.relpersistence IN ('p'::"char", 'u'::"char") AND NOT g.indisexclusion
							 AND NOT g.is_toast AND NOT g.is_catalog
						THEN 'rebuild'::text END], NULL::text) AS movable) m
	 ORDER BY s.fetched - s.hit DESC NULLS LAST, g.oid;
END;
COMMENT ON FUNCTION @extschema@.index_report(regclass, boolean)
	IS 'size, use, bloat and pending list of every user index, or of those of one relation';
REVOKE ALL ON FUNCTION @extschema@.index_report(regclass, boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.index_report(regclass, boolean) TO pg_monitor;


-- back to the path of the other sections
SELECT pg_catalog.set_config('search_path',
							 pg_catalog.current_setting('index_mover_install.search_path'), true);
