/*-------------------------------------------------------------------------
 *
 * outcome.c
 *	  The outcome of an item: from an error to its row, and into the history.
 *
 * A failure to record (a full disk, for example) is a WARNING, and the moves go
 * on.  Only a job that cannot be recorded at all moves nothing.
 *
 * Locks: AccessShareLock on the extension, for the session, so that DROP
 * EXTENSION waits for the end of the job.  An error releases it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/timestamp.h"

#include "errors.h"
#include "history.h"
#include "own_tables.h"
#include "wait/wait.h"
#include "worker/worker.h"

#define RECORD_POLL_MS	20
#define LONGEST_DROP_MS	1000	/* that a canceled job waits for */

/*
 * Return the text that follows an error's message in a row, or NULL.  Where a
 * function of the index finds something in psql, but not here, it tells why.
 * The detail of an integrity violation has keys, which not every user may see.
 */
static const char *
further_detail(const MoveItem *item, const ErrorData *edata)
{
	if (item->method == METHOD_REBUILD &&
		(edata->sqlerrcode == ERRCODE_UNDEFINED_FUNCTION ||
		 edata->sqlerrcode == ERRCODE_UNDEFINED_TABLE))
		return "Functions of an index run with the search_path \"pg_catalog, pg_temp\" here; set search_path on the function.";
	if (ERRCODE_TO_CATEGORY(edata->sqlerrcode) == ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION)
		return NULL;
	if (edata->sqlerrcode == ERRCODE_DISK_FULL && edata->detail == NULL)
		return edata->hint;
	return edata->detail;
}

/* Return whether the extension was dropped, so that nothing is left to do. */
bool
outcome_extension_is_gone(JobShared *shared)
{
	return pg_atomic_read_u32(&shared->extension_gone) != 0;
}

/* End a move; if it has moved the relation, that stays its status. */
void
outcome_end(MoveOutcome *outcome, MoveStatus status, const char *sqlstate, const char *detail)
{
	if (outcome->status != STATUS_MOVED)
		outcome->status = status;
	if (outcome->finished_at == 0)
		outcome->finished_at = GetCurrentTimestamp();
	outcome->was_canceled = false;
	strlcpy(outcome->sqlstate, sqlstate, sizeof(outcome->sqlstate));
	strlcpy(outcome->detail, detail, sizeof(outcome->detail));
}

/* End a move because its job was canceled. */
void
outcome_take_cancel(JobShared *shared, MoveOutcome *outcome)
{
	if (outcome_extension_is_gone(shared))
		outcome_end(outcome, STATUS_CANCELED, "55000", "the extension was dropped");
	else
		outcome_end(outcome, STATUS_CANCELED, "57014", "the job was canceled");
	outcome->was_canceled = true;
}

/* End a move because the owner of the table has canceled it; the job goes on. */
void
outcome_take_owners_cancel(MoveOutcome *outcome)
{
	outcome_end(outcome, STATUS_SKIPPED, "57014", "the owner of the table has canceled its move");
	outcome->was_canceled = true;
}

/* End an item by the error of its move. */
void
outcome_take_error(JobShared *shared, MoveItem *item, ErrorData *edata)
{
	const char *more = further_detail(item, edata);
	bool		was_canceled = errors_was_canceled(edata);
	MoveStatus	status = STATUS_FAILED;

	Assert(item >= shared->items && item < shared->items + shared->nitems);

	/* core's words name a statement, and the user has canceled a job */
	if (was_canceled && job_cancel_requested())
	{
		outcome_take_cancel(shared, &item->outcome);
		return;
	}
	if (was_canceled && item->owner_cancels)
	{
		outcome_take_owners_cancel(&item->outcome);
		return;
	}
	if (was_canceled || job_cancel_requested())
		status = STATUS_CANCELED;
	outcome_end(&item->outcome, status, unpack_sql_state(edata->sqlerrcode), "");
	item->outcome.was_canceled = was_canceled;
	if (more != NULL)
		item_say(item, "%s: %s", edata->message, more);
	else
		item_say(item, "%s", edata->message);
}

/*
 * Hold the extension, after waiting for a session that is dropping it.  Returns false
 * if it was dropped, or a session that waits for us is about to drop it; and if the job is
 * canceled meanwhile, since that session may stay idle for hours in its transaction.
 */
bool
outcome_hold_extension(JobShared *shared)
{
	double		start = clock_seconds();

	for (;;)
	{
		ExtensionHold hold;
		bool		is_going;

		StartTransactionCommand();
		hold = extension_hold();
		CommitTransactionCommand();
		if (hold == EXTENSION_HELD)
			return true;
		if (hold == EXTENSION_GONE)
			is_going = true;
		else
			is_going = extension_find_deadlock(shared->caller_pid);
		if (is_going)
		{
			pg_atomic_write_u32(&shared->extension_gone, 1);
			return false;
		}
		if (job_cancel_requested() && clock_has_passed(start, LONGEST_DROP_MS))
			return false;
		runner_nap(shared, RECORD_POLL_MS);
	}
}

