/*-------------------------------------------------------------------------
 *
 * tier_plan.c
 *	  What a policy would move, what not, and why.
 *
 * A policy wants relations to be elsewhere: by age, because they are idle, by
 * heat, or because a file system is full.  What hinders a move of them is found
 * by the planner of moves, as in a dry run; the policies' own hindrances are
 * min_stay, max_bytes_per_run, and a policy that has the table first.
 *
 * Each policy is planned by itself, in a subtransaction: one that fails is a row
 * with its error.  It is planned as its owner, in a security-restricted operation,
 * because it may name a function; this cannot write, either.
 *
 * Takes no locks but on catalogs and the extension's own tables.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_tablespace.h"
#include "catalog/pg_type_d.h"
#include "funcapi.h"
#include "utils/float.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "errors.h"
#include "history.h"
#include "plan/plan.h"
#include "row.h"
#include "tier/tier_private.h"

PG_FUNCTION_INFO_V1(index_mover_tier_plan);

/* The state that the policies of one call share */
struct TierPlan
{
	TimestampTz now;			/* or the moment that is planned for */
	int64		ahead;			/* how far that is away, in microseconds */
	const HeatTable *heat;		/* NULL = not read yet */
	const PlaceTable *places;
	HTAB	   *busy;			/* of BusyTable */
	HTAB	   *claimed;		/* of Claim */
	PlanParts  *parts;			/* what has space goes on from policy to
								 * policy */
};

/* A table that a policy has first */
typedef struct Claim
{
	Oid			table_oid;		/* hash key */
	const Policy *policy;
} Claim;

