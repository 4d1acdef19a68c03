/*-------------------------------------------------------------------------
 *
 * outcome.c
 *	  What became of an item: from an error to a row, and onto the record.
 *
 * What cannot be recorded must not stop what can be done: an error here (a full
 * disk, a session that deletes from the history) is a WARNING, and the moves go
 * on; only a job that cannot be put on record at all moves nothing.
 *
 * Assumption: called by a runner, with no transaction open.
 *
 * Locking: AccessShareLock on the extension's own tables, for the session, so
 * that DROP EXTENSION waits for the end of the job.  An error releases it, and
 * then they may be dropped.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/acl.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "history.h"
#include "job.h"
#include "own_tables.h"
#include "wait/wait.h"
#include "worker/worker.h"

#define RECORD_POLL_MS	20

static bool extension_gone = false; /* somebody has dropped the extension */

/*
 * What a row says besides an error's message, or NULL.  A function of the index
 * that finds a table or function of its own in psql, and not here, is a riddle to
 * its owner, so tell the difference.  (Keys are not for everybody to see.)
 */
static const char *
what_else_to_tell(const MoveItem *item, const ErrorData *edata)
{
	if (item->method == METHOD_REBUILD &&
		(edata->sqlerrcode == ERRCODE_UNDEFINED_FUNCTION ||
		 edata->sqlerrcode == ERRCODE_UNDEFINED_TABLE))
		return "Functions of an index run with the search_path \"pg_catalog, pg_temp\" here; set search_path on the function.";
	if (ERRCODE_TO_CATEGORY(edata->sqlerrcode) == ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION)
		return NULL;
	return edata->detail;
}

/* Write down in an item an error that has kept it from being moved. */
void
outcome_take_error(MoveItem *item, ErrorData *edata)
{
	const char *state = unpack_sql_state(edata->sqlerrcode);
	const char *more = what_else_to_tell(item, edata);

	/* an error that came when only the old index was still to be removed */
	if (item->status != STATUS_MOVED)
		item->status = (edata->sqlerrcode == ERRCODE_QUERY_CANCELED ||
						job_cancel_requested()) ? STATUS_CANCELED : STATUS_FAILED;
	strlcpy(item->sqlstate, state, sizeof(item->sqlstate));

	if (more != NULL)
		snprintf(item->detail, sizeof(item->detail), "%s: %s",
				 edata->message, more);
	else
		strlcpy(item->detail, edata->message, sizeof(item->detail));
	/* the fixed length may have cut a multibyte character in two */
	item->detail[pg_mbcliplen(item->detail, strlen(item->detail),
							  sizeof(item->detail) - 1)] = '\0';
}

/*
 * Start a transaction with the extension's tables held.  Waits for whoever has
 * them locked.  Returns false, and no transaction is open, if they have been
 * dropped, or if somebody who waits for us is about to.
 */
static bool
begin_to_record(JobShared *shared)
{
	for (;;)
	{
		ExtensionHold hold;
		Oid			busy;

		StartTransactionCommand();
		hold = extension_hold(&busy);
		if (hold == EXTENSION_HELD)
			return true;
		CommitTransactionCommand();
		if (hold == EXTENSION_GONE ||
			lockers_wait_for_us(busy, AccessShareLock, shared->caller_pid))
		{
			extension_gone = true;
			return false;
		}
		runner_nap(shared, RECORD_POLL_MS);
	}
}

/*
 * Take an error that came while something was put on record, and leave the
 * session as between two items; the extension's tables are not held any more.
 */
static ErrorData *
take_record_error(MemoryContext context)
{
	runner_serve_cancel(false);
	return errors_take(context);
}

/*
 * Try to bring one item's history row up to date, in a transaction of its own.
 * Returns NULL, or the error that has kept us from it.
 */
static ErrorData *
try_to_record(JobShared *shared, int n)
{
	MemoryContext context = CurrentMemoryContext;
	ErrorData  *volatile error = NULL;

	PG_TRY();
	{
		if (begin_to_record(shared))
		{
			history_update(shared, n);
			CommitTransactionCommand();
		}
	}
	PG_CATCH();
	{
		error = take_record_error(context);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	return error;
}

/*
 * Bring one item's history row up to date.  An error has let go of the
 * extension's tables, so they may have been dropped since; then the waiting
 * caller is the only one who will hear of it.
 *
 * What can't be recorded is done nevertheless, and a WARNING.  The second
 * attempt is for a row that somebody has just deleted, which is no error: for
 * the first one it was there when it looked.
 */
void
outcome_record_item(JobShared *shared, int n)
{
	const MoveItem *item = &shared->items[n];
	MemoryContext context = CurrentMemoryContext;
	ErrorData  *error = try_to_record(shared, n);

	if (error != NULL)
	{
		FreeErrorData(error);
		error = try_to_record(shared, n);
	}
	if (error == NULL)
		return;

	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("could not record the move of index \"%s.%s\": %s",
					NameStr(item->schema_name), NameStr(item->index_name),
					error->message)));
	FreeErrorData(error);

	/* what comes next wants the extension's tables held */
	if (begin_to_record(shared))
		CommitTransactionCommand();
	MemoryContextSwitchTo(context);
}

/*
 * Put all items on record.  Returns false if that can't be done: then nothing
 * is moved, and the rows say why.
 */
bool
outcome_record_all(JobShared *shared)
{
	MemoryContext context = CurrentMemoryContext;
	ErrorData  *volatile error = NULL;
	int			i;

	/*
	 * all of them first: if we are terminated meanwhile, each row shall say
	 * so
	 */
	for (i = 0; i < shared->nitems; i++)
		if (shared->items[i].status != STATUS_SKIPPED)
			shared->items[i].status = STATUS_QUEUED;

	PG_TRY();
	{
		if (!begin_to_record(shared))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("extension \"%s\" is not installed in this database",
							"index_mover")));
		for (i = 0; i < shared->nitems; i++)
		{
			if (shared->items[i].status != STATUS_SKIPPED)
				history_insert(shared, i);
		}
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		error = take_record_error(context);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	if (error == NULL)
		return true;

	ereport(LOG,
			(errcode(error->sqlerrcode),
			 errmsg("could not record job " INT64_FORMAT ": %s",
					shared->job, error->message)));
	for (i = 0; i < shared->nitems; i++)
		if (shared->items[i].status != STATUS_SKIPPED)
			outcome_take_error(&shared->items[i], error);
	FreeErrorData(error);
	return false;
}

/* Has the extension been dropped under us?  Then there is nothing left to do. */
bool
outcome_extension_is_gone(void)
{
	return extension_gone;
}
