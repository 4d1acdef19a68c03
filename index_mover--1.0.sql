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
