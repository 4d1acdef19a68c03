/*-------------------------------------------------------------------------
 *
 * rebuilt_size.h
 *	  How many pages an index would have after a rebuild.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_REBUILT_SIZE_H
#define IM_REBUILT_SIZE_H

#include "report/page_measure.h"

/*
 * Sums over the pages of an index, or the estimates of those sums from a
 * sample.  The metapage is not in them.
 */
typedef struct PageTotals
{
	double		count[PAGE_KINDS];
	double		avail[PAGE_KINDS];
	double		used[PAGE_KINDS];
	double		packed[PAGE_KINDS];
	double		items[PAGE_KINDS];
	double		dead[PAGE_KINDS];
	double		tuples[PAGE_KINDS];
	double		heavy[PAGE_KINDS];
	double		squares[PAGE_KINDS];
	double		one_size[PAGE_KINDS];
} PageTotals;

/* What the rebuild depends on besides the pages. */
typedef struct RebuildContext
{
	Oid			relam;
	double		fillfactor;		/* 0 to 1; NaN where the method has none */
	double		hash_tuples;	/* hash: from the metapage, -1 = unknown */
	int			hash_ffactor;	/* hash: tuples per bucket aimed at */
	double		brin_least;		/* BRIN: bytes of an empty summary, with line pointer */
	bool		smallest;		/* where two sizes are possible, the smaller one */
} RebuildContext;

extern void rebuild_context_init(Relation index, RebuildContext *rc);
extern void page_totals_add(PageTotals *totals, const PageMeasure *pm, double weight);
extern double page_totals_density(const PageTotals *totals);

/*
 * Return the pages after a rebuild: where what the pages tell leaves it open, at
 * most so many, or with rc->smallest at least so many.
 */
extern double rebuilt_pages(const RebuildContext *rc, const PageTotals *totals);

#endif							/* IM_REBUILT_SIZE_H */
