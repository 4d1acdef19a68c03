/*-------------------------------------------------------------------------
 *
 * index_mover.c
 *	  Move indexes and tables to another tablespace while they are in use: the
 *	  SQL functions that move.
 *
 * Locks: the caller's session holds none of ours when the wait begins; the
 * planner releases the locks that it takes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "call/call.h"
#include "file_system.h"
#include "job.h"
#include "plan/plan.h"
#include "rebuild/rebuild.h"
#include "rebuild/snapshot_guard.h"
#include "settings.h"
#include "test_points.h"
#include "tier/tier.h"
#include "worker/worker.h"

PGDLLEXPORT void _PG_init(void);

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(index_mover_move_indexes);
PG_FUNCTION_INFO_V1(index_mover_move_schema_indexes);
PG_FUNCTION_INFO_V1(index_mover_move_tablespace_indexes);
PG_FUNCTION_INFO_V1(index_mover_move_table);
PG_FUNCTION_INFO_V1(index_mover_move_schema_tables);
PG_FUNCTION_INFO_V1(index_mover_evacuate_tablespace);
PG_FUNCTION_INFO_V1(index_mover_heal_tablespace);

/* The arguments with which all of these end, from a number on */
enum
{
	LAST_REHEARSE,
	LAST_DRY_RUN,
	LAST_WAIT,
	LAST_SETTINGS,
	/* only of the functions for a schema or a tablespace, but for evacuate */
	LAST_PICKS,
};

static shmem_request_hook_type prev_shmem_request_hook = NULL;

static void
request_shmem(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	job_request_shmem();
	RequestAddinShmemSpace(snapshot_guard_shmem_size());
}

void
_PG_init(void)
{
#ifdef INDEX_MOVER_TEST
	test_points_define();
#endif
	/* first, because settings_define() reserves the prefix */
	tier_scheduler_register();
	janitor_register();
	cleanup_call_init();
	settings_define();
	submit_init();
	snapshot_guard_init();
	rebuild_init();

	/* without preloading, the slack of the main segment is used */
	if (process_shared_preload_libraries_in_progress)
	{
		prev_shmem_request_hook = shmem_request_hook;
		shmem_request_hook = request_shmem;
	}
}

/* Read the last arguments from number n on, but for rehearse.  Returns wait. */
static bool
get_last_arguments(FunctionCallInfo fcinfo, const char *function, PlanRequest *request, int n)
{
	JobTerms	terms = request->settings.terms;
	bool		wait;

	reject_null(fcinfo, n + LAST_DRY_RUN, "dry_run");
	reject_null(fcinfo, n + LAST_WAIT, "wait");
	request->dry_run = PG_GETARG_BOOL(n + LAST_DRY_RUN);
	wait = PG_GETARG_BOOL(n + LAST_WAIT);
	call_check_moment(function, request->dry_run, wait);
	settings_capture(&request->settings, call_settings_argument(fcinfo, n + LAST_SETTINGS));
	request->settings.terms = terms;
	request->waits = wait && !request->dry_run;
	return wait;
}

/*
 * Plan the moves, carry them out, and return their rows.  The caller has set
 * the relations of the request; the last arguments begin with number n.
 */
static Datum
move(FunctionCallInfo fcinfo, const char *function, PlanRequest *request, int n)
{
	bool		wait;

	reject_null(fcinfo, n + LAST_REHEARSE, "rehearse");
	request->settings.terms.rehearse = PG_GETARG_BOOL(n + LAST_REHEARSE);
	wait = get_last_arguments(fcinfo, function, request, n);
	request->to_tablespace = plan_target_tablespace(NameStr(*PG_GETARG_NAME(1)));
	result_rows_of_plan(fcinfo, plan_moves(request), &request->settings,
						request->dry_run, wait);
	return (Datum) 0;
}

/* The common part of the functions for indexes. */
static Datum
move_indexes(FunctionCallInfo fcinfo, const char *function, PlanRequest *request)
{
	reject_null(fcinfo, 1, request->scope == SCOPE_TABLESPACE ? "to_tablespace" : "tablespace");
	reject_null(fcinfo, 2, "method");
	request->indexes = true;
	request->method = call_parse_method(text_to_cstring(PG_GETARG_TEXT_PP(2)));
	return move(fcinfo, function, request, 3);
}

/* The common part of the functions for tables. */
static Datum
move_tables(FunctionCallInfo fcinfo, const char *function, PlanRequest *request,
			const char *object)
{
	reject_null(fcinfo, 0, object);
	reject_null(fcinfo, 1, "tablespace");
	reject_null(fcinfo, 2, "indexes");
	reject_null(fcinfo, 4, "freeze_first");
	request->object = PG_GETARG_OID(0);
	request->tables = true;
	request->indexes = PG_GETARG_BOOL(2);
	request->settings.terms.freeze_first = PG_GETARG_BOOL(4);
	if (!PG_ARGISNULL(3))
	{
		if (!request->indexes)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("index_tablespace requires indexes => true")));
		request->index_tablespace = plan_target_tablespace(NameStr(*PG_GETARG_NAME(3)));
	}
	return move(fcinfo, function, request, 5);
}

