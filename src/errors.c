/*-------------------------------------------------------------------------
 *
 * errors.c
 *	  What a worker does after an error that it survives.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/lock.h"
#include "utils/memutils.h"

#include "own_tables.h"

/*
 * Take the error in PG_CATCH() of a worker, and end all transactions and
 * release all locks, including session locks, which survive the abort if no
 * transaction was open.  Returns the error, palloc'd in context, which
 * becomes the current one.
 */
ErrorData *
errors_take(MemoryContext context)
{
	ErrorData  *error;

	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	AbortOutOfAnyTransaction();
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
	MemoryContextSwitchTo(context);
	return error;
}
