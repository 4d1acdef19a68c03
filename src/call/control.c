/*-------------------------------------------------------------------------
 *
 * control.c
 *	  Steering jobs: cancel, pause, resume, alter; and new jobs from the
 *	  history of an earlier one: undo_move(), the rest of a job.
 *
 * A job that is steered, or was, is a user's matter: whatever a function here is asked to do
 * is noted with the running jobs, too, so that a restart does not undo it.
 *
 * Privileges: all functions here are for members of the job's role and for
 * superusers; cancel_move() also for owners of tables, who end the moves of these in jobs
 * of other roles, but not in jobs of superusers.  ERROR 25006 during recovery: the jobs
 * are in the primary's memory.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/pg_class.h"
#include "catalog/pg_language_d.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "commands/tablespace.h"
#include "miscadmin.h"
#include "storage/dsm.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "call/call.h"
#include "cleanup/cleanup.h"
#include "own_tables.h"
#include "printed_command.h"
#include "running_jobs.h"
#include "test_points.h"

PG_FUNCTION_INFO_V1(index_mover_cancel_move);
PG_FUNCTION_INFO_V1(index_mover_pause_move);
PG_FUNCTION_INFO_V1(index_mover_resume_move);
PG_FUNCTION_INFO_V1(index_mover_alter_move);
PG_FUNCTION_INFO_V1(index_mover_undo_move);

#define REQUEST_IS_CANCEL(request) \
	((request) == REQUEST_CANCEL || (request) == REQUEST_CANCEL_AND_KEEP)

/* Write the action of a user on a job to the server log. */
static void
log_control(int64 job, const char *what)
{
	ereport(LOG,
			(errmsg_internal("job " INT64_FORMAT " (%s): %s by role \"%s\"", job,
							 get_database_name(MyDatabaseId), what,
							 GetUserNameFromId(GetUserId(), true))));
}

/*
 * Note a request that a job has got, in case that the server ends: a canceled job does not
 * go on.  Nor does an ended job; if another one replaces it, only when that is accepted
 * (JobTerms.replaces).
 */
static void
note_request(int64 job, JobRequest request)
{
	JobSlot		slot;

	if (request == REQUEST_PAUSE || request == REQUEST_RESUME)
	{
		/* the job may have ended, or been canceled, since */
		running_jobs_set_paused(MyDatabaseId, job, request == REQUEST_PAUSE);
		if (job_find(job, &slot) && slot.state != JOB_CLEANING_UP && !slot.flags.cancel)
			return;
	}
	(void) running_jobs_take(MyDatabaseId, job);
}

/*
 * Cancel the moves of a job whose tables the current user may act as the owner of, which
 * have not ended; return how many.  With MAINTAIN (17) another role could keep an owner
 * from moving its table.  None of a superuser's job, as pg_cancel_backend().  *had_any: the
 * job has such moves, ended or not.
 */
static int
cancel_owned(const JobSlot *slot, bool *had_any)
{
	bool		mapped;
	dsm_segment *segment;
	JobShared  *shared;
	int			count = 0;

	*had_any = false;
	if (slot->superuser)
		return 0;
	segment = job_map_segment(slot, &mapped);
	if (segment == NULL)
		return 0;
	shared = dsm_segment_address(segment);
	for (int i = 0; i < shared->nitems; i++)
	{
		const MoveItem *item = &shared->items[i];

		/*
		 * a part goes with its table, and a relation that is gone has no
		 * owner
		 */
		if (OidIsValid(item->part_of) || get_rel_relkind(item->heap_oid) == '\0' ||
			!object_ownercheck(RelationRelationId, item->heap_oid, GetUserId()))
			continue;
		*had_any = true;
		if (job_cancel_item(shared, i))
			count++;
	}
	if (!mapped)
		dsm_detach(segment);
	if (count > 0)
	{
		/* only the runner would know which moves not to make again */
		note_request(slot->job, REQUEST_CANCEL);
		log_control(slot->job, psprintf("the moves of %d tables canceled, as their owner,", count));
	}
	return count;
}

