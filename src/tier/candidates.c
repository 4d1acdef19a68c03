/*-------------------------------------------------------------------------
 *
 * candidates.c
 *	  What heat and places say of each relation that could be in a tablespace.
 *
 * Value = blocks a second that index scans and changes want, times what a read
 * takes longer elsewhere.  Left out are relations of extensions, which are these
 * extensions' to move, invalid indexes, and what no method can move.
 *
 * An index that no search has used has no value: it is written only, and better
 * dropped than moved.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_tablespace_d.h"
#include "miscadmin.h"
#include "utils/float.h"

#include "plan/plan.h"
#include "report/report.h"
#include "settings.h"
#include "tier/tier_private.h"

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

static int
compare_promise(const void *a, const void *b)
{
	const Candidate *x = *(Candidate *const *) a;
	const Candidate *y = *(Candidate *const *) b;
	double		x_promise = x->value / x->size;
	double		y_promise = y->value / y->size;

	return x_promise == y_promise ? 0 : x_promise > y_promise ? -1 : 1;
}

/* Measure the bloat where it matters: a bloated index is rebuilt, and is smaller then. */
static void
candidates_measure_bloat(Candidate *candidates, int n, double threshold)
{
	Candidate **order = palloc_array(Candidate *, Max(n, 1));
	int			count = 0;

	for (int i = 0; i < n; i++)
		if (candidates[i].may_rebuild && !candidates[i].is_resident && candidates[i].value > 0)
			order[count++] = &candidates[i];
	qsort(order, count, sizeof(Candidate *), compare_promise);
	for (int i = 0; i < count; i++)
	{
		Candidate  *candidate = order[i];
		bool		known = i < BLOAT_MEASURED &&
			bloat_estimate(candidate->heat->relid, &candidate->bloat, &candidate->bloat_is_least);

		CHECK_FOR_INTERRUPTS();
		candidate->rebuilds = !candidate->may_copy || (known && candidate->bloat > threshold);
		if (candidate->rebuilds && known)
			candidate->size = ceil(candidate->size * (1 - candidate->bloat));
	}
	pfree(order);
}

/*
 * Return the candidates for a target, palloc'd, and their number: its residents,
 * and what would gain there, as far as filter takes them (NULL: all).  home is
 * where residents go if they leave; 0: an index to its table, a table to the
 * database's tablespace.  Locks: AccessShareLock, without waiting, on each index
 * whose bloat is measured, for as long as this takes.
 */
Candidate *
candidates_collect(const HeatTable *heats, const PlaceTable *places, Oid target, Oid home,
				   CandidateFilter filter, void *arg, int *n)
{
	Candidate  *candidates = palloc_array(Candidate, Max(heats->n, 1));
	const Place *there = places_find(places, target);
	MoveSettings settings;

	*n = 0;
	settings_capture(&settings);
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
		movable_methods(heat->relid, settings.copy_access_methods,
						&candidate.may_copy, &candidate.may_rebuild);
		candidate.size = heat_size(heat);
		if (candidate.size > 0 && (candidate.may_copy || candidate.may_rebuild))
			candidates[(*n)++] = candidate;
	}
	candidates_measure_bloat(candidates, *n, settings.rebuild_threshold);
	return candidates;
}
