/*-------------------------------------------------------------------------
 *
 * wait_for_move.c
 *	  The procedure wait_for_move(): waiting for the end of a job.
 *
 * It commits first, so that the wait holds no snapshot and does not hold back
 * vacuum; hence it cannot run inside a transaction block.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/acl.h"
#include "utils/timestamp.h"

#include "call/call.h"
#include "history.h"
#include "job.h"
#include "printed_command.h"
#include "settings.h"

PG_FUNCTION_INFO_V1(index_mover_wait_for_move);

/* Error context callback: say that the job goes on without us. */
static void
add_cancel_hint(void *arg)
{
	if (geterrcode() == ERRCODE_QUERY_CANCELED)
	{
		errdetail("Job " INT64_FORMAT " goes on.", *(int64 *) arg);
		errhint("To stop it: %s", printed_command("cancel_move", *(int64 *) arg));
	}
}

static bool
may_see_role(Oid role)
{
	return has_privs_of_role(GetUserId(), role) ||
		has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
}

/* Add the moves of a job to its summary, and tell of each failure. */
static void
summarize(JobSummary *summary, bool ended, bool may_see)
{
	foreach_ptr(const HistoryEntry, move, history_read(summary->job))
	{
		bool		is_part = strncmp(move->kind, "toast", 5) == 0;

		job_totals_add(&summary->totals,
					   strcmp(move->kind, "table") != 0 && strcmp(move->kind, "toast") != 0,
					   move->status, move->size, move->to_tablespace, move->lock_time);
		if (ended && notices_is_denied(move->status, move->sqlstate) && !is_part)
			summary->denied++;
		if (!ended || STATUS_IS_DONE(move->status))
			continue;
		/* one line for a table and its TOAST table */
		if (may_see && !is_part)
			notices_failure(summary, kind_noun(move->kind), move->relname, move->sqlstate,
							move->sqlstate != NULL ? move->message :
							"the worker or the server ended before the outcome was recorded",
							false);
		else
			summary->not_moved++;
	}
}

/*
 * CALL wait_for_move(job bigint DEFAULT NULL, raise boolean DEFAULT true)
 *
 * Waits until a job has ended, whichever session has submitted it; NULL is
 * the last one of this session.  Sends the NOTICEs of a call that waits for
 * its move.  Interrupting the wait does not cancel the job.
 *
 * Privileges: EXECUTE; the names of relations that were not moved, and why, only for
 * members of the job's role and of pg_read_all_stats.  ERRORs: 25001 in a
 * transaction block or function; 42704 there never was such a job; 55000 NULL
 * without a job of this session; 55000 with raise, if a relation was not moved.
 */
Datum
index_mover_wait_for_move(PG_FUNCTION_ARGS)
{
	CallContext *context = (CallContext *) fcinfo->context;
	int64		job = PG_ARGISNULL(0) ? submit_last_job() : PG_GETARG_INT64(0);
	bool		raise;
	MoveSettings settings;
	JobSummary	summary = {.job = job};
	JobSlot		slot;
	HistoryJob	entry;
	bool		may_see;
	bool		was_running;
	ErrorContextCallback callback;

	reject_null(fcinfo, 1, "raise");
	raise = PG_GETARG_BOOL(1);

	if (context == NULL || !IsA(context, CallContext) || context->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block", "wait_for_move()"),
				 errhint("Call it on its own, with autocommit on.")));
	if (job == 0 && PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this session has not submitted a job"),
				 errhint("Give the number of the job; see %s.", printed_command("jobs"))));
	settings_capture(&settings);

	/* commit also starts a job that this session has queued */
	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	SPI_commit();

	was_running = job_find(job, &slot);
	if (was_running && settings.progress_interval > 0 && may_see_role(slot.role))
	{
		summarize(&summary, false, false);
		/* the worker of a call that waits may not have recorded it yet */
		if (summary.totals.total > 0)
			notices_begin(&summary);
		/* no catalog snapshot while waiting */
		SPI_commit();
	}

	callback.callback = add_cancel_hint;
	callback.arg = &job;
	callback.previous = error_context_stack;
	error_context_stack = &callback;
	was_running |= wait_for_job(job);
	error_context_stack = callback.previous;
	SPI_finish();

	if (!history_read_job(job, &entry))
	{
		/* its worker could not record it, and has told the server log why */
		if (was_running)
			PG_RETURN_VOID();
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("job " INT64_FORMAT " does not exist", job),
				 errhint("See %s.", printed_command("jobs"))));
	}
	may_see = may_see_role(entry.role);
	memset(&summary, 0, sizeof(summary));
	summary.job = job;
	summarize(&summary, true, may_see);
	if (was_running && settings.progress_interval > 0 && may_see)
		notices_end(&summary, (GetCurrentTimestamp() - entry.submitted_at) / 1e6);
	notices_denied(&summary);
	notices_raise(&summary, raise);
	PG_RETURN_VOID();
}