/* Plan the policies as of a moment, which is finite. */
TierPlan *
tier_plan_begin(TimestampTz at)
{
	TierPlan   *plan = palloc0_object(TierPlan);
	HASHCTL		info = {.keysize = sizeof(Oid),.entrysize = sizeof(Claim),.hcxt = CurrentMemoryContext};

	plan->now = at;
	plan->ahead = at - GetCurrentTransactionStartTimestamp();
	plan->places = places_read();
	plan->busy = job_busy_tables();
	plan->claimed = hash_create("index_mover claimed tables", 64, &info,
								HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	return plan;
}

static TimestampTz
minus(TimestampTz moment, const Interval *time)
{
	return DatumGetTimestampTz(DirectFunctionCall2(timestamptz_mi_interval, TimestampTzGetDatum(moment),
												   IntervalPGetDatum(time)));
}

static const HeatTable *
the_heat(PlanWork *work)
{
	if (work->plan->heat == NULL)
		work->plan->heat = heat_read();
	return work->plan->heat;
}

/* Make the row of a relation that the policy wants elsewhere, and why. */
static TierRow *
new_row(Oid relid, Oid to, char *why)
{
	TierRow    *row = palloc0_object(TierRow);

	row->relid = row->table_oid = relid;
	row->is_index = OidIsValid(relid) && relkind_is_index(get_rel_relkind(relid));
	row->to = to;
	row->why = why;
	row->size = -1;
	row->heat = -1;
	return row;
}

/* Make a row about the policy itself. */
static TierRow *
policy_row(char *reason)
{
	TierRow    *row = new_row(InvalidOid, InvalidOid, NULL);

	row->hindrance = reason;
	return row;
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
char *
tier_reason(const TierRow *row)
{
	return row->hindrance == NULL ? row->why : row->why == NULL ? row->hindrance :
		psprintf("%s; but %s", row->why, row->hindrance);
}

/* ----------------------------------------------------------------
 *	Hindrances of a move
 * ----------------------------------------------------------------
 */

/* One relation to plan */
typedef struct PlanOne
{
	PlanRequest request;
	List	   *items;
} PlanOne;

static void
plan_one(void *arg)
{
	PlanOne    *one = arg;

	one->items = plan_moves(&one->request);
}

/* Make a clause of a planner's sentence. */
static char *
clause_of(const char *sentence)
{
	char	   *result = pstrdup(sentence);
	int			len = strlen(result);

	if (result[0] >= 'A' && result[0] <= 'Z' && !(result[1] >= 'A' && result[1] <= 'Z'))
		result[0] = pg_tolower((unsigned char) result[0]);
	if (len > 0 && result[len - 1] == '.')
		result[len - 1] = '\0';
	return result;
}

/*
 * Plan the move of the relation of a row, and set its items, its size, and what
 * hinders it.  Returns false if nothing is to be done, or it is gone.
 */
static bool
plan_row(PlanWork *work, TierRow *row)
{
	PlanOne		one = {.request = {.scope = SCOPE_ONE,.object = row->relid,.to_tablespace = row->to,
	.method = METHOD_AUTO,.settings = work->settings}};
	RelationFacts facts;
	ErrorData  *error;
	const MoveItem *first;

	/* whoever asks: no hindrance of what need not move */
	if (!relation_facts(row->relid, &facts) || (facts.tablespace == row->to && parts_are_in(&facts, row->to)) ||
		(work->policy->kind != POLICY_BUDGET && OidIsValid(work->from) && facts.tablespace != work->from))
		return false;
	error = errors_catch(plan_one, &one);
	if (errors_was_canceled(error))
		ReThrowError(error);
	if (error != NULL)
	{
		row->hindrance = error->message;
		return true;
	}
	if (one.items == NIL)
		return false;
	plan_skip_parts(one.items);
	first = linitial(one.items);
	if (first->status == STATUS_SKIPPED)
		row->hindrance = clause_of(first->detail);
	row->items = one.items;
	row->table_oid = first->heap_oid;
	row->from = first->from_tablespace;
	row->size = 0;
	foreach_ptr(const MoveItem, item, one.items)
	{
		/* the index of a TOAST table is not told of */
		if (!OidIsValid(item->part_of) || !relkind_is_index(item->relkind))
			row->size += Max(item->size_before, 0);
	}
	return true;
}

/* Return the job that has moved the relation within min_stay; 0 if none. */
static int64
moved_by(PlanWork *work, const TierRow *row)
{
	const LastMove *last;

	if (work->moved == NULL)
		work->moved = history_last_moves(minus(work->plan->now, work->policy->min_stay));
	last = hash_search(work->moved, &row->relid, HASH_FIND, NULL);
	if (last == NULL)
		return 0;
	/* of a table of whose parts only the indexes move */
	return row->is_index || work->policy->tables ? last->job : last->index_job;
}

/*
 * Find out what is to be moved of a relation, its size, and what hinders it.
 * Returns false if nothing is to be done, and there is no row.  An index that
 * cannot move with its table has a row of its own.
 */
static bool
examine(PlanWork *work, TierRow *row)
{
	const Policy *policy = work->policy;
	List	   *relids = row->is_index || policy->tables ? list_make1_oid(row->relid) : NIL;
	bool		found = false;
	const BusyTable *busy;
	const Place *place;
	int64		mover;

	if (policy->kind == POLICY_OLDER_THAN && policy->indexes)
		relids = list_concat(relids, indexes_of_table(row->relid));
	foreach_oid(relid, relids)
	{
		TierRow    *part = new_row(relid, row->to, row->why);

		/* without their table, its indexes do not go */
		if (row->hindrance != NULL || !plan_row(work, part))
			continue;
		if (part->hindrance != NULL && relid != row->relid)
		{
			work->rows = lappend(work->rows, part);
			continue;
		}
		if (!found)
		{
			row->table_oid = part->table_oid;
			row->from = part->from;
		}
		row->hindrance = part->hindrance;
		row->size = found ? row->size + part->size : part->size;
		row->items = list_concat(row->items, part->items);
		found = true;
	}
	if (!found || row->hindrance != NULL)
		return found;

	busy = hash_search(work->plan->busy, &row->table_oid, HASH_FIND, NULL);
	place = places_find(work->plan->places, row->to);
	if (busy != NULL)
		row->hindrance = psprintf(busy->cleaning_up ?
								  "job " INT64_FORMAT " has ended and is still cleaning up its table" :
								  "job " INT64_FORMAT " is moving it", busy->job);
	else if ((mover = moved_by(work, row)) != 0)
		row->hindrance = psprintf("job " INT64_FORMAT " has moved it less than %s ago", mover,
								  DatumGetCString(DirectFunctionCall1(interval_out, IntervalPGetDatum(policy->min_stay))));
	else if (policy->max_bytes_per_run > 0 && row->size > policy->max_bytes_per_run)
		row->hindrance = "it is larger than max_bytes_per_run";
	else if (place != NULL && place->is_there &&
			 row->size > place->facts.free_bytes -
			 settings_reserved(&work->settings.min_free_space, place->facts.total_bytes))
		row->hindrance = psprintf("tablespace \"%s\" has no space for it", NameStr(place->name));
	return true;
}

/* Decide about a relation that was examined, as one of those that move, and add its row. */
static void
decide(PlanWork *work, TierRow *row)
{
	PlanRequest request = {.settings = work->settings};
	Claim	   *claim = hash_search(work->plan->claimed, &row->table_oid, HASH_FIND, NULL);

	work->rows = lappend(work->rows, row);
	if (row->hindrance != NULL)
		return;
	if (claim != NULL && claim->policy != work->policy)
		row->hindrance = psprintf("policy \"%s\" has its table first", NameStr(claim->policy->name));
	else if (work->policy->max_bytes_per_run > 0 && work->so_far + row->size > work->policy->max_bytes_per_run)
		row->hindrance = "a later run moves it: max_bytes_per_run";
	else
		plan_complete(work->plan->parts, row->items, &request);
	foreach_ptr(const MoveItem, item, row->items)
	{
		if (row->hindrance == NULL && item->status == STATUS_SKIPPED)
			row->hindrance = clause_of(item->detail);
		row->estimated += Max(item->estimated, 0);
	}
	if (row->hindrance != NULL)
		return;
	work->so_far += row->size;
	claim = hash_search(work->plan->claimed, &row->table_oid, HASH_ENTER, NULL);
	claim->policy = work->policy;
}

/* ----------------------------------------------------------------
 *	older_than
 * ----------------------------------------------------------------
 */

/* Up to where a range must end to be old */
typedef struct AgeLimit
{
	BoundKind	kind;			/* BOUND_NUMBER, BOUND_TIME; else BOUND_NONE */
	int64		end;
} AgeLimit;

/* A call of a policy's clock */
typedef struct ClockCall
{
	FunctionCallInfo call;
	Datum		result;
} ClockCall;

/* Call the clock; in a subtransaction, at whose end it may be written again. */
static void
call_clock(void *arg)
{
	ClockCall  *clock = (ClockCall *) arg;

	XactReadOnly = true;
	clock->result = FunctionCallInvoke(clock->call);
}

/*
 * Call a policy's now_function: a function() for the present, or a
 * function(interval) for the key of so long ago.  ERROR if that fails.
 */
static AgeLimit
read_clock(PlanWork *work)
{
	const char *name = work->policy->now_function;
	Oid			function = policy_function(name);
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc form;
	bool		usable;
	int			nargs;
	Oid			type;
	FmgrInfo	flinfo;
	ClockCall	clock;
	ErrorData  *error;
	AgeLimit	result = {BOUND_NONE};
	Interval	ahead = {.time = work->plan->ahead};

	LOCAL_FCINFO(call, 1);

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", function);
	form = (Form_pg_proc) GETSTRUCT(tuple);
	nargs = form->pronargs;
	type = form->prorettype;
	usable = bound_kind(type) != BOUND_NONE && form->prokind == PROKIND_FUNCTION && !form->proretset &&
		(nargs == 0 || (nargs == 1 && form->proargtypes.values[0] == INTERVALOID));
	ReleaseSysCache(tuple);
	if (object_aclcheck(ProcedureRelationId, function, GetUserId(), ACL_EXECUTE) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FUNCTION, name);
	if (usable)
	{
		fmgr_info(function, &flinfo);
		InitFunctionCallInfoData(*call, &flinfo, nargs, InvalidOid, NULL, NULL);
		call->args[0].value = DirectFunctionCall2(interval_mi, IntervalPGetDatum(work->policy->age),
												  IntervalPGetDatum(&ahead));
		call->args[0].isnull = false;
		clock.call = call;
		error = errors_catch(call_clock, &clock);
		if (errors_was_canceled(error))
			ReThrowError(error);
		if (error != NULL)
			ereport(ERROR,
					(errcode(error->sqlerrcode),
					 errmsg("now_function \"%s\" has failed: %s", name, error->message)));
	}
	if (!usable || call->isnull)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_FUNCTION_DEFINITION),
				 errmsg("now_function must take nothing, or an interval, and return a date, timestamp or integer, and not NULL")));

	if (nargs == (bound_kind(type) == BOUND_NUMBER ? 1 : 0))
	{
		result.kind = bound_kind(type);
		result.end = bound_value(type, clock.result);
	}
	if (result.kind == BOUND_TIME)
		result.end = minus(DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
																   TimestampTzGetDatum(result.end),
																   IntervalPGetDatum(&ahead))),
						   work->policy->age);
	return result;
}