/*
 * Get the filters from four arguments from number arg on: name_like,
 * name_not_like, min_size, max_size.  NULL picks all.
 */
static void
get_picks(FunctionCallInfo fcinfo, int arg, PlanRequest *request)
{
	if (!PG_ARGISNULL(arg))
		request->name_like = PG_GETARG_TEXT_PP(arg);
	if (!PG_ARGISNULL(arg + 1))
		request->name_not_like = PG_GETARG_TEXT_PP(arg + 1);
	request->min_size = call_size_argument(fcinfo, arg + 2, "min_size");
	request->max_size = call_size_argument(fcinfo, arg + 3, "max_size");
	if (request->max_size > 0 && request->min_size > request->max_size)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("min_size must not be greater than max_size"),
				 errhint("They are bytes, as of pg_size_bytes('10GB').")));
}

/*
 * move_indexes(relation regclass, tablespace name,
 *		method text DEFAULT 'auto', rehearse boolean DEFAULT false,
 *		dry_run boolean DEFAULT false, wait boolean DEFAULT true,
 *		settings jsonb DEFAULT NULL) RETURNS SETOF move_result
 *
 * Moves every index of a table, materialized view or partitioned table, or one
 * index, to a tablespace.  rehearse: make the copies, compare and discard them,
 * and move nothing; rows then have status "rehearsed".  Returns one row per
 * index; sizes in bytes.
 *
 * Locks: the calling session keeps none after planning.  While the worker
 * rebuilds an index, it holds ShareUpdateExclusiveLock on table and index,
 * see rebuild.c.  While it copies one, it holds AccessShareLock on the table
 * and ShareUpdateExclusiveLock on the index, and for the swap
 * AccessExclusiveLock on the index, see copy_swap.c.
 *
 * Privileges: ownership of the table (from 17 on, MAINTAIN on it suffices)
 * and CREATE on the tablespace; EXECUTE is revoked from PUBLIC.
 *
 * ERRORs: 22004 an argument is NULL; 22023 method, setting, or pg_global; 25001
 * wait => true in a transaction block; 25006 read-only transaction or recovery;
 * 40P01 the move would wait for this session; 42501 privileges; 42704
 * tablespace; 42809 wrong kind of relation; 0A000 system catalogs, temporary
 * tables, TOAST tables and their indexes; 53000 no worker or no slot; 55006 the
 * table is being moved, or this transaction holds a lock on it; 55000
 * on_failure = error; 57014 canceled.
 */
Datum
index_mover_move_indexes(PG_FUNCTION_ARGS)
{
	PlanRequest request = {.scope = SCOPE_RELATION};

	reject_null(fcinfo, 0, "relation");
	request.object = PG_GETARG_OID(0);
	return move_indexes(fcinfo, "move_indexes()", &request);
}

/*
 * move_schema_indexes(schema regnamespace, tablespace name, ...,
 *		name_like text DEFAULT NULL, name_not_like text DEFAULT NULL,
 *		min_size bigint DEFAULT NULL, max_size bigint DEFAULT NULL)
 *		RETURNS SETOF move_result
 *
 * As move_indexes(), for every table of a schema.  An index that the caller
 * may not move has a row "skipped" with 42501.  An index that the LIKE
 * patterns for its name or the limits of its size in bytes exclude has no
 * row.
 */
Datum
index_mover_move_schema_indexes(PG_FUNCTION_ARGS)
{
	PlanRequest request = {.scope = SCOPE_SCHEMA};

	reject_null(fcinfo, 0, "schema");
	request.object = PG_GETARG_OID(0);
	get_picks(fcinfo, 3 + LAST_PICKS, &request);
	return move_indexes(fcinfo, "move_schema_indexes()", &request);
}

/*
 * move_tablespace_indexes(from_tablespace name, to_tablespace name, ...)
 *		RETURNS SETOF move_result
 *
 * As move_schema_indexes(), for every index of this database that is in
 * from_tablespace.
 */
Datum
index_mover_move_tablespace_indexes(PG_FUNCTION_ARGS)
{
	PlanRequest request = {.scope = SCOPE_TABLESPACE};

	reject_null(fcinfo, 0, "from_tablespace");
	request.object = plan_source_tablespace(NameStr(*PG_GETARG_NAME(0)));
	get_picks(fcinfo, 3 + LAST_PICKS, &request);
	return move_indexes(fcinfo, "move_tablespace_indexes()", &request);
}

/*
 * move_table(relation regclass, tablespace name,
 *		indexes boolean DEFAULT false, index_tablespace name DEFAULT NULL,
 *		freeze_first boolean DEFAULT false, rehearse boolean DEFAULT false,
 *		dry_run boolean DEFAULT false, wait boolean DEFAULT true,
 *		settings jsonb DEFAULT NULL) RETURNS SETOF move_result
 *
 * Moves a table or materialized view with its TOAST table and the index of
 * that, by method copy; of a partitioned table every partition, and the
 * default for new ones.  indexes: their indexes as well, to index_tablespace
 * or the same, as move_indexes() does.  freeze_first: VACUUM (FREEZE) each
 * table first.  rehearse: as move_indexes().  Returns one row per relation; sizes in
 * bytes.  A table that cannot be copied has a row "skipped" with 0A000.
 *
 * Locks: the calling session keeps none after planning.  The worker holds
 * AccessShareLock on the table and its TOAST table, ShareUpdateExclusiveLock on
 * the index of that, and AccessExclusiveLock on all three for their one swap,
 * see copy_swap.c.
 *
 * Privileges: ownership of the table, and CREATE on the tablespaces; EXECUTE is
 * revoked from PUBLIC.
 *
 * ERRORs: those of move_indexes(); 22023 also index_tablespace without
 * indexes; 42809 also an index.
 */
