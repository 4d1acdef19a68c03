/*-------------------------------------------------------------------------
 *
 * ranking.c
 *	  Which relations belong into a tablespace: the one ranking, for policies with
 *	  a budget and for recommend_moves(), which is such a policy for all relations.
 *
 * Which set of them has the greatest value is the 0/1 knapsack problem.  Taking the
 * greatest value per byte first, and passing over what does not fit, or else
 * beginning with the most valuable of all that fit, whichever gets more, is at
 * least half of what is possible (Martello and Toth, Knapsack Problems, 1990, 2.4),
 * and nearly all of it where each is small.
 *
 * A resident counts RANKING_STAYS times, so that nothing goes to and fro, and a
 * little even without value, so that it stays while there is space.
 *
 * Value = blocks a second that index scans and changes want, times what a read
 * takes longer elsewhere.  Left out is what no method can move.  An index that
 * enforces nothing, and that no search has used as far back as the statistics go, has
 * no value: it is written only, and better dropped than moved.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_tablespace_d.h"
#include "funcapi.h"
#include "utils/float.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "call/call.h"
#include "printed_command.h"
#include "report/report.h"
#include "row.h"
#include "tier/tier_private.h"

PG_FUNCTION_INFO_V1(index_mover_recommend_moves);

#define RANKING_MIN_HEAT	0.01	/* blocks wanted a second: below it
									 * nothing moves in */
#define RANKING_STAYS	1.2		/* as many times as much must another gain to
								 * take the place of a resident */
#define LEAST_WORTH		1e-9	/* of a resident */
#define BLOAT_MEASURED	50		/* so many of the most promising */
#define PENDING_PAGES	16		/* from so many on to be flushed first */

static int
compare_density(const void *a, const void *b)
{
	const Candidate *x = a;
	const Candidate *y = b;
	double		x_dense = x->worth / Max(x->size, 1);
	double		y_dense = y->worth / Max(y->size, 1);

	if (x_dense != y_dense)
		return x_dense > y_dense ? -1 : 1;
	return (x->heat > y->heat) - (x->heat < y->heat);
}

/* Fill the budget in this order.  Returns the worth of the chosen ones. */
static double
fill(Candidate *candidates, int n, int64 budget)
{
	double		result = 0;

	for (Candidate *c = candidates; c < candidates + n; c++)
	{
		c->is_chosen = c->is_fixed;
		if (c->worth <= 0 || c->size > budget)
			continue;
		c->is_chosen = true;
		result += c->worth;
		budget -= c->size;
	}
	return result;
}

/*
 * Choose which candidates are to be in the target, of which they may take up budget.
 * Brings them into another order.
 */
void
ranking_choose(Candidate *candidates, int n, int64 budget)
{
	int			best = -1;
	double		by_density;
	Candidate	first;

	for (Candidate *c = candidates; c < candidates + n; c++)
	{
		if (c->is_fixed)
			budget -= c->size;
		c->worth = c->is_fixed || c->value < 0 ? 0 : !c->is_resident ? c->value :
			c->value * RANKING_STAYS + LEAST_WORTH;
	}
	qsort(candidates, n, sizeof(Candidate), compare_density);
	by_density = fill(candidates, n, budget);
	for (int i = 0; i < n; i++)
		if (candidates[i].size <= budget && (best < 0 || candidates[i].worth > candidates[best].worth))
			best = i;
	if (best <= 0)
		return;
	first = candidates[best];
	memmove(candidates + 1, candidates, best * sizeof(Candidate));
	candidates[0] = first;
	if (fill(candidates, n, budget) > by_density)
		return;
	qsort(candidates, n, sizeof(Candidate), compare_density);
	(void) fill(candidates, n, budget);
}

/* From heat and places to candidates for one target */

/* Return where a resident of the target goes if it leaves it, 0 if nowhere. */
static Oid
home_of(const RelationFacts *facts, Oid target)
{
	if (facts->heap_tablespace != target)
		return facts->heap_tablespace;
	if (MyDatabaseTableSpace != target)
		return MyDatabaseTableSpace;
	return target != DEFAULTTABLESPACE_OID ? DEFAULTTABLESPACE_OID : InvalidOid;
}

