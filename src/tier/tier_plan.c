/*-------------------------------------------------------------------------
 *
 * tier_plan.c
 *	  The relations that a policy would move or not, and why.
 *
 * Hindrances of a move are found by the planner of moves, as in a dry run; the
 * policies' own hindrances are min_stay, max_bytes_per_run, and a policy that has
 * the table first.
 *
 * Each policy is planned as its owner, in a security-restricted operation, because
 * it may name a function; this cannot write, either.  Takes no locks but on
 * catalogs and the extension's own tables.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type_d.h"
#include "common/string.h"
#include "funcapi.h"
#include "storage/proc.h"
#include "utils/float.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "call/call.h"
#include "row.h"
#include "tier/tier_private.h"

PG_FUNCTION_INFO_V1(index_mover_tier_plan);

/* The outcome of a policy for one relation, or, with relid 0, about itself */
typedef struct TierRow
{
	Oid			relid;
	Oid			table_oid;		/* of an index its table, else relid */
	Oid			to;				/* tablespace */
	int64		size;			/* of the items; -1 = unknown */
	char	   *why;			/* it is wanted there; NULL = it is not */
	const char *hindrance;		/* NULL = none */
	bool		is_usual;		/* without a bound, as it is meant to be */
	bool		is_busy;		/* a job, or another policy, has its table */
	double		order;			/* smaller first */
	double		heat;			/* -1 = does not matter */
	List	   *items;			/* of MoveItem; NIL = not planned, or nothing
								 * to do */
} TierRow;

typedef struct TierPlan
{
	/* for all policies of a call */
	TimestampTz now;			/* or the moment that is planned for */
	const HeatTable *heat;		/* NULL = not read yet */
	const List *places;
	HTAB	   *busy;			/* of BusyTable; job 0: a policy before has it */
	PlanParts  *parts;			/* used space goes on from policy to policy */

	/* for the one that is planned */
	const Policy *policy;
	PlanRequest request;		/* of one relation; has the job's settings */
	TierRow    *row;			/* of that */
	Bound		limit;			/* older_than: up to where a range must end */
	TierScope	scope;
	List	   *rows;			/* of TierRow: what the policy wants */
	HTAB	   *moved;			/* within min_stay */
	char	   *pressure;		/* why relations have to leave; NULL = they do
								 * not have to */
	double		excess;			/* bytes that have to */
} TierPlan;

/* Plan the policies as of a moment, which is finite. */
static TierPlan *
begin_plan(TimestampTz at)
{
	TierPlan   *plan = palloc0_object(TierPlan);

	plan->now = at;
	plan->places = places_read();
	plan->busy = job_busy_tables();
	plan->parts = plan_parts_begin();
	return plan;
}

/* else it has a hindrance, or there is nothing to be done */
#define MOVES(row)	((row)->hindrance == NULL && (row)->items != NIL)

/* Make the row of a relation, or, with relid 0, about the policy itself. */
static TierRow *
new_row(Oid relid, Oid to, char *why, double order, double heat)
{
	TierRow    *row = palloc0_object(TierRow);

	row->relid = row->table_oid = relid;
	row->to = to;
	row->why = why;
	row->order = order;
	row->heat = heat;
	row->size = -1;
	return row;
}

/* Add a row about the policy itself, before the others. */
static void
say(TierPlan *plan, const char *hindrance)
{
	plan->rows = lcons(new_row(InvalidOid, InvalidOid, NULL, -get_float8_infinity(), -1), plan->rows);
	((TierRow *) linitial(plan->rows))->hindrance = hindrance;
}

/* Add a relation to those that the policy wants in its target. */
static TierRow *
want(TierPlan *plan, Oid relid, char *why, double order, double heat)
{
	plan->rows = lappend(plan->rows, new_row(relid, plan->scope.to, why, order, heat));
	return llast(plan->rows);
}

static int
compare_rows(const ListCell *a, const ListCell *b)
{
	const TierRow *row1 = lfirst(a);
	const TierRow *row2 = lfirst(b);

	if (row1->order != row2->order)
		return row1->order < row2->order ? -1 : 1;
	return row1->relid < row2->relid ? -1 : row1->relid > row2->relid;
}

