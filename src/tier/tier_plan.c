/*-------------------------------------------------------------------------
 *
 * tier_plan.c
 *	  The relations that a policy would move or not, and why.
 *
 * A policy wishes relations into its target, in an order; about each wish a decision
 * is made.  Hindrances of a move are found by the planner of moves, as in a dry run; the
 * policies' own hindrances are min_stay, max_bytes_per_run, a policy that has the table
 * first, and any that would move it back (policy_conflict.c).
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
#include "common/string.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/float.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "call/call.h"
#include "row.h"
#include "tier/tier_private.h"
#include "timescaledb.h"

PG_FUNCTION_INFO_V1(index_mover_tier_plan);

/* When a wish is granted, within its turn by its order */
typedef enum TierTurn
{
	TURN_POLICY,				/* about the policy itself */
	TURN_LEAVES,				/* a resident that the budget has no place for */
	TURN_NORMAL,
	TURN_DECIDED,				/* it has no order, and does not move */
	TURN_FAILED_LATELY,			/* so that it keeps no others out */
} TierTurn;

/* The wish of a policy for a relation, or, with relid 0, a row about itself */
typedef struct TierWish
{
	Oid			relid;
	Oid			to;				/* tablespace */
	Oid			with;			/* a table that goes with it, and before; 0 =
								 * none */
	const char *why;			/* it is wanted there; NULL = it is not */
	TierTurn	turn;
	double		order;			/* smaller first */
	double		heat;			/* -1 = does not matter */
} TierWish;

typedef enum TierVerdict
{
	VERDICT_NONE,				/* nobody has looked, or nothing is to be done */
	VERDICT_MOVES,
	VERDICT_STAYS,				/* as it is meant to be */
	VERDICT_WAITS,				/* until it moves in a later run */
	VERDICT_HINDERED,			/* until a user does something about it */
} TierVerdict;

/* Why a relation does not move; reason_clause() has the words */
typedef enum TierReasonCode
{
	REASON_NONE,				/* it moves */
	REASON_SAID,				/* as the text says: of an error, of a bound,
								 * or of a policy */
	REASON_ITEM,				/* the planner of moves skips it; text: its
								 * sentences */
	REASON_EARLIER_POLICY,		/* text: its name, NULL if it is another
								 * role's */
	REASON_JOB_AT_WORK,
	REASON_MOVED_LATELY,		/* by a job, within min_stay */
	REASON_MOVED_OUT,			/* by the job of a policy with start_at,
								 * within its min_stay */
	REASON_PRESSURE,			/* it would exceed the limit of such a policy */
	REASON_TOO_LARGE,			/* for max_bytes_per_run */
	REASON_NO_SPACE_YET,		/* of the budget, until others have moved out */
	REASON_LATER_RUN,			/* by max_bytes_per_run */
} TierReasonCode;

typedef struct TierReason
{
	TierReasonCode code;
	int64		job;			/* where the code is of a job */
	const PressureLimit *limit; /* where the code is of a limit */
	const char *text;
} TierReason;

typedef struct TierDecision
{
	TierVerdict verdict;
	TierReason	reason;
} TierDecision;

/* A row of the plan */
typedef struct TierRow
{
	TierWish	wish;
	TierDecision decision;
	Oid			table_oid;		/* of an index its table, else relid */
	bool		is_busy;		/* a job, or another policy, has its table */
	int64		size;			/* of the items; -1 = unknown */
	List	   *items;			/* of PlannedMove; NIL = not planned, or
								 * nothing to do */
} TierRow;

/* A policy while it is planned */
typedef struct PolicyWork
{
	const Policy *policy;
	PlanRequest request;		/* of a relation; has the job's settings */
	TierRow    *row;			/* of that */
	TierScope	scope;
	List	   *rows;			/* of TierRow */
	HTAB	   *moved;			/* of MovedTable; NULL = none is read yet */
	const char *pressure;		/* why relations have to leave; NULL = they do
								 * not have to */
	double		excess;			/* bytes that have to */
	char	   *goes_on;		/* why the next run goes on with that; NULL =
								 * it does so only if it has to begin again */
} PolicyWork;

/* A table that a policy wants, and how much was moved of it lately */
typedef struct MovedTable
{
	Oid			relid;			/* hash key */
	List	   *moves;			/* of TableMove, within the longest min_stay
								 * that counts */
} MovedTable;

/* A table of which a policy before, in this call, moves something */
typedef struct CoveredTable
{
	Oid			relid;			/* hash key */
	const Policy *policy;
} CoveredTable;

/* The plan of all policies of a call */
struct TierPlan
{
	TimestampTz now;			/* or the moment that is planned for */
	HeatTable  *heat;			/* NULL = not read yet; by the half-life of
								 * the policy that is planned */
	List	   *places;			/* as they are, or will be after the rows
								 * before */
	HTAB	   *busy;			/* of BusyTable */
	HTAB	   *covered;		/* of CoveredTable */
	PressureLimits *limits;
	HTAB	   *chunks;			/* of ChunkPair; NULL = none are known */
	const char *chunk_problem;	/* why; NULL = there is no timescaledb */
	PlanParts  *parts;			/* used space goes on from policy to policy */
	PolicyWork *work;			/* on the policy that is planned */
};

