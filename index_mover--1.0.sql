/* index_mover--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION index_mover" to load this file. \quit

-- Every name is resolved here, once, with nothing but pg_catalog in the path, and bodies
-- are SQL-standard ones: so neither a caller's path nor what another role has put into
-- the extension's schema before can redirect one.
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

-- What no user calls is in a schema of its own.  The tables are written in C only: no
-- privileges are granted, so that hardly anybody could forge a row.  They are not dumped:
-- a ledger row names files of one cluster, and a restored job must not start anything.

CREATE SCHEMA index_mover;
COMMENT ON SCHEMA index_mover IS 'tables of the extension index_mover, and objects that no user calls';

-- For loops in this script, which drops it again: PL/pgSQL need not be there.
CREATE FUNCTION index_mover.execute(command text) RETURNS void
AS 'MODULE_PATHNAME', 'index_mover_execute' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

-- Unlogged, so that a call that waits for hours has no transaction ID: who creates a replication slot waits
-- for those.  What a crash resets, history_next_job() makes up for.
CREATE UNLOGGED SEQUENCE index_mover.job_seq;
CREATE SEQUENCE index_mover.ledger_seq;

-- What moves have made and not yet handed over or removed: src/README, "Protocol of the ledger".
CREATE TABLE index_mover.ledger (
	id bigint PRIMARY KEY,
	system_identifier text NOT NULL,
	database oid NOT NULL,
	kind "char" NOT NULL,			-- n new file, o old file, i index entry, d duplicate index
	tablespace oid NOT NULL,
	relfilenumber oid NOT NULL,
	table_oid oid NOT NULL, relation oid NOT NULL, new_index oid NOT NULL,
	job bigint NOT NULL, pid int NOT NULL,
	made_at timestamptz NOT NULL,
	new_name name NOT NULL DEFAULT '',
	-- of a new file from which a copy can go on: what was copied, and how far
	from_tablespace oid NOT NULL DEFAULT 0,
	from_relfilenumber oid NOT NULL DEFAULT 0,
	copied_blocks bigint NOT NULL DEFAULT 0,	-- on disk; 0: it cannot go on
	changes_from pg_lsn NOT NULL DEFAULT '0/0',	-- what has changed since is copied again
	timeline bigint NOT NULL DEFAULT 0,
	keep_until timestamptz NOT NULL DEFAULT '-infinity'
);
-- for index_mover_history: a snapshot may keep thousands of dead rows
CREATE INDEX ledger_job ON index_mover.ledger (job, relation);

-- Every job; read through the view index_mover_jobs.
CREATE TABLE index_mover.job_log (
	job bigint PRIMARY KEY,
	role oid NOT NULL,
	submitted_at timestamptz NOT NULL,
	settings jsonb NOT NULL,		-- those that were not the default
	undo_of bigint NOT NULL,		-- the job that it takes back; 0: none
	policy name,					-- the tier policy that it carries out
	rehearse boolean NOT NULL,
	freeze_first boolean NOT NULL,
	-- what its moves have come to; NULL: see move_log
	status text, moved int, total int, size bigint, size_done bigint, longest_lock interval,
	tablespace name, started_at timestamptz, finished_at timestamptz,
	acknowledged_at timestamptz,	-- by cancel_move(), after its end
	rest_of bigint					-- the first of the jobs that it goes on with, by resume_move()
);
CREATE INDEX job_log_status ON index_mover.job_log (status, finished_at);
CREATE INDEX job_log_policy ON index_mover.job_log (policy, job);
CREATE INDEX job_log_role ON index_mover.job_log (role, job);

-- Every move of every job; read through the view index_mover_history.
CREATE TABLE index_mover.move_log (
	job bigint NOT NULL,
	item int NOT NULL,
	relation oid NOT NULL,			-- the table or index that moves
	old_relation oid NOT NULL,		-- its OID before; another one if it was rebuilt
	relation_name text NOT NULL,
	kind text NOT NULL,
	table_oid oid NOT NULL,
	table_name text NOT NULL,
	from_tablespace name, to_tablespace name,
	from_tablespace_oid oid NOT NULL, to_tablespace_oid oid NOT NULL,
	requested text NOT NULL,		-- the method that was asked for
	method text NOT NULL,
	status text NOT NULL,
	size_before bigint, size_after bigint,
	started_at timestamptz, finished_at timestamptz,
	idle bigint,					-- ms of rests and waits in between
	lock_time interval, lock_attempts bigint,
	blocks_copied bigint, blocks_recopied bigint, wal_bytes bigint,
	sqlstate text, message text,
	PRIMARY KEY (job, item)
);
CREATE INDEX move_log_finished_at ON index_mover.move_log (finished_at);
CREATE INDEX move_log_relation ON index_mover.move_log (relation, job);
CREATE INDEX move_log_table ON index_mover.move_log (table_oid, job);

-- Whose moves a role sees in index_mover_history: its own jobs', those of its tables, or all.
-- Not by a WHERE behind the security barrier of a view, which keeps LIMIT and ORDER BY from the
-- indexes; subqueries with one value, since the planner would make a hash of all of an EXISTS.
ALTER TABLE index_mover.move_log ENABLE ROW LEVEL SECURITY;
CREATE POLICY visible ON index_mover.move_log FOR SELECT USING (
	pg_has_role('pg_read_all_stats', 'USAGE')
	OR pg_has_role((SELECT j.role FROM index_mover.job_log j WHERE j.job = move_log.job), 'USAGE')
	OR (SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_class c WHERE c.oid = table_oid));

-- Below which mount point the tablespaces are; see file_system.c
CREATE TABLE index_mover.mount_point (tablespace oid PRIMARY KEY, mount_point text NOT NULL);

-- Moving

CREATE TYPE @extschema@.move_result AS (
	job bigint, name text, kind text, status text, method text, size bigint,
	elapsed interval, lock_time interval, sqlstate text, detail text);

CREATE FUNCTION @extschema@.move_indexes(
	relation regclass, tablespace name, method text DEFAULT 'auto', rehearse boolean DEFAULT false,
	dry_run boolean DEFAULT false, wait boolean DEFAULT true, settings jsonb DEFAULT NULL) RETURNS SETOF @extschema@.move_result
AS 'MODULE_PATHNAME', 'index_mover_move_indexes' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

CREATE FUNCTION @extschema@.move_schema_indexes(
	schema regnamespace, tablespace name, method text DEFAULT 'auto', rehearse boolean DEFAULT false,
	dry_run boolean DEFAULT false, wait boolean DEFAULT true, settings jsonb DEFAULT NULL,
	name_like text DEFAULT NULL, name_not_like text DEFAULT NULL,
	min_size bigint DEFAULT NULL, max_size bigint DEFAULT NULL) RETURNS SETOF @extschema@.move_result
AS 'MODULE_PATHNAME', 'index_mover_move_schema_indexes' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

CREATE FUNCTION @extschema@.move_tablespace_indexes(
	from_tablespace name, to_tablespace name, method text DEFAULT 'auto', rehearse boolean DEFAULT false,
	dry_run boolean DEFAULT false, wait boolean DEFAULT true, settings jsonb DEFAULT NULL,
	name_like text DEFAULT NULL, name_not_like text DEFAULT NULL,
	min_size bigint DEFAULT NULL, max_size bigint DEFAULT NULL) RETURNS SETOF @extschema@.move_result
AS 'MODULE_PATHNAME', 'index_mover_move_tablespace_indexes' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

CREATE FUNCTION @extschema@.move_table(
	relation regclass, tablespace name,
	indexes boolean DEFAULT false, index_tablespace name DEFAULT NULL,
	freeze_first boolean DEFAULT false, rehearse boolean DEFAULT false,
	dry_run boolean DEFAULT false, wait boolean DEFAULT true, settings jsonb DEFAULT NULL) RETURNS SETOF @extschema@.move_result
AS 'MODULE_PATHNAME', 'index_mover_move_table' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

CREATE FUNCTION @extschema@.move_schema_tables(
	schema regnamespace, tablespace name,
	indexes boolean DEFAULT false, index_tablespace name DEFAULT NULL,
	freeze_first boolean DEFAULT false, rehearse boolean DEFAULT false,
	dry_run boolean DEFAULT false, wait boolean DEFAULT true, settings jsonb DEFAULT NULL,
	name_like text DEFAULT NULL, name_not_like text DEFAULT NULL,
	min_size bigint DEFAULT NULL, max_size bigint DEFAULT NULL) RETURNS SETOF @extschema@.move_result
AS 'MODULE_PATHNAME', 'index_mover_move_schema_tables' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

CREATE FUNCTION @extschema@.evacuate_tablespace(
	from_tablespace name, to_tablespace name,
	freeze_first boolean DEFAULT false, rehearse boolean DEFAULT false,
	dry_run boolean DEFAULT false, wait boolean DEFAULT true, settings jsonb DEFAULT NULL) RETURNS SETOF @extschema@.move_result
AS 'MODULE_PATHNAME', 'index_mover_evacuate_tablespace' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

CREATE FUNCTION @extschema@.heal_tablespace(
	tablespace name, to_tablespace name DEFAULT NULL, unmounted boolean DEFAULT false,
	dry_run boolean DEFAULT false, wait boolean DEFAULT true, settings jsonb DEFAULT NULL) RETURNS SETOF @extschema@.move_result
AS 'MODULE_PATHNAME', 'index_mover_heal_tablespace' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

CREATE PROCEDURE @extschema@.wait_for_move(job bigint DEFAULT NULL, raise boolean DEFAULT true)
AS 'MODULE_PATHNAME', 'index_mover_wait_for_move' LANGUAGE C;

CREATE FUNCTION @extschema@.undo_move(
	job bigint, dry_run boolean DEFAULT false, wait boolean DEFAULT true, settings jsonb DEFAULT NULL) RETURNS SETOF @extschema@.move_result
AS 'MODULE_PATHNAME', 'index_mover_undo_move' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

-- Watching and steering

CREATE FUNCTION index_mover.alive(
	OUT job bigint, OUT paused boolean, OUT bytes_done bigint, OUT paused_since timestamptz, OUT cleaning_up boolean) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'index_mover_alive' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 10;

CREATE FUNCTION index_mover.printed_command(name text, VARIADIC arguments text[] DEFAULT '{}') RETURNS text
AS 'MODULE_PATHNAME', 'index_mover_printed_command' LANGUAGE C STABLE STRICT PARALLEL SAFE;
CREATE FUNCTION index_mover.is_ours(pid int) RETURNS boolean
AS 'MODULE_PATHNAME', 'index_mover_is_ours' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;
CREATE FUNCTION index_mover.check_relation(relation regclass) RETURNS void
AS 'MODULE_PATHNAME', 'index_mover_check_relation' LANGUAGE C VOLATILE STRICT PARALLEL SAFE;

CREATE FUNCTION index_mover.running(
	OUT pid int, OUT job bigint, OUT name text, OUT kind text, OUT table_name text,
	OUT method text, OUT phase text, OUT throttled_by text,
	OUT blocks_total bigint, OUT blocks_done bigint, OUT blocks_changed bigint,
	OUT bytes_per_second bigint, OUT eta interval, OUT lock_attempts bigint,
	OUT blocked_by int[], OUT wal_lag_bytes bigint, OUT started_at timestamptz, OUT blocked_since timestamptz,
	OUT rests_since timestamptz, OUT relation oid, OUT rest text, OUT rest_slot text) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'index_mover_running' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- The newest jobs that the reader may see, found by indexes, and a number: older ones that he may see
-- are not above it, and are looked at one by one.  For a role that sees few of a long history.
CREATE FUNCTION index_mover.visible_jobs(OUT rest bigint, OUT jobs bigint[])
AS 'MODULE_PATHNAME', 'index_mover_visible_jobs' LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;
-- (restricted, so that no parallel scan of all is planned where a few rows are asked for)
CREATE FUNCTION index_mover.sees_all_jobs() RETURNS boolean
AS 'MODULE_PATHNAME', 'index_mover_sees_all_jobs' LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;

CREATE VIEW @extschema@.index_mover_progress AS
	SELECT r.pid, r.job, r.name, r.kind, r.table_name, r.method, r.phase, r.throttled_by,
		   r.blocks_total, r.blocks_done, r.blocks_changed, r.bytes_per_second, r.eta, r.lock_attempts,
		   r.blocked_by, r.wal_lag_bytes, r.started_at, r.blocked_since
	  FROM index_mover.running() r;

-- What index_mover_history shows of them
CREATE VIEW index_mover.shown_move WITH (security_invoker) AS
	SELECT m.job, m.relation, m.relation_name, m.kind, m.table_oid, m.table_name, m.from_tablespace, m.to_tablespace, m.method,
		   m.status, m.size_before, m.size_after, m.started_at, m.finished_at, m.lock_time, m.lock_attempts,
		   m.blocks_copied, m.blocks_recopied, m.wal_bytes, m.sqlstate, m.message
	  FROM index_mover.move_log m;

-- Pulled up into the query that reads it, so that this costs what it shows.
CREATE VIEW @extschema@.index_mover_history WITH (security_invoker) AS
	SELECT l.job,
		   -- an OID that is gone is printed as a number; an index is in its table's schema
		   coalesce(nullif(l.relation::regclass::text, l.relation::text),
					CASE WHEN pg_table_is_visible(l.table_oid) THEN ''
						 ELSE quote_ident((parse_ident(l.table_name))[1]) || '.' END ||
					quote_ident(l.relation_name)) AS name,
		   l.kind,
		   coalesce(nullif(l.table_oid::regclass::text, l.table_oid::text), l.table_name) AS table_name,
		   l.from_tablespace, l.to_tablespace, l.method,
		   CASE WHEN o.is_lost THEN 'interrupted'
				WHEN o.is_open AND a.paused THEN 'paused'
				ELSE l.status END AS status,
		   l.size_before, l.size_after, l.started_at, l.finished_at, l.finished_at - l.started_at AS elapsed,
		   l.lock_time, l.lock_attempts, l.blocks_copied, l.blocks_recopied, l.wal_bytes, l.sqlstate,
		   nullif(ltrim(concat(
				CASE WHEN o.is_lost
					 THEN 'The worker or the server ended before the outcome was recorded. To move what is left: '
						  || index_mover.printed_command('resume_move', l.job::text)
					 ELSE l.message END,
				(SELECT format('%s Its copy goes on from %s of it, kept until %s.', CASE WHEN NOT o.is_lost AND l.message NOT LIKE '%.' THEN '.' END,
							   pg_size_pretty(sum(k.copied_blocks) * current_setting('block_size')::int),
							   min(k.keep_until)::timestamptz(0))
				   FROM index_mover.ledger k
				  WHERE a.job IS NULL AND l.status <> 'moved' AND k.job = l.job AND k.relation = l.relation
					AND k.copied_blocks > 0 AND k.keep_until > now() AND EXISTS (SELECT FROM pg_class WHERE oid = k.relation)
					AND k.system_identifier = s.system_identifier::text
				 HAVING count(*) > 0))), '') AS message,
		   (SELECT pg_get_userbyid(j.role) FROM index_mover.job_log j WHERE j.job = l.job) AS role
	  FROM (SELECT 'all' AS of_jobs, m.* FROM index_mover.shown_move m
			UNION ALL SELECT 'rest', m.* FROM index_mover.shown_move m
			UNION ALL SELECT 'newest', m.* FROM index_mover.shown_move m) l
	  LEFT JOIN index_mover.alive() a ON a.job = l.job
	 -- volatile, so that the view would not be pulled up with it in the list above
	 CROSS JOIN pg_control_system() s
	 -- a standby cannot know which jobs of the primary are alive
	 CROSS JOIN LATERAL (SELECT i.is_open, i.is_open AND a.job IS NULL AND NOT pg_is_in_recovery() AS is_lost
						   FROM (SELECT l.status IN ('queued', 'running') AS is_open) i) o
	 -- three scans, which the planner can merge in the order of an index; only those of one role are begun
	 WHERE (l.of_jobs = 'all' AND index_mover.sees_all_jobs())
		OR (l.of_jobs = 'rest' AND NOT index_mover.sees_all_jobs()
			AND l.job <= (SELECT v.rest FROM index_mover.visible_jobs() v))
		OR (l.of_jobs = 'newest' AND NOT index_mover.sees_all_jobs()
			AND l.job = ANY ((SELECT v.jobs FROM index_mover.visible_jobs() v)::bigint[]));

CREATE VIEW @extschema@.index_mover_jobs WITH (security_barrier) AS
	SELECT k.job, v.role,
		   CASE WHEN NOT a.alive
				THEN CASE WHEN m.size_left IS NULL THEN m.status WHEN pg_is_in_recovery() THEN 'running' ELSE 'interrupted' END
				WHEN s.paused THEN 'paused'
				WHEN m.started_at IS NOT NULL THEN 'running'
				ELSE 'queued' END AS status,
		   v.moved, v.total, v.percent, v.size, v.bytes_per_second, v.eta, v.longest_lock, v.tablespace,
		   CASE WHEN a.visible THEN coalesce(m.started_at, k.submitted_at)::timestamptz(0) END AS started_at,
		   v.finished_at, v.policy, v.settings
	  FROM (SELECT 'all' AS of_jobs, j.* FROM index_mover.job_log j
			UNION ALL SELECT 'rest', j.* FROM index_mover.job_log j
			UNION ALL SELECT 'newest', j.* FROM index_mover.job_log j) k
	 CROSS JOIN LATERAL (
			SELECT k.status, k.moved, k.total, k.size, k.size_done, NULL::bigint AS size_left, k.longest_lock, k.tablespace,
				   k.started_at, k.finished_at
			 WHERE k.status IS NOT NULL
			UNION ALL
			-- it has not ended, or its end was not recorded; the worst of its moves
			SELECT coalesce((array_agg(l.status ORDER BY array_position('{failed,canceled,moved,rehearsed,skipped}', l.status)))[1], 'skipped'),
				   count(*) FILTER (WHERE l.status = 'moved')::int, count(*)::int, coalesce(sum(l.size_before), 0)::bigint,
				   -- one that was skipped when its turn came has nothing left to do
				   coalesce(sum(l.size_before) FILTER (WHERE l.status IN ('moved', 'rehearsed', 'skipped')
													   AND l.started_at IS NOT NULL), 0)::bigint AS size_done,
				   sum(coalesce(l.size_before, 0)) FILTER (WHERE l.status IN ('queued', 'running'))::bigint,
				   max(l.lock_time),
				   CASE WHEN count(DISTINCT l.to_tablespace) = 1 THEN min(l.to_tablespace::text)::name END,
				   min(l.started_at), max(l.finished_at)
			  FROM index_mover.move_log l
			 WHERE l.job = k.job AND k.status IS NULL
			HAVING k.status IS NULL) m
	  LEFT JOIN index_mover.alive() s ON s.job = k.job
	 CROSS JOIN LATERAL (
			-- one whose end is on record, and that is still cleaning up, has ended
			SELECT s.job IS NOT NULL AND NOT (s.cleaning_up AND m.size_left IS NULL),
				   pg_has_role('pg_read_all_stats', 'USAGE')
				   OR pg_has_role(k.role, 'USAGE')
				   -- one value: the planner would make a hash of the whole history of an EXISTS
				   OR (SELECT true FROM index_mover.move_log l
						 JOIN pg_class c ON c.oid = l.table_oid
						WHERE l.job = k.job AND pg_has_role(c.relowner, 'USAGE') LIMIT 1)
			OFFSET 0) AS a(alive, visible)
	 -- in memory, where it falls only if a relation fails; that of an ended job is in the log
	 CROSS JOIN LATERAL (SELECT greatest(m.size_done, s.bytes_done)) AS d(bytes_done)
	  LEFT JOIN (
			SELECT r.job,
				   sum(r.bytes_per_second)::bigint AS bytes_per_second,
				   bool_or(r.method = 'copy' AND r.eta IS NULL) AS no_end_in_sight,
				   max(r.eta) AS eta
			  FROM index_mover.running() r
			 GROUP BY r.job) r ON r.job = k.job
	  LEFT JOIN LATERAL (
			SELECT pg_get_userbyid(k.role) AS role, m.moved, m.total, m.size, r.bytes_per_second, m.longest_lock,
				   m.tablespace, k.policy, k.settings,
				   CASE WHEN m.size > 0
						-- a copy catches up, and may fail, until the outcome of its swap is on record
						THEN least(round(d.bytes_done * 100.0 / m.size, 1), CASE WHEN m.size_left IS NULL THEN 100 ELSE 99.9 END)
						WHEN m.size_left IS NULL AND m.status NOT IN ('failed', 'canceled') THEN 100 END::float8 AS percent,
				   CASE WHEN a.alive AND r.bytes_per_second > 0 AND NOT r.no_end_in_sight
						THEN make_interval(secs =>
								 round(greatest((coalesce(m.size_left, 0) + m.size_done - d.bytes_done)::numeric / r.bytes_per_second,
												extract(epoch FROM r.eta)), 1)::float8) END AS eta,
				   CASE WHEN NOT a.alive AND m.size_left IS NULL
						-- one that had nothing to do has ended at once
						THEN coalesce(m.finished_at, k.submitted_at)::timestamptz(0) END AS finished_at) v ON a.visible
	 WHERE (a.alive OR a.visible)
	   AND ((k.of_jobs = 'all' AND index_mover.sees_all_jobs())
			OR (k.of_jobs = 'rest' AND NOT index_mover.sees_all_jobs()
				AND k.job <= (SELECT v.rest FROM index_mover.visible_jobs() v))
			OR (k.of_jobs = 'newest' AND NOT index_mover.sees_all_jobs()
				AND k.job = ANY ((SELECT v.jobs || ARRAY(SELECT s.job FROM index_mover.alive() s WHERE s.job > v.rest)
									FROM index_mover.visible_jobs() v)::bigint[])))
	 ORDER BY k.job DESC;

CREATE FUNCTION @extschema@.cancel_move(job bigint DEFAULT NULL, keep boolean DEFAULT false) RETURNS int
AS 'MODULE_PATHNAME', 'index_mover_cancel_move' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

CREATE FUNCTION @extschema@.pause_move(job bigint DEFAULT NULL) RETURNS int
AS 'MODULE_PATHNAME', 'index_mover_pause_move' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

CREATE FUNCTION @extschema@.resume_move(job bigint, settings jsonb DEFAULT NULL) RETURNS bigint
AS 'MODULE_PATHNAME', 'index_mover_resume_move' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

CREATE FUNCTION @extschema@.alter_move(job bigint, setting text, value text) RETURNS boolean
AS 'MODULE_PATHNAME', 'index_mover_alter_move' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

CREATE FUNCTION @extschema@.index_mover_cleanup(
	dry_run boolean DEFAULT false,
	OUT kind text, OUT object text, OUT tablespace name, OUT size bigint, OUT action text) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'index_mover_cleanup' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

-- Deciding what to move

CREATE FUNCTION @extschema@.index_bloat(
	index regclass, sample_pages int DEFAULT 400, exact boolean DEFAULT false,
	OUT pages bigint, OUT sampled_pages bigint, OUT leaf_density float8, OUT fillfactor float8,
	OUT bloat_ratio float8, OUT bloat_ratio_low float8, OUT bloat_ratio_high float8,
	OUT bloat_bytes bigint, OUT is_exact boolean)
AS 'MODULE_PATHNAME', 'index_mover_index_bloat' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

CREATE FUNCTION index_mover.pending_list(
	index regclass,
	OUT pending_pages bigint, OUT pending_tuples bigint, OUT pending_bytes bigint,
	OUT pending_limit_bytes bigint, OUT fastupdate boolean, OUT extra_pages_per_search bigint)
AS 'MODULE_PATHNAME', 'index_mover_pending_list' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL SAFE;

CREATE FUNCTION index_mover.pending_steps(index regclass) RETURNS text[]
AS 'MODULE_PATHNAME', 'index_mover_pending_steps' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

CREATE FUNCTION index_mover.relation_report(
	relation regclass, sample boolean,
	OUT size bigint, OUT duplicate_of regclass, OUT bloat_ratio float8, OUT bloat_bytes bigint, OUT bloat_source text,
	OUT pending_pages bigint, OUT pending_tuples bigint, OUT pending_bytes bigint, OUT pending_limit_bytes bigint,
	OUT is_spare boolean, OUT tablespace name, OUT file_birth timestamptz)
AS 'MODULE_PATHNAME', 'index_mover_relation_report' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

CREATE FUNCTION index_mover.movable_methods(relation regclass) RETURNS text[]
AS 'MODULE_PATHNAME', 'index_mover_movable_methods' LANGUAGE C STABLE STRICT PARALLEL SAFE;

-- by the half-life that policies have by default
CREATE FUNCTION index_mover.relation_heat(
	OUT relation regclass, OUT kind text, OUT tablespace name, OUT size bigint,
	OUT reads_per_second float8, OUT heat float8, OUT period interval, OUT samples bigint,
	OUT last_use timestamptz, OUT last_index_use timestamptz, OUT last_change timestamptz,
	OUT known_since timestamptz, OUT reset_at timestamptz) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'index_mover_relation_heat' LANGUAGE C VOLATILE PARALLEL UNSAFE;
CREATE FUNCTION @extschema@.relation_heat(
	half_life interval,
	OUT relation regclass, OUT kind text, OUT tablespace name, OUT size bigint,
	OUT reads_per_second float8, OUT heat float8, OUT period interval, OUT samples bigint,
	OUT last_use timestamptz, OUT last_index_use timestamptz, OUT last_change timestamptz,
	OUT known_since timestamptz, OUT reset_at timestamptz) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'index_mover_relation_heat' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

CREATE FUNCTION index_mover.stats_since() RETURNS timestamptz
AS 'MODULE_PATHNAME', 'index_mover_stats_since' LANGUAGE C VOLATILE PARALLEL SAFE;

CREATE TABLE index_mover.probe (
	probed_at timestamptz NOT NULL,
	tablespace oid NOT NULL,
	random_read_ms float8 NOT NULL,
	deep_read_ms float8		-- each of queue_depth reads at a time
);

CREATE FUNCTION @extschema@.tablespace_probe(
	tablespace name, duration interval DEFAULT '1 s', queue_depth int DEFAULT 32, relation regclass DEFAULT NULL,
	OUT random_read_ms float8, OUT random_read_iops float8, OUT random_read_iops_deep float8,
	OUT sequential_read_mb_s float8, OUT sync_write_ms float8,
	OUT free_bytes bigint, OUT total_bytes bigint, OUT same_device_as name[],
	OUT suggested_random_page_cost float8, OUT suggested_effective_io_concurrency int,
	OUT command text, OUT direct_io boolean, OUT lost_on_reboot text, OUT file_system text,
	OUT compression text, OUT zstd_ratio float8, OUT zstd_ratio_at_least float8, OUT lz4_ratio float8,
	OUT lz4_ratio_at_least float8, OUT remark text)
AS 'MODULE_PATHNAME', 'index_mover_tablespace_probe' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

CREATE FUNCTION @extschema@.withdraw_probes(
	tablespace name, since timestamptz DEFAULT NULL,
	OUT probed_at timestamptz, OUT random_read_ms float8) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'index_mover_withdraw_probes' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE ROWS 5;

-- The counters of a relation, at moments at which they had changed (src/tier/heat.c);
-- table_oid 0: samples were taken at this moment.  A rebuilt index has another OID,
-- but its name stays.
CREATE TABLE index_mover.sample (
	taken_at timestamptz NOT NULL,
	table_oid oid NOT NULL,
	index_name text,					-- NULL: the table's own
	blks_read bigint NOT NULL,
	blks_wanted bigint NOT NULL DEFAULT 0,
	index_scans bigint NOT NULL DEFAULT 0,
	other_scans bigint NOT NULL DEFAULT 0,
	changes bigint NOT NULL DEFAULT 0,
	blks_overlapped bigint NOT NULL DEFAULT 0
);

CREATE FUNCTION @extschema@.take_index_sample(retention interval DEFAULT '100 days') RETURNS bigint
AS 'MODULE_PATHNAME', 'index_mover_take_index_sample' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

CREATE FUNCTION @extschema@.recommend_moves(
	tablespace name DEFAULT NULL, budget bigint DEFAULT NULL, half_life interval DEFAULT NULL,
	random_read_ms float8 DEFAULT NULL, price_per_gb float8 DEFAULT NULL,
	OUT rank int, OUT index regclass, OUT table_name regclass, OUT method text,
	OUT from_tablespace name, OUT to_tablespace name, OUT size bigint, OUT size_after bigint,
	OUT reads_per_second float8, OUT gain_ms_per_second float8, OUT bloat_ratio float8,
	OUT pending_pages bigint, OUT reason text, OUT command text,
	OUT remains_ms_per_second float8, OUT gain_per_price float8) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'index_mover_recommend_moves' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE ROWS 20;

CREATE FUNCTION index_mover.session_action(pid int, state text, backend_type text) RETURNS text
AS 'MODULE_PATHNAME', 'index_mover_session_action' LANGUAGE C STABLE CALLED ON NULL INPUT PARALLEL SAFE;

CREATE FUNCTION @extschema@.index_mover_blockers(
	relation regclass DEFAULT NULL, min_age interval DEFAULT '1 s',
	OUT kind text, OUT pid int, OUT name text, OUT since timestamptz, OUT xid_age int,
	OUT holds_back text, OUT action text)
RETURNS SETOF record
LANGUAGE sql VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED ROWS 10
BEGIN ATOMIC
	SELECT index_mover.check_relation($1);
	WITH wanted AS (
		-- the relation, its table, its partitions: pg_partition_tree() would wait for locks on all of them
		SELECT $1::oid AS relid
		UNION SELECT i.indrelid FROM pg_index i WHERE i.indexrelid = $1::oid
		UNION SELECT c.oid FROM pg_class c WHERE $1 IS NOT NULL AND c.relispartition AND $1 IN (SELECT a.relid FROM pg_partition_ancestors(c.oid) a)
	), locks AS (
		-- on these, their indexes, and their TOAST tables
		SELECT l.pid, l.virtualtransaction,
			   format('locks on %s: the start of a rebuild, and the swap of a copy of these',
					  string_agg(DISTINCT l.relation::regclass::text, ', ')) AS what
		  FROM pg_locks l
		  LEFT JOIN pg_index i ON i.indexrelid = l.relation
		  LEFT JOIN pg_class t ON t.reltoastrelid = coalesce(i.indrelid, l.relation)
		 WHERE l.locktype = 'relation' AND l.granted
		   AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
		   AND ARRAY[l.relation, i.indrelid, t.oid] && ARRAY(SELECT w.relid FROM wanted w)
		 GROUP BY l.pid, l.virtualtransaction
	), waits AS (
		-- those that a running move waits for at this moment
		SELECT b.pid, 'the move of ' || string_agg(DISTINCT r.name, ', ') AS what
		  FROM index_mover.running() r
		 CROSS JOIN LATERAL unnest(r.blocked_by) AS b(pid)
		 WHERE $1 IS NULL
		 GROUP BY b.pid
	), found AS (
		SELECT 'session' AS kind, a.pid,
			   CASE WHEN a.query = '<insufficient privilege>' THEN a.usename::text
					ELSE format('%s@%s %s', a.usename, coalesce(host(a.client_addr), 'local'), a.application_name) END AS name,
			   a.xact_start AS since,
			   greatest(CASE WHEN s.counts THEN age(a.backend_xmin) END, age(a.backend_xid)) AS xid_age,
			   concat_ws('; ', l.what, w.what,
				   CASE WHEN s.counts
						THEN 'its snapshot: vacuum of everything newer, and the end of every rebuild in this database' END,
				   CASE WHEN a.backend_xid IS NOT NULL THEN 'its transaction: vacuum of what it changed' END) AS holds_back,
			   CASE WHEN a.query = '<insufficient privilege>' THEN 'wait for its end; members of pg_monitor see more'
					ELSE index_mover.session_action(a.pid, a.state, a.backend_type) END AS action
		  FROM pg_stat_activity a
		  LEFT JOIN locks l ON l.pid = a.pid
		  LEFT JOIN waits w ON w.pid = a.pid
		  -- a worker that has just ended is not known to is_ours() any more
		  LEFT JOIN pg_stat_activity o ON o.pid = coalesce(a.leader_pid, a.pid) AND starts_with(o.backend_type, 'index_mover')
		 -- who may not see the type sees that it has no user
		 CROSS JOIN LATERAL (SELECT coalesce(a.backend_type = 'autovacuum worker', a.usesysid IS NULL) AS is_autovacuum) t
		 -- that of a vacuum, and of its workers, holds back nothing
		 CROSS JOIN LATERAL (SELECT a.backend_xmin IS NOT NULL AND NOT t.is_autovacuum
							 AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = coalesce(a.leader_pid, a.pid)) AS counts) s
		 WHERE a.pid <> pg_backend_pid()
		   -- nor is a move in its own way
		   AND o.pid IS NULL AND NOT index_mover.is_ours(coalesce(a.leader_pid, a.pid))
		   -- a walsender, too, if it works in this database: the first copy of a
		   -- logical subscription has a snapshot; one for a standby is in none
		   AND a.datname = current_database()
		   AND (l.pid IS NOT NULL OR w.pid IS NOT NULL OR s.counts OR (NOT t.is_autovacuum AND a.backend_xid IS NOT NULL))
		UNION ALL
		SELECT 'prepared transaction', NULL, x.gid, x.prepared, age(x.transaction),
			   concat_ws('; ', l.what, 'vacuum of what it changed, and every rebuild of a table it has locked'),
			   index_mover.printed_command('commit_prepared', x.gid) || ' or ' || index_mover.printed_command('rollback_prepared', x.gid)
		  FROM pg_prepared_xacts x
		  -- its locks carry its virtual transaction, and one of them its number
		  LEFT JOIN pg_locks t ON t.locktype = 'transactionid' AND t.granted AND t.pid IS NULL
							  AND t.transactionid = x.transaction
		  LEFT JOIN locks l ON l.pid IS NULL AND l.virtualtransaction = t.virtualtransaction
		 WHERE x.database = current_database()
		UNION ALL
		SELECT 'slot', s.active_pid, s.slot_name, NULL,
			   greatest(age(s.xmin), age(s.catalog_xmin)),
			   concat_ws('; ',
				   CASE WHEN s.xmin IS NOT NULL THEN 'vacuum in every database' END,
				   CASE WHEN s.catalog_xmin IS NOT NULL THEN 'vacuum of the catalogs' END,
				   pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
								   s.restart_lsn) || ' bytes of WAL'),
			   CASE WHEN s.active AND s.slot_type = 'physical' AND s.xmin IS NOT NULL
					THEN 'end the long query on its standby, or set hot_standby_feedback = off there'
					WHEN s.active THEN 'let its consumer catch up'
					-- 17 and newer
					WHEN to_jsonb(s)->>'synced' = 'true' THEN 'let the consumer of the primary''s slot catch up'
					ELSE 'start its consumer, or ' || index_mover.printed_command('drop_slot', s.slot_name::text) END
		  FROM pg_replication_slots s
		 -- one that was invalidated holds back nothing any more
		 WHERE s.wal_status IS DISTINCT FROM 'lost'
		   AND (s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL OR (NOT s.active AND s.restart_lsn IS NOT NULL))
		UNION ALL
		SELECT 'standby', r.pid, r.application_name, NULL, age(r.backend_xmin),
			   'vacuum, by hot_standby_feedback',
			   'end the long query on that standby, or set hot_standby_feedback = off there'
		  FROM pg_stat_replication r
		  -- what is in a database has a snapshot of its own
		  JOIN pg_stat_activity a ON a.pid = r.pid AND a.datid IS NULL
		 WHERE r.backend_xmin IS NOT NULL
	)
	SELECT f.kind, f.pid, f.name, f.since, f.xid_age, f.holds_back, f.action
	  FROM found f
	 WHERE f.since IS NULL OR $2 IS NULL OR f.since <= clock_timestamp() - greatest(least($2, '4000 years'), '-4000 years')
	 ORDER BY f.since, f.xid_age DESC NULLS LAST;
END;

-- What to do about a long pending list, and last about who holds back the vacuum of its table.
CREATE FUNCTION index_mover.pending_advice(index regclass) RETURNS text[]
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE
RETURN (
	SELECT s.steps || ARRAY(
			   SELECT format('%s %s holds back vacuum (%s): %s', b.kind,
							 CASE WHEN b.kind = 'slot' OR b.pid IS NULL THEN quote_ident(b.name) ELSE b.pid::text END,
							 b.holds_back, b.action)
				 FROM @extschema@.index_mover_blockers(NULL::regclass, '1 s'::interval) b
				WHERE b.xid_age IS NOT NULL
				  -- one for the catalogs only is not in the way of a table
				  AND (b.kind <> 'slot' OR EXISTS (SELECT FROM pg_replication_slots r WHERE r.slot_name = b.name AND r.xmin IS NOT NULL)))
	  FROM (SELECT index_mover.pending_steps($1) AS steps) s
	 WHERE s.steps IS NOT NULL
);

CREATE FUNCTION @extschema@.gin_pending_list(
	index regclass,
	OUT pending_pages bigint, OUT pending_tuples bigint, OUT pending_bytes bigint,
	OUT pending_limit_bytes bigint, OUT fastupdate boolean, OUT extra_pages_per_search bigint, OUT advice text[])
LANGUAGE sql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
BEGIN ATOMIC
	SELECT p.*, index_mover.pending_advice($1) FROM index_mover.pending_list($1) p;
END;

CREATE FUNCTION @extschema@.index_report(
	relation regclass DEFAULT NULL, sample boolean DEFAULT NULL,
	OUT index regclass, OUT table_name regclass, OUT access_method name, OUT tablespace name, OUT size bigint,
	OUT idx_scan bigint, OUT blks_read bigint, OUT blks_hit bigint, OUT hit_ratio float8,
	OUT table_blks_read bigint,
	OUT bloat_ratio float8, OUT bloat_bytes bigint, OUT bloat_source text,
	OUT pending_pages bigint, OUT pending_tuples bigint, OUT pending_bytes bigint,
	OUT writes bigint, OUT stats_since timestamptz, OUT movable text[], OUT remark text, OUT pending_advice text[])
RETURNS SETOF record
LANGUAGE sql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE ROWS 1000
BEGIN ATOMIC
	SELECT index_mover.check_relation($1);
	WITH relations AS (
		SELECT c.oid, am.amname, i.indexrelid IS NOT NULL AS is_index, coalesce(i.indrelid, c.oid) AS table_oid,
			   i.indisvalid, i.indisunique, i.indexprs IS NOT NULL AS has_expressions, i.xmin AS made_by
		  FROM pg_class c
		  JOIN pg_namespace n ON n.oid = c.relnamespace
		  JOIN pg_am am ON am.oid = c.relam
		  LEFT JOIN pg_index i ON i.indexrelid = c.oid
		 -- pg_partition_tree() would wait for locks on all of them, and keep them
		 CROSS JOIN (SELECT $1::oid || ARRAY(SELECT p.oid FROM pg_class p
											  WHERE p.relispartition AND $1 IN (SELECT a.relid FROM pg_partition_ancestors(p.oid) a)) AS wanted) w
		 WHERE c.relkind IN ('r', 'm', 't', 'i')
		   AND CASE WHEN $1 IS NULL
					THEN n.nspname NOT IN ('pg_catalog', 'information_schema', 'index_mover') AND n.nspname !~ '^pg_toast'
						 AND c.relpersistence <> 't'
					ELSE ARRAY[c.oid, i.indrelid] && w.wanted END
		 ORDER BY 4
	), heat AS MATERIALIZED (
		-- read only if it matters
		SELECT h.relation, greatest(h.last_index_use, h.reset_at) AS used_or_reset FROM index_mover.relation_heat() h
	)
	SELECT CASE WHEN g.is_index THEN g.oid::regclass END, g.table_oid::regclass, g.amname, r.tablespace, r.size,
		   CASE WHEN g.is_index THEN pg_stat_get_numscans(g.oid) END,
		   s.fetched - s.hit, s.hit, round((s.hit / nullif(s.fetched, 0)::float8)::numeric, 4)::float8,
		   pg_stat_get_blocks_fetched(g.table_oid) - pg_stat_get_blocks_hit(g.table_oid),
		   r.bloat_ratio, r.bloat_bytes, r.bloat_source,
		   r.pending_pages, r.pending_tuples, r.pending_bytes,
		   pg_stat_get_tuples_inserted(g.table_oid) + pg_stat_get_tuples_updated(g.table_oid)
			   - CASE WHEN g.is_index THEN pg_stat_get_tuples_hot_updated(g.table_oid) ELSE 0 END,
		   st.since, index_mover.movable_methods(g.oid::regclass),
		   nullif(concat_ws('; ',
			   CASE WHEN NOT g.indisvalid THEN 'invalid: being built, or left by a build that failed' END,
			   'duplicate of ' || r.duplicate_of::text,
			   CASE WHEN r.is_spare AND NOT g.indisunique AND pg_stat_get_numscans(g.oid) = 0
						 AND current_setting('track_counts')::boolean AND NOT pg_is_in_recovery() AND u.unused_for > '7 days'
					THEN format('unused: no scan in %s days on this server%s', extract(day FROM u.unused_for),
								CASE WHEN g.has_expressions THEN ', but the planner may use statistics of its expressions' END) END,
			   CASE WHEN st.since > now() - '1 day'::interval THEN 'statistics cover less than a day' END,
			   CASE WHEN r.pending_bytes > r.pending_limit_bytes THEN 'pending list is over its limit' END), ''),
		   CASE WHEN g.amname = 'gin' THEN index_mover.pending_advice(g.oid::regclass) END
	  FROM relations g
	 CROSS JOIN index_mover.stats_since() AS st(since)
	 CROSS JOIN LATERAL (SELECT pg_stat_get_blocks_fetched(g.oid) AS fetched, pg_stat_get_blocks_hit(g.oid) AS hit) s
	 CROSS JOIN LATERAL index_mover.relation_report(g.oid::regclass, coalesce($2, $1 IS NOT NULL)) r
	 -- when an index was made, if that is known, or not before its file
	 CROSS JOIN LATERAL (SELECT coalesce(CASE WHEN NOT pg_is_in_recovery() AND current_setting('track_commit_timestamp')::boolean THEN pg_xact_commit_timestamp(g.made_by) END,
										 r.file_birth) AS made_at) m
	 -- a counter of 0 may be one that was reset: samples tell of a use before, and that it went back
	 CROSS JOIN LATERAL (SELECT CASE WHEN m.made_at IS NOT NULL
									 THEN now() - greatest(st.since, m.made_at, (SELECT h.used_or_reset FROM heat h WHERE h.relation = g.oid)) END AS unused_for) u
	 ORDER BY 7 DESC NULLS LAST, 1, 2;
END;

-- Tier policies: where relations belong by age, because they are idle, by heat, or
-- because a file system is full.  Written by users, and carried out as their owners.
CREATE TABLE @extschema@.tier_policy (
	name name PRIMARY KEY
		CONSTRAINT "name must not be empty" CHECK (name <> ''),
	enabled boolean NOT NULL DEFAULT true,
	relation regclass				-- a partitioned table; NULL: any
		CONSTRAINT "relation must not be 0" CHECK (relation <> 0),
	schema name,					-- NULL: any
	from_tablespace name,			-- NULL: any
	to_tablespace name NOT NULL,
	parts text NOT NULL DEFAULT 'all'
		CONSTRAINT "parts must be table, indexes or all" CHECK (parts IN ('table', 'indexes', 'all')),
	-- of intervals no part is negative: else a month less 30 days would end before it begins, by the day
	older_than interval
		CONSTRAINT "older_than must not be negative" CHECK (older_than >= '0' AND 0 <= least(date_part('year', older_than), date_part('month', older_than), date_part('day', older_than),
			date_part('hour', older_than), date_part('minute', older_than), date_part('microseconds', older_than))),
	key_unit text					-- what an integer or UUID key means
		CONSTRAINT "key_unit must be seconds to days, yyyymmdd, yyyymm, or uuid7"
		CHECK (key_unit IN ('seconds', 'milliseconds', 'microseconds', 'days', 'yyyymmdd', 'yyyymm', 'uuid7')),
	-- finite, and so that what is computed with them is in the range of numeric
	key_zero numeric
		CONSTRAINT "key_zero must be from -1e30 to 1e30" CHECK (key_zero BETWEEN -1e30 AND 1e30),
	keys_per_second numeric
		CONSTRAINT "keys_per_second must be from 1e-15 to 1e30" CHECK (keys_per_second BETWEEN 1e-15 AND 1e30),
	budget bigint
		CONSTRAINT "budget must be a positive number of bytes" CHECK (budget > 0),
	start_at float8,
	stop_at float8,
	freeze_first boolean NOT NULL DEFAULT true,
	min_stay interval NOT NULL		-- by default a day for a budget, else seven
		CONSTRAINT "min_stay must not be negative" CHECK (min_stay >= '0' AND 0 <= least(date_part('year', min_stay), date_part('month', min_stay), date_part('day', min_stay),
			date_part('hour', min_stay), date_part('minute', min_stay), date_part('microseconds', min_stay))),
	half_life interval NOT NULL DEFAULT '12 hours'	-- as HALF_LIFE in src/tier/heat.c
		CONSTRAINT "half_life must be from a minute to 10 years" CHECK (half_life BETWEEN '1 min' AND '10 years' AND 0 <= least(date_part('year', half_life), date_part('month', half_life), date_part('day', half_life),
			date_part('hour', half_life), date_part('minute', half_life), date_part('microseconds', half_life))),
	max_bytes_per_run bigint
		CONSTRAINT "max_bytes_per_run must be a positive number of bytes" CHECK (max_bytes_per_run > 0),
	settings jsonb
		CONSTRAINT "settings must be a JSON object" CHECK (jsonb_typeof(settings) = 'object')
		-- each process that looks for policies reads all rows; as IM_SETTINGS_LEN
		CONSTRAINT "settings must be shorter than 2048 bytes" CHECK (octet_length(settings::text) < 2048),
	idle_for interval
		CONSTRAINT "idle_for must be positive" CHECK (idle_for > '0' AND 0 <= least(date_part('year', idle_for), date_part('month', idle_for), date_part('day', idle_for),
			date_part('hour', idle_for), date_part('minute', idle_for), date_part('microseconds', idle_for))),
	idle_of text NOT NULL DEFAULT 'use'
		CONSTRAINT "idle_of must be use, index use or change" CHECK (idle_of IN ('use', 'index use', 'change')),
	every interval
		CONSTRAINT "every must be from a second to 100 years"	-- also what its parts come to
		CHECK (every BETWEEN '1 s' AND '100 years' AND date_part('year', every) BETWEEN -1000 AND 1000
			   AND date_part('day', every) BETWEEN -366000 AND 366000 AND timestamp '2000-01-01' + every BETWEEN '2000-01-01' AND '2101-01-01' AND 0 <= least(date_part('year', every), date_part('month', every), date_part('day', every),
			date_part('hour', every), date_part('minute', every), date_part('microseconds', every))),
	window_start time,
	window_end time,
	owner name,						-- with its OID, which says that it is this role still
	owner_oid oid,
	scheduled_since timestamptz,	-- from when on the scheduler counts; set by a trigger
	CONSTRAINT "a policy has one of older_than, idle_for, budget and start_at" CHECK (num_nonnulls(older_than, idle_for, budget, start_at) = 1),
	CONSTRAINT "start_at and stop_at go together" CHECK (num_nulls(start_at, stop_at) <> 1),
	CONSTRAINT "start_at and stop_at must be: 0 < stop_at < start_at <= 1" CHECK (stop_at > 0 AND stop_at < start_at AND start_at <= 1),
	CONSTRAINT "start_at needs from_tablespace, which is too full then" CHECK (start_at IS NULL OR from_tablespace IS NOT NULL),
	CONSTRAINT "a budget needs from_tablespace, where the rest goes back to" CHECK (budget IS NULL OR from_tablespace IS NOT NULL),
	CONSTRAINT "from_tablespace and to_tablespace must not be the same" CHECK (from_tablespace <> to_tablespace),
	CONSTRAINT "key_zero and keys_per_second go together" CHECK (num_nulls(key_zero, keys_per_second) <> 1),
	CONSTRAINT "a key has a key_unit, or key_zero and keys_per_second" CHECK (num_nonnulls(key_unit, key_zero) <= 1),
	CONSTRAINT "key_unit, key_zero and keys_per_second are for older_than" CHECK (older_than IS NOT NULL OR num_nonnulls(key_unit, key_zero) = 0),
	CONSTRAINT "window_start and window_end go together" CHECK (num_nulls(window_start, window_end) <> 1),
	CONSTRAINT "window_start and window_end must not be the same"		-- 24:00 is 0:00
		CHECK (window_start <> window_end AND (window_start < '24:00' OR window_end > '0:00'))
);
-- A number in place of the name of a relation that was dropped could be that of another one after a restore.
SELECT pg_catalog.pg_extension_config_dump('@extschema@.tier_policy',
	'WHERE relation IS NULL OR EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) relation)');

CREATE FUNCTION index_mover.tier_policy_check() RETURNS trigger
AS 'MODULE_PATHNAME', 'index_mover_tier_policy_check' LANGUAGE C;
-- Before a row is written, what it lacks; after that, whether it may be so: no trigger of others can
-- change it in between.  Also in a restore with session_replication_role = replica.
CREATE TRIGGER tier_policy_check BEFORE INSERT OR UPDATE ON @extschema@.tier_policy
	FOR EACH ROW EXECUTE FUNCTION index_mover.tier_policy_check();
CREATE TRIGGER tier_policy_owner AFTER INSERT OR UPDATE OR DELETE ON @extschema@.tier_policy
	FOR EACH ROW EXECUTE FUNCTION index_mover.tier_policy_check();
CREATE TRIGGER tier_policy_truncate BEFORE TRUNCATE ON @extschema@.tier_policy EXECUTE FUNCTION index_mover.tier_policy_check();
ALTER TABLE @extschema@.tier_policy ENABLE ALWAYS TRIGGER tier_policy_check, ENABLE ALWAYS TRIGGER tier_policy_owner,
	ENABLE ALWAYS TRIGGER tier_policy_truncate, ENABLE ROW LEVEL SECURITY;
CREATE POLICY members ON @extschema@.tier_policy
	USING (EXISTS (SELECT FROM pg_roles r WHERE r.rolname = owner AND pg_has_role(r.oid, 'USAGE')));

-- The last run of each policy; read through the view tier_policy_status.
CREATE TABLE index_mover.policy_run (
	policy name NOT NULL,
	owner oid NOT NULL,				-- of the policy by then: the name can be another role's next
	started_at timestamptz NOT NULL,
	job bigint NOT NULL,			-- 0: none
	failures int NOT NULL,			-- before it, in a row
	result text NOT NULL,			-- job (which says it), nothing to move, waits, hindered, failed
	message text,					-- why it waits, is hindered, or has failed, as apart from its moves
	waits_for bigint,				-- the job
	waits_since timestamptz,		-- for this job, and those before
	in_trouble boolean NOT NULL,	-- hindered or failed, or so before it waited
	PRIMARY KEY (policy, owner)
);

CREATE FUNCTION index_mover.scheduler_looks() RETURNS boolean
AS 'MODULE_PATHNAME', 'index_mover_scheduler_looks' LANGUAGE C STABLE PARALLEL RESTRICTED;

-- In C, so that a session that has locked tier_policy is waited for a second at most.
CREATE FUNCTION index_mover.policy_status(
	OUT policy name, OUT owner name, OUT last_run timestamptz, OUT job bigint, OUT result text, OUT message text,
	OUT next_run timestamptz, OUT scheduled boolean, OUT enabled boolean, OUT command text, OUT due timestamptz,
	OUT waits_for bigint, OUT waits_since timestamptz, OUT has_function boolean) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'index_mover_policy_status' LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
CREATE FUNCTION index_mover.policy_fault(OUT reason text, OUT command text) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'index_mover_policy_fault' LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
CREATE FUNCTION index_mover.policy_conflicts(OUT policy name, OUT detail text) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'index_mover_policy_conflicts' LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;

-- of the policies that row security shows, and for monitors of all
CREATE VIEW @extschema@.tier_policy_status AS
	SELECT s.policy, s.owner, s.last_run, j.job, coalesce(s.result, j.status) AS result, s.message,
		   s.next_run, s.scheduled, s.enabled, m.relations AS moved_relations, m.bytes AS moved_bytes
	  FROM index_mover.policy_status() s
	  LEFT JOIN LATERAL (SELECT count(*) FILTER (WHERE l.kind NOT LIKE 'toast%') AS relations, coalesce(sum(l.size_before), 0)::bigint AS bytes
						   FROM index_mover.move_log l WHERE l.job = s.job AND l.status = 'moved') m ON s.job IS NOT NULL
	  -- OFFSET 0: so that it is looked up by its number
	  LEFT JOIN LATERAL (SELECT i.job, i.status FROM @extschema@.index_mover_jobs i WHERE i.job = s.job OFFSET 0) j ON true;

-- What policies have moved, by day, as long as the history goes back.
CREATE VIEW @extschema@.tier_policy_days AS
	SELECT k.policy, l.finished_at::date AS day, count(*) FILTER (WHERE l.kind NOT LIKE 'toast%') AS relations,
		   sum(l.size_before)::bigint AS bytes
	  FROM index_mover.job_log k
	  JOIN index_mover.move_log l ON l.job = k.job
	 WHERE k.policy IS NOT NULL AND l.status = 'moved' AND l.finished_at > now() - interval '1 year'
	 GROUP BY 1, 2;

-- The own tables are about this cluster only, and in a publication FOR ALL TABLES (src/own_tables.c).
-- That C code's deletions are not decoded needs tables without a replica identity.  Clients write tier_policy,
-- and a restore may run with session_replication_role = replica.
CREATE FUNCTION index_mover.not_by_replication() RETURNS trigger
AS 'MODULE_PATHNAME', 'index_mover_not_by_replication' LANGUAGE C;
SELECT index_mover.execute(format('CREATE TRIGGER not_by_replication BEFORE INSERT OR UPDATE OR DELETE ON %1$s
	FOR EACH ROW EXECUTE FUNCTION index_mover.not_by_replication();
ALTER TABLE %1$s REPLICA IDENTITY NOTHING, ENABLE REPLICA TRIGGER not_by_replication', oid::regclass))
  FROM pg_class WHERE relnamespace = 'index_mover'::regnamespace AND relkind = 'r';
CREATE TRIGGER not_by_replication BEFORE INSERT OR UPDATE OR DELETE ON @extschema@.tier_policy
	FOR EACH ROW EXECUTE FUNCTION index_mover.not_by_replication('by clients');
ALTER TABLE @extschema@.tier_policy ENABLE REPLICA TRIGGER not_by_replication;

-- what moves have left behind or, with lost, relations whose files are lost
CREATE FUNCTION index_mover.problems(
	lost boolean, OUT kind text, OUT object text, OUT tablespace name, OUT size bigint, OUT action text, OUT command text,
	OUT kept_until text) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'index_mover_problems' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

-- For the command of "rows of another cluster".  In C, as all writes: an UPDATE fails where all tables are published.
CREATE FUNCTION index_mover.adopt_ledger(system_identifier text) RETURNS bigint
AS 'MODULE_PATHNAME', 'index_mover_adopt_ledger' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

-- Jobs that have ended without all of their work, and not by the will of a user: one has failed, or its worker or
-- the server has stopped (57P01), within seven days; or its end is not on record, whenever it was submitted.  Of each
-- relation the last job counts, such as that of resume_move(), and nothing if it is in its place by now.
CREATE VIEW index_mover.ended_jobs AS
	SELECT e.job, e.status, m.relations, m.name, m.to_tablespace
	  FROM (SELECT k.job, coalesce(k.status, 'interrupted') AS status
			  FROM index_mover.job_log k
			  LEFT JOIN index_mover.alive() a ON a.job = k.job
			 WHERE ((k.status IN ('failed', 'canceled') AND k.finished_at BETWEEN now() - interval '7 days' AND now())
					OR k.status IS NULL)
			   AND a.job IS NULL AND k.acknowledged_at IS NULL AND NOT k.rehearse AND NOT pg_is_in_recovery()) e
	 CROSS JOIN LATERAL (
			SELECT count(*) AS relations, min(c.oid::regclass::text) AS name, min(l.to_tablespace::text) AS to_tablespace
			  FROM index_mover.move_log l
			 CROSS JOIN LATERAL (SELECT coalesce((SELECT g.oid FROM pg_class g WHERE g.oid = l.relation),
												 -- REINDEX CONCURRENTLY makes another of its name
												 (SELECT i.oid FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
												   WHERE x.indrelid = l.table_oid AND i.relname = l.relation_name)) AS oid OFFSET 0) r
			  JOIN pg_class c ON c.oid = r.oid
			 WHERE l.job = e.job AND l.kind NOT LIKE 'toast%'
			   AND (l.status IN ('failed', 'queued', 'running') OR l.status = 'canceled' AND l.sqlstate = '57P01')
			   AND coalesce(nullif(c.reltablespace, 0),
							(SELECT d.dattablespace FROM pg_database d WHERE d.datname = current_database())) <> l.to_tablespace_oid
			   -- LIMIT: so that it is looked up by index, and no join with all moves since
			   AND (SELECT true FROM index_mover.move_log n
					 WHERE n.relation = ANY (ARRAY[l.relation, c.oid]) AND n.job > l.job AND n.status <> 'skipped'
					   AND NOT (SELECT j.rehearse FROM index_mover.job_log j WHERE j.job = n.job) LIMIT 1) IS NULL) m
	 WHERE m.relations > 0;

-- Tablespaces whose devices are lost, another server's, or cannot be told from others; see evidence.c
CREATE FUNCTION index_mover.device_problems(OUT kind text, OUT tablespace name, OUT detail text, OUT command text) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'index_mover_device_problems' LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;

-- Where index_mover.online_alter is set, and has no effect: sessions there do not load the library, or
-- pgaudit's hook is called by ours, see online_alter.c.  Who may not see the libraries has no rows.
-- What ALTER ROLE stores is as it was typed: names and values of enums are compared in lower case.
CREATE VIEW index_mover.online_alter_problems AS
	WITH libraries AS (
		-- without their directories
		SELECT string_to_array(regexp_replace(max(setting) FILTER (WHERE name = 'shared_preload_libraries'), '[" ]|[^,]*/|[.]so', '', 'g'), ',') AS shared,
			   string_to_array(regexp_replace(max(setting) FILTER (WHERE name = 'session_preload_libraries'), '[" ]|[^,]*/|[.]so', '', 'g'), ',') AS session
		  FROM pg_settings),
	set_for AS (
		SELECT 'the server' AS object, NULL::text AS own_libraries
		  FROM pg_settings
		 WHERE name = 'index_mover.online_alter' AND setting <> 'off' AND source IN ('configuration file', 'command line')
		UNION ALL
		SELECT concat_ws(' in ', 'role ' || quote_ident(r.rolname), 'database ' || quote_ident(d.datname)),
			   -- of the rows that count for its sessions here the narrowest, as core takes them
			   (SELECT c FROM pg_db_role_setting o, unnest(o.setconfig) c
				 WHERE o.setrole IN (0, s.setrole) AND (o.setdatabase = 0 OR o.setdatabase = (SELECT h.oid FROM pg_database h WHERE h.datname = current_database()))
				   AND c ILIKE 'session\_preload\_libraries=%'
				 ORDER BY o.setrole = 0, o.setdatabase = 0 LIMIT 1)
		  FROM pg_db_role_setting s
		  LEFT JOIN pg_roles r ON r.oid = s.setrole
		  LEFT JOIN pg_database d ON d.oid = s.setdatabase
		 WHERE EXISTS (SELECT FROM unnest(s.setconfig) c
						WHERE lower(c COLLATE "C") IN ('index_mover.online_alter=on', 'index_mover.online_alter=require'))
		   AND (s.setdatabase = 0 OR d.datname = current_database()))
	SELECT s.object, 'index_mover.online_alter is set, but its sessions do not load the library: see session_preload_libraries' AS detail
	  FROM set_for s, libraries l
	 WHERE NOT 'index_mover' = ANY (l.shared)
	   AND CASE WHEN s.own_libraries IS NULL THEN NOT 'index_mover' = ANY (l.session) ELSE s.own_libraries !~ '[=,/" ]index_mover([.]so)?([", ]|$)' END
	UNION ALL
	SELECT 'pgaudit', 'no statement is carried out online, since pgaudit would not see it: list index_mover before pgaudit in shared_preload_libraries'
	  FROM libraries l
	 WHERE 'pgaudit' = ANY (l.shared) AND EXISTS (SELECT FROM set_for)
	   AND coalesce(array_position(l.shared, 'pgaudit') < array_position(l.shared, 'index_mover'), true);

