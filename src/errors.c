/*-------------------------------------------------------------------------
 *
 * errors.c
 *	  After an error that a worker survives.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/lock.h"
#include "utils/memutils.h"

#include "own_tables.h"

/*
 * In PG_CATCH() of a worker: take the error, and leave the session without a
 * transaction and without locks, also those held for the session, which survive
 * the abort where no transaction was open.  Returns the error, palloc'd in this
 * context, which is the current one then.
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