/* Plan the policies as of a moment, which is finite. */
TierPlan *
tier_plan_begin(TimestampTz at)
{
	HASHCTL		info = {.keysize = sizeof(Oid),.entrysize = sizeof(CoveredTable),
	.hcxt = CurrentMemoryContext};
	TierPlan   *plan = palloc0_object(TierPlan);

	Assert(!TIMESTAMP_NOT_FINITE(at));
	plan->now = at;
	plan->places = places_read();
	plan->busy = job_busy_tables();
	plan->covered = hash_create("index_mover covered tables", 64, &info,
								HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	plan->limits = conflict_limits(plan->places);
	plan->chunks = timescaledb_chunk_pairs(&plan->chunk_problem);
	plan->parts = plan_parts_begin();
	return plan;
}

/* Rows */

static void
decide(TierRow *row, TierVerdict verdict, TierReason reason)
{
	row->decision.verdict = verdict;
	row->decision.reason = reason;
}

static void
decide_code(TierRow *row, TierVerdict verdict, TierReasonCode code)
{
	TierReason	reason = {.code = code};

	decide(row, verdict, reason);
}

static void
decide_text(TierRow *row, TierVerdict verdict, const char *words)
{
	TierReason	reason = {.code = REASON_SAID,.text = words};

	decide(row, verdict, reason);
}

static TierRow *
new_row(TierWish wish)
{
	TierRow    *row = palloc0_object(TierRow);

	row->wish = wish;
	row->table_oid = wish.relid;
	row->size = -1;
	return row;
}

/* Add a row about the policy itself, before the others. */
static void
say(PolicyWork *work, TierVerdict verdict, const char *text)
{
	TierWish	wish = {.turn = TURN_POLICY,.heat = -1};
	TierRow    *row = new_row(wish);

	decide_text(row, verdict, text);
	work->rows = lcons(row, work->rows);
}

/* Add a relation that the policy wants in its target. */
static TierRow *
want(PolicyWork *work, Oid relid, const char *why, double order, double heat)
{
	TierWish	wish = {.relid = relid,.to = work->scope.to,.why = why,.turn = TURN_NORMAL,
	.order = order,.heat = heat};
	TierRow    *row = new_row(wish);

	work->rows = lappend(work->rows, row);
	return row;
}

static int
compare_rows(const ListCell *a, const ListCell *b)
{
	const TierWish *wish1 = &((const TierRow *) lfirst(a))->wish;
	const TierWish *wish2 = &((const TierRow *) lfirst(b))->wish;

	if (wish1->turn != wish2->turn)
		return wish1->turn < wish2->turn ? -1 : 1;
	if (wish1->order != wish2->order)
		return wish1->order < wish2->order ? -1 : 1;
	return (wish1->relid > wish2->relid) - (wish1->relid < wish2->relid);
}

static const char *
interval_text(const Interval *interval)
{
	return DatumGetCString(DirectFunctionCall1(interval_out, IntervalPGetDatum(interval)));
}

/* Return the words for a limit; a role sees its own policies only. */
static const char *
limit_clause(const Policy *policy, const PressureLimit *limit)
{
	double		percent = rint(limit->share * 1000) / 10;

	if (limit->policy->owner != policy->owner)
		return psprintf("the file system of \"%s\" would be more than %g%% full, where another policy moves relations out",
						limit->policy->from_tablespace, percent);
	return psprintf("the file system of \"%s\" would be more than %g%% full, where policy \"%s\" moves relations out",
					limit->policy->from_tablespace, percent, NameStr(limit->policy->name));
}

/* Return the words for a reason, NULL for none. */
static const char *
reason_clause(const Policy *policy, const TierReason *reason)
{
	switch (reason->code)
	{
		case REASON_NONE:
			return NULL;
		case REASON_SAID:
			return reason->text;
		case REASON_ITEM:
			return psprintf("it is skipped. %s", reason->text);
		case REASON_EARLIER_POLICY:
			if (reason->text == NULL)
				return "a policy earlier in the order covers its table";
			return psprintf("policy \"%s\", earlier in the order, covers its table",
							reason->text);
		case REASON_JOB_AT_WORK:
			return psprintf("job " INT64_FORMAT " is at work on its table", reason->job);
		case REASON_MOVED_LATELY:
			return psprintf("job " INT64_FORMAT " has moved it less than %s ago",
							reason->job, interval_text(policy->min_stay));
		case REASON_MOVED_OUT:
			return psprintf("job " INT64_FORMAT " has moved it out of there less than %s ago, because the file system was too full",
							reason->job, interval_text(reason->limit->policy->min_stay));
		case REASON_PRESSURE:
			return limit_clause(policy, reason->limit);
		case REASON_TOO_LARGE:
			return "it is larger than max_bytes_per_run";
		case REASON_NO_SPACE_YET:
			return "there is no space until other relations have moved out; it moves in a later run";
		case REASON_LATER_RUN:
			return "a later run moves it: max_bytes_per_run";
	}
	pg_unreachable();
}

/* Return why a relation moves, or does not. */
static const char *
reason_of(const Policy *policy, const TierRow *row)
{
	const char *clause = reason_clause(policy, &row->decision.reason);

	if (clause == NULL)
		return row->wish.why;
	if (row->wish.why == NULL)
		return clause;
	return psprintf("%s; but %s", row->wish.why, clause);
}

/* Hindrances of a move */

/*
 * Return whether a relation is none of the policy's: it names none, and its owner may not move
 * the table.  All others are wanted, too, which hinders nothing that could be mended.
 */
static bool
is_anothers(const Policy *policy, const MoveItem *item)
{
	Oid			table = OidIsValid(item->part_of) ? item->part_of : item->heap_oid;
	bool		indexes = !OidIsValid(item->part_of) && relkind_is_index(item->relkind);

	return !OidIsValid(policy->relation) && get_rel_relkind(table) != '\0' &&
		plan_role_aclcheck(policy->owner, table, indexes) != ACLCHECK_OK;
}

/* Take the hindrance of the first of the items that cannot move. */
static void
take_hindrance(const PolicyWork *work, TierRow *row)
{
	foreach_ptr(const PlannedMove, move, row->items)
	{
		const MoveItem *item = &move->item;
		TierReason	reason = {.code = REASON_ITEM,.text = item->outcome.detail};

		if (item->outcome.status != STATUS_SKIPPED)
			continue;
		decide(row, is_anothers(work->policy, item) ? VERDICT_STAYS : VERDICT_HINDERED, reason);
		return;
	}
}

/* Return whether it was found that a relation cannot move. */
static bool
is_kept(const TierRow *row)
{
	return row->decision.verdict == VERDICT_HINDERED || row->decision.verdict == VERDICT_STAYS;
}

/* Add the items of a relation, or of an index that moves with it. */
static void
add_items(const PolicyWork *work, TierRow *row, List *items)
{
	row->items = list_concat(row->items, items);
	foreach_ptr(const PlannedMove, move, items)
	{
		const MoveItem *item = &move->item;

		/* the index of a TOAST table is not told of */
		if (!OidIsValid(item->part_of) || !relkind_is_index(item->relkind))
			row->size = Max(row->size, 0) + Max(item->size_before, 0);
	}
	if (row->decision.verdict == VERDICT_NONE && row->items != NIL)
		row->decision.verdict = VERDICT_MOVES;
	if (row->decision.verdict == VERDICT_MOVES)
		take_hindrance(work, row);
}

static void
plan_one(void *arg)
{
	PolicyWork *work = arg;
	List	   *items = plan_single(&work->request, work->row->wish.relid);

	plan_skip_parts(items);
	add_items(work, work->row, items);
}

/* Return whether a relation has to move for a wish, whoever asks. */
static bool
has_to_move(const PolicyWork *work, const TierWish *wish, const RelationFacts *facts)
{
	const TierScope *scope = &work->scope;

	if (facts->tablespace == wish->to && parts_are_in(facts, wish->to))
		return false;
	return scope->residents || !OidIsValid(scope->from) || facts->tablespace == scope->from;
}

/*
 * Plan the move of the relation of a row, and set its items and its decision; neither
 * if nothing is to be done, or it is gone.
 */
static void
plan_row(PolicyWork *work, TierRow *row)
{
	RelationFacts facts;
	ErrorData  *error;

	if (!relation_facts(row->wish.relid, &facts) || !has_to_move(work, &row->wish, &facts))
		return;
	row->table_oid = facts.heap_oid;
	work->row = row;
	work->request.to_tablespace = row->wish.to;
	error = errors_catch(plan_one, work);
	if (errors_was_canceled(error))
		ReThrowError(error);
	if (error != NULL && relation_facts(row->wish.relid, &facts))
		decide_text(row, VERDICT_HINDERED, error->message);
}

/*
 * Return since when moves count for relations that come into a tablespace: moves within the
 * policy's min_stay, and within the min_stay of a policy that moves relations out of there.
 */
static TimestampTz
moves_count_since(const TierPlan *plan, Oid to)
{
	TimestampTz result = moment_minus(plan->now, plan->work->policy->min_stay);

	foreach_ptr(const PressureLimit, limit, plan->limits->limits)
	{
		if (limit->from == to)
			result = Min(result, moment_minus(plan->now, limit->policy->min_stay));
	}
	return result;
}

/* Return the moves of a table that count, a List of TableMove, the newest first. */
static List *
moves_of_table(const TierPlan *plan, Oid table, Oid to)
{
	HASHCTL		info = {.keysize = sizeof(Oid),.entrysize = sizeof(MovedTable),
	.hcxt = CurrentMemoryContext};
	PolicyWork *work = plan->work;
	MovedTable *result;
	bool		found;

	if (work->moved == NULL)
		work->moved = hash_create("index_mover moved tables", 64, &info,
								  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	result = hash_search(work->moved, &table, HASH_ENTER, &found);
	if (!found)
	{
		result->moves = NIL;
		result->moves = history_moves_of_table(table, moves_count_since(plan, to));
	}
	return result->moves;
}

/*
 * Return whether a move was of a relation.  REINDEX CONCURRENTLY makes another index of the
 * same name.
 */
static bool
is_move_of(const TableMove *move, const RelationFacts *facts)
{
	if (move->relid == facts->relid)
		return true;
	return relkind_is_index(facts->relkind) && get_rel_relkind(move->relid) == '\0' &&
		strcmp(move->relname, NameStr(facts->relname)) == 0;
}

/*
 * Return the last move of a relation that counts or, not "itself", of an index of that table;
 * NULL if there is none.
 */
static const TableMove *
last_move(const TierPlan *plan, Oid relid, Oid to, bool itself)
{
	RelationFacts facts;

	if (!relation_facts(relid, &facts))
		return NULL;
	foreach_ptr(const TableMove, move, moves_of_table(plan, facts.heap_oid, to))
	{
		if (itself ? is_move_of(move, &facts) : move->relid != facts.heap_oid)
			return move;
	}
	return NULL;
}

/*
 * Return why a relation stays where a job has moved it: within the policy's min_stay, or out
 * of this target by a policy with start_at, within the min_stay of that.
 */
static TierReason
stay_of_relation(const TierPlan *plan, Oid relid, Oid to, bool itself)
{
	const TableMove *last = last_move(plan, relid, to, itself);
	TierReason	result = {.code = REASON_NONE};
	HistoryJob	job;

	if (last == NULL || moment_is_ahead(last->moved_at))
		return result;
	result.job = last->job;
	if (last->moved_at > moment_minus(plan->now, plan->work->policy->min_stay))
	{
		result.code = REASON_MOVED_LATELY;
		return result;
	}
	if (last->from_tablespace != to || !history_read_job(last->job, &job))
		return result;
	foreach_ptr(const PressureLimit, limit, plan->limits->limits)
	{
		/* another role may have a policy of this name by now */
		if (strcmp(NameStr(limit->policy->name), NameStr(job.terms.policy)) != 0 ||
			limit->policy->owner != job.role || limit->from != last->from_tablespace ||
			last->moved_at <= moment_minus(plan->now, limit->policy->min_stay))
			continue;
		result.code = REASON_MOVED_OUT;
		result.limit = limit;
	}
	return result;
}

/* Return whether anything of a table is to be moved for a row. */
static bool
has_items_of(const TierRow *row, Oid table)
{
	foreach_ptr(const PlannedMove, move, row->items)
	{
		if (move->item.heap_oid == table || move->item.part_of == table)
			return true;
	}
	return false;
}

/*
 * Return why the relation of a row stays, or the table that goes with it.  Of the two only
 * the relation that is still to be moved counts: if one has failed, the other does not keep it.
 */
static TierReason
stay_of(const TierPlan *plan, const TierRow *row, bool itself)
{
	const TierWish *wish = &row->wish;
	TierReason	result = {.code = REASON_NONE};

	if (has_items_of(row, row->table_oid))
		result = stay_of_relation(plan, wish->relid, wish->to, itself);
	if (result.code == REASON_NONE && OidIsValid(wish->with) && has_items_of(row, wish->with))
		result = stay_of_relation(plan, wish->with, wish->to, itself);
	return result;
}

/* Return the entry of the table of a row, or of the table that goes with it; NULL = none. */
static void *
find_table(HTAB *tables, const TierRow *row)
{
	void	   *result = hash_search(tables, &row->table_oid, HASH_FIND, NULL);

	if (result == NULL && OidIsValid(row->wish.with))
		result = hash_search(tables, &row->wish.with, HASH_FIND, NULL);
	return result;
}

/* Find the policy's own hindrances of a relation that can move. */
static void
apply_policy(TierPlan *plan, TierRow *row, bool itself)
{
	const PolicyWork *work = plan->work;
	const Policy *policy = work->policy;
	const CoveredTable *covered = find_table(plan->covered, row);
	const BusyTable *busy = find_table(plan->busy, row);
	const TierReason stay = stay_of(plan, row, itself);
	TierReason	reason = {0};

	row->is_busy = covered != NULL || busy != NULL;
	if (covered != NULL)
	{
		reason.code = REASON_EARLIER_POLICY;
		/* a role sees its own policies only */
		if (covered->policy->owner == policy->owner)
			reason.text = NameStr(covered->policy->name);
		decide(row, VERDICT_WAITS, reason);
	}
	else if (busy != NULL)
	{
		reason.code = REASON_JOB_AT_WORK;
		reason.job = busy->job;
		decide(row, VERDICT_WAITS, reason);
	}
	else if (stay.code != REASON_NONE)
		decide(row, VERDICT_WAITS, stay);
	else if (policy->max_bytes_per_run > 0 && row->size > policy->max_bytes_per_run)
		decide_code(row, VERDICT_HINDERED, REASON_TOO_LARGE);
	else
	{
		/* without the moves before it in a run, which decide_all() counts */
		plan_complete(plan_parts_alone(plan->parts), row->items, &work->request);
		take_hindrance(work, row);
		reason.limit = conflict_find(plan->limits, policy, row->items, false);
		reason.code = REASON_PRESSURE;
		if (reason.limit != NULL && row->decision.verdict == VERDICT_MOVES)
			decide(row, VERDICT_HINDERED, reason);
	}
}

/*
 * Plan the move of the table that goes with that of a row, and of its indexes.  If one of
 * them cannot move, the row does not.
 */
static void
examine_companion(PolicyWork *work, TierRow *row)
{
	List	   *relids = NIL;

	if (!OidIsValid(row->wish.with))
		return;
	if (work->policy->tables)
		relids = list_make1_oid(row->wish.with);
	if (work->policy->indexes)
		relids = list_concat(relids, indexes_of_table(row->wish.with));
	foreach_oid(relid, relids)
	{
		TierRow    *part = new_row(row->wish);

		part->wish.relid = relid;
		plan_row(work, part);
		if (is_kept(part))
		{
			row->decision = part->decision;
			return;
		}
		add_items(work, row, part->items);
	}
}

/*
 * plan_row() of a relation, by age also of its indexes; and the policy's own
 * hindrances.  An index that cannot move with its table has a row of its own.
 */
static void
examine(TierPlan *plan, TierRow *row)
{
	PolicyWork *work = plan->work;
	bool		by_age = work->policy->kind == POLICY_OLDER_THAN;
	bool		itself = !by_age || work->policy->tables;

	CHECK_FOR_INTERRUPTS();
	examine_companion(work, row);
	if (itself && !is_kept(row))
		plan_row(work, row);
	/* without their table, its indexes do not go */
	if (by_age && work->policy->indexes && !is_kept(row))
	{
		foreach_oid(index, indexes_of_table(row->wish.relid))
		{
			TierRow    *part = new_row(row->wish);

			part->wish.relid = index;
			plan_row(work, part);
			if (is_kept(part))
				work->rows = lappend(work->rows, part);
			else
				add_items(work, row, part->items);
		}
	}
	if (row->decision.verdict == VERDICT_MOVES)
		apply_policy(plan, row, itself);
}

/* Return whether a wish is for a relation, for its table, or goes with that. */
static bool
is_wanted(const TierWish *wish, const HistoryEntry *entry)
{
	if (wish->relid == entry->relid || wish->relid == entry->heap_oid)
		return true;
	return OidIsValid(wish->with) && wish->with == entry->heap_oid;
}

/* Have a relation wait of which the last run could not move something. */
static void
postpone(PolicyWork *work, const HistoryEntry *entry)
{
	foreach_ptr(TierRow, row, work->rows)
	{
		TierWish   *wish = &row->wish;

		if (wish->turn == TURN_NORMAL && is_wanted(wish, entry))
			wish->turn = TURN_FAILED_LATELY;
	}
}

/* Have relations wait that have just failed, or an index of which has. */
static void
postpone_failed(PolicyWork *work)
{
	PolicyRun	run;

	policy_run_read(work->policy, &run);
	if (run.job == 0)
		return;
	foreach_ptr(const HistoryEntry, entry, history_read(run.job))
	{
		if (entry->status == STATUS_FAILED)
			postpone(work, entry);
	}
}

/*
 * Have a relation not move in if that would exceed a limit.  leaves: residents do so in this
 * run, and then there is maybe space for it.
 */
static void
keep_limits(TierPlan *plan, TierRow *row, bool leaves)
{
	TierReason	reason = {.code = REASON_PRESSURE};

	reason.limit = conflict_find(plan->limits, plan->work->policy, row->items, true);
	if (reason.limit == NULL)
		return;
	if (leaves)
		decide_code(row, VERDICT_WAITS, REASON_NO_SPACE_YET);
	else
		decide(row, VERDICT_HINDERED, reason);
}

/* Note that the policy that is planned moves something of a table. */
static void
cover(TierPlan *plan, Oid table)
{
	CoveredTable *covered = hash_search(plan->covered, &table, HASH_ENTER, NULL);

	covered->policy = plan->work->policy;
}

/* Decide about each wish. */
static void
decide_all(TierPlan *plan)
{
	PolicyWork *work = plan->work;
	int64		most = work->policy->max_bytes_per_run;
	int64		so_far = 0;		/* bytes of this run */
	double		leaving = 0;
	bool		leaves = false; /* a resident in this run */
	bool		stays = false;	/* a resident that has to leave the budget */
	bool		later = false;	/* something moves in a later run */

	postpone_failed(work);
	list_sort(work->rows, compare_rows);
	/* examine() may add rows */
	foreach_ptr(TierRow, row, work->rows)
	{
		/* the wishes of a budget were examined */
		if (row->decision.verdict == VERDICT_NONE && row->items == NIL && leaving <= work->excess)
			examine(plan, row);
		if (row->decision.verdict != VERDICT_MOVES)
			continue;
		if (stays && row->wish.turn != TURN_LEAVES)
			decide_code(row, VERDICT_WAITS, REASON_NO_SPACE_YET);
		else if (most > 0 && row->size > most - so_far)
			decide_code(row, VERDICT_WAITS, REASON_LATER_RUN);
		else
		{
			keep_limits(plan, row, leaves);
			if (row->decision.verdict == VERDICT_MOVES)
				plan_complete(plan->parts, row->items, &work->request);
			if (row->decision.verdict == VERDICT_MOVES)
				take_hindrance(work, row);
		}
		if (row->decision.verdict == VERDICT_MOVES)
		{
			so_far += row->size;
			leaves |= row->wish.turn == TURN_LEAVES;
			conflict_note_moves(plan->limits, row->items);
		}
		else if (row->wish.turn == TURN_LEAVES)
			stays = true;
		if (row->decision.reason.code == REASON_LATER_RUN)
			later = true;
		if (row->decision.verdict == VERDICT_MOVES || row->decision.reason.code == REASON_LATER_RUN)
			leaving += row->size;
	}
	if (work->pressure != NULL && later)
		work->goes_on = psprintf("%s; a later run moves the rest: max_bytes_per_run", work->pressure);
	if (work->pressure != NULL && leaving <= work->excess)
		say(work, VERDICT_HINDERED,
			psprintf("%s; but only %s of %s may be moved", work->pressure,
					 size_text((int64) leaving), size_text((int64) ceil(work->excess))));
	foreach_ptr(const TierRow, row, work->rows)
	{
		if (row->decision.verdict != VERDICT_MOVES)
			continue;
		cover(plan, row->table_oid);
		if (OidIsValid(row->wish.with))
			cover(plan, row->wish.with);
	}
}

/* older_than */

/* Other extensions' tables are left alone, unless they are named. */
static bool
is_root(Form_pg_class form)
{
	return form->relkind == RELKIND_PARTITIONED_TABLE && !form->relispartition &&
		form->relpersistence != RELPERSISTENCE_TEMP &&
		!OidIsValid(getExtensionOfObject(RelationRelationId, form->oid));
}

/* Return why a partition is wanted: where its rows end, and of a key with a unit, which moment that is. */
static const char *
why_old(const PartitionLeaf *leaf)
{
	if (leaf->text == NULL)
		return NULL;
	if (leaf->why_none != NULL || leaf->kind == KEY_TIME)
		return psprintf("its rows end at %s", leaf->text);
	return psprintf("its rows end at %s, which is %s", leaf->text, moment_text(leaf->end));
}

/* Want a partition that is old, with its compressed data if it is a chunk. */
static void
want_old(TierPlan *plan, const PartitionLeaf *leaf)
{
	TierRow    *row = want(plan->work, leaf->relid, why_old(leaf), leaf->end, -1);
	const ChunkPair *pair = NULL;

	if (plan->chunks != NULL)
		pair = hash_search(plan->chunks, &leaf->relid, HASH_FIND, NULL);
	if (pair != NULL)
		row->wish.with = pair->compressed;
}

static void
want_leaf(TierPlan *plan, const PartitionLeaf *leaf, TimestampTz limit)
{
	PolicyWork *work = plan->work;
	TierRow    *row;
	bool		stays;

	if (leaf->why_none == NULL)
	{
		if (leaf->end <= limit)
			want_old(plan, leaf);
		return;
	}
	row = want(work, leaf->relid, why_old(leaf), 0, -1);
	row->wish.turn = TURN_DECIDED;

	/*
	 * A partition without a bound stays, as it is meant to; so do tables in
	 * other ranges, of a policy for all tables.
	 */
	if (leaf->kind != KEY_OTHER && leaf->text == NULL)
		stays = true;
	else if (leaf->kind == KEY_OTHER || leaf->kind == KEY_WITHOUT_UNIT)
		stays = !OidIsValid(work->policy->relation);
	else
		stays = false;
	decide_text(row, stays ? VERDICT_STAYS : VERDICT_HINDERED, leaf->why_none);
}

static void
want_by_age(TierPlan *plan)
{
	PolicyWork *work = plan->work;
	const Policy *policy = work->policy;
	TimestampTz limit = moment_minus(plan->now, policy->age);
	List	   *roots;

	if (OidIsValid(policy->relation))
		roots = list_make1_oid(policy->relation);
	else
		roots = relations_such(is_root);
	/* a hypertable without chunks, or a table that is to have children */
	if (OidIsValid(policy->relation) && get_rel_relkind(policy->relation) == RELKIND_RELATION &&
		children_of(policy->relation, false) == NIL)
	{
		say(work, VERDICT_STAYS,
			psprintf("\"%s\" has no partitions or children yet", get_rel_name(policy->relation)));
		return;
	}
	if (plan->chunk_problem != NULL && OidIsValid(policy->relation) &&
		get_rel_relkind(policy->relation) == RELKIND_RELATION)
		say(work, VERDICT_HINDERED,
			psprintf("compressed data of chunks stays: %s", plan->chunk_problem));
	foreach_oid(root, roots)
	{
		if (OidIsValid(work->scope.schema) && get_rel_namespace(root) != work->scope.schema)
			continue;
		foreach_ptr(const PartitionLeaf, leaf, partition_leaves(root, &policy->key))
			want_leaf(plan, leaf, limit);
	}
}

/* idle_for, budget, start_at: by their known use */

static void
want_by_idleness(TierPlan *plan)
{
	static const char *const uses[] = {"scan or change", "index scan or change", "change"};
	PolicyWork *work = plan->work;
	const HeatTable *heat = plan->heat;
	IdleOf		of = work->policy->idle_of;
	TimestampTz since = moment_minus(plan->now, work->policy->age);
	const char *why = psprintf("no %s on this server since %s", uses[of], moment_text(since));
	TimestampTz known_since = 0;
	int			not_known = 0;

	for (const Heat *h = heat->heats; h < heat->heats + heat->n; h++)
	{
		if (!scope_includes(&work->scope, h) || (h->last_use[of] != 0 && h->last_use[of] > since))
			continue;
		if (h->known_since[of] <= since)
			want(work, h->facts.relid, why, 0, h->wanted_per_second);
		else
		{
			known_since = Max(known_since, h->known_since[of]);
			not_known++;
		}
	}
	if (not_known > 0)
		say(work, VERDICT_WAITS, psprintf("of %d relations nothing is known on this server before %s",
										  not_known, moment_text(known_since)));
}

/* Plan the move of a candidate, if it was not planned yet, and return its row. */
static const TierRow *
row_of_candidate(TierPlan *plan, Candidate *candidate)
{
	const Heat *heat = candidate->heat;
	TierWish	wish = {
		.relid = heat->facts.relid,
		.to = candidate->to,
		.heat = heat->wanted_per_second,
	};

	if (candidate->row != NULL)
		return candidate->row;
	if (candidate->is_resident)
	{
		wish.why = "not among the hottest that fit into the budget";
		wish.turn = TURN_LEAVES;
	}
	else
	{
		wish.why = psprintf("%.1f blocks a second by index scans and changes", heat->wanted_per_second);
		wish.turn = TURN_NORMAL;
		wish.order = -candidate->value / Max(candidate->size, BLCKSZ);
	}
	candidate->row = new_row(wish);
	examine(plan, candidate->row);
	return candidate->row;
}

/* For the ranking: can a candidate move, or is a job maybe moving it in? */
static bool
can_move(Candidate *candidate, void *arg)
{
	const TierRow *row = row_of_candidate(arg, candidate);

	if (row->items == NIL)
		return false;
	if (row->decision.verdict == VERDICT_MOVES)
		return true;
	return row->is_busy && !candidate->is_resident;
}

/* Fix a candidate that stays where it is, or that a job moves in. */
static void
fix_if_it_stays(TierPlan *plan, Candidate *candidate)
{
	const BusyTable *busy;

	if (candidate->is_resident)
	{
		if (candidate->is_chosen)
			candidate->is_fixed = true;
		else if (!can_move(candidate, plan))
			candidate->is_fixed = true;
		return;
	}
	busy = hash_search(plan->busy, &candidate->heat->facts.relid, HASH_FIND, NULL);
	if (busy != NULL && busy->to_tablespace == plan->work->scope.to)
		candidate->is_fixed = true;
}

/* Return the bytes that a budget would have in the target, were there space for all of it. */
static int64
wanted_size(TierPlan *plan, Candidate *candidates, int n, int64 budget)
{
	int64		result = 0;

	ranking_choose(candidates, n, budget, can_move, plan);
	for (const Candidate *c = candidates; c < candidates + n; c++)
	{
		if (c->is_chosen)
			result += c->size;
	}
	return result;
}

static void
want_by_heat(TierPlan *plan)
{
	PolicyWork *work = plan->work;
	const PressureLimit *limit;
	int64		budget;
	int			n;
	Candidate  *candidates = candidates_collect(plan->heat, plan->places, &work->scope,
												&work->request.settings, &n);
	const Place *from = places_find(plan->places, work->scope.from);
	const Place *to = places_find(plan->places, work->scope.to);
	PlaceBasis	basis;

	if (from != NULL && to != NULL && place_difference(from, to, &basis) <= 0)
	{
		const char *reason = psprintf("reads in \"%s\" are not known to take longer than in \"%s\"",
									  NameStr(from->name), NameStr(to->name));

		if (basis == PLACE_SAME_DEVICE)
			reason = psprintf("%s, which is on the same device", reason);
		else if (basis == PLACE_PROBED)
			reason = psprintf("no gain: \"%s\" was probed slower, at %s: %.4g ms a read, and \"%s\" %.4g ms",
							  NameStr(to->name), moment_text(to->probed_at), to->read_ms,
							  NameStr(from->name), from->read_ms);
		say(work, VERDICT_HINDERED, reason);
	}
	budget = conflict_budget(plan->limits, work->policy, candidates, n, to, plan->busy, &limit);
	/* a budget that is full of the hottest is no hindrance */
	if (limit != NULL && wanted_size(plan, candidates, n, work->policy->budget) > budget)
		say(work, VERDICT_HINDERED,
			psprintf("only %s of its budget can be used; %s", size_text(budget),
					 limit_clause(work->policy, limit)));
	ranking_choose(candidates, n, budget, can_move, plan);

	/*
	 * A second time, since whether a resident can leave is asked only if it
	 * has to.  A resident that cannot leave, or that a job moves in, takes
	 * bytes of other newcomers, and makes no resident leave.
	 */
	for (Candidate *c = candidates; c < candidates + n; c++)
		fix_if_it_stays(plan, c);
	ranking_choose(candidates, n, budget, can_move, plan);
	for (const Candidate *c = candidates; c < candidates + n; c++)
	{
		if (c->row == NULL || c->row->decision.verdict == VERDICT_NONE)
			continue;
		/* a resident that can move, but does not have to, is no row */
		if (c->row->decision.verdict != VERDICT_MOVES || CANDIDATE_MOVES(c))
			work->rows = lappend(work->rows, c->row);
	}
}

/* Return the bytes that jobs still have to move out of a tablespace, or to remove. */
static int64
bytes_leaving(Oid tablespace)
{
	JobSlot		slots[IM_MAX_JOBS];
	int			nslots = job_read_slots(slots, NULL);
	int64		result = 0;

	for (int i = 0; i < nslots; i++)
	{
		foreach_ptr(const HistoryEntry, entry, history_read(slots[i].job))
		{
			if ((entry->status == STATUS_QUEUED || entry->status == STATUS_RUNNING) &&
				entry->from_tablespace == tablespace && entry->to_tablespace != tablespace)
				result += entry->size;
		}
	}
	return result;
}

/* Return whether the last run of a policy with start_at has left something for the next. */
static bool
has_begun(const Policy *policy)
{
	PolicyRun	run;

	policy_run_read(policy, &run);
	return run.result == RUN_JOB && run.message != NULL;
}

/* Of a file system that is too full the coldest.  ERROR if no move would help. */
static void
want_by_pressure(TierPlan *plan)
{
	PolicyWork *work = plan->work;
	const Policy *policy = work->policy;
	const HeatTable *heat = plan->heat;
	FileSystemFacts facts;
	FileSystemFacts target;
	double		total;
	double		used;

	/* before how full it is: a move that ends now counts twice, not never */
	int64		leaving = bytes_leaving(work->scope.from);

	if (!file_system_facts(work->scope.from, &facts) || facts.total_bytes == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the file system of \"%s\" does not say how full it is", policy->from_tablespace)));
	if (file_system_facts(work->scope.to, &target) && target.device == facts.device)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("tablespaces \"%s\" and \"%s\" are on the same file system",
						policy->from_tablespace, NameStr(*policy->to_tablespace))));
	total = facts.total_bytes;
	used = total - facts.free_bytes;
	work->excess = used - policy->stop_at * total - leaving;
	if (work->excess < 0 || (used < policy->start_at * total && !has_begun(policy)))
		return;
	work->pressure = psprintf("file system of \"%s\" is %g%% full, stop_at is %g%%", policy->from_tablespace,
							  rint(used * 1000 / total) / 10, rint(policy->stop_at * 1000) / 10);
	for (const Heat *h = heat->heats; h < heat->heats + heat->n; h++)
	{
		double		wanted = h->wanted_per_second;
		double		order;
		int64		size;

		if (!scope_includes(&work->scope, h))
			continue;
		size = relation_main_size(&h->facts);
		if (size <= 0)
			continue;
		/* without any heat, in the order of size: all below 0 */
		order = wanted > 0 ? wanted / Max(size, BLCKSZ) : -size;
		want(work, h->facts.relid, work->pressure, order, wanted);
	}
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

