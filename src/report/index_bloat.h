/*-------------------------------------------------------------------------
 *
 * index_bloat.h
 *	  How much of an index a rebuild would give back.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_INDEX_BLOAT_H
#define IM_INDEX_BLOAT_H

#include "datatype/timestamp.h"
#include "utils/rel.h"

/* What pgstatindex found, for the exact path of btree. */
typedef struct ExactPages
{
	double		leaf_pages;
	double		internal_pages;
	double		leaf_density;	/* 0 to 1; NaN without leaf pages */
} ExactPages;

typedef struct BloatEstimate
{
	int64		pages;
	int64		sampled_pages;	/* blocks read, metapage and FSM included */
	double		leaf_density;	/* 0 to 1; NaN = no leaf page seen */
	double		fillfactor;		/* what a rebuild aims at, 0 to 1; NaN = none */
	double		bloat_ratio;	/* NaN = only the interval is known, or nothing */
	double		bloat_ratio_low;
	double		bloat_ratio_high;
	bool		exact;			/* no sampling error */
} BloatEstimate;

/*
 * Measure an open, valid index, in the current memory context, which is left to
 * the caller.  sample_pages is the most blocks to read (at least 1); full reads
 * them all; pages is NULL or saves reading for page counts.  At the deadline (0 =
 * none) it makes do with the blocks that it has, or gives nothing but NaN if these
 * are too few; with full there is none.  ERROR XX001 or XX002 for damaged pages.
 */
extern void index_bloat_measure(Relation index, int sample_pages, bool full,
								const ExactPages *pages, TimestampTz deadline, BloatEstimate *be);

/*
 * The planner's question: a cheap look at one index.  Sets the share that a
 * rebuild gives back, or where only an interval is known, gives back at least.
 * Returns false where the bloat can't be measured (access method, lock, validity,
 * damage, storage too slow for it).  Reads blocks for a second at most, and takes
 * less memory than work_mem; holds AccessShareLock meanwhile, which it never
 * waits for.
 */
extern bool estimate_bloat(Oid index_oid, double *ratio);

#endif							/* IM_INDEX_BLOAT_H */