/* Measure the bloat where it matters: a bloated index is rebuilt, and is smaller then. */
static void
candidates_measure_bloat(Candidate *candidates, int n, double threshold)
{
	int			measured = 0;

	for (Candidate *c = candidates; c < candidates + n; c++)
		c->worth = c->may_rebuild && !c->is_resident ? c->value : 0;
	qsort(candidates, n, sizeof(Candidate), compare_density);
	for (Candidate *c = candidates; c < candidates + n && c->worth > 0 && measured < BLOAT_MEASURED; c++, measured++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!bloat_estimate(c->heat->facts.relid, &c->bloat, &c->bloat_is_least))
			continue;
		c->rebuilds |= c->bloat > threshold;
		if (c->rebuilds)
			c->size = ceil(c->size * (1 - c->bloat));
	}
}

/* Return whether a relation is one of these.  Those of extensions are theirs to move. */
bool
scope_includes(const TierScope *scope, const Heat *heat)
{
	const RelationFacts *facts = &heat->facts;

	return (facts->tablespace == scope->to ? scope->residents :
			!OidIsValid(scope->from) || facts->tablespace == scope->from) &&
		!heat->of_extension &&
		(facts->relkind == RELKIND_INDEX ? scope->indexes && facts->valid && facts->live : scope->tables) &&
		(!OidIsValid(scope->schema) || facts->schema_oid == scope->schema) &&
		(scope->within == NIL || list_member_oid(scope->within, facts->heap_oid));
}

/*
 * Return the candidates for the target of a scope, palloc'd, and their number: its
 * residents, and what would gain there, moved with these settings.  Residents leave
 * for scope->from or, if it is 0, an index for its table's tablespace, a table for
 * the database's.  Locks: AccessShareLock, without waiting, on each index whose
 * bloat is measured, for as long as this takes.
 */
Candidate *
candidates_collect(const HeatTable *heats, const List *places, const TierScope *scope,
				   const MoveSettings *settings, int *n)
{
	Candidate  *candidates = palloc_array(Candidate, Max(heats->n, 1));
	const Place *there = places_find(places, scope->to);

	*n = 0;
	for (int i = 0; i < heats->n; i++)
	{
		const Heat *heat = &heats->heats[i];
		const RelationFacts *facts = &heat->facts;
		Candidate	candidate = {.heat = heat,.to = scope->to,.bloat = get_float8_nan()};
		const Place *elsewhere;
		bool		may_copy;

		CHECK_FOR_INTERRUPTS();
		if (!scope_includes(scope, heat))
			continue;
		candidate.is_resident = facts->tablespace == scope->to;
		if (candidate.is_resident)
			candidate.to = OidIsValid(scope->from) ? scope->from : home_of(facts, scope->to);
		candidate.is_fixed = !OidIsValid(candidate.to);
		elsewhere = places_find(places, candidate.is_resident ? candidate.to : facts->tablespace);
		if (there != NULL && elsewhere != NULL)
		{
			double		difference = place_difference(elsewhere, there, &candidate.basis);

			if (heat->wanted_per_second >= RANKING_MIN_HEAT &&
				(facts->relkind != RELKIND_INDEX || facts->unique || facts->exclusion ||
				 heat->counters[HEAT_INDEX_SCANS] > 0))
				candidate.value = heat->wanted_per_second * difference;
		}
		if (!candidate.is_resident && candidate.value <= 0)
			continue;
		movable_methods(facts->relid, settings->copy_access_methods, &may_copy, &candidate.may_rebuild);
		candidate.rebuilds = !may_copy;
		candidate.size = heat_size(heat);
		if (candidate.size > 0 && (may_copy || candidate.may_rebuild))
			candidates[(*n)++] = candidate;
	}
	candidates_measure_bloat(candidates, *n, settings->rebuild_threshold);
	return candidates;
}

/* recommend_moves() */

/* A call of it */
typedef struct Advice
{
	List	   *places;
	const Place *target;
	Candidate  *candidates;
	int			n;
	int64		budget;
	List	   *worths;			/* for report_duplicate_of() */
} Advice;

#define MOVE_GAIN(candidate) ((candidate)->is_resident ? 0 - (candidate)->value : (candidate)->value)