/* Return why nothing is known of the age of a partition; NULL if something is. */
static char *
why_no_age(const PartitionLeaf *leaf, const AgeLimit *limit)
{
	switch (leaf->kind)
	{
		case BOUND_NONE:
			return "it is in no range of dates, timestamps or integers";
		case BOUND_DEFAULT:
			return "the default partition has no bound";
		case BOUND_MAXVALUE:
			return "the partition has no upper bound";
		case BOUND_NUMBER:
			return limit->kind == leaf->kind ? NULL : "an integer key needs a now_function(interval) that returns an integer";
		case BOUND_TIME:
			break;
	}
	return limit->kind == leaf->kind ? NULL : "a date or timestamp key needs a now_function() that returns a date or timestamp";
}

/* Return the partitioned tables that are no partitions, in the policy's schema. */
static List *
partitioned_tables(PlanWork *work)
{
	List	   *result = NIL;

	foreach_ptr(HeapTupleData, row, catalog_all(RelationRelationId))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);

		/* other extensions' tables are left alone, unless they are named */
		if (form->relkind == RELKIND_PARTITIONED_TABLE && !form->relispartition &&
			(!OidIsValid(work->schema) || form->relnamespace == work->schema) &&
			!OidIsValid(getExtensionOfObject(RelationRelationId, form->oid)))
			result = lappend_oid(result, form->oid);
	}
	return result;
}

