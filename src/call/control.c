/*-------------------------------------------------------------------------
 *
 * control.c
 *	  Steering jobs: cancel, pause, resume, alter; and new jobs from the
 *	  history of an earlier one: undo_move(), the rest of a job.
 *
 * A runner checks its job's flags in all its own loops; a cancel sends a
 * signal, too, which ends core's waits.
 *
 * From the history come only the indexes and their old and new tablespaces.
 * Everything else, including the method, is planned again, because conditions
 * have changed since.
 *
 * Privileges: all functions here are for members of the job's role and for
 * superusers.  Those that steer a running job share the ERRORs of find_job().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/index.h"
#include "commands/tablespace.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/dsm.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "call/call.h"
#include "history.h"
#include "job.h"
#include "plan/plan.h"
#include "settings.h"

PG_FUNCTION_INFO_V1(index_mover_cancel_move);
PG_FUNCTION_INFO_V1(index_mover_pause_move);
PG_FUNCTION_INFO_V1(index_mover_resume_move);
PG_FUNCTION_INFO_V1(index_mover_alter_move);

/*
 * Find a job to steer, named by argument 0.  Returns true if it is running;
 * else *entries is its history.
 *
 * ERRORs: 22004 NULL; 42704 there never was such a job; 42501 the current
 * user is neither a member of the job's role nor a superuser.
 */
static bool
find_job(FunctionCallInfo fcinfo, JobSlot *slot, List **entries)
{
	int64		job;
	Oid			role;
	bool		running;

	call_reject_null(fcinfo, 0, "job");
	job = PG_GETARG_INT64(0);

	*entries = NIL;
	running = job_find(job, slot);
	if (running)
		role = slot->role;
	else
	{
		*entries = history_read(job);
		if (*entries == NIL)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("job " INT64_FORMAT " does not exist", job),
					 errhint("See index_mover_progress and index_mover_history.")));
		role = ((HistoryEntry *) linitial(*entries))->role;
	}

	if (!has_privs_of_role(GetUserId(), role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to steer job " INT64_FORMAT, job),
				 errdetail("Only members of the role that submitted the job, and superusers, may control it.")));
	return running;
}

/* As find_job(), but send a NOTICE if the job has ended. */
static bool
find_running_job(FunctionCallInfo fcinfo, JobSlot *slot)
{
	List	   *entries;

	if (find_job(fcinfo, slot, &entries))
		return true;
	ereport(NOTICE,
			(errmsg("job " INT64_FORMAT " is not running", PG_GETARG_INT64(0))));
	return false;
}

/*
 * cancel_move(job bigint) RETURNS boolean
 *
 * Cancels a job.  What it has moved stays moved; the index that it is working
 * on stays where it was.  Returns false if the job was not running any more.
 */
Datum
index_mover_cancel_move(PG_FUNCTION_ARGS)
{
	JobSlot		slot;

	PG_RETURN_BOOL(find_running_job(fcinfo, &slot) &&
				   job_request_cancel(slot.job));
}

/*
 * pause_move(job bigint) RETURNS boolean
 *
 * Pauses a job: a copy within a second, a rebuild before its next index.
 * Returns false if the job was not running any more.
 */
Datum
index_mover_pause_move(PG_FUNCTION_ARGS)
{
	JobSlot		slot;

	PG_RETURN_BOOL(find_running_job(fcinfo, &slot) &&
				   job_request_pause(slot.job, true));
}

/*
 * resume_move(job bigint) RETURNS boolean
 *
 * Resumes a paused job, and a copy that waits for the time of its swap
 * (index_mover.swap_after).  If the job was interrupted, queues the rest of
 * it as a new job, which starts when this transaction commits; a NOTICE gives
 * its number.  Returns false if there is nothing to do.  ERRORs: also those
 * of move_indexes() with wait => false.
 */
Datum
index_mover_resume_move(PG_FUNCTION_ARGS)
{
	JobSlot		slot;
	List	   *entries;
	int64		rest;

	if (find_job(fcinfo, &slot, &entries))
		PG_RETURN_BOOL(job_request_pause(slot.job, false));

	call_check_moment("resume_move()", false, false);
	rest = control_queue_rest(entries);
	if (rest == 0)
		ereport(NOTICE,
				(errmsg("job " INT64_FORMAT " has nothing left to do",
						PG_GETARG_INT64(0))));
	else
		ereport(NOTICE,
				(errmsg("the rest of job " INT64_FORMAT " is job " INT64_FORMAT,
						PG_GETARG_INT64(0), rest)));
	PG_RETURN_BOOL(rest != 0);
}

/*
 * alter_move(job bigint, setting text, value text) RETURNS boolean
 *
 * Changes a setting, named without its prefix, of a running or paused job.
 * Needs the privileges that SET needs.  Returns false if the job was not
 * running any more.  ERRORs: also 22023 unknown setting, invalid value, or a
 * setting that has no effect after the start of a job; 42501 a setting for
 * superusers.
 */
Datum
index_mover_alter_move(PG_FUNCTION_ARGS)
{
	JobSlot		slot;
	dsm_segment *segment;
	bool		mapped;

	call_reject_null(fcinfo, 1, "setting");
	call_reject_null(fcinfo, 2, "value");
	settings_check_alterable(text_to_cstring(PG_GETARG_TEXT_PP(1)));
	if (!find_running_job(fcinfo, &slot))
		PG_RETURN_BOOL(false);

	/* mapped already if an index expression calls this in the job's worker */
	segment = dsm_find_mapping(slot.segment);
	mapped = (segment != NULL);
	if (!mapped)
		segment = dsm_attach(slot.segment);
	if (segment == NULL)
		PG_RETURN_BOOL(false);	/* it has just ended */
	job_alter_settings(job_shared(segment),
					   text_to_cstring(PG_GETARG_TEXT_PP(1)),
					   text_to_cstring(PG_GETARG_TEXT_PP(2)));
	if (!mapped)
		dsm_detach(segment);
	PG_RETURN_BOOL(true);
}

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
 * Find the index of a history entry: by its OID, or, if a rebuild was
 * interrupted right after its swap, by its name on the same table.
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

/* Add the move of a history entry's index to a tablespace to the plan. */
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

	/* omit the leaves of a partitioned index: they have their own entries */
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
 * Moves every index that the job has moved back to where it was.  Needs the
 * privileges of move_indexes(), too.  Rows, locks and ERRORs as for
 * move_indexes(); also 42704 unknown job, and 55006 while the job is running.
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

	call_reject_null(fcinfo, 0, "job");
	call_reject_null(fcinfo, 1, "wait");
	job = PG_GETARG_INT64(0);
	wait = PG_GETARG_BOOL(1);
	call_check_moment("undo_move()", false, wait);

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
	result_rows_of_plan(fcinfo, plan, &settings, false, wait);
	return (Datum) 0;
}

/*
 * Queue a job for what the job of these entries (of HistoryEntry) has not
 * moved, to start when this transaction commits.  Returns its number, or 0 if
 * nothing is left to do.
 */
int64
control_queue_rest(List *entries)
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
	cleanup_call_at_commit(plan, &settings);
	return items == NIL ? 0 : submit_at_commit(JOB_MOVE, items, &settings);
}
