/*-------------------------------------------------------------------------
 *
 * tier_plan.c
 *	  The relations that a policy would move or not, and why.
 *
 * A policy wishes relations into its target, in an order (tier_wish.c); about each wish a
 * decision is made (tier_decision.c).
 *
 * Each policy is planned in the caller's session, as its owner, in a security-restricted
 * operation, and with the settings of the owner's sessions.  No code of a user runs: the meaning
 * of a bound is known (key_units.c), rows are read without the planner of queries,
 * expressions of indexes and policies of row security are not evaluated, and no function
 * of a type or an operator class is called but of core's types.
 *
 * Takes no locks but on catalogs and the extension's own tables.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "commands/tablespace.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/float.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "call/call.h"
#include "row.h"
#include "tier/tier_plan_private.h"
#include "timescaledb.h"

PG_FUNCTION_INFO_V1(index_mover_tier_plan);

/* columns of tier_plan(), as in the SQL script */
enum
{
	Anum_tier_plan_policy = 1,
	Anum_tier_plan_relation,
	Anum_tier_plan_kind,
	Anum_tier_plan_size,
	Anum_tier_plan_from_tablespace,
	Anum_tier_plan_to_tablespace,
	Anum_tier_plan_moves,
	Anum_tier_plan_reason,
	Anum_tier_plan_heat,
	Anum_tier_plan_estimated,
	Anum_tier_plan_from_used,
	Anum_tier_plan_from_used_after,
	Anum_tier_plan_to_used,
	Anum_tier_plan_to_used_after
};

/* Plan the policies as of a moment, which is finite. */
TierPlan *
tier_plan_begin(TimestampTz at)
{
	HASHCTL		info = {0};
	TierPlan   *plan = palloc0_object(TierPlan);

	Assert(!TIMESTAMP_NOT_FINITE(at));

	/*
	 * As the caller: core asks once in a transaction in which of these the
	 * user may create files, and the first user that would sort is the owner
	 * of a policy.
	 */
	PrepareTempTablespaces();
	plan->sort_memory = HEAT_PLAN_MEMORY;
	plan->now = at;
	plan->heat_context = AllocSetContextCreate(CurrentMemoryContext, "index_mover heat",
											   ALLOCSET_DEFAULT_SIZES);
	plan->places = places_read();
	plan->busy = job_busy_tables();
	info.keysize = sizeof(Oid);
	info.entrysize = sizeof(CoveredTable);
	info.hcxt = CurrentMemoryContext;
	plan->covered = hash_create("index_mover covered tables", 64, &info,
								HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	plan->limits = conflict_limits(plan->places);
	plan->chunks = timescaledb_chunk_pairs(&plan->chunk_problem);
	plan->parts = plan_parts_begin();
	return plan;
}

/* A policy */

/* ERROR unless the policy can be for the relation that it names. */
static void
check_named_relation(const Policy *policy, Oid schema)
{
	bool		by_age = policy->kind == POLICY_OLDER_THAN;
	char		relkind = get_rel_relkind(policy->relation);
	const char *name = get_rel_name(policy->relation);
	bool		is_table = relkind == RELKIND_PARTITIONED_TABLE || relkind == RELKIND_RELATION ||
		relkind == RELKIND_MATVIEW;

	if (relkind == '\0' || name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", policy->relation)));
	if (by_age && relkind != RELKIND_PARTITIONED_TABLE && relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a partitioned table", name)));
	if (IsCatalogRelationOid(policy->relation) ||
		(!by_age && (!is_table ||
					 OidIsValid(getExtensionOfObject(RelationRelationId, policy->relation)))))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a table or materialized view of users", name)));
	/* partitions can be in another schema */
	if (OidIsValid(schema) && schema != get_rel_namespace(policy->relation) &&
		(by_age || relkind != RELKIND_PARTITIONED_TABLE))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is not in schema \"%s\"", name, policy->schema)));
}

