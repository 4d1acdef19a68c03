/*-------------------------------------------------------------------------
 *
 * gin_build.h
 *	  How full a build of a GIN index leaves the pages of its keys.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_GIN_BUILD_H
#define IM_GIN_BUILD_H

#include "storage/bufpage.h"
#include "utils/rel.h"

typedef struct GinBuild GinBuild;

/* The posting trees of the whole index. */
typedef struct GinTreeTotals
{
	double		trees;
	double		deep;			/* of them, with more than one page */
	double		deep_items;		/* rows before the last page, on average */
	double		deep_bytes;		/* the same */
} GinTreeTotals;

/*
 * Start to collect pages.  Everything lives until gin_build_end(), or as long
 * as the current memory context.
 */
extern GinBuild *gin_build_start(Relation index);
extern void gin_build_end(GinBuild *gb);

/*
 * Take a leaf page of the tree of keys, whose header and line pointers were
 * checked.  Returns NULL, or what is wrong with its posting lists (a
 * fragment, not translated).
 */
extern const char *gin_build_add(GinBuild *gb, Page page);

/*
 * Take the last page of a posting tree: its rows, and the bytes that they
 * would take as a list.
 */
extern void gin_build_add_tree(GinBuild *gb, double items, double list_bytes);

/*
 * Return the share of the pages' space that is in use after a build with
 * memory bytes for each batch, if the index has that many keys altogether, as
 * those on the collected pages.  NaN if they fit
 * on one page.  *spread is how far from
 * each other guesses are that are as good, as a share of the pages.
 */
extern double gin_build_density(GinBuild *gb, double total_keys, double memory,
								const GinTreeTotals *totals, double *spread);

#endif							/* IM_GIN_BUILD_H */
