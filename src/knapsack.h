/*-------------------------------------------------------------------------
 *
 * knapsack.h
 *	  The most valuable set of things that fits into a budget.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_KNAPSACK_H
#define IM_KNAPSACK_H

/*
 * Set chosen[i] for the items to take.  Items without gain are never taken;
 * the sizes of those taken sum up to at most the budget.
 */
extern void knapsack_choose(int n, const double *gain, const int64 *size,
							int64 budget, bool *chosen);

#endif							/* IM_KNAPSACK_H */