/* Return why a relation moves, or does not. */
static const char *
reason_of(const TierRow *row)
{
	return row->hindrance == NULL ? row->why : row->why == NULL ? row->hindrance :
		psprintf("%s; but %s", row->why, row->hindrance);
}

/* Hindrances of a move */

/* Take what hinders an item, as a clause, if nothing hinders the row yet. */
static void
take_hindrance(TierRow *row)
{
	foreach_ptr(const MoveItem, item, row->items)
	{
		char	   *clause;

		if (row->hindrance != NULL || item->status != STATUS_SKIPPED)
			continue;
		clause = pnstrdup(item->detail, strlen(item->detail) - pg_str_endswith(item->detail, "."));
		if (clause[0] >= 'A' && clause[0] <= 'Z' && !(clause[1] >= 'A' && clause[1] <= 'Z'))
			clause[0] = pg_tolower((unsigned char) clause[0]);
		row->hindrance = clause;
	}
}

/* Add the items of a relation, or of an index that moves with it. */
static void
add_items(TierRow *row, List *items)
{
	row->items = list_concat(row->items, items);
	foreach_ptr(const MoveItem, item, items)
	{
		/* the index of a TOAST table is not told of */
		if (!OidIsValid(item->part_of) || !relkind_is_index(item->relkind))
			row->size = Max(row->size, 0) + Max(item->size_before, 0);
	}
	take_hindrance(row);
}

static void
plan_one(void *arg)
{
	TierPlan   *plan = arg;
	List	   *items = plan_moves(&plan->request);

	plan_skip_parts(items);
	add_items(plan->row, items);
}

/*
 * Plan the move of the relation of a row, and set its items, and what hinders it:
 * neither if nothing is to be done, or it is gone.
 */
static void
plan_row(TierPlan *plan, TierRow *row)
{
	RelationFacts facts;
	ErrorData  *error;

	/* whoever asks: a relation that need not move has no hindrance */
	if (!relation_facts(row->relid, &facts) || (facts.tablespace == row->to && parts_are_in(&facts, row->to)) ||
		(!plan->scope.residents && OidIsValid(plan->scope.from) && facts.tablespace != plan->scope.from))
		return;
	row->table_oid = facts.heap_oid;
	plan->row = row;
	plan->request.object = row->relid;
	plan->request.to_tablespace = row->to;
	error = errors_catch(plan_one, plan);
	if (errors_was_canceled(error))
		ReThrowError(error);
	if (error != NULL && relation_facts(row->relid, &facts))
		row->hindrance = error->message;
}

/*
 * plan_row() of a relation, by age also of its indexes; and the policy's own
 * hindrances.  An index that cannot move with its table has a row of its own.
 */
static void
examine(TierPlan *plan, TierRow *row)
{
	const Policy *policy = plan->policy;
	bool		by_age = policy->kind == POLICY_OLDER_THAN;
	bool		itself = !by_age || policy->tables;
	const BusyTable *busy;
	const LastMove *last;
	int64		mover;

	if (itself)
		plan_row(plan, row);
	/* without their table, its indexes do not go */
	foreach_oid(index, by_age && policy->indexes && row->hindrance == NULL ? indexes_of_table(row->relid) : NIL)
	{
		TierRow    *part = new_row(index, row->to, row->why, row->order, -1);

		plan_row(plan, part);
		if (part->hindrance != NULL)
			plan->rows = lappend(plan->rows, part);
		else
			add_items(row, part->items);
	}
	if (row->items == NIL || row->hindrance != NULL)
		return;

	if (plan->moved == NULL)
		plan->moved = history_last_moves(moment_minus(plan->now, policy->min_stay));
	last = hash_search(plan->moved, &row->relid, HASH_FIND, NULL);
	/* of a table of whose parts only the indexes move */
	mover = last == NULL ? 0 : itself ? last->job : last->index_job;
	busy = hash_search(plan->busy, &row->table_oid, HASH_FIND, NULL);
	row->is_busy = busy != NULL;
	if (busy != NULL && busy->job == 0)
		row->hindrance = "another policy has its table first";
	else if (busy != NULL)
		row->hindrance = psprintf("job " INT64_FORMAT " is at work on its table", busy->job);
	else if (mover != 0)
		row->hindrance = psprintf("job " INT64_FORMAT " has moved it less than %s ago", mover,
								  DatumGetCString(DirectFunctionCall1(interval_out, IntervalPGetDatum(policy->min_stay))));
	else if (policy->max_bytes_per_run > 0 && row->size > policy->max_bytes_per_run)
		row->hindrance = "it is larger than max_bytes_per_run";
	else
	{
		/* without those before it in a run, which decide() counts */
		plan_complete(plan_parts_alone(plan->parts), row->items, &plan->request);
		take_hindrance(row);
	}
}

