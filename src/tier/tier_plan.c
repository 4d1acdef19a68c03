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

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_tablespace.h"
#include "catalog/pg_type_d.h"
#include "commands/tablespace.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "errors.h"
#include "file_system.h"
#include "history.h"
#include "index_definition.h"
#include "job.h"
#include "plan/plan.h"
#include "tier/policy.h"

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

/* A relation that a policy wants elsewhere */
typedef struct Wanted
{
	Oid			relid;
	Oid			to;
	double		order;			/* smaller first */
	double		heat;			/* -1 = does not matter */
	char	   *why;
	char	   *left_alone;		/* why it is not wanted; NULL = it is */
	bool		unbounded;		/* because its range does not end */

	/* set by examine() */
	List	   *lists;			/* of Lists of MoveItem, each of one relation */
	Oid			table_oid;
	int64		size;
	char	   *hindrance;
	TierRow    *row;
} Wanted;

/* One policy on its way to rows */
typedef struct Work
{
	TierPlan   *plan;
	const Policy *policy;
	MoveSettings *settings;
	Oid			to;				/* 0 = does not exist */
	Oid			from;
	Oid			schema;			/* 0 = any */
	List	   *tables;			/* of OIDs: within these; NIL = any */
	HTAB	   *moved;			/* within min_stay */
	int64		so_far;			/* bytes of this run */
	List	   *rows;
} Work;

