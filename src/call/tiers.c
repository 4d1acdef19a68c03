/*-------------------------------------------------------------------------
 *
 * tiers.c
 *	  What the tier policies, which are SQL, need from C: the present of a
 *	  policy's own clock, and one job for many relations.
 *
 * tier_plan() decides, as its caller and with this role's privileges.  What it
 * has decided may be outdated: a relation that cannot be planned any more is a
 * WARNING, and the others move.
 *
 * The clock of a policy is the one function whose name is known at run time
 * only: see tier_now() for whose it may be.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type_d.h"
#include "commands/tablespace.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/tuplestore.h"

#include "call/call.h"
#include "compat.h"
#include "job.h"
#include "own_tables.h"
#include "plan/plan.h"
#include "settings.h"

PG_FUNCTION_INFO_V1(index_mover_tier_now);
PG_FUNCTION_INFO_V1(index_mover_move_list);
PG_FUNCTION_INFO_V1(index_mover_no_policy);

/*
 * Run work in a subtransaction.  If it fails, raise its error as a WARNING, and
 * return false.
 */
static bool
try_to(void (*work) (void *arg), void *arg, const char *what)
{
	ErrorData  *error = errors_catch(work, arg);

	if (error == NULL)
		return true;
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		ReThrowError(error);
	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("%s: %s", what, error->message),
			 error->detail ? errdetail_internal("%s", error->detail) : 0,
			 error->hint ? errhint("%s", error->hint) : 0));
	FreeErrorData(error);
	return false;
}

/* A call of a policy's clock */
typedef struct ClockCall
{
	FunctionCallInfo call;
	Datum		result;
}			ClockCall;

/* Call the clock; in a subtransaction, at whose end it may be written again. */
static void
call_clock(void *arg)
{
	ClockCall  *clock = (ClockCall *) arg;

	XactReadOnly = true;
	clock->result = FunctionCallInvoke(clock->call);
}

/*
 * index_mover.tier_now(now_function regprocedure, age interval) RETURNS text
 *
 * For tier_plan(): returns, as text, what a function without arguments says is
 * the present, or what one with an interval says was the key so long ago.  NULL
 * if it takes something else, returns NULL, or is neither the current user's nor a
 * superuser's: another user who may write policies must not have a function
 * called by the role that carries them out.  For the same reason the function
 * cannot write; if it fails, its error is a WARNING, and the result NULL.
 * ERROR 42501 no EXECUTE on it.
 */
Datum
index_mover_tier_now(PG_FUNCTION_ARGS)
{
	Oid			function = PG_GETARG_OID(0);
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc form;
	bool		usable;
	int			nargs;
	Oid			result_type;
	Oid			out;
	bool		varlena;
	AclResult	aclresult;
	FmgrInfo	flinfo;
	ClockCall	clock;

	LOCAL_FCINFO(call, 1);

	if (!HeapTupleIsValid(tuple))
		PG_RETURN_NULL();
	form = (Form_pg_proc) GETSTRUCT(tuple);
	nargs = form->pronargs;
	result_type = form->prorettype;
	usable = (form->proowner == GetUserId() || superuser_arg(form->proowner)) &&
		(result_type == DATEOID || result_type == TIMESTAMPOID || result_type == TIMESTAMPTZOID ||
		 result_type == INT2OID || result_type == INT4OID || result_type == INT8OID) &&
		form->prokind == PROKIND_FUNCTION && !form->proretset &&
		(nargs == 0 || (nargs == 1 && form->proargtypes.values[0] == INTERVALOID));
	ReleaseSysCache(tuple);
	if (!usable)
		PG_RETURN_NULL();
	aclresult = object_aclcheck(ProcedureRelationId, function, GetUserId(), ACL_EXECUTE);
	if (aclresult != ACLCHECK_OK)
		aclcheck_error(aclresult, OBJECT_FUNCTION, get_func_name(function));

	fmgr_info(function, &flinfo);
	InitFunctionCallInfoData(*call, &flinfo, nargs, InvalidOid, NULL, NULL);
	call->args[0].value = PG_GETARG_DATUM(1);
	call->args[0].isnull = false;
	clock.call = call;
	if (!try_to(call_clock, &clock, psprintf("now_function \"%s\" has failed", get_func_name(function))) ||
		call->isnull)
		PG_RETURN_NULL();
	getTypeOutputInfo(result_type, &out, &varlena);
	PG_RETURN_TEXT_P(cstring_to_text(OidOutputFunctionCall(out, clock.result)));
}

/*
 * index_mover.no_policy(policy name) RETURNS boolean
 *
 * For tier_plan(): ERROR 42704, because there is no such policy.
 */
