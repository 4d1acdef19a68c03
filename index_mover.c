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

#include "catalog/pg_tablespace.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"

#include "call/call.h"
#include "evidence.h"
#include "file_system.h"
#include "job.h"
#include "lost_copy.h"
#include "lost_guard.h"
#include "plan/plan.h"
#include "rebuild/rebuild.h"
#include "rebuild/snapshot_guard.h"
#include "ruins.h"
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
	job_init();
	settings_define();
	launcher_register();
	online_alter_init();
	submit_init();
	snapshot_guard_init();
	rebuild_init();
	evidence_init();
	lost_copy_init();
	lost_guard_init();
	ruins_init();

	/* without preloading, the slack of the main segment is used */
	if (process_shared_preload_libraries_in_progress)
	{
		prev_shmem_request_hook = shmem_request_hook;
		shmem_request_hook = request_shmem;
	}
}

/* Return the rows of a call that moves, and tell it which policies would undo that. */
static Datum
rows_of_moves(FunctionCallInfo fcinfo, List *plan, const MoveCall *call)
{
	policies_notice_pressure(plan);
	return result_rows_of_call(fcinfo, plan, call);
}

/*
 * move_indexes(relation regclass, tablespace name, method text DEFAULT 'auto',
 *		rehearse boolean DEFAULT false, dry_run boolean DEFAULT false,
 *		wait boolean DEFAULT true, settings jsonb DEFAULT NULL)
 *		RETURNS SETOF move_result
 * move_schema_indexes(schema regnamespace, tablespace name, ..., name_like text,
 *		name_not_like text, min_size bigint, max_size bigint)
 * move_tablespace_indexes(from_tablespace name, to_tablespace name, ...)
 *
 * Moves every index of a table, materialized view or partitioned table, or one
 * index, to a tablespace; of every table of a schema; or that this database has in
 * from_tablespace.  An index that the LIKE patterns for its name or the limits of
 * its size in bytes exclude has no row.  rehearse: make the copies, compare and
 * discard them, and move nothing; rows then have status "rehearsed".  Returns one
 * row per index; sizes in bytes.
 *
 * Locks: the calling session keeps none after planning.  While the worker
 * rebuilds an index, it holds ShareUpdateExclusiveLock on table and index,
 * see rebuild.c.  While it copies it, it holds AccessShareLock on the table
 * and ShareUpdateExclusiveLock on the index, and for the swap
 * AccessExclusiveLock on the index, see copy_swap.c.
 *
 * Privileges: ownership of the table (from 17 on, MAINTAIN on it suffices)
 * and CREATE on the tablespace; EXECUTE is revoked from PUBLIC.  An index that the
 * user did not name, and may not move, has a row "skipped" with 42501.
 *
 * ERRORs: 22004 an argument is NULL; 22023 method, sizes, setting, or pg_global;
 * 25001 wait => true in a transaction block; 25006 read-only transaction or
 * recovery; 40P01 the move would wait for this session; 42501 privileges; 42704
 * tablespace; 42809 wrong kind of relation; 0A000 system catalogs, temporary
 * tables, TOAST tables and their indexes; 53000 no worker or no slot; 55006 the
 * table is being moved, or this transaction holds a lock on it; 55000
 * on_failure = error; 57014 canceled.
 */
Datum
index_mover_move_indexes(PG_FUNCTION_ARGS)
{
	MoveCall	call = {.kinds = PLAN_INDEXES};
	List	   *plan;

	call_arguments(fcinfo, &call);
	plan = plan_named(&call.request, call.relation, PLAN_INDEXES);
	return rows_of_moves(fcinfo, plan, &call);
}

Datum
index_mover_move_schema_indexes(PG_FUNCTION_ARGS)
{
	MoveCall	call = {.kinds = PLAN_INDEXES};
	List	   *plan;

	call_arguments(fcinfo, &call);
	plan = plan_schema(&call.request, call.schema, PLAN_INDEXES);
	return rows_of_moves(fcinfo, plan, &call);
}

Datum
index_mover_move_tablespace_indexes(PG_FUNCTION_ARGS)
{
	MoveCall	call = {.kinds = PLAN_INDEXES};
	List	   *plan;

	call_arguments(fcinfo, &call);
	plan = plan_tablespace_indexes(&call.request, call.from_tablespace);
	return rows_of_moves(fcinfo, plan, &call);
}

/*
 * move_table(relation regclass, tablespace name, indexes boolean DEFAULT false,
 *		index_tablespace name DEFAULT NULL, freeze_first boolean DEFAULT false,
 *		rehearse, dry_run, wait, settings) RETURNS SETOF move_result
 * move_schema_tables(schema regnamespace, tablespace name, ..., name_like text,
 *		name_not_like text, min_size bigint, max_size bigint)
 *
 * Moves a table or materialized view, or all of a schema, with its TOAST table
 * and the index of that, by method copy; of a partitioned table every partition,
 * and the default for new partitions.  indexes: their indexes as well, to
 * index_tablespace or the same, as move_indexes() does.  freeze_first: VACUUM
 * (FREEZE) each table first.  A table that is excluded, as by
 * move_schema_indexes(), but by its own name and size, has no row, nor have its
 * TOAST table and its indexes; a table that cannot be copied has a row "skipped" with
 * 0A000.
 *
 * Locks: the calling session keeps none after planning.  The worker holds
 * AccessShareLock on the table and its TOAST table, ShareUpdateExclusiveLock on
 * the index of that, and AccessExclusiveLock on all three for their common swap,
 * see copy_swap.c.
 *
 * Privileges: ownership of the table, and CREATE on the tablespaces.  Otherwise,
 * and in its ERRORs, as move_indexes(); 22023 also index_tablespace without
 * indexes; 42809 also an index.
 */
