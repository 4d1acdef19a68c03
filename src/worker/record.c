/*-------------------------------------------------------------------------
 *
 * record.c
 *	  What a worker puts on record of its items, between two of them.
 *
 * What can't be recorded must not stop what can be done: an error here (a full
 * disk, somebody who deletes from the history) is a WARNING, and the moves go
 * on; only a job that can't be put on record at all moves nothing.
 *
 * Assumption: called by a runner, with no transaction open.
 *
 * Locking: AccessShareLock on the extension's own tables, for the session, so
 * that DROP EXTENSION waits for the end of the job.  An error lets go of it, and
 * then they may be dropped.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/lock.h"
#include "utils/memutils.h"

#include "catalog.h"
#include "compat.h"
#include "history.h"
#include "worker/move.h"
#include "worker/record.h"
#include "wait/wait_others.h"

#define RECORD_POLL_MS	20

static bool extension_gone = false; /* somebody has dropped the extension */

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
	ErrorData  *error;

	MemoryContextSwitchTo(context);
	runner_serve_cancel(false);
	error = CopyErrorData();
	FlushErrorState();
	AbortOutOfAnyTransaction();
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
	MemoryContextSwitchTo(context);
	return error;
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
record_item(JobShared *shared, int n)
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
record_all(JobShared *shared)
{
	MemoryContext context = CurrentMemoryContext;
	ErrorData  *volatile error = NULL;
	int			i;

	/* all of them first: if we are terminated meanwhile, each row shall say so */
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
			move_take_error(&shared->items[i], error);
	FreeErrorData(error);
	return false;
}

bool
record_extension_is_gone(void)
{
	return extension_gone;
}