/* Decide about the wanted relations one by one. */
static void
decide(TierPlan *plan)
{
	int64		most = plan->policy->max_bytes_per_run;
	int64		so_far = 0;		/* bytes of this run */
	double		leaving = 0;
	bool		stays = false;	/* one that has to leave the budget */
	PolicyRun	run;

	/*
	 * what has just failed, or an index of it, comes last, and keeps no
	 * others out
	 */
	policy_run_read(NameStr(plan->policy->name), &run);
	foreach_ptr(const HistoryEntry, entry, run.job > 0 ? history_read(run.job) : NIL)
		foreach_ptr(TierRow, row, entry->status == STATUS_FAILED ? plan->rows : NIL)
	{
		if ((row->relid == entry->relid || row->relid == entry->heap_oid) && row->order > -get_float8_infinity())
			row->order = get_float8_infinity();
	}
	list_sort(plan->rows, compare_rows);
	/* examine() may add rows */
	foreach_ptr(TierRow, row, plan->rows)
	{
		CHECK_FOR_INTERRUPTS();
		/* those of a budget were examined */
		if (row->hindrance == NULL && row->items == NIL && leaving <= plan->excess)
			examine(plan, row);
		if (!MOVES(row))
			continue;
		leaving += row->size;
		if (stays && row->order > -get_float8_infinity())
			row->hindrance = "others have to leave first, in a later run";
		else if (most > 0 && so_far + row->size > most)
			row->hindrance = "a later run moves it: max_bytes_per_run";
		else
			plan_complete(plan->parts, row->items, &plan->request);
		take_hindrance(row);
		if (row->hindrance == NULL)
			so_far += row->size;
		else
			stays |= row->order == -get_float8_infinity();
	}
	if (plan->pressure != NULL && leaving <= plan->excess)
		say(plan, psprintf("%s; but only %s of %s may be moved", plan->pressure,
						   size_text((int64) leaving), size_text((int64) ceil(plan->excess))));
	foreach_ptr(const TierRow, row, plan->rows)
	{
		if (MOVES(row))
			((BusyTable *) hash_search(plan->busy, &row->table_oid, HASH_ENTER, NULL))->job = 0;
	}
}

/* older_than */

/*
 * In a subtransaction, in which it cannot write: call a policy's now_function, a
 * function() for the present, or a function(interval) for the key of so long ago.  Set
 * up to where a range must end to be old.  ERROR if the function is none of these, or fails.
 */
static void
read_clock(void *arg)
{
	TierPlan   *plan = arg;
	const char *name = plan->policy->now_function;
	Oid			function = DatumGetObjectId(DirectFunctionCall1(regprocedurein, CStringGetDatum(name)));
	Interval	ahead = {.time = plan->now - GetCurrentTransactionStartTimestamp()};
	int			nargs;
	Oid		   *types;
	Oid			type = getBaseType(get_func_signature(function, &types, &nargs));
	BoundKind	kind = bound_kind(type);
	bool		usable = get_func_prokind(function) == PROKIND_FUNCTION && !get_func_retset(function) &&
		(kind == BOUND_TIME ? nargs == 0 : kind == BOUND_NUMBER && nargs == 1 && types[0] == INTERVALOID);
	FmgrInfo	flinfo;
	Datum		result = (Datum) 0;

	LOCAL_FCINFO(call, 1);

	if (object_aclcheck(ProcedureRelationId, function, GetUserId(), ACL_EXECUTE) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FUNCTION, name);
	XactReadOnly = true;
	if (usable)
	{
		fmgr_info(function, &flinfo);
		InitFunctionCallInfoData(*call, &flinfo, nargs, InvalidOid, NULL, NULL);
		call->args[0].value = DirectFunctionCall2(interval_mi, IntervalPGetDatum(plan->policy->age),
												  IntervalPGetDatum(&ahead));
		call->args[0].isnull = false;
		result = FunctionCallInvoke(call);
	}
	if (!usable || call->isnull)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_FUNCTION_DEFINITION),
				 errmsg("it must be a function() that returns a date or timestamp, or a function(interval) that returns an integer, and never NULL")));
	plan->limit.kind = kind;
	plan->limit.value = bound_value(type, result);
	if (kind == BOUND_TIME)
		plan->limit.value = moment_minus(moment_plus(plan->limit.value, &ahead), plan->policy->age);
}

