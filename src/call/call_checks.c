/*-------------------------------------------------------------------------
 *
 * call_checks.c
 *	  Arguments of the SQL functions that move, and checks of the session's
 *	  state.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_proc.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "tcop/pquery.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/syscache.h"

#include "call/call.h"
#include "printed_command.h"

/*
 * Error context callback: add a hint to core's error, which has none.  A query in a
 * cursor may well be on its own for who has typed it.  arg: whether the call has
 * "wait".
 */
static void
add_hint(void *arg)
{
	bool		has_wait = arg != NULL;

	/* PL/pgSQL makes cursors, too, which have no names of their own */
	bool		is_cursor = ActivePortal != NULL && ActivePortal->name[0] != '\0' &&
		ActivePortal->name[0] != '<';

	if (geterrcode() != ERRCODE_ACTIVE_SQL_TRANSACTION)
		return;
	if (is_cursor)
		errdetail("It is called in a cursor, which is in a transaction block. psql uses cursors if FETCH_COUNT is set, and drivers with a fetch size.");
	if (is_cursor && has_wait)
		errhint("Call it without a cursor, for example after \\unset FETCH_COUNT, or with wait => false.");
	else if (is_cursor)
		errhint("Call it without a cursor, for example after \\unset FETCH_COUNT.");
	else if (has_wait)
		errhint("Call it on its own, with autocommit on, or with wait => false.");
	else
		errhint("Call it on its own, with autocommit on.");
}

/*
 * Refuse to run the named function in a transaction block; has_wait: only because of
 * wait => true.  ERROR 25001.
 */
void
call_check_block(const char *function, bool has_wait)
{
	ErrorContextCallback callback = {.callback = add_hint,.previous = error_context_stack};

	if (has_wait)
		callback.arg = &callback;	/* anything but NULL */
	error_context_stack = &callback;
	PreventInTransactionBlock(true, has_wait ? psprintf("%s with wait => true", function) : function);
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
		call_check_block(function, true);
}

/* Return the method of this name, in any letter case; else ERROR 22023. */
static MoveMethod
parse_method(const char *name)
{
	for (MoveMethod method = METHOD_AUTO; method <= METHOD_REBUILD; method++)
	{
		if (pg_strcasecmp(name, method_name(method)) == 0)
			return method;
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid method: \"%s\"", name),
			 errhint("Valid methods are \"auto\", \"copy\", and \"rebuild\".")));
}

/* Return a size in bytes; ERROR 22023 if it is negative. */
static int64
parse_size(const char *name, Datum value)
{
	if (DatumGetInt64(value) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be negative", name),
				 errhint("Give bytes, for example pg_size_bytes('10GB').")));
	return DatumGetInt64(value);
}

/* Put an argument into the call, which has its settings already. */
static void
put_argument(MoveCall *call, const char *name, Datum value)
{
	PlanRequest *request = &call->request;

	if (strcmp(name, "relation") == 0)
		call->relation = DatumGetObjectId(value);
	else if (strcmp(name, "schema") == 0)
		call->schema = DatumGetObjectId(value);
	else if (strcmp(name, call->source) == 0)
	{
		call->from_tablespace = plan_tablespace(DatumGetName(value), false);
		request->to_tablespace = call->from_tablespace;
	}
	else if (strcmp(name, "tablespace") == 0 || strcmp(name, "to_tablespace") == 0)
		request->to_tablespace = plan_tablespace(DatumGetName(value), true);
	else if (strcmp(name, "index_tablespace") == 0)
		request->index_tablespace = plan_tablespace(DatumGetName(value), true);
	else if (strcmp(name, "method") == 0)
		request->method = parse_method(TextDatumGetCString(value));
	else if (strcmp(name, "indexes") == 0)
	{
		if (DatumGetBool(value))
			call->kinds |= PLAN_INDEXES;
	}
	else if (strcmp(name, "unmounted") == 0)
		call->unmounted = DatumGetBool(value);
	else if (strcmp(name, "freeze_first") == 0)
		request->settings.terms.freeze_first = DatumGetBool(value);
	else if (strcmp(name, "rehearse") == 0)
		request->settings.terms.rehearse = DatumGetBool(value);
	else if (strcmp(name, "name_like") == 0)
		request->filter.name_like = DatumGetTextPP(value);
	else if (strcmp(name, "name_not_like") == 0)
		request->filter.name_not_like = DatumGetTextPP(value);
	else if (strcmp(name, "min_size") == 0)
		request->filter.min_size = parse_size(name, value);
	else if (strcmp(name, "max_size") == 0)
		request->filter.max_size = parse_size(name, value);
}

