/*-------------------------------------------------------------------------
 *
 * outcome.c
 *	  The outcome of an item: from an error to its row, and into the history.
 *
 * A failure to record must not stop a move: an error here (a full disk, a
 * session that deletes from the history) is a WARNING, and the moves go on.
 * Only a job that cannot be recorded at all moves nothing.  Called by a runner.
 *
 * Locks: AccessShareLock on the extension's own tables, for the session, so
 * that DROP EXTENSION waits for the end of the job.  An error releases it,
 * and then they may be dropped.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"

#include "errors.h"
#include "history.h"
#include "own_tables.h"
#include "wait/wait.h"
#include "worker/worker.h"

#define RECORD_POLL_MS	20

/*
 * Return the text that follows an error's message in a row, or NULL.  Where a
 * function of the index finds its tables and functions in psql, but not here,
 * it explains the difference.  The detail of an integrity violation has keys,
 * which not every user may see.
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

/* Set an item's SQLSTATE and detail to why its job was canceled. */
void
outcome_take_cancel(JobShared *shared, MoveItem *item)
{
	bool		gone = outcome_extension_is_gone(shared);

	strlcpy(item->sqlstate, gone ? "55000" : "57014", sizeof(item->sqlstate));
	strlcpy(item->detail, gone ? "the extension was dropped" : "the job was canceled",
			sizeof(item->detail));
}

/* Set an item's status, SQLSTATE and detail from the error of its move. */
void
outcome_take_error(JobShared *shared, MoveItem *item, ErrorData *edata)
{
	const char *state = unpack_sql_state(edata->sqlerrcode);
	const char *more = further_detail(item, edata);

	Assert(item >= shared->items && item < shared->items + shared->nitems);

	/* it stays moved if only the removal of the old index has failed */
	if (item->status != STATUS_MOVED)
		item->status = errors_was_canceled(edata) || job_cancel_requested() ?
			STATUS_CANCELED : STATUS_FAILED;
	strlcpy(item->sqlstate, state, sizeof(item->sqlstate));

	/* core's words name a statement, and the user has canceled a job */
	if (edata->sqlerrcode == ERRCODE_QUERY_CANCELED && job_cancel_requested())
		outcome_take_cancel(shared, item);
	else
	{
		item->detail[0] = '\0';
		item_say(item, "%s%s%s", edata->message, more ? ": " : "", more ? more : "");
	}
}

/*
 * Start a transaction with the extension's tables held, after waiting for
 * sessions that have locked them.  Returns false, with no transaction open, if
 * they were dropped, or a session that waits for us is about to drop them.
 */
static bool
begin_to_record(JobShared *shared)
{
	for (;;)
	{
		ExtensionHold hold;

		StartTransactionCommand();
		hold = extension_hold();
		if (hold == EXTENSION_HELD)
			return true;
		CommitTransactionCommand();
		if (hold == EXTENSION_GONE || extension_lockers_wait_for_us(shared->caller_pid))
		{
			pg_atomic_write_u32(&shared->extension_gone, 1);
			return false;
		}
		runner_nap(shared, RECORD_POLL_MS);
	}
}

/*
 * Try to update the history rows of some items or, for all of them, to insert
 * these and the job's.  Returns NULL, or the error.
 */
static ErrorData *
try_to_record(JobShared *shared, bool insert, int first, int last)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	ErrorData  *volatile error = NULL;
	const HistoryJob job = {shared->role, shared->submitted_at, shared->settings.not_default,
	shared->settings.terms};
	bool		held;

	Assert(!IsTransactionState());
	PG_TRY();
	{
		held = begin_to_record(shared);
		if (insert && !held)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("extension \"%s\" is not installed in this database",
							"index_mover")));
		if (insert)
			history_insert_job(shared->job, &job);
		for (int i = first; held && i <= last; i++)
		{
			if (!insert)
				history_update(shared, i);
			else if (shared->items[i].status != STATUS_SKIPPED)
				history_insert(shared, i);
		}
		if (held && !insert)
			history_close_job(shared);
		if (held)
			CommitTransactionCommand();
	}
	PG_CATCH();
	{
		/* as between two items, but the extension's tables are not held */
		runner_serve_cancel(false);
		error = errors_take(oldcontext);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(oldcontext);
	return error;
}

/*
 * Update the history rows of an item and its parts; a failure is a WARNING.  An
 * error releases the extension's tables, so they may be dropped then, and only
 * the waiting caller learns of the outcome.
 *
 * The second attempt is for a row that was deleted during the first: a missing
 * row is no error.
 */
void
outcome_record_item(JobShared *shared, int n)
{
	const MoveItem *item = &shared->items[n];
	MemoryContext oldcontext = CurrentMemoryContext;
	int			last = job_parts_follow(shared, n);
	ErrorData  *error = try_to_record(shared, false, n, last);

	if (error != NULL)
	{
		FreeErrorData(error);
		error = try_to_record(shared, false, n, last);
	}
	if (error == NULL)
		return;

	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("could not record the move of %s \"%s.%s\"",
					relation_noun(item->relkind), NameStr(item->schema_name), NameStr(item->relname)),
			 errdetail_internal("%s", error->message)));
	FreeErrorData(error);

	/* the next item needs the extension's tables held */
	if (begin_to_record(shared))
		CommitTransactionCommand();
	MemoryContextSwitchTo(oldcontext);
}

/*
 * The same of all items from one to another: in one transaction, if there is no error.
 * If each of 10,000 had one, a canceled job would go on for a minute.
 */
void
outcome_record_items(JobShared *shared, int first, int last)
{
	ErrorData  *error = try_to_record(shared, false, first, last);

	if (error == NULL)
		return;
	FreeErrorData(error);
	for (int n = first; n <= last; n = job_last_part(shared, n) + 1)
		outcome_record_item(shared, n);
}

/*
 * Record a job and all its items.  Returns false on failure, with the error in
 * the items: the caller must move nothing.
 */
bool
outcome_record_all(JobShared *shared)
{
	ErrorData  *error;

	/* all of them first, so that a termination is noted in each of them */
	for (int i = 0; i < shared->nitems; i++)
		if (shared->items[i].status != STATUS_SKIPPED)
			shared->items[i].status = STATUS_QUEUED;
	error = try_to_record(shared, true, 0, shared->nitems - 1);
	if (error == NULL)
		return true;

	ereport(LOG,
			(errhidecontext(true),
			 errcode(error->sqlerrcode),
			 errmsg("%s: could not record the job", runner_name()),
			 errdetail_internal("%s", error->message)));
	for (int i = 0; i < shared->nitems; i++)
		if (shared->items[i].status != STATUS_SKIPPED)
			outcome_take_error(shared, &shared->items[i], error);
	FreeErrorData(error);
	return false;
}
