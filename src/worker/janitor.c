/*-------------------------------------------------------------------------
 *
 * janitor.c
 *	  Lost indexes: a cleanup that the launcher has started looks for them in its database,
 *	  in tablespaces with nothing else, and in tablespaces whose device is not known.
 *
 * To read all pages of such a tablespace can take hours.  So files of indexes that are known to be
 * lost are emptied by another worker (emptying.c), which waits for no cleanup.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_tablespace.h"
#include "commands/dbcommands.h"
#include "commands/tablespace.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "errors.h"
#include "evidence.h"
#include "file_system.h"
#include "history.h"
#include "own_tables.h"
#include "plan/plan.h"
#include "printed_command.h"
#include "test_points.h"
#include "worker/worker.h"

/* the time between two jobs that heal is doubled this often at most */
#define MOST_DOUBLINGS	8

/* A tablespace to look at; with nothing but indexes, all that is lost there may be rebuilt. */
typedef struct LookAt
{
	Oid			tablespace;
	bool		has_tables;
	double		again_at;		/* no job begins before clock_seconds() */
	bool		healing;		/* the result: a job has begun, or has to wait */
} LookAt;

/*
 * Make the directory of a tablespace in which this database has nothing, if it came back empty:
 * temporary files are to be there.  To make it does no harm to other databases.
 */
static void
look_at_unused(void *arg)
{
	Oid			tablespace = *(const Oid *) arg;
	bool		makes = false;

	if (tablespace_hindrance(tablespace) == NULL)
		mount_point_note(tablespace);
	else if (tablespace_is_missing(tablespace))
		makes = evidence_claim(tablespace);
	if (makes)
	{
		mount_point_check(tablespace, false);
		tablespace_make_directory(tablespace);
		ereport(LOG,
				(errmsg("made the directory of tablespace \"%s\"", tablespace_name(tablespace)),
				 errdetail("It was missing, so there could be no temporary files.")));
	}
}

/* Do so for a list of tablespaces.  A file system that is not mounted is looked at again when it is. */
static void
look_at_all_unused(List *tablespaces)
{
	foreach_oid(tablespace, tablespaces)
	{
		ErrorData  *error = errors_catch_in_transaction(look_at_unused, &tablespace);

		if (error != NULL)
			ereport(LOG,
					(errmsg("could not make the directory of a tablespace: %s", error->message),
					 errors_repeat(error)));
	}
}

/* Tell of the lost indexes of a tablespace, or start a job that rebuilds them. */
static void
look_at(void *arg)
{
	LookAt	   *what = arg;
	Oid			tablespace = what->tablespace;
	bool		heals = false;
	char	   *name = get_tablespace_name(tablespace);
	PlanRequest request = {.method = METHOD_REBUILD,.to_tablespace = tablespace};
	List	   *lost = NIL;
	List	   *plan;
	HTAB	   *busy;

	if (heal_at_start && !what->has_tables)
		heals = evidence_claim(tablespace);
	busy = job_busy_tables();
	settings_capture(&request.settings, NULL, false);
	request.settings.terms.heals = true;
	request.files_were_seen = true;
	plan = plan_healing(&request, tablespace);
	foreach_ptr(PlannedMove, move, plan)
	{
		MoveItem   *item = &move->item;

		/* a job may be at work on it; a job of ours waits for that job's end */
		if (item->outcome.status == STATUS_PLANNED &&
			(heals || hash_search(busy, &item->relid, HASH_FIND, NULL) == NULL))
			lost = lappend(lost, item);
	}
	if (plan != NIL)
		evidence_refute(tablespace);
	if (!plan_has_moves(plan))
		mount_point_note(tablespace);
	else if (heals && clock_seconds() < what->again_at)
		what->healing = true;
	else if (heals)
	{
		dsm_segment *segment;
		JobShared  *shared;

		mount_point_check(tablespace, false);
		tablespace_make_directory(tablespace);
		shared = job_launch_create(history_next_job(), MyDatabaseId, GetUserId(),
								   JOB_MOVE, JOB_STARTING, lost, &request.settings, false,
								   &segment);
		(void) job_launch_worker(shared->slot, shared->job);
		dsm_detach(segment);
		what->healing = true;
	}
	else if (lost != NIL)
		ereport(WARNING,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg_plural("%d index in tablespace \"%s\" is lost",
							   "%d indexes in tablespace \"%s\" are lost",
							   list_length(lost), list_length(lost), name),
				 errhint("To rebuild them, in database \"%s\": %s", get_database_name(MyDatabaseId),
						 printed_command("heal", name))));
}