-- What users have changed in our tables so that C cannot write them, see form_tuple() and check_index() of own_tables.c.
CREATE VIEW index_mover.changed_tables AS
	SELECT format('index_mover.%I', t.relname) AS object,
		   format('index "%s", which has an expression, a predicate or an exclusion constraint, keeps jobs and their ends from being recorded', i.relname) AS detail,
		   -- not of an exclusion constraint, which goes with that only
		   CASE WHEN NOT x.indisexclusion THEN index_mover.printed_command('drop_index', format('index_mover.%I', i.relname)) END AS command
	  FROM pg_class t
	  JOIN pg_index x ON x.indrelid = t.oid
	  JOIN pg_class i ON i.oid = x.indexrelid
	 WHERE t.relnamespace = 'index_mover'::regnamespace AND t.relkind = 'r'
	   AND (x.indexprs IS NOT NULL OR x.indpred IS NOT NULL OR x.indisexclusion)
	UNION ALL
	SELECT 'index_mover.' || o.name,
		   format('column "%s", which is added and NOT NULL, keeps jobs and their ends from being recorded', a.attname), NULL
	  -- the number of columns that C knows
	  FROM (VALUES ('ledger', 19), ('job_log', 19), ('move_log', 27), ('mount_point', 2), ('probe', 4), ('sample', 9), ('policy_run', 10)) o(name, columns)
	  JOIN pg_class t ON t.relnamespace = 'index_mover'::regnamespace AND t.relname = o.name
	  JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > o.columns AND a.attnotnull AND NOT a.attisdropped
	UNION ALL
	SELECT format('index_mover.%I', t.relname),
		   format('its access method "%s", which is not heap, keeps jobs and their ends from being recorded', m.amname), NULL
	  FROM pg_class t
	  JOIN pg_am m ON m.oid = t.relam
	 WHERE t.relnamespace = 'index_mover'::regnamespace AND t.relkind = 'r' AND m.amhandler <> 'heap_tableam_handler'::regproc;