/* Other extensions' tables are left alone, unless they are named. */
static bool
is_root(Form_pg_class form)
{
	return form->relkind == RELKIND_PARTITIONED_TABLE && !form->relispartition &&
		form->relpersistence != RELPERSISTENCE_TEMP &&
		!OidIsValid(getExtensionOfObject(RelationRelationId, form->oid));
}

static void
want_by_age(TierPlan *plan)
{
	const Policy *policy = plan->policy;
	const Bound *limit = &plan->limit;
	ErrorData  *error = NULL;

	plan->limit.kind = BOUND_TIME;
	if (policy->now_function != NULL)
		error = errors_catch(read_clock, plan);
	else
		plan->limit.value = moment_minus(plan->now, policy->age);
	if (errors_was_canceled(error))
		ReThrowError(error);
	if (error != NULL)
		ereport(ERROR,
				(errcode(error->sqlerrcode),
				 errmsg("now_function \"%s\" has failed: %s", policy->now_function, error->message)));

	foreach_oid(root, OidIsValid(policy->relation) ? list_make1_oid(policy->relation) : relations_such(is_root))
	{
		if (OidIsValid(plan->scope.schema) && get_rel_namespace(root) != plan->scope.schema)
			continue;
		foreach_ptr(const PartitionLeaf, leaf, partition_leaves(root))
		{
			bool		has_end = leaf->why_none == NULL;
			TierRow    *row;

			if (has_end && leaf->end.kind == limit->kind && leaf->end.value > limit->value)
				continue;
			row = want(plan, leaf->relid, has_end ? psprintf("its rows end at %s", leaf->text) : NULL,
					   has_end ? leaf->end.value : get_float8_infinity(), -1);
			row->hindrance = !has_end ? leaf->why_none : leaf->end.kind == limit->kind ? NULL :
				leaf->end.kind == BOUND_NUMBER ?
				"an integer key needs a now_function(interval) that returns an integer" :
				"a date or timestamp key needs a now_function() that returns a date or timestamp";
			row->is_usual = !has_end && leaf->column != NULL;
		}
	}
}

/* idle_for, budget, start_at: by their known use */

static void
want_by_idleness(TierPlan *plan)
{
	static const char *const uses[] = {"scan or change", "index scan or change", "change"};
	const HeatTable *heat = plan->heat;
	IdleOf		of = plan->policy->idle_of;
	TimestampTz since = moment_minus(plan->now, plan->policy->age);
	char	   *why = psprintf("no %s on this server since %s", uses[of],
							   timestamptz_to_str(since - since % USECS_PER_SEC));
	TimestampTz known_since = 0;
	int			not_known = 0;

	for (const Heat *h = heat->heats; h < heat->heats + heat->n; h++)
	{
		if (!scope_includes(&plan->scope, h) || (h->last_use[of] != 0 && h->last_use[of] > since))
			continue;
		if (h->known_since[of] <= since)
			want(plan, h->facts.relid, why, 0, h->wanted_per_second);
		else
		{
			known_since = Max(known_since, h->known_since[of]);
			not_known++;
		}
	}
	if (not_known > 0)
		say(plan, psprintf("of %d relations nothing is known on this server before %s",
						   not_known, timestamptz_to_str(known_since - known_since % USECS_PER_SEC)));
}

