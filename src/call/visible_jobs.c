/*-------------------------------------------------------------------------
 *
 * visible_jobs.c
 *	  Which jobs of the history the current user may see, for the views of monitors.
 *
 * A role sees its own jobs and the jobs of its tables, pg_read_all_stats sees all.  Row
 * security of move_log says the same row by row.  But a role that sees few would make
 * the views read the whole history for these few, so they ask here for the newest, which
 * are found by indexes, and look one by one only at older jobs.
 *
 * A query of a view calls this more than once.  So all is read under the query's snapshot:
 * else a job that is committed meanwhile would shift the newest jobs of one call against the
 * rest of another, and a job between them would be missing.
 *
 * Locks: AccessShareLock on the tables that are read, briefly.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "history.h"
#include "row.h"
#include "test_points.h"

PG_FUNCTION_INFO_V1(index_mover_sees_all_jobs);
PG_FUNCTION_INFO_V1(index_mover_visible_jobs);

/* So many jobs are listed, more than a screen shows */
#define NEWEST_JOBS		50
/* So many moves are looked at before tables are looked up, for a role that owns many */
#define NEWEST_MOVES	200

typedef struct VisibleJobs
{
	int			count;
	int64		jobs[NEWEST_JOBS + 1];	/* the newest, in ascending order */

	/* how far the look at the newest moves has come */
	int			moves_seen;
	int64		complete_after; /* later jobs are in the list, if visible */
} VisibleJobs;

/*
 * Add a job, unless it is there; in a full list it takes the place of the oldest.  Returns
 * false if it is older than all of a full list.
 */
static bool
add_job(int64 job, void *arg)
{
	VisibleJobs *list = arg;
	int			n = list->count;

	if (n == lengthof(list->jobs) && job <= list->jobs[0])
		return false;
	while (n > 0 && list->jobs[n - 1] > job)
		n--;
	if (n > 0 && list->jobs[n - 1] == job)
		return true;
	if (list->count == lengthof(list->jobs))
	{
		n--;
		memmove(&list->jobs[0], &list->jobs[1], n * sizeof(int64));
	}
	else
	{
		memmove(&list->jobs[n + 1], &list->jobs[n], (list->count - n) * sizeof(int64));
		list->count++;
	}
	list->jobs[n] = job;
	return true;
}

/* Return whether the current user owns a table, which may be gone. */
static bool
owns_table(Oid table)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(table));
	bool		result = false;

	if (HeapTupleIsValid(tuple))
	{
		result = has_privs_of_role(GetUserId(), ((Form_pg_class) GETSTRUCT(tuple))->relowner);
		ReleaseSysCache(tuple);
	}
	return result;
}

/* Look at one of the newest moves, for history_newest_moves(). */
static bool
look_at_move(int64 job, Oid table, void *arg)
{
	VisibleJobs *list = arg;

	list->complete_after = job;
	if (list->moves_seen++ == NEWEST_MOVES)
		return false;
	if (owns_table(table))
		(void) add_job(job, list);
	return true;
}

/* Add the jobs of the roles whose privileges the current user has. */
static void
add_jobs_of_roles(VisibleJobs *list)
{
	Relation	rel = table_open(AuthIdRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Oid			role = ((Form_pg_authid) GETSTRUCT(tuple))->oid;

		if (has_privs_of_role(GetUserId(), role))
			history_newest_jobs(true, role, add_job, list);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

/* Add the jobs that have moved tables, and indexes of tables, of the current user. */
static void
add_jobs_of_tables(VisibleJobs *list)
{
	Relation	rel = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if (form->relkind != RELKIND_INDEX && form->relkind != RELKIND_PARTITIONED_INDEX &&
			has_privs_of_role(GetUserId(), form->relowner))
			history_newest_jobs(false, form->oid, add_job, list);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

/* Return whether the list is full of jobs later than this one. */
static bool
is_full_after(const VisibleJobs *list, int64 job)
{
	return list->count == lengthof(list->jobs) && list->jobs[0] > job;
}

static bool
sees_all(void)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
}

/* index_mover.sees_all_jobs() RETURNS boolean: whether the current user may see all jobs. */
Datum
index_mover_sees_all_jobs(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(sees_all());
}

/*
 * index_mover.visible_jobs(OUT rest bigint, OUT jobs bigint[])
 *
 * Returns the newest jobs of the history that the current user may see.  Others are not
 * newer than rest, and are to be looked at one by one; 0: there are none.  Nothing for a
 * user that sees all, for whom no view asks.
 */
Datum
index_mover_visible_jobs(PG_FUNCTION_ARGS)
{
	VisibleJobs list = {0};
	TupleDesc	desc;
	Row			row;
	Datum		jobs[lengthof(list.jobs)];
	ArrayType  *array;
	HeapTuple	result;
	int			first = 0;
	int64		rest = 0;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	IM_POINT("visible-jobs");
	if (!sees_all())
	{
		add_jobs_of_roles(&list);
		history_newest_moves(look_at_move, &list);
		if (list.moves_seen > NEWEST_MOVES && !is_full_after(&list, list.complete_after))
			add_jobs_of_tables(&list);
	}
	/* the oldest begins the rest, so that the rest is not searched for it */
	if (list.count == lengthof(list.jobs))
		rest = list.jobs[first++];
	for (int i = first; i < list.count; i++)
		jobs[i] = Int64GetDatum(list.jobs[i]);
	array = construct_array(jobs + first, list.count - first, INT8OID,
							sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);
	row_clear(&row);
	row_set(&row, 1, Int64GetDatum(rest));
	row_set(&row, 2, PointerGetDatum(array));
	result = heap_form_tuple(BlessTupleDesc(desc), row.values, row.nulls);
	PG_RETURN_DATUM(HeapTupleGetDatum(result));
}