-- The tables of ours that index_mover_check() reads, and whether no other session keeps them locked.
CREATE FUNCTION index_mover.readable_tables(OUT name text, OUT readable boolean, OUT locked_by int) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'index_mover_readable_tables' LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 4;

-- The rows of the check that come from these tables.  Volatile functions, so that they are planned, which locks
-- the tables, only when they are called; their argument is there so that they are called last.
CREATE FUNCTION index_mover.leftover_problems(
	readable boolean, OUT severity text, OUT kind text, OUT object text, OUT detail text, OUT command text) RETURNS SETOF record
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE ROWS 1
BEGIN ATOMIC
	SELECT 'warning', p.kind, p.object,
		   CASE p.kind WHEN 'rows of another cluster' THEN p.action
				ELSE format('an interrupted move has left it: %s%s', coalesce(pg_size_pretty(p.size), 'no file'),
							   ', kept until ' || p.kept_until) END,
		   p.command
	  FROM index_mover.problems(false) p;
END;
CREATE FUNCTION index_mover.job_problems(
	readable boolean, OUT severity text, OUT kind text, OUT object text, OUT detail text, OUT command text) RETURNS SETOF record
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE ROWS 1
BEGIN ATOMIC
	SELECT 'warning', 'ended job', 'job ' || e.job,
		   format('%s: %s is not in tablespace "%s"%s; resume the job, or have it reported no more: %s',
				  CASE e.status WHEN 'canceled' THEN 'its worker, or the server, was stopped' ELSE e.status END,
				  e.name, e.to_tablespace, CASE WHEN e.relations > 1 THEN format(', nor are %s others in their places', e.relations - 1) END,
				  index_mover.printed_command('cancel_move', e.job::text)),
		   index_mover.printed_command('resume_move', e.job::text)
	  FROM index_mover.ended_jobs e;