/* First the relations that have to leave, then those that go there by gain, then the rest. */
static int
compare_gain(const void *a, const void *b)
{
	const Candidate *x = a;
	const Candidate *y = b;

	if (CANDIDATE_MOVES(x) != CANDIDATE_MOVES(y))
		return CANDIDATE_MOVES(x) ? -1 : 1;
	if (x->is_resident != y->is_resident)
		return x->is_resident ? -1 : 1;
	if (MOVE_GAIN(x) != MOVE_GAIN(y))
		return MOVE_GAIN(x) > MOVE_GAIN(y) ? -1 : 1;
	return (x->heat > y->heat) - (x->heat < y->heat);
}

/* Return the reason of a row: why it leaves, its method, and warnings. */
static char *
reason_text(Advice *advice, const Candidate *candidate, const char *name, int64 pending)
{
	static const char *const basis[] = {
		[PLACE_SAME_DEVICE] = "both tablespaces are on the same device, where reads take as long",
		[PLACE_PROBED] = "read times as probed",
		[PLACE_COSTS] = "read times assumed from random_page_cost",
		[PLACE_HEAT_ALONE] = "read times not known, as if 1 ms longer",
	};
	const Heat *heat = candidate->heat;
	bool		leaves = candidate->is_resident;
	Oid			duplicate = report_duplicate_of(heat->facts.relid, &advice->worths, CurrentMemoryContext);
	const char *lost_on_reboot;
	StringInfoData buf;

	initStringInfo(&buf);
	if (leaves && candidate->value < 0)
		appendStringInfo(&buf, "reads are faster in %s; ", get_tablespace_name(candidate->to));
	else if (leaves)
		appendStringInfo(&buf, "does not fit into the budget of %lld bytes; ", (long long) advice->budget);
	appendStringInfo(&buf, "%.3f block reads per second, %.3f of them for index scans and changes (",
					 heat->reads_per_second, heat->wanted_per_second);
	if (heat->samples == 0)
		appendStringInfoString(&buf, "cumulative statistics, no samples");
	else
		appendStringInfo(&buf, "%d %s over %s", heat->samples, heat->samples == 1 ? "sample" : "samples",
						 notices_duration(heat->seconds));
	appendStringInfo(&buf, "), %s", basis[candidate->basis]);
	if (pending >= PENDING_PAGES && !leaves)
		appendStringInfo(&buf, "; every search reads the %lld pages of its pending list: flush it first: %s",
						 (long long) pending, printed_command("flush_pending", name));
	if (OidIsValid(duplicate))
		appendStringInfo(&buf, "; warning: duplicate of %s",
						 DatumGetCString(DirectFunctionCall1(regclassout, ObjectIdGetDatum(duplicate))));
	if (!leaves && (lost_on_reboot = tablespace_lost_on_reboot(candidate->to)) != NULL)
		appendStringInfo(&buf, "; warning: %s is on %s and does not survive a reboot",
						 NameStr(advice->target->name), lost_on_reboot);
	if (heat->seconds < SECS_PER_HOUR)
		appendStringInfo(&buf, "; warning: the statistics cover only %s", notices_duration(heat->seconds));
	return buf.data;
}

static void
put_advice(ReturnSetInfo *rsinfo, Advice *advice, const Candidate *candidate, int rank)
{
	const Heat *heat = candidate->heat;
	const RelationFacts *facts = &heat->facts;
	bool		is_index = facts->relkind == RELKIND_INDEX;
	char	   *name = quote_qualified_identifier(NameStr(facts->schema_name), NameStr(facts->relname));
	const char *method = candidate->rebuilds ? "rebuild" : "copy";
	const char *to = tablespace_name(candidate->to);
	int64		pending = is_index ? report_pending_pages(facts->relid) : -1;
	Row			row;

	row_clear(&row);
	row_set(&row, 1, Int32GetDatum(rank));
	if (is_index)
		row_set(&row, 2, ObjectIdGetDatum(facts->relid));
	row_set(&row, 3, ObjectIdGetDatum(facts->heap_oid));
	row_text(&row, 4, method);
	row_tablespace(&row, 5, facts->tablespace);
	row_tablespace(&row, 6, candidate->to);
	row_int64(&row, 7, heat_size(heat));
	row_int64(&row, 8, candidate->size);
	row_set(&row, 9, Float8GetDatum(heat->reads_per_second));
	row_set(&row, 10, Float8GetDatum(MOVE_GAIN(candidate)));
	if (!isnan(candidate->bloat) && !candidate->bloat_is_least)
		row_set(&row, 11, Float8GetDatum(candidate->bloat));
	row_int64(&row, 12, pending);
	row_text(&row, 13, reason_text(advice, candidate, name, pending));
	row_text(&row, 14, is_index ? printed_command("move_indexes", name, to, method) :
			 printed_command("move_table", name, to));
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
}