/* Tell of a job that has ended, or that has just done so, by a NOTICE. */
static void
tell_of_end(int64 job)
{
	JobSlot		slot;

	if (job_find(job, &slot) && slot.state == JOB_CLEANING_UP)
		ereport(NOTICE,
				(errmsg("job " INT64_FORMAT " has ended and is still cleaning up", job),
				 errhint("See %s for what it waits for.", printed_command("progress"))));
	else
		ereport(NOTICE,
				(errmsg("job " INT64_FORMAT " is not running", job)));
}

/*
 * Find a job to control.  Returns true if it is running; else, also if it is still cleaning
 * up, *entry is its row in the history or, if entry is NULL, a NOTICE tells.  ERRORs: 42704 there never was
 * such a job; 42501 the current user may not control it.
 */
static bool
find_job(int64 job, JobSlot *slot, HistoryJob *entry)
{
	HistoryJob	ended = {0};
	bool		running = job != CLEANUP_JOB && job_find(job, slot);

	if (running && slot->state == JOB_CLEANING_UP)
		running = false;
	if (!running && !history_read_job(job, &ended))
		call_no_such_job(job);
	if (!has_privs_of_role(GetUserId(), running ? slot->role : ended.role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to control job " INT64_FORMAT, job),
				 errdetail("Only members of the role that submitted the job, and superusers, may control it.")));
	if (entry != NULL)
		*entry = ended;
	else if (!running)
		tell_of_end(job);
	IM_POINT("job-found");
	return running;
}

/* Have no job go on that the end of the server has ended, if the current user may control it. */
static void
end_of_before(const char *what)
{
	foreach_ptr(const RunningJob, job, running_jobs_of_before())
	{
		bool		taken = false;

		if (job->database == MyDatabaseId && has_privs_of_role(GetUserId(), job->role))
			taken = running_jobs_take(job->database, job->job);
		if (taken)
			log_control(job->job, what);
	}
}

/* Apply a request to a job, and note it.  Returns false if the job has ended just now. */
static bool
apply_request(int64 job, JobRequest request, const char *what)
{
	if (!job_request(job, request))
		return false;
	note_request(job, request);
	log_control(job, what);
	return true;
}

/*
 * Apply a request to a job, which the current user names.  Returns whether it was still running;
 * *had_ended is whether it was not when it was looked for.
 */
static bool
control_named_job(int64 job, JobRequest request, const char *what, bool *had_ended)
{
	JobSlot		slot;
	bool		is_done;

	*had_ended = false;

	/*
	 * an owner of tables may not control the job itself, which find_job()
	 * asks
	 */
	if (REQUEST_IS_CANCEL(request) && job_find(job, &slot) &&
		!has_privs_of_role(GetUserId(), slot.role))
	{
		bool		had_any;
		int			count = cancel_owned(&slot, &had_any);

		if (count > 0)
			return true;
		if (had_any)
		{
			ereport(NOTICE,
					(errmsg("job " INT64_FORMAT " moves none of your tables any more",
							slot.job)));
			return false;
		}
	}
	if (!find_job(job, &slot, NULL))
	{
		*had_ended = true;
		/* the job may be about to go on after a start of the server */
		note_request(job, REQUEST_CANCEL);
		return false;
	}
	is_done = apply_request(job, request, what);
	if (!is_done)
		tell_of_end(job);
	return is_done;
}

/*
 * Apply a request to all jobs that the current user may control; a cancel also ends the moves of its
 * tables in others.  Returns how many jobs were still running.
 */
static int
control_all_jobs(JobRequest request, const char *what)
{
	JobSlot		slots[IM_MAX_JOBS];
	int			nslots;
	int			done = 0;

	/* first: one that goes on has its new slot before it has no file */
	end_of_before(what);
	nslots = job_read_slots(slots, NULL);
	for (int i = 0; i < nslots; i++)
	{
		bool		is_done = false;
		bool		had_any;

		if (has_privs_of_role(GetUserId(), slots[i].role))
			is_done = apply_request(slots[i].job, request, what);
		else if (REQUEST_IS_CANCEL(request))
			is_done = cancel_owned(&slots[i], &had_any) > 0;
		if (is_done)
			done++;
	}
	return done;
}