/* Look at the files of a tablespace, and tell of losses.  Returns the error, or NULL. */
static ErrorData *
read_and_look(LookAt *what)
{
	MemoryContext context = CurrentMemoryContext;
	ErrorData  *volatile error = NULL;

	PG_TRY();
	{
		lost_look_at_files(what->tablespace);
	}
	PG_CATCH();
	{
		error = errors_take(context);
	}
	PG_END_TRY();
	if (error == NULL)
		error = errors_catch_in_transaction(look_at, what);
	return error;
}

/*
 * Return the tablespaces in which to look at indexes, in the order of their OIDs: those in
 * *with_tables only if their device is doubtful.  *unused have no relation of this database.
 * Where a file is known to be lost, the round has found something already.
 */
static List *
tablespaces_to_look_at(List **with_tables, List **unused)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *result = NIL;

	*with_tables = list_make1_oid(MyDatabaseTableSpace);
	*unused = NIL;
	StartTransactionCommand();
	(void) GetTransactionSnapshot();

	/*
	 * nothing is settled there; a transaction that commits from here on is
	 * seen below
	 */
	if (evidence_doubtful() != NIL)
	{
		foreach_oid(tablespace, evidence_uncommitted())
			evidence_refute(tablespace);
	}
	foreach_ptr(HeapTupleData, row, catalog_all(RelationRelationId))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);
		List	  **list = form->relkind == RELKIND_INDEX ? &result : with_tables;

		/*
		 * temporary files that a session that crashed has left are nothing to
		 * keep
		 */
		if (!RELKIND_HAS_STORAGE(form->relkind) || form->relpersistence == RELPERSISTENCE_TEMP)
			continue;
		MemoryContextSwitchTo(context);
		*list = list_append_unique_oid(*list, tablespace_from_catalog(form->reltablespace));
		if (evidence_knows_lost(row))
			evidence_refute(tablespace_from_catalog(form->reltablespace));
	}
	MemoryContextSwitchTo(context);
	foreach_ptr(HeapTupleData, row, catalog_all(TableSpaceRelationId))
	{
		Oid			tablespace = ((Form_pg_tablespace) GETSTRUCT(row))->oid;

		MemoryContextSwitchTo(context);
		if (tablespace >= FirstNormalObjectId && !list_member_oid(result, tablespace) &&
			!list_member_oid(*with_tables, tablespace))
			*unused = lappend_oid(*unused, tablespace);
	}
	MemoryContextSwitchTo(context);
	result = list_difference_oid(result, *with_tables);
	foreach_oid(tablespace, evidence_doubtful())
	{
		if (list_member_oid(*with_tables, tablespace))
			result = list_append_unique_oid(result, tablespace);
	}
	if (!extension_installed())
		result = *unused = NIL;
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	list_sort(result, list_oid_cmp);
	return result;
}

/*
 * Look for lost indexes in this database, in the tablespaces in which there is
 * nothing else, or whose device is not known.  Called with no transaction open.  Stops
 * where a job cannot start yet: other jobs may have all workers, or its tables, if several
 * databases or devices are lost.  The next cleanup goes on from there, and meanwhile the
 * session is not in the way.
 */
void
janitor_look(Look *look)
{
	List	   *with_tables;
	List	   *unused;
	List	   *tablespaces = tablespaces_to_look_at(&with_tables, &unused);
	bool		healing = false;

	look_at_all_unused(unused);
	foreach_oid(tablespace, tablespaces)
	{
		LookAt		what = {0};
		ErrorData  *error = NULL;
		bool		later = false;

		what.tablespace = tablespace;
		what.again_at = look->again_at;
		what.has_tables = list_member_oid(with_tables, tablespace);
		if (tablespace >= look->from)
			error = read_and_look(&what);
		if (error != NULL)
		{
			later = error->sqlerrcode == ERRCODE_OBJECT_IN_USE ||
				error->sqlerrcode == ERRCODE_INSUFFICIENT_RESOURCES;
			evidence_refute(tablespace);
		}
		/* once, if it has to wait */
		if (error != NULL && (!later || tablespace != look->from))
			ereport(WARNING,
					(errmsg("could not look for lost indexes: %s", error->message),
					 errors_repeat(error)));

		/*
		 * the launcher sees to it that a job has no failures, or begins
		 * another one
		 */
		if ((later || what.healing) && !OidIsValid(look->stopped))
			look->stopped = tablespace;
		if (what.healing)
			healing = true;
		if (later)
			break;
	}
	if (healing && clock_seconds() >= look->again_at)
	{
		int64		pause_ms = (int64) CLEANUP_AGAIN_MS << Min(look->jobs, MOST_DOUBLINGS);

		look->jobs++;
		look->again_at = clock_seconds() + pause_ms / 1000.0;
	}
	look->done = true;
}