/* Look up the objects that the policy names.  ERROR if any does not exist. */
static void
look_up_names(PolicyWork *work)
{
	const Policy *policy = work->policy;
	TierScope  *scope = &work->scope;

	scope->tables = policy->tables;
	scope->indexes = policy->indexes;
	/* relations beyond a budget go back, to from_tablespace */
	scope->residents = policy->kind == POLICY_BUDGET;
	if (policy->schema != NULL)
		scope->schema = get_namespace_oid(policy->schema, false);
	if (policy->from_tablespace != NULL)
		scope->from = plan_tablespace((Name) policy->from_tablespace, false);
	scope->to = plan_tablespace(policy->to_tablespace, false);
	policy_check_target(NameStr(*policy->to_tablespace), policy->tables);
	if (scope->residents)
		policy_check_target(policy->from_tablespace, policy->tables);
	if (!OidIsValid(policy->relation))
		return;
	check_named_relation(policy, scope->schema);
	scope->within = relation_and_below(policy->relation);
}

/* Read the relations, once for all policies, and weigh their heat as a policy does. */
static void
weigh_relations(TierPlan *plan, const Policy *policy)
{
	if (plan->heat == NULL)
	{
		MemoryContext oldcontext;

		/* left by a reading that an error has ended, of the policy before */
		MemoryContextReset(plan->heat_context);
		oldcontext = MemoryContextSwitchTo(plan->heat_context);
		plan->heat = heat_read(plan->sort_memory);
		MemoryContextSwitchTo(oldcontext);
	}
	heat_weigh(plan->heat, policy->half_life);
}

/* Plan the policy of plan->work, as its owner.  ERROR if the policy itself is wrong. */
static void
work_as_owner(void *arg)
{
	static void (*const want_by[]) (TierPlan *plan) =
	{
		[POLICY_OLDER_THAN] = tier_wish_by_age,
		[POLICY_IDLE_FOR] = tier_wish_by_idleness,
		[POLICY_BUDGET] = tier_wish_by_heat,
		[POLICY_START_AT] = tier_wish_by_pressure,
	};
	TierPlan   *plan = arg;
	PolicyWork *work = plan->work;
	const Policy *policy = work->policy;
	char	   *obstacle = policy_obstacle(policy);
	int			nestlevel = NewGUCNestLevel();
	Oid			caller;
	int			context;

	if (obstacle != NULL && policy->now_function != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg_internal("%s", obstacle),
				 errhint("Set key_unit, or key_zero and keys_per_second, and set now_function to NULL.")));
	else if (obstacle != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg_internal("%s", obstacle),
				 errhint("Update the column \"owner\" of its row in tier_policy.")));
	GetUserIdAndSecContext(&caller, &context);
	SetUserIdAndSecContext(policy->owner, context | SECURITY_RESTRICTED_OPERATION);
	settings_begin_as(policy->owner);
	settings_capture(&work->request.settings, policy->settings, true);
	work->request.settings.terms.role = policy->owner;
	work->request.settings.terms.policy = policy->name;
	work->request.settings.terms.freeze_first = policy->freeze_first &&
		policy->kind == POLICY_OLDER_THAN;
	/* names and bounds in texts are the same whoever plans */
	settings_set_here("search_path", WORKER_SEARCH_PATH, PGC_USERSET, ERROR);
	settings_set_here("DateStyle", "ISO, YMD", PGC_USERSET, ERROR);
	look_up_names(work);
	if (policy->kind != POLICY_OLDER_THAN)
		weigh_relations(plan, policy);
	want_by[policy->kind] (plan);
	tier_decide_all(plan);
	SetUserIdAndSecContext(caller, context);
	AtEOXact_GUC(false, nestlevel);
}

/* Plan a policy, and leave its rows in plan->work.  Returns the error of the policy itself, or NULL. */
static ErrorData *
work_on(TierPlan *plan, const Policy *policy)
{
	ErrorData  *error;

	CHECK_FOR_INTERRUPTS();
	plan->work = palloc0_object(PolicyWork);
	plan->work->policy = policy;
	plan->work->excess = get_float8_infinity();
	foreach_ptr(PressureLimit, limit, plan->limits->limits)
	{
		limit->counted = false;
	}
	plan->work->request.method = METHOD_AUTO;
	error = errors_catch(work_as_owner, plan);
	if (errors_was_canceled(error))
		ReThrowError(error);
	return error;
}