static List *
wanted_by_age(PlanWork *work)
{
	const Policy *policy = work->policy;
	AgeLimit	limit = {BOUND_TIME};
	List	   *roots = list_make1_oid(policy->relation);
	List	   *result = NIL;

	if (!OidIsValid(policy->relation))
		roots = partitioned_tables(work);
	if (policy->now_function != NULL)
		limit = read_clock(work);
	else
		limit.end = minus(work->plan->now, policy->age);

	foreach_oid(root, roots)
	{
		foreach_ptr(const PartitionLeaf, leaf, partition_leaves(root))
		{
			char	   *left_alone = why_no_age(leaf, &limit);
			TierRow    *row;

			if (left_alone == NULL && leaf->end > limit.end)
				continue;
			row = new_row(leaf->relid, work->to, left_alone != NULL ? NULL : psprintf("its rows end at %s", leaf->text));
			row->hindrance = left_alone;
			row->is_usual = leaf->kind == BOUND_DEFAULT || leaf->kind == BOUND_MAXVALUE;
			row->order = left_alone != NULL ? get_float8_infinity() : leaf->end;
			result = lappend(result, row);
		}
	}
	return result;
}

/* ----------------------------------------------------------------
 *	idle_for, budget, start_at: by what is known of use
 * ----------------------------------------------------------------
 */

/* Return whether a policy is for this relation. */
static bool
is_in_scope(const Heat *heat, void *arg)
{
	const PlanWork *work = arg;
	bool		is_there = heat->tablespace == work->to;

	/* a budget is for both sides */
	return (is_there ? work->policy->kind == POLICY_BUDGET :
			!OidIsValid(work->from) || heat->tablespace == work->from) &&
		!heat->of_extension &&
		(heat->relkind == RELKIND_INDEX ? work->policy->indexes && heat->is_valid : work->policy->tables) &&
		(!OidIsValid(work->schema) || heat->schema_oid == work->schema) &&
		(work->tables == NIL || list_member_oid(work->tables, heat->table_oid));
}

static char *
moment_text(TimestampTz moment)
{
	return DatumGetCString(DirectFunctionCall1(timestamptz_out,
											   TimestampTzGetDatum(moment - moment % USECS_PER_SEC)));
}

static List *
wanted_by_idleness(PlanWork *work)
{
	static const char *const uses[] = {"scan or change", "index scan or change", "change"};
	const HeatTable *heat = the_heat(work);
	TimestampTz since = minus(work->plan->now, work->policy->age);
	TimestampTz known_since = 0;
	int			not_known = 0;
	List	   *result = NIL;

	for (int i = 0; i < heat->n; i++)
	{
		const Heat *h = &heat->heats[i];
		HeatUse		use = heat_use(h, work->policy->idle_of);
		TierRow    *row;

		if (!is_in_scope(h, work) || (use.last != 0 && use.last > since))
			continue;
		if (use.known_since > since)
		{
			known_since = Max(known_since, use.known_since);
			not_known++;
			continue;
		}
		row = new_row(h->relid, work->to, psprintf("no %s on this server since %s", uses[work->policy->idle_of], moment_text(since)));
		row->heat = h->wanted_per_second;
		result = lappend(result, row);
	}
	if (not_known > 0)
		work->rows = lappend(work->rows,
							 policy_row(psprintf("of %d relations nothing is known on this server before %s",
												 not_known, moment_text(known_since))));
	return result;
}

