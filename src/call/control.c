/*-------------------------------------------------------------------------
 *
 * control.c
 *	  Steering jobs: cancel, pause, resume, alter; and jobs made of what the
 *	  history says of an earlier one: undo_move(), the rest of a job.
 *
 * A runner looks at its job's flags in every loop of its own; core's waits end
 * by the signal that a cancel sends as well.  A copy obeys pause at once, a
 * rebuild between two indexes.
 *
 * The history says which indexes, where from and where to; everything else,
 * the method included, is planned again, because things have changed since.
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
 * Find a job to steer.  Returns true if it is running; else *entries is what
 * the history says of it.
 *
 * ERROR 22004 for NULL, 42704 if there never was such a job, 42501 for anybody
 * but the job's role (or a member of it) and superusers.
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

/* As find_job(), but a job that has ended is a NOTICE. */
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
 * Cancels a job; what it has moved stays moved, and the index it works on
 * stays where it was.  Returns true if the job was told, false if it wasn't
 * running any more.  No locks.  For the job's role and superusers.
 * ERRORs: see find_job().
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
 * Returns true if the job was told, false if it wasn't running any more.  No
 * locks.  For the job's role and superusers.  ERRORs: see find_job().
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
 * Lets a paused job go on, and a copy swap that waits for its time
 * (index_mover.swap_after).  Of a job that was cut off it queues what is left
 * as a new job, which starts when this transaction commits; a NOTICE gives its
 * number.  Returns false if there is nothing to do.  No locks.  For the job's
 * role and superusers.  ERRORs: see find_job(), and those of move_indexes()
 * with wait => false.
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
 * Changes a setting (its name without prefix) of a running or paused job, with
 * the rights that SET needs.  Returns false if the job wasn't running any
 * more.  No locks.  For the job's role and superusers.  ERRORs: see find_job();
 * 22023 unknown setting, invalid value, or a setting that has had its effect
 * when a job begins; 42501 a superuser's setting.
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

	/* an index expression can call this in the job's own worker */
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

	/*
	 * a partitioned index's plan has its leaves too, which speak for
	 * themselves
	 */
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
 * Queue, for the commit of this transaction, a job for what the job of these
 * HistoryEntry was to move and has not moved.  Returns its number, 0 if
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