/*
 * cancel_move(job bigint DEFAULT NULL, keep boolean DEFAULT false) RETURNS int
 *
 * Cancels a job, or, with NULL, all of this database that the caller may
 * control; of other roles' jobs, the moves of tables whose owner the caller is, or may act
 * as.  Moved relations stay moved; a relation that is being moved stays
 * where it was.  With keep, the file of a copy that has recorded how far it is
 * stays for resume_move().  An ended job that it names is acknowledged: then
 * index_mover_check() reports it no more.  A job that ends at this moment is not, since no user
 * knows yet how.  Returns how many jobs were running.
 * ERRORs: 22004 keep is NULL; as find_job().
 */
Datum
index_mover_cancel_move(PG_FUNCTION_ARGS)
{
	JobRequest	request = REQUEST_CANCEL;
	int64		job;
	bool		done;
	bool		had_ended;

	PreventCommandDuringRecovery("cancel_move()");
	reject_null(fcinfo, 1, "keep");
	if (PG_GETARG_BOOL(1))
		request = REQUEST_CANCEL_AND_KEEP;
	if (PG_ARGISNULL(0))
		PG_RETURN_INT32(control_all_jobs(request, "canceled"));
	job = PG_GETARG_INT64(0);
	done = control_named_job(job, request, "canceled", &had_ended);
	if (had_ended && !XactReadOnly)
	{
		if (history_acknowledge_job(job))
			log_control(job, "acknowledged");
	}
	PG_RETURN_INT32(done ? 1 : 0);
}

/*
 * pause_move(job bigint DEFAULT NULL) RETURNS int
 *
 * Pauses a job, or all of them, as cancel_move() does: a copy within a
 * second, a rebuild before its next index.  One that the end of the server has ended
 * stays so.
 */
Datum
index_mover_pause_move(PG_FUNCTION_ARGS)
{
	bool		done;
	bool		had_ended;

	PreventCommandDuringRecovery("pause_move()");
	if (PG_ARGISNULL(0))
		PG_RETURN_INT32(control_all_jobs(REQUEST_PAUSE, "paused"));
	done = control_named_job(PG_GETARG_INT64(0), REQUEST_PAUSE, "paused", &had_ended);
	PG_RETURN_INT32(done ? 1 : 0);
}

/* Return a JSON object with a setting. */
static Jsonb *
setting_object(Datum name, Datum value)
{
	Datum		pair[2] = {name, value};
	ArrayType  *array = construct_array(pair, 2, TEXTOID, -1, false, TYPALIGN_INT);

	return DatumGetJsonbP(DirectFunctionCall1(jsonb_object, PointerGetDatum(array)));
}

/* Change settings of a running job; returns false if it has just ended. */
static bool
alter_job(const JobSlot *slot, Jsonb *json)
{
	bool		mapped;
	dsm_segment *segment = job_map_segment(slot, &mapped);
	JobShared  *shared;
	bool		done;

	if (segment == NULL)
		return false;
	shared = dsm_segment_address(segment);
	/* first, so that the last session to alter the job is on record, too */
	history_lock_job(slot->job);
	job_alter_settings(shared, json);
	done = submit_alter_job(slot->job, shared->settings.not_default);
	if (!mapped)
		dsm_detach(segment);
	return done;
}

/*
 * Have a job not wait for index_mover.swap_after any more, as alter_move() does; that can set
 * it again.  Returns as alter_job().
 */
