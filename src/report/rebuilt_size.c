/*-------------------------------------------------------------------------
 *
 * rebuilt_size.c
 *	  How many pages an index would have after a rebuild.
 *
 * A build of btree follows fillfactor and the number of rows.  For the others there
 * are two sizes, and the real size is in between: the values decide how even the buckets
 * of hash are; a GIN build depends on its memory and on the keys of each row; the
 * operator class decides where GiST splits a page.
 *
 * Everything is smooth in the totals, not rounded to pages, so that the
 * sampling error can be computed by perturbing them (bloat.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/gin_private.h"
#include "access/hash.h"
#include "access/itup.h"
#include "catalog/pg_am_d.h"
#include "utils/float.h"

#include "report/report_private.h"

/*
 * How full fresh builds leave their pages: the extremes over operator classes
 * and data sets (docs/internals.md), with some margin.
 */
#define GIN_LEAST			0.35	/* pages of keys */
#define GIN_MOST			0.90
#define GIN_POSTING_DENSITY	0.977
#define GIST_LEAST			0.36
#define GIST_MOST			1.0 /* a sorting build ignores fillfactor */

/* Add pages to a total, as if there were weight times as many. */
void
page_measure_add(PageMeasure *sum, const PageMeasure *pm, double weight)
{
	sum->count += weight * pm->count;
	sum->avail += weight * pm->avail;
	sum->used += weight * pm->used;
	sum->packed += weight * pm->packed;
	sum->rows += weight * pm->rows;
	sum->tuples += weight * pm->tuples;
}

/* Return the bytes for tuples of a leaf page. */
static double
leaf_size(const PageTotals *t)
{
	return t->of[PAGE_LEAF].count > 0.5 ? t->of[PAGE_LEAF].avail / t->of[PAGE_LEAF].count : BLCKSZ;
}

/* Return the leaf pages that a build fills to this density with bytes. */
static double
leaf_pages(const PageTotals *t, double bytes, double density)
{
	const PageMeasure *leaf = &t->of[PAGE_LEAF];

	if (bytes <= 0)
		return 0;
	/* the contents of a page fit on a page */
	if (leaf->count <= 1 && bytes <= leaf->packed)
		return 1;
	return Max(bytes / (density * leaf_size(t)), 1);
}

/*
 * Return the pages of a tree with this many leaves: with as many internal pages
 * for each leaf as now, because fan-out changes little.
 */
static double
tree_pages(const PageTotals *t, double leaves)
{
	double		now = t->of[PAGE_LEAF].count + t->of[PAGE_POSTING].count;

	if (leaves <= 1)
		return 1;
	return leaves + Max(t->of[PAGE_INTERNAL].count * leaves / Max(now, 1), 1);
}

static double
rebuilt_btree(const IndexFacts *facts, const PageTotals *t)
{
	const PageMeasure *leaf = &t->of[PAGE_LEAF];
	double		page_size = leaf_size(t);
	double		tuple = leaf->packed / Max(leaf->tuples, 1);
	double		left_free = (1 - facts->fillfactor) * BLCKSZ;
	bool		has_lists = leaf->rows > 2 * leaf->tuples;
	double		per_page;

	if (leaf->tuples <= 0)
		return 0;

	/*
	 * _bt_buildadd() closes a page with the tuple that exceeds the
	 * fillfactor, or before a tuple that does not fit.  The last tuple moves
	 * to the next page, and leaves a high key without row pointers, for which
	 * the page is filled further.  At least one tuple stays.
	 */
	per_page = (page_size - Max(left_free + (has_lists ? -0.5 : 0.5) * tuple, 1.5 * tuple)) / tuple;
	return tree_pages(t, leaf->tuples / Max(per_page, 1));
}

/*
 * A build fixes the number of buckets beforehand.  The larger size has as many overflow
 * pages as any distribution of the rows over the buckets can need.
 */
static double
rebuilt_hash(const IndexFacts *facts, const PageTotals *t, bool smaller)
{
	const PageMeasure *leaf = &t->of[PAGE_LEAF];
	double		tuple = sizeof(ItemIdData) + MAXALIGN(sizeof(IndexTupleData) + sizeof(uint32));

	/* the metapage's count has no sampling error, but includes dead tuples */
	double		rows = facts->hash_rows * (leaf->rows > 0 ? leaf->tuples / leaf->rows : 1);
	double		overflow = smaller ? 0 : rows * tuple / leaf_size(t);

	/* as in _hash_init_metabuffer(); _hash_doinsert() adds the last */
	double		wanted = rows / Max(floor(facts->fillfactor * BLCKSZ / tuple), 10);
	double		buckets = wanted <= 2 ? 2 :
		_hash_get_totalbuckets(_hash_spareindex((uint32) ceil(Min(wanted, 1073741824.0))));

	/* a bitmap page serves 32,768 overflow pages */
	return buckets + overflow + 1 + floor(overflow / 32768);
}

/*
 * The larger size has a page that is not full for each posting tree, and as many
 * pages of trees as now at most; the smaller size has neither these nor the keys
 * of the pending list, each of which may be just another TID in a list.
 */
static double
rebuilt_gin(const PageTotals *t, bool smaller)
{
	const PageMeasure *posting = &t->of[PAGE_POSTING];
	double		keys = t->of[PAGE_LEAF].packed + (smaller ? 0 : t->of[PAGE_PENDING].packed);
	double		trees = posting->used / GinDataPageMaxDataSize;

	if (!smaller)
		trees = Min(trees / GIN_POSTING_DENSITY + posting->tuples, posting->count);
	return tree_pages(t, Max(leaf_pages(t, keys, smaller ? GIN_MOST : GIN_LEAST), 1) + trees);
}

/* Return the pages after a rebuild: of two sizes the smaller or the larger. */
double
rebuilt_pages(const IndexFacts *facts, const PageTotals *t, bool smaller)
{
	switch (facts->relam)
	{
		case BTREE_AM_OID:
			return 1 + rebuilt_btree(facts, t);
		case HASH_AM_OID:
			return 1 + rebuilt_hash(facts, t, smaller);
		case GIN_AM_OID:
			return 1 + rebuilt_gin(t, smaller);
		case GIST_AM_OID:
			return tree_pages(t, leaf_pages(t, t->of[PAGE_LEAF].packed,
											smaller ? GIST_MOST : GIST_LEAST));
	}
	return get_float8_nan();
}