END;
CREATE FUNCTION index_mover.policy_problems(
	readable boolean, max_wait interval, OUT severity text, OUT kind text, OUT object text, OUT detail text, OUT command text) RETURNS SETOF record
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE ROWS 1
BEGIN ATOMIC
	SELECT 'warning', CASE t.result WHEN 'hindered' THEN 'hindered policy' ELSE 'failing policy' END,
		   t.policy::text, coalesce(t.message, 'job ' || t.job || ': ' || t.result, t.result),
		   -- a message is not about the job
		   CASE WHEN t.message IS NULL AND t.job IS NOT NULL THEN index_mover.printed_command('resume_move', t.job::text) ELSE s.command END
	  FROM @extschema@.tier_policy_status t
	  JOIN index_mover.policy_status() s ON s.policy = t.policy
	 -- one that is disabled because it had a function is failed, too
	 WHERE t.result IN ('failed', 'interrupted', 'hindered') AND (t.enabled OR s.has_function)
	   -- nor a job whose rest was moved since, or that was acknowledged: without every no run comes after it
	   AND (t.message IS NOT NULL OR t.job IS NULL OR EXISTS (SELECT FROM index_mover.ended_jobs e WHERE e.job = t.job))
	UNION ALL
	-- who has begun a run keeps others from it until the end of the transaction
	SELECT 'warning', 'overdue policy', t.policy::text,
		   format('its run was due at %s, and has not begun; no worker may be free, others may be planned, or a session that has run it may not have ended its transaction',
				  d.since::timestamptz(0)), NULL
	  FROM @extschema@.tier_policy_status t
	  JOIN index_mover.policy_status() s ON s.policy = t.policy
	 CROSS JOIN LATERAL (SELECT greatest(s.due, pg_postmaster_start_time()) AS since) d
	 -- also if its window is over, and the next run is due in the next one
	 WHERE s.due IS NOT NULL AND NOT pg_is_in_recovery()
	   AND (t.result IS NULL OR t.result NOT IN ('queued', 'running', 'paused')) AND d.since < clock_timestamp() - $2
	UNION ALL
	-- a job that has ended is no reason any more, whenever the next run is
	SELECT 'warning', 'waiting policy', t.policy::text, format('since %s: %s', s.waits_since::timestamptz(0), t.message), NULL
	  FROM @extschema@.tier_policy_status t
	  JOIN index_mover.policy_status() s ON s.policy = t.policy
	  JOIN index_mover.alive() a ON a.job = s.waits_for
	 WHERE t.enabled AND s.waits_since < clock_timestamp() - $2
	UNION ALL
	SELECT 'warning', 'unscheduled policy', t.policy::text,
		   'it has every, but no scheduler looks into this database: see index_mover.scheduler_databases', NULL
	  FROM @extschema@.tier_policy_status t WHERE NOT t.scheduled AND NOT index_mover.scheduler_looks() AND NOT pg_is_in_recovery();