Datum
index_mover_no_policy(PG_FUNCTION_ARGS)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("tier policy \"%s\" does not exist", NameStr(*PG_GETARG_NAME(0)))));
	PG_RETURN_BOOL(false);		/* keep compiler quiet */
}

/* One relation to plan */
typedef struct PlanWork
{
	PlanRequest request;
	const char *tablespace;
	List	   *items;
} PlanWork;

static void
plan_one(void *arg)
{
	PlanWork   *work = arg;
	char		relkind = get_rel_relkind(work->request.object);

	work->request.to_tablespace = plan_target_tablespace(work->tablespace);
	if (relkind_is_index(relkind))
	{
		work->request.scope = SCOPE_ONE;
		work->request.tables = false;
		work->request.indexes = true;
	}
	work->items = plan_moves(&work->request);
}

/* One job to submit */
typedef struct SubmitWork
{
	FunctionCallInfo fcinfo;
	List	   *plan;
	const MoveSettings *settings;
} SubmitWork;

static void
submit(void *arg)
{
	SubmitWork *work = arg;

	result_rows_of_plan(work->fcinfo, work->plan, work->settings, false, false);
}

/*
 * index_mover.move_list(relations oid[], tablespaces name[], from_tablespace name,
 *		parts text, wait boolean, settings jsonb, policy name, freeze_first boolean)
 *		RETURNS SETOF move_result
 *
 * For run_tier_policies(): moves relations to one tablespace each, in one job.
 * Of a table, parts picks "table", "indexes" or "all", and from_tablespace, if
 * not NULL, what of these is there.  A relation that cannot be planned, and
 * without wait a job that cannot be submitted, is a WARNING.
 * ERRORs: those of move_table() that concern the moment of the call.
 */
Datum
index_mover_move_list(PG_FUNCTION_ARGS)
{
	Datum	   *relations;
	Datum	   *tablespaces;
	int			count;
	int			count2;
	Oid			from_tablespace;
	char	   *parts;
	bool		wait;
	PlanRequest request = {.method = METHOD_AUTO,.part = true};
	List	   *plan = NIL;
	SubmitWork	work = {fcinfo};

	call_reject_null(fcinfo, 0, "relations");
	call_reject_null(fcinfo, 1, "tablespaces");
	call_reject_null(fcinfo, 3, "parts");
	call_reject_null(fcinfo, 4, "wait");
	call_reject_null(fcinfo, 6, "policy");
	call_reject_null(fcinfo, 7, "freeze_first");
	/* if it has gone since, nothing is there */
	from_tablespace = PG_ARGISNULL(2) ? InvalidOid :
		get_tablespace_oid(NameStr(*PG_GETARG_NAME(2)), true);
	parts = text_to_cstring(PG_GETARG_TEXT_PP(3));
	wait = PG_GETARG_BOOL(4);
	call_check_moment("run_tier_policies()", false, wait);
	settings_capture_with(&request.settings, call_settings_argument(fcinfo, 5));
	request.settings.terms.policy = *PG_GETARG_NAME(6);
	request.settings.terms.freeze_first = PG_GETARG_BOOL(7);
	request.tables = strcmp(parts, "indexes") != 0;
	request.indexes = strcmp(parts, "table") != 0;
	request.waits = wait;
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), OIDOID, sizeof(Oid), true, TYPALIGN_INT,
					  &relations, NULL, &count);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR,
					  &tablespaces, NULL, &count2);

	for (int i = 0; i < Min(count, count2); i++)
	{
		ListCell   *lc;
		bool		picked = false;
		PlanWork	one = {.request = request};
		char	   *name = get_rel_name(DatumGetObjectId(relations[i]));

		CHECK_FOR_INTERRUPTS();
		one.request.object = DatumGetObjectId(relations[i]);
		one.tablespace = NameStr(*DatumGetName(tablespaces[i]));
		if (name == NULL ||
			!try_to(plan_one, &one, psprintf("\"%s\" is not moved", name)))
			continue;
		foreach(lc, one.items)
		{
			MoveItem   *item = lfirst(lc);

			/* what TOAST keeps goes with its table */
			if (item->part_of == InvalidOid)
				picked = PG_ARGISNULL(2) || item->from_tablespace == from_tablespace;
			if (picked)
				plan = lappend(plan, item);
		}
	}
	plan_complete(plan, &request);
	/* not in a subtransaction, which would close its file */
	InitMaterializedSRF(fcinfo, 0);
	work.plan = plan;
	work.settings = &request.settings;
	if (wait)
		result_rows_of_plan(fcinfo, plan, &request.settings, false, true);
	else if (!try_to(submit, &work, psprintf("policy \"%s\" moves nothing", NameStr(request.settings.terms.policy))))
		tuplestore_clear(((ReturnSetInfo *) fcinfo->resultinfo)->setResult);	/* of no job */
	return (Datum) 0;
}