static bool
clear_swap_after(const JobSlot *slot)
{
	bool		mapped;
	dsm_segment *segment = job_map_segment(slot, &mapped);
	bool		waits;

	if (segment == NULL)
		return false;
	waits = ((JobShared *) dsm_segment_address(segment))->settings.swap_after != 0;
	if (!mapped)
		dsm_detach(segment);
	if (!waits)
		return true;
	/* it writes the job's row */
	PreventCommandIfReadOnly("resume_move()");
	return alter_job(slot, setting_object(CStringGetTextDatum("swap_after"),
										  CStringGetTextDatum("")));
}

/* Do resume_move() for a running job; returns false if it has just ended. */
static bool
resume_running(const JobSlot *slot, Jsonb *json)
{
	bool		has_time = json != NULL && settings_names(json, "swap_after");

	if (json != NULL)
	{
		PreventCommandIfReadOnly("resume_move()");
		settings_check_alterable(slot->job, json);
		if (!alter_job(slot, json))
			return false;
	}
	if (!job_request(slot->job, REQUEST_RESUME))
		return false;
	note_request(slot->job, REQUEST_RESUME);

	/*
	 * A paused job, and one with a new time, waits on for its swap.  Last, as
	 * a job may end at once without that time.
	 */
	if (!slot->flags.pause && !has_time)
		(void) clear_swap_after(slot);
	return true;
}

/* Return whether a move of an ended job was made. */
static bool
was_moved(const HistoryEntry *move)
{
	return move->moved;
}

/* Return whether a move of an ended job is left to do, also for lack of a privilege. */
static bool
is_left(const HistoryEntry *move)
{
	return !STATUS_IS_DONE(move->status) ||
		(move->status == STATUS_SKIPPED && move->sqlstate != NULL &&
		 strcmp(move->sqlstate, unpack_sql_state(ERRCODE_INSUFFICIENT_PRIVILEGE)) == 0);
}

/* Return whether the end of the server can have ended a move; an error, or an owner, has not. */
static bool
was_stopped(const HistoryEntry *move)
{
	return move->status == STATUS_QUEUED || move->status == STATUS_RUNNING ||
		move->status == STATUS_CANCELED;
}

/*
 * If a kill or a stop has ended the large copy of an item, tell that it begins again
 * because nothing was recorded of it, and how to have that (see copy/copy_resume.c).
 */
static void
tell_of_copy_lost(int64 job, const HistoryEntry *move, const MoveItem *item, int resumable_size)
{
	bool		killed = move->status == STATUS_RUNNING ||
		(move->worked > 0 && move->sqlstate != NULL && strcmp(move->sqlstate, "57P01") == 0);
	const char *summarize = GetConfigOption("summarize_wal", true, false);

	if (!killed || item->outcome.status == STATUS_SKIPPED || item->method != METHOD_COPY ||
		resumable_size < 0 || item->size_before / 1024 <= resumable_size)
		return;
	foreach_ptr(const LedgerEntry, entry, ledger_read())
	{
		/*
		 * a file of the TOAST table counts, too; the copy tells why it does
		 * not go on
		 */
		if (entry->job == job && entry->heap_oid == item->heap_oid &&
			entry->keep_until > GetCurrentTimestamp())
			return;
	}
	ereport(NOTICE,
			(errmsg("the copy of %s \"%s\" begins again",
					relation_noun(item->relkind), NameStr(item->relname)),
			 errdetail("Nothing is on record of how far job " INT64_FORMAT " was.", job),
			 summarize != NULL && strcmp(summarize, "on") == 0 ? 0 :
			 errhint("To have the next copy go on after its end, use PostgreSQL 17 or later, and set summarize_wal to on.")));
}

/*
 * Return the plan that moves the relations of a job back to where they were or, without
 * back, to where they were to go: those of the moves that are wanted.  If a relation or a
 * tablespace is gone, a NOTICE or the row tells.
 */