/* Return whether an argument may be NULL, for none. */
static bool
may_be_null(const MoveCall *call, const char *name)
{
	static const char *const names[] = {"index_tablespace", "settings", "name_like",
	"name_not_like", "min_size", "max_size"};

	/* heal_tablespace(tablespace, to_tablespace) rebuilds where it was */
	if (strcmp(name, "to_tablespace") == 0 && strcmp(call->source, "tablespace") == 0)
		return true;
	for (int i = 0; i < lengthof(names); i++)
	{
		if (strcmp(name, names[i]) == 0)
			return true;
	}
	return false;
}

/* Return argument n, the settings of a job: NULL, or a JSON object.  ERROR 22023 otherwise. */
Jsonb *
call_settings_argument(FunctionCallInfo fcinfo, int n)
{
	Jsonb	   *json;

	if (PG_ARGISNULL(n))
		return NULL;
	json = PG_GETARG_JSONB_P(n);
	settings_check_object(json);
	return json;
}

/*
 * Read the arguments of a function that moves into *call, by the names that they have in
 * pg_proc.  ERRORs: 22004 NULL; as call_check_moment(), settings_capture() and
 * put_argument(); 22023; 42501.
 */
void
call_arguments(FunctionCallInfo fcinfo, MoveCall *call)
{
	HeapTuple	proc = SearchSysCache1(PROCOID, ObjectIdGetDatum(fcinfo->flinfo->fn_oid));
	PlanRequest *request = &call->request;
	const PlanFilter *filter = &request->filter;
	char	   *function;
	Jsonb	   *settings = NULL;
	Oid		   *types;
	char	  **names;
	char	   *modes;

	if (!HeapTupleIsValid(proc))	/* just dropped */
		elog(ERROR, "cache lookup failed for function %u", fcinfo->flinfo->fn_oid);
	if (call->source == NULL)
		call->source = "from_tablespace";
	function = psprintf("%s()", NameStr(((Form_pg_proc) GETSTRUCT(proc))->proname));
	(void) get_func_arg_info(proc, &types, &names, &modes);
	ReleaseSysCache(proc);
	for (int i = 0; i < PG_NARGS(); i++)
	{
		if (!may_be_null(call, names[i]))
			reject_null(fcinfo, i, names[i]);
		if (strcmp(names[i], "dry_run") == 0)
			call->dry_run = PG_GETARG_BOOL(i);
		else if (strcmp(names[i], "wait") == 0)
			request->waits = PG_GETARG_BOOL(i);
		else if (strcmp(names[i], "settings") == 0)
			settings = call_settings_argument(fcinfo, i);
	}
	call_check_moment(function, call->dry_run, request->waits);
	request->waits &= !call->dry_run;
	settings_capture(&request->settings, settings, true);
	for (int i = 0; i < PG_NARGS(); i++)
	{
		if (!PG_ARGISNULL(i))
			put_argument(call, names[i], PG_GETARG_DATUM(i));
	}

	if (call->unmounted && !superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to heal a tablespace whose file system may not be mounted"),
				 errdetail("Only roles with the %s attribute may use unmounted => true.",
						   "SUPERUSER")));
	if (OidIsValid(request->index_tablespace) && !(call->kinds & PLAN_INDEXES))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("index_tablespace requires indexes => true")));
	if (filter->max_size > 0 && filter->min_size > filter->max_size)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("min_size must not be greater than max_size"),
				 errhint("Give bytes, for example pg_size_bytes('10GB').")));
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