END;

CREATE FUNCTION @extschema@.index_mover_check(
	max_wait interval DEFAULT '10 min',
	OUT severity text, OUT kind text, OUT object text, OUT detail text, OUT command text)
RETURNS SETOF record
LANGUAGE sql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE ROWS 10
BEGIN ATOMIC
	WITH tables AS MATERIALIZED (SELECT t.name, t.readable, t.locked_by FROM index_mover.readable_tables() t)
	SELECT 'warning', 'locked table', 'index_mover.' || t.name,
		   format('%s, so the problems on record there are not known',
				  coalesce('process ' || t.locked_by || ' has locked it',
						   'a prepared transaction has locked it, or a session waits to lock it')),
		   CASE WHEN t.locked_by IS NOT NULL THEN index_mover.printed_command('terminate_backend', t.locked_by::text) END
	  FROM tables t WHERE NOT t.readable
	UNION ALL
	SELECT p.severity, p.kind, p.object, p.detail, p.command
	  FROM (SELECT bool_and(t.readable) AS readable FROM tables t WHERE t.name = 'ledger' HAVING bool_and(t.readable)) r
	 CROSS JOIN LATERAL index_mover.leftover_problems(r.readable) p
	UNION ALL
	SELECT p.severity, p.kind, p.object, p.detail, p.command
	  FROM (SELECT bool_and(t.readable) AS readable FROM tables t WHERE t.name IN ('job_log', 'move_log')
			HAVING bool_and(t.readable)) r
	 CROSS JOIN LATERAL index_mover.job_problems(r.readable) p
	UNION ALL
	SELECT p.severity, p.kind, p.object, p.detail, p.command
	  FROM (SELECT bool_and(t.readable) AS readable FROM tables t WHERE t.name IN ('job_log', 'move_log', 'policy_run')
			HAVING bool_and(t.readable)) r
	 CROSS JOIN LATERAL index_mover.policy_problems(r.readable, greatest(least(coalesce($1, '10 min'), '4000 years'), '-4000 years')) p
	UNION ALL
	SELECT 'error', p.kind, p.object, p.action, p.command FROM index_mover.problems(true) p
	UNION ALL
	SELECT CASE d.kind WHEN 'lost device' THEN 'error' ELSE 'warning' END, d.kind, d.tablespace::text, d.detail, d.command
	  FROM index_mover.device_problems() d
	UNION ALL
	SELECT 'warning', 'waiting job', CASE r.job WHEN 0 THEN 'cleanup' ELSE 'job ' || r.job END,
		   -- it may look between two relations, and between two in its way
		   format('%s has waited since %s%s', coalesce(r.name, 'it'), r.blocked_since::timestamptz(0),
				  (SELECT ' for ' || string_agg(CASE b WHEN 0 THEN 'a prepared transaction' ELSE 'process ' || b END, ', ')
					 FROM unnest(r.blocked_by) b)),
		   index_mover.printed_command('blockers')
	  FROM index_mover.running() r
	 WHERE r.blocked_since < clock_timestamp() - greatest(least(coalesce($1, '10 min'), '4000 years'), '-4000 years')
	UNION ALL
	SELECT 'warning', 'paused job', 'job ' || a.job, format('it has been paused since %s', a.paused_since::timestamptz(0)),
		   index_mover.printed_command('resume_move', a.job::text)
	  FROM index_mover.alive() a
	 WHERE a.paused_since < clock_timestamp() - greatest(least(coalesce($1, '10 min'), '4000 years'), '-4000 years')
	UNION ALL
	-- not for max_rate or slow storage, between whose rests it goes on, nor until swap_after
	SELECT 'warning', 'resting job', 'job ' || r.job,
		   format('%s has rested since %s: %s', coalesce(r.name, 'it'), r.rests_since::timestamptz(0), coalesce(r.throttled_by, 'a standby or a slot is behind')),
		   index_mover.printed_command('blockers')
	  FROM index_mover.running() r
	 WHERE r.rests_since < clock_timestamp() - greatest(least(coalesce($1, '10 min'), '4000 years'), '-4000 years')
	UNION ALL
	SELECT 'warning', 'stopped policies', 'tier_policy', f.reason, f.command FROM index_mover.policy_fault() f
	UNION ALL
	SELECT 'warning', 'contradicting policies', c.policy, c.detail, NULL FROM index_mover.policy_conflicts() c WHERE NOT pg_is_in_recovery()
	UNION ALL
	SELECT 'warning', 'online alter', o.object, o.detail, NULL FROM index_mover.online_alter_problems o
	UNION ALL
	SELECT 'warning', 'changed table', c.object, c.detail, c.command FROM index_mover.changed_tables c;