/* Plan the policies as of a moment; 0 = now. */
TierPlan *
tier_plan_begin(TimestampTz at)
{
	TierPlan   *plan = palloc0(sizeof(TierPlan));
	HASHCTL		info = {.keysize = sizeof(Oid),.entrysize = sizeof(Claim),.hcxt = CurrentMemoryContext};
	TimestampTz now = GetCurrentTransactionStartTimestamp();

	plan->now = at == 0 ? now : at;
	plan->ahead = plan->now - now;
	plan->places = places_read();
	plan->busy = job_busy_tables();
	plan->claimed = hash_create("index_mover claims", 64, &info, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	return plan;
}

static TimestampTz
minus(TimestampTz moment, const Interval *age)
{
	return DatumGetTimestampTz(DirectFunctionCall2(timestamptz_mi_interval, TimestampTzGetDatum(moment),
												   IntervalPGetDatum(age)));
}

static const HeatTable *
the_heat(Work *work)
{
	if (work->plan->heat == NULL)
		work->plan->heat = heat_read();
	return work->plan->heat;
}

/* Make a row, of a relation or, with 0, about the policy itself. */
static TierRow *
make_row(const Policy *policy, Oid relid, char *reason)
{
	TierRow    *row = palloc0(sizeof(TierRow));

	row->relid = relid;
	row->is_index = OidIsValid(relid) && relkind_is_index(get_rel_relkind(relid));
	row->size = -1;
	row->heat = row->estimated = -1;
	row->refused = true;
	row->to_tablespace = policy->to_tablespace;
	row->reason = reason;
	return row;
}

static Wanted *
want(List **wanted, Oid relid, Oid to, double order, char *why)
{
	Wanted	   *result = palloc0(sizeof(Wanted));

	result->relid = relid;
	result->to = to;
	result->order = order;
	result->heat = -1;
	result->why = why;
	*wanted = lappend(*wanted, result);
	return result;
}

static int
compare_wanted(const ListCell *a, const ListCell *b)
{
	const Wanted *wanted1 = lfirst(a);
	const Wanted *wanted2 = lfirst(b);

	if (wanted1->order != wanted2->order)
		return wanted1->order < wanted2->order ? -1 : 1;
	return wanted1->relid < wanted2->relid ? -1 : wanted1->relid > wanted2->relid;
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
 * Plan the move of one relation.  Returns its items, NIL if nothing is to be done
 * or it is gone.  If it cannot be planned, or it is skipped, sets *hindrance.
 */
static List *
plan_relation_to(Work *work, Oid relid, Oid to, char **hindrance)
{
	PlanOne		one = {.request = {.scope = SCOPE_ONE,.object = relid,.to_tablespace = to,
	.method = METHOD_AUTO,.part = true,.settings = *work->settings}};
	ErrorData  *error;
	const MoveItem *item;
	RelationFacts facts;

	*hindrance = NULL;
	/* whoever asks: no hindrance of what need not move */
	if (!relation_facts(relid, &facts) || (facts.tablespace == to && parts_are_in(&facts, to)) ||
		(work->policy->kind != POLICY_BUDGET && OidIsValid(work->from) && facts.tablespace != work->from))
		return NIL;
	one.request.indexes = relkind_is_index(facts.relkind);
	one.request.tables = !one.request.indexes;
	error = errors_catch(plan_one, &one);
	if (error != NULL)
	{
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			ReThrowError(error);
		*hindrance = error->message;
		return NIL;
	}
	if (one.items == NIL)
		return NIL;
	item = linitial(one.items);
	plan_skip_parts(one.items);
	if (item->status == STATUS_SKIPPED && item->sqlstate[0] == '\0')
		return NIL;				/* it is there by now */
	if (item->status == STATUS_SKIPPED)
		*hindrance = clause_of(item->detail);
	return one.items;
}

/* The row of a relation that is wanted elsewhere; item: its own, or NULL */
static TierRow *
row_of(Work *work, const Wanted *wanted, Oid relid, const MoveItem *item)
{
	TierRow    *row = make_row(work->policy, relid, NULL);

	row->to_tablespace = get_tablespace_name(wanted->to);
	row->heat = wanted->heat;
	if (item != NULL)
	{
		row->size = Max(item->size_before, 0);
		row->from_tablespace = item->from_tablespace;
	}
	return row;
}

/* Return the job that has moved the relation within min_stay; 0 if none. */
static int64
moved_by(Work *work, const Wanted *wanted, bool is_index)
{
	const LastMove *last;

	if (work->moved == NULL)
		work->moved = history_last_moves(minus(work->plan->now, work->policy->min_stay));
	last = hash_search(work->moved, &wanted->relid, HASH_FIND, NULL);
	if (last == NULL)
		return 0;
	/* of a table of whose parts only the indexes move */
	return is_index || work->policy->tables ? last->job : last->index_job;
}

/*
 * Find out what is to be moved of a relation, its size, and what hinders it.
 * Returns false if nothing is to be done, and there is no row.  An index that
 * cannot move with its table has a row of its own.
 */
static bool
examine(Work *work, Wanted *wanted)
{
	bool		is_index = relkind_is_index(get_rel_relkind(wanted->relid));
	bool		by_age = work->policy->kind == POLICY_OLDER_THAN;
	List	   *relids = is_index || work->policy->tables ? list_make1_oid(wanted->relid) : NIL;
	const MoveItem *first = NULL;
	const BusyTable *busy;
	int64		mover;
	ListCell   *lc;
	ListCell   *lc2;

	if (wanted->left_alone != NULL)
	{
		wanted->row = row_of(work, wanted, wanted->relid, NULL);
		return true;
	}
	if (by_age && work->policy->indexes)
		relids = list_concat(relids, indexes_of_table(wanted->relid));
	foreach(lc, relids)
	{
		char	   *hindrance;
		List	   *items = plan_relation_to(work, lfirst_oid(lc), wanted->to, &hindrance);

		if (hindrance != NULL && lfirst_oid(lc) != wanted->relid)
		{
			TierRow    *row = row_of(work, wanted, lfirst_oid(lc), items != NIL ? linitial(items) : NULL);

			row->reason = psprintf("%s; but %s", wanted->why, hindrance);
			work->rows = lappend(work->rows, row);
			continue;
		}
		if (items == NIL && hindrance == NULL)
			continue;
		wanted->hindrance = hindrance;
		if (items != NIL)
		{
			wanted->lists = lappend(wanted->lists, items);
			if (first == NULL)
				first = linitial(items);
		}
		foreach(lc2, items)
		{
			const MoveItem *item = lfirst(lc2);

			/* the index of a TOAST table is not told of */
			if (!OidIsValid(item->part_of) || !relkind_is_index(item->relkind))
				wanted->size += Max(item->size_before, 0);
		}
		if (hindrance != NULL)
			break;				/* a table, without which its indexes do not
								 * go */
	}
	if (wanted->lists == NIL && wanted->hindrance == NULL)
		return false;

	wanted->row = row_of(work, wanted, wanted->relid, first);
	if (first != NULL)
		wanted->row->size = wanted->size;
	wanted->table_oid = first != NULL ? first->heap_oid : wanted->relid;
	if (wanted->hindrance != NULL)
		return true;

	busy = hash_search(work->plan->busy, &wanted->table_oid, HASH_FIND, NULL);
	mover = busy == NULL ? moved_by(work, wanted, is_index) : 0;
	if (busy != NULL)
		wanted->hindrance = psprintf(busy->cleaning_up ?
									 "job " INT64_FORMAT " has ended and is still cleaning up its table" :
									 "job " INT64_FORMAT " is moving it", busy->job);
	else if (mover != 0)
		wanted->hindrance = psprintf("job " INT64_FORMAT " has moved it less than %s ago", mover,
									 DatumGetCString(DirectFunctionCall1(interval_out,
																		 IntervalPGetDatum(work->policy->min_stay))));
	else if (work->policy->max_bytes_per_run > 0 && wanted->size > work->policy->max_bytes_per_run)
		wanted->hindrance = "it is larger than max_bytes_per_run";
	else
	{
		const Place *place = places_find(work->plan->places, wanted->to);

		if (place != NULL && place->is_there && wanted->size > place->facts.free_bytes - place->reserved)
			wanted->hindrance = psprintf("tablespace \"%s\" has no space for it", NameStr(place->name));
	}
	return true;
}

/* Return another hindrance of a relation that moves with others, or NULL. */
static char *
not_now(Work *work, Wanted *wanted, const Claim *claim)
{
	ListCell   *lc;

	if (claim != NULL && claim->policy != work->policy)
		return psprintf("policy \"%s\" has its table first", NameStr(claim->policy->name));
	if (work->policy->max_bytes_per_run > 0 &&
		work->so_far + wanted->size > work->policy->max_bytes_per_run)
		return "a later run moves it: max_bytes_per_run";
	foreach(lc, wanted->lists)
	{
		PlanRequest request = {.settings = *work->settings,.part = true};
		const MoveItem *item = linitial((List *) lfirst(lc));

		plan_complete(work->plan->parts, lfirst(lc), &request);
		if (item->status == STATUS_SKIPPED)
			return clause_of(item->detail);
	}
	return NULL;
}

/* Decide about a relation that was examined, and add its row. */
static void
decide(Work *work, Wanted *wanted)
{
	TierRow    *row = wanted->row;
	Claim	   *claim = hash_search(work->plan->claimed, &wanted->table_oid, HASH_FIND, NULL);
	char	   *hindrance = wanted->left_alone != NULL ? wanted->left_alone : wanted->hindrance;
	ListCell   *lc;

	if (hindrance == NULL)
		hindrance = not_now(work, wanted, claim);
	row->moves = hindrance == NULL;
	row->refused = !row->moves && !wanted->unbounded;
	row->reason = row->moves ? wanted->why : wanted->left_alone != NULL ? wanted->left_alone :
		psprintf("%s; but %s", wanted->why, hindrance);
	work->rows = lappend(work->rows, row);
	if (!row->moves)
		return;

	work->so_far += wanted->size;
	claim = hash_search(work->plan->claimed, &wanted->table_oid, HASH_ENTER, NULL);
	claim->policy = work->policy;
	row->estimated = 0;
	foreach(lc, wanted->lists)
		row->items = list_concat(row->items, lfirst(lc));
	foreach(lc, row->items)
		row->estimated += Max(((const MoveItem *) lfirst(lc))->estimated, 0);
}

/* ----------------------------------------------------------------
 *	older_than
 * ----------------------------------------------------------------
 */

/* Up to where a range must end to be old */
typedef struct AgeLimit
{
	bool		of_number;		/* now_function has told an integer */
	bool		usable;			/* for a key that is no number */
	TimestampTz moment;
	int64		number;
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
static void
read_clock(Work *work, AgeLimit *limit)
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
	Interval	ahead = {.time = work->plan->ahead};

	LOCAL_FCINFO(call, 1);

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", function);
	form = (Form_pg_proc) GETSTRUCT(tuple);
	nargs = form->pronargs;
	type = form->prorettype;
	limit->of_number = type == INT2OID || type == INT4OID || type == INT8OID;
	usable = (limit->of_number || type == DATEOID || type == TIMESTAMPOID || type == TIMESTAMPTZOID) &&
		form->prokind == PROKIND_FUNCTION && !form->proretset &&
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
		if (error != NULL && error->sqlerrcode == ERRCODE_QUERY_CANCELED)
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

	limit->usable = !limit->of_number && nargs == 0;
	limit->number = type == INT2OID ? DatumGetInt16(clock.result) :
		type == INT4OID ? DatumGetInt32(clock.result) : type == INT8OID ? DatumGetInt64(clock.result) : 0;
	limit->of_number = limit->of_number && nargs == 1;
	if (limit->usable)
		limit->moment = minus(DatumGetTimestampTz(type == DATEOID ?
												  DirectFunctionCall1(date_timestamptz, clock.result) :
												  type == TIMESTAMPOID ?
												  DirectFunctionCall1(timestamp_timestamptz, clock.result) :
												  clock.result) + work->plan->ahead,
							  work->policy->age);
}

/* Return why nothing is known of the age of a partition; NULL if something is. */
static char *
why_no_age(const PartitionBound *upper, const AgeLimit *limit)
{
	switch (upper->kind)
	{
		case BOUND_NONE:
			return "it is in no range of dates, timestamps or integers";
		case BOUND_DEFAULT:
			return "the default partition has no bound";
		case BOUND_MAXVALUE:
			return "the partition has no upper bound";
		case BOUND_VALUE:
			break;
	}
	if (bound_is_number(upper))
		return limit->of_number ? NULL : "an integer key needs a now_function(interval) that returns an integer";
	return limit->usable ? NULL : "a date or timestamp key needs a now_function() that returns a date or timestamp";
}

/* Return the partitioned tables that are no partitions, in the policy's schema. */
static List *
partitioned_tables(Work *work)
{
	Relation	pg_class = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(pg_class, InvalidOid, false, NULL, 0, NULL);
	List	   *result = NIL;
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		/* other extensions' tables are left alone, unless they are named */
		if (form->relkind == RELKIND_PARTITIONED_TABLE && !form->relispartition &&
			(!OidIsValid(work->schema) || form->relnamespace == work->schema) &&
			!OidIsValid(getExtensionOfObject(RelationRelationId, form->oid)))
			result = lappend_oid(result, form->oid);
	}
	systable_endscan(scan);
	table_close(pg_class, AccessShareLock);
	return result;
}

static List *
wanted_by_age(Work *work)
{
	const Policy *policy = work->policy;
	AgeLimit	limit = {0};
	List	   *roots;
	List	   *result = NIL;
	ListCell   *lc;
	ListCell   *lc2;

	if (OidIsValid(policy->relation) && get_rel_relkind(policy->relation) != RELKIND_PARTITIONED_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a partitioned table", get_rel_name(policy->relation))));
	if (policy->now_function != NULL)
		read_clock(work, &limit);
	else
	{
		limit.usable = true;
		limit.moment = minus(work->plan->now, policy->age);
	}

	roots = !OidIsValid(policy->relation) ? partitioned_tables(work) :
		!OidIsValid(work->schema) || get_rel_namespace(policy->relation) == work->schema ?
		list_make1_oid(policy->relation) : NIL;
	foreach(lc, roots)
		foreach(lc2, partition_leaves(lfirst_oid(lc)))
	{
		const PartitionLeaf *leaf = lfirst(lc2);
		char	   *left_alone = why_no_age(&leaf->upper, &limit);

		if (left_alone != NULL)
		{
			Wanted	   *wanted = want(&result, leaf->relid, work->to, get_float8_infinity(), NULL);

			wanted->left_alone = left_alone;
			wanted->unbounded = leaf->upper.kind == BOUND_DEFAULT || leaf->upper.kind == BOUND_MAXVALUE;
		}
		else if (bound_is_number(&leaf->upper) ? bound_number(&leaf->upper) <= limit.number :
				 bound_compare(&leaf->upper, limit.moment) <= 0)
			(void) want(&result, leaf->relid, work->to, bound_order(&leaf->upper),
						psprintf("its rows end at %s", bound_text(&leaf->upper)));
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
	const Work *work = arg;
	bool		is_there = heat->tablespace == work->to;

	/* a budget is for both sides */
	return (is_there ? work->policy->kind == POLICY_BUDGET :
			!OidIsValid(work->from) || heat->tablespace == work->from) &&
		!heat->of_extension && heat->persistence != RELPERSISTENCE_TEMP &&
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
wanted_by_idleness(Work *work)
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
		TimestampTz moment = 0;
		IdleAnswer	answer;

		if (!is_in_scope(h, work))
			continue;
		answer = heat_idle(h, work->policy->idle_of, since, &moment);
		if (answer == IDLE_NOT_KNOWN)
		{
			known_since = Max(known_since, moment);
			not_known++;
		}
		else if (answer == IDLE_YES)
			want(&result, h->relid, work->to, 0,
				 psprintf("no %s on this server since %s", uses[work->policy->idle_of], moment_text(since)))->heat =
				h->wanted_per_second;
	}
	if (not_known > 0)
		work->rows = lappend(work->rows,
							 make_row(work->policy, InvalidOid, psprintf("of %d relations nothing is known on this server before %s",
																		 not_known, moment_text(known_since))));
	return result;
}

static List *
wanted_by_heat(Work *work)
{
	const Policy *policy = work->policy;
	int			n;
	Candidate  *candidates = candidates_collect(the_heat(work), work->plan->places, work->to, work->from,
												is_in_scope, work, &n);
	Wanted	  **examined = palloc0(sizeof(Wanted *) * Max(n, 1));
	List	   *result = NIL;
	bool		again;

	/* what cannot move takes no part, and what cannot leave keeps its bytes */
	do
	{
		again = false;
		ranking_choose(candidates, n, policy->budget);
		for (int i = 0; i < n; i++)
		{
			Candidate  *c = &candidates[i];
			bool		goes = c->fate == CANDIDATE_GOES;
			List	   *one = NIL;

			CHECK_FOR_INTERRUPTS();
			if (examined[i] != NULL || (!goes && c->fate != CANDIDATE_LEAVES))
				continue;
			examined[i] = goes ?
				want(&one, c->heat->relid, work->to, -c->value / Max(c->size, BLCKSZ),
					 psprintf("%.1f blocks a second by index scans and changes", c->heat->wanted_per_second)) :
				want(&one, c->heat->relid, work->from, -get_float8_infinity(),
					 "not among the hottest that fit into the budget");
			examined[i]->heat = c->heat->wanted_per_second;
			if (examine(work, examined[i]) && examined[i]->hindrance == NULL)
				continue;
			if (goes)
				c->value = 0;
			else
				c->is_fixed = true;
			again = true;
		}
	} while (again);
	for (int i = 0; i < n; i++)
		if (examined[i] != NULL && examined[i]->row != NULL &&
			(examined[i]->hindrance != NULL || candidates[i].fate == CANDIDATE_GOES ||
			 candidates[i].fate == CANDIDATE_LEAVES))
			result = lappend(result, examined[i]);
	return result;
}

/* The coldest of a full file system first, and of equals the largest */
static List *
wanted_by_coldness(Work *work)
{
	const HeatTable *heat = the_heat(work);
	List	   *result = NIL;

	for (int i = 0; i < heat->n; i++)
	{
		const Heat *h = &heat->heats[i];
		int64		size;

		if (!is_in_scope(h, work) || (size = heat_size(h)) <= 0)
			continue;
		/* without any heat, in the order of size: all below 0 */
		want(&result, h->relid, work->to,
			 h->wanted_per_second > 0 ? h->wanted_per_second / Max(size, BLCKSZ) : -size, NULL)->heat =
			h->wanted_per_second;
	}
	return result;
}

/* How much is too much on a file system */
typedef struct Pressure
{
	bool		is_full;
	double		excess;			/* bytes that have to go */
	char	   *why;
} Pressure;

/* Return the bytes that jobs still have to move out of a tablespace, or to remove. */
static int64
bytes_leaving(Oid tablespace)
{
	JobSlot		slots[IM_MAX_JOBS];
	int64		result = 0;
	ListCell   *lc;

	for (int i = job_read_slots(slots, NULL) - 1; i >= 0; i--)
		foreach(lc, history_read(slots[i].job))
	{
		const HistoryEntry *entry = lfirst(lc);

		if ((entry->status == STATUS_QUEUED || entry->status == STATUS_RUNNING) &&
			entry->from_tablespace == tablespace && entry->to_tablespace != tablespace)
			result += entry->size;
	}
	return result;
}

/*
 * Find out how full the file system of from_tablespace is.  Bytes of moves that
 * are on their way out count as gone.  ERROR if no move would help.
 */
static void
read_pressure(Work *work, Pressure *pressure)
{
	const Policy *policy = work->policy;
	const Place *from = places_find(work->plan->places, work->from);
	const Place *to = places_find(work->plan->places, work->to);
	double		used;
	double		total;
	char	   *percent;

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
	pressure->is_full = used >= policy->start_at * total;
	pressure->excess = used - policy->stop_at * total - bytes_leaving(work->from);
	percent = psprintf("%.1f", used * 100 / total);
	if (strcmp(percent + strlen(percent) - 2, ".0") == 0)
		percent[strlen(percent) - 2] = '\0';
	pressure->why = psprintf("file system of \"%s\" is %s%% full, stop_at is %g%%", policy->from_tablespace,
							 percent, rint(policy->stop_at * 1000) / 10);
}

/* Of a full file system, as many as it takes */
static void
relieve(Work *work)
{
	Pressure	pressure;
	double		before = 0;
	List	   *wanted;
	ListCell   *lc;

	read_pressure(work, &pressure);
	if (!pressure.is_full)
		return;
	wanted = wanted_by_coldness(work);
	list_sort(wanted, compare_wanted);
	foreach(lc, wanted)
	{
		Wanted	   *w = lfirst(lc);

		if (before > pressure.excess)
			break;
		w->why = pressure.why;
		if (!examine(work, w))
			continue;
		if (w->hindrance == NULL)
			before += w->size;
		decide(work, w);
	}
	if (before <= pressure.excess)
	{
		TierRow    *row = make_row(work->policy, InvalidOid, psprintf("%s; but only %s of %s may be moved", pressure.why,
																	  size_text((int64) before), size_text((int64) ceil(pressure.excess))));

		row->from_tablespace = work->from;
		work->rows = lcons(row, work->rows);
	}
}

/* ----------------------------------------------------------------
 *	One policy
 * ----------------------------------------------------------------
 */

/* Look up the objects that the policy names.  ERROR if one does not exist. */
static void
look_up_names(Work *work)
{
	const Policy *policy = work->policy;
	ListCell   *lc;

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
	if (OidIsValid(policy->relation))
	{
		if (get_rel_relkind(policy->relation) == '\0')
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_TABLE),
					 errmsg("relation with OID %u does not exist", policy->relation)));
		foreach(lc, partition_leaves(policy->relation))
			work->tables = lappend_oid(work->tables, ((const PartitionLeaf *) lfirst(lc))->relid);
		/* a partitioned table without partitions is not every table */
		if (work->tables == NIL)
			work->tables = list_make1_oid(policy->relation);
	}
}