Datum
index_mover_move_table(PG_FUNCTION_ARGS)
{
	MoveCall	call = {.kinds = PLAN_TABLES};
	List	   *plan;

	call_arguments(fcinfo, &call);
	plan = plan_named(&call.request, call.relation, call.kinds);
	return rows_of_moves(fcinfo, plan, &call);
}

Datum
index_mover_move_schema_tables(PG_FUNCTION_ARGS)
{
	MoveCall	call = {.kinds = PLAN_TABLES};
	List	   *plan;

	call_arguments(fcinfo, &call);
	plan = plan_schema(&call.request, call.schema, call.kinds);
	return rows_of_moves(fcinfo, plan, &call);
}

/*
 * evacuate_tablespace(from_tablespace name, to_tablespace name,
 *		freeze_first boolean DEFAULT false, rehearse, dry_run, wait, settings)
 *		RETURNS SETOF move_result
 *
 * Moves every table, materialized view and index of this database that is in
 * from_tablespace, and the defaults of partitioned tables last.  Has a row
 * "skipped" for each thing that stays there, with the reason; its kind can be
 * "database", "system catalogs", "temporary files" or "setting", too.  A NOTICE
 * names the tier policies that would fill it again.  Otherwise as move_indexes()
 * and move_table().
 */
Datum
index_mover_evacuate_tablespace(PG_FUNCTION_ARGS)
{
	MoveCall	call = {.kinds = PLAN_BOTH};
	List	   *plan;

	call_arguments(fcinfo, &call);
	policies_notice_target(call.from_tablespace);
	plan = plan_evacuation(&call.request, call.from_tablespace);
	return rows_of_moves(fcinfo, plan, &call);
}

/*
 * Make the directory of a tablespace that came back empty, and in which this database has
 * nothing: it may be for temporary files.  Not for a role that may not use it.
 */
static void
heal_directory(Oid tablespace, bool dry_run, bool force)
{
	if (!tablespace_is_missing(tablespace) ||
		object_aclcheck(TableSpaceRelationId, tablespace, GetUserId(), ACL_CREATE) != ACLCHECK_OK)
		return;
	mount_point_check(tablespace, force);
	if (dry_run)
	{
		ereport(NOTICE,
				(errmsg("the directory of tablespace \"%s\" is missing", tablespace_name(tablespace)),
				 errdetail("Without dry_run, the call makes it.")));
		return;
	}
	tablespace_make_directory(tablespace);
	ereport(NOTICE,
			(errmsg("made the directory of tablespace \"%s\"", tablespace_name(tablespace)),
			 errdetail("It was missing, so there could be no temporary files.")));
}

/*
 * heal_tablespace(tablespace name, to_tablespace name DEFAULT NULL,
 *		unmounted boolean DEFAULT false, dry_run, wait, settings)
 *		RETURNS SETOF move_result
 *
 * Rebuilds each index of this database in a tablespace whose file is lost or a ruin,
 * where it was or, but for indexes of TOAST tables, in to_tablespace; before, hides
 * it from the planner.  Makes the directory of the server's version, if it is missing.
 * unmounted: also where the file system may not be mounted.
 * A row for each lost relation (table: skipped, XX001), sizes before from relpages.
 *
 * Locks: see plan/lost.c and rebuild.c; an index that REINDEX CONCURRENTLY cannot
 * rebuild is rebuilt by REINDEX, for whose locks each attempt waits at most lock_timeout.
 *
 * Privileges: as for move_indexes(); unmounted is for superusers.
 *
 * ERRORs: as move_indexes(); 42501 also unmounted; 55000 the file system may not
 * be mounted.
 */
Datum
index_mover_heal_tablespace(PG_FUNCTION_ARGS)
{
	MoveCall	call = {.kinds = PLAN_INDEXES,.source = "tablespace"};
	bool		force;
	bool		in_place;
	List	   *plan;

	call.request.method = METHOD_REBUILD;
	call_arguments(fcinfo, &call);
	force = call.dry_run || call.unmounted;
	in_place = call.from_tablespace == call.request.to_tablespace;
	plan = plan_healing(&call.request, call.from_tablespace);
	if (plan == NIL)
		heal_directory(call.from_tablespace, call.dry_run, force);
	else
		mount_point_check(call.from_tablespace, force);
	/* only if the role may heal something */
	if (in_place && !call.dry_run && plan_has_moves(plan))
		tablespace_make_directory(call.from_tablespace);
	return result_rows_of_call(fcinfo, plan, &call);
}