/* Return why nothing of a row, and so of a policy, is moved: with the relation's name. */
static char *
full_reason(const Policy *policy, const TierRow *row)
{
	Datum		name;

	if (!OidIsValid(row->wish.relid))
		return pstrdup(tier_row_reason(policy, row));
	name = DirectFunctionCall1(regclassout, ObjectIdGetDatum(row->wish.relid));
	return psprintf("%s: %s", DatumGetCString(name), tier_row_reason(policy, row));
}

/* Return the first row about which this was decided, or NULL. */
static const TierRow *
first_with(const PolicyWork *work, TierVerdict verdict)
{
	foreach_ptr(const TierRow, row, work->rows)
	{
		if (row->decision.verdict == verdict)
			return row;
	}
	return NULL;
}

/* Return the first row that waits, for a job if any row does, or NULL. */
static const TierRow *
first_waiting(const PolicyWork *work)
{
	foreach_ptr(const TierRow, row, work->rows)
	{
		const TierDecision *decision = &row->decision;

		if (decision->verdict == VERDICT_WAITS && decision->reason.code == REASON_JOB_AT_WORK)
			return row;
	}
	return first_with(work, VERDICT_WAITS);
}

/* Plan a policy for a run.  Raises no error but a cancel. */
PolicyPlan *
tier_plan_policy(TierPlan *plan, const Policy *policy)
{
	PolicyPlan *result = palloc0_object(PolicyPlan);
	const PolicyWork *work;
	const TierRow *first;
	int			nestlevel;

	result->policy = policy;
	result->error = work_on(plan, policy);
	work = plan->work;
	result->settings = work->request.settings;
	if (result->error != NULL)
	{
		result->result = RUN_FAILED;
		return result;
	}
	foreach_ptr(const TierRow, row, work->rows)
	{
		if (row->decision.verdict == VERDICT_MOVES)
			result->items = list_concat(result->items, row->items);
	}
	if (result->items != NIL)
	{
		result->result = RUN_JOB;
		result->reason = work->goes_on;
		return result;
	}
	/* full names */
	nestlevel = NewGUCNestLevel();
	settings_set_here("search_path", WORKER_SEARCH_PATH, PGC_USERSET, ERROR);
	result->result = RUN_NOTHING;
	first = first_with(work, VERDICT_HINDERED);
	if (first != NULL)
		result->result = RUN_HINDERED;
	else
	{
		first = first_waiting(work);
		if (first != NULL)
			result->result = RUN_WAITS;
		if (first != NULL && first->decision.reason.code == REASON_JOB_AT_WORK)
			result->waits_for = first->decision.reason.job;
	}
	if (first != NULL)
		result->reason = full_reason(policy, first);
	AtEOXact_GUC(false, nestlevel);
	return result;
}

/* tier_plan() */

/* Set how much of the file system of a tablespace is in use. */
static void
put_used(Row *result, int column, const TierPlan *plan, Oid tablespace)
{
	double		used = places_used(plan->places, tablespace);

	if (used >= 0)
		row_set(result, column, Float8GetDatum(used));
}