/* For the ranking: can a candidate move, or is a job maybe moving it in? */
static bool
can_move(Candidate *candidate, void *arg)
{
	TierPlan   *plan = arg;
	const Heat *heat = candidate->heat;
	bool		leaves = candidate->is_resident;
	TierRow    *row = candidate->row;

	if (row == NULL)
	{
		CHECK_FOR_INTERRUPTS();
		row = candidate->row = new_row(heat->facts.relid, candidate->to, leaves ?
									   "not among the hottest that fit into the budget" :
									   psprintf("%.1f blocks a second by index scans and changes", heat->wanted_per_second),
									   leaves ? -get_float8_infinity() : -candidate->value / Max(candidate->size, BLCKSZ),
									   heat->wanted_per_second);
		examine(plan, row);
	}
	return row->items != NIL && (row->hindrance == NULL || (row->is_busy && !leaves));
}

static void
want_by_heat(TierPlan *plan)
{
	int			n;
	Candidate  *candidates = candidates_collect(plan->heat, plan->places, &plan->scope, &plan->request.settings, &n);
	const Place *from = places_find(plan->places, plan->scope.from);
	const Place *to = places_find(plan->places, plan->scope.to);
	PlaceBasis	basis;

	if (from != NULL && to != NULL && place_difference(from, to, &basis) <= 0)
		say(plan, psprintf("reads in \"%s\" are not known to take longer than in \"%s\"%s",
						   NameStr(from->name), NameStr(to->name),
						   basis == PLACE_SAME_DEVICE ? ", which is on the same device" : ""));
	ranking_choose(candidates, n, plan->policy->budget, can_move, plan);

	/*
	 * One that cannot leave, or that a job moves in, takes bytes of other new
	 * ones, and makes no resident leave.
	 */
	for (Candidate *c = candidates; c < candidates + n; c++)
	{
		const BusyTable *busy = hash_search(plan->busy, &c->heat->facts.relid, HASH_FIND, NULL);

		c->is_fixed |= c->is_resident ? c->is_chosen || !can_move(c, plan) :
			busy != NULL && busy->job != 0 && busy->to_tablespace == plan->scope.to;
	}
	ranking_choose(candidates, n, plan->policy->budget, can_move, plan);
	for (const Candidate *c = candidates; c < candidates + n; c++)
		if (c->row != NULL && (c->row->hindrance != NULL || CANDIDATE_MOVES(c)))
			plan->rows = lappend(plan->rows, c->row);
}

/* Return the bytes that jobs still have to move out of a tablespace, or to remove. */
static int64
bytes_leaving(Oid tablespace)
{
	JobSlot		slots[IM_MAX_JOBS];
	int64		result = 0;

	for (int i = job_read_slots(slots, NULL) - 1; i >= 0; i--)
		foreach_ptr(const HistoryEntry, entry, history_read(slots[i].job))
	{
		if ((entry->status == STATUS_QUEUED || entry->status == STATUS_RUNNING) &&
			entry->from_tablespace == tablespace && entry->to_tablespace != tablespace)
			result += entry->size;
	}
	return result;
}

/* Of a file system that is too full the coldest.  ERROR if no move would help. */
static void
want_by_pressure(TierPlan *plan)
{
	const Policy *policy = plan->policy;
	const HeatTable *heat = plan->heat;
	FileSystemFacts facts;
	FileSystemFacts target;
	double		total;
	double		used;

	/* before how full it is: a move that ends now counts twice, not never */
	int64		leaving = bytes_leaving(plan->scope.from);

	if (!file_system_facts(plan->scope.from, &facts) || facts.total_bytes == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the file system of \"%s\" does not say how full it is", policy->from_tablespace)));
	if (file_system_facts(plan->scope.to, &target) && target.device == facts.device)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("tablespaces \"%s\" and \"%s\" are on the same file system",
						policy->from_tablespace, NameStr(*policy->to_tablespace))));
	total = facts.total_bytes;
	used = total - facts.free_bytes;
	plan->excess = used - policy->stop_at * total - leaving;
	if (used < policy->start_at * total || plan->excess < 0)
		return;
	plan->pressure = psprintf("file system of \"%s\" is %g%% full, stop_at is %g%%", policy->from_tablespace,
							  rint(used * 1000 / total) / 10, rint(policy->stop_at * 1000) / 10);
	for (const Heat *h = heat->heats; h < heat->heats + heat->n; h++)
	{
		double		wanted = h->wanted_per_second;
		int64		size = scope_includes(&plan->scope, h) ? relation_main_size(&h->facts) : 0;

		/* without any heat, in the order of size: all below 0 */
		if (size > 0)
			want(plan, h->facts.relid, plan->pressure, wanted > 0 ? wanted / Max(size, BLCKSZ) : -size, wanted);
	}
}

