/*-------------------------------------------------------------------------
 *
 * ranking.c
 *	  Which relations belong into a tablespace: the one ranking, for
 *	  recommend_moves() and for policies with a budget.
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
 * takes longer elsewhere.  Left out are relations of extensions, which are these
 * extensions' to move, invalid indexes, and what no method can move.  An index that no
 * search has used has no value: it is written only, and better dropped than moved.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_tablespace_d.h"
#include "catalog/pg_type_d.h"
#include "utils/array.h"
#include "utils/float.h"

#include "plan/plan.h"
#include "report/report.h"
#include "tier/tier_private.h"

#define LEAST_WORTH		1e-9	/* of a resident */

/* A candidate that can be had, as it counts */
typedef struct Ranked
{
	Candidate  *candidate;
	double		worth;
	bool		fits;
} Ranked;

static int
compare_worth(const void *a, const void *b)
{
	const Ranked *x = a;
	const Ranked *y = b;
	double		x_dense = x->worth / Max(x->candidate->size, 1);
	double		y_dense = y->worth / Max(y->candidate->size, 1);

	if (x_dense != y_dense)
		return x_dense > y_dense ? -1 : 1;
	return (x->candidate > y->candidate) - (x->candidate < y->candidate);
}

/* Fill the budget, the candidate "first" first if there is one.  Returns the worth. */
static double
fill(Ranked *ranked, int n, int64 budget, const Ranked *first)
{
	double		result = 0;

	if (first != NULL)
		budget -= first->candidate->size;
	for (int i = 0; i < n; i++)
	{
		ranked[i].fits = &ranked[i] == first || ranked[i].candidate->size <= budget;
		if (!ranked[i].fits)
			continue;
		result += ranked[i].worth;
		if (&ranked[i] != first)
			budget -= ranked[i].candidate->size;
	}
	return result;
}

/*
 * Choose which candidates are to be in the target, of which they may take up so
 * many bytes, and set the fate of each.
 */
void
ranking_choose(Candidate *candidates, int n, int64 budget)
{
	Ranked	   *ranked = palloc_array(Ranked, Max(n, 1));
	Ranked	   *best = NULL;
	int			count = 0;

	for (int i = 0; i < n; i++)
		if (candidates[i].is_fixed)
			budget -= candidates[i].size;
	for (int i = 0; i < n; i++)
	{
		Candidate  *candidate = &candidates[i];
		double		worth = !candidate->is_resident ? candidate->value :
			candidate->value < 0 ? 0 : candidate->value * RANKING_STAYS + LEAST_WORTH;

		candidate->fate = candidate->is_fixed ? CANDIDATE_STAYS :
			candidate->is_resident ? CANDIDATE_LEAVES : CANDIDATE_REMAINS;
		if (!candidate->is_fixed && worth > 0 && candidate->size <= budget)
			ranked[count++] = (Ranked)
		{
			candidate, worth
		};
	}
	qsort(ranked, count, sizeof(Ranked), compare_worth);
	for (int i = 0; i < count; i++)
		if (best == NULL || ranked[i].worth > best->worth)
			best = &ranked[i];
	if (fill(ranked, count, budget, best) <= fill(ranked, count, budget, NULL))
		best = NULL;
	(void) fill(ranked, count, budget, best);
	for (int i = 0; i < count; i++)
		if (ranked[i].fits)
			ranked[i].candidate->fate =
				ranked[i].candidate->is_resident ? CANDIDATE_STAYS : CANDIDATE_GOES;
	pfree(ranked);
}

/* ----------------------------------------------------------------
 *	From heat and places to candidates for one target
 * ----------------------------------------------------------------
 */

#define BLOAT_MEASURED	50		/* so many of the most promising */

/* Return where a resident of the target goes if it leaves it, 0 if nowhere. */
static Oid
home_of(const Heat *heat, const HeatTable *heats, Oid target)
{
	const Heat *table = heat_of(heats, heat->table_oid);

	if (heat->relkind == RELKIND_INDEX && table != NULL && table->tablespace != target)
		return table->tablespace;
	if (MyDatabaseTableSpace != target)
		return MyDatabaseTableSpace;
	return target != DEFAULTTABLESPACE_OID ? DEFAULTTABLESPACE_OID : InvalidOid;
}