/* Insert the history rows of the job and all its items. */
static void
insert_rows(JobShared *shared)
{
	const HistoryJob job = {shared->role, shared->submitted_at, shared->settings.not_default,
	shared->settings.terms};

	if (!outcome_hold_extension(shared))
	{
		if (!outcome_extension_is_gone(shared))
			job_check_cancel();
		extension_missing();
	}
	StartTransactionCommand();
	history_insert_job(shared->job, &job);
	for (int i = 0; i < shared->nitems; i++)
	{
		if (shared->items[i].outcome.status != STATUS_SKIPPED)
			history_insert(shared, i);
	}
	CommitTransactionCommand();
}

/* Log, once, that the job is canceled while a session is dropping the extension. */
static void
tell_of_drop(JobShared *shared)
{
	static bool told = false;

	if (told || outcome_extension_is_gone(shared))
		return;
	told = true;
	ereport(LOG,
			(errhidecontext(true),
			 errmsg("%s: did not record how its moves have ended", runner_name()),
			 errdetail("The job was canceled while another session is dropping the extension.")));
}

/*
 * Update the history rows of some items, unless the extension was dropped, or the job is
 * canceled while a session is dropping it.
 */
static void
update_rows(JobShared *shared, int first, int last)
{
	if (!outcome_hold_extension(shared))
	{
		tell_of_drop(shared);
		return;
	}
	StartTransactionCommand();
	for (int i = first; i <= last; i++)
		history_update(shared, i);
	history_close_job(shared);
	CommitTransactionCommand();
}

/* Insert the rows of all items, or update the rows of some.  Returns the error, or NULL. */
static ErrorData *
try_to_record(JobShared *shared, bool insert, int first, int last)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	ErrorData  *volatile error = NULL;

	Assert(!IsTransactionState());
	PG_TRY();
	{
		if (insert)
			insert_rows(shared);
		else
			update_rows(shared, first, last);
	}
	PG_CATCH();
	{
		/* as between two items, but the extension is not held */
		runner_serve_cancel(false);
		error = errors_take(oldcontext);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(oldcontext);
	return error;
}

/* Warn that the move of an item is not on record; the hint may be NULL. */
static void
warn_not_recorded(const MoveItem *item, const ErrorData *error, const char *hint)
{
	ereport(WARNING,
			(errmsg("could not record the move of %s \"%s.%s\"",
					relation_noun(item->relkind), NameStr(item->schema_name),
					NameStr(item->relname)),
			 errors_as_detail(error),
			 hint != NULL ? errhint("%s", hint) : 0));
}

/*
 * Update the history rows of all items from one to another, in a single transaction: if
 * each of 10,000 had its own, a canceled job would go on for a minute.  If that fails,
 * try each with its parts again, since a row may have been deleted meanwhile, and a
 * missing row is no error, or kept by another transaction; then a failure is a WARNING,
 * and only the waiting caller learns of the outcome.  But if a session has locked the table for long, each would wait for
 * it: then there is a single WARNING, until a record succeeds.
 */
void
outcome_record(JobShared *shared, int first, int last)
{
	static bool told_of_lock = false;
	MemoryContext oldcontext = CurrentMemoryContext;
	ErrorData  *error = try_to_record(shared, false, first, last);
	bool		is_locked = error != NULL && error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE &&
		extension_is_locked();

	if (is_locked && !told_of_lock)
		warn_not_recorded(&shared->items[first], error,
						  "Others are not recorded, either, until the transaction that has locked the table ends.");
	told_of_lock = is_locked;
	if (is_locked)
	{
		/* the next item needs the extension held */
		(void) outcome_hold_extension(shared);
		MemoryContextSwitchTo(oldcontext);
	}
	if (error == NULL || is_locked)
		return;
	for (int n = first; n <= last; n = job_last_part(shared, n) + 1)
	{
		ErrorData  *again = try_to_record(shared, false, n, job_last_part(shared, n));

		if (again == NULL)
			continue;
		warn_not_recorded(&shared->items[n], again, NULL);
		(void) outcome_hold_extension(shared);
		MemoryContextSwitchTo(oldcontext);
	}
}

/*
 * Record a job and all its items.  Returns false on failure, with the error in
 * the items: the caller must move nothing.
 */
bool
outcome_record_all(JobShared *shared)
{
	ErrorData  *error;

	/* first, so that a termination is noted in each of them */
	for (int i = 0; i < shared->nitems; i++)
	{
		if (shared->items[i].outcome.status != STATUS_SKIPPED)
			shared->items[i].outcome.status = STATUS_QUEUED;
	}
	error = try_to_record(shared, true, 0, shared->nitems - 1);
	if (error == NULL)
		return true;

	ereport(LOG,
			(errhidecontext(true),
			 errmsg("%s: could not record the job", runner_name()),
			 errors_as_detail(error)));
	for (int i = 0; i < shared->nitems; i++)
	{
		if (shared->items[i].outcome.status != STATUS_SKIPPED)
			outcome_take_error(shared, &shared->items[i], error);
	}
	return false;
}
