/*-------------------------------------------------------------------------
 *
 * call_checks.c
 *	  Checks of arguments and of the session's state, for the SQL functions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/acl.h"

#include "call/call.h"
#include "printed_command.h"

/* Return the method of this name, in any letter case; else ERROR 22023. */
MoveMethod
call_parse_method(const char *name)
{
	for (MoveMethod method = METHOD_AUTO; method <= METHOD_REBUILD; method++)
		if (pg_strcasecmp(name, method_name(method)) == 0)
			return method;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid method: \"%s\"", name),
			 errhint("Valid methods are \"auto\", \"copy\", and \"rebuild\".")));
	return METHOD_AUTO;			/* keep compiler quiet */
}

/* Return argument n, 0 for NULL; ERROR 22023 if it is negative. */
int64
call_size_argument(FunctionCallInfo fcinfo, int n, const char *name)
{
	int64		size = PG_ARGISNULL(n) ? 0 : PG_GETARG_INT64(n);

	if (size < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be negative", name),
				 errhint("It is in bytes, as of pg_size_bytes('10GB').")));
	return size;
}

/* Error context callback: add a hint to core's error. */
static void
add_hint(void *hint)
{
	if (geterrcode() == ERRCODE_ACTIVE_SQL_TRANSACTION)
		errhint("%s", (char *) hint);
}

/*
 * Refuse to run the named function in a transaction block, a subtransaction
 * or a pipeline, with ERROR 25001.  The check and its messages are core's,
 * which has no hint.
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
 * Refuse to run the named function where it cannot work.  ERRORs: 42501
 * within a security-restricted operation; unless dry_run, 25006 in a
 * read-only transaction or during recovery, and with wait, 25001 in a
 * transaction block.
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

/* Return whether the current user may see the relations of a role's job. */
bool
call_may_see(Oid role)
{
	return has_privs_of_role(GetUserId(), role) ||
		has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
}

/* Raise ERROR 42704: there never was such a job. */
void
call_no_such_job(int64 job)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("job " INT64_FORMAT " does not exist", job),
			 errhint("See %s.", printed_command("jobs"))));
}