/*
 * Plan one policy, a PlanWork, as the current user, its owner.  ERROR if the policy
 * itself is wrong.
 */
void
tier_plan_policy(void *arg)
{
	PlanWork   *result = arg;
	TierPlan   *plan = result->plan;
	const Policy *policy = result->policy;
	MoveSettings *settings = &result->settings;
	Work		work = {.plan = plan,.policy = policy,.settings = settings};
	List	   *wanted = NIL;
	int			nestlevel = NewGUCNestLevel();
	ListCell   *lc;

	/* before the search_path of the clock: it may name a schema of the role's */
	policy_settings(policy, settings);
	(void) set_config_option("search_path", WORKER_SEARCH_PATH, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("DateStyle", "ISO, YMD", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	look_up_names(&work);
	if (plan->parts == NULL)
		plan->parts = plan_parts_begin(settings);
	switch (policy->kind)
	{
		case POLICY_OLDER_THAN:
			wanted = wanted_by_age(&work);
			break;
		case POLICY_IDLE_FOR:
			wanted = wanted_by_idleness(&work);
			break;
		case POLICY_BUDGET:
			wanted = wanted_by_heat(&work);
			break;
		case POLICY_START_AT:
			relieve(&work);
			break;
	}
	list_sort(wanted, compare_wanted);
	foreach(lc, wanted)
	{
		Wanted	   *w = lfirst(lc);

		CHECK_FOR_INTERRUPTS();
		if (w->row != NULL || examine(&work, w))
			decide(&work, w);
	}
	AtEOXact_GUC(false, nestlevel);
	result->rows = work.rows;
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
#define TIER_PLAN_COLS 10
	Datum		values[TIER_PLAN_COLS] = {0};
	bool		nulls[TIER_PLAN_COLS];
	char	   *from = OidIsValid(row->from_tablespace) ? get_tablespace_name(row->from_tablespace) : NULL;
	Interval	estimated = {0};

	memset(nulls, true, sizeof(nulls));
#define SET(n, datum) (values[n] = (datum), nulls[n] = false)
	SET(0, NameGetDatum(&policy->name));
	if (OidIsValid(row->relid))
	{
		SET(1, ObjectIdGetDatum(row->relid));
		SET(2, CStringGetTextDatum(row->is_index ? "index" : "table"));
	}
	if (row->size >= 0)
		SET(3, Int64GetDatum(row->size));
	if (from != NULL)
		SET(4, DirectFunctionCall1(namein, CStringGetDatum(from)));
	SET(5, DirectFunctionCall1(namein, CStringGetDatum(row->to_tablespace)));
	SET(6, BoolGetDatum(row->moves));
	SET(7, CStringGetTextDatum(row->reason));
	if (row->heat >= 0)
		SET(8, Float8GetDatum(row->heat));
	if (row->moves && row->estimated >= 0)
	{
		estimated.time = (int64) ceil(row->estimated * 10) * (USECS_PER_SEC / 10);
		SET(9, IntervalPGetDatum(&estimated));
	}
#undef SET
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
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
 * ERROR 42704 no such policy.  Faults of a policy are in its row.
 */
Datum
index_mover_tier_plan(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *policies = policies_read(PG_ARGISNULL(0) ? NULL : NameStr(*PG_GETARG_NAME(0)), false);
	TierPlan   *plan = tier_plan_begin(PG_ARGISNULL(1) ? 0 : PG_GETARG_TIMESTAMPTZ(1));
	ListCell   *lc;
	ListCell   *lc2;

	if (InSecurityRestrictedOperation())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot execute %s within security-restricted operation", "tier_plan()")));
	InitMaterializedSRF(fcinfo, 0);
	foreach(lc, policies)
	{
		PlanWork	work = {.plan = plan,.policy = lfirst(lc)};
		ErrorData  *error = NULL;
		char	   *failures = say_failures(work.policy);

		CHECK_FOR_INTERRUPTS();
		if (failures != NULL)
			put_tier_row(rsinfo, work.policy, make_row(work.policy, InvalidOid, failures));
		if (!OidIsValid(work.policy->owner))
			work.rows = list_make1(make_row(work.policy, InvalidOid, "its owner is to be set again"));
		else
			error = errors_catch(plan_as_owner, &work);
		if (error != NULL && error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			ReThrowError(error);
		if (error != NULL)
			work.rows = list_make1(make_row(work.policy, InvalidOid, error->message));
		foreach(lc2, work.rows)
			put_tier_row(rsinfo, work.policy, lfirst(lc2));
	}
	return (Datum) 0;
}
