/*-------------------------------------------------------------------------
 *
 * knapsack.c
 *	  The most valuable set of things that fits into a budget.
 *
 * Gain per byte alone goes wrong when things are big compared with the budget:
 * a small good one then keeps out a big better one.  So the exact method
 * (dynamic programming over the budget, cut into SLOTS parts) competes with
 * the greedy one, and the better set wins.  Sizes are rounded up to slots, so
 * a set that fits in slots fits in bytes; that makes many small things look
 * too big, and there the greedy set is the better one.
 *
 * Time is items times SLOTS, memory one bit of each: with more than MAX_EXACT
 * items the most promising ones take part in the exact method, and the others
 * fill up what is left.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "knapsack.h"

#define SLOTS		4096
#define MAX_EXACT	2000

typedef struct Item
{
	int			number;
	double		gain;
	int64		size;
} Item;

static int
compare_density(const void *a, const void *b)
{
	const Item *x = a;
	const Item *y = b;
	double		dx = x->gain / Max(x->size, 1);
	double		dy = y->gain / Max(y->size, 1);

	if (dx != dy)
		return dx > dy ? -1 : 1;
	return x->number - y->number;
}

/*
 * Add to the chosen ones, best gain per byte first, what still fits.  Returns
 * the gain of all of them.
 */
static double
fill_up(const Item *items, int n, int64 budget, bool *chosen)
{
	double		total = 0;

	for (int i = 0; i < n; i++)
	{
		if (chosen[i])
		{
			budget -= items[i].size;
			total += items[i].gain;
		}
	}
	for (int i = 0; i < n; i++)
	{
		if (!chosen[i] && items[i].size <= budget)
		{
			chosen[i] = true;
			budget -= items[i].size;
			total += items[i].gain;
		}
	}
	return total;
}

/*
 * Choose among the items by dynamic programming.
 */
static void
choose_exactly(const Item *items, int n, int64 budget, bool *chosen)
{
	double	   *best = palloc0(sizeof(double) * (SLOTS + 1));
	uint8	   *taken = palloc0((Size) n * (SLOTS / 8 + 1));
	int			slot = SLOTS;

	for (int i = 0; i < n; i++)
	{
		uint8	   *row = taken + (Size) i * (SLOTS / 8 + 1);
		double		share = (double) items[i].size / budget * SLOTS;
		int			need = (int) share;

		CHECK_FOR_INTERRUPTS();
		if (need < share)
			need++;
		for (int s = SLOTS; s >= need; s--)
		{
			if (best[s - need] + items[i].gain > best[s])
			{
				best[s] = best[s - need] + items[i].gain;
				row[s / 8] |= 1 << (s % 8);
			}
		}
	}
	for (int i = n - 1; i >= 0; i--)
	{
		uint8	   *row = taken + (Size) i * (SLOTS / 8 + 1);

		if (row[slot / 8] & (1 << (slot % 8)))
		{
			double		share = (double) items[i].size / budget * SLOTS;
			int			need = (int) share;

			if (need < share)
				need++;
			chosen[i] = true;
			slot -= need;
		}
	}
	pfree(best);
	pfree(taken);
}

void
knapsack_choose(int n, const double *gain, const int64 *size, int64 budget, bool *chosen)
{
	Item	   *items = palloc(sizeof(Item) * Max(n, 1));
	bool	   *greedy = palloc0(Max(n, 1));
	bool	   *exact = palloc0(Max(n, 1));
	int			nitems = 0;
	bool	   *better;

	memset(chosen, false, n);
	for (int i = 0; i < n; i++)
	{
		if (gain[i] > 0 && size[i] >= 0 && size[i] <= budget)
		{
			items[nitems].number = i;
			items[nitems].gain = gain[i];
			items[nitems].size = size[i];
			nitems++;
		}
	}
	if (nitems > 0)
	{
		qsort(items, nitems, sizeof(Item), compare_density);
		if (budget > 0)
			choose_exactly(items, Min(nitems, MAX_EXACT), budget, exact);
		better = fill_up(items, nitems, budget, exact) > fill_up(items, nitems, budget, greedy) ?
			exact : greedy;
		for (int i = 0; i < nitems; i++)
			chosen[items[i].number] = better[i];
	}
	pfree(items);
	pfree(greedy);
	pfree(exact);
}
