/*-------------------------------------------------------------------------
 *
 * again.c
 *	  Jobs made of what the history says of an earlier one: undo_move(), and
 *	  the rest of an interrupted job.
 *
 * The history says which indexes, where from and where to; everything else,
 * the method included, is planned anew, because the world has gone on.
 *
 * Locking: that of the planner.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/index.h"
#include "commands/tablespace.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"

#include "call/again.h"
#include "call/carry_out.h"
#include "cleanup/cleanup.h"
#include "compat.h"
#include "history.h"
#include "plan/plan.h"
#include "worker/submit.h"

PG_FUNCTION_INFO_V1(index_mover_undo_move);

static bool
has_item(List *items, Oid index_oid)
{
	ListCell   *lc;

	foreach(lc, items)
		if (((MoveItem *) lfirst(lc))->index_oid == index_oid)
			return true;
	return false;
}

/*
 * Find the index of a history entry: by its OID, or, where a rebuild was cut
 * off right after its swap, by its name on the same table.
 */
static Oid
find_index(const HistoryEntry *entry)
{
	Oid			index_oid = entry->index_oid;

	if (IndexGetRelation(index_oid, true) == entry->heap_oid)
		return index_oid;
	index_oid = get_relname_relid(entry->index_name,
								  get_rel_namespace(entry->heap_oid));
	if (OidIsValid(index_oid) &&
		IndexGetRelation(index_oid, true) == entry->heap_oid)
		return index_oid;
	return InvalidOid;
}

/* Add to the plan the move of one index of the history to a tablespace. */
static List *
plan_entry(List *plan, const HistoryEntry *entry, Oid tablespace,
		   const MoveSettings *settings, bool waits)
{
	PlanRequest request = {.scope = SCOPE_RELATION,.method = METHOD_AUTO};
	char	   *name = get_tablespace_name(tablespace);
	ListCell   *lc;

	request.object = find_index(entry);
	if (!OidIsValid(request.object))
	{
		ereport(NOTICE,
				(errmsg("index \"%s\" does not exist any more, skipping",
						entry->index_name)));
		return plan;
	}
	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("tablespace with OID %u does not exist", tablespace)));
	request.to_tablespace = plan_target_tablespace(name);
	request.settings = *settings;
	request.waits = waits;
	request.part = true;

	/* a partitioned index's plan has its leaves too, which speak for themselves */
	foreach(lc, plan_moves(&request))
	{
		MoveItem   *item = lfirst(lc);

		if (item->index_oid == request.object && !has_item(plan, item->index_oid))
			plan = lappend(plan, item);
	}
	return plan;
}

/*
 * undo_move(job bigint, wait boolean DEFAULT true) RETURNS SETOF index_move
 *
 * Moves every index that the job has moved back to where it was.  Rows, locks
 * and ERRORs as for move_indexes(); besides 22004 NULL, 42704 unknown job, and
 * 55006 while the job is running.  For the job's role and superusers, with the
 * privileges that move_indexes() asks for.
 */
Datum
index_mover_undo_move(PG_FUNCTION_ARGS)
{
	int64		job;
	bool		wait;
	List	   *entries;
	List	   *plan = NIL;
	ListCell   *lc;
	MoveSettings settings;
	JobSlot		slot;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", PG_ARGISNULL(0) ? "job" : "wait")));
	job = PG_GETARG_INT64(0);
	wait = PG_GETARG_BOOL(1);
	check_moment("undo_move()", false, wait);

	entries = history_read(job);
	if (entries == NIL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("job " INT64_FORMAT " does not exist", job),
				 errhint("See index_mover_history.")));
	if (!has_privs_of_role(GetUserId(), ((HistoryEntry *) linitial(entries))->role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to undo job " INT64_FORMAT, job)));
	if (job_find(job, &slot))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("job " INT64_FORMAT " is still running", job),
				 errhint("Cancel it with cancel_move() first.")));

	settings_capture(&settings);
	foreach(lc, entries)
	{
		const HistoryEntry *entry = lfirst(lc);

		if (strcmp(entry->status, status_name(STATUS_MOVED)) == 0)
			plan = plan_entry(plan, entry, entry->from_tablespace, &settings, wait);
	}
	plan_complete(plan, &settings);
	carry_out(fcinfo, plan, &settings, false, wait);
	return (Datum) 0;
}

int64
again_rest(List *entries)
{
	List	   *plan = NIL;
	List	   *items = NIL;
	ListCell   *lc;
	MoveSettings settings;

	settings_capture(&settings);
	foreach(lc, entries)
	{
		const HistoryEntry *entry = lfirst(lc);

		if (strcmp(entry->status, status_name(STATUS_MOVED)) != 0 &&
			strcmp(entry->status, status_name(STATUS_SKIPPED)) != 0)
			plan = plan_entry(plan, entry, entry->to_tablespace, &settings, false);
	}
	plan_complete(plan, &settings);
	foreach(lc, plan)
		if (((MoveItem *) lfirst(lc))->status != STATUS_SKIPPED)
			items = lappend(items, lfirst(lc));
	cleanup_at_commit(plan, &settings);
	return items == NIL ? 0 : submit_at_commit(JOB_MOVE, items, &settings);
}