/* One policy */

/* Look up the objects that the policy names.  ERROR if one does not exist. */
static void
look_up_names(TierPlan *plan)
{
	const Policy *policy = plan->policy;
	TierScope  *scope = &plan->scope;
	bool		by_age = policy->kind == POLICY_OLDER_THAN;
	char		relkind = get_rel_relkind(policy->relation);

	memset(scope, 0, sizeof(TierScope));
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
	if (relkind == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", policy->relation)));
	if (by_age ? relkind != RELKIND_PARTITIONED_TABLE :
		(relkind != RELKIND_PARTITIONED_TABLE && relkind != RELKIND_RELATION && relkind != RELKIND_MATVIEW) ||
		IsCatalogRelationOid(policy->relation) ||
		OidIsValid(getExtensionOfObject(RelationRelationId, policy->relation)))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg(by_age ? "\"%s\" is not a partitioned table" :
						"\"%s\" is not a table or materialized view of users", get_rel_name(policy->relation))));
	/* partitions can be in another schema */
	if (OidIsValid(scope->schema) && scope->schema != get_rel_namespace(policy->relation) &&
		(by_age || relkind != RELKIND_PARTITIONED_TABLE))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is not in schema \"%s\"", get_rel_name(policy->relation), policy->schema)));
	/* a partitioned table without partitions is not every table */
	scope->within = list_make1_oid(policy->relation);
	foreach_ptr(const PartitionLeaf, leaf, partition_leaves(policy->relation))
		scope->within = lappend_oid(scope->within, leaf->relid);
}

/* Plan plan->policy, as its owner.  ERROR if the policy itself is wrong. */
static void
plan_policy(void *arg)
{
	static void (*const want_by[]) (TierPlan *plan) =
	{
		[POLICY_OLDER_THAN] = want_by_age,
		[POLICY_IDLE_FOR] = want_by_idleness,
		[POLICY_BUDGET] = want_by_heat,
		[POLICY_START_AT] = want_by_pressure,
	};
	TierPlan   *plan = arg;
	const Policy *policy = plan->policy;
	int			nestlevel = NewGUCNestLevel();
	Oid			caller;
	int			context;

	GetUserIdAndSecContext(&caller, &context);
	SetUserIdAndSecContext(policy->owner, context | SECURITY_RESTRICTED_OPERATION);
	plan->request = (PlanRequest)
	{
		.scope = SCOPE_ONE,.method = METHOD_AUTO
	};
	plan->moved = NULL;
	plan->pressure = NULL;
	plan->excess = get_float8_infinity();
	settings_begin_as(policy->owner);
	/* before the search_path of the clock: it may name a schema of the role's */
	settings_capture(&plan->request.settings, policy->settings, true);
	plan->request.settings.terms.policy = policy->name;
	plan->request.settings.terms.freeze_first = policy->freeze_first && policy->kind == POLICY_OLDER_THAN;
	settings_set_here("search_path", WORKER_SEARCH_PATH, PGC_USERSET, ERROR);
	settings_set_here("DateStyle", "ISO, YMD", PGC_USERSET, ERROR);
	look_up_names(plan);
	if (plan->heat == NULL && policy->kind != POLICY_OLDER_THAN)
		plan->heat = heat_read();
	want_by[policy->kind] (plan);
	decide(plan);
	SetUserIdAndSecContext(caller, context);
	AtEOXact_GUC(false, nestlevel);
}

/*
 * Return the items of the job of a policy, and its settings; if there are none
 * although the policy wants something to move, a NOTICE tells why.  ERROR if the
 * policy is wrong.
 */