static void
put_tier_row(ReturnSetInfo *rsinfo, TierPlan *plan, const Policy *policy, const TierRow *row)
{
	bool		moves = row->decision.verdict == VERDICT_MOVES;
	bool		is_index = relkind_is_index(get_rel_relkind(row->wish.relid));
	double		estimated = 0;	/* seconds */
	Oid			from = InvalidOid;
	Row			result;

	row_clear(&result);
	row_set(&result, Anum_tier_plan_policy, NameGetDatum(&policy->name));
	if (OidIsValid(row->wish.relid))
	{
		row_set(&result, Anum_tier_plan_relation, ObjectIdGetDatum(row->wish.relid));
		row_text(&result, Anum_tier_plan_kind, is_index ? "index" : "table");
	}
	row_int64(&result, Anum_tier_plan_size, row->size);
	if (row->items != NIL)
	{
		const PlannedMove *first = linitial(row->items);

		from = first->item.from_tablespace;
		row_tablespace(&result, Anum_tier_plan_from_tablespace, from);
	}
	row_set(&result, Anum_tier_plan_to_tablespace, NameGetDatum(policy->to_tablespace));
	/* a relation beyond a budget moves to another */
	row_tablespace(&result, Anum_tier_plan_to_tablespace, row->wish.to);
	row_set(&result, Anum_tier_plan_moves, BoolGetDatum(moves));
	row_text(&result, Anum_tier_plan_reason, tier_row_reason(policy, row));
	if (row->wish.heat >= 0)
		row_set(&result, Anum_tier_plan_heat, Float8GetDatum(row->wish.heat));

	put_used(&result, Anum_tier_plan_from_used, plan, from);
	put_used(&result, Anum_tier_plan_to_used, plan, row->wish.to);
	foreach_ptr(const PlannedMove, move, row->items)
	{
		const MoveItem *item = &move->item;

		estimated += Max(move->estimated, 0);
		if (moves)
			places_move(plan->places, item->from_tablespace, item->to_tablespace,
						Max(item->size_before, 0), plan_stored_bytes(item));
	}
	put_used(&result, Anum_tier_plan_from_used_after, plan, from);
	put_used(&result, Anum_tier_plan_to_used_after, plan, row->wish.to);
	if (moves)
		row_interval(&result, Anum_tier_plan_estimated,
					 (int64) ceil(estimated * 10) * (USECS_PER_SEC / 10));
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, result.values, result.nulls);
}

/* Say how often a policy has failed up to now. */
static void
say_failures(PolicyWork *work)
{
	PolicyRun	run;
	char	   *why;
	int			failures;

	policy_run_read(work->policy, &run);
	/* its message is another one */
	if (run.result == RUN_WAITS)
		return;
	failures = policy_failures(&run, &why);
	if (failures == 1)
		tier_row_say(work, VERDICT_HINDERED, psprintf("its last run has failed: %s", why));
	else if (failures > 1)
		tier_row_say(work, VERDICT_HINDERED, psprintf("it has failed %d times in a row: %s", failures, why));
}

/*
 * tier_plan(policy_name name DEFAULT NULL, at timestamptz DEFAULT NULL)
 *		RETURNS SETOF record
 *
 * The relations that run_tier_policies() would move or not; a policy that fails is
 * a row with its error.  EXECUTE is revoked from PUBLIC.  ERROR 42704 no such policy,
 * 22023 at, 55P03 a lock, 55000 a foreign trigger.
 */
Datum
index_mover_tier_plan(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	const char *name = PG_ARGISNULL(0) ? NULL : NameStr(*PG_GETARG_NAME(0));
	List	   *policies = policies_read(name, false);
	TimestampTz at = GetCurrentTransactionStartTimestamp();
	TierPlan   *plan;
	int			nestlevel = NewGUCNestLevel();

	if (!PG_ARGISNULL(1))
		at = PG_GETARG_TIMESTAMPTZ(1);
	if (TIMESTAMP_NOT_FINITE(at))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("at must be finite")));
	call_check_moment("tier_plan()", true, false);
	InitMaterializedSRF(fcinfo, 0);

	/* another session can have locked an own table */
	if (LockTimeout == 0 || LockTimeout > 10000)
		settings_set_here("lock_timeout", "10s", PGC_USERSET, ERROR);
	plan = tier_plan_begin(at);
	foreach_ptr(const Policy, policy, policies)
	{
		ErrorData  *error = work_on(plan, policy);

		if (error != NULL)
		{
			plan->work->rows = NIL;
			tier_row_say(plan->work, VERDICT_HINDERED, error->message);
		}
		say_failures(plan->work);
		foreach_ptr(const TierRow, row, plan->work->rows)
		{
			if (row->decision.verdict != VERDICT_NONE)
				put_tier_row(rsinfo, plan, policy, row);
		}
	}
	AtEOXact_GUC(false, nestlevel);
	return (Datum) 0;
}
