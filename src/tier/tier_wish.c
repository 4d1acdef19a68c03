/*-------------------------------------------------------------------------
 *
 * tier_wish.c
 *	  Which relations a policy wants in its target, and in which order.
 *
 * A wish by heat plans the moves of its candidates, since which of them can move decides
 * which others fit into the budget.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "catalog/dependency.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/lsyscache.h"

#include "history.h"
#include "job.h"
#include "tier/tier_plan_private.h"
#include "timescaledb.h"

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
	TierRow    *row = tier_row_want(plan->work, leaf->relid, why_old(leaf), leaf->end, -1);
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
	row = tier_row_want(work, leaf->relid, why_old(leaf), 0, -1);
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
	tier_row_decide(row, stays ? VERDICT_STAYS : VERDICT_HINDERED, leaf->why_none);
}

void
tier_wish_by_age(TierPlan *plan)
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
		tier_row_say(work, VERDICT_STAYS,
					 psprintf("\"%s\" has no partitions or children yet", get_rel_name(policy->relation)));
		return;
	}
	if (plan->chunk_problem != NULL && OidIsValid(policy->relation) &&
		get_rel_relkind(policy->relation) == RELKIND_RELATION)
		tier_row_say(work, VERDICT_HINDERED,
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

void
tier_wish_by_idleness(TierPlan *plan)
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
		CHECK_FOR_INTERRUPTS();
		if (!scope_includes(&work->scope, h) || (h->last_use[of] != 0 && h->last_use[of] > since))
			continue;
		if (h->known_since[of] <= since)
			tier_row_want(work, h->facts.relid, why, 0, h->rates.wanted_per_second);
		else
		{
			known_since = Max(known_since, h->known_since[of]);
			not_known++;
		}
	}
	if (not_known == 0)
		return;
	/* say so where time alone would change nothing */
	if (!pgstat_track_counts)
		tier_row_say(work, VERDICT_HINDERED, "no use is known while track_counts is off");
	else if (heat->sampled_since == DT_NOEND)
		tier_row_say(work, VERDICT_HINDERED,
					 "no use is known on this server before its first sample");
	else
		tier_row_say(work, VERDICT_WAITS, psprintf("of %d relations nothing is known on this server before %s",
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
		.heat = heat->rates.wanted_per_second,
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
		wish.why = psprintf("%.1f blocks a second by index scans and changes", heat->rates.wanted_per_second);
		wish.turn = TURN_NORMAL;
		wish.order = -candidate->value / Max(candidate->size, BLCKSZ);
	}
	candidate->row = tier_row_new(wish);
	tier_decide_row(plan, candidate->row);
	return candidate->row;
}

/* For the ranking: plan the move of a candidate.  Return whether it can move, or a job may be moving it in. */
static bool
try_move(Candidate *candidate, void *arg)
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
		else if (!try_move(candidate, plan))
			candidate->is_fixed = true;
		return;
	}
	busy = hash_search(plan->busy, &candidate->heat->facts.relid, HASH_FIND, NULL);
	if (busy != NULL && busy->to_tablespace == plan->work->scope.to)
		candidate->is_fixed = true;
}

/* Choose as if there were space for all of a budget; return the bytes that it would have in the target. */
static int64
choose_wanted(TierPlan *plan, Candidate *candidates, int n, int64 budget)
{
	int64		result = 0;

	ranking_choose(candidates, n, budget, try_move, plan);
	for (const Candidate *c = candidates; c < candidates + n; c++)
	{
		if (c->is_chosen)
			result += c->size;
	}
	return result;
}

/* Weigh the heat by a longer half-life than the policy's, if that cannot follow the hottest, and say so. */
static void
weigh_by_hindsight(TierPlan *plan)
{
	PolicyWork *work = plan->work;
	Interval	half_life;
	Datum		words;
	double		more;

	if (!hindsight_is_better(plan->heat, &work->scope, work->policy, &half_life, &more))
		return;
	heat_weigh(plan->heat, &half_life);
	words = DirectFunctionCall1(interval_out, IntervalPGetDatum(&half_life));

	tier_row_say(work, VERDICT_STAYS,
				 psprintf("the hottest relations take turns too fast to be followed: without moves %.0f%% more reads would have met \"%s\"; they count by a half-life of %s",
						  Min(more * 100, 1000), NameStr(*work->policy->to_tablespace),
						  DatumGetCString(words)));
}

void
tier_wish_by_heat(TierPlan *plan)
{
	PolicyWork *work = plan->work;
	const PressureLimit *limit;
	int64		budget;
	int			n;
	Candidate  *candidates;
	const Place *from = places_find(plan->places, work->scope.from);
	const Place *to = places_find(plan->places, work->scope.to);
	PlaceBasis	basis;

	if (from != NULL && to != NULL && place_difference(from, to, 0, &basis) <= 0)
	{
		const char *reason = psprintf("reads in \"%s\" are not known to take longer than in \"%s\"",
									  NameStr(from->name), NameStr(to->name));

		if (basis == PLACE_SAME_DEVICE)
			reason = psprintf("%s, which is on the same device", reason);
		else if (basis == PLACE_PROBED)
			reason = psprintf("no gain: \"%s\" was probed slower, at %s: %.4g ms a read, and \"%s\" %.4g ms",
							  NameStr(to->name), moment_text(to->probed_at), to->read_ms,
							  NameStr(from->name), from->read_ms);
		tier_row_say(work, VERDICT_HINDERED, reason);
		/* nor does a resident go back, to where reads may take longer */
		return;
	}
	weigh_by_hindsight(plan);
	candidates = candidates_collect(plan->heat, plan->places, &work->scope,
									&work->request.settings, &n);
	budget = conflict_budget(plan->limits, work->policy, candidates, n, to, plan->busy, &limit);
	/* a budget that is full of the hottest is no hindrance */
	if (limit != NULL)
	{
		int64		wanted = choose_wanted(plan, candidates, n, work->policy->budget);

		if (wanted > budget)
			tier_row_say(work, VERDICT_HINDERED,
						 psprintf("only %s of its budget can be used; %s", size_text(budget),
								  tier_limit_clause(work->policy, limit)));
	}
	ranking_choose(candidates, n, budget, try_move, plan);

	/*
	 * A second time, since whether a resident can leave is asked only if it
	 * has to.  A resident that cannot leave, or that a job moves in, takes
	 * bytes of other newcomers, and makes no resident leave.
	 */
	for (Candidate *c = candidates; c < candidates + n; c++)
		fix_if_it_stays(plan, c);
	ranking_choose(candidates, n, budget, try_move, plan);
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
void
tier_wish_by_pressure(TierPlan *plan)
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
		double		wanted = h->rates.wanted_per_second;
		double		order;
		int64		size;

		CHECK_FOR_INTERRUPTS();
		if (!scope_includes(&work->scope, h))
			continue;
		size = relation_main_size(&h->facts);
		if (size <= 0)
			continue;
		/* without any heat, in the order of size: all below 0 */
		order = wanted > 0 ? wanted / Max(size, BLCKSZ) : -size;
		tier_row_want(work, h->facts.relid, work->pressure, order, wanted);
	}
}