static List *
plan_from_history(int64 job, bool back, bool (*is_wanted) (const HistoryEntry *move),
				  PlanRequest *request)
{
	List	   *moves = history_read(job);
	List	   *plan = NIL;
	List	   *planned = NIL;	/* Oids */

	history_trace(job, moves);
	foreach_ptr(const HistoryEntry, move, moves)
	{
		const HistoryEntry *entry = move;
		Oid			table = InvalidOid;
		Oid			relation;
		const char *to_name;
		List	   *planned_now;

		if (!is_wanted(move))
			continue;
		/* only a lost index of a TOAST table is rebuilt by itself */
		if (move->requested != METHOD_REBUILD)
			table = table_of_toast(move->relid);
		/* an earlier version moved a TOAST table without its table */
		foreach_ptr(const HistoryEntry, other, moves)
		{
			if (OidIsValid(table) && other->relid == table)
				entry = other;
		}
		if (!OidIsValid(entry->relid))
		{
			ereport(NOTICE,
					(errmsg("%s \"%s\" does not exist any more, skipping",
							kind_noun(entry->kind), entry->relname)));
			continue;
		}
		relation = OidIsValid(table) ? table : entry->relid;
		request->method = entry->requested;
		request->to_tablespace = back ? entry->from_tablespace : entry->to_tablespace;
		to_name = back ? entry->from_name : entry->to_name;
		planned_now = plan_single(request, relation);
		if (!back && !OidIsValid(table) && planned_now != NIL)
			tell_of_copy_lost(job, move, &((const PlannedMove *) linitial(planned_now))->item,
							  request->settings.resumable_size);
		foreach_ptr(PlannedMove, planned_move, planned_now)
		{
			MoveItem   *item = &planned_move->item;

			if (list_member_oid(planned, item->relid))
				continue;
			planned = lappend_oid(planned, item->relid);
			plan = lappend(plan, planned_move);
			if (get_tablespace_name(request->to_tablespace) == NULL)
				item_skip(item, ERRCODE_UNDEFINED_OBJECT,
						  "Tablespace \"%s\" does not exist any more.", to_name);
			else if (back && entry->undone_by != 0)
				item_skip(item, 0, "Job " INT64_FORMAT " has moved it back.", entry->undone_by);
			else if (back && list_length(entry->movers) > 1)
				item_skip(item, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						  "Job " INT64_FORMAT " has moved it since.", *(int64 *) llast(entry->movers));
		}
	}
	plan_complete(NULL, plan, request);
	return plan;
}

/*
 * Queue the moves of an ended job that are wanted as a new job, which starts when this
 * transaction commits.  Return its number; 0 if there are none.
 */
static int64
queue_rest(int64 job, bool (*is_wanted) (const HistoryEntry *move), PlanRequest *request,
		   JobSummary *summary)
{
	List	   *plan = plan_from_history(job, false, is_wanted, request);
	List	   *items = NIL;
	int64		rest;

	submit_skip_busy(plan);
	foreach_ptr(PlannedMove, move, plan)
	{
		MoveItem   *item = &move->item;

		if (item->outcome.status != STATUS_SKIPPED)
			items = lappend(items, item);
		else if (item->outcome.sqlstate[0] != '\0')
			notices_item(summary, item, STATUS_FAILED);
	}
	cleanup_call(plan, GetUserId());
	if (items == NIL)
		return 0;
	rest = history_next_job();
	if (request->settings.terms.rest_of == 0)
		request->settings.terms.rest_of = job;
	request->settings.terms.replaces = job;
	submit_at_commit(rest, items, &request->settings);
	return rest;
}

/* Return whether the current user may execute resume_move(), in whatever schema it is. */
static bool
may_resume(void)
{
	CatCList   *list = SearchSysCacheList1(PROCNAMEARGSNSP, CStringGetDatum("resume_move"));
	Oid			extension = get_extension_oid("index_mover", false);
	bool		result = false;

	for (int i = 0; i < list->n_members; i++)
	{
		Form_pg_proc proc = (Form_pg_proc) GETSTRUCT(&list->members[i]->tuple);

		/* another in the schema index_mover_call calls it */
		if (proc->prolang != ClanguageId)
			continue;
		if (getExtensionOfObject(ProcedureRelationId, proc->oid) != extension)
			continue;
		result = object_aclcheck(ProcedureRelationId, proc->oid, GetUserId(),
								 ACL_EXECUTE) == ACLCHECK_OK;
	}
	ReleaseCatCacheList(list);
	return result;
}

