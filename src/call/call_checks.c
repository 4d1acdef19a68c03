/*-------------------------------------------------------------------------
 *
 * call_checks.c
 *	  Checks of arguments and of the moment, for the SQL functions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/ipc.h"
#include "tcop/utility.h"
#include "utils/guc.h"
#include "utils/jsonb.h"

#include "call/call.h"
#include "job.h"

/* ---------------------------------------------------------------------
 * Arguments
 * ---------------------------------------------------------------------
 */
void
call_reject_null(FunctionCallInfo fcinfo, int n, const char *name)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name)));
}

MoveMethod
call_parse_method(const char *name)
{
	if (pg_strcasecmp(name, "auto") == 0)
		return METHOD_AUTO;
	if (pg_strcasecmp(name, "copy") == 0)
		return METHOD_COPY;
	if (pg_strcasecmp(name, "rebuild") == 0)
		return METHOD_REBUILD;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid method: \"%s\"", name),
			 errhint("Valid methods are \"auto\", \"copy\", and \"rebuild\".")));
	return METHOD_AUTO;			/* keep compiler quiet */
}

int64
call_size_argument(FunctionCallInfo fcinfo, int n, const char *name)
{
	int64		size = PG_ARGISNULL(n) ? 0 : PG_GETARG_INT64(n);

	if (size < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be negative", name)));
	return size;
}

/* Give core's error a hint; it passes through here on its way to the client. */
static void
add_hint(void *hint)
{
	if (geterrcode() == ERRCODE_ACTIVE_SQL_TRANSACTION)
		errhint("%s", (char *) hint);
}

/*
 * ERROR 25001 with this hint, if the named function is called in a transaction
 * block, a subtransaction or a pipeline (core's checks and core's messages,
 * which have none).
 *
 * Refuse to be in a transaction block: see result_rows_of_plan.h.
 */
void
call_prevent_in_block(const char *function, const char *hint)
{
	ErrorContextCallback callback;

	callback.callback = add_hint;
	callback.arg = unconstify(char *, hint);
	callback.previous = error_context_stack;
	error_context_stack = &callback;
	PreventInTransactionBlock(true, function);
	error_context_stack = callback.previous;
}

/*
 * ERROR where the named function can't work at this moment: 42501 within a
 * security-restricted operation; and unless dry_run 25006 in a read-only
 * transaction or during recovery, and with wait 25001 in a transaction block.
 *
 * Refuse what can't work at this moment: see result_rows_of_plan.h.
 */
void
call_check_moment(const char *function, bool dry_run, bool wait)
{
	/* e.g. an index expression that calls us */
	if (InSecurityRestrictedOperation())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot execute %s within security-restricted operation",
						function)));
	if (dry_run)
		return;
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
	if (wait)
		call_prevent_in_block(psprintf("%s with wait => true", function),
							  "Call it on its own, with autocommit on, or with wait => false.");
}