static List *
wanted_by_heat(PlanWork *work)
{
	int			n;
	Candidate  *candidates = candidates_collect(the_heat(work), work->plan->places, work->to, work->from,
												&work->settings, is_in_scope, work, &n);
	TierRow   **rows = palloc0_array(TierRow *, Max(n, 1));
	List	   *result = NIL;
	bool		again;

	/* what cannot move takes no part, and what cannot leave keeps its bytes */
	do
	{
		again = false;
		ranking_choose(candidates, n, work->policy->budget);
		for (int i = 0; i < n; i++)
		{
			Candidate  *c = &candidates[i];
			bool		goes = c->fate == CANDIDATE_GOES;

			CHECK_FOR_INTERRUPTS();
			if (rows[i] != NULL || (!goes && c->fate != CANDIDATE_LEAVES))
				continue;
			rows[i] = new_row(c->heat->relid, goes ? work->to : work->from, goes ?
							  psprintf("%.1f blocks a second by index scans and changes", c->heat->wanted_per_second) :
							  "not among the hottest that fit into the budget");
			rows[i]->order = goes ? -c->value / Max(c->size, BLCKSZ) : -get_float8_infinity();
			rows[i]->heat = c->heat->wanted_per_second;
			if (!examine(work, rows[i]))
				rows[i]->relid = InvalidOid;
			else if (rows[i]->hindrance == NULL)
				continue;
			if (goes)
				c->value = 0;
			else
				c->is_fixed = true;
			again = true;
		}
	} while (again);
	for (int i = 0; i < n; i++)
		if (rows[i] != NULL && OidIsValid(rows[i]->relid) &&
			(rows[i]->hindrance != NULL || candidates[i].fate == CANDIDATE_GOES ||
			 candidates[i].fate == CANDIDATE_LEAVES))
			result = lappend(result, rows[i]);
	return result;
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

/*
 * Return how many bytes have to leave the file system of from_tablespace; -1 if it is
 * not too full.  Bytes of moves that are on their way out count as gone.  ERROR if
 * no move would help.
 */
static double
read_pressure(PlanWork *work, char **why)
{
	const Policy *policy = work->policy;
	const Place *from = places_find(work->plan->places, work->from);
	const Place *to = places_find(work->plan->places, work->to);
	double		total;
	double		used;
	double		percent;

	if (from == NULL || !from->is_there || from->facts.total_bytes == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the file system of \"%s\" does not say how full it is", policy->from_tablespace)));
	if (to != NULL && to->is_there && to->facts.device == from->facts.device)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("tablespaces \"%s\" and \"%s\" are on the same file system",
						policy->from_tablespace, policy->to_tablespace)));
	total = from->facts.total_bytes;
	used = total - from->facts.free_bytes;
	percent = rint(used * 1000 / total) / 10;
	*why = psprintf("file system of \"%s\" is %g%% full, stop_at is %g%%", policy->from_tablespace,
					percent, rint(policy->stop_at * 1000) / 10);
	return used < policy->start_at * total ? -1 : used - policy->stop_at * total - bytes_leaving(work->from);
}

/* Of a full file system the coldest, and of equals the largest, as many as it takes */
static void
relieve(PlanWork *work)
{
	const HeatTable *heat = the_heat(work);
	char	   *why;
	double		excess = read_pressure(work, &why);
	double		before = 0;
	List	   *wanted = NIL;

	if (excess < 0)
		return;
	for (int i = 0; i < heat->n; i++)
	{
		const Heat *h = &heat->heats[i];
		int64		size;
		TierRow    *row;

		if (!is_in_scope(h, work) || (size = heat_size(h)) <= 0)
			continue;
		row = new_row(h->relid, work->to, why);
		row->heat = h->wanted_per_second;
		/* without any heat, in the order of size: all below 0 */
		row->order = row->heat > 0 ? row->heat / Max(size, BLCKSZ) : -size;
		wanted = lappend(wanted, row);
	}
	list_sort(wanted, compare_rows);
	foreach_ptr(TierRow, row, wanted)
	{
		if (before > excess)
			break;
		if (!examine(work, row))
			continue;
		if (row->hindrance == NULL)
			before += row->size;
		decide(work, row);
	}
	if (before <= excess)
	{
		TierRow    *row = policy_row(psprintf("%s; but only %s of %s may be moved", why,
											  size_text((int64) before), size_text((int64) ceil(excess))));

		row->from = work->from;
		work->rows = lcons(row, work->rows);
	}
}

