/*-------------------------------------------------------------------------
 *
 * hindsight.c
 *	  For how long a policy with a budget is to remember reads.
 *
 * What moves in stays for min_stay.  Where hot sets take turns faster than that, a policy that
 * follows them by its half-life comes too late each time, and gets less than one that leaves all in
 * place.  So the policy looks back: it is simulated on the samples.  If it would have met more reads
 * had it stopped moving at any moment, reads count by a longer half-life, by which sets that take
 * turns are about equally hot.
 *
 * Assumption: the sets go on taking turns as they did in the samples.
 *
 * Takes no locks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/float.h"
#include "utils/memutils.h"

#include "tier/tier_private.h"

#define LONG_IN_HALF_LIVES	28	/* so many half-lives, and */
#define LONG_IN_STAYS		14	/* min_stays, is the longer half-life */
#define LEAST_STAYS			4	/* less history tells nothing */
#define STEPS				336 /* of the longer half-life */
#define LATE_STEPS			3	/* about an hour each, by default */
#define MOST_RELATIONS		1000	/* the most read of a scope */
#define CLEARLY_MORE		1.01
#define MOST_YEARS			10	/* are looked back */

/* A relation in a simulation */
typedef struct PastRelation
{
	const Heat *heat;
	const float *wanted;		/* blocks, in each step */
	double		size;			/* bytes */
	double	   *before;			/* blocks wanted before each step */
	double		remembered;		/* of the steps so far, weighted */
	double		key;			/* to sort by */
	bool		is_resident;
	int			since;			/* the step in which it came, or left */
} PastRelation;

/* The greatest key first. */
static int
compare_past(const void *a, const void *b)
{
	const PastRelation *x = a;
	const PastRelation *y = b;

	if (x->key != y->key)
		return x->key > y->key ? -1 : 1;
	return (x->heat > y->heat) - (x->heat < y->heat);
}

/* Return a relation of which blocks were wanted in the steps. */
static PastRelation
past_relation(const Heat *heat, const float *wanted, int nsteps)
{
	PastRelation result = {
		.heat = heat,
		.wanted = wanted,
		.size = Max(relation_main_size(&heat->facts), 1),
	};

	for (int step = 0; step < nsteps; step++)
		result.key += wanted[step];
	return result;
}

/* Return how many blocks of a relation were wanted before each step, and up to now, palloc'd. */
static double *
wanted_before(const float *wanted, int nsteps)
{
	double	   *result = palloc_array(double, nsteps + 1);

	result[0] = 0;
	for (int step = 0; step < nsteps; step++)
		result[step + 1] = result[step] + wanted[step];
	return result;
}

/* Return the relations of a scope that were read most, palloc'd, and their number. */
static PastRelation *
most_read(const HeatTable *heats, const HeatHistories *histories, const TierScope *scope, int *n)
{
	PastRelation *result = palloc_extended(heats->n * sizeof(PastRelation) + 1, MCXT_ALLOC_HUGE);

	*n = 0;
	for (int i = 0; i < heats->n; i++)
	{
		const Heat *heat = &heats->heats[i];
		const float *wanted = histories->wanted[i];

		CHECK_FOR_INTERRUPTS();
		if (wanted != NULL && ranking_counts(heat) && scope_includes(scope, heat))
			result[(*n)++] = past_relation(heat, wanted, histories->n);
	}
	qsort(result, *n, sizeof(PastRelation), compare_past);
	*n = Min(*n, MOST_RELATIONS);
	for (PastRelation *r = result; r < result + *n; r++)
		r->before = wanted_before(r->wanted, histories->n);
	return result;
}

/* A simulation; times in steps */
typedef struct Hindsight
{
	PastRelation *relations;
	int			nrelations;
	int			n;				/* steps up to now */
	double		budget;
	double		half_life;
	int			stay;
	int			every;			/* there is a run */
} Hindsight;

/* Have the relations come and leave that the budget is for now, as ranking_choose() does for one size. */
static void
choose(const Hindsight *past, int step)
{
	PastRelation *end = past->relations + past->nrelations;
	double		budget = past->budget;

	for (PastRelation *r = past->relations; r < end; r++)
	{
		r->key = r->remembered / r->size;
		if (r->is_resident)
			r->key *= RANKING_STAYS;
		/* it cannot leave yet */
		if (r->is_resident && step - r->since < past->stay)
			r->key = get_float8_infinity();
	}
	qsort(past->relations, past->nrelations, sizeof(PastRelation), compare_past);
	for (PastRelation *r = past->relations; r < end; r++)
	{
		bool		may_come = r->is_resident || step - r->since >= past->stay;
		bool		is_chosen = may_come && r->key > 0 && r->size <= budget;

		if (is_chosen)
			budget -= r->size;
		if (is_chosen != r->is_resident)
			r->since = step;
		r->is_resident = is_chosen;
	}
}