/* Measure the bloat where it matters: a bloated index is rebuilt, and is smaller then. */
static void
candidates_measure_bloat(Candidate *candidates, int n, double threshold)
{
	Ranked	   *ranked = palloc_array(Ranked, Max(n, 1));
	int			count = 0;

	for (int i = 0; i < n; i++)
		if (candidates[i].may_rebuild && !candidates[i].is_resident && candidates[i].value > 0)
			ranked[count++] = (Ranked)
		{
			&candidates[i], candidates[i].value
		};
	qsort(ranked, count, sizeof(Ranked), compare_worth);
	for (int i = 0; i < count; i++)
	{
		Candidate  *candidate = ranked[i].candidate;
		bool		known = i < BLOAT_MEASURED &&
			bloat_estimate(candidate->heat->relid, &candidate->bloat, &candidate->bloat_is_least);

		CHECK_FOR_INTERRUPTS();
		candidate->rebuilds = !candidate->may_copy || (known && candidate->bloat > threshold);
		if (candidate->rebuilds && known)
			candidate->size = ceil(candidate->size * (1 - candidate->bloat));
	}
	pfree(ranked);
}

/*
 * Return the candidates for a target, palloc'd, and their number: its residents,
 * and what would gain there, as far as filter takes them (NULL: all), moved with
 * these settings.  home is
 * where residents go if they leave; 0: an index to its table, a table to the
 * database's tablespace.  Locks: AccessShareLock, without waiting, on each index
 * whose bloat is measured, for as long as this takes.
 */
Candidate *
candidates_collect(const HeatTable *heats, const PlaceTable *places, Oid target, Oid home,
				   const MoveSettings *settings, CandidateFilter filter, void *arg, int *n)
{
	Candidate  *candidates = palloc_array(Candidate, Max(heats->n, 1));
	const Place *there = places_find(places, target);

	*n = 0;
	for (int i = 0; i < heats->n; i++)
	{
		const Heat *heat = &heats->heats[i];
		Candidate	candidate = {.heat = heat,.is_resident = heat->tablespace == target,.bloat = get_float8_nan()};
		const Place *elsewhere;

		CHECK_FOR_INTERRUPTS();
		if (heat->of_extension || !heat->is_valid || (filter != NULL && !filter(heat, arg)))
			continue;
		if (candidate.is_resident)
			candidate.home = OidIsValid(home) ? home : home_of(heat, heats, target);
		candidate.is_fixed = candidate.is_resident && !OidIsValid(candidate.home);
		elsewhere = places_find(places, candidate.is_resident ? candidate.home : heat->tablespace);
		if (there != NULL && elsewhere != NULL)
		{
			double		difference = place_difference(elsewhere, there, &candidate.basis);

			if (heat->is_searched && heat->wanted_per_second >= RANKING_MIN_HEAT)
				candidate.value = heat->wanted_per_second * difference;
		}
		if (!candidate.is_resident && candidate.value <= 0)
			continue;
		movable_methods(heat->relid, settings->copy_access_methods,
						&candidate.may_copy, &candidate.may_rebuild);
		candidate.size = heat_size(heat);
		if (candidate.size > 0 && (candidate.may_copy || candidate.may_rebuild))
			candidates[(*n)++] = candidate;
	}
	candidates_measure_bloat(candidates, *n, settings->rebuild_threshold);
	return candidates;
}

#ifdef INDEX_MOVER_TEST

PG_FUNCTION_INFO_V1(index_mover_test_ranking);

static Datum *
elements(FunctionCallInfo fcinfo, int argno, Oid type, int *n)
{
	Datum	   *result;

	deconstruct_array(PG_GETARG_ARRAYTYPE_P(argno), type, type == BOOLOID ? 1 : 8, true,
					  type == BOOLOID ? TYPALIGN_CHAR : TYPALIGN_DOUBLE, &result, NULL, n);
	return result;
}

/*
 * index_mover_test_ranking(sizes bigint[], values float8[], residents boolean[],
 *		fixed boolean[], budget bigint) RETURNS int[]
 *
 * ranking_choose(); returns the fates.
 */
Datum
index_mover_test_ranking(PG_FUNCTION_ARGS)
{
	int			n;
	Datum	   *sizes = elements(fcinfo, 0, INT8OID, &n);
	Datum	   *values = elements(fcinfo, 1, FLOAT8OID, &n);
	Datum	   *residents = elements(fcinfo, 2, BOOLOID, &n);
	Datum	   *fixed = elements(fcinfo, 3, BOOLOID, &n);
	Candidate  *candidates = palloc0_array(Candidate, n);
	Datum	   *fates = palloc_array(Datum, n);

	for (int i = 0; i < n; i++)
	{
		candidates[i].size = DatumGetInt64(sizes[i]);
		candidates[i].value = DatumGetFloat8(values[i]);
		candidates[i].is_resident = DatumGetBool(residents[i]);
		candidates[i].is_fixed = DatumGetBool(fixed[i]);
	}
	ranking_choose(candidates, n, PG_GETARG_INT64(4));
	for (int i = 0; i < n; i++)
		fates[i] = Int32GetDatum(candidates[i].fate);
	PG_RETURN_ARRAYTYPE_P(construct_array(fates, n, INT4OID, sizeof(int32), true, TYPALIGN_INT));
}

#endif							/* INDEX_MOVER_TEST */