END;

CREATE FUNCTION index_mover.check_job(job bigint) RETURNS void
AS 'MODULE_PATHNAME', 'index_mover_check_job' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

-- A job for who is woken by it: of each relation that has not come to its place what it waits for
-- now, and what can be done.
CREATE FUNCTION @extschema@.index_mover_explain(
	job bigint,
	OUT relation text, OUT to_tablespace name, OUT waits_for text, OUT since timestamptz, OUT choice text, OUT command text)
RETURNS SETOF record
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE ROWS 10
BEGIN ATOMIC
	SELECT index_mover.check_job($1);
	WITH workers AS (
		SELECT r.* FROM index_mover.running() r WHERE r.job = $1
	), state AS (
		SELECT count(*) > 0 AS is_alive, coalesce(bool_or(a.paused), false) AS paused, min(a.paused_since) AS paused_since,
			   coalesce(bool_or(a.cleaning_up), false) AS cleaning_up
		  FROM index_mover.alive() a WHERE a.job = $1
	), moves AS (
		SELECT m.relation, m.table_oid, m.to_tablespace, m.finished_at,
			   CASE WHEN m.status NOT IN ('queued', 'running') THEN m.status
					-- a standby cannot know which jobs of the primary are alive
					WHEN pg_is_in_recovery() THEN 'unknown'
					WHEN NOT s.is_alive THEN 'interrupted'
					ELSE 'open' END AS status,
			   -- as in index_mover_history
			   coalesce(nullif(m.relation::regclass::text, m.relation::text),
						CASE WHEN pg_table_is_visible(m.table_oid) THEN ''
							 ELSE quote_ident((parse_ident(m.table_name))[1]) || '.' END || quote_ident(m.relation_name)) AS name,
			   -- the path of a file begins with the number of its tablespace
			   coalesce((SELECT replace(m.message, p.path, format('tablespace "%s": ', p.spcname))
						   FROM (SELECT t.spcname, format('pg_tblspc/%s/', t.oid) AS path FROM pg_tablespace t
								 UNION ALL
								 SELECT 'pg_default', format('base/%s/', d.oid) FROM pg_database d WHERE d.datname = current_database()) p
						  WHERE position(p.path IN m.message) > 0 LIMIT 1), m.message) AS message
		  FROM index_mover.shown_move m
		 CROSS JOIN state s
		 WHERE m.job = $1 AND m.status IN ('queued', 'running', 'failed', 'canceled')
		   -- a TOAST table goes with its table
		   AND (m.kind NOT LIKE 'toast%' OR NOT EXISTS (SELECT FROM index_mover.shown_move t
														 WHERE t.job = $1 AND t.kind IN ('table', 'materialized view')))
		   AND NOT EXISTS (SELECT FROM index_mover.shown_move n WHERE n.relation = m.relation AND n.job > $1 AND n.status = 'moved')
	), facts AS (
		SELECT m.*, s.is_alive, s.paused, s.paused_since, s.cleaning_up, w.pid, w.phase, w.throttled_by, w.rest, w.blocked_by, w.blocked_since, w.rests_since,
			   w.started_at, w.eta, w.blocks_done, w.blocks_total, m.status = 'open' AND NOT s.paused AS goes_on,
			   m.status = 'open' AND coalesce(cardinality(w.blocked_by), 0) > 0 AS is_blocked,
			   m.status = 'open' AND NOT s.paused AND coalesce(cardinality(w.blocked_by), 0) = 0 AND w.throttled_by IS NOT NULL AS rests,
			   -- it may have been dropped meanwhile
			   (SELECT l.slot_name::text FROM pg_replication_slots l
				 WHERE NOT l.active AND l.slot_name = w.rest_slot) AS unread_slot
		  FROM moves m
		 CROSS JOIN state s
		  LEFT JOIN workers w ON w.relation = m.relation AND m.status = 'open'
	), waits AS (
		SELECT f.*, pg_has_role((SELECT j.role FROM index_mover.job_log j WHERE j.job = $1), 'USAGE') AS may_steer,
			   CASE WHEN f.status = 'unknown' THEN 'only the primary knows'
					WHEN f.status <> 'open' THEN
						 concat_ws(': ', f.status, f.message, CASE WHEN f.cleaning_up THEN 'the job has ended, and is still cleaning up'
																   WHEN f.is_alive THEN 'the job goes on with others' END)
					WHEN f.paused THEN 'the end of a pause of the job'
					WHEN f.pid IS NULL AND EXISTS (SELECT FROM workers) THEN
						 (SELECT format('its turn; the job moves %s', string_agg(coalesce(w.name, 'another relation'), ', ' ORDER BY w.pid)) FROM workers w)
					WHEN f.pid IS NULL THEN 'a worker process; the job has not begun'
					WHEN f.is_blocked THEN format('%s: %s', f.phase, (
						 SELECT string_agg(CASE b WHEN 0 THEN 'a prepared transaction' ELSE 'process ' || b END, ', ') FROM unnest(f.blocked_by) b))
					WHEN f.throttled_by IS NOT NULL THEN format('%s: %s', f.phase, f.throttled_by)
					WHEN f.phase = 'waiting for time to swap' THEN 'swap_after: ' || coalesce(
						 (SELECT j.settings ->> 'swap_after' FROM @extschema@.index_mover_jobs j WHERE j.job = $1), current_setting('index_mover.swap_after'))
					ELSE concat_ws(', ', f.phase,
						 CASE WHEN f.blocks_total > 0 THEN format('%s %%', 100 * f.blocks_done / f.blocks_total) END,
						 'about ' || date_trunc('second', f.eta) || ' left') END AS waits_for,
			   CASE WHEN f.status <> 'open' THEN f.finished_at
					WHEN f.paused THEN f.paused_since
					WHEN f.is_blocked THEN f.blocked_since
					-- between two rests for max_rate or slow storage it goes on
					WHEN f.throttled_by IS NOT NULL THEN coalesce(f.rests_since, f.started_at)
					ELSE f.started_at END AS since,
			   CASE WHEN cardinality(f.blocked_by) = 1 THEN ': the move goes on at once' ELSE '' END AS outcome
		  FROM facts f
	)
	SELECT w.name, w.to_tablespace, w.waits_for, date_trunc('second', w.since), c.choice,
		   -- what ends a session is of the view of blockers, which asks for more
		   CASE WHEN c.n = 1 OR w.may_steer THEN c.command END
	  FROM waits w
	 CROSS JOIN LATERAL (
			SELECT 1 AS n, format('end session %s (%s)%s', b.pid, b.name, w.outcome) AS choice, b.action AS command
			  FROM (SELECT WHERE w.is_blocked AND w.goes_on) x
			 CROSS JOIN LATERAL @extschema@.index_mover_blockers(NULL::regclass, NULL::interval) b
			 WHERE b.kind = 'session' AND b.pid = ANY (w.blocked_by)
			UNION ALL
			SELECT 1, format('end prepared transaction %s%s', b.name, w.outcome), b.action
			  FROM (SELECT w.table_oid::regclass AS relation WHERE w.goes_on AND 0 = ANY (w.blocked_by)
					   AND EXISTS (SELECT FROM pg_class t WHERE t.oid = w.table_oid)) x
			 CROSS JOIN LATERAL @extschema@.index_mover_blockers(x.relation, NULL::interval) b
			 WHERE b.kind = 'prepared transaction' AND b.holds_back LIKE 'locks on %'
			UNION ALL
			SELECT 2, 'wait: it goes on automatically when these have ended', NULL WHERE w.is_blocked AND w.goes_on
			UNION ALL
			SELECT 3, 'copy without a limit: it may slow down clients', index_mover.printed_command('alter_move', $1::text, 'max_rate', '0')
			 WHERE w.rest = 'rate' AND w.goes_on
			UNION ALL
			SELECT 3, 'read without a limit: it may slow down clients', index_mover.printed_command('alter_move', $1::text, 'max_read_share', '1')
			 WHERE w.rest = 'reading' AND w.goes_on
			UNION ALL
			SELECT 3, 'drop the slot: whoever has read it has to begin again', index_mover.printed_command('drop_slot', w.unread_slot)
			 WHERE w.rests AND w.unread_slot IS NOT NULL
			UNION ALL
			SELECT 3, 'do not wait for it, unless max_slot_wal_keep_size would invalidate a slot: it gets further behind',
				   index_mover.printed_command('alter_move', $1::text, 'max_replica_lag', '0')
			 WHERE w.rests AND w.rest = 'lag'
			UNION ALL
			SELECT 3, 'have a checkpoint at once: it removes WAL, and slows down clients', index_mover.printed_command('checkpoint')
			 WHERE w.rests AND w.rest = 'checkpoint'
			UNION ALL
			SELECT 3, 'see why the archiver fails', index_mover.printed_command('archiver')
			 WHERE w.rests AND w.rest = 'archiver'
			UNION ALL
			SELECT 4, 'use all free space: if others fill the disk, what writes there fails', index_mover.printed_command('alter_move', $1::text, 'min_free_space', '0')
			 WHERE w.rests AND w.rest IN ('free space', 'checkpoint', 'archiver')
			UNION ALL
			SELECT 5, 'wait: it goes on automatically when that is over', NULL WHERE w.rests
			UNION ALL
			SELECT 4, 'swap now: the exclusive lock is taken when no session holds another', index_mover.printed_command('resume_move', $1::text)
			 WHERE w.phase = 'waiting for time to swap' AND w.goes_on
			UNION ALL
			SELECT 5, 'go on', index_mover.printed_command('resume_move', $1::text) WHERE w.status = 'open' AND w.paused
			UNION ALL
			SELECT 6, 'move what is left, in another job', index_mover.printed_command('resume_move', $1::text)
			 WHERE w.status <> 'unknown' AND NOT w.is_alive AND NOT pg_is_in_recovery()
			UNION ALL
			SELECT 7, 'leave it where it is, and have it reported no more', index_mover.printed_command('cancel_move', $1::text)
			 WHERE w.status <> 'unknown' AND NOT w.is_alive AND NOT pg_is_in_recovery()
			UNION ALL
			SELECT 8, 'end the job: what it has moved stays moved, and this one stays where it is', index_mover.printed_command('cancel_move', $1::text)
			 WHERE w.status = 'open'
			UNION ALL
			SELECT 9, 'wait', NULL WHERE w.goes_on AND w.pid IS NULL
			UNION ALL
			SELECT 9, 'wait for the end of the job, and move it in another', NULL WHERE w.status <> 'open' AND w.is_alive
			UNION ALL
			SELECT 9, 'call it on the primary', NULL WHERE pg_is_in_recovery()) c
	 ORDER BY w.pid IS NULL, w.name, c.n, c.command;
