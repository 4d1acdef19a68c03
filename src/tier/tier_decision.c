/*-------------------------------------------------------------------------
 *
 * tier_decision.c
 *	  Whether a relation that a policy wants moves, waits or stays, and why.
 *
 * Hindrances of a move are found by the planner of moves, as in a dry run; the policies' own
 * hindrances are min_stay, max_bytes_per_run, a policy that has the table first, and any that
 * would move it back (policy_conflict.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/lsyscache.h"

#include "call/call.h"
#include "own_tables.h"
#include "tier/tier_plan_private.h"

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

void
tier_row_decide(TierRow *row, TierVerdict verdict, const char *words)
{
	TierReason	reason = {.code = REASON_SAID,.text = words};

	decide(row, verdict, reason);
}

TierRow *
tier_row_new(TierWish wish)
{
	TierRow    *row = palloc0_object(TierRow);

	row->wish = wish;
	row->table_oid = wish.relid;
	row->size = -1;
	return row;
}

/* Add a row about the policy itself, before the others. */
void
tier_row_say(PolicyWork *work, TierVerdict verdict, const char *text)
{
	TierWish	wish = {.turn = TURN_POLICY,.heat = -1};
	TierRow    *row = tier_row_new(wish);

	tier_row_decide(row, verdict, text);
	work->rows = lcons(row, work->rows);
}

/* Add a relation that the policy wants in its target. */
TierRow *
tier_row_want(PolicyWork *work, Oid relid, const char *why, double order, double heat)
{
	TierWish	wish = {0};
	TierRow    *row;

	wish.relid = relid;
	wish.to = work->scope.to;
	wish.why = why;
	wish.turn = TURN_NORMAL;
	wish.order = order;
	wish.heat = heat;
	row = tier_row_new(wish);
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
const char *
tier_limit_clause(const Policy *policy, const PressureLimit *limit)
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
			return tier_limit_clause(policy, reason->limit);
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
const char *
tier_row_reason(const Policy *policy, const TierRow *row)
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
		tier_row_decide(row, VERDICT_HINDERED, error->message);
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
	PolicyWork *work = plan->work;
	MovedTable *result;
	bool		found;

	if (work->moved == NULL)
	{
		HASHCTL		info = {0};

		info.keysize = sizeof(Oid);
		info.entrysize = sizeof(MovedTable);
		info.hcxt = CurrentMemoryContext;
		work->moved = hash_create("index_mover moved tables", 64, &info,
								  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
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
		/*
		 * without the moves before it in a run, which tier_decide_all()
		 * counts
		 */
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
		TierRow    *part = tier_row_new(row->wish);

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
void
tier_decide_row(TierPlan *plan, TierRow *row)
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
			TierRow    *part = tier_row_new(row->wish);

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
void
tier_decide_all(TierPlan *plan)
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
	/* tier_decide_row() may add rows */
	foreach_ptr(TierRow, row, work->rows)
	{
		/* the wishes of a budget were examined */
		if (row->decision.verdict == VERDICT_NONE && row->items == NIL && leaving <= work->excess)
			tier_decide_row(plan, row);
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
		tier_row_say(work, VERDICT_HINDERED,
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