/* Say why there is no row. */
static void
say_nothing_gained(const Advice *advice)
{
	const char *target = NameStr(advice->target->name);
	bool		any_slower = false;
	bool		any_elsewhere = false;
	PlaceBasis	basis;
	char	   *why;

	foreach_ptr(const Place, place, advice->places)
	{
		any_slower |= place_difference(place, advice->target, &basis) > 0;
		any_elsewhere |= basis != PLACE_SAME_DEVICE;
	}
	if (!advice->target->is_there)
		why = psprintf("the directory of tablespace \"%s\" is missing", target);
	else if (!any_elsewhere)
		why = psprintf("all tablespaces are on the same device as \"%s\"", target);
	else if (!any_slower)
		why = psprintf("no tablespace on another device is known to be slower than \"%s\"; set its and the others' random_page_cost, or run for it and the others: %s",
					   target, printed_command("probe", target));
	else
		why = psprintf("no relation in a slower tablespace than \"%s\" is wanted more than %g blocks a second by index scans and changes, fits into %lld bytes, and gains more than those there",
					   target, RANKING_MIN_HEAT, (long long) advice->budget);
	ereport(NOTICE, (errmsg("nothing to gain: %s", why)));
}

/*
 * recommend_moves(tablespace name, budget bigint) RETURNS SETOF record
 *
 * budget: bytes, those of the residents included; NULL: their size, and the free
 * space but for index_mover.min_free_space.  Only reads, takes no locks but those of
 * candidates_collect(), and works on a hot standby.  EXECUTE: pg_monitor.  ERRORs:
 * those of plan_tablespace(); 22004, 22023 a negative budget.
 */
Datum
index_mover_recommend_moves(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Advice		advice = {0};
	TierScope	scope = {.tables = true,.indexes = true,.residents = true};
	MoveSettings settings;

	reject_null(fcinfo, 0, "tablespace");
	scope.to = plan_tablespace(PG_GETARG_NAME(0), false);
	if (!PG_ARGISNULL(1) && PG_GETARG_INT64(1) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("budget must not be negative")));
	advice.places = places_read();
	advice.target = places_find(advice.places, scope.to);
	if (advice.target == NULL)	/* dropped meanwhile */
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("tablespace \"%s\" does not exist", NameStr(*PG_GETARG_NAME(0)))));
	InitMaterializedSRF(fcinfo, 0);
	settings_capture(&settings, NULL, false);
	advice.candidates = candidates_collect(heat_read(), advice.places, &scope, &settings, &advice.n);
	advice.budget = !PG_ARGISNULL(1) ? PG_GETARG_INT64(1) : advice.target->facts.free_bytes -
		settings_reserved(&settings.min_free_space, advice.target->facts.total_bytes);
	for (int i = 0; i < advice.n; i++)
		if (PG_ARGISNULL(1) && advice.candidates[i].is_resident)
			advice.budget += advice.candidates[i].size;
	advice.budget = advice.target->is_there ? Max(advice.budget, 0) : 0;
	ranking_choose(advice.candidates, advice.n, advice.budget);
	qsort(advice.candidates, advice.n, sizeof(Candidate), compare_gain);
	for (int i = 0; i < advice.n && CANDIDATE_MOVES(&advice.candidates[i]); i++)
		put_advice(rsinfo, &advice, &advice.candidates[i], i + 1);
	if (advice.n == 0 || !CANDIDATE_MOVES(&advice.candidates[0]))
		say_nothing_gained(&advice);
	return (Datum) 0;
}