END;

CREATE VIEW @extschema@.relation_heat AS
	SELECT h.relation, h.kind, h.tablespace, h.size, h.reads_per_second, h.heat, h.period, h.samples,
		   h.last_use, h.last_index_use, h.last_change, h.known_since
	  FROM @extschema@.relation_heat(NULL::interval) h;

CREATE FUNCTION @extschema@.tier_plan(
	policy_name name DEFAULT NULL, at timestamptz DEFAULT NULL,
	OUT policy name, OUT relation regclass, OUT kind text, OUT size bigint,
	OUT from_tablespace name, OUT to_tablespace name, OUT moves boolean, OUT reason text,
	OUT heat float8, OUT estimated interval,
	OUT from_used float8, OUT from_used_after float8, OUT to_used float8, OUT to_used_after float8) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'index_mover_tier_plan' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE ROWS 100;

CREATE FUNCTION @extschema@.run_tier_policies(policy_name name DEFAULT NULL, wait boolean DEFAULT false) RETURNS SETOF @extschema@.move_result
AS 'MODULE_PATHNAME', 'index_mover_run_tier_policies' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE ROWS 100;

-- What each of them is.  The arguments of a routine are looked up: the schema may have
-- others of that name.

SELECT index_mover.execute(format('COMMENT ON %s %s IS %L', c.kind, coalesce(p.oid::regprocedure::text, '@extschema@.' || name), c.comment))
  FROM (VALUES
	('TYPE', 'move_result', 'the outcome of one relation of a call, or the plan for it'),
	('COLUMN', 'move_result.job', 'number of the job, the same in all rows of a call; NULL in a dry run'),
	('COLUMN', 'move_result.name index_mover_progress.name index_mover_history.name', 'the table or index, as regclass prints it'),
	('COLUMN', 'move_result.kind index_mover_progress.kind index_mover_history.kind', 'table, toast, toast index, index, or default: the tablespace for new partitions, or their indexes'),
	('COLUMN', 'move_result.status', 'planned, queued, moved, rehearsed, skipped, failed or canceled'),
	('COLUMN', 'move_result.method index_mover_progress.method', 'copy or rebuild; NULL where there is no file or none was chosen'),
	('COLUMN', 'move_result.size', 'bytes of the result; of a plan, bytes that will be written'),
	('COLUMN', 'move_result.elapsed index_mover_history.elapsed', 'time that the move took, waits included; in a plan the estimate'),
	('COLUMN', 'move_result.lock_time index_mover_history.lock_time', 'how long a copy held the exclusive lock; NULL where there was none'),
	('COLUMN', 'move_result.sqlstate index_mover_history.sqlstate', 'SQLSTATE why the relation was not moved; with status moved: of an error after the move'),
	('COLUMN', 'move_result.detail', 'why the relation was not moved; in a plan: why this method, WAL, and free space; else NULL'),
	('ROUTINE', 'move_indexes', 'move every index of a table, or one index, to a tablespace while reads and writes go on'),
	('ROUTINE', 'move_schema_indexes', 'move every index of a schema''s tables to a tablespace while reads and writes go on; name_like and name_not_like pick by the index''s name, min_size and max_size by its size in bytes'),
	('ROUTINE', 'move_tablespace_indexes', 'move every index of this database that is in one tablespace to another while reads and writes go on; name_like and name_not_like pick by the index''s name, min_size and max_size by its size in bytes'),
	('ROUTINE', 'move_table', 'move a table with its TOAST table to a tablespace while reads and writes go on; its indexes, too, if asked for'),
	('ROUTINE', 'move_schema_tables', 'move every table of a schema with its TOAST table to a tablespace while reads and writes go on; name_like and name_not_like pick by the table''s name, min_size and max_size by its size in bytes'),
	('ROUTINE', 'evacuate_tablespace', 'move everything of this database that is in one tablespace to another while reads and writes go on, and say what stays and why'),
	('ROUTINE', 'heal_tablespace', 'rebuild the indexes of this database whose files in a tablespace are lost; until then, hide them from the planner'),
	('ROUTINE', 'wait_for_move', 'wait for the end of a job, by default this session''s last one, without holding a snapshot; raise an error if a move failed or was canceled'),
	('ROUTINE', 'undo_move', 'move every relation of a job back to where it was, with the job''s settings'),
	('VIEW', 'index_mover_progress', 'the running moves of this database, one row per worker'),
	('COLUMN', 'index_mover_progress.pid', 'process ID of the worker'),
	('COLUMN', 'index_mover_progress.job', 'number of the job; 0: a cleanup that no call asked for'),
	('COLUMN', 'index_mover_progress.table_name index_mover_history.table_name', 'the table, or the table of the index'),
	('COLUMN', 'index_mover_progress.phase', 'the step that the worker is in'),
	('COLUMN', 'index_mover_progress.throttled_by', 'why the worker rests; NULL if it works'),
	('COLUMN', 'index_mover_progress.blocks_total', 'blocks of the present phase; 0 where it counts none'),
	('COLUMN', 'index_mover_progress.blocks_done', 'blocks of the present phase that are done'),
	('COLUMN', 'index_mover_progress.blocks_changed', 'blocks that have changed since they were copied'),
	('COLUMN', 'index_mover_progress.bytes_per_second', 'bytes per second that a copy writes'),
	('COLUMN', 'index_mover_progress.eta', 'time left of a copy; NULL if unknown, and while blocks change faster than they can be copied'),
	('COLUMN', 'index_mover_progress.lock_attempts index_mover_history.lock_attempts', 'attempts of a copy at the exclusive lock'),
	('COLUMN', 'index_mover_progress.blocked_by', 'process IDs that the worker waits for; 0: a prepared transaction'),
	('COLUMN', 'index_mover_progress.wal_lag_bytes', 'bytes of WAL by which the last standby or slot is behind'),
	('COLUMN', 'index_mover_progress.started_at index_mover_history.started_at', 'when the move of this relation began'),
	('COLUMN', 'index_mover_progress.blocked_since', 'since when the worker waits for other processes, with interruptions of less than a minute'),
	('VIEW', 'index_mover_history', 'every move of every job of this database, also failed, canceled and interrupted ones'),
	('COLUMN', 'index_mover_history.job index_mover_jobs.job', 'number of the job'),
	('COLUMN', 'index_mover_history.from_tablespace', 'tablespace of the relation before the move'),
	('COLUMN', 'index_mover_history.to_tablespace', 'target tablespace of the move'),
	('COLUMN', 'index_mover_history.method', 'copy, rebuild, or default for a partitioned table or index'),
	('COLUMN', 'index_mover_history.status index_mover_jobs.status', 'queued, running, paused, moved, rehearsed, skipped, failed, canceled or interrupted'),
	('COLUMN', 'index_mover_history.size_before', 'bytes of all files of the relation before the move'),
	('COLUMN', 'index_mover_history.size_after', 'bytes of all files of the relation after the move'),
	('COLUMN', 'index_mover_history.finished_at', 'when the move of this relation ended'),
	('COLUMN', 'index_mover_history.blocks_copied', 'blocks that a copy has copied in its first pass'),
	('COLUMN', 'index_mover_history.blocks_recopied', 'blocks that a copy has copied again, because they had changed'),
	('COLUMN', 'index_mover_history.wal_bytes', 'bytes of WAL that the worker has written for this relation'),
	('COLUMN', 'index_mover_history.message', 'why the relation was not moved; else why this method'),
	('COLUMN', 'index_mover_history.role index_mover_jobs.role', 'role that submitted the job'),
	('VIEW', 'index_mover_jobs', 'every job of this database, newest first'),
	('COLUMN', 'index_mover_jobs.moved', 'relations that were moved'),
	('COLUMN', 'index_mover_jobs.total', 'relations of the job'),
	('COLUMN', 'index_mover_jobs.percent', 'percent of the job''s bytes that are copied or moved, or need no move any more; 100: all'),
	('COLUMN', 'index_mover_jobs.size', 'bytes of all relations of the job before the move'),
	('COLUMN', 'index_mover_jobs.bytes_per_second', 'bytes per second that the job''s copies write now'),
	('COLUMN', 'index_mover_jobs.eta', 'time left at the rate of bytes_per_second, or of the relation that needs longest; NULL if unknown'),
	('COLUMN', 'index_mover_jobs.longest_lock', 'longest time that a copy of the job held the exclusive lock'),
	('COLUMN', 'index_mover_jobs.tablespace', 'target tablespace; NULL if there are several'),
	('COLUMN', 'index_mover_jobs.started_at', 'when the move of the first relation began, or else when the job was submitted'),
	('COLUMN', 'index_mover_jobs.finished_at', 'when the move of the last relation ended, or else when the job was submitted; NULL if it has not ended'),
	('COLUMN', 'index_mover_jobs.policy', 'tier policy that the job carries out; NULL: none'),
	('COLUMN', 'index_mover_jobs.settings', 'settings of the job that are not the default'),
	('ROUTINE', 'cancel_move', 'cancel a job, or all jobs that the caller may control; moved relations stay moved; keep: the file of a large copy stays for resume_move(); returns the number of jobs'),
	('ROUTINE', 'pause_move', 'pause a job, or all jobs that the caller may control: a copy at once, a rebuild before it builds its next index; returns the number of jobs'),
	('ROUTINE', 'resume_move', 'let a paused job go on, end its wait for swap_after, or queue the relations of an ended job that failed, were canceled or interrupted, or lacked a privilege; returns the job that goes on'),
	('ROUTINE', 'alter_move', 'change a setting of a running or paused job'),
	('ROUTINE', 'index_mover_cleanup', 'remove the files and indexes that crashed or killed moves have left behind, and old history'),
	('ROUTINE', 'index_bloat', 'share of an index that a rebuild would give back, with a 95 % interval, from a random sample of its pages'),
	('ROUTINE', 'gin_pending_list', 'length of a GIN index''s pending list, what it costs each search, and what to do, in this order'),
	('ROUTINE', 'index_report', 'size, use, bloat and pending list of every user table and index, or of those of one relation'),
	('ROUTINE', 'tablespace_probe', 'measure the storage of a tablespace with a temporary file, and suggest cost settings'),
	('ROUTINE', 'withdraw_probes', 'withdraw results of tablespace_probe(), since a moment or all, and return them'),
	('ROUTINE', 'take_index_sample', 'record how much each index and table was used, for recommend_moves() and tier policies; call it on a schedule'),
	('ROUTINE', 'recommend_moves', 'which indexes and tables gain most from a tablespace, or from a disk that is not there, within a budget of bytes; which would have to leave; and why'),
	('ROUTINE', 'index_mover_blockers', 'sessions, prepared transactions, slots and standbys that hold back vacuum, rebuilds and the swap of a copy, and what to do'),
	('TABLE', 'tier_policy', 'where relations belong by age, because they are idle, by heat, or because a file system is full; run_tier_policies() moves them there'),
	('COLUMN', 'tier_policy.name tier_policy_status.policy', 'name of the policy'),
	('COLUMN', 'tier_policy.enabled tier_policy_status.enabled', 'whether tier_plan(), run_tier_policies() and the scheduler look at it'),
	('COLUMN', 'tier_policy.relation', 'partitioned table whose partitions the policy is for, or (not older_than) one table; NULL: all'),
	('COLUMN', 'tier_policy.schema', 'schema whose relations the policy is for; NULL: all'),
	('COLUMN', 'tier_policy.from_tablespace', 'tablespace that relations leave, each part of a table separately; NULL: any'),
	('COLUMN', 'tier_policy.to_tablespace', 'tablespace that relations move to'),
	('COLUMN', 'tier_policy.parts', 'table, indexes or all: tables, their indexes, or both'),
	('COLUMN', 'tier_policy.older_than', 'time since the upper bound of a range partition after which it moves'),
	('COLUMN', 'tier_policy.idle_for', 'time without use after which a table or index moves'),
	('COLUMN', 'tier_policy.idle_of', 'what counts as use for idle_for: use = scans and changes, index use = index scans and changes, change = changes only'),
	('COLUMN', 'tier_policy.key_unit', 'for older_than, what an integer key counts (seconds, milliseconds, microseconds, or days since 1970), or how it writes a date (yyyymmdd, yyyymm); uuid7: a UUID of version 7'),
	('COLUMN', 'tier_policy.key_zero', 'for older_than, in place of key_unit: the integer key of 1970-01-01 00:00:00 UTC'),
	('COLUMN', 'tier_policy.keys_per_second', 'by how much the key of key_zero grows in a second'),
	('COLUMN', 'tier_policy.budget', 'bytes of to_tablespace for the hottest tables and indexes; the others move back to from_tablespace'),
	('COLUMN', 'tier_policy.start_at', 'share in use of the file system of from_tablespace at which the coldest relations leave it'),
	('COLUMN', 'tier_policy.stop_at', 'share in use of that file system below which no more relations leave it'),
	('COLUMN', 'tier_policy.freeze_first', 'VACUUM (FREEZE) a table before it moves by older_than'),
	('COLUMN', 'tier_policy.min_stay', 'least time for which a relation that was moved stays'),
	('COLUMN', 'tier_policy.half_life', 'age at which reads count half as much as those of now, for heat'),
	('COLUMN', 'tier_policy.max_bytes_per_run', 'most bytes that one run moves'),
	('COLUMN', 'tier_policy.every', 'interval between runs of the policy by the scheduler; NULL: none'),
	('COLUMN', 'tier_policy.window_start', 'time of day from which the scheduler may start a run'),
	('COLUMN', 'tier_policy.window_end', 'time of day after which a scheduled run starts no further relation; if before window_start, of the next day'),
	('COLUMN', 'tier_policy.settings', 'settings of the policy''s jobs'),
	('COLUMN', 'tier_policy.owner tier_policy_status.owner', 'role that the policy is planned and carried out as'),
	('COLUMN', 'tier_policy.scheduled_since', 'when enabled, every, the window or the owner was last set, by a trigger: no run was due before'),
	('COLUMN', 'tier_policy.owner_oid', 'OID of the owner, set by a trigger; NULL: the policy has no valid owner'),
	('VIEW', 'tier_policy_status', 'the last run of each tier policy, its result, and the next one'),
	('COLUMN', 'tier_policy_status.last_run', 'when the last run began; NULL: there was none'),
	('COLUMN', 'tier_policy_status.job', 'job of the last run, or of its rest; NULL: nothing was to be moved, or the history has no such job'),
	('COLUMN', 'tier_policy_status.result', 'failed, hindered, waits, nothing to move, or the status of the job; NULL: the history has no such job'),
	('COLUMN', 'tier_policy_status.message', 'why the last run itself has failed, is hindered, or waits; NULL: it does not'),
	('COLUMN', 'tier_policy_status.next_run', 'earliest time of the next run by the scheduler; NULL: there is none'),
	('COLUMN', 'tier_policy_status.scheduled', 'whether the scheduler carries the policy out; NULL: it has no "every", or is disabled'),
	('COLUMN', 'tier_policy_status.moved_relations', 'tables and indexes that this job has moved; NULL: no job'),
	('COLUMN', 'tier_policy_status.moved_bytes', 'bytes that this job has moved; NULL: no job'),
	('VIEW', 'tier_policy_days', 'what each policy has moved on each day of the last year'),
	('COLUMN', 'tier_policy_days.policy', 'name of the policy'),
	('COLUMN', 'tier_policy_days.day', 'day, in the time zone of the session, on which a move ended'),
	('COLUMN', 'tier_policy_days.relations', 'tables and indexes that were moved on that day'),
	('COLUMN', 'tier_policy_days.bytes', 'bytes that were moved on that day'),
	('ROUTINE', 'index_mover_check', 'problems in this database: leftovers, lost files, policies that fail, can do nothing or are not scheduled, jobs that have ended without their work, or have waited, rested or been paused longer than max_wait; no row: all is well'),
	('ROUTINE', 'relation_heat', 'the same as the view relation_heat, with reads that count half at another age'),
	('ROUTINE', 'index_mover_explain', 'what the relations of a job that are not in their places wait for, and what can be done, with the commands'),
	('VIEW', 'relation_heat', 'how much each table and index is read, by the samples of take_index_sample()'),
	('COLUMN', 'relation_heat.relation relation_heat.kind', 'table or index'),
	('COLUMN', 'relation_heat.tablespace', 'tablespace of the relation'),
	('COLUMN', 'relation_heat.size', 'size in bytes, of a table with its TOAST table'),
	('COLUMN', 'relation_heat.reads_per_second', 'blocks read into shared buffers a second'),
	('COLUMN', 'relation_heat.heat', 'blocks read a second for index scans and changes; sequential scans, VACUUM and pg_dump do not count'),
	('COLUMN', 'relation_heat.period', 'time over which the rates were measured'),
	('COLUMN', 'relation_heat.samples', 'number of samples in that time; 0: the rates come from the cumulative statistics'),
	('COLUMN', 'relation_heat.last_use', 'last scan or change that was seen on this server, or the sample after it; NULL: none'),
	('COLUMN', 'relation_heat.last_index_use', 'last index scan or change that was seen on this server, or the sample after it; NULL: none'),
	('COLUMN', 'relation_heat.last_change', 'last change that was seen on this server, or the sample after it; NULL: none'),
	('COLUMN', 'relation_heat.known_since', 'time since when samples can have missed no use'),
	('ROUTINE', 'tier_plan', 'relations that run_tier_policies() would move, now or at another time, those that stay, and why; estimated from earlier moves'),
	('ROUTINE', 'run_tier_policies', 'move the relations that tier_plan() names, in one job for each policy, as its owner')) c(kind, names, comment)
 CROSS JOIN string_to_table(c.names, ' ') name
  LEFT JOIN (pg_proc p
			 JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
			 JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'index_mover') ON c.kind = 'ROUTINE' AND p.proname = name AND p.pronamespace <> 'index_mover'::regnamespace;