/*
 * Simulate a policy.  Returns how many times as many blocks would have been met if, from any moment
 * on, it had moved nothing for half of the time: on average, so that no luck decides.
 */
static double
gain_of_staying(const Hindsight *past)
{
	PastRelation *end = past->relations + past->nrelations;
	int			n = past->n;
	double		kept = exp2(-1 / past->half_life);
	double	   *met = palloc0_array(double, n + 1); /* before each step */
	int			length = n / 2;
	double		stays = 0;
	double		follows = 0;

	for (PastRelation *r = past->relations; r < end; r++)
	{
		/* all may come in the first step */
		r->is_resident = false;
		r->since = -past->stay;
		r->remembered = 0;
	}
	for (int step = 0; step < n; step++)
	{
		CHECK_FOR_INTERRUPTS();
		met[step + 1] = met[step];
		for (PastRelation *r = past->relations; r < end; r++)
		{
			double		wanted = r->before[step + 1] - r->before[step];

			if (r->is_resident)
				met[step + 1] += wanted;
			r->remembered = r->remembered * kept + wanted;
		}
		/* the last one is now */
		if ((n - 1 - step) % past->every == 0)
			choose(past, step);
		for (const PastRelation *r = past->relations; r < end; r++)
		{
			if (r->is_resident && step + length < n)
				stays += r->before[step + 1 + length] - r->before[step + 1];
		}
	}
	for (int step = 0; step + length < n; step++)
		follows += met[step + 1 + length] - met[step + 1];
	return follows > 0 ? stays / follows : 1;
}

/* Return an interval before now, in microseconds. */
static double
interval_us(TimestampTz now, const Interval *interval)
{
	return (double) now - (double) moment_minus(now, interval);
}

/* Return from when on samples tell of sets that are hot for about a half-life, or longer. */
static TimestampTz
looks_back_to(TimestampTz now, double half_life, double longer)
{
	double		most = MOST_YEARS * DAYS_PER_YEAR * USECS_PER_DAY;

	/* those of each day do not tell of day and night */
	if (half_life < USECS_PER_DAY)
		most = (double) HOURLY_DAYS * USECS_PER_DAY;
	return now - (TimestampTz) Min(longer, most);
}

/*
 * Return whether a policy with a budget cannot follow the hottest relations with its half-life: it
 * would have met more reads if it had moved nothing.  Then set by what share more, and
 * the half-life that is to count.
 */
bool
hindsight_is_better(HeatTable *heats, const TierScope *scope, const Policy *policy,
					Interval *half_life, double *more)
{
	TimestampTz now = heats->now;
	double		usual = Max(interval_us(now, policy->half_life), USECS_PER_MINUTE);
	double		stay = Max(interval_us(now, policy->min_stay), 0);
	double		longer = Max(usual * LONG_IN_HALF_LIVES, stay * LONG_IN_STAYS);
	double		length = longer / STEPS;
	TimestampTz begin = Max(heats->sampled_since, looks_back_to(now, usual, longer));
	Hindsight	past = {.budget = policy->budget,.half_life = usual / length};
	double		gain;
	Interval	whole = {0};
	const HeatHistories *histories;
	MemoryContext context;
	MemoryContext oldcontext;

	/* samples are minutes, and later hours apart */
	if (begin >= now || usual < USECS_PER_HOUR || now - begin < LEAST_STAYS * Max(stay, usual))
		return false;
	past.n = (int) ((now - begin) / length);

	/*
	 * a call can have many such policies; an error of one ends its
	 * subtransaction
	 */
	context = AllocSetContextCreate(CurTransactionContext, "index_mover hindsight",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	histories = heat_histories(heats, begin, past.n);
	past.relations = most_read(heats, histories, scope, &past.nrelations);
	/* a run comes some time after the end of min_stay, and so later each time */
	past.stay = (int) ceil(stay / length) + LATE_STEPS;
	past.every = 1;
	if (policy->every != NULL)
		past.every = (int) Max(Min(rint(interval_us(now, policy->every) / length), past.n), 1);
	gain = gain_of_staying(&past);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	if (gain <= CLEARLY_MORE)
		return false;
	/* whole hours, for the words of a plan */
	whole.day = (int32) (longer / USECS_PER_DAY);
	whole.time = (int64) fmod(longer, USECS_PER_DAY) / USECS_PER_HOUR * USECS_PER_HOUR;
	*half_life = whole;
	*more = gain - 1;
	return true;
}