/* ----------------------------------------------------------------
 *	One policy
 * ----------------------------------------------------------------
 */

/* Look up the objects that the policy names.  ERROR if one does not exist. */
static void
look_up_names(PlanWork *work)
{
	const Policy *policy = work->policy;
	char		relkind = get_rel_relkind(policy->relation);

	if (policy->schema != NULL)
		work->schema = get_namespace_oid(policy->schema, false);
	if (policy->from_tablespace != NULL)
		work->from = get_tablespace_oid(policy->from_tablespace, false);
	work->to = get_tablespace_oid(policy->to_tablespace, false);
	if (work->to == GLOBALTABLESPACE_OID)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("only shared relations can be placed in pg_global tablespace")));
	policy_check_target(policy->to_tablespace, policy->tables);
	/* the rest of what a budget is for goes back there */
	if (policy->kind == POLICY_BUDGET)
		policy_check_target(policy->from_tablespace, policy->tables);
	if (!OidIsValid(policy->relation))
		return;
	if (relkind == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", policy->relation)));
	if (relkind != RELKIND_PARTITIONED_TABLE &&
		(policy->kind == POLICY_OLDER_THAN || (relkind != RELKIND_RELATION && relkind != RELKIND_MATVIEW)))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg(policy->kind == POLICY_OLDER_THAN ? "\"%s\" is not a partitioned table" :
						"\"%s\" is not a table or materialized view", get_rel_name(policy->relation))));
	if (policy->kind != POLICY_OLDER_THAN &&
		(IsCatalogRelationOid(policy->relation) ||
		 OidIsValid(getExtensionOfObject(RelationRelationId, policy->relation))))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is a system catalog, or belongs to an extension", get_rel_name(policy->relation))));
	/* partitions can be in another schema */
	if (OidIsValid(work->schema) && work->schema != get_rel_namespace(policy->relation) &&
		(policy->kind == POLICY_OLDER_THAN || relkind != RELKIND_PARTITIONED_TABLE))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is not in schema \"%s\"", get_rel_name(policy->relation), policy->schema)));
	/* a partitioned table without partitions is not every table */
	work->tables = list_make1_oid(policy->relation);
	foreach_ptr(const PartitionLeaf, leaf, partition_leaves(policy->relation))
		work->tables = lappend_oid(work->tables, leaf->relid);
}

/*
 * Plan one policy, a PlanWork, as the current user, its owner.  ERROR if the policy
 * itself is wrong.
 */