-- What printed commands call (src/printed_command.c): with the privileges that
-- the caller has on what it stands for, hence open to all.  STRICT, because
-- cancel_move(NULL) is for all jobs.

CREATE SCHEMA index_mover_call;
COMMENT ON SCHEMA index_mover_call IS 'functions and views of the extension index_mover, for the commands that it prints';

CREATE FUNCTION index_mover_call.move_indexes(relation regclass, tablespace name, method text DEFAULT 'auto', wait boolean DEFAULT true) RETURNS SETOF @extschema@.move_result LANGUAGE sql STRICT
RETURN @extschema@.move_indexes($1, $2, $3, false, false, $4, NULL::jsonb);

CREATE FUNCTION index_mover_call.move_table(relation regclass, tablespace name, wait boolean DEFAULT true) RETURNS SETOF @extschema@.move_result LANGUAGE sql STRICT
RETURN @extschema@.move_table($1, $2, false, NULL::name, false, false, false, $3, NULL::jsonb);

CREATE FUNCTION index_mover_call.move_schema_indexes(schema regnamespace, tablespace name, wait boolean) RETURNS SETOF @extschema@.move_result LANGUAGE sql STRICT
RETURN @extschema@.move_schema_indexes($1, $2, 'auto'::text, false, false, $3, NULL::jsonb,
	NULL::text, NULL::text, NULL::bigint, NULL::bigint);

CREATE FUNCTION index_mover_call.move_schema_tables(schema regnamespace, tablespace name, wait boolean) RETURNS SETOF @extschema@.move_result LANGUAGE sql STRICT
RETURN @extschema@.move_schema_tables($1, $2, false, NULL::name, false, false, false, $3, NULL::jsonb,
	NULL::text, NULL::text, NULL::bigint, NULL::bigint);

CREATE FUNCTION index_mover_call.evacuate_tablespace(from_tablespace name, to_tablespace name) RETURNS SETOF @extschema@.move_result LANGUAGE sql STRICT
RETURN @extschema@.evacuate_tablespace($1, $2, false, false, false, true, NULL::jsonb);

CREATE FUNCTION index_mover_call.heal_tablespace(tablespace name) RETURNS SETOF @extschema@.move_result LANGUAGE sql STRICT
RETURN @extschema@.heal_tablespace($1, NULL::name, false, false, true, NULL::jsonb);

CREATE FUNCTION index_mover_call.cancel_move(job bigint) RETURNS int LANGUAGE sql STRICT
RETURN @extschema@.cancel_move($1, false);

CREATE FUNCTION index_mover_call.resume_move(job bigint) RETURNS bigint LANGUAGE sql STRICT
RETURN @extschema@.resume_move($1, NULL::jsonb);

CREATE FUNCTION index_mover_call.undo_move(job bigint) RETURNS SETOF @extschema@.move_result LANGUAGE sql STRICT
RETURN @extschema@.undo_move($1, false, true, NULL::jsonb);

CREATE FUNCTION index_mover_call.alter_move(job bigint, setting text, value text) RETURNS boolean LANGUAGE sql STRICT
RETURN @extschema@.alter_move($1, $2, $3);

CREATE FUNCTION index_mover_call.index_mover_cleanup(
	OUT kind text, OUT object text, OUT tablespace name, OUT size bigint, OUT action text)
RETURNS SETOF record LANGUAGE sql
BEGIN ATOMIC SELECT c.* FROM @extschema@.index_mover_cleanup(false) c; END;

CREATE FUNCTION index_mover_call.tablespace_probe(tablespace name) RETURNS jsonb LANGUAGE sql STRICT
RETURN (SELECT to_jsonb(p) FROM @extschema@.tablespace_probe($1, '1 s'::interval, 32, NULL::regclass) p);

CREATE VIEW index_mover_call.index_mover_blockers WITH (security_invoker) AS SELECT * FROM @extschema@.index_mover_blockers(NULL::regclass, '1 s'::interval);
CREATE VIEW index_mover_call.index_mover_check WITH (security_invoker) AS SELECT * FROM @extschema@.index_mover_check('10 min'::interval);
CREATE VIEW index_mover_call.index_mover_progress WITH (security_invoker) AS SELECT * FROM @extschema@.index_mover_progress;
CREATE VIEW index_mover_call.index_mover_history WITH (security_invoker) AS SELECT * FROM @extschema@.index_mover_history;
CREATE VIEW index_mover_call.index_mover_jobs WITH (security_invoker) AS SELECT * FROM @extschema@.index_mover_jobs;

-- For monitors, which poll: the numbers of jobs that have not ended, or ended in the last 24 hours.
CREATE VIEW index_mover_call.recent_jobs AS
	SELECT a.job FROM index_mover.alive() a
	UNION SELECT k.job FROM index_mover.job_log k WHERE k.status IS NULL
	UNION SELECT k.job FROM index_mover.job_log k
		   WHERE k.status IN ('moved', 'rehearsed', 'skipped', 'failed', 'canceled') AND k.finished_at BETWEEN now() - interval '1 day' AND now();

-- Privileges.  What is not granted here only the owner has, also where
-- ALTER DEFAULT PRIVILEGES has given it to roles, or to PUBLIC.

SELECT index_mover.execute(format('REVOKE ALL ON %s %s FROM %s', a.kind, o.identity,
								  CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END))
  FROM pg_extension e
  JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
 CROSS JOIN LATERAL pg_identify_object(d.classid, d.objid, 0) o
 CROSS JOIN LATERAL (
		SELECT 'TABLE', c.relacl FROM pg_class c WHERE d.classid = 'pg_class'::regclass AND c.oid = d.objid
		UNION ALL SELECT 'ROUTINE', coalesce(p.proacl, acldefault('f', p.proowner)) FROM pg_proc p WHERE d.classid = 'pg_proc'::regclass AND p.oid = d.objid
		UNION ALL SELECT 'SCHEMA', n.nspacl FROM pg_namespace n WHERE d.classid = 'pg_namespace'::regclass AND n.oid = d.objid
		UNION ALL SELECT 'TYPE', t.typacl FROM pg_type t WHERE d.classid = 'pg_type'::regclass AND t.oid = d.objid) a(kind, acl)
 CROSS JOIN LATERAL (SELECT DISTINCT x.grantee FROM aclexplode(a.acl) x) g
 WHERE e.extname = 'index_mover' AND g.grantee <> e.extowner;
DROP FUNCTION index_mover.execute(text);

-- the result of a call may be a column of a view
GRANT USAGE ON TYPE @extschema@.move_result TO PUBLIC;

GRANT SELECT ON @extschema@.index_mover_progress, @extschema@.index_mover_history, @extschema@.index_mover_jobs TO PUBLIC;
-- what index_mover_history shows, which is for the role that reads it
GRANT SELECT (job, relation, relation_name, kind, table_oid, table_name, from_tablespace, to_tablespace, method, status,
			  size_before, size_after, started_at, finished_at, lock_time, lock_attempts,
			  blocks_copied, blocks_recopied, wal_bytes, sqlstate, message) ON index_mover.move_log TO PUBLIC;
GRANT SELECT ON index_mover.shown_move TO PUBLIC;
GRANT SELECT (job, role) ON index_mover.job_log TO PUBLIC;
GRANT SELECT (system_identifier, relation, job, copied_blocks, keep_until) ON index_mover.ledger TO PUBLIC;
-- who may read a column sees its values in pg_stats, where no row security is asked
ALTER TABLE index_mover.job_log ALTER job SET STATISTICS 0, ALTER role SET STATISTICS 0;
ALTER TABLE index_mover.ledger ALTER system_identifier SET STATISTICS 0, ALTER relation SET STATISTICS 0, ALTER job SET STATISTICS 0,
	ALTER copied_blocks SET STATISTICS 0, ALTER keep_until SET STATISTICS 0;
-- of other roles' sessions a role sees no more than in pg_stat_activity
GRANT EXECUTE ON FUNCTION @extschema@.index_mover_blockers(regclass, interval), index_mover.is_ours, index_mover.check_relation,
	index_mover.session_action, @extschema@.index_mover_explain(bigint), index_mover.check_job TO PUBLIC;
GRANT EXECUTE ON FUNCTION index_mover.visible_jobs, index_mover.sees_all_jobs, index_mover.alive, index_mover.running, index_mover.printed_command, index_mover.policy_status TO PUBLIC;
GRANT USAGE ON SCHEMA index_mover_call TO PUBLIC;
GRANT SELECT ON ALL TABLES IN SCHEMA index_mover_call TO PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA index_mover_call TO PUBLIC;

GRANT EXECUTE ON FUNCTION @extschema@.index_bloat(regclass, int, boolean), @extschema@.gin_pending_list(regclass),
	-- that the latter uses
	index_mover.pending_list, index_mover.pending_steps, index_mover.pending_advice
	TO pg_stat_scan_tables;

GRANT EXECUTE ON FUNCTION @extschema@.index_report(regclass, boolean), @extschema@.tablespace_probe(name, interval, int, regclass),
	@extschema@.withdraw_probes(name, timestamptz),
	@extschema@.take_index_sample(interval), @extschema@.recommend_moves(name, bigint, interval, float8, float8),
	@extschema@.relation_heat(interval), @extschema@.index_mover_check(interval),
	index_mover.problems, index_mover.readable_tables, index_mover.leftover_problems, index_mover.job_problems,
	index_mover.policy_problems, index_mover.device_problems, index_mover.relation_report,
	index_mover.movable_methods, index_mover.relation_heat, index_mover.stats_since,
	index_mover.scheduler_looks, index_mover.policy_fault, index_mover.policy_conflicts TO pg_monitor;
GRANT SELECT ON @extschema@.relation_heat, @extschema@.tier_policy_status, @extschema@.tier_policy_days, index_mover.ended_jobs, index_mover.online_alter_problems,
	index_mover.changed_tables TO pg_monitor;