Datum
index_mover_move_table(PG_FUNCTION_ARGS)
{
	PlanRequest request = {.scope = SCOPE_RELATION};

	return move_tables(fcinfo, "move_table()", &request, "relation");
}

/*
 * move_schema_tables(schema regnamespace, tablespace name, ...,
 *		name_like text DEFAULT NULL, name_not_like text DEFAULT NULL,
 *		min_size bigint DEFAULT NULL, max_size bigint DEFAULT NULL)
 *		RETURNS SETOF move_result
 *
 * As move_table(), for every table and materialized view of a schema.  A table
 * that the caller may not move has a row "skipped" with 42501.  A table that
 * the LIKE patterns for its name or the limits of its own size in bytes
 * exclude has no row, nor have its TOAST table and its indexes.
 */
Datum
index_mover_move_schema_tables(PG_FUNCTION_ARGS)
{
	PlanRequest request = {.scope = SCOPE_SCHEMA};

	get_picks(fcinfo, 5 + LAST_PICKS, &request);
	return move_tables(fcinfo, "move_schema_tables()", &request, "schema");
}

/*
 * evacuate_tablespace(from_tablespace name, to_tablespace name,
 *		freeze_first boolean DEFAULT false, rehearse boolean DEFAULT false,
 *		dry_run boolean DEFAULT false, wait boolean DEFAULT true,
 *		settings jsonb DEFAULT NULL) RETURNS SETOF move_result
 *
 * Moves every table, materialized view and index of this database that is in
 * from_tablespace, and the defaults of partitioned ones last.  Has a row
 * "skipped" for each thing that stays there, with the reason; its kind can be
 * "database", "system catalogs", "temporary files" or "setting", too.  A NOTICE
 * names the tier policies that would fill it again.  Otherwise
 * as move_tablespace_indexes() and move_table().
 */
Datum
index_mover_evacuate_tablespace(PG_FUNCTION_ARGS)
{
	PlanRequest request = {.scope = SCOPE_TABLESPACE,.tables = true,.indexes = true,
	.evacuate = true};

	reject_null(fcinfo, 0, "from_tablespace");
	reject_null(fcinfo, 1, "to_tablespace");
	reject_null(fcinfo, 2, "freeze_first");
	request.object = plan_source_tablespace(NameStr(*PG_GETARG_NAME(0)));
	request.settings.terms.freeze_first = PG_GETARG_BOOL(2);
	policies_notice_target(request.object);
	return move(fcinfo, "evacuate_tablespace()", &request, 3);
}

/*
 * heal_tablespace(tablespace name, to_tablespace name DEFAULT NULL,
 *		dry_run boolean DEFAULT false, wait boolean DEFAULT true,
 *		settings jsonb DEFAULT NULL) RETURNS SETOF move_result
 *
 * Rebuilds each index of this database in a tablespace whose file is lost or a ruin,
 * where it was or, but for those of TOAST tables, in to_tablespace; before, hides it
 * from the planner, so that queries work at once.  Makes the directory of the
 * server's version, if it is missing.  One row for each lost relation; sizes before
 * from pg_class.relpages.  Tables are only named (skipped, XX001).
 *
 * Locks: see plan/lost_index.c and rebuild.c; what REINDEX CONCURRENTLY cannot rebuild
 * is rebuilt by REINDEX, for whose locks each attempt waits at most lock_timeout.
 *
 * ERRORs: those of move_indexes(); 55000 the file system may not be mounted.
 */
Datum
index_mover_heal_tablespace(PG_FUNCTION_ARGS)
{
	PlanRequest request = {.scope = SCOPE_TABLESPACE,.indexes = true,.heal = true,
	.method = METHOD_REBUILD};
	bool		wait;

	reject_null(fcinfo, 0, "tablespace");
	/* in place of rehearse there is to_tablespace */
	wait = get_last_arguments(fcinfo, "heal_tablespace()", &request, 1);
	request.object = request.to_tablespace = plan_source_tablespace(NameStr(*PG_GETARG_NAME(0)));
	if (!PG_ARGISNULL(1))
		request.to_tablespace = plan_target_tablespace(NameStr(*PG_GETARG_NAME(1)));
	plan_check_mounted(request.object, request.dry_run || request.settings.heal_unmounted);
	if (!request.dry_run && request.object == request.to_tablespace)
		tablespace_make_directory(request.object);
	result_rows_of_plan(fcinfo, plan_moves(&request), &request.settings, request.dry_run, wait);
	return (Datum) 0;
}
