/*-------------------------------------------------------------------------
 *
 * rebuilt_size.h
 *	  How many pages an index would have after a rebuild.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_REBUILT_SIZE_H
#define IM_REBUILT_SIZE_H

#include "gin_build.h"
#include "page_measure.h"

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
	double		in_order[PAGE_KINDS];
} PageTotals;

/* What the rebuild depends on besides the pages. */
typedef struct RebuildContext
{
	Oid			relam;
	double		fillfactor;		/* 0 to 1; NaN where the method has none */
	double		hash_tuples;	/* hash: from the metapage, -1 = unknown */
	int			hash_ffactor;	/* hash: tuples per bucket aimed at */
	bool		gist_sorted;	/* GiST: a build sorts, and doesn't insert */
	bool		gist_points;	/* GiST: it sorts points */
	double		tried_density;	/* GiST, SP-GiST: to try with; 0 = the usual one */
	double		build_memory;	/* bytes, maintenance_work_mem */
	double		gin_density;	/* GIN: of the pages of keys; NaN = unknown */
	double		gin_spread;		/* GIN: how uncertain that is */
} RebuildContext;

extern void rebuild_context_init(Relation index, RebuildContext *rc);
extern void page_totals_add(PageTotals *totals, const PageMeasure *pm, double weight);
extern double page_totals_density(const PageTotals *totals);
extern void rebuilt_gin_trees(const PageTotals *totals, GinTreeTotals *trees);

/*
 * Return whether how full a rebuild will make the pages can't be told from
 * those that are there.  If so, sets the least and the greatest density that
 * it may have, for RebuildContext's tried_density.
 */
extern bool rebuilt_density_unknown(const RebuildContext *rc, const PageTotals *totals,
									double *least, double *most);
extern double rebuilt_pages(const RebuildContext *rc, const PageTotals *totals);

#endif							/* IM_REBUILT_SIZE_H */