/* Have max_duration count from this moment on.  ERROR 55000 if it is over. */
static void
shorten_duration(MoveSettings *settings, TimestampTz begin)
{
	/* the clock may have been set back */
	int64		passed = Max(GetCurrentTimestamp() - begin, 0) / USECS_PER_SEC + 1;
	int64		left = settings->max_duration - passed;
	Datum		value;

	if (settings->max_duration == 0)
		return;
	if (left <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index_mover.max_duration was over")));
	value = CStringGetTextDatum(psprintf(INT64_FORMAT "s", left));
	settings_alter(settings, setting_object(CStringGetTextDatum("max_duration"), value));
}

/*
 * As its role, queue the moves that the end of the server has left of a job, as resume_move()
 * would, but not moves that an error has ended.  It is the same job, so it keeps settings that
 * superusers have given it, too: only they, and this extension, write its row.  The time of
 * max_duration goes on from the job's begin.  Returns the new job; 0 if nothing is left or,
 * with *why_not, there is no such job any more.  ERRORs: as resume_move(); 55000 the time is
 * over, or no relation can be moved any more.
 */
int64
control_go_on(const RunningJob *before, const char **why_not)
{
	HistoryJob	entry;
	PlanRequest request = {0};
	MoveSettings *settings = &request.settings;
	JobSummary	summary = {0};
	bool		has_rest = false;
	int			nestlevel;
	int64		rest;

	*why_not = NULL;
	if (before->extension != extension_oid())
		*why_not = "The extension was dropped.";
	else if (!history_read_job(before->job, &entry) || entry.role != before->role)
		*why_not = "The history does not have it any more.";
	if (*why_not != NULL)
		return 0;
	foreach_ptr(const HistoryEntry, move, history_read(before->job))
	{
		if (was_stopped(move))
			has_rest = true;
	}
	/* a server that was stopped may have waited for the job's end */
	if (!has_rest)
		return 0;
	Assert(entry.role == GetUserId());
	if (!may_resume())
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FUNCTION, "resume_move");

	/*
	 * for settings of core, which are not on record; before 17 this session
	 * has others
	 */
	nestlevel = NewGUCNestLevel();
	settings_begin_as(entry.role);
	settings_load(settings, entry.settings, NULL, true, NULL);
	AtEOXact_GUC(true, nestlevel);
	settings->terms = entry.terms;
	settings->terms.at_start = true;
	shorten_duration(settings, entry.submitted_at);
	rest = queue_rest(before->job, was_stopped, &request, &summary);
	if (rest == 0 && summary.not_moved > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%s", summary.failures.data)));
	if (summary.not_moved > 0)
		ereport(LOG,
				(errmsg("job " INT64_FORMAT " (%s): not all relations go on after the start of the server",
						before->job, get_database_name(MyDatabaseId)),
				 errdetail_internal("%s", summary.failures.data)));
	return rest;
}

/*
 * resume_move(job bigint, settings jsonb DEFAULT NULL) RETURNS bigint
 *
 * Resumes a paused job.  Of a job that is not paused, sets index_mover.swap_after to
 * empty, unless settings has another: its copies swap at once.  If the job has ended,
 * queues the relations that it has not moved, also for lack of a privilege, as a new
 * job, which starts when this transaction commits.  Returns the job that goes on;
 * NULL, with a NOTICE, if nothing is left to do.  A relation that cannot be moved any more is
 * a WARNING or NOTICE.  The job's method and settings stay, except those in settings.
 * ERRORs: 22004 NULL; 22023 settings that are no object; as find_job(),
 * move_indexes() with wait => false, and of alter_move().  In a read-only transaction it only
 * ends a pause, else 25006.
 */
Datum
index_mover_resume_move(PG_FUNCTION_ARGS)
{
	int64		job = PG_GETARG_INT64(0);
	Jsonb	   *json;
	JobSlot		slot;
	HistoryJob	entry;
	PlanRequest request = {0};
	JobSummary	summary = {.warn = true};
	int64		rest;

	PreventCommandDuringRecovery("resume_move()");
	reject_null(fcinfo, 0, "job");
	json = call_settings_argument(fcinfo, 1);
	if (find_job(job, &slot, &entry))
	{
		if (resume_running(&slot, json))
		{
			log_control(job, "resumed");
			PG_RETURN_INT64(job);
		}
		/* its rest is for another job */
		if (!history_read_job(job, &entry))
			call_no_such_job(job);
	}

	call_check_moment("resume_move()", false, false);
	settings_load(&request.settings, entry.settings, json, superuser(), NULL);
	request.settings.terms = entry.terms;
	rest = queue_rest(job, is_left, &request, &summary);
	if (rest == 0 && summary.not_moved == 0)
		ereport(NOTICE,
				(errmsg("job " INT64_FORMAT " has nothing left to do", job)));
	if (rest == 0)
		PG_RETURN_NULL();
	ereport(NOTICE,
			(errmsg("the rest of job " INT64_FORMAT " is job " INT64_FORMAT, job, rest)));
	PG_RETURN_INT64(rest);
}

/*
 * alter_move(job bigint, setting text, value text) RETURNS boolean
 *
 * Changes a setting, named without its prefix, of a running or paused job.
 * Needs the privileges that SET needs.  Returns false if the job was not
 * running any more.  ERRORs: 22004 NULL; as find_job(); 22023 unknown
 * setting, invalid value, or a setting that has no effect after the start of
 * a job; 42501 a setting for superusers.
 */
Datum
index_mover_alter_move(PG_FUNCTION_ARGS)
{
	int64		job = PG_GETARG_INT64(0);
	JobSlot		slot;
	Jsonb	   *json;

	PreventCommandDuringRecovery("alter_move()");
	PreventCommandIfReadOnly("alter_move()");
	reject_null(fcinfo, 0, "job");
	reject_null(fcinfo, 1, "setting");
	reject_null(fcinfo, 2, "value");
	json = setting_object(PG_GETARG_DATUM(1), PG_GETARG_DATUM(2));

	settings_check_alterable(job, json);
	if (!find_job(job, &slot, NULL))
		PG_RETURN_BOOL(false);
	if (!alter_job(&slot, json))
	{
		tell_of_end(job);
		PG_RETURN_BOOL(false);
	}
	log_control(job, psprintf("set %s", JsonbToCString(NULL, &json->root, 0)));
	PG_RETURN_BOOL(true);
}

/*
 * undo_move(job bigint, dry_run boolean DEFAULT false,
 *		wait boolean DEFAULT true, settings jsonb DEFAULT NULL)
 *		RETURNS SETOF move_result
 *
 * Moves every relation that the job has moved back to where it was, by the job's
 * method and with its settings, except those in settings.  A relation that
 * another job has moved since is skipped, unless that job was undone.  Needs
 * the privileges of move_indexes(), too.  Rows, locks and ERRORs as for
 * move_indexes(); also 42704 unknown job, and 55006 while the job is running.
 */
Datum
index_mover_undo_move(PG_FUNCTION_ARGS)
{
	int64		job = PG_GETARG_INT64(0);
	MoveCall	call = {0};
	MoveSettings *settings = &call.request.settings;
	JobSlot		slot;
	HistoryJob	entry;

	call_arguments(fcinfo, &call);
	if (find_job(job, &slot, &entry))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("job " INT64_FORMAT " is still running", job),
				 errhint("Cancel it first: %s", printed_command("cancel_move", job))));

	/* the time of the swap was for the way there */
	settings_load(settings, entry.settings, call_settings_argument(fcinfo, 3), superuser(),
				  "swap_after");
	settings->terms.undo_of = job;
	settings->terms.replaces = job;
	return result_rows_of_call(fcinfo, plan_from_history(job, true, was_moved, &call.request),
							   &call);
}