/* Plan the policy of plan->work, as its owner.  ERROR if the policy itself is wrong. */
static void
work_as_owner(void *arg)
{
	static void (*const want_by[]) (TierPlan *plan) =
	{
		[POLICY_OLDER_THAN] = want_by_age,
		[POLICY_IDLE_FOR] = want_by_idleness,
		[POLICY_BUDGET] = want_by_heat,
		[POLICY_START_AT] = want_by_pressure,
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
	if (plan->heat == NULL && policy->kind != POLICY_OLDER_THAN)
		plan->heat = heat_read();
	if (policy->kind != POLICY_OLDER_THAN)
		heat_weigh(plan->heat, policy->half_life);
	want_by[policy->kind] (plan);
	decide_all(plan);
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
		return pstrdup(reason_of(policy, row));
	name = DirectFunctionCall1(regclassout, ObjectIdGetDatum(row->wish.relid));
	return psprintf("%s: %s", DatumGetCString(name), reason_of(policy, row));
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
	row_set(&result, 1, NameGetDatum(&policy->name));
	if (OidIsValid(row->wish.relid))
	{
		row_set(&result, 2, ObjectIdGetDatum(row->wish.relid));
		row_text(&result, 3, is_index ? "index" : "table");
	}
	row_int64(&result, 4, row->size);
	if (row->items != NIL)
	{
		const PlannedMove *first = linitial(row->items);

		from = first->item.from_tablespace;
		row_tablespace(&result, 5, from);
	}
	put_used(&result, 11, plan, from);
	put_used(&result, 13, plan, row->wish.to);
	row_set(&result, 6, NameGetDatum(policy->to_tablespace));
	row_tablespace(&result, 6, row->wish.to);
	row_set(&result, 7, BoolGetDatum(moves));
	row_text(&result, 8, reason_of(policy, row));
	if (row->wish.heat >= 0)
		row_set(&result, 9, Float8GetDatum(row->wish.heat));
	foreach_ptr(const PlannedMove, move, row->items)
	{
		const MoveItem *item = &move->item;

		estimated += Max(move->estimated, 0);
		if (moves)
			places_move(plan->places, item->from_tablespace, item->to_tablespace,
						Max(item->size_before, 0));
	}
	put_used(&result, 12, plan, from);
	put_used(&result, 14, plan, row->wish.to);
	if (moves)
		row_interval(&result, 10, (int64) ceil(estimated * 10) * (USECS_PER_SEC / 10));
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
		say(work, VERDICT_HINDERED, psprintf("its last run has failed: %s", why));
	else if (failures > 1)
		say(work, VERDICT_HINDERED, psprintf("it has failed %d times in a row: %s", failures, why));
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
			say(plan->work, VERDICT_HINDERED, error->message);
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