List *
tier_plan_items(const Policy *policy, MoveSettings *settings)
{
	TierPlan   *plan = begin_plan(GetCurrentTransactionStartTimestamp());
	List	   *items = NIL;
	const TierRow *first = NULL;

	plan->policy = policy;
	plan_policy(plan);
	*settings = plan->request.settings;
	foreach_ptr(const TierRow, row, plan->rows)
	{
		if (row->hindrance == NULL)
			items = list_concat(items, row->items);
		else if (first == NULL && !row->is_usual)
			first = row;
	}
	if (items == NIL && first != NULL)
		ereport(NOTICE,
				(errmsg("policy \"%s\" moves nothing: %s%s", NameStr(policy->name),
						!OidIsValid(first->relid) ? "" :
						psprintf("%s: ", DatumGetCString(DirectFunctionCall1(regclassout, ObjectIdGetDatum(first->relid)))),
						reason_of(first))));
	return items;
}

static void
put_tier_row(ReturnSetInfo *rsinfo, const Policy *policy, const TierRow *row)
{
	Row			result;

	double		estimated = 0;	/* seconds */

	row_clear(&result);
	row_set(&result, 1, NameGetDatum(&policy->name));
	if (OidIsValid(row->relid))
	{
		row_set(&result, 2, ObjectIdGetDatum(row->relid));
		row_text(&result, 3, relkind_is_index(get_rel_relkind(row->relid)) ? "index" : "table");
	}
	row_int64(&result, 4, row->size);
	if (row->items != NIL)
		row_tablespace(&result, 5, ((const MoveItem *) linitial(row->items))->from_tablespace);
	row_set(&result, 6, NameGetDatum(policy->to_tablespace));
	row_tablespace(&result, 6, row->to);
	row_set(&result, 7, BoolGetDatum(row->hindrance == NULL));
	row_text(&result, 8, reason_of(row));
	if (row->heat >= 0)
		row_set(&result, 9, Float8GetDatum(row->heat));
	foreach_ptr(const MoveItem, item, row->items)
		estimated += Max(item->estimated, 0);
	if (row->hindrance == NULL)
		row_interval(&result, 10, (int64) ceil(estimated * 10) * (USECS_PER_SEC / 10));
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, result.values, result.nulls);
}

/*
 * tier_plan(policy_name name DEFAULT NULL, at timestamptz DEFAULT NULL)
 *		RETURNS SETOF record
 *
 * The relations that run_tier_policies() would move or not; a policy that fails is
 * a row with its error.  EXECUTE is revoked from PUBLIC.  ERROR 42704 no such policy,
 * 22023 at.
 */
Datum
index_mover_tier_plan(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *policies = policies_read(PG_ARGISNULL(0) ? NULL : NameStr(*PG_GETARG_NAME(0)), false);
	TimestampTz at = PG_ARGISNULL(1) ? GetCurrentTransactionStartTimestamp() : PG_GETARG_TIMESTAMPTZ(1);
	TierPlan   *plan;
	int			nestlevel = NewGUCNestLevel();

	if (TIMESTAMP_NOT_FINITE(at))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("at must be finite")));
	call_check_moment("tier_plan()", true, false);
	InitMaterializedSRF(fcinfo, 0);

	/*
	 * another session can have locked an own table, or one that a
	 * now_function reads
	 */
	if (LockTimeout == 0 || LockTimeout > 10000)
		settings_set_here("lock_timeout", "10s", PGC_USERSET, ERROR);
	plan = begin_plan(at);
	foreach_ptr(const Policy, policy, policies)
	{
		ErrorData  *error = NULL;
		PolicyRun	run;
		char	   *why;
		int			failures;

		CHECK_FOR_INTERRUPTS();
		plan->policy = policy;
		plan->rows = NIL;
		if (OidIsValid(policy->owner))
			error = errors_catch(plan_policy, plan);
		else
			say(plan, "its owner is to be set again");
		if (errors_was_canceled(error))
			ReThrowError(error);
		if (error != NULL)
		{
			plan->rows = NIL;
			say(plan, error->message);
		}
		policy_run_read(NameStr(policy->name), &run);
		failures = policy_failures(&run, &why);
		if (failures > 0)
			say(plan, failures == 1 ? psprintf("its last run has failed: %s", why) :
				psprintf("it has failed %d times in a row: %s", failures, why));
		foreach_ptr(const TierRow, row, plan->rows)
		{
			if (MOVES(row) || row->hindrance != NULL)
				put_tier_row(rsinfo, policy, row);
		}
	}
	AtEOXact_GUC(false, nestlevel);
	return (Datum) 0;
}