void
tier_plan_policy(void *arg)
{
	PlanWork   *work = arg;
	List	   *wanted = NIL;
	int			nestlevel = NewGUCNestLevel();

	/* before the search_path of the clock: it may name a schema of the role's */
	settings_capture(&work->settings, work->policy->settings);
	work->settings.terms.policy = work->policy->name;
	work->settings.terms.freeze_first = work->policy->freeze_first && work->policy->kind == POLICY_OLDER_THAN;
	(void) set_config_option("search_path", WORKER_SEARCH_PATH, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("DateStyle", "ISO, YMD", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	/* who waits for this worker can have locked what a now_function reads */
	(void) set_config_option("lock_timeout", "10s", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	look_up_names(work);
	if (work->plan->parts == NULL)
		work->plan->parts = plan_parts_begin(&work->settings);
	switch (work->policy->kind)
	{
		case POLICY_OLDER_THAN:
			wanted = wanted_by_age(work);
			break;
		case POLICY_IDLE_FOR:
			wanted = wanted_by_idleness(work);
			break;
		case POLICY_BUDGET:
			wanted = wanted_by_heat(work);
			break;
		case POLICY_START_AT:
			relieve(work);
			break;
	}
	list_sort(wanted, compare_rows);
	foreach_ptr(TierRow, row, wanted)
	{
		CHECK_FOR_INTERRUPTS();
		/* those of a budget were examined */
		if (row->hindrance != NULL || row->items != NIL || examine(work, row))
			decide(work, row);
	}
	AtEOXact_GUC(false, nestlevel);
}

static void
plan_as_owner(void *arg)
{
	policy_as_owner(((PlanWork *) arg)->policy->owner, tier_plan_policy, arg);
}

/* Return a remark on the last runs of a policy, or NULL. */
static char *
say_failures(const Policy *policy)
{
	PolicyRun	run;
	char	   *why;
	int			failures;

	policy_run_read(NameStr(policy->name), &run);
	failures = policy_failures(&run, &why);
	return failures == 0 ? NULL :
		failures == 1 ? psprintf("its last run has failed: %s", why ? why : "?") :
		psprintf("it has failed %d times in a row: %s", failures, why ? why : "?");
}

static void
put_tier_row(ReturnSetInfo *rsinfo, const Policy *policy, const TierRow *row)
{
	Row			result;

	row_clear(&result);
	row_set(&result, 1, NameGetDatum(&policy->name));
	if (OidIsValid(row->relid))
	{
		row_set(&result, 2, ObjectIdGetDatum(row->relid));
		row_text(&result, 3, row->is_index ? "index" : "table");
	}
	row_int64(&result, 4, row->size);
	row_tablespace(&result, 5, row->from);
	row_set(&result, 6, DirectFunctionCall1(namein, CStringGetDatum(policy->to_tablespace)));
	row_tablespace(&result, 6, row->to);
	row_set(&result, 7, BoolGetDatum(row->hindrance == NULL));
	row_text(&result, 8, tier_reason(row));
	if (row->heat >= 0)
		row_set(&result, 9, Float8GetDatum(row->heat));
	if (row->hindrance == NULL)
		row_interval(&result, 10, (int64) ceil(row->estimated * 10) * (USECS_PER_SEC / 10));
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, result.values, result.nulls);
}

/*
 * tier_plan(policy_name name DEFAULT NULL, at timestamptz DEFAULT NULL,
 *		OUT policy name, OUT relation regclass, OUT kind text, OUT size bigint,
 *		OUT from_tablespace name, OUT to_tablespace name, OUT moves boolean,
 *		OUT reason text, OUT heat float8, OUT estimated interval) RETURNS SETOF record
 *
 * Shows what run_tier_policies() would move, and what not, and why: of one policy,
 * or of all of the roles whose privileges the caller has; now, or at another
 * time.  Sizes in bytes, heat in blocks a second.  relation is NULL in a row about
 * the policy itself.
 *
 * Each policy is planned as its owner.  Locks: on catalogs and the extension's
 * own tables only.  EXECUTE is revoked from PUBLIC.
 * ERROR 42704 no such policy, 22023 at.  Faults of a policy are in its row.
 */
Datum
index_mover_tier_plan(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *policies = policies_read(PG_ARGISNULL(0) ? NULL : NameStr(*PG_GETARG_NAME(0)), false);
	TimestampTz at = PG_ARGISNULL(1) ? GetCurrentTransactionStartTimestamp() : PG_GETARG_TIMESTAMPTZ(1);
	TierPlan   *plan = tier_plan_begin(at);

	if (TIMESTAMP_NOT_FINITE(at))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("at must be finite")));
	if (InSecurityRestrictedOperation())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot execute %s within security-restricted operation", "tier_plan()")));
	InitMaterializedSRF(fcinfo, 0);
	foreach_ptr(const Policy, policy, policies)
	{
		PlanWork	work = {.plan = plan,.policy = policy};
		ErrorData  *error = NULL;
		char	   *failures = say_failures(policy);

		CHECK_FOR_INTERRUPTS();
		if (failures != NULL)
			put_tier_row(rsinfo, policy, policy_row(failures));
		if (!OidIsValid(policy->owner))
			work.rows = list_make1(policy_row("its owner is to be set again"));
		else
			error = errors_catch(plan_as_owner, &work);
		if (errors_was_canceled(error))
			ReThrowError(error);
		if (error != NULL)
			work.rows = list_make1(policy_row(error->message));
		foreach_ptr(const TierRow, row, work.rows)
			put_tier_row(rsinfo, policy, row);
	}
	return (Datum) 0;
}
